"""The section of method `qat`: a student learns to answer as before when its numbers are rounded."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt

from pocketbert.core.recipe import replaced_tokens as _others  # noqa: F401  methods that are trained before this one
from pocketbert.core.recipe.methods import Stage, StagePlace, register_stage
from pocketbert.core.recipe.section import Fraction, Rate
from pocketbert.core.recipe.updates import Optimisation
from pocketbert.core.types import Format, Runtime, Scheme


@register_stage
class QatStage(Stage, Optimisation):
    """Method `qat`: the student learns its own fp32 answers while its numbers are rounded as in a quantized file."""

    method: Literal["qat"] = Field(description="Distillation method.")
    scheme: Literal[Scheme.A8W8, Scheme.W4] = Field(
        Scheme.A8W8,
        description="Scheme that is trained for: a8w8 (weights and ranges of activations) or w4 (weights only).",
    )
    format: Format = Field(
        Format.ONNX,
        description="Format whose rounding is simulated, and whose figure decides whether the trained student is kept. Files of "
        "other formats store the same ranges where they have them.",
    )
    runtime: Runtime | None = Field(
        None,
        description="Runtime whose file is trained for, with scheme a8w8: openvino or qnn (format onnx), npu (format tflite). Only that "
        "file stores the learned ranges then. Default: the files for any runtime.",
    )
    batch: PositiveInt = Field(32, description="Rows per step.")
    lr: Rate = Field(2e-5, description="Peak learning rate of the weights; 1e-4 moves a trained student too far.")
    range_lr: Rate = Field(1e-2, description="Peak learning rate of the ranges.")
    warmup: Fraction = Field(0.0, description="Share of the steps with rising learning rate.")
    activation: Literal["relu6"] | None = Field(
        None,
        description="relu6 takes the place of the student's relu, so that the numbers of its feed-forward parts lie between 0 and 6 "
        "and their ranges need not be learned (MobileBERT's published recipe). Default: the activation stays.",
    )
    freeze_embeddings: Literal[True] = Field(True, description="Embedding tables stay as they are.")

    @property
    def by_text(self) -> bool:
        """Always: only answers are compared."""
        return True

    @property
    def exported_format(self) -> Format | None:
        """The format that is trained for."""
        return self.format

    def problems(self, place: StagePlace) -> list[str]:
        """Refuse a stage before others, and a scheme that the recipe writes no file of."""
        out = []
        if place.number != len(place.stages) - 1:
            out.append(
                f"{place.where}: qat trains the finished student, a stage after it would undo that: make it the last of distill"
            )
        if self.runtime is not None and self.scheme is Scheme.W4:
            out.append(
                f"{place.where}.runtime: {self.runtime} has no {self.scheme} file: leave it out, or set scheme: {Scheme.A8W8}"
            )
        elif self.runtime is not None and place.files is None:
            out.append(f"{place.where}.runtime: a budget chooses among files for any runtime: leave it out")
        elif place.files is not None and (self.format, self.scheme, self.runtime) not in place.files:
            wanted = f"{{scheme: {self.scheme}, runtime: {self.runtime}}}" if self.runtime else str(self.scheme)
            made_for = f" for {self.runtime}" if self.runtime else ""
            out.append(
                f"{place.where}: trains for {self.scheme}{made_for} in {self.format}, which the recipe does not write: add {wanted} to "
                f"quantize.files and {self.format} to export.formats, or name another scheme, format or runtime"
            )
        if self.activation is not None and self.scheme is not Scheme.A8W8:
            out.append(
                f"{place.where}.activation: {self.activation} fixes ranges of activations, and {self.scheme} has none: leave it "
                f"out, or set scheme: {Scheme.A8W8}"
            )
        if self.scheme is Scheme.W4 and self.format is Format.COREML:
            out.append(
                f"{place.where}.format: w4 of Core ML is not trained, its blocks are rounded in fp16: name onnx or tflite"
            )
        return out
