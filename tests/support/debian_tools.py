"""Fetch the Debian packages that tests of devices need, below .cache/tools: nothing is installed into the system.

`make tools` runs it. A package that cannot be fetched is named with the reason, and the tests that need it skip.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from pocketbert.core.disk.ownership import Contents
from pocketbert.core.disk.workspace import building

TOOLS = Path(__file__).resolve().parents[2] / ".cache" / "tools"
MAIN: dict[str, tuple[str, ...]] = {
    "ssh": ("openssh-server", "libwrap0"),
    "adb": (
        "adb",
        "android-libbase",
        "android-libcutils",
        "android-liblog",
        "libusb-1.0-0",
        "libprotobuf32",
        "android-libboringssl",
    ),
}
"""Sets of packages of this Debian; each is unpacked into a folder of that name."""
BACKPORTS: dict[str, tuple[str, ...]] = {
    "adbd": (
        "adbd",
        "android-libbase",
        "android-libboringssl",
        "android-libcutils",
        "android-liblog",
        "android-libziparchive",
    )
}
"""Sets of packages of bookworm-backports, which the system's lists need not contain."""
BACKPORTS_LINE = "deb http://deb.debian.org/debian bookworm-backports main\n"
LIST = "packages.txt"
"""File of a finished set: the packages that were asked for, then those that were unpacked."""


class FetchError(Exception):
    """A command of Debian's tools failed; its last line says why."""


def call(*command: str, folder: Path) -> None:
    """Run a command in a folder."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise FetchError((done.stderr.strip().splitlines() or [f"{command[0]} failed"])[-1])


def backports(folder: Path) -> list[str]:
    """Options of apt-get with which it uses its own list of packages in a folder, and the system's keys."""
    (folder / "lists" / "partial").mkdir(parents=True)
    (folder / "backports.list").write_text(BACKPORTS_LINE, encoding="utf-8")
    options = {
        "Dir::Etc::SourceList": folder / "backports.list",
        "Dir::Etc::SourceParts": "-",
        "Dir::State::Lists": folder / "lists",
        "Dir::Cache": folder,
    }
    out = [part for key, value in options.items() for part in ("-o", f"{key}={value}")]
    call("apt-get", *out, "-q", "update", folder=folder)
    return out


def unpack(packages: Sequence[str], private: bool, destination: Path) -> None:
    """Download packages and unpack them into a folder."""
    with tempfile.TemporaryDirectory(prefix="pocketbert-tools-") as name:
        folder = Path(name)
        call("apt-get", *(backports(folder) if private else ()), "-q", "download", *packages, folder=folder)
        files = sorted(folder.glob("*.deb"))
        for file in files:
            call("dpkg-deb", "-x", str(file), str(destination), folder=folder)
    lines = [" ".join(packages), *(file.stem for file in files)]
    (destination / LIST).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def lacking() -> Iterator[str]:
    """Fetch every set that is not there; the reasons for those that cannot be fetched."""
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            yield f"{tool} is not on this machine"
            return
    for private, sets in ((False, MAIN), (True, BACKPORTS)):
        for name, packages in sets.items():
            listed = TOOLS / name / LIST
            if listed.is_file() and listed.read_text(encoding="utf-8").startswith(" ".join(packages) + "\n"):
                continue
            try:
                with building(TOOLS / name, Contents(LIST, ("*",))) as folder:
                    unpack(packages, private, folder)
            except FetchError as error:
                yield f"{name}: {error}"


if __name__ == "__main__":
    for reason in lacking():
        print(f"tools: {reason}; tests that need it skip", file=sys.stderr)
