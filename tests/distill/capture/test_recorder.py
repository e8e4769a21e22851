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
from pocketbert.distill.capture.recorder import active_recorder
from support.tiny import ENTRIES, GRAPHS

Opened = tuple[Any, Any, dict[str, Tensor]]


THROUGH_INTERFACE = [f for f in GRAPHS if find_family(f).capture == "attention-interface"]
NARROW = {"mobilebert": 16, "ib-bert": 48}
"""Widths of queries within a bottleneck, and within blocks that widen."""


@pytest.fixture(params=GRAPHS)
def opened(request: pytest.FixtureRequest, open_tiny: Callable[..., Any]) -> Opened:
    """A tiny 3-layer model, its family, and a padded batch."""
    return padded(request.param, open_tiny)


@pytest.fixture(params=THROUGH_INTERFACE)
def through_interface(request: pytest.FixtureRequest, open_tiny: Callable[..., Any]) -> Opened:
    """As `opened`, of the families that are captured through transformers' attention interface."""
    return padded(request.param, open_tiny)


def padded(name: str, open_tiny: Callable[..., Any]) -> Opened:
    model, folder, tokenizer = open_tiny(name, 3)
    batch = tokenizer.pad(tokenizer.encode(list(SENTENCES[:5])))
    return model, folder.family, {name: torch.from_numpy(batch[name]) for name in folder.family.inputs}


@torch.no_grad()
def test_every_layer_is_captured_once(opened: Opened) -> None:
    model, family, inputs = opened
    recorder = record_attention(model, family, range(3))
    for _ in range(2):
        with recorder:
            model(**inputs)
        assert sorted(recorder.scores) == [0, 1, 2]
    rows, length = inputs["input_ids"].shape
    assert all(s.shape == (rows, 4, length, length) for s in recorder.scores.values())


@torch.no_grad()
def test_captured_scores_are_those_of_eager_attention(opened: Opened) -> None:
    model, family, inputs = opened
    if not ENTRIES[family.name].all_pairs:
        pytest.skip("transformers returns attention within windows; the test of the family compares it")
    model.set_attn_implementation("eager")
    maps = model(**inputs, output_attentions=True).attentions
    assert len(maps) == 3
    with record_attention(model, family, range(3)) as recorder:
        model(**inputs)
    real = inputs["attention_mask"].bool()
    for layer, wanted in enumerate(maps):
        found = recorder.scores[layer].softmax(-1)
        torch.testing.assert_close(found.transpose(1, 2)[real], wanted.transpose(1, 2)[real], rtol=0, atol=1e-5)
        closed = found.transpose(1, 2)[real].masked_select(~real.repeat_interleave(real.sum(1), 0)[:, None])
        assert float(closed.max()) == 0.0


@torch.no_grad()
@pytest.mark.parametrize("layers", [(), (1,), (0, 1, 2)])
def test_capture_changes_no_output(opened: Opened, layers: tuple[int, ...]) -> None:
    model, family, inputs = opened
    model.set_attn_implementation("sdpa")
    wanted = model(**inputs, output_hidden_states=True)
    with record_attention(model, family, layers) as recorder:
        found = model(**inputs, output_hidden_states=True)
    assert tuple(sorted(recorder.scores)) == layers
    assert len(found.hidden_states) == 4
    torch.testing.assert_close(found.logits, wanted.logits, rtol=1e-5, atol=1e-5)
    real = inputs["attention_mask"].bool()
    for a, b in zip(found.hidden_states, wanted.hidden_states, strict=True):
        scale = float(b.abs().max())
        torch.testing.assert_close(a[real] / scale, b[real] / scale, rtol=1e-5, atol=1e-5)
    outside = model(**inputs)
    torch.testing.assert_close(outside.logits, wanted.logits, rtol=1e-5, atol=1e-5)


def test_gradients_flow_through_captured_scores(opened: Opened) -> None:
    model, family, inputs = opened
    with record_attention(model, family, [1]) as recorder:
        model(**inputs)
    recorder.scores[1].softmax(-1).square().sum().backward()
    layers = model.get_submodule(family.layer_path)
    assert any(p.grad is not None and p.grad.abs().max() > 0 for p in layers[0].parameters())
    if len(layers) > 1:  # else the later runs are of the same layer
        assert all(p.grad is None for p in layers[2].parameters())


def test_a_model_that_does_not_use_the_interface_is_an_error(through_interface: Opened) -> None:
    model, family, inputs = through_interface
    recorder = record_attention(model, family, range(3))
    model.set_attn_implementation("sdpa")
    with pytest.raises(RuntimeError, match="captured 0 times, the model has 3 layers"), recorder:
        model(**inputs)


@torch.no_grad()
def test_two_passes_or_none_are_an_error(opened: Opened) -> None:
    model, family, inputs = opened
    recorder = record_attention(model, family, range(3))
    with pytest.raises(RuntimeError, match="captured 6 times"), recorder:
        model(**inputs)
        model(**inputs)
    with pytest.raises(RuntimeError, match="captured 0 times"), recorder:
        pass


def test_an_error_inside_is_not_hidden_and_stops_the_recording(opened: Opened) -> None:
    model, family, _ = opened
    with pytest.raises(ZeroDivisionError), record_attention(model, family, range(3)):
        raise ZeroDivisionError
    assert active_recorder() is None


@torch.no_grad()
def test_teacher_and_student_are_recorded_apart(open_tiny: Callable[..., Any]) -> None:
    teacher, folder, tokenizer = open_tiny("bert", 3)
    student, *_ = open_tiny("bert", 2)
    batch = tokenizer.pad(tokenizer.encode(["good film", "bad"]))
    inputs = {k: torch.from_numpy(v) for k, v in batch.items()}
    theirs, ours = (
        record_attention(teacher, folder.family, range(3)),
        record_attention(student, folder.family, range(2)),
    )
    with theirs:
        teacher(**inputs)
        with ours:
            student(**inputs)
    assert (len(theirs.scores), len(ours.scores)) == (3, 2)
    assert not torch.equal(theirs.scores[0], ours.scores[0]) or teacher is not student


@torch.no_grad()
@pytest.mark.parametrize("layers", [(), (1, 2)])
def test_queries_keys_and_values_are_those_of_the_projections(
    through_interface: Opened, layers: tuple[int, ...]
) -> None:
    model, family, inputs = through_interface
    projected: dict[str, list[Tensor]] = {}
    for name, module in model.get_submodule(family.layer_path).named_modules():
        kind = name.rpartition(".")[2].removesuffix("_lin")
        if isinstance(module, nn.Linear) and kind in ("query", "key", "value", "q", "k", "v"):
            module.register_forward_hook(lambda m, a, out, k=kind[0]: projected.setdefault(k, []).append(out))
    with record_attention(model, family, layers, relations=(0, 2)) as recorder:
        model(**inputs)
    assert (tuple(sorted(recorder.scores)), sorted(recorder.relations)) == (layers, [0, 2])
    for layer, found in recorder.relations.items():
        for name in ("query", "key", "value"):
            value = getattr(found, name)
            assert value.shape == (5, 4, inputs["input_ids"].shape[1], query_width(model.config) // 4)
            if projected:  # what a fused projection makes is looked at in tests/families
                assert torch.equal(value.transpose(1, 2).flatten(2), projected[name[0]][layer])


@torch.no_grad()
def test_a_layer_asked_for_its_queries_alone_computes_no_map(
    through_interface: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, family, inputs = through_interface
    model.set_attn_implementation("sdpa")
    wanted = model(**inputs).logits
    recorder, seen = record_attention(model, family, (), relations=range(3)), []
    from pocketbert.distill.capture import recorder as interface

    own = interface.F.scaled_dot_product_attention
    monkeypatch.setattr(interface.F, "scaled_dot_product_attention", lambda *a, **k: (seen.append(1), own(*a, **k))[1])
    with recorder:
        found = model(**inputs).logits
    assert len(seen) == 3
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def shared_layers(depth: int) -> nn.Module:
    """ALBERT: one layer, called again and again."""
    config = transformers.AlbertConfig(
        vocab_size=60,
        embedding_size=16,
        hidden_size=32,
        num_hidden_layers=depth,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=32,
    )
    torch.manual_seed(0)
    return transformers.AlbertModel(config).eval()


@torch.no_grad()
@pytest.mark.parametrize("stop", [False, True])
def test_a_shared_layer_is_told_apart_by_the_order_of_its_calls(stop: bool) -> None:
    model, ids = shared_layers(4), torch.arange(12).reshape(2, 6)
    with record_attention(model, family_of("bert"), [0, 2], [1, 2], stop=stop) as recorder:
        model(ids)
    assert (sorted(recorder.scores), sorted(recorder.relations)) == ([0, 2], [1, 2])
    found = recorder.relations[2]
    scores = found.query @ found.key.transpose(2, 3) / 8**0.5
    torch.testing.assert_close(recorder.scores[2], scores)
    assert not torch.allclose(recorder.relations[1].query, found.query)


def losses_of(recorder: AttentionRecorder) -> Tensor:
    parts = [s.softmax(-1).square().sum() for s in recorder.scores.values()]
    parts += [(v.query * v.key).sum() + v.value.square().sum() for v in recorder.relations.values()]
    return torch.stack(parts).sum()


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize(("layers", "relations"), [((1,), ()), ((), (2,)), ((0, 2), (1,)), ((2,), (2,))])
def test_a_pass_that_ends_early_gives_the_losses_and_gradients_of_a_whole_one(
    opened: Opened, layers: tuple[int, ...], relations: tuple[int, ...], dropout: float
) -> None:
    model, family, inputs = opened
    model.train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = dropout
    made = []
    for stop in (False, True):
        model.zero_grad()
        torch.manual_seed(3)
        with record_attention(model, family, layers, relations, stop=stop) as recorder:
            model(**inputs)
            assert not stop, "nothing behind the pass is reached"
        assert (tuple(sorted(recorder.scores)), tuple(sorted(recorder.relations))) == (layers, relations)
        loss = losses_of(recorder)
        loss.backward()
        made.append((loss.detach(), {n: p.grad for n, p in model.named_parameters()}))
    (whole, wanted), (early, found) = made
    assert torch.equal(whole, early)
    for name, gradient in found.items():
        if gradient is None or wanted[name] is None:
            assert gradient is None and wanted[name] is None, name
        else:
            assert torch.equal(gradient, wanted[name]), name


@torch.no_grad()
def test_nothing_behind_the_last_wanted_layer_runs(opened: Opened) -> None:
    model, family, inputs = opened
    # where a layer is spread over several lists, the first begins it
    begins = model.get_submodule((family.layer_lists or (family.layer_path,))[0])
    layers, ran = model.get_submodule(family.layer_path), []
    for number, (begin, end) in enumerate(zip(begins, layers, strict=True)):
        begin.register_forward_pre_hook(lambda *_, n=number: ran.append(f"begins {n}"))
        end.register_forward_hook(lambda *_, n=number: ran.append(f"ends {n}"))
    recorder = record_attention(model, family, [0], [1], stop=True)
    for _ in range(2):
        with recorder:
            model(**inputs)
    second = min(1, len(layers) - 1)  # the same layer again where layers share their weights
    assert ran == ["begins 0", "ends 0", f"begins {second}"] * 2
    assert active_recorder() is None
    assert len(model(**inputs, output_hidden_states=True).hidden_states) == 4


def test_an_early_end_keeps_no_tensor_of_the_pass(opened: Opened) -> None:
    model, family, inputs = opened
    states: list[weakref.ref[Tensor]] = []
    first = model.get_submodule(family.layer_path)[0]
    first.register_forward_hook(
        lambda m, a, out: states.append(weakref.ref(out if isinstance(out, Tensor) else out[0]))
    )
    gc.disable()
    try:
        with torch.no_grad(), record_attention(model, family, [], [1], stop=True):
            model(**inputs)
        assert [state() for state in states] == [None]
    finally:
        gc.enable()


def test_the_count_is_checked_up_to_the_early_end(through_interface: Opened) -> None:
    model, family, inputs = through_interface
    recorder = record_attention(model, family, [1], stop=True)
    model.set_attn_implementation("sdpa")
    with (
        pytest.raises(RuntimeError, match=r"captured 0 times, the model has 3 layers and was to end in layer 1"),
        recorder,
    ):
        model(**inputs)
    assert not recorder.scores


@torch.no_grad()
def test_without_any_layer_a_pass_runs_to_its_end(opened: Opened) -> None:
    model, family, inputs = opened
    with record_attention(model, family, (), stop=True):
        made = model(**inputs)
    assert made.logits.shape == (5, 3)


@torch.no_grad()
@pytest.mark.parametrize("stop", [False, True])
def test_after_another_error_nothing_is_left(opened: Opened, stop: bool) -> None:
    model, family, inputs = opened
    recorder = record_attention(model, family, [0], [0, 2], stop=stop)

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    handle = model.get_submodule(family.layer_path)[:2][-1].register_forward_hook(broken)
    with pytest.raises(ZeroDivisionError), recorder:
        model(**inputs)
    assert not recorder.scores and not recorder.relations
    assert active_recorder() is None
    handle.remove()
    with recorder:
        model(**inputs)
    assert (sorted(recorder.scores), sorted(recorder.relations)) == ([0], [0, 2])


@torch.no_grad()
def test_an_inner_pass_that_ends_early_leaves_the_outer_one_alone(open_tiny: Callable[..., Any]) -> None:
    teacher, folder, tokenizer = open_tiny("bert", 3)
    student, *_ = open_tiny("bert", 2)
    inputs = {k: torch.from_numpy(v) for k, v in tokenizer.pad(tokenizer.encode(["good film", "bad"])).items()}
    theirs = record_attention(teacher, folder.family, range(3))
    with theirs:
        with record_attention(student, folder.family, (), [0], stop=True) as ours:
            student(**inputs)
        teacher(**inputs)
    assert (len(theirs.scores), list(ours.relations)) == (3, [0])


@pytest.mark.parametrize(("layers", "relations"), [([3], []), ([], [-1])])
def test_layers_that_the_model_does_not_have_are_refused(
    opened: Opened, layers: list[int], relations: list[int]
) -> None:
    model, family, _ = opened
    with pytest.raises(ValueError, match=r"no layers \[(3|-1)\] in a model of 3 layers, 0 to 2"):
        record_attention(model, family, layers, relations)


def test_widths_of_the_queries(make_classifier: Callable[..., Any]) -> None:
    widths = {f: query_width(make_classifier(f, 1, ("a", "b")).config) for f in GRAPHS}
    assert widths == {f: NARROW.get(f, 32) for f in GRAPHS}
