"""Verbs that answer, check, measure and report what a folder holds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pocketbert.pipeline.options import CalibrationOptions

if TYPE_CHECKING:
    from pocketbert.benchmarks.devices.runners.facts import Fact
    from pocketbert.benchmarks.measurement import BenchmarkResult
    from pocketbert.benchmarks.options import BenchmarkOptions
    from pocketbert.core.artefacts import Sensitivities
    from pocketbert.core.data.source import DataSource
    from pocketbert.core.predict.answers import Answer
    from pocketbert.core.predict.tokenization import Text
    from pocketbert.pipeline.gates.verification import Verification


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
        facts: What such texts do not tell, for example ``Fact("device", "Pixel 8")`` of `pocketbert.benchmarks.devices.runners.facts`.
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
