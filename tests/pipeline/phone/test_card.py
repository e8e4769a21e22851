"""What the model card says: front matter, the table of files, each task's processing, confidence, prompts and tags."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from pocketbert.benchmarks.report.choice import DeviceTimes
from pocketbert.core.artefacts import Artefacts, FileRecord, Kind, ModelRecord, Requirements
from pocketbert.core.families import family_of
from pocketbert.core.predict.scores import Confidence
from pocketbert.core.predict.sentence_settings import Similarity
from pocketbert.core.tasks import TASKS, ScoreFunction, TaskName
from pocketbert.core.types import Format
from pocketbert.pipeline.formats.snippets import javascript, kotlin
from pocketbert.pipeline.phone.card import CardFacts, render_card
from pocketbert.pipeline.phone.card_figures import CardFigures, render_headline, replace_figures
from support.card_folders import METRICS, folder

ROOT = Path(__file__).parents[3]
POM = "{http://maven.apache.org/POM/4.0.0}properties/{http://maven.apache.org/POM/4.0.0}"
CLASSIFIER = folder(TaskName.TEXT_CLASSIFICATION)
TOKENIZER = FileRecord(path="tokenizer.json", sha256="0" * 64, bytes=500_000, kind=Kind.TOKENIZER)


def card(artefacts: Artefacts, **facts: Any) -> str:
    return render_card(artefacts, CardFacts(family=family_of("bert"), **{"licence": "unknown", **facts}))


def card_of(task: TaskName, labels: list[str] | None = None, pair: bool = False, **processing: Any) -> str:
    """The card of a folder with some settings."""
    made = folder(task)
    changes: dict[str, Any] = {"pair": made.pair or pair, "labels": labels or made.labels}
    return card(made.model_copy(update={**changes, "processing": made.processing.model_copy(update=processing)}))


def with_models(artefacts: Artefacts, **changes: Any) -> Artefacts:
    """The same list with a change of each model file: a value, or a function of the record."""
    models = [
        r.model_copy(update={name: value(r) if callable(value) else value for name, value in changes.items()})
        for r in artefacts.models()
    ]
    return artefacts.model_copy(update={"files": models})


def only(*formats: Format) -> Artefacts:
    return CLASSIFIER.model_copy(update={"files": [r for r in CLASSIFIER.models() if r.format in formats]})


# front matter, which the Hub reads


def front_matter(**facts: Any) -> dict[str, Any]:
    text = card(CLASSIFIER, **facts)
    assert text.startswith("---\n")
    found = yaml.safe_load(text.split("---\n")[1])
    assert isinstance(found, dict)
    return found


def test_the_front_matter_is_complete() -> None:
    told = {"base_model": "org/teacher", "languages": ["en", "no"], "datasets": ["nyu-mll/glue"]}
    assert front_matter(licence="Apache-2.0 (model card of x)", **told) == {
        "license": "apache-2.0",
        "base_model": "org/teacher",
        "language": ["en", "no"],  # not read as a truth value
        "datasets": ["nyu-mll/glue"],
        "pipeline_tag": "text-classification",
        "library_name": "onnx",
        "tags": ["pocketbert", "bert", "onnx", "tflite", "coreml", "int8"],
    }
    assert [*front_matter()] == ["pipeline_tag", "library_name", "tags"]


@pytest.mark.parametrize(
    ("licence", "entries"),
    [
        ("MIT", {"license": "mit"}),
        ("cc-by-nc-4.0, no commercial use", {"license": "cc-by-nc-4.0"}),
        ("My Company Licence 1.0 (internal)", {"license": "other", "license_name": "my-company-licence-1.0"}),
        ("mit (base a), mit (adapter b)", {"license": "mit"}),
        ("mit (base a), gpl-3.0 (adapter b)", {"license": "other", "license_name": "mit-and-gpl-3.0"}),
        ("unknown; ask the publisher of the weights", {}),
        ("", {}),
    ],
)
def test_licences_are_named_as_the_hub_names_them(licence: str, entries: dict[str, str]) -> None:
    assert {k: v for k, v in front_matter(licence=licence).items() if k.startswith("license")} == entries


# the table of which file to take


def rows(artefacts: Artefacts) -> dict[str, list[str]]:
    """Cells of the table by platform: file, MB, least version, tokenizer, dependency."""
    text = card(artefacts).split("## What an app needs")[1].split("## Use")[0]
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    return {cells[0]: cells[1:] for cells in lines[2:]}


def test_every_platform_has_the_file_that_the_folder_has() -> None:
    assert {name: cells[0] for name, cells in rows(CLASSIFIER).items()} == {
        "Android, simplest": "`tflite/mediapipe.tflite`",
        "Android, ONNX Runtime": "`onnx/model.onnx`",
        "Android, LiteRT": "`tflite/model_int8.tflite`",
        "iOS": "`coreml/Model.mlpackage`",
        "Web, Node.js": "`onnx/model.onnx`",
        "Python": "`onnx/model.onnx`",
    }
    small = with_models(CLASSIFIER, default=lambda r: "int8" in r.path)
    assert rows(small)["Web, Node.js"][0] == "`onnx/model_int8.onnx`"
    assert [*rows(only(Format.ONNX))] == ["Android, ONNX Runtime", "iOS, ONNX Runtime", "Web, Node.js", "Python"]
    assert [*rows(only(Format.COREML))] == ["iOS"]
    assert rows(only(Format.TFLITE))["Python"][0] == "`tflite/model_int8.tflite`"


def test_sizes_count_the_tokenizer_of_apps_that_read_it() -> None:
    big = with_models(CLASSIFIER, bytes=17_577_878)
    table = rows(big.model_copy(update={"files": [*big.files, TOKENIZER]}))
    sizes = {name: cells[1] for name, cells in table.items()}
    assert sizes.pop("Android, simplest") == "17.6"
    assert set(sizes.values()) == {"18.1"}


def headline(text: str) -> tuple[str, dict[str, list[str]]]:
    """The bold sentence at the beginning of a card, and the cells of its table by platform."""
    begin, end = (f"<!-- pocketbert headline: {word} -->" for word in ("begin", "end"))
    own = text.split(begin)[1].split(end)[0]
    lines = [line.strip("| ").split(" | ") for line in own.splitlines() if line.startswith("|")]
    return own.strip().splitlines()[0], {cells[0]: cells[1:] for cells in lines[2:]}


@pytest.mark.parametrize("task", list(TASKS))
@pytest.mark.parametrize("form", [None, "entities"])
def test_the_card_begins_with_a_file_for_every_platform_that_has_code(task: TaskName, form: str | None) -> None:
    artefacts = folder(task).model_copy(update={"form": form})
    text = card(artefacts)
    assert re.search(r"^# tiny\n\n<!-- pocketbert headline: begin -->", text, re.M)
    assert {*headline(text)[1]} == {*rows(artefacts)}


def test_the_headline_names_what_the_numbers_justify_and_new_figures_replace_it() -> None:
    scores = {"onnx/model.onnx": 0.9, "onnx/model_int8.onnx": 0.8}

    def scored(record: ModelRecord) -> Any:
        own = record.scores["eval"].model_copy(update={"value": scores.get(record.path, 0.7)})
        return {"eval": own}

    small = with_models(only(Format.ONNX), scores=scored, default=lambda r: "int8" in r.path)
    taken, table = headline(card(small))
    assert taken == "**Take `onnx/model.onnx` on Android, ONNX Runtime; iOS, ONNX Runtime; Python; Web, Node.js.**"
    assert table["Python"] == ["`onnx/model.onnx` (onnx/model_int8.onnx is beaten in score)", "90.00", "1 kB", "–"]
    smaller = with_models(small, bytes=lambda r: 500 if "int8" in r.path else 1000)
    measured = CardFigures(medians={"local": DeviceTimes({"onnx/model_int8.onnx": 1.25, "onnx/model.onnx": 2.5})})
    again = replace_figures(card(small), render_headline(smaller, measured))
    assert again is not None
    assert headline(again)[1]["Python"] == ["`onnx/model_int8.onnx`", "80.00", "0.5 kB", "1.25"]
    assert headline(card(CLASSIFIER))[1]["iOS"][1] == "50.00"


def test_minimum_versions_are_those_of_the_files() -> None:
    def least(record: ModelRecord) -> Requirements:
        return Requirements(ios=18) if record.format is Format.COREML else Requirements(opset=20, ir_version=10)

    artefacts = with_models(CLASSIFIER, minimum=least)
    assert rows(artefacts)["iOS"][2] == "iOS 18"
    assert "opset 20, IR 10" in rows(artefacts)["Android, ONNX Runtime"][2]
    assert "`pocketbert export --ios 16`" in card(artefacts)
    assert "--ios" not in card(with_models(only(Format.COREML), minimum=Requirements(ios=16)))


def test_sources_of_a_tokenizer_are_named_where_the_folder_has_them() -> None:
    source = TOKENIZER.model_copy(update={"path": "android/java/Tokenizer.java", "kind": Kind.TOOL})
    with_sources = CLASSIFIER.model_copy(update={"files": [*CLASSIFIER.files, source]})
    assert rows(with_sources)["Android, LiteRT"][3] == "sources in `android/`, read `tokenizer.json`"
    assert "copy `android/java`" in card(with_sources)
    for cell in (rows(with_sources)["iOS"][3], rows(CLASSIFIER)["Android, LiteRT"][3]):
        assert "golden_tokens.jsonl" in cell


def test_versions_are_those_that_checked_the_files_and_that_the_project_tests_with() -> None:
    known = CLASSIFIER.model_copy(update={"versions": {"onnxruntime": "1.31.1", "tokenizers": "0.23.3"}})
    assert rows(known)["Python"][4] == "`pip install onnxruntime==1.31.1 tokenizers==0.23.3 numpy`"
    assert rows(CLASSIFIER)["Python"][4] == "`pip install onnxruntime tokenizers numpy`"
    pom = ElementTree.parse(ROOT / "android_demo/pom.xml").getroot()
    catalogue = tomllib.loads((ROOT / "android_demo/gradle/libs.versions.toml").read_text())
    assert kotlin.ORT.rpartition(":")[2] == pom.findtext(f"{POM}onnxruntime.version")
    assert kotlin.GSON.rpartition(":")[2] == pom.findtext(f"{POM}gson.version")
    assert pom.findtext(f"{POM}tflite.version") == kotlin.TFLITE_JVM
    for line, name in ((kotlin.ORT, "onnxruntime-android"), (kotlin.LITERT, "litert"), (kotlin.GSON, "gson")):
        entry = catalogue["libraries"][name]
        assert line == f"{entry['module']}:{catalogue['versions'][entry['version']['ref']]}"
    sdk = re.search(r"minSdk = (\d+)", (ROOT / "android_demo/app/build.gradle.kts").read_text())
    assert sdk is not None
    assert f"API {sdk[1]}" in kotlin.ANDROID
    clients = (ROOT / "tests/support/client_environments.py").read_text()
    assert f'"mediapipe=={kotlin.MEDIAPIPE_PYTHON}"' in clients
    assert f"{javascript.PACKAGE}@{javascript.VERSION}" in clients


def test_a_warning_stands_below_the_table_and_names_its_file() -> None:
    warning = "Its built-in tokenizer keeps accents."
    text = card(CLASSIFIER, file_notes={"tflite/mediapipe.tflite": warning, "tflite/other": "Not shown."})
    before = text.split("## Use")[0]
    assert f"- Android, simplest, `tflite/mediapipe.tflite`: {warning}" in before
    assert text.count(warning) == 1
    assert "Not shown." not in text
    assert "gives wrong answers without an error" in before


# tasks

SAYS = {
    TaskName.TEXT_CLASSIFICATION: ["2 labels: `no`, `yes`.", "Softmax over the logits", "answer.label"],
    TaskName.MULTI_LABEL: ["2 labels: `a`, `b`.", "`a` 0.5, `b` 0.37", "thresholds = [0.5, 0.37];", "answer.labels"],
    TaskName.REGRESSION: ["one number, in the units of the training data", "which is always 1", "answer.value"],
    TaskName.TOKEN_CLASSIFICATION: [
        "3 tags: `O`, `B-x`, `I-x`.",
        "the tag of its first token is the word's",
        "answer.spans",
    ],
    TaskName.QUESTION_ANSWERING: [
        "at most 30 tokens long",
        "share 128 tokens",
        "order question, context",
        "answer.text",
    ],
    TaskName.MULTIPLE_CHOICE: [
        "softmax over the numbers of all choices",
        "answer.index, answer.text, answer.score",
        "fun answer(question: String, choices: List<String>): Pair<Int, Float>",
        "text_pair: choice, truncation: true",
    ],
    TaskName.FILL_MASK: ["tokens for the masked places", "answer.places[0]", "model.tokenizer.mask_token"],
    TaskName.FEATURE_EXTRACTION: [
        "mean of the token states, of length 1",
        'pooling: "mean", normalize: true',
        "SentenceTransformer(",
        "answer.vector",
    ],
}


@pytest.mark.parametrize("task", list(TASKS))
def test_the_card_says_what_its_task_needs(task: TaskName) -> None:
    text = card(folder(task))
    for words in SAYS[task]:
        assert words in text, words
    prose = re.sub(r"```.*?```", "", text, flags=re.S)
    assert ("0 labels" in prose, "None" in prose) == (False, False)
    assert f"| {METRICS.get(task, TASKS[task].metric.name)} (eval" in text
    masked = task is TaskName.FILL_MASK
    assert ("0.5000 nats" in prose, "lower is better" in text) == (masked, masked)
    used = {t for t in TASKS if re.search(rf'pipeline\("{t}"', text)}
    assert used <= {task, TaskName.TEXT_CLASSIFICATION}


@pytest.mark.parametrize(
    ("task", "settings", "words", "instead_of"),
    [
        ("question-answering", {"null_answers": True}, "A question has no answer if", "Every question gets an answer"),
        ("question-answering", {"null_answers": True}, "asked about, or with none.", "asked about."),
        ("text-classification", {"pair": True}, "pipeline takes no pairs", 'pipeline("text-classification"'),
        ("regression", {"score": ScoreFunction.SIGMOID}, "with one number from 0 to 1", "one number, in the units of"),
        (
            "regression",
            {"score": ScoreFunction.SIGMOID},
            "The sigmoid of the one logit is the answer",
            "apply no sigmoid",
        ),
        ("token-classification", {"labels": ["NOUN", "VERB"]}, "each word whose tag is not `O`", "`B-` starts a span"),
        ("token-classification", {"labels": ["O", "x"]}, "each word whose tag is not `O`", "`B-` starts a span"),
        ("fill-mask", {"truncation_side": "left"}, "the beginning of longer texts is cut", "the end of longer texts"),
    ],
)
def test_settings_change_the_text(task: str, settings: dict[str, Any], words: str, instead_of: str) -> None:
    text, plain = card_of(TaskName(task), **settings), card_of(TaskName(task))
    assert (words in text, words in plain) == (True, False)
    assert (instead_of in text, instead_of in plain) == (False, True)


@pytest.mark.parametrize(
    ("similarity", "words"),
    zip(Similarity, ("the cosine", "dot product", "Euclidean distance", "absolute differences"), strict=True),
)
def test_what_vectors_are_compared_with(similarity: Similarity, words: str) -> None:
    [line] = [x for x in card_of(TaskName.FEATURE_EXTRACTION, similarity=similarity).splitlines() if "compared" in x]
    assert words in line


def test_prompts_are_listed_up_to_a_length() -> None:
    prompts = {"query": "query: ", "passage": "passage: "}
    text = card_of(TaskName.FEATURE_EXTRACTION, prompts=prompts, default_prompt="query")
    assert '`query` (`"query: "`), `passage` (`"passage: "`) (`processing.prompts`' in text
    assert "by default `query`" in text
    text = card_of(TaskName.FEATURE_EXTRACTION, prompts={f"n{i}": "x" * 1000 for i in range(100)})
    [line] = [x for x in text.splitlines() if x.startswith("Prompts ")]
    assert len(line) < 10_000
    assert ", and so on" in line


# how sure a file is


def code_in(text: str) -> str:
    return "\n".join(re.findall(r"```\w+\n(.*?)```", text, re.S))


def test_each_file_has_its_temperature_in_text_and_code() -> None:
    assert "temperature" not in card(CLASSIFIER)
    sure = {"fitted_rows": 1500, "measured_on": "eval", "rows": 9, "error_before": 0.05, "error": 0.01}
    numbers = {r.path: 1.5 + i / 8 for i, r in enumerate(CLASSIFIER.models())}
    warm = with_models(CLASSIFIER, confidence=lambda r: Confidence(temperature=numbers[r.path], **sure))
    text = card(warm)
    for path, number in numbers.items():
        assert f"`{path}` {number:g} (fitted on 1,500 held-out rows; expected calibration error on eval 5.00" in text
    small, litert, mediapipe, coreml = (
        f"{numbers[path]:g}"
        for path in ("onnx/model.onnx", "tflite/model_int8.tflite", "tflite/mediapipe.tflite", "coreml/Model.mlpackage")
    )
    for line in (
        f'logits = run(e)["logits"][0] / {small}   # the temperature of this file',
        f"s.score ** (1 / {small})",
        f"exp((it - largest) / {small}f)",
        f"exp((it - largest) / {litert}f)",
        f"it.score().pow(1 / {mediapipe}f)",
        "import kotlin.math.pow",
        f"pow($0.doubleValue, 1 / {coreml})",
    ):
        assert line in code_in(text), line
    mixed = card(warm.model_copy(update={"files": [warm.models()[0], *CLASSIFIER.models()[1:]]}))
    assert "The softmax of `onnx/model_int8.onnx`, " in mixed
    pairs = code_in(card(warm.model_copy(update={"pair": True})))
    assert f"const divided = logits.data.map(x => x / {small});" in pairs
    assert "softmax(divided)" in pairs


@pytest.mark.parametrize("temperature", [1.0, 1.5])
def test_the_code_of_every_client_gives_no_label_below_the_threshold(temperature: float) -> None:
    made = folder(TaskName.TEXT_CLASSIFICATION, unknown=0.55)
    text = card(with_models(made, confidence=Confidence(temperature=temperature)))
    assert "below 0.55 (`processing.unknown` of `artifacts.json`) is unknown" in text
    codes = re.findall(r"```\w+\n(.*?)```", text, re.S)
    own = "pocketbert.load", "@pocketbert/runtime", "gradle"  # PocketBERT's runtimes read the threshold from the folder
    answering = [c for c in codes if not any(name in c for name in own) and "answer" in c]
    assert len(answering) >= 6
    for one in answering:
        assert re.search(r"(>=|<) 0\.55.* below this file's threshold: unknown", one), one
    for code in (r"Pair<String\?, Float>", r"label: String\?, ", r"0\.55 \? every : \[\]", r"0\.55 else None"):
        assert re.search(code, text), code
    assert not re.search(r"threshold: unknown|String\?", card(CLASSIFIER))


def test_each_file_has_its_threshold_in_text_and_code() -> None:
    measured = {"measured_on": "eval", "answered": 0.8125, "answered_accuracy": 0.9625}
    least = {r.path: 0.5 + i / 64 for i, r in enumerate(CLASSIFIER.models())}
    made = folder(TaskName.TEXT_CLASSIFICATION, unknown_accuracy=0.95)
    text = card(with_models(made, confidence=lambda r: Confidence(unknown=least[r.path], **measured)))
    assert "fitted so that at least 95 % of the others are right" in text
    for path, number in least.items():
        assert f"`{path}` {number:g} (eval: answers 81.2 %, 96.2 % of them right)" in text
    for line in (
        f"if scores.max() >= {least['onnx/model.onnx']:g} else None",
        f"every[0].score >= {least['onnx/model.onnx']:g} ?",
        f"takeIf {{ probability >= {least['tflite/model_int8.tflite']:g}f }}",
        f"takeIf {{ best.score() >= {least['tflite/mediapipe.tflite']:g}f }}",
        f"probability < {least['coreml/Model.mlpackage']:g} ? nil : label",
    ):
        assert line in code_in(text), line
