"""Which file the report and the card name for a platform: what the scores, sizes, latencies and gates justify."""

import dataclasses

import pytest

from pocketbert.benchmarks.report import ModelRow, render_report
from pocketbert.benchmarks.report.choice import DeviceTimes, choose_files, collect_times, list_files
from pocketbert.core.predict.scores import Score
from pocketbert.core.types import Scheme, Status


def make_row(name, score, megabytes, platform="Android", **more):
    """A file with an accuracy in points (None: not scored), a size in MB and a platform."""
    scored = (
        Score(metric="accuracy", value=score / 100, others={}, rows=100, chance=0.1, finite=True) if score else None
    )
    usual = {"status": Status.PASSED, "platforms": [platform], "path": f"f/{name}", "scheme": name}
    return ModelRow(name=name, bytes=int(megabytes * 1e6), eval_score=scored, **(usual | more))


FAILED = {"status": Status.FAILED}
DEFAULT = {"is_default": True}
CASES = {
    "the default file": ([("int8", 90, 10, DEFAULT), ("fp32", 91, 40, {})], {}, "int8", ""),
    "smaller and faster, but worse": ([("int8", 90, 10, DEFAULT), ("w4", 89, 5, {})], {"int8": 2, "w4": 1}, "int8", ""),
    "it failed": ([("int8", 90, 10, DEFAULT | FAILED), ("fp32", 91, 40, {})], {}, "fp32", "int8 failed a gate"),
    "another is better in all": (
        [("int8", 90, 10, DEFAULT), ("w4", 91, 5, {})],
        {"int8": 2, "w4": 1},
        "w4",
        "int8 is beaten in score, size, latency",
    ),
    "another is smaller and as good": (
        [("int8", 90, 10, DEFAULT), ("w4", 90, 5, {}), ("w8", 90, 9, {})],
        {},
        "w4",
        "int8 is beaten in size",
    ),
    "two are better": (
        [("int8", 90, 10, DEFAULT), ("w4", 91, 5, {}), ("w8", 92, 9, {})],
        {},
        "w8",
        "int8 is beaten in score, size",
    ),
    "the better one failed": ([("int8", 90, 10, DEFAULT), ("w4", 91, 5, FAILED)], {}, "int8", ""),
    "the better one is slower": ([("int8", 90, 10, DEFAULT), ("w4", 91, 5, {})], {"int8": 1, "w4": 2}, "int8", ""),
    "only one was timed": ([("int8", 90, 10, DEFAULT), ("w4", 91, 5, {})], {"int8": 1}, "int8", ""),
    "only one was scored": ([("int8", 90, 10, DEFAULT), ("w4", None, 5, {})], {}, "int8", ""),
    "none is default: the fastest": ([("fp32", 90, 10, {}), ("w8", 89, 11, {})], {"fp32": 2, "w8": 1}, "w8", ""),
    "none passed": ([("int8", 90, 10, DEFAULT | FAILED)], {}, None, "no file passed its gates"),
}


@pytest.mark.parametrize(("files", "times", "taken", "reason"), CASES.values(), ids=CASES)
def test_the_file_is_the_one_that_the_numbers_justify(files, times, taken, reason):
    rows = [make_row(name, score, size, **more) for name, score, size, more in files]
    teacher = make_row("teacher", 99, 0.1, scheme=Scheme.FP32, is_teacher=True)
    (choice,) = choose_files([teacher, *rows], {"local": DeviceTimes(times)} if times else {})
    assert (choice.row.name if choice.row else None, choice.reason) == (taken, reason)
    assert choice.time == times.get(taken)


def test_each_platform_has_its_own_files_the_scheme_of_the_default_file_and_its_own_device():
    rows = [
        make_row("int8", 90, 10, "Android, ONNX Runtime", **DEFAULT),
        make_row("core ml fp16", 90, 20, "iOS", scheme=Scheme.FP16),
        make_row("core ml w8", 89, 10, "iOS", scheme=Scheme.W8),
    ]
    times = {"local": DeviceTimes({"int8": 1.0}), "adb:1": DeviceTimes({"int8": 5.0}, "Android")}
    choices = choose_files(rows, times)
    assert [(c.place, c.row.name, c.time, c.device) for c in choices] == [
        ("Android, ONNX Runtime", "int8", 5.0, "adb:1"),
        ("iOS", "core ml w8", None, ""),
    ]
    assert next((row.name, places) for row, places in list_files(choices)) == ("int8", ["Android, ONNX Runtime"])


@pytest.mark.parametrize(
    ("device", "system", "platform"),
    [
        ("local", "Linux 6.1", ""),
        ("adb:1", "Linux 5.10", "Android"),
        ("Google Pixel 8", "Android 15 (API 35)", "Android"),
        ("qai-hub:Galaxy S24", "Qualcomm AI Hub", "Android"),
        ("browser: Pixel 8", "Mozilla/5.0", "Web"),
    ],
)
def test_devices_are_of_a_platform_by_their_name_or_their_system(result, device, system, platform):
    machine = dataclasses.replace(result.machine, system=system)
    measurements = [m.model_copy(update={"device": device}) for m in result.measurements]
    measured = result.model_copy(update={"machine": machine, "measurements": measurements})
    rows = [make_row(v.name, 90, 10, scheme=Scheme.FP32) for v in result.variants]
    (times,) = collect_times(rows, measured).values()
    assert (times.platform, {*times.p50}) == (platform, {row.name for row in rows})


def test_the_page_names_the_file_and_says_when_there_is_none(make_data, words):
    passed, failed = make_row("int8", 90, 10, **DEFAULT), make_row("w4", 80, 5, **FAILED)
    page = render_report(make_data(rows=[passed, failed]))
    text = words(page.split('<section id="decision">')[1].split("</section>")[0])
    assert text.startswith("1 of 2 files failed their gates: w4. Why Take f/int8 on Android ")
    assert "90.00 accuracy of int8" in text
    assert "Latency was not measured in this run." in text
    assert "Score against size." in text
    none = words(render_report(make_data(rows=[passed.model_copy(update=FAILED)])))
    assert "There is no file to take: none passed its gates." in none
    alone = words(render_report(make_data(rows=[passed])))
    assert "The file passed its gates. Take f/int8 on Android" in alone
    assert "Score against" not in alone, "a picture of one point says nothing"
