"""Exporting with labelled rows: their texts become golden rows, and their scores stand in the folder's list and report."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pocketbert import ExportOptions, api
from pocketbert.core.artefacts import read_artefacts
from pocketbert.core.data.source import DataSource
from pocketbert.core.errors import InputError
from pocketbert.core.types import Status
from support.tiny_texts import task_rows, write_lines


@pytest.fixture
def rows(tmp_path: Path) -> DataSource:
    """Rows of the user's own, in columns of the user's own."""
    path = tmp_path / "dev.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["sentence", "intent"])
        writer.writerows((row["text"], row["label"]) for row in task_rows(60, 5))
    return DataSource(path=str(path), text="sentence", label="intent")


@pytest.fixture
def model(finished: Path, tmp_path: Path) -> Path:
    """A fine-tuned folder as transformers saves it."""
    folder = Path(shutil.copytree(finished / "teacher", tmp_path / "model"))
    (folder / "training.json").unlink()
    return folder


def test_scores_golden_rows_card_and_report_are_of_the_rows(tmp_path: Path, model: Path, rows: DataSource) -> None:
    options = ExportOptions(formats=["onnx"], data=rows, name="weather", licence="apache-2.0")
    phone = api.export(model, tmp_path / "phone", options)
    artefacts = read_artefacts(phone)
    assert artefacts.name == "weather"
    assert artefacts.lineage["licence"] == "apache-2.0"
    assert {name: r.scores["eval"].rows for r in artefacts.models() for name in (r.path,)} == {
        "onnx/model.onnx": 60,
        "onnx/model_int8.onnx": 60,
    }
    given = {line.split(",")[0] for line in (tmp_path / "dev.csv").read_text().splitlines()[1:]}
    golden = [str(json.loads(line)["text"]) for line in (phone / "golden.jsonl").read_text().splitlines()]
    assert len(given & set(golden)) > 20
    score = f"{100 * artefacts.default_model().scores['eval'].value:.2f}"
    assert score in (phone / "README.md").read_text()
    assert score in (phone / "report.html").read_text()
    assert api.verify(phone).status is Status.PASSED
    again = api.export(model, tmp_path / "phone", options)
    assert (again / "report.html").stat().st_mtime_ns == (phone / "report.html").stat().st_mtime_ns, "skipped"
    page = api.report(phone, tmp_path / "copy.html")
    assert page.read_text() == (phone / "report.html").read_text()


def test_static_files_are_calibrated_on_rows_of_which_none_is_evaluated(
    tmp_path: Path, model: Path, rows: DataSource
) -> None:
    with pytest.raises(InputError, match="--calibrate: no training row is left: 60 also occur in eval"):
        api.export(model, tmp_path / "no", ExportOptions(formats=["onnx"], schemes=["a8w8"], data=rows, calibrate=rows))
    assert not (tmp_path / "no").exists()
    train = tmp_path / "train.jsonl"
    write_lines(train, task_rows(80, 9))
    options = ExportOptions(formats=["onnx"], schemes=["int8", "a8w8"], data=rows, calibrate=DataSource.at(str(train)))
    phone = api.export(model, tmp_path / "phone", options)
    scores = {r.path: r.scores["eval"].rows for r in read_artefacts(phone).models()}
    assert scores == {"onnx/model.onnx": 60, "onnx/model_int8.onnx": 60, "onnx/model_a8w8.onnx": 60}
    more = api.quantize(phone, tmp_path / "more", ["small", "a8w8"], calibrate=DataSource.at(str(train)))
    made = read_artefacts(more)
    assert {r.path for r in made.models()} == {f"onnx/model{s}.onnx" for s in ("", "_small", "_a8w8")}
    assert made.default_model().path == "onnx/model_small.onnx"
    assert (more / "onnx/model_a8w8.onnx").read_bytes() == (phone / "onnx/model_a8w8.onnx").read_bytes()


def test_the_format_of_the_default_file_stays_the_first(
    finished_coreml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pocketbert.pipeline.direct import quantizing

    asked: list[ExportOptions] = []
    monkeypatch.setattr(quantizing, "export_model", lambda model, output, options, **_: asked.append(options))
    phone = Path(shutil.copytree(finished_coreml / "phone", tmp_path / "phone"))
    default = read_artefacts(phone).default_model().format
    listed = json.loads((phone / "artifacts.json").read_text())
    listed["files"].sort(key=lambda record: record.get("format") == default)  # as a list may be written
    (phone / "artifacts.json").write_text(json.dumps(listed))
    api.quantize(phone, tmp_path / "more")
    assert asked[0].formats[0] == default
    assert set(asked[0].formats) == {r.format for r in read_artefacts(phone).models()}


def test_rows_do_not_shorten_the_model(tmp_path: Path, model: Path, rows: DataSource) -> None:
    from pocketbert.pipeline.direct.exporting import export_recipe

    with_rows, folder = export_recipe(str(model), ExportOptions(data=rows))
    assert with_rows.data.max_length == min(folder.positions, folder.tokenizer_length)


def test_a_wrong_column_is_named_with_its_flag(tmp_path: Path, model: Path, rows: DataSource) -> None:
    wrong = rows.model_copy(update={"label": "intend"})
    with pytest.raises(InputError, match="no column 'intend'") as caught:
        api.export(model, tmp_path / "phone", ExportOptions(formats=["onnx"], data=wrong))
    assert "--label" in str(caught.value)
    assert not (tmp_path / "phone").exists()


def test_a_dry_run_lists_the_steps_and_writes_nothing(
    tmp_path: Path, model: Path, rows: DataSource, cli: Callable[..., Any]
) -> None:
    before = sorted(p.name for p in tmp_path.iterdir())
    told = cli(
        "export", "-m", model, "-o", tmp_path / "phone", "--format", "onnx", "--benchmark", "--dry-run", "--json"
    )
    assert told.exit_code == 0, told.stderr
    steps = json.loads(told.stdout)
    assert {s["state"] for s in steps} == {"to do"}
    assert [s["name"] for s in steps][-2:] == ["benchmark", "pack"]
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_an_edited_card_is_not_overwritten(phone: Path, model: Path) -> None:
    card = phone / "README.md"
    card.write_text(card.read_text() + "\nAsk Ada.\n")
    with pytest.raises(InputError, match=r"README\.md"):
        api.export(model, phone, ExportOptions(formats=["onnx"]), overwrite=True)
    assert card.read_text().endswith("Ask Ada.\n")
