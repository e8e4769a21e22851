"""Pruning byte-pair encoding: a piece stays together with the pieces that it is merged from."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any


class BytePairs:
    """See `pocketbert.distill.vocabulary.kind.Kind`.

    The algorithm applies the first merge of its list that fits, again and again (Sennrich et al. 2016). A kept piece stays
    with both parts of every merge that makes it, recursively: all merges that lead to the pieces of a row are there, in their
    old order, and the row is read as before.
    """

    name = "BPE"

    def pieces(self, model: Mapping[str, Any]) -> dict[str, int]:
        """Return the pieces with their ids."""
        return dict(model["vocab"])

    def letters(self, model: Mapping[str, Any], seen: Collection[str]) -> set[str]:
        """Return the pieces that no merge makes: the 256 letters of bytes, or the alphabet."""
        return set(model["vocab"]) - {result for _, result in _merges(model)}

    def closed(self, model: Mapping[str, Any], kept: Collection[str]) -> set[str]:
        """Return the pieces and, recursively, both parts of every merge that makes one of them."""
        made_from: dict[str, list[str]] = {}
        for parts, result in _merges(model):
            made_from.setdefault(result, []).extend(parts)
        out, waiting = set(kept), list(kept)
        while waiting:
            new = set(made_from.get(waiting.pop(), ())) - out
            out |= new
            waiting += new
        return out

    def rewritten(self, model: Mapping[str, Any], ids: Mapping[str, int]) -> dict[str, Any]:
        """Return the section with the kept pieces only, and with the merges that make them."""
        merges = [
            merge
            for merge, (parts, result) in zip(model["merges"], _merges(model), strict=True)
            if result in ids and all(part in ids for part in parts)
        ]
        return {**model, "vocab": {p: ids[p] for p in model["vocab"] if p in ids}, "merges": merges}


def _merges(model: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str], str]]:
    """Both parts of each merge, and the piece that it makes."""
    prefix = model.get("continuing_subword_prefix") or ""
    for merge in model["merges"]:
        first, second = merge.split(" ", 1) if isinstance(merge, str) else merge
        yield (first, second), first + second.removeprefix(prefix)
