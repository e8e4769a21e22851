"""IB-BERT for transformers: the inverted-bottleneck BERT that MobileBERT learns from.

Source: Sun et al. 2020, arXiv 2004.02984.

The configuration `IbBertConfig`, the model classes, and `rename_weights` for checkpoints of the original code.
Importing this module registers the classes with transformers.

A block takes [B, S, 512], widens it to 1024 for one attention of four heads and one feed-forward part, and narrows it
to 512 with a residual. A student's block is narrower inside and as wide outside, so that teacher and student can be
compared block by block without a projection. All of it is transformers' MobileBERT except for two things: queries and
keys read the block's input, not a bottleneck, which transformers' modules cannot do; and every norm has the configured
epsilon.

Weights have MobileBERT's names (``mobilebert.encoder.layer.0...``, ``cls...``), by which they are copied to the
student.

Padding is masked in attention. The embedding of a token includes the tokens on both sides, whatever these are, as in
transformers' MobileBERT: the last real token of a row is embedded with the pad next to it if there is one. As soon as
the pad's row of the table is not zero (it starts as zeros; the masked-LM loss changes it, as the output matrix is tied
to the table), a row with a pad behind it and the same row without have different states. The number of pads makes no
difference.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    MobileBertConfig,
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

from pocketbert.core.errors import InputError, Problem

_FIXED = {"use_bottleneck": True, "use_bottleneck_attention": False, "key_query_shared_bottleneck": False}
"""Values of every IB-BERT: blocks with a separate width, whose queries, keys and values read the block's input."""


class IbBertConfig(MobileBertConfig):  # type: ignore[misc]
    """Configuration of an IB-BERT; defaults are IB-BERT-large (Sun et al. 2020, arXiv 2004.02984, table 1).

    It is a configuration of MobileBERT with other values (config/uncased_L-24_H-1024_B-512_A-4.json of the original
    code), which transformers' MobileBERT cannot run. GELU is the tanh form, as in the original code.

    Attributes:
        hidden_size: Width between blocks, the same as the student's.
        intra_bottleneck_size: Width within a block, all heads together.
        intermediate_size: Width of the feed-forward part.
        embedding_size: Width of the embedding table.

    Raises:
        InputError: If the values describe another architecture, or the width within a block is not a multiple of the
            heads.
    """

    model_type = "ib_bert"

    intermediate_size: int = 4096
    hidden_act: str = "gelu_pytorch_tanh"
    hidden_dropout_prob: float | int = 0.1
    intra_bottleneck_size: int = 1024
    key_query_shared_bottleneck: bool = False
    num_feedforward_networks: int = 1
    normalization_type: str = "layer_norm"

    def __post_init__(self, **kwargs: Any) -> None:
        """Raise InputError if the values describe another architecture, or the heads do not divide a block's width."""
        super().__post_init__(**kwargs)
        problems = []
        for name, value in _FIXED.items():
            if getattr(self, name) != value:
                what = f"{getattr(self, name)} is another architecture; an IB-BERT has {value}."
                problems.append(Problem(f"config.json {name}", what, "Use transformers' MobileBertConfig for it."))
        if self.intra_bottleneck_size % self.num_attention_heads:
            what = f"{self.intra_bottleneck_size} is not a multiple of {self.num_attention_heads} heads."
            problems.append(Problem("config.json intra_bottleneck_size", what))
        if problems:
            raise InputError(problems)


class IbBertSelfAttention(MobileBertSelfAttention):  # type: ignore[misc]
    """Self-attention that computes queries, keys and values from the block's input, [B, S, inter-block width]."""

    def __init__(self, config: IbBertConfig) -> None:
        super().__init__(config)
        # the weights of the values already have these shapes
        self.query = nn.Linear(config.hidden_size, self.all_head_size)
        self.key = nn.Linear(config.hidden_size, self.all_head_size)


class IbBertLayer(MobileBertLayer):  # type: ignore[misc]
    """One block of the encoder, [B, S, inter-block width] to [B, S, inter-block width]."""

    def __init__(self, config: IbBertConfig) -> None:
        super().__init__(config)
        self.attention.self = IbBertSelfAttention(config)
        _set_epsilon(self.output.LayerNorm, config)


class IbBertEncoder(MobileBertEncoder):  # type: ignore[misc]
    """All blocks of the encoder, one after the other."""

    def __init__(self, config: IbBertConfig) -> None:
        nn.Module.__init__(self)
        self.layer = nn.ModuleList(IbBertLayer(config) for _ in range(config.num_hidden_layers))


class IbBertModel(MobileBertModel):  # type: ignore[misc]
    """The encoder without a head: from token ids to hidden states, with a tanh pooler for the next-sentence head.

    Args:
        config: Sizes.
        add_pooling_layer: Whether to have a pooler.
    """

    config_class = IbBertConfig

    def __init__(self, config: IbBertConfig, add_pooling_layer: bool = True) -> None:
        # not the parent's __init__, which would build a MobileBERT of these sizes first
        MobileBertPreTrainedModel.__init__(self, config)
        self.gradient_checkpointing = False
        self.embeddings = MobileBertEmbeddings(config)
        _set_epsilon(self.embeddings.LayerNorm, config)
        self.encoder = IbBertEncoder(config)
        self.pooler = MobileBertPooler(config) if add_pooling_layer else None
        self.post_init()


class IbBertForMaskedLM(MobileBertForMaskedLM):  # type: ignore[misc]
    """IB-BERT with the masked-LM head only."""

    config_class = IbBertConfig

    def __init__(self, config: IbBertConfig) -> None:
        MobileBertPreTrainedModel.__init__(self, config)
        self.mobilebert = IbBertModel(config, add_pooling_layer=False)
        self.cls = MobileBertOnlyMLMHead(config)
        self.post_init()


class IbBertForPreTraining(MobileBertForPreTraining):  # type: ignore[misc]
    """IB-BERT with both heads of its pre-training, masked LM and next sentence."""

    config_class = IbBertConfig

    def __init__(self, config: IbBertConfig) -> None:
        MobileBertPreTrainedModel.__init__(self, config)
        self.mobilebert = IbBertModel(config)
        self.cls = MobileBertPreTrainingHeads(config)
        self.post_init()


class IbBertForSequenceClassification(MobileBertForSequenceClassification):  # type: ignore[misc]
    """IB-BERT with a linear head on the pooled state of a text or a pair."""

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
    """IB-BERT with a head that gives every token a score as the start and as the end of the answer."""

    config_class = IbBertConfig

    def __init__(self, config: IbBertConfig) -> None:
        MobileBertPreTrainedModel.__init__(self, config)
        self.num_labels = config.num_labels
        self.mobilebert = IbBertModel(config, add_pooling_layer=False)
        self.qa_outputs = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()


def _head_dropout(config: IbBertConfig) -> nn.Dropout:
    """Return the dropout before a classification head, at the configured rate."""
    rate = config.classifier_dropout
    return nn.Dropout(config.hidden_dropout_prob if rate is None else rate)


def _set_epsilon(norm: nn.Module, config: IbBertConfig) -> None:
    """Set the epsilon of a LayerNorm to the configured one. Transformers itself leaves two norms at PyTorch's 1e-5.

    The original code has 1e-12.
    """
    if isinstance(norm, nn.LayerNorm):
        norm.eps = config.layer_norm_eps


# transformers' Auto classes open IB-BERT folders in this process
AutoConfig.register(IbBertConfig.model_type, IbBertConfig, exist_ok=True)
AutoTokenizer.register(IbBertConfig, MobileBertTokenizer, exist_ok=True)
for _auto, _model in (
    (AutoModel, IbBertModel),
    (AutoModelForMaskedLM, IbBertForMaskedLM),
    (AutoModelForPreTraining, IbBertForPreTraining),
    (AutoModelForSequenceClassification, IbBertForSequenceClassification),
    (AutoModelForTokenClassification, IbBertForTokenClassification),
    (AutoModelForQuestionAnswering, IbBertForQuestionAnswering),
):
    _auto.register(IbBertConfig, _model, exist_ok=True)


# --- weights of the original checkpoints ------------------------------------------------------------------------------
#
# Names and shapes of google-research/mobilebert (TensorFlow 1) follow from the variable scopes of its modeling.py and
# run_pretraining.py; transformers' former converter, no longer part of 5.23, agrees. No IB-BERT checkpoint was ever
# published, so that its names are known from the code only.

_MODULE_NAMES = (
    (r"bert/embeddings/(word|position|token_type)_embeddings", r"mobilebert.embeddings.\1_embeddings.weight"),
    (r"bert/embeddings/embedding_transformation", "mobilebert.embeddings.embedding_transformation"),
    (r"bert/embeddings/(?:Fake)?LayerNorm", "mobilebert.embeddings.LayerNorm"),
    (r"bert/pooler/dense", "mobilebert.pooler.dense"),
    (r"cls/predictions/transform/(dense|LayerNorm)", r"cls.predictions.transform.\1"),
    (r"cls/predictions/output_bias", "cls.predictions.bias"),
    (r"cls/predictions/extra_output_weights", "cls.predictions.dense.weight"),
    (r"cls/seq_relationship/output_weights", "cls.seq_relationship.weight"),
    (r"cls/seq_relationship/output_bias", "cls.seq_relationship.bias"),
)
"""Pattern of an original module, or of a variable outside modules, and its name in transformers."""
_LAYER_MODULE = re.compile(
    r"bert/encoder/layer_(\d+)/"
    r"(bottleneck/input/(?:dense|NORM)|bottleneck/attention/(?:dense|NORM)|attention/self/(?:query|key|value)|"
    r"attention/output/(?:dense|NORM)|(?:ffn_layer_\d+/)?intermediate/dense|(?:ffn_layer_\d+/)?output/(?:dense|NORM)|"
    r"output/bottleneck/(?:dense|NORM))".replace("NORM", "(?:Fake)?LayerNorm")
)
_PARAMETER_NAMES = {"kernel": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}
_TRANSPOSED = ("/kernel", "/extra_output_weights")
_OPTIMIZER_STATE = re.compile(r"(.*/)?(adam_m|adam_v|global_step)")
_TIED = {
    "cls.predictions.decoder.weight": "mobilebert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}


def rename_weights(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename the TensorFlow variables of an original checkpoint to PyTorch parameters of IB-BERT or MobileBERT.

    Args:
        state: Variables by TensorFlow name (``bert/encoder/layer_0/bottleneck/input/dense/kernel``). The optimizer's
            variables, if there are any, are dropped.

    Returns:
        The weights by PyTorch name, without copies: matrices as [out, in], the extra output matrix as [width -
        embedding width, V]. With a masked-LM head, the word embeddings and the output bias are also there under the
        names of the decoder, whose parameters they are.

    Raises:
        InputError: Naming every variable that a pre-training checkpoint does not have, such as one of a fine-tuned head
            or of quantization-aware training.
    """
    weights, unknown = {}, []
    for name, value in state.items():
        if _OPTIMIZER_STATE.fullmatch(name):
            continue
        if (new_name := _rename_variable(name)) is None:
            unknown.append(name)
        else:
            weights[new_name] = value.T if name.endswith(_TRANSPOSED) else value
    if unknown:
        what = "no variable of a MobileBERT or IB-BERT pre-training checkpoint."
        fix = "Leave it out, or use a checkpoint of pre-training."
        raise InputError([Problem(name, what, fix) for name in unknown])
    if "cls.predictions.bias" in weights:
        weights |= {tied: weights[name] for tied, name in _TIED.items() if name in weights}
    return weights


def _rename_variable(name: str) -> str | None:
    """Return the PyTorch parameter name of a TensorFlow variable (without ``:0``); None for an unknown variable."""
    for pattern, new_name in _MODULE_NAMES:
        if match := re.fullmatch(pattern, name):
            return match.expand(new_name) if _is_parameter(new_name) else None
    module, _, leaf = name.rpartition("/")
    if leaf not in _PARAMETER_NAMES or (leaf in ("gamma", "beta")) != module.endswith("LayerNorm"):
        return None
    if match := _LAYER_MODULE.fullmatch(module):
        number, path = match.groups()
        path = path.replace("ffn_layer_", "ffn/").replace("FakeLayerNorm", "LayerNorm").replace("/", ".")
        return f"mobilebert.encoder.layer.{number}.{path}.{_PARAMETER_NAMES[leaf]}"
    for pattern, new_name in _MODULE_NAMES:
        if not _is_parameter(new_name) and (match := re.fullmatch(pattern, module)):
            return f"{match.expand(new_name)}.{_PARAMETER_NAMES[leaf]}"
    return None


def _is_parameter(name: str) -> bool:
    """Return whether a PyTorch name is that of a parameter, not of a module."""
    return name.endswith((".weight", ".bias"))
