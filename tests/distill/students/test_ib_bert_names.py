"""Names of the original checkpoints, for IB-BERT and MobileBERT."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from pocketbert.core.errors import InputError
from pocketbert.distill.students.ib_bert import IbBertModel, _rename_variable, rename_weights
from support.ib_bert import config, tiny


@pytest.fixture(scope="module")
def encoder() -> Any:
    return tiny(IbBertModel, 3)


def original_variables(model: Any) -> dict[str, tuple[int, ...]]:
    """Names and shapes that the original code's variable scopes make for a model's configuration."""
    c = model.config
    norm = "LayerNorm" if c.normalization_type == "layer_norm" else "FakeLayerNorm"
    out: dict[str, tuple[int, ...]] = {}

    def add_dense(name: str, inner: int, outer: int) -> None:
        out[f"{name}/kernel"], out[f"{name}/bias"] = (inner, outer), (outer,)

    def add_norm(name: str, width: int, kind: str = norm) -> None:
        out[f"{name}/{kind}/beta"] = out[f"{name}/{kind}/gamma"] = (width,)

    width, inside = c.hidden_size, c.intra_bottleneck_size
    out["bert/embeddings/word_embeddings"] = (c.vocab_size, c.embedding_size)
    out["bert/embeddings/token_type_embeddings"] = (c.type_vocab_size, width)
    out["bert/embeddings/position_embeddings"] = (c.max_position_embeddings, width)
    add_dense("bert/embeddings/embedding_transformation", 3 * c.embedding_size, width)
    add_norm("bert/embeddings", width)
    for n in range(c.num_hidden_layers):
        layer = f"bert/encoder/layer_{n}"
        add_dense(f"{layer}/bottleneck/input/dense", width, inside)
        add_norm(f"{layer}/bottleneck/input", inside)
        if c.key_query_shared_bottleneck:
            add_dense(f"{layer}/bottleneck/attention/dense", width, inside)
            add_norm(f"{layer}/bottleneck/attention", inside)
        for name in ("query", "key", "value"):
            shared = name != "value" and c.key_query_shared_bottleneck
            add_dense(f"{layer}/attention/self/{name}", inside if shared else width, inside)
        add_dense(f"{layer}/attention/output/dense", inside, inside)
        add_norm(f"{layer}/attention/output", inside)
        for place in [f"/ffn_layer_{i}" for i in range(c.num_feedforward_networks - 1)] + [""]:
            add_dense(f"{layer}{place}/intermediate/dense", inside, c.intermediate_size)
            add_dense(f"{layer}{place}/output/dense", c.intermediate_size, inside)
            add_norm(f"{layer}{place}/output", inside)
        add_dense(f"{layer}/output/bottleneck/dense", inside, width)
        add_norm(f"{layer}/output/bottleneck", width)
    if c.classifier_activation:
        add_dense("bert/pooler/dense", width, width)
    add_dense("cls/predictions/transform/dense", width, width)
    add_norm("cls/predictions/transform", width, "LayerNorm")
    out["cls/predictions/output_bias"] = (c.vocab_size,)
    out["cls/predictions/extra_output_weights"] = (c.vocab_size, width - c.embedding_size)
    out["cls/seq_relationship/output_weights"], out["cls/seq_relationship/output_bias"] = (2, width), (2,)
    return out


def mobilebert() -> Any:
    sizes = config(intra_bottleneck_size=12).to_dict()
    names = ("vocab_size", "hidden_size", "num_hidden_layers", "embedding_size", "intra_bottleneck_size")
    return transformers.MobileBertForPreTraining(
        transformers.MobileBertConfig(**{n: sizes[n] for n in names}, classifier_activation=False)
    )


@pytest.mark.parametrize("build", [tiny, mobilebert])
def test_original_checkpoints_fill_the_models(build: Any) -> None:
    model = build()
    state = {name: torch.randn(shape) for name, shape in original_variables(model).items()}
    kernel = "bert/encoder/layer_1/attention/output/dense/kernel"
    slots = {f"{kernel}/adam_m": state[kernel], f"{kernel}/adam_v": state[kernel], "global_step": torch.ones(1)}
    found = rename_weights(state | slots)
    model.load_state_dict(found, strict=True)
    ours = model.state_dict()
    # square, so that no shape would tell
    assert torch.equal(ours["mobilebert.encoder.layer.1.attention.output.dense.weight"], state[kernel].T)
    word = state["bert/embeddings/word_embeddings"]
    assert torch.equal(ours["cls.predictions.decoder.weight"], word)
    assert torch.equal(ours["cls.seq_relationship.weight"], state["cls/seq_relationship/output_weights"])
    scale = next(v for k, v in state.items() if k.startswith("bert/embeddings/") and k.endswith("gamma"))
    assert torch.equal(ours["mobilebert.embeddings.LayerNorm.weight"], scale)


@given(st.data())
def test_no_other_name_is_taken(encoder: Any, data: st.DataObject) -> None:
    known = sorted(original_variables(encoder))
    parts = data.draw(st.sampled_from(known)).split("/")
    place = data.draw(st.integers(0, len(parts) - 1))
    other = "/".join([*parts[:place], data.draw(st.text("adeklnrs/_0", max_size=8)), *parts[place + 1 :]])
    assert (_rename_variable(other) is None) == (other not in known)


@pytest.mark.parametrize(
    "name",
    [
        "bert/embeddings/embedding_transformation/gamma",
        "bert/embeddings/LayerNorm/kernel",
        "bert/embeddings/word_embeddings/kernel",
        "bert/encoder/layer_0/attention/self/query/MobileBertWeightFakeQuantWithMinMaxVars/min",
        "bert/encoder/layer_0/attention/self/dense/kernel",
        "bert/encoder/layer_0/attention/self/LayerNorm/gamma",
        "bert/encoder/layer_0/intermediate/query/kernel",
        "bert/encoder/layer_0/ffn_layer_0/attention/output/dense/kernel",
        "output_weights",
        "cls/squad/output_weights",
    ],
)
def test_variables_of_other_checkpoints_are_named(name: str) -> None:
    with pytest.raises(InputError) as caught:
        rename_weights({name: torch.zeros(1), "another": torch.zeros(1)})
    assert [p.where for p in caught.value.problems] == [name, "another"]


@pytest.mark.parametrize("build", [tiny, mobilebert])
def test_a_folder_with_the_original_names_opens(build: Any, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    from pocketbert.core.models.checkpoints import load_model
    from pocketbert.core.models.folder import open_model_folder
    from pocketbert.core.tasks import TASKS, TaskName

    model = build()
    state = {name: torch.randn(shape) for name, shape in original_variables(model).items()}
    model.config.save_pretrained(tmp_path)
    save_file(state, tmp_path / "model.safetensors")
    made = load_model(open_model_folder(str(tmp_path)), TASKS[TaskName.FILL_MASK])
    kernel = state["bert/encoder/layer_1/attention/output/dense/kernel"]
    assert torch.equal(made.mobilebert.encoder.layer[1].attention.output.dense.weight.detach(), kernel.T)
