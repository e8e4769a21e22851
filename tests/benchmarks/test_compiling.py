"""Files compiled for devices on which nothing is timed: emulated answers, scores, and what commands do with them."""

from pathlib import Path

import numpy as np
import pytest

from pocketbert.benchmarks.compiling import Target, compile_for
from pocketbert.benchmarks.devices import Compiled, Device, register_device, unregister_device
from pocketbert.benchmarks.measurement import BenchmarkOptions, BenchmarkResult
from pocketbert.benchmarks.report.compiled import make_compilation_table
from pocketbert.core.compare.evaluate import EvalSet
from pocketbert.core.data.labels import Labels
from pocketbert.core.devices import DeviceInfo, DeviceName, Figure
from pocketbert.core.heads.table import make_head
from pocketbert.core.predict.examples import Example
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.recipe import BenchmarkSection
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.core.types import Format, Provenance
from pocketbert.pipeline.make.measuring import measure, section_options

FIGURES = {Figure.ANSWERS: Provenance.EMULATED, Figure.PLACEMENT: Provenance.COMPILED_ONLY}
OPTIONS = BenchmarkOptions(lengths=[16], label="")


class Emulator:
    """A compiler whose emulator answers what `answer(predictor, feeds)` returns."""

    method, target, engine, engine_version = "scripted", "a chip", "nothing", "1"

    def __init__(self, answer):
        self.answer = answer

    def compile(self, predictor, path, length, feeds, budget_s):
        assert {f["input_ids"].shape for f in feeds} == {(1, length)}
        return Compiled(op_types={"MatMul": 2}, partitions=1, answers=self.answer(predictor, feeds))


def make_target(answer, variant):
    return Target(DeviceName(DeviceInfo("scripted", FIGURES, "a script")), Emulator(answer), [variant])


def test_one_row_with_small_answers_is_held_against_the_largest_of_more_rows(variants, texts):
    largest = []

    def answer_a_little_wrong(predictor, feeds):
        largest.extend(float(np.abs(predictor.run(f)["logits"]).max()) for f in feeds)
        return [{"logits": predictor.run(feeds[0])["logits"] + np.float32(0.04 * max(largest))}]

    (made,) = compile_for([make_target(answer_a_little_wrong, variants[0])], texts, OPTIONS, 1.0)
    assert (made.answers.rows, made.answers.available) == (1, len(largest))
    assert len(largest) <= 16
    assert largest[0] < max(largest)
    assert made.answers.tolerance == pytest.approx(0.05 * max(largest))
    assert made.answers.passed
    assert compile_for([], [], OPTIONS, 1.0) == []


def test_emulated_rows_are_scored_on_labelled_data(variants, texts):
    labels, variant = ("a", "b", "c"), variants[1]
    head = make_head(TASKS[TaskName.TEXT_CLASSIFICATION], Labels(labels))
    rows = [Example(text, None, labels[i % 3], i) for i, text in enumerate(texts)]
    tokenizer = TextTokenizer(variant.tokenizer, variant.max_length)
    labelled = EvalSet("dev", head, head.prepare(rows, tokenizer, "dev"))
    exact = make_target(lambda predictor, feeds: [dict(predictor.run(f)) for f in feeds[:3]], variant)
    (made,) = compile_for([exact], texts, OPTIONS, 1.0, labelled)
    answers = made.answers
    assert (answers.rows, answers.available, answers.largest) == (3, 12, 0.0)
    assert (answers.score.rows, answers.score) == (3, answers.score_here)
    assert answers.score_words.startswith("accuracy ")
    header, (row,) = make_compilation_table([made])
    assert row[header.index("score (emulated)")] == answers.score_words


@pytest.fixture
def stuck():
    """A registered device whose emulator answers zeros, and that takes ONNX files."""
    compiler = Emulator(lambda predictor, feeds: [{"logits": np.zeros((1, 3), np.float32)}])
    info = DeviceInfo("stuck", FIGURES, "a script")
    refuse = lambda format, _: "" if format is Format.ONNX else "it takes ONNX only"  # noqa: E731
    register_device(Device(info, refusal=refuse, compiler=lambda _: compiler))
    yield
    unregister_device("stuck")


@pytest.mark.usefixtures("stuck")
def test_wrong_answers_of_the_emulator_end_with_exit_code_3_and_are_written(phone, pocketbert, tmp_path):
    output = tmp_path / "benchmark.json"
    options = ("--preset", "quick", "--runs", 10, "--repeats", 2, "--lengths", 16, "--threads", 1, "-o", output)
    done = pocketbert("benchmark", "-m", phone, "--device", "stuck", "--device", "local", *options)
    assert done.exit_code == 3, done.output
    assert "on stuck, 16 tokens: 1 rows compared with this machine's CPU: largest difference" in done.stderr
    assert "No NPU was timed" in done.stdout
    result = BenchmarkResult.read(output)
    assert [s.device for s in result.sessions] == ["local"]
    assert [(c.device, c.length) for c in result.compilations] == [("stuck", 16)]


@pytest.mark.usefixtures("stuck")
def test_what_needs_a_device_that_runs_files_or_an_emulator_is_refused(phone, pocketbert, tmp_path):
    recorded = pocketbert("benchmark", "-m", phone, "--device", "stuck", "--record")
    assert recorded.exit_code == 2
    assert "--record" in recorded.stderr
    (tmp_path / "dev.csv").write_text("text,label\nset an alarm,a\n")
    done = pocketbert("benchmark", "-m", phone, "--data", tmp_path / "dev.csv")
    assert done.exit_code == 2
    assert "--data: is scored on devices with an emulator of an NPU only" in done.stderr


@pytest.mark.usefixtures("stuck")
def test_a_recipe_may_name_it_without_a_device_that_runs_files(variants, texts, tmp_path):
    section, variant = BenchmarkSection(devices=["stuck"], threads=[1], runs=10, repeats=2), variants[1]
    result = measure([variant], texts, section_options(section, [16]), root=variant.path.parent)
    assert repr(result) == "<BenchmarkResult 1 files, 0 measurements, 1 compilations on stuck>"
    assert [v.path for v in result.variants] == [Path("student.onnx")]
    result.write(tmp_path / "benchmark.json")
    again = BenchmarkResult.read(tmp_path / "benchmark.json")
    assert (again.sessions, again.headline.timed, again.compilations) == ([], False, result.compilations)
