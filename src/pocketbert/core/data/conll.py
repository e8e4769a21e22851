"""Files with one word in each line and its tags beside it (CoNLL): sentences are parted by empty lines.

- `read_conll` yields a sentence as a row of lists, one for each column: ``column 1``, ``column 2``, ..., those of CoNLL-U
  by their names.
- `choose_word_and_tags` chooses the columns of the words and of the tags by what they hold.
- `looks_like_conll` tells such a file from a table.
- `group_words` makes sentences of a table that has a word in each row.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import Any

from pocketbert.core.data.column_names import BadRows, plain_name
from pocketbert.core.data.streams import Limits, TextFile, count_bytes

_CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
_COLUMNS_COMMENT = "# global.columns ="
_COMMENT = re.compile(r"#(\s|$)")
_NOTE = re.compile(r"#\s*\S[^=]*=|#.*https?:")
"""A comment that no word # with its tags looks like: ``# text = ...``, ``# id 7 domain=en``."""
_PARTS = re.compile(r"\d+[-.]\d+")
"""Ids of CoNLL-U's tokens of several words and of empty words, which repeat or add to the words of the text."""
_DOCUMENT = "-DOCSTART-"
_IOB = re.compile(r"O|[BIESLUMW][-_]\S+|[BIO]")
_CHUNKS = frozenset("NP VP PP ADVP ADJP SBAR PRT CONJP INTJ LST UCP H O".split())
"""Phrases of the syntax, which CoNLL-2000 and CoNLL-2003 have in a column before that of the names."""
_MOST_TAGS = 400
_SHOWN_WORDS = 40
_FEWEST_SENTENCES = 3
_SENTENCE_WORDS = (3, 100)
_MOST_CHARACTERS = 12
"""The fewest sentences, the words of a sentence and the characters of a word, on average, by which a file of parts of speech
differs from a table with empty lines; texts of Chinese have no blanks, and more characters."""


def read_conll(file: TextFile, bad: BadRows) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each sentence of a file of tagged words: the number of its first line, and its cells by column.

    Comments, ``-DOCSTART-`` lines, a header, and CoNLL-U's tokens of several words and empty words are left out. A line whose
    number of cells is not that of the lines before is added to `bad`.

    Raises:
        InputError: If a sentence is longer than a row may be.
    """
    sentence, start, size, names = list[list[str]](), 0, 0, list[str]()
    separator: str | None = None
    for number, line in file.lines():
        if line.startswith(_COLUMNS_COMMENT):
            names = line.removeprefix(_COLUMNS_COMMENT).lower().split()
            continue
        if not line.strip():
            if sentence:
                yield start, _to_columns(sentence, names)
            sentence = []
            continue
        if _is_comment(line, separator, len(names)) or line.startswith(_DOCUMENT):
            continue
        if not names and separator is None:
            separator = "\t" if "\t" in line else None
        cells = _split_cells(line, separator)
        if not names and {plain_name(cells[0]), plain_name(cells[-1])} & {*_WORD_NAMES} and _is_header(cells):
            continue
        names = names or _name_columns(cells)
        if len(cells) != len(names):
            bad.add(number, f"{len(cells):,} columns, the lines before have {len(names):,}.")
        elif not (names[0] == "id" and _PARTS.fullmatch(cells[0])):
            start, size = (start, size + count_bytes(line)) if sentence else (number, count_bytes(line))
            if size > file.limits.line:
                raise file.limits.length_error(file.title, start, "sentence")
            sentence.append(cells)
    if sentence:
        yield start, _to_columns(sentence, names)


def _is_header(cells: Sequence[str]) -> bool:
    """Return whether the cells of a first line are names of columns, such as ``word`` and ``tag``."""
    return all(
        plain_name(cell) in (*_WORD_NAMES, *_TAG_NAMES, "words", "tokens", "labels", "lemma", "chunk") for cell in cells
    )


def _split_cells(line: str, separator: str | None) -> list[str]:
    """Split a line into cells at tabs, or at blanks if the file has no tabs."""
    return [cell.strip() for cell in line.rstrip().split(separator)] if separator else line.split()


def _is_comment(line: str, separator: str | None, columns: int) -> bool:
    """Return whether a line is a comment. A line in which the sign # is a word with its tags also begins with #, and is no comment."""
    if not _COMMENT.match(line):
        return False
    return (
        bool(_NOTE.match(line))
        or not columns
        or len(_split_cells(line, separator)) != columns
        or (separator == "\t" and line[1] != "\t")
    )


def _name_columns(cells: Sequence[str]) -> list[str]:
    """Return the names of a file's columns by the cells of its first word: those of CoNLL-U for ten cells that begin with a number, else ``column 1``, ..."""
    if len(cells) == len(_CONLLU) and re.match(r"\d", cells[0]):
        return list(_CONLLU)
    return [f"column {i}" for i, _ in enumerate(cells, 1)]


def _to_columns(sentence: Sequence[Sequence[str]], names: Sequence[str]) -> dict[str, Any]:
    return dict(zip(names, map(list, zip(*sentence, strict=True)), strict=True))


# --- choosing columns ---


def choose_word_and_tags(columns: Mapping[str, set[str]]) -> tuple[str | None, str | None]:
    """Choose the columns of the words and of their tags from the distinct cells of each column.

    A column of tags with prefixes (``B-PER``) is preferred to other tags, and tags of names to those of phrases
    (``B-NP``).

    Returns:
        The names of the column of words and of the column of tags; None for a column that is not clear.
    """
    spans = [name for name, cells in columns.items() if _are_iob(cells)]
    named = [name for name in spans if not {cell[2:] for cell in columns[name] if len(cell) > 2} <= _CHUNKS]
    tags = next(iter(named or spans), None)
    plain = {plain_name(name): name for name in columns if name != tags}
    words = next((plain[name] for name in ("form", "word", "words", "token", "tokens", "text") if name in plain), None)
    if words is None:
        others = [n for n, cells in columns.items() if n not in spans and not _are_numbers(cells)]
        # a column before the tags: the words come first in nearly all files, else they are what differs most
        words = others[0] if tags is not None and others else max(others, key=lambda n: len(columns[n]), default=None)
    if tags is None:
        tags = plain.get("upos") or next(
            (n for n in reversed([*columns]) if n != words and not _are_numbers(columns[n]) and _are_tags(columns[n])),
            None,
        )
    return words, tags


def _are_iob(cells: set[str]) -> bool:
    """Return whether all cells of a column are tags, of which some have a prefix such as ``B-``."""
    return any(len(cell) > 1 for cell in cells) and len(cells) <= _MOST_TAGS and all(map(_IOB.fullmatch, cells))


def _are_tags(cells: set[str]) -> bool:
    """Return whether the distinct cells of a column can be tags: at least two, and not so many as words have."""
    return 2 <= len(cells) <= _MOST_TAGS


def _are_numbers(cells: set[str]) -> bool:
    return all(cell.isdecimal() for cell in cells)


# --- recognizing ---


def looks_like_conll(lines: Sequence[str]) -> bool:
    """Return whether lines are words with tags in columns, with empty lines between the sentences.

    At least 90 % of the lines must have as many cells as the first one, and at least two. Tags with prefixes are enough.
    Other tags, such as parts of speech, need empty lines between several sentences of several words.
    """
    left_out = (_DOCUMENT, _COLUMNS_COMMENT)
    tagged = [line for line in lines if line.strip() and not _COMMENT.match(line) and not line.startswith(left_out)]
    separator = "\t" if any("\t" in line for line in tagged[:_SHOWN_WORDS]) else None
    words = [_split_cells(line, separator) for line in tagged]
    if not words or len(words[0]) < 2:
        return False
    width = len(words[0])
    if sum(len(cells) == width for cells in words) < 0.9 * len(words):
        return False
    columns = [{cells[i] for cells in words if len(cells) == width} for i in range(width)]
    has_spans = any(map(_are_iob, columns))
    if any(" " in cell for cells in columns[has_spans:] for cell in cells):
        return False  # texts in cells between tabs: a table
    inner = "\n".join(lines).strip("\n").split("\n")
    sentences = 1 + sum(not line.strip() and bool(after.strip()) for line, after in pairwise(inner))
    if has_spans:
        return len(words) > sentences
    fewest, most = _SENTENCE_WORDS
    if sentences < _FEWEST_SENTENCES or not fewest * sentences <= len(words) <= most * sentences:
        return False
    is_short = all(sum(map(len, cells)) <= _MOST_CHARACTERS * len(cells) for cells in columns[:4])
    return is_short and any(map(_are_tags, columns[1:]))


# --- tables of words ---

_SENTENCES = ("sentence#", "sentenceid", "sentenceno", "sentencenumber", "sentid", "sentenceidx", "sent#")
_SENTENCE_NUMBER = re.compile(r"(?:sentence\b\D{0,3})?\d+", re.IGNORECASE)
"""What numbers a sentence in a column that could also hold its text: ``7``, ``Sentence: 7``."""
_WORD_NAMES = ("word", "token")
_TAG_NAMES = ("tag", "tags", "nertag", "ner", "pos", "label", "iob", "bio")


def group_words(
    rows: Iterator[tuple[int, dict[str, Any]]], title: str, limits: Limits, named: Collection[str] = ()
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Join the rows of a table of single words to one row per sentence, with lists as cells; yield rows of other tables unchanged.

    The first row decides which of the two the table is. A row whose sentence cell is empty belongs to the sentence
    before.

    Args:
        rows: The rows of a file.
        title: Name of the file in errors.
        limits: Size limits; a sentence may have as many bytes as a row.
        named: Columns that the user names, see `find_sentence_column`.

    Raises:
        InputError: If a sentence is too long.
    """
    first = next(rows, None)
    if first is None:
        return
    column = find_sentence_column(first[1], named)
    if column is None:
        yield first
        yield from rows
        return
    sentence, start, current, size = dict[str, list[Any]](), first[0], first[1][column], 0
    for number, row in chain([first], rows):
        if row.get(column) not in (None, "", current):
            yield start, dict(sentence)
            sentence, start, current, size = {}, number, row[column], 0
        size += sum(count_bytes(str(cell)) for cell in row.values())
        if size > limits.line:
            raise limits.length_error(title, start, "sentence")
        for name in row:
            if name != column:
                sentence.setdefault(name, []).append(row[name])
    yield start, dict(sentence)


def find_sentence_column(row: Mapping[str, Any], named: Collection[str] = ()) -> str | None:
    """Return the column that numbers the sentences in a table of single words; None if the file is no such table.

    In such a table each row is one word, with its tag and the name or number of its sentence.

    Args:
        row: The first row of a file.
        named: Columns that the user names. If the column of sentences is among them, the user wants it as a text: the
            result is None.
    """
    plain = {plain_name(str(name)): name for name in row}
    sentence = next((plain[name] for name in _SENTENCES if name in plain), None)
    if sentence is None and "sentence" in plain and _SENTENCE_NUMBER.fullmatch(str(row[plain["sentence"]])):
        sentence = plain["sentence"]
    if sentence in named:
        return None
    word = next((row[plain[name]] for name in _WORD_NAMES if name in plain), None)
    is_word = isinstance(word, str) and len(word.split()) == 1 and any(name in plain for name in _TAG_NAMES)
    return sentence if is_word else None
