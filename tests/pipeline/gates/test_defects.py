"""Every gate of every format against files broken on purpose: verify exits 3 and names file and gate, pack writes nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pocketbert.core.types import Format
from support.defects import (
    COREML,
    COREML_W8,
    FILES,
    MEDIAPIPE,
    MEDIAPIPE_INT8,
    ONNX,
    ONNX_INT8,
    TFLITE,
    TFLITE_INT8,
    TFLITE_OLD,
    break_file,
    defects_of,
    format_of,
    relist,
    source,
)
from support.folders import tree

Cli = Callable[..., Any]
Good = Callable[[Format], Path]
FINISHED = {Format.ONNX: "finished", Format.TFLITE: "finished_tflite", Format.COREML: "finished_coreml"}
ALL_OTHERS = "all others"


@dataclass(frozen=True)
class Broken:
    """One file with a defect, and what the gates find.

    Attributes:
        file: Path in the artefact folder.
        defect: A verb of `support.defects`, or another file of the run, which takes this one's place.
        fails: Gates that fail, separated by blanks.
        passes: Gates that pass all the same, or `ALL_OTHERS`.
    """

    file: str
    defect: str
    fails: str
    passes: str = ""

    def __str__(self) -> str:
        return f"{Path(self.file).name}-{Path(self.defect).name}"


LOST, KEPT = "golden reference drop", "weights padding"
SLIGHTLY = ("a_little_more", "golden reference stored", ALL_OTHERS)
HIDDEN = ("one_hidden_nan", "weights stored", ALL_OTHERS)
CASES = [
    # several files are broken at once where their defects are independent
    *(tuple(Broken(f, "ignore_mask", "padding", "weights") for f in FILES[format]) for format in FILES),
    (Broken(ONNX, "swap_labels", LOST, KEPT),),
    (Broken(ONNX_INT8, "swap_labels", LOST, KEPT),),
    tuple(Broken(f, "swap_labels", LOST, KEPT) for f in (TFLITE, MEDIAPIPE)),
    tuple(Broken(f, "swap_labels", LOST, KEPT) for f in (TFLITE_INT8, MEDIAPIPE_INT8, TFLITE_OLD)),
    (Broken(COREML, "swap_labels", LOST, f"{KEPT} metadata"),),
    (Broken(COREML_W8, "swap_labels", "golden reference"), Broken(COREML, "always_the_same", "chance drop golden")),
    (Broken(ONNX, "always_the_same", "chance drop golden"),),
    (Broken(TFLITE, "always_the_same", "chance drop golden"),),
    (Broken(ONNX, "one_nan", "weights finite"), Broken(ONNX_INT8, "one_nan_scale", "weights")),
    (Broken(TFLITE, "one_nan", "weights finite"), Broken(TFLITE_INT8, "one_nan_scale", "weights")),
    (Broken(COREML, "one_nan", "weights finite"), Broken(COREML_W8, "one_nan_scale", "weights stored", ALL_OTHERS)),
    (Broken(ONNX, *HIDDEN), Broken(ONNX_INT8, *SLIGHTLY)),
    (Broken(TFLITE, *HIDDEN), Broken(TFLITE_INT8, *SLIGHTLY), Broken(MEDIAPIPE_INT8, *SLIGHTLY)),
    (Broken(COREML, *HIDDEN), Broken(COREML_W8, *SLIGHTLY)),
    # fp32 under the name of int8, and the default form where an old runtime would miscompute it
    (Broken(ONNX_INT8, ONNX, "types"),),
    (
        Broken(TFLITE_INT8, TFLITE, "types"),
        Broken(MEDIAPIPE_INT8, MEDIAPIPE, "types"),
        Broken(TFLITE_OLD, TFLITE, "types"),
    ),
    (Broken(TFLITE_OLD, TFLITE_INT8, "types"), Broken(TFLITE_INT8, TFLITE_OLD, "types")),
    (Broken(TFLITE, TFLITE_INT8, "golden reference"),),
    # packages in each other's place answer well: only what is stored in them tells them apart
    (Broken(COREML, COREML_W8, "types", ALL_OTHERS), Broken(COREML_W8, COREML, "types", ALL_OTHERS)),
    (
        Broken(MEDIAPIPE_INT8, "forget_metadata", "metadata", ALL_OTHERS),
        Broken(MEDIAPIPE, "without_softmax", "golden reference"),
    ),
    tuple(Broken(f, "other_names", "metadata", ALL_OTHERS) for f in FILES[Format.COREML]),
    tuple(Broken(f, "too_large", "overflow", "finite weights") for f in FILES[Format.COREML]),
    (Broken(COREML, "turned_probabilities", "classifier"),),
]


@pytest.fixture
def good(request: pytest.FixtureRequest) -> Good:
    """`good(format)`: the finished run folder whose first file is of that format; read-only by convention."""

    def find(format: Format) -> Path:
        defects_of(format)
        return Path(request.getfixturevalue(FINISHED[format]))

    return find


@pytest.mark.parametrize("broken", CASES, ids=lambda case: "+".join(map(str, case)))
def test_a_broken_file_fails_its_gates_and_no_other_file_fails(
    refused: Callable[..., list[str]], good: Good, tmp_path: Path, broken: tuple[Broken, ...]
) -> None:
    right = good(format_of(broken[0].file))
    run = Path(shutil.copytree(right, tmp_path / "run"))
    for one in broken:
        if one.defect in FILES[format_of(one.file)]:
            replace(source(right, one.defect), source(run, one.file))
        else:
            break_file(source(run, one.file), one.defect)
    failed: dict[str, set[str]] = {one.file: set() for one in broken}
    for line in refused(run, *(f"{one.file} {gate}" for one in broken for gate in one.fails.split())):
        file, gate = line.rsplit(" ", 1)
        failed.setdefault(file, set()).add(gate)
    # an exported file without a score leaves the smaller ones nothing to be compared with
    spreads = {"drop"} if any("finite" in one.fails for one in broken) else set()
    for one in broken:
        wanted, others = set(one.fails.split()), failed.pop(one.file)
        if one.passes == ALL_OTHERS:
            assert others - spreads == wanted
        else:
            assert others.isdisjoint(one.passes.split())
    assert {gate for gates in failed.values() for gate in gates} <= spreads, failed


def replace(origin: Path, destination: Path) -> None:
    """Put a copy of a file or package in the place of another."""
    if origin.is_dir():
        shutil.rmtree(destination)
        shutil.copytree(origin, destination)
    else:
        shutil.copyfile(origin, destination)


@pytest.mark.parametrize("format", FILES)
def test_files_that_are_only_written_again_pass_and_pack_the_same_bytes(
    cli: Cli, good: Good, tmp_path: Path, format: Format
) -> None:
    # proof that the other tests fail because of what they change, not because a file was written again
    run, packed = Path(shutil.copytree(good(format), tmp_path / "run")), tmp_path / "again"
    for file in FILES[format]:
        break_file(source(run, file), "rewrite")
    verified = cli("verify", "-m", run)
    assert verified.exit_code == 0, verified.output
    assert verified.stdout.startswith("passed: ")
    for file in FILES[format]:
        replace(source(good(format), file), source(run, file))
    early = cli("pack", "-m", run, "-o", packed)
    assert early.exit_code == 3, "these are not the files that were verified"
    assert "changed since it was verified" in early.stderr
    assert cli("verify", "-m", run).exit_code == 0
    assert cli("pack", "-m", run, "-o", packed).exit_code == 0
    before, after = tree(good(format) / "phone"), tree(packed)
    assert set(after) == set(before)
    named = ("artifacts.json", "README.md", "report.json")  # the cores, of which the finished run was given one
    assert [n for n in before if after[n] != before[n] and n not in named] == []
    assert cli("verify", "-m", packed).exit_code == 0


@pytest.mark.parametrize(
    ("file", "defect", "gate"),
    [(ONNX, "ignore_mask", "padding"), (TFLITE_OLD, "swap_labels", "golden"), (COREML_W8, "other_names", "metadata")],
)
def test_a_broken_file_of_a_packed_folder_is_found_though_it_is_listed(
    cli: Cli, good: Good, tmp_path: Path, file: str, defect: str, gate: str
) -> None:
    phone = Path(shutil.copytree(good(format_of(file)) / "phone", tmp_path / "phone"))
    break_file(phone / file, defect)
    relist(phone, file)
    result = cli("verify", "-m", phone)
    assert result.exit_code == 3, result.output
    assert f"{file}: gate '{gate}' failed:" in result.stderr
    assert "gate 'integrity'" not in result.stderr
