"""Vocabulary pruning: keep the word pieces that a student's domain uses, and drop the other rows of its embedding table.

Most of a small student's weights are its word embeddings (11.7 of 17.4 million in three layers of MiniLM), and a domain uses a
fraction of them. In the order in which a run calls them:

1. `count_pieces` counts the pieces in the training rows,
2. `select_pieces` chooses the pieces to keep, so that every word can still be tokenized,
3. `write_pruned_tokenizer` writes the tokenizer with new ids, `prune_embeddings` the model that belongs to it,
4. `measure_coverage` compares both tokenizers on held-out rows,
5. `ResplitRows` trains the student on words in smaller pieces, as unseen words will arrive.

WordPiece, BPE and Unigram tokenizers are supported. Texts whose pieces are all kept are tokenized as before.
"""

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
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer

from pocketbert.core.disk.files import read_json, write_atomic, write_json
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import Family
from pocketbert.core.heads.head import TEACHER_PREFIX
from pocketbert.core.models.checkpoints import finish_loading
from pocketbert.core.predict.inputs import Encoded, Text
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.predict.tokenizer_file import MAX_TOKENIZER_MIB
from pocketbert.core.seeds import generator
from pocketbert.distill.training.data import TrainSet


@dataclass(frozen=True)
class PieceSelection:
    """The word pieces that a pruned vocabulary keeps. A piece's new id is its position in `kept_ids`.

    Attributes:
        kept_ids: Ids in the original vocabulary, ascending.
        original_size: Number of pieces in the original vocabulary.
    """

    kept_ids: tuple[int, ...]
    original_size: int

    @cached_property
    def new_ids(self) -> dict[int, int]:
        """New id of each kept piece, by its original id."""
        return {original: new for new, original in enumerate(self.kept_ids)}

    def to_original(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Translate an array of ids of the pruned vocabulary to ids of the original vocabulary."""
        return np.asarray(self.kept_ids, np.int64)[ids]


def read_tokenizer_json(folder: Path) -> dict[str, Any]:
    """Read a folder's tokenizer.json, and check that pieces can be removed from its kind of tokenizer.

    Raises:
        InputError: If its algorithm is not WordPiece, BPE or Unigram.
    """
    content: dict[str, Any] = read_json(folder / "tokenizer.json", MAX_TOKENIZER_MIB)
    _algorithm(content)
    return content


def count_pieces(rows: Sequence[Encoded]) -> Counter[int]:
    """Return how often each token id occurs in tokenized rows, for ids that occur."""
    counts = np.bincount(np.concatenate([row.ids for row in rows])) if rows else np.zeros(0, int)
    return Counter({int(i): int(counts[i]) for i in np.flatnonzero(counts)})


# --- choosing ---

_UNUSED_PIECE = re.compile(r"\[unused\d+\]")


def select_pieces(
    tokenizer_json: Mapping[str, Any],
    config: Mapping[str, Any],
    counts: Mapping[int, int],
    min_count: int = 1,
    keep_first: int = 0,
) -> PieceSelection:
    """Choose the pieces that a pruned vocabulary keeps: frequent and special ones, and those that spell other words.

    Args:
        tokenizer_json: Content of tokenizer.json.
        config: Content of config.json; the tokens that it names are kept.
        counts: Occurrences of each token id in the training rows.
        min_count: Pieces that occur at least this often are kept.
        keep_first: Number of ordinary pieces (no special, unused or one-character ones) from the beginning of the
            vocabulary that are kept as well. Many vocabularies begin with the most frequent pieces of pre-training.

    Raises:
        InputError: If the tokenizer's algorithm is not supported, or no piece would be removed.
    """
    algorithm, model = _algorithm(tokenizer_json), tokenizer_json["model"]
    id_of = _token_ids(tokenizer_json)
    in_order = sorted(id_of, key=id_of.__getitem__)
    special = _special_tokens(tokenizer_json, config, id_of)
    seen = {piece for piece in in_order if counts.get(id_of[piece], 0)}
    frequent = {piece for piece in in_order if counts.get(id_of[piece], 0) >= min_count}
    alphabet = algorithm.alphabet(model, seen - special)
    ordinary = [p for p in in_order if p not in alphabet and p not in special and not _UNUSED_PIECE.fullmatch(p)]
    chosen = special | frequent | alphabet | set(ordinary[:keep_first])
    kept = algorithm.with_parts(model, chosen) & id_of.keys()
    if len(kept) == len(id_of):
        reason = f"all {len(id_of):,} pieces would stay: training rows have {len(frequent):,} of them, top is {keep_first:,}."
        raise InputError(Problem("student.vocabulary", reason, "Lower top, raise at_least, or leave vocabulary out."))
    return PieceSelection(tuple(sorted(id_of[piece] for piece in kept)), len(id_of))


def _special_tokens(tokenizer_json: Mapping[str, Any], config: Mapping[str, Any], id_of: Mapping[str, int]) -> set[str]:
    """Return the tokens that pruning must keep: special and added ones, [UNK], and those named in config.json.

    Tokens whose ids are not above the padding token's are kept too: some position tables start counting after that id,
    so that it must not change.
    """
    named = _config_token_ids(config)
    padding = max((i for key in ("pad_token_id", "pad_index") for i in named.get(key, ())), default=-1)
    all_named = {i for ids in named.values() for i in ids}
    special = {token for token, i in id_of.items() if i <= padding or i in all_named}
    special |= _added_tokens(tokenizer_json).keys()
    special |= {token for token, _ in _post_processor_tokens(tokenizer_json)}
    return special | ({str(tokenizer_json["model"].get("unk_token"))} & id_of.keys())


# --- the three tokenization algorithms ---


class _Algorithm:
    """How a tokenizer algorithm stores its pieces, and which pieces it needs to build others.

    The methods read the ``model`` section of tokenizer.json.
    """

    def piece_ids(self, model: Mapping[str, Any]) -> dict[str, int]:
        """Return the id of each piece, by its spelling."""
        return dict(model["vocab"])

    def alphabet(self, model: Mapping[str, Any], seen: Collection[str]) -> set[str]:
        """Return the pieces without which some word could not be tokenized. `seen` are the pieces of training rows."""
        raise NotImplementedError

    def with_parts(self, model: Mapping[str, Any], pieces: Collection[str]) -> set[str]:
        """Return `pieces` and all pieces that the algorithm needs to build them, such as both parts of a merge."""
        return set(pieces)

    def rebuild(self, model: Mapping[str, Any], new_ids: Mapping[str, int]) -> dict[str, Any]:
        """Return the ``model`` section of tokenizer.json with only the pieces of `new_ids`, under these ids."""
        return {**model, "vocab": {piece: new_ids[piece] for piece in model["vocab"] if piece in new_ids}}


class _WordPiece(_Algorithm):
    """Pruning of WordPiece, which takes the longest matching piece first (Wu et al. 2016, section 4.1).

    A word with a character that has no piece becomes [UNK].
    """

    LARGE_SCRIPTS = ("CJK", "HANGUL")

    def alphabet(self, model: Mapping[str, Any], seen: Collection[str]) -> set[str]:
        """Return the pieces that must stay in a WordPiece vocabulary to spell all words of the kept characters.

        The kept characters are those of ASCII, Latin, punctuation and the scripts of `seen`, the pieces in the training
        rows. Of scripts with thousands of characters (Chinese, Korean) only the characters in `seen` are kept. The
        one-character pieces of these characters stay, and all pieces with one of them that has no such piece.
        """
        vocabulary, prefix = model["vocab"], str(model.get("continuing_subword_prefix", "##"))

        def characters(piece: str) -> str:
            return piece[len(prefix) :] if len(piece) > len(prefix) and piece.startswith(prefix) else piece

        def spelling(piece: str) -> list[str]:
            text = characters(piece)
            return [text[:1] if text == piece else prefix + text[:1], *(prefix + c for c in text[1:])]

        seen_characters = {c for piece in seen for c in characters(piece)}
        scripts = {_script(c) for c in seen_characters} - set(self.LARGE_SCRIPTS)
        covered = {
            c
            for c in {c for piece in vocabulary for c in characters(piece)}
            if c in seen_characters or _is_latin_or_punctuation(c) or _script(c) in scripts
        }
        single = {form for c in covered for form in (c, prefix + c) if form in vocabulary}
        unspellable = {p for p in vocabulary if any(s[-1:] in covered and s not in vocabulary for s in spelling(p))}
        return single | unspellable


class _Bpe(_Algorithm):
    """Pruning of byte-pair encoding, which repeatedly applies a list's first fitting merge (Sennrich et al. 2016)."""

    def alphabet(self, model: Mapping[str, Any], seen: Collection[str]) -> set[str]:
        """Return the pieces that no merge produces, such as the 256 bytes or the single characters."""
        return set(model["vocab"]) - {merged for _, merged in self._merges(model)}

    def with_parts(self, model: Mapping[str, Any], pieces: Collection[str]) -> set[str]:
        """Return the pieces and, recursively, the two parts of every merge that produces one of them."""
        parts_of: dict[str, list[str]] = {}
        for parts, merged in self._merges(model):
            parts_of.setdefault(merged, []).extend(parts)
        result, pending = set(pieces), list(pieces)
        while pending:
            new = set(parts_of.get(pending.pop(), ())) - result
            result |= new
            pending += new
        return result

    def rebuild(self, model: Mapping[str, Any], new_ids: Mapping[str, int]) -> dict[str, Any]:
        """Return the ``model`` section with the kept pieces, and those merges of the list whose pieces are all kept."""
        merges = zip(model["merges"], self._merges(model), strict=True)
        kept = [merge for merge, (parts, merged) in merges if new_ids.keys() >= {merged, *parts}]
        return {**super().rebuild(model, new_ids), "merges": kept}

    @staticmethod
    def _merges(model: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str], str]]:
        """Yield each merge as its two parts, a tuple, and the piece that they are joined to."""
        prefix = model.get("continuing_subword_prefix") or ""
        for merge in model["merges"]:
            first, second = merge.split(" ", 1) if isinstance(merge, str) else merge
            yield (first, second), first + second.removeprefix(prefix)


class _Unigram(_Algorithm):
    """Pruning of Unigram, which takes the tokenization with the highest sum of piece scores (Kudo 2018).

    Ids are positions in the list of pieces.
    """

    BYTE_PIECE = re.compile(r"<0x[0-9A-F]{2}>")

    def piece_ids(self, model: Mapping[str, Any]) -> dict[str, int]:
        """Return the position of each piece in the list of pieces, which is its id."""
        return {piece: i for i, (piece, _) in enumerate(model["vocab"])}

    def alphabet(self, model: Mapping[str, Any], seen: Collection[str]) -> set[str]:
        """Return the pieces that a pruned Unigram vocabulary keeps so that every word can still be split.

        They are all one-character and byte pieces, [UNK], and the piece with the lowest score, because the score of
        [UNK] is computed from the lowest one.
        """
        vocabulary = model["vocab"]
        result = {piece for piece, _ in vocabulary if len(piece) == 1 or self.BYTE_PIECE.fullmatch(piece)}
        result.add(min(vocabulary, key=lambda entry: entry[1])[0])
        if model.get("unk_id") is not None:
            result.add(vocabulary[model["unk_id"]][0])
        return result

    def rebuild(self, model: Mapping[str, Any], new_ids: Mapping[str, int]) -> dict[str, Any]:
        """Return the ``model`` section with the kept pieces, their scores, and the new id of [UNK]."""
        result = {**model, "vocab": [[piece, score] for piece, score in model["vocab"] if piece in new_ids]}
        if model.get("unk_id") is not None:
            result["unk_id"] = new_ids[model["vocab"][model["unk_id"]][0]]
        return result


_ALGORITHMS: dict[str, _Algorithm] = {"WordPiece": _WordPiece(), "BPE": _Bpe(), "Unigram": _Unigram()}


def _algorithm(tokenizer_json: Mapping[str, Any]) -> _Algorithm:
    """Return the pruning rules of a tokenizer's algorithm: WordPiece, BPE or Unigram.

    Raises:
        InputError: If the algorithm is not WordPiece, BPE or Unigram.
    """
    name = tokenizer_json["model"].get("type")
    if name not in _ALGORITHMS:
        supported = ", ".join(_ALGORITHMS)
        reason = f"the model of tokenizer.json is of type {name!r:.40}; pieces can be removed from: {supported}."
        raise InputError(Problem("student.vocabulary", reason, "Leave student.vocabulary out."))
    return _ALGORITHMS[name]


def _script(character: str) -> str:
    """Return a character's script, the first word of its Unicode name: LATIN, CYRILLIC, CJK, ..."""
    return unicodedata.name(character, "").partition(" ")[0].partition("-")[0]


def _is_latin_or_punctuation(character: str) -> bool:
    """Return whether a character is ASCII, a Latin letter, or punctuation."""
    return character.isascii() or _script(character) == "LATIN" or unicodedata.category(character).startswith("P")


# --- writing the tokenizer and the model ---


def write_pruned_tokenizer(
    source: Path, config: Mapping[str, Any], selection: PieceSelection, destination: Path
) -> None:
    """Write a copy of a folder's tokenizer files that has only the selected pieces, under their new ids.

    tokenizer.json and config.json are always written, vocab.json, merges.txt, special_tokens_map.json and
    tokenizer_config.json if the source folder has them. Files that only repeat tokenizer.json in another format
    (vocab.txt, spiece.model) are not written.

    Args:
        source: Folder with tokenizer.json.
        config: Content of the config.json to write; see `prune_config`.
        selection: The pieces to keep.
        destination: An existing folder.
    """
    tokenizer_json = _prune_tokenizer_json(read_tokenizer_json(source), selection)
    write_atomic(destination / "tokenizer.json", json.dumps(tokenizer_json, ensure_ascii=False, separators=(",", ":")))
    write_json(destination / "config.json", dict(config))
    if (source / "special_tokens_map.json").is_file():
        shutil.copyfile(source / "special_tokens_map.json", destination / "special_tokens_map.json")
    if (source / "tokenizer_config.json").is_file():
        settings = read_json(source / "tokenizer_config.json")
        if "added_tokens_decoder" in settings:
            tokens = settings["added_tokens_decoder"].items()
            new_ids = selection.new_ids
            settings["added_tokens_decoder"] = {str(new_ids[int(i)]): t for i, t in tokens if int(i) in new_ids}
        write_json(destination / "tokenizer_config.json", settings)
    model = tokenizer_json["model"]
    if (source / "vocab.json").is_file():
        write_json(destination / "vocab.json", {**model["vocab"], **_added_tokens(tokenizer_json)})
    if (source / "merges.txt").is_file():
        merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
        write_atomic(destination / "merges.txt", "\n".join(["#version: 0.2", *merges]) + "\n")


def _prune_tokenizer_json(tokenizer_json: Mapping[str, Any], selection: PieceSelection) -> dict[str, Any]:
    """Return a copy of tokenizer.json that has only the kept pieces, and neither pads nor truncates.

    Raises:
        RuntimeError: If the tokenizers library assigns other ids than the embedding table will have.
    """
    pruned = copy.deepcopy(dict(tokenizer_json))
    new_ids = selection.new_ids
    piece_ids = {piece: new_ids[i] for piece, i in _token_ids(tokenizer_json).items() if i in new_ids}
    pruned["model"] = _algorithm(tokenizer_json).rebuild(pruned["model"], piece_ids)
    pruned["padding"] = pruned["truncation"] = None
    for token in pruned.get("added_tokens") or ():
        token["id"] = new_ids[token["id"]]
    for processor in _post_processors(pruned):
        for token in (processor.get("special_tokens") or {}).values():
            token["ids"] = [new_ids[i] for i in token["ids"]]
        for key in ("sep", "cls"):
            if isinstance(pair := processor.get(key), list):
                processor[key] = [pair[0], new_ids[pair[1]]]
    if Tokenizer.from_str(json.dumps(pruned)).get_vocab(with_added_tokens=True) != piece_ids:
        raise RuntimeError("the pruned tokenizer has other ids than its table")
    return pruned


def prune_config(config: Mapping[str, Any], selection: PieceSelection, size_key: str = "vocab_size") -> dict[str, Any]:
    """Return a copy of config.json with the new size as `size_key` and the new token ids (None for removed tokens)."""
    new = {key: [selection.new_ids.get(i) for i in ids] for key, ids in _config_token_ids(config).items()}
    ids = {key: found if isinstance(config[key], list) else found[0] for key, found in new.items()}
    return {**config, **ids, size_key: len(selection.kept_ids)}


def prune_embeddings(model: Any, family: Family, selection: PieceSelection) -> Any:
    """Return a copy of a model whose word-embedding table has only the rows of the kept pieces.

    Args:
        model: A transformers model without a head over the vocabulary. It is not changed.
        family: Names, layer paths and inputs of the model's family.
        selection: The pieces to keep.

    Returns:
        A model of the same class in evaluation mode, which shares no memory with `model`.

    Raises:
        ValueError: If the table is tied to another weight, such as that of a fill-mask head.
    """
    table = model.get_input_embeddings().weight
    state = model.state_dict(keep_vars=True)
    table_names = [name for name, value in state.items() if value is table]
    if len(table_names) != 1:
        raise ValueError(
            f"{', '.join(table_names) or 'nothing'} in {type(model).__name__} is the table of word embeddings"
        )
    weights = {name: value.detach() for name, value in state.items()}
    weights[table_names[0]] = weights[table_names[0]][torch.tensor(selection.kept_ids, device=table.device)]

    config = copy.deepcopy(model.config)
    original = config.to_dict()
    for key, value in prune_config(original, selection, family.config_names.get("vocab_size", "vocab_size")).items():
        if original.get(key) != value:
            setattr(config, key, value)
    config._attn_implementation = "sdpa" if model._supports_sdpa else "eager"
    with torch.random.fork_rng(devices=[]):
        pruned = type(model)(config)
    pruned.load_state_dict(weights)
    return finish_loading(pruned, family).eval()


def _token_ids(tokenizer_json: Mapping[str, Any]) -> dict[str, int]:
    """Return the id of each token of a tokenizer, added tokens included."""
    return {**_algorithm(tokenizer_json).piece_ids(tokenizer_json["model"]), **_added_tokens(tokenizer_json)}


def _added_tokens(tokenizer_json: Mapping[str, Any]) -> dict[str, int]:
    """Return the id of each token of the ``added_tokens`` section, special tokens among them."""
    return {token["content"]: token["id"] for token in tokenizer_json.get("added_tokens") or ()}


def _config_token_ids(config: Mapping[str, Any]) -> dict[str, list[int]]:
    """Return the entries of config.json whose value is a token id, such as ``pad_token_id`` (XLM: ``pad_index``), or a list of ids."""
    xlm_keys = ("pad_index", "unk_index", "bos_index", "eos_index", "mask_index")
    keys = [key for key in config if key.endswith("_token_id") or key in xlm_keys]
    listed = {key: config[key] if isinstance(config[key], list) else [config[key]] for key in keys}
    return {key: ids for key, ids in listed.items() if all(type(i) is int for i in ids)}


def _post_processors(tokenizer_json: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the post-processor sections of tokenizer.json, those nested in a sequence included."""
    pending = [tokenizer_json.get("post_processor")]
    while pending:
        processor = pending.pop()
        if isinstance(processor, dict):
            pending += processor.get("processors") or []
            yield processor


def _post_processor_tokens(tokenizer_json: Mapping[str, Any]) -> Iterable[tuple[str, int]]:
    """Yield each special token that the post-processors insert, with its id."""
    for processor in _post_processors(tokenizer_json):
        for token in (processor.get("special_tokens") or {}).values():
            yield from zip(token["tokens"], token["ids"], strict=True)
        for key in ("sep", "cls"):
            if isinstance(pair := processor.get(key), Sequence) and not isinstance(pair, str):
                yield pair[0], pair[1]


# --- held-out rows ---


@dataclass(frozen=True)
class Coverage:
    """How many pieces and tokens of held-out rows change when they are split by the pruned tokenizer.

    Special tokens are not counted. The share of unknown tokens would be no measure: nearly every word can still be
    tokenized, so it stays near 0 while accuracy falls.

    Attributes:
        rows: Number of rows.
        changed: Fraction of rows that are split into other pieces.
        unseen: Fraction of the rows' original pieces that are not kept.
        growth: Increase of the number of tokens, as a fraction.
    """

    rows: int
    changed: float
    unseen: float
    growth: float

    @property
    def sentence(self) -> str:
        """Sentence with the numbers of this object, for the log of a run."""
        return (
            f"of {self.rows:,} held-out rows {self.changed:.1%} are split into other pieces; {self.unseen:.1%} of their pieces do "
            f"not stay; they are {self.growth:.1%} longer"
        )


def measure_coverage(
    original: Sequence[Encoded], pruned: Sequence[Encoded], selection: PieceSelection, special_ids: Collection[int]
) -> Coverage:
    """Compare how the original and the pruned tokenizer split the same rows, and return the fractions that differ.

    Args:
        original: Rows tokenized by the original tokenizer.
        pruned: The same rows tokenized by the pruned tokenizer.
        selection: The pieces that the pruned tokenizer keeps.
        special_ids: Original ids of special tokens, which are not counted.

    Raises:
        ValueError: If there are no rows.
    """
    if not original:
        raise ValueError("the coverage of a vocabulary is measured on at least one row")
    changed = unseen = tokens_before = tokens_after = 0
    for row_before, row_after in zip(original, pruned, strict=True):
        before, after = row_before.ids, selection.to_original(row_after.ids)
        before, after = (ids[~np.isin(ids, [*special_ids])] for ids in (before, after))
        changed += not np.array_equal(before, after)
        unseen += int((~np.isin(before, selection.kept_ids)).sum())
        tokens_before += len(before)
        tokens_after += len(after)
    pieces = max(1, tokens_before)
    return Coverage(len(original), changed / len(original), unseen / pieces, (tokens_after - tokens_before) / pieces)


# --- training on smaller pieces ---


@dataclass(frozen=True)
class PrunedTokenizer:
    """A pruned tokenizer that returns ids of the original vocabulary, which the student has during training."""

    tokenizer: TextTokenizer
    selection: PieceSelection

    def encode(self, text: Text) -> Encoded:
        """Tokenize a text or a pair of texts, and return it with ids of the original vocabulary."""
        [row] = self.tokenizer.encode([text])
        return replace(row, ids=self.selection.to_original(row.ids))


@dataclass(frozen=True)
class ResplitRows:
    """Training rows, of which a random share is split into smaller word pieces at each step; implements `TrainData`.

    Words outside the training rows will reach the student in smaller pieces than it was trained on. Splitting the rarer
    training words in the same way trains the student to read them. Teacher and student then see different tokens of the
    same text, so that only signals of the whole text can be distilled.

    Attributes:
        rows: The rows as the teacher's tokenizer splits them.
        texts: The text of each row.
        student_tokenizer: The student's tokenizer; None if it splits every training row as the teacher's does.
        smaller_tokenizers: Tokenizers of still smaller vocabularies; see `sample_rows`.
        share: Fraction of the rows of a step that are split by one of `smaller_tokenizers`.
        seed: Seed of the run.
        purpose: Name of the stage; random choices depend on it.
    """

    rows: TrainSet
    texts: Sequence[Text]
    student_tokenizer: PrunedTokenizer | None
    smaller_tokenizers: Sequence[PrunedTokenizer]
    share: float
    seed: int
    purpose: str

    @property
    def lengths(self) -> list[int]:
        """Number of tokens of each row by the teacher's tokenizer."""
        return self.rows.lengths

    def batch(self, rows: Sequence[int], step: int) -> dict[str, torch.Tensor]:
        """Return a batch for teacher and student, in which a random share of the student's rows is split more finely.

        Args:
            rows: Row numbers.
            step: Number of the optimizer step; with seed, purpose and row number it decides how a row is split.

        Returns:
            The targets, the student's inputs, and the teacher's inputs with `TEACHER_PREFIX` before their names.
        """
        tensors = self.rows.batch(rows, step)
        student_inputs = self.rows.tokenizer.pad([self._encode_row(row, step) for row in rows])
        for name, value in student_inputs.items():
            tensors[TEACHER_PREFIX + name] = tensors[name]
            tensors[name] = torch.from_numpy(value)
        return tensors

    def _encode_row(self, row: int, step: int) -> Encoded:
        """Tokenize a row for the student: at random with one of the smaller vocabularies, else with the student's own tokenizer.

        If the student has no tokenizer of its own, it gets the teacher's tokens in the second case. Seed, purpose, step and row
        decide which vocabulary is drawn.
        """
        random = generator(self.seed, f"resplit/{self.purpose}", step, row)
        if self.smaller_tokenizers and random.random() < self.share:
            chosen = int(random.integers(len(self.smaller_tokenizers)))
            return self.smaller_tokenizers[chosen].encode(self.texts[row])
        if self.student_tokenizer is not None:
            return self.student_tokenizer.encode(self.texts[row])
        return self.rows.rows.encoded[row]


def sample_rows(row_count: int, index: int, seed: int) -> NDArray[np.int64]:
    """Draw the random training rows whose pieces form one of the smaller vocabularies, and return their numbers.

    Words that are only in the other rows are split by that vocabulary as unseen words will be.

    Args:
        row_count: Number of training rows.
        index: Number of the smaller vocabulary, from 0. It decides the share of the rows that are drawn: 1/4, 1/8, 1/16
            or 1/32, in turn.
        seed: Seed of the run.
    """
    size = max(1, row_count >> (2 + index % 4))
    return generator(seed, "smaller-vocabulary", index).permutation(row_count)[:size].astype(np.int64)
