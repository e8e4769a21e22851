"""Compile TFLite files for phones' NPUs by LiteRT's tool and the plug-in of a vendor, in a separate process."""

from __future__ import annotations

import importlib.util
import platform
import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from pocketbert.benchmarks.devices.protocol import Allowed, Compiled, Reachable
from pocketbert.benchmarks.devices.vendor_tools import (
    Ended,
    GraphOperators,
    only_signature,
    operator_name,
    operators_of,
    run_separately,
)
from pocketbert.benchmarks.records import LeftNodes
from pocketbert.core.devices import LITERT_NPU
from pocketbert.core.errors import InputError, MissingBackendError, Problem, nearest
from pocketbert.core.formats import FORMATS
from pocketbert.core.host.system import version_of
from pocketbert.core.types import Format, Runtime
from pocketbert.runtime.engines import FilePredictor
from pocketbert.runtime.tflite import TflitePredictor

# --- refusals ---
# Read from the log of LiteRT's plug-ins why operators stay on the CPU.


_QUALCOMM = re.compile(r"LiteRT Op #\d+ '\w+' \(code=(?P<code>\d+)\) is not supported")
_ERROR = re.compile(r"QNN error=(?P<error>\d+)")
UNTOLD = "the log of the plug-in gives no reason"
REFUSED = "refused by the plug-in"


def litert_reasons(log: str) -> dict[int, str]:
    """Why operators were refused, by their number in the TFLite schema; the last reason where there are several.

    Args:
        log: What the tool printed.
    """
    found, before = dict[int, str](), 0
    for refused in _QUALCOMM.finditer(log):
        errors = _ERROR.findall(log, before, refused.start())
        found[int(refused["code"])] = (
            f"refused by the validation of the compiler: error {errors[-1]}" if errors else REFUSED
        )
        before = refused.end()
    return found


def last_error(log: str) -> str:
    """The line that tells why nothing was compiled."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    told = [
        line.partition("] ")[2] or line
        for line in lines
        if re.search(r"(ERROR: \[|Could not load|Unexpected|cannot open)", line)
    ]
    concrete = [line for line in told if not re.search(r"ERROR: \[[\w/.:]+\]?$", line)]
    return (concrete or told or lines or ["no output"])[0][:300]


# --- vendors ---
# The vendors whose compilers LiteRT drives, their chips, and where their libraries are.


@dataclass(frozen=True)
class LibrarySource:
    """A package that brings a vendor's libraries.

    Attributes:
        module: Its import name; it is never imported.
        command: What installs it.
        substitutes: Libraries that the plug-in is linked with and never calls for these chips, where the package lacks them:
            name, and the library that takes its place.
    """

    module: str
    command: str
    substitutes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Vendor:
    """A vendor.

    Attributes:
        name: As LiteRT's tool takes it.
        plugin: Folder of its plug-in in ai-edge-litert.
        chips: Names of its chips, as Android gives them (``ro.soc.model``).
        needed: Libraries without which the plug-in cannot compile.
        sources: Packages with these libraries, best first.
        lower: Whether the tool takes the chip's name in lower case.
        newest: Chips for which the plug-in needs its newest form, with the tool's argument.
    """

    name: str
    plugin: str
    chips: tuple[str, ...]
    needed: tuple[str, ...]
    sources: tuple[LibrarySource, ...]
    lower: bool = False
    newest: tuple[tuple[str, str], ...] = ()


VENDORS = (
    Vendor(
        "Qualcomm",
        "qualcomm",
        (
            "SA8255",
            "SA8295",
            "SM8350",
            "SM8450",
            "SM8475",
            "SM8550",
            "SM8650",
            "SM8750",
            "SM8845",
            "SM8850",
        ),
        ("libQnnHtp.so", "libQnnSystem.so", "libQnnIr.so", "libQnnSaver.so"),
        (
            LibrarySource("ai_edge_litert_sdk_qualcomm", "pip install ai-edge-litert-sdk-qualcomm"),
            LibrarySource("onnxruntime_qnn", "pip install 'pocketbert[qnn]'", (("libQnnLpai.so", "libQnnSystem.so"),)),
        ),
    ),
    Vendor(
        "MediaTek",
        "mediatek",
        (
            "MT6853",
            "MT6877",
            "MT6878",
            "MT6879",
            "MT6886",
            "MT6893",
            "MT6895",
            "MT6897",
            "MT6983",
            "MT6985",
            "MT6989",
            "MT6991",
            "MT6993",
            "MT8171",
            "MT8188",
            "MT8189",
        ),
        ("libneuronusdk_adapter.mtk.so",),
        (LibrarySource("ai_edge_litert_sdk_mediatek", "pip install ai-edge-litert-sdk-mediatek"),),
        lower=True,
        newest=(("MT6993", "--mediatek_sdk_version_type=version9"),),
    ),
)
"""Vendors with libraries in a package index. Those of Google Tensor, Samsung and Intel come by other ways, untried."""


@dataclass(frozen=True)
class LitertChip:
    """A chip with its vendor."""

    name: str
    vendor: Vendor

    @property
    def words(self) -> str:
        """For tables."""
        return f"{self.vendor.name} {self.name}"


def litert_chip(name: str) -> LitertChip:
    """Look a chip up.

    Raises:
        ValueError: If no vendor has it; the message lists those that there are.
    """
    for vendor in VENDORS:
        if name.upper() in vendor.chips:
            return LitertChip(name.upper(), vendor)
    raise ValueError(f"unknown SoC '{name}'; {nearest(name.upper(), [c for v in VENDORS for c in v.chips])}")


@dataclass(frozen=True)
class Libraries:
    """A vendor's libraries.

    Attributes:
        folder: Where they are.
        source: The package that brought them.
    """

    folder: Path
    source: LibrarySource


def libraries_of(vendor: Vendor) -> Libraries | None:
    """A vendor's libraries, looked for as files: the package may be installed without them, which pip does not notice."""
    for source in vendor.sources:
        for folder in package_folders(source.module):
            for first in sorted(folder.rglob(vendor.needed[0]), reverse=True):  # the newest version of several
                if all((first.parent / name).is_file() for name in vendor.needed):
                    return Libraries(first.parent, source)
    return None


def package_folders(module: str) -> Iterator[Path]:
    """Folders of an installed package, which is not imported."""
    found = importlib.util.find_spec(module)
    if found is not None:
        yield from map(Path, found.submodule_search_locations or [])


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
