"""A recipe that prunes the student's vocabulary: chosen, judged before training, and carried to every file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.pipeline.learn.finishing import read_training
from support.tiny_texts import task_rows, write_lines

PLAN = {"method": "task", "batch": 32, "lr": 3e-3, "dropout": 0.0, "checkpoint": 20}
MANY = ("quick", "chair", "table", "door", "room", "house")
Run = Callable[..., Any]


@pytest.fixture
def write_recipe(task: Any, finished: Path, tmp_path: Path) -> Callable[..., Path]:
    """`write_recipe(words, rule, signals=, **changes)`: the finished run's teacher, and training rows without some words."""

    def write(words: tuple[str, ...], rule: dict[str, Any], signals: int = 0, steps: int = 60, **changes: Any) -> Path:
        rows = [json.loads(line) for line in (task.folder / "train.jsonl").read_text().splitlines()]
        left = [row for row in rows if not {*row["text"].split()} & {*words}]
        stage = {**PLAN, "steps": steps, "signals": {"logits": 1, "hidden": signals, "attention": signals}}
        own = {"data": {"train": {"path": str(write_lines(tmp_path / "train.jsonl", left))}}}
        own["teacher"] = {"model": str(finished / "teacher"), "finetune": None}
        student = {"layers": 1, "vocabulary": rule}
        return Path(task.variant(tmp_path / "recipe.yaml", student=student, distill=[stage], **{**own, **changes}))

    return write


def size(folder: Path) -> int:
    return int(json.loads((folder / "config.json").read_text())["vocab_size"])


def check_files(run: Path, before: int) -> None:
    """One piece less in the tokenizer, table, list of pieces and golden rows of student and artefact folder."""
    kept = json.loads((run / "vocabulary" / "kept.json").read_text())
    assert len(kept["ids"]) == before - 1 == kept["before"] - 1
    for folder in (run / "student", run / "phone"):
        tokenizer = TextTokenizer(folder, 40)
        assert size(folder) == tokenizer.vocabulary_size == before - 1
        lines = (folder / "vocab.txt").read_text().splitlines()
        assert len(lines) == before - 1
        assert lines.index("[PAD]") == 0
        spelt = [lines.index(t) for t in ("[CLS]", "s", "##l", "##o", "##w", "[SEP]")]
        assert tokenizer.encode(["slow"])[0].ids.tolist() == spelt
    golden = [json.loads(line) for line in (run / "phone" / "golden_tokens.jsonl").read_text().splitlines()]
    assert max(i for row in golden for i in row["ids"]) < before - 1


def test_a_piece_that_no_training_row_has_is_in_no_file(
    finished: Path, write_recipe: Callable[..., Path], succeed: Run, refuse: Run, tmp_path: Path
) -> None:
    # a static scheme: its calibration reads training rows with the student's own ids
    path = write_recipe(("slow",), {"resplit": 0.25}, quantize={"files": ["a8w8"]})
    result = succeed("run", path, "-o", tmp_path / "run")
    before = size(finished / "teacher")
    assert f"{before - 1} of {before} pieces are kept" in result.stderr
    assert "held-out rows" in result.stderr
    check_files(tmp_path / "run", before)
    assert size(tmp_path / "run" / "distill" / "0") == before, "between stages the whole vocabulary is there"
    notes = json.loads((tmp_path / "run" / "student" / "training.json").read_text())["notes"]
    assert any(f"vocabulary: {before - 1} of {before} pieces are kept" in note for note in notes)
    succeed("distill", path, "-o", tmp_path / "run", "student.vocabulary.max_changed=0.39")
    # another rule is another student
    refuse("distill", path, "-o", tmp_path / "run", "student.vocabulary.at_least=2")


def test_pieces_of_texts_without_labels_stay_since_the_student_learns_from_them_too(
    finished: Path, write_recipe: Callable[..., Path], succeed: Run, tmp_path: Path
) -> None:
    path, texts = write_recipe(("slow", "quick"), {}, steps=2), tmp_path / "texts.txt"
    texts.write_text("a slow door\nthe slow room\n")
    limits = [f"student.vocabulary.{key}=0.9" for key in ("max_unseen", "max_changed", "max_growth")]
    succeed("distill", path, "-o", tmp_path / "run", f"data.transfer={{sources: [{{path: {texts}}}]}}", *limits)
    assert size(tmp_path / "run" / "student") == size(finished / "teacher") - 1


def test_a_column_of_vectors_teaches_a_student_with_a_pruned_vocabulary(
    vectors_recipe: Callable[..., Path], succeed: Run, tmp_path: Path
) -> None:
    def rows(count: int, seed: int) -> list[dict[str, Any]]:
        texts = [row["text"] for row in task_rows(count, seed)]
        return [{"text": text, "v": np.random.default_rng(len(text)).normal(size=24).tolist()} for text in texts]

    paths = [str(write_lines(tmp_path / f"{name}.jsonl", rows(n, n))) for name, n in (("train", 60), ("eval", 20))]
    data = {"train": {"path": paths[0], "teacher": "v"}, "eval": {"path": paths[1], "teacher": "v"}}
    stage = {**PLAN, "steps": 2, "batch": 8, "signals": {"logits": 1, "hidden": 0, "attention": 0}}
    limits = dict.fromkeys(("max_unseen", "max_changed", "max_growth"), 0.9)
    recipe = vectors_recipe(data, stage, student={"layers": 1, "vocabulary": limits})
    succeed("distill", recipe, "-o", tmp_path / "run")
    score = read_training(tmp_path / "run/student").score
    assert score is not None
    assert (score.metric, score.rows) == ("mean_cosine", 20)


def test_training_rows_that_do_not_cover_the_field_are_refused_before_the_teacher_is_trained(
    finished: Path, write_recipe: Callable[..., Path], succeed: Run, refuse: Run, tmp_path: Path
) -> None:
    path = write_recipe(MANY, {}, signals=1, steps=2)
    said, limits = refuse("run", path, "-o", tmp_path / "run", code=3), ("max_unseen", "max_changed", "max_growth")
    assert all(f"student.vocabulary.{key}:" in said for key in limits)
    assert "do not cover the texts that the student will read" in said
    assert not (tmp_path / "run" / "teacher").exists()
    succeed("distill", path, "-o", tmp_path / "run", *(f"student.vocabulary.{key}=0.9" for key in limits))
    assert size(tmp_path / "run" / "student") == size(finished / "teacher") - len(MANY)


def test_nothing_to_remove_and_a_tokenizer_of_another_kind_are_refused_before_training(
    finished: Path, write_recipe: Callable[..., Path], refuse: Run, tmp_path: Path
) -> None:
    assert "pieces would stay" in refuse("distill", write_recipe((), {}), "-o", tmp_path / "run")
    teacher = shutil.copytree(finished / "teacher", tmp_path / "teacher")
    content = json.loads((teacher / "tokenizer.json").read_text())
    model = {"type": "WordLevel", "vocab": content["model"]["vocab"], "unk_token": "[UNK]"}
    (teacher / "tokenizer.json").write_text(json.dumps({**content, "model": model}))
    said = refuse("run", write_recipe(("slow",), {}), "-o", tmp_path / "other", f"teacher.model={teacher}")
    assert "type 'WordLevel'; pieces can be removed from: WordPiece, BPE, Unigram" in said


@pytest.mark.slow
def test_every_format_and_scheme_has_the_pruned_table(
    task: Any, finished: Path, write_recipe: Callable[..., Path], succeed: Run, tmp_path: Path
) -> None:
    export, files = {"formats": ["onnx", "tflite", "coreml"]}, {"files": ["int8", "small", "a8w8"]}
    succeed("run", write_recipe(("slow",), {}, export=export, quantize=files), "-o", tmp_path / "run")
    succeed("verify", "-m", tmp_path / "run" / "phone", "--data", task.folder / "eval.jsonl")
    check_files(tmp_path / "run", size(finished / "teacher"))
