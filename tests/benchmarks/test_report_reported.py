"""The report's section of texts that measuring programs printed."""

from pocketbert.benchmarks.records import OpShare, Profile, Reported
from pocketbert.benchmarks.report.compiled import REPORTED, describe_reported_texts, make_reported_table
from pocketbert.core.types import Provenance

PROFILE = Profile(
    variant="a",
    threads=0,
    length=32,
    runs=50,
    ops=[OpShare(op_type="MUL", nodes=2, share=1.0, ms=0.5)],
    placement=[],
    provenance=Provenance.MEASURED,
)


def told(**changes: object) -> Reported:
    plain = {"variant": "a", "path": "a", "sha256": "0", "bytes": 5, "device": "Phone", "tool": "benchmark_model"}
    rest = {"source": "a.txt", "provenance": "measured", "threads": 0, "length": 32, "runs": 50, "mean_ms": 2.5}
    return Reported.model_validate(plain | rest | changes)


def test_columns_without_a_figure_are_left_out() -> None:
    header, rows = make_reported_table([told(), told(p50_ms=2.25, threads=2, peak_memory_bytes=2_000_000)])
    assert header == ["file", "device", "threads", "length", "p50 ms", "mean ms", "runs", "added memory"]
    assert rows[0] == ["a", "Phone", "–", "32", "–", "2.50", "50", "–"]
    assert rows[1] == ["a", "Phone", "2", "32", "2.25", "2.50", "50", "2.0 MB"]


def test_lines_tell_where_the_figures_come_from() -> None:
    assert describe_reported_texts([]) == []
    first, last = describe_reported_texts([told(settings=["Use gpu: [1]"], notes=["Slow."], profile=PROFILE)])
    assert first == "measured on Phone, as reported by the user · benchmark_model (Use gpu: [1]) · a.txt. Slow."
    assert last == REPORTED
