"""The distillation methods of the package, registered on import. Other packages add theirs with `register_method`."""

from __future__ import annotations

from pocketbert.core.recipe.sections import Stage
from pocketbert.core.recipe.stages import (
    DistilBertStage,
    MiniLmStage,
    MobileBertStage,
    PretrainStage,
    QatStage,
    ReplacedTokensStage,
    TaskStage,
    TinyBertGeneralStage,
    TinyBertIntermediateStage,
    TinyBertPredictionStage,
)
from pocketbert.distill.methods import distilbert, minilm, mobilebert, pretrain, qat, replaced_tokens, task, tinybert
from pocketbert.distill.methods.method import Method, register_method, registered_methods

ROWS = (
    Method(section=TaskStage, train=task.train, source=task.SOURCE),
    Method(section=DistilBertStage, train=distilbert.train, needs=distilbert.needs, source=distilbert.SOURCE),
    Method(section=TinyBertGeneralStage, train=tinybert.train_layers, source=tinybert.GENERAL_SOURCE),
    Method(section=TinyBertIntermediateStage, train=tinybert.train_layers, source=tinybert.INTERMEDIATE_SOURCE),
    Method(section=TinyBertPredictionStage, train=tinybert.train_prediction, source=tinybert.PREDICTION_SOURCE),
    Method(section=MiniLmStage, train=minilm.train, source=minilm.SOURCE),
    Method(section=MobileBertStage, train=mobilebert.train, needs=mobilebert.needs, source=mobilebert.SOURCE),
    Method(
        section=ReplacedTokensStage,
        train=replaced_tokens.train,
        needs=replaced_tokens.needs,
        source=replaced_tokens.SOURCE,
    ),
    Method(section=PretrainStage, train=pretrain.train, needs=pretrain.needs, source=pretrain.SOURCE),
    Method(section=QatStage, train=qat.train, source=qat.SOURCE),
)

for _row in ROWS:
    register_method(_row)


def find_method(stage: Stage) -> Method:
    """Return the registered `Method` (recipe section and training function) of a stage.

    Args:
        stage: The stage's section, an entry of `distill` in a recipe.

    Raises:
        LookupError: If the section was registered without a method that trains it.
    """
    name = stage.method_name()
    methods = registered_methods()
    if name not in methods:
        raise LookupError(f"method '{name}' has a section and no code: register it with register_method(Method(...))")
    return methods[name]
