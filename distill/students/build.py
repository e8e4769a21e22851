"""Build students: smaller models of the teacher's class or of a related one.

They start from teacher layers, from the teacher's embeddings reduced to a smaller width, or at random.

`build_student` builds a student. A student of another class than its teacher needs a `ClassChange`, added with
`register_class_change`; the package has one, from BERT to DistilBERT. `freeze_positions` freezes the position table of
a student.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import Family, family_of, find_family
from pocketbert.core.host.progress import print_note
from pocketbert.core.models.checkpoints import finish_loading
from pocketbert.core.plugins import Registry
from pocketbert.core.recipe.student import StudentSection
from pocketbert.core.seeds import derive_seed
from pocketbert.distill.students.layer_map import copied_layers, layer_map, shorten_layer_lists
from pocketbert.distill.students.projection import find_principal_axes


@dataclass(frozen=True)
class ClassChange:
    """How to build a student of one model family from a teacher of another, such as a DistilBERT from a BERT.

    Attributes:
        teacher: Name of the teacher's model family.
        student: Name of the student's model family.
        config: Function that makes the student's configuration from the teacher's.
        weights: Function that makes the student's state dict from the teacher's, the copied teacher layers (from 1),
            and whether the vector of segment 0 is added to the position table.
        heads: Suffixes of class names that change, old to new (``ForPreTraining`` to ``ForMaskedLM``); others stay.
        layers: Teacher layers (from 1) that the student's authors chose, by (student depth, teacher depth).
    """

    teacher: str
    student: str
    config: Callable[[Any], Any]
    weights: Callable[[Mapping[str, Tensor], list[int], bool], dict[str, Tensor]]
    heads: Mapping[str, str] = field(default_factory=dict)
    layers: Mapping[tuple[int, int], list[int]] = field(default_factory=dict)


CLASS_CHANGES: Registry[ClassChange] = Registry("class-change", "register_class_change")


def register_class_change(change: ClassChange) -> None:
    """Register how a student of one model family is built from a teacher of another.

    Args:
        change: Functions that convert configuration and weights; replaces the change between the same families.
    """
    CLASS_CHANGES.register(_key(change), change)


def _key(change: ClassChange) -> str:
    """Return the name under which a change between two families is registered."""
    return f"{change.teacher} to {change.student}"


def build_student(teacher: Any, family: Family, section: StudentSection, seed: int) -> Any:
    """Build an untrained student for a teacher: with copied teacher layers, with its embeddings, or with random weights.

    Args:
        teacher: A transformers model.
        family: Names, layer paths and inputs of the teacher's model family.
        section: The recipe's student section: number of layers, how weights are initialized, and family and sizes if
            they differ from the teacher's. With ``init: pruned`` the teacher must be a model that
            `pocketbert.distill.students.pruning.pruned` returned.
        seed: Seed of random weights.

    Returns:
        A model of the teacher's class, or the corresponding class of another family; fp32, in training mode. A student
        of the teacher's class that starts from its layers is the teacher with fewer layers; what a student of another
        class loses is documented with the functions of its `ClassChange`.

    Raises:
        InputError: If the sizes do not fit, or the family cannot be made from this teacher.
    """
    assert section.layers is not None, "a student with `model` is loaded, not built"
    config, change = _make_config(teacher.config, family, section)
    model_class = _corresponding_class(teacher, family, change) if change else type(teacher)
    config._attn_implementation = "sdpa" if model_class._supports_sdpa else "eager"
    row = family_of(config.model_type)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "student"))
        student = model_class(config)
    if section.init == "embeddings":
        state = change.weights(teacher.state_dict(), [], section.fold_segments) if change else teacher.state_dict()
        print_note(
            f"  the student starts from the teacher's embeddings, {config.hidden_size} numbers wide, and layers at random"
        )
        _copy_embeddings(state, student, row, teacher.config.hidden_size)
    elif section.init != "random":
        depth = teacher.config.num_hidden_layers
        listed = section.teacher_layers or (change.layers.get((section.layers, depth)) if change else None)
        state = teacher.state_dict()
        if change:
            chosen = layer_map(section.layers, depth, listed, "student.teacher_layers")
            state = change.weights(state, chosen, section.fold_segments)
        else:
            chosen = copied_layers(teacher.config, config, family, listed)
            for path in (family.layer_path, *family.layer_lists):
                state = _select_layers(state, path, chosen)
        student.load_state_dict(state)
    finish_loading(student, row)
    return student.train()


def check_student_sizes(teacher_config: Any, family: Family, section: StudentSection) -> int:
    """Check that a student of these sizes can be built, without building it or opening the teacher's weights; return its size.

    Args:
        teacher_config: transformers configuration of the teacher.
        family: The teacher's model family.
        section: The recipe's student section, with `layers`.

    Returns:
        The number of weights of its encoder; without the table of words if `section` keeps only some of its pieces.

    Raises:
        InputError: Naming the sizes that do not fit each other, the teacher or the student's family.
    """
    import transformers

    config, _ = _make_config(teacher_config, family, section)
    try:
        with torch.device("meta"):
            encoder = transformers.AutoModel.from_config(config)
    except (ValueError, AssertionError, RuntimeError) as error:
        given = ", ".join(f"{key} {value}" for key in _SIZES if (value := getattr(section, key)) is not None)
        what = f"{given}: {family_of(config.model_type).title} cannot have these sizes: {str(error).splitlines()[0]}."
        groups = [v for k, v in config.to_dict().items() if k.endswith("_groups") and isinstance(v, int)]
        fix = (
            f"Set multiples of {math.lcm(*groups)}." if groups else "Leave them out, or set multiples of the teacher's."
        )
        raise InputError(Problem("student", what, fix)) from error
    count: int = sum(parameter.numel() for parameter in encoder.parameters())
    return count if section.vocabulary is None else count - encoder.get_input_embeddings().weight.numel()


def _make_config(teacher_config: Any, family: Family, section: StudentSection) -> tuple[Any, ClassChange | None]:
    """Make a student's transformers configuration; return it with the `ClassChange` of another family, else None.

    Raises InputError if the sizes do not fit, or the family cannot be made from this teacher.
    """
    assert section.layers is not None, "a student with `model` is loaded, not built"
    name = section.family or family.graph
    change = _find_change(family.graph, name) if name != family.graph else None
    if section.fold_segments and (change is None or section.init == "random"):
        what = "only a student of another family than its teacher, started from teacher layers, loses a segment table."
        raise InputError(Problem("student.fold_segments", what, "Leave fold_segments out."))
    config = change.config(teacher_config) if change else copy.deepcopy(teacher_config)
    own = config.hidden_size, config.num_attention_heads
    row = family_of(config.model_type)
    _set_sizes(config, row, section)
    if section.init == "embeddings":
        _check_width(own, config, section)
    shorten_layer_lists(config, row, section.layers, section.teacher_layers)
    return config, change


def _check_width(own: tuple[int, int], config: Any, section: StudentSection) -> None:
    """Raise InputError for a width above the teacher's, or for given sizes that are the teacher's own.

    Args:
        own: The teacher's width and number of heads.
        config: The student's configuration.
        section: The recipe's student section.
    """
    if config.hidden_size > own[0]:
        what = f"{config.hidden_size} is wider than the teacher's {own[0]}, whose embeddings it would start from."
        raise InputError(Problem("student.hidden", what, f"Set hidden below {own[0]}, or init: random."))
    if (section.hidden or section.heads) and (config.hidden_size, config.num_attention_heads) == own:
        what = f"hidden {own[0]} and heads {own[1]} are the teacher's own: its layers fit, and would not be used."
        fix = "Leave hidden and heads out to start from the teacher's layers, or set init: random."
        raise InputError(Problem("student", what, fix))


def _find_change(teacher: str, student: str) -> ClassChange:
    """Return the registered `ClassChange` between two families; raise InputError with the possible families if none."""
    changes = CLASS_CHANGES.values()
    for change in changes:
        if (change.teacher, change.student) == (teacher, student):
            return change
    possible = [teacher, *(c.student for c in changes if c.teacher == teacher)]
    what = f"'{student}' cannot be made from a teacher of family '{teacher}'; possible: {', '.join(possible)}."
    raise InputError(Problem("student.family", what, "Choose one of these, or leave family out."))


def _corresponding_class(teacher: Any, family: Family, change: ClassChange) -> Any:
    """Return the transformers class of the student's family that has the same head as the teacher's class."""
    import transformers

    suffix = type(teacher).__name__.removeprefix(family.classes)
    row = find_family(change.student)
    name = row.classes + change.heads.get(suffix, suffix)
    if not hasattr(transformers, name):
        fix = "Leave student.family out, or load the teacher with another head."
        raise InputError(Problem("student.family", f"{row.title} has no class like {type(teacher).__name__}.", fix))
    return getattr(transformers, name)


_SIZES = {"hidden": "hidden_size", "heads": "num_attention_heads", "intermediate": "intermediate_size"}


def _set_sizes(config: Any, family: Family, section: StudentSection) -> None:
    """Set the student's number of layers, widths and heads in its configuration; raise InputError if they do not fit."""
    config.num_hidden_layers = section.layers
    for key, usual_name in _SIZES.items():
        if (value := getattr(section, key)) is None:
            continue
        name = family.config_names.get(usual_name, usual_name)
        if not hasattr(config, name):
            what = f"{family.title} has no such size: config.json has no {name}."
            raise InputError(Problem(f"student.{key}", what, "Leave it out."))
        setattr(config, name, value)
    if section.hidden is not None:
        for name in family.width_copies:
            setattr(config, name, section.hidden)
    if config.hidden_size % config.num_attention_heads:
        width, heads = config.hidden_size, config.num_attention_heads
        what = f"hidden {width} is not a multiple of heads {heads}."
        fitting = max(n for n in range(1, heads) if width % n == 0)
        fix = f"Set heads: {fitting}, or hidden to a multiple of {heads}, such as {max(width // heads, 1) * heads}."
        raise InputError(Problem("student", what, fix))
    if family.head_size is not None:
        setattr(config, family.head_size, config.hidden_size // config.num_attention_heads)


@torch.no_grad()
def _copy_embeddings(state: Mapping[str, Tensor], student: Any, family: Family, width: int) -> None:
    """Copy a teacher's weights outside its layers into a student, reduced to the student's width.

    An axis that is as wide as the teacher's states is multiplied by the principal axes of its word vectors, as for
    MobileBERT's students of ordinary teachers. Norms of such an axis, and weights that still have another shape, keep
    their first values. So do the layers: the teacher's, reduced in the same way, were a worse start.

    Args:
        state: The teacher's weights by the names of the student's.
        student: The student; changed in place.
        family: Model family of the student.
        width: Width of the teacher's states.

    Raises:
        InputError: If the teacher has neither word vectors as wide as its states nor a map between the two.
    """
    paths = (family.layer_path, *family.layer_lists)
    layers = (*paths, *(path.partition(".")[2] for path in paths if "." in path))
    own = {
        n: p for n, p in student.named_parameters() if n in state and not n.startswith(tuple(f"{p}." for p in layers))
    }
    basis = torch.eye(width)
    if student.config.hidden_size != width:
        table = next(state[n] for n, p in own.items() if p is student.get_input_embeddings().weight)
        if table.shape[1] != width:  # a table of its own width, mapped to that of the states
            map_shape = (width, table.shape[1])
            maps = (
                w for n, w in state.items() if w.shape == map_shape and not n.startswith(tuple(f"{p}." for p in layers))
            )
            table = next((table @ w.T for w in maps), table)
        if table.shape[1] != width:
            what = f"{family.title}'s word vectors have {table.shape[1]} numbers, its states {width}: the student cannot start from them."
            raise InputError(Problem("student.init", what, "Set init: random, or leave hidden out."))
        centred = (table - table.mean(0)).double()
        basis = find_principal_axes(centred.T @ centred, student.config.hidden_size).float()
    is_norm = {n for n, m in student.named_modules() if "norm" in type(m).__name__.lower()}
    for name, parameter in own.items():
        value = state[name]
        for axis, (given, wanted) in enumerate(zip(value.shape, parameter.shape, strict=True)):
            if (given, wanted) == basis.shape and given != wanted and name.rpartition(".")[0] not in is_norm:
                value = torch.tensordot(value, basis, dims=([axis], [0])).movedim(-1, axis)
        if value.shape == parameter.shape:
            parameter.copy_(value)


def _select_layers(state: dict[str, Tensor], layer_path: str, chosen: list[int]) -> dict[str, Tensor]:
    """Return a copy of a state dict in which only the chosen layers (from 1) remain, renumbered from 0."""
    if not any(name.startswith(f"{layer_path}.") for name in state):
        # an encoder without a head lacks the first part of the path
        layer_path = layer_path.partition(".")[2]
    prefix = f"{layer_path}."
    selected = {name: value.clone() for name, value in state.items() if not name.startswith(prefix)}
    for index, layer in enumerate(chosen):
        source = f"{prefix}{layer - 1}."
        for name, value in state.items():
            if name.startswith(source):
                selected[f"{prefix}{index}.{name.removeprefix(source)}"] = value.clone()
    return selected


def freeze_positions(model: torch.nn.Module) -> None:
    """Freeze the table of position embeddings of a model, as in the original training of DistilBERT.

    Args:
        model: A model with learned absolute position embeddings.

    Raises:
        InputError: If the model has no such table.
    """
    tables = [m for n, m in model.named_modules() if n.rpartition(".")[2] == "position_embeddings"]
    if not tables:
        what = f"{type(model).__name__} has no table of positions."
        raise InputError(Problem("freeze_positions", what, "Leave it out."))
    for table in tables:
        table.requires_grad_(False)


# --- from BERT to DistilBERT ------------------------------------------------------------------------------------------

_LAYER_NAMES = {
    "attention.self.query": "attention.q_lin",
    "attention.self.key": "attention.k_lin",
    "attention.self.value": "attention.v_lin",
    "attention.output.dense": "attention.out_lin",
    "attention.output.LayerNorm": "sa_layer_norm",
    "intermediate.dense": "ffn.lin1",
    "output.dense": "ffn.lin2",
    "output.LayerNorm": "output_layer_norm",
}
_EMBEDDINGS = ("embeddings.word_embeddings", "embeddings.position_embeddings", "embeddings.LayerNorm")
_HEAD_NAMES = {
    "cls.predictions.transform.dense": "vocab_transform",
    "cls.predictions.transform.LayerNorm": "vocab_layer_norm",
    "cls.predictions.decoder": "vocab_projector",
    "classifier": "classifier",
    "qa_outputs": "qa_outputs",
}
_POSITIONS = "embeddings.position_embeddings.weight"
_SEGMENTS = "embeddings.token_type_embeddings.weight"
_LAYER_WEIGHT = re.compile(r"encoder\.layer\.(\d+)\.(.+)\.([^.]+)")


def _distilbert_config(teacher: Any) -> Any:
    """Return a DistilBERT configuration with the sizes, dropout rates and labels of a BERT configuration.

    Its norms have epsilon 1e-12.
    """
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


def _distilbert_weights(teacher: Mapping[str, Tensor], chosen: list[int], fold_segments: bool) -> dict[str, Tensor]:
    """Copy a BERT's weights, only the chosen layers (from 1), under the parameter names of DistilBERT.

    DistilBERT has no segment table. The released code drops the vector of segment 0, which the teacher adds at every
    position of a single text. With `fold_segments` it is added to the position table, so that the student's embedding
    output equals the teacher's there.

    DistilBERT has no pooler. A classifier's pooler weights go to ``pre_classifier``, which is followed by a ReLU where
    BERT has tanh: a good start, not the same function. Any other pooler and the next-sentence head are left out.
    """
    has_head = any(name.startswith("bert.") for name in teacher)
    base, prefix = ("bert.", "distilbert.") if has_head else ("", "")
    names = {base + name: prefix + name for name in _EMBEDDINGS}
    if has_head:
        names |= _HEAD_NAMES
    if "classifier.weight" in teacher and f"{base}pooler.dense.weight" in teacher:
        names[f"{base}pooler.dense"] = "pre_classifier"
    weights = {}
    for name, value in teacher.items():
        module, _, parameter = name.rpartition(".")
        in_layer = _LAYER_WEIGHT.fullmatch(name.removeprefix(base))
        if module in names:
            weights[f"{names[module]}.{parameter}"] = value.clone()
        elif in_layer:
            number, part, parameter = in_layer.groups()
            for student_layer, teacher_layer in enumerate(chosen):
                if teacher_layer == int(number) + 1:
                    new_name = f"{prefix}transformer.layer.{student_layer}.{_LAYER_NAMES[part]}.{parameter}"
                    weights[new_name] = value.clone()
    if fold_segments:
        weights[prefix + _POSITIONS] += teacher[base + _SEGMENTS][0]
    return weights


_BERT_TO_DISTILBERT = ClassChange(
    teacher="bert",
    student="distilbert",
    config=_distilbert_config,
    weights=_distilbert_weights,
    heads={"ForPreTraining": "ForMaskedLM"},
    # the released weights' start; the paper (arXiv 1910.01108, section 3) only says one layer out of two
    layers={(6, 12): [1, 3, 5, 8, 10, 12]},
)
CLASS_CHANGES.add(_key(_BERT_TO_DISTILBERT), _BERT_TO_DISTILBERT)
