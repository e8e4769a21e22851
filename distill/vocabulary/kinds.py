"""The kinds of tokenizers whose vocabulary can be pruned."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pocketbert.core.disk.files import read_json
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.predict.tokenizer_file import MAX_MIB
from pocketbert.distill.vocabulary.bpe import BytePairs
from pocketbert.distill.vocabulary.kind import Kind
from pocketbert.distill.vocabulary.unigram import Unigram
from pocketbert.distill.vocabulary.word_piece import WordPiece

_KINDS: tuple[Kind, ...] = (WordPiece(), BytePairs(), Unigram())


def kind_of(content: Mapping[str, Any], where: str = "student.vocabulary") -> Kind:
    """Find the kind of a tokenizer.

    Args:
        content: The content of tokenizer.json.
        where: What to blame.

    Raises:
        InputError: If tokenizers of its kind cannot be pruned.
    """
    name = content["model"].get("type")
    for kind in _KINDS:
        if kind.name == name:
            return kind
    known = ", ".join(kind.name for kind in _KINDS)
    what = f"the model of tokenizer.json is of type {name!r:.40}; pieces can be removed from: {known}."
    raise InputError(Problem(where, what, "Leave student.vocabulary out."))


def read_tokenizer(folder: Path) -> dict[str, Any]:
    """Read tokenizer.json of a folder that `pocketbert.core.predict.tokenizer_file.open_tokenizer` opens."""
    content: dict[str, Any] = read_json(folder / "tokenizer.json", MAX_MIB)
    return content
