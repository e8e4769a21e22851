"""The result of a verification: gates, scores, and what they were measured on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from pocketbert.core.artefacts import SeenRight
from pocketbert.core.host.notebook import html_table
from pocketbert.core.metrics import METRICS
from pocketbert.core.predict.confidence import Confidence
from pocketbert.core.predict.score import Score
from pocketbert.core.types import Status
from pocketbert.pipeline.formats.gate import Gate


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
