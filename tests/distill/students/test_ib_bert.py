from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pocketbert.core.errors import InputError
from pocketbert.core.families import family_of
from pocketbert.distill.capture import query_width, record_attention
from pocketbert.distill.students.build import parameter_count
from pocketbert.distill.students.ib_bert.config import IbBertConfig
from pocketbert.distill.students.ib_bert.model import (
    IbBertForMaskedLM,
    IbBertForPreTraining,
    IbBertForQuestionAnswering,
    IbBertForSequenceClassification,
    IbBertForTokenClassification,
    IbBertModel,
)
from pocketbert.distill.students.ib_bert.names import new_name, renamed

DEPTH, HEADS, WIDTH, INSIDE, EMBEDDING, VOCABULARY = 3, 4, 24, 32, 6, 50
IDS = torch.tensor([[2, 11, 12, 13, 14, 3, 15, 3], [2, 21, 22, 3, 0, 0, 0, 0]])
TYPES = torch.tensor([[0, 0, 0, 0, 0, 0, 1, 1], [0] * 8])
MASK = (IDS != 0).long()


def config(**changes: Any) -> IbBertConfig:
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "num_hidden_layers": DEPTH,
        "num_attention_heads": HEADS,
        "intra_bottleneck_size": INSIDE,
        "intermediate_size": 40,
        "embedding_size": EMBEDDING,
        "max_position_embeddings": 20,
        "initializer_range": 0.2,
    }
    return IbBertConfig(**{**sizes, **changes})


def tiny(kind: Any = IbBertForPreTraining, seed: int = 0, **changes: Any) -> Any:
    """A model in eval mode whose norms, biases and pad row are no identities."""
    torch.manual_seed(seed)
    model = kind(config(**changes))
    with torch.no_grad():
        for value in model.parameters():
            value.add_(torch.randn_like(value) * 0.1)
    return model.eval()


def inputs(**changes: Tensor) -> dict[str, Tensor]:
    return {"input_ids": IDS, "attention_mask": MASK, "token_type_ids": TYPES} | changes


@pytest.mark.parametrize(
    ("kind", "arguments", "parameters"),
    [
        (IbBertModel, {"add_pooling_layer": False}, 294_205_184),
        (IbBertModel, {}, 294_205_184 + 512 * 512 + 512),
        (IbBertForMaskedLM, {}, 294_205_184 + 512 * 512 + 3 * 512 + 30522 * (512 - 128) + 30522),
    ],
)
def test_ib_bert_large_has_its_size(kind: Any, arguments: dict[str, bool], parameters: int) -> None:
    with torch.device("meta"):
        model = kind(IbBertConfig(), **arguments)
    assert parameter_count(model) == parameters
    assert query_width(model.config) == 4 * 256


def normed(x: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    scaled = (x - mean) / ((x - mean).square().mean(-1, keepdim=True) + 1e-12).sqrt()
    return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def dense(x: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def embedded(weights: dict[str, Tensor], row: Tensor, types: Tensor) -> Tensor:
    """Section 3.1 of the paper, one token at a time."""
    table, prefix, out = weights["mobilebert.embeddings.word_embeddings.weight"], "mobilebert.embeddings.", []
    nothing = torch.zeros(EMBEDDING, dtype=torch.float64)
    for t, token in enumerate(row.tolist()):
        after = table[row[t + 1]] if t + 1 < len(row) else nothing
        before = table[row[t - 1]] if t else nothing
        x = dense(torch.cat([after, table[token], before]), weights, f"{prefix}embedding_transformation")
        x = x + weights[f"{prefix}token_type_embeddings.weight"][types[t]]
        out.append(x + weights[f"{prefix}position_embeddings.weight"][t])
    return normed(torch.stack(out), weights, f"{prefix}LayerNorm")


def block(weights: dict[str, Tensor], number: int, x: Tensor, real: Tensor) -> Tensor:
    """One block on one row [S, inter-block width], head by head and query by query."""
    w = {k.removeprefix(f"mobilebert.encoder.layer.{number}."): v for k, v in weights.items()}
    inner = normed(dense(x, w, "bottleneck.input.dense"), w, "bottleneck.input.LayerNorm")
    query, key, value = (dense(x, w, f"attention.self.{name}") for name in ("query", "key", "value"))
    size, context = INSIDE // HEADS, torch.zeros(len(x), INSIDE, dtype=torch.float64)
    for head in range(HEADS):
        part = slice(head * size, (head + 1) * size)
        for t in range(len(x)):
            scores = key[real, part] @ query[t, part] / math.sqrt(size)
            weight = (scores - scores.max()).exp()
            context[t, part] = (weight / weight.sum()) @ value[real, part]
    inner = normed(dense(context, w, "attention.output.dense") + inner, w, "attention.output.LayerNorm")
    wide = dense(inner, w, "intermediate.dense")
    wide = 0.5 * wide * (1 + torch.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)))
    inner = normed(dense(wide, w, "output.dense") + inner, w, "output.LayerNorm")
    return normed(dense(inner, w, "output.bottleneck.dense") + x, w, "output.bottleneck.LayerNorm")


@torch.no_grad()
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_forward_is_the_papers(attention: str) -> None:
    model = tiny().double()
    model.set_attn_implementation(attention)
    states = model(**inputs(), output_hidden_states=True).hidden_states
    assert len(states) == DEPTH + 1
    weights = dict(model.state_dict())
    for row, (ids, types, mask) in enumerate(zip(IDS, TYPES, MASK, strict=True)):
        real = mask.bool()
        x = embedded(weights, ids, types)
        torch.testing.assert_close(states[0][row], x, rtol=1e-9, atol=1e-9)
        for layer in range(DEPTH):
            x = block(weights, layer, x, real)
            assert x.shape == (8, WIDTH)
            torch.testing.assert_close(states[layer + 1][row][real], x[real], rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_heads_read_the_last_block() -> None:
    model = tiny().double()
    made = model(**inputs(), output_hidden_states=True)
    weights, last = dict(model.state_dict()), made.hidden_states[-1]
    pooled = torch.tanh(dense(last[:, 0], weights, "mobilebert.pooler.dense"))
    torch.testing.assert_close(made.seq_relationship_logits, dense(pooled, weights, "cls.seq_relationship"))
    x = torch.nn.functional.gelu(dense(last, weights, "cls.predictions.transform.dense"), approximate="tanh")
    x = normed(x, weights, "cls.predictions.transform.LayerNorm")
    table = weights["mobilebert.embeddings.word_embeddings.weight"]
    logits = x[..., :EMBEDDING] @ table.T + x[..., EMBEDDING:] @ weights["cls.predictions.dense.weight"]
    torch.testing.assert_close(made.prediction_logits, logits + weights["cls.predictions.bias"])


@pytest.fixture(scope="module")
def encoder() -> Any:
    return tiny(IbBertModel, 3)


@torch.no_grad()
@settings(max_examples=15)
@given(more=st.integers(1, 10), filler=st.integers(0, VOCABULARY - 1))
def test_further_padding_changes_no_real_token(encoder: Any, more: int, filler: int) -> None:
    model = encoder
    row, mask = IDS[1:, :5], MASK[1:, :5]
    wide = torch.nn.functional.pad(row, (0, more), value=filler)
    short = model(row, mask, output_hidden_states=True).hidden_states
    long = model(wide, torch.nn.functional.pad(mask, (0, more)), output_hidden_states=True).hidden_states
    for a, b in zip(short, long, strict=True):
        torch.testing.assert_close(a[:, :4], b[:, :4], rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_the_first_pad_is_seen_by_its_neighbour_as_in_mobilebert() -> None:
    ours = tiny(IbBertModel).embeddings
    theirs = transformers.MobileBertModel(
        transformers.MobileBertConfig(
            vocab_size=VOCABULARY,
            hidden_size=WIDTH,
            embedding_size=EMBEDDING,
            num_hidden_layers=1,
            intra_bottleneck_size=8,
        )
    ).embeddings
    theirs.word_embeddings.weight[0] = 0.3
    for embeddings in (ours, theirs):
        bare, padded = embeddings(IDS[1:, :4]), embeddings(IDS[1:, :5])[:, :4]
        torch.testing.assert_close(bare[:, :3], padded[:, :3])
        assert not torch.allclose(bare[:, 3], padded[:, 3])
        embeddings.word_embeddings.weight[0] = 0.0
        torch.testing.assert_close(embeddings(IDS[1:, :4]), embeddings(IDS[1:, :5])[:, :4])


def test_every_weight_learns() -> None:
    model = tiny().train()
    labels = torch.where(IDS == 12, 17, -100)
    made = model(**inputs(), labels=labels, next_sentence_label=torch.tensor([0, 1]))
    made.loss.backward()
    for name, value in model.named_parameters():
        assert value.grad is not None, name
        assert value.grad.isfinite().all(), name
        # a constant added to all scores of a row changes no softmax
        assert name.endswith("attention.self.key.bias") or value.grad.abs().sum() > 0, name


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
def test_a_saved_folder_opens_bit_equal(kind: Any, auto: Any, tmp_path: Path) -> None:
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


@torch.no_grad()
def test_task_heads_read_the_last_block() -> None:
    kinds = (IbBertForSequenceClassification, IbBertForTokenClassification, IbBertForQuestionAnswering)
    one, each, answer = (tiny(kind).double() for kind in kinds)
    made = one(**inputs())
    pooled = one.mobilebert(**inputs()).pooler_output
    torch.testing.assert_close(made.logits, dense(pooled, dict(one.state_dict()), "classifier"))
    last = each.mobilebert(**inputs()).last_hidden_state
    torch.testing.assert_close(each(**inputs()).logits, dense(last, dict(each.state_dict()), "classifier"))
    both = dense(answer.mobilebert(**inputs()).last_hidden_state, dict(answer.state_dict()), "qa_outputs")
    found = answer(**inputs())
    torch.testing.assert_close(torch.stack([found.start_logits, found.end_logits], -1), both)


@pytest.mark.parametrize("own", [None, 0.4])
def test_the_heads_dropout_is_the_configured_one(own: float | None) -> None:
    for kind in (IbBertForSequenceClassification, IbBertForTokenClassification):
        assert kind(config(hidden_dropout_prob=0.2, classifier_dropout=own)).dropout.p == (own or 0.2)


@torch.no_grad()
def test_an_encoder_opens_from_a_pre_training_folder(tmp_path: Path) -> None:
    model = tiny()
    model.save_pretrained(tmp_path)
    states = IbBertModel.from_pretrained(tmp_path).eval()(**inputs()).last_hidden_state
    assert torch.equal(states, model.mobilebert(**inputs()).last_hidden_state)
    logits = IbBertForMaskedLM.from_pretrained(tmp_path).eval()(**inputs()).logits
    assert torch.equal(logits, model(**inputs()).prediction_logits)


def test_weights_start_as_configured_and_from_the_seed() -> None:
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


@torch.no_grad()
def test_capture_records_every_layer() -> None:
    model = tiny(IbBertForMaskedLM)
    family = family_of("ib_bert")
    model.set_attn_implementation("eager")
    maps = model(**inputs(), output_attentions=True).attentions
    expected = model(**inputs()).logits
    with record_attention(model, family, range(DEPTH), range(DEPTH)) as recorder:
        found = model(**inputs()).logits
    real = MASK.bool()
    torch.testing.assert_close(found[real], expected[real])
    assert sorted(recorder.scores) == sorted(recorder.relations) == list(range(DEPTH)) == list(range(len(maps)))
    for layer, wanted in enumerate(maps):
        torch.testing.assert_close(
            recorder.scores[layer].softmax(-1).transpose(1, 2)[real], wanted.transpose(1, 2)[real]
        )
        assert recorder.relations[layer].query.shape == (2, HEADS, 8, INSIDE // HEADS)


def test_other_architectures_are_refused_all_at_once() -> None:
    with pytest.raises(InputError) as caught:
        config(key_query_shared_bottleneck=True, use_bottleneck_attention=True, intra_bottleneck_size=30)
    assert len(caught.value.problems) == 3


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
    found = renamed(state | slots)
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
    assert (new_name(other) is None) == (other not in known)


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
        renamed({name: torch.zeros(1), "another": torch.zeros(1)})
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
