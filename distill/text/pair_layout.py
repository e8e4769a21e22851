"""How a tokenizer puts two texts into one input: the positions of the special tokens, and the segments."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.predict.tokenization import Encoded, TextTokenizer
from pocketbert.distill.text.corpora.tokenizer import PROBES

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class PairLayout:
    """Special tokens around two texts, ``[CLS] A [SEP] B [SEP]``, and the segment of each token.

    Attributes:
        before: Special tokens before the first text, [b].
        between: Between the texts, [m].
        after: After the second one, [a].
        segments: Segments of `before`, the first text, `between`, the second text and `after`.
    """

    before: Ids
    between: Ids
    after: Ids
    segments: tuple[Ids, int, Ids, int, Ids]

    @property
    def special(self) -> int:
        """Number of special tokens."""
        return len(self.before) + len(self.between) + len(self.after)

    def join(self, first: Ids, second: Ids) -> Encoded:
        """Two texts as one input.

        Args:
            first: Tokens of the first text, [n].
            second: Tokens of the second one, [k].
        """
        before, one, between, two, after = self.segments
        ids = np.concatenate([self.before, first, self.between, second, self.after])
        types = [before, np.full(len(first), one), between, np.full(len(second), two), after]
        return Encoded(ids, np.concatenate(types).astype(np.int64), truncated=False)


def pair_layout(tokenizer: TextTokenizer, where: str) -> PairLayout:
    """What the tokenizer's own post-processor makes of two texts, read off a pair of single words.

    Args:
        tokenizer: Of any family: BERT's ``[CLS] A [SEP] B [SEP]`` with segments 0 and 1, RoBERTa's
            ``<s> A </s></s> B </s>`` with segment 0 alone.
        where: Recipe key, for errors.

    Raises:
        InputError: If its longest input has no room for two texts, or it puts nothing between them.
    """
    for probe in PROBES:
        (pair,) = tokenizer.encode([(probe, probe)], places=True)
        assert pair.places is not None
        own = [np.flatnonzero(pair.places.parts == part) for part in (0, 1)]
        if own[0].size and own[1].size:
            break
    else:
        raise InputError(
            Problem(
                where,
                f"inputs of {tokenizer.max_length} tokens have no room for two texts.",
                "Raise data.corpus.length, or set pairs: false.",
            )
        )
    cuts = [own[0][0], own[0][-1] + 1, own[1][0], own[1][-1] + 1]
    before, _, between, _, after = np.split(pair.ids, cuts)
    if not between.size:
        raise InputError(
            Problem(
                where,
                "the tokenizer puts no special token between two texts: where the first one ends could not be seen.",
                "Set pairs: false.",
            )
        )
    types = np.split(pair.type_ids, cuts)
    return PairLayout(before, between, after, (types[0], int(types[1][0]), types[2], int(types[3][0]), types[4]))
