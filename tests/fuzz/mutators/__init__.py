"""Ways to change each kind of input; importing this registers all of them."""

from fuzz.mutators import artefacts, bytewise, damage, models, overrides, recipes, rows, special, stdin, tensors

__all__ = [
    "artefacts",
    "bytewise",
    "damage",
    "models",
    "overrides",
    "recipes",
    "rows",
    "special",
    "stdin",
    "tensors",
]
