"""The verbs of PocketBERT as functions: the command line calls these, and so may you.

Every function imports what it needs when called: importing this package is cheap, and a core-only install can predict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pocketbert.core.host.system import unsupported_system
from pocketbert.pipeline.options import (
    BudgetOptions,
    CalibrationOptions,
    DataFiles,
    DiffOptions,
    ExportOptions,
    Plan,
    PlannedStep,
    PlanOptions,
    TeachOptions,
)

if TYPE_CHECKING:
    from pocketbert.benchmarks.imported.saved_texts import Fact
    from pocketbert.benchmarks.measurement import BenchmarkOptions, BenchmarkResult
    from pocketbert.core.artefacts import Sensitivities
    from pocketbert.core.compare.diagnosis import StudentDiagnosis
    from pocketbert.core.compare.differences import ModelDiff
    from pocketbert.core.data.source import DataSource
    from pocketbert.core.data_report import DataReport
    from pocketbert.core.predict.answers import Answer
    from pocketbert.core.predict.inputs import Text
    from pocketbert.core.recipe.planned import StudentPlan
    from pocketbert.core.recipe.recipe import Recipe
    from pocketbert.pipeline.doctor import Diagnosis
    from pocketbert.pipeline.file_check import FileReport
    from pocketbert.pipeline.learn.augmenting import AugmentCounts
    from pocketbert.pipeline.recipes import AnyRecipe, StartingRecipe
    from pocketbert.pipeline.results import Verification
    from pocketbert.pipeline.run import Run
    from pocketbert.pipeline.run_folder.folder import RunResult
    from pocketbert.pipeline.teach.writing import TeachReport


# --- verbs on a recipe's data, without training ---


def data_check(recipe: Recipe) -> DataReport | None:
    """Return a report on a recipe's rows, without training; None if it names no rows. The teacher labels eval rows if none has a label."""
    from pocketbert.pipeline.learn.data import load_data
    from pocketbert.pipeline.reference import open_teacher

    return load_data(recipe, open_teacher(recipe)).report


def data_check_file(files: DataFiles) -> FileReport:
    """Read a data file without a recipe and report its columns, its task, some rows, and what looks wrong in it."""
    from pocketbert.pipeline.file_check import check_data_file

    return check_data_file(files)


def data_prepare(recipe: Recipe, output: str | Path, engine: str = "local", workers: int | None = None) -> list[Path]:
    """Tokenize a recipe's plain text (``data.corpus``) into prepared corpora, which recipes can name as sources.

    Args:
        recipe: The recipe; its teacher's tokenizer is used.
        output: Folder for the corpora, one folder per source. Sources that are prepared already are not copied.
        engine: ``local``, in this process or those of a launcher, or ``ray``, in `workers` processes of a Ray cluster.
        workers: Number of these; None for one on each machine.

    Returns:
        The folder of each source's corpus, in the order of the sources; prepared sources stay where they are.

    Raises:
        InputError: If the recipe has no corpus, a text cannot be read, or the folder cannot be used.
    """
    from pocketbert.pipeline.learn.corpora import prepare_corpora

    return prepare_corpora(recipe, Path(output), engine, workers)


def data_augment(recipe: Recipe, output: str | Path, overwrite: bool = False) -> AugmentCounts:
    """Write the rows that a recipe trains on, each followed by its copies with replaced words (``data.augment``).

    Held-out rows and rows that also occur in eval are left out. If it was stopped, the same call continues. A run makes
    such rows by itself for stages with ``augmented: true``. Returns how many rows and copies the file holds.

    Args:
        recipe: The recipe, whose data, teacher and seed are used.
        output: The file to write, ``.jsonl`` or ``.jsonl.gz``. Train on it with ``data.holdout: 0``.
        overwrite: Whether an existing file may be replaced.

    Raises:
        InputError: If the task's labels do not belong to whole texts, or a setting or the file does not fit.
    """
    from pocketbert.pipeline.learn.augmenting import augment_file

    return augment_file(recipe, Path(output), overwrite=overwrite)


def data_demo(output: str | Path) -> dict[str, Path]:
    """Write the built-in corpus of assistant commands to a new, empty or earlier such folder; return the file of each split."""
    from pocketbert.pipeline.run import write_corpus

    return write_corpus(Path(output))


# --- verbs that make an artefact folder of a model, of another folder or of a run ---


def export(
    model: str | Path, output: str | Path, options: ExportOptions | None = None, *, overwrite: bool = False
) -> Path:
    """Export a fine-tuned model to an artefact folder, without a recipe; a local model needs no network.

    Args:
        model: Hugging Face folder or Hub name.
        output: The artefact folder to write.
        options: What to write; by default ONNX, TFLite and Core ML files, each also in int8 (Core ML: w8).
        overwrite: Whether an existing folder may be replaced.

    Returns:
        The folder; if `output` is a link, the folder that it leads to.

    Raises:
        PocketBertError: If the model or an option is not usable, or a gate failed.
    """
    from pocketbert.pipeline.direct import export_model

    return export_model(str(model), Path(output), options or ExportOptions(), overwrite=overwrite)


def plan_export(
    model: str | Path, output: str | Path, options: ExportOptions | None = None, *, overwrite: bool = False
) -> Plan:
    """Return the steps of `export`, each with its state (finished or to do), without running any."""
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
    """Write the exported files of an artefact folder and new quantized ones to a new folder, and verify all of them.

    Args:
        model: An artefact folder with exported files (fp32; Core ML: fp16) and ``model.safetensors``, or its run folder.
        output: The new artefact folder. Quantized files that `model` has already are left out.
        schemes: Schemes of the smaller files, the default file's first. By default ``int8``; with a budget, all schemes.
        runtimes: Runtimes that get a further file: ``tflite216``, ``openvino``, ``gpu`` (``fp16``), ``npu`` and ``qnn`` (``a16w8``, ``a8w8``).
        overwrite: Whether an existing folder may be replaced.
        calibrate: Labelled training rows, on which static schemes (``a8w8``) measure ranges and a budget ranks
            candidates. A `CalibrationOptions` also chooses how ranges are determined.
        budget: Limits within which the best file of each format is chosen; not together with `runtimes` or `roles`.
        roles: Scheme for a role or for modules, by its name or their pattern; ``none`` leaves weights as they were
            exported: ``{"ffn_down": "none"}``.

    Returns:
        The new folder; if `output` is a link, the folder that it leads to.
    """
    from pocketbert.pipeline.direct import quantize_folder

    given = CalibrationOptions.of(calibrate)
    return quantize_folder(Path(model), Path(output), schemes, runtimes, given, budget, overwrite, roles or {})


def pack(run: str | Path, output: str | Path, overwrite: bool = False, platform: str | None = None) -> Path:
    """Pack the verified files of a run into an artefact folder, or the files that an app needs into its assets.

    Args:
        run: A run folder; with `platform` it may be an artefact folder.
        output: The folder to write; with `platform` it may hold other files, which are kept.
        overwrite: Whether files that were packed before may be replaced.
        platform: ``android``, ``ios``, ``web`` or ``server`` to pack the files that an app there needs; ``web-demo`` to
            write a static page in which the ONNX and TFLite files that any runtime opens answer what is typed.
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
    """Check the files of an artefact folder or of a run folder with the gates (checks).

    Args:
        model: Artefact folder or run folder.
        data: Labelled rows to score the files on: a file, or a source with columns and limits; without them, nothing is
            scored. Not for a run folder, which is checked with the rows and limits of its recipe.
        text: Column of the text; columns that are not named are found by their names or their content.
        text_pair: Column of the second text.
        label: Column of the label.
        header: Whether the first row of a .csv or .tsv file names its columns; by default this is detected.
        max_drop: Largest allowed loss of the metric from fp32 to a quantized file, as a fraction.
        record: Whether to write the scores into the artefact folder: into artifacts.json, model card and report. Needs `data`.

    Returns:
        All gates with their verdicts, and the scores. For a run folder, ``verify.json`` is written anew.
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
    """Run the model of an artefact folder on texts and return an answer for each; `pocketbert.load` tells how its file is chosen.

    If the folder has a default prompt, it is put in front of the texts; `pocketbert.load(...).predict(texts,
    prompt=NAME)` uses another one.

    Args:
        model: The artefact folder.
        texts: Texts, or pairs as tuples; question-answering takes (question, context).
        scheme: ``int8``, ``fp32``, ...; by default that of the folder's default file.
        threads: Number of threads; by default all cores.
        format: ``onnx``, ``tflite`` or ``coreml``; by default that of the folder's default file.
        engine: ``"fastest"`` to choose the fastest engine and file by timing them here; None for the usual one.
        file: Path of one file in the folder, instead of scheme and format.
        cadence: What ``"fastest"`` times: ``"batch"`` (calls right after one another) or ``"interactive"`` (single
            calls after idle time).
    """
    from pocketbert.runtime.model import load

    opened = load(model, scheme, threads, format=format, engine=engine, file=file, cadence=cadence)
    return opened.predict(texts, progress="predict")


def diff(
    old: str | Path, new: str | Path, data: str | Path | DataSource, options: DiffOptions | None = None
) -> ModelDiff:
    """Compare the answers, scores, sizes and latencies of two models on the rows of a data file.

    Args:
        old: The model to compare with: an artefact folder, a run folder or a Hugging Face model (which needs torch). A
            colon and a scheme, a format or a path choose one file of an artefact folder: ``phone:int8``,
            ``phone:tflite:fp32``.
        new: The model that is judged, named in the same way.
        data: The rows: a file, or a source with columns and limits. Without labels, only the answers are compared.
        options: Limits, whether to time both models, threads and seed.

    Returns:
        The comparison. Its `failures` say which limits of `options` are exceeded; they are empty if none is.

    Raises:
        InputError: If a model cannot be opened, or tasks, label sets, rows or limits do not fit each other.
    """
    from pocketbert.core.data.source import DataSource
    from pocketbert.pipeline.direct import diff_models

    source = DataSource.at(str(data)) if isinstance(data, str | Path) else data
    return diff_models(str(old), str(new), source, options)


def benchmark(
    models: Sequence[str | Path],
    options: BenchmarkOptions | None = None,
    *,
    texts: Sequence[Text] = (),
    imports: Sequence[str | Path] = (),
    facts: Sequence[Fact] = (),
    record: bool = False,
) -> BenchmarkResult:
    """Measure the model files of artefact folders in turns on each device, and add results of other machines.

    Args:
        models: Artefact folders, or run folders that have one; the first file of the first is the baseline. May be empty with `imports`.
        options: Devices, thread counts, lengths, runs and time budget; by default those of the command line.
        texts: Real texts to run; by default the project's own sentences.
        imports: Files that ``coreml/benchmark_on_mac.py`` wrote on a Mac, or the Android demo app on a phone. The files
            that they measured must be files of `models`; without `models` that is not checked, and the result records
            it. Also texts that ``benchmark_model`` or ``onnxruntime_perf_test`` printed, which need `models`.
        facts: What such printed texts leave out, for example ``Fact("device", "Pixel 8")`` of
            `pocketbert.benchmarks.imported.saved_texts`.
        record: Whether to write the results into card and report of the only folder in `models`, unless answers were wrong.

    Returns:
        The result of the first device, which contains those of the others and the imported ones; if none measured, the first import.

    Raises:
        InputError: Listing every problem.
    """
    from pocketbert.pipeline.direct import measure_folders

    return measure_folders([Path(m) for m in models], options, texts, [Path(i) for i in imports], record, facts)


def diagnose(run: str | Path, rows: int | None = None) -> StudentDiagnosis:
    """Show where the student of a run loses against its teacher, and what to do about it.

    Args:
        run: Folder of a run that trained a student; the folder is not changed.
        rows: Largest number of evaluation rows that both models answer. None returns the diagnosis that the run recorded; if
            there is none, 2,000 rows are answered.

    Returns:
        Scores of both models by label, length, rare words and the teacher's confidence, their agreement on training
        rows and on unseen rows, and advice with the numbers that it rests on.

    Raises:
        InputError: If `rows` is less than 1, the run has no student, its teacher is no model, its models have several heads, or no row is labelled.
    """
    from pocketbert.pipeline.learn.diagnosing import diagnose_run

    return diagnose_run(Path(run), rows)


def sensitivity(
    model: str | Path,
    calibrate: DataSource | CalibrationOptions | None,
    schemes: Sequence[str] | None = None,
    *,
    record: bool = False,
) -> Sensitivities:
    """Measure how far the outputs change when the weights of a single role (such as ffn_down) are quantized.

    For each role a real file is written and compared with the exported file.

    Args:
        model: An artefact folder with exported files and ``model.safetensors``, or its run folder; changed only if `record` is
            set.
        calibrate: Labelled training rows, on which files are compared and static schemes measure ranges; required. A
            `CalibrationOptions` also chooses how ranges are determined.
        schemes: Schemes to measure; by default those of the folder's files, or ``int8`` if it has none.
        record: Whether to write the results into the folder's report, which its ``artifacts.json`` lists.

    Returns:
        For each format and scheme, the difference that each role makes, that of all together, and what the single ones predict;
        or a note that says why none was measured.
    """
    from pocketbert.pipeline.direct import measure_sensitivity

    return measure_sensitivity(Path(model), CalibrationOptions.of(calibrate), schemes, record)


def report(run: str | Path, output: str | Path, overwrite: bool = False, baseline: str | Path | None = None) -> Path:
    """Write the HTML report of a run folder or an artefact folder, or compare two stored benchmarks.

    Args:
        run: The run folder or artefact folder. With `baseline`, the later benchmark: the JSON that
            `BenchmarkResult.write` wrote, or a folder that records one.
        output: The HTML file.
        overwrite: Whether an existing file may be replaced.
        baseline: An earlier benchmark of the same machine, given in the same way; the page then shows what changed.

    Returns:
        The file; if `output` is a link, the file that it leads to.
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
        recipe: Path of the file, or a name that `pocketbert recipes ls` lists.
        overrides: Texts ``key.sub=value`` that replace values of the recipe.

    Raises:
        InputError: Listing every problem.
    """
    from pocketbert.core.recipe.file import load_recipe as load
    from pocketbert.pipeline.recipes import recipe_path

    return load(recipe_path(recipe), overrides)


def starting_recipe(files: DataFiles, output: str | Path, overrides: Sequence[str] = ()) -> StartingRecipe:
    """Make a recipe for a data file. Columns and task that `files` does not name, lengths and passes are found from the rows.

    Args:
        files: The data files, with columns and task if they are known. From 2,000 rows on the recipe compares students, unless
            `overrides` set a student or the teacher is a column.
        output: The run folder in which `run` will store the recipe.
        overrides: Texts ``key.sub=value`` that set values of the recipe.

    Raises:
        InputError: If the file cannot be read, or its columns or its task are not clear.
    """
    from pocketbert.pipeline import recipes as starting

    return starting.starting_recipe(files, Path(output), overrides)


def run(recipe: AnyRecipe, output: str | Path, overwrite: bool = False, resume_anyway: bool = False) -> RunResult:
    """Run the whole chain of a recipe: teacher, student, files, gates, benchmark, artefact folder and report.

    If the run was interrupted or failed, the same call continues it.

    Args:
        recipe: The recipe. One that was made for a data file is stored in the folder as ``recipe.yaml``.
        output: The run folder.
        overwrite: Whether results of another recipe or of other library versions in that folder may be replaced.
        resume_anyway: Whether results and unfinished work of other library versions are used as they are; the lineage
            of the artefact folder then records it.

    Returns:
        The paths of all results, and the closing table.

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
    """Load or fine-tune the teacher of a recipe and train its student, without exporting model files.

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


def teach(
    models: Sequence[str],
    data: DataSource | str | Path,
    output: str | Path,
    asked: TeachOptions | None = None,
) -> TeachReport:
    """Write teachers' answers to the rows of a file into a new column, from which students learn (``data.train.teacher``).

    Args:
        models: Folders or Hub names of transformers models; the (weighted) mean of their answers is written. Empty to ask
            a language model.
        data: The rows as a source, or the path of their file.
        output: The .jsonl file to write.
        asked: The task, weights of the models, labels for zero-shot models, the address of a language model, and how
            answers are written.

    Raises:
        PocketBertError: InputError, MachineError or MissingBackendError.
    """
    from pocketbert.core.data.source import DataSource
    from pocketbert.pipeline.teach.start import start_teaching

    source = data if isinstance(data, DataSource) else DataSource.at(str(data))
    return start_teaching(models, source, Path(output), asked or TeachOptions())


def plan(recipe: AnyRecipe, output: str | Path, overwrite: bool = False, resume_anyway: bool = False) -> Plan:
    """Return the steps of `run`, each with its output and state, without running any."""
    return [PlannedStep(*row) for row in _run_at(recipe, output, overwrite, resume_anyway).plan()]


def plan_students(
    data: str | Path | DataFiles | None = None,
    options: PlanOptions | None = None,
    output: str | Path | None = None,
    *,
    overrides: Sequence[str] = (),
    overwrite: bool = False,
) -> StudentPlan:
    """Find what the students of a teacher would weigh and take, before any is trained, and choose one.

    Some shapes are exported with random weights, and their files timed. The others are estimated; if one of them is chosen, it is timed, too.

    Args:
        data: The file of the rows, or a `DataFiles` with its columns; None to plan without rows for the task in `options`.
        options: Limits, devices, formats and schemes.
        output: Folder for ``recipe.yaml``, ``plan.json`` and ``plan.html``; None to write nothing.
        overrides: ``key.sub=value`` settings of the recipe, such as another teacher.
        overwrite: Whether files in `output` may be replaced.

    Returns:
        The plan. Its `chosen` is empty if no student is inside the limits, unless `options` name the student to choose.

    Raises:
        InputError: Listing every problem of options and rows.
    """
    from pocketbert.pipeline.direct import plan_students as planned

    files = DataFiles(data) if isinstance(data, str | Path) else data
    where = Path(output) if output is not None else None
    return planned(files, options or PlanOptions(), overrides, where, overwrite)


def demo(output: str | Path, overwrite: bool = False, overrides: Sequence[str] = ()) -> RunResult:
    """Run the whole chain on the built-in corpus, written to ``OUTPUT-corpus``, with the real MiniLM teacher."""
    from pocketbert.pipeline.run import run_demo

    return run_demo(Path(output), overwrite, overrides)


def _run_at(recipe: AnyRecipe, output: str | Path, overwrite: bool, resume_anyway: bool) -> Run:
    """Build the `Run` of a recipe in the folder `output` without running anything; see `run` for the arguments."""
    from pocketbert.pipeline.direct import AutoStudentRun
    from pocketbert.pipeline.recipes import recipe_settings
    from pocketbert.pipeline.run_folder import Permission, run_destination

    return AutoStudentRun(
        recipe, run_destination(recipe_settings(recipe), Path(output)), Permission(overwrite, resume_anyway)
    )


__all__ = [
    "DataFiles",
    "PlanOptions",
    "PlannedStep",
    "TeachOptions",
    "benchmark",
    "data_augment",
    "data_check",
    "data_demo",
    "data_prepare",
    "demo",
    "diagnose",
    "diff",
    "distill",
    "doctor",
    "export",
    "finetune",
    "load_recipe",
    "pack",
    "plan",
    "plan_export",
    "plan_students",
    "predict",
    "quantize",
    "report",
    "run",
    "sensitivity",
    "starting_recipe",
    "teach",
    "verify",
]

if text := unsupported_system():
    raise ImportError(text)
