"""Which file answers which text, what is measured and remembered for that, and what `load` refuses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pocketbert
from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.disk.files import sha256_file
from pocketbert.core.errors import GateError, InputError
from pocketbert.core.types import Format
from pocketbert.runtime import fastest as module
from pocketbert.runtime.engines import EngineFile
from pocketbert.runtime.fastest import FastestPredictor, open_fastest
from pocketbert.runtime.onnx import Spin
from pocketbert.runtime.race import Cadence, Candidate, Plan, Timing, race
from pocketbert.runtime.tflite import Padding

STEADY, REVIEW, RECENT = 3, 16, 64
"""Repeats until a length counts as steady, inputs between two reviews of mixed lengths, inputs that such a review looks at."""


def timing(file: str, fixed: bool, steady: dict[int, float], mixed: dict[int, float] | None = None) -> Timing:
    return Timing(file=file, threads=1, spin=Spin.NO, fixed=fixed, steady=steady, mixed=mixed or steady)


FREE = timing("a.onnx", False, {8: 1.0, 32: 4.0, 64: 8.0})
FIXED = timing("b.tflite", True, {32: 2.0, 64: 9.0})


@pytest.fixture(autouse=True)
def raced(monkeypatch: pytest.MonkeyPatch) -> list[Cadence]:
    """Cadences of the races so far: short ones in this process; who wins them is tested with toy engines in test_race.py."""
    cadences = list[Cadence]()

    def short(candidates: Any, length: int, cadence: Cadence) -> Plan:
        cadences.append(cadence)
        return race(candidates, length, 1).model_copy(update={"disturbed": False})

    monkeypatch.setattr(module, "race_apart", short)
    return cadences


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
    edit_golden(phone, lambda of_file: of_file.update({"tflite/model.tflite": of_file["onnx/model.onnx"]}))
    return phone


def edit_golden(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the outputs and the tolerances of every golden row, which both are by file."""
    rows = [json.loads(line) for line in (folder / "golden.jsonl").read_text().splitlines()]
    for row in rows:
        change(row["outputs"])
        change(row["tolerance"])
    (folder / "golden.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))


def files_of(folder: Path) -> list[EngineFile]:
    return [
        EngineFile(folder / "onnx/model.onnx", Format.ONNX),
        EngineFile(folder / "tflite/model.tflite", Format.TFLITE),
    ]


def load_fastest(folder: Path, **wishes: Any) -> tuple[pocketbert.Model, FastestPredictor]:
    model = pocketbert.load(folder, engine="fastest", **{"scheme": "fp32", "threads": 1, **wishes})
    assert isinstance(model.predictor, FastestPredictor)
    return model, model.predictor


# What a plan expects.


def test_a_file_of_any_length_is_interpolated_and_one_of_listed_lengths_steps() -> None:
    assert [FREE.expected_ms(n) for n in (4, 20, 128)] == pytest.approx([1.0, 2.5, 16.0])
    assert [FIXED.expected_ms(n) for n in (1, 32, 33, 64, 65)] == [2.0, 2.0, 9.0, 9.0, float("inf")]


@pytest.mark.parametrize(("share", "best"), [(0.9, 0), (0.99, 1)])
def test_threads_that_spin_on_between_runs_must_be_worth_it(share: float, best: int) -> None:
    on = FREE.model_copy(update={"spin": Spin.ON, "steady": {n: v * share for n, v in FREE.steady.items()}})
    assert Plan(timings=[on, FREE]).best([32]) == best


# Where texts go.


class Engine:
    """Answers with the number of tokens that it was given, and remembers what it ran."""

    engine, engine_version = "toy", "1"
    inputs = ("input_ids", "attention_mask", "token_type_ids")
    outputs = ("logits",)

    def __init__(self, *lengths: int) -> None:
        self.lengths, self.seen = lengths, list[dict[str, Any]]()

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        self.seen.append(dict(inputs))
        return {"logits": np.asarray(inputs["attention_mask"]).sum(-1, keepdims=True).astype(np.float32)}


def route(timings: list[Timing], engines: list[Engine], side: str = "right") -> FastestPredictor:
    """A predictor of these engines, all open; one that is missing is a file that is not there."""
    candidates = [Candidate(EngineFile(Path(t.file), Format.ONNX), 1) for t in timings]
    return FastestPredictor(candidates, Plan(timings=timings), 9, side, dict(enumerate(engines)))  # type: ignore[arg-type]


def route_two(side: str = "right", second: Timing = FIXED) -> tuple[FastestPredictor, Engine, Engine]:
    free, fixed = Engine(), Engine(32, 64)
    return route([FREE, second], [free, fixed], side), free, fixed


def feed(length: int, rows: int = 1) -> dict[str, Any]:
    ids = np.full((rows, length), 3, np.int64)
    return {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": ids * 0}


@pytest.mark.parametrize(("side", "own"), [("right", slice(0, 30)), ("left", slice(2, 32))])
def test_a_length_that_stays_goes_where_the_plan_says_padded_where_it_must(side: str, own: slice) -> None:
    predictor, free, fixed = route_two(side)
    for length, engine, width in ((5, free, 5), (30, fixed, 32)):
        for _ in range(STEADY + 1):
            assert predictor.run(feed(length, 2))["logits"].tolist() == [[length], [length]]  # padding is masked
        assert engine.seen[-1]["input_ids"].shape == (2, width)
    padded = fixed.seen[-1]["input_ids"]
    assert (padded[:, own] == 3).all()
    assert sorted(set(padded.ravel().tolist())) == [3, 9]


def test_texts_of_mixed_lengths_stay_with_one_file() -> None:
    """At 5 tokens the one file is fastest, at 30 the other one by more: who wins is decided for all of them together."""
    predictor, free, fixed = route_two()
    for i in range(4 * REVIEW):
        predictor.run(feed((5, 30)[i % 2]))
    assert len(fixed.seen) >= 2 * REVIEW
    assert len(free.seen) <= REVIEW + 1  # until the first review
    for _ in range(2 * RECENT):  # and again when other texts come
        for length in (5, 7):
            predictor.run(feed(length))
    assert free.seen[-1]["input_ids"].shape == (1, 7)


def test_a_longer_text_than_the_chosen_file_takes_goes_to_another() -> None:
    predictor, free, fixed = route_two()
    for i in range(2 * REVIEW):
        predictor.run(feed((20, 30)[i % 2]))
    assert fixed.seen
    assert predictor.run(feed(70))["logits"].tolist() == [[70]]
    assert free.seen[-1]["input_ids"].shape == (1, 70)


def test_a_text_that_no_file_takes_is_refused_each_time_and_changes_nothing() -> None:
    one, two = Engine(32, 64), Engine(32)
    predictor = route([FIXED, timing("c.tflite", True, {32: 1.0})], [one, two])
    predictor.run(feed(20))
    for _ in range(2 * STEADY):
        with pytest.raises(InputError, match="70 tokens; the file takes 32, 64"):
            predictor.run(feed(70))
    assert predictor.run(feed(20))["logits"].tolist() == [[20]]
    assert (len(one.seen), len(two.seen)) == (0, 2)


def test_a_length_is_prepared_once_where_the_engine_can_prepare() -> None:
    class Preparing(Engine):
        def prepare_run(self, length: int, padding: Padding) -> Any:
            prepared.append((length, padding))
            return self.run

    prepared = list[tuple[int, Padding]]()
    engine = Preparing(32, 64)
    predictor = route([FIXED], [engine], "left")
    for length in [20, 30, 20, 30, *[20] * 2 * STEADY]:
        assert predictor.run(feed(length))["logits"].tolist() == [[length]]
        assert predictor.answered == Path("b.tflite")
    assert prepared == [(20, Padding(9, "left")), (30, Padding(9, "left"))]
    assert engine.seen[0]["input_ids"].shape == (1, 20)  # whoever prepares pads


def test_a_file_that_would_only_win_beyond_the_longest_text_is_not_opened() -> None:
    predictor = route([FIXED, timing("no file", False, {32: 9.0, 64: 18.0})], [Engine(32, 64)])
    assert [path.name for path, _ in predictor.predictors] == ["b.tflite"]
    with pytest.raises(InputError, match="no file: file not found"):
        predictor.run(feed(65))


def test_a_file_that_suffers_from_mixed_lengths_waits_for_equal_ones() -> None:
    predictor, free, fixed = route_two(second=timing("b.tflite", True, FIXED.steady, {32: 5.0, 64: 12.0}))
    for length in (30, 31, 30, 31):
        predictor.run(feed(length))
    assert not fixed.seen
    for _ in range(STEADY + 1):
        predictor.run(feed(32))
    assert len(fixed.seen) == 1
    predictor.run(feed(31))
    assert len(fixed.seen) == 1 and free.seen[-1]["input_ids"].shape == (1, 31)


# What is opened and measured.


def test_threads_that_wait_busily_are_tried_where_there_are_several(both: Path) -> None:
    plan = open_fastest(files_of(both), 2, 32, 0, "right").plan
    usual = [("model.onnx", 1, "no"), ("model.onnx", 2, "no"), ("model.tflite", 1, "no"), ("model.tflite", 2, "no")]
    tried = [(t.file, t.threads, t.spin) for t in plan.timings]
    assert tried == [*usual, ("model.onnx", 2, "run"), ("model.onnx", 2, "on")]
    assert {t.spin for t in open_fastest(files_of(both), 1, 32, 0, "right").plan.timings} == {Spin.NO}
    single = open_fastest(files_of(both), 2, 32, 0, "right", None, Cadence.INTERACTIVE).plan
    assert {t.spin for t in single.timings} == {Spin.NO, Spin.RUN}  # no thread stays busy after a single call


def test_a_race_is_run_once_per_files_threads_and_cadence(both: Path, raced: list[Cadence]) -> None:
    for wishes in ({}, {}, {"scheme": "int8"}, {"threads": 2}):
        load_fastest(both, **wishes)
    assert raced == [Cadence.BATCH] * 3
    for _ in range(2):
        called, _ = load_fastest(both, cadence="interactive")
        load_fastest(both, cadence="batch")
    assert raced == [Cadence.BATCH] * 3 + [Cadence.INTERACTIVE]
    assert "called after 100 ms idle" in called.choice


def test_a_disturbed_race_is_not_remembered(both: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = [Plan(timings=[FREE, FREE], disturbed=True)] * 2
    monkeypatch.setattr(module, "race_apart", lambda *_: left.pop())
    for _ in range(2):
        open_fastest(files_of(both), 1, 32, 0, "right")
    assert not left


@pytest.mark.parametrize("content", ["{", "[]", '{"timings": []}', '{"timings": [{"file": "x"}]}'])
def test_a_damaged_memory_is_made_anew(both: Path, own_cache: Path, raced: list[Cadence], content: str) -> None:
    open_fastest(files_of(both), 1, 32, 0, "right")
    [memory] = (own_cache / "fastest").iterdir()
    memory.write_text(content)
    assert open_fastest(files_of(both), 1, 32, 0, "right").plan.timings[0].file == "model.onnx"
    assert len(raced) == 2


# Models that are loaded with it.


def test_the_answers_are_those_of_the_files(both: Path) -> None:
    quick, predictor = load_fastest(both)
    plain, texts = pocketbert.load(both, scheme="fp32"), list(SENTENCES)
    for ours, theirs in zip(quick.outputs(texts), plain.outputs(texts), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)
    assert {t.file for t in predictor.plan.timings} == {"model.onnx", "model.tflite"}


def test_answers_have_temperature_and_threshold_of_the_file_that_computed_them(both: Path) -> None:
    temperatures = {"onnx/model.onnx": 2.0, "tflite/model.tflite": 3.0}
    listed = json.loads((both / "artifacts.json").read_text())
    for record in listed["files"]:
        if temperature := temperatures.get(record["path"]):
            record["confidence"] = {"temperature": temperature, "unknown": 0.9999 if temperature == 2 else 0.0001}
    (both / "artifacts.json").write_text(json.dumps(listed))
    quick, predictor = load_fastest(both)
    for number, candidate in enumerate(predictor.candidates):
        times = [timing(t.file, False, {8: 1.0 + (i != number)}) for i, t in enumerate(predictor.plan.timings)]
        quick.predictor = FastestPredictor(predictor.candidates, Plan(timings=times), 0, "right")
        [answer] = quick.predict(["a good film"])
        temperature = temperatures[candidate.file.path.relative_to(both).as_posix()]
        powers = np.exp(quick.outputs(["a good film"])[0][0].astype(np.float64) / temperature)
        assert list(answer.scores.values()) == pytest.approx((powers / powers.sum()).tolist(), abs=1e-6)
        assert answer.unknown is (temperature == 2)


def test_a_file_that_is_computed_wrongly_here_is_no_candidate(both: Path) -> None:
    rows = [json.loads(line) for line in (both / "golden.jsonl").read_text().splitlines()]
    for row in rows:
        row["outputs"]["tflite/model.tflite"] = [v + 1 for v in row["outputs"]["tflite/model.tflite"]]
    (both / "golden.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    assert {t.file for t in load_fastest(both)[1].plan.timings} == {"model.onnx"}
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
        ({"engine": "fastest", "cadence": "often"}, "cadence: 'often' is unknown"),
        ({"cadence": "batch"}, "cadence: only engine 'fastest'"),
        ({"format": "tflite"}, "the folder has no tflite int8; it has onnx fp32, onnx int8, tflite fp32"),
        ({"format": "coreml", "scheme": "w4"}, "no .w4. file in the folder(.|\\n)*no .coreml. file in the folder"),
        ({"file": "tflite/modle.tflite"}, "no model file 'tflite/modle.tflite'"),
        ({"file": "onnx/model.onnx", "scheme": "fp32"}, "names a file already"),
    ],
)
def test_wrong_wishes_are_explained(both: Path, wanted: dict[str, str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        pocketbert.load(both, **wanted)  # type: ignore[arg-type]
