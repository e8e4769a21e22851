"""Reproduce the tokenizer of MediaPipe Tasks, and explain which models MediaPipe cannot run.

TextClassifier and TextEmbedder bring a tokenizer of their own, which equals BERT's for ASCII text only.
`MediaPipeTokenizer` gives the same ids; `explain_refusal` explains why a model cannot be served; `read_vocabulary` returns the
vocab.txt to pack into a file. All facts were found with mediapipe 1.2.2 and a model that returns its ids;
tests/clients/test_mediapipe.py repeats that.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models, processors

from pocketbert.core.compare.sample_texts import ASCII_SENTENCES
from pocketbert.core.disk.files import is_unicode, read_json
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.predict.inputs import Encoded, Text
from pocketbert.core.predict.tokenization import TextTokenizer, strip_padding_and_truncation
from pocketbert.core.tasks import TaskName

_MAX_BYTES = 32 << 20
_MAX_WORD_BYTES = 100
"""A longer word is [UNK] as a whole. Bytes, not characters: 50 Cyrillic letters are the limit."""

_UNKNOWN, _FIRST, _LAST = "[UNK]", "[CLS]", "[SEP]"

_TASKS = {
    TaskName.MULTI_LABEL: "its files hold softmax probabilities that sum to one, and independent yes/no scores would be read as such",
    TaskName.REGRESSION: "its TextClassifier returns named categories, so a number has no place in the answer",
    TaskName.TOKEN_CLASSIFICATION: "it has no task that labels tokens",
    TaskName.QUESTION_ANSWERING: "its Tasks have no question answering",
    TaskName.MULTIPLE_CHOICE: "its TextClassifier reads one text, and a question is read with each of its choices",
    TaskName.FILL_MASK: "it has no such task",
    TaskName.SEVERAL: "its files have one output",
}
_LOWER = str.maketrans({chr(c): chr(c + 32) for c in range(ord("A"), ord("Z") + 1)})
_BLANKS = r"\t\n\f\r "  # RE2's \s: neither \v nor any blank beyond ASCII
_SINGLES = (
    r"!-/:-@\[-`{-~\u4E00-\u9FFF\u3400-\u4DBF\U00020000-\U0002A6DF\U0002A700-\U0002B73F\U0002B740-\U0002B81F"
    r"\U0002B820-\U0002CEAF\uF900-\uFAFF\U0002F800-\U0002FA1F"
)
"""ASCII punctuation and Chinese characters, each of which is a word; so are all characters of Unicode's category P."""
_NEWER_MARKS = (
    "\u1b4e\u1b4f\u1b7f\U00010d6e\U00010ed0\U000113d4\U000113d5\U000113d7\U000113d8"
    "\U00011b00-\U00011b09\U00011be1\U00011f43-\U00011f4f\U00016d6d-\U00016d6f\U0001e5ff"
)
"""Punctuation newer than Python 3.11's Unicode 14 that MediaPipe splits at; found by trying every code point."""


class MediaPipeTokenizer(TextTokenizer):
    r"""MediaPipe's built-in BERT tokenizer, id for id.

    Unlike tokenizer.json it lower-cases A-Z only, strips no accents, cleans nothing (a no-break space or a control
    character stays in its word, which is then mostly [UNK]), recognizes no special tokens in the text (``[MASK]`` is
    ``[``, ``mask``, ``]``), measures words in bytes, and reads a text only up to a null character. It pads on the right
    with id 0, whatever the model's family does.

    Args:
        vocabulary: Content of the vocab.txt that is packed into the file, or the model folder.
        max_length: Length L of the file's inputs: longer texts are cut at their end and keep [SEP].
    """

    def __init__(self, vocabulary: bytes | Path, max_length: int) -> None:
        """Build the tokenizer.

        Raises:
            InputError: If the vocabulary cannot be read or lacks special tokens, or `max_length` is too small.
        """
        raw = vocabulary if isinstance(vocabulary, bytes) else read_vocabulary(vocabulary)
        # a token that is listed twice has the later id, as in MediaPipe
        index = {token: i for i, token in enumerate(_vocabulary_tokens(raw))}
        missing = [t for t in (_UNKNOWN, _FIRST, _LAST) if t not in index]
        if missing:
            raise InputError(Problem("vocabulary", f"{', '.join(missing)} missing; MediaPipe would use id 0 instead."))
        if max_length <= 2:
            raise InputError(Problem("max_length", f"{max_length} leaves no room for text next to 2 special tokens."))
        self._tokenizer = Tokenizer(
            models.WordPiece(index, unk_token=_UNKNOWN, max_input_chars_per_word=_MAX_WORD_BYTES)
        )
        self._tokenizer.post_processor = processors.BertProcessing((_LAST, index[_LAST]), (_FIRST, index[_FIRST]))
        self._tokenizer.enable_truncation(max_length)
        self.max_length, self.pad_id, self.padding_side = max_length, 0, "right"

    def encode(self, texts: Sequence[Text], places: bool = False) -> list[Encoded]:
        """Tokenize texts with MediaPipe's rules.

        Args:
            texts: Single texts.
            places: Must be False: no task that MediaPipe serves answers with positions in the text.

        Returns:
            One entry per text, in order.

        Raises:
            InputError: If an entry is a pair or no Unicode text (the first is named), or `places` is True.
        """
        if places:
            raise InputError(Problem("places", "MediaPipe has no task whose answer is a place in the text."))
        words = [[w for w, _ in _words(_single(text, i))] for i, text in enumerate(texts)]
        encodings = self._tokenizer.encode_batch(words, is_pretokenized=True)
        return [
            Encoded(np.array(e.ids, np.int64), np.zeros(len(e.ids), np.int64), bool(e.overflowing)) for e in encodings
        ]

    def golden(self, text: Text) -> dict[str, Any]:
        """Return a text, its token ids and character offsets (in code points), as golden files for tests hold them."""
        words = _words(_single(text, 0))
        encoding = self._tokenizer.encode([w for w, _ in words], is_pretokenized=True)
        offsets = []
        for word, (start, end) in zip(encoding.word_ids, encoding.offsets, strict=True):
            first = 0 if word is None else words[word][1][0]
            stop = first + end if word is None or words[word][0] != _UNKNOWN else words[word][1][1]
            offsets.append([first + start, stop])
        return {"text": text, "ids": encoding.ids, "offsets": offsets}


def _words(text: str) -> list[tuple[str, tuple[int, int]]]:
    """Split a text, up to its first null character, into words with their code-point ranges (start, end).

    A-Z are lower-cased, and words that are too long become [UNK].
    """
    matches = _pattern().finditer(text.split("\0", 1)[0].translate(_LOWER))
    return [(w if len(w.encode()) <= _MAX_WORD_BYTES else _UNKNOWN, m.span()) for m in matches if (w := m.group())]


@cache
def _pattern() -> re.Pattern[str]:
    """Compile the regular expression that matches one word or one punctuation mark."""
    marks = "".join(chr(c) for c in range(0x80, 0x20000) if unicodedata.category(chr(c))[0] == "P")
    singles = _SINGLES + marks + _NEWER_MARKS
    return re.compile(f"[{singles}]|[^{_BLANKS}{singles}]+")


def _single(text: Text, number: int) -> str:
    """Return the text; raise InputError if it is a pair or no Unicode text."""
    if not isinstance(text, str):
        raise InputError(Problem(f"text {number + 1}", f"{text!r} is not a single text; MediaPipe takes no pairs."))
    if not is_unicode(text):
        raise InputError(Problem(f"text {number + 1}", f"{text!r} is no Unicode text."))
    return text


# --- vocabulary ---


def _vocabulary_tokens(raw: bytes) -> list[str]:
    r"""Return the tokens of a vocab.txt in the order of the ids that MediaPipe gives them.

    MediaPipe skips empty lines (the next token takes the id), and drops one ``\r`` at a line's end.

    Args:
        raw: Content of vocab.txt.

    Raises:
        InputError: If the content is not UTF-8.
    """
    try:
        lines = raw.decode().split("\n")
    except UnicodeDecodeError as error:
        raise InputError(Problem("vocabulary", f"not UTF-8: {error}.")) from error
    return [line.removesuffix("\r") for line in lines if line]


def read_vocabulary(folder: Path) -> bytes:
    """Return the content of a model folder's vocab.txt, which is packed into a TFLite file for MediaPipe.

    If the folder has no vocab.txt, the content is made from tokenizer.json.

    Args:
        folder: A model folder.

    Returns:
        Content of vocab.txt.

    Raises:
        InputError: If vocab.txt is too large; without it, if tokenizer.json cannot be read, has no list of tokens, or
            has tokens or ids that cannot be written as lines.
    """
    file = folder / "vocab.txt"
    if file.is_file():
        if file.stat().st_size > _MAX_BYTES:
            raise InputError(Problem(str(file), f"larger than {_MAX_BYTES} bytes, refused."))
        return file.read_bytes()
    vocabulary = (read_json(folder / "tokenizer.json").get("model") or {}).get("vocab")
    if not isinstance(vocabulary, dict):
        raise InputError(Problem(str(folder / "tokenizer.json"), "its model has no list of tokens."))
    if problem := _vocabulary_problem(vocabulary):
        raise InputError(Problem(str(folder / "tokenizer.json"), f"{problem}."))
    return "".join(f"{token}\n" for token in sorted(vocabulary, key=vocabulary.__getitem__)).encode()


def _vocabulary_problem(vocabulary: Mapping[str, int]) -> str | None:
    """Return why a vocabulary (token to id) cannot be written as lines of vocab.txt, as a phrase; None if it can."""
    if not all(isinstance(i, int) for i in vocabulary.values()) or set(vocabulary.values()) != set(
        range(len(vocabulary))
    ):
        return f"its ids are not 0 to {len(vocabulary) - 1}, so line numbers cannot replace them"
    bad = [token for token in vocabulary if not token or "\n" in token or token.endswith("\r")]
    return f"the tokens {bad[:3]} cannot be written on a line of vocab.txt" if bad else None


# --- models that MediaPipe cannot serve ---


def explain_refusal(
    tokenizer: Mapping[str, Any] | Path,
    task: TaskName,
    pair: bool,
    padding_side: str = "right",
    truncation_side: str = "right",
) -> str | None:
    """Return a sentence that explains why MediaPipe Tasks cannot run a model correctly; None if no reason is found.

    The tokenizers are compared by their settings and on sample sentences of ASCII text. A vocab.txt in the folder is
    compared with tokenizer.json too.

    Args:
        tokenizer: Content of tokenizer.json, or the folder that holds it.
        task: The model's task.
        pair: Whether the model's inputs are pairs of texts.
        padding_side: Side on which the model's inputs are padded, ``right`` or ``left``.
        truncation_side: Side of a text, ``right`` or ``left``, on which tokens beyond the longest input are cut off.

    Raises:
        InputError: If tokenizer.json or vocab.txt cannot be read.
    """
    content = read_json(tokenizer / "tokenizer.json") if isinstance(tokenizer, Path) else tokenizer
    if pair:
        return "MediaPipe takes one text, and this model takes pairs."
    if task in _TASKS:
        return f"MediaPipe cannot serve {task.value}: {_TASKS[task]}."
    if padding_side != "right":
        return f"MediaPipe pads on the right, and this model is padded on the {padding_side}."
    if truncation_side != "right":
        return f"MediaPipe cuts off the end of a long text, and this model loses its beginning (truncation_side: {truncation_side})."
    reason = _settings_refusal(content) or _vocabulary_problem(content["model"]["vocab"])
    if reason is None and isinstance(tokenizer, Path) and (tokenizer / "vocab.txt").is_file():
        listed = {t: i for i, t in enumerate(_vocabulary_tokens(read_vocabulary(tokenizer)))}
        reason = None if listed == content["model"]["vocab"] else "vocab.txt differs from tokenizer.json"
    reason = reason or _ids_refusal(content)
    return f"MediaPipe would feed this model wrong ids: {reason}." if reason else None


def _settings_refusal(content: Mapping[str, Any]) -> str | None:
    """Return a phrase for a setting of tokenizer.json in which MediaPipe's tokenizer differs; None if there is none."""
    model: Mapping[str, Any] = content.get("model") or {}
    kind, vocabulary = model.get("type"), model.get("vocab")
    if kind != "WordPiece" or not isinstance(vocabulary, Mapping):
        return f"its tokenizer is WordPiece, the model's is {kind or 'unknown'}"
    if model.get("continuing_subword_prefix") != "##":
        return f"it marks word parts with '##', the model with {model.get('continuing_subword_prefix')!r}"
    missing = [t for t in (_FIRST, _LAST, _UNKNOWN) if t not in vocabulary]
    if missing or model.get("unk_token") != _UNKNOWN:
        return f"it needs [CLS], [SEP] and [UNK] by these names; {missing or model.get('unk_token')} differ"
    if vocabulary.get("[PAD]") != 0:
        return f"it pads with id 0, the model's [PAD] has id {vocabulary.get('[PAD]', 'none')}"
    if not _lower_cases(content.get("normalizer")):
        return "it lower-cases every text, and the model tells upper from lower case"
    return None


def _ids_refusal(content: Mapping[str, Any]) -> str | None:
    """Tokenize sample sentences with MediaPipe's rules and with tokenizer.json, and compare the ids.

    Returns a phrase for the first difference, special tokens around a text included; None if there is none. Raises
    InputError if the content is no tokenizer.
    """
    try:
        model_tokenizer = Tokenizer.from_str(strip_padding_and_truncation(json.dumps(content)))
    except Exception as error:  # the library raises plain Exception
        raise InputError(Problem("tokenizer.json", f"not a tokenizer: {error}.")) from error
    empty = model_tokenizer.encode("").tokens
    if empty != [_FIRST, _LAST]:
        return f"it writes [CLS] text [SEP], the model expects {' '.join(empty) or 'no special tokens'} around a text"
    listed = sorted(content["model"]["vocab"], key=content["model"]["vocab"].get)
    mediapipe_tokenizer = MediaPipeTokenizer("".join(f"{t}\n" for t in listed).encode(), 1 << 16)
    for text, row in zip(ASCII_SENTENCES, mediapipe_tokenizer.encode(ASCII_SENTENCES), strict=True):
        if model_tokenizer.encode(text).ids != row.ids.tolist():
            return f"it cuts {text[:40]!r} otherwise than tokenizer.json"
    return None


def _lower_cases(normalizer: Mapping[str, Any] | None) -> bool:
    """Return whether a normalizer of tokenizer.json lower-cases every text."""
    if normalizer is None:
        return False
    if normalizer.get("type") == "Sequence":
        return any(_lower_cases(n) for n in normalizer.get("normalizers", []))
    return normalizer.get("type") == "Lowercase" or bool(normalizer.get("lowercase"))
