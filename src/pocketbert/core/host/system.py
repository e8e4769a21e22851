"""The system that this process runs on: home folder, network, platform, Python, versions of installed libraries, memory.

Only the standard library is imported: the command line uses this module before anything else.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

from pocketbert.core.errors import InputError, Problem

_TIMEOUT_S = 1.0
"""How long the Hub is waited for, name and connection together; its own libraries try for a minute."""
_RESULT_LIBRARIES = (
    "pocketbert", "torch", "transformers", "tokenizers", "accelerate", "safetensors", "onnx", "onnxscript",
    "onnxruntime", "litert-torch", "litert-converter", "ai-edge-quantizer", "ai-edge-litert", "openvino", "coremltools",
    "protobuf", "numpy",
)  # fmt: skip
"""Distributions that a result depends on."""


def home_folder() -> Path | None:
    """Return the home folder, or None if neither HOME nor the user database names one, as in some containers."""
    try:
        return Path.home()
    except (RuntimeError, KeyError):
        return None


def expand_home(name: str, where: str) -> Path:
    """Expand ``~`` in a path to the home folder.

    Raises:
        InputError: If there is no such home folder.
    """
    try:
        return Path(name).expanduser()
    except (RuntimeError, KeyError) as error:
        problem = f"no home folder is known for '{name[:80]}'."
        raise InputError(Problem(where, problem, "Write the path without '~'.")) from error


def check_hub(kind: str, name: str) -> str:
    """Return why a model or data set cannot be loaded from the Hub: no connection, and no copy in the cache; else an empty text.

    Whether the Hub has the name is not checked. If the Hub cannot be reached but its cache on this machine has a copy,
    the Hub's libraries are set to use the copy only.

    Args:
        kind: ``datasets`` or ``models``.
        name: Name on the Hub, such as ``org/model``.
    """
    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    proxy = os.environ.get("HTTPS_PROXY") or os.environ.get("https_proxy")
    if _answers(proxy or endpoint):
        return ""
    if any(folder.exists() for folder in _cache_folders(kind, name)):
        os.environ["HF_HUB_OFFLINE"] = "1"
        for module, holder in (("huggingface_hub", "constants"), ("datasets", "config")):
            if module in sys.modules:  # it has read the variable already
                setattr(getattr(sys.modules[module], holder), "HF_HUB_OFFLINE", True)  # noqa: B010
        return ""
    return f"{urlsplit(endpoint).hostname or endpoint} cannot be reached, and the cache has no copy"


@cache
def _answers(address: str) -> bool:
    """Return whether the server of an address accepts a TCP connection within `_TIMEOUT_S` seconds.

    A thread connects, since looking up the host's name (DNS) may take half a minute.
    """
    parts = urlsplit(address if "//" in address else f"//{address}")
    connected: list[bool] = []

    def connect() -> None:
        """Try to connect to the server, and record whether it accepted."""
        import socket  # here: the command line imports this module for every command

        try:
            port = parts.port or (80 if parts.scheme == "http" else 443)
            socket.create_connection((parts.hostname or "", port), _TIMEOUT_S).close()
            connected.append(True)
        except (OSError, ValueError):
            connected.append(False)

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(_TIMEOUT_S)
    return connected == [True]


def _cache_folders(kind: str, name: str) -> list[Path]:
    """Return the cache folders in which the Hub's libraries would keep a downloaded model or data set."""
    home = _expand(os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
    hub = _expand(os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE") or home / "hub")
    folders = [hub / f"{kind}--{name.replace('/', '--')}"]
    if kind == "datasets":
        folders.append(Path(os.environ.get("HF_DATASETS_CACHE") or home / "datasets") / name.replace("/", "___"))
    return folders


def _expand(path: str | Path) -> Path:
    """Expand ``~`` and variables in a path as the Hub's libraries do, which take ``~`` for a name without a home folder."""
    with suppress(RuntimeError, KeyError):
        path = Path(path).expanduser()
    return Path(os.path.expandvars(path))


def unsupported_system() -> str:
    """Return why PocketBERT does not run on this operating system, with the fix; empty if it does."""
    if sys.platform == "win32":
        return "PocketBERT runs on Linux and macOS, not on Windows. Fix: install it in WSL (wsl --install)."
    return ""


def can_start_python() -> bool:
    """Return whether this Python can start another Python process, which a frozen application cannot."""
    return bool(sys.executable) and not getattr(sys, "frozen", False)


def version_of(distribution: str) -> str | None:
    """Return the installed version of a Python distribution without importing it; None if it is not installed."""
    try:
        return _read_version(distribution)
    except ModuleNotFoundError:  # PackageNotFoundError is one
        return None


@cache
def _read_version(distribution: str) -> str:
    """Read the version of an installed distribution, once in a process: an export asks hundreds of times."""
    from importlib import metadata  # here, since it slows down the start of every command

    return metadata.version(distribution)


def installed_versions(names: tuple[str, ...] = _RESULT_LIBRARIES) -> dict[str, str]:
    """Return the versions of those of the given distributions that are installed, by name."""
    return {name: version for name in names if (version := version_of(name))}


def list_extras() -> frozenset[str]:
    """Return the names of PocketBERT's optional extras (``train``, ``onnx``, ...), from its package metadata."""
    from importlib import metadata

    try:
        return frozenset(metadata.metadata("pocketbert").get_all("Provides-Extra") or ())
    except metadata.PackageNotFoundError:
        return frozenset()


_MUCH_MEMORY = 2_500_000_000
"""Bytes of a process from which on it is worth a search for objects in cycles, which takes up to half a second."""
_LARGE_FILE = 100_000_000
"""Bytes of a file from which on it is worth it in any case."""


@contextmanager
def leave_out_of_collection() -> Iterator[None]:
    """Keep objects that exist now (libraries, models) out of Python's garbage collection while the block runs.

    Otherwise each collection takes half a second, and blocks that open several large files cause many. Freed memory is given
    back to the system first, see `release_memory`.
    """
    release_memory()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def release_memory(after: Path | None = None) -> None:
    """Give freed memory of this process back to the system, if it holds much or a large file was just worked on.

    Linux' C library would keep it; on other systems nothing is done.

    Args:
        after: That file, or a folder of files.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # no /proc, or another C library than glibc
            pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
            files = [] if after is None else [after, *after.rglob("*")]
            size = sum(path.stat().st_size for path in files if path.is_file())
            if size > _LARGE_FILE or pages * os.sysconf("SC_PAGE_SIZE") > _MUCH_MEMORY:
                gc.collect()
                ctypes.CDLL(None).malloc_trim(0)
