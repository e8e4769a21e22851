"""The result of one gate, and the file that gates check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict

from pocketbert.core.compare.golden import GoldenRow
from pocketbert.core.families.ranges import ProductRanges
from pocketbert.core.families.roles import WeightRole
from pocketbert.core.formats import FORMATS
from pocketbert.core.host.versions import version_of
from pocketbert.core.predict.predictor import PROBABILITIES, Predictor
from pocketbert.core.predict.readout import Matrix, answer_of, run_rows
from pocketbert.core.predict.score import probabilities
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import Task
from pocketbert.core.types import Client, Format, Runtime, Scheme


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
