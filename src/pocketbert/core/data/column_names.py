"""Usual names of columns: which of them are texts, pairs of texts and labels, and which only tell that a row is a header."""

from __future__ import annotations

import re

TEXTS = (
    ("text", "sentence", "utterance", "tokens"),
    ("query", "content", "review", "comment", "message", "body", "document", "tweet", "post", "words", "text1"),
    ("question", "input", "prompt", "description", "title", "subject", "summary", "headline", "phrase", "request"),
)
"""Usual names of the text, the surest ones first; written without capitals, blanks, ``-`` and ``_``."""
QUESTION_PAIRS = (("question", "context"), ("query", "context"))
PAIRS = (
    ("text", "textpair"),
    ("sentence1", "sentence2"),
    ("sentencea", "sentenceb"),
    ("text1", "text2"),
    ("texta", "textb"),
    ("question1", "question2"),
    ("premise", "hypothesis"),
    ("question", "sentence"),
    ("question", "passage"),
    ("question", "context"),
    ("query", "passage"),
    ("query", "document"),
)
_CLASSES = ("intent", "class", "category", "target", "sentiment", "topic", "emotion", "polarity", "gold")
_OTHERS = ("tags", "nertags", "score", "similarity", "similarityscore", "rating", "stars", "spans", "entities")
ANSWERS = ("answer", "answers")
LABELS = (
    ("label", "labels"),
    (*_CLASSES, *_OTHERS, *ANSWERS),
    ("labelname", "labeltext", "intentname", "categoryname", "type", "tag", "y", "output", "genre", "language", "lang"),
)
_NEITHER = (
    *(
        "id",
        "ids",
        "idx",
        "index",
        "uid",
        "guid",
        "row",
        "key",
        "number",
        "name",
        "user",
        "username",
        "author",
        "source",
    ),
    *("date", "time", "timestamp", "created", "createdat", "url", "link", "split", "fold", "domain", "note", "notes"),
    *(
        "goldlabel",
        "reviewtext",
        "commenttext",
        "context",
        "answerstart",
        "star",
        "acceptability",
        "annotator",
        "probs",
    ),
    *("isduplicate", "qid1", "qid2", "pairid", "captionid", "value", "weight", "confidence", "toxic", "s1", "s2"),
)
_HEADERS = frozenset(
    [*(n for tier in (*TEXTS, *LABELS) for n in tier), *(n for pair in PAIRS for n in pair), *_NEITHER]
)
_UNNAMED = re.compile(r"column (\d+)")


def plain_name(name: str) -> str:
    """Write the name of a column without capitals, blanks, ``-``, ``_`` and dots."""
    return "".join(character for character in name.casefold() if character not in " _-.")


def is_usual_name(cell: str) -> bool:
    """Tell whether a cell is a usual name of a column, such as ``gold_label`` or ``Sentence 1``."""
    return plain_name(cell.strip()) in _HEADERS


def numbered_column(number: int) -> str:
    """Name a column of a file without a header by its number, from 1."""
    return f"column {number}"


def is_numbered_column(name: str) -> bool:
    """Tell whether a name is one that `numbered_column` gives."""
    return _UNNAMED.fullmatch(name) is not None
