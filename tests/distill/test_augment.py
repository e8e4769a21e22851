"""Copies of texts: what they change, what they leave, what decides them, and the files that keep them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pocketbert.core.errors import InputError
from pocketbert.core.families import TokenizerKind, family_of
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.data import AugmentSection
from pocketbert.distill.augment import Augmenter, CopyStore, MaskedWords, SourceRow
from pocketbert.distill.text.tokenizer import CorpusTokenizer
from pocketbert.distill.word_vectors import EmbeddingVectors, FileVectors, Neighbours, WordReader

TEXT = "Set an alarm: Play music,  PLEASE stop the (quick) weather"


@pytest.fixture(scope="module")
def reader(tiny_model) -> WordReader:
    return WordReader(tiny_model("bert"), TokenizerKind.WORDPIECE)


@dataclass
class Kit:
    """Makes augmenters over one random embedding table."""

    reader: WordReader
    table: Any = field(default_factory=lambda: np.random.default_rng(0).normal(size=(400, 16)).astype(np.float32))

    def __call__(self, seed: int = 1, masked: Any = None, vectors: Any = None, **changes: Any) -> Augmenter:
        section = AugmentSection(**{"copies": 8, "candidates": 5, **changes})
        vectors = vectors or EmbeddingVectors(self.table, self.reader)
        return Augmenter(self.reader, section, seed, Neighbours(vectors, section.candidates), masked)

    def texts(self, text: str, **changes: Any) -> list[str]:
        (copies,) = self(**changes).copies([SourceRow(1, (text,))])
        return [c[0] for c in copies]


@pytest.fixture(scope="module")
def kit(reader) -> Kit:
    return Kit(reader)


def test_only_words_of_meaning_change_and_all_else_stays_to_the_byte(kit, reader):
    copies = kit.texts(TEXT, probability=1.0, copies=20)
    assert copies
    between = [" an ", ": ", " ", ",  PLEASE ", " the (", ") "]
    words = ["Set", "alarm", "Play", "music", "stop", "quick", "weather"]
    vocabulary = {w.lower() for w in reader.vocabulary().values()}
    for copy in copies:
        found, rest = [], copy
        for separator in between:
            word, _, rest = rest.partition(separator)
            found.append(word)
        for word, other in zip(words, [*found, rest], strict=True):
            assert other.lower() in vocabulary - {word.lower()}, copy
            assert other[0].isupper() == word[0].isupper()


def test_candidates_are_whole_words_of_the_vocabulary(kit, reader):
    vocabulary = set(reader.vocabulary().values())
    assert {"film", "music"} <= vocabulary
    assert not {"ing", "##ing", "the", "please", "[MASK]", "a", "7", "!"} & vocabulary
    for copy in kit.texts("happy music", probability=1.0, copies=50, candidates=1000):
        assert set(copy.split()) <= vocabulary


@pytest.mark.parametrize(
    ("word", "candidate", "written"),
    [
        ("film", "movie", "movie"),
        ("Film", "movie", "Movie"),
        ("FILM", "movie", "MOVIE"),
        ("film", "Paris", "Paris"),
        ("Film", "iPhone", "IPhone"),
        ("Éclair", "cake", "Cake"),
    ],
)
def test_capitals_are_those_of_the_word(kit, word, candidate, written):
    vectors = FileVectors([word.lower(), candidate], np.eye(2, dtype=np.float32) + 0.1)
    assert kit.texts(f"the {word}!", vectors=vectors, probability=1.0) == [f"the {written}!"]


@pytest.mark.parametrize("text", ["我们 喜欢 音乐", "กินข้าว", "123 4x4 :-)", "it is the n't", "", "  ", "مرحبا بالعالم"])
def test_texts_without_such_words_have_no_copies(kit, text):
    assert kit.texts(text, probability=1.0) == []


@settings(max_examples=25)
@given(
    st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    st.integers(1, 12),
    st.lists(st.sampled_from(["good", "the", "fox", "!", "foxes", "Day"]), max_size=8),
)
def test_at_most_n_copies_all_different_and_none_the_row(kit, probability, copies, words):
    text = " ".join(words)
    made = kit.texts(text, probability=probability, copies=copies)
    assert len(made) <= (copies if probability else 0)
    assert len({text, *made}) == len(made) + 1
    assert all(len(c.split(" ")) == len(text.split(" ")) for c in made)
    assert kit.texts(text, probability=probability, copies=30)[: len(made)] == made, "more begin with the same ones"


def test_the_share_of_replaced_words_is_the_probability(kit):
    text = "good bad happy sad music light order number quick brown"
    rows = [SourceRow(i, (text,)) for i in range(400)]
    changed = [
        sum(a != b for a, b in zip(text.split(), copy[0].split(), strict=True))
        for copies in kit(probability=0.3, copies=5).copies(rows)
        for copy in copies
    ]
    assert np.sum(changed) / (400 * 5 * 10) == pytest.approx(0.3, abs=0.02)


def test_copies_depend_on_seed_and_number_and_not_on_company(kit):
    texts = [TEXT, "good music", "never again happy", TEXT, "foxes jump over"]
    rows = [SourceRow(i, (text,)) for i, text in enumerate(texts)]
    together = kit(probability=0.5).copies(rows)
    assert together == [kit(probability=0.5).copies([row])[0] for row in rows]
    assert together[0] != together[3]
    assert together != kit(seed=2, probability=0.5).copies(rows)


def test_each_text_of_a_pair_has_n_copies_beside_the_rows_own_partner(kit):
    words = "good bad happy sad music light order number quick brown"
    pair = (words, f"never {words}")
    for texts, expected in (((words,), 30), (pair, 60), (("good music", "good music"), None)):
        (copies,) = kit(probability=0.9, copies=30).copies([SourceRow(4, texts)])
        assert len(copies) == expected or expected is None
        varied = [tuple(copy[i] != own for i, own in enumerate(texts)) for copy in copies]
        assert set(varied) == ({(True,)} if len(texts) == 1 else {(True, False), (False, True)})
        assert varied == sorted(varied, reverse=True), "those of the first text come first"
        assert max(varied.count(which) for which in varied) <= 30
    (few,) = kit(probability=0.9, copies=3).copies([SourceRow(4, pair)])
    (many,) = kit(probability=0.9, copies=30).copies([SourceRow(4, pair)])
    assert few == many[:3] + many[30:33], "more begin with the same ones"


class Planted:
    """Says "dog" for every word of a single token."""

    def candidates(self, texts: Any) -> list[list[tuple[str, ...]]]:
        return [[("dog",) for w in t.words if w.token is not None] for t in texts]


def test_the_head_is_asked_for_words_of_one_piece_and_neighbours_for_others(kit):
    neighbours = Neighbours(EmbeddingVectors(kit.table, kit.reader), 5).find(["foxes"])[0]
    for copy in kit.texts("Good foxes jumps", masked=Planted(), probability=1.0):
        first, second, third = copy.split()
        assert (first, third) == ("Dog", "dog")
        assert second in neighbours


def test_a_byte_level_vocabulary(tmp_path):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer = trainers.BpeTrainer(special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    made.train_from_iterator(["a good Music film music films good"] * 20, trainer)
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    made.save(str(tmp_path / "tokenizer.json"))
    reader = WordReader(tmp_path, TokenizerKind.BYTE_BPE)
    assert set(reader.vocabulary().values()) >= {"good", "Music", "film", "films"}
    (read,) = reader.read(["Good film, don't"])
    assert [(w.text, w.token is None) for w in read.words] == [("Good", True), ("film", False)]
    assert CorpusTokenizer(tmp_path).digest == reader.base.digest
    copies = Kit(reader).texts("Good film, don't", probability=1.0)
    assert copies
    assert all(c.endswith(", don't") for c in copies)


# --- words that a masked-language model expects ---

TEXTS = ["good music, never foxes again", "happy", "the quick brown fox jumps over the lazy dog", "foxes"]


@pytest.fixture
def asked(tiny_model, make_classifier) -> Callable[..., tuple[Any, MaskedWords, WordReader]]:
    """`asked(family, count, positions)`: model, what asks it, its tokenizer."""

    def build(family: str = "bert", count: int = 4, positions: int = 64) -> tuple[Any, MaskedWords, WordReader]:
        folder = tiny_model(family)
        model = make_classifier(family, 2, ("a", "b"), auto_class="AutoModelForMaskedLM")
        reader = WordReader(folder, TokenizerKind.WORDPIECE)
        mask = TextTokenizer(folder, 48).mask_id
        assert mask is not None
        return model, MaskedWords(model, family_of(family), reader, mask, positions, count), reader

    return build


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_the_model_reads_the_hidden_word_and_then_the_text_as_it_is(family, asked, tiny_model):
    model, masked, reader = asked(family, count=6)
    (read,) = reader.read(["good music foxes day"])
    (found,) = masked.candidates([read])
    assert [w.token is None for w in read.words] == [False, False, True, False]
    assert len(found) == 3, "one for each word of a single token"
    assert read.words[1].text == "music"
    plain, place = read.ids.tolist(), read.words[1].token
    before, after = reader.base.before.tolist(), reader.base.after.tolist()
    mask = TextTokenizer(tiny_model(family), 48).mask_id
    hidden = [mask if i == place else t for i, t in enumerate(plain)]
    segments = [[*before, *hidden, *after], [*plain, *after]]
    inputs = {"input_ids": torch.tensor([segments[0]])}
    if family == "bert":
        types = [0] * len(segments[0]) + [1] * len(segments[1])
        inputs = {"input_ids": torch.tensor([[*segments[0], *segments[1]]]), "token_type_ids": torch.tensor([types])}
    with torch.no_grad():
        logits = model(**inputs).logits[0, 1 + place]
    entries = reader.vocabulary()
    best = sorted((i for i in entries if entries[i] != "music"), key=lambda i: -logits[i])[:6]
    assert found[1] == tuple(entries[i] for i in sorted(best))


def test_candidates_do_not_depend_on_what_is_asked_together(asked):
    _, masked, reader = asked()
    read = reader.read(TEXTS)
    alone = [masked.candidates([r])[0] for r in read]
    assert masked.candidates(read * 30) == alone * 30, "several batches"


def test_long_texts_are_read_around_the_word(asked):
    model, masked, reader = asked(positions=24)
    widths = []
    model.register_forward_pre_hook(
        lambda _, args, kwargs: widths.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    (read,) = reader.read([" ".join(["good music night fox"] * 30)])
    (found,) = masked.candidates([read])
    assert len(found) == len(read.words)
    assert all(found)
    assert max(widths) <= 24


# --- copies on disk ---

ROWS = [SourceRow(i, (f"text {i}\u2028 with\nbreaks",)) for i in range(10)]


class Counting:
    """Up to two copies of each row."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def copies(self, rows: Any) -> list[list[tuple[str, ...]]]:
        self.seen += [r.number for r in rows]
        return [[(f"{r.texts[0]} {i}",) for i in range(r.number % 3)] for r in rows]


@pytest.mark.parametrize("change", [{}, {"key": "other"}, {"rows": 9}, {"at_once": 5}])
def test_copies_are_kept_in_order_and_those_of_something_else_are_made_again(tmp_path, change):
    CopyStore(tmp_path / "work", "key", 10, 4).fill(ROWS, Counting)
    again, told = Counting(), {"key": "key", "rows": 10, "at_once": 4, **change}
    store = CopyStore(tmp_path / "work", **told)
    store.fill(ROWS[: told["rows"]], lambda: again)
    assert len(again.seen) == (told["rows"] if change else 0)
    assert list(store.read()) == Counting().copies(ROWS[: told["rows"]])


@pytest.mark.parametrize(
    ("name", "message"), [("thesis.txt", "holds no augmented rows"), ("augment.json", r"augment\.json")]
)
def test_a_folder_of_something_else_is_not_touched(tmp_path, name, message):
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / name).write_text("{")
    with pytest.raises(InputError, match=message):
        CopyStore(tmp_path / "work", "key", 10).fill(ROWS, Counting)
    assert [(p.name, p.read_text()) for p in (tmp_path / "work").iterdir()] == [(name, "{")]
