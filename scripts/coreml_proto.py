"""Generate the protobuf classes of runtime/coreml/proto from its .proto file.

    uv venv /tmp/protoc && uv pip install --python /tmp/protoc/bin/python 'grpcio-tools==1.62.3' 'setuptools<81'
    /tmp/protoc/bin/python scripts/coreml_proto.py

A newer protoc would tie the generated code to the protobuf major version that it belongs to.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "runtime" / "coreml" / "proto"
NAME = "mlpackage"
HEADER = """# Generated from mlpackage.proto by scripts/coreml_proto.py (grpcio-tools 1.62.3); do not edit.
# Derived from coremltools, Copyright (c) 2017-2025, Apple Inc., BSD-3-Clause: see LICENSE.txt.
# fmt: off
# ruff: noqa
# mypy: ignore-errors
"""


def main() -> None:
    """Run protoc, and put the header in front of the files that it wrote."""
    # the path given to protoc is the name in the descriptor pool, where coremltools' files live too
    root = FOLDER.parents[2]
    path = FOLDER.relative_to(root) / f"{NAME}.proto"
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", "-I.", "--python_out=.", "--pyi_out=.", str(path)],
        cwd=root,
        check=True,
    )
    for ending in ("py", "pyi"):
        written = FOLDER / f"{NAME}_pb2.{ending}"
        written.write_text(HEADER + written.read_text(encoding="utf-8"), encoding="utf-8")


if __name__ == "__main__":
    main()
