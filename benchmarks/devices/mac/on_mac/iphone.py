"""Measure on an iPhone that is connected to this Mac, through the runner app that coremltools builds and starts there."""

from __future__ import annotations

import asyncio
import importlib
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from pocketbert.benchmarks.devices.mac.on_mac.common import LOG, UNITS, RefusalError, command_output, ms
from pocketbert.benchmarks.devices.mac.on_mac.timing import WARMUP_LEAST, WINDOW, Cell

RUNS, REPEATS = 10, 3
"""Default of --runs and --repeats: each inference of an iPhone is a file that is sent and a file that comes back."""
STABLE_ON_PHONE = 0.1
"""Single calls after idle time vary by more than 3 %."""


class Iphone:
    """An iPhone with Apple's runner app, which Xcode builds, signs and starts.

    Args:
        wish: Name, identifier or UDID; empty for the only one that is connected.
        signing: `development_team`, or `provisioning_profile_uuid` with `bundle_identifier`.
    """

    def __init__(self, wish: str, signing: dict[str, str]) -> None:
        remote = importlib.import_module("coremltools.models.ml_program.experimental.remote_device")
        self._wrappers = importlib.import_module("coremltools.models.ml_program.experimental.async_wrapper")
        connected = remote.Device.get_connected_devices(remote.DeviceType.IPHONE)
        found = [d for d in connected if wish in ("", d.name, d.identifier, d.udid)]
        if len(found) != 1:
            there = f"{len(connected)} iPhones are connected" + (f", {len(found)} of them named {wish}" if wish else "")
            raise RefusalError(f"--iphone: {there}. Connect one, unlock it, switch its Developer Mode on, or name one.")
        self._loop = asyncio.new_event_loop()
        LOG.info("building, signing and starting the runner app on the iPhone")
        prepared = found[0].prepare_for_model_debugging(remote.AppSigningCredentials(**signing))
        self.device = self._loop.run_until_complete(prepared)

    def machine(self) -> dict[str, Any]:
        """What the iPhone is; what nobody tells is empty or 0. Its name, which is often its owner's, is left out."""
        hardware = _hardware(self.device.udid)
        return {
            "model": str(hardware.get("productType", "")),
            "chip": str(hardware.get("marketingName", "")) or "an iPhone",
            "arch": "arm64",
            "isa": [],
            "cores": 0,
            "memory_bytes": 0,
            "macos": "",
            "system": f"iOS {self.device.os_version}".strip(),
            "build": self.device.os_build_number,
            "python": "",
            "power": "",
            "thermal": "",
        }

    def start(self, tools: Any, package: Path, unit: str) -> tuple[PhoneModel, dict[str, Any]]:
        """Open a package on a compute unit twice, the first time of which Core ML prepares it for the unit."""
        first, again = (self._load(tools, package, unit) for _ in range(2))
        first.unload()
        return again, {"specialize_ms": first.load_ms, "load_ms": again.load_ms}

    def _load(self, tools: Any, package: Path, unit: str) -> PhoneModel:
        wrapper = self._wrappers.MLModelAsyncWrapper.from_spec_or_path(
            spec_or_path=str(package),
            weights_dir="",
            compute_units=getattr(tools.ComputeUnit, UNITS[unit]),
            device=self.device,
        )
        model = PhoneModel(wrapper, self._loop)
        model.load()
        return model


class PhoneModel:
    """A package that is open on an iPhone."""

    def __init__(self, wrapper: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._wrapper, self._loop = wrapper, loop

    def load(self) -> None:
        """Send the package and open it there."""
        self._loop.run_until_complete(self._wrapper.load())

    def unload(self) -> None:
        """Close it there."""
        self._loop.run_until_complete(self._wrapper.unload())

    def predict(self, feed: dict[str, Any]) -> Any:
        """Run one inference there."""
        return self._loop.run_until_complete(self._wrapper.predict(feed))

    def plan(self) -> Any:
        """Core ML's compute plan of the iPhone."""
        return self._loop.run_until_complete(self._wrapper.retrieve_compute_plan())

    @property
    def load_ms(self) -> float:
        """What opening took, by the iPhone's clock."""
        return _told(self._wrapper.load_duration_in_nano_seconds)

    @property
    def last_ms(self) -> float:
        """What the last inference took, by the iPhone's clock."""
        return _told(self._wrapper.last_predict_duration_in_nano_seconds)


class PhoneCell(Cell):
    """A cell whose time is that of the iPhone's clock around the inference, without the way there and back."""

    def __init__(self, name: str, unit: str, model: PhoneModel, length: int, feed: dict[str, Any]) -> None:
        super().__init__(name, unit, model, length, feed)
        self._phone = model
        self.content.update(cpu_ms=None, engine_ms=None)

    def once(self) -> tuple[float, float | None, float | None]:
        """Time of one inference in ms; the iPhone tells no CPU time."""
        self._phone.predict(self._feed)
        return self._phone.last_ms, None, None

    def warm_up(self) -> None:
        """Ten inferences: with a second of idle time before each, more of them warm nothing."""
        windows = [statistics.median(self.once()[0] for _ in range(WINDOW)) for _ in range(WARMUP_LEAST // WINDOW)]
        self.content.update(warmup_runs=WARMUP_LEAST, warmup_stable=abs(windows[-1] / windows[0] - 1) < STABLE_ON_PHONE)


def _told(nanoseconds: int | None) -> float:
    if not nanoseconds:
        raise RuntimeError("the iPhone told no time of it")
    return ms(nanoseconds)


def _hardware(udid: str) -> dict[str, Any]:
    """What Xcode knows of the device with this UDID; empty where it tells nothing."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "devices.json"
        command_output("xcrun", "devicectl", "list", "devices", "--json-output", str(path))
        try:
            devices = json.loads(path.read_text(encoding="utf-8"))["result"]["devices"]
            return next(d["hardwareProperties"] for d in devices if d["hardwareProperties"].get("udid") == udid)
        except (OSError, ValueError, LookupError, TypeError, StopIteration):
            return {}
