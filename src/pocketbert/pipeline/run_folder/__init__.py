"""The run folder: steps that are finished, resumed, made again or refused; one process at a time."""

from pocketbert.pipeline.run_folder.folder import KIND, RunFolder, RunResult, run_destination
from pocketbert.pipeline.run_folder.plan import Permission
from pocketbert.pipeline.run_folder.step import Places, Step, data_digest

__all__ = ["KIND", "Permission", "Places", "RunFolder", "RunResult", "Step", "data_digest", "run_destination"]
