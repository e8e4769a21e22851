"""The run folder: steps that are finished, resumed, made again or refused; one process at a time."""

from pocketbert.pipeline.run_folder.folder import RUN_FOLDER_KIND, RunFolder, RunResult, run_destination
from pocketbert.pipeline.run_folder.plan import Permission
from pocketbert.pipeline.run_folder.step import Step, StepPaths, data_digest

__all__ = [
    "RUN_FOLDER_KIND",
    "Permission",
    "RunFolder",
    "RunResult",
    "Step",
    "StepPaths",
    "data_digest",
    "run_destination",
]
