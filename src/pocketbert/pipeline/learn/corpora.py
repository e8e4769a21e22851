"""Plain text for general stages: tokenized once into corpora, mixed when they are read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pocketbert.core.data.files import read_rows
from pocketbert.core.data.source import DataSource
from pocketbert.core.data.tables import BadRows
from pocketbert.core.disk.destination import folder_destination, leaving_nothing
from pocketbert.core.disk.files import read_json
from pocketbert.core.disk.ownership import remove
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import Family, Objective
from pocketbert.core.host.progress import say
from pocketbert.core.models.checkpoints import load_model
from pocketbert.core.models.folder import ModelFolder
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.data import CorpusSection, CorpusSettings, CorpusSource
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.recipe.sections import GeneralText, Stage
from pocketbert.core.tasks import TASKS, Task, TaskName
from pocketbert.core.types import MaskingKind, SecondSegment
from pocketbert.distill.text.corpus import INFO
from pocketbert.pipeline.reference import open_teacher

if TYPE_CHECKING:
    from pocketbert.distill.methods.method import Needs
    from pocketbert.distill.text.corpus import TokenRows
    from pocketbert.distill.text.pairs import GeneralSet
    from pocketbert.distill.word_vectors import VectorWords


MOST_BAD = 1000
"""Bad rows after which a long corpus is read no further."""


def is_prepared(source: CorpusSource) -> bool:
    """Whether a source is a corpus that was written before."""
    return source.path is not None and (Path(source.path) / INFO).is_file()


def source_digest(source: CorpusSource) -> object:
    """What a prepared corpus is made of; None for other sources."""
    return read_json(Path(str(source.path)) / INFO) if is_prepared(source) else None


def texts_of(source: DataSource) -> Iterator[str]:
    """Texts of a source, one after the other; the rows are not held.

    Raises:
        InputError: At the end, or as soon as there are too many, listing rows without text.
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
        if bad.count > MOST_BAD:
            break
    if bad.count:
        raise InputError(bad.close())


def prepare_corpora(recipe: Recipe, output: Path) -> list[Path]:
    """Tokenize every source of a recipe that is not prepared yet, for several runs; see `write_corpora`.

    Raises:
        InputError: If the recipe has no corpus, the folder cannot be used, or a text cannot be read; nothing new stays then.
    """
    from pocketbert.distill.text.writer import CONTENTS

    section = recipe.data.corpus
    if section is None:
        raise InputError(
            Problem("data.corpus", "the recipe has none.", "Add corpus: {sources: [{path: text.jsonl.gz}]} to data.")
        )
    teacher = open_teacher(recipe)
    output, tokenizer = folder_destination(output, teacher.path), teacher.tokenizer_folder
    before = {p.name for p in output.iterdir()} if output.is_dir() else set()
    with leaving_nothing(output):
        output.mkdir(parents=True, exist_ok=True)
        try:
            return write_corpora(section, tokenizer, output)
        except InputError:
            for number in range(len(section.sources)):
                if (name := f"{number:02d}") not in before:
                    remove(output / name, CONTENTS)
            raise


def write_corpora(section: CorpusSection, tokenizer: Path, destination: Path) -> list[Path]:
    """Tokenize every source that is not prepared yet.

    Args:
        section: Sources and settings.
        tokenizer: Folder of the model.
        destination: Where corpora go, one folder per source.

    Returns:
        The corpora's folders in the order of the sources.
    """
    from pocketbert.distill.text.writer import write_corpus

    settings = CorpusSettings.model_validate({k: getattr(section, k) for k in CorpusSettings.model_fields})
    out = []
    for number, source in enumerate(section.sources):
        if is_prepared(source):
            out.append(Path(str(source.path)))
            continue
        folder = destination / f"{number:02d}"
        info = write_corpus(texts_of(source), tokenizer, settings, folder)
        say(f"  {source.title}: {info.texts:,} texts, {info.rows:,} rows, {info.tokens:,} tokens")
        out.append(folder)
    return out


def open_corpora(section: CorpusSection, tokenizer: Path, written: Path, seed: int) -> TokenRows:
    """Corpora of a section, mixed by their shares where there are several or not all rows are wanted.

    Args:
        section: Sources and settings.
        tokenizer: Folder of the model, whose tokenizer the corpora must be made with.
        written: Where `write_corpora` wrote.
        seed: Seed of the run.

    Raises:
        InputError: If a corpus is damaged or of another tokenizer.
    """
    from pocketbert.distill.text.corpus import mix, open_corpus
    from pocketbert.distill.text.tokenizer import tokenizer_digest

    digest = tokenizer_digest(tokenizer)
    folders = [Path(str(s.path)) if is_prepared(s) else written / f"{i:02d}" for i, s in enumerate(section.sources)]
    corpora = [open_corpus(folder, digest) for folder in folders]
    if any(c.info.settings.length > section.length for c in corpora):
        longest = max(c.info.settings.length for c in corpora)
        raise InputError(
            Problem(
                "data.corpus.length",
                f"{section.length}, a prepared corpus has rows of up to {longest} tokens.",
                f"Set data.corpus.length: {longest}, or prepare the corpus again.",
            )
        )
    shares = [s.share for s in section.sources]
    if len(corpora) == 1 and section.rows is None:
        return corpora[0]
    return mix(corpora, shares, section.rows or sum(len(c) for c in corpora), seed)


# --- general ---
# What general stages learn from: a pre-trained teacher, and plain text.


def general_stages(recipe: Recipe) -> dict[str, Stage]:
    """The general stages of a recipe by their keys."""
    return {f"distill.{n}": s for n, s in enumerate(recipe.distill) if s.general}


def _needs(recipe: Recipe) -> list[Needs]:
    from pocketbert.distill.methods.table import method_of

    return [method_of(stage).needs(stage, where) for where, stage in general_stages(recipe).items()]


def head_wanted(recipe: Recipe) -> Task:
    """What teacher and student of the general stages are loaded as: with the heads that the stages train, or none."""
    from pocketbert.distill.methods.method import Heads

    guesses = TASKS[TaskName.FILL_MASK]
    heads = max(n.heads for n in _needs(recipe))
    return {
        Heads.ENCODER: TASKS[TaskName.FEATURE_EXTRACTION],
        Heads.WORDS: guesses,
        Heads.WORDS_AND_PAIRS: replace(guesses, head="ForPreTraining", auto_class="AutoModelForPreTraining"),
        Heads.TOKENS: replace(guesses, head="ForPreTraining", auto_class="AutoModelForPreTraining"),
    }[heads]


def general_teacher(recipe: Recipe, source: ModelFolder) -> Any:
    """The teacher with as many of the wanted heads as its folder has; without any only where no stage asks for its guesses.

    Args:
        recipe: Its general stages say which heads are wanted.
        source: The pre-trained teacher's folder.

    Raises:
        InputError: If the folder lacks the head that a stage asks.
    """
    from pocketbert.distill.methods.method import Heads

    bare, guesses = TASKS[TaskName.FEATURE_EXTRACTION], TASKS[TaskName.FILL_MASK]
    task, needs = head_wanted(recipe), _needs(recipe)
    silent = not any(n.words for n in needs)
    # a next-sentence head is never asked, only copied; so are others where the truth is all that is guessed
    kinds = [
        task,
        *([guesses] if max(n.heads for n in needs) is Heads.WORDS_AND_PAIRS else []),
        *([bare] if silent and task is not bare else []),
    ]
    for kind in kinds[:-1]:
        with suppress(InputError):
            return load_model(source, kind)
    try:
        return load_model(source, kinds[-1])
    except InputError as error:
        raise InputError([*error.problems, *(n.advice for n in needs if n.advice)]) from error


def check_objectives(stage: GeneralText, family: Family, where: str) -> None:
    """Refuse text that the checkpoints of a family were not trained on.

    Args:
        stage: A general stage.
        family: The teacher's row of the family table.
        where: Recipe key of the stage.

    Raises:
        InputError: Listing everything that does not fit.
    """
    wanted = list[tuple[str, str, Objective, str]]()
    if stage.masking is MaskingKind.SIMILAR:
        wanted.append(("masking", stage.masking, Objective.SIMILAR_WORDS, "Set masking: ngram, or whole-word."))
    if stage.pairs and stage.second is SecondSegment.SWAPPED:
        wanted.append(("second", stage.second, Objective.SENTENCE_ORDER, "Set second: elsewhere, or pairs: false."))
    problems = [
        Problem(
            f"{where}.{key}",
            f"{value}, and {family.title} checkpoints are not trained that way; objectives: {', '.join(family.objectives)}.",
            fix,
        )
        for key, value, objective, fix in wanted
        if objective not in family.objectives
    ]
    if problems:
        raise InputError(problems)


def general_rows(recipe: Recipe, source: ModelFolder, number: int, corpora: Path, teacher: Any) -> GeneralSet:
    """The plain text of a general stage, masked and cut into pairs as the stage says.

    Args:
        recipe: What to do.
        source: The pre-trained teacher's folder, for the tokenizer.
        number: Number of the stage in `distill`.
        corpora: Where the run's corpora are.
        teacher: The loaded teacher: its embeddings tell which words are similar, where no file does.

    Raises:
        InputError: If the teacher's family was not trained on such text.
    """
    from pocketbert.distill.text.masking import masking_of
    from pocketbert.distill.text.pairs import GeneralSet, pairs_of

    stage, where, seed = recipe.distill[number], f"distill.{number}", recipe.seed
    assert recipe.data.corpus is not None
    assert isinstance(stage, GeneralText)
    check_objectives(stage, source.family, where)
    tokenizer = TextTokenizer(source.tokenizer_folder, min(recipe.data.corpus.length, source.positions))
    rows = open_corpora(recipe.data.corpus, source.tokenizer_folder, corpora, seed)
    size = len(rows.counts)
    similar = _similar_words(stage, source, teacher, size, where) if stage.masking is MaskingKind.SIMILAR else None
    masking = masking_of(stage.masking, rows.counts, tokenizer, seed, where, stage.mask_share, stage.smoothing, similar)
    pairs = pairs_of(tokenizer, size, seed, where, stage.second) if stage.pairs else None
    return GeneralSet(rows, tokenizer, masking, pairs)


def _similar_words(stage: GeneralText, source: ModelFolder, teacher: Any, vocabulary: int, where: str) -> VectorWords:
    """Which words are similar: by the stage's file of vectors, or by the teacher's embeddings."""
    from pocketbert.distill.word_vectors import EmbeddingVectors, VectorWords, WordReader, WordVectors, read_vectors

    reader = WordReader(source.tokenizer_folder, source.family.tokenizer)
    vectors: WordVectors
    if stage.vectors is not None:
        vectors = read_vectors(stage.vectors, f"{where}.vectors")
    else:
        table = teacher.get_input_embeddings().weight.detach().float().cpu().numpy()
        vectors = EmbeddingVectors(table, reader)
    return VectorWords(vectors, reader, vocabulary)


def with_encoder(model: Any, learnt: Any) -> Any:
    """Give a model the encoder of another one; its head stays."""
    encoders = [getattr(m, m.base_model_prefix, m) for m in (model, learnt)]
    # an encoder alone has a pooler that some heads do without, and a masked-language model has none
    _fill(encoders[0], encoders[1], "pooler.")
    return model


def with_guesses(model: Any, learnt: Any) -> Any:
    """Give a masked-language model the encoder and the head of another one, which may judge pairs too."""
    _fill(model, learnt, "cls.seq_relationship.", f"{model.base_model_prefix}.pooler.")
    return model


def _fill(model: Any, learnt: Any, *may_differ: str) -> None:
    lost = model.load_state_dict(learnt.state_dict(), strict=False)
    differ = [k for k in (*lost.missing_keys, *lost.unexpected_keys) if not k.startswith(may_differ)]
    if differ:
        raise RuntimeError(f"the models differ: {differ[:3]}")
