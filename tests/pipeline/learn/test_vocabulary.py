"""A recipe that prunes the student's vocabulary: chosen, judged before training, and carried to every file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pocketbert.core.predict.tokenization import TextTokenizer
from support.tiny_texts import write_lines

STAGE = {"method": "task", "steps": 60, "batch": 32, "lr": 3e-3, "dropout": 0.0, "checkpoint": 20}
LOGITS = {**STAGE, "signals": {"logits": 1, "hidden": 0, "attention": 0}}
MANY = ("quick", "chair", "table", "door", "room", "house")


def rows_without(task: Any, destination: Path, *words: str) -> Path:
    """The training rows that have none of some words."""
    rows = [json.loads(line) for line in (task.folder / "train.jsonl").read_text().splitlines()]
    return write_lines(destination, [row for row in rows if not {*row["text"].split()} & {*words}])


def recipe(task: Any, finished: Path, base: Path, words: tuple[str, ...], rule: dict[str, Any], **changes: Any) -> Path:
    """A recipe with the finished run's teacher, whose training rows lack some words."""
    data = {"train": {"path": str(rows_without(task, base / "train.jsonl", *words))}}
    teacher = {"model": str(finished / "teacher"), "finetune": None}
    more = {"student": {"layers": 1, "vocabulary": rule}, "distill": [LOGITS], **changes}
    return Path(task.variant(base / "recipe.yaml", data=data, teacher=teacher, **more))


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
        assert "slow" not in lines
        assert tokenizer.encode(["slow"])[0].ids.tolist() == [
            lines.index(t) for t in ("[CLS]", "s", "##l", "##o", "##w", "[SEP]")
        ]
    golden = [json.loads(line) for line in (run / "phone" / "golden_tokens.jsonl").read_text().splitlines()]
    assert max(i for row in golden for i in row["ids"]) < before - 1


def test_a_piece_that_no_training_row_has_is_in_no_file(
    task: Any, finished: Path, cli: Callable[..., Any], tmp_path: Path
) -> None:
    # a static scheme: its calibration reads training rows with the student's own ids
    files = {"files": ["int8", "a8w8"]}
    path = recipe(task, finished, tmp_path, ("slow",), {"resplit": 0.25}, quantize=files)
    result = cli("run", path, "-o", tmp_path / "run")
    assert result.exit_code == 0, result.output
    before = size(finished / "teacher")
    assert f"{before - 1} of {before} pieces are kept" in result.stderr
    assert "held-out rows" in result.stderr
    check_files(tmp_path / "run", before)
    assert size(tmp_path / "run" / "distill" / "0") == before, "between stages the whole vocabulary is there"
    training = json.loads((tmp_path / "run" / "student" / "training.json").read_text())
    assert any(f"vocabulary: {before - 1} of {before} pieces are kept" in note for note in training["notes"])
    again = cli("run", path, "-o", tmp_path / "run", "student.vocabulary.max_changed=0.39")
    assert again.exit_code == 0, again.output
    other = cli("run", path, "-o", tmp_path / "run", "student.vocabulary.at_least=2")
    assert other.exit_code == 2, "another rule is another student"


def test_training_rows_that_do_not_cover_the_field_are_refused_before_the_teacher_is_trained(
    task: Any, finished: Path, cli: Callable[..., Any], tmp_path: Path
) -> None:
    path = recipe(task, finished, tmp_path, MANY, {})
    result = cli("run", path, "-o", tmp_path / "run")
    assert result.exit_code == 3, result.output
    for words in ("max_unseen", "max_changed", "max_growth"):
        assert f"student.vocabulary.{words}:" in result.stderr
    assert "do not cover the texts that the student will read" in result.stderr
    assert not (tmp_path / "run" / "teacher").exists()
    limits = [f"student.vocabulary.{key}=0.9" for key in ("max_unseen", "max_changed", "max_growth")]
    stage = "distill=[{method: task, steps: 2, signals: {logits: 1, hidden: 1, attention: 1}}]"
    allowed = cli("distill", path, "-o", tmp_path / "run", *limits, stage)
    assert allowed.exit_code == 0, allowed.output
    assert size(tmp_path / "run" / "student") == size(finished / "teacher") - len(MANY)


def test_nothing_to_remove_is_refused(task: Any, finished: Path, cli: Callable[..., Any], tmp_path: Path) -> None:
    result = cli("distill", recipe(task, finished, tmp_path, (), {}), "-o", tmp_path / "run")
    assert result.exit_code == 2
    assert "pieces would stay" in result.stderr


def test_a_tokenizer_of_another_kind_is_refused_before_training(
    task: Any, finished: Path, cli: Callable[..., Any], tmp_path: Path
) -> None:
    import shutil

    teacher = tmp_path / "teacher"
    shutil.copytree(finished / "teacher", teacher)
    content = json.loads((teacher / "tokenizer.json").read_text())
    model = {"type": "WordLevel", "vocab": content["model"]["vocab"], "unk_token": "[UNK]"}
    (teacher / "tokenizer.json").write_text(json.dumps({**content, "model": model}))
    path = recipe(task, finished, tmp_path, ("slow",), {})
    result = cli("run", path, "-o", tmp_path / "run", f"teacher.model={teacher}")
    assert result.exit_code == 2
    assert "type 'WordLevel'; pieces can be removed from: WordPiece, BPE, Unigram" in result.stderr


@pytest.mark.slow
def test_every_format_and_scheme_has_the_pruned_table(
    task: Any, finished: Path, cli: Callable[..., Any], tmp_path: Path
) -> None:
    export = {"formats": ["onnx", "tflite", "coreml"]}
    path = recipe(task, finished, tmp_path, ("slow",), {}, export=export, quantize={"files": ["int8", "small", "a8w8"]})
    result = cli("run", path, "-o", tmp_path / "run")
    assert result.exit_code == 0, result.output
    verified = cli("verify", "-m", tmp_path / "run" / "phone", "--data", task.folder / "eval.jsonl")
    assert verified.exit_code == 0, verified.output
    check_files(tmp_path / "run", size(finished / "teacher"))
