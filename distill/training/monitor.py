"""What is watched while a model trains: scores on validation rows, the file of losses, and trackers (TensorBoard, ...).

`Monitor` names all three for `pocketbert.distill.training.loop.train`. With a `Validation` the loop scores the model
every so many steps, ends with the weights of the best score, and stops early when the scores no longer improve.
`open_records` writes the records of a run to the file and, through Accelerate, to trackers. If no tracker is named,
none of their packages is imported.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import Any

from torch import nn

from pocketbert.core.errors import MissingBackendError
from pocketbert.core.host.progress import print_note
from pocketbert.core.recipe.sections import Updates
from pocketbert.distill.training.progress import Progress, StepRecord, append_metrics

_PACKAGES: Mapping[str, tuple[str, ...]] = {
    "tensorboard": ("tensorboard", "tensorboardX"),
    "mlflow": ("mlflow",),
    "wandb": ("wandb",),
}
"""Packages by tracker, of which any one will do."""
_OFFLINE = {
    "WANDB_MODE": "offline",
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_SILENT": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ALLOW_FILE_STORE": "true",
}
"""Variables that keep trackers to this machine; what the user has set stays."""


@dataclass(frozen=True)
class Validation:
    """How a model is scored while it trains, and when training stops because it no longer improves.

    Attributes:
        score: Function that scores the model, in eval mode, on rows that are neither trained on nor reported.
        every: Number of steps between two scores; the last step has one too.
        patience: Number of scores in a row that may fail to improve before training stops; 0 to train to the last step.
        higher: Whether larger scores are better.
        metric: Name of the score.
    """

    score: Callable[[nn.Module], float]
    every: int
    patience: int = 0
    higher: bool = True
    metric: str = "score"

    def is_due(self, step: int, steps: int) -> bool:
        """Return whether the model is scored after this step of `steps`."""
        return step % self.every == 0 or step == steps

    def has_stopped(self, progress: Progress) -> bool:
        """Return whether the last `patience` scores of a run all failed to improve."""
        return 0 < self.patience <= progress.since_best

    def add_score(self, progress: Progress, score: float) -> bool:
        """Add the score of the newest step to a run's progress, and return whether its weights are the best so far.

        Of equal scores the later one counts as best, as it has seen more rows, but not as an improvement.
        """
        best, step = progress.best_score, progress.step
        progress.history[-1].score = score
        improved = isfinite(score) and (best is None or (score > best if self.higher else score < best))
        progress.since_best = 0 if improved else progress.since_best + 1
        if not improved and score != best:
            return False
        progress.best_score, progress.best_step = score, step
        return True


@dataclass(frozen=True)
class Monitor:
    """Where a run's losses go, and how the model is scored while it trains.

    Attributes:
        metrics: A .jsonl file to which each record is appended when it is made; None to write none.
        validation: How the model is scored; None keeps the weights of the last step.
        trackers: Names of trackers that get the records too: ``tensorboard``, ``mlflow``, ``wandb``.
        logs: Folder for the trackers' files; without it no tracker is used.
    """

    metrics: Path | None = None
    validation: Validation | None = None
    trackers: Sequence[str] = field(default=())
    logs: Path | None = None

    def describe_best(self, progress: Progress) -> str:
        """Return the best score so far as a phrase that is put after the loss; empty if there is no score."""
        if self.validation is None or progress.best_score is None:
            return ""
        return f", best {self.validation.metric} {progress.best_score:.4f}"


def check_trackers(names: Sequence[str]) -> None:
    """Check that the packages of trackers are installed, without importing them.

    Raises:
        MissingBackendError: With the command that installs the first one that is missing.
    """
    for name in names:
        if not any(find_spec(package) for package in _PACKAGES[name]):
            raise MissingBackendError(f"the tracker {name}", f"pip install {_PACKAGES[name][0]}")


@contextmanager
def open_records(
    monitor: Monitor, purpose: str, seed: int, settings: Updates
) -> Iterator[Callable[[StepRecord], None]]:
    """Open the file of losses and the trackers of a run while the `with` block lasts.

    With trackers, the environment variables that keep them on this machine are set, unless the user has set them.

    Args:
        monitor: The file, the names of the trackers, and the folder of their files.
        purpose: Name of the stage, under which the trackers list the run.
        seed: Seed of the run.
        settings: Settings of the stage, stored with the run.

    Yields:
        A function that writes one record to the file and to all trackers.

    Raises:
        MissingBackendError: If the package of a tracker is not installed.
    """
    if not monitor.trackers or monitor.logs is None:
        yield lambda record: append_metrics(monitor.metrics, purpose, seed, record)
        return
    check_trackers(monitor.trackers)
    places = {"WANDB_DIR": str(monitor.logs), "MLFLOW_TRACKING_URI": (monitor.logs / "mlruns").absolute().as_uri()}
    for variable, value in {**_OFFLINE, **places}.items():
        os.environ.setdefault(variable, value)
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    monitor.logs.mkdir(parents=True, exist_ok=True)
    plain = {k: v for k, v in settings.model_dump(mode="json").items() if isinstance(v, bool | int | float | str)}
    # not through an Accelerator, which leaves out trackers that it does not find without an error
    trackers = list[Any]()
    for name in monitor.trackers:
        kind = LOGGER_TYPE_TO_CLASS[name]
        folder = {"logging_dir": str(monitor.logs)} if kind.requires_logging_directory else {}
        trackers.append(kind(f"{purpose}.seed-{seed}", **folder))
        trackers[-1].start()
        trackers[-1].store_init_configuration({**plain, "seed": seed})
    print_note(f"  {purpose}: {', '.join(monitor.trackers)} in {monitor.logs}")

    def write(record: StepRecord) -> None:
        """Write a record's loss, terms, learning rate and score to the file of losses and to all trackers."""
        append_metrics(monitor.metrics, purpose, seed, record)
        values = {"loss": record.loss, "lr": record.lr, **{f"terms/{k}": v for k, v in record.terms.items()}}
        if record.score is not None:
            values["validation"] = record.score
        for tracker in trackers:
            tracker.log(values, step=record.step)

    try:
        yield write
    finally:
        for tracker in trackers:
            tracker.finish()
