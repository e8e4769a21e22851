"""What a sentence-transformers folder says in addition to its modules: prompts in front of texts, the similarity, the library's class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from pocketbert.core.disk.files import read_json
from pocketbert.core.errors import InputError, Problem, nearest
from pocketbert.core.predict.columns import columns_of, with_columns
from pocketbert.core.predict.encoded import Text

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
