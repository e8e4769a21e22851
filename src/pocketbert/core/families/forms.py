"""Forms in which a model can be exported: the graph's inputs beyond those that every text gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pocketbert.core.errors import InputError, Problem, nearest

FORM_KEY = "pocketbert_form"
"""Entry of config.json that names the form of a saved model; without it, files take text only."""
TEXT_ONLY = "text"
"""Name of the form that all families have: nothing but what a tokenizer makes of a text."""


class Meaning(StrEnum):
    """What the numbers of an input mean, and so how a data column becomes such numbers."""

    LANGUAGE = "language"
    """The number of the text's language, the same at each token."""
    ENTITIES = "entities"
    """The number of an entity, from 1, at the first token of each mention, 0 elsewhere."""
    VECTORS = "vectors"
    """The vector of an entity at the first token of each mention, zeros elsewhere."""


@dataclass(frozen=True)
class GraphInput:
    """An input of a graph that is made of another data column than the text, [B, L] or [B, L, width].

    Attributes:
        name: Name in the graph.
        column: Data column that it is made of.
        meaning: How it is made of that.
        description: One sentence for clients.
        sample: Value that a converter traces with.
        padding: Value at padded places.
        dtype: ``int64`` or ``float32``.
        width: Numbers at each token; 0 where there is one, without an axis of its own.
        width_key: Entry of config.json that says the width.
        count_key: Entry of config.json that counts the values; they are 0 to one less.
        names_key: Entry of config.json that maps names to values.
    """

    name: str
    column: str
    meaning: Meaning
    description: str
    sample: float = 0
    padding: float = 0
    dtype: str = "int64"
    width: int = 0
    width_key: str | None = None
    count_key: str | None = None
    names_key: str | None = None

    @property
    def is_float(self) -> bool:
        """Whether its values are no whole numbers."""
        return self.dtype == "float32"

    def shape(self, *axes: int) -> tuple[int, ...]:
        """The whole shape, of batch and length or of the length only."""
        return (*axes, self.width) if self.width else axes


@dataclass(frozen=True)
class ExportForm:
    """A form in which a model can be exported.

    Attributes:
        name: As in ``--form``.
        title: One sentence.
        extra: Inputs behind those of the family, in order.
        needs: Entries of config.json that must have at least this value, with what holds where there is none.
        table: Whether the graph holds a table of entities, which are chosen when it is exported.
        files: Files of a released folder that the table is made of.
    """

    name: str
    title: str
    extra: tuple[GraphInput, ...]
    needs: Mapping[str, tuple[int, int]]
    table: bool = False
    files: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """Data columns that the inputs are made of."""
        return tuple(dict.fromkeys(i.column for i in self.extra))

    def check(self, config: Mapping[str, Any], where: str) -> None:
        """Refuse a model that cannot have the form.

        Args:
            config: Its config.json.
            where: What to blame in the error.

        Raises:
            InputError: Naming the entry.
        """
        for key, (default, least) in self.needs.items():
            value = config.get(key, default)
            if not isinstance(value, int) or value < least:
                what = f"'{self.name}' needs {key} of at least {least} in config.json, which says {value!r:.20}."
                raise InputError(Problem(where, what, f"Leave it out: files of the form '{TEXT_ONLY}' take text only."))


def chosen_form(forms: tuple[ExportForm, ...], name: str, title: str, where: str) -> ExportForm | None:
    """Find a form by its name; None for text only.

    Args:
        forms: Forms of the family.
        name: As in ``--form``.
        title: Name of the family.
        where: What to blame in the error.

    Raises:
        InputError: If the family has no such form, naming the allowed ones.
    """
    found = next((f for f in forms if f.name == name), None)
    if found is None and name != TEXT_ONLY:
        allowed = (TEXT_ONLY, *(f.name for f in forms))
        what = f"{title} has no form {name!r:.60}; {nearest(name, allowed)}."
        raise InputError(Problem(where, what))
    return found
