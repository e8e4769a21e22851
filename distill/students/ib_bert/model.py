"""IB-BERT: blocks that widen inside, between widths that a small student shares (Sun et al. 2020, arXiv 2004.02984).

A block takes [B, S, 512], widens it to 1024 for one attention of four heads and one feed-forward part, and comes back
to 512 with a residual: a MobileBERT block turned inside out, so that teacher and student can be compared block by block
without a projection. All of it is transformers' MobileBERT but two things: queries and keys read the block's input, not
a bottleneck, which transformers' modules cannot do; and every norm has the configured epsilon.

Weights have MobileBERT's names (``mobilebert.encoder.layer.0...``, ``cls...``): what the student takes over goes by name.

Padding is hidden from attention. The embedding of a token sees the tokens on both sides, whatever these are, as in
transformers' MobileBERT: the last real token of a row is embedded with a pad beside it where there is one. Once the
pad's row of the table is not zero (it starts as zeros; the masked-LM loss moves it, as the output matrix is tied to the
table), a row with a pad behind it and the same row without give different states. How many pads follow makes none.
"""

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
    MobileBertTokenizer,
)
from transformers.models.mobilebert.modeling_mobilebert import (
    MobileBertEmbeddings,
    MobileBertEncoder,
    MobileBertForMaskedLM,
    MobileBertForPreTraining,
    MobileBertForQuestionAnswering,
    MobileBertForSequenceClassification,
    MobileBertForTokenClassification,
    MobileBertLayer,
    MobileBertModel,
    MobileBertOnlyMLMHead,
    MobileBertPooler,
    MobileBertPreTrainedModel,
    MobileBertPreTrainingHeads,
    MobileBertSelfAttention,
)

from pocketbert.distill.students.ib_bert.config import IbBertConfig


class IbBertSelfAttention(MobileBertSelfAttention):  # type: ignore[misc]
    """Attention whose queries, keys and values are made of the block's input, [B, S, inter-block width]."""

    def __init__(self, config: IbBertConfig) -> None:
        super().__init__(config)
        # the value's weights already have these shapes
        self.query = nn.Linear(config.hidden_size, self.all_head_size)
        self.key = nn.Linear(config.hidden_size, self.all_head_size)


class IbBertLayer(MobileBertLayer):  # type: ignore[misc]
    """One block: [B, S, inter-block width] to the same."""

    def __init__(self, config: IbBertConfig) -> None:
        super().__init__(config)
        self.attention.self = IbBertSelfAttention(config)
        _set_epsilon(self.output.LayerNorm, config)


class IbBertEncoder(MobileBertEncoder):  # type: ignore[misc]
    """The blocks."""

    def __init__(self, config: IbBertConfig) -> None:
        nn.Module.__init__(self)
        self.layer = nn.ModuleList(IbBertLayer(config) for _ in range(config.num_hidden_layers))


class IbBertModel(MobileBertModel):  # type: ignore[misc]
    """The encoder: token ids to hidden states, and a tanh pooler for the next-sentence head.

    Args:
        config: Sizes.
        add_pooling_layer: Whether to have a pooler.
    """

    config_class = IbBertConfig

    def __init__(self, config: IbBertConfig, add_pooling_layer: bool = True) -> None:
        # The parent's own start would build a MobileBERT of these sizes first.
        MobileBertPreTrainedModel.__init__(self, config)
        self.gradient_checkpointing = False
        self.embeddings = MobileBertEmbeddings(config)
        _set_epsilon(self.embeddings.LayerNorm, config)
        self.encoder = IbBertEncoder(config)
        self.pooler = MobileBertPooler(config) if add_pooling_layer else None
        self.post_init()


class IbBertForMaskedLM(MobileBertForMaskedLM):  # type: ignore[misc]
    """IB-BERT with the masked-LM head, as a teacher that only predicts tokens needs it."""

    config_class = IbBertConfig

    def __init__(self, config: IbBertConfig) -> None:
        MobileBertPreTrainedModel.__init__(self, config)
        self.mobilebert = IbBertModel(config, add_pooling_layer=False)
        self.cls = MobileBertOnlyMLMHead(config)
        self.post_init()


class IbBertForPreTraining(MobileBertForPreTraining):  # type: ignore[misc]
    """IB-BERT with both heads it is pre-trained with, masked LM and next sentence."""

    config_class = IbBertConfig

    def __init__(self, config: IbBertConfig) -> None:
        MobileBertPreTrainedModel.__init__(self, config)
        self.mobilebert = IbBertModel(config)
        self.cls = MobileBertPreTrainingHeads(config)
        self.post_init()


class IbBertForSequenceClassification(MobileBertForSequenceClassification):  # type: ignore[misc]
    """IB-BERT with a linear head on the pooled state: one answer to a text or a pair."""

    config_class = IbBertConfig

    def __init__(self, config: IbBertConfig) -> None:
        MobileBertPreTrainedModel.__init__(self, config)
        self.num_labels = config.num_labels
        self.mobilebert = IbBertModel(config)
        self.dropout = _head_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()


class IbBertForTokenClassification(MobileBertForTokenClassification):  # type: ignore[misc]
    """IB-BERT with a linear head on every token."""

    config_class = IbBertConfig

    def __init__(self, config: IbBertConfig) -> None:
        MobileBertPreTrainedModel.__init__(self, config)
        self.num_labels = config.num_labels
        self.mobilebert = IbBertModel(config, add_pooling_layer=False)
        self.dropout = _head_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()


class IbBertForQuestionAnswering(MobileBertForQuestionAnswering):  # type: ignore[misc]
    """IB-BERT with a head that says of every token how likely an answer starts or ends there."""

    config_class = IbBertConfig

    def __init__(self, config: IbBertConfig) -> None:
        MobileBertPreTrainedModel.__init__(self, config)
        self.num_labels = config.num_labels
        self.mobilebert = IbBertModel(config, add_pooling_layer=False)
        self.qa_outputs = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()


def register_ib_bert() -> None:
    """Let transformers' Auto classes open IB-BERT folders, in this process; may be called again."""
    AutoConfig.register(IbBertConfig.model_type, IbBertConfig, exist_ok=True)
    AutoTokenizer.register(IbBertConfig, MobileBertTokenizer, exist_ok=True)
    for auto, model in (
        (AutoModel, IbBertModel),
        (AutoModelForMaskedLM, IbBertForMaskedLM),
        (AutoModelForPreTraining, IbBertForPreTraining),
        (AutoModelForSequenceClassification, IbBertForSequenceClassification),
        (AutoModelForTokenClassification, IbBertForTokenClassification),
        (AutoModelForQuestionAnswering, IbBertForQuestionAnswering),
    ):
        auto.register(IbBertConfig, model, exist_ok=True)


def _head_dropout(config: IbBertConfig) -> nn.Dropout:
    own = config.classifier_dropout
    return nn.Dropout(config.hidden_dropout_prob if own is None else own)


def _set_epsilon(norm: nn.Module, config: IbBertConfig) -> None:
    # transformers leaves these two at PyTorch's 1e-5, which NoNorm has no use for; the original has 1e-12 everywhere
    if isinstance(norm, nn.LayerNorm):
        norm.eps = config.layer_norm_eps


register_ib_bert()
