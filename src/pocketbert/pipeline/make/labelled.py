"""Labelled rows of a user's file, as the files of an artefact folder take them."""

from __future__ import annotations

from pathlib import Path

from pocketbert.core.artefacts import read_artefacts
from pocketbert.core.compare.evaluate import EvalSet
from pocketbert.core.data.columns import found_columns
from pocketbert.core.data.examples import read_examples
from pocketbert.core.data.labels import Labels, placeholder_names, with_numbers
from pocketbert.core.data.source import DataSource
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.heads import head_of
from pocketbert.core.host.progress import say
from pocketbert.core.predict.tokenization import TextTokenizer


def labelled_rows(folder: Path, source: DataSource) -> EvalSet:
    """Read and tokenize the rows that files are scored on.

    Args:
        folder: The artefact folder.
        source: The rows; columns that are not named are found.

    Raises:
        InputError: If the rows cannot be read or scored.
    """
    artefacts = read_artefacts(folder)
    head, name = artefacts.head(), Path(source.title).name
    source = found_columns(source, head.task.labels)
    tokenizer = TextTokenizer(folder, artefacts.processing.max_length)
    reader = tokenizer.reader
    rows = read_examples(source, kind=head.task.labels, columns=reader.form.columns if reader else ())
    names = tuple(artefacts.labels)
    labels = with_numbers(Labels(names), rows, head.task.labels, ordered=placeholder_names(names))
    if labels.numbers:
        say(f"{name}: {labels.note}")
        head = head_of(head.task, labels, artefacts.processing.settings())
    if reader is not None:
        reader.check([row.input for row in rows], f"{name} row")
    prepared = head.prepare(rows, tokenizer, source.title)
    if not len(prepared.truth):
        raise InputError(
            Problem(
                "--data",
                f"{name} has no scored pairs; vectors without scores are compared on golden rows.",
                "Give --text-pair and --label, or leave --data out.",
            )
        )
    return EvalSet(name, head, prepared)
