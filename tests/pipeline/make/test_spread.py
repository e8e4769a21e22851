"""A model whose answer does not depend on the text is refused before anything is exported; any other one is not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pocketbert.core.errors import InputError
from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.pipeline.reference import check_spread, load_reference_model, project_texts
from support.tiny import BASIC, EXPORTED, tiny_classifier
from support.tiny_tokenizers import MAX_LENGTH, write_tokenizer

LABELS = ("negative", "neutral", "positive")
FAMILIES = [*BASIC, *(pytest.param(f, marks=pytest.mark.slow) for f in EXPORTED if f not in BASIC)]


DEAD_PARTS = [
    ("layer.0.attention.self", "layer.0.attention.output.dense"),
    ("layer.1.intermediate", "layer.1.output.dense"),
    ("position_embeddings", "token_type_embeddings"),
]


def checked(folder: Path, model: Any, name: TaskName = TaskName.TEXT_CLASSIFICATION) -> None:
    task, tokenizer = TASKS[name], TextTokenizer(folder, MAX_LENGTH)
    reference = load_reference_model(open_model_folder(str(folder)), task, model)
    check_spread(reference, tokenizer, project_texts(task, tokenizer), "a-model")


def zeroed(model: Any, *parts: str) -> Any:
    import torch

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not parts or any(part in name for part in parts):
                parameter.zero_()
    return model


@pytest.mark.parametrize("family", FAMILIES)
def test_all_weights_zero(family: str, tiny_model: Callable[..., Path]) -> None:
    model = zeroed(tiny_classifier(family, 2, LABELS))
    with pytest.raises(InputError, match="a-model: answers every text alike"):
        checked(tiny_model(family, 2), model)


def test_a_head_that_reads_nothing(tiny_model: Callable[..., Path]) -> None:
    with pytest.raises(InputError, match="answers every text alike"):
        checked(tiny_model("bert", 2), zeroed(tiny_classifier("bert", 2, LABELS), "classifier.weight"))


@pytest.mark.parametrize("parts", DEAD_PARTS)
def test_a_dead_layer_is_no_dead_model(parts: tuple[str, ...], tiny_model: Callable[..., Path]) -> None:
    checked(tiny_model("bert", 2), zeroed(tiny_classifier("bert", 2, LABELS), *parts))


@pytest.mark.parametrize("name", TaskName)
def test_a_random_model_of_every_task_passes(name: TaskName, tiny_model: Callable[..., Path]) -> None:
    labels = ("a", "b") if name is TaskName.QUESTION_ANSWERING else ("a", "b", "c")
    model = tiny_classifier("bert", 2, labels, auto_class=TASKS[name].auto_class)
    checked(tiny_model("bert", 2), model, name)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_as_the_library_starts_it_passes(family: str, tiny_model: Callable[..., Path]) -> None:
    import transformers

    folder = tiny_model(family, 2)
    config = transformers.AutoConfig.from_pretrained(folder)
    checked(folder, transformers.AutoModelForSequenceClassification.from_config(config))


@pytest.mark.slow
@pytest.mark.parametrize("family", EXPORTED)
def test_random_models_of_many_seeds_pass(family: str, tiny_model: Callable[..., Path]) -> None:
    for seed in range(12):
        checked(tiny_model(family, 2), tiny_classifier(family, 1 + seed % 4, LABELS, seed=seed))


def write_empty_tokenizer(folder: Path) -> None:
    """Byte-level BPE without a vocabulary: every text becomes its two special tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    made = Tokenizer(models.BPE({"<s>": 0, "<pad>": 1, "</s>": 2}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel()
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    made.add_special_tokens(["<s>", "<pad>", "</s>"])
    made.save(str(folder / "tokenizer.json"))


@pytest.mark.parametrize("fault", ["weights", "vocabulary"])
def test_export_refuses_it_and_leaves_nothing(fault: str, tmp_path: Path, cli: Callable[..., Any]) -> None:
    folder, output = tmp_path / "model", tmp_path / "out" / "phone"
    output.parent.mkdir()
    model = tiny_classifier("bert" if fault == "weights" else "roberta", 2, LABELS)
    (zeroed(model) if fault == "weights" else model).save_pretrained(folder)
    write_tokenizer(folder)
    if fault == "vocabulary":
        write_empty_tokenizer(folder)
        (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": MAX_LENGTH}))
    found = cli("export", "-m", folder, "-o", output, "--format", "onnx")
    assert found.exit_code == 2, found.output
    expected = "answers every text alike" if fault == "weights" else "has special tokens only"
    assert expected in " ".join(found.stderr.split())
    assert "model" in found.stderr
    assert not list(output.parent.iterdir())
