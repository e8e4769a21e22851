"""Makes a peer's files of one model. Runs inside the peer's environment, which has nothing of the toolkit's.

python builder.py optimum OUT HF_FOLDER avx512_vnni|avx2
python builder.py ov OUT FOLDER_WITH_OUR_ONNX HF_FOLDER TEXTS.json
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# ONNX Runtime, OpenVINO and nncf report to their vendors otherwise; the last two do without this package
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
sys.modules.setdefault("openvino_telemetry", None)

CALIBRATION_ROWS = 300
"""nncf's own default."""


def optimum(out: Path, folder: str, isa: str) -> None:
    """The default export, and dynamic quantization as its documentation shows it."""
    from optimum.exporters.onnx import main_export
    from optimum.onnxruntime import ORTQuantizer
    from optimum.onnxruntime.configuration import AutoQuantizationConfig

    with tempfile.TemporaryDirectory() as name:
        export, quantized = Path(name, "export"), Path(name, "quantized")
        main_export(folder, export, task="text-classification")
        settings = getattr(AutoQuantizationConfig, isa)(is_static=False)
        ORTQuantizer.from_pretrained(export).quantize(settings, quantized)
        for made in (export / "model.onnx", quantized / "model_quantized.onnx"):
            shutil.copyfile(made, out / made.name)


def ov(out: Path, ours: str, folder: str, texts: str) -> None:
    """fp32 from the toolkit's ONNX; int8 weights; int8 weights and activations, calibrated on real text."""
    import nncf
    import openvino

    core = openvino.Core()

    def fresh() -> Any:
        return core.read_model(Path(ours) / "model.onnx")

    names = [i.get_any_name() for i in fresh().inputs]
    openvino.save_model(fresh(), out / "fp32.xml", compress_to_fp16=False)
    openvino.save_model(nncf.compress_weights(fresh()), out / "weights.xml", compress_to_fp16=False)
    rows = nncf.Dataset(list(_rows(folder, json.loads(Path(texts).read_text()), names)))
    model = nncf.quantize(fresh(), rows, model_type=nncf.ModelType.TRANSFORMER, subset_size=CALIBRATION_ROWS)
    openvino.save_model(model, out / "int8.xml", compress_to_fp16=False)


def _rows(folder: str, texts: list[str], names: list[str]) -> Iterator[dict[str, Any]]:
    import numpy as np
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(128)
    for text in texts[:CALIBRATION_ROWS]:
        ids = np.array([tokenizer.encode(text).ids], np.int64)
        values = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        yield {name: values[name] for name in names}


if __name__ == "__main__":
    {"optimum": optimum, "ov": ov}[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])
