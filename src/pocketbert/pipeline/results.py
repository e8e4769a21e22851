"""Results of verification: `Gate` is the result of one check, `Subject` the model file that is checked, `Verification` all results."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from pocketbert.core.artefacts import PassedEngine
from pocketbert.core.compare.golden import GoldenRow
from pocketbert.core.families.weight_records import ProductRanges, WeightRole
from pocketbert.core.formats import FORMATS
from pocketbert.core.host.system import release_memory, version_of
from pocketbert.core.host.terminal import html_table
from pocketbert.core.metrics import METRICS, describe_details
from pocketbert.core.predict.predictor import (
    PROBABILITIES,
    Matrix,
    Predictor,
    answer_outputs,
    run_rows,
    smallest_fitting_length,
)
from pocketbert.core.predict.scores import Confidence, Score, apply_score_function
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import Task
from pocketbert.core.types import Client, Format, Runtime, Scheme, Status
from pocketbert.runtime.engines import FileOnDemand


class Gate(BaseModel):
    """The result of one check of one file.

    Attributes:
        name: Name of the check.
        file: Path in the artefact folder; empty for a check of the whole folder.
        passed: Whether the file passed; True for a skipped check.
        value: The measured number, if there is one.
        bound: The largest value that passes.
        detail: One sentence for the user.
        skipped: Whether the check could not be made on this machine. Skipped checks are not counted.
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
        """The line that is printed if the gate failed."""
        return f"{self.file or 'folder'}: gate '{self.name}' failed: {self.detail}"


@dataclass(frozen=True)
class Subject:
    """An opened model file that is verified, with its tokenizer, labels, task and simulated error.

    Attributes:
        name: Path in the artefact folder.
        path: Path of the file.
        format: Format of the file.
        scheme: The scheme that the file's path or record names.
        client: The client that the file is made for, if it is for one only.
        runtime: The runtime that the file is made for, if it is for one only.
        predictor: The opened file, which computes outputs.
        tokenizer: The folder's tokenizer. It cuts texts at the longest input of the file.
        labels: Label names in order of their ids.
        task: Task of the model.
        folder: Folder of the tokenizer files.
        simulated: Error of the file's scheme as simulated in torch; None if none was recorded.
        ranges: For a static file, the ranges that torch measured for products, by the paths of their weights; empty if
            none were recorded.
        weights: The planned scheme of each weight, if some were left as exported.
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
    _known: dict[object, Matrix] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def output(self) -> str:
        """Name of the output from which the answer is read; for question answering the first of its outputs."""
        return answer_outputs(self.task, self.predictor)[0]

    @property
    def exported(self) -> bool:
        """Whether an exporter wrote the file, not a quantizer."""
        return self.scheme in (Scheme.FP32, FORMATS[self.format].base)

    def answers(self, rows: Sequence[GoldenRow]) -> list[Matrix]:
        """Run the file on golden rows, one at a time, and return the part of each output that a golden row records.

        Each row is run once, however many gates call this method. Rows whose outputs `take_recorded` took are not run.
        """
        keys = [_key_of(row) for row in rows]
        new = [i for i, key in enumerate(keys) if key not in self._known]
        encoded = self.tokenizer.encode([rows[i].input for i in new])
        matrices = run_rows(
            self.predictor, self.tokenizer, encoded, self.task, reduce=lambda i, matrix: rows[new[i]].pick(matrix)
        )
        self._known.update(zip((keys[i] for i in new), matrices, strict=True))
        return [self._known[key] for key in keys]

    def close(self) -> None:
        """Free the memory of the engine that runs the file, if the file can be opened again when it is needed."""
        if isinstance(self.predictor, FileOnDemand):
            self.predictor.close()
            release_memory(self.path)  # engines are often in reference cycles

    def take_recorded(self, golden: Sequence[GoldenRow]) -> None:
        """Take the outputs recorded in golden rows as the file's answers, except for a few rows of each length.

        Only those few rows are run then. Call it only for files that have not changed since this machine recorded the
        rows.
        """
        rows = [row for row in golden if self.name in row.outputs]
        tokens = {i: len(row) for i, row in enumerate(self.tokenizer.encode([row.input for row in rows]))}
        taken = tokens.keys() - set(choose_spread_rows(tokens, self.predictor.lengths))
        self._known.update((_key_of(rows[i]), rows[i].shaped(rows[i].outputs[self.name])) for i in taken)

    def recorded(self, row: GoldenRow, values: list[float]) -> Matrix:
        """Return recorded torch logits of a row as a matrix, turned into probabilities if this file outputs those."""
        matrix = row.shaped(values)
        if self.output == PROBABILITIES:
            return apply_score_function(matrix, self.task.score).astype(np.float32)
        return matrix

    def reference(self, rows: Sequence[GoldenRow]) -> list[Matrix]:
        """Return the torch model's recorded outputs on golden rows.

        If the file must pad a row to one of its lengths, the output on the padded row is returned, if it is recorded.
        """
        lengths = [len(e) for e in self.tokenizer.encode([r.input for r in rows])]
        pads = [n not in self.predictor.lengths if self.predictor.lengths else False for n in lengths]
        return [self.recorded(r, r.padded if p and r.padded else r.reference) for r, p in zip(rows, pads, strict=True)]

    def rows(self, golden: Sequence[GoldenRow]) -> list[GoldenRow]:
        """Return the golden rows in which outputs of this file are recorded; all golden rows if none has any.

        Rows that are too long for the file have none.
        """
        return [r for r in golden if self.name in r.outputs] or list(golden)


def _key_of(row: GoldenRow) -> object:
    """Return the key under which a golden row's answers are kept: its text, and the tokens and columns recorded."""
    return row.input, tuple(row.places), tuple(row.columns)


_SPREAD_ROWS = 3
_SPREAD_TOKENS = 384


def choose_spread_rows(
    tokens: Mapping[int, int], lengths: Sequence[int], order: Mapping[int, int] | None = None
) -> list[int]:
    """Choose a few rows of evenly spread lengths, for checks of faults that show in every row.

    A changed graph, or one that ignores its mask, computes every row wrongly. One row is therefore enough for a graph of a
    large length, whose rows take as long as many short ones.

    Args:
        tokens: Number of tokens by number of the row.
        lengths: The lengths that the file takes, with a graph each; empty if it takes any.
        order: Numbers by which the rows of one graph are sorted before they are chosen at even distances, the row with
            the largest number first; None for the numbers of tokens.

    Returns:
        The numbers of the chosen rows: up to 3 for each length, 2 above 128 tokens and 1 above 192. If the file takes
        any length, up to 12 in all.
    """
    groups, places = defaultdict[int, list[int]](list), tokens if order is None else order
    for row in sorted(tokens, key=lambda row: places[row]):
        groups[smallest_fitting_length(lengths, tokens[row]) if lengths else 0].append(row)
    chosen = set[int]()
    for length, rows in groups.items():
        most = min(max(_SPREAD_TOKENS // length, 1), _SPREAD_ROWS) if lengths else 4 * _SPREAD_ROWS
        chosen |= {rows[round(place)] for place in np.linspace(len(rows) - 1, 0, min(len(rows), most))}
    return sorted(chosen)


_ROWS_OF_ONE_GRAPH = 12


def choose_recorded_rows(
    rows: Sequence[GoldenRow], tokens: Sequence[int], lengths: Sequence[int], format: Format
) -> list[int]:
    """Choose the golden rows on which a file is run: all that are not too long for it, or fewer.

    Fewer are chosen for a file of one length, such as MediaPipe's, and for formats whose own engine does not run on every
    system (Core ML), since their evaluator is slow. A graph computes all rows of its length alike, so few rows show a
    fault in it. The chosen rows cover what differs between rows: 12 rows of each graph, from the shortest to the longest,
    have all amounts of padding; drawn rows (of random words) have all positions and words; and each label has the first
    row with it.

    Args:
        rows: Golden rows.
        tokens: Number of tokens of each row.
        lengths: The lengths that the file takes; empty if it takes any.
        format: Format of the file.

    Returns:
        The indices of the chosen rows, ascending.
    """
    fitting = [i for i, count in enumerate(tokens) if not lengths or count <= max(lengths)]
    if len(lengths) != 1 and FORMATS[format].own_engine is None:
        return fitting
    graphs = defaultdict[int, list[int]](list)
    for i in sorted((i for i in fitting if not rows[i].drawn), key=lambda i: tokens[i]):
        graphs[smallest_fitting_length(lengths, tokens[i]) if lengths else 0].append(i)
    chosen = {i for i in fitting if rows[i].drawn}
    for own in graphs.values():
        chosen |= {own[round(place)] for place in np.linspace(0, len(own) - 1, min(len(own), _ROWS_OF_ONE_GRAPH))}
    return sorted(chosen | {*{rows[i].label: i for i in reversed(fitting)}.values()})


def skipped_gate_without_reader(subject: Subject, gate: str) -> Gate | None:
    """Return a skipped gate named `gate` if the package that reads files of this format is missing; None otherwise."""
    reader = FORMATS[subject.format].reader
    if version_of(reader) is not None:
        return None
    # an installation without the exporters cannot read the graph: a skipped gate is listed, a passed one would hide that
    return Gate(
        name=gate, file=subject.name, passed=True, skipped=True, detail=f"not checked: {reader} is not installed here."
    )


class Verification(BaseModel):
    """The results of verifying the model files of a folder: gates (checks), scores and confidences.

    Attributes:
        status: Passed if no gate failed; skipped gates are not counted.
        gates: Results of all checks.
        scores: Score by file, then by set of rows.
        teacher: Score of the teacher in torch, if there is one.
        reference: Score of the exported torch model.
        files: sha256 of every file that was verified or decided the verdict, by path in the artefact folder.
        seen_right: Engines that computed a file correctly, by path.
        confidence: Temperature and calibration error of each file, by path (text-classification).
        notes: Remarks that fail no gate, such as an edited card.
        protocol: How scores were measured.
    """

    status: Status
    gates: list[Gate]
    scores: dict[str, dict[str, Score]] = {}
    teacher: Score | None = None
    reference: Score | None = None
    files: dict[str, str] = {}
    seen_right: dict[str, PassedEngine] = {}
    confidence: dict[str, Confidence] = {}
    notes: list[str] = []
    protocol: str = (
        "scores are measured on one unpadded row at a time (batch 1), since dynamic int8 depends on batch and padding"
    )

    @property
    def failures(self) -> list[str]:
        """A line for each failed gate."""
        return [g.failure for g in self.gates if not g.passed]

    def __repr__(self) -> str:
        failed = len(self.failures)
        return (
            f"<Verification {self.status}: {len(self.gates)} gates, {failed} failed, {len(self.scores)} files scored>"
        )

    def _repr_html_(self) -> str:
        """Return a table for notebooks: a row per file with its number of gates and the failures."""
        rows = []
        for name in dict.fromkeys(g.file for g in self.gates):
            own = [g for g in self.gates if g.file == name]
            failed = [g.detail for g in own if not g.passed]
            rows.append((name or "folder", len(own), "; ".join(failed) or "passed"))
        return html_table(("file", "gates", "verdict"), rows, repr(self))

    def to_dict(self) -> dict[str, Any]:
        """Return a dictionary of all fields as JSON values."""
        return self.model_dump(mode="json")

    def summary(self) -> list[tuple[str, bool]]:
        """Return for each checked file a line on its checks, scores and calibration error, and whether a check failed.

        Checks of the whole folder have a line too.
        """
        lines = []
        for file in dict.fromkeys(g.file for g in self.gates):
            counted = [g for g in self.gates if g.file == file and not g.skipped]
            failed = sum(not g.passed for g in counted)
            passed = len(counted) - failed
            parts = [f"{passed} check{'s' * (passed != 1)} passed"] if counted else ["not checked"]
            parts += [f"{failed} failed"] if failed else []
            for name, score in self.scores.get(file, {}).items():
                more = f" ({found})" if (found := describe_details(score.others)) else ""
                parts.append(f"{score.metric} {METRICS[score.metric].format(score.value)}{more} on {name}")
            if confidence := _summarize_confidence(self.confidence.get(file)):
                parts.append(confidence)
            lines.append((f"{file or 'folder'}: {', '.join(parts)}", failed > 0))
        return lines

    def passed(self, file: str) -> bool:
        """Return whether every gate of one file passed, and every gate of the folder, its tokenizer and config.json."""
        return all(g.passed for g in self.gates if g.file in (file, "tokenizer.json", "config.json", ""))


def _summarize_confidence(confidence: Confidence | None) -> str:
    """Return a text on the calibration error and the "unknown" threshold of a file.

    The text is empty if no calibration error was measured, and leaves out a threshold that was not set.
    """
    if confidence is None or confidence.error is None or confidence.error_before is None:
        return ""
    before, after = f"{confidence.error_before * 100:.2f}", f"{confidence.error * 100:.2f}"
    scaled = "" if confidence.temperature == 1 else f"{before}, with temperature {confidence.temperature:g} "
    summary = f"calibration error {scaled}{after} on {confidence.measured_on}"
    if confidence.unknown is None or confidence.answered is None:
        return summary
    right = confidence.answered_accuracy
    shown = "" if right is None else f", {right * 100:.1f} % of them right"
    return f"{summary}, unknown below {confidence.unknown:g}: answers {confidence.answered * 100:.1f} %{shown}"


def read_verification(path: Path) -> Verification:
    """Read the verification that a run wrote to a ``verify.json`` file."""
    return Verification.model_validate(json.loads(path.read_text(encoding="utf-8")))
