"""The gate against an earlier benchmark: it fails only where the whole interval is beyond the allowed slowdown."""

import json

import pytest
from typer.testing import CliRunner

from pocketbert.benchmarks.report.comparison import compare_benchmarks
from pocketbert.benchmarks.report.output import describe_sessions
from pocketbert.benchmarks.statistics import Statistics
from pocketbert.cli.main import app
from pocketbert.core.errors import InputError


def times(m, *medians):
    """A measurement with these medians of its repeats."""
    wall_ms = [[value] * 5 for value in medians]
    return m.model_copy(update={"wall_ms": wall_ms, "wall": Statistics.of([x for r in wall_ms for x in r])})


def with_times(result, *medians, **changes):
    made = [times(m, *medians).model_copy(update=changes) for m in result.measurements]
    return result.model_copy(update={"measurements": made})


@pytest.mark.parametrize(
    ("medians", "fails"),
    [
        ((10.0, 10.1, 9.9), False),  # the same
        ((8.0, 8.1, 7.9), False),  # faster
        ((11.0, 11.1, 10.9), True),  # 10 % slower, little spread
        ((10.3, 10.4, 10.2), False),  # 3 % slower: allowed
        ((9.0, 11.0, 14.0), False),  # slower, but not decided
    ],
)
def test_only_a_decided_slowdown_fails(result, medians, fails):
    found = compare_benchmarks(with_times(result, *medians), with_times(result, 10.0, 10.1, 9.9), "old.json")
    assert len(found) == len(result.measurements)
    assert {s.exceeds(0.05) for s in found} == {fails}
    assert all(s.interval.low <= s.ratio <= s.interval.high and s.same_file for s in found)


def test_the_interval_is_welchs(result):
    """Against scipy's, with the degrees of freedom rounded down to a whole number."""
    import numpy as np
    from scipy import stats

    new, old = (11.0, 11.5, 10.5, 11.2), (10.0, 10.4, 9.7)
    (found, *_) = compare_benchmarks(with_times(result, *new), with_times(result, *old), "old.json")
    reference = stats.ttest_ind(np.log(new), np.log(old), equal_var=False)
    middle = np.log(new).mean() - np.log(old).mean()
    half = stats.t.ppf(0.975, int(reference.df)) * middle / reference.statistic
    assert np.log([found.interval.low, found.interval.high]) == pytest.approx([middle - half, middle + half], abs=1e-4)


def test_counts_of_an_emulator_are_compared(result):
    def counted(count):
        counts = Statistics.of([count, count * 1.001, count * 0.999])
        return with_times(result, 1.0).model_copy(
            update={
                "measurements": [
                    m.model_copy(update={"wall": None, "wall_ms": [], "guest_instructions": counts})
                    for m in result.measurements
                ]
            }
        )

    assert {s.exceeds(0.05) for s in compare_benchmarks(counted(1.1e6), counted(1e6), "old.json")} == {True}
    assert {s.exceeds(0.05) for s in compare_benchmarks(counted(1.02e6), counted(1e6), "old.json")} == {False}


def test_what_cannot_be_compared(result):
    base = with_times(result, 10.0, 10.1, 9.9)
    other = base.measurements[0].machine.model_copy(update={"cpu": "Another CPU"})
    with pytest.raises(InputError, match="old.json: is of another machine than local: Another CPU"):
        compare_benchmarks(base, with_times(result, 10.0, 10.1, 9.9, machine=other), "old.json")
    newer = base.measurements[0].machine.model_copy(update={"system": "Linux 99"})
    assert compare_benchmarks(base, with_times(result, 10.0, 10.1, 9.9, machine=newer), "old.json")
    with pytest.raises(
        InputError, match="has no figure in common with this benchmark; it has student int8, teacher fp32"
    ):
        compare_benchmarks(with_times(result, 1.0, 1.0, 1.0, threads=7), base, "old.json")
    with pytest.raises(InputError, match="has 2 repeats; an interval needs 3"):
        compare_benchmarks(with_times(result, 1.0, 1.0), base, "old.json")


def test_the_command_ends_with_3(result, phone, tmp_path):
    def run(*arguments):
        options = ["--threads", "1", "--lengths", "16", "--runs", "10", "--repeats", "3", "--gaps", "1"]
        return CliRunner().invoke(app, ["benchmark", "-m", str(phone), *options, *map(str, arguments)])

    first = run("-o", tmp_path / "old.json")
    assert first.exit_code == 0, first.output
    from pocketbert.benchmarks.measurement import BenchmarkResult

    measured = BenchmarkResult.read(tmp_path / "old.json")
    fast = [times(m, *(value * 1e-3 for value in (1.0, 1.01, 0.99))) for m in measured.measurements]
    measured.model_copy(update={"measurements": fast}).write(tmp_path / "fast.json")
    slow = [times(m, *(value * 1e6 for value in (1.0, 1.01, 0.99))) for m in measured.measurements]
    measured.model_copy(update={"measurements": slow}).write(tmp_path / "slow.json")
    failed = run("--baseline", tmp_path / "fast.json", "--max-slowdown", 0.1)
    assert failed.exit_code == 3, failed.output
    assert "allowed: 1.1" in failed.stderr
    passed = run("--baseline", tmp_path / "slow.json")
    assert passed.exit_code == 0, passed.output
    assert "0.000 of the baseline" in passed.stdout
    assert run("--baseline", tmp_path / "none.json").exit_code == 2
    told = json.loads(run("--baseline", tmp_path / "slow.json", "--json").stdout.splitlines()[-1])
    assert len(told["baseline"]) == len(slow)


def test_what_can_have_no_interval_is_refused_before_anything_is_measured(result, phone, tmp_path, monkeypatch):
    monkeypatch.setattr("pocketbert.api.benchmark", lambda *_, **__: 1 / 0)
    with_times(result, 1.0, 1.0).write(tmp_path / "two.json")
    done = CliRunner().invoke(
        app, ["benchmark", "-m", str(phone), "--repeats", "2", "--baseline", str(tmp_path / "two.json")]
    )
    assert done.exit_code == 2, done.output
    assert "--repeats: 2; an interval needs 3 with --baseline." in done.stderr
    assert "has 2 repeats; an interval needs 3." in done.stderr


def test_the_terminal_tells_the_load(result):
    def lines(others):
        load = result.measurements[0].load.model_copy(update={"before": 1.0, "after": 2.0, "others": others})
        return describe_sessions(with_times(result, 1.0, 1.0, 1.0, load=load))

    busy = lines(0.4)
    assert "load of local: load average 1.00 → 2.00, other processes used 40 % of the CPU time" in busy[1]
    assert busy[2].startswith("Warning: local was busy with other work")
    quiet = lines(0.02)
    assert "other processes used 2 % of the CPU time" in quiet[1]
    assert not any(line.startswith("Warning") for line in quiet)
