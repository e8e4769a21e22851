"""A tiny tokenizer of XLM: the files that its checkpoints carry, and the tokenizer.json that is made of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
XLM_SPECIAL = ["<s>", "</s>", "<pad>", "<unk>", *(f"<special{i}>" for i in range(10))]


def write_xlm_files(folder: Path, tokens: Sequence[str]) -> int:
    """vocab.json, merges.txt and tokenizer_config.json, all that checkpoints of XLM carry; the number of tokens."""
    letters = [*LETTERS, *".,!?'-"]
    words = [t for t in tokens if t.isalpha() and t.isascii() and len(t) > 1]
    merges: list[str] = []
    made = [*letters, *(f"{c}</w>" for c in letters)]
    for word in words:
        so_far = word[0]
        for i, letter in enumerate(word[1:], 2):
            piece = letter if i < len(word) else f"{letter}</w>"
            merges.append(f"{so_far} {piece}")
            so_far += piece
            made.append(so_far)
    vocab = {t: i for i, t in enumerate(dict.fromkeys([*XLM_SPECIAL, *made]))}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.json").write_text(json.dumps(vocab))
    (folder / "merges.txt").write_text("".join(f"{m}\n" for m in dict.fromkeys(merges)))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "XLMTokenizer", "do_lowercase_and_remove_accent": True})
    )
    return len(vocab)


def write_xlm(folder: Path, tokens: Sequence[str]) -> int:
    """The files of `write_xlm_files`, and tokenizer.json; the number of tokens."""
    from pocketbert.core.families import find_family
    from pocketbert.core.families.table import checkpoint_code

    rows, convert = write_xlm_files(folder, tokens), checkpoint_code(find_family("xlm")).tokenizer_json
    assert convert is not None
    (folder / "tokenizer.json").write_text(convert(folder))
    return rows
