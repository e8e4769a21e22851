"""The words that a masked-language model expects in the place of a word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pocketbert.core.families import Family
from pocketbert.distill.augment.neighbours import SPARE, chosen
from pocketbert.distill.augment.words import WordReader, WordText
from pocketbert.distill.capture.lm_heads import LmHead

TOKENS_AT_ONCE = 4096
"""Tokens of a forward pass, padding included."""


@dataclass(frozen=True)
class _Row:
    """One question: a text with a token hidden.

    Attributes:
        ids: Tokens with special ones, [L] int64.
        place: Where the mask stands.
        split: Where the second segment begins.
        word: What is hidden.
    """

    ids: NDArray[np.int64]
    place: int
    split: int
    word: str


class MaskedWords:
    """Asks a model's masked-language-model head.

    As in the released code of TinyBERT the model reads the text with the word hidden and, where its family has
    segments, the unchanged text as second segment: it expects words that resemble the hidden one, not any that fit.
    Families without segments read the first text alone. Of a text that does not fit, the tokens around the word are read.

    Args:
        model: A model with such a head, in eval mode.
        family: Its row of the family table.
        reader: Its tokenizer.
        mask_id: Id of the mask token.
        positions: Longest input in tokens.
        count: Candidates per word, K of the paper.
        where: Recipe key, for errors.
    """

    def __init__(
        self,
        model: Any,
        family: Family,
        reader: WordReader,
        mask_id: int,
        positions: int,
        count: int,
        where: str = "data.augment.masked_lm",
    ) -> None:
        self._head, self._model, self._family, self._base = LmHead(model, where), model, family, reader.base
        self._mask, self.count = mask_id, count
        entries = reader.vocabulary()
        self._entries = list(entries.values())
        self._device = next(model.parameters()).device
        self._ids = torch.tensor(list(entries), dtype=torch.int64, device=self._device)
        self._pad = int(getattr(model.config, "pad_token_id", 0) or 0)
        wrapping = len(self._base.before) + (2 if family.uses_segments else 1) * len(self._base.after)
        self._room = max(1, (positions - wrapping) // (2 if family.uses_segments else 1))

    def candidates(self, texts: Sequence[WordText]) -> list[list[tuple[str, ...]]]:
        """Of each text, candidates for its words of a single token, in their order.

        The candidates are the most probable words, at most `count`, in the order of the vocabulary. Only its whole
        words count (`WordReader.vocabulary`), and never the hidden word itself. The order says nothing of probability,
        so that rounding cannot change which number a candidate has.
        """
        rows = [[self._row(t.ids, w.token, w.text) for w in t.words if w.token is not None] for t in texts]
        found = iter(self._find([row for own in rows for row in own]))
        return [[next(found) for _ in own] for own in rows]

    def _find(self, rows: Sequence[_Row]) -> list[tuple[str, ...]]:
        order = sorted(range(len(rows)), key=lambda i: len(rows[i].ids))
        out: list[tuple[str, ...]] = [()] * len(rows)
        start = 0
        while start < len(order):
            end = start + 1
            while end < len(order) and (end + 1 - start) * len(rows[order[end]].ids) <= TOKENS_AT_ONCE:
                end += 1
            numbers = order[start:end]
            for i, places in zip(numbers, self._ask([rows[i] for i in numbers]), strict=True):
                out[i] = chosen(rows[i].word, places, self._entries, self.count)
            start = end
        return out

    def _row(self, ids: NDArray[np.int64], place: int, word: str) -> _Row:
        first = max(0, min(place - self._room // 2, len(ids) - self._room))
        plain = ids[first : first + self._room]
        hidden = plain.copy()
        hidden[place - first] = self._mask
        before, after = self._base.before, self._base.after
        parts = [before, hidden, after]
        split = sum(map(len, parts))
        if self._family.uses_segments:
            parts += [plain, after]
        return _Row(np.concatenate(parts), len(before) + place - first, split, word)

    @torch.inference_mode()
    def _ask(self, rows: Sequence[_Row]) -> list[list[int]]:
        """Places, among the whole words, of the most probable ones, best first."""
        width = max(len(row.ids) for row in rows)
        made = {name: np.zeros((len(rows), width), np.int64) for name in self._family.inputs}
        made["input_ids"][:] = self._pad
        selected = np.zeros(len(rows), np.int64)
        for i, row in enumerate(rows):
            left = width - len(row.ids) if self._family.padding_side == "left" else 0
            own = slice(left, left + len(row.ids))
            made["input_ids"][i, own] = row.ids
            made["attention_mask"][i, own] = 1
            if self._family.uses_segments:
                made["token_type_ids"][i, left + row.split : own.stop] = 1
            selected[i] = i * width + left + row.place
        inputs: dict[str, Tensor] = {k: torch.from_numpy(v).to(self._device) for k, v in made.items()}
        logits = self._head.run(self._model, inputs, torch.from_numpy(selected).to(self._device)).logits
        most = min(self.count + SPARE, len(self._entries))
        places: list[list[int]] = logits[:, self._ids].topk(most, dim=-1).indices.tolist()
        return places
