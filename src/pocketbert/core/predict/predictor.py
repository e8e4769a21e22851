"""Predictors: opened model files and torch modules behind one protocol, and running them on tokenized rows.

- `Predictor` is the protocol of all engines. `TorchPredictor` is the reference of every comparison; `ScoredPredictor`
  applies a score function to another predictor's logits.
- `run_rows` runs tokenized rows in batches of similar length and returns one matrix per row; `feed` makes a padded
  batch, `split_by_text` cuts the padding off the outputs, and `join_texts` joins the rows of all texts.

torch is imported only when a `TorchPredictor` runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.host.progress import Meter
from pocketbert.core.host.system import version_of
from pocketbert.core.predict.inputs import Encoded
from pocketbert.core.predict.scores import apply_score_function
from pocketbert.core.predict.sentence_settings import (
    DEFAULT_POOLING,
    NORMALIZE,
    Pooling,
    PoolingKind,
    VectorLayer,
    apply_layers,
)
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import SENTENCE_EMBEDDING, Level, ScoreFunction, Task, TaskName

if TYPE_CHECKING:
    import torch

Arrays = dict[str, NDArray[np.generic]]
Matrix = NDArray[np.float32]
"""Outputs for one text, [P, C]: P is 1, or the number of its tokens (for fill-mask of its masked tokens, if it has some);
C is the number of labels or channels, or 2 for start and end."""
Reduce = Callable[[int, Matrix], Matrix]

PROBABILITIES = "probabilities"
"""Name of the output of a file that computes the scores itself."""
_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_OUTPUTS = ("logits", PROBABILITIES, "start_logits", "end_logits", "last_hidden_state", SENTENCE_EMBEDDING)


class Predictor(Protocol):
    """A model file or torch module that was opened with an engine and runs batches.

    Attributes:
        engine: Engine name, e.g. ``onnxruntime``.
        engine_version: Version of the engine.
        inputs: Names of the inputs that the model takes.
        outputs: Names of the outputs that the model returns; the first one decides the task's metric.
        lengths: The only lengths that the model takes, ascending; empty if it takes any length.

    An engine that computes the rows of a batch one by one, so that none can change another's numbers, also has the
    attribute ``computes_rows_apart = True``; one whose `run` several threads may call at the same time has
    ``thread_safe = True``.
    """

    engine: str
    engine_version: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    lengths: tuple[int, ...]

    def run(self, inputs: Mapping[str, NDArray[np.generic]]) -> Arrays:
        """Run the model on one batch of inputs and return its outputs.

        Args:
            inputs: Arrays by name, [B, L] int64 but for additional inputs of an export form; names that the model does
                not take are ignored.

        Returns:
            Outputs by name, float32.
        """
        ...


def input_sort_key(name: str) -> tuple[int, str]:
    """Return the key that sorts the inputs of a file that keeps no order: the usual ones first, others by name."""
    return (_INPUTS.index(name) if name in _INPUTS else len(_INPUTS), name)


def output_sort_key(name: str) -> int:
    """Return the key that sorts the outputs of a file that keeps no order: the one that the metric needs first."""
    return _OUTPUTS.index(name) if name in _OUTPUTS else len(_OUTPUTS)


def answer_outputs(task: Task, predictor: Predictor) -> tuple[str, ...]:
    """Return which outputs answers are made from: the probabilities if the file has them, else the task's outputs."""
    return (PROBABILITIES,) if PROBABILITIES in predictor.outputs else task.answer


def check_outputs(predictor: Predictor, task: Task, path: Path) -> None:
    """Raise InputError if a file lacks the outputs that the task's answers are made from.

    Raises:
        InputError: Naming the missing outputs.
    """
    missing = [n for n in answer_outputs(task, predictor) if n not in predictor.outputs]
    if missing:
        what = f"gives {', '.join(predictor.outputs)[:100]}; {task.name} needs {', '.join(missing)}: a file of another task?"
        raise InputError(Problem(str(path), what, "Copy the folder again."))


def has_token_outputs(task: Task) -> bool:
    """Return whether the task has one output row per token, and not one per text."""
    return task.level is Level.TOKEN


# --- running rows ---


@dataclass(frozen=True)
class Batching:
    """How tokenized rows are combined into batches.

    Attributes:
        rows: Largest number of rows in a batch.
        slack: Largest share of padding in a batch.
    """

    rows: int = 1
    slack: float = 0.0


UNPADDED = Batching()
"""One row at a time."""
_ONE_LENGTH = Batching(rows=32, slack=0.0)
_REMEMBERED = 256 << 20
"""Bytes of inputs and outputs that a torch model remembers at most."""
_EMPTY = np.empty((0, 0), np.float32)


def run_rows(
    predictor: Predictor,
    tokenizer: TextTokenizer,
    encoded: Sequence[Encoded],
    task: Task,
    batching: Batching = UNPADDED,
    label: str = "",
    names: Sequence[str] = (),
    reduce: Reduce | None = None,
) -> list[Matrix]:
    """Run tokenized rows through a model in batches of similar length; return one output matrix per row, in their order.

    By default rows are run one at a time, with no more padding than the predictor's lengths ask for, as verification
    needs it: the ranges of dynamic int8 depend on the whole tensor, so other rows and padding change the results a
    little. An engine that computes rows apart (see `Predictor`) gets rows of one length together, with the same results.

    Args:
        predictor: The opened model file or module.
        tokenizer: Pads the rows of a batch.
        encoded: N rows.
        task: The task, which determines the outputs and tokens that are returned.
        batching: How rows are combined to batches; by default each row is run alone.
        label: Text of the progress bar; empty for none.
        names: Names of the outputs to read; by default those that answers are made from.
        reduce: Function from a row's index and output matrix to a smaller matrix, which is kept instead. It saves
            memory with large vocabularies.

    Returns:
        One matrix per row, in the order of `encoded`.
    """
    outputs = tuple(names) or answer_outputs(task, predictor)
    lengths = [len(e) for e in encoded]
    if batching.rows == 1 and getattr(predictor, "computes_rows_apart", False):
        # the same numbers, and the engine may compute rows at the same time
        batching, lengths = _ONE_LENGTH, [smallest_fitting_length(predictor.lengths, n) for n in lengths]
    result: list[Matrix] = [_EMPTY] * len(encoded)
    with Meter(label, len(encoded)) as meter:
        for batch in _length_batches(lengths, batching.rows, batching.slack):
            inputs = feed(predictor, tokenizer, [encoded[i] for i in batch])
            arrays: Arrays = predictor.run(inputs)
            for i, matrix in zip(batch, split_by_text(arrays, inputs, outputs, task, tokenizer.mask_id), strict=True):
                result[i] = reduce(i, matrix) if reduce else matrix
            if label:
                meter.advance(len(batch))
    return result


def _length_batches(lengths: Sequence[int], rows: int, slack: float) -> list[list[int]]:
    """Group rows of similar length into batches so that little padding is needed; return lists of row numbers.

    Rows are sorted by length; a batch ends when it is full or when its next row would make the share of
    padding larger than `slack`.

    Args:
        lengths: Number of tokens of each of the N rows.
        rows: Largest number of rows in a batch.
        slack: Largest share of padded positions in a batch; 0 for batches of equal length only.

    Returns:
        Lists of row numbers that together hold every row once.
    """
    batches: list[list[int]] = []
    tokens = 0
    for i in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        if batches and len(batches[-1]) < rows:
            padded = lengths[i] * (len(batches[-1]) + 1)
            if padded - (tokens + lengths[i]) <= slack * padded:
                batches[-1].append(i)
                tokens += lengths[i]
                continue
        batches.append([i])
        tokens = lengths[i]
    return batches


def feed(
    predictor: Predictor,
    tokenizer: TextTokenizer,
    rows: Sequence[Encoded],
    length: int = 0,
) -> dict[str, NDArray[np.int64]]:
    """Pad rows into a batch of a length that the predictor accepts.

    Args:
        predictor: The predictor that will run the batch.
        tokenizer: Pads the rows.
        rows: B tokenized inputs.
        length: Smallest number of tokens to pad to.

    Returns:
        Inputs by name, [B, L] int64, and the additional inputs of an export form; L is the longest row unless `length`
        or the predictor's lengths ask for more.

    Raises:
        InputError: If the predictor takes no input of that length.
    """
    longest = max(length, *(len(r) for r in rows))
    return tokenizer.pad(rows, smallest_fitting_length(predictor.lengths, longest))


def smallest_fitting_length(lengths: Sequence[int], length: int) -> int:
    """Return the smallest of a predictor's lengths that holds `length` tokens; `length` itself if `lengths` is empty.

    Raises:
        InputError: If `length` is larger than all of `lengths`.
    """
    if not lengths:
        return length
    for candidate in lengths:
        if candidate >= length:
            return candidate
    what = f"{length} tokens; the file takes {', '.join(map(str, lengths))}."
    raise InputError(Problem("length", what, "Cut the text to the longest."))


def split_by_text(
    outputs: Mapping[str, NDArray[np.generic]],
    inputs: Mapping[str, NDArray[np.int64]],
    names: Sequence[str],
    task: Task,
    mask_id: int | None,
) -> list[Matrix]:
    """Split a batch's outputs into one matrix [P, C] per text, without the rows of padding.

    Args:
        outputs: Outputs of B texts by name: [B, C], [B, L] or [B, L, C].
        inputs: The inputs of the batch by name, [B, L] each.
        names: Outputs to read; several are put side by side as columns.
        task: The task, which determines which tokens have a row: all real ones, the masked ones, or a single row for
            the text.
        mask_id: Id of the mask token, for fill-mask; texts without one are read at all tokens.

    Returns:
        One matrix per text; full of NaN if the outputs have no row for each token although the task needs them.
    """
    values = [np.asarray(outputs[name], np.float32) for name in names]
    if task.heads and names[0] != PROBABILITIES:
        values = [_align_heads(values)]
    # start and end logits of question answering are [B, L]; all other outputs of two axes are [B, C]
    if values[0].ndim == 2 and (task.heads or task.level is Level.TEXT):
        return [row[None] for row in values[0]]
    stacked = np.stack(values, -1) if values[0].ndim == 2 else np.concatenate(values, -1)
    real = inputs["attention_mask"].astype(bool)
    if task.name is TaskName.FILL_MASK and mask_id is not None:
        masked = (inputs["input_ids"] == mask_id) & real
        real = np.where(masked.any(-1, keepdims=True), masked, real)
    if stacked.ndim != 3 or stacked.shape[:2] != real.shape:
        return [np.full((int(keep.sum()), stacked.shape[-1]), np.nan, np.float32) for keep in real]
    return [row[keep] for row, keep in zip(stacked, real, strict=True)]


def _align_heads(values: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """Put the outputs of several heads side by side: [B, C], or [B, L, C] if a head tags tokens.

    In the second case the outputs of heads for whole texts are repeated at every token.
    """
    tokens = next((value.shape[1] for value in values if value.ndim == 3), None)
    if tokens is None:
        return np.concatenate(values, -1)
    wide = (len(values[0]), tokens)
    return np.concatenate([v if v.ndim == 3 else np.broadcast_to(v[:, None], (*wide, v.shape[-1])) for v in values], -1)


def join_texts(parts: Sequence[Matrix]) -> Matrix:
    """Concatenate the output matrices of all texts to one matrix [sum of rows, C]."""
    return np.concatenate(list(parts)) if parts else _EMPTY


# --- predictors ---


class TorchPredictor:
    """Runs a transformers model with a task head without gradients, as the reference for model files; returns float32.

    transformers has no class that returns sentence embeddings. They are computed here from the token states in float64,
    without the code that exported files contain, so that they are an independent reference.

    Args:
        model: The model; it is put into eval mode.
        task: The task, whose output names are used.
        inputs: Names of the inputs that its family takes.
        pooling: How token states are pooled to sentence embeddings, if these are an output.
        remember: Whether to keep the outputs of batches, up to 256 MiB with their inputs, and return them when the same
            batch comes again. Only for a model that does not change: files of several formats are compared with it on
            the same texts.
    """

    engine = "torch"
    lengths: tuple[int, ...] = ()

    def __init__(
        self,
        model: torch.nn.Module,
        task: Task,
        inputs: tuple[str, ...],
        pooling: Pooling = DEFAULT_POOLING,
        remember: bool = False,
    ) -> None:
        self.engine_version = version_of("torch") or "unknown"
        self.model = model.eval()
        self.task, self.inputs, self.outputs, self.pooling = task, inputs, task.outputs, pooling
        self._known: dict[tuple[object, ...], Arrays] = {}
        self._left = _REMEMBERED if remember else 0

    def run(self, inputs: Mapping[str, NDArray[np.generic]]) -> Arrays:
        """Run one batch through the torch model and return its outputs by name; see `Predictor.run`."""
        if self._left <= 0:
            return self._run(inputs)
        batch = [inputs[n] for n in (*self.inputs, "attention_mask") if n in inputs]
        key = tuple((array.shape, array.tobytes()) for array in batch)
        if key not in self._known:
            outputs = self._run(inputs)
            size = sum(array.nbytes for array in (*batch, *outputs.values()))
            if size > self._left:
                return outputs
            self._known[key], self._left = outputs, self._left - size
        return {name: array.copy() for name, array in self._known[key].items()}

    def _run(self, inputs: Mapping[str, NDArray[np.generic]]) -> Arrays:
        """Compute the outputs of one batch by name, without looking for remembered ones."""
        import torch

        device = next(self.model.parameters()).device
        tensors = {name: torch.from_numpy(np.ascontiguousarray(inputs[name])).to(device) for name in self.inputs}
        with torch.inference_mode():
            outputs = self.model(**tensors)
        if self.task.heads:
            return split_heads(outputs["logits"].float().cpu().numpy(), self.task)
        names = [name for name in self.outputs if name != SENTENCE_EMBEDDING]
        arrays: Arrays = {name: outputs[name].float().cpu().numpy() for name in names}
        if SENTENCE_EMBEDDING in self.outputs:
            arrays[SENTENCE_EMBEDDING] = pool_embeddings(arrays[names[0]], inputs["attention_mask"], self.pooling)
        return arrays


def split_heads(logits: Any, task: Task) -> dict[str, Any]:
    """Split the logits of all heads, an array or a tensor [B, C] or [B, L, C], into one output per head.

    In logits of tokens, [B, L, C], heads of whole texts are read at the first token.
    """
    first = logits[:, 0] if task.level is Level.TOKEN else logits
    return {
        head.output: (logits if head.task.level is Level.TOKEN else first)[..., head.columns] for head in task.heads
    }


def pool_embeddings(
    states: NDArray[np.generic], attention_mask: NDArray[np.generic], pooling: Pooling
) -> NDArray[np.float32]:
    """Pool token states to sentence embeddings, text by text, and apply the layers after the pooling.

    Args:
        states: Token states [B, L, H].
        attention_mask: [B, L], 1 for real tokens; a text without real tokens is pooled to zeros.
        pooling: Which states are pooled, and the layers after the pooling.

    Returns:
        Sentence embeddings [B, H].
    """
    rows = zip(states.astype(np.float64), attention_mask, strict=True)
    pooled = [np.concatenate([_pool(t[m == 1], kind) for kind in pooling.kinds]) for t, m in rows]
    vectors = np.array(pooled, np.float64).reshape(len(states), states.shape[-1] * len(pooling.kinds))
    layers = [*pooling.layers, *([VectorLayer(NORMALIZE)] if pooling.normalize else [])]
    return apply_layers(vectors, layers).astype(np.float32)


def _pool(tokens: NDArray[np.float64], kind: PoolingKind) -> NDArray[np.float64]:
    """Pool the states [N, H] of a text's real tokens to one vector [H]; zeros if there is no token."""
    if not len(tokens):
        return np.zeros(tokens.shape[1])
    match kind:
        case PoolingKind.CLS:
            return np.asarray(tokens[0])
        case PoolingKind.LAST_TOKEN:
            return np.asarray(tokens[-1])
        case PoolingKind.MAX:
            return np.asarray(tokens.max(0))
        case PoolingKind.WEIGHTED_MEAN:
            return np.asarray(np.average(tokens, axis=0, weights=np.arange(1, len(tokens) + 1)))
    return np.asarray(tokens.sum(0) / (len(tokens) if kind is PoolingKind.MEAN else np.sqrt(len(tokens))))


class ScoredPredictor:
    """Returns probabilities: applies a score function to the logits of another predictor.

    Args:
        inner: Predictor that returns logits.
        score: The score function.
    """

    outputs: tuple[str, ...] = (PROBABILITIES,)

    def __init__(self, inner: Predictor, score: ScoreFunction) -> None:
        self.inner, self.score = inner, score
        self.engine, self.engine_version = inner.engine, inner.engine_version
        self.inputs, self.lengths = inner.inputs, inner.lengths

    def run(self, inputs: Mapping[str, NDArray[np.generic]]) -> Arrays:
        """Run one batch and return the probabilities of its logits; see `Predictor.run`."""
        logits = np.asarray(self.inner.run(inputs)[self.inner.outputs[0]], np.float32)
        return {PROBABILITIES: apply_score_function(logits, self.score)}
