"""Verbs that start from a folder instead of a recipe: the same steps, in a work folder next to the output."""

from pocketbert.pipeline.direct.budgeted_run import ChoosingRun
from pocketbert.pipeline.direct.exporting import export_model, plan_export
from pocketbert.pipeline.direct.folders import measure_folders, pack_run, verify_folder, write_report
from pocketbert.pipeline.direct.quantizing import measure_sensitivity, quantize_folder

__all__ = [
    "ChoosingRun",
    "export_model",
    "measure_folders",
    "measure_sensitivity",
    "pack_run",
    "plan_export",
    "quantize_folder",
    "verify_folder",
    "write_report",
]
