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
from pocketbert.distill.students.ib_bert import (
    IbBertConfig,
    IbBertForMaskedLM,
    IbBertForPreTraining,
    IbBertForQuestionAnswering,
    IbBertForSequenceClassification,
    IbBertForTokenClassification,
    IbBertModel,
)
from support.counting import parameter_count
from support.ib_bert import DEPTH, EMBEDDING, HEADS, IDS, INSIDE, MASK, TYPES, VOCABULARY, WIDTH, config, tiny


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
