from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers

from pocketbert.core.errors import InputError
from pocketbert.core.families import family_of
from pocketbert.core.recipe.student import StudentSection
from pocketbert.distill.students.build import build_student, freeze_positions
from support.counting import parameter_count
from support.tiny import BASIC

BERT = family_of("bert")
PAIRS = [  # our layer's part, theirs
    ("attention.q_lin", "attention.self.query"),
    ("attention.k_lin", "attention.self.key"),
    ("attention.v_lin", "attention.self.value"),
    ("attention.out_lin", "attention.output.dense"),
    ("sa_layer_norm", "attention.output.LayerNorm"),
    ("ffn.lin1", "intermediate.dense"),
    ("ffn.lin2", "output.dense"),
    ("output_layer_norm", "output.LayerNorm"),
]


def section(layers: int, **more: Any) -> StudentSection:
    return StudentSection(layers=layers).model_copy(update={"family": "distilbert", **more})


def random_bert(make: Callable[..., Any], auto_class: str, layers: int = 3) -> Any:
    """No two tensors alike, biases and norms included."""
    model = make("bert", layers, ("a", "b"), auto_class=auto_class)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.normal_(1.0, 0.2)
    return model


def same(ours: torch.nn.Module, theirs: torch.nn.Module) -> bool:
    mine, yours = ours.state_dict(), theirs.state_dict()
    return set(mine) == set(yours) and all(torch.equal(v, yours[k]) for k, v in mine.items())


def test_a_six_layer_student_starts_from_the_layers_of_the_released_one(
    make_classifier: Callable[..., Any],
) -> None:
    teacher = random_bert(make_classifier, "AutoModelForMaskedLM", 12)
    student = build_student(teacher, BERT, section(6), 0)
    assert isinstance(student, transformers.DistilBertForMaskedLM) and student.training
    layers = student.distilbert.transformer.layer
    assert len(layers) == student.config.n_layers == 6
    for layer, source in zip(layers, [0, 2, 4, 7, 9, 11], strict=True):
        for ours, theirs in PAIRS:
            assert same(layer.get_submodule(ours), teacher.bert.encoder.layer[source].get_submodule(theirs)), ours
    ours, theirs = student.distilbert.embeddings, teacher.bert.embeddings
    assert same(ours.word_embeddings, theirs.word_embeddings)
    assert same(ours.position_embeddings, theirs.position_embeddings)
    assert same(ours.LayerNorm, theirs.LayerNorm)
    head = teacher.cls.predictions
    assert same(student.vocab_transform, head.transform.dense)
    assert same(student.vocab_layer_norm, head.transform.LayerNorm)
    assert same(student.vocab_projector, head.decoder)
    assert student.vocab_projector.weight is ours.word_embeddings.weight
    assert not {p.data_ptr() for p in student.parameters()} & {p.data_ptr() for p in teacher.parameters()}


@pytest.mark.parametrize(
    ("layers", "more", "chosen"),
    [(2, {}, [2, 4]), (2, {"teacher_layers": [4, 1]}, [4, 1]), (4, {}, [1, 2, 3, 4])],
)
def test_other_depths_use_the_layer_map(
    layers: int, more: dict[str, Any], chosen: list[int], make_classifier: Callable[..., Any]
) -> None:
    teacher = random_bert(make_classifier, "AutoModelForMaskedLM", 4)
    student = build_student(teacher, BERT, section(layers, **more), 0)
    for layer, source in zip(student.distilbert.transformer.layer, chosen, strict=True):
        assert same(layer.ffn.lin1, teacher.bert.encoder.layer[source - 1].intermediate.dense)


@torch.no_grad()
def test_folded_segments_make_the_embeddings_equal(make_classifier: Callable[..., Any]) -> None:
    teacher = random_bert(make_classifier, "AutoModelForMaskedLM")
    ids = torch.randint(5, 100, (2, 11), generator=torch.Generator().manual_seed(0))
    wanted = teacher.bert.embeddings(ids)
    for fold in (True, False):
        student = build_student(teacher, BERT, section(3, fold_segments=fold), 0).eval()
        difference = (student.distilbert.embeddings(ids) - wanted).abs().max()
        assert (float(difference) <= 1e-6) == fold
        # with all layers there is nothing else that differs
        assert torch.allclose(student(ids).logits, teacher(ids).logits, atol=1e-4) == fold


@pytest.mark.parametrize(
    ("auto_class", "made"),
    [
        ("AutoModel", "DistilBertModel"),
        ("AutoModelForPreTraining", "DistilBertForMaskedLM"),
        ("AutoModelForSequenceClassification", "DistilBertForSequenceClassification"),
        ("AutoModelForTokenClassification", "DistilBertForTokenClassification"),
        ("AutoModelForQuestionAnswering", "DistilBertForQuestionAnswering"),
    ],
)
@torch.no_grad()
def test_every_head_has_its_counterpart(auto_class: str, made: str, make_classifier: Callable[..., Any]) -> None:
    teacher = random_bert(make_classifier, auto_class)
    student = build_student(teacher, BERT, section(3, fold_segments=True), 0).eval()
    assert type(student).__name__ == made
    assert student.config.id2label == teacher.config.id2label == {0: "a", 1: "b"}
    ids = torch.randint(5, 100, (2, 9), generator=torch.Generator().manual_seed(0))
    if auto_class == "AutoModelForSequenceClassification":
        # tanh behind the teacher's pooler, ReLU behind the student's: weights carry over, the function does not
        assert same(student.pre_classifier, teacher.bert.pooler.dense)
        assert same(student.classifier, teacher.classifier)
        pooled = student.distilbert(ids).last_hidden_state[:, 0]
        torch.testing.assert_close(pooled, teacher.bert(ids).last_hidden_state[:, 0], rtol=1e-4, atol=1e-5)
    else:
        torch.testing.assert_close(student(ids)[0], teacher(ids)[0], rtol=1e-4, atol=1e-4)


def test_a_random_student_takes_sizes_and_seed_only(make_classifier: Callable[..., Any]) -> None:
    teacher = random_bert(make_classifier, "AutoModelForMaskedLM")
    wanted = section(2, init="random", hidden=24, heads=3, intermediate=40)
    one, two = (build_student(teacher, BERT, wanted, 5) for _ in range(2))
    assert (one.config.dim, one.config.n_heads, one.config.hidden_dim, one.config.n_layers) == (24, 3, 40, 2)
    assert same(one, two)
    assert not same(one, build_student(teacher, BERT, wanted, 6))


def test_what_cannot_be_made_is_refused(make_classifier: Callable[..., Any]) -> None:
    roberta = make_classifier("roberta", 2, ("a", "b"))
    with pytest.raises(
        InputError, match="'distilbert' cannot be made from a teacher of family 'roberta'; possible: roberta"
    ):
        build_student(roberta, family_of("roberta"), section(1), 0)
    bert = make_classifier("bert", 2, ("a", "b"))
    with pytest.raises(InputError, match=r"possible: bert, distilbert\."):
        build_student(bert, BERT, section(1, family="mobilebert"), 0)
    for more in ({"family": None}, {"init": "random"}):
        with pytest.raises(InputError, match=r"student\.fold_segments"):
            build_student(bert, BERT, section(1, fold_segments=True, **more), 0)
    next_sentence = make_classifier("bert", 2, ("a", "b"), auto_class="AutoModelForNextSentencePrediction")
    with pytest.raises(InputError, match="DistilBERT has no class like BertForNextSentencePrediction"):
        build_student(next_sentence, BERT, section(1), 0)


def test_frozen_positions(make_classifier: Callable[..., Any]) -> None:
    for name in BASIC:
        model = make_classifier(name, 1, ("a", "b"))
        freeze_positions(model)
        assert [n.split(".", 1)[1] for n, p in model.named_parameters() if not p.requires_grad] == [
            "embeddings.position_embeddings.weight"
        ]
    with pytest.raises(InputError, match="no table of positions"):
        freeze_positions(torch.nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("words", "encoder", "language_model"),
    [(30522, 66_362_880, 66_985_530), (28996, 65_190_912, None), (119547, 134_734_080, None)],
    ids=["uncased", "cased", "multilingual"],
)
def test_parameters_of_the_published_students(words: int, encoder: int, language_model: int | None) -> None:
    config = transformers.BertConfig(vocab_size=words)
    with torch.device("meta"):
        student = build_student(transformers.BertForMaskedLM(config), BERT, section(6), 0)
    assert parameter_count(student.distilbert) == encoder
    assert parameter_count(student) == (language_model or encoder + 768 * 768 + 768 + 2 * 768 + words)


def test_parameters_of_the_published_teacher_and_of_a_roberta_student() -> None:
    with torch.device("meta"):
        assert parameter_count(transformers.BertModel(transformers.BertConfig())) == 109_482_240
        config = transformers.RobertaConfig(vocab_size=50265, max_position_embeddings=514, type_vocab_size=1)
        teacher = transformers.RobertaForMaskedLM(config)
        student = build_student(teacher, family_of("roberta"), StudentSection(layers=6), 0)
    assert parameter_count(student) == 82_118_400 - (768 * 768 + 768) + (768 * 768 + 768 + 2 * 768 + 50265)
