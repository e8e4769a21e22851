"""One page over several devices: a file is one row, what is compiled only is a row too, equal stories are told once."""

from __future__ import annotations

import re

from pocketbert.benchmarks.records import ColdStart, LeftNodes
from pocketbert.benchmarks.report.compiled import (
    collect_cpu_operators,
    make_compilation_stamps,
    make_compilation_table,
    make_estimate_table,
)
from pocketbert.benchmarks.report.output import describe_sessions, write_result
from pocketbert.benchmarks.report.plots import CandidatePoint, draw_search
from support.compilations import REASON, compilation


def row_names(page: str) -> list[str]:
    """The names in the table of models."""
    models = page.split('<section id="models">')[1].split("</table>")[0]
    return re.findall(r'<tr><td class="l">(?:<span class="dot"[^>]*></span>)?([^<]+)<', models)


def test_a_file_on_two_devices_is_one_row_and_a_compiled_one_another(result, phone, tmp_path) -> None:
    there = result.model_copy(
        update={"measurements": [m.model_copy(update={"device": "ssh:pi"}) for m in result.measurements]}
    )
    joint = result.model_copy(update={"others": [there], "compilations": [compilation("vela:a")]})
    write_result(joint, tmp_path / "page.html", [phone])
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert row_names(page) == ["teacher fp32", "student int8", "tflite/model_a16w8_npu.tflite"]


def test_a_file_that_runs_on_the_second_device_only_has_one_name(result, phone, tmp_path) -> None:
    name = "tflite/model_a16w8_npu.tflite"
    further = result.variants[0].model_copy(update={"name": name, "path": phone / name, "sha256": "0" * 64})
    changes = {"variant": name, "sha256": "0" * 64, "device": "ssh:pi"}
    figures = [m.model_copy(update=changes) for m in result.measurements if m.variant == result.variants[0].name]
    there = result.model_copy(
        update={"variants": [further], "measurements": figures, "comparisons": [], "profiles": []}
    )
    joint = result.model_copy(update={"others": [there], "compilations": [compilation("vela:a")]})
    write_result(joint, tmp_path / "page.html", [phone])
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert row_names(page) == ["teacher fp32", "student int8", name]


def test_what_several_devices_leave_for_one_reason_is_told_once() -> None:
    other = LeftNodes(op_type="GELU", nodes=3, reason="another")
    made = [compilation("a"), compilation("a", 128), compilation("b"), compilation("c", left=[other])]
    rows = collect_cpu_operators(made)
    assert [(left, places) for _, places, left in rows] == [
        (REASON, ["a, 64, 128 tokens", "b, 64 tokens"]),
        (other, ["c, 64 tokens"]),
    ]


def test_provenance_is_told_for_each_device() -> None:
    made = [compilation("a"), compilation("b", estimate=None), compilation("c", failed="it crashed", estimate=None)]
    assert make_compilation_stamps(made) == [
        "placement, size: compiled-only, time, cycles, memory: estimated · a: the target of a · vela 5",
        "placement, size: compiled-only · b: the target of b · vela 5",
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


def test_a_busy_emulator_is_no_warning_about_times(result) -> None:
    busy = [m.model_copy(update={"load": m.load.model_copy(update={"others": 0.9})}) for m in result.measurements]
    timed = result.model_copy(update={"measurements": busy})
    assert "Warning: local was busy" in "\n".join(describe_sessions(timed))
    counted = timed.model_copy(update={"measurements": [m.model_copy(update={"wall": None}) for m in busy]})
    assert "Warning" not in "\n".join(describe_sessions(counted))


def test_names_in_the_plot_of_a_search_do_not_cover_each_other() -> None:
    def named(*places: tuple[float, float]) -> list[str]:
        points = [
            CandidatePoint(f"file{i}", x, y, True, True, i == 1, f"student{i % 2}") for i, (x, y) in enumerate(places)
        ]
        return re.findall(r">(file\d+[^<]*)</text>", draw_search(points, (None, None), "accuracy lost", "t"))

    assert len(named((1, 0.1), (2, 0.2), (3, 0.3))) == 3
    crowd = named(*[(2 + i / 1000, 0.1) for i in range(12)], (9, 1))
    assert "file1, chosen" in crowd
    assert len(crowd) < 13


def test_figures_that_a_runner_told_name_it_and_have_dashes(result, phone, tmp_path) -> None:
    told = ColdStart(
        load_ms=14.9,
        first_ms=None,
        length=16,
        peak_memory_bytes=None,
        peak_rss_bytes=45_678_592,
        told_by="onnxruntime_perf_test",
    )
    there = [m.model_copy(update={"device": "adb:1", "cold": told}) for m in result.measurements]
    path = tmp_path / "page.html"
    write_result(
        result.model_copy(update={"others": [result.model_copy(update={"measurements": there})]}), path, [phone]
    )
    text = path.read_text()
    assert text.count("figures of the programs themselves: onnxruntime_perf_test") == 1
    assert "<td>14.9</td><td>–</td><td>16</td><td>–</td><td>45.7 MB</td>" in text
