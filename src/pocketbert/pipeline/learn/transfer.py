"""Texts without labels in a run: the rows that the teacher labels, and their share of what the student learns from.

`write_transfer` is a step that reads the texts of `data.transfer` and writes them without rows that are known already; training rows
without a label join them later. `mix_rows` returns them with the labelled rows and their augmented copies, each with its share of
every step.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.data.unlabelled import PairDrawing, TransferCounts, read_transfer_rows
from pocketbert.core.disk.files import open_atomic, read_json, write_json
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.heads.feature_extraction import Ranking, are_scored_pairs, find_rankings
from pocketbert.core.host.progress import print_note
from pocketbert.core.predict.examples import Example, text_key
from pocketbert.core.recipe.data import MixSection
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.recipe.stages import TaskStage
from pocketbert.pipeline.learn.data import RunData
from pocketbert.pipeline.run_folder import Step, StepPaths, data_digest

if TYPE_CHECKING:
    from pocketbert.distill.training.data import PackedSet, TrainData, TrainSet

TRANSFER = "transfer"
"""Name of the step, and of its folder in the run folder."""
_ROWS_FILE, _COUNTS_FILE = "rows.jsonl", "counts.json"
_AT_ONCE = 4096
"""Rows that are tokenized together."""
_MOST_MARGINS = 0.99
"""Share of margins that a difference of cosines of 1 or less stands for."""


def mixes_transfer(recipe: Recipe) -> bool:
    """Return whether a student learns from texts without labels beside training rows.

    It is false if the recipe has such texts only: they are the training rows then.
    """
    return recipe.student is not None and recipe.data.transfer is not None and recipe.data.train is not None


def transfer_contents(recipe: Recipe) -> dict[str, str | None]:
    """Return the digest of each file of texts without labels, by recipe key."""
    transfer = recipe.data.transfer
    sources = transfer.sources if transfer is not None else ()
    return {f"data.transfer.sources.{i}": data_digest(source) for i, source in enumerate(sources)}


def transfer_step(recipe: Recipe, settings: object, read_data: Callable[[], RunData]) -> Step:
    """Return the step that writes the texts without labels, from which the training stages read them.

    Args:
        recipe: The recipe.
        settings: The recipe's section `data.transfer` without keys that change no result.
        read_data: Function that returns the run's rows.
    """

    def make(at: StepPaths) -> Sequence[str]:
        write_transfer(recipe, read_data(), at.output)
        return ()

    return Step(
        name=TRANSFER,
        title="texts that the teacher labels",
        output=TRANSFER,
        settings={"seed": recipe.seed, "data": {"transfer": settings}},
        contents=transfer_contents(recipe),
        needs=("data",),
        make=make,
    )


def write_transfer(recipe: Recipe, data: RunData, destination: Path) -> None:
    """Write the texts of `data.transfer` to an existing folder, without evaluation, held-out and training rows.

    Args:
        recipe: The recipe.
        data: The run's rows.
        destination: The folder, from which `mix_rows` reads the texts again, one portion at a time.
    """
    section, counts = recipe.data.transfer, TransferCounts()
    assert section is not None
    others = [row for name, split in data.splits.items() if name != "train" for row in split.examples]
    rows = read_transfer_rows(
        section.sources,
        data.head.task.labels,
        counts,
        PairDrawing(section.pairs, section.near, recipe.seed) if data.pair else None,
        held_out=others,
        trained=[*data.splits["train"].examples, *data.unlabelled],
    )
    with open_atomic(destination / _ROWS_FILE) as stream:
        for row in rows:
            stream.write((json.dumps([row.text, row.pair], ensure_ascii=False) + "\n").encode(errors="surrogatepass"))
    print_note(f"  {counts.line}")
    write_json(destination / _COUNTS_FILE, counts.model_dump(mode="json"))


def note_transfer(folder: Path | None) -> list[str]:
    """Return the counts that `write_transfer` wrote to a folder, as a sentence; an empty list if there is no folder."""
    return [] if folder is None else [TransferCounts.model_validate(read_json(folder / _COUNTS_FILE)).line]


def read_transfer(folder: Path | None, unlabelled: Sequence[Example]) -> Iterator[list[Example]]:
    """Yield the rows that `write_transfer` wrote to a folder, then training rows without a label, in lists of rows."""
    portion = list[Example]()
    if folder is not None:
        with (folder / _ROWS_FILE).open(encoding="utf-8", errors="surrogatepass") as stream:
            for number, line in enumerate(stream, 1):
                text, pair = json.loads(line)
                portion.append(Example(text, pair, None, number))
                if len(portion) == _AT_ONCE:
                    yield portion
                    portion = []
    portion += unlabelled
    if portion:
        yield portion


def arrange_pairs(
    rows: TrainSet, stage: TaskStage, key: str, is_mixed: bool, has_length_1: bool
) -> tuple[TrainSet, list[str]]:
    """Arrange the rows of pairs in groups of two or three that stay in one batch, with the targets of the stage's loss on pairs.

    For `signals.labels` a group is a scored pair, with its score as target. For `margins` a group is a query, its best text and another
    of its texts, with the difference of the two scores as target. For `negatives` a group is a query and a text that belongs to it; if
    any query has a text that does not belong to it, such a text is the third row.

    Args:
        rows: The tokenized training rows of feature extraction; two for each pair.
        stage: The stage.
        key: Its recipe key.
        is_mixed: Whether the stage also reads other rows, or splits words otherwise than its teacher.
        has_length_1: Whether vectors have length 1, so that margins are scaled.

    Returns:
        The rows, and a list with a sentence on what they are; empty for scored pairs.

    Raises:
        InputError: If the training rows are not such pairs, or the stage reads other rows too.
    """
    from pocketbert.distill.losses.task import QUERY_ROWS, TEXT_NUMBERS

    (term,) = stage.signals.from_pairs
    examples, where, learns = rows.rows.examples, f"{key}.signals.{term}", _LEARNT_FROM_PAIRS[term]
    if is_mixed:
        what = (
            f"learns {learns}, which cannot be mixed with augmented rows, texts without labels or another vocabulary."
        )
        raise InputError(Problem(where, what, f"Set {term}: 0, or leave these out."))
    if term == "labels":
        if not are_scored_pairs(examples):
            what = f"learns {learns}, and not every training row is a pair with a score."
            fix = "Name them: data.train: {path: FILE, text: a, text_pair: b, label: score}; or set labels: 0."
            raise InputError(Problem(where, what, fix))
        scores = np.repeat(np.array([e.label for e in examples], np.float32), 2)
        return replace(rows, rows=replace(rows.rows, targets={"labels": scores}), together=2), []
    rankings = find_rankings(examples)
    if term == "margins":
        rankings = [ranking for ranking in rankings if ranking.others and are_scored_pairs(examples)]
    if not rankings:
        what = f"learns {learns}, and the training rows are no such pairs."
        if term == "margins":
            fix = "Give pairs of which several have the same first text and different scores, or triplets with scores; or set margins: 0."
        else:
            fix = "Name both texts: data.train: {path: FILE, text: a, text_pair: b}; scores are 0 and 1; or set negatives: 0."
        raise InputError(Problem(where, what, fix))
    if term == "margins":
        return _arrange_margins(rows, rankings, stage.margin_scale, key, has_length_1)
    has_others = any(ranking.others for ranking in rankings)
    together = 3 if has_others else 2
    triples = [(i, j) for r in rankings for n, i in enumerate(r.positives) for j in _negatives_of(r, n)]
    order = [row for i, j in triples for row in (2 * i, 2 * i + 1, 2 * j + 1)[:together]]
    numbers: dict[str, int] = {}
    texts = [text_key(text) for e in examples for text in (e.text, e.pair or "")]
    own = np.array([numbers.setdefault(texts[row], len(numbers)) for row in order], np.int64)
    targets = {TEXT_NUMBERS: own, QUERY_ROWS: np.full(len(order), together, np.int64)}
    note = f"{key}: {len(triples):,} texts of {len(rankings):,} queries{', with negatives' if has_others else ''}"
    return _take_rows(rows, order, targets, together), [note]


_LEARNT_FROM_PAIRS = {
    "labels": "the order of scored pairs",
    "margins": "the differences of the scores of a query's texts",
    "negatives": "which texts belong together",
}
"""What the loss terms on pairs teach, in words."""


def _negatives_of(ranking: Ranking, number: int) -> Sequence[int]:
    """Return the pairs whose texts are negatives beside one text that belongs to a query: the positive pair with the given index.

    The only positive pair gets all negatives of the query, one of several gets one in turn. Without negatives the pair itself is
    returned, since equal texts do not count as each other's negatives.
    """
    if not ranking.others:
        return [ranking.positives[number]]
    return ranking.others if len(ranking.positives) == 1 else [ranking.others[number % len(ranking.others)]]


def _arrange_margins(
    rows: TrainSet, rankings: Sequence[Ranking], scale: float | None, key: str, has_length_1: bool
) -> tuple[TrainSet, list[str]]:
    """Return three rows (query, best text, other text) for each text of a query but its best, and a note.

    The target is the margin (the best text's score less the other's), divided by `scale`. If `scale` is None and vectors have length 1, the
    divisor is the margin that 99 % of the margins do not exceed, at least 1; for other vectors it is 1.
    """
    scores = np.array([e.label for e in rows.rows.examples], np.float64)
    triples = [(ranking.positives[0], j) for ranking in rankings for j in ranking.others]
    margins = np.array([scores[i] - scores[j] for i, j in triples])
    if scale is None:
        scale = max(1.0, float(np.quantile(margins, _MOST_MARGINS, method="higher"))) if has_length_1 else 1.0
    order = [row for i, j in triples for row in (2 * i, 2 * i + 1, 2 * j + 1)]
    targets = {"labels": np.repeat((margins / scale).astype(np.float32), 3)}
    note = f"{key}: {len(triples):,} margins of {len(rankings):,} queries, divided by {scale:.4g}"
    return _take_rows(rows, order, targets, 3), [note]


def _take_rows(
    rows: TrainSet, order: Sequence[int], targets: Mapping[str, NDArray[np.generic]], together: int
) -> TrainSet:
    """Return the tokenized rows with the given indices, `together` for each query, with their targets."""
    own = rows.rows
    taken = replace(own, encoded=[own.encoded[row] for row in order], owner=own.owner[order], targets=targets)
    return replace(rows, rows=taken, together=together)


def mix_rows(
    recipe: Recipe,
    data: RunData,
    labelled: TrainSet,
    copies: PackedSet | None,
    folder: Path | None,
    with_unlabelled: bool = True,
) -> tuple[TrainData, str]:
    """Mix the training rows of a stage with augmented copies and rows without labels, in the shares of `data.mix`.

    Args:
        recipe: The recipe.
        data: The run's rows.
        labelled: The tokenized training rows, with the teacher's tokenizer.
        copies: Augmented copies of these rows, without the rows themselves; None to use none.
        folder: Folder that `write_transfer` filled; None without `data.transfer`.
        with_unlabelled: Whether training rows without a label are added to the rows without labels.

    Returns:
        The mixed rows, and a text on what they are made of.
    """
    from pocketbert.distill.training.data import MixedPart, MixedSet, PackedSet

    mix, head, tokenizer = recipe.data.mix or MixSection(), data.head, labelled.tokenizer
    texts = read_transfer(folder, data.unlabelled if with_unlabelled else ())
    portions = (head.prepare(portion, tokenizer, "data.transfer", labelled=False) for portion in texts)
    parts = [("labelled" if data.labelled else "training", MixedPart(labelled, mix.labelled, data.labelled))]
    if copies is not None:
        parts.append(("augmented", MixedPart(copies, mix.augmented, data.labelled)))
    first = next(portions, None)
    if first is not None:
        packed = PackedSet(chain([first], portions), tokenizer)
        parts.append(("transfer", MixedPart(packed, mix.transfer, labelled=False)))
    total = sum(part.weight for _, part in parts)
    shares = [f"{part.weight / total:.0%} of {len(part.rows.lengths):,} {name} rows" for name, part in parts]
    return MixedSet([part for _, part in parts]), f"each step has {', '.join(shares)}"
