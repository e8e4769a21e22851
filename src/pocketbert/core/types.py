"""The words of recipes and artefact records as string enums, which all wings use.

`RegisteredName` is an enum to which installed packages may add; `Format` is the one list of that kind in this module.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pocketbert.core.plugins import load_plugins

if TYPE_CHECKING:  # what validates these names imports pydantic itself
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import CoreSchema


class _Members(type):
    """Metaclass that lets a class of registered names be iterated, counted and searched like an enum."""

    _known: dict[str, Any]

    def __iter__(cls) -> Iterator[Any]:
        return iter(list(cls._known.values()))

    def __len__(cls) -> int:
        return len(cls._known)

    def __contains__(cls, value: object) -> bool:
        return value in cls._known

    def __bool__(cls) -> bool:
        return True


class RegisteredName(str, metaclass=_Members):
    """Base of open enums: strings of which only registered values exist, each as one object that `is` compares.

    A subclass is one list of names. `Subclass.register("name")` adds one; `Subclass("name")` finds it, and raises
    ValueError for any other string. Pydantic validates fields of such a type, and its JSON schema lists the names
    that are registered when the schema is made.
    """

    __slots__ = ()
    _known: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls) -> None:
        cls._known = {}

    def __new__(cls, value: object) -> Self:
        """Return the registered name that equals `value`.

        Raises:
            ValueError: If it is not registered, even when all plug-ins are loaded.
        """
        if isinstance(value, str) and value not in cls._known:
            load_plugins()  # one of them may register it
        if not isinstance(value, str) or value not in cls._known:
            raise ValueError(f"{value!r} is not a valid {cls.__name__}; registered: {', '.join(cls._known)}")
        member: Self = cls._known[value]
        return member

    @classmethod
    def register(cls, value: str) -> Self:
        """Register a name and return it; an existing one is returned unchanged.

        Raises:
            ValueError: If it is no name: lower-case letters, digits and hyphens, a letter first.
        """
        allowed = value[:1].isalpha() and all(c.isalnum() or c == "-" for c in value)
        if not (allowed and value.isascii() and value == value.lower()):
            raise ValueError(f"{value!r} is no {cls.__name__}: lower-case letters, digits and hyphens, a letter first")
        member: Self = cls._known.setdefault(value, str.__new__(cls, value))
        return member

    @property
    def value(self) -> str:
        """The name as a plain string."""
        return str(self)

    def __str__(self) -> str:
        return str.__str__(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __reduce__(self) -> tuple[type[Self], tuple[str]]:
        return type(self), (str(self),)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(
            cls._validate,
            ref=f"{cls.__module__}.{cls.__qualname__}:{id(cls)}",
            serialization=core_schema.to_string_ser_schema(when_used="json"),
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        description = (cls.__doc__ or "").strip()
        return {"description": description, "enum": list(cls._known), "title": cls.__name__, "type": "string"}

    @classmethod
    def _validate(cls, value: object) -> Self:
        """Return the registered name that equals `value`; raise pydantic's usual error for enums if there is none."""
        if isinstance(value, str) and value not in cls._known:
            load_plugins()
        if isinstance(value, str) and value in cls._known:
            return cls(value)
        from pydantic_core import PydanticKnownError

        *first, last = [f"'{n}'" for n in cls._known]
        expected = f"{', '.join(first)} or {last}" if first else last
        raise PydanticKnownError("enum", {"expected": expected})


class Format(RegisteredName):
    """A file format that a phone runtime opens."""

    ONNX: ClassVar[Format]
    TFLITE: ClassVar[Format]
    COREML: ClassVar[Format]


Format.ONNX = Format.register("onnx")
Format.TFLITE = Format.register("tflite")
Format.COREML = Format.register("coreml")


class Scheme(StrEnum):
    """How the numbers in a file are stored and computed."""

    FP32 = "fp32"
    FP16 = "fp16"
    """Weights and embeddings stored as fp16; computed in fp32, by Core ML in fp16."""
    W8 = "w8"
    """Weights and embeddings stored as int8 per output channel; computed in fp32, by Core ML in fp16."""
    INT8 = "int8"
    """Dynamic: int8 weights per output channel, activations quantized on the fly, int8 embeddings."""
    INT8_B32 = "int8-b32"
    """Weights in 8 bits, 32 numbers of an output channel sharing a scale; activations in blocks of 32 on the fly."""
    A8W8 = "a8w8"
    """Static: int8 weights per output channel, 8-bit activations in ranges measured on texts, int8 embeddings."""
    A16W8 = "a16w8"
    """Static: int8 weights, 16-bit activations in ranges measured on texts, int8 embeddings; for NPUs."""
    SMALL = "small"
    """As int8, with the largest embedding table (TFLite: every untied one) in 4 bits, blocks of 32 sharing a scale; in Core ML palettes of 6 and 4 bits."""
    W4 = "w4"
    """Weights and embeddings in 4 bits, 32 numbers sharing a scale; in ONNX smaller embedding tables in 8 bits."""
    LUT6 = "lut6"
    """Weights and embeddings as places in palettes of 64 numbers, one palette for each tensor."""
    LUT4 = "lut4"
    """As lut6, with palettes of 16 numbers."""

    @property
    def static(self) -> bool:
        """Whether activation ranges are measured on calibration rows before a file is written (static quantization)."""
        return self in (Scheme.A8W8, Scheme.A16W8)


class Calibration(StrEnum):
    """How the range of an activation is chosen from its values on calibration texts."""

    MINMAX = "minmax"
    """From the smallest to the largest number."""
    MSE = "mse"
    """The part of that range in which 8 bits have the least mean squared error."""
    PERCENTILE = "percentile"
    """The range that holds 99.99 % of the numbers."""


class Runtime(StrEnum):
    """A runtime that needs files of its own."""

    TFLITE_2_16 = "tflite216"
    """TFLite up to 2.16 accepts the default int8 file and computes it wrongly without an error."""
    OPENVINO = "openvino"
    """OpenVINO on a computer: slow with dynamic int8, fast with static int8."""
    GPU = "gpu"
    """The GPU of a phone: fp16, one length, operators of LiteRT's GPU delegate."""
    NPU = "npu"
    """A neural processor behind LiteRT or a compiler of TFLite files: integers in the whole graph, one length."""
    QNN = "qnn"
    """ONNX Runtime's provider for the NPU of a Snapdragon: takes whole graphs of static integers."""

    @property
    def own_engine(self) -> str | None:
        """Python distribution that runs files made for this runtime; None if the format's own engine runs them.

        The distribution is an extra of PocketBERT under the same name.
        """
        return "openvino" if self is Runtime.OPENVINO else None

    @property
    def accelerator(self) -> bool:
        """Whether the runtime uses a chip beside the CPU (GPU, NPU), so that its files cannot be timed on a CPU."""
        return self in (Runtime.GPU, Runtime.NPU, Runtime.QNN)


class Client(StrEnum):
    """A client app that needs files of its own."""

    MEDIAPIPE = "mediapipe"
    """MediaPipe Tasks: one signature, probabilities, tokenizer and labels inside the file."""


class Shapes(StrEnum):
    """Which input lengths a Core ML package takes."""

    ENUMERATED = "enumerated"
    """Listed lengths in one package; needs iOS 18."""
    RANGED = "ranged"
    """Any length up to the longest; needs iOS 17."""
    FIXED = "fixed"
    """One length, that every text is padded to."""


class Layout(StrEnum):
    """How activations are laid out in memory."""

    PLAIN = "plain"
    """Tokens by channels, as in the stock model."""
    ANE = "ane"
    """Channels first, 1x1 convolutions, one product per head: what Apple recommends for its Neural Engine."""


class Attention(StrEnum):
    """How exported files compute attention, in families whose tokens attend to a window only."""

    PAIRS = "pairs"
    """All pairs of tokens; those outside the window are masked."""
    BLOCKS = "blocks"
    """Blocks of half a window with both neighbours: memory grows with the length, not with its square."""


class Provenance(StrEnum):
    """How a number was obtained. A time from an emulator is never reported as latency."""

    MEASURED = "measured"
    EMULATED = "emulated"
    ESTIMATED = "estimated"
    COMPILED_ONLY = "compiled-only"


class Status(StrEnum):
    """Whether a file passed the gates."""

    PASSED = "passed"
    FAILED = "failed"


class Signal(StrEnum):
    """What a student may learn from a teacher."""

    LOGITS = "logits"
    HIDDEN = "hidden"
    ATTENTION = "attention"
    RELATIONS = "relations"


class MaskingKind(StrEnum):
    """Which tokens of plain text are hidden from teacher and student alike."""

    NONE = "none"
    """None: the text as it is."""
    DYNAMIC = "dynamic"
    """Single tokens, all alike, anew at every step (BERT, RoBERTa)."""
    FREQUENCY = "frequency"
    """Single tokens, rare ones more often (XLM, DistilBERT)."""
    WHOLE_WORD = "whole-word"
    """All pieces of a word together (BERT-wwm, MacBERT)."""
    SPAN = "span"
    """Runs of neighbouring words (SpanBERT)."""
    NGRAM = "ngram"
    """Runs of 1 to 4 words, at 40, 30, 20 and 10 % (MacBERT)."""
    SIMILAR = "similar"
    """The same runs, with similar words where the others have the mask token (MacBERT)."""


class SecondSegment(StrEnum):
    """What replaces the second segment of every other pair, so that it does not follow the first one."""

    ELSEWHERE = "elsewhere"
    """A piece of another row (BERT: next-sentence prediction)."""
    SWAPPED = "swapped"
    """The first one: both change places (ALBERT: sentence-order prediction)."""


class Projection(StrEnum):
    """How many linear maps lead from a student's width to its teacher's."""

    SHARED = "shared"
    PER_LAYER = "per_layer"


class Schedule(StrEnum):
    """How the learning rate changes after its warm-up."""

    LINEAR = "linear"
    """Falls to 0 at the last step."""
    CONSTANT = "constant"


class Precision(StrEnum):
    """Number type of the matrix products in training; weights and moments are fp32 in all."""

    AUTO = "auto"
    """bf16 where the GPU or CPU has hardware for it and the model can be trained in it, else fp32."""
    FP32 = "fp32"
    BF16 = "bf16"
    """Refused where the hardware or the model's family does not allow it."""


class Transfer(StrEnum):
    """In which order a MobileBERT student learns its teacher's layers and its masked-token predictions."""

    PROGRESSIVE = "progressive"
    """Layer after layer from the bottom, then the guesses (PKT)."""
    JOINT = "joint"
    """All layers at once, then the guesses (JKT)."""
    AUXILIARY = "auxiliary"
    """All layers and the guesses at once (AKT)."""


class MobileBertSize(StrEnum):
    """Size of a MobileBERT student's blocks; their number, and the width between them, are those of the teacher.

    An IB-BERT has its own sizes and the teacher's vocabulary: a MobileBERT's teacher, which is trained as a student.
    """

    MOBILEBERT = "mobilebert"
    """The published model: 24,581,888 parameters below IB-BERT-large, no pooler among them (the paper says 25.3M)."""
    TINY = "tiny"
    """MobileBERT-TINY: 15,485,696 (the paper says 15.1M)."""
    MINI = "mini"
    """MobileBERT with blocks a quarter as wide: trains on two cores."""
    IB_BERT = "ib-bert"
    """IB-BERT-large, the published teacher, with random weights: 294,205,184 parameters below its heads."""
    IB_BERT_MINI = "ib-bert-mini"
    """IB-BERT of six blocks a quarter as wide, the teacher of `MINI`, with random weights: trains on two cores."""

    @property
    def family(self) -> str:
        """Name of the model family that students of the size belong to."""
        own = self in (MobileBertSize.IB_BERT, MobileBertSize.IB_BERT_MINI)
        return MobileBertSize.IB_BERT.value if own else MobileBertSize.MOBILEBERT.value


class Role(StrEnum):
    """The role of an operator in an encoder; a recipe may choose a scheme for each role."""

    EMBEDDING = "embedding"
    ATTENTION_PROJECTION = "attention_projection"
    ATTENTION_PRODUCT = "attention_product"
    FFN_UP = "ffn_up"
    FFN_DOWN = "ffn_down"
    RESIDUAL = "residual"
    NORM = "norm"
    SOFTMAX = "softmax"
    POOLER = "pooler"
    HEAD = "head"

    @property
    def weighs(self) -> bool:
        """Whether operators of this role read stored weights."""
        return self not in (Role.ATTENTION_PRODUCT, Role.RESIDUAL, Role.NORM, Role.SOFTMAX)


class AnswerKind(StrEnum):
    """What the numbers of a teacher's answers mean."""

    PROBABILITIES = "probabilities"
    LOG_PROBABILITIES = "log-probabilities"
    LOGITS = "logits"
    VOTES = "votes"
    LABELS = "labels"
    """No numbers: the teacher's labels, with their confidence if there is a column of it."""
