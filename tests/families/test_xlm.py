"""XLM: masks as arithmetic, languages as a constant or an input, layers spread over four lists, and its tokenizer against the original in Python."""

from __future__ import annotations

import copy
import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from pocketbert.core.compare.sample_texts import ASCII_SENTENCES, SENTENCES, UNICODE_SENTENCES
from pocketbert.core.errors import InputError
from pocketbert.core.families import find_family
from pocketbert.core.families.table import checkpoint_code
from pocketbert.core.models.checkpoints import finish_loading, load_model, save_tokenizer
from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.models.tokenizers import cut_pairs_as_tokenizer_json
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.student import StudentSection
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.distill.capture import record_attention
from pocketbert.distill.students.build import build_student
from pocketbert.export.prepare import prepare
from support.drawn import difference, draw_inputs
from support.published import edit_json
from support.tiny import NAMES, noisy_model, tiny_classifier
from support.tiny_texts import vocabulary
from support.tiny_tokenizers import write_tokenizer
from support.tiny_word_bpe import write_xlm_files

ROW = find_family("xlm")
SPEAKING = ROW.in_form("language", {"n_langs": 3})
CLASSIFY, GUESS = TASKS[TaskName.TEXT_CLASSIFICATION], TASKS[TaskName.FILL_MASK]
PADDED = (0, 2, 4, 6)
LANGUAGES = {"n_langs": 3, "lang_id": 1}


def languages_of(ids: torch.Tensor) -> torch.Tensor:
    """Another language for each token, none of them the default one everywhere."""
    return (torch.arange(ids.shape[1]) + torch.arange(len(ids))[:, None]) % 3


# Languages.


@pytest.mark.parametrize("task", [CLASSIFY, GUESS], ids=str)
def test_each_token_may_have_its_own_language(task: Any) -> None:
    model = noisy_model("xlm", 2, task.auto_class, NAMES, **LANGUAGES)
    module, inputs = prepare(model, SPEAKING, task), draw_inputs("xlm", 11, PADDED)
    inputs["langs"] = languages_of(inputs["input_ids"])
    assert difference(model, module, inputs) < 2e-5
    with torch.no_grad():
        other = {**inputs, "langs": torch.zeros_like(inputs["input_ids"])}
        moved = module(*other.values())[0] - module(*inputs.values())[0]
    assert float(moved.abs().max()) > 1e-2


def test_without_languages_as_an_input_all_tokens_have_the_default_one() -> None:
    model, inputs = noisy_model("xlm", 2, CLASSIFY.auto_class, NAMES, **LANGUAGES), draw_inputs("xlm", 11, PADDED)
    module, bare = prepare(model, ROW, CLASSIFY), copy.deepcopy(model)
    for _ in range(2):  # once is enough
        finish_loading(model, ROW)
    assert difference(model, module, inputs) < 2e-5
    with torch.no_grad():
        named = bare(**inputs, langs=torch.ones_like(inputs["input_ids"])).logits
        torch.testing.assert_close(model(**inputs).logits, named)
        assert float((bare(**inputs).logits - named).abs().max()) > 1e-2, "transformers would add no language"
        inputs["langs"] = languages_of(inputs["input_ids"])
        torch.testing.assert_close(model(**inputs).logits, bare(**inputs).logits)


def test_models_that_are_loaded_or_built_have_the_default_language(tmp_path: Path) -> None:
    tiny_classifier("xlm", 2, NAMES, vocab_size=90, **LANGUAGES).save_pretrained(tmp_path)
    teacher = load_model(open_model_folder(str(tmp_path)), CLASSIFY)
    student = build_student(teacher, ROW, StudentSection(layers=2), seed=1).eval()
    inputs = draw_inputs("xlm", 9, (0, 2, 4))
    with torch.no_grad():
        named = teacher(**inputs, langs=torch.ones_like(inputs["input_ids"])).logits
        torch.testing.assert_close(teacher(**inputs).logits, named)
        torch.testing.assert_close(student(**inputs).logits, named)
    edit_json(tmp_path / "config.json", lang_id=3)
    with pytest.raises(InputError, match="lang_id is 3, the model has the languages 0 to 2"):
        load_model(open_model_folder(str(tmp_path)), CLASSIFY)


# Configurations.


def test_an_old_configuration_names_its_padding_otherwise_and_no_width_of_a_feed_forward_part(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "xlm", "pad_index": 2}))
    assert TextTokenizer(tmp_path, 16).pad_id == 2
    with pytest.raises(InputError, match=r"student.intermediate.*no such size"):
        build_student(
            tiny_classifier("xlm", 2, NAMES), ROW, StudentSection(layers=2, init="random", intermediate=64), seed=1
        )


# Learning.


@torch.no_grad()
def test_captured_values_are_the_projected_states_and_probabilities_are_not_returned_any_more() -> None:
    model, inputs = noisy_model("xlm", 2, CLASSIFY.auto_class), draw_inputs("xlm", 9, (0, 2, 4))
    with record_attention(model, ROW, range(2), range(2)) as recorder:
        model(**inputs)
    value = recorder.relations[1].value.transpose(1, 2).flatten(2)
    states = model(**inputs, output_hidden_states=True).hidden_states[1]
    torch.testing.assert_close(value, model.transformer.attentions[1].v_lin(states), rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="returns no probabilities"):
        model(**inputs, output_attentions=True)


# Its tokenizer, on awkward texts; every difference is listed here.


def tokenizer_json(folder: Path) -> str:
    convert = checkpoint_code(find_family("xlm")).tokenizer_json
    assert convert is not None
    return convert(folder)


AWKWARD = (
    "Mr. Smith went to the U.S. today. He said 'hello'.",
    "rock'n'roll isn't 5's or 5'a dogs' ",
    "A,B,C 5,300, and 1,2.",
    "etc. and so on. No. 5 is here. No. Never!",
    "Wait... what?? (see fig. 3).",
    '"quoted," he said. "End".',
    "tab\tnew\nline",
    "a—b – c ‚d‘ „e“",
    "Café ÀÉÎ Ünïcödé ß",
    "北京。上海，你好！１２３",
    "오늘 날씨가 어때요?",
    "हिन्दी भाषा",
    "ไทย ภาษา",
    "👩‍👩‍👧 emoji ☕",
    "3.14. 1.5. v. vs. i.e. e.g. ok",
    "it's. 'end.'",
    "«bonjour» 10 %",
    "x_y@z.com http://a.b/c?d=e&f",
    "- -- --- a-b",
    "...",
    "'",
    "','",
    "a ' b",
    "don`t ``x''",
    "Nº 5 № ½ ²",
    "שלום עולם مرحبا بالعالم",
    "<special1> is it </s>",
    "END. Next end.Next one I. II. iv. A. b.",
    "lamplamp songs tune album zzzz",
)
DIFFERENT = {
    "cafe\u0301s": "Moses splits at an accent that is a character of its own, here it is removed first",
    "ΣΑΣ": "Python writes the last sigma of a word as ς, the tokenizers library as σ",
    "5\u00a0000": "Moses joins digits around a no-break space with a period",
    '"quoted",,,, then': "Moses moves a quotation mark behind all commas that follow it, here behind one",
    "\u1e9e\u0560x": "sacremoses knows the letters of an older Unicode",
}


def write(folder: Path, lower: bool) -> Path:
    """Files of XLM with a vocabulary in which every character of the texts has a token, so that differences show."""
    write_xlm_files(folder, vocabulary())
    texts = [*SENTENCES, *ASCII_SENTENCES, *UNICODE_SENTENCES, *AWKWARD, *DIFFERENT]
    ids = json.loads((folder / "vocab.json").read_text())
    for letter in sorted(
        {c for t in texts for c in unicodedata.normalize("NFD", t.lower()) + t + "\"ς.-!:'?" if c != " "}
    ):
        for token in (letter, f"{letter}</w>"):
            ids.setdefault(token, len(ids))
    (folder / "vocab.json").write_text(json.dumps(ids))
    settings = {"tokenizer_class": "XLMTokenizer", "do_lowercase_and_remove_accent": lower}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps({"model_type": "xlm", "pad_token_id": 2}))
    return folder


@pytest.mark.parametrize("lower", [True, False])
def test_ids_are_those_of_the_original(lower: bool, tmp_path: Path) -> None:
    pytest.importorskip("sacremoses")
    from transformers import XLMTokenizer

    theirs = XLMTokenizer.from_pretrained(write(tmp_path, lower))
    ours = Tokenizer.from_str(tokenizer_json(tmp_path))
    for text in (*SENTENCES, *ASCII_SENTENCES, *UNICODE_SENTENCES, *AWKWARD):
        assert ours.encode(text).tokens == theirs.convert_ids_to_tokens(theirs(text)["input_ids"]), text
    pair = ("bright lamp.", "old song")
    assert ours.encode(*pair).ids == theirs(*pair)["input_ids"]
    if lower:
        same = [t for t in DIFFERENT if ours.encode(t).ids == theirs(t)["input_ids"]]
        assert not same, "no difference any more: take it off the list"


def test_an_unknown_merged_word_and_a_folder_as_the_authors_ship_it(tmp_path: Path) -> None:
    write(tmp_path, lower=True)
    with (tmp_path / "merges.txt").open("a") as file:
        file.write("z z 17\nzz z 3\n")
    ours = Tokenizer.from_str(tokenizer_json(tmp_path))
    assert ours.encode("zzzq").ids[1:-1] == [3, ours.token_to_id("q</w>")]
    source, destination = write(tmp_path / "shipped", lower=True), tmp_path / "saved"
    destination.mkdir()
    save_tokenizer(source, 40, destination, find_family("xlm"))
    made = TextTokenizer(destination, 40, pad_id=2)
    assert made.mask_token == "<special1>"
    assert made.encode(["bright lamp"])[0].ids.tolist() == [0, *made.encode(["bright lamp"])[0].ids.tolist()[1:-1], 1]


def test_files_that_are_missing_and_words_that_others_find_are_refused(tmp_path: Path) -> None:
    write(tmp_path, lower=True)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "xlm", "lang2id": {"zh": 0, "ja": 1}}))
    with pytest.raises(InputError, match=r"its languages are zh, ja, .*XLMTokenizer.tokenize"):
        tokenizer_json(tmp_path)
    (tmp_path / "merges.txt").unlink()
    with pytest.raises(InputError, match=r"neither tokenizer.json nor merges.txt"):
        tokenizer_json(tmp_path)
    (tmp_path / "merges.txt").write_text("")
    (tmp_path / "vocab.json").write_text("{}")
    with pytest.raises(InputError, match="no vocabulary of XLM: <s>, </s>, <pad>, <unk> missing"):
        tokenizer_json(tmp_path)


@pytest.mark.parametrize("side", ["right", "left"])
def test_pairs_of_all_lengths_are_cut_as_by_tokenizer_json(side: str, tmp_path: Path) -> None:
    pytest.importorskip("sacremoses")
    from transformers import XLMTokenizer

    theirs = XLMTokenizer.from_pretrained(write(tmp_path, lower=True), truncation_side=side)
    ours = Tokenizer.from_str(tokenizer_json(tmp_path))
    ours.enable_truncation(12, direction=side)  # 9 tokens and 3 special ones
    pairs = [("a " * first, "b " * second) for first in range(1, 12) for second in range(1, 12)]

    def differ() -> list[tuple[int, int]]:
        inputs = {p: theirs(*p, truncation=True, max_length=12)["input_ids"] for p in pairs}
        return [(len(p[0]) // 2, len(p[1]) // 2) for p in pairs if ours.encode(*p).ids != inputs[p]]

    assert set(differ()) == {(first, second) for first in range(5, 12) for second in range(first, 12)}
    for _ in range(2):  # a second time changes nothing
        cut_pairs_as_tokenizer_json(theirs)
    assert differ() == []
