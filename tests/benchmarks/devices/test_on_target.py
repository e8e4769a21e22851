from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pocketbert.benchmarks.devices.on_target.worker import _OnnxFile
from pocketbert.quantize.onnx.qnn import fix_shape


def test_a_worker_tells_the_one_length_of_a_file_for_an_npu(exported: Callable[[str], Path], tmp_path: Path) -> None:
    path = tmp_path / "fixed.onnx"
    path.write_bytes(exported("bert").read_bytes())
    assert _OnnxFile(str(path), 1, {}).lengths == ()
    fix_shape(path, 24)
    assert _OnnxFile(str(path), 1, {}).lengths == (24,)
