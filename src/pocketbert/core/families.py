"""The one table for the systems of the family.

A row is data only: class names, key renames, limits with their reason, and enum keys that name code
elsewhere (`Capture` in distill/capture/, `Adapter` in export/adapters/). Nothing outside this table and
those two folders names an architecture. Users add a row with `register_family`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pocketbert.core.errors import InputError, Problem, nearest
from pocketbert.core.types import Signal


class TokenizerKind(StrEnum):
    """How the family's tokenizer cuts words."""

    WORDPIECE = "wordpiece"
    BYTE_BPE = "byte-bpe"
    SENTENCEPIECE = "sentencepiece"


class Capture(StrEnum):
    """Which code in distill/capture/ reads attention signals of the family."""

    INTERFACE = "interface"
    """transformers' attention interface."""


class Adapter(StrEnum):
    """Which rewrite in export/adapters/ makes the family exportable."""

    MASK_4D = "mask-4d"
    """The stock model takes an additive [batch, 1, 1, length] mask."""


class Objective(StrEnum):
    """A general-stage objective that makes sense for the family's checkpoints."""

    MASKED_LM = "masked-lm"
    NEXT_SENTENCE = "next-sentence"
    REPLACED_TOKEN = "replaced-token"  # noqa: S105 - ELECTRA's objective, not a secret


@dataclass(frozen=True)
class Family:
    """One system.

    Attributes:
        name: Short name, as in recipes and reports.
        title: Name as its authors write it.
        model_types: `model_type` values of config.json that this row serves, first match wins.
        classes: Prefix of the transformers classes (``Bert`` of ``BertForSequenceClassification``).
        tokenizer: Tokenizer kind.
        inputs: Graph inputs in order.
        layer_path: Dotted path from the head class to the list of encoder layers.
        key_renames: Old to new substrings of state-dict keys of original checkpoints.
        config_names: Sizes that config.json calls otherwise than BERT does, and no alias of transformers covers.
        padding_side: ``right`` or ``left``.
        position_offset: Rows of the position table that no token uses (2 for RoBERTa).
        signals: What a student may learn from a teacher of this family.
        invalid_signals: Reason why a signal is missing above.
        objectives: General-stage objectives valid for its checkpoints.
        parity_atol: Bound on max|file - model| / spread of the logits, fp32.
        limits: What does not work, and why; shown by `pocketbert families` and in model cards.
        capture: Code that captures signals.
        adapter: Code that prepares the export.
        original_names: Module whose ``renamed`` puts the variables of an original TensorFlow checkpoint (with ``/`` in their
            names) under transformers' names; None where there is none.
        module: Module whose import makes the classes known to transformers, where these are not its own.
        instead_of_export: What to do where no exporter writes the family; None where one does.
    """

    name: str
    title: str
    model_types: tuple[str, ...]
    classes: str
    tokenizer: TokenizerKind
    inputs: tuple[str, ...]
    layer_path: str
    key_renames: Mapping[str, str] = field(default_factory=dict)
    config_names: Mapping[str, str] = field(default_factory=dict)
    padding_side: str = "right"
    position_offset: int = 0
    signals: tuple[Signal, ...] = tuple(Signal)
    invalid_signals: Mapping[Signal, str] = field(default_factory=dict)
    objectives: tuple[Objective, ...] = (Objective.MASKED_LM,)
    parity_atol: float = 1e-4
    limits: tuple[str, ...] = ()
    capture: Capture = Capture.INTERFACE
    adapter: Adapter = Adapter.MASK_4D
    original_names: str | None = None
    module: str | None = None
    instead_of_export: str | None = None

    @property
    def uses_segments(self) -> bool:
        """Whether the graph tells the first text of a pair from the second by token types."""
        return "token_type_ids" in self.inputs

    def read_names(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Weights under transformers' names.

        Args:
            state: By transformers' names, or by those of the original TensorFlow checkpoint.

        Raises:
            InputError: Naming variables that such a checkpoint does not have.
        """
        if self.original_names is not None and any("/" in name for name in state):
            named: Mapping[str, Any] = importlib.import_module(self.original_names).renamed(state)
            return named
        return state

    def make_known(self) -> None:
        """Let transformers open folders of the family, in this process; may be called again."""
        if self.module is not None:
            importlib.import_module(self.module)


_MOBILEBERT_NAMES = "pocketbert.distill.students.ib_bert.names"
_IDS_MASK = ("input_ids", "attention_mask")
_IDS_MASK_TYPES = (*_IDS_MASK, "token_type_ids")
_GAMMA_BETA = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}

_FAMILIES: dict[str, Family] = {}


def register_family(family: Family) -> None:
    """Add a row to the table, or replace the one of the same name.

    Args:
        family: The new row.
    """
    _FAMILIES[family.name] = family


def all_families() -> tuple[Family, ...]:
    """All rows, in the order they were registered."""
    return tuple(_FAMILIES.values())


def family_of(model_type: str, where: str = "config.json") -> Family:
    """The row that serves a `model_type`.

    Args:
        model_type: The value in config.json.
        where: What to blame in the error.

    Returns:
        The family.

    Raises:
        InputError: If no row serves it.
    """
    for family in _FAMILIES.values():
        if model_type in family.model_types:
            return family
    known = [t for f in _FAMILIES.values() for t in f.model_types]
    raise InputError(
        Problem(
            where,
            f"model_type '{model_type}' is not in the family table; {nearest(model_type, known)}.",
            "Add a row with pocketbert.core.families.register_family, or use a supported system.",
        )
    )


def check_exported(family: Family, where: str = "model") -> None:
    """Refuse a model that no file can be written of.

    Args:
        family: Its row.
        where: Recipe key or folder to blame.

    Raises:
        InputError: If no exporter writes the family, with what to do instead.
    """
    if family.instead_of_export is not None:
        raise InputError(Problem(where, f"no exporter writes {family.title}.", family.instead_of_export))


register_family(
    Family(
        name="bert",
        title="BERT",
        model_types=("bert",),
        classes="Bert",
        tokenizer=TokenizerKind.WORDPIECE,
        inputs=_IDS_MASK_TYPES,
        layer_path="bert.encoder.layer",
        key_renames=_GAMMA_BETA,
        objectives=(Objective.MASKED_LM, Objective.NEXT_SENTENCE),
    )
)
register_family(
    Family(
        name="roberta",
        title="RoBERTa",
        model_types=("roberta",),
        classes="Roberta",
        tokenizer=TokenizerKind.BYTE_BPE,
        inputs=_IDS_MASK,
        layer_path="roberta.encoder.layer",
        position_offset=2,
        limits=("no segment ids: the texts of a pair are told apart by separators only",),
    )
)
register_family(
    Family(
        name="distilbert",
        title="DistilBERT",
        model_types=("distilbert",),
        classes="DistilBert",
        tokenizer=TokenizerKind.WORDPIECE,
        inputs=_IDS_MASK,
        layer_path="distilbert.transformer.layer",
        config_names={"intermediate_size": "hidden_dim"},
        limits=("no segment ids: the texts of a pair are told apart by separators only",),
    )
)
register_family(
    Family(
        name="mobilebert",
        title="MobileBERT",
        model_types=("mobilebert",),
        classes="MobileBert",
        tokenizer=TokenizerKind.WORDPIECE,
        inputs=_IDS_MASK_TYPES,
        layer_path="mobilebert.encoder.layer",
        signals=(Signal.LOGITS, Signal.ATTENTION, Signal.RELATIONS),
        invalid_signals={Signal.HIDDEN: "its hidden states reach 1e5 to 1e6, so a plain squared error explodes"},
        objectives=(Objective.MASKED_LM, Objective.NEXT_SENTENCE),
        original_names=_MOBILEBERT_NAMES,
    )
)
register_family(
    Family(
        name="ib-bert",
        title="IB-BERT",
        model_types=("ib_bert",),
        classes="IbBert",
        tokenizer=TokenizerKind.WORDPIECE,
        inputs=_IDS_MASK_TYPES,
        layer_path="mobilebert.encoder.layer",
        objectives=(Objective.MASKED_LM, Objective.NEXT_SENTENCE),
        limits=("a teacher only: transformers has no class for it, and no exporter writes it",),
        original_names=_MOBILEBERT_NAMES,
        module="pocketbert.distill.students.ib_bert.model",
        instead_of_export="Distil a MobileBERT student from it, and export that.",
    )
)
