"""What is measured for the plan of a student: files with random weights, their latencies, and some training steps.

`PlanGround` is what a plan starts from. `choose_probes` and `find_missing_probe` choose the students that are exported, `announce_plan` says what that takes,
`export_probes` writes their files, `time_files` times them on the devices, and `time_training` makes some steps of each training.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pocketbert.core.disk.files import path_bytes
from pocketbert.core.disk.ownership import remove
from pocketbert.core.errors import InputError, MachineError, Problem
from pocketbert.core.families import STATIC_FAMILY, find_family
from pocketbert.core.formats import FORMATS
from pocketbert.core.host.progress import Meter, print_note
from pocketbert.core.host.system import release_memory
from pocketbert.core.models.checkpoints import load_model
from pocketbert.core.models.folder import ModelFolder
from pocketbert.core.predict.inputs import Text
from pocketbert.core.predict.sentence_settings import PoolingKind
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.ladder import Rung, rung_recipe
from pocketbert.core.recipe.planned import (
    PRUNED_VOCABULARY,
    StudentShape,
    estimate_costs,
)
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.recipe.student import StudentSection, VocabularySection, list_vocabulary_problems
from pocketbert.core.tasks import TaskName
from pocketbert.core.types import Format, Scheme
from pocketbert.pipeline.direct.student_trials import list_exportable_rungs
from pocketbert.pipeline.formats.base import ModelFile, RunModel, exported_file, format_place, quantized_file
from pocketbert.pipeline.learn.data import RunData
from pocketbert.pipeline.learn.finishing import pooling_for
from pocketbert.pipeline.learn.training import prepare_task_rows
from pocketbert.pipeline.learn.vocabulary import make_vocabulary, read_kept
from pocketbert.pipeline.make.measuring import measure
from pocketbert.pipeline.make.model_files import quantization_plan
from pocketbert.pipeline.recipes import StartingRecipe
from pocketbert.pipeline.reference import project_texts

if TYPE_CHECKING:
    from pocketbert.benchmarks.measurement import BenchmarkResult
    from pocketbert.distill.vocabulary import PieceSelection

_TEXTS = 100
"""Texts that are timed, as many as a run times."""
_RUNS, _REPEATS, _SECONDS_FOR_FILE = 40, 5, 6.0
"""Inferences of a text in a repeat, repeats, and about the seconds that each file takes with its start."""
_WARM_STEPS, _TIMED_STEPS, _STEP_S = 2, 12, 6.0
"""Training steps before the timed ones, of the timed ones, and the seconds after which no further one is made."""
_LEAST_SHARE = 0.05
"""Least share of a training step that is the student's."""
_PIECE_TOKENS = 3
"""Tokens of a text that is one piece of the vocabulary."""
_CALIBRATION_ROWS = 16
_NOISE = 0.01
"""Standard deviation of what is added to new weights."""


@dataclass
class PlanGround:
    """What a plan starts from: the recipe, the teacher, the rows, and the shapes that students can have.

    Attributes:
        start: The recipe with its text.
        model: The teacher's folder.
        data: The rows; without splits if there are none.
        length: Longest input in tokens.
        overrides: Further settings of the recipe.
        notes: What a reader must know.
    """

    start: StartingRecipe
    model: ModelFolder
    data: RunData
    length: int
    overrides: Sequence[str] = ()
    notes: list[str] = field(default_factory=list)

    @property
    def recipe(self) -> Recipe:
        """The recipe's settings."""
        return self.start.recipe

    @property
    def pairs(self) -> bool:
        """Whether the rows are pairs."""
        return self.data.pair or any(e.pair is not None for s in self.data.splits.values() for e in s.examples[:1])

    @cached_property
    def tokenizer(self) -> TextTokenizer:
        """The teacher's tokenizer."""
        return TextTokenizer(self.model.tokenizer_folder, self.length)

    @cached_property
    def texts(self) -> list[Text]:
        """The texts that are timed: of the evaluation rows, or the project's own."""
        return self.data.texts(_TEXTS, self.tokenizer) or project_texts(self.data.head.task, self.tokenizer)

    @cached_property
    def teacher(self) -> Any:
        """The teacher in torch."""
        return load_model(self.model, self.data.head.task, self.data.labels, new_head=True)

    @cached_property
    def rungs(self) -> list[Rung]:
        """The students that a run could train and export, the one with the least work first.

        A static student is left out if the vectors may not be the mean of the token states. Raises InputError if no student has layers.
        """
        rungs, problems = list_exportable_rungs(self.recipe, self.model, self.pairs)
        if not any(rung.layers for rung in rungs):
            what = f"no student with layers of '{self.model.title}' can be made: its config.json names no layers."
            raise InputError(problems or [Problem("teacher.model", what, "Choose another teacher.")])
        return [rung for rung in rungs if rung.layers or self._allows_mean]

    @property
    def _allows_mean(self) -> bool:
        """Whether the task can do with the mean of the token states, the only text vector that a static student has."""
        is_embedding = self.data.head.task.name is TaskName.FEATURE_EXTRACTION
        return not is_embedding or pooling_for(self.recipe, self.model).kinds == (PoolingKind.MEAN,)

    @cached_property
    def kept(self) -> PieceSelection | None:
        """The word pieces that a pruned vocabulary keeps; None without training rows, or if a run would refuse it.

        If the pieces cannot be chosen or do not cover the rows, the reason is added to `notes`.
        """
        recipe, section = self.recipe, VocabularySection()
        if list_vocabulary_problems(section, recipe.task, recipe.distill, "train" in self.data.splits):
            return None
        with tempfile.TemporaryDirectory() as folder:
            try:
                failures = make_vocabulary(section, self.model, self.data, Path(folder))
            except InputError as error:
                failures = [error.problems[0].what]
            if failures:
                self.notes.append(f"No smaller vocabulary: {failures[0].rstrip('.')}.")
                return None
            return read_kept(Path(folder))[1]

    @cached_property
    def pieces(self) -> int:
        """Number of pieces in the teacher's vocabulary."""
        return int(self.teacher.get_input_embeddings().num_embeddings)

    @property
    def wanted(self) -> list[tuple[str, Rung, int]]:
        """Name, shape and number of pieces of every student of the plan."""
        named = [(rung.name, rung, self.pieces) for rung in self.rungs]
        if self.kept is not None:
            named += [(rung.name + PRUNED_VOCABULARY, rung, len(self.kept.kept_ids)) for rung in self.rungs]
        return named

    def shape(self, rung: Rung, pieces: int) -> StudentShape:
        """Return the numbers of layers, neurons and pieces of a student, from which sizes and times of its files are estimated."""
        size = self.model.family.read_size(self.teacher.config.to_dict(), "intermediate_size")
        return StudentShape(rung.layers, rung.layers * int(rung.width or size or 1), pieces)


# --- files with random weights ----------------------------------------------------------------------------------------


@dataclass
class Probe:
    """A student that is exported with random weights, to measure its files.

    Attributes:
        name: Its name.
        rung: Its shape.
        pieces: Number of pieces in its vocabulary.
        timed: Whether its files are timed. Of students that differ in the vocabulary only, which take equally long, one is.
        files: The written file and its size, by format and scheme.
    """

    name: str
    rung: Rung
    pieces: int
    timed: bool
    files: dict[tuple[Format, Scheme], tuple[ModelFile, Path, int]] = field(default_factory=dict)


def choose_probes(ground: PlanGround, named: str | None) -> list[Probe]:
    """Return the students to export with random weights (probes).

    They are the static one, the shallowest, the deepest and the narrow one with the least work. With a pruned vocabulary the static and the
    shallowest one are exported with it too, and so is the student called `named`.
    """
    full = [rung for rung in ground.rungs if rung.layers and rung.width is None]
    narrow = [rung for rung in ground.rungs if rung.width is not None]
    static = [rung for rung in ground.rungs if not rung.layers]
    ends = list(dict.fromkeys([full[0], *narrow[:1], full[-1]]))
    probes = [Probe(rung.name, rung, ground.pieces, timed=True) for rung in (*static, *ends)]
    if ground.kept is not None:
        few = len(ground.kept.kept_ids)
        probes += [Probe(rung.name + PRUNED_VOCABULARY, rung, few, timed=False) for rung in (*static, full[0])]
    further = find_missing_probe(ground, probes, named)
    return [*probes, further] if further is not None else probes


def find_missing_probe(ground: PlanGround, probes: Sequence[Probe], name: str | None) -> Probe | None:
    """Return a probe for the student of that name; None if it is among the probes, or there is no such student.

    Its files are timed, unless those of a student that differs only in its vocabulary are.
    """
    if any(probe.name == name for probe in probes):
        return None
    for own, rung, pieces in ground.wanted:
        if own == name:
            is_timed = any(probe.timed and probe.rung.name == rung.name for probe in probes)
            return Probe(own, rung, pieces, timed=not is_timed)
    return None


def announce_plan(
    ground: PlanGround, probes: Sequence[Probe], formats: Sequence[Format], schemes: Sequence[Scheme]
) -> None:
    """Print what the plan does and about how long it takes; raise MachineError if the temporary folder has too little room."""
    exports = sum(_export_seconds(probe, format, len(schemes)) for probe in probes for format in formats)
    timed = sum(_SECONDS_FOR_FILE for probe in probes if probe.timed for _ in formats for _ in schemes)
    steps = 4 * _STEP_S if ground.data.splits else 0.0
    print_note(
        f"plan: {len(probes)} of {len(ground.wanted)} students are exported with random weights, the others estimated; about "
        f"{(exports + timed + steps) / 60:.0f} to {2 * (exports + timed + steps) / 60:.0f} minutes"
    )
    weights = sum(parameter.numel() for parameter in ground.teacher.parameters()) * 4
    needed = len(probes) * len(formats) * weights * (1 + 0.4 * len(schemes))
    room, folder = shutil.disk_usage(tempfile.gettempdir()).free, tempfile.gettempdir()
    if room < needed:
        what = f"the files take up to {needed / 1e9:.1f} GB, and {folder} has {room / 1e9:.1f} GB of room."
        raise MachineError(f"{what} Fix: set TMPDIR to a folder with more room, or plan one --format and --scheme.")


def _export_seconds(probe: Probe, format: Format, schemes: int) -> float:
    """Return about the seconds that the files of a student in one format take."""
    cost = FORMATS[format].cost
    return 0.6 * (cost.fixed_s + cost.layer_s * probe.rung.layers) + schemes * (0.5 + 0.2 * probe.rung.layers)


def export_probes(
    ground: PlanGround, probes: Sequence[Probe], formats: Sequence[Format], schemes: Sequence[Scheme], work: Path
) -> None:
    """Write the files of the probes with random weights, and record path and size of each in the probe's `files`.

    The exported file is recorded as fp32, whatever it stores, and also for a scheme that makes no smaller file. Files that are
    not timed are removed once they are sized.
    """
    from pocketbert.export.prepare import prepare_with_shared_weights
    from pocketbert.quantize import quantize

    recipe, pooling = ground.recipe, pooling_for(ground.recipe, ground.model)
    rows = [ground.tokenizer.pad([row]) for row in ground.tokenizer.encode(ground.texts[:_CALIBRATION_ROWS])]
    total = sum(_export_seconds(probe, format, len(schemes)) for probe in probes for format in formats)
    with Meter("plan, files with random weights", max(1, round(total))) as meter:
        for probe in probes:
            student = _draw_student(ground, probe).eval()
            family = ground.model.family if probe.rung.layers else find_family(STATIC_FAMILY)
            folder = replace(ground.model, family=family)
            model = RunModel(recipe, work / probe.name, folder, ground.length)
            for format in formats:
                place = format_place(format)
                base = exported_file(format, place.exported_scheme(recipe))
                module = prepare_with_shared_weights(student, family, model.task, format, place.layout(recipe), pooling)
                source = _make_folder(model, base)
                place.write(model, module, base, source)
                probe.files[format, Scheme.FP32] = (base, source, path_bytes(source))
                for scheme in schemes:
                    stored = FORMATS[format].smaller(scheme)
                    if stored is None:
                        probe.files[format, scheme] = probe.files[format, Scheme.FP32]
                        continue
                    file = quantized_file(format, stored)
                    path = _make_folder(model, file)
                    quantize(source, path, quantization_plan(file, lambda: rows, ground.model.path))
                    place.finish(model, file, path)
                    probe.files[format, scheme] = (file, path, path_bytes(path))
                del module
                release_memory()
                meter.advance(max(1, round(_export_seconds(probe, format, len(schemes)))), probe.name)
            if not probe.timed:
                remove(work / probe.name)


def _make_folder(model: RunModel, file: ModelFile) -> Path:
    """Return the path at which a model file is written, and make its folder."""
    path = model.source(file)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _draw_student(ground: PlanGround, probe: Probe) -> Any:
    """Return a student of a probe's shape with random weights."""
    import torch

    from pocketbert.distill.students.build import build_student
    from pocketbert.distill.students.static import draw_static_student
    from pocketbert.distill.vocabulary import prune_embeddings

    family = ground.model.family
    if probe.rung.layers:
        section = StudentSection(layers=probe.rung.layers, init="random", intermediate=probe.rung.width)
        student = build_student(ground.teacher, family, section, ground.recipe.seed)
    else:
        family = find_family(STATIC_FAMILY)
        student = draw_static_student(ground.teacher, ground.tokenizer, ground.data.head.task, pairs=ground.pairs)
    if probe.name.endswith(PRUNED_VOCABULARY):
        assert ground.kept is not None
        student = prune_embeddings(student, family, ground.kept)
    random = torch.Generator().manual_seed(ground.recipe.seed)
    with torch.no_grad():  # exporters leave out biases of zeros, and store equal ones once
        for parameter in student.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=random) * _NOISE)
    return student


# --- latencies --------------------------------------------------------------------------------------------------------

FileTimes = dict[tuple[str, Format, Scheme, str], tuple[float, float]]
"""Median and 90th percentile in ms by probe, format, scheme and device."""


def time_files(
    ground: PlanGround, probes: Sequence[Probe], schemes: Sequence[Scheme], devices: Sequence[str], threads: int
) -> tuple[FileTimes, float]:
    """Time files of the probes in turns on the devices; return the times and the mean number of tokens of the texts.

    Only files of timed probes in one of the schemes are timed. Formats that no device runs, such as Core ML away from a Mac, get a
    note instead, and so does a device that was busy. Without any file to time the result is empty, with 0 tokens.
    """
    from pocketbert.benchmarks.devices.table import refusals
    from pocketbert.benchmarks.measurement import BenchmarkOptions, Variant
    from pocketbert.benchmarks.results import BUSY

    variants, keys = list[Variant](), dict[str, tuple[str, Format, Scheme]]()
    for probe in probes:
        for (format, scheme), (file, path, _) in probe.files.items():
            name = f"{probe.name} {format} {scheme}"
            if not probe.timed or scheme not in schemes:
                continue
            if refused := refusals(devices, format, None):
                note = f"No latency of {FORMATS[format].title}: {'; '.join(refused)}."
                ground.notes += [note] if note not in ground.notes else []
                continue
            keys[name] = probe.name, format, scheme
            variants.append(
                Variant.of(name, path, ground.model.tokenizer_folder, ground.length, file.scheme, file.format)
            )
    if not variants:
        return {}, 0.0
    options = BenchmarkOptions(
        devices=devices,
        threads=(threads,),
        runs=_RUNS,
        repeats=_REPEATS,
        budget_s=_SECONDS_FOR_FILE * len(variants) * len(devices),
        profile=False,
        label="plan, latencies",
    )
    result = measure(variants, ground.texts, options)
    for session in result.sessions:
        if max(m.load.others or 0.0 for m in session.measurements) > BUSY:
            note = f"{session.device} was busy with other work while it was timed: repeat the plan when it is quiet."
            ground.notes += [note] if note not in ground.notes else []
    return _read_times(result, keys)


def _read_times(result: BenchmarkResult, keys: Mapping[str, tuple[str, Format, Scheme]]) -> tuple[FileTimes, float]:
    """Return the times of a benchmark by probe, format, scheme and device, and the mean number of tokens."""
    times, tokens = FileTimes(), 0.0
    for session in result.sessions:
        for m in session.measurements:
            if m.wall is not None:
                times[*keys[m.variant], m.device] = m.wall.p50, m.wall.p90
                tokens = m.tokens_mean
    return times, tokens


# --- training ---------------------------------------------------------------------------------------------------------


def time_training(ground: PlanGround, rungs: Sequence[Rung]) -> tuple[dict[str, float], float | None]:
    """Estimate the minutes of each student's training (all seeds together), and those of the teacher's fine-tuning.

    Some steps are made of the static, the shallowest and the deepest student, and of the fine-tuning; the other students are estimated
    from these. Without training rows, or with a column of answers as teacher, the result is empty. The teacher's minutes are None if it
    is not fine-tuned.
    """
    recipe = ground.recipe
    if "train" not in ground.data.splits or recipe.column is not None:
        return {}, None
    full = [rung for rung in rungs if rung.layers and rung.width is None and not rung.is_teacher]
    timed = list(dict.fromkeys([*(r for r in rungs if not r.layers), *full[:1], *full[-1:]]))
    rows = prepare_task_rows(recipe, ground.model, ground.data, ground.length, "plan")
    finetune, teacher_min = recipe.teacher.finetune, None
    known, minutes = dict[StudentShape, float](), dict[str, float]()
    with (
        Meter("plan, training steps", len(timed) + (finetune is not None)) as meter,
        tempfile.TemporaryDirectory() as work,
    ):
        for rung in timed:
            stage = rung_recipe(recipe, rung).distill[0].for_rows(len(rows.lengths))
            minutes[rung.name] = _time_stage(ground, rung, rows, stage, Path(work)) / 60
            if rung.layers:
                known[ground.shape(rung, 0)] = minutes[rung.name]
            meter.advance(note=rung.name)
        if finetune is not None:
            from pocketbert.distill.methods.task import Finetune

            settings = finetune.for_rows(len(rows.lengths))
            objective = Finetune(ground.model.family, ground.data.head.task)
            seconds = _time_steps(ground.teacher, objective, rows, settings, Path(work) / "teacher")
            teacher_min = seconds * settings.steps / 60
            meter.advance(note="teacher")
    others = [rung for rung in rungs if rung.layers and rung.name not in minutes and not rung.is_teacher]
    estimated = estimate_costs(known, [ground.shape(rung, 0) for rung in others]) if known else []
    minutes |= {rung.name: value for rung, value in zip(others, estimated, strict=False)}
    minutes |= {rung.name: 0.0 for rung in rungs if rung.is_teacher}  # it has the teacher's answers from the start
    return {name: value * recipe.training.seeds for name, value in minutes.items()}, teacher_min


def _time_stage(ground: PlanGround, rung: Rung, rows: Any, stage: Any, work: Path) -> float:
    """Estimate the seconds of the stage that trains a student of one shape, from some steps.

    If the stage caches the teacher's answers, the teacher's time counts once per row instead of once per step. For a static student the
    time in which the teacher computes its embedding table is added.
    """
    from pocketbert.distill.methods.task import TaskDistillation
    from pocketbert.distill.training.loop import frozen

    probe = Probe(rung.name, rung, ground.pieces, timed=False)
    student, teacher = _draw_student(ground, probe), ground.teacher
    task, pooling = ground.data.head.task, pooling_for(ground.recipe, ground.model)
    with frozen(teacher):
        objective = TaskDistillation(teacher, student, ground.model.family, task, stage, pooling=pooling)
        step_s = _time_steps(student, objective, rows, stage, work / rung.name)
        if rung.layers and not stage.cache_teacher:
            return step_s * float(stage.steps)
        batch = rows.batch(range(min(stage.batch, len(rows.lengths))), 0)
        objective.signals(batch)
        began = time.monotonic()
        objective.signals(batch)
        answer_s = time.monotonic() - began
    table_s = answer_s * _PIECE_TOKENS * ground.pieces / batch["input_ids"].numel() if not rung.layers else 0.0
    if not stage.cache_teacher:
        return float(step_s * stage.steps + table_s)
    own_s = max(step_s - answer_s, _LEAST_SHARE * step_s)
    return float(own_s * stage.steps + answer_s * len(rows.lengths) / stage.batch + table_s)


def _time_steps(model: Any, objective: Any, rows: Any, settings: Any, work: Path) -> float:
    """Return the mean seconds of some optimizer steps, after some that warm up; the model is changed."""
    from pocketbert.distill.training.loop import TrainingLoop

    loop = TrainingLoop(model, objective, rows, settings, 0, "plan", work)
    for _ in range(_WARM_STEPS):
        loop.step()
    began, done = time.monotonic(), 0
    while done < _TIMED_STEPS and (not done or time.monotonic() - began < _STEP_S):
        loop.step()
        done += 1
    return (time.monotonic() - began) / done
