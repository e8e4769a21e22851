"""XLNet's content stream, batch first, without gather in its relative positions. Memories and permutations are not computed.

Source: Yang et al. 2019 (XLNet), equations of relative attention as in Dai et al. 2019 (Transformer-XL), section 3.3.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from pocketbert.core.families import ADAPTERS
from pocketbert.core.types import Format
from pocketbert.export.adapters.own_encoder import check_computed, with_own_encoder
from pocketbert.export.adapters.plan import ExportPlan
from pocketbert.export.adapters.xlnet.encoder import RelativeEncoder, Row

_ROWS = {"last": Row.LAST, "cls_index": Row.LAST, "first": Row.FIRST}
"""The token that a summary reads, by its type; of `cls_index` without an index, which no graph has, the last one."""


def relative_encoder(model: Any, plan: ExportPlan) -> nn.Module:
    """Wrap an XLNet model into a module with plain inputs and outputs, ready for torch.export.

    Args:
        model: A transformers model in eval mode. **It is changed in place.**
        plan: What the graph is for.

    Returns:
        The module.

    Raises:
        InputError: If the model computes something else than bidirectional attention on one text or pair.
    """
    from transformers.models.xlnet.modeling_xlnet import XLNetModelOutput

    check_computed(model, plan)
    summary = getattr(model, "sequence_summary", None)
    row = Row.ALL if summary is None else _ROWS.get(summary.summary_type, Row.ALL)
    encoder = RelativeEncoder(model.base_model, plan.family.longest, row, flat=plan.format is Format.ONNX)
    return with_own_encoder(model, plan, encoder, XLNetModelOutput)


ADAPTERS.add("relative-encoder", relative_encoder)
