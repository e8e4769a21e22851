import json
from pathlib import Path
from types import SimpleNamespace as Some

from coremltools import ComputeUnit


class MLCPUComputeDevice: ...


class MLGPUComputeDevice: ...


class MLNeuralEngineComputeDevice: ...


def _op(name, *blocks):
    return Some(operator_name=name, blocks=list(blocks))


class MLComputePlan:
    def __init__(self, unit):
        inner = Some(operations=[_op("ios18.gelu")])
        block = Some(operations=[_op("const"), _op("ios18.gather"), _op("ios18.linear"), _op("ios18.cond", inner)])
        self.model_structure = Some(program=Some(functions={"main": Some(block=block)}))
        self._fast = MLCPUComputeDevice if unit is ComputeUnit.CPU_ONLY else MLNeuralEngineComputeDevice

    @classmethod
    def load_from_path(cls, path, compute_units=ComputeUnit.ALL):
        if "planless" in json.loads((Path(path) / "model.json").read_text()):
            raise ValueError("MLComputePlan is not supported.")
        return cls(compute_units)

    def get_compute_device_usage_for_mlprogram_operation(self, operation):
        device = {
            "ios18.gather": MLCPUComputeDevice,
            "ios18.linear": self._fast,
            "ios18.gelu": MLGPUComputeDevice,
        }
        kind = device.get(operation.operator_name)
        return None if kind is None else Some(preferred_compute_device=kind(), supported_compute_devices=[kind()])

    def get_estimated_cost_for_mlprogram_operation(self, operation):
        cost = {"ios18.gather": 0.1, "ios18.linear": 0.7, "ios18.gelu": 0.2}.get(operation.operator_name)
        return None if cost is None else Some(weight=cost)
