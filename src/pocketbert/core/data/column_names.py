"""What data files call their columns, and the list of the rows that cannot be read (`BadRows`).

- `TEXT_NAMES`, `PAIR_NAMES`, `LABEL_NAMES` ... are the usual names, compared as `plain_name` writes them; `is_numbered_column` knows
  the names of columns without a header.
- `BadRows` collects what is wrong with the rows of one file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pocketbert.core.errors import Problem, suggest_allowed

# --- names of columns, written as `plain_name` writes them ---

TEXT_NAMES = (
    ("text", "sentence", "utterance", "tokens"),
    (
        *("query", "content", "review", "comment", "message", "body", "document", "tweet", "post", "words", "text1"),
        "textcontent",
    ),
    ("question", "input", "prompt", "description", "title", "subject", "summary", "headline", "phrase", "request"),
)
"""Usual names of the text column, in tiers: a name of an earlier tier is the surer one."""
QUESTION_NAMES = (("question", "context"), ("query", "context"))
"""Usual names of the two columns of question answering."""
PAIR_NAMES = (
    ("text", "textpair"),
    ("sentence1", "sentence2"),
    ("sentencea", "sentenceb"),
    ("text1", "text2"),
    ("texta", "textb"),
    ("question1", "question2"),
    ("premise", "hypothesis"),
    ("context", "hypothesis"),
    ("anchor", "positive"),
    ("query", "positive"),
    ("question", "sentence"),
    ("question", "passage"),
    ("question", "context"),
    ("query", "passage"),
    ("query", "document"),
    ("#1string", "#2string"),
)
"""Usual names of the two columns of a pair of texts."""
ANSWER_NAMES = ("answer", "answers", "answertext")
_CLASSES = ("intent", "class", "category", "target", "sentiment", "topic", "emotion", "polarity", "gold", "goldlabel")
_OTHERS = ("tags", "nertags", "score", "similarity", "similarityscore", "rating", "stars", "spans", "entities")
LABEL_NAMES = (
    ("label", "labels"),
    (*_CLASSES, *_OTHERS, *ANSWER_NAMES),
    (
        *("labelname", "labeltext", "intentname", "categoryname", "type", "tag", "y", "output", "genre", "genres"),
        *("language", "lang", "completion", "quality", "annotation", "annotations", "ner"),
    ),
)
"""Usual names of the label column, in tiers as `TEXT_NAMES`."""
_NAMES_OF_OTHER_COLUMNS = (
    *("id", "ids", "idx", "index", "uid", "guid", "row", "key", "number", "name", "user", "username", "author"),
    *("source", "date", "time", "timestamp", "created", "createdat", "url", "link", "split", "fold", "domain"),
    *("note", "notes", "reviewtext", "commenttext", "context", "answerstart", "star", "acceptability"),
    *("annotator", "probs", "isduplicate", "qid1", "qid2", "pairid", "captionid", "value", "weight", "confidence"),
    *("toxic", "s1", "s2", "#1id", "#2id", "anchor", "positive", "negative", "pos", "neg"),
    *("sent1", "sent2", "startphrase", "ctx", "goal", "answerkey", "choices", "options", "endings"),
    *(f"{stem}{number}" for stem in ("ending", "choice", "option", "answer", "sol") for number in range(6)),
)
USUAL_COLUMN_NAMES = frozenset(
    [name for group in (*TEXT_NAMES, *PAIR_NAMES, *LABEL_NAMES) for name in group] + [*_NAMES_OF_OTHER_COLUMNS]
)
"""The names of text, pair and label columns above, and usual names of other columns."""
_NUMBERED_NAME = re.compile(r"column (\d+)")


def plain_name(name: str) -> str:
    """Return a column's name in lower case without blanks, ``-``, ``_`` and dots, to compare it with usual names."""
    return "".join(character for character in name.casefold() if character not in " _-.")


def is_numbered_column(name: str) -> bool:
    """Return whether a column has a generated name, ``column 1``, ``column 2``, ..., because the file has no header."""
    return _NUMBERED_NAME.fullmatch(name) is not None


# --- problems with rows ---

_SHOWN_PROBLEMS = 20
MAX_COLUMNS = 10_000
"""Most columns of a file."""
_LISTED = 8
_ALIKE = 0.75
"""How alike a column's name must be to be suggested: ``texts`` is a slip of ``text``, ``intent`` is not."""
_COLUMN_FIX = "Name the columns with --text, --text-pair and --label, or in the recipe's data section."
_HEADER_FIX = (
    "The first row was read as a header: give --no-header, or header: false in the recipe, if it is a row of data."
)
_NO_HEADER_FIX = "The file was read without a header: name columns by their number, such as 'column 1', or give --header, or header: true in the recipe."


class BadRows:
    """Collects the invalid rows of one file: the first 20 with their problems, and the number of all.

    Attributes:
        title: Name of the file in the problems.
        count: Number of bad rows.
        problems: The first problems.
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self.count = 0
        self.problems: list[Problem] = []
        self._missing: set[tuple[str, tuple[str, ...]]] = set()

    def add(self, row: int, what: str, fix: str = "") -> None:
        """Record one bad row with its number, what is wrong and how to fix it."""
        self.count += 1
        if self.shows_more:
            self.problems.append(Problem(f"{self.title}:{row}", what, fix))

    @property
    def shows_more(self) -> bool:
        """Whether the next bad row would be recorded with its problem; later ones are only counted."""
        return len(self.problems) < _SHOWN_PROBLEMS

    def missing(self, row: int, column: str, cells: Mapping[str, Any], other: str = "") -> None:
        """Record a row that lacks a column; of several such rows with the same columns, only the first is shown.

        `other` is a column that would do instead.
        """
        if not self.shows_more:  # finding the nearest name takes time
            self.add(row, "")
            return
        names = [str(key) for key in cells]
        key = (column, tuple(names[:MAX_COLUMNS]))
        if key in self._missing:
            self.count += 1
            return
        self._missing.add(key)
        allowed = suggest_allowed(other or column, names, _ALIKE, _LISTED) if names else "the row is empty"
        named = f"'{column}' or '{other}'" if other else f"'{column}'"
        what = f"no column {named}; {allowed}."
        fix = _COLUMN_FIX
        if names and is_numbered_column(column) != all(map(is_numbered_column, names)):
            fix = _HEADER_FIX if is_numbered_column(column) else _NO_HEADER_FIX
        self.add(row, what, fix)

    def close(self) -> list[Problem]:
        """Return the recorded problems, and one more that counts the bad rows that are not shown."""
        more = self.count - len(self.problems)
        if more <= 0:
            return self.problems
        return [*self.problems, Problem(self.title, f"and {more:,} more bad rows ({self.count:,} in all).")]
