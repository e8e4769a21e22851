"""Configuration of ERNIE (Tsinghua): BERT with a second, narrow stream of entities in its upper layers."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from transformers import BertConfig

from pocketbert.core.errors import InputError, Problem


class LayerKind(StrEnum):
    """What a layer does with the entities, by the names of the released ``ernie_config.json``."""

    SIM = "sim"
    """Nothing: BERT's layer."""
    MIX = "mix"
    """Fuses entities into the feed-forward part."""
    NORM = "norm"
    """Lets entities attend to each other, then fuses them."""


class ErnieThuConfig(BertConfig):  # type: ignore[misc]
    """Sizes of an ERNIE of Tsinghua (Zhang et al. 2019, arXiv 1905.07129); the defaults are the released ERNIE-base.

    Attributes:
        layer_kinds: What each layer does with entities, see `LayerKind`; where the list is too short, the rest is ``sim``.
            The released file calls it ``layer_types``, a name that transformers keeps for kinds of attention. By default
            the released pattern (12 layers: 5 x sim, mix, 6 x norm) at the model's depth.
        entity_size: Width of the entity stream.
        entity_heads: Heads of the attention between entities.
        entity_rows: Entities in the model's own table; 0 for a model without.

    Raises:
        InputError: If a layer has an unknown kind, there are more kinds than layers, or the width is no multiple of the heads.
    """

    model_type = "ernie_thu"

    layer_kinds: list[str] | None = None
    entity_size: int = 100
    entity_heads: int = 4
    entity_rows: int = 0

    def __post_init__(self, **kwargs: Any) -> None:
        """Refuse what is no ERNIE."""
        super().__post_init__(**kwargs)
        kinds, problems = list(self.layer_kinds or ()), []
        if unknown := sorted(set(kinds) - set(LayerKind)):
            problems.append(
                Problem("config.json layer_kinds", f"has {', '.join(unknown)}; allowed: {', '.join(LayerKind)}.")
            )
        if len(kinds) > self.num_hidden_layers:
            problems.append(
                Problem(
                    "config.json layer_kinds", f"lists {len(kinds)} layers, the model has {self.num_hidden_layers}."
                )
            )
        if self.entity_size % self.entity_heads:
            problems.append(
                Problem(
                    "config.json entity_size", f"{self.entity_size} is no multiple of {self.entity_heads} entity heads."
                )
            )
        if problems:
            raise InputError(problems)

    def kinds(self) -> list[LayerKind]:
        """What each layer does with entities."""
        depth = self.num_hidden_layers
        if self.layer_kinds is not None:
            listed = [LayerKind(k) for k in self.layer_kinds[:depth]]
            return [*listed, *[LayerKind.SIM] * (depth - len(listed))]
        norm = depth // 2
        return [*[LayerKind.SIM] * (depth - norm - 1), LayerKind.MIX, *[LayerKind.NORM] * norm]
