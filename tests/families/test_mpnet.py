"""MPNet: distances beyond the last bucket, positions from padding, the bias in files, its tokenizer's settings; graphs and captures are in `test_table`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from pocketbert.core.families import find_family
from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.core.types import Format, Layout
from pocketbert.distill.capture import record_attention
from pocketbert.export.prepare import prepare
from support.drawn import difference, draw_inputs
from support.tiny import NAMES, noisy_model, tiny_config, write_own_tokenizer

ROW, TASK = find_family("mpnet"), TASKS[TaskName.TEXT_CLASSIFICATION]


def long_model(**changes: Any) -> Any:
    return noisy_model("mpnet", 2, TASK.auto_class, **{"max_position_embeddings": 302, **changes})


@torch.no_grad()
@pytest.mark.parametrize(
    ("format", "layout"), [(Format.ONNX, Layout.PLAIN), (Format.TFLITE, Layout.PLAIN), (Format.COREML, Layout.ANE)]
)
@pytest.mark.parametrize("length", [1, 140, 300])
def test_the_bias_of_every_distance_is_the_models_own(format: Format, layout: Layout, length: int) -> None:
    model = long_model()
    module = prepare(model, ROW, TASK, format, layout)
    assert difference(model, module, draw_inputs("mpnet", length), TASK.outputs) < 1e-4
    model.base_model.encoder.relative_attention_bias.weight.mul_(-1)
    moved = difference(model, module, draw_inputs("mpnet", length), TASK.outputs)
    assert moved > 1e-3 or length == 1, "distances between tokens do not matter to this model"


def test_a_traced_graph_stores_the_bias_by_distance_and_not_by_pair() -> None:
    inputs = draw_inputs("mpnet", 300)
    traced = torch.export.export(prepare(long_model(), ROW, TASK, Format.TFLITE), tuple(inputs.values()), strict=False)
    assert max(value.numel() for value in traced.run_decompositions().state_dict.values()) < 300 * 300


@torch.no_grad()
def test_relations_are_the_projections_and_scores_have_the_bias() -> None:
    model, inputs = long_model(), draw_inputs("mpnet", 9, (0, 4))
    with record_attention(model, ROW, [0], [0]) as recorder:
        states = model(**inputs, output_hidden_states=True).hidden_states[0]
    own, encoder = model.base_model.encoder.layer[0].attention.attn, model.base_model.encoder
    for name, found in (("q", recorder.relations[0].query), ("v", recorder.relations[0].value)):
        torch.testing.assert_close(found.transpose(1, 2).flatten(2), getattr(own, name)(states))
    query, key = recorder.relations[0].query, recorder.relations[0].key
    scores = query @ key.transpose(2, 3) / own.attention_head_size**0.5 + encoder.compute_position_bias(states)
    torch.testing.assert_close(recorder.scores[0][0], scores[0], rtol=1e-4, atol=1e-4)
    assert torch.isfinite(recorder.scores[0]).all()
    assert float(recorder.scores[0][1, :, :, 5:].max()) < -5e3, "padding is not masked"


@pytest.mark.parametrize("settings", [{}, {"do_lower_case": False}, {"strip_accents": False}])
@pytest.mark.parametrize("name", ["MPNetTokenizer", "MPNetTokenizerFast"])
def test_the_settings_of_its_tokenizer_count_as_in_transformers(
    name: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    written = write_own_tokenizer(tmp_path, "mpnet")
    tiny_config("mpnet", 1, NAMES, **written).save_pretrained(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tokenizer_class": name, **settings}))
    published = transformers.AutoTokenizer.from_pretrained(str(tmp_path), local_files_only=True)
    ours = TextTokenizer(open_model_folder(str(tmp_path)).tokenizer_folder, 40)
    for text in ("Play MUSIC, café!", "a <mask> b", ("a pair", "of TEXTS")):
        first, second = text if isinstance(text, tuple) else (text, None)
        assert ours.encode([text])[0].ids.tolist() == published(first, second)["input_ids"]
