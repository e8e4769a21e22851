"""The one table of file formats: what each can hold, and what has to be installed to make or to run it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from pocketbert.core.host.versions import version_of
from pocketbert.core.types import Format, Runtime, Scheme


@dataclass(frozen=True)
class FormatInfo:
    """One file format.

    Attributes:
        name: The format.
        title: Name for people.
        suffix: Ending of its files.
        schemes: Schemes of files for any runtime in this version.
        forms: Schemes of files for one runtime, each with its runtime.
        dtype: Integer type of the inputs.
        fixed_lengths: Whether a file takes listed lengths only, with batch 1.
        reader: Distribution that reads the graph, to check what is stored in a file.
        libraries: Distributions that decide what an exported file looks like.
        engines: Distributions that can run it, in order of preference.
        stem: Name of its files.
        base: How the exported file stores its numbers; smaller ones are made from it.
        instead: The scheme that is made where a recipe asks for one that the format does not have.
        own_engine: Value of `sys.platform` and distribution where its own engine runs; None for everywhere. Elsewhere a
            reference evaluator checks its files, and nothing is timed.
    """

    name: Format
    title: str
    suffix: str
    schemes: tuple[Scheme, ...]
    forms: tuple[tuple[Scheme, Runtime], ...]
    dtype: str
    fixed_lengths: bool
    reader: str
    libraries: tuple[str, ...]
    engines: tuple[str, ...]
    stem: str = "model"
    base: Scheme = Scheme.FP32
    instead: Mapping[Scheme, Scheme] = field(default_factory=dict)
    own_engine: tuple[str, str] | None = None

    @property
    def timed(self) -> bool:
        """Whether a latency measured on this machine means anything."""
        if self.own_engine is None:
            return True
        platform, distribution = self.own_engine
        return sys.platform == platform and version_of(distribution) is not None

    def takes(self, wanted: Scheme) -> bool:
        """Whether a recipe may ask for a scheme."""
        return wanted in self.schemes or wanted in self.instead

    def smaller(self, wanted: Scheme) -> Scheme | None:
        """Scheme of the file that is made beside the exported one; None where there is nothing to make."""
        scheme = self.instead.get(wanted, wanted)
        return None if scheme in (Scheme.FP32, self.base) else scheme


FORMATS: dict[Format, FormatInfo] = {
    info.name: info
    for info in (
        FormatInfo(
            Format.ONNX,
            "ONNX",
            ".onnx",
            (Scheme.FP32, Scheme.INT8),
            ((Scheme.A8W8, Runtime.OPENVINO),),
            "int64",
            False,
            "onnx",
            ("onnx", "onnxscript", "onnxruntime"),
            ("onnxruntime",),
        ),
        FormatInfo(
            Format.TFLITE,
            "TFLite",
            ".tflite",
            (Scheme.FP32, Scheme.FP16, Scheme.W8, Scheme.INT8),
            ((Scheme.INT8, Runtime.TFLITE_2_16),),
            "int32",
            True,
            "ai-edge-litert",
            ("litert-torch", "litert-converter", "ai-edge-quantizer", "ai-edge-litert"),
            ("ai-edge-litert", "tflite-runtime", "tensorflow", "tensorflow-cpu"),
        ),
        FormatInfo(
            Format.COREML,
            "Core ML",
            ".mlpackage",
            (Scheme.FP32, Scheme.FP16, Scheme.W8),
            (),
            "int32",
            True,
            "protobuf",
            ("coremltools",),
            ("protobuf", "numpy"),
            stem="Model",
            base=Scheme.FP16,
            instead={Scheme.INT8: Scheme.W8},
            own_engine=("darwin", "coremltools"),
        ),
    )
}
