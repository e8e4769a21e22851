"""The masking that a recipe names."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.predict.tokenization import MASK_TOKENS, TextTokenizer
from pocketbert.core.types import MaskingKind
from pocketbert.distill.text.masking.masking import Masking, MaskingScheme
from pocketbert.distill.text.masking.rows import (
    DynamicMasking,
    NgramMasking,
    NoMasking,
    SimilarMasking,
    SpanMasking,
    WholeWordMasking,
)
from pocketbert.distill.text.masking.similar import SimilarWords
from pocketbert.distill.text.masking.words import continues_word, wordless_ids

_BY_WORD: dict[MaskingKind, type[WholeWordMasking | SpanMasking | NgramMasking]] = {
    MaskingKind.WHOLE_WORD: WholeWordMasking,
    MaskingKind.SPAN: SpanMasking,
    MaskingKind.NGRAM: NgramMasking,
}
_UNREAD = 0
"""In place of a mask token that the tokenizer does not have and the masking does not use."""


def masking_of(
    kind: MaskingKind,
    counts: NDArray[np.int64],
    tokenizer: TextTokenizer,
    seed: int,
    purpose: str,
    share: float = 0.15,
    smoothing: float = 0.7,
    similar: SimilarWords | None = None,
) -> MaskingScheme:
    """Build the masking of one stage.

    Args:
        kind: How tokens to hide are chosen.
        counts: How often each token stands in the corpus, [V].
        tokenizer: The teacher's.
        seed: Seed of the run.
        purpose: What is trained (``distill.0``): keys the noise, and names the stage in errors.
        share: Share of the tokens to hide; unused by `none`.
        smoothing: Exponent of the frequency; of `frequency` only.
        similar: Knows similar words; needed by `similar`, and by nothing else.

    Raises:
        InputError: If the tokenizer has no mask token, or its vocabulary does not tell where words begin, and the
            kind needs it.
    """
    if kind is MaskingKind.NONE:
        return NoMasking()
    where, mask_id = f"{purpose}.masking", tokenizer.mask_id
    if kind is MaskingKind.SIMILAR and mask_id is None:
        mask_id = _UNREAD
    problems = []
    if mask_id is None:
        problems.append(
            Problem(
                where,
                f"{kind}, and the tokenizer has no mask token ({' or '.join(MASK_TOKENS)}).",
                "Set masking: none, or take a teacher whose tokenizer has one.",
            )
        )
    continues = None
    if kind in (*_BY_WORD, MaskingKind.SIMILAR):
        continues = continues_word(tokenizer, len(counts))
        if continues is None:
            problems.append(
                Problem(
                    where,
                    f"{kind}, and the vocabulary does not tell where words begin: no token starts with ##, Ġ or ▁.",
                    "Set masking: dynamic.",
                )
            )
    if problems or mask_id is None:
        raise InputError(problems)
    wordless = wordless_ids(tokenizer, len(counts))
    if kind is MaskingKind.FREQUENCY:
        return Masking(counts, mask_id, wordless, seed, purpose, share, smoothing)
    if continues is None:
        return DynamicMasking(len(counts), mask_id, wordless, seed, purpose, share)
    if kind is MaskingKind.SIMILAR:
        assert similar is not None, "masking: similar needs words"
        return SimilarMasking(
            len(counts), mask_id, wordless, seed, purpose, share, continues=continues, similar=similar
        )
    return _BY_WORD[kind](len(counts), mask_id, wordless, seed, purpose, share, continues=continues)
