"""Multiply training rows by copies in which words are replaced.

`augment_file` writes the rows of a recipe with their copies to a file. In a run, `write_copies` is a step that writes the copies for all
stages, and `augmented_set` returns rows and copies as a stage learns from them. `check_augmentable` refuses, before anything is
trained, tasks whose labels would not fit the changed text. Words are replaced by `pocketbert.distill.augment`.
"""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from pocketbert.core.data.column_names import BadRows
from pocketbert.core.data.files import read_rows
from pocketbert.core.disk.destination import remove_new_folders_on_error, resolve_output_file
from pocketbert.core.disk.files import open_atomic, sha256_file, sha256_json
from pocketbert.core.disk.workspace import open_workspace
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.host.system import installed_versions
from pocketbert.core.models.checkpoints import load_model, require_torch
from pocketbert.core.models.folder import ModelFolder
from pocketbert.core.predict.examples import Example
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.data import AugmentSection
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.pipeline.learn.data import RunData, load_data
from pocketbert.pipeline.reference import open_teacher

if TYPE_CHECKING:
    from pocketbert.distill.augment import Augmenter, CopyStore
    from pocketbert.distill.training.data import PackedSet

_TASKS_AUGMENTED = (
    TaskName.TEXT_CLASSIFICATION,
    TaskName.MULTI_LABEL,
    TaskName.REGRESSION,
    TaskName.FEATURE_EXTRACTION,
)
"""Tasks whose labels belong to the whole text."""
_WHY_NOT = {
    TaskName.TOKEN_CLASSIFICATION: "its labels belong to words, and another word may have another label",
    TaskName.QUESTION_ANSWERING: "its labels are words of the context, which would be replaced",
    TaskName.MULTIPLE_CHOICE: "a replaced word may make another choice right, or two",
    TaskName.FILL_MASK: "its text hides other words at every step as it is",
}
_VERSION = 2  # since each text of a pair has its own copies
"""Part of the key of the copies on disk; a change of the algorithm raises it."""
_AT_ONCE = 4096
"""Rows that are tokenized together."""
_SUFFIXES = (".jsonl", ".jsonl.gz")


@dataclass
class AugmentCounts:
    """The numbers of training rows, of their augmented copies, and of copies left out.

    Attributes:
        rows: Number of training rows, all of which are kept.
        copies: Number of copies that were added.
        left_out: Number of copies left out because they equal rows of the evaluation or held-out data.
    """

    rows: int = 0
    copies: int = 0
    left_out: int = 0

    @property
    def line(self) -> str:
        """The counts in words."""
        left = f"; {self.left_out:,} copies left out that are evaluation or held-out rows" if self.left_out else ""
        return f"{self.rows:,} rows and {self.copies:,} copies of them{left}"


def check_augmentable(recipe: Recipe, model: ModelFolder) -> None:
    """Check that a recipe's training rows can be augmented by replacing words.

    Args:
        recipe: The recipe.
        model: The model that it starts from: its masked-language-model head proposes words if the recipe asks for that.

    Raises:
        InputError: If the labels would not fit the changed text, there are no training rows, or a setting needs
            something that is missing; listing every problem.
    """
    section, problems = recipe.data.augment or AugmentSection(), []
    if recipe.task not in _TASKS_AUGMENTED:
        problems.append(
            Problem(
                "data.augment",
                f"{recipe.task} cannot be augmented: {_WHY_NOT[recipe.task]}; allowed: {', '.join(_TASKS_AUGMENTED)}.",
                "Remove data.augment, and augmented: true from the stages.",
            )
        )
    if recipe.data.train is None:
        problems.append(
            Problem(
                "data.train",
                "the recipe has none, so there is nothing to augment.",
                "Add train: {path: rows.jsonl} to data.",
            )
        )
    if section.masked_lm and not _has_masked_lm(model):
        kinds = ", ".join(map(str, model.config.get("architectures") or ["nothing that is named"]))
        problems.append(
            Problem(
                "data.augment.masked_lm",
                f"'{model.title}' has no masked-language-model head (it was saved as {kinds}).",
                "Leave masked_lm out, or start from a checkpoint with its pre-training head.",
            )
        )
    if section.vectors is not None and not section.vectors.is_file():
        problems.append(
            Problem("data.augment.vectors", f"no file '{section.vectors}'.", "Give a text file of word vectors.")
        )
    if problems:
        raise InputError(problems)


def augment_file(recipe: Recipe, destination: Path, overwrite: bool = False) -> AugmentCounts:
    """Write the training rows of a recipe to a JSON Lines file, each followed by its copies with replaced words.

    The rows are those that a run trains on: held-out rows and rows that also occur in the evaluation data are left out.
    So train on the file with ``data.holdout: 0``, because a row held out of it would have copies in training.

    If a call was stopped, the next one continues it and writes the same bytes as without the stop.

    Args:
        recipe: The recipe, of which data, teacher, seed and `data.augment` are used. If it has no `data.augment`, the
            defaults of that section are used.
        destination: The file, ``.jsonl`` or ``.jsonl.gz``.
        overwrite: Whether `destination` may be replaced.

    Returns:
        The numbers of rows and copies.

    Raises:
        InputError: Listing every problem.
    """
    require_torch()
    problems, source = list[Problem](), recipe.data.train
    read = [s.path for s in (source, recipe.data.eval) if s is not None and s.path is not None]
    try:
        destination = resolve_output_file(destination, overwrite, *map(Path, read))
    except InputError as error:
        problems += error.problems
    if not destination.name.endswith(_SUFFIXES):
        problems.append(Problem(str(destination), f"unknown kind of file; allowed: {', '.join(_SUFFIXES)}."))
    if problems:
        raise InputError(problems)
    model = open_teacher(recipe)
    check_augmentable(recipe, model)
    assert source is not None
    data = load_data(recipe, model)
    examples, counts = data.splits["train"].examples, AugmentCounts()
    with (
        remove_new_folders_on_error(destination),
        open_workspace(destination, resume="augment") as place,
        _open_jsonl(destination) as stream,
    ):
        store = _make_copies(recipe, model, examples, place.path / "copies")
        groups = _add_copies(examples, store, data, counts)
        group = next(groups, None)
        # the default column counts as named, as where the rows were read to train on
        named = source.model_copy(update={"text": source.text})
        for number, row in read_rows(named, BadRows(source.title)):
            if group is None or number != group[0].row:
                continue  # a row that is not trained on
            for example in group:
                changed: dict[str, str | None] = {source.text: example.text}
                if source.text_pair is not None:
                    changed[source.text_pair] = example.pair
                stream.write(_format_json_line(source.title, number, {**row, **changed}))
            group = next(groups, None)
    return counts


@contextmanager
def _open_jsonl(destination: Path) -> Iterator[IO[bytes]]:
    """Open a byte stream to a new file, gzipped if its name ends in ``.gz``.

    The file appears at `destination` only if the `with` block ends without an error.
    """
    with open_atomic(destination) as raw:
        if destination.suffix == ".gz":
            with gzip.GzipFile("", "wb", 6, raw, mtime=0) as packed:
                yield cast("IO[bytes]", packed)
        else:
            yield raw


def _format_json_line(title: str, number: int, row: dict[str, Any]) -> bytes:
    """Return a row as a UTF-8 line of JSON.

    Args:
        title: Name of the row's file in errors.
        number: Number of the row in errors.
        row: The row's cells by column.

    Raises:
        InputError: If a column holds what JSON cannot, such as dates and bytes of a Parquet file.
    """
    try:
        return (json.dumps(row, ensure_ascii=False) + "\n").encode()
    except (TypeError, ValueError) as error:
        what = f"a column cannot be written as JSON: {error}."
        raise InputError(Problem(f"{title}:{number}", what, "Leave that column out.")) from error


def write_copies(recipe: Recipe, model: ModelFolder, data: RunData, work: Path, destination: Path) -> None:
    """Write copies of a run's training rows with replaced words to a folder, for the training stages that use them.

    Args:
        recipe: The recipe.
        model: The model that it starts from: its masked-language-model head proposes words, and so do its embeddings unless
            the recipe names a file of word vectors.
        data: The run's rows.
        work: Folder for unfinished work. Copies that it holds already, from a run that was stopped, are not made again.
        destination: An existing folder to fill.
    """
    check_augmentable(recipe, model)
    store = _make_copies(recipe, model, data.splits["train"].examples, work / "copies")
    for number in range(store.parts):
        shutil.copyfile(store.part(number), destination / store.part(number).name)


def augmented_set(
    recipe: Recipe,
    model: ModelFolder,
    data: RunData,
    tokenizer: TextTokenizer,
    work: Path,
    written: Path | None = None,
    copies_only: bool = False,
) -> tuple[PackedSet, str]:
    """Return the tokenized training rows, each followed by its copies with replaced words, and a text on their number.

    Copies are made of ``data.splits["train"]`` only, and a copy that equals a held-out or evaluation row is left out.
    If there are several processes, one makes the copies and the others read them.

    Args:
        recipe: The recipe.
        model: The model that it starts from; it proposes words as in `write_copies`.
        data: The run's rows.
        tokenizer: The tokenizer of the model that reads the rows.
        work: A folder for the copies. Those that it holds are not made again.
        written: Folder that `write_copies` filled; None to make the copies in `work`.
        copies_only: Whether the rows themselves are left out.
    """
    from pocketbert.distill.augment import CopyStore
    from pocketbert.distill.training.data import PackedSet

    check_augmentable(recipe, model)
    assert recipe.data.train is not None
    title, labelled = recipe.data.train.title, data.needs_labels("train")
    examples, counts = data.splits["train"].examples, AugmentCounts()
    store = CopyStore(written, "", len(examples)) if written else _make_copies(recipe, model, examples, work)
    portions = (
        data.head.prepare(portion, tokenizer, title, labelled)
        for portion in _group_portions(
            group[1:] if copies_only else group for group in _add_copies(examples, store, data, counts)
        )
    )
    return PackedSet(portions, tokenizer), f"augmented: {counts.line}"


def _group_portions(groups: Iterable[list[Example]]) -> Iterator[list[Example]]:
    """Join groups of rows (a row with its copies) to lists of about `_AT_ONCE` rows. A group is never divided."""
    portion: list[Example] = []
    for group in groups:
        portion += group
        if len(portion) >= _AT_ONCE:
            yield portion
            portion = []
    if portion:
        yield portion


def _add_copies(
    examples: Sequence[Example], store: CopyStore, data: RunData, counts: AugmentCounts
) -> Iterator[list[Example]]:
    """Yield each row together with its copies as a list, and count rows and copies in `counts`.

    Copies that equal an evaluation or held-out row are left out.
    """
    held_out = {e.digest for name, rows in data.splits.items() if name != "train" for e in rows.examples}
    for example, copies in zip(examples, store.read(), strict=True):
        group = [example]
        for texts in copies:
            # a second text that was not given to the store is kept as it is
            copy = replace(example, text=texts[0], pair=texts[1] if len(texts) > 1 else example.pair)
            if copy.digest in held_out:
                counts.left_out += 1
            else:
                group.append(copy)
        counts.rows += 1
        counts.copies += len(group) - 1
        yield group


def _make_copies(recipe: Recipe, model: ModelFolder, examples: Sequence[Example], work: Path) -> CopyStore:
    """Open the store of augmented rows (copies with replaced words) in a folder, make the copies that it lacks, and return it.

    Args:
        recipe: The recipe; `data.augment` says how words are replaced.
        model: The recipe's model. Its masked-LM head or its embeddings propose words, the embeddings not if there is a file
            of word vectors.
        examples: The rows to copy.
        work: The folder. Copies in it are used if they were made of the same rows with the same settings.
    """
    from pocketbert.distill.augment import CopyStore, SourceRow
    from pocketbert.distill.text.tokenizer import tokenizer_digest

    section = recipe.data.augment or AugmentSection()
    guesses = _has_masked_lm(model) if section.masked_lm is None else section.masked_lm
    # a vector is of the first text only, if not all rows are pairs
    first_only = recipe.task is TaskName.FEATURE_EXTRACTION and any(e.pair is None for e in examples)
    rows = [SourceRow(e.row, (e.text,) if first_only or e.pair is None else (e.text, e.pair)) for e in examples]
    key = sha256_json(
        {
            "version": _VERSION,
            "settings": section.model_dump(mode="json", exclude={"vectors"}),
            "seed": recipe.seed,
            "masked": guesses,
            "vectors": sha256_file(section.vectors) if section.vectors else None,
            "weights": model.sha256,
            "tokenizer": tokenizer_digest(model.tokenizer_folder),
            "rows": sha256_json([[r.number, *r.texts] for r in rows]),
            "with": installed_versions(("torch", "transformers", "tokenizers", "numpy")),
        }
    )
    store = CopyStore(work, key, len(rows))
    store.fill(rows, lambda: _load_augmenter(section, recipe.seed, model, guesses))
    return store


def _load_augmenter(section: AugmentSection, seed: int, model: ModelFolder, guesses: bool) -> Augmenter:
    """Return an augmenter, which replaces words by words with near vectors or by the predictions of a masked language model.

    Args:
        section: The recipe's settings: how many words are replaced, and the file of word vectors, if it names one.
        seed: Seed of the random choices.
        model: The model whose embeddings are the word vectors if no file is named.
        guesses: Whether the model's masked-language-model head predicts words too.
    """
    import torch

    from pocketbert.distill.augment import Augmenter, MaskedWords
    from pocketbert.distill.word_vectors import EmbeddingVectors, Neighbours, WordReader, WordVectors, read_word_vectors

    reader = WordReader(model.tokenizer_folder, model.family.tokenizer)
    loaded: Any = None
    if guesses or section.vectors is None:
        loaded = load_model(model, TASKS[TaskName.FILL_MASK if guesses else TaskName.FEATURE_EXTRACTION])
    vectors: WordVectors
    if section.vectors is not None:
        vectors = read_word_vectors(section.vectors)
    else:
        vectors = EmbeddingVectors(loaded.get_input_embeddings().weight.detach().numpy(), reader)
    masked = None
    if guesses:
        mask_id = TextTokenizer(model.tokenizer_folder, model.positions).mask_id
        if mask_id is None:
            what = f"the tokenizer of '{model.title}' has no mask token."
            raise InputError(Problem("data.augment.masked_lm", what, "Set masked_lm: false."))
        loaded = loaded.to("cuda" if torch.cuda.is_available() else "cpu")
        masked = MaskedWords(loaded, model.family, reader, mask_id, model.positions, section.candidates)
    return Augmenter(reader, section, seed, Neighbours(vectors, section.candidates), masked)


def _has_masked_lm(model: ModelFolder) -> bool:
    return model.has_head("ForMaskedLM") or model.has_head("ForPreTraining")
