"""Heads of a model with several: each of them reads its own labels, is scored and answers by itself (`SeveralHeads`).

`read_head_rows` reads a file with the label of each head in a column of its own, `resolve_head_labels` fixes the labels of all heads, and
`check_head_rows` refuses rows that cannot train or judge a head.

The output matrix of a text has the logits of all heads side by side: [tokens, columns], or [1, columns] if no head labels tokens. Logits of
heads on whole texts are the same in every row; the first is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.data.labels import Labels, join_head_labels, resolve_labels
from pocketbert.core.data.reading import read_labelled_examples
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.heads.head import IGNORED_LABEL, LABELLED_ROWS, Head, Prepared, all_finite, prepare_texts
from pocketbert.core.predict.answers import Answer, HeadAnswers
from pocketbert.core.predict.examples import Example, HeadLabels
from pocketbert.core.predict.predictor import Matrix
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import LabelKind, Level, NamedTask, Task

if TYPE_CHECKING:
    from pocketbert.core.data.source import DataSource, TeacherColumn
    from pocketbert.core.predict.scores import Score


class SeveralHeads:
    """The heads of a model with several, by their names.

    Args:
        task: The task of all heads, with the columns of each.
        heads: Each head by its name.
    """

    def __init__(self, task: Task, heads: Mapping[str, Head]) -> None:
        self.task, self.heads = task, heads

    def prepare(self, examples: list[Example], tokenizer: TextTokenizer, title: str, labelled: bool = True) -> Prepared:
        """Tokenize rows, and read each head's labels as targets ``NAME.labels`` [N, ...], or N arrays [tokens].

        Where some rows have no label of a head, ``NAME.labelled`` marks those that have one, bool [N]. `truth` holds for each row the gold
        labels of all heads, in their order; None for a label that the row lacks. Without labels only the places of words are
        marked, for heads that label tokens.
        """
        per_token = any(named.task.level is Level.TOKEN for named in self.task.heads)
        rows, targets = prepare_texts(examples, tokenizer, places=per_token), dict[str, Any]()
        truths = list[list[Any]]()
        for place, named in enumerate(self.task.heads):
            own = [take_example_of_head(example, place if labelled else None) for example in examples]
            has_label = np.array([example.label is not None for example in own], bool)
            parts = [
                (numbers, self.heads[named.name].prepare([own[i] for i in numbers], tokenizer, title, is_labelled))
                for is_labelled in (True, False)
                if len(numbers := np.flatnonzero(has_label == is_labelled))
            ]
            if labelled or named.task.level is Level.TOKEN:
                targets[f"{named.name}.labels"] = _join_targets(named, parts, len(examples))
            if labelled and not has_label.all():
                targets[f"{named.name}.{LABELLED_ROWS}"] = has_label
            truth: list[Any] = [None] * len(examples)
            for numbers, part in parts:
                for i, value in zip(numbers, part.truth, strict=False):
                    truth[i] = value
            truths.append(truth)
        return replace(rows, targets=targets, truth=[*zip(*truths, strict=True)] if labelled else ())

    def reduce(self, row: int, matrix: Matrix, prepared: Prepared) -> Matrix:
        """Reduce the logits of heads that label tokens to what their `score` needs; the columns of other heads stay as they are."""
        if not matrix.size:
            return matrix
        parts = []
        for named in self.task.heads:
            own, head = matrix[:, named.columns], self.heads[named.name]
            parts.append(head.reduce(row, own, prepared) if named.task.level is Level.TOKEN else own)
        return np.concatenate(parts, -1)

    def score(self, reduced: Sequence[Matrix], prepared: Prepared) -> Score:
        """Compute the score of each head on the rows that have a label of it, and the mean of the heads' deciding metrics.

        A head of which no row has a label has a score of 0 rows, which is in no mean.
        """
        from pocketbert.core.predict.score_records import Score

        scores, start = dict[str, Score](), 0
        for place, named in enumerate(self.task.heads):
            per_token = named.task.level is Level.TOKEN
            stop = start + (1 if per_token else named.stop - named.start)
            numbers = [i for i, truth in enumerate(prepared.truth) if truth[place] is not None]
            own = [reduced[i][:, start:stop] if per_token else reduced[i][:1, start:stop] for i in numbers]
            start = stop
            if numbers:
                own_rows = take_rows_of_head(self.task, place, prepared.only(numbers))
                scores[named.name] = self.heads[named.name].score(own, own_rows)
        return self.join_scores(scores, len(prepared.examples), all_finite(reduced))

    def join_scores(self, scores: Mapping[str, Score], rows: int, is_finite: bool) -> Score:
        """Join scores of heads to the score of all: the mean of their deciding metrics, with 0 rows for heads that have none.

        Args:
            scores: Score of each head that was scored, by its name.
            rows: Number of rows.
            is_finite: Whether all outputs are finite numbers.
        """
        from pocketbert.core.predict.score_records import Score

        others = {f"{name}.{score.metric}": score.value for name, score in scores.items()}
        others |= {f"{name}.{key}": value for name, score in scores.items() for key, value in score.others.items()}
        values, chances = [s.value for s in scores.values()], [s.chance for s in scores.values()]
        mean, chance = (float(np.mean(numbers)) if numbers else 0.0 for numbers in (values, chances))
        whole = Score.of(self.task.metric, mean, others, rows, chance, is_finite)
        heads = {h.name: scores.get(h.name) or Score.of(h.task.metric, 0.0, {}, 0, 0.0, True) for h in self.task.heads}
        return whole.model_copy(update={"heads": heads})

    def answers(self, outputs: Sequence[Matrix], prepared: Prepared, inside: bool = False) -> list[Answer]:
        """Return for each text the answers of all heads, as `HeadAnswers`."""
        by_head = dict[str, list[Answer]]()
        for named in self.task.heads:
            rows = slice(None) if named.task.level is Level.TOKEN else slice(1)
            own = [matrix[rows, named.columns] for matrix in outputs]
            by_head[named.name] = self.heads[named.name].answers(own, prepared, inside)
        return [HeadAnswers({name: own[i] for name, own in by_head.items()}) for i in range(len(outputs))]


def take_example_of_head(example: Example, place: int | None) -> Example:
    """Return a row with label and answer of the head at `place` only; without a label if the row has none, or `place` is None."""
    if place is None or not isinstance(example.label, HeadLabels):
        return replace(example, label=None)
    answers = example.label.answers
    return replace(example, label=example.label.labels[place], answer=answers[place] if answers else None)


def take_rows_of_head(task: Task, place: int, rows: Prepared) -> Prepared:
    """Return the rows of several heads as the head at `place` alone has them: with its labels, answers, targets and truth."""
    prefix = f"{task.heads[place].name}."
    return replace(
        rows,
        examples=[take_example_of_head(example, place) for example in rows.examples],
        targets={k.removeprefix(prefix): v for k, v in rows.targets.items() if k.startswith(prefix)},
        truth=[truth[place] for truth in rows.truth],
    )


def _join_targets(
    named: NamedTask, parts: Sequence[tuple[NDArray[np.intp], Prepared]], count: int
) -> NDArray[Any] | list[NDArray[np.int64]]:
    """Join the targets of rows with and without a label of a head, in the order of the rows.

    Of a row without a label, targets of texts are 0, and those of tokens mark where words begin.
    """
    if named.task.level is Level.TOKEN:
        empty = np.full(0, IGNORED_LABEL, np.int64)
        rows: list[NDArray[np.int64]] = [empty] * count
        for numbers, part in parts:
            for i, values in zip(numbers, part.targets["labels"], strict=True):
                rows[i] = np.asarray(values, np.int64)
        return rows
    known = [(numbers, part.targets["labels"]) for numbers, part in parts if "labels" in part.targets]
    if not known:
        return np.zeros(count, np.int64)
    numbers, values = known[0][0], np.asarray(known[0][1])
    joined = np.zeros((count, *values.shape[1:]), values.dtype)
    joined[numbers] = values
    return joined


# --- rows and labels ---


def read_head_rows(
    source: DataSource, task: Task, columns: Mapping[str, str], taught: Mapping[str, TeacherColumn] | None = None
) -> list[Example]:
    """Read the rows of a file with a label for each of several heads; rows without any label are left out unless a model answers.

    Args:
        source: The file or data set.
        task: The task of all heads.
        columns: Column of each head's label, by the head's name.
        taught: The teacher of each head that has one of its own, by the head's name. A row without a label of a head with a column
            gets the one that its answer amounts to.

    Returns:
        The rows in file order; their labels are `HeadLabels`.

    Raises:
        InputError: Listing what is wrong with the rows, and naming the heads of which no row has a label.
    """
    texts, labels, problems = dict[int, Example](), dict[int, dict[int, Example]](), list[Problem]()
    for place, head in enumerate(task.heads):
        is_asked = head.learns_from == "own model"  # which answers later, also about rows without a label
        column = None if is_asked else (taught or {}).get(head.name)
        own = source.model_copy(update={"label": columns[head.name], "teacher": column})
        try:
            labelled, unlabelled = read_labelled_examples(own, kind=head.task.labels, without_labels=True, sparse=True)
        except InputError as error:
            problems += error.problems
            continue
        if not labelled and not is_asked:
            what = f"no row has a label of the head '{head.name}' in column '{own.label}'."
            fix = (
                f"Name its column: tasks.{head.name}.label in a recipe, --label {head.name}=COLUMN on the command line."
            )
            problems.append(Problem(source.title, what, fix))
        for row in (*labelled, *unlabelled):
            # places of spans are those in the text as the reader of spans joins it
            if row.row not in texts or head.task.labels is LabelKind.SPANS:
                texts[row.row] = row
        labels[place] = {row.row: row for row in labelled}
    if problems:
        raise InputError([*dict.fromkeys(problems)])
    rows, is_any_asked = [], any(head.learns_from == "own model" for head in task.heads)
    for number in sorted(texts):
        of_row = [labels[place].get(number) for place in labels]
        if any(of_row) or is_any_asked:
            own_labels = tuple(cast("Any", None if row is None else row.label) for row in of_row)
            answers = tuple(None if row is None else row.answer for row in of_row) if taught else ()
            rows.append(replace(texts[number], label=HeadLabels(own_labels, answers), answer=None))
    return rows


def resolve_head_labels(
    task: Task, declared: Mapping[str, Sequence[str] | None], trained: Labels | None, rows: Sequence[Example]
) -> Labels:
    """Return the labels of all heads, in order of their columns, each with its head's name in front.

    Args:
        task: The task of all heads.
        declared: The labels that the recipe lists for a head, by its name.
        trained: The labels of a model whose heads are trained already; None if they are trained in the run.
        rows: The rows whose labels are used for heads without other labels.

    Raises:
        InputError: If a head's labels cannot be resolved, see `resolve_labels`; the problems name the head.
    """
    known = trained.split(task.with_columns(trained.names)) if trained is not None else [None] * len(task.heads)
    labels = []
    for place, (head, own) in enumerate(zip(task.heads, known, strict=True)):
        examples = [
            replace(row, label=row.label.labels[place])
            for row in rows
            if isinstance(row.label, HeadLabels) and row.label.labels[place] is not None
        ]
        names = own.names if own is not None else None
        try:
            labels.append(resolve_labels(declared.get(head.name), names, examples, head.task.labels))
        except InputError as error:
            where = f"tasks.{head.name}.labels"
            raise InputError([replace(p, where=where) for p in error.problems]) from error
    return join_head_labels(task, labels)


def check_head_rows(task: Task, parts: Mapping[str, Sequence[Example]]) -> None:
    """Check that each head has labelled rows in every split.

    Raises:
        InputError: Naming each head and split without any.
    """
    problems = []
    for split, rows in parts.items():
        for place, head in enumerate(task.heads):
            if split == "train" and head.learns_from == "own model":
                continue
            if not any(isinstance(r.label, HeadLabels) and r.label.labels[place] is not None for r in rows):
                what = (
                    f"no row of {split} has a label of the head '{head.name}': it could be neither trained nor judged."
                )
                problems.append(Problem("data", what, "Give rows with labels of each head."))
    if problems:
        raise InputError(problems)
