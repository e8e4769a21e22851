"""Commands that start from a model or folder instead of a recipe, and runs that choose files inside a budget."""

from pocketbert.pipeline.direct.budgeted_run import ChoosingRun
from pocketbert.pipeline.direct.exporting import export_model, plan_export
from pocketbert.pipeline.direct.folders import measure_folders, pack_run, verify_folder, write_report
from pocketbert.pipeline.direct.quantizing import quantize_folder
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
