from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from pocketbert.core.errors import InputError
from pocketbert.core.families import family_of, find_family
from pocketbert.core.recipe.student import StudentSection, VocabularySection
from pocketbert.core.types import Projection
from pocketbert.distill.students.build import build_student, check_student_sizes, freeze_positions
from pocketbert.distill.students.layer_map import layer_map
from pocketbert.distill.students.projection import attach_projection
from support.counting import parameter_count
from support.tiny import BASIC, ENTRIES
from support.tiny import EXPORTED as FAMILIES

BERT = family_of("bert")
IDS = torch.randint(5, 100, (2, 11), generator=torch.Generator().manual_seed(0))


def same(ours: torch.nn.Module, theirs: torch.nn.Module) -> bool:
    mine, yours = ours.state_dict(), theirs.state_dict()
    return mine.keys() == yours.keys() and all(torch.equal(v, yours[k]) for k, v in mine.items())


def section(layers: int, **more: Any) -> StudentSection:
    return StudentSection(layers=layers).model_copy(update=more)


# --- the teacher's class ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "depth", "listed", "chosen"),
    [
        *((name, 4, None, [2, 4]) for name in ("bert", "ib-bert")),
        ("bert", 12, [2, 12], [2, 12]),
        ("bert", 4, [3, 3], [3, 3]),
    ],
)
def test_inherited_layers_equal_the_teachers_and_share_no_memory(name, depth, listed, chosen, make_classifier):
    """`tests/families/test_table.py` has the layers of all other families."""
    teacher, family = make_classifier(name, depth, ("a", "b")), find_family(name)
    student = build_student(teacher, family, section(2, teacher_layers=listed), 0)
    ours, theirs = (model.get_submodule(family.layer_path) for model in (student, teacher))
    assert len(ours) == 2
    assert all(same(layer, theirs[source - 1]) for layer, source in zip(ours, chosen, strict=True))
    assert student.training
    assert (student.config.num_hidden_layers, teacher.config.num_hidden_layers) == (2, depth)
    assert not {p.data_ptr() for p in student.parameters()} & {p.data_ptr() for p in teacher.parameters()}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_random_student_depends_on_the_seed_alone_and_may_have_another_size(name, make_classifier):
    teacher, family = make_classifier(name, 3, ("a", "b", "c")), find_family(name)
    sizes = {"hidden": 24, "heads": 3, "intermediate": 40} if ENTRIES[name].resized else {}
    made = []
    for state, seed in ((1, 5), (2, 5), (2, 6)):
        torch.manual_seed(state)
        made.append(build_student(teacher, family, section(2, init="random", **sizes), seed).eval())
    first, again, other = (student.state_dict() for student in made)
    assert all(torch.equal(first[k], again[k]) for k in first)
    begins = tuple(f"{path}.0" for path in (family.layer_path, *family.layer_lists))
    matrices = [k for k, v in first.items() if k.startswith(begins) and v.ndim > 1]
    assert matrices and all(not torch.equal(first[k], other[k]) for k in matrices)
    student = made[0]
    assert student(input_ids=torch.tensor([[2, 5, 6, 3]])).logits.shape == (1, 3)
    if sizes:
        numbers = {n for p in student.get_submodule(family.layer_path).parameters() for n in p.shape}
        assert {24, 40} <= numbers | {n // 2 for n in numbers}, "two gates may be one matrix"
        assert not {32, 64} & numbers
    saved = type(student)(type(student.config).from_dict(student.config.to_dict()))
    assert parameter_count(saved) == parameter_count(student)


@pytest.mark.parametrize("sizes", [{"hidden": 24, "heads": 3}, {"heads": 2}], ids=str)
@pytest.mark.parametrize("name", [n for n in FAMILIES if ENTRIES[n].resized])
def test_a_narrower_student_starts_from_the_teachers_embeddings(name, sizes, make_classifier):
    teacher, family = make_classifier(name, 3, ("a", "b", "c")), find_family(name)
    student, drawn = (
        build_student(teacher, family, section(2, init=init, **sizes), 5).eval() for init in ("embeddings", "random")
    )
    assert student(input_ids=torch.tensor([[2, 5, 6, 3]])).logits.isfinite().all()
    table, reduced = (m.get_input_embeddings().weight.detach().double() for m in (teacher, student))
    if reduced.shape == table.shape:  # all of the teacher's numbers, or a table of its own width
        assert torch.equal(reduced, table)
    else:  # the inner products of the words are those of their principal components, by another routine
        _, _, axes = np.linalg.svd((table - table.mean(0)).numpy(), full_matrices=False)
        kept = table.numpy() @ axes[:24].T @ axes[:24] @ table.numpy().T
        np.testing.assert_allclose((reduced @ reduced.T).numpy(), kept, rtol=1e-5, atol=1e-6)
    copied = {"classifier.bias", "classifier.out_proj.bias", "logits_proj.bias", "sequence_summary.summary.bias"}
    state, theirs, random = (m.state_dict() for m in (student, teacher, drawn))
    assert any(torch.equal(state[k], theirs[k]) for k in copied & state.keys())
    layers = [k for k in state if k.startswith((family.layer_path, *family.layer_lists))]
    assert layers and all(torch.equal(state[k], random[k]) for k in layers)


def test_the_head_of_a_narrower_student_reads_the_components(make_classifier):
    teacher = make_classifier("bert", 2, ("a", "b"))
    student = build_student(teacher, BERT, section(1, init="embeddings", hidden=16), 0)
    word, positions = (
        [m.bert.embeddings.get_submodule(n).weight.detach() for m in (teacher, student)]
        for n in ("word_embeddings", "position_embeddings")
    )
    basis = torch.linalg.lstsq(word[0], word[1]).solution
    torch.testing.assert_close(basis.T @ basis, torch.eye(16), rtol=1e-4, atol=1e-4)
    wide, narrow = teacher.state_dict(), student.state_dict()
    for name, wanted in {
        "bert.embeddings.position_embeddings.weight": positions[0] @ basis,
        "bert.pooler.dense.weight": basis.T @ wide["bert.pooler.dense.weight"] @ basis,
        "bert.pooler.dense.bias": wide["bert.pooler.dense.bias"] @ basis,
        "classifier.weight": wide["classifier.weight"] @ basis,
        "classifier.bias": wide["classifier.bias"],
        "bert.embeddings.LayerNorm.weight": torch.ones(16),
    }.items():
        torch.testing.assert_close(narrow[name], wanted, rtol=1e-3, atol=1e-4, msg=name)


def bert_config(vocabulary: int = 30522, layers: int = 12, **more: Any) -> transformers.BertConfig:
    return transformers.BertConfig(vocab_size=vocabulary, num_hidden_layers=layers, **more)


ROBERTA = transformers.RobertaConfig(vocab_size=50265, max_position_embeddings=514, type_vocab_size=1)
MINILM = bert_config(layers=6, hidden_size=384, num_attention_heads=12, intermediate_size=1536)
TINY4 = {"layers": 4, "init": "random", "hidden": 312, "intermediate": 1200, "heads": 12}
DISTIL = {"layers": 6, "family": "distilbert"}
PUBLISHED = {
    "MiniLM-L3": (transformers.BertForSequenceClassification, MINILM, {"layers": 3}, 17_390_594),
    "TinyBERT4": (transformers.BertModel, bert_config(), TINY4, 14_350_248),
    "TinyBERT4-zh": (transformers.BertModel, bert_config(21128), TINY4, 11_419_320),
    "TinyBERT6": (transformers.BertModel, bert_config(), {"layers": 6, "init": "random"}, 66_955_008),
    "DistilBERT": (transformers.BertForMaskedLM, bert_config(), DISTIL, 66_985_530),
    "DistilBERT, encoder": (transformers.BertModel, bert_config(), DISTIL, 66_362_880),
    "DistilBERT, cased": (transformers.BertModel, bert_config(28996), DISTIL, 65_190_912),
    "DistilBERT, multilingual": (transformers.BertModel, bert_config(119547), DISTIL, 134_734_080),
    "DistilRoBERTa": (transformers.RobertaForMaskedLM, ROBERTA, {"layers": 6}, 82_118_400 + 2 * 768 + 50265),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_students_have_the_published_numbers_of_parameters(name):
    kind, config, wanted, parameters = PUBLISHED[name]
    with torch.device("meta"):
        teacher = kind(config)
        student = build_student(teacher, family_of(config.model_type), section(**wanted), 0)
        assert parameter_count(student) == parameters
        if name == "TinyBERT4":
            attach_projection(student, 768, Projection.SHARED, 0)
            assert parameter_count(student) == parameters + 240_384


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (
            {"layers": 1, "init": "random", "hidden": 30},
            "hidden 30 is not a multiple of heads 4. Fix: Set heads: 3, or hidden to a multiple of 4, such as 28",
        ),
        (
            {"layers": 1, "init": "embeddings", "hidden": 64},
            "student.hidden: 64 is wider than the teacher's 32.*Set hidden below 32, or init: random",
        ),
        (
            {"layers": 1, "init": "embeddings", "hidden": 32},
            "hidden 32 and heads 4 are the teacher's own: .* Leave hidden and heads out",
        ),
        ({"layers": 3}, "the student has 3 layers, the teacher only 2"),
        ({"layers": 1, "family": "mobilebert"}, r"'mobilebert' cannot be made .*possible: bert, distilbert\."),
        ({"layers": 1, "fold_segments": True}, r"student\.fold_segments"),
        ({"layers": 1, "fold_segments": True, "init": "random", "family": "distilbert"}, r"student\.fold_segments"),
    ],
)
def test_what_cannot_be_made_is_refused(wanted, message, make_classifier):
    with pytest.raises(InputError, match=message):
        build_student(make_classifier("bert", 2, ("a", "b")), BERT, section(**wanted), 0)


@pytest.mark.parametrize("name", [n for n in FAMILIES if ENTRIES[n].resized])
def test_sizes_that_can_be_built_pass_before_anything_is_built(name, make_classifier):
    teacher, family = make_classifier(name, 3, ("a", "b")), find_family(name)
    wanted = section(2, init="embeddings", hidden=24, heads=3)
    student = build_student(teacher, family, wanted, 0)
    encoder = sum(
        p.numel() for n, p in student.named_parameters() if not n.startswith(("classifier", "pre_classifier"))
    )
    counted = check_student_sizes(teacher.config, family, wanted)
    assert 0.8 * encoder <= counted <= 1.1 * encoder, "a class may have a pooler more, or a map less"
    pruned = check_student_sizes(teacher.config, family, wanted.model_copy(update={"vocabulary": VocabularySection()}))
    assert counted - pruned == student.get_input_embeddings().weight.numel()


@pytest.mark.parametrize(
    ("name", "sizes", "message"),
    [
        ("squeezebert", {"hidden": 30, "heads": 3}, r"student: hidden 30, heads 3: SqueezeBERT .*groups.*tiples of 4"),
        ("squeezebert", {"intermediate": 50}, r"student: intermediate 50: SqueezeBERT .*groups.* multiples of 4"),
        ("xlm", {"intermediate": 40}, r"student\.intermediate: XLM has no such size"),
    ],
)
def test_sizes_that_a_family_cannot_have_are_refused_before_anything_is_built(name, sizes, message, make_classifier):
    config = make_classifier(name, 2, ("a", "b")).config
    with pytest.raises(InputError, match=message):
        check_student_sizes(config, find_family(name), section(1, init="random", **sizes))


def test_word_vectors_of_their_own_width_are_kept_and_others_are_refused_with_the_reason(make_classifier):
    teacher = make_classifier("electra", 2, ("a", "b"), embedding_size=16)
    student = build_student(teacher, find_family("electra"), section(1, init="embeddings", hidden=16), 0)
    assert torch.equal(student.get_input_embeddings().weight, teacher.get_input_embeddings().weight)
    other = make_classifier("mobilebert", 2, ("a", "b"))
    own = other.config.embedding_size
    with pytest.raises(InputError, match=rf"student.init: MobileBERT's word vectors have {own} numbers, its states"):
        build_student(other, find_family("mobilebert"), section(1, init="embeddings", hidden=16), 0)


# --- another class ----------------------------------------------------------------------------------------------------

PAIRS = [  # a DistilBERT layer's part, a BERT layer's
    ("attention.q_lin", "attention.self.query"),
    ("attention.k_lin", "attention.self.key"),
    ("attention.v_lin", "attention.self.value"),
    ("attention.out_lin", "attention.output.dense"),
    ("sa_layer_norm", "attention.output.LayerNorm"),
    ("ffn.lin1", "intermediate.dense"),
    ("ffn.lin2", "output.dense"),
    ("output_layer_norm", "output.LayerNorm"),
]


@pytest.fixture
def random_bert(make_classifier) -> Callable[..., Any]:
    """`random_bert(auto_class, layers=3)`: no two tensors alike, biases and norms included."""

    def make(auto_class: str, layers: int = 3) -> Any:
        model = make_classifier("bert", layers, ("a", "b"), auto_class=auto_class)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim == 1:
                    parameter.normal_(1.0, 0.2)
        return model

    return make


@pytest.mark.parametrize(
    ("depth", "wanted", "chosen"),
    [
        (12, {"layers": 6}, [1, 3, 5, 8, 10, 12]),  # as the released student started
        (4, {"layers": 2}, [2, 4]),
        (4, {"layers": 2, "teacher_layers": [4, 1]}, [4, 1]),
    ],
)
def test_a_distilbert_starts_from_layers_embeddings_and_head_of_a_bert(depth, wanted, chosen, random_bert):
    teacher = random_bert("AutoModelForMaskedLM", depth)
    student = build_student(teacher, BERT, section(**wanted, family="distilbert"), 0)
    assert isinstance(student, transformers.DistilBertForMaskedLM) and student.training
    layers = student.distilbert.transformer.layer
    assert student.config.n_layers == len(layers)
    for layer, source in zip(layers, chosen, strict=True):
        theirs = teacher.bert.encoder.layer[source - 1]
        assert all(same(layer.get_submodule(a), theirs.get_submodule(b)) for a, b in PAIRS)
    for name in ("word_embeddings", "position_embeddings", "LayerNorm"):
        assert same(student.distilbert.embeddings.get_submodule(name), teacher.bert.embeddings.get_submodule(name))
    head = teacher.cls.predictions
    assert same(student.vocab_transform, head.transform.dense)
    assert same(student.vocab_layer_norm, head.transform.LayerNorm)
    assert same(student.vocab_projector, head.decoder)
    assert student.vocab_projector.weight is student.distilbert.embeddings.word_embeddings.weight
    assert not {p.data_ptr() for p in student.parameters()} & {p.data_ptr() for p in teacher.parameters()}


@pytest.mark.parametrize(
    ("auto_class", "made"),
    [
        ("AutoModel", "DistilBertModel"),
        ("AutoModelForMaskedLM", "DistilBertForMaskedLM"),
        ("AutoModelForPreTraining", "DistilBertForMaskedLM"),
        ("AutoModelForSequenceClassification", "DistilBertForSequenceClassification"),
        ("AutoModelForTokenClassification", "DistilBertForTokenClassification"),
        ("AutoModelForQuestionAnswering", "DistilBertForQuestionAnswering"),
    ],
)
@torch.no_grad()
def test_with_folded_segments_every_head_gives_the_teachers_answers(auto_class, made, random_bert):
    teacher = random_bert(auto_class)
    student, dropped = (
        build_student(teacher, BERT, section(3, family="distilbert", fold_segments=fold), 0).eval()
        for fold in (True, False)
    )
    assert type(student).__name__ == made
    assert student.config.id2label == teacher.config.id2label == {0: "a", 1: "b"}
    if auto_class == "AutoModelForSequenceClassification":
        # tanh behind the teacher's pooler, ReLU behind the student's: weights carry over, the function does not
        assert same(student.pre_classifier, teacher.bert.pooler.dense)
        assert same(student.classifier, teacher.classifier)
        student, dropped, teacher = student.distilbert, dropped.distilbert, teacher.bert
    torch.testing.assert_close(student(IDS)[0], teacher(IDS)[0], rtol=1e-4, atol=1e-4)
    assert not torch.allclose(dropped(IDS)[0], teacher(IDS)[0], atol=1e-3)


def test_a_random_student_of_another_class_takes_sizes_and_seed_only(random_bert):
    wanted = section(2, init="random", hidden=24, heads=3, intermediate=40, family="distilbert")
    one, two, other = (build_student(random_bert("AutoModelForMaskedLM"), BERT, wanted, seed) for seed in (5, 5, 6))
    assert (one.config.dim, one.config.n_heads, one.config.hidden_dim, one.config.n_layers) == (24, 3, 40, 2)
    assert same(one, two) and not same(one, other)


def test_classes_that_do_not_correspond_are_refused(make_classifier):
    roberta = make_classifier("roberta", 2, ("a", "b"))
    with pytest.raises(InputError, match="'distilbert' cannot be made from a teacher of family 'roberta'"):
        build_student(roberta, family_of("roberta"), section(1, family="distilbert"), 0)
    pairs = make_classifier("bert", 2, ("a", "b"), auto_class="AutoModelForNextSentencePrediction")
    with pytest.raises(InputError, match="DistilBERT has no class like BertForNextSentencePrediction"):
        build_student(pairs, BERT, section(1, family="distilbert"), 0)


@pytest.mark.parametrize("name", BASIC)
def test_positions_alone_are_frozen(name, make_classifier):
    model = make_classifier(name, 1, ("a", "b"))
    freeze_positions(model)
    (frozen,) = [n.partition(".")[2] for n, p in model.named_parameters() if not p.requires_grad]
    assert frozen == "embeddings.position_embeddings.weight"
    with pytest.raises(InputError, match="no table of positions"):
        freeze_positions(torch.nn.Linear(2, 2))


# which layers of the teacher a student starts from


@pytest.mark.parametrize(
    ("student", "teacher", "wanted"), [(3, 6, [2, 4, 6]), (4, 12, [3, 6, 9, 12]), (2, 3, [2, 3]), (4, 6, [2, 3, 5, 6])]
)
def test_known_maps(student, teacher, wanted):
    assert layer_map(student, teacher) == wanted


@settings(max_examples=25)
@given(st.integers(1, 48).flatmap(lambda n: st.tuples(st.integers(1, n), st.just(n))))
def test_maps_rise_to_the_last_layer(sizes):
    student, teacher = sizes
    found = layer_map(student, teacher)
    assert len(found) == student and found == sorted(set(found)) and found[-1] == teacher
    assert all(abs(n - m * teacher / student) <= 0.5 for m, n in enumerate(found, 1))


def test_a_listed_map_is_taken_as_it_is():
    assert layer_map(3, 6, [1, 1, 5]) == [1, 1, 5]
    assert layer_map(3, 2, [1, 2, 2]) == [1, 2, 2]


@pytest.mark.parametrize("listed", [[1, 2], [1, 2, 7], [0, 1, 2], []])
def test_a_list_that_does_not_fit_is_refused(listed):
    with pytest.raises(InputError, match="distill.0.layers: .* does not map 3 student layers to teacher layers 1 to 6"):
        layer_map(3, 6, listed, "distill.0.layers")
