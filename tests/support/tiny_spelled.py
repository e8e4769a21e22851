"""Tiny tokenizers of families whose frame or words are like no other's, in the layouts in which checkpoints carry them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
XLNET_SPECIAL = ["<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"]
XLM_SPECIAL = ["<s>", "</s>", "<pad>", "<unk>", *(f"<special{i}>" for i in range(10))]


def write_xlnet(folder: Path, tokens: Sequence[str]) -> int:
    """A unigram tokenizer that ends a text with <sep> <cls>, by transformers' own class.

    Args:
        folder: Where to write.
        tokens: Words that are pieces; any ASCII word can be spelt.

    Returns:
        The number of tokens.
    """
    from transformers import XLNetTokenizer

    words = [t for t in tokens if t.isalpha() and len(t) > 1]
    pieces = [*(f"▁{w}" for w in words), "▁", *LETTERS, *".,!?'-"]
    vocab = [*((t, 0.0) for t in XLNET_SPECIAL), *((p, -2.0 - len(p) / 99) for p in dict.fromkeys(pieces))]
    made = XLNetTokenizer(vocab=vocab, do_lower_case=True)
    folder.mkdir(parents=True, exist_ok=True)
    made.save_pretrained(folder)
    return len(made)


def write_xlm_files(folder: Path, tokens: Sequence[str]) -> int:
    """vocab.json, merges.txt and tokenizer_config.json, all that checkpoints of XLM carry.

    Returns:
        The number of tokens.
    """
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
