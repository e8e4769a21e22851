"""The text of general stages: refused where the teacher's family was not trained that way, similar words from file or table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pocketbert.core.errors import InputError
from pocketbert.core.recipe.file import load_recipe
from pocketbert.distill.text.pairs import GeneralSet
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


@pytest.mark.parametrize("world", [2, 4])
def test_the_processes_of_a_launch_write_the_corpora_of_one(world: int, task: Any, tmp_path: Path) -> None:
    (tmp_path / "teacher").mkdir()
    write_tokenizer(tmp_path / "teacher")
    texts = [write_lines(tmp_path / f"text{n}.jsonl", task_rows(20 + n, n)) for n in range(3)]
    sources = [{"path": str(path), "share": 1} for path in texts]
    path = task.variant(
        tmp_path / "recipe.yaml",
        data={"corpus": {"sources": sources, "length": 32}},
        distill=[{"method": "minilm", "steps": 4}, {"method": "task", "steps": 1}],
    )
    section = load_recipe(path).data.corpus
    assert section is not None

    def files(folder: Path) -> dict[str, bytes]:
        return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}

    for name in ("one", "many"):
        (tmp_path / name).mkdir()
    write_corpora(section, tmp_path / "teacher", tmp_path / "one")
    folders = run_launch(
        world,
        lambda rank: write_corpora(section, tmp_path / "teacher", tmp_path / ("ignored" if rank else "many")),
        corpora,
    )
    assert folders == [[tmp_path / "many" / f"{n:02d}" for n in range(3)]] * world
    assert files(tmp_path / "many") == files(tmp_path / "one")
    assert not (tmp_path / "ignored").exists()
