"""What can be wrong with an input; importing this registers the makers of every kind."""

from support.mutations import data, folders, models, recipes  # noqa: F401 - they register their makers
from support.mutations.maker import Mutation, mutations

__all__ = ["Mutation", "mutations"]
