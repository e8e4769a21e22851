"""A model whose answer does not depend on the text is refused before anything is exported; any other one is not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

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


def check(folder: Path, model: Any, name: TaskName = TaskName.TEXT_CLASSIFICATION) -> None:
    task, tokenizer = TASKS[name], TextTokenizer(folder, MAX_LENGTH)
    reference = load_reference_model(open_model_folder(str(folder)), task, model)
    check_spread(reference, tokenizer, project_texts(task, tokenizer), "a-model")


def zero(model: Any, *parts: str) -> Any:
    """Make the parameters zero whose names have one of the parts; all without any."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not parts or any(part in name for part in parts):
                parameter.zero_()
    return model


@pytest.mark.parametrize("family", FAMILIES)
def test_zeros_are_refused_and_a_model_as_the_library_starts_it_is_not(
    family: str, tiny_model: Callable[..., Path]
) -> None:
    folder = tiny_model(family, 2)
    with pytest.raises(InputError, match="a-model: answers every text alike"):
        check(folder, zero(tiny_classifier(family, 2, LABELS)))
    config = transformers.AutoConfig.from_pretrained(folder)
    check(folder, transformers.AutoModelForSequenceClassification.from_config(config))


def test_a_head_that_reads_nothing_is_refused_and_a_dead_layer_is_not(tiny_model: Callable[..., Path]) -> None:
    folder = tiny_model("bert", 2)
    with pytest.raises(InputError, match="answers every text alike"):
        check(folder, zero(tiny_classifier("bert", 2, LABELS), "classifier.weight"))
    for parts in DEAD_PARTS:
        check(folder, zero(tiny_classifier("bert", 2, LABELS), *parts))


@pytest.mark.parametrize("name", TASKS)
def test_a_random_model_of_every_task_passes(name: TaskName, tiny_model: Callable[..., Path]) -> None:
    labels = ("a", "b") if name is TaskName.QUESTION_ANSWERING else ("a", "b", "c")
    model = tiny_classifier("bert", 2, labels, auto_class=TASKS[name].auto_class)
    check(tiny_model("bert", 2), model, name)


@pytest.mark.slow
@pytest.mark.parametrize("family", EXPORTED)
def test_random_models_of_many_seeds_pass(family: str, tiny_model: Callable[..., Path]) -> None:
    for seed in range(12):
        check(tiny_model(family, 2), tiny_classifier(family, 1 + seed % 4, LABELS, seed=seed))


def write_empty_tokenizer(folder: Path) -> None:
    """Byte-level BPE without a vocabulary: every text becomes its two special tokens."""
    made = Tokenizer(models.BPE({"<s>": 0, "<pad>": 1, "</s>": 2}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel()
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    made.add_special_tokens(["<s>", "<pad>", "</s>"])
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": MAX_LENGTH}))


@pytest.mark.parametrize("fault", ["answers every text alike", "has special tokens only"])
def test_export_refuses_it_and_leaves_nothing(fault: str, tmp_path: Path, cli: Callable[..., Any]) -> None:
    folder, output = tmp_path / "model", tmp_path / "out" / "phone"
    output.parent.mkdir()
    is_zero = fault.startswith("answers")
    model = tiny_classifier("bert" if is_zero else "roberta", 2, LABELS)
    (zero(model) if is_zero else model).save_pretrained(folder)
    write_tokenizer(folder)
    if not is_zero:
        write_empty_tokenizer(folder)
    found = cli("export", "-m", folder, "-o", output, "--format", "onnx")
    assert found.exit_code == 2, found.output
    assert fault in " ".join(found.stderr.split())
    assert "model" in found.stderr
    assert not list(output.parent.iterdir())
