"""The devices ``litert-npu:SOC``: TFLite files compiled for phones' NPUs by LiteRT's tool and a vendor's plug-in.

`DEVICE` is their row of the table of devices. It finds the chip, LiteRT and the vendor's libraries; the compiler
runs LiteRT's tool in a separate process, counts in the compiled file which operators go on the NPU, and reads from
the log why the others do not.
"""

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

from pocketbert.benchmarks.devices.protocol import Allowed, Compiled, Device, Reachable
from pocketbert.benchmarks.devices.vendor_tools import (
    GraphOperators,
    ProcessEnd,
    only_signature,
    operator_name,
    operators_of,
    run_separately,
)
from pocketbert.core.devices import DEVICES, LITERT_NPU
from pocketbert.core.errors import InputError, MissingBackendError, Problem, suggest_allowed
from pocketbert.core.formats import FORMATS
from pocketbert.core.host.system import version_of
from pocketbert.core.types import Format, Runtime
from pocketbert.runtime.engines import FilePredictor
from pocketbert.runtime.tflite import TflitePredictor

_PACKAGE = "ai-edge-litert"
_TOOL = "tools/apply_plugin_main"
_COMPILE_S = 600.0
"""A compilation that takes longer hangs; the demo's student takes 4 s for one length."""


@dataclass(frozen=True)
class _LibrarySource:
    """A Python package that contains a chip vendor's libraries.

    Attributes:
        module: Import name of the package, which is never imported.
        command: The command that installs the package.
        substitutes: For packages without some libraries that the plug-in is linked with but never calls for these
            chips: the name of each, and the library that is used in its place.
    """

    module: str
    command: str
    substitutes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class _Vendor:
    """A vendor of phone NPUs, with its chips and what compiling for them needs.

    Attributes:
        name: Name of the vendor for LiteRT's tool.
        plugin: Folder of the vendor's plug-in in ai-edge-litert.
        chips: Names of the vendor's chips as Android reports them (``ro.soc.model``).
        needed: Names of libraries that the plug-in needs to compile.
        sources: Packages that contain these libraries, the best first.
        lower: Whether the tool needs the chip's name in lower case.
        newest: Chips for which the plug-in needs an additional argument of the tool, with that argument.
    """

    name: str
    plugin: str
    chips: tuple[str, ...]
    needed: tuple[str, ...]
    sources: tuple[_LibrarySource, ...]
    lower: bool = False
    newest: tuple[tuple[str, str], ...] = ()


_VENDORS = (
    _Vendor(
        "Qualcomm",
        "qualcomm",
        tuple("SA8255 SA8295 SM8350 SM8450 SM8475 SM8550 SM8650 SM8750 SM8845 SM8850".split()),
        ("libQnnHtp.so", "libQnnSystem.so", "libQnnIr.so", "libQnnSaver.so"),
        (
            _LibrarySource("ai_edge_litert_sdk_qualcomm", "pip install ai-edge-litert-sdk-qualcomm"),
            _LibrarySource("onnxruntime_qnn", "pip install 'pocketbert[qnn]'", (("libQnnLpai.so", "libQnnSystem.so"),)),
        ),
    ),
    _Vendor(
        "MediaTek",
        "mediatek",
        tuple(
            "MT6853 MT6877 MT6878 MT6879 MT6886 MT6893 MT6895 MT6897 "
            "MT6983 MT6985 MT6989 MT6991 MT6993 MT8171 MT8188 MT8189".split()
        ),
        ("libneuronusdk_adapter.mtk.so",),
        (_LibrarySource("ai_edge_litert_sdk_mediatek", "pip install ai-edge-litert-sdk-mediatek"),),
        lower=True,
        newest=(("MT6993", "--mediatek_sdk_version_type=version9"),),
    ),
)
"""Vendors with libraries in a package index. Those of Google Tensor, Samsung and Intel come by other ways, untried."""


def find_litert_chip(name: str) -> tuple[str, _Vendor]:
    """Return a chip's name in upper case and its vendor.

    Raises:
        ValueError: If no vendor has this chip; the message lists all chips.
    """
    for vendor in _VENDORS:
        if name.upper() in vendor.chips:
            return name.upper(), vendor
    raise ValueError(f"unknown SoC '{name}'; {suggest_allowed(name.upper(), [c for v in _VENDORS for c in v.chips])}")


@dataclass(frozen=True)
class _Libraries:
    """The folder with a vendor's libraries, and the package that contains it.

    Attributes:
        folder: The folder with the libraries.
        source: The package that contains them.
    """

    folder: Path
    source: _LibrarySource


def _find_libraries(vendor: _Vendor) -> _Libraries | None:
    """Find a vendor's libraries in its installed package; None if they are missing (pip may leave them out silently)."""
    for source in vendor.sources:
        for folder in _package_folders(source.module):
            for first in sorted(folder.rglob(vendor.needed[0]), reverse=True):  # the newest version of several
                if all((first.parent / name).is_file() for name in vendor.needed):
                    return _Libraries(first.parent, source)
    return None


def _find_litert() -> Path | None:
    """Return the folder of ai-edge-litert; None if it is not installed, or has no compiler."""
    return next((folder for folder in _package_folders("ai_edge_litert") if (folder / _TOOL).is_file()), None)


def _package_folders(module: str) -> Iterator[Path]:
    """Yield the folders of an installed package, which is not imported."""
    spec = importlib.util.find_spec(module)
    if spec is not None:
        yield from map(Path, spec.submodule_search_locations or [])


def _unsupported_system() -> str:
    """Return why LiteRT's NPU compilers do not run on this machine; empty if they do."""
    if platform.system() == "Linux" and platform.machine() == "x86_64":
        return ""
    return f"the compilers need Linux on x86-64, and this machine is {platform.system()} on {platform.machine()}"


def _litert_missing() -> str:
    """Return what this machine lacks to compile for any vendor's NPU; empty if at least one vendor works."""
    if problem := _unsupported_system():
        return problem
    if _find_litert() is None:
        return f"{_PACKAGE} is not installed (pip install 'pocketbert[tflite]')"
    missing = [vendor for vendor in _VENDORS if _find_libraries(vendor) is None]
    if len(missing) < len(_VENDORS):
        return ""
    return "the vendors' libraries are not there (" + ", or ".join(v.sources[0].command for v in missing) + ")"


def _litert_now() -> list[Reachable]:
    """List the chips of each vendor, with what is missing to compile for them.

    The list is empty if LiteRT is not installed, or its compilers do not run on this machine.
    """
    if _unsupported_system() or _find_litert() is None:
        return []
    reachable = []
    for vendor in _VENDORS:
        libraries, chips = _find_libraries(vendor), f"{vendor.name}, {vendor.chips[0]} to {vendor.chips[-1]}"
        problem = "" if libraries else f"the vendor's libraries are not there ({vendor.sources[0].command})"
        reachable.append(Reachable(f"{LITERT_NPU}:SOC", chips, problem))
    return reachable


def _litert_refusal(format: Format, runtime: Runtime | None) -> str:
    """Return why files of this format cannot be compiled by LiteRT; empty if they can."""
    if format is not Format.TFLITE:
        return f"{FORMATS[format].title} does not go through LiteRT"
    return ""


def _connect_litert(argument: str) -> _LitertCompiler:
    """Return LiteRT's NPU compiler for a chip.

    Args:
        argument: Name of the chip, such as ``SM8650``.

    Raises:
        InputError: If the chip is unknown, or the compilers do not run on this machine.
        MissingBackendError: If LiteRT or the vendor's libraries are not installed.
    """
    where = f"{LITERT_NPU}:{argument}"
    try:
        chip, vendor = find_litert_chip(argument)
    except ValueError as error:
        raise InputError(Problem(where, f"{error}.")) from error
    if problem := _unsupported_system():
        raise InputError(Problem(where, f"{problem}.", "Use an x86-64 machine with Linux."))
    package = _find_litert()
    if package is None:
        raise MissingBackendError(f"{where}: {_PACKAGE}", "pip install 'pocketbert[tflite]'")
    libraries = _find_libraries(vendor)
    if libraries is None:
        first, *others = vendor.sources
        what = f"{where}: the SDK of {vendor.name} with {', '.join(vendor.needed)}"
        more = "".join(f" (or: {other.command})" for other in others)
        unreachable = "pip reports success even where the vendor's site cannot be reached"
        raise MissingBackendError(what, f"{first.command}{more}; {unreachable}")
    return _LitertCompiler(chip, vendor, libraries, package)


class _LitertCompiler:
    """LiteRT's ahead-of-time compiler for one chip.

    Args:
        chip: Name of the chip.
        vendor: The vendor of the chip.
        libraries: The folder with the vendor's libraries.
        package: Folder of ai-edge-litert.
    """

    method = (
        "Compiled ahead of time by LiteRT's plug-in of the vendor, one length each. Operators are counted in the compiled "
        "file: those in pieces for the NPU and those that stay on the CPU. Nothing was run, and nothing tells how long the NPU takes."
    )

    def __init__(self, chip: str, vendor: _Vendor, libraries: _Libraries, package: Path) -> None:
        self.target, self.engine = f"{vendor.name} {chip}", _PACKAGE
        source = libraries.source.module.replace("_", "-")
        self.engine_version = f"{version_of(_PACKAGE)} with {source} {version_of(source) or ''}".strip()
        self._chip, self._vendor, self._libraries, self._package = chip, vendor, libraries, package

    def compile(
        self,
        predictor: FilePredictor,
        path: Path,
        length: int,
        feeds: Sequence[Mapping[str, NDArray[Any]]],
        budget_s: float,
    ) -> Compiled:
        """Compile the signature of `length` tokens of a TFLite file for the NPU; nothing is run, as there is no emulator."""
        assert isinstance(predictor, TflitePredictor)
        if length not in predictor.signature_keys:
            lengths = ", ".join(map(str, predictor.lengths))
            return Compiled(
                failed=f"it has no signature of {length} tokens; it has {lengths}: give --lengths {lengths}"
            )
        with tempfile.TemporaryDirectory(prefix="pocketbert-litert-") as name:
            folder = Path(name)
            single, graph = only_signature(path.read_bytes(), predictor.signature_keys[length])
            (folder / "given.tflite").write_bytes(single)
            begin = time.monotonic()
            end = self._run_tool(folder, graph)
            seconds = time.monotonic() - begin
            output = folder / "made.tflite"
            if end.problem or not output.is_file() or not output.stat().st_size:
                return Compiled(failed="; ".join(part for part in (end.problem, _first_error(end.log)) if part))
            compiled = output.read_bytes()
        return _count_compiled(
            operators_of(single, graph), operators_of(compiled, graph), end.log, len(compiled), seconds
        )

    def _run_tool(self, folder: Path, graph: int) -> ProcessEnd:
        """Run LiteRT's compiler on the file ``given.tflite`` in a folder, where it writes ``made.tflite``."""
        vendor, chip = self._vendor, self._chip
        for name, substitute in self._libraries.source.substitutes:
            if not (self._libraries.folder / name).exists():
                (folder / name).symlink_to(self._libraries.folder / substitute)
        command = [
            str(self._package / _TOOL),
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
        return run_separately(command, folder, _COMPILE_S, {"LD_LIBRARY_PATH": f"{folder}:{self._libraries.folder}"})


_UNKNOWN_REASON = "the log of the plug-in gives no reason"
_REFUSED_OPERATOR = re.compile(r"LiteRT Op #\d+ '\w+' \(code=(?P<code>\d+)\) is not supported")
_QNN_ERROR = re.compile(r"QNN error=(?P<error>\d+)")


def _count_compiled(before: GraphOperators, after: GraphOperators, log: str, size: int, seconds: float) -> Compiled:
    """Count the operators that were compiled for the NPU by comparing the file before and after.

    If there are none, the record says that the compilation failed, with the probable reason from the log.
    """
    if not after.compiled:
        return Compiled(failed=f"the plug-in took none of {before.counts.total()} operators: {_first_error(log)}")
    reasons = {operator_name(number): reason for number, reason in _litert_reasons(log).items()}
    return Compiled(
        op_types=dict(Counter(before.counts) - Counter(after.counts)),
        partitions=after.compiled,
        left=after.left_nodes(reasons, _UNKNOWN_REASON),
        bytes=size,
        compile_s=seconds,
    )


def _litert_reasons(log: str) -> dict[int, str]:
    """Return the reason for which the compiler refused each type of operator (by number), as its log gives it."""
    reasons, searched = dict[int, str](), 0
    for refused in _REFUSED_OPERATOR.finditer(log):
        errors = _QNN_ERROR.findall(log, searched, refused.start())
        reason = (
            f"refused by the validation of the compiler: error {errors[-1]}" if errors else "refused by the plug-in"
        )
        reasons[int(refused["code"])] = reason
        searched = refused.end()
    return reasons


def _first_error(log: str) -> str:
    """Return the line of a failed compiler run's log that most likely gives the reason, cut to 300 characters.

    This is a guess by patterns: the first line that looks like an error and has a text after its source position, else
    the first that looks like an error, else the first line at all.

    Args:
        log: Everything that the compiler printed.

    Returns:
        The line without its ``[...]`` prefix; ``no output`` if the log is empty.
    """
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [
        line.partition("] ")[2] or line
        for line in lines
        if re.search(r"(ERROR: \[|Could not load|Unexpected|cannot open)", line)
    ]
    concrete = [line for line in errors if not re.search(r"ERROR: \[[\w/.:]+\]?$", line)]
    return (concrete or errors or lines or ["no output"])[0][:300]


DEVICE = Device(
    DEVICES[LITERT_NPU],
    compiler=_connect_litert,
    missing=_litert_missing,
    refusal=_litert_refusal,
    look=_litert_now,
    allowed=(Allowed("SOC", tuple(chip for vendor in _VENDORS for chip in vendor.chips)),),
)
"""The row of the table of devices."""
