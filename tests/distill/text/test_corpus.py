"""Corpora on disk: read at any place, refused when damaged or of another tokenizer, and mixed by shares."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pocketbert.core.errors import InputError, MissingBackendError
from pocketbert.core.recipe.data import CorpusSettings
from pocketbert.distill.text import corpus as corpus_module
from pocketbert.distill.text.corpus import Corpus, mix_corpora, open_corpus
from pocketbert.distill.text.tokenizer import CorpusTokenizer, tokenizer_digest
from pocketbert.distill.text.writer import write_corpus

SETTINGS = CorpusSettings(length=16, shortest=4)
WORDS = "the film was far better than had expected would recommend play some music stop little good bad".split()


@pytest.fixture(scope="module")
def tokenizer(tiny_model) -> Path:
    """A tokenizer whose file asks for padding to 40 and truncation at 40."""
    return tiny_model("bert")


def draw_sentences(count: int) -> list[str]:
    draw = np.random.default_rng(0)
    return [" ".join(draw.choice(WORDS, draw.integers(1, 60))) for _ in range(count)]


def ids_of(corpus: Corpus) -> list[list[int]]:
    return [row.tolist() for row in corpus.ids(range(len(corpus)))]


@pytest.mark.parametrize("rows_per_shard", [1, 7, 1000])
def test_rows_are_read_in_any_order_and_as_they_were_written(tokenizer, tmp_path, rows_per_shard):
    texts, plain, room = draw_sentences(40), CorpusTokenizer(tokenizer), SETTINGS.length - 2
    info = write_corpus(texts, tokenizer, SETTINGS, tmp_path / "c", rows_per_shard)
    corpus = open_corpus(tmp_path / "c", tokenizer_digest(tokenizer))
    pieces = [t[i : i + room].tolist() for t in plain.tokens(texts) for i in range(0, len(t), room)]
    rows = [[*plain.before, *piece, *plain.after] for piece in pieces if len(piece) + 2 >= SETTINGS.shortest]
    assert ids_of(corpus) == rows
    assert corpus.info == info
    assert (info.texts, info.rows, info.tokens) == (40, len(rows), sum(map(len, rows)))
    assert [s.rows for s in info.shards][:-1] == [rows_per_shard] * (len(info.shards) - 1)
    assert corpus.lengths.tolist() == [len(r) for r in rows]
    assert corpus.counts.tolist() == np.bincount([i for r in rows for i in r], minlength=info.vocabulary_size).tolist()
    assert {a.dtype for a in (corpus.lengths, corpus.counts, *corpus.ids([0, 1]))} == {np.dtype(np.int64)}
    wanted = [len(rows) - 1, 0, 8, 8, 3]
    for numbers in (wanted, np.array(wanted)):
        assert [r.tolist() for r in corpus.ids(numbers)] == [rows[i] for i in wanted]
    assert corpus.ids([]) == []
    for wrong in (-1, len(rows)):
        with pytest.raises(IndexError, match="asked for"):
            corpus.ids([0, wrong])


def test_datasets_reads_the_shards(tokenizer, tmp_path, monkeypatch):
    import datasets

    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "hf"))
    datasets.disable_progress_bars()
    write_corpus(draw_sentences(30), tokenizer, SETTINGS, tmp_path / "c", 20)
    shards = sorted(str(p) for p in (tmp_path / "c").glob("*.arrow"))
    loaded = datasets.load_dataset("arrow", data_files=shards, split="train")
    assert loaded["input_ids"][:] == ids_of(open_corpus(tmp_path / "c"))


@pytest.mark.parametrize(("highest", "dtype"), [(300, "uint16"), (65_535, "uint16"), (65_536, "int32")])
def test_a_vocabulary_with_a_gap_and_one_beyond_16_bits(tmp_path, highest, dtype):
    import pyarrow as pa
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    tokens = ["<s>", "<pad>", "</s>", "<unk>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    made = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)} | {"<mask>": highest}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    made.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    made.save(str(tmp_path / "tokenizer.json"))
    plain = CorpusTokenizer(tmp_path)
    assert (plain.before.tolist(), plain.after.tolist(), plain.unknown_id) == ([0], [2], None)
    assert (plain.special_ids, plain.vocabulary_size) == ([0, 1, 2, 3, highest], highest + 1)
    write_corpus(["ab", "cde<mask>"], tmp_path, CorpusSettings(length=4, shortest=1), tmp_path / "c")
    corpus, a = open_corpus(tmp_path / "c"), plain.tokens(["a"])[0][0]
    assert ids_of(corpus) == [[0, a, a + 1, 2], [0, a + 2, a + 3, 2], [0, a + 4, highest, 2]]
    assert len(corpus.counts) == highest + 1
    assert corpus.counts[highest] == 1
    with pa.memory_map(str(tmp_path / "c" / "rows-00000.arrow")) as source:
        assert str(pa.ipc.open_stream(source).schema.field("input_ids").type.value_type) == dtype


# --- what is refused ---


def damage(folder: Path, name: str, change: Callable[[bytes], bytes]) -> None:
    (folder / name).write_bytes(change((folder / name).read_bytes()))


def edit(key: str, value: object) -> Callable[[bytes], bytes]:
    return lambda raw: json.dumps({**json.loads(raw), key: value}).encode()


def move_a_row(raw: bytes) -> bytes:
    info = json.loads(raw)
    info["shards"][0]["rows"] -= 1
    info["shards"][1]["rows"] += 1
    return json.dumps(info).encode()


GOOD, OVERLAPPING = (np.array(o, "<i4").tobytes() for o in ([0, 7, 14, 21], [0, 14, 7, 21]))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("rows-00001.arrow", lambda raw: raw[:-40], "damaged corpus"),
        ("rows-00001.arrow", lambda raw: b"\0" * len(raw), "damaged corpus"),
        ("rows-00001.arrow", lambda raw: raw + b"x", "damaged corpus"),
        ("rows-00001.arrow", lambda raw: raw.replace(GOOD, OVERLAPPING), "offsets or ids"),
        ("counts.npy", lambda raw: raw[:-8], "damaged corpus"),
        ("counts.npy", lambda raw: raw[:-8] + b"\x01" + raw[-7:], "damaged corpus"),
        ("corpus.json", lambda raw: raw[:-9], "not valid JSON"),
        ("corpus.json", lambda _: b"{}", "damaged corpus"),
        ("corpus.json", edit("rows", 1), "damaged corpus"),
        ("corpus.json", edit("schema_version", 2), "damaged corpus"),
        ("corpus.json", edit("shards", []), "damaged corpus"),
        ("corpus.json", move_a_row, r"rows-00000\.arrow: damaged corpus"),
    ],
)
def test_a_damaged_corpus_is_refused(tokenizer, tmp_path, name, change, message):
    write_corpus(["the film was far better"] * 6, tokenizer, SETTINGS, tmp_path / "c", 3)
    before = (tmp_path / "c" / name).read_bytes()
    damage(tmp_path / "c", name, change)
    assert (tmp_path / "c" / name).read_bytes() != before
    with pytest.raises(InputError, match=message):
        open_corpus(tmp_path / "c")


def test_missing_files_and_another_tokenizer_are_named(tokenizer, tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"no corpus: there is no corpus\.json"):
        open_corpus(tmp_path / "none")
    info = write_corpus(draw_sentences(40), tokenizer, SETTINGS, tmp_path / "c", 40)
    with pytest.raises(InputError, match="made with another tokenizer"):
        open_corpus(tmp_path / "c", "0" * 64)
    damage(tmp_path / "c", "corpus.json", edit("new_key", 1))
    assert open_corpus(tmp_path / "c").info == info, "later versions add keys"
    (tmp_path / "c" / "rows-00001.arrow").unlink()
    with pytest.raises(InputError, match="rows-00001.arrow.*missing"):
        open_corpus(tmp_path / "c")
    monkeypatch.setattr(corpus_module, "version_of", lambda _: None)
    with pytest.raises(MissingBackendError, match="pyarrow"):
        open_corpus(tmp_path / "c")


def test_changed_ids_are_found_by_verify(tokenizer, tmp_path):
    write_corpus(["the film was far better"] * 4, tokenizer, SETTINGS, tmp_path / "c", 2)
    corpus = open_corpus(tmp_path / "c")
    corpus.verify()
    first = np.array(corpus.ids([0])[0], "<u2").tobytes()
    damage(tmp_path / "c", "rows-00001.arrow", lambda raw: raw.replace(first, first[::-1]))
    with pytest.raises(InputError, match="sha256") as caught:
        open_corpus(tmp_path / "c").verify()
    assert [p.where for p in caught.value.problems] == [str(tmp_path / "c" / "rows-00001.arrow")]


# --- mixtures ---

SIZES = (5, 12, 40)


@pytest.fixture(scope="module")
def corpora(tmp_path_factory, tokenizer) -> list[Corpus]:
    """Three corpora of 5, 12 and 40 rows; row i of the first is one `a` and i `x`, and so on."""
    root = tmp_path_factory.mktemp("corpora")
    for word, size in zip("abc", SIZES, strict=True):
        texts = [word + " x" * (i % 13) for i in range(size)]
        write_corpus(texts, tokenizer, CorpusSettings(length=16, shortest=1), root / word, 4)
    return [open_corpus(root / word) for word in "abc"]


@settings(max_examples=40)
@given(st.lists(st.floats(0.2, 5), min_size=1, max_size=3), st.integers(30, 200), st.integers(0, 99))
def test_each_source_gives_its_share_and_no_row_twice_before_all_were_taken(corpora, shares, rows, seed):
    mixture = mix_corpora(corpora[: len(shares)], shares, rows, seed)
    assert len(mixture) == rows == len(mixture.lengths)
    for i, (share, size) in enumerate(zip(shares, SIZES, strict=False)):
        counts = Counter(mixture.places[mixture.sources == i].tolist())
        assert abs(counts.total() - share / sum(shares) * rows) < 1
        times = [counts[row] for row in range(size)]
        assert max(times) - min(times) <= 1
        assert sum(times) == counts.total(), "only rows that the source has"


def test_rows_are_those_of_the_sources_mixed_through_the_whole_length(corpora):
    mixture = mix_corpora(corpora, [1, 1, 2], 60, seed=3)
    for row, ids in enumerate(mixture.ids(range(60))):
        origin = corpora[mixture.sources[row]]
        assert ids.tolist() == origin.ids([mixture.places[row]])[0].tolist()
        assert len(ids) == mixture.lengths[row]
    assert [r.tolist() for r in mixture.ids([7, 7, 2])] == [mixture.ids([i])[0].tolist() for i in (7, 7, 2)]
    assert mixture.ids([]) == []
    with pytest.raises(IndexError):
        mixture.ids([60])
    long = mix_corpora(corpora[1:], [1, 1], 200, seed=0)
    assert all(0 < long.sources[start : start + 50].sum() < 50 for start in range(0, 200, 50))


def test_of_one_source_any_rows_are_taken_in_random_order(corpora):
    few, others = (mix_corpora([corpora[2]], [1], 10, seed=seed).places.tolist() for seed in (1, 2))
    assert len({*few}) == 10
    assert {*few} != {*others}
    whole = mix_corpora([corpora[2]], [0.3], 40, seed=1)
    assert sorted(whole.places.tolist()) == list(range(40)) != whole.places.tolist()
    assert (whole.counts == corpora[2].counts).all()
    # the 4 rows that were taken once more than the others are the first of the last round
    rounds = [Counter(mix_corpora([corpora[1]], [1], 12 * n + 4, 5).places.tolist()) for n in range(4)]
    assert len({frozenset(row for row, _ in taken.most_common(4)) for taken in rounds}) == 4


def test_expected_counts_are_in_proportion(corpora):
    mixture = mix_corpora(corpora[:2], [1, 2], 15, seed=0)
    assert mixture.counts.dtype == np.int64
    assert (mixture.counts == corpora[0].counts + np.rint(corpora[1].counts * (10 / 12))).all()


def test_the_same_rows_in_every_process_and_on_every_machine(corpora):
    mixture = mix_corpora(corpora, [1, 2, 3], 90, 11)
    assert list(zip(mixture.sources[:6].tolist(), mixture.places[:6].tolist(), strict=True)) == PINNED


PINNED = [(2, 5), (1, 2), (1, 5), (2, 38), (2, 15), (1, 6)]


@pytest.mark.parametrize(
    ("shares", "rows", "message"),
    [
        ([1, 1], 9, "2 shares for 3 corpora"),
        ([1, 0, 1], 9, r"shares\.1: 0; a share is a positive number"),
        ([1, 1, float("nan")], 9, r"shares\.2: nan"),
        ([1, 1, float("inf")], 9, r"shares\.2"),
        ([1, 1, 1], 0, "rows: 0; at least 1"),
        ([1, 100, 100], 20, r"shares\.0: 1 of 201 is less than one of 20 rows"),
    ],
)
def test_shares_that_make_no_sense_are_refused(corpora, shares, rows, message):
    with pytest.raises(InputError, match=message):
        mix_corpora(corpora, shares, rows, seed=0)


def test_nothing_to_mix_and_corpora_of_two_tokenizers_are_refused(corpora, tmp_path, make_tokenizer):
    with pytest.raises(InputError, match="0 shares for 0 corpora"):
        mix_corpora([], [], 4, seed=0)
    make_tokenizer(tmp_path, pad_id=1)
    write_corpus(["the film"], tmp_path, SETTINGS, tmp_path / "c")
    with pytest.raises(InputError, match="another tokenizer"):
        mix_corpora([corpora[0], open_corpus(tmp_path / "c")], [1, 1], 4, seed=0)
