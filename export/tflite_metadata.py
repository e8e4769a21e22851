"""TFLite metadata for MediaPipe Tasks: names of the inputs, the labels, the vocabulary.

`write_metadata` adds them to a .tflite file: a flatbuffer inside the model, and labels.txt and vocab.txt in an
uncompressed zip archive after it (`pack_files`), which is where MediaPipe and Android read them. `metadata_problems`
checks such a file; `read_metadata` and `read_files` read it back. MediaPipe reads neither config.json nor
tokenizer.json: it uses only what is packed here.

The flatbuffer is written by slot numbers of the public schema, so that nothing of MediaPipe is needed.
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pocketbert.core import model_files as tflite_objects
from pocketbert.core.errors import GateError, InputError, Problem
from pocketbert.core.model_files import dump_model, tflite_schema

MAX_FILES = 16
MAX_BYTES = 64 << 20
"""Bounds on what is read from a file of unknown origin; vocabularies have a few MiB."""
_METADATA_NAMES = {"input_ids": "ids", "attention_mask": "mask", "token_type_ids": "segment_ids"}
"""MediaPipe's name of each signature input."""
_LABELS_FILE = "labels.txt"
_VOCABULARY_FILE = "vocab.txt"
_BUFFER_NAME = b"TFLITE_METADATA"
IDENTIFIER = b"M001"
_MIN_PARSER_VERSION = "1.1.0"
"""The version that brought BertTokenizerOptions; nothing newer is used."""
_ZIP_DATE = (1980, 1, 1, 0, 0, 0)  # the oldest date a zip can hold: equal input gives equal bytes
_AXIS_LABELS, _VOCABULARY, _BERT_TOKENIZER = 2, 5, 4  # enum and union values of the schema
_INPUT_DESCRIPTIONS = {
    "ids": "Token ids, [CLS] first, [SEP] last, then 0.",
    "mask": "1 for tokens, 0 for padding.",
    "segment_ids": "0 everywhere: one text.",
}
_MAX_CHILDREN = 64
_EMPTY: Mapping[int, int] = {}


@dataclass(frozen=True)
class MediaPipeInfo:
    """The metadata to write into a TFLite file: texts for people, labels and vocabulary.

    Attributes:
        name: The model's name.
        description: What the model does.
        version: Version of the model.
        author: Who made the model.
        labels: Label names in the order of the output; empty for an embedder.
        vocabulary: Content of vocab.txt, one token a line.
        output: Description of the output.
        license: Terms of use.
    """

    name: str
    description: str
    version: str
    author: str
    labels: tuple[str, ...]
    vocabulary: bytes
    output: str = ""
    license: str = ""

    @property
    def files(self) -> dict[str, bytes]:
        """The files to pack after the model, content by name."""
        files = {_VOCABULARY_FILE: self.vocabulary}
        return {_LABELS_FILE: labels_file(self.labels), **files} if self.labels else files


@dataclass(frozen=True)
class Metadata:
    """The metadata read from a TFLite file, as far as MediaPipe's text tasks use it.

    Attributes:
        inputs: Names of the inputs, in the order of the graph's inputs.
        outputs: Names of the outputs.
        labels_file: Name of the packed file with the labels of the first output, or None.
        vocabulary_file: Name of the packed file with the vocabulary of a BERT tokenizer, or None.
        name: The model's name.
        description: What the model does.
        version: Version of the model.
        min_parser_version: Oldest metadata parser that can read all of this metadata.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    labels_file: str | None
    vocabulary_file: str | None
    name: str
    description: str
    version: str
    min_parser_version: str


def write_metadata(model: bytes, info: MediaPipeInfo) -> bytes:
    """Add MediaPipe's metadata, labels and vocabulary to a TFLite model, or replace those that it has.

    Weights stored after the flatbuffer (ai-edge-quantizer) are moved inside, and nothing else changes.

    Args:
        model: A .tflite file with one signature: int32 inputs input_ids, attention_mask, token_type_ids of [1, L], one
            float32 output [1, N].
        info: The metadata to write.

    Returns:
        The file for MediaPipe Tasks.

    Raises:
        InputError: If `model` is no TFLite model, or labels or vocabulary cannot be written.
        GateError: If the model has other inputs or outputs.
    """
    loaded = load_model(model)
    raw = encode(info, [_METADATA_NAMES[name] for name in _signature_inputs(loaded)])
    _set_metadata_buffer(loaded, raw)
    written = dump_model(loaded)
    del model, loaded  # a large model is not kept in memory while files are appended to a copy
    return pack_files(written, info.files)


def read_metadata(model: bytes) -> Metadata | None:
    """Read the MediaPipe metadata of a TFLite file.

    Args:
        model: A .tflite file.

    Returns:
        The parts that MediaPipe reads; None if the flatbuffer holds no metadata.

    Raises:
        InputError: If the model or its metadata is damaged.
    """
    raw = _inner_metadata(model, _BUFFER_NAME)
    return None if raw is None else decode(raw)


def metadata_problems(model: bytes, labels: Sequence[str], vocabulary: bytes) -> list[str]:
    """Return why MediaPipe would refuse or misread a TFLite file: one sentence per reason, empty if none is found.

    Args:
        model: A .tflite file.
        labels: Labels of config.json in the order of the ids; empty for an embedder.
        vocabulary: Content of the folder's vocab.txt.
    """
    try:
        loaded, files, metadata = load_model(model), read_files(model), read_metadata(model)
        expected_labels = labels_file(labels)
    except InputError as error:
        return [str(p) for p in error.problems]
    if problems := _graph_problems(loaded):
        return problems
    if metadata is None:
        return ["no metadata: MediaPipe refuses the file."]
    expected_inputs = tuple(_METADATA_NAMES[name] for name in _signature_inputs(loaded))
    if metadata.inputs != expected_inputs:
        problems.append(f"the metadata calls the inputs {metadata.inputs}, the graph's order is {expected_inputs}.")
    if len(metadata.outputs) != 1:
        problems.append(f"metadata for {len(metadata.outputs)} outputs; the graph has one.")
    if metadata.vocabulary_file is None or metadata.vocabulary_file not in files:
        problems.append(f"no vocabulary: {metadata.vocabulary_file or 'no file'} named, {sorted(files)} packed.")
    elif files[metadata.vocabulary_file] != vocabulary:
        problems.append("the packed vocabulary differs from the folder's vocab.txt.")
    if b"\n\n" in vocabulary or vocabulary[:1] == b"\n":
        problems.append("the vocabulary has empty lines, which MediaPipe skips: all ids behind them shift.")
    width = int(loaded.subgraphs[0].tensors[int(loaded.subgraphs[0].outputs[0])].shape[1])
    if not labels:
        problems += ["an embedder has labels."] if metadata.labels_file else []
    elif metadata.labels_file is None or metadata.labels_file not in files:
        problems.append(f"no labels: {metadata.labels_file or 'no file'} named, {sorted(files)} packed.")
    elif files[metadata.labels_file] != expected_labels:
        problems.append("the packed labels differ from config.json's, or their order does.")
    if labels and width != len(labels):
        problems.append(f"the output has {width} numbers for {len(labels)} labels.")
    return problems


def labels_file(labels: Sequence[str]) -> bytes:
    """Return the content of labels.txt: one label a line.

    Raises:
        InputError: If a label is empty or has a line break, which would shift the labels after it.
    """
    bad = [name for name in labels if not name or len(name.splitlines()) != 1]
    if bad:
        raise InputError(Problem("labels", f"{bad} cannot be written to a file with one label a line.", "Rename them."))
    return "".join(f"{name}\n" for name in labels).encode()


# --- the model ---


def load_model(model: bytes | bytearray) -> Any:
    """Parse a TFLite file to a `ModelT`, without the files packed after it."""
    return tflite_objects.load_model(_without_files(model))


def _graph_problems(model: Any) -> list[str]:
    """Return the reasons why MediaPipe could not run a TFLite graph, apart from its metadata, one sentence each.

    Args:
        model: A `ModelT`.

    Returns:
        The sentences; empty if MediaPipe can run the graph.
    """
    graphs = model.subgraphs or []
    if len(graphs) != 1:
        return [f"{len(graphs)} subgraphs; MediaPipe takes files with one (one signature)."]
    graph, schema, problems = graphs[0], tflite_schema(), []
    names = sorted(_input_names(model).values())
    inputs = [graph.tensors[i] for i in _integers(graph.inputs)]
    if names != sorted(_METADATA_NAMES) or len(inputs) != len(names):
        problems.append(
            f"inputs {names} in the signature, {len(inputs)} in the graph; needed are {sorted(_METADATA_NAMES)}."
        )
    shapes = [_integers(t.shape) for t in inputs]
    if any(t.type != schema.TensorType.INT32 for t in inputs):
        problems.append("inputs are not all int32.")
    if any(len(s) != 2 or s[0] != 1 or s[1] < 2 or s != shapes[0] for s in shapes):
        problems.append(f"inputs have the shapes {shapes}; needed is one [1, L] for all.")
    outputs = [graph.tensors[i] for i in _integers(graph.outputs)]
    if len(outputs) != 1 or outputs[0].type != schema.TensorType.FLOAT32:
        problems.append(f"{len(outputs)} outputs, or not float32; needed is one float32 output.")
    elif len(shape := _integers(outputs[0].shape)) != 2 or shape[0] != 1:
        problems.append(f"the output has the shape {shape}; needed is [1, N].")
    return problems


def _signature_inputs(model: Any) -> list[str]:
    """Return the signature's input names in the order of the graph's inputs, which may differ from the signature's.

    Raises:
        GateError: If MediaPipe could not run the graph.
    """
    if problems := _graph_problems(model):
        raise GateError([f"MediaPipe file: {p}" for p in problems])
    names = _input_names(model)
    return [names[i] for i in _integers(model.subgraphs[0].inputs)]


def _input_names(model: Any) -> dict[int, str]:
    """Return the signature's name of each graph input, by tensor number; empty unless the file has exactly one signature."""
    signatures = model.signatureDefs or []
    if len(signatures) != 1:
        return {}
    graph_inputs = set(_integers(model.subgraphs[0].inputs))
    entries = [i for i in signatures[0].inputs or [] if i.tensorIndex in graph_inputs]
    return {i.tensorIndex: i.name.decode("utf-8", "replace") if isinstance(i.name, bytes) else i.name for i in entries}


def _integers(values: Any) -> list[int]:
    return [] if values is None else [int(v) for v in values]


def _inner_metadata(model: bytes, name: bytes) -> bytes | None:
    """Return the bytes of a metadata entry stored inside the flatbuffer, the only place where MediaPipe looks.

    Args:
        model: A .tflite file.
        name: Key of the metadata entry.

    Returns:
        The content; None if there is no such entry, or its content lies elsewhere.

    Raises:
        InputError: If `model` is no TFLite model.
    """
    schema = tflite_schema()
    try:
        root = schema.Model.GetRootAs(model, 0)
        for entry in (root.Metadata(i) for i in range(root.MetadataLength())):
            if entry.Name() == name and entry.Buffer() < root.BuffersLength():
                buffer = root.Buffers(entry.Buffer())
                return None if buffer.DataIsNone() else buffer.DataAsNumpy().tobytes()
    except (struct.error, IndexError, TypeError, ValueError) as error:
        raise InputError(Problem("model", f"damaged TFLite file: {error}.")) from error
    return None


def _set_metadata_buffer(model: Any, raw: bytes) -> None:
    """Store metadata bytes in a model, in place of its old metadata if it has some."""
    import numpy as np
    from ai_edge_litert import schema_py_generated as schema

    entries = model.metadata or []
    entry = next((m for m in entries if m.name == _BUFFER_NAME), None)
    if entry is None:
        entry = schema.MetadataT()
        entry.name = _BUFFER_NAME
        entry.buffer = len(model.buffers)
        model.buffers.append(schema.BufferT())
        model.metadata = [*entries, entry]
    model.buffers[entry.buffer].data = np.frombuffer(raw, np.uint8)


# --- files behind the model ---


def pack_files(model: bytes | bytearray, files: Mapping[str, bytes]) -> bytes:
    """Append files as a zip archive to a TFLite model, in place of an older archive, and return the bytes.

    Entries are stored, not deflated: MediaPipe maps them in place and refuses anything else.

    Args:
        model: A .tflite file.
        files: Content by plain file name, at least one.

    Returns:
        The model followed by a zip archive; the same bytes for the same input.

    Raises:
        InputError: If a name is no plain file name, there are no files, too many or too large ones, or the older
            archive cannot be read.
    """
    problems = [p for name in files if (p := _name_problem(name))]
    total = sum(len(content) for content in files.values())
    if not 0 < len(files) <= MAX_FILES or total > MAX_BYTES:
        problems.append(f"{len(files)} files of {total} bytes; allowed are 1 to {MAX_FILES} of {MAX_BYTES}.")
    if problems:
        raise InputError([Problem("files packed into the model", p) for p in problems])
    stream = io.BytesIO(_without_files(model))
    with zipfile.ZipFile(stream, "a", zipfile.ZIP_STORED) as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, _ZIP_DATE)
            entry.create_system = 3  # else the packing machine's own
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content)
    return stream.getvalue()


def read_files(model: bytes) -> dict[str, bytes]:
    """Read the files from the zip archive after a TFLite model.

    Args:
        model: A .tflite file.

    Returns:
        Content by name, in archive order; empty if nothing is packed.

    Raises:
        InputError: If the archive is damaged, has too many or too large files, or has one that is compressed, packed
            twice or named as a path.
    """
    if not zipfile.is_zipfile(io.BytesIO(model)):
        return {}
    files: dict[str, bytes] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(model)) as archive:
            entries = archive.infolist()
            if len(entries) > MAX_FILES or sum(e.file_size for e in entries) > MAX_BYTES:
                raise _archive_error(f"more than {MAX_FILES} files or {MAX_BYTES} bytes.")
            for entry in entries:
                # the raw name: zipfile cuts the other one at a null byte
                if problem := _name_problem(entry.orig_filename):
                    raise _archive_error(problem)
                if entry.filename in files:
                    raise _archive_error(f"{entry.filename!r} is packed twice.")
                if entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size:
                    raise _archive_error(f"{entry.filename!r} is compressed; MediaPipe reads stored files only.")
                files[entry.filename] = archive.read(entry)
    except (zipfile.BadZipFile, zlib.error, ValueError, RuntimeError, NotImplementedError, OSError) as error:
        raise _archive_error(f"not readable: {error}.") from error
    return files


def _without_files(model: bytes | bytearray) -> bytes | bytearray:
    """Return the TFLite model without the zip archive after it.

    Raises:
        InputError: If there is an archive that cannot be read.
    """
    if not zipfile.is_zipfile(io.BytesIO(model)):
        return model
    try:
        with zipfile.ZipFile(io.BytesIO(model)) as archive:
            # zipfile counts offsets from the start of the file, whatever stands before the archive
            start = min((e.header_offset for e in archive.infolist()), default=archive.start_dir)
    except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError) as error:
        raise _archive_error(f"not readable: {error}.") from error
    return model[:start]


def _name_problem(name: str) -> str:
    if not name or name in (".", "..") or any(c in "/\\:" or not c.isprintable() for c in name):
        return f"{name!r} is not a plain file name."
    return ""


def _archive_error(what: str) -> InputError:
    return InputError(Problem("files packed into the model", what))


# --- the flatbuffer (metadata_schema.fbs, identifier M001) ---


def encode(info: MediaPipeInfo, inputs: Sequence[str]) -> bytes:
    """Encode MediaPipe's metadata as a flatbuffer. Comments in the code name the schema's tables.

    Args:
        info: The metadata.
        inputs: MediaPipe's names of the inputs, in the order of the graph's inputs.

    Returns:
        Content of the buffer.
    """
    import flatbuffers

    b = flatbuffers.Builder(1024)

    def table(texts: Mapping[int, str], offsets: Mapping[int, int] = _EMPTY, small: Mapping[int, int] = _EMPTY) -> int:
        """Write a flatbuffers table with texts, offsets and bytes by slot number, and return its offset."""
        strings = {slot: b.CreateString(text) for slot, text in texts.items() if text}
        b.StartObject(max([*texts, *offsets, *small]) + 1)
        for slot, offset in {**strings, **offsets}.items():
            b.PrependUOffsetTRelativeSlot(slot, offset, 0)
        for slot, number in small.items():
            b.PrependUint8Slot(slot, number, 0)
        return int(b.EndObject())

    def vector(offsets: Sequence[int]) -> int:
        b.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            b.PrependUOffsetTRelative(offset)
        return int(b.EndVector())

    def file(name: str, what: str, kind: int) -> int:  # AssociatedFile
        return vector([table({0: name, 1: what}, small={2: kind})])

    tensors = vector([table({0: name, 1: _INPUT_DESCRIPTIONS[name]}) for name in inputs])  # TensorMetadata
    labels = {6: file(_LABELS_FILE, "Labels in the order of the output.", _AXIS_LABELS)} if info.labels else {}
    outputs = vector([table({0: "probability" if info.labels else "embedding", 1: info.output}, labels)])
    tokenizer = table({}, {0: file(_VOCABULARY_FILE, "WordPiece vocabulary.", _VOCABULARY)})  # BertTokenizerOptions
    units = vector([table({}, {1: tokenizer}, {0: _BERT_TOKENIZER})])  # ProcessUnit
    graph = vector([table({}, {2: tensors, 3: outputs, 5: units})])  # SubGraphMetadata
    texts = {
        0: info.name,
        1: info.description,
        2: info.version,
        4: info.author,
        5: info.license,
        7: _MIN_PARSER_VERSION,
    }
    b.Finish(table(texts, {3: graph}), file_identifier=IDENTIFIER)  # ModelMetadata
    return bytes(b.Output())


def decode(raw: bytes) -> Metadata:
    """Decode a metadata flatbuffer, written by `encode` or by MediaPipe's own writer.

    Args:
        raw: Content of the buffer.

    Returns:
        The parts that MediaPipe's text tasks read.

    Raises:
        InputError: If the content is no metadata, or is damaged.
    """
    if raw[4:8] != IDENTIFIER:
        raise InputError(Problem("metadata", f"identifier {raw[4:8]!r} instead of {IDENTIFIER!r}."))
    try:
        return _decode_tables(raw)
    except (struct.error, IndexError, TypeError, ValueError) as error:
        raise InputError(Problem("metadata", f"damaged: {error}.")) from error


def _decode_tables(raw: bytes) -> Metadata:
    """Decode the metadata of the first subgraph.

    Errors of the flatbuffers library are raised if the buffer is damaged.
    """
    root = _Table(raw, int.from_bytes(raw[:4], "little"))
    graph = next(iter(root.children(3)), None)
    outputs = graph.children(3) if graph else []
    vocabulary = None
    for unit in graph.children(5)[:1] if graph else []:
        options = unit.child(1)
        if unit.number(0) == _BERT_TOKENIZER and options:
            vocabulary = next((f.text(0) for f in options.children(0)), None)
    labels = [f.text(0) for out in outputs[:1] for f in out.children(6) if f.number(2) == _AXIS_LABELS]
    return Metadata(
        inputs=tuple(t.text(0) for t in graph.children(2)) if graph else (),
        outputs=tuple(t.text(0) for t in outputs),
        labels_file=labels[0] if labels else None,
        vocabulary_file=vocabulary,
        name=root.text(0),
        description=root.text(1),
        version=root.text(2),
        min_parser_version=root.text(7),
    )


class _Table:
    """A flatbuffers table whose fields are read by slot number. Missing ones are "", 0, None or empty."""

    def __init__(self, raw: bytes, position: int) -> None:
        from flatbuffers.table import Table

        self.table = Table(raw, position)

    def _at(self, slot: int) -> int:
        offset = int(self.table.Offset(4 + 2 * slot))
        return offset and offset + int(self.table.Pos)

    def text(self, slot: int) -> str:
        at = self._at(slot)
        return bytes(self.table.String(at)).decode() if at else ""

    def number(self, slot: int) -> int:
        at = self._at(slot)
        return self.table.Bytes[at] if at else 0

    def child(self, slot: int) -> _Table | None:
        at = self._at(slot)
        return _Table(self.table.Bytes, int(self.table.Indirect(at))) if at else None

    def children(self, slot: int) -> list[_Table]:
        """Return the tables in the vector at a slot, at most `_MAX_CHILDREN`."""
        if not (offset := int(self.table.Offset(4 + 2 * slot))):
            return []
        start, count = int(self.table.Vector(offset)), int(self.table.VectorLen(offset))
        places = range(start, start + 4 * min(count, _MAX_CHILDREN), 4)
        return [_Table(self.table.Bytes, int(self.table.Indirect(at))) for at in places]
