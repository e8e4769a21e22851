"""`pocketbert data augment`, and the augmented rows of a run."""

from __future__ import annotations

import functools
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from pocketbert.core.data.examples import read_examples
from pocketbert.core.errors import InputError
from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.file import load_recipe
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.distill import augment as augment_store
from pocketbert.distill.augment import Augmenter, CopyStore
from pocketbert.distill.training.data import TrainSet
from pocketbert.pipeline.learn import augmenting
from pocketbert.pipeline.learn.augmenting import augment_file, augmented_set
from pocketbert.pipeline.learn.data import load_data

ROWS = [
    {"id": i, "text": f"{text} {word}", "label": label}
    for i, (text, word, label) in enumerate(
        (text, word, label)
        for text in ("Play the good music", "a bad weather:  month", "STOP (never) again", "it is what it is")
        for word, label in (("happy", "good"), ("sad", "bad"), ("day", "good"))
    )
]
EVAL = [{"text": "brown fox", "label": "good"}, {"text": "lazy dog", "label": "bad"}]
Made = Callable[..., Recipe]


@pytest.fixture
def made(tmp_path: Path, tiny_model: Callable[..., Path], write_rows: Callable[..., Path]) -> Made:
    """`made(rows=ROWS, auto_class=..., task=..., augment={...}, **data keys)`: a recipe with an augmented stage."""

    def build(
        rows: Any = ROWS,
        auto_class: str = "AutoModelForSequenceClassification",
        task: str = "text-classification",
        augment: Any = None,
        held: Any = EVAL,
        source: Any = None,
        **data: Any,
    ) -> Recipe:
        train = write_rows(tmp_path / "train.jsonl", rows)
        dev = write_rows(tmp_path / "eval.jsonl", held)
        model = tiny_model("bert", 2, ("bad", "good"), auto_class)
        section = {"copies": 6, "candidates": 5, **(augment or {})}
        whole = {
            "schema": 1,
            "name": "tiny",
            "task": task,
            "seed": 3,
            "data": {
                "train": {"path": str(train), **(source or {})},
                "eval": {"path": str(dev), **(source or {})},
                "augment": section,
                "max_length": 40,
                **data,
            },
            "teacher": {"model": str(model), **({} if task == "feature-extraction" else {"finetune": {"steps": 5}})},
            "student": {"layers": 1},
            "distill": [{"method": "tinybert-prediction", "steps": 5, "augmented": True}],
            "export": {"formats": ["onnx"]},
        }
        path = tmp_path / "recipe.yaml"
        path.write_text(yaml.safe_dump(whole))
        return load_recipe(path)

    return build


def lines(path: Path) -> list[dict[str, Any]]:
    raw = path.read_bytes()
    return [json.loads(line) for line in (gzip.decompress(raw) if path.suffix == ".gz" else raw).splitlines()]


def by_row(path: Path) -> dict[int, list[dict[str, Any]]]:
    out: dict[int, list[dict[str, Any]]] = {}
    for row in lines(path):
        out.setdefault(row["id"], []).append(row)
    return out


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.gz"])
def test_each_row_comes_first_and_its_copies_keep_all_other_columns(made: Made, tmp_path: Path, name: str) -> None:
    counts = augment_file(made(), tmp_path / name)
    rows = by_row(tmp_path / name)
    assert list(rows) == [r["id"] for r in ROWS]
    for own, copies in zip(ROWS, rows.values(), strict=True):
        assert copies[0] == own
        assert len(copies) <= 1 + 6
        assert len({c["text"] for c in copies}) == len(copies)
        assert all({**c, "text": ""} == {**own, "text": ""} for c in copies)
    assert (counts.rows, counts.copies, counts.left_out) == (12, len(lines(tmp_path / name)) - 12, 0)
    assert counts.copies > 12
    assert {p.name for p in tmp_path.iterdir()} == {name, "train.jsonl", "eval.jsonl", "recipe.yaml"}


def test_held_out_and_evaluation_rows_have_no_copies_and_are_none(made: Made, tmp_path: Path) -> None:
    one = [
        {"id": 0, "text": "happy", "label": "good"},
        *ROWS[1:8],
        {"id": 90, "text": "Brown Fox", "label": "good"},
    ]
    settings = {"copies": 1000, "candidates": 1000, "probability": 1.0}
    recipe = made(one, augment=settings, holdout=2)
    data = load_data(recipe, open_model_folder(recipe.teacher.model))
    kept = {e.text for e in data.splits["train"].examples}
    assert len(kept) == 6
    augment_file(recipe, tmp_path / "out.jsonl")
    assert {own[0]["text"] for own in by_row(tmp_path / "out.jsonl").values()} == kept

    words = [*augmented_words(tmp_path / "out.jsonl", recipe)]
    held = [{"text": words[0].upper(), "label": "bad"}, {"text": words[1], "label": "bad"}, *EVAL]
    recipe = made(one, augment=settings, held=held)
    (tmp_path / "out.jsonl").unlink()
    counts = augment_file(recipe, tmp_path / "out.jsonl")
    texts = {r["text"].lower() for r in lines(tmp_path / "out.jsonl")}
    assert counts.left_out == 2
    assert not texts & {words[0].lower(), words[1].lower(), "brown fox"}


def augmented_words(path: Path, recipe: Recipe) -> list[str]:
    """Copies of the row "happy", which every seed and holdout keeps here."""
    own = next(rows for rows in by_row(path).values() if rows[0]["id"] == 0)
    return [r["text"] for r in own[1:]]


def small_parts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(augment_store, "CopyStore", functools.partial(CopyStore, at_once=3))


def test_a_killed_run_continues_and_writes_the_same_bytes(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = made()
    augment_file(recipe, tmp_path / "whole.jsonl.gz")
    copies, asked = Augmenter.copies, []

    def dying(self: Augmenter, rows: Any) -> Any:
        asked.append(len(rows))
        if len(asked) == 3:
            raise KeyboardInterrupt
        return copies(self, rows)

    small_parts(monkeypatch)
    monkeypatch.setattr(Augmenter, "copies", dying)
    with pytest.raises(KeyboardInterrupt):
        augment_file(recipe, tmp_path / "again.jsonl.gz")
    assert not (tmp_path / "again.jsonl.gz").exists()
    augment_file(recipe, tmp_path / "again.jsonl.gz")
    assert asked == [3, 3, 3, 3, 3]
    assert (tmp_path / "again.jsonl.gz").read_bytes() == (tmp_path / "whole.jsonl.gz").read_bytes()


def test_a_run_killed_while_the_file_is_written_leaves_none(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line, seen = augmenting._format_json_line, []

    def dying(title: str, number: int, row: dict[str, Any]) -> bytes:
        seen.append(number)
        if len(seen) == 20:
            raise OSError(28, "no space left")
        return line(title, number, row)

    with monkeypatch.context() as patched:
        patched.setattr(augmenting, "_format_json_line", dying)
        with pytest.raises(OSError, match="no space"):
            augment_file(made(), tmp_path / "out.jsonl.gz")
    assert not list(tmp_path.glob("*out.jsonl.gz*.tmp"))
    assert not (tmp_path / "out.jsonl.gz").exists()
    monkeypatch.setattr(Augmenter, "copies", None)  # what was made is not made again
    assert augment_file(made(), tmp_path / "out.jsonl.gz").rows == 12


def test_pairs_keep_their_partner(made: Made, tmp_path: Path) -> None:
    rows = [
        {"id": i, "text": f"good film {w}", "other": f"the {w} music", "score": 0.5 + i}
        for i, w in enumerate(("happy", "sad", "quick", "lazy"))
    ]
    source = {"text_pair": "other", "label": "score"}
    recipe = made(
        rows,
        task="regression",
        source=source,
        held=[{**rows[0], "text": "fox"}],
        augment={"probability": 1.0},
    )
    augment_file(recipe, tmp_path / "out.jsonl")
    for own, copies in zip(rows, by_row(tmp_path / "out.jsonl").values(), strict=True):
        changed = [(c["text"] != own["text"], c["other"] != own["other"]) for c in copies]
        assert changed[0] == (False, False)
        assert set(changed[1:]) == {(True, False), (False, True)}
        assert all(c["score"] == own["score"] for c in copies)


def test_rows_of_a_run_are_those_of_the_file(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = made(holdout=2)
    model = open_model_folder(recipe.teacher.model)
    data = load_data(recipe, model)
    monkeypatch.setattr(augmenting, "_AT_ONCE", 10)
    rows = augmented_set(recipe, model, data, 40, tmp_path / "work" / "augment")
    augment_file(recipe, tmp_path / "out.jsonl")
    written = lines(tmp_path / "out.jsonl")
    assert recipe.data.train is not None
    source = recipe.data.train.model_copy(update={"path": str(tmp_path / "out.jsonl")})
    tokenizer = TextTokenizer(model.path, 40)
    examples = read_examples(source, kind=data.head.task.labels)
    whole = TrainSet(data.head.prepare(examples, tokenizer, "out.jsonl"), tokenizer)
    assert list(rows.lengths) == whole.lengths
    wanted = [data.labels.names.index(r["label"]) for r in written]
    for chosen in ([0, 1, len(written) - 1], [5], list(range(len(written)))[::-1]):
        ours, theirs = rows.batch(chosen, 0), whole.batch(chosen, 0)
        assert set(ours) == set(theirs)
        assert all(torch.equal(ours[k], theirs[k]) and ours[k].dtype == theirs[k].dtype for k in theirs)
        assert ours["labels"].tolist() == [wanted[i] for i in chosen]


def test_a_run_does_not_make_its_copies_twice(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = made()
    model = open_model_folder(recipe.teacher.model)
    data = load_data(recipe, model)
    first = augmented_set(recipe, model, data, 40, tmp_path / "work")
    monkeypatch.setattr(Augmenter, "copies", None)
    assert list(augmented_set(recipe, model, data, 40, tmp_path / "work").lengths) == list(first.lengths)


def test_embeddings_learn_from_texts_without_labels(made: Made, tmp_path: Path) -> None:
    recipe = made(
        [{"id": r["id"], "text": r["text"]} for r in ROWS],
        task="feature-extraction",
        auto_class="AutoModel",
        held=[{"text": "fox"}, {"text": "dog"}],
    )
    assert augment_file(recipe, tmp_path / "out.jsonl").copies > 12
    model = open_model_folder(recipe.teacher.model)
    rows = augmented_set(recipe, model, load_data(recipe, model), 40, tmp_path / "work")
    assert len(rows.lengths) == len(lines(tmp_path / "out.jsonl"))
    assert set(rows.batch([0, 1], 0)) == {"input_ids", "attention_mask", "token_type_ids", "rows"}


def test_scored_pairs_of_embeddings_are_two_rows_each(made: Made, tmp_path: Path) -> None:
    pairs = [
        {"id": i, "text": f"good film {w}", "other": f"the {w} music", "score": 0.5}
        for i, w in enumerate(("happy", "sad", "quick"))
    ]
    held = [{"text": "fox", "other": "dog", "score": 1.0}, {"text": "day", "other": "dog", "score": 2.0}]
    recipe = made(
        pairs,
        task="feature-extraction",
        auto_class="AutoModel",
        held=held,
        source={"text_pair": "other", "label": "score"},
    )
    counts = augment_file(recipe, tmp_path / "out.jsonl")
    assert any(c["other"] != own[0]["other"] for own in by_row(tmp_path / "out.jsonl").values() for c in own)
    model = open_model_folder(recipe.teacher.model)
    rows = augmented_set(recipe, model, load_data(recipe, model), 40, tmp_path / "work")
    assert len(rows.lengths) == 2 * (counts.rows + counts.copies)


def test_several_labels_stay(made: Made, tmp_path: Path) -> None:
    rows = [{**r, "label": [r["label"], "day"] if r["id"] % 2 else []} for r in ROWS]
    held = [{"text": "fox", "label": ["good"]}]
    augment_file(made(rows, task="multi-label", held=held), tmp_path / "out.jsonl")
    assert all(r["label"] == rows[r["id"]]["label"] for r in lines(tmp_path / "out.jsonl"))


def test_a_file_of_vectors_gives_the_words(made: Made, tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_text("music 1 0\nsonata 0.9 0.1\nweather 0 1\ndrizzle 0.1 0.9\n")
    recipe = made(augment={"vectors": str(tmp_path / "v.txt"), "candidates": 1, "probability": 1.0})
    augment_file(recipe, tmp_path / "out.jsonl")
    copies = [r["text"] for own in by_row(tmp_path / "out.jsonl").values() for r in own[1:]]
    assert copies == [
        *(f"Play the good sonata {w}" for w in ("happy", "sad", "day")),
        *(f"a bad drizzle:  month {w}" for w in ("happy", "sad", "day")),
    ]


def test_the_head_is_asked_where_the_teacher_has_one_unless_told_otherwise(made: Made, tmp_path: Path) -> None:
    outcomes = {}
    for wanted in (None, True, False):
        recipe = made(auto_class="AutoModelForMaskedLM", augment={"masked_lm": wanted})
        augment_file(recipe, tmp_path / f"{wanted}.jsonl")
        outcomes[wanted] = [r["text"] for r in lines(tmp_path / f"{wanted}.jsonl")]
    assert outcomes[None] == outcomes[True]
    assert outcomes[None] != outcomes[False]


def test_settings_that_ask_for_what_is_not_there_are_refused_at_once(made: Made, tmp_path: Path) -> None:
    recipe = made(augment={"masked_lm": True, "vectors": "none.txt"})
    with pytest.raises(InputError) as caught:
        augment_file(recipe, tmp_path / "out.jsonl")
    assert [p.where for p in caught.value.problems] == ["data.augment.masked_lm", "data.augment.vectors"]
    assert not list(tmp_path.glob(".out*"))


@pytest.mark.parametrize("task", ["token-classification", "question-answering", "fill-mask"])
def test_tasks_whose_labels_are_places_are_refused(made: Made, tmp_path: Path, task: str) -> None:
    recipe = made().model_copy(update={"task": task})
    with pytest.raises(InputError, match=f"{task} cannot be augmented.*allowed: text-classification"):
        augment_file(recipe, tmp_path / "out.jsonl")


def test_a_recipe_without_rows_and_targets_that_are_none(made: Made, tmp_path: Path) -> None:
    recipe = made()
    bare = recipe.model_copy(update={"data": recipe.data.model_copy(update={"train": None})})
    with pytest.raises(InputError, match=r"data\.train: the recipe has none"):
        augment_file(bare, tmp_path / "out.jsonl")
    (tmp_path / "out.csv").write_text("mine")
    with pytest.raises(InputError) as caught:
        augment_file(recipe, tmp_path / "out.csv")
    assert [word in str(caught.value) for word in ("unknown kind of file", "exists")] == [True, True]
    assert (tmp_path / "out.csv").read_text() == "mine"


def test_an_existing_file_is_replaced_only_on_demand(made: Made, tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    target.write_text("mine")
    with pytest.raises(InputError, match="exists; nothing was written"):
        augment_file(made(), target)
    assert target.read_text() == "mine"
    assert augment_file(made(), target, overwrite=True).rows == 12
    assert len(lines(target)) > 12


def test_columns_that_json_cannot_hold_are_named(made: Made, tmp_path: Path) -> None:
    import datetime

    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = arrow.Table.from_pylist([{**r, "when": datetime.date(2024, 1, 1)} for r in ROWS])
    parquet.write_table(table, tmp_path / "rows.parquet")
    recipe = made(source=None)
    source = recipe.data.train.model_copy(update={"path": str(tmp_path / "rows.parquet")})  # type: ignore[union-attr]
    recipe = recipe.model_copy(update={"data": recipe.data.model_copy(update={"train": source})})
    with pytest.raises(InputError, match=r"rows\.parquet:1: a column cannot be written as JSON.*date"):
        augment_file(recipe, tmp_path / "out.jsonl")


def test_the_command(cli: Callable[..., Any], made: Made, tmp_path: Path) -> None:
    made()
    out = tmp_path / "out.jsonl.gz"
    answer = cli("data", "augment", tmp_path / "recipe.yaml", "-o", out, "data.augment.copies=2", "--json")
    assert answer.exit_code == 0, answer.output
    said = json.loads(answer.stdout)
    assert said == {"file": str(out), "rows": 12, "copies": len(lines(out)) - 12, "left_out": 0}
    again = cli("data", "augment", tmp_path / "recipe.yaml", "-o", out)
    assert again.exit_code == 2
    assert "--overwrite" in again.stderr
    more = cli("data", "augment", tmp_path / "recipe.yaml", "-o", out, "--overwrite")
    assert more.exit_code == 0
    assert f"augmented: {out}: 12 rows and {len(lines(out)) - 12} copies of them" in more.stdout
