"""Tokenizers of every kind, the texts that sources in other languages are compared on, and packed sources."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from android.awkward_texts import awkward_texts

from pocketbert.core.artefacts import Processing
from pocketbert.core.compare.sample_texts import SENTENCES, UNICODE_SENTENCES
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import ScoreFunction
from pocketbert.pipeline.phone.tokenizers.sources import PackedSources, pack_sources
from support.tiny import write_own_tokenizer

LENGTH = 24
Texts = list[list[str]]


@pytest.fixture(scope="session")
def texts() -> Texts:
    """Texts and pairs: ordinary ones, many scripts, and what tokenizers of two languages differ on if they can."""
    made = [*SENTENCES, *UNICODE_SENTENCES, *awkward_texts(60, seed=11)]
    kept = [t for t in made if t.strip()]
    return [*([t] for t in kept), *([a, b] for a, b in zip(kept[::7], kept[3::7], strict=False))]


@pytest.fixture(scope="session")
def kind(tmp_path_factory: pytest.TempPathFactory, texts: Texts) -> Callable[[str], Path]:
    """`kind(family)`: a folder with a family's tokenizer, texts.jsonl, and golden_tokens.jsonl as the pipeline writes it."""

    @cache
    def write(family: str) -> Path:
        folder = tmp_path_factory.mktemp(f"tokenizer-{family}")
        write_own_tokenizer(folder, family)
        write_golden(folder, texts)
        return folder

    return write


def write_golden(folder: Path, texts: Texts) -> None:
    tokenizer = TextTokenizer(folder, LENGTH, pad_id=0, padding_side="right")
    rows = [tokenizer.golden(t[0] if len(t) == 1 else (t[0], t[1])) for t in texts]
    (folder / "texts.jsonl").write_text("".join(json.dumps(t) + "\n" for t in texts), "utf-8")
    (folder / "golden_tokens.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows), "utf-8")


@pytest.fixture(scope="session")
def pack() -> Callable[[Path], PackedSources]:
    """`pack(folder)`: write the sources for a folder's tokenizer into it."""

    def write(folder: Path) -> PackedSources:
        return pack_sources(folder, Processing(max_length=LENGTH, score=ScoreFunction.SOFTMAX), pad_id=0)

    return write
