"""The operator that makes a Core ML program a classifier, put behind a converted program and taken off again.

`coremltools.ClassifierConfig` cannot do it here: coremltools 9.0 stops with an IndexError where a classifier has a further
output in fp16, and `coremltools.optimize` cannot write the operator's list of labels back. What is put there equals what
coremltools itself writes (tests/export/test_coreml.py).
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pocketbert.core.disk.ownership import Contents
from pocketbert.core.disk.workspace import building

# --- coreml ---
# Writing a Core ML package so that the same model gives the same bytes.


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


PROBABILITIES = "probabilities"
"""Output of the program that the classifier reads; it is none of the package's any more."""
LABEL = "classLabel"
SCORES = "classLabel_probs"
_OPERATOR = "classify"


def add_classifier(spec: Any, labels: Sequence[str]) -> None:
    """Turn the output ``probabilities`` into a label's name and a table of probabilities.

    Args:
        spec: A Core ML specification (coremltools' class) with an ML Program; changed in place.
        labels: Label names in order of the probabilities.
    """
    from coremltools.proto import MIL_pb2

    block = _block(spec)
    operation = block.operations.add(type=_OPERATOR)
    operation.inputs["probabilities"].arguments.add(name=PROBABILITIES)
    classes = operation.inputs["classes"].arguments.add().value
    classes.type.listType.type.tensorType.dataType = MIL_pb2.STRING
    classes.type.listType.length.constant.size = len(labels)
    for label in labels:
        value = classes.immediateValue.list.values.add()
        value.type.tensorType.dataType = MIL_pb2.STRING
        value.immediateValue.tensor.strings.values.append(label)
    name = operation.attributes["name"]
    name.type.tensorType.dataType = MIL_pb2.STRING
    name.immediateValue.tensor.strings.values.append(f"{_OPERATOR}_0")
    operation.outputs.add(name=LABEL).type.tensorType.dataType = MIL_pb2.STRING
    table = operation.outputs.add(name=SCORES).type.dictionaryType
    table.keyType.tensorType.dataType = MIL_pb2.STRING
    table.valueType.tensorType.dataType = MIL_pb2.FLOAT64
    _set(block.outputs, [LABEL, SCORES, *(o for o in block.outputs if o != PROBABILITIES)])
    description = spec.description
    kept = _kept(description, PROBABILITIES)
    del description.output[:]
    description.output.add(name=LABEL).type.stringType.SetInParent()
    description.output.add(name=SCORES).type.dictionaryType.stringKeyType.SetInParent()
    description.output.extend(kept)
    description.predictedFeatureName, description.predictedProbabilitiesName = LABEL, SCORES


def remove_classifier(spec: Any) -> list[str]:
    """Undo `add_classifier`.

    Args:
        spec: A Core ML specification; changed in place.

    Returns:
        Label names; empty where there was no classifier, and nothing was changed.
    """
    from coremltools.proto import FeatureTypes_pb2

    block = _block(spec)
    if not block.operations or block.operations[-1].type != _OPERATOR:
        return []
    classes = block.operations[-1].inputs["classes"].arguments[0].value.immediateValue.list.values
    labels = [v.immediateValue.tensor.strings.values[0] for v in classes]
    del block.operations[-1]
    _set(block.outputs, [*(o for o in block.outputs if o not in (LABEL, SCORES)), PROBABILITIES])
    description = spec.description
    kept = _kept(description, LABEL, SCORES)
    del description.output[:]
    description.output.extend(kept)
    array = description.output.add(name=PROBABILITIES).type.multiArrayType
    array.dataType = FeatureTypes_pb2.ArrayFeatureType.FLOAT32
    array.shape.extend([1, len(labels)])
    description.predictedFeatureName = description.predictedProbabilitiesName = ""
    return labels


def _block(spec: Any) -> Any:
    function = spec.mlProgram.functions["main"]
    return function.block_specializations[function.opset]


def _set(field: Any, values: Sequence[str]) -> None:
    del field[:]
    field.extend(values)


def _kept(description: Any, *names: str) -> list[Any]:
    """Copies of the output features but some: a repeated field gives up its own."""
    return [type(o).FromString(o.SerializeToString()) for o in description.output if o.name not in names]
