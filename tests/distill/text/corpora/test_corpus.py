"""Corpora: written in one pass, read at any place, refused when damaged or of another tokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from pocketbert.core.errors import InputError, MissingBackendError
from pocketbert.core.recipe.data import CorpusSettings
from pocketbert.distill.text import corpus as corpus_module
from pocketbert.distill.text import writer as corpus_writer
from pocketbert.distill.text.corpus import Corpus, CorpusInfo, open_corpus
from pocketbert.distill.text.tokenizer import CorpusTokenizer, tokenizer_digest
from pocketbert.distill.text.writer import write_corpus

SETTINGS = CorpusSettings(length=16, shortest=4)
WORDS = "the film was far better than had expected would recommend play some music stop little good bad".split()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory, make_tokenizer: Callable[..., None]) -> Path:
    """A tokenizer whose file asks for padding to 40 and truncation at 40."""
    folder = tmp_path_factory.mktemp("tokenizer")
    make_tokenizer(folder)
    return folder


def sentences(count: int, seed: int = 0) -> list[str]:
    draw = np.random.default_rng(seed)
    return [" ".join(draw.choice(WORDS, draw.integers(1, 60))) for _ in range(count)]


def ids_of(corpus: Corpus) -> list[list[int]]:
    return [row.tolist() for row in corpus.ids(range(len(corpus)))]


def files(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir())}


def expected(tokenizer: Path, texts: Sequence[str], settings: CorpusSettings) -> list[list[int]]:
    """Rows by the plainest reading of the rules."""
    from tokenizers import Tokenizer

    plain = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    plain.no_padding()
    plain.no_truncation()
    cls, sep = plain.token_to_id("[CLS]"), plain.token_to_id("[SEP]")
    out = []
    for text in texts:
        ids = plain.encode(text, add_special_tokens=False).ids
        pieces = [ids[i : i + settings.length - 2] for i in range(0, len(ids), settings.length - 2)]
        out += [[cls, *piece, sep] for piece in pieces if len(piece) + 2 >= settings.shortest]
    return out


@pytest.mark.parametrize("rows_per_shard", [1, 7, 1000])
def test_rows_are_the_pieces_of_the_texts_in_order(tokenizer: Path, tmp_path: Path, rows_per_shard: int) -> None:
    texts = sentences(40)
    info = write_corpus(texts, tokenizer, SETTINGS, tmp_path / "c", rows_per_shard)
    corpus = open_corpus(tmp_path / "c", tokenizer_digest(tokenizer))
    rows = expected(tokenizer, texts, SETTINGS)
    assert ids_of(corpus) == rows
    assert corpus.info == info
    assert (info.texts, info.rows, info.tokens) == (40, len(rows), sum(map(len, rows)))
    assert [s.rows for s in info.shards][:-1] == [rows_per_shard] * (len(info.shards) - 1)
    assert corpus.lengths.dtype == np.int64 and corpus.lengths.tolist() == [len(r) for r in rows]
    flat = [i for row in rows for i in row]
    assert corpus.counts.dtype == np.int64
    assert corpus.counts.tolist() == np.bincount(flat, minlength=info.vocabulary_size).tolist()


def test_what_was_written_does_not_depend_on_how_texts_are_batched(
    tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = CorpusSettings(length=16, shortest=4, packed=True)
    whole = write_corpus(sentences(60), tokenizer, settings, tmp_path / "a")
    monkeypatch.setattr(corpus_writer, "_TEXTS_AT_ONCE", 7)
    monkeypatch.setattr(corpus_writer, "_CHARACTERS_AT_ONCE", 300)
    write_corpus(sentences(60), tokenizer, settings, tmp_path / "b")
    assert files(tmp_path / "a") == files(tmp_path / "b")
    monkeypatch.setattr(corpus_writer, "_ROWS_AT_ONCE", 5)
    again = write_corpus(sentences(60), tokenizer, settings, tmp_path / "c")
    assert (again.rows, again.tokens) == (whole.rows, whole.tokens)
    assert ids_of(open_corpus(tmp_path / "c")) == ids_of(open_corpus(tmp_path / "a"))


def test_equal_inputs_give_equal_bytes_and_others_another_digest(tokenizer: Path, tmp_path: Path) -> None:
    texts = sentences(50)
    first = write_corpus(texts, tokenizer, SETTINGS, tmp_path / "a", 20)
    second = write_corpus(iter(texts), tokenizer / "tokenizer.json", SETTINGS, tmp_path / "b", 20, total=50)
    assert files(tmp_path / "a") == files(tmp_path / "b")
    assert first.digest == second.digest
    others = [
        write_corpus(sentences(50, 1), tokenizer, SETTINGS, tmp_path / "c", 20),
        write_corpus(texts, tokenizer, CorpusSettings(length=16, shortest=5), tmp_path / "d", 20),
    ]
    assert len({first.digest, *(o.digest for o in others)}) == 3


def test_texts_are_taken_one_by_one(tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_writer, "_TEXTS_AT_ONCE", 4)
    monkeypatch.setattr(corpus_writer, "_ROWS_AT_ONCE", 8)
    seen: list[int] = []

    def stream() -> Iterator[str]:
        for text in sentences(200):
            seen.append(sum(p.stat().st_size for p in tmp_path.glob(".c.*/new/*.arrow")))
            yield text

    write_corpus(stream(), tokenizer, SETTINGS, tmp_path / "c", rows_per_shard=30)
    assert 0 < seen[100] < seen[-1], "rows reach the disk while texts still come"


def test_datasets_reads_the_shards(tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "hf"))
    datasets.disable_progress_bars()
    write_corpus(sentences(30), tokenizer, SETTINGS, tmp_path / "c", 20)
    shards = sorted(str(p) for p in (tmp_path / "c").glob("*.arrow"))
    loaded = datasets.load_dataset("arrow", data_files=shards, split="train")
    assert loaded["input_ids"][:] == ids_of(open_corpus(tmp_path / "c"))


def test_rows_can_be_read_in_any_order_and_again(tokenizer: Path, tmp_path: Path) -> None:
    write_corpus(sentences(40), tokenizer, SETTINGS, tmp_path / "c", 7)
    corpus = open_corpus(tmp_path / "c")
    rows = ids_of(corpus)
    wanted = [len(rows) - 1, 0, 8, 8, 3]
    assert [r.tolist() for r in corpus.ids(wanted)] == [rows[i] for i in wanted]
    assert [r.tolist() for r in corpus.ids(np.array(wanted))] == [rows[i] for i in wanted]
    assert all(r.dtype == np.int64 for r in corpus.ids(wanted))
    assert corpus.ids([]) == []
    for wrong in (-1, len(rows)):
        with pytest.raises(IndexError, match="asked for"):
            corpus.ids([0, wrong])


def test_dropped_texts_are_counted_by_reason(tokenizer: Path, tmp_path: Path) -> None:
    texts = ["", "  ", "good film", "☃ ☃ ☃ ☃ good", "half \ud83d of it", "the film was far better"]
    info = write_corpus(texts, tokenizer, CorpusSettings(length=16, shortest=5), tmp_path / "c")
    assert info.dropped.model_dump() == {"empty": 2, "not_unicode": 1, "short": 1, "unknown": 1}
    assert (info.texts, info.rows) == (6, 1)


def test_no_rows_left_is_an_error_that_says_why(tokenizer: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no rows are left of 2 texts: 1 empty, 1 short"):
        write_corpus(["", "good"], tokenizer, SETTINGS, tmp_path / "c")
    with pytest.raises(InputError, match="no rows are left of 0 texts"):
        write_corpus([], tokenizer, SETTINGS, tmp_path / "c")
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_text_is_refused_and_leaves_nothing_behind(tokenizer: Path, tmp_path: Path) -> None:
    texts = [*sentences(30), 3]
    with pytest.raises(InputError, match="text 31: 3 is int, not text"):
        write_corpus(texts, tokenizer, SETTINGS, tmp_path / "c", 4)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_write_keeps_the_older_corpus(
    tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus_writer, "_TEXTS_AT_ONCE", 4)
    old = write_corpus(sentences(10), tokenizer, SETTINGS, tmp_path / "c")

    def stream() -> Iterator[str]:
        yield from sentences(20, 1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_corpus(stream(), tokenizer, SETTINGS, tmp_path / "c", 3)
    assert open_corpus(tmp_path / "c").info == old
    assert [p.name for p in tmp_path.iterdir()] == ["c"]
    new = write_corpus(sentences(20, 1), tokenizer, SETTINGS, tmp_path / "c")
    assert open_corpus(tmp_path / "c").info == new


def test_a_folder_of_something_else_is_not_replaced(tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter.txt").write_text("dear")
    with pytest.raises(InputError, match="is not a corpus; it is not replaced") as caught:
        write_corpus(sentences(5), tokenizer, SETTINGS, tmp_path / "home", rows_per_shard=0)
    assert len(caught.value.problems) == 2
    assert (tmp_path / "home" / "letter.txt").read_text() == "dear"


@pytest.mark.parametrize(
    "keys",
    [
        {"length": 3},
        {"length": 9000},
        {"shortest": 0},
        {"length": 8, "shortest": 9},
        {"unknown_share": 0},
        {"unknown_share": 1.1},
        {"pakced": True},
    ],
)
def test_settings_that_make_no_sense_are_refused(keys: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        CorpusSettings.model_validate(keys)


def test_a_corpus_of_another_tokenizer_is_refused(
    tokenizer: Path, tmp_path: Path, make_tokenizer: Callable[..., None]
) -> None:
    write_corpus(sentences(10), tokenizer, SETTINGS, tmp_path / "c")
    (tmp_path / "other").mkdir()
    make_tokenizer(tmp_path / "other", pad_id=1)
    with pytest.raises(InputError, match="made with another tokenizer"):
        open_corpus(tmp_path / "c", tokenizer_digest(tmp_path / "other"))
    # what is baked in does not change the ids of a corpus
    (tmp_path / "plain").mkdir()
    make_tokenizer(tmp_path / "plain", baked_in=False)
    open_corpus(tmp_path / "c", tokenizer_digest(tmp_path / "plain"))


def damage(folder: Path, name: str, change: Callable[[bytes], bytes]) -> None:
    (folder / name).write_bytes(change((folder / name).read_bytes()))


def edit(key: str, value: object) -> Callable[[bytes], bytes]:
    return lambda raw: json.dumps({**json.loads(raw), key: value}).encode()


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("rows-00001.arrow", lambda raw: raw[:-40]),
        ("rows-00001.arrow", lambda raw: b"\0" * len(raw)),
        ("rows-00001.arrow", lambda raw: raw + b"x"),
        ("counts.npy", lambda raw: raw[:-8]),
        ("counts.npy", lambda raw: raw[:-8] + b"\x01" + raw[-7:]),
        ("counts.npy", lambda _: b""),
        ("corpus.json", lambda raw: raw[:-9]),
        ("corpus.json", lambda _: b"{}"),
        ("corpus.json", edit("rows", 1)),
        ("corpus.json", edit("schema_version", 2)),
        ("corpus.json", edit("tokens", -1)),
        ("corpus.json", edit("shards", [])),
    ],
)
def test_a_damaged_corpus_is_refused(
    tokenizer: Path, tmp_path: Path, name: str, change: Callable[[bytes], bytes]
) -> None:
    write_corpus(sentences(40), tokenizer, SETTINGS, tmp_path / "c", 40)
    damage(tmp_path / "c", name, change)
    with pytest.raises(InputError, match="damaged corpus|not valid JSON"):
        open_corpus(tmp_path / "c")


def test_rows_that_moved_between_shards_are_refused(tokenizer: Path, tmp_path: Path) -> None:
    info = write_corpus(sentences(40), tokenizer, SETTINGS, tmp_path / "c", 40)
    first, second, *rest = info.model_dump()["shards"]
    shards = [{**first, "rows": first["rows"] - 1}, {**second, "rows": second["rows"] + 1}, *rest]
    damage(tmp_path / "c", "corpus.json", edit("shards", shards))
    with pytest.raises(InputError, match=r"rows-00000\.arrow: damaged corpus"):
        open_corpus(tmp_path / "c")


def test_offsets_that_overlap_are_refused(tokenizer: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "c"
    write_corpus(["the film was far better"] * 4, tokenizer, SETTINGS, corpus)
    good, bad = (np.array(o, "<i4").tobytes() for o in ([0, 7, 14, 21, 28], [0, 14, 7, 21, 28]))
    assert good in (corpus / "rows-00000.arrow").read_bytes()
    damage(corpus, "rows-00000.arrow", lambda raw: raw.replace(good, bad))
    with pytest.raises(InputError, match="offsets or ids"):
        open_corpus(corpus)


def test_missing_files_are_named(tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"no corpus: there is no corpus\.json"):
        open_corpus(tmp_path / "none")
    write_corpus(sentences(40), tokenizer, SETTINGS, tmp_path / "c", 40)
    (tmp_path / "c" / "rows-00001.arrow").unlink()
    with pytest.raises(InputError, match="rows-00001.arrow.*missing"):
        open_corpus(tmp_path / "c")
    monkeypatch.setattr(corpus_module, "version_of", lambda _: None)
    monkeypatch.setattr(corpus_writer, "version_of", lambda _: None)
    with pytest.raises(MissingBackendError, match="pyarrow"):
        open_corpus(tmp_path / "c")
    with pytest.raises(MissingBackendError, match="pyarrow"):
        write_corpus(sentences(4), tokenizer, SETTINGS, tmp_path / "d")


def test_changed_ids_are_found_by_verify(tokenizer: Path, tmp_path: Path) -> None:
    write_corpus(["the film was far better"] * 4, tokenizer, SETTINGS, tmp_path / "c", 2)
    corpus = open_corpus(tmp_path / "c")
    corpus.verify()
    first = np.array(corpus.ids([0])[0], "<u2").tobytes()
    damage(tmp_path / "c", "rows-00001.arrow", lambda raw: raw.replace(first, first[::-1]))
    corpus = open_corpus(tmp_path / "c")
    with pytest.raises(InputError, match="sha256") as caught:
        corpus.verify()
    assert [p.where for p in caught.value.problems] == [str(tmp_path / "c" / "rows-00001.arrow")]


def roberta_like(folder: Path, vocabulary: int = 300) -> Path:
    """Byte-level BPE whose ids have a gap, with RoBERTa's post-processor."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *letters]
    index = {t: i for i, t in enumerate(tokens)} | {"<mask>": vocabulary}
    made = Tokenizer(models.BPE(index, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    made.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    folder.mkdir()
    made.save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.parametrize(("highest", "dtype"), [(300, "uint16"), (65_535, "uint16"), (65_536, "int32")])
def test_other_families_bring_their_own_special_tokens(tmp_path: Path, highest: int, dtype: str) -> None:
    import pyarrow as pa

    tokenizer = roberta_like(tmp_path / "t", highest)
    maker = CorpusTokenizer(tokenizer)
    assert (maker.before.tolist(), maker.after.tolist(), maker.unknown_id) == ([0], [2], None)
    assert (maker.special_ids, maker.vocabulary_size) == ([0, 1, 2, 3, highest], highest + 1)
    write_corpus(["ab", "cde<mask>"], tokenizer, CorpusSettings(length=4, shortest=1), tmp_path / "c")
    corpus = open_corpus(tmp_path / "c")
    a = maker.tokens(["a"])[0][0]
    assert ids_of(corpus) == [[0, a, a + 1, 2], [0, a + 2, a + 3, 2], [0, a + 4, highest, 2]]
    assert len(corpus.counts) == highest + 1 and corpus.counts[highest] == 1
    with pa.memory_map(str(tmp_path / "c" / "rows-00000.arrow")) as source:
        assert str(pa.ipc.open_stream(source).schema.field("input_ids").type.value_type) == dtype


def test_tokenizers_that_cannot_make_rows_are_refused(tmp_path: Path, tokenizer: Path) -> None:
    from tokenizers import Tokenizer, models

    with pytest.raises(InputError, match="file not found"):
        CorpusTokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("[]")
    with pytest.raises(InputError, match="no section 'model'"):
        CorpusTokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": {}}')
    with pytest.raises(InputError, match="not a tokenizer"):
        CorpusTokenizer(tmp_path)
    Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]")).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(InputError, match="no special token after a text"):
        CorpusTokenizer(tmp_path)


def test_info_is_readable_when_later_versions_add_keys(tokenizer: Path, tmp_path: Path) -> None:
    info = write_corpus(sentences(10), tokenizer, SETTINGS, tmp_path / "c")
    damage(tmp_path / "c", "corpus.json", edit("new_key", 1))
    assert open_corpus(tmp_path / "c").info == info
    assert CorpusInfo.model_validate(info.model_dump()) == info
