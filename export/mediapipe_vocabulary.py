"""vocab.txt as MediaPipe reads it: line by line, skipping empty ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pocketbert.core.disk.files import read_json
from pocketbert.core.errors import InputError, Problem

MAX_BYTES = 32 << 20


def vocabulary_tokens(raw: bytes) -> list[str]:
    r"""Tokens in the order of the ids that MediaPipe gives them.

    Empty lines count for nothing there (the next token takes the id), and one ``\r`` at a line's end is dropped.

    Args:
        raw: Content of vocab.txt.

    Returns:
        The tokens.

    Raises:
        InputError: If this is no UTF-8 text.
    """
    try:
        lines = raw.decode().split("\n")
    except UnicodeDecodeError as error:
        raise InputError(Problem("vocabulary", f"not UTF-8: {error}.")) from error
    return [line.removesuffix("\r") for line in lines if line]


def vocabulary_of(folder: Path) -> bytes:
    """The vocabulary to pack: vocab.txt, or what tokenizer.json says where there is none.

    Args:
        folder: A model folder.

    Returns:
        Content of vocab.txt.

    Raises:
        InputError: If there is neither, or the vocabulary cannot be written as lines.
    """
    file = folder / "vocab.txt"
    if file.is_file():
        if file.stat().st_size > MAX_BYTES:
            raise InputError(Problem(str(file), f"larger than {MAX_BYTES} bytes, refused."))
        return file.read_bytes()
    vocabulary = (read_json(folder / "tokenizer.json").get("model") or {}).get("vocab")
    if not isinstance(vocabulary, dict):
        raise InputError(Problem(str(folder / "tokenizer.json"), "its model has no list of tokens."))
    if problem := vocabulary_problem(vocabulary):
        raise InputError(Problem(str(folder / "tokenizer.json"), f"{problem}."))
    return "".join(f"{token}\n" for token in sorted(vocabulary, key=vocabulary.__getitem__)).encode()


def vocabulary_problem(vocabulary: Mapping[str, int]) -> str | None:
    """Why a vocabulary (token to id) cannot be written as lines; None if it can."""
    if not all(isinstance(i, int) for i in vocabulary.values()) or set(vocabulary.values()) != set(
        range(len(vocabulary))
    ):
        return f"its ids are not 0 to {len(vocabulary) - 1}, so line numbers cannot replace them"
    bad = [token for token in vocabulary if not token or "\n" in token or token.endswith("\r")]
    return f"the tokens {bad[:3]} cannot be written on a line of vocab.txt" if bad else None
