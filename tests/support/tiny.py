"""Tiny random models of every family of the table, and tokenizers for them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pocketbert.core.families import all_families, family_named
from pocketbert.core.models.checkpoints import make_known

FAMILIES = tuple(f.name for f in all_families())
EXPORTED = tuple(f.name for f in all_families() if f.instead_of_export is None)
"""Families that some exporter writes."""
MAX_LENGTH = 48

WORDS = [
    "the",
    "a",
    "an",
    "is",
    "was",
    "it",
    "this",
    "that",
    "and",
    "or",
    "not",
    "no",
    "to",
    "of",
    "for",
    "in",
    "on",
    "at",
    "me",
    "my",
    "you",
    "your",
    "set",
    "an",
    "alarm",
    "half",
    "past",
    "six",
    "film",
    "far",
    "better",
    "than",
    "had",
    "expected",
    "would",
    "recommend",
    "restaurant",
    "what",
    "will",
    "weather",
    "be",
    "like",
    "please",
    "turn",
    "down",
    "little",
    "good",
    "bad",
    "never",
    "again",
    "happy",
    "sad",
    "music",
    "play",
    "stop",
    "light",
    "order",
    "number",
    "more",
    "less",
    "very",
    "too",
    "great",
    "poor",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "lazy",
    "dog",
    "she",
    "he",
    "they",
    "we",
    "day",
    "night",
    "morning",
    "evening",
    "month",
    "week",
    "year",
]


def vocabulary(pad_id: int) -> list[str]:
    """About 200 WordPiece tokens; every ASCII word can be spelt with them."""
    special = ["[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    special.insert(pad_id, "[PAD]")
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    tail = [f"##{c}" for c in letters] + ["##ing", "##ed", "##er", "##ly", "##s", "##th"]
    out = [*special, *dict.fromkeys([*letters, *".,!?'-:;&%/=+", *WORDS]), *tail]
    return list(dict.fromkeys(out))


def write_tokenizer(folder: Path, pad_id: int = 0, baked_in: bool = True) -> None:
    """tokenizer.json, tokenizer_config.json and vocab.txt of a lower-casing WordPiece tokenizer.

    `baked_in` adds padding and truncation to the file, as all-MiniLM-L6-v2 has them.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    tokens = vocabulary(pad_id)
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
        made.enable_padding(length=40, pad_id=pad_id, pad_token="[PAD]")
        made.enable_truncation(40)
    made.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": True,
        "model_max_length": MAX_LENGTH,
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "vocab.txt").write_text("\n".join(tokens) + "\n")


def tiny_config(family: str, layers: int, labels: Sequence[str], **changes: Any) -> Any:
    """Configuration of a tiny classifier: the sizes in the family's row, and the vocabulary of `write_tokenizer`."""
    import transformers

    row = family_named(family)
    make_known(row)
    pad_id = row.tiny["pad_token_id"]
    names = {"id2label": dict(enumerate(labels)), "label2id": {n: i for i, n in enumerate(labels)}}
    sizes = {"vocab_size": len(vocabulary(pad_id)), **row.tiny, **names, **changes}
    config = transformers.AutoConfig.for_model(row.model_types[0], **sizes)
    config.num_hidden_layers = layers
    return config


def tiny_classifier(
    family: str,
    layers: int,
    labels: Sequence[str],
    seed: int = 0,
    auto_class: str = "AutoModelForSequenceClassification",
    **changes: Any,
) -> Any:
    """A random classifier (or what `auto_class` builds) whose matrices are drawn wide enough that input and mask really matter."""
    import torch
    import transformers

    config = tiny_config(family, layers, labels, **changes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = getattr(transformers, auto_class).from_config(config)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    parameter.normal_(std=0.15)
            for module in model.modules():
                if isinstance(module, torch.nn.Embedding) and module.padding_idx is not None:
                    module.weight[module.padding_idx] = 0  # as the library starts it: MobileBERT looks at neighbours
    return model.eval()
