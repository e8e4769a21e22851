"""predict: text in, answers out; needs the core install only."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pocketbert.cli import options
from pocketbert.cli.groups import RESULTS
from pocketbert.cli.guard import guarded
from pocketbert.cli.output import print_answer, print_json
from pocketbert.core.data.limits import LINE_MB, ROWS, Limits
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.host.progress import say
from pocketbert.core.host.terminal import one_field

if TYPE_CHECKING:
    from pocketbert.core.data.source import DataSource
    from pocketbert.core.predict.answers import Answer
    from pocketbert.core.predict.tokenization import Text

_AT_ONCE = 1 << 16
"""Texts whose answers are held in memory together."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(rich_help_panel=RESULTS)(guarded(predict))


def predict(
    model: options.Folder,
    texts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TEXT]...", help="Run the model on these texts; without any, read stdin, one text per line."
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", help="Read texts from a .txt (one per line), .jsonl[.gz], .csv or .tsv file."),
    ] = None,
    text: options.Text = None,
    text_pair: options.TextPair = None,
    max_line_mb: options.MaxLine = LINE_MB,
    max_rows: options.MaxRows = ROWS,
    scheme: Annotated[
        str | None,
        typer.Option(
            "--scheme",
            help="Open the file of this scheme: int8, fp32, ...; default: that of the folder's default file.",
        ),
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="Open the file of this format: onnx, tflite, coreml; default: that of the folder's default file.",
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            "--engine",
            help="Use fastest here to let PocketBERT measure once which file is fastest at each length, and open that one.",
        ),
    ] = None,
    model_file: Annotated[
        str | None,
        typer.Option("--model-file", help="Open this file of the folder, e.g. tflite/model_int8.tflite."),
    ] = None,
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, help="Use this number of threads; default: all cores.")
    ] = None,
    top: Annotated[
        int, typer.Option("--top", min=1, help="Print this number of labels per text, or of tokens per masked place.")
    ] = 1,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per text.")] = False,
) -> None:
    """Run the model of an artefact folder on texts.

    It prints labels, numbers, spans, excerpts, tokens or vectors, depending on the model's task.
    With --text-pair and texts as arguments, give the two texts of each pair one after the other.
    Files of a form (export --form) read further inputs from the columns language or entities of --file.
    """
    from pocketbert.runtime.model import check_texts, load

    # of texts that are no file, only the limits count
    source = options.rows(file or "stdin", text, text_pair, None, max_line_mb, max_rows)
    rows = _rows(texts or [], file, source, _columns(model))
    opened = load(model, scheme, threads, format=format, engine=engine, file=model_file)
    if opened.choice:
        say(opened.choice)
    check_texts(opened.head.task, rows)
    for start in range(0, len(rows), _AT_ONCE):
        some = rows[start : start + _AT_ONCE]
        for row, answer in zip(some, opened.predict(some, progress="predict"), strict=True):
            _print(row, answer, top, json)


def _print(row: Text, answer: Answer, top: int, json: bool) -> None:
    shown = row if isinstance(row, str) else list(row)
    if json:
        fields = {"text": shown, **answer.fields(top), "truncated": answer.truncated}
        print_json(fields)
    else:
        text_shown = shown if isinstance(shown, str) else " | ".join(shown)
        print_answer(f"{answer.line(top)}\t{one_field(text_shown)}{'  [truncated]' if answer.truncated else ''}")


def _columns(model: Path) -> tuple[str, ...]:
    """Data columns that the files of a folder read besides the text."""
    from pocketbert.core.artefacts import artefact_folder, read_artefacts
    from pocketbert.core.predict.columns import COLUMNS

    try:
        return COLUMNS if read_artefacts(artefact_folder(model)).form is not None else ()
    except InputError:
        return ()  # whoever opens the folder says what is wrong


def _rows(texts: list[str], file: Path | None, source: DataSource, columns: tuple[str, ...]) -> list[Text]:
    from pocketbert.core.data.columns import guess_columns
    from pocketbert.core.data.examples import read_examples
    from pocketbert.core.data.streams import read_texts
    from pocketbert.core.tasks import LabelKind

    if texts and file is not None:
        raise InputError(Problem("--file", "was given together with texts.", "Give only one of them."))
    if file is not None and file.suffix != ".txt":
        found = guess_columns(source, LabelKind.NONE)
        if found.note:
            say(found.note)
        return [example.input for example in read_examples(found.source, labelled=False, columns=columns)]
    if file is not None:
        texts = read_texts(file, source.limits)
    elif not texts:
        texts = _from_stdin(source.limits)
    if source.text_pair is None:
        return list(texts)
    if len(texts) % 2:
        raise InputError(
            Problem(
                "predict",
                f"{len(texts)} texts do not form pairs.",
                "Give two texts for each pair, one after the other.",
            )
        )
    return list(zip(texts[::2], texts[1::2], strict=True))


def _from_stdin(limits: Limits) -> list[str]:
    from pocketbert.core.data.streams import texts_of_stream

    if sys.stdin is None or sys.stdin.closed or sys.stdin.isatty():
        raise InputError(Problem("predict", "got no text.", "Give texts as arguments, --file FILE, or pipe them in."))
    try:
        return texts_of_stream(sys.stdin.buffer, "stdin", limits)
    except OSError as error:  # a folder, or opened for writing
        why = error.strerror or str(error)
        raise InputError(Problem("stdin", f"cannot be read: {why}.", "Pipe text in, or give --file FILE.")) from error
