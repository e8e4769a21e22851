"""The tokenizer of a model folder, written to another folder; converted where the authors ship no tokenizer.json."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

from pocketbert.core.disk.files import write_atomic, write_json
from pocketbert.core.disk.ownership import temporary_folder
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import CheckpointCode, Family
from pocketbert.core.families.code import checkpoint_code
from pocketbert.core.host.progress import say
from pocketbert.core.models.tokenizer import OTHER_FILES, VOCABULARY, check_tokenizer
from pocketbert.core.models.tokenizer_conversion import converted_tokenizer, vocabulary_files
from pocketbert.core.models.tokenizer_settings import apply_settings, read_tokenizer_settings
from pocketbert.core.predict.sentence_settings import SETTINGS_FILE
from pocketbert.core.predict.tokenization import plain_tokenizer_json

_CLASS = "tokenizer_class"
_OF_ANOTHER_MACHINE = ("name_or_path", "tokenizer_file", "special_tokens_map_file")
_MADE: dict[str, Path] = {}
"""Folders with converted tokenizers, by what decides their content; they are there until the process ends."""


def converted_folder(
    source: Path, digest: str, max_length: int, config: Mapping[str, Any], family: Family, prompts: bool = True
) -> Path:
    """Write the tokenizer that a model folder means to another folder, once in a process; the model folder stays as it is.

    It is converted where there is no tokenizer.json, and changed where the folder's settings say so; see `apply_settings`.

    Args:
        source: The model folder.
        digest: Of its files; another one, and the tokenizer is converted anew.
        max_length: Longest input in tokens.
        config: The model's checked configuration.
        family: Its row of the family table.
        prompts: Whether the model's prompts are used.

    Returns:
        A temporary folder with config.json, tokenizer.json, its settings and the vocabulary; it goes when the process ends.

    Raises:
        InputError: If the folder has no vocabulary, or none that can be converted, or it is another model's.
        MissingBackendError: If a library that reads it is not installed.
    """
    key = f"{source.resolve()} {family.name} {digest} {prompts}"
    if key not in _MADE:
        made = Path(tempfile.mkdtemp(dir=_root()))
        write_json(made / "config.json", dict(config))
        save_tokenizer(source, max_length, made, family)
        check_tokenizer(made, config, family)
        if prompts and (source / SETTINGS_FILE).is_file():
            shutil.copyfile(source / SETTINGS_FILE, made / SETTINGS_FILE)
        _say_made(source)
        _MADE[key] = made
    return _MADE[key]


def _say_made(source: Path) -> None:
    """Tell how the tokenizer of a folder was made; nothing where it is used as it is."""
    file = source / "tokenizer.json"
    if not file.is_file():
        names = " and ".join(vocabulary_files(source))
        say(f"{source}: it has no tokenizer.json: converted from {names}; nothing is written into the folder")
    elif changes := apply_settings(file.read_text(encoding="utf-8"), source)[1]:
        say(f"{source}: tokenizer.json is used as its settings say: {'; '.join(changes)}")


@cache
def _root() -> Path:
    """A folder of this process, which goes when it ends."""
    held = ExitStack()
    root = held.enter_context(temporary_folder(Path(tempfile.gettempdir())))
    atexit.register(_leave, held, os.getpid())
    return root


def _leave(held: ExitStack, owner: int) -> None:
    if os.getpid() == owner:  # a process that was forked off leaves the folder to its parent
        held.close()


def save_tokenizer(source: Path, max_length: int, destination: Path, family: Family | None = None) -> None:
    """Copy a tokenizer so that every client cuts at the same length and none pads by itself; it is converted if need be.

    Args:
        source: A Hugging Face folder.
        max_length: Longest input in tokens.
        destination: An existing folder.
        family: The model's row of the family table.

    Raises:
        InputError: If there is no tokenizer, or none that can be read.
        MissingBackendError: If a library that reads it is not installed.
    """
    file = source / "tokenizer.json"
    code = CheckpointCode() if family is None else checkpoint_code(family)
    try:
        raw = file.read_text(encoding="utf-8") if file.is_file() else converted_tokenizer(source, code)
        plain = plain_tokenizer_json(apply_settings(raw, source)[0])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InputError(Problem(str(file), f"not a tokenizer: {error}.")) from error
    write_atomic(destination / "tokenizer.json", plain)
    settings = {k: v for k, v in read_tokenizer_settings(source).items() if k not in _OF_ANOTHER_MACHINE}
    settings["model_max_length"] = max_length
    if family is not None and family.tokenizer_settings:
        settings = {**family.tokenizer_settings, **settings, _CLASS: family.tokenizer_settings[_CLASS]}
    write_json(destination / "tokenizer_config.json", settings)
    for name in OTHER_FILES:
        if name != "tokenizer_config.json" and (source / name).is_file():
            shutil.copyfile(source / name, destination / name)
    if not (destination / VOCABULARY).is_file() and (lines := _word_pieces(json.loads(plain))):
        write_atomic(destination / VOCABULARY, "\n".join(lines) + "\n")


def _word_pieces(content: Mapping[str, Any]) -> list[str]:
    """The lines of vocab.txt; none where the tokenizer is not WordPiece, or its ids are no line numbers."""
    model = content["model"]
    if model.get("type") != "WordPiece":
        return []
    ids = {**model["vocab"], **{t["content"]: t["id"] for t in content.get("added_tokens") or ()}}
    lines = sorted(ids, key=ids.__getitem__)
    fits = [ids[t] for t in lines] == list(range(len(lines))) and all(t.splitlines() == [t] for t in lines)
    return lines if fits else []
