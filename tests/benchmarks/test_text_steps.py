"""What comes before and after an inference is timed by itself."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from pocketbert.benchmarks import text_steps
from pocketbert.benchmarks.latency import benchmark
from pocketbert.benchmarks.measurement import BenchmarkOptions, BenchmarkResult
from pocketbert.benchmarks.report import render_report
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
CLASSIFY = TASKS[TaskName.TEXT_CLASSIFICATION]


class RandomEngine:
    """An engine whose outputs have the shapes of a task, and that writes down how often it ran."""

    lengths: tuple[int, ...] = ()

    def __init__(self, task, size):
        self.task, self.size, self.outputs, self.runs = task, size, task.outputs, 0

    def run(self, inputs):
        self.runs += 1
        rows, length = inputs["input_ids"].shape
        draw = np.random.default_rng(self.runs)
        wide = (rows, length, self.size) if self.task.level is Level.TOKEN else (rows, self.size)
        spans = {name for name in self.outputs if name in ("start_logits", "end_logits")}
        shapes = {name: (rows, length) if name in spans else wide for name in self.outputs}
        return {name: draw.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def time_steps(tmp_path, engine, texts):
    """Time the step after an engine for one file."""
    write_wordpiece(tmp_path, vocabulary(0))
    path, tokenizer = Path("model.onnx"), TextTokenizer(tmp_path, 32)
    file = SimpleNamespace(open=lambda threads: engine)
    variant = SimpleNamespace(name="a", path=path, max_length=32, file=file)
    how = PostProcessing(make_head(engine.task, Labels(LABELS)))
    (told,) = time_post_processing([variant], {"a": tokenizer}, texts, {path: how}, [])
    return told


@pytest.mark.parametrize("name", list(TASKS))
def test_every_task_has_a_step_after_the_engine(name, tmp_path, texts):
    engine = RandomEngine(TASKS[name], len(vocabulary(0)) if name is TaskName.FILL_MASK else len(LABELS))
    told = time_steps(tmp_path, engine, texts)
    assert (told.variants, told.task, told.outputs_of, told.texts) == (["a"], name, "a", len(texts))
    assert len(told.wall_ms) == len(texts)
    assert min(told.wall_ms) > 0
    assert told.per_text == Statistics.of(told.wall_ms)
    assert told.provenance is Provenance.MEASURED
    assert engine.runs >= len(texts) + 3  # the first ones are a warm-up


def test_slow_inferences_bound_the_number_of_texts(tmp_path, monkeypatch):
    class SlowEngine(RandomEngine):
        def run(self, inputs):
            now[0] += 2.0
            return super().run(inputs)

    now = [0.0]
    monkeypatch.setattr(text_steps.time, "monotonic", lambda: now[0])
    engine = SlowEngine(CLASSIFY, len(LABELS))
    assert time_steps(tmp_path, engine, [f"text {i}" for i in range(200)]).texts == 10


def test_files_of_one_task_share_a_figure_and_others_have_none(variants, texts, make_data):
    head = make_head(CLASSIFY, Labels(("x", "y", "z")))
    made = benchmark(variants, texts, QUICK, post_processing={v.path: PostProcessing(head) for v in variants})
    (told,) = made.post_processing
    assert told.variants == [v.name for v in variants]
    assert told.outputs_of == variants[0].name
    assert BenchmarkResult.model_validate_json(made.model_dump_json()) == made
    assert "wall_ms" not in made.to_dict()["post_processing"][0]
    assert len(made.tokenizers[0].wall_ms) == made.tokenizers[0].per_text.n
    lines = [line for line in describe_sessions(made) if "not in the times above" in line]
    assert [line.split(",")[0] for line in lines] == ["tokenizer", "post-processing (text-classification)"]
    assert "<h3>Post-processing</h3>" in render_report(make_data(benchmark=made))


@pytest.mark.parametrize(
    ("task", "labels"), [(TaskName.TEXT_CLASSIFICATION, ("x", "y")), (TaskName.QUESTION_ANSWERING, ())]
)
def test_outputs_of_another_task_are_told_and_end_nothing(variants, texts, task, labels):
    how = PostProcessing(make_head(TASKS[task], Labels(labels)))
    made = benchmark(variants[:1], texts, QUICK, post_processing={variants[0].path: how})
    assert made.post_processing == []
    told = f"No post-processing time of {variants[0].name}: the outputs are not those of {task} here."
    assert told in made.protocol.notes
