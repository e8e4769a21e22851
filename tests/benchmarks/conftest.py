"""Tiny random models and one benchmark of them, artefact folders, and a device behind the real `adbd`."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from typer.testing import CliRunner

from pocketbert.benchmarks.latency import benchmark
from pocketbert.benchmarks.measurement import BenchmarkOptions, BenchmarkResult, Variant
from pocketbert.benchmarks.report import ModelRow, ReportData
from pocketbert.cli.main import app
from pocketbert.core.artefacts import ModelRecord, read_artefacts, write_artefacts
from pocketbert.core.disk.files import sha256_file
from pocketbert.core.host.hardware import describe_machine
from pocketbert.core.tasks import TaskName
from pocketbert.core.types import Format, Scheme
from support import adb_device, mac_kit
from support.commander import unwrapped

SENTENCE = "set an alarm for seven play some music turn off the lights what is weather like today call mother"
WORDS = SENTENCE.split()
TEXTS = [" ".join(WORDS[i : i + 2 + i % 5]) for i in range(12)]
MAX_LENGTH = 32


def write_model(path: Path, hidden: int, layers: int, seed: int) -> None:
    """Embedding, `layers` times (MatMul, Tanh), masked mean, head with 3 labels."""
    draw = np.random.default_rng(seed)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return helper.make_tensor(name, TensorProto.FLOAT, shape, draw.normal(0, 0.2, shape).astype(np.float32).ravel())

    def tokens(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.INT64, ["N", "L"])

    weights = [weight("embedding", 64, hidden), weight("head", hidden, 3)]
    weights += [helper.make_tensor("last", TensorProto.INT64, [1], [2])]
    nodes = [helper.make_node("Gather", ["embedding", "input_ids"], ["x0"])]
    for i in range(layers):
        weights.append(weight(f"w{i}", hidden, hidden))
        nodes += [
            helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"y{i}"]),
            helper.make_node("Tanh", [f"y{i}"], [f"x{i + 1}"]),
        ]
    nodes += [
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "last"], ["mask3"]),
        helper.make_node("Mul", [f"x{layers}", "mask3"], ["kept"]),
        helper.make_node("ReduceMean", ["kept"], ["pooled"], axes=[1], keepdims=0),
        helper.make_node("MatMul", ["pooled", "head"], ["logits"]),
    ]
    out = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", 3])
    graph = helper.make_graph(nodes, "tiny", [tokens("input_ids"), tokens("attention_mask")], [out], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


def write_tokenizer(path: Path) -> None:
    vocabulary = {w: i for i, w in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *dict.fromkeys(WORDS)])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = [("[CLS]", 2), ("[SEP]", 3)]
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", special)
    tokenizer.save(str(path))


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    write_model(path / "teacher.onnx", 48, 4, 1)
    write_model(path / "student.onnx", 16, 1, 2)
    write_tokenizer(path / "tokenizer.json")
    return path


@pytest.fixture(scope="session")
def variants(folder: Path) -> list[Variant]:
    return [
        Variant.of("teacher fp32", folder / "teacher.onnx", folder, MAX_LENGTH, Scheme.FP32),
        Variant.of("student int8", folder / "student.onnx", folder, MAX_LENGTH, Scheme.INT8),
    ]


@pytest.fixture(scope="session")
def texts() -> list[str]:
    return TEXTS


@pytest.fixture(scope="session")
def result(variants: list[Variant]) -> BenchmarkResult:
    """2 variants x threads 1 and 2 x lengths 16, 32 (clipped from 64) and real text, 3 repeats of 10 runs."""
    options = BenchmarkOptions(threads=[1, 2], lengths=[16, 64, "text"], runs=10, repeats=3, label="", budget_s=120)
    return benchmark(variants, TEXTS, options)


@pytest.fixture(scope="session")
def mac_phone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages for the fake coremltools, with the script for Macs."""
    second = {"kind": "fixed", "lengths": [64], "refusing": ["CPU_AND_NE"], "told": None, "planless": 1}
    return mac_kit.folder(tmp_path_factory.mktemp("mac") / "phone", Model={}, Model_w8=second)


@pytest.fixture(scope="session")
def mac_json(mac_phone: Path) -> Path:
    """What the script writes of that folder with the fake coremltools: synthetic figures."""
    output = mac_phone.parent / "mac.json"
    done = mac_kit.run(mac_phone, "--runs", 10, "--repeats", 3, "-o", output)
    assert done.returncode == 0, done.stderr
    return output


@pytest.fixture(scope="session")
def phone(mac_phone: Path, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages' folder with an ONNX file beside them."""
    path = tmp_path_factory.mktemp("both") / "phone"
    shutil.copytree(mac_phone, path)
    (path / "onnx").mkdir()
    shutil.copyfile(folder / "student.onnx", path / "onnx/model.onnx")
    shutil.copyfile(folder / "tokenizer.json", path / "tokenizer.json")
    artefacts, digest = read_artefacts(path), sha256_file(path / "onnx/model.onnx")
    facts = {"bytes": 1, "format": Format.ONNX, "scheme": Scheme.FP32, "default": True}
    model = ModelRecord(path="onnx/model.onnx", sha256=digest, **facts)
    processing = artefacts.processing.model_copy(update={"max_length": 32})
    write_artefacts(path, artefacts.model_copy(update={"files": [model, *artefacts.files], "processing": processing}))
    return path


@pytest.fixture(scope="session")
def make_data() -> Callable[..., ReportData]:
    """`make_data(**more)`: what a report shows; of a benchmark it has a row for each file."""
    machine = describe_machine()

    def make(**more: Any) -> ReportData:
        result = more.get("benchmark")
        rows = [ModelRow(name=v.name, bytes=v.bytes, sha256=v.sha256) for v in result.variants] if result else []
        usual = {"title": "t", "task": TaskName.TEXT_CLASSIFICATION, "machine": machine, "rows": rows}
        return ReportData(**{**usual, **more})

    return make


@pytest.fixture
def pocketbert() -> Callable[..., Any]:
    """`pocketbert(*arguments)`: a command in this process; each problem on one line of stderr."""

    def run(*arguments: object) -> Any:
        done = CliRunner().invoke(app, [str(a) for a in arguments])
        done.stderr_bytes = unwrapped(done.stderr).encode(errors="surrogateescape")
        return done

    return run


@pytest.fixture(scope="session")
def android(tmp_path_factory: pytest.TempPathFactory) -> Iterator[adb_device.Phone]:
    """A device behind a real adbd, whose `taskset` takes the mask of the big cores only; tests that end it start another one."""
    if why_not := adb_device.missing():
        pytest.skip(why_not)
    running = adb_device.start(tmp_path_factory.mktemp("phone"))
    yield running
    running.stop()


@pytest.fixture
def start_android(tmp_path: Path) -> Iterator[Callable[..., adb_device.Phone]]:
    """`start_android(**changes)`: a device that only this test uses."""
    if why_not := adb_device.missing():
        pytest.skip(why_not)
    made = []

    def start(**changes: Any) -> adb_device.Phone:
        place = tmp_path / "device"
        place.mkdir()
        made.append(adb_device.start(place, **changes))
        return made[-1]

    yield start
    for one in made:
        one.stop()


@pytest.fixture
def reach(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[adb_device.Phone], Path]:
    """`reach(device)`: its client and the runners, whose folder is returned, are found."""
    runners = adb_device.write_runners(tmp_path / "runners")

    def use(device: adb_device.Phone) -> Path:
        monkeypatch.setenv("PATH", f"{device.tools}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setenv("POCKETBERT_ADB_RUNNERS", str(runners))
        return runners

    return use
