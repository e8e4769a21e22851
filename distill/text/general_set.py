"""Unlabelled text to train on, paired and masked anew at every step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pocketbert.core.predict.tokenization import Encoded, TextTokenizer
from pocketbert.distill.text.corpora.corpus import TokenRows
from pocketbert.distill.text.masking.masking import MaskingScheme
from pocketbert.distill.text.pairs import NEXT_SENTENCE, Pairs
from pocketbert.distill.training.train_set import ROWS, STEPS


@dataclass(frozen=True)
class GeneralSet:
    """Rows of a corpus, as pairs where asked for, with hidden tokens; satisfies `TrainData`.

    Attributes:
        corpus: Tokenized rows.
        tokenizer: Pads batches.
        masking: Chooses what is hidden.
        pairs: Makes two segments of each row, before tokens are hidden; None leaves rows as they are.
    """

    corpus: TokenRows
    tokenizer: TextTokenizer
    masking: MaskingScheme
    pairs: Pairs | None = None

    @property
    def lengths(self) -> list[int]:
        """Tokens of each row; of pairs the most that they have."""
        lengths: list[int] = self.corpus.lengths.tolist()
        return lengths

    def batch(self, rows: Sequence[int], step: int) -> dict[str, Tensor]:
        """Tensors of a *global* batch, a function of only (rows, step).

        Frequency-smoothed masking decides over all rows of the step: a process that trains on a part of them masks
        them all and takes its part of the result.

        Args:
            rows: Row numbers of all processes, B of them.
            step: The optimiser step.

        Returns:
            ``input_ids`` (masked), ``attention_mask``, ``token_type_ids`` (zeros unless paired) and ``labels`` (the
            original id where one is to be predicted, else -100), each [B, S] int64; ``rows`` and ``steps``, [B]
            int64; of pairs also ``next_sentence_label``, [B] int64: see `PairedRows`.
        """
        extra: dict[str, NDArray[np.int64]] = {}
        if self.pairs is None:
            found = self.corpus.ids(rows)
            encoded = [Encoded(np.asarray(i, np.int64), np.zeros(len(i), np.int64), truncated=False) for i in found]
        else:
            paired = self.pairs.build(self.corpus, rows, step)
            encoded, extra = paired.encoded, {NEXT_SENTENCE: paired.labels}
        padded = self.tokenizer.pad(encoded)
        masked = self.masking.apply(padded["input_ids"], padded["attention_mask"], rows, step)
        padded |= {"input_ids": masked.input_ids, "labels": masked.labels, **extra}
        out = {name: torch.from_numpy(value) for name, value in padded.items()}
        out[ROWS] = torch.from_numpy(np.array(rows, np.int64))
        out[STEPS] = torch.full((len(rows),), step)
        return out

    def key(self) -> list[Any]:
        """All that makes batches of the corpus' rows, as JSON: what was computed of one key's batches is stale for another's."""
        paired = [] if self.pairs is None else self.pairs.key()
        return [*self.masking.key(), self.tokenizer.padding_side, self.tokenizer.pad_id, *paired]
