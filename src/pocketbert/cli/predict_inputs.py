"""The texts that the command `predict` answers: arguments, the lines of stdin, or the rows of a file.

`read_needs` reads what the model takes, `find_inputs` finds the texts, `check_inputs` reads all of them once before the first is
answered. A file is read anew, row by row, each time.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pocketbert.core.data.streams import UTF8, Limits, iterate_texts, read_texts, read_texts_of_stream
from pocketbert.core.errors import InputError, Problem

if TYPE_CHECKING:
    from pocketbert.core.data.source import DataSource
    from pocketbert.core.tasks import LabelKind, Task
    from pocketbert.runtime.model import AnyText

_FEWEST_WITH_CHOICES = 3
"""Fewest texts for a multiple-choice model: a question and two choices."""


@dataclass(frozen=True)
class InputTexts:
    """The texts to run the model on, with the data rows that they come from.

    Attributes:
        read: Reads the rows from their beginning: each with its columns, and the text as the model takes it.
        named: Names of the columns that hold the texts.
        source: JSON values that identify the texts: the texts themselves, or settings and digest of their file.
    """

    read: Callable[[], Iterator[tuple[Mapping[str, Any], AnyText]]]
    named: Sequence[str | None]
    source: Any

    def other_columns(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the columns of a row that hold none of the texts."""
        return {name: value for name, value in row.items() if name not in self.named}


def read_needs(model: Path) -> tuple[tuple[str, ...], Task | None]:
    """Return the data columns that the model's files may read beside the text, and its task; no columns and None if its folder cannot be read."""
    from pocketbert.core.artefacts import find_artefact_folder, read_artefacts
    from pocketbert.core.predict.inputs import COLUMNS

    try:
        artefacts = read_artefacts(find_artefact_folder(model))
    except InputError:
        return (), None  # opening the model raises the error
    return COLUMNS if artefacts.form is not None else (), artefacts.task_row


def find_inputs(
    texts: list[str],
    file: Path | None,
    source: DataSource,
    columns: tuple[str, ...],
    task: Task | None,
    with_rows: bool,
) -> InputTexts:
    """Find the texts to run the model on: arguments, a file or stdin.

    Args:
        texts: The arguments.
        file: Value of --file.
        source: The file with the columns and limits that options name; the file need not exist.
        columns: Data columns that the model's files read beside the text.
        task: The model's task: the inputs of multiple choice are questions with choices.
        with_rows: Whether all columns of the file are needed.

    Raises:
        InputError: If there is no text, or options contradict each other.
    """
    from pocketbert.core.data.columns import guess_columns
    from pocketbert.core.data.forms import open_noted_text
    from pocketbert.core.disk.files import sha256_path
    from pocketbert.core.host.progress import print_note
    from pocketbert.core.tasks import LabelKind

    if texts and file is not None:
        raise InputError(Problem("--file", "was given together with texts.", "Give only one of them."))
    if source.header is not None and (file is None or file.suffix == ".txt"):
        what = "belong to a .csv or .tsv file; every line here is a text."
        raise InputError(Problem("--header, --no-header", what, "Leave them out, or give --file FILE.csv"))
    chooses = task is not None and task.labels is LabelKind.CHOICE
    if file is not None and file.suffix != ".txt":
        kind = LabelKind.CHOICE if chooses else LabelKind.NONE
        found = guess_columns(source, kind)
        if found.note:
            print_note(found.note)
        read = partial(_read_file, found.source, kind, columns, with_rows)
        named = (found.source.text, found.source.text_pair)
        return InputTexts(read, named, [found.source.model_dump(mode="json"), sha256_path(file)])
    if file is not None and file.suffix == ".txt" and source.encoding is None:
        source = source.model_copy(update={"encoding": open_noted_text(source).encoding})
    if file is not None and not chooses and source.text_pair is None:
        read_lines = partial(iterate_texts, file, source.limits, source.encoding)
        digest = sha256_path(file)
        return InputTexts(lambda: (({"text": t}, t) for t in read_lines()), ("text",), [source.encoding, digest])
    if file is not None:
        texts = read_texts(file, source.limits, source.encoding)
    elif not texts:
        texts = _read_stdin(source.limits, source.encoding or UTF8)
    if chooses:
        if len(texts) < _FEWEST_WITH_CHOICES:
            what = (
                f"{len(texts)} text{'s' if len(texts) > 1 else ''}: the model chooses among the choices of a question."
            )
            raise InputError(Problem("predict", what, "Give the question, and then at least two choices."))
        question, *choices = texts
        row = {"question": question, "choices": choices}
        return InputTexts(lambda: iter([(row, (question, choices))]), ("question", "choices"), texts)
    if source.text_pair is None:
        return InputTexts(lambda: (({"text": t}, t) for t in texts), ("text",), texts)
    return _pair_texts(texts)


def _pair_texts(texts: Sequence[str]) -> InputTexts:
    """Return the pairs of texts that are given one after the other; raise InputError for an odd number."""
    if len(texts) % 2:
        what = f"{len(texts)} texts do not form pairs."
        raise InputError(Problem("predict", what, "Give two texts for each pair, one after the other."))
    pairs = list(zip(texts[::2], texts[1::2], strict=True))
    named = ("text", "text_pair")
    return InputTexts(lambda: (({"text": a, "text_pair": b}, (a, b)) for a, b in pairs), named, ["pairs", *texts])


def _read_file(
    source: DataSource, kind: LabelKind, columns: tuple[str, ...], with_rows: bool
) -> Iterator[tuple[Mapping[str, Any], AnyText]]:
    """Yield each row of a data file with its text, or its question and choices, as the model takes it.

    Args:
        source: The file, with its columns.
        kind: What the rows are read as: questions with choices, or texts.
        columns: Data columns that the model's files read beside the text.
        with_rows: Whether all columns of the file are needed.

    Raises:
        InputError: If the file cannot be read or has no rows; after its last row, listing the first 20 rows without a text.
    """
    from pocketbert.core.data.choices import choice_columns
    from pocketbert.core.data.column_names import BadRows
    from pocketbert.core.data.files import read_rows
    from pocketbert.core.data.reading import to_example

    bad, count = BadRows(source.title), 0
    needed = [source.text, source.text_pair, *columns, *choice_columns(source.choices)]
    for number, row in read_rows(source, bad, None if with_rows else [name for name in needed if name is not None]):
        example = to_example(source, number, row, False, kind, bad)
        if example is not None:
            count += 1
            example = replace(example, columns={c: row.get(c) for c in columns}) if columns else example
            yield row, (example.text, example.choices) if example.choices else example.input
    problems = bad.close()
    if problems or not count:
        raise InputError(problems or [Problem(source.title, "no rows.")])


def _read_stdin(limits: Limits, encoding: str) -> list[str]:
    """Return the texts of stdin, one per line in an encoding; raise InputError if it is a terminal or cannot be read."""
    if sys.stdin is None or sys.stdin.closed or sys.stdin.isatty():
        raise InputError(Problem("predict", "got no text.", "Give texts as arguments, --file FILE, or pipe them in."))
    try:
        return read_texts_of_stream(sys.stdin.buffer, "stdin", limits, encoding)
    except OSError as error:  # a folder, or opened for writing
        why = error.strerror or str(error)
        raise InputError(Problem("stdin", f"cannot be read: {why}.", "Pipe text in, or give --file FILE.")) from error


def check_inputs(inputs: InputTexts, task: Task | None) -> tuple[int, list[str]]:
    """Read all rows once: check that the task takes their texts, and print a warning if some have no visible character.

    Returns:
        The number of rows, and the names of their columns in the order in which they occur.
    """
    from pocketbert.core.data.cells import is_visible
    from pocketbert.core.host.progress import print_note
    from pocketbert.runtime.model import check_texts

    names: dict[str, None] = {}
    count, empty = 0, list[int]()

    def texts() -> Iterator[AnyText]:
        """Yield the texts, counted."""
        nonlocal count
        for row, text in inputs.read():
            count += 1
            names.update(dict.fromkeys(row))
            if not all(map(is_visible, parts_of(text))):
                empty.append(count)
            yield text

    if task is not None:
        check_texts(task, texts())
    else:  # opening the model raises the error
        deque(texts(), maxlen=0)
    if empty:
        print_note(
            f"text {empty[0]} is empty ({len(empty):,} in all): its answer does not mean anything", style="yellow"
        )
    return count, list(names)


def parts_of(text: AnyText) -> list[str]:
    """Return the texts of an input: one, two of a pair, or a question and its choices."""
    first, second = (text, ()) if isinstance(text, str) else text
    return [first, *([second] if isinstance(second, str) else second)]
