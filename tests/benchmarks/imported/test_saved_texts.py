"""Saved texts of the measuring programs: imported with what they tell, refused with the reason, nothing invented."""

from pathlib import Path

import pytest

from pocketbert.benchmarks.imported import import_figures
from pocketbert.benchmarks.imported.saved_texts import Fact, import_texts, parse_fact
from pocketbert.benchmarks.measurement import BenchmarkResult
from pocketbert.core.artefacts import ModelRecord
from pocketbert.core.artefacts.records import Signature
from pocketbert.core.errors import InputError
from pocketbert.core.types import Format, Scheme
from support.runner_texts import OPERATORS, PRINTED, RESULTS

PHONE, FILE, LENGTH = "device=Pixel 8", "file=onnx/model.onnx", "length=32"
LITERT = OPERATORS[: OPERATORS.index("INFO: Profiling Info")].replace("INFO: Enable op profiling: [1]\n", "")
COMMAND = "$ ./onnxruntime_perf_test -e xnnpack -r 5 -m times -x 1 /data/local/tmp/model.onnx\n"


def list_file(path, size, lengths):
    format = Format.TFLITE if path.endswith("tflite") else Format.ONNX
    signature = Signature(inputs=[], outputs=[], lengths=lengths)
    facts = {"bytes": size, "format": format, "scheme": Scheme.INT8, "signature": signature}
    return ModelRecord(path=path, sha256=f"{size:064x}", **facts)


FOLDER = {
    Path("phone"): [
        list_file("onnx/model.onnx", 69_670_118, []),
        list_file("tflite/model.tflite", 69_432_380, [16, 32, 64]),
        list_file("tflite/model_int8.tflite", 4_561_182, [16, 32, 64]),
        list_file("tflite/mediapipe.tflite", 4_561_179, [64]),
    ]
}


@pytest.fixture
def read(tmp_path):
    """`read(text, *facts)`: the only figures of a text."""

    def import_one(text, *facts):
        path = tmp_path / "pixel.txt"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        (found,) = import_texts([path], FOLDER, [parse_fact(fact) for fact in facts])
        return found

    return import_one


def test_a_text_of_litert(read):
    found = read(LITERT, PHONE)
    assert (found.variant, found.bytes, found.sha256) == ("tflite/model_int8.tflite", 4_561_182, f"{4_561_182:064x}")
    assert (found.device, found.tool, found.source) == ("Pixel 8", "benchmark_model", "pixel.txt")
    assert (found.provenance, found.threads, found.length, found.runs) == ("measured", 2, 32, 64)
    assert (found.mean_ms, found.p50_ms, found.min_ms, found.max_ms) == (15.5176, 15.41, 14.661, 17.579)
    assert (found.load_ms, found.first_ms, found.stdev_ms) == (32.163, 19.834, 0.551)
    assert found.peak_memory_bytes == round(34.8281 * 2**20)
    assert (found.p90_ms, found.p99_ms, found.peak_rss_bytes, found.wall_ms) == (None, None, None, [])
    assert (found.profile, found.notes, found.settings) == (None, [], [])
    assert read(LITERT.replace("\n", "\r\n").encode("utf-16"), PHONE) == found  # as PowerShell saves it


def test_what_an_old_text_does_not_tell_is_absent_and_the_only_length_of_a_file_needs_no_telling(read):
    text = LITERT.replace(" p5=14800 median=15410 p95=16600", "").replace("INFO: Num threads: [2]\n", "")
    found = read(text.replace("INFO: Memory footprint", "INFO: Something"), PHONE)
    assert (found.p50_ms, found.peak_memory_bytes) == (None, None)
    assert found.threads == 0  # the program was given no number, so that the engine decided
    assert read(LITERT.replace("model_int8.tflite", "mediapipe.tflite").replace("[seq_32]", "[]"), PHONE).length == 64
    shapes = LITERT.replace("Signature to run: [seq_32]", "Input shapes: [1,16:1,16:1,16]")
    assert read(shapes, PHONE).length == 16


def test_a_text_of_onnx_runtime_and_its_command_line(read):
    found = read(PRINTED, PHONE, FILE, LENGTH)
    assert (found.variant, found.tool) == ("onnx/model.onnx", "onnxruntime_perf_test")
    assert (found.threads, found.length, found.runs) == (1, 32, 5)
    assert (found.mean_ms, found.p50_ms, found.p90_ms) == (98.961997, pytest.approx(99.5086), pytest.approx(101.519))
    assert (found.load_ms, found.first_ms, found.peak_rss_bytes) == (pytest.approx(217.932), 196, 271122432)
    assert (found.stdev_ms, found.peak_memory_bytes) == (None, None)
    told = read(COMMAND + PRINTED, PHONE, "length=64")
    assert (told.variant, told.settings, told.length) == ("onnx/model.onnx", ["-e xnnpack"], 64)


def test_the_file_of_results_has_single_times(read):
    found = read(RESULTS, PHONE, FILE, LENGTH, "threads=4")
    assert found.wall_ms == pytest.approx([1.83404, 1.90312, 0.015])
    assert (found.runs, found.p50_ms, found.threads) == (3, pytest.approx(1.83404), 4)
    assert found.load_ms is None


NO_TEXT = "no text of benchmark_model or onnxruntime_perf_test"


@pytest.mark.parametrize(
    ("text", "facts", "said"),
    [
        ("hello\n", [PHONE], NO_TEXT),
        (b"\x80\x81 count=1", [PHONE], "is no text: invalid start byte at byte 0"),
        (LITERT[: LITERT.index("INFO: Inference timings")], [PHONE], "reports no inference"),
        (OPERATORS[: OPERATORS.rindex("EMBEDDING")], [PHONE], "table of operators of benchmark_model is cut short"),
        (OPERATORS[: OPERATORS.index("INFO: Profiling")], [PHONE], "prints no table of operators"),
        (PRINTED[: PRINTED.index("Average")], [PHONE], "cut short"),
        (LITERT + LITERT, [PHONE], "holds 2 runs"),
        (LITERT + PRINTED, [PHONE], "holds 2 runs"),
        (LITERT, [], "does not tell the device"),
        (PRINTED, [PHONE, LENGTH], "does not tell which file was measured"),
        (PRINTED, [PHONE, FILE], "does not tell the length in tokens"),
        (RESULTS, [PHONE, FILE, LENGTH], "the number of threads"),
        (LITERT.replace("model_int8", "other"), [PHONE], "was '/data/local/tmp/other.tflite'; phone: no such file"),
        (LITERT, [PHONE, "file=tflite/absent.tflite"], "no such file. Fix: Name it: --fact file='tflite/model.tfl"),
        (LITERT, [PHONE, FILE], "benchmark_model does not run onnx/model.onnx"),
        (LITERT, [PHONE, "file=tflite/model.tflite"], "of 4.56118 MB, and tflite/model.tflite has 69.4324 MB"),
        (LITERT, [PHONE, "length=16"], "tells length 32, and --fact length=16"),
        (LITERT.replace("seq_32", "seq_48"), [PHONE], "takes 16, 32, 64 tokens, not 48"),
        (LITERT.replace("avg=15517.6", "avg=1e999"), [PHONE], "mean_ms inf: Input should be a finite number"),
        (LITERT.replace("avg=15517.6", "avg=1.5.1"), [PHONE], "could not convert"),
        (LITERT.replace("count=64", "count=0"), [PHONE], "runs 0: Input should be greater than or equal to 1"),
    ],
)
def test_texts_that_are_refused(read, text, facts, said):
    with pytest.raises(InputError) as caught:
        read(text, *facts)
    assert said in str(caught.value)
    assert "pixel.txt" in str(caught.value)


def test_all_that_a_text_does_not_tell_is_listed_together_and_a_large_one_is_not_read(read, tmp_path):
    with pytest.raises(InputError) as caught:
        read(RESULTS)
    assert len(caught.value.problems) == 4
    large = tmp_path / "large.txt"
    with large.open("w") as file:
        file.truncate((16 << 20) + 1)
    with pytest.raises(InputError, match="larger than|refused"):
        import_texts([large], FOLDER, [])


def test_facts_of_one_text_win_over_those_of_all_and_texts_need_a_folder(tmp_path):
    texts = {"a.txt": LITERT.replace("[seq_32]", "[]"), "b.txt": PRINTED, "c.txt": LITERT, "d.txt": LITERT}
    paths = [tmp_path / name for name in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        path.write_text(text)
    facts = [parse_fact(f) for f in ("a.txt:length=64", "length=32", PHONE, f"b.txt:{FILE}", "b.txt:device=X: Y")]
    found = import_texts(paths[:2], FOLDER, facts)
    assert [(one.length, one.device) for one in found] == [(64, "Pixel 8"), (32, "X: Y")]
    with pytest.raises(InputError, match="tells of the same as c.txt"):
        import_texts(paths[2:], FOLDER, [Fact("device", "Pixel 8")])
    with pytest.raises(InputError, match=r"'other.txt' is none of the imported texts: c.txt"):
        import_texts(paths[2:3], FOLDER, [Fact("device", "P"), Fact("length", "3", "other.txt")])
    with pytest.raises(InputError, match=r"does not hold its model file.*-m"):
        import_figures(paths[2:3], [], facts)
    with pytest.raises(InputError, match="tells about a text, and none is imported"):
        import_figures([], [], facts)
    with pytest.raises(InputError, match="file not found"):
        import_figures([tmp_path / "absent.txt"], [])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Pixel 8", "is no KEY=VALUE; keys: device, file, length, threads"),
        ("devise=Pixel 8", "did you mean 'device'"),
        ("length=0", "whole numbers from 1 to 65536"),
        ("threads=two", "whole numbers from 1 to 4096"),
        ("device=a\x1b[2J", "a name without control characters"),
        (f"device={'x' * 101}", "a name without control characters"),
    ],
)
def test_facts_that_are_none(text, said):
    with pytest.raises(ValueError, match=said.replace("'", ".")):
        parse_fact(text)


def test_the_command_shows_the_figures_and_writes_them(phone, pocketbert, tmp_path):
    source, output, page = tmp_path / "onnx.txt", tmp_path / "out.json", tmp_path / "page.html"
    source.write_text(COMMAND + PRINTED)
    command = ("benchmark", "-m", phone, "--no-local", "--import", source, "--fact")
    done = pocketbert(*command, PHONE, "--fact", "onnx.txt:length=16", "-o", output)
    assert done.exit_code == 0, done.output
    told = " ".join(done.stdout.split())
    for words in ("Pixel 8", "99.5", "102", "measured on Pixel 8, as reported by the user", "no ratio is formed"):
        assert words in told
    result = BenchmarkResult.read(output)
    assert (result.measurements, result.sessions, [r.length for r in result.reported]) == ([], [], [16])
    refused = pocketbert(*command, PHONE, "--fact", "size=3")
    assert refused.exit_code == 2
    assert "--fact: unknown key 'size'" in refused.stderr
    assert pocketbert(*command, PHONE, "--fact", "length=16", "--record").exit_code == 2
    done = pocketbert(*command, "device=Pixel <8>", "--fact", "length=16", "-o", page)
    assert done.exit_code == 0, done.output
    text = page.read_text()
    assert "Told by texts of measuring programs" in text
    assert "Pixel &lt;8&gt;" in text
    assert "Pixel <8>" not in text
    assert "holds what texts tell only" in text
