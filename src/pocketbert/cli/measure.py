"""benchmark, report, devices: commands that measure and show."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pocketbert.cli import options
from pocketbert.cli.guard import guarded
from pocketbert.cli.output import print_json, print_table
from pocketbert.core.errors import InputError, Problem


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(guarded(benchmark))
    app.command()(guarded(report))
    app.command()(guarded(devices))


def _numbers(text: str, where: str) -> list[int]:
    parts = [p.strip() for p in text.split(",") if p.strip()]
    if not parts or not all(p.isdecimal() and int(p) > 0 for p in parts):
        raise InputError(Problem(where, f"'{text}' is no list of positive numbers.", "For example 1,2."))
    return [int(p) for p in parts]


def benchmark(
    model: Annotated[
        list[Path] | None,
        typer.Option("-m", "--model", help="Artefact folder; give several to compare them."),
    ] = None,
    imports: Annotated[
        list[Path] | None,
        typer.Option(
            "--import",
            help="JSON that coreml/benchmark_on_mac.py of the folder wrote on a Mac; several allowed. Its packages must be "
            "the folder's; without -m nobody checks that.",
        ),
    ] = None,
    local: Annotated[
        bool, typer.Option("--local/--no-local", help="Measure on this machine too, where -m is given.")
    ] = True,
    device: Annotated[
        list[str] | None,
        typer.Option(
            "--device",
            help="Device to measure on, default local; give several to measure one after the other. `pocketbert devices` "
            "lists them. (recipe: benchmark.devices)",
        ),
    ] = None,
    threads: Annotated[
        str, typer.Option("--threads", help="Thread counts, comma-separated. (recipe: benchmark.threads)")
    ] = "1,2",
    lengths: Annotated[
        str, typer.Option("--lengths", help="Lengths in tokens beside real text. (recipe: export.lengths)")
    ] = "32,64,128",
    runs: Annotated[
        int,
        typer.Option("--runs", min=10, help="Timed inferences per file and repeat. (recipe: benchmark.runs)"),
    ] = 100,
    repeats: Annotated[int, typer.Option("--repeats", min=2, help="Repeats. (recipe: benchmark.repeats)")] = 3,
    budget: Annotated[float, typer.Option("--budget", min=1, help="Most seconds it may take.")] = 120.0,
    file: Annotated[
        Path | None,
        typer.Option("--file", help="Real texts, one per line; default sentences of the project."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="Write benchmark.json, raw samples included, here; a page where it ends in .html.",
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Measure the latency of every model file, on this CPU or other devices, and show figures from a Mac."""
    from pocketbert import api
    from pocketbert.benchmarks.report.output import check_output, latency_table, session_lines, write_result
    from pocketbert.core.data.files import read_lines
    from pocketbert.core.errors import GateError

    folders, files = model or [], imports or []
    if not folders and not files:
        raise InputError(Problem("-m/--model", "nothing to measure.", "Give an artefact folder, or --import FILE."))
    if output is not None:
        check_output(output, folders)
    texts = [t for t in read_lines(file) if t.strip()] if file else []
    result = api.benchmark(
        folders,
        threads=_numbers(threads, "--threads"),
        lengths=_numbers(lengths, "--lengths"),
        runs=runs,
        repeats=repeats,
        texts=texts,
        budget_s=budget,
        imports=files,
        devices=[name for name in device or ["local"] if local or name != "local"],
    )
    if output is not None:
        write_result(result, output, folders)
    if json:
        raw = {"__all__": {"wall_ms", "cpu_ms", "engine_ms"}}
        print(result.model_dump_json(exclude={"measurements": raw, "others": {"__all__": {"measurements": raw}}}))
    else:
        print_table(*latency_table(result))
        print("\n".join(session_lines(result)))
    wrong = [f"{a.variant}: {a.words}" for s in result.sessions for a in s.answers if not a.passed]
    if wrong:
        raise GateError(wrong)


def report(
    model: Annotated[Path, typer.Option("-m", "--model", help="Run folder.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="HTML file to write.")],
    json: options.Json = False,
) -> None:
    """One self-contained HTML page about a run."""
    from pocketbert import api

    written = api.report(model, output)
    print_json({"report": str(written)}) if json else print(f"report: {written}")


def devices(json: options.Json = False) -> None:
    """List the devices that benchmarks can name, those of plug-ins included. (recipe: benchmark.devices)"""
    from pocketbert.core.devices import DEVICES

    if json:
        print_json(
            [
                {"name": d.spelled, "figures": dict(d.figures), "reached": d.reached, "instead": d.instead}
                for d in DEVICES.values()
            ]
        )
        return
    rows = [
        [d.spelled, d.yields, d.reached + (f"; in place of a recipe: {d.instead}" if d.instead else "")]
        for d in DEVICES.values()
    ]
    print_table(["device", "figures", "reached by"], rows)
