from __future__ import annotations

from itertools import pairwise

import pytest
import torch
import transformers

from pocketbert.core.families import family_of
from pocketbert.core.recipe.student import StudentSection
from pocketbert.core.types import Projection
from pocketbert.distill.students.build import build_student
from pocketbert.distill.students.layer_map import layer_map
from pocketbert.distill.students.projection import attach_projection
from support.counting import parameter_count

TINY4 = StudentSection(layers=4, init="random", hidden=312, intermediate=1200, heads=12)
TINY6 = StudentSection(layers=6, init="random")


def bert(vocabulary: int = 30522, pooler: bool = True) -> transformers.BertModel:
    """BERT-base without memory."""
    with torch.device("meta"):
        return transformers.BertModel(transformers.BertConfig(vocab_size=vocabulary), add_pooling_layer=pooler)


def student_of(teacher: transformers.BertModel, wanted: StudentSection) -> transformers.BertModel:
    with torch.device("meta"):
        made: transformers.BertModel = build_student(teacher, family_of("bert"), wanted, 0)
    return made


@pytest.mark.parametrize(
    ("vocabulary", "wanted", "parameters", "pooler"),
    [
        (30522, TINY4, 14_350_248, 97_656),
        (30522, TINY6, 66_955_008, 590_592),
        (21128, TINY4, 11_419_320, 97_656),
    ],
    ids=["TinyBERT4", "TinyBERT6", "TinyBERT4-zh"],
)
def test_sizes_are_the_originals(vocabulary: int, wanted: StudentSection, parameters: int, pooler: int) -> None:
    student = student_of(bert(vocabulary), wanted)
    assert parameter_count(student) == parameters
    assert parameter_count(student.pooler) == pooler
    assert student.config.num_attention_heads == 12


def test_without_pooler_and_with_projection() -> None:
    student = student_of(bert(), TINY4)
    student.pooler = None
    assert parameter_count(student) == 14_252_592
    whole = student_of(bert(), TINY4)
    attach_projection(whole, 768, Projection.SHARED, 0)
    assert parameter_count(whole) == 14_590_632


@pytest.mark.parametrize("layers", range(1, 13))
def test_any_depth_makes_a_student_and_a_map(layers: int) -> None:
    student = student_of(bert(), StudentSection(layers=layers, init="random", hidden=96))
    assert len(student.encoder.layer) == layers
    chosen = layer_map(layers, 12)
    assert len(chosen) == layers
    assert chosen[-1] == 12
    assert all(a < b for a, b in pairwise(chosen))
    if 12 % layers == 0:
        assert chosen == [m * 12 // layers for m in range(1, layers + 1)]
