"""Open an artefact folder for prediction with `load`, and predict with the `Model` that it returns.

`load` chooses a file of the folder (by scheme, format or path, or the fastest of several), checks that the file is the
listed one and that this machine computes it correctly, and returns a `Model`; `load_callers` returns one for each of
several threads, with which `predict_portions` answers many texts. `Model.predict` tokenizes texts, runs them in batches
and turns the outputs into answers. The outputs of each file are divided by its own temperature, and labels whose
probability is below its threshold are marked as unknown. `check_texts` refuses texts that a task does not take.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, cast

from pocketbert.core.artefacts import (
    ARTEFACTS_FILE,
    FolderListing,
    ListedFile,
    ListedModel,
    find_artefact_folder,
    find_unsafe_entry,
)
from pocketbert.core.disk.files import path_bytes
from pocketbert.core.errors import GateError, InputError, MissingBackendError, PocketBertError, Problem, suggest_allowed
from pocketbert.core.families.config import CONFIG_FILE
from pocketbert.core.formats import FORMATS
from pocketbert.core.heads import Head, Prepared
from pocketbert.core.host.hardware import default_threads
from pocketbert.core.predict.answers import Answer, Value, mark_unknown_answers
from pocketbert.core.predict.examples import unlabelled_example
from pocketbert.core.predict.inputs import ChoiceText, Text
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
from pocketbert.core.tasks import LabelKind, Task, TaskName
from pocketbert.core.types import Format, Scheme
from pocketbert.runtime.engines import EngineFile, FilePredictor
from pocketbert.runtime.remembered import CheckedFiles
from pocketbert.runtime.selftest import self_test

if TYPE_CHECKING:  # few processes choose among engines or read records
    from pocketbert.core.artefacts import Artefacts, ModelRecord
    from pocketbert.runtime.fastest import FastestPredictor

AnyText = Text | ChoiceText
"""Input of a model: a text, a pair of texts, or a question with its choices."""
_BATCH = 32
"""Number of rows in a batch: larger batches gain nothing on a CPU and cost memory."""
_SLACK = 0.0
"""Share of padding allowed in a batch: none, since any larger input has many rows of equal length."""
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
        folder: The folder that `pocketbert export` wrote, or the run folder of `pocketbert run`, which contains one.
        scheme: ``int8``, ``fp32``, ...; default the scheme of the folder's default file.
        threads: Number of threads; default one for each core that this process may use.
        format: ``onnx``, ``tflite`` or ``coreml``; default the format of the folder's default file.
        engine: ``"fastest"`` to run each text with the file of the scheme that is fastest at its length. This is
            measured once on this machine, in 10 to 60 seconds, and the result is stored. None for the engine of one
            file.
        file: Path of one file of the folder, instead of scheme and format.
        cadence: With the engine ``"fastest"``: ``"batch"`` (the default) measures calls right after one another,
            ``"interactive"`` measures single calls after 100 ms of idle time, as in an app in which a user types.

    Returns:
        A model whose `predict` takes texts.

    Raises:
        InputError: If an argument is wrong, or the folder is no artefact folder, is incomplete or changed, or has no such file.
        GateError: If this machine computes the file wrongly, or the file failed its gates (checks) when it was made.
        MissingBackendError: If no engine for files of that format is installed.
    """
    path = find_artefact_folder(Path(folder))
    checked = CheckedFiles(path)
    listing = checked.read_listing()
    if engine not in (None, "fastest"):
        what = f"'{engine}' is unknown; known: fastest."
        raise InputError(Problem("engine", what, "Choose a file by format and scheme."))
    if cadence is not None:
        _check_cadence(cadence)
    if cadence is not None and engine is None:
        raise InputError(Problem("cadence", "only engine 'fastest' measures for a cadence.", "Add engine='fastest'."))
    if engine == "fastest":
        if format is not None or file is not None:
            raise InputError(Problem("engine", "'fastest' chooses the format and the file itself.", "Leave them out."))
        model = _load_fastest(path, listing, checked, scheme, threads, cadence)
        checked.save()
        return model
    record = _choose_file(listing, scheme, format, file)
    digest = _check_file(path, record, checked)
    predictor = EngineFile(path / record.path, record.format, record.runtime).open(threads)
    tokenizer = _check_description(path, listing, checked)
    model = Model(path, listing, record, predictor, tokenizer)
    self_test(predictor, model.tokenizer, path, record, model.head.task, digest, checked.digest)
    checked.save()
    return model


def load_callers(
    folder: str | Path,
    scheme: str | None = None,
    threads: int | None = None,
    callers: int | None = None,
    **choice: str | None,
) -> list[Model]:
    """Open an artefact folder for several threads that call `predict` at the same time: a model for each of them.

    ONNX Runtime's session is shared, so that a model more costs only its tokenizer; with other engines each opens the file again.

    Args:
        folder: See `load`.
        scheme: See `load`.
        threads: Threads of all calls together; default all cores this process may use.
        callers: Number of models; default one for each thread with ONNX Runtime, and one with other engines.
        choice: `format`, `engine`, `file` and `cadence` of `load`.
    """
    total, shared = threads or default_threads(), False
    if choice.get("engine") is None:
        path = find_artefact_folder(Path(folder))
        record = _choose_file(CheckedFiles(path).read_listing(), scheme, choice.get("format"), choice.get("file"))
        shared = EngineFile(path / record.path, record.format, record.runtime).thread_safe
    if callers is None:
        callers = total if shared else 1
    own_threads = max(1, total // callers)
    first = load(folder, scheme, own_threads, **choice)
    others = range(callers - 1)
    return [
        first,
        *(first.copy_for_thread() if shared else load(folder, scheme, own_threads, **choice) for _ in others),
    ]


def predict_portions(
    models: Sequence[Model], portions: Iterable[Sequence[AnyText]], prompt: str | None = None
) -> Iterator[list[Answer]]:
    """Yield the answers to portions of texts, in their order; several models compute a portion each at the same time, in threads.

    At most one portion more than there are models is read ahead; with one model none is, and no thread is started.

    Args:
        models: One or several of a folder: `load_callers`.
        portions: Texts that are answered together; see `Model.predict`.
        prompt: See `Model.predict`.
    """
    if len(models) == 1:
        for portion in portions:
            yield models[0].predict(portion, prompt=prompt)
        return
    from concurrent.futures import Future, ThreadPoolExecutor  # most programs call from a thread of their own

    idle, pending = list(models), deque[Future[list[Answer]]]()

    def answer(portion: Sequence[AnyText]) -> list[Answer]:
        """Answer a portion with a model that no other thread uses; there are as many models as threads."""
        model = idle.pop()
        try:
            return model.predict(portion, prompt=prompt)
        finally:
            idle.append(model)

    threads = ThreadPoolExecutor(len(models), "predict")
    try:
        for portion in portions:
            if len(pending) > len(models):
                yield pending.popleft().result()
            pending.append(threads.submit(answer, portion))
        while pending:
            yield pending.popleft().result()
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


def _check_cadence(cadence: str) -> None:
    """Raise InputError for an unknown cadence."""
    from pocketbert.runtime.race import Cadence  # few processes choose among engines

    cadences = [c.value for c in Cadence]
    if cadence not in cadences:
        raise InputError(Problem("cadence", f"'{cadence}' is unknown; {suggest_allowed(cadence, cadences)}."))


def _load_fastest(
    path: Path,
    listing: FolderListing,
    checked: CheckedFiles,
    scheme: str | None,
    threads: int | None,
    cadence: str | None,
) -> Model:
    """Open a folder with the engine `fastest`: check the scheme's files, time them, and open the fastest ones."""
    from pocketbert.runtime.fastest import open_fastest
    from pocketbert.runtime.race import Cadence

    default = _choose_file(listing, scheme, None, None)
    records = [
        r for r in listing.models if r.for_toolkit and FORMATS[r.format].timed and _has_scheme(r, default, scheme)
    ]
    if not records:
        what = f"'fastest' finds no file like {default.path} that is run by its own engine here."
        raise InputError(Problem("engine", what, "Leave it out."))
    max_length, refused = listing.max_length, list[PocketBertError]()
    predictors: dict[EngineFile, FilePredictor] = {}
    first: ListedModel | None = None
    tokenizer, task = _check_description(path, listing, checked), listing.task_row
    for record in records:
        digest = _check_file(path, record, checked)
        file = EngineFile(path / record.path, record.format, record.runtime)
        try:
            predictor = file.open(threads)
            check_outputs(predictor, task, file.path)
            self_test(predictor, tokenizer, path, record, task, digest, checked.digest)
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
    pace = Cadence(cadence or Cadence.BATCH)
    chosen = open_fastest([*predictors], threads, max_length, pad_id, side, predictors, pace)
    return Model(path, listing, first, chosen)


def _choose_file(listing: FolderListing, scheme: str | None, format: str | None, file: str | None) -> ListedModel:
    """Return the record of the model file at a path, or with a scheme and format; what is not given is as in the default file.

    If a format lacks the scheme, the file with the scheme that stands for it there is returned: w8 for int8 in Core ML.

    Raises:
        InputError: If the folder has no such file (the message lists similar ones), or a path is given with scheme or format.
    """
    models = listing.models
    if file is not None:
        at_path = [r for r in models if r.path == file]
        if at_path and scheme is None and format is None:
            return at_path[0]
        why = f"no model file '{file}' in the folder; {suggest_allowed(file, [r.path for r in models])}"
        raise InputError(Problem("file", why if not at_path else "names a file already; leave scheme and format out"))
    default = listing.default
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


def _has_scheme(record: ListedModel, default: ListedModel, scheme: str | None) -> bool:
    """Return whether a file has the named scheme (by default that of the default file), or the one that stands for it in its format."""
    if scheme is None and record.runtime is not None:  # its scheme is what that runtime is fast with
        return default.scheme not in (Scheme.FP32, FORMATS[default.format].base)
    if scheme is None:
        return record.scheme in _equivalent_schemes(default, record.format)
    known = scheme in {s.value for s in Scheme}
    return record.scheme == scheme or (known and record.scheme == FORMATS[record.format].instead.get(Scheme(scheme)))


def _equivalent_schemes(default: ListedModel, format: Format) -> set[Scheme]:
    """Return the schemes that correspond to the default file's scheme in another format.

    Core ML has w8 where other formats have int8, and fp16 where they have fp32.
    """
    scheme, info = default.scheme, FORMATS[default.format]
    if scheme in (Scheme.FP32, info.base):
        return {Scheme.FP32, FORMATS[format].base}
    requested = {scheme, *(name for name, written in info.instead.items() if written is scheme)}
    return {FORMATS[format].instead.get(name, name) for name in requested}


def _check_file(path: Path, record: ListedFile, checked: CheckedFiles) -> str:
    """Check existence, size and sha256 of a file against the folder's list, before an engine opens it; return the sha256.

    The file is not read again if this machine has stored its digest and it is unchanged since.

    Raises:
        InputError: If the file is missing, is or contains something that must not be opened, or is not the listed one.
        GateError: If the list marks the file as failed.
    """
    if isinstance(record, ListedModel) and record.failed:
        raise GateError([f"{record.path} is marked failed in {path}; it was never meant to be used."])
    file = path / record.path
    if not file.exists():
        raise InputError(Problem(str(file), "listed, but not there.", _COPY_AGAIN))
    if (why := find_unsafe_entry(path, record.path)) is not None:
        raise InputError(Problem(str(file), f"{why}.", _COPY_AGAIN))
    if (size := path_bytes(file)) != record.bytes:
        what = f"{size:,} bytes, the folder's list says {record.bytes:,}."
        raise InputError(Problem(str(file), what, _COPY_AGAIN))
    if (digest := checked.digest(file)) != record.sha256:
        what = "changed since it was packed: its sha256 is not the listed one."
        raise InputError(Problem(str(file), what, _COPY_AGAIN))
    return digest


def _check_description(path: Path, listing: FolderListing, checked: CheckedFiles) -> TextTokenizer:
    """Open the tokenizer, and check it, config.json and the label names against the folder's list of files.

    Raises:
        InputError: If one of these files is not the listed one, if they contradict each other, or if the tokenizer has
            ids beyond the embedding table, which would crash the engine.
    """
    digests = [_check_file(path, record, checked) for record in listing.described]
    present = [name for name in ("tokenizer.json", CONFIG_FILE) if (path / name).exists()]
    check = " ".join(["description", checked.digest(path / ARTEFACTS_FILE), *digests, *present])
    if checked.passed(check) and len(digests) == len(present):
        return TextTokenizer(path, listing.max_length, checked=True)
    from pocketbert.core.artefacts import check_label_names, read_artefacts, read_checked_config

    artefacts = read_artefacts(path)
    config = read_checked_config(path, artefacts)
    check_label_names(path, artefacts, config)
    tokenizer = TextTokenizer(path, listing.max_length)
    _check_token_ids(path, tokenizer, config.get("vocab_size") if config else None)
    checked.remember(check)
    return tokenizer


def _check_token_ids(path: Path, tokenizer: TextTokenizer, table_rows: int | None) -> None:
    """Raise InputError if the tokenizer has ids beyond the embedding table, which would crash the engine."""
    largest = tokenizer.largest_id
    if table_rows is not None and largest >= table_rows:
        what = f"its largest token id is {largest:,}, the model has {table_rows:,} rows: it belongs to another model."
        raise InputError(Problem(f"{path}/tokenizer.json", what, _COPY_AGAIN))


class Model:
    """An artefact folder opened for prediction. `load` opens one."""

    def __init__(
        self,
        folder: Path,
        listing: FolderListing,
        listed: ListedModel,
        predictor: Predictor,
        tokenizer: TextTokenizer | None = None,
    ) -> None:
        self.folder, self.predictor, self._listing, self._listed = folder, predictor, listing, listed
        self._head = listing.head()
        self._temperatures = {folder / r.path: r.temperature for r in listing.models}
        self._thresholds = {folder / r.path: r.unknown_below for r in listing.models}
        max_length = listing.max_length
        check_outputs(predictor, self._head.task, folder / listed.path)
        max_length = min(max_length, max(predictor.lengths, default=max_length))
        same = tokenizer is not None and tokenizer.max_length == max_length
        self.tokenizer = tokenizer if tokenizer is not None and same else TextTokenizer(folder, max_length)

    def copy_for_thread(self) -> Model:
        """Return a model with the same engine and a tokenizer of its own, which another thread may use at the same time."""
        tokenizer = TextTokenizer(self.folder, self.tokenizer.max_length, checked=True)
        return Model(self.folder, self._listing, self._listed, self.predictor, tokenizer)

    def __repr__(self) -> str:
        facts = [f"{self._listing.name!r}", self.task, f"file={self.file!r}"]
        facts += [f"{len(self.labels)} labels"] if self.labels else []
        return f"<Model {', '.join(facts)}, max_length={self.max_length}, folder={str(self.folder)!r}>"

    @cached_property
    def artefacts(self) -> Artefacts:
        """The content of the folder's artifacts.json."""
        from pocketbert.core.artefacts import read_artefacts  # a model that answers needs no records

        return read_artefacts(self.folder)

    @property
    def record(self) -> ModelRecord:
        """The record of the model file; with the engine `fastest`, that of the first file that may be chosen."""
        return next(record for record in self.artefacts.models() if record.path == self._listed.path)

    @property
    def task(self) -> str:
        """Name of the task that the model computes, such as ``text-classification``."""
        return self._head.task.name

    @property
    def file(self) -> str:
        """Path of the model file in the folder; with the engine `fastest`, of the first file that may be chosen."""
        return self._listed.path

    @property
    def choice(self) -> str:
        """With the engine `fastest`, a sentence on which file is fastest here and the others' times; else empty."""
        return self._fastest.choice(self.folder) if self._fastest is not None else ""

    @property
    def _fastest(self) -> FastestPredictor | None:
        """The predictor of the engine `fastest`, which runs several files; None if one file is opened."""
        return cast("FastestPredictor", self.predictor) if hasattr(self.predictor, "answered") else None

    @property
    def max_length(self) -> int:
        """Largest number of tokens of an input.

        The end of a longer text is not read, and its answer is marked as truncated; long contexts of questions are read in parts.
        """
        return self.tokenizer.max_length

    @property
    def labels(self) -> list[str]:
        """Label names in order of their ids."""
        return list(self._listing.labels)

    @property
    def head(self) -> Head:
        """The task's head, which turns raw outputs into answers."""
        return self._head

    @property
    def prompts(self) -> dict[str, str]:
        """Texts that can be put in front of an input, by name; empty if the model has none."""
        return dict(self._listing.prompts)

    def outputs(self, texts: Sequence[AnyText], label: str = "", prompt: str | None = None) -> list[Matrix]:
        """Compute the raw outputs (logits or states) of texts, without padding.

        Args:
            texts: N texts or pairs; the task decides which.
            label: Text of the progress bar; empty for none.
            prompt: Name of the prompt that is put in front of each text. Default: the default prompt of the folder; the
                empty string for no prompt.

        Returns:
            One matrix for each row that the model reads. Its shape is for example [1, labels] for classifiers, [tokens,
            labels] if tokens are labelled, [tokens, 2] for question-answering, which reads a long context in several
            rows, and [1, 1] for each choice of multiple choice.
        """
        return self._run(self._prepare(texts, prompt), label)

    def predict(self, texts: Sequence[AnyText] | str, progress: str = "", prompt: str | None = None) -> list[Answer]:
        """Predict an answer for each text.

        Args:
            texts: Texts, or pairs as tuples; a single string is one text. Question-answering takes (question, context),
                multiple choice (question, [choice, choice, ...]); there, a text or a pair is a single choice, with
                probability 1 and its own score. If the model has inputs besides the text, each text needs columns for
                them: `pocketbert.with_columns`.
            progress: Text of the progress bar; empty for none.
            prompt: Name of the prompt, one of `prompts`, that is put in front of each text. Default: the default prompt
                of the folder; the empty string for no prompt.

        Returns:
            One answer per text, in order: `pocketbert.core.predict.answers` has one class per task.

        Raises:
            InputError: If the texts are not what the task takes, or no prompt has that name.
        """
        rows: list[AnyText] = [texts] if isinstance(texts, str) else list(texts)
        if not rows:
            return []
        prepared = self._prepare(rows, prompt)
        predictor, fastest, own_file = self.predictor, self._fastest, self.folder / self._listed.path
        file_by_row: dict[int, Path] = {}
        inside = PROBABILITIES in predictor.outputs  # a file for MediaPipe computes the score function itself

        def at_temperature(row: int, outputs: Matrix) -> Matrix:
            file_by_row[row] = fastest.answered if fastest is not None else own_file
            return apply_temperature(outputs, self._temperatures.get(file_by_row[row], 1.0), inside)

        answers = self._head.answers(self._run(prepared, progress, at_temperature), prepared, inside)
        if all(threshold is None for threshold in self._thresholds.values()):
            return [*answers]
        return mark_unknown_answers(answers, [self._thresholds.get(file_by_row[row]) for row in range(len(answers))])

    def rank(self, query: str, passages: Sequence[str], progress: str = "") -> list[tuple[int, Value]]:
        """Rank passages for a query with a reranker (CrossEncoder), which scores each pair of query and passage.

        Args:
            query: The question or search text.
            passages: The texts to rank.
            progress: Text of the progress bar; empty for none.

        Returns:
            (index, score) of each passage, best first; passages of equal scores stay in their order.

        Raises:
            InputError: If the model does not score pairs, or a passage is no text.
        """
        if self._head.task.name is not TaskName.REGRESSION:
            what = f"the model's task is {self._head.task.name}; a query ranks texts by the score of a reranker (one number per pair)."
            fix = "Take the folder of a reranker (CrossEncoder), or leave the query out."
            raise InputError(Problem("query", what, fix))
        wrong = [i for i, p in enumerate(passages, 1) if not isinstance(p, str)]
        if wrong:
            raise InputError(Problem("passages", f"passage {wrong[0]} is no text.", "Give one text for each passage."))
        answers = self.predict([(query, passage) for passage in passages], progress)
        scored = [(i, answer) for i, answer in enumerate(answers) if isinstance(answer, Value)]
        return sorted(scored, key=lambda pair: -pair[1].value)

    def _prepare(self, texts: Sequence[AnyText], prompt: str | None) -> Prepared:
        """Check texts, put the prompt in front and tokenize them."""
        tokenizer = self.tokenizer.with_prompt(prompt)
        check_texts(self._head.task, texts)
        if self.tokenizer.reader is not None:
            self.tokenizer.reader.check(texts)
        examples = [unlabelled_example(text, row) for row, text in enumerate(texts, 1)]
        return self._head.prepare(examples, tokenizer, "texts", labelled=False)

    def _run(self, prepared: Prepared, label: str, reduce: Reduce | None = None) -> list[Matrix]:
        """Run tokenized rows in batches, and return one output matrix per row, reduced by `reduce` if it is given.

        `label` is the text of the progress bar.

        Raises:
            InputError: If the file computes another number of outputs than the folder has labels, or not one where the task has one.
        """
        task, batching = self._head.task, Batching(_BATCH, _SLACK)
        out = run_rows(self.predictor, self.tokenizer, prepared.encoded, task, batching, label, reduce=reduce)
        width = out[0].shape[1] if out else None
        if width is not None and task.name in (TaskName.REGRESSION, TaskName.MULTIPLE_CHOICE) and width != 1:
            what = f"answers {width} numbers, {task.name} is one."
            raise InputError(Problem(str(self.folder / self._listed.path), what, _COPY_AGAIN))
        if width is not None and task.names_labels and width != len(self.labels):
            what = f"answers {width} numbers, the folder lists {len(self.labels)} labels."
            raise InputError(Problem(str(self.folder / self._listed.path), what, _COPY_AGAIN))
        return out


def check_texts(task: Task, texts: Iterable[AnyText]) -> None:
    """Check that inputs are texts or pairs, as the task takes them.

    Multiple choice takes questions with a list of choices; a text or a pair is a question with one choice.

    Raises:
        InputError: If an input does not fit; the message names the first one.
    """
    if task.labels is LabelKind.CHOICE:
        _check_choices(texts)
        return
    for number, text in enumerate(texts, 1):
        parts = [text, ""] if isinstance(text, str) else list(text) if isinstance(text, tuple | list) else []
        if len(parts) != 2 or not all(isinstance(part, str) for part in parts):
            what = f"is {type(text).__name__}, neither a text nor a pair of texts."
            raise InputError(Problem(f"text {number}", what, "Give a list of texts, or of pairs (first, second)."))
        if task.pairs_only and isinstance(text, str):
            what = f"{task.name} takes a question and a context, this is one text."
            fix = "Give a pair: (question, context); on the command line --text-pair."
            raise InputError(Problem(f"text {number}", what, fix))
        if task.single_only and not isinstance(text, str):
            what = f"{task.name} takes one text, this is a pair."
            raise InputError(Problem(f"text {number}", what, "Give each text by itself."))


def _check_choices(texts: Iterable[AnyText]) -> None:
    """Check that each input of a multiple-choice model is a question with choices.

    A text, or a pair of texts, is a question with one choice.
    """
    for number, text in enumerate(texts, 1):
        parts = (text, "") if isinstance(text, str) else tuple(text) if isinstance(text, tuple | list) else ()
        question, choices = parts if len(parts) == 2 else (None, None)
        is_list = isinstance(choices, tuple | list) and len(choices) > 0 and all(isinstance(c, str) for c in choices)
        if not isinstance(question, str) or not (is_list or isinstance(choices, str)):
            what = "multiple-choice takes a question and a list of its choices."
            fix = "Give (question, [choice, choice, ...]); on the command line the question first, then its choices."
            raise InputError(Problem(f"text {number}", what, fix))
