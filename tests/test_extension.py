"""One installed package adds a family, a method, a format with its schemes, and a device: no file of PocketBERT changes.

What each of them does is tested where it belongs; here one entry point brings all, through the names of
`pocketbert.plugins`, and the commands list them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.plugins import install

pytest.importorskip("torch", reason="needs pocketbert[train]")

PACKAGE = '''
from dataclasses import replace
from typing import Literal

from pydantic import Field

from pocketbert import plugins
from pocketbert.plugins import Device, DeviceInfo, Family, Figure, Format, Method, Optimisation, Provenance, Stage


class ExtraStage(Stage, Optimisation):
    """Method `extra`."""

    method: Literal["extra"] = Field(description="Distillation method.")


def register():
    plugins.register_family(
        Family(
            name="extra-family",
            title="Extra",
            model_types=("extra-family",),
            **{name: getattr(BERT, name) for name in FIELDS if name not in ("name", "title", "model_types")},
        )
    )
    plugins.register_method(Method(section=ExtraStage, train=lambda job: None))
    name = Format.register("extra")
    plugins.register_format(replace(FORMATS[Format.ONNX], name=name, title="Extra", suffix=".extra", bounds=FREE))
    plugins.register_engine(name, object)
    plugins.register_reader(name, plugins.Reader(lambda *_: None, lambda *_: None))
    for scheme in FORMATS[name].schemes:
        plugins.register_scheme(replace(find_row(Format.ONNX, scheme), format=name))
    info = DeviceInfo("extra-device", {Figure.LATENCY: Provenance.MEASURED}, "nothing")
    plugins.register_device(Device(info, lambda argument: None, lambda format, runtime: ""))


from dataclasses import fields

from pocketbert.core.families import family_of
from pocketbert.core.formats import FORMATS
from pocketbert.quantize.table import find_row

BERT = family_of("bert")
FIELDS = [f.name for f in fields(BERT)]
FREE = {key: bounds for key, bounds in FORMATS[Format.ONNX].bounds.items() if key[1] is None}
'''


COMMANDS = """
import json, sys
from typer.testing import CliRunner
from pocketbert.cli.main import app
print(json.dumps([json.loads(CliRunner().invoke(app, [verb, "--json"]).stdout) for verb in sys.argv[1:]]))
"""


def test_one_package_adds_one_of_each(tmp_path: Path) -> None:
    install(tmp_path / "site", "extra_parts", PACKAGE)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")]),
    }
    command = [sys.executable, "-c", COMMANDS, "doctor", "families", "devices"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    doctor, families, devices = json.loads(done.stdout)
    (plugin,) = doctor["plugins"]
    assert plugin["error"] == ""
    assert {"family extra-family", "method extra", "format extra", "device extra-device"} <= set(plugin["registered"])
    assert "extra-family" in {row["name"] for row in families}
    assert "extra-device" in {row["name"] for row in devices}
