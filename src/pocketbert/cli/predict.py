"""The command `predict`: answer texts with a model of an artefact folder; needs the core installation only.

Texts come from arguments, stdin or a file; answers go to stdout, or with -o into a file next to the columns of their rows. A file is
read row by row, once to check it and once to answer it, and answered in portions, on all cores. With -o it is read once more, to
write its columns; answered portions are kept until then, and the same command goes on behind them after a kill.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pocketbert.cli import options
from pocketbert.cli.commands import RESULTS, add
from pocketbert.cli.output import json_text, print_answer, print_json
from pocketbert.cli.predict_inputs import InputTexts, check_inputs, find_inputs, parts_of, read_needs
from pocketbert.core.data.streams import DEFAULT_LINE_MB, DEFAULT_MAX_ROWS
from pocketbert.core.errors import InputError, Problem, suggest_allowed
from pocketbert.core.host.terminal import escape_separators

if TYPE_CHECKING:
    from pocketbert.core.disk.kept_rows import KeptRows
    from pocketbert.core.predict.answers import Answer
    from pocketbert.runtime.model import AnyText, Model


_PORTION = 1024
"""Rows that are read, answered and kept together; also what decides which texts a batch is made of."""
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
        typer.Option("--file", help="Read texts from a .txt file (one per line) or from any other data file."),
    ] = None,
    text: options.Text = None,
    text_pair: options.TextPair = None,
    header: options.Header = None,
    encoding: options.Encoding = None,
    max_line_mb: options.MaxLine = DEFAULT_LINE_MB,
    max_rows: options.MaxRows = DEFAULT_MAX_ROWS,
    scheme: options.Scheme = None,
    format: options.Format = None,
    engine: options.Engine = None,
    cadence: Annotated[
        str | None,
        typer.Option(
            "--cadence",
            help="With --engine fastest, measure calls right after one another (batch, the default) or single calls after "
            "100 ms of idle time (interactive).",
        ),
    ] = None,
    model_file: options.ModelFile = None,
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
    query: Annotated[
        str | None,
        typer.Option(
            "--query",
            help="Rank the texts for this query with a reranker (CrossEncoder), and print them with their scores, best first.",
        ),
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(
            "--top",
            min=1,
            help="Print this number of labels per text, or of tokens per masked place; default 1. With --query, this number "
            "of texts; default all.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="Write the answers to this .csv, .tsv or .jsonl file, each next to the columns of its row, instead of printing them.",
        ),
    ] = None,
    dimensions: Annotated[
        int | None,
        typer.Option(
            "--dimensions",
            min=1,
            help="Cut vectors to their first numbers, as many as this, and divide them by their length; the model card lists the "
            "lengths that the model was trained for.",
        ),
    ] = None,
    overwrite: options.OverwriteFile = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per text.")] = False,
) -> None:
    """Run the model of an artefact folder on texts.

    It prints labels, numbers, spans, excerpts, tokens or vectors, depending on the model's task. With --text-pair and
    texts as arguments, give the two texts of each pair one after the other; a multiple-choice model takes one question,
    and then its choices. With --query, each text is a passage, and the passages are sorted by their scores. If the
    folder was exported with --form, the model has inputs besides the text; they are read from the columns "language" or
    "entities" of the file that --file names.
    """
    from pocketbert.core.disk.kept_rows import keep_rows
    from pocketbert.core.host.progress import print_note
    from pocketbert.runtime.model import load, load_callers

    if output is not None:
        output = _check_answer_file(output, overwrite, model, *([file] if file else []))
    # texts that are not read from a file have no columns: of the source, only the limits are used
    source = options.rows(file or "stdin", text, text_pair, None, header, max_line_mb, max_rows, encoding)
    columns, task = read_needs(model)
    inputs = find_inputs(texts or [], file, source, columns, task, with_rows=json or output is not None)
    count, names = check_inputs(inputs, task)
    chosen = {"format": format, "engine": engine, "file": model_file, "cadence": cadence}
    if count > _PORTION and query is None:
        opened = load_callers(model, scheme, threads, None, **chosen)
    else:
        opened = [load(model, scheme, threads, **chosen)]
    if opened[0].choice:
        print_note(opened[0].choice)
    opened[0].tokenizer.with_prompt(prompt)  # an unknown name ends the command before anything is computed
    if dimensions is not None and dimensions not in (lengths := getattr(opened[0].head, "dimensions", ())):
        known = f"the model's are {', '.join(map(str, lengths))}" if lengths else "the model was trained for none"
        raise InputError(
            Problem("--dimensions", f"{dimensions} is no length to cut vectors to; {known}.", "Leave it out.")
        )
    if query is not None:
        _rank(opened[0], query, inputs, top, output, json)
        return
    if opened[0].tokenizer.reader is not None:
        opened[0].tokenizer.reader.check(text for _, text in inputs.read())
    asked = _Asked(opened, inputs, count, prompt, top or 1, dimensions)
    if output is None:
        for row, one, answer in asked.answers():
            _print_answer(one, answer, inputs.other_columns(row) if json else {}, asked.top, json)
        return
    key = _digest_settings(opened[0], inputs, [prompt, asked.top, engine, cadence, dimensions])
    with keep_rows(output, key, _PORTION) as kept:
        if kept.note:
            print_note(kept.note)
        asked.keep(kept)
        _write_answers(output, (row for row, _ in inputs.read()), kept, names)
    print_note(f"{count:,} answers: {output}")


@dataclass(frozen=True)
class _Asked:
    """The texts of a command with what answers them: models, prompt, number of alternatives and length of vectors.

    Attributes:
        models: The model, one for each thread.
        inputs: The texts.
        count: Number of texts.
        prompt: Name of the prompt.
        top: Number of alternatives.
        dimensions: Length to which vectors are cut; None for whole vectors.
    """

    models: Sequence[Model]
    inputs: InputTexts
    count: int
    prompt: str | None
    top: int
    dimensions: int | None = None

    def answers(self) -> Iterator[tuple[Mapping[str, Any], AnyText, Answer]]:
        """Yield each row with its text and answer."""
        for portion, answers in self._portions(0):
            answers = self._cut(answers)
            yield from ((row, text, answer) for (row, text), answer in zip(portion, answers, strict=True))

    def keep(self, kept: KeptRows) -> None:
        """Answer the rows that have no answer in `kept` yet, and add the fields of each answer to it as a line of JSON."""
        from pocketbert.core.predict.answers import answer_fields

        for _, answers in self._portions(kept.done):
            kept.add([json_text(answer_fields(answer, self.top)).encode() for answer in self._cut(answers)])

    def _cut(self, answers: Sequence[Answer]) -> Sequence[Answer]:
        """Return the answers, with vectors cut to the length that was asked for."""
        from pocketbert.core.predict.answers import Embedding

        if self.dimensions is None:
            return answers
        return [a.cut(self.dimensions) if isinstance(a, Embedding) else a for a in answers]

    def _portions(self, done: int) -> Iterator[tuple[list[tuple[Mapping[str, Any], AnyText]], Sequence[Answer]]]:
        """Yield the portions of rows behind the first `done` with their answers, and show the progress."""
        from pocketbert.core.host.progress import Meter
        from pocketbert.runtime.model import predict_portions

        rows = islice(self.inputs.read(), done, None)
        if self.count <= _PORTION:
            portion = list(rows)
            yield portion, self.models[0].predict([text for _, text in portion], "predict", self.prompt)
            return
        read: deque[list[tuple[Mapping[str, Any], AnyText]]] = deque()

        def texts() -> Iterator[list[AnyText]]:
            """Yield the texts of portions, whose rows are held in `read` until they are answered."""
            while portion := list(islice(rows, _PORTION)):
                read.append(portion)
                yield [text for _, text in portion]

        with Meter("predict", self.count, done) as meter:
            for answers in predict_portions(self.models, texts(), self.prompt):
                yield read.popleft(), answers
                meter.advance(len(answers))


def _digest_settings(model: Model, inputs: InputTexts, settings: Sequence[object]) -> str:
    """Return a digest of whatever decides the answers to texts: the model's files, the engine, the texts and settings."""
    from pocketbert.core.artefacts import ARTEFACTS_FILE
    from pocketbert.core.disk.files import sha256_file, sha256_json
    from pocketbert.core.host.system import version_of

    engine = [model.file, model.predictor.engine, model.predictor.engine_version, version_of("pocketbert")]
    return sha256_json([sha256_file(model.folder / ARTEFACTS_FILE), engine, inputs.source, *settings])


def _rank(model: Model, query: str, inputs: InputTexts, top: int | None, output: Path | None, json: bool) -> None:
    """Rank passages for a query, and print or write the best `top` of them (None for all) with their rows and scores.

    Raises:
        InputError: If the texts are pairs, or the model is no reranker.
    """
    from pocketbert.core.host.progress import print_note
    from pocketbert.core.predict.answers import answer_fields

    rows = list(inputs.read())
    passages = [text for _, text in rows if isinstance(text, str)]
    if len(passages) < len(rows):
        what = "the texts are pairs; with a query, each text is one passage."
        raise InputError(
            Problem("--query", what, "Name the column of the passages with --text, and leave --text-pair out.")
        )
    try:
        ranked = model.rank(query, passages, "predict")[:top]
    except InputError as error:
        flags = [replace(p, where="--query") if p.where == "query" else p for p in error.problems]
        raise InputError(flags) from error
    if output is None:
        for i, answer in ranked:
            _print_answer(passages[i], answer, inputs.other_columns(rows[i][0]) if json else {}, 1, json)
        return
    lines = [json_text(answer_fields(answer)).encode() for _, answer in ranked]
    best = [rows[i][0] for i, _ in ranked]
    _write_answers(output, best, lines, list(dict.fromkeys(name for row in best for name in row)))
    print_note(f"{len(ranked):,} answers: {output}")


def _check_answer_file(path: Path, overwrite: bool, *read: Path) -> Path:
    """Check that the file for answers (-o) can be written, and return its path with links resolved.

    Args:
        path: Value of -o.
        overwrite: Whether an existing file may be replaced.
        read: Files and folders that the command reads, which may not be replaced.

    Raises:
        InputError: If the suffix is not one of `_ANSWER_FILES`, the file exists and may not be replaced, or the command
            reads it.
    """
    from pocketbert.core.disk.destination import resolve_output_file

    if path.suffix not in _ANSWER_FILES:
        what = f"'{path.suffix}' is no kind of file for answers; {suggest_allowed(path.suffix, _ANSWER_FILES)}."
        raise InputError(Problem("-o/--output", what, f"Name it for example {path.stem or 'answers'}.csv."))
    return resolve_output_file(path, overwrite, *read)


def _print_answer(text: AnyText, answer: Answer, other: Mapping[str, Any], top: int, json: bool) -> None:
    """Print the model's answer to one text, as a tab-separated line or as JSON.

    Args:
        text: The text, both texts of a pair, or a question with its choices.
        answer: The model's answer.
        other: The other columns of the text's row, which are only printed as JSON.
        top: Number of alternatives that are shown.
        json: Whether to print JSON.
    """
    shown = text if isinstance(text, str) else parts_of(text)
    if json:
        from pocketbert.core.predict.answers import answer_fields

        fields = {"text": shown, **answer_fields(answer, top)}
        print_json({**fields, "row": dict(other)} if other else fields)
        return
    text_shown = shown if isinstance(shown, str) else " | ".join(shown)
    print_answer(f"{answer.line(top)}\t{escape_separators(text_shown)}{'  [truncated]' if answer.truncated else ''}")


def _write_answers(
    path: Path, rows: Iterable[Mapping[str, Any]], lines: KeptRows | Sequence[bytes], columns: Sequence[str]
) -> None:
    """Write rows with their answers to a file, as table columns ``predicted_...`` or as JSON field ``answer``.

    Args:
        path: The file, .csv, .tsv or .jsonl; it appears when it is complete, and its folder is created if it is missing.
        rows: The rows, with all their columns.
        lines: The fields of each row's answer as JSON.
        columns: Names of all columns of the rows.
    """
    import codecs
    import csv
    import json

    from pocketbert.core.disk.files import open_atomic

    path.parent.mkdir(parents=True, exist_ok=True)
    answers = map(json.loads, lines if isinstance(lines, Sequence) else lines.read())
    with open_atomic(path) as file:
        # another column may hold half of a surrogate pair
        text = codecs.getwriter("utf-8")(file, "backslashreplace")
        if path.suffix == _JSON_LINES:
            for row, answer in zip(rows, answers, strict=True):
                text.write(json_text({**row, "answer": answer}) + "\n")
            return
        table = csv.writer(text, delimiter=_SEPARATORS[path.suffix])
        added: list[str] = []
        for row, answer in zip(rows, answers, strict=True):
            fields = {f"{_PREFIX}{name}": value for name, value in answer.items()}
            if not added:
                added = list(fields)
                table.writerow([*columns, *added])
            table.writerow([_cell(row.get(c)) for c in columns] + [_cell(fields.get(c)) for c in added])


def _cell(value: object) -> object:
    """Return a value for a .csv or .tsv cell: lists, objects and booleans as JSON text, others unchanged."""
    return json_text(value) if isinstance(value, list | dict | bool) else value
