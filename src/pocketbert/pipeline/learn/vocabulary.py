"""The student's vocabulary in a run: chosen on training rows, judged on held-out rows, and taken out of the trained student."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel

from pocketbert.core.disk.files import read_json, write_json
from pocketbert.core.families import family_of
from pocketbert.core.host.progress import say
from pocketbert.core.models.folder import ModelFolder
from pocketbert.core.predict.tokenization import Encoded, TextTokenizer
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.recipe.student import VocabularySection
from pocketbert.core.tasks import LabelKind
from pocketbert.pipeline.learn.data import RunData
from pocketbert.pipeline.learn.finishing import Finished, TrainingJob
from pocketbert.pipeline.run_folder import Places

if TYPE_CHECKING:
    from pocketbert.distill.training.data import TrainData
    from pocketbert.distill.vocabulary import Coverage, Kept

FILE_NAME = "kept.json"
SMALLER = 8
"""Smaller vocabularies that rows are split by; see `pocketbert.distill.vocabulary.sample`."""
_ALL = 1 << 20
"""No row is cut: a piece behind the longest input is a piece of the text as well."""


class KeptFile(BaseModel):
    """The pieces that the student keeps; ``kept.json`` next to its tokenizer.

    Attributes:
        before: Number of pieces of the teacher's vocabulary.
        ids: Their ids there, ascending; the new id of a piece is its place here.
        rows: Held-out rows that the choice was judged on.
        changed: Share of them that are split into other pieces.
        unseen: Share of their pieces that do not stay.
        growth: How much longer they are, as a fraction.
    """

    before: int
    ids: list[int]
    rows: int
    changed: float
    unseen: float
    growth: float

    @property
    def kept(self) -> Kept:
        """The pieces."""
        from pocketbert.distill.vocabulary import Kept

        return Kept(tuple(self.ids), self.before)

    @property
    def note(self) -> str:
        """What a reader of the student's figures must know."""
        return (
            f"vocabulary: {len(self.ids):,} of {self.before:,} pieces are kept; of {self.rows:,} held-out rows "
            f"{self.changed:.1%} are split into other pieces"
        )


def check_vocabulary(model: ModelFolder) -> None:
    """Refuse a tokenizer whose pieces cannot be removed, before anything is trained.

    Raises:
        InputError: With the reason.
    """
    from pocketbert.distill.vocabulary import read_tokenizer

    read_tokenizer(model.tokenizer_folder)


def make_vocabulary(recipe: Recipe, model: ModelFolder, data: RunData, at: Places) -> Sequence[str]:
    """Choose the pieces that the student keeps, write its tokenizer, and judge both on rows that took no part in the choice.

    Args:
        recipe: Its section ``student.vocabulary``.
        model: The teacher, whose vocabulary is pruned.
        data: Training rows choose, the others judge.
        at: Where the tokenizer goes.

    Returns:
        What is over its limit.
    """
    from pocketbert.distill.vocabulary import (
        choose,
        count_pieces,
        coverage,
        pruned_config,
        read_tokenizer,
        write_pruned,
    )

    assert recipe.student is not None
    section = recipe.student.vocabulary
    assert section is not None
    source = model.tokenizer_folder
    whole = TextTokenizer(source, _ALL, padding_side=model.family.padding_side)
    counts = count_pieces(_rows(data, whole, lambda name: name == "train"))
    content = read_tokenizer(source)
    kept = choose(content, model.config, counts, section.at_least, section.top)
    size = model.family.config_names.get("vocab_size", "vocab_size")
    write_pruned(source, pruned_config(model.config, kept, size), kept, at.output)
    own = TextTokenizer(at.output, _ALL, padding_side=model.family.padding_side)
    held = [_rows(data, tokenizer, lambda name: name != "train") for tokenizer in (whole, own)]
    found = coverage(held[0], held[1], kept, whole.special_ids)
    write_json(
        at.output / FILE_NAME, KeptFile(before=kept.original_size, ids=[*kept.kept_ids], **vars(found)).model_dump()
    )
    used = len(counts)
    say(f"  {len(kept.kept_ids):,} of {kept.original_size:,} pieces are kept ({used:,} are in the training rows)")
    say(f"  {found.sentence}")
    return _failures(found, section)


def _rows(data: RunData, tokenizer: TextTokenizer, wanted: Callable[[str], bool]) -> list[Encoded]:
    """The texts of some splits, whole."""
    texts = [e.input for name, split in data.splits.items() if wanted(name) for e in split.examples]
    return tokenizer.encode(texts)


def _failures(found: Coverage, section: VocabularySection) -> list[str]:
    """What is over its limit, a sentence each, and why that matters."""
    checks = {
        "max_unseen": (found.unseen, section.max_unseen, "of the pieces of held-out rows are not kept"),
        "max_changed": (found.changed, section.max_changed, "of the held-out rows are split into other pieces"),
        "max_growth": (found.growth, section.max_growth, "is the growth of held-out rows in tokens"),
    }
    out = [
        f"student.vocabulary.{key}: {value:.1%} {what}, at most {limit:.1%} is allowed"
        for key, (value, limit, what) in checks.items()
        if value > limit
    ]
    if out:
        out.append(
            "The training rows do not cover the texts that the student will read: words that they do not have fall into pieces it "
            "never learnt. Give more training rows, keep more pieces (student.vocabulary.top), or leave student.vocabulary out."
        )
    return out


def read_kept(folder: Path) -> KeptFile:
    """Read what `make_vocabulary` chose."""
    return KeptFile.model_validate(read_json(folder / FILE_NAME))


def with_vocabulary(made: Finished, folder: Path) -> Finished:
    """Take the pieces that do not stay out of a trained student, and read the data as it does from now on.

    Args:
        made: The student with the whole vocabulary.
        folder: What `make_vocabulary` wrote.
    """
    from pocketbert.distill.vocabulary import pruned_table

    file = read_kept(folder)
    family = family_of(made.model.config.model_type)
    model = pruned_table(made.model, family, file.kept)
    tokenizer = TextTokenizer(folder, made.length, padding_side=family.padding_side)
    # thresholds of several labels are chosen on other rows; all else is read of evaluation rows only
    names = () if made.data.head.task.labels is LabelKind.NAMES else ("eval",)
    data, source = made.data.read_by(tokenizer, *names), replace(made.source, path=folder)
    return replace(made, model=model, source=source, data=data, notes=(*made.notes, file.note))


def resplit_rows(
    job: TrainingJob, rows: TrainData, section: VocabularySection, folder: Path, purpose: str
) -> TrainData:
    """Return training rows that the student reads with the pieces that it keeps, and now and then in smaller ones.

    Args:
        job: Tokenizer, data and work folder of the stage.
        rows: The rows as the teacher reads them.
        section: How many rows are split, among others.
        folder: What `make_vocabulary` wrote.
        purpose: What is trained; keys the random choices.
    """
    from pocketbert.distill.training.data import TrainSet
    from pocketbert.distill.vocabulary import (
        Reader,
        ResplitSet,
        choose,
        count_pieces,
        read_tokenizer,
        sample,
        write_pruned,
    )

    assert isinstance(rows, TrainSet), "tasks that are learnt token by token are refused"
    side, config = job.source.family.padding_side, job.source.config
    content, encoded = read_tokenizer(job.source.tokenizer_folder), rows.rows.encoded
    own = Reader(TextTokenizer(folder, job.length, padding_side=side), read_kept(folder).kept)
    smaller = list[Reader]()
    for number in range(SMALLER if section.resplit else 0):
        some = sample(len(encoded), number, job.recipe.seed)
        counts = count_pieces([encoded[i] for i in some])
        kept = choose(content, config, {i: count for i, count in counts.items() if i in own.selection.new_ids})
        place = job.work / "smaller-vocabularies" / str(number)
        place.mkdir(parents=True, exist_ok=True)
        write_pruned(job.source.tokenizer_folder, config, kept, place)
        smaller.append(Reader(TextTokenizer(place, job.length, padding_side=side), kept))
    texts = [e.input for e in rows.rows.examples]
    return ResplitSet(
        rows, texts, own if section.at_least > 1 else None, smaller, section.resplit, job.recipe.seed, purpose
    )
