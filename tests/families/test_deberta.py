"""DeBERTa v1, v2 and v3: positions without a gather of scores, and checkpoints and tokenizers as they are published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from pocketbert.core.errors import InputError
from pocketbert.core.families import find_family
from pocketbert.core.models.checkpoints import load_model, save_tokenizer
from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.distill.capture import record_attention
from pocketbert.export.prepare import prepare
from support.drawn import difference, draw_inputs
from support.tiny import noisy_model
from support.tiny_sentencepiece import write_sentencepiece

BOTH = ("deberta", "deberta-v2")
CLASSIFY, FILL = TASKS[TaskName.TEXT_CLASSIFICATION], TASKS[TaskName.FILL_MASK]


def test_what_is_not_rewritten_is_refused() -> None:
    row = find_family("deberta")
    mixing = noisy_model("deberta", 1, CLASSIFY.auto_class, talking_head=True)
    for refuse in (lambda: prepare(mixing, row, CLASSIFY), lambda: record_attention(mixing, row, [0])):
        with pytest.raises(InputError, match="talking_head is set"):
            refuse()
    model = noisy_model("deberta", 1, CLASSIFY.auto_class)
    attention = model.deberta.encoder.layer[0].attention.self
    attention.__class__ = type("Other", (type(attention),), {})
    with pytest.raises(InputError, match="its encoder has"):
        prepare(model, row, CLASSIFY)


@pytest.mark.parametrize("name", BOTH)
@torch.inference_mode()
def test_positions_would_be_missed(name: str) -> None:
    model, inputs = noisy_model(name, 3, TASKS[TaskName.TOKEN_CLASSIFICATION].auto_class), draw_inputs(name, 20)
    whole = model(**inputs).logits
    model.deberta.encoder.rel_embeddings.weight.zero_()
    assert float((model(**inputs).logits - whole).abs().max() / whole.std()) > 0.1


@pytest.mark.parametrize("name", BOTH)
def test_the_capturing_attention_drops_as_the_stock_one(name: str) -> None:
    model, inputs = noisy_model(name, 2, CLASSIFY.auto_class).train(), draw_inputs(name, 12, (0, 0))
    torch.manual_seed(5)
    plain = model(**inputs).logits
    with record_attention(model, find_family(name), range(2)):
        torch.manual_seed(5)
        made = model(**inputs).logits
    torch.testing.assert_close(made, plain, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(made, model(**inputs).logits, rtol=1e-3, atol=1e-3)


# Checkpoints and tokenizers.


def write_published(
    folder: Path, name: str, extra: dict[str, tuple[int, ...]], drop: str = "cls.", **changes: Any
) -> Path:
    """A checkpoint in the layout of the authors: no cls.predictions.*, other heads, in a .bin file."""
    model = noisy_model(name, 2, FILL.auto_class, (), type_vocab_size=0, **changes)
    state = {k: v for k, v in model.state_dict().items() if not k.startswith(drop)}
    torch.save(state | {k: torch.ones(shape) for k, shape in extra.items()}, folder / "pytorch_model.bin")
    config = {k: v for k, v in model.config.to_dict().items() if k not in ("architectures", "legacy")}
    config |= {"legacy": False} if not changes.get("legacy", True) else {}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


HEAD = {
    "lm_predictions.lm_head.dense.weight": (32, 32),
    "lm_predictions.lm_head.dense.bias": (32,),
    "lm_predictions.lm_head.LayerNorm.weight": (32,),
    "lm_predictions.lm_head.LayerNorm.bias": (32,),
    "lm_predictions.lm_head.bias": (90,),
}
FINDER = {
    "mask_predictions.dense.weight": (32, 32),
    "mask_predictions.classifier.weight": (1, 32),
    "deberta.embeddings.position_embeddings.weight": (64, 32),
}


@pytest.mark.parametrize(
    ("name", "extra", "more", "reason"),
    [
        ("deberta", HEAD, {}, "legacy: true"),
        ("deberta-v2", HEAD, {}, "legacy: true"),
        ("deberta-v2", {**HEAD, **FINDER}, {}, "find replaced tokens"),
        (
            "deberta-v2",
            FINDER,
            {"drop": "nothing", "legacy": False},
            "find replaced tokens",
        ),  # whatever the config says
    ],
)
def test_heads_of_published_checkpoints_are_noise_to_transformers(
    name: str, extra: dict[str, tuple[int, ...]], more: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    folder = open_model_folder(str(write_published(tmp_path, name, extra, position_biased_input=False, **more)))
    assert folder.family.inputs == ("input_ids", "attention_mask")
    load_model(folder, TASKS[TaskName.FEATURE_EXTRACTION])
    load_model(folder, CLASSIFY, new_head=True)
    with pytest.raises(InputError, match=reason):
        load_model(folder, FILL)


@pytest.mark.parametrize("name", BOTH)
@torch.inference_mode()
def test_a_head_under_the_names_of_the_class_works(name: str, tmp_path: Path) -> None:
    folder = open_model_folder(str(write_published(tmp_path, name, {}, drop="nothing", legacy=False)))
    model = load_model(folder, FILL)
    inputs = {n: v for n, v in draw_inputs(name, 12).items() if n in folder.family.inputs}
    assert difference(model, prepare(model, folder.family, FILL), inputs) < 1e-4


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    return tmp_path / "source"


def save(source: Path, name: str) -> TextTokenizer:
    made = source.parent / "made"
    made.mkdir(exist_ok=True)
    save_tokenizer(source, 48, made, find_family(name))
    return TextTokenizer(made, 48, pad_id=0)


def test_full_width_letters_get_the_tokens_of_sentencepiece(source: Path) -> None:
    import sentencepiece

    write_sentencepiece(source, "DebertaV2Tokenizer", ["Full", "width", "fine"], fast=False)
    (source / "config.json").write_text(json.dumps({"model_type": "deberta-v2"}))
    made, text = save(source, "deberta-v2"), "Ｆｕｌｌ  ｗｉｄｔｈ, ﬁne"
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(source / "spm.model"))
    (row,) = made.encode([text])
    assert list(row.ids) == [1, *pieces.encode(text), 2]
    assert 3 not in row.ids
    # transformers reads the file as it is: its own class would normalize anew, and differently
    theirs = transformers.AutoTokenizer.from_pretrained(str(source.parent / "made"), local_files_only=True)
    assert theirs(text)["input_ids"] == list(row.ids)
    assert (theirs.pad_token, theirs.mask_token) == ("[PAD]", "[MASK]")


def write_byte_pairs(folder: Path) -> None:
    from tokenizers import pre_tokenizers

    tokens = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", *sorted(pre_tokenizers.ByteLevel.alphabet()), "he", "[MASK]"]
    (folder / "vocab.json").write_text(json.dumps({t: i for i, t in enumerate(tokens)}))
    (folder / "merges.txt").write_text("#version: 0.2\nh e\n")
    (folder / "config.json").write_text(json.dumps({"model_type": "deberta"}))


def test_one_separator_is_between_the_texts_of_a_pair_and_a_pickled_vocabulary_is_refused(source: Path) -> None:
    write_byte_pairs(source)
    pair, single = save(source, "deberta").encode([("he", "he"), "he"])
    word = single.ids[1]
    assert list(single.ids) == [1, word, 2]
    assert list(pair.ids) == [1, word, 2, word, 2]
    (source / "vocab.json").unlink()
    (source / "bpe_encoder.bin").write_bytes(b"pickle")
    with pytest.raises(InputError, match="a pickle of the original code(.|\n)*vocab.json and merges.txt"):
        save(source, "deberta")
