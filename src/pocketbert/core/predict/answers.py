"""Answers of a model to one text, one class per task.

Each class implements `Answer`: `fields` for JSON, `line` for a terminal. `mark_unknown_answers` marks labels of too small a
probability.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.host.terminal import escape_separators


class Answer(Protocol):
    """The answer of a model to one text, of any task."""

    @property
    def truncated(self) -> bool:
        """Whether the text was longer than the model's longest input, so that a part of it was not read."""
        ...

    def fields(self, top: int = 1) -> dict[str, Any]:
        """Return the answer as a JSON object, with up to `top` alternatives if the task has them."""
        ...

    def line(self, top: int = 1) -> str:
        """Return the answer as one terminal line; tabs and line breaks inside its labels and texts are escaped."""
        ...


def answer_fields(answer: Answer, top: int = 1) -> dict[str, Any]:
    """Return an answer as a JSON object, with `top` alternatives and with ``truncated``: whether the text was too long."""
    return {**answer.fields(top), "truncated": answer.truncated}


@dataclass(frozen=True)
class Prediction:
    """The answer of a single-label classifier: the most probable label.

    Attributes:
        label: The most probable label.
        score: Probability of the label.
        scores: Probability of every label.
        truncated: Whether a part of the text was not read, see `Answer`.
        unknown: Whether the probability is below the threshold of the file that computed it, so that the label should
            not be believed; None if the file has no threshold.
    """

    label: str
    score: float
    scores: dict[str, float]
    truncated: bool
    unknown: bool | None = None

    def fields(self, top: int = 1) -> dict[str, Any]:
        """Return the answer as a JSON object; it has the key ``unknown`` if the file has a threshold."""
        out: dict[str, Any] = {"label": self.label, "score": round(self.score, 6)}
        if self.unknown is not None:
            out["unknown"] = self.unknown
        if top > 1:
            out["top"] = [{"label": n, "score": round(s, 6)} for n, s in _ranked(self.scores)[:top]]
        return out

    def line(self, top: int = 1) -> str:
        """Return the `top` labels with their probabilities for a terminal, after ``(unknown)`` if below a threshold."""
        line = "\t".join(f"{escape_separators(name)}\t{score:.4f}" for name, score in _ranked(self.scores)[:top])
        return f"(unknown)\t{line}" if self.unknown else line


@dataclass(frozen=True)
class Labelling:
    """The answer of a multi-label classifier: any number of labels of one text.

    Attributes:
        labels: Labels whose probability reaches their threshold, the most probable first.
        scores: Probability of every label.
        truncated: Whether a part of the text was not read, see `Answer`.
    """

    labels: tuple[str, ...]
    scores: dict[str, float]
    truncated: bool

    def fields(self, top: int = 1) -> dict[str, Any]:
        """Return a JSON object with the labels, and the scores of these and of the `top` most probable labels."""
        ranked = _ranked(self.scores)
        shown = [(n, s) for i, (n, s) in enumerate(ranked) if n in self.labels or i < top]
        return {"labels": list(self.labels), "scores": {n: round(s, 6) for n, s in shown}}

    def line(self, top: int = 1) -> str:
        """Return the labels with their probabilities, or ``(none)``, for a terminal."""
        return "\t".join(f"{escape_separators(n)}\t{self.scores[n]:.4f}" for n in self.labels) or "(none)"


@dataclass(frozen=True)
class Value:
    """The answer of a regression model: a number.

    Attributes:
        value: The number, in the units of the training data.
        truncated: Whether a part of the text was not read, see `Answer`.
    """

    value: float
    truncated: bool

    def fields(self, top: int = 1) -> dict[str, Any]:
        """Return the number as a JSON object."""
        return {"value": round(self.value, 6)}

    def line(self, top: int = 1) -> str:
        """Return the number, with four decimals, for a terminal."""
        return f"{self.value:.4f}"


@dataclass(frozen=True)
class FoundSpan:
    """A labelled piece (entity) that was found in a text.

    Attributes:
        start: Index of the first character, in code points.
        end: Index of the character after the last one.
        label: Label of the piece.
        text: The piece of the text.
        score: Mean probability of the tags of the words in the piece.
    """

    start: int
    end: int
    label: str
    text: str
    score: float


@dataclass(frozen=True)
class Spans:
    """The answer of a token classifier: all labelled pieces of a text.

    Attributes:
        spans: The pieces, in the order of the text.
        truncated: Whether a part of the text was not read, see `Answer`.
    """

    spans: tuple[FoundSpan, ...]
    truncated: bool

    def fields(self, top: int = 1) -> dict[str, Any]:
        """Return all spans with their positions and scores as a JSON object."""
        return {"spans": [{**vars(s), "score": round(s.score, 6)} for s in self.spans]}

    def line(self, top: int = 1) -> str:
        """Return label, position and text of each span, or ``(none)``, for a terminal."""
        return (
            "; ".join(
                f"{escape_separators(s.label)} [{s.start}:{s.end}] {escape_separators(s.text)}" for s in self.spans
            )
            or "(none)"
        )


@dataclass(frozen=True)
class Excerpt:
    """The answer of a question-answering model: a piece of the context.

    Attributes:
        text: The answer as it stands in the context; empty if the model predicts that there is none.
        start: Index of the answer's first character in the context, in code points.
        end: Index of the character after the last one.
        score: Probability of the first token times that of the last token, in the window in which the answer was found.
            If `text` is empty, it is the score of the best answer, which "no answer" surpassed.
        truncated: Always false, because a long context is read in windows.
    """

    text: str
    start: int
    end: int
    score: float
    truncated: bool = False

    def fields(self, top: int = 1) -> dict[str, Any]:
        """Return the answer, its position and its score as a JSON object."""
        return {"answer": self.text, "start": self.start, "end": self.end, "score": round(self.score, 6)}

    def line(self, top: int = 1) -> str:
        """Return answer, position and score, or ``(no answer)``, for a terminal."""
        return f"{escape_separators(self.text) or '(no answer)'}\t[{self.start}:{self.end}]\t{self.score:.4f}"


@dataclass(frozen=True)
class Choice:
    """The answer of a multiple-choice model: the most probable of a question's choices.

    Attributes:
        index: Index of the chosen text among the choices, from 0.
        text: The chosen text.
        score: Probability of the chosen text.
        scores: Probability of each choice, in the order of the choices.
        numbers: The model's output for each choice, before the softmax.
        choices: The texts of the choices.
        truncated: Whether the question with one of the choices was too long, see `Answer`.
    """

    index: int
    text: str
    score: float
    scores: tuple[float, ...]
    numbers: tuple[float, ...]
    choices: tuple[str, ...] = field(repr=False)
    truncated: bool

    def fields(self, top: int = 1) -> dict[str, Any]:
        """Return the number, text and probability of the choice as a JSON object, with up to `top` choices."""
        ranked = [{"choice": i, "answer": self.choices[i], "score": round(s, 6)} for i, s in self._ranked()[:top]]
        return {**ranked[0], **({"top": ranked} if top > 1 else {})}

    def line(self, top: int = 1) -> str:
        """Return number, text and probability of the `top` most probable choices for a terminal."""
        return "\t".join(f"{i}\t{escape_separators(self.choices[i])}\t{s:.4f}" for i, s in self._ranked()[:top])

    def _ranked(self) -> list[tuple[int, float]]:
        """Return the number and probability of each choice, the most probable first."""
        return sorted(enumerate(self.scores), key=lambda item: -item[1])


@dataclass(frozen=True)
class Guess:
    """A token predicted for a masked position.

    Attributes:
        token: The token as the vocabulary spells it.
        text: The token decoded to text.
        score: Probability of the token.
    """

    token: str
    text: str
    score: float


@dataclass(frozen=True)
class Filled:
    """The answer of a fill-mask model: the tokens predicted for the masked positions of a text.

    Attributes:
        places: For each masked position, the most probable tokens, best first.
        truncated: Whether a part of the text was not read, see `Answer`.
    """

    places: tuple[tuple[Guess, ...], ...]
    truncated: bool

    def fields(self, top: int = 1) -> dict[str, Any]:
        """Return the `top` most probable tokens for each mask as a JSON object."""
        return {"masks": [[{**vars(g), "score": round(g.score, 6)} for g in place[:top]] for place in self.places]}

    def line(self, top: int = 1) -> str:
        """Return for each mask the `top` most probable tokens, or ``(no mask in the text)``, for a terminal."""
        shown = (" ".join(f"{escape_separators(g.text)} {g.score:.4f}" for g in place[:top]) for place in self.places)
        return " | ".join(shown) or "(no mask in the text)"


@dataclass(frozen=True)
class Embedding:
    """The answer of an embedding model: the vector of a text.

    Attributes:
        vector: The vector, float32 [H].
        truncated: Whether a part of the text was not read, see `Answer`.
    """

    vector: NDArray[np.float32] = field(repr=False)
    truncated: bool = False

    def cut(self, dimensions: int) -> Embedding:
        """Return the first `dimensions` numbers of the vector, scaled to length 1, for a model trained for such cuts.

        Its recipe (`answer.dimensions`) and its model card list the lengths that it was trained for; others are not refused.

        Raises:
            ValueError: If the vector does not have so many numbers.
        """
        if not 1 <= dimensions <= len(self.vector):
            raise ValueError(
                f"a vector of {len(self.vector)} numbers has no first {dimensions}; allowed: 1 to {len(self.vector)}"
            )
        first = self.vector[:dimensions]
        return Embedding(first / max(float(np.linalg.norm(first)), 1e-12), self.truncated)

    def fields(self, top: int = 1) -> dict[str, Any]:
        """Return all numbers of the vector, rounded to seven decimals, as a JSON object."""
        return {"embedding": [round(float(v), 7) for v in self.vector]}

    def line(self, top: int = 1) -> str:
        """Return the first six numbers of the vector, and how many there are, for a terminal."""
        shown = " ".join(f"{v:.4f}" for v in self.vector[:6])
        return f"[{shown} ... {len(self.vector)} numbers]"


@dataclass(frozen=True)
class HeadAnswers:
    """The answers of a model with several heads to one text, computed in one pass.

    Attributes:
        answers: The answer of each head by its name, such as a `Prediction` of ``intent`` and the `Spans` of ``slots``.
    """

    answers: dict[str, Answer]

    @property
    def truncated(self) -> bool:
        """Whether a part of the text was not read, see `Answer`."""
        return any(answer.truncated for answer in self.answers.values())

    def fields(self, top: int = 1) -> dict[str, Any]:
        """Return a JSON object with the fields of each head's answer under the head's name."""
        return {name: answer.fields(top) for name, answer in self.answers.items()}

    def line(self, top: int = 1) -> str:
        """Return each head's name with its answer's line behind it, separated by tabs, for a terminal."""
        return "\t".join(f"{name}\t{answer.line(top)}" for name, answer in self.answers.items())


def mark_unknown_answers(answers: Sequence[Answer], thresholds: Sequence[float | None]) -> list[Answer]:
    """Return the answers, with each label marked as unknown whose probability is below the text's threshold.

    Args:
        answers: One answer per text; answers that are no `Prediction` are returned as they are.
        thresholds: For each text, the probability below which its answer is unknown; None if no answer is. Texts may
            have different thresholds, since each may have been computed by another file.
    """
    return [
        replace(a, unknown=a.score < threshold) if isinstance(a, Prediction) and threshold is not None else a
        for a, threshold in zip(answers, thresholds, strict=True)
    ]


def _ranked(scores: dict[str, float]) -> list[tuple[str, float]]:
    """Sort labels with their scores, the largest score first."""
    return sorted(scores.items(), key=lambda item: -item[1])
