"""Tiny models with forms: XLM with three languages, ERNIE (Tsinghua) with the authors' tables of entities."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pocketbert.core.tasks import TASKS, TaskName
from support.tiny import NAMES, tiny_classifier, write_own_tokenizer

LANGUAGES = {"de": 0, "en": 1, "fr": 2}
ENTITIES = 30
KEPT = ("Q101", "Title 7", "Q129")


def write_xlm(folder: Path, task: TaskName = TaskName.TEXT_CLASSIFICATION, **changes: Any) -> Path:
    """A tiny XLM whose languages make a difference."""
    sizes = {
        "n_langs": 3,
        "lang2id": LANGUAGES,
        "id2lang": {i: n for n, i in LANGUAGES.items()},
        "lang_id": 1,
        **changes,
    }
    return _write(folder, "xlm", task, 2, sizes)


def write_ernie(
    folder: Path, task: TaskName = TaskName.TEXT_CLASSIFICATION, kinds: Sequence[str] = ("sim", "mix", "norm")
) -> Path:
    """A tiny ERNIE (Tsinghua), with the files of its entities in the folder of the authors' archive."""
    _write(folder, "ernie-thu", task, len(kinds), {"layer_kinds": list(kinds)})
    home = folder / "kg_embed"
    home.mkdir()
    rows = "".join("\t".join(map(str, vector)) + "\t\n" for vector in released_vectors().tolist())
    (home / "entity2vec.vec").write_text(rows)
    (home / "entity2id.txt").write_text(f"{ENTITIES}\n" + "".join(f"Q{100 + i}\t{i}\n" for i in range(ENTITIES)))
    (home / "entity_map.txt").write_text("".join(f"Title {i}\tQ{100 + i}\n" for i in range(ENTITIES)))
    return folder


def released_vectors() -> Any:
    """Vectors of length 1, [30, 12], as text can hold them."""
    drawn = np.random.default_rng(3).normal(size=(ENTITIES, 12))
    return np.round(drawn / np.linalg.norm(drawn, axis=1, keepdims=True), 6).astype(np.float32)


def write_kept(folder: Path) -> Path:
    """A file that names the entities of `KEPT`."""
    path = folder / "keep.txt"
    path.write_text("\n".join(KEPT) + "\n")
    return path


def _write(folder: Path, family: str, task: TaskName, layers: int, sizes: dict[str, Any]) -> Path:
    folder.mkdir(parents=True)
    told = write_own_tokenizer(folder, family)
    labels = ("O", "B-place", "I-place") if task is TaskName.TOKEN_CLASSIFICATION else NAMES
    names = labels if TASKS[task].names_labels else ()
    sizes = {**sizes, "num_labels": 1, "problem_type": "regression"} if task is TaskName.REGRESSION else sizes
    tiny_classifier(family, layers, names, 1, TASKS[task].auto_class, 0.25, **told, **sizes).save_pretrained(folder)
    return folder
