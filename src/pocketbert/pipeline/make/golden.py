"""Record golden rows: texts with the answers of the torch model and of every file, and the tokenizer's own rows.

`answer_golden_rows` takes texts of the data, the project's own, texts of drawn words, and texts that `_find_label_texts` chooses or
composes so that every label is the answer to some row, and runs the torch model on them; `record_golden_rows` runs the files.
`blank_row` decides which numbers of an answer are recorded.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.compare.evaluate import logit_scale
from pocketbert.core.compare.golden import GOLDEN_FILE, GOLDEN_TOKENS_FILE, GoldenRow, write_golden
from pocketbert.core.compare.parity import drawable_ids, remove_unprintable, run_padded_rows
from pocketbert.core.compare.sample_texts import sample_pairs
from pocketbert.core.host.progress import print_note, report_parts
from pocketbert.core.host.system import leave_out_of_collection, release_memory
from pocketbert.core.predict.inputs import Encoded, Text, columns_of
from pocketbert.core.predict.predictor import (
    PROBABILITIES,
    Batching,
    Matrix,
    TorchPredictor,
    has_token_outputs,
    join_texts,
    run_rows,
)
from pocketbert.core.predict.scores import apply_score_function
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.seeds import generator
from pocketbert.core.tasks import LabelKind, Level, Task
from pocketbert.pipeline.formats.base import ModelFile, RunModel, bounds_of, format_place
from pocketbert.pipeline.reference import (
    answer_label_names,
    answered_labels,
    draw_reference_texts,
    project_texts,
    quote_labels,
    takes_texts_and_pairs,
    word_table,
)
from pocketbert.pipeline.results import choose_recorded_rows
from pocketbert.runtime.engines import open_file

ROWS = 40
"""Golden rows of the data and of the project's own texts."""
SEARCHED = 512
"""Texts of the data that are searched for labels that the first `ROWS` do not reach."""
PLACES = 12
"""Most tokens of a text whose answers are recorded."""
COLUMNS = 256
"""Most columns of an answer that are recorded: vocabularies and vectors are wider."""
_OWN_ROWS = 12


@leave_out_of_collection()
def answer_golden_rows(
    model: RunModel, torch_model: TorchPredictor, texts: Sequence[Text], files: Sequence[ModelFile]
) -> tuple[list[GoldenRow], list[Matrix]]:
    """Choose the texts of the golden rows (texts with recorded outputs), and run the torch model on them.

    Args:
        model: The exported model.
        torch_model: The exported model in torch.
        texts: Up to `SEARCHED` texts of the data; empty without data.
        files: Files in the run folder; texts reach the longest input of each.

    Returns:
        The rows, with the torch model's outputs in the recorded places, and its whole outputs, one matrix for each row.
    """
    tokenizer, task = model.tokenizer, model.task
    real, drawn = _choose_real_texts(model, texts), _draw_longest_texts(model, torch_model, files)
    first = tokenizer.noted([*real, *drawn])
    answers = run_rows(torch_model, tokenizer, tokenizer.encode(first), task)
    more = tokenizer.noted(_find_texts_of_missing_labels(model, torch_model, first, answers, texts))
    encoded = tokenizer.encode([*first, *more])
    answers += run_rows(torch_model, tokenizer, encoded[len(first) :], task)
    padded = run_padded_rows(torch_model, tokenizer, encoded, task)
    rows = []
    for i, (text, answer) in enumerate(zip([*first, *more], answers, strict=True)):
        row = blank_row(text, answer, task, model.folder.labels or [])
        recorded = {name: _to_floats(row.pick(m)) for name, m in (("reference", answer), ("padded", padded[i]))}
        rows.append(row.model_copy(update={**recorded, "drawn": len(real) <= i < len(real) + len(drawn)}))
    return rows, answers


@leave_out_of_collection()
def record_golden_rows(
    model: RunModel, rows: Sequence[GoldenRow], answers: Sequence[Matrix], destination: Path, files: Sequence[ModelFile]
) -> Sequence[str]:
    """Run each file on the golden rows, and write the rows with the outputs of the torch model and of every file.

    The outputs of a file are recorded on the rows that `choose_recorded_rows` chooses for it. The token ids of all rows
    are written to a second file. Each file is opened alone; the torch model need not be in memory any more.

    Args:
        model: The exported model.
        rows: The rows, with the torch model's outputs in the recorded places.
        answers: The torch model's whole outputs for the rows.
        destination: Folder to write into.
        files: Files in the run folder.

    Returns:
        A line for the first file with NaN or infinite outputs, in which case nothing is written. Empty if all are finite.
    """
    tokenizer, task, texts = model.tokenizer, model.task, [row.input for row in rows]
    encoded = tokenizer.encode(texts)
    outputs, tolerance = dict[str, dict[int, Matrix]](), dict[str, float]()
    for file in report_parts("golden rows", {file.path: file for file in files}):
        predictor = open_file(model.source(file), file.format, runtime=file.runtime)
        numbers = choose_recorded_rows(rows, [len(row) for row in encoded], predictor.lengths, file.format)
        values = run_rows(predictor, tokenizer, [encoded[i] for i in numbers], task)
        if not all(np.isfinite(v).all() for v in values):
            return [f"{file.path}: NaN or infinite logits on golden rows."]
        outputs[file.path] = dict(zip(numbers, values, strict=True))
        scored = PROBABILITIES in predictor.outputs
        del predictor  # before the next file is opened
        release_memory(model.source(file))
        expected = [apply_score_function(m, task.score).astype(np.float32) for m in answers] if scored else answers
        picked = join_texts([row.pick(m) for row, m in zip(rows, expected, strict=True)])
        tolerance[file.path] = bounds_of(file).golden * logit_scale(picked)
    golden = [
        row.model_copy(
            update={
                "outputs": {path: _to_floats(row.pick(v[i])) for path, v in outputs.items() if i in v},
                "tolerance": {path: tolerance[path] for path, v in outputs.items() if i in v},
            }
        )
        for i, row in enumerate(rows)
    ]
    write_golden(destination / GOLDEN_FILE, golden)
    token_rows = [json.dumps(tokenizer.golden(t), ensure_ascii=False) for t in tokenizer.prompts.put_before(texts)]
    (destination / GOLDEN_TOKENS_FILE).write_text("\n".join(token_rows) + "\n", encoding="utf-8")
    return ()


def _choose_real_texts(model: RunModel, texts: Sequence[Text]) -> list[Text]:
    """Return the first golden texts: texts of the data and some of the project's samples, at most `ROWS` in all.

    Without data they are all of the project's samples. Four pairs are added if the model has segments and its task takes
    single texts as well as pairs.
    """
    own = project_texts(model.task, model.tokenizer)
    mixed = [*texts[: ROWS - _OWN_ROWS], *own[-_OWN_ROWS:]] if texts else own
    pairs = model.folder.family.uses_segments and takes_texts_and_pairs(model.task)
    return mixed + (list(sample_pairs()[:4]) if pairs else [])


def _draw_longest_texts(model: RunModel, reference: TorchPredictor, files: Sequence[ModelFile]) -> list[Text]:
    """Return texts of random vocabulary words, about as long as each file's longest input, to reach all positions."""
    longest = {max(format_place(f.format).lengths(model.recipe, f, model.length)) for f in files}
    segments = model.folder.family.uses_segments
    return [
        text
        for length in sorted(longest, reverse=True)
        for text in draw_reference_texts(reference, model.tokenizer, segments, model.task, length)
    ]


def blank_row(text: Text, matrix: Matrix, task: Task, labels: Sequence[str]) -> GoldenRow:
    """Return a golden row for a text without output values: with its label, and the places in the output to record.

    A small output is recorded whole. If outputs have a row per token, up to `PLACES` tokens are recorded, evenly spread.
    Of a wide output the largest columns are recorded and some others; with several heads all columns are.

    Args:
        text: The text.
        matrix: The torch model's output for the text.
        task: The task.
        labels: Label names in order of their ids.
    """
    places = _spread_numbers(len(matrix), PLACES) if has_token_outputs(task) else []
    columns: list[int] = []
    if matrix.shape[1] > COLUMNS and not task.heads:
        best = np.argsort(-matrix[places or [0]].max(0), kind="stable")[: COLUMNS // 4].tolist()
        # as many in every row, so that rows can be put below each other
        others = np.setdiff1d(np.arange(matrix.shape[1]), best)
        columns = sorted({*best, *others[_spread_numbers(len(others), COLUMNS - len(best))].tolist()})
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
    return row.model_copy(update={"label": answer_label_names(row.pick(matrix), task, row.names(labels))})


def _spread_numbers(count: int, most: int) -> list[int]:
    """Return up to `most` evenly spread integers from 0 to `count` - 1, both included."""
    return sorted({round(i) for i in np.linspace(0, count - 1, min(count, most))})


def _select_recorded_rows(matrix: Matrix, task: Task) -> Matrix:
    """Return the rows of an output [L, K] that golden rows record: `PLACES` tokens, or all rows for tasks on texts."""
    return matrix[_spread_numbers(len(matrix), PLACES)] if has_token_outputs(task) else matrix


def _to_floats(values: Matrix) -> list[float]:
    return [float(v) for v in values.ravel()]


# --- texts that reach labels ---

_MOST_LABELS = 200
"""Most labels that are searched for, and most rows that are added."""
_SECONDS = 20.0
"""Wall time at which a search ends; `_WORK` ends it long before on machines that are not overloaded."""
_WORK = 3e11
"""Parameters times tokens that given texts may take, and composed ones again: each machine then finds the same texts."""
_TOKENS = 12_000
"""Most tokens that given texts may take, and composed ones again, however small the model."""
_CALL_TOKENS = 128
"""Tokens that a call of the model counts for, in addition to its own."""
_SINGLE_WORDS = 1024
"""Most words that are tried as texts of one word."""
_TEXT_WORDS = 8
"""Words of a composed text."""
_CHANGES = 10
"""Most changes of a composed text."""
_TRIED_CHANGES = 24
"""Changes that are tried at a time, the most promising ones by the gradient."""
_TEXTS_AT_ONCE = 64
_WORD_POOL = 4096
_SEED = 20_261_123
_BATCHING = Batching(32, 0.2)

_Numbers = NDArray[np.float32]


@dataclass(frozen=True)
class _LabelTexts:
    """The result of a search for texts for which the model predicts given labels.

    Attributes:
        texts: Texts to add. For each of them the model predicts at least one more label.
        missing: Ids of the labels that the model predicts for no text, or that were too many to be searched for.
        timed_out: Whether the wall time ended the search.
    """

    texts: list[Text]
    missing: list[int]
    timed_out: bool


def _find_texts_of_missing_labels(
    model: RunModel,
    reference: TorchPredictor,
    present: Sequence[Text],
    answers: Sequence[Matrix],
    data: Sequence[Text],
) -> list[Text]:
    """Find texts for labels that the model predicts for no golden text so far: in the data, or else composed of words.

    The names of labels that stay without a text are printed.

    Args:
        model: The exported model.
        reference: The exported model in torch.
        present: Texts of the golden rows so far.
        answers: The torch model's outputs for them.
        data: Texts of the data to search.
    """
    labels, task, tokenizer = model.folder.labels or [], model.task, model.tokenizer
    if not labels or not task.names_labels:
        return []
    recorded = [_select_recorded_rows(matrix, task) for matrix in answers]
    reached = {i for matrix in recorded if np.isfinite(matrix).all() for i in answered_labels(matrix, task)}
    known = set(present)
    further = [text for text in (*data, *project_texts(task, tokenizer)) if text not in known]
    numbers = {c for h in task.heads if not h.task.names_labels for c in range(h.start, h.stop)}
    wanted = [i for i in range(len(labels)) if i not in reached | numbers]
    result = _find_label_texts(reference, tokenizer, wanted, further)
    if result.missing:
        cut = f" (the search ended after {_SECONDS:.0f} s)" if result.timed_out else ""
        print_note(
            f"  golden rows reach {len(labels) - len(numbers) - len(result.missing)} of {len(labels) - len(numbers)} labels; not reached: {quote_labels([labels[i] for i in result.missing])}{cut}"
        )
    return result.texts


def _find_label_texts(
    reference: TorchPredictor, tokenizer: TextTokenizer, labels: Sequence[int], texts: Sequence[Text]
) -> _LabelTexts:
    """Find texts for which a model predicts given labels, among the texts of the data or else composed of words.

    Args:
        reference: The torch model.
        tokenizer: The model's tokenizer.
        labels: Ids of the labels; at most `_MOST_LABELS` are searched for.
        texts: Texts to try first.
    """
    search = _LabelSearch(reference, tokenizer, labels[:_MOST_LABELS])
    for start in range(0, len(texts), _TEXTS_AT_ONCE):
        if search.is_over():
            break
        search.try_texts(texts[start : start + _TEXTS_AT_ONCE])
    search.compose()
    # the best text of a label may reach others too
    missing, chosen = search.missing, list[Text]()
    open_labels = [label for label in search.labels if label not in missing]
    while open_labels:
        _, text, text_margins = search.best[open_labels[0]]
        chosen.append(text)
        open_labels = [label for label in open_labels if text_margins[label] <= 0]
    return _LabelTexts(chosen, missing + list(labels[_MOST_LABELS:]), search.timed_out)


class _LabelSearch:
    """A search for texts for which a model predicts given labels.

    Texts of the data and texts that the search composes each have a budget of tokens.

    Attributes:
        labels: Ids of the labels.
        best: For each label the largest margin so far, the text that has it, and the margins of this text for all
            labels.
        timed_out: Whether the wall time has ended the search.
    """

    def __init__(self, reference: TorchPredictor, tokenizer: TextTokenizer, labels: Sequence[int]) -> None:
        self.reference, self.tokenizer, self.labels = reference, tokenizer, list(labels)
        self.best: dict[int, tuple[float, Text, _Numbers]] = {}
        self.timed_out = False
        self._table = word_table(reference)
        parameters = sum(p.numel() for p in reference.model.parameters()) - self._table.weight.numel()
        self._budget = self._left = min(_TOKENS, int(_WORK / max(parameters, 1)))
        self._deadline = time.monotonic() + _SECONDS
        places = tokenizer.frame(tokenizer.max_length).places
        # place of the first piece of text in an input
        self._first = 0 if places is None else int(np.argmax(places.parts >= 0))

    @property
    def missing(self) -> list[int]:
        """The labels that the model predicts for no text so far."""
        return [label for label in self.labels if label not in self.best or self.best[label][0] <= 0]

    def is_over(self) -> bool:
        """Return whether the search must end: every label has a text, or the token budget or the time is used up."""
        self.timed_out = self.timed_out or time.monotonic() > self._deadline
        return self._left <= 0 or self.timed_out or not self.missing

    def try_texts(self, texts: Sequence[Text]) -> list[_Numbers]:
        """Run the model on texts, and remember for each label the text with the clearest prediction of it so far.

        A label's margin is its logit minus the largest of the other labels' logits, or the logit itself if a text can
        have several labels; above 0 the label is predicted. A text replaces the remembered one of a label (in `best`)
        if its margin is larger. The tokens of the texts are subtracted from the search's budget.

        Args:
            texts: Texts to try.

        Returns:
            For each text an array with the margin of each label, [labels].
        """
        task = self.reference.task
        rows = self.tokenizer.encode(list(texts))
        self._left -= _CALL_TOKENS + sum(map(len, rows))
        answers = run_rows(
            self.reference,
            self.tokenizer,
            rows,
            task,
            _BATCHING,
            reduce=lambda _, matrix: _select_recorded_rows(matrix, task),
        )
        margins = [_compute_label_margins(matrix, task) for matrix in answers]
        for text, margin in zip(texts, margins, strict=True):
            for label in self.labels:
                if label not in self.best or margin[label] > self.best[label][0]:
                    self.best[label] = (float(margin[label]), text, margin)
        return margins

    def compose(self) -> None:
        """Compose texts for labels that have none: first single vocabulary words, then texts changed word by word."""
        self._left = self._budget
        if self.is_over():
            return
        words, ids = _draw_one_token_words(self.tokenizer, len(self._table.weight))
        count = min(len(words), _SINGLE_WORDS, max(self._left // 16, 64))
        if not count:
            return
        single: list[_Numbers] = []
        for start in range(0, count, _TEXTS_AT_ONCE):
            if self.is_over():
                return
            single += self.try_texts(words[start : start + _TEXTS_AT_ONCE])
        for label in sorted(self.missing, key=lambda w: -self.best[w][0]):  # those that are close first
            if self.is_over():
                return
            if label in self.missing:
                order = np.argsort([-margin[label] for margin in single], kind="stable")
                self._improve_text(label, order[:_TEXT_WORDS].tolist(), words, ids)

    def _improve_text(self, label: int, start: list[int], words: Sequence[str], ids: NDArray[np.int64]) -> None:
        """Improve a text by replacing one word at a time, as long as the margin of a label grows.

        The best texts are kept in the search's `best`.

        Args:
            label: Id of the label; its margin is how far its logit is above the others'.
            start: Indices in `words` of the words to start with.
            words: Words of one token each to use.
            ids: Token ids of these words.
        """

        def margins(texts: Sequence[Sequence[int]]) -> list[np.float32]:
            return [m[label] for m in self.try_texts([_join_words(words, text) for text in texts])]

        starts = [start, start[:4], [start[0]] * 4, [start[0]]]
        values = margins(starts)
        value, current = max(values), list(starts[int(np.argmax(values))])
        for _ in range(_CHANGES):
            if value > 0 or self.is_over():
                return
            changes = self._best_changes(label, _join_words(words, current), len(current), ids)
            texts = [[*current[:place], word, *current[place + 1 :]] for place, word in changes]
            if not texts:
                return
            values = margins(texts)
            if max(values) <= value:
                return
            value, current = max(values), texts[int(np.argmax(values))]

    def _best_changes(self, label: int, text: str, places: int, ids: NDArray[np.int64]) -> list[tuple[int, int]]:
        """Return the replacements of a word that promise the largest margin of a label, judged by the gradient.

        Args:
            label: Id of the label.
            text: The text to change.
            places: Number of words in the text.
            ids: Token ids of the words that may be put in.

        Returns:
            For each replacement the index of the word in the text and the index of the new word.
        """
        [row] = self.tokenizer.encode([text])
        self._left -= _CALL_TOKENS + 3 * len(row)  # forward and backward
        first, table = self._first, self._table.weight.detach().cpu().numpy()
        gradient = self._gradient(row, label)[first : first + places]
        gain = gradient @ table[ids].T - (gradient * table[row.ids[first : first + places]]).sum(-1, keepdims=True)
        order = np.argsort(-gain, axis=None, kind="stable")[:_TRIED_CHANGES]
        return [(int(i) // len(ids), int(i) % len(ids)) for i in order]

    def _gradient(self, row: Encoded, label: int) -> _Numbers:
        """Return the gradient of a label's margin with respect to the embedding of each token, [L, H].

        The margin is how far the label's logit is above the others', or the logit itself if a text can have several
        labels.
        """
        import torch

        embeddings: list[torch.Tensor] = []

        def keep(_module: object, _inputs: object, output: torch.Tensor) -> torch.Tensor:
            embeddings.append(output.detach().requires_grad_())
            return embeddings[-1]

        reference, device = self.reference, self._table.weight.device
        hook = self._table.register_forward_hook(keep)
        batch = self.tokenizer.pad([row])
        with torch.enable_grad():
            try:
                inputs = {name: torch.from_numpy(batch[name]).to(device) for name in reference.inputs}
                logits = reference.model(**inputs)["logits"]
            finally:
                hook.remove()
            logits, task = logits.reshape(-1, logits.shape[-1]), reference.task
            for head in task.heads:
                if head.start <= label < head.stop:
                    rows = slice(None) if head.task.level is Level.TOKEN else slice(1)
                    logits, label, task = logits[rows, head.columns], label - head.start, head.task
                    break
            others = torch.cat([logits[:, :label], logits[:, label + 1 :]], -1)
            alone = task.labels is LabelKind.NAMES or not others.shape[-1]
            margin = logits[:, label] - (0.0 if alone else others.max(-1).values)
            [gradient] = torch.autograd.grad(margin.max(), embeddings[0])
        values: _Numbers = gradient[0].cpu().numpy()
        return values


def _compute_label_margins(matrix: Matrix, task: Task) -> _Numbers:
    """Return the margin of each label in an output, [labels]; a label is predicted if its margin is above 0.

    The margin is the label's logit minus the largest other one, or the logit itself if a text can have several labels or
    there is only one label. If tokens have labels, it is the largest margin of a token.
    """
    if task.heads:
        return np.concatenate([_compute_label_margins(matrix[:, head.columns], head.task) for head in task.heads])
    if task.labels is LabelKind.NAMES or matrix.shape[1] < 2:
        return np.asarray(matrix.max(0), np.float32)
    top = np.sort(matrix, -1)
    best = np.where(matrix == top[:, -1:], top[:, -2:-1], top[:, -1:])
    return np.asarray((matrix - best).max(0), np.float32)


def _draw_one_token_words(tokenizer: TextTokenizer, vocabulary: int) -> tuple[list[str], NDArray[np.int64]]:
    """Draw random words from the vocabulary that are one token each inside a text; return the words and their token ids."""
    pool = generator(_SEED, "words").permutation(drawable_ids(tokenizer, vocabulary))[:_WORD_POOL]
    words = list(dict.fromkeys(remove_unprintable(tokenizer.decode([int(i)])).strip() for i in pool))
    words = [w for w in words if w and " " not in w]
    frame = tokenizer.frame(tokenizer.max_length)
    places = frame.places
    first = 0 if places is None else int(np.argmax(places.parts >= 0))
    special = len(frame) - (0 if places is None else int((places.parts >= 0).sum()))
    kept, ids, known = list[str](), list[int](), set(pool.tolist())
    for word, row in zip(words, tokenizer.encode([f"{w} {w}" for w in words]), strict=True):
        if len(row) == special + 2 and int(row.ids[first + 1]) in known:
            kept.append(word)
            ids.append(int(row.ids[first + 1]))
    return kept, np.array(ids, np.int64)


def _join_words(words: Sequence[str], numbers: Sequence[int]) -> str:
    return " ".join(words[n] for n in numbers)
