"""Fetch the Debian packages that tests of devices and the Android demo need, below .cache/tools: nothing is installed into the system.

The JavaScript libraries of the device `browser` are fetched beside them.

`make tools` runs it. A package that cannot be fetched is named with the reason, and the tests that need it skip.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from pocketbert.benchmarks.browser.libraries import fetch_libraries
from pocketbert.core.disk.ownership import FolderContents, remove
from pocketbert.core.disk.workspace import build_folder
from pocketbert.core.errors import MissingBackendError

TOOLS = Path(__file__).resolve().parents[2] / ".cache" / "tools"
WEB_LIBRARIES = TOOLS / "npm"
"""Archives of the JavaScript libraries: what POCKETBERT_WEB_LIBRARIES names in tests."""
MIRROR = "http://deb.debian.org/debian"


@dataclass(frozen=True)
class Set:
    """Packages that are unpacked into one folder."""

    packages: str  # their names
    line: str = ""  # of a list of packages that the system's own lists need not contain; empty for the system's
    arch: str = ""  # another architecture than this machine's


SETS = {
    "ssh": Set("openssh-server libwrap0"),
    "adb": Set("adb android-libbase android-libboringssl android-libcutils android-liblog libprotobuf32 libusb-1.0-0"),
    "apk": Set(  # what android_demo/test.sh builds the app with
        "aapt android-libaapt android-libandroidfw android-libart android-libbacktrace android-libbase "
        "android-libcutils android-liblog android-libnativebridge android-libnativeloader android-libutils "
        "android-libziparchive apksigner dexdump libapksig-java libatomic1 libexpat1 liblz4-1 libpng16-16 "
        "libprotobuf-lite32 libzopfli1 p7zip p7zip-full zipalign"
    ),
    "chromium": Set(
        "chromium chromium-common libasyncns0 libatomic1 libdouble-conversion3 libflac12 libharfbuzz-subset0 libminizip1 "
        "libmp3lame0 libmpg123-0 libogg0 libopenh264-7 libopenjp2-7 libopus0 libpulse0 libsndfile1 libvorbis0a libvorbisenc2 "
        "libxnvctrl0"
    ),
    "adbd": Set(
        "adbd android-libbase android-libboringssl android-libcutils android-liblog android-libziparchive",
        f"deb {MIRROR} bookworm-backports main",
    ),
    "cross": Set(
        "binutils-aarch64-linux-gnu binutils-common cpp-12-aarch64-linux-gnu gcc-12-aarch64-linux-gnu libbinutils "
        "libc6-arm64-cross libc6-dev-arm64-cross libgcc-12-dev-arm64-cross libgcc-s1-arm64-cross libgmp10 libisl23 "
        "libjansson4 libmpc3 libmpfr6 linux-libc-dev-arm64-cross"
    ),
    "qemu": Set("qemu-user libcapstone4 liburing2"),
    "python3.9": Set(
        "libmpdec3 libpython3.9-minimal libpython3.9-stdlib python3.9-minimal", f"deb {MIRROR} bullseye main"
    ),
    "arm64": Set(
        "libbz2-1.0 libc6 libexpat1 libffi8 libgcc-s1 liblzma5 libpython3.11-minimal libpython3.11-stdlib libstdc++6 "
        "python3.11-minimal zlib1g",
        f"deb [arch=arm64] {MIRROR} bookworm main",
        "arm64",
    ),
}
"""The packages by the name of their folder: Debian 12's."""
LIST = "packages.txt"
"""File of a finished set: the packages that were asked for, then those that were unpacked."""


class FetchError(Exception):
    """A command of Debian's tools failed; its last line says why."""


def call(*command: str, folder: Path) -> None:
    """Run a command in a folder."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise FetchError((done.stderr.strip().splitlines() or [f"{command[0]} failed"])[-1])


def own_list(wanted: Set, folder: Path) -> list[str]:
    """Options of apt-get with which it uses an own list of packages in a folder, and the system's keys."""
    if not wanted.line:
        return []
    (folder / "lists" / "partial").mkdir(parents=True)
    (folder / "own.list").write_text(f"{wanted.line}\n", encoding="utf-8")
    options = {
        "Dir::Etc::SourceList": folder / "own.list",
        "Dir::Etc::SourceParts": "-",
        "Dir::State::Lists": folder / "lists",
        "Dir::Cache": folder,
    }
    if wanted.arch:
        options |= {"APT::Architecture": wanted.arch, "APT::Architectures": wanted.arch}
        options |= {"Dir::State::Status": "/dev/null"}  # what is installed here has another architecture
    out = [part for key, value in options.items() for part in ("-o", f"{key}={value}")]
    call("apt-get", *out, "-q", "update", folder=folder)
    return out


def unpack(wanted: Set, destination: Path) -> None:
    """Download packages and unpack them into a folder."""
    with tempfile.TemporaryDirectory(prefix="pocketbert-tools-") as name:
        folder = Path(name)
        call("apt-get", *own_list(wanted, folder), "-q", "download", *wanted.packages.split(), folder=folder)
        files = sorted(folder.glob("*.deb"))
        for file in files:
            call("dpkg-deb", "-x", str(file), str(destination), folder=folder)
    for path in list(destination.rglob("*")):
        if path.is_symlink() and not path.exists():  # into packages that are not needed, such as documentation
            remove(path)
    lines = [wanted.packages, *(file.stem for file in files)]
    (destination / LIST).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def lacking(names: Collection[str] = tuple(SETS)) -> Iterator[str]:
    """Fetch the named sets that are not there; the reasons for those that cannot be fetched."""
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            yield f"{tool} is not on this machine"
            return
    for name, wanted in ((name, SETS[name]) for name in names):
        listed = TOOLS / name / LIST
        if listed.is_file() and listed.read_text(encoding="utf-8").startswith(f"{wanted.packages}\n"):
            continue
        try:
            with build_folder(TOOLS / name, FolderContents(LIST, ("*",))) as folder:
                unpack(wanted, folder)
        except FetchError as error:
            yield f"{name}: {error}"


def lacking_libraries() -> Iterator[str]:
    """Fetch the JavaScript libraries of the device `browser` that are not there; the reason if one cannot be fetched."""
    try:
        fetch_libraries(WEB_LIBRARIES)
    except MissingBackendError as error:
        yield str(error)


if __name__ == "__main__":
    reasons = [*lacking(), *lacking_libraries()]
    for reason in reasons:
        print(f"tools: {reason}; tests that need it skip", file=sys.stderr)
