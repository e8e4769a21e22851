"""ERNIE (Tsinghua) with the heads of BERT; each class is BERT's of the same suffix around another encoder."""

from __future__ import annotations

from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    BertForMaskedLM,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertTokenizer,
)
from transformers.models.bert.modeling_bert import BertOnlyMLMHead, BertPreTrainingHeads

from pocketbert.distill.students.ernie_thu.config import ErnieThuConfig
from pocketbert.distill.students.ernie_thu.model import ErnieThuModel, ErnieThuPreTrainedModel


class ErnieThuForMaskedLM(BertForMaskedLM, ErnieThuPreTrainedModel):  # type: ignore[misc]
    """ERNIE with the masked-LM head."""

    config_class = ErnieThuConfig

    def __init__(self, config: ErnieThuConfig) -> None:
        ErnieThuPreTrainedModel.__init__(self, config)
        self.bert, self.cls = ErnieThuModel(config, add_pooling_layer=False), BertOnlyMLMHead(config)
        self.post_init()


class ErnieThuForPreTraining(BertForPreTraining, ErnieThuPreTrainedModel):  # type: ignore[misc]
    """ERNIE with the text heads that it is pre-trained with: masked LM and next sentence."""

    config_class = ErnieThuConfig

    def __init__(self, config: ErnieThuConfig) -> None:
        ErnieThuPreTrainedModel.__init__(self, config)
        self.bert, self.cls = ErnieThuModel(config), BertPreTrainingHeads(config)
        self.post_init()


class ErnieThuForSequenceClassification(BertForSequenceClassification, ErnieThuPreTrainedModel):  # type: ignore[misc]
    """ERNIE with a linear head on the pooled state; the entity-typing head of the authors is one without a bias."""

    config_class = ErnieThuConfig

    def __init__(self, config: ErnieThuConfig) -> None:
        ErnieThuPreTrainedModel.__init__(self, config)
        self.num_labels = config.num_labels
        self.bert, self.dropout = ErnieThuModel(config), _head_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()


class ErnieThuForTokenClassification(BertForTokenClassification, ErnieThuPreTrainedModel):  # type: ignore[misc]
    """ERNIE with a linear head on every token."""

    config_class = ErnieThuConfig

    def __init__(self, config: ErnieThuConfig) -> None:
        ErnieThuPreTrainedModel.__init__(self, config)
        self.num_labels = config.num_labels
        self.bert, self.dropout = ErnieThuModel(config, add_pooling_layer=False), _head_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()


class ErnieThuForQuestionAnswering(BertForQuestionAnswering, ErnieThuPreTrainedModel):  # type: ignore[misc]
    """ERNIE with a head that gives every token a score as the start and as the end of the answer."""

    config_class = ErnieThuConfig

    def __init__(self, config: ErnieThuConfig) -> None:
        ErnieThuPreTrainedModel.__init__(self, config)
        self.num_labels = config.num_labels
        self.bert = ErnieThuModel(config, add_pooling_layer=False)
        self.qa_outputs = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()


def register_ernie_thu() -> None:
    """Let transformers' Auto classes open ERNIE folders, in this process; may be called again."""
    AutoConfig.register(ErnieThuConfig.model_type, ErnieThuConfig, exist_ok=True)
    AutoTokenizer.register(ErnieThuConfig, BertTokenizer, exist_ok=True)
    for auto, model in (
        (AutoModel, ErnieThuModel),
        (AutoModelForMaskedLM, ErnieThuForMaskedLM),
        (AutoModelForPreTraining, ErnieThuForPreTraining),
        (AutoModelForSequenceClassification, ErnieThuForSequenceClassification),
        (AutoModelForTokenClassification, ErnieThuForTokenClassification),
        (AutoModelForQuestionAnswering, ErnieThuForQuestionAnswering),
    ):
        auto.register(ErnieThuConfig, model, exist_ok=True)


def _head_dropout(config: ErnieThuConfig) -> nn.Dropout:
    own = config.classifier_dropout
    return nn.Dropout(config.hidden_dropout_prob if own is None else own)


register_ernie_thu()
