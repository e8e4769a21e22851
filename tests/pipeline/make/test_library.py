"""The gate from text to answer: against transformers and sentence-transformers, and closed by broken folders."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pocketbert
from pocketbert.core.artefacts import read_artefacts
from pocketbert.core.compare.golden import LibraryAnswers, read_library
from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.predict.sentence_settings import Pooling, PoolingKind, VectorLayer, read_pooling, write_modules
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.file import recipe_from_values
from pocketbert.pipeline.direct.exporting import export_recipe
from pocketbert.pipeline.formats.base import RunModel
from pocketbert.pipeline.gates import verify
from pocketbert.pipeline.gates.library import check_library_answers
from pocketbert.pipeline.learn.data import load_data
from pocketbert.pipeline.make import library
from pocketbert.pipeline.options import ExportOptions
from pocketbert.pipeline.phone import pack
from pocketbert.pipeline.phone.tokenizers import sources as asking
from pocketbert.pipeline.reference import open_teacher
from pocketbert.pipeline.results import Gate
from pocketbert.runtime.onnx import OnnxPredictor
from support.defects import relist
from support.folders import once
from support.published import PROMPTS, edit_json, write_checkpoint, write_cross_encoder, write_sentence_model
from support.tiny import write_classifier

Cli = Callable[..., Any]
TEXTS = ["The film was far better than I had expected.", "music"]
ONNX = "onnx/model.onnx"


def export(cli: Cli, model: Path, output: Path, *options: object) -> Path:
    """Export the fp32 ONNX file of a checkpoint."""
    result = cli("export", "-m", model, "-o", output, "--format", "onnx", "--scheme", "fp32", *options)
    assert result.exit_code == 0, result.output
    return output


def failed_gates(cli: Cli, folder: Path) -> set[str]:
    """Verify a folder; the gates that closed, without that of the list's digests."""
    result = json.loads(cli("verify", "-m", folder, "--json").stdout.splitlines()[-1])
    return {f"{g['file']} {g['name']}" for g in result["gates"] if not g["passed"]} - {" integrity"}


def write_xlnet(folder: Path) -> Path:
    """A classifier that pads on the left; its labels are numbers, as programs write them that were given a column of numbers."""
    folder.mkdir(parents=True)
    write_classifier(folder, "xlnet", 0.15)
    edit_json(folder / "config.json", id2label={"0": 0, "1": 1, "2": 2}, label2id={"0": 0, "1": 1, "2": 2})
    return folder


def write_layered(folder: Path) -> Path:
    """A sentence encoder with two poolings, and with layers behind them."""
    write_sentence_model(folder)
    width, draw = json.loads((folder / "config.json").read_text())["hidden_size"], np.random.default_rng(4)
    dense = {"linear.weight": draw.normal(size=(20, 2 * width)).astype("f"), "linear.bias": np.ones(20, "f")}
    norm = {"norm.weight": draw.normal(size=20).astype("f"), "norm.bias": draw.normal(size=20).astype("f")}
    layers = (VectorLayer("Dense", 20, "Tanh", weights=dense), VectorLayer("LayerNorm", weights=norm))
    write_modules(folder, Pooling(PoolingKind.MAX, True, (PoolingKind.WEIGHTED_MEAN,), layers), width, 24)
    return folder


def write_cut(folder: Path) -> Path:
    """The sentence encoder of `CHECKPOINTS`, whose vectors are cut."""
    write_sentence_model(folder, PROMPTS, "query")
    edit_json(folder / "config_sentence_transformers.json", truncate_dim=5)
    return folder


CHECKPOINTS: dict[str, Callable[[Path], Path]] = {
    "classifier": write_checkpoint,
    "encoder": lambda f: write_sentence_model(f, PROMPTS, "query"),
    "layered": write_layered,
    "cut": write_cut,
    "reranker": write_cross_encoder,
    "xlnet": write_xlnet,
    "tagger": lambda f: write_checkpoint(f, "AutoModelForTokenClassification"),
    "fill-mask": lambda f: write_checkpoint(f, "AutoModelForMaskedLM"),
    "answers": lambda f: write_checkpoint(f, "AutoModelForQuestionAnswering", count=2),
}


@pytest.fixture
def exported(tmp_path_factory: pytest.TempPathFactory, cli: Cli) -> Callable[[str], Path]:
    """`exported(kind)`: the artefact folder of a tiny checkpoint of that kind, made once; read-only by convention."""

    def build(kind: str) -> Path:
        with once(tmp_path_factory, f"library-{kind}") as (root, there):
            if not there:
                root.mkdir()
                export(cli, CHECKPOINTS[kind](root / "model"), root / "phone")
        return root / "phone"

    return build


def test_vectors_are_cut_in_the_files_as_the_library_cuts_them(exported: Callable[[str], Path]) -> None:
    whole, cut = (
        np.stack([answer.vector for answer in pocketbert.load(exported(kind)).predict(TEXTS)])  # type: ignore[union-attr]
        for kind in ("encoder", "cut")
    )
    assert cut.shape == (2, 5)
    np.testing.assert_allclose(cut, whole[:, :5], atol=1e-5)
    assert "the mean of the token states, then its first 5 numbers" in (exported("cut") / "README.md").read_text()


def test_lower_case_of_a_sentence_model_without_tokenizer_json_is_asked_of_the_library_too(
    cli: Cli, tmp_path: Path
) -> None:
    model = write_sentence_model(tmp_path / "model", do_lower_case=True)
    (model / "tokenizer.json").unlink()
    edit_json(model / "tokenizer_config.json", do_lower_case=False)
    recorded = read_library(export(cli, model, tmp_path / "phone"))
    assert recorded is not None
    ids = {row.text: row.ids for row in recorded.rows}
    assert (
        ids["HELLO, Is Anybody There?"]
        == TextTokenizer(tmp_path / "phone", 40).encode(["hello, is anybody there?"])[0].ids.tolist()
    )
    assert "normalizer" not in recorded.library


def test_layers_behind_several_poolings_are_in_the_files(exported: Callable[[str], Path], tmp_path: Path) -> None:
    folder = exported("layered")
    processing = read_artefacts(folder).processing
    assert (processing.pooling, processing.normalize) == ("max+weightedmean", True)
    assert processing.vector_layers == ["Dense to 20 numbers, Tanh", "LayerNorm"]
    card = (folder / "README.md").read_text()
    assert "then Dense to 20 numbers, Tanh, then LayerNorm, of length 1" in card
    assert "run.model(inputs)).sentence_embedding" in card
    answers = pocketbert.load(folder).predict(TEXTS)
    assert [np.linalg.norm(answer.vector) for answer in answers] == pytest.approx([1, 1], abs=1e-5)  # type: ignore[union-attr]
    if importlib.util.find_spec("sentence_transformers") is None:
        assert "code of this project, not independent" in str(getattr(read_library(folder), "library", ""))
    # the gate compared them with the library's at export; the layers are part of what a run is made from
    assert {"2_Dense/config.json", "2_Dense/model.safetensors", "3_LayerNorm/model.safetensors"} <= {
        f.path for f in read_artefacts(folder).files
    }
    assert read_pooling(folder) == read_pooling(folder.parent / "model")
    model = Path(shutil.copytree(folder.parent / "model", tmp_path / "model"))
    digest = open_model_folder(str(model)).digest
    edit_json(model / "2_Dense" / "config.json", activation_function="torch.nn.modules.linear.Identity")
    assert open_model_folder(str(model)).digest != digest


def test_a_reranker_ranks_passages(exported: Callable[[str], Path], cli: Cli, tmp_path: Path) -> None:
    folder, query = exported("reranker"), "where is the film"
    passages = ["music", "the film was good", "at night", "music"]
    scores = [answer.value for answer in pocketbert.load(folder).predict([(query, p) for p in passages])]  # type: ignore[union-attr]
    order = sorted(range(4), key=lambda i: -scores[i])
    ranked = pocketbert.load(folder).rank(query, passages)
    assert [(i, answer.value) for i, answer in ranked] == [(i, pytest.approx(scores[i], abs=1e-6)) for i in order]
    (tmp_path / "p.csv").write_text("id,text\n" + "".join(f"{i},{p}\n" for i, p in enumerate(passages)))
    asked = cli(
        "predict", "-m", folder, "--query", query, "--file", tmp_path / "p.csv", "--text", "text", "--json", "--top", 3
    )
    assert asked.exit_code == 0, asked.output
    assert [json.loads(line)["row"]["id"] for line in asked.stdout.splitlines()] == [str(i) for i in order[:3]]
    lines = cli("predict", "-m", folder, "--query", query, *passages).stdout.splitlines()
    assert [line.split("\t")[1] for line in lines] == [passages[i] for i in order]


def test_a_query_is_refused_where_nothing_is_ranked(exported: Callable[[str], Path], cli: Cli, tmp_path: Path) -> None:
    asked = cli("predict", "-m", exported("classifier"), "--query", "who", "music")
    assert asked.exit_code == 2
    assert "--query: the model's task is text-classification" in asked.output
    asked = cli("predict", "-m", exported("reranker"), "--query", "who", "--text-pair", "b", "music", "film")
    assert "--query: the texts are pairs" in asked.output


def set_processing(folder: Path, **changes: Any) -> None:
    """Change how a folder's list says that texts are processed."""
    listed = json.loads((folder / "artifacts.json").read_text())
    listed["processing"] |= changes
    (folder / "artifacts.json").write_text(json.dumps(listed))


def edit_tokenizer(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change tokenizer.json, and list the changed file."""
    content = json.loads((folder / "tokenizer.json").read_text())
    change(content)
    (folder / "tokenizer.json").write_text(json.dumps(content))
    relist(folder, "tokenizer.json")


def keep_case(content: dict[str, Any]) -> None:
    content["normalizer"]["lowercase"] = False


def one_segment(content: dict[str, Any]) -> None:
    for piece in content["post_processor"]["pair"]:
        next(iter(piece.values()))["type_id"] = 0


def swap_labels(folder: Path) -> None:
    """Swap two labels in config.json and in the list, as an export with another order would."""
    names = json.loads((folder / "artifacts.json").read_text())["labels"]
    names[0], names[1] = names[1], names[0]
    by_name = {n: i for i, n in enumerate(names)}
    edit_json(folder / "config.json", id2label=dict(enumerate(names)), label2id=by_name)
    edit_json(folder / "artifacts.json", labels=names)
    relist(folder, "config.json")


BROKEN: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "another default prompt": ("encoder", lambda f: set_processing(f, default_prompt="passage"), "tokenizer.json text"),
    "no default prompt": ("encoder", lambda f: set_processing(f, default_prompt=None), f"{ONNX} answer"),
    "another text of a prompt": (
        "encoder",
        lambda f: set_processing(f, prompts={**PROMPTS, "passage": "film"}),
        "tokenizer.json text",
    ),
    "other letter case": ("classifier", lambda f: edit_tokenizer(f, keep_case), "tokenizer.json text"),
    "other segments": ("classifier", lambda f: edit_tokenizer(f, one_segment), "tokenizer.json text"),
    "a shorter longest input": ("classifier", lambda f: set_processing(f, max_length=20), "tokenizer.json text"),
    "the other side cut": ("classifier", lambda f: set_processing(f, truncation_side="left"), "tokenizer.json text"),
    "left padding lost": ("xlnet", lambda f: set_processing(f, padding_side="right"), f"{ONNX} answer"),
    "another order of labels": ("classifier", swap_labels, f"{ONNX} answer"),
    "no activation": ("reranker", lambda f: set_processing(f, score="none"), f"{ONNX} answer"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_folder_fails(exported: Callable[[str], Path], cli: Cli, tmp_path: Path, case: str) -> None:
    kind, damage, gate = BROKEN[case]
    folder = Path(shutil.copytree(exported(kind), tmp_path / "phone"))
    damage(folder)
    assert gate in failed_gates(cli, folder)


def test_a_file_with_another_pooling_fails(exported: Callable[[str], Path], cli: Cli, tmp_path: Path) -> None:
    other = export(cli, write_sentence_model(tmp_path / "model", PROMPTS, "query", "cls"), tmp_path / "phone")
    shutil.copyfile(exported("encoder") / "library.json", other / "library.json")
    relist(other, "library.json")
    assert failed_gates(cli, other) == {f"{ONNX} answer"}


def test_a_second_file_is_asked_few_texts_among_them_the_longest_and_every_prompt(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "phone"
    checkpoint = write_sentence_model(tmp_path / "checkpoint", PROMPTS, "query")
    asked = list[list[int]]()
    run = OnnxPredictor.run

    def record(self: OnnxPredictor, inputs: Any) -> Any:
        asked[-1].append(int(inputs["attention_mask"].sum(1).max()))
        return run(self, inputs)

    def check(*args: Any) -> list[Gate]:
        asked.append([])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(OnnxPredictor, "run", record)
            return check_library_answers(*args)

    result = cli("export", "-m", checkpoint, "-o", folder, "--format", "onnx")
    assert result.exit_code == 0, result.output
    recorded = read_library(folder)
    assert recorded is not None
    longest = max(len(row.ids) for row in recorded.rows if row.values)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify, "check_library_answers", check)
        gates = [g for g in verify.verify_artefacts(folder).gates if g.name == "answer"]
    assert [max(lengths) for lengths in asked] == [longest, longest]
    every, few = (int(g.detail.split()[0]) for g in gates)
    assert every == sum(1 for row in recorded.rows if row.values and len(row.ids) <= longest)
    assert 8 <= few <= 8 + 2 + len({row.prompt for row in recorded.rows}) < every


def test_an_export_ends_where_transformers_reads_the_text_otherwise(cli: Cli, tmp_path: Path) -> None:
    model = write_checkpoint(tmp_path / "model")
    edit_json(
        model / "tokenizer_config.json", do_lower_case=None
    )  # BertTokenizer then lowers, whatever tokenizer.json says
    content = json.loads((model / "tokenizer.json").read_text())
    keep_case(content)
    (model / "tokenizer.json").write_text(json.dumps(content))
    result = cli("export", "-m", model, "-o", tmp_path / "phone", "--format", "onnx", "--scheme", "fp32")
    assert result.exit_code == 3
    assert "tokenizer.json: gate 'text' failed:" in result.stderr
    assert not (tmp_path / "phone").exists()


@pytest.mark.skipif(shutil.which("javac") is None, reason="needs a JDK")
def test_the_java_tokenizer_of_a_folder_is_asked_too(
    exported: Callable[[str], Path], cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if asking._compile_java() is None:
        pytest.skip("needs Gson in Maven's folder, which `make test-android` downloads")
    monkeypatch.setenv("POCKETBERT_JAVA", "yes")
    folder = Path(shutil.copytree(exported("encoder"), tmp_path / "phone"))
    [gate] = asking.java_gates(folder, read_artefacts(folder), read_library(folder))
    assert gate.passed, gate.detail
    assert "the Java sources give" in gate.detail
    set_processing(folder, truncation_side="left")
    assert "android/ text" in failed_gates(cli, folder)
    (folder / "android/java/org/pocketbert/tokenizers/Limits.java").write_text("of somebody else")
    assert asking.java_gates(folder, read_artefacts(folder), read_library(folder)) == []


def test_a_pack_that_forgets_the_prompts_is_refused(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = pack._processing
    monkeypatch.setattr(pack, "_processing", lambda model: whole(model).model_copy(update={"default_prompt": None}))
    model = write_sentence_model(tmp_path / "model", PROMPTS, "query")
    result = cli("export", "-m", model, "-o", tmp_path / "phone", "--format", "onnx", "--scheme", "fp32")
    assert result.exit_code == 3
    assert "gate 'answer' failed" in result.stderr
    assert not (tmp_path / "phone").exists()


def test_a_folder_of_before_opens_and_says_that_it_was_not_compared(
    exported: Callable[[str], Path], cli: Cli, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(exported("classifier"), tmp_path / "phone"))
    listed = json.loads((folder / "artifacts.json").read_text())
    listed["files"] = [f for f in listed["files"] if f["path"] != "library.json"]
    for key in ("prompts", "default_prompt", "truncation_side", "similarity"):
        listed["processing"].pop(key, None)
    (folder / "artifacts.json").write_text(json.dumps(listed))
    (folder / "library.json").unlink()
    assert len(pocketbert.load(folder).predict(TEXTS)) == 2
    result = cli("verify", "-m", folder)
    assert result.exit_code == 0, result.output
    assert "records no library's answers" in result.stderr


@pytest.mark.parametrize("kind", ["classifier", "encoder", "reranker", "xlnet", "tagger", "fill-mask", "answers"])
def test_every_task_is_compared_on_plain_and_odd_texts(exported: Callable[[str], Path], kind: str) -> None:
    found = read_library(exported(kind))
    assert found is not None and not found.missing
    assert sum(bool(row.values) for row in found.rows) >= 9
    assert len({tuple(row.ids) for row in found.rows}) > 7


def test_questions_longer_than_the_input_are_left_out_of_the_answers(cli: Cli, tmp_path: Path) -> None:
    model = write_checkpoint(tmp_path / "model", "AutoModelForQuestionAnswering", count=2)
    folder = export(cli, model, tmp_path / "phone", "--max-length", 32)
    assert failed_gates(cli, folder) == set()


def answers_of(checkpoint: Path, output: Path) -> LibraryAnswers:
    """Ask the library of a checkpoint, without an export."""
    recipe, folder = export_recipe(str(checkpoint), ExportOptions())
    model = RunModel(recipe, output, folder, folder.tokenizer_length)
    output.mkdir()
    library.make_library(model, folder, None, None, output)
    found = read_library(output)
    assert found is not None
    return found


@pytest.mark.parametrize("kind", ["prompts and the first token", "lowered and short", "reranker", "old key"])
def test_own_formula_is_that_of_sentence_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    pytest.importorskip("sentence_transformers")
    writers: dict[str, Callable[[Path], Path]] = {
        "prompts and the first token": lambda f: write_sentence_model(f, PROMPTS, "passage", "cls"),
        "lowered and short": lambda f: write_sentence_model(f, do_lower_case=True, max_seq_length=12),
        "reranker": lambda f: write_cross_encoder(
            f, sentence_transformers={"activation_fn": "torch.nn.modules.activation.Sigmoid", "version": "5.1.0"}
        ),
        "old key": lambda f: write_cross_encoder(
            f, sbert_ce_default_activation_function="torch.nn.modules.linear.Identity"
        ),
    }
    checkpoint = writers[kind](tmp_path / "model")
    monkeypatch.setattr(library, "find_spec", importlib.util.find_spec)
    theirs = answers_of(checkpoint, tmp_path / "theirs")
    assert theirs.library.startswith("sentence-transformers ")
    monkeypatch.setattr(library, "find_spec", lambda name: None)
    ours = answers_of(checkpoint, tmp_path / "ours")
    assert ours.library.startswith("transformers ")
    by_text = {(str(row.text), row.prompt): row for row in theirs.rows}
    assert len(ours.rows) == len(by_text) > 7
    for row in ours.rows:
        other = by_text[str(row.text), row.prompt]
        assert (row.ids, row.type_ids) == (other.ids, other.type_ids)
        if row.values:
            np.testing.assert_allclose(row.values, other.values, rtol=1e-4, atol=1e-5)


def test_predict_takes_the_prompt_that_is_named(exported: Callable[[str], Path], cli: Cli) -> None:
    folder = exported("encoder")
    model = pocketbert.load(folder)
    assert model.prompts == PROMPTS

    def vector(*options: str) -> list[float]:
        result = cli("predict", "-m", folder, "--json", *options, "good music")
        assert result.exit_code == 0, result.output
        return list(json.loads(result.stdout)["embedding"])

    by_name = {name: vector("--prompt", name) for name in (*PROMPTS, "")}
    assert vector() == by_name["query"] != by_name["passage"]
    assert by_name[""] == by_name["document"]
    [answer] = model.predict(["good music"], prompt="passage")
    np.testing.assert_allclose(answer.fields()["embedding"], by_name["passage"], atol=1e-6)
    refused = cli("predict", "-m", folder, "--prompt", "pasage", "good music")
    assert refused.exit_code == 2
    assert "'pasage' is no prompt; the model's prompts: did you mean 'passage'?" in refused.stderr


@pytest.mark.parametrize(("task", "prompted"), [("feature-extraction", True), ("text-classification", False)])
def test_rows_to_train_on_get_the_prompt_of_their_task_only(tmp_path: Path, task: str, prompted: bool) -> None:
    model = write_sentence_model(tmp_path / "model", PROMPTS, "query")
    classifies = task == "text-classification"
    for name, text in (("train", "good music"), ("eval", "a bad film")):
        labels = [{"label": ("no", "yes")[i % 2]} if classifies else {} for i in range(20)]
        rows = [{"text": f"{text} {i}", **label} for i, label in enumerate(labels)]
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    content = {
        "schema": 1,
        "name": "prompts",
        "task": task,
        "teacher": {"model": str(model), **({"finetune": {"epochs": 1}} if classifies else {})},
        "data": {name: {"path": str(tmp_path / f"{name}.jsonl")} for name in ("train", "eval")},
    }
    recipe = recipe_from_values(content, "test")
    rows = load_data(recipe, open_teacher(recipe)).splits["eval"]
    text = PROMPTS["query"] * prompted + rows.examples[0].text
    wanted = TextTokenizer(model, 40).with_prompt("").encode([text])[0]
    assert rows.encoded[0].ids.tolist() == wanted.ids.tolist()
