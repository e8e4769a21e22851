"""What decides the steps of a recipe: its settings, and the models and files that it names.

`Inputs` opens the teacher and the student's start once, hashes the files that a recipe names, and returns the settings that several steps
share. It may be used by several runs of a recipe. `Inputs.check_exported` refuses, before anything is trained, models that cannot be
exported, distilled or pruned.
`section_settings` and `drop_resultless_keys` leave out the keys of a section that change no result.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import cast

from pydantic import BaseModel

from pocketbert.core.artefacts import BudgetSearch
from pocketbert.core.disk.files import sha256_file, sha256_path
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import all_families, check_distillable, check_exportable, check_prunable, find_family
from pocketbert.core.formats import FORMATS
from pocketbert.core.models.folder import ModelFolder, open_model_folder
from pocketbert.core.predict.sentence_settings import read_prompts
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.column import column_key
from pocketbert.core.recipe.recipe import Recipe, TrainingSection
from pocketbert.core.recipe.student import VOCABULARY_LIMITS, StudentSection
from pocketbert.core.tasks import TaskName
from pocketbert.core.types import Calibration, Format, Runtime
from pocketbert.pipeline.doctor import require
from pocketbert.pipeline.formats.base import check_file_sizes, format_place
from pocketbert.pipeline.learn.corpora import general_head_task
from pocketbert.pipeline.learn.data import max_length
from pocketbert.pipeline.learn.finishing import student_width
from pocketbert.pipeline.learn.heads import find_head_models
from pocketbert.pipeline.learn.stage_folder import CARRIED_FILE
from pocketbert.pipeline.learn.vocabulary import check_vocabulary, open_start
from pocketbert.pipeline.options import CONFIDENCE_KEYS
from pocketbert.pipeline.phone.pack import portable
from pocketbert.pipeline.reference import open_teacher, print_family_choice

_NO_RESULT = ("checkpoint", "max_line_mb", "max_rows", "trackers", "shard")
"""Recipe keys that do not change a result, in any section."""


class Inputs:
    """The models and files that a recipe names, with their digests, and the recipe's settings for each step.

    What the properties return is opened or hashed once, when it is first needed.

    Args:
        recipe: The recipe.
        ready: fp32 files of the same model to copy instead of exporting anew, by path in the artefact folder.
        model: The model that the recipe starts from, if the caller has opened it already.
        search: The search inside a budget that chose the files of the recipe, if there was one.
    """

    def __init__(
        self,
        recipe: Recipe,
        ready: Mapping[str, Path] | None = None,
        model: ModelFolder | None = None,
        search: BudgetSearch | None = None,
    ) -> None:
        self.recipe, self.ready, self.search = recipe, dict(ready or {}), search
        if model is not None:
            self.model = model

    @cached_property
    def model(self) -> ModelFolder:
        """The model that the recipe starts from: the teacher, or the model to export.

        When it is opened, a line is printed if several families have its graph.
        """
        folder = open_teacher(self.recipe, self.recipe.export.attention)
        print_family_choice(folder)
        return folder

    @cached_property
    def start(self) -> ModelFolder | None:
        """The model folder that ``student.model`` names, from which the student starts; None if it names none."""
        return open_start(self.recipe)

    @cached_property
    def length(self) -> int:
        """Longest input in tokens."""
        return max_length(self.recipe.data, self.model, self.recipe.task_row)

    @cached_property
    def general_head(self) -> str | None:
        """Name of the head that all general stages (those on plain text) share; None if there are fewer than two.

        Later general stages decide it too, so it is recorded with the settings of each of them.

        Raises:
            MissingBackendError: If there are two or more, and a package for training is not installed.
        """
        if sum(stage.general for stage in self.recipe.distill) < 2:
            return None
        require("train")
        return general_head_task(self.recipe).head

    @cached_property
    def vectors_digest(self) -> str | None:
        """sha256 of the file of word vectors that ``data.augment`` names; None if none is named or the file is missing."""
        augment = self.recipe.data.augment
        path = augment.vectors if augment else None
        return sha256_file(path) if path is not None and path.is_file() else None

    @cached_property
    def entity_digests(self) -> dict[str, str | None]:
        """sha256 of the file that ``export.entities`` names and of the model's tables of entities, by name.

        The tables are those that the form of the files needs; without such a form there are none.
        """
        form, path = self.recipe.export.form, self.recipe.export.entities
        names = [n for f in self.model.family.forms if f.name == form for n in f.files]
        tables = [(n, p) for n in names for p in sorted(self.model.path.glob(f"**/{n}")) if p.is_file()]
        chosen = [("export.entities", path)] if path is not None and path.is_file() else []
        return {name: sha256_file(p) for name, p in (*tables, *chosen)}

    @cached_property
    def head_model_digests(self) -> dict[str, str | None]:
        """sha256 of each model folder that teaches a head of its own, by recipe key."""
        return {column_key(name): sha256_path(path) for name, path in find_head_models(self.recipe).items()}

    def ready_digests(self, format: Format) -> dict[str, str | None]:
        """Return the sha256 of each file of a format that is copied instead of exported, by its path."""
        return {name: digest for name, digest in self.all_ready_digests.items() if name.startswith(f"{format}/")}

    @cached_property
    def all_ready_digests(self) -> dict[str, str]:
        """The sha256 of each file that is copied instead of exported anew, by its path in the artefact folder."""
        return {name: sha256_path(path) for name, path in self.ready.items()}

    def stage_digests(self, number: int) -> dict[str, str | None]:
        """Return the digests of the word vectors and the generator model that a distillation stage names, by key.

        What the stage does not name is left out. The digest of a missing file of word vectors is None.

        Args:
            number: Index of the stage in the recipe's `distill`, from 0.
        """
        stage, digests = self.recipe.distill[number], dict[str, str | None]()
        vectors, generator = getattr(stage, "vectors", None), getattr(stage, "generator", None)
        if vectors is not None:
            digests[f"distill.{number}.vectors"] = sha256_file(vectors) if vectors.is_file() else None
        if generator is not None:
            opened = open_model_folder(generator.model, generator.revision, f"distill.{number}.generator.model")
            digests[f"distill.{number}.generator.model"] = opened.digest
        return digests

    def check_exported(self) -> None:
        """Check that the recipe's models can be exported, distilled and pruned as the recipe asks.

        The student's sizes, also in the files of the recipe's formats, a pruned vocabulary and files for NPUs are checked
        too.

        Raises:
            InputError: Naming the recipe key of the model or setting that is refused.
        """
        student = self.recipe.student
        self._check_npu_files()
        if self.recipe.distill:
            check_distillable(self.model.family, self.model.config, "teacher.model")
        if student is not None and student.init == "pruned":
            assert student.intermediate is not None, "the section has checked it"
            source = self.start or self.model
            check_prunable(source.family, source.config, student.intermediate)
        if student is not None and student.vocabulary is not None:
            check_vocabulary(self.model)
        if student is not None and student.size is not None:
            check_exportable(find_family(student.size.family), "student.size")  # whatever its teacher is
        elif student is None or student.layers != 0:
            key, family = "teacher.model", self.model.family
            if self.start is not None:
                key, family = "student.model", self.start.family
            elif student is not None:
                key = "student.family"
                family = next((f for f in all_families() if f.name == student.family), family)
            check_exportable(family, key)
        if student is not None:
            check_file_sizes(self.recipe, self._estimate_student_bytes(student))

    def _estimate_student_bytes(self, student: StudentSection) -> int:
        """Estimate the bytes of the student's weights in fp32, and check on the way that its sizes fit each other.

        What is not known before the first step counts as nothing: a student that the run chooses, the table of words of
        a pruned vocabulary, a pruned `student.model`. A MobileBERT does too, which is small whatever its teacher is, and
        a student with layers of a teacher that fits is at most as large as the teacher.

        Raises:
            InputError: If the sizes do not fit each other.
        """
        if student.size is not None or student.auto is not None:
            return 0
        if student.layers == 0:
            words = self.model.family.read_size(self.model.config, "vocab_size") if student.vocabulary is None else 0
            return 4 * (words or 0) * (student.dimensions or 0)  # the default width is small
        if self.start is not None:
            is_pruned = student.init == "pruned" or student.vocabulary is not None
            return 0 if is_pruned else self.start.fp32_bytes
        most = min(FORMATS[format].cost.max_gib for format in self.recipe.export.formats) * 2**30
        if self.model.fp32_bytes < most and not (student.hidden or student.heads or student.intermediate):
            return self.model.fp32_bytes
        from pocketbert.core.models.checkpoints import read_model_config
        from pocketbert.distill.students.build import check_student_sizes

        return 4 * check_student_sizes(read_model_config(self.model), self.model.family, student)

    def _check_npu_files(self) -> None:
        """Check that a recipe whose exported model has no layers asks for no files for the runtimes `npu` and `qnn`.

        Raises:
            InputError: If it asks for such files.
        """
        student = self.recipe.student
        has_layers = self.model.family.has_layers if student is None else student.layers != 0
        written = self.recipe.quantize.written(self.recipe.export.formats) or ()
        if not has_layers and any(runtime in (Runtime.NPU, Runtime.QNN) for _, _, runtime in written):
            what = (
                "a model without layers has no files for npu and qnn: in integers, the mean of its vectors is lost, and tags "
                "were not tried."
            )
            raise InputError(
                Problem("quantize.files", what, "Leave them out: a processor takes less than a millisecond.")
            )

    def student_settings(self) -> dict[str, object]:
        """Return the recipe settings on which every training stage of the student depends.

        If one of them changes, the student is trained anew. They are the task and its heads, the seed, ``student``
        (without the limits that only judge a vocabulary), ``answer`` (without temperature and "unknown" threshold) and
        attention.
        """
        recipe, section = self.recipe, section_settings(self.recipe.student)
        # the settings of a run that was made before these keys existed
        if isinstance(section, dict):
            section = _drop_keys(section, *(key for key in ("auto", "dimensions") if section[key] is None))
        if isinstance(section, dict) and section["vocabulary"] is None:
            section = _drop_keys(section, "vocabulary")
        else:
            section = _drop_keys(section, *VOCABULARY_LIMITS)
        return {
            **self.task_settings(),
            "seed": recipe.seed,
            "student": section,
            "answer": self.answer_settings(),
            **self.attention_settings(),
        }

    def student_contents(self) -> dict[str, str | None]:
        """Return the digest of the model that ``student.model`` names, and of a general stage's file in its folder.

        A general stage, which trains on plain text, leaves the file for the stages after it. Without ``student.model``
        the digest is None.
        """
        if self.start is None:
            return {"student.model": None}
        carried = self.start.path / CARRIED_FILE
        more = {f"student.model/{CARRIED_FILE}": sha256_file(carried)} if carried.is_file() else {}
        return {"student.model": self.start.digest, **more}

    def task_settings(self) -> dict[str, object]:
        """Return the recipe's task and, for a model with several heads, the list of its heads, by recipe key."""
        # the models of heads count by their digests
        heads = [
            [name, _drop_keys(h.model_dump(mode="json"), "model")] for name, h in (self.recipe.tasks or {}).items()
        ]
        start: dict[str, object] = {"start_only": True} if self.recipe.teacher.start_only else {}
        if self.recipe.drops_projection:
            start["width of the student's vectors"] = student_width(self.recipe, self.model)
        named = self.recipe.tasks or {}
        if TaskName.TOKEN_CLASSIFICATION in (self.recipe.task, *(h.task for h in named.values())):
            folder = self.model.tokenizer_folder
            if TextTokenizer(folder, self.model.tokenizer_length).splits_punctuation:
                start["words"] = "begin at punctuation, too"
            if read_prompts(self.model.path).named:
                start["prompts"] = "left out"
        return {"task": self.recipe.task, **({"tasks": heads} if heads else {}), **start}

    def answer_settings(self) -> object:
        """Return the recipe's `answer` section without temperature and "unknown" threshold, which affect no weights."""
        return _drop_keys(section_settings(self.recipe.answer), *CONFIDENCE_KEYS)

    def attention_settings(self) -> dict[str, object]:
        """Return the attention pattern that the recipe sets, by key; empty if config.json of the weights decides it."""
        attention = self.recipe.export.attention
        return {} if attention is None else {"export": {"attention": attention}}

    def export_settings(self, format: Format) -> dict[str, object]:
        """Return the recipe settings, by section, that affect the exported files of a format."""
        own = format_place(format).settings(self.recipe)
        export = {"lengths": self.recipe.export.lengths, **cast(dict[str, object], own.pop("export", {}))}
        return {"export": export, "data": {"max_length": self.length}, **own}

    def calibration_settings(self) -> dict[str, object]:
        """Return the calibration method of static files, by recipe key; empty for the default ``minmax``."""
        method = self.recipe.quantize.calibration
        return {} if method is Calibration.MINMAX else {"quantize.calibration": method}

    def training_settings(self) -> dict[str, object]:
        """Return the recipe's settings that decide after which step a training's weights are kept, by key."""
        section = self.recipe.training.model_dump(mode="json", include={"evaluate_every", "patience", "metric"})
        return {"training": section}

    def pack_settings(self) -> tuple[dict[str, object], dict[str, object]]:
        """Divide the recipe's settings into those that change the packed files and those that only set gates (checks).

        Keys that change no result are left out of both, and so are some that have their default.

        Returns:
            The settings and the gates of the step `pack`, each by recipe key.
        """
        sections = portable(self.recipe).model_dump(mode="json", by_alias=True, exclude={"planned"})
        confidence = {key: sections["answer"].pop(key) for key in CONFIDENCE_KEYS}
        gates = {
            "verify": sections.pop("verify"),
            "export": {"atol": sections["export"].pop("atol")},
            "answer": confidence,
        }
        if sections["data"]["validation"] is None:  # the settings of a folder that was made before these keys existed
            del sections["data"]["validation"]
        if self.recipe.training == TrainingSection():
            del sections["training"]
        student = sections["student"] or {}
        if student.get("auto") is None:
            student.pop("auto", None)
        if (vocabulary := student.pop("vocabulary", None)) is not None:
            gates["student"] = {"vocabulary": {key: vocabulary.pop(key) for key in VOCABULARY_LIMITS}}
            student["vocabulary"] = vocabulary
        return drop_resultless_keys(sections), gates


def section_settings(section: BaseModel | None) -> object:
    """Return a recipe section as JSON values without keys that change no result; None if there is no such section."""
    return drop_resultless_keys(section.model_dump(mode="json")) if section is not None else None


def drop_resultless_keys(sections: Mapping[str, object]) -> dict[str, object]:
    """Return nested recipe sections without keys that change no result, such as `checkpoint` and `trackers`."""
    return cast(dict[str, object], _drop_keys(dict(sections), *_NO_RESULT))


def _drop_keys(value: object, *keys: str) -> object:
    """Return a copy of nested dictionaries and lists without the given keys, at every level."""
    if isinstance(value, dict):
        return {k: _drop_keys(v, *keys) for k, v in value.items() if k not in keys}
    return [_drop_keys(v, *keys) for v in value] if isinstance(value, list) else value
