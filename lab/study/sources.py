"""Where the study's rows and its plain text come from: folders on this machine, or the Hub."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pocketbert.core.data.source import DataSource
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.recipe.data import CorpusSection, CorpusSource

_GLUE = {"dataset": "nyu-mll/glue", "config": "sst2", "text": "sentence"}
_WIKITEXT = {"dataset": "Salesforce/wikitext", "config": "wikitext-2-raw-v1"}
_TEXT_LENGTH = 64
"""Longest row of plain text in tokens: a general stage of minutes sees more of it in short rows, and SST-2's are short."""


@dataclass(frozen=True)
class Sources:
    """The data of all arms.

    Attributes:
        train: Labelled training rows.
        dev: Labelled rows that every arm is judged by.
        corpus: Plain text of general stages.
    """

    train: DataSource
    dev: DataSource
    corpus: CorpusSection

    @property
    def title(self) -> str:
        """All of them in words."""
        text = ", ".join(s.title for s in self.corpus.sources)
        return f"training rows {self.train.title}; judged by {self.dev.title}; plain text {text}"


def sources(sst2: Path | None, wikitext: Path | None) -> Sources:
    """The data, by folder.

    Args:
        sst2: Folder with ``train.jsonl.gz`` and ``dev.jsonl.gz``, columns ``text`` and ``label`` (0 or 1); None for GLUE on
            the Hub.
        wikitext: Folder with ``*.jsonl.gz``, column ``text``; None for WikiText-2's training split on the Hub.

    Raises:
        InputError: Naming every file that is not there.
    """
    problems, rows, text = [], [], []
    for name, split in (("train", "train"), ("dev", "validation")):
        if sst2 is None:
            rows.append(DataSource(**_GLUE, split=split))
            continue
        path = (sst2 / f"{name}.jsonl.gz").absolute()
        if not path.is_file():
            problems.append(Problem("--sst2", f"no file '{path}'.", "Give the folder that holds it."))
        rows.append(DataSource(path=str(path)))
    if wikitext is None:
        text.append(CorpusSource(**_WIKITEXT, split="train"))
    else:
        text += [CorpusSource(path=str(p.absolute())) for p in sorted(wikitext.glob("*.jsonl.gz"))]
        if not text:
            problems.append(Problem("--wikitext", f"no *.jsonl.gz in '{wikitext}'.", "Give a folder of them."))
    if problems:
        raise InputError(problems)
    return Sources(rows[0], rows[1], CorpusSection(sources=text, length=_TEXT_LENGTH))
