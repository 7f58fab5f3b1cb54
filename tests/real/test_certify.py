"""`exact=True` with real models: the same bits with copying on and off."""

from __future__ import annotations

import itertools
import json
import logging
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import RunPython
from scripted_drafter import FLAT, Kind, ScriptedDrafter

from copyspec_edge import (
    EngineError,
    ExactnessError,
    InvalidInputError,
    Model,
    SamplingParams,
    Session,
    Settings,
)
from copyspec_edge import session as session_module
from copyspec_edge.arrays import Row
from copyspec_edge.exactness.certificate import CertifiedCosts
from copyspec_edge.exactness.probe import probe
from copyspec_edge.exactness.row_comparison import Finding
from copyspec_edge.exactness.twins import RecordingSampler
from copyspec_edge.llama.engine import Engine
from copyspec_edge.llama.native_check import choose_extra_bufts
from copyspec_edge.sampling.selectors import GreedySampler

pytestmark = pytest.mark.real

N_CTX = 256
TURNS = (
    "Repeat this: The cat sat on the mat, and the cat ran from the mat.",
    "Again, please, word for word.",
    "And once more, backwards.",
)


def load(path: Path, **options: Any) -> Model:
    return Model.load(path, Settings(n_threads=1, calibrate=False, exact=True, **options))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache folder of its own, so that every certificate is found anew."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("COPYSPEC_CACHE", str(folder))
        # What a probe finds is tested on a fake engine; here it should be short.
        patch.setattr("copyspec_edge.exactness.search.probe", partial(probe, n_read=24))
        yield folder


@pytest.fixture(scope="module")
def q4_1(smollm2_path: Path, cache: Path) -> Iterator[Model]:
    with load(smollm2_path, n_ctx=N_CTX) as model:
        yield model


@pytest.fixture(scope="module")
def f16(smollm2_f16_path: Path, cache: Path) -> Iterator[Model]:
    with load(smollm2_f16_path, n_ctx=N_CTX) as model:
        yield model


@pytest.fixture(scope="module")
def tiny(tiny_path: Path, cache: Path) -> Iterator[Model]:
    with load(tiny_path) as model:
        yield model


class Conversation:
    """Asks a session, and records every row it chose from."""

    def __init__(self, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
        self.session = session
        self._patch = monkeypatch

    def ask(self, prompt: str | list[int], max_tokens: int = 12) -> tuple[list[int], list[Row]]:
        recorder = RecordingSampler(GreedySampler())
        self._patch.setattr(session_module, "make_sampler", lambda *_, **__: recorder)
        params = SamplingParams(temperature=0, max_tokens=max_tokens)
        if isinstance(prompt, str):
            reply = self.session.send(prompt, params=params)
        else:
            reply = self.session.complete(prompt, params=params)
        return list(reply.token_ids), recorder.rows

    def force(self, model: Model, kind: Kind, expected: tuple[int, ...]) -> None:
        assert model.certificate is not None
        self.session.cost = CertifiedCosts(FLAT, model.certificate)
        n_vocab = self.session.engine.n_vocab
        known = np.array(expected, np.int32)
        self.session.drafter = ScriptedDrafter(kind, known, n_vocab=n_vocab, eog=0)


def same_bits(first: list[Row], second: list[Row]) -> bool:
    return [row.tobytes() for row in first] == [row.tobytes() for row in second]


@pytest.mark.parametrize("name", ["q4_1", "f16"])
def test_copying_changes_no_bit_over_several_turns(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Model = request.getfixturevalue(name)
    with model.session(copy=False) as session:
        plain = Conversation(session, monkeypatch)
        answers = [plain.ask(turn) for turn in TURNS]
        said = session.token_ids
    kinds: tuple[Kind | None, ...] = (None, "right", "partly", "wrong")
    for kind in kinds if name == "q4_1" else kinds[1:3]:
        with model.session() as session:
            other = Conversation(session, monkeypatch)
            if kind:
                other.force(model, kind, said)
            for turn, (tokens, rows) in zip(TURNS, answers, strict=True):
                found, found_rows = other.ask(turn)
                assert (kind, found) == (kind, tokens)
                assert same_bits(found_rows, rows), kind


@pytest.mark.parametrize("name", ["q4_1", "tiny"])
def test_a_prompt_that_was_read_in_part_gives_the_bits_of_a_new_one(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Model = request.getfixturevalue(name)
    n_prompt = 200 if name == "q4_1" else 40
    with model.session() as session:
        chat = Conversation(session, monkeypatch)
        prompt = np.random.default_rng(0).integers(0, session.engine.n_vocab, n_prompt).tolist()
        tokens, rows = chat.ask(prompt, 8)
        for n_kept in (1, 2, 3, n_prompt - 2, n_prompt - 1, n_prompt):
            chat.ask([*prompt[:n_kept], 5], 3)
            found, found_rows = chat.ask(prompt, 8)
            assert (n_kept, found) == (n_kept, tokens)
            assert same_bits(found_rows, rows), n_kept


def test_a_prompt_of_one_token_and_a_full_context_are_answered(
    tiny: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for copy in (False, True):
        with tiny.session(copy=copy) as session:
            chat = Conversation(session, monkeypatch)
            tokens, rows = chat.ask([3], 1000)
            assert 1 + len(tokens) == session.n_ctx
            found.append((tokens, [row.tobytes() for row in rows]))
    assert found[0] == found[1]


def test_what_was_certified_is_what_is_used(q4_1: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = q4_1.certificate
    assert certificate is not None
    assert max(certificate.rows) >= 16
    sizes = set()
    plain_eval = Engine.eval

    def recording_eval(self: Engine, tokens: Any, *, rows: int) -> Any:
        sizes.add(len(tokens))
        return plain_eval(self, tokens, rows=rows)

    monkeypatch.setattr(Engine, "eval", recording_eval)
    with q4_1.session() as session:
        for turn in TURNS:
            session.send(turn, params=SamplingParams(temperature=0, max_tokens=30))
    assert sizes <= {*certificate.rows, *certificate.chunks}
    assert len(sizes) > 3


def test_another_least_number_of_rows_is_refused(q4_1: Model) -> None:
    with pytest.raises(InvalidInputError, match="min_rows=2"):
        q4_1.session(min_rows=1)


def certificates(cache: Path) -> list[Path]:
    return sorted((cache / "measured").glob("exact-*.json"))


def test_a_certificate_is_found_once_and_again_where_its_file_is_damaged(
    tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COPYSPEC_CACHE", str(tmp_path))
    probes: list[Finding] = []

    def counting_probe(*arguments: Any, **options: Any) -> Finding:
        probes.append(probe(*arguments, **options))
        return probes[-1]

    monkeypatch.setattr("copyspec_edge.exactness.search.probe", counting_probe)
    with load(tiny_path) as model:
        first = model.certificate
    assert first is not None
    n_probes = len(probes)
    assert n_probes
    with load(tiny_path) as model:
        assert model.certificate == first
    assert len(probes) == n_probes
    (file,) = certificates(tmp_path)
    file.write_text(file.read_text().replace('"min_rows": ', '"min_rows": 1'))
    with load(tiny_path) as model:
        assert model.certificate == first
    assert len(probes) == 2 * n_probes
    assert json.loads(file.read_text())["certificate"]["min_rows"] == first.min_rows


def test_threads_for_batches_are_certified_and_used(tiny_path: Path, cache: Path) -> None:
    for asked, expected in ((2, 2), (None, 1)):
        with load(tiny_path, n_threads_batch=asked) as model, model.session() as session:
            assert model.certificate
            certified = model.certificate.n_threads, model.certificate.n_threads_batch
            used = session.engine.n_threads, session.engine.n_threads_batch
            assert certified == used == (1, expected)


def test_what_the_user_set_is_what_is_certified(tiny_path: Path, cache: Path) -> None:
    with load(tiny_path, flash_attn="on", type_k="q8_0", use_extra_bufts=False) as model:
        found = model.certificate
        assert found is not None
        assert (found.flash_attn, found.type_k, found.use_extra_bufts) == ("on", "q8_0", False)
    before = certificates(cache)
    with load(tiny_path, flash_attn="on", type_k="q8_0", use_extra_bufts=False, n_ctx=60):
        assert set(certificates(cache)) > set(before)


def test_without_such_settings_loading_says_why_and_remembers_it(
    tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COPYSPEC_CACHE", str(tmp_path))
    finding = Finding(min_rows=2, excluded=("3 rows differ by 0.5 behind 17 tokens",))
    probes = []

    def failing_probe(*arguments: Any, **options: Any) -> Finding:
        probes.append(options)
        return finding

    monkeypatch.setattr("copyspec_edge.exactness.search.probe", failing_probe)
    for _ in range(2):
        with pytest.raises(ExactnessError, match=r"flash attention off.*by 0\.5 behind 17 tokens"):
            load(tiny_path)
    assert len(certificates(tmp_path)) == 1
    # Of repacked weights single rows are not tried.
    assert len(probes) == (6 if choose_extra_bufts() else 4)


@pytest.mark.parametrize("is_passing", [True, False])
def test_a_certificate_that_got_no_memory_is_sought_again(
    tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_passing: bool
) -> None:
    monkeypatch.setenv("COPYSPEC_CACHE", str(tmp_path))
    with monkeypatch.context() as patch:
        if is_passing:
            patch.setattr("copyspec_edge.exactness.search.Engine", refusing)
        else:
            patch.setattr("copyspec_edge.exactness.search.probe", finds_nothing)
        message = "could not be found out.*no memory" if is_passing else "cannot be made exact"
        with pytest.raises(ExactnessError, match=message):
            load(tiny_path)
    assert bool(certificates(tmp_path)) != is_passing
    if is_passing:
        with load(tiny_path) as model:
            assert model.certificate
        assert certificates(tmp_path)
    else:
        with pytest.raises(ExactnessError, match="cannot be made exact"):
            load(tiny_path)


def refusing(*_: Any, **__: Any) -> Engine:
    raise EngineError("no memory")


def finds_nothing(*_: Any, min_rows: int, **__: Any) -> Finding:
    return Finding(min_rows=min_rows, excluded=("3 rows differ",))


def test_a_narrow_certificate_is_used_and_sought_again_where_others_got_no_memory(
    tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COPYSPEC_CACHE", str(tmp_path))
    makes = itertools.count()

    def sometimes(*arguments: Any, **options: Any) -> Engine:
        return refusing() if next(makes) == 0 else Engine(*arguments, **options)

    def narrow(*_: Any, min_rows: int, **__: Any) -> Finding:
        counts = tuple(range(min_rows, 5))
        return Finding(min_rows=min_rows, rows=counts, chunks=counts, ranges=((0, 64),))

    monkeypatch.setattr("copyspec_edge.exactness.search.Engine", sometimes)
    monkeypatch.setattr("copyspec_edge.exactness.search.probe", narrow)
    with load(tiny_path) as model:
        assert model.certificate
        assert max(model.certificate.rows) == 4
    assert certificates(tmp_path) == []
    with load(tiny_path) as model:
        assert model.certificate
    assert len(certificates(tmp_path)) == 1


def test_one_warning_a_session_says_where_nobody_looked(
    tiny: Model, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tiny.certificate
    params = SamplingParams(temperature=0, max_tokens=10)
    with tiny.session() as session:
        session.complete([3, 4, 5], params=SamplingParams(temperature=0, max_tokens=1000))
    assert "nobody looked" not in caplog.text
    monkeypatch.setattr(tiny, "certificate", replace(tiny.certificate, ranges=((0, 20),)))
    for _ in range(2):
        caplog.clear()
        with caplog.at_level(logging.WARNING), tiny.session() as session:
            session.complete([3, 4, 5], params=params)
            assert "nobody looked" not in caplog.text
            for n in (20, 30, 10, 40):
                session.complete([7] * n, params=params)
        (message,) = [m for m in caplog.messages if "nobody looked" in m]
        assert "probed with 20 tokens" in message


def run_cli(cli: RunPython, cache: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return cli(*arguments, env={"COPYSPEC_CACHE": str(cache)})


def test_doctor_prints_the_certificate(cli: RunPython, smollm2_path: Path) -> None:
    exact = ("-m", str(smollm2_path), "--threads", "1", "--ctx", "64", "--exact")
    done = cli("doctor", *exact, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["reason"] == ""
    assert set(found["rows"]) <= set(found["chunks"])
    assert found["n_threads"] == 1
    done = cli("doctor", *exact)
    assert done.returncode == 0, done.stderr
    assert f"rows:            {' '.join(map(str, found['rows']))}" in done.stdout


def test_doctor_fails_with_the_reason(cli: RunPython, cache: Path, tiny_path: Path) -> None:
    exact = ("-m", str(tiny_path), "--threads", "1", "--ctx", "2", "--exact")
    done = run_cli(cli, cache, "doctor", *exact, "--json")
    assert done.returncode == 1
    assert "n_ctx or n_batch is too small" in json.loads(done.stdout)["reason"]
    done = run_cli(cli, cache, "doctor", *exact)
    assert done.returncode == 1
    assert "n_ctx or n_batch is too small" in done.stdout
    done = run_cli(cli, cache, "generate", *exact, "-p", "Hi")
    assert done.returncode == 1
    assert "copying cannot be made exact here" in done.stderr
