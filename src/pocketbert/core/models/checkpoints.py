"""Weights into torch modules and back. The only module that opens ``.bin`` files, and only weights of them.

Imports torch and transformers inside its functions: core itself stays light.
"""

from __future__ import annotations

import logging
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pocketbert.core.data.labels import Labels
from pocketbert.core.disk.files import write_atomic, write_json
from pocketbert.core.errors import InputError, MissingBackendError, Problem
from pocketbert.core.families import CHECKPOINTS, CheckpointCode, Family
from pocketbert.core.host.versions import version_of
from pocketbert.core.models.folder import ModelFolder
from pocketbert.core.predict.tokenization import plain_tokenizer_json
from pocketbert.core.tasks import TASKS, Task, TaskName

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

MAX_BIN_BYTES = 8 << 30

_HARMLESS = re.compile(r"position_ids$|\.num_batches_tracked$")


def require_torch() -> None:
    """Fail with the installing command when torch or transformers is missing."""
    for name in ("torch", "transformers"):
        if version_of(name) is None:
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

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    # torchao, which comes with litert-torch, is imported by transformers and warns about its own enums
    logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)
    make_known(folder.family)
    config = _configuration(folder, task, labels, new_head)
    weights = folder.weights
    state = _read_state(weights)
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
    state = _fitting(sketch, state, folder, task, new_head)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = auto.from_config(config)
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(Problem(f"{folder.path}/config.json", f"does not describe a model: {error}.")) from error
    if hasattr(model, "config"):
        model.config.architectures = [type(model).__name__]
    model.load_state_dict(state, strict=False)
    return model.float().eval()


def checkpoint_code(family: Family) -> CheckpointCode:
    """Return the code that reads checkpoints of a family in addition to transformers."""
    if family.checkpoints is None:
        return CheckpointCode()
    return CHECKPOINTS.find(family.checkpoints, f"family {family.name}")


def make_known(family: Family) -> None:
    """Let transformers open folders of a family, in this process; may be called again."""
    code = checkpoint_code(family)
    if code.make_known is not None:
        code.make_known()


def _configuration(folder: ModelFolder, task: Task, labels: Labels | None, new_head: bool) -> Any:
    import transformers

    try:
        config = transformers.AutoConfig.from_pretrained(
            str(folder.path), local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # strict validation of the library raises its own kinds
        message = str(error).splitlines()[0]
        raise InputError(Problem(f"{folder.path}/config.json", f"refused by transformers: {message}.")) from error
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


def _check_problem(folder: ModelFolder, task: Task) -> None:
    """Refuse a head that was trained for something else: its logits would get the wrong score function."""
    stated = folder.config.get("problem_type")
    labels = folder.config.get("id2label") or folder.config.get("num_labels") or 2
    count = len(labels) if isinstance(labels, dict) else int(labels)
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


def _read_state(path: Path) -> dict[str, torch.Tensor]:
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if path.suffix == ".safetensors":
        try:
            return dict(load_file(path))
        except SafetensorError as error:
            raise InputError(Problem(str(path), f"broken safetensors file: {error}.")) from error
    if path.stat().st_size > MAX_BIN_BYTES:
        raise InputError(Problem(str(path), f"larger than {MAX_BIN_BYTES >> 30} GiB, refused."))
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a foreign pickle fails in many ways
        raise InputError(
            Problem(
                str(path),
                f"cannot be read as plain weights: {_first_sentence(error)}.",
                "Convert it to model.safetensors where you trust its origin.",
            )
        ) from error
    if not isinstance(state, dict) or not all(isinstance(v, torch.Tensor) for v in state.values()):
        raise InputError(Problem(str(path), "does not hold a state dict of tensors."))
    return state


def _first_sentence(error: Exception) -> str:
    """What went wrong, without torch's advice to load the pickle unprotected."""
    return (str(error).splitlines() or [type(error).__name__])[0].split(". ")[0].rstrip(".")


def _check_depth(config: Any, state: dict[str, torch.Tensor], folder: ModelFolder) -> None:
    """Refuse a config.json that names more layers than the weights have, before these are built."""
    family = folder.family
    path = family.layer_path.partition(".")[2] + "."
    have = len({k.partition(path)[2].partition(".")[0] for k in state if path in k})
    said = getattr(config, family.stored_layers, have)
    if not isinstance(said, int) or not 1 <= said <= max(have, 1):
        raise InputError(Problem(f"{folder.path}/config.json", f"says {said!r:.40} layers, the weights have {have}."))


def _fitting(
    model: Any, state: dict[str, torch.Tensor], folder: ModelFolder, task: Task, new_head: bool
) -> dict[str, torch.Tensor]:
    """The tensors under the names of the model's own; the model may be a sketch without memory."""
    own = model.state_dict(keep_vars=True)
    prefix = f"{model.base_model_prefix}."
    bare = not any(k.startswith(prefix) for k in own)
    if bare:
        # the encoder alone: a class with a head gave its keys a prefix; the pooler is no part of the answer
        state = {k.removeprefix(prefix): v for k, v in state.items()}
        own = {k: v for k, v in own.items() if not k.startswith("pooler.")}
        prefix = ""
    elif not any(k.startswith(prefix) for k in state):
        # saved from the bare encoder: its keys lack the prefix that the class with a head gives them
        state = {prefix + k: v for k, v in state.items()}
    wrong = [
        f"{k} {tuple(state[k].shape)} instead of {tuple(v.shape)}"
        for k, v in own.items()
        if k in state and state[k].shape != v.shape
    ]
    head = [k for k in own if not k.startswith(prefix)]
    if wrong and new_head:
        # a head for another label set: train a new one
        state = {k: v for k, v in state.items() if k not in head}
        wrong = [w for w in wrong if w.split()[0] not in head]
    twins = _twins(own)
    given = {twins.get(k, k) for k in own if k in state}
    missing = [k for k in own if twins.get(k, k) not in given and not _HARMLESS.search(k)]
    lost_head = [k for k in missing if k in head]
    lost = [k for k in missing if k not in head and not (".pooler." in k and new_head)]
    problems = [Problem(str(folder.path), f"weight has another shape than config.json says: {w}.") for w in wrong[:5]]
    if lost:
        problems.append(Problem(str(folder.path), f"{len(lost)} weights are missing, e.g. {', '.join(lost[:3])}."))
    if lost_head and not new_head:
        problems.append(
            Problem(
                str(folder.path),
                f"has no trained head for {task.name} ({', '.join(lost_head)} missing).",
                "Fine-tune it first: pocketbert finetune RECIPE, or teacher.finetune in the recipe.",
            )
        )
    if problems:
        raise InputError(problems)
    return state


def _twins(state: dict[str, torch.Tensor]) -> dict[str, str]:
    """For each weight the first name it goes by: a masked-language model's decoder is its embedding table."""
    first: dict[int, str] = {}
    # by object: the weights of a sketch have no address
    return {name: first.setdefault(id(value), name) for name, value in state.items() if value.numel()}


def save_model(model: Any, source: ModelFolder, labels: Labels, max_length: int, destination: Path) -> None:
    """Write a Hugging Face folder: config, safetensors, tokenizer with the right length and no padding.

    Args:
        model: What to save.
        source: Where the tokenizer comes from.
        labels: Label set.
        max_length: Longest input in tokens.
        destination: An existing folder.
    """
    from safetensors.torch import save_file

    if labels:
        model.config.id2label = labels.id2label
        model.config.label2id = {name: i for i, name in labels.id2label.items()}
    model.config.architectures = [type(model).__name__]
    model.config.to_json_file(str(destination / "config.json"), use_diff=False)
    config = _plain_config(destination / "config.json")
    write_json(destination / "config.json", config)
    state, twins = model.state_dict(), _twins(model.state_dict(keep_vars=True))
    tensors = {
        k: v.detach().contiguous().cpu() for k, v in state.items() if not _HARMLESS.search(k) and twins.get(k, k) == k
    }
    save_file(tensors, destination / "model.safetensors", metadata={"format": "pt"})
    save_tokenizer(source.path, max_length, destination)


def _plain_config(path: Path) -> dict[str, Any]:
    from pocketbert.core.disk.files import read_json

    config = read_json(path)
    config.pop("_name_or_path", None)  # a path of the machine that made it
    return {k: v for k, v in config.items() if v is not None or k == "pad_token_id"}


def save_tokenizer(source: Path, max_length: int, destination: Path) -> None:
    """Copy a tokenizer so that every client cuts at the same length and none pads by itself.

    Args:
        source: A Hugging Face folder.
        max_length: Longest input in tokens.
        destination: An existing folder.
    """
    file = source / "tokenizer.json"
    try:
        raw = file.read_text(encoding="utf-8") if file.is_file() else _convert_tokenizer(source)
        plain = plain_tokenizer_json(raw)
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(Problem(str(file), f"not a tokenizer: {error}.")) from error
    write_atomic(destination / "tokenizer.json", plain)
    settings = _tokenizer_settings(source)
    settings["model_max_length"] = max_length
    write_json(destination / "tokenizer_config.json", settings)
    for name in ("vocab.txt", "special_tokens_map.json", "merges.txt", "vocab.json"):
        if (source / name).is_file():
            shutil.copyfile(source / name, destination / name)


def _tokenizer_settings(source: Path) -> dict[str, Any]:
    from pocketbert.core.disk.files import read_json

    path = source / "tokenizer_config.json"
    settings = read_json(path) if path.is_file() else {}
    if not isinstance(settings, dict):
        raise InputError(Problem(str(path), "not the settings of a tokenizer: no JSON object."))
    for key in ("name_or_path", "tokenizer_file", "special_tokens_map_file"):
        settings.pop(key, None)
    return settings


def _convert_tokenizer(source: Path) -> str:
    """tokenizer.json out of vocab.txt or merges.txt, by transformers' own converter."""
    import transformers

    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            str(source), local_files_only=True, trust_remote_code=False
        )
        backend = tokenizer.backend_tokenizer
        # without any vocabulary file the library makes a tokenizer of special tokens alone, and says nothing
        if backend.get_vocab_size() <= len(tokenizer.all_special_ids):
            raise ValueError("the folder has neither tokenizer.json nor a vocabulary.")
        return str(backend.to_str())
    except Exception as error:  # many kinds, among them missing vocabulary files
        raise InputError(Problem(str(source), f"no usable tokenizer: {str(error).splitlines()[0]}")) from error
