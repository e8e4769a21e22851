"""Chooses which columns of a data file are the text, the second text and the label, by their usual names, else by what they hold.

`ColumnChoice` chooses among the profiles of the columns (`pocketbert.core.data.profile`); `has_label_name` recognizes usual names of labels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from pocketbert.core.data.column_names import (
    ANSWER_NAMES,
    LABEL_NAMES,
    PAIR_NAMES,
    QUESTION_NAMES,
    TEXT_NAMES,
    is_numbered_column,
    plain_name,
)
from pocketbert.core.data.profile import Column
from pocketbert.core.data.source import DataSource
from pocketbert.core.errors import InputError, Problem, shorten_list, shorten_repr
from pocketbert.core.tasks import LabelKind

_SHOWN = 8
_ENDS_OF_LABELS = ("label", "labels", "sentiment", "category", "class", "intent", "emotion", "topic")
"""Ends of the names of label columns, such as ``airline_sentiment``."""
_ENDS_OF_PAIRS = (("1", "2"), ("a", "b"), ("left", "right"), ("first", "second"))
"""What the names of the two columns of a pair differ in."""
_LONGEST_NAME = 100


def has_label_name(column: str) -> bool:
    """Return whether a column has a usual name of labels, or a name that ends in a word such as ``label`` or ``sentiment``."""
    plain = plain_name(column)
    return plain.endswith(_ENDS_OF_LABELS) or any(plain in tier for tier in LABEL_NAMES)


class ColumnChoice:
    """Chooses the columns of the text, the second text and the label of one data file.

    Args:
        source: The file; the columns that it names are chosen whatever they hold.
        columns: Profiles of its columns by name.
        kind: Kind of label that the task needs; None if the task is not known yet.
        fix: Advice in errors, see `guess_columns`.
        usual: Columns that follow from the form of the file, by ``text``, ``text_pair`` and ``label``.
    """

    def __init__(
        self,
        source: DataSource,
        columns: Mapping[str, Column],
        kind: LabelKind | None,
        fix: str,
        usual: Mapping[str, str],
    ) -> None:
        self._source, self._columns, self._kind, self._usual = source, columns, kind, usual
        self._given = {k: getattr(source, k) for k in ("text", "text_pair", "label") if k in source.model_fields_set}
        self._plain = {name: plain_name(name) for name in columns}
        self._numbered = all(map(is_numbered_column, columns))
        self._fix = fix

    def choose_texts(self) -> tuple[str, str | None]:
        """Choose the column of the text and the column of the second text, which is None if there is none.

        Columns that the user named are taken, else those that follow from the form of the file. If there are
        neither, these are tried in order; those of two columns only if the task can have a second text, which
        the user did not name:

        1. two columns with the usual names of a pair, such as ``sentence1`` and ``sentence2``,
        2. one column with a usual name, such as ``text``,
        3. the only two columns of text whose names differ just in a number or a side (first, second),
        4. the column whose texts are, on average, more than three times as long as those of any other
           column of text,
        5. the two columns of text of a file without column names.

        Raises:
            InputError: If several columns could be the text, or none can.
        """
        pair = self._given.get("text_pair")
        if "text" in self._given:
            return self._given["text"], pair
        if "text" in self._usual:
            return self._usual["text"], pair or self._usual.get("text_pair")
        free = [c for c in self._columns.values() if c.name not in self._given.values() and self._can_be_text(c)]
        pairs: tuple[tuple[str, str], ...] = ()
        if pair is None and "text_pair" not in self._given and self._kind not in (LabelKind.SPANS, LabelKind.NONE):
            pairs = QUESTION_NAMES if self._kind is LabelKind.ANSWERS else PAIR_NAMES
        name_of = {self._plain[c.name]: c.name for c in free}
        for first, second in pairs:
            if first in name_of and second in name_of:
                return name_of[first], name_of[second]
        usual = self._find_usual(TEXT_NAMES, free)
        if len(usual) > 1:
            raise self._ambiguity_error("--text", "texts", usual)
        if usual:
            return usual[0], pair
        if pairs and (like := self._find_pair(free)):
            return like
        prose = [c for c in free if c.is_prose or c.is_words] or [c for c in free if c.is_distinct_text]
        longest = max(prose, key=lambda c: c.mean_characters, default=None)
        if longest and all(c is longest or c.mean_characters * 3 < longest.mean_characters for c in prose):
            return longest.name, pair
        if pairs and self._numbered and len(prose) == 2:
            return prose[0].name, prose[1].name
        raise self._ambiguity_error("--text", "texts", [c.name for c in prose])

    def choose_label(self, text: str, pair: str | None) -> str | None:
        """Choose the column of the label; None if the task needs no labels, or has optional ones and none are found.

        Raises:
            InputError: If several columns could be the label, or none can.
        """
        found = self.find_labels(text, pair)
        is_optional = self._kind in (LabelKind.NONE, LabelKind.SCORE_OR_NONE)
        if len(found) > 1 or not (found or is_optional):
            raise self._ambiguity_error("--label", "labels", found)
        return found[0] if found else None

    def find_labels(self, text: str, pair: str | None) -> list[str]:
        """List the columns that could be the label, beside those of the text and the second text: ideally one.

        Several columns of 0 and 1, each for one label, count as one and are joined: ``toxic,insult``.
        """
        if "label" in self._given:
            return [str(self._given["label"])]
        if self._kind is LabelKind.NONE:
            return []
        free = [c for c in self._columns.values() if c.name not in (text, pair) and self._can_be_label(c, text)]
        if not free and self._kind is None:  # words without tags: a text with a label
            free = [c for c in self._columns.values() if c.name != text and c.cells and not c.lists]
        if any(c.name == self._usual.get("label") for c in free):
            return [self._usual["label"]]
        usual = self._find_usual(LABEL_NAMES, free)
        if usual or self._kind is LabelKind.SCORE_OR_NONE:
            return usual
        ends = [c.name for c in free if self._plain[c.name].endswith(_ENDS_OF_LABELS) and (c.repeats or c.lists)]
        if len(ends) == 1:
            return ends
        candidates = [c for c in free if c.is_tags or ((c.lists or c.repeats or c.separator) and c.mean_words <= 5)]
        truths = [c.name for c in free if c.is_truth and "," not in c.name]
        others = [c for c in candidates if c.name not in truths]
        if len(truths) > 1 and not self._numbered and not others and self._can_be_truths():
            return [",".join(truths)]
        candidates = candidates or [c for c in free if c.is_scores or (c.is_numbers and c.fractions)]
        if len(candidates) > 1 and self._numbered:  # next to a code of the source, or a date, a number is the label
            candidates = [c for c in candidates if c.is_numbers] or candidates
        return [c.name for c in candidates]

    def _find_usual(self, tiers: Sequence[Sequence[str]], free: Sequence[Column]) -> list[str]:
        """List the columns with the most usual name, such as ``text``: none, one, or several whose names are equally usual.

        `tiers` are groups of usual names, the most usual first; `free` are the columns not yet used.
        """
        for tier in tiers:
            found = [c for c in free if self._plain[c.name] in tier]
            if len(found) == 2 and found[0].is_words != found[1].is_words:  # a text, and the same in words
                has_tags = any(
                    c.is_parallel_to(w) for w in found if w.is_words for c in self._columns.values() if c not in found
                )
                has_spans = any(c.spans for c in self._columns.values())
                found = [c for c in found if c.is_words == (has_tags and not has_spans)]
            if found:
                return [c.name for c in found]
        return []

    def _find_pair(self, free: Sequence[Column]) -> tuple[str, str] | None:
        """Return the only two columns of texts whose names differ in a number or side, such as ``first`` and ``second``; else None."""
        series = Counter(name.rstrip("0123456789") for name in self._plain.values())
        prose = {self._plain[c.name]: c.name for c in free if c.is_prose}
        names = {plain: name for plain, name in prose.items() if series[plain.rstrip("0123456789")] <= 2}
        pairs = [
            (name, names[other]) for plain, name in names.items() for other in _other_sides(plain) if other in names
        ]
        return pairs[0] if len(pairs) == 1 else None

    def _can_be_truths(self) -> bool:
        """Return whether the task can have several labels for a text, so that columns of 0 and 1 may be its labels."""
        return self._kind in (None, LabelKind.NAMES)

    def _can_be_text(self, column: Column) -> bool:
        """Return whether a column can be the text: mostly text, or lists of words (not of tags) if the task may label words."""
        # the entries of tags and of several labels recur often
        is_tags = len(column.parts) * 4 < sum(column.lengths.values()) and not self._has_text_name(column)
        is_words = column.is_words and self._kind in (None, LabelKind.SPANS) and not is_tags
        return is_words or column.is_text

    def _has_text_name(self, column: Column) -> bool:
        return any(self._plain[column.name] in tier for tier in TEXT_NAMES)

    def _can_be_label(self, column: Column, text: str) -> bool:
        """Return whether a column can hold labels of the needed kind."""
        if column.is_words and self._has_text_name(column):
            return False  # the words of the text
        kind, words = self._kind, self._columns.get(text)
        if kind is None and words is not None and words.is_words:
            kind = LabelKind.SPANS
        match kind:
            case LabelKind.NAME:
                return column.cells > 0 and (not column.lists or set(column.lengths.values()) == {1})
            case LabelKind.SCORE | LabelKind.SCORE_OR_NONE:
                return column.is_numbers or column.numbers + column.written == column.cells > 0
            case LabelKind.SPANS:
                return column.spans > 0 or column.is_parallel_to(words)
        return column.cells > column.objects or (column.cells > 0 and self._plain[column.name] in ANSWER_NAMES)

    def _ambiguity_error(self, option: str, what: str, names: Sequence[str]) -> InputError:
        """Build the error for a file in which several columns, or none, could be the text or the label."""
        if not names and what == "labels" and len(self._columns) == 1:
            fix = self._fix or "Add a column of labels, or learn vectors, which need none: --task feature-extraction."
            return InputError(Problem(self._source.title, "the file holds texts, and no labels.", fix))
        no_labels = (
            "" if names or what != "labels" or self._kind is not None else "; without labels: --task feature-extraction"
        )
        columns = f"it has the columns {shorten_list(list(self._columns), _SHOWN)}"
        reason = f"{shorten_list(names, _SHOWN)} could be the {what}" if names else f"no column is surely the {what}"
        example = shorten_repr(names[0]) if names else "COLUMN"
        fix = (
            self._fix
            or f"Name the columns with --text and --label: here {option} is needed, such as {option} {example}{no_labels}."
        )
        if what == "texts" and self._numbered and [c.mean_words > 2 for c in self._columns.values()] == [True] * 3:
            fix += " If they are triplets, name them in a first row: anchor, positive, negative."
        return InputError(Problem(self._source.title, f"{reason}; {columns}.", fix))


def _other_sides(name: str) -> Iterator[str]:
    """Yield the names that the second column of a pair may have beside a first one: ``text2`` beside ``text1``, ``textb`` beside ``texta``."""
    for first, second in _ENDS_OF_PAIRS:
        for i in range(min(len(name), _LONGEST_NAME)):
            if name.startswith(first, i) and (first != "a" or i == len(name) - 1):
                yield name[:i] + second + name[i + len(first) :]
