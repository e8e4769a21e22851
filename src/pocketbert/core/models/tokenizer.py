"""Checks that the tokenizer of a model folder belongs to the model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pocketbert.core.disk.files import read_json
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import Family
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.predict.tokenizer_file import MAX_MIB, template_types

VOCABULARY = "vocab.txt"
"""WordPiece's vocabulary, one token in a line: what clients without a reader of tokenizer.json take."""
OTHER_FILES = (
    VOCABULARY,
    "vocab.json",
    "merges.txt",
    "spiece.model",
    "spm.model",
    "sentencepiece.bpe.model",
    "special_tokens_map.json",
    "tokenizer_config.json",
)
"""Files of a tokenizer next to tokenizer.json, as authors ship them; libraries read them whole."""


def check_tokenizer(folder: Path, config: Mapping[str, Any], family: Family) -> None:
    """Refuse a tokenizer whose tokens the model cannot take; does nothing where the folder has no tokenizer.json.

    Args:
        folder: A Hugging Face model folder.
        config: Its checked configuration.
        family: Its row of the family table.

    Raises:
        InputError: Naming everything that is wrong.
    """
    problems = []
    for name in OTHER_FILES:
        file = folder / name
        if file.is_file() and file.stat().st_size > MAX_MIB << 20:
            problems.append(Problem(str(file), f"larger than {MAX_MIB} MiB, refused."))
    if problems:
        raise InputError(problems)
    file = folder / "tokenizer.json"
    if not file.is_file():
        return
    tokenizer = TextTokenizer(folder, _ANY_LENGTH, pad_id=0, padding_side=family.padding_side)
    content = read_json(file, MAX_MIB)
    found = [*_against_table(tokenizer, config.get("vocab_size"))]
    if tokenizer.vocabulary_size <= len(tokenizer.special_ids):
        found.append("has special tokens only: every text would be the same to the model.")
    if tokenizer.special_count == 0:
        found.append("puts no special tokens around a text ([CLS], [SEP]); the model was trained with them.")
    segments, highest = config.get("type_vocab_size"), template_types(content)
    if family.uses_segments and segments is not None and highest >= segments:
        found.append(f"gives tokens the segment {highest}, the model has {segments} segments.")
    if found:
        raise InputError([Problem(str(file), what, "Use the tokenizer of this model.") for what in found])


_ANY_LENGTH = 1 << 20


def _against_table(tokenizer: TextTokenizer, rows: int | None) -> list[str]:
    if rows is None or tokenizer.largest_id < rows:
        return []
    return [
        f"its largest token id is {tokenizer.largest_id:,}, the model has {rows:,} rows: it belongs to another model."
    ]
