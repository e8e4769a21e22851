"""Two benchmarks of one machine: the gate against an earlier one, and the page that compares them."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from pocketbert import api
from pocketbert.benchmarks.measurement import BenchmarkResult
from pocketbert.benchmarks.report.comparison import compare_benchmarks, write_comparison
from pocketbert.benchmarks.statistics import Statistics
from pocketbert.core.errors import InputError
from pocketbert.core.types import Provenance
from support.compilations import compilation


@pytest.fixture(scope="module")
def with_times(result, change_all):
    """`with_times(*medians, **changes)`: a benchmark with these medians of the repeats in every figure."""

    def make(*medians, of=result, **changes):
        walls = [[value] * 5 for value in medians]
        return change_all(of, wall_ms=walls, wall=Statistics.of([x for r in walls for x in r]), **changes)

    return make


@pytest.fixture(scope="module")
def with_counts(result, change_all):
    """`with_counts(count)`: a benchmark of an emulator with that number of instructions in every figure."""

    def make(count):
        counts = Statistics.of([count, count * 1.001, count * 0.999])
        return change_all(result, wall=None, wall_ms=[], guest_instructions=counts, provenance=Provenance.EMULATED)

    return make


@pytest.fixture(scope="module")
def base(with_times):
    return with_times(10.0, 10.1, 9.9)


@pytest.fixture
def compare(tmp_path):
    """`compare(before, after)`: the page that compares two stored benchmarks."""

    def write(before, after):
        before.write(tmp_path / "old.json")
        after.write(tmp_path / "new.json")
        write_comparison(tmp_path / "new.json", tmp_path / "old.json", tmp_path / "page.html")
        return (tmp_path / "page.html").read_text(encoding="utf-8")

    return write


CASES = pytest.mark.parametrize(
    ("medians", "fails", "change", "tile"),
    [
        ((10.0, 10.1, 9.9), False, "no clear difference", "without"),
        ((8.0, 8.1, 7.9), False, "1.25× faster", "faster"),
        ((11.0, 11.1, 10.9), True, "1.10× slower", "slower"),  # 10 % slower, little spread
        ((10.3, 10.4, 10.2), False, "1.03× slower", "slower"),  # 3 % slower: allowed
        ((9.0, 11.0, 14.0), False, "no clear difference", "without"),  # slower, but not decided
        ((8.0, 8.1), None, "too few repeats for an interval", "without"),
    ],
)


@CASES
def test_only_a_decided_slowdown_fails_and_every_figure_has_a_ratio_and_an_interval(
    base, with_times, compare, words, medians, fails, change, tile
):
    now, count = with_times(*medians), len(base.measurements)
    if fails is None:
        with pytest.raises(InputError, match="has 2 repeats; an interval needs 3"):
            compare_benchmarks(now, base, "old.json")
    else:
        found = compare_benchmarks(now, base, "old.json")
        assert len(found) == count
        assert {s.exceeds(0.05) for s in found} == {fails}
        assert all(s.interval.low <= s.ratio <= s.interval.high and s.same_file for s in found)
    html = compare(base, now)
    decision, rest = html.split('<section id="decision">')[1].split("</section>", 1)
    assert words(rest).count(change) == count
    first = f"teacher fp32 on local: {change}" if tile != "without" else "no file became clearly faster or slower"
    assert words(decision).startswith(first)
    assert f"{count} of {count} figures {tile}" in words(html)
    ratios = re.findall(r"<small>(\d\.\d{3}) \[(\d\.\d{3}), (\d\.\d{3})\]</small>", html)
    assert len(ratios) == (0 if fails is None else count)
    assert all(float(low) <= float(ratio) <= float(high) for ratio, low, high in ratios)
    assert html.count("<svg") == (1 if fails is None else 2)
    assert html.count("<h1>new.json compared with old.json</h1>") == 1
    ids = re.findall(r'\bid="([^"]*)"', html)
    assert len(ids) == len(set(ids))
    for variant in base.variants:
        assert f"</span>{variant.name}</span>" in html
        assert fails is None or f">{variant.name}</text>" in html


def test_the_interval_is_welchs(with_times):
    """Against scipy's, with the degrees of freedom rounded down to a whole number."""
    new, old = (11.0, 11.5, 10.5, 11.2), (10.0, 10.4, 9.7)
    (found, *_) = compare_benchmarks(with_times(*new), with_times(*old), "old.json")
    reference = stats.ttest_ind(np.log(new), np.log(old), equal_var=False)
    middle = np.log(new).mean() - np.log(old).mean()
    half = stats.t.ppf(0.975, int(reference.df)) * middle / reference.statistic
    assert np.log([found.interval.low, found.interval.high]) == pytest.approx([middle - half, middle + half], abs=1e-4)


def test_instructions_of_an_emulator_are_compared_and_are_no_times(with_counts, compare, words):
    for count, fails in ((1.1e6, True), (1.02e6, False)):
        found = compare_benchmarks(with_counts(count), with_counts(1e6), "old.json")
        assert {s.exceeds(0.05) for s in found} == {fails}
    text = words(compare(with_counts(1.2e6), with_counts(1e6)))
    assert "1.20× fewer" in text
    assert "instructions, emulated" in text
    assert "p50 ms" not in text
    assert "faster" not in text.replace("faster, or with fewer instructions", "").replace("it became faster", "")


def test_files_that_changed_and_figures_without_a_partner_are_told(base, with_times, compare, words):
    after = with_times(8.0, 8.1, 7.9, sha256="1" * 64, bytes=2_000_000)
    kept = [m for m in after.measurements if m.variant == "student int8" and m.threads == 1]
    changes = {"measurements": kept, "versions": {"onnxruntime": "9.9"}, "compilations": [compilation("b")]}
    text = words(
        compare(base.model_copy(update={"compilations": [compilation("a")]}), after.model_copy(update=changes))
    )
    size = next(m.bytes for m in base.measurements if m.variant == "student int8")
    assert f"another file, {size / 1e3:.3g} kB → 2.0 MB" in text
    lengths = len({m.length for m in base.measurements})
    only = f"Only in old.json teacher fp32 on local: {2 * lengths} figures student int8 on local: {lengths} figures"
    assert only in text
    assert "on a: 1 figure Only in new.json tflite/model_a16w8_npu.tflite on b: 1 figure" in text
    assert re.search(r"Versions that differ: .*onnxruntime \S+ → 9.9", text)


def test_compiled_files_are_compared_where_nothing_ran(base, compare, words):
    bare = base.model_copy(update={"measurements": []})
    before = bare.model_copy(update={"compilations": [compilation("a"), compilation("b")]})
    now = compilation("a", op_types={"FULLY_CONNECTED": 23}, left=[], compiled_bytes=5000)
    text = words(compare(before, bare.model_copy(update={"compilations": [now]})))
    assert "20 of 23 in 2 pieces → 23 of 23 in 2 pieces" in text
    assert "0.001 kB → 5 kB" in text
    assert "tflite/model_a16w8_npu.tflite on b: 1 figure" in text


def test_what_cannot_be_compared(base, with_times, compare, tmp_path):
    machine = base.measurements[0].machine
    other = with_times(10.0, 10.1, 9.9, machine=replace(machine, cpu="Another CPU"))
    for check in (lambda now, old: compare_benchmarks(now, old, "old.json"), lambda now, old: compare(old, now)):
        with pytest.raises(InputError, match="old.json: is of another machine than local: Another CPU"):
            check(base, other)
        with pytest.raises(InputError, match="has no figure in common"):
            check(with_times(10.0, 10.1, 9.9, threads=7), base)
        with pytest.raises(InputError, match="has no figure in common"):
            check(base.model_copy(update={"measurements": []}), base)
    newer = with_times(10.0, 10.1, 9.9, machine=replace(machine, system="Linux 99"))
    assert compare_benchmarks(base, newer, "old.json")
    old, page = tmp_path / "old.json", tmp_path / "page.html"
    base.write(old)
    (tmp_path / "link.json").symlink_to(old)
    (tmp_path / "none.json").write_text("{}")
    for later, earlier, said in (
        (tmp_path / "link.json", old, "is the same file as -m"),
        (old, tmp_path, r"there is no benchmark.json in this folder.*pocketbert benchmark -m FOLDER"),
        (tmp_path / "none.json", old, "none.json"),
    ):
        with pytest.raises(InputError, match=said):
            write_comparison(later, earlier, page)
    assert not page.exists()


def test_the_command_and_the_function_write_the_page(base, with_times, pocketbert, tmp_path):
    old, new, folder, page = (tmp_path / n for n in ("before.json", "after.json", "folder", "pages/page.html"))
    folder.mkdir()
    base.write(old)
    with_times(8.0, 8.1, 7.9).write(new)
    with_times(8.0, 8.1, 7.9).write(folder / "benchmark.json")
    done = pocketbert("report", "-m", new, "--baseline", old, "-o", page)
    assert done.exit_code == 0, done.output
    assert "after.json compared with before.json" in page.read_text(encoding="utf-8")
    api.report(folder, tmp_path / "of_folder.html", baseline=old)
    assert "folder compared with before.json" in (tmp_path / "of_folder.html").read_text(encoding="utf-8")
    for arguments in (
        ["--baseline", old, "-o", page],  # it is there
        ["--baseline", old, "-o", old, "--overwrite"],
        ["--baseline", tmp_path / "none.json", "-o", tmp_path / "never" / "page.html"],
    ):
        assert pocketbert("report", "-m", new, *arguments).exit_code == 2
    assert BenchmarkResult.read(old).measurements
    assert not (tmp_path / "never").exists()
    alone = pocketbert("report", "-m", new, "-o", tmp_path / "alone.html")
    assert alone.exit_code == 2
    assert "--baseline FILE" in alone.stderr


def test_the_gate_of_the_command_ends_with_3(with_times, phone, pocketbert, tmp_path, monkeypatch):
    def run(*arguments):
        options = ["--threads", 1, "--lengths", 16, "--runs", 10, "--repeats", 3, "--gaps", "none"]
        return pocketbert("benchmark", "-m", phone, "--preset", "quick", *options, *arguments)

    first = run("-o", tmp_path / "old.json")
    assert first.exit_code == 0, first.output
    measured = BenchmarkResult.read(tmp_path / "old.json")
    for name, ms in (("fast", 1e-3), ("slow", 1e6)):
        with_times(ms, ms * 1.01, ms * 0.99, of=measured).write(tmp_path / f"{name}.json")
    monkeypatch.setattr("pocketbert.api.benchmark", lambda *_, **__: measured)
    failed = run("--baseline", tmp_path / "fast.json", "--max-slowdown", 0.1)
    assert failed.exit_code == 3, failed.output
    assert "allowed: 1.1" in failed.stderr
    passed = run("--baseline", tmp_path / "slow.json", "--json")
    assert passed.exit_code == 0, passed.output
    told = json.loads(passed.stdout.splitlines()[-1])["baseline"]
    assert len(told) == len(measured.measurements)
    assert "0.000 of the baseline" in told[0]
    assert run("--baseline", tmp_path / "none.json").exit_code == 2


def test_what_can_have_no_interval_is_refused_before_anything_is_measured(
    with_times, phone, pocketbert, tmp_path, monkeypatch
):
    monkeypatch.setattr("pocketbert.api.benchmark", lambda *_, **__: pytest.fail("measured"))
    with_times(1.0, 1.0).write(tmp_path / "two.json")
    done = pocketbert("benchmark", "-m", phone, "--repeats", "2", "--baseline", tmp_path / "two.json")
    assert done.exit_code == 2, done.output
    assert "--repeats: 2; an interval needs 3 with --baseline." in done.stderr
    assert "has 2 repeats; an interval needs 3." in done.stderr
