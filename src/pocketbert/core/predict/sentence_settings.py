"""What a sentence-transformers folder says in addition to its modules: prompts in front of texts, the similarity, the library's class."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from pocketbert.core.disk.files import read_json, safe_join, write_json
from pocketbert.core.errors import InputError, Problem, nearest
from pocketbert.core.predict.inputs import Text, columns_of, with_columns

SETTINGS_FILE = "config_sentence_transformers.json"
"""Where sentence-transformers keeps prompts, the similarity, and which of its classes a folder is for."""
_MOST = 1 << 10
_LONGEST = 1 << 14
"""Characters of a prompt: the text itself has to have room behind it."""


class Similarity(StrEnum):
    """What says how alike two vectors are; the larger, the more alike."""

    COSINE = "cosine"
    """The cosine of the angle between them."""
    DOT = "dot"
    """Their dot product."""
    EUCLIDEAN = "euclidean"
    """The negative Euclidean distance."""
    MANHATTAN = "manhattan"
    """The negative sum of the absolute differences."""


@dataclass(frozen=True)
class Prompts:
    """The prompts of a model.

    Attributes:
        named: Texts by name.
        default: Name of the prompt of texts for which none is named; None for no prompt.
    """

    named: Mapping[str, str] = field(default_factory=dict)
    default: str | None = None

    def text_of(self, name: str | None) -> str:
        """Return the prompt of that name, of None the default one; empty where there is none.

        Raises:
            InputError: If no prompt has the name.
        """
        chosen = self.default if name is None else name
        if chosen is None:
            return ""
        if chosen not in self.named:
            known = f"the model's prompts: {nearest(chosen, list(self.named))}" if self.named else "the model has none"
            fix = "Name one of these, or write the prompt into the texts." if self.named else "Leave it out."
            raise InputError(Problem("prompt", f"'{chosen}' is no prompt; {known}.", fix))
        return self.named[chosen]

    def put_before(self, texts: Sequence[Text], name: str | None = None) -> Sequence[Text]:
        """Return texts with a prompt in front, of pairs in front of the first text, as sentence-transformers puts it.

        Args:
            texts: N texts or pairs; what is neither stays as it is.
            name: Name of the prompt; None for the default one.

        Raises:
            InputError: If no prompt has the name.
        """
        prompt = self.text_of(name)
        return [_behind(prompt, text) for text in texts] if prompt else texts


def _behind(prompt: str, text: Text) -> Text:
    """Put a prompt in front of one text, which keeps the columns of its row."""
    if isinstance(text, str):
        return with_columns(prompt + text, columns_of(text))
    parts: object = text
    if not isinstance(parts, tuple | list) or len(parts) != 2 or not isinstance(parts[0], str):
        return text  # whoever tokenizes it says what is wrong with it
    return with_columns((prompt + parts[0], parts[1]), columns_of(text))


def read_settings(folder: Path) -> dict[str, Any]:
    """Read a model folder's config_sentence_transformers.json; empty where it has none.

    Raises:
        InputError: If it is no JSON object.
    """
    path = folder / SETTINGS_FILE
    settings = read_json(path) if path.is_file() else {}
    if not isinstance(settings, dict):
        raise InputError(Problem(str(path), "is not a table of settings."))
    return settings


def is_cross_encoder(folder: Path) -> bool:
    """Whether a model folder is of sentence-transformers' class for pairs, which answers with the outputs of a classifier.

    Raises:
        InputError: If its settings cannot be read.
    """
    return read_settings(folder).get("model_type") == "CrossEncoder"


def read_listed_processing(folder: Path) -> dict[str, Any] | None:
    """Read the entry `processing` of an artefact folder's list; None of a folder without a list."""
    listed = folder / "artifacts.json"
    if not listed.is_file():
        return None
    content = read_json(listed)
    processing = content.get("processing") if isinstance(content, dict) else None
    return processing if isinstance(processing, dict) else {}


def prompts_of(folder: Path) -> Prompts:
    """Read the prompts of a model folder, of an artefact folder from its own list.

    Raises:
        InputError: If they are no texts by name, or the default one is not among them.
    """
    if (listed := read_listed_processing(folder)) is not None:
        return _checked(listed.get("prompts"), listed.get("default_prompt"), folder / "artifacts.json")
    settings = read_settings(folder)
    return _checked(settings.get("prompts"), settings.get("default_prompt_name"), folder / SETTINGS_FILE)


def _checked(named: Any, default: Any, where: Path) -> Prompts:
    """Make prompts of what a file says; a name without a text is a prompt that its library leaves open, and is left out."""
    named = {} if named is None else named
    texts = {k: v for k, v in named.items() if v is not None} if isinstance(named, dict) else None
    if (
        texts is None
        or len(texts) > _MOST
        or not all(isinstance(v, str) and len(v) <= _LONGEST for v in texts.values())
    ):
        what = f"prompts is no table of at most {_MOST:,} texts by name, each of at most {_LONGEST:,} characters."
        raise InputError(Problem(str(where), what, 'Write them as {"query": "query: "}.'))
    if default is not None and (not isinstance(default, str) or default not in texts):
        known = ", ".join(texts) or "none"
        raise InputError(Problem(str(where), f"the default prompt {default!r:.60} is not among the prompts: {known}."))
    return Prompts(texts, default)


def similarity_of(folder: Path) -> Similarity:
    """Read what vectors of a sentence-transformers model are compared with; the cosine where its folder does not say.

    Raises:
        InputError: If it is none of those that sentence-transformers has.
    """
    stated = read_settings(folder).get("similarity_fn_name")
    if stated in (None, *Similarity):
        return Similarity(stated or Similarity.COSINE)
    known = nearest(str(stated), [s.value for s in Similarity])
    raise InputError(Problem(str(folder / SETTINGS_FILE), f"similarity_fn_name {stated!r:.40} is unknown; {known}."))


# --- pooling ---
# How token states become one vector per text: what a sentence-transformers folder says, and how to say it.


MODULES_FILE = "modules.json"
POOLING_FILE = "1_Pooling/config.json"


class PoolingKind(StrEnum):
    """Which token states make the vector."""

    MEAN = "mean"
    """The mean over all tokens but padding, special tokens included."""
    CLS = "cls"
    """The state of the first token."""


@dataclass(frozen=True)
class Pooling:
    """From token states [B, L, H] to sentence embeddings [B, H].

    Attributes:
        kind: Which states.
        normalize: Whether the vector is divided by its Euclidean length.
    """

    kind: PoolingKind = PoolingKind.MEAN
    normalize: bool = True

    @property
    def title(self) -> str:
        """What people call it, e.g. ``mean of the token states, of length 1``."""
        names = {PoolingKind.MEAN: "mean of the token states", PoolingKind.CLS: "state of the first token"}
        return names[self.kind] + (", of length 1" if self.normalize else "")


DEFAULT_POOLING = Pooling()
"""Of models that do not say how: what most sentence-transformers models do."""


def pooling_of(folder: Path) -> Pooling | None:
    """Read how a sentence-transformers model pools.

    Source: sentence-transformers 5: modules.json lists the modules in order, each with a class (of which only the last
    part of the name counts here: its package was moved between versions) and the folder of its settings.

    Args:
        folder: A Hugging Face model folder.

    Returns:
        The pooling, or None where the folder has no modules.json: it is no sentence-transformers model.

    Raises:
        InputError: Naming every module and every setting that would change the vector and is not served.
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
        raise InputError(
            Problem(
                str(path),
                f"the modules {', '.join(k or '?' for k in kinds) or 'are none'}; "
                "served: Transformer, Pooling and, behind them, Normalize.",
                "Choose a model without further layers behind the encoder, or leave modules.json out and take the mean.",
            )
        )
    if (width := read_settings(folder).get("truncate_dim")) is not None:
        what = f"truncate_dim is {width!r:.20}: sentence-transformers keeps only the first numbers of a vector, the files give all."
        fix = "Leave truncate_dim out, and cut the vectors in your code where they are read."
        raise InputError(Problem(str(folder / SETTINGS_FILE), what, fix))
    place = safe_join(folder, str(modules[1].get("path", "")), str(path))
    return Pooling(_kind(place / "config.json"), len(kinds) == 3)


def write_modules(folder: Path, pooling: Pooling, width: int, length: int) -> None:
    """Make a Hugging Face folder one that sentence-transformers opens and pools in the same way.

    Args:
        folder: The folder, which has config.json and the tokenizer.
        pooling: How to pool.
        width: H, numbers in a token state.
        length: Longest input in tokens.
    """
    modules = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")]
    listed = modules if pooling.normalize else modules[:2]
    write_json(
        folder / MODULES_FILE,
        [
            {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
            for i, (name, path) in enumerate(listed)
        ],
    )
    (folder / POOLING_FILE).parent.mkdir(exist_ok=True)
    flags = {flag: kind is pooling.kind for flag, kind in _FLAGS.items()}
    write_json(folder / POOLING_FILE, {"word_embedding_dimension": width, **flags})
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": length, "do_lower_case": False})


_FLAGS = {"pooling_mode_mean_tokens": PoolingKind.MEAN, "pooling_mode_cls_token": PoolingKind.CLS}
"""Settings of the Pooling module that are served; the others with the same prefix are not."""


def _kind(path: Path) -> PoolingKind:
    settings = read_json(path)
    if not isinstance(settings, dict):
        raise InputError(Problem(str(path), "is not a table of settings."))
    modes = sorted(_modes(settings))
    problems = []
    if len(modes) != 1 or modes[0] not in set(PoolingKind):
        problems.append(
            Problem(
                str(path), f"pools by {' and '.join(modes) or 'nothing'}; served is one of {', '.join(PoolingKind)}."
            )
        )
    if settings.get("include_prompt", True) is not True:
        problems.append(
            Problem(
                str(path),
                "leaves the prompt's tokens out (include_prompt: false); a file cannot know them.",
                "Set include_prompt: true if the texts have no prompt.",
            )
        )
    if problems:
        raise InputError(problems)
    return PoolingKind(modes[0])


def _modes(settings: dict[str, Any]) -> Iterator[str]:
    """Names of the modes that are switched on: flags, or since version 5.2 one word or several."""
    for flag, on in settings.items():
        if flag.startswith("pooling_mode_") and on:
            known = _FLAGS.get(flag)
            yield known.value if known else flag
    named = settings.get("pooling_mode")
    for mode in [named] if isinstance(named, str) else named or ():
        yield str(mode)
