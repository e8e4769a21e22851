"""The page of `pocketbert pack --for web-demo`: static files that any server can host, beside the model files of an artefact folder.

`write_page` copies the page, the package @pocketbert/runtime and the engines (LiteRT.js, onnxruntime-web, from the pinned archives of
npm), and writes the service worker that keeps all of it for use without a network.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template

from pocketbert.benchmarks.browser.libraries import find_libraries
from pocketbert.core.artefacts import Artefacts, Kind
from pocketbert.core.disk.files import sha256_json, sha256_path
from pocketbert.core.formats import FORMATS
from pocketbert.core.types import Format

_WORKER = "sw.js"
_LITERT = ("litert_wasm_internal", "litert_wasm_compat_internal")
"""LiteRT.js takes one of these by what the browser can do; it needs the others for threads and GPUs, which the page does not use."""
_LIBRARIES: dict[Format, dict[str, tuple[str, ...]]] = {
    Format.TFLITE: {
        "core": ("dist/index.js", *(f"wasm/{name}.{suffix}" for name in _LITERT for suffix in ("js", "wasm"))),
        "wasm-utils": ("dist/bundle.js",),
    },
    Format.ONNX: {
        "onnxruntime-web": (
            "dist/ort.wasm.bundle.min.mjs",
            "dist/ort-wasm-simd-threaded.mjs",
            "dist/ort-wasm-simd-threaded.wasm",
        ),
    },
}
"""Files of each library that the page needs for files of a format, by the library's short name."""


def write_page(models: Sequence[Path], destination: Path, artefacts: Artefacts) -> dict[str, Kind]:
    """Write the page, the JavaScript runtime, the engines of the model files' formats, and the service worker.

    Args:
        models: The packed model files.
        destination: The packed folder, with all its other files except ``artifacts.json``, which names the service worker's sha256.
        artefacts: Content of ``artifacts.json``. If it changes, such as a threshold, the service worker gets another version.

    Returns:
        The written files by their paths in the folder, with their kinds.

    Raises:
        MissingBackendError: If an engine's archive is not there and cannot be fetched.
    """
    suffixes = {path.suffix for path in models}
    written = dict(_page_files())
    libraries = find_libraries()
    for format, wanted in _LIBRARIES.items():
        if FORMATS[format].suffix in suffixes:
            for name, paths in wanted.items():
                written |= {f"lib/{name}/{path}": libraries[name].read(path) for path in paths}
    for path, content in written.items():
        target = destination / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    everything = sorted(path for path in destination.rglob("*") if path.is_file())
    digests = [[path.relative_to(destination).as_posix(), sha256_path(path)] for path in everything]
    version = sha256_json([artefacts.model_dump(mode="json"), digests])
    worker = (files(__package__) / "page" / _WORKER).read_text(encoding="utf-8")
    (destination / _WORKER).write_text(Template(worker).safe_substitute(version=version), encoding="utf-8")
    return dict.fromkeys((*written, _WORKER), Kind.TOOL)


def _page_files() -> Iterator[tuple[str, bytes]]:
    """Yield the files of the page, without the service worker, and of the JavaScript runtime, by their paths in the folder."""
    for page in _files_below(files(__package__) / "page"):
        if page[0] != _WORKER:
            yield page
    for path, content in _files_below(files("pocketbert.runtime") / "javascript"):
        yield f"runtime/{path}", content


def _files_below(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, bytes]]:
    """Yield the files of a package's folder and of the folders in it, by their paths."""
    for entry in sorted(folder.iterdir(), key=lambda one: one.name):
        if entry.is_dir():
            yield from _files_below(entry, f"{prefix}{entry.name}/")
        else:
            yield prefix + entry.name, entry.read_bytes()
