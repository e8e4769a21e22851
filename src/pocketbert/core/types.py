"""String enums that every wing uses. Nothing else in the code invents such a word."""

from __future__ import annotations

from enum import StrEnum


class Format(StrEnum):
    """A file format that a phone runtime opens."""

    ONNX = "onnx"


class Scheme(StrEnum):
    """How the numbers in a file are stored and computed."""

    FP32 = "fp32"
    INT8 = "int8"
    """Dynamic: int8 weights per output channel, activations quantized on the fly, int8 embeddings."""


class Provenance(StrEnum):
    """Where a number comes from. Emulated time is never a latency."""

    MEASURED = "measured"
    EMULATED = "emulated"
    ESTIMATED = "estimated"
    COMPILED_ONLY = "compiled-only"


class Status(StrEnum):
    """What the gates said of a file."""

    PASSED = "passed"
    FAILED = "failed"


class Signal(StrEnum):
    """What a student may learn from a teacher."""

    LOGITS = "logits"
    HIDDEN = "hidden"
    ATTENTION = "attention"


class Role(StrEnum):
    """What a weight does in an encoder; quantization policies are written per role."""

    EMBEDDING = "embedding"
    ATTENTION_QK = "attention_qk"
    ATTENTION_OUT = "attention_out"
    FFN_IN = "ffn_in"
    FFN_OUT = "ffn_out"
    FFN_RESIDUAL = "ffn_residual"
    LAYER_NORM = "layer_norm"
    SOFTMAX = "softmax"
    POOLER = "pooler"
    HEAD = "head"
