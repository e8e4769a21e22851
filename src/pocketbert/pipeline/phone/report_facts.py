"""What a report shows of an artefact folder: kept in the folder, so that the report can be made again without the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from pocketbert.core.disk.files import read_json, write_json
from pocketbert.core.errors import InputError, Problem

if TYPE_CHECKING:
    from pocketbert.benchmarks.report.data import ReportData

FACTS_FILE = "report.json"
"""The facts; `benchmark.json` and `recipe.resolved.yaml` lie beside it and are not repeated in it."""
PAGE_FILE = "report.html"
_RECIPE_FILE = "recipe.resolved.yaml"
_LARGEST_MIB = 32


def write_facts(data: ReportData, folder: Path) -> None:
    """Write what a report shows, without the figures and settings that other files of the folder have.

    Args:
        data: What it shows.
        folder: The artefact folder.
    """
    stored_elsewhere = {"benchmark", "recipe", "command"}
    write_json(folder / FACTS_FILE, json.loads(data.model_dump_json(exclude=stored_elsewhere)))


def read_facts(folder: Path) -> ReportData:
    """Read what a report shows of an artefact folder.

    Args:
        folder: The folder, its files as they are listed.

    Raises:
        InputError: If the folder has none, or what it has is no facts of a report.
    """
    from pocketbert.benchmarks.measurement import FILE_NAME, BenchmarkResult
    from pocketbert.benchmarks.report.data import ReportData

    path, measured, recipe = folder / FACTS_FILE, folder / FILE_NAME, folder / _RECIPE_FILE
    if not path.is_file():
        fix = "Export the model again: pocketbert export -m MODEL -o FOLDER"
        raise InputError(Problem(str(folder), f"has no {FACTS_FILE}, which a report is made of.", fix))
    try:
        data = ReportData.model_validate(read_json(path, _LARGEST_MIB))
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)[0]
        what = f"{'.'.join(map(str, found['loc']))}: {found['msg']}."
        raise InputError(Problem(str(path), what, "Export the model again.")) from error
    stored_elsewhere = {
        "benchmark": BenchmarkResult.read(measured) if measured.is_file() else None,
        "recipe": recipe.read_text(encoding="utf-8") if recipe.is_file() else "",
    }
    return data.model_copy(update=stored_elsewhere)
