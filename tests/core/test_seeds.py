"""Random numbers are drawn from named keys, the same in every process and for ever."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pocketbert.core.seeds import derive_seed, generator


def test_seeds_are_the_same_for_ever_and_every_part_of_the_key_matters() -> None:
    assert derive_seed(0, "order") == 2014141240523292191
    assert derive_seed(7, "dropout/distill.0", 12, 3) == 3233326044074052983
    keys = [(0, "a"), (1, "a"), (0, "b"), (0, "a", 0), (0, "a", 1), (0, "a", 0, 0), (0, "a", 0, 1)]
    assert len({derive_seed(*k) for k in keys}) == len(keys)
    first, again, other = generator(3, "order", 1), generator(3, "order", 1), generator(3, "order", 2)
    numbers = first.permutation(50).tolist()
    assert numbers == again.permutation(50).tolist() != other.permutation(50).tolist()


@given(st.integers(0, 1 << 40), st.text(max_size=8), st.lists(st.integers(0, 1 << 40), max_size=3))
def test_seeds_fit_63_bits(seed: int, purpose: str, counters: list[int]) -> None:
    assert 0 <= derive_seed(seed, purpose, *counters) < 1 << 63
