"""Opens tokenizer.json within bounds. The `tokenizers` library checks neither how much a normalizer adds nor what a template names."""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from pocketbert.core.disk.files import read_regular
from pocketbert.core.errors import InputError, Problem

MAX_MIB = 32
"""Twice the largest tokenizer of an encoder (XLM-R's has 250,000 tokens); the library takes ten times as much memory."""
MAX_PARTS = 64
"""Normalizers, pre-tokenizers and the like together; published tokenizers have fewer than ten."""
MAX_GROWTH = 64
"""How many characters the normalizers may make of one; Unicode's own forms make at most 18."""
_MAX_PIECE = 256
"""Most bytes that a table of normalized characters may give for one character."""
_MAX_PATTERN = 1 << 12
_STEPS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
_PANIC = "PanicException"
"""The `tokenizers` library's own kind of exception when its code in Rust fails; no subclass of Exception."""


@contextlib.contextmanager
def library_errors(where: str, what: str) -> Iterator[None]:
    """Turn what the library raises inside into an `InputError`, a panic of its Rust code included.

    Args:
        where: The file to blame.
        what: What was attempted ("cannot encode").
    """
    try:
        yield
    except (InputError, TypeError):  # a TypeError says that a caller's text is none
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != _PANIC:
            raise  # Ctrl-C and the end of the process
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(Problem(where, f"{what}: {first[:300].rstrip('.')}.")) from error


def open_tokenizer(path: Path) -> Tokenizer:
    """Open tokenizer.json.

    Raises:
        InputError: If it is missing, too large, no tokenizer, or one that could take any amount of memory.
    """
    if not path.is_file():
        raise InputError(Problem(str(path), "file not found.", "Save the tokenizer as tokenizer.json."))
    raw = read_regular(path, MAX_MIB << 20)
    with library_errors(str(path), "not a tokenizer"):
        content = json.loads(raw.decode())
    found = tokenizer_problems(content)
    if found:
        raise InputError([Problem(str(path), what) for what in found])
    with library_errors(str(path), "not a tokenizer"):
        return Tokenizer.from_buffer(raw)  # what was checked, and not the file anew


def tokenizer_problems(content: Any) -> list[str]:
    """List why a tokenizer's file is not opened, one sentence each.

    Args:
        content: The content of tokenizer.json.
    """
    if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
        return ["not a tokenizer: it has no model."]
    if not content["model"].get("vocab"):
        return ["not a tokenizer: its vocabulary is empty."]
    parts = [part for step in _STEPS for part in _parts(content.get(step))]
    if len(parts) > MAX_PARTS:
        return [f"not a usable tokenizer: it has more than {MAX_PARTS} normalizers and other parts."]
    growth = 1.0
    for part in parts:
        growth *= _growth(part)
    out = []
    if growth > MAX_GROWTH:
        out.append(f"its normalizers make more than {MAX_GROWTH} characters of one; refused.")
    if any(len(str(p.get("pattern"))) > _MAX_PATTERN for p in parts):
        out.append(f"a pattern is longer than {_MAX_PATTERN:,} characters; refused.")
    if any(not _bounded_table(p) for p in parts if p.get("type") == "Precompiled"):
        out.append(f"its table of characters makes more than {_MAX_PIECE} bytes of one; refused.")
    out += [what for part in parts for what in _template(part, content)]
    return out


def template_types(content: Mapping[str, Any]) -> int:
    """Largest segment number that the tokenizer gives a token.

    Args:
        content: The content of a tokenizer.json without problems.
    """
    frames = [part.get(key) for part in _parts(content.get("post_processor")) for key in ("single", "pair")]
    pieces = [piece for frame in frames if isinstance(frame, list) for piece in frame]
    return max((int(next(iter(p.values())).get("type_id", 0)) for p in pieces), default=0)


def _parts(step: Any) -> list[dict[str, Any]]:
    """A step and the steps inside it, at any depth; one more than `MAX_PARTS` at most."""
    waiting, out = [step], list[dict[str, Any]]()
    while waiting and len(out) <= MAX_PARTS:
        part = waiting.pop()
        if isinstance(part, list):
            waiting += part
        elif isinstance(part, dict):
            out.append(part)
            waiting += [part.get(k) for k in ("normalizers", "pretokenizers", "processors", "decoders")]
    return out


def _growth(part: Mapping[str, Any]) -> float:
    """Characters that a normalizer can make of one."""
    kind, pattern = part.get("type"), part.get("pattern")
    if kind == "Prepend":
        return 1.0 + len(str(part.get("prepend", ""))) / 16  # once for each piece of text
    if kind != "Replace":
        return 1.0
    added = len(str(part.get("content", "")))
    text = pattern.get("String") if isinstance(pattern, dict) else None
    # a regular expression can find nothing, before each character
    return max(1.0, added / len(text)) if isinstance(text, str) and text else 1.0 + added


def _bounded_table(part: Mapping[str, Any]) -> bool:
    """Whether a table of normalized characters (SentencePiece's) has short ones only: a trie, then texts that end with 0."""
    try:
        raw = base64.b64decode(str(part.get("precompiled_charsmap") or ""), validate=True)
    except binascii.Error:
        return False
    texts = raw[4 + int.from_bytes(raw[:4], "little") :]
    return all(len(piece) <= _MAX_PIECE for piece in texts.split(b"\0"))


def _template(part: Mapping[str, Any], content: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with the frame of special tokens around a text."""
    named: list[tuple[Any, Any]] = []
    if part.get("type") == "TemplateProcessing":
        for key, texts in (("single", ["A"]), ("pair", ["A", "B"])):
            if not _frame(part.get(key), texts):
                yield f"its template '{key}' does not have each text once, with at most 16 special tokens."
        specials = part.get("special_tokens")
        unknown = [t for t in _named(part) if not isinstance(specials, dict) or t not in specials]
        if unknown:
            yield f"its template names {unknown[0][:40]!r}, which is not among its special tokens."
        for token in specials.values() if isinstance(specials, dict) else ():
            ids, tokens = (token.get("ids"), token.get("tokens")) if isinstance(token, dict) else (None, None)
            if not isinstance(ids, list) or not isinstance(tokens, list) or not len(ids) == len(tokens) <= 16:
                yield "its template has a special token without a number."
                return
            named += zip(tokens, ids, strict=True)
    elif part.get("type") in ("BertProcessing", "RobertaProcessing"):
        named = [tuple(p) for k in ("sep", "cls") if isinstance(p := part.get(k), list) and len(p) == 2]
    if not named:
        return
    known = _numbers(content, [t for t, _ in named])
    wrong = [t for t, number in named if known.get(str(t)) != number]
    if wrong:
        yield f"its template adds {str(wrong[0])[:40]!r}, which the vocabulary does not have under that number."


def _named(part: Mapping[str, Any]) -> list[str]:
    """The special tokens that a template puts around its texts; the library fails with a panic where it does not know one."""
    frames = [part.get(key) for key in ("single", "pair")]
    pieces = [p for frame in frames if isinstance(frame, list) for p in frame if isinstance(p, dict)]
    tokens = [p["SpecialToken"] for p in pieces if "SpecialToken" in p]
    return [str(t.get("id")) if isinstance(t, dict) else str(t) for t in tokens]


def _frame(pieces: Any, texts: list[str]) -> bool:
    if not isinstance(pieces, list) or len(pieces) > 16 + len(texts):
        return False
    if not all(isinstance(p, dict) and len(p) == 1 and isinstance(next(iter(p.values())), dict) for p in pieces):
        return False
    return sorted(str(p["Sequence"].get("id")) for p in pieces if "Sequence" in p) == texts


def _numbers(content: Mapping[str, Any], tokens: list[Any]) -> dict[str, Any]:
    """Numbers of some tokens, of the vocabulary and of what was added to it."""
    vocabulary = content["model"]["vocab"]
    wanted = {str(t) for t in tokens}
    if isinstance(vocabulary, dict):
        out = {t: vocabulary[t] for t in wanted if t in vocabulary}
    else:
        out = {str(e[0]): i for i, e in enumerate(vocabulary) if isinstance(e, list) and e and str(e[0]) in wanted}
    added = content.get("added_tokens")
    for token in added if isinstance(added, list) else ():
        if isinstance(token, dict) and str(token.get("content")) in wanted:
            out[str(token["content"])] = token.get("id")
    return out
