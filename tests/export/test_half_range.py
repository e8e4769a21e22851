"""MobileBERT with activations beyond fp16: planted, cured, and the same numbers in every format.

A planted model is an ordinary one whose tensors, and a few of their channels more than the others, were made larger where
they are written and smaller where they are read, by powers of two: in fp32 it computes the same bits, so what the right
answer is needs no trust in the cure.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn

from pocketbert.core.compare.evaluate import worst_difference
from pocketbert.core.families import family_of
from pocketbert.core.predict.pooling import Pooling, PoolingKind
from pocketbert.core.tasks import TASKS, Task, TaskName
from pocketbert.core.types import Format, Layout, Scheme
from pocketbert.export import onnx as onnx_exporter
from pocketbert.export.adapters import half_range
from pocketbert.export.adapters.half_range import LayerScales, Scales
from pocketbert.export.prepare import prepare
from pocketbert.runtime.coreml.half import LARGEST
from pocketbert.runtime.onnx import OnnxPredictor

FAMILY = family_of("mobilebert")
CLASSIFY, EMBED = TASKS[TaskName.TEXT_CLASSIFICATION], TASKS[TaskName.FEATURE_EXTRACTION]
HEADS = [
    TASKS[n] for n in (TaskName.TEXT_CLASSIFICATION, TaskName.TOKEN_CLASSIFICATION, TaskName.QUESTION_ANSWERING,
                       TaskName.FILL_MASK, TaskName.FEATURE_EXTRACTION)
]  # fmt: skip
SHAPES: list[dict[str, Any]] = [
    {},
    {"use_bottleneck": False},
    {"use_bottleneck_attention": True},
    {"num_feedforward_networks": 1},
    {"classifier_activation": False},
    {"hidden_act": "gelu"},
    {"trigram_input": False, "embedding_size": 32},
]
EVERYWHERE, CHANNEL = 2.0**14, 2.0**3
"""Factors of planted tensors and, on top, of some channels: activations pass 1e5, weights stay in fp16's range."""
FP16 = 5e-3
"""Largest difference of an fp16 file's logits relative to the largest: of the ordinary model as of the cured one."""

Inputs = dict[str, NDArray[np.int64]]


def ordinary(task: Task = CLASSIFY, seed: int = 0, **changes: Any) -> Any:
    """A random MobileBERT whose factors and biases are random too."""
    import transformers

    sizes = {
        "vocab_size": 300, "hidden_size": 32, "embedding_size": 16, "intra_bottleneck_size": 16, "num_hidden_layers": 3,
        "num_attention_heads": 4, "intermediate_size": 48, "num_feedforward_networks": 3, "max_position_embeddings": 64,
        "num_labels": 2 if task.name is TaskName.QUESTION_ANSWERING else 3,
    }  # fmt: skip
    config = transformers.MobileBertConfig(**{**sizes, **changes})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = getattr(transformers, f"MobileBert{task.head}")(config)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.normal_(std=0.7 * parameter.shape[-1] ** -0.5)
                else:
                    parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def planted(model: Any) -> Any:
    """A copy whose tensors are large in a few channels, and whose every output is the same; with bottlenecks and ReLU."""
    model = copy.deepcopy(model)
    base, gain = model.base_model, CHANNEL
    large = tuple(EVERYWHERE for _ in range(model.config.num_feedforward_networks))
    layers = [LayerScales(EVERYWHERE, EVERYWHERE, EVERYWHERE, large, EVERYWHERE) for _ in base.encoder.layer]
    head_inside = EVERYWHERE if type(model).__name__ == "MobileBertForMaskedLM" else 1.0
    half_range.apply(model, Scales(2.0**7, EVERYWHERE, tuple(layers), head_inside))
    head: list[nn.Linear] = {
        "MaskedLM": lambda: [model.cls.predictions.transform.dense],
        "QuestionAnswering": lambda: [model.qa_outputs],
        "TokenClassification": lambda: [model.classifier],
        "SequenceClassification": lambda: [base.pooler.dense if base.pooler.do_activate else model.classifier],
    }.get(type(model).__name__.removeprefix("MobileBertFor"), list)()
    stream_writers: list[Any] = [base.embeddings]
    stream_readers: list[nn.Linear] = [*head]
    for layer in base.encoder.layer:
        own, neck = layer.attention.self, layer.bottleneck
        stream_writers.append(layer.output.bottleneck)
        necks = [m for m in (neck.input, getattr(neck, "attention", None)) if m is not None]
        by_narrow = neck.use_bottleneck_attention
        stream_readers += [*(m.dense for m in necks), *([] if by_narrow else [own.value])]
        parts = [*getattr(layer, "ffn", []), layer]
        writers = [neck.input, layer.attention.output, *(p.output for p in parts)]
        readers = [*(p.intermediate.dense for p in parts), layer.output.bottleneck.dense]
        move(writers, [*readers, *([own.query, own.key, own.value] if by_narrow else [])], 3, gain)
        move([own.value], [layer.attention.output.dense], 5, gain)
        if not by_narrow:
            move([neck.attention], [own.query, own.key], 6, gain)
        for part in parts:
            move([part.intermediate.dense], [part.output.dense], 7, gain)
    for channel in (2, 11):
        move(stream_writers, stream_readers, channel, gain)
    return model


def move(writers: list[Any], readers: list[nn.Linear], channel: int, gain: float) -> None:
    """Make one channel larger in the modules that write it, NoNorm included, and smaller in those that read it."""
    with torch.no_grad():
        for part in writers:
            dense = getattr(part, "dense", part if isinstance(part, nn.Linear) else None)
            if dense is None:  # the embeddings: their NoNorm is all of the writer
                part.LayerNorm.weight[channel] *= gain
            else:
                dense.weight[channel] *= gain
                dense.bias[channel] *= gain
            if hasattr(part, "LayerNorm"):
                part.LayerNorm.bias[channel] *= gain
        for dense in readers:
            dense.weight[:, channel] /= gain


def batch(length: int, padding: tuple[int, ...], seed: int = 0) -> Inputs:
    """Rows of random tokens, so many of each padded."""
    draw = np.random.default_rng(length + seed)
    ids = draw.integers(5, 290, (len(padding), length))
    mask, types = np.ones_like(ids), np.zeros_like(ids)
    types[:, length // 2 :] = 1
    for row, padded in enumerate(padding):
        if padded:
            ids[row, -padded:] = mask[row, -padded:] = types[row, -padded:] = 0
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}


SMALL = {"num_hidden_layers": 2, "num_feedforward_networks": 2}
BATCHES = [batch(16, (0, 5, 13)), batch(32, (0, 20))]


def answer(model: Any, inputs: Inputs, name: str) -> Tensor:
    with torch.inference_mode():
        return model(**{k: torch.from_numpy(v) for k, v in inputs.items()})[name]  # type: ignore[no-any-return]


def rows(length: int | None = None) -> list[Inputs]:
    """The rows of the batches one by one; all, or those of a length."""
    some = [b for b in BATCHES if length in (None, b["input_ids"].shape[1])]
    return [{k: v[i : i + 1] for k, v in b.items()} for b in some for i in range(len(b["input_ids"]))]


def answers(predictor: Any, name: str = "logits", length: int | None = None) -> list[NDArray[np.float32]]:
    return [np.asarray(predictor.run(r)[name], np.float32) for r in rows(length)]


def expected(model: Any, name: str = "logits", length: int | None = None) -> list[NDArray[np.float32]]:
    return [answer(model, r, name).numpy() for r in rows(length)]


def off(found: list[NDArray[np.float32]], right: list[NDArray[np.float32]]) -> float:
    """Largest difference relative to the largest number; NaN if any number is."""
    largest = max(float(np.abs(r).max()) for r in right)
    return float(np.max([worst_difference(f, r) for f, r in zip(found, right, strict=True)])) / largest


def uncured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(half_range, "fit", lambda *_: 1.0)


# In torch.


@pytest.mark.parametrize("task", HEADS, ids=[t.name.value for t in HEADS])
def test_a_planted_model_is_the_ordinary_one_bit_for_bit(task: Task) -> None:
    model = ordinary(task)
    large = planted(model)
    assert max(float(p.detach().abs().max()) for p in large.parameters()) < LARGEST
    if task is not EMBED:  # its states are an output, and larger
        for inputs in BATCHES:
            for name in task.outputs:
                assert torch.equal(answer(large, inputs, name), answer(model, inputs, name))
    scales = half_range.measure(large, BATCHES, task is EMBED)
    for layer in scales.layers:
        assert max(layer.narrow, layer.shared, layer.value, *layer.hidden, layer.out) <= 2**-3


@pytest.mark.parametrize("task", HEADS, ids=[t.name.value for t in HEADS])
def test_the_cure_is_exact_in_fp32(task: Task) -> None:
    large = planted(ordinary(task))
    cured = copy.deepcopy(large)
    carried = half_range.fit(cured, task.outputs, BATCHES)
    assert (carried < 1) == (task is EMBED)
    for inputs in BATCHES:
        for name in (n for n in task.outputs if n != "sentence_embedding"):
            assert torch.equal(answer(cured, inputs, name) / carried, answer(large, inputs, name))


@pytest.mark.parametrize("task", HEADS, ids=[t.name.value for t in HEADS])
@pytest.mark.parametrize("changes", SHAPES, ids=str)
@settings(max_examples=2, deadline=None)
@given(powers=st.lists(st.integers(0, 12), min_size=64, max_size=64))
def test_any_powers_of_two_are_exact_in_fp32(task: Task, changes: dict[str, Any], powers: list[int]) -> None:
    wide = {"hidden_size": 16} if not changes.get("use_bottleneck", True) else {}
    model = ordinary(task, **{**SMALL, **wide, **changes})
    some: Iterator[float] = (2.0**-p for p in powers)
    config, relu = model.config, changes.get("hidden_act", "relu") == "relu"
    sums = config.trigram_input or config.embedding_size != config.hidden_size
    networks = range(config.num_feedforward_networks)
    scales = Scales(
        next(some) if sums else 1.0, next(some),
        tuple(LayerScales(next(some), next(some), next(some), tuple(next(some) if relu else 1.0 for _ in networks), next(some))
              for _ in range(config.num_hidden_layers)),
        next(some) if task.name is TaskName.FILL_MASK and relu else 1.0,
    )  # fmt: skip
    scaled = copy.deepcopy(model)
    half_range.apply(scaled, scales)
    carried = scales.layers[-1].out if task is EMBED else 1.0
    for name in (n for n in task.outputs if n != "sentence_embedding"):
        assert torch.equal(answer(scaled, BATCHES[0], name) / carried, answer(model, BATCHES[0], name))


def test_in_half_precision_the_stock_model_breaks_and_the_cured_one_does_not() -> None:
    model = ordinary()
    large = planted(model)
    cured = copy.deepcopy(large)
    half_range.fit(cured, CLASSIFY.outputs, BATCHES)
    right = [answer(model, b, "logits") for b in BATCHES]
    largest = max(float(r.abs().max()) for r in right)
    for name, subject in (("stock", large), ("cured", cured), ("ordinary", model)):
        made = [answer(copy.deepcopy(subject).half(), b, "logits").float() for b in BATCHES]
        if name == "stock":
            assert not all(m.isfinite().all() for m in made)
        else:
            worst = max(float((m - r).abs().max()) for m, r in zip(made, right, strict=True)) / largest
            assert worst < FP16, (name, worst)


def test_one_large_bias_is_enough_to_break_it_and_is_cured() -> None:
    large = ordinary()
    with torch.no_grad():  # a channel that is large for every token, and of little weight where it is read
        for layer in large.base_model.encoder.layer:
            layer.output.bottleneck.LayerNorm.bias[4] += 6e4
        for layer in large.base_model.encoder.layer[1:]:
            for dense in (layer.bottleneck.input.dense, layer.bottleneck.attention.dense, layer.attention.self.value):
                dense.weight[:, 4] *= 1e-5
        large.base_model.pooler.dense.weight[:, 4] *= 1e-5
    cured = copy.deepcopy(large)
    half_range.fit(cured, CLASSIFY.outputs, BATCHES)
    for inputs in BATCHES:
        right = answer(large, inputs, "logits")
        assert torch.equal(answer(cured, inputs, "logits"), right)
        assert not answer(copy.deepcopy(large).half(), inputs, "logits").isfinite().all()
        made = answer(copy.deepcopy(cured).half(), inputs, "logits").float()
        assert float((made - right).abs().max()) < FP16 * float(right.abs().max())


@pytest.mark.parametrize("task", HEADS, ids=[t.name.value for t in HEADS])
def test_what_was_brought_into_range_is_in_range(task: Task) -> None:
    cured = planted(ordinary(task))
    raw = task is EMBED
    half_range.fit(cured, task.outputs, BATCHES)
    again = half_range.measure(cured, [*half_range.vocabulary_rows(cured.config), *BATCHES], raw)
    assert again.smallest == 1


def same(model: Any, outputs: tuple[str, ...] = CLASSIFY.outputs) -> bool:
    """Whether nothing of a model changes."""
    before = {k: v.clone() for k, v in model.state_dict().items()}
    carried = half_range.fit(model, outputs, BATCHES)
    return carried == 1 and all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


@pytest.mark.parametrize("changes", SHAPES, ids=str)
def test_an_ordinary_model_is_not_touched(changes: dict[str, Any]) -> None:
    wide = {"hidden_size": 16} if not changes.get("use_bottleneck", True) else {}
    assert same(ordinary(**wide, **changes))
    assert same(ordinary(EMBED, **wide, **changes), EMBED.outputs)


def test_models_with_layer_normalization_are_not_touched(make_classifier: Callable[..., Any]) -> None:
    normed = ordinary(normalization_type="layer_norm")
    with torch.no_grad():
        normed.base_model.encoder.layer[0].output.bottleneck.dense.weight.mul_(EVERYWHERE)
    assert same(normed)
    for name in ("bert", "roberta", "distilbert"):
        model = make_classifier(name, 1, ("no", "yes"))
        model.get_input_embeddings().weight.data.mul_(EVERYWHERE)
        assert same(model)


def test_a_subclass_and_a_model_without_a_known_head_keep_their_outputs() -> None:
    import transformers

    class Changed(transformers.MobileBertModel):  # type: ignore[misc]
        """May do anything with its states."""

    config = ordinary().config
    assert same(Changed(config).eval())
    large = planted(ordinary(EMBED))
    stranger = transformers.MobileBertForNextSentencePrediction(config).eval()
    stranger.mobilebert.load_state_dict(large.state_dict())
    cured = copy.deepcopy(stranger)
    assert half_range.fit(cured, ("logits",), BATCHES) == 1
    assert torch.equal(answer(cured, BATCHES[0], "logits"), answer(stranger, BATCHES[0], "logits"))
    first, scaled = (m.mobilebert.embeddings.LayerNorm.weight for m in (stranger, cured))
    assert scaled[0] < first[0]


def test_texts_are_measured_beside_the_vocabulary() -> None:
    large = ordinary(vocab_size=30000)
    seen = {int(i) for b in half_range.vocabulary_rows(large.config) for i in b["input_ids"].ravel()}
    rare = next(i for i in range(29999, 0, -1) if i not in seen)
    with torch.no_grad():
        large.get_input_embeddings().weight[rare] *= 1e6
    text = {**BATCHES[0], "input_ids": np.where(BATCHES[0]["input_ids"] > 150, rare, 7)}
    rows = half_range.vocabulary_rows(large.config)
    assert half_range.measure(large, rows).smallest == 1
    assert half_range.measure(large, [*rows, text]).smallest < 1


# In files.


def coreml_file(model: Any, task: Task, path: Path, layout: Layout, **more: Any) -> Path:
    pytest.importorskip("coremltools", reason="needs pocketbert[coreml]")
    from pocketbert.export import coreml

    module = prepare(model, FAMILY, task, Format.COREML, layout, samples=BATCHES, **more)
    about = coreml.CoremlInfo("", "1", "", "")
    coreml.export(module, FAMILY, task, [16, 32], path, coreml.CoremlForm(), about)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("layout", Layout)
def test_core_ml_in_fp16_overflows_without_and_is_right_with_it(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("coremltools", reason="needs pocketbert[coreml]")
    from pocketbert.runtime.coreml.predictor import CoremlPredictor
    from pocketbert.runtime.coreml.scan import overflow_scan

    model = ordinary(**SMALL)
    large, right = planted(model), expected(model)
    feeds = [{k: v[:1].astype(np.int32) for k, v in b.items()} for b in BATCHES]
    cured = coreml_file(large, CLASSIFY, tmp_path / "cured.mlpackage", layout)
    assert off(answers(CoremlPredictor(cured, reference=True)), right) < FP16
    scan = overflow_scan(cured, feeds)
    assert scan.first is None
    assert scan.largest is not None
    assert scan.largest.largest < 1.01e4  # the mask's own 1e4: all else is below
    uncured(monkeypatch)
    stock = coreml_file(large, CLASSIFY, tmp_path / "stock.mlpackage", layout)
    assert not off(answers(CoremlPredictor(stock, reference=True)), right) < 0.1
    first = overflow_scan(stock, feeds).first
    assert first is not None
    assert first.largest > LARGEST


def test_vectors_survive_fp16_where_their_states_cannot(tmp_path: Path) -> None:
    pytest.importorskip("coremltools", reason="needs pocketbert[coreml]")
    from pocketbert.core.predict.torch_predictor import TorchPredictor
    from pocketbert.runtime.coreml.predictor import CoremlPredictor

    large, pooling = planted(ordinary(EMBED, **SMALL)), Pooling(PoolingKind.MEAN, True)
    path = coreml_file(large, EMBED, tmp_path / "a.mlpackage", Layout.PLAIN, pooling=pooling)
    predictor = CoremlPredictor(path, reference=True)
    reference = TorchPredictor(large, EMBED, FAMILY.inputs, pooling)
    right = answers(reference, "sentence_embedding")
    assert off(answers(predictor, "sentence_embedding"), right) < FP16
    states = expected(large, "last_hidden_state")
    assert max(float(np.abs(s).max()) for s in states) > LARGEST
    found = answers(predictor, "last_hidden_state")
    assert not all(np.isfinite(s).all() for s in found)  # fp16 has no such number


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("layout", Layout)
def test_states_and_vectors_are_what_they_were_in_fp32(layout: Layout, normalize: bool) -> None:
    from pocketbert.core.predict.torch_predictor import TorchPredictor

    large, pooling = planted(ordinary(EMBED)), Pooling(PoolingKind.MEAN, normalize)
    module = prepare(large, FAMILY, EMBED, Format.COREML, layout, pooling, BATCHES)
    reference = TorchPredictor(large, EMBED, FAMILY.inputs, pooling)
    for inputs in BATCHES:
        right = reference.run(inputs)
        with torch.inference_mode():
            found = module(*(torch.from_numpy(inputs[n]) for n in FAMILY.inputs))
        for name, value in zip(EMBED.outputs, found, strict=True):
            channels = np.abs(right[name]).reshape(-1, 32).max(0)  # large ones must not hide the others
            assert (np.abs(value.numpy() - right[name]).reshape(-1, 32).max(0) < 1e-5 * channels).all()


def onnx_files(model: Any, folder: Path, name: str) -> Mapping[Scheme, Path]:
    from pocketbert.quantize.onnx import quantize

    paths = {s: folder / f"{name}-{s}.onnx" for s in (Scheme.FP32, Scheme.INT8)}
    module = prepare(model, FAMILY, CLASSIFY, Format.ONNX, samples=BATCHES)
    onnx_exporter.export(module, FAMILY, CLASSIFY, BATCHES[0], paths[Scheme.FP32])
    quantize(paths[Scheme.FP32], paths[Scheme.INT8])
    return paths


def test_onnx_answers_the_same_with_it_in_int8_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pocketbert.quantize import weights

    monkeypatch.setattr(weights, "SMALL", 512)
    model = ordinary(**SMALL)
    large, right = planted(model), expected(model)
    cured = onnx_files(large, tmp_path, "cured")
    assert off(answers(OnnxPredictor(cured[Scheme.FP32])), right) < 1e-5
    assert onnx_range(cured[Scheme.FP32]) < LARGEST
    uncured(monkeypatch)
    stock = onnx_files(large, tmp_path, "stock")
    assert onnx_range(stock[Scheme.FP32]) > LARGEST
    for scheme, path in stock.items():
        made = zip(answers(OnnxPredictor(path)), answers(OnnxPredictor(cured[scheme])), strict=True)
        assert all(np.array_equal(a, b) for a, b in made), scheme


def onnx_range(path: Path) -> float:
    import onnx
    import onnxruntime

    model = onnx.shape_inference.infer_shapes(onnx.load(path))
    float32 = onnx.TensorProto.FLOAT
    floats = [v.name for v in model.graph.value_info if v.type.tensor_type.elem_type == float32]
    assert len(floats) > 50
    model.graph.output.extend(v for v in model.graph.value_info if v.name in set(floats))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return max(float(np.abs(v).max()) for b in BATCHES for v in session.run(floats, b))


def tflite_files(model: Any, folder: Path, name: str) -> Mapping[Scheme, Path]:
    pytest.importorskip("litert_torch", reason="needs pocketbert[tflite]", exc_type=ImportError)
    from pocketbert.export import tflite
    from pocketbert.quantize.tflite import quantize

    paths = {s: folder / f"{name}-{s}.tflite" for s in (Scheme.FP32, Scheme.FP16, Scheme.INT8)}
    module = prepare(model, FAMILY, CLASSIFY, Format.TFLITE, samples=BATCHES)
    tflite.export(module, FAMILY, CLASSIFY, [16, 32], paths[Scheme.FP32])
    for scheme in (Scheme.FP16, Scheme.INT8):
        quantize(paths[Scheme.FP32], paths[scheme], scheme)
    return paths


@pytest.mark.slow
def test_tflite_answers_the_same_with_it_in_int8_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ai_edge_quantizer", reason="needs pocketbert[tflite]")
    from pocketbert.quantize import weights
    from pocketbert.runtime.tflite import TflitePredictor

    monkeypatch.setattr(weights, "SMALL", 512)
    model = ordinary(**SMALL)
    large, right = planted(model), expected(model, length=16)
    cured = tflite_files(large, tmp_path, "cured")
    assert off(answers(TflitePredictor(cured[Scheme.FP32]), length=16), right) < 1e-5
    assert off(answers(TflitePredictor(cured[Scheme.FP16]), length=16), right) < FP16  # fp16 weights, fp32 arithmetic
    uncured(monkeypatch)
    stock = tflite_files(large, tmp_path, "stock")
    for scheme in (Scheme.FP32, Scheme.INT8):
        made = zip(
            answers(TflitePredictor(stock[scheme]), length=16),
            answers(TflitePredictor(cured[scheme]), length=16),
            strict=True,
        )
        assert all(np.array_equal(a, b) for a, b in made), scheme
    for scheme in (Scheme.FP32, Scheme.FP16):
        assert tflite_range(cured[scheme]) < LARGEST < tflite_range(stock[scheme])


def tflite_range(path: Path) -> float:
    """Largest magnitude of whatever a graph's operators make of the rows; none is left to a delegate, which hides its own."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    interpreter: Any = Interpreter(
        model_path=str(path),
        experimental_preserve_all_tensors=True,
        experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
    )
    runner = interpreter.get_signature_runner("seq_16")
    made = {int(i) for op in interpreter._get_ops_details() for i in op["outputs"]}
    details = interpreter.get_tensor_details()
    floats = [d["index"] for d in details if d["index"] in made and d["dtype"] == np.float32]
    assert len(floats) > 50
    largest = []
    for inputs in rows(16):
        runner(**{k: v.astype(np.int32) for k, v in inputs.items()})
        largest += [float(np.abs(interpreter.get_tensor(i)).max(initial=0.0)) for i in floats]
    return max(largest)
