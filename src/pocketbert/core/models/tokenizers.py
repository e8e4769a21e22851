"""The tokenizer of a model folder: checked against the model, completed by the folder's settings, written.

transformers and sentence-transformers read tokenizer.json and then change the tokenizer by settings in other files.
Clients that read only tokenizer.json would give other ids, so those settings are written into it.

1. `check_tokenizer` refuses a tokenizer whose tokens the model cannot take,
2. `apply_settings` writes the settings around a tokenizer.json into it; `read_added_tokens` and
   `read_tokenizer_settings` read them,
3. `save_tokenizer` writes all tokenizer files of a model to another folder, converting them if there is no
   tokenizer.json,
4. `write_tokenizer_folder` does so once per process, in a temporary folder.

`cut_pairs_as_tokenizer_json` makes a tokenizer of transformers comparable with that of a written folder.
"""

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

from pocketbert.core.disk.files import check_regular, read_json, sha256_json, write_atomic, write_json
from pocketbert.core.disk.ownership import temporary_folder
from pocketbert.core.errors import InputError, Problem, show_folder_as
from pocketbert.core.families import CheckpointCode, Family
from pocketbert.core.families.table import checkpoint_code
from pocketbert.core.host.progress import print_note
from pocketbert.core.models.tokenizer_conversion import convert_tokenizer, list_vocabulary_files
from pocketbert.core.predict.sentence_settings import SETTINGS_FILE
from pocketbert.core.predict.tokenization import TextTokenizer, strip_padding_and_truncation
from pocketbert.core.predict.tokenizer_file import MAX_TOKENIZER_MIB, largest_segment_id

_WORD_PIECE_FILE = "vocab.txt"
"""WordPiece's vocabulary, one token per line: for clients that do not read tokenizer.json."""
TOKENIZER_FILES = (
    _WORD_PIECE_FILE,
    "vocab.json",
    "merges.txt",
    "spiece.model",
    "spm.model",
    "sentencepiece.bpe.model",
    "special_tokens_map.json",
    "tokenizer_config.json",
)
"""Files of a tokenizer next to tokenizer.json, as authors ship them; libraries read them whole."""
SEGMENT_INPUT = "token_type_ids"
SENTENCE_FILE = "sentence_bert_config.json"
"""File of sentence-transformers with the longest input and lower case."""
_MAX_LENGTH = 1 << 20
_BERT_CLASSES = (
    "BertTokenizer",
    "DistilBertTokenizer",
    "ElectraTokenizer",
    "MobileBertTokenizer",
    "ConvBertTokenizer",
    "SqueezeBertTokenizer",
    "LayoutLMTokenizer",
    "MPNetTokenizer",
)
"""Classes of transformers that rebuild the normalizer from the settings, whatever tokenizer.json has."""
_BERT_SETTINGS: dict[str, tuple[str, bool | None]] = {
    "do_lower_case": ("lowercase", True),
    "strip_accents": ("strip_accents", None),
    "tokenize_chinese_chars": ("handle_chinese_chars", True),
}
"""Their settings, with the normalizer's key for each and the value that transformers takes for a setting left out."""
_CLASS = "tokenizer_class"
_LOCAL_SETTINGS = ("name_or_path", "tokenizer_file", "special_tokens_map_file")
"""Settings that hold paths of the machine that wrote them."""
_written_folders: dict[str, Path] = {}
"""Folders that `write_tokenizer_folder` wrote, by everything that their content depends on."""


def check_tokenizer(folder: Path, config: Mapping[str, Any], family: Family) -> None:
    """Check that a folder's tokenizer files are files, and that the model accepts the ids of tokenizer.json if there is one.

    Raises:
        InputError: If one of the files is no regular file or too large, or listing what the model cannot take: ids or segments that it does
            not have, a vocabulary of special tokens only, or no special tokens around a text.
    """
    files = [folder / name for name in ("tokenizer.json", *TOKENIZER_FILES)]
    for file in files:
        if os.path.lexists(file):
            check_regular(file)
    large = [file for file in files if file.is_file() and file.stat().st_size > MAX_TOKENIZER_MIB << 20]
    if large:
        raise InputError([Problem(str(file), f"larger than {MAX_TOKENIZER_MIB} MiB, refused.") for file in large])
    file = folder / "tokenizer.json"
    if not file.is_file():
        return
    tokenizer = TextTokenizer(folder, _MAX_LENGTH, pad_id=0, padding_side=family.padding_side)
    content = read_json(file, MAX_TOKENIZER_MIB)
    problems = []
    rows = config.get("vocab_size")
    if rows is not None and tokenizer.largest_id >= rows:
        sizes = f"its largest token id is {tokenizer.largest_id:,}, the model has {rows:,} rows"
        problems.append(
            f"{sizes}: it belongs to another model, or tokens were added without resize_token_embeddings()."
        )
    if tokenizer.vocabulary_size <= len(tokenizer.special_ids):
        problems.append("has special tokens only: every text would be the same to the model.")
    if tokenizer.special_count == 0:
        problems.append("puts no special tokens around a text ([CLS], [SEP]); the model was trained with them.")
    segments, highest = config.get("type_vocab_size"), largest_segment_id(content)
    if family.uses_segments and segments is not None and highest >= segments:
        problems.append(f"gives tokens the segment {highest}, the model has {segments} segments.")
    if problems:
        raise InputError([Problem(str(file), what, "Use the tokenizer of this model.") for what in problems])


# --- settings in other files ------------------------------------------------------------


def read_tokenizer_settings(folder: Path) -> dict[str, Any]:
    """Read the tokenizer_config.json of a model folder as a dictionary; return an empty one if there is no file.

    Raises:
        InputError: If it is no JSON object.
    """
    return _read_object(folder / "tokenizer_config.json", "not the settings of a tokenizer")


def apply_settings(raw: str, folder: Path) -> tuple[str, list[str]]:
    """Apply settings of a folder's other files to the content of tokenizer.json; return the new content and the changes.

    Four settings are applied. Tokens that a file lists as added are added if tokenizer.json lacks them. BERT's normalization
    (lower case, accents, Chinese characters) follows tokenizer_config.json. With `do_lower_case` in sentence_bert_config.json,
    text is lower-cased first. If `model_input_names` lacks token_type_ids, all segment ids are 0.

    Args:
        raw: Content of tokenizer.json.
        folder: The model folder of this tokenizer.json; any of the other files may be missing.

    Returns:
        The new content (`raw` itself if nothing changes), and one line of text for each change.

    Raises:
        InputError: If a file of settings cannot be read.
    """
    settings, sentence = read_tokenizer_settings(folder), _read_object(folder / SENTENCE_FILE, "no settings")
    content = json.loads(raw)
    if not isinstance(content, dict):
        return raw, []
    changes = _add_tokens(content, read_added_tokens(folder))
    changes += _set_bert_normalizer(content, settings)
    if sentence.get("do_lower_case") is True:
        changes += _prepend_lowercase(content)
    inputs = settings.get("model_input_names")
    if isinstance(inputs, list) and SEGMENT_INPUT not in inputs:
        changes += _zero_segments(content)
    return (json.dumps(content, ensure_ascii=False), changes) if changes else (raw, [])


def read_added_tokens(folder: Path) -> dict[str, dict[str, Any]]:
    """Read the tokens that a folder lists as added to the vocabulary, in the same files as transformers.

    They are in tokenizer_config.json or, in older folders, in added_tokens.json.

    Returns:
        By the text of each token, its entry in the list `added_tokens` of tokenizer.json.

    Raises:
        InputError: If a file cannot be read.
    """
    settings = read_tokenizer_settings(folder)
    id_by_token = _read_object(folder / "added_tokens.json", "not added tokens")
    special = {v for k, v in settings.items() if k.endswith("_token") and isinstance(v, str)}
    special |= {t for t in settings.get("additional_special_tokens") or () if isinstance(t, str)}
    entries: dict[str, dict[str, Any]] = {}
    decoder = settings.get("added_tokens_decoder")
    for number, flags in decoder.items() if isinstance(decoder, dict) else ():
        if number.isdecimal() and isinstance(flags, dict) and isinstance(flags.get("content"), str):
            text = flags["content"]
            entries[text] = _added_token(text, int(number), flags.get("special") is True) | flags
    if entries:
        return entries  # the older file counts only if the newer key is missing
    return {t: _added_token(t, i, t in special) for t, i in id_by_token.items() if isinstance(i, int)}


def _added_token(text: str, number: int, special: bool) -> dict[str, Any]:
    """Build the `added_tokens` entry of tokenizer.json for one token."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": not special, "special": special}
    return {"id": number, "content": text, **flags}


def _read_object(path: Path, complaint: str) -> dict[str, Any]:
    """Read a JSON object from a file, empty if there is none; raise InputError, beginning with `complaint`, for other content."""
    content = read_json(path, MAX_TOKENIZER_MIB) if path.is_file() else {}
    if not isinstance(content, dict):
        raise InputError(Problem(str(path), f"{complaint}: no JSON object."))
    return content


def _add_tokens(content: dict[str, Any], listed: Mapping[str, dict[str, Any]]) -> list[str]:
    """Add listed tokens that tokenizer.json lacks to its content, in place; return a line about it, or no line."""
    added = content.setdefault("added_tokens", [])
    if not isinstance(added, list):
        return []
    present = {token.get("content") for token in added if isinstance(token, dict)}
    missing = [token for text, token in listed.items() if text not in present]
    if not missing:
        return []
    content["added_tokens"] = sorted([*added, *missing], key=lambda token: token["id"])
    examples = ", ".join(repr(token["content"])[:40] for token in missing[:3])
    return [f"{len(missing)} added tokens that it lacks are taken from the files next to it, e.g. {examples}"]


def _set_bert_normalizer(content: dict[str, Any], settings: Mapping[str, Any]) -> list[str]:
    """Set a BertNormalizer as transformers sets it by tokenizer_config.json, in place; return a line for each change.

    If the file names a class of `_BERT_CLASSES`, settings that it leaves out have the defaults of `_BERT_SETTINGS`, whatever
    tokenizer.json says. Nothing is changed if it names another class.
    """
    normalizer, name = content.get("normalizer"), settings.get(_CLASS)
    if not isinstance(normalizer, dict) or normalizer.get("type") != "BertNormalizer":
        return []
    changes = []
    applies = not name or str(name).removesuffix("Fast") in _BERT_CLASSES
    for setting, (key, default) in _BERT_SETTINGS.items() if applies else ():
        value = settings.get(setting, default if name else normalizer.get(key))
        is_valid = isinstance(value, bool) or (value is None and default is None)
        if is_valid and normalizer.get(key) is not value:
            says = f"is {value}" if setting in settings else f"is missing, which means {value},"
            changes.append(f"{setting} {says} in tokenizer_config.json ({key} was {normalizer.get(key)})")
            normalizer[key] = value
    return changes


def _prepend_lowercase(content: dict[str, Any]) -> list[str]:
    """Put a Lowercase step in front of the normalizer, in place, unless there is one; return a line about it."""
    normalizer = content.get("normalizer")
    steps = normalizer.get("normalizers", []) if isinstance(normalizer, dict) else []
    for step in [normalizer, *steps]:
        if isinstance(step, dict) and (step.get("type") == "Lowercase" or step.get("lowercase") is True):
            return []
    rest = [] if normalizer is None else [normalizer]
    content["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Lowercase"}, *rest]}
    return ["do_lower_case is true in sentence_bert_config.json"]


def _zero_segments(content: dict[str, Any]) -> list[str]:
    """Set each token's segment id to 0 in all post-processors, in place; return a line about it, or no line."""
    before = json.dumps(content.get("post_processor"))
    pending = [content.get("post_processor")]
    while pending:
        processor = pending.pop()
        if not isinstance(processor, dict):
            continue
        if isinstance(processor.get("processors"), list):
            pending += processor["processors"]
        if processor.get("type") == "BertProcessing":
            _convert_bert_processing(processor)
        templates = [t for key in ("single", "pair") if isinstance(t := processor.get(key), list)]
        items = [item for template in templates for item in template if isinstance(item, dict)]
        for token in (token for item in items for token in item.values() if isinstance(token, dict)):
            token["type_id"] = 0
    changed = json.dumps(content.get("post_processor")) != before
    return (
        [f"model_input_names in tokenizer_config.json leaves {SEGMENT_INPUT} out: segment ids are 0"] if changed else []
    )


def _convert_bert_processing(processor: dict[str, Any]) -> None:
    """Replace a BertProcessing post-processor, in place, by an equal template in which every segment id is 0."""
    sep, cls = processor.pop("sep"), processor.pop("cls")

    def token(name: str) -> dict[str, Any]:
        return {"SpecialToken": {"id": name, "type_id": 0}}

    def text(name: str) -> dict[str, Any]:
        return {"Sequence": {"id": name, "type_id": 0}}

    single = [token(cls[0]), text("A"), token(sep[0])]
    processor |= {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, text("B"), token(sep[0])],
        "special_tokens": {name: {"id": name, "ids": [number], "tokens": [name]} for name, number in (cls, sep)},
    }


# --- writing ------------------------------------------------------------


def save_tokenizer(source: Path, max_length: int, destination: Path, family: Family | None = None) -> None:
    """Write a model's tokenizer files, with the folder's settings applied and no padding or truncation in tokenizer.json.

    The length at which clients cut texts is in tokenizer_config.json. A WordPiece tokenizer also gets its vocab.txt.

    Args:
        source: A Hugging Face folder; if it has no tokenizer.json, its vocabulary is converted.
        max_length: Longest input in tokens, at which clients cut.
        destination: An existing folder.
        family: The model's family, which decides some entries of tokenizer_config.json.

    Raises:
        InputError: If the folder has no tokenizer that can be read or converted.
        MissingBackendError: If a library that reads the tokenizer is not installed.
    """
    file = source / "tokenizer.json"
    code = CheckpointCode() if family is None else checkpoint_code(family)
    try:
        raw = file.read_text(encoding="utf-8") if file.is_file() else convert_tokenizer(source, code)
        plain = strip_padding_and_truncation(apply_settings(raw, source)[0])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InputError(Problem(str(file), f"not a tokenizer: {error}.")) from error
    write_atomic(destination / "tokenizer.json", plain)
    settings = {k: v for k, v in read_tokenizer_settings(source).items() if k not in _LOCAL_SETTINGS}
    settings["model_max_length"] = max_length
    if family is not None and family.tokenizer_settings:
        settings = {**family.tokenizer_settings, **settings, _CLASS: family.tokenizer_settings[_CLASS]}
    write_json(destination / "tokenizer_config.json", settings)
    for name in TOKENIZER_FILES:
        if name != "tokenizer_config.json" and (source / name).is_file():
            shutil.copyfile(source / name, destination / name)
    if not (destination / _WORD_PIECE_FILE).is_file() and (pieces := _word_pieces(json.loads(plain))):
        write_atomic(destination / _WORD_PIECE_FILE, "\n".join(pieces) + "\n")


def _word_pieces(content: Mapping[str, Any]) -> list[str]:
    """Return the lines of vocab.txt for a WordPiece tokenizer; empty for other kinds or if ids are no line numbers."""
    model = content["model"]
    if model.get("type") != "WordPiece":
        return []
    ids = {**model["vocab"], **{t["content"]: t["id"] for t in content.get("added_tokens") or ()}}
    pieces = sorted(ids, key=ids.__getitem__)
    ids_are_lines = [ids[p] for p in pieces] == list(range(len(pieces)))
    return pieces if ids_are_lines and all(p.splitlines() == [p] for p in pieces) else []


def write_tokenizer_folder(
    source: Path, digest: str, max_length: int, config: Mapping[str, Any], family: Family, prompts: bool = True
) -> Path:
    """Write a ready-to-use tokenizer of a model folder to a temporary folder; print what was changed.

    The folder is written once per process and returned again for the same arguments. The tokenizer is converted if the model folder has no tokenizer.json, and changed by the folder's settings; see
    `apply_settings`. The model folder itself is not changed.

    Args:
        source: The model folder.
        digest: Digest of the model folder's files; the tokenizer is written again if it changes.
        max_length: Longest input in tokens, at which texts are cut.
        config: The model's checked config.json.
        family: The model's family, see `save_tokenizer`.
        prompts: Whether to copy the model's prompts (texts put in front of inputs) too.

    Returns:
        The temporary folder, with config.json, tokenizer.json, its settings and the vocabulary; it is removed when the process
        ends.

    Raises:
        InputError: If the folder has no vocabulary that can be converted, or the tokenizer belongs to another model.
        MissingBackendError: If a library that reads the tokenizer is not installed.
    """
    key = sha256_json([str(source.resolve()), family.name, digest, max_length, dict(config), prompts])
    if key not in _written_folders:
        folder = Path(tempfile.mkdtemp(dir=process_folder()))
        show_folder_as(folder, str(source))
        write_json(folder / "config.json", dict(config))
        save_tokenizer(source, max_length, folder, family)
        check_tokenizer(folder, config, family)
        if prompts and (source / SETTINGS_FILE).is_file():
            shutil.copyfile(source / SETTINGS_FILE, folder / SETTINGS_FILE)
        file = source / "tokenizer.json"
        if not file.is_file():
            names = " and ".join(list_vocabulary_files(source))
            print_note(
                f"{source}: it has no tokenizer.json: converted from {names}; nothing is written into the folder"
            )
        elif changes := apply_settings(file.read_text(encoding="utf-8"), source)[1]:
            print_note(f"{source}: tokenizer.json is used as its settings say: {'; '.join(changes)}")
        _written_folders[key] = folder
    return _written_folders[key]


def cut_pairs_as_tokenizer_json(tokenizer: Any) -> None:
    """Make a transformers tokenizer truncate pairs of texts as the tokenizers library does with tokenizer.json.

    If both texts are longer than half of the available tokens, and that number is odd, one text keeps one token more
    than the other. In the tokenizers library this is the longer text, or the second one of two equally long texts. In
    transformers' tokenizers written in Python, such as XLM's, it is always the first.

    Args:
        tokenizer: A tokenizer of transformers, changed in place. If it uses the tokenizers library itself, it is left
            as it is.
    """
    if tokenizer.is_fast or "truncate_sequences" in vars(tokenizer):  # or it does so already
        return
    cut = tokenizer.truncate_sequences

    def cut_longer(
        ids: list[int],
        pair_ids: list[int] | None = None,
        num_tokens_to_remove: int = 0,
        truncation_strategy: str = "longest_first",
        stride: int = 0,
    ) -> tuple[list[int], list[int] | None, list[int]]:
        """Cut both texts as transformers does, the longer one in the place of the first."""
        how = num_tokens_to_remove, truncation_strategy, stride
        if truncation_strategy != "longest_first" or not pair_ids or len(ids) > len(pair_ids):
            return cut(ids, pair_ids, *how)  # type: ignore[no-any-return]
        second, first, overflow = cut(pair_ids, ids, *how)
        return first, second, overflow

    tokenizer.truncate_sequences = cut_longer


@cache
def process_folder() -> Path:
    """Return a temporary folder that is created once and removed when this process ends."""
    stack, owner = ExitStack(), os.getpid()
    folder = stack.enter_context(temporary_folder(Path(tempfile.gettempdir())))

    def close() -> None:
        if os.getpid() == owner:  # a forked process leaves the folder to its parent
            stack.close()

    atexit.register(close)
    return folder
