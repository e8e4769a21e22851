"""The stand-in for coremltools against the installed library."""

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support import mac_kit


def test_the_fake_is_the_part_of_coremltools_that_the_script_uses(mac):
    """Names and arguments against the installed library: a fake that drifts would test nothing."""
    code = (
        "import inspect, json, logging; logging.getLogger('coremltools').setLevel(logging.ERROR); import coremltools as ct; "
        "from coremltools.models import compute_plan as p, compute_device as d; "
        "names = [u.name for u in ct.ComputeUnit]; "
        "arguments = lambda f: list(inspect.signature(f).parameters); "
        "print(json.dumps([names, arguments(ct.models.CompiledMLModel.__init__), arguments(ct.models.CompiledMLModel.predict), "
        "arguments(ct.models.utils.compile_model), arguments(ct.models.utils.load_spec), arguments(p.MLComputePlan.load_from_path), "
        "arguments(p.MLComputePlan.get_estimated_cost_for_mlprogram_operation), "
        "arguments(p.MLComputePlan.get_compute_device_usage_for_mlprogram_operation), "
        "[hasattr(d, n) for n in ('MLCPUComputeDevice', 'MLGPUComputeDevice', 'MLNeuralEngineComputeDevice')], "
        "ct.proto.FeatureTypes_pb2.ArrayFeatureType.INT32]))"
    )
    if not _real_coremltools():
        pytest.skip("coremltools is not installed")
    clean = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=clean, check=False)
    assert done.returncode == 0, done.stderr
    units, opening, predicting, compiling, loading, planning, costing, using, devices, int32 = json.loads(
        done.stdout.splitlines()[-1]
    )
    import coremltools as fake
    from coremltools.models import compute_plan

    def arguments(function):
        return list(inspect.signature(function).parameters)

    assert Path(fake.__file__).is_relative_to(mac_kit.FAKE)
    assert sorted(units) == sorted(u.name for u in fake.ComputeUnit) == sorted(mac.UNITS.values())
    assert opening == arguments(fake.models.CompiledMLModel.__init__)
    assert predicting == arguments(fake.models.CompiledMLModel.predict)
    assert compiling == arguments(fake.models.utils.compile_model)
    assert loading[:1] == arguments(fake.models.utils.load_spec)
    assert planning == arguments(compute_plan.MLComputePlan.load_from_path)
    assert costing == arguments(compute_plan.MLComputePlan.get_estimated_cost_for_mlprogram_operation)
    assert using == arguments(compute_plan.MLComputePlan.get_compute_device_usage_for_mlprogram_operation)
    assert devices == [True] * 3
    assert int32 == mac.INT32


def _real_coremltools():
    clean = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec('coremltools') is None)"
    return subprocess.run([sys.executable, "-c", code], env=clean, check=False).returncode == 0
