"""The folder's script as a module."""

import importlib
import platform
import sys
from pathlib import Path

import pytest

from pocketbert.benchmarks.imported.mac import MAC_SCRIPT_NAME
from support import mac_kit


@pytest.fixture
def mac(mac_phone, monkeypatch):
    """The folder's script as a module, on a Mac that is none."""
    name = Path(MAC_SCRIPT_NAME).stem
    monkeypatch.syspath_prepend(str(mac_phone / "coreml"))
    monkeypatch.delitem(sys.modules, name, raising=False)
    module = importlib.import_module(name)
    real = {n: m for n, m in sys.modules.items() if n.partition(".")[0] == "coremltools"}
    for name in real:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(mac_kit.FAKE))
    monkeypatch.setenv("PYTHONPATH", str(mac_kit.FAKE))  # for the processes that it starts
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    yield module
    sys.modules.pop(name, None)
    for name in [n for n in sys.modules if n.partition(".")[0] == "coremltools"]:
        del sys.modules[name]
    sys.modules.update(real)
