"""The TFLite format: one signature per length, opened by LiteRT, older TFLite runtimes and MediaPipe Tasks.

`TflitePlace` exports, checks and describes the files of a run. MediaPipe's file holds tokenizer and labels inside,
and its own tokenizer splits some texts otherwise: `measure_tokenizer_effect` measures how often. `_FileReader` and
`_GraphReader` list the constants of a file for the gate that compares stored numbers
(`pocketbert.pipeline.gates.stored`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from pocketbert.core.artefacts import Artefacts, ModelRecord, Requirements
from pocketbert.core.compare.golden import GoldenRow
from pocketbert.core.compare.sample_texts import ASCII_SENTENCES, UNICODE_SENTENCES
from pocketbert.core.families import TEXT_ONLY
from pocketbert.core.host.system import version_of
from pocketbert.core.model_files import load_model, tflite_schema, unpack_int4
from pocketbert.core.predict.inputs import Encoded
from pocketbert.core.predict.predictor import join_texts, run_rows
from pocketbert.core.predict.sentence_settings import DEFAULT_POOLING, read_pooling
from pocketbert.core.predict.tokenization import TextTokenizer, read_padding_side, read_truncation_side
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.tasks import Task, TaskName
from pocketbert.core.types import Client, Format, Provenance, Runtime, Scheme
from pocketbert.pipeline.formats.base import (
    FormatPlace,
    ModelFile,
    RunModel,
    cut_lengths,
    describe_model,
    describe_required_engines,
    oldest_engine,
    producer_name,
)
from pocketbert.pipeline.formats.constants import (
    Constant,
    ConstantTracker,
    StoredTensor,
    dequantize,
    integer_range,
    read_tensor,
)
from pocketbert.pipeline.formats.snippets import kotlin, python
from pocketbert.pipeline.formats.snippets.parts import (
    CHECKED_SCHEMES,
    TOKENIZER_FILE,
    Offer,
    Platform,
    describe_tokenizer,
    input_lengths,
    offered_file,
    pip_requirement,
)
from pocketbert.pipeline.results import Gate, Subject, skipped_gate_without_reader
from pocketbert.runtime.engines import open_file

if TYPE_CHECKING:
    from torch import nn

MEDIAPIPE_FILE = "tflite/mediapipe.tflite"
_SELF_TEST = "An app should check a row of `selftest.json` when it starts."
_WRONG = "gives wrong answers without an error"
_LIMITS = {
    Scheme.INT8: f"For LiteRT only: TFLite up to 2.16 opens it and {_WRONG}. {_SELF_TEST}",
    Scheme.A8W8: f"For LiteRT only: TFLite 2.14 opens it and {_WRONG}. {_SELF_TEST}",
    Scheme.SMALL: f"For LiteRT 1.4 or newer: LiteRT 1.3 {_WRONG}, TFLite 2.14 fails when it runs it. {_SELF_TEST}",
    Scheme.W4: f"Needs LiteRT 2.1 or newer, not the version named here: LiteRT 1.3 to 2.0 {_WRONG}, TFLite 2.14 fails when it runs it. {_SELF_TEST}",
}
"""Notes of the card on files that older runtimes cannot compute."""


class TflitePlace(FormatPlace):
    """TFLite in the pipeline: exports a run's files, MediaPipe's among them, and describes them on the model card."""

    format = Format.TFLITE

    def settings(self, recipe: Recipe) -> dict[str, object]:
        """Return the recipe settings that decide TFLite files: clients, name and description (in MediaPipe's file)."""
        return {"export": {"clients": recipe.export.clients}, "name": recipe.name, "description": recipe.description}

    def clients(self, recipe: Recipe, weights: Path) -> list[Client]:
        """Return MediaPipe if the recipe asks for its file and MediaPipe can run the model, else an empty list."""
        is_asked_for = Client.MEDIAPIPE in recipe.export.clients
        return [Client.MEDIAPIPE] if is_asked_for and _mediapipe_refusal(recipe, weights) is None else []

    def absent(self, recipe: Recipe, weights: Path) -> dict[str, str]:
        """Map the path of MediaPipe's file to the reason why there is none; empty if the folder has the file."""
        if Client.MEDIAPIPE not in recipe.export.clients:
            return {MEDIAPIPE_FILE: "The recipe asked for no file for MediaPipe (export.clients)."}
        reason = _mediapipe_refusal(recipe, weights)
        return {MEDIAPIPE_FILE: reason} if reason else {}

    def lengths(self, recipe: Recipe, file: ModelFile, length: int) -> list[int]:
        """Return a file's input lengths: MediaPipe's has the recipe's longest only, others those of `FormatPlace`."""
        if file.client is Client.MEDIAPIPE:
            return cut_lengths(recipe, length)[-1:]
        return super().lengths(recipe, file, length)

    def write(self, model: RunModel, module: nn.Module, file: ModelFile, destination: Path) -> None:
        """Export a module to a TFLite file with a signature for each length.

        MediaPipe's file has one length, and holds tokenizer and labels.
        """
        from pocketbert.export import tflite

        family, task = model.folder.family, model.task
        lengths = self.lengths(model.recipe, file, model.length)
        if file.client is Client.MEDIAPIPE:
            tflite.export_mediapipe(module, family, task, lengths[0], destination)
            self.finish(model, file, destination)
        else:
            tflite.export(module, family, task, lengths, destination)

    def finish(self, model: RunModel, file: ModelFile, path: Path) -> None:
        """Write tokenizer and labels into MediaPipe's file, of which exporter and quantizer write the graph only."""
        if file.client is Client.MEDIAPIPE:
            _write_mediapipe_data(model, path)

    def gates(self, subject: Subject, rows: Sequence[GoldenRow]) -> list[Gate]:
        """Return the gate on the metadata in MediaPipe's file, or on the operators that an accelerator does not run.

        Other files have no gate of this format.
        """
        if subject.runtime is not None and subject.runtime.accelerator:
            return [skipped_gate_without_reader(subject, "placement") or _check_placement(subject)]
        return [_check_metadata(subject)] if subject.client is Client.MEDIAPIPE else []

    def constants(self, path: Path) -> list[list[Constant]]:
        """Return the constants of each signature of a TFLite file, in the order in which its graph uses them."""
        return _FileReader(load_model(path.read_bytes())).run()

    def file_notes(self, model: RunModel) -> dict[str, str]:
        """Return a sentence on how often MediaPipe's tokenizer gives other tokens, by the path of MediaPipe's files."""
        return {
            f.path: measure_tokenizer_effect(model.source(f), model.weights, model.task).summary
            for f in model.files
            if f.client is Client.MEDIAPIPE
        }

    def processing(self, artefacts: Artefacts) -> list[str]:
        """Return the model card's lines on TFLite files: the lengths of signatures and the engines that they need.

        The list is empty without a TFLite file for any client and runtime.
        """
        record = offered_file(artefacts, self.format)
        if record is None or not record.signature:
            return []
        known = ", ".join(map(str, input_lengths(record)))
        return [
            f"TFLite: int32 inputs [1, length], one signature `seq_LENGTH` each for {known} tokens; pad to the next one.",
            "Files in int8 and 4 bits without a runtime in their names are for LiteRT (ai-edge-litert; checked with the version "
            "in `artifacts.json`), not for TFLite up to 2.16. PocketBERT checks golden rows before first use.",
            *describe_required_engines([r for r in artefacts.models() if r.format is self.format]),
        ]

    def minimum(self, file: ModelFile, path: Path) -> Requirements | None:
        """Return the oldest LiteRT that was measured to compute files of this scheme correctly; None if none was.

        For files made for one client or runtime none was measured.
        """
        engine = oldest_engine(self.format, file.scheme) if file.plain else None
        return Requirements(engine=engine) if engine is not None else None

    def offers(self, artefacts: Artefacts) -> list[Offer]:
        """Return the TFLite rows of the card's table of platforms: MediaPipe and LiteRT on Android, and Python."""
        offers, record = [], offered_file(artefacts, self.format)
        mediapipe = offered_file(artefacts, self.format, Client.MEDIAPIPE, CHECKED_SCHEMES)
        if mediapipe is not None:
            offers.append(_mediapipe_offer(artefacts, mediapipe))
        if record is not None:
            offers += [_android_offer(artefacts, record), _python_offer(artefacts, record)]
        return offers

    def snippets(self, artefacts: Artefacts) -> list[str]:
        """Return an empty list, since every client that opens a TFLite file has a row in the table of the card."""
        return []


# --- MediaPipe --------------------------------------------------------------------------------------------------------

_SAME = 1e-5


class TokenizerEffect(BaseModel):
    """How often MediaPipe's tokenizer gives the model other tokens than those that it was trained on.

    Attributes:
        sentences: Number of sentences with accents, other scripts and emoji that were tried.
        ids: Share of these sentences with other ids.
        scores: Share of these sentences whose probabilities (of embedders: vectors) differ by more than 1e-5.
        labels: Share of these sentences with another most probable label; None for embedders.
        ascii: Share of plain ASCII sentences with other ids; 0 if all is well.
    """

    sentences: int
    ids: float
    scores: float
    labels: float | None
    ascii: float

    @property
    def summary(self) -> str:
        """Sentence for the model card on how often MediaPipe's tokenizer gives other tokens and other answers."""
        answers = (
            f"{self.scores:.0%} other vectors"
            if self.labels is None
            else f"{self.scores:.0%} other probabilities and {self.labels:.0%} another label"
        )
        return (
            f"Its built-in tokenizer keeps accents and lower-cases A-Z only: of {self.sentences} sentences with accents, other "
            f"scripts and emoji {self.ids:.0%} get other tokens, {answers} than with `tokenizer.json`; of {len(ASCII_SENTENCES)} ASCII sentences {self.ascii:.0%} get other tokens "
            "(by an emulation of that tokenizer, which the project's tests compare with MediaPipe itself)."
        )


def measure_tokenizer_effect(file: Path, weights: Path, task: Task) -> TokenizerEffect:
    """Measure, by an emulation of MediaPipe's tokenizer, how often it changes the token ids and answers of a file.

    Args:
        file: A TFLite file for MediaPipe.
        weights: Folder with tokenizer.json and vocab.txt.
        task: The task of the model.
    """
    from pocketbert.export.mediapipe import MediaPipeTokenizer

    predictor = open_file(file, Format.TFLITE)
    length = max(predictor.lengths)
    own, mediapipe = TextTokenizer(weights, length), MediaPipeTokenizer(weights, length)

    # an app puts the default prompt in front itself, as the card's code does
    def tokenize(sentences: Sequence[str]) -> list[tuple[Encoded, Encoded]]:
        """Return the rows of both tokenizers for each sentence."""
        return list(zip(own.encode(sentences), mediapipe.encode(own.prompts.put_before(sentences)), strict=True))

    def differ(rows: Sequence[tuple[Encoded, Encoded]]) -> list[tuple[Encoded, Encoded]]:
        """Return the rows in which the two tokenizers give different token ids."""
        return [(ours, theirs) for ours, theirs in rows if not np.array_equal(ours.ids, theirs.ids)]

    pairs = tokenize(UNICODE_SENTENCES)
    other, count = differ(pairs), len(pairs)
    # each tokenizer pads on its own side, MediaPipe always on the right: only there equal ids have equal answers
    run = pairs if own.padding_side == "left" else other
    changed, relabelled = 0, 0
    if run:
        before, after = (
            join_texts(run_rows(predictor, tokenizer, [pair[i] for pair in run], task)).astype(np.float64)
            for i, tokenizer in enumerate((own, mediapipe))
        )
        changed = int((np.abs(before - after).max(-1) > _SAME).sum())
        relabelled = int((before.argmax(-1) != after.argmax(-1)).sum())
    return TokenizerEffect(
        sentences=count,
        ids=len(other) / count,
        scores=changed / count,
        labels=relabelled / count if task.names_labels else None,
        ascii=len(differ(tokenize(ASCII_SENTENCES))) / len(ASCII_SENTENCES),
    )


def _write_mediapipe_data(model: RunModel, path: Path) -> None:
    """Write vocabulary, labels and description into the metadata of a TFLite file for MediaPipe."""
    from pocketbert.export.mediapipe import read_vocabulary
    from pocketbert.export.tflite_metadata import MediaPipeInfo, write_metadata

    output = {}
    if model.task.name is TaskName.FEATURE_EXTRACTION:
        output = {"output": (read_pooling(model.weights) or DEFAULT_POOLING).title}
    info = MediaPipeInfo(
        name=model.recipe.name,
        description=describe_model(model.recipe, model.folder, model.task),
        version=f"made by {producer_name()}",
        author="",
        license=model.folder.licence,
        labels=model.labels,
        vocabulary=read_vocabulary(model.weights),
        **output,
    )
    path.write_bytes(write_metadata(path.read_bytes(), info))


def _mediapipe_refusal(recipe: Recipe, weights: Path) -> str | None:
    """Return a sentence on why MediaPipe Tasks cannot run a model correctly; None if they can."""
    from pocketbert.export.mediapipe import explain_refusal

    if recipe.export.form not in (None, TEXT_ONLY):
        return (
            f"MediaPipe Tasks give a file ids, mask and segments only; the form '{recipe.export.form}' has more inputs."
        )
    sources = (recipe.data.train, recipe.data.eval)
    pair = any(s is not None and s.text_pair is not None for s in sources)
    sides = read_padding_side(weights), read_truncation_side(weights)
    return explain_refusal(weights, recipe.task, pair, *sides)


# --- gates ------------------------------------------------------------------------------------------------------------


def _check_metadata(subject: Subject) -> Gate:
    """Check that vocabulary and labels inside MediaPipe's file are the folder's, and that its metadata fit the graph.

    The gate is skipped if a package that reads the file is not installed.
    """
    if version_of("flatbuffers") is None or version_of("ai-edge-litert") is None:
        detail = "not checked: ai-edge-litert and flatbuffers are not installed here."
        return Gate(name="metadata", file=subject.name, passed=True, skipped=True, detail=detail)
    from pocketbert.export.mediapipe import read_vocabulary
    from pocketbert.export.tflite_metadata import metadata_problems

    problems = metadata_problems(subject.path.read_bytes(), subject.labels, read_vocabulary(subject.folder))
    right = "vocabulary and labels inside the file are those of the folder, inputs are named in graph order."
    return Gate(name="metadata", file=subject.name, passed=not problems, detail=" ".join(problems) or right)


def _check_placement(subject: Subject) -> Gate:
    """Check that a file made for a GPU or NPU leaves no matrix products to the CPU.

    The gate's detail lists all operators that would be left to the CPU.
    """
    from pocketbert.quantize.tflite import gpu, npu

    if subject.runtime is Runtime.GPU:
        refusals = gpu.list_gpu_refusals(subject.path)
        on_cpu = [f"{r.count} {r.operator} ({r.reason})" for r in refusals]
        count, fails = sum(r.count for r in refusals), gpu.leaves_products(refusals)
        all_taken = "all operators are in the list of LiteRT's GPU delegate"
    else:
        floats = npu.count_float_operators(subject.path)
        on_cpu = [f"{n} {operator}" for operator, n in floats.most_common()]
        count, fails = floats.total(), npu.leaves_products(floats)
        all_taken = "all operators compute in integers of 8 and 16 bits"
    placement = f"stays on the CPU: {', '.join(on_cpu)}" if on_cpu else all_taken
    return Gate(
        name="placement",
        file=subject.name,
        passed=not fails,
        value=float(count),
        detail=f"{placement}. {Provenance.COMPILED_ONLY.value.capitalize()}: read from the graph, not run on the chip.",
    )


# --- offers -----------------------------------------------------------------------------------------------------------


def _mediapipe_offer(artefacts: Artefacts, record: ModelRecord) -> Offer:
    """Return what an Android app needs to run MediaPipe's file: Gradle lines, Kotlin code and notes."""
    return Offer(
        platform=Platform.ANDROID_SIMPLE,
        record=record,
        beside=(),
        needs="the minimum of MediaPipe Tasks",
        tokenizer="inside the file",
        dependencies=tuple(f'{line[:-2]}:VERSION")' for line in kotlin.gradle(kotlin.MEDIAPIPE)),
        snippet=kotlin.mediapipe(artefacts, record),
        notes=(
            f"Run with the Python package mediapipe {kotlin.MEDIAPIPE_PYTHON}; the library for Android is in Google's repository, "
            "which this project could not reach: take the newest version.",
        ),
    )


def _android_offer(artefacts: Artefacts, record: ModelRecord) -> Offer:
    """Return what an Android app needs to run a file with LiteRT: files, Gradle lines, Kotlin code and notes."""
    tried = f"`{pip_requirement(artefacts, 'ai-edge-litert')}` of Python was."
    return Offer(
        platform=Platform.ANDROID_LITERT,
        record=record,
        beside=(TOKENIZER_FILE,),
        needs=f"{kotlin.ANDROID}; LiteRT {kotlin.LITERT.rpartition(':')[2]}",
        tokenizer=describe_tokenizer(artefacts, "Kotlin"),
        dependencies=kotlin.gradle(kotlin.LITERT, kotlin.GSON),
        snippet=kotlin.litert(artefacts, record),
        notes=(
            *([_LIMITS[record.scheme]] if record.scheme in _LIMITS else []),
            f"The library for Android was never run by this project, {tried}",
        ),
    )


def _python_offer(artefacts: Artefacts, record: ModelRecord) -> Offer:
    """Return what a Python program needs to run a file with LiteRT: files, pip line and Python code."""
    engine, tokenizers = (pip_requirement(artefacts, name) for name in ("ai-edge-litert", "tokenizers"))
    return Offer(
        platform=Platform.PYTHON,
        record=record,
        beside=(TOKENIZER_FILE,),
        needs=engine.replace("==", " "),
        tokenizer=f"`tokenizers`, reads `{TOKENIZER_FILE}`",
        dependencies=(f"pip install {engine} {tokenizers} numpy",),
        snippet=python.litert(artefacts, record),
    )


# --- constants --------------------------------------------------------------------------------------------------------

_NUMBER_TYPES = ("float32", "float16", "int8", "uint8", "int4", "int16", "int32", "int64")
"""Types of stored tensors that are numbers."""
_WIDE_BITS = {"int16": 16, "int32": 32, "int64": 64}
"""Bits of quantized operands of norms and sums, and of offsets of products of 8 and of 16 bits."""
_ACTIVATION_ENDS = {"int8": (-128, 127), "int16": (-32767, 32767)}
"""Smallest and largest integer of an activation; 16 bits have zero in the middle."""


class _FileReader:
    """Reads the constants of a TFLite file, one graph (signature) after the other.

    Args:
        model: The parsed flatbuffer.
    """

    def __init__(self, model: Any) -> None:
        self.model, self.schema = model, tflite_schema()
        self.operators = {v: k for k, v in vars(self.schema.BuiltinOperator).items() if not k.startswith("_")}
        self.types = {v: k.lower() for k, v in vars(self.schema.TensorType).items() if not k.startswith("_")}
        self._tensors: dict[tuple[Any, ...], StoredTensor] = {}  # shared by signatures

    def run(self) -> list[list[Constant]]:
        """Return a list of constants for each graph (signature) of the file."""
        return [_GraphReader(self, graph).run() for graph in self.model.subgraphs]

    def operator_name(self, op: Any) -> str:
        """Return the name of an operator's type, such as ``FULLY_CONNECTED``; empty if the type is unknown."""
        code = self.model.operatorCodes[op.opcodeIndex]
        return str(self.operators.get(max(int(code.builtinCode), int(code.deprecatedBuiltinCode)), ""))

    def stored_tensor(self, graph: Any, tensor: Any) -> StoredTensor | None:
        """Return the dequantized numbers of a stored tensor; None if the tensor is computed or holds no numbers."""
        data = self.model.buffers[tensor.buffer].data
        kind = self.types.get(tensor.type, "")
        if data is None or not len(data) or kind not in _NUMBER_TYPES:
            return None
        shape = tuple(int(n) for n in tensor.shape) if tensor.shape is not None else ()
        quantization = tensor.quantization
        has_scale = quantization is not None and quantization.scale is not None
        scale = np.asarray(quantization.scale, np.float32) if has_scale else np.zeros(0, np.float32)
        key = (tensor.buffer, shape, scale.tobytes() if has_scale else None)
        if key in self._tensors:
            return self._tensors[key]
        name = tensor.name.decode(errors="replace") if isinstance(tensor.name, bytes) else str(tensor.name)
        stored = read_tensor(_read_buffer(np.asarray(data, np.uint8), kind, shape), name)
        if kind == "int4":
            stored = replace(stored, bits=4)
        elif kind in _WIDE_BITS and scale.size:
            ones = np.ones((1,) * len(shape), np.float32)
            stored = replace(stored, value=stored.value.astype(np.float32), step=ones, bits=_WIDE_BITS[kind])
        if (
            quantization is not None
            and quantization.detailsType == self.schema.QuantizationDetails.BlockwiseQuantization
        ):
            stored = self._multiply_block_scales(graph, stored, quantization.details)
        if scale.size:
            zero = None if quantization.zeroPoint is None else np.asarray(quantization.zeroPoint)
            stored = dequantize(stored, scale, zero, int(quantization.quantizedDimension))
        self._tensors[key] = stored
        return stored

    def _multiply_block_scales(self, graph: Any, stored: StoredTensor, details: Any) -> StoredTensor:
        """Multiply the integers of a tensor by their scales; each block along the last axis has its own scale.

        Raises:
            ValueError: If blocks have zero points.
        """
        scales = self.stored_tensor(graph, graph.tensors[details.scales])
        assert scales is not None
        if details.zeroPoints >= 0:
            raise ValueError(f"{stored.name}: blocks with zero points are not known")
        shape = stored.value.shape
        per_number = np.repeat(scales.value.reshape(*shape[:-1], -1), details.blockSize, -1)
        return stored.multiply(StoredTensor(per_number.reshape(shape), fp16_factors=1))


def _read_buffer(data: NDArray[np.uint8], kind: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return the bytes of a buffer as an array of a shape and type, 4-bit numbers as int8; later bytes are left out."""
    count = int(np.prod(shape))
    if kind == "int4":
        return unpack_int4(data, count).reshape(shape)
    return data[: count * np.dtype(kind).itemsize].view(kind).reshape(shape)


class _GraphReader:
    """Lists the constants of one TFLite graph with a `ConstantTracker`.

    The method ``on_cast`` reports operators of type ``CAST`` to it, and so on.

    Args:
        file: Reader of the file.
        graph: The graph.
    """

    def __init__(self, file: _FileReader, graph: Any) -> None:
        self.file, self.graph, self.tracker = file, graph, ConstantTracker()
        for number, tensor in enumerate(graph.tensors):
            stored = file.stored_tensor(graph, tensor)
            if stored is not None:
                self.tracker.store(number, stored)

    def run(self) -> list[Constant]:
        """Report every operator of the graph to the tracker, and return the constants in the order of their use."""
        for op in self.graph.operators:
            inputs = [int(i) for i in op.inputs if i >= 0]
            outputs = [int(i) for i in op.outputs]
            handler = getattr(self, f"on_{self.file.operator_name(op).lower()}", None)
            if handler is None:
                self.tracker.other(outputs, inputs)
            else:
                handler(op, inputs, outputs[0])
                if getattr(op.builtinOptions, "fusedActivationFunction", 0):
                    self.tracker.other(outputs, outputs)
            for out in outputs:
                self._report_range(out)
        return self.tracker.finish(int(i) for i in self.graph.outputs)

    def _report_range(self, number: int) -> None:
        """Report to the tracker the range that the integers of a quantized activation cover, if it has one scale."""
        tensor = self.graph.tensors[number]
        ends, quantization = _ACTIVATION_ENDS.get(self.file.types.get(tensor.type, "")), tensor.quantization
        has_scale = quantization is not None and quantization.scale is not None and len(quantization.scale) == 1
        if ends is not None and has_scale:
            zero = 0 if quantization.zeroPoint is None else np.asarray(quantization.zeroPoint)
            self.tracker.set_range(number, integer_range(np.asarray(quantization.scale), zero, ends))

    def _shape(self, number: int) -> tuple[int, ...]:
        """Return the shape of a tensor by its number; empty for a scalar and for a tensor without a shape."""
        shape = self.graph.tensors[number].shape
        return () if shape is None else tuple(int(n) for n in shape)

    def on_reshape(self, _: Any, inputs: list[int], out: int) -> None:
        """Report a RESHAPE to the tracker. A constant gets its new shape.

        If the data is computed and the last axis changes, the operator is reported as unknown.
        """
        shape = self._shape(out)
        if self.tracker.stored(inputs[0]) is not None or self._shape(inputs[0])[-1:] == shape[-1:]:
            self.tracker.keep(out, inputs[0], lambda v: v.reshape(shape))
        else:
            self.tracker.other([out], inputs)

    def on_transpose(self, _: Any, inputs: list[int], out: int) -> None:
        """Report a TRANSPOSE to the tracker, with its order of axes."""
        stored = self.tracker.stored(inputs[1])
        order = None if stored is None else stored.value
        self.tracker.rearrange(out, inputs[0], lambda v: v.transpose(order))

    def on_cast(self, _: Any, inputs: list[int], out: int) -> None:
        """Report an operator that changes only the type of numbers to the tracker: its result counts as its input."""
        self.tracker.keep(out, inputs[0])

    on_dequantize = on_cast  # stored tensors are read with their scales
    on_quantize = on_cast

    def on_embedding_lookup(self, _: Any, inputs: list[int], out: int) -> None:
        """Report an EMBEDDING_LOOKUP to the tracker as a lookup of table rows."""
        self.tracker.lookup(out, inputs[1], inputs[0])

    def on_gather(self, op: Any, inputs: list[int], out: int) -> None:
        """Report a GATHER to the tracker: along axis 0 as a lookup of table rows, else as an unknown operator."""
        if op.builtinOptions.axis:
            self.tracker.other([out], inputs)
        else:
            self.tracker.lookup(out, inputs[0], inputs[1])

    def on_fully_connected(self, _: Any, inputs: list[int], out: int) -> None:
        """Report a FULLY_CONNECTED to the tracker as data times a matrix, plus an offset if it has one."""
        self.tracker.product(out, inputs[0], inputs[1], inputs[2] if len(inputs) > 2 else None)

    def on_batch_matmul(self, op: Any, inputs: list[int], out: int) -> None:
        """Report a BATCH_MATMUL to the tracker: as a product if its right operand is stored, else as unknown.

        One that transposes its left operand is reported as unknown too.
        """
        if op.builtinOptions.adjX or self.tracker.stored(inputs[1]) is None:
            self.tracker.other([out], inputs)
        else:
            self.tracker.product(out, inputs[0], inputs[1], transposed=not op.builtinOptions.adjY)

    def on_mul(self, _: Any, inputs: list[int], out: int) -> None:
        """Report a MUL to the tracker as an elementwise product of two values."""
        self.tracker.multiply(out, *inputs)

    def on_add(self, _: Any, inputs: list[int], out: int) -> None:
        """Report an ADD to the tracker as a sum of two values."""
        self.tracker.add(out, *inputs)
