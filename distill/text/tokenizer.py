"""Tokenizing text for general distillation, and finding the words in a row of token ids.

- `CorpusTokenizer` turns texts of any length into ids, without truncation and without special tokens;
- `tokenizer_digest` identifies a tokenizer, `read_vocabulary` reads its tokens;
- `continues_word`, `word_starts` and `wordless_ids` find the words in a row of ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from pocketbert.core.disk.files import read_json, sha256_json
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.predict.tokenization import TextTokenizer

_Ids = NDArray[np.int64]

PROBES = ("a", "the", "1", "一")
"""Texts of which at least one has a token in any vocabulary."""


class CorpusTokenizer:
    """Tokenizer for texts of any length: returns ids without truncation, padding or special tokens.

    Attributes:
        tokenizer: The tokenizer of the tokenizers library, without padding and truncation.
        before: Tokens that the post-processor puts before a text (``[CLS]``), [b] int64.
        after: Tokens that the post-processor puts after a text (``[SEP]``), [a] int64, a >= 1. XLNet has both there.
        unknown_id: Id of the unknown token; None if the vocabulary can spell every text.
        special_ids: Ids that the tokenizer declares as special, ascending.
        vocabulary_size: Highest id plus one; ids may have gaps.
        digest: See `tokenizer_digest`.

    Args:
        path: ``tokenizer.json`` or the folder that holds it.

    Raises:
        InputError: If the file is no tokenizer, or puts no special token after a text.
    """

    def __init__(self, path: Path) -> None:
        file, content = _read_tokenizer_json(path)
        self.tokenizer = _open_tokenizer(file)
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()
        self.digest = _digest(content)
        self.before, self.after = self._special_tokens_around_text(file)
        model = content["model"]
        unknown_token = model.get("unk_token")
        unknown_id = self.tokenizer.token_to_id(unknown_token) if unknown_token else None
        if isinstance(model.get("unk_id"), int):  # Unigram
            unknown_id = model["unk_id"]
        self.unknown_id = None if unknown_id is None else int(unknown_id)
        added = content.get("added_tokens") or []
        self.special_ids = sorted({int(token["id"]) for token in added if token.get("special")})
        self.vocabulary_size = max(self.tokenizer.get_vocab().values()) + 1

    def tokens(self, texts: Sequence[str]) -> list[_Ids]:
        """Return the token ids of each text, without special tokens and never truncated."""
        encoded = self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(e.ids, np.int64) for e in encoded]

    def _special_tokens_around_text(self, file: Path) -> tuple[_Ids, _Ids]:
        """Return the ids of the special tokens that the tokenizer puts before and after a text.

        They are found by tokenizing one. Raises InputError if there is none after a text.
        """
        for probe in PROBES:
            encoded = self.tokenizer.encode(probe)
            positions = np.flatnonzero(np.array(encoded.special_tokens_mask) == 0)
            if positions.size:
                ids = np.array(encoded.ids, np.int64)
                before, after = ids[: positions[0]], ids[positions[-1] + 1 :]
                if after.size:
                    return before, after
                break
        reason = "its post-processor puts no special token after a text, so rows would have no end."
        raise InputError(Problem(str(file), reason, "Add a post-processor such as '[CLS] $A [SEP]' to the tokenizer."))


def tokenizer_digest(path: Path) -> str:
    """Return the hash of a ``tokenizer.json`` without its padding and truncation: all that decides a text's ids.

    Args:
        path: ``tokenizer.json`` or the folder that holds it.

    Raises:
        InputError: If there is no such file, or it is no tokenizer.
    """
    _, content = _read_tokenizer_json(path)
    return _digest(content)


def read_vocabulary(path: Path) -> dict[str, int]:
    """Return the id of every token of a tokenizer, by its spelling, added tokens included.

    Args:
        path: ``tokenizer.json`` or the folder that holds it.

    Raises:
        InputError: If there is no such file, or it is no tokenizer.
    """
    ids: dict[str, int] = _open_tokenizer(_tokenizer_file(path)).get_vocab()
    return ids


def _tokenizer_file(path: Path) -> Path:
    """Return the path of tokenizer.json, given it or its folder."""
    return path / "tokenizer.json" if path.is_dir() else path


def _open_tokenizer(file: Path) -> Tokenizer:
    """Open a tokenizer.json with the tokenizers library; raise InputError if it is no tokenizer."""
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises plain Exception
        raise InputError(Problem(str(file), f"not a tokenizer: {error}.")) from error


def _read_tokenizer_json(path: Path) -> tuple[Path, dict[str, Any]]:
    """Return the path and the content of a tokenizer.json; raise InputError if the file is no tokenizer."""
    file = _tokenizer_file(path)
    if not file.is_file():
        raise InputError(Problem(str(file), "file not found.", "Save the tokenizer as tokenizer.json."))
    content = read_json(file)
    if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
        raise InputError(Problem(str(file), "not a tokenizer: it has no section 'model'."))
    return file, content


def _digest(content: dict[str, Any]) -> str:
    """Return the hash of tokenizer.json without padding and truncation."""
    return sha256_json({k: v for k, v in content.items() if k not in ("padding", "truncation")})


# --- words in a row of ids ---

_WORDPIECE, _BYTES, _SENTENCEPIECE = "##", "Ġ", "▁"
_BYTE_BLANKS = ("Ġ", "Ċ", "ĉ", "č")
"""Blank, line feed, tab and carriage return as byte-level vocabularies spell them."""
_UNSPACED = ((0x3040, 0x30FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x2FA1F))
"""Kana and Chinese characters: scripts that put no blanks between words."""
_UNKNOWN = ("[UNK]", "<unk>")


def continues_word(tokenizer: TextTokenizer, size: int) -> NDArray[np.bool_] | None:
    """Return which token ids continue a word, and which begin one, judged by the tokens' spelling.

    The mark that most tokens carry decides the kind of vocabulary:

    - WordPiece: tokens with ``##`` continue a word. Punctuation is a word, and so is every Chinese character, as in
      BERT; words of several characters, as BERT-wwm has them from a segmenter, cannot be recognized by ids.
    - Byte-level BPE: tokens without a leading ``Ġ`` (or another blank) continue a word. Punctuation belongs to the word
      that it follows, as in fairseq's whole-word masks. In text without blanks (Chinese, Japanese, Thai), a word is
      everything up to the next blank.
    - SentencePiece: tokens without a leading ``▁`` continue a word, except those that begin with a Chinese character or
      kana, each of which is a word. Thai, Lao, Khmer and Burmese words reach to the next blank.

    A token after a special or unknown one begins a word however it is spelt; see `word_starts`.

    Args:
        tokenizer: Tokenizer that gives the spelling of each token.
        size: V, the highest id plus one.

    Returns:
        True for tokens that continue a word, [V]. None if no token carries one of these marks, so that the words of the
        vocabulary cannot be recognized.
    """
    tokens = [tokenizer.token(i) for i in range(size)]
    marks = {mark: sum(t.startswith(mark) for t in tokens) for mark in (_WORDPIECE, _BYTES, _SENTENCEPIECE)}
    kind = max(marks, key=marks.__getitem__)
    if not marks[kind]:
        return None
    if kind == _WORDPIECE:
        return np.array([t.startswith(kind) and len(t) > len(kind) for t in tokens])
    if kind == _BYTES:
        return np.array([not t.startswith((*_BYTE_BLANKS, " ")) for t in tokens])

    def is_unspaced(token: str) -> bool:
        return bool(token) and any(low <= ord(token[0]) <= high for low, high in _UNSPACED)

    return np.array([not t.startswith(kind) and not is_unspaced(t) for t in tokens])


def word_starts(continues: NDArray[np.bool_], apart: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return at which of a row's n tokens a word begins.

    Args:
        continues: Whether each token continues a word by its spelling, [n].
        apart: True at tokens that belong to no word (special and unknown ones), [n].

    Returns:
        [n]; True at the first token of each word, and at tokens that belong to none.
    """
    after_apart = np.empty_like(apart)
    after_apart[:1], after_apart[1:] = True, apart[:-1]
    starts: NDArray[np.bool_] = ~continues | apart | after_apart
    return starts


def wordless_ids(tokenizer: TextTokenizer, size: int) -> list[int]:
    """Return the ids that are never masked: special tokens and the unknown token, ascending.

    The unknown token is found by its name, as some tokenizer files do not declare it special.

    Args:
        tokenizer: The teacher's tokenizer.
        size: V, the highest id plus one.
    """
    unknown = (i for i in range(size) if tokenizer.token(i) in _UNKNOWN)
    return sorted({*tokenizer.special_ids, *unknown})
