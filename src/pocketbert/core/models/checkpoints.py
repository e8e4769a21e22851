"""Weights into torch modules and back.

Imports torch and transformers inside its functions: core itself stays light.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pocketbert.core.data.labels import Labels
from pocketbert.core.disk.files import write_json
from pocketbert.core.errors import InputError, MissingBackendError, Problem
from pocketbert.core.families import ATTENTION_KEY, FORM_KEY, TEXT_ONLY, Family
from pocketbert.core.families.table import checkpoint_code
from pocketbert.core.host.system import version_of
from pocketbert.core.models.folder import FAMILY_KEY, IDENTITY_CLASS, SIGMOID_CLASS, ModelFolder
from pocketbert.core.models.tokenizers import check_tokenizer, save_tokenizer
from pocketbert.core.models.weights import HARMLESS, first_sentence, fitting, read_state, tied_names
from pocketbert.core.predict.sentence_settings import SETTINGS_FILE, is_cross_encoder, read_settings
from pocketbert.core.tasks import TASKS, ScoreFunction, Task, TaskName
from pocketbert.core.types import Attention

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


_SWITCHES = {"chunk_size_feed_forward": 0, "output_hidden_states": False, "return_dict": True}
"""Entries of config.json that decide how transformers runs a model and not what it answers: what they are set to here."""
_LEFT_OUT = (
    "auto_map",
    "attn_implementation",
    "experts_implementation",
    "output_attentions",
    "torchscript",
)
"""Entries that name code, or that no class of the family table reads and transformers would act on."""
_ROTATIONS = ("rope_parameters", "rope_scaling", "rope_theta")
"""Entries that transformers acts on in any family, and only those with rotary positions read."""
_DTYPES = ("float64", "float32", "float16", "bfloat16")


def missing_for_weights() -> list[str]:
    """List the distributions that weights are loaded with and that are not installed."""
    return [name for name in ("torch", "transformers") if version_of(name) is None]


def require_torch() -> None:
    """Fail with the installing command when torch or transformers is missing."""
    for name in missing_for_weights():
        raise MissingBackendError(name, "pip install 'pocketbert[train,onnx]'")


def load_model(
    folder: ModelFolder, task: Task, labels: Labels | None = None, new_head: bool = False
) -> PreTrainedModel:
    """Build the class with the task's head and fill it with the folder's weights.

    Args:
        folder: Where from.
        task: Decides the head.
        labels: Label set to write into the configuration; needed for a new head.
        new_head: Whether a missing head may start random.

    Returns:
        The model in eval mode, fp32, on the CPU.

    Raises:
        InputError: If the weights are broken, lack the head, or do not fit the class.
    """
    require_torch()
    import torch
    import transformers

    _check_task(folder, task)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    # torchao, which comes with litert-torch, is imported by transformers and warns about its own enums
    logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)
    make_known(folder.family)
    check_tokenizer(folder.path, folder.config, folder.family)
    config = _configuration(folder, task, labels, new_head)
    weights = folder.weights
    state = read_state(weights)
    read_names = checkpoint_code(folder.family).read_names
    if read_names is not None:
        state = dict(read_names(state))
    for old, new in folder.family.key_renames.items():
        state = {k.replace(old, new): v for k, v in state.items()}
    auto = getattr(transformers, task.auto_class)
    _check_depth(config, state, folder)
    try:
        with torch.device("meta"):  # a number in config.json can ask for more memory than there is
            sketch = auto.from_config(config)
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
        raise InputError(Problem(f"{folder.path}/config.json", f"does not describe a model: {what}.")) from error
    state = fitting(sketch, state, folder, task, new_head)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = auto.from_config(config)
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(Problem(f"{folder.path}/config.json", f"does not describe a model: {error}.")) from error
    if hasattr(model, "config"):
        model.config.architectures = [type(model).__name__]
    model.load_state_dict(state, strict=False)
    return complete(model, folder.family).float().eval()


def make_known(family: Family) -> None:
    """Let transformers open folders of a family, in this process; may be called again."""
    code = checkpoint_code(family)
    if code.make_known is not None:
        code.make_known()


def complete(model: Any, family: Family) -> Any:
    """Make a model that was loaded or built take the inputs of its family's row, where its class wants more.

    Args:
        model: A transformers model; it is changed.
        family: Its row of the family table.

    Returns:
        The model.
    """
    code = checkpoint_code(family)
    if code.complete is not None:
        code.complete(model)
    return model


def take_form(model: Any, folder: ModelFolder, form: str, entities: Path | None) -> list[dict[str, str]]:
    """Make a loaded model take the inputs of a form, where its class has to be told.

    Args:
        model: A transformers model; it is changed.
        folder: Where it was loaded from.
        form: Name of the form.
        entities: File of the entities to keep, where the form has a table of them.

    Returns:
        The entities of its table, number 1 first: their ids, and names where these are known; empty where it has none.

    Raises:
        InputError: If the model cannot have the form, or the entities cannot be found.
    """
    row = folder.family.in_form(form, folder.config, "export.form")
    code = checkpoint_code(folder.family)
    if entities is not None and (row.form is None or not row.form.table):
        raise InputError(Problem("export.entities", f"the form '{form}' has no table of entities.", "Leave it out."))
    return code.take_form(model, row.form, folder.path, entities) if code.take_form is not None else []


def _configuration(folder: ModelFolder, task: Task, labels: Labels | None, new_head: bool) -> Any:
    import transformers

    where = f"{folder.path}/config.json"
    try:
        kind = transformers.CONFIG_MAPPING[folder.config["model_type"]]
        config = kind.from_dict(_effective(folder.config, kind, where, folder.family.rotary))
    except InputError:
        raise
    except Exception as error:  # strict validation of the library raises its own kinds
        raise InputError(Problem(where, f"refused by transformers: {first_sentence(error)}.")) from error
    if task.name is TaskName.REGRESSION and new_head:
        config.num_labels = 1
    elif labels and (new_head or folder.labels is None):
        config.id2label = labels.id2label
        config.label2id = {name: i for i, name in labels.id2label.items()}
    if task.problem_type and not new_head:
        _check_problem(folder, task)
    if task.problem_type:
        config.problem_type = task.problem_type
    return config


def _effective(stated: Mapping[str, Any], kind: Any, where: str, rotary: bool) -> dict[str, Any]:
    """The entries of config.json that say what a model computes, and those that say nothing to transformers.

    transformers sets every entry as an attribute of the configuration, also where that replaces a method.

    Args:
        stated: The content of config.json.
        kind: The class of the configuration.
        where: What to blame.
        rotary: Whether the family has rotary positions.
    """
    left_out = _LEFT_OUT if rotary else (*_LEFT_OUT, *_ROTATIONS)
    own = {f.name for f in dataclasses.fields(kind)}
    fields = {*own, *kind.attribute_map, "model_type", "num_labels", "torch_dtype"}
    out = {
        k: v for k, v in stated.items() if k in fields or not (k in left_out or k.startswith("_") or hasattr(kind, k))
    }
    out |= {k: v for k, v in _SWITCHES.items() if k in out}
    twice = [f"{a} and {b}" for a, b in kind.attribute_map.items() if a in out and out[a] != out.get(b, out[a])]
    if twice:
        raise InputError(Problem(where, f"names one size twice, with different values: {', '.join(twice)}."))
    for key in ("dtype", "torch_dtype"):
        if out.get(key) is None:
            continue
        if out[key] not in _DTYPES:
            raise InputError(Problem(where, f"{key} is {out[key]!r:.40}; allowed: {', '.join(_DTYPES)}."))
        out[key] = "float32"  # the weights are taken as they are, and kept in fp32
    return out


def _check_task(folder: ModelFolder, task: Task) -> None:
    """Refuse a task for which the family has no head, with the reason of its row."""
    why = folder.family.invalid_tasks.get(task.name)
    if why is not None:
        raise InputError(Problem(str(folder.path), f"{folder.family.title} cannot do {task.name}: {why}."))


def _check_problem(folder: ModelFolder, task: Task) -> None:
    """Refuse a head that was trained for something else: its logits would get the wrong score function."""
    stated = folder.config.get("problem_type")
    names = folder.config.get("id2label")
    count = len(names) if names else folder.config.get("num_labels") or 2
    one = count == 1
    if stated == task.problem_type and task.name is TaskName.REGRESSION and not one:
        raise InputError(
            Problem(
                str(folder.path),
                f"its head answers {count} numbers to a text; regression is one number per text.",
                "Export it with another tool, or train a head with one output.",
            )
        )
    if stated not in (None, task.problem_type) or (one and stated is None) != (
        task.name is TaskName.REGRESSION and stated is None
    ):
        known = next((t.name for t in TASKS.values() if t.problem_type == stated), None) if stated else None
        kind = known or (TaskName.REGRESSION if one else TaskName.TEXT_CLASSIFICATION)
        raise InputError(
            Problem(
                str(folder.path),
                f"its head was trained for {kind} ({count} outputs), not for {task.name}: it would be scored wrongly.",
                f"Set task: {kind} (on the command line --task {kind}).",
            )
        )


def _check_depth(config: Any, state: dict[str, torch.Tensor], folder: ModelFolder) -> None:
    """Refuse a config.json that names more or fewer layers than the weights have, before these are built."""
    family = folder.family
    path = family.layer_path.partition(".")[2] + "."
    have = len({k.partition(path)[2].partition(".")[0] for k in state if path in k})
    said = getattr(config, family.stored_layers, have)
    if not isinstance(said, int) or said != have or have < 1:
        raise InputError(Problem(f"{folder.path}/config.json", f"says {said!r:.40} layers, the weights have {have}."))


def save_model(
    model: Any,
    source: ModelFolder,
    labels: Labels,
    max_length: int,
    destination: Path,
    form: str = TEXT_ONLY,
    score: ScoreFunction = ScoreFunction.NONE,
) -> None:
    """Write a Hugging Face folder: config, safetensors, tokenizer with the right length and no padding.

    Args:
        model: What to save.
        source: Where the tokenizer comes from.
        labels: Label set.
        max_length: Longest input in tokens.
        destination: An existing folder.
        form: Form that its files will have.
        score: Of a head with one output: what its answers go through.
    """
    from safetensors.torch import save_file

    if labels:
        model.config.id2label = labels.id2label
        model.config.label2id = {name: i for i, name in labels.id2label.items()}
    model.config.architectures = [type(model).__name__]
    model.config.to_json_file(str(destination / "config.json"), use_diff=False)
    config = _plain_config(destination / "config.json", source.family, form)
    if config.get("problem_type") == TASKS[TaskName.REGRESSION].problem_type:
        config.pop("sbert_ce_default_activation_function", None)
        config.pop("sentence_transformers", None)
        if score is ScoreFunction.SIGMOID:  # "regression" would mean the number as it is
            config["sentence_transformers"] = {"activation_fn": SIGMOID_CLASS}
            del config["problem_type"]
    write_json(destination / "config.json", config)
    state, twins = model.state_dict(), tied_names(model.state_dict(keep_vars=True))
    tensors = {
        k: v.detach().contiguous().cpu() for k, v in state.items() if not HARMLESS.search(k) and twins.get(k, k) == k
    }
    save_file(tensors, destination / "model.safetensors", metadata={"format": "pt"})
    save_tokenizer(source.tokenizer_folder, max_length, destination, source.family)
    if source.used_for in (None, source.task) and (source.path / SETTINGS_FILE).is_file():
        settings = read_settings(source.path)
        if is_cross_encoder(source.path):  # a new head may answer otherwise than the published one
            settings["activation_fn"] = SIGMOID_CLASS if score is ScoreFunction.SIGMOID else IDENTITY_CLASS
        write_json(destination / SETTINGS_FILE, settings)
    check_tokenizer(destination, config, source.family)


def _plain_config(path: Path, family: Family, form: str) -> dict[str, Any]:
    from pocketbert.core.disk.files import read_json

    config = read_json(path)
    config.pop(FAMILY_KEY, None)
    config.pop(ATTENTION_KEY, None)
    if family.in_blocks and config["model_type"] in family.model_types:
        config[ATTENTION_KEY] = Attention.BLOCKS.value
    config.pop(FORM_KEY, None)
    if form != TEXT_ONLY:
        config[FORM_KEY] = form
    if family.loads_as is not None and config["model_type"] in family.model_types:
        config[FAMILY_KEY] = (
            family.name
        )  # the names of the weights suggested it, and these are no longer the published ones
    config.pop("_name_or_path", None)  # a path of the machine that made it
    return {k: v for k, v in config.items() if v is not None or k == "pad_token_id"}
