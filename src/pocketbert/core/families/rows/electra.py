"""ELECTRA: discriminators and generators."""

from __future__ import annotations

from pocketbert.core.families.family import FEED_FORWARD, IDS_MASK_TYPES, TINY, Family, Objective, TokenizerKind

ROWS = (
    Family(
        name="electra",
        title="ELECTRA",
        model_types=("electra",),
        classes="Electra",
        tokenizer=TokenizerKind.WORDPIECE,
        inputs=IDS_MASK_TYPES,
        layer_path="electra.encoder.layer",
        feed_forward=FEED_FORWARD,
        choice_weights={"sequence_summary.summary": "classifier.dense", "classifier": "classifier.out_proj"},
        lm_head="generator_predictions",
        noise={
            "discriminator_predictions.": "the checkpoint is a discriminator, which tells replaced words from the others and "
            "guesses none: take the generator's"
        },
        largest={"embedding_size": 1 << 14},
        objectives=(Objective.MASKED_LM, Objective.REPLACED_TOKEN),
        limits=("only generators guess words: a discriminator teaches no guesses of words",),
        layer_parts="electra",
        tiny={**TINY, "embedding_size": 16},
    ),
)
