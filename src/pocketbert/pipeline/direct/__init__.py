"""Commands that start from a model or folder instead of a recipe, and runs that choose files inside a budget."""

from pocketbert.pipeline.direct.auto_student import AutoStudentRun
from pocketbert.pipeline.direct.comparing import diff_models
from pocketbert.pipeline.direct.exporting import export_model, plan_export
from pocketbert.pipeline.direct.folders import measure_folders, pack_run, verify_folder, write_report
from pocketbert.pipeline.direct.planning import plan_students
from pocketbert.pipeline.direct.quantizing import quantize_folder
from pocketbert.pipeline.direct.sensitivity import measure_sensitivity

__all__ = [
    "AutoStudentRun",
    "diff_models",
    "export_model",
    "measure_folders",
    "measure_sensitivity",
    "pack_run",
    "plan_export",
    "plan_students",
    "quantize_folder",
    "verify_folder",
    "write_report",
]
