import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pocketbert.core.errors import InputError
from pocketbert.core.families import Objective, family_of
from pocketbert.core.recipe.stages import DistilBertStage, TripleWeights
from pocketbert.distill.methods.distilbert import DistilBertDistillation
from support.objectives import language_model, make_batch, make_student, means, try_distilbert
from support.tiny import tiny_classifier

BERT = family_of("bert")


def stage_of(**settings: Any) -> DistilBertStage:
    return DistilBertStage.model_validate({"method": "distilbert", "steps": 1, **settings})


def log_softmax(x: np.ndarray) -> np.ndarray:
    shifted = x - x.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def formulas(teacher: Any, student: Any, batch: dict[str, Tensor], masked_only: bool) -> dict[str, float]:
    """The three terms from the models' ordinary outputs, float64."""
    inputs = {k: batch[k] for k in ("input_ids", "attention_mask")}
    with torch.no_grad():
        outs = [m(**inputs, output_hidden_states=True) for m in (student, teacher)]
    (s, a), (t, b) = ((o.logits.double().numpy(), o.hidden_states[-1].double().numpy()) for o in outs)
    mask, labels = batch["attention_mask"].numpy() == 1, batch["labels"].numpy()
    hidden = labels != -100
    log_s, log_t = log_softmax(s / 2), log_softmax(t / 2)
    kl = 4 * (np.exp(log_t) * (log_t - log_s)).sum(-1)
    cosine = (a * b).sum(-1) / np.sqrt((a * a).sum(-1) * (b * b).sum(-1))
    return {
        "logits": kl[hidden if masked_only else mask].mean(),
        "mlm": -log_softmax(s)[hidden, labels[hidden]].mean(),
        "cosine": (1 - cosine)[mask].mean(),
    }


@pytest.mark.parametrize("masked_only", [False, True])
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_terms_are_the_formulas_of_the_paper(family, masked_only):
    teacher, batch = language_model(family), make_batch()
    student = make_student(teacher)
    objective = DistilBertDistillation(teacher, student, family_of(family), stage_of(masked_only=masked_only))
    terms = objective(student, batch)
    assert means(terms) == pytest.approx(formulas(teacher, student, batch, masked_only), rel=1e-5, abs=1e-6)
    real, labelled = int(batch["attention_mask"].sum()), int((batch["labels"] != -100).sum())
    counts = {name: int(t.count) for name, t in terms.items()}
    assert counts == {"logits": labelled if masked_only else real, "mlm": labelled, "cosine": real}
    assert objective.weights == {"logits": 5.0, "mlm": 2.0, "cosine": 1.0}


def test_segment_ids_never_reach_the_models():
    trial = try_distilbert()
    zeros = trial.batch() | {"token_type_ids": torch.zeros_like(trial.batch()["input_ids"])}
    assert means(trial.terms()) == means(trial.objective(trial.student, zeros))


@pytest.mark.parametrize("masked_only", [False, True])
def test_only_the_needed_tokens_are_projected(masked_only):
    trial, seen = try_distilbert({"family": "distilbert"}, masked_only=masked_only), dict[str, int]()
    heads = {"teacher": trial.teacher.cls.predictions.decoder, "student": trial.student.vocab_projector}
    for name, head in heads.items():
        head.register_forward_hook(lambda m, a, out, n=name: seen.update({n: out.numel()}))
    trial.terms()
    batch = trial.batch()
    mask = batch["labels"] != -100 if masked_only else batch["attention_mask"] == 1
    assert seen == dict.fromkeys(heads, int(mask.sum()) * trial.teacher.config.vocab_size)


def test_models_that_do_not_fit_are_refused_with_all_reasons():
    teacher, other = language_model(), language_model(hidden_size=24, vocab_size=150)
    with pytest.raises(InputError) as caught:
        DistilBertDistillation(teacher, other, BERT, stage_of(), "distill.2")
    vocabulary, width = (str(p) for p in caught.value.problems)
    assert "distill.2: the student has 150 vocabulary entries, the teacher" in vocabulary
    assert "distill.2.weights.cosine: the student is 24 wide, the teacher 32." in width
    assert "Set cosine: 0" in width
    narrow, stage = language_model(hidden_size=24), stage_of(weights=TripleWeights(cosine=0))
    terms = DistilBertDistillation(teacher, narrow, BERT, stage)(narrow, make_batch())
    assert set(terms) == {"logits", "mlm"}


def test_a_teacher_that_guesses_no_masked_tokens_is_refused():
    teacher, classifier = language_model(), tiny_classifier("bert", 2, ("a", "b"))
    family = dataclasses.replace(BERT, title="ELECTRA", objectives=(Objective.REPLACED_TOKEN,))
    with pytest.raises(InputError, match=r"weights\.logits: ELECTRA checkpoints .* replaced-token"):
        DistilBertDistillation(teacher, make_student(teacher), family, stage_of())
    with pytest.raises(InputError, match="teacher: BertForSequenceClassification has no known"):
        DistilBertDistillation(classifier, teacher, BERT, stage_of())
