"""What decides the steps of a recipe: its settings, and the models and files that it names.

`Inputs` opens each model and hashes each file once, and returns the settings that several steps share. It may be used by several
runs of a recipe. `Inputs.check_exported` refuses, before anything is trained, models that cannot be exported, distilled or pruned.
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
from pocketbert.core.families import all_families, check_distillable, check_exportable, check_prunable
from pocketbert.core.models.folder import ModelFolder, open_model_folder
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.recipe.student import VOCABULARY_LIMITS
from pocketbert.core.tasks import task_of
from pocketbert.core.types import Calibration, Format
from pocketbert.pipeline.doctor import require
from pocketbert.pipeline.formats.base import format_place
from pocketbert.pipeline.learn.corpora import general_head_task
from pocketbert.pipeline.learn.data import max_length
from pocketbert.pipeline.learn.vocabulary import check_vocabulary
from pocketbert.pipeline.options import CONFIDENCE_KEYS
from pocketbert.pipeline.phone.pack import portable
from pocketbert.pipeline.reference import open_teacher, print_family_choice

_NO_RESULT = ("checkpoint", "max_line_mb", "max_rows")
"""Recipe keys that do not change a result, in any section."""


class Inputs:
    """The models and files that a recipe names, each opened or hashed once, and the settings that decide its steps.

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
        """The model that the recipe starts from: the teacher, or the model to export."""
        folder = open_teacher(self.recipe, self.recipe.export.attention)
        print_family_choice(folder)
        return folder

    @cached_property
    def start(self) -> ModelFolder | None:
        """The model folder that the student starts from; None if the student is built from its teacher."""
        student = self.recipe.student
        if student is None or student.model is None:
            return None
        return open_model_folder(student.model, student.revision, "student.model")

    @cached_property
    def length(self) -> int:
        """Longest input in tokens."""
        return max_length(self.recipe.data, self.model, task_of(self.recipe.task))

    @cached_property
    def general_head(self) -> str | None:
        """Name of the head that all general stages (on plain text) share; None with fewer than two of them.

        Later general stages decide it too, so it is a setting of each of them.
        """
        if sum(stage.general for stage in self.recipe.distill) < 2:
            return None
        require("train")
        return general_head_task(self.recipe).head

    @cached_property
    def vectors_digest(self) -> str | None:
        """sha256 of the word vectors of ``data.augment``; None without them."""
        augment = self.recipe.data.augment
        path = augment.vectors if augment else None
        return sha256_file(path) if path is not None and path.is_file() else None

    @cached_property
    def entity_digests(self) -> dict[str, str | None]:
        """sha256 of the file of entities that ``export.entities`` names, and of the tables it selects from."""
        form, path = self.recipe.export.form, self.recipe.export.entities
        names = [n for f in self.model.family.forms if f.name == form for n in f.files]
        tables = [(n, p) for n in names for p in sorted(self.model.path.glob(f"**/{n}")) if p.is_file()]
        chosen = [("export.entities", path)] if path is not None and path.is_file() else []
        return {name: sha256_file(p) for name, p in (*tables, *chosen)}

    def ready_digests(self, format: Format) -> dict[str, str | None]:
        """Return the sha256 of each ready file of a format, which is copied instead of exported, by its path."""
        return {name: digest for name, digest in self.all_ready_digests.items() if name.startswith(f"{format}/")}

    @cached_property
    def all_ready_digests(self) -> dict[str, str]:
        """The sha256 of each file that is copied instead of exported anew, by its path in the artefact folder."""
        return {name: sha256_path(path) for name, path in self.ready.items()}

    def stage_digests(self, number: int) -> dict[str, str | None]:
        """Return digests, by recipe key, of the word-vector file and generator model that a `distill` stage names."""
        stage, digests = self.recipe.distill[number], dict[str, str | None]()
        vectors, generator = getattr(stage, "vectors", None), getattr(stage, "generator", None)
        if vectors is not None:
            digests[f"distill.{number}.vectors"] = sha256_file(vectors) if vectors.is_file() else None
        if generator is not None:
            opened = open_model_folder(generator.model, generator.revision, f"distill.{number}.generator.model")
            digests[f"distill.{number}.generator.model"] = opened.digest
        return digests

    def check_exported(self) -> None:
        """Raise if the recipe's models cannot be exported, distilled or pruned as the recipe asks.

        Raises:
            InputError: Naming the recipe key of the model.
        """
        student = self.recipe.student
        if self.recipe.distill:
            check_distillable(self.model.family, self.model.config, "teacher.model")
        if student is not None and student.init == "pruned":
            assert student.intermediate is not None, "the section has checked it"
            source = self.start or self.model
            check_prunable(source.family, source.config, student.intermediate)
        if student is not None and student.vocabulary is not None:
            check_vocabulary(self.model)
        if student is not None and student.size is not None:
            return  # a MobileBERT, whatever its teacher is
        key, family = "teacher.model", self.model.family
        if self.start is not None:
            key, family = "student.model", self.start.family
        elif student is not None:
            key = "student.family"
            family = next((f for f in all_families() if f.name == student.family), family)
        check_exportable(family, key)

    def student_settings(self) -> dict[str, object]:
        """Return the recipe settings, by key, that affect the student in every training stage."""
        recipe, section = self.recipe, section_settings(self.recipe.student)
        if isinstance(section, dict) and section["vocabulary"] is None:
            section = _drop_keys(
                section, "vocabulary"
            )  # the settings of a run that was made before this section existed
        else:
            section = _drop_keys(section, *VOCABULARY_LIMITS)
        return {
            "task": recipe.task,
            "seed": recipe.seed,
            "student": section,
            "answer": self.answer_settings(),
            **self.attention_settings(),
        }

    def student_contents(self) -> dict[str, str | None]:
        """Return the digest of the model that the student starts from, by recipe key; None if it has none."""
        return {"student.model": self.start.digest if self.start else None}

    def answer_settings(self) -> object:
        """Return the recipe's `answer` section without temperature and "unknown" threshold, which affect no weights."""
        return _drop_keys(section_settings(self.recipe.answer), *CONFIDENCE_KEYS)

    def attention_settings(self) -> dict[str, object]:
        """Return the recipe's attention pattern, by key; empty if config.json of the weights decides it."""
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

    def pack_settings(self) -> tuple[dict[str, object], dict[str, object]]:
        """Divide the whole recipe into settings that affect files, and settings of checks on the files.

        Returns:
            Settings and gates of the step `pack`.
        """
        sections = portable(self.recipe).model_dump(mode="json", by_alias=True)
        confidence = {key: sections["answer"].pop(key) for key in CONFIDENCE_KEYS}
        gates = {
            "verify": sections.pop("verify"),
            "export": {"atol": sections["export"].pop("atol")},
            "answer": confidence,
        }
        student = sections["student"] or {}
        if (vocabulary := student.pop("vocabulary", None)) is not None:
            gates["student"] = {"vocabulary": {key: vocabulary.pop(key) for key in VOCABULARY_LIMITS}}
            student["vocabulary"] = vocabulary
        return drop_resultless_keys(sections), gates


def section_settings(section: BaseModel | None) -> object:
    """Return a recipe section as JSON values without keys that change no result (`checkpoint`); None for None."""
    return drop_resultless_keys(section.model_dump(mode="json")) if section is not None else None


def drop_resultless_keys(sections: Mapping[str, object]) -> dict[str, object]:
    """Return nested recipe sections without keys that change no result: `checkpoint`, `max_line_mb`, `max_rows`."""
    return cast(dict[str, object], _drop_keys(dict(sections), *_NO_RESULT))


def _drop_keys(value: object, *keys: str) -> object:
    """Return a copy of nested dictionaries and lists without the given keys, at every level."""
    if isinstance(value, dict):
        return {k: _drop_keys(v, *keys) for k, v in value.items() if k not in keys}
    return [_drop_keys(v, *keys) for v in value] if isinstance(value, list) else value
