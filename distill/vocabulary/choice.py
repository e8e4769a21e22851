"""Which pieces of a vocabulary stay: those that training rows have, and those that any word can be spelt with."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.errors import InputError, Problem
from pocketbert.distill.vocabulary.kinds import kind_of

_INDICES = ("pad_index", "unk_index", "bos_index", "eos_index", "mask_index")
"""Entries of XLM's config.json that hold an id, next to those that end with ``_token_id``."""

_UNUSED = re.compile(r"\[unused\d+\]")
"""Pieces that the authors of a vocabulary left free, near its beginning."""


@dataclass(frozen=True)
class Kept:
    """The pieces that stay, in their old order.

    Attributes:
        ids: Their ids before, ascending; a piece's new id is its place here.
        before: Number of pieces before.
    """

    ids: tuple[int, ...]
    before: int

    @cached_property
    def new(self) -> dict[int, int]:
        """New id of each old id that stays."""
        return {old: new for new, old in enumerate(self.ids)}

    def old(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return new ids as they were before.

        Args:
            ids: New ids, any shape.
        """
        return np.asarray(self.ids, np.int64)[ids]


def choose(
    content: Mapping[str, Any],
    config: Mapping[str, Any],
    counts: Mapping[int, int],
    at_least: int = 1,
    top: int = 0,
) -> Kept:
    """Choose the pieces that stay.

    These are: the pieces that are counted often enough, the special tokens, the first `top` pieces of the vocabulary that are
    no letters, and what a text needs so that all its words can still be spelt; see
    `pocketbert.distill.vocabulary.kind.Kind.letters` and `closed`.

    Args:
        content: The content of tokenizer.json.
        config: Entries of config.json: the tokens that they name stay.
        counts: How often each id occurs in the training rows.
        at_least: Occurrences from which a piece stays.
        top: Pieces that stay in any case, in the order of the vocabulary.

    Raises:
        InputError: If tokenizers of its kind cannot be pruned, or nothing would be removed.
    """
    kind = kind_of(content)
    ids = token_ids(content)
    pieces = sorted(ids, key=ids.__getitem__)
    named = set(config_ids(config).values())
    last = max((i for key, i in config_ids(config).items() if key in ("pad_token_id", "pad_index")), default=-1)
    # some position tables begin behind the id of the padding token, which therefore may not change
    special = {p for p in pieces if ids[p] <= last or ids[p] in named} | set(added_ids(content))
    special |= {piece for piece, _ in framed(content)} | ({str(content["model"].get("unk_token"))} & set(ids))
    seen = {p for p in pieces if counts.get(ids[p], 0) >= at_least}
    letters = kind.letters(content["model"], {p for p in pieces if counts.get(ids[p], 0)} - special)
    general = [p for p in pieces if p not in letters and p not in special and not _UNUSED.fullmatch(p)][:top]
    kept = kind.closed(content["model"], special | seen | letters | set(general)) & set(ids)
    if len(kept) == len(pieces):
        what = f"all {len(pieces):,} pieces would stay: training rows have {len(seen):,} of them, top is {top:,}."
        raise InputError(Problem("student.vocabulary", what, "Lower top, raise at_least, or leave vocabulary out."))
    return Kept(tuple(sorted(ids[p] for p in kept)), len(pieces))


def token_ids(content: Mapping[str, Any]) -> dict[str, int]:
    """Return the id of each token of a tokenizer, added ones included.

    Args:
        content: The content of tokenizer.json.
    """
    return {**kind_of(content).pieces(content["model"]), **added_ids(content)}


def added_ids(content: Mapping[str, Any]) -> dict[str, int]:
    """Return the id of each token that was added to the vocabulary, special ones among them."""
    return {token["content"]: token["id"] for token in content.get("added_tokens") or ()}


def config_ids(config: Mapping[str, Any]) -> dict[str, int]:
    """Return the entries of config.json that are the id of a token.

    Args:
        config: The content of config.json.
    """
    keys = [key for key in config if key.endswith("_token_id") or key in _INDICES]
    return {key: config[key] for key in keys if type(config[key]) is int}


def frames(content: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield each processor that puts special tokens around a text, those inside a sequence included."""
    waiting = [content.get("post_processor")]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            waiting += part.get("processors") or []
            yield part


def framed(content: Mapping[str, Any]) -> Iterable[tuple[str, int]]:
    """Yield the special tokens that are put around a text, with their ids."""
    for part in frames(content):
        for token in (part.get("special_tokens") or {}).values():
            yield from zip(token["tokens"], token["ids"], strict=True)
        for key in ("sep", "cls"):
            if isinstance(pair := part.get(key), Sequence) and not isinstance(pair, str):
                yield pair[0], pair[1]
