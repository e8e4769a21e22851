"""What holds for the pruned tokenizer of every kind, whatever the rows are."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from pocketbert.core.errors import InputError
from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.distill.vocabulary import (
    PieceSelection,
    count_pieces,
    measure_coverage,
    prune_config,
    read_tokenizer_json,
    select_pieces,
    write_pruned_tokenizer,
)

from .conftest import HELD, KINDS, TEXTS, TRAIN

LONG = 4096


def prune(
    folder: Path, destination: Path, texts: Sequence[str] = TRAIN, **rule: int
) -> tuple[PieceSelection, TextTokenizer]:
    """The pieces of some texts, and the tokenizer that has only these."""
    config = json.loads((folder / "config.json").read_text())
    counts = count_pieces(TextTokenizer(folder, LONG).encode(texts))
    kept = select_pieces(read_tokenizer_json(folder), config, counts, **rule)
    write_pruned_tokenizer(folder, prune_config(config, kept), kept, destination)
    return kept, TextTokenizer(destination, LONG)


def ids_by_token(folder: Path) -> dict[str, int]:
    """The id of each token, added ones included, as the tokenizers library reads the file."""
    ids: dict[str, int] = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab(with_added_tokens=True)
    return ids


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_texts_that_chose_are_read_as_before(
    kind: str, seed: int, tokenizer_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    folder, draw = tokenizer_folder(kind), random.Random(seed)
    texts = draw.sample(TEXTS, 25)
    whole = TextTokenizer(folder, LONG)
    kept, own = prune(folder, tmp_path, texts)
    assert len(kept.kept_ids) < kept.original_size == whole.vocabulary_size
    for before, after in zip(whole.encode(texts), own.encode(texts), strict=True):
        assert kept.to_original(after.ids).tolist() == before.ids.tolist()
    words = [" ".join(draw.sample(" ".join(texts).split(), 8)) for _ in range(50)]
    if kind == "WordPiece":  # reads each word for itself
        assert measure_coverage(whole.encode(words), own.encode(words), kept, whole.special_ids).changed == 0


@pytest.mark.parametrize("kind", KINDS)
def test_no_text_becomes_unknown(kind: str, tokenizer_folder: Callable[[str], Path], tmp_path: Path) -> None:
    folder, draw = tokenizer_folder(kind), random.Random(1)
    whole = TextTokenizer(folder, LONG)
    kept, own = prune(folder, tmp_path, TRAIN[:3])
    letters = sorted({c for text in TEXTS for c in text if c.isascii() or c in "äéïñøž"})
    texts = [*(t for t in HELD if t.isascii()), *("".join(draw.choices(letters, k=30)) for _ in range(300))]
    unknown = ids_by_token(folder)["<unk>"]
    for before, after in zip(whole.encode(texts), own.encode(texts), strict=True):
        old = kept.to_original(after.ids)
        assert (old == unknown).sum() <= (before.ids == unknown).sum()


@pytest.mark.parametrize("kind", KINDS)
def test_ids_keep_their_order_at_every_place(
    kind: str, tokenizer_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = tokenizer_folder(kind)
    kept, own = prune(folder, tmp_path)
    before, after = ids_by_token(folder), ids_by_token(tmp_path)
    assert list(kept.kept_ids) == sorted(set(kept.kept_ids))
    assert after == {piece: kept.new_ids[i] for piece, i in before.items() if i in kept.new_ids}
    assert sorted(after.values()) == own.ids == list(range(len(kept.kept_ids)))
    content = read_tokenizer_json(tmp_path)
    assert content["padding"] is None
    assert {t["content"]: t["id"] for t in content["added_tokens"]}["[later]"] == len(kept.kept_ids) - 1
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["pad_token_id"], config["vocab_size"]) == (1, len(kept.kept_ids)), (
        "positions begin behind the pad id"
    )
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert settings["added_tokens_decoder"] == {
        "1": {"content": "<pad>"},
        str(len(kept.kept_ids) - 1): {"content": "[later]"},
    }
    for pair in (False, True):
        text = ("lamp", "song")[: 1 + pair] if pair else "lamp"
        whole = TextTokenizer(folder, LONG).encode([text])[0]
        assert kept.to_original(own.encode([text])[0].ids).tolist()[0] == whole.ids[0] == 0
    assert own.pad_id == 1


def test_files_of_byte_pairs_are_written_anew(tokenizer_folder: Callable[[str], Path], tmp_path: Path) -> None:
    _, own = prune(tokenizer_folder("BPE"), tmp_path)
    content = read_tokenizer_json(tmp_path)["model"]
    assert json.loads((tmp_path / "vocab.json").read_text()) == ids_by_token(tmp_path)
    lines = (tmp_path / "merges.txt").read_text().splitlines()[1:]
    assert lines == [" ".join(m) for m in content["merges"]]
    assert 0 < len(lines) < len(read_tokenizer_json(tokenizer_folder("BPE"))["model"]["merges"])
    pieces = own.ids
    assert all(len({*merge} - content["vocab"].keys()) == 0 for merge in content["merges"])
    assert len(pieces) >= 256


def word_pieces(*pieces: str) -> dict[str, Any]:
    """The content of a WordPiece tokenizer with these pieces."""
    same = {"unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
    return {"version": "1.0", "model": {"type": "WordPiece", "vocab": {t: i for i, t in enumerate(pieces)}, **same}}


def test_a_character_without_both_forms_keeps_its_words(tmp_path: Path) -> None:
    vocabulary = ["[PAD]", "[UNK]", *"zebraé", "##e", "##b", "##r", "##a", "zebra", "bé", "ab"]
    content = word_pieces(*vocabulary)
    kept = select_pieces(content, {"pad_token_id": 0}, {})
    stay = {vocabulary[i] for i in kept.kept_ids}
    assert "bé" in stay, "nothing else spells é behind a letter"
    assert not {"zebra", "ab"} & stay
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    destination = tmp_path / "pruned"
    destination.mkdir()
    write_pruned_tokenizer(tmp_path, {}, kept, destination)
    tokenizer = Tokenizer.from_file(str(destination / "tokenizer.json"))
    assert tokenizer.encode("zebra").tokens == ["z", "##e", "##b", "##r", "##a"]


def test_characters_of_large_scripts_stay_only_where_rows_have_them() -> None:
    vocabulary = ["[PAD]", "[UNK]", "中", "##中", "国", "##国", "д", "##д", "ж", "##ж", "α", "##α", "中国"]
    content = word_pieces(*vocabulary)
    kept = select_pieces(content, {"pad_token_id": 0}, {vocabulary.index("中"): 1, vocabulary.index("д"): 2})
    assert {vocabulary[i] for i in kept.kept_ids} == {"[PAD]", "[UNK]", "中", "##中", "д", "##д", "ж", "##ж"}


def test_rules_of_the_recipe(tokenizer_folder: Callable[[str], Path], tmp_path: Path) -> None:
    folder = tokenizer_folder("WordPiece")
    sizes: dict[str, set[int]] = {}
    for name, rule in {"used": {}, "often": {"min_count": 3}, "top": {"keep_first": 60}}.items():
        destination = tmp_path / name
        destination.mkdir()
        sizes[name] = set(prune(folder, destination, **rule)[0].kept_ids)
    assert sizes["often"] < sizes["used"] < sizes["top"]
    with pytest.raises(InputError, match=r"all \d+ pieces would stay"):
        prune(folder, tmp_path, keep_first=100_000)


def test_free_places_of_a_vocabulary_are_not_among_its_first_pieces() -> None:
    pieces = (
        "[PAD]",
        "[unused0]",
        "[unused1]",
        "[UNK]",
        *"abdenus[]01",
        *(f"##{c}" for c in "abdenus[]01"),
        "ab",
        "ba",
        "bad",
    )
    kept = select_pieces(word_pieces(*pieces), {"pad_token_id": 0}, {}, keep_first=2)
    assert [pieces[i] for i in kept.kept_ids if len(pieces[i]) > 1 and pieces[i][0] not in "[#"] == ["ab", "ba"]
    assert pieces.index("[unused0]") not in kept.new_ids


def test_coverage_counts_what_it_says(tokenizer_folder: Callable[[str], Path], tmp_path: Path) -> None:
    folder = tokenizer_folder("WordPiece")
    whole = TextTokenizer(folder, LONG)
    kept, own = prune(folder, tmp_path, ["lamp song"])
    texts = ["lamp song", "lamp kitchen"]
    found = measure_coverage(whole.encode(texts), own.encode(texts), kept, whole.special_ids)
    pieces = [len(t) - 2 for t in (*whole.encode(texts), *own.encode(texts))]
    assert (found.rows, found.changed) == (2, 0.5)
    assert found.growth == pytest.approx((pieces[2] + pieces[3]) / (pieces[0] + pieces[1]) - 1)
    gone = sum(int(i) not in kept.new_ids for i in whole.encode([texts[1]])[0].ids)
    assert found.unseen == pytest.approx(gone / (pieces[0] + pieces[1]))
    with pytest.raises(ValueError, match="at least one row"):
        measure_coverage([], [], kept, ())


def test_another_kind_is_refused_with_the_reason() -> None:
    content: dict[str, Any] = {"model": {"type": "WordLevel", "vocab": {"a": 0}}}
    with pytest.raises(InputError, match="type 'WordLevel'; pieces can be removed from: WordPiece, BPE, Unigram"):
        select_pieces(content, {}, {})


def test_the_demo_rows_do_not_cover_their_field(tmp_path: Path) -> None:
    """Of a general vocabulary few pieces are used, and every ASCII word can still be spelt."""
    folder = open_model_folder("minilm-l6").tokenizer_folder
    kept, own = prune(folder, tmp_path, TRAIN)
    assert len(kept.kept_ids) < 1200
    assert kept.kept_ids[0] == own.pad_id == 0
    assert not (own.encode(["zebra quokka xylophone straße"])[0].ids == kept.new_ids[100]).any()
