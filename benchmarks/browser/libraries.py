"""The JavaScript libraries that the page runs files with: pinned npm packages, fetched once and checked against their digests.

`find_libraries` returns the packages, each as the archive of the npm registry; `WebLibrary.read` reads a file out of it. Nothing is
unpacked: what is served is what the digest was computed of.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
import threading
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

from pocketbert.core.disk.files import sha256_file, write_atomic
from pocketbert.core.errors import MissingBackendError
from pocketbert.core.host.progress import print_note
from pocketbert.runtime.selftest import cache_folder

FOLDER_VARIABLE = "POCKETBERT_WEB_LIBRARIES"
"""Environment variable with a folder that already holds the archives, for machines without the npm registry."""
_REGISTRY = "https://registry.npmjs.org"
_TIMEOUT_S = 120.0
_MOST_MIB = 64


@dataclass(frozen=True)
class WebLibrary:
    """An npm package in one version, which the page loads.

    Attributes:
        name: Name in the npm registry.
        version: Version of the package.
        sha256: Digest of the package's archive.
        files: Paths in the package that the page may request.
        archive: Path of the archive on this machine; set by `find_libraries`.
    """

    name: str
    version: str
    sha256: str
    files: tuple[str, ...]
    archive: Path = Path()
    _contents: dict[str, bytes] = field(default_factory=dict, repr=False, compare=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    @property
    def short_name(self) -> str:
        """Name of the package without the scope, used in addresses and file names."""
        return self.name.rpartition("/")[2]

    @property
    def archive_name(self) -> str:
        """Name of the archive's file; unlike the short name, it is different for packages of different scopes."""
        return f"{self.name.replace('@', '').replace('/', '-')}-{self.version}.tgz"

    def read(self, path: str) -> bytes:
        """Return the content of one of `files`; the archive is read at the first call."""
        with self._lock:
            if not self._contents:
                members = {f"package/{name}": name for name in self.files}
                with tarfile.open(self.archive, "r:gz") as archive:
                    for member in archive:
                        stream = archive.extractfile(member) if member.name in members else None
                        if stream is not None:
                            self._contents[members[member.name]] = stream.read()
            return self._contents[path]


_LITERT_FILES = tuple(
    f"wasm/litert_wasm_{variant}internal.{suffix}"
    for variant in ("", "compat_", "threaded_", "jspi_")
    for suffix in ("js", "wasm")
)
_ORT_FILES = tuple(
    f"dist/{name}"
    for name in (
        "ort.wasm.bundle.min.mjs",
        "ort.webgpu.bundle.min.mjs",
        "ort-wasm-simd-threaded.mjs",
        "ort-wasm-simd-threaded.wasm",
        "ort-wasm-simd-threaded.asyncify.mjs",
        "ort-wasm-simd-threaded.asyncify.wasm",
    )
)
LITERT_JS = WebLibrary(
    "@litertjs/core",
    "2.5.3",
    "a97660833e9e7e1063c95e12016718881240b14f7438728a2f62785e912d30fd",
    ("dist/index.js", *_LITERT_FILES),
)
ORT_WEB = WebLibrary(
    "onnxruntime-web",
    "1.30.0",
    "d2228df7e4616bc3348bf504ee888f3bec43789a273f0a63f3e68d203ce3bf71",
    _ORT_FILES,
)
LIBRARIES = (
    LITERT_JS,
    WebLibrary(
        "@litertjs/wasm-utils",
        "2.5.3",
        "ce2a1f8379c067be49e59752e5a7f40db6be09f6e497f0f11e59f17b515366a7",
        ("dist/bundle.js",),
    ),
    ORT_WEB,
)
"""The packages that the page needs: the digests are those of the archives at registry.npmjs.org."""


def find_libraries() -> dict[str, WebLibrary]:
    """Find the archives of all packages, downloading those that are missing; return the packages by short name.

    If ``POCKETBERT_WEB_LIBRARIES`` names a folder, all archives must be in it. Else they are taken from the user's cache
    folder; archives that it lacks are downloaded into it from the npm registry (``npm_config_registry`` names another).

    Raises:
        MissingBackendError: If an archive is missing from the named folder, cannot be downloaded, or does not have the
            pinned digest, or if there is no cache folder.
    """
    named = os.environ.get(FOLDER_VARIABLE, "")
    if named:
        return {library.short_name: _open_archive(library, Path(named)) for library in LIBRARIES}
    folder = cache_folder("web-libraries")
    if folder is None:
        raise MissingBackendError("a folder to keep the JavaScript libraries in", f"export {FOLDER_VARIABLE}=FOLDER")
    return fetch_libraries(folder)


def fetch_libraries(folder: Path) -> dict[str, WebLibrary]:
    """Download the archives that are not in a folder yet; return the packages by short name.

    It raises the errors of `find_libraries`.
    """
    for library in LIBRARIES:
        if not (folder / library.archive_name).is_file():
            _fetch(library, folder / library.archive_name)
    return {library.short_name: _open_archive(library, folder) for library in LIBRARIES}


def _open_archive(library: WebLibrary, folder: Path) -> WebLibrary:
    """Return a package whose archive is the file in `folder`, after checking the archive's digest."""
    archive = folder / library.archive_name
    if not archive.is_file():
        raise _missing(library, f"{archive} is not there")
    if (digest := sha256_file(archive)) != library.sha256:
        raise _missing(library, f"{archive} has sha256 {digest}, not {library.sha256}; remove it")
    return WebLibrary(library.name, library.version, library.sha256, library.files, archive)


def _fetch(library: WebLibrary, archive: Path) -> None:
    """Download the archive of a package from the npm registry, check its digest, and write it to a file."""
    registry = (os.environ.get("npm_config_registry") or _REGISTRY).rstrip("/")  # noqa: SIM112  # npm writes it so
    address = f"{registry}/{library.name}/-/{library.short_name}-{library.version}.tgz"
    print_note(f"  fetching {library.name} {library.version} from {registry} into {archive.parent} (once)")
    if not address.startswith(("https://", "http://")):
        raise _missing(library, f"npm_config_registry={registry} is no address of a registry")
    try:
        with urllib.request.urlopen(address, timeout=_TIMEOUT_S) as answer:  # noqa: S310  # checked above
            content = answer.read((_MOST_MIB << 20) + 1)
    except (OSError, ValueError) as error:
        raise _missing(library, f"{address} cannot be read: {error}") from error
    digest = hashlib.sha256(content).hexdigest()
    if digest != library.sha256:
        raise _missing(library, f"{address} has sha256 {digest}, not {library.sha256}; nothing was written")
    archive.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(archive, content)


def _missing(library: WebLibrary, why: str) -> MissingBackendError:
    """Build the error that a package is missing, with the ways to get it."""
    command = f"npm pack {library.name}@{library.version} (in a folder that {FOLDER_VARIABLE} names)"
    return MissingBackendError(f"{library.name} {library.version} ({why})", command)
