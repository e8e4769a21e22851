"""Core ML: packages with listed lengths, in fp16 or fp32; checked by the project's evaluator where there is no Mac."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.benchmarks.imported.mac import FILE_NAME as FILE_NAME_ON_MAC
from pocketbert.benchmarks.imported.mac import mac_script
from pocketbert.core.artefacts import Artefacts, Kind, Minimum
from pocketbert.core.compare.evaluate import worst_difference
from pocketbert.core.compare.golden import GoldenRow
from pocketbert.core.coreml_package import LABEL, SCORES
from pocketbert.core.models.folder import ModelFolder
from pocketbert.core.predict.predictor import feed
from pocketbert.core.predict.scores import probabilities
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.tasks import TaskName
from pocketbert.core.types import Format, Layout, Scheme, Shapes
from pocketbert.pipeline.formats.base import Extras, FormatPlace, ModelFile, RunModel, description_of, maker, shorter
from pocketbert.pipeline.formats.constants import Constant, Tracker, dequantized, from_palette, numbers_of, range_of
from pocketbert.pipeline.formats.snippets import swift
from pocketbert.pipeline.formats.snippets.parts import TOKENIZER, Offer, Platform, lengths, offered, tokenizer_of
from pocketbert.pipeline.results import Gate, Subject, unread_gate
from pocketbert.runtime.coreml.kernels.constexpr import PREFIX
from pocketbert.runtime.coreml.package import read_package
from pocketbert.runtime.coreml.types import Budget, Dtype
from pocketbert.runtime.coreml.weights import Constant as Stored
from pocketbert.runtime.coreml.weights import ConstantReader, unpack

if TYPE_CHECKING:
    from torch import nn

    from pocketbert.runtime.coreml.proto import mlpackage_pb2 as pb


MAC_SCRIPT = f"{Format.COREML}/{FILE_NAME_ON_MAC}"
LAYOUT_NOTE = "pocketbert.layout"
"""Entry of a package's metadata that names its layout."""
SCANNED = 6
"""Golden rows whose every intermediate result is looked at."""
_OLDEST = 16
"""Oldest iOS version that packages can be exported for."""
PROBABILITY = 2e-3
"""How far a probability may be from its logit's: softmax rounded to fp16 is within 1e-3."""


class CoremlPlace(FormatPlace):
    """The Core ML packages of a run."""

    format = Format.COREML
    timing = f"`python3 {MAC_SCRIPT}` measures it on a Mac"

    def exported_scheme(self, recipe: Recipe) -> Scheme:
        """Return the precision that the recipe asks for."""
        return recipe.export.coreml.precision

    def layout(self, recipe: Recipe) -> Layout:
        """Return the layout that the recipe asks for."""
        return recipe.export.coreml.layout

    def settings(self, recipe: Recipe) -> dict[str, object]:
        """Return the recipe's section on packages, and what they tell about themselves."""
        section = recipe.export.coreml.model_dump(mode="json")
        return {"export": {"coreml": section}, "name": recipe.name, "description": recipe.description}

    def lengths(self, recipe: Recipe, file: ModelFile, length: int) -> list[int]:
        """Choose one length in packages of fixed shape, which pad everything to it: the recipe's longest."""
        if recipe.export.coreml.lengths is Shapes.FIXED:
            return shorter(recipe, length)[-1:]
        return super().lengths(recipe, file, length)

    def write(self, model: RunModel, module: nn.Module, file: ModelFile, destination: Path) -> None:
        """Export a package that names its labels, task and origin."""
        from pocketbert.export import coreml

        recipe, folder, labels = model.recipe, model.folder, model.labels
        settings = recipe.export.coreml
        form = coreml.CoremlForm(settings.ios, settings.lengths, settings.precision)
        notes = {
            "pocketbert.task": model.task.name.value,
            "pocketbert.family": folder.family.name,
            LAYOUT_NOTE: settings.layout.value,
            "pocketbert.labels": json.dumps(labels, ensure_ascii=False),
        }
        info = coreml.CoremlInfo(
            description=description_of(recipe, folder, model.task),
            version=f"{recipe.name} {folder.sha256[:12]}",
            author=maker(),
            license=folder.licence,
            labels=labels,
            notes=tuple(notes.items()),
        )
        lengths = self.lengths(recipe, file, model.length)
        coreml.export(module, folder.family, model.task, lengths, destination, form, info)

    def gates(self, subject: Subject, rows: Sequence[GoldenRow]) -> list[Gate]:
        """Check label names inside the package, the classifier's answer, and room in fp16."""
        return _own_gates(subject, rows)

    def constants(self, path: Path) -> list[list[Constant]]:
        """Read the constants of a package."""
        return coreml_constants(path)

    def layout_of(self, path: Path) -> Layout:
        """Read the layout that a package names."""
        from pocketbert.runtime.coreml.package import read_package

        named = read_package(path).model.description.metadata.userDefined
        return Layout(named[LAYOUT_NOTE]) if LAYOUT_NOTE in named else Layout.PLAIN

    def notes(self, recipe: Recipe) -> list[str]:
        """Tell what was checked without a Mac, and that the layout for the Neural Engine was not timed."""
        out = []
        if not self.info.timed:
            from pocketbert.runtime.coreml import LIMITS

            out.append(
                f"Core ML packages were checked by the project's evaluator, without a Mac. {' '.join(LIMITS)} "
                f"`{MAC_SCRIPT}` checks and times them on one."
            )
        if recipe.export.coreml.layout is Layout.ANE:
            out.append("Core ML layout `ane`: same answers as the plain layout; whether it is faster was not measured.")
        return out

    def processing(self, artefacts: Artefacts) -> list[str]:
        """Tell inputs, lengths and outputs."""
        record = offered(artefacts, self.format)
        if record is None or not record.signature:
            return []
        known = ", ".join(map(str, lengths(record)))
        outputs = ", ".join(f"`{o.name}`" for o in record.signature.outputs)
        answer = (
            "A classifier answers with `classLabel`, `classLabel_probs` and `logits`."
            if artefacts.task is TaskName.TEXT_CLASSIFICATION
            else f"Outputs: {outputs}."
        )
        most = artefacts.processing.max_length
        shapes = f"lengths {known}: pad to the next one" if known else f"any length up to {most}"
        return [f"Core ML: int32 inputs [1, length]; {shapes}. {answer}"]

    def minimum(self, file: ModelFile, path: Path) -> Minimum | None:
        """Read the oldest iOS version that has the package's operations."""
        from pocketbert.runtime.coreml.package import OPSETS, read_package

        opset = read_package(path).opset
        return Minimum(ios=opset + 10 if opset < max(OPSETS.values()) else 26)

    def offers(self, artefacts: Artefacts) -> list[Offer]:
        """Offer a package to iOS."""
        record = offered(artefacts, self.format)
        if record is None:
            return []
        ios = record.minimum.ios if record.minimum is not None else None
        older = f"`pocketbert export --ios {_OLDEST}` (recipe: `export.coreml.ios`) makes a package for older systems."
        return [
            Offer(
                platform=Platform.IOS,
                record=record,
                beside=(TOKENIZER,),
                needs=f"iOS {ios}" if ios is not None else "iOS 18, unless it was exported with `--ios`",
                tokenizer=tokenizer_of(artefacts, "Swift"),
                dependencies=(),
                snippet=swift.coreml(artefacts, record),
                notes=(
                    "Checked by this project's evaluator, never by Core ML: no Mac was available.",
                    *([older] if ios is not None and ios > _OLDEST else []),
                ),
            )
        ]

    def snippets(self, artefacts: Artefacts) -> list[str]:
        """Add nothing: the table has a row for iOS."""
        return []

    def pack(self, files: Sequence[ModelFile], folder: ModelFolder, destination: Path) -> Extras:
        """Add the script that checks and times the packages on a Mac."""
        (destination / MAC_SCRIPT).write_text(mac_script(), encoding="utf-8")
        return Extras(kinds={MAC_SCRIPT: Kind.TOOL})


def _own_gates(subject: Subject, rows: Sequence[GoldenRow]) -> list[Gate]:
    """Check label names inside the package, and that every intermediate result has room in its type.

    Args:
        subject: The file.
        rows: Golden rows.
    """
    unread = unread_gate(subject, "overflow")
    if unread is not None:
        return [unread]
    names = subject.predictor.inputs
    encoded = subject.tokenizer.encode([r.input for r in rows])
    longest_first = sorted(encoded, key=len, reverse=True)[:SCANNED]
    batches = [feed(subject.predictor, subject.tokenizer, [e]) for e in longest_first]
    inputs = [{n: b[n].astype(np.float32 if b[n].dtype.kind == "f" else np.int32) for n in names} for b in batches]
    own = [_labels(subject), _classifier(subject, inputs)]
    return [*(own if subject.task.name is TaskName.TEXT_CLASSIFICATION else []), _overflow(subject, inputs)]


def _labels(subject: Subject) -> Gate:
    from pocketbert.runtime.coreml.stored import StoredTensors

    inside = StoredTensors(subject.path).labels()
    wrong = [f"'{i}' instead of '{w}'" for i, w in zip(inside, subject.labels, strict=False) if i != w]
    if len(inside) != len(subject.labels):
        wrong.insert(0, f"{len(inside)} labels instead of {len(subject.labels)}")
    return Gate(
        name="metadata",
        file=subject.name,
        passed=not wrong,
        value=float(len(wrong)),
        bound=0.0,
        detail=f"labels inside the package: {'; '.join(wrong[:3])}."
        if wrong
        else f"{len(inside)} labels inside the package are those of the folder.",
    )


def _classifier(subject: Subject, inputs: Sequence[Mapping[str, NDArray[np.generic]]]) -> Gate:
    """Whether the label and the probabilities that an app reads belong to the logits that everything else here reads."""
    from pocketbert.runtime.coreml.evaluator import Evaluator

    evaluator, differences, wrong = Evaluator(subject.path), list[float](), 0
    for one in inputs:
        out = evaluator.run(one)
        want = probabilities(np.asarray(out[subject.output], np.float32)[0], subject.task.score)
        table, label = out.get(SCORES), out.get(LABEL)
        have = np.array(list(table.values()) if isinstance(table, dict) else [])
        differences.append(worst_difference(have, want))  # NaN where there are more or fewer
        wrong += not (isinstance(table, dict) and label == max(table, key=lambda k: table[k]))
    worst = float(np.max(differences))  # keeps a NaN
    passed = worst <= PROBABILITY and not wrong
    return Gate(
        name="classifier",
        file=subject.name,
        passed=passed,
        value=worst,
        bound=PROBABILITY,
        detail=f"`{SCORES}` differs from the logits' probabilities by {worst:.2g}, `{LABEL}` is another label "
        f"than the most probable one in {wrong} of {len(inputs)} golden rows.",
    )


def _overflow(subject: Subject, inputs: Sequence[Mapping[str, NDArray[np.generic]]]) -> Gate:
    """Whether every intermediate result fits into the type that the program declares for it."""
    from pocketbert.runtime.coreml.scan import overflow_scan
    from pocketbert.runtime.coreml.types import LARGEST

    scan = overflow_scan(subject.path, inputs)
    largest = scan.largest.largest if scan.largest else 0.0
    return Gate(
        name="overflow",
        file=subject.name,
        passed=scan.first is None,
        value=largest,
        bound=float(LARGEST),
        detail=f"{scan.summary}; {scan.rows} golden rows, every operation.",
    )


# --- coreml ---
# The constants of a Core ML package.


_KEPT = ("cast", "expand_dims", "squeeze")
_SHIFT_SCALE = f"{PREFIX}blockwise_shift_scale"
_PALETTE = f"{PREFIX}lut_to_dense"
_AFFINE = f"{PREFIX}affine_dequantize"


def coreml_constants(path: Path) -> list[list[Constant]]:
    """List the constants of a package, in the order in which its program uses them."""
    return [_Reader(path).run()]


class _Reader:
    def __init__(self, path: Path) -> None:
        package = read_package(path)
        self.block, self.tracker = package.block, Tracker()
        self.reader = ConstantReader(package, Budget(str(path)))
        self.raw: dict[str, Any] = {}
        self.types: dict[str, Any] = {}

    def run(self) -> list[Constant]:
        for op in self.block.operations:
            handler = getattr(self, f"on_{op.type}", None)
            if op.type == "const":
                self._store(op.outputs[0].name, self.reader.read(op.attributes["val"]))
            elif op.type in (_SHIFT_SCALE, _AFFINE, _PALETTE):
                self._compressed(op)
            elif op.type in _KEPT:
                self._kept(op)
            elif handler is not None:
                handler(op)
            else:
                self._other(op)
        return self.tracker.finish(self.block.outputs)

    def _store(self, name: str, constant: Stored) -> None:
        value = self.raw[name] = constant.value
        self.types[name] = constant.type
        if isinstance(value, np.ndarray):
            self.tracker.store(name, numbers_of(value, name))

    def _name(self, op: pb.Operation, parameter: str) -> str | None:
        """Name of an operand; one that is written in place gets a name here."""
        if parameter not in op.inputs:
            return None
        [binding] = op.inputs[parameter].arguments
        if binding.WhichOneof("binding") == "name":
            return str(binding.name)
        name = f"{op.outputs[0].name}.{parameter}"
        self._store(name, self.reader.read(binding.value))
        return name

    def _value(self, op: pb.Operation, parameter: str) -> Any:
        """Value of a constant operand; None of a computed one."""
        if parameter in op.attributes:
            return self.reader.read(op.attributes[parameter]).value
        name = self._name(op, parameter)
        return None if name is None else self.raw.get(name)

    def _other(self, op: pb.Operation) -> None:
        names = [b.name for a in op.inputs.values() for b in a.arguments if b.name]
        self.tracker.other([o.name for o in op.outputs], names)

    def _compressed(self, op: pb.Operation) -> None:
        if op.type == _PALETTE:
            self._from_palette(op)
            return
        whole = op.type == _SHIFT_SCALE
        data = self._value(op, "data" if whole else "quantized_data")
        scale = np.asarray(self._value(op, "scale"))
        zero = self._value(op, "offset" if whole else "zero_point")
        axis = 0 if whole else int(np.asarray(self._value(op, "axis")))
        numbers = numbers_of(data, op.outputs[0].name)
        if whole:
            name = self._name(op, "data")
            numbers = replace(numbers, bits=8 if name is None else self.types[name].dtype.bits)
            scale = _each(scale, data.shape)
            zero = None if zero is None else _each(np.asarray(zero), data.shape)
        half = scale.dtype == np.float16
        numbers = dequantized(numbers, scale, zero, axis, half)
        self.tracker.store(op.outputs[0].name, numbers)

    def _from_palette(self, op: pb.Operation) -> None:
        places, palette, shape = (self._value(op, name) for name in ("indices", "lut", "shape"))
        palette = np.asarray(palette)
        if palette.size != max(palette.shape):
            raise ValueError(f"{op.outputs[0].name}: several palettes, or palettes of vectors, are not known")
        palette = palette.reshape(-1)
        if shape is not None:  # packed bits
            sizes = tuple(int(n) for n in np.asarray(shape))
            kind = {64: Dtype.UINT6, 16: Dtype.UINT4}[palette.size]
            places = unpack(np.asarray(places).reshape(-1), kind, math.prod(sizes)).reshape(sizes)
        self.tracker.store(op.outputs[0].name, from_palette(places, palette, op.outputs[0].name))

    def _kept(self, op: pb.Operation) -> None:
        source = self._name(op, "x")
        axes = self._value(op, "axes")
        self.tracker.keep(op.outputs[0].name, source, lambda v: _reshaped(v, op.type, axes))

    def on_transpose(self, op: pb.Operation) -> None:
        order = self._value(op, "perm")
        self.tracker.rearrange(op.outputs[0].name, self._name(op, "x"), lambda v: v.transpose(order))

    def on_quantize(self, op: pb.Operation) -> None:
        """Follow an activation into 8 bits."""
        self.on_dequantize(op)
        scale, zero = (self._value(op, name) for name in ("scale", "zero_point"))
        if scale is not None and np.size(scale) == 1:
            ends = (0, 255) if self._value(op, "output_dtype") == "uint8" else (-128, 127)
            self.tracker.limit(op.outputs[0].name, range_of(np.asarray(scale), 0 if zero is None else zero, ends))

    def on_dequantize(self, op: pb.Operation) -> None:
        self.tracker.keep(op.outputs[0].name, self._name(op, "input"))

    def on_gather(self, op: pb.Operation) -> None:
        if np.asarray(self._value(op, "axis")).any():
            self._other(op)
        else:
            self.tracker.lookup(op.outputs[0].name, self._name(op, "x"), self._name(op, "indices"))

    def on_linear(self, op: pb.Operation) -> None:
        out = op.outputs[0].name
        self.tracker.product(out, self._name(op, "x"), self._name(op, "weight"), self._name(op, "bias"))

    on_conv = on_linear

    def on_matmul(self, op: pb.Operation) -> None:
        right = self._name(op, "y")
        if right is None or self.tracker.stored(right) is None or _set(self._value(op, "transpose_x")):
            self._other(op)
        else:
            turned = not _set(self._value(op, "transpose_y"))
            self.tracker.product(op.outputs[0].name, self._name(op, "x"), right, turned=turned)

    def on_add(self, op: pb.Operation) -> None:
        self.tracker.add(op.outputs[0].name, self._name(op, "x"), self._name(op, "y"))

    def on_mul(self, op: pb.Operation) -> None:
        self.tracker.multiply(op.outputs[0].name, self._name(op, "x"), self._name(op, "y"))

    def on_layer_norm(self, op: pb.Operation) -> None:
        out = op.outputs[0].name
        self.tracker.other([out], [self._name(op, "x")])
        for parameter, change in (("gamma", self.tracker.multiply), ("beta", self.tracker.add)):
            name = self._name(op, parameter)
            if name is not None:
                change(out, out, name)


def _each(values: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """The numbers of blocks, once for each number of a block."""
    for axis, (have, want) in enumerate(zip(values.shape, shape, strict=True)):
        if 1 < have < want:
            values = np.repeat(values, want // have, axis)
    return values


def _set(value: Any) -> bool:
    return value is not None and bool(np.asarray(value).any())


def _reshaped(value: NDArray[Any], kind: str, axes: Any) -> NDArray[Any]:
    places = () if axes is None else tuple(int(a) for a in np.asarray(axes).reshape(-1))
    if kind == "expand_dims":
        return np.expand_dims(value, places)
    return np.squeeze(value, places or None) if kind == "squeeze" else value
