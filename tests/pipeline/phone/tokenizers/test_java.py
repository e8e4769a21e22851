"""The packed Java sources: nothing is missing, they compile without anything else, and they give the library's tokens."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pocketbert.core.artefacts import Processing
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import ScoreFunction
from pocketbert.pipeline.phone.tokenizers.sources import ANDROID, JAVA, PackedSources, pack_sources

ROOT = next(p for p in Path(__file__).resolve().parents if (p / "pyproject.toml").is_file())
CORE = ROOT / "android_demo/core/src/main"
POM = (ROOT / "android_demo/pom.xml").read_text("utf-8")
GSON = re.findall(r"<gson.version>(.+)</gson.version>", POM)[0]
JAR = Path.home() / f".m2/repository/com/google/code/gson/gson/{GSON}/gson-{GSON}.jar"
KINDS = ("bert", "roberta", "albert", "xlm")
needs_java = pytest.mark.skipif(
    shutil.which("javac") is None or not JAR.is_file(),
    reason=f"needs javac and {JAR}, which `make test-android` downloads",
)
Kind = Callable[[str], Path]
Pack = Callable[[Path], PackedSources]


def run(*command: str | Path, **options: Any) -> str:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, encoding="utf-8", **options)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def compile_example(phone: Path, classes: Path) -> str:
    """Compile the packed sources with the class in their README.md, whose code is returned, and the program of the tests."""
    [example] = re.findall(r"```java\n(.+?)```", (phone / "android/README.md").read_text("utf-8"), re.DOTALL)
    (phone / "TextInputs.java").write_text(example, "utf-8")
    main = Path(__file__).with_name("CheckTokens.java")
    sources = [*(phone / "android/java").rglob("*.java"), phone / "TextInputs.java", main]
    run("javac", "-Xlint:all", "-Werror", "--release", "17", "-cp", JAR, "-d", classes, *sources)
    return str(example)


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory, kind: Kind, pack: Pack) -> Callable[..., list[list[dict[str, Any]]]]:
    """`java(folder, ...)`: what the packed sources, compiled alone, and the class in their README.md answer for each folder."""
    phone, classes = tmp_path_factory.mktemp("phone"), tmp_path_factory.mktemp("classes")
    shutil.copyfile(kind("bert") / "tokenizer.json", phone / "tokenizer.json")
    assert "android/" not in pack(phone).absent
    compile_example(phone, classes)

    def answer(folders: Sequence[Path]) -> list[list[dict[str, Any]]]:
        path = f"{classes}:{JAR}:{phone / 'android/resources'}"
        lines = run("java", "-cp", path, "CheckTokens", "24", *folders).splitlines()
        rows = [json.loads(line) for line in lines]
        out: list[list[dict[str, Any]]] = []
        for folder in folders:
            count = 1 if "refused" in rows[0] else len((folder / "golden_tokens.jsonl").read_text("utf-8").splitlines())
            out.append(rows[:count])
            rows = rows[count:]
        assert not rows
        return out

    return answer


def test_every_source_of_the_tokenizer_is_copied() -> None:
    copied = ANDROID.copied()
    there = [*(CORE / "java/org/pocketbert/tokenizers").rglob("*.java"), CORE / "java/org/pocketbert/text/Batch.java"]
    there += (CORE / "resources").rglob("*.bin")
    assert copied == {f"android/{p.relative_to(CORE).as_posix()}": p.read_bytes() for p in there}
    assert len(there) > 40


def test_the_sources_import_nothing_that_is_not_copied() -> None:
    copied = ANDROID.copied()
    names = {"/".join(name.split("/")[2:]).removesuffix(".java").replace("/", ".") for name in copied}
    for name, content in copied.items():
        if name.endswith(".java"):
            for imported in re.findall(r"^import (?:static )?([\w.]+);", content.decode(), re.MULTILINE):
                known = imported in names or imported.startswith(("java.", "com.google.gson.stream."))
                assert known, f"{name} imports {imported}, which is not copied"


def test_the_page_names_what_is_built_with(pack: Pack, kind: Kind, tmp_path: Path) -> None:
    shutil.copyfile(kind("bert") / "tokenizer.json", tmp_path / "tokenizer.json")
    packed = pack(tmp_path)
    page = (tmp_path / "android/README.md").read_text("utf-8")
    assert f"com.google.code.gson:gson:{GSON}" in page
    assert "<maven.compiler.release>17<" in POM
    assert "Java 17" in page
    assert "never on a phone" in page
    assert "MAX_LENGTH = 24;" in page
    assert {n for n in packed.kinds if n.startswith("android/")} == {
        p.relative_to(tmp_path).as_posix() for p in (tmp_path / "android").rglob("*.*")
    }
    assert set(packed.kinds.values()) == {"tool"}


def test_the_table_of_what_they_read_is_that_of_the_sources() -> None:
    steps = (CORE / "java/org/pocketbert/tokenizers/StepReader.java").read_text("utf-8")
    frames = (CORE / "java/org/pocketbert/tokenizers/FrameReader.java").read_text("utf-8")
    models = (CORE / "java/org/pocketbert/tokenizers/ModelReader.java").read_text("utf-8")
    for source, constant, known in (
        (steps, "NORMALIZERS", JAVA.normalizers),
        (steps, "PRE_TOKENIZERS", JAVA.pre_tokenizers),
        (frames, "SUPPORTED", JAVA.post_processors),
        (models, "SUPPORTED", JAVA.models),
    ):
        [told] = re.findall(rf"String {constant} =\s*((?:\"[^\"]*\"[\s+]*)+);", source)
        stated = "".join(re.findall(r'"([^"]*)"', told)).split(", ")
        assert sorted({*known, "Sequence"}) == sorted({*stated, "Sequence"})


@needs_java
def test_every_kind_has_the_library_s_tokens(java: Callable[..., list[list[dict[str, Any]]]], kind: Kind) -> None:
    folders = [kind(name) for name in KINDS]
    types = set()
    for folder, rows in zip(folders, java(folders), strict=True):
        content = json.loads((folder / "tokenizer.json").read_text("utf-8"))
        assert JAVA.refusal(content) is None
        types.add(content["model"]["type"])
        golden = [json.loads(line) for line in (folder / "golden_tokens.jsonl").read_text("utf-8").splitlines()]
        for row, want in zip(rows, golden, strict=True):
            assert (row["ids"], row["type_ids"]) == (want["ids"], want["type_ids"]), want["text"]
            assert [list(o) for o in zip(row["starts"], row["ends"], strict=True)] == want["offsets"], want["text"]
            if isinstance(want["text"], str):
                assert row["batch"] == want["ids"]
    assert types == {"WordPiece", "BPE", "Unigram"}


@needs_java
def test_the_page_has_the_folder_s_prompts_and_the_end_that_it_keeps(kind: Kind, tmp_path: Path) -> None:
    prompts = {"query": "query: ", 'an "odd" $name': '"$x" ${y} \\u0041 \n\f\x7f é 🙂 '}
    settings = Processing(
        max_length=12,
        score=ScoreFunction.NONE,
        prompts=prompts,
        default_prompt='an "odd" $name',
        truncation_side="left",
    )
    for name in ("tokenizer.json", "texts.jsonl"):
        shutil.copyfile(kind("bert") / name, tmp_path / name)
    (tmp_path / "artifacts.json").write_text(json.dumps({"processing": settings.model_dump(mode="json")}))
    pack_sources(tmp_path, settings, pad_id=0)
    page = compile_example(tmp_path, tmp_path / "classes")
    assert 'Map.entry("query", "query: ")' in page
    assert "is put in front of its first text" in (tmp_path / "android/README.md").read_text("utf-8")
    path = f"{tmp_path / 'classes'}:{JAR}:{tmp_path / 'android/resources'}"
    told = [json.loads(line) for line in run("java", "-cp", path, "CheckTokens", "12", tmp_path).splitlines()]
    texts = [json.loads(line)[0] for line in (tmp_path / "texts.jsonl").read_text("utf-8").splitlines()]
    want = TextTokenizer(tmp_path, 12, pad_id=0).encode(texts)
    assert any(row.truncated for row in want)
    for text, row, library in zip(texts, told, want, strict=True):
        assert row["batch"] == library.ids.tolist(), text


REFUSED: dict[str, Callable[[dict[str, Any]], Any]] = {
    "the normalizer UnicodeScripts": lambda c: c.update(normalizer={"type": "UnicodeScripts"}),
    "the pre-tokenizer UnicodeScripts": lambda c: c.update(pre_tokenizer={"type": "UnicodeScripts"}),
    "the pre-tokenizer Other": lambda c: c.update(
        pre_tokenizer={"type": "Sequence", "pretokenizers": [c["pre_tokenizer"], {"type": "Other"}]}
    ),
    "the post-processor Other": lambda c: c.update(post_processor={"type": "Other"}),
    "the post-processor ByteLevel behind one that adds special tokens": lambda c: c.update(
        post_processor={
            "type": "Sequence",
            "processors": [c["post_processor"], {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}],
        }
    ),
    "a model of type Other": lambda c: c["model"].update(type="Other"),
    "a BPE model with 'dropout'": lambda c: c.update(
        model={"type": "BPE", "vocab": {"a": 0}, "merges": [], "dropout": 0.1}
    ),
    "a BPE model with 'byte_fallback'": lambda c: c.update(
        model={"type": "BPE", "vocab": {"a": 0}, "merges": [], "byte_fallback": True, "end_of_word_suffix": "_"}
    ),
    "a model of type Unigram without": lambda c: c.update(model={"type": "Unigram", "vocab": [["a", -1.0]]}),
    "a post-processor with 'trim_offsets'": lambda c: c.update(
        model={"type": "Unigram", "vocab": [["a", -1.0]], "unk_id": 0},
        post_processor={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True},
    ),
    "the regular expression '(?i:a)'": lambda c: c.update(
        normalizer={"type": "Replace", "pattern": {"Regex": "(?i:a)"}, "content": ""}
    ),
    "the regular expression '(a)": lambda c: c.update(
        pre_tokenizer={"type": "Split", "pattern": {"Regex": r"(a)\1"}, "behavior": "Removed", "invert": False}
    ),
}


@pytest.fixture(scope="module")
def refused(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    out = []
    for change in REFUSED.values():
        content = json.loads((kind("bert") / "tokenizer.json").read_text("utf-8"))
        change(content)
        out.append(tmp_path_factory.mktemp("refused"))
        (out[-1] / "tokenizer.json").write_text(json.dumps(content))
    return out


def test_a_tokenizer_that_they_refuse_has_no_sources(refused: list[Path], pack: Pack) -> None:
    for why, folder in zip(REFUSED, refused, strict=True):
        packed = pack(folder)
        assert f"the Java sources do not read {why}" in packed.absent["android/"]
        assert not (folder / "android").exists()
        assert not any(name.startswith("android") for name in packed.kinds)


@needs_java
def test_the_sources_refuse_the_same(java: Callable[..., Any], refused: list[Path]) -> None:
    for folder in refused:
        (folder / "golden_tokens.jsonl").write_text("")
    assert java(refused) == [[{"refused": True}]] * len(refused)
