"""Writing a Core ML package so that the same model gives the same bytes."""

from __future__ import annotations

import json
import shutil
import uuid
from pathlib import Path

from pocketbert.core.disk.ownership import Contents
from pocketbert.core.disk.workspace import building

MODEL = "com.apple.CoreML/model.mlmodel"
WEIGHTS = "com.apple.CoreML/weights"
WEIGHT_FILE = f"{WEIGHTS}/weight.bin"
DATE = "com.github.apple.coremltools.conversion_date"
"""Metadata that coremltools adds and this project takes out: the same model gives the same bytes on any day."""
CONTENTS = Contents("Manifest.json", (f"Data/{MODEL}", f"Data/{WEIGHT_FILE}"))
"""Files of a package: one that holds anything else is not replaced."""
_AUTHOR = "com.apple.CoreML"
_ITEMS = {
    MODEL: ("model.mlmodel", "CoreML Model Specification"),
    WEIGHTS: ("weights", "CoreML Model Weights"),
}


def save_package(model: bytes, weights: Path, destination: Path) -> None:
    """Write an ``.mlpackage`` folder, whole or not at all.

    coremltools gives its items random identifiers and writes maps in any order; the ones here follow from the paths.

    Args:
        model: The serialized specification, with its maps in a fixed order.
        weights: ``weight.bin``.
        destination: The folder to write; one that is there is replaced.
    """
    with building(destination, CONTENTS) as folder:
        data = folder / "Data"
        (data / WEIGHTS).mkdir(parents=True)
        (data / MODEL).write_bytes(model)
        shutil.copyfile(weights, data / WEIGHT_FILE)
        names = {path: str(uuid.uuid5(uuid.NAMESPACE_URL, path)).upper() for path in _ITEMS}
        entries = {
            names[path]: {"author": _AUTHOR, "description": text, "name": name, "path": path}
            for path, (name, text) in _ITEMS.items()
        }
        # coremltools writes the file again, with sorted keys, whenever it opens a package
        manifest = {"fileFormatVersion": "1.0.0", "itemInfoEntries": entries, "rootModelIdentifier": names[MODEL]}
        (folder / "Manifest.json").write_text(json.dumps(manifest, indent=4, sort_keys=True) + "\n", encoding="utf-8")
