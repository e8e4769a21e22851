"""A tiny tokenizer and a tiny random BERT on disk."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from support.tiny_texts import vocabulary


def write_tokenizer(folder: Path, tokens: Sequence[str]) -> None:
    """A lower-casing WordPiece tokenizer in Hugging Face layout."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    index = {t: i for i, t in enumerate(tokens)}
    made = Tokenizer(models.WordPiece(index, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", index["[CLS]"]), ("[SEP]", index["[SEP]"])],
    )
    made.save(str(folder / "tokenizer.json"))
    named = {f"{n}_token": f"[{n.upper()}]" for n in ("pad", "unk", "cls", "sep", "mask")}
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer", **named}))
    (folder / "vocab.txt").write_text("\n".join(tokens) + "\n")


def write_bert(
    folder: Path, labels: Sequence[str] | None = None, seed: int = 0, vocabulary_size: int | None = None
) -> Path:
    """A tiny random BERT: bare where there are no labels, else with a head whose outputs differ."""
    import torch
    import transformers

    folder.mkdir(parents=True, exist_ok=True)
    names = {"id2label": dict(enumerate(labels)), "label2id": {n: i for i, n in enumerate(labels)}} if labels else {}
    config = transformers.BertConfig(
        vocab_size=vocabulary_size or len(vocabulary()),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        **names,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        kind = transformers.AutoModelForSequenceClassification if labels else transformers.AutoModel
        model = kind.from_config(config)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    parameter.normal_(std=0.15)
    model.save_pretrained(folder)
    write_tokenizer(folder, vocabulary())
    return folder
