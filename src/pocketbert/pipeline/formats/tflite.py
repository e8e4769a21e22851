"""TFLite: one signature per length; what LiteRT, older TFLite runtimes and MediaPipe Tasks open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from pocketbert.core.artefacts import Artefacts, Minimum, ModelRecord
from pocketbert.core.compare.golden import GoldenRow
from pocketbert.core.compare.sample_texts import ASCII_SENTENCES, UNICODE_SENTENCES
from pocketbert.core.families import TEXT_ONLY
from pocketbert.core.host.system import version_of
from pocketbert.core.predict.predictor import run_rows, whole
from pocketbert.core.predict.sentence_settings import DEFAULT_POOLING, pooling_of
from pocketbert.core.predict.tokenization import TextTokenizer, padding_side_of, truncation_side_of
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.tasks import Task, TaskName, task_of
from pocketbert.core.tflite_file import load_model, tflite_schema, unpacked_int4
from pocketbert.core.types import Client, Format, Provenance, Runtime, Scheme
from pocketbert.pipeline.formats.base import (
    FormatPlace,
    ModelFile,
    RunModel,
    description_of,
    engine_lines,
    maker,
    oldest_engine,
    shorter,
)
from pocketbert.pipeline.formats.constants import Constant, Numbers, Tracker, dequantized, numbers_of, range_of
from pocketbert.pipeline.formats.snippets import kotlin, python
from pocketbert.pipeline.formats.snippets.parts import (
    CHECKED,
    TOKENIZER,
    Offer,
    Platform,
    lengths,
    offered,
    pinned,
    tokenizer_of,
)
from pocketbert.pipeline.results import Gate, Subject, unread_gate
from pocketbert.runtime.engines import open_file

if TYPE_CHECKING:
    from torch import nn


# --- mediapipe ---
# MediaPipe's file: its contents in addition to the graph, and how its tokenizer changes the answers, measured with an emulation.


_SAME = 1e-5


class TokenizerEffect(BaseModel):
    """How often MediaPipe sees other tokens than the model was trained on.

    Attributes:
        sentences: How many sentences with accents, other scripts and emoji were tried.
        ids: Share of them that get other ids.
        scores: Share of them whose probabilities (of embedders: vectors) differ by more than 1e-5.
        labels: Share of them that get another label; None of embedders.
        ascii: Share of plain ASCII sentences that get other ids; 0 where all is well.
    """

    sentences: int
    ids: float
    scores: float
    labels: float | None
    ascii: float

    @property
    def summary(self) -> str:
        """One sentence for the card."""
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


def tokenizer_effect(file: Path, weights: Path, task: Task) -> TokenizerEffect:
    """Run a MediaPipe file on both tokenizations of the project's sentences.

    Args:
        file: ``mediapipe.tflite``.
        weights: Folder with tokenizer.json and vocab.txt.
        task: What the file does.
    """
    from pocketbert.export.mediapipe import MediaPipeTokenizer

    predictor = open_file(file, Format.TFLITE)
    length = max(predictor.lengths)
    own, theirs = TextTokenizer(weights, length), MediaPipeTokenizer(weights, length)
    # an app puts the default prompt in front itself, as the card's code does
    ours, others = own.encode(UNICODE_SENTENCES), theirs.encode(own.prompts.put_before(UNICODE_SENTENCES))
    # each pads on its own side: MediaPipe always on the right
    before, after = (
        whole(run_rows(predictor, tokenizer, rows, task)).astype(np.float64)
        for tokenizer, rows in ((own, ours), (theirs, others))
    )
    known = own.prompts.put_before(ASCII_SENTENCES)
    plain = zip(own.encode(ASCII_SENTENCES), theirs.encode(known), strict=True)
    return TokenizerEffect(
        sentences=len(ours),
        ids=float(np.mean([not np.array_equal(a.ids, b.ids) for a, b in zip(ours, others, strict=True)])),
        scores=float(np.mean(np.abs(before - after).max(-1) > _SAME)),
        labels=float(np.mean(before.argmax(-1) != after.argmax(-1))) if task.names_labels else None,
        ascii=float(np.mean([not np.array_equal(a.ids, b.ids) for a, b in plain])),
    )


def _output(model: RunModel) -> dict[str, str]:
    if model.task.name is not TaskName.FEATURE_EXTRACTION:
        return {}
    return {"output": (pooling_of(model.weights) or DEFAULT_POOLING).title}


def write_client_data(model: RunModel, path: Path) -> None:
    """Put tokenizer and labels into a file for MediaPipe, before or after quantization."""
    from pocketbert.export.mediapipe import vocabulary_of
    from pocketbert.export.tflite_metadata import MediaPipeInfo, write_metadata

    info = MediaPipeInfo(
        name=model.recipe.name,
        description=description_of(model.recipe, model.folder, model.task),
        version=f"made by {maker()}",
        author="",
        license=model.folder.licence,
        labels=model.labels,
        vocabulary=vocabulary_of(model.weights),
        **_output(model),
    )
    path.write_bytes(write_metadata(path.read_bytes(), info))


MEDIAPIPE_FILE = "tflite/mediapipe.tflite"
_SELF_TEST = "An app should check a row of `selftest.json` when it starts."
_WRONG = "gives wrong answers without an error"
_LIMITS = {
    Scheme.INT8: f"For LiteRT only: TFLite up to 2.16 opens it and {_WRONG}. {_SELF_TEST}",
    Scheme.A8W8: f"For LiteRT only: TFLite 2.14 opens it and {_WRONG}. {_SELF_TEST}",
    Scheme.SMALL: f"For LiteRT 1.4 or newer: LiteRT 1.3 {_WRONG}, TFLite 2.14 fails when it runs it. {_SELF_TEST}",
    Scheme.W4: f"Needs LiteRT 2.1 or newer, not the version named here: LiteRT 1.3 to 2.0 {_WRONG}, TFLite 2.14 fails when it runs it. {_SELF_TEST}",
}
"""What is told of files that older runtimes cannot compute."""


class TflitePlace(FormatPlace):
    """The TFLite files of a run, MediaPipe's among them."""

    format = Format.TFLITE

    def settings(self, recipe: Recipe) -> dict[str, object]:
        """Return the clients, and what MediaPipe's file tells about itself."""
        return {"export": {"clients": recipe.export.clients}, "name": recipe.name, "description": recipe.description}

    def clients(self, recipe: Recipe, weights: Path) -> list[Client]:
        """List MediaPipe, where the recipe asks for it and it can run the model."""
        wanted = Client.MEDIAPIPE in recipe.export.clients
        return [Client.MEDIAPIPE] if wanted and _refusal(recipe, weights) is None else []

    def absent(self, recipe: Recipe, weights: Path) -> dict[str, str]:
        """Tell why there is no file for MediaPipe."""
        if Client.MEDIAPIPE not in recipe.export.clients:
            return {MEDIAPIPE_FILE: "The recipe asked for no file for MediaPipe (export.clients)."}
        reason = _refusal(recipe, weights)
        return {MEDIAPIPE_FILE: reason} if reason else {}

    def lengths(self, recipe: Recipe, file: ModelFile, length: int) -> list[int]:
        """Choose one length for MediaPipe, the recipe's longest."""
        if file.client is Client.MEDIAPIPE:
            return shorter(recipe, length)[-1:]
        return super().lengths(recipe, file, length)

    def write(self, model: RunModel, module: nn.Module, file: ModelFile, destination: Path) -> None:
        """Export with a signature for each length, or for MediaPipe with tokenizer and labels inside."""
        from pocketbert.export import tflite

        family, task = model.folder.family, model.task
        lengths = self.lengths(model.recipe, file, model.length)
        if file.client is Client.MEDIAPIPE:
            tflite.export_mediapipe(module, family, task, lengths[0], destination)
            self.finish(model, file, destination)
        else:
            tflite.export(module, family, task, lengths, destination)

    def finish(self, model: RunModel, file: ModelFile, path: Path) -> None:
        """Put tokenizer and labels into MediaPipe's file again: the quantizer writes the graph only."""
        if file.client is Client.MEDIAPIPE:
            write_client_data(model, path)

    def gates(self, subject: Subject, rows: Sequence[GoldenRow]) -> list[Gate]:
        """Check the metadata of MediaPipe's file, and what an accelerator leaves to the CPU of the file made for it."""
        if subject.runtime is not None and subject.runtime.accelerator:
            return [unread_gate(subject, "placement") or _placement(subject)]
        return [_metadata(subject)] if subject.client is Client.MEDIAPIPE else []

    def constants(self, path: Path) -> list[list[Constant]]:
        """Read the constants of a file."""
        return tflite_constants(path)

    def file_notes(self, model: RunModel) -> dict[str, str]:
        """Tell what MediaPipe's own tokenizer changes."""
        files = [f for f in model.files if f.client is Client.MEDIAPIPE]
        if not files:
            return {}
        effect = tokenizer_effect(model.source(files[0]), model.weights, model.task).summary
        return {f.path: effect for f in files}

    def processing(self, artefacts: Artefacts) -> list[str]:
        """List the signatures, and tell which int8 file is for which runtime."""
        record = offered(artefacts, self.format)
        if record is None or not record.signature:
            return []
        known = ", ".join(map(str, lengths(record)))
        return [
            f"TFLite: int32 inputs [1, length], one signature `seq_LENGTH` each for {known} tokens; pad to the next one.",
            "Files in int8 and 4 bits without a runtime in their names are for LiteRT (ai-edge-litert; checked with the version "
            "in `artifacts.json`), not for TFLite up to 2.16. PocketBERT checks golden rows before first use.",
            *engine_lines([r for r in artefacts.models() if r.format is self.format]),
        ]

    def minimum(self, file: ModelFile, path: Path) -> Minimum | None:
        """Tell the oldest LiteRT that computes files of a scheme; the file itself does not say it."""
        engine = oldest_engine(self.format, file.scheme) if file.plain else None
        return Minimum(engine=engine) if engine is not None else None

    def offers(self, artefacts: Artefacts) -> list[Offer]:
        """Offer MediaPipe's file and LiteRT's to Android, and LiteRT's to Python."""
        out, record = [], offered(artefacts, self.format)
        mediapipe = offered(artefacts, self.format, Client.MEDIAPIPE, CHECKED)
        if mediapipe is not None:
            out.append(_simple(artefacts, mediapipe))
        if record is not None:
            out += [_android(artefacts, record), _python(artefacts, record)]
        return out

    def snippets(self, artefacts: Artefacts) -> list[str]:
        """Add nothing: every client that opens a TFLite file has a row in the table."""
        return []


def _simple(artefacts: Artefacts, record: ModelRecord) -> Offer:
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


def _android(artefacts: Artefacts, record: ModelRecord) -> Offer:
    return Offer(
        platform=Platform.ANDROID_LITERT,
        record=record,
        beside=(TOKENIZER,),
        needs=f"{kotlin.ANDROID}; LiteRT {kotlin.LITERT.rpartition(':')[2]}",
        tokenizer=tokenizer_of(artefacts, "Kotlin"),
        dependencies=kotlin.gradle(kotlin.LITERT, kotlin.GSON),
        snippet=kotlin.litert(artefacts, record),
        notes=(
            *([_LIMITS[record.scheme]] if record.scheme in _LIMITS else []),
            f"The library for Android was never run by this project, `{pinned(artefacts, 'ai-edge-litert')}` of Python was.",
        ),
    )


def _python(artefacts: Artefacts, record: ModelRecord) -> Offer:
    engine, tokenizers = (pinned(artefacts, name) for name in ("ai-edge-litert", "tokenizers"))
    return Offer(
        platform=Platform.PYTHON,
        record=record,
        beside=(TOKENIZER,),
        needs=engine.replace("==", " "),
        tokenizer=f"`tokenizers`, reads `{TOKENIZER}`",
        dependencies=(f"pip install {engine} {tokenizers} numpy",),
        snippet=python.litert(artefacts, record),
    )


def _refusal(recipe: Recipe, weights: Path) -> str | None:
    """Why MediaPipe Tasks cannot run this model, in one sentence; None where it can."""
    from pocketbert.export.mediapipe import refusal

    if recipe.export.form not in (None, TEXT_ONLY):
        return (
            f"MediaPipe Tasks give a file ids, mask and segments only; the form '{recipe.export.form}' has more inputs."
        )
    sources = (recipe.data.train, recipe.data.eval)
    pair = any(s is not None and s.text_pair is not None for s in sources)
    sides = padding_side_of(weights), truncation_side_of(weights)
    return refusal(weights, task_of(recipe.task).name, pair, *sides)


def _metadata(subject: Subject) -> Gate:
    if version_of("flatbuffers") is None or version_of("ai-edge-litert") is None:
        return Gate(
            name="metadata",
            file=subject.name,
            passed=True,
            skipped=True,
            detail="not checked: ai-edge-litert and flatbuffers are not installed here.",
        )
    from pocketbert.export.mediapipe import vocabulary_of
    from pocketbert.export.tflite_metadata import metadata_problems

    problems = metadata_problems(subject.path.read_bytes(), subject.labels, vocabulary_of(subject.folder))
    return Gate(
        name="metadata",
        file=subject.name,
        passed=not problems,
        detail=" ".join(problems)
        or "vocabulary and labels inside the file are those of the folder, inputs are named in graph order.",
    )


def _placement(subject: Subject) -> Gate:
    """Whether an accelerator takes the matrix products; other operators that stay on the CPU are named."""
    from pocketbert.quantize.tflite import gpu, npu

    if subject.runtime is Runtime.GPU:
        refusals = gpu.gpu_refusals(subject.path)
        listed = [f"{r.count} {r.operator} ({r.reason})" for r in refusals]
        count, fails = sum(r.count for r in refusals), gpu.leaves_products(refusals)
        all_taken = "all operators are in the list of LiteRT's GPU delegate"
    else:
        floats = npu.float_operators(subject.path)
        listed = [f"{n} {kind}" for kind, n in floats.most_common()]
        count, fails = floats.total(), npu.leaves_products(floats)
        all_taken = "all operators compute in integers of 8 and 16 bits"
    said = f"stays on the CPU: {', '.join(listed)}" if listed else all_taken
    return Gate(
        name="placement",
        file=subject.name,
        passed=not fails,
        value=float(count),
        detail=f"{said}. {Provenance.COMPILED_ONLY.value.capitalize()}: read from the graph, not run on the chip.",
    )


# --- tflite ---
# The constants of a TFLite file, signature by signature.


def tflite_constants(path: Path) -> list[list[Constant]]:
    """List the constants of a file for each signature, in the order in which its graph uses them."""
    return _File(load_model(path.read_bytes())).run()


_READ = ("float32", "float16", "int8", "uint8", "int4", "int16", "int32", "int64")
"""Types of stored tensors that are numbers."""
_WIDE = {"int16": 16, "int32": 32, "int64": 64}
"""Bits of what norms and sums read, and of what is added to the sums of products of 8 and of 16 bits."""
_ENDS = {"int8": (-128, 127), "int16": (-32767, 32767)}
"""Smallest and largest integer of an activation; 16 bits have zero in the middle."""


def _array(data: NDArray[np.uint8], kind: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """The bytes of a buffer as an array; a buffer may be longer than its tensor."""
    count = int(np.prod(shape))
    if kind == "int4":
        return unpacked_int4(data, count).reshape(shape)
    return data[: count * np.dtype(kind).itemsize].view(kind).reshape(shape)


class _File:
    def __init__(self, model: Any) -> None:
        self.model, self.schema = model, tflite_schema()
        self.names = {v: k for k, v in vars(self.schema.BuiltinOperator).items() if not k.startswith("_")}
        self.types = {v: k.lower() for k, v in vars(self.schema.TensorType).items() if not k.startswith("_")}
        self.read: dict[tuple[Any, ...], Numbers] = {}  # shared by signatures

    def run(self) -> list[list[Constant]]:
        return [_Graph(self, graph).run() for graph in self.model.subgraphs]

    def numbers(self, graph: Any, tensor: Any) -> Numbers | None:
        """The value of a stored tensor, dequantized; None of a computed one."""
        data = self.model.buffers[tensor.buffer].data
        kind = self.types.get(tensor.type, "")
        if data is None or not len(data) or kind not in _READ:
            return None
        shape = tuple(int(n) for n in tensor.shape) if tensor.shape is not None else ()
        found = tensor.quantization
        scale = None if found is None or found.scale is None else np.asarray(found.scale, np.float32)
        key = (tensor.buffer, shape, None if scale is None else scale.tobytes())
        if key not in self.read:
            name = tensor.name.decode(errors="replace") if isinstance(tensor.name, bytes) else str(tensor.name)
            numbers = numbers_of(_array(np.asarray(data, np.uint8), kind, shape), name)
            if kind == "int4":
                numbers = replace(numbers, bits=4)
            elif kind in _WIDE and scale is not None and scale.size:
                ones = np.ones((1,) * len(shape), np.float32)
                numbers = replace(numbers, value=numbers.value.astype(np.float32), step=ones, bits=_WIDE[kind])
            if found is not None and found.detailsType == self.schema.QuantizationDetails.BlockwiseQuantization:
                numbers = self._in_blocks(graph, numbers, found.details)
            if scale is not None and scale.size:
                zero = None if found.zeroPoint is None else np.asarray(found.zeroPoint)
                numbers = dequantized(numbers, scale, zero, int(found.quantizedDimension))
            self.read[key] = numbers
        return self.read[key]

    def _in_blocks(self, graph: Any, numbers: Numbers, details: Any) -> Numbers:
        """Numbers of which each block of the last axis has a scale."""
        scales = self.numbers(graph, graph.tensors[details.scales])
        assert scales is not None
        if details.zeroPoints >= 0:
            raise ValueError(f"{numbers.name}: blocks with zero points are not known")
        shape = numbers.value.shape
        each = np.repeat(scales.value.reshape(*shape[:-1], -1), details.blockSize, -1)
        return numbers.times(Numbers(each.reshape(shape), halves=1))

    def operator(self, op: Any) -> str:
        code = self.model.operatorCodes[op.opcodeIndex]
        return str(self.names.get(max(int(code.builtinCode), int(code.deprecatedBuiltinCode)), ""))


class _Graph:
    def __init__(self, file: _File, graph: Any) -> None:
        self.file, self.graph, self.tracker = file, graph, Tracker()
        for number, tensor in enumerate(graph.tensors):
            numbers = file.numbers(graph, tensor)
            if numbers is not None:
                self.tracker.store(number, numbers)

    def run(self) -> list[Constant]:
        for op in self.graph.operators:
            inputs = [int(i) for i in op.inputs if i >= 0]
            outputs = [int(i) for i in op.outputs]
            name = self.file.operator(op)
            handler = getattr(self, f"on_{name.lower()}", None)
            if handler is None:
                self.tracker.other(outputs, inputs)
            else:
                handler(op, inputs, outputs[0])
                if getattr(op.builtinOptions, "fusedActivationFunction", 0):
                    self.tracker.other(outputs, outputs)
            for out in outputs:
                self._limit(out)
        return self.tracker.finish(int(i) for i in self.graph.outputs)

    def _shape(self, number: int) -> tuple[int, ...]:
        shape = self.graph.tensors[number].shape
        return () if shape is None else tuple(int(n) for n in shape)

    def _limit(self, number: int) -> None:
        """Tell the tracker the range of a tensor that is computed in integers."""
        tensor = self.graph.tensors[number]
        ends, found = _ENDS.get(self.file.types.get(tensor.type, "")), tensor.quantization
        if ends is not None and found is not None and found.scale is not None and len(found.scale) == 1:
            zero = 0 if found.zeroPoint is None else np.asarray(found.zeroPoint)
            self.tracker.limit(number, range_of(np.asarray(found.scale), zero, ends))

    def on_reshape(self, _: Any, inputs: list[int], out: int) -> None:
        shape = self._shape(out)
        if self.tracker.stored(inputs[0]) is not None or self._shape(inputs[0])[-1:] == shape[-1:]:
            self.tracker.keep(out, inputs[0], lambda v: v.reshape(shape))
        else:
            self.tracker.other([out], inputs)

    def on_transpose(self, _: Any, inputs: list[int], out: int) -> None:
        order: NDArray[Any] | None = None
        stored = self.tracker.stored(inputs[1])
        if stored is not None:
            order = stored.value
        self.tracker.rearrange(out, inputs[0], lambda v: v.transpose(order))

    def on_cast(self, _: Any, inputs: list[int], out: int) -> None:
        self.tracker.keep(out, inputs[0])

    on_dequantize = on_cast  # the numbers of a tensor are read with its scales
    on_quantize = on_cast

    def on_embedding_lookup(self, _: Any, inputs: list[int], out: int) -> None:
        self.tracker.lookup(out, inputs[1], inputs[0])

    def on_gather(self, op: Any, inputs: list[int], out: int) -> None:
        if op.builtinOptions.axis:
            self.tracker.other([out], inputs)
        else:
            self.tracker.lookup(out, inputs[0], inputs[1])

    def on_fully_connected(self, _: Any, inputs: list[int], out: int) -> None:
        self.tracker.product(out, inputs[0], inputs[1], inputs[2] if len(inputs) > 2 else None)

    def on_batch_matmul(self, op: Any, inputs: list[int], out: int) -> None:
        if op.builtinOptions.adjX or self.tracker.stored(inputs[1]) is None:
            self.tracker.other([out], inputs)
        else:
            self.tracker.product(out, inputs[0], inputs[1], turned=not op.builtinOptions.adjY)

    def on_mul(self, _: Any, inputs: list[int], out: int) -> None:
        self.tracker.multiply(out, *inputs)

    def on_add(self, _: Any, inputs: list[int], out: int) -> None:
        self.tracker.add(out, *inputs)
