from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM

from pocketbert.core.families import family_of
from pocketbert.distill.capture import record_attention
from pocketbert.distill.capture.outputs import LayerOutputs
from pocketbert.distill.capture.recorder import AttentionRecorder

PATH = "bert.encoder.layer"


@pytest.fixture
def model() -> Any:
    torch.manual_seed(0)
    config = BertConfig(vocab_size=20, hidden_size=16, num_hidden_layers=4, num_attention_heads=2, intermediate_size=16)
    return BertForMaskedLM(config).eval()


IDS = torch.arange(1, 7)[None]


def test_outputs_are_the_hidden_states(model: Any) -> None:
    with LayerOutputs(model, PATH, [2, 0]) as outputs:
        made = model(IDS, output_hidden_states=True)
    assert sorted(outputs.states) == [0, 2]
    for number, state in outputs.states.items():
        assert torch.equal(state, made.hidden_states[number + 1])


def test_the_pass_ends_behind_the_last_layer_with_the_same_states_and_gradients(model: Any) -> None:
    ran: list[int] = []
    for number, layer in enumerate(model.bert.encoder.layer):
        layer.register_forward_pre_hook(lambda *_, n=number: ran.append(n))
    with LayerOutputs(model, PATH, [0, 1], stop=True) as outputs:
        model(IDS)
        raise AssertionError("the pass went on")
    assert ran == [0, 1]
    outputs.states[1].square().sum().backward()
    early = model.bert.embeddings.word_embeddings.weight.grad.clone()
    model.zero_grad()
    model(IDS, output_hidden_states=True).hidden_states[2].square().sum().backward()
    assert torch.equal(early, model.bert.embeddings.word_embeddings.weight.grad)


def test_a_bare_encoder_has_a_shorter_path(model: Any) -> None:
    with LayerOutputs(model.bert, PATH, [3], stop=True) as outputs:
        model.bert(IDS)
    assert outputs.states[3].shape == (1, 6, 16)


def test_scores_are_recorded_up_to_where_the_pass_ends(model: Any) -> None:
    record_attention(model, family_of("bert"), ())
    recorder, outputs = AttentionRecorder([1], 2), LayerOutputs(model, PATH, [1], stop=True)
    with recorder, outputs:
        model(IDS)
    assert recorder.scores[1].shape == (1, 2, 6, 6)


def test_an_error_inside_leaves_nothing_and_is_not_swallowed(model: Any) -> None:
    outputs = LayerOutputs(model, PATH, [0])
    with pytest.raises(KeyError), outputs:
        model(IDS)
        raise KeyError("mine")
    assert outputs.states == {}
    assert not any(layer._forward_hooks for layer in model.bert.encoder.layer)


def test_a_layer_that_does_not_run_is_noticed(model: Any) -> None:
    with (
        pytest.raises(RuntimeError, match=r"layers \[\] handed on a state, wanted were \[0\]"),
        LayerOutputs(model, PATH, [0]),
    ):
        pass


@pytest.mark.parametrize("wanted", [[4], [-1]])
def test_layers_that_are_not_there_are_refused(model: Any, wanted: list[int]) -> None:
    with pytest.raises(ValueError, match="which has 4"):
        LayerOutputs(model, PATH, wanted)
