"""The steps of a recipe: their order, what decides the result of each, and what each reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import cast

from pydantic import BaseModel

from pocketbert.core.artefacts import BudgetSearch
from pocketbert.core.disk.files import sha256_file, sha256_json, sha256_path
from pocketbert.core.errors import InputError
from pocketbert.core.families import TEXT_ONLY, all_families, check_exported, check_pruned, check_taught
from pocketbert.core.formats import FORMATS
from pocketbert.core.models.folder import ModelFolder, open_model_folder
from pocketbert.core.recipe.data import CorpusSource
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.recipe.student import LIMITS
from pocketbert.core.tasks import task_of
from pocketbert.core.types import Calibration, Format, Scheme
from pocketbert.pipeline.doctor import require
from pocketbert.pipeline.formats.base import check_bounds, place_of, quantized_forms, quantized_step
from pocketbert.pipeline.formats.weight_roles import role_problems
from pocketbert.pipeline.learn.augmenting import check_augmentable
from pocketbert.pipeline.learn.corpora import head_wanted, source_digest
from pocketbert.pipeline.learn.data import CALIBRATION_ROWS, max_length
from pocketbert.pipeline.learn.quantized import check_clipping
from pocketbert.pipeline.learn.vocabulary import check_vocabulary
from pocketbert.pipeline.make import golden, library, measuring
from pocketbert.pipeline.make import model_files as exporting
from pocketbert.pipeline.make import model_files as simulating
from pocketbert.pipeline.phone.pack import portable
from pocketbert.pipeline.reference import open_teacher, say_row
from pocketbert.pipeline.run_folder import Places, Step, data_digest

# --- inputs ---
# What decides the steps of a recipe: settings by recipe key, and digests of the models and files that are read.


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


_TRAIN = ("torch", "transformers", "tokenizers", "accelerate", "numpy")
CORPUS, AUGMENTED, VOCABULARY = "corpus", "augmented", "vocabulary"

Make = Callable[[Places], Sequence[str]]
"""Writes the output of a step; returns gate failures."""


@dataclass(frozen=True)
class Makers:
    """The functions that make the steps.

    Attributes:
        data: Reads and checks the rows.
        vocabulary: Chooses the pieces that the student keeps, and writes its tokenizer.
        corpus: Writes the corpora of general stages.
        teacher: Trains or copies the teacher.
        copies: Writes copies of the training rows in which words are replaced.
        stage: Trains the student in one stage of `distill`, by its number.
        student: Scores the student that the last stage left and writes its folder.
        export: Writes the files of a format.
        quantized: Writes a format's files of one scheme.
        golden: Records golden rows.
        verify: Puts all files through the gates.
        teacher_file: Exports the teacher to compare with.
        benchmark: Measures the files.
        pack: Writes the artefact folder.
    """

    data: Make
    vocabulary: Make
    corpus: Make
    teacher: Make
    copies: Make
    stage: Callable[[int, Places], Sequence[str]]
    student: Make
    export: Callable[[Format, Places], Sequence[str]]
    quantized: Callable[[Format, Scheme, Places], Sequence[str]]
    golden: Make
    verify: Make
    teacher_file: Make
    benchmark: Make
    pack: Make


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
    if problems := role_problems(recipe):
        raise InputError(problems)
    check_clipping(recipe, inputs.model)
    if recipe.data.augment is not None:
        check_augmentable(recipe, inputs.model)
    learned = [*_data_steps(inputs, make), *_vocabulary_step(inputs, make), _teacher_step(inputs, make)]
    if recipe.student is not None:
        learned += [*_copies_step(inputs, make), *_stage_steps(inputs, make), _student_step(inputs, make)]
    written = [s for format in recipe.export.formats for s in _format_steps(inputs, make, format, learned[-1].name)]
    return [*learned, *written, *_check_steps(inputs, make, written), *_last_steps(inputs, make, written)]


def _data_steps(inputs: Inputs, make: Makers) -> list[Step]:
    """The rows, and the corpus of general stages."""
    recipe = inputs.recipe
    section = recipe.data.model_dump(mode="json", exclude={"corpus", "augment", "selection"})
    data = Step(
        name="data",
        title="data",
        output="data.json",
        settings={"task": recipe.task, "data": without({**section, "max_length": inputs.length}, *NO_RESULT)},
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
        settings={"data": {"corpus": dumped(recipe.data.corpus)}},
        contents={**sources, "the teacher's tokenizer.json": inputs.model.tokenizer_digest},
        needs=(),
        make=make.corpus,
        libraries=("tokenizers", "pyarrow"),
    )
    return [data, corpus]


def _vocabulary_step(inputs: Inputs, make: Makers) -> list[Step]:
    """The pieces that the student keeps; before the teacher, since nothing needs to be trained to judge them."""
    recipe = inputs.recipe
    section = recipe.student.vocabulary if recipe.student is not None else None
    if section is None:
        return []
    content = section.model_dump(mode="json")
    return [
        Step(
            name=VOCABULARY,
            title="the student's vocabulary",
            output=VOCABULARY,
            settings={"student": {"vocabulary": {k: v for k, v in content.items() if k in ("at_least", "top")}}},
            contents={"teacher.model": inputs.model.digest},
            gates={"student": {"vocabulary": {k: v for k, v in content.items() if k in LIMITS}}},
            needs=("data",),
            make=make.vocabulary,
            libraries=("tokenizers",),
        )
    ]


def _source_content(source: CorpusSource) -> str | None:
    """Digest of a source of plain text, whether it is a file or a prepared corpus."""
    prepared = source_digest(source)
    return data_digest(source) if prepared is None else sha256_json(prepared)


def _teacher_step(inputs: Inputs, make: Makers) -> Step:
    recipe = inputs.recipe
    as_it_is = recipe.student is None and recipe.teacher.finetune is None
    return Step(
        name="teacher",
        title=f"{'model' if as_it_is else 'teacher'} {recipe.teacher.model}",
        output="teacher",
        settings={
            "task": recipe.task,
            "seed": recipe.seed,
            "teacher": {"finetune": dumped(recipe.teacher.finetune)},
            "answer": inputs.answer_settings,
            **inputs.attention_settings,
            "the teacher's licence": inputs.model.licence,
            **inputs.form_settings,
        },
        contents={"teacher.model": inputs.model.digest, **inputs.form_contents},
        needs=("data",),
        make=make.teacher,
        libraries=_TRAIN,
        trains=recipe.teacher.finetune is not None,
    )


def _copies_step(inputs: Inputs, make: Makers) -> list[Step]:
    """The copies of training rows that stages with ``augmented: true`` learn on; none where no stage does."""
    recipe = inputs.recipe
    if recipe.data.augment is None:
        return []
    return [
        Step(
            name=AUGMENTED,
            title="augmented rows",
            output=AUGMENTED,
            settings={"seed": recipe.seed, "data": {"augment": dumped(recipe.data.augment)}},
            contents={"data.augment.vectors": inputs.vectors, "teacher.model": inputs.model.digest},
            needs=("data",),
            make=make.copies,
            libraries=_TRAIN,
        )
    ]


def stage_folder(number: int) -> str:
    """Where a stage of `distill` leaves the student, relative to the run folder."""
    return f"distill/{number}"


def _stage_steps(inputs: Inputs, make: Makers) -> list[Step]:
    """A step for each entry of `distill`; a general one reads the text and the model, not the task's teacher."""
    recipe, steps = inputs.recipe, list[Step]()
    own = [s.name for s in _vocabulary_step(inputs, make)]
    for number, stage in enumerate(recipe.distill):
        settings = {**inputs.student_settings, "distill": {str(number): dumped(stage)}}
        contents = dict(inputs.student_contents)
        if stage.exported_format is not None:
            settings |= {"files that it trains for": inputs.export_settings(stage.exported_format), **_ranges(recipe)}
        if stage.general:
            contents |= {"teacher.model": inputs.model.digest, **inputs.stage_contents(number)}
            if inputs.heads is not None:
                settings["heads that the general stages train"] = inputs.heads
        needs = (CORPUS,) if stage.general else ("teacher", *([AUGMENTED] if stage.on_augmented else []), *own)
        steps.append(
            Step(
                name=f"distill.{number}",
                title=f"distill.{number}, method {stage.method}",
                output=stage_folder(number),
                settings=settings,
                contents=contents,
                needs=(*needs, *(s.name for s in steps[-1:])),
                make=partial(make.stage, number),
                libraries=_TRAIN,
                trains=True,
            )
        )
    return steps


def _student_step(inputs: Inputs, make: Makers) -> Step:
    own = [s.name for s in _vocabulary_step(inputs, make)]
    return Step(
        name="student",
        title="student",
        output="student",
        settings=inputs.student_settings,
        contents=inputs.student_contents,
        needs=("teacher", f"distill.{len(inputs.recipe.distill) - 1}", *own),
        make=make.student,
        libraries=_TRAIN,
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
    for scheme, runtimes in quantized_forms(recipe, format).items():
        name = quantized_step(format, scheme)
        chosen = {runtime: recipe.quantize.of(format, scheme, runtime).chosen for runtime in runtimes}
        settings: dict[str, object] = {"quantize": {"scheme": scheme, "runtimes": runtimes, **chosen[runtimes[0]]}}
        if others := {str(r): c for r, c in chosen.items() if c != chosen[runtimes[0]]}:
            settings["choices for other runtimes"] = others
        if scheme.static:
            settings |= {"rows for calibration": CALIBRATION_ROWS, **_ranges(recipe)}
        steps.append(
            Step(
                name=name,
                title=f"quantize {row.title} to {scheme}",
                output=name,
                settings=settings,
                needs=(format.value,),
                make=partial(make.quantized, format, scheme),
                libraries=row.libraries,
            )
        )
    return steps


def _ranges(recipe: Recipe) -> dict[str, object]:
    """How static files choose ranges, where it is not the default."""
    method = recipe.quantize.calibration
    return {} if method is Calibration.MINMAX else {"quantize.calibration": method}


def _engines(recipe: Recipe) -> tuple[str, ...]:
    """Libraries that run the files."""
    own = [f.runtime.own_engine for f in recipe.quantize.wanted if f.runtime and f.runtime.own_engine]
    return tuple(dict.fromkeys([*(e for f in recipe.export.formats for e in FORMATS[f].engines), *own]))


def _check_steps(inputs: Inputs, make: Makers, written: Sequence[Step]) -> list[Step]:
    """Golden rows of all files that were written, and the gates."""
    recipe, engines, share = inputs.recipe, _engines(inputs.recipe), inputs.recipe.data.selection
    divided: dict[str, object] = {} if share is None else {"data": {"selection": share}}
    return [
        Step(
            name="golden",
            title="golden rows",
            output="golden",
            settings={
                "golden rows": golden.ROWS,
                "simulated texts": simulating.TEXTS,
                "texts for the library": library.VERSION,
            },
            needs=tuple(s.name for s in written),
            make=make.golden,
            libraries=engines,
        ),
        Step(
            name="verify",
            title="verify",
            output="verify.json",
            settings=divided,
            gates={"verify": dumped(recipe.verify), "answer": recipe.answer.model_dump(mode="json", include={*SURE})},
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
                settings={"benchmark": dumped(recipe.benchmark), "export": {"lengths": recipe.export.lengths}},
                needs=tuple(measured),
                make=make.benchmark,
                libraries=_engines(recipe),
            )
        )
        read.append("benchmark")
    return [*steps, _pack_step(inputs, make, tuple(read))]


def _teacher_file_step(inputs: Inputs, make: Makers) -> Step:
    file = measuring.teacher_file(inputs.recipe)
    return Step(
        name=file.step,
        title="export the teacher, to compare latencies with it",
        output=file.step,
        settings=inputs.export_settings(file.format),
        contents=inputs.ready_contents(file.format),
        gates=inputs.export_gates,
        needs=("teacher",),
        make=make.teacher_file,
        libraries=exporting.libraries(file.format),
    )


def _pack_step(inputs: Inputs, make: Makers, needs: tuple[str, ...]) -> Step:
    """The artefact folder: it holds the whole recipe, of which the gates' settings decide no other file."""
    sections = portable(inputs.recipe).model_dump(mode="json", by_alias=True)
    sure = {key: sections["answer"].pop(key) for key in SURE}
    gates = {"verify": sections.pop("verify"), "export": {"atol": sections["export"].pop("atol")}, "answer": sure}
    student = sections["student"] or {}
    if (pieces := student.pop("vocabulary", None)) is not None:
        gates["student"] = {"vocabulary": {key: pieces.pop(key) for key in LIMITS}}
        student["vocabulary"] = pieces
    settings = without(sections, *NO_RESULT)
    assert isinstance(settings, dict)
    return Step(
        name="pack",
        title="pack",
        output="phone",
        settings=settings,
        contents=inputs.search_contents,
        gates=gates,
        needs=needs,
        make=make.pack,
    )
