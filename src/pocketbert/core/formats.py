"""The table of file formats (`FORMATS`): schemes, runtimes, accuracy bounds and required libraries of each.

`register_format` adds a format. `Bounds` are what the gates hold a file against.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from pocketbert.core.host.system import version_of
from pocketbert.core.plugins import record_registration
from pocketbert.core.types import Format, Runtime, Scheme

_EXACT = 1e-3
"""Largest difference to the torch model, and largest change by padding, of a file that computes in fp32: rounding."""

SIMULATION_MARGIN = 3.0
"""A file's error may be this many times that of its scheme simulated in torch."""
_MIN_BOUND = 0.02
"""Smallest bound on the RMS error of a compressed file: rounding in another order, and the bound of fp16 files."""


@dataclass(frozen=True)
class Bounds:
    """Largest allowed differences of a file from the torch model, for one scheme and runtime.

    Attributes:
        reference: Largest difference from the torch model on golden rows (recorded inputs): the maximum for fp32, the
            RMS for other schemes. For a scheme that is simulated in torch, each model has a smaller bound; see
            `allowed`.
        padding: Largest allowed change of the outputs by padding.
        golden: Largest allowed difference of an engine's outputs from the recorded ones.
        loss: Factor by which the fp32 parity bound is multiplied for an exported file.
        drop: Largest allowed drop of the deciding metric of an exported file below the torch model.
        least: Smallest bound that `allowed` returns, since a simulation leaves some errors out.
    """

    reference: float
    padding: float = _EXACT
    golden: float = _EXACT
    loss: float = 1.0
    drop: float = 0.001
    least: float = _MIN_BOUND

    def allowed(self, simulated: float | None) -> float:
        """Return the largest difference that a file may have from the torch model on golden rows (recorded inputs).

        It is `SIMULATION_MARGIN` times the simulated error, but not below `least` and not above `reference`.

        Args:
            simulated: RMS error of the file's scheme, simulated in torch; if it is None (not recorded) or not finite,
                `reference` is returned.
        """
        if simulated is None or not math.isfinite(simulated):
            return self.reference
        return min(self.reference, max(self.least, SIMULATION_MARGIN * simulated))


@dataclass(frozen=True)
class ExportCost:
    """Time, memory and disk space that writing and checking a format's default files take.

    Measured by `lab/export_cost.py`; the seconds are those of two cores without other work.

    Attributes:
        fixed_s: Seconds for the smallest model.
        layer_s: Seconds for each layer, with the lengths that files take by default.
        gb_s: Seconds for each GB of weights.
        memory: Largest memory that the format needs beside what every export needs, as a multiple of the fp32 weights.
        disk: Size of all files of the format together, as a multiple of the weights in fp32.
        max_gib: Largest file that the format allows, in GiB.
    """

    fixed_s: float
    layer_s: float
    gb_s: float
    memory: float
    disk: float
    max_gib: float = math.inf


_FP32_BOUNDS = Bounds(reference=_EXACT)
"""Files that store and compute in fp32, in every format."""

Form = tuple[Scheme, Runtime | None]
"""How the numbers of a file are stored, and the runtime that it is made for (None: any)."""


@dataclass(frozen=True)
class FormatInfo:
    """One file format, such as ONNX: its name, its quantization schemes and the libraries that write and run it.

    Attributes:
        name: Name of the format in recipes.
        title: Name of the format for people.
        suffix: Ending of the files' names.
        bounds: Allowed differences for each scheme and runtime that the files may have.
        dtype: Integer type of the files' inputs.
        fixed_lengths: Whether a file takes one text at a time, of certain lengths only.
        reader: Distribution that reads the graph, to check the numbers stored in a file.
        libraries: Distributions whose versions determine an exported file.
        engines: Distributions that can run the files, in order of preference.
        needs: Distributions that are needed to make the files, besides those of every export.
        stem: Name of the files without suffix.
        base: Scheme of the exported file, from which the smaller files are made.
        instead: For a requested scheme that the format lacks, the scheme that is made instead.
        cost: Time, memory and disk space that the files take to make.
        own_engine: Value of `sys.platform` and distribution with which the format's own engine runs; None if it runs
            everywhere. On other systems a reference evaluator checks the files, and nothing is timed.
    """

    name: Format
    title: str
    suffix: str
    bounds: Mapping[Form, Bounds]
    dtype: str
    fixed_lengths: bool
    reader: str
    libraries: tuple[str, ...]
    engines: tuple[str, ...]
    needs: tuple[str, ...]
    stem: str = "model"
    base: Scheme = Scheme.FP32
    instead: Mapping[Scheme, Scheme] = field(default_factory=dict)
    cost: ExportCost = ExportCost(fixed_s=5, layer_s=3.2, gb_s=75, memory=6.3, disk=2)
    own_engine: tuple[str, str] | None = None

    @property
    def timed(self) -> bool:
        """Whether latencies measured on this machine are meaningful, because the format's own engine can run the files.

        It is True for formats whose engine runs on every system, even if it is not installed.
        """
        if self.own_engine is None:
            return True
        platform, distribution = self.own_engine
        return sys.platform == platform and version_of(distribution) is not None

    @property
    def schemes(self) -> tuple[Scheme, ...]:
        """Schemes of the format's files that any runtime may run, that of the exported file among them."""
        return tuple(scheme for scheme, runtime in self.bounds if runtime is None)

    @property
    def forms(self) -> tuple[tuple[Scheme, Runtime], ...]:
        """The (scheme, runtime) pairs of the format's files that are made for one runtime only."""
        return tuple((scheme, runtime) for scheme, runtime in self.bounds if runtime is not None)

    @property
    def every_form(self) -> list[Form]:
        """All (scheme, runtime) pairs of the format's files; the runtime is None for files for any runtime."""
        return [*((scheme, None) for scheme in self.schemes), *self.forms]

    def takes(self, wanted: Scheme) -> bool:
        """Return whether a recipe may request a scheme for this format; the format may store another one instead."""
        return wanted in self.schemes or wanted in self.instead

    def smaller(self, wanted: Scheme) -> Scheme | None:
        """Return the scheme of the smaller file made for a requested scheme; None if only the exported file is made."""
        scheme = self.instead.get(wanted, wanted)
        return None if scheme in (Scheme.FP32, self.base) else scheme


FORMATS: dict[Format, FormatInfo] = {}
"""All formats, in the order of registration."""


def register_format(info: FormatInfo) -> None:
    """Add a file format to the table of formats; its name comes from `Format.register`.

    Raises:
        ValueError: If a format of that name is registered already.
    """
    record_registration("format", info.name, info.name in FORMATS)
    if info.name in FORMATS:
        raise ValueError(f"format '{info.name}' is registered already")
    FORMATS[info.name] = info


_BUILT_IN = (
    FormatInfo(
        name=Format.ONNX,
        title="ONNX",
        suffix=".onnx",
        # Dynamic int8: ONNX Runtime takes one range for the whole tensor, padding included, so padding moves the
        # answers by up to their spread (a file that ignores the mask moves by 1 to 4). Static int8: measured ranges do
        # not know of padding; a sum in another order may round to the next of 255 steps, no more (below 0.02 on random
        # and trained models). OpenVINO and ONNX Runtime round differently, and so does OpenVINO on CPUs with bf16 and
        # without. Unrelated answers have an RMS error of 1.4; sound int8 files were measured at 0.02 to 0.25.
        bounds={
            (Scheme.FP32, None): _FP32_BOUNDS,
            (Scheme.INT8, None): Bounds(reference=0.5, padding=1.0, golden=0.25),
            (Scheme.SMALL, None): Bounds(reference=0.5, padding=1.0, golden=0.25),
            (Scheme.A8W8, None): Bounds(reference=0.5, padding=0.1, golden=0.25),
            (Scheme.INT8_B32, None): Bounds(reference=0.5, padding=0.02, golden=0.1),
            (Scheme.W4, None): Bounds(reference=0.5, padding=0.02, golden=0.1),
            (Scheme.A8W8, Runtime.OPENVINO): Bounds(reference=0.5, padding=0.1, golden=0.25),
            # The whole graph in integers with set ranges: padding moves nothing but sums' order; an NPU rounds
            # differently. What 16 bits round away is not simulated: a sound file of a random model was 3.3 times as far
            # off.
            (Scheme.A8W8, Runtime.QNN): Bounds(reference=0.5, padding=0.1, golden=0.25, least=0.1),
            (Scheme.A16W8, Runtime.QNN): Bounds(reference=0.5, padding=0.02, golden=0.1, least=0.1),
        },
        dtype="int64",
        fixed_lengths=False,
        reader="onnx",
        libraries=("onnx", "onnxscript", "onnxruntime"),
        engines=("onnxruntime",),
        needs=("onnx", "onnxscript"),
        cost=ExportCost(fixed_s=1, layer_s=1.8, gb_s=55, memory=3.8, disk=1.3, max_gib=2),  # protobuf's limit
    ),
    FormatInfo(
        name=Format.TFLITE,
        title="TFLite",
        suffix=".tflite",
        # Dynamic int8: XNNPACK takes one range for each token, so padding hardly moves the answers, and its kernels
        # agree (8e-3 between x86 and arm64); the wrong answers of an old TFLite to the default form were mostly 0.3 and
        # more away. fp16 and w8 store less and compute in fp32. Files for TFLite 2.16: old kernels are exact to 0.02 on
        # trained models (SST-2, 872 rows), but an activation that one kernel rounds up and the other one down moves the
        # logits: 0.14 was seen on a random model of 4 layers.
        bounds={
            (Scheme.FP32, None): _FP32_BOUNDS,
            (Scheme.FP16, None): Bounds(reference=0.02),
            (Scheme.W8, None): Bounds(reference=0.5),
            (Scheme.INT8, None): Bounds(reference=0.5, padding=0.02, golden=0.05),
            (Scheme.SMALL, None): Bounds(reference=0.5, padding=0.02, golden=0.05),
            (Scheme.W4, None): Bounds(reference=0.5, padding=0.02, golden=0.05),
            (Scheme.A8W8, None): Bounds(reference=0.5, padding=0.02, golden=0.05),
            (Scheme.INT8, Runtime.TFLITE_2_16): Bounds(reference=0.5, padding=0.02, golden=0.25),
            # checked on a CPU, which computes it in fp32; a GPU does in fp16, as Core ML
            (Scheme.FP16, Runtime.GPU): Bounds(reference=0.02, golden=0.1),
            # the whole graph in integers; other integer engines may round each of some hundred results otherwise. What
            # 16 bits round away is not simulated: trained students are off by 0.004 to 0.026 and 0.03 to 0.07, up to
            # 2.5 times the simulation, random models by up to 0.07
            (Scheme.A16W8, Runtime.NPU): Bounds(reference=0.5, padding=0.1, golden=0.1, least=0.1),
            (Scheme.A8W8, Runtime.NPU): Bounds(reference=0.5, padding=0.1, golden=0.25, least=0.1),
        },
        dtype="int32",
        fixed_lengths=True,
        reader="ai-edge-litert",
        libraries=("litert-torch", "litert-converter", "ai-edge-quantizer", "ai-edge-litert"),
        engines=("ai-edge-litert", "tflite-runtime", "tensorflow", "tensorflow-cpu"),
        needs=("litert-torch", "ai-edge-quantizer", "ai-edge-litert", "flatbuffers"),
        cost=ExportCost(fixed_s=2, layer_s=3.2, gb_s=65, memory=5.2, disk=2.6, max_gib=2),  # FlatBuffers' limit
    ),
    FormatInfo(
        name=Format.COREML,
        title="Core ML",
        suffix=".mlpackage",
        # fp16 is emulated off macOS; a device adds up in another order, some in fp16, hence the tolerance of golden
        # rows. A file that stores and computes in fp16 has 2**13 times less precision than fp32, of which rounding
        # errors that cancel take most back: 300 times the bound of fp32 is left.
        bounds={
            (Scheme.FP32, None): _FP32_BOUNDS,
            (Scheme.FP16, None): Bounds(reference=0.02, padding=0.05, golden=0.1, loss=300, drop=0.003),
            **{
                (scheme, None): Bounds(reference=0.5, padding=0.05, golden=0.1)
                for scheme in (Scheme.W8, Scheme.A8W8, Scheme.SMALL, Scheme.W4, Scheme.LUT6, Scheme.LUT4)
            },
        },
        dtype="int32",
        fixed_lengths=True,
        reader="protobuf",
        libraries=("coremltools",),
        engines=("protobuf", "numpy"),
        needs=("coremltools", "protobuf"),
        stem="Model",
        base=Scheme.FP16,
        instead={Scheme.INT8: Scheme.W8},
        cost=ExportCost(fixed_s=1, layer_s=2.4, gb_s=75, memory=6.3, disk=0.8),
        own_engine=("darwin", "coremltools"),
    ),
)
FORMATS.update({info.name: info for info in _BUILT_IN})
