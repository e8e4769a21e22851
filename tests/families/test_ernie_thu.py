"""ERNIE (Tsinghua): the module computes the paper's equations, the text-only graph the same as the module, and released folders load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pocketbert.core.errors import InputError
from pocketbert.core.families import find_family
from pocketbert.core.models.checkpoints import load_model, save_tokenizer
from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.recipe.student import StudentSection
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.core.types import Format
from pocketbert.distill.students.build import build_student
from pocketbert.export.prepare import prepare
from support.drawn import difference, draw_inputs
from support.published import edit_json
from support.tiny import noisy_model, task_vocabulary

ROW = find_family("ernie-thu")
CLASSIFY, TAG = TASKS[TaskName.TEXT_CLASSIFICATION], TASKS[TaskName.TOKEN_CLASSIFICATION]
PATTERNS = (
    ["sim", "mix", "norm"],
    ["norm", "norm", "sim"],
    ["mix", "mix", "sim"],
    ["sim", "sim", "norm"],
    ["sim", "sim", "mix"],
    ["sim", "sim", "sim"],
)


def model_of(kinds: list[str], auto_class: str = CLASSIFY.auto_class) -> Any:
    return noisy_model("ernie-thu", len(kinds), auto_class, layer_kinds=kinds, num_hidden_layers=len(kinds))


def entities_of(rows: int = 3, length: int = 11) -> dict[str, Tensor]:
    mask = torch.zeros(rows, length)
    mask[:, 2], mask[1:, 4] = 1, 1
    draw = torch.Generator().manual_seed(1)
    return {"entity_vectors": torch.randn(rows, length, 12, generator=draw) * mask[..., None], "entity_mask": mask}


def attention(state: dict[str, Tensor], name: str, states: Tensor, mask: Tensor, heads: int = 4) -> Tensor:
    """What one head after the other attends to; `mask` [B, S] closes what is 0."""
    query, key, value = (
        F.linear(states, state[f"{name}.{part}.weight"], state[f"{name}.{part}.bias"]).chunk(heads, -1)
        for part in ("query", "key", "value")
    )
    out = []
    for q, k, v in zip(query, key, value, strict=True):
        scores = (q @ k.transpose(1, 2) / q.shape[-1] ** 0.5).masked_fill(mask[:, None] == 0, -torch.inf)
        out.append(scores.softmax(-1) @ v)
    return torch.cat(out, -1)


def compute_by_equations(model: Any, inputs: dict[str, Tensor], entities: Tensor, open_places: Tensor) -> Tensor:
    """States of the text, layer by layer as the docstring of the model has it."""
    state = model.state_dict()

    def linear(name: str, x: Tensor) -> Tensor:
        return F.linear(x, state[f"{name}.weight"], state[f"{name}.bias"])

    def norm(name: str, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], state[f"{name}.weight"], state[f"{name}.bias"], 1e-12)

    tables = [state[f"bert.embeddings.{n}_embeddings.weight"] for n in ("word", "position", "token_type")]
    places = torch.arange(inputs["input_ids"].shape[1])
    w = norm(
        "bert.embeddings.LayerNorm",
        tables[0][inputs["input_ids"]] + tables[1][places] + tables[2][inputs["token_type_ids"]],
    )
    e, m = entities, open_places[..., None]
    for i, kind in enumerate(model.config.layer_kinds):
        at = f"bert.encoder.layer.{i}"
        text = attention(state, f"{at}.attention.self", w, inputs["attention_mask"])
        w = norm(f"{at}.attention.output.LayerNorm", linear(f"{at}.attention.output.dense", text) + w)
        z = linear(f"{at}.intermediate.dense", w)
        if kind == "norm":
            own = attention(state, f"{at}.attention.self_ent", e, open_places)
            e = norm(f"{at}.attention.output_ent.LayerNorm", linear(f"{at}.attention.output_ent.dense", own) + e)
        if kind != "sim":
            e = e * m
            z = z + linear(f"{at}.intermediate.dense_ent", e)
        z = F.gelu(z)
        if kind != "sim":
            e = norm(f"{at}.output.LayerNorm_ent", linear(f"{at}.output.dense_ent", z) + e)
        w = norm(f"{at}.output.LayerNorm", linear(f"{at}.output.dense", z) + w)
    return w


def measure_gap(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / expected.std())


@pytest.mark.parametrize("kinds", PATTERNS)
@torch.no_grad()
def test_the_module_computes_the_equations(kinds: list[str]) -> None:
    model, inputs, given = model_of(kinds, TAG.auto_class), draw_inputs("ernie-thu", 11, (0, 2, 4)), entities_of()
    real, entities, nothing = inputs["attention_mask"].bool(), given["entity_vectors"], given["entity_vectors"] * 0
    first = torch.zeros_like(given["entity_mask"])
    first[:, 0] = 1  # [CLS] is always open
    found = model.bert(**inputs, **given).last_hidden_state
    wanted = compute_by_equations(model, inputs, entities, given["entity_mask"] + first)
    assert measure_gap(found[real], wanted[real]) < 1e-5
    alone = model.bert(**inputs).last_hidden_state
    assert measure_gap(alone[real], compute_by_equations(model, inputs, nothing, first)[real]) < 1e-5
    assert (measure_gap(found[real], alone[real]) > 1e-2) == (kinds != ["sim"] * 3)
    if kinds == ["sim", "mix", "norm"]:
        closed = compute_by_equations(model, inputs, nothing, first * 0 + 1e-9)
        assert measure_gap(alone[real], closed[real]) > 1e-2, "an open [CLS] would make no difference"


@pytest.mark.parametrize("kinds", PATTERNS)
@torch.no_grad()
def test_the_text_only_graph_computes_what_the_module_does(kinds: list[str]) -> None:
    model = model_of(kinds, TAG.auto_class)
    for format in Format:
        module = prepare(model, ROW, TAG, format)
        for length in (7, 30):
            assert difference(model, module, draw_inputs("ernie-thu", length, (0, 2))) < 1e-5
    if kinds == PATTERNS[0]:  # a wrong entity stream would be seen
        model.bert.encoder.layer[-1].attention.self_ent.value.weight.mul_(1.5)
        assert difference(model, module, draw_inputs("ernie-thu", 11)) > 1e-4


def test_a_layer_that_is_not_its_own_is_refused() -> None:
    model = model_of(["mix", "norm"])
    model.bert.encoder.layer[1] = torch.nn.Identity()
    with pytest.raises(InputError, match="layers that no adapter knows: torch.nn.modules.linear.Identity"):
        prepare(model, ROW, CLASSIFY)


@pytest.mark.parametrize(("layers", "kinds"), [(2, ["mix", "norm"]), (1, ["norm"])])
def test_a_student_takes_the_kinds_of_its_teachers_layers(layers: int, kinds: list[str]) -> None:
    teacher = model_of(["sim", "mix", "sim", "norm"])
    student = build_student(teacher, ROW, StudentSection(layers=layers), 1)
    assert student.config.layer_kinds == kinds
    last = "bert.encoder.layer.{}.attention.self_ent.value.weight"
    assert torch.equal(student.state_dict()[last.format(layers - 1)], teacher.state_dict()[last.format(3)])
    random = build_student(teacher, ROW, StudentSection(layers=3, init="random"), 1)
    assert random.config.layer_kinds == ["sim", "sim", "norm"]


def write_released(folder: Path, model: Any, extra: dict[str, Tensor]) -> Path:
    """A folder as the authors ship it: ernie_config.json, pytorch_model.bin with gamma and beta, vocab.txt."""
    folder.mkdir()
    config = model.config
    sizes = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    more = ("max_position_embeddings", "type_vocab_size", "hidden_act", "initializer_range", "entity_size")
    content = {name: getattr(config, name) for name in (*sizes, *more)}
    (folder / "ernie_config.json").write_text(json.dumps({**content, "layer_types": config.layer_kinds}))
    state = {}
    for key, value in {**model.state_dict(), **extra}.items():
        for norm in ("LayerNorm", "LayerNorm_ent"):
            key = key.replace(f"{norm}.weight", f"{norm}.gamma").replace(f"{norm}.bias", f"{norm}.beta")
        state[key] = value
    torch.save(state, folder / "pytorch_model.bin")
    (folder / "vocab.txt").write_text("\n".join(task_vocabulary()) + "\n")
    return folder


def test_a_released_folder_is_read_as_its_authors_ship_it(tmp_path: Path) -> None:
    model = noisy_model("ernie-thu", 3, "AutoModelForPreTraining", vocab_size=len(task_vocabulary()))
    extra = {
        "bert.encoder.layer.1.intermediate.dense_1.weight": torch.ones(200, 32),
        "bert.encoder.layer.1.intermediate.dense_1_ent.bias": torch.ones(200),
        "cls.predictions_ent.transform.dense.weight": torch.ones(12, 32),
    }
    folder = open_model_folder(str(write_released(tmp_path / "ernie", model, extra)))
    assert (folder.family, folder.config["layer_kinds"]) == (ROW, ["sim", "mix", "norm"])
    loaded = load_model(folder, TASKS[TaskName.FILL_MASK])
    with torch.no_grad():
        inputs = draw_inputs("ernie-thu", 11, (0, 2, 4))
        torch.testing.assert_close(loaded(**inputs).logits, model(**inputs).prediction_logits, rtol=0, atol=0)
    out = tmp_path / "tokenizer"
    out.mkdir()
    save_tokenizer(folder.path, 32, out, folder.family)
    assert json.loads((out / "tokenizer.json").read_text())["model"]["type"] == "WordPiece"


LABELS = {"id2label": {str(i): n for i, n in enumerate("abc")}}


def test_a_released_configuration_without_kinds_is_berts_and_a_lost_tensor_is_named(tmp_path: Path) -> None:
    path = write_released(tmp_path / "ernie", model_of(["sim", "sim"]), {})
    edit_json(path / "ernie_config.json", layer_types=None, **LABELS)
    assert load_model(open_model_folder(str(path)), CLASSIFY).config.layer_kinds == ["sim", "sim"]
    path = write_released(tmp_path / "lost", model_of(["mix", "norm"]), {})
    state = torch.load(path / "pytorch_model.bin", weights_only=True)
    del state["bert.encoder.layer.1.attention.self_ent.key.weight"]
    torch.save(state, path / "pytorch_model.bin")
    with pytest.raises(InputError, match="attention.self_ent.key.weight"):
        load_model(open_model_folder(str(path)), CLASSIFY)


def test_the_head_for_entity_typing_has_no_bias(tmp_path: Path) -> None:
    model = model_of(["mix", "norm"])
    with torch.no_grad():
        model.classifier.bias.zero_()
    path = write_released(tmp_path / "ernie", model, {"typing.weight": model.classifier.weight.detach().clone()})
    state = torch.load(path / "pytorch_model.bin", weights_only=True)
    torch.save({k: v for k, v in state.items() if not k.startswith("classifier.")}, path / "pytorch_model.bin")
    edit_json(path / "ernie_config.json", problem_type="multi_label_classification", **LABELS)
    loaded = load_model(open_model_folder(str(path)), TASKS[TaskName.MULTI_LABEL])
    with torch.no_grad():
        torch.testing.assert_close(
            loaded(**draw_inputs("ernie-thu", 11, (0, 2, 4))).logits,
            model(**draw_inputs("ernie-thu", 11, (0, 2, 4))).logits,
            rtol=0,
            atol=0,
        )
