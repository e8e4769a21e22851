"""Texts as rows of a corpus: cut or packed, dropped by reason, written in one pass."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from pocketbert.core.errors import InputError, MissingBackendError
from pocketbert.core.recipe.data import CorpusSettings
from pocketbert.distill.text import writer
from pocketbert.distill.text.corpus import CorpusInfo, open_corpus
from pocketbert.distill.text.writer import write_corpus

UNK, CLS, SEP, SEP2 = range(4)
FIRST = 10
"""Id of the first token that is a word; text `w10 w11` has the tokens 10 and 11."""
FRAMES = {"bert": ([CLS], [SEP]), "roberta": ([CLS], [SEP]), "xlnet": ([], [SEP, SEP2])}
"""Tokens before and after a text. The vocabulary of "roberta" has no unknown token."""
SETTINGS = CorpusSettings(length=16, shortest=4)


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory) -> dict[str, Path]:
    """One word for each token, in the special tokens of a family."""
    special = ["[UNK]", "[CLS]", "[SEP]", "[SEP2]"]
    words = {t: i for i, t in enumerate([*special, "a", *(f"w{i}" for i in range(5, 100))])}
    folders = {}
    for name, (before, after) in FRAMES.items():
        made = Tokenizer(models.WordLevel(words) if name == "roberta" else models.WordLevel(words, unk_token="[UNK]"))
        made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        frame = [*(special[i] for i in before), "$A", *(special[i] for i in after)]
        tokens = [(special[i], i) for i in (*before, *after)]
        made.post_processor = processors.TemplateProcessing(single=" ".join(frame), special_tokens=tokens)
        made.add_special_tokens(special)
        folders[name] = tmp_path_factory.mktemp(name)
        made.save(str(folders[name] / "tokenizer.json"))
    return folders


def spell(tokens: Sequence[int]) -> str:
    return " ".join("[UNK]" if t == UNK else f"w{t}" for t in tokens)


def read_rows(folder: Path) -> list[list[int]]:
    corpus = open_corpus(folder)
    return [row.tolist() for row in corpus.ids(range(len(corpus)))]


Make = Callable[..., tuple[list[list[int]], CorpusInfo]]


@pytest.fixture(scope="module")
def make_rows(tokenizers, tmp_path_factory) -> Make:
    """`make_rows(frame, texts, **settings)`: the rows that texts of token ids become."""
    folder = tmp_path_factory.mktemp("made") / "corpus"

    def make(frame: str, texts: Sequence[Sequence[int]], **more: Any) -> tuple[list[list[int]], CorpusInfo]:
        told = CorpusSettings(**{"shortest": 1, **more})
        info = write_corpus([spell(t) for t in texts], tokenizers[frame], told, folder)
        return read_rows(folder), info

    return make


TEXTS = st.lists(st.lists(st.integers(FIRST, 99), max_size=40), max_size=12).map(lambda texts: [*texts, [FIRST]])


@pytest.mark.parametrize("packed", [False, True])
@settings(max_examples=25)
@given(TEXTS, st.sampled_from([*FRAMES]), st.integers(4, 24))
def test_rows_are_wrapped_and_lose_nothing(packed, make_rows, texts, frame, length):
    rows, info = make_rows(frame, texts, length=length, packed=packed)
    before, after = FRAMES[frame]
    b, a = len(before), len(after)
    for row in rows:
        assert b + a < len(row) <= length
        assert (row[:b], row[-a:]) == (before, after)
        assert packed or all(i >= FIRST for i in row[b:-a])
        assert SEP not in [i for i, j in pairwise(row[b:]) if i == j], "every separator follows a token"
    assert [i for row in rows for i in row if i >= FIRST] == [i for text in texts for i in text]
    assert (info.texts, info.dropped.empty) == (len(texts), texts.count([]))
    if packed:
        assert all(len(row) >= length - 1 for row in rows[:-1]), "they are full"
    else:
        assert len(rows) == sum(-(-len(text) // (length - a - b)) for text in texts), "cut no more often than needed"


def parse(row: str) -> list[int]:
    """The ids of tokens and, where a bar stands, of the separator."""
    return [SEP if word == "|" else int(word) for word in row.split()]


@pytest.mark.parametrize(
    ("frame", "more", "texts", "rows", "dropped"),
    [
        ("bert", {"length": 8, "packed": True}, ["10 11", "12", "13 14 15"], ["10 11 | 12 | 13", "14 15"], {}),
        # a single free place holds no token and its separator
        ("bert", {"length": 5, "packed": True}, ["10 11", "12 13"], ["10 11", "12 13"], {}),
        ("xlnet", {"length": 8, "packed": True}, ["10", "11"], ["10 | 11"], {}),
        ("xlnet", {"length": 4}, ["10", "11 12 13"], ["10", "11 12", "13"], {}),
        (
            "bert",
            {"length": 22, "shortest": 12},
            [" 7" * 9, " 8" * 10, " 9" * 22],
            [" 8" * 10, " 9" * 20],
            {"short": 2},
        ),
        ("bert", {"length": 22, "shortest": 12, "packed": True}, [" 8" * 20, " 9" * 3], [" 8" * 20], {"short": 1}),
        ("bert", {"length": 16}, ["0 0 0 0 10 10", "0 0 0 10 10 10"], ["0 0 0 10 10 10"], {"unknown": 1}),
        ("bert", {"length": 16, "packed": True}, ["0 0 0 0 10 10", "0 0 0 9 9 9"], ["0 0 0 9 9 9"], {"unknown": 1}),
    ],
)
def test_how_texts_are_divided_and_dropped(frame, more, texts, rows, dropped, make_rows):
    found, info = make_rows(frame, [parse(text) for text in texts], **more)
    before, after = FRAMES[frame]
    assert found == [[*before, *parse(row), *after] for row in rows]
    assert info.dropped.model_dump(exclude_defaults=True) == dropped


def test_a_vocabulary_without_unknown_token_drops_nothing(make_rows):
    rows, _ = make_rows("roberta", [[UNK] * 5], length=8)
    assert rows == [[CLS, *[UNK] * 5, SEP]]


def test_dropped_texts_are_counted_by_reason_and_none_left_is_an_error(tokenizers, tmp_path):
    told = CorpusSettings(length=16, shortest=5)
    texts = ["", "  ", "w10 w11", "☃ ☃ ☃ ☃ w10", "half \ud83d of it", "w10 w11 w12 w13"]
    info = write_corpus(texts, tokenizers["bert"], told, tmp_path / "c")
    assert info.dropped.model_dump() == {"empty": 2, "not_unicode": 1, "short": 1, "unknown": 1}
    assert (info.texts, info.rows) == (6, 1)
    with pytest.raises(InputError, match="no rows are left of 2 texts: 1 empty, 1 short"):
        write_corpus(["", "w10"], tokenizers["bert"], told, tmp_path / "d")
    with pytest.raises(InputError, match="no rows are left of 0 texts"):
        write_corpus([], tokenizers["bert"], told, tmp_path / "d")
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


def test_settings_that_make_no_sense_are_refused():
    wrong = {"length": 3}, {"length": 9000}, {"shortest": 0}, {"length": 8, "shortest": 9}, {"unknown_share": 0}
    for keys in (*wrong, {"pakced": 1}):
        with pytest.raises(ValidationError):
            CorpusSettings.model_validate(keys)


# --- files ---


def draw_texts(count: int, seed: int = 0) -> list[str]:
    draw = np.random.default_rng(seed)
    return [spell(draw.integers(FIRST, 99, draw.integers(1, 60))) for _ in range(count)]


def files(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir())}


def test_what_is_written_depends_on_texts_and_settings_alone(tokenizers, tmp_path, monkeypatch):
    texts, own = draw_texts(60), tokenizers["bert"]
    told = CorpusSettings(length=16, shortest=4, packed=True)
    first = write_corpus(texts, own, told, tmp_path / "a", 20)
    others = [
        write_corpus(draw_texts(60, 1), own, told, tmp_path / "x", 20),
        write_corpus(texts, own, told.model_copy(update={"shortest": 5}), tmp_path / "y", 20),
    ]
    assert len({first.digest, *(o.digest for o in others)}) == 3
    monkeypatch.setattr(writer, "_TEXTS_AT_ONCE", 7)
    monkeypatch.setattr(writer, "_CHARACTERS_AT_ONCE", 300)
    second = write_corpus(iter(texts), own / "tokenizer.json", told, tmp_path / "b", 20, total=60)
    assert files(tmp_path / "a") == files(tmp_path / "b")
    assert first.digest == second.digest
    monkeypatch.setattr(writer, "_ROWS_AT_ONCE", 5)
    write_corpus(texts, own, told, tmp_path / "c", 20)
    assert read_rows(tmp_path / "c") == read_rows(tmp_path / "a")


def test_texts_are_taken_one_by_one(tokenizers, tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "_TEXTS_AT_ONCE", 4)
    monkeypatch.setattr(writer, "_ROWS_AT_ONCE", 8)
    seen: list[int] = []

    def stream() -> Iterator[str]:
        for text in draw_texts(200):
            seen.append(sum(p.stat().st_size for p in tmp_path.glob(".c.*/new/*.arrow")))
            yield text

    write_corpus(stream(), tokenizers["bert"], SETTINGS, tmp_path / "c", rows_per_shard=30)
    assert 0 < seen[100] < seen[-1], "rows reach the disk while texts still come"


def test_an_interrupted_write_keeps_the_older_corpus(tokenizers, tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "_TEXTS_AT_ONCE", 4)
    old = write_corpus(draw_texts(10), tokenizers["bert"], SETTINGS, tmp_path / "c")

    def stream() -> Iterator[str]:
        yield from draw_texts(20, 1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_corpus(stream(), tokenizers["bert"], SETTINGS, tmp_path / "c", 3)
    with pytest.raises(InputError, match="text 31: 3 is int, not text"):
        write_corpus([*draw_texts(30), 3], tokenizers["bert"], SETTINGS, tmp_path / "c")  # type: ignore[list-item]
    assert open_corpus(tmp_path / "c").info == old
    assert [p.name for p in tmp_path.iterdir()] == ["c"]
    new = write_corpus(draw_texts(20, 1), tokenizers["bert"], SETTINGS, tmp_path / "c")
    assert open_corpus(tmp_path / "c").info == new != old


def test_what_cannot_be_written_is_listed_at_once(tokenizers, tmp_path, monkeypatch):
    (tmp_path / "letter.txt").write_text("dear")
    (tmp_path / "long").mkdir()
    made = Tokenizer.from_file(str(tokenizers["bert"] / "tokenizer.json"))
    made.post_processor = processors.TemplateProcessing(single="$A" + " [SEP]" * 4, special_tokens=[("[SEP]", SEP)])
    made.save(str(tmp_path / "long" / "tokenizer.json"))
    with pytest.raises(InputError) as caught:
        write_corpus(["w10"], tmp_path / "long", CorpusSettings(length=4, shortest=1), tmp_path, rows_per_shard=0)
    assert [p.where for p in caught.value.problems] == ["length", "rows_per_shard", str(tmp_path)]
    assert "is not a corpus; it is not replaced" in str(caught.value)
    assert (tmp_path / "letter.txt").read_text() == "dear"
    monkeypatch.setattr(writer, "version_of", lambda _: None)
    with pytest.raises(MissingBackendError, match="pyarrow"):
        write_corpus(["w10"], tokenizers["bert"], SETTINGS, tmp_path / "d")
