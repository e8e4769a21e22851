"""Plain text for general stages: tokenize it into corpora, and give it to a stage with its teacher.

`prepare_corpora` tokenizes the sources of a recipe for several runs, `write_corpora` those of one run; `open_corpora` mixes them by their
shares. `general_head_task` and `general_teacher` decide which heads teacher and student of the general stages have, `general_rows` returns the
masked text of a stage, and `copy_general_weights` copies the weights that general stages trained into the task's student.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.data.column_names import BadRows
from pocketbert.core.data.files import read_rows
from pocketbert.core.data.source import DataSource
from pocketbert.core.disk.destination import remove_new_folders_on_error, resolve_output_folder
from pocketbert.core.disk.files import path_bytes, read_json, sha256_json
from pocketbert.core.disk.ownership import remove
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import Family, Objective
from pocketbert.core.host.processes import current_process, direct_processes, exchange, follow_orders, order_training
from pocketbert.core.host.progress import print_note, set_quiet
from pocketbert.core.models.checkpoints import load_model
from pocketbert.core.models.folder import ModelFolder
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.data import CorpusSection, CorpusSettings, CorpusSource
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.recipe.sections import GeneralText
from pocketbert.core.tasks import TASKS, Task, TaskName
from pocketbert.core.types import MaskingKind, SecondSegment
from pocketbert.distill.text.corpus import CORPUS_FILE
from pocketbert.pipeline.reference import open_teacher
from pocketbert.pipeline.run_folder import data_digest
from pocketbert.pipeline.teach.cluster import RayCluster, list_engine_problems

if TYPE_CHECKING:
    from pocketbert.distill.methods.method import Needs
    from pocketbert.distill.text.corpus import TokenRows
    from pocketbert.distill.text.pairs import GeneralSet
    from pocketbert.distill.word_vectors import NearestWords

_Tokens = tuple[NDArray[np.int64], NDArray[np.int64]]
_Cluster = RayCluster[list[str], _Tokens]
_MOST_BAD_ROWS = 1000
"""Bad rows after which a long corpus is read no further."""


# --- corpora ---


def is_prepared(source: CorpusSource) -> bool:
    """Return whether a text source is a folder with an already tokenized corpus."""
    return source.path is not None and (Path(source.path) / CORPUS_FILE).is_file()


def source_digest(source: CorpusSource) -> str | None:
    """Return the SHA-256 of a text source: of a tokenized corpus's description, or of a text file.

    It is None for a file that does not exist and for data of the Hub.
    """
    if is_prepared(source):
        return sha256_json(read_json(Path(str(source.path)) / CORPUS_FILE))
    return data_digest(source)


def prepare_corpora(recipe: Recipe, output: Path, engine: str = "local", workers: int | None = None) -> list[Path]:
    """Tokenize the plain-text sources of a recipe into folders below `output`, for use by several runs.

    Args:
        recipe: The recipe.
        output: The folder.
        engine: ``local`` to tokenize in this process, or in those of a launch; ``ray`` in the processes of a Ray cluster.
        workers: With Ray, number of processes; None for one on each machine.

    Returns:
        A folder for each source; a source that is tokenized already is returned as it is.

    Raises:
        InputError: If the recipe has no corpus, the folder cannot be used, or a text cannot be read. No new files are
            left then.
        MissingBackendError: If Ray is to tokenize, and is not installed.
    """
    if not current_process().main:
        set_quiet(True)
        follow_orders(lambda _: _prepare(recipe, output, None))
    with direct_processes():
        if problems := list_engine_problems(engine, workers):
            raise InputError(problems)
        if recipe.data.corpus is None:
            fix = "Add corpus: {sources: [{path: text.jsonl.gz}]} to data."
            raise InputError(Problem("data.corpus", "the recipe has none.", fix))
        cluster: _Cluster | None = None
        if engine == "ray":
            from pocketbert.distill.text.writer import open_batch_tokenizer

            open_work = partial(open_batch_tokenizer, open_teacher(recipe).tokenizer_folder)
            cluster = RayCluster(open_work, workers, "tokenize", "The same command begins again.", on_gpu=False)
        return _prepare(recipe, output, cluster)


def _prepare(recipe: Recipe, output: Path, cluster: _Cluster | None) -> list[Path]:
    """Tokenize the plain-text sources of a recipe; process 0 calls the others, and removes new folders after an error."""
    from pocketbert.distill.text.writer import CORPUS_CONTENTS

    section, teacher = recipe.data.corpus, open_teacher(recipe)
    assert section is not None
    if not current_process().main:
        return write_corpora(section, teacher.tokenizer_folder, output)
    output = resolve_output_folder(output, teacher.path)
    before = {p.name for p in output.iterdir()} if output.is_dir() else set()
    with remove_new_folders_on_error(output), cluster or nullcontext():
        output.mkdir(parents=True, exist_ok=True)
        order_training("corpora", "")
        try:
            return write_corpora(section, teacher.tokenizer_folder, output, cluster)
        except InputError:
            for number in range(len(section.sources)):
                if (name := f"{number:02d}") not in before:
                    remove(output / name, CORPUS_CONTENTS)
            raise


def write_corpora(
    section: CorpusSection, tokenizer: Path, destination: Path, cluster: _Cluster | None = None
) -> list[Path]:
    """Tokenize each text source into a folder of `destination`, except sources that are tokenized corpora already.

    If a launcher started several processes, all of them call it. Each tokenizes sources of its own, or its part of the
    texts of a source that is divided; the corpora have the bytes that one process would write.

    Args:
        section: Sources and settings.
        tokenizer: Folder of the model whose tokenizer is used.
        destination: Folder for the new corpora; that of process 0 counts.
        cluster: Processes that tokenize in place of this one; None without.

    Returns:
        The corpora's folders in the order of the sources, when all are written.
    """
    from pocketbert.distill.text.writer import tokenize_share, write_corpus

    settings = CorpusSettings.model_validate({k: getattr(section, k) for k in CorpusSettings.model_fields})
    new = [n for n, source in enumerate(section.sources) if not is_prepared(source)]
    plan = exchange(json.dumps([str(destination), _deal_sources([section.sources[n] for n in new])]))[0]
    folder, dealt = json.loads(plan)
    process = current_process()
    for number, rank in sorted(zip(new, dealt, strict=True), key=lambda item: item[1] is not None):
        source, divided = section.sources[number], rank is None
        if divided and not process.main:
            tokenize_share(_read_texts(source), tokenizer)
        elif divided or rank == process.rank:
            written = Path(folder) / f"{number:02d}"
            texts, spread = _read_texts(source), partial(_spread, cluster) if cluster is not None else None
            info = write_corpus(texts, tokenizer, settings, written, divided=divided, spread=spread)
            print_note(f"  {source.title}: {info.texts:,} texts, {info.rows:,} rows, {info.tokens:,} tokens")
    exchange()
    paths = {number: Path(folder) / f"{number:02d}" for number in new}
    return [paths.get(number, Path(str(source.path))) for number, source in enumerate(section.sources)]


def _spread(cluster: _Cluster, batches: Iterator[list[str]]) -> Iterator[_Tokens]:
    """Yield batches of texts in their order, tokenized by the processes of a cluster."""
    return (tokens for _, _, tokens in cluster.map((None, batch) for batch in batches))


def _deal_sources(sources: Sequence[CorpusSource]) -> list[int | None]:
    """Return for each source the rank of the process that tokenizes it; None if all processes divide its texts.

    A whole source is the least work, since every process reads all texts of a divided one. Divided are sources larger
    than one process's part of all bytes, those of unknown size, and those that are too few for another whole one each.
    """
    world = current_process().world
    if world == 1:
        return [0] * len(sources)
    sizes = [float("inf") if s.path is None or not Path(s.path).exists() else path_bytes(Path(s.path)) for s in sources]
    part = sum(size for size in sizes if isfinite(size)) / world
    whole = sorted((n for n, size in enumerate(sizes) if size <= part), key=lambda n: -sizes[n])
    dealt: list[int | None] = [None] * len(sources)
    for place, number in enumerate(whole[: len(whole) // world * world]):
        dealt[number] = place % world
    return dealt


def _read_texts(source: DataSource) -> Iterator[str]:
    """Yield the texts in a source's text column one by one, without holding the whole source in memory.

    Raises:
        InputError: Listing the rows without text, at the end or after 1,000 of them.
    """
    bad = BadRows(source.title)
    for number, row in read_rows(source, bad, [source.text]):
        text = row.get(source.text)
        if isinstance(text, str):
            yield text
        elif text is None:
            bad.missing(number, source.text, row)
        else:
            bad.add(number, f"column '{source.text}' holds {type(text).__name__}, not text.")
        if bad.count > _MOST_BAD_ROWS:
            break
    if bad.count:
        raise InputError(bad.close())


def open_corpora(section: CorpusSection, tokenizer: Path, written: Path, seed: int) -> TokenRows:
    """Open the tokenized corpora of a recipe as one sequence of rows, mixed by the shares of the corpora.

    A single corpus is returned as it is, unless the section sets a number of rows.

    Args:
        section: The recipe's section `data.corpus`: sources and settings.
        tokenizer: Folder of the model whose tokenizer the corpora must have been made with.
        written: Folder that `write_corpora` filled.
        seed: Seed of the run, which decides the mixture.

    Raises:
        InputError: If a corpus is damaged, was made with another tokenizer, or has longer rows than the section allows.
    """
    from pocketbert.distill.text.corpus import mix_corpora, open_corpus
    from pocketbert.distill.text.tokenizer import tokenizer_digest

    digest = tokenizer_digest(tokenizer)
    folders = [Path(str(s.path)) if is_prepared(s) else written / f"{i:02d}" for i, s in enumerate(section.sources)]
    corpora = [open_corpus(folder, digest) for folder in folders]
    longest = max((c.info.settings.length for c in corpora), default=0)
    if longest > section.length:
        what = f"{section.length}, a prepared corpus has rows of up to {longest} tokens."
        fix = f"Set data.corpus.length: {longest}, or prepare the corpus again."
        raise InputError(Problem("data.corpus.length", what, fix))
    shares = [s.share for s in section.sources]
    if len(corpora) == 1 and section.rows is None:
        return corpora[0]
    return mix_corpora(corpora, shares, section.rows or sum(len(c) for c in corpora), seed)


# --- general stages ---


def _list_needs(recipe: Recipe) -> list[Needs]:
    """Return, for each general stage (training on plain text), the teacher heads and outputs that its method needs."""
    from pocketbert.distill.methods.table import find_method

    stages = {f"distill.{n}": stage for n, stage in enumerate(recipe.distill) if stage.general}
    return [find_method(stage).needs(stage, key) for key, stage in stages.items()]


def general_head_task(recipe: Recipe) -> Task:
    """Return the task whose heads teacher and student get in the stages that train on plain text (general stages)."""
    from pocketbert.distill.methods.method import Heads

    masked_lm = TASKS[TaskName.FILL_MASK]
    pre_training = replace(masked_lm, head="ForPreTraining", auto_class="AutoModelForPreTraining")
    return {
        Heads.ENCODER: TASKS[TaskName.FEATURE_EXTRACTION],
        Heads.WORDS: masked_lm,
        Heads.WORDS_AND_PAIRS: pre_training,
        Heads.TOKENS: pre_training,
    }[max(n.heads for n in _list_needs(recipe))]


def general_teacher(recipe: Recipe, source: ModelFolder) -> Any:
    """Load the pre-trained torch teacher of the stages that train on plain text, with the heads that they need.

    If no stage learns from the teacher's predictions of words, a folder without a masked-LM head is enough. A
    next-sentence head may always be missing.

    Raises:
        InputError: If the folder lacks a head whose predictions a stage learns from.
    """
    from pocketbert.distill.methods.method import Heads

    encoder, masked_lm = TASKS[TaskName.FEATURE_EXTRACTION], TASKS[TaskName.FILL_MASK]
    task, needs = general_head_task(recipe), _list_needs(recipe)
    kinds = [task]
    # outputs of a next-sentence head are not used, only its weights are copied
    if max(n.heads for n in needs) is Heads.WORDS_AND_PAIRS:
        kinds.append(masked_lm)
    if not any(n.words for n in needs) and task is not encoder:
        kinds.append(encoder)
    for kind in kinds[:-1]:
        with suppress(InputError):
            return load_model(source, kind)
    try:
        return load_model(source, kinds[-1])
    except InputError as error:
        raise InputError([*error.problems, *(n.advice for n in needs if n.advice)]) from error


def general_rows(recipe: Recipe, source: ModelFolder, number: int, corpora: Path, teacher: Any) -> GeneralSet:
    """Return the training rows of a stage on plain text, with the masking that the stage sets.

    If the stage asks for pairs, the rows are pairs of segments.

    Args:
        recipe: The recipe.
        source: The pre-trained teacher's folder, for the tokenizer.
        number: Index of the stage in `distill`.
        corpora: Folder of the run's corpora.
        teacher: The loaded teacher, whose embeddings give similar words if the stage names no file of word vectors.

    Raises:
        InputError: If the teacher's family was not pre-trained with such masking or pairs.
    """
    from pocketbert.distill.text.masking import masking_of
    from pocketbert.distill.text.pairs import GeneralSet, pairs_of

    stage, key, seed = recipe.distill[number], f"distill.{number}", recipe.seed
    assert recipe.data.corpus is not None
    assert isinstance(stage, GeneralText)
    _check_objectives(stage, source.family, key)
    tokenizer = TextTokenizer(source.tokenizer_folder, min(recipe.data.corpus.length, source.positions))
    rows = open_corpora(recipe.data.corpus, source.tokenizer_folder, corpora, seed)
    size = len(rows.counts)
    similar = _make_similar_words(stage, source, teacher, size, key) if stage.masking is MaskingKind.SIMILAR else None
    masking = masking_of(stage.masking, rows.counts, tokenizer, seed, key, stage.mask_share, stage.smoothing, similar)
    pairs = pairs_of(tokenizer, size, seed, key, stage.second) if stage.pairs else None
    return GeneralSet(rows, tokenizer, masking, pairs)


def _check_objectives(stage: GeneralText, family: Family, key: str) -> None:
    """Check that a family was pre-trained as a stage trains, if the stage masks by similar words or swaps the segments of pairs.

    Other kinds of masking and of pairs are not checked.

    Raises:
        InputError: Listing every setting of the stage that does not fit.
    """
    chosen = list[tuple[str, str, Objective, str]]()
    if stage.masking is MaskingKind.SIMILAR:
        chosen.append(("masking", stage.masking, Objective.SIMILAR_WORDS, "Set masking: ngram, or whole-word."))
    if stage.pairs and stage.second is SecondSegment.SWAPPED:
        chosen.append(("second", stage.second, Objective.SENTENCE_ORDER, "Set second: elsewhere, or pairs: false."))
    problems = [
        Problem(
            f"{key}.{setting}",
            f"{value}, and {family.title} checkpoints are not trained that way; objectives: {', '.join(family.objectives)}.",
            fix,
        )
        for setting, value, objective, fix in chosen
        if objective not in family.objectives
    ]
    if problems:
        raise InputError(problems)


def _make_similar_words(
    stage: GeneralText, source: ModelFolder, teacher: Any, vocabulary: int, key: str
) -> NearestWords:
    """Build an index of each word's nearest words, by word vectors from a file or else by the teacher's embeddings.

    Args:
        stage: The stage, which may name a file of word vectors.
        source: Folder of the teacher, for the tokenizer.
        teacher: The loaded teacher.
        vocabulary: Number of token ids.
        key: Recipe key of the stage, for errors.
    """
    from pocketbert.distill.training.sharding import whole_tensor
    from pocketbert.distill.word_vectors import (
        EmbeddingVectors,
        NearestWords,
        WordReader,
        WordVectors,
        read_word_vectors,
    )

    reader = WordReader(source.tokenizer_folder, source.family.tokenizer)
    vectors: WordVectors
    if stage.vectors is not None:
        vectors = read_word_vectors(stage.vectors, f"{key}.vectors")
    else:
        table = whole_tensor(teacher.get_input_embeddings().weight.detach()).float().cpu().numpy()
        vectors = EmbeddingVectors(table, reader)
    return NearestWords(vectors, reader, vocabulary)


def copy_general_weights(student: Any, trained: Any, masked_lm: bool) -> None:
    """Copy the encoder that the stages on plain text have trained into a student with the task's head.

    Args:
        student: The student with the task's head, changed in place.
        trained: The student after the stages on plain text.
        masked_lm: Whether the masked-LM head is copied too.

    Raises:
        RuntimeError: If the weights of the two models differ in more than heads that one of them lacks.
    """
    may_differ: tuple[str, ...] = ("cls.seq_relationship.", f"{student.base_model_prefix}.pooler.")
    if not masked_lm:
        student, trained = (getattr(model, model.base_model_prefix, model) for model in (student, trained))
        # an encoder alone has a pooler that some heads do without, and a masked-language model has none
        may_differ = ("pooler.",)
    differences = student.load_state_dict(trained.state_dict(), strict=False)
    names = (*differences.missing_keys, *differences.unexpected_keys)
    if different := [name for name in names if not name.startswith(may_differ)]:
        raise RuntimeError(f"the models differ: {different[:3]}")
