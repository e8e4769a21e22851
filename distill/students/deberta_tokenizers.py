"""DeBERTa's tokenizers from the files that the authors publish, where transformers 5 converts them differently.

Its class for v2 and v3 replaces the normalization of spm.model by Unicode's NFC: full-width letters, ligatures and fractions,
which SentencePiece spells out, become unknown tokens. Its class for v1 puts two separators between the texts of a pair, the
original code puts one.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from pocketbert.core.compare.sample_texts import SENTENCES, UNICODE_SENTENCES
from pocketbert.core.errors import InputError, MissingBackendError, Problem
from pocketbert.core.host.versions import version_of

PICKLED, PIECES = "bpe_encoder.bin", "spm.model"
_AWKWARD = (
    "Ｆｕｌｌ ｗｉｄｔｈ",
    "ﬁne ½ ™",
    "  two  spaces\tand a tab \n",
    "cafe\u0301 naïve",
    "\u200bzero\u200d width\ufeff",
    "ไทย שלום",
)


def check_byte_pairs(folder: Path) -> None:
    """Refuse the vocabulary of v1's original code, which is a pickle.

    Args:
        folder: A model folder without tokenizer.json.

    Raises:
        InputError: If the folder has that file and no other vocabulary.
    """
    if (folder / PICKLED).is_file() and not (folder / "vocab.json").is_file():
        raise InputError(
            Problem(
                str(folder / PICKLED),
                "a pickle of the original code, which is not opened: it may run code.",
                "Put vocab.json and merges.txt of the same checkpoint into the folder; its authors publish both.",
            )
        )


def with_one_separator(content: dict[str, Any]) -> dict[str, Any]:
    """Let one separator stand between the texts of a pair.

    Args:
        content: tokenizer.json as transformers made it of vocab.json and merges.txt.

    Returns:
        The same, changed.
    """
    template = content["post_processor"]
    start, text, end = template["single"]
    last = {"SpecialToken": {**end["SpecialToken"], "type_id": 1}}
    pair = [start, text, end, {"Sequence": {"id": "B", "type_id": 1}}, last]
    return {**content, "post_processor": {**template, "pair": pair}}


def with_own_normalizer(folder: Path, content: dict[str, Any]) -> dict[str, Any]:
    """Give a tokenizer the normalization that is in its SentencePiece model, and compare it with that library.

    Args:
        folder: Has spm.model.
        content: tokenizer.json as transformers made it.

    Returns:
        The same, changed.

    Raises:
        MissingBackendError: If sentencepiece is not installed.
        InputError: If the texts of the comparison still get other tokens.
    """
    if not (folder / PIECES).is_file():
        return content
    if version_of("sentencepiece") is None:
        raise MissingBackendError("sentencepiece", "pip install sentencepiece")
    from sentencepiece import SentencePieceProcessor, sentencepiece_model_pb2
    from tokenizers import Tokenizer

    raw = (folder / PIECES).read_bytes()
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(raw)
    table = base64.b64encode(model.normalizer_spec.precompiled_charsmap).decode()
    lower = [s for s in content["normalizer"]["normalizers"] if s["type"] == "Lowercase"]
    steps: list[dict[str, Any]] = [*lower]
    if table:
        steps.append({"type": "Precompiled", "precompiled_charsmap": table})
    steps.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    steps.append({"type": "Strip", "strip_left": True, "strip_right": True})
    made = {**content, "normalizer": {"type": "Sequence", "normalizers": steps}}
    if any(s["type"] == "Punctuation" for s in content["pre_tokenizer"].get("pretokenizers", ())):
        return made  # split_by_punct cuts words before SentencePiece sees them
    theirs, ours = SentencePieceProcessor(model_proto=raw), Tokenizer.from_str(json.dumps(made))
    texts = [*_AWKWARD, *SENTENCES, *UNICODE_SENTENCES]
    other = [
        text
        for text in texts
        if theirs.encode(text.lower() if lower else text) != ours.encode(text, add_special_tokens=False).ids
    ]
    if other:
        what = f"{len(other)} of {len(texts)} texts get other tokens than from the sentencepiece library, first {other[0]!r}."
        raise InputError(
            Problem(str(folder / PIECES), what, "Convert it yourself, and put tokenizer.json into the folder.")
        )
    return made
