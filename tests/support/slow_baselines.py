"""The baseline drafters once more, in the obvious way: whole histories searched at every step.

Called with the history and the length of the first prompt, each returns the draft.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Reference = Callable[[list[int], int], list[int]]


def occurrences(tokens: list[int], n: int, last_start: int) -> list[int]:
    key = tokens[len(tokens) - n :]
    return [j for j in range(last_start + 1) if tokens[j : j + n] == key]


def first_occurrence(gamma: int, k: int) -> Reference:
    def draft(tokens: list[int], begin: int) -> list[int]:
        found = occurrences(tokens, gamma, len(tokens) - gamma - 1)
        return tokens[found[0] + gamma :][:k] if found else []

    return draft


def prompt_lookup(max_ngram: int, k: int, eog: Sequence[int] = ()) -> Reference:
    def draft(tokens: list[int], begin: int) -> list[int]:
        for n in range(max_ngram, 0, -1):
            copy = first_occurrence(n, k)(tokens, begin)
            if copy:
                ends = [i for i, token in enumerate(copy) if token in eog]
                return copy[: ends[0]] if ends else copy
        return []

    return draft


def ngram_simple(n: int, m: int) -> Reference:
    def draft(tokens: list[int], begin: int) -> list[int]:
        length = len(tokens) - 1
        found = [j for j in occurrences(tokens, n, length - n - 1) if j > 0]
        if length <= n + m + 1 or not found:
            return []
        copy = tokens[found[-1] + n : length][:m]
        return copy if len(copy) >= n else []

    return draft


def ngram_cache(n_draft: int) -> Reference:
    enough = {1: (2, 66), 2: (2, 50), 3: (1, 50), 4: (1, 50)}

    def draft(tokens: list[int], begin: int) -> list[int]:
        out: list[int] = []
        while len(out) < n_draft:
            text = tokens + out
            for n in range(min(4, len(tokens)), 0, -1):
                starts = [j for j in range(len(tokens) - n) if tokens[j : j + n] == text[-n:]]
                after = [tokens[j + n] for j in starts]
                best = max(after, key=lambda t: (after.count(t), after.index(t)), default=None)
                if best is None or len(after) < enough[n][0]:
                    continue
                if 100 * after.count(best) >= enough[n][1] * len(after):
                    out.append(best)
                    break
            else:
                break
        return out

    return draft


class SlowMapK:
    """The positions that were entered, oldest slot first, and what each key may still draft."""

    def __init__(self, n: int, m: int) -> None:
        self.n, self.m = n, m
        self.entered: dict[tuple[int, ...], int] = {}
        self.n_entered = 0
        self.most: dict[tuple[int, ...], int] = {}
        self.last: tuple[int, tuple[int, ...], list[int]] | None = None

    def __call__(self, tokens: list[int], begin: int) -> list[int]:
        n, m, length = self.n, self.m, len(tokens) - 1
        if self.last:
            at, key, copy = self.last
            self.most[key] = agreement(copy, tokens[at:])
        self.last = None
        if length < 2 * n + m:
            return []
        newest, key = length - n - m - 1, tuple(tokens[-n:])
        new = list(range(begin - n - m - 1, self.n_entered, -1))
        new += range(newest, max(begin, self.n_entered), -1)
        found = self.entered.get(key, 0)
        if not 0 < found < newest:
            found = next((j for j in new if tuple(tokens[j : j + n]) == key), 0)
        for j in new:
            self.entered.setdefault(tuple(tokens[j : j + n]), j)
        self.n_entered = max(self.n_entered, newest)
        copy = tokens[found + n :][: self.most.setdefault(key, m)] if found else []
        self.last = (len(tokens), key, copy) if copy else None
        return copy


class SlowMod:
    """A table from n-grams to the next token, entered in chunks."""

    def __init__(self, n: int, n_min: int, n_max: int) -> None:
        self.n, self.n_min, self.n_max = n, n_min, n_max
        self.table: dict[tuple[int, ...], int] = {}
        self.n_entered, self.n_low, self.started = 0, 0, False
        self.last: tuple[int, list[int]] | None = None

    def __call__(self, tokens: list[int], begin: int) -> list[int]:
        n, length = self.n, len(tokens) - 1
        if self.last:
            low = agreement(self.last[1], tokens[self.last[0] :]) < len(self.last[1]) / 4
            self.n_low = self.n_low + 1 if low else 0
            if self.n_low == 5:
                self.table, self.n_low, self.n_entered = {}, 0, 0
        if length >= n and (not self.started or self.n_entered + 32 < length):
            for j in range(self.n_entered, length - n):
                self.table[tuple(tokens[j : j + n])] = tokens[j + n]
            self.n_entered = length - n
        self.started = True
        text = tokens[-n:] if length >= n else []
        while text and len(text) < n + self.n_max and tuple(text[-n:]) in self.table:
            text.append(self.table[tuple(text[-n:])])
        copy = text[n:] if len(text) >= n + self.n_min else []
        self.last = (len(tokens), copy) if copy else None
        return copy


def agreement(first: Sequence[int], second: Sequence[int]) -> int:
    same = [a == b for a, b in zip(first, second, strict=False)]
    return same.index(False) if False in same else len(same)
