"""The recipe as typed data (`Recipe`), with its smaller sections; `recipe.file` reads it from YAML.

The sections of data, student, stages and quantized files have modules of their own. `Recipe` checks that the
sections do not contradict each other, and reports the contradictions together in a `ContradictionError`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    PositiveInt,
    model_validator,
)

from pocketbert.core.data.source import TeacherColumn
from pocketbert.core.devices import LOCAL, MAX_GAP_MS, check_device
from pocketbert.core.families import TEXT_ONLY
from pocketbert.core.heads.settings import AnswerSettings, HeadName
from pocketbert.core.recipe import stages as _stages  # noqa: F401 - it registers the methods of the package
from pocketbert.core.recipe.column import TeacherSection, column_key, fill_column_recipe, list_column_problems
from pocketbert.core.recipe.data import DataSection, HeadSection, HeadTeacher, list_head_problems
from pocketbert.core.recipe.planned import PlannedSection
from pocketbert.core.recipe.presets import MLPERF_RUNS, MLPERF_S, PRESETS, Preset
from pocketbert.core.recipe.quantize import QuantizeSection, list_calibration_problems, list_choice_problems
from pocketbert.core.recipe.sections import (
    NO_TRANSFER,
    AnyStage,
    Fraction,
    Section,
    StagePlace,
    method_names,
    on_registration,
)
from pocketbert.core.recipe.student import (
    StudentSection,
    list_auto_problems,
    list_projection_problems,
    list_shard_problems,
    list_smaller_student_problems,
    list_static_problems,
    list_vocabulary_problems,
)
from pocketbert.core.tasks import FEWEST_HEADS, MOST_HEADS, LabelKind, LearnsFrom, Task, TaskName, several_task, task_of
from pocketbert.core.types import Attention, Client, Format, Layout, Scheme, Shapes

_STANDARD = PRESETS[Preset.STANDARD]
_ANSWER_KEYS = {
    TaskName.TEXT_CLASSIFICATION: {"temperature", "unknown"},
    TaskName.MULTI_LABEL: {"thresholds"},
    TaskName.QUESTION_ANSWERING: {"stride", "answer_length", "null_answers"},
    TaskName.FEATURE_EXTRACTION: {"pooling", "normalize"},
}
"""Keys of the section `answer` that belong to one task."""


class CoremlSection(Section):
    """How Core ML packages are written."""

    ios: Literal[16, 17, 18] = Field(18, description="Oldest iOS that opens the package (macOS 13, 14, 15).")
    shapes: Shapes | None = Field(
        None,
        description="enumerated (the listed lengths; iOS 18), ranged (any length; iOS 17 and later) or fixed (the "
        "longest listed length); default enumerated for iOS 18, else fixed.",
    )
    precision: Scheme = Field(
        Scheme.FP16,
        description="What the package stores and computes in: fp16 or fp32. The Neural Engine knows fp16 only.",
    )
    layout: Layout = Field(
        Layout.PLAIN,
        description="ane: rewritten for Apple's Neural Engine; equivalence-tested, latency not measured.",
    )

    @property
    def lengths(self) -> Shapes:
        """The input lengths that the package accepts: as set, else by the oldest iOS version that it must run on."""
        return self.shapes or (Shapes.ENUMERATED if self.ios >= 18 else Shapes.FIXED)

    @model_validator(mode="after")
    def _check_ios(self) -> CoremlSection:
        """Raise ValueError for an unsupported precision, or for lengths that the oldest iOS does not support."""
        if self.precision not in (Scheme.FP16, Scheme.FP32):
            raise ValueError(
                f"precision '{self.precision}' is not fp16 or fp32; weights are compressed by quantize.scheme"
            )
        oldest = {Shapes.ENUMERATED: 18, Shapes.RANGED: 17, Shapes.FIXED: 16}[self.lengths]
        if self.ios < oldest:
            possible = ", ".join(s for s, ios in (("ranged", 17), ("fixed", 16)) if self.ios >= ios)
            raise ValueError(
                f"shapes '{self.lengths}' needs ios {oldest}, this is ios {self.ios}; possible here: {possible}"
            )
        return self


class ExportSection(Section):
    """Which files to write, and for which inputs."""

    formats: list[Format] = Field(
        [Format.ONNX, Format.TFLITE, Format.COREML],
        min_length=1,
        description="File formats; the first one is opened by default.",
    )
    lengths: list[PositiveInt] = Field(
        [32, 64, 128],
        min_length=1,
        description="Lengths in tokens to check and to time; TFLite and Core ML files take these and max_length.",
    )
    form: str | None = Field(
        None,
        min_length=1,
        description="Inputs of the files beyond the text, such as language; `pocketbert families` lists the forms of "
        "each system. Default text: none. Of ready models, without data.",
    )
    entities: Path | None = Field(
        None,
        description="With a form that holds a table of entities: file of the entities to keep, one id or name in each "
        "line.",
    )
    clients: list[Client] = Field(
        [Client.MEDIAPIPE], description="Clients that get a separate file where they can run the model."
    )
    attention: Attention | None = Field(
        None,
        description="blocks: attention over blocks of tokens, for texts of more than 1,024 (Longformer); pairs: over "
        "all pairs of tokens; default pairs, or what the model was exported with.",
    )
    opset: int = Field(20, ge=18, le=20, description="ONNX operator set; phone builds in use read up to 20.")
    coreml: CoremlSection = Field(
        default_factory=lambda: CoremlSection(),
        description="Oldest iOS, lengths, precision and layout of packages.",
    )
    atol: float | None = Field(
        None, gt=0, description="Parity bound, relative to the spread of the logits; default the family's."
    )


class BenchmarkSection(Section):
    """Where and how to measure latency."""

    preset: Preset = Field(
        Preset.STANDARD,
        description=f"How thoroughly: quick ({PRESETS[Preset.QUICK].budget_s:g} s, real text), standard, or mlperf (at "
        f"least {MLPERF_RUNS:,} inferences and {MLPERF_S:g} s of each file, real text); sets runs, repeats and gaps_ms "
        "where they are not given.",
    )
    devices: list[Annotated[str, AfterValidator(check_device)]] = Field(
        [LOCAL],
        min_length=1,
        description="Devices to measure on, one after the other; `pocketbert devices` lists them.",
    )
    threads: list[PositiveInt] = Field([1, 2], min_length=1, description="Thread counts.")
    runs: int = Field(_STANDARD.runs, ge=10, description="Timed inferences per variant and repeat.")
    repeats: int = Field(_STANDARD.repeats, ge=2, description="Repeats, for the interval.")
    gaps_ms: list[Annotated[float, Field(gt=0, le=MAX_GAP_MS)]] = Field(
        list(_STANDARD.gaps_ms),
        description="Idle times in ms; single inferences after them are timed too, on real text and, where the budget "
        "allows, at every length.",
    )
    sustained_min: float = Field(
        0.0,
        ge=0,
        le=240,
        description="Minutes that each file runs without a pause at the end, to see how its time changes.",
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_from_preset(cls, values: object) -> object:
        """Fill in what the given preset sets and the section does not, so that the stored recipe holds the settings used."""
        if not isinstance(values, dict) or values.get("preset") not in list(Preset):
            return values
        preset = PRESETS[Preset(values["preset"])]
        return {"runs": preset.runs, "repeats": preset.repeats, "gaps_ms": list(preset.gaps_ms), **values}


class ContradictionError(ValueError):
    """Raised for recipe sections that contradict each other.

    Attributes:
        problems: One sentence for each contradiction; if one key is wrong, the sentence begins with the key and a
            colon.
    """

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("; ".join(problems))


class TrainingSection(Section):
    """How often a training is scored on validation rows, when it stops, its seeds, and where its losses are logged."""

    evaluate_every: int | None = Field(
        None,
        ge=0,
        description="Steps between two scores on validation rows, while the teacher is fine-tuned and in stages that train the "
        "student's answers; the weights of the best score are kept. 0: never, the last weights are kept. Default: up to 10 times, "
        "as often as 5 % of the training's time allows.",
    )
    patience: int = Field(
        5, ge=0, description="Scores in a row that may fail to improve before a training stops; 0: never stop early."
    )
    metric: str | None = Field(None, description="Metric that chooses; default the task's own.")
    seeds: PositiveInt = Field(
        1,
        le=20,
        description="Trainings of the student, with seeds from `seed` on: the one with the best score on validation rows is "
        "shipped, mean and spread of all are reported.",
    )
    trackers: list[Literal["tensorboard", "mlflow", "wandb"]] = Field(
        default_factory=list,
        description="Trackers that get losses, rates and scores, as files in the folder `trackers` of the run.",
    )


class VerifySection(Section):
    """What an exported file must not lose against the model that it is made from."""

    max_drop: Fraction = Field(
        0.01, description="Largest loss of the deciding metric between fp32 and quantized, as a fraction."
    )
    min_kept: Fraction | None = Field(
        None, description="Smallest share of the teacher's score that each file must keep."
    )


def _relax_required_keys(schema: dict[str, Any]) -> None:
    """Remove `teacher` and `task` from the required keys of the JSON Schema: a column of answers, and `tasks`, can replace them."""
    schema["required"] = [key for key in schema["required"] if key not in ("teacher", "task")]


def _allow_auto(schema: dict[str, Any]) -> None:
    """Add the word auto to what the JSON Schema allows for the section student."""
    schema["anyOf"] = [*schema["anyOf"], {"const": "auto"}]


class Recipe(Section):
    """The settings of one run, from teacher to artefact folder."""

    model_config = ConfigDict(json_schema_extra=_relax_required_keys)
    newer_keys = ("tasks",)

    schema_version: Literal[1] = Field(alias="schema", description="Version of the recipe format.")
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", description="Short name of the run.")
    description: str = Field("", description="One sentence for people.")
    task: TaskName = Field(description="Hub task name; several, or left out, with tasks.")
    tasks: dict[HeadName, HeadSection] | None = Field(
        None,
        min_length=FEWEST_HEADS,
        max_length=MOST_HEADS,
        description="Several heads on one encoder, by their names: all answer in one pass. The model files have an output NAME_logits for "
        "each.",
    )
    seed: int = Field(0, ge=0, lt=1 << 63, description="Seed of every random choice.")
    data: DataSection = Field(default_factory=lambda: DataSection())
    answer: AnswerSettings = Field(default_factory=lambda: AnswerSettings(), description="How outputs become answers.")
    teacher: TeacherSection = Field(
        description="Left out if data.train.teacher names a column of answers, or a head has one."
    )
    student: StudentSection | None = Field(
        None,
        description="Leave out to export the teacher itself; auto for the smallest student that keeps 97 % of the teacher.",
        json_schema_extra=_allow_auto,
    )
    distill: list[AnyStage] = Field(
        default_factory=list, description="Distillation stages, in order: general ones first."
    )
    training: TrainingSection = Field(
        default_factory=lambda: TrainingSection(), description="How trainings are watched and repeated."
    )
    export: ExportSection = Field(default_factory=lambda: ExportSection())
    quantize: QuantizeSection = Field(default_factory=lambda: QuantizeSection())
    verify: VerifySection = Field(default_factory=lambda: VerifySection())
    benchmark: BenchmarkSection | None = Field(None, description="Leave out to measure nothing.")
    planned: PlannedSection | None = Field(None, description="Written by `pocketbert plan`.")

    @model_validator(mode="before")
    @classmethod
    def _fill_for_column(cls, values: object) -> object:
        """Fill in what a recipe may leave out if its teacher is a column of answers, or if it lists its heads under `tasks`."""
        if isinstance(values, dict) and values.get("tasks") is not None and values.get("task") is None:
            values = {**values, "task": TaskName.SEVERAL}
        return fill_column_recipe(values)

    @model_validator(mode="after")
    def _check_sections(self) -> Recipe:
        """Check that the recipe's settings fit together, and return the recipe unchanged.

        Raises:
            ContradictionError: Listing the contradictions, most of them between two sections, and settings that
                are missing although another one needs them. Problems of several heads are listed alone.
        """
        if problems := self._head_problems():
            raise ContradictionError(problems)
        if self.student is not None and not self.distill:
            problems.append(
                "student: a student without a distill stage would never learn: add one, e.g. [{method: task, steps: "
                "1000}]"
            )
        key = "quantize.scheme" if self.quantize.files is None else "quantize.files"
        wanted = self.quantize.wanted if self.quantize.budget is None else self.quantize.files or ()
        choice = list_choice_problems(wanted, self.export.formats, bool(self.data.train or self.data.transfer))
        problems += [*(f"{key}: {problem}" for problem in choice), *self._budget_problems()]
        problems += list_calibration_problems(self.quantize)
        if len(set(self.export.formats)) < len(self.export.formats):
            problems.append("export.formats: lists a format twice")
        if self.distill and self.student is None:
            problems.append("distill: distill stages need a student section, e.g. student: {layers: 3}")
        general = [s.general for s in self.distill]
        if self.teacher.finetune or not all(general):
            needed = {"train": "{path: rows.csv}", "eval": "{path: dev.csv}, or {fraction: 0.1} of the training rows"}
            missing = [k for k in needed if getattr(self.data, k) is None]
            if self.data.transfer is not None and not self.teacher.finetune:
                missing = [k for k in missing if k != "train"]  # a ready teacher labels the texts
            problems += [f"data: training needs data.{k}: add {k}: {needed[k]}" for k in missing]
        if self.data.eval is not None and self.data.eval.fraction is not None and self.data.eval_source is None:
            problems.append("data.eval.fraction: is taken from the training rows; add train: {path: rows.csv}")
        problems += self._transfer_problems()
        problems += self._general_problems(general) + self._task_problems() + self._training_problems()
        problems += self._form_problems()
        has_student = self.student is not None
        problems += list_column_problems(self.column_keys, self.teacher, self.task_row, self.distill, has_student)
        if self.student is not None and self.student.vocabulary is not None:
            rows = self.data.train is not None and self.data.eval is not None
            problems += list_vocabulary_problems(self.student.vocabulary, self.task, self.distill, rows)
        if self.student is not None:
            problems += list_static_problems(self.student, self.task, self.distill)
            lengths = self.answer.dimensions
            problems += list_projection_problems(self.student, self.task, lengths, self.column is not None)
            problems += list_auto_problems(self.student, self.task, self.distill, has_model=self.asks_model)
        if self.teacher.shard:
            problems += list_shard_problems(self.student, self.distill, has_model=self.asks_model)
        depth = self.student.layers if self.student else None
        files = self.quantize.written(self.export.formats)
        for i, stage in enumerate(self.distill):
            problems += stage.problems(StagePlace(i, self.distill, depth, files, self.task))
        if problems:
            raise ContradictionError(problems)
        return self

    @property
    def task_row(self) -> Task:
        """The recipe's task; with several heads their joint task, without the labels, which are known after reading the data."""
        if self.tasks is None:
            return task_of(self.task)
        heads = self.tasks.items()
        row = several_task({name: h.task for name, h in heads}, weights={name: h.weight for name, h in heads})
        others: LearnsFrom = "model" if self.asks_model else "labels"
        own: dict[str, LearnsFrom] = {
            name: "own model" if teacher.model else "column" for name, teacher in self.head_columns.items()
        }
        return replace(row, heads=tuple(replace(h, learns_from=own.get(h.name, others)) for h in row.heads))

    @property
    def label_columns(self) -> dict[str, str]:
        """The column of each head's label, by the head's name; empty for a recipe with one head."""
        return {name: head.label or name for name, head in (self.tasks or {}).items()}

    @property
    def column(self) -> TeacherColumn | None:
        """The column of a teacher's answers that the student learns from; None if a model is the teacher, or with several heads."""
        return self.data.train.teacher if self.data.train is not None else None

    @property
    def head_columns(self) -> dict[str, HeadTeacher]:
        """The teacher of its own of each head that has one, a column or a model, by the head's name; empty for a recipe with one head."""
        return {name: head.teacher for name, head in (self.tasks or {}).items() if head.teacher}

    @property
    def column_keys(self) -> list[str]:
        """The recipe keys that name a column of answers."""
        return [column_key(name) for name in self.head_columns] or [column_key()] * (self.column is not None)

    @property
    def asks_model(self) -> bool:
        """Whether the model of `teacher` answers; if not, it is only what the student starts from."""
        is_needed = self.tasks is None or len(self.head_columns) < len(self.tasks)
        return self.column is None and is_needed and not self.teacher.start_only

    @property
    def drops_projection(self) -> bool:
        """Whether a model teaches vectors of the student's own width, to which the model's are reduced."""
        return self.column is None and self.student is not None and self.student.drops_projection

    @property
    def prunes_vocabulary(self) -> bool:
        """Whether the student keeps only a part of its vocabulary."""
        return self.student is not None and self.student.vocabulary is not None

    @property
    def learns_without_labels(self) -> bool:
        """Whether some stage trains on the teacher's answers to rows without labels, with the teacher's own tokens."""
        reads_alike = self.student is None or not self.student.reads_otherwise
        return reads_alike and self.asks_model and any(stage.is_taught(self.task) for stage in self.distill)

    def _head_problems(self) -> list[str]:
        """Return sentences about settings that several heads cannot have, or about a `task` that contradicts `tasks`."""
        if (self.tasks is not None) is not (self.task is TaskName.SEVERAL):
            if self.tasks is None:
                return ["tasks: task is several, and its heads are not listed: add tasks: {NAME: {task: ...}, ...}"]
            return [f"task: is {self.task}, and tasks lists several heads: leave one of them out"]
        if self.tasks is None:
            return []
        data, student = self.data, self.student
        unsuited = {
            "data.transfer": data.transfer is not None,
            "data.augment": data.augment is not None,
            "quantize.budget": self.quantize.budget is not None,
            "student: auto": student is not None and student.auto is not None,
            "student.layers: 0": student is not None and student.layers == 0,
            "student.vocabulary": student is not None and student.vocabulary is not None,
            "export.form": self.export.form not in (None, TEXT_ONLY),
        }
        return list_head_problems(self.tasks, data, self.distill, [key for key, is_set in unsuited.items() if is_set])

    def _transfer_problems(self) -> list[str]:
        """Return sentences about `data.transfer` (texts without labels) that the recipe cannot use, or `data.mix` without rows."""
        transfer, problems = self.data.transfer, []
        if transfer is None:
            if self.data.mix is not None and self.data.train is None:
                problems.append("data.mix: there are no rows to mix: add data.train or data.transfer")
            return problems
        if self.task in NO_TRANSFER:
            return [f"data.transfer: has no use for {self.task}: {NO_TRANSFER[self.task]}; leave it out"]
        if self.column is not None:
            return [
                "data.transfer: its texts have no answers in the column data.train.teacher: answer them with `pocketbert teach` "
                "and add them to data.train, or leave it out"
            ]
        if not any(stage.is_taught(self.task) for stage in self.distill):
            problems.append(
                "data.transfer: is read by stages that learn from the teacher on the task's text: add {method: task, epochs: 4}, "
                "or leave it out"
            )
        if self.data.train is None:
            problems += [
                f"distill.{i}: learns gold labels, and only data.transfer is there: add data.train, or weigh labels with 0"
                for i, stage in enumerate(self.distill)
                if stage.needs_labels(self.task)
            ]
        for i, source in enumerate(transfer.sources):
            key = f"data.transfer.sources.{i}.text_pair"
            if self.task_row.labels is LabelKind.ANSWERS and source.text_pair is None:
                problems.append(
                    f"{key}: question-answering needs the column of the context; pairs are not drawn for it"
                )
            if self.task_row.labels is LabelKind.SPANS and source.text_pair is not None:
                problems.append(f"{key}: {self.task} takes one text")
        if self.student is not None and self.student.reads_otherwise:
            problems.append(
                "data.transfer: a student whose vocabulary is split otherwise (student.vocabulary.at_least, resplit) learns on "
                "labelled rows only: leave one of both out"
            )
        return problems

    def _budget_problems(self) -> list[str]:
        """Return sentences about rows that a budget needs, a `verify.max_drop` below its own, and students that cannot be."""
        budget = self.quantize.budget
        if budget is None:
            return []
        purposes = {"train": "to rank candidates and to measure ranges", "eval": "to score them"}
        missing = [k for k in purposes if getattr(self.data, k) is None]
        problems = [f"quantize.budget: needs data.{k} {purposes[k]}: add {k}: {{path: rows.csv}}" for k in missing]
        if budget.max_drop is not None and budget.max_drop > self.verify.max_drop:
            problems.append(
                f"quantize.budget.max_drop: takes files that lose {budget.max_drop:g}, which fail verify.max_drop "
                f"({self.verify.max_drop:g}): set verify.max_drop to {budget.max_drop:g} too"
            )
        return problems + list_smaller_student_problems(budget.students, self.task, self.student)

    def _form_problems(self) -> list[str]:
        """Return what is wrong with `export.form` and `export.entities`: a list of one sentence, or an empty one.

        A form with additional inputs allows no student and no data; entities need such a form.
        """
        form, sources = self.export.form, (self.data.train, self.data.eval, self.data.corpus)
        if self.export.entities is not None and form in (None, TEXT_ONLY):
            return ["export.entities: is read with a form that has entities: set export.form"]
        if form in (None, TEXT_ONLY) or (self.student is None and not any(sources)):
            return []
        return [
            f"export.form: '{form}' is for a ready model, without student and data: training knows text only; train "
            "first, then export the trained folder in the form"
        ]

    def _training_problems(self) -> list[str]:
        """Return sentences about settings of `training` and validation rows that the recipe cannot use; empty if none."""
        section, task, problems = self.training, self.task_row, list[str]()
        known = [m.name for m in (task.metric, *task.others)]
        known += [f"{h.name}.{m.name}" for h in task.heads for m in (h.task.metric, *h.task.others)]
        if section.metric is not None and section.metric not in known:
            problems.append(
                f"training.metric: '{section.metric}' is not measured for {self.task}; allowed: {', '.join(known)}"
            )
        if section.seeds > 1 and self.student is None:
            problems.append(
                "training.seeds: trains the student several times, and there is none: add student, or leave it out"
            )
        if section.seeds > 1 and task.labels is LabelKind.NONE:
            problems.append(f"training.seeds: students of {self.task} are not scored on validation rows: leave it out")
        if self.data.validation is None:
            return problems
        if self.data.train is None and self.data.transfer is None:
            problems.append(
                "data.validation: chooses among checkpoints, and nothing is trained on the task's rows: leave it out"
            )
        if task.labels is LabelKind.NONE:
            problems.append(f"data.validation: checkpoints of {self.task} are not scored while it trains: leave it out")
        return problems

    def _general_problems(self, general: list[bool]) -> list[str]:
        """Return sentences about stages on plain text or augmented rows that lack data or a head, or stand in a wrong order.

        `general` has, for each stage of `distill`, whether it trains on plain text.
        """
        problems, methods = [], ", ".join(method_names(lambda s: s.general))
        if any(general) and self.student is not None and self.student.init == "pruned":
            problems.append(
                f"student.init: pruned chooses neurons on training rows of the task, which general stages ({methods}) "
                "come before: make the general student with one recipe, and prune it with a second one (student.model)"
            )
        if any(general) and self.data.corpus is None:
            problems.append(
                f"data.corpus: a general stage ({methods}) needs plain text: {{sources: [{{path: text.jsonl.gz}}]}}"
            )
        if self.data.corpus is not None and not any(general):
            problems.append(f"data.corpus: is read by general stages only ({methods}), the recipe has none")
        if general != sorted(general, reverse=True):
            problems.append(f"distill: general stages ({methods}) come before the others")
        if self.task is TaskName.FILL_MASK and any(general) and not any(s.teaches_words for s in self.distill):
            *others, last = sorted(method_names(lambda s: s.teaches_words))
            problems.append(
                f"distill: no stage teaches the head that guesses hidden words: add one of method {', '.join(others)} "
                f"or {last}"
            )
        augmented = [i for i, s in enumerate(self.distill) if s.on_augmented]
        if augmented and self.data.augment is None:
            problems.append(f"distill.{augmented[0]}.augmented: needs data.augment, e.g. augment: {{copies: 20}}")
        if self.data.augment is not None and not augmented:
            problems.append("data.augment: no stage learns on the augmented rows: set augmented: true in one")
        if general and all(general) and self.task is not TaskName.FILL_MASK:
            problems.append(
                f"distill: general stages give no head for {self.task}: add {{method: task, steps: 1000}}, or set "
                "task: fill-mask"
            )
        return problems

    def _task_problems(self) -> list[str]:
        """Return sentences about settings of `data`, `teacher` and `answer` that the task needs or does not allow."""
        task, problems = self.task_row, []
        own = {"train": self.data.train, "eval": self.data.eval if self.data.eval_source is self.data.eval else None}
        sources = [(k, s) for k, s in own.items() if s is not None]
        if task.labels is LabelKind.ANSWERS:
            problems += [
                f"data.{k}.text_pair: question-answering needs the column of the context"
                for k, s in sources
                if s.text_pair is None
            ]
        is_choice = task.labels is LabelKind.CHOICE
        what = (
            "needs the column with the choices, or a list of the columns of the choices"
            if is_choice
            else "has no choices"
        )
        problems += [f"data.{k}.choices: {self.task} {what}" for k, s in sources if (s.choices is None) is is_choice]
        if task.labels in (LabelKind.SPANS, LabelKind.NONE) or (task.heads and task.single_only):
            problems += [
                f"data.{k}.text_pair: {self.task} takes one text" for k, s in sources if s.text_pair is not None
            ]
        if self.data.labels and not task.names_labels:
            problems.append(f"data.labels: {self.task} has no labels")
        if self.task is TaskName.FEATURE_EXTRACTION and self.teacher.finetune:
            problems.append(
                "teacher.finetune: feature-extraction learns a teacher's vectors, there is nothing to fine-tune a "
                "teacher on"
            )
        # compared by value, since a resolved recipe names every key
        changed = {k for k, f in AnswerSettings.model_fields.items() if getattr(self.answer, k) != f.default}
        for key, names in _ANSWER_KEYS.items():
            wrong = sorted(changed & names) if self.task is not key else []
            problems += [f"answer.{name}: has no meaning for {self.task}, only for {key}" for name in wrong]
        return problems


on_registration(partial(Recipe.model_rebuild, force=True))
