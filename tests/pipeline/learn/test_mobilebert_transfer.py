"""`pocketbert distill` with MobileBERT's stage, from plain text to the student's folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.tiny_texts import task_rows, vocabulary, write_lines
from support.tiny_tokenizers import write_wordpiece

STAGE = {
    "method": "mobilebert",
    "steps": 24,
    "transfer_steps": 12,
    "batch": 8,
    "truth": 1,
    "weights": {"attention": 0},
    "checkpoint": 5,
}
TASK = {"method": "task", "steps": 10, "batch": 16, "dropout": 0.0, "signals": {"hidden": 0, "attention": 0}}
Write = Callable[..., Path]


@pytest.fixture
def recipe(task: Any, tmp_path: Path) -> Write:
    """`recipe(stages, student, **changes)`: the tiny task, whose student is a MobileBERT."""
    text = write_lines(tmp_path / "text.jsonl", [{"text": r["text"]} for r in task_rows(120, 9)])

    def write(stages: list[dict[str, Any]], size: str | None = "mini", **changes: Any) -> Path:
        changes.setdefault("teacher", {"finetune": {"steps": 10}})
        data = {"corpus": {"sources": [{"path": str(text)}], "length": 32}}
        return task.variant(
            tmp_path / "recipe.yaml",
            distill=stages,
            data=data,
            student={"size": size, "layers": None},
            **changes,
        )

    return write


@pytest.fixture(scope="module")
def ib_bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pre-trained IB-BERT, as far as the pipeline can tell."""
    import torch

    from pocketbert.distill.students.ib_bert import IbBertConfig, IbBertForPreTraining

    words, folder = vocabulary(), tmp_path_factory.mktemp("ib-bert")
    config = IbBertConfig(
        vocab_size=len(words),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        embedding_size=16,
        intra_bottleneck_size=48,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        IbBertForPreTraining(config).save_pretrained(folder)
    write_wordpiece(folder, words)
    return folder


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ordinary teacher without heads, as wide as the mini student is between its blocks."""
    import torch
    import transformers

    words, folder = vocabulary(), tmp_path_factory.mktemp("wide")
    config = transformers.BertConfig(
        vocab_size=len(words),
        hidden_size=160,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        transformers.BertModel(config).save_pretrained(folder)
    write_wordpiece(folder, words)
    return folder


def records(folder: Path, stage: str = "distill.0") -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["stage"] == stage]


def test_a_student_of_an_ib_bert_learns_its_blocks_and_its_guesses(
    recipe: Write, ib_bert: Path, cli: Callable[..., Any], tmp_path: Path
) -> None:
    stage = {**STAGE, "truth": 0.5, "weights": {"attention": 1}}
    teacher = {"model": str(ib_bert), "finetune": {"steps": 10}}
    run = cli("distill", recipe([stage, TASK], teacher=teacher), "-o", tmp_path / "run")
    assert run.exit_code == 0, run.output
    reduced = "MobileBERT transfer: progressive, reduced to 24 of 520,000 steps"
    assert reduced in run.stderr
    told = json.loads((tmp_path / "run" / "student" / "training.json").read_text())["notes"]
    assert told == [f"{reduced}, batch 8 instead of 2,048"]
    made = records(tmp_path / "run")
    assert {k for r in made for k in r["terms"]} == {"layer_1", "layer_2", "guesses", "next_sentence"}
    assert made[0]["lr"] > made[-1]["lr"]
    config = json.loads((tmp_path / "run" / "student" / "config.json").read_text())
    assert config["architectures"] == ["MobileBertForSequenceClassification"]
    assert (config["hidden_size"], config["num_hidden_layers"], config["num_attention_heads"]) == (32, 2, 2)
    assert (config["intra_bottleneck_size"], config["normalization_type"]) == (32, "no_norm")
    curves = json.loads((tmp_path / "run" / "student" / "training.json").read_text())["curves"]
    # 24 steps are two records: the first layers in one, the guesses in both
    assert curves[0]["terms"]["layer_1"][1] is None
    assert curves[0]["terms"]["guesses"][1] is not None


def test_an_ordinary_teacher_teaches_through_its_principal_components(
    recipe: Write, wide: Path, cli: Callable[..., Any], tmp_path: Path
) -> None:
    teacher = {"model": str(wide), "finetune": {"steps": 10}}
    path = recipe([{**STAGE, "strategy": "joint"}, TASK], teacher=teacher)
    run = cli("distill", path, "-o", tmp_path / "run")
    assert run.exit_code == 0, run.output
    assert "BERT has no bottlenecks: 128 principal components of its states" in run.stderr
    config = json.loads((tmp_path / "run" / "student" / "config.json").read_text())
    assert (config["hidden_size"], config["embedding_size"], config["num_attention_heads"]) == (128, 32, 4)
    again = cli("distill", path, "-o", tmp_path / "again")
    assert again.exit_code == 0, again.output
    one, two = ((tmp_path / n / "student" / "model.safetensors").read_bytes() for n in ("run", "again"))
    assert one == two


def test_stages_follow_each_other_and_embeddings_go_on(
    recipe: Write, wide: Path, cli: Callable[..., Any], tmp_path: Path
) -> None:
    before = {"method": "minilm", "steps": 3, "batch": 8}
    again = {**STAGE, "steps": 12, "transfer_steps": 6}
    teacher = {"model": str(wide), "finetune": {"steps": 5}}
    run = cli("distill", recipe([before, again, again, TASK], teacher=teacher), "-o", tmp_path / "run")
    assert run.exit_code == 0, run.output
    notes = json.loads((tmp_path / "run" / "student" / "training.json").read_text())["notes"]
    assert [n.split(":")[0] for n in notes] == [
        f"BERT has no bottlenecks{notes[0].removeprefix('BERT has no bottlenecks').partition(':')[0]}",
        *["MobileBERT transfer"] * 2,
    ]
    assert all("reduced to 12 of 520,000 steps, batch 8 instead of 2,048" in n for n in notes[1:])


def test_words_can_be_guessed_after_a_stage_without_that_head(
    recipe: Write, cli: Callable[..., Any], tmp_path: Path
) -> None:
    import torch
    import transformers
    import yaml

    folder = tmp_path / "lm"
    config = transformers.BertConfig(
        vocab_size=len(vocabulary()),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    with torch.random.fork_rng(devices=[]):
        transformers.BertForMaskedLM(config).save_pretrained(folder)
    write_wordpiece(folder, vocabulary())
    task = {"method": "task", "steps": 4, "batch": 8}
    path = recipe(
        [{"method": "minilm", "steps": 3, "batch": 8}, task],
        teacher={"model": str(folder), "finetune": None},
        task="fill-mask",
        answer=None,
    )
    data = yaml.safe_load(path.read_text())
    data["data"].pop("labels")
    data["student"] = {"layers": 1}
    path.write_text(yaml.safe_dump(data))
    run = cli("distill", path, "-o", tmp_path / "run")
    assert run.exit_code == 0, run.output
    made = json.loads((tmp_path / "run" / "student" / "config.json").read_text())
    assert made["architectures"] == ["BertForMaskedLM"]


def test_a_masked_language_model_comes_out_with_the_head_that_the_stage_trained(
    recipe: Write, ib_bert: Path, cli: Callable[..., Any], tmp_path: Path
) -> None:
    # fill-mask is judged by no rows here: general stages alone
    path = recipe(
        [{**STAGE, "truth": 0.5}], teacher={"model": str(ib_bert), "finetune": None}, task="fill-mask", answer=None
    )
    import yaml

    data = yaml.safe_load(path.read_text())
    data["data"] = {k: v for k, v in data["data"].items() if k in ("corpus", "max_length")}
    path.write_text(yaml.safe_dump(data))
    run = cli("distill", path, "-o", tmp_path / "run")
    assert run.exit_code == 0, run.output
    config = json.loads((tmp_path / "run" / "student" / "config.json").read_text())
    assert config["architectures"] == ["MobileBertForMaskedLM"]


def test_what_cannot_be_is_refused_with_the_way_out(
    recipe: Write, wide: Path, ib_bert: Path, cli: Callable[..., Any], tmp_path: Path
) -> None:
    def said(*arguments: Any, **more: Any) -> str:
        run = cli("distill", recipe(*arguments, **more), "-o", tmp_path / "none", "--overwrite")
        assert run.exit_code == 2, run.output
        return " ".join(run.stderr.split())

    headless = {"model": str(wide), "finetune": {"steps": 10}}
    words = said([{**STAGE, "truth": 0.5}, TASK], teacher=headless)
    assert "has no trained head for fill-mask" in words
    assert "Set truth: 1 to learn only its layers and the original tokens." in words
    assert "the student has 4 heads, the teacher 2" in said([{**STAGE, "weights": {}}, TASK], teacher=headless)
    narrow = said([STAGE, TASK])
    assert "'mini' is 128 wide between its blocks, the teacher only 32" in narrow
    bad = [{**STAGE, "strategy": "auxiliary", "pairs": False, "masking": "none"}, TASK]
    words = said(bad, size="large")
    for wanted in (
        "size",
        "mobilebert",
        "transfer_steps has no meaning with strategy: auxiliary",
        "pairs: false leaves no next sentence",
        "masking: none leaves nothing to guess",
    ):
        assert wanted in words
    words = said([{**STAGE, "transfer_steps": 1}, TASK], teacher={"model": str(ib_bert), "finetune": {"steps": 10}})
    assert "distill.0.transfer_steps: 1 steps do not divide into the 2 phases" in words
