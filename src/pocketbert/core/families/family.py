"""What a row of the family table holds. Data only: code of a family is registered under the keys that its row names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from pocketbert.core.types import Signal


class TokenizerKind(StrEnum):
    """How the family's tokenizer cuts words."""

    WORDPIECE = "wordpiece"
    BYTE_BPE = "byte-bpe"
    SENTENCEPIECE = "sentencepiece"


class Objective(StrEnum):
    """A general-stage objective that makes sense for the family's checkpoints."""

    MASKED_LM = "masked-lm"
    NEXT_SENTENCE = "next-sentence"
    REPLACED_TOKEN = "replaced-token"  # noqa: S105 - ELECTRA's objective, not a secret


@dataclass(frozen=True)
class Family:
    """A supported model family and its limits.

    Attributes:
        name: Short name, as in recipes and reports.
        title: Name as its authors write it.
        model_types: `model_type` values of config.json that this row serves, first match wins.
        classes: Prefix of the transformers classes (``Bert`` of ``BertForSequenceClassification``).
        tokenizer: Tokenizer kind.
        inputs: Graph inputs in order.
        layer_path: Dotted path from the head class to the list of encoder layers.
        lm_head: Dotted path from the masked-LM class to the module that takes the encoder's output; all behind it works on each
            token by itself. None where general stages cannot learn from the family.
        key_renames: Old to new substrings of state-dict keys of original checkpoints.
        config_names: Sizes that config.json calls otherwise than BERT does, and no alias of transformers covers.
        largest: Largest values of entries of config.json that only the family has and that decide memory; the common ones are
            bounded in `config`.
        unread: Beginnings of names of weights that published checkpoints of the family have and no class of transformers
            reads, the encoder's prefix included (``fit_denses.`` of the general TinyBERT).
        stored_layers: Entry of config.json that counts the layers that the weights hold: fewer than the layers that run where
            these are shared (``num_hidden_groups`` of ALBERT).
        padding_side: ``right`` or ``left``.
        position_offset: Rows of the position table that no token uses (2 for RoBERTa).
        signals: What a student may learn from a teacher of this family.
        invalid_signals: Reason why a signal is missing above.
        invalid_tasks: Reason why a task is not possible with the family, by the task's name.
        objectives: General-stage objectives valid for its checkpoints.
        parity_atol: Bound on max|file - model| / spread of the logits, fp32.
        limits: What does not work, and why; shown by `pocketbert families` and in model cards.
        capture: Key of the code that captures attention signals; see `register_capture`.
        adapter: Key of the code that makes a model exportable; see `register_adapter`.
        layer_parts: Key of the code that takes encoder layers apart for the cheaper graphs; see `register_layer_parts`. None
            where the adapter needs none.
        checkpoints: Key of the code that reads checkpoints which transformers cannot; see `register_checkpoints`. None where
            transformers and `key_renames` are enough.
        students_of: Names of the families whose teachers can have students of this one, besides its own; the code is a
            `pocketbert.distill.students.class_changes.ClassChange` for each.
        instead_of_export: What to do where no exporter writes the family; None where one does.
        tiny: Sizes of a model that tests build in no time, by the names of its configuration; without vocabulary and labels.
    """

    name: str
    title: str
    model_types: tuple[str, ...]
    classes: str
    tokenizer: TokenizerKind
    inputs: tuple[str, ...]
    layer_path: str
    lm_head: str | None = None
    key_renames: Mapping[str, str] = field(default_factory=dict)
    config_names: Mapping[str, str] = field(default_factory=dict)
    largest: Mapping[str, int] = field(default_factory=dict)
    unread: tuple[str, ...] = ()
    stored_layers: str = "num_hidden_layers"
    padding_side: str = "right"
    position_offset: int = 0
    signals: tuple[Signal, ...] = tuple(Signal)
    invalid_signals: Mapping[Signal, str] = field(default_factory=dict)
    invalid_tasks: Mapping[str, str] = field(default_factory=dict)
    objectives: tuple[Objective, ...] = (Objective.MASKED_LM,)
    parity_atol: float = 1e-4
    limits: tuple[str, ...] = ()
    capture: str = "attention-interface"
    adapter: str = "mask-4d"
    layer_parts: str | None = None
    checkpoints: str | None = None
    students_of: tuple[str, ...] = ()
    instead_of_export: str | None = None
    tiny: Mapping[str, int] = field(default_factory=dict)

    @property
    def uses_segments(self) -> bool:
        """Whether the graph tells the first text of a pair from the second by token types."""
        return "token_type_ids" in self.inputs
