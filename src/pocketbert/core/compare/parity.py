"""Parity: whether a file computes what the untouched model computes.

- `build_probe` chooses inputs, real texts and drawn ids, padded and unpadded, at several lengths, and runs the
  reference on them; `compare_with_probe` runs a file on the same inputs.
- `draw_rows` and `draw_texts` draw inputs that cover what real texts leave out: the whole vocabulary, every position
  and both segments.
- `measure_padding_effect` measures how far padding moves a file's answers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from pocketbert.core.compare.evaluate import head_scales, logit_scale, worst_difference
from pocketbert.core.predict.inputs import Encoded, Text, truncate_row
from pocketbert.core.predict.predictor import (
    Matrix,
    Predictor,
    answer_outputs,
    feed,
    join_texts,
    run_rows,
    smallest_fitting_length,
    split_by_text,
)
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.seeds import generator
from pocketbert.core.tasks import Task

_Pick = Callable[[int, Matrix], Matrix]


class Parity(BaseModel):
    """The result of comparing a model file's outputs with those of the reference model.

    Attributes:
        subject: The compared file, e.g. ``onnx/model.onnx``.
        reference: Name of the model it was compared with.
        worst: Largest absolute difference of the logits, divided by their spread; NaN if any value is NaN.
        mask_effect: How far the reference's logits move when padding is not masked, on the same scale. It shows that
            the comparison would notice a file that ignores the mask.
        bound: Largest value of `worst` that is allowed.
        spread: Scale of the differences: the largest per-class standard deviation of the reference logits over
            the texts, at least a tenth of the largest logit.
        shapes: Batch and length of every input that was run.
        passed: Whether `worst` is at most `bound`.
    """

    model_config = ConfigDict(ser_json_inf_nan="strings")

    subject: str
    reference: str
    worst: float
    mask_effect: float
    bound: float
    spread: float
    shapes: list[tuple[int, int]]
    passed: bool


@dataclass(frozen=True)
class Probe:
    """Batches of inputs for a comparison of model files, with the reference model's outputs.

    Attributes:
        batches: Padded batches; each maps the names of the inputs to arrays [B, L].
        expected: The reference model's outputs for each batch, a matrix with one row per text or per real token.
        mask_effect: How far the reference's outputs move when padding is not masked, relative to their spread.
        task: The task, which determines the tokens whose outputs are compared.
        mask_id: Id of the mask token.
    """

    batches: list[dict[str, NDArray[np.int64]]]
    expected: list[Matrix]
    mask_effect: float
    task: Task
    mask_id: int | None = None

    def read(self, predictor: Predictor, batch: dict[str, NDArray[np.int64]], names: Sequence[str]) -> Matrix:
        """Run a predictor on one of the batches; return the outputs `names` as one matrix without padding rows."""
        return join_texts(split_by_text(predictor.run(batch), batch, names, self.task, self.mask_id))


_TOKENS_OF_LENGTH = 512
"""Most tokens that are run for one length, in 2 to 6 rows: a graph that is wrong for a length is so in every row."""
_UNMASKED = 4
"""Batches that are run once more with a mask of ones, to see how far a lost mask would move the answers."""


def build_probe(
    reference: Predictor,
    tokenizer: TextTokenizer,
    texts: Sequence[Text],
    lengths: Sequence[int],
    task: Task,
    names: Sequence[str],
    fixed: Sequence[int] = (),
    drawn: Sequence[Encoded] = (),
) -> Probe:
    """Build batches of many lengths and paddings, and run the reference model on them.

    A file that takes any length gets rows alone and unpadded, rows in a batch of different lengths, and rows padded to
    each of `lengths`, to the longest input, and to 13 and 37 tokens (odd lengths that no exporter uses as its example).
    A file that takes fixed lengths only gets, for each length, rows that fill it and rows that do not; the reference
    model gets the same padding.

    The longest text is cut to each length, so that the last position is tested too.

    Args:
        reference: The original model.
        tokenizer: Tokenizes the texts.
        texts: At least 8 real texts.
        lengths: Lengths that matter to the user, in tokens; those above the tokenizer's maximum are reduced to it.
        task: The task, which determines the tokens whose outputs are compared.
        names: Names of the outputs to compare.
        fixed: The only lengths that the file takes; empty if it takes any.
        drawn: Rows of random token ids, all of one length that the file takes, which are run in batches of two as they
            are.
    """
    most = max(fixed, default=tokenizer.max_length)
    rows = [truncate_row(r, most) for r in tokenizer.encode(list(texts), places=True)]
    groups = [] if fixed else [*([row] for row in rows[:4]), rows[4:8]]
    padded_lengths = [max(map(len, group)) for group in groups]
    first = [max(rows, key=len), *([min(rows, key=len)] if fixed else [])]
    for i, length in enumerate(sorted(set(fixed) or {min(n, most) for n in (*lengths, 13, 37, most)})):
        count = max(2, min(6, _TOKENS_OF_LENGTH // length))
        groups.append([truncate_row(r, length) for r in (*first, *rows[i % 4 :: 4])][:count])
        padded_lengths.append(length)
    batches = [tokenizer.pad(g, smallest_fitting_length(fixed, n)) for g, n in zip(groups, padded_lengths, strict=True)]
    batches += [tokenizer.pad(drawn[i : i + 2]) for i in range(0, len(drawn), 2)]
    probe = Probe(batches, expected=[], mask_effect=0.0, task=task, mask_id=tokenizer.mask_id)
    expected = [probe.read(reference, batch, names) for batch in batches]
    # the same texts with the padding declared real: how far off a file would be that ignores the mask
    padded = [(b, answer) for b, answer in zip(batches, expected, strict=True) if not b["attention_mask"].all()]
    moved = 0.0
    for batch, answer in padded[:_UNMASKED]:
        unmasked = reference.run({**batch, "attention_mask": np.ones_like(batch["attention_mask"])})
        values = join_texts(split_by_text(unmasked, batch, names, task, tokenizer.mask_id))
        moved = max(moved, worst_difference(values, answer))
    return replace(probe, expected=expected, mask_effect=moved / logit_scale(np.concatenate(expected)))


def compare_with_probe(
    subject: Predictor, name: str, reference: str, probe: Probe, names: Sequence[str], bound: float
) -> Parity:
    """Run a model file on a probe's batches, and return how far its outputs are from the reference's.

    Args:
        subject: The model file, opened.
        name: Name of the model file in the report.
        reference: Name of the reference model in the report.
        probe: Inputs and expected outputs.
        names: Names of the outputs to compare.
        bound: Largest allowed difference, as a share of the spread (standard deviation) of the reference's outputs.
    """
    spread = logit_scale(np.concatenate(probe.expected))
    pairs = zip(probe.batches, probe.expected, strict=True)
    differences = [worst_difference(probe.read(subject, batch, names), expected) for batch, expected in pairs]
    worst = float(np.max(differences)) / spread
    shapes = sorted({(int(b["input_ids"].shape[0]), int(b["input_ids"].shape[1])) for b in probe.batches})
    return Parity(
        subject=name,
        reference=reference,
        worst=worst,
        mask_effect=probe.mask_effect,
        bound=bound,
        spread=spread,
        shapes=shapes,
        passed=bool(worst <= bound),
    )


def worst_parity(results: Sequence[Parity]) -> Parity:
    """Return the comparison with the largest difference; NaN counts as larger than any number."""
    return max(results, key=lambda r: (r.worst != r.worst, r.worst))


# --- padding ---

_PADDING = 19
"""Padding tokens beside a row whose padded answer is compared, all but the shortest."""


def measure_padding_effect(
    predictor: Predictor,
    tokenizer: TextTokenizer,
    rows: Sequence[Encoded],
    task: Task,
    own: Matrix | None = None,
    keep: _Pick | None = None,
    alone: Sequence[Matrix] | None = None,
    spread: NDArray[np.floating] | None = None,
) -> float:
    """Measure how far padding changes a file's outputs, divided by their spread, of several heads each by its own.

    If the file applies the attention mask correctly, only rounding changes them.

    Args:
        predictor: The model file, opened.
        tokenizer: Pads rows.
        rows: At least two tokenized texts.
        task: The task, which determines the outputs and tokens that are compared.
        own: The change of the reference model's outputs by padding, which is subtracted. It is not zero in MobileBERT,
            whose last token reads the embedding of the padding token beside it.
        keep: Function from a row's index and output matrix to the part of the matrix that is compared; by default all
            of it.
        alone: The outputs of the file for the rows without padding, reduced by `keep`; by default they are computed.
        spread: The `head_scales` of the file's outputs, if they are known from more rows than these; by default those of
            these rows.
    """
    pick = keep or (lambda _, matrix: matrix)
    unpadded = join_texts(run_rows(predictor, tokenizer, rows, task, reduce=pick) if alone is None else alone)
    padded = [pick(i, m) for i, m in enumerate(run_padded_rows(predictor, tokenizer, rows, task))]
    moved = join_texts(padded) - unpadded
    scales = head_scales(unpadded, task.heads) if spread is None else spread
    return worst_difference(moved, np.zeros_like(moved) if own is None else own, scales)


def run_padded_rows(
    predictor: Predictor, tokenizer: TextTokenizer, rows: Sequence[Encoded], task: Task
) -> list[Matrix]:
    """Run each row with as much padding as `count_padded_tokens` says, apart from the others; return a matrix per row."""
    groups = defaultdict[object, dict[int, dict[str, NDArray[np.int64]]]](dict)
    apart, names = getattr(predictor, "computes_rows_apart", False), answer_outputs(task, predictor)
    for i, count in enumerate(count_padded_tokens(predictor, tokenizer, rows)):
        batch = _pad_more(predictor, tokenizer, rows[i], count)
        # rows that the engine computes apart from each other anyway may be given to it together
        groups[("length", batch["input_ids"].shape[1]) if apart else ("row", i)][i] = batch
    answers = dict[int, Matrix]()
    for group in groups.values():
        batches = [*group.values()]
        together = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
        matrices = split_by_text(predictor.run(together), together, names, task, tokenizer.mask_id)
        answers |= dict(zip(group, matrices, strict=True))
    return [answers[i] for i in range(len(rows))]


def _pad_more(predictor: Predictor, tokenizer: TextTokenizer, row: Encoded, count: int) -> dict[str, NDArray[np.int64]]:
    """Build a batch of one row padded to `count` tokens, to test that padding does not change the outputs.

    If the file takes no length above the row's, the padding tokens get other ids instead, except the one beside the text.
    """
    usual = smallest_fitting_length(predictor.lengths, len(row))
    batch = feed(predictor, tokenizer, [row], count)
    if predictor.lengths and batch["input_ids"].shape[1] == usual:
        # the file has no longer signature: other tokens where the padding is; the one beside the text stays, since
        # MobileBERT's embedding looks at neighbours
        padding = np.flatnonzero(batch["attention_mask"][0] == 0)
        replaced = padding[1:] if tokenizer.padding_side == "right" else padding[:-1]
        batch["input_ids"][0, replaced] = np.resize(row.ids, replaced.size)
    return batch


def count_padded_tokens(predictor: Predictor, tokenizer: TextTokenizer, rows: Sequence[Encoded]) -> list[int]:
    """Return the number of tokens to which `run_padded_rows` pads each row at least.

    It is at least 19 above the row's own and 1 above the smallest fixed length that it fits, but never above the longest
    input. The shortest row is padded to the longest input, which texts seldom come near without filling it.
    """
    most = min(tokenizer.max_length, max(predictor.lengths, default=tokenizer.max_length))
    usual = [smallest_fitting_length(predictor.lengths, len(row)) for row in rows]
    counts = [min(max(len(row) + _PADDING, n + 1), most) for row, n in zip(rows, usual, strict=True)]
    counts[min(range(len(rows)), key=lambda i: len(rows[i]))] = most
    return counts


# --- drawn inputs ---

_SEED = 20_261_123
_TOKENS = 1024
_FEWEST, _MOST = 2, 8
_BEFORE_MASK = 6


@dataclass(frozen=True)
class _DrawnRow:
    """A row of random token ids: the special tokens in their places, and the ids drawn for the other positions.

    Attributes:
        frame: The row with special tokens in their places and padding tokens at `positions`; see `TextTokenizer.frame`.
        positions: The positions that drawn ids fill.
        ids: The drawn ids.
    """

    frame: Encoded
    positions: NDArray[np.int64]
    ids: NDArray[np.int64]


def count_drawn_rows(length: int) -> int:
    """Return how many rows of randomly drawn ids to compare at a length: about 1,024 tokens in all, 2 to 8 rows."""
    return min(max(_TOKENS // length, _FEWEST), _MOST)


def draw_rows(
    tokenizer: TextTokenizer, vocabulary: int, length: int, kinds: Sequence[bool], masked: bool = False
) -> list[Encoded]:
    """Draw input rows of `length` random token ids, with special tokens where the tokenizer places them.

    No id is drawn a second time before every id was drawn once, so that a small vocabulary is covered completely. The
    same arguments give the same rows; with fewer `kinds` the result is the beginning of the longer one.

    Args:
        tokenizer: Places the special tokens.
        vocabulary: Number of rows of the embedding table; ids beyond it are not drawn.
        length: Tokens of each row, at most the tokenizer's `max_length`.
        kinds: For each row, whether it is a pair of texts; the second half of a pair gets the segment id of the second
            text.
        masked: Whether the first, middle and last drawn token of each row are replaced by the mask token, for models
            that predict it.

    Returns:
        The rows; empty if the vocabulary consists of special tokens only.
    """
    rows = []
    for drawn in _draw(tokenizer, vocabulary, length, kinds):
        ids, positions = drawn.frame.ids.copy(), drawn.positions
        ids[positions] = drawn.ids
        if masked and tokenizer.mask_id is not None and positions.size:
            ids[positions[[0, positions.size // 2, -1]]] = tokenizer.mask_id
        rows.append(Encoded(ids, drawn.frame.type_ids, truncated=False))
    return rows


def draw_texts(
    tokenizer: TextTokenizer, vocabulary: int, length: int, kinds: Sequence[bool], mask: str | None = None
) -> list[Text]:
    """Draw random texts, decoded from random token ids, for comparisons that start from text instead of ids.

    The tokenizer may split a text into other pieces than it was made of. At the tokenizer's longest input every text
    fills the length; below it a text may be a few tokens shorter.

    Args:
        tokenizer: Decodes the drawn ids.
        vocabulary: Number of rows of the embedding table; ids beyond it are not drawn.
        length: Largest number of tokens of each text.
        kinds: For each text, whether it is a pair.
        mask: The mask token, which is put behind the first few words of single texts; None for tasks without masks.
    """
    return [_decode(tokenizer, drawn, length, mask) for drawn in _draw(tokenizer, vocabulary, length, kinds)]


def _draw(tokenizer: TextTokenizer, vocabulary: int, length: int, kinds: Sequence[bool]) -> list[_DrawnRow]:
    """Draw rows of random token ids with the special tokens in place; use each id once before using any again.

    `vocabulary` is the number of ids, `length` the number of tokens in a row; `kinds` has, for each row, whether it is
    a pair.
    """
    pool = drawable_ids(tokenizer, vocabulary)
    if not pool.size:
        return []
    frames = [tokenizer.frame(length, pair=pair) for pair in kinds]
    positions = [np.flatnonzero(_parts(frame) >= 0) for frame in frames]
    rounds = range(-(-sum(p.size for p in positions) // pool.size))
    ids = np.concatenate([pool[:0], *(generator(_SEED, "drawn ids", r).permutation(pool) for r in rounds)])
    ends = np.cumsum([p.size for p in positions])
    return [_DrawnRow(f, p, ids[end - p.size : end]) for f, p, end in zip(frames, positions, ends, strict=True)]


def _decode(tokenizer: TextTokenizer, drawn: _DrawnRow, length: int, mask: str | None) -> Text:
    """Decode random token ids to a text or pair that has about `length` tokens when it is tokenized again.

    Tokenizing the decoded text may join or split tokens. While it has too many tokens, ids are dropped. While
    it has too few, ids are repeated, but only if `length` is the tokenizer's longest input; other texts stay
    shorter.

    Args:
        tokenizer: Decodes the ids and counts the tokens.
        drawn: The random ids, with the special tokens around them.
        length: Wanted number of tokens, special tokens included.
        mask: The mask token, which is put behind the first six ids of a single text. None for no mask.
    """
    part_of = _parts(drawn.frame)[drawn.positions]
    parts: list[list[int]] = [drawn.ids[part_of == part].tolist() for part in np.unique(part_of)]
    while True:
        words = [remove_unprintable(tokenizer.decode(ids)) for ids in parts]
        if mask is not None and len(parts) == 1:
            before, behind = (tokenizer.decode(ids) for ids in (parts[0][:_BEFORE_MASK], parts[0][_BEFORE_MASK:]))
            words = [" ".join([remove_unprintable(before), mask, remove_unprintable(behind)])]
        text: Text = words[0] if len(words) == 1 else (words[0], words[1])
        tokens, most = len(tokenizer.encode([text])[0]), tokenizer.max_length
        if tokens < length == most and len(parts[0]) < 4 * length:  # neighbouring pieces became one token
            parts = [[*ids, *ids] for ids in parts]
        elif tokens > length and min(map(len, parts)) > 1:
            parts = [ids[: max(len(ids) - -(-(tokens - length) // len(parts)), 1)] for ids in parts]
        else:
            return text


def remove_unprintable(text: str) -> str:
    """Remove the unprintable characters of a text, such as those that end lines or control terminals."""
    return "".join(c for c in text if c.isprintable())


def drawable_ids(tokenizer: TextTokenizer, vocabulary: int) -> NDArray[np.int64]:
    """Return the ids that random rows are drawn from: all of the vocabulary with an embedding, except special ones."""
    frame = tokenizer.frame(tokenizer.max_length, pair=True)
    special = {*tokenizer.special_ids, tokenizer.pad_id, tokenizer.mask_id, *frame.ids[_parts(frame) < 0].tolist()}
    return np.array([i for i in tokenizer.ids if i < vocabulary and i not in special], np.int64)


def _parts(frame: Encoded) -> NDArray[np.int64]:
    assert frame.places is not None
    return frame.places.parts
