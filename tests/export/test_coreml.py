from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
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
from pocketbert.core.families import family_of
from pocketbert.core.predict.predictor import TorchPredictor
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import TASKS, Task, TaskName
from pocketbert.core.types import Format, Scheme, Shapes
from pocketbert.export import coreml as exporter
from pocketbert.export.coreml import CoremlForm, CoremlInfo
from pocketbert.export.prepare import prepare
from pocketbert.runtime.coreml.evaluator import Evaluator, Precision
from pocketbert.runtime.coreml.predictor import CoremlPredictor
from support.tiny import BASIC as FAMILIES

CLASSIFY = TASKS[TaskName.TEXT_CLASSIFICATION]
LABELS = ("negative", "neutral", "positive")
INFO = CoremlInfo("One sentence.", "made by a test", "somebody", "Apache-2.0", LABELS, (("pocketbert.task", "x"),))
EXACT = {Scheme.FP32: 1e-5, Scheme.FP16: 5e-3}
"""Largest difference to torch relative to the largest logit, by what the package computes in."""
FORMS = {
    "ios18": CoremlForm(),
    "ios18-fp32": CoremlForm(precision=Scheme.FP32),
    "ios17-ranged": CoremlForm(17, Shapes.RANGED, Scheme.FP32),
    "ios17-ranged-fp16": CoremlForm(17, Shapes.RANGED),
    "ios16-fixed": CoremlForm(16, Shapes.FIXED),
    "ios16-fixed-fp32": CoremlForm(16, Shapes.FIXED, Scheme.FP32),
}
LENGTHS = [16, 32, 40]


@pytest.fixture
def written(open_tiny: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """`written(family, form)`: model, folder, tokenizer and the package."""

    def write(family: str, form: CoremlForm, info: CoremlInfo = INFO) -> Any:
        model, folder, tokenizer = open_tiny(family, 2)
        module = prepare(model, folder.family, CLASSIFY, Format.COREML)
        path = tmp_path / "Model.mlpackage"
        exporter.export(module, folder.family, CLASSIFY, LENGTHS, path, form, info)
        return model, folder, tokenizer, path

    return write


MATRIX = [("bert", name) for name in FORMS] + [(f, "ios18") for f in FAMILIES[1:]]
ALL = [(f, name) for f in FAMILIES for name in FORMS if (f, name) not in MATRIX]


@pytest.mark.parametrize(("name", "form"), [*MATRIX, *(pytest.param(f, n, marks=pytest.mark.slow) for f, n in ALL)])
def test_the_package_computes_what_the_untouched_model_computes(
    name: str, form: str, written: Callable[..., Any]
) -> None:
    model, folder, _, path = written(name, FORMS[form])
    family, predictor = folder.family, CoremlPredictor(path)
    reference = TorchPredictor(model, CLASSIFY, family.inputs)
    texts = [*SENTENCES, *(sample_pairs()[:8] if family.uses_segments else [])]
    tokenizer = TextTokenizer(folder.path, LENGTHS[-1])  # a ranged package takes no more
    probe = build_probe(reference, tokenizer, texts, [16, 32], CLASSIFY, ["logits"], predictor.lengths)
    scheme = FORMS[form].precision
    found = compare_with_probe(predictor, "package", "model", probe, ["logits"], 1.0)
    largest = max(float(np.abs(e).max()) for e in probe.expected)
    assert found.worst * found.spread / largest < EXACT[scheme], found
    assert found.mask_effect > 0.1
    lengths = {Shapes.ENUMERATED: (16, 32, 40), Shapes.FIXED: (40,), Shapes.RANGED: ()}[FORMS[form].shapes]
    assert predictor.lengths == lengths
    assert [t.name for t in predictor.signature.inputs] == list(family.inputs)
    assert {t.dtype for t in predictor.signature.inputs} == {"int32"}
    assert [(t.name, t.dtype, t.shape) for t in predictor.signature.outputs] == [("logits", "float32", [1, 3])]


def test_a_classifier_names_its_label(written: Callable[..., Any]) -> None:
    *_, tokenizer, path = written("bert", FORMS["ios18"])
    evaluator = Evaluator(path)
    assert evaluator.labels == LABELS
    batch = tokenizer.pad(tokenizer.encode(["a good film"]), 16)
    out = evaluator.run({n: v.astype(np.int32) for n, v in batch.items()})
    logits = np.asarray(out["logits"], np.float64)[0]
    expected = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    scores = out["classLabel_probs"]
    assert isinstance(scores, dict)
    assert list(scores) == list(LABELS)
    np.testing.assert_allclose(list(scores.values()), expected, atol=2e-3)
    assert out["classLabel"] == LABELS[int(logits.argmax())]


def test_what_the_package_says_of_itself(written: Callable[..., Any]) -> None:
    import coremltools as ct

    *_, path = written("bert", FORMS["ios18"])
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
    for trace in (b"/work/", b"/root/", b"/home/", b"/tmp/", b"site-packages", b".py"):
        assert trace not in content, trace


def test_the_same_model_gives_the_same_bytes(open_tiny: Callable[..., Any], tmp_path: Path) -> None:
    model, folder, _ = open_tiny("bert", 1)
    digests = []
    for name in ("a", "b"):
        module = prepare(model, folder.family, CLASSIFY, Format.COREML)
        path = tmp_path / f"{name}.mlpackage"
        exporter.export(module, folder.family, CLASSIFY, LENGTHS, path, CoremlForm(), INFO)
        digests.append(sha256_path(path))
    assert digests[0] == digests[1]


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

    theirs = convert(
        classifier_config=ct.ClassifierConfig(list(LABELS), predicted_probabilities_output="probabilities")
    )
    ours = convert()
    before = ours.SerializeToString(deterministic=True)
    add_classifier(ours, LABELS)
    blocks = [next(iter(s.mlProgram.functions["main"].block_specializations.values())) for s in (theirs, ours)]
    assert blocks[0].operations[-1] == blocks[1].operations[-1]
    assert list(blocks[0].outputs) == list(blocks[1].outputs)
    assert theirs.description.output == ours.description.output
    assert theirs.description.predictedFeatureName == ours.description.predictedFeatureName
    assert theirs.description.predictedProbabilitiesName == ours.description.predictedProbabilitiesName
    assert remove_classifier(ours) == list(LABELS)
    assert ours.SerializeToString(deterministic=True) == before
    assert remove_classifier(ours) == []


HEADS = [t for t in TASKS.values() if t.name is not TaskName.TEXT_CLASSIFICATION]


@pytest.mark.parametrize("task", HEADS, ids=[t.name.value for t in HEADS])
def test_every_task_of_the_table_can_be_written(
    task: Task, make_classifier: Callable[..., Any], tmp_path: Path
) -> None:
    family = family_of("bert")
    outputs = {TaskName.REGRESSION: 1, TaskName.QUESTION_ANSWERING: 2}.get(task.name, 3)
    model = make_classifier("bert", 1, LABELS[:outputs], auto_class=task.auto_class)
    path = tmp_path / "Model.mlpackage"
    module = prepare(model, family, task, Format.COREML)
    form = CoremlForm(precision=Scheme.FP32)
    exporter.export(module, family, task, [8, 16], path, form, CoremlInfo("d", "v", "", ""))
    predictor = CoremlPredictor(path)
    assert predictor.outputs == task.outputs
    ids = np.array([[2, 7, 8, 9, 10, 3, 0, 0]])
    inputs = {"input_ids": ids, "attention_mask": (ids != 0).astype(np.int64), "token_type_ids": ids * 0}
    reference = prepare(model, family, task)
    with torch.inference_mode():
        expected = reference(*(torch.from_numpy(inputs[n]) for n in family.inputs))
    found = predictor.run(inputs)
    for name, value in zip(task.outputs, expected, strict=True):
        own = value.numpy()
        assert worst_difference(np.asarray(found[name], np.float32), own) < 1e-5 * max(1.0, np.abs(own).max())


def test_fp16_is_computed_in_fp16(written: Callable[..., Any]) -> None:
    *_, tokenizer, path = written("bert", FORMS["ios18"])
    batch = {n: v.astype(np.int32) for n, v in tokenizer.pad(tokenizer.encode(["no"]), 16).items()}
    answers = [np.asarray(Evaluator(path, p).run(batch)["logits"]) for p in Precision]
    assert 0 < worst_difference(*answers) < 1e-2 * np.abs(answers[0]).max()


def test_without_coremltools_the_message_names_the_command(
    open_tiny: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, folder, _ = open_tiny("bert", 1)
    module = prepare(model, folder.family, CLASSIFY, Format.COREML)
    monkeypatch.setattr(exporter, "version_of", lambda _: None)
    with pytest.raises(MissingBackendError, match=r"pocketbert\[coreml\]"):
        exporter.export(module, folder.family, CLASSIFY, [16], tmp_path / "x.mlpackage", CoremlForm(), INFO)
    assert not list(tmp_path.iterdir())
