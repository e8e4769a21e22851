"""Spans of neighbouring words, drawn as SpanBERT draws them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

P, LONGEST = 0.2, 10
_CHANCES = P * (1 - P) ** np.arange(LONGEST)
SPAN_CHANCES: NDArray[np.float64] = _CHANCES / _CHANCES.sum()
"""Chance of a span of 1 to 10 words, [10]: Geo(0.2), of which lengths above 10 are left out; mean 3.8 words."""
NGRAM_CHANCES: NDArray[np.float64] = np.array([0.4, 0.3, 0.2, 0.1])
"""Chance of a run of 1 to 4 words, [4]; Cui et al. 2020 (MacBERT), arXiv 2004.13922, section 3."""


def draw_spans(
    firsts: NDArray[np.int64],
    ends: NDArray[np.int64],
    wanted: int,
    noise: NDArray[np.float64],
    chances: NDArray[np.float64] = SPAN_CHANCES,
) -> list[tuple[int, int]]:
    """Draw spans of whole words until enough tokens are hidden.

    Again and again a length is drawn, by default from ``Geo(p = 0.2)``, at most 10 words, and a first word, uniformly among those
    not hidden yet (Joshi et al. 2020, arXiv 1907.10529, section 3.1). A span ends early before a hidden word, before
    a token that belongs to no word, and before a word with more tokens than may still be hidden: the original code
    cuts that word in two. Where no word of the row fits, the shortest is hidden.

    Args:
        firsts: First token of each word, ascending, [W].
        ends: Behind its last token, [W]; words whose end is not the next one's first are not neighbours.
        wanted: How many tokens to hide, at least 1.
        noise: Uniform numbers in [0, 1), [n, 2] with n >= W.
        chances: Chance of each length from 1 on.

    Returns:
        First and behind-last *word* of each span, none of which overlap, in the order in which they were drawn.
    """
    sizes = ends - firsts
    joined = firsts[1:] == ends[:-1]
    if sizes.size and sizes.min() > wanted:
        wanted = int(sizes.min())
    free = np.ones(len(sizes), np.bool_)
    lengths = np.searchsorted(np.cumsum(chances)[:-1], noise[:, 0], "right") + 1
    spans: list[tuple[int, int]] = []
    for length, place in zip(lengths.tolist(), noise[:, 1].tolist(), strict=True):
        possible = np.flatnonzero(free & (sizes <= wanted))
        if not possible.size:
            break
        first = last = int(possible[int(place * len(possible))])
        wanted -= int(sizes[first])
        while (
            last - first + 1 < length
            and last < len(joined)
            and joined[last]
            and free[last + 1]
            and sizes[last + 1] <= wanted
        ):
            last += 1
            wanted -= int(sizes[last])
        free[first : last + 1] = False
        spans.append((first, last + 1))
    return spans
