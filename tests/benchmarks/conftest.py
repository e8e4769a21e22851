"""Two tiny random ONNX models, a tokenizer, one benchmark of them, and an artefact folder for the fake coremltools."""

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from pocketbert.benchmarks.latency import benchmark
from pocketbert.benchmarks.measurement import BenchmarkOptions, BenchmarkResult, Variant
from pocketbert.core.artefacts import ModelRecord, read_artefacts, write_artefacts
from pocketbert.core.disk.files import sha256_file
from pocketbert.core.types import Format, Scheme
from support import mac_kit

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
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
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
    return mac_kit.folder(
        tmp_path_factory.mktemp("mac") / "phone",
        Model={},
        Model_w8={"kind": "fixed", "lengths": [64], "refusing": ["CPU_AND_NE"], "told": None, "planless": 1},
    )


@pytest.fixture(scope="session")
def mac_json(mac_phone: Path) -> Path:
    """What the script writes of that folder with the fake coremltools: synthetic figures."""
    output = mac_phone.parent / "mac.json"
    done = mac_kit.run(mac_phone, "--runs", 10, "--repeats", 3, "-o", output)
    assert done.returncode == 0, done.stderr
    return output


@pytest.fixture(scope="session")
def phone(mac_phone, folder, tmp_path_factory):
    """The packages' folder with an ONNX file beside them."""
    path = tmp_path_factory.mktemp("both") / "phone"
    shutil.copytree(mac_phone, path)
    (path / "onnx").mkdir()
    shutil.copyfile(folder / "student.onnx", path / "onnx" / "model.onnx")
    shutil.copyfile(folder / "tokenizer.json", path / "tokenizer.json")
    artefacts = read_artefacts(path)
    onnx = ModelRecord(
        path="onnx/model.onnx",
        sha256=sha256_file(path / "onnx" / "model.onnx"),
        bytes=1,
        format=Format.ONNX,
        scheme=Scheme.FP32,
        default=True,
    )
    processing = artefacts.processing.model_copy(update={"max_length": 32})
    write_artefacts(path, artefacts.model_copy(update={"files": [onnx, *artefacts.files], "processing": processing}))
    return path
