"""Diagnosis of a student: where it loses against its teacher, and what to do about it.

`diagnose_answers` compares the answers of both models on rows that neither was trained on, group by group (by label, length, rare
words, the teacher's confidence), and on training rows; `StudentDiagnosis` holds the figures and the advice that follows from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite, nan, sqrt
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, BeforeValidator, ConfigDict

from pocketbert.core.heads import Head, Prepared
from pocketbert.core.heads.head import IGNORED_LABEL
from pocketbert.core.metrics import METRICS, pearson
from pocketbert.core.predict.predictor import Matrix
from pocketbert.core.predict.spans import OUTSIDE, label_of_tag
from pocketbert.core.tasks import LabelKind

LABEL, LENGTH, RARE, CONFIDENCE, SEEN = "label", "length", "rare words", "teacher confidence", "training rows"
"""Ways of grouping rows."""
_WORST_LABELS = 10
_LEAST_ROWS = 20
"""Rows of a group that a finding may rest on."""
_SURE_ROWS = 100
"""Fewest unseen rows on which a student's score is taken to show that it keeps its teacher's."""
_LEAST_GAP = 0.02
_RARE = (
    (0, 0, "a piece never seen"),
    (1, 4, "a piece seen 1 to 4 times"),
    (5, 19, "5 to 19 times"),
    (20, 1 << 60, "all 20 times or more"),
)
"""Counts in the training rows of a row's rarest piece, and the name of the group."""
_AUGMENT = "'data.augment={copies: 5}' distill.0.augmented=true"
_LEARNT, _KEPT, _OVERFITTED, _SURE = 0.95, 0.97, 0.1, 0.03


_Figure = Annotated[float, BeforeValidator(lambda value: nan if value is None else value)]
"""A number; NaN and infinity, which JSON files hold as null, are read as NaN."""


class DiagnosedGroup(BaseModel):
    """Scores of both models on a group of rows.

    Attributes:
        by: What the rows are grouped by: ``label``, ``length``, ``rare words``, ``teacher confidence``; ``all`` for all unseen
            rows, ``training rows`` for those.
        name: Name of the group.
        rows: Number of rows in the group.
        teacher: The teacher's score on the group.
        student: The student's score on the group.
        agreement: How far the student gives the teacher's answers, 1 for always: the share of equal answers or labels, the
            correlation of predicted numbers, or the mean cosine of vectors; NaN if there is nothing to compare, such as no tag.
    """

    model_config = ConfigDict(ser_json_inf_nan="null")

    by: str
    name: str
    rows: int
    teacher: _Figure
    student: _Figure
    agreement: _Figure


class Advice(BaseModel):
    """What to change to get a better student, with the measured numbers that show it.

    Attributes:
        what: What to do, in a sentence.
        figure: The measured numbers that the advice rests on.
        key: The recipe keys or the command that put the advice into practice.
    """

    what: str
    figure: str
    key: str


class StudentDiagnosis(BaseModel):
    """Where a student loses against its teacher.

    Attributes:
        metric: Metric of all scores.
        overall: Scores on all rows that neither model was trained on.
        groups: Scores of groups of these rows, and of training rows.
        advice: What to do about it, the most promising first.
    """

    metric: str
    overall: DiagnosedGroup
    groups: list[DiagnosedGroup]
    advice: list[Advice] = []

    @property
    def kept(self) -> float:
        """Share of the teacher's score that the student keeps."""
        return METRICS[self.metric].kept(self.overall.teacher, self.overall.student)

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return header and rows of the table for people: a row for all unseen rows, then one for each group."""
        metric = METRICS[self.metric]
        header = ["rows by", "group", "rows", f"teacher {metric.name}", "student", "kept", "agreement"]
        return header, [
            [
                g.by,
                g.name,
                f"{g.rows:,}",
                metric.format(g.teacher),
                metric.format(g.student),
                f"{kept:.1%}" if isfinite(kept := metric.kept(g.teacher, g.student)) else "-",
                f"{g.agreement:.3f}" if isfinite(g.agreement) else "-",
            ]
            for g in (self.overall, *self.groups)
        ]


@dataclass(frozen=True)
class ComparedAnswers:
    """Rows with the answers of teacher and student to them.

    Attributes:
        rows: The rows as the teacher reads them.
        student_rows: The same as the student reads them.
        teacher: For each tokenized row, the part of the teacher's outputs that the head's score needs.
        student: The same part of the student's outputs, for each of the student's rows.
        confidence: Probability of the teacher's answer to each example; of several answers, such as the tags of a text,
            the smallest probability. Empty for numbers.
    """

    rows: Prepared
    student_rows: Prepared
    teacher: Sequence[Matrix]
    student: Sequence[Matrix]
    confidence: NDArray[np.floating] = field(default_factory=lambda: np.empty(0))


def diagnose_answers(
    head: Head,
    labels: Sequence[str],
    unseen: ComparedAnswers,
    seen: ComparedAnswers | None,
    pieces: NDArray[np.int64],
    facts: Mapping[str, str],
) -> StudentDiagnosis:
    """Compare a teacher and its student on unseen rows, in groups, and on training rows; return the scores and advice.

    Of the labels, the ten that lose most are listed. A way of grouping that gives one group only is left out.

    Args:
        head: The task's head, which computes the scores.
        labels: Label names in the order of the outputs.
        unseen: Answers to rows that neither model was trained on; these rows are scored together and in groups.
        seen: Answers to training rows, to find overfitting; None if there are none.
        pieces: How often each token of the vocabulary occurs in the training rows, to group rows by their rarest token.
        facts: Recipe keys of the last stage (``stage``) and what its curve shows (``rising``), as text.
    """
    everything = range(len(unseen.rows.examples))
    overall = _score_group(head, labels, unseen, everything, "all", "unseen rows")
    groups = []
    for by, members in (
        (LABEL, _group_by_label(head, labels, unseen)),
        (LENGTH, _group_by_length(unseen)),
        (RARE, _group_by_rarest_piece(unseen, pieces)),
        (CONFIDENCE, _group_by_confidence(unseen)),
    ):
        scored = [_score_group(head, labels, unseen, rows, by, name) for name, rows in members.items() if rows]
        if by == LABEL:
            scored = sorted(scored, key=lambda g: -g.rows * (g.teacher - g.student))[:_WORST_LABELS]
        groups += scored if len(scored) > 1 else []
    if seen is not None:
        every = range(len(seen.rows.examples))
        groups.append(_score_group(head, labels, seen, every, SEEN, f"{len(every):,} of them"))
    diagnosis = StudentDiagnosis(metric=_metric_of(head, unseen), overall=overall, groups=groups)
    return diagnosis.model_copy(update={"advice": _derive_advice(diagnosis, facts)})


# --- groups ---


def _metric_of(head: Head, answers: ComparedAnswers) -> str:
    """Return the name of the metric by which the head scores the answers."""
    return head.score(answers.teacher, answers.rows).metric


def _score_group(
    head: Head, labels: Sequence[str], answers: ComparedAnswers, examples: Sequence[int], by: str, name: str
) -> DiagnosedGroup:
    """Score both models on the examples with the given indices, and measure how often they agree."""
    pairs = ((answers.rows, answers.teacher), (answers.student_rows, answers.student))
    compared, scores, has_tags = [], [], head.task.labels is LabelKind.SPANS
    for rows, matrices in pairs:
        members = rows.rows_of()
        flat = [matrices[r] for i in examples for r in members[i]]
        with np.errstate(invalid="ignore", divide="ignore"):
            scores.append(head.score(flat, rows.only(examples)).value)
        compared.append(
            [[_take_words(matrices[r], rows, r) if has_tags else matrices[r] for r in members[i]] for i in examples]
        )
    agreement = _agreement(head, labels, compared[0], compared[1])
    return DiagnosedGroup(
        by=by, name=name, rows=len(examples), teacher=scores[0], student=scores[1], agreement=agreement
    )


def _take_words(answers: Matrix, rows: Prepared, row: int) -> Matrix:
    """Return the answers to the first token of each word of a row: as many for both models, however each splits words."""
    is_first: NDArray[np.bool_] = np.asarray(rows.targets["labels"][row]) != IGNORED_LABEL
    return answers[is_first]


def _agreement(
    head: Head,
    labels: Sequence[str],
    teacher: Sequence[Sequence[Matrix]],
    student: Sequence[Sequence[Matrix]],
) -> float:
    """Return how far the student gives the teacher's answers: 1 if always, NaN if there is nothing to compare.

    For single labels, choices and answers to questions this is the share of equal answers. For multi-label tasks it is
    the share of common labels among the labels that at least one of the two models gives. For labels of words it is the
    share of equal labels among the words that at least one model labels other than ``O``. Numbers are compared by their
    correlation (from three on), vectors by their mean cosine.

    Args:
        head: The task's head.
        labels: Label names in the order of the outputs.
        teacher: The teacher's output matrices, a list for each example; for labels of words those of the words alone.
        student: The student's output matrices, likewise.
    """
    kind = head.task.labels
    if kind is LabelKind.SCORE:
        numbers = [np.array([m[0, 0] for own in model for m in own]) for model in (teacher, student)]
        return pearson(*numbers) if len(teacher) > 2 else float("nan")
    equal = total = 0.0
    for ours, theirs in zip(student, teacher, strict=True):
        if kind in (LabelKind.NAME, LabelKind.CHOICE):
            same = np.concatenate(ours, -1).argmax() == np.concatenate(theirs, -1).argmax()
            equal, total = equal + bool(same), total + 1
        elif kind is LabelKind.NAMES:
            given, wanted = ours[0] > 0, theirs[0] > 0
            equal, total = equal + int((given & wanted).sum()), total + int((given | wanted).sum())
        elif kind is LabelKind.SPANS:
            # a model that splits words into more pieces cuts a long text earlier
            both = min(len(ours[0]), len(theirs[0]))
            tags = np.stack([ours[0][:both, 0], theirs[0][:both, 0]])
            outside = labels.index(OUTSIDE) if OUTSIDE in labels else -1
            marked = (tags != outside).any(0)
            equal, total = equal + int((tags[0] == tags[1])[marked].sum()), total + int(marked.sum())
        elif kind is LabelKind.ANSWERS:
            best = [max(model, key=lambda m: float(m[0, 0]))[0, 1:3] for model in (ours, theirs)]
            equal, total = equal + bool((best[0] == best[1]).all()), total + 1
        else:
            for a, b in zip(ours, theirs, strict=True):
                norms = np.linalg.norm(a) * np.linalg.norm(b)
                equal, total = equal + float((a * b).sum() / max(norms, 1e-12)), total + 1
    return equal / total if total else float("nan")


def _group_by_label(head: Head, labels: Sequence[str], answers: ComparedAnswers) -> dict[str, list[int]]:
    """Return the indices of the examples of each gold label that at least 5 examples have; empty for tasks without named labels."""
    kind, groups = head.task.labels, dict[str, list[int]]()
    for i, truth in enumerate(answers.rows.truth):
        if kind is LabelKind.NAME:
            names = {labels[int(truth)]}
        elif kind is LabelKind.NAMES:
            names = {labels[int(n)] for n in np.flatnonzero(truth)}
        elif kind is LabelKind.SPANS:
            names = {label_of_tag(span.label) or span.label for span in truth}
        else:
            return {}
        for name in names:
            groups.setdefault(name, []).append(i)
    return {name: rows for name, rows in groups.items() if len(rows) >= 5}


def _group_by_length(answers: ComparedAnswers) -> dict[str, list[int]]:
    """Return the indices of the examples in each quarter of the lengths, by its range (``3 to 9 tokens``); equal quarters are one."""
    lengths = np.array([sum(len(answers.rows.encoded[r]) for r in own) for own in answers.rows.rows_of()])
    bounds = np.unique(np.quantile(lengths, [0.25, 0.5, 0.75], method="nearest"))
    places, groups = np.searchsorted(bounds, lengths), dict[str, list[int]]()
    for place in range(len(bounds) + 1):
        rows = np.flatnonzero(places == place).tolist()
        if rows:
            groups[f"{lengths[rows].min()} to {lengths[rows].max()} tokens"] = rows
    return groups


def _group_by_rarest_piece(answers: ComparedAnswers, pieces: NDArray[np.int64]) -> dict[str, list[int]]:
    """Return the indices of the examples, grouped by how often their rarest token occurs in the training rows."""
    rarest = np.array(
        [min(int(pieces[answers.rows.encoded[r].ids].min()) for r in own) for own in answers.rows.rows_of()]
    )
    return {name: np.flatnonzero((rarest >= low) & (rarest <= high)).tolist() for low, high, name in _RARE}


def _group_by_confidence(answers: ComparedAnswers) -> dict[str, list[int]]:
    """Return the indices of the examples in each third of the teacher's confidence, by the third's name; empty without confidences."""
    if not len(answers.confidence):
        return {}
    low, high = np.quantile(answers.confidence, [1 / 3, 2 / 3])
    places = np.searchsorted([low, high], answers.confidence)
    names = (f"least sure third (to {low:.2f})", "middle third", f"surest third (from {high:.2f})")
    return {name: np.flatnonzero(places == i).tolist() for i, name in enumerate(names)}


# --- advice ---


def _derive_advice(diagnosis: StudentDiagnosis, facts: Mapping[str, str]) -> list[Advice]:
    """Return the advice that the scores and agreements of a diagnosis justify, the most promising first."""
    metric, overall, stage = METRICS[diagnosis.metric], diagnosis.overall, facts.get("stage", "distill.0")
    advice = list[Advice]()
    seen = next((g for g in diagnosis.groups if g.by == SEEN), None)
    if overall.rows < _SURE_ROWS:
        what = "Score it on more rows: so few say little about either model."
        figure = f"{overall.rows:,} unseen rows; one row is {100 / max(overall.rows, 1):.1f} %"
        advice.append(Advice(what=what, figure=figure, key="data.eval"))
    elif diagnosis.kept >= _KEPT:
        what = "The student keeps its teacher's score: a smaller one may do too."
        figure = f"{diagnosis.kept:.1%} of the teacher's {metric.name} kept on {overall.rows:,} unseen rows"
        advice.append(Advice(what=what, figure=figure, key="student.layers, or quantize.scheme=small"))
    if seen is not None and _is_below(overall.agreement, seen.agreement, overall.rows):
        figure = (
            f"agreement with the teacher {seen.agreement:.3f} on training rows, {overall.agreement:.3f} on unseen ones"
        )
        what = "Let the teacher label more text: the student has learnt its training rows and not yet the teacher."
        key = f"'data.transfer={{sources: [{{path: texts.txt}}]}}', or run --unlabelled texts.txt; without more text {_AUGMENT}"
        advice.append(Advice(what=what, figure=figure, key=key))
    if seen is not None and seen.agreement < _LEARNT:
        what = "Train the student longer, at a higher rate, or with more layers: it does not follow its teacher on its training rows either."
        figure = f"agreement with the teacher {seen.agreement:.3f} on {seen.rows:,} training rows"
        advice.append(Advice(what=what, figure=figure, key=f"{stage}.epochs, {stage}.lr, student.layers"))
    if facts.get("rising"):
        what = "Train longer: the last score on validation rows was the best one, and well above those before."
        advice.append(Advice(what=what, figure=facts["rising"], key=f"{stage}.epochs or {stage}.steps"))
    if seen is not None and metric.drop(seen.teacher, overall.teacher) > _OVERFITTED:
        what = "Help the teacher first: it knows its training rows by heart. More labelled rows, a smaller rate, dropout, or an early stop."
        figure = f"the teacher's {metric.name} is {metric.format(seen.teacher)} on training rows and {metric.format(overall.teacher)} on unseen ones"
        key = "data.validation and training.patience, teacher.finetune.lr, teacher.finetune.dropout"
        advice.append(Advice(what=what, figure=figure, key=key))
    return [*advice, *_derive_group_advice(diagnosis)]


def _derive_group_advice(diagnosis: StudentDiagnosis) -> list[Advice]:
    """Return advice on groups of unseen rows in which the student loses clearly more than over all: one for each way of grouping.

    Groups of fewer than `_LEAST_ROWS` rows are left out.
    """
    metric, overall, advice = METRICS[diagnosis.metric], diagnosis.overall, list[Advice]()
    usual = metric.drop(overall.teacher, overall.student)
    losing = [
        g
        for g in diagnosis.groups
        if g.by != SEEN
        and g.rows >= _LEAST_ROWS
        and metric.drop(g.teacher, g.student) - usual > max(_LEAST_GAP, 2 * _standard_error(g.student, g.rows))
    ]

    def figure(groups: Sequence[DiagnosedGroup]) -> str:
        """Return the loss of each of the groups, and of all rows, in words."""
        each = [f"{g.name}: {metric.lost(metric.drop(g.teacher, g.student))} on {g.rows:,} rows" for g in groups]
        return "; ".join([*each, f"all rows: {metric.lost(usual)}"])

    for by, what, key in (
        (LABEL, "Give more rows, labelled or not, of the labels that lose most.", "data.train, data.transfer"),
        (
            RARE,
            "Give text with the words that training rows lack.",
            f"data.transfer; {_AUGMENT}",
        ),
        (
            LENGTH,
            "Look at texts of this length: more rows of them, and a data.max_length that does not cut them.",
            "data.max_length, data.transfer",
        ),
        (
            CONFIDENCE,
            "Where the teacher itself hesitates, its probabilities teach more than its labels.",
            "distill.N.temperature=4, data.transfer",
        ),
    ):
        groups = [g for g in losing if g.by == by]
        if groups:
            advice.append(Advice(what=what, figure=figure(groups[:3]), key=key))
    return advice


def _is_below(value: float, reference: float, rows: int) -> bool:
    """Return whether a share of `rows` rows is below another share by more than two standard errors and a least gap."""
    return reference - value > max(_LEAST_GAP, 2 * _standard_error(value, rows))


def _standard_error(share: float, rows: int) -> float:
    """Return the standard error of a share that was measured on `rows` rows; 0 for a number outside 0 to 1."""
    return sqrt(max(0.0, share * (1 - share)) / max(rows, 1)) if 0 <= share <= 1 else 0.0
