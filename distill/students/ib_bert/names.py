"""Names of the original MobileBERT and IB-BERT checkpoints (google-research/mobilebert, TensorFlow 1), and ours.

The names and shapes are those that the variable scopes of the original modeling.py and run_pretraining.py make;
transformers' former converter, no longer part of 5.23, agrees. No IB-BERT checkpoint was ever published, so that for it
only the code speaks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor

from pocketbert.core.errors import InputError, Problem

_MODULES = (
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
"""Original module, or variable without a module of its own, to ours."""
_LAYER = re.compile(
    r"bert/encoder/layer_(\d+)/"
    r"(bottleneck/input/(?:dense|NORM)|bottleneck/attention/(?:dense|NORM)|attention/self/(?:query|key|value)|"
    r"attention/output/(?:dense|NORM)|(?:ffn_layer_\d+/)?intermediate/dense|(?:ffn_layer_\d+/)?output/(?:dense|NORM)|"
    r"output/bottleneck/(?:dense|NORM))".replace("NORM", "(?:Fake)?LayerNorm")
)
_LEAVES = {"kernel": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}
_TRANSPOSED = ("/kernel", "/extra_output_weights")
_OPTIMISER = re.compile(r"(.*/)?(adam_m|adam_v|global_step)")
_TIED = {
    "cls.predictions.decoder.weight": "mobilebert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}


def renamed(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """An original checkpoint under the names of `IbBertForPreTraining` and transformers' ``MobileBertForPreTraining``.

    Args:
        state: Variables by TensorFlow name (``bert/encoder/layer_0/bottleneck/input/dense/kernel``). Those of the
            optimiser may be among them.

    Returns:
        The weights by PyTorch name: matrices [out, in], the extra output matrix [width - embedding width, V], and with
        a masked-LM head the output matrix and bias also under the names they are tied to. No copies.

    Raises:
        InputError: Naming every variable that a pre-training checkpoint does not have, such as a fine-tuned head's or
            one of quantisation-aware training.
    """
    out, unknown = {}, []
    for name, value in state.items():
        if _OPTIMISER.fullmatch(name):
            continue
        if (ours := new_name(name)) is None:
            unknown.append(name)
        else:
            out[ours] = value.T if name.endswith(_TRANSPOSED) else value
    if unknown:
        raise InputError(
            [
                Problem(
                    name,
                    "no variable of a MobileBERT or IB-BERT pre-training checkpoint.",
                    "Leave it out, or use a checkpoint of pre-training.",
                )
                for name in unknown
            ]
        )
    if "cls.predictions.bias" in out:
        out |= {tied: out[name] for tied, name in _TIED.items() if name in out}
    return out


def new_name(name: str) -> str | None:
    """Our name of an original variable; None if there is no such variable.

    Args:
        name: TensorFlow name, without ``:0``.
    """
    for old, new in _MODULES:
        if match := re.fullmatch(old, name):
            return match.expand(new) if _is_variable(new) else None
    module, _, leaf = name.rpartition("/")
    if leaf not in _LEAVES or (leaf in ("gamma", "beta")) != module.endswith("LayerNorm"):
        return None
    if match := _LAYER.fullmatch(module):
        number, place = match.groups()
        place = place.replace("ffn_layer_", "ffn/").replace("FakeLayerNorm", "LayerNorm").replace("/", ".")
        return f"mobilebert.encoder.layer.{number}.{place}.{_LEAVES[leaf]}"
    for old, new in _MODULES:
        if not _is_variable(new) and (match := re.fullmatch(old, module)):
            return f"{match.expand(new)}.{_LEAVES[leaf]}"
    return None


def _is_variable(new: str) -> bool:
    return new.endswith((".weight", ".bias"))
