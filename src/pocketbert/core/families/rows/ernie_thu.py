"""ERNIE (Tsinghua): text and entities."""

from __future__ import annotations

from pocketbert.core.families.family import (
    GAMMA_BETA,
    IDS_MASK_TYPES,
    NO_CHOICES,
    TINY,
    ExportForm,
    Family,
    GraphInput,
    Meaning,
    Objective,
    ReleasedConfig,
    TokenizerKind,
)

_ENTITIES = ExportForm(
    "entities",
    "The number of an entity at the first token of each mention is an input, from the data column entities; the files "
    "hold the vectors of the entities that --entities names.",
    (
        GraphInput(
            "entity_ids",
            "entities",
            Meaning.ENTITIES,
            "Number of the entity at the first token of each mention, 0 elsewhere.",
            count_key="entity_rows",
        ),
    ),
    needs={},
    table=True,
    files=("entity2vec.vec", "entity2id.txt", "entity_map.txt"),
)
_ENTITY_VECTORS = ExportForm(
    "entity-vectors",
    "The vector of an entity at the first token of each mention is an input, from the data column entities.",
    (
        GraphInput(
            "entity_vectors",
            "entities",
            Meaning.VECTORS,
            "Vector of the entity at the first token of each mention, zeros elsewhere.",
            dtype="float32",
            width=100,
            width_key="entity_size",
        ),
    ),
    needs={},
)

ROWS = (
    Family(
        name="ernie-thu",
        title="ERNIE (Tsinghua)",
        model_types=("ernie_thu",),
        classes="ErnieThu",
        tokenizer=TokenizerKind.WORDPIECE,
        inputs=IDS_MASK_TYPES,
        layer_path="bert.encoder.layer",
        lm_head="cls.predictions",
        key_renames={
            **GAMMA_BETA,
            "LayerNorm_ent.gamma": "LayerNorm_ent.weight",
            "LayerNorm_ent.beta": "LayerNorm_ent.bias",
        },
        unread=("cls.predictions_ent.",),
        invalid_tasks={"multiple-choice": NO_CHOICES},
        objectives=(Objective.MASKED_LM, Objective.NEXT_SENTENCE),
        largest={"entity_size": 1 << 14, "entity_heads": 512, "entity_rows": 1 << 20},
        smallest={"entity_rows": 0},
        forms=(_ENTITIES, _ENTITY_VECTORS),
        limits=(
            "files of the form text, and training, link no entities: the place of [CLS] is open with a zero vector, as "
            "in the authors' training; the model is shipped without a linker, and finding entities in a text is out of "
            "scope",
            "of the form entity-vectors a place is open where the absolute values of its vector add up to 2**-6 or "
            "more; the vectors of the released table have length 1",
            "student.init: pruned is refused: the feed-forward neurons serve the text and the entities",
            "the entity stream is no signal: students learn from the text stream",
            "no rewrite for Apple's Neural Engine (export.coreml.layout: ane)",
            "transformers has no class for it: a phone folder's model.safetensors opens with PocketBERT only",
        ),
        adapter="ernie-thu",
        checkpoints="ernie-thu",
        released_config=ReleasedConfig("ernie_config.json", {"layer_types": "layer_kinds"}, {"layer_kinds": []}),
        by_layer=("layer_kinds",),
        tokenizer_settings={"tokenizer_class": "BertTokenizer"},
        tiny={**TINY, "entity_size": 12},
    ),
)
