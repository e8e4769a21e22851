"""A file that was compiled for an NPU."""

from __future__ import annotations

from pocketbert.benchmarks.records import Compilation, Estimate, LeftNodes, OperatorCycles
from pocketbert.core.types import Provenance

REASON = LeftNodes(op_type="GELU", nodes=3, reason="Unsupported IFM type: Int16")


def compilation(device: str, length: int = 64, **changes: object) -> Compilation:
    times = {"clock_mhz": 500, "time_ms": 20.47, "cycles": 10_235_000, "npu_cycles": 7_500_000}
    sizes = {"sram_bytes": 442_000, "dram_bytes": 0, "flash_bytes": 5_500_000}
    traffic = {"sram_traffic": 38_000_000, "dram_traffic": 0, "flash_traffic": 7_000_000}
    estimate = Estimate(
        **{"system": "A_System", "memory": "A_Mode", "products_left": 2, **times, **sizes, **traffic},
        operators=[OperatorCycles(op_type="SOFTMAX", cycles=900), OperatorCycles(op_type="ADD", cycles=100)],
        provenance=Provenance.ESTIMATED,
    )
    given = Compilation(
        variant="tflite/model_a16w8_npu.tflite",
        sha256="0" * 64,
        bytes=17_700_000,
        device=device,
        target=f"the target of {device}",
        engine="vela",
        engine_version="5",
        provenance=Provenance.COMPILED_ONLY,
        length=length,
        op_types={"FULLY_CONNECTED": 20},
        partitions=2,
        left=[REASON],
        compiled_bytes=1,
        compile_s=1.0,
        answers=None,
        estimate=estimate,
    )
    return given.model_copy(update=changes)
