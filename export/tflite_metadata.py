"""TFLite metadata for MediaPipe Tasks: which input is which, the labels, the vocabulary.

Written by slot numbers of the public schema, so that nothing of MediaPipe is needed. MediaPipe reads neither config.json
nor tokenizer.json: what is packed here is all it knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pocketbert.core.errors import InputError
from pocketbert.export.tflite_buffers import (
    METADATA_NAMES,
    dump_model,
    graph_problems,
    inner_metadata,
    load_model,
    signature_inputs,
)
from pocketbert.export.tflite_files import pack_files, read_files
from pocketbert.export.tflite_metadata_schema import MediaPipeInfo, Metadata, decode, encode, labels_file

__all__ = [
    "MediaPipeInfo",
    "Metadata",
    "metadata_problems",
    "pack_files",
    "read_files",
    "read_metadata",
    "write_metadata",
]

BUFFER_NAME = b"TFLITE_METADATA"


def write_metadata(model: bytes, info: MediaPipeInfo) -> bytes:
    """Add metadata and packed files to a model, or replace those that it has.

    Weights stored behind the flatbuffer (ai-edge-quantizer) are moved inside, and nothing else changes.

    Args:
        model: A .tflite with one signature: int32 inputs input_ids, attention_mask, token_type_ids of [1, L],
            one float32 output [1, N].
        info: What to write.

    Returns:
        The file for MediaPipe Tasks.

    Raises:
        InputError: If this is no TFLite model, or labels or vocabulary cannot be written.
        GateError: If inputs or outputs are not as above.
    """
    loaded = load_model(model)
    raw = encode(info, [METADATA_NAMES[name] for name in signature_inputs(loaded)])
    _set_buffer(loaded, raw)
    return pack_files(dump_model(loaded), info.files)


def read_metadata(model: bytes) -> Metadata | None:
    """Read the metadata of a file.

    Args:
        model: A .tflite file.

    Returns:
        What MediaPipe reads of it, or None if there is none.

    Raises:
        InputError: If the model or its metadata is damaged.
    """
    raw = inner_metadata(model, BUFFER_NAME)
    return None if raw is None else decode(raw)


def metadata_problems(model: bytes, labels: Sequence[str], vocabulary: bytes) -> list[str]:
    """What is wrong with a file for MediaPipe; empty if it may be shipped.

    Args:
        model: A .tflite file.
        labels: Labels of config.json in the order of the ids; empty for an embedder.
        vocabulary: Content of the folder's vocab.txt.

    Returns:
        One sentence per problem.
    """
    try:
        loaded, files, found = load_model(model), read_files(model), read_metadata(model)
        expected_labels = labels_file(labels)
    except InputError as error:
        return [str(p) for p in error.problems]
    if out := graph_problems(loaded):
        return out
    if found is None:
        return ["no metadata: MediaPipe refuses the file."]
    expected = tuple(METADATA_NAMES[name] for name in signature_inputs(loaded))
    if found.inputs != expected:
        out.append(f"the metadata calls the inputs {found.inputs}, the graph's order is {expected}.")
    if len(found.outputs) != 1:
        out.append(f"metadata for {len(found.outputs)} outputs; the graph has one.")
    if found.vocabulary_file is None or found.vocabulary_file not in files:
        out.append(f"no vocabulary: {found.vocabulary_file or 'no file'} named, {sorted(files)} packed.")
    elif files[found.vocabulary_file] != vocabulary:
        out.append("the packed vocabulary differs from the folder's vocab.txt.")
    if b"\n\n" in vocabulary or vocabulary[:1] == b"\n":
        out.append("the vocabulary has empty lines, which MediaPipe skips: all ids behind them shift.")
    width = int(loaded.subgraphs[0].tensors[int(loaded.subgraphs[0].outputs[0])].shape[1])
    if not labels:
        out += ["an embedder has labels."] if found.labels_file else []
    elif found.labels_file is None or found.labels_file not in files:
        out.append(f"no labels: {found.labels_file or 'no file'} named, {sorted(files)} packed.")
    elif files[found.labels_file] != expected_labels:
        out.append("the packed labels differ from config.json's, or their order does.")
    if labels and width != len(labels):
        out.append(f"the output has {width} numbers for {len(labels)} labels.")
    return out


def _set_buffer(model: Any, raw: bytes) -> None:
    """Point the metadata entry at a new buffer, reusing the old one's place."""
    import numpy as np
    from ai_edge_litert import schema_py_generated as schema

    entries = model.metadata or []
    entry = next((m for m in entries if m.name == BUFFER_NAME), None)
    if entry is None:
        entry = schema.MetadataT()
        entry.name = BUFFER_NAME
        entry.buffer = len(model.buffers)
        model.buffers.append(schema.BufferT())
        model.metadata = [*entries, entry]
    model.buffers[entry.buffer].data = np.frombuffer(raw, np.uint8)
