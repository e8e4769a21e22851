"""`quantize --budget`: reading its options, and printing what the search measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from pocketbert.cli.options import listed
from pocketbert.cli.output import print_table
from pocketbert.core.errors import InputError, Problem

if TYPE_CHECKING:
    from pocketbert.core.artefacts import Candidate
    from pocketbert.core.data.source import DataSource
    from pocketbert.pipeline.options import BudgetOptions

_NONE = "-"


def budget_options(
    budget: str | None, data: DataSource | None, formats: str | None, answer: Sequence[str] = ()
) -> BudgetOptions | None:
    """Read the options of a search; None without a budget.

    Args:
        budget: Limits.
        data: Labelled rows.
        formats: Formats to choose files of.
        answer: Settings of temperature and threshold, each ``KEY=VALUE``.

    Raises:
        InputError: Listing every problem of the limits, or the options that have no meaning without a budget.
    """
    from pocketbert.core.recipe.budget import parse_budget
    from pocketbert.core.recipe.file import option_values
    from pocketbert.pipeline.inputs import SURE
    from pocketbert.pipeline.options import AnswerOptions, BudgetOptions

    if budget is None:
        given = {"--data": data, "--format": formats, "--answer": answer or None}
        lost = [flag for flag, value in given.items() if value is not None]
        if lost:
            raise InputError([Problem(flag, "has no meaning without --budget.", "Leave it out.") for flag in lost])
        return None
    limits = parse_budget(listed(budget), "--budget")
    settled = option_values(answer, "--answer")
    wrong = [f"--answer {key}" for key in settled if key not in SURE]
    if wrong:
        fix = f"Set {' or '.join(SURE)}; the folder decides the others."
        raise InputError([Problem(flag, "is decided by the folder that is read.", fix) for flag in wrong])
    chosen = listed(formats) if formats is not None else None
    return BudgetOptions(limits=limits, data=data, formats=chosen, answer=cast(AnswerOptions, settled))


def checked_output(model: Path, output: Path | None, inside: bool) -> Path:
    """Return the folder to write: with a budget a new one next to the folder that is read, if none is named.

    Raises:
        InputError: If there is no budget and no folder is named.
    """
    if output is not None:
        return output
    if not inside:
        raise InputError(Problem("-o/--output", "is missing.", "Name the folder to write."))
    whole = model.resolve()
    return whole.with_name(f"{whole.name}-budget")


def print_search(folder: Path) -> None:
    """Print every candidate, and the recipe lines of those that were chosen."""
    from pocketbert.core.artefacts import read_artefacts
    from pocketbert.pipeline.direct.search import chosen_files, recipe_lines

    found = read_artefacts(folder).search
    if found is None:
        return
    header = ["candidate", "MB", "rel", "same label", "drop", "p90 ms", "inside", ""]
    print_table(header, [_row(c) for c in found.candidates])
    limits = ", ".join(f"{name}={value:g}" for name, value in found.budget.items())
    print(f"chosen inside {limits}: {found.wins}")
    print(f"{found.ranked_on:,} calibration rows ranked. {found.rows}")
    chosen = chosen_files(found.chosen)
    print(f"the same files from a recipe:\n  {recipe_lines(chosen, found.calibration)}")


def _row(candidate: Candidate) -> list[str]:
    def shown(value: float | None, form: str) -> str:
        return _NONE if value is None else f"{value:{form}}"

    inside = _NONE if candidate.inside is None else "yes" if candidate.inside else "no"
    return [
        candidate.name,
        shown(None if candidate.bytes is None else candidate.bytes / 1e6, ".2f"),
        shown(candidate.rel, ".4f"),
        shown(candidate.agreement, ".1%"),
        shown(candidate.drop, ".4f"),
        shown(candidate.p90_ms, ".2f"),
        inside,
        "chosen" if candidate.chosen else candidate.note,
    ]
