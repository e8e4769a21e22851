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
from pocketbert.core.errors import GateError, InputError
from pocketbert.core.files import sha256_file
from pocketbert.core.sample_texts import SENTENCES
from pocketbert.core.types import Format
from pocketbert.runtime import fastest as module
from pocketbert.runtime.fastest import Candidate, FastestPredictor, Plan, Timing, fastest, probe


def timing(file: str, fixed: bool, steady: dict[int, float], mixed: dict[int, float] | None = None) -> Timing:
    return Timing(file=file, threads=1, spin=False, fixed=fixed, steady=steady, mixed=mixed or steady)


FREE = timing("a.onnx", False, {8: 1.0, 32: 4.0, 64: 8.0})
FIXED = timing("b.tflite", True, {32: 2.0, 64: 9.0})


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
    assert FREE.at(20) == pytest.approx(2.5)
    assert FREE.at(4) == 1.0
    assert FREE.at(128) == pytest.approx(16.0)
    assert [FIXED.at(n) for n in (1, 32, 33, 64)] == [2.0, 2.0, 9.0, 9.0]
    assert FIXED.at(65) == float("inf")


@given(length=st.integers(1, 200), scale=st.floats(0.1, 10))
def test_the_plan_takes_whoever_is_expected_to_be_fastest(length: int, scale: float) -> None:
    other = timing("b", True, {n: v * scale for n, v in FIXED.steady.items()})
    timings = [FREE, other]
    assert timings[Plan(timings=timings).best(length)].at(length) == min(t.at(length) for t in timings)


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
    candidates = [Candidate(Path("a.onnx"), Format.ONNX, 1), Candidate(Path("b.tflite"), Format.TFLITE, 1)]
    plan = Plan(timings=[FREE, second])
    return FastestPredictor(candidates, plan, 9, side, _open={0: free, 1: fixed}), free, fixed  # type: ignore[dict-item]


@pytest.mark.parametrize("side", ["right", "left"])
def test_every_length_goes_where_the_plan_says_padded_where_it_must(side: str) -> None:
    predictor, free, fixed = routed(side)
    for length in (5, 30, 50):
        ids = np.full((2, length), 3, np.int64)
        out = predictor.run(
            {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": ids * 0}
        )
        assert out["logits"].tolist() == [[length], [length]]  # padding is masked
    assert [s["input_ids"].shape[1] for s in free.seen] == [5, 50]
    [padded] = fixed.seen
    assert padded["input_ids"].shape == (2, 32)
    own = slice(0, 30) if side == "right" else slice(2, 32)
    assert (padded["input_ids"][:, own] == 3).all()
    assert sorted(set(padded["input_ids"].ravel().tolist())) == [3, 9]


def test_a_file_that_suffers_from_mixed_lengths_waits_for_equal_ones() -> None:
    slow_at_first = timing("b.tflite", True, FIXED.steady, {32: 5.0, 64: 12.0})
    predictor, free, fixed = routed(second=slow_at_first)

    def run(length: int) -> None:
        ids = np.full((1, length), 3, np.int64)
        predictor.run({"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": ids * 0})

    for length in (30, 31, 30, 31):
        run(length)
    assert not fixed.seen
    for _ in range(module.STEADY + 1):
        run(32)
    assert len(fixed.seen) == 1
    run(31)
    assert len(fixed.seen) == 1 and free.seen[-1]["input_ids"].shape == (1, 31)


def test_threads_that_wait_busily_are_tried_where_there_are_several(both: Path) -> None:
    files = [(both / "onnx/model.onnx", Format.ONNX), (both / "tflite/model.tflite", Format.TFLITE)]
    plan = fastest(files, 2, 32, 0, "right").plan
    tried = [(t.file, t.threads, t.spin) for t in plan.timings]
    assert tried == [
        ("model.onnx", 1, False), ("model.onnx", 2, False), ("model.tflite", 1, False), ("model.tflite", 2, False),
        ("model.onnx", 2, True),
    ]  # fmt: skip
    assert not any(t.spin for t in fastest(files, 1, 32, 0, "right").plan.timings)


def test_the_answers_are_those_of_the_files(both: Path) -> None:
    quick = pocketbert.load(both, scheme="fp32", engine="fastest", threads=1)
    assert isinstance(quick.predictor, FastestPredictor)
    plain = pocketbert.load(both, scheme="fp32")
    texts = list(SENTENCES)
    for ours, theirs in zip(quick.outputs(texts), plain.outputs(texts), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)
    names = {t.file for t in quick.predictor.plan.timings}
    assert names == {"model.onnx", "model.tflite"}


def test_a_probe_is_made_once_per_files_and_machine(both: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def counted(candidates: Any, length: int) -> Plan:
        calls.append(length)
        return probe(candidates, length).model_copy(update={"disturbed": False})

    monkeypatch.setattr(module, "probe", counted)
    for _ in range(2):
        pocketbert.load(both, scheme="fp32", engine="fastest", threads=1)
    assert len(calls) == 1
    pocketbert.load(both, scheme="int8", engine="fastest", threads=1)  # other files
    pocketbert.load(both, scheme="fp32", engine="fastest", threads=2)  # other threads
    assert len(calls) == 3


def test_a_disturbed_probe_is_not_remembered(both: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plans = [Plan(timings=[FREE, FREE], disturbed=True)] * 2
    left = iter(plans)
    monkeypatch.setattr(module, "probe", lambda *_: next(left))
    files = [(both / "onnx/model.onnx", Format.ONNX), (both / "tflite/model.tflite", Format.TFLITE)]
    for _ in plans:
        fastest(files, 1, 32, 0, "right")
    assert next(left, None) is None


@pytest.mark.parametrize("content", ["{", "[]", '{"timings": []}', '{"timings": [{"file": "x"}]}'])
def test_a_damaged_memory_is_made_anew(both: Path, own_cache: Path, content: str) -> None:
    files = [(both / "onnx/model.onnx", Format.ONNX)]
    folder = own_cache / "fastest"
    mark = folder / f"{module._key([Candidate(*files[0], 1)], 32)}.json"
    folder.mkdir(parents=True)
    mark.write_text(content)
    assert fastest(files, 1, 32, 0, "right").plan.timings[0].file == "model.onnx"


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
