"""What a search reads of a run whose files are exported: the files, the rows that rank, and the rows that choose."""

from __future__ import annotations

from pocketbert.core.compare.evaluate import EvalSet
from pocketbert.core.errors import InputError, Problem
from pocketbert.pipeline.direct.search import Material
from pocketbert.pipeline.formats.model_files import exported_file
from pocketbert.pipeline.formats.place import place_of
from pocketbert.pipeline.learn.data import calibration_rows
from pocketbert.pipeline.run import Run


def run_material(run: Run) -> Material:
    """What the search reads of a run with exported files.

    Args:
        run: The run.

    Raises:
        InputError: If no evaluation row has a label.
    """
    sets = {rows.name: rows for rows in run.eval_sets()}
    if "eval" not in sets:
        raise InputError(Problem("data.eval", "has no scored rows; what a candidate loses cannot be measured on it."))
    recipe = run.recipe
    bases = {f: exported_file(f, place_of(f).exported_scheme(recipe)) for f in recipe.export.formats}
    return Material(
        run.exported,
        {f: run.path / file.source for f, file in bases.items()},
        calibration_rows(recipe, run.data, run.exported.tokenizer),
        EvalSet("rows that choose", sets["eval"].head, sets["eval"].rows),
        run.data,
        len(sets["holdout"].rows.examples) if "holdout" in sets else 0,
    )


def rows_in_words(material: Material) -> str:
    """Which rows chose and which scored.

    Args:
        material: What the search read.
    """
    same = f"{len(material.choosing.rows.examples):,} rows of eval chose, and the scores on eval are of the same rows"
    if material.kept_apart:
        return f"{same}; the {material.kept_apart:,} rows of holdout chose nothing."
    return f"{same}: expect new texts to lose a little more. data.holdout keeps rows apart that choose nothing."
