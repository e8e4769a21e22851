"""Which pieces of a vocabulary stay: those that training rows have, and those that any word can be spelt with."""

from __future__ import annotations

import copy
import json
import re
import shutil
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from pocketbert.core.disk.files import read_json, write_atomic, write_json
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import Family
from pocketbert.core.models.checkpoints import complete
from pocketbert.core.predict.tokenization import Encoded, Text, TextTokenizer
from pocketbert.core.predict.tokenizer_file import MAX_MIB
from pocketbert.core.seeds import generator
from pocketbert.distill.training.data import TEACHER, TrainSet

# --- kind ---
# What the pruning of a vocabulary asks of each kind of tokenizer.


class Kind(Protocol):
    """One kind of tokenizer, as the ``model`` section of tokenizer.json has it.

    Attributes:
        name: Value of ``type`` in that section.
    """

    name: str

    def pieces(self, model: Mapping[str, Any]) -> dict[str, int]:
        """Return the pieces with their ids.

        Args:
            model: The section.
        """
        ...

    def letters(self, model: Mapping[str, Any], seen: Collection[str]) -> set[str]:
        """Return the pieces that always stay, so that a word that is not kept can still be spelt.

        Args:
            model: The section.
            seen: Pieces that training rows have.
        """
        ...

    def closed(self, model: Mapping[str, Any], kept: Collection[str]) -> set[str]:
        """Return the pieces that stay, together with all pieces that they are made from.

        Args:
            model: The section.
            kept: Pieces that are to stay.
        """
        ...

    def rewritten(self, model: Mapping[str, Any], ids: Mapping[str, int]) -> dict[str, Any]:
        """Return the section with the kept pieces only.

        Args:
            model: The section.
            ids: New id of each piece that stays.
        """
        ...


# --- word_piece ---
# Pruning WordPiece: a word that cannot be spelt to its end becomes one unknown token, so both forms of a character stay.


_MANY = ("CJK", "HANGUL")
"""Scripts with thousands of characters: of them only those that training rows have stay."""


class WordPiece:
    """See `pocketbert.distill.vocabulary.Kind`.

    The algorithm takes the longest piece at each place (Wu et al. 2016, section 4.1). Where all pieces of a row stay, each of
    them is still the longest one at its place: the row is read as before.
    """

    name = "WordPiece"

    def pieces(self, model: Mapping[str, Any]) -> dict[str, int]:
        """Return the pieces with their ids."""
        return dict(model["vocab"])

    def letters(self, model: Mapping[str, Any], seen: Collection[str]) -> set[str]:
        """Return both forms of each character of Latin, of punctuation, and of the scripts that training rows have.

        A piece with such a character that has no piece by itself stays as well: it could not be spelt without.
        """
        vocabulary, prefix = model["vocab"], _prefix(model)
        used = {c for piece in seen for c in _text(piece, prefix)}
        scripts = {_script(c) for c in used}
        covered = {
            c
            for c in {c for piece in vocabulary for c in _text(piece, prefix)}
            if c in used or _is_plain(c) or (_script(c) in scripts and _script(c) not in _MANY)
        }
        out = {form for c in covered for form in (c, prefix + c) if form in vocabulary}
        for piece in vocabulary:
            lacking = {form[-1] for form in _forms(piece, prefix) if form not in vocabulary}
            if lacking & covered:
                out.add(piece)
        return out

    def closed(self, model: Mapping[str, Any], kept: Collection[str]) -> set[str]:
        """Return the same pieces: none is made from others."""
        return set(kept)

    def rewritten(self, model: Mapping[str, Any], ids: Mapping[str, int]) -> dict[str, Any]:
        """Return the section with the kept pieces only."""
        return {**model, "vocab": {piece: ids[piece] for piece in model["vocab"] if piece in ids}}


def _prefix(model: Mapping[str, Any]) -> str:
    return str(model.get("continuing_subword_prefix", "##"))


def _text(piece: str, prefix: str) -> str:
    """The characters that a piece stands for."""
    return piece[len(prefix) :] if len(piece) > len(prefix) and piece.startswith(prefix) else piece


def _forms(piece: str, prefix: str) -> Iterable[str]:
    """The pieces of one character that spell a piece, [UNK] and the like included, which nobody spells."""
    text = _text(piece, prefix)
    yield text[:1] if text == piece else prefix + text[:1]
    for character in text[1:]:
        yield prefix + character


def _script(character: str) -> str:
    return unicodedata.name(character, "").partition(" ")[0].partition("-")[0]


def _is_plain(character: str) -> bool:
    return character.isascii() or _script(character) == "LATIN" or unicodedata.category(character)[0] == "P"


# --- bpe ---
# Pruning byte-pair encoding: a piece stays together with the pieces that it is merged from.


class BytePairs:
    """See `pocketbert.distill.vocabulary.Kind`.

    The algorithm applies the first merge of its list that fits, again and again (Sennrich et al. 2016). A kept piece stays
    with both parts of every merge that makes it, recursively: all merges that lead to the pieces of a row are there, in their
    old order, and the row is read as before.
    """

    name = "BPE"

    def pieces(self, model: Mapping[str, Any]) -> dict[str, int]:
        """Return the pieces with their ids."""
        return dict(model["vocab"])

    def letters(self, model: Mapping[str, Any], seen: Collection[str]) -> set[str]:
        """Return the pieces that no merge makes: the 256 letters of bytes, or the alphabet."""
        return set(model["vocab"]) - {result for _, result in _merges(model)}

    def closed(self, model: Mapping[str, Any], kept: Collection[str]) -> set[str]:
        """Return the pieces and, recursively, both parts of every merge that makes one of them."""
        made_from: dict[str, list[str]] = {}
        for parts, result in _merges(model):
            made_from.setdefault(result, []).extend(parts)
        out, waiting = set(kept), list(kept)
        while waiting:
            new = set(made_from.get(waiting.pop(), ())) - out
            out |= new
            waiting += new
        return out

    def rewritten(self, model: Mapping[str, Any], ids: Mapping[str, int]) -> dict[str, Any]:
        """Return the section with the kept pieces only, and with the merges that make them."""
        merges = [
            merge
            for merge, (parts, result) in zip(model["merges"], _merges(model), strict=True)
            if result in ids and all(part in ids for part in parts)
        ]
        return {**model, "vocab": {p: ids[p] for p in model["vocab"] if p in ids}, "merges": merges}


def _merges(model: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str], str]]:
    """Both parts of each merge, and the piece that it makes."""
    prefix = model.get("continuing_subword_prefix") or ""
    for merge in model["merges"]:
        first, second = merge.split(" ", 1) if isinstance(merge, str) else merge
        yield (first, second), first + second.removeprefix(prefix)


# --- unigram ---
# Pruning a unigram model: pieces keep their scores, and every character stays.


_BYTE = re.compile(r"<0x[0-9A-F]{2}>")


class Unigram:
    """See `pocketbert.distill.vocabulary.Kind`.

    The algorithm takes the pieces with the largest sum of scores (Kudo 2018). Where all pieces of a row stay with their
    scores, no other way to read it is left that is better: the row is read as before.
    """

    name = "Unigram"

    def pieces(self, model: Mapping[str, Any]) -> dict[str, int]:
        """Return the pieces with their ids, which are their places."""
        return {piece: i for i, (piece, _) in enumerate(model["vocab"])}

    def letters(self, model: Mapping[str, Any], seen: Collection[str]) -> set[str]:
        """Return all pieces of one character or byte, the unknown token, and the piece whose score sets the unknown's."""
        vocabulary = model["vocab"]
        out = {piece for piece, _ in vocabulary if len(piece) == 1 or _BYTE.fullmatch(piece)}
        out.add(min(vocabulary, key=lambda entry: entry[1])[0])
        if model.get("unk_id") is not None:
            out.add(vocabulary[model["unk_id"]][0])
        return out

    def closed(self, model: Mapping[str, Any], kept: Collection[str]) -> set[str]:
        """Return the same pieces: none is made from others."""
        return set(kept)

    def rewritten(self, model: Mapping[str, Any], ids: Mapping[str, int]) -> dict[str, Any]:
        """Return the section with the kept pieces only, their scores, and the new id of the unknown token."""
        out = {**model, "vocab": [[piece, score] for piece, score in model["vocab"] if piece in ids]}
        if model.get("unk_id") is not None:
            out["unk_id"] = ids[model["vocab"][model["unk_id"]][0]]
        return out


# --- kinds ---
# The kinds of tokenizers whose vocabulary can be pruned.


_KINDS: tuple[Kind, ...] = (WordPiece(), BytePairs(), Unigram())


def kind_of(content: Mapping[str, Any], where: str = "student.vocabulary") -> Kind:
    """Find the kind of a tokenizer.

    Args:
        content: The content of tokenizer.json.
        where: What to blame.

    Raises:
        InputError: If tokenizers of its kind cannot be pruned.
    """
    name = content["model"].get("type")
    for kind in _KINDS:
        if kind.name == name:
            return kind
    known = ", ".join(kind.name for kind in _KINDS)
    what = f"the model of tokenizer.json is of type {name!r:.40}; pieces can be removed from: {known}."
    raise InputError(Problem(where, what, "Leave student.vocabulary out."))


def read_tokenizer(folder: Path) -> dict[str, Any]:
    """Read tokenizer.json of a folder that `pocketbert.core.predict.tokenizer_file.open_tokenizer` opens."""
    content: dict[str, Any] = read_json(folder / "tokenizer.json", MAX_MIB)
    return content


_INDICES = ("pad_index", "unk_index", "bos_index", "eos_index", "mask_index")
"""Entries of XLM's config.json that hold an id, next to those that end with ``_token_id``."""

_UNUSED = re.compile(r"\[unused\d+\]")
"""Pieces that the authors of a vocabulary left free, near its beginning."""


@dataclass(frozen=True)
class Kept:
    """The pieces that stay, in their old order.

    Attributes:
        ids: Their ids before, ascending; a piece's new id is its place here.
        before: Number of pieces before.
    """

    ids: tuple[int, ...]
    before: int

    @cached_property
    def new(self) -> dict[int, int]:
        """New id of each old id that stays."""
        return {old: new for new, old in enumerate(self.ids)}

    def old(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return new ids as they were before.

        Args:
            ids: New ids, any shape.
        """
        return np.asarray(self.ids, np.int64)[ids]


def choose(
    content: Mapping[str, Any],
    config: Mapping[str, Any],
    counts: Mapping[int, int],
    at_least: int = 1,
    top: int = 0,
) -> Kept:
    """Choose the pieces that stay.

    These are: the pieces that are counted often enough, the special tokens, the first `top` pieces of the vocabulary that are
    no letters, and what a text needs so that all its words can still be spelt; see
    `pocketbert.distill.vocabulary.Kind.letters` and `closed`.

    Args:
        content: The content of tokenizer.json.
        config: Entries of config.json: the tokens that they name stay.
        counts: How often each id occurs in the training rows.
        at_least: Occurrences from which a piece stays.
        top: Pieces that stay in any case, in the order of the vocabulary.

    Raises:
        InputError: If tokenizers of its kind cannot be pruned, or nothing would be removed.
    """
    kind = kind_of(content)
    ids = token_ids(content)
    pieces = sorted(ids, key=ids.__getitem__)
    named = set(config_ids(config).values())
    last = max((i for key, i in config_ids(config).items() if key in ("pad_token_id", "pad_index")), default=-1)
    # some position tables begin behind the id of the padding token, which therefore may not change
    special = {p for p in pieces if ids[p] <= last or ids[p] in named} | set(added_ids(content))
    special |= {piece for piece, _ in framed(content)} | ({str(content["model"].get("unk_token"))} & set(ids))
    seen = {p for p in pieces if counts.get(ids[p], 0) >= at_least}
    letters = kind.letters(content["model"], {p for p in pieces if counts.get(ids[p], 0)} - special)
    general = [p for p in pieces if p not in letters and p not in special and not _UNUSED.fullmatch(p)][:top]
    kept = kind.closed(content["model"], special | seen | letters | set(general)) & set(ids)
    if len(kept) == len(pieces):
        what = f"all {len(pieces):,} pieces would stay: training rows have {len(seen):,} of them, top is {top:,}."
        raise InputError(Problem("student.vocabulary", what, "Lower top, raise at_least, or leave vocabulary out."))
    return Kept(tuple(sorted(ids[p] for p in kept)), len(pieces))


def token_ids(content: Mapping[str, Any]) -> dict[str, int]:
    """Return the id of each token of a tokenizer, added ones included.

    Args:
        content: The content of tokenizer.json.
    """
    return {**kind_of(content).pieces(content["model"]), **added_ids(content)}


def added_ids(content: Mapping[str, Any]) -> dict[str, int]:
    """Return the id of each token that was added to the vocabulary, special ones among them."""
    return {token["content"]: token["id"] for token in content.get("added_tokens") or ()}


def config_ids(config: Mapping[str, Any]) -> dict[str, int]:
    """Return the entries of config.json that are the id of a token.

    Args:
        config: The content of config.json.
    """
    keys = [key for key in config if key.endswith("_token_id") or key in _INDICES]
    return {key: config[key] for key in keys if type(config[key]) is int}


def frames(content: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield each processor that puts special tokens around a text, those inside a sequence included."""
    waiting = [content.get("post_processor")]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            waiting += part.get("processors") or []
            yield part


def framed(content: Mapping[str, Any]) -> Iterable[tuple[str, int]]:
    """Yield the special tokens that are put around a text, with their ids."""
    for part in frames(content):
        for token in (part.get("special_tokens") or {}).values():
            yield from zip(token["tokens"], token["ids"], strict=True)
        for key in ("sep", "cls"):
            if isinstance(pair := part.get(key), Sequence) and not isinstance(pair, str):
                yield pair[0], pair[1]


# --- tokenizer ---
# The files of a tokenizer without the pieces that do not stay.


_SETTINGS, _DECODER = "tokenizer_config.json", "added_tokens_decoder"
_COPIED = ("special_tokens_map.json",)


def pruned_content(content: Mapping[str, Any], kept: Kept) -> dict[str, Any]:
    """Remove pieces from a tokenizer, with new ids at every place that holds one.

    Args:
        content: The content of tokenizer.json.
        kept: The pieces that stay.

    Returns:
        The same tokenizer with fewer pieces, without padding and truncation.

    Raises:
        RuntimeError: If the library reads other ids from the result: the table would not belong to it.
    """
    out = copy.deepcopy(dict(content))
    ids = {piece: kept.new[i] for piece, i in token_ids(content).items() if i in kept.new}
    out["model"] = kind_of(content).rewritten(out["model"], ids)
    out["padding"] = out["truncation"] = None
    for token in out.get("added_tokens") or ():
        token["id"] = kept.new[token["id"]]
    for part in frames(out):
        for token in (part.get("special_tokens") or {}).values():
            token["ids"] = [kept.new[i] for i in token["ids"]]
        for key in ("sep", "cls"):
            if isinstance(pair := part.get(key), list):
                part[key] = [pair[0], kept.new[pair[1]]]
    if Tokenizer.from_str(json.dumps(out)).get_vocab(with_added_tokens=True) != ids:
        raise RuntimeError("the pruned tokenizer has other ids than its table")
    return out


def pruned_config(config: Mapping[str, Any], kept: Kept, size: str = "vocab_size") -> dict[str, Any]:
    """Return the entries of config.json with the new size of the vocabulary and the new ids of tokens.

    Args:
        config: The content of config.json.
        kept: The pieces that stay.
        size: Name of the entry with the number of pieces.
    """
    ids = {key: kept.new.get(i) for key, i in config_ids(config).items()}
    return {**config, **ids, size: len(kept.ids)}


def write_pruned(source: Path, config: Mapping[str, Any], kept: Kept, destination: Path) -> None:
    """Write a tokenizer without the pieces that do not stay.

    Files that only repeat tokenizer.json in the authors' own format (spiece.model) are left out; vocab.txt, vocab.json and
    merges.txt are written anew.

    Args:
        source: Folder with tokenizer.json and, perhaps, other files of the tokenizer.
        config: Content of the config.json that the folder gets.
        kept: The pieces that stay.
        destination: An existing folder.
    """
    content = pruned_content(read_tokenizer(source), kept)
    write_atomic(destination / "tokenizer.json", json.dumps(content, ensure_ascii=False, separators=(",", ":")))
    write_json(destination / "config.json", dict(config))
    for name in _COPIED:
        if (source / name).is_file():
            shutil.copyfile(source / name, destination / name)
    if (source / _SETTINGS).is_file():
        settings = read_json(source / _SETTINGS)
        if _DECODER in settings:
            entries = settings[_DECODER].items()
            settings[_DECODER] = {str(kept.new[int(i)]): token for i, token in entries if int(i) in kept.new}
        write_json(destination / _SETTINGS, settings)
    model, added = content["model"], added_ids(content)
    if (source / "vocab.json").is_file():
        write_json(destination / "vocab.json", {**model["vocab"], **added})
    if (source / "merges.txt").is_file():
        lines = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
        write_atomic(destination / "merges.txt", "\n".join(["#version: 0.2", *lines]) + "\n")


# --- table ---
# A model whose table of word embeddings has only the rows of the pieces that stay.


def pruned_table(model: Any, family: Family, kept: Kept) -> Any:
    """Copy a model, leaving its table of word embeddings the rows of the pieces that stay.

    On texts that are read as before, the copy answers the same numbers.

    Args:
        model: A transformers model whose outputs are not over the vocabulary; it is not changed.
        family: Its row of the family table.
        kept: The pieces that stay.

    Returns:
        A model of the same class, with weights of its own; in evaluation mode.

    Raises:
        ValueError: If another matrix shares the table, as that of a head that guesses words does.
    """
    table = model.get_input_embeddings().weight
    state = model.state_dict(keep_vars=True)
    names = [name for name, value in state.items() if value is table]
    if len(names) != 1:
        raise ValueError(f"{', '.join(names) or 'nothing'} in {type(model).__name__} is the table of word embeddings")
    config = copy.deepcopy(model.config)
    entries = config.to_dict()
    size = family.config_names.get("vocab_size", "vocab_size")
    for key, value in pruned_config(entries, kept, size).items():
        if entries.get(key) != value:
            setattr(config, key, value)
    config._attn_implementation = "sdpa" if model._supports_sdpa else "eager"
    weights = {name: value.detach() for name, value in state.items()}
    weights[names[0]] = weights[names[0]][torch.tensor(kept.ids, device=table.device)]
    with torch.random.fork_rng(devices=[]):
        smaller = type(model)(config)
    smaller.load_state_dict(weights)
    return complete(smaller, family).eval()


# --- coverage ---
# How well a pruned vocabulary covers rows that took no part in choosing it.


@dataclass(frozen=True)
class Coverage:
    """How rows are read with the pieces that stay; special tokens do not count.

    The share of unknown tokens is not among the figures: every word can still be spelt, so that it stays 0 while the accuracy
    falls.

    Attributes:
        rows: Number of rows.
        changed: Share of the rows that are split into other pieces than before.
        unseen: Share of the rows' pieces, before, that do not stay.
        growth: How much longer the rows are, as a fraction.
    """

    rows: int
    changed: float
    unseen: float
    growth: float

    @property
    def sentence(self) -> str:
        """The figures, for the log of a run."""
        return (
            f"of {self.rows:,} held-out rows {self.changed:.1%} are split into other pieces; {self.unseen:.1%} of their pieces do "
            f"not stay; they are {self.growth:.1%} longer"
        )


def count_pieces(rows: Sequence[Encoded]) -> Counter[int]:
    """Count how often each id occurs.

    Args:
        rows: Tokenized texts.
    """
    if not rows:
        return Counter()
    counts = np.bincount(np.concatenate([row.ids for row in rows]))
    return Counter({int(i): int(counts[i]) for i in np.flatnonzero(counts)})


def coverage(before: Sequence[Encoded], after: Sequence[Encoded], kept: Kept, special: Collection[int]) -> Coverage:
    """Compare how rows were read with how they are read.

    Args:
        before: The rows by the whole tokenizer.
        after: The same rows by the pruned tokenizer.
        kept: The pieces that stay.
        special: Old ids that mean no piece of text.

    Raises:
        ValueError: If there is no row.
    """
    if not before:
        raise ValueError("the coverage of a vocabulary is measured on at least one row")
    marks, stay = np.asarray(sorted(special), np.int64), np.asarray(kept.ids, np.int64)
    changed = unseen = pieces = longer = 0
    for old, new in zip(before, after, strict=True):
        own = old.ids[~np.isin(old.ids, marks)]
        now = kept.old(new.ids)
        now = now[~np.isin(now, marks)]
        changed += not np.array_equal(own, now)
        unseen += int((~np.isin(own, stay)).sum())
        pieces += len(own)
        longer += len(now) - len(own)
    return Coverage(len(before), changed / len(before), unseen / max(1, pieces), longer / max(1, pieces))


# --- resplit ---
# Training rows that the student reads in smaller pieces than its teacher, now and then.


@dataclass(frozen=True)
class Reader:
    """A pruned tokenizer, whose ids are given as they were before.

    Attributes:
        tokenizer: The tokenizer.
        kept: The pieces that it has.
    """

    tokenizer: TextTokenizer
    kept: Kept

    def read(self, text: Text) -> Encoded:
        """Tokenize a text into ids of the whole vocabulary.

        Args:
            text: One text, or a pair.
        """
        [row] = self.tokenizer.encode([text])
        return replace(row, ids=self.kept.old(row.ids))


@dataclass(frozen=True)
class ResplitSet:
    """Training rows of which some are split anew at every step, by a smaller vocabulary; satisfies `TrainData`.

    Words that no training row has will fall into smaller pieces when the student is used. Rows whose rarer words are split
    teach it to read these. Teacher and student read the same text in different pieces, so that only signals of the whole
    text can be learnt.

    Attributes:
        rows: The rows as the teacher reads them.
        texts: The text of each row.
        own: How the student reads a row; None where it reads all rows as the teacher does.
        smaller: Smaller vocabularies, of which one splits each row that is split.
        share: Share of the rows of each step that are split.
        seed: Seed of the run.
        purpose: What is trained; keys the random choices.
    """

    rows: TrainSet
    texts: Sequence[Text]
    own: Reader | None
    smaller: Sequence[Reader]
    share: float
    seed: int
    purpose: str

    @property
    def lengths(self) -> list[int]:
        """Tokens of each row, as the teacher reads it."""
        return self.rows.lengths

    def batch(self, rows: Sequence[int], step: int) -> dict[str, Tensor]:
        """Tensors of some rows, see `TrainSet.batch`: the inputs are the student's, the teacher's are under `TEACHER`.

        Args:
            rows: Row numbers.
            step: The optimiser step; what is split depends only on (seed, purpose, step, row).
        """
        out = self.rows.batch(rows, step)
        padded = self.rows.tokenizer.pad([self._row(row, step) for row in rows])
        for name, value in padded.items():
            out[TEACHER + name] = out[name]
            out[name] = torch.from_numpy(value)
        return out

    def _row(self, row: int, step: int) -> Encoded:
        random = generator(self.seed, f"resplit/{self.purpose}", step, row)
        if self.smaller and random.random() < self.share:
            return self.smaller[int(random.integers(len(self.smaller)))].read(self.texts[row])
        return self.rows.rows.encoded[row] if self.own is None else self.own.read(self.texts[row])


def sample(count: int, number: int, seed: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Draw the rows whose pieces make up a smaller vocabulary: a quarter, an eighth, a sixteenth or a 32nd of all.

    The words that the other rows have fall apart, as new words will.

    Args:
        count: Training rows.
        number: Number of the smaller vocabulary.
        seed: Seed of the run.

    Returns:
        Row numbers.
    """
    size = max(1, count >> (2 + number % 4))
    return generator(seed, "smaller-vocabulary", number).permutation(count)[:size].astype(np.int64)
