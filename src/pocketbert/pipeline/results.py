"""The result of one gate, and the file that gates check."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from pocketbert.core.artefacts import SeenRight
from pocketbert.core.compare.golden import GoldenRow
from pocketbert.core.families.weight_records import ProductRanges, WeightRole
from pocketbert.core.formats import FORMATS
from pocketbert.core.host.system import version_of
from pocketbert.core.host.terminal import html_table
from pocketbert.core.metrics import METRICS
from pocketbert.core.predict.predictor import PROBABILITIES, Matrix, Predictor, answer_of, run_rows
from pocketbert.core.predict.scores import Confidence, Score, probabilities
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import Task
from pocketbert.core.types import Client, Format, Runtime, Scheme, Status


class Gate(BaseModel):
    """One check of one file.

    Attributes:
        name: Which check.
        file: Path in the artefact folder.
        passed: The verdict.
        value: What was measured, where it is a number.
        bound: What it must keep.
        detail: One sentence for people.
        skipped: Whether it could not be checked here; it then says nothing and is not counted.
    """

    model_config = ConfigDict(ser_json_inf_nan="strings")

    name: str
    file: str
    passed: bool
    value: float | None = None
    bound: float | None = None
    detail: str = ""
    skipped: bool = False

    @property
    def failure(self) -> str:
        """The line a user sees when the gate failed."""
        return f"{self.file or 'folder'}: gate '{self.name}' failed: {self.detail}"


@dataclass(frozen=True)
class Subject:
    """A file under verification, with what the checks need.

    Attributes:
        name: Path in the artefact folder.
        path: The file.
        format: What kind of file it is.
        scheme: What it claims to be.
        client: The client it is made for, if it is for one only.
        runtime: The runtime it is made for, if it is for one.
        predictor: The file, opened.
        tokenizer: The folder's tokenizer, cutting at the longest input of the file.
        labels: Label names in order of their ids.
        task: What it does.
        folder: Where its tokenizer files are.
        simulated: Error of its scheme, simulated in torch; None where none was recorded.
        ranges: Of a static file, the ranges that torch measured for products, by the paths of their weights; empty where
            none were recorded.
        weights: What was to be made of each weight, where some were left as exported.
    """

    name: str
    path: Path
    format: Format
    scheme: Scheme
    client: Client | None
    runtime: Runtime | None
    predictor: Predictor
    tokenizer: TextTokenizer
    labels: list[str]
    task: Task
    folder: Path
    simulated: float | None = None
    ranges: Mapping[str, Sequence[ProductRanges]] = field(default_factory=dict)
    weights: Sequence[WeightRole] = ()

    @property
    def output(self) -> str:
        """The output that decides, or the first of them."""
        return answer_of(self.task, self.predictor)[0]

    @property
    def exported(self) -> bool:
        """Whether an exporter wrote it, not a quantizer."""
        return self.scheme in (Scheme.FP32, FORMATS[self.format].base)

    def answers(self, rows: Sequence[GoldenRow]) -> list[Matrix]:
        """What the file answers to golden rows, one row at a time: the recorded places of each."""
        encoded = self.tokenizer.encode([r.input for r in rows])
        return run_rows(self.predictor, self.tokenizer, encoded, self.task, reduce=lambda i, m: rows[i].pick(m))

    def recorded(self, row: GoldenRow, values: list[float]) -> Matrix:
        """Recorded logits of the torch model as this file would answer."""
        matrix = row.shaped(values)
        if self.output == PROBABILITIES:
            return probabilities(matrix, self.task.score).astype(np.float32)
        return matrix

    def reference(self, rows: Sequence[GoldenRow]) -> list[Matrix]:
        """What the torch model answers, padded where this file has to pad."""
        lengths = [len(e) for e in self.tokenizer.encode([r.input for r in rows])]
        pads = [n not in self.predictor.lengths if self.predictor.lengths else False for n in lengths]
        return [self.recorded(r, r.padded if p and r.padded else r.reference) for r, p in zip(rows, pads, strict=True)]

    def rows(self, golden: Sequence[GoldenRow]) -> list[GoldenRow]:
        """The golden rows that are not too long for this file."""
        return [r for r in golden if self.name in r.outputs] or list(golden)


def unread_gate(subject: Subject, gate: str) -> Gate | None:
    """A skipped gate where the library that reads this kind of file is missing."""
    reader = FORMATS[subject.format].reader
    if version_of(reader) is not None:
        return None
    # a phone-side or core-only install cannot read the graph; say so rather than pass silently
    return Gate(
        name=gate, file=subject.name, passed=True, skipped=True, detail=f"not checked: {reader} is not installed here."
    )


# --- verification ---
# The result of a verification: gates, scores, and what they were measured on.


class Verification(BaseModel):
    """Result of a verification.

    Attributes:
        status: Passed when every gate is.
        gates: All checks.
        scores: By file, then by set.
        teacher: Score of the teacher in torch, if there is one.
        reference: Score of the exported torch model.
        files: sha256 of every file that was verified or decided the verdict, by path in the artefact folder.
        seen_right: Engines that computed a file right, by path.
        confidence: Temperature and calibration error of each file, by path (text-classification).
        notes: What a user may want to know and no gate fails for, such as an edited card.
        protocol: How scores were computed.
    """

    status: Status
    gates: list[Gate]
    scores: dict[str, dict[str, Score]] = {}
    teacher: Score | None = None
    reference: Score | None = None
    files: dict[str, str] = {}
    seen_right: dict[str, SeenRight] = {}
    confidence: dict[str, Confidence] = {}
    notes: list[str] = []
    protocol: str = (
        "scores are measured on one unpadded row at a time (batch 1), since dynamic int8 depends on batch and padding"
    )

    @property
    def failures(self) -> list[str]:
        """Lines on failed gates."""
        return [g.failure for g in self.gates if not g.passed]

    def __repr__(self) -> str:
        failed = len(self.failures)
        return (
            f"<Verification {self.status}: {len(self.gates)} gates, {failed} failed, {len(self.scores)} files scored>"
        )

    def _repr_html_(self) -> str:
        rows = []
        for name in dict.fromkeys(g.file for g in self.gates):
            own = [g for g in self.gates if g.file == name]
            failed = [g.detail for g in own if not g.passed]
            rows.append((name or "folder", len(own), "; ".join(failed) or "passed"))
        return html_table(("file", "gates", "verdict"), rows, repr(self))

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON has it."""
        return self.model_dump(mode="json")

    def summary(self) -> list[tuple[str, bool]]:
        """One line for each file: how many checks it passed and failed, and its scores; with whether any failed."""
        lines = []
        for file in dict.fromkeys(g.file for g in self.gates):
            counted = [g for g in self.gates if g.file == file and not g.skipped]
            failed = sum(not g.passed for g in counted)
            passed = len(counted) - failed
            parts = [f"{passed} check{'s' * (passed != 1)} passed"] if counted else ["not checked"]
            parts += [f"{failed} failed"] if failed else []
            for name, score in self.scores.get(file, {}).items():
                parts.append(f"{score.metric} {METRICS[score.metric].format(score.value)} on {name}")
            parts += [told] if (told := told_confidence(self.confidence.get(file))) else []
            lines.append((f"{file or 'folder'}: {', '.join(parts)}", failed > 0))
        return lines

    def passed(self, file: str) -> bool:
        """Whether every gate of one file, and those of the folder, passed."""
        return all(g.passed for g in self.gates if g.file in (file, "tokenizer.json", "config.json", ""))


def told_confidence(confidence: Confidence | None) -> str:
    """What temperature and threshold of a file are worth, in a few words; empty where neither is known."""
    if confidence is None or confidence.error is None or confidence.error_before is None:
        return ""
    before, after = f"{confidence.error_before * 100:.2f}", f"{confidence.error * 100:.2f}"
    scaled = "" if confidence.temperature == 1 else f"{before}, with temperature {confidence.temperature:g} "
    told = f"calibration error {scaled}{after} on {confidence.measured_on}"
    if confidence.unknown is None or confidence.answered is None:
        return told
    right = confidence.answered_accuracy
    shown = "" if right is None else f", {right * 100:.1f} % of them right"
    return f"{told}, unknown below {confidence.unknown:g}: answers {confidence.answered * 100:.1f} %{shown}"


def read_verification(path: Path) -> Verification:
    """Read ``verify.json``."""
    return Verification.model_validate(json.loads(path.read_text(encoding="utf-8")))
