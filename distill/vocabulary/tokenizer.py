"""The files of a tokenizer without the pieces that do not stay."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from pocketbert.core.disk.files import read_json, write_atomic, write_json
from pocketbert.distill.vocabulary.choice import Kept, added_ids, config_ids, frames, token_ids
from pocketbert.distill.vocabulary.kinds import kind_of, read_tokenizer

_SETTINGS, _DECODER = "tokenizer_config.json", "added_tokens_decoder"
_COPIED = ("special_tokens_map.json",)


def pruned_content(content: Mapping[str, Any], kept: Kept) -> dict[str, Any]:
    """Remove pieces from a tokenizer, with new ids at every place that holds one.

    Args:
        content: The content of tokenizer.json.
        kept: The pieces that stay.

    Returns:
        The same tokenizer with fewer pieces, without padding and truncation.

    Raises:
        RuntimeError: If the library reads other ids from the result: the table would not belong to it.
    """
    out = copy.deepcopy(dict(content))
    ids = {piece: kept.new[i] for piece, i in token_ids(content).items() if i in kept.new}
    out["model"] = kind_of(content).rewritten(out["model"], ids)
    out["padding"] = out["truncation"] = None
    for token in out.get("added_tokens") or ():
        token["id"] = kept.new[token["id"]]
    for part in frames(out):
        for token in (part.get("special_tokens") or {}).values():
            token["ids"] = [kept.new[i] for i in token["ids"]]
        for key in ("sep", "cls"):
            if isinstance(pair := part.get(key), list):
                part[key] = [pair[0], kept.new[pair[1]]]
    if Tokenizer.from_str(json.dumps(out)).get_vocab(with_added_tokens=True) != ids:
        raise RuntimeError("the pruned tokenizer has other ids than its table")
    return out


def pruned_config(config: Mapping[str, Any], kept: Kept, size: str = "vocab_size") -> dict[str, Any]:
    """Return the entries of config.json with the new size of the vocabulary and the new ids of tokens.

    Args:
        config: The content of config.json.
        kept: The pieces that stay.
        size: Name of the entry with the number of pieces.
    """
    ids = {key: kept.new.get(i) for key, i in config_ids(config).items()}
    return {**config, **ids, size: len(kept.ids)}


def write_pruned(source: Path, config: Mapping[str, Any], kept: Kept, destination: Path) -> None:
    """Write a tokenizer without the pieces that do not stay.

    Files that only repeat tokenizer.json in the authors' own format (spiece.model) are left out; vocab.txt, vocab.json and
    merges.txt are written anew.

    Args:
        source: Folder with tokenizer.json and, perhaps, other files of the tokenizer.
        config: Content of the config.json that the folder gets.
        kept: The pieces that stay.
        destination: An existing folder.
    """
    content = pruned_content(read_tokenizer(source), kept)
    write_atomic(destination / "tokenizer.json", json.dumps(content, ensure_ascii=False, separators=(",", ":")))
    write_json(destination / "config.json", dict(config))
    for name in _COPIED:
        if (source / name).is_file():
            shutil.copyfile(source / name, destination / name)
    if (source / _SETTINGS).is_file():
        settings = read_json(source / _SETTINGS)
        if _DECODER in settings:
            entries = settings[_DECODER].items()
            settings[_DECODER] = {str(kept.new[int(i)]): token for i, token in entries if int(i) in kept.new}
        write_json(destination / _SETTINGS, settings)
    model, added = content["model"], added_ids(content)
    if (source / "vocab.json").is_file():
        write_json(destination / "vocab.json", {**model["vocab"], **added})
    if (source / "merges.txt").is_file():
        lines = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
        write_atomic(destination / "merges.txt", "\n".join(["#version: 0.2", *lines]) + "\n")
