"""Heads, one class per task: each turns labels into training targets, and outputs into scores and answers."""

from pocketbert.core.heads.head import AnswerSettings, Head, Prepared
from pocketbert.core.heads.table import make_head

__all__ = ["AnswerSettings", "Head", "Prepared", "make_head"]
