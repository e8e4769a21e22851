"""XLM's language where nobody names one: config.json's `lang_id`.

transformers adds no language at all where `langs` is missing, which the model has not seen in its pre-training. A model that
is loaded or built here adds the default one, in training, in its golden rows and in its files alike.
"""

from __future__ import annotations

from typing import Any

import torch

from pocketbert.core.errors import InputError, Problem


def with_default_language(model: Any) -> None:
    """Make a model with several languages take its default one where its inputs name none.

    Args:
        model: A transformers model; a hook is registered on its encoder.

    Raises:
        InputError: If the model has no such language.
    """
    base = model.base_model
    if not hasattr(base, "lang_embeddings"):
        return
    number, count = model.config.lang_id, base.lang_embeddings.num_embeddings
    if not 0 <= number < count:
        what = f"lang_id is {number}, the model has the languages 0 to {count - 1}."
        raise InputError(Problem("config.json", what, "Set lang_id to the number of a language in lang2id."))
    if _add_language not in base._forward_pre_hooks.values():
        base.register_forward_pre_hook(_add_language, with_kwargs=True)


def _add_language(encoder: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    ids = arguments[0] if arguments else named.get("input_ids")
    if len(arguments) > 2 or named.get("langs") is not None or ids is None:
        return arguments, named
    return arguments, {**named, "langs": torch.full_like(ids, encoder.config.lang_id)}
