"""Forms with further inputs: rows of the table, graphs against the whole model, pruned tables, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pocketbert.core.data.labels import Labels
from pocketbert.core.errors import InputError
from pocketbert.core.families import TEXT_ONLY, all_families, find_family
from pocketbert.core.models.checkpoints import apply_form, load_model, save_model
from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.predict.inputs import ENTITIES_FILE
from pocketbert.core.recipe.file import recipe_from_values
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.core.types import Format
from pocketbert.distill.students.ernie_thu import mask_of_vectors
from pocketbert.export.prepare import prepare, sample_inputs
from support.drawn import draw_inputs
from support.forms import ENTITIES, KEPT, released_vectors, write_ernie, write_kept, write_xlm
from support.published import edit_json
from support.tiny import NAMES, noisy_model

XLM, ERNIE = find_family("xlm"), find_family("ernie-thu")
CLASSIFY, TAG = TASKS[TaskName.TEXT_CLASSIFICATION], TASKS[TaskName.TOKEN_CLASSIFICATION]
SPEAKING = {"n_langs": 3}


def test_a_form_makes_the_inputs_longer_and_text_makes_them_short_again() -> None:
    spoken = XLM.in_form("language", SPEAKING)
    assert spoken.inputs == ("input_ids", "attention_mask", "langs")
    assert spoken.in_form(TEXT_ONLY, SPEAKING) == XLM
    assert XLM.as_configured({**SPEAKING, "pocketbert_form": "language"}) == spoken
    assert XLM.as_configured(SPEAKING) == XLM
    vectors = ERNIE.in_form("entity-vectors", {"entity_size": 12})
    assert vectors.inputs[-1] == "entity_vectors"
    assert vectors.extra[0].shape(2, 7) == (2, 7, 12)
    assert vectors.in_form("entities", {}).inputs == (*ERNIE.inputs, "entity_ids")


@pytest.mark.parametrize(
    ("row", "form", "config", "what"),
    [
        (XLM, "languages", SPEAKING, "XLM has no form 'languages'; did you mean 'language'.*allowed: language, text"),
        (XLM, "language", {}, "'language' needs n_langs of at least 2 in config.json, which says 1"),
        (XLM, "language", {**SPEAKING, "use_lang_emb": False}, "needs use_lang_emb of at least 1"),
        (find_family("bert"), "language", {}, "BERT has no form 'language'; allowed: text"),
    ],
)
def test_a_form_that_a_model_cannot_have_is_refused(row: Any, form: str, config: dict[str, Any], what: str) -> None:
    with pytest.raises(InputError, match=what):
        row.in_form(form, config)


@pytest.mark.parametrize("row", [r for r in all_families() if r.forms], ids=lambda r: r.name)
def test_samples_of_all_forms_have_the_shape_and_type_of_their_input(row: Any) -> None:
    for form in row.forms:
        formed = row.in_form(form.name, {**SPEAKING, "entity_size": 12})
        samples = sample_inputs(formed.inputs, 9, formed.extra)
        for one in formed.extra:
            assert samples[one.name].shape == one.shape(1, 9)
            assert samples[one.name].is_floating_point() == one.is_float


PATTERNS = (["sim", "mix", "norm"], ["norm", "norm", "sim"], ["norm", "sim", "mix"])


def measure_gap(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).abs().max() / expected.std())


@pytest.mark.parametrize("kinds", PATTERNS)
@torch.no_grad()
def test_graphs_with_entities_compute_what_the_whole_model_does(kinds: list[str]) -> None:
    for task, format in ((CLASSIFY, Format.ONNX), (TAG, Format.TFLITE)):
        sizes = {"layer_kinds": kinds, "num_hidden_layers": len(kinds), "entity_rows": 3}
        model = noisy_model("ernie-thu", len(kinds), task.auto_class, NAMES, **sizes)
        table = model.bert.entity_table.weight
        table[0] = 0
        by_id = prepare(model, ERNIE.in_form("entities", {}), task, format)
        by_vector = prepare(model, ERNIE.in_form("entity-vectors", {}), task, format)
        for length in (6, 31):
            inputs = draw_inputs("ernie-thu", length, (0, 2))
            ids = torch.zeros_like(inputs["input_ids"])
            ids[:, 2], ids[1:, 3] = 1, 3
            vectors, places = table[ids], ids.clamp(0, 1).float()
            expected = model(**inputs, entity_vectors=vectors, entity_mask=places).logits
            real = inputs["attention_mask"].bool() if expected.dim() == 3 else slice(None)
            assert measure_gap(model(**inputs, entity_ids=ids).logits[real], expected[real]) < 1e-6
            assert measure_gap(by_id(*inputs.values(), ids)[0][real], expected[real]) < 5e-5
            assert measure_gap(by_vector(*inputs.values(), vectors)[0][real], expected[real]) < 5e-5
            assert measure_gap(by_id(*inputs.values(), ids * 0)[0][real], expected[real]) > 1e-3, (
                "entities make no difference"
            )
            without = model(**inputs).logits
            assert measure_gap(by_id(*inputs.values(), ids * 0)[0][real], without[real]) < 5e-5


def test_a_place_is_open_where_its_vector_is_not_zero() -> None:
    vectors = torch.zeros(1, 4, 12)
    vectors[0, 1], vectors[0, 2, 0], vectors[0, 3, 0] = 0.3, -1.0, 2.0**-7
    assert mask_of_vectors(vectors).tolist() == [[0.0, 1.0, 1.0, 0.5]]


@pytest.fixture(scope="module")
def ernie(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_ernie(tmp_path_factory.mktemp("ernie") / "model")


def open_in_form(folder: Path, form: str, entities: Path | None) -> tuple[Any, list[dict[str, str]]]:
    opened = open_model_folder(str(folder))
    model = load_model(opened, CLASSIFY)
    return model, apply_form(model, opened, form, entities)


def test_a_table_holds_the_named_entities_in_their_order(ernie: Path, tmp_path: Path) -> None:
    model, chosen = open_in_form(ernie, "entities", write_kept(tmp_path))
    assert chosen == [{"id": "Q101"}, {"id": "Q107", "name": "Title 7"}, {"id": "Q129"}]
    table = model.bert.entity_table.weight.detach().numpy()
    assert model.config.entity_rows == len(KEPT)
    assert np.array_equal(table, np.concatenate([np.zeros((1, 12), np.float32), released_vectors()[[1, 7, 29]]]))


def test_a_saved_table_is_opened_kept_pruned_and_dropped(ernie: Path, tmp_path: Path) -> None:
    model, chosen = open_in_form(ernie, "entities", write_kept(tmp_path))
    source, saved = open_model_folder(str(ernie)), tmp_path / "saved"
    saved.mkdir()
    (saved / ENTITIES_FILE).write_text(json.dumps({"entities": chosen}))
    save_model(model, source, Labels(NAMES), 32, saved, "entities")
    assert open_model_folder(str(saved)).family.inputs[-1] == "entity_ids"
    again, same = open_in_form(saved, "entities", None)
    assert same == chosen
    assert torch.equal(again.bert.entity_table.weight, model.bert.entity_table.weight)
    (tmp_path / "fewer.jsonl").write_text('{"text": "a", "entities": [{"start": 0, "end": 1, "name": "Title 7"}]}\n')
    pruned, one = open_in_form(saved, "entities", tmp_path / "fewer.jsonl")
    assert one == [{"id": "Q107", "name": "Title 7"}]
    assert torch.equal(pruned.bert.entity_table.weight[1], model.bert.entity_table.weight[2])
    plain, none = open_in_form(saved, TEXT_ONLY, None)
    assert none == []
    assert plain.bert.entity_table is None
    assert plain.config.entity_rows == 0
    (saved / ENTITIES_FILE).write_text(json.dumps({"entities": chosen[1:]}))
    with pytest.raises(InputError, match="lists 2 entities, not 3"):
        open_in_form(saved, "entities", None)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("Q101\nQ999\nNobody\n", "'Q999', 'Nobody': not in entity2id.txt"),
        ("\n\n", "names no entity"),
        (None, "no file .*keep.txt"),
        ("x" * (1 << 17), "line of more than 65,536 characters"),
    ],
)
def test_entities_that_are_not_there_are_refused(ernie: Path, tmp_path: Path, content: str | None, what: str) -> None:
    path = tmp_path / "keep.txt"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=what):
        open_in_form(ernie, "entities", path)


def test_rows_of_a_data_file_name_entities_or_are_refused(ernie: Path, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "a"}\n{"entities": [{"id": "Q101"}, {"name": "Title 7"}, {"id": "Q101"}]}\n')
    assert open_in_form(ernie, "entities", path)[1] == [{"id": "Q101"}, {"id": "Q107", "name": "Title 7"}]
    path.write_text('{"entities": 3}\n')
    with pytest.raises(InputError, match=r"rows.jsonl:1: is no row with a list of mentions"):
        open_in_form(ernie, "entities", path)


def test_a_form_with_a_table_says_what_it_lacks(ernie: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="vectors of all entities.*Name those to keep"):
        open_in_form(ernie, "entities", None)
    with pytest.raises(InputError, match="'entity-vectors' has no table of entities"):
        open_in_form(ernie, "entity-vectors", write_kept(tmp_path))
    bare = write_ernie(tmp_path / "bare")
    (bare / "kg_embed/entity2vec.vec").unlink()
    with pytest.raises(InputError, match="has no table of entities .entity2vec.vec."):
        open_in_form(bare, "entities", tmp_path / "keep.txt")
    plain = write_ernie(tmp_path / "plain", kinds=("sim", "sim"))
    with pytest.raises(InputError, match="no layer of the model reads entities"):
        open_in_form(plain, "entities", tmp_path / "keep.txt")


@pytest.mark.parametrize("line", ["0.1\t" * 5, "a\t" * 12])
def test_a_broken_vector_is_refused_with_its_line(tmp_path: Path, line: str) -> None:
    broken = write_ernie(tmp_path / "broken")
    path = broken / "kg_embed/entity2vec.vec"
    lines = path.read_text().splitlines()
    assert len(lines) == ENTITIES
    path.write_text("\n".join([*lines[:29], line]))
    with pytest.raises(InputError, match="entity2vec.vec:30: is no vector of 12"):
        open_in_form(broken, "entities", write_kept(tmp_path))


@pytest.mark.parametrize(
    ("sections", "what"),
    [
        ({"export": {"form": "language"}, "data": {"eval": {"path": "a.jsonl"}}}, "without student and data"),
        ({"export": {"entities": "keep.txt"}}, "export.entities.*is read with a form that has entities"),
    ],
)
def test_recipes_that_contradict_a_form_are_refused(sections: dict[str, Any], what: str) -> None:
    recipe = {"schema": 1, "name": "a", "task": "text-classification", "teacher": {"model": "m"}}
    with pytest.raises(InputError, match=what):
        recipe_from_values({**recipe, **sections}, "recipe")


def test_config_json_with_a_form_that_the_family_has_not_is_refused(tmp_path: Path) -> None:
    folder = write_xlm(tmp_path / "xlm")
    edit_json(folder / "config.json", pocketbert_form="entities")
    with pytest.raises(InputError, match="config.json pocketbert_form: XLM has no form 'entities'"):
        open_model_folder(str(folder))
