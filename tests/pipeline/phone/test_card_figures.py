"""The part of the card that measurements change, made again from the folder and put into an edited card."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from pocketbert.benchmarks.measurement import BenchmarkResult
from pocketbert.core.artefacts import read_artefacts
from pocketbert.core.tasks import TaskName
from pocketbert.pipeline.phone.card_figures import (
    CardFigures,
    LatencyRow,
    measured_figures,
    render_figures,
    replace_figures,
)
from support.card_folders import folder

ARTEFACTS = folder(TaskName.TEXT_CLASSIFICATION)


def latencies(*lengths: str) -> list[LatencyRow]:
    """Rows of two files with two and one threads."""
    return [
        LatencyRow(file, threads, length, 1.0, 2.0, "1")
        for threads in (2, 1)
        for length in lengths
        for file in ("onnx/model.onnx", "teacher")
    ]


MANY = latencies("real text", "16", "32", "128")


def test_the_first_look_is_one_thread_real_text_and_the_middle_length() -> None:
    text = render_figures(ARTEFACTS, CardFigures(latency=MANY, condition="Provenance measured."))
    shown, folded = text.split("<details>")
    cells = re.findall(r"^\| [\w/.]+ \| (\d) \| ([\w ]+) \| 1.00 \| 2.00 \| 1 \|$", shown, re.M)
    assert cells == [("1", "real text")] * 2 + [("1", "32")] * 2
    assert "<summary>All 16 latencies</summary>" in folded
    assert folded.count("| 1.00 | 2.00 |") == len(MANY)
    assert folded.split("</details>")[1].strip().startswith("Provenance measured.")
    idle = latencies("real text, after 100 ms idle")
    text = render_figures(ARTEFACTS, CardFigures(latency=[*MANY, *idle]))
    assert text.split("<details>")[0].count("| 1 | real text, after 100 ms idle |") == 2
    few = render_figures(ARTEFACTS, CardFigures(latency=MANY[-2:]))
    assert "<details>" not in few
    assert few.count("| 128 |") == 2


def test_figures_are_replaced_and_an_edited_card_stays() -> None:
    before = render_figures(ARTEFACTS, CardFigures())
    after = render_figures(ARTEFACTS, CardFigures(latency=MANY, condition="Measured."))
    begin, *_, end = before.splitlines()
    card = f"# Ours\n\nEdited.\n\n{before}\n\n## Processing\n\nMore.\n"
    assert replace_figures(card, after) == f"# Ours\n\nEdited.\n\n{after}\n\n## Processing\n\nMore.\n"
    assert replace_figures(replace_figures(card, after) or "", before) == card
    for gone in (begin, end):
        assert replace_figures(card.replace(gone, ""), after) is None
    assert replace_figures(card.replace(begin, "x").replace(end, begin).replace("x", end), after) is None


def test_every_set_that_was_scored_has_a_column() -> None:
    first, *others = ARTEFACTS.models()
    scored = first.model_copy(update={"scores": {**first.scores, "mine.csv": first.scores["eval"]}})
    text = render_figures(ARTEFACTS.model_copy(update={"files": [scored, *others]}), CardFigures())
    assert "| accuracy (eval) | accuracy (mine.csv) |" in text
    assert "| `onnx/model.onnx` (default of `pocketbert.load`) | fp32 | 1,000 | 50.00 | 50.00 |" in text
    assert "| 50.00 | not measured |" in text


def test_the_folder_alone_gives_the_figures_of_its_card(finished_tflite: Path) -> None:
    phone = finished_tflite / "phone"
    artefacts, card = read_artefacts(phone), (phone / "README.md").read_text(encoding="utf-8")
    figures = measured_figures(phone, artefacts)
    assert {p.subject for p in figures.parity} >= {"onnx/model.onnx", "tflite/model.tflite"}
    again = render_figures(artefacts, figures)
    assert replace_figures(card, again) == card
    assert again in card


def test_latencies_name_the_files_by_their_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variants = [SimpleNamespace(name=n, sha256=d) for n, d in (("some name", "a" * 64), ("teacher fp32", "b" * 64))]
    wall, engine = SimpleNamespace(p50=1.0, p90=2.0), {"engine": "onnxruntime", "engine_version": "1"}
    measurements = [
        SimpleNamespace(variant=v.name, threads=1, length=n, gap_ms=g, wall=w, provenance="measured", **engine)
        for v in variants
        for n, g, w in (("text", 0.0, wall), ("text", 100.0, wall), (16, 100.0, wall), (32, 0.0, None))
    ]
    session = SimpleNamespace(
        variants=variants,
        measurements=measurements,
        compare=lambda *_: None,
        timed=True,
        machine=SimpleNamespace(summary="a machine", system="Linux"),
        protocol=SimpleNamespace(lengths=["text"], threads=[1], runs_made=[10], repeats=2),
        device="local",
        find=lambda name, *_: next(m for m in measurements if m.variant == name),
    )
    monkeypatch.setattr(BenchmarkResult, "read", lambda _: SimpleNamespace(headline=session, sessions=[session]))
    (tmp_path / "benchmark.json").touch()
    int8 = ARTEFACTS.models()[1].model_copy(update={"sha256": "a" * 64})
    figures = measured_figures(tmp_path, ARTEFACTS.model_copy(update={"files": [int8]}))
    lengths = ("real text", "real text, after 100 ms idle")  # single calls at other lengths are left to the report
    assert [(r.file, r.length) for r in figures.latency] == [
        (f, n) for f in (int8.path, "teacher fp32") for n in lengths
    ]
    assert {d: of.p50 for d, of in figures.medians.items()} == {"local": {int8.path: 1.0}}, "of files of the folder"
    assert figures.condition.startswith("Provenance measured, batch 1, onnxruntime 1 on a machine; ")
