"""The engines of the table, and how each is set up."""

from __future__ import annotations

import sys
from pathlib import Path

from environments import environment

from engine.models import Model
from engine.pool import Column
from pocketbert.core.host.hardware import describe_machine
from pocketbert.runtime.openvino import int8_settings

BASELINE = "LiteRT int8"
REFERENCE = "torch fp32"
FASTEST = "fastest"
RIVAL = "ONNX Runtime int8"
WHAT = {
    BASELINE: "the toolkit's `model_int8.tflite`, LiteRT's interpreter called directly",
    RIVAL: "the toolkit's `model_int8.onnx`, ONNX Runtime's session called directly, without spinning, as the toolkit opens it",
    "ONNX Runtime int8, spinning": "the same file with ONNX Runtime's default: waiting threads spin",
    "ONNX Runtime int8, spin + stop": "the same, told to stop spinning when a run ends (`session.force_spinning_stop`)",
    "optimum int8": "optimum's default export, its default dynamic quantization, ONNX Runtime's default settings",
    "OpenVINO, own file": "the toolkit's `model_a8w8_openvino.onnx` (static, calibrated on 300 training texts), read by OpenVINO; "
    "the other parts in bf16 where the CPU supports it, OpenVINO's default",
    "OpenVINO int8": "the toolkit's `model.onnx` by `nncf.quantize`, its preset for transformers, the same texts, the same default",
    "OpenVINO int8 weights": "the toolkit's `model.onnx` by `nncf.compress_weights`, default",
    "OpenVINO on ONNX int8": "the toolkit's `model_int8.onnx` read by OpenVINO",
    "torch int8": "`torch.ao.quantization.quantize_dynamic` of the Linear layers",
    "LiteRT fp32": "the toolkit's `model.tflite`",
    "ONNX Runtime fp32": "the toolkit's `model.onnx`",
    "optimum fp32": "optimum's default export",
    "OpenVINO fp32": "the toolkit's `model.onnx`, precision hint f32",
    REFERENCE: "the transformers model as `from_pretrained` opens it",
    FASTEST: '`pocketbert.load(..., engine="fastest")`: the toolkit\'s int8 files, with one measured choice between them',
}
"""Names in the table's order, and what they mean."""


_CHOSEN = {
    "tflite": BASELINE,
    "onnx": RIVAL,
    "onnx, spin + stop": "ONNX Runtime int8, spin + stop",
    "onnx, spinning": "ONNX Runtime int8, spinning",
    "openvino": "OpenVINO, own file",
}


def chosen_column(choice: str, threads: int) -> str | None:
    """The column that times what `fastest` chose, e.g. ``onnx on 2, spinning``; None where no column has its thread count."""
    engine, _, rest = choice.partition(" on ")
    count, comma, spin = rest.partition(",")
    return _CHOSEN.get(f"{engine}{comma}{spin}") if int(count) == threads else None


def columns(model: Model, memory: Path, ready: Path | None = None) -> list[Column]:
    """Everything that can run a model here.

    Args:
        model: Its files.
        memory: Where the toolkit's `fastest` may remember its choice; an empty folder makes it race.
        ready: Folder with environments that exist already.

    Returns:
        The columns in the table's order, those whose files could not be made left out.
    """
    own, fp32, int8 = Path(sys.executable), model.fp32, model.int8
    spin, precise = {"spin": True}, {"precise": describe_machine().saturates}  # as the toolkit runs its files
    out = [
        Column(BASELINE, "litert", int8 / "model_int8.tflite", own),
        Column(RIVAL, "onnxruntime", int8 / "model_int8.onnx", own, precise),
        Column(
            "ONNX Runtime int8, spinning",
            "onnxruntime",
            int8 / "model_int8.onnx",
            own,
            {**spin, **precise},
            threads=(2,),
        ),
        Column(
            "ONNX Runtime int8, spin + stop",
            "onnxruntime",
            int8 / "model_int8.onnx",
            own,
            {**spin, "stop": True, **precise},
            threads=(2,),
        ),
        Column("torch int8", "torch", model.folder, own, {"int8": True}),
        Column("LiteRT fp32", "litert", fp32 / "model.tflite", own),
        Column("ONNX Runtime fp32", "onnxruntime", fp32 / "model.onnx", own),
        Column(REFERENCE, "torch", model.folder, own),
    ]
    if model.optimum is not None:
        python = environment("optimum", ready)
        out += [
            Column("optimum int8", "onnxruntime", model.optimum / "model_quantized.onnx", python, spin),
            Column("optimum fp32", "onnxruntime", model.optimum / "model.onnx", python, spin),
        ]
    if model.openvino is not None:
        python = environment("ov", ready)
        out += [
            Column("OpenVINO, own file", "openvino", int8 / "model_a8w8_openvino.onnx", own, int8_settings()),
            Column("OpenVINO int8", "openvino", model.openvino / "int8.xml", python),
            Column("OpenVINO int8 weights", "openvino", model.openvino / "weights.xml", python),
            Column("OpenVINO on ONNX int8", "openvino", int8 / "model_int8.onnx", python),
            Column(
                "OpenVINO fp32",
                "openvino",
                model.openvino / "fp32.xml",
                python,
                {"INFERENCE_PRECISION_HINT": "f32"},
            ),
        ]
    out.append(Column(FASTEST, "fastest", int8, own, environ={"POCKETBERT_CACHE": str(memory)}))
    order = list(WHAT)
    return sorted(out, key=lambda c: order.index(c.name))
