from contextlib import nullcontext
from typing import Any

import pytest
import torch
import transformers

from pocketbert.core.errors import InputError
from pocketbert.core.types import MobileBertSize
from pocketbert.distill.students.ib_bert import IbBertConfig, IbBertForMaskedLM, IbBertForPreTraining, IbBertModel
from pocketbert.distill.students.mobilebert import mini_teacher_config, transfer_config, transfer_student
from support.counting import parameter_count
from support.tiny import tiny_classifier

MINI = MobileBertSize.MINI
NORM = {"embeddings.LayerNorm.weight", "embeddings.LayerNorm.bias"}


def make_teacher(kind: Any = IbBertForPreTraining) -> Any:
    """A small teacher with no weight at its start value."""
    torch.manual_seed(1)
    config = mini_teacher_config(60)
    config.num_hidden_layers = 2
    model = kind(config)
    with torch.no_grad():
        for value in model.parameters():
            value.add_(torch.randn_like(value) * 0.02)
    return model.eval()


# --- sizes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "parameters"), [(MobileBertSize.MOBILEBERT, 24_581_888), (MobileBertSize.TINY, 15_485_696)]
)
def test_sizes_are_the_originals(size, parameters):
    config = transfer_config(IbBertConfig(), size)
    with torch.device("meta"):
        assert parameter_count(transformers.MobileBertModel(config)) == parameters
    # all published settings, and transformers' own where the original code has none
    published = transformers.MobileBertConfig(classifier_activation=False)
    if size is MobileBertSize.TINY:
        published.num_feedforward_networks = 2
        published.use_bottleneck_attention, published.key_query_shared_bottleneck = True, False
    assert config.to_dict() == published.to_dict()


@pytest.mark.parametrize(
    "config",
    [transformers.BertConfig(), transformers.MobileBertConfig(use_bottleneck=False)],
    ids=lambda c: c.model_type,
)
@pytest.mark.parametrize(("size", "width"), [(MINI, 128), (MobileBertSize.MOBILEBERT, 512)])
def test_a_teacher_without_bottlenecks_has_a_student_of_the_published_widths(config, size, width):
    made = transfer_config(config, size)
    assert (made.hidden_size, made.embedding_size, made.num_attention_heads) == (width, width // 4, 4)
    assert made.num_hidden_layers == config.num_hidden_layers


def test_heads_that_do_not_divide_a_students_width_are_refused():
    with pytest.raises(InputError, match="no multiple of the teacher's 5 heads"):
        transfer_config(IbBertConfig(num_attention_heads=5, intra_bottleneck_size=1000), MINI)


# --- weights ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "width", "parameters"), [("ib-bert", 512, 294_205_184), ("ib-bert-mini", 128, None)])
def test_an_ib_bert_has_its_own_sizes_and_the_teachers_vocabulary(size, width, parameters):
    teacher = tiny_classifier("bert", 2, (), auto_class="AutoModel", vocab_size=30_522 if parameters else 60)
    with torch.device("meta") if parameters else nullcontext():
        made = transfer_student(teacher, MobileBertSize(size), 0, "ForPreTraining")
    assert type(made) is IbBertForPreTraining
    assert (made.config.vocab_size, made.config.hidden_size) == (teacher.config.vocab_size, width)
    assert made.config.pad_token_id == teacher.config.pad_token_id
    if parameters:
        assert parameter_count(made.mobilebert.embeddings) + parameter_count(made.mobilebert.encoder) == parameters
    with pytest.raises(InputError, match="IB-BERT has no class like"):
        transfer_student(teacher, MobileBertSize(size), 0, "ForDreaming")


@pytest.mark.parametrize(
    ("kind", "head", "made"),
    [
        (IbBertForPreTraining, None, transformers.MobileBertForPreTraining),
        (IbBertForMaskedLM, None, transformers.MobileBertForMaskedLM),
        (IbBertModel, None, transformers.MobileBertModel),
        (IbBertForPreTraining, "Model", transformers.MobileBertModel),
        (IbBertForPreTraining, "ForSequenceClassification", transformers.MobileBertForSequenceClassification),
    ],
)
def test_everything_outside_the_blocks_is_the_teachers_but_norm_and_a_tasks_head(kind, head, made):
    large = make_teacher(kind)
    small, same, other = (transfer_student(large, MINI, seed, head) for seed in (3, 3, 4))
    assert type(small) is made and small.training
    theirs = {name.removeprefix("mobilebert."): value for name, value in large.state_dict().items()}
    query = "encoder.layer.0.attention.self.query.weight"
    for name, ours in ((n.removeprefix("mobilebert."), v) for n, v in small.state_dict().items()):
        if name in NORM:
            assert torch.equal(ours, torch.full_like(ours, float(name.endswith("weight")))), name
        elif not name.startswith(("encoder.", "classifier.")):
            assert torch.equal(ours, theirs[name]), name
        elif name == query:
            assert not torch.equal(ours, theirs[name][: len(ours), : ours.shape[1]])
    weights = [{n.removeprefix("mobilebert."): v for n, v in m.state_dict().items()} for m in (small, same, other)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0]), "the seed decides"
    assert not torch.equal(weights[0][query], weights[2][query])
    assert not {p.data_ptr() for p in small.parameters()} & {p.data_ptr() for p in large.parameters()}
    if head is None and kind is not IbBertModel:
        assert small.cls.predictions.decoder.weight is small.mobilebert.embeddings.word_embeddings.weight


def test_a_mobilebert_teaches_its_norm_too():
    large = transformers.MobileBertForMaskedLM(transfer_config(mini_teacher_config(60), MobileBertSize.MOBILEBERT))
    with torch.no_grad():
        large.mobilebert.embeddings.LayerNorm.weight.fill_(1.5)
    small = transfer_student(large, MINI, 0)
    assert torch.equal(small.mobilebert.embeddings.LayerNorm.weight, large.mobilebert.embeddings.LayerNorm.weight)


def test_a_head_that_mobilebert_lacks_is_refused():
    with pytest.raises(InputError, match="MobileBERT has no class like IbBertForMaskedLM"):
        transfer_student(make_teacher(IbBertForMaskedLM), MINI, 0, "ForRetelling")
