from pocketbert.benchmarks.report.plots import SERIES, curve, sizes


def test_plots_take_any_names_and_the_pages_colours():
    svg = sizes(["a$b$ <i>", "ü"], [10, 5_000_000], [0, 1 + len(SERIES)])
    assert "a$b$ &lt;i&gt;" in svg
    assert "var(--c0)" in svg
    assert "var(--c1)" in svg
    assert "#2563eb" not in svg
    assert curve({"loss": [(0, float("nan")), (1, 1.0)]}, 'one "odd" <title>').startswith("<svg")
