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
from support.tiny_texts import task_rows


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


def test_rows_do_not_shorten_the_model(tmp_path: Path, model: Path, rows: DataSource) -> None:
    from pocketbert.pipeline.export_recipe import export_recipe

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
