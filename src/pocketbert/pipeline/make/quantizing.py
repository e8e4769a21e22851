"""The stage that makes smaller files of exported ones, with the type gate of the quantizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pocketbert.core.disk.files import write_json
from pocketbert.core.errors import GateError
from pocketbert.core.host.progress import say, waiting
from pocketbert.core.models.learned_ranges import read_learned
from pocketbert.core.predict.tokenization import padding_side_of
from pocketbert.core.types import Calibration
from pocketbert.pipeline.formats.model_files import ModelFile
from pocketbert.pipeline.formats.place import place_of
from pocketbert.pipeline.formats.run_model import RunModel
from pocketbert.pipeline.make.roles import roles_of

if TYPE_CHECKING:
    from pocketbert.quantize import Plan
    from pocketbert.quantize.plan import Rows


def make_quantized(
    model: RunModel,
    pairs: Sequence[tuple[ModelFile, ModelFile]],
    destination: Path,
    calibration: Callable[[], Rows],
) -> Sequence[str]:
    """Quantize files and check the types in the results.

    Args:
        model: The exported model.
        pairs: Exported file and what to make of it.
        destination: Folder to write into.
        calibration: Returns the rows that static schemes measure ranges on.

    Returns:
        One line for each file that is not what it should be.

    Raises:
        InputError: If the quantizer has no scheme for one of the files; nothing was written.
    """
    from pocketbert.quantize import quantize
    from pocketbert.quantize.table import row_for

    method = model.recipe.quantize.calibration
    plans = [
        replace(plan_of(file, calibration, model.weights, method), weights=roles_of(model, file)) for _, file in pairs
    ]
    for plan in plans:
        row_for(plan)
    failures: list[str] = []
    types = {}
    for (base, file), plan in zip(pairs, plans, strict=True):
        path = destination / Path(file.source).name
        try:
            with waiting(file.path):
                found = quantize(model.source(base), path, plan)
        except GateError as error:
            failures += error.failures
            continue
        place_of(file.format).finish(model, file, path)
        types[file.path] = found.model_dump(mode="json")
        say(f"  {file.path}: {found.summary}")
    write_json(destination / "types.json", types)
    return failures


def plan_of(
    file: ModelFile, calibration: Callable[[], Rows], weights: Path, method: Calibration = Calibration.MINMAX
) -> Plan:
    """What the quantizer is asked for to make a file.

    Args:
        file: The file.
        calibration: Returns the rows that static schemes measure ranges on.
        weights: Folder of the model, which may hold ranges that it was trained with.
        method: How static schemes choose ranges from these rows.
    """
    from pocketbert.quantize import Plan

    static = file.scheme.static
    learned = read_learned(weights, file.scheme, file.runtime) if static else None
    left = static and padding_side_of(weights) == "left"
    rows = calibration if static else None
    method = method if static else Calibration.MINMAX
    return Plan(file.format, file.scheme, file.runtime, rows, method, learned=learned, pads_left=left)
