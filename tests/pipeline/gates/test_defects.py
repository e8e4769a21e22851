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
    VERBS,
    break_file,
    defects_of,
    format_of,
    relist,
    source,
)

Cli = Callable[..., Any]
Refused = Callable[..., list[str]]
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


CASES = [
    (Broken(ONNX, "ignore_mask", "padding"),),
    (Broken(ONNX_INT8, "ignore_mask", "padding"),),
    (Broken(ONNX, "swap_labels", "golden reference drop", "weights padding"),),
    (Broken(ONNX_INT8, "swap_labels", "golden reference drop", "weights padding"),),
    (Broken(ONNX, "one_nan", "weights finite"),),
    (Broken(ONNX, "one_hidden_nan", "weights stored", ALL_OTHERS),),
    (Broken(ONNX_INT8, "one_nan_scale", "weights"),),
    (Broken(ONNX_INT8, ONNX, "types"),),
    (Broken(ONNX, "always_the_same", "chance drop golden"),),
    (Broken(ONNX_INT8, "a_little_more", "golden reference stored", ALL_OTHERS),),
    *((Broken(f, "ignore_mask", "padding"),) for f in FILES[Format.TFLITE]),
    *((Broken(f, "swap_labels", "golden reference drop", "weights padding"),) for f in FILES[Format.TFLITE]),
    (Broken(TFLITE, "one_nan", "weights finite"),),
    (Broken(TFLITE, "one_hidden_nan", "weights stored", ALL_OTHERS),),
    (Broken(TFLITE_INT8, "one_nan_scale", "weights"),),
    # fp32 under the name of int8, and the default form where an old runtime would miscompute it
    (Broken(TFLITE_INT8, TFLITE, "types"),),
    (Broken(MEDIAPIPE_INT8, MEDIAPIPE, "types"),),
    (Broken(TFLITE_OLD, TFLITE, "types"),),
    (Broken(TFLITE_OLD, TFLITE_INT8, "types"),),
    (Broken(TFLITE_INT8, TFLITE_OLD, "types"),),
    (Broken(TFLITE, TFLITE_INT8, "golden reference"),),
    (Broken(TFLITE, "always_the_same", "chance drop golden"),),
    (Broken(TFLITE_INT8, "a_little_more", "golden reference stored", ALL_OTHERS),),
    (Broken(MEDIAPIPE_INT8, "a_little_more", "golden reference stored", ALL_OTHERS),),
    (Broken(MEDIAPIPE_INT8, "forget_metadata", "metadata", ALL_OTHERS),),
    (Broken(MEDIAPIPE, "without_softmax", "golden reference"),),
    # verifying a Core ML run takes long: two packages are broken at once where their defects are independent
    tuple(Broken(f, "ignore_mask", "padding", "weights") for f in FILES[Format.COREML]),
    (Broken(COREML, "swap_labels", "golden reference drop", "weights padding metadata"),),
    (Broken(COREML_W8, "swap_labels", "golden reference"), Broken(COREML, "always_the_same", "chance drop golden")),
    tuple(Broken(f, "other_names", "metadata", ALL_OTHERS) for f in FILES[Format.COREML]),
    (Broken(COREML, "turned_probabilities", "classifier"),),
    (Broken(COREML, "one_nan", "weights finite"), Broken(COREML_W8, "one_nan_scale", "weights stored", ALL_OTHERS)),
    tuple(Broken(f, "too_large", "overflow", "finite weights") for f in FILES[Format.COREML]),
    (
        Broken(COREML, "one_hidden_nan", "weights stored", ALL_OTHERS),
        Broken(COREML_W8, "a_little_more", "golden reference stored", ALL_OTHERS),
    ),
    # packages in each other's place answer well: only what is stored in them tells them apart
    (Broken(COREML, COREML_W8, "types", ALL_OTHERS), Broken(COREML_W8, COREML, "types", ALL_OTHERS)),
]


@pytest.fixture
def good(request: pytest.FixtureRequest) -> Callable[[Format], Path]:
    """`good(format)`: the finished run folder whose first file is of that format; read-only by convention."""

    def finished(format: Format) -> Path:
        defects_of(format)
        return Path(request.getfixturevalue(FINISHED[format]))

    return finished


@pytest.mark.parametrize("broken", CASES, ids=lambda case: "+".join(map(str, case)))
def test_a_broken_file_fails_its_gates_and_no_other_file_fails(
    refused: Refused, good: Callable[[Format], Path], tmp_path: Path, broken: tuple[Broken, ...]
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
def test_files_that_are_only_written_again_pass(
    cli: Cli, good: Callable[[Format], Path], tmp_path: Path, format: Format
) -> None:
    # proof that the other tests fail because of what they change, not because a file was written again
    run = Path(shutil.copytree(good(format), tmp_path / "run"))
    for file in FILES[format]:
        break_file(source(run, file), "rewrite")
    verified = cli("verify", "-m", run)
    assert verified.exit_code == 0, verified.output


@pytest.mark.parametrize(
    ("file", "defect", "gate"),
    [
        (ONNX, "ignore_mask", "padding"),
        (TFLITE, "ignore_mask", "padding"),
        (TFLITE_INT8, "swap_labels", "golden"),
        (MEDIAPIPE, "one_nan", "weights"),
        (TFLITE_OLD, "always_the_same", "golden"),
        (COREML, "ignore_mask", "padding"),
        (COREML_W8, "swap_labels", "golden"),
        (COREML, "one_hidden_nan", "weights"),
        (COREML_W8, "other_names", "metadata"),
    ],
)
def test_a_folder_with_a_broken_file_that_is_listed(
    cli: Cli, good: Callable[[Format], Path], tmp_path: Path, file: str, defect: str, gate: str
) -> None:
    phone = Path(shutil.copytree(good(format_of(file)) / "phone", tmp_path / "phone"))
    break_file(phone / file, defect)
    relist(phone, file)
    result = cli("verify", "-m", phone)
    assert result.exit_code == 3, result.output
    assert f"{file}: gate '{gate}' failed:" in result.stderr
    assert "gate 'integrity'" not in result.stderr


@pytest.mark.parametrize("format", FILES)
def test_every_format_has_the_same_verbs(format: Format) -> None:
    module = defects_of(format)
    assert [verb for verb in VERBS if not callable(getattr(module, verb, None))] == []
