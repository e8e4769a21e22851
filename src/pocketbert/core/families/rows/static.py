"""Static embeddings: students without layers, a table of token vectors, windows over neighbours for tags, and a small head."""

from __future__ import annotations

from pocketbert.core.families.family import IDS_MASK_TYPES, Family, TokenizerKind
from pocketbert.core.types import Signal

_NO_LAYERS = "it has no layers with states to compare"
_FEW_TOKENS = (
    "it reads the mean of a text, or the tokens beside each one, and the task needs the whole text at each token"
)

ROW = Family(
    name="static-embeddings",
    title="Static embeddings",
    model_types=("static_embeddings",),
    classes="Static",
    tokenizer=TokenizerKind.WORDPIECE,
    inputs=IDS_MASK_TYPES,
    layer_path="static.layers",
    signals=(Signal.LOGITS,),
    invalid_signals={signal: _NO_LAYERS for signal in Signal if signal is not Signal.LOGITS},
    invalid_tasks={
        "question-answering": _FEW_TOKENS,
        "fill-mask": _FEW_TOKENS,
        "several": "its class has one head",
        "multiple-choice": "transformers has no class with its head",
    },
    objectives=(),
    smallest={"num_hidden_layers": 0, "type_vocab_size": 0, "windows": 0},
    largest={"embedding_size": 1 << 14, "windows": 64},
    limits=(
        "a student only (student: {layers: 0}): the teacher's tokenizer pads on the right and, for pairs, marks the "
        "second text in token_type_ids",
        "student.init: pruned is refused: it has no feed-forward neurons",
        "no several heads: its class has one head",
        "no rewrite for Apple's Neural Engine (export.coreml.layout: ane), and no files for npu and qnn: in "
        "integers, the mean of its vectors is lost, and tags were not tried",
        "transformers has no class for it: a phone folder's model.safetensors opens with PocketBERT only",
    ),
    adapter="static",
    checkpoints="static",
    tiny={"embedding_size": 16, "hidden_size": 16, "intermediate_size": 24, "type_vocab_size": 2, "pad_token_id": 0},
)
"""Row of the family table; its code is in `pocketbert.distill.students.static`."""
