"""Core ML: packages with listed lengths, in fp16 or fp32; checked by the project's evaluator where there is no Mac."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pocketbert.benchmarks.devices.mac.script import FILE_NAME as FILE_NAME_ON_MAC
from pocketbert.benchmarks.devices.mac.script import mac_script
from pocketbert.core.artefacts import Artefacts, Kind, Minimum
from pocketbert.core.compare.evaluate import worst_difference
from pocketbert.core.compare.golden import GoldenRow
from pocketbert.core.models.folder import ModelFolder
from pocketbert.core.packages.coreml_classifier import LABEL, SCORES
from pocketbert.core.predict.predictor import feed
from pocketbert.core.predict.score import probabilities
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.tasks import TaskName
from pocketbert.core.types import Format, Layout, Scheme, Shapes
from pocketbert.pipeline.formats.about import description_of, maker
from pocketbert.pipeline.formats.gate import Gate, Subject, unread_gate
from pocketbert.pipeline.formats.model_files import ModelFile
from pocketbert.pipeline.formats.offer import TOKENIZER, Offer, Platform, tokenizer_of
from pocketbert.pipeline.formats.place import Extras, FormatPlace, shorter
from pocketbert.pipeline.formats.run_model import RunModel
from pocketbert.pipeline.formats.snippets import swift
from pocketbert.pipeline.formats.snippets.parts import lengths, offered
from pocketbert.pipeline.formats.stored.tracker import Constant

if TYPE_CHECKING:
    from torch import nn

MAC_SCRIPT = f"{Format.COREML}/{FILE_NAME_ON_MAC}"
LAYOUT_NOTE = "pocketbert.layout"
"""Entry of a package's metadata that names its layout."""
SCANNED = 6
"""Golden rows whose every intermediate result is looked at."""
_OLDEST = 16
"""Oldest iOS version that packages can be exported for."""
PROBABILITY = 2e-3
"""How far a probability may be from its logit's: softmax rounded to fp16 is within 1e-3."""


class CoremlPlace(FormatPlace):
    """The Core ML packages of a run."""

    format = Format.COREML
    timing = f"`python3 {MAC_SCRIPT}` measures it on a Mac"

    def exported_scheme(self, recipe: Recipe) -> Scheme:
        """Return the precision that the recipe asks for."""
        return recipe.export.coreml.precision

    def layout(self, recipe: Recipe) -> Layout:
        """Return the layout that the recipe asks for."""
        return recipe.export.coreml.layout

    def settings(self, recipe: Recipe) -> dict[str, object]:
        """Return the recipe's section on packages, and what they tell about themselves."""
        section = recipe.export.coreml.model_dump(mode="json")
        return {"export": {"coreml": section}, "name": recipe.name, "description": recipe.description}

    def lengths(self, recipe: Recipe, file: ModelFile, length: int) -> list[int]:
        """Choose one length in packages of fixed shape, which pad everything to it: the recipe's longest."""
        if recipe.export.coreml.lengths is Shapes.FIXED:
            return shorter(recipe, length)[-1:]
        return super().lengths(recipe, file, length)

    def write(self, model: RunModel, module: nn.Module, file: ModelFile, destination: Path) -> None:
        """Export a package that names its labels, task and origin."""
        from pocketbert.export import coreml

        recipe, folder, labels = model.recipe, model.folder, model.labels
        settings = recipe.export.coreml
        form = coreml.CoremlForm(settings.ios, settings.lengths, settings.precision)
        notes = {
            "pocketbert.task": model.task.name.value,
            "pocketbert.family": folder.family.name,
            LAYOUT_NOTE: settings.layout.value,
            "pocketbert.labels": json.dumps(labels, ensure_ascii=False),
        }
        info = coreml.CoremlInfo(
            description=description_of(recipe, folder, model.task),
            version=f"{recipe.name} {folder.sha256[:12]}",
            author=maker(),
            license=folder.licence,
            labels=labels,
            notes=tuple(notes.items()),
        )
        lengths = self.lengths(recipe, file, model.length)
        coreml.export(module, folder.family, model.task, lengths, destination, form, info)

    def gates(self, subject: Subject, rows: Sequence[GoldenRow]) -> list[Gate]:
        """Check label names inside the package, the classifier's answer, and room in fp16."""
        return _own_gates(subject, rows)

    def constants(self, path: Path) -> list[list[Constant]]:
        """Read the constants of a package."""
        from pocketbert.pipeline.formats.stored.coreml import coreml_constants

        return coreml_constants(path)

    def layout_of(self, path: Path) -> Layout:
        """Read the layout that a package names."""
        from pocketbert.runtime.coreml.package import read_package

        named = read_package(path).model.description.metadata.userDefined
        return Layout(named[LAYOUT_NOTE]) if LAYOUT_NOTE in named else Layout.PLAIN

    def notes(self, recipe: Recipe) -> list[str]:
        """Tell what was checked without a Mac, and that the layout for the Neural Engine was not timed."""
        out = []
        if not self.info.timed:
            from pocketbert.runtime.coreml import LIMITS

            out.append(
                f"Core ML packages were checked by the project's evaluator, without a Mac. {' '.join(LIMITS)} "
                f"`{MAC_SCRIPT}` checks and times them on one."
            )
        if recipe.export.coreml.layout is Layout.ANE:
            out.append("Core ML layout `ane`: same answers as the plain layout; whether it is faster was not measured.")
        return out

    def processing(self, artefacts: Artefacts) -> list[str]:
        """Tell inputs, lengths and outputs."""
        record = offered(artefacts, self.format)
        if record is None or not record.signature:
            return []
        known = ", ".join(map(str, lengths(record)))
        outputs = ", ".join(f"`{o.name}`" for o in record.signature.outputs)
        answer = (
            "A classifier answers with `classLabel`, `classLabel_probs` and `logits`."
            if artefacts.task is TaskName.TEXT_CLASSIFICATION
            else f"Outputs: {outputs}."
        )
        most = artefacts.processing.max_length
        shapes = f"lengths {known}: pad to the next one" if known else f"any length up to {most}"
        return [f"Core ML: int32 inputs [1, length]; {shapes}. {answer}"]

    def minimum(self, file: ModelFile, path: Path) -> Minimum | None:
        """Read the oldest iOS version that has the package's operations."""
        from pocketbert.runtime.coreml.package import OPSETS, read_package

        opset = read_package(path).opset
        return Minimum(ios=opset + 10 if opset < max(OPSETS.values()) else 26)

    def offers(self, artefacts: Artefacts) -> list[Offer]:
        """Offer a package to iOS."""
        record = offered(artefacts, self.format)
        if record is None:
            return []
        ios = record.minimum.ios if record.minimum is not None else None
        older = f"`pocketbert export --ios {_OLDEST}` (recipe: `export.coreml.ios`) makes a package for older systems."
        return [
            Offer(
                platform=Platform.IOS,
                record=record,
                beside=(TOKENIZER,),
                needs=f"iOS {ios}" if ios is not None else "iOS 18, unless it was exported with `--ios`",
                tokenizer=tokenizer_of(artefacts, "Swift"),
                dependencies=(),
                snippet=swift.coreml(artefacts, record),
                notes=(
                    "Checked by this project's evaluator, never by Core ML: no Mac was available.",
                    *([older] if ios is not None and ios > _OLDEST else []),
                ),
            )
        ]

    def snippets(self, artefacts: Artefacts) -> list[str]:
        """Add nothing: the table has a row for iOS."""
        return []

    def pack(self, files: Sequence[ModelFile], folder: ModelFolder, destination: Path) -> Extras:
        """Add the script that checks and times the packages on a Mac."""
        (destination / MAC_SCRIPT).write_text(mac_script(), encoding="utf-8")
        return Extras(kinds={MAC_SCRIPT: Kind.TOOL})


def _own_gates(subject: Subject, rows: Sequence[GoldenRow]) -> list[Gate]:
    """Check label names inside the package, and that every intermediate result has room in its type.

    Args:
        subject: The file.
        rows: Golden rows.
    """
    unread = unread_gate(subject, "overflow")
    if unread is not None:
        return [unread]
    names = subject.predictor.inputs
    encoded = subject.tokenizer.encode([r.input for r in rows])
    longest_first = sorted(encoded, key=len, reverse=True)[:SCANNED]
    batches = [feed(subject.predictor, subject.tokenizer, [e]) for e in longest_first]
    inputs = [{n: b[n].astype(np.float32 if b[n].dtype.kind == "f" else np.int32) for n in names} for b in batches]
    own = [_labels(subject), _classifier(subject, inputs)]
    return [*(own if subject.task.name is TaskName.TEXT_CLASSIFICATION else []), _overflow(subject, inputs)]


def _labels(subject: Subject) -> Gate:
    from pocketbert.runtime.coreml.stored import StoredTensors

    inside = StoredTensors(subject.path).labels()
    wrong = [f"'{i}' instead of '{w}'" for i, w in zip(inside, subject.labels, strict=False) if i != w]
    if len(inside) != len(subject.labels):
        wrong.insert(0, f"{len(inside)} labels instead of {len(subject.labels)}")
    return Gate(
        name="metadata",
        file=subject.name,
        passed=not wrong,
        value=float(len(wrong)),
        bound=0.0,
        detail=f"labels inside the package: {'; '.join(wrong[:3])}."
        if wrong
        else f"{len(inside)} labels inside the package are those of the folder.",
    )


def _classifier(subject: Subject, inputs: Sequence[Mapping[str, NDArray[np.generic]]]) -> Gate:
    """Whether the label and the probabilities that an app reads belong to the logits that everything else here reads."""
    from pocketbert.runtime.coreml.evaluator import Evaluator

    evaluator, differences, wrong = Evaluator(subject.path), list[float](), 0
    for one in inputs:
        out = evaluator.run(one)
        want = probabilities(np.asarray(out[subject.output], np.float32)[0], subject.task.score)
        table, label = out.get(SCORES), out.get(LABEL)
        have = np.array(list(table.values()) if isinstance(table, dict) else [])
        differences.append(worst_difference(have, want))  # NaN where there are more or fewer
        wrong += not (isinstance(table, dict) and label == max(table, key=lambda k: table[k]))
    worst = float(np.max(differences))  # keeps a NaN
    passed = worst <= PROBABILITY and not wrong
    return Gate(
        name="classifier",
        file=subject.name,
        passed=passed,
        value=worst,
        bound=PROBABILITY,
        detail=f"`{SCORES}` differs from the logits' probabilities by {worst:.2g}, `{LABEL}` is another label "
        f"than the most probable one in {wrong} of {len(inputs)} golden rows.",
    )


def _overflow(subject: Subject, inputs: Sequence[Mapping[str, NDArray[np.generic]]]) -> Gate:
    """Whether every intermediate result fits into the type that the program declares for it."""
    from pocketbert.runtime.coreml.half import LARGEST
    from pocketbert.runtime.coreml.scan import overflow_scan

    scan = overflow_scan(subject.path, inputs)
    largest = scan.largest.largest if scan.largest else 0.0
    return Gate(
        name="overflow",
        file=subject.name,
        passed=scan.first is None,
        value=largest,
        bound=float(LARGEST),
        detail=f"{scan.summary}; {scan.rows} golden rows, every operation.",
    )
