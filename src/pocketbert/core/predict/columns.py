"""Data columns that travel with a text: its language, the entities that it mentions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pocketbert.core.families import Meaning
from pocketbert.core.predict.encoded import Text

COLUMNS = tuple(m.value for m in (Meaning.LANGUAGE, Meaning.ENTITIES))
"""All data columns that some form reads."""


class TextWithColumns(str):
    """A text that knows other data columns of its row."""

    __slots__ = ("columns",)
    columns: Mapping[str, Any]


class PairWithColumns(tuple[str, str]):
    """A pair of texts that knows other data columns of its row."""

    columns: Mapping[str, Any]


def with_columns(text: Text, columns: Mapping[str, Any] | None) -> Text:
    """Give a text, or a pair, other data columns of its row, such as ``{"language": "en"}``.

    Args:
        text: One text, or two.
        columns: Values by the columns' names; None for the text as it is.
    """
    if columns is None:
        return text
    made = TextWithColumns(text) if isinstance(text, str) else PairWithColumns(text)
    made.columns = columns
    return made


def columns_of(text: object) -> Mapping[str, Any] | None:
    """Return the data columns that a text was given; None where it was given none."""
    return text.columns if isinstance(text, TextWithColumns | PairWithColumns) else None


def parts_of(text: Text) -> tuple[Text, ...]:
    """The texts of a pair, or the only one, each with what its row's columns say of it."""
    columns = columns_of(text)
    if isinstance(text, str) or columns is None:
        return (text,) if isinstance(text, str) else text
    return tuple(with_columns(one, {k: _of_part(v, part) for k, v in columns.items()}) for part, one in enumerate(text))


def _of_part(value: Any, part: int) -> Any:
    """A column for one text of a pair: of mentions, those in it."""
    if not isinstance(value, list):
        return value
    own = [m for m in value if isinstance(m, Mapping) and m.get("part", 0) == part]
    return [{k: v for k, v in m.items() if k != "part"} for m in own]
