"""`pocketbert data augment`, and the augmented rows of a run."""

from __future__ import annotations

import datetime
import functools
import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from pocketbert.core.data.reading import read_examples
from pocketbert.core.errors import InputError
from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.file import load_recipe
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.distill import augment
from pocketbert.distill.augment import Augmenter, CopyStore
from pocketbert.distill.training.data import TrainSet
from pocketbert.pipeline.learn import augmenting
from pocketbert.pipeline.learn.augmenting import augment_file, augmented_set, write_copies
from pocketbert.pipeline.learn.data import load_data

ROWS = [
    {"id": i, "text": f"{text} {word}", "label": label}
    for i, (text, word, label) in enumerate(
        (text, word, label)
        for text in ("Play the good music", "a bad weather:  month", "STOP (never) again", "it is what it is")
        for word, label in (("happy", "good"), ("sad", "bad"), ("day", "good"))
    )
]
PAIRS = [
    {"id": i, "text": f"good film {w}", "other": f"the {w} music", "score": 0.5 + i}
    for i, w in enumerate(("happy", "sad", "quick", "lazy"))
]
SCORED = {"text_pair": "other", "label": "score"}
EVAL = [{"text": "brown fox", "label": "good"}, {"text": "lazy dog", "label": "bad"}]
Write = Callable[..., Recipe]


@pytest.fixture
def write_recipe(tmp_path: Path, tiny_model: Callable[..., Path], write_rows: Callable[..., Path]) -> Write:
    """`write_recipe(rows, auto_class=, task=, augment=, held=, source=, **data)`: a recipe with an augmented stage."""

    def write(
        rows: Any = ROWS,
        auto_class: str = "AutoModelForSequenceClassification",
        task: str = "text-classification",
        augment: Any = None,
        held: Any = EVAL,
        source: Any = None,
        **data: Any,
    ) -> Recipe:
        train, dev = write_rows(tmp_path / "train.jsonl", rows), write_rows(tmp_path / "eval.jsonl", held)
        model = {"model": str(tiny_model("bert", 2, ("bad", "good"), auto_class))}
        whole = {
            "schema": 1,
            "name": "tiny",
            "task": task,
            "seed": 3,
            "data": {
                "train": {"path": str(train), **(source or {})},
                "eval": {"path": str(dev), **(source or {})},
                "augment": {"copies": 6, "candidates": 5, **(augment or {})},
                "max_length": 40,
                **data,
            },
            "teacher": model if task == "feature-extraction" else {**model, "finetune": {"steps": 5}},
            "student": {"layers": 1},
            "distill": [{"method": "tinybert-prediction", "steps": 5, "augmented": True}],
            "export": {"formats": ["onnx"]},
        }
        (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(whole))
        return load_recipe(tmp_path / "recipe.yaml")

    return write


def read_lines(path: Path) -> list[dict[str, Any]]:
    raw = path.read_bytes()
    return [json.loads(line) for line in (gzip.decompress(raw) if path.suffix == ".gz" else raw).splitlines()]


def groups_of(path: Path) -> dict[int, list[dict[str, Any]]]:
    """Each row with its copies, by its number."""
    out: dict[int, list[dict[str, Any]]] = {}
    for row in read_lines(path):
        out.setdefault(row["id"], []).append(row)
    return out


def rows_of_run(recipe: Recipe, work: Path) -> Any:
    model = open_model_folder(recipe.teacher.model)
    return augmented_set(recipe, model, load_data(recipe, model), TextTokenizer(model.tokenizer_folder, 40), work)[0]


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.gz"])
def test_each_row_comes_first_and_its_copies_keep_all_other_columns(
    name: str, write_recipe: Write, tmp_path: Path
) -> None:
    counts = augment_file(write_recipe(), tmp_path / name)
    groups = groups_of(tmp_path / name)
    assert list(groups) == [r["id"] for r in ROWS]
    for own, copies in zip(ROWS, groups.values(), strict=True):
        assert copies[0] == own
        assert len(copies) <= 1 + 6
        assert len({c["text"] for c in copies}) == len(copies)
        assert all({**c, "text": ""} == {**own, "text": ""} for c in copies)
    assert (counts.rows, counts.copies, counts.left_out) == (12, len(read_lines(tmp_path / name)) - 12, 0)
    assert counts.copies > 12
    assert {p.name for p in tmp_path.iterdir()} == {name, "train.jsonl", "eval.jsonl", "recipe.yaml"}


def test_held_out_and_evaluation_rows_have_no_copies_and_are_none(write_recipe: Write, tmp_path: Path) -> None:
    rows = [{"id": 0, "text": "happy", "label": "good"}, *ROWS[1:8], {"id": 90, "text": "Brown Fox", "label": "good"}]
    settings, out = {"copies": 1000, "candidates": 1000, "probability": 1.0}, tmp_path / "out.jsonl"
    recipe = write_recipe(rows, augment=settings, holdout=2)
    kept = {e.text for e in load_data(recipe, open_model_folder(recipe.teacher.model)).splits["train"].examples}
    assert len(kept) == 6
    augment_file(recipe, out)
    assert {own[0]["text"] for own in groups_of(out).values()} == kept
    words = [r["text"] for r in groups_of(out)[0][1:]]
    held = [{"text": words[0].upper(), "label": "bad"}, {"text": words[1], "label": "bad"}, *EVAL]
    counts = augment_file(write_recipe(rows, augment=settings, held=held), out, overwrite=True)
    assert counts.left_out == 2
    assert not {r["text"].lower() for r in read_lines(out)} & {words[0].lower(), words[1].lower(), "brown fox"}


def test_a_killed_run_continues_and_writes_the_same_bytes(
    write_recipe: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, whole, again = write_recipe(), tmp_path / "whole.jsonl.gz", tmp_path / "again.jsonl.gz"
    augment_file(recipe, whole)
    copies, asked = Augmenter.copies, []

    def dying(self: Augmenter, rows: Any) -> Any:
        asked.append(len(rows))
        if len(asked) == 3:
            raise KeyboardInterrupt
        return copies(self, rows)

    monkeypatch.setattr(augment, "CopyStore", functools.partial(CopyStore, at_once=3))
    monkeypatch.setattr(Augmenter, "copies", dying)
    with pytest.raises(KeyboardInterrupt):
        augment_file(recipe, again)
    assert not again.exists()
    augment_file(recipe, again)
    assert asked == [3, 3, 3, 3, 3]
    assert again.read_bytes() == whole.read_bytes()


def test_a_run_killed_while_the_file_is_written_leaves_none(
    write_recipe: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = CopyStore.read

    def dying(self: CopyStore) -> Iterator[Any]:
        for number, copies in enumerate(read(self)):
            if number == 5:
                raise OSError(28, "no space left")
            yield copies

    with monkeypatch.context() as patched:
        patched.setattr(CopyStore, "read", dying)
        with pytest.raises(OSError, match="no space"):
            augment_file(write_recipe(), tmp_path / "out.jsonl.gz")
    assert not list(tmp_path.glob("*out.jsonl.gz*.tmp"))
    assert not (tmp_path / "out.jsonl.gz").exists()
    monkeypatch.setattr(Augmenter, "copies", None)  # what was made is not made again
    assert augment_file(write_recipe(), tmp_path / "out.jsonl.gz").rows == 12


def test_rows_of_a_run_are_those_of_the_file_and_are_not_made_twice(
    write_recipe: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = write_recipe(holdout=2)
    model = open_model_folder(recipe.teacher.model)
    data = load_data(recipe, model)
    monkeypatch.setattr(augmenting, "_AT_ONCE", 10)
    rows = rows_of_run(recipe, tmp_path / "work" / "augment")
    augment_file(recipe, tmp_path / "out.jsonl")
    written = read_lines(tmp_path / "out.jsonl")
    source = recipe.data.train.model_copy(update={"path": str(tmp_path / "out.jsonl")})
    tokenizer = TextTokenizer(model.path, 40)
    whole = TrainSet(data.head.prepare(read_examples(source, kind=data.head.task.labels), tokenizer, "out"), tokenizer)
    assert list(rows.lengths) == whole.lengths
    wanted = [data.labels.names.index(r["label"]) for r in written]
    for chosen in ([0, 1, len(written) - 1], [5], list(range(len(written)))[::-1]):
        ours, theirs = rows.batch(chosen, 0), whole.batch(chosen, 0)
        assert set(ours) == set(theirs)
        assert all(torch.equal(ours[k], theirs[k]) and ours[k].dtype == theirs[k].dtype for k in theirs)
        assert ours["labels"].tolist() == [wanted[i] for i in chosen]
    (tmp_path / "step").mkdir()
    write_copies(recipe, model, data, tmp_path / "other", tmp_path / "step")
    monkeypatch.setattr(Augmenter, "copies", None)
    assert list(rows_of_run(recipe, tmp_path / "work" / "augment").lengths) == list(rows.lengths)
    reader = TextTokenizer(model.tokenizer_folder, 40)
    stored, _ = augmented_set(recipe, model, data, reader, tmp_path / "none", tmp_path / "step")
    assert torch.equal(stored.batch(range(20), 0)["input_ids"], rows.batch(range(20), 0)["input_ids"])


# --- tasks and sources of words ---


@pytest.mark.parametrize(("paired", "label"), [(False, ""), (True, "score"), (True, "none")])
def test_embeddings_learn_from_texts_and_from_both_texts_of_pairs(
    paired: bool, label: str, write_recipe: Write, tmp_path: Path
) -> None:
    texts = [{"id": r["id"], "text": r["text"]} for r in ROWS]
    held = [{"text": "fox", "other": "dog", "score": 1.0}, {"text": "day", "other": "dog", "score": 2.0}]
    kind = {"task": "feature-extraction", "auto_class": "AutoModel", "held": held}
    source = {**SCORED, "label": label}
    recipe = write_recipe(PAIRS, source=source, **kind) if paired else write_recipe(texts, **kind)
    counts = augment_file(recipe, tmp_path / "out.jsonl")
    rows = rows_of_run(recipe, tmp_path / "work")
    assert counts.copies > 3
    assert len(rows.lengths) == (2 if paired else 1) * (counts.rows + counts.copies)
    if paired:
        assert any(c["other"] != own[0]["other"] for own in groups_of(tmp_path / "out.jsonl").values() for c in own)
    else:
        assert set(rows.batch([0, 1], 0)) == {"input_ids", "attention_mask", "token_type_ids", "rows"}


def test_a_file_of_vectors_gives_the_words(write_recipe: Write, tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_text("music 1 0\nsonata 0.9 0.1\nweather 0 1\ndrizzle 0.1 0.9\n")
    recipe = write_recipe(augment={"vectors": str(tmp_path / "v.txt"), "candidates": 1, "probability": 1.0})
    augment_file(recipe, tmp_path / "out.jsonl")
    copies = [r["text"] for own in groups_of(tmp_path / "out.jsonl").values() for r in own[1:]]
    frames = ("Play the good sonata", "a bad drizzle:  month")
    assert copies == [f"{frame} {w}" for frame in frames for w in ("happy", "sad", "day")]


def test_the_head_is_asked_where_the_teacher_has_one_unless_told_otherwise(write_recipe: Write, tmp_path: Path) -> None:
    outcomes = []
    for wanted in (None, True, False):
        recipe = write_recipe(auto_class="AutoModelForMaskedLM", augment={"masked_lm": wanted})
        augment_file(recipe, tmp_path / f"{wanted}.jsonl")
        outcomes.append(read_lines(tmp_path / f"{wanted}.jsonl"))
    assert outcomes[0] == outcomes[1] != outcomes[2]


# --- what is refused ---


def test_settings_that_ask_for_what_is_not_there_are_refused_at_once(write_recipe: Write, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        augment_file(write_recipe(augment={"masked_lm": True, "vectors": "none.txt"}), tmp_path / "out.jsonl")
    assert [p.where for p in caught.value.problems] == ["data.augment.masked_lm", "data.augment.vectors"]
    assert not list(tmp_path.glob(".out*"))


def test_recipes_and_targets_that_cannot_be_augmented_are_refused(write_recipe: Write, tmp_path: Path) -> None:
    recipe, out = write_recipe(), tmp_path / "out.csv"
    out.write_text("mine")
    changes: list[tuple[dict[str, Any], str]] = [
        ({"task": task}, f"{task} cannot be augmented.*allowed: text-classification")
        for task in ("token-classification", "question-answering", "fill-mask")
    ]
    bare = {"data": recipe.data.model_copy(update={"train": None})}
    unknown = r"exists; nothing was written(.|\n)*unknown kind of file"
    for change, said in (*changes, (bare, r"data\.train: the recipe has none"), ({}, unknown)):
        with pytest.raises(InputError, match=said):
            augment_file(recipe.model_copy(update=change), tmp_path / "out.jsonl" if change else out)
    assert out.read_text() == "mine"


def test_columns_that_json_cannot_hold_are_named(write_recipe: Write, tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = arrow.Table.from_pylist([{**r, "when": datetime.date(2024, 1, 1)} for r in ROWS])
    parquet.write_table(table, tmp_path / "rows.parquet")
    recipe = write_recipe(train={"path": str(tmp_path / "rows.parquet")})
    with pytest.raises(InputError, match=r"rows\.parquet:1: a column cannot be written as JSON.*date"):
        augment_file(recipe, tmp_path / "out.jsonl")


def test_the_command(
    succeed: Callable[..., Any], refuse: Callable[..., str], write_recipe: Write, tmp_path: Path
) -> None:
    write_recipe()
    out = tmp_path / "out.jsonl.gz"
    command = ("data", "augment", tmp_path / "recipe.yaml", "-o", out)
    said = json.loads(succeed(*command, "data.augment.copies=2", "--json").stdout)
    assert said == {"file": str(out), "rows": 12, "copies": len(read_lines(out)) - 12, "left_out": 0}
    assert "--overwrite" in refuse(*command)
    more = succeed(*command, "--overwrite").stdout
    assert f"augmented: {out}: 12 rows and {len(read_lines(out)) - 12} copies of them" in more
