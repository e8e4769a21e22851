"""Reading checkpoints that transformers reads not at all or differently from their authors.

MobileBERT's and IB-BERT's of the original code; DeBERTa's and XLM's tokenizers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pocketbert.core.families import CHECKPOINTS, CheckpointCode


def _original_names(state: Mapping[str, Any]) -> Mapping[str, Any]:
    from pocketbert.distill.students.ib_bert.names import renamed

    # variables of TensorFlow have slashes in their names, parameters of torch have none
    return renamed(state) if any("/" in name for name in state) else state


def _ib_bert_classes() -> None:
    from pocketbert.distill.students.ib_bert import model  # noqa: F401 - it registers its classes with transformers


def _xlm_tokenizer(folder: Path) -> str:
    from pocketbert.distill.students.xlm_tokenizer import tokenizer_json

    return tokenizer_json(folder)


def _byte_pairs(folder: Path) -> None:
    from pocketbert.distill.students.deberta_tokenizers import check_byte_pairs

    check_byte_pairs(folder)


def _one_separator(_: Path, content: dict[str, Any]) -> dict[str, Any]:
    from pocketbert.distill.students.deberta_tokenizers import with_one_separator

    return with_one_separator(content)


def _own_normalizer(folder: Path, content: dict[str, Any]) -> dict[str, Any]:
    from pocketbert.distill.students.deberta_tokenizers import with_own_normalizer

    return with_own_normalizer(folder, content)


CHECKPOINTS.add("deberta", CheckpointCode(check_tokenizer=_byte_pairs, change_tokenizer=_one_separator))
CHECKPOINTS.add("deberta-v2", CheckpointCode(change_tokenizer=_own_normalizer))
CHECKPOINTS.add("mobilebert", CheckpointCode(read_names=_original_names))
CHECKPOINTS.add("ib-bert", CheckpointCode(make_known=_ib_bert_classes, read_names=_original_names))
CHECKPOINTS.add("xlm", CheckpointCode(tokenizer_json=_xlm_tokenizer))
