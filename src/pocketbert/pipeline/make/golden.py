"""The step that records golden rows: what the torch model and every file answer, and the tokenizer's own rows."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.compare.evaluate import yardstick
from pocketbert.core.compare.golden import GOLDEN_FILE, TOKENS_FILE_NAME, GoldenRow, write_golden
from pocketbert.core.compare.parity import drawn_pool, padded_answers, printable
from pocketbert.core.compare.sample_texts import sample_pairs
from pocketbert.core.host.progress import say
from pocketbert.core.models.folder import ModelFolder
from pocketbert.core.predict.inputs import columns_of
from pocketbert.core.predict.predictor import (
    PROBABILITIES,
    Batching,
    Matrix,
    Predictor,
    TorchPredictor,
    per_token,
    run_rows,
    whole,
)
from pocketbert.core.predict.scores import probabilities
from pocketbert.core.predict.tokenization import Encoded, Text, TextTokenizer
from pocketbert.core.seeds import generator
from pocketbert.core.tasks import LabelKind, Task
from pocketbert.pipeline.formats.base import ModelFile, RunModel, bounds_of, place_of
from pocketbert.pipeline.reference import (
    answered,
    decided,
    drawn_questions,
    own_texts,
    shown_labels,
    takes_both,
    word_table,
)
from pocketbert.runtime.engines import open_file

# --- reaching ---
# Texts to which a model answers labels that other texts do not reach: chosen, then composed of words of the vocabulary.


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


ROWS = 40
SEARCHED = 512
"""Texts of the data that are looked at for labels that the first `ROWS` do not reach."""
PLACES = 12
"""Most tokens of a text whose answers are recorded."""
COLUMNS = 256
"""Most columns of an answer that are recorded: vocabularies and vectors are wider."""


def make_golden(
    model: RunModel, torch_model: TorchPredictor, texts: Sequence[Text], destination: Path, files: Sequence[ModelFile]
) -> Sequence[str]:
    """Write golden rows.

    A text that is longer than a file takes (MediaPipe's has one length) gets no row for that file.

    Args:
        model: The exported model.
        torch_model: The same in torch.
        texts: Texts of the data, `SEARCHED` of them; empty without data.
        destination: Folder to write into.
        files: Files in the run folder.

    Returns:
        One line for each file that answers NaN or infinity.
    """
    tokenizer, task = model.tokenizer, model.task
    real = golden_texts(model.folder, task, texts, tokenizer)
    drawn = _drawn_texts(model, torch_model, files)
    have = tokenizer.noted([*real, *drawn])
    known = run_rows(torch_model, tokenizer, tokenizer.encode(have), task)
    rows = [*have, *tokenizer.noted(_reaching_texts(model, torch_model, have, known, texts))]
    encoded = tokenizer.encode(rows)

    def answers(predictor: Predictor, numbers: Sequence[int]) -> list[Matrix]:
        return run_rows(predictor, tokenizer, [encoded[i] for i in numbers], task)

    every = range(len(rows))
    reference = [*known, *answers(torch_model, every[len(have) :])]
    padded = padded_answers(torch_model, tokenizer, encoded, task)
    labels = model.folder.labels or []
    blank = [blank_row(text, matrix, task, labels) for text, matrix in zip(rows, reference, strict=True)]
    found: dict[str, dict[int, Matrix]] = {}
    allowed: dict[str, float] = {}
    for file in files:
        predictor = open_file(model.source(file), file.format, runtime=file.runtime)
        longest = max(predictor.lengths, default=model.length)
        numbers = [i for i in every if len(encoded[i]) <= longest]
        values = answers(predictor, numbers)
        if not all(np.isfinite(v).all() for v in values):
            return [f"{file.path}: NaN or infinite logits on golden rows."]
        inside = PROBABILITIES in predictor.outputs
        like = [probabilities(m, task.score).astype(np.float32) for m in reference] if inside else reference
        picked = [row.pick(m) for row, m in zip(blank, like, strict=True)]
        allowed[file.path] = bounds_of(file).golden * yardstick(whole(picked))
        found[file.path] = dict(zip(numbers, values, strict=True))
    golden = [
        row.model_copy(
            update={
                "reference": _plain(row.pick(reference[i])),
                "padded": _plain(row.pick(padded[i])),
                "outputs": {p: _plain(row.pick(v[i])) for p, v in found.items() if i in v},
                "tolerance": {p: allowed[p] for p, v in found.items() if i in v},
                "drawn": len(real) <= i < len(real) + len(drawn),
            }
        )
        for i, row in enumerate(blank)
    ]
    write_golden(destination / GOLDEN_FILE, golden)
    token_rows = [json.dumps(tokenizer.golden(t), ensure_ascii=False) for t in tokenizer.prompts.put_before(rows)]
    (destination / TOKENS_FILE_NAME).write_text("\n".join(token_rows) + "\n", encoding="utf-8")
    return ()


def blank_row(text: Text, matrix: Matrix, task: Task, labels: Sequence[str]) -> GoldenRow:
    """Make a row that knows what it records: all of a small answer, tokens spread over a long one, columns of a wide one."""
    places = _spread(len(matrix), PLACES) if per_token(task) else []
    columns: list[int] = []
    if matrix.shape[1] > COLUMNS:
        best = np.argsort(-matrix[places or [0]].max(0), kind="stable")[: COLUMNS // 4].tolist()
        # as many in every row, so that rows can be put below each other
        others = np.setdiff1d(np.arange(matrix.shape[1]), best)
        columns = sorted({*best, *others[_spread(len(others), COLUMNS - len(best))].tolist()})
    row = GoldenRow(
        text=text,
        label="",
        reference=[],
        outputs={},
        tolerance={},
        places=places,
        columns=columns,
        data=dict(columns_of(text) or {}),
    )
    return row.model_copy(update={"label": decided(row.pick(matrix), task, row.names(labels))})


def _spread(count: int, most: int) -> list[int]:
    """Up to `most` numbers below `count`, evenly spread, the first and the last among them."""
    return sorted({round(i) for i in np.linspace(0, count - 1, min(count, most))})


def golden_texts(folder: ModelFolder, task: Task, texts: Sequence[Text], tokenizer: TextTokenizer) -> list[Text]:
    """Rows from the data where there is any, filled up with the project's own, and four pairs."""
    own = own_texts(task, tokenizer)
    mixed = [*texts[: ROWS - 12], *own[-12:]] if texts else own
    pairs = folder.family.uses_segments and takes_both(task)
    return mixed + (list(sample_pairs()[:4]) if pairs else [])


def _drawn_texts(model: RunModel, reference: TorchPredictor, files: Sequence[ModelFile]) -> list[Text]:
    """Texts of drawn words that fill the longest input of every file."""
    longest = {max(place_of(f.format).lengths(model.recipe, f, model.length)) for f in files}
    segments = model.folder.family.uses_segments
    return [
        text
        for length in sorted(longest, reverse=True)
        for text in drawn_questions(reference, model.tokenizer, segments, model.task, length)
    ]


def _reaching_texts(
    model: RunModel,
    reference: TorchPredictor,
    have: Sequence[Text],
    answers: Sequence[Matrix],
    data: Sequence[Text],
) -> list[Text]:
    """Texts that reach labels which those at hand do not: of the data, else composed."""
    labels, task, tokenizer = model.folder.labels or [], model.task, model.tokenizer
    if not labels or not task.names_labels:
        return []

    def recorded(matrix: Matrix) -> Matrix:
        return matrix[_spread(len(matrix), PLACES)] if per_token(task) else matrix

    seen = {i for m in map(recorded, answers) if np.isfinite(m).all() for i in answered(m, task)}
    search = Search(reference, tokenizer, recorded, [i for i in range(len(labels)) if i not in seen])
    search.try_texts([*texts_not_in(data, have), *texts_not_in(own_texts(task, tokenizer), have)])
    search.compose()
    found = search.result()
    if found.missing:
        cut = f" (the search ended after {SECONDS:.0f} s)" if found.ended else ""
        say(
            f"  golden rows reach {len(labels) - len(found.missing)} of {len(labels)} labels; not reached: {shown_labels([labels[i] for i in found.missing])}{cut}"
        )
    return found.texts


def texts_not_in(texts: Sequence[Text], others: Sequence[Text]) -> list[Text]:
    """Those of some texts that are not among others."""
    known = set(others)
    return [t for t in texts if t not in known]


def _plain(values: Matrix) -> list[float]:
    return [float(v) for v in values.ravel()]
