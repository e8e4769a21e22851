"""How answers to questions are scored: exact match and token F1 as in SQuAD."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_MARKS = str.maketrans("", "", string.punctuation)


def normalised(answer: str) -> str:
    """An answer as it is compared: lower case, without punctuation, articles and odd blanks.

    Source: evaluate-v1.1 of Rajpurkar et al. 2016 (SQuAD, arXiv 1606.05250, section 6.1).
    """
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_MARKS)).split())


def exact_match(answer: str, gold: Sequence[str]) -> float:
    """1 when the answer equals one of the gold answers (the empty one where there is none), else 0."""
    return float(any(normalised(answer) == normalised(g) for g in (gold or [""])))


def token_f1(answer: str, gold: Sequence[str]) -> float:
    """Best F1 over words with one of the gold answers; of unanswerable questions 1 for no answer, else 0."""
    return max(_f1(normalised(answer).split(), normalised(g).split()) for g in (gold or [""]))


def _f1(answer: list[str], gold: list[str]) -> float:
    if not answer or not gold:
        return float(answer == gold)
    common = sum((Counter(answer) & Counter(gold)).values())
    return 2 * common / (len(answer) + len(gold))
