"""Choosing files inside a budget: what is chosen, what is refused, what a kill leaves, and that broken candidates lose."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import pocketbert.quantize
from pocketbert import api
from pocketbert.core.artefacts import Candidate, read_artefacts
from pocketbert.core.data.source import DataSource
from pocketbert.core.errors import GateError, InputError
from pocketbert.core.recipe.budget import BudgetSection
from pocketbert.core.types import Format, Scheme, Status
from pocketbert.pipeline.direct import quantizing
from pocketbert.pipeline.direct.choosing import FormatResult
from pocketbert.pipeline.options import BudgetOptions
from pocketbert.quantize import Plan
from pocketbert.quantize import table as quantizers
from pocketbert.quantize.table import SchemeRow, find_row
from support.folders import tree
from support.tiny_texts import task_rows, write_lines

SCHEMES = ("int8", "small", "w4")


@pytest.fixture
def rows(tmp_path: Path) -> tuple[DataSource, DataSource]:
    """Rows to score on, and rows to calibrate on."""
    data = write_lines(tmp_path / "dev.jsonl", task_rows(60, 5))
    train = write_lines(tmp_path / "train.jsonl", task_rows(80, 9))
    return DataSource.at(str(data)), DataSource.at(str(train))


class _Stop(Exception):
    """Raised where the folder would be written."""


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[FormatResult]:
    """What the searches of a test found; none of them goes on to write a folder."""
    out: list[FormatResult] = []
    require = quantizing.require_chosen_files

    def stopped(results: list[FormatResult], *args: Any) -> None:
        out[:] = results
        require(results, *args)
        raise _Stop

    monkeypatch.setattr(quantizing, "require_chosen_files", stopped)
    return out


def choose(phone: Path, output: Path, rows: tuple[DataSource, DataSource], *schemes: str, **limits: float) -> Path:
    """`api.quantize` inside limits."""
    budget = BudgetOptions(limits=BudgetSection(**limits), data=rows[0])
    return api.quantize(phone, output, schemes or SCHEMES, calibrate=rows[1], budget=budget)


def by_scheme(candidates: list[Candidate]) -> dict[str, Candidate]:
    return {c.scheme.value: c for c in candidates if not c.left}


def megabytes(phone: Path, tmp_path: Path, scheme: Scheme) -> float:
    path = tmp_path / "one.onnx"
    pocketbert.quantize.quantize(phone / "onnx/model.onnx", path, Plan(Format.ONNX, scheme))
    return path.stat().st_size / 1e6


def test_the_file_that_only_fits_is_chosen_and_the_folder_tells_of_all(
    phone: Path, tmp_path: Path, rows: tuple[DataSource, DataSource]
) -> None:
    before = tree(phone)
    small, int8 = megabytes(phone, tmp_path, Scheme.SMALL), megabytes(phone, tmp_path, Scheme.INT8)
    limit = (small + int8) / 2
    made = choose(phone, tmp_path / "made", rows, max_drop=0.1, max_size_mb=limit)
    assert tree(phone) == before
    artefacts = read_artefacts(made)
    search = artefacts.search
    assert search is not None
    considered = by_scheme(search.candidates)
    assert {r.path for r in artefacts.models()} == {"onnx/model.onnx", search_path(search.candidates)}
    chosen = next(c for c in search.candidates if c.chosen)
    assert chosen.scheme in (Scheme.SMALL, Scheme.W4) or chosen.left
    fitting = [c for c in search.candidates if c.bytes and c.bytes / 1e6 <= limit]
    assert chosen.rel == min(c.rel for c in fitting if c.rel is not None), "the closest one that fits"
    assert considered["int8"].inside is False
    assert chosen.inside is True
    assert (search.chosen_on + search.scored_on, search.ranked_on) == (60, 80)
    scored = artefacts.default_model()
    assert (scored.path, scored.sha256) == (chosen.path, chosen.sha256)
    assert scored.scores["eval"].rows == search.scored_on, "rows that chose nothing"
    page = (made / "report.html").read_text()
    assert "Chosen inside a budget" in page
    assert 'aria-label="ONNX files inside and outside the budget"' in page
    assert all(c.path in page for c in search.candidates)
    assert api.verify(made).status is Status.PASSED
    assert not [p for p in tmp_path.iterdir() if p.name.endswith("pocketbert-tmp")]
    again = choose(phone, tmp_path / "made", rows, max_drop=0.1, max_size_mb=limit)
    assert (again / "report.html").stat().st_mtime_ns == (made / "report.html").stat().st_mtime_ns, "skipped"


def search_path(candidates: list[Candidate]) -> str:
    return next(c.path for c in candidates if c.chosen)


def test_an_impossible_budget_exits_with_3_and_writes_nothing(
    phone: Path, tmp_path: Path, rows: tuple[DataSource, DataSource], cli: Callable[..., Any], counted: list[str]
) -> None:
    before = tree(phone)
    flags = ["--data", rows[0].path, "--calibrate", rows[1].path, "--scheme", "int8,w4"]
    told = cli("quantize", "-m", phone, *flags, "--budget", "max_drop=0.1,max_size_mb=0.0001")
    assert told.exit_code == 3, told.output
    assert "no file is inside max_drop=0.1,max_size_mb=0.0001" in told.stderr
    assert "The nearest is onnx/model_w4.onnx" in told.stderr
    assert "It would be inside with: --budget max_drop=0.1,max_size_mb=" in told.stderr
    assert counted == ["w4"], "int8 is surely too large"
    assert tree(phone) == before
    assert not (tmp_path / "phone-budget").exists()
    left = [p.name for work in tmp_path.glob(".phone-budget.*") for p in work.iterdir() if not p.name.startswith(".")]
    assert left == ["figures.json"], "figures stay, candidates do not"


def test_a_killed_search_goes_on_where_it_was(
    phone: Path,
    tmp_path: Path,
    rows: tuple[DataSource, DataSource],
    found: list[FormatResult],
    counted: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from pocketbert.pipeline.direct import budget_search, candidates

    ranked = candidates.rms_error
    with monkeypatch.context() as killed:
        killed.setattr(candidates, "rms_error", lambda a, b: ranked(a, b) if len(counted) < 2 else _kill())
        with pytest.raises(KeyboardInterrupt):
            choose(phone, tmp_path / "made", rows, max_drop=0.1)
    assert len(counted) == 2
    scored: list[str] = []
    evaluate = budget_search.evaluate
    monkeypatch.setattr(budget_search, "evaluate", lambda *a, label: scored.append(label) or evaluate(*a, label=label))
    with pytest.raises(_Stop):
        choose(phone, tmp_path / "made", rows, max_drop=0.1)
    assert sorted(counted) == sorted(SCHEMES), "each written once"
    assert found[0].chosen is not None
    first = list(scored)
    with pytest.raises(_Stop):
        choose(phone, tmp_path / "made", rows, max_drop=0.09)
    assert scored == first, "another budget measures nothing again"
    assert sorted(counted) == sorted(SCHEMES)


def _kill() -> float:
    raise KeyboardInterrupt


def test_evaluation_rows_calibrate_nothing(phone: Path, tmp_path: Path, rows: tuple[DataSource, DataSource]) -> None:
    with pytest.raises(InputError, match="--calibrate: no training row is left: 60 also occur in eval"):
        choose(phone, tmp_path / "made", (rows[0], rows[0]), max_drop=0.1)
    assert not (tmp_path / "made").exists()


def _with_writer(monkeypatch: pytest.MonkeyPatch, scheme: Scheme, write: Callable[[Path, Path, Plan], None]) -> None:
    row = find_row(Format.ONNX, scheme)
    monkeypatch.setitem(quantizers._ROWS, (Format.ONNX, scheme, None), replace(row, write=write))


def test_a_quantizer_that_does_nothing_is_reported_and_not_chosen(
    phone: Path,
    tmp_path: Path,
    rows: tuple[DataSource, DataSource],
    found: list[FormatResult],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _with_writer(
        monkeypatch, Scheme.SMALL, lambda source, destination, _: shutil.copyfile(source, destination) and None
    )
    with pytest.raises(_Stop):
        choose(phone, tmp_path / "made", rows, max_drop=0.1, max_size_mb=100)
    broken = by_scheme(found[0].candidates)["small"]
    assert "the quantizer did nothing" in broken.note
    assert broken.inside is False
    assert found[0].chosen is not None
    assert found[0].chosen.scheme is not Scheme.SMALL


def test_a_candidate_with_other_numbers_is_reported_and_not_chosen(
    phone: Path,
    tmp_path: Path,
    rows: tuple[DataSource, DataSource],
    found: list[FormatResult],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its types are right and its size is the smallest: without the stored gate a limit on size only would take it."""
    import onnx
    from onnx import numpy_helper

    row: SchemeRow = find_row(Format.ONNX, Scheme.W4)

    def ruin(source: Path, destination: Path, plan: Plan) -> None:
        model, ruined = onnx.load(source), tmp_path / "ruined.onnx"
        for tensor in model.graph.initializer:
            values = numpy_helper.to_array(tensor)
            if values.ndim == 2 and values.dtype.kind == "f":
                tensor.CopyFrom(numpy_helper.from_array(values[::-1].copy(), tensor.name))
        onnx.save(model, ruined)
        assert row.write is not None
        row.write(ruined, destination, plan)

    _with_writer(monkeypatch, Scheme.W4, ruin)
    with pytest.raises(_Stop):
        choose(phone, tmp_path / "made", rows, max_size_mb=100)
    broken = by_scheme(found[0].candidates)["w4"]
    assert "gate 'stored' failed" in broken.note
    assert not broken.inside
    assert found[0].chosen is not None
    assert found[0].chosen.scheme is not Scheme.W4
    with pytest.raises(GateError, match="gate 'stored' failed"):
        choose(phone, tmp_path / "made", rows, "w4", max_size_mb=100)


def test_a_loss_on_the_rows_that_chose_nothing_is_an_error_that_says_so(
    phone: Path, tmp_path: Path, rows: tuple[DataSource, DataSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Any) -> None:
        raise GateError(["onnx/model_small.onnx: gate 'drop' failed: accuracy 80.00"])

    monkeypatch.setattr(quantizing.Run, "execute", fail)
    with pytest.raises(GateError, match="gate 'drop' failed") as caught:
        choose(phone, tmp_path / "made", rows, "small", max_drop=0.1)
    assert "rows that chose nothing: give more rows, or a wider --budget" in str(caught.value)
    assert not (tmp_path / "made").exists()


def test_a_format_without_a_candidate_is_refused(
    phone: Path, tmp_path: Path, rows: tuple[DataSource, DataSource]
) -> None:
    with pytest.raises(InputError, match="--scheme: 'lut4' is no candidate here"):
        choose(phone, tmp_path / "made", rows, "small", "lut4", max_drop=0.1)
    problems = quantizing._scheme_problems(["lut4"], [Format.ONNX, Format.COREML])
    assert [p.what.split(",")[0] for p in problems] == ["leaves no candidate of onnx"]
    assert quantizing._scheme_problems(["int8"], [Format.ONNX, Format.COREML]) == [], "Core ML has w8 instead"


def test_what_is_missing_is_told_at_once(phone: Path, tmp_path: Path, cli: Callable[..., Any]) -> None:
    told = cli(
        "quantize",
        "-m",
        phone,
        "--budget",
        "max_p90_ms=5",
        "--runtime",
        "tflite216",
        "--scheme",
        "smal",
        "--format",
        "coreml",
    )
    assert told.exit_code == 2
    for flag in ("--data", "--calibrate", "--runtime", "--scheme", "--format"):
        assert f"{flag}: " in told.stderr, told.stderr
    assert "did you mean 'small'?" in told.stderr
    alone = cli("quantize", "-m", phone, "-o", tmp_path / "made", "--data", "dev.csv", "--format", "onnx")
    assert alone.exit_code == 2
    assert alone.stderr.count("has no meaning without --budget") == 2
    unnamed = cli("quantize", "-m", phone)
    assert unnamed.exit_code == 2
    assert "-o/--output: is missing" in unnamed.stderr
