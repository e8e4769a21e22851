"""Small tokenizers of each kind, trained on the project's own rows, and the rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pocketbert.core.compare.sample_texts import SENTENCES
from support.tiny_texts import task_rows

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
TEXTS = [*SENTENCES, *(row["text"] for row in task_rows(40, 5))]
TRAIN, HELD = TEXTS[::2], TEXTS[1::2]
"""Rows that choose pieces, and rows that do not."""
KINDS = ("WordPiece", "BPE", "Unigram")


def trained(kind: str) -> Any:
    """A tokenizer of about 600 pieces."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

    same: dict[str, Any] = {"vocab_size": 600, "special_tokens": SPECIAL, "show_progress": False}
    if kind == "WordPiece":
        made = Tokenizer(models.WordPiece(unk_token="<unk>"))
        made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
        trainer: Any = trainers.WordPieceTrainer(**same)
    elif kind == "BPE":
        made = Tokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = trainers.BpeTrainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), **same)
    else:
        made = Tokenizer(models.Unigram())
        made.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(unk_token="<unk>", **same)
    made.train_from_iterator(TEXTS, trainer)
    made.post_processor = processors.Sequence(
        [
            processors.TemplateProcessing(
                single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
            )
        ]
    )
    made.add_tokens(["[later]"])  # behind all pieces
    made.enable_padding(pad_id=1, pad_token="<pad>")
    return made


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A folder with a trained tokenizer of a kind, and the files that its authors would ship."""
    made: dict[str, Path] = {}

    def folder(kind: str) -> Path:
        if kind not in made:
            made[kind] = tmp_path_factory.mktemp(kind)
            tokenizer = trained(kind)
            tokenizer.save(str(made[kind] / "tokenizer.json"))
            content = json.loads((made[kind] / "tokenizer.json").read_text())
            last = tokenizer.token_to_id("[later]")
            settings = {"added_tokens_decoder": {"1": {"content": "<pad>"}, str(last): {"content": "[later]"}}}
            (made[kind] / "tokenizer_config.json").write_text(json.dumps(settings))
            (made[kind] / "config.json").write_text(
                json.dumps({"model_type": "roberta", "pad_token_id": 1, "vocab_size": last + 1})
            )
            if kind == "BPE":
                (made[kind] / "vocab.json").write_text(json.dumps(content["model"]["vocab"]))
                (made[kind] / "merges.txt").write_text("written anew")
        return made[kind]

    return folder
