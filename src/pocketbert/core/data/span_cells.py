"""Cells that hold labelled spans of a text, in the forms that annotation programs and data sets write.

`list_spans` recognizes such a cell by its form, `read_spans` reads it against the text of its row: objects {start, end, label} under the
names of many programs, spans that are named by their text only, and one tag for each word.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

from pocketbert.core.data.cells import have_marks, split_tags
from pocketbert.core.data.column_names import plain_name
from pocketbert.core.errors import shorten_repr
from pocketbert.core.predict.spans import OUTSIDE, Span, label_of_tag, normalize_tags, spans_from_tags

_KEYS = (
    ("start", "startoffset", "begin", "beginoffset", "startchar", "startindex", "startidx", "offsetstart"),
    ("end", "endoffset", "stop", "endchar", "endindex", "endidx", "offsetend"),
    ("label", "labels", "entity", "entitygroup", "entitytype", "tag", "type", "enttype", "displayname", "category"),
    ("text", "word", "mention", "surface"),
)
"""What programs call the start, the end, the label and the text of a span, as `plain_name` writes them."""
_NO_LABELS = frozenset(["text", "label", "labels", "choices", "start", "end", "answerstart", "null", "endings"])
"""Keys of objects whose keys are not the labels of spans."""
_MOST_MENTIONS = 1000


def list_spans(cell: Any) -> list[Any] | None:
    """Return the spans in a cell, each an object or a list such as [start, end, label]; None if the cell has another form.

    An object may list the texts of the spans by label: ``{"PER": ["Ann"]}``, or ``{"PER": {"Ann": [[0, 2]]}}`` as CLUENER does.
    """
    if isinstance(cell, Mapping) and cell and not _NO_LABELS & {plain_name(str(key)) for key in cell}:
        texts = [
            {"label": str(label), "text": text}
            for label, named in cell.items()
            if isinstance(named, list | Mapping)
            for text in named
        ]
        is_listed = all(isinstance(named, list | Mapping) and named for named in cell.values())
        is_placed = all(
            isinstance(p, list) for named in cell.values() if isinstance(named, Mapping) for p in named.values()
        )
        return texts if is_listed and is_placed and all(isinstance(entry["text"], str) for entry in texts) else None
    if isinstance(cell, list | tuple) and all(map(_is_span, cell)):
        return list(cell)
    return None


def _is_span(entry: Any) -> bool:
    """Return whether an entry of a cell is a span: an object, or a list such as [start, end, label]."""
    return isinstance(entry, dict) or _name_cells(entry) is not None


def _name_cells(entry: Any) -> dict[str, Any] | None:
    """Return the cells of a list [start, end, label], [label, start, end] or one of these and the text, by name; else None."""
    if not isinstance(entry, list | tuple) or len(entry) not in (3, 4):
        return None
    are_places = [type(_to_place(v)) is int for v in entry[:3]]
    if are_places == [True, True, False] and isinstance(entry[2], str):
        return dict(zip(("start", "end", "label", "text"), entry, strict=False))
    if are_places == [False, True, True] and isinstance(entry[0], str):
        return dict(zip(("label", "start", "end", "text"), entry, strict=False))
    return None


def read_spans(
    cell: Any, text: str, words: Sequence[tuple[int, int]] | None, is_listed: bool = False
) -> tuple[Span, ...]:
    """Read a cell as labelled spans of a text: objects {start, end, label}, texts of spans by label, or one tag for each word.

    Args:
        cell: The cell of the label.
        text: The text of the row.
        words: The (start, end) characters of each word, if they are known.
        is_listed: Whether the text is a list of words in the file, in which places may count words or characters.

    Raises:
        ValueError: If the cell holds no spans of this text; the message is for users.
    """
    if isinstance(cell, list | tuple) and not cell and words is None:  # a running text without spans
        return ()
    if isinstance(cell, str):
        cell = split_tags(cell) or cell.split()
    spans = list_spans(cell)
    if spans and is_listed:
        raise ValueError(
            "places in a list of words may count words or characters: give one tag for each word (B-, I-, O), or the "
            "text as it stands with places of characters."
        )
    if spans:
        return _without_overlaps([span for entry in spans for span in _read_entry(entry, text)])
    if not isinstance(cell, list | tuple):
        raise ValueError(f"tags are {type(cell).__name__} {str(cell)[:40]!r}, not a list.")
    if not all(isinstance(v, str) for v in cell):
        raise ValueError(
            "tags are neither names nor {start, end, label}; numbers need names: save the data set with them."
        )
    if words is None:
        raise ValueError("tags need a text that is a list of words; a running text needs {start, end, label}.")
    if len(cell) != len(words):
        raise ValueError(
            f"the numbers of tags ({len(cell)}) and of words ({len(words)}) differ; give one tag per word."
        )
    if {"B", "I"} & {*cell} and {*cell} <= {"B", "I", OUTSIDE}:
        raise ValueError("tags are B, I and O without a label: write B-NAME and I-NAME.")
    # parts of speech: every word has a tag, and equal neighbours are words of their own
    return tuple(spans_from_tags(normalize_tags([*cell]), words, single=not have_marks(cell)))


def _without_overlaps(found: Sequence[tuple[Span, bool]]) -> tuple[Span, ...]:
    """Return spans in order; of those that were looked up by their text, the ones that overlap a placed or longer span are left out.

    Raises:
        ValueError: If spans whose places the file gives overlap.
    """
    spans = sorted({span for span, is_placed in found if is_placed})
    for one, other in pairwise(spans):
        if other.start < one.end:  # a word has one tag: the second would silently overwrite the first
            raise ValueError(f"spans overlap: {asdict(one)} and {asdict(other)}.")
    for span, _ in sorted(found, key=lambda entry: entry[0].start - entry[0].end):  # long ones first
        if all(span.end <= other.start or other.end <= span.start for other in spans):
            spans.append(span)
    return tuple(sorted(spans))


def _read_entry(entry: Any, text: str) -> Iterator[tuple[Span, bool]]:
    """Yield the spans of one entry (an object or a list), each with whether the entry gives its place; raise ValueError for other entries."""
    if not isinstance(entry, dict):
        cells = _name_cells(entry) or {}
    elif isinstance(entry.get("points"), list):  # Dataturks
        for point in entry["points"]:
            yield from _read_entry({**point, "label": entry.get("label")} if isinstance(point, dict) else {}, text)
        return
    else:
        cells = {plain_name(str(key)): value for key, value in entry.items()}
    start, end, label, surface = (next((cells[key] for key in keys if key in cells), None) for keys in _KEYS)
    start, end = _to_place(start), _to_place(end)
    label = label[0] if isinstance(label, list) and len(label) == 1 else label
    has_label = isinstance(label, str) and bool(label)
    if has_label and (str(label) == OUTSIDE or label_of_tag(str(label)) != label):
        raise ValueError(f"label {shorten_repr(label)} reads like a tag (O, B-, I-, S-, E-): rename it.")
    if has_label and start is None and end is None and isinstance(surface, str) and surface.strip():
        yield from ((Span(a, b, str(label)), False) for a, b in _find_mentions(surface.strip(), text))
        return
    is_placed = type(start) is int and type(end) is int and has_label
    if is_placed and isinstance(surface, str):
        start, end = _fit_places(start, end, surface, text)
    if not is_placed or not 0 <= start < end <= len(text):
        raise ValueError(
            f"span {shorten_repr(entry)} is not {{start, end, label}} within the {len(text)} characters of the text."
        )
    yield Span(start, end, str(label)), True


def _to_place(value: Any) -> Any:
    """Return a place as a whole number, which some files write as text or with a fraction of 0; other values unchanged."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 16:
        return int(value)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _find_mentions(surface: str, text: str) -> list[tuple[int, int]]:
    """Return the places where a span's text stands in a text as whole words, or if there are none, anywhere.

    Raises:
        ValueError: If the text does not occur, or too often; the message is for users.
    """
    before, after = (r"(?<!\w)" if surface[0].isalnum() else ""), (r"(?!\w)" if surface[-1].isalnum() else "")
    found = [match.span() for match in re.finditer(f"{before}{re.escape(surface)}{after}", text)]
    found = found or [match.span() for match in re.finditer(re.escape(surface), text)]  # scripts without blanks
    if not found or len(found) > _MOST_MENTIONS:
        how = f"{len(found):,} times in the text: give start and end" if found else "not in the text"
        raise ValueError(f"span text {shorten_repr(surface)} is {how}.")
    return found


def _fit_places(start: int, end: int, surface: str, text: str) -> tuple[int, int]:
    """Return the places of a span that its own text confirms: as they stand, with the last character, or in other units.

    Case and signs are not compared. Programs in JavaScript and Java count UTF-16 units, in which an emoji is two; some services count bytes of UTF-8.

    Raises:
        ValueError: If the text of the span is at none of these places; the message is for users.
    """
    wanted = _letters(surface)
    for a, b in ((start, end), (start, end + 1), *_other_units(start, end, text)):
        if 0 <= a < b <= len(text) and _letters(text[a:b]) == wanted and text[a:b].strip():
            return a, b
    shown = shorten_repr(text[max(start, 0) : max(end, 0)])
    raise ValueError(
        f"span {start} to {end} is {shown} in the text, not {shorten_repr(surface)}; places count characters from 0, the end is "
        "behind the last one."
    )


def _letters(text: str) -> str:
    """Return a text without case and signs, or as it is if it has signs only."""
    return "".join(c for c in text.casefold() if c.isalnum()) or text.strip()


def _other_units(start: int, end: int, text: str) -> Iterator[tuple[int, int]]:
    """Yield the places as characters if they count UTF-16 units, or bytes of UTF-8."""
    if text.isascii():
        return
    for encoding, width in (("utf-16-le", 2), ("utf-8", 1)):
        raw = text.encode(encoding, errors="surrogatepass")
        a, b = (len(raw[: max(place, 0) * width].decode(encoding, errors="ignore")) for place in (start, end))
        yield a, b
