"""Reading checkpoints that transformers reads not at all or differently from their authors.

MobileBERT's, IB-BERT's and ERNIE's of the original code; DeBERTa's and XLM's tokenizers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pocketbert.core.families import CHECKPOINTS, CheckpointCode, ExportForm


def _original_names(state: Mapping[str, Any]) -> Mapping[str, Any]:
    from pocketbert.distill.students.ib_bert.names import renamed

    # variables of TensorFlow have slashes in their names, parameters of torch have none
    return renamed(state) if any("/" in name for name in state) else state


def _ib_bert_classes() -> None:
    from pocketbert.distill.students.ib_bert import model  # noqa: F401 - it registers its classes with transformers


def _ernie_thu_classes() -> None:
    from pocketbert.distill.students.ernie_thu import heads  # noqa: F401 - it registers its classes with transformers


def _ernie_thu_names(state: Mapping[str, Any]) -> Mapping[str, Any]:
    from pocketbert.distill.students.ernie_thu.names import renamed

    return renamed(state)


def _ernie_thu_form(model: Any, form: ExportForm | None, folder: Path, entities: Path | None) -> list[dict[str, str]]:
    from pocketbert.distill.students.ernie_thu.entities import take_form

    return take_form(model, form, folder, entities)


def _ernie_thu_tokenizer(folder: Path) -> str:
    from pocketbert.distill.students.ernie_thu.names import tokenizer_json

    return tokenizer_json(folder)


def _xlm_tokenizer(folder: Path) -> str:
    from pocketbert.distill.students.xlm_tokenizer import tokenizer_json

    return tokenizer_json(folder)


def _one_language(model: Any) -> None:
    from pocketbert.distill.students.xlm_language import with_default_language

    with_default_language(model)


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
CHECKPOINTS.add(
    "ernie-thu",
    CheckpointCode(
        make_known=_ernie_thu_classes,
        read_names=_ernie_thu_names,
        take_form=_ernie_thu_form,
        tokenizer_json=_ernie_thu_tokenizer,
    ),
)
CHECKPOINTS.add("xlm", CheckpointCode(complete=_one_language, tokenizer_json=_xlm_tokenizer))
