"""The command `predict`: answer texts with a model of an artefact folder; needs the core installation only.

Texts come from arguments, stdin or a file; answers go to stdout, or with -o into a file next to the columns of their rows.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pocketbert.cli import options
from pocketbert.cli.commands import RESULTS, add
from pocketbert.cli.output import json_text, print_answer, print_json
from pocketbert.core.data.streams import DEFAULT_LINE_MB, DEFAULT_MAX_ROWS, Limits, read_texts, read_texts_of_stream
from pocketbert.core.errors import InputError, Problem, suggest_allowed
from pocketbert.core.host.terminal import escape_separators

if TYPE_CHECKING:
    from pocketbert.core.data.source import DataSource
    from pocketbert.core.predict.answers import Answer
    from pocketbert.core.predict.inputs import Text
    from pocketbert.runtime.model import Model


_TEXTS_AT_ONCE = 1 << 16
"""Texts whose answers are held in memory together."""
_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_JSON_LINES = ".jsonl"
_ANSWER_FILES = (*_SEPARATORS, _JSON_LINES)
_PREFIX = "predicted_"
"""Prefix of an answer's columns in a table, so that a label to compare with keeps its name."""


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    add(app, predict, RESULTS)


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
    header: options.Header = None,
    max_line_mb: options.MaxLine = DEFAULT_LINE_MB,
    max_rows: options.MaxRows = DEFAULT_MAX_ROWS,
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
    cadence: Annotated[
        str | None,
        typer.Option(
            "--cadence",
            help="With --engine fastest, measure calls right after one another (batch, the default) or single calls after "
            "100 ms of idle time (interactive).",
        ),
    ] = None,
    model_file: Annotated[
        str | None,
        typer.Option("--model-file", help="Open this file of the folder, e.g. tflite/model_int8.tflite."),
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option(
            "--prompt",
            help="Put the model's prompt of this name, e.g. query or passage, in front of each text; default: the folder's "
            "default prompt, '' for none.",
        ),
    ] = None,
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, help="Use this number of threads; default: all cores.")
    ] = None,
    top: Annotated[
        int, typer.Option("--top", min=1, help="Print this number of labels per text, or of tokens per masked place.")
    ] = 1,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="Write the answers to this .csv, .tsv or .jsonl file, each next to the columns of its row, instead of printing them.",
        ),
    ] = None,
    overwrite: options.OverwriteFile = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per text.")] = False,
) -> None:
    """Run the model of an artefact folder on texts.

    It prints labels, numbers, spans, excerpts, tokens or vectors, depending on the model's task.
    With --text-pair and texts as arguments, give the two texts of each pair one after the other.
    Files of a form (export --form) read further inputs from the columns language or entities of --file.
    """
    from pocketbert.core.host.progress import print_note
    from pocketbert.runtime.model import check_texts, load

    if output is not None:
        output = _check_answer_file(output, overwrite, model, *([file] if file else []))
    # texts that are not read from a file have no columns: of the source, only the limits are used
    source = options.rows(file or "stdin", text, text_pair, None, header, max_line_mb, max_rows)
    read = _read_inputs(texts or [], file, source, _input_columns(model), with_rows=json or output is not None)
    opened = load(model, scheme, threads, format=format, engine=engine, file=model_file, cadence=cadence)
    if opened.choice:
        print_note(opened.choice)
    check_texts(opened.head.task, read.texts)
    _warn_of_empty(read.texts)
    opened.tokenizer.with_prompt(prompt)  # an unknown name ends the command before anything is computed
    answers = _answers(opened, read.texts, prompt)
    if output is not None:
        _write_answers(output, read.rows, answers, top)
        print_note(f"{len(read.texts):,} answers: {output}")
        return
    others = read.others if json else [{}] * len(read.texts)
    for row, answer, other in zip(read.texts, answers, others, strict=True):
        _print_answer(row, answer, other, top, json)


def _warn_of_empty(texts: Sequence[Text]) -> None:
    """Print a warning with the number of texts that have no visible character."""
    from pocketbert.core.data.cells import is_visible
    from pocketbert.core.host.progress import print_note

    empty = [
        i for i, text in enumerate(texts, 1) if not all(map(is_visible, [text] if isinstance(text, str) else text))
    ]
    if empty:
        print_note(
            f"text {empty[0]} is empty ({len(empty):,} in all): its answer does not mean anything", style="yellow"
        )


def _answers(model: Model, texts: Sequence[Text], prompt: str | None) -> Iterator[Answer]:
    """Yield the model's answers to texts, computed in portions of `_TEXTS_AT_ONCE` texts."""
    for start in range(0, len(texts), _TEXTS_AT_ONCE):
        yield from model.predict(texts[start : start + _TEXTS_AT_ONCE], progress="predict", prompt=prompt)


@dataclass(frozen=True)
class _Inputs:
    """The texts to run the model on, with the data rows that they came from.

    Attributes:
        texts: Inputs of the model.
        rows: The rows that they came from, with all columns; empty if they are not needed.
        named: Names of the columns that hold the texts.
    """

    texts: Sequence[Text]
    rows: Sequence[Mapping[str, Any]]
    named: Sequence[str | None]

    @property
    def others(self) -> Sequence[Mapping[str, Any]]:
        """The columns of each row that hold no text."""
        return [{k: v for k, v in row.items() if k not in self.named} for row in self.rows]


def _input_columns(model: Path) -> tuple[str, ...]:
    """Return the names of data columns that the model's files read beside the text; empty if they read text only."""
    from pocketbert.core.artefacts import find_artefact_folder, read_artefacts
    from pocketbert.core.predict.inputs import COLUMNS

    try:
        return COLUMNS if read_artefacts(find_artefact_folder(model)).form is not None else ()
    except InputError:
        return ()  # opening the model raises the error


def _read_inputs(
    texts: list[str], file: Path | None, source: DataSource, columns: tuple[str, ...], with_rows: bool
) -> _Inputs:
    """Read the texts to run the model on from arguments, a file or stdin.

    Args:
        texts: The arguments.
        file: Value of --file.
        source: The file with the columns and limits that options name; the file need not exist.
        columns: Further columns that the model takes.
        with_rows: Whether the rows of a file are needed.

    Raises:
        InputError: If there is no text, or options contradict each other.
    """
    from pocketbert.core.data.columns import guess_columns
    from pocketbert.core.data.examples import read_examples
    from pocketbert.core.data.files import read_rows
    from pocketbert.core.data.tables import BadRows
    from pocketbert.core.host.progress import print_note
    from pocketbert.core.tasks import LabelKind

    if texts and file is not None:
        raise InputError(Problem("--file", "was given together with texts.", "Give only one of them."))
    if source.header is not None and (file is None or file.suffix == ".txt"):
        what = "belong to a .csv or .tsv file; every line here is a text."
        raise InputError(Problem("--header, --no-header", what, "Leave them out, or give --file FILE.csv"))
    if file is not None and file.suffix != ".txt":
        found = guess_columns(source, LabelKind.NONE)
        if found.note:
            print_note(found.note)
        inputs = [example.input for example in read_examples(found.source, labelled=False, columns=columns)]
        rows = [row for _, row in read_rows(found.source, BadRows(found.source.title))] if with_rows else []
        return _Inputs(inputs, rows, (found.source.text, found.source.text_pair))
    if file is not None:
        texts = read_texts(file, source.limits)
    elif not texts:
        texts = _read_stdin(source.limits)
    if source.text_pair is None:
        return _Inputs(texts, [{"text": t} for t in texts], ("text",))
    if len(texts) % 2:
        raise InputError(
            Problem(
                "predict",
                f"{len(texts)} texts do not form pairs.",
                "Give two texts for each pair, one after the other.",
            )
        )
    pairs = list(zip(texts[::2], texts[1::2], strict=True))
    return _Inputs(pairs, [{"text": a, "text_pair": b} for a, b in pairs], ("text", "text_pair"))


def _read_stdin(limits: Limits) -> list[str]:
    """Return the texts of stdin, one per line; raise InputError if it is a terminal or cannot be read."""
    if sys.stdin is None or sys.stdin.closed or sys.stdin.isatty():
        raise InputError(Problem("predict", "got no text.", "Give texts as arguments, --file FILE, or pipe them in."))
    try:
        return read_texts_of_stream(sys.stdin.buffer, "stdin", limits)
    except OSError as error:  # a folder, or opened for writing
        why = error.strerror or str(error)
        raise InputError(Problem("stdin", f"cannot be read: {why}.", "Pipe text in, or give --file FILE.")) from error


def _check_answer_file(path: Path, overwrite: bool, *read: Path) -> Path:
    """Return the resolved file for answers, after checking that it can be written.

    Args:
        path: Value of -o.
        overwrite: Whether an existing file may be replaced.
        read: Files and folders that the command reads, which may not be overwritten.

    Returns:
        The file, links resolved.

    Raises:
        InputError: If its suffix is not one of `_ANSWER_FILES`, or it exists.
    """
    from pocketbert.core.disk.destination import resolve_output_file

    if path.suffix not in _ANSWER_FILES:
        what = f"'{path.suffix}' is no kind of file for answers; {suggest_allowed(path.suffix, _ANSWER_FILES)}."
        raise InputError(Problem("-o/--output", what, f"Name it for example {path.stem or 'answers'}.csv."))
    return resolve_output_file(path, overwrite, *read)


def _print_answer(text: Text, answer: Answer, other: Mapping[str, Any], top: int, json: bool) -> None:
    """Print the model's answer to one text, as a tab-separated line or as JSON.

    Args:
        text: The text, or both texts of a pair.
        answer: The model's answer.
        other: The other columns of the text's row; printed as JSON only.
        top: Number of alternatives that are shown.
        json: Whether to print JSON.
    """
    shown = text if isinstance(text, str) else list(text)
    if json:
        fields = {"text": shown, **answer.fields(top), "truncated": answer.truncated}
        print_json({**fields, "row": dict(other)} if other else fields)
        return
    text_shown = shown if isinstance(shown, str) else " | ".join(shown)
    print_answer(f"{answer.line(top)}\t{escape_separators(text_shown)}{'  [truncated]' if answer.truncated else ''}")


def _write_answers(path: Path, rows: Sequence[Mapping[str, Any]], answers: Iterable[Answer], top: int) -> None:
    """Write rows with their answers to a file, as table columns ``predicted_...`` or as JSON field ``answer``.

    Args:
        path: The file, .csv, .tsv or .jsonl; it appears when it is complete.
        rows: The rows, with all their columns.
        answers: One for each row.
        top: Number of alternatives that are written.
    """
    import codecs
    import csv

    from pocketbert.core.disk.files import open_atomic

    path.parent.mkdir(parents=True, exist_ok=True)
    with open_atomic(path) as file:
        # another column may hold half of a surrogate pair
        text = codecs.getwriter("utf-8")(file, "backslashreplace")
        if path.suffix == _JSON_LINES:
            for row, answer in zip(rows, answers, strict=True):
                text.write(json_text({**row, "answer": _fields(answer, top)}) + "\n")
            return
        columns = list(dict.fromkeys(name for row in rows for name in row))
        table = csv.writer(text, delimiter=_SEPARATORS[path.suffix])
        added: list[str] = []
        for row, answer in zip(rows, answers, strict=True):
            fields = {f"{_PREFIX}{name}": value for name, value in _fields(answer, top).items()}
            if not added:
                added = list(fields)
                table.writerow([*columns, *added])
            table.writerow([_cell(row.get(c)) for c in columns] + [_cell(fields.get(c)) for c in added])


def _fields(answer: Answer, top: int) -> dict[str, Any]:
    """Return an answer's fields as JSON values, with `top` alternatives and whether the text was truncated."""
    return {**answer.fields(top), "truncated": answer.truncated}


def _cell(value: object) -> object:
    """Return a value for a .csv or .tsv cell: lists, objects and booleans as JSON text, others unchanged."""
    return json_text(value) if isinstance(value, list | dict | bool) else value
