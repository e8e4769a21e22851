"""What a model answers to one text, for each task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.host.terminal import one_field


class Answer(Protocol):
    """The answer for one text.

    Attributes:
        truncated: Whether the text was longer than the model takes, so that its end was not read.
    """

    @property
    def truncated(self) -> bool:
        """Whether the end of the text was not read."""
        ...

    def fields(self, top: int = 1) -> dict[str, Any]:
        """The answer as JSON has it, with up to `top` alternatives where the task has them."""
        ...

    def line(self, top: int = 1) -> str:
        """The answer for people: fields separated by tabs, without a break or tab inside one."""
        ...


@dataclass(frozen=True)
class Prediction:
    """One label of several.

    Attributes:
        label: Most probable label.
        score: Its probability.
        scores: Probability of every label.
        truncated: See `Answer`.
        unknown: Whether the probability lies below the threshold of the file that computed it, so that the label should not be
            believed; None where it has no threshold.
    """

    label: str
    score: float
    scores: dict[str, float]
    truncated: bool
    unknown: bool | None = None

    def fields(self, top: int = 1) -> dict[str, Any]:
        """See `Answer`; ``unknown`` is there where the file has a threshold."""
        out: dict[str, Any] = {"label": self.label, "score": round(self.score, 6)}
        if self.unknown is not None:
            out["unknown"] = self.unknown
        if top > 1:
            out["top"] = [{"label": n, "score": round(s, 6)} for n, s in _ranked(self.scores)[:top]]
        return out

    def line(self, top: int = 1) -> str:
        """See `Answer`; an unknown one begins with ``(unknown)``."""
        told = "\t".join(f"{one_field(name)}\t{score:.4f}" for name, score in _ranked(self.scores)[:top])
        return f"(unknown)\t{told}" if self.unknown else told


@dataclass(frozen=True)
class Labelling:
    """Any number of labels.

    Attributes:
        labels: Labels whose probability reaches their threshold, the most probable first.
        scores: Probability of every label.
        truncated: See `Answer`.
    """

    labels: tuple[str, ...]
    scores: dict[str, float]
    truncated: bool

    def fields(self, top: int = 1) -> dict[str, Any]:
        """See `Answer`."""
        ranked = _ranked(self.scores)
        shown = [(n, s) for i, (n, s) in enumerate(ranked) if n in self.labels or i < top]
        return {"labels": list(self.labels), "scores": {n: round(s, 6) for n, s in shown}}

    def line(self, top: int = 1) -> str:
        """See `Answer`."""
        return "\t".join(f"{one_field(n)}\t{self.scores[n]:.4f}" for n in self.labels) or "(none)"


@dataclass(frozen=True)
class Value:
    """A predicted number.

    Attributes:
        value: In the units of the training data.
        truncated: See `Answer`.
    """

    value: float
    truncated: bool

    def fields(self, top: int = 1) -> dict[str, Any]:
        """See `Answer`."""
        return {"value": round(self.value, 6)}

    def line(self, top: int = 1) -> str:
        """See `Answer`."""
        return f"{self.value:.4f}"


@dataclass(frozen=True)
class FoundSpan:
    """A named piece of the text.

    Attributes:
        start: Its first character, in code points.
        end: The character behind its last.
        label: What it is.
        text: The piece.
        score: Mean probability of its words' tags.
    """

    start: int
    end: int
    label: str
    text: str
    score: float


@dataclass(frozen=True)
class Spans:
    """Named pieces of the text.

    Attributes:
        spans: In the order of the text.
        truncated: See `Answer`.
    """

    spans: tuple[FoundSpan, ...]
    truncated: bool

    def fields(self, top: int = 1) -> dict[str, Any]:
        """See `Answer`."""
        return {"spans": [{**vars(s), "score": round(s.score, 6)} for s in self.spans]}

    def line(self, top: int = 1) -> str:
        """See `Answer`."""
        return (
            "; ".join(f"{one_field(s.label)} [{s.start}:{s.end}] {one_field(s.text)}" for s in self.spans) or "(none)"
        )


@dataclass(frozen=True)
class Excerpt:
    """A piece of a context that answers a question.

    Attributes:
        text: The answer as it stands in the context; empty where the model says there is none.
        start: Its first character in the context, in code points.
        end: The character behind its last.
        score: Probability of this start times that of this end, within the window it was found in.
        truncated: Never: a long context is read in windows.
    """

    text: str
    start: int
    end: int
    score: float
    truncated: bool = False

    def fields(self, top: int = 1) -> dict[str, Any]:
        """See `Answer`."""
        return {"answer": self.text, "start": self.start, "end": self.end, "score": round(self.score, 6)}

    def line(self, top: int = 1) -> str:
        """See `Answer`."""
        return f"{one_field(self.text) or '(no answer)'}\t[{self.start}:{self.end}]\t{self.score:.4f}"


@dataclass(frozen=True)
class Guess:
    """A token for a masked place.

    Attributes:
        token: As the vocabulary spells it.
        text: As it reads.
        score: Its probability.
    """

    token: str
    text: str
    score: float


@dataclass(frozen=True)
class Filled:
    """Tokens for the masked places of a text.

    Attributes:
        places: For each masked place the most probable tokens, best first.
        truncated: See `Answer`.
    """

    places: tuple[tuple[Guess, ...], ...]
    truncated: bool

    def fields(self, top: int = 1) -> dict[str, Any]:
        """See `Answer`."""
        return {"masks": [[{**vars(g), "score": round(g.score, 6)} for g in place[:top]] for place in self.places]}

    def line(self, top: int = 1) -> str:
        """See `Answer`."""
        shown = (" ".join(f"{one_field(g.text)} {g.score:.4f}" for g in place[:top]) for place in self.places)
        return " | ".join(shown) or "(no mask in the text)"


@dataclass(frozen=True)
class Embedding:
    """The vector of a text.

    Attributes:
        vector: [H] float32.
        truncated: See `Answer`.
    """

    vector: NDArray[np.float32] = field(repr=False)
    truncated: bool = False

    def fields(self, top: int = 1) -> dict[str, Any]:
        """See `Answer`."""
        return {"embedding": [round(float(v), 7) for v in self.vector]}

    def line(self, top: int = 1) -> str:
        """See `Answer`."""
        shown = " ".join(f"{v:.4f}" for v in self.vector[:6])
        return f"[{shown} ... {len(self.vector)} numbers]"


def marked(answers: Sequence[Answer], thresholds: Sequence[float | None]) -> list[Answer]:
    """Say of each label whether it is unknown.

    Args:
        answers: One per text; those that are no `Prediction` stay as they are.
        thresholds: Probability below which each is unknown; None for never. Files have different ones, and a text is computed by
            one of several where they take turns.
    """
    return [
        replace(a, unknown=a.score < least) if isinstance(a, Prediction) and least is not None else a
        for a, least in zip(answers, thresholds, strict=True)
    ]


def _ranked(scores: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(scores.items(), key=lambda item: -item[1])
