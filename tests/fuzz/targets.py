"""What is mutated, which of the sound inputs it needs, and the commands that read it."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import yaml

from fuzz.mutation import Place
from fuzz.mutators.recipes import SCHEMA
from fuzz.plain import is_plain, read_plain

TEXT = "dim the lamp in the hall"
OUT = "out"
Arguments = Callable[[Place], list[str]]


@dataclass(frozen=True)
class Target:
    """One kind of input.

    Attributes:
        name: Its name.
        needs: Files and folders of the sound inputs.
        commands: Arguments of each command that reads it, by a short name.
        share: How often it is chosen, relative to the others.
    """

    name: str
    needs: tuple[str, ...]
    commands: dict[str, Arguments]
    share: float

    def prepare(self, seeds: Path, here: Path) -> Place:
        """Copy the sound inputs into a new working folder."""
        here.mkdir(parents=True)
        for name in self.needs:
            source = seeds / name
            shutil.copytree(source, here / name) if source.is_dir() else shutil.copy(source, here / name)
        return Place(here)


def _recipe(verb: str) -> Arguments:
    words = {
        "validate": ["recipes", "validate"],
        "dry-run": ["run", "--dry-run", "-o", OUT],
        "check": ["data", "check"],
    }

    def arguments(place: Place) -> list[str]:
        return [*words[verb], "-q", "recipe.yaml", *place.overrides]

    return arguments


def _rows(verb: str) -> Arguments:
    def arguments(place: Place) -> list[str]:
        found = sorted(place.rows.glob("rows.*"))
        name = found[0].name if found else "rows.jsonl"
        content = yaml.safe_load(read_plain(place.recipe))
        if len(place.overrides) == 0:
            del content["data"]["labels"]
            content["data"]["train"]["path"] = f"rows/{name}"
            place.recipe.write_text(yaml.safe_dump(content, sort_keys=False))
        return _recipe(verb)(place)

    return arguments


def _predict_rows(place: Place) -> list[str]:
    found = sorted(place.rows.glob("rows.*"))
    return ["predict", "-q", "-m", "phone", "--file", f"rows/{found[0].name if found else 'rows.jsonl'}"]


def _model_file(place: Place) -> list[str]:
    mark = place.here / "damaged.txt"
    name = (
        read_plain(mark).decode()
        if is_plain(mark)
        else random.Random(len(list(place.here.rglob("*")))).choice(MODEL_FILES)
    )
    return ["predict", "-q", "-m", "phone", "--model-file", name, TEXT]


MODEL_FILES = (
    "onnx/model.onnx",
    "onnx/model_int8.onnx",
    "tflite/model.tflite",
    "tflite/model_int8.tflite",
    "coreml/Model.mlpackage",
)
_RECIPE = ("recipe.yaml", "train.jsonl", "eval.jsonl", "model", SCHEMA)

TARGETS = {
    t.name: t
    for t in (
        Target("recipe", (*_RECIPE, "rows"), {v: _recipe(v) for v in ("validate", "dry-run", "check")}, 2),
        Target("override", _RECIPE, {v: _recipe(v) for v in ("validate", "dry-run")}, 1.5),
        Target(
            "rows",
            (*_RECIPE, "rows", "phone"),
            {"check": _rows("check"), "dry-run": _rows("dry-run"), "predict-file": _predict_rows},
            2,
        ),
        Target(
            "artefact",
            ("phone",),
            {
                "verify": lambda _: ["verify", "-q", "-m", "phone"],
                "predict": lambda _: ["predict", "-q", "-m", "phone", "--top", "3", TEXT],
                "predict-model-file": _model_file,
            },
            3,
        ),
        Target(
            "model", ("model",), {"export": lambda _: ["export", "-q", "-m", "model", "-o", OUT, "--format", "onnx"]}, 1
        ),
        Target(
            "stdin",
            ("phone", "recipe.yaml"),
            {
                "predict": lambda _: ["predict", "-q", "-m", "phone"],
                "predict-text-file": lambda _: ["predict", "-q", "-m", "phone", "--file", "texts.txt"],
            },
            1,
        ),
    )
}


def stdin_of(place: Place) -> str:
    """What the command gets as stdin."""
    return place.stdin or os.devnull
