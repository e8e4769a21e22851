"""MobileBERT students: their sizes, and what they take over from the teacher before knowledge transfer begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from transformers import (
    MobileBertConfig,
    MobileBertForMaskedLM,
    MobileBertForPreTraining,
    MobileBertModel,
    MobileBertPreTrainedModel,
)

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.seeds import derive_seed
from pocketbert.distill.ib_bert import IbBertForMaskedLM, IbBertForPreTraining, IbBertModel
from pocketbert.distill.ib_bert_config import IbBertConfig


class MobileBertSize(StrEnum):
    """Inner size of a student's blocks; depth and the width between blocks are the teacher's."""

    MOBILEBERT = "mobilebert"
    """The published model: 24,581,888 parameters below IB-BERT-large, no pooler among them (the paper says 25.3M)."""
    TINY = "tiny"
    """MobileBERT-TINY: 15,485,696 (the paper says 15.1M)."""
    MINI = "mini"
    """MobileBERT with everything a quarter as wide, for `mini_teacher_config`: trains on two cores."""


@dataclass(frozen=True)
class Block:
    """What lies between a block's two 512-wide ends.

    Attributes:
        width: Intra-block width, all heads together.
        intermediate: Width of a feed-forward part.
        networks: Feed-forward parts in a row.
        bottleneck_attention: Whether queries, keys and values are made of the block's input bottleneck; else queries
            and keys share one of their own, and values read the block's input.
    """

    width: int
    intermediate: int
    networks: int
    bottleneck_attention: bool


BLOCKS: Mapping[MobileBertSize, Block] = {
    MobileBertSize.MOBILEBERT: Block(128, 512, 4, False),
    MobileBertSize.TINY: Block(128, 512, 2, True),
    MobileBertSize.MINI: Block(32, 128, 4, False),
}


def mini_teacher_config(vocab_size: int = 30522) -> IbBertConfig:
    """An IB-BERT that can be pre-trained on two cores: six blocks, each a quarter as wide as IB-BERT-large's everywhere.

    Six blocks give progressive transfer six phases. The ratios stay (4 to 1 from inter-block width to embedding and to
    `MobileBertSize.MINI`'s blocks, 1 to 2 to its own), so that a block of the student has a fourteenth of the
    parameters of a block of the teacher, as between the published models.

    Args:
        vocab_size: Tokens.
    """
    return IbBertConfig(
        vocab_size=vocab_size, num_hidden_layers=6, hidden_size=128, embedding_size=32,
        intra_bottleneck_size=256, intermediate_size=1024,
    )  # fmt: skip


def transfer_config(teacher: Any, size: MobileBertSize) -> MobileBertConfig:
    """A student's configuration that can be compared with its teacher's block by block.

    Vocabulary, lengths, widths outside the blocks, depth and heads are the teacher's; the blocks, NoNorm, ReLU, no
    dropout but the attention's (0.1) and the raw ``[CLS]`` state as pooled output are those of the original
    configurations (config/uncased_L-24_H-128_B-512_A-4_F-4_OPT.json and ..._F-2_tiny_OPT.json).

    Args:
        teacher: Configuration of an IB-BERT, or of a MobileBERT.
        size: What is inside the blocks.

    Raises:
        InputError: If the teacher's blocks have no bottleneck, or its heads do not divide the student's width.
    """
    block, problems = BLOCKS[size], []
    if not isinstance(teacher, MobileBertConfig) or not teacher.use_bottleneck:
        problems.append(
            Problem("teacher", f"a model of type '{getattr(teacher, 'model_type', type(teacher).__name__)}' has no blocks "
                    "with a width of their own between; allowed: ib_bert, mobilebert with bottlenecks.",
                    "Pre-train an IB-BERT first.")
        )  # fmt: skip
    elif block.width % teacher.num_attention_heads:
        problems.append(
            Problem("student.size", f"'{size}' has blocks {block.width} wide, no multiple of the teacher's "
                    f"{teacher.num_attention_heads} heads.")
        )  # fmt: skip
    if problems:
        raise InputError(problems)
    return MobileBertConfig(
        vocab_size=teacher.vocab_size, type_vocab_size=teacher.type_vocab_size,
        max_position_embeddings=teacher.max_position_embeddings, pad_token_id=teacher.pad_token_id,
        hidden_size=teacher.hidden_size, embedding_size=teacher.embedding_size,
        trigram_input=teacher.trigram_input, initializer_range=teacher.initializer_range,
        num_hidden_layers=teacher.num_hidden_layers, num_attention_heads=teacher.num_attention_heads,
        layer_norm_eps=teacher.layer_norm_eps, tie_word_embeddings=teacher.tie_word_embeddings,
        intra_bottleneck_size=block.width, intermediate_size=block.intermediate,
        num_feedforward_networks=block.networks, use_bottleneck_attention=block.bottleneck_attention,
        # with both flags set transformers builds a second bottleneck that nothing uses
        key_query_shared_bottleneck=not block.bottleneck_attention,
        normalization_type="no_norm", hidden_act="relu", hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.1, classifier_activation=False,
    )  # fmt: skip


def transfer_student(teacher: Any, size: MobileBertSize, seed: int) -> MobileBertPreTrainedModel:
    """A student, before knowledge transfer.

    Its blocks are random; the rest is the teacher's, as `copy_outside_blocks` says.

    Args:
        teacher: `IbBertModel`, `IbBertForMaskedLM`, `IbBertForPreTraining`, or transformers' MobileBERT of these kinds.
        size: What is inside the blocks.
        seed: Seed of the random weights.

    Returns:
        transformers' MobileBERT with the same head; fp32, in training mode.

    Raises:
        InputError: If there is no such student; see `transfer_config`.
    """
    kinds = {
        MobileBertForPreTraining: (IbBertForPreTraining, MobileBertForPreTraining),
        MobileBertForMaskedLM: (IbBertForMaskedLM, MobileBertForMaskedLM),
        MobileBertModel: (IbBertModel, MobileBertModel),
    }
    found = [student for student, teachers in kinds.items() if type(teacher) in teachers]
    if not found:
        names = sorted(t.__name__ for teachers in kinds.values() for t in teachers)
        raise InputError(
            Problem("teacher", f"a {type(teacher).__name__} has no MobileBERT student; allowed: {', '.join(names)}.",
                    "Load the teacher with its pre-training head.")
        )  # fmt: skip
    config = transfer_config(teacher.config, size)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "student"))
        student = found[0](config)
    copy_outside_blocks(teacher, student)
    return student.train()


def copy_outside_blocks(teacher: Any, student: Any) -> list[str]:
    """Give a student everything outside the encoder that its teacher has under the same name.

    As in the original code, by the original's names: the tables of words, segments and positions, the projection of
    three neighbours to the inter-block width, the masked-LM head (transform, norm, extra output matrix, bias) and the
    next-sentence layer. A NoNorm has another name there than a LayerNorm, so that the norm of the embeddings stays as
    the student has it (new: scale 1, bias 0) unless both models have the same kind. The teacher's pooler goes to no
    student that has none: its next-sentence layer starts from weights made for a pooled state, and gets a raw one.

    Args:
        teacher: An IB-BERT or MobileBERT, not wrapped.
        student: A MobileBERT with the same or fewer heads; changed in place.

    Returns:
        Names of what was copied, as the student has them, sorted; tied weights under each name.

    Raises:
        InputError: Naming every weight whose shape differs; nothing is changed then.
    """
    theirs, ours = teacher.state_dict(), student.state_dict()
    same_norm = teacher.config.normalization_type == student.config.normalization_type
    names = {
        name: key
        for name in ours
        # an encoder without a head lacks the name it has within one
        for key in (name, f"mobilebert.{name}", name.removeprefix("mobilebert."))
        if key in theirs
        and "encoder" not in name.split(".")
        and (same_norm or "embeddings.LayerNorm." not in name)
    }
    problems = [
        Problem(name, f"shape {tuple(ours[name].shape)} in the student, {tuple(theirs[key].shape)} in the teacher.",
                "Use a student configuration from transfer_config.")
        for name, key in names.items() if ours[name].shape != theirs[key].shape
    ]  # fmt: skip
    if problems:
        raise InputError(problems)
    with torch.no_grad():
        for name, key in names.items():
            ours[name].copy_(theirs[key])
    return sorted(names)
