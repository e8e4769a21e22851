"""Adapter folders of peft: LoRA weights merged into the weights of their base model, without peft.

`is_adapter_folder` recognizes such a folder, `read_base_name` returns the base that it names, and `merge_adapters` writes
a model folder with the merged weights: for each adapted matrix W + scaling * B A, with DoRA rescaled row by row, and the
modules that the adapter saved whole in place of the base's. torch and safetensors are imported inside the functions.

`link_sentence_folder` puts another kind of folder together: an encoder that sentence-transformers saved in a folder of its own.
"""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pocketbert.core.disk.files import check_regular, read_json, safe_join, sha256_json, write_json
from pocketbert.core.disk.weight_files import WEIGHTS_FILE, find_weight_files, read_weights, shorten_names
from pocketbert.core.errors import InputError, MissingBackendError, Problem, shorten_repr, show_folder_as
from pocketbert.core.families import Family
from pocketbert.core.families.table import name_as_class
from pocketbert.core.host.progress import print_note
from pocketbert.core.host.system import version_of
from pocketbert.core.models.tokenizers import TOKENIZER_FILES, process_folder
from pocketbert.core.predict.sentence_settings import MODULES_FILE

if TYPE_CHECKING:
    import torch

_State = dict[str, "torch.Tensor"]

ADAPTER_FILE = "adapter_config.json"
_WEIGHT_FILES = ("adapter_model.safetensors", "adapter_model.bin")
_LINKED_FILES = ("*.json", "*.txt", "*.model", "README.md", "*/config.json", "*/*.safetensors", "*/*.bin")
"""Files of base and adapter that are part of the merged folder: all but weights; modules of sentence-transformers too."""
_OWN_TOKENIZER = ("tokenizer.json", "vocab.txt", "vocab.json", "spiece.model", "spm.model", "sentencepiece.bpe.model")
_TOKENIZER_FILES = {*TOKENIZER_FILES, "tokenizer.json", "added_tokens.json"}
_MAX_RANK, _MAX_ALPHA, _MAX_PATTERNS, _MAX_PATTERN_CHARACTERS = 4096, 1e6, 4096, 1 << 15
_MOST_BYTES = 8 << 30
_PREFIX = "base_model.model."
_HEAD = re.compile(r"(^|\.)(classifier(\.out_proj)?|score|logits_proj|sequence_summary\.summary)\.weight$")
"""The matrix of a head whose rows are the labels."""
_LABEL_ENTRIES = ("id2label", "label2id", "num_labels", "problem_type")
TASK_SUFFIXES = {
    "SEQ_CLS": "ForSequenceClassification",
    "TOKEN_CLS": "ForTokenClassification",
    "QUESTION_ANS": "ForQuestionAnswering",
    "FEATURE_EXTRACTION": "Model",
}
"""Endings of class names by peft's names of tasks."""
_READ_ENTRIES = frozenset(
    "task_type peft_type auto_mapping peft_version base_model_name_or_path revision inference_mode r target_modules "
    "exclude_modules lora_alpha lora_dropout fan_in_fan_out bias use_rslora modules_to_save init_lora_weights "
    "layers_to_transform layers_pattern rank_pattern alpha_pattern megatron_core trainable_token_indices loftq_config "
    "eva_config lora_bias use_dora qalora_group_size runtime_config enable_lora merge_weights".split()
)
"""Entries that are read, or that decide only how an adapter is trained; others change what it computes."""
CHANGING_STARTS = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Ways to start an adapter that change the base's weights first, so that these cannot be merged with the published ones."""
_NEW_HEADS = (
    "classifier",
    "score",
    "qa_outputs",
    "pre_classifier",
    "logits_proj",
    "pooler",
    "sequence_summary",
    "vocab_",
)
_MATCHED_PATTERNS = r"matched are names, '.', '\.', '.*', '\d+' and '[0-9]+', and alternatives of these (a|b)"
_MERGE_FIX = (
    "Merge it with peft (load it, merge_and_unload(), save_pretrained(NEW_FOLDER)) and give the new folder, "
    "or train a LoRA adapter."
)
BASE_FIX = "Name the base that it was trained on in teacher.model, and this folder in teacher.adapters."

_merged: dict[str, Path] = {}
"""Folders that `merge_adapters` and `link_sentence_folder` wrote, by everything that their content depends on."""


def is_adapter_folder(folder: Path) -> bool:
    """Return whether a folder holds an adapter of peft: its settings, and either its weights or no model."""
    if not (folder / ADAPTER_FILE).is_file():
        return False
    return any((folder / name).is_file() for name in _WEIGHT_FILES) or not (folder / "config.json").is_file()


def read_base_name(folder: Path) -> tuple[str, str | None]:
    """Read the name and the Hub revision of an adapter's base model.

    A relative path to no existing folder is looked for in the adapter's own folder too, and returned with it if it is
    there. The revision is None if none is named.

    Raises:
        InputError: If adapter_config.json is missing, is of another library, or names no base model.
    """
    where, settings = str(folder / ADAPTER_FILE), _read_settings(folder)
    name, revision = settings.get("base_model_name_or_path"), settings.get("revision")
    if not name and settings.get("peft_type") is None and "model_name" in settings:
        fix = "Train a LoRA adapter with peft, or give a model that was fine-tuned as a whole."
        raise InputError(
            Problem(where, "is of the library adapters (AdapterHub); served are LoRA adapters of peft.", fix)
        )
    if not isinstance(name, str) or not name or len(name) > 4096 or "\0" in name:
        raise InputError(Problem(where, "names no base model (base_model_name_or_path).", BASE_FIX))
    beside = folder / name
    name = str(beside) if not Path(name).is_dir() and beside.is_dir() else name
    return name, revision if isinstance(revision, str) and revision else None


def merge_adapters(base: Path, config: Mapping[str, Any], family: Family, adapters: Sequence[Path]) -> Path:
    """Merge adapters, one after another, into a base model; write a model folder, once per process.

    Args:
        base: Folder of the base model; it is not changed.
        config: Checked content of the base model's config.json.
        family: The base model's family, which says how its weights are named.
        adapters: The adapters' folders, in order.

    Returns:
        A folder with the merged weights, the configuration and links to the other files of base and adapters (those of
        the last adapter that has them); it is removed when the process ends.

    Raises:
        InputError: If an adapter is broken, is not a LoRA adapter, or does not fit the base model.
        MissingBackendError: If torch is not installed.
    """
    for name in ("torch", "safetensors"):
        if version_of(name) is None:
            raise MissingBackendError(f"{name}, which merges adapters", "pip install 'pocketbert[train,onnx]'")
    weights = [*find_weight_files(base), *(_find_adapter_weights(folder) for folder in adapters)]
    small = [sorted(p for n in _LINKED_FILES for p in f.glob(n) if p.is_file()) for f in (base, *adapters)]
    files = [*weights, *(p for paths in small for p in paths)]
    stamps = [[str(p), p.stat().st_size, p.stat().st_mtime_ns] for p in files]
    key = sha256_json([str(base.resolve()), dict(config), family.name, stamps])
    if key in _merged and (_merged[key] / WEIGHTS_FILE).is_file():
        return _merged[key]
    from safetensors.torch import save_file

    state = name_as_class(read_weights(find_weight_files(base)), family)
    prefix = f"{family.layer_path.partition('.')[0]}."
    for folder in adapters:
        counts = _merge_adapter(state, folder, prefix)
        print_note(f"{folder}: LoRA adapter merged into {base}: {counts}")
    destination = Path(tempfile.mkdtemp(dir=process_folder()))
    _link_files(base, adapters, destination)
    write_json(destination / "config.json", _merged_config(config, family, state, adapters))
    # two names of one matrix are two matrices in a file
    save_file({k: v.clone().contiguous() for k, v in state.items()}, destination / WEIGHTS_FILE, {"format": "pt"})
    _merged[key] = destination
    return destination


# --- reading ------------------------------------------------------------


def _read_settings(folder: Path) -> dict[str, Any]:
    """Read an adapter's adapter_config.json; raise InputError if it is no JSON object."""
    path = folder / ADAPTER_FILE
    if not path.is_file():
        fix = "Give a folder that peft saved."
        raise InputError(Problem(str(folder), f"is no adapter folder: it has no {ADAPTER_FILE}.", fix))
    settings = read_json(path, 4)
    if not isinstance(settings, dict):
        raise InputError(Problem(str(path), "is no JSON object."))
    return settings


def _find_adapter_weights(folder: Path) -> Path:
    """Return the path of an adapter's weight file; raise InputError if there is none, or if it is no regular file."""
    _read_settings(folder)
    path = next((folder / name for name in _WEIGHT_FILES if (folder / name).is_file()), None)
    if path is None:
        raise InputError(Problem(str(folder), f"has neither {' nor '.join(_WEIGHT_FILES)}.", "Copy the adapter again."))
    check_regular(path)
    if path.stat().st_size > _MOST_BYTES:
        raise InputError(Problem(str(path), f"larger than {_MOST_BYTES >> 30} GiB, refused."))
    return path


class _Lora(NamedTuple):
    """Settings of a LoRA adapter that decide how its matrices change a weight.

    Attributes:
        rank: Rank r of its matrices.
        alpha: Factor alpha of its change.
        ranks: Other ranks, by a pattern of module names.
        alphas: Other factors, by a pattern of module names.
        rooted: Whether alpha is divided by the square root of r (rsLoRA) instead of r.
        saved: Names of the modules that the adapter saved whole.
        tokens: Ids of the token vectors that it trained, for one table or by the name of the table; None for none.
    """

    rank: int
    alpha: float
    ranks: Mapping[str, int]
    alphas: Mapping[str, float]
    rooted: bool
    saved: tuple[str, ...]
    tokens: Any

    def rank_and_scaling(self, module: str) -> tuple[int, float]:
        """Return the rank of a module's matrices and the factor of its change: alpha / r, with rsLoRA alpha / sqrt(r)."""
        rank = next((value for key, value in self.ranks.items() if _matches(key, module)), self.rank)
        alpha = next((value for key, value in self.alphas.items() if _matches(key, module)), self.alpha)
        return rank, alpha / (math.sqrt(rank) if self.rooted else rank)


_PATTERN_PART = re.compile(r"\.\*|\.|\\\.|(?:\\d|\[0-9\])\+?|[A-Za-z0-9_-]")
"""Parts that a pattern of modules may have; ``^`` may begin and ``$`` end each of its alternatives."""


@lru_cache(2 * _MAX_PATTERNS)
def _split_pattern(pattern: str) -> tuple[tuple[bool, list[str]], ...] | None:
    """Split an adapter's pattern of module names, a simple regular expression, at ``|``.

    Each alternative is returned as whether it begins with ``^``, and the list of its parts. None if the pattern is not
    of the simple kind.
    """
    alternatives = []
    for text in pattern.split("|"):
        body = text.removeprefix("^").removesuffix("$")
        parts = _PATTERN_PART.findall(body)
        if not parts or "".join(parts) != body:
            return None
        alternatives.append((text.startswith("^"), parts))
    return tuple(alternatives)


def _matches(pattern: str, module: str) -> bool:
    r"""Return whether a pattern of an adapter matches a module's name, or the end of it that follows a dot.

    peft matches the keys of ``rank_pattern`` and ``alpha_pattern`` in this way. A pattern is a simple regular
    expression, see `_split_pattern`. A pattern with ``^`` must match the whole name; any pattern that is not
    simple matches nothing. `re` is not used, since it can take exponential time: for one part of the pattern
    after the other, the set of all places in the name that the match can have reached is computed.

    Args:
        pattern: Alternatives with ``|`` between them, e.g. ``layer.0.query|layer\.[0-9]+\.key``.
        module: Name of a module, with dots.
    """
    for only_whole, parts in _split_pattern(pattern) or ():
        # how many characters of the name may be matched so far
        reached = {0} if only_whole else {0, *(i for i, c in enumerate(module, 1) if c == ".")}
        for part in parts:
            if part == ".*" and reached:
                reached = set(range(min(reached), len(module) + 1))
                continue
            reached = {i + 1 for i in reached if i < len(module) and _fits(part, module[i])}
            if part[-1] == "+":
                for i, character in enumerate(module):
                    if i in reached and character.isdecimal():
                        reached.add(i + 1)
            if not reached:
                break
        if len(module) in reached:
            return True
    return False


def _fits(part: str, character: str) -> bool:
    """Return whether one part of a pattern (such as ``.``, ``[0-9]+`` or a letter) matches a character."""
    if part.startswith(("\\d", "[")):
        return character.isdecimal()
    return part == "." or part[-1] == character


def _read_lora(folder: Path) -> _Lora:
    """Read the settings of a LoRA adapter; raise InputError for another kind of adapter or settings that cannot be merged."""
    settings, where = _read_settings(folder), str(folder / ADAPTER_FILE)
    kind = settings.get("peft_type")
    if kind != "LORA":
        what = f"the adapter is of the kind {shorten_repr(kind, 40)}; LORA is merged (also rsLoRA and DoRA)."
        raise InputError(Problem(where, what, _MERGE_FIX))
    problems = []
    unknown = sorted(
        str(k) for k, v in settings.items() if v not in (None, False, {}, [], "") and k not in _READ_ENTRIES
    )
    if unknown:
        problems.append(Problem(where, f"has settings that are not merged: {shorten_names(unknown)}.", _MERGE_FIX))
    start = settings.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(CHANGING_STARTS):
        what = f"init_lora_weights is {shorten_repr(start, 40)}, which changes the base's weights before training."
        problems.append(Problem(where, what, _MERGE_FIX))
    rank, alpha = settings.get("r", 8), settings.get("lora_alpha", 8)
    ranks, alphas = settings.get("rank_pattern") or {}, settings.get("alpha_pattern") or {}
    problems += _list_number_problems(where, rank, alpha, ranks, alphas)
    saved = settings.get("modules_to_save") or []
    if not isinstance(saved, list) or not all(isinstance(name, str) for name in saved):
        problems.append(Problem(where, "modules_to_save is no list of names."))
    if problems:
        raise InputError(problems)
    tokens = settings.get("trainable_token_indices")
    return _Lora(rank, alpha, ranks, alphas, settings.get("use_rslora") is True, tuple(saved), tokens)


def _list_number_problems(where: str, rank: Any, alpha: Any, ranks: Any, alphas: Any) -> list[Problem]:
    """Return up to eight problems: invalid ranks and alphas of a LoRA adapter, and invalid patterns of module names.

    `ranks` and `alphas` map the patterns of modules that have numbers of their own to these numbers.
    """
    problems = []
    for name, one, patterns in (("r", rank, ranks), ("lora_alpha", alpha, alphas)):
        key = "rank_pattern" if name == "r" else "alpha_pattern"
        if not isinstance(patterns, dict) or len(patterns) > _MAX_PATTERNS:
            problems.append(Problem(where, f"{key} is no table of at most {_MAX_PATTERNS:,} numbers by module."))
            patterns = {}
        for title, value in ((name, one), *((f"{key}: {str(k)[:60]}", v) for k, v in patterns.items())):
            if name == "r" and (type(value) is not int or not 1 <= value <= _MAX_RANK):
                what = f"{title} is {shorten_repr(value, 40)}; allowed: whole numbers from 1 to {_MAX_RANK:,}."
                problems.append(Problem(where, what))
            if name != "r" and (type(value) not in (int, float) or not abs(value) <= _MAX_ALPHA):
                what = f"{title} is {shorten_repr(value, 40)}; allowed: numbers up to {_MAX_ALPHA:,.0f}."
                problems.append(Problem(where, what))
        if sum(map(len, patterns)) > _MAX_PATTERN_CHARACTERS:
            what = f"{key} has patterns of more than {_MAX_PATTERN_CHARACTERS:,} characters together."
            problems.append(Problem(where, what, _MERGE_FIX))
        elif bad := [ascii(pattern) for pattern in patterns if _split_pattern(pattern) is None]:
            what = f"{key} has patterns that are not matched: {shorten_names(bad)}; {_MATCHED_PATTERNS}."
            problems.append(Problem(where, what, _MERGE_FIX))
    return problems[:8]


# --- merging ------------------------------------------------------------

_LORA = re.compile(
    r"^(?P<module>.+)\.(?P<part>lora_A|lora_B|lora_embedding_A|lora_embedding_B|lora_magnitude_vector)"
    r"(\.default)?(\.(?P<kind>weight|bias))?$"
)
_TOKENS = re.compile(r"^(?P<module>.+)\.token_adapter\.trainable_tokens_delta(\.default)?$")


class _Targets:
    """Finds the weight of the base model that a name in an adapter stands for.

    The adapter's name may have the encoder's prefix (such as ``bert.``) or lack it.
    """

    def __init__(self, state: _State, prefix: str) -> None:
        self.state, self.prefix = state, prefix

    def find(self, name: str) -> str | None:
        """Return the name of the weight in the base model; None if the base model has no such weight."""
        for candidate in (name, self.prefix + name, name.removeprefix(self.prefix)):
            if candidate in self.state:
                return candidate
        return None


def _merge_adapter(state: _State, folder: Path, prefix: str) -> str:
    """Merge one adapter into the base model's weights, in place; return how many were changed and replaced, in words.

    `prefix` is the encoder's name in the names of the weights.

    Raises:
        InputError: If the adapter cannot be merged or has no finite weights, or naming up to eight of its weights that
            do not fit the base model.
    """
    lora, file = _read_lora(folder), _find_adapter_weights(folder)
    tensors = {k.removeprefix(_PREFIX): v for k, v in read_weights([file]).items()}
    broken = [k for k, v in tensors.items() if not v.is_floating_point() or not bool(v.float().abs().lt(1e18).all())]
    if not tensors or broken:
        what = f"NaN, infinite or immense numbers, or whole ones, in {shorten_names(broken)} ({len(broken)} in all)."
        raise InputError(Problem(str(file), what if broken else "holds no weights."))
    modules: dict[str, dict[str, torch.Tensor]] = {}
    whole: _State = {}
    targets, tokens = _Targets(state, prefix), dict[str, Any]()
    for name, value in tensors.items():
        if match := _LORA.match(name):
            part = match["part"] + ("_bias" if match["kind"] == "bias" else "")
            modules.setdefault(match["module"], {})[part] = value
        elif match := _TOKENS.match(name):
            tokens[match["module"]] = value
        elif ".original_module." not in name:
            whole[re.sub(r"\.(modules_to_save(\.default)?|base_layer|token_adapter\.base_layer)(?=\.)", "", name)] = (
                value
            )
    # weights that were saved whole first: a changed matrix may be one of them
    faults = _replace_whole(state, whole, lora, targets)
    for module, parts in modules.items():
        faults += _merge_module(state, module, parts, lora, targets)
    for module, rows in tokens.items():
        faults += _replace_rows(state, module, rows, lora.tokens, targets)
    if faults:
        more = f" And {len(faults) - 8:,} more." if len(faults) > 8 else ""
        raise InputError(Problem(str(file), f"does not fit the base: {' '.join(faults[:8])}{more}", BASE_FIX))
    return f"{len(modules) + len(tokens)} matrices changed, {len(whole)} weights replaced"


def _replace_whole(state: _State, whole: _State, lora: _Lora, targets: _Targets) -> list[str]:
    """Replace weights of the base model, in place, by those that an adapter saved whole (heads, biases); add new heads.

    The result is a text for each weight of another shape, and one text for all that the base model does not have.
    """
    faults, unknown = [], []
    for name, value in whole.items():
        found = targets.find(name)
        saved = any(part in (*lora.saved, *_NEW_HEADS) for part in name.split("."))
        if found is None and not saved:
            unknown.append(name)
        elif found is not None and state[found].shape[1:] != value.shape[1:] and not saved:
            faults.append(f"{name} has the shape {tuple(value.shape)}, in the base {tuple(state[found].shape)}.")
        else:
            _assign(state, found or name, value)
    if unknown:
        faults.insert(0, f"{len(unknown)} of its weights are none of the base: {shorten_names(unknown)}.")
    return faults


def _merge_module(
    state: _State, module: str, parts: Mapping[str, torch.Tensor], lora: _Lora, targets: _Targets
) -> list[str]:
    """Add a LoRA adapter's change to one weight matrix of the base model and its bias, in place; computed in float64.

    The result is empty, or a list of one text on what does not fit the base model.

    Source: Hu et al. 2021 (LoRA): W + alpha / r * B A; Kalajdzievski 2023 (rsLoRA): alpha / sqrt(r); Liu et al. 2024
    (DoRA): each row is then scaled to a learned length m. Linear layers store [out, in], whatever fan_in_fan_out says
    of them.
    """
    import torch

    name, embedding = targets.find(f"{module}.weight"), "lora_embedding_A" in parts
    first, second = (parts.get(f"lora_{'embedding_' if embedding else ''}{side}") for side in "AB")
    if name is None:
        return [f"{module} is no module of the base."]
    if first is None or second is None:
        return [f"{module} has only one of its two matrices lora_A and lora_B."]
    weight, (rank, scaling) = state[name], lora.rank_and_scaling(module)
    outer = tuple(reversed(weight.shape)) if embedding else tuple(weight.shape)
    if weight.ndim != 2 or tuple(first.shape) != (rank, outer[1]) or tuple(second.shape) != (outer[0], rank):
        shapes = f"{tuple(first.shape)} and {tuple(second.shape)}"
        return [f"{module} has matrices {shapes}, which are no rank {rank} for the base's {tuple(weight.shape)}."]
    delta = scaling * (second.double() @ first.double())
    merged = (weight.double().T if embedding else weight.double()) + delta
    if (magnitude := parts.get("lora_magnitude_vector")) is not None:
        if magnitude.numel() != outer[0]:
            return [f"{module} has {magnitude.numel()} lengths of rows, the base {outer[0]} rows."]
        merged = merged * (magnitude.double().reshape(-1) / torch.linalg.norm(merged, dim=1))[:, None]
    if not bool(merged.abs().lt(1e18).all()):
        return [f"{module} becomes infinite or immense numbers with the scaling {scaling:g}."]
    _assign(state, name, (merged.T if embedding else merged).float().contiguous())
    bias = parts.get("lora_B_bias")
    if bias is not None:
        own = targets.find(f"{module}.bias")
        if own is None or state[own].shape != bias.shape:
            return [f"{module} changes a bias that the base does not have."]
        _assign(state, own, (state[own].double() + scaling * bias.double()).float())
    return []


def _replace_rows(state: _State, module: str, rows: torch.Tensor, tokens: Any, targets: _Targets) -> list[str]:
    """Replace rows of an embedding table, in place, by those that an adapter trained; return a text on each misfit.

    `tokens` are the ids of these rows, as the adapter's trainable_token_indices gives them.
    """
    name = targets.find(f"{module}.weight")
    if isinstance(tokens, dict):
        tokens = next((ids for key, ids in tokens.items() if module == key or module.endswith(f".{key}")), None)
    if name is None:
        return [f"{module} is no module of the base."]
    ids, table = tokens if isinstance(tokens, list) else [], state[name]
    if (
        not ids
        or not all(type(i) is int and 0 <= i < len(table) for i in ids)
        or rows.shape != (len(ids), *table.shape[1:])
    ):
        return [f"{module}: the rows of trainable_token_indices do not fit a table {tuple(table.shape)}."]
    changed = table.float().clone()
    changed[ids] = rows.float()
    _assign(state, name, changed)
    return []


def _assign(state: _State, name: str, value: torch.Tensor) -> None:
    """Set a weight in the state dict, and every other name of the same tensor (tied weights in a ``.bin`` file)."""
    old = state.get(name)
    same = (
        [] if old is None else [k for k, v in state.items() if v.data_ptr() == old.data_ptr() and v.shape == old.shape]
    )
    for other in [name, *same]:
        state[other] = value


# --- the merged folder ------------------------------------------------------------


def _merged_config(
    config: Mapping[str, Any], family: Family, state: _State, adapters: Sequence[Path]
) -> dict[str, Any]:
    """Return the base model's config.json with the class, labels and vocabulary size of the merged model."""
    merged = dict(config)
    for folder in adapters:
        settings, own = _read_settings(folder), folder / "config.json"
        labels = read_json(own, 64) if own.is_file() else {}
        if isinstance(labels, dict) and labels.get("model_type") == config.get("model_type"):
            others = {key: value for key, value in merged.items() if key not in _LABEL_ENTRIES}
            merged = others | {key: labels[key] for key in _LABEL_ENTRIES if key in labels}
        suffix = TASK_SUFFIXES.get(str(settings.get("task_type")))
        mapped = settings.get("auto_mapping")
        named = mapped.get("base_model_class") if isinstance(mapped, dict) else None
        if suffix is not None:
            suffix = family.head_suffixes.get(suffix, suffix)
            if not str((merged.get("architectures") or [""])[0]).endswith(suffix) or suffix == "Model":
                merged["architectures"] = [family.classes + suffix]
        elif isinstance(named, str) and named.isidentifier() and named.startswith(family.classes):
            merged["architectures"] = [named]
    head = next((state[k] for k in state if _HEAD.search(k)), None)
    ending = str((merged.get("architectures") or [""])[0])
    if head is not None and ending.endswith("Classification"):
        listed = merged.get("id2label") or merged.get("num_labels") or 2
        if head.shape[0] != (listed if isinstance(listed, int) else len(listed)):
            for key in _LABEL_ENTRIES:
                merged.pop(key, None)
            merged["num_labels"] = head.shape[0]
    table = next((v for k, v in state.items() if k.endswith("word_embeddings.weight")), None)
    if table is not None and "vocab_size" in merged:
        merged["vocab_size"] = table.shape[0]
    return merged


def _link_files(base: Path, adapters: Sequence[Path], destination: Path) -> None:
    """Link the files of a base model and its adapters, but for configuration and model weights, into a folder.

    A later folder's file replaces an earlier one of the same name.
    If an adapter has a tokenizer of its own, no tokenizer file of the folders before it is linked.
    """
    linked: dict[str, Path] = {}
    for folder in (base, *adapters):
        if folder is not base and any((folder / name).is_file() for name in _OWN_TOKENIZER):
            linked = {name: path for name, path in linked.items() if name not in _TOKENIZER_FILES}
        for path in (p for pattern in _LINKED_FILES for p in folder.glob(pattern) if p.is_file()):
            name = path.relative_to(folder).as_posix()
            nested_weights = "/" in name and path.suffix in (".safetensors", ".bin")
            if nested_weights and not (path.parent / "config.json").is_file():
                continue
            if name != ADAPTER_FILE and name != "config.json" and not name.endswith(".index.json"):
                linked[name] = path
    _make_links(linked, destination)


def _make_links(files: Mapping[str, Path], destination: Path) -> None:
    """Link files into a folder by their paths there."""
    for name, path in files.items():
        place = destination / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(path.resolve())


def link_sentence_folder(path: Path) -> Path:
    """Return a temporary folder with links in which the encoder of a sentence-transformers folder lies beside modules.json.

    Older versions saved it in a folder of its own, such as 0_Transformer. Any other folder is returned as it is.

    Raises:
        InputError: If modules.json cannot be read, or names a folder outside.
    """
    listed = path / MODULES_FILE
    # beside weights the modules may be of no use
    modules = read_json(listed) if listed.is_file() and not any(path.glob("*model*.[sb]*")) else None
    if not isinstance(modules, list) or not modules or not all(isinstance(m, dict) for m in modules):
        return path
    encoder, *further = (safe_join(path, str(m.get("path") or ""), str(listed)) for m in modules)
    is_apart = encoder != path and (encoder / "config.json").is_file()
    if not is_apart or str(modules[0].get("type", "")).rpartition(".")[2] != "Transformer":
        return path
    links = {f.name: f for folder in (path, encoder) for f in folder.iterdir() if f != listed}
    links |= {str(f.relative_to(path)): f for p in further if p != path and p.is_dir() for f in p.iterdir()}
    files = {name: file for name, file in links.items() if file.is_file()}
    key = sha256_json([modules, sorted((name, str(file.resolve())) for name, file in files.items())])
    if key not in _merged:
        destination = Path(tempfile.mkdtemp(dir=process_folder()))
        _make_links(files, destination)
        write_json(destination / MODULES_FILE, [{**modules[0], "path": ""}, *modules[1:]])
        _merged[key] = destination
    show_folder_as(_merged[key], str(path))
    return _merged[key]
