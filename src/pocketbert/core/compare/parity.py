"""Whether a file computes what the untouched model computes: real texts and drawn ids, padded and unpadded, at several lengths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from pocketbert.core.compare.evaluate import worst_difference, yardstick
from pocketbert.core.predict.predictor import Matrix, Predictor, answer_of, feed, fitting, matrices, run_rows, whole
from pocketbert.core.predict.tokenization import Encoded, Text, TextTokenizer, cut
from pocketbert.core.seeds import generator
from pocketbert.core.tasks import Task

# --- probes ---
# Inputs of drawn token ids: they read parts of a model that real texts leave out, at the full length and in both segments.


_SEED = 20_261_123
_TOKENS = 1024
_FEWEST, _MOST = 2, 8
_BEFORE_MASK = 6


def drawn_count(length: int) -> int:
    """Tell how many drawn rows are enough at a length: about 1,024 tokens in all, 2 to 8 rows."""
    return min(max(_TOKENS // length, _FEWEST), _MOST)


def drawn_rows(
    tokenizer: TextTokenizer, vocabulary: int, length: int, kinds: Sequence[bool], masked: bool = False
) -> list[Encoded]:
    """Draw inputs that fill `length` tokens: special tokens where the tokenizer places them, any others in between.

    The ids are drawn without putting back until every one was used, so that a small vocabulary is read completely. The
    same arguments give the same rows, and fewer rows are the first of more.

    Args:
        tokenizer: Places the special tokens.
        vocabulary: Rows of the embedding table; ids beyond it are not drawn.
        length: Tokens of each row, at most the tokenizer's `max_length`.
        kinds: For each row whether it is a pair of texts, so that its second half is in the second segment.
        masked: Whether the first, middle and last drawn token of each row is the mask token, for models that predict it.

    Returns:
        The rows; none where the vocabulary has nothing but special tokens.
    """
    return [
        row.masked(tokenizer.mask_id) if masked else row.encoded()
        for row in _draw(tokenizer, vocabulary, length, kinds)
    ]


def drawn_texts(
    tokenizer: TextTokenizer, vocabulary: int, length: int, kinds: Sequence[bool], mask: str | None = None
) -> list[Text]:
    """Draw texts instead of rows, for comparisons that start from text; see `drawn_rows`.

    The tokenizer may cut a text into other pieces than it was made of. At the tokenizer's longest input every text fills
    the length; below it a text may be a few tokens shorter.

    Args:
        tokenizer: Makes text of the drawn ids.
        vocabulary: Rows of the embedding table; ids beyond it are not drawn.
        length: Most tokens of each text.
        kinds: For each text whether it is a pair.
        mask: A mask token to put behind the first few words of single texts.
    """
    return [_text(tokenizer, row, length, mask) for row in _draw(tokenizer, vocabulary, length, kinds)]


@dataclass(frozen=True)
class _Row:
    """A frame and the ids that were drawn for its places."""

    frame: Encoded
    places: NDArray[np.int64]
    ids: NDArray[np.int64]

    def encoded(self) -> Encoded:
        ids = self.frame.ids.copy()
        ids[self.places] = self.ids
        return Encoded(ids, self.frame.type_ids, truncated=False)

    def masked(self, mask_id: int | None) -> Encoded:
        row = self.encoded()
        if mask_id is not None and self.places.size:
            row.ids[self.places[[0, self.places.size // 2, -1]]] = mask_id
        return row

    def parts(self) -> list[list[int]]:
        own = _parts(self.frame)[self.places]
        return [self.ids[own == part].tolist() for part in np.unique(own)]


def _draw(tokenizer: TextTokenizer, vocabulary: int, length: int, kinds: Sequence[bool]) -> list[_Row]:
    pool = drawn_pool(tokenizer, vocabulary)
    if not pool.size:
        return []
    frames = [tokenizer.frame(length, pair=pair) for pair in kinds]
    places = [np.flatnonzero(_parts(f) >= 0) for f in frames]
    rounds = range(-(-sum(p.size for p in places) // pool.size))
    stream = np.concatenate([pool[:0], *(generator(_SEED, "drawn ids", r).permutation(pool) for r in rounds)])
    ends = np.cumsum([p.size for p in places])
    return [_Row(f, p, stream[end - p.size : end]) for f, p, end in zip(frames, places, ends, strict=True)]


def _text(tokenizer: TextTokenizer, row: _Row, length: int, mask: str | None) -> Text:
    parts = row.parts()
    while True:
        words = [printable(tokenizer.decode(ids)) for ids in parts]
        if mask is not None and len(parts) == 1:
            head = printable(tokenizer.decode(parts[0][:_BEFORE_MASK]))
            words = [" ".join([head, mask, printable(tokenizer.decode(parts[0][_BEFORE_MASK:]))])]
        text: Text = words[0] if len(words) == 1 else (words[0], words[1])
        have, most = len(tokenizer.encode([text])[0]), tokenizer.max_length
        if have < length == most and len(parts[0]) < 4 * length:  # pieces grew together
            parts = [[*ids, *ids] for ids in parts]
        elif have > length and min(map(len, parts)) > 1:
            parts = [ids[: max(len(ids) - -(-(have - length) // len(parts)), 1)] for ids in parts]
        else:
            return text


def printable(text: str) -> str:
    """A text without the characters that end lines or control terminals."""
    return "".join(c for c in text if c.isprintable())


def drawn_pool(tokenizer: TextTokenizer, vocabulary: int) -> NDArray[np.int64]:
    """List the ids that are drawn: every piece of text that the tokenizer knows and the embedding table has."""
    frame = tokenizer.frame(tokenizer.max_length, pair=True)
    special = {*tokenizer.special_ids, tokenizer.pad_id, tokenizer.mask_id, *frame.ids[_parts(frame) < 0].tolist()}
    return np.array([i for i in tokenizer.ids if i < vocabulary and i not in special], np.int64)


def _parts(frame: Encoded) -> NDArray[np.int64]:
    assert frame.places is not None
    return frame.places.parts


PADDING = 19
"""Padding tokens beside a row whose padded answer is compared."""


class Parity(BaseModel):
    """Result of one comparison.

    Attributes:
        subject: What was compared, e.g. ``onnx/model.onnx``.
        reference: With what.
        worst: Largest absolute difference of the logits relative to their spread; NaN if any value is.
        mask_effect: How far the reference's logits move when padding is not masked, on the same scale;
            proof that a lost mask would be seen.
        bound: What `worst` must not exceed.
        spread: What differences are relative to: the largest per-class standard deviation of the reference logits over
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


class Probe(BaseModel):
    """Inputs for a comparison, with the reference's answers.

    Attributes:
        batches: Padded inputs by name, [B, L] each.
        expected: What the reference answers to each batch: a row per text, or per real token.
        mask_effect: See `Parity`.
        task: Decides which tokens are compared.
        mask_id: Id of the masked token.
    """

    model_config = {"arbitrary_types_allowed": True}

    batches: list[dict[str, NDArray[np.int64]]]
    expected: list[NDArray[np.float32]]
    mask_effect: float
    task: Task
    mask_id: int | None = None

    def read(self, predictor: Predictor, batch: dict[str, NDArray[np.int64]], names: Sequence[str]) -> Matrix:
        """What a predictor answers to one of the batches."""
        return whole(matrices(predictor.run(batch), batch, names, self.task, self.mask_id))


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
    """Choose inputs and let the reference answer them.

    Rows are run alone and unpadded, in ragged batches, and padded to each of `lengths` (clipped to what the
    tokenizer allows) and to odd lengths beside them, which no exporter's example had; the longest text is cut to each,
    so that the last position is read too. A file that takes some lengths only is asked at these: the reference gets the
    same padding.

    Args:
        reference: The untouched model.
        tokenizer: Makes the inputs.
        texts: At least 8 real texts.
        lengths: Lengths that matter to the user, in tokens.
        task: Decides which tokens are compared.
        names: Outputs to compare, side by side.
        fixed: The only lengths that the subject takes; empty where it takes all.
        drawn: Rows of drawn ids, all of one length that the subject takes, which are run as they are.
    """
    most = max(fixed, default=tokenizer.max_length)
    rows = [cut(r, most) for r in tokenizer.encode(list(texts), places=True)]
    parts = [*([row] for row in rows[:4]), rows[4:8]]
    wanted = [max(map(len, part)) for part in parts]
    longest = max(rows, key=len)
    for i, length in enumerate(sorted({min(n, most) for n in (*lengths, *fixed, 13, 37)})):
        parts.append([cut(r, length) for r in (longest, *rows[i % 4 :: 4])][:6])
        wanted.append(length)
    batches = [tokenizer.pad(p, fitting(fixed, n)) for p, n in zip(parts, wanted, strict=True)]
    batches += [tokenizer.pad(drawn[i : i + 2]) for i in range(0, len(drawn), 2)]
    probe = Probe(batches=batches, expected=[], mask_effect=0.0, task=task, mask_id=tokenizer.mask_id)
    expected = [probe.read(reference, b, names) for b in batches]
    # Same texts with the padding declared real: how much a file that ignores the mask would be off.
    moved = 0.0
    for own, answer in zip(batches, expected, strict=True):
        if not own["attention_mask"].all():
            opened = reference.run({**own, "attention_mask": np.ones_like(own["attention_mask"])})
            moved = max(moved, worst_difference(whole(matrices(opened, own, names, task, tokenizer.mask_id)), answer))
    return probe.model_copy(update={"expected": expected, "mask_effect": moved / _scale(expected)})


def compare(subject: Predictor, name: str, reference: str, probe: Probe, names: Sequence[str], bound: float) -> Parity:
    """Run the probe's inputs through a predictor.

    Args:
        subject: What to compare.
        name: Its name in the report.
        reference: The reference's name.
        probe: Inputs and expected outputs.
        names: Outputs to compare, side by side.
        bound: Largest allowed difference relative to the spread.
    """
    scale = _scale(probe.expected)
    differences = [
        worst_difference(probe.read(subject, b, names), e) for b, e in zip(probe.batches, probe.expected, strict=True)
    ]
    worst = float(np.max(differences)) / scale
    shapes = sorted({(int(b["input_ids"].shape[0]), int(b["input_ids"].shape[1])) for b in probe.batches})
    return Parity(
        subject=name,
        reference=reference,
        worst=worst,
        mask_effect=probe.mask_effect,
        bound=bound,
        spread=scale,
        shapes=shapes,
        passed=bool(worst <= bound),
    )


def worst_of(results: Sequence[Parity]) -> Parity:
    """The comparison of a file's groups of outputs that came out worst; NaN is worse than any number."""
    return max(results, key=lambda r: (r.worst != r.worst, r.worst))


def padding_difference(
    predictor: Predictor,
    tokenizer: TextTokenizer,
    rows: Sequence[Encoded],
    task: Task,
    own: Matrix | None = None,
    keep: Pick | None = None,
) -> float:
    """How far padding moves a file's answers, relative to their spread; a right mask moves fp32 by rounding only.

    Args:
        predictor: The file.
        tokenizer: Pads.
        rows: At least two tokenized texts.
        task: Decides which outputs and tokens are compared.
        own: How far it moves the reference's answers; taken off. Not nothing in MobileBERT, whose last
            token sees the embedding of the padding token beside it.
        keep: What is compared of each row's matrix; default all.
    """
    pick = keep or (lambda _, m: m)
    alone = whole(run_rows(predictor, tokenizer, rows, task, reduce=pick))
    padded = [pick(i, m) for i, m in enumerate(padded_answers(predictor, tokenizer, rows, task))]
    moved = whole(padded) - alone
    return worst_difference(moved, np.zeros_like(moved) if own is None else own) / yardstick(alone)


Pick = Callable[[int, Matrix], Matrix]


def padded_answers(predictor: Predictor, tokenizer: TextTokenizer, rows: Sequence[Encoded], task: Task) -> list[Matrix]:
    """Answers to rows that are padded by `PADDING` tokens (fewer where that would be too long)."""
    out = []
    for row in rows:
        batch = _more_padding(predictor, tokenizer, row)
        out += matrices(predictor.run(batch), batch, answer_of(task, predictor), task, tokenizer.mask_id)
    return out


def _more_padding(predictor: Predictor, tokenizer: TextTokenizer, row: Encoded) -> dict[str, NDArray[np.int64]]:
    """A row with padding that it would not get by itself."""
    most = min(tokenizer.max_length, max(predictor.lengths, default=tokenizer.max_length))
    own = fitting(predictor.lengths, len(row))
    batch = feed(predictor, tokenizer, [row], min(max(len(row) + PADDING, own + 1), most))
    if predictor.lengths and batch["input_ids"].shape[1] == own:
        # the file has no longer signature: other tokens where the padding is; the one beside the text stays, since
        # MobileBERT's embedding looks at neighbours
        pads = np.flatnonzero(batch["attention_mask"][0] == 0)
        away = pads[1:] if tokenizer.padding_side == "right" else pads[:-1]
        batch["input_ids"][0, away] = np.resize(row.ids, away.size)
    return batch


def _scale(expected: Sequence[NDArray[np.float32]]) -> float:
    return yardstick(np.concatenate(list(expected)))
