"""Tiny random models of every family of the table: the one builder of them, and what the tests know of each family.

A new family needs its row in the table, with the sizes of its tiny model, and its entry in `ENTRIES`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from pocketbert.core.families import Objective, all_families, find_family
from pocketbert.core.models.checkpoints import register_with_transformers
from support.tiny_texts import vocabulary as task_vocabulary
from support.tiny_tokenizers import vocabulary, write_tokenizer_of_kind, write_wordpiece

FAMILIES = tuple(f.name for f in all_families())
GRAPHS = tuple(f.name for f in all_families() if f.loads_as is None and f.has_layers)
"""Families of layers with a graph of their own: all others differ from one of these in title, signals and objectives."""
EXPORTED = tuple(name for name in GRAPHS if find_family(name).instead_of_export is None)
"""Families with a graph of their own that some exporter writes."""
BASIC = ("bert", "roberta", "distilbert", "mobilebert")
"""The families that tests of a format, a method or a gate go through. All others go through the matrix in `tests/families`."""
GUESSING = tuple(f.name for f in all_families() if f.lm_head is not None and f.loads_as is None)
"""Families with a graph of their own and a class that guesses hidden words."""
PRETRAINED = tuple(f.name for f in all_families() if Objective.NEXT_SENTENCE in f.objectives and f.loads_as is None)
"""Families with a class that predicts hidden words and the next sentence."""
NAMES = ("negative", "neutral", "positive")


@dataclass(frozen=True)
class TinyFamily:
    """What the tests need to know of a family, in addition to its row."""

    shapes: tuple[dict[str, Any], ...] = ()  # sizes and switches that no default has; its graphs compute with each
    noise: float = 2.0  # width of random weights; small where no normalization keeps numbers from growing
    normalized: bool = True  # whether its layers have LayerNorm
    head_size: int = 8  # numbers of one attention head of its tiny model
    even: dict[str, Any] = field(default_factory=dict)  # changes with which each layer takes the same work
    saved: float = 0.85  # share of a layer's work that is not done where only the first row is read
    position_table: bool = True  # whether its positions are rows of a table, so that there is a longest input
    separator: int | None = None  # id between the texts of a pair in its tiny model, where the model looks for it
    copied: bool = True  # whether a student may start from any of its teacher's layers, each stored by itself
    all_pairs: bool = True  # whether transformers returns attention between all pairs of tokens
    probabilities: bool = True  # whether transformers returns attention after the softmax, not before
    resized: bool = True  # whether a random student takes the sizes that the section `student` names
    tokenizer: str = "XLMRobertaTokenizer"  # class of its tokenizer


ENTRIES = {
    "bert": TinyFamily(
        shapes=(
            {"hidden_size": 312, "num_attention_heads": 12, "intermediate_size": 1200},
            {"num_attention_heads": 1, "hidden_act": "relu", "type_vocab_size": 3},
            {"layer_norm_eps": 1e-3, "chunk_size_feed_forward": 1},
        )
    ),
    "ernie": TinyFamily(shapes=({"use_task_id": True}, {"use_task_id": True, "hidden_act": "relu"})),
    "electra": TinyFamily(
        shapes=({"embedding_size": 32}, {"embedding_size": 48, "num_attention_heads": 1}, {"hidden_act": "relu"})
    ),
    "roberta": TinyFamily(shapes=({"hidden_size": 24, "num_attention_heads": 3}, {"hidden_act": "gelu_new"})),
    "xlm-r": TinyFamily(shapes=({"hidden_size": 24, "num_attention_heads": 3},)),
    "camembert": TinyFamily(shapes=({"hidden_size": 24, "num_attention_heads": 3},), tokenizer="CamembertTokenizer"),
    "roberta-prelayernorm": TinyFamily(
        shapes=({"hidden_size": 24, "num_attention_heads": 3}, {"hidden_act": "gelu_new"}, {"num_attention_heads": 1})
    ),
    "distilbert": TinyFamily(
        shapes=({"dim": 36, "n_heads": 6, "hidden_dim": 20}, {"activation": "relu", "n_heads": 1})
    ),
    "mobilebert": TinyFamily(
        shapes=(
            {"normalization_type": "layer_norm", "num_feedforward_networks": 4},
            {"use_bottleneck": False, "trigram_input": False},
            {"use_bottleneck_attention": True},
            {"num_feedforward_networks": 1},
            {"classifier_activation": False},
        ),
        noise=0.5,
        normalized=False,
        head_size=4,
        even={"embedding_size": 32},
        saved=0.7,
        resized=False,
    ),
    "ib-bert": TinyFamily(resized=False),
    "squeezebert": TinyFamily(
        shapes=(
            {
                "hidden_size": 24,
                "embedding_size": 24,
                "num_attention_heads": 3,
                "q_groups": 1,
                "post_attention_groups": 2,
            },
            {"output_groups": 8, "v_groups": 2, "hidden_act": "relu", "num_attention_heads": 1},
        ),
        probabilities=False,
    ),
    "albert": TinyFamily(
        shapes=(
            {"num_hidden_groups": 2},
            {"num_hidden_groups": 2, "inner_group_num": 2, "hidden_act": "relu"},
            {"embedding_size": 48, "type_vocab_size": 3},
        ),
        tokenizer="AlbertTokenizer",
        copied=False,
    ),
    "deberta": TinyFamily(
        shapes=(
            {"pos_att_type": "c2p"},
            {"pos_att_type": "p2c", "max_relative_positions": 20, "hidden_act": "relu"},
            {"pos_att_type": None},
            {"relative_attention": False},
            {"embedding_size": 16},
            {"position_biased_input": False, "num_attention_heads": 1, "legacy": False},
        )
    ),
    "deberta-v2": TinyFamily(
        shapes=(
            {"pos_att_type": "c2p"},
            {"pos_att_type": "p2c", "share_att_key": False, "norm_rel_ebd": "none"},
            {"pos_att_type": None},
            {"relative_attention": False},
            {"position_buckets": -1, "max_relative_positions": 20},
            {"max_relative_positions": 24, "conv_kernel_size": 3, "conv_act": "gelu"},
            {"conv_kernel_size": 5, "conv_groups": 4, "embedding_size": 16},
            {"position_biased_input": False, "pooler_hidden_act": "tanh", "legacy": False},
        ),
        tokenizer="DebertaV2Tokenizer",
    ),
    "xlnet": TinyFamily(
        shapes=(
            {"d_model": 36, "n_head": 6, "d_inner": 20},
            {"clamp_len": 6, "ff_activation": "relu", "n_head": 1},
            {"summary_type": "first"},
            {"summary_type": "mean", "summary_use_proj": False},
        ),
        noise=1.0,
        tokenizer="XLNetTokenizer",
    ),
    "xlm": TinyFamily(
        shapes=(
            {"emb_dim": 36, "n_heads": 6},
            {"gelu_activation": False, "n_heads": 1, "sinusoidal_embeddings": True},
            {"summary_type": "mean"},
        ),
        resized=False,
    ),
    "longformer": TinyFamily(separator=3, all_pairs=False),
    "ernie-thu": TinyFamily(shapes=({"entity_size": 20, "entity_heads": 5, "hidden_act": "relu"},)),
    "modernbert": TinyFamily(
        shapes=(
            {"classifier_pooling": "mean", "local_attention": 5},
            {"attention_bias": True, "mlp_bias": True, "norm_bias": True, "classifier_bias": True},
            {"global_attn_every_n_layers": 2, "num_attention_heads": 1, "hidden_activation": "relu"},
        ),
        position_table=False,
        copied=False,
    ),
    "mpnet": TinyFamily(
        shapes=(
            {"hidden_size": 24, "num_attention_heads": 3, "hidden_act": "relu"},
            {"num_attention_heads": 1, "relative_attention_num_buckets": 40},
        ),
        tokenizer="MPNetTokenizer",
    ),
}
"""One entry for each family with a graph of its own, by its name."""


def tiny_config(family: str, layers: int, labels: Sequence[str], **changes: Any) -> Any:
    """Configuration of a tiny model: the sizes in the family's row, and the vocabulary of `support.tiny_tokenizers`."""
    import transformers

    row = find_family(family)
    register_with_transformers(row)
    pad_id = row.tiny["pad_token_id"]
    names = {"id2label": dict(enumerate(labels)), "label2id": {n: i for i, n in enumerate(labels)}} if labels else {}
    kind = row.model_types[0]
    # what a configuration derives from its depth, such as the kinds of its layers, is made when it is
    depth = transformers.CONFIG_MAPPING[kind].attribute_map.get("num_hidden_layers", "num_hidden_layers")
    sizes = {"vocab_size": len(vocabulary(pad_id)), **row.tiny, **names, **changes, depth: layers}
    return transformers.AutoConfig.for_model(kind, **sizes)


def tiny_classifier(
    family: str,
    layers: int,
    labels: Sequence[str],
    seed: int = 0,
    auto_class: str = "AutoModelForSequenceClassification",
    std: float = 0.15,
    **changes: Any,
) -> Any:
    """A random classifier (or what `auto_class` builds) whose matrices are drawn wide enough that input and mask really matter.

    With `std` 0 it keeps the weights that transformers draws.
    """
    import torch
    import transformers

    config = tiny_config(family, layers, labels, **changes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = getattr(transformers, auto_class).from_config(config)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim > 1 and std:
                    parameter.normal_(std=std)
            for module in model.modules():
                if isinstance(module, torch.nn.Embedding) and module.padding_idx is not None:
                    module.weight[module.padding_idx] = 0  # as the library starts it: MobileBERT looks at neighbours
    return model.eval()


def noisy_model(family: str, layers: int, auto_class: str, labels: Sequence[str] = NAMES, **changes: Any) -> Any:
    """A random model in which every parameter, norms and biases too, differs from what the library starts with."""
    import torch

    model = tiny_classifier(family, layers, labels, 7, auto_class, 0.0, **{"vocab_size": 90, **changes})
    wide = ENTRIES[family].noise
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(8)
        for parameter in model.parameters():
            width = wide / parameter.shape[-1] ** 0.5 if parameter.dim() > 1 else 0.3
            parameter.add_(torch.randn_like(parameter) * width)
    return model


def write_own_tokenizer(folder: Path, family: str) -> dict[str, Any]:
    """Write a tokenizer of the kind that a family has; returns what its configuration must say of it."""
    row = find_family(family)
    rows = write_tokenizer_of_kind(folder, row.tokenizer, task_vocabulary(), ENTRIES[family].tokenizer)
    named = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    ids = Tokenizer.from_file(str(folder / "tokenizer.json"))
    told = {f"{name}_token_id": ids.token_to_id(str(named.get(f"{name}_token"))) for name in ("pad", "sep")}
    return {"vocab_size": rows, **{name: i for name, i in told.items() if name in row.tiny and i is not None}}


def write_classifier(folder: Path, family: str, std: float) -> Path:
    """A tiny random classifier in Hugging Face layout, with a tokenizer of its family's kind."""
    told = write_own_tokenizer(folder, family)
    tiny_classifier(family, 2, NAMES, seed=1, std=std, **told).save_pretrained(folder)
    return folder


def write_bert(
    folder: Path, labels: Sequence[str] | None = None, seed: int = 0, vocabulary_size: int | None = None
) -> Path:
    """A tiny random BERT for the tiny task: bare where there are no labels, else with a head whose outputs differ."""
    folder.mkdir(parents=True, exist_ok=True)
    tokens = task_vocabulary()
    sizes = {"vocab_size": vocabulary_size or len(tokens), "num_attention_heads": 2}
    auto_class = "AutoModelForSequenceClassification" if labels else "AutoModel"
    tiny_classifier("bert", 2, labels or (), seed, auto_class, **sizes).save_pretrained(folder)
    write_wordpiece(folder, tokens)
    return folder
