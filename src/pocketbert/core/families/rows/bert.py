"""BERT."""

from __future__ import annotations

from pocketbert.core.families.family import Family, Objective, TokenizerKind
from pocketbert.core.families.rows.common import GAMMA_BETA, IDS_MASK_TYPES, TINY

ROWS = (
    Family(
        name="bert",
        title="BERT",
        model_types=("bert",),
        classes="Bert",
        tokenizer=TokenizerKind.WORDPIECE,
        inputs=IDS_MASK_TYPES,
        layer_path="bert.encoder.layer",
        lm_head="cls.predictions",
        key_renames=GAMMA_BETA,
        unread=("fit_dense.", "fit_denses."),
        objectives=(Objective.MASKED_LM, Objective.NEXT_SENTENCE),
        layer_parts="bert",
        tiny=TINY,
    ),
)
