"""The one table of file formats: what each can hold, and what has to be installed to make or to run it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from pocketbert.core.host.versions import version_of
from pocketbert.core.loading.plugins import announce
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
        needs: Distributions that its files are made with, beside those of every export.
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
    needs: tuple[str, ...]
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

    @property
    def every_form(self) -> list[tuple[Scheme, Runtime | None]]:
        """What its files may be: every scheme of files for any runtime, then those of files for one runtime."""
        return [*((scheme, None) for scheme in self.schemes), *self.forms]

    def takes(self, wanted: Scheme) -> bool:
        """Whether a recipe may ask for a scheme."""
        return wanted in self.schemes or wanted in self.instead

    def smaller(self, wanted: Scheme) -> Scheme | None:
        """Scheme of the file that is made in addition to the exported one; None where there is nothing to make."""
        scheme = self.instead.get(wanted, wanted)
        return None if scheme in (Scheme.FP32, self.base) else scheme


FORMATS: dict[Format, FormatInfo] = {}
"""Every format that is known, in the order in which it was registered."""


def register_format(info: FormatInfo) -> None:
    """Add a format to the table; its name comes from `Format.register`.

    Raises:
        ValueError: If the name has a row.
    """
    announce("format", info.name, info.name in FORMATS)
    if info.name in FORMATS:
        raise ValueError(f"format '{info.name}' is registered already")
    FORMATS[info.name] = info


_BUILT_IN = (
    FormatInfo(
        name=Format.ONNX,
        title="ONNX",
        suffix=".onnx",
        schemes=(Scheme.FP32, Scheme.INT8),
        forms=((Scheme.A8W8, Runtime.OPENVINO),),
        dtype="int64",
        fixed_lengths=False,
        reader="onnx",
        libraries=("onnx", "onnxscript", "onnxruntime"),
        engines=("onnxruntime",),
        needs=("onnx", "onnxscript"),
    ),
    FormatInfo(
        name=Format.TFLITE,
        title="TFLite",
        suffix=".tflite",
        schemes=(Scheme.FP32, Scheme.FP16, Scheme.W8, Scheme.INT8),
        forms=((Scheme.INT8, Runtime.TFLITE_2_16),),
        dtype="int32",
        fixed_lengths=True,
        reader="ai-edge-litert",
        libraries=("litert-torch", "litert-converter", "ai-edge-quantizer", "ai-edge-litert"),
        engines=("ai-edge-litert", "tflite-runtime", "tensorflow", "tensorflow-cpu"),
        needs=("litert-torch", "ai-edge-quantizer", "ai-edge-litert", "flatbuffers"),
    ),
    FormatInfo(
        name=Format.COREML,
        title="Core ML",
        suffix=".mlpackage",
        schemes=(Scheme.FP32, Scheme.FP16, Scheme.W8),
        forms=(),
        dtype="int32",
        fixed_lengths=True,
        reader="protobuf",
        libraries=("coremltools",),
        engines=("protobuf", "numpy"),
        needs=("coremltools", "protobuf"),
        stem="Model",
        base=Scheme.FP16,
        instead={Scheme.INT8: Scheme.W8},
        own_engine=("darwin", "coremltools"),
    ),
)
FORMATS.update({info.name: info for info in _BUILT_IN})
