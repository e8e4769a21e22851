"""Ways to change each kind of input; importing this registers all of them."""

from fuzz.mutators import artefacts, bytewise, damage, models, recipes, rows, special, stdin

__all__ = ["artefacts", "bytewise", "damage", "models", "recipes", "rows", "special", "stdin"]
