"""Heads, one class per task: each turns labels into training targets, and outputs into scores and answers."""

from typing import TYPE_CHECKING

from pocketbert.core.heads.head import Head, Prepared
from pocketbert.core.heads.table import make_head
from pocketbert.core.plugins import make_facade_getattr

if TYPE_CHECKING:
    from pocketbert.core.heads.settings import AnswerSettings

__all__ = ["AnswerSettings", "Head", "Prepared", "make_head"]

# settings are checked by pydantic, which a model that answers does not need
__getattr__ = make_facade_getattr(__name__, {"core.heads.settings": ("AnswerSettings",)})
