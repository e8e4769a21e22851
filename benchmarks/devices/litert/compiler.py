"""Compile TFLite files for phones' NPUs by LiteRT's tool and the plug-in of a vendor, in a separate process."""

from __future__ import annotations

import platform
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from pocketbert.benchmarks.compilation import LeftNodes
from pocketbert.benchmarks.devices.litert.graphs import GraphOperators, only_signature, operator_name, operators_of
from pocketbert.benchmarks.devices.litert.refusals import UNTOLD, last_error, litert_reasons
from pocketbert.benchmarks.devices.litert.vendors import (
    VENDORS,
    Libraries,
    LitertChip,
    libraries_of,
    litert_chip,
    package_folders,
)
from pocketbert.benchmarks.devices.processes import Ended, run_separately
from pocketbert.benchmarks.devices.protocol import Allowed, Compiled, Reachable
from pocketbert.core.devices import LITERT_NPU
from pocketbert.core.errors import InputError, MissingBackendError, Problem
from pocketbert.core.formats import FORMATS
from pocketbert.core.host.versions import version_of
from pocketbert.core.types import Format, Runtime
from pocketbert.runtime.engines import FilePredictor
from pocketbert.runtime.tflite import TflitePredictor

PACKAGE = "ai-edge-litert"
TOOL = "tools/apply_plugin_main"
ALLOWED = (Allowed("SOC", tuple(chip for vendor in VENDORS for chip in vendor.chips)),)
COMPILE_S = 600.0
"""A compilation that takes longer hangs; the demo's student takes 4 s for one length."""


class LitertCompiler:
    """LiteRT's ahead-of-time compiler for one chip.

    Args:
        chip: The chip.
        libraries: The vendor's libraries.
        package: Folder of ai-edge-litert.
    """

    method = (
        "Compiled ahead of time by LiteRT's plug-in of the vendor, one length each. Operators are counted in the compiled "
        "file: those in pieces for the NPU and those that stay on the CPU. Nothing was run, and nothing tells how long the NPU takes."
    )

    def __init__(self, chip: LitertChip, libraries: Libraries, package: Path) -> None:
        self.target, self.engine = chip.words, PACKAGE
        source = libraries.source.module.replace("_", "-")
        self.engine_version = f"{version_of(PACKAGE)} with {source} {version_of(source) or ''}".strip()
        self._chip, self._libraries, self._package = chip, libraries, package

    def compile(
        self,
        predictor: FilePredictor,
        path: Path,
        length: int,
        feeds: Sequence[Mapping[str, NDArray[Any]]],
        budget_s: float,
    ) -> Compiled:
        """Compile a file for one length; see `Compiler.compile`. There is no emulator, so that nothing is answered."""
        assert isinstance(predictor, TflitePredictor)
        if length not in predictor.signature_keys:
            told = ", ".join(map(str, predictor.lengths))
            return Compiled(failed=f"it has no signature of {length} tokens; it has {told}: give --lengths {told}")
        with tempfile.TemporaryDirectory(prefix="pocketbert-litert-") as name:
            folder = Path(name)
            given, graph = only_signature(path.read_bytes(), predictor.signature_keys[length])
            (folder / "given.tflite").write_bytes(given)
            begin = time.monotonic()
            ended = self._run(folder, graph)
            seconds = time.monotonic() - begin
            made = folder / "made.tflite"
            if ended.how or not made.is_file() or not made.stat().st_size:
                return Compiled(failed="; ".join(part for part in (ended.how, last_error(ended.log)) if part))
            file = made.read_bytes()
        return _compiled(operators_of(given, graph), operators_of(file, graph), ended.log, len(file), seconds)

    def _run(self, folder: Path, graph: int) -> Ended:
        """Run LiteRT's tool."""
        vendor, chip = self._chip.vendor, self._chip.name
        for name, instead in self._libraries.source.substitutes:
            if not (self._libraries.folder / name).exists():
                (folder / name).symlink_to(self._libraries.folder / instead)
        command = [
            str(self._package / TOOL),
            "--cmd=apply",
            f"--model={folder / 'given.tflite'}",
            f"--o={folder / 'made.tflite'}",
            f"--soc_manufacturer={vendor.name}",
            f"--soc_model={chip.lower() if vendor.lower else chip}",
            "--err=--",
            f"--subgraphs={graph}",
            f"--libs={self._package / 'vendors' / vendor.plugin / 'compiler'}",
            *(argument for name, argument in vendor.newest if name == chip),
        ]
        return run_separately(command, folder, COMPILE_S, {"LD_LIBRARY_PATH": f"{folder}:{self._libraries.folder}"})


def _compiled(before: GraphOperators, after: GraphOperators, log: str, size: int, seconds: float) -> Compiled:
    """What became of the operators. A file in which nothing was compiled is no compiled file."""
    if not after.compiled:
        return Compiled(failed=f"the plug-in took none of {before.counts.total()} operators: {last_error(log)}")
    reasons = {operator_name(number): why for number, why in litert_reasons(log).items()}
    left = [
        LeftNodes(op_type=kind, nodes=count, reason=reasons.get(kind, UNTOLD))
        for kind, count in after.counts.most_common()
    ]
    return Compiled(
        op_types=dict(Counter(before.counts) - Counter(after.counts)),
        partitions=after.compiled,
        left=left,
        bytes=size,
        compile_s=seconds,
    )


def connect_litert(argument: str) -> LitertCompiler:
    """Prepare the compiler of a chip.

    Args:
        argument: Name of the chip, such as ``SM8650``.

    Raises:
        InputError: If the chip is unknown, or this machine is none that the compilers run on.
        MissingBackendError: If LiteRT or the vendor's libraries are not there.
    """
    where = f"{LITERT_NPU}:{argument}"
    try:
        chip = litert_chip(argument)
    except ValueError as error:
        raise InputError(Problem(where, f"{error}.")) from error
    if not _compiles():
        raise InputError(Problem(where, f"{_elsewhere()}.", "Use an x86-64 machine with Linux."))
    package = _package()
    if package is None:
        raise MissingBackendError(f"{where}: {PACKAGE}", "pip install 'pocketbert[tflite]'")
    libraries = libraries_of(chip.vendor)
    if libraries is None:
        first = chip.vendor.sources[0]
        lacking = f"{where}: the SDK of {chip.vendor.name} with {', '.join(chip.vendor.needed)}"
        more = "".join(f" (or: {other.command})" for other in chip.vendor.sources[1:])
        raise MissingBackendError(
            lacking, f"{first.command}{more}; pip reports success even where the vendor's site cannot be reached"
        )
    return LitertCompiler(chip, libraries, package)


def litert_missing() -> str:
    """What keeps this machine from compiling for any vendor; empty where nothing does."""
    if not _compiles():
        return _elsewhere()
    if _package() is None:
        return f"{PACKAGE} is not installed (pip install 'pocketbert[tflite]')"
    lacking = [vendor for vendor in VENDORS if libraries_of(vendor) is None]
    if len(lacking) < len(VENDORS):
        return ""
    return "the vendors' libraries are not there (" + ", or ".join(v.sources[0].command for v in lacking) + ")"


def litert_now() -> list[Reachable]:
    """The chips of each vendor, where LiteRT is there, and what is missing of the vendor's libraries."""
    if not _compiles() or _package() is None:
        return []
    out = []
    for vendor in VENDORS:
        libraries, chips = libraries_of(vendor), f"{vendor.name}, {vendor.chips[0]} to {vendor.chips[-1]}"
        lacking = "" if libraries else f"the vendor's libraries are not there ({vendor.sources[0].command})"
        out.append(Reachable(f"{LITERT_NPU}:SOC", chips, lacking))
    return out


def litert_refusal(format: Format, runtime: Runtime | None) -> str:
    """Why files of a format, made for a runtime, are not compiled; empty where they are."""
    if format is not Format.TFLITE:
        return f"{FORMATS[format].title} does not go through LiteRT"
    return ""


def _package() -> Path | None:
    return next((folder for folder in package_folders("ai_edge_litert") if (folder / TOOL).is_file()), None)


def _compiles() -> bool:
    return platform.system() == "Linux" and platform.machine() == "x86_64"


def _elsewhere() -> str:
    return f"the compilers need Linux on x86-64, and this machine is {platform.system()} on {platform.machine()}"
