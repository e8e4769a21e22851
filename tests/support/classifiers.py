"""Tiny random classifiers in Hugging Face layout, and what transformers answers with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from pocketbert.core.compare.sample_texts import SENTENCES
from support.tiny_models import write_tokenizer
from support.tiny_texts import vocabulary

NAMES = ("negative", "neutral", "positive")


def write_byte_bpe(folder: Path) -> int:
    """A small byte-level BPE tokenizer as RoBERTa's; its size."""
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
    named = {
        "bos_token": "<s>",
        "cls_token": "<s>",
        "eos_token": "</s>",
        "sep_token": "</s>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "mask_token": "<mask>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "RobertaTokenizer", **named}))
    return int(made.get_vocab_size())


def write_classifier(folder: Path, family: str, std: float) -> Path:
    """A tiny random classifier in Hugging Face layout; transformers' own weights for std 0."""
    if family == "roberta":
        rows = write_byte_bpe(folder)
    else:
        rows = len(vocabulary())
        write_tokenizer(folder, vocabulary())
    labels = {
        "id2label": dict(enumerate(NAMES)),
        "label2id": {n: i for i, n in enumerate(NAMES)},
        "vocab_size": rows,
    }
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config: Any
    if family == "bert":
        config = transformers.BertConfig(**labels, **sizes, max_position_embeddings=64)
    elif family == "roberta":
        config = transformers.RobertaConfig(**labels, **sizes, max_position_embeddings=66, type_vocab_size=1)
    elif family == "distilbert":
        config = transformers.DistilBertConfig(
            **labels, dim=32, n_layers=2, n_heads=2, hidden_dim=64, max_position_embeddings=64
        )
    else:
        narrow = {"embedding_size": 16, "intra_bottleneck_size": 16, "num_feedforward_networks": 2}
        config = transformers.MobileBertConfig(**labels, **{**sizes, **narrow}, max_position_embeddings=64)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(1)
        made = transformers.AutoModelForSequenceClassification.from_config(config)
        for parameter in made.parameters():
            if parameter.ndim > 1 and std:
                parameter.normal_(std=std)
    made.save_pretrained(folder)
    return folder


def expected(folder: Path, texts: list[str]) -> np.ndarray:
    """Probabilities as transformers itself computes them from the untouched folder, [N, labels]."""
    untouched = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    segments = untouched.config.model_type in ("bert", "mobilebert")
    rows = []
    for text in texts:
        ids = torch.tensor([tokenizer(text)["input_ids"]])
        more = {"token_type_ids": torch.zeros_like(ids)} if segments else {}
        with torch.inference_mode():
            rows.append(untouched(ids, attention_mask=torch.ones_like(ids), **more).logits.softmax(-1)[0].numpy())
    return np.stack(rows)
