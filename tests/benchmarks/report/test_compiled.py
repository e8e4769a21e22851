"""Figures that no device was timed for: compiled files, estimates, and texts of measuring programs."""

from pocketbert.benchmarks.records import OpShare, Profile, Reported
from pocketbert.benchmarks.report.compiled import (
    REPORTED,
    describe_reported_texts,
    make_compilation_table,
    make_estimate_table,
    make_reported_table,
)
from pocketbert.benchmarks.report.sources import Sources, cite_compilations
from pocketbert.core.types import Provenance
from support.compilations import compilation


def test_provenance_is_told_for_each_device():
    made = [compilation("a"), compilation("b", estimate=None), compilation("c", failed="it crashed", estimate=None)]
    sources = Sources()
    assert [str(mark.provenance) for mark in cite_compilations(sources, made)] == [
        "compiled-only",
        "estimated",
        "compiled-only",
    ]
    assert [(machine, lines) for _, machine, lines in sources.entries] == [
        (
            "a: the target of a",
            ["compiled-only: placement, size by vela 5", "estimated: time, cycles, memory by vela 5"],
        ),
        ("b: the target of b", ["compiled-only: placement, size by vela 5"]),
    ]
    header, rows = make_compilation_table(made)
    assert "emulated rows" not in header
    assert [row[-1] for row in rows] == ["passed", "passed", "failed"]
    header, (row,) = make_estimate_table(made)
    told = dict(zip(header, row, strict=True))
    assert told["estimated ms on the NPU"] == "20.5"
    assert told["without"] == "3 operators, 2 of them products"
    assert told["memory (bytes moved)"] == "SRAM 442 kB (38.0 MB); flash 5.5 MB (7.0 MB)"
    assert told["assumed system"] == "500 MHz, A_System, A_Mode"


def make_reported(**changes):
    plain = {"variant": "a", "path": "a", "sha256": "0", "bytes": 5, "device": "Phone", "tool": "benchmark_model"}
    rest = {"source": "a.txt", "provenance": "measured", "threads": 0, "length": 32, "runs": 50, "mean_ms": 2.5}
    return Reported.model_validate(plain | rest | changes)


def test_texts_have_no_columns_without_a_figure_and_lines_on_where_the_figures_come_from():
    more = make_reported(p50_ms=2.25, threads=2, peak_memory_bytes=2_000_000)
    header, rows = make_reported_table([make_reported(), more])
    assert header == ["file", "device", "threads", "length", "p50 ms", "mean ms", "runs", "added memory"]
    assert rows[0] == ["a", "Phone", "–", "32", "–", "2.50", "50", "–"]
    assert rows[1] == ["a", "Phone", "2", "32", "2.25", "2.50", "50", "2.0 MB"]
    ops = [OpShare(op_type="MUL", nodes=2, share=1.0, ms=0.5)]
    about = {"variant": "a", "threads": 0, "length": 32, "runs": 50, "provenance": Provenance.MEASURED}
    profiled = make_reported(
        settings=["Use gpu: [1]"], notes=["Slow."], profile=Profile(ops=ops, placement=[], **about)
    )
    assert describe_reported_texts([profiled]) == [
        "measured on Phone, as reported by the user · benchmark_model (Use gpu: [1]) · a.txt. Slow.",
        REPORTED,
    ]
    assert describe_reported_texts([]) == []
