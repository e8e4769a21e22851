"""The benchmark step: measure a run's files, and its teacher's, side by side."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pocketbert.core.artefacts import artefact_folder, read_artefacts
from pocketbert.core.compare.evaluate import EvalSet
from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.data.columns import found_columns
from pocketbert.core.data.examples import read_examples
from pocketbert.core.data.labels import Labels, placeholder_names, with_numbers
from pocketbert.core.data.source import DataSource
from pocketbert.core.devices import ADB, LOCAL, Figure, devices_named, parse_device
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.formats import FORMATS
from pocketbert.core.heads import head_of
from pocketbert.core.host.progress import say
from pocketbert.core.predict.tokenization import Text, TextTokenizer
from pocketbert.core.recipe.presets import Preset
from pocketbert.core.recipe.recipe import BenchmarkSection, Recipe
from pocketbert.core.types import Format, Runtime
from pocketbert.pipeline.formats.base import ModelFile, exported_file, place_of, smaller

if TYPE_CHECKING:
    from pocketbert.benchmarks.imported.saved_texts import Fact
    from pocketbert.benchmarks.measurement import BenchmarkOptions, BenchmarkResult, Variant
    from pocketbert.benchmarks.text_steps import PostProcessing
    from pocketbert.core.heads import Head


# --- labelled ---
# Labelled rows of a user's file, as the files of an artefact folder take them.


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


TEACHER = "teacher fp32"
BUDGET_S = 60.0
"""Most seconds a run's benchmark takes; `pocketbert benchmark --budget` has its own."""


def row_name(file: ModelFile, recipe: Recipe) -> str:
    """What tables call a file: ``student ONNX int8``, or ``model ONNX int8`` where nothing was distilled."""
    return f"{'student' if recipe.student is not None else 'model'} {file.title}"


def is_timed(recipe: Recipe) -> bool:
    """Whether the run measures: the recipe asks for it, and one of its devices takes one of its files."""
    if recipe.benchmark is None:
        return False
    bases = [exported_file(f, place_of(f).exported_scheme(recipe)) for f in recipe.export.formats]
    return any(is_measured(file, recipe) for base in bases for file in (base, *smaller(recipe, [base])))


def teacher_file(recipe: Recipe) -> ModelFile:
    """The teacher as a file of the first format measured: what sizes and latencies are compared with."""
    formats, devices = recipe.export.formats, _devices(recipe)
    format = next((f for f in formats if _taken(f, None, devices)), formats[0])
    path = f"{format}-teacher/{FORMATS[format].stem}{FORMATS[format].suffix}"
    return ModelFile(path, path, format, place_of(format).exported_scheme(recipe))


def _devices(recipe: Recipe) -> Sequence[str]:
    return recipe.benchmark.devices if recipe.benchmark is not None else (LOCAL,)


def _taken(format: Format, runtime: Runtime | None, devices: Sequence[str]) -> bool:
    from pocketbert.benchmarks.devices.table import refusals

    return not refusals(devices, format, runtime)


def is_measured(file: ModelFile, recipe: Recipe) -> bool:
    """Whether the benchmark measures a file of the run.

    Files for one client or one older runtime are left out, the same graph opened by something else than is measured
    here, and so are files that no device of the recipe takes. Files for an NPU are taken by devices that compile.
    """
    compiled = file.runtime is not None and file.runtime.accelerator
    return (file.for_toolkit or compiled) and _taken(file.format, file.runtime, _devices(recipe))


def run_variants(recipe: Recipe, run: Path, files: Sequence[ModelFile], weights: Path, length: int) -> list[Variant]:
    """A run's files as the benchmark takes them, the teacher's first; see `is_measured`."""
    from pocketbert.benchmarks.measurement import Variant

    out, teacher = [], teacher_file(recipe)
    if (run / teacher.source).exists():
        out.append(Variant.of(TEACHER, run / teacher.source, run / "teacher", length, teacher.scheme, teacher.format))
    return [
        *out,
        *(
            Variant.of(row_name(f, recipe), run / f.source, weights, length, f.scheme, f.format, f.runtime)
            for f in files
            if is_measured(f, recipe)
        ),
    ]


def folder_variants(folders: Sequence[Path], devices: Sequence[str] = (LOCAL,)) -> list[Variant]:
    """Every model file of some artefact folders that one of the devices takes; what keeps the others out is told."""
    from pocketbert.benchmarks.devices.table import refusals
    from pocketbert.benchmarks.measurement import Variant
    from pocketbert.benchmarks.wording import short_names

    out, names = [], short_names(folders)
    for folder in folders:
        artefacts = read_artefacts(folder)
        for record in artefacts.models():
            refused = refusals(devices, record.format, record.runtime)
            if refused:
                say(f"  {folder / record.path}: left out, {'; '.join(refused)}")
                continue
            prefix = f"{names[folder]} " if len(folders) > 1 else ""
            lengths = record.signature.lengths if record.signature else []
            longest = min(artefacts.processing.max_length, max(lengths, default=artefacts.processing.max_length))
            out.append(
                Variant.of(
                    f"{prefix}{record.path}",
                    folder / record.path,
                    folder,
                    longest,
                    record.scheme,
                    record.format,
                    record.runtime,
                )
            )
    return out


def section_options(section: BenchmarkSection, lengths: Sequence[int]) -> BenchmarkOptions:
    """The options of a recipe's ``benchmark``; the standard preset measures real text and the export's lengths."""
    from pocketbert.benchmarks.measurement import preset_options

    options = replace(
        preset_options(section.preset),
        devices=section.devices,
        threads=section.threads,
        runs=section.runs,
        repeats=section.repeats,
        gaps_ms=section.gaps_ms,
        sustained_min=section.sustained_min,
    )
    standard = section.preset is Preset.STANDARD
    return replace(options, lengths=["text", *lengths], budget_s=BUDGET_S) if standard else options


def only_compiled(devices: Sequence[str]) -> bool:
    """Whether files are compiled for all of some devices and run on none; names that are wrong count as running."""
    from pocketbert.benchmarks.devices.table import device

    with contextlib.suppress(ValueError):
        return bool(devices) and all(device(name).compiler is not None for name in devices)
    return False


def benchmark_folders(
    models: Sequence[Path],
    options: BenchmarkOptions | None,
    texts: Sequence[Text],
    imports: Sequence[Path],
    facts: Sequence[Fact] = (),
) -> BenchmarkResult:
    """Measure the files of artefact folders; see `pocketbert.api.benchmark`."""
    from pocketbert.benchmarks.imported.android_app import app_problems
    from pocketbert.benchmarks.imported.files import import_all
    from pocketbert.benchmarks.measurement import FOLDER_OPTIONS
    from pocketbert.benchmarks.results import nothing_timed

    models = [artefact_folder(folder) for folder in models]
    chosen = options or FOLDER_OPTIONS
    names = [str(name) for name in devices_named(list(chosen.devices), "--device")]
    by_app = [name for name in names if chosen.app and parse_device(name).info.name == ADB]
    if chosen.app and not by_app:
        raise InputError(Problem("--app", "needs a phone over adb, and none is named.", "Add --device adb"))
    if by_app and (wrong := app_problems(chosen, bool(texts) and len(by_app) == len(names))):
        raise InputError(wrong)
    names = [name for name in names if name not in by_app]
    chosen = dataclasses.replace(chosen, devices=names) if by_app else chosen
    with tempfile.TemporaryDirectory(prefix="pocketbert-app-") as folder:
        measured = [_measured_by_app(name, models, chosen, Path(folder) / f"{n}.json") for n, name in enumerate(by_app)]
        found = import_all([*imports, *measured], models, facts)
    imported, reported = found.sessions, found.reported
    variants = folder_variants(models, names) if names else []
    if imported and not variants:
        return imported[0].model_copy(update={"others": imported[1:], "reported": reported})
    if reported and not variants:
        return nothing_timed((), chosen).model_copy(update={"reported": reported})
    if not variants:
        raise InputError(
            Problem(
                "-m/--model",
                f"nothing to measure on {', '.join(names) or 'any device'}, and nothing is imported.",
                "Core ML packages are timed on a Mac: run coreml/benchmark_on_mac.py there, then --import its file.",
            )
        )
    result = measure(variants, texts, chosen, labelled=_labelled(models, chosen), post_processing=_of_folders(models))
    return result.model_copy(update={"others": [*result.others, *imported], "reported": reported})


def _of_folders(folders: Sequence[Path]) -> dict[Path, PostProcessing]:
    """How the outputs of each file of some folders become answers."""
    from pocketbert.benchmarks.text_steps import PostProcessing

    out = dict[Path, PostProcessing]()
    for folder in folders:
        artefacts = read_artefacts(folder)
        head = artefacts.head()
        out |= {folder / r.path: PostProcessing(head, r.temperature) for r in artefacts.models()}
    return out


def of_run(variants: Sequence[Variant], head: Head) -> dict[Path, PostProcessing]:
    """How the outputs of a run's files become answers; temperatures are fitted later."""
    from pocketbert.benchmarks.text_steps import PostProcessing

    return {v.path: PostProcessing(head) for v in variants}


def _measured_by_app(name: str, models: Sequence[Path], options: BenchmarkOptions, destination: Path) -> Path:
    """The record of the demo app of one phone, which carries one folder."""
    from pocketbert.benchmarks.imported.android_app import AppPlan, measure_by_app

    if len(models) != 1:
        raise InputError(
            Problem("--app", f"the app carries one folder, got {len(models)}.", "Give one folder with -m.")
        )
    records = [r for r in read_artefacts(models[0]).models() if r.format in (Format.ONNX, Format.TFLITE)]
    lengths = [int(x) for x in options.lengths if x != "text"] or [0]
    paths = [r.path for r in records if r.runtime is None or r.runtime.own_engine is None]
    seconds = math.ceil(options.sustained_min * 60)
    plan = AppPlan(paths, list(options.threads), lengths, options.runs, seconds)
    measure_by_app(parse_device(name).argument, plan, destination)
    return destination


def _labelled(models: Sequence[Path], options: BenchmarkOptions) -> EvalSet | None:
    """The rows of `BenchmarkOptions.data`.

    Raises:
        InputError: Where no device scores them, or they cannot belong to the files of several folders.
    """
    from pocketbert.benchmarks.devices.table import device

    if options.data is None:
        return None
    compilers = [d for d in map(device, options.devices) if d.compiler is not None]
    if all(Figure.ANSWERS not in d.info.figures for d in compilers):
        what = "is scored on devices with an emulator of an NPU only, and none is named."
        raise InputError(Problem("--data", what, "Name one (pocketbert devices), or use: pocketbert verify --data"))
    if len(models) != 1:
        raise InputError(Problem("--data", f"is for one folder, got {len(models)}.", "Give one folder with -m."))
    return labelled_rows(models[0], options.data)


def measure(
    variants: Sequence[Variant],
    texts: Sequence[Text],
    options: BenchmarkOptions,
    root: Path | None = None,
    labelled: EvalSet | None = None,
    post_processing: Mapping[Path, PostProcessing] | None = None,
) -> BenchmarkResult:
    """Run the protocol on each device.

    Args:
        variants: Files to measure.
        texts: Real texts; the project's own sentences where there are none.
        options: Devices, threads, lengths, runs and the like.
        root: Folder that the paths in the result are relative to.
        labelled: Rows on which emulated files are scored.
        post_processing: How the outputs of a file become answers, by its path.
    """
    from pocketbert.benchmarks.latency import benchmark

    result = benchmark(variants, list(texts) or list(SENTENCES), options, labelled, post_processing)
    return result if root is None else without_paths(result, root)


def without_paths(result: BenchmarkResult, root: Path) -> BenchmarkResult:
    """A result with paths relative to a folder: those of this machine have no place in what others read."""
    first, *others = [_in_folder(session, root) for session in (result, *result.others)]
    return first.model_copy(update={"others": others})


def _in_folder(session: BenchmarkResult, root: Path) -> BenchmarkResult:
    variants = [
        v.model_copy(update={"path": _relative(v.path, root), "tokenizer": _relative(v.tokenizer, root)})
        for v in session.variants
    ]
    return session.model_copy(update={"variants": variants})


def _relative(path: Path, root: Path) -> Path:
    return path.relative_to(root) if path.is_relative_to(root) else Path(path.name)
