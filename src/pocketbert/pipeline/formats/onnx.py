"""ONNX: one file for all lengths; what ONNX Runtime, OpenVINO, transformers.js and sentence-transformers open."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.artefacts import Artefacts, Minimum, ModelRecord
from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.disk.files import read_json, write_json
from pocketbert.core.host.system import version_of
from pocketbert.core.models.folder import ModelFolder
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.tasks import TaskName
from pocketbert.core.types import Format, Scheme
from pocketbert.pipeline.formats.base import (
    Extras,
    FormatPlace,
    ModelFile,
    RunModel,
    engine_lines,
    engine_needs,
    oldest_engine,
)
from pocketbert.pipeline.formats.constants import (
    Constant,
    Numbers,
    Tracker,
    compressed,
    dequantized,
    numbers_of,
    range_of,
)
from pocketbert.pipeline.formats.snippets import javascript, kotlin, python, swift
from pocketbert.pipeline.formats.snippets.parts import (
    CHECKED,
    TOKENIZER,
    Offer,
    Platform,
    offered,
    pinned,
    tokenizer_of,
)
from pocketbert.quantize.onnx.tables import PackedLookup, packed_lookups, unpacked

if TYPE_CHECKING:
    from torch import nn


ALIAS = "onnx/model_quantized.onnx"
"""Name under which transformers.js (browser) and optimum look for the int8 file."""


class OnnxPlace(FormatPlace):
    """The ONNX files of a run."""

    format = Format.ONNX

    def settings(self, recipe: Recipe) -> dict[str, object]:
        """Return the operator set."""
        return {"export": {"opset": recipe.export.opset}}

    def write(self, model: RunModel, module: nn.Module, file: ModelFile, destination: Path) -> None:
        """Export with both axes free."""
        from pocketbert.export import onnx

        rows = model.tokenizer.encode(list(SENTENCES[:2]))
        example = model.tokenizer.pad(rows, max(min(32, model.length), *map(len, rows)))
        onnx.export(module, model.folder.family, model.task, example, destination, model.recipe.export.opset)

    def finish(self, model: RunModel, file: ModelFile, path: Path) -> None:
        """Fix the shape of a file for an accelerator, which takes no free axes."""
        if file.runtime is not None and file.runtime.accelerator:
            from pocketbert.quantize.onnx.qnn import fix_shape

            fix_shape(path, model.length)

    def constants(self, path: Path) -> list[list[Constant]]:
        """Read the constants of a file."""
        return onnx_constants(path)

    def processing(self, artefacts: Artefacts) -> list[str]:
        """Tell that both axes are free, and what dynamic int8 depends on."""
        own = [r for r in artefacts.models() if r.format is self.format]
        if not own:
            return []
        return [
            "ONNX: int64 inputs [batch, length], any sizes. Dynamic int8 depends a little on batch and padding: feed one unpadded "
            "text at a time for the recorded figures.",
            *engine_lines(own),
        ]

    def minimum(self, file: ModelFile, path: Path) -> Minimum | None:
        """Read operator set, version of the file format and foreign operators; None where the `onnx` package is not installed."""
        if version_of("onnx") is None:
            return None
        import onnx

        model = onnx.load(str(path), load_external_data=False)
        opset = next((int(entry.version) for entry in model.opset_import if entry.domain in ("", "ai.onnx")), None)
        foreign = sorted({f"{n.domain}.{n.op_type}" for n in model.graph.node if n.domain not in ("", "ai.onnx")})
        engine = oldest_engine(self.format, file.scheme) if file.plain else None
        return Minimum(opset=opset, ir_version=int(model.ir_version), operators=foreign, engine=engine)

    def offers(self, artefacts: Artefacts) -> list[Offer]:
        """Offer one file to Android, the web and Python, and to iOS where there is no Core ML package."""
        record = offered(artefacts, self.format)
        if record is None:
            return []
        platforms = [_android(artefacts, record), _python(artefacts, record)]
        if artefacts.form is None:  # transformers.js has no place for another input
            platforms.append(_web(artefacts, record))
        if not _has_packages(artefacts):
            platforms.append(_ios(artefacts, record))
        return platforms

    def snippets(self, artefacts: Artefacts) -> list[str]:
        """Show sentence-transformers, and ONNX Runtime in Swift where a Core ML package is the first choice on iOS."""
        record = offered(artefacts, self.format)
        if record is None:
            return []
        vectors = artefacts.task is TaskName.FEATURE_EXTRACTION
        text_only = artefacts.form is None  # these clients have no place for another input
        return [
            *([python.sentence_transformers(artefacts, record)] if vectors and text_only else []),
            *([swift.onnx(artefacts, record)] if _has_packages(artefacts) else []),
        ]

    def pack(self, files: Sequence[ModelFile], folder: ModelFolder, destination: Path) -> Extras:
        """Give the int8 file the name that transformers.js asks for in a browser; without one, config.json names fp32."""
        int8 = next((f for f in files if f.plain and f.scheme is Scheme.INT8), None)
        if int8 is not None:
            _link(destination / int8.path, destination / ALIAS)
            return Extras(aliases={ALIAS: int8.path})
        content = {**read_json(folder.path / "config.json"), "transformers.js_config": {"dtype": "fp32"}}
        write_json(destination / "config.json", content)
        return Extras()


def _has_packages(artefacts: Artefacts) -> bool:
    return any(r.format is Format.COREML for r in artefacts.models())


def _file_needs(record: ModelRecord) -> str:
    """Operator set and file version, where they were read."""
    minimum = record.minimum
    needs = f"opset {minimum.opset}, IR {minimum.ir_version}" if minimum and minimum.opset else ""
    return ", ".join(filter(None, [needs, engine_needs(record)]))


def _with_file(library: str, record: ModelRecord) -> str:
    needs = _file_needs(record)
    return f"{library} ({needs})" if needs else library


def _android(artefacts: Artefacts, record: ModelRecord) -> Offer:
    version = kotlin.ORT.rpartition(":")[2]
    return Offer(
        platform=Platform.ANDROID_ONNX,
        record=record,
        beside=(TOKENIZER,),
        needs=f"{kotlin.ANDROID}; {_with_file(f'ONNX Runtime {version}', record)}",
        tokenizer=tokenizer_of(artefacts, "Kotlin"),
        dependencies=kotlin.gradle(kotlin.ORT, kotlin.GSON),
        snippet=kotlin.onnx(artefacts, record),
        notes=(
            f"The code ran with the library for computers, `com.microsoft.onnxruntime:onnxruntime:{version}`; "
            "the library for Android was never run by this project.",
        ),
    )


def _ios(artefacts: Artefacts, record: ModelRecord) -> Offer:
    return Offer(
        platform=Platform.IOS_ONNX,
        record=record,
        beside=(TOKENIZER,),
        needs=_with_file("ONNX Runtime", record),
        tokenizer=tokenizer_of(artefacts, "Swift"),
        dependencies=(f"{swift.ORT_PACKAGE} (SwiftPM; no version was tried)",),
        snippet=swift.onnx(artefacts, record),
    )


def _web(artefacts: Artefacts, record: ModelRecord) -> Offer:
    return Offer(
        platform=Platform.WEB,
        record=record,
        beside=(TOKENIZER,),
        needs=f"transformers.js {javascript.VERSION}" + (f" ({needs})" if (needs := _file_needs(record)) else ""),
        tokenizer=f"built in, reads `{TOKENIZER}`",
        dependencies=(f"npm install {javascript.PACKAGE}@{javascript.VERSION}",),
        snippet=javascript.transformers_js(artefacts, record),
        notes=(
            "JavaScript was run with Node.js 20, never in a browser"
            + ("." if record.scheme in CHECKED else ", and with fp32 and int8 files, not with this one."),
        ),
    )


def _python(artefacts: Artefacts, record: ModelRecord) -> Offer:
    engine, tokenizers = (pinned(artefacts, name) for name in ("onnxruntime", "tokenizers"))
    return Offer(
        platform=Platform.PYTHON,
        record=record,
        beside=(TOKENIZER,),
        needs=_with_file(engine.replace("==", " "), record),
        tokenizer=f"`tokenizers`, reads `{TOKENIZER}`",
        dependencies=(f"pip install {engine} {tokenizers} numpy",),
        snippet=python.onnx(artefacts, record),
    )


def _link(source: Path, destination: Path) -> None:
    try:
        os.link(source, destination)
    except OSError:  # a file system without hard links
        shutil.copyfile(source, destination)


# --- onnx ---
# The constants of an ONNX file.


_KEPT = ("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze")


def onnx_constants(path: Path) -> list[list[Constant]]:
    """List the constants of a file, in the order in which its graph uses them."""
    import onnx

    return [_Reader(onnx.load(path).graph).run()]


class _Reader:
    def __init__(self, graph: Any) -> None:
        from onnx import numpy_helper

        self.graph, self.tracker = graph, Tracker()
        self.raw: dict[str, NDArray[Any]] = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
        widened = {n.input[0] for n in graph.node if n.op_type == "DequantizeLinear"}
        for name, value in self.raw.items():
            self.tracker.store(name, (compressed if name in widened else numbers_of)(value, name))
        self.rounded: set[str] = set()  # what quantized tensors were computed from is that of the tensors
        # scales of activations
        self.units = {n.input[1] for n in graph.node if n.op_type == "QuantizeLinear" and n.input[1] in self.raw}
        self.scales: dict[str, str] = {}  # stored scales that were multiplied with one of them
        # under which names products read tables
        self.tables = {n.output[0]: n.input[0] for n in graph.node if n.op_type == "Reshape" and n.input[0] in self.raw}
        self.packed = {p.output: p for p in packed_lookups(graph, self.raw)}
        self.unpacking = frozenset[str]().union(*(p.inside for p in self.packed.values()))

    def run(self) -> list[Constant]:
        for node in self.graph.node:
            handler = getattr(self, f"on_{node.op_type.lower()}", None)
            if node.output[0] in self.unpacking:
                continue
            if node.output[0] in self.packed:
                self._unpacked(self.packed[node.output[0]])
            elif node.op_type in _KEPT:
                self._moved(node)
            elif handler is not None:
                handler(node)
            else:
                self._other(node)
        return self.tracker.finish(o.name for o in self.graph.output)

    def _other(self, node: Any) -> None:
        self.tracker.other(node.output, [name for name in node.input if name])

    def _moved(self, node: Any) -> None:
        source, out = node.input[0], node.output[0]
        value = self.tracker.stored(source)
        shape = self._shape(node, value) if value is not None else None
        if (node.op_type == "Reshape" and value is None) or (value is not None and shape is None):
            self._other(node)  # channels may be split into heads
            self.tracker.move_range(out, source)
        else:
            self.tracker.keep(out, source, None if shape is None else lambda v: v.reshape(shape))

    def _shape(self, node: Any, value: Numbers) -> tuple[int, ...] | None:
        """The shape that a constant gets; None where it is computed."""
        now = value.value.shape
        if node.op_type in ("Cast", "Identity"):
            return now
        given = self.raw.get(node.input[1]) if len(node.input) > 1 else np.array([], np.int64)
        if given is None:
            return None
        if node.op_type == "Reshape":
            return tuple(int(n) or now[i] for i, n in enumerate(given))
        if node.op_type == "Squeeze":
            return tuple(n for i, n in enumerate(now) if n > 1 or (given.size and i not in given % len(now)))
        new = list(now)
        for axis in sorted(int(a) % (len(now) + given.size) for a in given):
            new.insert(axis, 1)
        return tuple(new)

    def on_constant(self, node: Any) -> None:
        from onnx import numpy_helper

        [value] = [a.t for a in node.attribute if a.name == "value"] or [None]
        if value is None:
            self._other(node)
            return
        self.raw[node.output[0]] = numpy_helper.to_array(value)
        self.tracker.store(node.output[0], numbers_of(self.raw[node.output[0]], node.output[0]))

    def on_transpose(self, node: Any) -> None:
        order = [int(i) for a in node.attribute for i in a.ints] or None
        self.tracker.rearrange(node.output[0], node.input[0], lambda v: v.transpose(order))

    def on_gather(self, node: Any) -> None:
        if any(a.name == "axis" and a.i for a in node.attribute):
            self._other(node)
        else:
            self.tracker.lookup(node.output[0], node.input[0], node.input[1])

    def _unpacked(self, lookup: PackedLookup) -> None:
        """Follow the lookup of a table in 4 bits, as one operator."""
        codes, scales = lookup.values(self.raw)
        numbers = Numbers(codes, lookup.table, np.ones_like(codes), bits=4).times(Numbers(scales, halves=1))
        self.tracker.store((lookup.table, "rows"), numbers)
        self.tracker.lookup(lookup.output, (lookup.table, "rows"), lookup.indices)

    def on_matmulnbits(self, node: Any) -> None:
        data, weight, scales = node.input[:3]
        flags = {a.name: a.i for a in node.attribute}
        stored = self.raw.get(self.tables.get(weight, weight))
        if stored is None or scales not in self.raw or len(node.input) > 3:
            self._other(node)
            return
        codes = unpacked(stored.reshape(flags["N"], -1), flags["bits"])
        self._store_blocks((weight, "matrix"), codes, self.raw[scales], flags, weight)
        self.tracker.product(node.output[0], data, (weight, "matrix"))

    def on_gatherblockquantized(self, node: Any) -> None:
        table, indices, scales = node.input[:3]
        flags = {a.name: a.i for a in node.attribute}
        if table not in self.raw or scales not in self.raw or len(node.input) > 3 or flags.get("gather_axis"):
            self._other(node)
            return
        self._store_blocks((table, "rows"), unpacked(self.raw[table], flags["bits"]), self.raw[scales], flags, table)
        self.tracker.lookup(node.output[0], (table, "rows"), indices)

    def _store_blocks(
        self, key: object, codes: NDArray[Any], scales: NDArray[Any], flags: dict[str, int], name: str
    ) -> None:
        """Store rows whose numbers share scales in blocks."""
        width = flags.get("K", codes.shape[1])
        values = codes[:, :width].astype(np.float32) - 2.0 ** (flags["bits"] - 1)
        steps = np.repeat(scales.reshape(len(codes), -1), flags["block_size"], axis=1)[:, :width]
        numbers = Numbers(values, name, np.ones_like(values), bits=flags["bits"])
        self.tracker.store(key, numbers.times(Numbers(steps)))

    def on_quantizelinear(self, node: Any) -> None:
        if node.domain:  # a whole graph in integers: operators read what these made fp32 again
            self.tracker.keep(node.output[0], node.input[0])
            self.rounded.add(node.output[0])
        else:
            self._other(node)
        names = [*node.input, ""]
        scale, zero = self.raw.get(names[1]), self.raw.get(names[2])
        if scale is not None and scale.size == 1 and zero is not None:
            kind = np.iinfo(zero.dtype)
            # what is stored with zero in the middle has as many steps on both sides
            low = -kind.max if kind.min < 0 and not zero.any() else kind.min
            self.tracker.limit(node.output[0], range_of(scale, zero, (low, kind.max)))

    def on_dequantizelinear(self, node: Any) -> None:
        if node.input[0] in self.rounded:
            self.tracker.keep(node.output[0], node.input[0])
            return
        names = [*node.input, ""]
        scale, zero = self.raw.get(names[1]), self.raw.get(names[2])
        axis = next((int(a.i) for a in node.attribute if a.name == "axis"), 1)
        if scale is None:
            self._other(node)
        else:
            self.tracker.dequantize(node.output[0], names[0], lambda n: dequantized(n, scale, zero, axis))

    def on_matmul(self, node: Any) -> None:
        left, right = node.input
        if self.tracker.stored(right) is not None:
            self.tracker.product(node.output[0], left, right, turned=True)
        else:
            self.tracker.product(node.output[0], right, left)

    def on_gemm(self, node: Any) -> None:
        flags = {a.name: a.i for a in node.attribute}
        names = [*node.input, ""]
        if flags.get("transA"):
            self._other(node)
        else:
            self.tracker.product(node.output[0], names[0], names[1], names[2] or None, not flags.get("transB"))

    def on_matmulinteger(self, node: Any) -> None:
        names = [*node.input, "", ""]
        zero, (data, weight) = self.raw.get(names[3]), names[:2]
        stored = self.tracker.stored(weight)
        if stored is None:
            self._other(node)
            return
        one = np.ones(1, np.float32)
        self.tracker.store((weight, "centred"), dequantized(stored, one, zero, stored.value.ndim - 1))
        self.tracker.product(node.output[0], data, (weight, "centred"), turned=True)

    def on_dynamicquantizelinear(self, node: Any) -> None:
        self._other(node)
        self.units.add(node.output[1])

    def on_mul(self, node: Any) -> None:
        left, right = node.input
        for one, other in ((left, right), (right, left)):
            if one in self.units and self.tracker.stored(other) is not None:
                self.scales[node.output[0]] = other
                return
            if one in self.scales:
                self.tracker.scale(node.output[0], other, self.scales[one])
                return
        self.tracker.multiply(node.output[0], left, right)

    def on_add(self, node: Any) -> None:
        self.tracker.add(node.output[0], *node.input)

    def on_layernormalization(self, node: Any) -> None:
        out, (data, *parts) = node.output[0], node.input
        self.tracker.other([out], [data])
        self.tracker.multiply(out, out, parts[0])
        if len(parts) > 1:
            self.tracker.add(out, out, parts[1])
