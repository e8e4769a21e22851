"""What the files around tokenizer.json change about it, written into it, so that every client reads one file and gets the same ids.

transformers and sentence-transformers read tokenizer.json and then change the tokenizer by their own settings. Clients that know
only tokenizer.json would give other ids.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pocketbert.core.disk.files import read_json
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.predict.tokenizer_file import MAX_MIB

SEGMENTS = "token_type_ids"
SENTENCE_FILE = "sentence_bert_config.json"
"""Where sentence-transformers keeps the longest input and lower case."""
_BERT_CLASSES = (
    "BertTokenizer",
    "DistilBertTokenizer",
    "ElectraTokenizer",
    "MobileBertTokenizer",
    "ConvBertTokenizer",
    "LayoutLMTokenizer",
)
"""Classes of transformers that make the normalizer anew from the settings, whatever tokenizer.json has."""
_BERT_SETTINGS = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
"""Their settings, with the normalizer's key for each."""


def read_tokenizer_settings(folder: Path) -> dict[str, Any]:
    """Read the tokenizer_config.json of a model folder; empty where there is none.

    Raises:
        InputError: If it is no JSON object.
    """
    return _settings(folder / "tokenizer_config.json", "not the settings of a tokenizer")


def apply_settings(raw: str, folder: Path) -> tuple[str, list[str]]:
    """Return the content of a tokenizer.json with what the settings of its folder change, and the changes in words.

    Four things are read. Tokens that are listed as added and that tokenizer.json lacks are added. BERT's classes take lower
    case, accents and Chinese characters from tokenizer_config.json. `do_lower_case` in sentence_bert_config.json lowers the
    text first. Where `model_input_names` is there without token_type_ids, all segment ids are 0.

    Args:
        raw: Content of tokenizer.json.
        folder: The model folder that it is from; other files in it may be missing.

    Returns:
        The content, `raw` itself where nothing changes; and one line for each change.

    Raises:
        InputError: If a file of settings cannot be read.
    """
    settings, sentence = read_tokenizer_settings(folder), _settings(folder / SENTENCE_FILE, "no settings")
    content = json.loads(raw)
    if not isinstance(content, dict):
        return raw, []
    changes = _add_tokens(content, listed_tokens(folder))
    changes += _set_bert_normalizer(content, settings)
    if sentence.get("do_lower_case") is True:
        changes += _lower_first(content)
    if not feeds_segments(settings):
        changes += _zero_segments(content)
    return (json.dumps(content, ensure_ascii=False), changes) if changes else (raw, [])


def listed_tokens(folder: Path) -> dict[str, dict[str, Any]]:
    """Read the tokens that a folder lists as added, in tokenizer_config.json and added_tokens.json, as transformers does.

    Args:
        folder: A model folder; the files may be missing.

    Returns:
        By their texts, entries as tokenizer.json has them.

    Raises:
        InputError: If a file cannot be read.
    """
    settings, numbered = read_tokenizer_settings(folder), _settings(folder / "added_tokens.json", "not added tokens")
    named = {v for k, v in settings.items() if k.endswith("_token") and isinstance(v, str)}
    named |= {t for t in settings.get("additional_special_tokens") or () if isinstance(t, str)}
    out: dict[str, dict[str, Any]] = {}
    decoder = settings.get("added_tokens_decoder")
    for number, flags in decoder.items() if isinstance(decoder, dict) else ():
        if number.isdecimal() and isinstance(flags, dict) and isinstance(flags.get("content"), str):
            out[flags["content"]] = _added(flags["content"], int(number), flags.get("special") is True) | flags
    if out:
        return out  # the older file counts where the newer key is not there
    return {t: _added(t, number, t in named) for t, number in numbered.items() if isinstance(number, int)}


def _added(text: str, number: int, special: bool) -> dict[str, Any]:
    """The entry of an added token in tokenizer.json."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": not special, "special": special}
    return {"id": number, "content": text, **flags}


def _add_tokens(content: dict[str, Any], listed: Mapping[str, dict[str, Any]]) -> list[str]:
    """Add tokens to those of tokenizer.json that are listed as added and that it lacks."""
    added = content.setdefault("added_tokens", [])
    if not isinstance(added, list):
        return []
    have = {token.get("content") for token in added if isinstance(token, dict)}
    lacking = [token for text, token in listed.items() if text not in have]
    if not lacking:
        return []
    content["added_tokens"] = sorted([*added, *lacking], key=lambda token: token["id"])
    shown = ", ".join(repr(token["content"])[:40] for token in lacking[:3])
    return [f"{len(lacking)} added tokens that it lacks are taken from the files next to it, e.g. {shown}"]


def feeds_segments(settings: Mapping[str, Any]) -> bool:
    """Tell whether a tokenizer's segment ids are given to its model; where its settings do not say, tokenizer.json decides.

    Args:
        settings: Content of tokenizer_config.json.
    """
    names = settings.get("model_input_names")
    return not isinstance(names, list) or SEGMENTS in names


def _settings(path: Path, otherwise: str) -> dict[str, Any]:
    """Read a JSON object; empty where there is no file."""
    content = read_json(path, MAX_MIB) if path.is_file() else {}
    if not isinstance(content, dict):
        raise InputError(Problem(str(path), f"{otherwise}: no JSON object."))
    return content


def _set_bert_normalizer(content: dict[str, Any], settings: Mapping[str, Any]) -> list[str]:
    """Write what BERT's tokenizer classes are told into the normalizer; what the settings leave out stays as it is."""
    normalizer, name = content.get("normalizer"), str(settings.get("tokenizer_class") or _BERT_CLASSES[0])
    if not isinstance(normalizer, dict) or normalizer.get("type") != "BertNormalizer":
        return []
    changes = []
    for setting, key in _BERT_SETTINGS.items() if name.removesuffix("Fast") in _BERT_CLASSES else ():
        stated = settings.get(setting)
        if isinstance(stated, bool) and normalizer.get(key) is not stated:
            changes.append(f"{setting} is {stated} in tokenizer_config.json ({key} was {normalizer.get(key)})")
            normalizer[key] = stated
    return changes


def _lower_first(content: dict[str, Any]) -> list[str]:
    """Put lower case in front of the normalizer, unless it does so already."""
    normalizer = content.get("normalizer")
    steps = normalizer.get("normalizers", []) if isinstance(normalizer, dict) else []
    for step in [normalizer, *steps]:
        if isinstance(step, dict) and (step.get("type") == "Lowercase" or step.get("lowercase") is True):
            return []
    rest = [] if normalizer is None else [normalizer]
    content["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Lowercase"}, *rest]}
    return ["do_lower_case is true in sentence_bert_config.json"]


def _zero_segments(content: dict[str, Any]) -> list[str]:
    """Set the segment number of every token to 0, in all steps behind the model."""
    before = json.dumps(content.get("post_processor"))
    waiting = [content.get("post_processor")]
    while waiting:
        step = waiting.pop()
        if not isinstance(step, dict):
            continue
        if isinstance(step.get("processors"), list):
            waiting += step["processors"]
        if step.get("type") == "BertProcessing":
            _write_template(step)
        frames = [step.get(key) for key in ("single", "pair")]
        pieces = [piece for frame in frames if isinstance(frame, list) for piece in frame if isinstance(piece, dict)]
        for place in (place for piece in pieces for place in piece.values() if isinstance(place, dict)):
            place["type_id"] = 0
    changed = json.dumps(content.get("post_processor")) != before
    return [f"model_input_names in tokenizer_config.json leaves {SEGMENTS} out: segment ids are 0"] if changed else []


def _write_template(step: dict[str, Any]) -> None:
    """Rewrite a BertProcessing, whose second text always has segment 1, as the template that it is."""
    sep, cls = step.pop("sep"), step.pop("cls")
    special = {token: {"id": token, "ids": [number], "tokens": [token]} for token, number in (cls, sep)}

    def token(name: str) -> dict[str, Any]:
        return {"SpecialToken": {"id": name, "type_id": 0}}

    def text(name: str) -> dict[str, Any]:
        return {"Sequence": {"id": name, "type_id": 0}}

    single = [token(cls[0]), text("A"), token(sep[0])]
    step |= {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, text("B"), token(sep[0])],
        "special_tokens": special,
    }
