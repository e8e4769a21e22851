"""Open the teachers that `pocketbert teach` names, and let them answer the rows of a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from pocketbert.core.data.source import DataSource
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.tasks import TaskName
from pocketbert.pipeline.doctor import require
from pocketbert.pipeline.options import TeachOptions
from pocketbert.pipeline.teach.answering import Array, AskedRow, Teacher
from pocketbert.pipeline.teach.cluster import RayCluster, list_engine_problems
from pocketbert.pipeline.teach.writing import TeachReport, TeachSettings, teach

_WITHOUT_EFFECT = "overwrite batch parallel per_minute prices key_variable weights top column engine workers".split()
"""Options that decide no answer, or that are compared by themselves."""
_FEWEST_LABELS = 2


def start_teaching(models: Sequence[str], source: DataSource, output: Path, options: TeachOptions) -> TeachReport:
    """Open teachers, write their answers for the rows of a file, and return the report.

    Args:
        models: Models of transformers; empty for a language model.
        source: The rows.
        output: The .jsonl file to write.
        options: How the teachers are asked, and how their answers are written.

    Raises:
        InputError: If a teacher, a row or the output cannot be used.
        MissingBackendError: If transformers is not installed, or Ray where it is to answer.
    """
    _check_options(models, options)
    asked = {key: value for key, value in asdict(options).items() if key not in _WITHOUT_EFFECT}
    asked["prompt"] = options.prompt.read_text(encoding="utf-8") if options.prompt is not None else None
    asked["weights"] = [_describe_weights(Path(name)) for name in models]
    cluster: RayCluster[Sequence[AskedRow], list[list[Array]]] | None = None
    if options.engine == "ray":
        open_work = partial(_open_asking, models, options, output)
        kept = "What is answered is kept: the same command continues."
        cluster = RayCluster(open_work, options.workers, "answer", kept, on_gpu=True)
    teachers = _open_teachers(models, options, output, with_weights=cluster is None)
    weights = [float(weight) for weight in options.weights] or [1.0] * len(teachers)
    settings = TeachSettings(source, output, options.column, weights, options.top, options.overwrite, asked)
    return teach(teachers, settings, cluster)


def _describe_weights(folder: Path) -> list[tuple[str, int, int]]:
    """Return name, size and time of each file of weights in a folder; empty for a name that is no folder.

    An interrupted command is continued only if these are the same.
    """
    found = [(path.name, path.stat()) for path in sorted(folder.glob("*.safetensors"))] if folder.is_dir() else []
    return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in found]


def _check_options(models: Sequence[str], options: TeachOptions) -> None:
    """Check that teachers are named and that no options contradict each other.

    Raises:
        InputError: Listing all problems.
    """
    problems = list_engine_problems(options.engine, options.workers)
    if options.engine == "ray" and options.endpoint is not None:
        what = "starts processes that open models, and --endpoint asks a server."
        problems.append(Problem("--engine ray", what, "Leave it out: --parallel requests are sent at once."))
    if not models and options.endpoint is None:
        fix = "Give a fine-tuned model, or --endpoint for a language model."
        problems.append(Problem("-m/--model", "names no teacher.", fix))
    if models and options.endpoint is not None:
        fix = "Ask one of them, and the other in a second command."
        problems.append(Problem("--endpoint", "is another teacher than -m.", fix))
    if options.labels and len(options.labels) < _FEWEST_LABELS:
        fix = "Give at least two, each with an option of its own."
        problems.append(Problem("--zero-shot", "names one label.", fix))
    if options.labels and "{}" not in options.template:
        what = f"'{options.template}' has no place for the label."
        problems.append(Problem("--template", what, 'Write {} there: "It is about {}."'))
    if options.endpoint is not None and options.prompt is None:
        what = "is missing: what is the language model asked?"
        problems.append(Problem("--prompt", what, "Give a file with {text} and {labels}."))
    if options.endpoint is not None and len(options.labels) < _FEWEST_LABELS:
        fix = 'Give each: --zero-shot "refund: asks for money back"'
        problems.append(Problem("--zero-shot", "names the labels that a language model chooses from.", fix))
    if options.prompt is not None and not options.prompt.is_file():
        what = f"no file '{options.prompt}'."
        problems.append(Problem("--prompt", what, "Give a text file with {text} and {labels}."))
    if problems:
        raise InputError(problems)


def _open_teachers(
    models: Sequence[str], options: TeachOptions, output: Path, with_weights: bool = True
) -> list[Teacher]:
    """Open the teachers that the options name. The modules for transformers and for HTTP are imported only here.

    `output` is the file that is written; requests to a language model are kept beside it. Without weights, the teachers
    are checked and described only.
    """
    if options.endpoint is not None:
        from pocketbert.pipeline.teach.endpoint import open_endpoint

        return [open_endpoint(options, output)]
    require("train")
    from pocketbert.pipeline.teach.models import open_teacher_model, open_zero_shot

    length, batch = options.max_length, options.batch
    if options.labels:
        several = options.task == TaskName.MULTI_LABEL
        given = options.labels, options.template, several, length, batch, with_weights
        return [open_zero_shot(name, *given) for name in models]
    return [open_teacher_model(name, options.task, length, batch, with_weights) for name in models]


def _open_asking(
    models: Sequence[str], options: TeachOptions, output: Path
) -> Callable[[Sequence[AskedRow]], list[list[Array]]]:
    """Open the teachers that the options name, and return a function that returns the answers of each to some rows."""
    teachers = _open_teachers(models, options, output)
    return lambda rows: [teacher.answer(rows) for teacher in teachers]


def parse_labels(texts: Sequence[str]) -> dict[str, str]:
    """Parse texts of the form ``label: description`` to descriptions by label. A label alone is its own description.

    Raises:
        InputError: If a label is empty or given twice.
    """
    labels: dict[str, str] = {}
    for text in texts:
        label, _, description = (part.strip() for part in text.partition(":"))
        if not label or label in labels:
            what = f"'{text}' has no label." if not label else f"the label '{label}' is given twice."
            raise InputError(Problem("--zero-shot", what, 'Write "label: what a text of it is about".'))
        labels[label] = description or label
    return labels
