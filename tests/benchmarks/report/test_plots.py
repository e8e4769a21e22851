import re

from pocketbert.benchmarks.report import plots
from pocketbert.benchmarks.report.plots import SERIES, SHAPES, CandidatePoint, FilePoint, look_of


def test_plots_take_any_names_and_the_pages_colours():
    points = [
        FilePoint("a$b$ <i>", 1.0, 1.0, 1.0, 90.0, 10, 0),
        FilePoint("ü", 2.0, 2.0, 2.0, 80.0, 10, 1 + len(SERIES)),
    ]
    svg = plots.draw_score_over_cost(points, "ms", "accuracy", "t")
    assert "a$b$ &lt;i&gt;" in svg
    assert "var(--c0)" in svg
    assert "var(--c1)" in svg
    assert "#2563eb" not in svg
    assert plots.draw_losses({"loss": [(0, float("nan")), (1, 1.0)]}, 'one "odd" <title>').startswith("<svg")


def test_more_files_than_colours_differ_in_shape_dashes_and_hatching():
    count = len(SERIES) * len(SHAPES)
    looks = [look_of(number) for number in range(count)]
    for what in ("shape", "dash", "hatch"):
        assert len({(look.color, getattr(look, what)) for look in looks}) == count >= 80
    assert look_of(count) == looks[0]
    first, second = len(SERIES) - 1, len(SERIES)
    names = {"a": first, "b": second}
    dashes = [plots.draw_distribution({n: [1.0, 2.0]}, names, "c").count("stroke-dasharray") for n in names]
    assert dashes[1] == dashes[0] + 1
    boxes = plots.draw_boxes({"16 tokens": {"a": [1.0, 2.0], "b": [1.0, 3.0]}}, names, "t")
    assert boxes.count("<pattern") == 1
    (pattern,) = re.findall(r'<pattern id="([^"]+)"', boxes)
    assert f"url(#{pattern})" in boxes


def test_names_in_the_plot_of_a_search_do_not_cover_each_other():
    def shown(*places):
        points = [CandidatePoint(f"file{i}", *place, True, True, i == 1, f"s{i % 2}") for i, place in enumerate(places)]
        return re.findall(r">(file\d+[^<]*)</text>", plots.draw_search(points, (None, None), "accuracy lost", "t"))

    assert len(shown((1, 0.1), (2, 0.2), (3, 0.3))) == 3
    crowd = shown(*[(2 + i / 1000, 0.1) for i in range(12)], (9, 1))
    assert "file1, chosen" in crowd
    assert len(crowd) < 13
