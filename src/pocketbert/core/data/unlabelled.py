"""Texts without labels, for a teacher to label: read from any data file, without rows that are known already, as texts or pairs.

`read_transfer_rows` yields them one by one and counts in `TransferCounts` what it read, left out and drew. For tasks on pairs, sources
of pairs give their own; from the texts of other sources `draw_pairs` draws pairs, some of texts that share a rare word.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

from pydantic import BaseModel

from pocketbert.core.data.column_names import BadRows
from pocketbert.core.data.files import read_rows
from pocketbert.core.data.reading import to_example
from pocketbert.core.data.source import DataSource
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.predict.examples import Example
from pocketbert.core.seeds import generator
from pocketbert.core.tasks import LabelKind

_NO_COLUMN = "\x00"
"""Name of a label column that no file has."""
_WORD = re.compile(r"\w+")
_COMMON, _COMMON_SHARE = 1000, 0.1
"""A word of more texts than this, or of a larger share of them, brings no pair together."""
_RAREST = 3
"""Of so many of a text's rarest words one is drawn."""
_ATTEMPTS = 20
"""Draws per pair that is wanted: from few texts not as many different pairs can be drawn."""


class TransferCounts(BaseModel):
    """How many texts without labels were read, left out and drawn.

    Attributes:
        files: Number of rows read from each file, by its name.
        rows: Rows that the student learns from.
        repeated: Rows left out because they occur earlier among the texts.
        held_out: Rows left out because they are evaluation or held-out rows.
        trained: Rows left out because they are training rows.
        random_pairs: Pairs among the rows that were drawn at random.
        near_pairs: Pairs among the rows that were drawn because both texts contain the same rare word.
        single_texts: Number of texts from which pairs were drawn.
    """

    files: dict[str, int] = {}
    rows: int = 0
    repeated: int = 0
    held_out: int = 0
    trained: int = 0
    random_pairs: int = 0
    near_pairs: int = 0
    single_texts: int = 0

    @property
    def line(self) -> str:
        """The counts as one sentence."""
        files = ", ".join(f"{name} ({count:,})" for name, count in self.files.items())
        drawn = self.random_pairs + self.near_pairs
        pairs = (
            f"; {drawn:,} of them are pairs drawn from {self.single_texts:,} single texts: {self.near_pairs:,} with a rare word in "
            f"common, {self.random_pairs:,} random"
            if self.single_texts
            else ""
        )
        left_out = {
            "evaluation or held-out rows": self.held_out,
            "training rows": self.trained,
            "repeated": self.repeated,
        }
        told = ", ".join(f"{count:,} {what}" for what, count in left_out.items() if count)
        return f"{self.rows:,} rows without labels from {files}{pairs}" + (f"; left out: {told}" if told else "")


@dataclass(frozen=True)
class PairDrawing:
    """How pairs are drawn from single texts, for tasks on pairs.

    Attributes:
        count: Number of pairs to draw; None for as many as there are texts.
        near: Share of the pairs whose texts have a rare word in common.
        seed: Seed of the run.
    """

    count: int | None = None
    near: float = 0.5
    seed: int = 0


def read_transfer_rows(
    sources: Sequence[DataSource],
    labels: LabelKind,
    counts: TransferCounts,
    pairs: PairDrawing | None = None,
    *,
    held_out: Iterable[Example] = (),
    trained: Iterable[Example] = (),
) -> Iterator[Example]:
    """Yield the rows of sources as examples without labels, each row once; for tasks on pairs, drawn pairs come last.

    For feature extraction, each text of a pair is a row.

    Args:
        sources: Files and data sets; columns of labels in them are not read.
        labels: Kind of label of the task.
        counts: Updated while rows are read.
        pairs: How pairs are drawn from single texts; None for tasks whose rows are single texts.
        held_out: Evaluation and held-out rows; none of these is yielded, and no drawn pair holds one of their texts.
        trained: Training rows; none of these is yielded.

    Raises:
        InputError: If a source cannot be read, or gives pairs to a task of single texts other than feature extraction.
    """
    as_texts = labels is LabelKind.SCORE_OR_NONE  # vectors are of single texts
    held = {_key(e) for row in held_out for e in (row, *_single_texts(row))}
    known = {_key(e) for row in trained for e in (_single_texts(row) if as_texts else [row])}
    seen, singles, names = set[int](), list[str](), Counter(PurePath(source.title).name for source in sources)
    for source in sources:
        if source.text_pair is not None and pairs is None and not as_texts:
            what = "gives pairs, and the training rows are single texts."
            raise InputError(
                Problem(source.title, what, "Leave out text_pair of this source, or name the one text column.")
            )
        path = PurePath(source.title)
        name = "/".join(path.parts[-2:]) if names[path.name] > 1 else path.name
        counts.files.setdefault(name, 0)
        for row in _read_texts(source, labels):
            counts.files[name] += 1
            for example in _single_texts(row) if as_texts else [row]:
                if _is_new(example, held, known, seen, counts):
                    if pairs is not None and example.pair is None:
                        singles.append(example.text)
                    else:
                        counts.rows += 1
                        yield example
    if singles and pairs is not None:
        counts.single_texts = len(singles)
        for first, second, is_near in draw_pairs(singles, pairs):
            example = Example(singles[first], singles[second], None, counts.rows + 1)
            if _is_new(example, held, known, seen, counts):
                counts.rows += 1
                counts.near_pairs += is_near
                counts.random_pairs += not is_near
                yield example


def _read_texts(source: DataSource, task_labels: LabelKind) -> Iterator[Example]:
    """Yield the rows of a source one by one as examples without labels; a column of labels is not read.

    Args:
        source: File or data set, with its columns.
        task_labels: Kind of label of the task that the texts are for: words in a list are joined as for it.

    Raises:
        InputError: At the end, listing the first 20 bad rows and their count, or what is wrong with the file.
    """
    bad, read = BadRows(source.title), False
    names = [name for name in (source.text, source.text_pair) if name is not None]
    kind = LabelKind.SPANS if task_labels is LabelKind.SPANS else LabelKind.NONE
    plain = source.model_copy(update={"label": _NO_COLUMN})
    for number, row in read_rows(plain, bad, names):
        read = True
        example = to_example(plain, number, {k: v for k, v in row.items() if k != _NO_COLUMN}, False, kind, bad)
        if example is not None:
            yield example
    problems = bad.close() or ([] if read else [Problem(source.title, "no rows.")])
    if problems:
        raise InputError(problems)


def _single_texts(row: Example) -> list[Example]:
    """Return each text of a row as an example of its own; a row of one text is returned as it is."""
    if row.pair is None:
        return [row]
    return [replace(row, pair=None), replace(row, text=row.pair, pair=None)]


def _key(example: Example) -> int:
    """Return the first 60 bits of a row's digest; a set of such numbers takes a third of the memory of digests."""
    return int(example.digest[:15], 16)


def _is_new(example: Example, held: set[int], known: set[int], seen: set[int], counts: TransferCounts) -> bool:
    """Return whether a row is to be yielded, and add it to `seen`; if it is held out, trained on or repeated, count it by that reason."""
    key = _key(example)
    if key in held:
        counts.held_out += 1
    elif key in known:
        counts.trained += 1
    elif key in seen:
        counts.repeated += 1
    else:
        seen.add(key)
        return True
    return False


def draw_pairs(texts: Sequence[str], pairs: PairDrawing) -> Iterator[tuple[int, int, bool]]:
    """Draw different pairs of texts: a share of texts that have a rare word in common, the others at random.

    The two texts of a random pair usually have nothing to do with each other. A student that only sees such pairs
    learns only the low end of the similarity scale.

    Args:
        texts: N texts.
        pairs: How many pairs to draw, and the share with a rare word in common. Few texts, or texts without such words,
            give fewer.

    Yields:
        Indices of both texts, and whether they were drawn for a rare word in common.
    """
    if len(texts) < 2:
        return
    places = defaultdict[str, list[int]](list)
    words = [list(dict.fromkeys(_WORD.findall(text.lower()))) for text in texts]
    for number, own in enumerate(words):
        for word in own:
            places[word].append(number)
    most = max(2, min(_COMMON, int(_COMMON_SHARE * len(texts))))
    count = len(texts) if pairs.count is None else pairs.count
    random, drawn = generator(pairs.seed, "transfer/pairs"), set[tuple[int, int]]()
    wanted_near, found_near = round(count * pairs.near), 0
    for _ in range(_ATTEMPTS * count):
        if len(drawn) >= count:
            return
        first, is_near = int(random.integers(len(texts))), found_near < wanted_near
        shared = [word for word in words[first] if 2 <= len(places[word]) <= most] if is_near else []
        if shared:
            rarest = sorted(shared, key=lambda word: (len(places[word]), word))[:_RAREST]
            group = places[rarest[int(random.integers(len(rarest)))]]
            second = group[int(random.integers(len(group)))]
        else:
            second, is_near = int(random.integers(len(texts))), False
        pair = (first, second)
        if first == second or pair in drawn or pair[::-1] in drawn:
            continue
        drawn.add(pair)
        found_near += is_near
        yield first, second, is_near
