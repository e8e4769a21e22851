"""The Core ML format: packages with listed lengths, in fp16 or fp32, checked by the project's evaluator without a Mac.

`CoremlPlace` exports, checks and describes the packages of a run. `_ConstantReader` lists the constants of a package
for the gate that compares stored numbers (`pocketbert.pipeline.gates.stored`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.benchmarks.imported.mac import MAC_SCRIPT_NAME, mac_script
from pocketbert.core.artefacts import Artefacts, Kind, Requirements
from pocketbert.core.compare.evaluate import worst_difference
from pocketbert.core.compare.golden import GoldenRow
from pocketbert.core.model_files import LABEL_OUTPUT, SCORES_OUTPUT
from pocketbert.core.models.folder import ModelFolder
from pocketbert.core.predict.predictor import feed
from pocketbert.core.predict.scores import apply_score_function
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.tasks import TaskName
from pocketbert.core.types import Format, Layout, Scheme, Shapes
from pocketbert.pipeline.formats.base import (
    Extras,
    FormatPlace,
    ModelFile,
    RunModel,
    cut_lengths,
    describe_model,
    producer_name,
)
from pocketbert.pipeline.formats.constants import (
    Constant,
    ConstantTracker,
    dequantize,
    integer_range,
    read_palettized_tensor,
    read_tensor,
)
from pocketbert.pipeline.formats.snippets import swift
from pocketbert.pipeline.formats.snippets.parts import (
    TOKENIZER_FILE,
    Offer,
    Platform,
    describe_tokenizer,
    input_lengths,
    offered_file,
)
from pocketbert.pipeline.results import Gate, Subject, skipped_gate_without_reader
from pocketbert.runtime.coreml.kernels.constexpr import CONSTEXPR_PREFIX
from pocketbert.runtime.coreml.package import OPSETS, read_package
from pocketbert.runtime.coreml.types import LARGEST_FP16, Budget, Dtype
from pocketbert.runtime.coreml.weights import Constant as Stored
from pocketbert.runtime.coreml.weights import ConstantReader, unpack_bits

if TYPE_CHECKING:
    from torch import nn

    from pocketbert.runtime.coreml.proto import mlpackage_pb2 as pb
    from pocketbert.runtime.coreml.scan import Scan


_MAC_SCRIPT = f"{Format.COREML}/{MAC_SCRIPT_NAME}"
_LAYOUT_NOTE = "pocketbert.layout"
"""Entry of a package's metadata with its layout."""
_SCANNED_ROWS = 6
"""Golden rows, from the shortest to the longest, on which every intermediate result is checked for overflow."""
_SCANNED_AGAIN = 3
"""The first of these, for a quantized package, whose results are those of the exported one but for rounding."""
_OLDEST = 16
"""Oldest iOS version that packages can be exported for."""
_PROBABILITY_ERROR = 2e-3
"""How far a probability may be from its logit's: softmax rounded to fp16 is within 1e-3."""


class CoremlPlace(FormatPlace):
    """Core ML in the pipeline: exports and checks a run's packages, and describes them on the model card."""

    format = Format.COREML
    timing = f"`python3 {_MAC_SCRIPT}` measures it on a Mac"

    def exported_scheme(self, recipe: Recipe) -> Scheme:
        """Return the precision that the recipe chooses for exported packages: fp16 or fp32."""
        return recipe.export.coreml.precision

    def layout(self, recipe: Recipe) -> Layout:
        """Return the memory layout of activations that the recipe chooses: plain, or that of the Neural Engine."""
        return recipe.export.coreml.layout

    def settings(self, recipe: Recipe) -> dict[str, object]:
        """Return the settings that decide packages: ``export.coreml``, and the name and description inside them."""
        section = recipe.export.coreml.model_dump(mode="json")
        return {"export": {"coreml": section}, "name": recipe.name, "description": recipe.description}

    def lengths(self, recipe: Recipe, file: ModelFile, length: int) -> list[int]:
        """Return a package's input lengths: with fixed shapes the recipe's longest, else the recipe's and the model's."""
        if recipe.export.coreml.lengths is Shapes.FIXED:
            return cut_lengths(recipe, length)[-1:]
        return super().lengths(recipe, file, length)

    def write(self, model: RunModel, module: nn.Module, file: ModelFile, destination: Path) -> None:
        """Export the module to a Core ML package with labels, task, family and origin in its metadata."""
        from pocketbert.export import coreml

        recipe, folder, labels = model.recipe, model.folder, model.labels
        settings = recipe.export.coreml
        form = coreml.CoremlForm(settings.ios, settings.lengths, settings.precision)
        notes = {
            "pocketbert.task": model.task.name.value,
            "pocketbert.family": folder.family.name,
            _LAYOUT_NOTE: settings.layout.value,
            "pocketbert.labels": json.dumps(labels, ensure_ascii=False),
        }
        info = coreml.CoremlInfo(
            description=describe_model(recipe, folder, model.task),
            version=f"{recipe.name} {folder.sha256[:12]}",
            author=producer_name(),
            license=folder.licence,
            labels=labels,
            notes=tuple(notes.items()),
        )
        lengths = self.lengths(recipe, file, model.length)
        coreml.export(module, folder.family, model.task, lengths, destination, form, info)

    def gates(self, subject: Subject, rows: Sequence[GoldenRow]) -> list[Gate]:
        """Return the gates on a package: overflow in fp16 and, for a classifier, label names and predicted label.

        If the package that reads Core ML files is not installed, the only gate is a skipped one.
        """
        unread = skipped_gate_without_reader(subject, "overflow")
        if unread is not None:
            return [unread]
        from pocketbert.runtime.coreml.scan import overflow_scan

        names = subject.predictor.inputs
        encoded = subject.tokenizer.encode([r.input for r in rows])
        by_length = sorted(encoded, key=len)
        places = np.linspace(0, len(encoded) - 1, _SCANNED_ROWS)[: None if subject.exported else _SCANNED_AGAIN]
        chosen = [by_length[i] for i in dict.fromkeys(places.round().astype(int))]
        batches = [feed(subject.predictor, subject.tokenizer, [e]) for e in chosen]
        inputs = [{n: b[n].astype(np.float32 if b[n].dtype.kind == "f" else np.int32) for n in names} for b in batches]
        scan = overflow_scan(subject.path, inputs)
        gates = [_check_overflow(subject, scan)]
        if subject.task.name is TaskName.TEXT_CLASSIFICATION:
            gates = [_check_labels(subject), _check_classifier(subject, scan), *gates]
        return gates

    def constants(self, path: Path) -> list[list[Constant]]:
        """Return a list with one entry: the constants of the package's program, in the order of their use."""
        return [_ConstantReader(path).run()]

    def layout_of(self, path: Path) -> Layout:
        """Read the memory layout of activations from a package's metadata; plain if it has no such entry."""
        notes = read_package(path).model.description.metadata.userDefined
        return Layout(notes[_LAYOUT_NOTE]) if _LAYOUT_NOTE in notes else Layout.PLAIN

    def notes(self, recipe: Recipe) -> list[str]:
        """Return notes for card and report: what was not checked without a Mac, and that the layout `ane` was not timed.

        The first is left out where Core ML itself runs, the second without that layout.
        """
        notes = []
        if not self.info.timed:
            from pocketbert.runtime.coreml import EVALUATOR_LIMITS

            notes.append(
                f"Core ML packages were checked by the project's evaluator, without a Mac. {' '.join(EVALUATOR_LIMITS)} "
                f"`{_MAC_SCRIPT}` checks and times them on one."
            )
        if recipe.export.coreml.layout is Layout.ANE:
            notes.append(
                "Core ML layout `ane`: same answers as the plain layout; whether it is faster was not measured."
            )
        return notes

    def processing(self, artefacts: Artefacts) -> list[str]:
        """Return the model card's line on Core ML: inputs, the lengths that the packages take, and outputs."""
        record = offered_file(artefacts, self.format)
        if record is None or not record.signature:
            return []
        known = ", ".join(map(str, input_lengths(record)))
        outputs = ", ".join(f"`{o.name}`" for o in record.signature.outputs)
        answer = (
            "A classifier answers with `classLabel`, `classLabel_probs` and `logits`."
            if artefacts.task is TaskName.TEXT_CLASSIFICATION
            else f"Outputs: {outputs}."
        )
        most = artefacts.processing.max_length
        shapes = f"lengths {known}: pad to the next one" if known else f"any length up to {most}"
        return [f"Core ML: int32 inputs [1, length]; {shapes}. {answer}"]

    def minimum(self, file: ModelFile, path: Path) -> Requirements | None:
        """Return the oldest iOS version that opens a package, by the set of operations that the package names."""
        opset = read_package(path).opset
        return Requirements(ios=opset + 10 if opset < max(OPSETS.values()) else 26)

    def offers(self, artefacts: Artefacts) -> list[Offer]:
        """Return what an iOS app needs to run the folder's package: files, iOS version, Swift code and notes.

        The list is empty if the folder has no package.
        """
        record = offered_file(artefacts, self.format)
        if record is None:
            return []
        ios = record.minimum.ios if record.minimum is not None else None
        older = f"`pocketbert export --ios {_OLDEST}` (recipe: `export.coreml.ios`) makes a package for older systems."
        return [
            Offer(
                platform=Platform.IOS,
                record=record,
                beside=(TOKENIZER_FILE,),
                needs=f"iOS {ios}" if ios is not None else "iOS 18, unless it was exported with `--ios`",
                tokenizer=describe_tokenizer(artefacts, "Swift"),
                dependencies=(),
                snippet=swift.coreml(artefacts, record),
                notes=(
                    "Checked by this project's evaluator, never by Core ML: no Mac was available.",
                    *([older] if ios is not None and ios > _OLDEST else []),
                ),
            )
        ]

    def snippets(self, artefacts: Artefacts) -> list[str]:
        """Return an empty list, since the table of the card has a row for iOS."""
        return []

    def pack(self, files: Sequence[ModelFile], folder: ModelFolder, destination: Path) -> Extras:
        """Write a Python script into the folder; run on a Mac, it checks and times the packages."""
        (destination / _MAC_SCRIPT).write_text(mac_script(), encoding="utf-8")
        return Extras(kinds={_MAC_SCRIPT: Kind.TOOL})


# --- gates ------------------------------------------------------------------------------------------------------------


def _check_labels(subject: Subject) -> Gate:
    """Check that the label names inside a package are those of the folder."""
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


def _check_classifier(subject: Subject, scan: Scan) -> Gate:
    """Check that a package's probabilities are those of its logits, and its label the most probable one.

    Apps read label and probabilities, and all other gates read the logits. `scan` holds the package's outputs on golden
    rows.
    """
    differences, wrong = list[float](), 0
    for out in scan.outputs:
        expected = apply_score_function(np.asarray(out[subject.output], np.float32)[0], subject.task.score)
        table, label = out.get(SCORES_OUTPUT), out.get(LABEL_OUTPUT)
        reported = np.array(list(table.values()) if isinstance(table, dict) else [])
        differences.append(worst_difference(reported, expected))  # NaN where there are more or fewer
        wrong += not (isinstance(table, dict) and label == max(table, key=lambda k: table[k]))
    worst = float(np.max(differences))  # keeps a NaN
    passed = worst <= _PROBABILITY_ERROR and not wrong
    return Gate(
        name="classifier",
        file=subject.name,
        passed=passed,
        value=worst,
        bound=_PROBABILITY_ERROR,
        detail=f"`{SCORES_OUTPUT}` differs from the logits' probabilities by {worst:.2g}, `{LABEL_OUTPUT}` is another label "
        f"than the most probable one in {wrong} of {scan.rows} golden rows.",
    )


def _check_overflow(subject: Subject, scan: Scan) -> Gate:
    """Check that no intermediate result on golden rows is too large for its number type, such as fp16."""
    largest = scan.largest.largest if scan.largest else 0.0
    return Gate(
        name="overflow",
        file=subject.name,
        passed=scan.first is None,
        value=largest,
        bound=float(LARGEST_FP16),
        detail=f"{scan.summary}; {scan.rows} golden rows, every operation.",
    )


# --- constants --------------------------------------------------------------------------------------------------------

_SHAPE_OPERATIONS = ("cast", "expand_dims", "squeeze")
_SHIFT_SCALE = f"{CONSTEXPR_PREFIX}blockwise_shift_scale"
_PALETTE = f"{CONSTEXPR_PREFIX}lut_to_dense"
_AFFINE = f"{CONSTEXPR_PREFIX}affine_dequantize"


class _ConstantReader:
    """Lists the constants of a Core ML program with a `ConstantTracker`.

    The method ``on_matmul`` reports operations of type ``matmul`` to it, and so on.

    Args:
        path: The package.
    """

    def __init__(self, path: Path) -> None:
        package = read_package(path)
        self.block, self.tracker = package.block, ConstantTracker()
        self.reader = ConstantReader(package, Budget(str(path)))
        self.raw: dict[str, Any] = {}
        self.types: dict[str, Any] = {}

    def run(self) -> list[Constant]:
        """Report every operation of the program to the tracker, and return the constants in the order of their use."""
        for op in self.block.operations:
            handler = getattr(self, f"on_{op.type}", None)
            if op.type == "const":
                self._store(op.outputs[0].name, self.reader.read(op.attributes["val"]))
            elif op.type in (_SHIFT_SCALE, _AFFINE):
                self._store_dequantized(op)
            elif op.type == _PALETTE:
                self._store_palettized(op)
            elif op.type in _SHAPE_OPERATIONS:
                self._follow_shape_operation(op)
            elif handler is not None:
                handler(op)
            else:
                self._other(op)
        return self.tracker.finish(self.block.outputs)

    def _follow_shape_operation(self, op: pb.Operation) -> None:
        """Report a ``cast``, ``expand_dims`` or ``squeeze`` to the tracker. A constant is stored with its new shape."""
        source, axes = self._name(op, "x"), self._value(op, "axes")
        self.tracker.keep(op.outputs[0].name, source, lambda v: _reshape(v, op.type, axes))

    def _store(self, name: str, constant: Stored) -> None:
        """Store the value and type of a constant under a name, and pass an array to the tracker too."""
        value = self.raw[name] = constant.value
        self.types[name] = constant.type
        if isinstance(value, np.ndarray):
            self.tracker.store(name, read_tensor(value, name))

    def _name(self, op: pb.Operation, parameter: str) -> str | None:
        """Return the name of an operation's operand; None if the operand is missing.

        If the value stands in the operation itself, it is stored as a constant under a new name.
        """
        if parameter not in op.inputs:
            return None
        [binding] = op.inputs[parameter].arguments
        if binding.WhichOneof("binding") == "name":
            return str(binding.name)
        name = f"{op.outputs[0].name}.{parameter}"
        self._store(name, self.reader.read(binding.value))
        return name

    def _value(self, op: pb.Operation, parameter: str) -> Any:
        """Return the value of a constant operand; None if the operand is computed or missing."""
        if parameter in op.attributes:
            return self.reader.read(op.attributes[parameter]).value
        name = self._name(op, parameter)
        return None if name is None else self.raw.get(name)

    def _other(self, op: pb.Operation) -> None:
        """Report an operation as unknown: the constants that it reads count as used, its result as computed data."""
        names = [b.name for a in op.inputs.values() for b in a.arguments if b.name]
        self.tracker.other([o.name for o in op.outputs], names)

    def _store_dequantized(self, op: pb.Operation) -> None:
        """Dequantize a tensor of integers and store the result as a constant.

        Scales are per block in packages for iOS 18, and per axis in those for older systems.
        """
        in_blocks, out = op.type == _SHIFT_SCALE, op.outputs[0].name
        data = self._value(op, "data" if in_blocks else "quantized_data")
        scale = np.asarray(self._value(op, "scale"))
        zero = self._value(op, "offset" if in_blocks else "zero_point")
        axis = 0 if in_blocks else int(np.asarray(self._value(op, "axis")))
        tensor = read_tensor(data, out)
        if in_blocks:
            name = self._name(op, "data")
            tensor = replace(tensor, bits=8 if name is None else self.types[name].dtype.bits)
            scale = _repeat_blocks(scale, data.shape)
            zero = None if zero is None else _repeat_blocks(np.asarray(zero), data.shape)
        self.tracker.store(out, dequantize(tensor, scale, zero, axis, half=scale.dtype == np.float16))

    def _store_palettized(self, op: pb.Operation) -> None:
        """Replace a tensor's palette indices by the entries of its palette, and store the result as a constant.

        Raises:
            ValueError: If there are several palettes, palettes of vectors, or packed indices of other than 4 or 6 bits.
        """
        indices, palette, shape = (self._value(op, name) for name in ("indices", "lut", "shape"))
        palette = np.asarray(palette)
        if palette.size != max(palette.shape):
            raise ValueError(f"{op.outputs[0].name}: several palettes, or palettes of vectors, are not known")
        palette = palette.reshape(-1)
        if shape is not None:  # packed bits
            sizes = tuple(int(n) for n in np.asarray(shape))
            kind = {64: Dtype.UINT6, 16: Dtype.UINT4}.get(palette.size)
            if kind is None:
                raise ValueError(f"{op.outputs[0].name}: packed palettes of {palette.size} numbers are not known")
            indices = unpack_bits(np.asarray(indices).reshape(-1), kind, math.prod(sizes)).reshape(sizes)
        self.tracker.store(op.outputs[0].name, read_palettized_tensor(indices, palette, op.outputs[0].name))

    def on_transpose(self, op: pb.Operation) -> None:
        """Report a ``transpose`` to the tracker, with its order of axes."""
        order = self._value(op, "perm")
        self.tracker.rearrange(op.outputs[0].name, self._name(op, "x"), lambda v: v.transpose(order))

    def on_dequantize(self, op: pb.Operation) -> None:
        """Report a ``dequantize`` of an activation to the tracker. Its result counts as its input, unchanged."""
        self.tracker.keep(op.outputs[0].name, self._name(op, "input"))

    def on_quantize(self, op: pb.Operation) -> None:
        """Report the quantization of an activation to the tracker, with the range that its integers cover.

        The range is reported only if there is a single scale.
        """
        self.on_dequantize(op)
        scale, zero = (self._value(op, name) for name in ("scale", "zero_point"))
        if scale is not None and np.size(scale) == 1:
            ends = (0, 255) if self._value(op, "output_dtype") == "uint8" else (-128, 127)
            stored = integer_range(np.asarray(scale), 0 if zero is None else zero, ends)
            self.tracker.set_range(op.outputs[0].name, stored)

    def on_clip(self, op: pb.Operation) -> None:
        """Report a ``clip`` to the tracker, with the ends of its interval."""
        low, high = (float(self._value(op, name)) for name in ("alpha", "beta"))
        self.tracker.clip(op.outputs[0].name, self._name(op, "x"), low, high)

    def on_gather(self, op: pb.Operation) -> None:
        """Report a ``gather`` to the tracker: along axis 0 as a lookup of rows, else as an unknown operation."""
        if np.asarray(self._value(op, "axis")).any():
            self._other(op)
        else:
            self.tracker.lookup(op.outputs[0].name, self._name(op, "x"), self._name(op, "indices"))

    def on_linear(self, op: pb.Operation) -> None:
        """Report a ``linear`` or ``conv`` to the tracker as data times a matrix, plus an offset if it has one."""
        out = op.outputs[0].name
        self.tracker.product(out, self._name(op, "x"), self._name(op, "weight"), self._name(op, "bias"))

    on_conv = on_linear

    def on_matmul(self, op: pb.Operation) -> None:
        """Report a ``matmul`` to the tracker: as a product if its right operand is stored, else as unknown.

        One that transposes its left operand is reported as unknown too.
        """
        right = self._name(op, "y")
        if right is None or self.tracker.stored(right) is None or self._is_set(op, "transpose_x"):
            self._other(op)
        else:
            transposed = not self._is_set(op, "transpose_y")
            self.tracker.product(op.outputs[0].name, self._name(op, "x"), right, transposed=transposed)

    def _is_set(self, op: pb.Operation, parameter: str) -> bool:
        """Return whether a parameter of an operation is a constant other than false or zero."""
        value = self._value(op, parameter)
        return value is not None and bool(np.asarray(value).any())

    def on_add(self, op: pb.Operation) -> None:
        """Report an ``add`` to the tracker as a sum of two values."""
        self.tracker.add(op.outputs[0].name, self._name(op, "x"), self._name(op, "y"))

    def on_mul(self, op: pb.Operation) -> None:
        """Report a ``mul`` to the tracker as an elementwise product of two values."""
        self.tracker.multiply(op.outputs[0].name, self._name(op, "x"), self._name(op, "y"))

    def on_layer_norm(self, op: pb.Operation) -> None:
        """Report a layer norm to the tracker as three operations: the normalization, then gamma and beta.

        The normalization counts as unknown, gamma as a factor and beta as an offset per channel.
        """
        out = op.outputs[0].name
        self.tracker.other([out], [self._name(op, "x")])
        for parameter, follow in (("gamma", self.tracker.multiply), ("beta", self.tracker.add)):
            name = self._name(op, parameter)
            if name is not None:
                follow(out, out, name)


def _repeat_blocks(values: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Repeat each block's scale or zero point for every number of the block. Axes of size 1 stay, to broadcast."""
    for axis, (have, want) in enumerate(zip(values.shape, shape, strict=True)):
        if 1 < have < want:
            values = np.repeat(values, want // have, axis)
    return values


def _reshape(value: NDArray[Any], kind: str, axes: Any) -> NDArray[Any]:
    """Return a constant after a ``cast`` (unchanged), ``expand_dims`` or ``squeeze`` along `axes`."""
    places = () if axes is None else tuple(int(a) for a in np.asarray(axes).reshape(-1))
    if kind == "expand_dims":
        return np.expand_dims(value, places)
    return np.squeeze(value, places or None) if kind == "squeeze" else value
