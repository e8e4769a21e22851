"""The files that a recipe exports: formats, lengths, and how each format is written."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, PositiveInt, model_validator

from pocketbert.core.recipe.section import Section
from pocketbert.core.types import Attention, Client, Format, Layout, Scheme, Shapes


class CoremlSection(Section):
    """How Core ML packages are written."""

    ios: Literal[16, 17, 18] = Field(18, description="Oldest iOS that opens the package (macOS 13, 14, 15).")
    shapes: Shapes | None = Field(
        None,
        description="enumerated (the listed lengths; iOS 18), ranged (any length; iOS 17 and later) or fixed (the longest "
        "listed length); default enumerated for iOS 18, else fixed.",
    )
    precision: Scheme = Field(
        Scheme.FP16,
        description="What the package stores and computes in: fp16 or fp32. The Neural Engine knows fp16 only.",
    )
    layout: Layout = Field(
        Layout.PLAIN,
        description="ane: rewritten for Apple's Neural Engine; equivalence-tested, latency not measured.",
    )

    @property
    def lengths(self) -> Shapes:
        """Which lengths the package takes."""
        return self.shapes or (Shapes.ENUMERATED if self.ios >= 18 else Shapes.FIXED)

    @model_validator(mode="after")
    def _possible(self) -> CoremlSection:
        if self.precision not in (Scheme.FP16, Scheme.FP32):
            raise ValueError(
                f"precision '{self.precision}' is not fp16 or fp32; weights are compressed by quantize.scheme"
            )
        oldest = {Shapes.ENUMERATED: 18, Shapes.RANGED: 17, Shapes.FIXED: 16}[self.lengths]
        if self.ios < oldest:
            possible = ", ".join(s for s, ios in (("ranged", 17), ("fixed", 16)) if self.ios >= ios)
            raise ValueError(
                f"shapes '{self.lengths}' needs ios {oldest}, this is ios {self.ios}; possible here: {possible}"
            )
        return self


class ExportSection(Section):
    """Which files to write."""

    formats: list[Format] = Field(
        [Format.ONNX, Format.TFLITE, Format.COREML],
        min_length=1,
        description="File formats; the first one is opened by default.",
    )
    lengths: list[PositiveInt] = Field(
        [32, 64, 128],
        min_length=1,
        description="Lengths in tokens to check and to time; TFLite and Core ML files take these and max_length.",
    )
    form: str | None = Field(
        None,
        min_length=1,
        description="Inputs of the files beyond the text, such as language; `pocketbert families` lists the forms of each system. "
        "Default text: none. Of ready models, without data.",
    )
    entities: Path | None = Field(
        None,
        description="With a form that holds a table of entities: file of the entities to keep, one id or name in each line.",
    )
    clients: list[Client] = Field(
        [Client.MEDIAPIPE], description="Clients that get a separate file where they can run the model."
    )
    attention: Attention | None = Field(
        None,
        description="blocks: attention over blocks of tokens, for texts of more than 1,024 (Longformer); pairs: over all pairs of "
        "tokens; default pairs, or what the model was exported with.",
    )
    opset: int = Field(20, ge=18, le=20, description="ONNX operator set; phone builds in use read up to 20.")
    coreml: CoremlSection = Field(
        default_factory=lambda: CoremlSection(),
        description="Oldest iOS, lengths, precision and layout of packages.",
    )
    atol: float | None = Field(
        None, gt=0, description="Parity bound, relative to the spread of the logits; default the family's."
    )
