"""Files of one model for every engine of `engines.py`, made once and kept.

A model is a folder with trained weights, or one of four published shapes with random weights. The toolkit's
own files and the Hugging Face folder are made here; optimum and OpenVINO make theirs in environments of
their own, through `builder.py`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from environments import environment

from pocketbert.core.disk.files import sha256_file
from pocketbert.core.disk.workspace import build_folder
from pocketbert.core.host.hardware import describe_machine
from pocketbert.core.host.system import installed_versions

LENGTHS = (16, 32, 64, 128, 384)
"""TFLite signatures, and the lengths measured."""
BASE = {"vocab_size": 30522, "num_labels": 2}
SHAPES: dict[str, tuple[str, dict[str, int]]] = {
    "bert-base": ("BertConfig", {}),
    "distilbert": ("DistilBertConfig", {}),
    "tinybert4": (
        "BertConfig",
        {"num_hidden_layers": 4, "hidden_size": 312, "intermediate_size": 1200, "num_attention_heads": 12},
    ),
    "mobilebert": ("MobileBertConfig", {}),
}
"""Configuration class and what differs from its defaults."""
ROOT = Path(__file__).resolve().parents[3]
_NO_PART = ("mediapipe", "tflite_metadata", "tflite_files", "coreml", "ane")
"""Modules of the export wing that the files measured here do not depend on."""


@dataclass(frozen=True)
class Model:
    """Everything there is of one model.

    Attributes:
        name: How the table calls it.
        weights: ``random weights`` or ``trained``.
        folder: Hugging Face folder.
        fp32: Folder with the toolkit's model.onnx and model.tflite.
        int8: Folder with the toolkit's model_int8.onnx, model_a8w8_openvino.onnx and model_int8.tflite.
        optimum: Folder with model.onnx and model_quantized.onnx; None where it could not make them.
        openvino: Folder with fp32.xml, weights.xml, int8.xml; None where it could not make them.
        key: Changes with whatever the files depend on.
    """

    name: str
    weights: str
    folder: Path
    fp32: Path
    int8: Path
    optimum: Path | None
    openvino: Path | None
    key: str


def build(name: str, cache: Path, texts: Sequence[str], ready: Path | None = None, own_only: bool = False) -> Model:
    """Make whatever is missing.

    Args:
        name: A key of `SHAPES`, or a folder with trained weights.
        cache: Where files are kept.
        texts: Real texts, to calibrate static int8 on: the toolkit's and OpenVINO's own.
        ready: Folder with environments that exist already.
        own_only: Whether to leave out what is made in other environments.

    Returns:
        Where everything is.
    """
    shape = SHAPES.get(name)
    if shape is None:
        source = Path(name)
        title = source.parent.name if source.name in ("student", "phone") else source.name
        weights_key = _digest(sha256_file(source / "model.safetensors"))
        folder = _once(cache / f"{title}-hf-{weights_key}", lambda out: _copy_folder(source, out))
    else:
        title = name
        weights_key = _digest(shape, BASE, installed_versions(("torch", "transformers")))
        folder = _once(cache / f"{title}-hf-{weights_key}", lambda out: _random_folder(name, out))
    converters = installed_versions(("torch", "transformers", "onnx", "onnxscript", "litert-torch"))
    fp32_key = _digest(weights_key, LENGTHS, _sources("export"), converters)
    fp32 = _once(cache / f"{title}-fp32-{fp32_key}", lambda out: _export(folder, out))
    quantizers = installed_versions(("onnxruntime", "ai-edge-quantizer"))
    int8_key = _digest(fp32_key, _sources("quantize"), quantizers, list(texts))
    int8 = _once(cache / f"{title}-int8-{int8_key}", lambda out: _quantize(fp32, folder, texts, out))

    def peer(env: str, depends: str, *arguments: str) -> Path | None:
        if own_only:
            return None
        try:
            python = environment(env, ready)
            key = _digest(depends, _frozen(python), sha256_file(Path(__file__).parent / "builder.py"))
            return _once(cache / f"{title}-{env}-{key}", lambda out: _run_builder(python, env, out, arguments))
        except subprocess.CalledProcessError:
            print(f"  {env} failed on {title}; its columns stay empty", flush=True)
            return None

    vnni = "avx512_vnni" if "avx512_vnni" in describe_machine().isa else "avx2"
    calibration = cache / f"texts-{_digest(list(texts))}.json"
    cache.mkdir(parents=True, exist_ok=True)
    calibration.write_text(json.dumps(list(texts)))
    optimum = peer("optimum", weights_key + vnni, str(folder), vnni)
    openvino = peer("ov", fp32_key + calibration.name, str(fp32), str(folder), str(calibration))
    weights = "random weights" if shape else "trained"
    key = _digest(int8_key, optimum and optimum.name, openvino and openvino.name)
    return Model(title, weights, folder, fp32, int8, optimum, openvino, key)


def _once(destination: Path, make: Callable[[Path], None]) -> Path:
    """Fill a folder unless it is there; it appears whole or not at all."""
    if not destination.is_dir():
        began = time.monotonic()
        print(f"  building {destination.name} ...", flush=True)
        with build_folder(destination) as folder:
            make(folder)
        print(f"  built {destination.name} in {time.monotonic() - began:.0f} s", flush=True)
    return destination


def _digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:12]


def installed_wing(name: str) -> Path:
    """Folder of a wing as it is imported, which need not be the checkout's."""
    spec = importlib.util.find_spec(f"pocketbert.{name}")
    assert spec is not None and spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])


def _sources(wing: str) -> list[str]:
    files = sorted(installed_wing(wing).rglob("*.py"))
    return [sha256_file(p) for p in files if not p.stem.startswith(_NO_PART)]


def _frozen(python: Path) -> list[str]:
    """Distributions in an environment, by the names of their metadata folders."""
    packages = next(python.parent.parent.glob("lib/python3*/site-packages"))
    return sorted(p.name for p in packages.glob("*.dist-info"))


def _copy_folder(source: Path, destination: Path) -> None:
    for path in source.iterdir():
        if path.is_file() and path.suffix in (".json", ".txt", ".safetensors"):
            shutil.copyfile(path, destination / path.name)


def _random_folder(name: str, destination: Path) -> None:
    """Random weights, as transformers draws them; the tokenizer is the demo teacher's (bert-base-uncased's)."""
    import torch
    import transformers

    from pocketbert.core.data.labels import Labels
    from pocketbert.core.models.checkpoints import save_model
    from pocketbert.core.models.folder import open_model_folder

    kind, values = SHAPES[name]
    torch.manual_seed(1)
    config = getattr(transformers, kind)(**BASE, **values)
    model = transformers.AutoModelForSequenceClassification.from_config(config).eval()
    save_model(model, open_model_folder("minilm-l6"), Labels(("negative", "positive")), 512, destination)


def _export(source: Path, destination: Path) -> None:
    from pocketbert.core.compare.sample_texts import SENTENCES
    from pocketbert.core.models.checkpoints import load_model
    from pocketbert.core.models.folder import open_model_folder
    from pocketbert.core.predict.tokenization import TextTokenizer
    from pocketbert.core.tasks import task_of
    from pocketbert.core.types import Format
    from pocketbert.export import onnx, tflite
    from pocketbert.export.prepare import prepare

    folder, task = open_model_folder(str(source)), task_of("text-classification")
    model = load_model(folder, task)
    tokenizer = TextTokenizer(source, 128)
    example = tokenizer.pad(tokenizer.encode(list(SENTENCES[:2])), 32)
    module = prepare(model, folder.family, task, Format.ONNX)
    onnx.export(module, folder.family, task, example, destination / "model.onnx")
    module = prepare(model, folder.family, task, Format.TFLITE)
    tflite.export(module, folder.family, task, LENGTHS, destination / "model.tflite")


def _quantize(source: Path, folder: Path, texts: Sequence[str], destination: Path) -> None:
    from pocketbert.core.predict.tokenization import TextTokenizer
    from pocketbert.core.types import Format, Runtime, Scheme
    from pocketbert.quantize import Plan, quantize

    quantize(source / "model.onnx", destination / "model_int8.onnx", Plan(Format.ONNX, Scheme.INT8))
    tokenizer = TextTokenizer(folder, 128)
    rows = (tokenizer.pad([row]) for row in tokenizer.encode(list(texts)))
    static = Plan(Format.ONNX, Scheme.A8W8, Runtime.OPENVINO, lambda: rows)
    quantize(source / "model.onnx", destination / "model_a8w8_openvino.onnx", static)
    quantize(source / "model.tflite", destination / "model_int8.tflite", Plan(Format.TFLITE, Scheme.INT8))


def _run_builder(python: Path, kind: str, destination: Path, arguments: Sequence[str]) -> None:
    script = Path(__file__).parent / "builder.py"
    subprocess.run([str(python), str(script), kind, str(destination), *arguments], check=True)
