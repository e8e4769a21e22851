"""Verbs that make an artefact folder of a model, of another folder or of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pocketbert.pipeline.options import BudgetOptions, CalibrationOptions, ExportOptions, Plan, PlannedStep

if TYPE_CHECKING:
    from pocketbert.core.data.source import DataSource


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
