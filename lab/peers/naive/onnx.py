"""Static int8 of ONNX as ONNX Runtime's own tool writes it: ranges of every input and output of every product, nothing left out."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from pocketbert.core.host.quiet import switch_off_telemetry
from pocketbert.core.predict.inputs import Encoded
from pocketbert.core.predict.tokenization import TextTokenizer

switch_off_telemetry()


class _Rows:
    """Calibration rows, one after the other; what onnxruntime's tool reads."""

    def __init__(self, rows: Sequence[Mapping[str, NDArray[np.int64]]], names: set[str]) -> None:
        self._rows: Iterator[dict[str, Any]] = iter([{k: v for k, v in r.items() if k in names} for r in rows])

    def get_next(self) -> dict[str, Any] | None:
        return next(self._rows, None)


def write_naive(source: Path, destination: Path, tokenizer: TextTokenizer, rows: Sequence[Encoded]) -> None:
    """Quantize products and tables of an fp32 file: min-max ranges, uint8 activations, int8 weights per channel.

    Args:
        source: The fp32 file.
        destination: Where to write.
        tokenizer: Makes inputs of rows.
        rows: Calibration rows; they are not padded.
    """
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

    logging.disable(logging.WARNING)
    model = onnx.load(source)
    del model.graph.value_info[:]  # the tool trusts shapes that it finds there
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "plain.onnx"
        onnx.save(model, plain)
        quantize_static(
            plain,
            destination,
            _Rows([tokenizer.pad([row]) for row in rows], {i.name for i in model.graph.input}),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=["MatMul", "Gemm", "Gather"],
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            per_channel=True,
            extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
        )
    logging.disable(logging.NOTSET)
