"""The real shapes that lab/real_shapes.py measures, and the section of docs/lab/families.md that shows what it found."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_BASE = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
}


@dataclass(frozen=True)
class Shape:
    """The size of a published model.

    Attributes:
        name: What tables call it.
        model_type: Its `model_type`.
        sizes: Entries of its configuration.
        note: What is not as published.
    """

    name: str
    model_type: str
    sizes: dict[str, Any] = field(default_factory=dict)
    note: str = ""


_DEBERTA = {**_BASE, "relative_attention": True, "position_biased_input": False, "type_vocab_size": 0}
_V2 = {
    **_DEBERTA,
    "position_buckets": 256,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"],
    "max_relative_positions": -1,
    "max_position_embeddings": 512,
    "layer_norm_eps": 1e-7,
}
SHAPES = (
    Shape("BERT-base", "bert", {**_BASE, "vocab_size": 30522}),
    Shape(
        "RoBERTa-base",
        "roberta",
        {**_BASE, "vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1, "pad_token_id": 1},
    ),
    Shape("DistilBERT-base", "distilbert", {"vocab_size": 30522}),
    Shape("MobileBERT", "mobilebert", {"vocab_size": 30522}),
    Shape(
        "ALBERT-base",
        "albert",
        {**_BASE, "vocab_size": 30000, "embedding_size": 128, "max_position_embeddings": 512, "num_hidden_groups": 1},
    ),
    Shape(
        "ELECTRA-small",
        "electra",
        {**_BASE, "vocab_size": 30522, "embedding_size": 128, "hidden_size": 256, "num_attention_heads": 4}
        | {"intermediate_size": 1024},
    ),
    Shape("ELECTRA-base", "electra", {**_BASE, "vocab_size": 30522, "embedding_size": 768}),
    Shape(
        "ERNIE-3.0-medium",
        "ernie",
        {**_BASE, "num_hidden_layers": 6, "vocab_size": 40000}
        | {"max_position_embeddings": 2048, "type_vocab_size": 4, "use_task_id": True, "task_type_vocab_size": 16},
    ),
    Shape(
        "XLM-R-base",
        "xlm-roberta",
        {**_BASE, "vocab_size": 250002, "max_position_embeddings": 514} | {"type_vocab_size": 1, "pad_token_id": 1},
    ),
    Shape("ModernBERT-base", "modernbert", {}),
    Shape(
        "DeBERTa-base",
        "deberta",
        {**_DEBERTA, "vocab_size": 50265, "pos_att_type": ["c2p", "p2c"], "max_relative_positions": -1}
        | {"max_position_embeddings": 512, "layer_norm_eps": 1e-7, "pooler_hidden_size": 768},
    ),
    Shape(
        "DeBERTa-v2-xlarge, 2 layers",
        "deberta-v2",
        {**_V2, "vocab_size": 128100, "hidden_size": 1536, "num_attention_heads": 24, "intermediate_size": 6144}
        | {"num_hidden_layers": 2, "conv_kernel_size": 3, "conv_act": "gelu", "pooler_hidden_size": 1536}
        | {"attention_head_size": 64},
        "2 of 24 layers",
    ),
    Shape("DeBERTa-v3-small", "deberta-v2", {**_V2, "vocab_size": 128100, "num_hidden_layers": 6}),
    Shape("DeBERTa-v3-base", "deberta-v2", {**_V2, "vocab_size": 128100}),
    Shape("XLNet-base", "xlnet", {"vocab_size": 32000, "d_model": 768, "n_layer": 12, "n_head": 12, "d_inner": 3072}),
    Shape("XLM, base width", "xlm", {"vocab_size": 64139, "emb_dim": 768, "n_layers": 12, "n_heads": 12}),
    Shape(
        "Longformer-base",
        "longformer",
        {**_BASE, "vocab_size": 50265, "max_position_embeddings": 4098, "type_vocab_size": 1, "pad_token_id": 1}
        | {"attention_window": [512] * 12, "sep_token_id": 2, "bos_token_id": 0, "eos_token_id": 2},
    ),
    Shape("ERNIE (Tsinghua) base", "ernie_thu", {}),
)
HEAD = """
## Real shapes

Sizes of published models with **random weights**: nothing here tells how good a model is. Made by `lab/real_shapes.py`: text-classification with two classes; TFLite and Core ML files of one length,
{length} tokens. Latency: median CPU time
of one inference of {length} tokens on {threads} thread{s}, in ms, which other programs of the machine do not lengthen; Core ML is not timed off a Mac. Parity: largest difference of the fp32 file (Core ML: fp16) to the untouched
model over padded and unpadded inputs, relative to the spread of the logits; the RMS of the file in 8 bits behind it. Time and memory are those of the process that exports and quantizes.

{machine}; {versions}.

| model | parameters | format | export | memory | fp32 (Core ML: fp16) | 8 bits | parity | RMS | latency fp32 | latency int8 | torch |
|---|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"""


def shapes_section(path: Path) -> list[str]:
    """Show what was measured; nothing where no shape was."""
    if not path.is_file():
        return []
    content = json.loads(path.read_text("utf-8"))
    threads = content["threads"]
    lines = [
        HEAD.format(
            length=content["length"],
            threads=threads,
            s="" if threads == 1 else "s",
            machine=content["machine"],
            versions=", ".join(f"{k} {v}" for k, v in content["versions"].items()),
        )
    ]
    for shape in SHAPES:
        found = content["shapes"].get(shape.name)
        for format, row in (found or {}).get("formats", {}).items():
            lines.append(_line(shape, found, format, row))
    missing = [s.name for s in SHAPES if s.name not in content["shapes"]]
    return [*lines, "", f"Not measured yet: {', '.join(missing)}."] if missing else lines


def _line(shape: Shape, found: dict[str, Any], format: str, row: dict[str, Any]) -> str:
    name = f"{shape.name}{f' ({shape.note})' if shape.note else ''}"
    if "error" in row:
        return f"| {name} | {found['parameters'] / 1e6:.1f} M | {format} | {row['error']} |||||||||"
    times = [f"{row[key]:.0f}" if row.get(key) else "" for key in ("ms", "ms_8")]
    cells = [
        name,
        f"{found['parameters'] / 1e6:.1f} M",
        format,
        f"{row['seconds']:.0f} s",
        f"{row['peak_mb'] / 1000:.1f} GB",
        f"{row['mb']:.1f} MB",
        f"{row['mb_8']:.1f} MB",
        f"{row['parity']:.0e}",
        f"{row['rms']:.3f}",
        *times,
        f"{found['torch_ms']:.0f}",
    ]
    return f"| {' | '.join(cells)} |"
