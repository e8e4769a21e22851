"""The card's code: Python is run or compiled, Swift is parsed, prompts and cuts are those of the folder. No Swift was compiled."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tree_sitter
import tree_sitter_swift
from typer.testing import CliRunner

import pocketbert
from pocketbert.cli.main import app
from pocketbert.core.artefacts import Artefacts, FileRecord, Kind, read_artefacts
from pocketbert.core.families import family_of
from pocketbert.core.predict.scores import Confidence
from pocketbert.core.tasks import TASKS, ScoreFunction, TaskName
from pocketbert.core.types import Format, Scheme
from pocketbert.pipeline.phone.card import CardFacts, render_card
from support.card_folders import folder, record
from support.published import PROMPTS, write_cross_encoder, write_sentence_model
from support.tiny import BASIC

E5 = {"query": "query: ", "passage": "passage: "}
AWKWARD = {'say "\\(x)" `y`': 'tab\t, line\n, "quotes", \\(back) \\, é 👍 \u2028 $x ${y} #{z}'}
SWIFT = tree_sitter.Parser(tree_sitter.Language(tree_sitter_swift.language()))
SOURCE = FileRecord(path="ios/Tokenizer.swift", sha256="0" * 64, bytes=1, kind=Kind.TOOL)
TASK_NAMES = list(TASKS)


def card(artefacts: Artefacts) -> str:
    return render_card(artefacts, CardFacts(family_of("bert"), "unknown"))


def card_of(task: TaskName, pair: bool = False, family: str = "bert", **processing: Any) -> str:
    """The card of a folder with some settings, and with the sources of its tokenizer in Swift."""
    made = folder(task)
    changes = {"family": family, "pair": made.pair or pair, "files": [*made.files, SOURCE]}
    changes["processing"] = made.processing.model_copy(update=processing)
    return card(made.model_copy(update=changes))


def codes(text: str, *languages: str) -> list[str]:
    """The code in some languages; in all if none is named."""
    return re.findall(rf"```(?:{'|'.join(languages) or '[a-z]+'})\n(.*?)\n```", text, re.S)


# every language


@pytest.mark.parametrize("task", TASK_NAMES)
def test_every_code_names_the_outputs_that_decide_and_python_compiles(task: TaskName) -> None:
    text = card(folder(task))
    for language in ("kotlin", "swift"):
        own = [c for c in codes(text, language) if "MLModel" not in c and "mediapipe" not in c]
        assert own
        for name in TASKS[task].answer:
            assert all(f'"{name}"' in code for code in own), (language, name)
    for code in codes(text, "python"):
        compile(code, "card", "exec")
    assert len(codes(text, "kotlin", "swift", "js", "python")) * 2 == text.count("```")


@pytest.mark.parametrize("family", BASIC)
def test_code_that_runs_onnx_runtime_switches_its_reports_off_before(family: str) -> None:
    first_use = re.compile(
        r"import .*onnxruntime, |SentenceTransformer\(|ort\.InferenceSession|OrtEnvironment\.get|try ORT"
    )
    for task in TASK_NAMES:
        text = card(folder(task).model_copy(update={"family": family}))
        using = [(code, use) for code in codes(text) if (use := first_use.search(code))]
        assert len(using) >= 3  # Python, Kotlin, Swift
        for code, use in using:
            assert "ORT_DISABLE_TELEMETRY" in code[: use.start()], code
        assert ("goo.gle/mediapipe-privacy" in text) == ("MediaPipe Tasks, `com.google" in text)


@pytest.mark.parametrize(("family", "there"), [("bert", True), ("albert", False)])
def test_code_has_no_setting_with_which_the_engine_cannot_open_the_file(family: str, there: bool) -> None:
    made = folder(TaskName.TEXT_CLASSIFICATION)
    int8 = [r for r in made.models() if r.path == "onnx/model_int8.onnx"]
    text = card(made.model_copy(update={"family": family, "files": int8}))
    assert ("x64quantprecision" in text) is there
    assert ('InferenceSession("onnx/model_int8.onnx")' in text) is not there
    assert ("readBytes() }, options)" in text) is there
    fp32 = [r for r in made.models() if r.path == "onnx/model.onnx"]  # has no int8 products
    assert "x64quantprecision" not in card(made.model_copy(update={"family": family, "files": fp32}))


def test_a_family_or_a_scheme_that_javascript_does_not_know_gets_code_all_the_same() -> None:
    text = card_of(TaskName.TOKEN_CLASSIFICATION, family="mobilebert")
    assert "whose list for token-classification has no mobilebert" in text
    assert "onnxruntime-node" in text
    task = TaskName.TEXT_CLASSIFICATION
    odd = record(task, Format.ONNX, Scheme.W8, "onnx/model_w8.onnx")
    text = card(folder(task).model_copy(update={"files": [odd]}))
    assert '{ dtype: "fp32", model_file_name: "model_w8", session_options: precise }' in text


def test_pairs_and_questions_without_an_answer() -> None:
    text = card_of(TaskName.TEXT_CLASSIFICATION, pair=True)
    assert '("your text", "the second text")' in text
    assert 'text_pair: "the second text"' in text
    text = card_of(TaskName.QUESTION_ANSWERING, null_answers=True)
    assert 'context[best[1]:best[2]] if best[0] >= min(nulls) else ""' in text


@pytest.mark.parametrize("pair", [False, True])
def test_a_reranker_answers_with_the_sigmoid(pair: bool) -> None:
    text = card_of(TaskName.REGRESSION, pair, score=ScoreFunction.SIGMOID)
    plain = card_of(TaskName.REGRESSION, pair)
    for words, count in {"np.exp(-run(e)": 2, "Math.exp(-logits.data[0])": 1, "1 / (1 + exp(-logit))": 2}.items():
        assert (text.count(words), plain.count(words)) == (count, 0), words
    for code in codes(text, "swift"):
        assert find_errors(code) == [], code


@pytest.mark.parametrize("pair", [False, True])
@pytest.mark.parametrize("task", TASK_NAMES)
def test_the_side_of_the_cut(task: TaskName, pair: bool) -> None:
    text, right = (card_of(task, pair, truncation_side=side) for side in ("left", "right"))
    reads_windows = task is TaskName.QUESTION_ANSWERING
    told = {', direction="left")': 2, ", keepsEnd: true)": 2, "it cuts off the end of a text of more than 48 tokens": 1}
    for words, count in told.items():
        assert (text.count(words), right.count(words)) == (0 if reads_windows else count, 0), words


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_session_of_onnxruntime_cuts_texts_too(side: str) -> None:
    text = card_of(TaskName.TOKEN_CLASSIFICATION, family="mobilebert", truncation_side=side)
    assert 'const inputs = tokenizer("your text", { truncation: true });' in text
    assert ("it cuts off the end of a text of more than 48 tokens" in text) is (side == "left")


# prompts


def encode_in_python(code: str, *texts: str, **arguments: str) -> tuple[Any, ...]:
    """What the code gives to the tokenizer."""
    [lines] = re.findall(r"^prompts = .*?^    return [^\n]*\n", code, re.M | re.S)

    class Given:
        def encode(self, *given: str) -> tuple[str, ...]:
            return given

    names: dict[str, Any] = {"tokenizer": Given()}
    exec(lines, names)
    return names["encode"](*texts, **arguments)  # type: ignore[no-any-return]


def read_swift(literal: str) -> str:
    """The text of a Swift literal without interpolation."""
    assert not re.search(r"(?<!\\)(?:\\\\)*\\\(", literal)
    escaped = r'\\(?:u\{(\w+)\}|(["\\]))'
    return re.sub(escaped, lambda m: chr(int(m[1], 16)) if m[1] else m[2], literal.removeprefix('"')[:-1])


@pytest.mark.parametrize("prompts", [E5, AWKWARD], ids=["e5", "awkward"])
@pytest.mark.parametrize("default", [True, False])
@pytest.mark.parametrize("pair", [False, True])
def test_prompts_in_the_code(prompts: dict[str, str], default: bool, pair: bool) -> None:
    name = next(iter(prompts)) if default else None
    before = prompts[name] if name else ""
    text = card_of(TaskName.FEATURE_EXTRACTION, pair, prompts=prompts, default_prompt=name)
    second = ("b",) if pair else ()
    python = [c for c in codes(text, "python") if "import json" in c]
    assert len(python) == 2
    for code in python:
        assert encode_in_python(code, "a", *second) == (before + "a", *second)
        assert encode_in_python(code, "a", *second, prompt="x") == ("xa", *second)
    for code in codes(text, "python"):
        compile(code, "card", "exec")
        assert ("prompt=NAME" in code or "prompt_name=NAME" in code) == (code not in python)
    [js] = [c for c in codes(text, "js") if "@pocketbert" not in c]  # its own runtime reads the folder's prompts
    [table] = re.findall(r"^const prompts = (.*);$", js, re.M)
    assert json.loads(table) == prompts
    shown = f"prompts[{json.dumps(name)}]" if name else '""'
    assert f"const behind = (text, prompt = {shown}) => prompt + text;" in js
    assert 'behind("your text")' in js
    swift = codes(text, "swift")
    assert len(swift) == 2
    for code in swift:
        assert find_errors(code) == [], code
        [table] = re.findall(r"static let prompts: \[String: String\] = \[(.*)\]$", code, re.M)
        literals = [read_swift(x) for x in re.findall(r'"(?:\\.|[^"\\])*"', table)]
        assert dict(zip(literals[::2], literals[1::2], strict=True)) == prompts
        [given] = re.findall(r"prompt: String = (\"(?:\\.|[^\"\\])*\")\) throws", code)
        assert read_swift(given) == before
        assert ("prompt + first, second: second, " if pair else "prompt + text, ") in code


def test_prompts_of_other_tasks() -> None:
    task = TaskName.QUESTION_ANSWERING  # windows have no prompts
    text = card_of(task, prompts=E5, default_prompt="query")
    assert codes(text, "python", "js") == codes(card(folder(task)), "python", "js")
    for code in codes(card_of(TaskName.FILL_MASK, prompts=E5, default_prompt="query"), "python", "js"):
        assert "pocketbert" in code or re.search(r"\b(encode|behind)\(f?[`\"]your text with a ", code), code


# Swift


def find_errors(code: str) -> list[str]:
    """Pieces of code that are no Swift, or before which something is missing."""
    found, waiting = [], [SWIFT.parse(code.encode()).root_node]
    while waiting:
        node = waiting.pop()
        if node.is_error or node.is_missing:
            found.append(code.encode()[node.start_byte :][:60].decode(errors="replace"))
        waiting += node.children
    return found


@pytest.mark.parametrize("pair", [False, True])
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("task", TASK_NAMES)
def test_swift_is_parsed_and_says_that_it_was_never_compiled(task: TaskName, side: str, pair: bool) -> None:
    assert find_errors("func answer(ids: [Int] throws -> Int { return 1 }")
    made = folder(task, padding_side=side)
    made = made.model_copy(update={"pair": made.pair or pair})
    onnx = made.model_copy(update={"files": [r for r in made.models() if r.format is Format.ONNX]})
    with_sources = made.model_copy(update={"files": [*made.files, SOURCE]})
    warm = [r.model_copy(update={"confidence": Confidence(temperature=1.5, unknown=0.7)}) for r in made.models()]
    choices = [(made, 2), (onnx, 1), (with_sources, 2)]
    choices += [(made.model_copy(update={"files": warm}), 2)] if task is TaskName.TEXT_CLASSIFICATION else []
    for artefacts, count in choices:
        found = re.findall(r"^Swift, with ([^\n]*):\n\n```swift\n(.*?)\n```", card(artefacts), re.M | re.S)
        assert len(found) == count
        for lead, code in found:
            assert "parsed, but never compiled" in lead
            assert code.startswith("import ")
            assert find_errors(code) == [], code
            own = "tokenizer = try Tokenizer(" in code, "tokenizer is in `ios/`" in lead
            assert own == (artefacts is with_sources, artefacts is with_sources)


# Python with only ONNX Runtime, run on folders with prompts, with a cut on the left, and with a reranker's sigmoid

LONG = " ".join(["play music", "stop the light", "a good film", "she was happy"] * 20)
CHECKPOINTS: dict[str, Callable[[Path], Path]] = {
    "encoder": lambda f: write_sentence_model(f, PROMPTS, "query"),
    "reranker": write_cross_encoder,
}
TEXTS: dict[str, list[tuple[str, ...]]] = {
    "encoder": [("a good film",), (LONG,)],
    "reranker": [("play music", "stop the light"), (LONG, LONG), ("a good film", LONG)],
}


@pytest.fixture(scope="module")
def exported_phone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`exported_phone(kind)`: an artefact folder with the fp32 ONNX file; not to be changed."""

    @cache
    def build(kind: str) -> Path:
        root = tmp_path_factory.mktemp(kind)
        model = str(CHECKPOINTS[kind](root / "model"))
        options = ["-m", model, "-o", str(root / "phone"), "--format", "onnx", "--scheme", "fp32"]
        done = CliRunner().invoke(app, ["export", *options])
        assert done.exit_code == 0, done.output
        return root / "phone"

    return build


@pytest.mark.parametrize("kind", CHECKPOINTS)
@pytest.mark.parametrize("side", ["right", "left"])
def test_python_answers_as_the_toolkit(
    kind: str, side: str, exported_phone: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    phone = Path(shutil.copytree(exported_phone(kind), tmp_path / "phone"))
    listed = json.loads((phone / "artifacts.json").read_text())
    listed["processing"]["truncation_side"] = side
    listed["pair"] = kind == "reranker"  # without data, nothing says that inputs are pairs
    (phone / "artifacts.json").write_text(json.dumps(listed))
    lead = r"^Python, with only ONNX Runtime[^\n]*:\n\n```python\n(.*?)\n```"
    [code] = re.findall(lead, card(read_artefacts(phone)), re.M | re.S)
    monkeypatch.chdir(phone)
    model = pocketbert.load(phone, file="onnx/model.onnx", threads=1)
    for given in TEXTS[kind]:
        own, text = code, given if len(given) > 1 else given[0]
        for example, one in zip(("your text", "the second text"), given, strict=False):
            assert own.count(json.dumps(example)) == 1
            own = own.replace(json.dumps(example), json.dumps(one))
        names: dict[str, Any] = {}
        exec(own, names)
        assert names["e"].ids == model.tokenizer.encode([text])[0].ids.tolist()
        [wanted] = model.predict([text])
        value = wanted.vector if kind == "encoder" else wanted.value
        np.testing.assert_allclose(np.asarray(names["answer"], np.float64), value, atol=2e-6)
        if kind == "encoder":
            other = names["run"](names["encode"](text, prompt=names["prompts"]["passage"]))["sentence_embedding"][0]
            np.testing.assert_allclose(other, model.predict([text], prompt="passage")[0].vector, atol=2e-6)
