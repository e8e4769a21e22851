"""Print how far an ONNX file's answers depend on the batch and on padding, and which operators make the difference.

    OMP_NUM_THREADS=1 python lab/runtimes/same_answers.py FOLDER dev.jsonl.gz --file model_a8w8.onnx --file model_int8.onnx

Rows are run by themselves, in batches, and padded; one thread. For each way it prints the share of quantized operands of products
that differ from the row by itself, and the largest difference of the logits, of their spread. ``--operators`` lists the operators that
gave other results though all that they read was equal: these are the cause.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from pocketbert.core.artefacts import read_artefacts
from pocketbert.core.data.reading import read_examples
from pocketbert.core.data.source import DataSource
from pocketbert.core.predict.inputs import Encoded
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.runtime.onnx import OnnxPredictor

OPERANDS = ("QuantizeLinear", "DynamicQuantizeLinear")
Tensors = dict[str, NDArray[Any]]


class Watched:
    """A file with the results of its operators as further outputs.

    Attributes:
        nodes: Its operators, in order.
        operands: Names of the quantized inputs of products.
        answer: Name of the logits.
    """

    def __init__(self, path: Path, every: bool, folder: Path) -> None:
        model = onnx.load(path)
        self.nodes = list(model.graph.node)
        self.answer = model.graph.output[0].name
        self.operands = [n.output[0] for n in self.nodes if n.op_type in OPERANDS]
        names = [o for n in self.nodes for o in n.output] if every else self.operands
        there = {o.name for o in model.graph.output}
        model.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names if n and n not in there)
        shown = folder / path.name
        onnx.save(model, shown)
        self._predictor = OnnxPredictor(shown, threads=1)

    def run(self, feed: Tensors) -> Tensors:
        """Every watched tensor."""
        return dict(self._predictor.run(feed))


def part(many: NDArray[Any], one: NDArray[Any], row: int, batch: tuple[int, int]) -> NDArray[Any] | None:
    """What a row has in a batch of [B, L] tokens, without padding; None where the tensor has no row of its own."""
    rows, tokens = batch
    if many.ndim and many.shape[0] == rows * tokens and rows * tokens > one.shape[0] > 1:  # all tokens below each other
        many, one = many.reshape(rows, tokens, *many.shape[1:]), one[None]
        return many[row : row + 1, : one.shape[1]][0]
    if many.ndim != one.ndim or not one.ndim or one.shape[0] != 1:
        return many if many.shape == one.shape else None
    own = many[row : row + 1] if many.shape[0] > 1 else many
    return own[tuple(slice(0, size) for size in one.shape)]


def causes(watched: Watched, one: Tensors, many: Tensors, row: int, batch: tuple[int, int]) -> Counter[str]:
    """Operators with equal inputs and other results."""
    same = {n: (p := part(many[n], one[n], row, batch)) is None or np.array_equal(p, one[n]) for n in one}
    return Counter(
        node.op_type
        for node in watched.nodes
        if node.op_type != "Shape"
        and all(same.get(n, True) for n in node.input)
        and not all(same.get(n, True) for n in node.output)
    )


def compare(
    watched: Watched, tokenizer: TextTokenizer, rows: list[Encoded], batch: int, padded: int, every: bool
) -> None:
    """Print the table of one file."""
    logits, found = [], dict[str, list[Any]]()
    ways = {f"batch of {batch}": (batch, 0), f"padded to {padded}": (1, padded), "both": (batch, padded)}
    for start in range(0, len(rows), batch):
        some = rows[start : start + batch]
        alone = [watched.run(tokenizer.pad([r])) for r in some]
        logits += [a[watched.answer][0] for a in alone]
        for way, (size, length) in ways.items():
            total = found.setdefault(way, [0, 0, 0.0, Counter()])
            for at in range(0, len(some), size):
                group = some[at : at + size]
                feed = tokenizer.pad(group, length or None)
                many, shape = watched.run(feed), feed["input_ids"].shape
                for i, one in enumerate(alone[at : at + size]):
                    for name in watched.operands:
                        own = part(many[name], one[name], i, shape)
                        assert own is not None and own.shape == one[name].shape, name
                        total[0] += int(np.count_nonzero(own != one[name]))
                        total[1] += one[name].size
                    moved = np.abs(many[watched.answer][i] - one[watched.answer][0]).max()
                    total[2] = max(total[2], float(moved))
                    total[3] += causes(watched, one, many, i, shape) if every else Counter()
    spread = np.stack(logits).std(0).max()
    for way, (wrong, count, worst, operators) in found.items():
        print(f"| {way} | {wrong:,} of {count:,} | {wrong / count:.1e} | {worst / spread:.1e} |")
        if every:
            print(f"  operators with equal inputs and other results: {dict(operators.most_common())}")


def main() -> None:
    """Read rows, run every file, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("data")
    parser.add_argument("--file", action="append", required=True)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--padded", type=int, default=64)
    parser.add_argument("--operators", action="store_true")
    asked = parser.parse_args()
    tokenizer = TextTokenizer(asked.folder, read_artefacts(asked.folder).processing.max_length)
    examples = read_examples(DataSource.at(asked.data))[: asked.rows]
    rows = [r for r in tokenizer.encode([e.input for e in examples]) if len(r) <= asked.padded]
    with tempfile.TemporaryDirectory() as name:
        for file in asked.file:
            watched = Watched(asked.folder / "onnx" / file, asked.operators, Path(name))
            print(
                f"{file}, {len(rows)} rows\n| way | operands that differ | share | largest difference of logits |\n|---|---:|---:|---:|"
            )
            compare(watched, tokenizer, rows, asked.batch, asked.padded, asked.operators)


if __name__ == "__main__":
    main()
