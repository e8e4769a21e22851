"""What is mutated, which of the sound inputs it needs, and the commands that read it."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

import fuzz.mutators  # noqa: F401 - registers the mutators
from fuzz.files import is_plain, read_plain
from fuzz.mutation import Case, Place, Step, mutators_of
from fuzz.mutators.recipes import SCHEMA

TEXT = "dim the lamp in the hall"
OUT = "out"
MODELS = ("onnx/model.onnx", "onnx/model_int8.onnx", "tflite/model.tflite", "tflite/model_int8.tflite")
MODEL_FILES = (*MODELS, "coreml/Model.mlpackage")
Arguments = Callable[[Place], list[str]]


@dataclass(frozen=True)
class Target:
    """One kind of input."""

    needs: tuple[str, ...]  # of the sound inputs
    commands: dict[str, Arguments]  # that read it, by a short name
    share: float  # how often it is chosen, relative to the others

    def prepare(self, seeds: Path, here: Path) -> Place:
        """Copy the sound inputs into a new working folder."""
        here.mkdir(parents=True)
        for name in self.needs:
            source = seeds / name
            shutil.copytree(source, here / name) if source.is_dir() else shutil.copy(source, here / name)
        return Place(here)


RECIPE_VERBS = {
    "validate": ["recipes", "validate"],
    "dry-run": ["run", "--dry-run", "-o", OUT],
    "check": ["data", "check"],
}


def _recipe(verb: str) -> Arguments:
    return lambda place: [*RECIPE_VERBS[verb], "-q", "recipe.yaml", *place.overrides]


def _rows_file(place: Place) -> str:
    found = sorted(place.rows.glob("rows.*"))
    return f"rows/{found[0].name if found else 'rows.jsonl'}"


def _rows(verb: str) -> Arguments:
    def arguments(place: Place) -> list[str]:
        content = yaml.safe_load(read_plain(place.recipe))
        if not place.overrides:
            del content["data"]["labels"]
            content["data"]["train"]["path"] = _rows_file(place)
            place.recipe.write_text(yaml.safe_dump(content, sort_keys=False))
        return _recipe(verb)(place)

    return arguments


def _predict(*more: str) -> Arguments:
    return lambda _: ["predict", "-q", "-m", "phone", *more]


def _model_file(place: Place) -> list[str]:
    mark, draw = place.here / "damaged.txt", random.Random(len(list(place.here.rglob("*"))))
    name = read_plain(mark).decode() if is_plain(mark) else draw.choice(MODEL_FILES)
    return _predict("--model-file", name, TEXT)(place)


_SEEDS = ("recipe.yaml", "train.jsonl", "eval.jsonl", "model", SCHEMA)
TARGETS = {
    "recipe": Target((*_SEEDS, "rows"), {v: _recipe(v) for v in RECIPE_VERBS}, 2),
    "override": Target(_SEEDS, {v: _recipe(v) for v in ("validate", "dry-run")}, 1.5),
    "rows": Target(
        (*_SEEDS, "rows", "phone"),
        {
            **{v: _rows(v) for v in ("check", "dry-run")},
            "predict-file": lambda place: _predict("--file", _rows_file(place))(place),
        },
        2,
    ),
    "artefact": Target(
        ("phone",),
        {
            "verify": lambda _: ["verify", "-q", "-m", "phone"],
            "predict": _predict("--top", "3", TEXT),
            "predict-model-file": _model_file,
        },
        3,
    ),
    "model": Target(
        ("model",), {"export": lambda _: ["export", "-q", "-m", "model", "-o", OUT, "--format", "onnx"]}, 1
    ),
    "stdin": Target(
        ("phone", "recipe.yaml"), {"predict": _predict(), "predict-text-file": _predict("--file", "texts.txt")}, 1
    ),
}


def draw_case(seed: int, number: int, targets: tuple[str, ...] = tuple(TARGETS)) -> Case:
    """The case of a number: a target, one of its commands, and mostly one change."""
    draw = random.Random(f"{seed}/{number}")
    name = draw.choices(targets, [TARGETS[t].share for t in targets])[0]
    verb = draw.choice(list(TARGETS[name].commands))
    count = draw.choices([1, 2, 3], [8, 1.5, 0.5])[0]
    drawn = [Step(draw.choice(mutators_of(name)).name, f"{seed}/{number}/{i}") for i in range(count)]
    return Case(seed, number, name, verb, tuple(sorted(drawn, key=lambda s: ".no_plain_" in s.mutator)))  # devices last


def endless(seed: int, targets: tuple[str, ...] = tuple(TARGETS)) -> Iterator[Case]:
    """The cases of a seed, without end."""
    number = 0
    while True:
        yield draw_case(seed, number, targets)
        number += 1
