"""What comes before and after an inference is timed by itself."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pocketbert.benchmarks import text_steps as steps
from pocketbert.benchmarks.latency import benchmark
from pocketbert.benchmarks.measurement import BenchmarkOptions, BenchmarkResult, Variant
from pocketbert.benchmarks.report import ModelRow, ReportData, render_report
from pocketbert.benchmarks.report.output import describe_sessions
from pocketbert.benchmarks.statistics import Statistics
from pocketbert.benchmarks.text_steps import PostProcessing, time_post_processing
from pocketbert.core.data.labels import Labels
from pocketbert.core.heads import make_head
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import TASKS, Level, TaskName
from pocketbert.core.types import Provenance
from support.tiny_tokenizers import vocabulary, write_wordpiece

LABELS = ("O", "B-A", "I-A")
QUICK = BenchmarkOptions(runs=10, repeats=2, label="", profile=False, budget_s=5)


class Random:
    """An engine whose outputs have the shapes of a task, and that writes down how often it ran."""

    lengths: tuple[int, ...] = ()

    def __init__(self, task: Any, size: int) -> None:
        self.task, self.size, self.outputs, self.runs = task, size, task.outputs, 0

    def run(self, inputs: dict[str, Any]) -> dict[str, Any]:
        self.runs += 1
        rows, length = inputs["input_ids"].shape
        draw = np.random.default_rng(self.runs)
        wide = (rows, length, self.size) if self.task.level is Level.TOKEN else (rows, self.size)
        shapes = {
            name: (rows, length) if name.endswith("t_logits") or name.startswith("end") else wide
            for name in self.outputs
        }
        return {name: draw.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    folder = tmp_path_factory.mktemp("words")
    write_wordpiece(folder, vocabulary(0))
    return TextTokenizer(folder, 32)


@pytest.mark.parametrize("name", list(TaskName))
def test_every_task_has_a_step_after_the_engine(name: TaskName, tokenizer: TextTokenizer, texts: list[str]) -> None:
    task = TASKS[name]
    engine = Random(task, len(vocabulary(0)) if name is TaskName.FILL_MASK else len(LABELS))
    path = Path("model.onnx")
    variant: Any = SimpleNamespace(
        name="a", path=path, max_length=32, file=SimpleNamespace(open=lambda threads: engine)
    )
    how = PostProcessing(make_head(task, Labels(LABELS)))
    (told,) = time_post_processing([variant], {"a": tokenizer}, texts, {path: how}, [])
    assert (told.variants, told.task, told.outputs_of, told.texts) == (["a"], name, "a", len(texts))
    assert len(told.wall_ms) == len(texts) and min(told.wall_ms) > 0
    assert told.per_text == Statistics.of(told.wall_ms)
    assert told.provenance is Provenance.MEASURED
    assert engine.runs >= len(texts) + steps._POST_WARMUP


def test_files_of_one_task_share_a_figure_and_others_have_none(variants: list[Variant], texts: list[str]) -> None:
    head = make_head(TASKS[TaskName.TEXT_CLASSIFICATION], Labels(("x", "y", "z")))
    made = benchmark(variants, texts, QUICK, post_processing={v.path: PostProcessing(head) for v in variants})
    (told,) = made.post_processing
    assert told.variants == [v.name for v in variants]
    assert told.outputs_of == variants[0].name
    assert BenchmarkResult.model_validate_json(made.model_dump_json()) == made
    assert "wall_ms" not in made.to_dict()["post_processing"][0]
    assert len(made.tokenizers[0].wall_ms) == made.tokenizers[0].per_text.n
    lines = [line for line in describe_sessions(made) if "not in the times above" in line]
    assert [line.split(",")[0] for line in lines] == ["tokenizer", "post-processing (text-classification)"]
    rows = [ModelRow(name=v.name, bytes=v.bytes) for v in made.variants]
    page = render_report(
        ReportData(title="t", task=TaskName.TEXT_CLASSIFICATION, machine=made.machine, rows=rows, benchmark=made)
    )
    assert "<h3>Post-processing</h3>" in page
    assert benchmark(variants, texts, QUICK).post_processing == []


def test_slow_inferences_bound_the_number_of_texts(tokenizer: TextTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "_POST_S", 0.0)
    task, path = TASKS[TaskName.TEXT_CLASSIFICATION], Path("model.onnx")
    engine = Random(task, len(LABELS))
    variant: Any = SimpleNamespace(
        name="a", path=path, max_length=32, file=SimpleNamespace(open=lambda threads: engine)
    )
    texts = [f"text {i}" for i in range(200)]
    (told,) = time_post_processing(
        [variant], {"a": tokenizer}, texts, {path: PostProcessing(make_head(task, Labels(LABELS)))}, []
    )
    assert told.texts == steps._POST_LEAST


def test_outputs_of_another_task_are_told_and_end_nothing(variants: list[Variant], texts: list[str]) -> None:
    for task, labels in ((TaskName.TEXT_CLASSIFICATION, ("x", "y")), (TaskName.QUESTION_ANSWERING, ())):
        how = PostProcessing(make_head(TASKS[task], Labels(labels)))
        made = benchmark(variants, texts, QUICK, post_processing={v.path: how for v in variants})
        assert made.post_processing == []
        told = f"No post-processing time of {variants[0].name}, {variants[1].name}: the outputs are not those of {task} here."
        assert told in made.protocol.notes
