"""The stage that makes smaller files of exported ones, with the type gate of the quantizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pocketbert.core.disk.files import write_json
from pocketbert.core.errors import GateError
from pocketbert.core.host.progress import say
from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.tasks import task_of
from pocketbert.core.types import Client
from pocketbert.pipeline.formats.model_files import ModelFile
from pocketbert.pipeline.formats.writing import write_client_data

if TYPE_CHECKING:
    from pocketbert.quantize import Plan
    from pocketbert.quantize.plan import Rows


def make_quantized(
    recipe: Recipe,
    run: Path,
    weights: Path,
    destination: Path,
    pairs: Sequence[tuple[ModelFile, ModelFile]],
    calibration: Callable[[], Rows],
) -> Sequence[str]:
    """Quantize files and check the types in the results.

    Args:
        recipe: What to do.
        run: The run folder.
        weights: Folder of the model.
        destination: Folder to write into.
        pairs: Exported file and what to make of it.
        calibration: Returns the rows that static schemes measure ranges on.

    Returns:
        One line for each file that is not what it should be.

    Raises:
        InputError: If the quantizer has no scheme for one of the files; nothing was written.
    """
    from pocketbert.quantize import quantize
    from pocketbert.quantize.table import row_for

    plans = [plan_of(file, calibration) for _, file in pairs]
    for plan in plans:
        row_for(plan)
    failures: list[str] = []
    types = {}
    for (base, file), plan in zip(pairs, plans, strict=True):
        path = destination / Path(file.source).name
        try:
            found = quantize(run / base.source, path, plan)
        except GateError as error:
            failures += error.failures
            continue
        if file.client is Client.MEDIAPIPE:
            write_client_data(recipe, open_model_folder(str(weights)), task_of(recipe.task), path)
        types[file.path] = found.model_dump(mode="json")
        say(f"  {file.path}: {found.summary}")
    write_json(destination / "types.json", types)
    return failures


def plan_of(file: ModelFile, calibration: Callable[[], Rows]) -> Plan:
    """What the quantizer is asked for to make a file."""
    from pocketbert.quantize import Plan

    return Plan(file.format, file.scheme, file.runtime, calibration if file.scheme.static else None)
