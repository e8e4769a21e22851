"""The gates against Core ML packages broken on purpose: verify exits 3 and names package and gate, pack writes nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("coremltools", reason="needs pocketbert[coreml]")

from pocketbert import ExportOptions, api
from pocketbert.core.disk.files import path_bytes, sha256_path
from support.defects.coreml import (
    FILES,
    FP16,
    W8,
    Package,
    a_little_more,
    always_the_same,
    edit,
    ignore_mask,
    no_model,
    no_weights,
    one_hidden_nan,
    one_nan,
    one_nan_scale,
    other_names,
    ranked,
    rename,
    source,
    swap_labels,
    too_large,
    truncated,
    turned_probabilities,
)
from support.folders import tree
from support.tiny_models import write_bert
from support.tiny_texts import LABELS, LENGTH

Cli = Callable[..., Any]
Refused = Callable[..., list[str]]


# The run folder.


def test_a_good_run_passes_and_packs_the_same_bytes(
    cli: Cli, coreml_copy: Path, finished_coreml: Path, tmp_path: Path
) -> None:
    edit(coreml_copy, rename, *FILES)  # the other tests fail because of what they change, not of being written again
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
    # these two name the cores, of which the finished run was given one
    assert [n for n in before if after[n] != before[n] and n not in ("artifacts.json", "README.md")] == []
    assert cli("verify", "-m", tmp_path / "again").exit_code == 0


def test_mask_ignored(refused: Refused, coreml_copy: Path) -> None:
    edit(coreml_copy, ignore_mask, *FILES)
    failed = refused(coreml_copy, *(f"{f} padding" for f in FILES))
    assert {f.split()[0] for f in failed} == set(FILES)
    assert not {f"{f} weights" for f in FILES} & set(failed)


def test_two_labels_swapped(refused: Refused, coreml_copy: Path) -> None:
    edit(coreml_copy, swap_labels, FP16)
    failed = refused(coreml_copy, *(f"{FP16} {g}" for g in ("golden", "reference", "drop")))
    assert {f.split()[0] for f in failed} == {FP16}
    assert {f"{FP16} weights", f"{FP16} padding", f"{FP16} metadata"}.isdisjoint(failed)


def test_two_labels_swapped_in_w8_and_a_constant_answer(refused: Refused, coreml_copy: Path) -> None:
    edit(coreml_copy, swap_labels, W8)
    edit(coreml_copy, always_the_same, FP16)
    failed = refused(
        coreml_copy,
        *(f"{W8} {g}" for g in ("golden", "reference")),
        *(f"{FP16} {g}" for g in ("chance", "drop", "golden")),
    )
    assert {f.split()[0] for f in failed} == set(FILES)


def test_label_names_inside_that_changed_places(refused: Refused, coreml_copy: Path) -> None:
    edit(coreml_copy, other_names, *FILES)
    assert refused(coreml_copy, f"{FP16} metadata") == [f"{f} metadata" for f in FILES]


def test_a_classifier_that_reads_other_probabilities(cli: Cli, coreml_copy: Path) -> None:
    edit(coreml_copy, turned_probabilities, FP16)
    result = cli("verify", "-m", coreml_copy)
    assert result.exit_code == 3
    assert f"{FP16}: gate 'classifier' failed:" in result.stderr


def test_one_nan_weight_and_one_nan_scale(refused: Refused, coreml_copy: Path) -> None:
    edit(coreml_copy, one_nan, FP16)
    edit(coreml_copy, one_nan_scale, W8)
    failed = refused(coreml_copy, f"{FP16} weights", f"{FP16} finite", f"{W8} weights")
    assert [f for f in failed if f.startswith(W8) and "drop" not in f] == [f"{W8} weights"]


def test_sums_that_fp16_cannot_hold(refused: Refused, coreml_copy: Path) -> None:
    edit(coreml_copy, too_large, *FILES)
    failed = refused(coreml_copy, *(f"{f} overflow" for f in FILES))
    assert not {f"{f} {g}" for f in FILES for g in ("finite", "weights")} & set(failed)


def test_one_hidden_nan_weight_and_answers_beyond_the_golden_tolerance(refused: Refused, coreml_copy: Path) -> None:
    edit(coreml_copy, one_hidden_nan, FP16)
    edit(coreml_copy, a_little_more, W8)
    # one gate for each: no other reads the weights, none is that strict
    assert refused(coreml_copy, f"{W8} golden") == [f"{FP16} weights", f"{W8} golden"]


def test_packages_in_each_others_place(refused: Refused, coreml_copy: Path) -> None:
    first, second = (source(coreml_copy, f) for f in FILES)
    first.rename(coreml_copy / "other")
    second.rename(first)
    (coreml_copy / "other").rename(second)
    failed = refused(coreml_copy, f"{FP16} types", f"{W8} types")
    # both answer well: only what is stored in them tells them apart
    assert set(failed) == {f"{FP16} types", f"{W8} types"}


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
        (W8, ranked, "tanh"),
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
    good = mask_4d._Wrapped._run

    def forgetful(self: Any, attention_mask: Any, **inputs: Any) -> Any:
        # as a converter folds it: the input stays, and nothing depends on it
        return good(self, attention_mask * 0 + 1, **inputs)

    with monkeypatch.context() as patch:
        patch.setattr(mask_4d._Wrapped, "_run", forgetful)
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

    edit(coreml_copy, forget_the_longest, *FILES)
    verified = cli("verify", "-m", coreml_copy)
    assert verified.exit_code == 3  # the long golden rows are recorded for the longer package
    assert "tokenizer.json: gate 'tokenizer' failed" not in verified.stderr


def relist(folder: Path, name: str) -> None:
    """Bring artifacts.json up to date, as a careless hand would, so that only the other gates are left."""
    content = json.loads((folder / "artifacts.json").read_text())
    for record in content["files"]:
        if record["path"] == name:
            record["sha256"], record["bytes"] = sha256_path(folder / name), path_bytes(folder / name)
    (folder / "artifacts.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("file", "change", "gate"),
    [
        (FP16, ignore_mask, "padding"),
        (W8, swap_labels, "golden"),
        (FP16, one_hidden_nan, "weights"),
        (W8, other_names, "metadata"),
    ],
    ids=lambda v: getattr(v, "__name__", str(v)),
)
def test_a_folder_with_a_broken_package_that_is_listed(
    cli: Cli, coreml_copy: Path, file: str, change: Callable[[Package], None], gate: str
) -> None:
    phone = coreml_copy / "phone"
    package = Package(phone / file)
    change(package)
    package.write()
    relist(phone, file)
    result = cli("verify", "-m", phone)
    assert result.exit_code == 3, result.output
    assert f"{file}: gate '{gate}' failed:" in result.stderr
    assert "gate 'integrity'" not in result.stderr
