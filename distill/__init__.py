"""Distil encoders: losses, capture of signals, students, objectives, and the training loop.

The public names for research code; examples/own_training_loop.py shows how they are used. Each is imported when it is
first used, because most of them need torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pocketbert.core.plugins import make_facade_dir, make_facade_getattr

if TYPE_CHECKING:
    from pocketbert.core.families import Family, family_of
    from pocketbert.core.recipe.stages import (
        DistilBertStage,
        MiniLmStage,
        MobileBertStage,
        TaskStage,
        TinyBertGeneralStage,
        TinyBertIntermediateStage,
        TinyBertPredictionStage,
    )
    from pocketbert.core.tasks import Task, task_of
    from pocketbert.distill.capture import AttentionRecorder, QueryKeyValue, record_attention
    from pocketbert.distill.losses.common import (
        Counting,
        Term,
        attention_kl,
        attention_score_mse,
        hard_targets,
        hidden_mse,
        mean_over_layers,
        reference_score_mse,
        reference_state_mse,
        soft_targets,
        sum_over_layers,
    )
    from pocketbert.distill.losses.relations import relation_heads, relation_kl
    from pocketbert.distill.losses.task import gold_loss, soft_loss
    from pocketbert.distill.losses.tokens import cosine_distance, masked_lm, next_sentence, token_soft_targets
    from pocketbert.distill.losses.transfer import FeatureTransfer, feature_transfer, pretraining_distillation
    from pocketbert.distill.methods.distilbert import DistilBertDistillation
    from pocketbert.distill.methods.minilm import MiniLmDistillation
    from pocketbert.distill.methods.mobilebert import MobileBertDistillation
    from pocketbert.distill.methods.pretrain import Pretraining
    from pocketbert.distill.methods.task import Finetune, TaskDistillation
    from pocketbert.distill.methods.tinybert import TinyBertDistillation
    from pocketbert.distill.methods.transfer import TransferCourse, TransferPhases, auxiliary, joint, progressive
    from pocketbert.distill.students.build import build_student
    from pocketbert.distill.students.layer_map import layer_map
    from pocketbert.distill.students.mobilebert import mini_teacher_config, transfer_student
    from pocketbert.distill.students.projection import attach_projection, detach_projection, projected
    from pocketbert.distill.students.pruning import pruned
    from pocketbert.distill.teacher.cache import cached_teacher
    from pocketbert.distill.teacher.signals import OnlineTeacher, Taught, Wanted
    from pocketbert.distill.teacher.state_adapter import StateAdapter, fit_adapter, reduce_embeddings
    from pocketbert.distill.text.masking import Masked, Masking, MaskingScheme, masking_of
    from pocketbert.distill.text.pairs import GeneralSet, Pairs, pairs_of
    from pocketbert.distill.training.data import TrainData, TrainSet
    from pocketbert.distill.training.finite import NotFiniteError
    from pocketbert.distill.training.loop import Objective, Outcome, train
    from pocketbert.distill.training.monitor import Monitor, Validation
    from pocketbert.distill.training.optimizer import Lamb

__all__ = [
    "AttentionRecorder",
    "Counting",
    "DistilBertDistillation",
    "DistilBertStage",
    "Family",
    "FeatureTransfer",
    "Finetune",
    "GeneralSet",
    "Lamb",
    "Masked",
    "Masking",
    "MaskingScheme",
    "MiniLmDistillation",
    "MiniLmStage",
    "MobileBertDistillation",
    "MobileBertStage",
    "Monitor",
    "NotFiniteError",
    "Objective",
    "OnlineTeacher",
    "Outcome",
    "Pairs",
    "Pretraining",
    "QueryKeyValue",
    "StateAdapter",
    "Task",
    "TaskDistillation",
    "TaskStage",
    "Taught",
    "Term",
    "TinyBertDistillation",
    "TinyBertGeneralStage",
    "TinyBertIntermediateStage",
    "TinyBertPredictionStage",
    "TrainData",
    "TrainSet",
    "TransferCourse",
    "TransferPhases",
    "Validation",
    "Wanted",
    "attach_projection",
    "attention_kl",
    "attention_score_mse",
    "auxiliary",
    "build_student",
    "cached_teacher",
    "cosine_distance",
    "detach_projection",
    "family_of",
    "feature_transfer",
    "fit_adapter",
    "gold_loss",
    "hard_targets",
    "hidden_mse",
    "joint",
    "layer_map",
    "masked_lm",
    "masking_of",
    "mean_over_layers",
    "mini_teacher_config",
    "next_sentence",
    "pairs_of",
    "pretraining_distillation",
    "progressive",
    "projected",
    "pruned",
    "record_attention",
    "reduce_embeddings",
    "reference_score_mse",
    "reference_state_mse",
    "relation_heads",
    "relation_kl",
    "soft_loss",
    "soft_targets",
    "sum_over_layers",
    "task_of",
    "token_soft_targets",
    "train",
    "transfer_student",
]

_PLACES = {
    "core.families": ("Family", "family_of"),
    "core.recipe.stages": (
        "DistilBertStage",
        "MiniLmStage",
        "MobileBertStage",
        "TaskStage",
        "TinyBertGeneralStage",
        "TinyBertIntermediateStage",
        "TinyBertPredictionStage",
    ),
    "core.tasks": ("Task", "task_of"),
    "distill.capture": ("AttentionRecorder", "QueryKeyValue", "record_attention"),
    "distill.losses.common": (
        "Counting",
        "Term",
        "attention_kl",
        "attention_score_mse",
        "hard_targets",
        "hidden_mse",
        "mean_over_layers",
        "reference_score_mse",
        "reference_state_mse",
        "soft_targets",
        "sum_over_layers",
    ),
    "distill.losses.relations": ("relation_heads", "relation_kl"),
    "distill.losses.task": ("gold_loss", "soft_loss"),
    "distill.losses.tokens": ("cosine_distance", "masked_lm", "next_sentence", "token_soft_targets"),
    "distill.losses.transfer": ("FeatureTransfer", "feature_transfer", "pretraining_distillation"),
    "distill.methods.distilbert": ("DistilBertDistillation",),
    "distill.methods.minilm": ("MiniLmDistillation",),
    "distill.methods.mobilebert": ("MobileBertDistillation",),
    "distill.methods.pretrain": ("Pretraining",),
    "distill.methods.task": ("Finetune", "TaskDistillation"),
    "distill.methods.tinybert": ("TinyBertDistillation",),
    "distill.methods.transfer": ("TransferCourse", "TransferPhases", "auxiliary", "joint", "progressive"),
    "distill.students.build": ("build_student",),
    "distill.students.layer_map": ("layer_map",),
    "distill.students.mobilebert": ("mini_teacher_config", "transfer_student"),
    "distill.students.projection": ("attach_projection", "detach_projection", "projected"),
    "distill.students.pruning": ("pruned",),
    "distill.teacher.cache": ("cached_teacher",),
    "distill.teacher.signals": ("OnlineTeacher", "Taught", "Wanted"),
    "distill.teacher.state_adapter": ("StateAdapter", "fit_adapter", "reduce_embeddings"),
    "distill.text.masking": ("Masked", "Masking", "MaskingScheme", "masking_of"),
    "distill.text.pairs": (
        "GeneralSet",
        "Pairs",
        "pairs_of",
    ),
    "distill.training.finite": ("NotFiniteError",),
    "distill.training.data": (
        "TrainData",
        "TrainSet",
    ),
    "distill.training.loop": ("Objective", "Outcome", "train"),
    "distill.training.monitor": ("Monitor", "Validation"),
    "distill.training.optimizer": ("Lamb",),
}
"""Names by the module that defines them."""

__getattr__ = make_facade_getattr(__name__, _PLACES)

__dir__ = make_facade_dir(__name__, __all__)
