"""Students: smaller models of the teacher's class or of a related one, started from teacher layers or at random."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import Family, family_named, family_of
from pocketbert.core.models.checkpoints import complete
from pocketbert.core.plugins import Registry
from pocketbert.core.recipe.student import StudentSection
from pocketbert.core.seeds import derive_seed
from pocketbert.distill.students.layer_map import copied_layers, layer_map, shorten

# --- class_changes ---
# Students of another class than their teacher: which changes exist, and the weights under their new names.


@dataclass(frozen=True)
class ClassChange:
    """How a model of one family starts a student of another.

    Attributes:
        teacher: Name of the teacher's row of the family table.
        student: Name of the student's.
        heads: Class suffixes that change, old to new (``ForPreTraining`` to ``ForMaskedLM``); others stay.
        layers: Teacher layers (from 1) that the student's authors chose, by (student depth, teacher depth).
        config: The student's configuration from the teacher's.
        weights: The student's state dict from (the teacher's, its layers from 1, whether segment 0 is folded in).
    """

    teacher: str
    student: str
    config: Callable[[Any], Any]
    weights: Callable[[Mapping[str, Tensor], list[int], bool], dict[str, Tensor]]
    heads: Mapping[str, str] = field(default_factory=dict)
    layers: Mapping[tuple[int, int], list[int]] = field(default_factory=dict)


CLASS_CHANGES: Registry[ClassChange] = Registry("class-change", "register_class_change")


def register_class_change(change: ClassChange) -> None:
    """Register how a teacher of one family starts a student of another.

    Args:
        change: How; it replaces the one between the same families.
    """
    CLASS_CHANGES.register(_key(change.teacher, change.student), change)


def add_class_change(change: ClassChange) -> None:
    """Add one of the package's own."""
    CLASS_CHANGES.add(_key(change.teacher, change.student), change)


def _key(teacher: str, student: str) -> str:
    return f"{teacher} to {student}"


def class_change(teacher: str, student: str, where: str = "student.family") -> ClassChange:
    """The change from one family to another.

    Args:
        teacher: Name of the teacher's family.
        student: Name of the student's.
        where: Recipe key, for errors.

    Raises:
        InputError: If there is none.
    """
    changes = CLASS_CHANGES.values()
    for change in changes:
        if (change.teacher, change.student) == (teacher, student):
            return change
    possible = [teacher, *(c.student for c in changes if c.teacher == teacher)]
    raise InputError(
        Problem(
            where,
            f"'{student}' cannot be made from a teacher of family '{teacher}'; possible: {', '.join(possible)}.",
            "Choose one of these, or leave family out.",
        )
    )


# --- distilbert_keys ---
# DistilBERT from BERT: configuration and weights.
#
# Of the embeddings DistilBERT lacks the segment table; of the heads it lacks the pooler. A classifier's pooler
# weights go to ``pre_classifier``, the place that corresponds, but that is followed by a ReLU where BERT has tanh:
# a good start, not the same function.


_LAYER = {
    "attention.self.query": "attention.q_lin",
    "attention.self.key": "attention.k_lin",
    "attention.self.value": "attention.v_lin",
    "attention.output.dense": "attention.out_lin",
    "attention.output.LayerNorm": "sa_layer_norm",
    "intermediate.dense": "ffn.lin1",
    "output.dense": "ffn.lin2",
    "output.LayerNorm": "output_layer_norm",
}
_OUTSIDE = {
    "embeddings.word_embeddings": "embeddings.word_embeddings",
    "embeddings.position_embeddings": "embeddings.position_embeddings",
    "embeddings.LayerNorm": "embeddings.LayerNorm",
}
_HEADS = {
    "cls.predictions.transform.dense": "vocab_transform",
    "cls.predictions.transform.LayerNorm": "vocab_layer_norm",
    "cls.predictions.decoder": "vocab_projector",
    "classifier": "classifier",
    "qa_outputs": "qa_outputs",
}
_POSITIONS = "embeddings.position_embeddings.weight"
_SEGMENTS = "embeddings.token_type_embeddings.weight"
_LAYER_KEY = re.compile(r"encoder\.layer\.(\d+)\.(.+)")


def distilbert_config(teacher: Any) -> Any:
    """A DistilBERT configuration with a BERT's sizes, rates and labels; its norms have their fixed epsilon 1e-12."""
    from transformers import DistilBertConfig

    return DistilBertConfig(
        vocab_size=teacher.vocab_size,
        max_position_embeddings=teacher.max_position_embeddings,
        dim=teacher.hidden_size,
        n_layers=teacher.num_hidden_layers,
        n_heads=teacher.num_attention_heads,
        hidden_dim=teacher.intermediate_size,
        activation=teacher.hidden_act,
        dropout=teacher.hidden_dropout_prob,
        attention_dropout=teacher.attention_probs_dropout_prob,
        initializer_range=teacher.initializer_range,
        pad_token_id=teacher.pad_token_id,
        tie_word_embeddings=teacher.tie_word_embeddings,
        problem_type=teacher.problem_type,
        id2label=teacher.id2label,
        label2id=teacher.label2id,
    )


def distilbert_weights(teacher: Mapping[str, Tensor], chosen: list[int], fold_segments: bool) -> dict[str, Tensor]:
    """A BERT's weights under DistilBERT's names.

    The released code drops the vector of segment 0, which the teacher adds at every position. Folded into the
    position table it is kept, and the student's embedding output equals the teacher's.

    Args:
        teacher: State dict of a BERT, with or without a head.
        chosen: Teacher layer (from 1) for each student layer.
        fold_segments: Whether to add segment 0 to the position table.

    Returns:
        Copies that fill a DistilBERT of the corresponding class completely; a classifier's pooler becomes
        ``pre_classifier``, any other pooler and the next-sentence head are left out.
    """
    headed = any(key.startswith("bert.") for key in teacher)
    base, prefix = ("bert.", "distilbert.") if headed else ("", "")
    names = {base + k: prefix + v for k, v in _OUTSIDE.items()}
    if headed:
        names |= _HEADS
    if "classifier.weight" in teacher and f"{base}pooler.dense.weight" in teacher:
        names[f"{base}pooler.dense"] = "pre_classifier"
    out = {}
    for key, value in teacher.items():
        module, _, leaf = key.rpartition(".")
        layer = _LAYER_KEY.fullmatch(key.removeprefix(base))
        if module in names:
            out[f"{names[module]}.{leaf}"] = value.clone()
        elif layer:
            part, _, leaf = layer[2].rpartition(".")
            for ours, theirs in enumerate(chosen):
                if theirs == int(layer[1]) + 1:
                    out[f"{prefix}transformer.layer.{ours}.{_LAYER[part]}.{leaf}"] = value.clone()
    if fold_segments:
        out[prefix + _POSITIONS] += teacher[base + _SEGMENTS][0]
    return out


BERT_TO_DISTILBERT = ClassChange(
    teacher="bert",
    student="distilbert",
    config=distilbert_config,
    weights=distilbert_weights,
    heads={"ForPreTraining": "ForMaskedLM"},
    # the released weights' start; the paper (arXiv 1910.01108, section 3) only says one layer out of two
    layers={(6, 12): [1, 3, 5, 8, 10, 12]},
)
add_class_change(BERT_TO_DISTILBERT)


def build_student(teacher: Any, family: Family, wanted: StudentSection, seed: int) -> Any:
    """Build a student for a teacher.

    Args:
        teacher: A transformers model.
        family: Its row of the family table.
        wanted: Layers, start, and family and sizes where they differ from the teacher's. With ``init: pruned`` the teacher is
            one that `pocketbert.distill.students.pruning.pruned` made.
        seed: Seed of random weights.

    Returns:
        A model of the teacher's class, or the corresponding class of another family; fp32, in training mode.
        Where it starts from the teacher, a model of the same class is the teacher with fewer layers; what a change
        of class loses is said in distill/students/ beside the names.

    Raises:
        InputError: If the sizes do not fit, or the family cannot be made from this teacher.
    """
    assert wanted.layers is not None, "a student with `model` is loaded, not built"
    name = wanted.family or family.graph
    change = class_change(family.graph, name) if name != family.graph else None
    fold = wanted.fold_segments
    if fold and (change is None or wanted.init == "random"):
        raise InputError(
            Problem(
                "student.fold_segments",
                "only a student of another family than its teacher, started from teacher layers, "
                "loses a segment table.",
                "Leave fold_segments out.",
            )
        )
    config, kind = copy.deepcopy(teacher.config), type(teacher)
    if change:
        config, kind = change.config(teacher.config), _class(teacher, family, change)
    row = family_of(config.model_type)
    _resize(config, kind, row, wanted)
    _shorten_lists(config, row, wanted)
    shorten(config, row, wanted.layers)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "student"))
        student = kind(config)
    if wanted.init != "random":
        deep = teacher.config.num_hidden_layers
        listed = wanted.teacher_layers or (change.layers.get((wanted.layers, deep)) if change else None)
        state = teacher.state_dict()
        if change:
            state = change.weights(state, layer_map(wanted.layers, deep, listed, "student.teacher_layers"), fold)
        else:
            chosen = copied_layers(teacher.config, config, family, listed)
            for path in (family.layer_path, *family.layer_lists):
                state = inherited_weights(state, path, chosen)
        student.load_state_dict(state)
    complete(student, family_named(name))
    return student.train()


def _resize(config: Any, kind: Any, family: Family, wanted: StudentSection) -> None:
    config.num_hidden_layers = wanted.layers
    for ours, theirs in (
        ("hidden", "hidden_size"),
        ("heads", "num_attention_heads"),
        ("intermediate", "intermediate_size"),
    ):
        if (value := getattr(wanted, ours)) is None:
            continue
        name = family.config_names.get(theirs, theirs)
        if not hasattr(config, name):
            what = f"{family.title} has no such size: config.json has no {name}."
            raise InputError(Problem(f"student.{ours}", what, "Leave it out."))
        setattr(config, name, value)
    if wanted.hidden is not None and hasattr(config, "pooler_hidden_size"):
        config.pooler_hidden_size = wanted.hidden  # the head takes the first token's state as it is
    if config.hidden_size % config.num_attention_heads:
        raise InputError(
            Problem(
                "student",
                f"hidden {config.hidden_size} is not a multiple of heads {config.num_attention_heads}.",
            )
        )
    if family.head_size is not None:
        setattr(config, family.head_size, config.hidden_size // config.num_attention_heads)
    config._attn_implementation = "sdpa" if kind._supports_sdpa else "eager"


def _shorten_lists(config: Any, family: Family, wanted: StudentSection) -> None:
    """Leave the entries of a configuration that list one value for each layer those of the student's layers."""
    assert wanted.layers is not None
    for name in family.by_layer:
        values = getattr(config, name, None)
        if isinstance(values, list) and len(set(values)) > 1:
            chosen = layer_map(wanted.layers, len(values), wanted.teacher_layers, "student.teacher_layers")
            setattr(config, name, [values[n - 1] for n in chosen])
        elif isinstance(values, list):
            setattr(config, name, values[:1] * wanted.layers)


def _class(teacher: Any, family: Family, change: ClassChange) -> Any:
    """The class of the student's family that corresponds to the teacher's."""
    import transformers

    suffix = type(teacher).__name__.removeprefix(family.classes)
    row = family_named(change.student)
    name = row.classes + change.heads.get(suffix, suffix)
    if not hasattr(transformers, name):
        raise InputError(
            Problem(
                "student.family",
                f"{row.title} has no class like {type(teacher).__name__}.",
                "Leave student.family out, or load the teacher with another head.",
            )
        )
    return getattr(transformers, name)


def inherited_weights(state: dict[str, Tensor], layer_path: str, chosen: list[int]) -> dict[str, Tensor]:
    """Teacher weights under the student's names.

    Args:
        state: Teacher state dict.
        layer_path: Path of the encoder layers in it.
        chosen: Teacher layer (from 1) for each student layer.

    Returns:
        A state dict that fills the student completely.
    """
    if not any(k.startswith(f"{layer_path}.") for k in state):
        # an encoder without a head lacks the name it has within one
        layer_path = layer_path.partition(".")[2]
    prefix = f"{layer_path}."
    out = {k: v.clone() for k, v in state.items() if not k.startswith(prefix)}
    for index, layer in enumerate(chosen):
        source = f"{prefix}{layer - 1}."
        for key, value in state.items():
            if key.startswith(source):
                out[f"{prefix}{index}.{key.removeprefix(source)}"] = value.clone()
    return out


def freeze_positions(model: torch.nn.Module) -> None:
    """Keep the table of positions as it is, as the original DistilBERT run did.

    Args:
        model: A model with learned absolute positions.

    Raises:
        InputError: If it has none.
    """
    tables = [m for n, m in model.named_modules() if n.rpartition(".")[2] == "position_embeddings"]
    if not tables:
        raise InputError(
            Problem("freeze_positions", f"{type(model).__name__} has no table of positions.", "Leave it out.")
        )
    for table in tables:
        table.requires_grad_(False)
