"""Students: smaller models of the teacher's class or of a related one, started from teacher layers or at random."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import Family, family_named, family_of
from pocketbert.core.models.checkpoints import complete
from pocketbert.core.recipe.student import StudentSection
from pocketbert.core.seeds import derive_seed
from pocketbert.distill.students import distilbert_keys  # noqa: F401 - it registers itself
from pocketbert.distill.students.class_changes import ClassChange, class_change
from pocketbert.distill.students.copied_layers import copied_layers, shorten
from pocketbert.distill.students.layer_map import layer_map


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
