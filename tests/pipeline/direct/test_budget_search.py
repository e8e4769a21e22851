"""Choosing files inside a budget: what is chosen, what is refused, what a kill leaves, and that broken candidates lose."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import onnx
import pytest
from onnx import numpy_helper

import pocketbert.quantize
from pocketbert import api
from pocketbert.core.artefacts import Candidate, read_artefacts
from pocketbert.core.data.source import DataSource
from pocketbert.core.errors import GateError, InputError
from pocketbert.core.recipe.budget import BudgetSection
from pocketbert.core.types import Format, Scheme, Status
from pocketbert.pipeline.direct import budget_search, candidates, quantizing
from pocketbert.pipeline.direct.budget_search import SearchFiles, _FormatSearch
from pocketbert.pipeline.direct.candidates import CandidateSpec
from pocketbert.pipeline.direct.choosing import FormatResult
from pocketbert.pipeline.formats.base import quantized_file
from pocketbert.pipeline.options import BudgetOptions
from pocketbert.quantize import Plan
from pocketbert.quantize import table as quantizers
from pocketbert.quantize.table import find_row
from support.folders import tree

SCHEMES = ("int8", "small", "w4")
Rows = tuple[DataSource, DataSource]
Search = Callable[..., FormatResult]
Patch = pytest.MonkeyPatch


def choose(phone: Path, output: Path, rows: Rows, *schemes: str, **limits: float) -> Path:
    """`api.quantize` inside limits."""
    budget = BudgetOptions(limits=BudgetSection(**limits), data=rows[0])
    return api.quantize(phone, output, schemes or SCHEMES, calibrate=rows[1], budget=budget)


class StoppedError(Exception):
    """Raised where the folder would be written."""


@pytest.fixture
def search(phone: Path, tmp_path: Path, rows: Rows, monkeypatch: Patch) -> Search:
    """`search(*schemes, **limits)`: what is found for ONNX; no folder is written."""
    out: list[FormatResult] = []
    require = quantizing.require_chosen_files

    def stop(results: list[FormatResult], *args: Any) -> None:
        out[:] = results
        require(results, *args)
        raise StoppedError

    monkeypatch.setattr(quantizing, "require_chosen_files", stop)

    def run(*schemes: str, **limits: float) -> FormatResult:
        with pytest.raises(StoppedError):
            choose(phone, tmp_path / "made", rows, *schemes, **limits)
        return out[0]

    return run


def by_scheme(found: list[Candidate]) -> dict[str, Candidate]:
    return {c.scheme.value: c for c in found if not c.left}


def megabytes(phone: Path, path: Path, scheme: Scheme) -> float:
    pocketbert.quantize.quantize(phone / "onnx/model.onnx", path, Plan(Format.ONNX, scheme))
    return path.stat().st_size / 1e6


def test_the_file_that_only_fits_is_chosen_and_the_folder_tells_of_all(phone: Path, tmp_path: Path, rows: Rows) -> None:
    before = tree(phone)
    limit = sum(megabytes(phone, tmp_path / "one.onnx", s) for s in (Scheme.SMALL, Scheme.INT8)) / 2
    made = choose(phone, tmp_path / "made", rows, max_drop=0.1, max_size_mb=limit)
    assert tree(phone) == before
    artefacts = read_artefacts(made)
    search = artefacts.search
    (chosen,) = search.chosen
    assert {r.path for r in artefacts.models()} == {"onnx/model.onnx", chosen.path}
    fitting = [c for c in search.candidates if c.bytes and c.bytes / 1e6 <= limit]
    assert chosen.rel == min(c.rel for c in fitting if c.rel is not None), "the closest one that fits"
    assert by_scheme(search.candidates)["int8"].inside is False
    assert chosen.inside is True
    assert (search.chosen_on + search.scored_on, search.ranked_on) == (60, 80)
    scored = artefacts.default_model()
    assert (scored.path, scored.sha256) == (chosen.path, chosen.sha256)
    assert scored.scores["eval"].rows == search.scored_on, "rows that chose nothing"
    page = (made / "report.html").read_text()
    assert 'aria-label="ONNX files inside and outside the budget"' in page
    assert all(c.path in page for c in search.candidates)
    assert api.verify(made).status is Status.PASSED
    assert not [p for p in tmp_path.iterdir() if p.name.endswith("pocketbert-tmp")]
    written = (made / "report.html").stat().st_mtime_ns
    choose(phone, tmp_path / "made", rows, max_drop=0.1, max_size_mb=limit)
    assert (made / "report.html").stat().st_mtime_ns == written, "skipped"


def test_an_impossible_budget_exits_with_3_and_writes_nothing(
    phone: Path, tmp_path: Path, rows: Rows, refuse: Callable[..., str], schemes_of: Callable[[], list[str]]
) -> None:
    before, limits = tree(phone), "max_drop=0.1,max_size_mb=0.0001"
    flags = ["--data", rows[0].path, "--calibrate", rows[1].path, "--scheme", "int8,w4"]
    told = refuse("quantize", "-m", phone, *flags, "--budget", limits, code=3)
    assert f"no file is inside {limits}" in told
    assert "The nearest is onnx/model_w4.onnx" in told
    assert "It would be inside with: --budget max_drop=0.1,max_size_mb=" in told
    assert schemes_of() == ["w4"], "int8 is surely too large"
    assert tree(phone) == before
    assert not (tmp_path / "phone-budget").exists()
    left = [p.name for work in tmp_path.glob(".phone-budget.*") for p in work.iterdir() if not p.name.startswith(".")]
    assert left == ["figures.json"], "figures stay, candidates do not"


def test_a_killed_search_goes_on_where_it_was(
    search: Search, phone: Path, tmp_path: Path, rows: Rows, schemes_of: Callable[[], list[str]], monkeypatch: Patch
) -> None:
    rank, evaluate, scored = candidates.rms_error, budget_search.evaluate, []

    def dying(a: Any, b: Any) -> float:
        if len(schemes_of()) == 2:
            raise KeyboardInterrupt
        return rank(a, b)

    with monkeypatch.context() as killed:
        killed.setattr(candidates, "rms_error", dying)
        with pytest.raises(KeyboardInterrupt):
            choose(phone, tmp_path / "made", rows, max_drop=0.1)
    assert len(schemes_of()) == 2
    monkeypatch.setattr(budget_search, "evaluate", lambda *a, label: scored.append(label) or evaluate(*a, label=label))
    assert search(max_drop=0.1).chosen is not None
    assert sorted(schemes_of()) == sorted(SCHEMES), "each written once"
    first = list(scored)
    search(max_drop=0.09)
    assert scored == first, "another budget measures nothing again"
    assert sorted(schemes_of()) == sorted(SCHEMES)


def replace_writer(monkeypatch: Patch, scheme: Scheme, write: Callable[[Path, Path, Plan], None]) -> None:
    row = find_row(Format.ONNX, scheme)
    monkeypatch.setitem(quantizers._ROWS, (Format.ONNX, scheme, None), replace(row, write=write))


def test_a_quantizer_that_does_nothing_is_reported_and_not_chosen(search: Search, monkeypatch: Patch) -> None:
    replace_writer(monkeypatch, Scheme.SMALL, lambda source, target, _: shutil.copyfile(source, target) and None)
    found = search("small", "w4", max_drop=0.1, max_size_mb=100)
    broken = by_scheme(found.candidates)["small"]
    assert "the quantizer did nothing" in broken.note
    assert broken.inside is False
    assert found.chosen.scheme is not Scheme.SMALL


def test_a_candidate_with_other_numbers_is_reported_and_not_chosen(
    search: Search, phone: Path, tmp_path: Path, rows: Rows, monkeypatch: Patch
) -> None:
    """Its types are right and its size is the smallest: without the stored gate a limit on size only would take it."""
    write = find_row(Format.ONNX, Scheme.W4).write
    assert write is not None

    def ruin(source: Path, destination: Path, plan: Plan) -> None:
        model, ruined = onnx.load(source), tmp_path / "ruined.onnx"
        for tensor in model.graph.initializer:
            values = numpy_helper.to_array(tensor)
            if values.ndim == 2 and values.dtype.kind == "f":
                tensor.CopyFrom(numpy_helper.from_array(values[::-1].copy(), tensor.name))
        onnx.save(model, ruined)
        write(ruined, destination, plan)

    replace_writer(monkeypatch, Scheme.W4, ruin)
    found = search("small", "w4", max_size_mb=100)
    broken = by_scheme(found.candidates)["w4"]
    assert "gate 'stored' failed" in broken.note
    assert not broken.inside
    assert found.chosen.scheme is not Scheme.W4
    with pytest.raises(GateError, match="gate 'stored' failed"):
        choose(phone, tmp_path / "made", rows, "w4", max_size_mb=100)


def test_a_loss_on_the_rows_that_chose_nothing_is_an_error_that_says_so(
    phone: Path, tmp_path: Path, rows: Rows, monkeypatch: Patch
) -> None:
    def fail(_: Any) -> None:
        raise GateError(["onnx/model_small.onnx: gate 'drop' failed: accuracy 80.00"])

    monkeypatch.setattr(quantizing.Run, "execute", fail)
    with pytest.raises(GateError, match="gate 'drop' failed") as caught:
        choose(phone, tmp_path / "made", rows, "small", max_drop=0.1)
    assert "rows that chose nothing: give more rows, or a wider --budget" in str(caught.value)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("schemes", "same", "message"),
    [
        (("small", "lut4"), False, "--scheme: 'lut4' is no candidate here"),
        ((), True, "--calibrate: no training row is left: 60 occur in eval"),
    ],
)
def test_what_cannot_be_searched_is_refused(
    phone: Path, tmp_path: Path, rows: Rows, schemes: tuple[str, ...], same: bool, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        choose(phone, tmp_path / "made", (rows[0], rows[0]) if same else rows, *schemes, max_drop=0.1)
    assert not (tmp_path / "made").exists()


def test_a_format_without_a_candidate_is_refused() -> None:
    formats = [Format.ONNX, Format.COREML]
    (problem,) = quantizing._scheme_problems(["lut4"], formats)
    assert problem.what.startswith("leaves no candidate of onnx")
    assert quantizing._scheme_problems(["int8"], formats) == [], "Core ML has w8 instead"


def test_what_is_missing_is_told_at_once(phone: Path, tmp_path: Path, refuse: Callable[..., str]) -> None:
    wrong = ["--runtime", "tflite216", "--scheme", "smal", "--format", "coreml"]
    told = refuse("quantize", "-m", phone, "--budget", "max_p90_ms=5", *wrong)
    for flag in ("--data", "--calibrate", "--runtime", "--scheme", "--format"):
        assert f"{flag}: " in told
    assert "did you mean 'small'?" in told
    alone = refuse("quantize", "-m", phone, "-o", tmp_path / "made", "--data", "dev.csv", "--format", "onnx")
    assert alone.count("has no meaning without --budget") == 2
    assert "-o/--output: is missing" in refuse("quantize", "-m", phone)


# --- a smaller student's candidates ---

SIZES = {Scheme.W4: 10, Scheme.SMALL: 12, Scheme.INT8: 20}
ALONE = {Scheme.W4: 0.01, Scheme.SMALL: 0.4, Scheme.INT8: 0.02}


class FarFiles:
    """The candidates of a student whose exported file is 0.3 of the spread away from the own student's."""

    inputs = SimpleNamespace(student="narrow")
    base = CandidateSpec(quantized_file(Format.ONNX, Scheme.FP32))

    def __init__(self) -> None:
        self.wrote: list[Scheme] = []

    def expected_bytes(self, spec: CandidateSpec) -> int:
        return SIZES[spec.file.scheme]

    def rank(self, spec: CandidateSpec) -> Any:
        return SimpleNamespace(rel=0.3, agreement=None)

    def write(self, spec: CandidateSpec) -> Any:
        self.wrote.append(spec.file.scheme)
        return SimpleNamespace(failure="", sha256="0", bytes=self.expected_bytes(spec))


@pytest.mark.parametrize(
    ("limits", "own_student", "left_out"),
    [
        ({"max_drop": 0.1}, False, [Scheme.SMALL]),
        ({"max_drop": 0.1}, True, []),
        ({"max_p90_ms": 5.0}, False, []),  # the larger and further file may be the only one that is fast enough
    ],
)
def test_a_candidate_that_is_predicted_to_be_larger_and_further_is_not_written(
    limits: dict[str, float], own_student: bool, left_out: list[Scheme]
) -> None:
    files, specs = FarFiles(), [CandidateSpec(quantized_file(Format.ONNX, s)) for s in SIZES]
    errors = {} if own_student else {t.name: ALONE[t.file.scheme] for t in specs}
    search = _FormatSearch(cast(SearchFiles, files), BudgetSection(**limits), specs, errors)
    for spec in specs:
        search.candidates[spec.name] = search._write_and_rank(spec, is_smallest=False)
    assert [t.file.scheme for t in specs if t.file.scheme not in files.wrote] == left_out
    notes = [c.note for c in search.candidates.values() if c.note]
    assert len(notes) == len(left_out)
    assert all("an RMS difference of about 0.5 are predicted" in note for note in notes), notes
