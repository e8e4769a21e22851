"""The one table for the systems of the family, and the functions that ask it.

The rows are in `rows`, one file for each architecture. A row is data: facts, limits with their reason, and keys under which
code of the family is registered (`code`). Nothing but these rows, distill/capture, distill/students and export/adapters names
an architecture.
"""

from __future__ import annotations

from pocketbert.core.errors import InputError, Problem, nearest
from pocketbert.core.families.family import Family
from pocketbert.core.families.rows import ROWS
from pocketbert.core.loading.plugins import announce, load_plugins

_FAMILIES: dict[str, Family] = {row.name: row for row in ROWS}


def register_family(family: Family) -> None:
    """Add a model family to the table, or replace the one of the same name; an installed plug-in can only add.

    Args:
        family: The new row. The keys it names are looked up when they are needed, so code may be registered before or after.
    """
    announce("family", family.name, family.name in _FAMILIES)
    _FAMILIES[family.name] = family


def all_families() -> tuple[Family, ...]:
    """List all supported model families in the order of their registration, including those of installed plug-ins."""
    load_plugins()
    return tuple(_FAMILIES.values())


def family_of(model_type: str, where: str = "config.json") -> Family:
    """Return the family that serves a `model_type`.

    Args:
        model_type: The value in config.json.
        where: What to blame in the error.

    Returns:
        The family.

    Raises:
        InputError: If no row serves it.
    """
    for family in all_families():
        if model_type in family.model_types:
            return family
    known = [t for f in all_families() for t in f.model_types]
    raise InputError(
        Problem(
            where,
            f"model_type '{model_type}' is not in the family table; {nearest(model_type, known)}.",
            "Add a row with pocketbert.core.families.register_family, or use a supported system.",
        )
    )


def family_named(name: str, where: str = "family") -> Family:
    """The row of a name.

    Args:
        name: As in recipes.
        where: What to blame in the error.

    Raises:
        InputError: If there is none.
    """
    rows = {f.name: f for f in all_families()}
    if name not in rows:
        raise InputError(Problem(where, f"'{name}' is not in the family table; {nearest(name, tuple(rows))}."))
    return rows[name]


def check_exported(family: Family, where: str = "model") -> None:
    """Refuse a model that no file can be written of.

    Args:
        family: Its row.
        where: Recipe key or folder to blame.

    Raises:
        InputError: If no exporter writes the family, with what to do instead.
    """
    if family.instead_of_export is not None:
        raise InputError(Problem(where, f"no exporter writes {family.title}.", family.instead_of_export))
