from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.families import family_of, find_family
from pocketbert.distill.capture import AttentionRecorder, query_width, record_attention
from pocketbert.distill.capture.record import records_attention
from pocketbert.distill.capture.recorder import active_recorder
from support.tiny import ENTRIES, GRAPHS

Opened = tuple[Any, Any, dict[str, Tensor]]
Open = Callable[[str], Opened]

THROUGH_INTERFACE = [f for f in GRAPHS if find_family(f).capture == "attention-interface"]
REPRESENTATIVES = (
    *("bert", "mobilebert", "albert", "deberta", "deberta-v2", "xlm", "xlnet", "longformer", "ernie-thu", "mpnet"),
)
"""Of each capture, and of layers with bottlenecks, that are shared, or that are spread over several lists."""
NARROW = {"mobilebert": 16, "ib-bert": 48}
"""Widths of queries within a bottleneck, and within blocks that widen."""


@pytest.fixture
def opened(open_tiny: Callable[..., Any]) -> Open:
    """`opened(family)`: a tiny 3-layer model, its family, and a padded batch."""

    def open_family(name: str) -> Opened:
        model, folder, tokenizer = open_tiny(name, 3)
        batch = tokenizer.pad(tokenizer.encode(list(SENTENCES[:5])))
        return model, folder.family, {name: torch.from_numpy(batch[name]) for name in folder.family.inputs}

    return open_family


@pytest.mark.parametrize("name", THROUGH_INTERFACE)
def test_attention_is_recorded_in_a_process_that_switched_no_other_family(
    name: str, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers keeps on a class, and so for those derived from it, whether its attention can be switched."""
    model, family, _ = opened(name)
    kept = "_can_set_attn_implementation_cached_value"
    for kind in {kind for module in model.modules() for kind in type(module).__mro__}:
        if kept in vars(kind):
            monkeypatch.delattr(kind, kept)
    record_attention(model, family, ())
    assert records_attention(model)


@torch.no_grad()
@pytest.mark.parametrize("name", GRAPHS)
def test_captured_scores_are_those_of_eager_attention_and_no_output_changes(name: str, opened: Open) -> None:
    model, family, inputs = opened(name)
    real = inputs["attention_mask"].bool()
    rows, length = real.shape
    model.set_attn_implementation("sdpa")
    expected = model(**inputs, output_hidden_states=True)
    model.set_attn_implementation("eager")
    maps = model(**inputs, output_attentions=True).attentions
    for layers in ((), (1,), (0, 1, 2)):
        recorder = record_attention(model, family, layers, stop=not layers)  # which ends nothing
        for _ in range(2):
            with recorder:
                made = model(**inputs, output_hidden_states=True)
            assert tuple(sorted(recorder.scores)) == layers
        torch.testing.assert_close(made.logits, expected.logits, rtol=1e-5, atol=1e-5)
        for a, b in zip(made.hidden_states, expected.hidden_states, strict=True):
            scale = float(b.abs().max())
            torch.testing.assert_close(a[real] / scale, b[real] / scale, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(model(**inputs).logits, expected.logits, rtol=1e-5, atol=1e-5)
    for layer, scores in recorder.scores.items():
        assert scores.shape == (rows, 4, length, length)
        shares = scores.softmax(-1).transpose(1, 2)[real]
        assert float(shares.masked_select(~real.repeat_interleave(real.sum(1), 0)[:, None]).max()) == 0.0
        if ENTRIES[name].all_pairs:  # else transformers returns windows; the test of the family compares them
            own = maps[layer] if ENTRIES[name].probabilities else maps[layer].softmax(-1)
            torch.testing.assert_close(shares, own.transpose(1, 2)[real], rtol=0, atol=1e-5)


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
        *((name, (0, 2), (1,), 0.4) for name in GRAPHS),
        *((name, (1,), (), 0.0) for name in REPRESENTATIVES),
        *((name, (), (1,), 0.4) for name in REPRESENTATIVES),
        ("bert", (2,), (2,), 0.4),
    ],
)
def test_a_pass_that_ends_early_gives_the_losses_and_gradients_of_a_whole_one(
    name: str, layers: tuple[int, ...], relations: tuple[int, ...], dropout: float, opened: Open
) -> None:
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
@pytest.mark.parametrize("name", REPRESENTATIVES)
def test_nothing_behind_the_last_wanted_layer_runs_or_is_kept(name: str, opened: Open) -> None:
    model, family, inputs = opened(name)
    # where a layer is spread over several lists, the first begins it
    begins = model.get_submodule((family.layer_lists or (family.layer_path,))[0])
    layers, ran, states = model.get_submodule(family.layer_path), [], list[weakref.ref[Tensor]]()
    for number, (begin, end) in enumerate(zip(begins, layers, strict=True)):
        begin.register_forward_pre_hook(lambda *_, n=number: ran.append(f"begins {n}"))
        end.register_forward_hook(lambda *_, n=number: ran.append(f"ends {n}"))
    layers[0].register_forward_hook(
        lambda m, a, out: states.append(weakref.ref(out if isinstance(out, Tensor) else out[0]))
    )
    recorder = record_attention(model, family, (), [1], stop=True)
    gc.disable()
    try:
        for _ in range(2):
            with recorder:
                model(**inputs)
        assert [state() for state in states] == [None, None]
    finally:
        gc.enable()
    second = min(1, len(layers) - 1)  # the same layer again where layers share their weights
    assert ran == ["begins 0", "ends 0", f"begins {second}"] * 2
    assert active_recorder() is None
    assert len(model(**inputs, output_hidden_states=True).hidden_states) == 4


@torch.no_grad()
@pytest.mark.parametrize("name", THROUGH_INTERFACE)
def test_queries_keys_and_values_are_those_of_the_projections(name: str, opened: Open) -> None:
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


def test_widths_of_the_queries(make_classifier: Callable[..., Any]) -> None:
    widths = {f: query_width(make_classifier(f, 1, ("a", "b")).config) for f in GRAPHS}
    assert widths == {f: NARROW.get(f, 32) for f in GRAPHS}


@torch.no_grad()
def test_a_layer_asked_for_its_queries_alone_computes_no_map(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    model, family, inputs = opened("bert")
    recorder, seen = record_attention(model, family, (), relations=range(3)), []
    fused = torch.nn.functional.scaled_dot_product_attention

    def counted(*arguments: Any, **named: Any) -> Tensor:
        seen.append(1)
        return fused(*arguments, **named)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", counted)
    with recorder:
        model(**inputs)
    assert len(seen) == 3


@torch.no_grad()
@pytest.mark.parametrize("stop", [False, True])
def test_a_shared_layer_is_told_apart_by_the_order_of_its_calls(stop: bool) -> None:
    sizes = {"embedding_size": 16, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}
    model = transformers.AlbertModel(transformers.AlbertConfig(vocab_size=60, num_hidden_layers=4, **sizes)).eval()
    with record_attention(model, family_of("bert"), [0, 2], [1, 2], stop=stop) as recorder:
        model(torch.arange(12).reshape(2, 6))
    assert (sorted(recorder.scores), sorted(recorder.relations)) == ([0, 2], [1, 2])
    found = recorder.relations[2]
    torch.testing.assert_close(recorder.scores[2], found.query @ found.key.transpose(2, 3) / 8**0.5)
    assert not torch.allclose(recorder.relations[1].query, found.query)


@torch.no_grad()
@pytest.mark.parametrize("stop", [False, True])
def test_models_are_recorded_apart_even_where_the_inner_pass_ends_early(
    stop: bool, open_tiny: Callable[..., Any]
) -> None:
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
def test_a_model_that_does_not_use_the_interface_is_an_error(stop: bool, until: str, opened: Open) -> None:
    model, family, inputs = opened("bert")
    recorder = record_attention(model, family, [1], stop=stop)
    model.set_attn_implementation("sdpa")
    with pytest.raises(RuntimeError, match=f"captured 0 times, the model has 3 layers{until}"), recorder:
        model(**inputs)
    assert not recorder.scores


@torch.no_grad()
@pytest.mark.parametrize("name", REPRESENTATIVES)
def test_two_passes_or_none_are_an_error(name: str, opened: Open) -> None:
    model, family, inputs = opened(name)
    recorder = record_attention(model, family, range(3))
    with pytest.raises(RuntimeError, match="captured 6 times"), recorder:
        model(**inputs)
        model(**inputs)
    with pytest.raises(RuntimeError, match="captured 0 times"), recorder:
        pass


@torch.no_grad()
@pytest.mark.parametrize("stop", [False, True])
def test_after_another_error_nothing_is_hidden_or_left(stop: bool, opened: Open) -> None:
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


@pytest.mark.parametrize(("layers", "relations"), [([3], []), ([], [-1])])
def test_layers_that_the_model_does_not_have_are_refused(layers: list[int], relations: list[int], opened: Open) -> None:
    model, family, _ = opened("bert")
    with pytest.raises(ValueError, match=r"no layers \[(3|-1)\] in a model of 3 layers, 0 to 2"):
        record_attention(model, family, layers, relations)
