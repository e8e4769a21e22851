"""What translated Swift calls: arrays and dictionaries with Swift's rules, and the conversions that are not translated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Dictionary(dict[Any, Any]):
    """A dictionary whose keys may be arrays; nil (None) where a key is missing."""


def _key(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def at(values: Any, index: Any) -> Any:
    if isinstance(values, Dictionary):
        return values.get(_key(index))
    return values[_checked(values, index)]


def put(values: Any, index: Any, value: Any) -> None:
    values[_key(index) if isinstance(values, Dictionary) else _checked(values, index)] = value


def _checked(values: Any, index: int) -> int:
    assert 0 <= index < len(values), f"index {index} of {len(values)}"
    return index


def part(values: list[Any], first: int, last: int) -> list[Any]:
    assert 0 <= first <= last <= len(values), f"{first}..<{last} of {len(values)}"
    return values[first:last]


def half_open(first: int, last: int) -> range:
    assert first <= last, f"{first}..<{last}"
    return range(first, last)


def closed(first: int, last: int) -> range:
    assert first <= last, f"{first}...{last}"
    return range(first, last + 1)


def copied(value: Any) -> Any:
    """Arrays are values in Swift."""
    return list(value) if isinstance(value, list) else value


def count(value: Any) -> int:
    return len(value) if isinstance(value, list | dict) else int(value.count)


def is_empty(value: Any) -> bool:
    return not value if isinstance(value, list | dict) else bool(value.isEmpty)


def contains(values: Any, value: Any) -> bool:
    return value in values if isinstance(values, list) else bool(values.contains(value))


def maybe(value: Any, call: Callable[[Any], Any]) -> Any:
    return None if value is None else call(value)


def whole(value: Any) -> int | None:
    """``Int(...)``: of a text, nil where it is no number."""
    return int(value) if not isinstance(value, str) or value.isdecimal() else None


def real(value: Any) -> float:
    """``Double(...)``."""
    return float(value)


def byte(value: int) -> int:
    """``UInt8(...)``, which traps outside of its range."""
    assert 0 <= value <= 255, value
    return int(value)


def starts(values: list[Any], first: list[Any]) -> bool:
    return values[: len(first)] == first


def joined(values: list[str], separator: str) -> str:
    return separator.join(values)


def written(*parts: Any) -> str:
    return "".join(str(p) for p in parts)


class Conversions:
    """The functions of ``Texts`` that Foundation does."""

    codePoints = staticmethod(lambda text: [ord(c) for c in text])
    utf8 = staticmethod(lambda text: list(text.encode()))
    string = staticmethod(lambda values: bytes(values).decode(errors="replace"))
    bytes = staticmethod(lambda data: list(data))
    divide = staticmethod(lambda one, other: one / other)
