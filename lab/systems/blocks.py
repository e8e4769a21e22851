"""The section of docs/lab/families.md on Longformer's attention over blocks; figures of lab/longformer_blocks.py."""

from __future__ import annotations

import json
from pathlib import Path

HEAD = """
## Longformer beyond 1,024 tokens

`pocketbert export --attention blocks` (in a recipe `export.attention: blocks`) computes attention over blocks of half a window with both neighbours, and one more key for the first token where that is global.
Memory then grows with the length of a text instead of its square, and inputs are as long as the table of positions. TFLite signatures of up to 1,024 tokens keep attention over all pairs;
ONNX files and Core ML packages of several lengths have one graph, and it is slower for short texts. Question-answering is refused: every token of a question is global.

Random weights, {layers} layers of width {hidden}, windows of {window} tokens, ONNX fp32, one row, one thread, least CPU time of {runs} runs; memory is the peak beyond that of 64 tokens. `lab/longformer_blocks.py`
compares both files with transformers before it measures; the machine was shared.

| tokens | all pairs: memory | blocks: memory | all pairs: CPU time | blocks: CPU time |
|---:|---:|---:|---:|---:|"""


def blocks_section(path: Path) -> list[str]:
    """Show what was measured."""
    found = json.loads(path.read_text("utf-8"))
    sizes = found["sizes"]
    layers, hidden, window = (sizes[k] for k in ("num_hidden_layers", "hidden_size", "attention_window"))
    lines = [HEAD.format(layers=layers, hidden=hidden, window=window, runs=found["runs"])]
    for length, row in found["lengths"].items():
        pairs, blocks = row["pairs"], row["blocks"]
        cells = [
            f"{int(length):,}",
            *(f"{r['mb']:.0f} MB" for r in (pairs, blocks)),
            *(f"{r['cpu_ms']:.0f} ms" for r in (pairs, blocks)),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines
