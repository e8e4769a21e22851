"""A smaller student's candidates: what the errors of the own student's files predict need not be written."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from pocketbert.core.recipe.budget import BudgetSection
from pocketbert.core.types import Format, Scheme
from pocketbert.pipeline.direct.budget_search import SearchFiles, _FormatSearch
from pocketbert.pipeline.direct.candidates import CandidateSpec
from pocketbert.pipeline.formats.base import quantized_file

_SIZES = {Scheme.W4: 10, Scheme.SMALL: 12, Scheme.INT8: 20}
_ALONE = {Scheme.W4: 0.01, Scheme.SMALL: 0.4, Scheme.INT8: 0.02}


class _Files:
    """The candidates of a student whose exported file is 0.3 of the spread away from the own student's."""

    inputs = SimpleNamespace(student="narrow")
    base = CandidateSpec(quantized_file(Format.ONNX, Scheme.FP32))

    def __init__(self) -> None:
        self.wrote: list[Scheme] = []

    def expected_bytes(self, spec: CandidateSpec) -> int:
        return _SIZES[spec.file.scheme]

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
    files, specs = _Files(), [CandidateSpec(quantized_file(Format.ONNX, s)) for s in _SIZES]
    errors = {} if own_student else {t.name: _ALONE[t.file.scheme] for t in specs}
    search = _FormatSearch(cast(SearchFiles, files), BudgetSection(**limits), specs, errors)
    found = []
    for spec in specs:
        search.candidates[spec.name] = search._write_and_rank(spec, is_smallest=False)
        found.append(search.candidates[spec.name])
    assert [t.file.scheme for t in specs if t.file.scheme not in files.wrote] == left_out
    notes = [c.note for c in found if c.note]
    assert len(notes) == len(left_out)
    assert all("an RMS difference of about 0.5 are predicted" in note for note in notes), notes
