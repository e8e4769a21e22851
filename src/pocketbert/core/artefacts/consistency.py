"""Whether the entries of ``artifacts.json`` can be true together."""

from __future__ import annotations

from collections.abc import Sequence

from pocketbert.core.artefacts.records import FileRecord, ModelRecord, Processing
from pocketbert.core.tasks import TASKS, ScoreFunction, TaskName

_OF_TASK: dict[str, tuple[TaskName, ...]] = {
    "thresholds": (TaskName.MULTI_LABEL,),
    "unknown": (TaskName.TEXT_CLASSIFICATION,),
    "unknown_accuracy": (TaskName.TEXT_CLASSIFICATION,),
    "stride": (TaskName.QUESTION_ANSWERING,),
    "answer_length": (TaskName.QUESTION_ANSWERING,),
    "null_answers": (TaskName.QUESTION_ANSWERING,),
    "pooling": (TaskName.FEATURE_EXTRACTION,),
    "normalize": (TaskName.FEATURE_EXTRACTION,),
    "similarity": (TaskName.FEATURE_EXTRACTION,),
}
"""Tasks that read an entry of `Processing`; the others are read by all."""


def contradictions(
    task: TaskName, processing: Processing, labels: Sequence[str], files: Sequence[FileRecord] = ()
) -> list[str]:
    """List what processing, labels and files say that the task cannot mean, one sentence each."""
    own = TASKS[task]
    out = [
        f"processing.{key} has no meaning for {task}"
        for key, tasks in _OF_TASK.items()
        if getattr(processing, key) is not None and task not in tasks
    ]
    one_output = task is TaskName.REGRESSION and processing.score is ScoreFunction.SIGMOID
    if processing.score is not own.score and not one_output:
        out.append(f"processing.score is {processing.score}, of {task} it is {own.score}")
    if processing.thresholds is not None and len(processing.thresholds) != len(labels):
        out.append(f"processing.thresholds has {len(processing.thresholds)} numbers for {len(labels)} labels")
    if processing.default_prompt is not None and processing.default_prompt not in processing.prompts:
        out.append(f"processing.default_prompt is '{processing.default_prompt}', which is not among its prompts")
    if task is not TaskName.TEXT_CLASSIFICATION:
        certain = [f.path for f in files if isinstance(f, ModelRecord) and f.confidence is not None]
        out += [f"{path} has a temperature, which has no meaning for {task}" for path in certain[:1]]
    if own.names_labels and not labels:
        out.append(f"names no labels; {task} has some")
    if not own.names_labels and labels:
        out.append(f"names {len(labels)} labels; {task} has none")
    return out


def list_problems(files: Sequence[FileRecord]) -> list[str]:
    """What is wrong with the paths of the list: names that occur twice, aliases that equal nothing, several defaults."""
    by_path = {f.path: f for f in files}
    out = [] if len(by_path) == len(files) else ["a path is listed twice"]
    for record in files:
        if not isinstance(record, ModelRecord) or record.alias_of is None:
            continue
        target = by_path.get(record.alias_of)
        if not isinstance(target, ModelRecord) or target.alias_of is not None:
            out.append(f"{record.path} is an alias of {record.alias_of}, which is not a model file of the list")
        elif (target.sha256, target.bytes, target.format) != (record.sha256, record.bytes, record.format):
            out.append(f"{record.path} is an alias of {record.alias_of}, but another file by its digest")
    if sum(isinstance(f, ModelRecord) and f.default for f in files) > 1:
        out.append("several model files are marked as default")
    return out
