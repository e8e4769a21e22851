"""Whether a file computes what the untouched model computes: real texts and drawn ids, padded and unpadded, at several lengths."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from pocketbert.core.compare.evaluate import worst_difference, yardstick
from pocketbert.core.predict.predictor import Predictor, feed, fitting
from pocketbert.core.predict.readout import Matrix, answer_of, matrices, run_rows, whole
from pocketbert.core.predict.tokenization import Encoded, Text, TextTokenizer, cut
from pocketbert.core.tasks import Task

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
