"""A tokenizer as a corpus needs it: nothing truncated, special tokens apart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from pocketbert.core.disk.files import read_json, sha256_json
from pocketbert.core.errors import InputError, Problem

PROBES = ("a", "the", "1", "一")
"""Texts of which at least one has a token in any vocabulary."""


def tokenizer_digest(path: Path) -> str:
    """Hash of what decides the ids of a text: all of ``tokenizer.json`` but its padding and truncation.

    Args:
        path: ``tokenizer.json`` or the folder that holds it.

    Raises:
        InputError: If there is no such file, or it is no JSON object.
    """
    return _digest(_content(path))


def vocabulary(path: Path) -> dict[str, int]:
    """The id of every token, whatever else the tokenizer does.

    Args:
        path: ``tokenizer.json`` or the folder that holds it.

    Raises:
        InputError: If there is no such file, or it is no tokenizer.
    """
    ids: dict[str, int] = _opened(_file(path)).get_vocab()
    return ids


class CorpusTokenizer:
    """Texts of any length to ids.

    Attributes:
        before: What the tokenizer's own post-processor puts before a text (``[CLS]``), [b] int64.
        after: What it puts after it (``[SEP]``), [a] int64, a >= 1. XLNet has both there.
        unknown_id: Id of the unknown token; None where the vocabulary spells everything.
        special_ids: Ids that the tokenizer declares as special, ascending.
        vocabulary_size: Highest id plus one; ids may have gaps.
        digest: See `tokenizer_digest`.

    Args:
        path: ``tokenizer.json`` or the folder that holds it.

    Raises:
        InputError: If that is no tokenizer, or one that ends texts with no special token.
    """

    def __init__(self, path: Path) -> None:
        content = _content(path)
        file = _file(path)
        self._tokenizer = _opened(file)
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self.digest = _digest(content)
        self.before, self.after = self._wrapping(file)
        self.unknown_id = self._unknown(content["model"])
        added = content.get("added_tokens") or []
        self.special_ids = sorted({int(token["id"]) for token in added if token.get("special")})
        self.vocabulary_size = max(self._tokenizer.get_vocab().values()) + 1

    def tokens(self, texts: Sequence[str]) -> list[NDArray[np.int64]]:
        """Ids of each text, without special tokens around it, never cut."""
        encoded = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(e.ids, np.int64) for e in encoded]

    def _wrapping(self, file: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        for probe in PROBES:
            encoded = self._tokenizer.encode(probe)
            own = np.flatnonzero(np.array(encoded.special_tokens_mask) == 0)
            if own.size:
                ids = np.array(encoded.ids, np.int64)
                before, after = ids[: own[0]], ids[own[-1] + 1 :]
                if after.size:
                    return before, after
                break
        raise InputError(
            Problem(
                str(file),
                "its post-processor puts no special token after a text, so rows would have no end.",
                "Add a post-processor such as '[CLS] $A [SEP]' to the tokenizer.",
            )
        )

    def _unknown(self, model: Any) -> int | None:
        if isinstance(model.get("unk_id"), int):  # Unigram
            return int(model["unk_id"])
        token = model.get("unk_token")
        found = self._tokenizer.token_to_id(token) if token else None
        return None if found is None else int(found)


def _file(path: Path) -> Path:
    return path / "tokenizer.json" if path.is_dir() else path


def _opened(file: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises plain Exception
        raise InputError(Problem(str(file), f"not a tokenizer: {error}.")) from error


def _content(path: Path) -> dict[str, Any]:
    file = _file(path)
    if not file.is_file():
        raise InputError(Problem(str(file), "file not found.", "Save the tokenizer as tokenizer.json."))
    content = read_json(file)
    if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
        raise InputError(Problem(str(file), "not a tokenizer: it has no section 'model'."))
    return content


def _digest(content: dict[str, Any]) -> str:
    return sha256_json({k: v for k, v in content.items() if k not in ("padding", "truncation")})
