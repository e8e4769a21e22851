"""Which column of a data file is the text and which one the label, where nobody named them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pocketbert.core.data.cells import is_visible, number_of
from pocketbert.core.data.files import class_names, read_rows, table_form
from pocketbert.core.data.source import DataSource
from pocketbert.core.data.tables import (
    ANSWERS,
    LABELS,
    PAIRS,
    QUESTION_PAIRS,
    TEXTS,
    BadRows,
    TableForm,
    is_numbered_column,
    plain_name,
)
from pocketbert.core.errors import InputError, Problem, listed, shown
from pocketbert.core.host.progress import say
from pocketbert.core.tasks import LabelKind

# --- profile ---
# What the columns of a data file hold: the counts that tell texts, label names, numbers and tags apart.


MOST_ROWS = 20_000
"""Rows that are looked at: many files are sorted by label, so the first hundred may hold one label only."""
_MOST_CHARACTERS = 1 << 26
"""Characters after which no further row is looked at."""


@dataclass
class Column:
    """Counts over the cells of one column; empty cells are left out.

    Attributes:
        name: Its name.
        cells: Cells that are not empty.
        texts: Cells that are text and no number.
        numbers: Cells that are a number, written as one or as text.
        fractions: Numbers that are not whole.
        lists: Cells that are lists.
        spans: Lists whose entries are objects.
        words: Words in all texts.
        letters: Letters in all texts.
        characters: Characters in all texts.
        parted: Texts with a semicolon inside.
        values: The different cells, as text.
        parts: The different entries of lists, and the parts of texts between semicolons.
        lengths: Entries of each list, or words of each text, by row.
    """

    name: str
    cells: int = 0
    texts: int = 0
    numbers: int = 0
    fractions: int = 0
    lists: int = 0
    spans: int = 0
    words: int = 0
    letters: int = 0
    characters: int = 0
    parted: int = 0
    values: set[str] = field(default_factory=set)
    parts: set[str] = field(default_factory=set)
    lengths: dict[int, int] = field(default_factory=dict)

    def add(self, row: int, cell: Any) -> None:
        """Count one cell."""
        if cell is None or (isinstance(cell, str) and not is_visible(cell)):
            return
        self.cells += 1
        if isinstance(cell, list | tuple):
            self.lists += 1
            self.spans += bool(cell) and all(isinstance(entry, dict) for entry in cell)
            self.parts.update(str(entry) for entry in cell)
            self.lengths[row] = len(cell)
            return
        self.values.add(str(cell))
        number = number_of(cell)
        if number is not None:
            self.numbers += 1
            self.fractions += isinstance(number, float)
        elif isinstance(cell, str):
            self._add_text(row, cell)

    def _add_text(self, row: int, cell: str) -> None:
        words = cell.split()
        self.texts += 1
        self.words += len(words)
        self.letters += sum(character.isalpha() for character in cell)
        self.characters += len(cell)
        self.parted += ";" in cell
        self.parts.update(part.strip() for part in cell.split(";"))
        self.lengths[row] = len(words)

    @property
    def mean_words(self) -> float:
        """Words of a text."""
        return self.words / max(self.texts, 1)

    @property
    def mean_characters(self) -> float:
        """Characters of a text."""
        return self.characters / max(self.texts, 1)

    @property
    def is_text(self) -> bool:
        """Whether most cells are text."""
        return self.texts * 2 > self.cells

    @property
    def is_words(self) -> bool:
        """Whether every cell is a list of words."""
        return 0 < self.cells == self.lists and not self.spans

    @property
    def is_numbers(self) -> bool:
        """Whether every cell is a number."""
        return 0 < self.cells == self.numbers

    @property
    def is_prose(self) -> bool:
        """Whether it reads like texts: mostly letters, several words or many characters, and mostly different."""
        long = self.mean_words >= 2.5 or self.mean_characters >= 15
        lettered = self.letters * 2 > self.characters
        return self.is_different and long and lettered

    @property
    def is_different(self) -> bool:
        """Whether most cells are text, and mostly different."""
        return self.is_text and len(self.values) * 2 > self.cells

    @property
    def repeats(self) -> bool:
        """Whether its values come back, as label names do: at least two values, each twice on the average."""
        return 2 <= len(self.values) <= self.cells // 2


def profile(rows: Iterable[tuple[int, Mapping[str, Any]]]) -> tuple[dict[str, Column], int]:
    """Count the cells of each column over the first rows of a file.

    Args:
        rows: Rows with their numbers, see `read_rows`.

    Returns:
        The columns by name in the order of the file, and how many rows were looked at.
    """
    columns: dict[str, Column] = {}
    count = 0
    for number, row in rows:
        count += 1
        for name, cell in row.items():
            columns.setdefault(name, Column(name)).add(number, cell)
        if count >= MOST_ROWS or sum(c.characters for c in columns.values()) > _MOST_CHARACTERS:
            break
    return columns, count


_MOST_CLASSES = 50
"""Whole numbers with more values are classes only if they count on from 0."""
_FEWEST_SCORES = 10
"""Numbers with fractions and fewer values may be classes."""


@dataclass(frozen=True)
class Columns:
    """The columns that are read, and why.

    Attributes:
        source: The source with its columns named.
        kind: What the label column holds; None where it could be several things.
        note: One sentence for people, such as ``text: column 'sentence', label: column 'intent' (77 names)``.
    """

    source: DataSource
    kind: LabelKind | None
    note: str


def guess_columns(source: DataSource, kind: LabelKind | None = None, fix: str = "") -> Columns:
    """Find the columns of a data file: by their usual names, else by what they hold.

    A column that `source` names itself is kept, whatever the file holds. A second text is taken only if two columns
    have names that are usual for a pair, or if a file without a header has just two columns of texts. Data sets of the Hub
    are returned as they are.

    Args:
        source: The file; its fields `text`, `text_pair` and `label` count as given where they were set.
        kind: What the label has to be, where the task is known.
        fix: What to do when the columns cannot be told apart; default naming the options of the command line.

    Raises:
        InputError: If the file cannot be read, or naming its columns if several could be meant or none.
        MissingBackendError: If the library for its kind of file is not installed.
    """
    if source.path is None:
        return Columns(source, kind, "")
    form = table_form(source)
    if form is not None and not form.header:
        source = source.model_copy(update={"header": False})
    bad = BadRows(source.title)
    columns, rows = profile(read_rows(source, bad))
    if not columns:
        raise InputError(bad.close() or Problem(source.title, "no rows."))
    choice = _Choice(source, columns, kind, fix)
    text, pair = choice.texts()
    label = choice.label(text, pair)
    found = source.model_copy(update={"text": text, "text_pair": pair, **({"label": label} if label else {})})
    names = class_names(found) if label else None
    plain = plain_name(text), plain_name(pair or "")
    if kind is None and plain in QUESTION_PAIRS and plain_name(label or "") in ANSWERS:
        kind = LabelKind.ANSWERS
    kind = kind or (LabelKind.NAME if names else _kind_of(columns.get(label or ""), columns.get(text)))
    what = None
    if label:
        cells = columns.get(label)
        what = f"{len(names)} names" if names else _holds(cells, kind, rows) if cells else "not in the first rows"
    return Columns(found, kind, _note(form, text, pair, label, what))


def _note(form: TableForm | None, text: str, pair: str | None, label: str | None, what: str | None) -> str:
    """Write the sentence that names the columns; where the file has no header, their numbers."""
    if form is None or form.header:
        parts = [f"text: column '{text}'", *([f"second text: column '{pair}'"] if pair else [])]
        parts += [f"label: column '{label}' ({what})"] if label else []
        doubt = "" if form is None or form.sure else "; --no-header, if these names are a row of data"
        return ", ".join(parts) + doubt
    parts = [f"{text} is the text", *([f"{pair} the second text"] if pair else [])]
    parts += [f"{label} the label ({what})"] if label else []
    return f"no header: {', '.join(parts)}" + ("" if form.sure else "; --header, if the first row names the columns")


class _Choice:
    """The choice among the columns of one file."""

    def __init__(self, source: DataSource, columns: Mapping[str, Column], kind: LabelKind | None, fix: str) -> None:
        self._source, self._columns, self._kind = source, columns, kind
        self._given = {k: getattr(source, k) for k in ("text", "text_pair", "label") if k in source.model_fields_set}
        self._plain = {name: plain_name(name) for name in columns}
        self._numbered = all(map(is_numbered_column, columns))
        self._fix = fix

    def texts(self) -> tuple[str, str | None]:
        """The column of the text, and that of the second text if there is one."""
        pair = self._given.get("text_pair")
        if "text" in self._given:
            return self._given["text"], pair
        free = [c for c in self._columns.values() if c.name not in self._given.values() and self._can_be_text(c)]
        pairs: tuple[tuple[str, str], ...] = ()
        if pair is None and "text_pair" not in self._given and self._kind not in (LabelKind.SPANS, LabelKind.NONE):
            pairs = QUESTION_PAIRS if self._kind is LabelKind.ANSWERS else PAIRS
        if pairs:
            found = [(a, b) for a, b in pairs if {a, b} <= {self._plain[c.name] for c in free}]
            if found:
                by_plain = {self._plain[c.name]: c.name for c in free}
                return by_plain[found[0][0]], by_plain[found[0][1]]
        known = self._known(TEXTS, free, "--text", "texts")
        if known:
            return known, pair
        prose = [c for c in free if c.is_prose or c.is_words] or [c for c in free if c.is_different]
        longest = max(prose, key=lambda c: c.mean_characters, default=None)
        if longest and all(c is longest or c.mean_characters * 3 < longest.mean_characters for c in prose):
            return longest.name, pair
        if pairs and self._numbered and len(prose) == 2:
            return prose[0].name, prose[1].name
        raise self._unclear("--text", "texts", [c.name for c in prose])

    def label(self, text: str, pair: str | None) -> str | None:
        """The column of the label; None where the kind needs none and there is none."""
        if "label" in self._given:
            return str(self._given["label"])
        if self._kind is LabelKind.NONE:
            return None
        free = [c for c in self._columns.values() if c.name not in (text, pair) and self._can_be_label(c, text)]
        known = self._known(LABELS, free, "--label", "labels")
        if known:
            return known
        if self._kind is LabelKind.SCORE_OR_NONE:
            return None
        found = [c for c in free if (c.lists or c.repeats) and c.mean_words <= 5]
        found = found or [c for c in free if c.is_numbers and c.fractions]
        if len(found) > 1 and self._numbered:  # next to a code of the source, or a date, a number is the label
            found = [c for c in found if c.is_numbers] or found
        if len(found) == 1:
            return found[0].name
        raise self._unclear("--label", "labels", [c.name for c in found])

    def _known(self, tiers: Sequence[Sequence[str]], free: Sequence[Column], option: str, what: str) -> str | None:
        for tier in tiers:
            found = [c.name for c in free if self._plain[c.name] in tier]
            if len(found) > 1:
                raise self._unclear(option, what, found)
            if found:
                return found[0]
        return None

    def _can_be_text(self, column: Column) -> bool:
        words = column.is_words and self._kind in (None, LabelKind.SPANS) and not self._is_tags(column)
        return words or column.is_text

    def _is_tags(self, column: Column) -> bool:
        """Whether a list is the tags of another column, or the labels of a text: its entries come back often."""
        return len(column.parts) * 4 < sum(column.lengths.values()) and self._plain[column.name] not in TEXTS[0]

    def _can_be_label(self, column: Column, text: str) -> bool:
        checks: dict[LabelKind | None, Callable[[], bool]] = {
            LabelKind.NAME: lambda: not column.lists and column.cells > 0,
            LabelKind.SCORE: lambda: column.is_numbers,
            LabelKind.SCORE_OR_NONE: lambda: column.is_numbers,
            LabelKind.SPANS: lambda: column.spans > 0 or _is_parallel(column, self._columns.get(text)),
        }
        words = self._columns.get(text)
        if self._kind is None and words is not None and words.is_words:  # only a tagger reads a list of words
            return checks[LabelKind.SPANS]()
        return checks.get(self._kind, lambda: column.cells > 0)()

    def _unclear(self, option: str, what: str, found: Sequence[str]) -> InputError:
        have = f"it has the columns {listed(list(self._columns))}"
        several = f"{listed(found)} could be the {what}" if found else f"no column is surely the {what}"
        example = shown(found[0]) if found else "COLUMN"
        fix = (
            self._fix
            or f"Name the columns with --text and --label: here {option} is needed, such as {option} {example}."
        )
        return InputError(Problem(self._source.title, f"{several}; {have}.", fix))


def _is_parallel(column: Column, text: Column | None) -> bool:
    """Whether each of its cells has one entry for each word of the text."""
    return text is not None and bool(column.lengths) and column.lengths == text.lengths


def _kind_of(label: Column | None, text: Column | None) -> LabelKind | None:
    """What a label column holds; None where it could be several things."""
    if label is None:
        return None
    if label.spans or (label.lists == label.cells and _is_parallel(label, text)):
        return LabelKind.SPANS
    if label.lists:
        return LabelKind.NAMES
    if label.is_numbers:
        return _kind_of_numbers(label)
    if label.parted and len(label.parts) < len(label.values):
        return LabelKind.NAMES
    return LabelKind.NAME if label.repeats or len(label.values) == 1 else None


def _kind_of_numbers(label: Column) -> LabelKind | None:
    """Fractions with many values are scores; whole numbers are classes if they are few or count on from 0."""
    if label.fractions:
        return LabelKind.SCORE if len(label.values) >= _FEWEST_SCORES else None
    found = sorted({int(float(value)) for value in label.values})
    classes = found == list(range(len(found))) or len(found) <= _MOST_CLASSES
    return LabelKind.NAME if classes and label.repeats else None


def _holds(label: Column, kind: LabelKind | None, rows: int) -> str:
    more = f" in the first {rows:,} rows" if rows >= MOST_ROWS else ""
    if kind in (LabelKind.SCORE, LabelKind.SCORE_OR_NONE):
        return "scores"
    if kind is LabelKind.SPANS:
        return "spans" if label.spans else f"tags: {len(label.parts)} names{more}"
    if kind is LabelKind.NAMES:
        return f"lists of {len(label.parts - {''})} names{more}"
    if kind is LabelKind.ANSWERS:
        return "answers"
    return f"{len(label.values)} {'numbers' if label.is_numbers else 'names'}{more}"


def found_columns(source: DataSource, kind: LabelKind) -> DataSource:
    """The source with the columns that it does not name, found by their names or their content, and told to the user.

    Args:
        source: The file.
        kind: What the labels are.
    """
    found = guess_columns(source, kind)
    if found.note:
        say(f"{Path(source.title).name}: {found.note}")
    return found.source
