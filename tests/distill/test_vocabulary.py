"""A pruned vocabulary: which pieces stay, the same answers on rows that are read as before, and rows in smaller pieces."""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.families import find_family
from pocketbert.core.heads.head import TEACHER_PREFIX, Prepared
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.distill.teacher.signals import select_teacher_inputs
from pocketbert.distill.training.data import TrainSet
from pocketbert.distill.vocabulary import (
    PieceSelection,
    PrunedTokenizer,
    ResplitRows,
    count_pieces,
    measure_coverage,
    prune_config,
    prune_embeddings,
    read_tokenizer_json,
    sample_rows,
    select_pieces,
    write_pruned_tokenizer,
)
from support.tiny import NAMES, tiny_classifier, write_own_tokenizer
from support.tiny_texts import task_rows

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
TEXTS = [*SENTENCES, *(row["text"] for row in task_rows(40, 5))]
TRAIN, HELD = TEXTS[::2], TEXTS[1::2]
"""Rows that choose pieces, and rows that do not."""
KINDS = ("WordPiece", "BPE", "Unigram")
LONG = 4096
Folder = Callable[[str], Path]


def train_tokenizer(kind: str) -> Any:
    """A tokenizer of about 600 pieces, trained on the project's own rows."""
    same: dict[str, Any] = {"vocab_size": 600, "special_tokens": SPECIAL, "show_progress": False}
    if kind == "WordPiece":
        made = Tokenizer(models.WordPiece(unk_token="<unk>"))
        made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
        trainer: Any = trainers.WordPieceTrainer(**same)
    elif kind == "BPE":
        made = Tokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = trainers.BpeTrainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), **same)
    else:
        made = Tokenizer(models.Unigram())
        made.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(unk_token="<unk>", **same)
    made.train_from_iterator(TEXTS, trainer)
    frame = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    made.post_processor = processors.Sequence([frame])
    made.add_tokens(["[later]"])  # behind all pieces
    made.enable_padding(pad_id=1, pad_token="<pad>")
    return made


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory) -> Folder:
    """A folder with a trained tokenizer of a kind, and the files that its authors would ship."""
    made: dict[str, Path] = {}

    def folder(kind: str) -> Path:
        if kind not in made:
            place = made[kind] = tmp_path_factory.mktemp(kind)
            tokenizer = train_tokenizer(kind)
            tokenizer.save(str(place / "tokenizer.json"))
            last = tokenizer.token_to_id("[later]")
            written = {
                "tokenizer_config.json": {
                    "added_tokens_decoder": {"1": {"content": "<pad>"}, str(last): {"content": "[later]"}}
                },
                "config.json": {"model_type": "roberta", "pad_token_id": 1, "vocab_size": last + 1},
            }
            if kind == "BPE":
                written["vocab.json"] = read_tokenizer_json(place)["model"]["vocab"]
                (place / "merges.txt").write_text("written anew")
            for name, content in written.items():
                (place / name).write_text(json.dumps(content))
        return made[kind]

    return folder


def prune(
    folder: Path, destination: Path, texts: Sequence[str] = TRAIN, **rule: int
) -> tuple[PieceSelection, TextTokenizer]:
    """The pieces of some texts, and the tokenizer that has only these."""
    config = json.loads((folder / "config.json").read_text())
    counts = count_pieces(TextTokenizer(folder, LONG).encode(texts))
    kept = select_pieces(read_tokenizer_json(folder), config, counts, **rule)
    destination.mkdir(exist_ok=True)
    write_pruned_tokenizer(folder, prune_config(config, kept), kept, destination)
    return kept, TextTokenizer(destination, LONG)


def ids_by_token(folder: Path) -> dict[str, int]:
    """The id of each token, added ones included, as the tokenizers library reads the file."""
    ids: dict[str, int] = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab(with_added_tokens=True)
    return ids


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(2))
def test_texts_that_chose_are_read_as_before(kind, seed, tokenizer_folder, tmp_path):
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
def test_no_text_becomes_unknown(kind, tokenizer_folder, tmp_path):
    folder, draw = tokenizer_folder(kind), random.Random(1)
    whole = TextTokenizer(folder, LONG)
    kept, own = prune(folder, tmp_path, TRAIN[:3])
    letters = sorted({c for text in TEXTS for c in text if c.isascii() or c in "äéïñøž"})
    texts = [*(t for t in HELD if t.isascii()), *("".join(draw.choices(letters, k=30)) for _ in range(300))]
    unknown = ids_by_token(folder)["<unk>"]
    for before, after in zip(whole.encode(texts), own.encode(texts), strict=True):
        assert (kept.to_original(after.ids) == unknown).sum() <= (before.ids == unknown).sum()


@pytest.mark.parametrize("kind", KINDS)
def test_ids_keep_their_order_at_every_place(kind, tokenizer_folder, tmp_path):
    folder = tokenizer_folder(kind)
    kept, own = prune(folder, tmp_path)
    before, after, last = ids_by_token(folder), ids_by_token(tmp_path), len(kept.kept_ids) - 1
    assert list(kept.kept_ids) == sorted(set(kept.kept_ids))
    assert after == {piece: kept.new_ids[i] for piece, i in before.items() if i in kept.new_ids}
    assert sorted(after.values()) == own.ids == list(range(last + 1))
    content = read_tokenizer_json(tmp_path)
    assert content["padding"] is None
    assert {t["content"]: t["id"] for t in content["added_tokens"]}["[later]"] == last
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["pad_token_id"], config["vocab_size"]) == (1, last + 1), "positions begin behind the pad id"
    told = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert told["added_tokens_decoder"] == {"1": {"content": "<pad>"}, str(last): {"content": "[later]"}}
    assert own.pad_id == 1
    for text in ("lamp", ("lamp", "song")):
        (ids,) = own.encode([text])
        assert kept.to_original(ids.ids).tolist()[0] == TextTokenizer(folder, LONG).encode([text])[0].ids[0] == 0


def test_files_of_byte_pairs_are_written_anew(tokenizer_folder, tmp_path):
    _, own = prune(tokenizer_folder("BPE"), tmp_path)
    content = read_tokenizer_json(tmp_path)["model"]
    assert json.loads((tmp_path / "vocab.json").read_text()) == ids_by_token(tmp_path)
    lines = (tmp_path / "merges.txt").read_text().splitlines()[1:]
    assert lines == [" ".join(m) for m in content["merges"]]
    assert 0 < len(lines) < len(read_tokenizer_json(tokenizer_folder("BPE"))["model"]["merges"])
    assert all({*merge} <= content["vocab"].keys() for merge in content["merges"])
    assert len(own.ids) >= 256


# --- which pieces stay ---


def word_pieces(*pieces: str) -> dict[str, Any]:
    """The content of a WordPiece tokenizer with these pieces."""
    same = {"unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
    return {"version": "1.0", "model": {"type": "WordPiece", "vocab": {t: i for i, t in enumerate(pieces)}, **same}}


def pieces_that_stay(pieces: Sequence[str], used: dict[str, int] | None = None, **rule: int) -> set[str]:
    counts = {pieces.index(piece): count for piece, count in (used or {}).items()}
    return {pieces[i] for i in select_pieces(word_pieces(*pieces), {"pad_token_id": 0}, counts, **rule).kept_ids}


def test_a_character_without_both_forms_keeps_its_words(tmp_path):
    vocabulary = ["[PAD]", "[UNK]", *"zebraé", "##e", "##b", "##r", "##a", "zebra", "bé", "ab"]
    stay = pieces_that_stay(vocabulary)
    assert "bé" in stay, "nothing else spells é behind a letter"
    assert not {"zebra", "ab"} & stay
    content = word_pieces(*vocabulary)
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    (tmp_path / "pruned").mkdir()
    kept = select_pieces(content, {"pad_token_id": 0}, {})
    write_pruned_tokenizer(tmp_path, {}, kept, tmp_path / "pruned")
    tokenizer = Tokenizer.from_file(str(tmp_path / "pruned" / "tokenizer.json"))
    assert tokenizer.encode("zebra").tokens == ["z", "##e", "##b", "##r", "##a"]


def test_characters_of_large_scripts_stay_only_where_rows_have_them():
    vocabulary = ["[PAD]", "[UNK]", "中", "##中", "国", "##国", "д", "##д", "ж", "##ж", "α", "##α", "中国"]
    stay = pieces_that_stay(vocabulary, {"中": 1, "д": 2})
    assert stay == {"[PAD]", "[UNK]", "中", "##中", "д", "##д", "ж", "##ж"}


def test_ids_that_the_config_lists_stay_and_change():
    config = {"pad_token_id": 0, "eos_token_id": [5, 1], "vocab_size": 6}
    kept = select_pieces(word_pieces("[PAD]", "[UNK]", "a", "##a", "aa", "aaa"), config, {})
    assert kept.kept_ids == (0, 1, 2, 3, 5)
    assert prune_config(config, kept) == {"pad_token_id": 0, "eos_token_id": [4, 1], "vocab_size": 5}


def test_free_places_of_a_vocabulary_are_not_among_its_first_pieces():
    letters = [*"abdenus[]01", *(f"##{c}" for c in "abdenus[]01")]
    stay = pieces_that_stay(["[PAD]", "[unused0]", "[unused1]", "[UNK]", *letters, "ab", "ba", "bad"], keep_first=2)
    assert stay == {"[PAD]", "[UNK]", *letters, "ab", "ba"}


def test_rules_of_the_recipe(tokenizer_folder, tmp_path):
    folder = tokenizer_folder("WordPiece")
    rules = {"used": {}, "often": {"min_count": 3}, "top": {"keep_first": 60}}
    used, often, top = ({*prune(folder, tmp_path / name, **rule)[0].kept_ids} for name, rule in rules.items())
    assert often < used < top


def test_coverage_counts_what_it_says(tokenizer_folder, tmp_path):
    folder = tokenizer_folder("WordPiece")
    whole = TextTokenizer(folder, LONG)
    kept, own = prune(folder, tmp_path, ["lamp song"])
    before, after = (t.encode(["lamp song", "lamp kitchen"]) for t in (whole, own))
    found = measure_coverage(before, after, kept, whole.special_ids)
    counts = [sum(len(row) - 2 for row in rows) for rows in (before, after)]
    assert (found.rows, found.changed) == (2, 0.5)
    assert found.growth == pytest.approx(counts[1] / counts[0] - 1)
    assert found.unseen == pytest.approx(sum(int(i) not in kept.new_ids for i in before[1].ids) / counts[0])
    with pytest.raises(ValueError, match="at least one row"):
        measure_coverage([], [], kept, ())


# --- the table ---


@pytest.mark.parametrize("family", ["bert", "mobilebert", "roberta", "deberta-v2", "xlnet", "xlm", "mpnet"])
def test_logits_of_training_rows_do_not_change_at_all(family, tmp_path):
    """One family for each kind of tokenizer and name of the vocabulary's size, and the one that reads neighbours."""
    told, row = write_own_tokenizer(tmp_path, family), find_family(family)
    texts = ["set an alarm for half past six", "a film far better than i had expected", "play music"]
    model = tiny_classifier(family, 2, NAMES, seed=1, **told)
    model.config.to_json_file(tmp_path / "config.json")
    config, pruned = json.loads((tmp_path / "config.json").read_text()), tmp_path / "pruned"
    whole = TextTokenizer(tmp_path, 32, padding_side=row.padding_side)
    kept = select_pieces(read_tokenizer_json(tmp_path), model.config.to_dict(), count_pieces(whole.encode(texts)))
    pruned.mkdir()
    size = row.config_names.get("vocab_size", "vocab_size")
    write_pruned_tokenizer(tmp_path, prune_config(config, kept, size), kept, pruned)
    smaller = prune_embeddings(model, row, kept)
    table, before = smaller.get_input_embeddings().weight, model.get_input_embeddings().weight
    assert torch.equal(table, before[list(kept.kept_ids)])
    assert len(table) < len(before)
    answers = []
    for read, own in ((whole, model), (TextTokenizer(pruned, 32, padding_side=row.padding_side), smaller)):
        padded = read.pad(read.encode(texts))
        with torch.no_grad():
            answers.append(own(**{name: torch.from_numpy(padded[name]) for name in row.inputs}).logits)
    assert torch.equal(*answers), "padding included"


# --- rows that the student reads in smaller pieces than its teacher ---


@pytest.fixture(scope="module")
def rows(tokenizer_folder, tmp_path_factory) -> ResplitRows:
    folder = tokenizer_folder("WordPiece")
    tokenizer, number = TextTokenizer(folder, 64), np.arange(len(TEXTS))
    plain = TrainSet(Prepared([], tokenizer.encode(TEXTS), number, {"labels": number}), tokenizer)
    readers = []
    for index in range(3):
        made = tmp_path_factory.mktemp("smaller")
        kept, _ = prune(folder, made, [TEXTS[i] for i in sample_rows(len(TEXTS), index, 3)])
        readers.append(PrunedTokenizer(TextTokenizer(made, 64), kept))
    return ResplitRows(plain, TEXTS, None, readers, 0.5, 3, "distill.0")


def read_by_student(rows: ResplitRows, chosen: Sequence[int], step: int) -> list[list[int]]:
    batch = rows.batch(chosen, step)
    return [ids[mask > 0].tolist() for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)]


def test_the_teacher_reads_the_rows_as_they_were(rows):
    plain = rows.rows.batch(range(20), 4)
    for step in (4, 9):
        taught = select_teacher_inputs(rows.batch(range(20), step))
        assert taught.keys() == plain.keys()
        assert all(torch.equal(taught[name], plain[name]) for name in plain)
    assert rows.lengths == rows.rows.lengths


def test_a_share_of_the_rows_is_split_into_pieces_of_smaller_vocabularies(rows):
    allowed = [{*reader.selection.kept_ids} for reader in rows.smaller_tokenizers]
    whole = [row.ids.tolist() for row in rows.rows.rows.encoded[:30]]
    read = [pair for step in range(20) for pair in zip(read_by_student(rows, range(30), step), whole, strict=True)]
    changed = [own for own, before in read if own != before]
    assert 0.2 < len(changed) / 600 < 0.6
    assert all(any({*own} <= pieces for pieces in allowed) for own in changed)


def test_what_is_split_is_a_function_of_seed_purpose_step_and_row(rows):
    assert read_by_student(rows, [3, 4, 5, 6], 1)[::-1] == read_by_student(rows, [6, 5, 4, 3], 1)
    variants = [(rows, 2), (rows, 3), (replace(rows, seed=4), 2), (replace(rows, purpose="x"), 2)]
    assert len({str(read_by_student(r, range(30), step)) for r, step in variants}) == 4


def test_without_a_share_the_student_reads_its_own_pieces(rows):
    own = replace(rows, student_tokenizer=rows.smaller_tokenizers[2], smaller_tokenizers=(), share=0.0)
    wanted = [rows.smaller_tokenizers[2].encode(text).ids.tolist() for text in TEXTS[:30]]
    assert read_by_student(own, range(30), 0) == wanted
    assert TEACHER_PREFIX + "input_ids" in own.batch(range(30), 0)
