"""Files for phones out of a fine-tuned folder: what is particular to TFLite and Core ML, and every head in every format."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

for _package in ("litert_torch", "ai_edge_quantizer", "coremltools"):
    pytest.importorskip(_package, exc_type=ImportError)

import pocketbert
from pocketbert import ExportOptions, api
from pocketbert.core.artefacts import read_artefacts
from pocketbert.core.compare.golden import read_golden
from pocketbert.core.data.source import DataSource
from pocketbert.core.disk.files import path_bytes, sha256_path
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.core.types import Format, Role, Scheme
from pocketbert.pipeline.phone.recording import read_facts
from pocketbert.quantize import Plan, quantize, weights
from support.classifiers import expected
from support.folders import tree
from support.published import edit_json
from support.tiny import EXPORTED, NAMES, write_classifier
from support.tiny_task import Task

Cli = Callable[..., Any]
SHORT_TEXTS = ["please", "the song", "it is"]


@pytest.fixture
def run(cli: Cli) -> Cli:
    """`run(*arguments)`: a command that must succeed; with --json its answer."""

    def call(*arguments: object) -> Any:
        done = cli(*arguments)
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout.splitlines()[-1]) if "--json" in arguments else done

    return call


def records_of(folder: Path) -> dict[str, dict[str, Any]]:
    listed = json.loads((folder / "artifacts.json").read_text())
    return {r["path"]: r for r in listed["files"] if r["kind"] == "model"}


def assert_probabilities(opened: Any, source: Path, atol: float) -> None:
    """Those of transformers with the untouched folder."""
    for answer, row in zip(opened.predict(SHORT_TEXTS), expected(source, SHORT_TEXTS), strict=True):
        assert np.allclose(list(answer.scores.values()), row, atol=atol)


# TFLite: files of listed lengths, and one for MediaPipe where it can run the model


def test_tflite_alone_and_a_model_that_mediapipe_cannot_run(
    run: Cli, model: Callable[..., Path], tmp_path: Path
) -> None:
    source, output = model("roberta"), tmp_path / "phone"
    made = run("export", "-m", source, "-o", output, "--format", "tflite", "--max-length", "24")
    reason = "MediaPipe would feed this model wrong ids: its tokenizer is WordPiece, the model's is BPE."
    assert f"not written: tflite/mediapipe.tflite: {reason}" in made.stdout
    assert read_artefacts(output).absent == {"tflite/mediapipe.tflite": reason}
    assert reason in (output / "README.md").read_text()
    models = records_of(output)
    assert [*models] == ["tflite/model.tflite", "tflite/model_int8.tflite"]
    for record in models.values():
        assert record["signature"]["lengths"] == [24]  # 32, 64 and 128 are longer than the model is asked to be
        inputs = [(t["name"], t["dtype"]) for t in record["signature"]["inputs"]]
        assert inputs == [("input_ids", "int32"), ("attention_mask", "int32")]
        assert record["seen_right"][0]["engine"] == "litert"
    run("verify", "-m", output)
    assert_probabilities(pocketbert.load(output, scheme="fp32"), source, 1e-4)
    opened = pocketbert.load(output)
    assert opened.record.path == "tflite/model_int8.tflite"
    assert_probabilities(opened, source, 0.2)


def test_other_schemes_and_an_old_runtime(run: Cli, model: Callable[..., Path], tmp_path: Path) -> None:
    first, old, many = (tmp_path / n for n in ("w8", "old", "many"))
    source = model("distilbert")
    small = ("--format", "tflite", "--scheme", "w8", "--max-length", "16", "--json")
    assert run("export", "-m", source, "-o", first, *small)["files"] == [
        f"tflite/{stem}{suffix}.tflite" for stem in ("mediapipe", "model") for suffix in ("", "_w8")
    ]
    # the same fp32 files in other forms, without exporting again
    run("quantize", "-m", first, "-o", old, "--runtime", "tflite216")
    assert (old / "tflite/model.tflite").read_bytes() == (first / "tflite/model.tflite").read_bytes()
    assert (old / "tflite/model_int8_tflite216.tflite").is_file()
    assert not (old / "tflite/model_w8.tflite").exists()
    run("verify", "-m", old)
    made = run("quantize", "-m", first, "-o", many, "--scheme", "int8, w8", "--json")
    assert made["files"] == [
        f"tflite/{stem}{suffix}.tflite" for stem in ("mediapipe", "model") for suffix in ("", "_int8", "_w8")
    ]
    for scheme, folder in (("w8", first), ("int8", old)):
        alone, among = (f / f"tflite/model_{scheme}.tflite" for f in (folder, many))
        assert alone.read_bytes() == among.read_bytes()
        assert pocketbert.load(many, scheme=scheme).record.path == f"tflite/model_{scheme}.tflite"
    assert pocketbert.load(many).record.path == "tflite/model_int8.tflite"
    assert "tflite/model_int8.tflite" in (many / "README.md").read_text().partition("```")[2]
    records = records_of(old)
    assert records["tflite/model_int8_tflite216.tflite"]["runtime"] == "tflite216"
    assert [p for p, r in records.items() if r.get("default")] == ["tflite/model_int8.tflite"]
    for_clients = ["tflite/mediapipe.tflite", "tflite/mediapipe_int8.tflite"]
    assert [p for p, r in records.items() if r.get("client")] == for_clients
    for folder, scheme in ((first, "w8"), (old, "int8")):
        default = pocketbert.load(folder)
        assert default.record.path == f"tflite/model_{scheme}.tflite"
        assert_probabilities(default, source, 0.2)


# Core ML: packages, which are folders

FP16, W8 = "coreml/Model.mlpackage", "coreml/Model_w8.mlpackage"
ONNX = ("onnx/model.onnx", "onnx/model_int8.onnx")
TEXTS = ["please dim the bulb", "a nice old song", "wake the friend at", "the big album in my room"]


def coreml_facts(package: Path) -> tuple[int, str, str]:
    """Version of the specification, operation set, and the layout that the package says it has."""
    from coremltools.proto.Model_pb2 import Model

    spec = Model.FromString((package / "Data" / "com.apple.CoreML" / "model.mlmodel").read_bytes())
    layout = spec.description.metadata.userDefined["pocketbert.layout"]
    return spec.specificationVersion, spec.mlProgram.functions["main"].opset, layout


def test_core_ml_alone_and_its_small_package_afterwards(run: Cli, model: Callable[..., Path], tmp_path: Path) -> None:
    source, output, small = model("bert"), tmp_path / "phone", tmp_path / "small"
    options = ("--format", "coreml", "--scheme", "fp32", "--max-length", "40", "--json")
    assert run("export", "-m", source, "-o", output, *options)["files"] == [FP16]
    assert coreml_facts(output / FP16) == (9, "CoreML8", "plain")
    parity = json.loads((output / "parity.json").read_text())
    assert [p["subject"] for p in parity] == ["prepared module", FP16]
    assert parity[0]["bound"] < parity[1]["bound"] < 0.1 < parity[1]["mask_effect"]  # fp16 may be off more
    assert not (output / "onnx").exists()
    before = tree(output)
    assert run("quantize", "-m", output, "-o", small, "--json")["files"] == [FP16, W8]
    assert tree(output) == before
    assert tree(small / FP16) == tree(output / FP16)
    assert coreml_facts(small / W8) == (9, "CoreML8", "plain")
    records = records_of(small)
    assert records[FP16]["signature"]["lengths"] == [32, 40]
    assert records[W8]["signature"] == records[FP16]["signature"]
    run("verify", "-m", small)
    assert_probabilities(pocketbert.load(small, scheme="fp16"), source, 5e-3)
    opened = pocketbert.load(small)
    assert opened.record.path == W8
    assert_probabilities(opened, source, 0.1)


@pytest.mark.parametrize(
    ("flags", "name", "facts", "lengths"),
    [
        (["--ios", "16", "--layout", "ane"], "Model", (7, "CoreML6", "ane"), [40]),
        pytest.param(
            ["--ios", "17", "--shapes", "ranged", "--precision", "fp32"],
            "Model_fp32",
            (8, "CoreML7", "plain"),
            [],
            marks=pytest.mark.slow,
        ),
    ],
    ids=["fixed-ane", "ranged-fp32"],
)
def test_flags_of_core_ml_reach_the_package(
    flags: list[str],
    name: str,
    facts: tuple[int, str, str],
    lengths: list[int],
    run: Cli,
    model: Callable[..., Path],
    tmp_path: Path,
) -> None:
    source, output = model("distilbert"), tmp_path / "phone"
    run("export", "-m", source, "-o", output, "--format", "coreml", "--scheme", "fp32", "--max-length", "40", *flags)
    assert [p.name for p in (output / "coreml").iterdir() if p.is_dir()] == [f"{name}.mlpackage"]
    assert coreml_facts(output / "coreml" / f"{name}.mlpackage") == facts
    [record] = records_of(output).values()
    assert record["scheme"] == ("fp32" if "fp32" in name else "fp16")
    assert record["signature"]["lengths"] == lengths
    if facts[2] == "ane":
        assert "whether it is faster was not measured" in (output / "README.md").read_text()
    assert_probabilities(pocketbert.load(output), source, 1e-4 if "fp32" in name else 5e-3)


def test_a_package_that_no_ios_opens_is_refused_before_anything_is_made(
    cli: Cli, task: Any, model: Callable[..., Path], tmp_path: Path
) -> None:
    for command in (
        ["export", "-m", model("bert"), "--format", "coreml", "--ios", "17", "--shapes", "enumerated"],
        ["run", task.recipe, "export.formats=[coreml]", "export.coreml={ios: 17, shapes: enumerated}"],
    ):
        result = cli(*command, "-o", tmp_path / "out")
        assert result.exit_code == 2, result.output
        assert "needs ios 18, this is ios 17; possible here: ranged, fixed" in result.stderr
        assert [p.name for p in tmp_path.iterdir() if p.name != "pocketbert-cache"] == []


@pytest.fixture
def coreml_phone(finished_coreml: Path, tmp_path: Path) -> Path:
    """A copy of the folder of the tiny run with Core ML packages, to be broken."""
    return Path(shutil.copytree(finished_coreml / "phone", tmp_path / "phone"))


def test_what_is_in_a_folder_with_packages(finished_coreml: Path) -> None:
    phone = finished_coreml / "phone"
    there = {p.name for p in (phone / "coreml").iterdir()} - {"benchmark_on_mac.py"}
    assert there == {Path(FP16).name, Path(W8).name}
    records = records_of(phone)
    assert [p for p, r in records.items() if r.get("default")] == [W8]
    for file, scheme, step in ((FP16, "fp16", "coreml"), (W8, "w8", "coreml-w8")):
        record = records[file]
        made = finished_coreml / step / Path(file).name
        assert record["sha256"] == sha256_path(phone / file) == sha256_path(made)
        assert record["bytes"] == path_bytes(phone / file)
        assert (record["format"], record["scheme"], record["status"]) == ("coreml", scheme, "passed")
        [seen] = record["seen_right"]
        assert (seen["engine"], seen["provenance"]) == ("coreml-reference", "emulated")
        assert record["signature"]["lengths"] == [16, 32, 40]
        assert {t["dtype"] for t in record["signature"]["inputs"]} == {"int32"}
        assert [t["name"] for t in record["signature"]["outputs"]] == ["logits"]
        assert set(record["scores"]) == {"eval"}
    for file in ONNX:
        assert [s["provenance"] for s in records[file]["seen_right"]] == ["measured"]
    rows = read_golden(phone / "golden.jsonl")
    evaluated = [row for row in rows if FP16 in row.outputs]
    assert 12 < len(evaluated) < len(rows)  # an evaluator runs them, on fewer rows of each length
    for row in rows:
        assert set(row.outputs) == set(row.tolerance) == {*ONNX, *((FP16, W8) if row in evaluated else ())}
    assert all(row.tolerance[ONNX[0]] < row.tolerance[FP16] <= row.tolerance[W8] for row in evaluated)


def test_the_card_says_what_was_not_measured(finished_coreml: Path) -> None:
    card = (finished_coreml / "phone" / "README.md").read_text()
    assert f"Scores of `{FP16}`, `{W8}`: provenance emulated; the project's evaluator computed them" in card
    assert "Core ML packages were checked by the project's evaluator, without a Mac." in card
    [swift] = [s for s in card.split("```swift\n")[1:] if "import CoreML" in s]
    assert 'forResource: "Model_w8"' in swift
    assert "[16, 32, 40].first" in swift


def test_every_way_to_open_a_package_gives_the_labels_of_onnx(run: Cli, finished_coreml: Path) -> None:
    phone = finished_coreml / "phone"
    want = pocketbert.load(phone, format="onnx", scheme="fp32").predict(TEXTS)
    assert len({a.label for a in want}) > 1
    for arguments, path in (
        ({}, W8),
        ({"format": "coreml", "scheme": "int8"}, W8),
        ({"file": FP16}, FP16),
    ):
        opened = pocketbert.load(phone, **arguments)
        assert opened.record.path == path
        for answer, row in zip(opened.predict(TEXTS), want, strict=True):
            assert answer.label == row.label
            assert list(answer.scores.values()) == pytest.approx(list(row.scores.values()), abs=0.02)
    said = run("predict", "-m", phone, "--format", "coreml", *TEXTS)
    assert [line.split("\t")[0] for line in said.stdout.splitlines()] == [a.label for a in want]


@pytest.mark.slow
def test_the_fastest_engine_of_a_folder_whose_default_is_not_timed_here(finished_coreml: Path) -> None:
    opened = pocketbert.load(finished_coreml / "phone", engine="fastest")
    assert opened.predict(TEXTS[0])[0].label == "lamp"


def test_nothing_of_core_ml_is_timed(run: Cli, task: Any, finished_coreml: Path, tmp_path: Path) -> None:
    target = tmp_path / "benchmark.json"
    few = ("--threads", "1", "--lengths", "16", "--runs", "10", "--repeats", "2", "--budget", "1", "--gaps", "none")
    run("benchmark", "-m", finished_coreml / "phone", "-o", target, *few)
    assert [v["name"] for v in json.loads(target.read_text())["variants"]] == list(ONNX)
    assert "mlpackage" not in target.read_text()
    recipe = api.load_recipe(task.recipe, ["export.formats=[coreml]", "benchmark={threads: [1]}"])
    assert "benchmark" not in [s.name for s in api.plan(recipe, tmp_path / "run")]


def test_a_package_that_coremltools_opened_is_still_the_one_that_was_packed(run: Cli, coreml_phone: Path) -> None:
    import coremltools

    for file in (FP16, W8):  # as benchmark_on_mac.py and the engine on a Mac do
        coremltools.models.MLModel(str(coreml_phone / file), skip_model_load=True)
    run("verify", "-m", coreml_phone)


# roles of weights


@pytest.mark.parametrize(
    ("format", "scheme"), [("tflite", "int8"), pytest.param("coreml", "w8", marks=pytest.mark.slow)]
)
def test_schemes_are_mixed(
    model: Callable[..., Path], tmp_path: Path, format: str, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "SMALL", 600)
    roles = {"ffn_down": "none", "embedding": "w4"}
    options = ExportOptions(formats=[format], schemes=[scheme], lengths=[16], roles=roles)
    folder = api.export(str(model("bert")), tmp_path / "phone", options)
    models = [r for r in read_artefacts(folder).models() if r.client is None]
    record = next(r for r in models if r.scheme == scheme)
    assert {str(w.scheme) for w in record.weights if w.role is Role.EMBEDDING} == {"w4"}
    assert {w.role for w in record.weights if w.scheme is None} == {Role.FFN_DOWN}
    [table] = [row.roles for row in read_facts(folder).rows if row.path == record.path]
    stored = {r.role: r.stored for r in table if r.weights and not r.note}
    assert (stored[Role.EMBEDDING], stored[Role.FFN_UP]) == ("int4", "int8")
    assert stored[Role.FFN_DOWN].startswith("float")
    assert api.verify(folder).status == "passed"
    turned = {Scheme(scheme): Scheme.W4, Scheme.W4: Scheme(scheme), None: None}
    other = [w.model_copy(update={"scheme": turned[w.scheme]}) for w in record.weights]
    base = next(r for r in models if r.scheme != scheme)
    plan = Plan(record.format, Scheme.W4, weights=other)
    kinds = {
        u.dtype for u in quantize(folder / base.path, tmp_path / Path(record.path).name, plan).uses if u.numbers > 600
    }
    assert {"int4", "int8"} <= kinds and any(k.startswith("float") for k in kinds)


# every head: no data, no network, and the same answers from all three formats

ASKED = {
    TaskName.QUESTION_ANSWERING: [
        ("what is it", "the film was good and the restaurant was bad at night"),
        ("who", "a fox"),
    ],
    TaskName.MULTIPLE_CHOICE: [("what is it", "the film was good", "a fox")],
    TaskName.FILL_MASK: ["play some [MASK] please", "[MASK] was a [MASK] film"],
}
DEFAULT = ["set an alarm for half past six", "the film was far better than I expected", "no"]
LABELS = {
    TaskName.QUESTION_ANSWERING: ("LABEL_0", "LABEL_1"),
    TaskName.REGRESSION: ("score",),
    TaskName.MULTIPLE_CHOICE: ("LABEL_0",),
    TaskName.TOKEN_CLASSIFICATION: ("O", "B-time", "I-time", "B-place", "I-place"),
}
BOUNDS = {Format.TFLITE: 1e-5, Format.COREML: 5e-3}
"""Of probabilities of a random two-layer model; Core ML's is in fp16 from end to end."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n is TaskName.FEATURE_EXTRACTION else pytest.mark.slow) for n in TASKS],
)
def test_a_ready_model_answers_alike_in_three_formats(
    name: TaskName,
    make_classifier: Callable[..., Any],
    make_tokenizer: Callable[..., None],
    cli: Cli,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*arguments: object, **_: object) -> None:
        raise AssertionError(f"a connection was opened: {arguments[1:]}")

    for method in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, method, refuse)
    made = make_classifier("bert", 2, LABELS.get(name, ("bad", "good", "mixed")), auto_class=TASKS[name].auto_class)
    if name is TaskName.MULTI_LABEL:
        made.config.problem_type = "multi_label_classification"
    made.save_pretrained(tmp_path / "model")
    if name is TaskName.MULTIPLE_CHOICE:  # of BERT, the weights of this class have the same names
        edit_json(tmp_path / "model" / "config.json", architectures=["BertForMultipleChoice"])
    make_tokenizer(tmp_path / "model")
    # what transformers writes tells the task, but for an encoder that says nothing of its use
    told = [] if name is not TaskName.FEATURE_EXTRACTION else ["--task", name.value]
    done = cli("export", "-m", tmp_path / "model", "-o", tmp_path / "phone", "--max-length", 32, *told)
    assert done.exit_code == 0, done.output

    texts = ASKED.get(name, DEFAULT)
    pair = ["--text-pair", "context"] if isinstance(texts[0], tuple) else []
    words = [part for text in texts for part in ([text] if isinstance(text, str) else text)]
    answers = {}
    for format in Format:
        scheme = "fp16" if format is Format.COREML else "fp32"
        said = cli("predict", "-m", tmp_path / "phone", "--format", format, "--scheme", scheme, "--json", *pair, *words)
        answers[format] = [json.loads(line) for line in said.stdout.splitlines()]
        assert len(answers[format]) == len(texts), said.output
    for format, bound in BOUNDS.items():
        assert_alike(answers[format], answers[Format.ONNX], bound)


def assert_alike(found: Any, wanted: Any, bound: float) -> None:
    """The same words and places, and numbers within a bound."""
    assert type(found) is type(wanted)
    if isinstance(wanted, dict):
        assert list(found) == list(wanted)
        found, wanted = list(found.values()), list(wanted.values())
    if isinstance(wanted, list):
        for one, other in zip(found, wanted, strict=True):
            assert_alike(one, other, bound)
    else:
        assert found == (pytest.approx(wanted, abs=bound) if isinstance(wanted, float) else wanted)


# files for NPUs of every family, with calibration on texts and all gates


@pytest.mark.slow
@pytest.mark.parametrize("family", EXPORTED)
def test_files_for_npus_pass_all_gates(
    family: str, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "SMALL", 512)  # tiny models have no matrix above the usual bound
    (tmp_path / "model").mkdir()
    model, rows = write_classifier(tmp_path / "model", family, 0.15), tmp_path / "train.jsonl"
    told = (task.folder / "train.jsonl").read_text()
    for own, name in zip(("lamp", "music", "timer"), NAMES, strict=True):
        told = told.replace(f'"label": "{own}"', f'"label": "{name}"')
    rows.write_text(told)
    schemes = ["a16w8", "a8w8"]
    phone = api.export(str(model), tmp_path / "phone", ExportOptions(formats=["onnx", "tflite"], max_length=40))
    small = api.quantize(phone, tmp_path / "npu", schemes, ["npu", "qnn"], calibrate=DataSource.at(str(rows)))
    found = api.verify(small)
    assert found.status == "passed"
    files = {f.format(s) for f in ("onnx/model_{}_qnn.onnx", "tflite/model_{}_npu.tflite") for s in schemes}
    assert files <= {gate.file for gate in found.gates if gate.name == "reference"}
    assert files <= {gate.file for gate in found.gates if gate.name == "stored" and not gate.skipped}
