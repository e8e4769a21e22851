"""Texts of a tiny task that can be learnt, and the vocabulary that they need."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LABELS = ("lamp", "music", "timer")
KEYWORDS = {
    "lamp": ("lamp", "bright", "dim", "bulb", "glow"),
    "music": ("song", "tune", "album", "band", "melody"),
    "timer": ("timer", "minutes", "alarm", "wake", "countdown"),
}
FILLERS = tuple(
    "please could you now the a my in on at for with kitchen bedroom hall today later again just then some more less very "
    "nice old new big small friend house room door table chair quick slow".split()
)
LENGTH = 40


def task_rows(count: int, seed: int) -> list[dict[str, Any]]:
    """Texts of filler words with one keyword that decides the label."""
    draw = random.Random(seed)
    rows = []
    for i in range(count):
        label = LABELS[i % len(LABELS)]
        words = [draw.choice(FILLERS) for _ in range(draw.randint(2, 12))]
        words.insert(draw.randint(0, len(words)), draw.choice(KEYWORDS[label]))
        rows.append({"text": " ".join(words), "label": label})
    return rows


def vocabulary() -> list[str]:
    """Words of the task, and letters so that any ASCII word can be spelt."""
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    words = [*FILLERS, *(w for group in KEYWORDS.values() for w in group)]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    return list(dict.fromkeys([*special, *words, *letters, *".,!?'-", *(f"##{c}" for c in letters)]))


def write_lines(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """Rows as .jsonl."""
    path.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows), encoding="utf-8")
    return path
