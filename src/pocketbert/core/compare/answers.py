"""The answers of one model to the rows of a data file, in the form in which the answers of two models are compared.

`answer_rows` runs a predictor on prepared rows and returns a `RowAnswer` for each example: its labelled parts, its probability, and
what it adds to the task's score.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.errors import GateError
from pocketbert.core.heads import Head, Prepared
from pocketbert.core.heads.feature_extraction import FeatureExtractionHead, are_scored_pairs, similarities
from pocketbert.core.heads.head import IGNORED_LABEL
from pocketbert.core.heads.question_answering import exact_match, token_f1
from pocketbert.core.host.progress import Meter
from pocketbert.core.predict.answers import (
    Answer,
    Choice,
    Embedding,
    Excerpt,
    Filled,
    Labelling,
    Prediction,
    Spans,
    Value,
)
from pocketbert.core.predict.predictor import PROBABILITIES, UNPADDED, Batching, Matrix, Predictor, run_rows
from pocketbert.core.predict.scores import apply_temperature
from pocketbert.core.predict.spans import Span
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import TaskName

NOTHING = "(none)"
"""Stands for no label, no span, no answer."""
_EXAMPLES_AT_ONCE = 64
"""Examples whose outputs are in memory together: those of fill-mask are as wide as the vocabulary."""
_Parts = Mapping[Any, str]


@dataclass(frozen=True)
class RowAnswer:
    """The answer of a model to one example.

    Attributes:
        shown: The answer in words.
        parts: What two answers are compared by. A classifier's label, an answer to a question or a choice has the key
            ``""``, each label of a multi-label answer its own name, the labels of spans their places, filled tokens the
            number of their mask. Empty for numbers and vectors.
        gold: The right parts; empty if the row has no gold label, or one that has no parts.
        probability: Probability of the answer; None if the answer has none, or several.
        value: The number that regression predicts, or the similarity of a scored pair; None for other tasks.
        truth: The right number; None for other tasks and without labels.
        right: Whether the whole answer is right; None without labels and for numbers and vectors.
        terms: Numerator and denominator that the row adds to the task's score, if that is a ratio of sums over the
            rows.
        vector: The vector of an embedding model; None for other tasks and for scored pairs.
    """

    shown: str
    parts: _Parts = field(default_factory=dict)
    gold: _Parts = field(default_factory=dict)
    probability: float | None = None
    value: float | None = None
    truth: float | None = None
    right: bool | None = None
    terms: tuple[float, float] = (0.0, 0.0)
    vector: NDArray[np.float32] | None = None


def answer_rows(
    predictor: Predictor,
    tokenizer: TextTokenizer,
    head: Head,
    prepared: Prepared,
    *,
    labelled: bool,
    temperature: float = 1.0,
    label: str = "",
    batching: Batching = UNPADDED,
) -> list[RowAnswer]:
    """Run a predictor on prepared rows, by default each alone and unpadded as in `verify`; return an answer for each example.

    Args:
        predictor: The opened model file or module.
        tokenizer: Pads the rows if the file takes fixed lengths only.
        head: Turns the outputs into answers.
        prepared: The tokenized rows.
        labelled: Whether `prepared` has gold labels, which the answers are then compared with.
        temperature: Number that the outputs are divided by.
        label: Text of the progress bar, and name of the model in errors.
        batching: How rows are combined.

    Raises:
        GateError: If an output is not a finite number.
    """
    inside, answers = PROBABILITIES in predictor.outputs, list[RowAnswer]()
    rows = prepared.rows_of()
    with Meter(label, len(prepared.examples)) as meter:
        for start in range(0, len(prepared.examples), _EXAMPLES_AT_ONCE):
            part = _take_examples(prepared, rows, start, start + _EXAMPLES_AT_ONCE)
            outputs = run_rows(predictor, tokenizer, part.encoded, head.task, batching)
            wrong = [owner for owner, matrix in zip(part.owner, outputs, strict=True) if not np.isfinite(matrix).all()]
            if wrong:  # the largest of such numbers would be a label like any other
                raise GateError([f"{label}: the outputs for row {part.examples[wrong[0]].row} are not finite numbers."])
            divided = [apply_temperature(matrix, temperature, inside) for matrix in outputs]
            answers += _read_answers(head, divided, part, head.answers(divided, part, inside), labelled)
            meter.advance(len(part.examples))
    return answers


def _take_examples(prepared: Prepared, rows: Sequence[Sequence[int]], start: int, stop: int) -> Prepared:
    """Return some examples (`stop` excluded) with their tokenized rows and gold labels, without training targets."""
    chosen = [i for of_example in rows[start:stop] for i in of_example]
    return replace(
        prepared,
        examples=prepared.examples[start:stop],
        encoded=[prepared.encoded[i] for i in chosen],
        owner=prepared.owner[chosen] - start,
        targets={},
        truth=prepared.truth[start:stop],
    )


def _read_answers(
    head: Head, outputs: Sequence[Matrix], prepared: Prepared, answers: Sequence[Answer], labelled: bool
) -> list[RowAnswer]:
    """Build a `RowAnswer` for each example from the head's answer, with the gold label if the rows are `labelled`.

    The outputs are read for fill-mask only, whose losses come from them. Embedding models give vectors, or the similarity
    of pairs that have gold scores.
    """
    if isinstance(head, FeatureExtractionHead):
        return _read_vectors(head, prepared, cast("Sequence[Embedding]", answers), labelled)
    if head.task.name is TaskName.FILL_MASK:
        losses = [head.reduce(i, matrix, prepared) for i, matrix in enumerate(outputs)]
        return [_read_filled(cast("Filled", a), prepared, i, losses[i]) for i, a in enumerate(answers)]
    names = getattr(head, "labels", None)
    gold = [_name_gold(truth, names.names if names else ()) for truth in prepared.truth] if labelled else []
    return [_READERS[type(a)](a, gold[i] if labelled else None) for i, a in enumerate(answers)]


def _name_gold(truth: Any, names: Sequence[str]) -> Any:
    """Return an example's gold labels by name: a name, a set of names, spans, texts of answers, or a number."""
    if isinstance(truth, np.ndarray):
        return {names[int(i)] for i in np.flatnonzero(truth)}
    if isinstance(truth, np.integer):
        return names[int(truth)] if names else int(truth)
    return float(truth) if isinstance(truth, np.floating) else truth


def _read_prediction(answer: Prediction, gold: str | None) -> RowAnswer:
    """Build the `RowAnswer` of a classifier's label, and compare it with the gold label if there is one."""
    if gold is None:
        return RowAnswer(answer.label, {"": answer.label}, probability=answer.score)
    right = answer.label == gold
    return RowAnswer(answer.label, {"": answer.label}, {"": gold}, answer.score, right=right, terms=(float(right), 1.0))


def _read_labelling(answer: Labelling, gold: set[str] | None) -> RowAnswer:
    """Build the `RowAnswer` of a multi-label classifier's labels, compared with the gold labels if there are some."""
    parts: dict[Any, str] = {name: name for name in answer.labels}
    shown = ", ".join(f"{name} {answer.scores[name]:.2f}" for name in answer.labels) or NOTHING
    return RowAnswer(shown, parts) if gold is None else _with_f1(shown, parts, {name: name for name in gold})


def _read_spans(answer: Spans, gold: Sequence[Span] | None) -> RowAnswer:
    """Build the `RowAnswer` of a token classifier's spans.

    A span is right if both ends and its label are those of a gold span.
    """
    parts: dict[Any, str] = {(s.start, s.end): s.label for s in answer.spans}
    shown = "; ".join(f"{s.label} [{s.start}:{s.end}] {s.text}" for s in answer.spans) or NOTHING
    return (
        RowAnswer(shown, parts) if gold is None else _with_f1(shown, parts, {(s.start, s.end): s.label for s in gold})
    )


def _with_f1(shown: str, parts: _Parts, gold: _Parts) -> RowAnswer:
    """Build the `RowAnswer` of an answer with several parts.

    Its terms are those of the micro F1: twice the right parts, and the predicted and gold parts together.
    """
    hits = len(parts.items() & gold.items())
    return RowAnswer(shown, parts, gold, right=parts == gold, terms=(2.0 * hits, float(len(parts) + len(gold))))


def _read_excerpt(answer: Excerpt, gold: Sequence[Any] | None) -> RowAnswer:
    """Build the `RowAnswer` of a predicted answer to a question, compared with the gold answers by SQuAD's rules."""
    shown, parts = answer.text or NOTHING, {"": answer.text}
    if gold is None:
        return RowAnswer(shown, parts, probability=answer.score)
    texts = [g.text for g in gold]
    right, f1 = bool(exact_match(answer.text, texts)), token_f1(answer.text, texts)
    return RowAnswer(
        shown, parts, {"": texts[0] if texts else NOTHING}, answer.score, right=right, terms=(float(f1), 1.0)
    )


def _read_choice(answer: Choice, gold: int | None) -> RowAnswer:
    """Build the `RowAnswer` of a chosen answer, and compare it with the right choice."""
    parts, shown = {"": f"choice {answer.index + 1}"}, f"{answer.index + 1}: {answer.text}"
    if gold is None:
        return RowAnswer(shown, parts, probability=answer.score)
    right = answer.index == gold
    return RowAnswer(shown, parts, {"": f"choice {gold + 1}"}, answer.score, right=right, terms=(float(right), 1.0))


def _read_value(answer: Value, gold: float | None) -> RowAnswer:
    """Build the `RowAnswer` of the number that a regression model predicts, with the right number beside it."""
    return RowAnswer(f"{answer.value:.4f}", value=answer.value, truth=gold)


def _read_filled(answer: Filled, prepared: Prepared, row: int, losses: Matrix) -> RowAnswer:
    """Build the `RowAnswer` of the first guess at each mask, compared with the token that stood there.

    `losses` has, for each masked token, the cross-entropy and whether the first guess is right.
    """
    tokenizer = prepared.tokenizer
    assert tokenizer is not None
    parts: dict[Any, str] = {i: place[0].token for i, place in enumerate(answer.places) if place}
    shown = " ".join(f"{place[0].text} {place[0].score:.2f}" for place in answer.places if place) or NOTHING
    known = {i: int(t) for i, t in enumerate(prepared.truth[row]) if t != IGNORED_LABEL}
    gold: dict[Any, str] = {i: tokenizer.token(t) for i, t in known.items()}
    terms = (float(losses[:, 0].sum(dtype=np.float64)), float(len(losses)))
    return RowAnswer(shown, parts, gold, right=bool(losses[:, 1].all()), terms=terms)


def _read_vectors(
    head: FeatureExtractionHead, prepared: Prepared, answers: Sequence[Embedding], labelled: bool
) -> list[RowAnswer]:
    """Build the `RowAnswer` objects of an embedding model.

    For pairs with gold scores they hold the similarity of the pair's two vectors and the gold score; else the vector of each text, or
    those of both texts of a pair, one behind the other.
    """
    if not (labelled and are_scored_pairs(prepared.examples)):
        shown = [f"vector of {len(a.vector)} numbers" for a in answers]
        rows = prepared.rows_of()
        return [RowAnswer(shown[own[0]], vector=np.concatenate([answers[i].vector for i in own])) for own in rows]
    vectors = np.stack([a.vector for a in answers])
    pairs = zip(similarities(vectors[::2], vectors[1::2], head.similarity), prepared.truth, strict=True)
    return [RowAnswer(f"{value:.4f}", value=float(value), truth=float(truth)) for value, truth in pairs]


_READERS: dict[type, Callable[[Any, Any], RowAnswer]] = {
    Prediction: _read_prediction,
    Labelling: _read_labelling,
    Spans: _read_spans,
    Excerpt: _read_excerpt,
    Choice: _read_choice,
    Value: _read_value,
}


def number_columns(rows: Sequence[RowAnswer]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the right and the predicted numbers of all rows, [rows] each; NaN where a row has no such number."""
    missing = float("nan")
    columns = [[missing if v is None else v for v in (row.truth, row.value)] for row in rows]
    truth, values = np.array(columns, np.float64).reshape(-1, 2).T
    return truth, values
