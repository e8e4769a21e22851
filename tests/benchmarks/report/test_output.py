"""What a benchmark prints and the page that it writes: several folders, several devices, recorded scores."""

import re
import shutil
from pathlib import Path

import pytest

from pocketbert.benchmarks.records import EmulatedAnswers
from pocketbert.benchmarks.report.figures import same_file_ratio
from pocketbert.benchmarks.report.output import describe_sessions, make_latency_table, write_result
from pocketbert.core.artefacts import read_artefacts, write_artefacts
from pocketbert.core.predict.scores import Score
from pocketbert.core.types import Provenance
from support.compilations import compilation

# --- several folders -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def two(result):
    """The same files in two folders; those of the second take twice the time."""
    variants, measurements = [], []
    for folder, slower in (("a", 1), ("b", 2)):
        for v in result.variants:
            place = {"path": Path(folder) / v.path.name, "tokenizer": Path(folder)}
            variants.append(v.model_copy(update={"name": f"{folder} {v.name}", **place}))
        for m in result.measurements:
            walls = [[slower * x for x in repeat] for repeat in m.wall_ms]
            measurements.append(m.model_copy(update={"variant": f"{folder} {m.variant}", "wall_ms": walls}))
    return result.model_copy(update={"variants": variants, "measurements": measurements, "comparisons": []})


def test_each_file_is_compared_with_its_namesake_in_the_first_folder(two, result):
    for m in two.measurements:
        ratio = same_file_ratio(two, m)
        assert (ratio is None) == m.variant.startswith("a ")
        assert ratio is None or (ratio.low, ratio.median, ratio.high) == pytest.approx((2, 2, 2))
    header, rows = make_latency_table(two)
    assert header[-1] == "time ratio to the same file of the first folder"
    assert {row[-1] for row in rows if row[0].startswith("b ")} == {"2.000 [2.000, 2.000]"}
    other = [v.model_copy(update={"path": v.tokenizer / f"only {v.name}"}) for v in two.variants]
    for alone in (two.model_copy(update={"variants": other}), result):
        assert all(same_file_ratio(alone, m) is None for m in alone.measurements)
    assert "first folder" not in " ".join(make_latency_table(result)[0])


def test_files_of_one_round_did_not_take_turns(two):
    one_round = two.model_copy(update={"protocol": two.protocol.model_copy(update={"burst": 10_000})})
    measurements = [m.model_copy(update={"wall_ms": m.wall_ms[:1]}) for m in two.measurements]
    assert all(same_file_ratio(one_round, m) is None for m in measurements)
    session = one_round.model_copy(update={"measurements": measurements})
    assert all(same_file_ratio(session, m) is None for m in measurements)


def test_a_file_that_lacks_times_of_its_namesake_is_not_compared(two):
    """As a browser that was interrupted leaves them."""
    ours = [m for m in two.measurements if m.variant.startswith("b ")]
    for walls in (ours[0].wall_ms[1:], [ours[0].wall_ms[0][1:], *ours[0].wall_ms[1:]]):
        short = ours[0].model_copy(update={"wall_ms": walls})
        assert same_file_ratio(two, short) is None


# --- several devices -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def write_page(phone, tmp_path):
    """`write_page(result, folder=phone)`: the page that the command writes."""

    def write(result, folder=phone):
        write_result(result, tmp_path / "page.html", [folder])
        return (tmp_path / "page.html").read_text(encoding="utf-8")

    return write


def models_of(page):
    return page.split('<section id="models">')[1].split("</table>")[0]


@pytest.mark.parametrize(("others", "percent", "warned"), [(0.4, 40, True), (0.02, 2, False)])
def test_the_terminal_tells_the_load_and_warns_of_a_busy_machine(result, change_all, others, percent, warned):
    load = result.measurements[0].load.model_copy(update={"before": 1.0, "after": 2.0, "others": others})
    lines = describe_sessions(change_all(result, load=load))
    assert f"load of local: load average 1.00 → 2.00, other processes used {percent} % of the CPU time" in lines[1]
    assert any(line.startswith("Warning: local was busy with other work") for line in lines) == warned
    emulated = change_all(result, load=load, wall=None)  # whose figures do not depend on it
    assert "Warning" not in "\n".join(describe_sessions(emulated))


# --- scores ----------------------------------------------------------------------------------------------------------------------


def make_score(value, rows=872):
    return Score(metric="accuracy", value=value, others={}, rows=rows, chance=0.5, finite=True)


def test_the_page_has_the_scores_that_the_folder_records(phone, result, write_page, tmp_path):
    own = shutil.copytree(phone, tmp_path / "phone")
    artefacts = read_artefacts(own)
    (file,) = [f for f in artefacts.models() if f.path.endswith(".onnx")]
    assert file.sha256 == result.variants[1].sha256
    assert "Score against" not in write_page(result, own)
    scored = file.model_copy(update={"scores": {"holdout": make_score(0.8), "eval": make_score(0.9)}})
    files = [scored if f.path == file.path else f for f in artefacts.files]
    write_artefacts(own, artefacts.model_copy(update={"files": files, "machine": "The Scoring Machine"}))
    page = write_page(result, own)
    assert "Score against latency on local" in page
    assert re.search(
        r"The Scoring Machine</b><br>measured: scores on 872 rows, each file by itself, recorded in artifacts", page
    )
    assert "accuracy<br>eval" in models_of(page)
    assert "90.00" in models_of(page)


def test_without_recorded_scores_those_of_the_labelled_rows_are_taken(result, write_page):
    bounds = {"largest": 0.1, "tolerance": 0.2, "finite": True, "same": 1.0, "provenance": Provenance.EMULATED}
    scores = {"score": make_score(0.5, 40), "score_here": make_score(0.75, 40)}
    student = result.variants[1]
    answers = EmulatedAnswers(variant=student.name, rows=40, available=872, **bounds, **scores)
    of_student = {"variant": student.name, "sha256": student.sha256, "answers": answers, "estimate": None}
    page = write_page(result.model_copy(update={"compilations": [compilation("qnn-host:A", **of_student)]}))
    assert "accuracy<br>rows of --data" in page
    assert "measured: scores on 40 rows, each file by itself, the rows of --data that were emulated" in page
    assert "75.00" in models_of(page)
    assert "50.00" not in models_of(page)  # what the emulator scored is in its own table
