"""Whether the Hub can be reached: asked once and briefly, where its libraries would try again for a minute."""

from __future__ import annotations

import os
import socket
import sys
import threading
from functools import cache
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit

from pocketbert.core.errors import InputError, Problem

# --- home ---
# The user's home folder, which containers with an unknown user id do not have.


def home_folder() -> Path | None:
    """Return the home folder; None where neither HOME nor the user database names one."""
    try:
        return Path.home()
    except (RuntimeError, KeyError):
        return None


def expanded(name: str, where: str) -> Path:
    """Return a path with ``~`` replaced by the home folder.

    Args:
        name: What the user wrote.
        where: What to blame in the error.

    Raises:
        InputError: If there is no such home folder.
    """
    try:
        return Path(name).expanduser()
    except (RuntimeError, KeyError) as error:
        raise InputError(
            Problem(where, f"no home folder is known for '{name[:80]}'.", "Write the path without '~'.")
        ) from error


PATIENCE_S = 1.0
"""How long an answer is waited for: name and connection together."""


def check_hub(kind: str, name: str) -> str:
    """Tell why a model or data set of the Hub is not available here; return nothing where it may be.

    Without a network, but with a copy in the cache, the Hub's libraries are told to use the copy only.

    Args:
        kind: ``datasets`` or ``models``.
        name: Name on the Hub, such as ``org/model``.
    """
    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    proxy = os.environ.get("HTTPS_PROXY") or os.environ.get("https_proxy")
    if _answers(proxy or endpoint):
        return ""
    if any(folder.exists() for folder in _cached(kind, name)):
        _stay_offline()
        return ""
    return f"{urlsplit(endpoint).hostname or endpoint} cannot be reached, and the cache has no copy"


@cache
def _answers(address: str) -> bool:
    """Whether something accepts a connection; the system's own search for a name may take half a minute, so it is not waited for."""
    parts = urlsplit(address if "//" in address else f"//{address}")
    found: list[bool] = []

    def connect() -> None:
        try:
            port = parts.port or (80 if parts.scheme == "http" else 443)
            socket.create_connection((parts.hostname or "", port), PATIENCE_S).close()
            found.append(True)
        except (OSError, ValueError):
            found.append(False)

    asking = threading.Thread(target=connect, daemon=True)
    asking.start()
    asking.join(PATIENCE_S)
    return found == [True]


def _cached(kind: str, name: str) -> list[Path]:
    """Folders that the Hub's libraries keep copies in."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    hub = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    folders = [hub / f"{kind}--{name.replace('/', '--')}"]
    if kind == "datasets":
        folders.append(Path(os.environ.get("HF_DATASETS_CACHE") or home / "datasets") / name.replace("/", "___"))
    return folders


def _stay_offline() -> None:
    """Let the Hub's libraries try no connection, imported or not."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    for module, holder in (("huggingface_hub", "constants"), ("datasets", "config")):
        if module in sys.modules:
            setattr(getattr(sys.modules[module], holder), "HF_HUB_OFFLINE", True)  # noqa: B010


# --- platforms ---
# Operating systems that PocketBERT runs on.


def refusal() -> str:
    """Say why the verbs do not run on this system, and what to do; empty where they do."""
    if sys.platform == "win32":
        return "PocketBERT runs on Linux and macOS, not on Windows. Fix: install it in WSL (wsl --install)."
    return ""


# --- python ---
# The Python that runs this process.


def can_start_python() -> bool:
    """Whether a process of this Python can be started; a frozen application would start itself once more."""
    return bool(sys.executable) and not getattr(sys, "frozen", False)


# --- versions ---
# Versions of the libraries that a result depends on.


NAMES = (
    "pocketbert", "torch", "transformers", "tokenizers", "accelerate", "safetensors", "onnx", "onnxscript",
    "onnxruntime", "litert-torch", "litert-converter", "ai-edge-quantizer", "ai-edge-litert", "openvino", "coremltools", "protobuf", "numpy",
)  # fmt: skip


def version_of(distribution: str) -> str | None:
    """Installed version of a distribution, without importing it; None when it is absent."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def extras() -> frozenset[str]:
    """Names of PocketBERT's extras, from the metadata of its installation."""
    try:
        return frozenset(metadata.metadata("pocketbert").get_all("Provides-Extra") or ())
    except metadata.PackageNotFoundError:
        return frozenset()


def installed(names: tuple[str, ...] = NAMES) -> dict[str, str]:
    """Versions of those of `names` that are installed."""
    return {name: version for name in names if (version := version_of(name))}
