"""Cuts Swift source into tokens, as far as the project's own Swift needs it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_TOKEN = re.compile(
    r"""(?P<blank>[ \t]+|//[^\n]*)
    |(?P<newline>\n)
    |(?P<text>"(?:[^"\\\n]|\\\((?:[^()]|\([^()]*\))*\)|\\.)*")
    |(?P<number>0x[0-9A-Fa-f]+|[0-9]+)
    |(?P<name>[A-Za-z_]\w*)
    |(?P<sign>\.\.<|\.\.\.|->|<<|>>|[-+]=|==|!=|<=|>=|&&|\|\||\?\?|[-+*/%&|^<>=!?:;,.(){}\[\]])""",
    re.VERBOSE,
)
_PYTHON_WORDS = ("and", "as", "def", "del", "from", "is", "lambda", "not", "or", "pass", "raise", "with", "yield")
"""Names in Swift that are no names in Python; they get an underscore."""


@dataclass(frozen=True)
class Token:
    """A token.

    Attributes:
        kind: ``newline``, ``text``, ``number``, ``name``, ``sign`` or ``end``.
        text: Its characters.
        line: Number of its line, from 1.
        spaced: Whether a blank or a new line is before it.
    """

    kind: str
    text: str
    line: int
    spaced: bool


def tokens(source: str) -> Iterator[Token]:
    """Cut a source; comments are left out."""
    at, line, spaced = 0, 1, True
    while at < len(source):
        found = _TOKEN.match(source, at)
        assert found is not None, f"line {line}: {source[at : at + 20]!r} is no Swift that is known here"
        kind = str(found.lastgroup)
        if kind != "blank":
            yield Token(kind, found[0] + "_" if found[0] in _PYTHON_WORDS else found[0], line, spaced)
        spaced = kind in ("blank", "newline")
        line += kind == "newline"
        at = found.end()
    yield Token("end", "", line, True)
