"""Loading a model folder into a transformers class (`load_model`), and saving one (`save_model`).

torch and transformers are imported inside the functions.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pocketbert.core.data.labels import Labels
from pocketbert.core.disk.files import read_json, write_json
from pocketbert.core.disk.weight_files import first_sentence, read_weights
from pocketbert.core.errors import InputError, MissingBackendError, Problem
from pocketbert.core.families import ATTENTION_KEY, FORM_KEY, TEXT_ONLY, Family, family_of
from pocketbert.core.families.table import checkpoint_code, name_as_class
from pocketbert.core.host.system import version_of
from pocketbert.core.models.folder import FAMILY_KEY, IDENTITY_CLASS, SIGMOID_CLASS, ModelFolder
from pocketbert.core.models.tokenizers import check_tokenizer, save_tokenizer
from pocketbert.core.models.weights import (
    GENERATED_WEIGHTS,
    canonical_names,
    match_weights,
    missing_weights,
    rename_head,
    rename_paths,
)
from pocketbert.core.predict.sentence_settings import SETTINGS_FILE, is_cross_encoder, read_settings
from pocketbert.core.tasks import HEAD_TASKS, HEADS_KEY, TASKS, ScoreFunction, Task, TaskName
from pocketbert.core.types import Attention

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


_FIXED_ENTRIES = {"chunk_size_feed_forward": 0, "output_hidden_states": False, "return_dict": True}
"""Entries of config.json that decide how transformers runs a model and not what it computes, and their values here."""
_IGNORED_ENTRIES = (
    "auto_map",
    "attn_implementation",
    "experts_implementation",
    "output_attentions",
    "torchscript",
)
"""Entries that name code, or that no class of the family table reads and transformers would act on."""
_ROTARY_ENTRIES = ("rope_parameters", "rope_scaling", "rope_theta")
"""Entries that transformers acts on in any family, and only those with rotary positions read."""
_DTYPES = ("float64", "float32", "float16", "bfloat16")


def missing_libraries() -> list[str]:
    """Return which of torch and transformers, the libraries that load weights, are not installed."""
    return [name for name in ("torch", "transformers") if version_of(name) is None]


def require_torch() -> None:
    """Raise MissingBackendError, with the pip command that helps, if torch or transformers is not installed."""
    for name in missing_libraries():
        raise MissingBackendError(name, "pip install 'pocketbert[train,onnx]'")


# --- loading ------------------------------------------------------------


def load_model(
    folder: ModelFolder, task: Task, labels: Labels | None = None, new_head: bool = False
) -> PreTrainedModel:
    """Build the transformers model with the task's head, and load the folder's weights into it.

    transformers logs errors only from then on, in the whole process.

    Args:
        folder: The model folder.
        task: The task, which determines the head and so the class of the model.
        labels: Label set to write into the model's configuration; needed for a new head.
        new_head: Whether a head that the checkpoint lacks may start with random weights.

    Returns:
        The model in eval mode, fp32, on the CPU.

    Raises:
        InputError: If the family cannot do the task, if config.json or the tokenizer is not valid, or if the weights
            are broken, lack a head that must not be new, or do not fit the class.
    """
    require_torch()
    import torch
    import transformers

    why = next(
        (w for t in (task, *(h.task for h in task.heads)) if (w := folder.family.invalid_tasks.get(t.name))), None
    )
    if why is not None:
        raise InputError(Problem(str(folder.path), f"{folder.family.title} cannot do {task.name}: {why}."))
    if folder.heads is not None and not task.heads and not new_head and task.name in HEAD_TASKS:
        what = f"has several heads ({', '.join(folder.heads)}), which {task.name} would read as one."
        raise InputError(
            Problem(str(folder.path), what, "Leave --task (in a recipe task) out, or list its heads under tasks.")
        )
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    # torchao, which comes with litert-torch, is imported by transformers and warns about its own enums
    logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)
    register_with_transformers(folder.family)
    check_tokenizer(folder.path, folder.config, folder.family)
    config = _build_config(folder, task, labels, new_head)
    state = name_as_class(read_weights(folder.weight_files), folder.family)
    state = rename_head(state, folder, task, new_head)
    auto = getattr(transformers, task.auto_class)
    _check_depth(config, state, folder)
    where = f"{folder.path}/config.json"
    try:
        with torch.device("meta"):  # a number in config.json can ask for more memory than there is
            meta_model = auto.from_config(config)
    except (
        ValueError,
        LookupError,
        TypeError,
        AssertionError,
        RuntimeError,
        ArithmeticError,
        AttributeError,
    ) as error:
        what = str(error).split("\n")[0] or type(error).__name__
        raise InputError(Problem(where, f"does not describe a model: {what}.")) from error
    state = match_weights(meta_model, state, folder, task, new_head)
    is_whole = not missing_weights(meta_model.state_dict(keep_vars=True), state)
    return _fill_model(auto, config, state, folder, is_whole)


def _fill_model(
    auto: Any, config: Any, state: dict[str, torch.Tensor], folder: ModelFolder, is_whole: bool
) -> PreTrainedModel:
    """Build a transformers model, load the checkpoint's weights into it, and return it in fp32.

    Random numbers are drawn with seed 0, and only if the checkpoint is not whole: they take seconds for a large model.
    """
    import torch
    from transformers.initialization import no_init_weights

    try:
        with torch.random.fork_rng(devices=[]), no_init_weights() if is_whole else nullcontext():
            torch.manual_seed(0)
            model = auto.from_config(config)
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(Problem(f"{folder.path}/config.json", f"does not describe a model: {error}.")) from error
    if is_whole:
        model.tie_weights()  # which was left out with the random numbers
    if hasattr(model, "config"):
        model.config.architectures = [type(model).__name__]
    model.load_state_dict(state, strict=False)
    return finish_loading(model, folder.family).float().eval()


def register_with_transformers(family: Family) -> None:
    """Register the family's own model classes, if it has any, with transformers in this process.

    May be called more than once.
    """
    code = checkpoint_code(family)
    if code.make_known is not None:
        code.make_known()


def finish_loading(model: Any, family: Family) -> Any:
    """Change a transformers model in place so that it accepts the inputs of its family, and return it."""
    code = checkpoint_code(family)
    if code.complete is not None:
        code.complete(model)
    return model


def apply_form(model: Any, folder: ModelFolder, form: str, entities: Path | None) -> list[dict[str, str]]:
    """Change a loaded model in place so that it takes the further inputs of an export form, such as language ids.

    Args:
        model: A transformers model; it is changed.
        folder: The model folder that the model was loaded from.
        form: Name of the export form (which inputs the exported file takes besides the text); ``text`` for the text
            only.
        entities: File that lists the entities to keep, for forms with a table of entities.

    Returns:
        The rows of the model's entity table, number 1 first, each as `{"id": ..., "name": ...}` (the name only if it is
        known); empty if the form has no such table.

    Raises:
        InputError: If the model cannot have the form, or the entities cannot be found.
    """
    row = folder.family.in_form(form, folder.config, "export.form")
    code = checkpoint_code(folder.family)
    if entities is not None and (row.form is None or not row.form.table):
        raise InputError(Problem("export.entities", f"the form '{form}' has no table of entities.", "Leave it out."))
    return code.take_form(model, row.form, folder.path, entities) if code.take_form is not None else []


# --- configuration ------------------------------------------------------------


def read_model_config(folder: ModelFolder) -> Any:
    """Return the transformers configuration of a model folder's encoder, without its weights.

    The width of its token states is `hidden_size`, whatever the entry of config.json is called in its family.
    """
    require_torch()
    register_with_transformers(folder.family)
    return _build_config(folder, TASKS[TaskName.FEATURE_EXTRACTION], None, False)


def _build_config(folder: ModelFolder, task: Task, labels: Labels | None, new_head: bool) -> Any:
    """Build the transformers configuration of a model folder for a task.

    `new_head` allows a head that the checkpoint lacks. The names in `labels` are set for such a head, or if the folder
    has no label names; for multiple choice and a new regression head the only output has none.
    """
    import transformers

    where = f"{folder.path}/config.json"
    try:
        config_class = transformers.CONFIG_MAPPING[folder.config["model_type"]]
        config = config_class.from_dict(_select_entries(folder.config, config_class, where, folder.family.rotary))
    except InputError:
        raise
    except Exception as error:  # strict validation of the library raises its own kinds
        raise InputError(Problem(where, f"refused by transformers: {first_sentence(error)}.")) from error
    if task.name is TaskName.MULTIPLE_CHOICE:
        _check_choice_head(folder, new_head)
    if task.name is TaskName.MULTIPLE_CHOICE or (task.name is TaskName.REGRESSION and new_head):
        config.num_labels = 1
    elif labels and (new_head or folder.labels is None):
        config.id2label = labels.id2label
        config.label2id = {name: i for i, name in labels.id2label.items()}
    if task.heads:
        setattr(config, HEADS_KEY, {head.name: head.task.name.value for head in task.heads})
    elif hasattr(config, HEADS_KEY):
        delattr(config, HEADS_KEY)
    if task.problem_type and not new_head:
        _check_problem_type(folder, task)
    if task.problem_type:
        config.problem_type = task.problem_type
    return config


def _select_entries(entries: Mapping[str, Any], config_class: Any, where: str, rotary: bool) -> dict[str, Any]:
    """Return the entries of config.json from which a model may be built safely.

    These are the entries that decide what the model computes, and those that do no harm. transformers sets every entry
    as an attribute of the configuration, even if it thereby replaces a method. The number type becomes float32. Sizes
    that contradict each other, or an unknown number type, raise InputError.

    Args:
        entries: The content of config.json.
        config_class: The class of the configuration.
        where: Name of the file in error messages.
        rotary: Whether the family encodes positions by rotations, whose parameters are then kept.
    """
    ignored = _IGNORED_ENTRIES if rotary else (*_IGNORED_ENTRIES, *_ROTARY_ENTRIES)
    own = {f.name for f in dataclasses.fields(config_class)}
    fields = {*own, *config_class.attribute_map, "model_type", "num_labels", "torch_dtype"}
    selected = {
        k: v
        for k, v in entries.items()
        if k in fields or not (k in ignored or k.startswith("_") or hasattr(config_class, k))
    }
    selected |= {k: v for k, v in _FIXED_ENTRIES.items() if k in selected}
    aliases = config_class.attribute_map.items()
    contradictory = [
        f"{a} and {b}" for a, b in aliases if a in selected and selected[a] != selected.get(b, selected[a])
    ]
    if contradictory:
        what = f"names one size twice, with different values: {', '.join(contradictory)}."
        raise InputError(Problem(where, what))
    for key in ("dtype", "torch_dtype"):
        if selected.get(key) is None:
            continue
        if selected[key] not in _DTYPES:
            raise InputError(Problem(where, f"{key} is {selected[key]!r:.40}; allowed: {', '.join(_DTYPES)}."))
        selected[key] = "float32"  # the weights are taken as they are, and kept in fp32
    return selected


def _check_problem_type(folder: ModelFolder, task: Task) -> None:
    """Raise InputError if config.json shows that the head was trained for another task than it is to be used for."""
    problem_type = folder.config.get("problem_type")
    names = folder.config.get("id2label")
    count = len(names) if names else folder.config.get("num_labels") or 2
    one = count == 1
    if problem_type == task.problem_type and task.name is TaskName.REGRESSION and not one:
        what = f"its head answers {count} numbers to a text; regression is one number per text."
        fix = "Export it with another tool, or train a head with one output."
        raise InputError(Problem(str(folder.path), what, fix))
    if problem_type not in (None, task.problem_type) or (one and problem_type is None) != (
        task.name is TaskName.REGRESSION and problem_type is None
    ):
        known = next((t.name for t in TASKS.values() if t.problem_type == problem_type), None) if problem_type else None
        trained = known or (TaskName.REGRESSION if one else TaskName.TEXT_CLASSIFICATION)
        what = f"its head was trained for {trained} ({count} outputs), not for {task.name}: it would be scored wrongly."
        fix = f"Set task: {trained} (on the command line --task {trained})."
        raise InputError(Problem(str(folder.path), what, fix))


def _check_choice_head(folder: ModelFolder, new_head: bool) -> None:
    """Raise InputError if a trained classifier with several outputs is to be used for multiple choice."""
    count = len(folder.labels or [])
    if folder.has_head("ForSequenceClassification") and count != 1 and not new_head:
        what = f"its head gives {count} numbers to a pair; multiple choice is one number for each choice."
        fix = "Leave --task (in a recipe task) out, or train a new head (teacher.finetune)."
        raise InputError(Problem(str(folder.path), what, fix))


def _check_depth(config: Any, state: dict[str, torch.Tensor], folder: ModelFolder) -> None:
    """Raise InputError if config.json and the checkpoint have different numbers of layers."""
    family = folder.family
    path = family.layer_path.partition(".")[2] + "."
    weight_layers = len({k.partition(path)[2].partition(".")[0] for k in state if path in k})
    layers = getattr(config, family.stored_layers, weight_layers)
    if not isinstance(layers, int) or layers != weight_layers or weight_layers < family.has_layers:
        what = f"says {layers!r:.40} layers, the weights have {weight_layers}."
        raise InputError(Problem(f"{folder.path}/config.json", what))


# --- saving ------------------------------------------------------------


def save_model(
    model: Any,
    source: ModelFolder,
    labels: Labels,
    max_length: int,
    destination: Path,
    form: str = TEXT_ONLY,
    score: ScoreFunction = ScoreFunction.NONE,
) -> None:
    """Save a model as a Hugging Face folder: config.json, model.safetensors, and a tokenizer that does not pad.

    Settings of sentence-transformers in the source folder are copied if its prompts still stand before texts (`ModelFolder.takes_prompts`).

    Args:
        model: The transformers model. Its configuration gets the labels and its class.
        source: The model folder whose tokenizer is copied.
        labels: Label set to write into config.json.
        max_length: Longest input in tokens.
        destination: An existing folder.
        form: Name of the export form (which inputs its exported files take), recorded in config.json.
        score: Score function of a head with one output. With that of multiple choice, the folder is saved for
            transformers' multiple-choice class.
    """
    from safetensors.torch import save_file

    if labels:
        model.config.id2label = labels.id2label
        model.config.label2id = {name: i for i, name in labels.id2label.items()}
    model.config.architectures = [type(model).__name__]
    model.config.to_json_file(str(destination / "config.json"), use_diff=False)
    config = _clean_config(read_json(destination / "config.json"), source.family, form)
    if score is ScoreFunction.CHOICES:  # the class that transformers' users open
        own_class, choices = (TASKS[name] for name in (TaskName.REGRESSION, TaskName.MULTIPLE_CHOICE))
        config["architectures"] = [type(model).__name__.replace(own_class.head, choices.head)]
        config = {k: v for k, v in config.items() if k not in ("id2label", "label2id", "problem_type")}
    if config.get("problem_type") == TASKS[TaskName.REGRESSION].problem_type:
        config.pop("sbert_ce_default_activation_function", None)
        config.pop("sentence_transformers", None)
        if score is ScoreFunction.SIGMOID:  # "regression" would mean the number as it is
            config["sentence_transformers"] = {"activation_fn": SIGMOID_CLASS}
            del config["problem_type"]
    write_json(destination / "config.json", config)
    state, first_names = model.state_dict(), canonical_names(model.state_dict(keep_vars=True))
    tensors = {
        k: v.detach().contiguous().cpu()
        for k, v in state.items()
        if not GENERATED_WEIGHTS.search(k) and first_names.get(k, k) == k
    }
    if score is ScoreFunction.CHOICES:
        paths = family_of(str(config["model_type"])).choice_weights
        tensors = rename_paths(tensors, {new: old for old, new in paths.items()})
    save_file(tensors, destination / "model.safetensors", metadata={"format": "pt"})
    save_tokenizer(source.tokenizer_folder, max_length, destination, source.family)
    if source.takes_prompts and (source.path / SETTINGS_FILE).is_file():
        settings = read_settings(source.path)
        if is_cross_encoder(source.path):  # a new head may answer otherwise than the published one
            settings["activation_fn"] = SIGMOID_CLASS if score is ScoreFunction.SIGMOID else IDENTITY_CLASS
        write_json(destination / SETTINGS_FILE, settings)
    family = source.family
    if config["model_type"] not in family.model_types:  # a student of another family
        family = family_of(config["model_type"]).as_configured(config)
    check_tokenizer(destination, config, family)


def _clean_config(config: dict[str, Any], family: Family, form: str) -> dict[str, Any]:
    """Remove a local path and null values (but pad_token_id) from a saved config.json, and set PocketBERT's own keys.

    `form` is the export form: which inputs the exported files take.
    """
    for key in (FAMILY_KEY, ATTENTION_KEY, FORM_KEY, "_name_or_path"):  # the last is a path of this machine
        config.pop(key, None)
    of_family = config.get("model_type") in family.model_types
    if family.in_blocks and of_family:
        config[ATTENTION_KEY] = Attention.BLOCKS.value
    if form != TEXT_ONLY:
        config[FORM_KEY] = form
    if family.loads_as is not None and of_family:
        # the names of the published weights suggested the row, and these are other names
        config[FAMILY_KEY] = family.name
    return {k: v for k, v in config.items() if v is not None or k == "pad_token_id"}
