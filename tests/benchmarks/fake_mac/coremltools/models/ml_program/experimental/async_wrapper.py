"""A package on a device: the fake's own model, with the times that the package tells."""

import json
import tempfile
from pathlib import Path

from coremltools import ComputeUnit
from coremltools.models import CompiledMLModel
from coremltools.models.compute_plan import MLComputePlan
from coremltools.models.utils import INSIDE


class MLModelAsyncWrapper:
    @staticmethod
    def from_spec_or_path(
        spec_or_path,
        weights_dir,
        compute_units=ComputeUnit.ALL,
        function_name=None,
        optimization_hints=None,
        device=None,
    ):
        assert isinstance(spec_or_path, str) and isinstance(weights_dir, str)
        assert device.session is not None
        return RemoteMLModelAsyncWrapper(spec_or_path, compute_units)


class RemoteMLModelAsyncWrapper:
    loads = 0

    def __init__(self, path, unit):
        self._path, self._unit, self._loaded = Path(path), unit, False
        self.load_duration_in_nano_seconds = self.last_predict_duration_in_nano_seconds = None

    async def load(self):
        wish = json.loads((self._path / INSIDE).read_text())
        with tempfile.TemporaryDirectory() as compiled:
            (Path(compiled) / "model.json").write_text(json.dumps(wish))
            self._model = CompiledMLModel(compiled, self._unit)
        self._told, self._loaded = wish.get("told", 5000), True
        RemoteMLModelAsyncWrapper.loads += 1
        self.load_duration_in_nano_seconds = 1_000_000 * RemoteMLModelAsyncWrapper.loads

    async def unload(self):
        self._loaded = False

    async def predict(self, inputs, state=None):
        assert self._loaded
        self.last_predict_duration_in_nano_seconds = self._told
        return self._model.predict(inputs)

    async def retrieve_compute_plan(self):
        return MLComputePlan(self._unit)
