"""Gates on what surrounds the model files: tokenizer, labels, what was verified, and packed folders that are not opened."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pocketbert.core.compare.evaluate import EvalSet
from pocketbert.core.predict.scores import Score
from pocketbert.core.recipe.recipe import VerifySection
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.core.types import Client, Format, Runtime, Scheme, Status
from pocketbert.pipeline.gates import verify
from pocketbert.pipeline.gates.checks import TorchScores
from pocketbert.pipeline.gates.verify import Evidence
from pocketbert.pipeline.results import Gate, Subject, Verification
from support.defects import ONNX as FP32
from support.defects import ONNX_INT8 as INT8
from support.defects import break_file, relist

Cli = Callable[..., Any]
Refused = Callable[..., list[str]]


def edit_json(path: Path, change: Callable[[Any], object]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def swap_labels(path: Path) -> None:
    """Swap two names in config.json, both ways, as a tool does that sorts the labels anew."""

    def swap(config: Any) -> None:
        names = config["id2label"]
        names["0"], names["1"] = names["1"], names["0"]
        config["label2id"] = {name: int(i) for i, name in names.items()}

    edit_json(path, swap)


def change_vocabulary(path: Path, extra: int = 0) -> None:
    """The same words in another order, as another model's tokenizer has them."""

    def change(content: Any) -> None:
        words = sorted(content["model"]["vocab"], key=content["model"]["vocab"].get)
        special, rest = words[:5], [*words[5:], *(f"more{i}" for i in range(extra))]
        content["model"]["vocab"] = {w: i for i, w in enumerate([*special, *reversed(rest)])}

    edit_json(path, change)


# The run folder.


def test_two_labels_swapped_in_config_json(refused: Refused, run_copy: Path) -> None:
    swap_labels(run_copy / "student" / "config.json")
    refused(run_copy, f"{FP32} labels", f"{INT8} labels", "config.json labels")


def test_tokenizer_of_another_model(refused: Refused, run_copy: Path) -> None:
    change_vocabulary(run_copy / "student" / "tokenizer.json")
    refused(run_copy, "tokenizer.json tokenizer", f"{FP32} reference", f"{FP32} drop")


def test_a_tokenizer_with_more_tokens_than_the_model_stops_everything_else(refused: Refused, run_copy: Path) -> None:
    # ids beyond the embedding table would stop the runtime
    change_vocabulary(run_copy / "student" / "tokenizer.json", extra=300)
    assert refused(run_copy, "tokenizer.json tokenizer") == ["tokenizer.json tokenizer"]


# The packed folder: what somebody else finds on their machine.


def drop_record(phone: Path, name: str) -> None:
    def drop(listed: Any) -> None:
        listed["files"] = [r for r in listed["files"] if r["path"] != name]

    (phone / name).unlink()
    edit_json(phone / "artifacts.json", drop)


def link_card(phone: Path) -> None:
    (phone / "README.md").unlink()
    (phone / "README.md").symlink_to(phone / "parity.json")


def mark_failed(phone: Path) -> None:
    def mark(listed: Any) -> None:
        next(r for r in listed["files"] if r["path"] == INT8)["status"] = "failed"

    edit_json(phone / "artifacts.json", mark)


def lose_an_answer(golden: Path) -> None:
    *rows, last = [json.loads(line) for line in golden.read_text().splitlines()]
    for part in ("outputs", "tolerance"):
        del last[part][INT8]
    golden.write_text("".join(json.dumps(row) + "\n" for row in (*rows, last)))


def listed(name: str, change: Callable[[Path], None]) -> Callable[[Path], None]:
    """Change a file of a folder, and list it as it is then."""

    def both(phone: Path) -> None:
        change(phone / name)
        relist(phone, name)

    return both


def unlink(name: str) -> Callable[[Path], None]:
    return lambda phone: (phone / name).unlink()


NEEDED = (INT8, "golden.jsonl", "golden_tokens.jsonl", "tokenizer.json", "config.json")
Changed = tuple[Callable[[Path], object], set[str], str]
CLOSED: dict[str, Changed] = {
    "a weight": (lambda f: break_file(f / INT8, "swap_labels"), {"integrity"}, f"{INT8}: changed since it was packed"),
    **{f"without {n}": (unlink(n), {"integrity", "complete"}, f"{n}: listed, but not there") for n in NEEDED},
    "no golden rows listed": (
        lambda f: drop_record(f, "golden.jsonl"),
        {"complete"},
        "cannot be verified without golden.jsonl",
    ),
    "marked failed": (mark_failed, {"status"}, f"{INT8}: marked failed in artifacts.json"),
}
"""What is done to a folder, gates that fail then, and what is said: no model file is opened."""
OPENED: dict[str, Changed] = {
    "a byte": (
        lambda f: (f / "parity.json").write_bytes((f / "parity.json").read_bytes()[:-1] + b"!"),
        {"integrity"},
        "folder: gate 'integrity' failed: parity.json: changed since it was packed",
    ),
    "without vocab.txt": (unlink("vocab.txt"), {"integrity"}, "vocab.txt: listed, but not there"),
    "the card is a link": (link_card, {"integrity"}, "README.md: changed since it was packed"),
    "an unlisted file": (
        lambda f: (f / "onnx" / "more.onnx").touch(),
        {"integrity"},
        "onnx/more.onnx: there, but not listed",
    ),
    "labels swapped and listed": (
        listed("config.json", swap_labels),
        {"config.json labels", f"{FP32} labels", f"{INT8} labels"},
        "label order changed?",
    ),
    "an answer lost and listed": (
        listed("golden.jsonl", lose_an_answer),
        {f"{INT8} recorded"},
        "1 of ",
    ),
    "another tokenizer listed": (
        listed("tokenizer.json", change_vocabulary),
        {"tokenizer.json tokenizer", f"{FP32} reference"},
        "another model's tokenizer?",
    ),
}
"""The same, where the files can be opened."""


@pytest.mark.parametrize("case", [*CLOSED, *OPENED])
def test_a_changed_folder_is_refused_and_damaged_files_are_not_opened(
    case: str, cli: Cli, phone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, gates, said = {**CLOSED, **OPENED}[case]
    change(phone)
    if case in CLOSED:
        monkeypatch.setattr(verify, "open_file", refuse_to_open)
    result = cli("verify", "-m", phone, "--json")
    assert result.exit_code == 3, result.output
    found = json.loads(result.stdout.splitlines()[-1])["gates"]
    failed = {f"{g['file']} {g['name']}".strip() for g in found if not g["passed"]}
    assert gates <= failed
    assert case in OPENED or failed == gates
    assert said in result.stderr


def refuse_to_open(*_: Any, **__: Any) -> None:
    raise AssertionError("a file was opened")


def test_a_user_may_edit_the_card(cli: Cli, phone: Path) -> None:
    (phone / "README.md").write_text("# Ours\n\nLicence: ask us.\n")
    result = cli("verify", "-m", phone)
    assert result.exit_code == 0, result.stderr
    assert result.stderr.count("README.md") == 1
    assert "README.md: edited since it was packed" in result.stderr


def test_verify_with_data_on_a_run_folder_is_refused(cli: Cli, finished: Path, task: Any) -> None:
    result = cli("verify", "-m", finished, "--data", task.folder / "eval.jsonl")
    assert result.exit_code == 2
    assert "a run folder is verified with its recipe's data" in result.stderr


def test_prediction_refuses_a_file_that_computes_wrongly(cli: Cli, phone: Path) -> None:
    break_file(phone / INT8, "swap_labels")
    relist(phone, INT8)
    result = cli("predict", "-m", phone, "turn the lamp on")
    assert result.exit_code == 3
    assert "computes this file wrongly on this machine" in result.stderr


# What scores are compared with.


def subject(name: str, format: Format, scheme: Scheme, **more: Any) -> Subject:
    given: dict[str, Any] = {
        "path": Path(name), "client": None, "runtime": None, "predictor": None, "tokenizer": None, "labels": ["a", "b"],
        "task": TASKS[TaskName.TEXT_CLASSIFICATION], "folder": Path(),
    }  # fmt: skip
    return Subject(name=name, format=format, scheme=scheme, **{**given, **more})


def test_a_smaller_file_is_compared_with_what_it_was_made_from_and_with_the_teacher() -> None:
    subjects = [
        subject("onnx", Format.ONNX, Scheme.FP32),
        subject("onnx-int8", Format.ONNX, Scheme.INT8),
        subject("tflite", Format.TFLITE, Scheme.FP32),
        subject("mediapipe", Format.TFLITE, Scheme.FP32, client=Client.MEDIAPIPE),
        subject("tflite-int8", Format.TFLITE, Scheme.INT8),
        subject("mediapipe-int8", Format.TFLITE, Scheme.INT8, client=Client.MEDIAPIPE),
        subject("tflite-old", Format.TFLITE, Scheme.INT8, runtime=Runtime.TFLITE_2_16),
        subject("coreml", Format.COREML, Scheme.FP16),
        subject("coreml-w8", Format.COREML, Scheme.W8),
    ]
    values = {s.name: 0.80 - i / 100 for i, s in enumerate(subjects)}
    teacher = Score(metric="accuracy", value=0.95, others={}, rows=100_000, chance=0.5, finite=True)
    evidence = Evidence(golden=[], golden_tokens=Path(), vocabulary=None, tokenizer=None, teacher=teacher)  # type: ignore[arg-type]

    def compare(name: str, rows: str = "eval", **settings: float) -> list[Gate]:
        scores = {s: {rows: teacher.model_copy(update={"value": v})} for s, v in values.items()}
        own = next(s for s in subjects if s.name == name)
        return verify._compare_scores(own, rows, scores, subjects, evidence, VerifySection(**settings))

    for name, base in (
        ("onnx-int8", "onnx"),
        ("tflite-int8", "tflite"),
        ("mediapipe-int8", "mediapipe"),
        ("tflite-old", "tflite"),
        ("coreml-w8", "coreml"),
    ):
        for rows in ("eval", "holdout"):
            [gate] = compare(name, rows, max_drop=0.02)
            assert (gate.name, gate.bound) == ("drop", 0.02)
            assert gate.value == pytest.approx(values[base] - values[name])
            assert f" on {rows} has" in gate.detail
    assert compare("onnx") == []
    assert [g.name for g in compare("onnx-int8", min_kept=0.9)] == ["drop", "kept"]
    assert [g.name for g in compare("onnx-int8", "holdout", min_kept=0.9)] == ["drop"]


def test_an_exported_file_may_lose_to_torch_what_its_format_allows() -> None:
    reached = Score(metric="accuracy", value=0.87, others={}, rows=100_000, chance=0.5, finite=True)
    known = reached.model_copy(update={"value": 0.9})
    for format, scheme, bound in (
        (Format.ONNX, Scheme.FP32, 0.001),
        (Format.TFLITE, Scheme.FP32, 0.001),
        (Format.COREML, Scheme.FP16, 0.003),
    ):
        own, rows = subject("a", format, scheme), [EvalSet(n, None, None) for n in ("eval", "holdout")]  # type: ignore[arg-type]
        torch_scores = TorchScores(None, known, None, "")  # type: ignore[arg-type]
        [gate] = torch_scores.gates(own, rows[0], reached)
        assert (gate.bound, gate.passed) == (bound, False)
        assert gate.value == pytest.approx(0.03)
        assert torch_scores.gates(own, rows[1], reached) == []
    assert torch_scores.gates(subject("a", Format.ONNX, Scheme.INT8), rows[0], reached) == []


def test_a_file_passed_where_its_own_gates_and_the_folder_s_did() -> None:
    gates = [Gate(name="golden", file="a", passed=False), Gate(name="golden", file="b", passed=True)]
    result = Verification(status=Status.FAILED, gates=gates)
    assert (result.passed("a"), result.passed("b")) == (False, True)
    broken = Verification(status=Status.FAILED, gates=[*gates, Gate(name="labels", file="config.json", passed=False)])
    assert not broken.passed("b")
