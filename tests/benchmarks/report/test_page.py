"""The page of a run: its sections, what is left out, and texts that are no HTML."""

import base64
import hashlib
import re
import subprocess
import sys
from html.parser import HTMLParser
from importlib import resources

import pytest

from pocketbert.benchmarks.report import GateRow, ModelRow, ReportData, make_summary_table, render_report, write_report
from pocketbert.benchmarks.report.figures import ParityRow, TrainingCourse, headline_condition
from pocketbert.benchmarks.report.plots import require_report_packages
from pocketbert.core.compare.diagnosis import Advice, DiagnosedGroup, StudentDiagnosis
from pocketbert.core.data_report import DataReport, SplitReport
from pocketbert.core.errors import MissingBackendError
from pocketbert.core.host.hardware import describe_machine
from pocketbert.core.predict.scores import Confidence, Score
from pocketbert.core.tasks import TaskName
from pocketbert.core.types import Status

EVIL = "<script>alert('&')</script>"


def make_score(value, metric="accuracy", **others):
    return Score(metric=metric, value=value, others=others, rows=2000, chance=0.1, finite=value == value)


def make_split(labels):
    counts = {"rows": 100, "duplicates": 2, "conflicting": 1, "truncated": 0}
    tokens = {"tokens_mean": 8.5, "tokens_p50": 8, "tokens_p95": 14, "tokens_max": 20}
    split = SplitReport(name="train", source="train.jsonl", labels=labels, **counts, **tokens)
    return DataReport(max_length=32, splits=[split], notes=["something to know"])


@pytest.fixture(scope="module")
def full(result, make_data):
    teacher = {"bytes": 90_900_000, "parameters": 22_700_000, "kept": 1.0, "is_teacher": True}
    student = {"bytes": 10_900_000, "kept": 0.9896, "status": Status.PASSED, "is_default": True}
    scores = {"eval_score": make_score(0.95, macro_f1=0.95), "holdout_score": make_score(0.94)}
    return make_data(
        title="Commands",
        description="Small.",
        versions={"numpy": "2"},
        rows=[
            ModelRow(name="teacher fp32", eval_score=make_score(0.96), **teacher),
            ModelRow(name="student int8", **student, **scores),
        ],
        benchmark=result,
        parity=[ParityRow(file="onnx/model.onnx", worst=3e-6, bound=1e-3, lengths=[8, 32], passed=True)],
        gates=[
            GateRow(name="finite", file="onnx/model_int8.onnx", passed=False, value=float("nan"), detail="no number")
        ],
        data=make_split({"play $music$": 60, EVIL: 40}),
        curves={
            "teacher": [(0, 2.0), (9, 1.0)],
            "student": [(i, 3 / (i + 1)) for i in range(90)],
            "student/logits": [(0, 1.0), (9, 0.5)],
        },
        courses=[
            TrainingCourse(
                name="teacher",
                metric="macro_f1",
                rates=[(5, 1e-4), (9, 0.0)],
                scores=[(5, 0.8), (9, 0.7)],
                best_step=5,
            ),
            TrainingCourse(name="student", rates=[(9, 1e-4)]),
        ],
        diagnosis=StudentDiagnosis(
            metric="accuracy",
            overall=DiagnosedGroup(by="all", name="unseen rows", rows=90, teacher=0.9, student=0.8, agreement=0.85),
            groups=[DiagnosedGroup(by="label", name=EVIL, rows=9, teacher=0.5, student=0.25, agreement=0.5)],
            advice=[Advice(what="Let the teacher label more text.", figure="0.95 and 0.85", key="data.transfer")],
        ),
        confusion=[("play", "pause", 7), ("call", EVIL, 2)],
        confusion_of="student int8 on eval",
        notes=["The corpus is generated."],
        recipe="schema: 1\n# <b>",
        command="pocketbert run r.yaml",
        made="today",
    )


@pytest.fixture(scope="module")
def full_html(full, tmp_path_factory):
    """The page of `full`, as it is written."""
    path = tmp_path_factory.mktemp("full") / "report.html"
    write_report(full, path)
    return path.read_text(encoding="utf-8")


class Page(HTMLParser):
    """Collects what a test wants to know of a page, complains about tags that do not match and about what is loaded."""

    VOID = ("meta", "br", "img", "link", "input", "hr")
    SCRIPT = resources.files("pocketbert.benchmarks.report").joinpath("tables.js.j2").read_text(encoding="utf-8")

    def __init__(self, html):
        super().__init__()
        self.tags, self.attributes, self.open, self.text, self.ids = [], [], [], "", []
        assert html.count("<script") == html.count(f"<script>{self.SCRIPT}</script>") == 1
        digest = base64.b64encode(hashlib.sha256(self.SCRIPT.encode()).digest()).decode()
        policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
        assert policy in html
        html = html.replace(f"<script>{self.SCRIPT}</script>", "")
        self.feed(html)
        assert not self.open, self.open
        assert len(self.ids) == len(set(self.ids))
        assert len(html.encode()) < 2_000_000
        assert not {"script", "link", "img", "iframe", "object"} & set(self.tags)
        for _, name, value in self.attributes:
            assert not name.startswith("on"), name
            assert name not in ("src", "href", "action", "data") or value.startswith("#"), value
        assert not re.search(r"@import|url\((?!#)", html)
        assert "://" not in html

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


def text_of(data):
    return Page(render_report(data)).text


def list_missing(words, text):
    return [word for word in re.split(r"[|\n]", words) if word not in text]


FULL = """Commands|99.0 %|8.34× smaller|Start and memory|Tokenizer|Where the time goes|MatMul|onnx/model_int8.onnx|no number
Most confused labels: student int8 on eval|Training loss of the student|Class balance of train|something to know
The corpus is generated.|pocketbert run r.yaml|64 clipped to 32|Where the student loses|Let the teacher label more text.
Learning rate and macro_f1 on validation rows: teacher. The weights of step 5, the large dot, were kept.|Learning rate: student."""
ORDER = "decision gates models diagnosis sources latency operators parity scores training data origin".split()
BARE = """this run made no model file|this run has no benchmark|the profile is part of the benchmark|compared no file
checked none|scored no model|nothing was trained|read no labelled data|this run had none"""


def test_a_full_report_has_every_section_and_every_plot_says_where_its_figures_come_from(full_html):
    html, page = full_html, Page(full_html)
    assert html.rstrip().endswith("</html>")
    assert "Left out" not in page.text
    assert "left out:" not in page.text
    assert list_missing(FULL, page.text) == []
    figures = re.findall(r"<figure>.*?</figure>", html, re.S)
    assert page.tags.count("svg") == len(figures) == 1 + 1 + 2 + 2 + 2  # front, distribution, boxes, losses, rates
    for figure in figures:
        assert re.search(r'<a class="src" href="#source-1">measured \[1\]</a></figcaption>', figure)
    assert page.text.count(describe_machine().summary) == 2, "in the list of sources, and among the versions"
    assert re.findall(r'<section id="(\w+)"', html) == ORDER
    shown = html.split('<h2 class="rest">')[0]
    assert re.findall(r"<details><summary>([^<]*)", shown) == ["All 1 gates in words"]


def test_what_is_missing_is_left_out_with_a_reason(make_data):
    page = Page(render_report(make_data(title="Bare")))
    assert list_missing(BARE, page.text) == []
    assert "svg" not in page.tags
    assert "None" not in page.text


def test_texts_of_users_are_escaped_everywhere(full):
    named = ("title", "description", "command", "recipe", "confusion_of", "made")
    evil = {
        **dict.fromkeys(named, EVIL),
        "rows": [full.rows[0], full.rows[1].model_copy(update={"name": EVIL, "path": EVIL})],
        "notes": [EVIL],
        "curves": {EVIL: [(0, 1.0), (1, 0.5)]},
        "confusion": [(EVIL, EVIL, 1)],
        "gates": [GateRow(name=EVIL, file=EVIL, passed=True, detail=EVIL)],
        "versions": {EVIL: EVIL},
    }
    html = render_report(full.model_copy(update=evil))
    assert EVIL in Page(html).text


def test_report_data_reads_back_with_nan_inside(full):
    again = ReportData.model_validate_json(full.model_dump_json())
    assert again.gates[0].value != again.gates[0].value
    assert again.model_copy(update={"gates": []}) == full.model_copy(update={"gates": []})


def test_the_table_and_the_report_show_the_same_figures(full, full_html, result):
    assert headline_condition(result) == (1, "text")
    header, cells = make_summary_table(full)
    assert header[:5] == ["model", "size", "accuracy", "accuracy holdout", "kept"]
    assert header[5:] == ["p50 ms (1 thread, real text, batch 1)", "vs teacher fp32", "gates"]
    assert [row[:5] for row in cells] == [
        ["teacher fp32", "90.9 MB", "96.00", "–", "100.0 %"],
        ["student int8 *", "10.9 MB", "95.00", "94.00", "99.0 %"],
    ]
    assert list_missing("|".join(cells[1][1:]), Page(full_html).text) == []
    assert float(cells[0][5]) == pytest.approx(result.find("teacher fp32", 1, "text").wall.p50, rel=1e-2)


def test_the_calibration_error_is_shown_without_and_with_the_temperature(make_data):
    def row(name, **confidence):
        return ModelRow(name=name, bytes=1, eval_score=make_score(0.9), confidence=Confidence(**confidence))

    errors = {"measured_on": "eval", "rows": 100, "error_before": 0.05314, "error": 0.012}
    rows = [
        row("a", temperature=1.425, fitted_rows=1500, **errors),
        row("c", unknown=0.7125, unknown_rows=900, answered=0.815, answered_accuracy=0.9625, **errors),
        row("b", note="no training rows are held out (data.holdout)", **{**errors, "error": 0.05314}),
    ]
    data = make_data(rows=rows)
    text = text_of(data)
    for words in (
        "5.31 % → 1.20 % (temperature 1.425)",
        "0.7125: 81.5 %, of which 96.2 % right",
        "fitted for each file on 1,500 held-out rows",
        "No temperature was fitted: no training rows are held out (data.holdout).",
    ):
        assert words in text
    assert ReportData.model_validate_json(data.model_dump_json()) == data
    bare = make_data(rows=[rows[0].model_copy(update={"confidence": None})])
    assert "alibration error" not in text_of(bare)


def test_nats_are_no_points_and_lower_is_better(result, make_data):
    def row(name, value, **more):
        score = make_score(value, "cross_entropy", top_1=0.255).model_copy(update={"chance": 2.33})
        return ModelRow(name=name, bytes=1_000_000, eval_score=score, kept=1.25 / value, **more)

    rows = [row("teacher fp32", 1.25, is_teacher=True), row("student int8", 1.5, is_default=True)]
    html = render_report(make_data(task=TaskName.FILL_MASK, rows=rows, benchmark=result))
    text = Page(html).text
    assert "cross_entropy, nats, lower is better</text>" in html
    for words in (
        "cross_entropy of student int8, nats, lower is better; teacher fp32 1.2500 nats",
        "does not read its input may reach by luck (guessing by the tokens' frequencies)",
        "1.5000 nats",
        "2.3300 nats",
        "top_1 25.50",
        "cross_entropy in nats, lower is better",
    ):
        assert words in text, words
    for words in ("points", "Confusions", "of the cross_entropy"):
        assert words not in text, words
    assert not re.search(r"(?<![\d.])150\.0", text)  # a column's milliseconds stand close to the next one's


def test_gates_are_a_matrix_with_failures_first_and_of_two_with_one_name_the_failed_one_decides(make_data, words):
    gates = [
        GateRow(name="golden", file="a.onnx", passed=True, detail="equal"),
        *(GateRow(name="drop", file="b.onnx", passed=p) for p in (True, False, True)),
        GateRow(name="golden", file="b.onnx", passed=False, value=0.5, bound=0.1, detail="0.5 off"),
        GateRow(name="engine", file="c.mlpackage", passed=True, skipped=True, detail="no engine"),
    ]
    html = render_report(make_data(gates=gates))
    matrix = html.split('<table class="gates">')[1].split("</table>")[0]
    rows = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row) for row in matrix.split("</tr>")[:-1]]
    assert [[words(cell) for cell in row] for row in rows] == [
        ["file", "golden", "drop", "engine"],
        ["b.onnx", "✗", "✗", ""],
        ["a.onnx", "✓", "", ""],
        ["c.mlpackage", "", "", "skip"],
    ]
    text = words(html)
    assert text.index("failed gate") < text.index("0.5 off") < text.index("skip ")


def test_without_the_extra_the_message_is_the_command_and_importing_needs_neither(monkeypatch, full, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingBackendError, match=r"pip install 'pocketbert\[report\]'"):
        write_report(full, tmp_path / "report.html")
    with pytest.raises(MissingBackendError):
        require_report_packages()
    code = "import sys, pocketbert.benchmarks.report, pocketbert.benchmarks.latency; print({'matplotlib', 'jinja2', 'torch'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
