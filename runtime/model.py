"""An opened artefact folder: text in, labels out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.artefacts import Artefacts, FileRecord, read_artefacts
from pocketbert.core.errors import GateError, InputError, Problem, nearest
from pocketbert.core.evaluate import probabilities
from pocketbert.core.predictor import run_encoded
from pocketbert.core.tokenization import Text, TextTokenizer
from pocketbert.core.types import Format, Scheme, Status
from pocketbert.runtime.engines import open_file
from pocketbert.runtime.selftest import self_test

BATCH = 32
"""Rows at once: larger batches gain nothing on a CPU and cost memory."""
SLACK = 0.0
"""Share of padding allowed in a batch. Rows of equal length are plenty in any larger input."""


@dataclass(frozen=True)
class Prediction:
    """The answer for one text.

    Attributes:
        label: Most probable label.
        score: Its probability.
        scores: Probability of every label.
        truncated: Whether the text was longer than the model takes, so that its end was not read.
    """

    label: str
    score: float
    scores: dict[str, float]
    truncated: bool


class Model:
    """An artefact folder opened for prediction; made by `load`."""

    def __init__(self, folder: Path, artefacts: Artefacts, record: FileRecord, threads: int | None) -> None:
        self.folder, self.artefacts, self.record = folder, artefacts, record
        processing = artefacts.processing
        self.tokenizer = TextTokenizer(folder, processing.max_length)
        self.predictor = open_file(folder / record.path, record.format or Format.ONNX, threads)
        self_test(self.predictor, self.tokenizer, folder, record)

    @property
    def labels(self) -> list[str]:
        """Label names in order of their ids."""
        return self.artefacts.labels

    def logits(self, texts: Sequence[Text], label: str = "") -> tuple[NDArray[np.float32], list[bool]]:
        """Raw outputs.

        Args:
            texts: N texts or pairs.
            label: What a progress bar says; empty for none.

        Returns:
            Logits [N, labels], and per text whether it was truncated.
        """
        encoded = self.tokenizer.encode(list(texts))
        out = run_encoded(
            self.predictor,
            self.tokenizer,
            encoded,
            BATCH,
            SLACK,
            self.artefacts.processing.padding_side,
            label,
        )
        return np.asarray(out[self.predictor.outputs[0]], np.float32), [e.truncated for e in encoded]

    def predict(self, texts: Sequence[Text] | str, progress: str = "") -> list[Prediction]:
        """Classify texts.

        Args:
            texts: Texts, or pairs as tuples; a single string is one text.
            progress: What a progress bar says; empty for none.

        Returns:
            One prediction per text, in order.
        """
        rows: list[Text] = [texts] if isinstance(texts, str) else list(texts)
        if not rows:
            return []
        logits, truncated = self.logits(rows, progress)
        scores = probabilities(logits, self.artefacts.processing.score)
        best = scores.argmax(-1)
        return [
            Prediction(
                label=self.labels[b], score=float(s[b]),
                scores=dict(zip(self.labels, map(float, s), strict=True)), truncated=t,
            )
            for s, b, t in zip(scores, best, truncated, strict=True)
        ]  # fmt: skip


def load(folder: str | Path, scheme: str | None = None, threads: int | None = None) -> Model:
    """Open an artefact folder.

    Args:
        folder: The folder that `pocketbert export` or `pocketbert run` wrote.
        scheme: ``int8``, ``fp32``; default the variant marked as default.
        threads: Threads; default all cores this process may use.

    Returns:
        A model whose `predict` takes texts.

    Raises:
        InputError: If the folder is no artefact folder, is incomplete, or has no such variant.
        GateError: If this machine computes the file wrongly, or the file failed its gates.
    """
    path = Path(folder)
    artefacts = read_artefacts(path)
    record = artefacts.default_model() if scheme is None else _variant(artefacts, scheme)
    if record.status is Status.FAILED:
        raise GateError([f"{record.path} is marked failed in {path}; it was never meant to be used."])
    file = path / record.path
    if file.is_file() and file.stat().st_size != record.bytes:
        raise InputError(Problem(str(file), f"{file.stat().st_size:,} bytes, the folder's list says {record.bytes:,}.",
                                 "Copy the folder again."))  # fmt: skip
    return Model(path, artefacts, record, threads)


def _variant(artefacts: Artefacts, scheme: str) -> FileRecord:
    for record in artefacts.models():
        if record.scheme == scheme:
            return record
    have = [str(r.scheme) for r in artefacts.models()]
    known = ", ".join(s.value for s in Scheme)
    raise InputError(
        Problem("scheme", f"no '{scheme}' file in the folder; {nearest(scheme, have)}. Known: {known}.")
    )
