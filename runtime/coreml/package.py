"""The files of an ``.mlpackage``: the manifest, the model, the weights."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pocketbert.core.disk.files import read_json, safe_join
from pocketbert.core.errors import InputError, MissingBackendError, Problem
from pocketbert.runtime.coreml.types import MODEL_BYTES, DictionaryType, Dtype, TensorType, ValueType, read_type

if TYPE_CHECKING:
    from pocketbert.runtime.coreml.proto import mlpackage_pb2 as pb


# --- schema ---
# The protobuf classes, loaded when a package is opened: who predicts with other formats needs no protobuf.


def parse_model(data: bytes) -> pb.Model:
    """The message in ``model.mlmodel``.

    Args:
        data: The file's bytes.

    Raises:
        MissingBackendError: If protobuf is not installed.
        ValueError: If the bytes are no such message.
    """
    try:
        from google.protobuf.message import DecodeError

        from pocketbert.runtime.coreml.proto import mlpackage_pb2
    except ImportError as error:
        raise MissingBackendError("protobuf", "pip install 'pocketbert[coreml-runtime]'") from error
    model = mlpackage_pb2.Model()
    try:
        model.ParseFromString(data)
    except (DecodeError, RuntimeError) as error:
        raise ValueError(str(error)) from error
    return model


_MANIFEST = "Manifest.json"
_DATA = "Data"
_MODEL_PATH = "@model_path/"
OPSETS = {"CoreML5": 5, "CoreML6": 6, "CoreML7": 7, "CoreML8": 8, "CoreML9": 9}
"""Operation sets by name: 5 is iOS 15, 6 iOS 16, 7 iOS 17, 8 iOS 18, 9 iOS 26."""


@dataclass(frozen=True)
class Package:
    """A package that was read.

    Attributes:
        path: The folder.
        model_path: Its ``model.mlmodel``.
        model: The message in it.
        function: Its only function.
        block: The function's body.
        opset: Number in `OPSETS`.
    """

    path: Path
    model_path: Path
    model: pb.Model
    function: pb.Function
    block: pb.Block
    opset: int

    def weights(self, name: str) -> Path:
        """The path of a weight file that the program names ``@model_path/weights/weight.bin``.

        Raises:
            InputError: If the name leads out of the package.
        """
        if not name.startswith(_MODEL_PATH):
            raise _problem(self.model_path, f"names a weight file {name!r}; expected {_MODEL_PATH}...")
        folder = self.model_path.parent
        return safe_join(folder, name.removeprefix(_MODEL_PATH), str(self.model_path))


def read_package(path: Path) -> Package:
    """Open a package and look at everything but the operations.

    Args:
        path: The ``.mlpackage`` folder.

    Raises:
        InputError: If it is no package, its manifest leads elsewhere, files are missing or too large, or the model is
            not a single-function ML program.
        MissingBackendError: If protobuf is not installed.
    """
    if not path.is_dir():
        what = "is a file; an .mlpackage is a folder." if path.exists() else "folder not found."
        raise InputError(Problem(str(path), what))
    model_path = safe_join(path / _DATA, _root_path(path), str(path / _MANIFEST))
    if not model_path.resolve().is_relative_to(path.resolve()):
        raise _problem(path / _MANIFEST, "leads out of the package")
    if not model_path.is_file():
        raise InputError(Problem(str(model_path), "file not found."))
    if model_path.stat().st_size > MODEL_BYTES:
        raise _problem(model_path, f"larger than {MODEL_BYTES >> 20} MiB, refused")
    try:
        model = parse_model(model_path.read_bytes())
    except (ValueError, OSError) as error:
        raise _problem(model_path, f"no Core ML model: {error}") from error
    function = _function(model, model_path)
    if function.opset not in OPSETS or function.opset not in function.block_specializations:
        raise _problem(
            model_path,
            f"written for operation set {function.opset!r} with bodies for "
            f"{sorted(function.block_specializations)}; known: {', '.join(OPSETS)}",
        )
    block = function.block_specializations[function.opset]
    return Package(path, model_path, model, function, block, OPSETS[function.opset])


def _root_path(path: Path) -> str:
    """Where the manifest says that the model is, relative to the data folder."""
    manifest: Any = read_json(path / _MANIFEST, limit_mib=1)
    try:
        relative = manifest["itemInfoEntries"][manifest["rootModelIdentifier"]]["path"]
        if not isinstance(relative, str) or not relative:
            raise TypeError("its path is not text")
    except (KeyError, TypeError, IndexError) as error:
        raise _problem(path / _MANIFEST, f"names no root model ({error})") from error
    return relative


def _function(model: pb.Model, where: Path) -> pb.Function:
    kind = model.WhichOneof("Type")
    if kind != "mlProgram":
        raise _problem(where, "is no ML program (older Core ML kinds are not read)")
    functions = model.mlProgram.functions
    if len(functions) != 1 or len(model.description.functions) > 1:
        raise _problem(where, f"has the functions {sorted(functions)}; one is expected")
    if model.description.state:
        raise _problem(where, "keeps a state between calls; not supported")
    function: pb.Function = functions[next(iter(functions))]
    return function


def _problem(where: Path, what: str) -> InputError:
    return InputError(Problem(str(where), f"{what}."))


# --- features ---
# Inputs and outputs as the model description announces them to an app.


_ARRAY_TYPES = {65568: Dtype.FP32, 65600: Dtype.FP64, 131104: Dtype.INT32, 131080: Dtype.INT8, 65552: Dtype.FP16}
"""FeatureTypes.proto's ArrayDataType."""


class FeatureKind(StrEnum):
    """What a feature is."""

    ARRAY = "array"
    TEXT = "text"
    NUMBER = "number"
    DICTIONARY = "dictionary"


@dataclass(frozen=True)
class Feature:
    """One input or output.

    Attributes:
        name: Its name.
        kind: What it is.
        dtype: Of arrays; None otherwise.
        shape: Of arrays, the default one.
        shapes: The only shapes allowed, where the model enumerates them.
        ranges: Smallest and largest size by axis, where the model gives ranges; -1 for no upper bound.
    """

    name: str
    kind: FeatureKind
    dtype: Dtype | None = None
    shape: tuple[int, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    ranges: tuple[tuple[int, int], ...] = ()

    def allows(self, shape: tuple[int, ...]) -> bool:
        """Whether an array of that shape may be given."""
        if self.shapes:
            return shape in self.shapes
        if self.ranges:
            return len(shape) == len(self.ranges) and all(
                low <= n and (high < 0 or n <= high) for n, (low, high) in zip(shape, self.ranges, strict=True)
            )
        return shape == self.shape

    @property
    def allowed(self) -> str:
        """The shapes that `allows` accepts, for people."""
        if self.shapes:
            return " or ".join(str(list(s)) for s in self.shapes)
        if self.ranges:
            return str([low if low == high else f"{low}..{high if high >= 0 else ''}" for low, high in self.ranges])
        return str(list(self.shape))


def read_feature(message: pb.FeatureDescription) -> Feature:
    """The feature in a message.

    Raises:
        ValueError: For kinds that no encoder has (images, sequences, states), and unknown element types.
    """
    kind = message.type.WhichOneof("Type")
    if kind == "stringType":
        return Feature(message.name, FeatureKind.TEXT)
    if kind in ("int64Type", "doubleType"):
        return Feature(message.name, FeatureKind.NUMBER)
    if kind == "dictionaryType":
        return Feature(message.name, FeatureKind.DICTIONARY)
    if kind != "multiArrayType":
        raise ValueError(f"feature {message.name!r} is neither array, text nor dictionary")
    array = message.type.multiArrayType
    if array.dataType not in _ARRAY_TYPES:
        raise ValueError(f"feature {message.name!r} has element type {array.dataType}")
    return Feature(
        message.name,
        FeatureKind.ARRAY,
        _ARRAY_TYPES[array.dataType],
        tuple(array.shape),
        tuple(sorted({tuple(s.shape) for s in array.enumeratedShapes.shapes})),
        tuple((int(r.lowerBound), int(r.upperBound)) for r in array.shapeRange.sizeRanges),
    )


@dataclass(frozen=True)
class Description:
    """What a package tells an app, and what its program declares of the same names.

    Attributes:
        inputs: Features an app must give.
        outputs: Features it gets back.
        lengths: Sequence lengths that the model takes, ascending; empty where a range is taken.
        length_range: Smallest and largest length where a range is taken; -1 for no upper bound.
        types: Declared type by output name.
        metadata: The model's own keys, and ``author``, ``license``, ``shortDescription``, ``versionString``.
        specification: Version of the model format.
    """

    inputs: tuple[Feature, ...]
    outputs: tuple[Feature, ...]
    lengths: tuple[int, ...]
    length_range: tuple[int, int] | None
    types: dict[str, ValueType]
    metadata: dict[str, str]
    specification: int


def describe(package: Package) -> Description:
    """A package's features, compared with what its program takes and gives.

    Raises:
        InputError: If the two differ, or a feature is nothing that an encoder has.
    """
    message = package.model.description
    try:
        inputs = tuple(read_feature(f) for f in message.input)
        outputs = tuple(read_feature(f) for f in message.output)
        takes = {i.name: read_type(i.type) for i in package.function.inputs}
        wanted = set(package.block.outputs)
        gives = {o.name: read_type(o.type) for m in package.block.operations for o in m.outputs if o.name in wanted}
        _compare(inputs, takes, "input")
        _compare(outputs, gives, "output")
        if wanted != set(gives):
            raise ValueError(f"no operation makes the outputs {sorted(wanted - set(gives))}")
    except ValueError as error:
        raise InputError(Problem(str(package.model_path), f"{error}.")) from error
    lengths, length_range = _lengths(inputs)
    metadata = dict(message.metadata.userDefined) | {
        key: text
        for key in ("author", "license", "shortDescription", "versionString")
        if (text := str(getattr(message.metadata, key)))
    }
    return Description(inputs, outputs, lengths, length_range, gives, metadata, int(package.model.specificationVersion))


def _compare(features: tuple[Feature, ...], program: dict[str, ValueType], what: str) -> None:
    names = [f.name for f in features]
    if set(names) != set(program) or len(names) != len(program):
        raise ValueError(f"describes the {what}s {sorted(names)}; the program has {sorted(program)}")
    for feature in features:
        kind = program[feature.name]
        if feature.kind is not FeatureKind.ARRAY:
            if what == "input" or not _fits(feature.kind, kind):
                raise ValueError(f"describes {what} {feature.name!r} as a {feature.kind}, the program as {kind}")
            continue
        shapes = feature.shapes or ((feature.shape,) if what == "input" or feature.shape else ())
        if (
            not isinstance(kind, TensorType)
            or kind.dtype is not feature.dtype
            or not all(kind.admits(s) for s in shapes)
            or any(n < 0 for s in shapes for n in s)
        ):
            raise ValueError(
                f"describes {what} {feature.name!r} as {feature.dtype} {feature.allowed}, the program as {kind}"
            )


def _fits(feature: FeatureKind, kind: ValueType) -> bool:
    """Whether a program's value can be handed out as a feature other than an array."""
    if feature is FeatureKind.DICTIONARY:
        return isinstance(kind, DictionaryType)
    wanted = Dtype.STRING if feature is FeatureKind.TEXT else Dtype.INT64
    return isinstance(kind, TensorType) and kind.dtype is wanted and not kind.shape


def _lengths(inputs: tuple[Feature, ...]) -> tuple[tuple[int, ...], tuple[int, int] | None]:
    """Lengths, or their range, of the first input of shape [rows, length]."""
    for feature in inputs:
        if len(feature.ranges) == 2:
            low, high = feature.ranges[1]
            return ((low,), None) if low == high else ((), (low, high))
        shapes = feature.shapes or (feature.shape,)
        if all(len(s) == 2 for s in shapes):
            return tuple(sorted({s[1] for s in shapes})), None
    return (), None
