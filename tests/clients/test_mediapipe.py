"""The real MediaPipe Tasks: its tokenizer against our emulation, and the answers of files, packed folders and the demo."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock

pytestmark = pytest.mark.slow
for _package in ("torch", "litert_torch", "ai_edge_quantizer"):
    pytest.importorskip(_package)

import torch
from ai_edge_litert import schema_py_generated as schema

import pocketbert
from pocketbert.core.artefacts import read_artefacts
from pocketbert.core.compare.sample_texts import ASCII_SENTENCES, SENTENCES, UNICODE_SENTENCES
from pocketbert.core.families import find_family
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.core.types import Format, Scheme
from pocketbert.export import tflite
from pocketbert.export.mediapipe import MediaPipeTokenizer, explain_refusal
from pocketbert.export.prepare import prepare
from pocketbert.export.tflite_metadata import MediaPipeInfo, metadata_problems, pack_files, write_metadata
from pocketbert.pipeline.formats.tflite import measure_tokenizer_effect
from pocketbert.quantize import Plan, quantize
from support.client_environments import HOME, MEDIAPIPE, ROOT, build
from support.clients import LABELS as TASK_LABELS
from support.clients import TEXTS, largest, own
from support.tiny import tiny_classifier
from support.tiny_tokenizers import vocabulary, write_tokenizer, write_wordpiece

Ask = Callable[..., Any]
LABELS = ("negative", "not so sure", "très bien")
LENGTH = 48
CLASSIFY, EMBED = TASKS[TaskName.TEXT_CLASSIFICATION], TASKS[TaskName.FEATURE_EXTRACTION]

# the tokenizer

LETTERS = (
    "abcdefgh ABC.,!?'-#[]_$ \t\n",
    "aàâäÀÉßſıİ жЯЩ ",
    "中文字㐀豈、。！ ab",
    "😀👍\u200d\ufe0f☕ ab.",
    "".join(map(chr, range(1, 0x250))),
    "".join(map(chr, range(0x250, 0x3100))),
)
NASTY = (
    "", " ", "\n", "[MASK] [CLS] [SEP] [PAD] [UNK] [unused1] ##ing", "a\0b", "a\vb\fc\x01d\x7fe",
    "a\u00a0b\u3000c\u200bd\u200de\ufefff", "x" * 100, "x" * 101, "п" * 50 + " " + "п" * 51, "word " * 300,
    "\ufffd \ud7ff \ue000", "ﬁ ǅ İ ı ſ K", "e\u0301 \u0301 \u0301a", "한국어 한국어", "👨‍👩‍👧‍👦 🇩🇪 ☕️",
    "\U0001f600\U00020000\U0002a6df\U0002ceb0\U00030000", "don't can't U.S.A. $5.00 a_b ~`^|<>=+",
    "\r\n\t\u2028x\u2029y\x85z", "\u1b4e\U00010ed0\U0001e5ff", "٣ ४ ５ Ａｂｃ。「」",
)  # fmt: skip


class Ids(torch.nn.Module):
    """Gives the ids back, so that the client's tokenizer can be read out; the third input is not used."""

    def forward(self, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"ids": (inputs["input_ids"] * inputs["attention_mask"]).to(torch.float32)}


def write_ids_model(path: Path, length: int, vocabulary: bytes) -> Path:
    sample = {n: torch.full((1, length), i, dtype=torch.int32) for i, n in enumerate(tflite.MEDIAPIPE_INPUTS)}
    tflite._convert({"ids": (Ids().eval(), sample)}, path)
    path.write_bytes(write_metadata(path.read_bytes(), MediaPipeInfo("ids", "", "1", "", (), vocabulary)))
    return path


def many_texts() -> list[str]:
    draw = random.Random(0)
    texts = [*SENTENCES, *ASCII_SENTENCES, *UNICODE_SENTENCES, *NASTY]
    for _ in range(1500):
        letters = draw.choice(LETTERS) + draw.choice(LETTERS)
        texts.append("".join(draw.choices(letters, k=draw.randrange(1, 60))))
    for _ in range(300):
        points = (draw.randrange(1, 0x110000) for _ in range(30))
        texts.append("".join(chr(c) for c in points if not 0xD800 <= c < 0xE000))
    return texts


def test_the_emulation_gives_mediapipes_ids(tmp_path: Path, mediapipe: Ask) -> None:
    write_tokenizer(tmp_path)
    extra = ["café", "cafe", "中", "##中", "😀", "é", "##é", "п", "##п", "。", "\u00a0", "ß", "##ı"]
    with (tmp_path / "vocab.txt").open("a", encoding="utf-8") as stream:
        stream.writelines(f"{token}\n" for token in extra)
    content = (tmp_path / "vocab.txt").read_bytes()
    model = write_ids_model(tmp_path / "ids.tflite", LENGTH, content)
    texts = many_texts()
    rows = zip(
        texts, MediaPipeTokenizer(content, LENGTH).encode(texts), mediapipe("read_ids", model, texts), strict=True
    )
    wrong = [text for text, row, seen in rows if row.ids.tolist() != seen]
    assert not wrong, f"{len(wrong)} of {len(texts)}: {wrong[:3]!r}"


def test_every_code_point_is_cut_as_mediapipe_cuts_it(tmp_path: Path, mediapipe: Ask) -> None:
    """Between two letters it is a blank, a word of its own, or part of the word."""
    content, length = b"[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n##a\nb\n", 40_000
    model = write_ids_model(tmp_path / "ids.tflite", length, content)
    points = [chr(c) for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000]
    texts = [" ".join(f"a{c}a b" for c in points[i : i + 9000]) for i in range(0, len(points), 9000)]
    rows = MediaPipeTokenizer(content, length).encode(texts)
    for text, row, seen in zip(texts, rows, mediapipe("read_ids", model, texts), strict=True):
        assert seen == row.ids.tolist(), repr(text[:20])


# files of one model


def write_file(
    model: Any, family: Any, task: Any, folder: Path, labels: Sequence[str] = (), length: int = LENGTH
) -> tuple[Path, MediaPipeInfo]:
    """The file for MediaPipe of a model whose tokenizer is in the folder, and the information in it."""
    path, content = folder / "mediapipe.tflite", (folder / "vocab.txt").read_bytes()
    tflite.export_mediapipe(prepare(model, family, task, Format.TFLITE), family, task, length, path)
    pooling = "" if labels else "Mean of the token states."
    info = MediaPipeInfo(f"tiny {family.name}", "Random.", "1", "tests", tuple(labels), content, pooling)
    path.write_bytes(write_metadata(path.read_bytes(), info))
    assert metadata_problems(path.read_bytes(), labels, content) == []
    return path, info


def probabilities(model: Any, tokenizer: TextTokenizer, texts: Sequence[str]) -> np.ndarray:
    """What the untouched torch model answers to each text alone, unpadded."""
    with torch.inference_mode():
        logits = [model(input_ids=torch.from_numpy(row.ids[None])).logits for row in tokenizer.encode(list(texts))]
    return torch.softmax(torch.cat(logits), -1).numpy()


def scores(rows: Any) -> np.ndarray:
    return np.array([row["scores"] for row in rows])


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """`classifier(family, **config changes)`: model in torch, folder, MediaPipe file, and the information in it."""

    @cache
    def build_file(name: str, **changes: Any) -> tuple[Any, Path, Path, MediaPipeInfo]:
        folder = tmp_path_factory.mktemp(f"mediapipe-{name}")
        write_tokenizer(folder)
        assert explain_refusal(folder, CLASSIFY.name, pair=False) is None
        model = tiny_classifier(name, 2, LABELS, **changes)
        logits = np.log(probabilities(model, TextTokenizer(folder, LENGTH), ASCII_SENTENCES))
        with torch.no_grad():  # make every label likely: a random head answers the same to all texts
            model.classifier.bias -= torch.from_numpy(logits.mean(0))
            model.classifier.weight *= 10
            model.classifier.bias *= 10
        return model, folder, *write_file(model, find_family(name), CLASSIFY, folder, LABELS)

    return build_file


@pytest.mark.parametrize("name", ["bert", "distilbert"])
def test_the_classifier_gives_torchs_probabilities(
    name: str, classifier: Callable[..., Any], mediapipe: Ask, tmp_path: Path
) -> None:
    model, folder, path, info = classifier(name)
    rows = mediapipe("classify", path, ASCII_SENTENCES)
    assert rows[0]["names"] == list(LABELS)
    expected = probabilities(model, TextTokenizer(folder, LENGTH), ASCII_SENTENCES)
    assert len(set(expected.argmax(-1))) == len(LABELS)  # else equal labels would prove nothing
    np.testing.assert_allclose(scores(rows), expected, atol=1e-5)
    # beyond ASCII the ids are MediaPipe's own, and the emulation knows them
    expected = probabilities(model, MediaPipeTokenizer(info.vocabulary, LENGTH), UNICODE_SENTENCES)
    np.testing.assert_allclose(scores(mediapipe("classify", path, UNICODE_SENTENCES)), expected, atol=1e-5)


def test_int8_gives_the_same_labels_in_both_orders(
    classifier: Callable[..., Any], mediapipe: Ask, tmp_path: Path
) -> None:
    _, _, path, info = classifier("bert", intermediate_size=4096)
    plain, small = scores(mediapipe("classify", path, ASCII_SENTENCES)), tmp_path / "int8.tflite"
    quantize(path, small, Plan(Format.TFLITE, Scheme.INT8))  # drops the packed files
    assert metadata_problems(small.read_bytes(), LABELS, info.vocabulary)
    assert isinstance(mediapipe("classify", small, ["ok"]), str), "refused as by the gate"
    packed = schema.Model.GetRootAs(small.read_bytes(), 0)
    assert any(packed.Buffers(i).Offset() > 1 for i in range(packed.BuffersLength()))  # weights lie behind
    answers = []
    for content in (pack_files(small.read_bytes(), info.files), write_metadata(small.read_bytes(), info)):
        assert metadata_problems(content, LABELS, info.vocabulary) == []
        (tmp_path / "one.tflite").write_bytes(content)
        answers.append(scores(mediapipe("classify", tmp_path / "one.tflite", ASCII_SENTENCES)))
    np.testing.assert_array_equal(*answers)
    assert np.abs(answers[0] - plain).max() < 0.05
    top = np.sort(plain, -1)
    sure = top[:, -1] - top[:, -2] > 0.1  # a random model is often undecided
    assert sure.sum() >= 30
    assert (answers[0].argmax(-1) == plain.argmax(-1))[sure].all()
    # and MediaPipe's own TFLite computes this file as LiteRT does
    np.testing.assert_allclose(run_litert(small, MediaPipeTokenizer(info.vocabulary, LENGTH)), answers[0], atol=1e-5)


def run_litert(path: Path, tokenizer: TextTokenizer) -> np.ndarray:
    """What LiteRT answers to the sentences, padded as MediaPipe pads them."""
    from ai_edge_litert.interpreter import Interpreter

    runner = Interpreter(model_path=str(path)).get_signature_runner()
    rows = [tokenizer.pad([row], LENGTH) for row in tokenizer.encode(ASCII_SENTENCES)]
    feeds = [{name: value.astype(np.int32) for name, value in row.items()} for row in rows]
    return np.concatenate([runner(**feed)[tflite.PROBABILITIES] for feed in feeds])


def test_the_embedder_gives_torchs_embeddings(tmp_path: Path, mediapipe: Ask) -> None:
    write_tokenizer(tmp_path)
    model = tiny_classifier("bert", 2, LABELS).bert
    path, _ = write_file(model, find_family("bert"), EMBED, tmp_path)
    rows = TextTokenizer(tmp_path, LENGTH).encode(list(ASCII_SENTENCES))
    with torch.inference_mode():
        means = [model(input_ids=torch.from_numpy(r.ids[None])).last_hidden_state[0].mean(0) for r in rows]
    expected = torch.nn.functional.normalize(torch.stack(means)).numpy()
    np.testing.assert_allclose(mediapipe("embed", path, ASCII_SENTENCES), expected, atol=1e-5)


# Chinese vocabularies: MediaPipe's ids and answers are ours

CHINESE = "的一是不了人我在有他这中大来上个国和也子时道说出而要于就下得可你年生自会那后能对着事其里所去行过家十用发天如然作方成者多日都三小军二无同么经法当起与好看学进种将还分此心前面又定见只主没公从"
CHINESE_TEXTS = (
    "我看这个国家的天", "他说：“你好！”", "大家都在学法，也不去看。", "我用 PocketBERT 3 年了", "这是 the film 的中文",
    "𠮷家", "没有见过的字：龘靐", "好，好；好？好！", "ＡＢＣ１２３ 全角", "2026年11月23日",
)  # fmt: skip


@pytest.mark.parametrize("name", ["bert-wwm", "macbert", "ernie"])
def test_the_answers_to_chinese_texts_are_torchs(name: str, tmp_path: Path, mediapipe: Ask) -> None:
    family, tokens = find_family(name), [*vocabulary(0), *CHINESE, *(f"##{c}" for c in CHINESE), *"，。！？：；“”"]
    size = write_wordpiece(tmp_path, tokens)
    assert explain_refusal(tmp_path, CLASSIFY.name, pair=False) is None
    model = tiny_classifier(family.graph, 2, LABELS, vocab_size=size)
    with torch.no_grad():
        model.classifier.weight *= 10
    path, info = write_file(model, family, CLASSIFY, tmp_path, LABELS)
    ours, theirs = TextTokenizer(tmp_path, LENGTH), MediaPipeTokenizer(info.vocabulary, LENGTH)
    ids, seen = ([row.ids.tolist() for row in t.encode(list(CHINESE_TEXTS))] for t in (ours, theirs))
    assert ids == seen
    expected = probabilities(model, ours, CHINESE_TEXTS)
    assert np.std(expected, 0).max() > 1e-3  # else equal answers would prove nothing
    np.testing.assert_allclose(scores(mediapipe("classify", path, CHINESE_TEXTS)), expected, atol=1e-5)
    file = tmp_path / "tokenizer.json"
    content = json.loads(file.read_text("utf-8"))
    content["normalizer"]["lowercase"] = False
    file.write_text(json.dumps(content), "utf-8")
    assert "lower-cases every text" in str(explain_refusal(tmp_path, CLASSIFY.name, pair=False))


# packed folders

FILES = {"tflite/mediapipe.tflite": 1e-5, "tflite/mediapipe_int8.tflite": 1e-4}


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("task", [CLASSIFY.name, EMBED.name])
def test_files_of_packed_folders_answer_as_the_toolkit(
    task: TaskName, file: str, phones: Callable[[str], Path], mediapipe: Ask, measured: Callable[..., None]
) -> None:
    phone = phones(task)
    expected = own(phone, file, TEXTS)
    if task is CLASSIFY.name:
        rows = mediapipe("classify", phone / file, TEXTS)
        assert rows[0]["names"] == list(TASK_LABELS[task])
        apart = largest(scores(rows), [list(answer.values()) for answer in expected])
    else:
        apart = largest(mediapipe("embed", phone / file, TEXTS), expected)
        card = (phone / "README.md").read_text(encoding="utf-8")
        assert f'TextEmbedder.createFromFile(context, "{list(FILES)[-1]}")' in card
    assert apart < FILES[file]
    measured("MediaPipe", task, apart, file)


@pytest.mark.skipif(sys.platform != "linux", reason="contacts are watched on Linux")
def test_limit_it_reports_to_google_when_a_task_is_closed(phones: Callable[[str], Path], tmp_path: Path) -> None:
    phone = phones(CLASSIFY.name)
    seen, question = tmp_path / "seen.json", tmp_path / "question.json"
    question.write_text(json.dumps({"model": str(phone / next(iter(FILES))), "texts": ["the film was good"]}))
    python, script = build("mediapipe", MEDIAPIPE), Path(__file__).with_name("client.py")
    watched = [sys.executable, ROOT / "scripts" / "contacts.py", "--json", seen, "--"]
    subprocess.run([*watched, python, script, "classify", question, tmp_path / "answer.json"], check=False)
    report = json.loads(seen.read_text())
    assert (report["exit_code"], report["contacts"][-1]) == (0, "name lookup of play.googleapis.com")
    assert "metrics of their use to Google" in (phone / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("task", [t for t in TASKS if t not in (CLASSIFY.name, EMBED.name)])
def test_limit_other_tasks_have_no_file_and_the_folder_says_why(task: str, phones: Callable[[str], Path]) -> None:
    phone = phones(task)
    reason = read_artefacts(phone).absent["tflite/mediapipe.tflite"]
    assert reason.startswith("MediaPipe ")
    assert reason in (phone / "README.md").read_text(encoding="utf-8")
    assert not list((phone / "tflite").glob("mediapipe*"))


# the demo's folder, real weights


@pytest.fixture(scope="module")
def demo() -> Path:
    """The folder that `make demo` packs; made here where nobody has made it yet."""
    run = ROOT / "runs" / "demo"
    HOME.mkdir(exist_ok=True)
    with FileLock(HOME / ".demo.lock"):
        if not (run / "phone" / "tflite" / "mediapipe.tflite").is_file():
            command = [sys.executable, "-m", "pocketbert.cli.main", "demo", "-o", str(run), "--overwrite"]
            subprocess.run(command, check=True, capture_output=True)
    return run / "phone"


def ask_here(phone: Path, file: str, texts: Sequence[str]) -> np.ndarray:
    return np.array([list(p.scores.values()) for p in pocketbert.load(phone, file=file).predict(list(texts))])


def test_the_demo_s_int8_file_gives_the_toolkits_labels(demo: Path, mediapipe: Ask) -> None:
    file = "tflite/mediapipe_int8.tflite"
    seen = scores(mediapipe("classify", demo / file, ASCII_SENTENCES)).argmax(-1)
    assert seen.tolist() == ask_here(demo, file, ASCII_SENTENCES).argmax(-1).tolist()
    assert len(set(seen)) > 5  # a file that always says the same would agree as well


def test_the_demo_s_card_states_what_mediapipe_really_changes(demo: Path, mediapipe: Ask) -> None:
    file = "tflite/mediapipe.tflite"
    effect = measure_tokenizer_effect(demo / file, demo, CLASSIFY)
    seen, ours = scores(mediapipe("classify", demo / file, UNICODE_SENTENCES)), ask_here(demo, file, UNICODE_SENTENCES)
    assert effect.scores == np.mean(np.abs(seen - ours).max(-1) > 1e-5)
    assert effect.labels == np.mean(seen.argmax(-1) != ours.argmax(-1))
    assert effect.summary in (demo / "README.md").read_text()
