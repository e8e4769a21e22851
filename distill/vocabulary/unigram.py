"""Pruning a unigram model: pieces keep their scores, and every character stays."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

_BYTE = re.compile(r"<0x[0-9A-F]{2}>")


class Unigram:
    """See `pocketbert.distill.vocabulary.kind.Kind`.

    The algorithm takes the pieces with the largest sum of scores (Kudo 2018). Where all pieces of a row stay with their
    scores, no other way to read it is left that is better: the row is read as before.
    """

    name = "Unigram"

    def pieces(self, model: Mapping[str, Any]) -> dict[str, int]:
        """Return the pieces with their ids, which are their places."""
        return {piece: i for i, (piece, _) in enumerate(model["vocab"])}

    def letters(self, model: Mapping[str, Any], seen: Collection[str]) -> set[str]:
        """Return all pieces of one character or byte, the unknown token, and the piece whose score sets the unknown's."""
        vocabulary = model["vocab"]
        out = {piece for piece, _ in vocabulary if len(piece) == 1 or _BYTE.fullmatch(piece)}
        out.add(min(vocabulary, key=lambda entry: entry[1])[0])
        if model.get("unk_id") is not None:
            out.add(vocabulary[model["unk_id"]][0])
        return out

    def closed(self, model: Mapping[str, Any], kept: Collection[str]) -> set[str]:
        """Return the same pieces: none is made from others."""
        return set(kept)

    def rewritten(self, model: Mapping[str, Any], ids: Mapping[str, int]) -> dict[str, Any]:
        """Return the section with the kept pieces only, their scores, and the new id of the unknown token."""
        out = {**model, "vocab": [[piece, score] for piece, score in model["vocab"] if piece in ids]}
        if model.get("unk_id") is not None:
            out["unk_id"] = ids[model["vocab"][model["unk_id"]][0]]
        return out
