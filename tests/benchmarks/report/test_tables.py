"""The page at its largest, and what its script does in Chromium."""

import os
import re
import shutil
import subprocess

import pytest
from filelock import FileLock

from pocketbert.benchmarks.report import GateRow, ModelRow, render_report
from pocketbert.core.compare.diagnosis import DiagnosedGroup, StudentDiagnosis
from support.debian_tools import TOOLS, lacking

LABELS = [f"refunds/label {i} with a name {'x' * 80}" for i in range(150)]


def test_the_page_of_very_many_figures_stays_below_2_mb_and_says_what_it_left_out(result, change_all, make_data):
    names = {v.name: [f"{v.name} of folder {k} {'x' * 60}" for k in range(30)] for v in result.variants}
    variants = [v.model_copy(update={"name": name}) for v in result.variants for name in names[v.name]]
    measured = [m.model_copy(update={"variant": n}) for m in result.measurements for n in names[m.variant]]
    one = result.model_copy(update={"variants": variants, "measurements": measured, "comparisons": []})
    others = [change_all(one, device=f"adb:{number}") for number in range(9)]
    rows = [ModelRow(name=v.name, bytes=v.bytes) for v in variants]
    gates = [GateRow(name=f"gate {g}", file=r.name, passed=g > 0, detail="x" * 300) for g in range(12) for r in rows]
    group = {"rows": 9, "teacher": 0.5, "student": 0.25, "agreement": 0.5}
    groups = [DiagnosedGroup(by="label", name=name, **group) for name in LABELS]
    diagnosis = StudentDiagnosis(metric="accuracy", overall=groups[0], groups=groups, advice=[])
    joint = one.model_copy(update={"others": others})
    page = render_report(make_data(rows=rows, benchmark=joint, gates=gates, diagnosis=diagnosis))
    assert len(page.encode()) < 2_000_000
    assert "more rows are left out so that the page stays below 2 MB; benchmark.json has all." in page


@pytest.fixture(scope="module")
def shown():
    """`shown(path)`: the document that Chromium makes of a page, after its scripts."""
    program = shutil.which("chromium")
    if program is None:
        with FileLock(f"{TOOLS}.chromium.lock"):
            if reasons := [*lacking(["chromium"])]:
                pytest.skip(f"no Chromium: {'; '.join(reasons)}")
        program = str(TOOLS / "chromium/usr/lib/chromium/chromium")
    beside = TOOLS / "chromium/usr/lib/x86_64-linux-gnu"
    libraries = {"LD_LIBRARY_PATH": f"{beside}:{beside / 'pulseaudio'}:{os.environ.get('LD_LIBRARY_PATH', '')}"}

    def dump(path):
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={path.parent / 'chromium'}"]
        command = [program, *flags, "--dump-dom", path.as_uri()]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=120, check=True, env={**os.environ, **libraries}
        )
        return done.stdout

    return dump


@pytest.mark.slow
def test_tables_sort_and_filter_in_a_browser_and_no_other_script_runs(shown, make_data, tmp_path):
    sizes = {"a": 900_000, "b": 12_000_000, "c": 2_000_000, **{f"d{i}": 3_000_000 + i for i in range(7)}}
    page = render_report(make_data(rows=[ModelRow(name=n, bytes=size) for n, size in sizes.items()]))
    (tmp_path / "page.html").write_text(page, encoding="utf-8")
    plain = shown(tmp_path / "page.html")
    assert 'placeholder="Filter 10 rows"' in plain, "the page allows its own script"

    def table_after(actions):
        foreign = page.replace("</body>", f"<script>{actions}</script></body>")
        (tmp_path / "foreign.html").write_text(foreign, encoding="utf-8")
        free = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", foreign)
        (tmp_path / "free.html").write_text(free, encoding="utf-8")
        blocked, done = (shown(tmp_path / f"{name}.html") for name in ("foreign", "free"))
        assert blocked.split("<script>")[0] == plain.split("<script>")[0], "a script from elsewhere does nothing"
        rows = done.split('<section id="models"')[1].split("<tbody>")[1].split("</tbody>")[0].split("</tr>")[:-1]
        return [re.search(r"</span>(\w+)", row)[1] for row in rows if "hidden" not in row.split(">")[0]]

    table = 'const t = document.querySelector("#models table"); const click = (i) => t.querySelectorAll("th button")[i].click();'
    assert table_after(f"{table} click(1);")[:3] == ["a", "c", "d0"], "by size, kB before MB"
    assert table_after(f"{table} click(1); click(1);")[0] == "b"
    words = 'const i = document.querySelector("#models input"); i.value = "MB d"; i.dispatchEvent(new Event("input"));'
    assert table_after(words) == [f"d{i}" for i in range(7)]
