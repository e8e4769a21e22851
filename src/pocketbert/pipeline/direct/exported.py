"""What a search reads of a run whose files are exported: the files, the rows that rank, and the rows that choose."""

from __future__ import annotations

from dataclasses import replace

from pocketbert.core.errors import InputError, Problem
from pocketbert.pipeline.direct.search import Material
from pocketbert.pipeline.formats.model_files import exported_file
from pocketbert.pipeline.formats.place import place_of
from pocketbert.pipeline.learn.data import calibration_rows
from pocketbert.pipeline.learn.labelled import EVAL, HOLDOUT, SELECTION
from pocketbert.pipeline.run import Run


def run_material(run: Run) -> Material:
    """What the search reads of a run with exported files; no row that ranks or chooses is one that is scored.

    Args:
        run: The run; its recipe divides the eval rows (`data.selection`).

    Raises:
        InputError: If no row that chooses has a label, or a part of the eval rows is empty.
    """
    choosing = run.labelled.named(SELECTION, run.weights)
    if choosing is None:
        raise InputError(Problem("data.eval", "has no scored rows; what a candidate loses cannot be measured on it."))
    recipe = run.recipe
    bases = {f: exported_file(f, place_of(f).exported_scheme(recipe)) for f in recipe.export.formats}
    return Material(
        run.exported,
        {f: run.path / file.source for f, file in bases.items()},
        calibration_rows(recipe, run.data, run.exported.tokenizer),
        replace(choosing, name="rows that choose"),
        run.data,
        sum(map(run.labelled.count, (EVAL, HOLDOUT))),
    )


def rows_in_words(run: Run, material: Material) -> str:
    """Tell which rows chose and which are scored.

    Args:
        run: The run.
        material: What the search read of it.
    """
    counts = {name: run.labelled.count(name) for name in (EVAL, HOLDOUT)}
    scored = " and ".join(f"{count:,} rows of {name}" for name, count in counts.items() if count)
    chose = len(material.choosing.rows.examples)
    return (
        f"{chose:,} rows of eval chose files and are in no score; {scored} chose nothing, and all scores are of these."
    )
