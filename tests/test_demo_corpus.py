"""The laws of the demo corpus."""

from __future__ import annotations

import ast
import gzip
import json
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

from pocketbert import demo_corpus
from pocketbert.demo_corpus import LABELS, Corpus, Row, generate, write
from pocketbert.demo_corpus.generator import INTENTS, VOCABULARIES
from pocketbert.demo_corpus.grammar import SLOT, Intent, list_variants
from pocketbert.demo_corpus.speech import FILLERS, HELD_REQUESTS

PUNCTUATION = ",.?!"


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return generate()


def plain(text: str) -> list[str]:
    return [word.strip(PUNCTUATION) for word in text.lower().split()]


def rows_of(corpus: Corpus) -> Iterator[Row]:
    return chain.from_iterable(corpus.splits().values())


def skeleton(row: Row) -> list[str]:
    """Returns the words of a row with hesitation left out and each slot as its name in angle brackets."""
    text = " ".join(
        f"<{tag[2:]}>" if tag.startswith("B-") else word
        for word, tag in zip(plain(row.text), row.tags, strict=True)
        if not tag.startswith("I-")
    )
    for filler in FILLERS:
        text = f" {text} ".replace(f" {filler} ", " ").strip()
    return [word for at, word in enumerate(text.split()) if at == 0 or word != text.split()[at - 1]]


def template_skeletons(template: str) -> Iterator[list[str]]:
    """Yields what rows of a template look like to `skeleton`; untagged slots are filled in."""
    for variant in list_variants(template):
        lines: list[list[str]] = [[]]
        for word in variant.lower().split():
            slot = SLOT.match(word)
            if slot is None:
                fills = [[word.strip(PUNCTUATION)]]
            elif slot["tag"] == "o":
                source = VOCABULARIES[slot["vocabulary"]]
                fills = [plain(value) for value in source.seen + source.held]
            else:
                fills = [[f"<{slot['tag'] or slot['vocabulary']}>"]]
            lines = [line + fill for line in lines for fill in fills]
        yield from lines


def test_every_split_is_large_balanced_and_short(corpus: Corpus) -> None:
    assert len(LABELS) >= 24
    assert list(LABELS) == sorted(set(LABELS))
    for split, least, most in (("train", 5_000, 7_000), ("dev", 1_000, 1_400), ("test", 1_000, 1_400)):
        rows = corpus.splits()[split]
        assert least <= len(rows) <= most
        sizes = Counter(row.label for row in rows)
        assert set(sizes) == set(LABELS)
        assert max(sizes.values()) <= 3 * min(sizes.values())
        assert sum(len(row.tokens) for row in rows) / len(rows) <= 10


def test_utterances_are_unique_within_and_across_splits(corpus: Corpus) -> None:
    words = [" ".join(plain(row.text)) for row in rows_of(corpus)]
    assert len(set(words)) == len(words)


def test_tokens_are_the_words_of_the_text_and_tags_are_valid_bio(corpus: Corpus) -> None:
    for row in rows_of(corpus):
        assert row.tokens == tuple(row.text.split())
        assert row.text == " ".join(row.tokens)
        assert len(row.tags) == len(row.tokens)
        for before, tag in zip(("O", *row.tags), row.tags, strict=False):
            assert tag == "O" or tag[:2] in {"B-", "I-"}
            assert not tag.startswith("I-") or before[2:] == tag[2:]
        assert row.label != "out_of_scope" or set(row.tags) == {"O"}


def test_train_has_every_tag_of_the_other_splits(corpus: Corpus) -> None:
    seen = {tag for row in corpus.train for tag in row.tags}
    assert {tag for row in corpus.dev + corpus.test for tag in row.tags} <= seen


def spans(row: Row) -> Iterator[tuple[str, str]]:
    """Yields each slot of a row as (slot, value in lower case without punctuation)."""
    words = plain(row.text)
    for at, tag in enumerate(row.tags):
        if tag.startswith("B-"):
            end = at + 1
            while end < len(words) and row.tags[end] == f"I-{tag[2:]}":
                end += 1
            yield tag[2:], " ".join(words[at:end])


def test_held_values_are_absent_from_train(corpus: Corpus) -> None:
    held = {" ".join(plain(value)) for entry in VOCABULARIES.values() for value in entry.held}
    seen = {" ".join(plain(value)) for entry in VOCABULARIES.values() for value in entry.seen}
    assert not {value for row in corpus.train for _, value in spans(row)} & (held - seen)


def test_held_politeness_is_only_in_dev_and_test(corpus: Corpus) -> None:
    polite = {
        split: sum(any(f" {request} " in f" {' '.join(plain(row.text))} " for request in HELD_REQUESTS) for row in rows)
        for split, rows in corpus.splits().items()
    }
    assert {split for split, rows in polite.items() if rows} == {"dev", "test"}


@pytest.mark.parametrize(
    "name", ["artist", "app", "city", "event", "food", "item", "person", "podcast", "song", "task"]
)
def test_held_names_are_nowhere_in_train(corpus: Corpus, name: str) -> None:
    joined = "\n".join(f" {' '.join(plain(row.text))} " for row in corpus.train)
    assert [v for v in VOCABULARIES[name].held if f" {' '.join(plain(v))} " in joined] == []


def test_held_phrasings_are_absent_from_train_and_differ_between_dev_and_test(corpus: Corpus) -> None:
    joined = "\n".join(f" {' '.join(skeleton(row))} " for row in corpus.train)
    for entry in INTENTS:
        dev, test = (
            {" ".join(line) for template in templates for line in template_skeletons(template)}
            for templates in (entry.dev, entry.test)
        )
        assert [line for line in dev | test if f" {line} " in joined] == [], entry.name
        assert not dev & test, entry.name


def test_hesitation_and_letter_case_vary_in_every_split(corpus: Corpus) -> None:
    for rows in corpus.splits().values():
        hesitant = sum(any(word in {"uh", "um", "er", "uhm", "hmm"} for word in plain(row.text)) for row in rows)
        lower = sum(row.text == row.text.lower() for row in rows)
        assert 0.02 <= hesitant / len(rows) <= 0.15
        assert 0.4 <= lower / len(rows) <= 0.8


def test_equal_seeds_give_equal_corpora_and_other_seeds_the_same_sizes(corpus: Corpus) -> None:
    other = generate(7)
    assert generate() == corpus
    assert other != corpus
    for split, rows in corpus.splits().items():
        assert Counter(row.label for row in other.splits()[split]) == Counter(row.label for row in rows)


def test_two_intents_with_the_same_utterances_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    double = Intent("zz_double", INTENTS[0].train, INTENTS[0].dev, INTENTS[0].test)
    monkeypatch.setattr("pocketbert.demo_corpus.generator.INTENTS", (INTENTS[0], double))
    with pytest.raises(ValueError, match="zz_double say"):
        generate()


def test_an_intent_with_too_few_phrasings_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # Politeness and typing slips make many utterances of one word, so the patience is shortened as well.
    poor = Intent("poor", ("cheese",), ("bread",), ("milk",))
    monkeypatch.setattr("pocketbert.demo_corpus.generator._TRIES_A_ROW", 1)
    monkeypatch.setattr("pocketbert.demo_corpus.generator.INTENTS", (poor,))
    with pytest.raises(ValueError, match="poor has too few phrasings"):
        generate()


def test_written_files_hold_the_rows_in_reproducible_bytes(corpus: Corpus, tmp_path: Path) -> None:
    paths, again = write(corpus, tmp_path / "new"), write(corpus, tmp_path / "again")
    assert paths == {split: tmp_path / "new" / f"{split}.jsonl.gz" for split in ("train", "dev", "test")}
    for split, rows in corpus.splits().items():
        packed = paths[split].read_bytes()
        assert packed == again[split].read_bytes()
        assert packed[3:8] == bytes(5)  # the header's flags (no name) and time
        read = [json.loads(line) for line in gzip.decompress(packed).decode().splitlines()]
        assert list(read[0]) == ["text", "label", "tokens", "tags"]
        assert rows == tuple(Row(r["text"], r["label"], tuple(r["tokens"]), tuple(r["tags"])) for r in read)


def test_only_the_standard_library_is_imported() -> None:
    for path in Path(demo_corpus.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                assert name.startswith("pocketbert.demo_corpus") or name.split(".")[0] in sys.stdlib_module_names
