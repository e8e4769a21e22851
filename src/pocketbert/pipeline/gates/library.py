"""The gates "text" and "answer": whether a folder's tokenizer and files do what the checkpoint's own library does.

``library.json`` holds the library's token ids and answers (`pocketbert.pipeline.make.library`). `check_library_texts` compares
the tokenizer with them, `check_library_answers` the answers of a file.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.compare.golden import LibraryAnswers, LibraryRow
from pocketbert.core.heads import Head
from pocketbert.core.host.progress import note_stage
from pocketbert.core.models.tokenizers import SEGMENT_INPUT
from pocketbert.core.predict.answers import Answer, Embedding, Labelling, Prediction, Value
from pocketbert.core.predict.examples import unlabelled_example
from pocketbert.core.predict.predictor import PROBABILITIES, Batching, Matrix, run_rows
from pocketbert.core.predict.scores import apply_score_function
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import Level, ScoreFunction, Task, TaskName
from pocketbert.pipeline.formats.base import bounds_of
from pocketbert.pipeline.results import Gate, Subject
from pocketbert.runtime.coreml import REFERENCE_ENGINE

LIBRARY_TEXT_GATE, _ANSWER_GATE = "text", "answer"
_PADDED = Batching(rows=8, slack=0.5)
"""Texts of all lengths together: an answer must not depend on the padding next to it."""
_EXPORTED = 2e-3
"""Largest difference of an exported file's answers, as a share of their range; the rounding of fp32 makes about 1e-6."""
_RELAXED = 2.0
"""Factor on the bound of its logits for the answers of a quantized file: odd texts are among them."""
_FEW_ROWS = 8
"""Evenly spread texts on which a file is run that is not run on all texts; a file in the slow reference evaluator never is."""


def check_library_texts(library: LibraryAnswers | None, tokenizer: TextTokenizer, subjects: Sequence[Subject]) -> Gate:
    """Check that a folder's tokenizer gives the same token ids as the library that the checkpoint was made for.

    Segment ids are compared too, if one of the files other than MediaPipe's reads them.

    Args:
        library: The recorded answers of that library, such as sentence-transformers; None for a folder without a
            record.
        tokenizer: The folder's tokenizer, with its prompts. It truncates at the folder's longest input.
        subjects: The folder's model files.

    Returns:
        The gate; skipped if there are no recorded answers.
    """
    if library is None or library.missing:
        why = (
            library.missing if library else "the folder records no library's answers; packs for an app leave them out."
        )
        detail = f"not compared with the checkpoint's library: {why}"
        return Gate(name=LIBRARY_TEXT_GATE, file="tokenizer.json", passed=True, skipped=True, detail=detail)
    # MediaPipe's files always have an input for segments, and read no pairs
    segments = any(SEGMENT_INPUT in s.predictor.inputs for s in subjects if s.client is None)
    wrong = [(row, what) for row in library.rows if (what := _describe_input_difference(row, tokenizer, segments))]
    detail = f"{len(library.rows)} texts give the ids of {library.library}."
    if wrong:
        row, what = wrong[0]
        detail = (
            f"{len(wrong)} of {len(library.rows)} texts give other inputs than {library.library}, e.g. {row.called}: {what}. "
            "Do prompt, letter case, segments, longest input and side of the cut agree with the checkpoint's files?"
        )
    return Gate(
        name=LIBRARY_TEXT_GATE,
        file="tokenizer.json",
        passed=not wrong,
        value=float(len(wrong)),
        bound=0.0,
        detail=detail,
    )


def _describe_input_difference(row: LibraryRow, tokenizer: TextTokenizer, segments: bool) -> str:
    """Return a phrase on how a text's token or segment ids differ from the library's; empty if they are equal."""
    if row.prompt is not None and row.prompt not in tokenizer.prompts.named:
        return f"there is no prompt '{row.prompt}'"
    [encoded] = tokenizer.with_prompt(row.prompt).encode([row.text])
    ids, types = encoded.ids.tolist(), encoded.type_ids.tolist()
    if ids != row.ids:
        if len(ids) != len(row.ids):
            return f"{len(ids)} tokens instead of {len(row.ids)}"
        at = next(i for i, (a, b) in enumerate(zip(ids, row.ids, strict=True)) if a != b)
        return f"token {at + 1} is {tokenizer.token(ids[at])!r} instead of {tokenizer.token(row.ids[at])!r}"
    if types != row.type_ids and segments:
        return f"segments {sorted(set(types))} instead of {sorted(set(row.type_ids))}"
    return ""


def check_library_answers(
    library: LibraryAnswers | None, head: Head, labels: int, subject: Subject, all_rows: bool = True
) -> list[Gate]:
    """Run a file on the library's texts in padded batches, and check its answers against the library's values.

    Args:
        library: The answers recorded from the checkpoint's library.
        head: Task head that turns outputs into answers, with the settings of the folder.
        labels: Number of labels of the folder.
        subject: The file.
        all_rows: Whether the file is run on all texts, as one file of a folder is. The others are run on 8 texts, the
            longest text and pair, and one text with each prompt: texts differ in their tokens, which are the same for
            all files, and a wrong way from outputs to answers is wrong for every text.

    Returns:
        The gate; an empty list if no library answered.
    """
    if library is None or library.missing:
        return []
    note_stage("gate answer")
    return [_check_answers(library, head, labels, subject, all_rows)]


def _check_answers(library: LibraryAnswers, head: Head, labels: int, subject: Subject, all_rows: bool) -> Gate:
    """Run a file on the library's texts, and return the gate on how far its answers differ from the library's.

    The library is the one that the checkpoint was made for; its answers are recorded. The difference is relative to the
    spread of the library's values. The gate fails if it is above the bound for the file's scheme, or if labels or
    numbers of values differ; it is skipped if the file takes none of the texts.

    Args:
        library: The recorded answers.
        head: Task head that turns the file's outputs into answers.
        labels: Number of labels.
        subject: The file.
        all_rows: Whether to run all texts rather than a few. In the reference engine only a few are run in any case.
    """
    longest = subject.tokenizer.max_length
    rows = [row for row in library.rows if row.values and len(row.ids) <= longest]
    if head.task.name is TaskName.QUESTION_ANSWERING:  # a pair that is too long is read in windows, which no row has
        rows = [row for row in rows if not subject.tokenizer.encode([row.text])[0].truncated]
    is_evaluated = subject.predictor.engine == REFERENCE_ENGINE
    if rows and (is_evaluated or not all_rows):
        rows = _choose_few(rows, with_longest=not is_evaluated)
    file_values, library_values = [], []
    for name in dict.fromkeys(row.prompt for row in rows):
        prompted = [row for row in rows if row.prompt == name]
        for row, values in zip(prompted, _run_file(subject, head, labels, prompted, name), strict=True):
            if values is None:
                detail = f"{row.called}: its labels are not those of {library.library}."
                return Gate(name=_ANSWER_GATE, file=subject.name, passed=False, detail=detail)
            file_values.append(values)
            library_values.append(np.asarray(row.values, np.float64))
    if not rows:
        detail = "the library answered no text that the file takes."
        return Gate(name=_ANSWER_GATE, file=subject.name, passed=True, skipped=True, detail=detail)
    by_head = [
        [_values_of_heads(head.task, r, v) for r, v in zip(rows, own, strict=True)]
        for own in (file_values, library_values)
    ]
    sizes = [[[*map(len, parts)] for parts in own] for own in by_head]
    unlike = next((r for r, a, b in zip(rows, *sizes, strict=True) if a != b or 0 in b), None)
    if unlike is not None:
        detail = f"{unlike.called}: another number of values than {library.library} gives."
        return Gate(name=_ANSWER_GATE, file=subject.name, passed=False, detail=detail)
    largest = subject.exported and subject.predictor.engine != REFERENCE_ENGINE
    # each head by its own range: a head of small numbers could be entirely wrong beside one of large ones
    of_heads = zip(*(zip(*own, strict=True) for own in by_head), strict=True)
    errors = [_measure_error(own, expected, largest) for own, expected in of_heads]
    number = int(np.argmax([error for error, _ in errors]))
    found, worst = errors[number][0], rows[errors[number][1]].called
    if head.task.heads:
        worst = f"head '{head.task.heads[number].name}' of {worst}"
    bound = _EXPORTED if largest else _RELAXED * bounds_of(subject).allowed(subject.simulated) + _EXPORTED
    detail = f"{len(rows)} texts are answered as by {library.library}, up to {found:.2g} of the answers' spread, allowed {bound:.2g}."
    if not found <= bound:
        detail = (
            f"its answers differ from those of {library.library} by {found:.3g} of their spread, allowed {bound:.2g}; most for "
            f"{worst}. Do pooling, normalization, activation, padding side and label order agree with the checkpoint's files?"
        )
    return Gate(name=_ANSWER_GATE, file=subject.name, passed=found <= bound, value=found, bound=bound, detail=detail)


def _choose_few(rows: Sequence[LibraryRow], with_longest: bool) -> list[LibraryRow]:
    """Choose up to 8 evenly spread rows, and the shortest row with each prompt.

    Args:
        rows: The rows.
        with_longest: Whether the longest text and the longest pair are added.
    """
    chosen = {round(place) for place in np.linspace(0, len(rows) - 1, min(len(rows), _FEW_ROWS))}
    numbers = sorted(range(len(rows)), key=lambda i: len(rows[i].ids))
    chosen |= set({rows[i].prompt: i for i in reversed(numbers)}.values())
    if with_longest:
        chosen |= set({isinstance(rows[i].text, str): i for i in numbers}.values())
    return [rows[i] for i in sorted(chosen)]


def _values_of_heads(task: Task, row: LibraryRow, values: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """Split a row's values, which are those of one head after the other, into an array for each head; a single one for one head.

    A head on whole texts has a value for each of its columns, one on tokens as many for each token. Further values are left
    in the last array.
    """
    tokens = [len(row.ids) if named.task.level is Level.TOKEN else 1 for named in task.heads]
    sizes = [count * (named.stop - named.start) for count, named in zip(tokens, task.heads, strict=True)]
    return np.split(values, np.cumsum(sizes)[:-1]) if sizes else [values]


def _measure_error(
    values: Sequence[NDArray[np.float64]], expected: Sequence[NDArray[np.float64]], largest: bool
) -> tuple[float, int]:
    """Measure how far a head's values of all rows differ from the expected ones, as a share of the range of these.

    Args:
        values: The values of each row.
        expected: The values that each row should have.
        largest: Whether to return the largest difference, rather than the root mean square.

    Returns:
        The error, and the number of the row that differs most.
    """
    spread = _measure_value_range(expected)
    differences = [np.abs(a - b) / spread for a, b in zip(values, expected, strict=True)]
    if largest:
        by_row = [float(d.max()) for d in differences]
        return float(np.max(by_row)), int(np.argmax(by_row))
    by_row = [float(np.sqrt((d**2).mean())) for d in differences]
    return float(np.sqrt(np.concatenate([d.ravel() ** 2 for d in differences]).mean())), int(np.argmax(by_row))


def _measure_value_range(values: Sequence[NDArray[np.float64]]) -> float:
    """Return the range of values, by which differences are divided; at least 1 % of the largest magnitude."""
    every = np.concatenate([v.ravel() for v in values])
    return max(float(np.ptp(every)), 1e-2 * float(np.abs(every).max()), 1e-9)


def _run_file(
    subject: Subject, head: Head, labels: int, rows: Sequence[LibraryRow], prompt: str | None
) -> list[NDArray[np.float64] | None]:
    """Run a file on texts with one prompt, and return for each row the values to compare with the library's.

    The entry of a row is None if the file lacks one of the row's label names; all are None if it has another number of labels.
    """
    tokenizer = subject.tokenizer.with_prompt(prompt if prompt in subject.tokenizer.prompts.named else None)
    texts = [unlabelled_example(row.text, i) for i, row in enumerate(rows, 1)]
    prepared = head.prepare(texts, tokenizer, "texts", labelled=False)
    scored = PROBABILITIES in subject.predictor.outputs
    outputs = run_rows(subject.predictor, tokenizer, prepared.encoded, head.task, _PADDED)
    if head.task.names_labels and outputs[0].shape[-1] != labels:
        return [None] * len(rows)
    if head.task.heads:
        by_head = [(h.task.level is Level.TOKEN, h.columns) for h in head.task.heads]
        flat = [[(m if every else m[:1])[:, columns].ravel() for every, columns in by_head] for m in outputs]
        return [np.concatenate(parts).astype(np.float64) for parts in flat]
    if head.task.name is TaskName.MULTIPLE_CHOICE:  # a pair is one choice, whose probability among one says nothing
        return [np.asarray(matrix[0], np.float64) for matrix in outputs]
    if head.task.name in (TaskName.TOKEN_CLASSIFICATION, TaskName.FILL_MASK, TaskName.QUESTION_ANSWERING):
        owned = [[outputs[i] for i in own] for own in prepared.rows_of()]
        return [_select_token_values(head.task, subject.labels, row, own) for row, own in zip(rows, owned, strict=True)]
    answers = head.answers(outputs, prepared, scored)
    return [_select_text_values(answer, row) for answer, row in zip(answers, rows, strict=True)]


def _select_text_values(answer: Answer, row: LibraryRow) -> NDArray[np.float64] | None:
    """Return a text's scores, number or vector from the file's answer, in the library's order.

    The result is None if the answer lacks one of the row's labels, or is of a kind that has no such values.
    """
    match answer:
        case Prediction() | Labelling():
            known = all(name in answer.scores for name in row.names)
            return np.array([answer.scores[name] for name in row.names]) if known else None
        case Value():
            return np.array([answer.value])
        case Embedding():
            return np.asarray(answer.vector, np.float64)
    return None


def _select_token_values(
    task: Task, labels: Sequence[str], row: LibraryRow, outputs: Sequence[Matrix]
) -> NDArray[np.float64] | None:
    """Return the numbers of a file's output that a library's row names: probabilities of tokens, or answer logits.

    For question answering they are the start and end logits of all tokens.

    Returns:
        The numbers; None if the row names a token or label that is not there; empty for a text read in several windows.
    """
    if len(outputs) != 1:
        return np.empty(0)
    matrix = outputs[0]
    if task.name is TaskName.QUESTION_ANSWERING:
        return np.asarray(matrix.T.ravel(), np.float64)
    scores, values = apply_score_function(matrix, ScoreFunction.SOFTMAX), list[float]()
    for name in row.names:
        place, _, label = name.partition(":")
        if not place.isdecimal() or (task.name is TaskName.FILL_MASK and not label.isdecimal()):
            return None
        column = int(label) if task.name is TaskName.FILL_MASK else labels.index(label) if label in labels else -1
        if not 0 <= column < scores.shape[1] or int(place) >= len(scores):
            return None
        values.append(float(scores[int(place), column]))
    return np.array(values)
