"""The run folder: steps that are finished, resumed, made again or refused; one process at a time."""

from pocketbert.pipeline.run_folder.folder import KIND, METRICS, RunFolder, run_destination
from pocketbert.pipeline.run_folder.plan import Permission, Plan
from pocketbert.pipeline.run_folder.step import MadeFrom, Mark, Places, Step, data_digest

__all__ = [
    "KIND",
    "METRICS",
    "MadeFrom",
    "Mark",
    "Permission",
    "Places",
    "Plan",
    "RunFolder",
    "Step",
    "data_digest",
    "run_destination",
]
