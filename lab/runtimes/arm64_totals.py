"""How well counted instructions repeat: totals of 30 fixed inferences on an emulated Arm processor, each time in a new emulator.

Run: python lab/runtimes/arm64_totals.py -m phone [--file onnx/model_int8.onnx] [--cpu neoverse-n1] [--length 32] [--starts 3]

docs/lab/devices.md tells what that needs. The goal is 0.5 %.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from pocketbert.benchmarks.devices import connect
from pocketbert.benchmarks.devices.qemu import PROCESSORS
from pocketbert.benchmarks.inputs import Feed, make_feeds
from pocketbert.core.artefacts import find_artefact_folder, read_artefacts
from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.errors import PocketBertError
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.types import Format
from pocketbert.runtime.engines import EngineFile

INFERENCES, WARM_UP = 30, 3


def totals(device: str, counted: Sequence[tuple[EngineFile, Feed]], inferences: int = INFERENCES) -> list[int]:
    """Instructions of some inferences together, in a new emulator.

    Args:
        device: The device, e.g. ``qemu-arm64:neoverse-n1``.
        counted: Files, each with the input of all its inferences.
        inferences: How many.

    Returns:
        One number per file.
    """
    out = []
    with closing(connect(device)) as connection:
        for file, feed in counted:
            burst = connection.open(file, 1).prepare([feed])
            burst(range(WARM_UP))
            out.append(round(sum(sample.guest_instructions or 0.0 for sample in burst(range(inferences)))))
    return out


def apart(counts: Sequence[int]) -> float:
    """How far the largest of several totals is from the smallest, as a fraction of the smallest."""
    return max(counts) / min(counts) - 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Count, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", type=Path, required=True, help="artefact folder")
    parser.add_argument("--file", action="append", help="path of a file in the folder; default all without a runtime")
    parser.add_argument("--cpu", default="neoverse-n1", choices=list(PROCESSORS), help="default neoverse-n1")
    parser.add_argument("--length", type=int, default=32, help="tokens; default 32")
    parser.add_argument("--starts", type=int, default=3, help="emulators; default 3")
    given = parser.parse_args(arguments)
    try:
        folder, device = find_artefact_folder(given.model), f"qemu-arm64:{given.cpu}"
        artefacts = read_artefacts(folder)
        tokenizer = TextTokenizer(folder, artefacts.processing.max_length)
        records = [r for r in artefacts.models() if r.format in (Format.ONNX, Format.TFLITE) and r.plain]
        records = [r for r in records if r.path in (given.file or [r.path])]
        files = [EngineFile(folder / r.path, r.format, r.runtime) for r in records]
        inputs = [make_feeds(tokenizer, SENTENCES, given.length, file.open(1).lengths)[0] for file in files]
        found = [totals(device, list(zip(files, inputs, strict=True))) for _ in range(given.starts)]
    except PocketBertError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    for record, counts in zip(records, zip(*found, strict=True), strict=True):
        words = ", ".join(f"{count:,}" for count in counts)
        print(f"{record.path}: {words} instructions of {INFERENCES} inferences, {apart(counts):.5%} apart")
    return 0


if __name__ == "__main__":
    sys.exit(main())
