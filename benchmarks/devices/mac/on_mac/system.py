"""Tell what this Mac is, and where Core ML expects to run each operator."""

from __future__ import annotations

import importlib
import os
import platform
from collections.abc import Callable
from typing import Any

from pocketbert.benchmarks.devices.mac.on_mac.common import command_output, reason

DEVICES = {"NeuralEngine": "Neural Engine", "GPU": "GPU", "CPU": "CPU"}
ISA = {
    "hw.optional.arm.FEAT_DotProd": "asimddp", "hw.optional.arm.FEAT_I8MM": "i8mm", "hw.optional.arm.FEAT_BF16": "bf16",
    "hw.optional.arm.FEAT_SME": "sme", "hw.optional.avx2_0": "avx2", "hw.optional.avx512f": "avx512f",
}  # fmt: skip


def machine() -> dict[str, Any]:
    """What this Mac is; what it does not tell is an empty text."""
    power, memory = command_output("pmset", "-g", "batt"), command_output("sysctl", "-n", "hw.memsize")
    return {
        "model": command_output("sysctl", "-n", "hw.model"), "chip": command_output("sysctl", "-n", "machdep.cpu.brand_string"),
        "arch": platform.machine(), "isa": [name for key, name in ISA.items() if command_output("sysctl", "-n", key) == "1"],
        "cores": os.cpu_count() or 1, "memory_bytes": int(memory) if memory.isdecimal() else 0,
        "macos": platform.mac_ver()[0], "build": command_output("sysctl", "-n", "kern.osversion"),
        "python": platform.python_version(), "power": power.partition("'")[2].partition("'")[0],
        "thermal": " ".join(command_output("pmset", "-g", "therm").split())[:200],
    }  # fmt: skip


def local_plan(compiled: str, unit: Any) -> Any:
    """Core ML's compute plan of this Mac."""
    plans = importlib.import_module("coremltools.models.compute_plan")
    return plans.MLComputePlan.load_from_path(path=compiled, compute_units=unit)


def compute_plan(load: Callable[[], Any]) -> dict[str, Any]:
    """Which device Core ML expects to run each operator, with its own estimate of the cost, or why that is not known."""
    try:
        plan = load()
        devices: dict[str, dict[str, Any]] = {}
        constants = 0
        todo = [f.block for f in plan.model_structure.program.functions.values()]
        while todo:
            for operation in todo.pop().operations:
                todo += operation.blocks
                usage = plan.get_compute_device_usage_for_mlprogram_operation(operation)
                cost = plan.get_estimated_cost_for_mlprogram_operation(operation)
                kind = operation.operator_name.rpartition(".")[2]  # ios18.linear
                if usage is None and (kind == "const" or kind.startswith("constexpr_")):
                    constants += 1
                    continue
                device = type(usage.preferred_compute_device).__name__ if usage is not None else ""
                name = next((n for k, n in DEVICES.items() if k in device), "undecided")
                found = devices.setdefault(name, {"device": name, "cost": 0.0, "op_types": {}})
                found["cost"] += cost.weight if cost is not None else 0.0
                found["op_types"][kind] = found["op_types"].get(kind, 0) + 1
    except Exception as error:  # older coremltools or macOS
        return {"absent": reason(error)}
    return {"devices": sorted(devices.values(), key=lambda d: str(d["device"])), "constants": constants}
