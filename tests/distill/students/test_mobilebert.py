from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from pocketbert.core.errors import InputError
from pocketbert.core.families import family_of
from pocketbert.core.types import MobileBertSize
from pocketbert.distill.capture import record_attention
from pocketbert.distill.students.ib_bert import IbBertConfig, IbBertForMaskedLM, IbBertForPreTraining, IbBertModel
from pocketbert.distill.students.mobilebert import (
    _copy_outside_blocks,
    mini_teacher_config,
    transfer_config,
    transfer_student,
)
from support.counting import parameter_count

MINI = MobileBertSize.MINI
COPIED = {
    "mobilebert.embeddings.word_embeddings.weight",
    "mobilebert.embeddings.position_embeddings.weight",
    "mobilebert.embeddings.token_type_embeddings.weight",
    "mobilebert.embeddings.embedding_transformation.weight",
    "mobilebert.embeddings.embedding_transformation.bias",
    "cls.predictions.transform.dense.weight",
    "cls.predictions.transform.dense.bias",
    "cls.predictions.transform.LayerNorm.weight",
    "cls.predictions.transform.LayerNorm.bias",
    "cls.predictions.dense.weight",
    "cls.predictions.decoder.weight",
    "cls.predictions.decoder.bias",
    "cls.predictions.bias",
}
SENTENCES = {"cls.seq_relationship.weight", "cls.seq_relationship.bias"}
BARE = {k.removeprefix("mobilebert.") for k in COPIED if k.startswith("mobilebert.")}


def teacher(kind: Any = IbBertForPreTraining) -> Any:
    """A small teacher with no weight at its start value."""
    torch.manual_seed(1)
    config = mini_teacher_config(60)
    config.num_hidden_layers = 2
    model = kind(config)
    with torch.no_grad():
        for value in model.parameters():
            value.add_(torch.randn_like(value) * 0.02)
    return model.eval()


@pytest.mark.parametrize(
    ("size", "parameters"), [(MobileBertSize.MOBILEBERT, 24_581_888), (MobileBertSize.TINY, 15_485_696)]
)
def test_sizes_are_the_originals(size: MobileBertSize, parameters: int) -> None:
    config = transfer_config(IbBertConfig(), size)
    with torch.device("meta"):
        whole = transformers.MobileBertModel(config)
        bare = transformers.MobileBertModel(config, add_pooling_layer=False)
    assert parameter_count(whole) == parameter_count(bare) == parameters  # the pooler has no weights
    assert (config.num_hidden_layers, config.hidden_size, config.true_hidden_size) == (24, 512, 128)
    # all published settings, and transformers' own where the original code has none
    published = transformers.MobileBertConfig(classifier_activation=False)
    if size is MobileBertSize.TINY:
        published.num_feedforward_networks = 2
        published.use_bottleneck_attention, published.key_query_shared_bottleneck = True, False
    assert config.to_dict() == published.to_dict()


def test_the_mini_pair_keeps_the_published_ratio() -> None:
    def blocks(config: Any, kind: Any) -> int:
        with torch.device("meta"):
            return parameter_count(kind(config).encoder.layer[0])

    def ratio(config: IbBertConfig, size: MobileBertSize) -> float:
        return blocks(config, IbBertModel) / blocks(transfer_config(config, size), transformers.MobileBertModel)

    assert ratio(IbBertConfig(), MobileBertSize.MOBILEBERT) == pytest.approx(14.3, abs=0.1)
    assert ratio(mini_teacher_config(), MINI) == pytest.approx(14, abs=0.5)


@torch.no_grad()
@pytest.mark.parametrize("size", MobileBertSize)
@pytest.mark.parametrize("length", [1, 9])
def test_blocks_of_teacher_and_student_can_be_compared(size: MobileBertSize, length: int) -> None:
    large = teacher(IbBertForMaskedLM)
    small = transfer_student(large, size, 0).eval()
    ids = torch.arange(1, length + 1)[None]
    family = family_of("mobilebert")
    found = []
    for model in (large, small):
        with record_attention(model, family, range(2)) as recorder:
            states = model(ids, output_hidden_states=True).hidden_states
        found.append([*states, *(recorder.scores[n] for n in range(2))])
    assert len(found[0]) == 3 + 2
    for theirs, ours in zip(*found, strict=True):
        assert theirs.shape == ours.shape
        assert not torch.allclose(theirs, ours)


@pytest.mark.parametrize(
    ("kind", "student", "names"),
    [
        (IbBertForPreTraining, transformers.MobileBertForPreTraining, COPIED | SENTENCES),
        (IbBertForMaskedLM, transformers.MobileBertForMaskedLM, COPIED),
        (IbBertModel, transformers.MobileBertModel, BARE),
    ],
)
def test_everything_outside_the_blocks_is_the_teachers_but_the_norm(kind: Any, student: Any, names: set[str]) -> None:
    large = teacher(kind)
    small = transfer_student(large, MINI, 3)
    assert type(small) is student
    assert small.training
    theirs, ours = large.state_dict(), small.state_dict()
    outside = {name for name in ours if "encoder.layer" not in name}
    norm = {name for name in outside if "embeddings.LayerNorm" in name}
    assert outside - norm == names
    assert all(torch.equal(ours[name], theirs[name]) for name in names)
    (scale,) = [ours[n] for n in norm if n.endswith("weight")]
    (shift,) = [ours[n] for n in norm if n.endswith("bias")]
    assert torch.equal(scale, torch.ones_like(scale))
    assert torch.equal(shift, torch.zeros_like(shift))


def test_copies_are_the_students_own() -> None:
    large = teacher()
    before = {name: value.clone() for name, value in large.state_dict().items()}
    small = transfer_student(large, MINI, 3)
    with torch.no_grad():
        for value in small.parameters():
            value.add_(1.0)
    assert all(torch.equal(value, before[name]) for name, value in large.state_dict().items())
    predictions = small.cls.predictions
    assert predictions.decoder.weight is small.mobilebert.embeddings.word_embeddings.weight


def test_a_seed_decides_the_blocks() -> None:
    large = teacher()
    first, same, other = (transfer_student(large, MINI, seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], same[name]) for name in first)
    key = "mobilebert.encoder.layer.0.attention.self.query.weight"
    assert not torch.equal(first[key], other[key])


def test_a_mobilebert_teaches_its_norm_too() -> None:
    torch.manual_seed(4)
    large = transformers.MobileBertForMaskedLM(transfer_config(mini_teacher_config(60), MobileBertSize.MOBILEBERT))
    with torch.no_grad():
        large.mobilebert.embeddings.LayerNorm.weight.fill_(1.5)
    small = transfer_student(large, MINI, 0)
    assert torch.equal(small.mobilebert.embeddings.LayerNorm.weight, large.mobilebert.embeddings.LayerNorm.weight)


def test_a_bare_student_finds_the_names_of_a_teacher_with_heads() -> None:
    large = teacher()
    small = transformers.MobileBertModel(transfer_config(large.config, MINI))
    assert set(_copy_outside_blocks(large, small)) == BARE
    assert torch.equal(small.embeddings.word_embeddings.weight, large.mobilebert.embeddings.word_embeddings.weight)


def test_weights_that_do_not_fit_are_named_and_nothing_changes() -> None:
    large = teacher()
    config = transfer_config(large.config, MINI)
    config.vocab_size = 61
    small = transformers.MobileBertForMaskedLM(config)
    before = {name: value.clone() for name, value in small.state_dict().items()}
    with pytest.raises(InputError) as caught:
        _copy_outside_blocks(large, small)
    named = {p.where for p in caught.value.problems}
    assert named == {n for n in COPIED if "predictions.d" in n or "predictions.bias" in n or "word" in n}
    assert all(torch.equal(value, before[name]) for name, value in small.state_dict().items())


@pytest.mark.parametrize(
    "config",
    [transformers.BertConfig(), transformers.MobileBertConfig(use_bottleneck=False)],
    ids=["bert", "no bottleneck"],
)
def test_a_teacher_without_bottlenecks_has_a_student_of_the_published_widths(config: Any) -> None:
    for size, width in ((MINI, 128), (MobileBertSize.MOBILEBERT, 512)):
        made = transfer_config(config, size)
        assert (made.hidden_size, made.embedding_size, made.num_attention_heads) == (width, width // 4, 4)
        assert made.num_hidden_layers == config.num_hidden_layers


def test_a_narrow_teacher_is_refused_with_the_sizes_that_fit() -> None:
    narrow = transformers.BertConfig(hidden_size=384, num_attention_heads=12)
    with pytest.raises(
        InputError, match="'tiny' is 512 wide between its blocks, the teacher only 384.* Choose one of: mini"
    ):
        transfer_config(narrow, MobileBertSize.TINY)


def test_heads_must_divide_the_students_width() -> None:
    with pytest.raises(InputError, match="no multiple of the teacher's 5 heads"):
        transfer_config(IbBertConfig(num_attention_heads=5, intra_bottleneck_size=1000), MINI)


def test_a_head_that_mobilebert_lacks_is_refused() -> None:
    with pytest.raises(InputError, match="MobileBERT has no class like IbBertForMaskedLM"):
        transfer_student(teacher(IbBertForMaskedLM), MINI, 0, "ForRetelling")


def test_a_task_s_head_is_new() -> None:
    large = teacher()
    small = transfer_student(large, MINI, 0, "ForSequenceClassification")
    assert type(small) is transformers.MobileBertForSequenceClassification
    assert not [n for n in _copy_outside_blocks(large, small) if n.startswith("classifier")]
