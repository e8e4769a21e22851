"""QEMU's user mode and an Arm system with Python, as `make tools` has unpacked them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "tools"


def missing() -> str:
    """Why nothing can be emulated here; empty where it can."""
    for name, file in (("qemu", "usr/bin/qemu-aarch64"), ("arm64", "usr/bin/python3.11")):
        if not (CACHE / name / file).is_file():
            return f"no {name}: run 'make tools' on Debian"
    return "" if shutil.which("gcc") or shutil.which("cc") else "no C compiler"


def use(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let `qemu-aarch64` and the Arm system be found."""
    libraries = ":".join(str(p) for p in (CACHE / "qemu/usr/lib").glob("*-linux-gnu*"))
    emulator = folder / "qemu-aarch64"
    emulator.write_text(
        f"#!/bin/sh\nexport LD_LIBRARY_PATH={libraries}\n"
        f'exec {CACHE / "qemu/usr/bin/qemu-aarch64"} -U LD_LIBRARY_PATH "$@"\n'
    )
    emulator.chmod(0o755)
    patch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    patch.setenv("POCKETBERT_ARM64_ROOT", str(CACHE / "arm64"))
