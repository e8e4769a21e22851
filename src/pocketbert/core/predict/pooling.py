"""How token states become one vector per text: what a sentence-transformers folder says, and how to say it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from pocketbert.core.disk.files import read_json, safe_join, write_json
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.predict.sentence_settings import SETTINGS_FILE, is_cross_encoder, read_settings

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
