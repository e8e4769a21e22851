"""The commands that measure and show: `benchmark`, `report`, `sensitivity`, `diagnose`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pocketbert.cli import options
from pocketbert.cli.commands import RESULTS, add
from pocketbert.cli.options import listed, numbers, preset_defaults, sets
from pocketbert.cli.output import NO_VALUE, print_json, print_table
from pocketbert.core.data.streams import DEFAULT_LINE_MB, DEFAULT_MAX_ROWS, read_texts
from pocketbert.core.devices import ADB, LOCAL
from pocketbert.core.errors import GateError, InputError, MachineError, Problem
from pocketbert.core.recipe.presets import MLPERF_RUNS, MLPERF_S, PRESETS, Preset
from pocketbert.pipeline.options import CalibrationOptions

if TYPE_CHECKING:
    from pocketbert.benchmarks.imported.saved_texts import Fact
    from pocketbert.benchmarks.measurement import BenchmarkOptions, BenchmarkResult
    from pocketbert.core.artefacts import Sensitivity


def register(app: typer.Typer) -> None:
    """Add the commands of this module to the application."""
    for command in (benchmark, report, sensitivity, diagnose):
        add(app, command, RESULTS)


def benchmark(
    model: Annotated[
        list[Path] | None,
        typer.Option("-m", "--model", help="Measure this artefact folder; repeat the option to compare several."),
    ] = None,
    imports: Annotated[
        list[Path] | None,
        typer.Option(
            "--import",
            help="Add the JSON file that the folder's coreml/benchmark_on_mac.py wrote on a Mac, or the Android demo app on a "
            "phone, or a text that benchmark_model or onnxruntime_perf_test printed; may be repeated. With -m its files must be "
            "those of the folder; a text needs -m.",
        ),
    ] = None,
    fact: Annotated[
        list[str] | None,
        typer.Option(
            "--fact",
            metavar="[TEXT:]KEY=VALUE",
            help="Tell what imported texts do not, as device='Pixel 8', file=tflite/model.tflite, length=32 or threads=1; of one "
            "text with its file's name in front. May be repeated.",
        ),
    ] = None,
    local: Annotated[
        bool,
        typer.Option(
            "--local/--no-local",
            help="With -m, measure on this machine; --no-local only shows the figures of --import.",
        ),
    ] = True,
    device: Annotated[
        list[str] | None,
        typer.Option(
            "--device",
            metavar="NAME,...",
            help="Measure on these devices in turn, comma-separated; the option may also be repeated; default: local. `pocketbert "
            "devices` lists them. (recipe: benchmark.devices)",
        ),
    ] = None,
    app: Annotated[
        bool,
        typer.Option(
            "--app",
            help="Let the demo app on the phone of `--device adb` measure instead of the runners. All devices of the command then "
            "make 3 repeats and no single calls after idle times, which is what the app can do.",
        ),
    ] = False,
    host: Annotated[
        str,
        typer.Option(
            "--host",
            help="With `--device browser`, serve the page on this address of this machine; `lan` for its address in the network. The "
            "default is reached from this machine, and from a phone after `adb reverse`.",
        ),
    ] = "127.0.0.1",
    https: Annotated[
        bool,
        typer.Option(
            "--https",
            help="With `--device browser`, serve with a certificate made for this run: from another machine, a browser gives threads, "
            "WebGPU and WebNN to such a page only.",
        ),
    ] = False,
    browsers: Annotated[
        int,
        typer.Option(
            "--browsers",
            min=1,
            max=32,
            help="With `--device browser`, wait until this number of browsers have measured.",
        ),
    ] = 1,
    preset: Annotated[
        str,
        sets(
            "--preset",
            f"Choose how thoroughly to measure: quick (about {PRESETS[Preset.QUICK].budget_s:g} s), standard, or mlperf (at least "
            f"{MLPERF_RUNS:,} inferences and {MLPERF_S:g} s of each file; quote p90). The options below change single settings of it.",
            "benchmark.preset",
        ),
    ] = "standard",
    threads: Annotated[
        str | None,
        sets("--threads", "Measure with these numbers of threads, comma-separated; default 1,2.", "benchmark.threads"),
    ] = None,
    lengths: Annotated[
        str | None,
        sets(
            "--lengths",
            "Measure real text and texts of these lengths in tokens; "
            f"{preset_defaults(lambda p: ','.join(map(str, p.lengths)) or 'real text only')}.",
            "export.lengths",
        ),
    ] = None,
    runs: Annotated[
        int | None,
        sets(
            "--runs",
            f"Time this number of inferences of each file in each repeat; {preset_defaults(lambda p: str(p.runs))}.",
            "benchmark.runs",
            min=10,
        ),
    ] = None,
    repeats: Annotated[
        int | None,
        sets(
            "--repeats",
            f"Repeat all measurements this number of times; {preset_defaults(lambda p: str(p.repeats))}.",
            "benchmark.repeats",
            min=2,
        ),
    ] = None,
    gaps: Annotated[
        str | None,
        sets(
            "--gaps",
            "Time single inferences after these idle times in ms too, on real text and, where the budget allows, at every length; "
            f"`none` to leave it out; {preset_defaults(lambda p: ','.join(f'{gap:g}' for gap in p.gaps_ms) or 'none')}.",
            "benchmark.gaps_ms",
        ),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(
            "--budget",
            min=1,
            help="Measure for at most this number of seconds; "
            f"{preset_defaults(lambda p: 'no limit' if p.least_s else f'{p.budget_s:g}')}.",
        ),
    ] = None,
    sustained: Annotated[
        float | None,
        sets(
            "--sustained",
            "Then run each file for this number of minutes without a pause, and print how its time changed.",
            "benchmark.sustained_min",
            min=0,
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", help="Read real texts from this file, one per line; default: built-in sentences."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            help="Score emulated files (device qnn-host) on the labelled rows of this data file.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="Write the result with all raw samples to this file: JSON, or a page if it ends in .html.",
        ),
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(
            "--baseline",
            help="Compare with this earlier result (JSON of -o) of the same machine; needs --repeats 3 or more.",
        ),
    ] = None,
    max_slowdown: Annotated[
        float,
        typer.Option(
            "--max-slowdown",
            min=0,
            max=1,
            help="With --baseline, end with exit code 3 if a file became slower by more than this fraction, the whole "
            "interval included.",
        ),
    ] = 0.05,
    record: Annotated[
        bool,
        typer.Option("--record", help="Write the figures into the artefact folder: its model card and report."),
    ] = False,
    overwrite: options.OverwriteFile = False,
    json: options.Json = False,
) -> None:
    """Measure the latency of model files.

    The files are run in turns, so that a change of load affects all of them. The table shows the median latency, the
    time relative to the first file with its interval, and results that were imported from a Mac or a phone.
    """
    from pocketbert import api
    from pocketbert.benchmarks.measurement import BenchmarkResult, PageOptions
    from pocketbert.benchmarks.report.comparison import check_repeats, compare_benchmarks
    from pocketbert.benchmarks.report.output import check_output, write_result

    folders, files = model or [], imports or []
    if not folders and not files:
        raise InputError(Problem("-m/--model", "nothing to measure.", "Give an artefact folder, or --import FILE."))
    if output is not None:
        output = check_output(output, folders, overwrite, *files, *(f for f in (file, baseline, data) if f))
    earlier = BenchmarkResult.read(baseline) if baseline else None
    names = [name for value in device or [LOCAL] for name in listed(value) or [value]]
    if app:
        repeats, gaps = _app_settings(repeats, gaps, budget, names)
    benchmark_options = _benchmark_options(
        preset, threads, lengths, gaps, runs=runs, repeats=repeats, budget_s=budget, sustained_min=sustained
    )
    if earlier is not None:
        check_repeats(earlier, benchmark_options.repeats, str(baseline))
    texts = [t for t in read_texts(file) if t.strip()] if file else []
    result = api.benchmark(
        folders,
        replace(
            benchmark_options,
            devices=[name for name in names if local or name != LOCAL],
            app=app,
            pages=PageOptions(host, https, browsers),
            data=options.optional_rows(data),
        ),
        texts=texts,
        imports=files,
        facts=_parse_facts(fact or []),
        record=record,
    )
    if output is not None:
        write_result(result, output, folders)
    if not json:
        _print_result(result)
    slowdowns = compare_benchmarks(result, earlier, str(baseline)) if earlier else []
    if json:
        print_json({**result.to_dict(), **({"baseline": [s.words for s in slowdowns]} if earlier else {})})
    elif slowdowns:
        print("\n".join(s.words for s in slowdowns))
    wrong = [one.wrong for one in result.compilations if one.wrong]
    wrong += [f"{a.variant}: {a.words}" for s in result.sessions for a in s.answers if not a.passed]
    wrong += [f"{s.words}; allowed: {1 + max_slowdown:g}" for s in slowdowns if s.exceeds(max_slowdown)]
    if wrong:
        raise GateError(wrong)
    if result.failed:
        lost = "; ".join(f"{where}: {error}" for where, error in result.failed.items())
        raise MachineError(f"not measured: {lost} What the other devices measured is above")


def _app_settings(
    repeats: int | None, gaps: str | None, budget: float | None, device_names: list[str]
) -> tuple[int, str]:
    """Return the number of repeats and the idle times for a benchmark by the Android demo app.

    Without options these are the app's own repeats and no idle times. A time budget is refused if a device is an Android
    device (adb), since the app makes all runs there.
    """
    from pocketbert.benchmarks.imported.android_app import REPEATS

    if budget is not None and any(name.partition(":")[0] == ADB for name in device_names):
        what = "with --app: the demo app makes all runs, whatever they take."
        raise InputError(Problem("--budget", what, "Leave it out, or give fewer --runs"))
    return REPEATS if repeats is None else repeats, gaps or "none"


def _benchmark_options(
    preset: str, threads: str | None, lengths: str | None, gaps: str | None, **numbers_by_field: float | None
) -> BenchmarkOptions:
    """Return the benchmark options of a preset, changed by the command-line options that were given.

    `numbers_by_field` are fields of `BenchmarkOptions`; the texts of the other options are parsed.
    """
    from pocketbert.benchmarks.measurement import preset_options

    changes: dict[str, Any] = {name: value for name, value in numbers_by_field.items() if value is not None}
    if threads is not None:
        changes["threads"] = numbers(threads, "--threads")
    if lengths is not None:
        changes["lengths"] = ["text", *numbers(lengths, "--lengths")]
    if gaps is not None:
        changes["gaps_ms"] = _parse_idle_times(gaps)
    return replace(preset_options(preset), **changes)


def _print_result(result: BenchmarkResult) -> None:
    """Print the tables of a benchmark (latencies, compiled files, imported results), and notes on their origin."""
    from pocketbert.benchmarks.report.compiled import (
        describe_compilations,
        describe_reported_texts,
        make_compilation_table,
        make_estimate_table,
        make_reported_table,
    )
    from pocketbert.benchmarks.report.output import describe_sessions, make_latency_table

    if result.sessions:
        print_table(*make_latency_table(result))
    if result.compilations:
        print_table(*make_compilation_table(result.compilations))
    if any(one.estimate for one in result.compilations):
        print_table(*make_estimate_table(result.compilations))
    if result.reported:
        print_table(*make_reported_table(result.reported))
    print(
        "\n".join(
            [
                *describe_sessions(result),
                *describe_compilations(result.compilations),
                *describe_reported_texts(result.reported),
            ]
        )
    )


def _parse_facts(values: list[str]) -> list[Fact]:
    """Parse the values of ``--fact``, each ``[TEXT:]KEY=VALUE``; raise InputError listing all wrong ones."""
    from pocketbert.benchmarks.imported.saved_texts import parse_fact

    facts, problems = [], []
    for value in values:
        try:
            facts.append(parse_fact(value))
        except ValueError as error:
            problems.append(Problem("--fact", f"{error}.", "For example --fact device='Pixel 8'"))
    if problems:
        raise InputError(problems)
    return facts


def _parse_idle_times(text: str) -> list[float]:
    """Parse the value of ``--gaps``, comma-separated milliseconds; an empty list for ``none``, InputError for other texts."""
    if text == "none":
        return []
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        what = f"'{text}' is not a list of milliseconds."
        raise InputError(
            Problem("--gaps", what, "Write numbers separated by commas, for example 100,1000, or none.")
        ) from None


def report(
    model: Annotated[
        Path,
        typer.Option(
            "-m",
            "--model",
            help="Describe this run folder or artefact folder; with --baseline the later result: JSON that `benchmark -o` wrote, or a "
            "folder that records a benchmark.",
        ),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="Write this HTML file.")],
    baseline: Annotated[
        Path | None,
        typer.Option(
            "--baseline",
            help="Compare with this earlier result of the same machine instead: JSON that `benchmark -o` wrote, or a folder that "
            "records a benchmark.",
        ),
    ] = None,
    overwrite: options.OverwriteFile = False,
    json: options.Json = False,
) -> None:
    """Write the HTML report of a folder, or of two results.

    It is one self-contained page. With --baseline it shows what became faster or slower between two stored benchmarks of one
    machine, with intervals.
    """
    from pocketbert import api

    written = api.report(model, output, overwrite, baseline)
    print_json({"report": str(written)}) if json else print(f"report: {written}")


def sensitivity(
    model: options.Folder,
    calibrate: Annotated[
        Path | None,
        typer.Option(
            "--calibrate",
            help="Compare files, and measure the ranges of static schemes, on the labelled training rows of this data "
            "file.",
        ),
    ] = None,
    calibration: options.Calibration = None,
    scheme: Annotated[
        str | None,
        typer.Option(
            "--scheme",
            help="Measure these schemes, comma-separated; default: those of the folder's files, else int8 (Core ML: w8).",
        ),
    ] = None,
    text: options.Text = None,
    text_pair: options.TextPair = None,
    label: options.Label = None,
    header: options.Header = None,
    encoding: options.Encoding = None,
    max_line_mb: options.MaxLine = DEFAULT_LINE_MB,
    max_rows: options.MaxRows = DEFAULT_MAX_ROWS,
    record: Annotated[bool, typer.Option("--record", help="Write the figures into the report of the folder.")] = False,
    json: options.Json = False,
) -> None:
    """Measure how far each role takes a file from the exported one.

    For each format and scheme, files in which one role is compressed are written, compared and deleted. If the errors
    were independent, the root of the sum of their squares would be the error of the file in which all roles are
    compressed; both are printed.
    """
    from pocketbert import api

    rows = options.optional_rows(calibrate, text, text_pair, label, header, max_line_mb, max_rows, encoding)
    schemes = listed(scheme) if scheme is not None else None
    measured = api.sensitivity(model, CalibrationOptions(rows=rows, method=calibration), schemes, record=record)
    if json:
        print(measured.model_dump_json())
        return
    for scheme_result in measured.schemes:
        print(f"{scheme_result.format} {scheme_result.scheme}")
        if scheme_result.note:
            print(f"  {scheme_result.note}")
            continue
        table_header = ["only this role", "RMS difference", "share of squares", "MB saved", ""]
        print_table(table_header, _sensitivity_rows(scheme_result))
    print(
        f"RMS differences from the exported file, of the spread of its answers, on {measured.rows:,} calibration rows."
    )
    print(measured.machine)


def diagnose(
    run: Annotated[Path, typer.Argument(help="Folder of a run that trained a student.")],
    rows: Annotated[
        int | None,
        typer.Option(
            "--rows",
            min=1,
            help="Ask both models about so many evaluation rows; default those that the run has compared, up to 2,000.",
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Show where a student loses against its teacher.

    It prints the scores of both by label, length, rare words and the teacher's confidence, how often they agree on
    training rows and on unseen rows, and what to do about it, each advice with the numbers that it rests on. No network
    is needed.
    """
    from pocketbert import api

    diagnosis = api.diagnose(run, rows)
    if json:
        print(diagnosis.model_dump_json())
        return
    print_table(*diagnosis.table())
    for number, advice in enumerate(diagnosis.advice, 1):
        print(f"{number}. {advice.what}\n   {advice.figure}\n   {advice.key}")


def _sensitivity_rows(result: Sensitivity) -> list[list[str]]:
    """Return the table rows of one scheme: one per role of weights, then the predicted and the measured total."""
    rows = [
        [
            role.role.value,
            NO_VALUE if role.rel is None else f"{role.rel:.4f}",
            NO_VALUE if (share := result.share(role)) is None else f"{share:.0%}",
            f"{role.saved / 1e6:.2f}",
            role.note,
        ]
        for role in result.roles
    ]
    predicted, whole = (NO_VALUE if value is None else f"{value:.4f}" for value in (result.predicted, result.whole))
    return [
        *rows,
        ["all, predicted", predicted, NO_VALUE, NO_VALUE, "root of the sum of squares"],
        ["all, measured", whole, NO_VALUE, f"{result.saved / 1e6:.2f}", ""],
    ]
