"""The table of what files of several data sets score."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks" / "peers"))

import scheme_table
from naive.writers import NAIVE, WRITERS
from scheme_scores import FileScore, Speed

from pocketbert.core.types import Format


def _score(scheme, size, path="onnx/model.onnx", rel=0.05):
    return FileScore(
        path=path,
        format=Format.ONNX,
        scheme=scheme,
        sha256=f"{scheme}{size}",
        bytes=size,
        rows_digest="r",
        rows=10,
        value=0.8,
        against=0.9,
        low=-0.2,
        high=0.0,
        rel=rel,
        machine="a machine",
    )


def _write(path, *scores):
    path.write_text(json.dumps([s.model_dump(mode="json") for s in scores]))
    return str(path)


@pytest.fixture
def table(tmp_path, monkeypatch, capsys):
    def show(**sets):
        paths = [_write(tmp_path / f"{name}.json", *scores) for name, scores in sets.items()]
        monkeypatch.setattr(sys, "argv", ["scheme_table.py", *paths])
        scheme_table.main()
        return capsys.readouterr().out.splitlines()

    return show


def test_sizes_are_those_of_all_sets(table):
    lines = table(a=[_score("int8", 17_690_000)], b=[_score("int8", 17_510_000), _score("w4", 11_000_000)])
    assert lines[2].startswith("| onnx | int8 | 17.51–17.69 | 80.00, -10.00 [-20.00, +0.00] |")
    assert lines[3].startswith("| onnx | w4 | 11.00 | – |")


def test_loads_are_those_at_which_times_were_taken(table):
    taken = [Speed(ms=1.0, ratio=(0.9, 1.0, 1.1), load=load) for load in (4.1, 17.5)]
    timed = [_score(f"s{i}", 1).model_copy(update={"speed": s}) for i, s in enumerate(taken)]
    lines = table(a=[*timed, _score("int8", 1)], b=[_score("int8", 1)])
    assert "load, a: 4.1 to 17.5" in lines and "load, b: no times" in lines


def test_sizes_with_the_same_figure_are_given_once(table):
    lines = table(a=[_score("int8", 17_690_100)], b=[_score("int8", 17_690_000)])
    assert lines[2].startswith("| onnx | int8 | 17.69 |")


def test_naive_files_have_rows_next_to_the_scheme_of_the_project(table):
    scores = [_score("a8w8", 2_000_000), *(_score("a8w8", 1_000_000 + i, t) for i, t in enumerate(_titles()))]
    lines = table(a=scores)
    assert [line.split(" | ")[1] for line in lines[2:5]] == [NAIVE, f"{NAIVE}, all rows", "a8w8"]


def _titles():
    return dict.fromkeys(title for _, title, _ in WRITERS)


def test_every_format_has_a_naive_file():
    assert {format for format, _, _ in WRITERS} == set(Format)
