"""Head of fill-mask: tokens for the masked positions of a text.

Texts to score have 15 % of their tokens masked, always the same ones; answers are given at the masks of the text
itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.heads.head import IGNORED_LABEL, Prepared, all_finite, make_score, prepare_texts
from pocketbert.core.metrics import TOP_1, entropy
from pocketbert.core.predict.answers import Answer, Filled, Guess
from pocketbert.core.predict.examples import Example
from pocketbert.core.predict.inputs import Encoded
from pocketbert.core.predict.predictor import Matrix, join_texts
from pocketbert.core.predict.scores import apply_score_function
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.seeds import derive_seed
from pocketbert.core.tasks import Task

if TYPE_CHECKING:
    from pocketbert.core.predict.scores import Score

_MASKED_SHARE = 0.15
"""Share of a scored text's tokens that are masked (Devlin et al. 2019, section 3.1), all of them by the mask token."""
_GUESSES = 10
"""Tokens that an answer holds for each position."""


class FillMaskHead:
    """Head of fill-mask; the output matrix of a text has shape [masked tokens, vocabulary]."""

    def __init__(self, task: Task) -> None:
        self.task = task

    def prepare(self, examples: list[Example], tokenizer: TextTokenizer, title: str, labelled: bool = True) -> Prepared:
        """Tokenize rows, and mask some tokens of labelled rows; the same text always gets the same masks.

        The gold labels are the ids of the masked tokens, one array per row; a mask that the text itself contains has
        `IGNORED_LABEL`.

        Raises:
            InputError: If the vocabulary has no mask token.
        """
        if tokenizer.mask_id is None:
            raise InputError(Problem("task", "fill-mask needs a mask token, the tokenizer has none."))
        if not labelled:
            return prepare_texts(examples, tokenizer)
        rows = prepare_texts(examples, tokenizer, places=True)
        masked = [_mask_tokens(e, x.digest, tokenizer.mask_id) for e, x in zip(rows.encoded, examples, strict=True)]
        return replace(rows, encoded=[encoded for encoded, _ in masked], truth=[gold for _, gold in masked])

    def reduce(self, row: int, matrix: Matrix, prepared: Prepared) -> Matrix:
        """Reduce logits to [masked tokens, 2]: each token's cross-entropy, and whether the best guess is right."""
        tokenizer = prepared.tokenizer
        assert tokenizer is not None
        # a file of a smaller length has cut the last masks off
        gold = prepared.truth[row][: int((prepared.encoded[row].ids == tokenizer.mask_id).sum())]
        known = gold != IGNORED_LABEL
        if not known.any():
            return np.empty((0, 2), np.float32)
        gold, logits = gold[known], matrix[known].astype(np.float64)
        largest = logits.max(-1)
        log_sum = np.log(np.exp(logits - largest[:, None]).sum(-1)) + largest
        own = logits[np.arange(len(gold)), gold]
        return np.stack([log_sum - own, logits.argmax(-1) == gold], -1).astype(np.float32)

    def score(self, reduced: Sequence[Matrix], prepared: Prepared) -> Score:
        """Compute the mean cross-entropy over masked tokens, and the share of them that is guessed right."""
        values, finite = join_texts(reduced), all_finite(reduced)
        gold = np.concatenate([np.asarray(t, np.int64) for t in prepared.truth])
        chance = entropy(gold[gold != IGNORED_LABEL])
        others = {TOP_1.name: float(values[:, 1].mean(dtype=np.float64))}
        loss = float(values[:, 0].mean(dtype=np.float64))
        return make_score(self.task.metric, loss, others, len(prepared.examples), chance, finite)

    def answers(self, outputs: Sequence[Matrix], prepared: Prepared, inside: bool = False) -> list[Answer]:
        """Return the answers of each text: a `Filled` with the most probable tokens at each masked position."""
        tokenizer = prepared.tokenizer
        assert tokenizer is not None
        answers: list[Answer] = []
        for encoded, matrix in zip(prepared.encoded, outputs, strict=True):
            # without a mask the matrix has a row for every token
            has_mask = bool((encoded.ids == tokenizer.mask_id).any())
            scores = apply_score_function(matrix, self.task.score) if has_mask else np.empty((0, 1))
            places = [
                tuple(
                    Guess(tokenizer.token(int(i)), tokenizer.decode([int(i)]), float(row[i]))
                    for i in np.argsort(-row, kind="stable")[:_GUESSES]
                )
                for row in scores
            ]
            answers.append(Filled(tuple(places), encoded.truncated))
        return answers


def _mask_tokens(encoded: Encoded, digest: str, mask_id: int) -> tuple[Encoded, NDArray[np.int64]]:
    """Mask some tokens of a row, chosen by the text's hash; return the row and the original ids of all masked tokens.

    `digest` is the text's hash. A mask that the text itself contains has `IGNORED_LABEL` as original id.
    """
    assert encoded.places is not None
    words = np.flatnonzero((encoded.places.parts >= 0) & (encoded.ids != mask_id))
    count = min(len(words), max(1, round(_MASKED_SHARE * len(words))))
    random = np.random.Generator(np.random.Philox(derive_seed(0, f"fill-mask/{digest}")))
    chosen = np.sort(random.choice(words, count, replace=False))
    ids = encoded.ids.copy()
    ids[chosen] = mask_id
    original = encoded.ids[ids == mask_id]
    return replace(encoded, ids=ids), np.where(original == mask_id, IGNORED_LABEL, original)
