"""The laws of the demo corpus."""

from __future__ import annotations

import ast
import gzip
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from pocketbert import demo_corpus
from pocketbert.demo_corpus import LABELS, Corpus, Row, generate, write
from pocketbert.demo_corpus.generator import INTENTS, VOCABULARIES
from pocketbert.demo_corpus.grammar import SLOT, Intent, Vocabulary, list_variants
from pocketbert.demo_corpus.speech import FILLERS, HELD_REQUESTS

PUNCTUATION = ",.?!"


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return generate()


def plain(text: str) -> list[str]:
    return [word.strip(PUNCTUATION) for word in text.lower().split()]


def contains(text: Iterable[str], part: Iterable[str]) -> bool:
    return f" {' '.join(part)} " in f" {' '.join(text)} "


def spans(row: Row) -> Iterator[tuple[str, str]]:
    """Yields each slot of a row as (slot, value in lower case without punctuation)."""
    words = plain(row.text)
    for at, tag in enumerate(row.tags):
        if tag.startswith("B-"):
            end = at + 1
            while end < len(words) and row.tags[end] == f"I-{tag[2:]}":
                end += 1
            yield tag[2:], " ".join(words[at:end])


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


def test_it_is_large_enough(corpus: Corpus) -> None:
    assert len(LABELS) >= 24
    assert 5_000 <= len(corpus.train) <= 7_000
    assert 1_000 <= len(corpus.dev) <= 1_400
    assert 1_000 <= len(corpus.test) <= 1_400


def test_labels_are_sorted_and_in_every_split(corpus: Corpus) -> None:
    assert list(LABELS) == sorted(set(LABELS))
    for rows in corpus.splits().values():
        assert {row.label for row in rows} == set(LABELS)


def test_classes_are_roughly_balanced(corpus: Corpus) -> None:
    for rows in corpus.splits().values():
        sizes = Counter(row.label for row in rows).values()
        assert max(sizes) <= 3 * min(sizes)


def test_utterances_are_unique_within_and_across_splits(corpus: Corpus) -> None:
    words = [" ".join(plain(row.text)) for rows in corpus.splits().values() for row in rows]
    assert len(set(words)) == len(words)


def test_utterances_are_short(corpus: Corpus) -> None:
    for rows in corpus.splits().values():
        assert sum(len(row.tokens) for row in rows) / len(rows) <= 10


def test_tokens_are_the_whitespace_words_of_the_text(corpus: Corpus) -> None:
    for rows in corpus.splits().values():
        for row in rows:
            assert row.tokens == tuple(row.text.split())
            assert row.text == " ".join(row.tokens)


def test_tags_are_valid_bio(corpus: Corpus) -> None:
    for rows in corpus.splits().values():
        for row in rows:
            assert len(row.tags) == len(row.tokens)
            for before, tag in zip(("O", *row.tags), row.tags, strict=False):
                assert tag == "O" or tag[:2] in {"B-", "I-"}
                if tag.startswith("I-"):
                    assert before[2:] == tag[2:]


def test_train_has_every_tag_of_the_other_splits(corpus: Corpus) -> None:
    seen = {tag for row in corpus.train for tag in row.tags}
    assert {tag for row in corpus.dev + corpus.test for tag in row.tags} <= seen


def test_out_of_scope_rows_have_no_slots(corpus: Corpus) -> None:
    for rows in corpus.splits().values():
        assert all(set(row.tags) == {"O"} for row in rows if row.label == "out_of_scope")


def test_held_values_are_absent_from_train(corpus: Corpus) -> None:
    held = {" ".join(plain(value)) for entry in VOCABULARIES.values() for value in entry.held}
    seen = {" ".join(plain(value)) for entry in VOCABULARIES.values() for value in entry.seen}
    assert not {value for row in corpus.train for _, value in spans(row)} & (held - seen)


@pytest.mark.parametrize(
    "name", ["artist", "app", "city", "event", "food", "item", "person", "podcast", "song", "task"]
)
def test_held_names_are_nowhere_in_train(corpus: Corpus, name: str) -> None:
    texts = [plain(row.text) for row in corpus.train]
    for value in VOCABULARIES[name].held:
        assert not any(contains(text, plain(value)) for text in texts), value


@pytest.mark.parametrize("entry", VOCABULARIES.values(), ids=lambda entry: entry.name)
def test_a_vocabulary_holds_no_value_twice(entry: Vocabulary) -> None:
    values = [value.lower() for value in entry.seen + entry.held]
    assert entry.seen and entry.held
    assert len(set(values)) == len(values)


@pytest.mark.parametrize("entry", INTENTS, ids=lambda entry: entry.name)
def test_held_phrasings_are_absent_from_train(corpus: Corpus, entry: Intent) -> None:
    rows = [" ".join(skeleton(row)) for row in corpus.train]
    joined = "\n".join(f" {row} " for row in rows)
    for template in entry.dev + entry.test:
        for line in template_skeletons(template):
            assert f" {' '.join(line)} " not in joined, line


@pytest.mark.parametrize("entry", INTENTS, ids=lambda entry: entry.name)
def test_dev_and_test_hold_different_phrasings(entry: Intent) -> None:
    dev = {" ".join(line) for template in entry.dev for line in template_skeletons(template)}
    test = {" ".join(line) for template in entry.test for line in template_skeletons(template)}
    assert not dev & test


@pytest.mark.parametrize("split", ["dev", "test"])
def test_about_half_of_a_split_has_wording_and_values_train_never_had(corpus: Corpus, split: str) -> None:
    rows = corpus.splits()[split]
    phrasings = {
        entry.name: [" ".join(line) for template in entry.held(split) for line in template_skeletons(template)]
        for entry in INTENTS
    }
    values = {value for row in corpus.train for value in spans(row)}
    new_wording = sum(any(contains(skeleton(row), [line]) for line in phrasings[row.label]) for row in rows)
    with_slots = [row for row in rows if set(row.tags) != {"O"}]
    new_values = sum(any(value not in values for value in spans(row)) for row in with_slots)
    # Typing slips hide some of the new wording from this count, hence the lower bound below a half.
    assert 0.42 <= new_wording / len(rows) <= 0.55
    assert 0.45 <= new_values / len(with_slots) <= 0.75


def test_held_politeness_is_only_in_dev_and_test(corpus: Corpus) -> None:
    def polite(rows: tuple[Row, ...]) -> int:
        return sum(any(contains(plain(row.text), [request]) for request in HELD_REQUESTS) for row in rows)

    assert polite(corpus.train) == 0
    assert polite(corpus.dev) > 0
    assert polite(corpus.test) > 0


def test_hesitation_and_letter_case_vary_in_every_split(corpus: Corpus) -> None:
    for rows in corpus.splits().values():
        hesitant = sum(any(word in {"uh", "um", "er", "uhm", "hmm"} for word in plain(row.text)) for row in rows)
        lower = sum(row.text == row.text.lower() for row in rows)
        assert 0.02 <= hesitant / len(rows) <= 0.15
        assert 0.4 <= lower / len(rows) <= 0.8


def test_equal_seeds_give_equal_corpora_and_others_do_not(corpus: Corpus) -> None:
    assert generate() == corpus
    assert generate(7) != corpus


def test_another_seed_keeps_the_sizes(corpus: Corpus) -> None:
    other = generate(7)
    for split, rows in corpus.splits().items():
        assert Counter(row.label for row in other.splits()[split]) == Counter(row.label for row in rows)


def test_an_intent_does_not_depend_on_the_others(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = [entry for entry in INTENTS if entry.name != "news"]
    monkeypatch.setattr("pocketbert.demo_corpus.generator.INTENTS", kept)
    fewer = generate()
    for split, rows in corpus.splits().items():
        assert fewer.splits()[split] == tuple(row for row in rows if row.label != "news")


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


def test_written_files_hold_the_rows(corpus: Corpus, tmp_path: Path) -> None:
    paths = write(corpus, tmp_path / "new")
    assert list(paths) == ["train", "dev", "test"]
    for split, rows in corpus.splits().items():
        assert paths[split] == tmp_path / "new" / f"{split}.jsonl.gz"
        with gzip.open(paths[split], "rt", encoding="utf-8") as lines:
            read = [json.loads(line) for line in lines]
        assert [list(entry) for entry in read[:1]] == [["text", "label", "tokens", "tags"]]
        assert rows == tuple(
            Row(entry["text"], entry["label"], tuple(entry["tokens"]), tuple(entry["tags"])) for entry in read
        )


def test_written_bytes_are_reproducible(corpus: Corpus, tmp_path: Path) -> None:
    first = write(corpus, tmp_path / "a")
    second = write(generate(), tmp_path / "b")
    for split, path in first.items():
        packed = path.read_bytes()
        assert packed == second[split].read_bytes()
        # Byte 3 holds the header flags (no name), bytes 4 to 7 the time.
        assert packed[3:8] == bytes(5)


def test_only_the_standard_library_is_imported() -> None:
    for path in Path(demo_corpus.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                assert node.module is not None
                names = [node.module]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                continue
            for name in names:
                root = name.split(".")[0]
                assert name.startswith("pocketbert.demo_corpus") or root in sys.stdlib_module_names
