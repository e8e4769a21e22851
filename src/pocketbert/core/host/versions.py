"""Versions of the libraries that a result depends on."""

from __future__ import annotations

from importlib import metadata

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
