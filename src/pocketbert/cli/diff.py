"""The command `diff`: compare two models on the same rows, and fail where the new one is too much worse."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pocketbert.cli import options
from pocketbert.cli.commands import RESULTS, add
from pocketbert.cli.output import print_json, print_table
from pocketbert.core.data.streams import DEFAULT_LINE_MB, DEFAULT_MAX_ROWS
from pocketbert.core.errors import GateError
from pocketbert.core.host.terminal import escape_control_characters
from pocketbert.pipeline.options import DiffOptions

if TYPE_CHECKING:
    from pocketbert.core.compare.differences import ModelDiff

_SHOWN_LABELS, _SHOWN_TEXTS, _SHOWN_LETTERS = 12, 10, 160
"""What the terminal shows; --html shows more and --json all."""


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    add(app, diff, RESULTS)


def diff(
    old: Annotated[
        str,
        typer.Argument(
            help="Compare with this artefact folder, run folder or Hugging Face model. FOLDER:int8, FOLDER:tflite:fp32 or "
            "FOLDER:onnx/model.onnx names one file of a folder."
        ),
    ],
    new: Annotated[str, typer.Argument(help="Judge this model, named likewise.")],
    data: Annotated[
        Path, typer.Option("--data", help="Ask both models the rows of this data file, with labels or without.")
    ],
    text: options.Text = None,
    text_pair: options.TextPair = None,
    label: options.Label = None,
    header: options.Header = None,
    encoding: options.Encoding = None,
    max_line_mb: options.MaxLine = DEFAULT_LINE_MB,
    max_rows: options.MaxRows = DEFAULT_MAX_ROWS,
    fail_on_drop: Annotated[
        float | None,
        typer.Option(
            "--fail-on-drop",
            min=0,
            help="End with exit code 3 if the score of labelled rows drops by more than this fraction (0.01 is one point).",
        ),
    ] = None,
    fail_on_flips: Annotated[
        float | None,
        typer.Option(
            "--fail-on-flips", min=0, max=1, help="End with exit code 3 if more than this share of the answers differ."
        ),
    ] = None,
    latency: Annotated[
        bool, typer.Option("--latency/--no-latency", help="Time both models shortly, in turns on texts of the file.")
    ] = True,
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, help="Use this number of threads; default: all cores.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Use this seed for the resamples of the score.")] = 0,
    html: Annotated[
        Path | None,
        typer.Option("--html", help="Write a page with all figures and the answers that differ to this file."),
    ] = None,
    overwrite: options.OverwriteFile = False,
    json: options.Json = False,
) -> None:
    """Compare the answers of two models to the same rows.

    It shows which answers flip, which are gained and lost, and the change of the score with its interval, beside sizes and
    latencies. Labels are matched by name, in whatever order the models have them.
    """
    from pocketbert import api

    if html is not None:
        html = _check_page(html, overwrite, data)
    found = api.diff(
        old,
        new,
        options.rows(data, text, text_pair, label, header, max_line_mb, max_rows, encoding),
        DiffOptions(max_drop=fail_on_drop, max_flips=fail_on_flips, latency=latency, threads=threads, seed=seed),
    )
    if html is not None:
        from pocketbert.benchmarks.report.difference import write_difference

        write_difference(found, html)
    if json:
        print_json(found.to_dict())
    else:
        _print_difference(found)
        if html is not None:
            print(f"page: {html}")
    if found.failures:
        raise GateError(found.failures)


def _check_page(path: Path, overwrite: bool, data: Path) -> Path:
    """Check that the HTML page can be written, and return its path with links followed.

    Raises:
        InputError: If the page exists and may not be replaced, or is the data file.
        MissingBackendError: If a library that pages need is not installed.
    """
    from pocketbert.benchmarks.report import plots
    from pocketbert.core.disk.destination import resolve_output_file

    plots.require_report_packages()
    return resolve_output_file(path, overwrite, data)


def _print_difference(diff: ModelDiff) -> None:
    """Print the comparison: a table of both models, sentences, labels that changed, and the first different answers."""
    from pocketbert.benchmarks.report.difference import describe_difference, make_model_table

    found = diff.differences
    print_table(*make_model_table(diff))
    print("\n".join(describe_difference(diff)))
    if found.label_flips:
        rows = [
            [one.old, one.new, str(one.count), *([str(one.lost), str(one.gained)] if found.score else [])]
            for one in found.label_flips[:_SHOWN_LABELS]
        ]
        print_table(["OLD", "NEW", "times", *(["lost", "gained"] if found.score else [])], rows, "Labels that flip")
    for flip in found.flips[:_SHOWN_TEXTS]:
        probabilities = ["" if p is None else f" {p:.3f}" for p in (flip.old_probability, flip.new_probability)]
        answers = f"{flip.old}{probabilities[0]} -> {flip.new}{probabilities[1]}"
        gold = f" (right: {flip.gold})" if flip.gold else ""
        texts = " | ".join(flip.texts)
        shown = texts if len(texts) <= _SHOWN_LETTERS else f"{texts[:_SHOWN_LETTERS]}..."
        print(escape_control_characters(f"row {flip.row}  {flip.outcome or 'differs'}: {answers}{gold}  {shown}"))
    if len(found.flips) > _SHOWN_TEXTS:
        print(f"and {len(found.flips) - _SHOWN_TEXTS:,} more rows: --html FILE shows them, --json has all of them.")
