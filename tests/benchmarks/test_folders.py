"""The page and the table of several folders: names, colours, and each file against its namesake."""

import re
from pathlib import Path

import pytest

from pocketbert.benchmarks.measurement import BenchmarkResult
from pocketbert.benchmarks.report import render_report
from pocketbert.benchmarks.report.figures import ModelRow, ReportData, same_file_ratio
from pocketbert.benchmarks.report.output import make_latency_table
from pocketbert.benchmarks.report.plots import SERIES
from pocketbert.benchmarks.wording import short_names
from pocketbert.core.tasks import TaskName


@pytest.mark.parametrize(
    ("folders", "names"),
    [
        (["runs/a/phone", "runs/b/phone"], ["a", "b"]),
        (["before", "after"], ["before", "after"]),
        (["/x/a/y/phone", "/z/a/y/phone"], ["x", "z"]),
        (["phone", "other/phone"], ["phone", "other/phone"]),
        (["a/x/p", "a/y/p", "b/x/p"], ["a/x/p", "a/y/p", "b/x/p"]),  # no single part tells these apart
    ],
)
def test_folders_have_short_names(folders: list[str], names: list[str]) -> None:
    assert list(short_names([Path(f) for f in folders]).values()) == names


@pytest.fixture
def two(result: BenchmarkResult) -> BenchmarkResult:
    """The same files in two folders; those of the second take twice the time."""
    by_name = {v.name: v for v in result.variants}
    variants, measurements = [], []
    for folder, slower in (("a", 1), ("b", 2)):
        for name, v in by_name.items():
            path = Path(folder) / v.path.name
            variants.append(v.model_copy(update={"name": f"{folder} {name}", "path": path, "tokenizer": Path(folder)}))
        for m in result.measurements:
            walls = [[slower * x for x in repeat] for repeat in m.wall_ms]
            measurements.append(m.model_copy(update={"variant": f"{folder} {m.variant}", "wall_ms": walls}))
    return result.model_copy(update={"variants": variants, "measurements": measurements, "comparisons": []})


def test_each_file_is_compared_with_its_namesake(two: BenchmarkResult) -> None:
    for m in two.measurements:
        ratio = same_file_ratio(two, m)
        if m.variant.startswith("a "):
            assert ratio is None
        else:
            assert ratio is not None
            assert (ratio.low, ratio.median, ratio.high) == pytest.approx((2, 2, 2))
    header, rows = make_latency_table(two)
    assert header[-1] == "time ratio to the same file of the first folder"
    assert {row[-1] for row in rows if row[0].startswith("b ")} == {"2.000 [2.000, 2.000]"}
    other = [v.model_copy(update={"path": v.tokenizer / f"only {v.name}"}) for v in two.variants]
    apart = two.model_copy(update={"variants": other})
    assert all(same_file_ratio(apart, m) is None for m in apart.measurements)


def test_one_folder_has_no_such_column(result: BenchmarkResult) -> None:
    assert all(same_file_ratio(result, m) is None for m in result.measurements)
    assert "first folder" not in " ".join(make_latency_table(result)[0])


def test_the_page_has_whole_names_in_colours_of_their_own(two: BenchmarkResult) -> None:
    names = [v.name for v in two.variants]
    data = ReportData(
        title="Benchmark of a and b",
        task=TaskName.TEXT_CLASSIFICATION,
        machine=two.machine,
        versions=two.versions,
        rows=[ModelRow(name=v.name, bytes=v.bytes, sha256=v.sha256) for v in two.variants],
        benchmark=two,
    )
    page = render_report(data)
    legends = re.findall(r'<p class="legend">(.*?)</p>', page)
    assert legends
    for legend in legends:
        assert re.findall(r"</span>([^<]+)</span>", legend) == names
        colors = re.findall(r"var\(--c(\d+)\)", legend)
        assert len(set(colors)) == len(names)
    assert "against the same file<br>of the first folder" in page
    assert "2.00× slower<br><small>(2.00–2.00)</small>" in page
    head = page.split('<section id="models">')[1].split("</tr>")[0]
    assert "gates" not in head  # there are none, and no scores
    assert "accuracy" not in head


def test_every_colour_has_a_value_in_both_themes() -> None:
    from importlib import resources

    template = resources.files("pocketbert.benchmarks.report").joinpath("style.css.j2").read_text()
    light, dark = (
        dict(re.findall(r"--(c\d+): (#[0-9a-f]{6})", part))
        for part in template.split("@media (prefers-color-scheme", 1)
    )
    assert list(light) == list(dark) == [f"c{i}" for i in range(len(SERIES))]
    assert len(set(light.values())) == len(set(dark.values())) == len(SERIES)
