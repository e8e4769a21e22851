"""The commands that write and check model files: `export`, `quantize`, `verify`, `pack`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from pocketbert.cli import options
from pocketbert.cli.commands import STEPS, add
from pocketbert.cli.options import listed, numbers, sets
from pocketbert.cli.output import NO_VALUE, print_folder, print_json, print_table
from pocketbert.core.data.streams import DEFAULT_LINE_MB, DEFAULT_MAX_ROWS
from pocketbert.core.errors import GateError, InputError, Problem
from pocketbert.pipeline.options import CONFIDENCE_KEYS, AnswerOptions, CalibrationOptions, ExportOptions

if TYPE_CHECKING:
    from pocketbert.core.artefacts import Candidate
    from pocketbert.core.data.source import DataSource
    from pocketbert.pipeline.options import BudgetOptions


_DEFAULT = ExportOptions()

Scheme = Annotated[
    str,
    sets(
        "--scheme",
        "Add files of these schemes, comma-separated: int8 (Core ML: w8), small (4-bit word table), w4 (4 bits), a8w8 and a16w8 "
        "(with --calibrate) and others in docs/lab/quantization.md; fp32 adds none. The folder's default file has the first scheme.",
        "quantize.scheme",
    ),
]
Runtimes = Annotated[
    str,
    sets(
        "--runtime",
        "Add a file for a further runtime: tflite216 for TFLite up to 2.16 (int8), openvino for OpenVINO (with --scheme a8w8), "
        "gpu for the GPU of a phone (with --scheme fp16), npu for neural processors and qnn for that of a Snapdragon (with "
        "--scheme a16w8 or a8w8).",
        "quantize.files",
    ),
]
Calibrate = Annotated[
    Path | None,
    sets(
        "--calibrate",
        "Measure the ranges of a8w8 and a16w8 files on the labelled training rows of this data file. Its "
        "columns are those of --text, --text-pair and --label.",
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands of this module to the application."""
    for command in (export, quantize, verify, pack):
        add(app, command, STEPS)


def export(
    model: Annotated[
        str,
        sets("--model", "Export this model: a folder, a Hub name, or minilm-l6 (the demo teacher).", short=("-m",)),
    ],
    output: options.Output,
    adapter: Annotated[
        list[str] | None,
        sets("--adapter", "Merge this LoRA adapter of peft into the model: a folder or a Hub name. May be repeated."),
    ] = None,
    task: Annotated[
        str | None, sets("--task", "Export for this task; default: the one in the model's config.json.")
    ] = None,
    formats: Annotated[
        str, sets("--format", "Write these formats, comma-separated; the folder's default file has the first format.")
    ] = ",".join(_DEFAULT.formats),
    scheme: Scheme = ",".join(_DEFAULT.schemes),
    runtime: Runtimes = "",
    roles: options.Roles = "",
    lengths: Annotated[
        str,
        sets(
            "--lengths",
            "Check the files at these lengths in tokens. TFLite and Core ML files accept these lengths and the maximum.",
        ),
    ] = ",".join(map(str, _DEFAULT.lengths)),
    max_length: Annotated[
        int | None, sets("--max-length", "Cut texts after this number of tokens; default: the model's own limit.")
    ] = None,
    labels: Annotated[
        str | None, sets("--labels", "Give the labels' names, comma-separated, if config.json has none.")
    ] = None,
    answer: Annotated[
        list[str] | None,
        sets(
            "--answer",
            "Set how outputs become answers: thresholds, temperature, unknown, stride, answer_length, null_answers, pooling, normalize, similarity or dimensions. "
            "May be repeated.",
            metavar="KEY=VALUE",
        ),
    ] = None,
    attention: Annotated[
        str | None,
        sets(
            "--attention",
            "Longformer: compute attention over blocks of tokens, for texts of more than 1,024, or over all pairs; default: pairs.",
        ),
    ] = None,
    opset: Annotated[int, sets("--opset", "Use this ONNX operator set, 18 to 20.")] = _DEFAULT.opset,
    ios: Annotated[
        int, sets("--ios", "Core ML: support this iOS version and newer ones: 16, 17 or 18.")
    ] = _DEFAULT.ios,
    shapes: Annotated[
        str | None,
        sets(
            "--shapes",
            "Core ML: accept enumerated, ranged or fixed lengths; default: enumerated for iOS 18, else fixed.",
        ),
    ] = _DEFAULT.shapes,
    precision: Annotated[str, sets("--precision", "Core ML: compute in fp16 or fp32.")] = _DEFAULT.precision,
    layout: Annotated[
        str, sets("--layout", "Core ML: plain, or ane, which rewrites the graph for Apple's Neural Engine.")
    ] = _DEFAULT.layout,
    atol: Annotated[
        float | None,
        sets(
            "--atol",
            "Allow the outputs of an fp32 file to differ from the model's by this fraction of their spread; default: the "
            "bound of the model family.",
        ),
    ] = None,
    revision: Annotated[str | None, sets("--revision", "Load this revision from the Hub.")] = None,
    family: Annotated[
        str | None,
        sets("--family", "Take the model as this row of `pocketbert families`, where several load alike, as macbert."),
    ] = None,
    form: Annotated[
        str | None,
        sets(
            "--form",
            "Give the files more inputs than the text, as language (XLM); `pocketbert families` lists the forms. Default: text.",
        ),
    ] = None,
    entities: Annotated[
        Path | None,
        sets("--entities", "With a form that has a table of entities: keep those in this file, one id or name a line."),
    ] = None,
    calibrate: Calibrate = None,
    calibration: options.Calibration = None,
    data: Annotated[
        Path | None,
        sets(
            "--data",
            "Score the files on the labelled rows of this data file, and take golden rows from it.",
        ),
    ] = None,
    text: options.Text = None,
    text_pair: options.TextPair = None,
    label: options.Label = None,
    header: options.Header = None,
    encoding: options.Encoding = None,
    max_line_mb: options.MaxLine = DEFAULT_LINE_MB,
    max_rows: options.MaxRows = DEFAULT_MAX_ROWS,
    benchmark: Annotated[bool, sets("--benchmark", "Measure the latency of the files on this machine.")] = False,
    name: Annotated[
        str | None, sets("--name", "Give the model this name in the model card; default: the name of its folder.")
    ] = None,
    description: Annotated[str | None, sets("--description", "Describe the model in one sentence.")] = None,
    licence: Annotated[
        str | None, sets("--licence", "Name the licence of the weights, such as apache-2.0, in the model card.")
    ] = None,
    overwrite: options.Overwrite = False,
    dry_run: options.DryRun = False,
    json: options.Json = False,
) -> None:
    """Export a fine-tuned model to a folder of files for phones.

    No recipe, no data and no network are needed. Each file is compared with the model before the folder is written. With
    --data and --benchmark the model card and report.html also show scores and latency.
    """
    from pocketbert import api
    from pocketbert.core.recipe.file import parse_option_values

    columns = (text, text_pair, label, header, max_line_mb, max_rows, encoding)
    chosen = ExportOptions(
        task=task,
        revision=revision,
        adapters=tuple(adapter or ()),
        family=family,
        form=form,
        entities=entities,
        formats=listed(formats),
        schemes=listed(scheme),
        runtimes=listed(runtime),
        roles=options.choices(roles),
        lengths=numbers(lengths, "--lengths"),
        attention=attention,
        opset=opset,
        atol=atol,
        max_length=max_length,
        labels=listed(labels) if labels else None,
        ios=ios,
        shapes=shapes,
        precision=precision,
        layout=layout,
        answer=cast(AnswerOptions, parse_option_values(answer or (), "--answer")),
        calibrate=options.optional_rows(calibrate, *columns),
        calibration=calibration,
        data=options.optional_rows(data, *columns),
        benchmark=benchmark,
        name=name,
        description=description,
        licence=licence,
    )
    if dry_run:
        planned = api.plan_export(model, output, chosen, overwrite=overwrite)
        if json:
            print_json([vars(s) for s in planned])
        else:
            print_table(["step", "state"], [[s.name, s.state] for s in planned])
        return
    print_folder(api.export(model, output, chosen, overwrite=overwrite), json)


def quantize(
    model: options.Folder,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", help="Write this folder; with --budget the default is FOLDER-budget, next to it."
        ),
    ] = None,
    scheme: Annotated[
        str | None,
        sets(
            "--scheme",
            "Add files of these schemes, comma-separated, see docs/lab/quantization.md; default: int8 (Core ML: w8). The folder's "
            "default file has the first scheme. With --budget, consider only these.",
            "quantize.scheme",
        ),
    ] = None,
    runtime: Runtimes = "",
    roles: options.Roles = "",
    calibrate: Calibrate = None,
    calibration: options.Calibration = None,
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget",
            metavar="LIMIT=NUMBER,...",
            help="Choose the best file of each format inside these limits: max_drop (0.01 is one point), max_size_mb, max_p90_ms. "
            "Needs --data and --calibrate; exit code 3 if no file is inside.",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            help="With --budget: labelled rows; one half of them chooses the files, the other half scores these.",
        ),
    ] = None,
    formats: Annotated[
        str | None,
        typer.Option(
            "--format", help="With --budget: choose a file of these formats only, comma-separated; default: all."
        ),
    ] = None,
    answer: options.FittedAnswer = None,
    text: options.Text = None,
    text_pair: options.TextPair = None,
    label: options.Label = None,
    header: options.Header = None,
    encoding: options.Encoding = None,
    max_line_mb: options.MaxLine = DEFAULT_LINE_MB,
    max_rows: options.MaxRows = DEFAULT_MAX_ROWS,
    overwrite: options.Overwrite = False,
    json: options.Json = False,
) -> None:
    """Add quantized files to an exported folder.

    The result is a new folder with the exported files, unchanged, and the new ones. Quantized files of the old folder are left
    out. (recipe: quantize)
    """
    from pocketbert import api

    columns = (text, text_pair, label, header, max_line_mb, max_rows, encoding)
    budget_options = _parse_budget_options(budget, options.optional_rows(data, *columns), formats, answer or ())
    output = _quantized_folder(model, output, budget_options is not None)
    schemes = listed(scheme) if scheme is not None else None
    role_schemes = options.choices(roles)
    calibration_options = CalibrationOptions(rows=options.optional_rows(calibrate, *columns), method=calibration)
    folder = api.quantize(
        model, output, schemes, listed(runtime), overwrite, calibration_options, budget_options, role_schemes
    )
    if budget_options is not None and not json:
        _print_search(folder)
    print_folder(folder, json)


def verify(
    model: Annotated[Path, typer.Option("-m", "--model", help="Check this artefact folder or run folder.")],
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            help="Score on the labelled rows of this data file; without it, compare golden rows.",
        ),
    ] = None,
    text: options.Text = None,
    text_pair: options.TextPair = None,
    label: options.Label = None,
    header: options.Header = None,
    encoding: options.Encoding = None,
    max_line_mb: options.MaxLine = DEFAULT_LINE_MB,
    max_rows: options.MaxRows = DEFAULT_MAX_ROWS,
    max_drop: Annotated[
        float,
        sets(
            "--max-drop",
            "Allow a quantized file's score to be lower than the unquantized one's by at most this: 0.01 is one point.",
            "verify.max_drop",
            min=0,
            max=1,
        ),
    ] = 0.01,
    record: Annotated[
        bool,
        typer.Option("--record", help="Write the scores into the folder: its list, model card and report."),
    ] = False,
    json: options.Json = False,
) -> None:
    """Check that files give right answers; exit code 3 if not."""
    from pocketbert import api

    rows = options.optional_rows(data, text, text_pair, label, header, max_line_mb, max_rows, encoding)
    result = api.verify(model, rows, max_drop=max_drop, record=record)
    if json:
        print(result.model_dump_json())
    if result.failures:
        raise GateError(result.failures)
    if not json:
        skipped = [f"{g.file} {g.name}" for g in result.gates if g.skipped]
        count = len(result.gates) - len(skipped)
        print(f"passed: {count} gates in {model}" + (f"; not checked here: {', '.join(skipped)}" if skipped else ""))


def pack(
    model: Annotated[
        Path,
        typer.Option("-m", "--model", help="Pack the files of this run folder; with --for also of an artefact folder."),
    ],
    output: options.Output,
    platform: Annotated[
        str | None,
        typer.Option(
            "--for",
            help="Pack only what an app of this platform needs: android, ios, web (transformers.js), web-demo (a page that anybody can "
            "host: type a text, see every file's answer) or server (pocketbert.load). "
            "The folder may be the app's assets folder: other files in it are not changed.",
        ),
    ] = None,
    overwrite: options.Overwrite = False,
    json: options.Json = False,
) -> None:
    """Pack the verified files of a run into an artefact folder.

    With --for, pack what an app needs: the model files for its platform with tokenizer and golden rows, a folder that verifies
    without the one it was made from.
    """
    from pocketbert import api

    print_folder(api.pack(model, output, overwrite, platform), json)


def _parse_budget_options(
    budget: str | None, data: DataSource | None, formats: str | None, answer: Sequence[str] = ()
) -> BudgetOptions | None:
    """Parse the values of --budget, --data, --format and --answer of `quantize`; return None without a budget.

    Args:
        budget: Value of --budget, such as ``max_drop=0.01,max_size_mb=20``.
        data: Labelled rows of --data.
        formats: Value of --format, comma-separated.
        answer: Values of --answer, each ``KEY=VALUE``.

    Raises:
        InputError: Listing every problem of the limits, or the options that have no meaning without a budget.
    """
    from pocketbert.core.recipe.budget import parse_budget
    from pocketbert.core.recipe.file import parse_option_values
    from pocketbert.pipeline.options import BudgetOptions

    if budget is None:
        budget_flags = {"--data": data, "--format": formats, "--answer": answer or None}
        unused = [flag for flag, value in budget_flags.items() if value is not None]
        if unused:
            raise InputError([Problem(flag, "has no meaning without --budget.", "Leave it out.") for flag in unused])
        return None
    limits = parse_budget(listed(budget), "--budget")
    answer_settings = parse_option_values(answer, "--answer")
    wrong = [f"--answer {key}" for key in answer_settings if key not in CONFIDENCE_KEYS]
    if wrong:
        fix = f"Set {' or '.join(CONFIDENCE_KEYS)}; the folder decides the others."
        raise InputError([Problem(flag, "is decided by the folder that is read.", fix) for flag in wrong])
    format_names = listed(formats) if formats is not None else None
    return BudgetOptions(limits=limits, data=data, formats=format_names, answer=cast(AnswerOptions, answer_settings))


def _quantized_folder(model: Path, output: Path | None, with_budget: bool) -> Path:
    """Return the output folder of `quantize`: the value of -o; without it, but with a budget, ``MODEL-budget``.

    Raises:
        InputError: If -o is missing and there is no budget.
    """
    if output is not None:
        return output
    if not with_budget:
        raise InputError(Problem("-o/--output", "is missing.", "Name the folder to write."))
    whole = model.resolve()
    return whole.with_name(f"{whole.name}-budget")


def _print_search(folder: Path) -> None:
    """Print the candidates of a folder's budget search, if it has one, the chosen files, and recipe lines that make these again."""
    from pocketbert.core.artefacts import read_artefacts
    from pocketbert.pipeline.direct.choosing import chosen_files, recipe_lines

    search = read_artefacts(folder).search
    if search is None:
        return
    header = ["candidate", "MB", "rel", "same label", "drop", "p90 ms", "inside", ""]
    print_table(header, [_candidate_row(c) for c in search.candidates])
    limits = ", ".join(f"{name}={value:g}" for name, value in search.budget.items())
    print(f"chosen inside {limits}: {search.wins}")
    print(f"{search.ranked_on:,} calibration rows ranked. {search.rows}")
    chosen = chosen_files(search.chosen)
    print(f"the same files from a recipe:\n  {recipe_lines(chosen, search.calibration)}")


def _candidate_row(candidate: Candidate) -> list[str]:
    """Return a candidate file's table cells: name, size, errors, latency, whether it fits the budget, and a note."""

    def shown(value: float | None, form: str) -> str:
        return NO_VALUE if value is None else f"{value:{form}}"

    inside = NO_VALUE if candidate.inside is None else "yes" if candidate.inside else "no"
    return [
        candidate.name,
        shown(None if candidate.bytes is None else candidate.bytes / 1e6, ".2f"),
        shown(candidate.rel, ".4f"),
        shown(candidate.agreement, ".1%"),
        shown(candidate.drop, ".4f"),
        shown(candidate.p90_ms, ".2f"),
        inside,
        "chosen" if candidate.chosen else candidate.note,
    ]
