"""One tiny tokenizer for each kind, in Hugging Face layout, and the words that they know."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.families import TokenizerKind
from support.tiny_sentencepiece import write_sentencepiece
from support.tiny_word_bpe import write_xlm

MAX_LENGTH = 48
WORDS = """
the a an is was it this that and or not no to of for in on at me my you your set an alarm half past six film
far better than had expected would recommend restaurant what will weather be like please turn down little good
bad never again happy sad music play stop light order number more less very too great poor quick brown fox
jumps over lazy dog she he they we day night morning evening month week year
""".split()
_ROBERTA_TOKENS = {
    **{"bos": "<s>", "cls": "<s>", "eos": "</s>", "sep": "</s>"},
    **{"pad": "<pad>", "unk": "<unk>", "mask": "<mask>"},
}


def vocabulary(pad_id: int) -> list[str]:
    """About 200 WordPiece tokens; every ASCII word can be spelt with them."""
    special = ["[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    special.insert(pad_id, "[PAD]")
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    tail = [f"##{c}" for c in letters] + ["##ing", "##ed", "##er", "##ly", "##s", "##th"]
    out = [*special, *dict.fromkeys([*letters, *".,!?'-:;&%/=+", *WORDS]), *tail]
    return list(dict.fromkeys(out))


def write_wordpiece(folder: Path, tokens: Sequence[str], max_length: int | None = None, baked_in: bool = False) -> int:
    """Write a lower-casing WordPiece tokenizer of some tokens, those of BERT among them; return their number.

    Args:
        folder: Where to write tokenizer.json, tokenizer_config.json and vocab.txt.
        tokens: Its vocabulary.
        max_length: Longest input that tokenizer_config.json names; none by default.
        baked_in: Whether tokenizer.json has padding and truncation, as all-MiniLM-L6-v2 has them.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    index = {t: i for i, t in enumerate(tokens)}
    made = Tokenizer(models.WordPiece(index, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", index["[CLS]"]), ("[SEP]", index["[SEP]"])],
    )
    made.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    if baked_in:
        made.enable_padding(length=40, pad_id=index["[PAD]"], pad_token="[PAD]")
        made.enable_truncation(40)
    made.save(str(folder / "tokenizer.json"))
    named = {f"{n}_token": f"[{n.upper()}]" for n in ("pad", "unk", "cls", "sep", "mask")}
    longest = {} if max_length is None else {"model_max_length": max_length}
    _write_settings(folder, {"tokenizer_class": "BertTokenizer", "do_lower_case": True, **longest, **named})
    (folder / "vocab.txt").write_text("\n".join(tokens) + "\n")
    return len(tokens)


def write_tokenizer(folder: Path, pad_id: int = 0, baked_in: bool = True) -> None:
    """Write the WordPiece tokenizer of most tests: the tokens of `vocabulary`, inputs of at most `MAX_LENGTH` tokens."""
    write_wordpiece(folder, vocabulary(pad_id), MAX_LENGTH, baked_in)


def write_byte_bpe(folder: Path) -> int:
    """Write a small byte-level BPE tokenizer as RoBERTa's; return the number of tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    made.train_from_iterator(SENTENCES, trainer)
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    made.save(str(folder / "tokenizer.json"))
    named = {f"{name}_token": token for name, token in _ROBERTA_TOKENS.items()}
    _write_settings(folder, {"tokenizer_class": "RobertaTokenizer", **named})
    return int(made.get_vocab_size())


def write_mpnet(folder: Path, tokens: Sequence[str]) -> int:
    """Write a WordPiece tokenizer with MPNet's special tokens, two of them between the texts of a pair; return the number of tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    plain = [t for t in tokens if not (t.startswith("[") and t.endswith("]"))]
    lines = ["<s>", "<pad>", "</s>", "[UNK]", *dict.fromkeys(plain), "<mask>"]
    made = Tokenizer(models.WordPiece({t: i for i, t in enumerate(lines)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.add_special_tokens(["<s>", "<pad>", "</s>", "[UNK]", AddedToken("<mask>", lstrip=True)])
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    made.save(str(folder / "tokenizer.json"))
    (folder / "vocab.txt").write_text("\n".join(lines) + "\n")
    named = {f"{name}_token": token for name, token in {**_ROBERTA_TOKENS, "unk": "[UNK]"}.items()}
    _write_settings(folder, {"tokenizer_class": "MPNetTokenizer", "do_lower_case": True, **named})
    return len(lines)


def write_tokenizer_of_kind(
    folder: Path, kind: TokenizerKind, tokens: Sequence[str], tokenizer_class: str = "XLMRobertaTokenizer"
) -> int:
    """Write a tokenizer of the kind that a family has, WordPiece with these tokens, SentencePiece with these words.

    Returns the number of tokens. The class tells which special tokens it has, where a kind has several classes.
    """
    if kind is TokenizerKind.BYTE_BPE:
        return write_byte_bpe(folder)
    if kind is TokenizerKind.SENTENCEPIECE:
        return write_sentencepiece(folder, tokenizer_class, tokens)
    if kind is TokenizerKind.WORD_BPE:
        return write_xlm(folder, tokens)
    assert kind is TokenizerKind.WORDPIECE, f"write a tiny tokenizer of kind {kind}"
    return write_mpnet(folder, tokens) if tokenizer_class == "MPNetTokenizer" else write_wordpiece(folder, tokens)


def _write_settings(folder: Path, settings: dict[str, Any]) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
