"""Several corpora as one: a given number of rows, a share from each source, chosen only by the seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.seeds import generator
from pocketbert.distill.text.corpora.corpus import Corpus, Rows


@dataclass(frozen=True)
class Mixture:
    """Rows sampled from corpora; see `mix`.

    Attributes:
        corpora: The sources.
        sources: Which source each of the N rows is from, [N] int64.
        places: Its row number there, [N] int64.
        lengths: Tokens of each row, [N] int64.
        counts: Occurrences of each token, [V] int64: the sources' own counts in proportion to the rows taken from
            them, so exact only for whole sources.
    """

    corpora: Sequence[Corpus]
    sources: NDArray[np.int64]
    places: NDArray[np.int64]
    lengths: NDArray[np.int64]
    counts: NDArray[np.int64]

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.lengths)

    def ids(self, rows: Rows) -> list[NDArray[np.int64]]:
        """Token ids of some rows; see `Corpus.ids`."""
        index = np.asarray(rows, np.int64).reshape(-1)
        if index.size and not 0 <= index.min() <= index.max() < len(self):
            raise IndexError(f"rows {index.min()} to {index.max()} asked for, there are {len(self)}")
        return [self.corpora[self.sources[i]].ids(self.places[i : i + 1])[0] for i in index]


def mix(corpora: Sequence[Corpus], shares: Sequence[float], rows: int, seed: int) -> Mixture:
    """Sample rows from corpora, or from a single one.

    From each source rows are taken without replacement until all were taken once, then again all in a new order.
    Which rows these are depends on the seed, the shares and the sizes of the sources alone.

    Args:
        corpora: The sources, made with the same tokenizer.
        shares: How much of the rows each source gives; positive, scaled to sum to 1. Rounded by largest remainder.
        rows: N, at least 1.
        seed: Decides which rows, and their order.

    Returns:
        N rows in random order.

    Raises:
        InputError: If there are not as many shares as corpora, a share is not positive or too small for one row, or
            the tokenizers differ.
    """
    _check(corpora, shares, rows)
    wanted = _apportion(shares, rows)
    if not wanted.all():
        i = int(np.argmin(wanted))
        raise InputError(
            Problem(
                f"shares.{i}",
                f"{shares[i]} of {sum(shares)} is less than one of {rows} rows.",
                "Raise the share or the number of rows, or leave this source out.",
            )
        )
    taken = [_sample(len(c), int(n), seed, i) for i, (c, n) in enumerate(zip(corpora, wanted, strict=True))]
    order = generator(seed, "mix/order").permutation(rows)
    expected = [c.counts * (n / len(c)) for c, n in zip(corpora, wanted, strict=True)]
    return Mixture(
        corpora=tuple(corpora),
        sources=np.repeat(np.arange(len(corpora)), wanted)[order],
        places=np.concatenate(taken)[order],
        lengths=np.concatenate([c.lengths[t] for c, t in zip(corpora, taken, strict=True)])[order],
        counts=np.rint(np.sum(expected, 0)).astype(np.int64),
    )


def _check(corpora: Sequence[Corpus], shares: Sequence[float], rows: int) -> None:
    problems = []
    if not corpora or len(corpora) != len(shares):
        problems.append(Problem("shares", f"{len(shares)} shares for {len(corpora)} corpora; one each is needed."))
    problems += [
        Problem(f"shares.{i}", f"{share}; a share is a positive number.")
        for i, share in enumerate(shares)
        if not (isfinite(share) and share > 0)
    ]
    if rows < 1:
        problems.append(Problem("rows", f"{rows}; at least 1 is needed."))
    problems += [
        Problem(
            str(c.folder),
            f"made with another tokenizer than {corpora[0].folder}; rows of both cannot be mixed.",
            "Write both with the model's tokenizer.",
        )
        for c in corpora[1:]
        if c.info.tokenizer_digest != corpora[0].info.tokenizer_digest
    ]
    if problems:
        raise InputError(problems)


def _apportion(shares: Sequence[float], rows: int) -> NDArray[np.int64]:
    """Whole numbers in proportion to `shares` that sum to `rows`: largest remainder, earlier sources first."""
    exact = np.asarray(shares, np.float64) / sum(shares) * rows
    whole = np.floor(exact).astype(np.int64)
    first = np.argsort(whole - exact, kind="stable")
    whole[first[: rows - int(whole.sum())]] += 1
    return whole


def _sample(available: int, wanted: int, seed: int, source: int) -> NDArray[np.int64]:
    rounds = -(-wanted // available)
    orders = [generator(seed, "mix/rows", source, r).permutation(available) for r in range(rounds)]
    out: NDArray[np.int64] = np.concatenate(orders)[:wanted]
    return out
