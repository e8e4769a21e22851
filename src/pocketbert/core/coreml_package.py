"""Core ML packages: writing one reproducibly (`save_package`), adding and removing the classifier operator.

`add_classifier` and `remove_classifier` edit a converted program. `coremltools.ClassifierConfig` cannot be used:
coremltools 9.0 stops with an IndexError if a classifier has a further output in fp16, and `coremltools.optimize`
cannot write the operator's list of labels back. The result equals what coremltools itself writes
(tests/export/test_coreml.py).
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

_MODEL = "com.apple.CoreML/model.mlmodel"
_WEIGHTS = "com.apple.CoreML/weights"
_WEIGHT_FILE = f"{_WEIGHTS}/weight.bin"
DATE = "com.github.apple.coremltools.conversion_date"
"""Metadata that coremltools adds and this project removes, so that the same model gives the same bytes on any day."""
_CONTENTS = Contents("Manifest.json", (f"Data/{_MODEL}", f"Data/{_WEIGHT_FILE}"))
"""Files of a package; a folder that holds anything else is not replaced."""
_AUTHOR = "com.apple.CoreML"
_ITEMS = {
    _MODEL: ("model.mlmodel", "CoreML Model Specification"),
    _WEIGHTS: ("weights", "CoreML Model Weights"),
}


def save_package(model: bytes, weights: Path, destination: Path) -> None:
    """Write an ``.mlpackage`` folder atomically.

    coremltools gives the items random identifiers; here they are derived from the paths, so that the same model
    gives the same bytes.

    Args:
        model: The serialized specification, with its maps in a fixed order.
        weights: ``weight.bin``.
        destination: The folder to write; an existing package is replaced.
    """
    with building(destination, _CONTENTS) as folder:
        data = folder / "Data"
        (data / _WEIGHTS).mkdir(parents=True)
        (data / _MODEL).write_bytes(model)
        shutil.copyfile(weights, data / _WEIGHT_FILE)
        names = {path: str(uuid.uuid5(uuid.NAMESPACE_URL, path)).upper() for path in _ITEMS}
        entries = {
            names[path]: {"author": _AUTHOR, "description": text, "name": name, "path": path}
            for path, (name, text) in _ITEMS.items()
        }
        # coremltools writes the file again, with sorted keys, whenever it opens a package
        manifest = {"fileFormatVersion": "1.0.0", "itemInfoEntries": entries, "rootModelIdentifier": names[_MODEL]}
        (folder / "Manifest.json").write_text(json.dumps(manifest, indent=4, sort_keys=True) + "\n", encoding="utf-8")


PROBABILITIES = "probabilities"
"""Output of the program that the classifier reads; the package with a classifier does not have it as an output."""
LABEL = "classLabel"
SCORES = "classLabel_probs"
_OPERATOR = "classify"


def add_classifier(spec: Any, labels: Sequence[str]) -> None:
    """Append the classifier operator: the output ``probabilities`` becomes a label's name and a table of probabilities.

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
    outputs = [LABEL, SCORES, *(o for o in block.outputs if o != PROBABILITIES)]
    del block.outputs[:]
    block.outputs.extend(outputs)
    description = spec.description
    kept = _copy_outputs_except(description, PROBABILITIES)
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
        Label names; empty if there was no classifier and nothing was changed.
    """
    from coremltools.proto import FeatureTypes_pb2

    block = _block(spec)
    if not block.operations or block.operations[-1].type != _OPERATOR:
        return []
    classes = block.operations[-1].inputs["classes"].arguments[0].value.immediateValue.list.values
    labels = [v.immediateValue.tensor.strings.values[0] for v in classes]
    del block.operations[-1]
    outputs = [*(o for o in block.outputs if o not in (LABEL, SCORES)), PROBABILITIES]
    del block.outputs[:]
    block.outputs.extend(outputs)
    description = spec.description
    kept = _copy_outputs_except(description, LABEL, SCORES)
    del description.output[:]
    description.output.extend(kept)
    array = description.output.add(name=PROBABILITIES).type.multiArrayType
    array.dataType = FeatureTypes_pb2.ArrayFeatureType.FLOAT32
    array.shape.extend([1, len(labels)])
    description.predictedFeatureName = description.predictedProbabilitiesName = ""
    return labels


def _block(spec: Any) -> Any:
    """Return the block of operations of the program's main function."""
    function = spec.mlProgram.functions["main"]
    return function.block_specializations[function.opset]


def _copy_outputs_except(description: Any, *names: str) -> list[Any]:
    """Copy the output features except some; the originals are destroyed when the repeated field is cleared."""
    return [type(o).FromString(o.SerializeToString()) for o in description.output if o.name not in names]
