"""Any fine-tuned Hugging Face folder into an artefact folder: offline, without recipe, data or distillation."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import pocketbert
from pocketbert import api
from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.errors import InputError

Cli = Callable[..., Any]
NAMES = ("negative", "neutral", "positive")
FAMILIES = ("bert", "roberta", "distilbert", "mobilebert")
TEXTS = [*SENTENCES[:12], SENTENCES[-2]]


def write_byte_bpe(folder: Path) -> int:
    """A small byte-level BPE tokenizer as RoBERTa's; its size."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    made.train_from_iterator(SENTENCES, trainer)
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    made.save(str(folder / "tokenizer.json"))
    named = {
        "bos_token": "<s>",
        "cls_token": "<s>",
        "eos_token": "</s>",
        "sep_token": "</s>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "mask_token": "<mask>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "RobertaTokenizer", **named}))
    return int(made.get_vocab_size())


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory, kit: SimpleNamespace) -> Callable[..., Path]:
    """`model(family, std=0.15)`: a tiny random classifier in Hugging Face layout; transformers' own weights for std 0."""

    @cache
    def build(family: str, std: float = 0.15) -> Path:
        folder = tmp_path_factory.mktemp(f"classifier-{family}")
        if family == "roberta":
            rows = write_byte_bpe(folder)
        else:
            rows = len(kit.vocabulary())
            kit.write_tokenizer(folder, kit.vocabulary())
        labels = {
            "id2label": dict(enumerate(NAMES)),
            "label2id": {n: i for i, n in enumerate(NAMES)},
            "vocab_size": rows,
        }
        sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
        config: Any
        if family == "bert":
            config = transformers.BertConfig(**labels, **sizes, max_position_embeddings=64)
        elif family == "roberta":
            config = transformers.RobertaConfig(**labels, **sizes, max_position_embeddings=66, type_vocab_size=1)
        elif family == "distilbert":
            config = transformers.DistilBertConfig(
                **labels, dim=32, n_layers=2, n_heads=2, hidden_dim=64, max_position_embeddings=64
            )
        else:
            narrow = {"embedding_size": 16, "intra_bottleneck_size": 16, "num_feedforward_networks": 2}
            config = transformers.MobileBertConfig(**labels, **{**sizes, **narrow}, max_position_embeddings=64)
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(1)
            made = transformers.AutoModelForSequenceClassification.from_config(config)
            for parameter in made.parameters():
                if parameter.ndim > 1 and std:
                    parameter.normal_(std=std)
        made.save_pretrained(folder)
        return folder

    return build


def expected(folder: Path, texts: list[str]) -> np.ndarray:
    """Probabilities as transformers itself computes them from the untouched folder, [N, labels]."""
    untouched = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    segments = untouched.config.model_type in ("bert", "mobilebert")
    rows = []
    for text in texts:
        ids = torch.tensor([tokenizer(text)["input_ids"]])
        more = {"token_type_ids": torch.zeros_like(ids)} if segments else {}
        with torch.inference_mode():
            rows.append(untouched(ids, attention_mask=torch.ones_like(ids), **more).logits.softmax(-1)[0].numpy())
    return np.stack(rows)


@pytest.mark.parametrize("family", FAMILIES)
def test_export(family: str, model: Callable[..., Path], pb: Any, kit: SimpleNamespace, tmp_path: Path) -> None:
    source, output = model(family), tmp_path / "phone"
    before = kit.tree(source)
    if family == "bert":  # once as a user does it
        done = pb("export", "-m", source, "-o", output, "--format", "onnx")
        assert done.returncode == 0, done.stderr
        assert f"{output}/onnx/model_int8.onnx  " in done.stdout
        assert done.stdout.splitlines()[-1] == f"model card: {output}/README.md"
        assert "onnx/model.onnx: parity " in done.stderr
    else:
        api.export(str(source), output, formats=["onnx"])
    assert kit.tree(source) == before
    assert [p.name for p in tmp_path.iterdir() if p.name != "pocketbert-cache"] == ["phone"]

    parity = json.loads((output / "parity.json").read_text())
    assert [p["passed"] for p in parity] == [True, True]
    assert all(p["worst"] < 1e-4 < p["mask_effect"] for p in parity)
    listed = json.loads((output / "artifacts.json").read_text())
    assert {r["path"] for r in listed["files"]} | {"artifacts.json"} == set(kit.tree(output))
    assert listed["family"] == family
    assert listed["labels"] == list(NAMES)
    card = (output / "README.md").read_text()
    for said in ("onnx/model_int8.onnx", "`positive`", "no task score was measured", "pocketbert.load"):
        assert said in card
    assert (output / "onnx/model_quantized.onnx").read_bytes() == (output / "onnx/model_int8.onnx").read_bytes()

    texts = [t for t in TEXTS if len(t) < 200] if family == "roberta" else [t for t in TEXTS if len(t) < 50]
    want = expected(source, texts)
    opened = pocketbert.load(output, scheme="fp32")
    for answer, row in zip(opened.predict(texts), want, strict=True):
        assert not answer.truncated
        assert list(answer.scores) == list(NAMES)
        assert np.allclose(list(answer.scores.values()), row, atol=1e-4)
        assert answer.label == NAMES[int(row.argmax())]
    default = pocketbert.load(output)
    assert default.record.path == "onnx/model_int8.onnx"
    same = [a.label == NAMES[int(r.argmax())] for a, r in zip(default.predict(texts), want, strict=True)]
    assert np.mean(same) >= 0.75  # a random model has close calls
    assert api.verify(output).status == "passed"


@pytest.mark.parametrize("family", FAMILIES[:3])
def test_an_untrained_model_is_no_parity_failure(family: str, model: Callable[..., Path], tmp_path: Path) -> None:
    # its answers differ by a thousandth of the logits: measured by that alone, rounding would look like an error
    api.export(str(model(family, 0.0)), tmp_path / "phone", scheme="fp32", formats=["onnx"])
    parity = json.loads((tmp_path / "phone" / "parity.json").read_text())
    assert all(p["worst"] < 1e-4 for p in parity)
    assert all(p["mask_effect"] > 100 * p["bound"] for p in parity)  # a lost mask would still be seen


@pytest.fixture(scope="session")
def fp32_folder(model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported folder with the fp32 file alone; read-only by convention."""
    folder = tmp_path_factory.mktemp("exported") / "phone"
    api.export(str(model("bert")), folder, scheme="fp32", formats=["onnx"])
    return folder


def test_the_same_command_again(cli: Cli, model: Callable[..., Path], fp32_folder: Path, kit: SimpleNamespace) -> None:
    before = kit.tree(fp32_folder)
    again = cli("export", "-m", model("bert"), "-o", fp32_folder, "--scheme", "fp32", "--format", "onnx")
    assert again.exit_code == 0, again.output
    assert f"{fp32_folder}: finished before with the same model and settings, skipped" in again.stderr
    assert kit.tree(fp32_folder) == before


def test_other_settings_need_overwrite(
    cli: Cli, model: Callable[..., Path], fp32_folder: Path, kit: SimpleNamespace, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(fp32_folder, tmp_path / "phone"))
    before = kit.tree(folder)
    for more in (["--scheme", "int8"], ["--scheme", "fp32", "--max-length", "32"], ["--format", "tflite"]):
        result = cli("export", "-m", model("bert"), "-o", folder, "--format", "onnx", *more)
        assert result.exit_code == 2
        assert f"{folder}: exists and holds something else; nothing was written." in result.stderr
        assert kit.tree(folder) == before
    replaced = cli(
        "export",
        "-m",
        model("bert"),
        "-o",
        folder,
        "--format",
        "onnx",
        "--scheme",
        "fp32",
        "--max-length",
        "32",
        "--overwrite",
    )
    assert replaced.exit_code == 0, replaced.output
    assert json.loads((folder / "artifacts.json").read_text())["processing"]["max_length"] == 32
    assert pocketbert.load(folder).predict("please " * 40)[0].truncated
    assert list(tmp_path.glob(".*")) == []


def test_quantize_adds_the_int8_file(cli: Cli, fp32_folder: Path, kit: SimpleNamespace, tmp_path: Path) -> None:
    assert not (fp32_folder / "onnx" / "model_int8.onnx").exists()
    before = kit.tree(fp32_folder)
    result = cli("quantize", "-m", fp32_folder, "-o", tmp_path / "small", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout.splitlines()[-1])["files"] == ["onnx/model.onnx", "onnx/model_int8.onnx"]
    assert (tmp_path / "small" / "onnx" / "model.onnx").read_bytes() == (
        fp32_folder / "onnx" / "model.onnx"
    ).read_bytes()
    assert kit.tree(fp32_folder) == before
    assert cli("verify", "-m", tmp_path / "small").exit_code == 0
    assert "finished before" in cli("quantize", "-m", fp32_folder, "-o", tmp_path / "small").stderr
    itself = cli("quantize", "-m", fp32_folder, "-o", fp32_folder)
    assert itself.exit_code == 2
    assert "is the folder that is read" in itself.stderr


def test_a_length_that_every_text_fills(model: Callable[..., Path], tmp_path: Path) -> None:
    api.export(str(model("bert")), tmp_path / "phone", max_length=4, formats=["onnx"])
    answer = pocketbert.load(tmp_path / "phone").predict("please the song")[0]
    assert answer.truncated
    assert api.verify(tmp_path / "phone").status == "passed"


def unnamed(source: Path, target: Path) -> Path:
    """The same model as most people upload it: LABEL_0, LABEL_1, LABEL_2."""
    shutil.copytree(source, target)
    config = json.loads((target / "config.json").read_text())
    config["id2label"] = {str(i): f"LABEL_{i}" for i in range(3)}
    config["label2id"] = {f"LABEL_{i}": i for i in range(3)}
    (target / "config.json").write_text(json.dumps(config))
    return target


def test_labels_that_say_nothing_can_be_named(model: Callable[..., Path], tmp_path: Path) -> None:
    folder = unnamed(model("bert"), tmp_path / "model")
    api.export(str(folder), tmp_path / "plain", scheme="fp32", formats=["onnx"])
    assert json.loads((tmp_path / "plain" / "artifacts.json").read_text())["labels"] == [
        "LABEL_0",
        "LABEL_1",
        "LABEL_2",
    ]
    api.export(str(folder), tmp_path / "named", scheme="fp32", formats=["onnx"], labels=["bad", "so-so", "good"])
    want = expected(folder, ["please", "the song"])
    for answer, row in zip(pocketbert.load(tmp_path / "named").predict(["please", "the song"]), want, strict=True):
        assert answer.label == ("bad", "so-so", "good")[int(row.argmax())]
    with pytest.raises(InputError, match="the model's labels differ from the data's"):
        api.export(str(folder), tmp_path / "wrong", labels=["bad", "good"])
    assert not (tmp_path / "wrong").exists()


def test_what_is_no_model(cli: Cli, kit: SimpleNamespace, model: Callable[..., Path], tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    alien = tmp_path / "alien"
    alien.mkdir()
    (alien / "config.json").write_text(json.dumps({"model_type": "llama"}))
    headless = kit.write_bert(tmp_path / "headless")
    lost = Path(shutil.copytree(model("bert"), tmp_path / "lost"))
    (lost / "model.safetensors").unlink()
    for folder, message in (
        (empty, "is no Hugging Face model folder: it has no config.json."),
        (alien, "model_type 'llama' is not in the family table"),
        (headless, "config.json names no labels (id2label) and there is no data."),
        (lost, "has neither model.safetensors nor pytorch_model.bin."),
    ):
        # an encoder without a head would be exported for its vectors, were it not for --task
        result = cli("export", "-m", folder, "-o", tmp_path / "phone", "--task", "text-classification")
        assert result.exit_code == 2, result.output
        assert message in result.stderr
        assert not (tmp_path / "phone").exists()


# TFLite: files of listed lengths, and one for MediaPipe where it can run the model.


def test_tflite_alone_and_a_model_that_mediapipe_cannot_run(
    cli: Cli, model: Callable[..., Path], tmp_path: Path
) -> None:
    pytest.importorskip("litert_torch", exc_type=ImportError)
    source, output = model("roberta"), tmp_path / "phone"
    made = cli("export", "-m", source, "-o", output, "--format", "tflite", "--max-length", "24")
    assert made.exit_code == 0, made.output
    reason = "MediaPipe would feed this model wrong ids: its tokenizer is WordPiece, the model's is BPE."
    assert f"no tflite/mediapipe.tflite: {reason}" in made.stdout
    assert f"{output}/tflite/model_int8.tflite  " in made.stdout
    listed = json.loads((output / "artifacts.json").read_text())
    assert listed["absent"] == {"tflite/mediapipe.tflite": reason}
    assert reason in (output / "README.md").read_text()
    models = {r["path"]: r for r in listed["files"] if r["kind"] == "model"}
    assert set(models) == {"tflite/model.tflite", "tflite/model_int8.tflite"}
    assert [p for p, r in models.items() if r["default"]] == ["tflite/model_int8.tflite"]
    for record in models.values():
        assert record["signature"]["lengths"] == [24]  # 32, 64 and 128 are longer than the model is asked to be
        assert [(t["name"], t["dtype"]) for t in record["signature"]["inputs"]] == [
            ("input_ids", "int32"),
            ("attention_mask", "int32"),
        ]
        assert record["seen_right"][0]["engine"] == "litert"
    assert not (output / "onnx").exists()
    assert [p["subject"] for p in json.loads((output / "parity.json").read_text())] == [
        "prepared module",
        "tflite/model.tflite",
    ]
    assert cli("verify", "-m", output).exit_code == 0

    texts = ["please", "the song", "it is"]
    want = expected(source, texts)
    for scheme, atol in (("fp32", 1e-4), (None, 0.2)):
        opened = pocketbert.load(output, scheme=scheme)
        for answer, row in zip(opened.predict(texts), want, strict=True):
            assert np.allclose(list(answer.scores.values()), row, atol=atol)
    assert opened.record.path == "tflite/model_int8.tflite"
    assert opened.predict("please the song " * 20)[0].truncated


def test_other_schemes_and_an_old_runtime(cli: Cli, model: Callable[..., Path], tmp_path: Path) -> None:
    pytest.importorskip("litert_torch", exc_type=ImportError)
    first, half, old = (tmp_path / n for n in ("w8", "half", "old"))
    made = cli(
        "export",
        "-m",
        model("distilbert"),
        "-o",
        first,
        "--format",
        "tflite",
        "--scheme",
        "w8",
        "--max-length",
        "16",
        "--json",
    )
    assert made.exit_code == 0, made.output
    both = ["tflite/mediapipe.tflite", "tflite/mediapipe_w8.tflite", "tflite/model.tflite", "tflite/model_w8.tflite"]
    assert json.loads(made.stdout.splitlines()[-1])["files"] == both
    texts = ["please", "the song"]
    want = [a.scores for a in pocketbert.load(first, scheme="fp32").predict(texts)]

    # the same fp32 files in other forms, without exporting again
    for folder, more, suffix in (
        (half, ["--scheme", "fp16"], "fp16"),
        (old, ["--target", "tflite-2.16"], "int8_tflite-2.16"),
    ):
        small = cli("quantize", "-m", first, "-o", folder, *more)
        assert small.exit_code == 0, small.output
        assert (folder / "tflite" / "model.tflite").read_bytes() == (first / "tflite" / "model.tflite").read_bytes()
        assert (folder / "tflite" / f"model_{suffix}.tflite").is_file()
        assert not (folder / "tflite" / "model_w8.tflite").exists()
        assert cli("verify", "-m", folder).exit_code == 0
    records = {r["path"]: r for r in json.loads((old / "artifacts.json").read_text())["files"]}
    assert records["tflite/model_int8_tflite-2.16.tflite"]["runtime"] == "tflite-2.16"
    assert [p for p, r in records.items() if r.get("default")] == ["tflite/model_int8.tflite"]
    assert [p for p, r in records.items() if r.get("client")] == [
        "tflite/mediapipe.tflite",
        "tflite/mediapipe_int8.tflite",
    ]
    for folder, scheme in ((first, "w8"), (half, "fp16"), (old, "int8")):
        default = pocketbert.load(folder)
        assert default.record.path == f"tflite/model_{scheme}.tflite"
        for answer, scores in zip(default.predict(texts), want, strict=True):
            assert list(answer.scores.values()) == pytest.approx(list(scores.values()), abs=0.2)


# Core ML: packages, which are folders.


def coreml_facts(package: Path) -> tuple[int, str, str]:
    """Version of the specification, operation set, and the layout that the package says it has."""
    from coremltools.proto.Model_pb2 import Model

    spec = Model.FromString((package / "Data" / "com.apple.CoreML" / "model.mlmodel").read_bytes())
    return (
        spec.specificationVersion,
        spec.mlProgram.functions["main"].opset,
        spec.description.metadata.userDefined["pocketbert.layout"],
    )


def test_core_ml_alone_and_its_small_package_afterwards(
    cli: Cli, model: Callable[..., Path], kit: SimpleNamespace, tmp_path: Path
) -> None:
    pytest.importorskip("coremltools")
    source, output, small = model("bert"), tmp_path / "phone", tmp_path / "small"
    made = cli(
        "export", "-m", source, "-o", output, "--format", "coreml", "--scheme", "fp32", "--max-length", "40", "--json"
    )
    assert made.exit_code == 0, made.output
    assert json.loads(made.stdout.splitlines()[-1])["files"] == ["coreml/Model.mlpackage"]
    package = output / "coreml" / "Model.mlpackage"
    assert coreml_facts(package) == (9, "CoreML8", "plain")
    parity = json.loads((output / "parity.json").read_text())
    assert [p["subject"] for p in parity] == ["prepared module", "coreml/Model.mlpackage"]
    assert parity[0]["bound"] < parity[1]["bound"] < 0.1 < parity[1]["mask_effect"]  # fp16 may be off more
    assert not (output / "onnx").exists()

    before = kit.tree(output)
    done = cli("quantize", "-m", output, "-o", small, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout.splitlines()[-1])["files"] == ["coreml/Model.mlpackage", "coreml/Model_w8.mlpackage"]
    assert kit.tree(output) == before
    assert kit.tree(small / "coreml" / "Model.mlpackage") == kit.tree(package)
    assert coreml_facts(small / "coreml" / "Model_w8.mlpackage") == (9, "CoreML8", "plain")
    records = {r["path"]: r for r in json.loads((small / "artifacts.json").read_text())["files"]}
    assert records["coreml/Model.mlpackage"]["signature"]["lengths"] == [32, 40]
    assert records["coreml/Model_w8.mlpackage"]["signature"] == records["coreml/Model.mlpackage"]["signature"]
    assert cli("verify", "-m", small).exit_code == 0

    texts = ["please", "the song", "it is"]
    want = expected(source, texts)
    for scheme, atol in (("fp16", 5e-3), (None, 0.1)):
        opened = pocketbert.load(small, scheme=scheme)
        for answer, row in zip(opened.predict(texts), want, strict=True):
            assert np.allclose(list(answer.scores.values()), row, atol=atol)
    assert opened.record.path == "coreml/Model_w8.mlpackage"
    assert opened.predict("please the song " * 20)[0].truncated


@pytest.mark.parametrize(
    ("flags", "name", "facts", "lengths"),
    [
        (["--ios", "17", "--shapes", "ranged", "--precision", "fp32"], "Model_fp32", (8, "CoreML7", "plain"), []),
        (["--ios", "16", "--layout", "ane"], "Model", (7, "CoreML6", "ane"), [40]),
    ],
    ids=["ranged-fp32", "fixed-ane"],
)
def test_flags_of_core_ml_reach_the_package(
    flags: list[str],
    name: str,
    facts: tuple[int, str, str],
    lengths: list[int],
    cli: Cli,
    model: Callable[..., Path],
    tmp_path: Path,
) -> None:
    pytest.importorskip("coremltools")
    source, output = model("distilbert"), tmp_path / "phone"
    made = cli(
        "export", "-m", source, "-o", output, "--format", "coreml", "--scheme", "fp32", "--max-length", "40", *flags
    )
    assert made.exit_code == 0, made.output
    assert [p.name for p in (output / "coreml").iterdir() if p.is_dir()] == [f"{name}.mlpackage"]
    assert coreml_facts(output / "coreml" / f"{name}.mlpackage") == facts
    [record] = [r for r in json.loads((output / "artifacts.json").read_text())["files"] if r["kind"] == "model"]
    assert record["scheme"] == ("fp32" if "fp32" in name else "fp16")
    assert record["signature"]["lengths"] == lengths
    if facts[2] == "ane":
        assert "whether it is faster was not measured" in (output / "README.md").read_text()
    opened = pocketbert.load(output)
    want = expected(source, ["please", "the song"])
    for answer, row in zip(opened.predict(["please", "the song"]), want, strict=True):
        assert np.allclose(list(answer.scores.values()), row, atol=1e-4 if "fp32" in name else 5e-3)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            ["--ios", "17", "--shapes", "enumerated"],
            "shapes 'enumerated' needs ios 18, this is ios 17; possible here: ranged, fixed.",
        ),
        (["--ios", "16", "--shapes", "ranged"], "shapes 'ranged' needs ios 17, this is ios 16; possible here: fixed."),
        (["--shapes", "free"], "shapes"),
        (["--ios", "15"], "ios"),
        (["--precision", "int8"], "precision"),
        (["--layout", "wide"], "layout"),
    ],
)
def test_flags_that_no_package_can_have(
    flags: list[str], said: str, cli: Cli, model: Callable[..., Path], tmp_path: Path
) -> None:
    result = cli("export", "-m", model("bert"), "-o", tmp_path / "phone", "--format", "coreml", *flags)
    assert result.exit_code == 2, result.output
    assert said in result.stderr
    assert [p.name for p in tmp_path.iterdir() if p.name != "pocketbert-cache"] == []
