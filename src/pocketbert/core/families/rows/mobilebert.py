"""MobileBERT, IB-BERT, its teacher, and SqueezeBERT, which was made for phones, too."""

from __future__ import annotations

from pocketbert.core.families.family import (
    FEED_FORWARD,
    IDS_MASK_TYPES,
    NO_CHOICES,
    TINY,
    Family,
    Objective,
    TokenizerKind,
)
from pocketbert.core.types import Signal

_GROUPS = tuple(f"{part}_groups" for part in ("q", "k", "v", "post_attention", "intermediate", "output"))
_LARGEST = {
    "embedding_size": 1 << 14,
    "intra_bottleneck_size": 1 << 14,
    "true_hidden_size": 1 << 14,
    "num_feedforward_networks": 64,
}
ROWS = (
    Family(
        name="mobilebert",
        title="MobileBERT",
        model_types=("mobilebert",),
        classes="MobileBert",
        tokenizer=TokenizerKind.WORDPIECE,
        inputs=IDS_MASK_TYPES,
        layer_path="mobilebert.encoder.layer",
        feed_forward={**FEED_FORWARD, "ffn.*.intermediate.dense": "ffn.*.output.dense"},
        lm_head="cls.predictions",
        signals=(Signal.LOGITS, Signal.ATTENTION, Signal.RELATIONS),
        invalid_signals={Signal.HIDDEN: "its hidden states reach 1e5 to 1e6, so a plain squared error explodes"},
        objectives=(Objective.MASKED_LM, Objective.NEXT_SENTENCE),
        layer_parts="mobilebert",
        checkpoints="mobilebert",
        largest=_LARGEST,
        tiny={
            **TINY,
            "intermediate_size": 32,
            "embedding_size": 16,
            "intra_bottleneck_size": 16,
            "num_feedforward_networks": 2,
        },
    ),
    Family(
        name="ib-bert",
        title="IB-BERT",
        model_types=("ib_bert",),
        classes="IbBert",
        tokenizer=TokenizerKind.WORDPIECE,
        inputs=IDS_MASK_TYPES,
        layer_path="mobilebert.encoder.layer",
        lm_head="cls.predictions",
        objectives=(Objective.MASKED_LM, Objective.NEXT_SENTENCE),
        invalid_tasks={"multiple-choice": NO_CHOICES},
        limits=("a teacher only: transformers has no class for it, and no exporter writes it",),
        checkpoints="ib-bert",
        largest=_LARGEST,
        instead_of_export="Distil a MobileBERT student from it, and export that.",
        tiny={**TINY, "embedding_size": 16, "intra_bottleneck_size": 48},
    ),
    Family(
        name="squeezebert",
        title="SqueezeBERT",
        model_types=("squeezebert",),
        classes="SqueezeBert",
        tokenizer=TokenizerKind.WORDPIECE,
        inputs=IDS_MASK_TYPES,
        layer_path="transformer.encoder.layers",
        lm_head="cls.predictions",
        width_copies=("embedding_size",),
        largest={"embedding_size": 1 << 14, **dict.fromkeys(_GROUPS, 1 << 14)},
        limits=(
            "each group of a projection is a linear layer of its own in files",
            "feed-forward neurons belong to groups: student.init: pruned is refused",
        ),
        capture="grouped-attention",
        adapter="grouped-layers",
        layer_parts="squeezebert",
        tiny={**TINY, "embedding_size": 32},
    ),
)
