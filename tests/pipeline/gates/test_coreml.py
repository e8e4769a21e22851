"""Gates of Core ML packages that need more than a defect of the program: other packages, and packages that do not open."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("coremltools", reason="needs pocketbert[coreml]")

from pocketbert import ExportOptions, api
from pocketbert.core.types import Format
from support.defects import COREML as FP16
from support.defects import COREML_W8 as W8
from support.defects import FILES as ALL_FILES
from support.defects import source
from support.defects.coreml import Package, edit, no_model, no_weights, one_rank_more, rewrite, truncated
from support.folders import tree
from support.tiny import write_bert
from support.tiny_texts import LABELS, LENGTH

Cli = Callable[..., Any]
Refused = Callable[..., list[str]]
FILES = ALL_FILES[Format.COREML]


# The run folder.


def test_a_good_run_passes_and_packs_the_same_bytes(
    cli: Cli, coreml_copy: Path, finished_coreml: Path, tmp_path: Path
) -> None:
    for file in FILES:
        edit(source(coreml_copy, file), rewrite)
    verified = cli("verify", "-m", coreml_copy)
    assert verified.exit_code == 0, verified.output
    for file in FILES:
        shutil.rmtree(source(coreml_copy, file))
        shutil.copytree(source(finished_coreml, file), source(coreml_copy, file))
    assert cli("pack", "-m", coreml_copy, "-o", tmp_path / "early").exit_code == 3  # others than were verified
    assert cli("verify", "-m", coreml_copy).exit_code == 0
    packed = cli("pack", "-m", coreml_copy, "-o", tmp_path / "again")
    assert packed.exit_code == 0, packed.output
    before, after = (tree(f) for f in (finished_coreml / "phone", tmp_path / "again"))
    assert set(after) == set(before)
    named = (
        "artifacts.json",
        "README.md",
        "report.json",
    )  # they name the cores, of which the finished run was given one
    assert [n for n in before if after[n] != before[n] and n not in named] == []
    assert cli("verify", "-m", tmp_path / "again").exit_code == 0


@pytest.fixture(scope="module")
def another_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The artefact folder of another model with the same tokenizer and labels; read-only by convention."""
    folder = tmp_path_factory.mktemp("another")
    model = write_bert(folder / "model", LABELS, seed=9)
    return Path(api.export(str(model), folder / "phone", ExportOptions(formats=["coreml"], max_length=LENGTH)))


def test_packages_of_another_model(refused: Refused, coreml_copy: Path, another_model: Path) -> None:
    for file in FILES:
        shutil.rmtree(source(coreml_copy, file))
        shutil.copytree(another_model / file, source(coreml_copy, file))
    failed = refused(coreml_copy, *(f"{f} {g}" for f in FILES for g in ("golden", "reference")), f"{FP16} drop")
    assert {f.split()[0] for f in failed} == set(FILES)


@pytest.mark.parametrize(
    ("file", "change", "said"),
    [
        (FP16, truncated, "weight.bin"),
        (W8, partial(edit, change=one_rank_more), "tanh"),
        (FP16, no_model, "model.mlmodel: no Core ML model:"),
        (W8, no_weights, "weight.bin: file not found."),
    ],
    ids=lambda v: getattr(v, "__name__", None),
)
def test_a_package_that_cannot_be_opened(
    cli: Cli, coreml_copy: Path, tmp_path: Path, file: str, change: Callable[[Path], None], said: str
) -> None:
    change(source(coreml_copy, file))
    verified = cli("verify", "-m", coreml_copy)
    assert verified.exit_code in (2, 3), verified.output
    errors = [line for line in verified.stderr.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1, verified.stderr
    assert said in errors[0]
    assert Path(file).name in errors[0]
    assert "Traceback" not in verified.output
    (tmp_path / "out").mkdir()
    packed = cli("pack", "-m", coreml_copy, "-o", tmp_path / "out" / "packed")
    assert packed.exit_code == 3, packed.output
    assert "changed since it was verified" in packed.stderr
    assert not list((tmp_path / "out").iterdir())


def test_parity_closes_when_the_mask_is_lost_and_the_quantizer_when_it_does_nothing(
    cli: Cli, task: Any, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from coremltools.optimize import coreml as compressor

    from pocketbert.export.adapters import mask_4d

    run = Path(shutil.copytree(finished, tmp_path / "run"))
    changes = [
        "export.formats=[coreml]",
        "export.coreml.shapes=fixed",
        "export.lengths=[16, 40]",
        "benchmark={threads: [1]}",
    ]
    command = ["run", task.recipe, *changes, "-o", run, "--overwrite"]
    good = mask_4d.Wrapped.run

    def forgetful(self: Any, attention_mask: Any, **inputs: Any) -> Any:
        # as a converter folds it: the input stays, and nothing depends on it
        return good(self, attention_mask * 0 + 1, **inputs)

    with monkeypatch.context() as patch:
        patch.setattr(mask_4d.Wrapped, "run", forgetful)
        broken = cli(*command)
    assert broken.exit_code == 3, broken.output
    assert f"parity of {FP16}: differs from transformers by" in broken.stderr
    assert "The mask seems to be ignored." in broken.stderr
    mark = json.loads((run / ".steps" / "coreml.json").read_text())
    assert (mark["status"], len(mark["failures"])) == ("failed", 2)  # the prepared module and the package
    assert (run / FP16).is_dir()
    assert not (run / ".steps" / "coreml-w8.json").exists()

    with monkeypatch.context() as patch:
        patch.setattr(compressor, "linear_quantize_weights", lambda model, **_: model)
        broken = cli(*command)
    assert broken.exit_code == 3, broken.output
    assert "Model_w8.mlpackage: no matrix product has int8 weights; the quantizer did nothing" in broken.stderr
    assert json.loads((run / ".steps" / "coreml-w8.json").read_text())["status"] == "failed"
    assert cli("pack", "-m", run, "-o", tmp_path / "packed").exit_code == 3
    assert not (tmp_path / "packed").exists()

    repaired = cli(*command)
    assert repaired.exit_code == 0, repaired.output
    assert "export to Core ML: finished before, skipped" in repaired.stderr
    # nothing here can be timed, so that there is no benchmark, although the recipe asks for one
    assert not (run / "benchmark.json").exists()
    assert "`python3 coreml/benchmark_on_mac.py` measures it on a Mac" in (run / "phone" / "README.md").read_text()
    assert not (run / "phone" / "onnx").exists()
    alone = cli("benchmark", "-m", run / "phone")
    assert alone.exit_code == 2
    assert "Core ML packages are timed on a Mac" in alone.stderr


def test_a_first_file_that_takes_less_than_the_folder(cli: Cli, coreml_copy: Path) -> None:
    # as shapes: fixed makes it where data.max_length is longer than the longest of export.lengths
    def forget_the_longest(package: Package) -> None:
        for feature in package.model.description.input:
            shapes = feature.type.multiArrayType.enumeratedShapes.shapes
            kept = [list(s.shape) for s in shapes if s.shape[1] < 40]
            assert 0 < len(kept) < len(shapes)
            del shapes[len(kept) :]
            for shape, sizes in zip(shapes, kept, strict=True):
                shape.shape[:] = sizes

    for file in FILES:
        edit(source(coreml_copy, file), forget_the_longest)
    verified = cli("verify", "-m", coreml_copy)
    assert verified.exit_code == 3  # the long golden rows are recorded for the longer package
    assert "tokenizer.json: gate 'tokenizer' failed" not in verified.stderr
