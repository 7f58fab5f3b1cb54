"""Time and memory of the parts around the model: python -m bench.micro [-m MODEL] [--json FILE].

Run it when something changes that is done for every token. With a model, also what samplers,
log-probabilities and a grammar cost on its vocabulary.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import cast

import numpy as np
import numpy.typing as npt

from copyspec_edge import Model, SamplingParams, Settings
from copyspec_edge.arrays import Tokens, as_tokens
from copyspec_edge.chat.reply import Transcript
from copyspec_edge.decoding.history import History
from copyspec_edge.decoding.loop import decode
from copyspec_edge.decoding.stats import Step
from copyspec_edge.drafting.copy_drafter import CopyDrafter
from copyspec_edge.drafting.matcher import Matcher
from copyspec_edge.evaluation import RecordedSampler
from copyspec_edge.llama.vocabulary import Vocab
from copyspec_edge.sampling.constrained import Constraint
from copyspec_edge.sampling.grammar import Grammar
from copyspec_edge.sampling.logprobs import token_logprob
from copyspec_edge.sampling.schema_constraint import SchemaConstraint
from copyspec_edge.sampling.selectors import ChainSampler, GreedySampler
from copyspec_edge.tuning.cost import CostModel
from copyspec_edge.tuning.curves import CPU_CURVE

ANSWERS = (100, 1_000, 10_000)
LENGTHS = (4096, 32768, 131072)
_ROUNDS = 200


class InstantEngine:
    """An engine that computes nothing."""

    def __init__(self) -> None:
        self.n_past = 0
        self.min_rows, self.max_rows = 1, 64
        self._rows = np.zeros((64, 64), np.float32)

    def eval(self, tokens: Tokens, *, rows: int) -> npt.NDArray[np.float32]:
        """Rows of nothing."""
        self.n_past += len(tokens)
        return self._rows[:rows]

    def truncate(self, length: int) -> None:
        """Forget the rest."""
        self.n_past = min(self.n_past, length)


def histories(length: int) -> dict[str, Tokens]:
    """Ordinary and pathological histories by name."""
    random = np.random.default_rng(0)
    phrases = random.integers(1, 50_000, (length // 64, 16))
    text = phrases[random.integers(0, len(phrases), length // 16)].ravel()
    return {
        "phrases": text.astype(np.int32),
        "random": random.integers(1, 50_000, length).astype(np.int32),
        "one token": np.full(length, 7, np.int32),
        "period 2": np.tile(np.array([7, 8], np.int32), length // 2),
    }


def microseconds(work: Callable[[], object], rounds: int) -> float:
    """Median time of one call."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return 1e6 * median(times)


def matching(tokens: Tokens) -> dict[str, float]:
    """Indexing a token, finding its matches, and drafting, in microseconds; index bytes a token."""
    matcher = Matcher(len(tokens))
    start = time.perf_counter()
    matcher.find(tokens)
    indexed = 1e6 * (time.perf_counter() - start) / len(tokens)
    drafter = CopyDrafter(len(tokens), frozenset({0}))
    drafter.draft(tokens, 63)
    memory = matcher._heads.nbytes + matcher._prevs.nbytes
    return {
        "index_us": indexed,
        "find_us": microseconds(lambda: matcher.find(tokens), _ROUNDS),
        "draft_us": microseconds(lambda: drafter.draft(tokens, 63), _ROUNDS),
        "index_bytes": memory / len(tokens),
    }


def step_microseconds() -> float:
    """Python's part of a decoding step, without choosing tokens."""
    tokens = histories(4096)["phrases"]
    history = History(8192)
    history.extend(tokens[:2048])
    steps = decode(
        InstantEngine(),
        history,
        drafter=CopyDrafter(8192, frozenset({0})),
        sampler=RecordedSampler(np.append(tokens[2048:], np.int32(0))),
        cost=CostModel(CPU_CURVE, in_seconds=True),
        eog={0},
        max_tokens=4096,
    )
    next(steps)
    times = []
    with suppress(StopIteration):
        while True:
            start = time.perf_counter()
            next(steps)
            times.append(time.perf_counter() - start)
    return 1e6 * median(times)


class WordVocab:
    """A vocabulary in which every token is a word."""

    eog_tokens = frozenset({0})

    def piece(self, token: int) -> bytes:
        """Its text."""
        return b" word"


def replying(n_tokens: int) -> dict[str, float]:
    """Text of one more token behind so many of an answer, in microseconds."""
    criteria = (lambda token_ids, text: token_ids[-1] == 0 or text.endswith("done"),) * 2
    kinds: dict[str, SamplingParams] = {
        "plain_us": SamplingParams(),
        "stop_strings_us": SamplingParams(stop=("\n\n", "User:", "</end>")),
        "stopping_criteria_us": SamplingParams(stopping=criteria),
    }
    step = Step(as_tokens([5]), 0, 0, "none", 1, 0.0)
    times = {}
    for name, params in kinds.items():
        transcript = Transcript(cast(Vocab, WordVocab()), params.stop, params.stopping)

        def take_in(transcript: Transcript = transcript) -> None:
            transcript.add(step)
            transcript.chunk(final=False)

        for _ in range(n_tokens):
            take_in()
        times[name] = microseconds(take_in, _ROUNDS)
    return times


def choosing(vocab: Vocab) -> dict[str, float]:
    """Choosing a token and the rest of it, in microseconds."""
    row = np.random.default_rng(0).normal(0, 3, vocab.n_tokens).astype(np.float32)
    chain = ChainSampler(SamplingParams(seed=0), vocab, row[:0].astype(np.int32), 512)
    penalties = SamplingParams(seed=0, repeat_penalty=1.1)
    penalized = ChainSampler(penalties, vocab, np.arange(512, dtype=np.int32), 512)
    return {
        "chain_us": microseconds(lambda: chain.choose(row), _ROUNDS),
        "chain_with_penalties_us": microseconds(lambda: penalized.choose(row), _ROUNDS),
        "logprobs_us": microseconds(lambda: token_logprob(row, 5, 5), _ROUNDS),
        **constraint_microseconds(vocab, row),
    }


def constraint_microseconds(vocab: Vocab, row: npt.NDArray[np.float32]) -> dict[str, float]:
    """One JSON object of twenty strings as a schema and as GBNF, between two of its fields."""
    names = [f"name{i}" for i in range(20)]
    schema = {
        "type": "object",
        "properties": {name: {"type": "string"} for name in names},
        "required": names,
    }
    fields = ' "," '.join(f'" \\"{name}\\": " string' for name in names)
    rules = f'root ::= "{{" {fields} "}}"\nstring ::= "\\"" [^"\\\\]* "\\""'
    makers: dict[str, Callable[[], Constraint]] = {
        "schema": lambda: SchemaConstraint(schema, vocab),
        "gbnf": lambda: Grammar(rules, vocab),
    }
    once = {
        "schema_once_us": microseconds(lambda: vocab.trie, 1),
        "gbnf_once_us": microseconds(lambda: vocab.prefixes, 1),
    }
    for name, make in makers.items():
        once |= {f"{name}_{key}": value for key, value in constraining(make, vocab, row).items()}
    return once


def constraining(
    make: Callable[[], Constraint], vocab: Vocab, row: npt.NDArray[np.float32]
) -> dict[str, float]:
    """The parts of one constraint; of masks, those along a text, the median and the longest."""
    constraint = make()
    for token in vocab.tokenize('{ "name0": "a",').tolist():
        constraint.accept(token)
    draft = vocab.tokenize(' "name1": "some words", "name2": "and more of them",')
    parts = {
        "make_us": microseconds(make, 20),
        "allows_us": microseconds(lambda: constraint.allows(5), _ROUNDS),
        "draft_token_us": microseconds(lambda: constraint.admits(draft), 50) / len(draft),
    }
    masks = []
    for token in draft.tolist():
        masks.append(microseconds(lambda: constraint.restrict(row, None), 1))
        constraint.accept(token)
    return {**parts, "mask_us": median(masks), "longest_mask_us": max(masks)}


def main() -> None:
    """Measure, print, and write the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-m", "--model", help="whose vocabulary to choose from")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    row = np.random.default_rng(0).standard_normal(262_144).astype(np.float32)
    results: dict[str, object] = {
        "step_us": step_microseconds(),
        "greedy_262k_us": microseconds(lambda: GreedySampler().choose(row), _ROUNDS),
        "replying": {str(n_tokens): replying(n_tokens) for n_tokens in ANSWERS},
        "matching": {
            str(length): {name: matching(tokens) for name, tokens in histories(length).items()}
            for length in LENGTHS
        },
    }
    if arguments.model:
        settings = Settings(n_ctx=512, calibrate=False)
        with Model.load(arguments.model, settings) as model:
            results["choosing"] = choosing(model._vocab)
    print(json.dumps(results, indent=2))
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
