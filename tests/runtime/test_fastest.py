from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pocketbert
from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.disk.files import sha256_file
from pocketbert.core.errors import GateError, InputError
from pocketbert.core.types import Format
from pocketbert.runtime import fastest as module
from pocketbert.runtime import race as race_module
from pocketbert.runtime.engines import EngineFile
from pocketbert.runtime.fastest import FastestPredictor, open_fastest
from pocketbert.runtime.onnx import Spin
from pocketbert.runtime.race import Cadence, Candidate, Plan, Timing, race
from pocketbert.runtime.tflite import Padding


def timing(file: str, fixed: bool, steady: dict[int, float], mixed: dict[int, float] | None = None) -> Timing:
    return Timing(file=file, threads=1, spin=Spin.NO, fixed=fixed, steady=steady, mixed=mixed or steady)


FREE = timing("a.onnx", False, {8: 1.0, 32: 4.0, 64: 8.0})
FIXED = timing("b.tflite", True, {32: 2.0, 64: 9.0})


@pytest.fixture(autouse=True)
def short_race(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who wins is tested with toy engines in test_race.py."""
    monkeypatch.setattr(race_module, "_ROUNDS", 1)


@pytest.fixture
def both(phone: Path, exported_tflite: Callable[[str], Path]) -> Path:
    """The artefact folder with a TFLite file of the same model and scheme (fp32) beside the ONNX ones."""
    (phone / "tflite").mkdir()
    file = phone / "tflite" / "model.tflite"
    shutil.copyfile(exported_tflite("bert"), file)
    listed = json.loads((phone / "artifacts.json").read_text())
    fp32 = next(r for r in listed["files"] if r["path"] == "onnx/model.onnx")
    digest = {"sha256": sha256_file(file), "bytes": file.stat().st_size}
    listed["files"].append({**fp32, "path": "tflite/model.tflite", "format": "tflite", **digest})
    (phone / "artifacts.json").write_text(json.dumps(listed))
    rows = [json.loads(line) for line in (phone / "golden.jsonl").read_text().splitlines()]
    for row in rows:
        for part in ("outputs", "tolerance"):
            row[part]["tflite/model.tflite"] = row[part]["onnx/model.onnx"]
    (phone / "golden.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return phone


def test_a_file_of_any_length_is_interpolated_and_one_of_listed_lengths_steps() -> None:
    assert FREE.expected_ms(20) == pytest.approx(2.5)
    assert FREE.expected_ms(4) == 1.0
    assert FREE.expected_ms(128) == pytest.approx(16.0)
    assert [FIXED.expected_ms(n) for n in (1, 32, 33, 64)] == [2.0, 2.0, 9.0, 9.0]
    assert FIXED.expected_ms(65) == float("inf")


@given(length=st.integers(1, 200), scale=st.floats(0.1, 10))
def test_the_plan_takes_whoever_is_expected_to_be_fastest(length: int, scale: float) -> None:
    other = timing("b", True, {n: v * scale for n, v in FIXED.steady.items()})
    timings = [FREE, other]
    assert timings[Plan(timings=timings).best([length])].expected_ms(length) == min(
        t.expected_ms(length) for t in timings
    )


def test_threads_that_spin_on_between_runs_must_be_worth_it() -> None:
    def plan(share: float) -> Plan:
        on = FREE.model_copy(update={"spin": Spin.ON, "steady": {n: v * share for n, v in FREE.steady.items()}})
        return Plan(timings=[on, FREE])

    assert plan(0.9).best([32]) == 0
    assert plan(0.99).best([32]) == 1


class Engine:
    """Answers with the number of tokens that it was given, and remembers what it ran."""

    engine, engine_version = "toy", "1"
    inputs = ("input_ids", "attention_mask", "token_type_ids")
    outputs = ("logits",)

    def __init__(self, lengths: tuple[int, ...]) -> None:
        self.lengths, self.seen = lengths, list[dict[str, Any]]()

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        self.seen.append(dict(inputs))
        return {"logits": np.asarray(inputs["attention_mask"]).sum(-1, keepdims=True).astype(np.float32)}


def routed(side: str = "right", second: Timing = FIXED) -> tuple[FastestPredictor, Engine, Engine]:
    free, fixed = Engine(()), Engine((32, 64))
    files = [EngineFile(Path("a.onnx"), Format.ONNX), EngineFile(Path("b.tflite"), Format.TFLITE)]
    candidates = [Candidate(f, 1) for f in files]
    plan = Plan(timings=[FREE, second])
    return FastestPredictor(candidates, plan, 9, side, {0: free, 1: fixed}), free, fixed  # type: ignore[dict-item]


def feed(length: int, rows: int = 1) -> dict[str, Any]:
    ids = np.full((rows, length), 3, np.int64)
    return {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": ids * 0}


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_length_that_stays_goes_where_the_plan_says_padded_where_it_must(side: str) -> None:
    predictor, free, fixed = routed(side)
    for length in (5, 30):
        for _ in range(module._STEADY + 1):
            out = predictor.run(feed(length, 2))
            assert out["logits"].tolist() == [[length], [length]]  # padding is masked
        last = (free if length == 5 else fixed).seen[-1]
        assert last["input_ids"].shape == (2, 5 if length == 5 else 32)
    padded = fixed.seen[-1]
    assert padded["input_ids"].shape == (2, 32)
    own = slice(0, 30) if side == "right" else slice(2, 32)
    assert (padded["input_ids"][:, own] == 3).all()
    assert sorted(set(padded["input_ids"].ravel().tolist())) == [3, 9]


def test_texts_of_mixed_lengths_stay_with_one_file() -> None:
    """At 5 tokens the one file is fastest, at 30 the other one by more: who wins is decided for all of them together."""
    predictor, free, fixed = routed()
    for i in range(4 * module._REVIEW):
        predictor.run(feed((5, 30)[i % 2]))
    assert len(fixed.seen) >= 2 * module._REVIEW
    assert len(free.seen) <= module._REVIEW + 1  # until the first review
    for _ in range(2 * module._RECENT):  # and again when other texts come
        for length in (5, 7):
            predictor.run(feed(length))
    assert free.seen[-1]["input_ids"].shape == (1, 7)


def test_a_longer_text_than_the_chosen_file_takes_goes_to_another() -> None:
    predictor, free, fixed = routed()
    for i in range(2 * module._REVIEW):
        predictor.run(feed((20, 30)[i % 2]))
    assert fixed.seen
    assert predictor.run(feed(70))["logits"].tolist() == [[70]]
    assert free.seen[-1]["input_ids"].shape == (1, 70)


def test_a_text_that_no_file_takes_is_refused_each_time_and_changes_nothing() -> None:
    one, two = Engine((32, 64)), Engine((32,))
    files = [EngineFile(Path(n), Format.TFLITE) for n in ("a.tflite", "b.tflite")]
    plan = Plan(timings=[FIXED, timing("b.tflite", True, {32: 1.0})])
    opened = {0: one, 1: two}
    predictor = FastestPredictor([Candidate(f, 1) for f in files], plan, 9, "right", opened)  # type: ignore[arg-type]
    predictor.run(feed(20))
    for _ in range(2 * module._STEADY):
        with pytest.raises(InputError, match="70 tokens; the file takes 32, 64"):
            predictor.run(feed(70))
    assert predictor.run(feed(20))["logits"].tolist() == [[20]]
    assert (len(one.seen), len(two.seen)) == (0, 2)


class Preparing(Engine):
    """Counts what it prepares."""

    def __init__(self, lengths: tuple[int, ...]) -> None:
        super().__init__(lengths)
        self.prepared: list[tuple[int, Padding]] = []

    def prepare_run(self, length: int, padding: Padding) -> Any:
        self.prepared.append((length, padding))
        return self.run


def test_a_length_is_prepared_once() -> None:
    engine = Preparing((32, 64))
    candidate = Candidate(EngineFile(Path("b.tflite"), Format.TFLITE), 1)
    predictor = FastestPredictor([candidate], Plan(timings=[FIXED]), 9, "left", {0: engine})  # type: ignore[dict-item]
    for length in [20, 30, 20, 30, *[20] * 2 * module._STEADY]:
        assert predictor.run(feed(length))["logits"].tolist() == [[length]]
        assert predictor.answered == candidate.file.path
    assert engine.prepared == [(20, Padding(9, "left")), (30, Padding(9, "left"))]
    assert engine.seen[0]["input_ids"].shape == (1, 20)  # whoever prepares pads


def test_a_file_that_would_only_win_beyond_the_longest_text_is_not_opened() -> None:
    fixed, candidates = Engine((32, 64)), [Candidate(EngineFile(Path(n), Format.ONNX), 1) for n in ("b", "no file")]
    plan = Plan(timings=[FIXED, timing("no file", False, {32: 9.0, 64: 18.0})])
    predictor = FastestPredictor(candidates, plan, 9, "right", {0: fixed})  # type: ignore[dict-item]
    assert [path.name for path, _ in predictor.predictors] == ["b"]
    with pytest.raises(InputError, match="no file: file not found"):
        predictor.run(feed(65))


def test_a_file_that_suffers_from_mixed_lengths_waits_for_equal_ones() -> None:
    slow_at_first = timing("b.tflite", True, FIXED.steady, {32: 5.0, 64: 12.0})
    predictor, free, fixed = routed(second=slow_at_first)
    for length in (30, 31, 30, 31):
        predictor.run(feed(length))
    assert not fixed.seen
    for _ in range(module._STEADY + 1):
        predictor.run(feed(32))
    assert len(fixed.seen) == 1
    predictor.run(feed(31))
    assert len(fixed.seen) == 1 and free.seen[-1]["input_ids"].shape == (1, 31)


def test_what_is_open_already_is_not_opened_again(both: Path) -> None:
    file = EngineFile(both / "onnx/model.onnx", Format.ONNX)
    predictor = file.open(1)
    chosen = open_fastest([file], 1, 32, 0, "right", {file: predictor})
    assert [p for _, p in chosen.predictors] == [predictor]


def test_threads_that_wait_busily_are_tried_where_there_are_several(both: Path) -> None:
    files = [
        EngineFile(both / "onnx/model.onnx", Format.ONNX),
        EngineFile(both / "tflite/model.tflite", Format.TFLITE),
    ]
    plan = open_fastest(files, 2, 32, 0, "right").plan
    tried = [(t.file, t.threads, t.spin) for t in plan.timings]
    assert tried == [
        ("model.onnx", 1, "no"),
        ("model.onnx", 2, "no"),
        ("model.tflite", 1, "no"),
        ("model.tflite", 2, "no"),
        ("model.onnx", 2, "run"),
        ("model.onnx", 2, "on"),
    ]
    assert {t.spin for t in open_fastest(files, 1, 32, 0, "right").plan.timings} == {Spin.NO}


def test_the_answers_are_those_of_the_files(both: Path) -> None:
    quick = pocketbert.load(both, scheme="fp32", engine="fastest", threads=1)
    assert isinstance(quick.predictor, FastestPredictor)
    plain = pocketbert.load(both, scheme="fp32")
    texts = list(SENTENCES)
    for ours, theirs in zip(quick.outputs(texts), plain.outputs(texts), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)
    names = {t.file for t in quick.predictor.plan.timings}
    assert names == {"model.onnx", "model.tflite"}


def test_answers_have_temperature_and_threshold_of_the_file_that_computed_them(both: Path) -> None:
    temperatures = {"onnx/model.onnx": 2.0, "tflite/model.tflite": 3.0}
    listed = json.loads((both / "artifacts.json").read_text())
    for record in listed["files"]:
        if record["path"] in temperatures:
            temperature = temperatures[record["path"]]
            record["confidence"] = {"temperature": temperature, "unknown": 0.9999 if temperature == 2 else 0.0001}
    (both / "artifacts.json").write_text(json.dumps(listed))
    quick = pocketbert.load(both, scheme="fp32", engine="fastest", threads=1)
    predictor = quick.predictor
    assert isinstance(predictor, FastestPredictor)
    for number, candidate in enumerate(predictor.candidates):
        times = [t.model_copy(update={"fixed": False}) for t in predictor.plan.timings]
        for i, t in enumerate(times):
            t.steady = t.mixed = {8: 1.0 + (i != number)}
        quick.predictor = FastestPredictor(predictor.candidates, Plan(timings=times), 0, "right")
        [answer] = quick.predict(["a good film"])
        path = candidate.file.path.relative_to(both).as_posix()
        logits = quick.outputs(["a good film"])[0][0].astype(np.float64) / temperatures[path]
        powers = np.exp(logits - logits.max())
        assert list(answer.scores.values()) == pytest.approx((powers / powers.sum()).tolist(), abs=1e-6)
        assert answer.unknown is (temperatures[path] == 2)


def test_a_race_is_run_once_per_files_and_machine(both: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def counted(candidates: Any, length: int, cadence: Cadence) -> Plan:
        calls.append(cadence)
        plan = race(candidates, length, 1, Cadence.BATCH)
        return plan.model_copy(update={"disturbed": False})

    monkeypatch.setattr(module, "race_apart", counted)
    for _ in range(2):
        pocketbert.load(both, scheme="fp32", engine="fastest", threads=1)
    assert len(calls) == 1
    pocketbert.load(both, scheme="int8", engine="fastest", threads=1)  # other files
    pocketbert.load(both, scheme="fp32", engine="fastest", threads=2)  # other threads
    assert len(calls) == 3
    for _ in range(2):  # both cadences are remembered, each under its own key
        called = pocketbert.load(both, scheme="fp32", engine="fastest", threads=1, cadence="interactive")
        pocketbert.load(both, scheme="fp32", engine="fastest", threads=1, cadence="batch")
    assert calls == [Cadence.BATCH] * 3 + [Cadence.INTERACTIVE]
    assert "called after 100 ms idle" in called.choice


@pytest.mark.parametrize(("cadence", "engine"), [("often", "fastest"), ("batch", None)])
def test_a_cadence_is_a_known_one_of_the_engine_that_measures(both: Path, cadence: str, engine: str | None) -> None:
    with pytest.raises(InputError, match="cadence"):
        pocketbert.load(both, engine=engine, cadence=cadence)


def test_for_single_calls_no_thread_stays_busy_after_a_run(both: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spins = {}

    def raced(candidates: Any, length: int, cadence: Cadence) -> Plan:
        spins[cadence] = {c.spin for c in candidates}
        return Plan(timings=[FREE] * len(candidates), disturbed=True)

    monkeypatch.setattr(module, "race_apart", raced)
    for cadence in Cadence:
        open_fastest([EngineFile(both / "onnx/model.onnx", Format.ONNX)], 2, 32, 0, "right", None, cadence)
    assert spins == {Cadence.BATCH: set(Spin), Cadence.INTERACTIVE: {Spin.NO, Spin.RUN}}


def test_a_disturbed_race_is_not_remembered(both: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plans = [Plan(timings=[FREE, FREE], disturbed=True)] * 2
    left = iter(plans)
    monkeypatch.setattr(module, "race_apart", lambda *_: next(left))
    files = [
        EngineFile(both / "onnx/model.onnx", Format.ONNX),
        EngineFile(both / "tflite/model.tflite", Format.TFLITE),
    ]
    for _ in plans:
        open_fastest(files, 1, 32, 0, "right")
    assert next(left, None) is None


@pytest.mark.parametrize("content", ["{", "[]", '{"timings": []}', '{"timings": [{"file": "x"}]}'])
def test_a_damaged_memory_is_made_anew(both: Path, own_cache: Path, content: str) -> None:
    files = [EngineFile(both / "onnx/model.onnx", Format.ONNX)]
    folder = own_cache / "fastest"
    mark = folder / f"{module._plan_key([Candidate(files[0], 1)], 32, Cadence.BATCH)}.json"
    folder.mkdir(parents=True)
    mark.write_text(content)
    assert open_fastest(files, 1, 32, 0, "right").plan.timings[0].file == "model.onnx"


def test_a_file_that_is_computed_wrongly_here_is_no_candidate(both: Path) -> None:
    rows = [json.loads(line) for line in (both / "golden.jsonl").read_text().splitlines()]
    for row in rows:
        row["outputs"]["tflite/model.tflite"] = [v + 1 for v in row["outputs"]["tflite/model.tflite"]]
    (both / "golden.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    quick = pocketbert.load(both, scheme="fp32", engine="fastest", threads=1)
    assert isinstance(quick.predictor, FastestPredictor)
    assert {t.file for t in quick.predictor.plan.timings} == {"model.onnx"}
    with pytest.raises(GateError, match=r"tflite/model\.tflite: litert .* computes this file wrongly"):
        pocketbert.load(both, format="tflite", scheme="fp32")


def test_format_scheme_and_file_choose(both: Path) -> None:
    assert pocketbert.load(both, format="tflite", scheme="fp32").record.path == "tflite/model.tflite"
    assert pocketbert.load(both, file="onnx/model.onnx").record.path == "onnx/model.onnx"
    assert pocketbert.load(both).record.path == "onnx/model_int8.onnx"


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"engine": "quickest"}, "'quickest' is unknown; known: fastest"),
        ({"engine": "fastest", "format": "onnx"}, "'fastest' chooses the format and the file itself"),
        ({"format": "tflite"}, "the folder has no tflite int8; it has onnx fp32, onnx int8, tflite fp32"),
        (
            {"format": "coreml", "scheme": "w4"},
            "no .w4. file in the folder(.|\\n)*no .coreml. file in the folder",
        ),
        ({"file": "tflite/modle.tflite"}, "no model file 'tflite/modle.tflite'"),
        ({"file": "onnx/model.onnx", "scheme": "fp32"}, "names a file already"),
    ],
)
def test_wrong_wishes_are_explained(both: Path, wanted: dict[str, str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        pocketbert.load(both, **wanted)  # type: ignore[arg-type]
