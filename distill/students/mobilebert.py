"""MobileBERT students for knowledge transfer, and the small IB-BERT teacher.

`transfer_student` builds a student: `transfer_config` decides its sizes from the teacher's, and the weights outside the
blocks are copied from a teacher with bottlenecks. `mini_teacher_config` is the configuration of a small IB-BERT.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from transformers import MobileBertConfig, MobileBertPreTrainedModel

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import family_of
from pocketbert.core.seeds import derive_seed
from pocketbert.core.types import MobileBertSize
from pocketbert.distill.students import ib_bert
from pocketbert.distill.students.ib_bert import IbBertConfig

_PUBLISHED_HEADS = 4
_TASK_HEADS = ("classifier.", "qa_outputs.")


@dataclass(frozen=True)
class _Block:
    """Sizes of one block of a student.

    Attributes:
        outer: Width between blocks, for a teacher without bottlenecks.
        width: Width within the block, all heads together.
        intermediate: Width of a feed-forward part.
        networks: Number of feed-forward parts, one after the other.
        bottleneck_attention: Whether queries, keys and values read the block's input bottleneck. Otherwise queries and
            keys share a separate bottleneck, and values read the block's input.
    """

    outer: int
    width: int
    intermediate: int
    networks: int
    bottleneck_attention: bool


_BLOCKS: Mapping[MobileBertSize, _Block] = {
    MobileBertSize.MOBILEBERT: _Block(512, 128, 512, 4, False),
    MobileBertSize.TINY: _Block(512, 128, 512, 2, True),
    MobileBertSize.MINI: _Block(128, 32, 128, 4, False),
}

_IB_BERTS: Mapping[MobileBertSize, dict[str, Any]] = {
    MobileBertSize.IB_BERT: {},
    MobileBertSize.IB_BERT_MINI: {
        "num_hidden_layers": 6,
        "hidden_size": 128,
        "embedding_size": 32,
        "intra_bottleneck_size": 256,
        "intermediate_size": 1024,
    },
}
"""Sizes of the IB-BERTs that are trained as students, where they are not those of IB-BERT-large."""


def _ib_bert_config(teacher_config: Any, size: MobileBertSize) -> IbBertConfig:
    """Return the configuration of an IB-BERT with the vocabulary of another model."""
    vocabulary = {"vocab_size": teacher_config.vocab_size, "pad_token_id": teacher_config.pad_token_id}
    return IbBertConfig(**_IB_BERTS[size], **vocabulary)


def transfer_student(
    teacher: Any, size: MobileBertSize, seed: int, head: str | None = None
) -> MobileBertPreTrainedModel:
    """Build an untrained MobileBERT student for MobileBERT's knowledge transfer from a teacher.

    The student's blocks and the head of a task are random. The embeddings and pre-training heads of a MobileBERT are
    copied from a teacher that has bottlenecks. With another teacher they are random too, until
    `pocketbert.distill.teacher.state_adapter.reduce_embeddings` sets the embeddings. An IB-BERT is all random.

    Args:
        teacher: A model with any head.
        size: Sizes inside the blocks.
        seed: Seed of the random weights.
        head: Suffix of the class, such as ``ForPreTraining``; default the teacher's.

    Returns:
        transformers' MobileBERT, or an IB-BERT with random weights, with the head; fp32, in training mode.

    Raises:
        InputError: If there is no class with the head, or the sizes do not fit; see `transfer_config`.
    """
    name = type(teacher).__name__
    suffix = head or name.removeprefix(family_of(teacher.config.model_type).classes)
    is_ib_bert = size in _IB_BERTS
    model_class = (
        getattr(ib_bert, f"IbBert{suffix}", None) if is_ib_bert else getattr(transformers, f"MobileBert{suffix}", None)
    )
    if model_class is None:
        what = f"{'IB-BERT' if is_ib_bert else 'MobileBERT'} has no class like {name}."
        raise InputError(Problem("student.size", what, "Load the teacher with another head."))
    config = _ib_bert_config(teacher.config, size) if is_ib_bert else transfer_config(teacher.config, size)
    for key in ("id2label", "label2id", "problem_type"):
        setattr(config, key, getattr(teacher.config, key))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "student"))
        student: MobileBertPreTrainedModel = model_class(config)
    if has_bottlenecks(teacher.config) and not is_ib_bert:
        _copy_outside_blocks(teacher, student)
    return student.train()


def _copy_outside_blocks(teacher: Any, student: Any) -> list[str]:
    """Copy the weights outside the encoder blocks from teacher to student, and return the names of the copied weights.

    As in the original code, these are the tables of words, segments and positions, the projection of three neighbours
    to the width between blocks, the masked-LM head (transform, norm, extra output matrix, bias) and the next-sentence
    layer. The norm of the embeddings is copied only if both models have the same kind of norm, because the original
    code copies by name, and a NoNorm has another name there than a LayerNorm; else it stays as new (scale 1, bias 0). A
    student without a pooler gets none: its next-sentence layer starts from weights that were trained for a pooled
    state, and gets a raw one. The head of a task is not copied, because it was trained for the teacher's states.

    Args:
        teacher: An IB-BERT or MobileBERT, not wrapped.
        student: A MobileBERT with the same or fewer heads; changed in place.

    Returns:
        The student's names of the copied weights, sorted; tied weights under each name.

    Raises:
        InputError: Naming every weight whose shape differs; nothing is changed then.
    """
    teacher_state, student_state = teacher.state_dict(), student.state_dict()
    same_norm = teacher.config.normalization_type == student.config.normalization_type
    teacher_name_of = {
        name: key
        for name in student_state
        # an encoder without a head lacks the first part of the path
        for key in (name, f"mobilebert.{name}", name.removeprefix("mobilebert."))
        if key in teacher_state
        and "encoder" not in name.split(".")
        and not name.startswith(_TASK_HEADS)
        and (same_norm or "embeddings.LayerNorm." not in name)
    }
    problems = [
        Problem(
            name,
            f"shape {tuple(student_state[name].shape)} in the student, "
            f"{tuple(teacher_state[key].shape)} in the teacher.",
            "Use a student configuration from transfer_config.",
        )
        for name, key in teacher_name_of.items()
        if student_state[name].shape != teacher_state[key].shape
    ]
    if problems:
        raise InputError(problems)
    with torch.no_grad():
        for name, key in teacher_name_of.items():
            student_state[name].copy_(teacher_state[key])
    return sorted(teacher_name_of)


def transfer_config(teacher: Any, size: MobileBertSize) -> MobileBertConfig:
    """Return the configuration of a MobileBERT student that can be compared with its teacher block by block.

    Vocabulary, lengths and depth are the teacher's. If the teacher has bottlenecks, so are the number of heads and the
    widths outside the blocks; else these are the published ones. The blocks, NoNorm, ReLU, dropout only in the
    attention (0.1) and the raw ``[CLS]`` state as pooled output are those of the original configurations
    (config/uncased_L-24_H-128_B-512_A-4_F-4_OPT.json and ..._F-2_tiny_OPT.json).

    Args:
        teacher: Configuration of an IB-BERT or a MobileBERT; for a teacher of another family, training needs a
            `pocketbert.distill.teacher.state_adapter.StateAdapter`.
        size: Sizes inside the blocks.

    Raises:
        InputError: If the teacher's heads do not divide the student's width, or the teacher is narrower than the
            student.
    """
    block, problems = _BLOCKS[size], []
    bottlenecks = has_bottlenecks(teacher)
    width = teacher.hidden_size if bottlenecks else block.outer
    heads = teacher.num_attention_heads if bottlenecks else _PUBLISHED_HEADS
    if block.width % heads:
        what = f"'{size}' has blocks {block.width} wide, no multiple of the teacher's {heads} heads."
        problems.append(Problem("student.size", what))
    if width > teacher.hidden_size:
        fitting = ", ".join(s for s, b in _BLOCKS.items() if b.outer <= teacher.hidden_size)
        what = f"'{size}' is {width} wide between its blocks, the teacher only {teacher.hidden_size}."
        problems.append(Problem("student.size", what, f"Choose one of: {fitting or 'none fits'}."))
    if problems:
        raise InputError(problems)
    return MobileBertConfig(
        vocab_size=teacher.vocab_size,
        type_vocab_size=getattr(teacher, "type_vocab_size", 2),
        max_position_embeddings=teacher.max_position_embeddings - family_of(teacher.model_type).position_offset,
        pad_token_id=teacher.pad_token_id,
        hidden_size=width,
        embedding_size=teacher.embedding_size if bottlenecks else width // 4,
        trigram_input=teacher.trigram_input if bottlenecks else True,
        initializer_range=teacher.initializer_range,
        num_hidden_layers=teacher.num_hidden_layers,
        num_attention_heads=heads,
        layer_norm_eps=getattr(teacher, "layer_norm_eps", 1e-12),
        tie_word_embeddings=teacher.tie_word_embeddings,
        intra_bottleneck_size=block.width,
        intermediate_size=block.intermediate,
        num_feedforward_networks=block.networks,
        use_bottleneck_attention=block.bottleneck_attention,
        # with both flags set transformers builds a second bottleneck that nothing uses
        key_query_shared_bottleneck=not block.bottleneck_attention,
        normalization_type="no_norm",
        hidden_act="relu",
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.1,
        classifier_activation=False,
    )


def has_bottlenecks(config: Any) -> bool:
    """Return whether a configuration gives a model's blocks another width inside than outside, as in MobileBERT."""
    return isinstance(config, MobileBertConfig) and bool(config.use_bottleneck)


def mini_teacher_config(vocab_size: int = 30522) -> IbBertConfig:
    """Return the configuration of a small IB-BERT: six blocks, a quarter as wide as IB-BERT-large's.

    With six blocks, progressive transfer has six phases. The ratios are the published ones: the width between blocks is
    4 times that of the embeddings and of `MobileBertSize.MINI`'s blocks, and half that of the teacher's blocks. A block
    of the student therefore has a fourteenth of the parameters of a block of the teacher, as between the published
    models.

    Args:
        vocab_size: Number of tokens in the vocabulary.
    """
    return IbBertConfig(vocab_size=vocab_size, **_IB_BERTS[MobileBertSize.IB_BERT_MINI])
