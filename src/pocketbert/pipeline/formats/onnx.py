"""The ONNX format: one file for all lengths, opened by ONNX Runtime, OpenVINO, transformers.js and others.

`OnnxPlace` exports and describes the files of a run. `_ConstantReader` lists the constants of a file for the gate
that compares stored numbers (`pocketbert.pipeline.gates.stored`).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.artefacts import Artefacts, ModelRecord, Requirements
from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.disk.files import read_json, write_json
from pocketbert.core.host.system import version_of
from pocketbert.core.model_files import load_onnx
from pocketbert.core.models.folder import ModelFolder
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.tasks import TaskName
from pocketbert.core.types import Format, Scheme
from pocketbert.pipeline.formats.base import (
    Extras,
    FormatPlace,
    ModelFile,
    RunModel,
    describe_required_engines,
    oldest_engine,
    required_engine,
)
from pocketbert.pipeline.formats.constants import (
    Constant,
    ConstantTracker,
    StoredTensor,
    dequantize,
    integer_range,
    read_quantized_tensor,
    read_tensor,
)
from pocketbert.pipeline.formats.snippets import javascript, kotlin, python, swift
from pocketbert.pipeline.formats.snippets.parts import (
    CHECKED_SCHEMES,
    TOKENIZER_FILE,
    Offer,
    Platform,
    describe_tokenizer,
    offered_file,
    pip_requirement,
)
from pocketbert.quantize.onnx.tables import PackedLookup, find_packed_lookups, unpack_codes

if TYPE_CHECKING:
    from torch import nn

TRANSFORMERS_JS_FILE = "onnx/model_quantized.onnx"
"""Name under which transformers.js (browser) and optimum look for the int8 file."""


class OnnxPlace(FormatPlace):
    """ONNX in the pipeline: exports a run's ONNX files, packs them, and describes them on the model card."""

    format = Format.ONNX

    def settings(self, recipe: Recipe) -> dict[str, object]:
        """Return the recipe setting that decides ONNX files only: the operator set, as ``export.opset``."""
        return {"export": {"opset": recipe.export.opset}}

    def write(self, model: RunModel, module: nn.Module, file: ModelFile, destination: Path) -> None:
        """Export the prepared torch module to an ONNX file whose batch and length axes may have any size."""
        from pocketbert.export import onnx

        rows = model.tokenizer.encode(list(SENTENCES[:2]))
        example = model.tokenizer.pad(rows, max(min(32, model.length), *map(len, rows)))
        onnx.export(module, model.folder.family, model.task, example, destination, model.recipe.export.opset)

    def finish(self, model: RunModel, file: ModelFile, path: Path) -> None:
        """Fix the input shapes of a file for an accelerator to the longest input. Other files are left as they are."""
        if file.runtime is not None and file.runtime.accelerator:
            from pocketbert.quantize.onnx.qnn import fix_shape

            fix_shape(path, model.length)

    def constants(self, path: Path) -> list[list[Constant]]:
        """Return a list with one entry: the constants of the file's graph, in the order of their use."""
        model, numbers = load_onnx(path)
        return [_ConstantReader(model.graph, numbers).run()]

    def processing(self, artefacts: Artefacts) -> list[str]:
        """Return the card's lines on ONNX files: inputs of any size, and the engines they need; empty without ONNX files."""
        own = [r for r in artefacts.models() if r.format is self.format]
        if not own:
            return []
        return [
            "ONNX: int64 inputs [batch, length], any sizes. Dynamic int8 depends a little on batch and padding: feed one unpadded "
            "text at a time for the recorded figures.",
            *describe_required_engines(own),
        ]

    def minimum(self, file: ModelFile, path: Path) -> Requirements | None:
        """Read a file's operator set, IR version, non-standard operators and engine; None if `onnx` is missing."""
        if version_of("onnx") is None:
            return None
        model, _ = load_onnx(path)
        opset = next((int(entry.version) for entry in model.opset_import if entry.domain in ("", "ai.onnx")), None)
        foreign = sorted({f"{n.domain}.{n.op_type}" for n in model.graph.node if n.domain not in ("", "ai.onnx")})
        engine = oldest_engine(self.format, file.scheme) if file.plain else None
        return Requirements(opset=opset, ir_version=int(model.ir_version), operators=foreign, engine=engine)

    def offers(self, artefacts: Artefacts) -> list[Offer]:
        """Return the ONNX rows of the card's table of platforms: Android, Python, web and iOS.

        There is no row for iOS if the folder has a Core ML package, and none for web if its files have inputs besides
        the text. Without an ONNX file for any client and runtime there are no rows.
        """
        record = offered_file(artefacts, self.format)
        if record is None:
            return []
        offers = [_android_offer(artefacts, record), _python_offer(artefacts, record)]
        if artefacts.form is None:  # transformers.js takes no other inputs than those of a text
            offers.append(_web_offer(artefacts, record))
        if not _has_packages(artefacts):
            offers.append(_ios_offer(artefacts, record))
        return offers

    def snippets(self, artefacts: Artefacts) -> list[str]:
        """Return more code for the model card: sentence-transformers for embedding models of text only, and Swift.

        Swift is left out if the folder has no Core ML package, since the card's table then has a row with that code.
        """
        record = offered_file(artefacts, self.format)
        if record is None:
            return []
        vectors = artefacts.task is TaskName.FEATURE_EXTRACTION
        text_only = artefacts.form is None
        return [
            *([python.sentence_transformers(artefacts, record)] if vectors and text_only else []),
            *([swift.onnx(artefacts, record)] if _has_packages(artefacts) else []),
        ]

    def pack(self, files: Sequence[ModelFile], folder: ModelFolder, destination: Path) -> Extras:
        """Add what transformers.js looks for: a link to the int8 file, or its copy; else write dtype fp32 to config.json."""
        int8 = next((f for f in files if f.plain and f.scheme is Scheme.INT8), None)
        if int8 is None:
            content = {**read_json(folder.path / "config.json"), "transformers.js_config": {"dtype": "fp32"}}
            write_json(destination / "config.json", content)
            return Extras()
        try:
            os.link(destination / int8.path, destination / TRANSFORMERS_JS_FILE)
        except OSError:  # a file system without hard links
            shutil.copyfile(destination / int8.path, destination / TRANSFORMERS_JS_FILE)
        return Extras(aliases={TRANSFORMERS_JS_FILE: int8.path})


# --- offers -----------------------------------------------------------------------------------------------------------


def _has_packages(artefacts: Artefacts) -> bool:
    """Return whether an artefact folder has a Core ML package."""
    return any(r.format is Format.COREML for r in artefacts.models())


def _requirements(library: str, record: ModelRecord) -> str:
    """Return a library's name and in parentheses what a file needs of it: operator set, IR version, engine."""
    minimum = record.minimum
    opset = f"opset {minimum.opset}, IR {minimum.ir_version}" if minimum and minimum.opset else ""
    needs = ", ".join(filter(None, [opset, required_engine(record)]))
    return f"{library} ({needs})" if needs else library


def _android_offer(artefacts: Artefacts, record: ModelRecord) -> Offer:
    """Return what an Android app needs to run a file with ONNX Runtime: files, Gradle lines, Kotlin code and notes."""
    version = kotlin.ORT.rpartition(":")[2]
    return Offer(
        platform=Platform.ANDROID_ONNX,
        record=record,
        beside=(TOKENIZER_FILE,),
        needs=f"{kotlin.ANDROID}; {_requirements(f'ONNX Runtime {version}', record)}",
        tokenizer=describe_tokenizer(artefacts, "Kotlin"),
        dependencies=kotlin.gradle(kotlin.ORT, kotlin.GSON),
        snippet=kotlin.onnx(artefacts, record),
        notes=(
            f"The code ran with the library for computers, `com.microsoft.onnxruntime:onnxruntime:{version}`; "
            "the library for Android was never run by this project.",
        ),
    )


def _ios_offer(artefacts: Artefacts, record: ModelRecord) -> Offer:
    """Return what an iOS app needs to run a file with ONNX Runtime: files, Swift package and Swift code."""
    return Offer(
        platform=Platform.IOS_ONNX,
        record=record,
        beside=(TOKENIZER_FILE,),
        needs=_requirements("ONNX Runtime", record),
        tokenizer=describe_tokenizer(artefacts, "Swift"),
        dependencies=(f"{swift.ORT_PACKAGE} (SwiftPM; no version was tried)",),
        snippet=swift.onnx(artefacts, record),
    )


def _web_offer(artefacts: Artefacts, record: ModelRecord) -> Offer:
    """Return what a web app needs to run a file with transformers.js: files, npm line, JavaScript code and notes."""
    return Offer(
        platform=Platform.WEB,
        record=record,
        beside=(TOKENIZER_FILE,),
        needs=_requirements(f"transformers.js {javascript.VERSION}", record),
        tokenizer=f"built in, reads `{TOKENIZER_FILE}`",
        dependencies=(f"npm install {javascript.PACKAGE}@{javascript.VERSION}",),
        snippet=javascript.web_code(artefacts, record),
        notes=(
            "The code for transformers.js was run with Node.js 20, never in a browser"
            + ("." if record.scheme in CHECKED_SCHEMES else ", and with fp32 and int8 files, not with this one."),
        ),
    )


def _python_offer(artefacts: Artefacts, record: ModelRecord) -> Offer:
    """Return what a Python program needs to run a file with ONNX Runtime: files, pip line and Python code."""
    engine, tokenizers = (pip_requirement(artefacts, name) for name in ("onnxruntime", "tokenizers"))
    return Offer(
        platform=Platform.PYTHON,
        record=record,
        beside=(TOKENIZER_FILE,),
        needs=_requirements(engine.replace("==", " "), record),
        tokenizer=f"`tokenizers`, reads `{TOKENIZER_FILE}`",
        dependencies=(f"pip install {engine} {tokenizers} numpy",),
        snippet=python.onnx(artefacts, record),
    )


# --- constants --------------------------------------------------------------------------------------------------------

_SHAPE_OPERATORS = ("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze")


class _ConstantReader:
    """Lists the constants of an ONNX graph with a `ConstantTracker`.

    The method ``on_matmul`` reports operators of type ``MatMul`` to it, and so on.

    Args:
        graph: The graph of an ONNX model.
        numbers: Its initializers by name.
    """

    def __init__(self, graph: Any, numbers: dict[str, NDArray[Any]]) -> None:
        self.graph, self.tracker, self.raw = graph, ConstantTracker(), numbers
        dequantized = {n.input[0] for n in graph.node if n.op_type == "DequantizeLinear"}
        for name, value in self.raw.items():
            read = read_quantized_tensor if name in dequantized else read_tensor
            self.tracker.store(name, read(value, name))
        # outputs of QuantizeLinear in graphs that compute in integers
        self.quantized: set[str] = set()
        # scales of activations, and the stored scales of weights by the name of their product with one of these
        self.activation_scales = {
            n.input[1] for n in graph.node if n.op_type == "QuantizeLinear" and n.input[1] in self.raw
        }
        self.scale_products: dict[str, str] = {}
        # stored tables by the names under which products read them
        self.reshaped = {
            n.output[0]: n.input[0] for n in graph.node if n.op_type == "Reshape" and n.input[0] in self.raw
        }
        # lookups of 4-bit tables, each of several operators
        self.packed = {p.output: p for p in find_packed_lookups(graph, self.raw)}
        self.inside_packed = frozenset[str]().union(*(p.inside for p in self.packed.values()))

    def run(self) -> list[Constant]:
        """Report every operator of the graph to the tracker, and return the constants in the order of their use."""
        for node in self.graph.node:
            handler = getattr(self, f"on_{node.op_type.lower()}", None)
            if node.output[0] in self.inside_packed:
                continue
            if node.output[0] in self.packed:
                self._follow_packed_lookup(self.packed[node.output[0]])
            elif node.op_type in _SHAPE_OPERATORS:
                self._follow_shape_operator(node)
            elif handler is not None:
                handler(node)
            else:
                self._other(node)
        return self.tracker.finish(o.name for o in self.graph.output)

    def _other(self, node: Any) -> None:
        """Report an operator as unknown: the constants that it reads count as used, its results as computed data."""
        self.tracker.other(node.output, [name for name in node.input if name])

    def _follow_shape_operator(self, node: Any) -> None:
        """Report a Cast, Identity, Reshape, Squeeze or Unsqueeze to the tracker. A constant gets its new shape.

        A Reshape of computed data counts as an unknown operator, since it may split channels into attention heads. So
        does any of them if a constant's new shape is computed at run time.
        """
        source, out = node.input[0], node.output[0]
        tensor = self.tracker.stored(source)
        shape = self._shape_after(node, tensor.value.shape) if tensor is not None else None
        if (node.op_type == "Reshape" and tensor is None) or (tensor is not None and shape is None):
            self._other(node)
            self.tracker.copy_range(out, source)
        else:
            self.tracker.keep(out, source, None if shape is None else lambda v: v.reshape(shape))

    def _shape_after(self, node: Any, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """Return a constant's shape after a Cast, Reshape, (Un)squeeze or Identity; None if computed at run time."""
        if node.op_type in ("Cast", "Identity"):
            return shape
        operand = self.raw.get(node.input[1]) if len(node.input) > 1 else np.array([], np.int64)
        if operand is None:
            return None
        if node.op_type == "Reshape":
            return tuple(int(n) or shape[i] for i, n in enumerate(operand))
        if node.op_type == "Squeeze":
            kept = [n > 1 or (operand.size and i not in operand % len(shape)) for i, n in enumerate(shape)]
            return tuple(n for n, keep in zip(shape, kept, strict=True) if keep)
        widened = list(shape)
        for axis in sorted(int(a) % (len(shape) + operand.size) for a in operand):
            widened.insert(axis, 1)
        return tuple(widened)

    def on_constant(self, node: Any) -> None:
        """Store the tensor of a Constant operator under the name of its output; report one without a tensor as unknown."""
        from onnx import numpy_helper

        [value] = [a.t for a in node.attribute if a.name == "value"] or [None]
        if value is None:
            self._other(node)
            return
        name = node.output[0]
        self.raw[name] = numpy_helper.to_array(value)
        self.tracker.store(name, read_tensor(self.raw[name], name))

    def on_transpose(self, node: Any) -> None:
        """Report a Transpose to the tracker with its order of axes. Without an order the axes are reversed."""
        order = [int(i) for a in node.attribute for i in a.ints] or None
        self.tracker.rearrange(node.output[0], node.input[0], lambda v: v.transpose(order))

    def on_gather(self, node: Any) -> None:
        """Report a Gather to the tracker: along axis 0 as a lookup of table rows, else as an unknown operator."""
        if any(a.name == "axis" and a.i for a in node.attribute):
            self._other(node)
        else:
            self.tracker.lookup(node.output[0], node.input[0], node.input[1])

    def _follow_packed_lookup(self, lookup: PackedLookup) -> None:
        """Report the operators that together look up rows of a 4-bit table to the tracker as one lookup."""
        codes, scales = lookup.values(self.raw)
        table = StoredTensor(codes, lookup.table, np.ones_like(codes), bits=4)
        self.tracker.store((lookup.table, "rows"), table.multiply(StoredTensor(scales, fp16_factors=1)))
        self.tracker.lookup(lookup.output, (lookup.table, "rows"), lookup.indices)

    def on_matmulnbits(self, node: Any) -> None:
        """Report a MatMulNBits, a product with a matrix quantized in blocks, with the matrix dequantized.

        The operator is reported as unknown instead if its matrix or its scales are not constants, or if it has zero
        points.
        """
        data, weight, scales = node.input[:3]
        flags = {a.name: a.i for a in node.attribute}
        stored = self.raw.get(self.reshaped.get(weight, weight))
        if stored is None or scales not in self.raw or len(node.input) > 3:
            self._other(node)
            return
        codes = unpack_codes(stored.reshape(flags["N"], -1), flags["bits"])
        self._store_blocks((weight, "matrix"), codes, self.raw[scales], flags, weight)
        self.tracker.product(node.output[0], data, (weight, "matrix"))

    def on_gatherblockquantized(self, node: Any) -> None:
        """Report a GatherBlockQuantized, a lookup in a table quantized in blocks, with the table dequantized.

        The operator is reported as unknown instead if its table or its scales are not constants, if it has zero points,
        or if it gathers along another axis than 0.
        """
        table, indices, scales = node.input[:3]
        flags = {a.name: a.i for a in node.attribute}
        if table not in self.raw or scales not in self.raw or len(node.input) > 3 or flags.get("gather_axis"):
            self._other(node)
            return
        self._store_blocks(
            (table, "rows"), unpack_codes(self.raw[table], flags["bits"]), self.raw[scales], flags, table
        )
        self.tracker.lookup(node.output[0], (table, "rows"), indices)

    def _store_blocks(
        self, key: object, codes: NDArray[Any], scales: NDArray[Any], flags: dict[str, int], name: str
    ) -> None:
        """Dequantize rows whose blocks share scales, and store them as a constant under `key`.

        Codes are [rows, padded width], and the code in the middle of their range means 0.
        """
        width = flags.get("K", codes.shape[1])
        values = codes[:, :width].astype(np.float32) - 2.0 ** (flags["bits"] - 1)
        steps = np.repeat(scales.reshape(len(codes), -1), flags["block_size"], axis=1)[:, :width]
        integers = StoredTensor(values, name, np.ones_like(values), bits=flags["bits"])
        self.tracker.store(key, integers.multiply(StoredTensor(steps)))

    def on_quantizelinear(self, node: Any) -> None:
        """Report the quantization of an activation to the tracker.

        An operator outside the standard domain keeps the value, since a later one dequantizes it; a standard one is
        unknown. The range that the integers cover is reported if a single scale and a zero point are stored.
        """
        if node.domain:  # a whole graph in integers: later operators dequantize the result
            self.tracker.keep(node.output[0], node.input[0])
            self.quantized.add(node.output[0])
        else:
            self._other(node)
        names = [*node.input, ""]
        scale, zero = self.raw.get(names[1]), self.raw.get(names[2])
        if scale is not None and scale.size == 1 and zero is not None:
            integers = np.iinfo(zero.dtype)
            # integers with zero in the middle have as many steps on both sides
            low = -integers.max if integers.min < 0 and not zero.any() else integers.min
            stored = integer_range(scale, zero, (low, integers.max))
            self.tracker.set_range(node.output[0], stored)
            self.tracker.set_result_range(node.input[0], stored)

    def on_dequantizelinear(self, node: Any) -> None:
        """Report a DequantizeLinear to the tracker: a stored tensor with its dequantized numbers.

        A quantized activation is reported as unchanged, and an operator whose scale is not stored as unknown.
        """
        if node.input[0] in self.quantized:
            self.tracker.keep(node.output[0], node.input[0])
            return
        names = [*node.input, ""]
        scale, zero = self.raw.get(names[1]), self.raw.get(names[2])
        axis = next((int(a.i) for a in node.attribute if a.name == "axis"), 1)
        if scale is None:
            self._other(node)
        else:
            self.tracker.dequantize(node.output[0], names[0], lambda t: dequantize(t, scale, zero, axis))

    def on_matmul(self, node: Any) -> None:
        """Report a MatMul to the tracker as a product with the stored matrix on its right or else on its left.

        If neither is stored, the tracker records it as unknown.
        """
        left, right = node.input
        if self.tracker.stored(right) is not None:
            self.tracker.product(node.output[0], left, right, transposed=True)
        else:
            self.tracker.product(node.output[0], right, left)

    def on_gemm(self, node: Any) -> None:
        """Report a Gemm to the tracker as data times a stored matrix, plus an offset if it has one.

        If the data are transposed, or product or offset is multiplied by a number, the operator is reported as unknown.
        """
        flags = {a.name: a.i for a in node.attribute}
        is_scaled = any(a.name in ("alpha", "beta") and a.f != 1 for a in node.attribute)
        names = [*node.input, ""]
        if flags.get("transA") or is_scaled:
            self._other(node)
        else:
            self.tracker.product(node.output[0], names[0], names[1], names[2] or None, not flags.get("transB"))

    def on_matmulinteger(self, node: Any) -> None:
        """Report a MatMulInteger to the tracker as a product with the stored integer matrix minus its zero point.

        A Mul that multiplies the product by its scales follows in the graph; see `on_mul`. If the matrix is not stored,
        the operator is reported as unknown.
        """
        names = [*node.input, "", ""]
        zero, (data, weight) = self.raw.get(names[3]), names[:2]
        stored = self.tracker.stored(weight)
        if stored is None:
            self._other(node)
            return
        one = np.ones(1, np.float32)
        self.tracker.store((weight, "centred"), dequantize(stored, one, zero, stored.value.ndim - 1))
        self.tracker.product(node.output[0], data, (weight, "centred"), transposed=True)

    def on_dynamicquantizelinear(self, node: Any) -> None:
        """Report an unknown operator to the tracker, and remember its second output as an activation's scale."""
        self._other(node)
        self.activation_scales.add(node.output[1])

    def on_mul(self, node: Any) -> None:
        """Report a Mul to the tracker: as a scaling if it multiplies an integer product by its scales, else as a product.

        A Mul that only joins the scale of an activation with that of a weight is not reported but remembered in
        `scale_products`, until the integer product is multiplied by its result.
        """
        left, right = node.input
        for one, other in ((left, right), (right, left)):
            if one in self.activation_scales and self.tracker.stored(other) is not None:
                self.scale_products[node.output[0]] = other
                return
            if one in self.scale_products:
                self.tracker.scale(node.output[0], other, self.scale_products[one])
                return
        self.tracker.multiply(node.output[0], left, right)

    def on_add(self, node: Any) -> None:
        """Report an Add to the tracker as a sum of two values."""
        self.tracker.add(node.output[0], *node.input)

    def on_layernormalization(self, node: Any) -> None:
        """Report a layer norm to the tracker: an unknown operator, then a factor and an offset per channel."""
        out, (data, *parts) = node.output[0], node.input
        self.tracker.other([out], [data])
        self.tracker.multiply(out, out, parts[0])
        if len(parts) > 1:
            self.tracker.add(out, out, parts[1])
