"""Tokenization with the `tokenizers` library, the same for training, for the exported files and for their checks.

`TextTokenizer` reads tokenizer.json and the settings of its folder, and encodes texts (`encode`), long contexts in
windows (`windows`), and padded batches (`pad`). `read_pad_id`, `read_padding_side` and `read_truncation_side` read single
settings of a folder.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding
from tokenizers.pre_tokenizers import Punctuation

from pocketbert.core.disk.files import is_unicode, read_json
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import family_of
from pocketbert.core.families.config import CONFIG_FILE, read_config
from pocketbert.core.predict.inputs import (
    ColumnReader,
    Encoded,
    Places,
    Text,
    count_final_special_tokens,
    open_column_reader,
    split_pair,
)
from pocketbert.core.predict.sentence_settings import read_listed_processing, read_prompts
from pocketbert.core.predict.tokenizer_file import MAX_TOKENIZER_MIB, library_errors, open_tokenizer

MASK_TOKENS = ("[MASK]", "<mask>", "<special1>")
"""Names of the mask token in the vocabularies of the families."""
USUAL_SPECIAL_TOKENS = {f"{a}{name}{b}" for name in ("pad", "unk", "cls", "sep", "mask") for a, b in ("[]", "<>")} | {
    *("<s>", "</s>", "<eod>", "<eop>", "<|endoftext|>", "<|padding|>"),
    *(f"<special{i}>" for i in range(10)),
}
"""Names of special tokens of the families, in lower case."""
_ENCODE_AT_ONCE = 4096
_CHARACTERS_AT_ONCE = 1 << 22
"""The library needs about 200 bytes for each character, and returns all texts of a call together."""
_SIDES = ("right", "left")
_PUNCTUATION = Punctuation()
"""Splits a text before and behind each punctuation mark, as BERT's tokenizer does."""


class TextTokenizer:
    """Tokenizer of a model folder, read from ``tokenizer.json``; cuts texts at one length and pads only batches.

    Padding and truncation that tokenizer.json itself sets are switched off (that of all-MiniLM-L6-v2 pads everything to
    128).

    The folder's default prompt is put in front of every text; `with_prompt` sets another one. A text that is too long
    is cut at its end, or at its beginning if the folder's settings say so.

    If config.json names an export form with additional inputs, these are made from the texts' data columns; see
    `pocketbert.core.predict.inputs`.

    Args:
        path: ``tokenizer.json`` or the folder that holds it.
        max_length: Longest input in tokens, special tokens included.
        pad_id: Id to pad with; by default from the folder's config.json, 0 if it has none.
        padding_side: ``right`` or ``left``. By default it is read from the folder's artifacts.json, else taken from the
            family that config.json names; ``right`` without both.
        checked: Whether the checks of tokenizer.json are skipped, because this file passed them on this machine before.

    Raises:
        InputError: If there is no tokenizer that can be read, `max_length` is too small, the padding side is neither
            ``right`` nor ``left``, or a file of the folder has an unknown family or invalid prompts, sides or inputs.
    """

    reader: ColumnReader | None = None
    """Makes the inputs that the folder's form has in addition to the usual ones; None if it has none."""
    splits_punctuation: bool
    """Whether the words of `Places` begin at punctuation and behind it, too, because the tokenizer itself splits at blanks alone."""

    def __init__(
        self,
        path: Path,
        max_length: int,
        pad_id: int | None = None,
        padding_side: str | None = None,
        checked: bool = False,
    ) -> None:
        self._file = path / "tokenizer.json" if path.is_dir() else path
        folder = self._file.parent
        self._tokenizer = open_tokenizer(self._file, checked)
        self._tokenizer.no_padding()
        special = self.special_count
        if max_length <= special:
            what = f"{max_length} leaves no room for text next to {special} special tokens."
            raise InputError(Problem("max_length", what))
        self.prompts = read_prompts(folder)
        self.truncation_side = read_truncation_side(folder)
        self.max_length = max_length
        self._truncate_at(max_length)
        self.pad_id = pad_id if pad_id is not None else read_pad_id(folder)
        self.reader = open_column_reader(folder)
        self.splits_punctuation = self._read_splits_punctuation(folder)
        self.padding_side = padding_side if padding_side is not None else read_padding_side(folder)
        if self.padding_side not in _SIDES:
            what = f"{self.padding_side!r} is not a padding side; allowed: {' or '.join(_SIDES)}."
            raise InputError(Problem("padding_side", what))

    def with_prompt(self, name: str | None) -> TextTokenizer:
        """Return a copy of this tokenizer with another default prompt; for None this tokenizer itself.

        Args:
            name: Name of the prompt; empty for no prompt, None to keep the default.

        Raises:
            InputError: If no prompt has the name.
        """
        if name is None:
            return self
        self.prompts.text_of(name or None)
        other = copy.copy(self)
        other.prompts = replace(self.prompts, default=name or None)
        return other

    # --- the vocabulary ---

    @property
    def vocabulary_size(self) -> int:
        """Number of tokens, added ones included."""
        return int(self._tokenizer.get_vocab_size())

    @property
    def largest_id(self) -> int:
        """The largest token id, which may exceed the number of tokens since a vocabulary can have gaps."""
        return max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)

    @property
    def ids(self) -> list[int]:
        """All ids of the vocabulary, added tokens included, in ascending order."""
        return sorted(self._tokenizer.get_vocab().values())

    @property
    def special_count(self) -> int:
        """Number of special tokens that are added to a pair of texts, such as 3 in BERT."""
        return int(self._tokenizer.num_special_tokens_to_add(True))

    @property
    def special_ids(self) -> list[int]:
        """Ids of the special tokens, such as padding and unknown."""
        added = self._tokenizer.get_added_tokens_decoder()
        return sorted(int(i) for i, token in added.items() if token.special)

    @property
    def added_tokens(self) -> list[str]:
        """Tokens that were added to the vocabulary, by ascending id, without usual special ones such as ``[CLS]``."""
        added = self._tokenizer.get_added_tokens_decoder()
        return [
            t.content for _, t in sorted(added.items()) if not (t.special and t.content.lower() in USUAL_SPECIAL_TOKENS)
        ]

    @property
    def mask_token(self) -> str | None:
        """The mask token, such as ``[MASK]``; None if the vocabulary has none."""
        return next((t for t in MASK_TOKENS if self._tokenizer.token_to_id(t) is not None), None)

    @property
    def mask_id(self) -> int | None:
        """Id of the mask token; None if the vocabulary has none."""
        token = self.mask_token
        return None if token is None else self._tokenizer.token_to_id(token)

    @property
    def keeps_end(self) -> bool:
        """Whether a text that is too long loses its beginning instead of its end."""
        return self.truncation_side == "left"

    def token(self, id: int) -> str:
        """Return the token of an id, as the vocabulary spells it."""
        return str(self._tokenizer.id_to_token(id))

    def decode(self, ids: Sequence[int]) -> str:
        """Decode token ids to text, without special tokens."""
        with library_errors(str(self._file), "cannot decode"):
            return str(self._tokenizer.decode(list(ids)))

    # --- encoding ---

    def encode(self, texts: Sequence[Text], places: bool = False) -> list[Encoded]:
        """Tokenize texts or pairs, with the default prompt put in front if the folder has one.

        If the model reads data columns (`ColumnReader`), texts without columns get sample values.

        Args:
            texts: Texts or pairs of texts.
            places: Whether to return the tokens' character offsets in the text (`Places`), which takes longer.

        Returns:
            One row per text, in order.

        Raises:
            InputError: Naming the first entry that is not text, or the first with an invalid data column.
        """
        texts = self.prompts.put_before(texts)
        if (reader := self.reader) is None:
            return self._encode(texts, places)
        texts = [reader.with_sample_columns(text) if _is_text(text) else text for text in texts]
        rows = zip(texts, self._encode(texts, places=True), strict=True)
        return [_add_columns(reader, text, row, f"text {i}") for i, (text, row) in enumerate(rows, 1)]

    def _encode(self, texts: Sequence[Text], places: bool) -> list[Encoded]:
        """Tokenize texts or pairs as they are: no prompt is put in front, and no inputs are read from data columns.

        Args:
            texts: Texts or pairs of texts; they are tokenized in chunks.
            places: Whether to return each token's character offsets in the text. They are always returned if the
                tokenizer cuts the beginning of texts that are too long.

        Returns:
            One row per text, in order.

        Raises:
            InputError: Naming the first entry that is no text.
        """
        rows: list[Encoded] = []
        places = places or self.keeps_end  # to cut such a row again later, the beginnings of its texts must be known
        for start, chunk in _chunks(texts):
            try:
                with library_errors(str(self._file), "cannot encode"):  # such as an unknown token that does not exist
                    encode = self._tokenizer.encode_batch if places else self._tokenizer.encode_batch_fast
                    encodings = encode(chunk)
            except TypeError as error:  # the library does not name the text
                bad = next((i for i, text in enumerate(chunk) if not _is_text(text)), 0)
                what = f"{chunk[bad]!r} is neither Unicode text nor a pair of texts."
                raise InputError(Problem(f"text {start + bad + 1}", what)) from error
            if places:
                rows.extend(
                    self._to_encoded(e, split_pair(text), bool(e.overflowing), self.keeps_end)
                    for text, e in zip(chunk, encodings, strict=True)
                )
                continue
            rows.extend(
                Encoded(
                    np.array(e.ids, np.int64),
                    np.array(e.type_ids, np.int64),
                    bool(e.overflowing),
                    tail=self._final_special_tokens[not isinstance(text, str)],
                )
                for text, e in zip(chunk, encodings, strict=True)
            )
        return rows

    def windows(self, pairs: Sequence[tuple[str, str]], stride: int) -> list[list[Encoded]]:
        """Tokenize pairs of question and context; a long context is split into overlapping windows.

        Each window contains the question. No prompt is put in front.

        Args:
            pairs: Pairs of a question and a context.
            stride: Number of context tokens that two neighbouring windows have in common; fewer if a long question
                leaves room for no more than `stride` context tokens.

        Returns:
            The windows of each pair, each at most `max_length` tokens long, with the tokens' character offsets
                (`Places`).

        Raises:
            InputError: If a question leaves no room for its context.
        """
        windows_by_pair: list[list[Encoded]] = []
        try:
            for pair in pairs:
                question, context = pair
                with library_errors(str(self._file), "cannot encode"):
                    used = len(self._tokenizer.encode(question, add_special_tokens=False).ids) + self.special_count
                room = self.max_length - used
                if room < 1:
                    what = (
                        f"{question[:60]!r} has {used} tokens with the special ones, the model takes "
                        f"{self.max_length}: no room for the context."
                    )
                    raise InputError(Problem("question", what, "Shorten it, or raise max_length."))
                self._tokenizer.enable_truncation(self.max_length, stride=min(stride, room - 1), strategy="only_second")
                with library_errors(str(self._file), "cannot encode"):
                    first = self._tokenizer.encode(question, context)
                windows = [self._to_encoded(e, (question, context), False) for e in (first, *first.overflowing)]
                if (reader := self.reader) is not None:
                    text, where = reader.with_sample_columns(pair), f"text {len(windows_by_pair) + 1}"
                    windows = [_add_columns(reader, text, window, where) for window in windows]
                windows_by_pair.append(windows)
        finally:
            self._truncate_at(self.max_length)
        return windows_by_pair

    def noted(self, texts: Sequence[Text]) -> list[Text]:
        """Return the texts with the data columns that the model needs: those they have, or sample values."""
        return list(texts) if self.reader is None else [self.reader.with_sample_columns(text) for text in texts]

    def golden(self, text: Text) -> dict[str, Any]:
        """Return token ids, segment ids and character offsets of one text, to check other tokenizer implementations.

        No prompt is put in front. For a model that reads data columns ``inputs`` has the values of its additional inputs.
        """
        with library_errors(str(self._file), "cannot encode"):
            encoding = self._tokenizer.encode(*text) if isinstance(text, tuple) else self._tokenizer.encode(text)
        row: dict[str, Any] = {
            "text": text if isinstance(text, str) else list(text),
            "ids": encoding.ids,
            "type_ids": encoding.type_ids,
            "offsets": [list(o) for o in encoding.offsets],
        }
        if self.reader is not None:
            [encoded] = self.with_prompt("").encode([text])
            row["inputs"] = {name: values.tolist() for name, values in encoded.extra.items()}
        return row

    def frame(self, length: int, pair: bool = False) -> Encoded:
        """Build an input of `length` tokens that has the special tokens in their places and padding tokens instead of text.

        Args:
            length: Number of tokens, special ones counted, at most `max_length`.
            pair: Whether to build the input of a pair of texts, with half of the tokens for each.

        Returns:
            The input, with `Places` whose `parts` are -1 for special tokens.
        """
        texts = []
        for _ in range(1 + pair):
            texts.append(self._tokenizer.encode("", add_special_tokens=False))
            texts[-1].pad(min(length, self.max_length), pad_id=self.pad_id)
        self._truncate_at(min(length, self.max_length))
        frame = self._to_encoded(self._tokenizer.post_process(texts[0], texts[1] if pair else None), ("", ""), False)
        self._truncate_at(self.max_length)
        return frame

    @cached_property
    def _final_special_tokens(self) -> tuple[int, int]:
        """Number of special tokens after a single text, and number after the second text of a pair."""
        frames = (self.frame(self.special_count + 2, pair).places for pair in (False, True))
        single, pair = (count_final_special_tokens(places.parts) for places in frames if places is not None)
        return single, pair

    def _to_encoded(
        self, encoding: Encoding, texts: Sequence[Text], truncated: bool, keeps_end: bool = False
    ) -> Encoded:
        """Convert an `Encoding` of the tokenizers library to an `Encoded`, with each token's offsets, word and text.

        The blank before a word, which some tokenizers count to the word's first token, is left out of that token's place.

        Args:
            encoding: The tokens of the text or texts.
            texts: The one text, or both.
            truncated: Whether the text was cut.
            keeps_end: Whether the row, if it is cut again, loses its beginning.
        """
        words = [-1 if w is None else w for w in encoding.word_ids]
        offsets = [list(place) for place in encoding.offsets]
        for place, part in zip(offsets, encoding.sequence_ids, strict=True):
            while part is not None and place[0] < place[1] and texts[part][place[0]].isspace():
                place[0] += 1
        if self.splits_punctuation and len(texts) == 1:  # of pairs nobody reads words, and a context has many windows
            words = _split_words(words, offsets, encoding, texts[0])
        parts = np.array([-1 if p is None else p for p in encoding.sequence_ids], np.int64)
        return Encoded(
            np.array(encoding.ids, np.int64),
            np.array(encoding.type_ids, np.int64),
            truncated,
            Places(np.array(offsets, np.int64).reshape(-1, 2), np.array(words, np.int64), parts),
            keeps_end=keeps_end,
        )

    def _read_splits_punctuation(self, folder: Path) -> bool:
        """Return what artifacts.json says; in other folders, whether the pre-tokenizer leaves punctuation beside a word."""
        if (processing := read_listed_processing(folder)) is not None:
            return processing.get("splits_punctuation") is True
        splitter = self._tokenizer.pre_tokenizer
        return (
            splitter is not None and len(splitter.pre_tokenize_str("word)")) == 1
        )  # XLM keeps "a." as an abbreviation

    def _truncate_at(self, length: int) -> None:
        self._tokenizer.enable_truncation(length, direction=self.truncation_side)

    # --- batches ---

    def pad(self, rows: Sequence[Encoded], length: int | None = None) -> dict[str, NDArray[np.int64]]:
        """Stack tokenized rows into a batch of arrays, padded on the tokenizer's `padding_side`.

        If the model takes additional inputs (see `ColumnReader`), rows without them get sample values.

        Args:
            rows: B tokenized inputs.
            length: Length L to pad to; by default that of the longest row.

        Returns:
            ``input_ids``, ``attention_mask`` and ``token_type_ids``, each [B, L] int64, and the additional inputs of
            the model's export form.
        """
        width = max(len(r) for r in rows) if length is None else length
        ids = np.full((len(rows), width), self.pad_id, np.int64)
        mask = np.zeros((len(rows), width), np.int64)
        types = np.zeros((len(rows), width), np.int64)
        for i, row in enumerate(rows):
            own = self.span(len(row), width)
            ids[i, own], mask[i, own], types[i, own] = row.ids, 1, row.type_ids
        batch: dict[str, NDArray[Any]] = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
        if (reader := self.reader) is not None:
            for extra in reader.form.extra:
                batch[extra.name] = np.full(extra.shape(len(rows), width), extra.padding, extra.dtype)
            for i, row in enumerate(rows):
                for name, values in (row.extra or reader.sample_inputs(row.ids)).items():
                    batch[name][i, self.span(len(row), width)] = values
        return batch

    def span(self, tokens: int, width: int) -> slice:
        """Return the slice of positions that hold a row of `tokens` tokens in a batch padded to `width`."""
        return slice(0, tokens) if self.padding_side == "right" else slice(width - tokens, width)


def _add_columns(reader: ColumnReader, text: Text, row: Encoded, where: str) -> Encoded:
    """Return a tokenized row with the additional inputs that are made from its text's data columns."""
    assert row.places is not None
    return replace(row, extra=reader.make_inputs(text, row.places, where))


def _split_words(words: Sequence[int], offsets: Sequence[Sequence[int]], encoding: Encoding, text: Text) -> list[int]:
    """Return new word numbers of a text: a word also begins at a token that begins with a punctuation mark or comes right after one.

    Args:
        words: The word of each token as the tokenizer splits the text, -1 for none.
        offsets: The (start, end) characters of each token, without the blank before a word.
        encoding: The tokens.
        text: The text.
    """
    starts = {start for _, (start, _) in _PUNCTUATION.pre_tokenize_str(str(text))}
    numbers, count, last, last_end = list[int](), 0, -1, 0
    for word, (start, end), part in zip(words, offsets, encoding.sequence_ids, strict=True):
        if part is not None and (word != last or (last_end <= start < end and start in starts)):
            count += 1
        numbers.append(-1 if word < 0 else count - 1)
        last, last_end = word, end
    return numbers


def _chunks(texts: Sequence[Text]) -> Iterator[tuple[int, list[Text]]]:
    """Yield chunks of texts to tokenize together, as (index of the first text, texts); fewer texts if they are long."""
    start = characters = 0
    for i, text in enumerate(texts):
        parts = text if isinstance(text, tuple | list) else (text,)
        size = sum(len(part) for part in parts if isinstance(part, str))
        if i > start and (i - start >= _ENCODE_AT_ONCE or characters + size > _CHARACTERS_AT_ONCE):
            yield start, list(texts[start:i])
            start, characters = i, 0
        characters += size
    if start < len(texts):
        yield start, list(texts[start:])


def _is_text(value: object) -> bool:
    parts = value if isinstance(value, tuple | list) and len(value) == 2 else (value,)
    return all(isinstance(p, str) and is_unicode(p) for p in parts)


# --- settings of a folder ---


def read_pad_id(folder: Path) -> int:
    """Read the id of the padding token from a folder's config.json; 0 if it has none."""
    config = folder / CONFIG_FILE
    if not config.is_file():
        return 0
    content = read_config(config)
    pad_id = content.get("pad_token_id")
    # configurations of before 2020 name it pad_index
    return int(content.get("pad_index", 0) if pad_id is None else pad_id)


def read_padding_side(folder: Path) -> str:
    """Read the side on which inputs of a folder's model are padded: ``right`` or ``left``.

    The artifacts.json of an artefact folder comes first, so that the folder's family need not be known; else the family
    in config.json decides. The side is ``right`` if there is neither file.

    Raises:
        InputError: If config.json names an unknown family.
    """
    if (processing := read_listed_processing(folder)) is not None:
        return str(processing.get("padding_side", _SIDES[0]))
    config = folder / CONFIG_FILE
    model_type = read_config(config).get("model_type") if config.is_file() else None
    return _SIDES[0] if model_type is None else family_of(str(model_type), str(config)).padding_side


def read_truncation_side(folder: Path) -> str:
    """Read the side on which long texts are cut, ``right`` or ``left``.

    It is read from artifacts.json, else from tokenizer_config.json; ``right`` if the file has no such setting.

    Raises:
        InputError: If the file names neither ``right`` nor ``left``.
    """
    file, settings = folder / "artifacts.json", read_listed_processing(folder)
    if settings is None:
        file = folder / "tokenizer_config.json"
        content = read_json(file, MAX_TOKENIZER_MIB) if file.is_file() else {}
        settings = content if isinstance(content, dict) else {}
    side = settings.get("truncation_side", _SIDES[0])
    if side not in _SIDES:
        raise InputError(Problem(str(file), f"truncation_side is {side!r:.40}; allowed: {' or '.join(_SIDES)}."))
    return str(side)


def strip_padding_and_truncation(raw: str) -> str:
    """Remove the padding and truncation settings from the content of tokenizer.json, and return the new content."""
    content = json.loads(raw)
    content["padding"] = content["truncation"] = None
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"))
