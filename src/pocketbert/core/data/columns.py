"""Guesses which column of a data file is the text and which one the label, for users who did not name them.

`guess_columns` profiles the first rows (a `_Column` per column), chooses the columns by their usual names, else by what
they hold (`_ColumnChoice`), and guesses what kind of label it is. `guess_and_report_columns` also prints what it chose.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pocketbert.core.data.cells import is_visible, number_of
from pocketbert.core.data.files import guess_table_form, read_class_names, read_rows
from pocketbert.core.data.source import DataSource
from pocketbert.core.data.tables import (
    ANSWER_NAMES,
    LABEL_NAMES,
    PAIR_NAMES,
    QUESTION_NAMES,
    TEXT_NAMES,
    BadRows,
    TableForm,
    is_numbered_column,
    plain_name,
)
from pocketbert.core.errors import InputError, Problem, shorten_list, shorten_repr
from pocketbert.core.host.progress import print_note
from pocketbert.core.tasks import LabelKind

_PROFILED_ROWS = 20_000
"""Rows that are profiled. Many files are sorted by label, so that the first hundred rows may hold one label only."""
_PROFILED_CHARACTERS = 1 << 26
"""Characters of text after which no further row is profiled."""
_MOST_CLASSES = 50
"""Whole numbers with more values are classes only if they count on from 0."""
_FEWEST_SCORES = 10
"""Numbers with fractions are scores if they have at least this many values, else they may be classes."""


@dataclass(frozen=True)
class Columns:
    """The text and label columns that were chosen for a data file, and the reason in words.

    Attributes:
        source: The source with its columns named.
        kind: What the label column holds (names, scores, spans ...); None if that is ambiguous.
        note: One sentence for users, such as ``text: column 'sentence', label: column 'intent' (77 names)``.
    """

    source: DataSource
    kind: LabelKind | None
    note: str


def guess_and_report_columns(source: DataSource, kind: LabelKind) -> DataSource:
    """Guess the columns that a source does not name, print them, and return a copy of the source that names them.

    Args:
        source: The file.
        kind: Kind of the labels (names, scores, spans ...).
    """
    guessed = guess_columns(source, kind)
    if guessed.note:
        print_note(f"{Path(source.title).name}: {guessed.note}")
    return guessed.source


def guess_columns(source: DataSource, kind: LabelKind | None = None, fix: str = "") -> Columns:
    """Guess which columns of a data file hold the text, the second text and the label, by name or by content.

    A column that `source` names itself is kept, whatever the file holds. A second text is taken only if two columns
    have names that are usual for a pair, or if a file without a header has just two columns of texts. Data sets of the
    Hub are returned as they are.

    Args:
        source: The file; its fields `text`, `text_pair` and `label` count as given if they were set.
        kind: Kind of label that the task needs; None if the task is not known yet.
        fix: Advice of the error for columns that cannot be told apart; by default it names the command line's options.

    Raises:
        InputError: If the file cannot be read, or naming its columns if several could be meant or none.
        MissingBackendError: If the library for its kind of file is not installed.
    """
    if source.path is None:
        return Columns(source, kind, "")
    form = guess_table_form(source)
    if form is not None and not form.header:
        source = source.model_copy(update={"header": False})
    bad = BadRows(source.title)
    columns, rows = _profile(read_rows(source, bad))
    if not columns:
        raise InputError(bad.close() or Problem(source.title, "no rows."))
    choice = _ColumnChoice(source, columns, kind, fix)
    text, pair = choice.choose_texts()
    label = choice.choose_label(text, pair)
    chosen = source.model_copy(update={"text": text, "text_pair": pair, **({"label": label} if label else {})})
    names = read_class_names(chosen) if label else None
    plain_names = plain_name(text), plain_name(pair or "")
    if kind is None and plain_names in QUESTION_NAMES and plain_name(label or "") in ANSWER_NAMES:
        kind = LabelKind.ANSWERS
    kind = kind or (LabelKind.NAME if names else _kind_of(columns.get(label or ""), columns.get(text)))
    content = None
    if label:
        column = columns.get(label)
        content = (
            f"{len(names)} names" if names else _describe(column, kind, rows) if column else "not in the first rows"
        )
    return Columns(chosen, kind, _note(form, text, pair, label, content))


# --- profiling ---


@dataclass
class _Column:
    """Counts over the non-empty cells of one column, by which its use is guessed.

    Attributes:
        name: Name of the column.
        cells: Cells that are not empty.
        texts: Cells that are text and no number.
        numbers: Cells that are a number, written as one or as text.
        fractions: Numbers that are not whole.
        lists: Cells that are lists.
        spans: Lists whose entries are objects.
        words: Words in all texts.
        letters: Letters in all texts.
        characters: Characters in all texts.
        with_semicolon: Texts with a semicolon inside.
        values: The distinct cells, as text.
        parts: The distinct entries of lists, and the parts of texts between semicolons.
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
    with_semicolon: int = 0
    values: set[str] = field(default_factory=set)
    parts: set[str] = field(default_factory=set)
    lengths: dict[int, int] = field(default_factory=dict)

    def add(self, row: int, cell: Any) -> None:
        """Add one cell to the counts."""
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
            words = cell.split()
            self.texts += 1
            self.words += len(words)
            self.letters += sum(character.isalpha() for character in cell)
            self.characters += len(cell)
            self.with_semicolon += ";" in cell
            self.parts.update(part.strip() for part in cell.split(";"))
            self.lengths[row] = len(words)

    @property
    def mean_words(self) -> float:
        """Mean number of words of a text."""
        return self.words / max(self.texts, 1)

    @property
    def mean_characters(self) -> float:
        """Mean number of characters of a text."""
        return self.characters / max(self.texts, 1)

    @property
    def is_text(self) -> bool:
        """Whether more than half of the non-empty cells are text."""
        return self.texts * 2 > self.cells

    @property
    def is_words(self) -> bool:
        """Whether all non-empty cells are lists of words."""
        return 0 < self.cells == self.lists and not self.spans

    @property
    def is_numbers(self) -> bool:
        """Whether all non-empty cells are numbers."""
        return 0 < self.cells == self.numbers

    @property
    def is_distinct_text(self) -> bool:
        """Whether most non-empty cells are text, and more than half of them differ."""
        return self.is_text and len(self.values) * 2 > self.cells

    @property
    def is_prose(self) -> bool:
        """Whether the cells look like running text: long, mostly letters, and mostly different."""
        is_long = self.mean_words >= 2.5 or self.mean_characters >= 15
        return self.is_distinct_text and is_long and self.letters * 2 > self.characters

    @property
    def repeats(self) -> bool:
        """Whether the cells repeat as label names do: at least two values, each twice on average."""
        return 2 <= len(self.values) <= self.cells // 2

    def is_parallel_to(self, text: _Column | None) -> bool:
        """Return whether each cell has as many entries as the text of its row has words, as tags do."""
        return text is not None and bool(self.lengths) and self.lengths == text.lengths


def _profile(rows: Iterable[tuple[int, Mapping[str, Any]]]) -> tuple[dict[str, _Column], int]:
    """Count the cells of each column over the first rows of a file, to guess what the columns hold.

    Returns:
        The columns by name in the order of the file, and how many rows were counted.
    """
    columns: dict[str, _Column] = {}
    count = 0
    for number, row in rows:
        count += 1
        for name, cell in row.items():
            columns.setdefault(name, _Column(name)).add(number, cell)
        if count >= _PROFILED_ROWS or sum(c.characters for c in columns.values()) > _PROFILED_CHARACTERS:
            break
    return columns, count


# --- choosing ---


class _ColumnChoice:
    """Chooses the columns of the text, the second text and the label of one data file.

    Args:
        source: The file; the columns that it names are kept.
        columns: Profiles of its columns by name.
        kind: Kind of label that the task needs; None if the task is not known yet.
        fix: See `guess_columns`.
    """

    def __init__(self, source: DataSource, columns: Mapping[str, _Column], kind: LabelKind | None, fix: str) -> None:
        self._source, self._columns, self._kind = source, columns, kind
        self._given = {k: getattr(source, k) for k in ("text", "text_pair", "label") if k in source.model_fields_set}
        self._plain = {name: plain_name(name) for name in columns}
        self._numbered = all(map(is_numbered_column, columns))
        self._fix = fix

    def choose_texts(self) -> tuple[str, str | None]:
        """Choose the column of the text, and that of the second text (None if there is none).

        A usual pair of names comes first, then a usual name, then the only column of long texts.
        """
        pair = self._given.get("text_pair")
        if "text" in self._given:
            return self._given["text"], pair
        free = [c for c in self._columns.values() if c.name not in self._given.values() and self._can_be_text(c)]
        pairs: tuple[tuple[str, str], ...] = ()
        if pair is None and "text_pair" not in self._given and self._kind not in (LabelKind.SPANS, LabelKind.NONE):
            pairs = QUESTION_NAMES if self._kind is LabelKind.ANSWERS else PAIR_NAMES
        name_of = {self._plain[c.name]: c.name for c in free}
        for first, second in pairs:
            if first in name_of and second in name_of:
                return name_of[first], name_of[second]
        usual = self._find_usual(TEXT_NAMES, free, "--text", "texts")
        if usual:
            return usual, pair
        prose = [c for c in free if c.is_prose or c.is_words] or [c for c in free if c.is_distinct_text]
        longest = max(prose, key=lambda c: c.mean_characters, default=None)
        if longest and all(c is longest or c.mean_characters * 3 < longest.mean_characters for c in prose):
            return longest.name, pair
        if pairs and self._numbered and len(prose) == 2:
            return prose[0].name, prose[1].name
        raise self._ambiguity_error("--text", "texts", [c.name for c in prose])

    def choose_label(self, text: str, pair: str | None) -> str | None:
        """Choose the column of the label; None if the task needs none and there is none."""
        if "label" in self._given:
            return str(self._given["label"])
        if self._kind is LabelKind.NONE:
            return None
        free = [c for c in self._columns.values() if c.name not in (text, pair) and self._can_be_label(c, text)]
        usual = self._find_usual(LABEL_NAMES, free, "--label", "labels")
        if usual:
            return usual
        if self._kind is LabelKind.SCORE_OR_NONE:
            return None
        candidates = [c for c in free if (c.lists or c.repeats) and c.mean_words <= 5]
        candidates = candidates or [c for c in free if c.is_numbers and c.fractions]
        if len(candidates) > 1 and self._numbered:  # next to a code of the source, or a date, a number is the label
            candidates = [c for c in candidates if c.is_numbers] or candidates
        if len(candidates) == 1:
            return candidates[0].name
        raise self._ambiguity_error("--label", "labels", [c.name for c in candidates])

    def _find_usual(
        self, tiers: Sequence[Sequence[str]], free: Sequence[_Column], option: str, what: str
    ) -> str | None:
        """Return the column with a usual name, from the first group of names that occurs; None if none does."""
        for tier in tiers:
            names = [c.name for c in free if self._plain[c.name] in tier]
            if len(names) > 1:
                raise self._ambiguity_error(option, what, names)
            if names:
                return names[0]
        return None

    def _can_be_text(self, column: _Column) -> bool:
        """Return whether a column can be the text: mostly text, or lists of words if the task labels words."""
        # the entries of tags and of several labels recur often
        is_tags = len(column.parts) * 4 < sum(column.lengths.values()) and self._plain[column.name] not in TEXT_NAMES[0]
        is_words = column.is_words and self._kind in (None, LabelKind.SPANS) and not is_tags
        return is_words or column.is_text

    def _can_be_label(self, column: _Column, text: str) -> bool:
        """Return whether a column can hold labels of the needed kind."""
        kind, words = self._kind, self._columns.get(text)
        if kind is None and words is not None and words.is_words:
            kind = LabelKind.SPANS
        match kind:
            case LabelKind.NAME:
                return not column.lists and column.cells > 0
            case LabelKind.SCORE | LabelKind.SCORE_OR_NONE:
                return column.is_numbers
            case LabelKind.SPANS:
                return column.spans > 0 or column.is_parallel_to(words)
        return column.cells > 0

    def _ambiguity_error(self, option: str, what: str, names: Sequence[str]) -> InputError:
        """Build the error for a file in which several columns, or none, could be the text or the label."""
        columns = f"it has the columns {shorten_list(list(self._columns))}"
        reason = f"{shorten_list(names)} could be the {what}" if names else f"no column is surely the {what}"
        example = shorten_repr(names[0]) if names else "COLUMN"
        fix = (
            self._fix
            or f"Name the columns with --text and --label: here {option} is needed, such as {option} {example}."
        )
        return InputError(Problem(self._source.title, f"{reason}; {columns}.", fix))


# --- describing ---


def _kind_of(label: _Column | None, text: _Column | None) -> LabelKind | None:
    """Guess what kind of label a column holds from its counts; None if it could be several kinds.

    Numbers are scores if they have fractions and many values, and classes if they are few or count on from 0.
    """
    if label is None:
        return None
    if label.spans or (label.lists == label.cells and label.is_parallel_to(text)):
        return LabelKind.SPANS
    if label.lists:
        return LabelKind.NAMES
    if label.is_numbers and label.fractions:
        return LabelKind.SCORE if len(label.values) >= _FEWEST_SCORES else None
    if label.is_numbers:
        numbers = sorted({int(float(value)) for value in label.values})
        is_classes = numbers == list(range(len(numbers))) or len(numbers) <= _MOST_CLASSES
        return LabelKind.NAME if is_classes and label.repeats else None
    if label.with_semicolon and len(label.parts) < len(label.values):
        return LabelKind.NAMES
    return LabelKind.NAME if label.repeats or len(label.values) == 1 else None


def _describe(label: _Column, kind: LabelKind | None, rows: int) -> str:
    """Describe the content of a label column in words, such as ``77 names in the first 20,000 rows``."""
    more = f" in the first {rows:,} rows" if rows >= _PROFILED_ROWS else ""
    match kind:
        case LabelKind.SCORE | LabelKind.SCORE_OR_NONE:
            return "scores"
        case LabelKind.SPANS:
            return "spans" if label.spans else f"tags: {len(label.parts)} names{more}"
        case LabelKind.NAMES:
            return f"lists of {len(label.parts - {''})} names{more}"
        case LabelKind.ANSWERS:
            return "answers"
    return f"{len(label.values)} {'numbers' if label.is_numbers else 'names'}{more}"


def _note(form: TableForm | None, text: str, pair: str | None, label: str | None, content: str | None) -> str:
    """Write the sentence that tells the user which columns were chosen."""
    if form is None or form.header:
        parts = [f"text: column '{text}'", *([f"second text: column '{pair}'"] if pair else [])]
        parts += [f"label: column '{label}' ({content})"] if label else []
        doubt = "" if form is None or form.sure else "; --no-header, if these names are a row of data"
        return ", ".join(parts) + doubt
    parts = [f"{text} is the text", *([f"{pair} the second text"] if pair else [])]
    parts += [f"{label} the label ({content})"] if label else []
    return f"no header: {', '.join(parts)}" + ("" if form.sure else "; --header, if the first row names the columns")
