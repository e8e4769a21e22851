"""Values of labels, read in one way from every kind of file: numbers, names, and spans with their tags.

- `number_of` reads a label that is a number, `read_truth` one that is true or false, `normalize_name` returns any label as labels are compared,
  `are_probabilities` finds cells with a probability for each label, `merge_scored_labels` reads those that pipelines write, `parse_list` reads
  a list that a table holds as text, `find_word_places` the words of a tagged text, `is_visible` refuses blank names, `find_name_problems`
  checks a list of names.
- `Span` is a labelled piece of a text. `iob2_tags` makes the IOB2 tags of a label set; `assign_tags` turns spans into
  tags for training and `spans_from_tags` turns tags back into spans.
- `count_spans` compares predicted spans with the right ones, for F1, precision and recall.
"""

from __future__ import annotations

import ast
import json
import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

from pocketbert.core.errors import shorten_repr

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

    True and false are names, and so is a text with more than 40 digits.
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
    """Return True for a cell that is 1, true or yes, False for 0, false or no, None for any other cell.

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
    """Return whether a cell gives each label a probability, about 1 in all: {name: p}, or a list of fractions."""
    values = cell.values() if isinstance(cell, dict) else cell if isinstance(cell, list | tuple) else ()
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool) and 0 <= v <= 1]
    is_rounded = len(numbers) == len(values) > 1 and abs(sum(numbers) - 1) <= _ROUNDING
    return is_rounded and (isinstance(cell, dict) or any(isinstance(v, float) for v in numbers))


_LABEL_KEYS, _SCORE_KEYS = ("label", "name", "class", "intent"), ("score", "confidence", "probability", "prob")
"""What programs call a label and its probability, in lower case."""


def merge_scored_labels(cell: Any) -> dict[str, float] | None:
    """Return {label: probability} of a cell in the form of transformers' pipelines; None for cells of other forms.

    Such a cell is an object ``{"label": "good", "score": 0.9}``, or a list of them with different labels; other programs call the
    two ``name`` and ``confidence``. Whole numbers count too, since JavaScript writes 1.0 as 1; that other cells of the column have
    fractions shows that they are no ratings.
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

    Only values without code are read, of texts of at most a megabyte.
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

    Objects with a score or confidence are unchanged too: a model wrote them.
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
    """Return whether a text has a visible character: no blank, no control character, none without width."""
    return any(unicodedata.category(c) not in _INVISIBLE_CATEGORIES and not _INVISIBLE.match(c) for c in text)


def find_name_problems(names: Sequence[str]) -> list[str]:
    """List the problems of a list of label names: empty names, and names that are equal or look equal.

    Names that are numbers, such as "1" and "1.0", are equal if they are the same number.

    Returns:
        One sentence each, at most ten.
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


# --- spans and tags ---

OUTSIDE = "O"
_BEGIN, _INSIDE = ("B-", "S-"), ("I-", "E-")


@dataclass(frozen=True, order=True, slots=True)
class Span:
    """A labelled piece of a text.

    Attributes:
        start: Index of the first character, in code points.
        end: Index of the character after the last one.
        label: Label of the piece.
    """

    start: int
    end: int
    label: str


def iob2_tags(labels: Sequence[str]) -> tuple[str, ...]:
    """Return the IOB2 tags of a label set: ``O``, and ``B-x`` and ``I-x`` for each label. Tags stay as they are."""
    if OUTSIDE in labels or have_iob_prefixes(labels):
        return tuple(labels)
    return (OUTSIDE, *(f"{prefix}-{name}" for name in labels for prefix in "BI"))


def have_iob_prefixes(tags: Iterable[str]) -> bool:
    """Return whether any tag has a prefix such as ``B-`` that marks where spans begin.

    In a tag set without prefixes, such as parts of speech, each word is a span.
    """
    return any(tag.startswith((*_BEGIN, *_INSIDE)) for tag in tags)


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
    """Split a text such as ``B-PER O O`` or ``B-PER,O,O`` into the tags of words; None if its parts are no tags with prefixes."""
    parts = cell.split()
    if "," in cell and all(part.endswith(",") for part in parts[:-1]):
        parts = [part.strip() for part in cell.split(",")]
    return parts if parts and all(map(_TAG.fullmatch, parts)) else None


_OTHER_PREFIXES = {"L": "E", "U": "S", "M": "I", "W": "S"}
"""The letters of BILOU and BMEWO for those of IOBES."""
_PREFIXED = re.compile(r"([BIESLUMW])[-_](.+)")


def normalize_tags(tags: Sequence[str]) -> list[str]:
    """Convert the tags of a text from any usual scheme to IOBES, in which each span has a beginning.

    In IOB1, the scheme of CoNLL-2003, a span begins with ``I-`` unless a span of the same label ends right before it.
    The letters of BILOU and BMEWO, and prefixes that end in ``_``, are converted; tags without a prefix are returned as
    they are.
    """
    normal: list[str] = []
    open_label: str | None = None
    for tag in tags:
        match = _PREFIXED.fullmatch(tag)
        if match is None:
            open_label = None
            normal.append(OUTSIDE if tag in ("_", "-", "") else tag)
            continue
        letter, label = _OTHER_PREFIXES.get(match[1], match[1]), match[2]
        if letter in "IE" and label != open_label:
            letter = "B" if letter == "I" else "S"
        open_label = label if letter in "BI" else None
        normal.append(f"{letter}-{label}")
    return normal


def label_of_tag(tag: str) -> str | None:
    """Return the label of a tag (``PER`` for ``B-PER``); None for ``O``."""
    if tag == OUTSIDE:
        return None
    return tag[2:] if tag.startswith((*_BEGIN, *_INSIDE)) else tag


def spans_from_tags(tags: Sequence[str], places: Sequence[tuple[int, int]], single: bool = False) -> list[Span]:
    """Convert a row of tags to labelled spans, reading IOB2 strictly (seqeval ``mode="strict"``).

    A span is a ``B-`` (or ``S-``) tag and the ``I-`` (or ``E-``) tags of the same label after it; an ``I-`` that no
    ``B-`` begins is ignored. Of tags without a prefix, each run of equal labels is a span; with `single`, each word.

    Args:
        tags: N tags.
        places: The (start, end) characters of each tagged word in the text, N of them.
        single: Whether each word with a label is a span of its own, because the tag set has no prefixes
            (`have_iob_prefixes`).
    """
    if single:
        words = zip(tags, places, strict=True)
        return [Span(start, end, tag) for tag, (start, end) in words if tag != OUTSIDE and start < end]
    spans: list[Span] = []
    open_label: str | None = None
    for tag, (start, end) in zip(tags, places, strict=True):
        label, begins = label_of_tag(tag), tag.startswith(_BEGIN)
        if label is not None and label == open_label and not begins:
            spans[-1] = Span(spans[-1].start, end, label)
            continue
        open_label = None
        if label is not None and (begins or not tag.startswith(_INSIDE)):
            spans.append(Span(start, end, label))
            open_label = label
    return spans


def join_equal_spans(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Join neighbouring spans of the same label into one; used for rows in which every word is a span."""
    groups = (list(group) for _, group in groupby(spans, key=lambda span: span.label))
    return tuple(Span(group[0].start, group[-1].end, group[0].label) for group in groups)


def split_spans_by_word(spans: Iterable[Span], places: Sequence[tuple[int, int]], text: str) -> list[Span]:
    """Split spans into one span for each word, as tag sets without prefixes such as ``B-`` need it.

    Args:
        spans: Spans of the text, none inside another.
        places: The (start, end) characters of each word in the text, N of them. The text may extend beyond them if its tokens
            were cut off; there, pieces between blanks count as words.
        text: The text.
    """
    ordered = sorted(spans)
    starts = [span.start for span in ordered]
    begin, end = min((a for a, _ in places), default=0), max((b for _, b in places), default=0)
    pieces = (
        (span.start + match.start(), span.start + match.end())
        for span in ordered
        for match in re.finditer(r"\S+", text[span.start : span.end])
    )
    words = [*places, *((a, b) for a, b in pieces if b <= begin or a >= end)]
    result = []
    for a, b in words:
        i = bisect_right(starts, a) - 1
        if i >= 0 and a < ordered[i].end and a < b:
            result.append(Span(a, b, ordered[i].label))
    return sorted(result)


def assign_tags(
    spans: Iterable[Span], places: Sequence[tuple[int, int]], tags: Sequence[str], unmarked: int
) -> list[int]:
    """Return the tag id of each word, from the span that contains the word's first character.

    Args:
        spans: Spans of the text, none inside another.
        places: The (start, end) characters of each word in the text, N of them.
        tags: Tags in order of their ids, with ``B-`` and ``I-`` or without.
        unmarked: Value for a word outside all spans, used if the tag set has no ``O``, as parts of speech have none.

    Returns:
        The tag id of each of the N words.
    """
    id_of = {tag: i for i, tag in enumerate(tags)}
    ids = [id_of.get(OUTSIDE, unmarked)] * len(places)
    starts = [start for start, _ in places]
    is_ordered = all(a <= b for a, b in pairwise(starts))
    for span in spans:
        first = True
        # the words of a span are found by bisection if the words are in order, which they are for most tokenizers
        near = (
            range(bisect_left(starts, span.start), bisect_left(starts, span.end)) if is_ordered else range(len(places))
        )
        for i in near:
            start, end = places[i]
            if span.start <= start < span.end and end > start:
                prefixed = f"{'B' if first else 'I'}-{span.label}"
                ids[i] = id_of[prefixed if prefixed in id_of else span.label]
                first = False
    return ids


@dataclass(frozen=True)
class _SpanCounts:
    """Counts of predicted and gold spans, for the F1 of spans.

    Attributes:
        right: Predicted spans whose ends and label are all right.
        found: Predicted spans.
        gold: Spans that should have been predicted.
    """

    right: int
    found: int
    gold: int

    @property
    def f1(self) -> float:
        """Micro F1; 0 if there are neither predicted nor gold spans."""
        return 2 * self.right / (self.found + self.gold) if self.found + self.gold else 0.0

    @property
    def precision(self) -> float:
        """Share of the predicted spans that are right."""
        return self.right / self.found if self.found else 0.0

    @property
    def recall(self) -> float:
        """Share of the gold spans that were predicted."""
        return self.right / self.gold if self.gold else 0.0


def count_spans(gold: Sequence[Iterable[Span]], predicted: Sequence[Iterable[Span]]) -> _SpanCounts:
    """Count over all texts the predicted spans, the gold spans, and the predicted spans that are right.

    A span is right if both ends and the label are those of a gold span.
    """
    pairs = [(set(g), set(p)) for g, p in zip(gold, predicted, strict=True)]
    return _SpanCounts(sum(len(g & p) for g, p in pairs), sum(len(p) for _, p in pairs), sum(len(g) for g, _ in pairs))
