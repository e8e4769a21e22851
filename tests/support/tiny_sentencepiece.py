"""Tiny SentencePiece tokenizers in the layouts that the authors of each family publish."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pocketbert.core.compare.sample_texts import SENTENCES, UNICODE_SENTENCES

PIECES = 700
"""At most; the texts give fewer."""


@dataclass(frozen=True)
class Layout:
    """How a family uses SentencePiece."""

    file: str  # name of the model file
    ids: dict[str, Any]  # options of the trainer that give special pieces their ids
    control: tuple[str, ...] = ()  # further special pieces, which follow these


LAYOUTS = {
    "XLMRobertaTokenizer": Layout("sentencepiece.bpe.model", {"unk_id": 0, "bos_id": 1, "eos_id": 2, "pad_id": -1}),
    "CamembertTokenizer": Layout("sentencepiece.bpe.model", {"unk_id": 0, "bos_id": 1, "eos_id": 2, "pad_id": -1}),
    "AlbertTokenizer": Layout(
        "spiece.model",
        {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1, "pad_piece": "<pad>"},
        ("[CLS]", "[SEP]", "[MASK]"),
    ),
    "XLNetTokenizer": Layout(
        "spiece.model",
        {"unk_id": 0, "bos_id": 1, "eos_id": 2, "pad_id": -1},
        ("<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"),
    ),
    "DebertaV2Tokenizer": Layout(
        "spm.model",
        {
            **{"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3},
            **{"pad_piece": "[PAD]", "bos_piece": "[CLS]", "eos_piece": "[SEP]", "unk_piece": "[UNK]"},
        },
        ("[MASK]",),
    ),
}
"""By the class of transformers that reads the folder; the ids are those of the published checkpoints."""


def train_pieces(layout: Layout, texts: Iterable[str], **options: Any) -> bytes:
    """A SentencePiece model of some texts, as its library writes it; unigram where the options name no other kind."""
    import sentencepiece

    made = io.BytesIO()
    wanted = {"model_type": "unigram", "vocab_size": PIECES, "hard_vocab_limit": False, "character_coverage": 1.0}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=made,
        num_threads=1,  # else the pieces differ from run to run
        minloglevel=2,
        control_symbols=list(layout.control),
        **{**layout.ids, **wanted, **options},
    )
    return made.getvalue()


def write_sentencepiece(
    folder: Path, tokenizer_class: str, words: Sequence[str] = (), fast: bool = True, **options: Any
) -> int:
    """Write a tiny SentencePiece tokenizer, as transformers converts it; return the number of tokens.

    Args:
        folder: Where to write.
        tokenizer_class: One of `LAYOUTS`.
        words: Words that it must know, in addition to the sample texts.
        fast: Whether to write tokenizer.json; without it the folder is as the authors publish it.
        options: Further options of the trainer.
    """
    import transformers

    layout = LAYOUTS[tokenizer_class]
    plain = [w for w in words if not w.startswith(("[", "##"))]
    texts = [*SENTENCES, *UNICODE_SENTENCES, *plain, " ".join(plain)]
    (folder / layout.file).write_bytes(train_pieces(layout, texts, **options))
    settings = folder / "tokenizer_config.json"
    settings.write_text(json.dumps({"tokenizer_class": tokenizer_class}))
    made = getattr(transformers, tokenizer_class).from_pretrained(str(folder), local_files_only=True)
    if fast:
        made.save_pretrained(str(folder))
    return len(made)
