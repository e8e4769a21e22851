"""SentencePiece tokenizers: the tiny ones of the tests have the special ids of the published ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from pocketbert.core.compare.sample_texts import SENTENCES, UNICODE_SENTENCES
from pocketbert.core.errors import InputError, MissingBackendError
from pocketbert.core.families import find_family
from pocketbert.core.models import tokenizer_conversion
from pocketbert.core.models.tokenizer_conversion import COMPARISON_TEXTS, _list_differences, convert_tokenizer
from pocketbert.core.models.tokenizers import check_tokenizer
from pocketbert.core.predict.tokenization import TextTokenizer
from support.tiny_sentencepiece import LAYOUTS, write_sentencepiece

PUBLISHED = {
    "XLMRobertaTokenizer": (["<s>", "<pad>", "</s>", "<unk>"], "<s> hello </s></s> you </s>"),
    "AlbertTokenizer": (["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"], "[CLS] hello[SEP] you[SEP]"),
    "XLNetTokenizer": (["<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>"], "hello<sep> you<sep><cls>"),
    "DebertaV2Tokenizer": (["[PAD]", "[CLS]", "[SEP]", "[UNK]"], "[CLS] hello[SEP] you[SEP]"),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_tiny_tokenizer_has_the_special_ids_of_the_published_one(name: str, tmp_path: Path) -> None:
    rows = write_sentencepiece(tmp_path, name, ["lamp", "zzyzx", "[CLS]", "##s"])
    special, pair = PUBLISHED[name]
    made = TextTokenizer(tmp_path, 48, pad_id=0)
    assert [made.token(i) for i in range(len(special))] == special
    assert (made.vocabulary_size, made.largest_id) == (rows, rows - 1)
    assert made.mask_token in special or made.mask_id == rows - 1 or name == "DebertaV2Tokenizer"
    (row,) = made.encode([("hello", "you")])
    pieces = "".join(made.token(int(i)) for i in row.ids).replace("▁", " ").strip()
    assert pieces.replace(" ", "") == pair.replace(" ", "")
    (word,) = made.encode(["zzyzx"])
    assert special.index("[UNK]" if "[UNK]" in special else "<unk>") not in word.ids
    check_tokenizer(tmp_path, {"vocab_size": rows}, find_family("roberta"))
    assert (tmp_path / LAYOUTS[name].file).stat().st_size > 1000


def test_a_folder_as_the_authors_publish_it_has_no_file_of_the_fast_library(tmp_path: Path) -> None:
    write_sentencepiece(tmp_path, "XLMRobertaTokenizer", fast=False)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["sentencepiece.bpe.model", "tokenizer_config.json"]


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_converted_model_gives_the_tokens_of_the_library_that_owns_it(name: str, tmp_path: Path) -> None:
    import sentencepiece
    from tokenizers import Tokenizer

    write_sentencepiece(tmp_path, name, fast=False)
    made = Tokenizer.from_str(convert_tokenizer(tmp_path))
    model = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / LAYOUTS[name].file))
    assert _list_differences(made, model, (*COMPARISON_TEXTS, *SENTENCES, *UNICODE_SENTENCES)) == []
    shifted = 1 if name == "XLMRobertaTokenizer" else 0  # its authors put two rows in front of the model's own
    ids = made.encode("Set an alarm", add_special_tokens=False).ids
    plain = "Set an alarm" if name != "AlbertTokenizer" else "set an alarm"
    assert ids == [i + shifted for i in model.encode(plain)]


def test_a_conversion_that_cuts_otherwise_is_refused(tmp_path: Path) -> None:
    write_sentencepiece(tmp_path, "XLMRobertaTokenizer", fast=False, model_type="bpe")
    with pytest.raises(
        InputError, match=r"bpe.model: transformers converts it to a tokenizer with other tokens for \d+"
    ):
        convert_tokenizer(tmp_path)


def test_a_difference_on_odd_characters_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_sentencepiece(tmp_path, "XLMRobertaTokenizer", fast=False, normalization_rule_name="identity")
    convert_tokenizer(tmp_path)
    said = capsys.readouterr()
    assert "differs from the sentencepiece library: 'tab\\tnew" in said.out + said.err


def test_without_the_library_its_install_command_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_sentencepiece(tmp_path, "XLMRobertaTokenizer", fast=False)
    monkeypatch.setattr(tokenizer_conversion, "version_of", lambda _: None)
    with pytest.raises(MissingBackendError, match=r"pip install 'pocketbert\[sentencepiece\]'"):
        convert_tokenizer(tmp_path)


def test_a_cased_vocabulary_is_not_lower_cased_without_a_word(tmp_path: Path) -> None:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "The", "Lamp", "a", "##b", "song"]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(InputError, match=r"2 of the 5 words.*do_lower_case"):
        convert_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert '"lowercase":false' in convert_tokenizer(tmp_path)


@pytest.mark.parametrize("model_type", ["bert", "ernie"])
def test_a_chinese_vocabulary_is_cut_into_characters(model_type: str, tmp_path: Path) -> None:
    characters = [chr(c) for c in range(0x4E00, 0x9FA6)]
    words = ["[PAD]", *(f"[unused{i}]" for i in range(1, 100)), "[UNK]", "[CLS]", "[SEP]", "[MASK]", *characters, "，"]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n", "utf-8")
    (tmp_path / "config.json").write_text(f'{{"model_type": "{model_type}"}}')
    (tmp_path / "tokenizer.json").write_text(convert_tokenizer(tmp_path), "utf-8")
    row = TextTokenizer(tmp_path, 32, pad_id=0).encode(["明天早上，叫我"])[0]
    assert [words[i] for i in row.ids] == ["[CLS]", *"明天早上，叫我", "[SEP]"]
