"""Opening tokenizer.json within bounds, since the `tokenizers` library trusts the file.

The library checks neither how many characters a normalizer adds nor whether the tokens of a template exist.
`open_tokenizer` reads the file once, refuses it for each of the `_tokenizer_problems`, and gives the same bytes to the
library. `library_errors` turns errors of the library, panics of its Rust code included, into `InputError`.
"""

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
from pocketbert.core.errors import InputError, Problem, first_line

MAX_TOKENIZER_MIB = 32
"""Twice the largest tokenizer of an encoder (XLM-R, 250,000 tokens); the library takes ten times as much memory."""
_MAX_PARTS = 64
"""Normalizers, pre-tokenizers and the like together; published tokenizers have fewer than ten."""
_MAX_GROWTH = 64
"""How many characters the normalizers may make of one; Unicode's own forms make at most 18."""
_MAX_PIECE = 256
"""Most bytes that a table of normalized characters may give for one character."""
_MAX_PATTERN = 1 << 12
_MAX_SPECIAL = 16
_PANIC = "PanicException"
"""Name of the exception of the library when its Rust code fails; it is no subclass of Exception."""


@contextlib.contextmanager
def library_errors(where: str, what: str) -> Iterator[None]:
    """Convert errors that the `tokenizers` library raises in the block to `InputError`.

    A TypeError is raised as it is: it means that a caller's text is no text.

    Args:
        where: Name of the file in error messages.
        what: The failure in words ("cannot encode").
    """
    try:
        yield
    except (InputError, TypeError):  # a TypeError means that a caller's text is none
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != _PANIC:
            raise  # Ctrl-C and the end of the process
        first = first_line(error)
        raise InputError(Problem(where, f"{what}: {first[:300].rstrip('.')}.")) from error


def open_tokenizer(path: Path, checked: bool = False) -> Tokenizer:
    """Open tokenizer.json with the `tokenizers` library, after checks of its memory use and of its special tokens.

    Args:
        path: The file.
        checked: Whether the checks are skipped, because the content passed them before.

    Raises:
        InputError: If the file is missing, too large or no tokenizer, or if a check refuses it.
    """
    if not path.is_file():
        raise InputError(Problem(str(path), "file not found.", "Save the tokenizer as tokenizer.json."))
    raw = read_regular(path, MAX_TOKENIZER_MIB << 20)
    if not checked:
        with library_errors(str(path), "not a tokenizer"):
            content = json.loads(raw.decode())
        problems = _tokenizer_problems(content)
        if problems:
            raise InputError([Problem(str(path), what) for what in problems])
    with library_errors(str(path), "not a tokenizer"):
        return Tokenizer.from_buffer(raw)  # the bytes that were checked: the file may have changed since


def _tokenizer_problems(content: Any) -> list[str]:
    """Return why the content of a tokenizer.json is refused, one sentence per reason; empty if it is accepted.

    Args:
        content: The content of tokenizer.json.
    """
    if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
        return ["not a tokenizer: it has no model."]
    if not content["model"].get("vocab"):
        return ["not a tokenizer: its vocabulary is empty."]
    steps = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
    parts = [part for step in steps for part in _list_parts(content.get(step))]
    if len(parts) > _MAX_PARTS:
        return [f"not a usable tokenizer: it has more than {_MAX_PARTS} normalizers and other parts."]
    growth = 1.0
    for part in parts:
        growth *= _growth_of(part)
    problems = []
    if growth > _MAX_GROWTH:
        problems.append(f"its normalizers make more than {_MAX_GROWTH} characters of one; refused.")
    if any(len(str(part.get("pattern"))) > _MAX_PATTERN for part in parts):
        problems.append(f"a pattern is longer than {_MAX_PATTERN:,} characters; refused.")
    if any(not _is_bounded_table(part) for part in parts if part.get("type") == "Precompiled"):
        problems.append(f"its table of characters makes more than {_MAX_PIECE} bytes of one; refused.")
    problems += [problem for part in parts for problem in _template_problems(part, content)]
    return problems


def largest_segment_id(content: Mapping[str, Any]) -> int:
    """Return the largest segment id that the templates of a tokenizer.json give to a token; 0 without a template.

    ``BertProcessing`` has no template; the library gives 1 to the second text under it.

    Args:
        content: The content of a tokenizer.json that passed the checks.
    """
    parts = _list_parts(content.get("post_processor"))
    templates = [part.get(key) for part in parts for key in ("single", "pair")]
    pieces = [piece for template in templates if isinstance(template, list) for piece in template]
    least = int(any(part.get("type") == "BertProcessing" for part in parts))
    return max([least, *(int(next(iter(piece.values())).get("type_id", 0)) for piece in pieces)])


def _list_parts(step: Any) -> list[dict[str, Any]]:
    """List a tokenizer step (such as a normalizer) and the steps nested in it; the list ends soon after `_MAX_PARTS`."""
    pending, parts = [step], list[dict[str, Any]]()
    while pending and len(parts) <= _MAX_PARTS:
        part = pending.pop()
        if isinstance(part, list):
            pending += part
        elif isinstance(part, dict):
            parts.append(part)
            pending += [part.get(key) for key in ("normalizers", "pretokenizers", "processors", "decoders")]
    return parts


def _growth_of(part: Mapping[str, Any]) -> float:
    """Estimate the largest number of characters that one step of a tokenizer's normalizer makes from one character."""
    kind, pattern = part.get("type"), part.get("pattern")
    if kind == "Prepend":
        return 1.0 + len(str(part.get("prepend", ""))) / 16  # once for each piece of text
    if kind != "Replace":
        return 1.0
    added = len(str(part.get("content", "")))
    text = pattern.get("String") if isinstance(pattern, dict) else None
    # a regular expression can match the empty text before each character
    return max(1.0, added / len(text)) if isinstance(text, str) and text else 1.0 + added


def _is_bounded_table(part: Mapping[str, Any]) -> bool:
    """Return whether a SentencePiece normalization table can be decoded and replaces no character by a long text.

    The table consists of a trie and, after it, the replacement texts, each of which ends with a zero byte.
    """
    try:
        raw = base64.b64decode(str(part.get("precompiled_charsmap") or ""), validate=True)
    except binascii.Error:
        return False
    texts = raw[4 + int.from_bytes(raw[:4], "little") :]
    return all(len(piece) <= _MAX_PIECE for piece in texts.split(b"\0"))


def _template_problems(part: Mapping[str, Any], content: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with a post-processor: a template without one of the texts, unknown tokens, or wrong token ids."""
    tokens: list[tuple[Any, Any]] = []
    if part.get("type") == "TemplateProcessing":
        for key, texts in (("single", ["A"]), ("pair", ["A", "B"])):
            if not _is_template(part.get(key), texts):
                yield f"its template '{key}' does not have each text once, with at most {_MAX_SPECIAL} special tokens."
        specials = part.get("special_tokens")
        unknown = [t for t in _special_tokens(part) if not isinstance(specials, dict) or t not in specials]
        if unknown:
            yield f"its template names {unknown[0][:40]!r}, which is not among its special tokens."
        for special in specials.values() if isinstance(specials, dict) else ():
            ids, names = (special.get("ids"), special.get("tokens")) if isinstance(special, dict) else (None, None)
            if not isinstance(ids, list) or not isinstance(names, list) or not len(ids) == len(names) <= _MAX_SPECIAL:
                yield "its template has a special token without a number."
                return
            tokens += zip(names, ids, strict=True)
    elif part.get("type") in ("BertProcessing", "RobertaProcessing"):
        tokens = [tuple(p) for k in ("sep", "cls") if isinstance(p := part.get(k), list) and len(p) == 2]
    if not tokens:
        return
    ids_by_token = _find_ids(content, [token for token, _ in tokens])
    wrong = [token for token, number in tokens if ids_by_token.get(str(token)) != number]
    if wrong:
        yield f"its template adds {str(wrong[0])[:40]!r}, which the vocabulary does not have under that number."


def _is_template(pieces: Any, texts: list[str]) -> bool:
    """Return whether a template contains each of the texts exactly once, and at most `_MAX_SPECIAL` special tokens."""
    if not isinstance(pieces, list) or len(pieces) > _MAX_SPECIAL + len(texts):
        return False
    if not all(isinstance(p, dict) and len(p) == 1 and isinstance(next(iter(p.values())), dict) for p in pieces):
        return False
    return sorted(str(p["Sequence"].get("id")) for p in pieces if "Sequence" in p) == texts


def _special_tokens(part: Mapping[str, Any]) -> list[str]:
    """Return the special tokens that a post-processor's templates name."""
    templates = [part.get(key) for key in ("single", "pair")]
    pieces = [p for template in templates if isinstance(template, list) for p in template if isinstance(p, dict)]
    tokens = [p["SpecialToken"] for p in pieces if "SpecialToken" in p]
    return [str(t.get("id")) if isinstance(t, dict) else str(t) for t in tokens]


def _find_ids(content: Mapping[str, Any], tokens: list[Any]) -> dict[str, Any]:
    """Look up token ids in the vocabulary and the added tokens of a tokenizer.json; missing tokens are left out."""
    vocabulary = content["model"]["vocab"]
    names = {str(t) for t in tokens}
    if isinstance(vocabulary, dict):
        ids = {t: vocabulary[t] for t in names if t in vocabulary}
    else:
        ids = {str(e[0]): i for i, e in enumerate(vocabulary) if isinstance(e, list) and e and str(e[0]) in names}
    added = content.get("added_tokens")
    for token in added if isinstance(added, list) else ():
        if isinstance(token, dict) and str(token.get("content")) in names:
            ids[str(token["content"])] = token.get("id")
    return ids
