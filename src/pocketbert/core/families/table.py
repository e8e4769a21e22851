"""The family table: registering and finding rows, and the registries of code that rows name by keys.

- The rows are in `rows`, one file for each architecture; `register_family` adds one. `family_of` finds the row of a
  `model_type`, `find_family` that of a name, `choose_row` and `suggest_row` one among those that share a graph.
- `ADAPTERS`, `CAPTURES`, `LAYER_PARTS` and `CHECKPOINTS` hold the code of families, which is imported when it is
  called. The package's own adapters and layer parts are registered by `pocketbert.export.adapters`, captures by
  `pocketbert.distill.capture`, checkpoints by `pocketbert.distill.students`. A wing imports its own before it looks
  one up; the checkpoints, which core reads, are added by `pocketbert/__init__.py`.
- `check_distillable`, `check_prunable` and `check_exportable` refuse what a family cannot do.

Nothing but the rows, distill/capture, distill/students and export/adapters names an architecture.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pocketbert.core.errors import InputError, Problem, suggest_allowed
from pocketbert.core.families.family import ExportForm, Family
from pocketbert.core.families.rows import ROWS
from pocketbert.core.plugins import Registry, load_plugins, record_registration

_Adapter = Callable[[Any, Any], Any]
"""``adapter(model, plan)``: from an eager copy of a transformers model, which it may change, and a
`pocketbert.export.adapters.mask_4d.ExportPlan`, makes a torch module with explicit inputs and tuple outputs."""
_Capture = Callable[[Any], None]
"""``install(model)``: changes the model so that each layer calls the active `AttentionRecorder` in every forward
pass."""
_PRUNING_LIMIT = "student.init: pruned"
"""Words by which a row's limit on pruning is found."""


# --- code of families ------------------------------------------------------------


@dataclass(frozen=True)
class LayerParts:
    """Functions that split a family's encoder layers into parts, from which cheaper equivalent graphs are built.

    Classes are matched by full name, so that a subclass, which may compute anything, is not rewritten. Every
    function may change the module it is given.

    Attributes:
        layer: Full name of the class of an encoder layer (``transformers.models.bert.modeling_bert.BertLayer``).
        post_norm: ``post_norm(layer)`` returns a `pocketbert.export.adapters.lean.Parts` of a post-norm layer; None
            for layers of another kind.
        lean: ``lean(layer, first_row, shape)`` returns the cheaper layer, if `post_norm` is None.
        stack: ``stack(encoder)`` returns a `pocketbert.export.adapters.lean.Stack` of an encoder that runs its
            layers more often than it stores them; `post_norm` then takes apart the layers of that stack. None if
            each layer runs once.
        channels_first: ``channels_first(layer)`` returns the layer for Apple's Neural Engine, if `post_norm` is None.
        embeddings: ``embeddings(model)`` returns the model with cheaper embeddings, before anything else is rewritten.
        head: ``head(model)`` returns the model with a cheaper head.
        half_range: ``half_range(model, outputs, samples)`` scales large numbers into the range of fp16; returns the
            factor of the last states.
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
    """Functions that load a family's checkpoints and tokenizers where transformers alone cannot.

    Attributes:
        make_known: ``make_known()`` registers the family with transformers' Auto classes; may be called again.
        read_names: ``read_names(state)`` returns the weights under the names of the classes, from those names or the
            original ones.
        complete: ``complete(model)`` changes a model that was loaded or built so that it takes the inputs of the
            family's row, if its class takes others.
        take_form: ``take_form(model, form, folder, entities)`` changes a loaded model so that it takes the inputs of an
            `ExportForm` (None: the text only); `entities` is a file of those to keep. Returns the rows of its table.
        tokenizer_json: ``tokenizer_json(folder)`` returns the content of a tokenizer.json, from the files that
            authors ship.
        check_tokenizer: ``check_tokenizer(folder)`` refuses tokenizer files that cannot be converted; called if the
            folder has no tokenizer.json.
        change_tokenizer: ``change_tokenizer(folder, content)`` corrects the content of a tokenizer.json that
            transformers converted, so that it splits texts as the authors' own library does.
    """

    make_known: Callable[[], None] | None = None
    read_names: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None
    complete: Callable[[Any], None] | None = None
    take_form: Callable[[Any, ExportForm | None, Path, Path | None], list[dict[str, str]]] | None = None
    tokenizer_json: Callable[[Path], str] | None = None
    check_tokenizer: Callable[[Path], None] | None = None
    change_tokenizer: Callable[[Path, dict[str, Any]], dict[str, Any]] | None = None


ADAPTERS: Registry[_Adapter] = Registry("adapter", "register_adapter")
CAPTURES: Registry[_Capture] = Registry("capture", "register_capture")
LAYER_PARTS: Registry[LayerParts] = Registry("layer-parts", "register_layer_parts")
CHECKPOINTS: Registry[CheckpointCode] = Registry("checkpoints", "register_checkpoints")


def register_adapter(key: str, adapter: _Adapter) -> None:
    """Register the function that prepares the models of a family for export.

    Args:
        key: Name of the code, which rows of the family table give as `Family.adapter`.
        adapter: Called with an eager copy of a model, which it may change, and an `ExportPlan`.
    """
    ADAPTERS.register(key, adapter)


def register_capture(key: str, install: _Capture) -> None:
    """Register the function that makes the models of a family record their attention for distillation.

    Args:
        key: Name of the code, which rows of the family table give as `Family.capture`.
        install: Called with a model, which it changes permanently.
    """
    CAPTURES.register(key, install)


def register_layer_parts(key: str, parts: LayerParts) -> None:
    """Register the functions that split a family's encoder layers into parts, for cheaper graphs.

    Args:
        key: Name of the code, which rows of the family table give as `Family.layer_parts`.
        parts: The functions.
    """
    LAYER_PARTS.register(key, parts)


def register_checkpoints(key: str, code: CheckpointCode) -> None:
    """Register the functions that load the checkpoints and tokenizers of a family.

    Args:
        key: Name of the code, which rows of the family table give as `Family.checkpoints`.
        code: The functions.
    """
    CHECKPOINTS.register(key, code)


def checkpoint_code(family: Family) -> CheckpointCode:
    """Return the registered functions that load a family's checkpoints; empty ones if transformers is enough."""
    if family.checkpoints is None:
        return CheckpointCode()
    return CHECKPOINTS.find(family.checkpoints, f"family {family.name}")


# --- the table ------------------------------------------------------------


_FAMILIES: dict[str, Family] = {row.name: row for row in ROWS}


def register_family(family: Family) -> None:
    """Add a model family to the table, or replace the one of the same name (plug-ins may only add).

    Args:
        family: The new row. The keys it names are looked up when they are needed, so code may be registered before
            or after.
    """
    record_registration("family", family.name, family.name in _FAMILIES)
    _FAMILIES[family.name] = family


def all_families() -> tuple[Family, ...]:
    """List all supported model families, those of plug-ins included, in the order of registration."""
    load_plugins()
    return tuple(_FAMILIES.values())


def family_of(model_type: str, where: str = "config.json") -> Family:
    """Find the family of a config.json's `model_type`; raise InputError if none supports it.

    Args:
        model_type: The value in config.json.
        where: Name of the file in error messages.

    Raises:
        InputError: If no row has it.
    """
    for family in all_families():
        if model_type in family.model_types and family.loads_as is None:
            return family
    known = [t for f in all_families() if f.loads_as is None for t in f.model_types]
    # a library wrote it, so that it is another model and no slip of the pen
    what = f"model_type '{model_type}' is not in the family table, which has {', '.join(sorted(known))}."
    fix = "Add a row with pocketbert.core.families.register_family, or use a supported system."
    raise InputError(Problem(where, what, fix))


def find_family(name: str, where: str = "family") -> Family:
    """Find a family by its name; raise InputError (naming `where`) if there is none."""
    rows = {f.name: f for f in all_families()}
    if name not in rows:
        raise InputError(Problem(where, f"'{name}' is not in the family table; {suggest_allowed(name, tuple(rows))}."))
    return rows[name]


def choose_row(family: Family, name: str, where: str) -> Family:
    """Find the family row that the user chose by name, and check that it shares the graph of the model.

    Raises:
        InputError: If no row has the name, or it has another graph.
    """
    row = find_family(name, where)
    if row.graph == family.graph:
        return row
    same_graph = [f.name for f in all_families() if f.graph == family.graph]
    what = f"'{name}' is {row.title}; the model's config.json names {family.title}, which has another graph."
    raise InputError(Problem(where, what, f"Leave it out, or choose one of {', '.join(same_graph)}."))


def suggest_row(family: Family, weights: Iterable[str]) -> tuple[Family, str]:
    """Guess from the names of a checkpoint's weights which of the family rows with the same graph it belongs to.

    Returns:
        The row, and the name of the weight that identifies it; `family` and an empty string if none does.
    """
    names = list(weights)
    for row in all_families():
        if row.signs is not None and row.loads_as == family.name:
            weight = next((n for n in names if re.match(row.signs, n)), None)
            if weight is not None:
                return row, weight
    return family, ""


def check_distillable(family: Family, config: Mapping[str, object], where: str = "config.json") -> None:
    """Raise InputError if distillation does not support a model's config.json, neither as teacher nor as student.

    Raises:
        InputError: If an entry has another value than `Family.taught_with`, with the limit of the row that names it.
    """
    for key, value in family.taught_with.items():
        if config.get(key, value) != value:
            why = next((f": {limit}" for limit in family.limits if key in limit), "")
            what = f"{key} is {config[key]!r:.40}, distillation of {family.title} knows {value!r} only{why}."
            raise InputError(Problem(where, what, "Export the model without a student, or use another checkpoint."))


def check_prunable(
    family: Family, config: Mapping[str, object], intermediate: int, where: str = "student.intermediate"
) -> None:
    """Raise InputError if a model's feed-forward neurons cannot be pruned to `intermediate` per layer.

    Args:
        family: Its row.
        config: Entries of its config.json.
        intermediate: Neurons that are to stay in each layer.
        where: Recipe key of that number.

    Raises:
        InputError: With the reason.
    """
    if not family.feed_forward:
        limit = next((limit for limit in family.limits if _PRUNING_LIMIT in limit), "")
        reason = limit or "its row of the table of families does not say where they are (feed_forward)"
        what = f"feed-forward neurons of {family.title} cannot be pruned: {reason}."
        raise InputError(Problem("student.init", what, "Set init: teacher-layers, and leave intermediate out."))
    width = config.get(family.config_names.get("intermediate_size", "intermediate_size"))
    if isinstance(width, int) and intermediate >= width:
        what = f"{intermediate} neurons are to stay, and each layer of {family.title} has {width}."
        fix = f"Choose a number below {width}, for example {width // 2}; to keep them all, set init: teacher-layers."
        raise InputError(Problem(where, what, fix))


def check_exportable(family: Family, where: str = "model") -> None:
    """Raise InputError (naming `where`) if no exporter supports a family, with the alternative."""
    if family.instead_of_export is not None:
        raise InputError(Problem(where, f"no exporter writes {family.title}.", family.instead_of_export))
