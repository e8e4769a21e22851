"""One role in at a time: real files, errors in quadrature, and a budget that leaves the most sensitive roles float."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import onnx
import pytest
from onnx import numpy_helper

from pocketbert import api
from pocketbert.core.artefacts import RoleError, Sensitivity, read_artefacts
from pocketbert.core.data.source import DataSource
from pocketbert.core.errors import InputError
from pocketbert.core.recipe.budget import BudgetSection
from pocketbert.core.types import Format, Role, Scheme, Status
from pocketbert.pipeline.direct import candidates, sensitivity
from pocketbert.pipeline.direct.candidates import CandidateFiles, CandidateSpec
from pocketbert.pipeline.formats.base import quantized_file
from pocketbert.pipeline.options import BudgetOptions
from pocketbert.quantize import Plan, weights
from pocketbert.quantize import table as quantizers
from pocketbert.quantize.table import find_row

ROLES = {Role.EMBEDDING, Role.ATTENTION_PROJECTION, Role.FFN_UP, Role.FFN_DOWN, Role.POOLER, Role.HEAD}
Rows = tuple[DataSource, DataSource]


@pytest.fixture(autouse=True)
def small_matrices_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny models have no matrix above the usual bound."""
    monkeypatch.setattr(weights, "SMALL", 16)


def test_roles_are_measured_one_at_a_time_and_predict_the_whole(phone: Path, rows: Rows) -> None:
    (found,) = api.sensitivity(phone, rows[1], ["int8"], record=True).schemes
    assert {r.role for r in found.roles} == ROLES
    assert [r.rel for r in found.roles] == sorted((r.rel or 0 for r in found.roles), reverse=True)
    assert all(r.saved > 0 for r in found.roles if r.role in (Role.EMBEDDING, Role.FFN_UP))
    assert found.whole
    assert found.predicted
    assert 0.4 < found.predicted / found.whole < 2.5
    assert found.whole < sum(r.rel or 0 for r in found.roles), "errors do not add up, their squares do"
    assert sum(found.share(r) or 0 for r in found.roles) == pytest.approx(1)
    section = (phone / "report.html").read_text().split('<section id="sensitivity">')[1].split("</section>")[0]
    assert "only this role" in section
    assert all(f'<td class="l">{role}</td>' in section for role in ROLES)
    assert api.verify(phone).status is Status.PASSED


def test_a_writer_that_compresses_everything_gives_no_figure(
    phone: Path, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = find_row(Format.ONNX, Scheme.INT8)
    write = row.write

    def write_whole(source: Path, destination: Path, plan: Plan) -> None:
        write(source, destination, replace(plan, weights=()))

    monkeypatch.setitem(quantizers._ROWS, (Format.ONNX, Scheme.INT8, None), replace(row, write=write_whole))
    (found,) = api.sensitivity(phone, rows[1], ["int8"]).schemes
    assert found.predicted is None
    assert all("to be left as exported, and not so in the file" in r.note for r in found.roles)


def test_the_command_tells_why_a_scheme_has_no_figures(
    phone: Path, rows: Rows, succeed: Callable[..., Any], refuse: Callable[..., str]
) -> None:
    told = succeed("sensitivity", "-m", phone, "--calibrate", rows[1].path, "--scheme", "small", "--json")
    assert json.loads(told.stdout)["schemes"][0]["note"] == "the quantizer of onnx small leaves no role out"
    said = refuse("sensitivity", "-m", phone, "--scheme", "lut4")
    assert "--calibrate: is missing" in said
    assert "--scheme: lut4: no format of the folder has such a file, only int8" in said


def test_weights_that_the_model_does_not_have_have_no_role(phone: Path, rows: Rows) -> None:
    model = onnx.load(phone / "onnx/model.onnx")
    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if values.ndim == 2 and values.dtype.kind == "f":
            tensor.CopyFrom(numpy_helper.from_array(values * 2, tensor.name))
    onnx.save(model, phone / "onnx/model.onnx")
    with pytest.raises(InputError, match="has weights without a role"):
        api.sensitivity(phone, rows[1], ["int8"])


class KnownFiles:
    """Candidates whose schemes have known sensitivities."""

    weights = tuple(SimpleNamespace(role=r) for r in (Role.EMBEDDING, Role.FFN_DOWN, Role.HEAD))

    def expected_bytes(self, spec: CandidateSpec) -> int:
        return 20

    def write(self, spec: CandidateSpec) -> Any:
        return SimpleNamespace(bytes=20)


def test_only_files_that_no_other_is_predicted_to_beat_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    saved = {Role.EMBEDDING: 40, Role.FFN_DOWN: 10, Role.HEAD: 1}
    rels = {
        Scheme.INT8: {Role.EMBEDDING: 0.01, Role.FFN_DOWN: 0.03, Role.HEAD: 0.02},
        Scheme.A8W8: {Role.EMBEDDING: 0.02, Role.FFN_DOWN: 0.06, Role.HEAD: 0.03},
    }

    def measure(_: CandidateFiles, file: Any) -> Sensitivity:
        order = sorted(saved, key=lambda r: -rels[file.scheme][r])
        roles = [RoleError(role=r, rel=rels[file.scheme][r], saved=saved[r]) for r in order]
        return Sensitivity(format=file.format, scheme=file.scheme, roles=roles)

    monkeypatch.setattr(sensitivity, "measure_role_sensitivity", measure)
    schemes, files = (Scheme.INT8, Scheme.A8W8, Scheme.SMALL), cast(CandidateFiles, KnownFiles())
    whole = [CandidateSpec(quantized_file(Format.ONNX, s)) for s in schemes]
    found = list(sensitivity.mixed_candidates(files, whole, 100))
    assert [(t.spec.file.scheme, t.spec.left, t.bytes) for t in found] == [
        (Scheme.INT8, (Role.FFN_DOWN,), 30),
        (Scheme.INT8, (Role.FFN_DOWN, Role.HEAD), 31),
    ]
    assert found[1].rel == pytest.approx(0.01)
    assert not list(sensitivity.mixed_candidates(files, whole, 10)), "too small for any of them"


def test_a_budget_leaves_the_most_sensitive_roles_float_and_is_resumed(
    phone: Path, tmp_path: Path, rows: Rows, schemes_of: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = BudgetOptions(limits=BudgetSection(max_drop=0.1, max_size_mb=100), data=rows[0])
    rank = candidates.rms_error

    def choose() -> Path:
        return api.quantize(phone, tmp_path / "made", ["int8"], calibrate=rows[1], budget=limits)

    def dying(a: Any, b: Any) -> float:
        if len(schemes_of()) == 4:
            raise KeyboardInterrupt
        return rank(a, b)

    with monkeypatch.context() as killed:
        killed.setattr(candidates, "rms_error", dying)
        with pytest.raises(KeyboardInterrupt):
            choose()
    made = choose()
    artefacts = read_artefacts(made)
    search = artefacts.search
    (chosen,) = search.chosen
    whole = next(c for c in search.candidates if not c.left)
    assert chosen.left
    assert (chosen.rel or 1) < (whole.rel or 0)
    assert (chosen.bytes or 0) > (whole.bytes or 0)
    skipped = [c for c in search.candidates if c.note.startswith("not written")]
    assert all("and an RMS difference of about" in c.note for c in skipped)
    # each role once, each candidate once; one of both is the same file at most
    files = len(ROLES) + len([c for c in search.candidates if c.sound])
    assert len(schemes_of()) - 1 <= files + 1, "nothing that a kill left is written again"
    record = next(r for r in artefacts.models() if r.scheme is Scheme.INT8)
    assert {w.role for w in record.weights if w.scheme is None} == set(chosen.left)
    assert chosen.left[0].value in (made / "recipe.resolved.yaml").read_text()
    assert "as exported" in (made / "report.html").read_text()
    assert api.verify(made).status is Status.PASSED
