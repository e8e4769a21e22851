"""What pyproject.toml says and what the folders hold; needs the checkout, which CI has."""

from __future__ import annotations

import json
import runpy
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from pocketbert.core.recipe.file import load_recipe, recipe_schema
from pocketbert.pipeline.recipes import SCHEMA_FILE, recipe_path, shipped_folder, shipped_names

WINGS = ("benchmarks", "distill", "export", "quantize", "runtime")
LONGEST = 600
DATA = {"pocketbert.pipeline.phone.tokenizers.java": "android_demo/core/src/main"}
"""Folders without Python that are installed, as packages of data."""


ROOT = Path(__file__).resolve().parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def sources() -> list[Path]:
    """Python files that are installed."""
    return [p for top in (ROOT / "src" / "pocketbert", *(ROOT / w for w in WINGS)) for p in top.rglob("*.py")]


def _package(path: Path) -> str:
    relative = path.parent.relative_to(ROOT)
    inside = relative.relative_to("src") if relative.parts[0] == "src" else Path("pocketbert") / relative
    return ".".join(inside.parts)


def test_every_folder_with_code_is_a_listed_package() -> None:
    found = {_package(p) for p in sources()}
    assert sorted({*found, *DATA}) == sorted(PROJECT["tool"]["setuptools"]["packages"])
    for name in found:
        assert (_folder(name) / "__init__.py").is_file(), name


def _folder(package: str) -> Path:
    mapping = PROJECT["tool"]["setuptools"]["package-dir"]
    top = max((k for k in mapping if package == k or package.startswith(k + ".")), key=len)
    return ROOT / mapping[top] / Path(*package[len(top) :].strip(".").split("."))


def test_every_data_file_is_listed() -> None:
    patterns = PROJECT["tool"]["setuptools"]["package-data"]
    for path in (p for top in ("src/pocketbert", *WINGS) for p in (ROOT / top).rglob("*") if p.is_file()):
        if path.suffix in (".py", ".pyc", ".md") or "egg-info" in str(path):
            continue
        package = next(p for p in path.parents if (p / "__init__.py").is_file())
        listed = patterns.get(_package(package / path.name), [])
        found = {p for pattern in listed for p in package.glob(pattern)}
        assert path in found, f"{path.relative_to(ROOT)} would not be installed"


def test_no_source_file_is_longer_than_600_lines() -> None:
    more = [p for top in ("tests", "lab", "scripts") for p in (ROOT / top).rglob("*.py")]
    lines = {p.relative_to(ROOT).as_posix(): p.read_text("utf-8").count("\n") for p in (*sources(), *more)}
    assert {p: n for p, n in lines.items() if n > LONGEST} == {}


def test_recipe_schema_is_up_to_date() -> None:
    shipped = json.loads((ROOT / "src" / "pocketbert" / "recipes" / SCHEMA_FILE).read_text(encoding="utf-8"))
    assert shipped == json.loads(json.dumps(recipe_schema())), (
        "write it again: pocketbert recipes schema > recipe.schema.json"
    )
    jsonschema.Draft202012Validator.check_schema(shipped)


@cache
def schema_validator() -> jsonschema.Draft202012Validator:
    """The shipped schema as a validator: to check the schema itself takes longer than all recipes."""
    return jsonschema.Draft202012Validator(json.loads((shipped_folder() / SCHEMA_FILE).read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", shipped_names())
def test_shipped_recipe(name: str) -> None:
    path = recipe_path(name)
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    assert len(lines) <= 60
    assert lines[0] == f"# yaml-language-server: $schema=../{SCHEMA_FILE}"
    recipe = load_recipe(path)
    assert (recipe.name, recipe.task.value) == (name, path.parent.name)
    schema_validator().validate(yaml.safe_load(text))


def test_core_dependencies_bring_no_training_library() -> None:
    core = {d.split(">")[0].split("[")[0].strip().lower() for d in PROJECT["project"]["dependencies"]}
    small = {"numpy", "onnxruntime", "tokenizers", "pydantic", "pyyaml", "typer", "rich", "filelock", "psutil"}
    assert core == small


def test_the_citation_names_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert citation["version"] == PROJECT["project"]["version"]
    assert citation["license"] == PROJECT["project"]["license"]
    assert f"## {citation['version']} — {citation['date-released']}" in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_a_release_of_the_changelog_has_at_most_30_lines() -> None:
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    lines = [[line for line in part.splitlines() if line.startswith("- ")] for part in text.split("\n## ")[1:]]
    assert lines and all(0 < len(part) <= 30 for part in lines)


@pytest.mark.parametrize(
    ("licence", "allowed"),
    [
        ("MIT", True),
        ("BSD-3-Clause AND 0BSD AND Zlib", True),
        ("Apache-2.0 AND CNRI-Python", True),
        ("GPL-3.0-only OR MIT", True),
        ("GNU Lesser General Public License v3 (LGPLv3)", True),
        ("MIT AND GPL-3.0-only", False),
        ("Apache Software License; GNU General Public License v3 (GPLv3)", False),
        ("AGPL-3.0", False),
        ("", False),
    ],
)
def test_a_release_brings_licences_of_which_each_part_is_allowed(licence: str, allowed: bool) -> None:
    assert runpy.run_path(str(ROOT / "scripts/release.py"))["is_allowed"](licence) == allowed
