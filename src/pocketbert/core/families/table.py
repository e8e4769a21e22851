"""The one table for the systems of the family, and the functions that ask it.

A row is data: facts, limits with their reason, and keys under which code of the family is registered (`code`). Nothing but this
table, distill/capture, distill/students and export/adapters names an architecture.
"""

from __future__ import annotations

from pocketbert.core.errors import InputError, Problem, nearest
from pocketbert.core.families.config import MAX_LAYERS, MAX_WIDTH
from pocketbert.core.families.family import Family, Objective, TokenizerKind
from pocketbert.core.loading.plugins import announce, load_plugins
from pocketbert.core.types import Signal

_IDS_MASK = ("input_ids", "attention_mask")
_IDS_MASK_TYPES = (*_IDS_MASK, "token_type_ids")
_GAMMA_BETA = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
_BOTTLENECKS = {
    "embedding_size": 1 << 14,
    "intra_bottleneck_size": 1 << 14,
    "true_hidden_size": 1 << 14,
    "num_feedforward_networks": 64,
}
_ONE_SEGMENT = "no segment ids: the texts of a pair are told apart by separators only"
_TINY = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}

_ROWS = (
    Family(
        name="bert",
        title="BERT",
        model_types=("bert",),
        classes="Bert",
        tokenizer=TokenizerKind.WORDPIECE,
        inputs=_IDS_MASK_TYPES,
        layer_path="bert.encoder.layer",
        lm_head="cls.predictions",
        key_renames=_GAMMA_BETA,
        unread=("fit_dense.", "fit_denses."),
        objectives=(Objective.MASKED_LM, Objective.NEXT_SENTENCE),
        layer_parts="bert",
        tiny=_TINY,
    ),
    Family(
        name="roberta",
        title="RoBERTa",
        model_types=("roberta",),
        classes="Roberta",
        tokenizer=TokenizerKind.BYTE_BPE,
        inputs=_IDS_MASK,
        layer_path="roberta.encoder.layer",
        lm_head="lm_head",
        position_offset=2,
        limits=(_ONE_SEGMENT,),
        layer_parts="roberta",
        tiny={**_TINY, "max_position_embeddings": 66, "pad_token_id": 1, "type_vocab_size": 1},
    ),
    Family(
        name="distilbert",
        title="DistilBERT",
        model_types=("distilbert",),
        classes="DistilBert",
        tokenizer=TokenizerKind.WORDPIECE,
        inputs=_IDS_MASK,
        layer_path="distilbert.transformer.layer",
        lm_head="vocab_transform",
        config_names={"intermediate_size": "hidden_dim"},
        largest={"dim": 1 << 14, "hidden_dim": MAX_WIDTH, "n_layers": MAX_LAYERS, "n_heads": MAX_LAYERS},
        limits=(_ONE_SEGMENT,),
        layer_parts="distilbert",
        students_of=("bert",),
        tiny={
            "dim": 32,
            "n_layers": 2,
            "n_heads": 4,
            "hidden_dim": 64,
            "max_position_embeddings": 64,
            "pad_token_id": 0,
        },
    ),
    Family(
        name="mobilebert",
        title="MobileBERT",
        model_types=("mobilebert",),
        classes="MobileBert",
        tokenizer=TokenizerKind.WORDPIECE,
        inputs=_IDS_MASK_TYPES,
        layer_path="mobilebert.encoder.layer",
        lm_head="cls.predictions",
        signals=(Signal.LOGITS, Signal.ATTENTION, Signal.RELATIONS),
        invalid_signals={Signal.HIDDEN: "its hidden states reach 1e5 to 1e6, so a plain squared error explodes"},
        objectives=(Objective.MASKED_LM, Objective.NEXT_SENTENCE),
        layer_parts="mobilebert",
        checkpoints="mobilebert",
        largest=_BOTTLENECKS,
        tiny={
            **_TINY,
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
        inputs=_IDS_MASK_TYPES,
        layer_path="mobilebert.encoder.layer",
        lm_head="cls.predictions",
        objectives=(Objective.MASKED_LM, Objective.NEXT_SENTENCE),
        limits=("a teacher only: transformers has no class for it, and no exporter writes it",),
        checkpoints="ib-bert",
        largest=_BOTTLENECKS,
        instead_of_export="Distil a MobileBERT student from it, and export that.",
        tiny={**_TINY, "embedding_size": 16, "intra_bottleneck_size": 48},
    ),
)

_FAMILIES: dict[str, Family] = {row.name: row for row in _ROWS}


def register_family(family: Family) -> None:
    """Add a model family to the table, or replace the one of the same name; an installed plug-in can only add.

    Args:
        family: The new row. The keys it names are looked up when they are needed, so code may be registered before or after.
    """
    announce("family", family.name, family.name in _FAMILIES)
    _FAMILIES[family.name] = family


def all_families() -> tuple[Family, ...]:
    """List all supported model families in the order of their registration, including those of installed plug-ins."""
    load_plugins()
    return tuple(_FAMILIES.values())


def family_of(model_type: str, where: str = "config.json") -> Family:
    """Return the family that serves a `model_type`.

    Args:
        model_type: The value in config.json.
        where: What to blame in the error.

    Returns:
        The family.

    Raises:
        InputError: If no row serves it.
    """
    for family in all_families():
        if model_type in family.model_types:
            return family
    known = [t for f in all_families() for t in f.model_types]
    raise InputError(
        Problem(
            where,
            f"model_type '{model_type}' is not in the family table; {nearest(model_type, known)}.",
            "Add a row with pocketbert.core.families.register_family, or use a supported system.",
        )
    )


def family_named(name: str, where: str = "family") -> Family:
    """The row of a name.

    Args:
        name: As in recipes.
        where: What to blame in the error.

    Raises:
        InputError: If there is none.
    """
    rows = {f.name: f for f in all_families()}
    if name not in rows:
        raise InputError(Problem(where, f"'{name}' is not in the family table; {nearest(name, tuple(rows))}."))
    return rows[name]


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
