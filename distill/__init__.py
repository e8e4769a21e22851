"""Distil encoders: losses, capture of signals, students, objectives, and the one training loop.

Researchers import from here and nowhere deeper; examples/own_training_loop.py shows how.
Names are imported when they are first used, because most of them need torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pocketbert.core.loading.facade import importer, listing

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
    from pocketbert.distill.losses.common import attention_kl, hard_targets, hidden_mse, mean_over_layers, soft_targets
    from pocketbert.distill.losses.general import cosine_distance, masked_lm, next_sentence, token_soft_targets
    from pocketbert.distill.losses.layers import (
        attention_score_mse,
        reference_score_mse,
        reference_state_mse,
        sum_over_layers,
    )
    from pocketbert.distill.losses.relations import relation_heads, relation_kl
    from pocketbert.distill.losses.task import gold_loss, soft_loss
    from pocketbert.distill.losses.transfer import FeatureTransfer, feature_transfer, pretraining_distillation
    from pocketbert.distill.methods.distilbert import DistilBertDistillation
    from pocketbert.distill.methods.finetune import Finetune
    from pocketbert.distill.methods.minilm import MiniLmDistillation
    from pocketbert.distill.methods.mobilebert import MobileBertDistillation
    from pocketbert.distill.methods.pretraining import Pretraining
    from pocketbert.distill.methods.task import TaskDistillation
    from pocketbert.distill.methods.tinybert import TinyBertDistillation
    from pocketbert.distill.methods.transfer_course import TransferCourse
    from pocketbert.distill.methods.transfer_phases import TransferPhases, auxiliary, joint, progressive
    from pocketbert.distill.students.build import build_student
    from pocketbert.distill.students.layer_map import layer_map
    from pocketbert.distill.students.mobilebert import mini_teacher_config, transfer_student
    from pocketbert.distill.students.projection import attach_projection, detach_projection, projected
    from pocketbert.distill.students.pruning import pruned
    from pocketbert.distill.teacher.cache.build import cached_teacher
    from pocketbert.distill.teacher.signals import OnlineTeacher, Taught, Wanted
    from pocketbert.distill.teacher.state_adapter import StateAdapter, fit_adapter, reduce_embeddings
    from pocketbert.distill.text.general_set import GeneralSet
    from pocketbert.distill.text.masking.kinds import masking_of
    from pocketbert.distill.text.masking.masking import Masked, Masking, MaskingScheme
    from pocketbert.distill.text.pairs import Pairs, pairs_of
    from pocketbert.distill.training.finite import NotFiniteError
    from pocketbert.distill.training.lamb import Lamb
    from pocketbert.distill.training.loop import Objective, Outcome, train
    from pocketbert.distill.training.terms import Counting, Term
    from pocketbert.distill.training.train_set import TrainData, TrainSet

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
    "distill.losses.common": ("soft_targets", "hard_targets", "hidden_mse", "attention_kl", "mean_over_layers"),
    "distill.losses.general": ("token_soft_targets", "masked_lm", "next_sentence", "cosine_distance"),
    "distill.losses.layers": ("attention_score_mse", "reference_score_mse", "reference_state_mse", "sum_over_layers"),
    "distill.losses.transfer": ("feature_transfer", "FeatureTransfer", "pretraining_distillation"),
    "distill.losses.relations": ("relation_kl", "relation_heads"),
    "distill.losses.task": ("gold_loss", "soft_loss"),
    "distill.capture": ("record_attention", "AttentionRecorder", "QueryKeyValue"),
    "distill.teacher.signals": ("Wanted", "Taught", "OnlineTeacher"),
    "distill.teacher.cache.build": ("cached_teacher",),
    "distill.teacher.state_adapter": ("fit_adapter", "StateAdapter", "reduce_embeddings"),
    "distill.students.layer_map": ("layer_map",),
    "distill.students.build": ("build_student",),
    "distill.students.projection": ("attach_projection", "detach_projection", "projected"),
    "distill.students.pruning": ("pruned",),
    "distill.students.mobilebert": ("transfer_student", "mini_teacher_config"),
    "distill.methods.task": ("TaskDistillation",),
    "distill.methods.distilbert": ("DistilBertDistillation",),
    "distill.methods.tinybert": ("TinyBertDistillation",),
    "distill.methods.minilm": ("MiniLmDistillation",),
    "distill.methods.mobilebert": ("MobileBertDistillation",),
    "distill.methods.pretraining": ("Pretraining",),
    "distill.methods.finetune": ("Finetune",),
    "distill.methods.transfer_phases": ("progressive", "joint", "auxiliary", "TransferPhases"),
    "distill.methods.transfer_course": ("TransferCourse",),
    "distill.training.loop": ("train", "Objective", "Outcome"),
    "distill.training.terms": ("Term", "Counting"),
    "distill.training.train_set": ("TrainData", "TrainSet"),
    "distill.training.lamb": ("Lamb",),
    "distill.training.finite": ("NotFiniteError",),
    "distill.text.general_set": ("GeneralSet",),
    "distill.text.masking.kinds": ("masking_of",),
    "distill.text.masking.masking": ("MaskingScheme", "Masking", "Masked"),
    "distill.text.pairs": ("pairs_of", "Pairs"),
    "core.recipe.stages": (
        "TaskStage",
        "DistilBertStage",
        "TinyBertGeneralStage",
        "TinyBertIntermediateStage",
        "TinyBertPredictionStage",
        "MiniLmStage",
        "MobileBertStage",
    ),
    "core.tasks": ("Task", "task_of"),
    "core.families": ("Family", "family_of"),
}
"""Names by the module that defines them."""

__getattr__ = importer(__name__, _PLACES)

__dir__ = listing(__name__, __all__)
