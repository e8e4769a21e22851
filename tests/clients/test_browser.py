"""The device `browser` with Debian's Chromium: a folder measured by two pages at once, reloaded and killed pages, a corrupted model."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

pytestmark = pytest.mark.slow
for _package in ("torch", "litert_torch", "ai_edge_quantizer"):
    pytest.importorskip(_package)

from pocketbert.benchmarks.measurement import BenchmarkResult
from pocketbert.core.artefacts import read_artefacts, write_artefacts
from pocketbert.core.disk.files import sha256_file
from pocketbert.core.tasks import TaskName
from support.commands import command, one_core
from support.debian_tools import WEB_LIBRARIES

SCRIPT = Path(__file__).with_name("browser.mjs")
FILES = {"onnx/model.onnx", "onnx/model_int8.onnx", "tflite/model.tflite", "tflite/model_int8.tflite"}
FEW = ("--threads", "1,2", "--lengths", "16", "--runs", "10", "--repeats", "2", "--gaps", "50", "--budget", "20")


@pytest.fixture(scope="session")
def visit(chromium: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """`visit(address, name, until, *screenshot)`: what a page shows in Chromium when it is there."""
    return partial(chromium, SCRIPT)


class Command:
    """`pocketbert benchmark --device browser` in a process of its own."""

    def __init__(self, folder: Path, output: Path, *options: str) -> None:
        self.output, self.err = output, output.with_suffix(".err")
        argv = command("benchmark", "-m", folder, "--device", "browser", "-o", output, "--overwrite", *options)
        with self.err.open("w") as err, output.with_suffix(".out").open("w") as out:
            self.process = subprocess.Popen(one_core(argv), stdout=out, stderr=err)

    @property
    def address(self) -> str:
        """The address that it prints."""
        end = time.monotonic() + 120
        while time.monotonic() < end and self.process.poll() is None:
            for line in self.err.read_text().splitlines():
                if line.strip().startswith("http"):
                    return line.strip()
            time.sleep(0.2)
        raise AssertionError(self.err.read_text())

    def ended(self, code: int = 0) -> BenchmarkResult:
        """Wait for its end; return the result that it wrote."""
        assert self.process.wait(180) == code, self.err.read_text()
        return BenchmarkResult.read(self.output)


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Command]]:
    """`start(folder, *options)`: the command, which ends with the test at the latest."""
    monkeypatch.setenv("POCKETBERT_WEB_LIBRARIES", str(WEB_LIBRARIES))
    started: list[Command] = []

    def run(folder: Path, *options: str) -> Command:
        started.append(Command(folder, tmp_path / f"{len(started)}.json", *options))
        return started[-1]

    yield run
    for one in started:
        one.process.kill()
        one.process.wait()


@pytest.fixture(scope="module")
def folder(phones: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny classifier's folder with the four plain files."""
    copy = tmp_path_factory.mktemp("browser") / "phone"
    shutil.copytree(phones(TaskName.TEXT_CLASSIFICATION), copy)
    artefacts = read_artefacts(copy)
    kept = [f for f in artefacts.files if f.path in FILES or f not in artefacts.models()]
    write_artefacts(copy, artefacts.model_copy(update={"files": kept}))
    return copy


def test_two_browsers_measure_a_folder_at_once(
    folder: Path, start: Callable[..., Command], visit: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    command = start(folder, *FEW, "--browsers", "2")
    with ThreadPoolExecutor(2) as pool:
        pages = [
            pool.submit(visit, command.address, name, until) for name, until in [("one", "done"), ("two", "reload")]
        ]
        seen = [page.result() for page in pages]
    result = command.ended()
    assert sorted(s.device for s in result.sessions) == ["browser: one", "browser: two"]
    for page in seen:
        assert (page["isolated"], page["secure"], page["wide"]) == (True, True, 360)
        assert len(page["rows"]) == len(FILES) * 2
    for session in result.sessions:
        assert {v.name for v in session.variants} == FILES
        assert len(session.measurements) == len(FILES) * 2 * 2 * 2  # threads, lengths, with and without idle time
        assert {(m.engine, m.variant.rpartition(".")[2]) for m in session.measurements} == {
            ("@litertjs/core", "tflite"),
            ("onnxruntime-web", "onnx"),
        }
        assert all(a.passed and a.against == "golden rows" and a.rows >= 4 for a in session.answers)
        assert len(session.answers) == len(FILES)
        assert len(session.comparisons) == len(session.measurements) * 3 // 4
    notes = {s.device: " ".join(s.protocol.notes) for s in result.sessions}
    assert "loaded 2 times" in notes["browser: two"]
    assert "Interrupted" not in "".join(notes.values())


def test_a_killed_browser_leaves_what_it_measured(
    folder: Path, start: Callable[..., Command], visit: Callable[..., dict[str, Any]]
) -> None:
    command = start(folder, *FEW)
    visit(command.address, "one", "2")
    command.process.send_signal(2)
    (session,) = command.ended(130).sessions  # written all the same
    assert 2 <= len({(m.variant, m.threads) for m in session.measurements}) < 8
    assert session.protocol.notes[-1].startswith("Interrupted")


def corrupt(folder: Path) -> None:
    """Double a weight of the ONNX file, and let the list have the new digest."""
    path = folder / "onnx/model.onnx"
    model = onnx.load(path)
    largest = max(model.graph.initializer, key=lambda one: numpy_helper.to_array(one).size)
    largest.CopyFrom(numpy_helper.from_array(np.float32(3) * numpy_helper.to_array(largest), largest.name))
    onnx.save(model, path)
    artefacts, digest = read_artefacts(folder), sha256_file(path)
    files = [f.model_copy(update={"sha256": digest}) if f.path == "onnx/model.onnx" else f for f in artefacts.files]
    write_artefacts(folder, artefacts.model_copy(update={"files": files}))


def test_a_corrupted_model_is_refused_and_https_is_a_secure_context(
    folder: Path, tmp_path: Path, start: Callable[..., Command], visit: Callable[..., dict[str, Any]]
) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "phone"))
    corrupt(copy)
    command = start(copy, *FEW, "--threads", "1", "--https")
    page = visit(command.address, "one", "done")
    assert page["secure"]
    assert page["isolated"]
    assert any("onnx/model.onnx" in row and "refused, computed wrongly" in row for row in page["rows"])
    (session,) = command.ended(3).sessions
    assert {v.name for v in session.variants} == FILES - {"onnx/model.onnx"}
    assert [a.variant for a in session.answers if not a.passed] == ["onnx/model.onnx"]
    assert any("onnx/model.onnx: refused" in note for note in session.protocol.notes)
