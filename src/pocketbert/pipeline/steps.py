"""The steps of a recipe, in the order of a run: what decides the result of each, what it reads, and how it is made.

`RunSteps.steps` lists them. Each ``_NAME_step`` method names the settings and file contents that decide a step, and the
``_make_NAME`` method after it writes the step's output. How the work is done is in `learn`, `make`, `gates` and `phone`.

    data, corpus               rows and plain text
    transfer, vocabulary       texts that the teacher will label, and the pieces that the student keeps
    teacher                    trained, or copied
    augmented                  copies of training rows with replaced words
    distill.N                  the student after each stage
    student                    scored
    onnx, onnx-int8, ...       exported files of each format, and the quantized files made from them
    golden, verify             recorded answers, and the gates
    onnx-teacher, benchmark    latencies
    pack                       the artefact folder ``phone``
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.disk.files import copy_path, sha256_json, sha256_path, write_json
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import TEXT_ONLY
from pocketbert.core.formats import FORMATS
from pocketbert.core.host.progress import print_note
from pocketbert.core.models.folder import ModelFolder
from pocketbert.core.predict.inputs import Text
from pocketbert.core.predict.predictor import TorchPredictor
from pocketbert.core.predict.scores import Score
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.tasks import LabelKind
from pocketbert.core.types import Format, Scheme
from pocketbert.pipeline.formats.base import (
    ModelFile,
    RunModel,
    check_bounds,
    check_file_sizes,
    choose_default_file,
    exported_source,
    open_model_in_run,
    open_run_model,
    quantized_schemes,
    quantized_step,
)
from pocketbert.pipeline.formats.weight_roles import find_role_problems
from pocketbert.pipeline.gates.checks import count_confusions
from pocketbert.pipeline.gates.confidence import confidence_of_recipe
from pocketbert.pipeline.gates.verify import open_run_files, read_evidence, report_gates, verify_files
from pocketbert.pipeline.inputs import Inputs, drop_resultless_keys, section_settings
from pocketbert.pipeline.learn import training
from pocketbert.pipeline.learn.augmenting import check_augmentable, write_copies
from pocketbert.pipeline.learn.corpora import source_digest, write_corpora
from pocketbert.pipeline.learn.data import CALIBRATION_ROWS, RunData, calibration_rows, load_data
from pocketbert.pipeline.learn.diagnosing import write_diagnosis
from pocketbert.pipeline.learn.finishing import EVAL, HOLDOUT, LabelledRows, head_with, read_training
from pocketbert.pipeline.learn.quantized import check_clipping
from pocketbert.pipeline.learn.training import Learning
from pocketbert.pipeline.learn.transfer import TRANSFER, mixes_transfer, transfer_contents, transfer_step
from pocketbert.pipeline.learn.validation import divides_training_rows, scored_by_default_up_to
from pocketbert.pipeline.learn.vocabulary import VOCABULARY, check_own_tokens, vocabulary_step
from pocketbert.pipeline.make import golden, library, measuring, model_files
from pocketbert.pipeline.options import CONFIDENCE_KEYS
from pocketbert.pipeline.phone import pack
from pocketbert.pipeline.phone.pack import Origin
from pocketbert.pipeline.reference import load_reference_model, model_title
from pocketbert.pipeline.results import Verification
from pocketbert.pipeline.run_folder import RunFolder, Step, StepPaths, data_digest
from pocketbert.pipeline.student_steps import AUGMENTED, CORPUS, TRAIN, list_student_steps, stage_folder

_BENCHMARK_TEXTS = 100


class RunSteps:
    """Builds the list of steps of one recipe in one run folder, and does the work of each.

    Args:
        recipe: The recipe.
        folder: The run folder.
        inputs: Models and files of the recipe, if the caller has opened them already.
        data: Rows of the recipe, if the caller has read them already.
    """

    trained: Mapping[str, Path] = MappingProxyType({})
    """Students that stages need not train, by the stage's output: folders with what the stage would write."""

    def __init__(
        self, recipe: Recipe, folder: RunFolder, inputs: Inputs | None = None, data: RunData | None = None
    ) -> None:
        self.recipe, self.folder, self.path = recipe, folder, folder.path
        self.inputs = inputs or Inputs(recipe)
        self.ready, self._has_recorded = self.inputs.ready, False
        if data is not None:
            self.data = data

    @property
    def model(self) -> ModelFolder:
        """The model that the recipe starts from."""
        return self.inputs.model

    @cached_property
    def data(self) -> RunData:
        """The recipe's rows. They are read once, and only if a step needs them."""
        return load_data(self.recipe, self.model)

    @property
    def length(self) -> int:
        """Longest input in tokens."""
        return self.inputs.length

    @property
    def weights(self) -> Path:
        """Folder of the model that is exported."""
        return self.path / ("student" if self.recipe.student else "teacher")

    @cached_property
    def exported(self) -> RunModel:
        """The model that is exported, opened from its folder. An earlier step must have written the folder."""
        return open_run_model(self.recipe, self.path, self.weights, self.length)

    @cached_property
    def reference(self) -> TorchPredictor:
        """The exported model in torch. Files of every format are compared with its outputs."""
        return load_reference_model(self.exported.folder, self.exported.task)

    @property
    def files(self) -> Sequence[ModelFile]:
        """The model files that the recipe asks for. An earlier step must have written the model that is exported."""
        return self.exported.files

    def texts(self, rows: int = golden.ROWS) -> list[Text]:
        """Return up to `rows` texts or text pairs of the evaluation data as inputs of the task; none without data."""
        return self.data.texts(rows, TextTokenizer(self.model.tokenizer_folder, self.length))

    def steps(self) -> list[Step]:
        """Check the recipe and return its steps in the order in which they run.

        Raises:
            InputError: If a model cannot be opened, rows cannot be augmented, or the recipe asks for files that cannot
                be made, such as with a scheme for which there are no error bounds.
        """
        recipe = self.recipe
        if recipe.student is not None and recipe.student.auto is not None:
            what = "is chosen by whole runs only: pocketbert run RECIPE."
            raise InputError(Problem("student.auto", what, "Give the student layers, e.g. student: {layers: 3}."))
        check_bounds(recipe)
        if recipe.student is None:  # else `Inputs.check_exported` estimates the student's size
            check_file_sizes(recipe, self.model.fp32_bytes)
        if problems := find_role_problems(recipe):
            raise InputError(problems)
        check_clipping(recipe, self.model)
        if self.inputs.start is not None and recipe.distill:
            check_own_tokens(recipe, self.model, self.inputs.start, self.length)
        if recipe.data.augment is not None:
            check_augmentable(recipe, self.model)
        steps = [self._data_step()]
        if recipe.data.corpus is not None:
            steps.append(self._corpus_step())
        if mixes_transfer(recipe):  # before the teacher: a text that cannot be read stops the run before a training
            steps.append(transfer_step(recipe, section_settings(recipe.data.transfer), lambda: self.data))
        if self.recipe.prunes_vocabulary:  # before the teacher: nothing needs to be trained to judge it
            steps.append(vocabulary_step(self.recipe, self.model, lambda: self.data, self.path / TRANSFER))
        steps.append(self._teacher_step())
        if recipe.student is not None:
            if recipe.data.augment is not None:
                steps.append(self._copies_step())
            steps += list_student_steps(self.inputs, self._seeds, self._make_stage, self._make_student)
        trained = steps[-1].name
        files = [step for format in recipe.export.formats for step in self._format_steps(format, trained)]
        written = tuple(step.name for step in files)
        steps += [*files, self._golden_step(written), self._verify_step()]
        if measuring.is_benchmarked(recipe):
            teacher_file = list[str]()
            if recipe.student is not None and recipe.asks_model and self.model.family.instead_of_export is None:
                steps.append(self._teacher_file_step())
                teacher_file = [steps[-1].name]
            # the gates decide whether files are measured, not what is measured
            steps += [self._benchmark_step((*written, *teacher_file)), self._pack_step(("verify", "benchmark"))]
        else:
            steps.append(self._pack_step(("verify",)))
        return steps

    # --- rows and text ---

    def _data_step(self) -> Step:
        """Return the step that reads and checks the rows and writes a report on them to ``data.json``."""
        recipe = self.recipe
        section = recipe.data.model_dump(mode="json", exclude={"corpus", "augment", "selection", "mix"})
        if section["transfer"] is None or mixes_transfer(recipe):
            del section["transfer"]  # read by a step of its own
        if recipe.data.validation is None:  # a run without them was made before they existed
            del section["validation"]
        reach = scored_by_default_up_to(recipe)
        return Step(
            name="data",
            title="data",
            output="data.json",
            settings={
                **self.inputs.task_settings(),
                "data": drop_resultless_keys({**section, "max_length": self.length}),
                **(self.inputs.training_settings() if recipe.teacher.finetune or recipe.distill else {}),
                **({"seed": recipe.seed} if "transfer" in section else {}),
                **({"rows that choose a seed": True} if recipe.training.seeds > 1 else {}),
                **({"rows that overlap with held-out texts": "left out"} if divides_training_rows(recipe) else {}),
                **({"training rows of which some validate": reach} if reach is not None else {}),
            },
            contents={
                "data.train": data_digest(recipe.data.train),
                "data.eval": data_digest(recipe.data.eval),
                "data.validation": data_digest(recipe.data.validation),
                "teacher.model": self.model.digest,
                **self.inputs.head_model_digests,
                **({} if mixes_transfer(recipe) else transfer_contents(recipe)),
            },
            needs=(),
            make=self._make_data,
            libraries=("tokenizers",),
        )

    def _make_data(self, at: StepPaths) -> Sequence[str]:
        """Read the rows, and print and write a report on them. Without rows only the label names are written."""
        report = self.data.report
        for line in report.lines() if report else ():
            print_note(f"  {line}")
        content = json.loads(report.model_dump_json()) if report else {"labels": list(self.data.labels.names)}
        write_json(at.output, content)
        return ()

    def _corpus_step(self) -> Step:
        """Return the step that tokenizes the plain text on which general stages (those without the task's rows) train."""
        corpus = self.recipe.data.corpus
        assert corpus is not None
        sources = {f"data.corpus.sources.{i}": source_digest(s) for i, s in enumerate(corpus.sources)}
        return Step(
            name=CORPUS,
            title="corpus",
            output=CORPUS,
            settings={"data": {"corpus": section_settings(corpus)}},
            contents={**sources, "the teacher's tokenizer.json": self.model.tokenizer_digest},
            needs=(),
            make=self._make_corpus,
            libraries=("tokenizers", "pyarrow"),
            trains=True,  # by all processes
        )

    def _make_corpus(self, at: StepPaths) -> Sequence[str]:
        assert self.recipe.data.corpus is not None
        write_corpora(self.recipe.data.corpus, self.model.tokenizer_folder, at.output)
        return ()

    # --- teacher and student ---

    def _teacher_step(self) -> Step:
        """Return the step that fine-tunes the teacher, or copies it with its labels in the order of the data."""
        recipe, form = self.recipe, self.recipe.export.form
        return Step(
            name="teacher",
            title=f"{model_title(recipe)} {recipe.teacher.model}",
            output="teacher",
            settings={
                **self.inputs.task_settings(),
                "seed": recipe.seed,
                "teacher": {"finetune": section_settings(recipe.teacher.finetune)},
                "answer": self.inputs.answer_settings(),
                **self.inputs.attention_settings(),
                **(self.inputs.training_settings() if recipe.teacher.finetune else {}),
                "the teacher's licence": self.model.licence,
                **({} if form in (None, TEXT_ONLY) else {"export": {"form": form}}),
            },
            contents={"teacher.model": self.model.digest, **self.inputs.entity_digests},
            needs=("data",),
            make=lambda at: training.make_teacher(recipe, self.model, self.data, self.length, at),
            libraries=TRAIN,
            trains=recipe.teacher.finetune is not None,
        )

    def _copies_step(self) -> Step:
        """Return the step that writes copies of training rows with replaced words, for augmented stages."""
        recipe = self.recipe
        return Step(
            name=AUGMENTED,
            title="augmented rows",
            output=AUGMENTED,
            settings={"seed": recipe.seed, "data": {"augment": section_settings(recipe.data.augment)}},
            contents={"data.augment.vectors": self.inputs.vectors_digest, "teacher.model": self.model.digest},
            needs=("data",),
            make=self._make_copies,
            libraries=TRAIN,
        )

    def _make_copies(self, at: StepPaths) -> Sequence[str]:
        write_copies(self.recipe, self.model, self.data, at.work, at.output)
        return ()

    @property
    def _seeds(self) -> range:
        """Seeds of the student's trainings."""
        return range(self.recipe.seed, self.recipe.seed + self.recipe.training.seeds)

    def _make_stage(self, number: int, seed: int, at: StepPaths) -> Sequence[str]:
        """Train the student in a stage with one seed, or copy it where it has been trained already."""
        ready = self.trained.get(stage_folder(self.recipe, number, seed))
        if ready is not None:
            for path in ready.iterdir():
                copy_path(path, at.output / path.name)
            return ()
        before = self.path / stage_folder(self.recipe, number - 1, seed) if number else None
        return training.make_stage(self.learning(seed), number, before, at)

    def _make_student(self, at: StepPaths) -> Sequence[str]:
        """Score and write the trained student (of several seeds the best on validation rows), with a diagnosis."""
        last = len(self.recipe.distill) - 1
        trained = {s: (self.learning(s), self.path / stage_folder(self.recipe, last, s)) for s in self._seeds}
        scores = training.compare_seeds(trained) if len(trained) > 1 else ()
        chosen = next((score.seed for score in scores if score.chosen), self.recipe.seed)
        training.make_student(*trained[chosen], at, scores)
        write_diagnosis(self.recipe, self.data, self.path / "teacher", at.output, self.length)
        return ()

    def learning(self, seed: int) -> Learning:
        """Return the recipe, rows and folders that a training stage reads, with `seed` as the recipe's seed.

        The object is new for each stage, so that no model stays in memory.
        """
        return Learning(
            self.recipe.model_copy(update={"seed": seed}),
            self.model,
            self.path / "teacher",
            self.data.with_head_answers(self.recipe, self.path / "teacher"),
            self.length,
            self.path / CORPUS,
            self.path / AUGMENTED,
            self.path / VOCABULARY,
            self.path / TRANSFER if mixes_transfer(self.recipe) else None,
        )

    # --- model files ---

    def _format_steps(self, format: Format, trained: str) -> list[Step]:
        """Return the step that exports to a format, and a step for each quantization scheme of that format.

        Args:
            format: The format.
            trained: Name of the step that wrote the exported model.
        """
        recipe, info = self.recipe, FORMATS[format]
        export = Step(
            name=format.value,
            title=f"export to {info.title}",
            output=format.value,
            settings=self.inputs.export_settings(format),
            contents=self.inputs.ready_digests(format),
            gates={"export": {"atol": recipe.export.atol}},
            needs=(trained,),
            make=partial(self._make_export, format),
            libraries=model_files.export_libraries(format),
        )
        steps = [export]
        for scheme, runtimes in quantized_schemes(recipe, format).items():
            name = quantized_step(format, scheme)
            chosen = {runtime: recipe.quantize.of(format, scheme, runtime).chosen for runtime in runtimes}
            first = chosen[runtimes[0]]
            settings: dict[str, object] = {"quantize": {"scheme": scheme, "runtimes": runtimes, **first}}
            if others := {str(runtime): choice for runtime, choice in chosen.items() if choice != first}:
                settings["choices for other runtimes"] = others
            if scheme.static:
                settings |= {"rows for calibration": CALIBRATION_ROWS, **self.inputs.calibration_settings()}
            step = Step(
                name=name,
                title=f"quantize {info.title} to {scheme}",
                output=name,
                settings=settings,
                needs=(format.value,),
                make=partial(self._make_quantized, format, scheme),
                libraries=info.libraries,
            )
            steps.append(step)
        return steps

    def _make_export(self, format: Format, at: StepPaths) -> Sequence[str]:
        files = [file for file in self.files if file.step == format.value]
        return model_files.make_export(self.exported, self.reference, files, self.texts(), at.output, self.ready)

    def _make_quantized(self, format: Format, scheme: Scheme, at: StepPaths) -> Sequence[str]:
        files = self.files
        pairs = [(exported_source(f, files), f) for f in files if f.step == quantized_step(format, scheme)]
        return model_files.make_quantized(self.exported, pairs, at.output, self._calibration_batches)

    def _calibration_batches(self) -> list[dict[str, NDArray[np.int64]]]:
        """Tokenize the calibration rows and return each as a batch of its own, so that padding affects no range."""
        tokenizer = TextTokenizer(self.weights, self.length)
        return [tokenizer.pad([row]) for row in calibration_rows(self.recipe, self.data, tokenizer)]

    # --- gates ---

    def _golden_step(self, written: tuple[str, ...]) -> Step:
        """Return the step that records golden rows: texts with the outputs of the torch model and of all files.

        Args:
            written: Names of the steps that write the files.
        """
        return Step(
            name="golden",
            title="golden rows",
            output="golden",
            settings={
                "golden rows": golden.ROWS,
                "simulated texts": model_files.TEXTS,
                "texts for the library": library.VERSION,
            },
            needs=written,
            make=self._make_golden,
            libraries=self._engines(),
        )

    def _make_golden(self, at: StepPaths) -> Sequence[str]:
        """Write what gates compare with: library outputs, simulated errors, golden (recorded) rows; return failures."""
        model, files, reference = self.exported, self.files, self.reference
        rows, answers = golden.answer_golden_rows(model, reference, self.texts(golden.SEARCHED), files)
        self._record_library(reference, at)
        texts, calibration = self.texts(model_files.TEXTS), self._calibration_batches
        if failures := model_files.make_simulated(model, reference, texts, rows, at.output, files, calibration):
            return failures
        del reference, self.reference  # last come the files: engines that open large ones need the torch model's memory
        failures = golden.record_golden_rows(model, rows, answers, at.output, files)
        self._has_recorded = not failures
        return failures

    def _record_library(self, reference: TorchPredictor, at: StepPaths) -> None:
        """Write the outputs that transformers or sentence-transformers computes from the model's folder.

        Files are checked against them. The folder is the original one if nothing was trained, else that of the trained
        model.
        """
        recipe = self.recipe
        as_it_is = recipe.student is None and recipe.teacher.finetune is None
        chosen = recipe.data.max_length is not None or recipe.data.train is not None or recipe.data.eval is not None
        source, length = self.model if as_it_is else self.exported.folder, self.length if chosen else None
        library.make_library(self.exported, source, length, reference.model, at.output)

    def _verify_step(self) -> Step:
        """Return the step that checks all model files against golden rows and bounds, and writes ``verify.json``."""
        share = self.recipe.data.selection
        answer = self.recipe.answer.model_dump(mode="json", include={*CONFIDENCE_KEYS})
        return Step(
            name="verify",
            title="verify",
            output="verify.json",
            settings={} if share is None else {"data": {"selection": share}},
            gates={"verify": section_settings(self.recipe.verify), "answer": answer},
            needs=("golden",),
            make=self._make_verify,
            libraries=self._engines(),
        )

    def _make_verify(self, at: StepPaths) -> Sequence[str]:
        result = self.verify()
        write_json(at.output, json.loads(result.model_dump_json()))
        report_gates(result)
        return result.failures

    def verify(self) -> Verification:
        """Run all checks on the model files of the run folder and return the result."""
        # labelled rows that no step was made on and that chose no file, tokenized by the tokenizer that is packed
        sets = [self.labelled.named(name, self.weights) for name in (EVAL, HOLDOUT)]
        model = self.exported
        evidence = replace(
            read_evidence(self.path / "golden", self.weights, model.tokenizer),
            sets=[rows for rows in sets if rows is not None],
            teacher=self._torch_score(self.path / "teacher"),
            reference=self._torch_score(self.weights),
            labels=self.data.labels.names if self.recipe.task_row.names_labels else None,
            settled=dict.fromkeys((f.path for f in self.files), confidence_of_recipe(self.recipe.answer)),
            selection=self.data.selection,
            head=self.data.head,
        )
        self.__dict__.pop("reference", None)  # the gates load the model again: a converter could have changed this one
        recorded = evidence.golden if self._has_recorded else ()  # files that somebody changed since run all rows
        result = verify_files(open_run_files(model, model.files, recorded), evidence, self.recipe.verify)
        sources = pack.sources(model)
        return result.model_copy(update={"files": {name: sha256_path(path) for name, path in sources.items()}})

    def _torch_score(self, weights: Path) -> Score | None:
        """Return a torch model's score on the rows on which its files are scored; None if there are no such rows."""
        divided = self.recipe.data.selection is not None
        return self.labelled.torch_score(EVAL, weights) if divided else read_training(weights).score

    @property
    def labelled(self) -> LabelledRows:
        """The labelled rows that no weight was trained on."""
        data = self.data.with_head_answers(self.recipe, self.path / "teacher")
        return LabelledRows(self.recipe, data, self.path, self.length)

    def _engines(self) -> tuple[str, ...]:
        """Return the Python packages of the engines that run the recipe's model files."""
        recipe = self.recipe
        own = [f.runtime.own_engine for f in recipe.quantize.wanted if f.runtime and f.runtime.own_engine]
        return tuple(dict.fromkeys([*(e for f in recipe.export.formats for e in FORMATS[f].engines), *own]))

    # --- benchmark and artefact folder ---

    def _teacher_file_step(self) -> Step:
        """Return the step that exports the teacher, so that its latency and size can be compared with the student's."""
        file = measuring.teacher_file(self.recipe)
        return Step(
            name=file.step,
            title="export the teacher, to compare latencies with it",
            output=file.step,
            settings=self.inputs.export_settings(file.format),
            contents=self.inputs.ready_digests(file.format),
            gates={"export": {"atol": self.recipe.export.atol}},
            needs=("teacher",),
            make=self._make_teacher_file,
            libraries=model_files.export_libraries(file.format),
        )

    def _make_teacher_file(self, at: StepPaths) -> Sequence[str]:
        texts, file = self.texts(), measuring.teacher_file(self.recipe)
        teacher = open_model_in_run(self.recipe, self.path, self.path / "teacher", self.length)
        reference = load_reference_model(teacher.folder, teacher.task)
        return model_files.make_export(teacher, reference, [file], texts, at.output)

    def _benchmark_step(self, measured: tuple[str, ...]) -> Step:
        """Return the step that measures the latencies of model files.

        Args:
            measured: Names of the steps that write the files.
        """
        recipe = self.recipe
        return Step(
            name="benchmark",
            title="benchmark",
            output="benchmark.json",
            settings={"benchmark": section_settings(recipe.benchmark), "export": {"lengths": recipe.export.lengths}},
            needs=measured,
            make=self._make_benchmark,
            libraries=self._engines(),
        )

    def _make_benchmark(self, at: StepPaths) -> Sequence[str]:
        """Measure the latencies of the model files and the teacher's file, and write them to ``benchmark.json``."""
        from pocketbert.benchmarks.text_steps import PostProcessing

        assert self.recipe.benchmark is not None
        variants = measuring.list_run_variants(self.recipe, self.path, self.files, self.weights, self.length)
        options = measuring.section_options(self.recipe.benchmark, self.recipe.export.lengths)
        head = head_with(self.recipe, self.data, read_training(self.weights).thresholds)
        post_processing = {v.path: PostProcessing(head) for v in variants}  # temperatures are not fitted yet
        texts = self.texts(_BENCHMARK_TEXTS)
        measuring.measure(variants, texts, options, root=self.path, post_processing=post_processing).write(at.output)
        return ()

    def _pack_step(self, needs: tuple[str, ...]) -> Step:
        """Return the step that writes the artefact folder ``phone``.

        The folder holds the whole recipe, so its result depends on every key, except keys that only set gates.

        Args:
            needs: Names of the steps whose output it reads.
        """
        settings, gates = self.inputs.pack_settings()
        search = self.inputs.search
        return Step(
            name="pack",
            title="pack",
            output="phone",
            settings=settings,
            contents={} if search is None else {"quantize.budget": sha256_json(search.model_dump(mode="json"))},
            gates=gates,
            needs=needs,
            make=lambda at: pack.make_pack(self.exported, self.data.pair, self.origin, at.output, self.confusions),
        )

    @property
    def origin(self) -> Origin:
        """The digests and library versions that the artefact folder records."""
        steps = self.steps()
        self.folder.hash(steps)
        return Origin(self.model.sha256, self.folder.exact["pack"], tuple(self.folder.accepted_versions(steps)))

    @cached_property
    def confusions(self) -> list[tuple[str, str, int]]:
        """Label pairs (gold, predicted, number of rows) that the packed classifier confuses most on eval; else empty."""
        if self.recipe.task_row.labels is not LabelKind.NAME:
            return []
        rows = self.labelled.named(EVAL, self.weights)
        if rows is None:
            return []
        return count_confusions(
            open_run_files(self.exported, [choose_default_file(self.files)])[0], rows, self.data.labels.names
        )
