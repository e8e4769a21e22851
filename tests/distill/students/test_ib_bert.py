import math
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from pocketbert.core.errors import InputError
from pocketbert.core.models.checkpoints import load_model
from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.distill.capture import query_width
from pocketbert.distill.students.ib_bert import (
    IbBertConfig,
    IbBertForMaskedLM,
    IbBertForPreTraining,
    IbBertForQuestionAnswering,
    IbBertForSequenceClassification,
    IbBertForTokenClassification,
    IbBertModel,
    rename_weights,
)
from support.counting import parameter_count
from support.ib_bert import DEPTH, EMBEDDING, HEADS, IDS, INSIDE, MASK, TYPES, WIDTH, config, tiny


def inputs() -> dict[str, Tensor]:
    return {"input_ids": IDS, "attention_mask": MASK, "token_type_ids": TYPES}


@pytest.mark.parametrize(
    ("kind", "arguments", "parameters"),
    [
        (IbBertModel, {"add_pooling_layer": False}, 294_205_184),
        (IbBertModel, {}, 294_205_184 + 512 * 512 + 512),
        (IbBertForMaskedLM, {}, 294_205_184 + 512 * 512 + 3 * 512 + 30522 * (512 - 128) + 30522),
    ],
)
def test_ib_bert_large_has_its_size(kind, arguments, parameters):
    with torch.device("meta"):
        model = kind(IbBertConfig(), **arguments)
    assert parameter_count(model) == parameters
    assert query_width(model.config) == 4 * 256


def normalize(x: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    scaled = (x - mean) / ((x - mean).square().mean(-1, keepdim=True) + 1e-12).sqrt()
    return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def dense(x: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def embed(weights: dict[str, Tensor], row: Tensor, types: Tensor) -> Tensor:
    """Section 3.1 of the paper, one token at a time."""
    table, prefix, out = weights["mobilebert.embeddings.word_embeddings.weight"], "mobilebert.embeddings.", []
    nothing = torch.zeros(EMBEDDING, dtype=torch.float64)
    for t, token in enumerate(row.tolist()):
        after = table[row[t + 1]] if t + 1 < len(row) else nothing
        before = table[row[t - 1]] if t else nothing
        x = dense(torch.cat([after, table[token], before]), weights, f"{prefix}embedding_transformation")
        x = x + weights[f"{prefix}token_type_embeddings.weight"][types[t]]
        out.append(x + weights[f"{prefix}position_embeddings.weight"][t])
    return normalize(torch.stack(out), weights, f"{prefix}LayerNorm")


def run_block(weights: dict[str, Tensor], number: int, x: Tensor, real: Tensor) -> Tensor:
    """One block on one row [S, inter-block width], head by head and query by query."""
    w = {k.removeprefix(f"mobilebert.encoder.layer.{number}."): v for k, v in weights.items()}
    inner = normalize(dense(x, w, "bottleneck.input.dense"), w, "bottleneck.input.LayerNorm")
    query, key, value = (dense(x, w, f"attention.self.{name}") for name in ("query", "key", "value"))
    size, context = INSIDE // HEADS, torch.zeros(len(x), INSIDE, dtype=torch.float64)
    for head in range(HEADS):
        part = slice(head * size, (head + 1) * size)
        for t in range(len(x)):
            scores = key[real, part] @ query[t, part] / math.sqrt(size)
            weight = (scores - scores.max()).exp()
            context[t, part] = (weight / weight.sum()) @ value[real, part]
    inner = normalize(dense(context, w, "attention.output.dense") + inner, w, "attention.output.LayerNorm")
    wide = dense(inner, w, "intermediate.dense")
    wide = 0.5 * wide * (1 + torch.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)))
    inner = normalize(dense(wide, w, "output.dense") + inner, w, "output.LayerNorm")
    return normalize(dense(inner, w, "output.bottleneck.dense") + x, w, "output.bottleneck.LayerNorm")


@torch.no_grad()
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_forward_is_the_papers(attention):
    model = tiny().double()
    model.set_attn_implementation(attention)
    states = model(**inputs(), output_hidden_states=True).hidden_states
    assert len(states) == DEPTH + 1
    weights = dict(model.state_dict())
    for row, (ids, types, mask) in enumerate(zip(IDS, TYPES, MASK, strict=True)):
        real = mask.bool()
        x = embed(weights, ids, types)
        torch.testing.assert_close(states[0][row], x, rtol=1e-9, atol=1e-9)
        for layer in range(DEPTH):
            x = run_block(weights, layer, x, real)
            assert x.shape == (8, WIDTH)
            torch.testing.assert_close(states[layer + 1][row][real], x[real], rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_heads_read_the_last_block():
    model = tiny().double()
    made = model(**inputs(), output_hidden_states=True)
    weights, last = dict(model.state_dict()), made.hidden_states[-1]
    pooled = torch.tanh(dense(last[:, 0], weights, "mobilebert.pooler.dense"))
    torch.testing.assert_close(made.seq_relationship_logits, dense(pooled, weights, "cls.seq_relationship"))
    x = torch.nn.functional.gelu(dense(last, weights, "cls.predictions.transform.dense"), approximate="tanh")
    x = normalize(x, weights, "cls.predictions.transform.LayerNorm")
    table = weights["mobilebert.embeddings.word_embeddings.weight"]
    logits = x[..., :EMBEDDING] @ table.T + x[..., EMBEDDING:] @ weights["cls.predictions.dense.weight"]
    torch.testing.assert_close(made.prediction_logits, logits + weights["cls.predictions.bias"])
    for kind, name in (
        (IbBertForSequenceClassification, "classifier"),
        (IbBertForTokenClassification, "classifier"),
        (IbBertForQuestionAnswering, "qa_outputs"),
    ):
        model = tiny(kind).double()
        states, found = model.mobilebert(**inputs()), model(**inputs())
        read = states.pooler_output if kind is IbBertForSequenceClassification else states.last_hidden_state
        outputs = found.logits if "logits" in found else torch.stack([found.start_logits, found.end_logits], -1)
        torch.testing.assert_close(outputs, dense(read, dict(model.state_dict()), name))


@pytest.mark.parametrize(
    ("kind", "auto"),
    [
        (IbBertModel, transformers.AutoModel),
        (IbBertForMaskedLM, transformers.AutoModelForMaskedLM),
        (IbBertForPreTraining, transformers.AutoModelForPreTraining),
        (IbBertForSequenceClassification, transformers.AutoModelForSequenceClassification),
        (IbBertForTokenClassification, transformers.AutoModelForTokenClassification),
        (IbBertForQuestionAnswering, transformers.AutoModelForQuestionAnswering),
    ],
)
@torch.no_grad()
def test_a_saved_folder_opens_bit_equal(kind, auto, tmp_path):
    model = tiny(kind)
    model.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").is_file()
    stored = transformers.AutoConfig.from_pretrained(tmp_path)
    assert type(stored) is IbBertConfig
    assert stored.to_diff_dict() == model.config.to_diff_dict()
    for opener in (kind, auto):
        again = opener.from_pretrained(tmp_path)
        assert type(again) is kind
        for name, value in model.state_dict().items():
            assert torch.equal(value, again.state_dict()[name]), name
        assert torch.equal(model(**inputs())[0], again.eval()(**inputs())[0])


@pytest.mark.parametrize("own", [None, 0.4])
def test_the_heads_dropout_is_the_configured_one(own):
    for kind in (IbBertForSequenceClassification, IbBertForTokenClassification):
        assert kind(config(hidden_dropout_prob=0.2, classifier_dropout=own)).dropout.p == (own or 0.2)


@torch.no_grad()
def test_an_encoder_opens_from_a_pre_training_folder(tmp_path):
    model = tiny()
    model.save_pretrained(tmp_path)
    states = IbBertModel.from_pretrained(tmp_path).eval()(**inputs()).last_hidden_state
    assert torch.equal(states, model.mobilebert(**inputs()).last_hidden_state)
    logits = IbBertForMaskedLM.from_pretrained(tmp_path).eval()(**inputs()).logits
    assert torch.equal(logits, model(**inputs()).prediction_logits)


def test_weights_start_as_configured_and_from_the_seed():
    torch.manual_seed(5)
    first = IbBertModel(config())
    torch.manual_seed(5)
    second = IbBertModel(config())
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    for module in first.modules():
        if isinstance(module, torch.nn.LayerNorm):
            assert module.eps == 1e-12
        elif isinstance(module, torch.nn.Linear):
            assert 0.1 < float(module.weight.detach().std()) < 0.3  # initializer_range 0.2


def test_other_architectures_are_refused_all_at_once():
    with pytest.raises(InputError) as caught:
        config(key_query_shared_bottleneck=True, use_bottleneck_attention=True, intra_bottleneck_size=30)
    assert len(caught.value.problems) == 3


# --- names of the original checkpoints --------------------------------------------------------------------------------


def original_variables(c: Any) -> dict[str, tuple[int, ...]]:
    """Names and shapes that the original code's variable scopes make for a configuration."""
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


def tiny_mobilebert() -> Any:
    names = ("vocab_size", "hidden_size", "num_hidden_layers", "embedding_size")
    sizes = {name: value for name, value in config().to_dict().items() if name in names}
    stock = transformers.MobileBertConfig(**sizes, intra_bottleneck_size=12, classifier_activation=False)
    return transformers.MobileBertForPreTraining(stock)


@pytest.mark.parametrize("build", [tiny, tiny_mobilebert])
def test_original_checkpoints_fill_the_models_also_from_a_folder(build, tmp_path):
    model = build()
    state = {name: torch.randn(shape) for name, shape in original_variables(model.config).items()}
    kernel = "bert/encoder/layer_1/attention/output/dense/kernel"
    slots = {f"{kernel}/adam_m": state[kernel], f"{kernel}/adam_v": state[kernel], "global_step": torch.ones(1)}
    model.load_state_dict(rename_weights(state | slots), strict=True)
    model.config.save_pretrained(tmp_path)
    save_file(state, tmp_path / "model.safetensors")
    opened = load_model(open_model_folder(str(tmp_path)), TASKS[TaskName.FILL_MASK])
    word = state["bert/embeddings/word_embeddings"]
    scale = next(v for k, v in state.items() if k.startswith("bert/embeddings/") and k.endswith("gamma"))
    for ours in (model.state_dict(), opened.state_dict()):
        # square, so that no shape would tell
        assert torch.equal(ours["mobilebert.encoder.layer.1.attention.output.dense.weight"], state[kernel].T)
        assert torch.equal(ours["cls.predictions.decoder.weight"], word)
        assert torch.equal(ours["mobilebert.embeddings.LayerNorm.weight"], scale)
    pairs = model.state_dict()["cls.seq_relationship.weight"]
    assert torch.equal(pairs, state["cls/seq_relationship/output_weights"])


def test_all_unknown_variables_are_named():
    with pytest.raises(InputError) as caught:
        rename_weights({"output_weights": torch.zeros(1), "another": torch.zeros(1)})
    assert [p.where for p in caught.value.problems] == ["output_weights", "another"]


def is_known(name: str) -> bool:
    try:
        return bool(rename_weights({name: torch.zeros(1, 1)}))
    except InputError as error:
        assert [p.where for p in error.problems] == [name]
        return False


@settings(max_examples=25)
@given(st.data())
def test_no_other_name_is_taken(data):
    known = sorted(original_variables(config()))
    parts = data.draw(st.sampled_from(known)).split("/")
    place = data.draw(st.integers(0, len(parts) - 1))
    other = "/".join([*parts[:place], data.draw(st.text("adeklnrs/_0", max_size=8)), *parts[place + 1 :]])
    assert is_known(other) == (other in known)


@pytest.mark.parametrize(
    "name",
    [
        "bert/embeddings/embedding_transformation/gamma",
        "bert/embeddings/word_embeddings/kernel",
        "bert/encoder/layer_0/attention/self/query/MobileBertWeightFakeQuantWithMinMaxVars/min",
        "bert/encoder/layer_0/attention/self/LayerNorm/gamma",
        "bert/encoder/layer_0/ffn_layer_0/attention/output/dense/kernel",
        "cls/squad/output_weights",
    ],
)
def test_variables_of_other_checkpoints_are_not_taken(name):
    assert not is_known(name)
