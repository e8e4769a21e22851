"""The text of general stages: refused where the teacher's family was not trained that way, similar words from file or table."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pocketbert.core.errors import InputError
from pocketbert.core.recipe.data import CorpusSection
from pocketbert.core.recipe.file import load_recipe
from pocketbert.distill.text import writer
from pocketbert.distill.text.pairs import GeneralSet
from pocketbert.distill.text.tokenizer import CorpusTokenizer
from pocketbert.pipeline.learn import corpora
from pocketbert.pipeline.learn.corpora import general_rows, write_corpora
from pocketbert.pipeline.reference import open_teacher
from support.launches import run_launch
from support.tiny import tiny_classifier
from support.tiny_texts import task_rows, write_lines
from support.tiny_tokenizers import vocabulary, write_tokenizer

Rows = Callable[..., GeneralSet]


@pytest.fixture
def rows_of(task: Any, tmp_path: Path) -> Rows:
    """`rows_of(family, **stage)`: the rows of a recipe's only stage."""
    teacher = tiny_classifier("bert", 1, (), auto_class="AutoModel")
    teacher.save_pretrained(tmp_path / "teacher")
    write_tokenizer(tmp_path / "teacher")
    text = write_lines(tmp_path / "text.jsonl", task_rows(20, 9))

    def make(family: str = "bert", **stage: Any) -> GeneralSet:
        path = task.variant(
            tmp_path / "recipe.yaml",
            data={"corpus": {"sources": [{"path": str(text)}], "length": 32}},
            teacher={"model": str(tmp_path / "teacher"), "family": family},
            distill=[{"method": "minilm", "steps": 4, **stage}, {"method": "task", "steps": 1}],
        )
        recipe = load_recipe(path)
        source, written = open_teacher(recipe), tmp_path / "corpora"
        written.mkdir(exist_ok=True)
        assert recipe.data.corpus is not None
        write_corpora(recipe.data.corpus, source.path, written)
        return general_rows(recipe, source, 0, written, teacher)

    return make


@pytest.mark.parametrize(
    ("stage", "key"),
    [
        ({"masking": "similar"}, "distill.0.masking: similar"),
        ({"pairs": True, "second": "swapped"}, "distill.0.second: swapped"),
    ],
)
def test_text_that_the_family_does_not_know_is_refused(rows_of: Rows, stage: dict[str, Any], key: str) -> None:
    with pytest.raises(InputError) as error:
        rows_of(**stage)
    assert key in str(error.value)
    assert "BERT checkpoints are not trained that way; objectives: masked-lm, next-sentence" in str(error.value)
    assert rows_of("macbert", **stage).key()


def test_other_text_is_for_all_families(rows_of: Rows) -> None:
    for stage in ({"masking": "ngram"}, {"masking": "span", "pairs": True}, {"second": "swapped"}):
        rows = rows_of(**stage)
        assert (rows.pairs is not None) == ("pairs" in stage)


def test_similar_words_are_the_files_or_the_teachers(rows_of: Rows, tmp_path: Path) -> None:
    (good,), (great,) = ([vocabulary(0).index(w)] for w in ("good", "great"))
    (tmp_path / "vectors.txt").write_text("good 1 0\ngreat 1 0.1\npoor 0 1\n")
    named: Any = rows_of("macbert", masking="similar", vectors=str(tmp_path / "vectors.txt")).masking
    assert (great,) in named.similar.of((good,))
    own: Any = rows_of("macbert", masking="similar").masking
    assert own.similar.of((good,))
    assert own.key() != named.key()
    with pytest.raises(InputError, match=r"distill\.0\.vectors"):
        rows_of("macbert", masking="similar", vectors=str(tmp_path / "none.txt"))


@pytest.mark.parametrize(
    ("counts", "packed", "world"), [((40,), True, 3), ((700, 20, 22), False, 2), ((20, 21, 22), True, 2)]
)
def test_the_processes_of_a_launch_write_the_corpora_of_one(
    counts: tuple[int, ...], packed: bool, world: int, task: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "_TEXTS_AT_ONCE", 7)  # batches for all processes, the last one smaller
    section = make_section(task, tmp_path, [task_rows(count, count) for count in counts], packed=packed)
    with (tmp_path / "text0.jsonl").open("a") as stream:  # not Unicode, no tokens, cut into pieces
        stream.writelines(json.dumps({"text": text}) + "\n" for text in ("\ud800", "", "film " * 50))
    for name in ("one", "many"):
        (tmp_path / name).mkdir()
    write_corpora(section, tmp_path / "teacher", tmp_path / "one")
    tokenized, lock = list[int](), threading.Lock()
    real = CorpusTokenizer.tokens

    def counted(self: CorpusTokenizer, texts: Sequence[str]) -> Any:
        with lock:
            tokenized.append(threading.get_ident())
        return real(self, texts)

    monkeypatch.setattr(CorpusTokenizer, "tokens", counted)
    folders = run_launch(
        world,
        lambda rank: write_corpora(section, tmp_path / "teacher", tmp_path / ("ignored" if rank else "many")),
        corpora,
        writer,
    )
    assert folders == [[tmp_path / "many" / f"{n:02d}" for n in range(len(counts))]] * world
    assert files(tmp_path / "many") == files(tmp_path / "one")
    assert not (tmp_path / "ignored").exists()
    batches = [tokenized.count(thread) for thread in {*tokenized}]
    assert len(batches) == world
    assert max(batches) - min(batches) <= 4, "all processes tokenize, about equally much"


def test_a_wrong_row_of_a_divided_source_ends_all_processes_as_it_ends_one(
    task: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "_TEXTS_AT_ONCE", 7)
    section = make_section(task, tmp_path, [[*task_rows(20, 3), {"text": 5}, *task_rows(9, 4)]])

    def write(rank: int) -> None:
        write_corpora(section, tmp_path / "teacher", tmp_path / "many")

    with pytest.raises(InputError) as alone:
        write(0)
    with pytest.raises(InputError) as together:
        run_launch(2, write, corpora, writer)
    assert str(together.value) == str(alone.value)
    assert "text0.jsonl:21: column 'text' holds int, not text" in str(alone.value)
    assert not (tmp_path / "many" / "00").exists()


def make_section(task: Any, folder: Path, sources: Sequence[Sequence[Any]], **settings: Any) -> CorpusSection:
    """The corpus section of a recipe, whose files and tokenizer are written below `folder`."""
    (folder / "teacher").mkdir(exist_ok=True)
    write_tokenizer(folder / "teacher")
    texts = [write_lines(folder / f"text{n}.jsonl", rows) for n, rows in enumerate(sources)]
    path = task.variant(
        folder / "recipe.yaml",
        data={"corpus": {"sources": [{"path": str(p), "share": 1} for p in texts], "length": 32, **settings}},
        distill=[{"method": "minilm", "steps": 4}, {"method": "task", "steps": 1}],
    )
    section = load_recipe(path).data.corpus
    assert section is not None
    return section


def files(folder: Path) -> dict[str, bytes]:
    """The bytes of all files below a folder."""
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
