"""A model whose table of word embeddings has only the rows of the pieces that stay."""

from __future__ import annotations

import copy
from typing import Any

import torch

from pocketbert.core.families import Family
from pocketbert.core.models.checkpoints import complete
from pocketbert.distill.vocabulary.choice import Kept
from pocketbert.distill.vocabulary.tokenizer import pruned_config


def pruned_table(model: Any, family: Family, kept: Kept) -> Any:
    """Copy a model, leaving its table of word embeddings the rows of the pieces that stay.

    On texts that are read as before, the copy answers the same numbers.

    Args:
        model: A transformers model whose outputs are not over the vocabulary; it is not changed.
        family: Its row of the family table.
        kept: The pieces that stay.

    Returns:
        A model of the same class, with weights of its own; in evaluation mode.

    Raises:
        ValueError: If another matrix shares the table, as that of a head that guesses words does.
    """
    table = model.get_input_embeddings().weight
    state = model.state_dict(keep_vars=True)
    names = [name for name, value in state.items() if value is table]
    if len(names) != 1:
        raise ValueError(f"{', '.join(names) or 'nothing'} in {type(model).__name__} is the table of word embeddings")
    config = copy.deepcopy(model.config)
    entries = config.to_dict()
    size = family.config_names.get("vocab_size", "vocab_size")
    for key, value in pruned_config(entries, kept, size).items():
        if entries.get(key) != value:
            setattr(config, key, value)
    config._attn_implementation = "sdpa" if model._supports_sdpa else "eager"
    weights = {name: value.detach() for name, value in state.items()}
    weights[names[0]] = weights[names[0]][torch.tensor(kept.ids, device=table.device)]
    with torch.random.fork_rng(devices=[]):
        smaller = type(model)(config)
    smaller.load_state_dict(weights)
    return complete(smaller, family).eval()
