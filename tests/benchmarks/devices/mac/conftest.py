"""The folder's script as a module."""

import importlib.util
import platform
import sys

import pytest

from pocketbert.benchmarks.devices.mac.script import FILE_NAME


@pytest.fixture
def mac(mac_phone, mac_kit, monkeypatch):
    """The folder's script as a module, on a Mac that is none."""
    spec = importlib.util.spec_from_file_location("benchmark_on_mac", mac_phone / "coreml" / FILE_NAME)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    real = {n: m for n, m in sys.modules.items() if n.partition(".")[0] == "coremltools"}
    for name in real:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(mac_kit.fake))
    monkeypatch.setenv("PYTHONPATH", str(mac_kit.fake))  # for the processes that it starts
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    yield module
    for name in [n for n in sys.modules if n.partition(".")[0] == "coremltools"]:
        del sys.modules[name]
    sys.modules.update(real)
