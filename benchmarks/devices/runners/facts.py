"""What a user tells about a text of a measuring program, since the text does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pocketbert.core.errors import nearest, shown

KEYS = ("device", "file", "length", "threads")
MOST_WORDS = 100
"""Characters of a device's name."""
_MOST = {"length": 65536, "threads": 4096}


@dataclass(frozen=True)
class Fact:
    """One thing that is told of a text.

    Attributes:
        key: ``device``, ``file``, ``length`` or ``threads``.
        value: What it is.
        text: Name of the text's file; empty for all texts.
    """

    key: str
    value: str
    text: str = ""


@dataclass(frozen=True)
class Told:
    """What is told of one text; empty or None where nothing is.

    Attributes:
        device: The device in words.
        file: Path of the measured file.
        length: Tokens.
        threads: Threads within an operator.
    """

    device: str = ""
    file: str = ""
    length: int | None = None
    threads: int | None = None


def parse_fact(written: str) -> Fact:
    """Read ``[TEXT:]KEY=VALUE``.

    Raises:
        ValueError: If the key is unknown or the value is none of its kind.
    """
    left, equals, value = written.partition("=")
    text, _, key = left.rpartition(":")
    key, value = key.strip(), value.strip()
    if not equals:
        raise ValueError(f"{shown(written)} is no KEY=VALUE; keys: {', '.join(KEYS)}")
    if key not in KEYS:
        raise ValueError(f"unknown key {shown(key)}; {nearest(key, list(KEYS))}")
    if key in _MOST and not (
        value.isascii() and value.isdecimal() and 1 <= int(value[:6]) <= _MOST[key] and len(value) <= 6
    ):
        raise ValueError(f"{key} {shown(value)}; allowed: whole numbers from 1 to {_MOST[key]}")
    if not value or len(value) > (MOST_WORDS if key == "device" else 400) or not value.isprintable():
        raise ValueError(f"{key} {shown(value)}; allowed: a name without control characters, of at most {MOST_WORDS}")
    return Fact(key, value, text.strip())


def told_of(name: str, facts: Sequence[Fact]) -> Told:
    """What is told of the text in a file of that name; a fact of this text wins over one of all texts."""
    last = {f.key: f.value for f in sorted((f for f in facts if f.text in ("", name)), key=lambda f: bool(f.text))}
    length, threads = last.get("length"), last.get("threads")
    return Told(
        device=last.get("device", ""),
        file=last.get("file", ""),
        length=int(length) if length else None,
        threads=int(threads) if threads else None,
    )
