from __future__ import annotations

from pocketbert.core.compare.sample_texts import ASCII_SENTENCES, SENTENCES, UNICODE_SENTENCES, sample_pairs
from pocketbert.core.data.examples import Example


def test_the_sentences_are_many_different_and_of_all_lengths() -> None:
    assert len(SENTENCES) >= 30
    assert len({Example(s, None, 0, 1).digest for s in SENTENCES}) == len(SENTENCES)
    lengths = [len(s.split()) for s in SENTENCES]
    assert min(lengths) == 1
    assert max(lengths) > 40
    assert any(not s.isascii() for s in SENTENCES)


def test_the_pairs_have_two_different_texts() -> None:
    assert len(sample_pairs()) == len(SENTENCES)
    assert all(a != b for a, b in sample_pairs())


def test_clients_are_compared_on_50_ascii_and_20_other_sentences() -> None:
    assert len(set(ASCII_SENTENCES)) == len(ASCII_SENTENCES) == 50
    assert len(set(UNICODE_SENTENCES)) == len(UNICODE_SENTENCES) == 20
    assert all(s.isascii() for s in ASCII_SENTENCES)
    assert not any(s.isascii() for s in UNICODE_SENTENCES)
    assert any("\u4e00" <= c <= "\u9fff" for s in UNICODE_SENTENCES for c in s)
    assert any(ord(c) > 0xFFFF for s in UNICODE_SENTENCES for c in s)
