"""Tiny models without a number that is 0 or 1 by chance, so that no converter may leave one out."""

from __future__ import annotations

from pathlib import Path

from pocketbert.core.families import find_family
from pocketbert.core.tasks import TASKS, TaskName
from support.tiny import tiny_classifier
from support.tiny_tokenizers import write_tokenizer

LABELS = ("negative", "neutral", "positive")
CLASSIFY = TASKS[TaskName.TEXT_CLASSIFICATION]


def write_model(folder: Path, family: str, seed: int = 0) -> Path:
    """A tiny model whose biases and normalizations are random, too."""
    import torch

    made = tiny_classifier(family, 2, LABELS, seed)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed + 1)
        for parameter in made.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    made.save_pretrained(folder)
    write_tokenizer(folder, pad_id=find_family(family).tiny["pad_token_id"])
    return folder
