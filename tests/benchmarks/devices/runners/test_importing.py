"""Saved texts of the measuring programs: imported with what they tell, refused with the reason, nothing invented."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pocketbert.benchmarks.imported import saved_texts as texts
from pocketbert.benchmarks.imported.files import import_figures
from pocketbert.benchmarks.imported.saved_texts import Fact, _facts_of_text, _TextFacts, import_texts, parse_fact
from pocketbert.benchmarks.measurement import BenchmarkResult
from pocketbert.benchmarks.records import Reported
from pocketbert.core.artefacts import ModelRecord, read_artefacts
from pocketbert.core.artefacts.records import Signature
from pocketbert.core.errors import InputError
from pocketbert.core.types import Format, Scheme
from support.runner_texts import OPERATORS, PRINTED, RESULTS

PHONE = Fact("device", "Pixel 8")
LITERT = OPERATORS[: OPERATORS.index("INFO: Profiling Info")].replace("INFO: Enable op profiling: [1]\n", "")


def listed_file(path: str, size: int, lengths: list[int]) -> ModelRecord:
    return ModelRecord(
        path=path,
        sha256=f"{size:064x}",
        bytes=size,
        format=Format.TFLITE if path.endswith("tflite") else Format.ONNX,
        scheme=Scheme.INT8,
        signature=Signature(inputs=[], outputs=[], lengths=lengths),
    )


FOLDER = {
    Path("phone"): [
        listed_file("onnx/model.onnx", 69_670_118, []),
        listed_file("tflite/model.tflite", 69_432_380, [16, 32, 64]),
        listed_file("tflite/model_int8.tflite", 4_561_182, [16, 32, 64]),
        listed_file("tflite/mediapipe.tflite", 4_561_179, [64]),
    ]
}


def written(folder: Path, text: str, name: str = "pixel.txt") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def one(folder: Path, text: str, *facts: Fact) -> Reported:
    (found,) = import_texts([written(folder, text)], FOLDER, facts)
    return found


def test_a_text_of_litert(tmp_path: Path) -> None:
    found = one(tmp_path, LITERT, PHONE)
    assert (found.variant, found.bytes, found.sha256) == ("tflite/model_int8.tflite", 4_561_182, f"{4_561_182:064x}")
    assert (found.device, found.tool, found.source, found.provenance) == (
        "Pixel 8",
        "benchmark_model",
        "pixel.txt",
        "measured",
    )
    assert (found.threads, found.length, found.runs) == (2, 32, 64)
    assert (found.mean_ms, found.p50_ms, found.min_ms, found.max_ms) == (15.5176, 15.41, 14.661, 17.579)
    assert (found.load_ms, found.first_ms, found.stdev_ms) == (32.163, 19.834, 0.551)
    assert found.peak_memory_bytes == round(34.8281 * 2**20)
    assert (found.p90_ms, found.p99_ms, found.peak_rss_bytes, found.wall_ms) == (None, None, None, [])
    assert (found.profile, found.notes, found.settings) == (None, [], [])


def test_a_text_with_operators_and_other_settings(tmp_path: Path) -> None:
    text = OPERATORS.replace("INFO: Graph:", "INFO: Use gpu: [1]\nINFO: Min num runs: [50]\nINFO: Graph:")
    found = one(tmp_path, text, PHONE)
    assert found.settings == ["Use gpu: [1]", "Min num runs: [50]"]
    assert found.profile is not None
    assert [o.op_type for o in found.profile.ops][1:] == ["EMBEDDING_LOOKUP", "Add (ND, F32)"]
    assert (found.profile.variant, found.profile.threads, found.profile.length) == (found.variant, 2, 32)
    assert found.notes == ["Measured with the profiler on, which makes an inference slower."]


def test_what_an_old_text_does_not_tell_is_absent(tmp_path: Path) -> None:
    text = LITERT.replace(" p5=14800 median=15410 p95=16600", "").replace("INFO: Num threads: [2]\n", "")
    text = text.replace("INFO: Memory footprint", "INFO: Something")
    found = one(tmp_path, text, PHONE)
    assert (found.p50_ms, found.peak_memory_bytes) == (None, None)
    assert found.threads == 0  # the program was given no number, so that the engine decided


def test_a_text_of_onnx_runtime(tmp_path: Path) -> None:
    facts = (PHONE, Fact("file", "onnx/model.onnx"), Fact("length", "32"))
    found = one(tmp_path, PRINTED, *facts)
    assert (found.variant, found.tool, found.threads, found.length, found.runs) == (
        "onnx/model.onnx",
        "onnxruntime_perf_test",
        1,
        32,
        5,
    )
    assert (found.mean_ms, found.p50_ms, found.p90_ms) == (98.961997, pytest.approx(99.5086), pytest.approx(101.519))
    assert (found.load_ms, found.first_ms, found.peak_rss_bytes) == (pytest.approx(217.932), 196, 271122432)
    assert (found.stdev_ms, found.peak_memory_bytes) == (None, None)


def test_its_command_line_tells_the_file_and_settings(tmp_path: Path) -> None:
    command = "$ ./onnxruntime_perf_test -e xnnpack -r 5 -m times -x 1 /data/local/tmp/model.onnx\n"
    found = one(tmp_path, command + PRINTED, PHONE, Fact("length", "64"))
    assert (found.variant, found.settings, found.length) == ("onnx/model.onnx", ["-e xnnpack"], 64)


def test_the_file_of_results_has_single_times(tmp_path: Path) -> None:
    facts = (PHONE, Fact("file", "onnx/model.onnx"), Fact("length", "32"), Fact("threads", "4"))
    found = one(tmp_path, RESULTS, *facts)
    assert found.wall_ms == pytest.approx([1.83404, 1.90312, 0.015])
    assert (found.runs, found.p50_ms, found.threads) == (3, pytest.approx(1.83404), 4)
    assert found.load_ms is None


def test_the_only_length_of_a_file_needs_no_telling(tmp_path: Path) -> None:
    text = LITERT.replace("model_int8.tflite", "mediapipe.tflite").replace("[seq_32]", "[]")
    assert one(tmp_path, text, PHONE).length == 64
    shapes = LITERT.replace("Signature to run: [seq_32]", "Input shapes: [1,16:1,16:1,16]")
    assert one(tmp_path, shapes, PHONE).length == 16


def test_powershell_s_texts_are_read(tmp_path: Path) -> None:
    path = tmp_path / "pixel.txt"
    path.write_bytes(LITERT.replace("\n", "\r\n").encode("utf-16"))
    (found,) = import_texts([path], FOLDER, [PHONE])
    assert found.length == 32


@pytest.mark.parametrize(
    ("text", "facts", "said"),
    [
        ("hello\n", (PHONE,), "no text of benchmark_model or onnxruntime_perf_test"),
        ("", (PHONE,), "no text of benchmark_model or onnxruntime_perf_test"),
        (LITERT[: LITERT.index("INFO: Inference timings")], (PHONE,), "reports no inference"),
        (LITERT[: LITERT.index("INFO: count=64")], (PHONE,), "reports no inference"),
        (
            OPERATORS[: OPERATORS.rindex("EMBEDDING")],
            (PHONE,),
            "the table of operators of benchmark_model is cut short",
        ),
        (OPERATORS[: OPERATORS.index("INFO: Profiling")], (PHONE,), "prints no table of operators"),
        (PRINTED[: PRINTED.index("Average")], (PHONE,), "cut short"),
        (LITERT + LITERT, (PHONE,), "holds 2 runs"),
        (LITERT + PRINTED, (PHONE,), "holds 2 runs"),
        (RESULTS + RESULTS, (PHONE,), "it holds 2 runs"),
        (LITERT, (), "does not tell the device"),
        (PRINTED, (PHONE, Fact("length", "32")), "does not tell which file was measured"),
        (PRINTED, (PHONE, Fact("file", "onnx/model.onnx")), "does not tell the length in tokens"),
        (RESULTS, (PHONE, Fact("file", "onnx/model.onnx"), Fact("length", "32")), "the number of threads"),
        (
            LITERT.replace("model_int8", "other"),
            (PHONE,),
            "measured was '/data/local/tmp/other.tflite'; phone: no such file",
        ),
        (
            LITERT,
            (PHONE, Fact("file", "tflite/absent.tflite")),
            "no such file. Fix: Name it: --fact file='tflite/model.tfl",
        ),
        (LITERT, (PHONE, Fact("file", "onnx/model.onnx")), "benchmark_model does not run onnx/model.onnx"),
        (
            LITERT,
            (PHONE, Fact("file", "tflite/model.tflite")),
            "a file of 4.56118 MB, and tflite/model.tflite has 69.4324 MB",
        ),
        (LITERT, (PHONE, Fact("length", "16")), "tells length 32, and --fact length=16"),
        (LITERT, (PHONE, Fact("threads", "1")), "tells threads 2, and --fact threads=1"),
        (LITERT.replace("seq_32", "seq_48"), (PHONE,), "takes 16, 32, 64 tokens, not 48"),
        (LITERT.replace("avg=15517.6", "avg=1e999"), (PHONE,), "mean_ms inf: Input should be a finite number"),
        (LITERT.replace("avg=15517.6", "avg=1.5.1"), (PHONE,), "could not convert"),
        (LITERT.replace("count=64", "count=0"), (PHONE,), "runs 0: Input should be greater than or equal to 1"),
    ],
)
def test_texts_that_are_refused(tmp_path: Path, text: str, facts: tuple[Fact, ...], said: str) -> None:
    with pytest.raises(InputError) as caught:
        one(tmp_path, text, *facts)
    assert said in str(caught.value)
    assert "pixel.txt" in str(caught.value)


def test_all_that_a_text_does_not_tell_is_listed_together(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        one(tmp_path, RESULTS)
    assert len(caught.value.problems) == 4


def test_a_large_text_and_one_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "_MAX_BYTES", 1000)
    with pytest.raises(InputError, match="larger than|refused"):
        one(tmp_path, LITERT, PHONE)
    path = tmp_path / "binary.txt"
    path.write_bytes(b"\x80\x81 count=1")
    with pytest.raises(InputError, match="is no text: invalid start byte at byte 0"):
        import_texts([path], FOLDER, [PHONE])


def test_texts_need_a_folder_and_facts_a_text(tmp_path: Path) -> None:
    path = written(tmp_path, LITERT)
    with pytest.raises(InputError, match=r"does not hold its model file.*-m"):
        import_figures([path], [], [PHONE])
    with pytest.raises(InputError, match="tells about a text, and none is imported"):
        import_figures([], [], [PHONE])
    with pytest.raises(InputError, match=r"'other.txt' is none of the imported texts: pixel.txt"):
        import_texts([path], FOLDER, [PHONE, Fact("length", "3", "other.txt")])
    with pytest.raises(InputError, match="file not found"):
        import_figures([tmp_path / "absent.txt"], [])
    again = written(tmp_path, LITERT, "again.txt")
    with pytest.raises(InputError, match="tells of the same as pixel.txt"):
        import_texts([path, again], FOLDER, [PHONE])


def test_facts_of_one_text_win_over_those_of_all() -> None:
    facts = [parse_fact(f) for f in ("a.txt:length=64", "length=32", "device=Pixel 8", "b.txt:file=x:y.onnx")]
    assert _facts_of_text("a.txt", facts) == _TextFacts(device="Pixel 8", length=64)
    assert _facts_of_text("b.txt", facts) == _TextFacts(device="Pixel 8", length=32, file="x:y.onnx")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Pixel 8", "is no KEY=VALUE; keys: device, file, length, threads"),
        ("devise=Pixel 8", "did you mean 'device'"),
        ("length=0", "whole numbers from 1 to 65536"),
        ("length=-4", "whole numbers from 1 to 65536"),
        ("threads=two", "whole numbers from 1 to 4096"),
        ("threads=99999999999999999999", "whole numbers from 1 to 4096"),
        ("device=", "a name without control characters"),
        ("device=a\x1b[2J", "a name without control characters"),
        (f"device={'x' * 101}", "a name without control characters"),
    ],
)
def test_facts_that_are_none(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said.replace("'", ".")):
        parse_fact(text)


def of_folder(phone: Path, folder: Path, name: str = "onnx.txt") -> Path:
    command = "./onnxruntime_perf_test -x 1 -m times -r 5 /data/local/tmp/model.onnx\n"
    assert "onnx/model.onnx" in [f.path for f in read_artefacts(phone).models()]
    return written(folder, command + PRINTED, name)


def test_the_command_shows_the_figures_and_writes_them(phone: Path, cli: Callable[..., Any], tmp_path: Path) -> None:
    source, output = of_folder(phone, tmp_path), tmp_path / "out.json"
    arguments = ("benchmark", "-m", phone, "--no-local", "--import", source, "--fact", "device=Pixel 8")
    result = cli(*arguments, "--fact", "onnx.txt:length=16", "-o", output)
    assert result.exit_code == 0, result.output
    told = " ".join(result.stdout.split())
    for words in ("Pixel 8", "99.5", "102", "measured on Pixel 8, as reported by the user", "no ratio is formed"):
        assert words in told
    read = BenchmarkResult.read(output)
    assert (read.measurements, read.sessions, [r.length for r in read.reported]) == ([], [], [16])
    assert "1 text on Pixel 8" in repr(read)
    refused = cli(*arguments, "--fact", "size=3")
    assert refused.exit_code == 2
    assert "--fact: unknown key 'size'" in refused.stderr
    assert cli(*arguments, "--fact", "length=16", "--record").exit_code == 2


def test_a_page_shows_them(phone: Path, cli: Callable[..., Any], tmp_path: Path) -> None:
    page, source = tmp_path / "page.html", of_folder(phone, tmp_path)
    facts = ("--fact", "device=Pixel <8>", "--fact", "length=16")
    result = cli("benchmark", "-m", phone, "--no-local", "--import", source, *facts, "-o", page)
    assert result.exit_code == 0, result.output
    text = page.read_text()
    assert "Told by texts of measuring programs" in text
    assert "Pixel &lt;8&gt;" in text and "Pixel <8>" not in text
    assert "holds what texts tell only" in text
