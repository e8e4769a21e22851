"""Prompts, the side of the cut, a reranker's sigmoid and tags without prefixes, in the card's text and code."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import tree_sitter
import tree_sitter_swift

from pocketbert.core.artefacts import Artefacts, FileRecord, Kind
from pocketbert.core.families import family_of
from pocketbert.core.predict.sentence_settings import Similarity
from pocketbert.core.tasks import ScoreFunction, TaskName
from pocketbert.pipeline.phone.card import CardFacts, render_card
from support.card_folders import folder

E5 = {"query": "query: ", "passage": "passage: "}
AWKWARD = {'say "\\(x)" `y`': 'tab\t, line\n, "quotes", \\(back) \\, é 👍 \u2028 $x ${y} #{z}'}
PARSER = tree_sitter.Parser(tree_sitter.Language(tree_sitter_swift.language()))
SOURCE = FileRecord(path="ios/Tokenizer.swift", sha256="0" * 64, bytes=1, kind=Kind.TOOL)


def changed(task: TaskName, pair: bool = False, family: str = "bert", labels: Any = None, **processing: Any) -> str:
    """The card of a folder with some settings, and with the sources of its tokenizer in Swift."""
    made = folder(task)
    update: dict[str, Any] = {"processing": made.processing.model_copy(update=processing), "family": family}
    update |= {"pair": made.pair or pair, "files": [*made.files, SOURCE]} | ({"labels": labels} if labels else {})
    return card(made.model_copy(update=update))


def card(artefacts: Artefacts) -> str:
    return render_card(artefacts, CardFacts(family_of("bert"), "unknown"))


def codes(text: str, *languages: str) -> list[str]:
    """The code in some languages."""
    return re.findall(rf"```(?:{'|'.join(languages)})\n(.*?)\n```", text, re.S)


def of_python(code: str, *texts: str, **arguments: str) -> tuple[Any, ...]:
    """What the code gives to the tokenizer."""
    [lines] = re.findall(r"^prompts = .*?^    return [^\n]*\n", code, re.M | re.S)

    class Given:
        def encode(self, *given: str) -> tuple[str, ...]:
            return given

    names: dict[str, Any] = {"tokenizer": Given()}
    exec(lines, names)
    return names["encode"](*texts, **arguments)  # type: ignore[no-any-return]


def of_swift(literal: str) -> str:
    """The text of a Swift literal without interpolation."""
    assert not re.search(r"(?<!\\)(?:\\\\)*\\\(", literal)
    return re.sub(
        r'\\(?:u\{(\w+)\}|(["\\]))', lambda m: chr(int(m[1], 16)) if m[1] else m[2], literal.removeprefix('"')[:-1]
    )


@pytest.mark.parametrize("prompts", [E5, AWKWARD], ids=["e5", "awkward"])
@pytest.mark.parametrize("default", [True, False])
@pytest.mark.parametrize("pair", [False, True])
def test_prompts_in_the_code(prompts: dict[str, str], default: bool, pair: bool) -> None:
    name = next(iter(prompts)) if default else None
    before = prompts[name] if name else ""
    text = changed(TaskName.FEATURE_EXTRACTION, pair, prompts=prompts, default_prompt=name)
    second = ("b",) if pair else ()
    python = [c for c in codes(text, "python") if "import json" in c]
    assert len(python) == 2
    for code in python:
        assert of_python(code, "a", *second) == (before + "a", *second)
        assert of_python(code, "a", *second, prompt="x") == ("xa", *second)
        compile(code, "card", "exec")
    for code in codes(text, "python"):
        assert ("prompt=NAME" in code or "prompt_name=NAME" in code) == (code not in python)
    [js] = codes(text, "js")
    [table] = re.findall(r"^const prompts = (.*);$", js, re.M)
    assert json.loads(table) == prompts
    shown = f"prompts[{json.dumps(name)}]" if name else '""'
    assert f"const behind = (text, prompt = {shown}) => prompt + text;" in js
    assert 'behind("your text")' in js
    swift = codes(text, "swift")
    assert len(swift) == 2
    for code in swift:
        assert not PARSER.parse(code.encode()).root_node.has_error, code
        [table] = re.findall(r"static let prompts: \[String: String\] = \[(.*)\]$", code, re.M)
        literals = [of_swift(x) for x in re.findall(r'"(?:\\.|[^"\\])*"', table)]
        assert dict(zip(literals[::2], literals[1::2], strict=True)) == prompts
        [given] = re.findall(r"prompt: String = (\"(?:\\.|[^\"\\])*\")\) throws", code)
        assert of_swift(given) == before
        assert ("prompt + first, second: second, " if pair else "prompt + text, ") in code


def test_prompts_in_the_text() -> None:
    text = changed(TaskName.FEATURE_EXTRACTION, prompts=E5, default_prompt="query")
    assert '`query` (`"query: "`), `passage` (`"passage: "`) (`processing.prompts`' in text
    assert "by default `query`" in text
    assert "by default no prompt" in changed(TaskName.FEATURE_EXTRACTION, prompts=E5)
    many = {f"n{i}": "x" * 1000 for i in range(100)}
    text = changed(TaskName.FEATURE_EXTRACTION, prompts=many)
    [line] = [x for x in text.splitlines() if x.startswith("Prompts ")]
    assert len(line) < 10_000
    assert ", and so on" in line


@pytest.mark.parametrize("task", [TaskName.QUESTION_ANSWERING, TaskName.FILL_MASK])
def test_prompts_of_other_tasks(task: TaskName) -> None:
    plain, text = card(folder(task)), changed(task, prompts=E5, default_prompt="query")
    if task is TaskName.QUESTION_ANSWERING:  # windows have no prompts
        assert codes(text, "python", "js") == codes(plain, "python", "js")
        return
    for code in codes(text, "python", "js"):
        assert "pocketbert" in code or re.search(r"\b(encode|behind)\(f?[`\"]your text with a ", code), code


@pytest.mark.parametrize("task", list(TaskName))
@pytest.mark.parametrize("pair", [False, True])
def test_the_side_of_the_cut(task: TaskName, pair: bool) -> None:
    text, right = (changed(task, pair, truncation_side=side) for side in ("left", "right"))
    reads_windows = task is TaskName.QUESTION_ANSWERING
    told = {
        "the beginning of longer texts is cut off": 1,
        ', direction="left")': 2,
        ", keepsEnd: true)": 2,
        "it cuts off the end of a text of more than 48 tokens": 1,
    }
    for words, count in told.items():
        assert (text.count(words), right.count(words)) == (0 if reads_windows else count, 0), words
    other = changed(TaskName.TOKEN_CLASSIFICATION, family="mobilebert", truncation_side="left")
    assert "it cuts no text: of longer ones, keep the last 48 tokens" in other


@pytest.mark.parametrize("pair", [False, True])
def test_a_reranker_answers_with_the_sigmoid(pair: bool) -> None:
    text = changed(TaskName.REGRESSION, pair, score=ScoreFunction.SIGMOID)
    plain = changed(TaskName.REGRESSION, pair)
    assert "The sigmoid of the one logit is the answer" in text
    assert "apply no sigmoid" in plain
    assert "It answers with one number from 0 to 1" in text
    for words, count in {"np.exp(-run(e)": 2, "Math.exp(-logits.data[0])": 1, "1 / (1 + exp(-logit))": 2}.items():
        assert (text.count(words), plain.count(words)) == (count, 0), words
    for code in codes(text, "swift"):
        assert not PARSER.parse(code.encode()).root_node.has_error, code


@pytest.mark.parametrize("similarity", list(Similarity))
def test_what_vectors_are_compared_with(similarity: Similarity) -> None:
    words = {
        "cosine": "the cosine",
        "dot": "dot product",
        "euclidean": "Euclidean distance",
        "manhattan": "differences",
    }
    [line] = [x for x in changed(TaskName.FEATURE_EXTRACTION, similarity=similarity).splitlines() if "compared" in x]
    assert words[similarity] in line


@pytest.mark.parametrize(
    ("labels", "single"), [(["NOUN", "VERB"], True), (["O", "x"], True), (["O", "B-x", "I-x"], False)]
)
def test_tags_without_prefixes(labels: list[str], single: bool) -> None:
    text = changed(TaskName.TOKEN_CLASSIFICATION, labels=labels)
    assert ("each word whose tag is not `O` is a span" in text) == single
    assert ("`B-` starts a span" in text) != single
