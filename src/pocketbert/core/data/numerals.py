"""Labels that are numbers, and names that look alike: one reading of both for every kind of file."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from pocketbert.core.errors import shown

_NUMERAL = re.compile(r"\s*[+-]?\d+(\.\d+)?\s*", re.ASCII)
_MOST_DIGITS = 40
_EXACT = 1 << 53
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Characters without a shape that Unicode does not count among the blanks or the control characters."""
_UNSEEN = ("Cc", "Cf", "Cs", "Zs", "Zl", "Zp")


def number_of(label: object) -> int | float | None:
    """The number that a label is: 2 for 2, 2.0, "2" and "2.0"; None for a name.

    True and false are names, and so is a text with more than 40 digits.
    """
    if isinstance(label, str):
        if len(label) > _MOST_DIGITS or not _NUMERAL.fullmatch(label):
            return None
        label = float(label) if "." in label else int(label)
    if isinstance(label, bool) or not isinstance(label, int | float):
        return None
    return int(label) if isinstance(label, float) and label.is_integer() and abs(label) < _EXACT else label


def is_visible(text: str) -> bool:
    """Whether a text has a character that is not a blank, a control character or of no width."""
    return any(unicodedata.category(c) not in _UNSEEN and not _INVISIBLE.match(c) for c in text)


def without_invisible(name: str) -> str:
    """A name without surrounding blanks and without characters that cannot be seen, in Unicode's composed form."""
    seen = "".join(c for c in name if c.isspace() or is_visible(c))
    return unicodedata.normalize("NFC", " ".join(seen.split()))


def name_problems(names: Sequence[str]) -> list[str]:
    """What makes a list of label names unusable: a name twice, an empty one, two that look the same or are one number.

    Returns:
        One sentence each, at most ten.
    """
    problems: list[str] = []
    first: dict[object, str] = {}
    for name in names:
        if not is_visible(name):
            problems.append(f"the label {shown(name)} is empty")
            continue
        number = number_of(name)
        key: object = without_invisible(name) if number is None else number
        if key not in first:
            first[key] = name
        elif first[key] == name:
            problems.append(f"the label {shown(name)} occurs twice")
        else:
            other = first[key]
            how = "differ only in what cannot be seen" if number is None else "are the same number"
            problems.append(f"the labels {shown(other)} and {shown(name)} {how}")
    return problems[:10]
