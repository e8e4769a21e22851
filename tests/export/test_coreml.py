"""Core ML packages: the untouched model's numbers in every form, the classifier, the texts for people, and the same bytes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("coremltools", reason="needs pocketbert[coreml]")

from pocketbert.core.compare.evaluate import worst_difference
from pocketbert.core.compare.parity import build_probe, compare_with_probe
from pocketbert.core.compare.sample_texts import SENTENCES, sample_pairs
from pocketbert.core.disk.files import sha256_path
from pocketbert.core.errors import MissingBackendError
from pocketbert.core.predict.predictor import TorchPredictor
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.core.types import Format, Scheme, Shapes
from pocketbert.export import coreml as exporter
from pocketbert.export.coreml import CoremlForm, CoremlInfo, has_large_numbers
from pocketbert.export.prepare import prepare
from pocketbert.runtime.coreml.evaluator import Evaluator, EvaluatorPrecision
from pocketbert.runtime.coreml.predictor import CoremlPredictor
from support.tiny import BASIC, NAMES

CLASSIFY = TASKS[TaskName.TEXT_CLASSIFICATION]
INFO = CoremlInfo("One sentence.", "made by a test", "somebody", "Apache-2.0", NAMES, (("pocketbert.task", "x"),))
EXACT = {Scheme.FP32: 1e-5, Scheme.FP16: 5e-3}
"""Largest difference to torch relative to the largest logit, by what the package computes in."""
FORMS = {
    "ios18": CoremlForm(),
    "ios17-ranged": CoremlForm(17, Shapes.RANGED, Scheme.FP32),
    "ios16-fixed": CoremlForm(16, Shapes.FIXED),
    "ios18-fp32": CoremlForm(precision=Scheme.FP32),
    "ios17-ranged-fp16": CoremlForm(17, Shapes.RANGED),
    "ios16-fixed-fp32": CoremlForm(16, Shapes.FIXED, Scheme.FP32),
}
LENGTHS = [16, 32, 40]
QUICK = [("bert", name) for name in list(FORMS)[:2]]
ALL = [(f, name) for f in BASIC for name in FORMS if (f, name) not in QUICK]


@pytest.fixture(scope="module")
def export(open_tiny: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Any]:
    """`export(family, form)`: model, folder, tokenizer and the package, which is not to be changed."""

    @cache
    def write(family: str, form: str) -> Any:
        model, folder, tokenizer = open_tiny(family, 2)
        path = tmp_path_factory.mktemp("coreml") / "Model.mlpackage"
        module = prepare(model, folder.family, CLASSIFY, Format.COREML)
        exporter.export(module, folder.family, CLASSIFY, LENGTHS, path, FORMS[form], INFO)
        return model, folder, tokenizer, path

    return write


@pytest.mark.parametrize(("name", "form"), [*QUICK, *(pytest.param(*cell, marks=pytest.mark.slow) for cell in ALL)])
def test_the_package_computes_what_the_untouched_model_computes(
    name: str, form: str, export: Callable[[str, str], Any]
) -> None:
    model, folder, _, path = export(name, form)
    family, predictor = folder.family, CoremlPredictor(path)
    reference = TorchPredictor(model, CLASSIFY, family.inputs)
    texts = [*SENTENCES, *(sample_pairs()[:8] if family.uses_segments else [])]
    tokenizer = TextTokenizer(folder.path, LENGTHS[-1])  # a ranged package takes no more
    probe = build_probe(reference, tokenizer, texts, [16, 32], CLASSIFY, ["logits"], predictor.lengths)
    found = compare_with_probe(predictor, "package", "model", probe, ["logits"], 1.0)
    largest = max(float(np.abs(e).max()) for e in probe.expected)
    assert found.worst * found.spread / largest < EXACT[FORMS[form].precision], found
    assert found.mask_effect > 0.1
    lengths = {Shapes.ENUMERATED: (16, 32, 40), Shapes.FIXED: (40,), Shapes.RANGED: ()}[FORMS[form].shapes]
    assert predictor.lengths == lengths
    assert [t.name for t in predictor.signature.inputs] == list(family.inputs)
    assert {t.dtype for t in predictor.signature.inputs} == {"int32"}
    assert [(t.name, t.dtype, t.shape) for t in predictor.signature.outputs] == [("logits", "float32", [1, 3])]


def test_a_classifier_names_its_label_and_computes_in_fp16(export: Callable[[str, str], Any]) -> None:
    *_, tokenizer, path = export("bert", "ios18")
    inputs = {n: v.astype(np.int32) for n, v in tokenizer.pad(tokenizer.encode(["a good film"]), 16).items()}
    evaluators = [Evaluator(path, precision) for precision in EvaluatorPrecision]
    assert evaluators[0].labels == NAMES
    out, wide = (e.run(inputs) for e in evaluators)
    logits, scores = np.asarray(out["logits"], np.float64)[0], out["classLabel_probs"]
    assert isinstance(scores, dict)
    assert list(scores) == list(NAMES)
    powers = np.exp(logits - logits.max())
    np.testing.assert_allclose(list(scores.values()), powers / powers.sum(), atol=2e-3)
    assert out["classLabel"] == NAMES[int(logits.argmax())]
    assert 0 < worst_difference(logits, np.asarray(wide["logits"], np.float64)[0]) < 1e-2 * np.abs(logits).max()


def test_what_the_package_says_of_itself(export: Callable[[str, str], Any]) -> None:
    import coremltools as ct

    *_, path = export("bert", "ios18")
    spec = ct.utils.load_spec(str(path))
    metadata = spec.description.metadata
    assert (metadata.shortDescription, metadata.versionString) == (INFO.description, INFO.version)
    assert (metadata.author, metadata.license) == (INFO.author, INFO.license)
    assert metadata.userDefined["pocketbert.task"] == "x"
    assert not any("date" in k for k in metadata.userDefined)
    assert [o.name for o in spec.description.output] == ["classLabel", "classLabel_probs", "logits"]
    assert all(f.shortDescription for f in (*spec.description.input, *spec.description.output))
    assert spec.specificationVersion == 9
    content = (path / "Data/com.apple.CoreML/model.mlmodel").read_bytes()
    assert [t for t in (b"/work/", b"/root/", b"/home/", b"/tmp/", b"site-packages", b".py") if t in content] == []


def test_the_same_model_gives_the_same_bytes(export: Callable[[str, str], Any], tmp_path: Path) -> None:
    model, folder, _, path = export("bert", "ios18")
    again = tmp_path / "Again.mlpackage"
    module = prepare(model, folder.family, CLASSIFY, Format.COREML)
    exporter.export(module, folder.family, CLASSIFY, LENGTHS, again, FORMS["ios18"], INFO)
    assert sha256_path(again) == sha256_path(path)


def test_the_classifier_is_what_coremltools_writes(tmp_path: Path) -> None:
    import coremltools as ct

    from pocketbert.core.model_files import add_classifier, remove_classifier

    class Head(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return (torch.softmax(x * 2.0, -1),)

    def convert(**more: Any) -> Any:
        program = torch.export.export(Head(), (torch.ones(1, 3),)).run_decompositions({})
        kind = {
            "convert_to": "mlprogram",
            "skip_model_load": True,
            "minimum_deployment_target": ct.target.iOS17,
            "compute_precision": ct.precision.FLOAT32,
            "outputs": [ct.TensorType(name="probabilities")],
        }
        return ct.convert(program, **kind, **more).get_spec()

    theirs = convert(classifier_config=ct.ClassifierConfig(list(NAMES), predicted_probabilities_output="probabilities"))
    ours = convert()
    before = ours.SerializeToString(deterministic=True)
    add_classifier(ours, NAMES)
    blocks = [next(iter(s.mlProgram.functions["main"].block_specializations.values())) for s in (theirs, ours)]
    assert blocks[0].operations[-1] == blocks[1].operations[-1]
    assert list(blocks[0].outputs) == list(blocks[1].outputs)
    assert theirs.description.output == ours.description.output
    assert theirs.description.predictedFeatureName == ours.description.predictedFeatureName
    assert theirs.description.predictedProbabilitiesName == ours.description.predictedProbabilitiesName
    assert remove_classifier(ours) == list(NAMES)
    assert ours.SerializeToString(deterministic=True) == before
    assert remove_classifier(ours) == []


def test_without_coremltools_the_message_names_the_command(
    open_tiny: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, folder, _ = open_tiny("bert", 1)
    module = prepare(model, folder.family, CLASSIFY, Format.COREML)
    monkeypatch.setattr(exporter, "version_of", lambda _: None)
    with pytest.raises(MissingBackendError, match=r"pocketbert\[coreml\]"):
        exporter.export(module, folder.family, CLASSIFY, [16], tmp_path / "x.mlpackage", CoremlForm(), INFO)
    assert not list(tmp_path.iterdir())


EDGES = [
    [0.0],
    [65504.0],
    [65505.0],
    [-65520.0],
    [np.inf, 1.0],
    [-np.inf],
    [1e38],
    [9.9e37],
    [np.nan],
    [np.nan, 7e4],
    [],
]


@pytest.mark.parametrize(("values", "count"), [*((v, 1) for v in EDGES), ([65505.0], 4_200_000)], ids=str)
def test_numbers_beyond_fp16_are_those_that_coremltools_finds(values: list[float], count: int) -> None:
    from coremltools.converters.mil.mil.passes.defs.quantization import FP16ComputePrecision

    array = np.concatenate([np.ones(count - 1, np.float32), np.array(values, np.float32)])
    constant = SimpleNamespace(op_type="const", val=SimpleNamespace(val=array))
    var = SimpleNamespace(op=constant, is_tensor_or_scalar_of=lambda dtype: dtype == "fp32")
    theirs = FP16ComputePrecision.fp16_overflow(SimpleNamespace(inputs={"x": var}))
    assert has_large_numbers(array) == theirs
