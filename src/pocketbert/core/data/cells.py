"""Values of labels, read in one way from every kind of file: numbers, names, lists and tags.

- `number_of` reads a label that is a number, `read_truth` one that is true or false, `normalize_name` returns any label as labels are compared,
  `are_probabilities` finds cells with a probability for each label, `merge_scored_labels` reads those that pipelines write, `parse_list` reads
  a list that a table holds as text, `find_word_places` the words of a tagged text, `is_visible` refuses blank names, `find_name_problems`
  checks a list of names.
- `have_marks` and `split_tags` read cells of tags.
"""

from __future__ import annotations

import ast
import json
import re
import unicodedata
from collections.abc import Sequence
from typing import Any

from pocketbert.core.errors import shorten_repr
from pocketbert.core.predict.spans import OUTSIDE, have_iob_prefixes, normalize_tags

# --- numbers and names ---

_NUMERAL = re.compile(r"\s*[+-]?\d+(\.\d+)?\s*", re.ASCII)
_MOST_DIGITS = 40
_LARGEST_EXACT = 1 << 53
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Characters without a shape that Unicode counts neither among the blanks nor among the control characters."""
_INVISIBLE_CATEGORIES = ("Cc", "Cf", "Cs", "Zs", "Zl", "Zp")


def number_of(label: object) -> int | float | None:
    """Return the number that a label spells: 2 for 2, 2.0, "2" and "2.0"; None for a name.

    True and false are names, and so is a text of more than 40 characters.
    """
    if isinstance(label, str):
        if len(label) > _MOST_DIGITS or not _NUMERAL.fullmatch(label):
            return None
        label = float(label) if "." in label else int(label)
    if isinstance(label, bool) or not isinstance(label, int | float):
        return None
    return int(label) if isinstance(label, float) and label.is_integer() and abs(label) < _LARGEST_EXACT else label


def normalize_name(label: Any) -> int | float | str:
    """Return a label as labels are compared: true as "true", the number that it spells, else its text without outer blanks."""
    if isinstance(label, bool):
        return str(label).lower()
    number = number_of(label)
    return str(label).strip() if number is None else number


MISSING_TEXTS = frozenset(["nan", "NaN", "<NA>", "#N/A"])
"""What pandas and spreadsheets write for an empty cell; ``None``, ``NA`` and ``null`` may be the name of a class."""
_TRUTHS = {"true": True, "false": False, "yes": True, "no": False, "y": True, "n": False}


def read_truth(cell: Any) -> bool | None:
    """Return True for a cell that is 1, true, yes or y, False for 0, false, no or n, None for any other cell.

    Such cells fill the columns of data files in which each label has a column of its own.
    """
    if isinstance(cell, str) and (word := cell.strip().lower()) in _TRUTHS:
        return _TRUTHS[word]
    number = int(cell) if isinstance(cell, bool) else number_of(cell)
    return bool(number) if number in (0, 1) else None


_SCORE = re.compile(r"([+-]?\d[\d.,]*)[ \u00a0]*(%?)", re.ASCII)
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?", re.ASCII)
_DECIMAL_COMMA = re.compile(r"[+-]?(\d+|\d{1,3}(\.\d{3})+),\d+", re.ASCII)


def read_written_number(cell: Any) -> tuple[float | None, float | None]:
    """Read a number as spreadsheets write it: ``85%`` is 0.85, ``1,234.5`` has commas of thousands, ``0,85`` a decimal comma.

    Returns:
        The number if commas part thousands, and the number if the comma is the decimal sign; None where it is no number.
        Only the other rows of a file show which of the two ``1,234`` is.
    """
    match = _SCORE.fullmatch(cell.strip()) if isinstance(cell, str) and len(cell) <= _MOST_DIGITS else None
    if match is None:
        return None, None
    digits, share = match[1], 0.01 if match[2] else 1.0
    is_plain = bool(_NUMERAL.fullmatch(digits))
    thousands = digits.replace(",", "") if is_plain or _THOUSANDS.fullmatch(digits) else None
    decimal = digits if is_plain else None
    if _DECIMAL_COMMA.fullmatch(digits):
        decimal = digits.replace(".", "").replace(",", ".")
    if thousands is not None and digits.lstrip("+-").startswith("0,"):
        thousands = None
    # 85% is 0.85, and not 0.8500000000000001
    return tuple(None if d is None else round(float(d) * share, 12) for d in (thousands, decimal))  # type: ignore[return-value]


_ROUNDING = 0.05
"""What the sum of rounded probabilities may differ from 1."""


def are_probabilities(cell: Any) -> bool:
    """Return whether a cell gives each of several labels a probability, about 1 in all: {name: p}, or a list with a fraction in it."""
    values = cell.values() if isinstance(cell, dict) else cell if isinstance(cell, list | tuple) else ()
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool) and 0 <= v <= 1]
    is_rounded = len(numbers) == len(values) > 1 and abs(sum(numbers) - 1) <= _ROUNDING
    return is_rounded and (isinstance(cell, dict) or any(isinstance(v, float) for v in numbers))


_LABEL_KEYS, _SCORE_KEYS = ("label", "name", "class", "intent"), ("score", "confidence", "probability", "prob")
"""What programs call a label and its probability, in lower case."""


def merge_scored_labels(cell: Any) -> dict[str, float] | None:
    """Return {label: probability} of a cell in the form of transformers' pipelines; None for cells of other forms.

    Such a cell is an object ``{"label": "good", "score": 0.9}``, or a list of them with different labels; other programs call the
    two ``name`` and ``confidence``. Scores lie between 0 and 1. Whole numbers count too, since JavaScript writes 1.0 as 1; the
    caller sees by fractions in other cells that they are no ratings.
    """
    entries = cell[0] if isinstance(cell, list) and len(cell) == 1 and isinstance(cell[0], list) else cell
    entries = [entries] if isinstance(entries, dict) else entries
    merged = dict[str, float]()
    for entry in entries if isinstance(entries, list) else ():
        cells = {str(key).lower(): value for key, value in entry.items()} if isinstance(entry, dict) else {}
        name, score = (next((cells[k] for k in keys if k in cells), None) for keys in (_LABEL_KEYS, _SCORE_KEYS))
        if not isinstance(name, str) or name in merged or len(cells) > 2:
            return None
        if isinstance(score, bool) or not isinstance(score, int | float) or not 0 <= score <= 1:
            return None
        merged[name] = score
    return merged or None


_LONGEST_LIST = 1 << 20
_ARRAY = re.compile(r"\[\s*(?:(?:'[^']*'|\"[^\"]*\")\s*)+\]")
"""A list as numpy prints it, without commas."""
_ARRAY_CALL = re.compile(r"\barray\((\[[^()]*\])(?:,\s*dtype=[\w.<>'\"]+)?\)")
"""An array inside an object, as pandas prints it."""


def parse_list(cell: Any) -> Any:
    """Return the list that a text spells in JSON, or as Python or numpy print it; return any other cell unchanged.

    Tables that pandas wrote hold lists of words, tags and labels as such texts.
    """
    value = parse_literal(cell) if isinstance(cell, str) and cell[:1] == "[" else cell
    return value if isinstance(value, list) else cell


def parse_literal(cell: Any) -> Any:
    """Return the list or object that a text spells in JSON, or as Python or numpy print it; return any other cell unchanged.

    Only values without code are read, of texts of at most 2²⁰ characters.
    """
    text = cell.strip() if isinstance(cell, str) else ""
    if (text[:1], text[-1:]) not in (("[", "]"), ("{", "}")) or len(text) > _LONGEST_LIST:
        return cell
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        if _ARRAY.fullmatch(text):
            return [word[1:-1] for word in re.findall(r"'[^']*'|\"[^\"]*\"", text)]
        try:
            value = ast.literal_eval(_ARRAY_CALL.sub(r"\1", text))
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            return cell
    return value if isinstance(value, list | dict) else cell


_PLACE = re.compile(r"start|begin|offset|point|end|score|prob|confidence", re.IGNORECASE)
_NAME_KEYS = ("choices", "labels", "name", "label", "displayName", "value")
"""What programs call the name, or the names, in an object that stands for a label."""


def unwrap_label(cell: Any) -> Any:
    """Return the name in an object such as ``{"id": 3, "name": "sport"}``, the names in a list of them; other cells unchanged.

    Objects with a text, a place (such as ``start``), a score or probabilities are unchanged too: they are spans or a model's answers.
    """
    if (
        isinstance(cell, list)
        and cell
        and all(isinstance(v, dict) and not any(map(_PLACE.match, map(str, v))) for v in cell)
    ):
        names = [unwrap_label(value) for value in cell]
        return names if all(isinstance(name, str | int) for name in names) else cell
    if not isinstance(cell, dict) or "text" in cell or any(map(_PLACE.match, map(str, cell))):
        return cell
    for key in _NAME_KEYS if not are_probabilities(cell) else ():
        value = cell.get(key)
        if isinstance(value, str) or (type(value) is int) or (key == _NAME_KEYS[0] and isinstance(value, list)):
            return value
    return cell


def find_word_places(text: Any, tags: Any) -> tuple[Any, list[tuple[int, int]] | None]:
    """Return the text of a tagged row, and the (start, end) characters of each word; None if they are unknown.

    A list of words is joined with blanks. In a running text the pieces between blanks are the words, if there are as
    many pieces as tags; else the positions are unknown.
    """
    if isinstance(text, list | tuple) and all(isinstance(word, str) and word.strip() for word in text):
        places, start = [], 0
        for word in text:
            places.append((start, start + len(word)))
            start += len(word) + 1
        return " ".join(text), places
    if not isinstance(text, str):
        return text, None
    places = [match.span() for match in re.finditer(r"\S+", text)]
    tags = split_tags(tags) or tags.split() if isinstance(tags, str) else tags
    return text, places if isinstance(tags, list | tuple) and len(tags) == len(places) else None


def is_visible(text: str) -> bool:
    """Return whether a text has a character that can be seen: other than blanks, control characters and characters without a shape."""
    return any(unicodedata.category(c) not in _INVISIBLE_CATEGORIES and not _INVISIBLE.match(c) for c in text)


def find_name_problems(names: Sequence[str]) -> list[str]:
    """Return what is wrong with a list of label names: empty names, and names that are equal or look equal.

    Names that are numbers, such as "1" and "1.0", are equal if they are the same number.

    Returns:
        Phrases for users, at most ten; empty if nothing is wrong.
    """
    problems: list[str] = []
    first: dict[object, str] = {}
    for name in names:
        if not is_visible(name):
            problems.append(f"the label {shorten_repr(name)} is empty")
            continue
        number = number_of(name)
        key: object = _as_seen(name) if number is None else number
        if key not in first:
            first[key] = name
        elif first[key] == name:
            problems.append(f"the label {shorten_repr(name)} occurs twice")
        else:
            how = "differ only in what cannot be seen" if number is None else "are the same number"
            problems.append(f"the labels {shorten_repr(first[key])} and {shorten_repr(name)} {how}")
    return problems[:10]


def _as_seen(name: str) -> str:
    """Return a name as it looks: in Unicode's composed form, without invisible characters and outer blanks."""
    visible = "".join(c for c in name if c.isspace() or is_visible(c))
    return unicodedata.normalize("NFC", " ".join(visible.split()))


# --- cells of tags ---


def have_marks(cell: Any) -> bool | None:
    """Return whether a row's tags contain ``O`` or prefixes such as ``B-``; None if the cell holds no tags."""
    tags = parse_list(cell)
    tags = split_tags(tags) or tags.split() if isinstance(tags, str) else tags
    if not isinstance(tags, list | tuple) or not tags or not all(isinstance(tag, str) for tag in tags):
        return None
    normal = normalize_tags(tags)
    return OUTSIDE in normal or have_iob_prefixes(normal)


_TAG = re.compile(r"O|[BIESLUMW][-_]\S+")


def split_tags(cell: str) -> list[str] | None:
    """Split a text such as ``B-PER O O`` or ``B-PER,O,O`` into the tags of words; None if a part is neither ``O`` nor a tag with a prefix."""
    parts = cell.split()
    if "," in cell and all(part.endswith(",") for part in parts[:-1]):
        parts = [part.strip() for part in cell.split(",")]
    return parts if parts and all(map(_TAG.fullmatch, parts)) else None
