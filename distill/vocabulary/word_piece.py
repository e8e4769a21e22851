"""Pruning WordPiece: a word that cannot be spelt to its end becomes one unknown token, so both forms of a character stay."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterable, Mapping
from typing import Any

_MANY = ("CJK", "HANGUL")
"""Scripts with thousands of characters: of them only those that training rows have stay."""


class WordPiece:
    """See `pocketbert.distill.vocabulary.kind.Kind`.

    The algorithm takes the longest piece at each place (Wu et al. 2016, section 4.1). Where all pieces of a row stay, each of
    them is still the longest one at its place: the row is read as before.
    """

    name = "WordPiece"

    def pieces(self, model: Mapping[str, Any]) -> dict[str, int]:
        """Return the pieces with their ids."""
        return dict(model["vocab"])

    def letters(self, model: Mapping[str, Any], seen: Collection[str]) -> set[str]:
        """Return both forms of each character of Latin, of punctuation, and of the scripts that training rows have.

        A piece with such a character that has no piece by itself stays as well: it could not be spelt without.
        """
        vocabulary, prefix = model["vocab"], _prefix(model)
        used = {c for piece in seen for c in _text(piece, prefix)}
        scripts = {_script(c) for c in used}
        covered = {
            c
            for c in {c for piece in vocabulary for c in _text(piece, prefix)}
            if c in used or _is_plain(c) or (_script(c) in scripts and _script(c) not in _MANY)
        }
        out = {form for c in covered for form in (c, prefix + c) if form in vocabulary}
        for piece in vocabulary:
            lacking = {form[-1] for form in _forms(piece, prefix) if form not in vocabulary}
            if lacking & covered:
                out.add(piece)
        return out

    def closed(self, model: Mapping[str, Any], kept: Collection[str]) -> set[str]:
        """Return the same pieces: none is made from others."""
        return set(kept)

    def rewritten(self, model: Mapping[str, Any], ids: Mapping[str, int]) -> dict[str, Any]:
        """Return the section with the kept pieces only."""
        return {**model, "vocab": {piece: ids[piece] for piece in model["vocab"] if piece in ids}}


def _prefix(model: Mapping[str, Any]) -> str:
    return str(model.get("continuing_subword_prefix", "##"))


def _text(piece: str, prefix: str) -> str:
    """The characters that a piece stands for."""
    return piece[len(prefix) :] if len(piece) > len(prefix) and piece.startswith(prefix) else piece


def _forms(piece: str, prefix: str) -> Iterable[str]:
    """The pieces of one character that spell a piece, [UNK] and the like included, which nobody spells."""
    text = _text(piece, prefix)
    yield text[:1] if text == piece else prefix + text[:1]
    for character in text[1:]:
        yield prefix + character


def _script(character: str) -> str:
    return unicodedata.name(character, "").partition(" ")[0].partition("-")[0]


def _is_plain(character: str) -> bool:
    return character.isascii() or _script(character) == "LATIN" or unicodedata.category(character)[0] == "P"
