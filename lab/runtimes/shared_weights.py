"""What int8 weights that products share (ALBERT) cost as uint8: writes the second file, and counts instructions on emulated Arm.

`compare_files.py` compares the times of both files on this machine.

Run: python lab/runtimes/shared_weights.py int8.onnx uint8.onnx [--cpu neoverse-n1 cortex-a53] [--length 16]

docs/lab/devices.md tells what `--cpu` needs. The inputs are those of BERT.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
from arm64_totals import totals

from pocketbert.benchmarks.devices.qemu import PROCESSORS
from pocketbert.core.errors import PocketBertError
from pocketbert.core.types import Format
from pocketbert.runtime.engines import EngineFile
from pocketbert.runtime.onnx import convert_shared_weights_to_uint8

INFERENCES = 2


def main() -> int:
    """Write, count, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("signed", type=Path, help="file with int8 weights that products share")
    parser.add_argument("unsigned", type=Path, help="file to write, with these in uint8")
    parser.add_argument("--cpu", nargs="*", default=[], choices=list(PROCESSORS), help="count on these")
    parser.add_argument("--length", type=int, default=16, help="tokens; default 16")
    asked = parser.parse_args()
    content = convert_shared_weights_to_uint8(asked.signed)
    if content is None:
        parser.error(f"{asked.signed}: no integer products share an int8 weight")
    if asked.unsigned.exists():
        parser.error(f"{asked.unsigned}: is there already")
    ids = np.arange(asked.length, dtype=np.int64)[None] * 7 % 997 + 1000
    feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "uint8.onnx"
        made.write_bytes(content)
        files = [(EngineFile(path, Format.ONNX), feed) for path in (asked.signed, made)]
        try:
            for cpu in asked.cpu:
                int8, uint8 = (n / INFERENCES / 1e6 for n in totals(f"qemu-arm64:{cpu}", files, INFERENCES))
                print(
                    f"{cpu}: {int8:,.1f} million instructions with int8, {uint8:,.1f} with uint8, {uint8 / int8:.2f} times"
                )
        except PocketBertError as error:
            print(error, file=sys.stderr)
            return 2
    asked.unsigned.write_bytes(content)
    print(f"written: {asked.unsigned}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
