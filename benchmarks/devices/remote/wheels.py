"""Fetch wheels for another platform with pip."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

OLDEST_GLIBC = 17
"""Minor version of the C library of the oldest platform tag in use: manylinux_2_17."""
TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Platform:
    """What a wheel must fit.

    Attributes:
        python: Version of CPython, e.g. ``3.11``.
        arch: Machine name of its platform tags, e.g. ``aarch64``.
        glibc: Minor version of the C library, e.g. 36 for glibc 2.36.
    """

    python: str
    arch: str
    glibc: int

    @property
    def tags(self) -> list[str]:
        """Platform tags that run there, newest first (PEP 600)."""
        newer = [f"manylinux_2_{minor}_{self.arch}" for minor in range(self.glibc, OLDEST_GLIBC - 1, -1)]
        return [*newer, f"manylinux2014_{self.arch}"]

    def __str__(self) -> str:
        """In words."""
        return f"CPython {self.python} on {self.arch} with glibc 2.{self.glibc}"


def platform_of(python: str, arch: str, libc: str) -> Platform | None:
    """The platform of a machine; None where its C library is not glibc, for which the engines have no wheels.

    Args:
        python: Full version of Python there.
        arch: Machine name.
        libc: Name and version of the C library, e.g. ``glibc 2.36``.
    """
    name, _, version = libc.partition(" ")
    major, _, minor = version.partition(".")
    if name != "glibc" or major != "2" or not minor.isdecimal():
        return None
    return Platform(".".join(python.split(".")[:2]), arch, int(minor))


def fetch(requirements: Sequence[str], platform: Platform, destination: Path) -> str:
    """Download wheels, without those that they depend on.

    Args:
        requirements: Names with or without a version, e.g. ``numpy==2.4.6``.
        platform: What they must fit.
        destination: An existing folder.

    Returns:
        Empty where all were fetched, else pip's reason.
    """
    if importlib.util.find_spec("pip") is None:
        return f"this Python has no pip; add it: {sys.executable} -m ensurepip"
    command = [sys.executable, "-P", "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--no-input", "--retries", "1", "--implementation", "cp"]
    command += ["--python-version", platform.python, "--dest", str(destination)]
    command += [part for tag in platform.tags for part in ("--platform", tag)]
    try:
        done = subprocess.run(
            [*command, "--", *requirements], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"pip took more than {TIMEOUT_S:.0f} s"
    if done.returncode == 0:
        return ""
    said = [line.removeprefix("ERROR: ") for line in done.stderr.splitlines() if line.strip()]
    return said[-1] if said else f"pip ended with exit status {done.returncode}"
