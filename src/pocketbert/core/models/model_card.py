"""What the card of a model (its README.md on the Hub) says in its front matter: licence, languages, data sets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from pocketbert.core.disk.files import read_json, write_json

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
