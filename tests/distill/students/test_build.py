from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers

from pocketbert.core.errors import InputError
from pocketbert.core.families import family_of, find_family
from pocketbert.core.recipe.student import StudentSection
from pocketbert.distill.students.build import _select_layers, build_student
from support.counting import parameter_count
from support.tiny import ENTRIES
from support.tiny import EXPORTED as FAMILIES


@pytest.mark.parametrize("name", [n for n in FAMILIES if ENTRIES[n].copied])
@pytest.mark.parametrize(("listed", "chosen"), [(None, [2, 4]), ([1, 4], [1, 4]), ([3, 3], [3, 3])])
def test_inherited_layers_equal_the_teachers(
    name: str, listed: list[int] | None, chosen: list[int], make_classifier: Callable[..., Any]
) -> None:
    teacher, family = make_classifier(name, 4, ("a", "b")), find_family(name)
    student = build_student(teacher, family, StudentSection(layers=2, teacher_layers=listed), 0)
    lists = (family.layer_path, *family.layer_lists)
    for path in lists:
        ours, theirs = student.get_submodule(path), teacher.get_submodule(path)
        assert len(ours) == 2
        for layer, source in zip(ours, chosen, strict=True):
            for key, value in layer.state_dict().items():
                assert torch.equal(value, theirs[source - 1].state_dict()[key]), key
    for key, value in student.state_dict().items():
        if not key.startswith(lists):
            assert torch.equal(value, teacher.state_dict()[key]), key
    assert student.training
    assert student.config.num_hidden_layers == 2
    assert teacher.config.num_hidden_layers == 4


@pytest.mark.parametrize("name", FAMILIES)
def test_a_student_shares_no_memory_with_its_teacher(name: str, make_classifier: Callable[..., Any]) -> None:
    teacher, family = make_classifier(name, 2, ("a", "b")), find_family(name)
    before = {k: v.clone() for k, v in teacher.state_dict().items()}
    student = build_student(teacher, family, StudentSection(layers=2), 0)
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.add_(1.0)
    assert all(torch.equal(v, before[k]) for k, v in teacher.state_dict().items())


@pytest.mark.parametrize("name", FAMILIES)
def test_a_random_student_depends_on_the_seed_alone(name: str, make_classifier: Callable[..., Any]) -> None:
    teacher, family = make_classifier(name, 3, ("a", "b")), find_family(name)
    wanted = StudentSection(layers=2, init="random")
    torch.manual_seed(1)
    first = build_student(teacher, family, wanted, 5).state_dict()
    torch.manual_seed(2)
    again, other = (
        build_student(teacher, family, wanted, 5).state_dict(),
        build_student(teacher, family, wanted, 6).state_dict(),
    )
    key = tuple(f"{path}.0" for path in (family.layer_path, *family.layer_lists))
    matrices = [k for k, v in first.items() if k.startswith(key) and v.ndim > 1]
    assert matrices
    assert all(torch.equal(first[k], again[k]) for k in first)
    assert all(not torch.equal(first[k], other[k]) for k in matrices)


@pytest.mark.parametrize("name", [n for n in FAMILIES if ENTRIES[n].resized])
def test_a_student_of_another_size(name: str, make_classifier: Callable[..., Any]) -> None:
    teacher, family = make_classifier(name, 3, ("a", "b", "c")), find_family(name)
    wanted = StudentSection(layers=2, init="random", hidden=24, heads=3, intermediate=40)
    student = build_student(teacher, family, wanted, 0).eval()
    shapes = {tuple(p.shape) for p in student.get_submodule(family.layer_path).parameters()}
    assert {24, 40} <= {n for s in shapes for n in s} | {
        n // 2 for s in shapes for n in s
    }  # two gates may be one matrix
    assert not any(64 in s or 32 in s for s in shapes)
    ids = torch.tensor([[2, 5, 6, 3]])
    assert student(input_ids=ids).logits.shape == (1, 3)
    again = type(student)(type(student.config).from_dict(student.config.to_dict()))
    assert parameter_count(again) == parameter_count(student)


def test_a_width_that_the_heads_do_not_divide_is_refused(make_classifier: Callable[..., Any]) -> None:
    teacher = make_classifier("bert", 2, ("a", "b"))
    with pytest.raises(InputError, match="hidden 30 is not a multiple of heads 4"):
        build_student(teacher, family_of("bert"), StudentSection(layers=1, init="random", hidden=30), 0)


def test_a_student_deeper_than_its_teacher_is_refused(make_classifier: Callable[..., Any]) -> None:
    teacher = make_classifier("bert", 2, ("a", "b"))
    with pytest.raises(InputError, match="the student has 3 layers, the teacher only 2"):
        build_student(teacher, family_of("bert"), StudentSection(layers=3), 0)


def test_inherited_weights_keep_everything_outside_the_layers() -> None:
    state = {
        "e.w": torch.ones(1),
        "l.0.w": torch.zeros(1),
        "l.1.w": torch.full((1,), 2.0),
        "l.10.w": torch.full((1,), 9.0),
    }
    found = _select_layers(state, "l", [2, 11, 1])
    assert {k: float(v) for k, v in found.items()} == {"e.w": 1.0, "l.0.w": 2.0, "l.1.w": 9.0, "l.2.w": 0.0}


def test_a_three_layer_student_of_minilm_has_this_many_parameters() -> None:
    config = transformers.BertConfig(
        hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536
    )
    with torch.device("meta"):
        teacher = transformers.BertForSequenceClassification(config)
        student = build_student(teacher, family_of("bert"), StudentSection(layers=3), 0)
    layer = 4 * (384 * 384 + 384) + 2 * (384 * 1536) + 1536 + 384 + 4 * 384
    embeddings = (30522 + 512 + 2) * 384 + 2 * 384
    assert parameter_count(student) == embeddings + 3 * layer + (384 * 384 + 384) + (384 * 2 + 2) == 17_390_594
    assert parameter_count(teacher) - parameter_count(student) == 3 * layer


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        (transformers.DistilBertConfig(), 66_362_880),
        (transformers.MobileBertConfig(), 24_581_888 + 512 * 512 + 512),  # the specification counts without the pooler
        (
            transformers.BertConfig(
                hidden_size=312, num_hidden_layers=4, num_attention_heads=12, intermediate_size=1200
            ),
            14_350_248,
        ),
        (transformers.BertConfig(num_hidden_layers=6), 66_955_008),
    ],
    ids=["DistilBERT", "MobileBERT", "TinyBERT4", "TinyBERT6"],
)
def test_published_parameter_counts(config: Any, wanted: int) -> None:
    with torch.device("meta"):
        model = transformers.AutoModel.from_config(config)
    assert parameter_count(model) == wanted
