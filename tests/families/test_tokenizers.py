"""Tokenizers as authors ship them, without tokenizer.json: converted, used and exported, and the folders left as they are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.errors import InputError, MissingBackendError
from pocketbert.core.families import TokenizerKind, find_family
from pocketbert.core.models import tokenizer_conversion
from pocketbert.core.models.folder import ModelFolder, open_model_folder
from pocketbert.core.models.tokenizer_conversion import convert_tokenizer
from pocketbert.core.models.tokenizers import save_tokenizer
from pocketbert.core.predict.tokenization import TextTokenizer
from support.tiny import NAMES, tiny_classifier, tiny_config, write_own_tokenizer
from support.tiny_sentencepiece import LAYOUTS, write_sentencepiece

Cli = Callable[..., Any]

SHIPPED = {
    "bert": ["vocab.txt"],
    "ernie": ["vocab.txt"],
    "electra": ["vocab.txt"],
    "roberta": ["merges.txt", "vocab.json"],
    "deberta": ["merges.txt", "vocab.json"],
    "deberta-v2": ["spm.model"],
    "albert": ["spiece.model"],
    "xlnet": ["spiece.model"],
    "xlm-r": ["sentencepiece.bpe.model"],
    "roberta-prelayernorm": ["merges.txt", "vocab.json"],
    "camembert": ["sentencepiece.bpe.model"],
    "mpnet": ["vocab.txt"],
    "squeezebert": ["vocab.txt"],
    "xlm": ["merges.txt", "vocab.json"],
    "ernie-thu": ["vocab.txt"],
}
"""Files with the vocabulary, by family."""
PLAIN = [s for s in SENTENCES if s.isascii()]
DEBERTA = {"<s>": "[CLS]", "<pad>": "[PAD]", "</s>": "[SEP]", "<unk>": "[UNK]", "<mask>": "[MASK]"}


def write_shipped(folder: Path, family: str, weights: bool = False) -> Tokenizer:
    """A model folder without tokenizer.json; returns the tokenizer that its files mean."""
    folder.mkdir()
    told = write_own_tokenizer(folder, family)
    if family == "deberta":
        rename_special_tokens(folder)
    meant = Tokenizer.from_file(str(folder / "tokenizer.json"))
    (folder / "tokenizer.json").unlink()
    if find_family(family).tokenizer is TokenizerKind.BYTE_BPE:
        meant.model.save(str(folder))
    if family == "ernie-thu":
        write_as_released(folder, told)
        return meant
    config = tiny_config(family, 2, NAMES, **told)
    config.save_pretrained(folder)
    if weights:
        tiny_classifier(family, 2, NAMES, seed=1, std=0.3, **told).save_pretrained(folder)
    return meant


def rename_special_tokens(folder: Path) -> None:
    content = (folder / "tokenizer.json").read_text()
    for old, new in DEBERTA.items():
        content = content.replace(f'"{old}"', f'"{new}"')
    (folder / "tokenizer.json").write_text(content)
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "DebertaTokenizer"}))


def write_as_released(folder: Path, told: dict[str, Any]) -> None:
    """As the authors of ERNIE release it: their own file instead of config.json, no settings of a tokenizer, weights of torch."""
    import torch

    model = tiny_classifier("ernie-thu", 2, NAMES, seed=1, std=0.3, layer_kinds=["mix", "norm"], **told)
    content = model.config.to_dict()
    content["layer_types"] = content.pop("layer_kinds")
    (folder / "ernie_config.json").write_text(json.dumps({k: v for k, v in content.items() if k != "model_type"}))
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    (folder / "tokenizer_config.json").unlink()


def read_contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


@pytest.mark.parametrize("family", SHIPPED)
def test_a_folder_without_tokenizer_json_is_opened_and_left_as_it_is(
    family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    meant = write_shipped(tmp_path / "model", family)
    before = read_contents(tmp_path / "model")
    model = open_model_folder(str(tmp_path / "model"))
    made = TextTokenizer(model.tokenizer_folder, 400)
    said = capsys.readouterr().err
    names = " and ".join(reversed(SHIPPED[family]))
    assert f"it has no tokenizer.json: converted from {names}; nothing is written into the folder" in said
    assert [row.ids.tolist() for row in made.encode(PLAIN)] == [e.ids for e in meant.encode_batch(PLAIN)]
    assert made.pad_id == model.config["pad_token_id"]
    assert made.padding_side == model.family.padding_side
    assert read_contents(tmp_path / "model") == before
    (tmp_path / "saved").mkdir()
    save_tokenizer(model.tokenizer_folder, 20, tmp_path / "saved", model.family)
    assert capsys.readouterr().err == "", "it was converted a second time"
    saved = read_contents(tmp_path / "saved")
    assert saved["tokenizer.json"] == (model.tokenizer_folder / "tokenizer.json").read_bytes()
    assert {name: saved[name] for name in SHIPPED[family]} == {name: before[name] for name in SHIPPED[family]}
    assert json.loads(saved["tokenizer_config.json"])["model_max_length"] == 20


def test_a_folder_is_converted_once_until_its_files_change(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_shipped(tmp_path / "model", "bert")
    first, second = (open_model_folder(str(tmp_path / "model")) for _ in range(2))
    assert first.tokenizer_folder == second.tokenizer_folder
    assert capsys.readouterr().err.count("converted from vocab.txt") == 1
    with (tmp_path / "model/tokenizer_config.json").open("w") as file:
        json.dump({"do_lower_case": False}, file)
    changed = open_model_folder(str(tmp_path / "model"))
    assert changed.tokenizer_digest != first.tokenizer_digest
    assert changed.tokenizer_folder != first.tokenizer_folder
    texts = TextTokenizer(changed.tokenizer_folder, 48), TextTokenizer(first.tokenizer_folder, 48)
    upper, lower = (t.encode(["HELLO"])[0].ids.tolist() for t in texts)
    assert upper != lower


def test_vocab_txt_is_written_where_the_authors_ship_tokenizer_json_alone(tmp_path: Path) -> None:
    for family in ("bert", "roberta"):
        meant = write_shipped(tmp_path / family, family)
        meant.save(str(tmp_path / family / "tokenizer.json"))
        (tmp_path / family / "vocab.txt").unlink(missing_ok=True)
        saved = tmp_path / f"{family} saved"
        saved.mkdir()
        save_tokenizer(tmp_path / family, 20, saved)
        assert (saved / "vocab.txt").is_file() == (family == "bert")
    lines = (tmp_path / "bert saved/vocab.txt").read_text().splitlines()
    wanted = write_shipped(tmp_path / "again", "bert")
    assert {token: i for i, token in enumerate(lines)} == wanted.get_vocab()


def expect_refusal(folder: Path, kind: type[Exception] = InputError) -> str:
    model: ModelFolder = open_model_folder(str(folder))
    with pytest.raises(kind) as caught:
        _ = model.tokenizer_folder
    return str(caught.value)


NONE = "model/tokenizer.json: file not found, and no vocabulary to make it of: vocab.txt, "


@pytest.mark.parametrize(
    ("family", "gone", "said"),
    [
        ("bert", "vocab.txt", NONE),
        ("albert", "spiece.model", NONE),
        ("roberta", "merges.txt", "model/merges.txt: file not found; vocab.json needs it."),
        ("xlm", "vocab.json", "model/vocab.json: file not found; merges.txt needs it."),
        ("ernie-thu", "vocab.txt", NONE),
    ],
)
def test_what_is_missing_is_named_with_the_fix(family: str, gone: str, said: str, tmp_path: Path) -> None:
    write_shipped(tmp_path / "model", family)
    (tmp_path / "model" / gone).unlink()
    found = expect_refusal(tmp_path / "model")
    assert said in found
    assert "Fix: Put the tokenizer's files that the authors publish into the folder." in found


def test_a_vocabulary_of_another_kind_or_another_model_is_refused(tmp_path: Path) -> None:
    write_shipped(tmp_path / "model", "bert")
    (tmp_path / "model/vocab.txt").rename(tmp_path / "lines")
    (tmp_path / "model/spiece.model").write_bytes(b"no model")
    assert f"{tmp_path}/model" in expect_refusal(tmp_path / "model")
    (tmp_path / "model/spiece.model").unlink()
    lines = [*(tmp_path / "lines").read_text().splitlines(), "more", "than", "it", "has"]
    (tmp_path / "model/vocab.txt").write_text("\n".join(lines) + "\n")
    assert "it belongs to another model" in expect_refusal(tmp_path / "model")


@pytest.mark.parametrize(
    ("family", "extra"),
    [("bert", r"pip install 'pocketbert[train,onnx]'"), ("xlnet", "pip install 'pocketbert[sentencepiece]'")],
)
def test_a_missing_library_is_named_with_its_command(
    family: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_shipped(tmp_path / "model", family)
    monkeypatch.setattr(tokenizer_conversion, "version_of", lambda _: None)
    assert extra in expect_refusal(tmp_path / "model", MissingBackendError)


OTHERS = [name for name in SHIPPED if name not in ("bert", "ernie", "electra")]


@pytest.mark.parametrize("family", ["bert", *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_a_shipped_folder_is_exported(family: str, cli: Cli, tmp_path: Path) -> None:
    write_shipped(tmp_path / "model", family, weights=True)
    before, phone = read_contents(tmp_path / "model"), tmp_path / "phone"
    task = ("--task", "text-classification", "--labels", ",".join(NAMES)) if family == "ernie-thu" else ()
    made = cli("export", "-m", tmp_path / "model", "-o", phone, "--format", "onnx", "--scheme", "fp32", *task)
    assert made.exit_code == 0, made.output
    assert "converted from" in made.stderr
    assert read_contents(tmp_path / "model") == before
    assert {"tokenizer.json", *SHIPPED[family]} <= {
        f["path"] for f in json.loads((phone / "artifacts.json").read_text())["files"]
    }
    answer = cli("predict", "-m", phone, "--json", "a nice old song")
    assert answer.exit_code == 0, answer.output


# Conversions.


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_converted_model_gives_the_tokens_of_the_library_that_owns_it(name: str, tmp_path: Path) -> None:
    import sentencepiece

    write_sentencepiece(tmp_path, name, fast=False)
    made = Tokenizer.from_str(convert_tokenizer(tmp_path))
    model = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / LAYOUTS[name].file))
    # their authors put rows in front of the model's own
    shifted = {"XLMRobertaTokenizer": 1, "CamembertTokenizer": 4}.get(name, 0)
    for text in PLAIN:
        own = model.encode(text.lower() if name == "AlbertTokenizer" else text)
        assert made.encode(text, add_special_tokens=False).ids == [i + shifted for i in own], text


def test_a_conversion_that_cuts_otherwise_is_refused_and_odd_characters_are_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_sentencepiece(tmp_path, "XLMRobertaTokenizer", fast=False, model_type="bpe")
    with pytest.raises(
        InputError, match=r"bpe.model: transformers converts it to a tokenizer with other tokens for \d+"
    ):
        convert_tokenizer(tmp_path)
    write_sentencepiece(tmp_path, "XLMRobertaTokenizer", fast=False, normalization_rule_name="identity")
    convert_tokenizer(tmp_path)
    said = capsys.readouterr()
    assert "differs from the sentencepiece library: 'tab\\tnew" in said.out + said.err


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
