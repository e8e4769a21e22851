"""The command `teach`: write the answers of teachers for the rows of a file into a column."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pocketbert import api
from pocketbert.cli import options
from pocketbert.cli.commands import STEPS, add
from pocketbert.cli.output import print_json
from pocketbert.core.data.streams import DEFAULT_LINE_MB, DEFAULT_MAX_ROWS
from pocketbert.core.errors import InputError, Problem

_DEFAULT = api.TeachOptions()


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    add(app, teach, STEPS)


def teach(
    data: Annotated[Path, typer.Option("--data", help="Answer the texts of this data file.")],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Write the rows with their answers to this .jsonl file.")
    ],
    model: Annotated[
        list[str] | None,
        typer.Option(
            "-m",
            "--model",
            help="Ask this fine-tuned model of transformers, of whatever family: a folder or a Hub name. May be repeated: the "
            "answers are averaged.",
        ),
    ] = None,
    weights: Annotated[
        str, typer.Option("--weights", help="Weigh the models so in the mean, comma-separated; default: all alike.")
    ] = "",
    task: Annotated[
        str | None, typer.Option("--task", help="Use the models for this task; default: what their class says.")
    ] = None,
    zero_shot: Annotated[
        list[str] | None,
        typer.Option(
            "--zero-shot",
            metavar='"LABEL: DESCRIPTION"',
            help="Choose among labels that the model never saw, with a model of natural-language inference (MNLI). Give the option "
            "once for each label; with --task multi-label a text may have several. With --endpoint: the labels.",
        ),
    ] = None,
    template: Annotated[
        str, typer.Option("--template", help="With --zero-shot: what the text may entail, with {} for the description.")
    ] = _DEFAULT.template,
    endpoint: Annotated[
        str | None,
        typer.Option(
            "--endpoint",
            metavar="URL",
            help="Ask a language model at this address, which speaks OpenAI's protocol, such as http://localhost:8000/v1. The texts "
            "are sent there; nothing is sent anywhere without this option.",
        ),
    ] = None,
    endpoint_model: Annotated[
        str, typer.Option("--endpoint-model", help="Name of the model at the address.")
    ] = _DEFAULT.endpoint_model,
    prompt: Annotated[
        Path | None,
        typer.Option(
            "--prompt", help="With --endpoint: file of what is asked, with {text}, {labels} and, for pairs, {pair}."
        ),
    ] = None,
    samples: Annotated[
        int,
        typer.Option(
            "--samples", min=1, help="With --endpoint: answers for each text if the server gives no log-probabilities."
        ),
    ] = _DEFAULT.samples,
    parallel: Annotated[
        int, typer.Option("--parallel", min=1, help="With --endpoint: most requests at the same time.")
    ] = _DEFAULT.parallel,
    per_minute: Annotated[
        float | None, typer.Option("--per-minute", min=0.1, help="With --endpoint: most requests in a minute.")
    ] = None,
    prices: Annotated[
        str,
        typer.Option(
            "--prices",
            help="With --endpoint: price of a million tokens read and written, e.g. 0.15,0.6, to count the cost.",
        ),
    ] = "",
    key_variable: Annotated[
        str, typer.Option("--key-variable", help="With --endpoint: environment variable with the server's key.")
    ] = _DEFAULT.key_variable,
    text: options.Text = None,
    text_pair: options.TextPair = None,
    label: options.Label = None,
    header: options.Header = None,
    encoding: options.Encoding = None,
    max_line_mb: options.MaxLine = DEFAULT_LINE_MB,
    max_rows: options.MaxRows = DEFAULT_MAX_ROWS,
    column: Annotated[str, typer.Option("--column", help="Call the column of the answers so.")] = _DEFAULT.column,
    top: Annotated[
        int | None,
        typer.Option(
            "--top", min=1, help="Write this number of labels of each answer, the most likely ones; default: all."
        ),
    ] = None,
    max_length: Annotated[
        int | None,
        typer.Option(
            "--max-length",
            min=4,
            help="Cut texts after this number of tokens; default: what the model takes, at most 512.",
        ),
    ] = None,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Answer this number of texts at once.")] = _DEFAULT.batch,
    engine: options.Cluster = _DEFAULT.engine,
    workers: options.ClusterWorkers = None,
    overwrite: options.OverwriteFile = False,
    json: options.Json = False,
) -> None:
    """Write teachers' answers into a column, to teach a student.

    Teachers are classifiers, taggers, question-answering models, rerankers and sentence encoders. A student with any
    tokenizer learns from the file: pocketbert run --data FILE. If the command was interrupted, the same command
    continues.
    """
    from pocketbert.pipeline.teach.start import parse_labels

    asked = api.TeachOptions(
        task=task,
        weights=_numbers(weights, "--weights"),
        labels=parse_labels(zero_shot or []),
        template=template,
        column=column,
        top=top,
        max_length=max_length,
        batch=batch,
        overwrite=overwrite,
        endpoint=endpoint,
        endpoint_model=endpoint_model,
        prompt=prompt,
        samples=samples,
        parallel=parallel,
        per_minute=per_minute,
        prices=_numbers(prices, "--prices"),
        key_variable=key_variable,
        engine=engine,
        workers=workers,
    )
    source = options.rows(data, text, text_pair, label, header, max_line_mb, max_rows, encoding)
    report = api.teach(model or [], source, output, asked)
    if json:
        fields = {
            key: getattr(report, key)
            for key in ("column", "rows", "agreement", "labelled", "right", "calibration", "notes")
        }
        print_json({"output": str(report.output), "answers": report.form.value, "labels": [*report.names], **fields})
        return
    for line in report.lines():
        print(line)


def _numbers(text: str, flag: str) -> list[float]:
    """Parse comma-separated numbers above or equal to 0; raise InputError that names `flag`."""
    try:
        values = [float(part) for part in options.listed(text)]
    except ValueError:
        values = [-1.0]
    if any(not 0 <= value < float("inf") for value in values):
        raise InputError(Problem(flag, f"'{text}' is no list of numbers.", "Separate them by commas, such as 1,0.5."))
    return values
