"""Which operators of a TFLite file for an NPU compute other bits on an emulated Arm processor than on this machine.

Such a file is in integers from its tables to its answer. A copy of it has the result of every operator as an output; an operator
is compared where all that it reads is equal on both. Three kinds may differ by one step (`DIFFERENT`): LiteRT's kernels for Arm and
x86 round them in different ways. The command ends with 3 where another one differs, or these do by more.

Run: python lab/runtimes/arm64_operators.py -m phone [--cpu cortex-a76] [--texts 12]

docs/lab/devices.md tells what that needs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.benchmarks.devices import connect
from pocketbert.benchmarks.devices.protocol import Answering
from pocketbert.benchmarks.devices.qemu import DEFAULT, PROCESSORS
from pocketbert.benchmarks.devices.vendor_tools import operator_name
from pocketbert.benchmarks.inputs import Feed, make_feeds
from pocketbert.benchmarks.records import TEXT
from pocketbert.core.artefacts import find_artefact_folder, read_artefacts
from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.errors import PocketBertError
from pocketbert.core.model_files import dump_model, load_model, tflite_schema
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.types import Format, Runtime
from pocketbert.quantize.tflite.rewrites import operator_code
from pocketbert.runtime.engines import EngineFile

DIFFERENT = {"SOFTMAX to int8": 1, "GELU to int16": 1, "FULLY_CONNECTED to int16": 1}
"""Kinds of operators that LiteRT 2.3 rounds otherwise on Arm, and by how many steps their results may differ."""
Results = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Operator:
    """An operator of the graph.

    Attributes:
        number: Its place.
        kind: What it computes.
        reads: Places of the operators whose results it reads.
    """

    number: int
    kind: str
    reads: tuple[int, ...]

    @property
    def name(self) -> str:
        """The output that its result is."""
        return f"{self.number:04d} {self.kind}"


@dataclass(frozen=True)
class Compared:
    """All operators of one kind, over some texts.

    Attributes:
        kind: What they compute, and the type of their results.
        results: Results that were compared: one for each operator and text.
        differ: Those of them that differ.
        numbers: Numbers in them that differ.
        steps: Largest difference of a number, in steps of its type.
    """

    kind: str
    results: int = 0
    differ: int = 0
    numbers: int = 0
    steps: int = 0

    @property
    def passed(self) -> bool:
        """Whether they differ no more than they may."""
        return self.steps <= DIFFERENT.get(self.kind, 0)

    def __str__(self) -> str:
        found = (
            f"{self.differ} differ, in {self.numbers} numbers by at most {self.steps}" if self.differ else "all equal"
        )
        return f"{self.kind}: {self.results} results compared, {found}"


def write_copy(source: Path, destination: Path) -> list[Operator]:
    """Write a copy whose outputs are the results of all operators; the operators in their order."""
    model, schema = load_model(source.read_bytes()), tflite_schema()
    graph, signature = model.subgraphs[0], model.signatureDefs[0]
    outputs, made_by, out = [int(i) for i in graph.outputs], dict[int, int](), list[Operator]()
    for number, op in enumerate(graph.operators):
        kind = operator_name(operator_code(model, op))
        read = sorted({made_by[int(i)] for i in op.inputs if int(i) in made_by})
        out.append(Operator(number, kind, tuple(read)))
        for index in map(int, op.outputs):
            made_by[index] = number
            outputs += [] if index in outputs else [index]
        result = schema.TensorMapT()
        result.name, result.tensorIndex = out[-1].name.encode(), int(op.outputs[0])
        signature.outputs.append(result)
    graph.outputs = outputs
    destination.write_bytes(dump_model(model))
    return out


def compare(operators: Sequence[Operator], here: Sequence[Results], there: Sequence[Results]) -> list[Compared]:
    """Compare the results of operators that read the same, by kind.

    Args:
        operators: The operators of the graph.
        here: Their results on this machine, one entry per text.
        there: Those on the other processor.
    """
    found = dict[str, Compared]()
    for ours, theirs in zip(here, there, strict=True):
        equal = dict[int, bool]()
        for op in operators:
            one, other = ours[op.name], theirs[op.name]
            equal[op.number] = one.dtype == other.dtype and one.tobytes() == other.tobytes()
            if not all(equal[number] for number in op.reads):
                continue
            apart = np.abs(one.astype(np.float64) - other.astype(np.float64))
            most = 0 if equal[op.number] else max(1, int(np.ceil(apart.max())))
            kind = f"{op.kind} to {one.dtype}"
            so_far = found.get(kind, Compared(kind))
            found[kind] = Compared(
                kind,
                so_far.results + 1,
                so_far.differ + (not equal[op.number]),
                so_far.numbers + int((apart > 0).sum()),
                max(so_far.steps, most),
            )
    return sorted(found.values(), key=lambda one: one.kind)


def operators_on(device: str, path: Path, inputs: Sequence[Feed]) -> list[Compared]:
    """Compare the operators of a file with those on a device.

    Args:
        device: The device, e.g. ``qemu-arm64:cortex-a76``.
        path: The file.
        inputs: Inputs of the file's length.
    """
    with closing(connect(device)) as connection, tempfile.TemporaryDirectory(prefix="pocketbert-operators-") as name:
        assert isinstance(connection, Answering)
        copy = EngineFile(Path(name) / path.name, Format.TFLITE, Runtime.NPU)
        operators, predictor = write_copy(path, copy.path), copy.open(1)
        here = [predictor.run(feed) for feed in inputs]
        return compare(operators, here, connection.answers(copy, inputs))


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare every file for an NPU, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", type=Path, required=True, help="artefact folder")
    parser.add_argument("--cpu", default=DEFAULT, choices=list(PROCESSORS), help=f"default {DEFAULT}")
    parser.add_argument("--texts", type=int, default=12, help="sentences of the project to compare on; default 12")
    given = parser.parse_args(arguments)
    passed = True
    try:
        folder = find_artefact_folder(given.model)
        artefacts = read_artefacts(folder)
        for record in artefacts.models():
            if record.format is not Format.TFLITE or record.runtime is not Runtime.NPU:
                continue
            path = folder / record.path
            lengths = EngineFile(path, record.format, record.runtime).lengths
            tokenizer = TextTokenizer(folder, min(artefacts.processing.max_length, *lengths))
            inputs = make_feeds(tokenizer, SENTENCES[: given.texts], TEXT, lengths)
            print(f"{record.path} on {given.cpu}, emulated, {len(inputs)} texts")
            for one in operators_on(f"qemu-arm64:{given.cpu}", path, inputs):
                print(f"  {one}{'' if one.passed else ': FAILED'}")
                passed &= one.passed
    except PocketBertError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0 if passed else 3


if __name__ == "__main__":
    sys.exit(main())
