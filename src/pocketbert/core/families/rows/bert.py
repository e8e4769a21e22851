"""BERT, and the systems whose checkpoints load as BERT: they differ in how they were trained, never in the graph."""

from __future__ import annotations

from dataclasses import replace

from pocketbert.core.families.family import (
    FEED_FORWARD,
    GAMMA_BETA,
    IDS_MASK_TYPES,
    TINY,
    Family,
    Objective,
    TokenizerKind,
)

_BERT = Family(
    name="bert",
    title="BERT",
    model_types=("bert",),
    classes="Bert",
    tokenizer=TokenizerKind.WORDPIECE,
    inputs=IDS_MASK_TYPES,
    layer_path="bert.encoder.layer",
    feed_forward=FEED_FORWARD,
    lm_head="cls.predictions",
    key_renames=GAMMA_BETA,
    unread=("fit_dense.", "fit_denses."),
    objectives=(Objective.MASKED_LM, Objective.NEXT_SENTENCE),
    layer_parts="bert",
    tiny=TINY,
)
_MASKED = (Objective.MASKED_LM,)
ROWS = (
    _BERT,
    replace(
        _BERT,
        name="spanbert",
        title="SpanBERT",
        loads_as="bert",
        objectives=_MASKED,
        limits=(
            "trained on single segments, without the next-sentence task: the second segment of a pair is learnt in "
            "fine-tuning",
            "its published archives have no masked-LM head that transformers reads, so they teach no guesses of words",
        ),
    ),
    replace(
        _BERT,
        name="tinybert",
        title="TinyBERT",
        loads_as="bert",
        signs=r"(bert\.)?fit_denses?\.",
        objectives=(),
        limits=(
            "its general checkpoints have no trained masked-LM head, so they teach no guesses of words",
            "the maps to the width of the model that taught it (fit_dense) are dropped: they are no part of the "
            "encoder",
        ),
    ),
    replace(_BERT, name="bert-wwm", title="BERT-wwm", loads_as="bert", objectives=_MASKED),
    replace(
        _BERT,
        name="macbert",
        title="MacBERT",
        loads_as="bert",
        objectives=(Objective.MASKED_LM, Objective.SIMILAR_WORDS, Objective.SENTENCE_ORDER),
        limits=(
            "trained on similar words instead of [MASK]: texts with [MASK] are unlike those that it was trained on",
        ),
    ),
    replace(
        _BERT,
        name="structbert",
        title="StructBERT",
        loads_as="bert",
        # gamma or beta without the prefix of a class with a head: BERT's own old checkpoints have the prefix
        signs=r"(embeddings|encoder\.layer\.\d+\..*)\.LayerNorm\.(gamma|beta)$",
        # its pair task has three classes: next segment, previous segment, segment from elsewhere; order is a part of it
        objectives=(Objective.MASKED_LM, Objective.SENTENCE_ORDER),
    ),
)
