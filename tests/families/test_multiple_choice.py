"""Checkpoints for multiple choice and for the next sentence: their answers are those of transformers' classes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import pocketbert
from pocketbert import ExportOptions, api
from pocketbert.core.data.labels import Labels
from pocketbert.core.errors import GateError, InputError
from pocketbert.core.families import find_family
from pocketbert.core.models.checkpoints import load_model, save_model
from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.predict.answers import Choice, Prediction
from pocketbert.core.tasks import TASKS, ScoreFunction, TaskName
from support.published import edit_json
from support.tiny import EXPORTED, tiny_classifier, write_own_tokenizer
from support.tiny_texts import write_lines

CHOOSE, CLASSIFY = TASKS[TaskName.MULTIPLE_CHOICE], TASKS[TaskName.TEXT_CLASSIFICATION]
CHOOSING = [name for name in EXPORTED if CHOOSE.name not in find_family(name).invalid_tasks]
QUESTION, ENDINGS = "set an alarm for", ["half past six", "the light", "a good film, please"]


def write(folder: Path, name: str, auto_class: str, **changes: Any) -> Any:
    """Write a random checkpoint of a class of transformers; return the model."""
    folder.mkdir(parents=True, exist_ok=True)
    told = write_own_tokenizer(folder, name)
    model = tiny_classifier(name, 2, (), auto_class=auto_class, **told, **changes)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(1)
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    model.save_pretrained(folder)
    return model


def choices(model: Any, ids: torch.Tensor) -> np.ndarray:
    """What transformers' class gives the choices [C, L] of one question."""
    with torch.inference_mode():
        answer: np.ndarray = model(input_ids=ids[None], attention_mask=torch.ones_like(ids)[None]).logits[0].numpy()
    return answer


@pytest.mark.parametrize("name", CHOOSING)
def test_choices_are_scored_and_saved_as_by_transformers(name: str, tmp_path: Path) -> None:
    model = write(tmp_path / "model", name, "AutoModelForMultipleChoice")
    ids = torch.randint(6, 40, (3, 11), generator=torch.Generator().manual_seed(2))
    folder = open_model_folder(str(tmp_path / "model"))
    assert folder.task is CHOOSE.name
    loaded = load_model(folder, CHOOSE)
    with torch.inference_mode():
        numbers = loaded(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
    assert numbers.shape == (3, 1)
    np.testing.assert_allclose(numbers[:, 0].numpy(), choices(model, ids), rtol=1e-4, atol=1e-5)
    (tmp_path / "saved").mkdir()
    save_model(loaded, folder, Labels(()), 32, tmp_path / "saved", score=ScoreFunction.CHOICES)
    again, report = transformers.AutoModelForMultipleChoice.from_pretrained(
        tmp_path / "saved", output_loading_info=True
    )
    assert type(again) is type(model)
    assert not (report["missing_keys"] or report["unexpected_keys"] or report["mismatched_keys"])
    np.testing.assert_allclose(choices(again.eval(), ids), choices(model, ids), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", [n for n in EXPORTED if n not in CHOOSING])
def test_a_family_without_it_says_why(name: str, tmp_path: Path) -> None:
    write(tmp_path, name, "AutoModelForSequenceClassification")
    family = find_family(name)
    edit_json(tmp_path / "config.json", architectures=[f"{family.classes}ForMultipleChoice"])
    with pytest.raises(InputError, match=f"cannot do multiple-choice: {family.invalid_tasks[CHOOSE.name][:20]}"):
        load_model(open_model_folder(str(tmp_path)), CHOOSE)


def test_a_classifier_of_several_labels_does_not_choose(tmp_path: Path) -> None:
    write(tmp_path, "bert", "AutoModelForSequenceClassification")
    with pytest.raises(InputError, match="its head gives 2 numbers to a pair; multiple choice is one number"):
        load_model(open_model_folder(str(tmp_path)), CHOOSE)


def test_the_files_choose_as_the_library_does(tmp_path: Path, cli: Callable[..., Any]) -> None:
    model = write(tmp_path / "model", "bert", "AutoModelForMultipleChoice")
    phone = api.export(
        str(tmp_path / "model"), tmp_path / "phone", ExportOptions(formats=["onnx"], schemes=["fp32"], max_length=32)
    )
    content = json.loads((phone / "artifacts.json").read_text())
    assert (content["processing"]["score"], content["pair"]) == ("softmax-over-choices", True)
    assert content["processing"]["pair_order"] == ["question", "choice"]
    answer = pocketbert.load(phone, scheme="fp32").predict([(QUESTION, ENDINGS)])[0]
    assert isinstance(answer, Choice)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    rows = tokenizer([QUESTION] * 3, ENDINGS, return_tensors="pt", padding=True, return_token_type_ids=True)
    with torch.inference_mode():
        wanted = torch.softmax(model(**{k: v[None] for k, v in rows.items()}).logits[0], -1).numpy()
    np.testing.assert_allclose(answer.scores, wanted, atol=1e-5)
    said = cli("predict", "-m", phone, "--scheme", "fp32", "--json", "--top", 3, QUESTION, *ENDINGS)
    [line] = [json.loads(row) for row in said.stdout.splitlines()]
    assert (line["choice"], line["answer"], len(line["top"])) == (answer.index, answer.text, 3)
    write_lines(tmp_path / "rows.jsonl", [{"question": QUESTION, "choices": ENDINGS, "answer": "B"}] * 2)
    said = cli("predict", "-m", phone, "--scheme", "fp32", "--json", "--file", tmp_path / "rows.jsonl")
    assert [json.loads(row)["choice"] for row in said.stdout.splitlines()] == [answer.index] * 2
    said = cli("predict", "-m", phone, QUESTION, ENDINGS[0])
    assert "Give the question, and then at least two choices." in said.output
    for wrong in ((QUESTION, []), (QUESTION, [1, 2]), ["a", "b", "c"]):
        with pytest.raises(InputError, match="multiple-choice takes a question and a list of its choices"):
            pocketbert.load(phone).predict([wrong])  # type: ignore[list-item]


def test_a_head_that_another_class_computes_fails_the_gate(tmp_path: Path) -> None:
    # transformers' class for multiple choice reads the activation of config.json, that for classification does not
    write(tmp_path / "model", "electra", "AutoModelForMultipleChoice", summary_activation="tanh")
    with pytest.raises(GateError, match="gate 'answer' failed: its answers differ from those of .*ForMultipleChoice"):
        api.export(str(tmp_path / "model"), tmp_path / "phone", ExportOptions(formats=["onnx"], schemes=["fp32"]))


@pytest.mark.parametrize("name", ["bert", "ernie"])
def test_next_sentence_is_a_classifier_of_pairs(name: str, tmp_path: Path) -> None:
    model = write(tmp_path / "model", name, "AutoModelForNextSentencePrediction")
    if name == "ernie":
        edit_json(tmp_path / "model" / "config.json", architectures=None)
    folder = open_model_folder(str(tmp_path / "model"))
    assert (folder.task, folder.labels) == (CLASSIFY.name, ["next", "random"])
    options = ExportOptions(formats=["onnx"], schemes=["fp32"], max_length=32)
    phone = api.export(str(tmp_path / "model"), tmp_path / "phone", options)
    answer = pocketbert.load(phone).predict([(QUESTION, ENDINGS[0])])[0]
    assert isinstance(answer, Prediction)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    row = tokenizer(QUESTION, ENDINGS[0], return_tensors="pt", return_token_type_ids=True)
    with torch.inference_mode():
        wanted = torch.softmax(model(**row).logits[0], -1).tolist()
    assert answer.scores == pytest.approx({"next": wanted[0], "random": wanted[1]}, abs=1e-4)
    assert json.loads((phone / "artifacts.json").read_text())["pair"] is True


@pytest.mark.slow
def test_a_student_learns_to_choose_from_rows_in_swags_format(tmp_path: Path) -> None:
    write(tmp_path / "teacher", "bert", "AutoModel")
    words = "six seven light music film fox day night".split()
    draw = np.random.default_rng(1)

    def row() -> dict[str, Any]:
        first, *others = draw.permutation(words)[:5]
        right = int(draw.integers(4))
        endings = ["is good" if i == right else f"is {other}" for i, other in enumerate(others)]
        return {"sent1": first, "sent2": "it", **{f"ending{i}": e for i, e in enumerate(endings)}, "label": right}

    for name, count in (("train", 160), ("eval", 60)):
        write_lines(tmp_path / f"{name}.jsonl", [row() for _ in range(count)])
    columns = {"text": "sent1", "text_pair": "sent2", "choices": [f"ending{i}" for i in range(4)]}
    plan = {"batch": 32, "lr": 3e-3, "dropout": 0.0}
    recipe = {
        "schema": 1, "name": "swag", "task": "multiple-choice", "seed": 1,
        "data": {n: {"path": str(tmp_path / f"{n}.jsonl"), **columns} for n in ("train", "eval")} | {"max_length": 32},
        "teacher": {"model": str(tmp_path / "teacher"), "finetune": {"steps": 80, **plan}},
        "student": {"layers": 1},
        "distill": [{"method": "task", "steps": 60, **plan}],
        "export": {"formats": ["onnx"], "lengths": [16, 32]}, "quantize": {"scheme": "int8"}, "verify": {"max_drop": 0.1},
    }  # fmt: skip
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    result = api.run(api.load_recipe(tmp_path / "recipe.yaml"), tmp_path / "run")
    report = api.verify(result.phone)
    assert report.status == "passed"
    scores = {f.path: f.scores["eval"] for f in pocketbert.load(result.phone).artefacts.models()}
    assert all(score.metric == "accuracy" and score.value > score.chance for score in scores.values())
