"""Text to ids by the `tokenizers` library, for training and for the phone's files alike."""

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

from pocketbert.core.disk.files import is_unicode, read_json
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import family_of
from pocketbert.core.families.config import FILE_NAME as CONFIG_FILE
from pocketbert.core.families.config import read_config
from pocketbert.core.predict.inputs import ColumnReader, Encoded, Places, Text, cut, reader_of, tail_of
from pocketbert.core.predict.sentence_settings import prompts_of, read_listed_processing
from pocketbert.core.predict.tokenizer_file import MAX_MIB, library_errors, open_tokenizer

__all__ = [
    "MASK_TOKENS",
    "USUAL_TOKENS",
    "Encoded",
    "Places",
    "Text",
    "TextTokenizer",
    "cut",
    "padding_side_of",
    "plain_tokenizer_json",
]

MASK_TOKENS = ("[MASK]", "<mask>", "<special1>")
"""What vocabularies of the family call the token to be guessed."""
USUAL_TOKENS = {f"{a}{name}{b}" for name in ("pad", "unk", "cls", "sep", "mask") for a, b in ("[]", "<>")} | {
    *("<s>", "</s>", "<eod>", "<eop>", "<|endoftext|>", "<|padding|>"),
    *(f"<special{i}>" for i in range(10)),
}
"""What special tokens of the families are called, in lower case."""
_ENCODE_AT_ONCE = 4096
_CHARACTERS_AT_ONCE = 1 << 22
"""The library needs about 200 bytes for each, and returns all texts of a call together."""
_SIDES = ("right", "left")


class TextTokenizer:
    """A tokenizer read from ``tokenizer.json``, truncating at one length; it pads when rows are stacked, not before.

    Padding and truncation baked into the file (all-MiniLM-L6-v2 pads everything to 128) are switched off.

    Args:
        path: ``tokenizer.json`` or the folder that holds it.
        max_length: Longest input in tokens, special tokens included.
        pad_id: Id to pad with; taken from the folder's config.json when not given.
        padding_side: ``right`` or ``left``. When not given, it is read from the folder: from its artifacts.json, else from
            the family that its config.json names; ``right`` for a folder that has neither.

    The folder's default prompt is put in front of every text (`with_prompt` takes another one), and a text that is too long
    is cut where the folder's settings say, at its end or at its beginning.

    Where config.json names a form with more inputs, texts get these from their columns; see `pocketbert.core.predict.inputs`.

    Raises:
        InputError: If there is no tokenizer that can be read, `max_length` is too small, the padding side is neither
            ``right`` nor ``left``, or config.json names no known family.
    """

    reader: ColumnReader | None = None
    """Makes the inputs that the folder's form has beyond those of every text; None where it has none."""

    def __init__(self, path: Path, max_length: int, pad_id: int | None = None, padding_side: str | None = None) -> None:
        file = path / "tokenizer.json" if path.is_dir() else path
        self._tokenizer = open_tokenizer(file)
        self._file = file
        self._tokenizer.no_padding()
        special = self.special_count
        if max_length <= special:
            raise InputError(
                Problem("max_length", f"{max_length} leaves no room for text next to {special} special tokens.")
            )
        self.prompts = prompts_of(file.parent)
        self.truncation_side = truncation_side_of(file.parent)
        self.max_length = max_length
        self._cut_at(max_length)
        self.pad_id = pad_id if pad_id is not None else pad_id_of(file.parent)
        self.reader = reader_of(file.parent)
        self.padding_side = padding_side if padding_side is not None else padding_side_of(file.parent)
        if self.padding_side not in _SIDES:
            allowed = " or ".join(_SIDES)
            raise InputError(
                Problem("padding_side", f"{self.padding_side!r} is not a padding side; allowed: {allowed}.")
            )

    def with_prompt(self, name: str | None) -> TextTokenizer:
        """Return this tokenizer with another prompt as the default one.

        Args:
            name: Name of the prompt; empty for no prompt, None for the folder's own default.

        Raises:
            InputError: If no prompt has the name.
        """
        if name is None:
            return self
        self.prompts.text_of(name or None)
        other = copy.copy(self)
        other.prompts = replace(self.prompts, default=name or None)
        return other

    def _cut_at(self, length: int) -> None:
        """Make the library cut texts at a length, where the folder says."""
        self._tokenizer.enable_truncation(length, direction=self.truncation_side)

    @property
    def vocabulary_size(self) -> int:
        """Number of tokens, added ones included."""
        return int(self._tokenizer.get_vocab_size())

    @property
    def largest_id(self) -> int:
        """The largest token id: a vocabulary may have gaps, so that it can be larger than the number of tokens."""
        return max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)

    @property
    def special_count(self) -> int:
        """Number of special tokens around a pair of texts."""
        return int(self._tokenizer.num_special_tokens_to_add(True))

    @property
    def mask_token(self) -> str | None:
        """The token that replaces a word to be predicted; None where the vocabulary has none."""
        return next((t for t in MASK_TOKENS if self._tokenizer.token_to_id(t) is not None), None)

    @property
    def mask_id(self) -> int | None:
        """Id of `mask_token`."""
        token = self.mask_token
        return None if token is None else self._tokenizer.token_to_id(token)

    @property
    def special_ids(self) -> list[int]:
        """Ids that mean no piece of text: the special tokens, padding and unknown among them."""
        added = self._tokenizer.get_added_tokens_decoder()
        return sorted(int(i) for i, token in added.items() if token.special)

    @property
    def added_tokens(self) -> list[str]:
        """Tokens that were added to the vocabulary, in ascending order of their ids, without the usual special ones."""
        added = self._tokenizer.get_added_tokens_decoder()
        return [t.content for _, t in sorted(added.items()) if not (t.special and t.content.lower() in USUAL_TOKENS)]

    @property
    def ids(self) -> list[int]:
        """All ids of the vocabulary, added tokens included, in ascending order."""
        return sorted(self._tokenizer.get_vocab().values())

    def frame(self, length: int, pair: bool = False) -> Encoded:
        """Build an input of `length` tokens in which the padding token is in the place of every piece of text.

        Args:
            length: Tokens with special ones, at most `max_length`.
            pair: Whether it is a pair of texts, each half of the tokens.

        Returns:
            The input, with `Places` that tell the special tokens from the others.
        """
        texts = []
        for _ in range(1 + pair):
            texts.append(self._tokenizer.encode("", add_special_tokens=False))
            texts[-1].pad(min(length, self.max_length), pad_id=self.pad_id)
        self._cut_at(min(length, self.max_length))
        made = _placed(self._tokenizer.post_process(texts[0], texts[1] if pair else None), False)
        self._cut_at(self.max_length)
        return made

    @cached_property
    def _tails(self) -> tuple[int, int]:
        """Special tokens behind a text, and behind a pair."""
        frames = (self.frame(self.special_count + 2, pair).places for pair in (False, True))
        single, pair = (tail_of(places.parts) for places in frames if places is not None)
        return single, pair

    def token(self, id: int) -> str:
        """The text of one token, as the vocabulary spells it."""
        return str(self._tokenizer.id_to_token(id))

    def decode(self, ids: Sequence[int]) -> str:
        """Text of some tokens, without special ones."""
        with library_errors(str(self._file), "cannot decode"):
            return str(self._tokenizer.decode(list(ids)))

    def windows(self, pairs: Sequence[tuple[str, str]], stride: int) -> list[list[Encoded]]:
        """Tokenize pairs whose second text may be too long: it is read in overlapping windows.

        Args:
            pairs: Question and context.
            stride: Tokens that two neighbouring windows share.

        Returns:
            The windows of each pair, with `Places`, each at most `max_length` tokens long.

        Raises:
            InputError: Where the first text leaves no room for the second.
        """
        special = self.special_count
        out: list[list[Encoded]] = []
        try:
            for pair in pairs:
                question, context = pair
                with library_errors(str(self._file), "cannot encode"):
                    taken = len(self._tokenizer.encode(question, add_special_tokens=False).ids) + special
                room = self.max_length - taken
                if room < 1:
                    raise InputError(
                        Problem(
                            "question",
                            f"{question[:60]!r} has {taken} tokens with the special ones, the model takes "
                            f"{self.max_length}: no room for the context.",
                            "Shorten it, or raise max_length.",
                        )
                    )
                self._tokenizer.enable_truncation(self.max_length, stride=min(stride, room - 1), strategy="only_second")
                with library_errors(str(self._file), "cannot encode"):
                    first = self._tokenizer.encode(question, context)
                rows = [_placed(e, False) for e in (first, *first.overflowing)]
                if (reader := self.reader) is not None:
                    text = reader.noted(pair)
                    rows = [self._extended(reader, text, row, f"text {len(out) + 1}") for row in rows]
                out.append(rows)
        finally:
            self._cut_at(self.max_length)
        return out

    def encode(self, texts: Sequence[Text], places: bool = False) -> list[Encoded]:
        """Tokenize texts or pairs, behind the default prompt where there is one.

        Args:
            texts: What to tokenize.
            places: Whether to tell where the tokens stand in the text, which takes longer.

        Returns:
            One entry per text, in order.

        Raises:
            InputError: Naming the first entry that is not text.
        """
        texts = self.prompts.put_before(texts)
        if self.reader is not None:
            return self._with_extra(self.reader, texts)
        return self._plain(texts, places)

    @property
    def keeps_end(self) -> bool:
        """Whether the beginning of a text that is too long is cut off, and not its end."""
        return self.truncation_side == "left"

    def _with_extra(self, reader: ColumnReader, texts: Sequence[Text]) -> list[Encoded]:
        noted = [reader.noted(t) if _is_text(t) else t for t in texts]
        rows = self._plain(noted, places=True)
        return [
            self._extended(reader, t, row, f"text {i}") for i, (t, row) in enumerate(zip(noted, rows, strict=True), 1)
        ]

    def _extended(self, reader: ColumnReader, text: Text, row: Encoded, where: str) -> Encoded:
        assert row.places is not None
        return replace(row, extra=reader.values(text, row.places, where))

    def noted(self, texts: Sequence[Text]) -> list[Text]:
        """Return texts with the columns that the folder's form reads: their own, or sample values made of the text."""
        return list(texts) if self.reader is None else [self.reader.noted(t) for t in texts]

    def _plain(self, texts: Sequence[Text], places: bool) -> list[Encoded]:
        out: list[Encoded] = []
        places = places or self.keeps_end  # a row that is cut again later has to know where its texts begin
        for start, chunk in _chunks(texts):
            try:
                with library_errors(str(self._file), "cannot encode"):  # such as an unknown token that is not there
                    encode = self._tokenizer.encode_batch if places else self._tokenizer.encode_batch_fast
                    encodings = encode(chunk)
            except TypeError as error:  # the library does not say which one
                bad = next((i for i, t in enumerate(chunk) if not _is_text(t)), 0)
                raise InputError(
                    Problem(
                        f"text {start + bad + 1}",
                        f"{chunk[bad]!r} is neither Unicode text nor a pair of texts.",
                    )
                ) from error
            if places:
                out.extend(_placed(e, bool(e.overflowing), self.keeps_end) for e in encodings)
                continue
            out.extend(
                Encoded(
                    np.array(e.ids, np.int64),
                    np.array(e.type_ids, np.int64),
                    bool(e.overflowing),
                    tail=self._tails[not isinstance(text, str)],
                )
                for text, e in zip(chunk, encodings, strict=True)
            )
        return out

    def golden(self, text: Text) -> dict[str, Any]:
        """Ids, segments and code-point offsets of one text as it is, to check a tokenizer written in another language."""
        with library_errors(str(self._file), "cannot encode"):
            encoding = self._tokenizer.encode(*text) if isinstance(text, tuple) else self._tokenizer.encode(text)
        row: dict[str, Any] = {"text": text if isinstance(text, str) else list(text)}
        return {
            **row,
            "ids": encoding.ids,
            "type_ids": encoding.type_ids,
            "offsets": [list(o) for o in encoding.offsets],
            **self._golden_extra(text),
        }

    def _golden_extra(self, text: Text) -> dict[str, Any]:
        """What a client has to make of the text's columns."""
        if self.reader is None:
            return {}
        [row] = self.encode([text])
        return {"inputs": {name: values.tolist() for name, values in row.extra.items()}}

    def span(self, tokens: int, width: int) -> slice:
        """Where the tokens of a row are in a batch that is padded to `width`."""
        return slice(0, tokens) if self.padding_side == "right" else slice(width - tokens, width)

    def pad(self, rows: Sequence[Encoded], length: int | None = None) -> dict[str, NDArray[np.int64]]:
        """Stack rows into a batch, padded on the tokenizer's `padding_side`.

        Args:
            rows: B tokenized inputs.
            length: Runtime length; default the longest row.

        Returns:
            ``input_ids``, ``attention_mask`` and ``token_type_ids``, each [B, L] int64, and the inputs of the folder's form.
        """
        width = max(len(r) for r in rows) if length is None else length
        ids = np.full((len(rows), width), self.pad_id, np.int64)
        mask = np.zeros((len(rows), width), np.int64)
        types = np.zeros((len(rows), width), np.int64)
        for i, row in enumerate(rows):
            own = self.span(len(row), width)
            ids[i, own], mask[i, own], types[i, own] = row.ids, 1, row.type_ids
        return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types, **self._padded(rows, width)}

    def _padded(self, rows: Sequence[Encoded], width: int) -> dict[str, NDArray[Any]]:
        """The inputs that are made of columns, stacked; rows without any get values that depend on their ids."""
        if (reader := self.reader) is None:
            return {}
        out = {i.name: np.full(i.shape(len(rows), width), i.padding, i.dtype) for i in reader.form.extra}
        for number, row in enumerate(rows):
            for name, values in (row.extra or reader.drawn(row.ids)).items():
                out[name][number, self.span(len(row), width)] = values
        return out


def _placed(encoding: Encoding, truncated: bool, keeps_end: bool = False) -> Encoded:
    words = np.array([-1 if w is None else w for w in encoding.word_ids], np.int64)
    parts = np.array([-1 if p is None else p for p in encoding.sequence_ids], np.int64)
    offsets = np.array(encoding.offsets, np.int64).reshape(-1, 2)
    return Encoded(
        np.array(encoding.ids, np.int64),
        np.array(encoding.type_ids, np.int64),
        truncated,
        Places(offsets, words, parts),
        keeps_end=keeps_end,
    )


def _chunks(texts: Sequence[Text]) -> Iterator[tuple[int, list[Text]]]:
    """Texts to be tokenized together, with the place of the first: few where they are long."""
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


def pad_id_of(folder: Path) -> int:
    """Tell which token pads the inputs of a folder's model."""
    config = folder / CONFIG_FILE
    if not config.is_file():
        return 0
    content = read_config(config)
    stated = content.get("pad_token_id")
    # configurations of before 2020 call it so
    return int(content.get("pad_index", 0) if stated is None else stated)


def padding_side_of(folder: Path) -> str:
    """Tell where a folder's model is padded. An artefact folder's own list comes first: it needs no row in the family table."""
    config = folder / CONFIG_FILE
    if (processing := read_listed_processing(folder)) is not None:
        return str(processing.get("padding_side", _SIDES[0]))
    model_type = read_config(config).get("model_type") if config.is_file() else None
    return _SIDES[0] if model_type is None else family_of(str(model_type), str(config)).padding_side


def truncation_side_of(folder: Path) -> str:
    """Tell at which end a text that is too long is cut, by the folder's own list, else by the settings of its tokenizer.

    Raises:
        InputError: If it is neither ``right`` nor ``left``.
    """
    where, stated = folder / "artifacts.json", read_listed_processing(folder)
    if stated is None:
        where = folder / "tokenizer_config.json"
        content = read_json(where, MAX_MIB) if where.is_file() else {}
        stated = content if isinstance(content, dict) else {}
    side = stated.get("truncation_side", _SIDES[0])
    if side not in _SIDES:
        raise InputError(Problem(str(where), f"truncation_side is {side!r:.40}; allowed: {' or '.join(_SIDES)}."))
    return str(side)


def plain_tokenizer_json(raw: str) -> str:
    """`tokenizer.json` with neither padding nor truncation baked in."""
    content = json.loads(raw)
    content["padding"] = content["truncation"] = None
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"))
