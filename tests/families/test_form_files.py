"""Files with further inputs, really exported: gates, golden rows, predictions from columns, clients' code, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pocketbert
from pocketbert import InputError, api
from pocketbert.benchmarks.cold_start import cold_start
from pocketbert.core.compare.golden import read_golden
from pocketbert.core.disk.files import sha256_file
from pocketbert.core.families import find_family
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.core.types import Format
from pocketbert.runtime.engines import EngineFile, add_missing_inputs
from support.forms import KEPT, write_ernie, write_kept, write_xlm

Cli = Callable[..., Any]
ONNX = {"formats": ["onnx"], "schemes": ["fp32"], "lengths": [16, 32]}
MENTIONS = {"entities": [{"start": 0, "end": 4, "name": "Title 7"}]}
GIVEN = {
    "language": {"language": "fr"},
    "entities": MENTIONS,
    "entity-vectors": {"entities": [{"start": 0, "end": 4, "vector": [0.5] * 12}]},
}
OTHER = {"language": {"language": "de"}, "entities": {"entities": []}, "entity-vectors": {"entities": []}}


def export(folder: Path, form: str, task: TaskName = TaskName.TEXT_CLASSIFICATION, **options: Any) -> Path:
    """Export a tiny model in a form, and verify the folder."""
    folder.mkdir(parents=True)
    entities = write_kept(folder) if form == "entities" else None
    model = (write_xlm if form == "language" else write_ernie)(folder / "model", task)
    chosen = pocketbert.ExportOptions(task=task.value, form=form, entities=entities, **options)
    out = api.export(model, folder / "out", chosen)
    assert api.verify(out).status == "passed"
    return out


@pytest.fixture(scope="module")
def linked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(tmp_path_factory.mktemp("linked") / "ernie", "entities", **ONNX)


@pytest.fixture
def copied(linked: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(linked, tmp_path / "out"))


def write_rows(folder: Path, *rows: dict[str, Any]) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return path


def test_the_folder_records_its_form_and_golden_rows_their_columns(linked: Path) -> None:
    listed = json.loads((linked / "artifacts.json").read_text())
    assert listed["form"] == "entities"
    inputs = next(f for f in listed["files"] if f["path"] == "onnx/model.onnx")["signature"]["inputs"]
    assert [i["name"] for i in inputs] == ["input_ids", "attention_mask", "token_type_ids", "entity_ids"]
    kept = json.loads((linked / "entities.json").read_text())["entities"]
    assert [e.get("name", e["id"]) for e in kept] == list(KEPT)
    rows = read_golden(linked / "golden.jsonl")
    assert all("entities" in row.data for row in rows)
    mentioned = {m["id"] for row in rows for m in row.data["entities"]}  # type: ignore[union-attr, index, call-overload]
    assert mentioned == {e["id"] for e in kept}
    tokens = [json.loads(line) for line in (linked / "golden_tokens.jsonl").read_text().splitlines()]
    assert {i for row in tokens for i in row["inputs"]["entity_ids"]} == {0, 1, 2, 3}


def test_predict_reads_the_column_and_it_makes_a_difference(linked: Path, tmp_path: Path, cli: Cli) -> None:
    model = pocketbert.load(linked)
    texts = [pocketbert.with_columns("good morning", c) for c in (MENTIONS, {"entities": []})]
    first, second = model.outputs(texts)
    assert np.abs(first - second).max() > 1e-3
    table = write_rows(tmp_path, *({"text": "good morning", **c} for c in (MENTIONS, {"entities": []})))
    ran = cli("predict", "-m", linked, "--file", table, "--json")
    assert ran.exit_code == 0, ran.output
    scores = [json.loads(line)["score"] for line in ran.stdout.splitlines()]
    assert scores == pytest.approx([a.score for a in model.predict(texts)])  # type: ignore[union-attr]


def test_texts_without_the_column_and_unknown_entities_end_with_exit_2(linked: Path, tmp_path: Path, cli: Cli) -> None:
    ran = cli("predict", "-m", linked, "good morning")
    assert ran.exit_code == 2
    assert "has no column 'entities'" in ran.stderr
    unknown = write_rows(tmp_path, {"text": "good", "entities": [{"start": 0, "end": 4, "id": "Q9"}]})
    ran = cli("predict", "-m", linked, "--file", unknown)
    assert ran.exit_code == 2
    assert "'Q9' is not among the 3 entities" in ran.stderr
    with pytest.raises(InputError, match="has no column 'entities'"):
        api.verify(linked, write_rows(tmp_path, {"text": "good", "label": "neutral"}))


def update_listing(folder: Path, name: str) -> None:
    """Give a changed file the digest that the list wants."""
    listed = json.loads((folder / "artifacts.json").read_text())
    for record in listed["files"]:
        if record["path"] == name:
            record |= {"sha256": sha256_file(folder / name), "bytes": (folder / name).stat().st_size}
    (folder / "artifacts.json").write_text(json.dumps(listed))


def test_a_changed_entity_is_seen_by_the_stored_gate(copied: Path) -> None:
    import onnx
    from onnx import numpy_helper

    path = copied / "onnx/model.onnx"
    graph = onnx.load(path)
    (table,) = [t for t in graph.graph.initializer if "entity_table" in t.name]
    values = numpy_helper.to_array(table).copy()
    values[2] *= 1.001
    table.CopyFrom(numpy_helper.from_array(values, table.name))
    onnx.save(graph, path)
    update_listing(copied, "onnx/model.onnx")
    (gate,) = [g for g in api.verify(copied).gates if g.name == "stored"]
    assert not gate.passed
    assert "bert.entity_table.weight has other numbers in 1 of 4 rows, first in row 2" in gate.detail


def test_a_lost_input_fails_the_golden_gate_and_another_form_in_the_list_is_refused(copied: Path) -> None:
    rows = [json.loads(line) for line in (copied / "golden.jsonl").read_text().splitlines()]
    (copied / "golden.jsonl").write_text("".join(json.dumps({**r, "data": {"entities": []}}) + "\n" for r in rows))
    update_listing(copied, "golden.jsonl")
    failed = {g.name for g in api.verify(copied).gates if not g.passed}
    assert {"golden", "reference"} <= failed
    listed = json.loads((copied / "artifacts.json").read_text())
    (copied / "artifacts.json").write_text(json.dumps({**listed, "form": "entity-vectors"}))
    with pytest.raises(InputError, match="pocketbert_form is 'entities', the folder's list says 'entity-vectors'"):
        pocketbert.load(copied)


def test_timing_and_cold_starts_fill_in_what_they_are_not_given(linked: Path) -> None:
    file = EngineFile(linked / "onnx/model.onnx", Format.ONNX)
    predictor = file.open(1)
    ids = np.array([[2, 5, 3]])
    feed = add_missing_inputs(
        predictor, {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": ids * 0}
    )
    assert feed["entity_ids"].tolist() == [[0, 0, 0]]
    assert predictor.run(feed)["logits"].shape == (1, 3)
    assert cold_start(file, [2, 5, 3], 1).start.length == 3


def snippets(folder: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.S)


@pytest.mark.slow
@pytest.mark.parametrize("form", GIVEN)
def test_all_formats_and_schemes_hold(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = export(tmp_path / "export", form, lengths=[16, 32])
    listed = json.loads((out / "artifacts.json").read_text())
    assert "more inputs" in listed["absent"]["tflite/mediapipe.tflite"]
    paths = [f["path"] for f in listed["files"] if f["kind"] == "model" and not f.get("alias_of")]
    assert len(paths) == 6
    answers = {}
    for path in paths:
        model = pocketbert.load(out, file=path)
        texts = [pocketbert.with_columns("good morning", c[form]) for c in (GIVEN, OTHER)]
        answers[path] = np.concatenate(model.outputs(texts))
    moved = np.ptp(answers["onnx/model.onnx"], axis=0).max()
    assert moved > 1e-2
    for path, found in answers.items():
        allowed = 1e-4 if path in ("onnx/model.onnx", "tflite/model.tflite") else 0.3
        assert np.abs(found - answers["onnx/model.onnx"]).max() <= allowed, path
    monkeypatch.chdir(out)
    engines = [code for code in snippets(out) if "pocketbert.load" not in code]  # that one names columns to fill in
    assert engines
    for code in engines:
        exec(code, {})
    fastest = pocketbert.load(out, engine="fastest")
    assert fastest.predict([texts[0]])
    again = api.quantize(out, tmp_path / "again", ["int8"])
    assert api.verify(again).status == "passed"
    assert json.loads((again / "artifacts.json").read_text())["form"] == form


@pytest.mark.slow
@pytest.mark.parametrize("form", GIVEN)
@pytest.mark.parametrize("task", [t for t in TASKS if t is not TaskName.TEXT_CLASSIFICATION])
def test_all_tasks_hold(task: TaskName, form: str, tmp_path: Path) -> None:
    family = find_family("xlm" if form == "language" else "ernie-thu")
    if task in family.invalid_tasks:
        with pytest.raises(InputError, match=f"cannot do {task}"):
            export(tmp_path / "export", form, task, **ONNX)
        return
    export(tmp_path / "export", form, task, **ONNX)
