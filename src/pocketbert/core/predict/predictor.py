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
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.host.progress import Meter
from pocketbert.core.host.system import version_of
from pocketbert.core.predict.inputs import Encoded
from pocketbert.core.predict.scores import apply_score_function
from pocketbert.core.predict.sentence_settings import DEFAULT_POOLING, Pooling, PoolingKind
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import Level, ScoreFunction, Task, TaskName

if TYPE_CHECKING:
    import torch

Arrays = dict[str, NDArray[np.generic]]
Matrix = NDArray[np.float32]
"""Outputs for one text, [P, C]: P is 1 or its tokens (of fill-mask the masked ones); C labels, channels, or start and end."""
Reduce = Callable[[int, Matrix], Matrix]

PROBABILITIES = "probabilities"
"""Name of the output of a file that computes the scores itself."""
_EMBEDDING = "sentence_embedding"
_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_OUTPUTS = ("logits", PROBABILITIES, "start_logits", "end_logits", "last_hidden_state", _EMBEDDING)


class Predictor(Protocol):
    """A model file or torch module that was opened with an engine and runs batches.

    Attributes:
        engine: Engine name, e.g. ``onnxruntime``.
        engine_version: Its version.
        inputs: Names of the inputs it takes.
        outputs: Names of the outputs it returns; the first one decides the task's metric.
        lengths: The only lengths it takes, ascending; empty if any length is taken.

    An engine that computes the rows of a batch one by one, so that none can change another's numbers, also has the
    attribute ``computes_rows_apart = True``.
    """

    engine: str
    engine_version: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    lengths: tuple[int, ...]

    def run(self, inputs: Mapping[str, NDArray[np.generic]]) -> Arrays:
        """Run the model on one batch of inputs and return its outputs.

        Args:
            inputs: [B, L] int64 arrays by name; names that the model does not take are ignored.

        Returns:
            Outputs by name, float32.
        """
        ...


def input_sort_key(name: str) -> tuple[int, str]:
    """Return the sort key of an input, for files that keep no order: the usual inputs first, then others by name."""
    return (_INPUTS.index(name) if name in _INPUTS else len(_INPUTS), name)


def output_sort_key(name: str) -> int:
    """Return the sort key of an output, for files that keep no order: the one that decides a task's metric first."""
    return _OUTPUTS.index(name) if name in _OUTPUTS else len(_OUTPUTS)


def answer_outputs(task: Task, predictor: Predictor) -> tuple[str, ...]:
    """Return the names of the outputs that answers are made from: the task's, or a file's own probabilities."""
    return (PROBABILITIES,) if PROBABILITIES in predictor.outputs else task.answer


def check_outputs(predictor: Predictor, task: Task, path: Path) -> None:
    """Raise InputError if a file lacks the outputs that the task's answers are made from.

    Raises:
        InputError: If it does not return the outputs that the task's answers are made from.
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
        rows: Most rows in a batch.
        slack: Largest share of padding in a batch.
    """

    rows: int = 1
    slack: float = 0.0


_UNPADDED = Batching()
_ONE_LENGTH = Batching(rows=32, slack=0.0)
_REMEMBERED = 256 << 20
"""Bytes of inputs and outputs that a torch model remembers at most."""
_EMPTY = np.empty((0, 0), np.float32)


def run_rows(
    predictor: Predictor,
    tokenizer: TextTokenizer,
    encoded: Sequence[Encoded],
    task: Task,
    batching: Batching = _UNPADDED,
    label: str = "",
    names: Sequence[str] = (),
    reduce: Reduce | None = None,
) -> list[Matrix]:
    """Run tokenized rows through a predictor, batched by length, and return one output matrix per row, in their order.

    The default, one unpadded row at a time, is what verification uses: dynamic int8 ranges depend on the
    whole tensor, so batch and padding change its results a little.

    Args:
        predictor: The opened model file or module.
        tokenizer: Pads batches.
        encoded: N rows.
        task: The task, which determines the outputs and tokens that are returned.
        batching: How rows are combined.
        label: Text of the progress bar; empty for none.
        names: Outputs to read; default those that decide the answer.
        reduce: Called with a row's number and output matrix; returns a smaller matrix to keep (vocabularies are wide).

    Returns:
        One matrix per row.
    """
    outputs = tuple(names) or answer_outputs(task, predictor)
    if batching.rows == 1 and getattr(predictor, "computes_rows_apart", False):
        batching = _ONE_LENGTH  # the same numbers, and the engine may compute rows at the same time
    result: list[Matrix] = [_EMPTY] * len(encoded)
    with Meter(label, len(encoded)) as meter:
        for batch in _length_batches([len(e) for e in encoded], batching.rows, batching.slack):
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
        lengths: Tokens per row, N of them.
        rows: Most rows in a batch.
        slack: Largest share of padded positions, 0 for batches of equal length only.

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
        predictor: The predictor that will run it.
        tokenizer: Pads the rows.
        rows: B tokenized inputs.
        length: Least number of tokens to pad to.

    Returns:
        Inputs by name, each [B, L] int64; L is the longest row unless `length` or the predictor's lengths ask for more.
    """
    longest = max(length, *(len(r) for r in rows))
    return tokenizer.pad(rows, smallest_fitting_length(predictor.lengths, longest))


def smallest_fitting_length(lengths: Sequence[int], length: int) -> int:
    """Return the smallest length a predictor accepts that holds `length` tokens; `length` itself if it accepts any.

    Raises:
        InputError: If it is longer than the longest.
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
    """Split a batch's outputs into one matrix [P, C] per text, without the rows of padding tokens.

    Args:
        outputs: Outputs of B texts: [B, C], [B, L] or [B, L, C] by name.
        inputs: The inputs, [B, L] each.
        names: Outputs that are read together, side by side.
        task: The task, which determines the tokens whose rows are returned.
        mask_id: Id of the mask token, for fill-mask; texts without one are read at all tokens.

    Returns:
        One matrix per text; full of NaN if the outputs have no row for each token although the task needs them.
    """
    values = [np.asarray(outputs[name], np.float32) for name in names]
    # start and end logits are [B, L]; all other outputs of two axes are [B, C]
    if values[0].ndim == 2 and task.level is Level.TEXT and names[0] not in ("start_logits", "end_logits"):
        return [row[None] for row in values[0]]
    stacked = np.stack(values, -1) if values[0].ndim == 2 else np.concatenate(values, -1)
    real = inputs["attention_mask"].astype(bool)
    if task.name is TaskName.FILL_MASK and mask_id is not None:
        masked = (inputs["input_ids"] == mask_id) & real
        real = np.where(masked.any(-1, keepdims=True), masked, real)
    if stacked.ndim != 3 or stacked.shape[:2] != real.shape:
        return [np.full((int(keep.sum()), stacked.shape[-1]), np.nan, np.float32) for keep in real]
    return [row[keep] for row, keep in zip(stacked, real, strict=True)]


def join_texts(parts: Sequence[Matrix]) -> Matrix:
    """Concatenate the output matrices of all texts to one matrix [sum of rows, C]."""
    return np.concatenate(list(parts)) if parts else _EMPTY


# --- predictors ---


class TorchPredictor:
    """Runs a transformers model with a task head in fp32, without gradients, as the reference for model files.

    transformers has no class that returns sentence embeddings, so they are computed here, in float64 and without the
    code that goes into files.

    Args:
        model: The model; it is put into eval mode.
        task: Names the outputs.
        inputs: Names of the inputs that its family takes.
        pooling: How sentence embeddings are made, if they are an output.
        remember: Keep the outputs of each batch and return them when it comes again, for a model that does not change:
            files of several formats are compared with it on the same texts.
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
        """Compute the outputs of one batch."""
        import torch

        device = next(self.model.parameters()).device
        tensors = {name: torch.from_numpy(np.ascontiguousarray(inputs[name])).to(device) for name in self.inputs}
        with torch.inference_mode():
            outputs = self.model(**tensors)
        names = [name for name in self.outputs if name != _EMBEDDING]
        arrays: Arrays = {name: outputs[name].float().cpu().numpy() for name in names}
        if _EMBEDDING in self.outputs:
            arrays[_EMBEDDING] = pool_embeddings(arrays[names[0]], inputs["attention_mask"], self.pooling)
        return arrays


def pool_embeddings(
    states: NDArray[np.generic], attention_mask: NDArray[np.generic], pooling: Pooling
) -> NDArray[np.float32]:
    """Pool token states to sentence embeddings (first token or mean, normalized if requested), text by text.

    Args:
        states: Token states [B, L, H].
        attention_mask: [B, L], 1 for real tokens; at least one in each row.
        pooling: How states are pooled.

    Returns:
        Sentence embeddings [B, H].
    """
    vectors = np.empty((states.shape[0], states.shape[2]), np.float64)
    for i, (tokens, mask) in enumerate(zip(states.astype(np.float64), attention_mask, strict=True)):
        pooled = tokens[:1] if pooling.kind is PoolingKind.CLS else tokens[mask == 1]
        vectors[i] = pooled.mean(0)
        if pooling.normalize:
            vectors[i] /= max(float(np.linalg.norm(vectors[i])), 1e-12)
    return vectors.astype(np.float32)


class ScoredPredictor:
    """Returns probabilities: applies a score function to another predictor's logits, as some exported files do inside.

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
