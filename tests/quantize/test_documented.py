"""docs/quantization.md lists what may be left float and what may have a second scheme: it must be what the table of schemes has."""

from __future__ import annotations

import re
from pathlib import Path

from pocketbert.core.types import Format, Role, Scheme
from pocketbert.quantize.table import WEIGHTED_ROLES, list_rows

PAGE = (Path(__file__).resolve().parents[2] / "docs/quantization.md").read_text("utf-8")
TITLES = {"ONNX": Format.ONNX, "TFLite": Format.TFLITE, "Core ML": Format.COREML}
LISTED = r"(ONNX|TFLite|Core ML) ((?:`[^`]+`(?:, | and )?)+)"
PLAIN = {(r.format, r.scheme): r for r in list_rows() if r.runtime is None and r.write is not None}


def names(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def listed(text: str) -> list[tuple[Format, Scheme]]:
    return [(TITLES[title], Scheme(n)) for title, some in re.findall(LISTED, text) for n in names(some)]


def test_what_may_be_left_float_is_what_the_page_lists() -> None:
    (sentence,) = re.findall(r"^Weights can be left in (.+?), in files for any runtime\.", PAGE, re.M)
    found = listed(sentence)
    assert len(found) == len(set(found)) > 5
    assert set(found) == {key for key, row in PLAIN.items() if row.selective}


def test_roles_with_weights_are_those_that_the_page_calls_compressed() -> None:
    rows = re.findall(r"^\| (`[a-z_]+`(?:, `[a-z_]+`)*) \| [^|]+ \| (compressed|always float)[^|]* \|$", PAGE, re.M)
    kinds = {Role(name): kind for cell, kind in rows for name in names(cell)}
    assert set(kinds) == set(Role)
    assert {role for role, kind in kinds.items() if kind == "compressed"} == WEIGHTED_ROLES
    assert {row.computes for row in PLAIN.values()} == {WEIGHTED_ROLES}


def test_second_schemes_are_those_that_the_page_lists() -> None:
    found: dict[tuple[Format, Scheme], dict[Scheme, frozenset[Role]]] = {}
    usual: dict[tuple[Format, Scheme], dict[Role, Scheme]] = {}
    (table,) = re.findall(r"^\| file \| second scheme of a role or a name \|\n(.+?)\n\n", PAGE, re.M | re.S)
    for cell, what in re.findall(r"^\| ((?:ONNX|TFLite|Core ML) [^|]+) \| (.+) \|$", table, re.M):
        files = listed(cell)
        first, _, roles = what.partition(" for ")
        chosen = WEIGHTED_ROLES if roles.startswith("any role with weights") else frozenset(map(Role, names(roles)[:1]))
        for key in files:
            others = (
                [s for f, s in files if s is not key[1]] if "other one of both" in first else [Scheme(names(first)[0])]
            )
            found[key] = dict.fromkeys(others, chosen)
            usual[key] = {Role(r): others[0] for r in re.findall(r"\*\*`(\w+)` has it by default\*\*", what)}
    assert found == {key: {s: one.roles for s, one in row.seconds.items()} for key, row in PLAIN.items() if row.seconds}
    assert {k: v for k, v in usual.items() if v} == {k: dict(row.usual) for k, row in PLAIN.items() if row.usual}
