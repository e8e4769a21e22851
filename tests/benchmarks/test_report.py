import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest

from pocketbert.benchmarks.report import render_report, write_report
from pocketbert.benchmarks.report.figures import (
    GateRow,
    ModelRow,
    ParityRow,
    ReportData,
    headline_condition,
    make_summary_rows,
    make_summary_table,
)
from pocketbert.benchmarks.report.plots import require_report_packages
from pocketbert.core.data_report import DataReport, SplitReport
from pocketbert.core.errors import MissingBackendError
from pocketbert.core.host.hardware import describe_machine
from pocketbert.core.predict.scores import Confidence, Score
from pocketbert.core.tasks import TaskName
from pocketbert.core.types import Status

EVIL = "<script>alert('&')</script>"
CLASSIFICATION = TaskName.TEXT_CLASSIFICATION


def score(value):
    return Score(
        metric="accuracy",
        value=value,
        others={"macro_f1": value},
        rows=2000,
        chance=0.1,
        finite=value == value,
    )


@pytest.fixture
def full(result):
    rows = [
        ModelRow(
            name="teacher fp32",
            bytes=90_900_000,
            parameters=22_700_000,
            eval_score=score(0.96),
            kept=1.0,
            is_teacher=True,
        ),
        ModelRow(
            name="student int8",
            bytes=10_900_000,
            eval_score=score(0.95),
            holdout_score=score(0.94),
            kept=0.9896,
            status=Status.PASSED,
            is_default=True,
        ),
    ]
    split = SplitReport(
        name="train",
        source="train.jsonl",
        rows=100,
        duplicates=2,
        conflicting=1,
        truncated=0,
        labels={"play $music$": 60, EVIL: 40},
        tokens_mean=8.5,
        tokens_p50=8,
        tokens_p95=14,
        tokens_max=20,
    )
    return ReportData(
        title="Commands",
        description="Small.",
        task=CLASSIFICATION,
        machine=describe_machine(),
        versions={"numpy": "2"},
        rows=rows,
        benchmark=result,
        parity=[ParityRow(file="onnx/model.onnx", worst=3e-6, bound=1e-3, lengths=[8, 32], passed=True)],
        gates=[
            GateRow(name="finite", file="onnx/model_int8.onnx", passed=False, value=float("nan"), detail="no number")
        ],
        data=DataReport(max_length=32, splits=[split], notes=["something to know"]),
        curves={
            "teacher": [(0, 2.0), (9, 1.0)],
            "student": [(i, 3 / (i + 1)) for i in range(90)],
            "student/logits": [(0, 1.0), (9, 0.5)],
        },
        confusion=[("play", "pause", 7), ("call", EVIL, 2)],
        confusion_of="student int8 on eval",
        notes=["The corpus is generated."],
        recipe="schema: 1\n# <b>",
        command="pocketbert run r.yaml",
        made="today",
    )


class Page(HTMLParser):
    """Collects what a test wants to know of a page, and complains about tags that do not match."""

    VOID = ("meta", "br", "img", "link", "input", "hr")

    def __init__(self, html):
        super().__init__()
        self.tags, self.attributes, self.open, self.text, self.ids = [], [], [], "", []
        self.feed(html)
        assert not self.open, self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, k, v or "") for k, v in attrs]
        self.ids += [v for k, v in attrs if k == "id"]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def assert_self_contained(html, page):
    assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
    for _, name, value in page.attributes:
        assert not name.startswith("on"), name
        if name in ("src", "href", "action", "data"):
            assert value.startswith("#"), value
    assert not re.search(r"@import|url\((?!#)", html)
    assert "http" not in html


def test_a_full_report_has_every_section(full):
    html = render_report(full)
    page = Page(html)
    assert_self_contained(html, page)
    assert "Left out" not in page.text
    assert "left out:" not in page.text
    for words in (
        "Commands",
        "99.0 %",
        "8.34× smaller",
        "Start and memory",
        "Tokenizer",
        "Where the time goes",
        "MatMul",
        "onnx/model_int8.onnx",
        "no number",
        "Most confused labels: student int8 on eval",
        "Training loss of the student",
        "Class balance of train",
        "something to know",
        "The corpus is generated.",
        "pocketbert run r.yaml",
        "64 clipped to 32",
    ):
        assert words in page.text, words
    assert page.tags.count("svg") == 2 + 1 + 2 + 2  # overview, distribution, boxes per thread count, curves
    assert len(page.ids) == len(set(page.ids))


def test_every_plot_says_where_its_figures_come_from(full):
    html = render_report(full)
    figures = re.findall(r"<figure>.*?</figure>", html, re.S)
    assert len(figures) == 7
    for figure in figures:
        stamp = re.search(r'<div class="stamp">(.*?)</div>', figure, re.S)[1]
        assert stamp.startswith("measured")
        assert "bytes on disk" in stamp or all(flag in stamp for flag in describe_machine().isa)


def test_what_is_missing_is_left_out_with_a_reason():
    html = render_report(ReportData(title="Bare", task=CLASSIFICATION, machine=describe_machine(), rows=[]))
    page = Page(html)
    assert_self_contained(html, page)
    for reason in (
        "this run made no model file",
        "this run has no benchmark",
        "the profile is part of the benchmark",
        "compared no file",
        "checked none",
        "scored no model",
        "nothing was trained",
        "read no labelled data",
        "this run had none",
    ):
        assert reason in page.text
    assert "svg" not in page.tags
    assert "None" not in page.text


@pytest.mark.parametrize("field", ["benchmark", "data", "parity", "gates", "curves", "confusion", "recipe", "notes"])
def test_each_part_can_be_missing_alone(full, field):
    empty = {"benchmark": None, "data": None, "curves": {}, "recipe": ""}.get(field, [])
    page = Page(render_report(full.model_copy(update={field: empty})))
    assert "Commands" in page.text


def test_a_benchmark_of_files_that_have_no_row_and_rows_without_scores(full, result):
    row = ModelRow(name="other", bytes=10)
    page = Page(render_report(full.model_copy(update={"rows": [row], "benchmark": result})))
    assert "other" in page.text
    assert "teacher fp32" in page.text


def test_texts_of_users_are_escaped_everywhere(full):
    row = full.rows[1].model_copy(update={"name": EVIL, "path": EVIL})
    evil = full.model_copy(
        update={
            "title": EVIL,
            "description": EVIL,
            "rows": [full.rows[0], row],
            "notes": [EVIL],
            "command": EVIL,
            "recipe": EVIL,
            "curves": {EVIL: [(0, 1.0), (1, 0.5)]},
            "confusion": [(EVIL, EVIL, 1)],
            "confusion_of": EVIL,
            "made": EVIL,
            "gates": [GateRow(name=EVIL, file=EVIL, passed=True, detail=EVIL)],
            "versions": {EVIL: EVIL},
        }
    )
    html = render_report(evil)
    page = Page(html)
    assert "<script" not in html
    assert "script" not in page.tags
    assert EVIL in page.text


def test_the_file_is_written_whole(full, tmp_path):
    path = tmp_path / "report.html"
    write_report(full, path)
    assert path.read_text(encoding="utf-8").endswith("</html>\n") or path.read_text(encoding="utf-8").endswith(
        "</html>"
    )


def test_report_data_reads_back_with_nan_inside(full):
    again = ReportData.model_validate_json(full.model_dump_json())
    assert again.gates[0].value != again.gates[0].value
    assert again.model_copy(update={"gates": []}) == full.model_copy(update={"gates": []})


def test_the_table_and_the_report_show_the_same_figures(full, result):
    threads, length = headline_condition(result)
    assert (threads, length) == (1, "text")
    header, cells = make_summary_table(full)
    assert header == [
        "model",
        "size",
        "accuracy",
        "accuracy holdout",
        "kept",
        "p50 ms (1 thread, real text, batch 1)",
        "vs teacher fp32",
        "gates",
    ]
    assert [row[:5] for row in cells] == [
        ["teacher fp32", "90.9 MB", "96.00", "–", "100.0 %"],
        ["student int8 *", "10.9 MB", "95.00", "94.00", "99.0 %"],
    ]
    text = Page(render_report(full)).text
    for cell in cells[1][1:]:
        assert cell in text
    assert float(cells[0][5]) == pytest.approx(result.find("teacher fp32", 1, "text").wall.p50, rel=1e-2)


def test_the_calibration_error_is_shown_without_and_with_the_temperature():
    def row(name, **confidence):
        return ModelRow(name=name, bytes=1, eval_score=score(0.9), confidence=Confidence(**confidence))

    errors = {"measured_on": "eval", "rows": 100, "error_before": 0.05314, "error": 0.012}
    rows = [
        row("a", temperature=1.425, fitted_rows=1500, **errors),
        row("c", unknown=0.7125, unknown_rows=900, answered=0.815, answered_accuracy=0.9625, **errors),
        row("b", note="no training rows are held out (data.holdout)", **{**errors, "error": 0.05314}),
    ]
    data = ReportData(title="t", task=CLASSIFICATION, machine=describe_machine(), rows=rows)
    text = Page(render_report(data)).text
    assert "5.31 % → 1.20 % (temperature 1.425)" in text
    assert "0.7125: 81.5 %, of which 96.2 % right" in text
    assert "fitted for each file on 1,500 held-out rows" in text
    assert "No temperature was fitted: no training rows are held out (data.holdout)." in text
    assert ReportData.model_validate_json(data.model_dump_json()) == data
    bare = ReportData(
        title="t",
        task=CLASSIFICATION,
        machine=describe_machine(),
        rows=[rows[0].model_copy(update={"confidence": None})],
    )
    assert "alibration error" not in Page(render_report(bare)).text


def test_the_table_leaves_out_columns_without_figures():
    rows = [ModelRow(name="a", bytes=2_000_000), ModelRow(name="b", bytes=1_000_000)]
    data = ReportData(title="t", task=CLASSIFICATION, machine=describe_machine(), rows=rows)
    assert make_summary_table(data) == (["model", "size"], [["a", "2.0 MB"], ["b", "1.0 MB"]])
    assert [r.smaller for r in make_summary_rows(data)] == ["–", "2.00× smaller"]


def test_a_score_that_is_no_number_is_said():
    rows = [ModelRow(name="a", bytes=1, eval_score=score(float("nan")))]
    data = ReportData(title="t", task=CLASSIFICATION, machine=describe_machine(), rows=rows)
    assert make_summary_rows(data)[0].score == "not a number"
    assert "not a number" in Page(render_report(data)).text


def test_nats_are_no_points_and_lower_is_better(result):
    def nats(value):
        return Score(metric="cross_entropy", value=value, others={"top_1": 0.255}, rows=100, chance=2.33, finite=True)

    rows = [
        ModelRow(name="teacher fp32", bytes=2_000_000, eval_score=nats(1.25), kept=1.0, is_teacher=True),
        ModelRow(name="student int8", bytes=1_000_000, eval_score=nats(1.5), kept=1.25 / 1.5, is_default=True),
    ]
    data = ReportData(title="t", task=TaskName.FILL_MASK, machine=describe_machine(), rows=rows, benchmark=result)
    html = render_report(data)
    text = Page(html).text
    assert "cross_entropy of student int8, nats, lower is better; teacher fp32 1.2500 nats" in text
    assert "cross_entropy, nats, lower is better</text>" in html
    assert "does not read its input (guessing by the tokens' frequencies)" in text
    for words in ("1.5000 nats", "2.3300 nats", "top_1 25.50", "cross_entropy in nats, lower is better"):
        assert words in text, words
    assert "points" not in text
    assert not re.search(r"(?<![\d.])150\.0", text)  # a column's milliseconds stand close to the next one's
    assert "Confusions" not in text
    assert "of the cross_entropy" not in text


def test_spans_are_counted_as_spans():
    split = SplitReport(
        name="train",
        source="train.jsonl",
        rows=100,
        duplicates=0,
        conflicting=0,
        truncated=0,
        labels={"title": 300, "time": 100},
        tokens_mean=8.5,
        tokens_p50=8,
        tokens_p95=14,
        tokens_max=20,
    )
    report = DataReport(max_length=32, splits=[split], notes=[])
    for task, counted, share in (
        (TaskName.TOKEN_CLASSIFICATION, "spans", "75.0 %"),
        (TaskName.MULTI_LABEL, "rows", "300.0 %"),
    ):
        data = ReportData(title="t", task=task, machine=describe_machine(), rows=[], data=report)
        text = Page(render_report(data)).text
        assert f"2 labels with 100 to 300 {counted} each" in text
        assert share in text


def test_what_is_kept_is_the_teachers_even_without_its_file():
    rows = [
        ModelRow(name=n, bytes=9, eval_score=score(0.9), kept=0.98, is_default=n == "int8") for n in ("fp32", "int8")
    ]
    data = ReportData(title="t", task=CLASSIFICATION, machine=describe_machine(), rows=rows)
    text = Page(render_report(data)).text
    assert "of the teacher's accuracy kept by int8" in text
    assert "Sizes are compared with fp32, scores with the teacher's." in text


def test_the_data_may_decide_the_metric_and_figures_beside_it_keep_their_units():
    def correlation(value):
        return Score(metric="mean_cosine", value=value, others={}, rows=9, chance=0.5, finite=True)

    rows = [
        ModelRow(name="a", bytes=1, eval_score=correlation(0.9)),
        ModelRow(name="b", bytes=1, eval_score=correlation(0.8)),
    ]
    data = ReportData(title="t", task=TaskName.FEATURE_EXTRACTION, machine=describe_machine(), rows=rows)
    assert make_summary_table(data)[0] == ["model", "size", "mean_cosine"]
    text = Page(render_report(data)).text
    assert "mean_cosine in points" in text
    assert "always the teacher's mean vector" in text
    one = Score(metric="pearson", value=0.9, others={"spearman": 0.8, "rmse": 0.2381}, rows=9, chance=0.5, finite=True)
    data = ReportData(
        title="t",
        task=TaskName.REGRESSION,
        machine=describe_machine(),
        rows=[ModelRow(name="a", bytes=1, eval_score=one)],
    )
    assert "spearman 80.00, rmse 0.238" in Page(render_report(data)).text


def test_without_the_extra_the_message_is_the_command(monkeypatch, full, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingBackendError, match=r"pip install 'pocketbert\[report\]'"):
        write_report(full, tmp_path / "report.html")
    with pytest.raises(MissingBackendError):
        require_report_packages()


def test_importing_the_report_needs_neither_matplotlib_nor_jinja():
    code = "import sys, pocketbert.benchmarks.report, pocketbert.benchmarks.latency; print({'matplotlib', 'jinja2', 'torch'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
