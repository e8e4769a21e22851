"""Settings of a sentence-transformers folder in addition to the model: prompts, the similarity, and the pooling.

- `read_prompts` and `read_similarity` read config_sentence_transformers.json.
- `read_pooling` reads from modules.json how token states become one vector per text; `write_modules` writes these files.
- For an artefact folder, `read_listed_processing` reads the same settings from its artifacts.json.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from pocketbert.core.disk.files import read_json, safe_join, write_json
from pocketbert.core.errors import InputError, Problem, suggest_allowed
from pocketbert.core.predict.inputs import Text, columns_of, with_columns

SETTINGS_FILE = "config_sentence_transformers.json"
"""File in which sentence-transformers keeps prompts, the similarity, and which of its classes a folder is for."""


def read_settings(folder: Path) -> dict[str, Any]:
    """Read a folder's config_sentence_transformers.json as a dictionary; empty if there is no such file.

    Raises:
        InputError: If it is no JSON object.
    """
    path = folder / SETTINGS_FILE
    settings = read_json(path) if path.is_file() else {}
    if not isinstance(settings, dict):
        raise InputError(Problem(str(path), "is not a table of settings."))
    return settings


def is_cross_encoder(folder: Path) -> bool:
    """Return whether a folder holds a sentence-transformers CrossEncoder, which classifies pairs of texts.

    Raises:
        InputError: If its settings cannot be read.
    """
    return read_settings(folder).get("model_type") == "CrossEncoder"


def read_listed_processing(folder: Path) -> dict[str, Any] | None:
    """Read the entry `processing` (tokenizer and prompt settings) of a folder's artifacts.json; None without it."""
    artifacts = folder / "artifacts.json"
    if not artifacts.is_file():
        return None
    content = read_json(artifacts)
    processing = content.get("processing") if isinstance(content, dict) else None
    return processing if isinstance(processing, dict) else {}


# --- prompts ---

_MOST_PROMPTS = 1 << 10
_LONGEST_PROMPT = 1 << 14
"""Characters of a prompt: the text itself has to have room behind it."""


@dataclass(frozen=True)
class Prompts:
    """The prompts of an embedding model: texts such as ``query: `` that are put in front of an input.

    Attributes:
        named: Texts by name.
        default: Name of the prompt of texts for which none is named; None for no prompt.
    """

    named: Mapping[str, str] = field(default_factory=dict)
    default: str | None = None

    def text_of(self, name: str | None) -> str:
        """Return the text of the named prompt, or of the default one for None; empty if there is no default.

        Raises:
            InputError: If no prompt has the name.
        """
        name = self.default if name is None else name
        if name is None:
            return ""
        if name not in self.named:
            known = (
                f"the model's prompts: {suggest_allowed(name, list(self.named))}"
                if self.named
                else "the model has none"
            )
            fix = "Name one of these, or write the prompt into the texts." if self.named else "Leave it out."
            raise InputError(Problem("prompt", f"'{name}' is no prompt; {known}.", fix))
        return self.named[name]

    def put_before(self, texts: Sequence[Text], name: str | None = None) -> Sequence[Text]:
        """Put a prompt in front of texts (of pairs in front of the first text), as sentence-transformers does.

        Args:
            texts: N texts or pairs; anything else stays as it is.
            name: Name of the prompt; None for the default one.

        Raises:
            InputError: If no prompt has the name.
        """
        prompt = self.text_of(name)
        return [_prepend(prompt, text) for text in texts] if prompt else texts


def _prepend(prompt: str, text: Text) -> Text:
    """Put a prompt in front of one text or pair, which keeps its data columns."""
    if isinstance(text, str):
        return with_columns(prompt + text, columns_of(text))
    parts: object = text
    if not isinstance(parts, tuple | list) or len(parts) != 2 or not isinstance(parts[0], str):
        return text  # the tokenizer reports what is wrong with it
    return with_columns((prompt + parts[0], parts[1]), columns_of(text))


def read_prompts(folder: Path) -> Prompts:
    """Read a folder's prompts, from artifacts.json if there is one, else from config_sentence_transformers.json.

    A name without a text (null) is a prompt that the library leaves open; it is left out.

    Raises:
        InputError: If they are no texts by name, or the default one is not among them.
    """
    if (processing := read_listed_processing(folder)) is not None:
        where = folder / "artifacts.json"
        prompts, default = processing.get("prompts"), processing.get("default_prompt")
    else:
        where, settings = folder / SETTINGS_FILE, read_settings(folder)
        prompts, default = settings.get("prompts"), settings.get("default_prompt_name")
    prompts = {} if prompts is None else prompts
    texts = {k: v for k, v in prompts.items() if v is not None} if isinstance(prompts, dict) else None
    if (
        texts is None
        or len(texts) > _MOST_PROMPTS
        or not all(isinstance(v, str) and len(v) <= _LONGEST_PROMPT for v in texts.values())
    ):
        what = (
            f"prompts is no table of at most {_MOST_PROMPTS:,} texts by name, "
            f"each of at most {_LONGEST_PROMPT:,} characters."
        )
        raise InputError(Problem(str(where), what, 'Write them as {"query": "query: "}.'))
    if default is not None and (not isinstance(default, str) or default not in texts):
        known = ", ".join(texts) or "none"
        raise InputError(Problem(str(where), f"the default prompt {default!r:.60} is not among the prompts: {known}."))
    return Prompts(texts, default)


# --- similarity ---


class Similarity(StrEnum):
    """Measure of how alike two vectors are; the larger, the more alike."""

    COSINE = "cosine"
    """The cosine of the angle between them."""
    DOT = "dot"
    """Their dot product."""
    EUCLIDEAN = "euclidean"
    """The negative Euclidean distance."""
    MANHATTAN = "manhattan"
    """The negative sum of the absolute differences."""


def read_similarity(folder: Path) -> Similarity:
    """Read which similarity a sentence-transformers model's vectors are compared with; cosine by default.

    Raises:
        InputError: If it is none of those that sentence-transformers has.
    """
    name = read_settings(folder).get("similarity_fn_name")
    if name in (None, *Similarity):
        return Similarity(name or Similarity.COSINE)
    known = suggest_allowed(str(name), [s.value for s in Similarity])
    raise InputError(Problem(str(folder / SETTINGS_FILE), f"similarity_fn_name {name!r:.40} is unknown; {known}."))


# --- pooling ---

MODULES_FILE = "modules.json"
POOLING_FILE = "1_Pooling/config.json"


class PoolingKind(StrEnum):
    """Which token states are pooled."""

    MEAN = "mean"
    """The mean over all tokens but padding, special tokens included."""
    CLS = "cls"
    """The state of the first token."""


_FLAGS = {"pooling_mode_mean_tokens": PoolingKind.MEAN, "pooling_mode_cls_token": PoolingKind.CLS}
"""Settings of the Pooling module that are supported; others with the same prefix are refused."""


@dataclass(frozen=True)
class Pooling:
    """How the token states [B, L, H] of a model are pooled to sentence embeddings [B, H].

    Attributes:
        kind: Which states are pooled.
        normalize: Whether the vector is divided by its Euclidean length.
    """

    kind: PoolingKind = PoolingKind.MEAN
    normalize: bool = True

    @property
    def title(self) -> str:
        """Description for users, such as ``mean of the token states, of length 1``."""
        names = {PoolingKind.MEAN: "mean of the token states", PoolingKind.CLS: "state of the first token"}
        return names[self.kind] + (", of length 1" if self.normalize else "")


DEFAULT_POOLING = Pooling()
"""Pooling of models that do not state theirs: that of most sentence-transformers models."""


def read_pooling(folder: Path) -> Pooling | None:
    """Read from modules.json how a sentence-transformers model pools token states; None if there is no such file.

    Source: sentence-transformers 5: modules.json lists the modules in order, each with a class (of which only the last
    part of the name counts here: its package was moved between versions) and the folder of its settings.

    Args:
        folder: A Hugging Face model folder.

    Returns:
        The pooling, or None if the folder has no modules.json and so is no sentence-transformers model.

    Raises:
        InputError: Naming every module and every setting that would change the vector and is not supported.
    """
    path = folder / MODULES_FILE
    if not path.is_file():
        return None
    modules = read_json(path)
    if not isinstance(modules, list) or not all(isinstance(m, dict) for m in modules):
        raise InputError(Problem(str(path), "is not a list of modules."))
    kinds = [str(m.get("type", "")).rpartition(".")[2] for m in modules]
    if kinds == ["Transformer"] and is_cross_encoder(folder):
        return None
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        what = (
            f"the modules {', '.join(k or '?' for k in kinds) or 'are none'}; "
            "served: Transformer, Pooling and, behind them, Normalize."
        )
        fix = "Choose a model without further layers behind the encoder, or leave modules.json out and take the mean."
        raise InputError(Problem(str(path), what, fix))
    if (width := read_settings(folder).get("truncate_dim")) is not None:
        what = f"truncate_dim is {width!r:.20}: sentence-transformers keeps only the first numbers of a vector, the files give all."
        fix = "Leave truncate_dim out, and cut the vectors in your code where they are read."
        raise InputError(Problem(str(folder / SETTINGS_FILE), what, fix))
    pooling_folder = safe_join(folder, str(modules[1].get("path", "")), str(path))
    return Pooling(_read_pooling_kind(pooling_folder / "config.json"), len(kinds) == 3)


def _read_pooling_kind(path: Path) -> PoolingKind:
    """Read the Pooling module's config.json; raise InputError if it asks for pooling that is not supported."""
    settings = read_json(path)
    if not isinstance(settings, dict):
        raise InputError(Problem(str(path), "is not a table of settings."))
    modes = sorted(_pooling_modes(settings))
    problems = []
    if len(modes) != 1 or modes[0] not in set(PoolingKind):
        what = f"pools by {' and '.join(modes) or 'nothing'}; served is one of {', '.join(PoolingKind)}."
        problems.append(Problem(str(path), what))
    if settings.get("include_prompt", True) is not True:
        what = "leaves the prompt's tokens out (include_prompt: false); a file cannot know them."
        problems.append(Problem(str(path), what, "Set include_prompt: true if the texts have no prompt."))
    if problems:
        raise InputError(problems)
    return PoolingKind(modes[0])


def _pooling_modes(settings: dict[str, Any]) -> Iterator[str]:
    """Yield the names of the pooling modes that are switched on, in the old format (flags) or the new one (words)."""
    for flag, on in settings.items():
        if flag.startswith("pooling_mode_") and on:
            known = _FLAGS.get(flag)
            yield known.value if known else flag
    modes = settings.get("pooling_mode")
    for mode in [modes] if isinstance(modes, str) else modes or ():
        yield str(mode)


def write_modules(folder: Path, pooling: Pooling, width: int, length: int) -> None:
    """Write modules.json and its settings so that sentence-transformers opens the folder and pools in the same way.

    Args:
        folder: The folder, which has config.json and the tokenizer.
        pooling: How to pool.
        width: Width H of a token state.
        length: Longest input in tokens.
    """
    modules = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")]
    entries = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
        for i, (name, path) in enumerate(modules if pooling.normalize else modules[:2])
    ]
    write_json(folder / MODULES_FILE, entries)
    (folder / POOLING_FILE).parent.mkdir(exist_ok=True)
    flags = {flag: kind is pooling.kind for flag, kind in _FLAGS.items()}
    write_json(folder / POOLING_FILE, {"word_embedding_dimension": width, **flags})
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": length, "do_lower_case": False})
