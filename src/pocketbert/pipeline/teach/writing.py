"""Write the answers of teachers into a file: a portion of rows at a time, kept after a kill, and compared at the end.

`teach` reads the rows of a file, asks the teachers for each portion, and appends the finished rows to a hidden file
beside the output. If it was stopped, the same command goes on behind the last whole portion. At the end the rows become
the output file, which is replaced as a whole, and `TeachReport` says how far the teachers agree and, if the rows have
labels, how often and how surely they are right.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pocketbert.core.data.column_names import BadRows
from pocketbert.core.data.columns import guess_columns
from pocketbert.core.data.files import read_rows
from pocketbert.core.data.source import DataSource
from pocketbert.core.disk.destination import resolve_output_file
from pocketbert.core.disk.files import open_atomic, sha256_file, sha256_json
from pocketbert.core.disk.kept_rows import KeptRows, keep_rows
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.host.progress import Meter, print_note
from pocketbert.core.predict.scores import sum_confidence_gaps
from pocketbert.core.tasks import LabelKind
from pocketbert.pipeline.teach.answering import (
    AnswerForm,
    Array,
    AskedRow,
    Teacher,
    align_teachers,
    asked_row,
    best_of,
    make_cell,
    mean_answer,
)

if TYPE_CHECKING:
    from pocketbert.pipeline.teach.cluster import RayCluster

    _Cluster = RayCluster[Sequence[AskedRow], list[list[Array]]]

PORTION = 512
"""Rows that are answered, and kept, together."""
_Portion = list[tuple[int, dict[str, Any]]]
_LABEL = "label"
_READ_AS = {
    AnswerForm.SPAN: LabelKind.ANSWERS,
    AnswerForm.TAGS: LabelKind.NONE,
    AnswerForm.VECTOR: LabelKind.NONE,
}
"""Kind of labels by which the columns of texts are guessed: pairs count where a teacher reads pairs."""


@dataclass(frozen=True)
class TeachSettings:
    """The rows that are asked about, and how the answers are written.

    Attributes:
        source: The rows.
        output: The .jsonl file to write.
        column: Name of the column of the answers.
        weights: Weight of each teacher.
        top: Most labels of an answer to write; None for all.
        overwrite: Whether an existing output file is replaced.
        asked: What else decides the answers, such as descriptions of labels. An interrupted command is continued only
            if all of it is the same.
    """

    source: DataSource
    output: Path
    column: str
    weights: Sequence[float]
    top: int | None = None
    overwrite: bool = False
    asked: object = None


@dataclass
class TeachReport:
    """The result of writing answers to a file: how many rows, how far teachers agree, and how often they are right.

    Attributes:
        output: The written file.
        column: The column of the answers.
        rows: Number of rows that were answered.
        form: Form of the answers.
        names: Labels or tags of the teachers.
        agreement: Share of rows (of tags: of words) for which all teachers predict the same; None with one teacher, and
            for numbers and vectors.
        labelled: Number of rows with a label that is one of the teachers'.
        right: Share of these rows whose label is the most likely one; None without such rows.
        calibration: Expected calibration error on these rows.
        notes: Further remarks, such as the cost of a language model.
    """

    output: Path
    column: str
    rows: int
    form: AnswerForm
    names: tuple[str, ...]
    agreement: float | None = None
    labelled: int = 0
    right: float | None = None
    calibration: float | None = None
    notes: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Return the report as lines for users."""
        lines = [f"{self.rows:,} rows answered, with {self.form}, in column '{self.column}': {self.output}"]
        if self.agreement is not None:
            lines.append(f"the teachers agree on {self.agreement:.1%}")
        if self.right is not None:
            calibration = f", calibration error {self.calibration:.1%}" if self.calibration is not None else ""
            lines.append(f"{self.right:.1%} of {self.labelled:,} rows with a label are right{calibration}")
        return [*lines, *self.notes]


def teach(teachers: Sequence[Teacher], settings: TeachSettings, cluster: _Cluster | None = None) -> TeachReport:
    """Ask teachers about the rows of a file, and write the rows with the mean of the answers in a column.

    Args:
        teachers: The teachers, of one form and the same labels.
        settings: The rows and the output.
        cluster: Processes with the same teachers, which answer in place of this one.

    Raises:
        InputError: If the weights do not fit the teachers, the teachers cannot be averaged, a row has no text, there is no
            column that the teachers need, or the output cannot be written.
    """
    if settings.output.suffix != ".jsonl":
        raise InputError(Problem(str(settings.output), "is no .jsonl file.", "Call the output NAME.jsonl."))
    if len(settings.weights) != len(teachers) or min(settings.weights) <= 0:
        counts = f"{len(settings.weights)} weights for {len(teachers)} teachers."
        what = counts if min(settings.weights) > 0 else "a weight is not above 0."
        raise InputError(Problem("--weights", what, "Give one for each -m, in their order."))
    orders = align_teachers(teachers)
    sources = [Path(settings.source.path)] if settings.source.path else []
    output = resolve_output_file(settings.output, settings.overwrite, *sources)
    chosen = guess_columns(settings.source, _READ_AS.get(teachers[0].form, LabelKind.SCORE_OR_NONE)).source
    if teachers[0].form is AnswerForm.SPAN and chosen.text_pair is None:
        raise InputError(Problem(chosen.title, "has no column of contexts.", "Name it with --text-pair."))
    key = sha256_json([
        *((t.title, t.form, t.names) for t in teachers),
        [*settings.weights], settings.top, settings.column, settings.asked, chosen.model_dump(mode="json"),
        [sha256_file(path) for path in sources if path.is_file()],
    ])  # fmt: skip
    with keep_rows(output, key, PORTION) as kept:
        if kept.note:
            print_note(kept.note)
        with cluster or nullcontext():
            _answer_rows(teachers, orders, settings, chosen, kept, cluster)
        return _finish(kept, output, teachers, settings, chosen)


# --- answering ---


def _answer_rows(
    teachers: Sequence[Teacher],
    orders: Sequence[list[int] | None],
    settings: TeachSettings,
    source: DataSource,
    kept: KeptRows,
    cluster: _Cluster | None,
) -> None:
    """Ask the teachers about the rows that are not kept yet, and keep their answers, a portion of rows at a time.

    Args:
        teachers: The teachers.
        orders: For each teacher how its labels are reordered, see `align_teachers`.
        settings: How the answers are written.
        source: The rows, with the columns of their texts.
        kept: The file of kept answers, which knows how many rows it holds already.
        cluster: The processes that answer; None for this one.

    Raises:
        InputError: Naming the rows without a text.
    """
    bad = BadRows(source.title)
    total = sum(1 for _ in read_rows(source, BadRows(source.title)))
    weights = np.asarray(settings.weights, np.float64) / sum(settings.weights)
    rows = islice(read_rows(source, bad), kept.done, None)
    with Meter("answers", total, kept.done) as meter:
        checked = ((portion, _check_rows(portion, source, bad)) for portion in _portions(rows, PORTION))
        sound = (item for item in checked if not bad.count)  # all problems are listed before the command ends
        answered = _ask(teachers, sound) if cluster is None else cluster.map(sound)
        for portion, asked, each in answered:
            answers = [_in_order(own, order) for own, order in zip(each, orders, strict=True)]
            lines = []
            for i, (_, row) in enumerate(portion):
                own = [of_teacher[i] for of_teacher in answers]
                mean = mean_answer(teachers[0].form, own, [*weights])
                line = _line(teachers[0], settings, row, asked[i], mean, own)
                lines.append(json.dumps(line, ensure_ascii=False, default=str).encode())
            kept.add(lines)
            meter.advance(len(portion))
    if bad.count:
        raise InputError(bad.close())


def _ask(
    teachers: Sequence[Teacher], portions: Iterable[tuple[_Portion, list[AskedRow]]]
) -> Iterator[tuple[_Portion, list[AskedRow], list[list[Array]]]]:
    """Yield portions of rows with the answers of each teacher, which are asked in this process."""
    for portion, asked in portions:
        yield portion, asked, [teacher.answer(asked) for teacher in teachers]


def _line(
    teacher: Teacher, settings: TeachSettings, row: dict[str, Any], asked: AskedRow, mean: Array, own: Sequence[Array]
) -> list[Any]:
    """Return one answered row as it is stored in the file of kept answers.

    An interrupted command goes on from that file.

    Args:
        teacher: One of the teachers. It gives the form of the answers and the names of the labels.
        settings: Gives the name of the answer column, and how many labels an answer lists.
        row: The row of the data file.
        asked: The same row as the teachers were asked about it.
        mean: Mean of the answers of all teachers.
        own: The answer of each teacher.

    Returns:
        [row with the mean in the answer column, prediction of each teacher (see `best_of`), name of the most
        likely label, its probability]. The predictions are empty if there is one teacher. The label and its
        probability are None if an answer is not one label.
    """
    cell = make_cell(teacher.form, mean, teacher.names, asked, settings.top)
    best = best_of(teacher.form, mean)
    sure = float(mean.max()) if teacher.form is AnswerForm.LABEL else None
    named = teacher.names[int(best[0])] if teacher.form is AnswerForm.LABEL else None
    each = [best_of(teacher.form, answer) for answer in own] if len(own) > 1 else []
    return [{**row, settings.column: cell}, each, named, sure]


def _portions(rows: Iterable[tuple[int, dict[str, Any]]], size: int) -> Iterator[list[tuple[int, dict[str, Any]]]]:
    """Yield rows in lists of `size`."""
    stream = iter(rows)
    while portion := [*islice(stream, size)]:
        yield portion


def _check_rows(portion: Sequence[tuple[int, dict[str, Any]]], source: DataSource, bad: BadRows) -> list[AskedRow]:
    """Return the texts of rows. Rows without a text are added to `bad` and left out."""
    asked = []
    for number, row in portion:
        try:
            pair = row.get(source.text_pair) if source.text_pair else None
            if source.text not in row:
                bad.missing(number, source.text, row)
                continue
            asked.append(asked_row(row[source.text], pair))
        except ValueError as error:
            bad.add(number, f"{error}.")
    return asked


def _in_order(answers: list[Array], order: list[int] | None) -> list[Array]:
    """Return answers with their labels in the order of the first teacher, for which `order` is None."""
    return answers if order is None else [np.ascontiguousarray(answer[..., order]) for answer in answers]


# --- the report ---


@dataclass
class _Counts:
    """Counts and sums over rows, from which agreement, share of right answers and calibration are computed.

    Attributes:
        by_word: Whether the teachers are compared word by word, as their tags are, and not row by row.
        compared: Number of predictions of several teachers that were compared, one for each word or row.
        equal: How many of these all teachers predict the same for.
        labelled: Number of rows with a label that is one of the teachers'.
        right: How many of these have the most likely label as their own.
        gaps: Sums of the differences between confidence and accuracy, see `sum_confidence_gaps`.
    """

    by_word: bool = False
    compared: int = 0
    equal: int = 0
    labelled: int = 0
    right: int = 0
    gaps: Any = 0.0

    def add(
        self, row: dict[str, Any], each: list[list[float]], named: str | None, sure: float | None, names: set[str]
    ) -> None:
        """Count a row in the sums.

        Args:
            row: The row, with its own label.
            each: Prediction of each teacher, see `best_of`; empty if they are not compared.
            named: The most likely label; None for answers that are not one label.
            sure: Probability of that label.
            names: Labels of the teachers.
        """
        if len(each) > 1:
            if self.by_word:
                self.compared += len(each[0])
                self.equal += sum(len({*values}) == 1 for values in zip(*each, strict=True))
            else:
                self.compared += 1
                self.equal += all(own == each[0] for own in each)
        label = row.get(_LABEL)
        if named is None or sure is None or str(label) not in names:
            return
        is_right = str(label) == named
        self.labelled, self.right = self.labelled + 1, self.right + is_right
        self.gaps = self.gaps + sum_confidence_gaps(np.array([sure]), np.array([is_right]))


def _finish(
    kept: KeptRows, output: Path, teachers: Sequence[Teacher], settings: TeachSettings, source: DataSource
) -> TeachReport:
    """Write the rows of the file of kept answers to the output file, and return the report on them."""
    first, counts, rows = teachers[0], _Counts(teachers[0].form is AnswerForm.TAGS), 0
    label = source.label if "label" in settings.source.model_fields_set else _LABEL
    compares = len(teachers) > 1 and first.form not in (AnswerForm.VECTOR, AnswerForm.SCORE)
    with open_atomic(output) as file:
        for line in kept.read():
            row, each, named, sure = json.loads(line)
            counts.add({_LABEL: row.get(label)}, each if compares else [], named, sure, {*first.names})
            file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
            rows += 1
    return TeachReport(
        output=output,
        column=settings.column,
        rows=rows,
        form=first.form,
        names=first.names,
        agreement=counts.equal / counts.compared if counts.compared else None,
        labelled=counts.labelled,
        right=counts.right / counts.labelled if counts.labelled else None,
        calibration=float(np.abs(counts.gaps).sum()) / counts.labelled if counts.labelled else None,
        notes=[note for teacher in teachers for note in getattr(teacher, "notes", ())],
    )
