"""The one table of file formats: what each can hold, and what has to be installed to make or to run it."""

from __future__ import annotations

from dataclasses import dataclass

from pocketbert.core.types import Format, Scheme, Target


@dataclass(frozen=True)
class FormatInfo:
    """One file format.

    Attributes:
        name: The format.
        title: Name for people.
        suffix: Ending of its files.
        schemes: How numbers may be stored in this version.
        targets: Runtimes that a further file can be written for.
        dtype: Integer type of the inputs.
        fixed_lengths: Whether a file takes listed lengths only, with batch 1.
        reader: Distribution that reads the graph, to check what is stored in a file.
        libraries: Distributions that decide what an exported file looks like.
        engines: Distributions that can run it, in order of preference.
    """

    name: Format
    title: str
    suffix: str
    schemes: tuple[Scheme, ...]
    targets: tuple[Target, ...]
    dtype: str
    fixed_lengths: bool
    reader: str
    libraries: tuple[str, ...]
    engines: tuple[str, ...]


FORMATS: dict[Format, FormatInfo] = {
    info.name: info
    for info in (
        FormatInfo(
            Format.ONNX, "ONNX", ".onnx", (Scheme.FP32, Scheme.INT8), (), "int64", False, "onnx",
            ("onnx", "onnxscript", "onnxruntime"), ("onnxruntime",),
        ),
        FormatInfo(
            Format.TFLITE, "TFLite", ".tflite", (Scheme.FP32, Scheme.FP16, Scheme.W8, Scheme.INT8),
            (Target.TFLITE_2_16,), "int32", True, "ai-edge-litert",
            ("litert-torch", "litert-converter", "ai-edge-quantizer", "ai-edge-litert"),
            ("ai-edge-litert", "tflite-runtime", "tensorflow", "tensorflow-cpu"),
        ),
    )
}  # fmt: skip
