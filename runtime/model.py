"""Open an artefact folder for prediction: text in, answers out.

`load` chooses a file of the folder (by scheme, format or path, or the fastest of several), checks that it is the listed one and
that this machine computes it right, and returns a `Model`. `Model.predict` tokenizes texts, runs them in batches and makes
answers from the outputs; each file's outputs are divided by its own temperature, and labels below its threshold are marked as
unknown. `check_texts` refuses texts that a task does not take.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pocketbert.core.artefacts import (
    Artefacts,
    FileRecord,
    ModelRecord,
    check_label_names,
    find_artefact_folder,
    find_unsafe_entry,
    read_artefacts,
    read_checked_config,
)
from pocketbert.core.data.examples import unlabelled_example
from pocketbert.core.disk.files import path_bytes, sha256_path
from pocketbert.core.errors import GateError, InputError, MissingBackendError, PocketBertError, Problem, suggest_allowed
from pocketbert.core.families.config import CONFIG_FILE
from pocketbert.core.formats import FORMATS
from pocketbert.core.heads import Head, Prepared
from pocketbert.core.predict.answers import Answer, mark_unknown_answers
from pocketbert.core.predict.inputs import Text
from pocketbert.core.predict.predictor import (
    PROBABILITIES,
    Batching,
    Matrix,
    Predictor,
    Reduce,
    check_outputs,
    run_rows,
)
from pocketbert.core.predict.scores import apply_temperature
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import TASKS, Task, TaskName
from pocketbert.core.types import Format, Scheme, Status
from pocketbert.runtime.engines import EngineFile, FilePredictor
from pocketbert.runtime.fastest import FastestPredictor, open_fastest
from pocketbert.runtime.race import Cadence
from pocketbert.runtime.selftest import self_test

_BATCH = 32
"""Rows at once: larger batches gain nothing on a CPU and cost memory."""
_SLACK = 0.0
"""Share of padding allowed in a batch. Rows of equal length are plenty in any larger input."""
_COPY_AGAIN = "Copy the folder again."


def load(
    folder: str | Path,
    scheme: str | None = None,
    threads: int | None = None,
    *,
    format: str | None = None,
    engine: str | None = None,
    file: str | None = None,
    cadence: str | None = None,
) -> Model:
    """Open an artefact folder for prediction.

    Args:
        folder: The folder that `pocketbert export` wrote, or the run folder of `pocketbert run`, which holds one.
        scheme: ``int8``, ``fp32``, ...; default that of the variant marked as default.
        threads: Threads; default all cores this process may use.
        format: ``onnx``, ``tflite`` or ``coreml``; default that of the variant marked as default.
        engine: ``"fastest"`` for the fastest of the scheme's files at each length: measured once, in 10 to 60 seconds, on
            this machine, then remembered. None for the one engine of the file.
        file: Path of one file of the folder, instead of scheme and format.
        cadence: With the engine ``"fastest"``: ``"batch"`` (the default) measures calls right after one another,
            ``"interactive"`` measures single calls after 100 ms of idle time, as in an app in which a user types.

    Returns:
        A model whose `predict` takes texts.

    Raises:
        InputError: If the folder is no artefact folder, is incomplete, or has no such variant.
        GateError: If this machine computes the file wrongly, or the file failed its gates.
        MissingBackendError: If nothing here runs files of that format.
    """
    path = find_artefact_folder(Path(folder))
    artefacts = read_artefacts(path)
    if engine not in (None, "fastest"):
        what = f"'{engine}' is unknown; known: fastest."
        raise InputError(Problem("engine", what, "Choose a file by format and scheme."))
    cadences = [c.value for c in Cadence]
    if cadence is not None and cadence not in cadences:
        raise InputError(Problem("cadence", f"'{cadence}' is unknown; {suggest_allowed(cadence, cadences)}."))
    if cadence is not None and engine is None:
        raise InputError(Problem("cadence", "only engine 'fastest' measures for a cadence.", "Add engine='fastest'."))
    if engine == "fastest":
        if format is not None or file is not None:
            raise InputError(Problem("engine", "'fastest' chooses the format and the file itself.", "Leave them out."))
        return _load_fastest(path, artefacts, scheme, threads, Cadence(cadence or Cadence.BATCH))
    record = _choose_file(artefacts, scheme, format, file)
    digest = _check_file(path, record)
    predictor = EngineFile(path / record.path, record.format, record.runtime).open(threads)
    table_rows = _check_description(path, artefacts)
    model = Model(path, artefacts, record, predictor)
    _check_token_ids(path, model.tokenizer, table_rows)
    self_test(predictor, model.tokenizer, path, record, model.head.task, digest)
    return model


def _load_fastest(path: Path, artefacts: Artefacts, scheme: str | None, threads: int | None, cadence: Cadence) -> Model:
    """Open a folder with the engine `fastest`: check the scheme's files, time them, and open the fastest."""
    default = _choose_file(artefacts, scheme, None, None)
    records = [
        r for r in artefacts.models() if r.for_toolkit and FORMATS[r.format].timed and _has_scheme(r, default, scheme)
    ]
    if not records:
        what = f"'fastest' finds no file like {default.path} that is run by its own engine here."
        raise InputError(Problem("engine", what, "Leave it out."))
    max_length, refused = artefacts.processing.max_length, list[PocketBertError]()
    predictors: dict[EngineFile, FilePredictor] = {}
    first: ModelRecord | None = None
    table_rows = _check_description(path, artefacts)
    tokenizer, task = TextTokenizer(path, max_length), TASKS[artefacts.task]
    _check_token_ids(path, tokenizer, table_rows)
    for record in records:
        digest = _check_file(path, record)
        file = EngineFile(path / record.path, record.format, record.runtime)
        try:
            predictor = file.open(threads)
            check_outputs(predictor, task, file.path)
            self_test(predictor, tokenizer, path, record, task, digest)
        except (MissingBackendError, GateError) as error:
            refused.append(error)
            continue
        except InputError as error:
            if record.plain:
                raise
            refused.append(error)  # the file is the listed one: its runtime cannot run it here, the others may
            continue
        predictors[file], first = predictor, first or record
    if first is None:
        raise refused[0]
    pad_id, side = tokenizer.pad_id, tokenizer.padding_side
    chosen = open_fastest([*predictors], threads, max_length, pad_id, side, predictors, cadence)
    return Model(path, artefacts, first, chosen)


def _choose_file(artefacts: Artefacts, scheme: str | None, format: str | None, file: str | None) -> ModelRecord:
    """Return the record of the file that path, scheme and format name; by default the folder's default file.

    Raises:
        InputError: If the folder has none, naming the nearest ones that it has.
    """
    models = artefacts.models()
    if file is not None:
        at_path = [r for r in models if r.path == file]
        if at_path and scheme is None and format is None:
            return at_path[0]
        why = f"no model file '{file}' in the folder; {suggest_allowed(file, [r.path for r in models])}"
        raise InputError(Problem("file", why if not at_path else "names a file already; leave scheme and format out"))
    default = artefacts.default_model()
    scheme_name, format_name = scheme or default.scheme, format or default.format
    same_format = [r for r in models if r.plain and r.format == format_name]
    for record in [*(r for r in same_format if r.scheme == scheme_name), *same_format]:
        if _has_scheme(record, default, scheme):
            return record
    problems = []
    if scheme is not None and scheme not in [str(r.scheme) for r in models]:
        known = ", ".join(s.value for s in Scheme)
        names = list(dict.fromkeys(str(r.scheme) for r in models))
        problems.append(
            Problem(
                "scheme",
                f"no '{scheme}' file in the folder; {suggest_allowed(scheme, names)}. PocketBERT knows: {known}.",
            )
        )
    if format is not None and format not in [str(r.format) for r in models]:
        names = list(dict.fromkeys(str(r.format) for r in models))
        problems.append(Problem("format", f"no '{format}' file in the folder; {suggest_allowed(format, names)}."))
    available = ", ".join(f"{r.format} {r.scheme}" for r in models if r.plain)
    both = Problem("scheme", f"the folder has no {format_name} {scheme_name}; it has {available}.")
    raise InputError(problems or [both])


def _has_scheme(record: ModelRecord, default: ModelRecord, scheme: str | None) -> bool:
    """Return whether a file has the named scheme or, without a name, one equivalent to the default file's."""
    if scheme is None and record.runtime is not None:  # its scheme is what that runtime is fast with
        return default.scheme not in (Scheme.FP32, FORMATS[default.format].base)
    if scheme is None:
        return record.scheme in _equivalent_schemes(default, record.format)
    known = scheme in {s.value for s in Scheme}
    return record.scheme == scheme or (known and record.scheme == FORMATS[record.format].instead.get(Scheme(scheme)))


def _equivalent_schemes(default: ModelRecord, format: Format) -> set[Scheme]:
    """Return what another format calls the default file's scheme: int8 is w8 in Core ML, its fp16 is fp32 elsewhere."""
    scheme, info = default.scheme, FORMATS[default.format]
    if scheme in (Scheme.FP32, info.base):
        return {Scheme.FP32, FORMATS[format].base}
    requested = {scheme, *(name for name, written in info.instead.items() if written is scheme)}
    return {FORMATS[format].instead.get(name, name) for name in requested}


def _check_file(path: Path, record: FileRecord) -> str:
    """Check existence, size and sha256 of a file against the folder's list, before an engine opens it.

    Returns:
        Its digest, which the self-test needs anyway.
    """
    if isinstance(record, ModelRecord) and record.status is Status.FAILED:
        raise GateError([f"{record.path} is marked failed in {path}; it was never meant to be used."])
    file = path / record.path
    if not file.exists():
        raise InputError(Problem(str(file), "listed, but not there.", _COPY_AGAIN))
    if (why := find_unsafe_entry(path, record.path)) is not None:
        raise InputError(Problem(str(file), f"{why}.", _COPY_AGAIN))
    if (size := path_bytes(file)) != record.bytes:
        what = f"{size:,} bytes, the folder's list says {record.bytes:,}."
        raise InputError(Problem(str(file), what, _COPY_AGAIN))
    if (digest := sha256_path(file)) != record.sha256:
        what = "changed since it was packed: its sha256 is not the listed one."
        raise InputError(Problem(str(file), what, _COPY_AGAIN))
    return digest


def _check_description(path: Path, artefacts: Artefacts) -> int | None:
    """Check tokenizer, padding id and label names of a folder against its list of files.

    Returns:
        Rows of the model's embedding table; None where config.json has no such number.
    """
    for record in artefacts.files:
        if record.path in ("tokenizer.json", CONFIG_FILE):
            _check_file(path, record)
    config = read_checked_config(path, artefacts)
    check_label_names(path, artefacts, config)
    table_rows: int | None = config.get("vocab_size") if config else None
    return table_rows


def _check_token_ids(path: Path, tokenizer: TextTokenizer, table_rows: int | None) -> None:
    """Raise InputError if the tokenizer has ids beyond the embedding table, which would crash the engine."""
    largest = tokenizer.largest_id
    if table_rows is not None and largest >= table_rows:
        what = f"its largest token id is {largest:,}, the model has {table_rows:,} rows: it belongs to another model."
        raise InputError(Problem(f"{path}/tokenizer.json", what, _COPY_AGAIN))


class Model:
    """An artefact folder opened for prediction; `load` opens one."""

    def __init__(self, folder: Path, artefacts: Artefacts, record: ModelRecord, predictor: Predictor) -> None:
        self.folder, self.artefacts, self.record, self.predictor = folder, artefacts, record, predictor
        self._head = artefacts.head()
        self._temperatures = {folder / r.path: r.temperature for r in artefacts.models()}
        self._thresholds = {folder / r.path: artefacts.unknown_below(r) for r in artefacts.models()}
        max_length = artefacts.processing.max_length
        check_outputs(predictor, self._head.task, folder / record.path)
        self.tokenizer = TextTokenizer(folder, min(max_length, max(predictor.lengths, default=max_length)))

    def __repr__(self) -> str:
        facts = [f"{self.artefacts.name!r}", self.task, f"file={self.file!r}"]
        facts += [f"{len(self.labels)} labels"] if self.labels else []
        return f"<Model {', '.join(facts)}, max_length={self.max_length}, folder={str(self.folder)!r}>"

    @property
    def task(self) -> str:
        """What the model does, such as ``text-classification``."""
        return self._head.task.name

    @property
    def file(self) -> str:
        """Path of the model file in the folder; with the engine `fastest`, of the first of those that take turns."""
        return self.record.path

    @property
    def choice(self) -> str:
        """With the engine `fastest`, a sentence on which file is fastest here and the others' times; else empty."""
        return self.predictor.choice(self.folder) if isinstance(self.predictor, FastestPredictor) else ""

    @property
    def max_length(self) -> int:
        """Most tokens of an input; of a longer text the end is not read, and the answer is marked as truncated."""
        return self.tokenizer.max_length

    @property
    def labels(self) -> list[str]:
        """Label names in order of their ids."""
        return self.artefacts.labels

    @property
    def head(self) -> Head:
        """The task's head: how raw outputs become answers."""
        return self._head

    @property
    def prompts(self) -> dict[str, str]:
        """Texts that can be put in front of a text, by name; empty where the model has none."""
        return dict(self.artefacts.processing.prompts)

    def outputs(self, texts: Sequence[Text], label: str = "", prompt: str | None = None) -> list[Matrix]:
        """Compute the raw outputs (logits or states) of texts, without padding.

        Args:
            texts: N texts or pairs; the task decides which.
            label: Text of the progress bar; empty for none.
            prompt: Name of the prompt in front of each; default the folder's own, empty for none.

        Returns:
            One matrix per row that the model reads: [1, labels] of classifiers, [tokens, labels] where tokens are
            labelled, [tokens, 2] for question-answering, which reads a long context in several rows.
        """
        return self._run(self._prepare(texts, prompt), label)

    def predict(self, texts: Sequence[Text] | str, progress: str = "", prompt: str | None = None) -> list[Answer]:
        """Predict an answer for each text.

        Args:
            texts: Texts, or pairs as tuples; a single string is one text. Question-answering takes (question, context). Where the
                folder's files have further inputs, each text needs its columns: `pocketbert.with_columns`.
            progress: Text of the progress bar; empty for none.
            prompt: Name of the prompt in front of each text, one of `prompts`; default the folder's own, empty for none.

        Returns:
            One answer per text, in order: `pocketbert.core.predict.answers` has one class per task.

        Raises:
            InputError: If the texts are not what the task takes, or no prompt has that name.
        """
        rows: list[Text] = [texts] if isinstance(texts, str) else list(texts)
        if not rows:
            return []
        prepared = self._prepare(rows, prompt)
        predictor, own_file = self.predictor, self.folder / self.record.path
        file_by_row: dict[int, Path] = {}
        inside = PROBABILITIES in predictor.outputs  # a file for MediaPipe computes the score function itself

        def at_temperature(row: int, outputs: Matrix) -> Matrix:
            file_by_row[row] = predictor.answered if isinstance(predictor, FastestPredictor) else own_file
            return apply_temperature(outputs, self._temperatures.get(file_by_row[row], 1.0), inside)

        answers = self._head.answers(self._run(prepared, progress, at_temperature), prepared, inside)
        if all(threshold is None for threshold in self._thresholds.values()):
            return [*answers]
        return mark_unknown_answers(answers, [self._thresholds.get(file_by_row[row]) for row in range(len(answers))])

    def _prepare(self, texts: Sequence[Text], prompt: str | None) -> Prepared:
        """Check texts, put the prompt in front and tokenize them."""
        tokenizer = self.tokenizer.with_prompt(prompt)
        check_texts(self._head.task, texts)
        if self.tokenizer.reader is not None:
            self.tokenizer.reader.check(texts)
        examples = [unlabelled_example(text, row) for row, text in enumerate(texts, 1)]
        return self._head.prepare(examples, tokenizer, "texts", labelled=False)

    def _run(self, prepared: Prepared, label: str, reduce: Reduce | None = None) -> list[Matrix]:
        """Run tokenized rows in batches; return one output matrix per row."""
        task, batching = self._head.task, Batching(_BATCH, _SLACK)
        out = run_rows(self.predictor, self.tokenizer, prepared.encoded, task, batching, label, reduce=reduce)
        width = out[0].shape[1] if out else None
        if width is not None and task.name is TaskName.REGRESSION and width != 1:
            what = f"answers {width} numbers, regression is one."
            raise InputError(Problem(str(self.folder / self.record.path), what, _COPY_AGAIN))
        if width is not None and task.names_labels and width != len(self.labels):
            what = f"answers {width} numbers, the folder lists {len(self.labels)} labels."
            raise InputError(Problem(str(self.folder / self.record.path), what, _COPY_AGAIN))
        return out


def check_texts(task: Task, texts: Sequence[Text]) -> None:
    """Raise InputError for anything but texts or pairs, and for pairs or single texts that the task does not take.

    Raises:
        InputError: Naming the first that does not fit.
    """
    for number, text in enumerate(texts, 1):
        parts = [text] if isinstance(text, str) else list(text) if isinstance(text, tuple | list) else []
        if len(parts) not in (1, 2) or not all(isinstance(part, str) for part in parts):
            what = f"is {type(text).__name__}, neither a text nor a pair of texts."
            raise InputError(Problem(f"text {number}", what, "Give a list of texts, or of pairs (first, second)."))
        if task.pairs_only and isinstance(text, str):
            what = f"{task.name} takes a question and a context, this is one text."
            fix = "Give a pair: (question, context); on the command line --text-pair."
            raise InputError(Problem(f"text {number}", what, fix))
        if task.single_only and not isinstance(text, str):
            what = f"{task.name} takes one text, this is a pair."
            raise InputError(Problem(f"text {number}", what, "Give each text by itself."))
