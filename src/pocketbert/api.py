"""The verbs of PocketBERT as functions: the command line calls these, and so may you.

Every function imports what it needs when called: importing this package is cheap, and a core-only install can predict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pocketbert.core.host.system import unsupported_system
from pocketbert.pipeline.options import BudgetOptions, CalibrationOptions, DataFiles, ExportOptions, Plan, PlannedStep

if TYPE_CHECKING:
    from pocketbert.benchmarks.imported.saved_texts import Fact
    from pocketbert.benchmarks.measurement import BenchmarkOptions, BenchmarkResult
    from pocketbert.core.artefacts import Sensitivities
    from pocketbert.core.data.source import DataSource
    from pocketbert.core.data_report import DataReport
    from pocketbert.core.predict.answers import Answer
    from pocketbert.core.predict.inputs import Text
    from pocketbert.core.recipe.recipe import Recipe
    from pocketbert.pipeline.doctor import Diagnosis
    from pocketbert.pipeline.learn.augmenting import AugmentCounts
    from pocketbert.pipeline.recipes import AnyRecipe, StartingRecipe
    from pocketbert.pipeline.results import Verification
    from pocketbert.pipeline.run import Run
    from pocketbert.pipeline.run_folder.folder import RunResult


# --- verbs on a recipe's data, without training ---


def data_check(recipe: Recipe) -> DataReport | None:
    """Read a recipe's data and describe it, without training; return None if the recipe has no data."""
    from pocketbert.pipeline.learn.data import load_data
    from pocketbert.pipeline.reference import open_teacher

    return load_data(recipe, open_teacher(recipe)).report


def data_prepare(recipe: Recipe, output: str | Path) -> list[Path]:
    """Tokenize a recipe's plain text (``data.corpus``) into prepared corpora, which recipes can name as sources.

    Args:
        recipe: Its teacher's tokenizer is used.
        output: Folder for the corpora, one folder per source; sources that are prepared already stay where they are.

    Returns:
        The corpora's folders in the order of the sources.

    Raises:
        InputError: If the recipe has no corpus, or its text cannot be read.
    """
    from pocketbert.pipeline.learn.corpora import prepare_corpora

    return prepare_corpora(recipe, Path(output))


def data_augment(recipe: Recipe, output: str | Path, overwrite: bool = False) -> AugmentCounts:
    """Write a recipe's training rows, each followed by copies in which words are replaced (``data.augment``).

    Started again after it was stopped it continues. A run makes these rows by itself for stages with ``augmented: true``.

    Args:
        recipe: Its data, teacher and seed.
        output: The file, ``.jsonl`` or ``.jsonl.gz``; read it with ``data.holdout: 0``.
        overwrite: Whether an existing file may be replaced.

    Returns:
        How many rows and copies it holds.

    Raises:
        InputError: If the task's labels do not belong to whole texts, or a setting does not fit.
    """
    from pocketbert.pipeline.learn.augmenting import augment_file

    return augment_file(recipe, Path(output), overwrite=overwrite)


def data_demo(output: str | Path) -> dict[str, Path]:
    """Write the built-in corpus of assistant commands to an empty folder and return its files by split."""
    from pocketbert.pipeline.run import write_corpus

    return write_corpus(Path(output))


# --- verbs that make an artefact folder of a model, of another folder or of a run ---


def export(
    model: str | Path, output: str | Path, options: ExportOptions | None = None, *, overwrite: bool = False
) -> Path:
    """Export a fine-tuned model to an artefact folder, without recipe or network.

    Args:
        model: Hugging Face folder (or Hub name).
        output: The artefact folder to write.
        options: What to write; default files of all formats, with int8.
        overwrite: Whether an existing folder may be replaced.

    Returns:
        The folder; where `output` is a link, what it leads to.

    Raises:
        PocketBertError: If the model or an option is not usable, or a gate failed.
    """
    from pocketbert.pipeline.direct import export_model

    return export_model(str(model), Path(output), options or ExportOptions(), overwrite=overwrite)


def plan_export(
    model: str | Path, output: str | Path, options: ExportOptions | None = None, *, overwrite: bool = False
) -> Plan:
    """List what `export` would do, without doing it."""
    from pocketbert.pipeline.direct import plan_export as planned

    steps = planned(str(model), Path(output), options or ExportOptions(), overwrite=overwrite)
    return [PlannedStep(title, str(output), state) for title, state in steps]


def quantize(
    model: str | Path,
    output: str | Path,
    schemes: Sequence[str] | None = None,
    runtimes: Sequence[str] = (),
    overwrite: bool = False,
    calibrate: DataSource | CalibrationOptions | None = None,
    budget: BudgetOptions | None = None,
    roles: Mapping[str, str] | None = None,
) -> Path:
    """Add quantized files to an artefact folder, verified like any other; the fp32 files are kept as they are.

    Args:
        model: An artefact folder with fp32 files and ``model.safetensors``.
        output: The new artefact folder; it is returned, and where it is a link, what it leads to.
        schemes: Schemes of smaller files, the default file's first; default ``int8``, with a budget all are considered.
        runtimes: Runtimes that get a further file: ``tflite216``, ``openvino``, ``gpu`` (``fp16``), ``npu`` and ``qnn`` (``a16w8``,
            ``a8w8``).
        overwrite: Whether an existing folder may be replaced.
        calibrate: Labelled training rows on which static schemes (``a8w8``) measure ranges, and a budget ranks candidates; with a
            method that chooses ranges, `CalibrationOptions`.
        budget: Limits inside which the best file of each format is chosen.
        roles: Scheme of a role or of modules, ``none`` to leave them as they were exported: ``{"ffn_down": "none"}``.
    """
    from pocketbert.pipeline.direct import quantize_folder

    given = CalibrationOptions.of(calibrate)
    return quantize_folder(Path(model), Path(output), schemes, runtimes, given, budget, overwrite, roles or {})


def pack(run: str | Path, output: str | Path, overwrite: bool = False, platform: str | None = None) -> Path:
    """Pack the verified files of a run into an artefact folder, or what an app needs into its assets.

    Args:
        run: A run folder; with `platform` also an artefact folder.
        output: The folder to write; with `platform` it may hold other files, which stay.
        overwrite: Whether what was packed before may be replaced.
        platform: ``android``, ``ios``, ``web`` or ``server`` for the files that an app there needs.
    """
    from pocketbert.pipeline.direct import pack_run

    return pack_run(Path(run), Path(output), overwrite, platform)


# --- verbs that answer, check, measure and report what a folder holds ---


def verify(
    model: str | Path,
    data: str | Path | DataSource | None = None,
    *,
    text: str | None = None,
    text_pair: str | None = None,
    label: str | None = None,
    header: bool | None = None,
    max_drop: float = 0.01,
    record: bool = False,
) -> Verification:
    """Check the files of an artefact folder or of a run folder with the gates.

    Args:
        model: Artefact folder or run folder.
        data: Labelled rows for the task metric, a file or a source with its own columns and limits; without them golden
            rows decide. A run folder uses its recipe's.
        text: Column of the text; columns that are not named are found by their names or their content.
        text_pair: Column of the second text.
        label: Column of the label.
        header: Whether the first row of a .csv or .tsv file names its columns; default: detected.
        max_drop: Largest loss of the metric between fp32 and quantized, as a fraction.
        record: Whether the scores are written into the artefact folder: its list, model card and report.

    Returns:
        All gates; a run folder's ``verify.json`` is rewritten.
    """
    from pocketbert.core.data.source import DataSource
    from pocketbert.pipeline.direct import verify_folder

    if isinstance(data, str | Path):
        data = DataSource.at(str(data), text, text_pair, label, header)
    return verify_folder(Path(model), data, max_drop, record)


def predict(
    model: str | Path,
    texts: Sequence[Text],
    *,
    scheme: str | None = None,
    threads: int | None = None,
    format: str | None = None,
    engine: str | None = None,
    file: str | None = None,
    cadence: str | None = None,
) -> list[Answer]:
    """Run the model of an artefact folder on texts; see `pocketbert.load` for how its file is chosen.

    Texts get the folder's default prompt, where it has one; `pocketbert.load(...).predict(texts, prompt=NAME)` takes another one.

    Args:
        model: The folder.
        texts: Texts, or pairs as tuples; question-answering takes (question, context).
        scheme: ``int8``, ``fp32``, ...; default that of the folder's default file.
        threads: Threads; default all cores.
        format: ``onnx``, ``tflite`` or ``coreml``; default that of the folder's default file.
        engine: ``"fastest"``, or None.
        file: One file of the folder by its path, instead of scheme and format.
        cadence: With ``"fastest"``: ``"batch"`` or ``"interactive"``.
    """
    from pocketbert.runtime.model import load

    opened = load(model, scheme, threads, format=format, engine=engine, file=file, cadence=cadence)
    return opened.predict(texts, progress="predict")


def benchmark(
    models: Sequence[str | Path],
    options: BenchmarkOptions | None = None,
    *,
    texts: Sequence[Text] = (),
    imports: Sequence[str | Path] = (),
    facts: Sequence[Fact] = (),
    record: bool = False,
) -> BenchmarkResult:
    """Measure the model files of artefact folders in turns on each device, and add imported figures of other machines.

    Args:
        models: Artefact folders; the first file of the first one is the baseline. None where only `imports` are shown.
        options: Devices, thread counts, lengths, runs and budget; default as on the command line.
        texts: Real texts; default the project's own sentences.
        imports: Files that ``coreml/benchmark_on_mac.py`` wrote on a Mac, or the Android demo app on a phone. What they
            measured must be files of `models`; without `models` that is not checked, and the result records it. Also texts that
            ``benchmark_model`` or ``onnxruntime_perf_test`` printed, which need `models`.
        facts: What such texts do not tell, for example ``Fact("device", "Pixel 8")`` of `pocketbert.benchmarks.imported.saved_texts`.
        record: Whether the figures are written into the one folder of `models`: its model card and report.

    Returns:
        The session of the first device, which holds those of the others and the imported ones; the first imported one
        where nothing was measured.

    Raises:
        InputError: Listing every problem.
    """
    from pocketbert.pipeline.direct import measure_folders

    return measure_folders([Path(m) for m in models], options, texts, [Path(i) for i in imports], record, facts)


def sensitivity(
    model: str | Path,
    calibrate: DataSource | CalibrationOptions | None,
    schemes: Sequence[str] | None = None,
    *,
    record: bool = False,
) -> Sensitivities:
    """Measure how far each role by itself takes a smaller file from the exported one, with real files.

    Args:
        model: An artefact folder with exported files and ``model.safetensors``; it is not changed but for its report.
        calibrate: Labelled training rows on which files are compared, and static schemes measure ranges; with a method that
            chooses ranges, `CalibrationOptions`.
        schemes: Schemes to measure; default those of the folder's files, else ``int8``.
        record: Whether the figures are written into the folder's report.

    Returns:
        For each format and scheme the difference that each role makes, that of all together, and what the single ones predict.
    """
    from pocketbert.pipeline.direct import measure_sensitivity

    return measure_sensitivity(Path(model), CalibrationOptions.of(calibrate), schemes, record)


def report(run: str | Path, output: str | Path, overwrite: bool = False, baseline: str | Path | None = None) -> Path:
    """Write the HTML report of a run folder or an artefact folder, or compare two stored benchmarks.

    Args:
        run: The run folder or artefact folder; with `baseline` the later benchmark, as JSON that `BenchmarkResult.write` wrote, or
            a folder that records one.
        output: The HTML file.
        overwrite: Whether an existing file may be replaced.
        baseline: An earlier benchmark of the same machine, likewise; the page then shows what changed.

    Returns:
        The file; where `output` is a link, what it leads to.
    """
    from pocketbert.pipeline.direct import write_report

    return write_report(Path(run), Path(output), overwrite, None if baseline is None else Path(baseline))


# --- what this machine has ---


def doctor() -> Diagnosis:
    """Report versions, CPU features, the number type used in training, and which optional parts are installed."""
    from pocketbert.pipeline.doctor import diagnose

    return diagnose()


# --- verbs that follow a recipe: the whole chain, parts of it, and what it would do ---


def load_recipe(recipe: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe file, or a shipped recipe by name.

    Args:
        recipe: Path, or a name that `pocketbert recipes ls` lists.
        overrides: ``key.sub=value`` texts.

    Raises:
        InputError: Listing every problem.
    """
    from pocketbert.core.recipe.file import load_recipe as load
    from pocketbert.pipeline.recipes import recipe_path

    return load(recipe_path(recipe), overrides)


def starting_recipe(files: DataFiles, output: str | Path, overrides: Sequence[str] = ()) -> StartingRecipe:
    """Make a recipe for a data file: what `files` leaves out, lengths and passes are found in the rows.

    Args:
        files: The data.
        output: The run folder in which `run` will keep the recipe.
        overrides: ``key.sub=value`` texts.

    Raises:
        InputError: If the file cannot be read, or its columns or its task are not clear.
    """
    from pocketbert.pipeline import recipes as starting

    return starting.starting_recipe(files, Path(output), overrides)


def run(recipe: AnyRecipe, output: str | Path, overwrite: bool = False, resume_anyway: bool = False) -> RunResult:
    """Run the whole chain of a recipe: teacher, student, files, gates, benchmark, artefact folder and report.

    Started again with the same arguments it continues where it was, however it ended.

    Args:
        recipe: What to do; one that was made for a data file is kept in the folder as ``recipe.yaml``.
        output: The run folder.
        overwrite: Whether results of another recipe, or of other library versions, in that folder may be replaced.
        resume_anyway: Whether results and unfinished work of other library versions are taken as they are; the artefact
            folder's lineage records it.

    Returns:
        Where everything is, and the closing table.

    Raises:
        PocketBertError: InputError, GateError, MachineError or MissingBackendError.
    """
    whole = _run_at(recipe, output, overwrite, resume_anyway)
    whole.execute()
    return whole.finish()


def finetune(recipe: Recipe, output: str | Path, overwrite: bool = False, resume_anyway: bool = False) -> Path:
    """Load or fine-tune the teacher of a recipe and return its folder, in Hugging Face layout."""
    whole = _run_at(recipe, output, overwrite, resume_anyway)
    whole.execute(until="teacher")
    return whole.path / "teacher"


def distill(recipe: Recipe, output: str | Path, overwrite: bool = False, resume_anyway: bool = False) -> Path:
    """Make the teacher and the student of a recipe, without exporting files.

    Returns:
        The student's folder, in Hugging Face layout.

    Raises:
        InputError: If the recipe has no student.
    """
    from pocketbert.core.errors import InputError, Problem

    if recipe.student is None:
        why = "the recipe has no student section."
        raise InputError(Problem("student", why, "Add student: {layers: 3} and a distill stage."))
    whole = _run_at(recipe, output, overwrite, resume_anyway)
    whole.execute(until="student")
    return whole.path / "student"


def plan(recipe: AnyRecipe, output: str | Path, overwrite: bool = False, resume_anyway: bool = False) -> Plan:
    """List what `run` would do, without doing it."""
    return [PlannedStep(*row) for row in _run_at(recipe, output, overwrite, resume_anyway).plan()]


def demo(output: str | Path, overwrite: bool = False, overrides: Sequence[str] = ()) -> RunResult:
    """Run the whole chain on the built-in corpus with the real MiniLM teacher."""
    from pocketbert.pipeline.run import run_demo

    return run_demo(Path(output), overwrite, overrides)


def _run_at(recipe: AnyRecipe, output: str | Path, overwrite: bool, resume_anyway: bool) -> Run:
    """Return the `Run` of a recipe in the folder `output`, with permission to replace or keep old results."""
    from pocketbert.pipeline.direct import ChoosingRun
    from pocketbert.pipeline.recipes import recipe_settings
    from pocketbert.pipeline.run_folder import Permission, run_destination

    return ChoosingRun(
        recipe, run_destination(recipe_settings(recipe), Path(output)), Permission(overwrite, resume_anyway)
    )


__all__ = [
    "DataFiles",
    "PlannedStep",
    "benchmark",
    "data_augment",
    "data_check",
    "data_demo",
    "data_prepare",
    "demo",
    "distill",
    "doctor",
    "export",
    "finetune",
    "load_recipe",
    "pack",
    "plan",
    "plan_export",
    "predict",
    "quantize",
    "report",
    "run",
    "sensitivity",
    "starting_recipe",
    "verify",
]

if text := unsupported_system():
    raise ImportError(text)
