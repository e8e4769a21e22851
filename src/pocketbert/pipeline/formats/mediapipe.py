"""MediaPipe's file: its contents in addition to the graph, and how its tokenizer changes the answers, measured with an emulation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from pydantic import BaseModel

from pocketbert.core.compare.sample_texts import ASCII_SENTENCES, UNICODE_SENTENCES
from pocketbert.core.predict.pooling import DEFAULT_POOLING, pooling_of
from pocketbert.core.predict.readout import run_rows, whole
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import Task, TaskName
from pocketbert.core.types import Format
from pocketbert.pipeline.formats.about import description_of, maker
from pocketbert.pipeline.formats.run_model import RunModel
from pocketbert.runtime.engines import open_file

_SAME = 1e-5


class TokenizerEffect(BaseModel):
    """How often MediaPipe sees other tokens than the model was trained on.

    Attributes:
        sentences: How many sentences with accents, other scripts and emoji were tried.
        ids: Share of them that get other ids.
        scores: Share of them whose probabilities (of embedders: vectors) differ by more than 1e-5.
        labels: Share of them that get another label; None of embedders.
        ascii: Share of plain ASCII sentences that get other ids; 0 where all is well.
    """

    sentences: int
    ids: float
    scores: float
    labels: float | None
    ascii: float

    @property
    def summary(self) -> str:
        """One sentence for the card."""
        answers = (
            f"{self.scores:.0%} other vectors"
            if self.labels is None
            else f"{self.scores:.0%} other probabilities and {self.labels:.0%} another label"
        )
        return (
            f"Its built-in tokenizer keeps accents and lower-cases A-Z only: of {self.sentences} sentences with accents, other "
            f"scripts and emoji {self.ids:.0%} get other tokens, {answers} than with `tokenizer.json`; of {len(ASCII_SENTENCES)} ASCII sentences {self.ascii:.0%} get other tokens "
            "(by an emulation of that tokenizer, which the project's tests compare with MediaPipe itself)."
        )


def tokenizer_effect(file: Path, weights: Path, task: Task) -> TokenizerEffect:
    """Run a MediaPipe file on both tokenizations of the project's sentences.

    Args:
        file: ``mediapipe.tflite``.
        weights: Folder with tokenizer.json and vocab.txt.
        task: What the file does.
    """
    from pocketbert.export.mediapipe import MediaPipeTokenizer

    predictor = open_file(file, Format.TFLITE)
    length = max(predictor.lengths)
    own, theirs = TextTokenizer(weights, length), MediaPipeTokenizer(weights, length)
    # an app puts the default prompt in front itself, as the card's code does
    ours, others = own.encode(UNICODE_SENTENCES), theirs.encode(own.prompts.put_before(UNICODE_SENTENCES))
    # each pads on its own side: MediaPipe always on the right
    before, after = (
        whole(run_rows(predictor, tokenizer, rows, task)).astype(np.float64)
        for tokenizer, rows in ((own, ours), (theirs, others))
    )
    known = own.prompts.put_before(ASCII_SENTENCES)
    plain = zip(own.encode(ASCII_SENTENCES), theirs.encode(known), strict=True)
    return TokenizerEffect(
        sentences=len(ours),
        ids=float(np.mean([not np.array_equal(a.ids, b.ids) for a, b in zip(ours, others, strict=True)])),
        scores=float(np.mean(np.abs(before - after).max(-1) > _SAME)),
        labels=float(np.mean(before.argmax(-1) != after.argmax(-1))) if task.names_labels else None,
        ascii=float(np.mean([not np.array_equal(a.ids, b.ids) for a, b in plain])),
    )


def _output(model: RunModel) -> dict[str, str]:
    if model.task.name is not TaskName.FEATURE_EXTRACTION:
        return {}
    return {"output": (pooling_of(model.weights) or DEFAULT_POOLING).title}


def write_client_data(model: RunModel, path: Path) -> None:
    """Put tokenizer and labels into a file for MediaPipe, before or after quantization."""
    from pocketbert.export.mediapipe_vocabulary import vocabulary_of
    from pocketbert.export.tflite_metadata import MediaPipeInfo, write_metadata

    info = MediaPipeInfo(
        name=model.recipe.name,
        description=description_of(model.recipe, model.folder, model.task),
        version=f"made by {maker()}",
        author="",
        license=model.folder.licence,
        labels=model.labels,
        vocabulary=vocabulary_of(model.weights),
        **_output(model),
    )
    path.write_bytes(write_metadata(path.read_bytes(), info))
