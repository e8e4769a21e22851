"""Profiles of the columns of a data file: what its first rows hold, by which the use of a column is guessed.

`profile_columns` counts over the rows; a `Column` says what its cells look like. `split_cell` parts the labels of one cell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pocketbert.core.data.cells import (
    MISSING_TEXTS,
    are_probabilities,
    is_visible,
    merge_scored_labels,
    number_of,
    parse_literal,
    read_truth,
    read_written_number,
    split_tags,
    unwrap_label,
)
from pocketbert.core.data.column_names import is_numbered_column, plain_name
from pocketbert.core.data.span_cells import list_spans
from pocketbert.core.data.teacher_column import find_answer_form
from pocketbert.core.tasks import LabelKind

PROFILED_ROWS = 20_000
"""Rows that are profiled. Many files are sorted by label, so that the first hundred rows may hold one label only."""
_PROFILED_CHARACTERS = 1 << 26
"""Characters of text after which no further row is profiled."""
_SEPARATORS = (";", "|", ",")
"""What may part several labels in one cell."""
FEWEST_SCORES = 10
"""Different values that numbers with fractions or commas have at least as scores; fewer may be classes, or lists of numbers."""
_EXAMPLE = 200
"""Characters of a cell that are kept as an example."""


@dataclass
class Column:
    """Counts over the non-empty cells of one column, by which its use is guessed.

    Attributes:
        name: Name of the column.
        cells: Cells that are not empty.
        texts: Cells that are text and no number.
        numbers: Cells that are a number, written as a number or as text.
        fractions: Numbers that are not whole.
        lists: Cells that are lists, or objects that list spans by label.
        spans: Lists whose entries are objects, or lists [start, end, label].
        probabilities: Objects or lists with a probability for each label.
        soft: How many of these are not only 0 and 1.
        answers: How many cells look like a teacher's answers, by the kind of label that these answer.
        objects: Cells that are other objects.
        tags: Texts of tags, such as ``B-PER O O``.
        answer_names: The labels that answers of the kinds `NAME` and `NAMES` name.
        whole: Row and cell of labels with whole numbers as scores, which are answers if other cells have fractions.
        whole_vectors: Cells that are vectors of whole numbers, which are answers if other cells have fractions.
        written: Numbers as spreadsheets write them, with a percent sign or commas.
        commas: Texts with a comma that may be lists of numbers, such as ``2,10``.
        truths: Cells that are 0, 1, true, false, yes or no.
        words: Words in all texts.
        letters: Letters in all texts.
        characters: Characters in all texts.
        example: The first cell that is not empty, as text.
        values: The distinct cells that are no lists or objects, as text.
        parts: The distinct entries of lists.
        lengths: Number of entries of each list, or of words of each text, by row.
    """

    name: str
    cells: int = 0
    texts: int = 0
    numbers: int = 0
    fractions: int = 0
    lists: int = 0
    spans: int = 0
    probabilities: int = 0
    soft: int = 0
    answers: Counter[LabelKind] = field(default_factory=Counter)
    answer_names: set[str] = field(default_factory=set)
    whole: list[tuple[int, Any]] = field(default_factory=list)
    whole_vectors: int = 0
    objects: int = 0
    tags: int = 0
    written: int = 0
    commas: int = 0
    truths: int = 0
    words: int = 0
    letters: int = 0
    characters: int = 0
    example: str = ""
    values: set[str] = field(default_factory=set)
    parts: set[str] = field(default_factory=set)
    lengths: dict[int, int] = field(default_factory=dict)

    def add(self, row: int, cell: Any) -> None:
        """Add one cell to the counts of the column unless it is empty; `settle` adds those that other cells decide on."""
        if cell is None or (isinstance(cell, str) and (not is_visible(cell) or cell.strip() in MISSING_TEXTS)):
            return
        self.cells += 1
        self.example = self.example or str(cell)[:_EXAMPLE]
        parsed = parse_literal(cell)
        form = find_answer_form(parsed, self.name)
        scored = merge_scored_labels(parsed)
        if scored is not None and all(isinstance(score, int) for score in scored.values()):
            self.whole.append((row, cell))
            return
        if form is LabelKind.SCORE_OR_NONE and all(isinstance(number, int) for number in parsed):
            self.whole_vectors, form = self.whole_vectors + 1, None
        self._count(row, cell, parsed, form)

    def settle(self) -> None:
        """Count the cells of whole numbers that `add` put aside, as answers if other cells are answers."""
        if self.answers:
            self.answers[LabelKind.SCORE_OR_NONE] += self.whole_vectors
        for row, cell in self.whole:
            parsed = parse_literal(cell)
            self._count(row, cell, parsed, find_answer_form(parsed, self.name) if self.answers else None)
        self.whole.clear()
        self.whole_vectors = 0

    def _count(self, row: int, cell: Any, parsed: Any, form: LabelKind | None) -> None:
        """Count one cell, which is parsed if it is JSON, as an answer of the kind `form` or as one of other content."""
        scored = merge_scored_labels(parsed) if form is not None else None
        if are_probabilities(parsed := parsed if scored is None else scored):
            self.probabilities += 1
            self.soft += any(0 < p < 1 for p in (parsed.values() if isinstance(parsed, dict) else parsed))
        if form is not None:
            self.answers[form] += 1
        if form in (LabelKind.NAME, LabelKind.NAMES) and isinstance(parsed, dict):
            self.answer_names.update(map(_as_text, parsed))
        text, cell = cell, unwrap_label(parsed)
        spans = list_spans(cell)
        if isinstance(cell, list | tuple) or spans is not None:
            self.lists += 1
            self.spans += bool(spans)
            self.parts.update(map(_as_text, cell))
            self.lengths[row] = len(cell)
            return
        if scored is not None or (isinstance(cell, dict) and not isinstance(text, str)):
            self.objects += 1
            return
        cell = text if isinstance(text, str) else cell  # a text that is an object in JSON, such as a line of a log
        self.values.add(_as_text(cell))
        self.truths += read_truth(cell) is not None
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
            tags = split_tags(cell)
            self.tags += tags is not None
            self.lengths[row] = len(tags or words)
            self.written += read_written_number(cell) != (None, None)
            self.commas += "," in cell and not {"%", "."} & {*cell}

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
        """Whether all non-empty cells are lists, none of them of spans."""
        return 0 < self.cells == self.lists and not self.spans

    @property
    def is_numbers(self) -> bool:
        """Whether all non-empty cells are numbers."""
        return 0 < self.cells == self.numbers

    @property
    def is_tags(self) -> bool:
        """Whether all non-empty cells are texts of tags, such as ``B-PER O O``."""
        return 0 < self.cells == self.tags

    @property
    def is_scores(self) -> bool:
        """Whether all cells are numbers, most with a percent sign or commas, at least ten differ, and they are no lists such as ``2,10``.

        Commas may part the entries of a list unless the column is called score, similarity or rating. Numbered columns are never scores.
        """
        is_most = self.cells < 2 * self.written and self.numbers + self.written == self.cells
        is_list = self.commas > 0 and not plain_name(self.name).endswith(("score", "similarity", "rating"))
        return is_most and len(self.values) >= FEWEST_SCORES and not (is_list or is_numbered_column(self.name))

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

    @property
    def is_truth(self) -> bool:
        """Whether all non-empty cells are 0, 1, true, false, yes or no, so that the column may show whether one label applies."""
        return 0 < self.cells == self.truths

    @property
    def separator(self) -> str | None:
        """The character that separates several labels in one cell; None if there is no such character.

        A character separates labels if a part that it splits off occurs in another cell too; a comma only if the parts are no more than
        the different cells. Hashtags are separated by blanks.
        """
        for sign in _SEPARATORS:
            parts = Counter(part for value in self.values for part in split_cell(value, sign))
            is_usual = sign != "," or len(parts) <= len(self.values)  # names have commas inside: "Home, Garden"
            if is_usual and any(sign in value for value in self.values) and max(parts.values(), default=0) > 1:
                return sign
        is_tagged = all(value.strip()[:1] == "#" for value in self.values)
        hashtags = [value.split() for value in self.values] if is_tagged else []
        is_tagged = all(part[0] == "#" for parts in hashtags for part in parts) and any(parts[1:] for parts in hashtags)
        return " " if is_tagged else None

    def is_parallel_to(self, text: Column | None) -> bool:
        """Return whether each cell has as many entries as the text in the same row has words, as tags have."""
        return text is not None and bool(self.lengths) and self.lengths == text.lengths


def _as_text(cell: Any) -> str:
    """Return a cell as text; true and false in lower case, as they are read as labels."""
    return str(cell).lower() if isinstance(cell, bool) else str(cell)


def split_cell(value: str, sign: str) -> set[str]:
    """Split a cell that holds several labels at a sign, and return the set of their names."""
    return {part.strip() for part in value.split(sign) if part.strip()}


def profile_columns(rows: Iterable[tuple[int, Mapping[str, Any]]]) -> tuple[dict[str, Column], int]:
    """Count the cells of each column over the first rows of a file, to guess what the columns hold.

    Returns:
        The columns by name in the order of the file, and how many rows were counted.
    """
    columns: dict[str, Column] = {}
    count = 0
    for number, row in rows:
        count += 1
        for name, cell in row.items():
            columns.setdefault(name, Column(name)).add(number, cell)
        if count >= PROFILED_ROWS or sum(c.characters for c in columns.values()) > _PROFILED_CHARACTERS:
            break
    for column in columns.values():
        column.settle()
    return columns, count
