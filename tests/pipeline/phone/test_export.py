"""Any fine-tuned Hugging Face folder into an artefact folder: offline, without recipe and distillation; with rows of the user's own."""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

import pocketbert
from pocketbert import ExportOptions, api
from pocketbert.benchmarks.report import render_report
from pocketbert.core.artefacts import read_artefacts, summarize_roles
from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.data.source import DataSource
from pocketbert.core.errors import InputError
from pocketbert.core.models.checkpoints import load_model
from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.core.types import Format, Layout, Role, Scheme, Status
from pocketbert.export.adapters import outliers as scaling
from pocketbert.export.prepare import list_divided_outliers, prepare
from pocketbert.pipeline.direct import quantizing
from pocketbert.pipeline.gates.stored import UNDIVIDED_NOTE, PreparedModels, compare_constants
from pocketbert.pipeline.gates.torch_constants import example_inputs, trace_constants
from pocketbert.pipeline.make import model_files as exporting
from pocketbert.pipeline.phone.recording import read_facts
from pocketbert.pipeline.reference import project_text_batches
from support.classifiers import expected
from support.folders import tree
from support.tiny import NAMES, write_bert
from support.tiny_texts import task_rows, write_lines

Cli = Callable[..., Any]
CLASSIFY = TASKS[TaskName.TEXT_CLASSIFICATION]
FP32 = ExportOptions(schemes=["fp32"], formats=["onnx"])


def edit_list(folder: Path, change: Callable[[Any], Any]) -> None:
    listed = json.loads((folder / "artifacts.json").read_text())
    change(listed)
    (folder / "artifacts.json").write_text(json.dumps(listed))


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_export(family: str, model: Callable[..., Path], cli: Cli, tmp_path: Path) -> None:
    source, output = model(family), tmp_path / "phone"
    before = tree(source)
    done = cli("export", "-m", source, "-o", output, "--format", "onnx")
    assert done.exit_code == 0, done.output
    assert f"{output}/onnx/model_int8.onnx  " in done.stdout
    assert f"model card: {output}/README.md" in done.stdout
    assert "onnx/model.onnx: differs from transformers by " in done.stderr
    assert tree(source) == before
    assert [p.name for p in tmp_path.iterdir() if p.name != "pocketbert-cache"] == ["phone"]

    parity = json.loads((output / "parity.json").read_text())
    assert [p["passed"] for p in parity] == [True, True]
    assert all(p["worst"] < 1e-4 < p["mask_effect"] for p in parity)
    listed = json.loads((output / "artifacts.json").read_text())
    assert {r["path"] for r in listed["files"]} | {"artifacts.json"} == set(tree(output))
    for platform in ("android/", "ios/"):  # sources of a tokenizer
        assert {r["kind"] for r in listed["files"] if r["path"].startswith(platform)} == {"tool"}
    assert (listed["family"], listed["labels"]) == (family, list(NAMES))
    card = (output / "README.md").read_text()
    assert all(said in card for said in ("onnx/model_int8.onnx", "`positive`", "no task score was measured"))
    tables = {row.path: row.roles for row in read_facts(output).rows}
    assert tables["onnx/model.onnx"] == []
    line = summarize_roles(tables["onnx/model_int8.onnx"])
    assert line.endswith("compressed; without weights: attention_product, residual, norm, softmax")
    assert f"<details><summary>onnx/model_int8.onnx: {line}</summary>" in card

    texts = [t for t in (*SENTENCES[:12], SENTENCES[-2]) if len(t) < (200 if family == "roberta" else 50)]
    want = expected(source, texts)
    opened, default = pocketbert.load(output, scheme="fp32"), pocketbert.load(output)
    for answer, row in zip(opened.predict(texts), want, strict=True):
        assert not answer.truncated
        assert list(answer.scores) == list(NAMES)
        assert np.allclose(list(answer.scores.values()), row, atol=1e-4)
        assert answer.label == NAMES[int(row.argmax())]
    assert default.record.path == "onnx/model_int8.onnx"
    same = [a.label == NAMES[int(r.argmax())] for a, r in zip(default.predict(texts), want, strict=True)]
    assert np.mean(same) >= 0.75  # a random model has close calls
    assert api.verify(output).status == "passed"


def test_an_untrained_model_is_no_parity_failure(model: Callable[..., Path], tmp_path: Path) -> None:
    # its answers differ by a thousandth of the logits: measured by that alone, rounding would look like an error
    api.export(str(model("bert", 0.0)), tmp_path / "phone", FP32)
    parity = json.loads((tmp_path / "phone" / "parity.json").read_text())
    assert all(p["worst"] < 1e-4 for p in parity)
    assert all(p["mask_effect"] > 100 * p["bound"] for p in parity)  # a lost mask would still be seen


@pytest.fixture(scope="session")
def fp32_folder(model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported folder with the fp32 file alone; read-only by convention."""
    return api.export(str(model("bert")), tmp_path_factory.mktemp("exported") / "phone", FP32)


def test_the_same_command_again_does_nothing_and_other_settings_need_overwrite(
    cli: Cli, model: Callable[..., Path], fp32_folder: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(fp32_folder, tmp_path / "phone"))
    before = tree(folder)
    export = ("export", "-m", model("bert"), "-o", folder, "--format", "onnx", "--scheme", "fp32")
    again = cli(*export)
    assert again.exit_code == 0, again.output
    assert f"{folder}: finished before with the same model and settings, skipped" in again.stderr
    for more in (["--scheme", "int8"], ["--max-length", "32"]):
        result = cli(*export, *more)
        assert result.exit_code == 2
        assert f"{folder}: holds files of another model, of other options or of another version;" in result.stderr
    assert tree(folder) == before


def test_a_replaced_folder_whose_texts_all_fill_the_length_passes(
    model: Callable[..., Path], fp32_folder: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(fp32_folder, tmp_path / "phone"))
    api.export(str(model("bert")), folder, replace(FP32, max_length=4), overwrite=True)
    assert read_artefacts(folder).processing.max_length == 4
    assert pocketbert.load(folder).predict("please the song")[0].truncated
    assert api.verify(folder).status == "passed"
    assert list(tmp_path.glob(".*")) == []


def test_quantize_adds_the_int8_file_and_keeps_a_temperature_that_was_set(
    cli: Cli, fp32_folder: Path, tmp_path: Path
) -> None:
    folder, small = Path(shutil.copytree(fp32_folder, tmp_path / "phone")), tmp_path / "small"
    confidence = {"temperature": 2.5}
    edit_list(folder, lambda c: [r.update(confidence=confidence) for r in c["files"] if r["kind"] == "model"])
    before = tree(folder)
    result = cli("quantize", "-m", folder, "-o", small, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout.splitlines()[-1])["files"] == ["onnx/model.onnx", "onnx/model_int8.onnx"]
    assert (small / "onnx/model.onnx").read_bytes() == before["onnx/model.onnx"]
    assert {r.temperature for r in read_artefacts(small).models()} == {2.5}
    assert tree(folder) == before
    assert cli("verify", "-m", small).exit_code == 0
    assert "finished before" in cli("quantize", "-m", folder, "-o", small).stderr
    itself = cli("quantize", "-m", folder, "-o", folder)
    assert itself.exit_code == 2
    assert "which is read; nothing was written" in itself.stderr


def test_the_format_of_the_default_file_stays_the_first(
    finished_coreml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[ExportOptions] = []
    monkeypatch.setattr(quantizing, "export_model", lambda model, output, options, **_: asked.append(options))
    phone = Path(shutil.copytree(finished_coreml / "phone", tmp_path / "phone"))
    default = read_artefacts(phone).default_model().format
    edit_list(phone, lambda c: c["files"].sort(key=lambda r: r.get("format") == default))  # as a list may be written
    api.quantize(phone, tmp_path / "more")
    assert asked[0].formats[0] == default
    assert set(asked[0].formats) == {r.format for r in read_artefacts(phone).models()}


def test_labels_that_say_nothing_can_be_named(model: Callable[..., Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(model("bert"), tmp_path / "model"))
    config = json.loads((folder / "config.json").read_text())
    unnamed = [f"LABEL_{i}" for i in range(3)]  # as most people upload models
    config |= {"id2label": dict(enumerate(unnamed)), "label2id": {name: i for i, name in enumerate(unnamed)}}
    (folder / "config.json").write_text(json.dumps(config))
    names = ["bad", "so-so", "good"]
    api.export(str(folder), tmp_path / "named", replace(FP32, labels=names))
    want = expected(folder, ["please", "the song"])
    answers = pocketbert.load(tmp_path / "named").predict(["please", "the song"])
    assert [a.label for a in answers] == [names[i] for i in want.argmax(-1)]
    with pytest.raises(InputError, match="the model's labels differ from the data's"):
        api.export(str(folder), tmp_path / "wrong", ExportOptions(labels=["bad", "good"]))
    assert not (tmp_path / "wrong").exists()


def test_what_is_no_model(cli: Cli, model: Callable[..., Path], tmp_path: Path) -> None:
    empty, alien = tmp_path / "empty", tmp_path / "alien"
    for folder in (empty, alien):
        folder.mkdir()
    (alien / "config.json").write_text(json.dumps({"model_type": "llama"}))
    headless = write_bert(tmp_path / "headless")
    lost = Path(shutil.copytree(model("bert"), tmp_path / "lost"))
    (lost / "model.safetensors").unlink()
    for folder, message in (
        (empty, "is no Hugging Face model folder: it has no config.json."),
        (alien, "model_type 'llama' is not in the family table"),
        (headless, "config.json names no labels (id2label) and there is no data."),
        (lost, "has neither model.safetensors nor pytorch_model.bin."),
    ):
        # an encoder without a head would be exported for its vectors, were it not for --task
        result = cli("export", "-m", folder, "-o", tmp_path / "phone", "--task", "text-classification")
        assert result.exit_code == 2, result.output
        assert message in result.stderr
        assert not (tmp_path / "phone").exists()


# with labelled rows: their texts become golden rows, and their scores stand in list, card and report


@pytest.fixture
def rows(tmp_path: Path) -> DataSource:
    """Rows of the user's own, in columns of the user's own."""
    path = tmp_path / "dev.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["sentence", "intent"], *((row["text"], row["label"]) for row in task_rows(60, 5))])
    return DataSource(path=str(path), text="sentence", label="intent")


@pytest.fixture
def teacher(finished: Path, tmp_path: Path) -> Path:
    """A fine-tuned folder as transformers saves it."""
    folder = Path(shutil.copytree(finished / "teacher", tmp_path / "model"))
    (folder / "training.json").unlink()
    return folder


def test_scores_golden_rows_card_and_report_are_of_the_rows(tmp_path: Path, teacher: Path, rows: DataSource) -> None:
    options = ExportOptions(formats=["onnx"], data=rows, name="weather", licence="apache-2.0")
    phone = api.export(teacher, tmp_path / "phone", options)
    artefacts, page = read_artefacts(phone), phone / "report.html"
    assert (artefacts.name, artefacts.lineage["licence"]) == ("weather", "apache-2.0")
    assert [r.scores["eval"].rows for r in artefacts.models()] == [60, 60]
    given = {line.split(",")[0] for line in (tmp_path / "dev.csv").read_text().splitlines()[1:]}
    golden = [str(json.loads(line)["text"]) for line in (phone / "golden.jsonl").read_text().splitlines()]
    assert len(given & set(golden)) > 20
    score = f"{100 * artefacts.default_model().scores['eval'].value:.2f}"
    assert score in (phone / "README.md").read_text()
    assert score in page.read_text()
    assert api.verify(phone).status is Status.PASSED
    before = page.stat().st_mtime_ns
    api.export(teacher, phone, options)
    assert page.stat().st_mtime_ns == before, "skipped"
    assert api.report(phone, tmp_path / "copy.html").read_text() == page.read_text()
    (phone / "README.md").write_text("Ask Ada.\n")
    with pytest.raises(InputError, match=r"README\.md"):
        api.export(teacher, phone, ExportOptions(formats=["onnx"]), overwrite=True)
    assert (phone / "README.md").read_text() == "Ask Ada.\n"


def test_static_files_are_calibrated_on_rows_of_which_none_is_evaluated(
    tmp_path: Path, teacher: Path, rows: DataSource
) -> None:
    with pytest.raises(InputError, match="--calibrate: no training row is left: 60 occur in eval"):
        options = ExportOptions(formats=["onnx"], schemes=["a8w8"], data=rows, calibrate=rows)
        api.export(teacher, tmp_path / "no", options)
    assert not (tmp_path / "no").exists()
    train = DataSource.at(str(write_lines(tmp_path / "train.jsonl", task_rows(80, 9))))
    options = ExportOptions(formats=["onnx"], schemes=["int8", "a8w8"], data=rows, calibrate=train)
    phone = api.export(teacher, tmp_path / "phone", options)
    scores = {r.path: r.scores["eval"].rows for r in read_artefacts(phone).models()}
    assert scores == {f"onnx/model{s}.onnx": 60 for s in ("", "_int8", "_a8w8")}
    more = api.quantize(phone, tmp_path / "more", ["small", "a8w8"], calibrate=train)
    made = read_artefacts(more)
    assert {r.path for r in made.models()} == {f"onnx/model{s}.onnx" for s in ("", "_small", "_a8w8")}
    assert made.default_model().path == "onnx/model_small.onnx"
    assert (more / "onnx/model_a8w8.onnx").read_bytes() == (phone / "onnx/model_a8w8.onnx").read_bytes()


def test_rows_do_not_shorten_the_model(teacher: Path, rows: DataSource) -> None:
    from pocketbert.pipeline.direct.exporting import export_recipe

    with_rows, folder = export_recipe(str(teacher), ExportOptions(data=rows))
    assert with_rows.data.max_length == min(folder.positions, folder.tokenizer_length)


def test_a_wrong_column_is_named_with_its_flag(tmp_path: Path, teacher: Path, rows: DataSource) -> None:
    wrong = rows.model_copy(update={"label": "intend"})
    with pytest.raises(InputError, match="no column 'intend'") as caught:
        api.export(teacher, tmp_path / "phone", ExportOptions(formats=["onnx"], data=wrong))
    assert "--label" in str(caught.value)
    assert not (tmp_path / "phone").exists()


def test_a_dry_run_lists_the_steps_and_writes_nothing(tmp_path: Path, teacher: Path, cli: Cli) -> None:
    before = sorted(p.name for p in tmp_path.iterdir())
    more = ("--format", "onnx", "--benchmark", "--dry-run", "--json")
    told = cli("export", "-m", teacher, "-o", tmp_path / "phone", *more)
    assert told.exit_code == 0, told.stderr
    steps = json.loads(told.stdout)
    assert {s["state"] for s in steps} == {"to do"}
    assert [s["name"] for s in steps][-2:] == ["benchmark", "pack"]
    assert sorted(p.name for p in tmp_path.iterdir()) == before


# roles of weights (tests of other formats are in test_export_formats.py)


def test_a_folder_records_what_was_left_and_its_gates_read_that(model: Callable[..., Path], tmp_path: Path) -> None:
    options = ExportOptions(formats=["onnx"], lengths=[16], roles={"ffn_down": "none"})
    folder = api.export(str(model("bert")), tmp_path / "phone", options)
    record = next(r for r in read_artefacts(folder).models() if r.scheme is Scheme.INT8 and r.alias_of is None)
    assert {w.role for w in record.weights if w.scheme is None} == {Role.FFN_DOWN}
    assert {w.scheme for w in record.weights if w.role is Role.FFN_UP} == {Scheme.INT8}
    assert api.verify(folder).status == "passed"
    rows = {(r.role, r.scheme): r for row in read_facts(folder).rows if row.path == record.path for r in row.roles}
    down, up = rows[Role.FFN_DOWN, None], rows[Role.FFN_UP, Scheme.INT8]
    assert (down.stored, down.bytes, down.chosen) == ("float32", 4 * down.numbers, True)
    assert (up.stored, up.bytes, up.chosen) == ("int8", up.numbers, False)
    assert rows[Role.NORM, None].note == "stays float in every file of onnx int8"
    card, page = (folder / "README.md").read_text(), render_report(read_facts(folder))
    assert f"| ffn_down | as exported | float32 | 2 | {down.bytes:,} |" in card
    assert "<details><summary>onnx/model_int8.onnx" not in card, "a table with choices is open"
    assert "<b>ffn_down</b>" in page and 'href="#roles"' in page


def test_roles_that_no_file_can_have_are_refused_before_anything_is_written(
    model: Callable[..., Path], tmp_path: Path
) -> None:
    options = ExportOptions(formats=["onnx"], schemes=["int8", "small"], roles={"norm": "int8", "ffn_up": "none"})
    with pytest.raises(InputError) as error:
        api.export(str(model("bert")), tmp_path / "phone", options)
    for said in ("norm stays float in every file of onnx int8", "of onnx small leaves no role out", "--roles"):
        assert said in str(error.value)
    assert not (tmp_path / "phone").exists()


# outlier channels: files are treated, card and report tell it, and the stored gate knows which factors are right


@pytest.fixture(scope="module")
def large(model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier one of whose channels is 60 times larger behind the first layer."""
    folder = tmp_path_factory.mktemp("outliers") / "model"
    shutil.copytree(model("bert"), folder)
    state = load_file(folder / "model.safetensors")
    state["bert.encoder.layer.0.output.LayerNorm.weight"][5] *= 60
    for part in ("query", "key", "value"):
        state[f"bert.encoder.layer.1.attention.self.{part}.weight"][:, 5] /= 60
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    return folder


def test_card_report_and_progress_tell_of_outlier_channels(large: Path, cli: Cli, tmp_path: Path) -> None:
    phone, name = tmp_path / "phone", "bert.encoder.layer.0.output_norm"
    told = cli("export", "-m", large, "-o", phone, "--format", "onnx")
    assert re.search(
        r"outlier channels of \d+ tensors?, up to \d+ times the median channel, divided for int8", told.stderr
    )
    card = (phone / "README.md").read_text()
    assert "Outlier channels were divided by powers of two" in card
    assert f"{name} (1 of " in card
    assert any(name in note for note in json.loads((phone / "report.json").read_text())["notes"])
    assert api.verify(phone).status == "passed"


def test_the_stored_gate_takes_the_right_factors_or_none(
    large: Path, model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert PreparedModels(model("bert"), CLASSIFY, 40).undivided(Format.ONNX, Layout.PLAIN) is None
    folder, models = open_model_folder(str(large)), PreparedModels(large, CLASSIFY, 40)
    treated, plain = models.reference(Format.ONNX, Layout.PLAIN), models.undivided(Format.ONNX, Layout.PLAIN)
    assert plain is not None
    inputs, texts = example_inputs(folder.family.inputs, 8), project_text_batches(CLASSIFY, TextTokenizer(large, 40))

    def problems(largest: int, reference: Any) -> Sequence[object]:
        """Of a module whose factors are at most a power of two, against a reference."""
        monkeypatch.setattr(scaling, "_MAX_EXPONENT", largest)
        module = prepare(load_model(folder, CLASSIFY), folder.family, CLASSIFY, sentences=texts)
        assert bool(list_divided_outliers(module)) is bool(largest)
        return compare_constants([[*trace_constants(module, inputs)]], reference, ()).problems

    assert problems(8, treated) == problems(0, plain) == []
    assert problems(8, plain) and problems(1, treated) and problems(1, plain)


@pytest.mark.slow
def test_folders_with_untreated_outliers_still_pass_and_wrongly_treated_ones_fail(
    large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ExportOptions(formats=["onnx"], schemes=["int8"])
    with monkeypatch.context() as before:
        before.setattr(exporting, "project_text_batches", lambda *_: [])
        earlier = api.export(str(large), tmp_path / "earlier", options)
    result = api.verify(earlier)
    assert result.status == "passed"
    assert any(UNDIVIDED_NOTE in g.detail for g in result.gates if g.name == "stored")
    smaller = api.quantize(earlier, tmp_path / "smaller", schemes=["small"])
    assert not any("Outlier" in (folder / "README.md").read_text() for folder in (earlier, smaller))
    with monkeypatch.context() as wrong:
        wrong.setattr(scaling, "_MAX_EXPONENT", 1)
        api.export(str(large), tmp_path / "wrong", options)
    result = api.verify(tmp_path / "wrong")
    assert {g.name for g in result.gates if not g.passed} == {"stored"}
