"""The vendors whose compilers LiteRT drives, their chips, and where their libraries are."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pocketbert.core.errors import nearest


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
