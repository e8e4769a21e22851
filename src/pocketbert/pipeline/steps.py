"""The steps of a recipe: their order, what decides the result of each, and what each reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from pydantic import BaseModel

from pocketbert.core.disk.files import sha256_file, sha256_path
from pocketbert.core.families import all_families, check_exported
from pocketbert.core.formats import FORMATS
from pocketbert.core.models.folder import ModelFolder, open_model_folder
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.tasks import task_of
from pocketbert.core.types import Format, Scheme
from pocketbert.pipeline.formats.model_files import quantized_forms, quantized_step
from pocketbert.pipeline.formats.place import place_of
from pocketbert.pipeline.formats.recipe_files import check_bounds
from pocketbert.pipeline.learn.augmenting import check_augmentable
from pocketbert.pipeline.learn.corpora import source_digest
from pocketbert.pipeline.learn.data import CALIBRATION_ROWS, max_length
from pocketbert.pipeline.make import exporting, golden, measuring
from pocketbert.pipeline.phone.pack import portable
from pocketbert.pipeline.run_folder import Places, Step, data_digest

_TRAIN = ("torch", "transformers", "tokenizers", "accelerate", "numpy")
CORPUS = "corpus"

Make = Callable[[Places], Sequence[str]]
"""Writes the output of a step; returns gate failures."""


@dataclass(frozen=True)
class Makers:
    """The functions that make the steps.

    Attributes:
        data: Reads and checks the rows.
        corpus: Writes the corpora of general stages.
        teacher: Trains or copies the teacher.
        student: Trains the student.
        export: Writes the files of a format.
        quantized: Writes a format's files of one scheme.
        golden: Records golden rows.
        verify: Puts all files through the gates.
        teacher_file: Exports the teacher to compare with.
        benchmark: Measures the files.
        pack: Writes the artefact folder.
    """

    data: Make
    corpus: Make
    teacher: Make
    student: Make
    export: Callable[[Format, Places], Sequence[str]]
    quantized: Callable[[Format, Scheme, Places], Sequence[str]]
    golden: Make
    verify: Make
    teacher_file: Make
    benchmark: Make
    pack: Make


class Inputs:
    """What decides the steps of a recipe; models are opened when they are first asked for.

    Args:
        recipe: What to do.
        ready: fp32 files of the same model to use instead of exporting anew, by path in the artefact folder.
        model: The model the recipe starts from, where the caller opened it already.
    """

    def __init__(
        self, recipe: Recipe, ready: Mapping[str, Path] | None = None, model: ModelFolder | None = None
    ) -> None:
        self.recipe, self.ready = recipe, dict(ready or {})
        if model is not None:
            self.model = model

    @cached_property
    def model(self) -> ModelFolder:
        """The model the recipe starts from."""
        return open_model_folder(self.recipe.teacher.model, self.recipe.teacher.revision, "teacher.model")

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

    @cached_property
    def ready_digests(self) -> dict[str, str]:
        """Digest of each file that is used instead of exporting anew."""
        return {name: sha256_path(path) for name, path in self.ready.items()}

    @cached_property
    def length(self) -> int:
        """Longest input in tokens."""
        return max_length(self.recipe.data, self.model, task_of(self.recipe.task))

    def check_exported(self) -> None:
        """Refuse a model that no file can be written of before it is trained."""
        wanted = self.recipe.student
        if wanted is not None and wanted.size is not None:
            return  # a MobileBERT, whatever its teacher is
        where, family = "teacher.model", self.model.family
        if self.start is not None:
            where, family = "student.model", self.start.family
        elif wanted is not None:
            where = "student.family"
            family = next((f for f in all_families() if f.name == wanted.family), family)
        check_exported(family, where)

    def export_settings(self, format: Format) -> object:
        """Settings that decide the fp32 files of a format."""
        section = self.recipe.export
        common: dict[str, object] = {"atol": section.atol, "lengths": section.lengths, "length": self.length}
        common |= place_of(format).settings(self.recipe)
        ready = {name: digest for name, digest in self.ready_digests.items() if name.startswith(f"{format}/")}
        return {**common, "ready": ready}


def steps_of(inputs: Inputs, make: Makers) -> list[Step]:
    """All steps of a recipe, in order.

    Args:
        inputs: What decides them.
        make: What makes them.

    Raises:
        InputError: If a model cannot be opened, rows cannot be augmented, or a file of the recipe has no bounds.
    """
    recipe = inputs.recipe
    check_bounds(recipe)
    if recipe.data.augment is not None:
        check_augmentable(recipe, inputs.model)
    learned = [*_data_steps(inputs, make), _teacher_step(inputs, make)]
    if recipe.student is not None:
        learned.append(_student_step(inputs, make))
    written = [s for format in recipe.export.formats for s in _format_steps(inputs, make, format, learned[-1].name)]
    return [*learned, *written, *_check_steps(inputs, make, written), *_last_steps(inputs, make)]


def _data_steps(inputs: Inputs, make: Makers) -> list[Step]:
    """The rows, and the corpus of general stages."""
    recipe = inputs.recipe
    data = {
        "settings": recipe.data.model_dump(mode="json", exclude={"corpus", "augment"}),
        "train": data_digest(recipe.data.train),
        "eval": data_digest(recipe.data.eval),
        "length": inputs.length,
        "model": inputs.model.digest,
    }
    steps = [Step("data", "data", "data.json", data, (), make.data, ("tokenizers",))]
    if recipe.data.corpus is not None:
        section = recipe.data.corpus
        settings = {
            "section": _dump(section),
            "tokenizer": sha256_file(inputs.model.path / "tokenizer.json"),
            "sources": [[data_digest(s), source_digest(s)] for s in section.sources],
        }
        steps.append(Step(CORPUS, "corpus", CORPUS, settings, (), make.corpus, ("tokenizers", "pyarrow")))
    return steps


def _teacher_step(inputs: Inputs, make: Makers) -> Step:
    recipe = inputs.recipe
    settings = {
        "task": recipe.task,
        "model": inputs.model.digest,
        "licence": inputs.model.licence,
        "seed": recipe.seed,
        "finetune": _dump(recipe.teacher.finetune),
        "answer": _dump(recipe.answer),
    }
    return Step(
        "teacher",
        f"teacher {recipe.teacher.model}",
        "teacher",
        settings,
        ("data",),
        make.teacher,
        _TRAIN,
        trains=recipe.teacher.finetune is not None,
    )


def _student_step(inputs: Inputs, make: Makers) -> Step:
    recipe = inputs.recipe
    settings = {
        "student": _dump(recipe.student),
        "distill": [_dump(s) for s in recipe.distill],
        "seed": recipe.seed,
        "answer": _dump(recipe.answer),
        "augment": _dump(recipe.data.augment),
        "vectors": inputs.vectors,
        "start": inputs.start.digest if inputs.start else None,
    }
    needs = ("teacher",) if recipe.data.corpus is None else ("teacher", CORPUS)
    return Step("student", "student", "student", settings, needs, make.student, _TRAIN, trains=True)


def _format_steps(inputs: Inputs, make: Makers, format: Format, weights: str) -> list[Step]:
    """The files of a format, and the smaller ones that are made of them; `weights` is the step that trained the model."""
    recipe, row = inputs.recipe, FORMATS[format]
    steps = [
        Step(
            format.value,
            f"export to {row.title}",
            format.value,
            inputs.export_settings(format),
            (weights,),
            partial(make.export, format),
            exporting.libraries(format),
        )
    ]
    for scheme, runtimes in quantized_forms(recipe, format).items():
        name = quantized_step(format, scheme)
        settings: dict[str, object] = {"scheme": scheme, "runtimes": runtimes}
        if scheme.static:
            settings["calibration"] = CALIBRATION_ROWS
        steps.append(
            Step(
                name,
                f"quantize {row.title} to {scheme}",
                name,
                settings,
                (format.value,),
                partial(make.quantized, format, scheme),
                row.libraries,
            )
        )
    return steps


def _engines(recipe: Recipe) -> tuple[str, ...]:
    """Libraries that run the files."""
    own = [f.runtime.own_engine for f in recipe.quantize.wanted if f.runtime and f.runtime.own_engine]
    return tuple(dict.fromkeys([*(e for f in recipe.export.formats for e in FORMATS[f].engines), *own]))


def _check_steps(inputs: Inputs, make: Makers, written: Sequence[Step]) -> list[Step]:
    """Golden rows of all files that were written, and the gates."""
    recipe, engines = inputs.recipe, _engines(inputs.recipe)
    needs = tuple(s.name for s in written)
    return [
        Step("golden", "golden rows", "golden", golden.ROWS, needs, make.golden, engines),
        Step("verify", "verify", "verify.json", _dump(recipe.verify), ("golden",), make.verify, engines),
    ]


def _last_steps(inputs: Inputs, make: Makers) -> list[Step]:
    """The benchmark with the teacher's file where the recipe has one, and the artefact folder."""
    recipe, steps, before = inputs.recipe, [], ["verify"]
    if measuring.is_timed(recipe):
        needs = ["verify"]
        if recipe.student is not None and inputs.model.family.instead_of_export is None:
            first = measuring.teacher_file(recipe).format
            name = measuring.teacher_file(recipe).step
            steps.append(
                Step(
                    name,
                    "export the teacher to compare with",
                    name,
                    inputs.export_settings(first),
                    ("teacher",),
                    make.teacher_file,
                    exporting.libraries(first),
                )
            )
            needs.append(name)
        settings, engines = _dump(recipe.benchmark), _engines(recipe)
        steps.append(Step("benchmark", "benchmark", "benchmark.json", settings, (*needs,), make.benchmark, engines))
        before.append("benchmark")
    steps.append(Step("pack", "pack", "phone", _dump(portable(recipe)), (*before,), make.pack, ()))
    return steps


def _dump(section: BaseModel | None) -> object:
    """A section as it decides a result: how often a checkpoint is written does not."""
    return _without(section.model_dump(mode="json"), "checkpoint") if section is not None else None


def _without(value: object, key: str) -> object:
    if isinstance(value, dict):
        return {k: _without(v, key) for k, v in value.items() if k != key}
    return [_without(v, key) for v in value] if isinstance(value, list) else value
