"""Prune the student's vocabulary in a run.

`vocabulary_step` returns the step that chooses the pieces that the student keeps on the training rows, writes its tokenizer, and judges both
on rows that took no part in the choice. Stages train with the whole vocabulary on `resplit_rows`, and `with_vocabulary` removes the
other pieces from the finished student. `check_own_tokens` refuses what a student with a vocabulary of its own cannot learn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel

from pocketbert.core.disk.files import read_json, write_json
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import family_of
from pocketbert.core.host.progress import print_note
from pocketbert.core.models.folder import ModelFolder, open_model_folder
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.recipe.stages import TaskStage
from pocketbert.core.recipe.student import VOCABULARY_LIMITS, VocabularySection
from pocketbert.core.tasks import LabelKind, Level
from pocketbert.pipeline.learn.data import RunData
from pocketbert.pipeline.learn.finishing import EVAL, TrainedModel
from pocketbert.pipeline.learn.transfer import TRANSFER, mixes_transfer, read_transfer
from pocketbert.pipeline.learn.validation import VALIDATION
from pocketbert.pipeline.run_folder import Step

if TYPE_CHECKING:
    from pocketbert.distill.training.data import TrainData
    from pocketbert.distill.vocabulary import Coverage, PieceSelection

VOCABULARY = "vocabulary"
"""Name of the step, and of its folder in the run folder."""
_KEPT_FILE = "kept.json"
_SMALLER = 8
"""Smaller vocabularies that rows are split by; see `pocketbert.distill.vocabulary.sample_rows`."""
_WHOLE_TEXT = 1 << 20
"""Longest input in tokens while pieces are counted: a piece behind the longest input of the run is a piece of the text as well."""


class _KeptFile(BaseModel):
    """Content of ``kept.json`` next to the student's tokenizer: the pieces (subword tokens) that the student keeps.

    Attributes:
        before: Size of the teacher's vocabulary.
        ids: Ids of the kept pieces in the teacher's vocabulary, ascending. The new id of a piece is its index in this
            list.
        rows: Number of held-out rows that the choice was judged on.
        changed: Fraction of these rows that are split into other pieces.
        unseen: Fraction of the pieces of these rows that are not kept.
        growth: Increase of the number of tokens of these rows, as a fraction.
    """

    before: int
    ids: list[int]
    rows: int
    changed: float
    unseen: float
    growth: float


def read_kept(folder: Path) -> tuple[_KeptFile, PieceSelection]:
    """Read ``kept.json``, which the step that prunes the vocabulary wrote; return its content and the kept pieces."""
    from pocketbert.distill.vocabulary import PieceSelection

    file = _KeptFile.model_validate(read_json(folder / _KEPT_FILE))
    return file, PieceSelection(tuple(file.ids), file.before)


def check_vocabulary(model: ModelFolder) -> None:
    """Check that pieces (subword tokens) can be removed from the model's tokenizer.

    Raises:
        InputError: If its kind does not allow it, with the reason.
    """
    from pocketbert.distill.vocabulary import read_tokenizer_json

    read_tokenizer_json(model.tokenizer_folder)


def open_start(recipe: Recipe) -> ModelFolder | None:
    """Open the model folder that `student.model` names, from which the student starts; None if the recipe names none."""
    student = recipe.student
    if student is None or student.model is None:
        return None
    return open_model_folder(student.model, student.revision, "student.model")


def has_own_tokens(start: ModelFolder, teacher: ModelFolder) -> bool:
    """Return whether a model that a student starts from has another vocabulary than the teacher."""
    from pocketbert.distill.text.tokenizer import read_vocabulary

    return read_vocabulary(start.tokenizer_folder) != read_vocabulary(teacher.tokenizer_folder)


def check_own_tokens(recipe: Recipe, teacher: ModelFolder, start: ModelFolder, length: int) -> None:
    """Check that a student can learn in all stages although its vocabulary may be another one than the teacher's.

    Outputs for whole texts can be learnt then; states, attention and outputs for single tokens cannot.

    Args:
        recipe: The recipe.
        teacher: The teacher.
        start: The model of `student.model`.
        length: Longest input in tokens.

    Raises:
        InputError: Naming each stage and signal that needs equal tokens, a pruned vocabulary, and a length that the
            student does not take.
    """
    if not has_own_tokens(start, teacher):
        return
    by_token, problems = recipe.task_row.level is Level.TOKEN, list[Problem]()
    about_tokens = ("hidden", "attention", *(("logits", "labels") if by_token else ()))
    why = f"and '{start.title}' (student.model) has another vocabulary than the teacher '{teacher.title}'."
    by_column = f"Answer the rows with `pocketbert teach`, and learn from the column ({'tasks.NAME' if recipe.tasks else 'data.train'}.teacher)."
    if not recipe.asks_model:
        by_column = "Leave out the section teacher: columns teach, and the student starts from student.model."
    for number, stage in enumerate(recipe.distill):
        key = f"distill.{number}"
        if isinstance(stage, TaskStage):
            for name in [name for name in about_tokens if getattr(stage.signals, name)]:
                fix = f"Set {name}: 0." if name in ("hidden", "attention") else by_column
                problems.append(Problem(f"{key}.signals.{name}", f"is about single tokens, {why}", fix))
        elif stage.general or not stage.by_text or by_token:
            fix = by_column if by_token else "Set method: task, with signals: {logits: 1, hidden: 0, attention: 0}."
            problems.append(Problem(key, f"method {stage.method} is about single tokens, {why}", fix))
    if recipe.prunes_vocabulary:
        problems.append(Problem("student.vocabulary", f"is a part of the teacher's vocabulary, {why}", "Leave it out."))
    if length > start.positions:
        what = f"{length} tokens, '{start.title}' (student.model) takes at most {start.positions}."
        problems.append(Problem("data.max_length", what, f"Set it to {start.positions} or less."))
    if problems:
        raise InputError(problems)


def vocabulary_step(recipe: Recipe, model: ModelFolder, read_data: Callable[[], RunData], transfer: Path) -> Step:
    """Return the step that prunes the student's vocabulary: it chooses the subword pieces to keep.

    Args:
        recipe: The recipe.
        model: The teacher.
        read_data: Function that returns the run's rows.
        transfer: Output folder of the step that writes the texts of `data.transfer`; not read if the recipe has none beside rows.
    """
    assert recipe.student is not None
    assert recipe.student.vocabulary is not None
    pruned = recipe.student.vocabulary
    section, texts = pruned.model_dump(mode="json"), transfer if mixes_transfer(recipe) else None
    return Step(
        name=VOCABULARY,
        title="the student's vocabulary",
        output=VOCABULARY,
        settings={"student": {"vocabulary": {k: v for k, v in section.items() if k in ("at_least", "top")}}},
        contents={"teacher.model": model.digest},
        gates={"student": {"vocabulary": {k: v for k, v in section.items() if k in VOCABULARY_LIMITS}}},
        needs=("data", *([TRANSFER] if texts is not None else [])),
        make=lambda at: make_vocabulary(pruned, model, read_data(), at.output, texts),
        libraries=("tokenizers",),
    )


def make_vocabulary(
    section: VocabularySection, model: ModelFolder, data: RunData, output: Path, transfer: Path | None = None
) -> Sequence[str]:
    """Choose the subword pieces to keep by the rows that the student learns from, write the pruned tokenizer, judge it on other rows.

    Args:
        section: The recipe's `student.vocabulary`.
        model: The teacher, whose vocabulary is pruned.
        data: The run's rows.
        output: Folder of the tokenizer.
        transfer: Folder of the texts without labels that the student learns from, too; None without them.

    Returns:
        A line for each limit that is exceeded, and one with advice; empty if none is.
    """
    from pocketbert.distill.vocabulary import (
        count_pieces,
        measure_coverage,
        prune_config,
        read_tokenizer_json,
        select_pieces,
        write_pruned_tokenizer,
    )

    source, side = model.tokenizer_folder, model.family.padding_side
    training = data.splits["train"].examples if "train" in data.splits else []
    held_out = [t for name, split in data.splits.items() if name != "train" for e in split.examples for t in e.inputs]
    original = TextTokenizer(source, _WHOLE_TEXT, padding_side=side)
    counts = Counter[int]()
    for portion in (training, *read_transfer(transfer, data.unlabelled)):
        counts += count_pieces(original.encode([text for e in portion for text in e.inputs]))
    kept = select_pieces(read_tokenizer_json(source), model.config, counts, section.at_least, section.top)
    size_key = model.family.config_names.get("vocab_size", "vocab_size")
    write_pruned_tokenizer(source, prune_config(model.config, kept, size_key), kept, output)
    pruned = TextTokenizer(output, _WHOLE_TEXT, padding_side=side)
    result = measure_coverage(original.encode(held_out), pruned.encode(held_out), kept, original.special_ids)
    write_json(
        output / _KEPT_FILE, _KeptFile(before=kept.original_size, ids=[*kept.kept_ids], **vars(result)).model_dump()
    )
    print_note(
        f"  {len(kept.kept_ids):,} of {kept.original_size:,} pieces are kept ({len(counts):,} are in the rows to learn from)"
    )
    print_note(f"  {result.sentence}")
    return _list_exceeded_limits(result, section)


def _list_exceeded_limits(result: Coverage, section: VocabularySection) -> list[str]:
    """Return a sentence for each limit of `student.vocabulary` that is exceeded, and then one with advice; empty if none is."""
    checks = {
        "max_unseen": (result.unseen, section.max_unseen, "of the pieces of held-out rows are not kept"),
        "max_changed": (result.changed, section.max_changed, "of the held-out rows are split into other pieces"),
        "max_growth": (result.growth, section.max_growth, "is the growth of held-out rows in tokens"),
    }
    failures = [
        f"student.vocabulary.{key}: {value:.1%} {what}, at most {limit:.1%} is allowed"
        for key, (value, limit, what) in checks.items()
        if value > limit
    ]
    if failures:
        failures.append(
            "The training rows do not cover the texts that the student will read: words that they do not have fall into pieces it "
            "never learnt. Give more training rows, keep more pieces (student.vocabulary.top), or leave student.vocabulary out."
        )
    return failures


def resplit_rows(
    rows: TrainData, recipe: Recipe, source: ModelFolder, length: int, folder: Path, work: Path, purpose: str
) -> TrainData:
    """Return training rows that are split into the student's pieces, and a share of them by smaller vocabularies.

    Words that the training rows do not have will reach the student in smaller pieces. The smaller vocabularies, which
    split rare training words in the same way, teach it to read these.

    Args:
        rows: The rows, split by the teacher's tokenizer.
        recipe: The recipe, with `student.vocabulary`.
        source: The task's teacher, for its tokenizer.
        length: Longest input in tokens.
        folder: Output folder of the step that prunes the vocabulary.
        work: Folder for the smaller tokenizers.
        purpose: Name of the stage. Each random choice depends on it.
    """
    from pocketbert.distill.training.data import TrainSet
    from pocketbert.distill.vocabulary import (
        PrunedTokenizer,
        ResplitRows,
        count_pieces,
        read_tokenizer_json,
        sample_rows,
        select_pieces,
        write_pruned_tokenizer,
    )

    assert recipe.student is not None
    section = recipe.student.vocabulary
    assert section is not None
    assert isinstance(rows, TrainSet), "tasks that are learnt token by token are refused"
    side = source.family.padding_side
    tokenizer_json, encoded = read_tokenizer_json(source.tokenizer_folder), rows.rows.encoded
    _, student_pieces = read_kept(folder)
    student = PrunedTokenizer(TextTokenizer(folder, length, padding_side=side), student_pieces)
    smaller = list[PrunedTokenizer]()
    for number in range(_SMALLER if section.resplit else 0):
        counts = count_pieces([encoded[i] for i in sample_rows(len(encoded), number, recipe.seed)])
        kept_counts = {i: count for i, count in counts.items() if i in student_pieces.new_ids}
        pieces = select_pieces(tokenizer_json, source.config, kept_counts)
        destination = work / "smaller-vocabularies" / str(number)
        destination.mkdir(parents=True, exist_ok=True)
        write_pruned_tokenizer(source.tokenizer_folder, source.config, pieces, destination)
        smaller.append(PrunedTokenizer(TextTokenizer(destination, length, padding_side=side), pieces))
    texts = [e.input for e in rows.rows.examples]
    own = student if section.at_least > 1 else None
    return ResplitRows(rows, texts, own, smaller, section.resplit, recipe.seed, purpose)


def with_vocabulary(trained: TrainedModel, folder: Path) -> TrainedModel:
    """Return the trained student without the embeddings of dropped pieces, with rows split by the pruned tokenizer.

    Of the rows only those of eval and validation are kept, or all if training rows are read again: for multi-label, whose thresholds are
    chosen on them, and for a column of answers. `folder` is the output folder of the step that prunes the vocabulary.
    """
    from pocketbert.distill.vocabulary import prune_embeddings

    file, pieces = read_kept(folder)
    family = family_of(trained.model.config.model_type)
    model = prune_embeddings(trained.model, family, pieces)
    tokenizer = TextTokenizer(folder, trained.length, padding_side=family.padding_side)
    reads_training_rows = trained.data.head.task.labels is LabelKind.NAMES or trained.recipe.column is not None
    names: Iterable[str] = () if reads_training_rows else (EVAL, VALIDATION)
    note = (
        f"vocabulary: {len(file.ids):,} of {file.before:,} pieces are kept; of {file.rows:,} held-out rows "
        f"{file.changed:.1%} are split into other pieces"
    )
    return replace(
        trained,
        model=model,
        source=replace(trained.source, path=folder),
        data=trained.data.read_by(tokenizer, *names),
        notes=(*trained.notes, note),
    )
