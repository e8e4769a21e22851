"""Answers of static and dynamic int8 files on emulated Arm processors, and whole graphs in integers operator by operator."""

import numpy as np
import pytest

from pocketbert.benchmarks.devices import device
from pocketbert.benchmarks.inputs import compare_answers, make_feeds, tolerated_share
from pocketbert.benchmarks.latency import benchmark
from pocketbert.benchmarks.measurement import BenchmarkOptions
from pocketbert.benchmarks.report import ModelRow, ReportData, render_report
from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import TaskName
from pocketbert.core.types import Format, Provenance, Runtime
from pocketbert.runtime.engines import add_missing_inputs
from support.counting_device import CountingConnection

from .conftest import FORMS

PROCESSORS = ("qemu-arm64:cortex-a76", "qemu-arm64:neoverse-n1")
TEXTS = [text for text in SENTENCES if len(text) < 100]
WHOLE = ("tflite a8w8 npu", "tflite a16w8 npu")


@pytest.mark.slow
def test_int8_and_static_files_answer_as_on_x86(tools, form):
    options = BenchmarkOptions(
        devices=PROCESSORS, lengths=[16, "text"], runs=5, repeats=1, profile=False, label="", budget_s=400
    )
    result = benchmark([form(name) for name in FORMS], TEXTS, options)
    assert [s.device for s in result.sessions] == list(PROCESSORS)
    for session in result.sessions:
        assert [a.variant for a in session.answers] == list(FORMS)
        assert [(a.variant, a.words) for a in session.answers if not a.passed] == []
        for check in session.answers:
            assert (check.rows, check.provenance) == (5, Provenance.EMULATED)  # one of 16 tokens, four texts
            assert check.equal is (check.largest == 0)
        assert all(m.wall is None for m in session.measurements)
        assert all(m.guest_instructions.p50 > 0 for m in session.measurements)


@pytest.mark.slow
@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("name", WHOLE)
def test_whole_graphs_have_the_bits_of_x86_except_where_the_kernels_round_otherwise(
    tools, form, script, processor, name
):
    program, variant = script("arm64_operators"), form(name)
    [length] = variant.file.open(1).lengths
    inputs = make_feeds(TextTokenizer(variant.tokenizer, length), TEXTS[:6], "text", [length])
    found = {one.kind: one for one in program.operators_on(processor, variant.path, inputs)}
    assert [str(one) for one in found.values() if not one.passed] == []
    assert {one.kind for one in found.values() if one.differ} <= set(program.DIFFERENT)
    for kind in ("EMBEDDING_LOOKUP", "ADD", "MEAN", "RSQRT", "FULLY_CONNECTED"):  # in front of what may differ
        assert any(one.results >= len(inputs) for one in found.values() if one.kind.split()[0] == kind), kind


def test_a_damaged_operator_is_found_and_what_reads_it_is_not_blamed(form, script, tmp_path):
    program, variant = script("arm64_operators"), form("tflite a8w8 npu")
    copy = variant.file._replace(path=tmp_path / "copy.tflite")
    operators, predictor = program.write_copy(variant.path, copy.path), copy.open(1)
    [length] = predictor.lengths
    inputs = make_feeds(TextTokenizer(variant.tokenizer, length), TEXTS[:2], "text", [length])
    here = [predictor.run(feed) for feed in inputs]
    assert here[0]["logits"].tobytes() == variant.file.open(1).run(inputs[0])["logits"].tobytes()
    right = program.compare(operators, here, here)
    assert sum(one.results for one in right) == 2 * len(operators)
    assert all(one.passed and not one.differ for one in right)

    def damaged(kind, steps):
        """Change one number of the first operator of a kind, in the second text only."""
        name = next(op.name for op in operators if f"{op.kind} to {here[1][op.name].dtype}" == kind)
        wrong = here[1][name].copy()
        wrong.flat[0] += np.array(-steps if wrong.flat[0] > 0 else steps).astype(wrong.dtype)
        found = program.compare(operators, here, [here[0], {**here[1], name: wrong}])
        assert {one.kind: (one.differ, one.numbers, one.steps) for one in found if one.differ} == {kind: (1, 1, steps)}
        assert sum(one.results for one in found) < 2 * len(operators)  # what reads it is not compared
        return [one.kind for one in found if not one.passed]

    assert damaged("FULLY_CONNECTED to int8", 1) == ["FULLY_CONNECTED to int8"]
    assert damaged("RSQRT to int16", 1) == ["RSQRT to int16"]
    assert damaged("SOFTMAX to int8", 1) == []
    assert damaged("SOFTMAX to int8", 2) == ["SOFTMAX to int8"]


def test_files_for_accelerators_are_run_where_nothing_is_timed():
    emulated, real = device("qemu-arm64").refusal, device("ssh:host").refusal
    for runtime in Runtime:
        assert bool(emulated(Format.TFLITE, runtime)) is (runtime is Runtime.OPENVINO)
        assert (f"made for {runtime}" in real(Format.TFLITE, runtime)) is (
            runtime.accelerator or runtime is Runtime.OPENVINO
        )
    assert emulated(Format.COREML, None) == "it runs ONNX and TFLite files only"


def shown(result):
    rows = [ModelRow(name=v.name, bytes=v.bytes) for v in result.variants]
    return ReportData(title="t", task=TaskName.TEXT_CLASSIFICATION, machine=result.machine, rows=rows, benchmark=result)


class Answers(CountingConnection):
    """A device that answers as this machine does, except for the last bit of one number of one file."""

    damaged = ""
    """Part of the file's name; empty for none."""

    def lengths(self, file):
        return file.open(1).lengths

    def answers(self, file, feeds):
        predictor, out = file.open(1), []
        for feed in feeds:
            logits = predictor.run(add_missing_inputs(predictor, feed))["logits"].copy()
            if self.damaged and self.damaged in file.path.name:
                logits[0, 0] = np.nextafter(logits[0, 0], np.float32(np.inf))
            out.append({"logits": logits})
        return out


@pytest.mark.parametrize("damaged", ["", "tflite a8w8 npu", "tflite int8"])
def test_terminal_and_report_tell_whose_bits_are_equal(form, monkeypatch, damaged):
    monkeypatch.setattr(Answers, "damaged", damaged.replace(" ", "_"))
    monkeypatch.setattr("pocketbert.benchmarks.latency.connect", Answers)
    options = BenchmarkOptions(devices=PROCESSORS[:1], lengths=[16], runs=5, repeats=1, profile=False, label="")
    result = benchmark([form("tflite a8w8 npu"), form("tflite int8")], TEXTS, options)
    assert render_report(shown(result)).count("<small>equal bits</small>") == (1 if damaged else 2)
    for check in result.answers:
        assert check.passed
        assert check.equal is (check.variant != damaged)
        assert ("equal bit for bit" in check.words) is check.equal
        assert 0 < check.largest < 1e-6 or check.equal


def test_equal_numbers_of_another_type_are_no_equal_bits(form):
    variant = form("tflite a8w8 npu")
    ids = np.array([[2, 7, 8, 9, 3, *[0] * 35]])
    feed = {"input_ids": ids, "attention_mask": (ids > 0).astype(np.int64), "token_type_ids": ids * 0}
    right = variant.file.open(1).run(feed)["logits"]
    for told, equal, passed in (
        (right, True, True),
        (right.astype(np.float64), False, True),
        (right * (1 + 0.5 * tolerated_share(variant.scheme)), False, True),
        (right * 2, False, False),
        (right * np.nan, False, False),
    ):
        check = compare_answers(variant, [feed], [{"logits": told}], Provenance.EMULATED)
        assert (check.equal, check.passed) == (equal, passed)
    assert compare_answers(variant, [feed], [], Provenance.EMULATED).equal is False
