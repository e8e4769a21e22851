"""A model with outlier channels: its files are treated, card and report tell it, and the stored gate knows which factors are right."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from pocketbert import ExportOptions, api
from pocketbert.core.models.checkpoints import load_model
from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.core.types import Format, Layout
from pocketbert.export.adapters import outliers as scaling
from pocketbert.export.prepare import list_divided_outliers, prepare
from pocketbert.pipeline.gates.stored import UNDIVIDED_NOTE, PreparedModels, compare_constants
from pocketbert.pipeline.gates.torch_constants import example_inputs, trace_constants
from pocketbert.pipeline.make import model_files as exporting
from pocketbert.pipeline.make.model_files import Outliers, _describe_outliers, _summarize_outliers, outlier_notes
from pocketbert.pipeline.reference import project_text_batches

CLASSIFY = TASKS[TaskName.TEXT_CLASSIFICATION]
ONNX = ExportOptions(formats=["onnx"], schemes=["int8"])
NAME = "bert.encoder.layer.0.output_norm"


@pytest.fixture(scope="module")
def large(model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier one of whose channels is 60 times larger behind the first layer."""
    folder = tmp_path_factory.mktemp("outliers") / "model"
    shutil.copytree(model("bert"), folder)
    state = load_file(folder / "model.safetensors")
    state["bert.encoder.layer.0.output.LayerNorm.weight"][5] *= 60
    for part in ("query", "key", "value"):
        state[f"bert.encoder.layer.1.attention.self.{part}.weight"][:, 5] /= 60
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    return folder


def test_card_and_report_tell_what_was_done(large: Path, tmp_path: Path) -> None:
    api.export(str(large), tmp_path / "phone", ONNX)
    card = (tmp_path / "phone" / "README.md").read_text()
    assert "Outlier channels were divided by powers of two" in card
    assert f"{NAME} (1 of " in card
    assert any(NAME in note for note in json.loads((tmp_path / "phone" / "report.json").read_text())["notes"])
    assert api.verify(tmp_path / "phone").status == "passed"


def test_the_stored_gate_takes_these_factors_or_none(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = open_model_folder(str(large))
    models = PreparedModels(large, CLASSIFY, 40)
    treated, plain = models.reference(Format.ONNX, Layout.PLAIN), models.undivided(Format.ONNX, Layout.PLAIN)
    assert plain is not None
    inputs, texts = example_inputs(folder.family.inputs, 8), project_text_batches(CLASSIFY, TextTokenizer(large, 40))

    def written(largest: int) -> list[object]:
        """Constants of a module whose factors are at most a power of two."""
        monkeypatch.setattr(scaling, "_MAX_EXPONENT", largest)
        module = prepare(load_model(folder, CLASSIFY), folder.family, CLASSIFY, sentences=texts)
        assert bool(list_divided_outliers(module)) is bool(largest)
        return [*trace_constants(module, inputs)]

    assert compare_constants([written(8)], treated, ()).problems == []
    assert compare_constants([written(8)], plain, ()).problems
    assert compare_constants([written(0)], plain, ()).problems == []
    for reference in (treated, plain):
        assert compare_constants([written(1)], reference, ()).problems


def test_a_model_without_outliers_has_one_form(model: Callable[..., Path]) -> None:
    assert PreparedModels(model("bert"), CLASSIFY, 40).undivided(Format.ONNX, Layout.PLAIN) is None


@pytest.mark.slow
def test_folders_that_were_not_treated_still_pass_and_others_fail(
    large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr(exporting, "project_text_batches", lambda *_: [])
        api.export(str(large), tmp_path / "earlier", ONNX)
    assert "Outlier" not in (tmp_path / "earlier" / "README.md").read_text()
    result = api.verify(tmp_path / "earlier")
    assert result.status == "passed"
    assert any(UNDIVIDED_NOTE in g.detail for g in result.gates if g.name == "stored")
    api.quantize(tmp_path / "earlier", tmp_path / "smaller", schemes=["small"])
    assert "Outlier" not in (tmp_path / "smaller" / "README.md").read_text()
    with monkeypatch.context() as wrong:
        wrong.setattr(scaling, "_MAX_EXPONENT", 1)
        api.export(str(large), tmp_path / "wrong", ONNX)
    result = api.verify(tmp_path / "wrong")
    assert {g.name for g in result.gates if not g.passed} == {"stored"}


def test_a_long_list_is_cut(tmp_path: Path) -> None:
    found = [Outliers(name=f"norm{i}", channels=2, of=384, ratio=33.3) for i in range(8)]
    note = _describe_outliers(found)
    assert "norm5 (2 of 384, up to 33 times the median channel) and 2 more tensors." in note
    assert "norm6" not in note
    (tmp_path / "outliers.json").write_text("[]")
    assert outlier_notes([tmp_path, tmp_path / "earlier"]) == []
    assert _summarize_outliers(found).startswith("outlier channels of 8 tensors, up to 33 times the median channel")
    assert _summarize_outliers(found[:1]).startswith("outlier channels of 1 tensor, ")
