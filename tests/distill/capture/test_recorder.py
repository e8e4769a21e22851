from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.families import find_family
from pocketbert.distill.capture import AttentionRecorder, query_width, record_attention
from pocketbert.distill.capture.record import records_attention
from pocketbert.distill.capture.recorder import active_recorder
from support.tiny import GRAPHS

Opened = tuple[Any, Any, dict[str, Tensor]]
Open = Callable[[str], Opened]

THROUGH_INTERFACE = [f for f in GRAPHS if find_family(f).capture == "attention-interface"]
REPRESENTATIVES = (
    *("bert", "mobilebert", "albert", "deberta", "deberta-v2", "xlm", "xlnet", "longformer", "ernie-thu", "mpnet"),
)
"""Of each capture, and of layers with bottlenecks, that are shared, or that are spread over several lists."""


@pytest.fixture
def opened(open_tiny) -> Open:
    """`opened(family)`: a tiny 3-layer model, its family, and a padded batch."""

    def open_family(name: str) -> Opened:
        model, folder, tokenizer = open_tiny(name, 3)
        batch = tokenizer.pad(tokenizer.encode(list(SENTENCES[:5])))
        return model, folder.family, {name: torch.from_numpy(batch[name]) for name in folder.family.inputs}

    return open_family


@pytest.mark.parametrize("name", THROUGH_INTERFACE)
def test_attention_is_recorded_in_a_process_that_switched_no_other_family(name, opened, monkeypatch):
    """transformers keeps on a class, and so for those derived from it, whether its attention can be switched."""
    model, family, _ = opened(name)
    kept = "_can_set_attn_implementation_cached_value"
    for kind in {kind for module in model.modules() for kind in type(module).__mro__}:
        if kept in vars(kind):
            monkeypatch.delattr(kind, kept)
    record_attention(model, family, ())
    assert records_attention(model)


@torch.no_grad()
@pytest.mark.parametrize("name", REPRESENTATIVES)
def test_recording_changes_no_output_and_is_done_for_the_wanted_layers_alone(name, opened):
    """`tests/families/test_table.py` compares the scores of every family with those of eager attention."""
    model, family, inputs = opened(name)
    real = inputs["attention_mask"].bool()
    rows, length = real.shape
    model.set_attn_implementation("sdpa")
    expected = model(**inputs, output_hidden_states=True)
    for layers in ((), (1,), (0, 1, 2)):
        recorder = record_attention(model, family, layers, stop=not layers)  # which ends nothing
        for _ in range(2):
            with recorder:
                made = model(**inputs, output_hidden_states=True)
            assert tuple(sorted(recorder.scores)) == layers
            assert {scores.shape for scores in recorder.scores.values()} <= {(rows, 4, length, length)}
        torch.testing.assert_close(made.logits, expected.logits, rtol=1e-5, atol=1e-5)
        for a, b in zip(made.hidden_states, expected.hidden_states, strict=True):
            scale = float(b.abs().max())
            torch.testing.assert_close(a[real] / scale, b[real] / scale, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(model(**inputs).logits, expected.logits, rtol=1e-5, atol=1e-5)


def loss_of(recorder: AttentionRecorder) -> Tensor:
    parts = [s.softmax(-1).square().sum() for s in recorder.scores.values()]
    parts += [(v.query * v.key).sum() + v.value.square().sum() for v in recorder.relations.values()]
    return torch.stack(parts).sum()


def learn_from_capture(opened: Opened, layers: tuple[int, ...], relations: tuple[int, ...], stop: bool) -> Any:
    """The loss of what is recorded, and its gradients by name."""
    model, family, inputs = opened
    model.zero_grad()
    torch.manual_seed(3)
    with record_attention(model, family, layers, relations, stop=stop) as recorder:
        model(**inputs)
        assert not stop, "nothing behind the pass is reached"
    assert (tuple(sorted(recorder.scores)), tuple(sorted(recorder.relations))) == (layers, relations)
    loss = loss_of(recorder)
    loss.backward()
    return loss.detach(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(
    ("name", "layers", "relations", "dropout"),
    [
        *(pytest.param(name, (0, 2), (1,), 0.4, id=name) for name in GRAPHS),
        *(pytest.param(name, (), (1,), 0.4, id=f"{name} relations") for name in REPRESENTATIVES),
        pytest.param("bert", (1,), (), 0.0, id="bert without dropout"),
        pytest.param("bert", (2,), (2,), 0.4, id="bert to the end"),
    ],
)
def test_a_pass_that_ends_early_gives_the_losses_and_gradients_of_a_whole_one(name, layers, relations, dropout, opened):
    model, family, inputs = opened(name)
    for module in model.train().modules():
        if isinstance(module, nn.Dropout):
            module.p = dropout
    (whole, wanted), (early, found) = (
        learn_from_capture((model, family, inputs), layers, relations, stop) for stop in (False, True)
    )
    assert torch.equal(whole, early)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(gradient, wanted[key]) for key, gradient in found.items())
    stored = model.get_submodule(family.layer_path)
    assert any(p.grad is not None and p.grad.abs().max() > 0 for p in stored[0].parameters())
    if len(stored) > 1 and max(layers + relations) < 2:  # else the later runs are of the same layer
        assert all(p.grad is None for p in stored[2].parameters())


@torch.no_grad()
@pytest.mark.parametrize("name", THROUGH_INTERFACE)
def test_queries_keys_and_values_are_those_of_the_projections(name, opened):
    model, family, inputs = opened(name)
    projected: dict[str, list[Tensor]] = {}
    for path, module in model.get_submodule(family.layer_path).named_modules():
        kind = path.rpartition(".")[2].removesuffix("_lin")
        if isinstance(module, nn.Linear) and kind in ("query", "key", "value", "q", "k", "v"):
            module.register_forward_hook(lambda m, a, out, k=kind[0]: projected.setdefault(k, []).append(out))
    with record_attention(model, family, (1, 2), relations=(0, 2)) as recorder:
        model(**inputs)
    assert (sorted(recorder.scores), sorted(recorder.relations)) == ([1, 2], [0, 2])
    for layer, found in recorder.relations.items():
        for kind in ("query", "key", "value"):
            value = getattr(found, kind)
            assert value.shape == (5, 4, inputs["input_ids"].shape[1], query_width(model.config) // 4)
            if projected:  # what a fused projection makes is looked at in tests/families
                assert torch.equal(value.transpose(1, 2).flatten(2), projected[kind[0]][layer])


@torch.no_grad()
@pytest.mark.parametrize("stop", [False, True])
def test_models_are_recorded_apart_even_where_the_inner_pass_ends_early(stop, open_tiny):
    teacher, folder, tokenizer = open_tiny("bert", 3)
    student, *_ = open_tiny("bert", 2)
    inputs = {k: torch.from_numpy(v) for k, v in tokenizer.pad(tokenizer.encode(["good film", "bad"])).items()}
    with record_attention(teacher, folder.family, range(3)) as theirs:
        with record_attention(student, folder.family, (), [0], stop=stop) as ours:
            student(**inputs)
        teacher(**inputs)
    assert (len(theirs.scores), list(ours.relations)) == (3, [0])


# --- what goes wrong ----------------------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize(("stop", "until"), [(False, ""), (True, " and was to end in layer 1")])
def test_a_model_that_does_not_use_the_interface_is_an_error(stop, until, opened):
    model, family, inputs = opened("bert")
    recorder = record_attention(model, family, [1], stop=stop)
    model.set_attn_implementation("sdpa")
    with pytest.raises(RuntimeError, match=f"captured 0 times, the model has 3 layers{until}"), recorder:
        model(**inputs)
    assert not recorder.scores


@torch.no_grad()
@pytest.mark.parametrize("name", REPRESENTATIVES)
def test_two_passes_or_none_are_an_error(name, opened):
    model, family, inputs = opened(name)
    recorder = record_attention(model, family, range(3))
    with pytest.raises(RuntimeError, match="captured 6 times"), recorder:
        model(**inputs)
        model(**inputs)
    with pytest.raises(RuntimeError, match="captured 0 times"), recorder:
        pass


@torch.no_grad()
@pytest.mark.parametrize("stop", [False, True])
def test_after_another_error_nothing_is_hidden_or_left(stop, opened):
    model, family, inputs = opened("bert")
    recorder = record_attention(model, family, [0], [0, 2], stop=stop)

    def break_off(*_: object) -> None:
        raise ZeroDivisionError

    handle = model.get_submodule(family.layer_path)[1].register_forward_hook(break_off)
    with pytest.raises(ZeroDivisionError), recorder:
        model(**inputs)
    assert not recorder.scores and not recorder.relations and active_recorder() is None
    handle.remove()
    with recorder:
        model(**inputs)
    assert (sorted(recorder.scores), sorted(recorder.relations)) == ([0], [0, 2])
