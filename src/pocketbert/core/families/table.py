"""The family table: registering and finding rows, and the registries of code that rows name by keys.

- The rows are in `rows`, one file for each architecture; `register_family` adds one. `family_of` finds the row of a
  `model_type`, `find_family` that of a name, `choose_row` and `suggest_row` one among those that share a graph.
- `ADAPTERS`, `CAPTURES`, `LAYER_PARTS` and `CHECKPOINTS` hold the code of families, which is imported when it is
  called. The package's own adapters and layer parts are registered by `pocketbert.export.adapters`, captures by
  `pocketbert.distill.capture`, checkpoints by `pocketbert.distill.students`. A subpackage imports its own before it
  looks one up; the checkpoints, which core reads, are added by `pocketbert/__init__.py`.
- `list_weight_names` lists a folder's weights as a family names them.
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
from pocketbert.core.families.rows import ROWS, static
from pocketbert.core.host.progress import print_note
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
        post_norm: ``post_norm(layer)`` returns the parts of a layer that is normalized after each residual sum, as a
            `pocketbert.export.adapters.lean.Parts`; None for families with other layers.
        lean: ``lean(layer, first_row, shape)`` returns the cheaper layer, if `post_norm` is None.
        stack: ``stack(encoder)`` returns a `pocketbert.export.adapters.lean.Stack` of an encoder that runs its layers
            more often than it stores them; `post_norm` then splits the layers of that stack. None if each layer runs
            once.
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
        read_names: ``read_names(state)`` returns the weights by their names in the transformers classes; `state` has
            these names or the authors' own.
        complete: ``complete(model)`` changes a model whose class takes other inputs than `Family.inputs`, so that it
            takes these.
        take_form: ``take_form(model, form, folder, entities)`` changes a loaded model so that it takes the inputs of an
            `ExportForm` (None: the text only), and returns the rows of the model's table of entities. `entities` is a
            file that lists the entities to keep.
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
        key: Name of the code, to which `Family.adapter` refers.
        adapter: Called with an eager copy of a model, which it may change, and an `ExportPlan`.
    """
    ADAPTERS.register(key, adapter)


def register_capture(key: str, install: _Capture) -> None:
    """Register the function that makes the models of a family record their attention for distillation.

    Args:
        key: Name of the code, to which `Family.capture` refers.
        install: Called with a model, which it changes permanently.
    """
    CAPTURES.register(key, install)


def register_layer_parts(key: str, parts: LayerParts) -> None:
    """Register the functions that split a family's encoder layers into parts, for cheaper graphs.

    Args:
        key: Name of the code, to which `Family.layer_parts` refers.
        parts: The functions.
    """
    LAYER_PARTS.register(key, parts)


def register_checkpoints(key: str, code: CheckpointCode) -> None:
    """Register the functions that load the checkpoints and tokenizers of a family.

    Args:
        key: Name of the code, to which `Family.checkpoints` refers.
        code: The functions.
    """
    CHECKPOINTS.register(key, code)


def checkpoint_code(family: Family) -> CheckpointCode:
    """Return the registered functions that load a family's checkpoints; empty ones if transformers is enough."""
    if family.checkpoints is None:
        return CheckpointCode()
    return CHECKPOINTS.find(family.checkpoints, f"family {family.name}")


# --- the table ------------------------------------------------------------


_FAMILIES: dict[str, Family] = {row.name: row for row in (*ROWS, static.ROW)}
STATIC_FAMILY = static.ROW.name
"""Name of the family of students without layers, a table of token vectors."""


def register_family(family: Family) -> None:
    """Add a model family to the table, or replace the one of the same name (plug-ins may only add).

    Args:
        family: The new family. The code that its keys name may be registered before or after it.
    """
    record_registration("family", family.name, family.name in _FAMILIES)
    _FAMILIES[family.name] = family


def all_families() -> tuple[Family, ...]:
    """List all supported model families, those of plug-ins included, in the order of registration."""
    load_plugins()
    return tuple(_FAMILIES.values())


def family_of(model_type: str, where: str = "config.json") -> Family:
    """Find the family of a config.json's `model_type`: of families that share a graph, the one whose graph it is.

    Args:
        model_type: The value in config.json.
        where: Name of the file in error messages.

    Raises:
        InputError: If no family has this model type.
    """
    for family in all_families():
        if model_type in family.model_types and family.loads_as is None:
            return family
    known = {t for f in all_families() if f.loads_as is None for t in f.model_types}
    # a library wrote it, so that it is another model and no slip of the pen: the nearest name would mislead
    what = f"model_type '{model_type}' is not in the family table (`pocketbert families` lists its {len(known)})."
    fix = "Use a checkpoint of a listed system, or add this one by a package of your own: docs/extending.md."
    raise InputError(Problem(where, what, fix))


def find_family(name: str, where: str = "family") -> Family:
    """Find a family by its name; raise InputError (naming `where`) if there is none."""
    rows = {f.name: f for f in all_families()}
    if name not in rows:
        raise InputError(Problem(where, f"'{name}' is not in the family table; {suggest_allowed(name, tuple(rows))}."))
    return rows[name]


def choose_row(family: Family, name: str, where: str) -> Family:
    """Find the family that the user chose by name; it must share the graph of `family`, the one that config.json names.

    Several families, such as BERT and MacBERT, share one architecture (graph) and differ in name and settings only.

    Raises:
        InputError: If there is no such family, or if it has another graph.
    """
    row = find_family(name, where)
    if row.graph == family.graph:
        return row
    same_graph = [f.name for f in all_families() if f.graph == family.graph]
    what = f"'{name}' is {row.title}; the model's config.json names {family.title}, which has another graph."
    raise InputError(Problem(where, what, f"Leave it out, or choose one of {', '.join(same_graph)}."))


def suggest_row(family: Family, weights: Iterable[str]) -> tuple[Family, str]:
    """Guess a checkpoint's family from the names of its weights, among the families that share its architecture.

    Returns:
        The family, and the name of the weight that shows it; `family` itself and an empty text if no weight shows
        another one.
    """
    names = list(weights)
    for row in all_families():
        if row.signs is not None and row.loads_as == family.name:
            weight = next((n for n in names if re.match(row.signs, n)), None)
            if weight is not None:
                return row, weight
    return family, ""


def check_distillable(family: Family, config: Mapping[str, object], where: str = "config.json") -> None:
    """Raise InputError if a model can be neither teacher nor student because of an entry in its config.json.

    Raises:
        InputError: If an entry has another value than in `Family.taught_with`; the message gives the reason.
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
        family: The model's family, which says where the neurons are.
        config: Entries of the model's config.json.
        intermediate: Number of feed-forward neurons that each layer keeps.
        where: Recipe key that sets this number, for the error message.

    Raises:
        InputError: If the family has no neurons that can be pruned, or the layers have no more neurons than are to remain.
    """
    if not family.feed_forward:
        limit = next((limit for limit in family.limits if _PRUNING_LIMIT in limit), "")
        reason = limit or "its row of the table of families does not say where they are (feed_forward)"
        what = f"feed-forward neurons of {family.title} cannot be pruned: {reason}."
        raise InputError(Problem("student.init", what, "Set init: teacher-layers, and leave intermediate out."))
    width = family.read_size(config, "intermediate_size")
    if width is not None and intermediate >= width:
        what = f"{intermediate} neurons are to stay, and each layer of {family.title} has {width}."
        fix = f"Choose a number below {width}, for example {width // 2}; to keep them all, set init: teacher-layers."
        raise InputError(Problem(where, what, fix))


def list_static_problems(family: Family, task: str, pairs: bool) -> list[Problem]:
    """Return the reasons, as problems to report, why a student without layers cannot learn a task from a teacher.

    Args:
        family: The teacher's family.
        task: Name of the task.
        pairs: Whether an answer is of a pair of texts.
    """
    problems = []
    reason = find_family(STATIC_FAMILY).invalid_tasks.get(task)
    if reason is not None:
        problems.append(Problem("student.layers", f"0 is no student for {task}: {reason}.", "Give it layers."))
    if family.padding_side != "right":
        what = f"a static student reads texts that are padded on the right, {family.title} pads on the left."
        problems.append(Problem("student.layers", what, "Give the student layers, or choose another teacher."))
    if pairs and not family.uses_segments:
        what = f"{family.title} does not mark the second text of a pair, whose mean a static student computes."
        fix = "Give the student layers, or choose a teacher with segment ids."
        problems.append(Problem("student.layers", what, fix))
    return problems


def check_exportable(family: Family, where: str = "model") -> None:
    """Raise InputError (naming `where`) if no exporter supports a family, with the alternative."""
    if family.instead_of_export is not None:
        raise InputError(Problem(where, f"no exporter writes {family.title}.", family.instead_of_export))


def list_weight_names(folder: Path) -> list[str]:
    """List the names of the weights in a Hugging Face folder, without a wrapper's part that all of them begin with."""
    from pocketbert.core.disk.weight_files import read_weight_names  # brings zipfile, which no first answer needs

    names = read_weight_names(folder)
    wrapper = _find_wrapper(names)
    return [name.removeprefix(wrapper) for name in names]


def _find_wrapper(names: Iterable[str]) -> str:
    """Return the part with which all names of weights begin, such as ``module.`` of a training program; empty if none.

    The name of the encoder, such as ``bert.``, is not counted as such a part: without it, weights of another family
    could fit by chance. In front of the name of another encoder it is one, as the first in ``model.bert.``.
    """
    paths = [f"{family.layer_path}." for family in all_families()]
    encoders = {path.partition(".")[0] for path in paths}
    levels = list(zip(*(name.split(".")[:-1] for name in names), strict=False))
    wrapper = ""
    for parts, following in zip(levels, [*levels[1:], ()], strict=False):
        inner = (f"{parts[0]}.{name}." for name in set(following) & encoders)
        is_outer = any(not any(path.startswith(part) for path in paths) for part in inner)
        if len(set(parts)) > 1 or (parts[0] in encoders and not is_outer):
            break
        wrapper += f"{parts[0]}."
    return wrapper


def name_as_class(state: Mapping[str, Any], family: Family) -> dict[str, Any]:
    """Rename a checkpoint's weights to the parameter names of the family's transformers class; return all weights.

    Unless the family's own code reads the names, a part that all of them begin with (`_find_wrapper`) is left out, and a
    note about it is printed.
    """
    read_names = checkpoint_code(family).read_names
    if read_names is not None:
        state = read_names(state)
    elif wrapper := _find_wrapper(state):
        print_note(f"all names of its weights begin with '{wrapper}', which is left out")
        state = {name.removeprefix(wrapper): value for name, value in state.items()}
    for old, new in family.key_renames.items():
        state = {name.replace(old, new): value for name, value in state.items()}
    return dict(state)
