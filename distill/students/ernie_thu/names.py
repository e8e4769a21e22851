"""Names of the released checkpoints of ERNIE (Tsinghua), and ours, the same but for what is listed here; their tokenizer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.predict.tokenizer_file import library_errors

_LEFTOVER = re.compile(r"(^|\.)intermediate\.dense_1(_ent)?\.")
"""Layers that the authors took out of the model; their training code still lists them, so that a file may hold them."""
_TYPING, _HEAD = "typing.weight", "classifier"


def renamed(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A released checkpoint under the names of the classes in `pocketbert.distill.students.ernie_thu.heads`.

    Args:
        state: Weights by name. The authors' entity-typing head has no bias: it becomes a classifier whose bias is zero,
            which gives the same logits.

    Returns:
        The weights, without copies.
    """
    out = {name: value for name, value in state.items() if not _LEFTOVER.search(name)}
    if _TYPING in out and f"{_HEAD}.weight" not in out:
        weight = out.pop(_TYPING)
        out |= {f"{_HEAD}.weight": weight, f"{_HEAD}.bias": torch.zeros(len(weight), dtype=weight.dtype)}
    return out


def tokenizer_json(folder: Path) -> str:
    """Make tokenizer.json out of the vocab.txt of a released folder, BERT's, which has no config.json that names its class.

    Args:
        folder: The folder.

    Raises:
        InputError: If it has no vocabulary that can be read.
    """
    from transformers import BertTokenizer

    if not (folder / "vocab.txt").is_file():
        raise InputError(
            Problem(str(folder), "has neither tokenizer.json nor vocab.txt.", "Copy vocab.txt of BERT into it.")
        )
    with library_errors(str(folder), "no usable tokenizer"):
        tokenizer = BertTokenizer.from_pretrained(str(folder), local_files_only=True)
        return str(tokenizer.backend_tokenizer.to_str())
