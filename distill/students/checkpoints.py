"""Reading checkpoints that transformers has no class or no names for: MobileBERT's and IB-BERT's of the original code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pocketbert.core.families import CHECKPOINTS, CheckpointCode


def _original_names(state: Mapping[str, Any]) -> Mapping[str, Any]:
    from pocketbert.distill.students.ib_bert.names import renamed

    # variables of TensorFlow have slashes in their names, parameters of torch have none
    return renamed(state) if any("/" in name for name in state) else state


def _ib_bert_classes() -> None:
    from pocketbert.distill.students.ib_bert import model  # noqa: F401 - it registers its classes with transformers


CHECKPOINTS.add("mobilebert", CheckpointCode(read_names=_original_names))
CHECKPOINTS.add("ib-bert", CheckpointCode(make_known=_ib_bert_classes, read_names=_original_names))
