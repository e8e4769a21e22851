"""Plain text for general stages: tokenized once into corpora, mixed when they are read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pocketbert.core.data.bad_rows import BadRows
from pocketbert.core.data.files import read_rows
from pocketbert.core.data.source import DataSource
from pocketbert.core.disk.destination import folder_destination, leaving_nothing
from pocketbert.core.disk.files import read_json
from pocketbert.core.disk.ownership import remove
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.host.progress import say
from pocketbert.core.recipe.data.corpus import CorpusSettings
from pocketbert.core.recipe.data.section import CorpusSection, CorpusSource
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.distill.text.corpora.corpus import INFO
from pocketbert.pipeline.teacher import open_teacher

if TYPE_CHECKING:
    from pocketbert.distill.text.corpora.corpus import TokenRows

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
    from pocketbert.distill.text.corpora.writer import CONTENTS

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
    from pocketbert.distill.text.corpora.writer import write_corpus

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
    from pocketbert.distill.text.corpora.corpus import open_corpus
    from pocketbert.distill.text.corpora.mixture import mix
    from pocketbert.distill.text.corpora.tokenizer import tokenizer_digest

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
