"""The one table for the systems of the family, and the functions that ask it.

The rows are in `rows`, one file for each architecture. A row is data: facts, limits with their reason, and keys under which
code of the family is registered (`code`). Nothing but these rows, distill/capture, distill/students and export/adapters names
an architecture.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pocketbert.core.errors import InputError, Problem, nearest
from pocketbert.core.families.family import ExportForm, Family
from pocketbert.core.families.rows import ROWS
from pocketbert.core.plugins import Registry, announce, load_plugins

# --- code ---
# Where the code of a family is registered, by the keys that its row names. Light: the code itself is imported when it is called.
#
# The package's own code registers itself: adapters and layer parts from `pocketbert.export.adapters`, captures from
# `pocketbert.distill.capture`, checkpoints from `pocketbert.distill.students`. A wing imports its own before it looks one up;
# the checkpoints, which core reads, are added by `pocketbert/__init__.py`.


Adapter = Callable[[Any, Any], Any]
"""``adapter(model, plan)``: an eager copy of a transformers model, which it may change, and a
`pocketbert.export.adapters.mask_4d.ExportPlan`, to a torch module with explicit inputs and tuple outputs."""
Capture = Callable[[Any], None]
"""``install(model)``: from now on each layer calls in at the active `AttentionRecorder` in every forward pass."""


@dataclass(frozen=True)
class LayerParts:
    """How the encoder layers of a family are taken apart, for rewrites into cheaper graphs that compute the same.

    Classes are matched by full name, so that a subclass, which may compute anything, is left as it is. Every function may change
    the module it is given.

    Attributes:
        layer: Full name of the class of an encoder layer (``transformers.models.bert.modeling_bert.BertLayer``).
        post_norm: ``post_norm(layer)``: a `pocketbert.export.adapters.lean.Parts` of a post-norm layer; None of another kind.
        lean: ``lean(layer, first_row, shape)``: the cheaper layer, where `post_norm` is None.
        stack: ``stack(encoder)``: a `pocketbert.export.adapters.lean.Stack` of an encoder that runs its layers more often than
            it stores them; `post_norm` then takes apart the layers of that stack. None where each layer runs once.
        channels_first: ``channels_first(layer)``: the layer for Apple's Neural Engine, where `post_norm` is None.
        embeddings: ``embeddings(model)``: the model with cheaper embeddings, before anything else is rewritten.
        head: ``head(model)``: the model with a cheaper head.
        half_range: ``half_range(model, outputs, samples)``: brings large numbers into the range of fp16; returns what the last
            states are multiplied with.
        first_token_heads: Suffixes of classes whose outputs depend on the first token's last state alone.
    """

    layer: str
    post_norm: Callable[[Any], Any] | None = None
    lean: Callable[[Any, bool, Any], Any] | None = None
    stack: Callable[[Any], Any] | None = None
    channels_first: Callable[[Any], Any] | None = None
    embeddings: Callable[[Any], Any] | None = None
    head: Callable[[Any], Any] | None = None
    half_range: Callable[[Any, Sequence[str], Sequence[Any]], float] | None = None
    first_token_heads: tuple[str, ...] = ("ForSequenceClassification",)


@dataclass(frozen=True)
class CheckpointCode:
    """The code that reads checkpoints of a family which transformers cannot read.

    Attributes:
        make_known: ``make_known()``: lets transformers' Auto classes open folders of the family; may be called again.
        read_names: ``read_names(state)``: weights under the names of the classes, from those names or the original ones.
        complete: ``complete(model)``: makes a model that was loaded or built take the inputs of the family's row, where
            its class wants more.
        take_form: ``take_form(model, form, folder, entities)``: makes a loaded model take the inputs of an `ExportForm`, or of none;
            `entities` is a file of those to keep. Returns the entities of its table.
        tokenizer_json: ``tokenizer_json(folder)``: content of a tokenizer.json, from the files that authors ship.
        check_tokenizer: ``check_tokenizer(folder)``: refuses tokenizer files that nothing converts; called where the folder has
            no tokenizer.json.
        change_tokenizer: ``change_tokenizer(folder, content)``: tokenizer.json as the authors' own library cuts texts, from what
            transformers made of the files in the folder.
    """

    make_known: Callable[[], None] | None = None
    read_names: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None
    complete: Callable[[Any], None] | None = None
    take_form: Callable[[Any, ExportForm | None, Path, Path | None], list[dict[str, str]]] | None = None
    tokenizer_json: Callable[[Path], str] | None = None
    check_tokenizer: Callable[[Path], None] | None = None
    change_tokenizer: Callable[[Path, dict[str, Any]], dict[str, Any]] | None = None


ADAPTERS: Registry[Adapter] = Registry("adapter", "register_adapter")
CAPTURES: Registry[Capture] = Registry("capture", "register_capture")
LAYER_PARTS: Registry[LayerParts] = Registry("layer-parts", "register_layer_parts")
CHECKPOINTS: Registry[CheckpointCode] = Registry("checkpoints", "register_checkpoints")


def register_adapter(key: str, adapter: Adapter) -> None:
    """Register the code that makes the models of a family exportable.

    Args:
        key: What rows name as `Family.adapter`.
        adapter: Called with an eager copy of a model, which it may change, and an `ExportPlan`.
    """
    ADAPTERS.register(key, adapter)


def register_capture(key: str, install: Capture) -> None:
    """Register the code that makes the models of a family hand their attention to a recorder.

    Args:
        key: What rows name as `Family.capture`.
        install: Called with a model, which it changes for good.
    """
    CAPTURES.register(key, install)


def register_layer_parts(key: str, parts: LayerParts) -> None:
    """Register how the encoder layers of a family are taken apart, for cheaper graphs.

    Args:
        key: What rows name as `Family.layer_parts`.
        parts: The functions.
    """
    LAYER_PARTS.register(key, parts)


def register_checkpoints(key: str, code: CheckpointCode) -> None:
    """Register the code that reads the checkpoints of a family.

    Args:
        key: What rows name as `Family.checkpoints`.
        code: The functions.
    """
    CHECKPOINTS.register(key, code)


def checkpoint_code(family: Family) -> CheckpointCode:
    """Return the code that reads checkpoints of a family in addition to transformers."""
    if family.checkpoints is None:
        return CheckpointCode()
    return CHECKPOINTS.find(family.checkpoints, f"family {family.name}")


PRUNED = "student.init: pruned"
"""How a limit of a row names pruning."""
_FAMILIES: dict[str, Family] = {row.name: row for row in ROWS}


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
        if model_type in family.model_types and family.loads_as is None:
            return family
    known = [t for f in all_families() if f.loads_as is None for t in f.model_types]
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


def chosen_row(family: Family, name: str, where: str) -> Family:
    """Return the row that somebody chose for a model among those that share its graph.

    Args:
        family: The row that serves the model's `model_type`.
        name: The chosen one.
        where: What to blame in the error.

    Raises:
        InputError: If no row has the name, or it has another graph.
    """
    row = family_named(name, where)
    if row.graph == family.graph:
        return row
    same = [f.name for f in all_families() if f.graph == family.graph]
    raise InputError(
        Problem(
            where,
            f"'{name}' is {row.title}; the model's config.json names {family.title}, which has another graph.",
            f"Leave it out, or choose one of {', '.join(same)}.",
        )
    )


def suggested_row(family: Family, weights: Iterable[str]) -> tuple[Family, str]:
    """Guess from the names of a checkpoint's weights which of the rows that share a graph it belongs to.

    Args:
        family: The row that serves the model's `model_type`.
        weights: Names of the checkpoint's weights.

    Returns:
        The row, and the weight that suggests it; `family` and an empty string where none does.
    """
    names = list(weights)
    for row in all_families():
        if row.signs is not None and row.loads_as == family.name:
            found = next((n for n in names if re.match(row.signs, n)), None)
            if found is not None:
                return row, found
    return family, ""


def check_taught(family: Family, config: Mapping[str, object], where: str = "config.json") -> None:
    """Refuse a model that can be neither teacher nor student, although files of it can be written.

    Args:
        family: Its row.
        config: Entries of its config.json.
        where: What to blame in the error.

    Raises:
        InputError: If an entry has another value than the row says, with the limits of the row that name it.
    """
    for key, value in family.taught_with.items():
        if config.get(key, value) != value:
            why = next((f": {limit}" for limit in family.limits if key in limit), "")
            what = f"{key} is {config[key]!r:.40}, distillation of {family.title} knows {value!r} only{why}."
            raise InputError(Problem(where, what, "Export the model without a student, or use another checkpoint."))


def check_pruned(
    family: Family, config: Mapping[str, object], intermediate: int, where: str = "student.intermediate"
) -> None:
    """Refuse to prune feed-forward neurons of a model that cannot lose them, or has no more than are to stay.

    Args:
        family: Its row.
        config: Entries of its config.json.
        intermediate: Neurons that are to stay in each layer.
        where: Recipe key of that number.

    Raises:
        InputError: With the reason.
    """
    if not family.feed_forward:
        limit = next((limit for limit in family.limits if PRUNED in limit), "")
        reason = limit or "its row of the table of families does not say where they are (feed_forward)"
        what = f"feed-forward neurons of {family.title} cannot be pruned: {reason}."
        raise InputError(Problem("student.init", what, "Set init: teacher-layers, and leave intermediate out."))
    width = config.get(family.config_names.get("intermediate_size", "intermediate_size"))
    if isinstance(width, int) and intermediate >= width:
        what = f"{intermediate} neurons are to stay, and each layer of {family.title} has {width}."
        fix = f"Choose a number below {width}, for example {width // 2}; to keep them all, set init: teacher-layers."
        raise InputError(Problem(where, what, fix))


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
