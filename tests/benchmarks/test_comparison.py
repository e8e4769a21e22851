"""Two stored benchmarks on one page: ratios with intervals, what one of them lacks, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pocketbert import api
from pocketbert.benchmarks.measurement import BenchmarkResult
from pocketbert.benchmarks.report.comparison import _read_pair, _render_comparison, _StoredBenchmark
from pocketbert.benchmarks.statistics import Statistics
from pocketbert.cli.main import app
from pocketbert.core.errors import InputError
from pocketbert.core.types import Provenance


def times(result: BenchmarkResult, *medians: float, **changes: Any) -> BenchmarkResult:
    """A benchmark with these medians of the repeats in every figure."""
    wall_ms = [[value] * 5 for value in medians]
    new = {"wall_ms": wall_ms, "wall": Statistics.of([x for r in wall_ms for x in r]), **changes}
    return result.model_copy(update={"measurements": [m.model_copy(update=new) for m in result.measurements]})


def page(before: BenchmarkResult, after: BenchmarkResult) -> str:
    return _render_comparison(
        _StoredBenchmark("old", Path("old.json"), before), _StoredBenchmark("new", Path("new.json"), after)
    )


def words(html: str) -> str:
    html = re.sub(r"<style>.*?</style>", "", html, flags=re.S)
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


@pytest.mark.parametrize(
    ("medians", "change", "tile"),
    [
        ((8.0, 8.1, 7.9), "1.25× faster", "faster"),
        ((12.0, 12.1, 11.9), "1.20× slower", "slower"),
        ((9.0, 11.0, 10.4), "no clear difference", "without"),
        ((8.0, 8.1), "too few repeats for an interval", "without"),
    ],
)
def test_every_common_figure_has_a_ratio_and_an_interval(
    result: BenchmarkResult, medians: tuple[float, ...], change: str, tile: str
) -> None:
    html = page(times(result, 10.0, 10.1, 9.9), times(result, *medians))
    text, count = words(html), len(result.measurements)
    assert text.count(change) == count
    assert re.search(rf"{count} of {count} figures {tile}", text)
    ratios = re.findall(r"<small>(\d\.\d{3}) \[(\d\.\d{3}), (\d\.\d{3})\]</small>", html)
    assert len(ratios) == (0 if len(medians) < 3 else count)
    assert all(float(low) <= float(ratio) <= float(high) for ratio, low, high in ratios)
    assert html.count("<svg") == (1 if len(medians) < 3 else 2)
    assert html.count("<h1>new compared with old</h1>") == 1
    ids = re.findall(r'\bid="([^"]*)"', html)
    assert len(ids) == len(set(ids))


def test_plots_have_whole_names_and_legends(result: BenchmarkResult) -> None:
    html = page(times(result, 10.0, 10.1, 9.9), times(result, 8.0, 8.1, 7.9))
    for name in (v.name for v in result.variants):
        assert f">{name}</text>" in html
        assert f"</span>{name}</span>" in html


def test_files_that_changed_and_figures_without_a_partner_are_told(result: BenchmarkResult) -> None:
    before = times(result, 10.0, 10.1, 9.9)
    after = times(result, 8.0, 8.1, 7.9, sha256="1" * 64, bytes=2_000_000)
    kept = [m for m in after.measurements if m.variant == "student int8" and m.threads == 1]
    text = words(page(before, after.model_copy(update={"measurements": kept, "versions": {"onnxruntime": "9.9"}})))
    size = next(m.bytes for m in before.measurements if m.variant == "student int8")
    assert f"another file, {size / 1e3:.3g} kB → 2.0 MB" in text
    lengths = len({m.length for m in result.measurements})
    assert f"Only in old teacher fp32 on local: {2 * lengths} figures student int8 on local: {lengths} figures" in text
    assert "Only in new" not in text
    assert re.search(r"Versions that differ: .*onnxruntime \S+ → 9.9", text)


def test_instructions_of_an_emulator_are_no_times(result: BenchmarkResult) -> None:
    def counted(count: float) -> BenchmarkResult:
        counts = Statistics.of([count, count * 1.001, count * 0.999])
        made = {"wall": None, "wall_ms": [], "guest_instructions": counts, "provenance": Provenance.EMULATED}
        return result.model_copy(update={"measurements": [m.model_copy(update=made) for m in result.measurements]})

    text = words(page(counted(1.2e6), counted(1e6)))
    assert "1.20× fewer" in text
    assert "instructions, emulated" in text
    assert "p50 ms" not in text
    assert "faster" not in text.replace("faster, or with fewer instructions", "").replace("it became faster", "")


def test_what_cannot_be_compared(result: BenchmarkResult, tmp_path: Path) -> None:
    base = times(result, 10.0, 10.1, 9.9)
    other = base.measurements[0].machine.model_copy(update={"cpu": "Another CPU"})
    with pytest.raises(InputError, match="old.json: is of another machine than local: Another CPU"):
        page(times(base, 10.0, 10.1, 9.9, machine=other), base)
    with pytest.raises(InputError, match="has no figure in common"):
        page(base, times(result, 10.0, threads=7))
    with pytest.raises(InputError, match="has no figure in common"):
        page(base, base.model_copy(update={"measurements": []}))
    base.write(tmp_path / "old.json")
    (tmp_path / "link.json").symlink_to(tmp_path / "old.json")
    with pytest.raises(InputError, match="is the same file as -m"):
        _read_pair(tmp_path / "link.json", tmp_path / "old.json")
    with pytest.raises(InputError, match=r"there is no benchmark.json in this folder.*pocketbert benchmark -m FOLDER"):
        _read_pair(tmp_path / "old.json", tmp_path)
    (tmp_path / "none.json").write_text("{}")
    with pytest.raises(InputError, match="none.json"):
        _read_pair(tmp_path / "none.json", tmp_path / "old.json")


def test_the_command_and_the_function_write_the_page(result: BenchmarkResult, tmp_path: Path) -> None:
    old, new, folder = tmp_path / "before.json", tmp_path / "after.json", tmp_path / "folder"
    times(result, 10.0, 10.1, 9.9).write(old)
    times(result, 8.0, 8.1, 7.9).write(new)

    def run(*arguments: object) -> Any:
        return CliRunner().invoke(app, ["report", *map(str, arguments)])

    done = run("-m", new, "--baseline", old, "-o", tmp_path / "pages" / "page.html")
    assert done.exit_code == 0, done.output
    html = (tmp_path / "pages" / "page.html").read_text(encoding="utf-8")
    assert "after.json compared with before.json" in html
    again = run("-m", new, "--baseline", old, "-o", tmp_path / "pages" / "page.html")
    assert again.exit_code == 2
    folder.mkdir()
    times(result, 8.0, 8.1, 7.9).write(folder / "benchmark.json")
    api.report(folder, tmp_path / "of_folder.html", baseline=old)
    assert "folder compared with before.json" in (tmp_path / "of_folder.html").read_text(encoding="utf-8")
    onto = run("-m", new, "--baseline", old, "-o", old, "--overwrite")
    assert onto.exit_code == 2
    assert BenchmarkResult.read(old).measurements
    alone = run("-m", new, "-o", tmp_path / "alone.html")
    assert alone.exit_code == 2
    assert "--baseline FILE" in alone.stderr
    failed = run("-m", new, "--baseline", tmp_path / "none.json", "-o", tmp_path / "never" / "page.html")
    assert failed.exit_code == 2
    assert not (tmp_path / "never").exists()
