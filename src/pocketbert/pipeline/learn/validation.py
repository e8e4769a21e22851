"""Validation rows: which rows choose checkpoints and seeds, and how often a training is scored on them.

`add_validation` takes these rows from a source of their own or from the training rows, before anything is tokenized.
`make_validation` returns how a model is scored on them while it trains, or None where that would tell nothing;
`score_on_validation` scores a finished model.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil, inf, isfinite
from typing import TYPE_CHECKING, Any, cast

from pocketbert.core.compare.evaluate import EvalSet, evaluate
from pocketbert.core.data.reading import read_labelled_examples
from pocketbert.core.data.source import DataSource, EvalSource
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import Family
from pocketbert.core.heads import Head, Prepared
from pocketbert.core.heads.several import read_head_rows
from pocketbert.core.metrics import METRICS, Direction
from pocketbert.core.predict.examples import Example, HeadLabels, drop_duplicates_of, drop_overlapping, label_names
from pocketbert.core.predict.predictor import TorchPredictor
from pocketbert.core.predict.scores import Score
from pocketbert.core.predict.sentence_settings import Pooling
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.recipe.sections import Updates
from pocketbert.core.tasks import LabelKind, TaskName

if TYPE_CHECKING:
    from pocketbert.distill.training.monitor import Validation

VALIDATION = "validation"
"""Name of the split."""
_LEAST_ROWS, _LEAST_PASSES = 1000, 2.0
"""Training rows, and passes over them, from which checkpoints are chosen by default: a tenth of fewer rows chooses at random, and
what is read once or twice is not learnt by heart."""
_TAKEN = EvalSource(fraction=0.1, at_most=500)
"""The training rows that choose checkpoints by default."""
_MOST_SCORES, _LEAST_SCORES, _LEAST_SCORED = 10, 6, 100
_FREE = 0.15
"""Rows that can be scored for each row that is trained on, at 5 % of the time: a forward pass is a third of a training step."""
_BATCH = 64


# --- which rows ---


def with_column(source: DataSource, recipe: Recipe) -> DataSource:
    """Return a source of evaluation or validation rows that is read with the recipe's column of answers.

    A source that names a column of its own is returned unchanged.
    """
    if source.teacher is not None or recipe.column is None:
        return source
    return source.model_copy(update={"teacher": recipe.column})


def divide_by_own_label(rows: Sequence[Example]) -> tuple[list[Example], list[Example]]:
    """Divide rows into those with a label of their own, which can judge a model, and those labelled by a teacher's answer.

    If no row has a label of its own, all rows judge: a score is the agreement with the teacher's answers then. With several heads the
    same holds for each, and a row without a label of its own for one of them judges the others.
    """
    if rows and isinstance(rows[0].label, HeadLabels) and rows[0].label.answers:
        judging = _keep_own_labels(rows)
        others = [row for row, judge in zip(rows, judging, strict=True) if judge is None]
        return [judge for judge in judging if judge is not None], others
    own = [row for row in rows if row.answer is None or not row.answer.gives_label]
    return (own, [row for row in rows if row.answer is not None and row.answer.gives_label]) if own else ([*rows], [])


def _keep_own_labels(rows: Sequence[Example]) -> list[Example | None]:
    """Return copies of rows of several heads without the labels that a teacher's answers gave; None for a row without any label then.

    A head for which no row has a label of its own keeps those of the answers.
    """
    given = [cast("HeadLabels", row.label) for row in rows]
    own = [
        [None if answer and answer.gives_label else label for label, answer in zip(g.labels, g.answers, strict=True)]
        for g in given
    ]
    has_own = [any(label is not None for label in of_head) for of_head in zip(*own, strict=True)]
    judging = list[Example | None]()
    for row, g, kept in zip(rows, given, own, strict=True):
        labels = tuple(k if h else label for label, k, h in zip(g.labels, kept, has_own, strict=True))
        is_judge = any(label is not None for label in labels)
        judging.append(replace(row, label=replace(g, labels=labels)) if is_judge else None)
    return judging


def add_validation(parts: dict[str, list[Example]], recipe: Recipe) -> list[str]:
    """Add the split ``validation`` to the rows of a run, and remove its rows from the training rows.

    Args:
        parts: Rows by split, changed in place.
        recipe: The recipe. Its `data.validation` names the rows; if it does not, they are taken from the training rows.

    Returns:
        A list with a sentence on where the rows come from; an empty list if the run gets no validation rows.

    Raises:
        InputError: If the source cannot be read, no row is left, or several seeds are trained and there are no labelled
            rows.
    """
    source, task = recipe.data.validation, recipe.task_row
    train = parts.get("train", [])
    if recipe.training.seeds > 1 and task.labels is LabelKind.SCORE_OR_NONE:
        _check_scores("training.seeds", "the students of several seeds are reported on eval", parts.get("eval", []))
    if source is not None and source.fraction is None:
        if task.heads:
            rows = read_head_rows(source, task, recipe.label_columns, recipe.head_columns)
        else:
            rows, _ = read_labelled_examples(with_column(source, recipe), kind=task.labels)
        rows, _ = divide_by_own_label(rows)
        if task.labels is LabelKind.SCORE_OR_NONE:
            _check_scores("data.validation", "checkpoints and seeds are chosen by scores of pairs", rows)
        rows, reported = drop_duplicates_of(rows, parts.get("eval", []))
        parts["train"], trained = drop_duplicates_of(train, rows)
        parts[VALIDATION] = rows
        note = (
            f"{len(rows):,} validation rows choose checkpoints; left out because a text is there twice: {reported:,} of them "
            f"(also in eval) and {trained:,} training rows"
        )
    elif source is not None or _are_taken_by_default(recipe, train):
        share = source or _TAKEN
        count = min(ceil((share.fraction or 0.0) * len(train)), share.at_most or len(train))
        rest, taken = _take_rows(train, count, recipe.seed, recipe.task is TaskName.FEATURE_EXTRACTION)
        rest, overlapping = drop_overlapping(rest, taken)
        if source is None and not _are_taken_by_default(recipe, [*rest, *taken]):
            return []  # too few are left: none would be scored
        parts["train"], parts[VALIDATION] = rest, taken
        note = (
            f"{len(taken):,} of {len(train):,} training rows choose checkpoints instead of being trained on "
            "(data.validation names other rows, training.evaluate_every=0 trains on all)"
        )
        if overlapping:
            note += f"; {overlapping:,} more are not trained on either: their text contains a validation text or is part of one"
    else:
        if recipe.training.seeds > 1:
            what = "trains several students, and there are no labelled rows to choose one of them by."
            raise InputError(Problem("training.seeds", what, "Name some: data.validation.path=validation.csv"))
        return []
    if not parts[VALIDATION] or not parts["train"]:
        what = (
            f"leaves {len(parts['train']):,} rows to train on and {len(parts[VALIDATION]):,} to choose checkpoints by."
        )
        raise InputError(Problem("data.validation", what, "Give other rows, or more training rows."))
    return [note]


def _check_scores(key: str, what: str, rows: Sequence[Example]) -> None:
    """Check that rows of feature extraction are pairs or have scores, by which a model's vectors are judged.

    Args:
        key: Recipe key that the error names.
        what: First part of the error's message.
        rows: The rows.

    Raises:
        InputError: If a row is a single text without a score.
    """
    if any(row.label is None and row.pair is None for row in rows):
        raise InputError(Problem(key, f"{what}, and its rows have no scores.", "Give pairs, or leave it out."))


def divides_training_rows(recipe: Recipe) -> bool:
    """Return whether evaluation or validation rows are, or may be, taken from the training rows of a recipe."""
    sources = (recipe.data.eval, recipe.data.validation)
    if any(source is not None and source.fraction is not None for source in sources):
        return True
    trained = recipe.teacher.finetune is not None or any(stage.predicts for stage in recipe.distill)
    may_be_scored = recipe.training.evaluate_every != 0 or recipe.training.seeds > 1
    return recipe.data.validation is None and trained and may_be_scored and recipe.task_row.labels is not LabelKind.NONE


def _are_taken_by_default(recipe: Recipe, rows: Sequence[Example]) -> bool:
    """Return whether some training rows become validation rows although the recipe does not ask for that."""
    if recipe.task_row.labels is LabelKind.NONE or not rows or rows[0].label is None:
        return False
    if recipe.training.seeds > 1:
        return True
    trained = [recipe.teacher.finetune, *(s for s in recipe.distill if s.predicts)]
    return any(
        _is_scored_by_default(recipe, settings, len(rows), len(rows)) for settings in trained if settings is not None
    )


def _is_scored_by_default(recipe: Recipe, settings: Updates, rows: int, trained: int) -> bool:
    """Return whether a model is scored while it trains although the recipe names no validation rows.

    If the recipe sets `training.evaluate_every`, that decides; else the numbers of rows and of passes over them do.

    Args:
        recipe: The recipe.
        settings: Settings of the training.
        rows: Number of training rows and validation rows together.
        trained: Number of training rows only.
    """
    every = recipe.training.evaluate_every
    if every is not None:
        return every > 0
    passes = settings.for_rows(trained).steps * settings.batch / max(trained, 1)
    return rows >= _LEAST_ROWS and passes >= _LEAST_PASSES


def scored_by_default_up_to(recipe: Recipe) -> int | str | None:
    """Return the largest number of training rows from which validation rows are taken by default.

    With more rows no training passes over them often enough to be scored by default. If only a later stage is long
    enough, the trainings before it lose the rows too, so that they depend on this number and are made anew when it
    changes. So do augmented rows, a pruned vocabulary and the answers of heads' own models, which are made before all trainings.

    Returns:
        The number of rows; ``any`` if there is no limit; None if the recipe decides otherwise (validation rows,
            `training.evaluate_every`, several seeds), if the task has no labels, or if no earlier step depends on it.
    """
    by_recipe = recipe.data.validation is not None or recipe.training.evaluate_every is not None
    if by_recipe or recipe.training.seeds > 1 or recipe.task_row.labels is LabelKind.NONE:
        return None
    on_rows = [s for s in recipe.distill if not s.general]
    reaches = [_scored_rows(s) if s.predicts else 0.0 for s in on_rows]
    if recipe.teacher.finetune is not None:
        reaches.insert(0, _scored_rows(recipe.teacher.finetune))
    first, later = max(reaches[:1], default=0.0), max(reaches[1:], default=0.0)
    asks_models = any(teacher.model for teacher in recipe.head_columns.values())
    has_older = recipe.data.augment is not None or recipe.prunes_vocabulary or asks_models
    most = max(first, later) if has_older or later > first else 0.0
    if most < _LEAST_ROWS:
        return None
    return int(most) if isfinite(most) else "any"


def _scored_rows(settings: Updates) -> float:
    """Return the largest number of training rows with which a training is long enough to be scored by default."""
    if settings.epochs is not None:
        return inf if settings.epochs >= _LEAST_PASSES else 0.0
    return settings.steps * settings.batch / _LEAST_PASSES


def _take_rows(rows: Sequence[Example], count: int, seed: int, by_first: bool) -> tuple[list[Example], list[Example]]:
    """Take about `count` rows, the same fraction of the rows of each set of labels; return the other rows and those taken.

    A hash of seed and row decides which are taken. Rows with equal texts (with `by_first`: pairs with the same first text) are taken
    together or not at all. Rows with a label that the other rows would lack are not taken.
    """
    keyed = [(row, row.query_digest if by_first else row.digest) for row in rows]
    strata = defaultdict[tuple[str, ...], dict[str, int]](dict)
    for row, digest in keyed:
        labels = tuple(sorted({str(name) for name in label_names(row)}))
        strata[labels][digest] = strata[labels].get(digest, 0) + 1
    share, taken, owed = count / max(len(rows), 1), set[str](), 0.0
    for labels in sorted(strata):
        digests = sorted(strata[labels], key=lambda d: hashlib.sha256(f"{VALIDATION} {seed} {d}".encode()).digest())
        owed += share * sum(strata[labels].values())  # what a small stratum does not give, the next one does
        for digest in digests:
            if owed < 0.5 * strata[labels][digest]:
                break
            taken.add(digest)
            owed -= strata[labels][digest]
    kept = Counter(name for row, digest in keyed if digest not in taken for name in label_names(row))
    taken -= {digest for row, digest in keyed if digest in taken and not all(kept[n] for n in label_names(row))}
    return [r for r, digest in keyed if digest not in taken], [r for r, digest in keyed if digest in taken]


# --- how a model is scored on them ---


def make_validation(
    recipe: Recipe,
    head: Head,
    splits: Mapping[str, Prepared],
    settings: Updates,
    family: Family,
    tokenizer: TextTokenizer,
    pooling: Pooling,
) -> Validation | None:
    """Return how a model is scored on validation rows while it trains; None if it is not scored.

    It is not scored without labelled validation rows, if `training.evaluate_every` is 0, or by default if the training is short.

    Args:
        recipe: The recipe, whose section `training` decides how often.
        head: Head of the task.
        splits: The run's rows by split, tokenized.
        settings: Settings of the training, with its number of steps.
        family: Family of the model.
        tokenizer: Tokenizer that pads rows.
        pooling: How token states become a vector.
    """
    from pocketbert.distill.students.projection import add_projection, attached_projection
    from pocketbert.distill.training.monitor import Validation

    rows, section = splits.get(VALIDATION), recipe.training
    if rows is None or not len(rows.truth) or section.evaluate_every == 0:
        return None
    named = recipe.data.validation is not None or section.evaluate_every is not None
    trained = len(splits["train"].examples)
    if not named and not _is_scored_by_default(recipe, settings, trained + len(rows.examples), trained):
        return None
    if section.evaluate_every is None:
        rows = _limit_rows(rows, settings, len(head.task.heads))
        every = max(ceil(settings.steps / _MOST_SCORES), ceil(len(rows.encoded) / (_FREE * settings.batch)))
        every = min(every, ceil(settings.steps / 3))
    else:
        every = section.evaluate_every
    chosen, name = rows, section.metric or head.task.metric.name

    def score(model: Any) -> float:
        """Return the metric of a model on the chosen validation rows."""
        own = add_projection(pooling, None if recipe.drops_projection else attached_projection(model))
        predictor = TorchPredictor(model, head.task, family.inputs, own)
        return metric_value(evaluate(predictor, tokenizer, EvalSet(VALIDATION, head, chosen), _BATCH)[0], name)

    higher = name not in METRICS or METRICS[name].direction is Direction.HIGHER
    return Validation(score, every, section.patience, higher, name)


def _limit_rows(rows: Prepared, settings: Updates, heads: int) -> Prepared:
    """Return as many rows as can be scored six times in 5 % of the training's time, at least about 100: those with the smallest hashes.

    Of several heads, each has an equal part of the rows first: those with a label of it, which few rows may have.

    Args:
        rows: All validation rows.
        settings: Settings of the training, with its number of steps.
        heads: Number of several heads; 0 for one head.
    """
    budget = max(_FREE * settings.batch * settings.steps / _LEAST_SCORES, _LEAST_SCORED)
    count = int(budget * len(rows.examples) / len(rows.encoded))
    if count >= len(rows.examples):
        return rows
    count, ordered = max(count, heads, 1), rows.first_by_hash(len(rows.examples))
    chosen = set[int]()
    for place in range(heads):
        chosen |= {*[i for i in ordered if rows.truth[i][place] is not None][: count // heads]}
    chosen |= {*[i for i in ordered if i not in chosen][: count - len(chosen)]}
    return rows.only(sorted(chosen))


def metric_value(score: Score, name: str) -> float:
    """Return the value of a metric in a score.

    Raises:
        InputError: If the rows have no such metric.
    """
    values = {score.metric: score.value, **score.others}
    if name not in values:
        what = f"'{name}' cannot be measured on these rows; allowed: {', '.join(values)}."
        raise InputError(Problem("training.metric", what))
    return values[name]
