import re
from importlib import resources

from pocketbert.benchmarks.report.page import _legend_swatch
from pocketbert.benchmarks.report.plots import (
    _LOOKS,
    SERIES,
    SHAPES,
    draw_boxes,
    draw_distribution,
    draw_losses,
    draw_sizes,
    look_of,
)


def test_plots_take_any_names_and_the_pages_colours():
    svg = draw_sizes(["a$b$ <i>", "ü"], [10, 5_000_000], [0, 1 + len(SERIES)])
    assert "a$b$ &lt;i&gt;" in svg
    assert "var(--c0)" in svg
    assert "var(--c1)" in svg
    assert "#2563eb" not in svg
    assert draw_losses({"loss": [(0, float("nan")), (1, 1.0)]}, 'one "odd" <title>').startswith("<svg")


def test_more_files_than_colours_differ_in_shape_dashes_and_hatching():
    looks = [look_of(number) for number in range(_LOOKS)]
    assert len({(look.color, look.shape) for look in looks}) == _LOOKS >= 80
    assert len({(look.color, look.dash) for look in looks}) == _LOOKS
    assert len({(look.color, look.hatch) for look in looks}) == _LOOKS
    assert look_of(_LOOKS) == looks[0]
    first, second = len(SERIES) - 1, len(SERIES)
    names = {"a": first, "b": second}
    marks = {_legend_swatch(number) for number in range(_LOOKS)}
    assert len(marks) == _LOOKS
    dashes = [draw_distribution({name: [1.0, 2.0]}, names, "c").count("stroke-dasharray") for name in names]
    assert dashes[1] == dashes[0] + 1
    bars = draw_sizes(["a", "b"], [1, 2], [first, second])
    assert bars.count("<pattern") == 1
    patterns = re.findall(r'<pattern id="([^"]+)"', bars)
    assert f"url(#{patterns[0]})" in bars
    boxed = draw_boxes({"16 tokens": {"a": [1.0, 2.0], "b": [1.0, 3.0]}}, names, "t")
    assert boxed.count("<pattern") == 1


def test_the_style_has_every_shape():
    style = resources.files("pocketbert.benchmarks.report").joinpath("style.css.j2").read_text()
    assert all(f".s{number} {{" in style for number in range(1, len(SHAPES)))
