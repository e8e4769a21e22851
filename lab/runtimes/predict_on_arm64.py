"""Predict with PocketBERT's wheel on an emulated Arm processor, and compare with the answers of this machine.

The wheel and all that it depends on, as wheels for aarch64 in the versions that are installed here, are unpacked and imported by
the Python of the Arm system in QEMU (docs/lab/devices.md tells what that needs). Every ONNX file of the folder is opened with
`pocketbert.load`, which runs its golden rows first. No time is taken: an emulator has none. The command ends with 3 where
answers differ by more than `benchmarks/inputs.py` allows.

Run: python -m build --wheel --outdir dist && python lab/runtimes/predict_on_arm64.py -m phone --wheel dist/pocketbert-*.whl
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from email.parser import BytesParser
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from pocketbert import load
from pocketbert.benchmarks.devices.qemu import DEFAULT, PROCESSORS, Guest, GuestFacts, processor
from pocketbert.benchmarks.devices.remote import engine_refusal
from pocketbert.benchmarks.devices.remote_agent import download_wheels, wheel_platform
from pocketbert.benchmarks.inputs import Differences, tolerated_share
from pocketbert.core.artefacts import ModelRecord, find_artefact_folder, read_artefacts
from pocketbert.core.compare.golden import GOLDEN_FILE, read_golden
from pocketbert.core.errors import MissingBackendError, PocketBertError
from pocketbert.core.host.system import version_of
from pocketbert.core.predict.inputs import Text
from pocketbert.core.types import Format

MOST_TEXTS = 8
PREDICT_S = 1800.0
GUEST = """
import importlib.util, json, platform, sys
from importlib import metadata
import pocketbert
asked = json.load(open(sys.argv[1], encoding="utf-8"))
texts = [text if isinstance(text, str) else tuple(text) for text in asked["texts"]]
told = {"machine": platform.machine(), "module": pocketbert.__file__, "files": {}}
for path in asked["files"]:
    model = pocketbert.load(asked["folder"], file=path, threads=1)
    answers = [answer.fields() for answer in model.predict(texts)]
    told["files"][path] = {"outputs": [rows.tolist() for rows in model.outputs(texts)], "answers": answers}
told["versions"] = {name: metadata.version(name) for name in ("pocketbert", "onnxruntime", "tokenizers", "numpy")}
told["torch"] = importlib.util.find_spec("torch") is not None
print(json.dumps(told))
"""
"""What Python in the emulator runs: nothing but the public functions of the wheel."""


@dataclass(frozen=True)
class Compared:
    """The answers of one file on both processors.

    Attributes:
        path: The file in its folder.
        largest: Largest difference of an output.
        allowed: Largest one that is allowed.
        finite: Whether all outputs of the emulated processor are numbers, in the right shape.
        equal: Whether all of them have the same bits.
        same: Texts with the same answer, scores aside.
        texts: All texts.
    """

    path: str
    largest: float
    allowed: float
    finite: bool
    equal: bool
    same: int
    texts: int

    @property
    def passed(self) -> bool:
        """Whether the emulated processor answers right."""
        return self.finite and self.largest <= self.allowed

    def __str__(self) -> str:
        found = f"largest difference {self.largest:.3g}" if self.finite else "outputs that are not numbers"
        equal = ", equal bit for bit" if self.equal else ""
        return f"{self.path}: {self.same} of {self.texts} answers the same, {found}{equal}, allowed {self.allowed:.3g}"


def dependencies(wheel: Path, facts: GuestFacts) -> list[str]:
    """All that a wheel needs on the Arm system, directly or not, in the versions that are installed here."""
    system = {"python_version": ".".join(facts.python.split(".")[:2]), "python_full_version": facts.python}
    markers: dict[str, Any] = {**default_environment(), **system, "platform_machine": facts.arch}
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        described = BytesParser().parsebytes(archive.read(name))
    waiting = [(line, "") for line in described.get_all("Requires-Dist") or ()]
    out, read = dict[str, str](), set[tuple[str, str]]()
    while waiting:
        line, extra = waiting.pop()
        wanted = Requirement(line)
        if wanted.marker is not None and not wanted.marker.evaluate({**markers, "extra": extra}):
            continue
        key, version = canonicalize_name(wanted.name), version_of(wanted.name)
        out[key] = f"{key}=={version}" if version else f"{key}{wanted.specifier}"
        new = {(key, part) for part in ("", *wanted.extras)} - read if version else set()
        read |= new
        waiting += [(needed, part) for _, part in new for needed in metadata.requires(wanted.name) or ()]
    return sorted(out.values())


def install(wheel: Path, facts: GuestFacts, site: Path, where: str) -> None:
    """Unpack a wheel and what it needs into a folder.

    Raises:
        MissingBackendError: If a wheel for the Arm system cannot be fetched.
    """
    platform = wheel_platform(facts.python, facts.arch, facts.libc)
    assert platform is not None  # the system is Debian's, with glibc
    with tempfile.TemporaryDirectory(prefix="pocketbert-wheels-") as name:
        reason = download_wheels(dependencies(wheel, facts), platform, Path(name))
        if reason:
            command = "python3 -m pip download (see whether the index has wheels for aarch64)"
            raise MissingBackendError(f"{where}: wheels for {platform} ({reason})", command)
        for path in (*Path(name).glob("*.whl"), wheel):
            with zipfile.ZipFile(path) as archive:
                archive.extractall(site)


def predict(cpu: str, wheel: Path, folder: Path, files: Sequence[str], texts: Sequence[Text]) -> dict[str, Any]:
    """What the wheel answers on an emulated processor.

    Args:
        cpu: Name of the processor.
        wheel: PocketBERT's wheel.
        folder: The artefact folder.
        files: Paths of its files.
        texts: Texts or pairs.

    Returns:
        What `GUEST` prints, with the place that the wheel was unpacked to as ``site``.
    """
    where = f"qemu-arm64:{cpu}"
    with tempfile.TemporaryDirectory(prefix="pocketbert-arm64-") as name:
        here = Path(name)
        (here / "site").mkdir()
        guest = Guest.of(where, processor(cpu), here)
        install(wheel, guest.facts(), here / "site", where)
        request = here / "request.json"
        request.write_text(json.dumps({"folder": str(folder), "files": list(files), "texts": list(texts)}), "utf-8")
        environment = {
            "PYTHONPATH": str(here / "site"),
            "POCKETBERT_CACHE": str(here / "cache"),
            "PYTHONNOUSERSITE": "1",
        }
        told: dict[str, Any] = json.loads(guest.run(["-c", GUEST, str(request)], environment, PREDICT_S))
        return {**told, "site": str(here / "site")}


def compare(folder: Path, record: ModelRecord, texts: Sequence[Text], told: dict[str, Any]) -> Compared:
    """Compare the answers of one file with those of this machine.

    Args:
        folder: The artefact folder.
        record: The file.
        texts: Texts or pairs.
        told: The file's entry in what `GUEST` prints.
    """
    model, found = load(folder, file=record.path, threads=1), Differences()
    for here, there in zip(model.outputs(texts), told["outputs"], strict=True):
        found.add("outputs", np.asarray(here), np.asarray(there, np.asarray(here).dtype))
    largest, allowed = found.worst(tolerated_share(record.scheme))
    answers = [_decided(a.fields()) for a in model.predict(texts)]
    same = sum(a == _decided(b) for a, b in zip(answers, told["answers"], strict=True))
    return Compared(record.path, largest, allowed, found.finite, found.equal, same, len(answers))


def _decided(value: Any) -> Any:
    """An answer without its scores, which are compared as outputs."""
    if isinstance(value, dict):
        return {key: _decided(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_decided(part) for part in value]
    return None if isinstance(value, float) else value


def main(arguments: Sequence[str] | None = None) -> int:
    """Predict on both, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", type=Path, required=True, help="artefact folder")
    parser.add_argument("--wheel", type=Path, required=True, help="PocketBERT's wheel")
    parser.add_argument("--cpu", default=DEFAULT, choices=list(PROCESSORS), help=f"default {DEFAULT}")
    parser.add_argument("texts", nargs="*", metavar="TEXT", help=f"default the first {MOST_TEXTS} golden rows")
    given = parser.parse_args(arguments)
    try:
        folder = find_artefact_folder(given.model).absolute()
        texts = given.texts or [row.input for row in read_golden(folder / GOLDEN_FILE)[:MOST_TEXTS]]
        records = [r for r in read_artefacts(folder).models() if r.format is Format.ONNX and r.client is None]
        records = [r for r in records if not engine_refusal(r.format, r.runtime)]
        told = predict(given.cpu, given.wheel, folder, [r.path for r in records], texts)
        compared = [compare(folder, record, texts, told["files"][record.path]) for record in records]
    except PocketBertError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    versions = ", ".join(f"{name} {version}" for name, version in told["versions"].items())
    print(f"{told['machine']}, {given.cpu} emulated: {versions}; torch is {'' if told['torch'] else 'not '}there")
    for one in compared:
        print(one)
    return 0 if all(one.passed for one in compared) else 3


if __name__ == "__main__":
    sys.exit(main())
