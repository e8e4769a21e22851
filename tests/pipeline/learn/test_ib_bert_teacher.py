"""IB-BERT as the teacher of a recipe: fine-tuned, learnt from by a MobileBERT that is exported, never exported itself."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.tiny_texts import task_rows, vocabulary, write_lines
from support.tiny_tokenizers import write_wordpiece

SCRIPT = Path(__file__).resolve().parents[3] / "scripts/pretrain_ib_bert.py"
DEPTH = 2
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
    "embedding_size": 16,
    "initializer_range": 0.15,
}
FINETUNE = {"steps": 100, "batch": 32, "lr": 1e-2, "dropout": 0.0}
STAGE = {"method": "task", "steps": 80, "batch": 32, "lr": 1e-2, "dropout": 0.0}
Write = Callable[..., Path]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A pre-trained IB-BERT, as far as the pipeline can tell, and a MobileBERT of its widths."""
    import torch
    import transformers

    from pocketbert.distill.students.ib_bert import IbBertConfig, IbBertForPreTraining

    base, words = tmp_path_factory.mktemp("ib-bert"), vocabulary()
    configs = (
        IbBertConfig(vocab_size=len(words), intra_bottleneck_size=48, intermediate_size=64, **SIZES),
        transformers.MobileBertConfig(
            vocab_size=len(words),
            intra_bottleneck_size=16,
            intermediate_size=32,
            num_feedforward_networks=2,
            classifier_activation=False,
            **SIZES,
        ),
    )
    made = []
    for config, kind in zip(configs, (IbBertForPreTraining, transformers.MobileBertForPreTraining), strict=True):
        made.append(base / config.model_type)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            kind(config).save_pretrained(made[-1])
        write_wordpiece(made[-1], words)
    return made[0], made[1]


@pytest.fixture
def recipe(task: Any, folders: tuple[Path, Path], tmp_path: Path) -> Write:
    """`recipe(**changes)`: the tiny task with an IB-BERT teacher, and the MobileBERT as its student."""
    teacher, mobile = folders

    def write(**changes: Any) -> Path:
        student = {"model": str(mobile), "layers": None}
        whole = {
            "teacher": {"model": str(teacher), "finetune": FINETUNE},
            "student": student,
            "distill": [STAGE],
        }
        return Path(task.variant(tmp_path / "recipe.yaml", **{**whole, **changes}))

    return write


def config(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "config.json").read_text()))


def test_a_mobilebert_learns_from_it_and_is_packed(recipe: Write, cli: Callable[..., Any], tmp_path: Path) -> None:
    timed = {"runs": 10, "repeats": 2, "threads": [1], "gaps_ms": []}
    path = recipe(quantize={"scheme": "fp32"}, export={"lengths": [16]}, benchmark=timed)
    run = cli("run", path, "-o", tmp_path / "run")
    assert run.exit_code == 0, run.output
    assert config(tmp_path / "run" / "teacher")["model_type"] == "ib_bert"
    assert config(tmp_path / "run" / "teacher")["architectures"] == ["IbBertForSequenceClassification"]
    assert config(tmp_path / "run" / "student")["architectures"] == ["MobileBertForSequenceClassification"]
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    learnt = [line for line in lines if line["stage"] == "distill.0"]
    assert set(learnt[-1]["terms"]) == {"logits", "hidden", "attention"}
    assert learnt[-1]["loss"] < learnt[0]["loss"]
    assert (tmp_path / "run" / "phone" / "onnx" / "model.onnx").is_file()
    assert not list((tmp_path / "run").glob("*-teacher")), "the teacher is not exported to compare with"
    assert (tmp_path / "run" / "benchmark.json").is_file()
    assert (tmp_path / "run" / "report.html").is_file()

    said = cli("predict", "-m", tmp_path / "run" / "phone", "the song")
    assert said.exit_code == 0, said.output


@pytest.mark.parametrize(
    ("student", "where"),
    [(None, "teacher.model"), ({"layers": 1}, "student.family"), ("itself", "student.model")],
)
def test_exporting_it_is_refused_before_anything_is_trained(
    recipe: Write,
    folders: tuple[Path, Path],
    cli: Callable[..., Any],
    tmp_path: Path,
    student: Any,
    where: str,
) -> None:
    own = {"model": str(folders[0]), "layers": None} if student == "itself" else student
    path = recipe(student=own) if own else recipe(student=None, distill=None)
    for command in ((), ("--dry-run",)):
        said = cli("run", path, "-o", tmp_path / "run", *command)
        assert said.exit_code == 2, said.output
        assert f"{where}: no exporter writes IB-BERT" in said.stderr
        assert "Distil a MobileBERT student" in said.stderr
    assert not (tmp_path / "run" / "teacher").exists()


def test_the_export_verb_refuses_it(folders: tuple[Path, Path], cli: Callable[..., Any], tmp_path: Path) -> None:
    said = cli("export", "-m", folders[0], "-o", tmp_path / "phone", "--task", "fill-mask")
    assert said.exit_code == 2
    assert "--model: no exporter writes IB-BERT" in said.stderr
    assert [p.name for p in tmp_path.iterdir() if "phone" in p.name] == []


def test_what_is_not_exported_may_be_an_ib_bert(recipe: Write, cli: Callable[..., Any], tmp_path: Path) -> None:
    few = {"teacher.finetune.steps": 10, "distill.0.steps": 10}
    changed = [f"{key}={value}" for key, value in few.items()]
    run = cli("distill", recipe(student={"layers": 1}), *changed, "-o", tmp_path / "run")
    assert run.exit_code == 0, run.output
    student = config(tmp_path / "run" / "student")
    assert (student["model_type"], student["num_hidden_layers"]) == ("ib_bert", 1)


def test_its_masked_lm_is_trained_as_a_task(recipe: Write, cli: Callable[..., Any], tmp_path: Path) -> None:
    path = recipe(student=None, distill=None, task="fill-mask", data={"labels": None})
    run = cli("finetune", path, "teacher.finetune.steps=40", "-o", tmp_path / "run")
    assert run.exit_code == 0, run.output
    assert config(tmp_path / "run" / "teacher")["architectures"] == ["IbBertForMaskedLM"]
    made = [json.loads(line)["loss"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert made[-1] < made[0]


def test_a_script_pre_trains_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """In this process, and with `pocketbert.distill.methods.mobilebert` looked at in tests/distill/methods/test_pretraining.py."""
    import transformers

    words = tmp_path / "tokenizer"
    words.mkdir()
    write_wordpiece(words, vocabulary())
    texts = [f"{a['text']} {b['text']}" for a, b in zip(task_rows(60, 1), task_rows(60, 2), strict=True)]
    corpus, out = write_lines(tmp_path / "text.jsonl", [{"text": t} for t in texts]), tmp_path / "ib-bert"
    arguments = [words, corpus, out, "--steps", 4, "--batch", 8, "--length", 16]
    monkeypatch.setattr("sys.argv", [str(SCRIPT), *map(str, arguments)])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    assert "step 4: mlm" in capsys.readouterr().out
    model = transformers.AutoModelForPreTraining.from_pretrained(out)
    assert type(model).__name__ == "IbBertForPreTraining"
    assert model.config.vocab_size == len(vocabulary())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["ib-bert", "text.jsonl", "tokenizer"]
    with pytest.raises(SystemExit):
        runpy.run_path(str(SCRIPT), run_name="__main__")
    assert "is there already" in capsys.readouterr().err
