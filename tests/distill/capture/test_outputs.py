"""Passes of which a part is needed: the logits of selected tokens, and the outputs of chosen layers."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pocketbert.core.errors import InputError
from pocketbert.distill.capture.outputs import LayerOutputs, LmHead, flat_indices
from support.tiny import PRETRAINED

MODELS = [("bert", "AutoModelForMaskedLM"), *((family, "AutoModelForPreTraining") for family in PRETRAINED)]
"""`tests/families/test_table.py` has the heads of all other families."""
PATH = "bert.encoder.layer"
IDS = torch.arange(1, 7)[None]


@pytest.fixture
def model(make_classifier) -> Any:
    return make_classifier("bert", 4, (), auto_class="AutoModelForMaskedLM")


def make_batch() -> dict[str, Tensor]:
    ids = torch.randint(5, 100, (3, 7), generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[1] * 7, [1] * 4 + [0] * 3, [1] * 6 + [0]])
    return {"input_ids": ids, "attention_mask": mask}


# --- heads over selected tokens ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("family", "auto_class"), MODELS)
@torch.no_grad()
def test_selected_logits_and_last_states_are_the_models_own(family, auto_class, make_classifier):
    class Wrapper(nn.Module):
        """As a data-parallel wrapper: another module around the model."""

        def forward(self, **inputs: Any) -> Any:
            return model(**inputs)

    model = make_classifier(family, 2, ("a", "b"), auto_class=auto_class)
    inputs = make_batch()
    whole = model(**inputs, output_hidden_states=True)
    logits = whole.logits if "logits" in whole else whole.prediction_logits
    head = LmHead(model, "teacher")
    selected = flat_indices(inputs["attention_mask"])
    for caller in (model, Wrapper()):
        made = head.run(caller, inputs, selected)
        torch.testing.assert_close(made.logits, logits[inputs["attention_mask"] == 1], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(made.hidden, whole.hidden_states[-1])
        assert head.has_next_sentence == (made.next_sentence is not None) == (auto_class == "AutoModelForPreTraining")
        if made.next_sentence is not None:
            torch.testing.assert_close(made.next_sentence, whole.seq_relationship_logits)
    assert head.run(model, inputs, selected[:0]).logits.shape == (0, logits.shape[-1])
    assert model(**inputs)[0].shape == logits.shape, "the hook is gone"


def test_a_model_without_a_head_over_words_is_refused(make_classifier):
    with pytest.raises(InputError, match=r"teacher: BertForSequenceClassification has no known .*BertForMaskedLM"):
        LmHead(make_classifier("bert", 1, ("a", "b")), "teacher")


# --- outputs of layers ------------------------------------------------------------------------------------------------


def test_outputs_are_the_hidden_states(model):
    with LayerOutputs(model, PATH, [2, 0]) as outputs:
        made = model(IDS, output_hidden_states=True)
    assert sorted(outputs.states) == [0, 2]
    assert all(torch.equal(state, made.hidden_states[number + 1]) for number, state in outputs.states.items())
    with LayerOutputs(model.bert, PATH, [3], stop=True) as outputs:  # a bare encoder has a shorter path
        model.bert(IDS)
    torch.testing.assert_close(outputs.states[3], made.hidden_states[4])


def test_the_pass_ends_behind_the_last_layer_with_the_same_states_and_gradients(model):
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


def test_an_error_inside_leaves_nothing_and_is_not_swallowed(model):
    outputs = LayerOutputs(model, PATH, [0])
    with pytest.raises(KeyError), outputs:
        model(IDS)
        raise KeyError("mine")
    assert outputs.states == {}
    assert not any(layer._forward_hooks for layer in model.bert.encoder.layer)
