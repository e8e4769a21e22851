from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pocketbert.core.errors import InputError
from pocketbert.distill.losses.relations import relation_heads, relation_kl


@given(st.integers(1, 2000), st.integers(1, 2000))
def test_default_heads_are_the_most_up_to_48_that_divide_both(student: int, teacher: int) -> None:
    found = relation_heads(student, teacher)
    assert found == [n for n in range(1, 49) if student % n == 0 and teacher % n == 0][-1]
    assert relation_heads(student, teacher, found) == found


def test_explicit_heads_must_divide_both_widths() -> None:
    assert relation_heads(768, 1024, 64) == 64
    with pytest.raises(
        InputError, match=r"^distill\.1\.relation_heads: 48 .* 312 .* 384 .*: 1, 2, 3, 4, 6, 8, 12, 24\."
    ):
        relation_heads(312, 384, 48, "distill.1.relation_heads")
    with pytest.raises(ValueError, match="5 relation heads do not divide 24 and 32 numbers"):
        relation_kl(torch.zeros(1, 2, 3, 12), torch.zeros(1, 4, 3, 8), torch.ones(1, 3), 5)
