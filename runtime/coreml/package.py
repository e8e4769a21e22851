"""The files of an ``.mlpackage``: the manifest, the model, the weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pocketbert.core.disk.files import read_json, safe_join
from pocketbert.core.errors import InputError, Problem
from pocketbert.runtime.coreml.limits import MODEL_BYTES
from pocketbert.runtime.coreml.schema import parse_model

if TYPE_CHECKING:
    from pocketbert.runtime.coreml.proto import mlpackage_pb2 as pb

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
