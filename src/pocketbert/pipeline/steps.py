"""The steps of a recipe: their order, what decides the result of each, and what each reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from pydantic import BaseModel

from pocketbert.core.disk.files import sha256_file, sha256_json, sha256_path
from pocketbert.core.families import all_families, check_exported
from pocketbert.core.formats import FORMATS
from pocketbert.core.models.folder import ModelFolder, open_model_folder
from pocketbert.core.recipe.recipe import CorpusSource, Recipe
from pocketbert.core.tasks import task_of
from pocketbert.core.types import Format, Runtime
from pocketbert.pipeline.formats.model_files import quantized_step
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
        quantized: Writes the smaller files of a format.
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
    quantized: Callable[[Format, Places], Sequence[str]]
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
    """

    def __init__(self, recipe: Recipe, ready: Mapping[str, Path]) -> None:
        self.recipe, self.ready = recipe, ready

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

    def export_settings(self, format: Format) -> dict[str, object]:
        """Settings that decide the fp32 files of a format."""
        section = self.recipe.export
        export: dict[str, object] = {"lengths": section.lengths}
        settings: dict[str, object] = {"export": export, "data": {"max_length": self.length}}
        if format is Format.ONNX:
            export["opset"] = section.opset
        if format is Format.TFLITE:
            export["clients"] = section.clients
        if format is Format.COREML:
            export["coreml"] = _dump(section.coreml)
        if format is not Format.ONNX:
            settings |= {"name": self.recipe.name, "description": self.recipe.description}
        return settings

    def ready_contents(self, format: Format) -> dict[str, str | None]:
        """Digests of the files of a format that are used instead of exporting anew."""
        return {name: sha256_path(path) for name, path in self.ready.items() if name.startswith(f"{format}/")}

    @property
    def export_gates(self) -> dict[str, object]:
        """Settings that only judge an exported file."""
        return {"export": {"atol": self.recipe.export.atol}}


def steps_of(inputs: Inputs, make: Makers) -> list[Step]:
    """All steps of a recipe, in order.

    Args:
        inputs: What decides them.
        make: What makes them.

    Raises:
        InputError: If a model cannot be opened, or rows cannot be augmented.
    """
    recipe = inputs.recipe
    if recipe.data.augment is not None:
        check_augmentable(recipe, inputs.model)
    learned = [*_data_steps(inputs, make), _teacher_step(inputs, make)]
    if recipe.student is not None:
        learned.append(_student_step(inputs, make))
    written = [s for format in recipe.export.formats for s in _format_steps(inputs, make, format, learned[-1].name)]
    return [*learned, *written, *_check_steps(inputs, make, written), *_last_steps(inputs, make, written)]


def _data_steps(inputs: Inputs, make: Makers) -> list[Step]:
    """The rows, and the corpus of general stages."""
    recipe = inputs.recipe
    section = recipe.data.model_dump(mode="json", exclude={"corpus", "augment"})
    data = Step(
        name="data",
        title="data",
        output="data.json",
        settings={"task": recipe.task, "data": {**section, "max_length": inputs.length}},
        contents={
            "data.train": data_digest(recipe.data.train),
            "data.eval": data_digest(recipe.data.eval),
            "teacher.model": inputs.model.digest,
        },
        needs=(),
        make=make.data,
        libraries=("tokenizers",),
    )
    if recipe.data.corpus is None:
        return [data]
    sources = {f"data.corpus.sources.{i}": _source_content(s) for i, s in enumerate(recipe.data.corpus.sources)}
    corpus = Step(
        name=CORPUS,
        title="corpus",
        output=CORPUS,
        settings={"data": {"corpus": _dump(recipe.data.corpus)}},
        contents={**sources, "the teacher's tokenizer.json": sha256_file(inputs.model.path / "tokenizer.json")},
        needs=(),
        make=make.corpus,
        libraries=("tokenizers", "pyarrow"),
    )
    return [data, corpus]


def _source_content(source: CorpusSource) -> str | None:
    """Digest of a source of plain text, whether it is a file or a prepared corpus."""
    prepared = source_digest(source)
    return data_digest(source) if prepared is None else sha256_json(prepared)


def _teacher_step(inputs: Inputs, make: Makers) -> Step:
    recipe = inputs.recipe
    return Step(
        name="teacher",
        title=f"teacher {recipe.teacher.model}",
        output="teacher",
        settings={
            "task": recipe.task,
            "seed": recipe.seed,
            "teacher": {"finetune": _dump(recipe.teacher.finetune)},
            "answer": _dump(recipe.answer),
            "the teacher's licence": inputs.model.licence,
        },
        contents={"teacher.model": inputs.model.digest},
        needs=("data",),
        make=make.teacher,
        libraries=_TRAIN,
        trains=recipe.teacher.finetune is not None,
    )


def _student_step(inputs: Inputs, make: Makers) -> Step:
    recipe = inputs.recipe
    return Step(
        name="student",
        title="student",
        output="student",
        settings={
            "student": _dump(recipe.student),
            "distill": [_dump(s) for s in recipe.distill],
            "seed": recipe.seed,
            "answer": _dump(recipe.answer),
            "data": {"augment": _dump(recipe.data.augment)},
        },
        contents={
            "data.augment.vectors": inputs.vectors,
            "student.model": inputs.start.digest if inputs.start else None,
        },
        needs=("teacher",) if recipe.data.corpus is None else ("teacher", CORPUS),
        make=make.student,
        libraries=_TRAIN,
        trains=True,
    )


def _format_steps(inputs: Inputs, make: Makers, format: Format, weights: str) -> list[Step]:
    """The files of a format, and the smaller ones that are made of them; `weights` is the step that trained the model."""
    recipe, row = inputs.recipe, FORMATS[format]
    steps = [
        Step(
            name=format.value,
            title=f"export to {row.title}",
            output=format.value,
            settings=inputs.export_settings(format),
            contents=inputs.ready_contents(format),
            gates=inputs.export_gates,
            needs=(weights,),
            make=partial(make.export, format),
            libraries=exporting.libraries(format),
        )
    ]
    scheme = row.smaller(recipe.quantize.scheme)
    if scheme is not None:
        name = quantized_step(format, scheme)
        runtimes = [t for t in recipe.quantize.targets if t in row.runtimes]
        settings: dict[str, object] = {"quantize": {"scheme": scheme, "targets": runtimes}}
        if Runtime.OPENVINO in runtimes:
            settings["rows for calibration"] = CALIBRATION_ROWS
        steps.append(
            Step(
                name=name,
                title=f"quantize {row.title} to {scheme}",
                output=name,
                settings=settings,
                needs=(format.value,),
                make=partial(make.quantized, format),
                libraries=row.libraries,
            )
        )
    return steps


def _engines(recipe: Recipe) -> tuple[str, ...]:
    """Libraries that run the files."""
    own = [t.value for t in recipe.quantize.targets if t is Runtime.OPENVINO]
    return tuple(dict.fromkeys([*(e for f in recipe.export.formats for e in FORMATS[f].engines), *own]))


def _check_steps(inputs: Inputs, make: Makers, written: Sequence[Step]) -> list[Step]:
    """Golden rows of all files that were written, and the gates."""
    recipe, engines = inputs.recipe, _engines(inputs.recipe)
    return [
        Step(
            name="golden",
            title="golden rows",
            output="golden",
            settings={"golden rows": golden.ROWS},
            needs=tuple(s.name for s in written),
            make=make.golden,
            libraries=engines,
        ),
        Step(
            name="verify",
            title="verify",
            output="verify.json",
            settings={},
            gates={"verify": _dump(recipe.verify)},
            needs=("golden",),
            make=make.verify,
            libraries=engines,
        ),
    ]


def _last_steps(inputs: Inputs, make: Makers, written: Sequence[Step]) -> list[Step]:
    """The benchmark with the teacher's file where the recipe has one, and the artefact folder."""
    recipe, steps, read = inputs.recipe, list[Step](), ["verify"]
    if measuring.is_timed(recipe):
        measured = [s.name for s in written]  # the gates decide whether it is done, not what is measured
        if recipe.student is not None and inputs.model.family.instead_of_export is None:
            steps.append(_teacher_file_step(inputs, make))
            measured.append(steps[0].name)
        steps.append(
            Step(
                name="benchmark",
                title="benchmark",
                output="benchmark.json",
                settings={"benchmark": _dump(recipe.benchmark), "export": {"lengths": recipe.export.lengths}},
                needs=tuple(measured),
                make=make.benchmark,
                libraries=_engines(recipe),
            )
        )
        read.append("benchmark")
    return [*steps, _pack_step(recipe, make, tuple(read))]


def _teacher_file_step(inputs: Inputs, make: Makers) -> Step:
    file = measuring.teacher_file(inputs.recipe)
    return Step(
        name=file.step,
        title="export the teacher to compare with",
        output=file.step,
        settings=inputs.export_settings(file.format),
        contents=inputs.ready_contents(file.format),
        gates=inputs.export_gates,
        needs=("teacher",),
        make=make.teacher_file,
        libraries=exporting.libraries(file.format),
    )


def _pack_step(recipe: Recipe, make: Makers, needs: tuple[str, ...]) -> Step:
    """The artefact folder: it holds the whole recipe, of which the gates' settings decide no other file."""
    sections = portable(recipe).model_dump(mode="json", by_alias=True)
    atol = sections["export"].pop("atol")
    gates = {"verify": sections.pop("verify"), "export": {"atol": atol}}
    settings = _without(sections, "checkpoint")
    assert isinstance(settings, dict)
    return Step(
        name="pack",
        title="pack",
        output="phone",
        settings=settings,
        gates=gates,
        needs=needs,
        make=make.pack,
    )


def _dump(section: BaseModel | None) -> object:
    """A section as it decides a result: how often a checkpoint is written does not."""
    return _without(section.model_dump(mode="json"), "checkpoint") if section is not None else None


def _without(value: object, key: str) -> object:
    if isinstance(value, dict):
        return {k: _without(v, key) for k, v in value.items() if k != key}
    return [_without(v, key) for v in value] if isinstance(value, list) else value
