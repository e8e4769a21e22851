"""Verbs that start from a folder instead of a recipe: the same steps, in a work folder next to the output."""

from pocketbert.pipeline.direct.exporting import export_model, plan_export
from pocketbert.pipeline.direct.judging import measure_folders, verify_folder, write_report
from pocketbert.pipeline.direct.packing import pack_run
from pocketbert.pipeline.direct.quantizing import quantize_folder
from pocketbert.pipeline.direct.running import ChoosingRun
from pocketbert.pipeline.direct.sensitivity import measure_sensitivity

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
