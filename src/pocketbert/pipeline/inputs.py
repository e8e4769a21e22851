"""What decides the steps of a recipe: settings by recipe key, and digests of the models and files that are read."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import cast

from pydantic import BaseModel

from pocketbert.core.artefacts import BudgetSearch
from pocketbert.core.disk.files import sha256_file, sha256_json, sha256_path
from pocketbert.core.families import TEXT_ONLY, all_families, check_exported, check_pruned, check_taught
from pocketbert.core.models.folder import ModelFolder, open_model_folder
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.recipe.vocabulary import LIMITS
from pocketbert.core.tasks import task_of
from pocketbert.core.types import Format
from pocketbert.pipeline.formats.place import place_of
from pocketbert.pipeline.learn.data import max_length
from pocketbert.pipeline.learn.general import head_wanted
from pocketbert.pipeline.learn.vocabulary import check_vocabulary
from pocketbert.pipeline.requirements import require
from pocketbert.pipeline.teacher import open_teacher, say_row


class Inputs:
    """What decides the steps of a recipe; models are opened when they are first asked for.

    Args:
        recipe: What to do.
        ready: fp32 files of the same model to use instead of exporting anew, by path in the artefact folder.
        model: The model the recipe starts from, where the caller opened it already.
        search: The search that chose the files of the recipe inside a budget, if there was one.
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
        """The model the recipe starts from."""
        folder = open_teacher(self.recipe, self.recipe.export.attention)
        say_row(folder)
        return folder

    @cached_property
    def start(self) -> ModelFolder | None:
        """The student that the recipe goes on with."""
        wanted = self.recipe.student
        if wanted is None or wanted.model is None:
            return None
        return open_model_folder(wanted.model, wanted.revision, "student.model")

    @cached_property
    def vectors(self) -> str | None:
        """Digest of the word vectors that rows are augmented with."""
        augment = self.recipe.data.augment
        path = augment.vectors if augment else None
        return sha256_file(path) if path is not None and path.is_file() else None

    @property
    def search_contents(self) -> dict[str, str | None]:
        """Digest of the search that chose the files."""
        search = self.search
        return {} if search is None else {"quantize.budget": sha256_json(search.model_dump(mode="json"))}

    @property
    def form_settings(self) -> dict[str, object]:
        """The form of the files, where it is not text only."""
        form = self.recipe.export.form
        return {} if form in (None, TEXT_ONLY) else {"export": {"form": form}}

    @cached_property
    def form_contents(self) -> dict[str, str | None]:
        """Digests of the file of entities that the recipe names, and of the table that they are taken from."""
        form, path = self.recipe.export.form, self.recipe.export.entities
        tables = [n for f in self.model.family.forms if f.name == form for n in f.files]
        places = [(n, p) for n in tables for p in sorted(self.model.path.glob(f"**/{n}")) if p.is_file()]
        own = [("export.entities", path)] if path is not None and path.is_file() else []
        return {name: sha256_file(p) for name, p in (*places, *own)}

    def stage_contents(self, number: int) -> dict[str, str | None]:
        """Digests of the file of word vectors and of the generator that a stage names."""
        stage, out = self.recipe.distill[number], dict[str, str | None]()
        vectors, generator = getattr(stage, "vectors", None), getattr(stage, "generator", None)
        if vectors is not None:
            out[f"distill.{number}.vectors"] = sha256_file(vectors) if vectors.is_file() else None
        if generator is not None:
            opened = open_model_folder(generator.model, generator.revision, f"distill.{number}.generator.model")
            out[f"distill.{number}.generator.model"] = opened.digest
        return out

    @cached_property
    def ready_digests(self) -> dict[str, str]:
        """Digest of each file that is used instead of exporting anew."""
        return {name: sha256_path(path) for name, path in self.ready.items()}

    @cached_property
    def length(self) -> int:
        """Longest input in tokens."""
        return max_length(self.recipe.data, self.model, task_of(self.recipe.task))

    @property
    def attention_settings(self) -> dict[str, object]:
        """What attention in the files is over, where the recipe sets it; the folders of weights have it in config.json."""
        chosen = self.recipe.export.attention
        return {} if chosen is None else {"export": {"attention": chosen}}

    @property
    def answer_settings(self) -> object:
        """What decides a trained model in `answer`: how sure an answer is comes into play after training."""
        return without(dumped(self.recipe.answer), *SURE)

    @property
    def student_settings(self) -> dict[str, object]:
        """Settings that decide the student in every stage."""
        recipe = self.recipe
        return {
            "task": recipe.task,
            "seed": recipe.seed,
            "student": self._student,
            "answer": self.answer_settings,
            **self.attention_settings,
        }

    @property
    def _student(self) -> object:
        """The student's section as it decides weights: without limits, and as before where all pieces stay."""
        section = dumped(self.recipe.student)
        if isinstance(section, dict) and section["vocabulary"] is None:
            return without(section, "vocabulary")
        return without(section, *LIMITS)

    @property
    def student_contents(self) -> dict[str, str | None]:
        """Digest of the model that the student starts from, where the recipe names one."""
        return {"student.model": self.start.digest if self.start else None}

    @cached_property
    def heads(self) -> str | None:
        """Heads that several general stages share, which the later ones decide too; None where one stage decides all."""
        if sum(stage.general for stage in self.recipe.distill) < 2:
            return None
        require("train")
        return head_wanted(self.recipe).head

    def check_exported(self) -> None:
        """Refuse a model that no file can be written of, or that cannot teach or be pruned, before it is trained."""
        wanted = self.recipe.student
        if self.recipe.distill:
            check_taught(self.model.family, self.model.config, "teacher.model")
        if wanted is not None and wanted.init == "pruned":
            assert wanted.intermediate is not None, "the section has checked it"
            source = self.start or self.model
            check_pruned(source.family, source.config, wanted.intermediate)
        if wanted is not None and wanted.vocabulary is not None:
            check_vocabulary(self.model)
        if wanted is not None and wanted.size is not None:
            return  # a MobileBERT, whatever its teacher is
        where, family = "teacher.model", self.model.family
        if self.start is not None:
            where, family = "student.model", self.start.family
        elif wanted is not None:
            where = "student.family"
            family = next((f for f in all_families() if f.name == wanted.family), family)
        check_exported(family, where)

    def export_settings(self, format: Format) -> dict[str, object]:
        """Settings that decide the fp32 files of a format."""
        own = place_of(format).settings(self.recipe)
        export = {"lengths": self.recipe.export.lengths, **cast(dict[str, object], own.pop("export", {}))}
        return {"export": export, "data": {"max_length": self.length}, **own}

    def ready_contents(self, format: Format) -> dict[str, str | None]:
        """Digests of the files of a format that are used instead of exporting anew."""
        return {name: digest for name, digest in self.ready_digests.items() if name.startswith(f"{format}/")}

    @property
    def export_gates(self) -> dict[str, object]:
        """Settings that only judge an exported file."""
        return {"export": {"atol": self.recipe.export.atol}}


SURE = ("temperature", "unknown")
"""Keys of `answer` that decide neither weights nor files."""
NO_RESULT = ("checkpoint", "max_line_mb", "max_rows")
"""Keys that do not change a result, in any section."""


def dumped(section: BaseModel | None) -> object:
    """A section as it decides a result: how often a checkpoint is written and how much may be read do not.

    Args:
        section: A part of a recipe, if there is one.
    """
    return without(section.model_dump(mode="json"), *NO_RESULT) if section is not None else None


def without(value: object, *keys: str) -> object:
    """Nested sections without some keys.

    Args:
        value: Sections, or lists of them.
        keys: What to leave out wherever it is.
    """
    if isinstance(value, dict):
        return {k: without(v, *keys) for k, v in value.items() if k not in keys}
    return [without(v, *keys) for v in value] if isinstance(value, list) else value
