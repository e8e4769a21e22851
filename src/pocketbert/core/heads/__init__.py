"""One module per task: how its labels become targets, its outputs scores, and its outputs answers."""

from pocketbert.core.heads.head import AnswerSettings, Head, Prepared
from pocketbert.core.heads.table import head_of

__all__ = ["AnswerSettings", "Head", "Prepared", "head_of"]
