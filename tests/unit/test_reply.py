from __future__ import annotations

import tracemalloc
from collections.abc import Sequence

import pytest
from fake_vocab import END, PIECES, fake_vocab, ids

from copyspec_edge.arrays import as_tokens
from copyspec_edge.chat.reply import TokenIds, Transcript
from copyspec_edge.decoding.stats import Step


def step(*tokens: int) -> Step:
    return Step(as_tokens(tokens), 0, 0, "none", 1, 0.0)


def never(token_ids: Sequence[int], text: str) -> bool:
    return token_ids[-1] < 0 or text.endswith("nothing")


def transcript_of(n_tokens: int, *, is_stoppable: bool) -> Transcript:
    stops, stopping = (("never said",), (never, never)) if is_stoppable else ((), ())
    transcript = Transcript(fake_vocab(), stops, stopping)
    for token in ids("abcde") * (n_tokens // 5):
        transcript.add(step(token))
        transcript.chunk(final=False)
    return transcript


@pytest.mark.parametrize("is_stoppable", [False, True])
def test_a_token_more_takes_no_memory_that_grows_with_the_answer(is_stoppable: bool) -> None:
    def bytes_of_a_token(n_tokens: int) -> int:
        transcript, peaks = transcript_of(n_tokens, is_stoppable=is_stoppable), list[int]()
        tracemalloc.start()
        for _ in range(30):
            before, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            transcript.add(step(*ids("f")))
            transcript.chunk(final=False)
            peaks.append(tracemalloc.get_traced_memory()[1] - before)
        tracemalloc.stop()
        return sorted(peaks)[len(peaks) // 2]  # a list that grows is moved now and then

    assert bytes_of_a_token(20_000) < bytes_of_a_token(100) + 2_000


def test_what_a_criterion_gets_stays_as_it_was() -> None:
    seen: list[tuple[Sequence[int], str]] = []

    def keep(token_ids: Sequence[int], text: str) -> bool:
        seen.append((token_ids, text))
        return False

    transcript = Transcript(fake_vocab(), (), (keep,))
    said = [3, 4, 5, 6, 7]
    for token in said:
        transcript.add(step(token))
    text = b"".join(PIECES[token] for token in said).decode()
    assert seen == [(tuple(said[:n]), text[:n]) for n in range(1, len(said) + 1)]


def test_the_ids_of_a_criterion_are_like_a_tuple() -> None:
    growing = [5, 6, 7]
    ids = TokenIds(growing)
    growing.append(8)
    alike: tuple[int, ...] = (5, 6, 7)
    assert ids == alike
    assert ids != (5, 6, 7, 8)
    assert list(ids) == [*alike]
    assert (len(ids), ids[0], ids[-1], 7 in ids, 8 in ids) == (3, 5, 7, True, False)
    for part in (slice(None), slice(-2, None), slice(None, None, -1), slice(5, 9)):
        assert ids[part] == alike[part]
    for outside in (3, -4):
        with pytest.raises(IndexError):
            ids[outside]
    assert {ids: 1}[TokenIds([5, 6, 7])] == 1
    assert repr(ids) == repr(alike)


def test_an_end_of_generation_has_no_text() -> None:
    transcript = Transcript(fake_vocab(), (), ())
    transcript.add(step(*ids("ab"), END))
    assert (transcript.text, transcript.ended) == ("ab", True)
    assert transcript.spelled() == (1, "ab")
