"""The gate from text to answer: what a folder makes of a text, against the library that the checkpoint was published for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.compare.library_rows import LibraryAnswers, LibraryRow
from pocketbert.core.data.examples import unlabelled
from pocketbert.core.heads import Head
from pocketbert.core.models.tokenizer_settings import SEGMENTS
from pocketbert.core.predict.answers import Answer, Embedding, Labelling, Prediction, Value
from pocketbert.core.predict.predictor import PROBABILITIES
from pocketbert.core.predict.readout import Batching, Matrix, run_rows
from pocketbert.core.predict.score import probabilities
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import ScoreFunction, Task, TaskName
from pocketbert.pipeline.formats.gate import Gate, Subject
from pocketbert.pipeline.formats.place import bounds_of
from pocketbert.runtime.coreml import REFERENCE

TEXT_GATE, ANSWER_GATE = "text", "answer"
_PADDED = Batching(rows=8, slack=1.0)
"""Texts of all lengths together: an answer must not depend on the padding next to it."""
_EXPORTED = 2e-3
"""Largest difference of an exported file's answers, as a share of their spread; the rounding of fp32 makes about 1e-6."""
_RELAXED = 2.0
"""How much more than the bound of its logits a smaller file's answers may differ: odd texts are among them."""
_EMULATED_ROWS = 8
"""Texts that a file is asked which an evaluator computes: each takes seconds there."""


def library_gates(
    library: LibraryAnswers | None, tokenizer: TextTokenizer, head: Head, labels: int, subjects: Sequence[Subject]
) -> list[Gate]:
    """Compare a folder's token ids, and the answers of its files, with those that the checkpoint's library gave.

    Args:
        library: What the library gave; None of a folder that was made before it was recorded.
        tokenizer: The folder's, with its prompts, cutting at its longest input.
        head: Makes answers of outputs, as the folder's list says.
        labels: How many labels it names.
        subjects: The folder's files.

    Returns:
        A gate for the tokenizer and one for each file; skipped ones where no library answered.
    """
    if library is None or library.missing:
        why = library.missing if library else "the folder is of an earlier version and records no library's answers."
        detail = f"not compared with the checkpoint's library: {why}"
        return [Gate(name=TEXT_GATE, file="tokenizer.json", passed=True, skipped=True, detail=detail)]
    # MediaPipe's files have an input for segments whatever the model is, and read no pairs
    segments = any(SEGMENTS in s.predictor.inputs for s in subjects if s.client is None)
    return [
        _text_gate(library, tokenizer, segments),
        *(_answer_gate(library, head, labels, subject) for subject in subjects),
    ]


def _text_gate(library: LibraryAnswers, tokenizer: TextTokenizer, segments: bool) -> Gate:
    """Whether every text becomes the token ids, and the segment ids where files take them, that the library feeds."""
    wrong = [(row, what) for row in library.rows if (what := _difference(row, tokenizer, segments))]
    detail = f"{len(library.rows)} texts give the ids of {library.library}."
    if wrong:
        row, what = wrong[0]
        detail = (
            f"{len(wrong)} of {len(library.rows)} texts give other inputs than {library.library}, e.g. {row.called}: {what}. "
            "Do prompt, letter case, segments, longest input and side of the cut agree with the checkpoint's files?"
        )
    return Gate(
        name=TEXT_GATE, file="tokenizer.json", passed=not wrong, value=float(len(wrong)), bound=0.0, detail=detail
    )


def _difference(row: LibraryRow, tokenizer: TextTokenizer, segments: bool) -> str:
    """Say where the inputs of a text differ from the library's; empty where they do not."""
    if row.prompt is not None and row.prompt not in tokenizer.prompts.named:
        return f"there is no prompt '{row.prompt}'"
    [made] = tokenizer.with_prompt(row.prompt).encode([row.text])
    ids, types = made.ids.tolist(), made.type_ids.tolist()
    if ids != row.ids:
        if len(ids) != len(row.ids):
            return f"{len(ids)} tokens instead of {len(row.ids)}"
        at = next(i for i, (a, b) in enumerate(zip(ids, row.ids, strict=True)) if a != b)
        return f"token {at + 1} is {tokenizer.token(ids[at])!r} instead of {tokenizer.token(row.ids[at])!r}"
    if types != row.type_ids and segments:
        return f"segments {sorted(set(types))} instead of {sorted(set(row.type_ids))}"
    return ""


def _answer_gate(library: LibraryAnswers, head: Head, labels: int, subject: Subject) -> Gate:
    """Ask a file the library's texts, in padded batches; return whether its answers are the library's."""
    longest = subject.tokenizer.max_length
    rows = [row for row in library.rows if row.values and len(row.ids) <= longest]
    if head.task.name is TaskName.QUESTION_ANSWERING:  # a pair that is too long is read in windows, which no row has
        rows = [row for row in rows if not subject.tokenizer.encode([row.text])[0].truncated]
    if subject.predictor.engine == REFERENCE:
        rows = rows[:: max(1, len(rows) // _EMULATED_ROWS)][:_EMULATED_ROWS]
    ours, theirs = [], []
    for name in dict.fromkeys(row.prompt for row in rows):
        asked = [row for row in rows if row.prompt == name]
        for row, values in zip(asked, _answered(subject, head, labels, asked, name), strict=True):
            if values is None:
                detail = f"{row.called}: its labels are not those of {library.library}."
                return Gate(name=ANSWER_GATE, file=subject.name, passed=False, detail=detail)
            ours.append(values)
            theirs.append(np.asarray(row.values, np.float64))
    if not rows:
        detail = "the library answered no text that the file takes."
        return Gate(name=ANSWER_GATE, file=subject.name, passed=True, skipped=True, detail=detail)
    unlike = next((r for r, a, b in zip(rows, ours, theirs, strict=True) if a.shape != b.shape), None)
    if unlike is not None:
        detail = f"{unlike.called}: another number of values than {library.library} gives."
        return Gate(name=ANSWER_GATE, file=subject.name, passed=False, detail=detail)
    spread = _spread(theirs)
    differences = [np.abs(a - b) / spread for a, b in zip(ours, theirs, strict=True)]
    if subject.exported and subject.predictor.engine != REFERENCE:
        by_row, bound = [float(d.max()) for d in differences], _EXPORTED
        found = max(by_row)
    else:
        by_row = [float(np.sqrt((d**2).mean())) for d in differences]
        found = float(np.sqrt(np.concatenate([d.ravel() ** 2 for d in differences]).mean()))
        bound = _RELAXED * bounds_of(subject).allowed(subject.simulated) + _EXPORTED
    worst = rows[int(np.argmax(by_row))]
    told = f"{len(rows)} texts are answered as by {library.library}, up to {found:.2g} of the answers' spread, allowed {bound:.2g}."
    if not found <= bound:
        told = (
            f"its answers differ from those of {library.library} by {found:.3g} of their spread, allowed {bound:.2g}; most for "
            f"{worst.called}. Do pooling, normalization, activation, padding side and label order agree with the checkpoint's files?"
        )
    return Gate(name=ANSWER_GATE, file=subject.name, passed=found <= bound, value=found, bound=bound, detail=told)


def _spread(values: Sequence[NDArray[np.float64]]) -> float:
    """What differences of answers are measured by: how far values differ, or a share of the largest where they hardly do."""
    every = np.concatenate([v.ravel() for v in values])
    return max(float(np.ptp(every)), 1e-2 * float(np.abs(every).max()), 1e-9)


def _answered(
    subject: Subject, head: Head, labels: int, rows: Sequence[LibraryRow], prompt: str | None
) -> list[NDArray[np.float64] | None]:
    """What a file answers to texts with one prompt: the values that the library's rows name, None where one names others."""
    tokenizer = subject.tokenizer.with_prompt(prompt if prompt in subject.tokenizer.prompts.named else None)
    texts = [unlabelled(row.text, i) for i, row in enumerate(rows, 1)]
    prepared = head.prepare(texts, tokenizer, "texts", labelled=False)
    inside = PROBABILITIES in subject.predictor.outputs
    outputs = run_rows(subject.predictor, tokenizer, prepared.encoded, head.task, _PADDED)
    if head.task.names_labels and outputs[0].shape[-1] != labels:
        return [None] * len(rows)
    if head.task.name in (TaskName.TOKEN_CLASSIFICATION, TaskName.FILL_MASK, TaskName.QUESTION_ANSWERING):
        owned = [[outputs[i] for i in own] for own in prepared.rows_of()]
        return [_token_values(head.task, subject.labels, row, own) for row, own in zip(rows, owned, strict=True)]
    answers = head.answers(outputs, prepared, inside)
    return [_text_values(answer, row) for answer, row in zip(answers, rows, strict=True)]


def _text_values(answer: Answer, row: LibraryRow) -> NDArray[np.float64] | None:
    """The values of a text's answer in the library's order."""
    match answer:
        case Prediction() | Labelling():
            known = all(name in answer.scores for name in row.names)
            return np.array([answer.scores[name] for name in row.names]) if known else None
        case Value():
            return np.array([answer.value])
        case Embedding():
            return np.asarray(answer.vector, np.float64)
    return None


def _token_values(
    task: Task, labels: Sequence[str], row: LibraryRow, outputs: Sequence[Matrix]
) -> NDArray[np.float64] | None:
    """The values of tokens that the library's row names, of a text that is read in one piece."""
    if len(outputs) != 1:
        return np.empty(0)
    matrix = outputs[0]
    if task.name is TaskName.QUESTION_ANSWERING:
        return np.asarray(matrix.T.ravel(), np.float64)
    scores, out = probabilities(matrix, ScoreFunction.SOFTMAX), list[float]()
    for name in row.names:
        place, _, what = name.partition(":")
        if not place.isdecimal() or (task.name is TaskName.FILL_MASK and not what.isdecimal()):
            return None
        column = int(what) if task.name is TaskName.FILL_MASK else labels.index(what) if what in labels else -1
        if not 0 <= column < scores.shape[1] or int(place) >= len(scores):
            return None
        out.append(float(scores[int(place), column]))
    return np.array(out)
