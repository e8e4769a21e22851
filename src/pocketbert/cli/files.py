"""export, quantize, verify, pack: commands that make and judge files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pocketbert.cli import options
from pocketbert.cli.guard import guarded
from pocketbert.cli.output import print_json
from pocketbert.core.errors import GateError

Task = Annotated[
    str | None,
    typer.Option("--task", help="Hub task name; default what the model says it was trained for. (recipe: task)"),
]
Scheme = Annotated[
    str,
    typer.Option(
        "--scheme",
        help="Schemes of smaller files, comma-separated: int8 (Core ML: w8), for TFLite also w8 and fp16; fp32 makes none. "
        "The first is the default file's. (recipe: quantize.scheme)",
    ),
]
Formats = Annotated[
    str,
    typer.Option(
        "--format",
        help="onnx, tflite, coreml, comma-separated; the first is the default file. (recipe: export.formats)",
    ),
]
Runtimes = Annotated[
    str,
    typer.Option(
        "--runtime",
        help="tflite216: one more int8 file that TFLite up to 2.16 computes right; openvino needs a recipe. (recipe: quantize.files)",
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(guarded(export))
    app.command()(guarded(quantize))
    app.command()(guarded(verify))
    app.command()(guarded(pack))


def export(
    model: options.Model,
    output: options.Output,
    task: Task = None,
    formats: Formats = "onnx,tflite,coreml",
    scheme: Scheme = "int8",
    runtime: Runtimes = "",
    opset: Annotated[int, typer.Option("--opset", help="ONNX operator set, 18 to 20. (recipe: export.opset)")] = 20,
    ios: Annotated[
        int,
        typer.Option("--ios", help="Core ML: oldest iOS, 16, 17 or 18. (recipe: export.coreml.ios)"),
    ] = 18,
    shapes: Annotated[
        str | None,
        typer.Option(
            "--shapes",
            help="Core ML: enumerated (iOS 18), ranged (iOS 17) or fixed lengths. (recipe: export.coreml.shapes)",
        ),
    ] = None,
    precision: Annotated[
        str, typer.Option("--precision", help="Core ML: fp16 or fp32. (recipe: export.coreml.precision)")
    ] = "fp16",
    layout: Annotated[
        str,
        typer.Option(
            "--layout",
            help="Core ML: plain, or ane for Apple's Neural Engine. (recipe: export.coreml.layout)",
        ),
    ] = "plain",
    atol: Annotated[
        float | None,
        typer.Option("--atol", help="Parity bound, relative to the spread of the logits. (recipe: export.atol)"),
    ] = None,
    max_length: Annotated[
        int | None, typer.Option("--max-length", help="Longest input in tokens. (recipe: data.max_length)")
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(
            "--labels", help="Label names, comma-separated, where config.json has none. (recipe: data.labels)"
        ),
    ] = None,
    revision: Annotated[str | None, typer.Option("--revision", help="Hub revision. (recipe: teacher.revision)")] = None,
    answer: Annotated[
        list[str] | None,
        typer.Option(
            "--answer",
            metavar="KEY=VALUE",
            help="thresholds, stride, answer_length, null_answers, pooling, normalize; several times. (recipe: answer)",
        ),
    ] = None,
    overwrite: options.Overwrite = False,
    json: options.Json = False,
) -> None:
    """A fine-tuned model into a folder for phones: no recipe, no data, no network needed."""
    from pocketbert import api
    from pocketbert.core.recipe.file import option_values

    names = _listed(labels) if labels else None
    folder = api.export(
        model,
        output,
        task=task,
        revision=revision,
        schemes=_listed(scheme),
        opset=opset,
        atol=atol,
        max_length=max_length,
        labels=names,
        formats=_listed(formats),
        runtimes=_listed(runtime),
        ios=ios,
        shapes=shapes,
        precision=precision,
        layout=layout,
        answer=option_values(answer or (), "--answer"),
        overwrite=overwrite,
    )
    _done(folder, json)


def quantize(
    model: options.Folder,
    output: options.Output,
    scheme: Scheme = "int8",
    runtime: Runtimes = "",
    overwrite: options.Overwrite = False,
    json: options.Json = False,
) -> None:
    """An artefact folder with fp32 into one with a quantized file beside it. (recipe: quantize)"""
    from pocketbert import api

    _done(api.quantize(model, output, _listed(scheme), _listed(runtime), overwrite), json)


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def verify(
    model: Annotated[Path, typer.Option("-m", "--model", help="Artefact folder, or run folder.")],
    data: Annotated[
        Path | None,
        typer.Option("--data", help="Labelled .jsonl[.gz], .csv or .tsv; without it golden rows decide."),
    ] = None,
    text: options.Text = "text",
    text_pair: options.TextPair = None,
    label: options.Label = "label",
    max_drop: Annotated[
        float,
        typer.Option(
            "--max-drop",
            min=0,
            max=1,
            help="Largest loss of int8 against fp32, as a fraction. (recipe: verify.max_drop)",
        ),
    ] = 0.01,
    json: options.Json = False,
) -> None:
    """Does each file still do the job? Exit code 3 if not."""
    from pocketbert import api

    result = api.verify(model, data, text=text, text_pair=text_pair, label=label, max_drop=max_drop)
    if json:
        print(result.model_dump_json())
    if result.failures:
        raise GateError(result.failures)
    if not json:
        skipped = [f"{g.file} {g.name}" for g in result.gates if g.skipped]
        count = len(result.gates) - len(skipped)
        print(f"passed: {count} gates in {model}" + (f"; not checked here: {', '.join(skipped)}" if skipped else ""))


def pack(
    model: Annotated[Path, typer.Option("-m", "--model", help="Run folder whose files passed verification.")],
    output: options.Output,
    overwrite: options.Overwrite = False,
    json: options.Json = False,
) -> None:
    """The verified files of a run into an artefact folder."""
    from pocketbert import api

    _done(api.pack(model, output, overwrite), json)


def _done(folder: Path, json: bool) -> None:
    from pocketbert.core.artefacts import read_artefacts

    artefacts = read_artefacts(folder)
    if json:
        print_json({"folder": str(folder), "files": [f.path for f in artefacts.models()]})
        return
    for record in artefacts.models():
        print(
            f"{folder}/{record.path}  {record.bytes:,} bytes  {record.scheme}{'  (default)' if record.default else ''}"
        )
    for path, reason in artefacts.absent.items():
        print(f"no {path}: {reason}")
    print(f"model card: {folder}/README.md")
