"""Texts to which a model answers labels that other texts do not reach: chosen, then composed of words of the vocabulary."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.compare.probes import drawn_pool, printable
from pocketbert.core.predict.readout import Batching, Matrix, run_rows
from pocketbert.core.predict.tokenization import Encoded, Text, TextTokenizer
from pocketbert.core.predict.torch_predictor import TorchPredictor
from pocketbert.core.seeds import generator
from pocketbert.core.tasks import LabelKind, Task
from pocketbert.pipeline.reference import word_table

MOST_LABELS = 200
"""Most labels that are searched for, and most rows that are added."""
SECONDS = 20.0
"""Wall time at which a search ends; `WORK` ends it long before on machines that are not overloaded."""
WORK = 3e11
"""Parameters times tokens that given texts may take, and composed ones again: each machine then finds the same texts."""
TOKENS = 12_000
"""The most tokens that each may take, however small the model."""
CALL = 128
"""Tokens that a call of the model counts for beside its own."""
ALONE = 1024
"""Most words that are tried as texts of one word."""
WORDS = 8
"""Words of a composed text."""
STEPS = 10
"""Most changes of a composed text."""
TRIED = 24
"""Changes that are tried at a time, the most promising ones by the gradient."""
_BATCHING = Batching(32, 0.2)
_POOL = 4096
_SEED = 20_261_123

Numbers = NDArray[np.float32]


def margins(matrix: Matrix, task: Task) -> Numbers:
    """How far each label is from being answered, [labels]: above 0 it is.

    Of one label it is the logit less the largest other one, of several the logit, of tokens the best token's.
    """
    if task.labels is LabelKind.NAMES or matrix.shape[1] < 2:
        return np.asarray(matrix.max(0), np.float32)
    top = np.sort(matrix, -1)
    best = np.where(matrix == top[:, -1:], top[:, -2:-1], top[:, -1:])
    return np.asarray((matrix - best).max(0), np.float32)


@dataclass(frozen=True)
class Found:
    """What a search found.

    Attributes:
        texts: Texts to add, each of which reaches at least one more label.
        missing: Numbers of the labels that none reaches.
        ended: Whether the wall time ended it.
    """

    texts: list[Text]
    missing: list[int]
    ended: bool


class Search:
    """A search for texts that reach labels, with a budget of tokens.

    Args:
        reference: The model.
        tokenizer: Its tokenizer.
        pick: Takes the rows of an answer that will be recorded.
        wanted: Numbers of the labels.
    """

    def __init__(
        self,
        reference: TorchPredictor,
        tokenizer: TextTokenizer,
        pick: Callable[[Matrix], Matrix],
        wanted: Sequence[int],
    ) -> None:
        self.reference, self.tokenizer, self.pick = reference, tokenizer, pick
        self.wanted, self.others = list(wanted)[:MOST_LABELS], list(wanted)[MOST_LABELS:]
        self.best: dict[int, tuple[float, Text, Numbers]] = {}
        parameters = sum(p.numel() for p in reference.model.parameters()) - word_table(reference).weight.numel()
        self.budget = self.left = min(TOKENS, int(WORK / max(parameters, 1)))
        self.deadline = time.monotonic() + SECONDS
        self.ended = False

    @property
    def missing(self) -> list[int]:
        """Wanted labels that no text reaches so far."""
        return [w for w in self.wanted if w not in self.best or self.best[w][0] <= 0]

    def over(self) -> bool:
        """Whether there is nothing left to do or to do it with."""
        self.ended = self.ended or time.monotonic() > self.deadline
        return self.left <= 0 or self.ended or not self.missing

    def see(self, texts: Sequence[Text]) -> list[Numbers]:
        """Let the model answer texts, and remember the best one for each wanted label."""
        rows = self.tokenizer.encode(list(texts))
        self.left -= CALL + sum(map(len, rows))
        answers = run_rows(
            self.reference, self.tokenizer, rows, self.reference.task, _BATCHING, reduce=lambda _, m: self.pick(m)
        )
        found = [margins(m, self.reference.task) for m in answers]
        for text, margin in zip(texts, found, strict=True):
            for label in self.wanted:
                if label not in self.best or margin[label] > self.best[label][0]:
                    self.best[label] = (float(margin[label]), text, margin)
        return found

    def try_texts(self, texts: Sequence[Text]) -> None:
        """Look at given texts, in parts, until every label is reached."""
        for start in range(0, len(texts), 64):
            if self.over():
                return
            self.see(texts[start : start + 64])

    def compose(self) -> None:
        """Compose texts for the labels that are missing: first single words, then changes by the gradient."""
        self.left = self.budget
        if self.over():
            return
        words, ids = words_of(self.tokenizer, len(word_table(self.reference).weight))
        count = min(len(words), ALONE, max(self.left // 16, 64))
        if not count:
            return
        alone: list[Numbers] = []
        for start in range(0, count, 64):
            if self.over():
                return
            alone += self.see(words[start : start + 64])
        for label in sorted(self.missing, key=lambda w: -self.best[w][0]):  # those that are close first
            if self.over():
                return
            if label in self.missing:
                order = np.argsort([-m[label] for m in alone], kind="stable")
                self._climb(label, order[:WORDS].tolist(), words, ids)

    def _climb(self, label: int, start: list[int], words: Sequence[str], ids: NDArray[np.int64]) -> None:
        """Change one word of a text at a time while that brings the label closer."""
        starts = [start, start[:4], [start[0]] * 4, [start[0]]]
        values = [m[label] for m in self.see([_joined(words, s) for s in starts])]
        value, current = max(values), list(starts[int(np.argmax(values))])
        for _ in range(STEPS):
            if value > 0 or self.over():
                return
            changes = self._changes(label, _joined(words, current), len(current), ids)
            texts = [[*current[:p], w, *current[p + 1 :]] for p, w in changes]
            if not texts:
                return
            values = [m[label] for m in self.see([_joined(words, t) for t in texts])]
            if max(values) <= value:
                return
            value, current = max(values), texts[int(np.argmax(values))]

    def _changes(self, label: int, text: str, places: int, ids: NDArray[np.int64]) -> list[tuple[int, int]]:
        """Places and words that the gradient promises most of."""
        [row] = self.tokenizer.encode([text])
        self.left -= CALL + 3 * len(row)  # forward and backward
        first = _first(self.tokenizer)
        gradient, table = _gradient(self.reference, self.tokenizer, row, label)
        gradient = gradient[first : first + places]
        gain = gradient @ table[ids].T - (gradient * table[row.ids[first : first + places]]).sum(-1, keepdims=True)
        order = np.argsort(-gain, axis=None, kind="stable")[:TRIED]
        return [(int(i) // len(ids), int(i) % len(ids)) for i in order]

    def result(self) -> Found:
        """Choose from the best texts until every label that one of them reaches is reached."""
        missing, texts = self.missing, list[Text]()
        open_labels = [w for w in self.wanted if w not in missing]
        while open_labels:
            _, text, margin = self.best[open_labels[0]]
            texts.append(text)
            open_labels = [w for w in open_labels if margin[w] <= 0]
        return Found(texts, missing + self.others, self.ended)


def words_of(tokenizer: TextTokenizer, vocabulary: int) -> tuple[list[str], NDArray[np.int64]]:
    """Draw words that are one token inside a text, and their ids there."""
    pool = generator(_SEED, "words").permutation(drawn_pool(tokenizer, vocabulary))[:_POOL]
    words = list(dict.fromkeys(printable(tokenizer.decode([int(i)])).strip() for i in pool))
    words = [w for w in words if w and " " not in w]
    first = _first(tokenizer)
    special = len(tokenizer.frame(tokenizer.max_length)) - _ordinary(tokenizer)
    kept, ids, known = list[str](), list[int](), set(pool.tolist())
    for word, row in zip(words, tokenizer.encode([f"{w} {w}" for w in words]), strict=True):
        if len(row) == special + 2 and int(row.ids[first + 1]) in known:
            kept.append(word)
            ids.append(int(row.ids[first + 1]))
    return kept, np.array(ids, np.int64)


def _ordinary(tokenizer: TextTokenizer) -> int:
    places = tokenizer.frame(tokenizer.max_length).places
    return 0 if places is None else int((places.parts >= 0).sum())


def _first(tokenizer: TextTokenizer) -> int:
    """Place of the first piece of text in an input."""
    places = tokenizer.frame(tokenizer.max_length).places
    return 0 if places is None else int(np.argmax(places.parts >= 0))


def _joined(words: Sequence[str], numbers: Sequence[int]) -> str:
    return " ".join(words[n] for n in numbers)


def _gradient(reference: TorchPredictor, tokenizer: TextTokenizer, row: Encoded, label: int) -> tuple[Numbers, Numbers]:
    """How a label's margin changes with the embedding of each token, [L, H], and the table of embeddings, [V, H]."""
    import torch

    layer = word_table(reference)
    kept: list[torch.Tensor] = []

    def keep(_module: object, _inputs: object, output: torch.Tensor) -> torch.Tensor:
        kept.append(output.detach().requires_grad_())
        return kept[-1]

    hook = layer.register_forward_hook(keep)
    batch, device = tokenizer.pad([row]), layer.weight.device
    with torch.enable_grad():
        try:
            logits = reference.model(**{n: torch.from_numpy(batch[n]).to(device) for n in reference.inputs})["logits"]
        finally:
            hook.remove()
        logits = logits.reshape(-1, logits.shape[-1])
        others = torch.cat([logits[:, :label], logits[:, label + 1 :]], -1)
        several = reference.task.labels is LabelKind.NAMES or not others.shape[-1]
        aim = logits[:, label] - (0.0 if several else others.max(-1).values)
        [gradient] = torch.autograd.grad(aim.max(), kept[0])
    return gradient[0].cpu().numpy(), layer.weight.detach().cpu().numpy()
