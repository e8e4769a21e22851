"""Whether a file computes what the untouched model computes, padded and unpadded, at several lengths."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from pocketbert.core.evaluate import worst_difference, yardstick
from pocketbert.core.predictor import Predictor, feed, fitting, run_encoded
from pocketbert.core.tokenization import Encoded, Text, TextTokenizer, cut

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
        expected: Reference logits of each batch, [B, labels].
        mask_effect: See `Parity`.
    """

    model_config = {"arbitrary_types_allowed": True}

    batches: list[dict[str, NDArray[np.int64]]]
    expected: list[NDArray[np.float32]]
    mask_effect: float


def build_probe(
    reference: Predictor,
    tokenizer: TextTokenizer,
    texts: Sequence[Text],
    lengths: Sequence[int],
    output: str,
    side: str,
    fixed: Sequence[int] = (),
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
        output: Name of the output to compare.
        side: Padding side.
        fixed: The only lengths that the subject takes; empty where it takes all.
    """
    most = max(fixed, default=tokenizer.max_length)
    rows = [cut(r, most) for r in tokenizer.encode(list(texts))]
    parts = [*([row] for row in rows[:4]), rows[4:8]]
    wanted = [max(map(len, part)) for part in parts]
    longest = max(rows, key=len)
    for i, length in enumerate(sorted({min(n, most) for n in (*lengths, *fixed, 13, 37)})):
        parts.append([cut(r, length) for r in (longest, *rows[i % 4 :: 4])][:6])
        wanted.append(length)
    batches = [tokenizer.pad(p, fitting(fixed, n), side) for p, n in zip(parts, wanted, strict=True)]
    expected = [np.asarray(reference.run(b)[output], np.float32) for b in batches]
    # Same texts with the padding declared real: how much a file that ignores the mask would be off.
    open_mask = [{**b, "attention_mask": np.ones_like(b["attention_mask"])} for b in batches]
    moved = max(
        worst_difference(np.asarray(reference.run(b)[output]), e)
        for b, e in zip(open_mask, expected, strict=True)
    )
    return Probe(batches=batches, expected=expected, mask_effect=moved / _scale(expected))


def compare(subject: Predictor, name: str, reference: str, probe: Probe, output: str, bound: float) -> Parity:
    """Run the probe's inputs through a predictor.

    Args:
        subject: What to compare.
        name: Its name in the report.
        reference: The reference's name.
        probe: Inputs and expected outputs.
        output: Name of the output to compare.
        bound: Largest allowed difference relative to the spread.
    """
    scale = _scale(probe.expected)
    differences = [
        worst_difference(np.asarray(subject.run(b)[output], np.float32), e)
        for b, e in zip(probe.batches, probe.expected, strict=True)
    ]
    worst = float(np.max(differences)) / scale
    shapes = sorted({(int(b["input_ids"].shape[0]), int(b["input_ids"].shape[1])) for b in probe.batches})
    return Parity(
        subject=name, reference=reference, worst=worst, mask_effect=probe.mask_effect, bound=bound,
        spread=scale, shapes=shapes, passed=bool(worst <= bound),
    )  # fmt: skip


def padding_difference(
    predictor: Predictor, tokenizer: TextTokenizer, rows: Sequence[Encoded], output: str, side: str,
    own: NDArray[np.float32] | None = None,
) -> float:  # fmt: skip
    """How far padding moves a file's logits, relative to their spread; a right mask moves fp32 by rounding only.

    Args:
        predictor: The file.
        tokenizer: Pads.
        rows: At least two tokenized texts.
        output: Name of the output to compare.
        side: Padding side.
        own: How far it moves the reference's logits, [N, labels]; taken off. Not nothing in MobileBERT, whose last
            token sees the embedding of the padding token beside it.
    """
    alone = np.asarray(run_encoded(predictor, tokenizer, rows, padding_side=side)[output], np.float32)
    moved = padded_logits(predictor, tokenizer, rows, output, side) - alone
    return worst_difference(moved, np.zeros_like(moved) if own is None else own) / yardstick(alone)


def padded_logits(
    predictor: Predictor, tokenizer: TextTokenizer, rows: Sequence[Encoded], output: str, side: str
) -> NDArray[np.float32]:
    """Logits of rows that are padded by `PADDING` tokens (fewer where that would be too long), [N, labels]."""
    return np.concatenate(
        [
            np.asarray(predictor.run(_more_padding(predictor, tokenizer, r, side))[output], np.float32)
            for r in rows
        ]
    )


def _more_padding(
    predictor: Predictor, tokenizer: TextTokenizer, row: Encoded, side: str
) -> dict[str, NDArray[np.int64]]:
    """A row with padding that it would not get by itself."""
    most = min(tokenizer.max_length, max(predictor.lengths, default=tokenizer.max_length))
    own = fitting(predictor.lengths, len(row))
    batch = feed(predictor, tokenizer, [row], side, min(max(len(row) + PADDING, own + 1), most))
    if predictor.lengths and batch["input_ids"].shape[1] == own:
        # the file has no longer signature: other tokens where the padding is; the one beside the text stays, since
        # MobileBERT's embedding looks at neighbours
        pads = np.flatnonzero(batch["attention_mask"][0] == 0)
        away = pads[1:] if side == "right" else pads[:-1]
        batch["input_ids"][0, away] = np.resize(row.ids, away.size)
    return batch


def _scale(expected: Sequence[NDArray[np.float32]]) -> float:
    return yardstick(np.concatenate(list(expected)))
