"""An opened artefact folder: text in, labels out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.artefacts import Artefacts, FileRecord, read_artefacts
from pocketbert.core.errors import GateError, InputError, MissingBackendError, Problem, nearest
from pocketbert.core.evaluate import probabilities
from pocketbert.core.files import path_bytes
from pocketbert.core.formats import FORMATS
from pocketbert.core.predictor import Predictor, run_encoded
from pocketbert.core.scored import PROBABILITIES
from pocketbert.core.tokenization import Text, TextTokenizer
from pocketbert.core.types import Format, Scheme, Status
from pocketbert.runtime.engines import open_file
from pocketbert.runtime.fastest import fastest
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

    def __init__(self, folder: Path, artefacts: Artefacts, record: FileRecord, predictor: Predictor) -> None:
        self.folder, self.artefacts, self.record, self.predictor = folder, artefacts, record, predictor
        most = artefacts.processing.max_length
        self.tokenizer = TextTokenizer(folder, min(most, max(predictor.lengths, default=most)))

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
        inside = self.predictor.outputs[0] == PROBABILITIES  # a file for MediaPipe computes them itself
        scores = logits if inside else probabilities(logits, self.artefacts.processing.score)
        best = scores.argmax(-1)
        return [
            Prediction(
                label=self.labels[b], score=float(s[b]),
                scores=dict(zip(self.labels, map(float, s), strict=True)), truncated=t,
            )
            for s, b, t in zip(scores, best, truncated, strict=True)
        ]  # fmt: skip


def load(
    folder: str | Path,
    scheme: str | None = None,
    threads: int | None = None,
    *,
    format: str | None = None,
    engine: str | None = None,
    file: str | None = None,
) -> Model:
    """Open an artefact folder.

    Args:
        folder: The folder that `pocketbert export` or `pocketbert run` wrote.
        scheme: ``int8``, ``fp32``, ...; default that of the variant marked as default.
        threads: Threads; default all cores this process may use.
        format: ``onnx``, ``tflite`` or ``coreml``; default that of the variant marked as default.
        engine: ``"fastest"`` for the fastest of the scheme's files at each length: measured once in a few seconds on
            this machine, then remembered. None for the one engine of the file.
        file: Path of one file of the folder, instead of scheme and format.

    Returns:
        A model whose `predict` takes texts.

    Raises:
        InputError: If the folder is no artefact folder, is incomplete, or has no such variant.
        GateError: If this machine computes the file wrongly, or the file failed its gates.
        MissingBackendError: If nothing here runs files of that format.
    """
    path = Path(folder)
    artefacts = read_artefacts(path)
    if engine not in (None, "fastest"):
        raise InputError(
            Problem(
                "engine", f"'{engine}' is unknown; known: fastest.", "Choose a file by format and scheme."
            )
        )
    if engine == "fastest":
        if format is not None or file is not None:
            raise InputError(
                Problem("engine", "'fastest' chooses the format and the file itself.", "Leave them out.")
            )
        return _fastest(path, artefacts, scheme, threads)
    record = _variant(artefacts, scheme, format, file)
    _check(path, record)
    predictor = open_file(path / record.path, record.format or Format.ONNX, threads)
    model = Model(path, artefacts, record, predictor)
    self_test(predictor, model.tokenizer, path, record)
    return model


def _fastest(path: Path, artefacts: Artefacts, scheme: str | None, threads: int | None) -> Model:
    """All plain files of one scheme whose engine is installed and computes them right."""
    default = _variant(artefacts, scheme, None, None)
    records = [r for r in artefacts.models() if r.plain and _timed(r) and _serves(r, default, scheme)]
    if not records:
        raise InputError(
            Problem(
                "engine",
                f"'fastest' finds no file like {default.path} that is run by its own engine here.",
                "Leave it out.",
            )
        )
    processing, right, refused = artefacts.processing, [], []
    tokenizer = TextTokenizer(path, processing.max_length)
    for record in records:
        _check(path, record)
        try:
            predictor = open_file(path / record.path, record.format or Format.ONNX, threads)
            self_test(predictor, tokenizer, path, record)
        except (MissingBackendError, GateError) as error:
            refused.append(error)
            continue
        right.append(record)
    if not right:
        raise refused[0]
    files = [(path / r.path, r.format or Format.ONNX) for r in right]
    chosen = fastest(files, threads, processing.max_length, tokenizer.pad_id, processing.padding_side)
    return Model(path, artefacts, right[0], chosen)


def _counterparts(default: FileRecord, format: Format) -> set[Scheme]:
    """What a format calls the default file's scheme: int8 of the others is w8 in Core ML, and its fp16 is their fp32."""
    scheme, info = default.scheme or Scheme.FP32, FORMATS[default.format or Format.ONNX]
    if scheme in (Scheme.FP32, info.base):
        return {Scheme.FP32, FORMATS[format].base}
    asked = {scheme, *(wish for wish, given in info.instead.items() if given is scheme)}
    return {FORMATS[format].instead.get(wish, wish) for wish in asked}


def _serves(record: FileRecord, default: FileRecord, scheme: str | None) -> bool:
    """Whether a file is what was asked for: by the scheme's name, or, without one, like the default file."""
    format = record.format or Format.ONNX
    if scheme is None:
        return record.scheme in _counterparts(default, format)
    known = scheme in {s.value for s in Scheme}
    return record.scheme == scheme or (known and record.scheme == FORMATS[format].instead.get(Scheme(scheme)))


def _timed(record: FileRecord) -> bool:
    return record.format is not None and FORMATS[record.format].timed


def _check(path: Path, record: FileRecord) -> None:
    if record.status is Status.FAILED:
        raise GateError([f"{record.path} is marked failed in {path}; it was never meant to be used."])
    file = path / record.path
    if file.exists() and (size := path_bytes(file)) != record.bytes:
        raise InputError(Problem(str(file), f"{size:,} bytes, the folder's list says {record.bytes:,}.",
                                 "Copy the folder again."))  # fmt: skip


def _variant(artefacts: Artefacts, scheme: str | None, format: str | None, file: str | None) -> FileRecord:
    models = artefacts.models()
    if file is not None:
        found = [r for r in models if r.path == file]
        if found and scheme is None and format is None:
            return found[0]
        names = [r.path for r in models]
        why = f"no model file '{file}' in the folder; {nearest(file, names)}"
        raise InputError(
            Problem("file", why if not found else "names a file already; leave scheme and format out")
        )
    default = artefacts.default_model()
    wanted = (scheme or default.scheme, format or default.format)
    same = [r for r in models if r.plain and r.format == wanted[1]]
    for record in [*(r for r in same if r.scheme == wanted[0]), *same]:
        if _serves(record, default, scheme):
            return record
    have = ", ".join(f"{r.format} {r.scheme}" for r in models if r.plain)
    problems = []
    if scheme is not None and scheme not in [str(r.scheme) for r in models]:
        known = ", ".join(s.value for s in Scheme)
        names = list(dict.fromkeys(str(r.scheme) for r in models))
        problems.append(
            Problem("scheme", f"no '{scheme}' file in the folder; {nearest(scheme, names)}. Known: {known}.")
        )
    if format is not None and format not in [str(r.format) for r in models]:
        names = list(dict.fromkeys(str(r.format) for r in models))
        problems.append(Problem("format", f"no '{format}' file in the folder; {nearest(format, names)}."))
    both = Problem("scheme", f"the folder has no {wanted[1]} {wanted[0]}; it has {have}.")
    raise InputError(problems or [both])
