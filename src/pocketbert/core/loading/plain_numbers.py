"""The base of sections whose numbers must be numbers: `yes` and infinity are none."""

from __future__ import annotations

import math
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, model_validator


class PlainNumbers(BaseModel):
    """Refuses true, false and numbers that are not finite where a number is wanted; pydantic takes true as 1."""

    @model_validator(mode="before")
    @classmethod
    def _plain_numbers(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        numbers = {field.alias or name for name, field in cls.model_fields.items() if _wants_number(field.annotation)}
        return {key: _as_text(value) if key in numbers else value for key, value in values.items()}


def _wants_number(annotation: Any) -> bool:
    """Whether an annotation, or what its lists and mappings hold, is a number and never true or false."""
    kinds = set(_kinds(annotation))
    return bool(kinds & {int, float}) and bool not in kinds


def _kinds(annotation: Any) -> list[Any]:
    origin = get_origin(annotation)
    if origin is Literal:
        return [type(value) for value in get_args(annotation)]
    if origin in (Union, UnionType, list, tuple, dict) or hasattr(annotation, "__metadata__"):
        inner = (annotation.__origin__,) if hasattr(annotation, "__metadata__") else get_args(annotation)
        return [kind for one in inner for kind in _kinds(one)]
    return [annotation]


def _as_text(value: Any) -> Any:
    """A value in which true, false and infinities are texts that no number can be read from, so that pydantic names them."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return [_as_text(entry) for entry in value]
    if isinstance(value, dict):
        return {key: _as_text(entry) for key, entry in value.items()}
    if isinstance(value, float | str):
        try:
            return value if math.isfinite(float(value)) else f"{value} (not finite)"
        except ValueError:
            return value  # pydantic says what is wrong with it
    return value
