"""Measure latencies: of the files of a run, and of artefact folders.

The step `benchmark` calls `list_run_variants`, `section_options` and `measure`; `pocketbert benchmark` calls `benchmark_folders`, which also
imports results that were measured on other machines. `labelled_rows` reads the rows on which the files of an artefact folder are scored.
"""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from pocketbert.core.artefacts import find_artefact_folder, read_artefacts
from pocketbert.core.compare.evaluate import EvalSet
from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.data.columns import guess_and_report_columns
from pocketbert.core.data.labels import Labels, are_placeholder_names, match_label_numbers
from pocketbert.core.data.reading import read_examples
from pocketbert.core.data.source import DataSource
from pocketbert.core.devices import ADB, LOCAL, Figure, parse_device, parse_measuring_devices
from pocketbert.core.errors import InputError, MachineError, Problem
from pocketbert.core.formats import FORMATS
from pocketbert.core.heads import make_head
from pocketbert.core.heads.several import read_head_rows
from pocketbert.core.host.progress import print_note
from pocketbert.core.predict.inputs import Text
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.presets import Preset
from pocketbert.core.recipe.recipe import BenchmarkSection, Recipe
from pocketbert.core.tasks import LabelKind, Task
from pocketbert.core.types import Format, Runtime
from pocketbert.pipeline.formats.base import ModelFile, exported_file, format_place, quantized_files

if TYPE_CHECKING:
    from pocketbert.benchmarks.imported.saved_texts import Fact
    from pocketbert.benchmarks.measurement import BenchmarkOptions, BenchmarkResult, Variant
    from pocketbert.benchmarks.text_steps import PostProcessing

TEACHER_ROW_NAME = "teacher fp32"
"""Name of the teacher's file in tables."""
_Source = TypeVar("_Source", bound=DataSource | None)
_RUN_BUDGET_S = 60.0
"""Seconds that the benchmark of a run takes at most; `pocketbert benchmark --budget` has its own."""


# --- files of a run ---


def is_benchmarked(recipe: Recipe) -> bool:
    """Return whether a run has a benchmark step: the recipe has `benchmark`, and a device takes one of its files."""
    if recipe.benchmark is None:
        return False
    bases = [exported_file(f, format_place(f).exported_scheme(recipe)) for f in recipe.export.formats]
    return any(is_measured(file, recipe) for base in bases for file in (base, *quantized_files(recipe, [base])))


def is_measured(file: ModelFile, recipe: Recipe) -> bool:
    """Return whether the run's benchmark measures a model file on one of the recipe's devices.

    Files for one client or one older runtime are not measured: they hold the same graph, and what opens them is not run
    here. Files that none of the recipe's devices can run or compile are not measured either. For a file for an NPU, a
    device that compiles it is enough.
    """
    for_accelerator = file.runtime is not None and file.runtime.accelerator
    return (file.for_toolkit or for_accelerator) and _is_taken(recipe, file.format, file.runtime)


def _is_taken(recipe: Recipe, format: Format, runtime: Runtime | None) -> bool:
    """Return whether one of the recipe's devices runs or compiles files of a format and runtime."""
    from pocketbert.benchmarks.devices.table import refusals

    devices = recipe.benchmark.devices if recipe.benchmark is not None else (LOCAL,)
    return not refusals(devices, format, runtime)


def teacher_file(recipe: Recipe) -> ModelFile:
    """Return the planned file to which the teacher is exported, to compare its latency with the student's.

    It has the first of the recipe's formats that a device can run, or the first one if none can.
    """
    formats = recipe.export.formats
    format = next((f for f in formats if _is_taken(recipe, f, None)), formats[0])
    path = f"{format}-teacher/{FORMATS[format].stem}{FORMATS[format].suffix}"
    return ModelFile(path, path, format, format_place(format).exported_scheme(recipe))


def file_row_name(file: ModelFile, recipe: Recipe) -> str:
    """Return the name of a model file in tables: ``student ONNX int8``, or ``model ONNX int8`` without a student."""
    return f"{'student' if recipe.student is not None else 'model'} {file.title}"


def list_run_variants(
    recipe: Recipe, run: Path, files: Sequence[ModelFile], weights: Path, length: int
) -> list[Variant]:
    """Return the files of a run to benchmark, with their names in tables; the teacher's file, if exported, is first.

    Args:
        recipe: The recipe.
        run: The run folder.
        files: The model files of the run; those that are not measured are left out.
        weights: Folder of the exported model and its tokenizer.
        length: Longest input in tokens.
    """
    from pocketbert.benchmarks.measurement import Variant

    variants, teacher = [], teacher_file(recipe)
    if (run / teacher.source).exists():
        path, folder = run / teacher.source, run / "teacher"
        variants.append(Variant.of(TEACHER_ROW_NAME, path, folder, length, teacher.scheme, teacher.format))
    for file in files:
        if is_measured(file, recipe):
            name, path = file_row_name(file, recipe), run / file.source
            variants.append(Variant.of(name, path, weights, length, file.scheme, file.format, file.runtime))
    return variants


def section_options(section: BenchmarkSection, lengths: Sequence[int]) -> BenchmarkOptions:
    """Return the benchmark options that a recipe's section `benchmark` sets.

    With the preset `standard`, real texts and the lengths of the export are measured, for at most 60 seconds. Other
    presets have their own lengths and times.
    """
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
    if section.preset is not Preset.STANDARD:
        return options
    return replace(options, lengths=["text", *lengths], budget_s=_RUN_BUDGET_S)


# --- artefact folders ---


def benchmark_folders(
    models: Sequence[Path],
    options: BenchmarkOptions | None,
    texts: Sequence[Text],
    imports: Sequence[Path],
    facts: Sequence[Fact] = (),
) -> BenchmarkResult:
    """Measure latencies of artefact folders' model files on each device, and add results imported from other machines.

    Args:
        models: The artefact folders.
        options: Devices, threads, lengths, runs and the like; None for those of the preset `standard`.
        texts: Real texts to measure on; empty for the project's own sentences.
        imports: Files with results that were measured on other machines, or texts that measuring programs printed.
        facts: What the user states about imported texts, such as the device, where they do not name it.

    Raises:
        InputError: If the options do not fit the folders or the devices, a file cannot be imported, or there is nothing
            to measure or to import.
    """
    from pocketbert.benchmarks.imported import import_figures
    from pocketbert.benchmarks.imported.android_app import app_problems
    from pocketbert.benchmarks.measurement import FOLDER_OPTIONS
    from pocketbert.benchmarks.results import make_compilation_result

    models = [find_artefact_folder(folder) for folder in models]
    chosen = options or FOLDER_OPTIONS
    names = [str(name) for name in parse_measuring_devices(list(chosen.devices), "--device")]
    by_app = [name for name in names if chosen.app and parse_device(name).info.name == ADB]
    if chosen.app and not by_app:
        raise InputError(Problem("--app", "needs a phone over adb, and none is named.", "Add --device adb"))
    if by_app and (wrong := app_problems(chosen, bool(texts) and len(by_app) == len(names))):
        raise InputError(wrong)
    names = [name for name in names if name not in by_app]
    chosen = replace(chosen, devices=names) if by_app else chosen
    with tempfile.TemporaryDirectory(prefix="pocketbert-app-") as folder:
        records = [_measure_by_app(name, models, chosen, Path(folder) / f"{n}.json") for n, name in enumerate(by_app)]
        imported = import_figures([*imports, *records], models, facts)
    variants = _list_folder_variants(models, names) if names else []
    if imported.sessions and not variants:
        first, *others = imported.sessions
        return first.model_copy(update={"others": others, "reported": imported.reported})
    if imported.reported and not variants:
        return make_compilation_result((), chosen).model_copy(update={"reported": imported.reported})
    if not variants:
        what = f"nothing to measure on {', '.join(names) or 'any device'}, and nothing is imported."
        fix = "Core ML packages are timed on a Mac: run coreml/benchmark_on_mac.py there, then --import its file."
        raise InputError(Problem("-m/--model", what, fix))
    labelled, post_processing = _read_scored_rows(models, chosen), _collect_post_processing(models)
    result = measure(variants, texts, chosen, None, labelled, post_processing, keeps_others=True)
    return result.model_copy(update={"others": [*result.others, *imported.sessions], "reported": imported.reported})


def _measure_by_app(name: str, models: Sequence[Path], options: BenchmarkOptions, destination: Path) -> Path:
    """Measure a folder's files with the Android demo app on a phone over adb; return the JSON file with the results.

    Core ML packages, and files for OpenVINO, are left out.

    Raises:
        InputError: If several folders are given.
    """
    from pocketbert.benchmarks.imported.android_app import AppPlan, measure_by_app

    if len(models) != 1:
        what = f"the app carries one folder, got {len(models)}."
        raise InputError(Problem("--app", what, "Give one folder with -m."))
    records = [r for r in read_artefacts(models[0]).models() if r.format in (Format.ONNX, Format.TFLITE)]
    lengths = [int(x) for x in options.lengths if x != "text"] or [0]
    paths = [r.path for r in records if r.runtime is None or r.runtime.own_engine is None]
    seconds = math.ceil(options.sustained_min * 60)
    plan = AppPlan(paths, list(options.threads), lengths, options.runs, seconds)
    measure_by_app(parse_device(name).argument, plan, destination)
    return destination


def _list_folder_variants(folders: Sequence[Path], devices: Sequence[str] = (LOCAL,)) -> list[Variant]:
    """Return the model files of artefact folders that one of the devices can run; print why other files are left out."""
    from pocketbert.benchmarks.devices.table import refusals
    from pocketbert.benchmarks.measurement import Variant
    from pocketbert.benchmarks.wording import short_names

    variants, names = [], short_names(folders)
    for folder in folders:
        artefacts = read_artefacts(folder)
        for record in artefacts.models():
            refused = refusals(devices, record.format, record.runtime)
            if refused:
                print_note(f"  {folder / record.path}: left out, {'; '.join(refused)}")
                continue
            name = f"{names[folder]} {record.path}" if len(folders) > 1 else record.path
            lengths = record.signature.lengths if record.signature else []
            longest = min(artefacts.processing.max_length, max(lengths, default=artefacts.processing.max_length))
            path = folder / record.path
            variants.append(Variant.of(name, path, folder, longest, record.scheme, record.format, record.runtime))
    return variants


def _collect_post_processing(folders: Sequence[Path]) -> dict[Path, PostProcessing]:
    """Return, by the path of each model file, how its outputs become answers: task head and temperature."""
    from pocketbert.benchmarks.text_steps import PostProcessing

    post_processing = dict[Path, PostProcessing]()
    for folder in folders:
        artefacts = read_artefacts(folder)
        head = artefacts.head()
        post_processing |= {folder / r.path: PostProcessing(head, r.temperature) for r in artefacts.models()}
    return post_processing


def _read_scored_rows(models: Sequence[Path], options: BenchmarkOptions) -> EvalSet | None:
    """Read the labelled rows (`options.data`) on which an emulator of an NPU scores files; None if none are named.

    Raises:
        InputError: If no device can score rows, several folders are given, or the rows do not fit the folder's task.
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


def labelled_rows(folder: Path, source: DataSource) -> EvalSet:
    """Read labelled rows and tokenize them, to score the files of an artefact folder on them.

    Args:
        folder: The artefact folder.
        source: The rows. Columns that are not named are guessed.

    Raises:
        InputError: If the rows cannot be read, do not fit the folder's task, or have no pairs to compare vectors on.
    """
    artefacts = read_artefacts(folder)
    head, name = artefacts.head(), Path(source.title).name
    if head.task.heads:
        (source, *_), columns = guess_head_columns([source], head.task)
        prepared = head.prepare(
            read_head_rows(source, head.task, columns),
            TextTokenizer(folder, artefacts.processing.max_length),
            source.title,
        )
        return EvalSet(name, head, prepared)
    source = guess_and_report_columns(source, head.task.labels)
    tokenizer = TextTokenizer(folder, artefacts.processing.max_length)
    reader = tokenizer.reader
    rows = read_examples(source, kind=head.task.labels, columns=reader.form.columns if reader else ())
    names = tuple(artefacts.labels)
    labels = match_label_numbers(Labels(names), rows, head.task.labels, ordered=are_placeholder_names(names))
    if labels.numbers:
        print_note(f"{name}: {labels.note}")
        head = make_head(head.task, labels, artefacts.processing.settings())
    if reader is not None:
        reader.check([row.input for row in rows], f"{name} row")
    prepared = head.prepare(rows, tokenizer, source.title)
    if not len(prepared.truth):
        what = f"{name} has no pairs; vectors of single texts are compared on golden rows."
        fix = "Give --text-pair, or leave --data out."
        raise InputError(Problem("--data", what, fix))
    return EvalSet(name, head, prepared)


def guess_head_columns(sources: Sequence[_Source], task: Task) -> tuple[list[_Source], dict[str, str]]:
    """Guess the text columns of rows for several heads where they are not named, and find the column of each head's label.

    Args:
        sources: The rows; their `label` may name a column of each head, ``intent=COLUMN,slots=COLUMN``. None for no rows.
        task: The task of all heads.

    Returns:
        Copies of the sources that name their text columns and no label, and the column of each head's label by the
        head's name.

    Raises:
        InputError: If a name in `label` is no head, two sources name different columns for the heads, or the text columns
            cannot be guessed.
    """
    default = DataSource.model_fields["label"].default
    labels = list(dict.fromkeys(source.label for source in sources if source is not None)) or [default]
    columns, *others = [_columns_of_heads(label, task) for label in labels]
    if any(own != columns for own in others):
        what = f"{' and '.join(labels)} name other columns of the heads, and one run reads both files."
        raise InputError(Problem("--label", what, "Name the columns of both files alike."))
    leading = next((h for h in task.heads if h.task.labels is LabelKind.SPANS), task.heads[0])
    guessed = list(sources)
    for i, source in enumerate(sources):
        if source is not None:
            given = {**source.model_dump(exclude_unset=True), "label": columns[leading.name]}
            try:
                found = guess_and_report_columns(DataSource.model_validate(given), leading.task.labels)
            except InputError as error:
                fix = f"Of several heads: --label {','.join(f'{name}=COLUMN' for name in columns)}."
                raise InputError([replace(p, fix=f"{p.fix} {fix}".strip()) for p in error.problems]) from error
            guessed[i] = cast("_Source", found.model_copy(update={"label": default}))
    return guessed, columns


def _columns_of_heads(label: str, task: Task) -> dict[str, str]:
    """Return the column of each head's label by the head's name.

    It is the column that ``--label intent=COLUMN,slots=COLUMN`` names for the head, else a column with the head's name.

    Raises:
        InputError: If a part of `label` names no head or no column.
    """
    columns, names = {head.name: head.name for head in task.heads}, [head.name for head in task.heads]
    if label in ("", DataSource.model_fields["label"].default):
        return columns
    for part in label.split(","):
        name, is_named, column = part.partition("=")
        if not is_named or name not in columns or not column:
            what = f"'{part}' names no column of a head; the folder has the heads {', '.join(names)}."
            raise InputError(Problem("--label", what, f"Write --label {','.join(f'{n}=COLUMN' for n in names)}"))
        columns[name] = column
    return columns


def only_compile(devices: Sequence[str]) -> bool:
    """Return whether all devices compile files without running them; False for no devices and for unknown names."""
    from pocketbert.benchmarks.devices.table import device

    with contextlib.suppress(ValueError):
        return bool(devices) and all(device(name).compiler is not None for name in devices)
    return False


# --- measurement ---


def measure(
    variants: Sequence[Variant],
    texts: Sequence[Text],
    options: BenchmarkOptions,
    root: Path | None = None,
    labelled: EvalSet | None = None,
    post_processing: Mapping[Path, PostProcessing] | None = None,
    keeps_others: bool = False,
) -> BenchmarkResult:
    """Measure the latency of model files on each device and return the result.

    Args:
        variants: The files.
        texts: Real texts to measure on; empty for the project's own sentences.
        options: Devices, threads, lengths, runs and the like.
        root: Folder that the paths in the result are relative to; None to leave paths as they are.
        labelled: Rows on which an emulator of an NPU scores files.
        post_processing: How the outputs of a file become answers, by the file's path, to measure the time of that too.
        keeps_others: Whether to return the figures of the other devices if a device is lost. The result then names the
            lost device in `failed`.

    Raises:
        MachineError: If a device is lost and `keeps_others` is not set.
    """
    from pocketbert.benchmarks.latency import benchmark

    result = benchmark(variants, list(texts) or list(SENTENCES), options, labelled, post_processing)
    if result.failed and not keeps_others:
        raise MachineError("; ".join(f"{where}: {error}" for where, error in result.failed.items()))
    return result if root is None else with_relative_paths(result, root)


def with_relative_paths(result: BenchmarkResult, root: Path) -> BenchmarkResult:
    """Return a copy of a benchmark result with file paths relative to a folder; others are cut to the file name."""

    def relative(path: Path) -> Path:
        return path.relative_to(root) if path.is_relative_to(root) else Path(path.name)

    sessions = []
    for session in (result, *result.others):
        variants = [
            v.model_copy(update={"path": relative(v.path), "tokenizer": relative(v.tokenizer)})
            for v in session.variants
        ]
        sessions.append(session.model_copy(update={"variants": variants}))
    return sessions[0].model_copy(update={"others": sessions[1:]})
