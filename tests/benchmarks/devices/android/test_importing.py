"""Figures of a phone: what the app writes is read, and nothing in it is believed unchecked."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pocketbert.benchmarks.imported.files import import_figures
from pocketbert.benchmarks.measurement import BenchmarkResult
from pocketbert.benchmarks.statistics import Statistics, repeat_interval
from pocketbert.core.errors import InputError
from pocketbert.core.types import Provenance

JAVA = Path(__file__).parents[4] / "android_demo/core/src/test/resources/org/pocketbert/statistics/benchmark.json"
"""What BenchmarkRecordTest.java compares the app's writer with."""


def _record() -> dict[str, Any]:
    """One file on a phone that told everything, by a newer app of the same major schema."""
    record: dict[str, Any] = json.loads(JAVA.read_text())
    del record["files"][1:]
    record["files"][0].update(first_ms=3.25)
    record["files"][0]["sustained"][1].update(after_s=60.2)
    record["phone"].update(model="Model 7")
    return {**record, "schema_version": "1.7", "later": 1}


RECORD = _record()


def changed(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    record = copy.deepcopy(RECORD)
    change(record)
    return record


def written(folder: Path, record: dict[str, Any], name: str = "phone.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(record))
    return path


def test_figures_become_a_session_of_the_phone(tmp_path: Path) -> None:
    (result,) = import_figures([written(tmp_path, RECORD)], []).sessions
    (m,) = result.measurements
    assert (m.variant, m.threads, m.length) == ("onnx/model_int8.onnx ONNX Runtime CPU", 2, 32)
    assert (m.device, m.unit, m.provenance) == ("Maker Model 7", "cpu", Provenance.MEASURED)
    assert m.wall == Statistics.of([1.0, 2.0, 4.0, 1.5, 2.5, 3.5, 1.0, 2.0, 3.0])
    assert m.wall_interval == repeat_interval([2.0, 2.5, 2.0])
    assert m.cpu is None and m.cold is None and m.machine.system == "Android 14 (API 34)"
    assert result.answers[0].passed
    assert result.comparisons == []  # files that did not take turns have no ratio
    notes = "\n".join(result.protocol.notes)
    assert "loaded in 12.5 ms, first inference 3.25 ms, 3 MiB of memory" in notes
    assert (
        "60 s without a pause: median 2.00 ms in the first second, 2.50 ms in the last one, thermal status light"
        in notes
    )
    assert "not checked which files" in notes
    result.write(tmp_path / "benchmark.json")
    assert BenchmarkResult.read(tmp_path / "benchmark.json").measurements == result.measurements


def test_what_the_java_code_writes_is_read(tmp_path: Path) -> None:
    (result,) = import_figures([JAVA], []).sessions
    names = [m.variant for m in result.measurements]
    assert names == ["onnx/model_int8.onnx ONNX Runtime CPU", "onnx/model.onnx ONNX Runtime CPU"]
    wall = result.measurements[0].wall
    assert wall is not None
    assert (wall.n, wall.p50, wall.p90) == (9, 2.0, 4.0)
    assert result.measurements[0].device == 'Maker Model "7"'
    notes = "\n".join(result.protocol.notes)
    assert "loaded in 12.5 ms, 3 MiB of memory" in notes  # no first inference, which is null there
    assert "2 s without a pause" in notes


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda r: r.update(schema_version="2.0"), "schema version '2.0' cannot be read"),
        (lambda r: r["phone"].update(emulated=True), "times are no latencies"),
        (lambda r: r["files"].append(r["files"][0]), "is there twice"),
        (lambda r: r["files"][0]["cells"].append(r["files"][0]["cells"][0]), "a length is there twice"),
        (lambda r: r["files"][0]["cells"][0]["wall_ms"][0].append(1.0), "more than the 3 runs"),
        (lambda r: r["files"][0]["cells"][0]["wall_ms"][0].__setitem__(0, 0.0), "greater than 0"),
        (lambda r: r["files"][0].update(path="../../etc/passwd"), "files.0.path"),
        (lambda r: r["files"][0].update(sha256="x"), "files.0.sha256"),
        (lambda r: r["files"][0].update(processor="quantum"), "files.0.processor"),
        (lambda r: r["phone"].update(model="a\u001b[2Jb"), "phone.model"),
        (lambda r: r.pop("protocol"), "protocol"),
    ],
)
def test_nonsense_is_refused(change: Callable[[dict[str, Any]], object], said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        import_figures([written(tmp_path, changed(change))], [])
    assert said in str(caught.value)


def of_folder(phone: Path) -> dict[str, Any]:
    """Figures of a file that the folder lists."""
    listed = json.loads((phone / "artifacts.json").read_text())["files"]
    digest = next(f["sha256"] for f in listed if f["path"] == "onnx/model.onnx")
    return changed(lambda r: r["files"][0].update(sha256=digest, path="onnx/model.onnx"))


def test_figures_belong_to_the_files_they_were_measured_on(phone: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="lists no such file"):
        import_figures([written(tmp_path, RECORD)], [phone])
    (result,) = import_figures([written(tmp_path, of_folder(phone))], [phone]).sessions
    assert "not checked" not in "\n".join(result.protocol.notes)


def test_all_problems_of_all_files_are_listed_and_equal_files_refused(tmp_path: Path) -> None:
    one, two = written(tmp_path, RECORD), written(tmp_path, RECORD, "again.json")
    bad = written(tmp_path, changed(lambda r: r["phone"].update(cores=0)), "bad.json")
    with pytest.raises(InputError) as caught:
        import_figures([one, two, bad, tmp_path / "missing.json"], [])
    told = str(caught.value)
    assert all(part in told for part in ("imported already", "phone.cores", "missing.json"))


def test_the_command_shows_the_figures_and_writes_them(cli: Callable[..., Any], tmp_path: Path) -> None:
    source, output = written(tmp_path, RECORD), tmp_path / "out.json"
    result = cli("benchmark", "--import", source, "-o", output)
    assert result.exit_code == 0, result.output
    assert "Maker Model 7" in result.stdout and "2.00" in result.stdout
    assert "One file after the other" in result.stdout
    assert BenchmarkResult.read(output).device == "Maker Model 7"


def test_wrong_answers_on_the_phone_fail(cli: Callable[..., Any], tmp_path: Path) -> None:
    wrong = changed(lambda r: r["files"][0]["answers"].update(largest=0.5))
    result = cli("benchmark", "--import", written(tmp_path, wrong))
    assert result.exit_code == 3
    assert "largest difference 0.5" in result.stderr


def test_a_page_shows_them(phone: Path, cli: Callable[..., Any], tmp_path: Path) -> None:
    page, source = tmp_path / "page.html", written(tmp_path, of_folder(phone))
    result = cli("benchmark", "-m", phone, "--no-local", "--import", source, "-o", page)
    assert result.exit_code == 0, result.output
    text = page.read_text()
    assert "Maker Model 7" in text
    assert "Times on another phone differ" in text
