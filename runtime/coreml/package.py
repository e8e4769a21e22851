"""Read an ``.mlpackage`` folder: the manifest, the model, its inputs and outputs.

`read_package` finds the model that the manifest names, and checks that it is an ML program of one function. `read_description`
reads the inputs and outputs that the model description announces to an app, and compares them with the program's.
protobuf is imported when a package is opened, because prediction with other formats does not need it.
"""

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

_MANIFEST = "Manifest.json"
_DATA = "Data"
_MODEL_PATH = "@model_path/"
OPSETS = {"CoreML5": 5, "CoreML6": 6, "CoreML7": 7, "CoreML8": 8, "CoreML9": 9}
"""Operation sets by name: 5 is iOS 15, 6 iOS 16, 7 iOS 17, 8 iOS 18, 9 iOS 26."""


@dataclass(frozen=True)
class Package:
    """An opened ``.mlpackage``: its paths, its parsed model and the program in it.

    Attributes:
        path: The folder of the package.
        model_path: The file ``model.mlmodel`` in the folder.
        model: The protobuf message in that file.
        function: The model's only function.
        block: The function's body.
        opset: Number of the operation set, as in `OPSETS`.
    """

    path: Path
    model_path: Path
    model: pb.Model
    function: pb.Function
    block: pb.Block
    opset: int

    def weights(self, name: str) -> Path:
        """Return the path of a weight file, which a program names as ``@model_path/weights/weight.bin``.

        Raises:
            InputError: If the name has another form, or leads out of the package.
        """
        if not name.startswith(_MODEL_PATH):
            raise _problem(self.model_path, f"names a weight file {name!r}; expected {_MODEL_PATH}...")
        folder = self.model_path.parent
        return safe_join(folder, name.removeprefix(_MODEL_PATH), str(self.model_path))


def read_package(path: Path) -> Package:
    """Open a Core ML package: read its manifest, parse its model, and check that it is an ML program of one function.

    Inputs, outputs and operations are not read yet; `read_description` and `read_program` do that.

    Args:
        path: The ``.mlpackage`` folder.

    Raises:
        InputError: If the folder is no package, its manifest points elsewhere, files are missing or too large, or the
            model is not an ML program of one function.
        MissingBackendError: If protobuf is not installed.
    """
    if not path.is_dir():
        what = "is a file; an .mlpackage is a folder." if path.exists() else "folder not found."
        raise InputError(Problem(str(path), what))
    model_path = safe_join(path / _DATA, _read_manifest(path), str(path / _MANIFEST))
    if not model_path.resolve().is_relative_to(path.resolve()):
        raise _problem(path / _MANIFEST, "leads out of the package")
    if not model_path.is_file():
        raise InputError(Problem(str(model_path), "file not found."))
    if model_path.stat().st_size > MODEL_BYTES:
        raise _problem(model_path, f"larger than {MODEL_BYTES >> 20} MiB, refused")
    try:
        model = _parse_model(model_path.read_bytes())
    except (ValueError, OSError) as error:
        raise _problem(model_path, f"no Core ML model: {error}") from error
    function = _only_function(model, model_path)
    if function.opset not in OPSETS or function.opset not in function.block_specializations:
        bodies = f"with bodies for {sorted(function.block_specializations)}; known: {', '.join(OPSETS)}"
        raise _problem(model_path, f"written for operation set {function.opset!r} {bodies}")
    block = function.block_specializations[function.opset]
    return Package(path, model_path, model, function, block, OPSETS[function.opset])


def _read_manifest(path: Path) -> str:
    """Return the path of the model that a package's manifest names, relative to the package's data folder."""
    manifest: Any = read_json(path / _MANIFEST, limit_mib=1)
    try:
        relative = manifest["itemInfoEntries"][manifest["rootModelIdentifier"]]["path"]
        if not isinstance(relative, str) or not relative:
            raise TypeError("its path is not text")
    except (KeyError, TypeError, IndexError) as error:
        raise _problem(path / _MANIFEST, f"names no root model ({error})") from error
    return relative


def _only_function(model: pb.Model, where: Path) -> pb.Function:
    """Return the only function of an ML program.

    Raises InputError for other kinds of models, and for programs with several functions or a state.
    """
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


def _parse_model(data: bytes) -> pb.Model:
    """Parse the bytes of ``model.mlmodel`` to a protobuf message.

    Raises:
        MissingBackendError: If protobuf is not installed.
        ValueError: If the bytes are not such a message.
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


def _problem(where: Path, what: str) -> InputError:
    return InputError(Problem(str(where), f"{what}."))


# --- inputs and outputs as an app sees them -----------------------------------------------------------------------------

_ARRAY_TYPES = {65568: Dtype.FP32, 65600: Dtype.FP64, 131104: Dtype.INT32, 131080: Dtype.INT8, 65552: Dtype.FP16}
"""FeatureTypes.proto's ArrayDataType."""


class FeatureKind(StrEnum):
    """The kinds of values that an app passes to a model or gets back."""

    ARRAY = "array"
    TEXT = "text"
    NUMBER = "number"
    DICTIONARY = "dictionary"


@dataclass(frozen=True)
class Feature:
    """An input or output as the model description announces it to an app.

    Attributes:
        name: Name of the input or output.
        kind: Kind of the value.
        dtype: Element type of an array; None otherwise.
        shape: Default shape of an array.
        shapes: The only shapes allowed, if the model lists shapes.
        ranges: Smallest and largest size of each axis, if the model gives ranges; -1 for no upper bound.
    """

    name: str
    kind: FeatureKind
    dtype: Dtype | None = None
    shape: tuple[int, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    ranges: tuple[tuple[int, int], ...] = ()

    def allows(self, shape: tuple[int, ...]) -> bool:
        """Return whether the model takes an array of this shape."""
        if self.shapes:
            return shape in self.shapes
        if self.ranges:
            return len(shape) == len(self.ranges) and all(
                low <= n and (high < 0 or n <= high) for n, (low, high) in zip(shape, self.ranges, strict=True)
            )
        return shape == self.shape

    @property
    def allowed(self) -> str:
        """The shapes that `allows` accepts, as text for error messages."""
        if self.shapes:
            return " or ".join(str(list(s)) for s in self.shapes)
        if self.ranges:
            return str([low if low == high else f"{low}..{high if high >= 0 else ''}" for low, high in self.ranges])
        return str(list(self.shape))


@dataclass(frozen=True)
class Description:
    """The inputs and outputs of a package and its texts, read from the model description.

    Attributes:
        inputs: Inputs that an app must pass.
        outputs: Outputs that an app gets back.
        lengths: Sequence lengths that the model takes, ascending; empty if it takes a range of lengths.
        length_range: Smallest and largest length, if the model takes a range of lengths; -1 for no upper bound. Else
            None.
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


def read_description(package: Package) -> Description:
    """Read the inputs and outputs that a package announces to an app, and check that its program has the same ones.

    Raises:
        InputError: If description and program differ, or an input or output is of a kind that encoders do not have.
    """
    message = package.model.description
    try:
        inputs = tuple(_read_feature(f) for f in message.input)
        outputs = tuple(_read_feature(f) for f in message.output)
        input_types = {i.name: read_type(i.type) for i in package.function.inputs}
        names, results = set(package.block.outputs), [o for m in package.block.operations for o in m.outputs]
        output_types = {o.name: read_type(o.type) for o in results if o.name in names}
        _compare_features(inputs, input_types, "input")
        _compare_features(outputs, output_types, "output")
        if names != set(output_types):
            raise ValueError(f"no operation makes the outputs {sorted(names - set(output_types))}")
    except ValueError as error:
        raise InputError(Problem(str(package.model_path), f"{error}.")) from error
    lengths, length_range = _lengths(inputs)
    metadata = dict(message.metadata.userDefined) | {
        key: text
        for key in ("author", "license", "shortDescription", "versionString")
        if (text := str(getattr(message.metadata, key)))
    }
    specification = int(package.model.specificationVersion)
    return Description(inputs, outputs, lengths, length_range, output_types, metadata, specification)


def _read_feature(message: pb.FeatureDescription) -> Feature:
    """Read one input or output of the model description.

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


def _compare_features(features: tuple[Feature, ...], program: dict[str, ValueType], what: str) -> None:
    """Check that announced inputs or outputs equal the program's in name, kind, dtype and shape.

    `what` is ``input`` or ``output``. Raises ValueError at the first difference.
    """
    names = [f.name for f in features]
    if set(names) != set(program) or len(names) != len(program):
        raise ValueError(f"describes the {what}s {sorted(names)}; the program has {sorted(program)}")
    for feature in features:
        kind = program[feature.name]
        if feature.kind is not FeatureKind.ARRAY:
            if what == "input" or not _matches_kind(feature.kind, kind):
                raise ValueError(f"describes {what} {feature.name!r} as a {feature.kind}, the program as {kind}")
            continue
        shapes = feature.shapes or ((feature.shape,) if what == "input" or feature.shape else ())
        if (
            not isinstance(kind, TensorType)
            or kind.dtype is not feature.dtype
            or not all(kind.admits(s) for s in shapes)
            or any(n < 0 for s in shapes for n in s)
        ):
            described = f"{feature.dtype} {feature.allowed}"
            raise ValueError(f"describes {what} {feature.name!r} as {described}, the program as {kind}")


def _matches_kind(feature: FeatureKind, kind: ValueType) -> bool:
    """Return whether a program's value can be an output of this kind: text, number or dictionary."""
    if feature is FeatureKind.DICTIONARY:
        return isinstance(kind, DictionaryType)
    dtype = Dtype.STRING if feature is FeatureKind.TEXT else Dtype.INT64
    return isinstance(kind, TensorType) and kind.dtype is dtype and not kind.shape


def _lengths(inputs: tuple[Feature, ...]) -> tuple[tuple[int, ...], tuple[int, int] | None]:
    """Return the input lengths that a model takes: (list of lengths, None), or ((), (shortest, longest)).

    They are read from the first input of shape [rows, length].
    """
    for feature in inputs:
        if len(feature.ranges) == 2:
            low, high = feature.ranges[1]
            return ((low,), None) if low == high else ((), (low, high))
        shapes = feature.shapes or (feature.shape,)
        if all(len(s) == 2 for s in shapes):
            return tuple(sorted({s[1] for s in shapes})), None
    return (), None
