"""One arm with one seed: its run folder, its predictions on dev, its record."""

from __future__ import annotations

import os
import resource
import shutil
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from pocketbert import api
from pocketbert.core.compare.evaluate import EvalSet, evaluate
from pocketbert.core.data.labels import Labels
from pocketbert.core.data.reading import read_examples
from pocketbert.core.data_report import DataReport
from pocketbert.core.disk.files import read_json, sha256_json, write_atomic
from pocketbert.core.disk.ownership import write_marker
from pocketbert.core.disk.workspace import build_folder
from pocketbert.core.heads import make_head
from pocketbert.core.host.hardware import describe_machine
from pocketbert.core.host.system import installed_versions
from pocketbert.core.models.checkpoints import load_model
from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.predict.predictor import TorchPredictor, join_texts
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.file import dump_recipe
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.recipe.sections import Stage
from pocketbert.core.tasks import task_of
from pocketbert.pipeline.run_folder import RUN_FOLDER_KIND
from study.clock import Moment, StageClock
from study.records import ArmRecord, StageRecord, Surroundings

_VERSIONS = ("pocketbert", "torch", "transformers", "tokenizers", "accelerate", "numpy")


@dataclass(frozen=True)
class Work:
    """What one process does.

    Attributes:
        arm: Name of the arm, or ``teacher``.
        recipe: What to run.
        folder: Its run folder.
        teacher: Run folder of the seed's teacher; None for the teacher itself.
    """

    arm: str
    recipe: Recipe
    folder: Path
    teacher: Path | None

    @property
    def digest(self) -> str:
        """Of the recipe."""
        return sha256_json(self.recipe.model_dump(mode="json"))


def run_work(work: Work) -> ArmRecord:
    """Run an arm, or go on with it, and judge its model by dev.

    Raises:
        PocketBertError: As `pocketbert.api.distill` does.
    """
    began = Moment.now()
    if work.teacher is not None:
        share_teacher(work.teacher, work.folder)
    resumed = begun(work)
    write_atomic(work.folder.with_name(f"{work.folder.name}.yaml"), dump_recipe(work.recipe))
    finetune = work.recipe.teacher.finetune
    assert finetune is not None
    stages = {f"distill.{n}": s for n, s in enumerate(work.recipe.distill)}
    planned = {"finetune": finetune} if work.teacher is None else stages
    steps = {name: s.steps for name, s in planned.items()}
    with StageClock(work.folder / "metrics.jsonl", steps) as clock:
        make = api.finetune if work.teacher is None else api.distill
        made = make(work.recipe, work.folder)
    correct = correct_rows(work.recipe, made)
    training, spent = read_json(made / "training.json"), clock.spent()
    curves = {c["stage"]: c for c in training["curves"]}
    records = []
    for name, stage in planned.items():
        time = None if resumed else spent.get(name)
        records.append(
            StageRecord(
                name=name,
                method=getattr(stage, "method", "finetune"),
                general=isinstance(stage, Stage) and stage.general,
                steps=stage.steps,
                batch=stage.batch,
                cpu_s=time and round(time.cpu, 1),
                wall_s=time and round(time.wall, 1),
                loss=curves[name]["loss"][-1],
            )
        )
    last = curves[list(planned)[-1]]
    return ArmRecord(
        arm=work.arm,
        seed=work.recipe.seed,
        recipe=work.digest,
        parameters=training["parameters"],
        train_rows=train_rows(work.folder),
        correct=correct,
        stages=records,
        cpu_s=round(Moment.now().since(began).cpu, 1),
        peak_mib=round(peak_mib(), 1),
        resumed=resumed,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        made_with=Surroundings(
            machine=describe_machine().summary,
            device=_device(),
            threads=last["threads"],
            dtype=last["dtype"],
            versions=installed_versions(_VERSIONS),
        ),
    )


def train_rows(folder: Path) -> int:
    """Training rows of a run folder."""
    report = DataReport.model_validate(read_json(folder / "data.json"))
    return next(s.rows for s in report.splits if s.name == "train")


def begun(work: Work) -> bool:
    """Whether an earlier process left a part of an arm's work, or all of it without a record."""
    made = work.folder / ("teacher" if work.teacher is None else "student")
    return made.exists() or (work.folder / "distill").exists() or any((work.folder / ".work").glob("*/*"))


def share_teacher(teacher: Path, folder: Path) -> None:
    """Begin an arm's run folder with the finished steps of the teacher's: the arm finds them done, and goes on.

    Weights are linked, not copied, where the file system can.

    Args:
        teacher: Run folder of the teacher.
        folder: Run folder of the arm; left alone where it is there.
    """
    if folder.exists():
        return
    with build_folder(folder) as made:
        write_marker(made, RUN_FOLDER_KIND)
        shutil.copytree(teacher / ".steps", made / ".steps")
        shutil.copyfile(teacher / "data.json", made / "data.json")
        shutil.copytree(teacher / "teacher", made / "teacher", copy_function=_link)


def correct_rows(recipe: Recipe, folder: Path) -> str:
    """``1`` for each dev row that a model gets right, else ``0``, by the toolkit's own evaluation.

    Args:
        recipe: Names the dev rows.
        folder: The model.
    """
    source, task = open_model_folder(str(folder)), task_of(recipe.task)
    labels = Labels(source.labels or ())
    model, head = load_model(source, task), make_head(task, labels, recipe.answer)
    tokenizer = TextTokenizer(source.tokenizer_folder, recipe.data.max_length or source.positions)
    assert recipe.data.eval is not None
    rows = head.prepare(read_examples(recipe.data.eval), tokenizer, recipe.data.eval.title)
    predictor = TorchPredictor(model, task, source.family.inputs)
    score, kept = evaluate(predictor, tokenizer, EvalSet("eval", head, rows), batch=64)
    hits = join_texts(kept).argmax(-1) == np.asarray(rows.truth)
    if not np.isclose(hits.mean(), score.value):
        raise RuntimeError(f"{hits.mean()} of the rows are right, the evaluation says {score.value}")
    return "".join("1" if hit else "0" for hit in hits)


def peak_mib() -> float:
    """Largest resident memory of this process so far, in MiB."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / 2**20 if sys.platform == "darwin" else most / 2**10  # bytes there, KiB elsewhere


def _device() -> str:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copy2(source, target)
