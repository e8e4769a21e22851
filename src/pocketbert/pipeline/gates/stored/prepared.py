"""The model of a folder, prepared for each format once: what its files have to hold."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.models.checkpoints import load_model, missing_for_weights
from pocketbert.core.models.folder import ModelFolder, open_model_folder
from pocketbert.core.predict.pooling import DEFAULT_POOLING, pooling_of
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import Task
from pocketbert.core.types import Format, Layout
from pocketbert.pipeline.gates.stored.compare import Reference
from pocketbert.pipeline.reference import sentence_batches

if TYPE_CHECKING:
    import torch

WEIGHTS, CONFIG = "model.safetensors", "config.json"


class PreparedModels:
    """The prepared modules of one model folder; nothing is loaded before the first one is asked for.

    Args:
        folder: A folder that may have ``model.safetensors``.
        task: What the model does.
        length: Longest input in tokens.
        model: The folder's torch model, where it is loaded already; it is not changed.
    """

    def __init__(self, folder: Path, task: Task, length: int, model: torch.nn.Module | None = None) -> None:
        self.folder, self.task, self.length, self._loaded = folder, task, length, model
        self._made: dict[tuple[Format, Layout, bool], Reference] = {}
        self._divided: set[tuple[Format, Layout]] = set()

    @property
    def absent(self) -> str | None:
        """Why there is nothing to compare with; None where there is."""
        if lost := missing_for_weights():
            return f"{lost[0]} is not installed here"
        missing = [name for name in (WEIGHTS, CONFIG) if not (self.folder / name).is_file()]
        return f"the folder has no {missing[0]}" if missing else None

    def reference(self, format: Format, layout: Layout) -> Reference:
        """Return the constants of the module that files of a format and layout are exported from."""
        return self._reference(format, layout, divided=True)

    def undivided(self, format: Format, layout: Layout) -> Reference | None:
        """Return those of files with outlier channels as in the model; None where `reference` is the same.

        Such files were exported by versions of PocketBERT that did not divide them.
        """
        self.reference(format, layout)
        return self._reference(format, layout, divided=False) if (format, layout) in self._divided else None

    def _reference(self, format: Format, layout: Layout, divided: bool) -> Reference:
        from pocketbert.export.prepare import carries_multiples, outliers_of, prepare
        from pocketbert.pipeline.gates.stored.trace import Trace

        if (format, layout, divided) not in self._made:
            pooling = pooling_of(self.folder) or DEFAULT_POOLING
            family, samples = self._opened.family, self._samples
            sentences = samples if divided else ()
            module = prepare(self._model, family, self.task, format, layout, pooling, samples, sentences)
            if outliers_of(module):
                self._divided.add((format, layout))
            trace = Trace(module, family.inputs, family.extra)
            multiples = carries_multiples(self._model, family, self.task, samples)
            self._made[format, layout, divided] = Reference(trace.constants, multiples, trace.of_length, trace.needed)
        return self._made[format, layout, divided]

    @cached_property
    def _opened(self) -> ModelFolder:
        return open_model_folder(str(self.folder))

    @cached_property
    def _model(self) -> Any:
        return load_model(self._opened, self.task) if self._loaded is None else self._loaded

    @cached_property
    def _samples(self) -> list[dict[str, NDArray[np.int64]]]:
        """Texts that large numbers inside a model are measured on; the exporter measured those of the data, too."""
        tokenizer = TextTokenizer(self.folder, self.length)
        return sentence_batches(self.task, tokenizer)
