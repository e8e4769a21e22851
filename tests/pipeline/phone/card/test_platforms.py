"""The card's first table, its order, and the front matter that the Hub reads."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from pocketbert.core.artefacts import Artefacts, FileRecord, Kind, ModelRecord, Requirements
from pocketbert.core.families import family_of
from pocketbert.core.tasks import TaskName
from pocketbert.core.types import Format
from pocketbert.pipeline.formats.snippets import javascript, kotlin
from pocketbert.pipeline.phone.card import CardFacts, _licence_entries, render_card
from support.card_folders import folder

ROOT = Path(__file__).parents[4]
POM = "{http://maven.apache.org/POM/4.0.0}properties/{http://maven.apache.org/POM/4.0.0}"
CLASSIFIER = folder(TaskName.TEXT_CLASSIFICATION)
TOKENIZER = FileRecord(path="tokenizer.json", sha256="0" * 64, bytes=500_000, kind=Kind.TOKENIZER)


def facts(**more: Any) -> CardFacts:
    return CardFacts(family=family_of("bert"), **{"licence": "unknown", **more})


def rows(artefacts: Artefacts, **more: Any) -> dict[str, list[str]]:
    """Cells of the table by platform."""
    text = render_card(artefacts, facts(**more)).split("## Which file")[1].split("## Use")[0]
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    return {cells[0]: cells[1:] for cells in lines[2:]}


def only(*formats: Format) -> Artefacts:
    return CLASSIFIER.model_copy(update={"files": [r for r in CLASSIFIER.models() if r.format in formats]})


def test_every_platform_has_the_file_that_the_folder_has() -> None:
    assert {name: cells[0] for name, cells in rows(CLASSIFIER).items()} == {
        "Android, simplest": "`tflite/mediapipe.tflite`",
        "Android, ONNX Runtime": "`onnx/model.onnx`",
        "Android, LiteRT": "`tflite/model_int8.tflite`",
        "iOS": "`coreml/Model.mlpackage`",
        "Web, Node.js": "`onnx/model.onnx`",
        "Python": "`onnx/model.onnx`",
    }
    small = [r.model_copy(update={"default": "int8" in r.path}) for r in CLASSIFIER.models()]
    assert rows(CLASSIFIER.model_copy(update={"files": small}))["Web, Node.js"][0] == "`onnx/model_int8.onnx`"
    assert [*rows(only(Format.ONNX))] == ["Android, ONNX Runtime", "iOS, ONNX Runtime", "Web, Node.js", "Python"]
    assert [*rows(only(Format.COREML))] == ["iOS"]
    assert rows(only(Format.TFLITE))["Python"][0] == "`tflite/model_int8.tflite`"


@pytest.mark.parametrize(("family", "there"), [("bert", True), ("albert", False)])
def test_code_has_no_setting_with_which_the_engine_cannot_open_the_file(family: str, there: bool) -> None:
    artefacts = only(Format.ONNX).model_copy(update={"family": family})
    card = render_card(artefacts, facts())
    assert ("x64quantprecision" in card) is there
    assert ('InferenceSession("onnx/model.onnx")' in card) is not there
    assert ("readBytes() }, options)" in card) is there


def test_sizes_count_the_tokenizer_of_apps_that_read_it() -> None:
    big = [r.model_copy(update={"bytes": 17_577_878}) for r in CLASSIFIER.models()]
    sizes = {name: cells[1] for name, cells in rows(CLASSIFIER.model_copy(update={"files": [*big, TOKENIZER]})).items()}
    assert sizes.pop("Android, simplest") == "17.6"
    assert set(sizes.values()) == {"18.1"}


def test_minimum_versions_are_those_of_the_files() -> None:
    def known(record: ModelRecord) -> ModelRecord:
        minimum = Requirements(ios=18) if record.format is Format.COREML else Requirements(opset=20, ir_version=10)
        return record.model_copy(update={"minimum": minimum})

    artefacts = CLASSIFIER.model_copy(update={"files": [known(r) for r in CLASSIFIER.models()]})
    assert rows(artefacts)["iOS"][2] == "iOS 18"
    assert "opset 20, IR 10" in rows(artefacts)["Android, ONNX Runtime"][2]
    assert "`pocketbert export --ios 16`" in render_card(artefacts, facts())
    old = [r.model_copy(update={"minimum": Requirements(ios=16)}) for r in only(Format.COREML).models()]
    assert "--ios" not in render_card(artefacts.model_copy(update={"files": old}), facts())


def test_a_warning_stands_below_the_table_and_names_its_file() -> None:
    warning = "Its built-in tokenizer keeps accents."
    text = render_card(CLASSIFIER, facts(file_notes={"tflite/mediapipe.tflite": warning, "tflite/other": "Not shown."}))
    before = text.split("## Use")[0]
    assert f"- Android, simplest, `tflite/mediapipe.tflite`: {warning}" in before
    assert text.count(warning) == 1
    assert "Not shown." not in text
    assert "gives wrong answers without an error" in before


def test_sources_of_a_tokenizer_are_named_where_the_folder_has_them() -> None:
    source = TOKENIZER.model_copy(update={"path": "android/java/Tokenizer.java", "kind": Kind.TOOL})
    with_sources = CLASSIFIER.model_copy(update={"files": [*CLASSIFIER.files, source]})
    assert rows(with_sources)["Android, LiteRT"][3] == "sources in `android/`, read `tokenizer.json`"
    assert "golden_tokens.jsonl" in rows(with_sources)["iOS"][3]
    assert "golden_tokens.jsonl" in rows(CLASSIFIER)["Android, LiteRT"][3]
    assert "copy `android/java`" in render_card(with_sources, facts())


def test_the_order_is_that_of_a_readers_questions() -> None:
    text = render_card(CLASSIFIER, facts())
    heads = re.findall(r"^(?:#+ .*|<details>.*|<!--.*|```\w+)$", text, re.M)
    assert [h for h in heads if not h.startswith("```")] == [
        "# tiny",
        "## Which file",
        "## Use",
        "<details><summary>Code for more clients</summary>",
        "<!-- pocketbert figures: begin -->",
        "## Files",
        "## Latency",
        "<!-- pocketbert figures: end -->",
        "## Processing",
        "## Lineage and limits",
    ]
    shown = text.split("<details>")[0]
    assert re.findall(r"^```(\w+)$", shown, re.M) == [
        "kotlin",
        "kotlin",
        "kotlin",
        "swift",
        "js",
        "python",
        "python",
    ]


def test_versions_are_those_that_the_project_tests_with() -> None:
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
    clients = (ROOT / "tests/clients/test_mediapipe.py").read_text()
    assert f'"mediapipe=={kotlin.MEDIAPIPE_PYTHON}"' in clients
    assert f"{javascript.PACKAGE}@{javascript.VERSION}" in (ROOT / "tests/support/client_environments.py").read_text()


def test_python_requirements_name_the_versions_that_checked_the_files() -> None:
    known = CLASSIFIER.model_copy(update={"versions": {"onnxruntime": "1.31.1", "tokenizers": "0.23.3"}})
    assert rows(known)["Python"][4] == "`pip install onnxruntime==1.31.1 tokenizers==0.23.3 numpy`"
    assert rows(CLASSIFIER)["Python"][4] == "`pip install onnxruntime tokenizers numpy`"


# front matter


def front_matter(**more: Any) -> dict[str, Any]:
    text = render_card(CLASSIFIER, facts(**more))
    assert text.startswith("---\n")
    found = yaml.safe_load(text.split("---\n")[1])
    assert isinstance(found, dict)
    return found


def test_the_front_matter_is_complete() -> None:
    assert front_matter(
        licence="Apache-2.0 (model card of x)",
        base_model="org/teacher",
        languages=["en", "no"],
        datasets=["nyu-mll/glue"],
    ) == {
        "license": "apache-2.0",
        "base_model": "org/teacher",
        "language": ["en", "no"],
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
        ("unknown; ask the publisher of the weights", {}),
        ("", {}),
    ],
)
def test_licences_are_named_as_the_hub_names_them(licence: str, entries: dict[str, str]) -> None:
    assert _licence_entries(licence) == entries
