"""Slots of the public schema for TFLite metadata (``metadata_schema.fbs``, identifier M001), without its generated code."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pocketbert.core.errors import InputError, Problem

LABELS_FILE = "labels.txt"
VOCABULARY_FILE = "vocab.txt"
IDENTIFIER = b"M001"
MIN_PARSER_VERSION = "1.1.0"
"""The version that brought BertTokenizerOptions; nothing younger is used."""

_AXIS_LABELS, _VOCABULARY, _BERT_TOKENIZER = 2, 5, 4  # enum and union values of the schema
_NONE: Mapping[int, int] = {}
_INPUTS = {
    "ids": "Token ids, [CLS] first, [SEP] last, then 0.",
    "mask": "1 for tokens, 0 for padding.",
    "segment_ids": "0 everywhere: one text.",
}
_MAX_CHILDREN = 64


@dataclass(frozen=True)
class MediaPipeInfo:
    """What to write.

    Attributes:
        name: The model's name.
        description: What it does.
        version: Its version.
        author: Who made it.
        labels: Label names in the order of the output; empty for an embedder.
        vocabulary: Content of vocab.txt, one token a line.
        output: What the output is.
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
        """The files to pack, to append again after a tool dropped them."""
        out = {VOCABULARY_FILE: self.vocabulary}
        return {LABELS_FILE: labels_file(self.labels), **out} if self.labels else out


@dataclass(frozen=True)
class Metadata:
    """What a file says about itself.

    Attributes:
        inputs: Names of the inputs, in the order of the graph's inputs.
        outputs: Names of the outputs.
        labels_file: Packed file with the labels of the first output, or None.
        vocabulary_file: Packed file with the vocabulary of a BERT tokenizer, or None.
        name: The model's name.
        description: What it does.
        version: Its version.
        min_parser_version: Oldest metadata parser that understands everything.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    labels_file: str | None
    vocabulary_file: str | None
    name: str
    description: str
    version: str
    min_parser_version: str


def labels_file(labels: Sequence[str]) -> bytes:
    """Content of labels.txt.

    Raises:
        InputError: If a label is empty or has a line break: the next ones would take its place.
    """
    bad = [name for name in labels if not name or len(name.splitlines()) != 1]
    if bad:
        raise InputError(Problem("labels", f"{bad} cannot be written to a file with one label a line.", "Rename them."))
    return "".join(f"{name}\n" for name in labels).encode()


def encode(info: MediaPipeInfo, inputs: Sequence[str]) -> bytes:
    """The metadata as a flatbuffer; comments name the schema's tables.

    Args:
        info: What to write.
        inputs: MediaPipe's names of the inputs, in the order of the graph's inputs.

    Returns:
        Content of the buffer.
    """
    import flatbuffers

    b = flatbuffers.Builder(1024)

    def table(texts: Mapping[int, str], offsets: Mapping[int, int] = _NONE, small: Mapping[int, int] = _NONE) -> int:
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

    tensors = vector([table({0: name, 1: _INPUTS[name]}) for name in inputs])  # TensorMetadata
    labels = {6: file(LABELS_FILE, "Labels in the order of the output.", _AXIS_LABELS)} if info.labels else {}
    outputs = vector([table({0: "probability" if info.labels else "embedding", 1: info.output}, labels)])
    tokenizer = table({}, {0: file(VOCABULARY_FILE, "WordPiece vocabulary.", _VOCABULARY)})  # BertTokenizerOptions
    units = vector([table({}, {1: tokenizer}, {0: _BERT_TOKENIZER})])  # ProcessUnit
    graph = vector([table({}, {2: tensors, 3: outputs, 5: units})])  # SubGraphMetadata
    root = table(  # ModelMetadata
        {
            0: info.name,
            1: info.description,
            2: info.version,
            4: info.author,
            5: info.license,
            7: MIN_PARSER_VERSION,
        },
        {3: graph},
    )
    b.Finish(root, file_identifier=IDENTIFIER)
    return bytes(b.Output())


class _Table:
    """A flatbuffers table read by slot."""

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
        if not (offset := int(self.table.Offset(4 + 2 * slot))):
            return []
        start, count = int(self.table.Vector(offset)), int(self.table.VectorLen(offset))
        places = range(start, start + 4 * min(count, _MAX_CHILDREN), 4)
        return [_Table(self.table.Bytes, int(self.table.Indirect(at))) for at in places]


def decode(raw: bytes) -> Metadata:
    """Read what `encode`, or MediaPipe's own writer, wrote.

    Args:
        raw: Content of the buffer.

    Returns:
        The parts that MediaPipe's text tasks look at.

    Raises:
        InputError: If this is no metadata, or damaged.
    """
    if raw[4:8] != IDENTIFIER:
        raise InputError(Problem("metadata", f"identifier {raw[4:8]!r} instead of {IDENTIFIER!r}."))
    try:
        return _read(raw)
    except (struct.error, IndexError, TypeError, ValueError) as error:
        raise InputError(Problem("metadata", f"damaged: {error}.")) from error


def _read(raw: bytes) -> Metadata:
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
