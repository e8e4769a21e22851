"""The sources of a tokenizer that are packed for apps: Java is compiled and run, Swift is parsed and run translated to Python.

Both must give the tokens of the `tokenizers` library. Java needs javac and Gson, which `make test-android` downloads.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tree_sitter_swift
from android.awkward_texts import FIXED, awkward_texts
from android.token_files import library_rows
from android.tokenizer_kinds import (
    NORMALIZERS,
    SPLITTERS,
    byte_tokens,
    template,
    train_bytes,
    unigram_bytes,
    with_added_tokens,
)
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from tree_sitter import Language, Node, Parser

from pocketbert.core.artefacts import Processing
from pocketbert.core.compare.sample_texts import SENTENCES, UNICODE_SENTENCES
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import ScoreFunction
from pocketbert.pipeline.phone.tokenizers.sources import ANDROID, IOS, JAVA, SWIFT, PackedSources, pack_sources
from support.swift.translator import load
from support.tiny import write_own_tokenizer

ROOT = next(p for p in Path(__file__).resolve().parents if (p / "pyproject.toml").is_file())
CORE = ROOT / "android_demo/core/src/main"
POM = (ROOT / "android_demo/pom.xml").read_text("utf-8")
GSON = re.findall(r"<gson.version>(.+)</gson.version>", POM)[0]
JAR = Path.home() / f".m2/repository/com/google/code/gson/gson/{GSON}/gson-{GSON}.jar"
needs_java = pytest.mark.skipif(
    shutil.which("javac") is None or not JAR.is_file(),
    reason=f"needs javac and {JAR}, which `make test-android` downloads",
)
LENGTH, ENDLESS = 24, 1 << 20
KINDS = ("bert", "roberta", "albert", "xlm", "mpnet", "camembert")
Kind = Callable[[str], Path]
Open = Callable[[str], Any]


@pytest.fixture(scope="module")
def kind(tmp_path_factory: pytest.TempPathFactory) -> Kind:
    """`kind(family)`: a folder with a family's tokenizer, texts.jsonl, and golden_tokens.jsonl as the pipeline writes it."""
    kept = [t for t in (*SENTENCES[::4], *UNICODE_SENTENCES[::2], *draw_texts(10, seed=11)) if t.strip()]
    texts = [*([t] for t in kept), *([a, b] for a, b in zip(kept[::7], kept[3::7], strict=False))]

    @cache
    def write(family: str) -> Path:
        folder = tmp_path_factory.mktemp(f"tokenizer-{family}")
        write_own_tokenizer(folder, family)
        tokenizer = TextTokenizer(folder, LENGTH, pad_id=0, padding_side="right")
        rows = [tokenizer.golden(t[0] if len(t) == 1 else (t[0], t[1])) for t in texts]
        (folder / "texts.jsonl").write_text("".join(json.dumps(t) + "\n" for t in texts), "utf-8")
        (folder / "golden_tokens.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows), "utf-8")
        return folder

    return write


def draw_texts(count: int, seed: int) -> list[str]:
    """Texts with one trap each, and so many random ones."""
    return [*FIXED, *awkward_texts(200, seed)[-count:]]


def content_of(folder: Path) -> str:
    return (folder / "tokenizer.json").read_text("utf-8")


def read_lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def pack(folder: Path) -> PackedSources:
    """Write the sources for a folder's tokenizer into it."""
    return pack_sources(folder, Processing(max_length=LENGTH, score=ScoreFunction.SOFTMAX), pad_id=0)


def example_in(page: Path, language: str) -> str:
    """The class in the page of packed sources."""
    [example] = re.findall(rf"```{language}\n(.+?)```", page.read_text("utf-8"), re.DOTALL)
    return str(example)


# Java


def run(*command: str | Path) -> str:
    words = [str(c) for c in command]
    done = subprocess.run(words, capture_output=True, text=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def compile_java(phone: Path) -> Callable[..., list[Any]]:
    """Compile the packed sources alone, with the class in their README.md and the program of the tests.

    Returns ``answer(length, *folders)``: what they make of the texts of each folder.
    """
    classes, example = phone / "classes", phone / "TextInputs.java"
    example.write_text(example_in(phone / "android/README.md", "java"), "utf-8")
    sources = [*(phone / "android/java").rglob("*.java"), example, Path(__file__).with_name("CheckTokens.java")]
    run("javac", "-Xlint:all", "-Werror", "--release", "17", "-cp", JAR, "-d", classes, *sources)
    path = f"{classes}:{JAR}:{phone / 'android/resources'}"

    def answer(length: int, *folders: Path) -> list[Any]:
        told = run("java", "-cp", path, "CheckTokens", str(length), *folders)
        return [json.loads(line) for line in told.splitlines()]

    return answer


def test_every_java_source_is_copied_with_all_that_it_imports_and_a_page(kind: Kind, tmp_path: Path) -> None:
    copied = ANDROID.copied()
    there = [*(CORE / "java/org/pocketbert/tokenizers").rglob("*.java"), CORE / "java/org/pocketbert/text/Batch.java"]
    there += (CORE / "resources").rglob("*.bin")
    assert copied == {f"android/{p.relative_to(CORE).as_posix()}": p.read_bytes() for p in there}
    assert len(there) > 40
    names = {"/".join(name.split("/")[2:]).removesuffix(".java").replace("/", ".") for name in copied}
    for name, content in copied.items():
        for imported in re.findall(r"^import (?:static )?([\w.]+);", content.decode(errors="replace"), re.MULTILINE):
            known = imported in names or imported.startswith(("java.", "com.google.gson.stream."))
            assert known, f"{name} imports {imported}, which is not copied"
    shutil.copyfile(kind("bert") / "tokenizer.json", tmp_path / "tokenizer.json")
    kinds = {n: k for n, k in pack(tmp_path).kinds.items() if n.startswith("android/")}
    assert set(kinds) == {*copied, "android/README.md"}
    assert set(kinds.values()) == {"tool"}
    page = (tmp_path / "android/README.md").read_text("utf-8")
    assert "<maven.compiler.release>17<" in POM
    for said in (f"com.google.code.gson:gson:{GSON}", "Java 17", "never on a phone", "MAX_LENGTH = 24;"):
        assert said in page


BPE = {"type": "BPE", "vocab": {"a": 0}, "merges": []}
UNIGRAM = {"type": "Unigram", "vocab": [["a", -1.0]]}
TRIMMING = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}
REFUSED: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "the normalizer UnicodeScripts": lambda c: {"normalizer": {"type": "UnicodeScripts"}},
    "the pre-tokenizer UnicodeScripts": lambda c: {"pre_tokenizer": {"type": "UnicodeScripts"}},
    "the pre-tokenizer Other": lambda c: {
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [c["pre_tokenizer"], {"type": "Other"}]}
    },
    "the post-processor Other": lambda c: {"post_processor": {"type": "Other"}},
    "the post-processor ByteLevel behind one that adds special tokens": lambda c: {
        "post_processor": {"type": "Sequence", "processors": [c["post_processor"], TRIMMING]}
    },
    "a model of type Other": lambda c: {"model": {**c["model"], "type": "Other"}},
    "a BPE model with 'dropout'": lambda c: {"model": {**BPE, "dropout": 0.1}},
    "a BPE model with 'byte_fallback'": lambda c: {"model": {**BPE, "byte_fallback": True, "end_of_word_suffix": "_"}},
    "a model of type Unigram without": lambda c: {"model": UNIGRAM},
    "a post-processor with 'trim_offsets'": lambda c: {"model": {**UNIGRAM, "unk_id": 0}, "post_processor": TRIMMING},
    "the regular expression '(?i:a)'": lambda c: {
        "normalizer": {"type": "Replace", "pattern": {"Regex": "(?i:a)"}, "content": ""}
    },
    "the regular expression '(a)": lambda c: {
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": r"(a)\1"}, "behavior": "Removed", "invert": False}
    },
}


@pytest.fixture(scope="module")
def refused(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders with tokenizers that the sources do not read, by the reason."""
    content, out = json.loads(content_of(kind("bert"))), {}
    for why, change in REFUSED.items():
        out[why] = tmp_path_factory.mktemp("refused")
        (out[why] / "tokenizer.json").write_text(json.dumps({**content, **change(content)}))
        (out[why] / "golden_tokens.jsonl").write_text("")
    return out


def test_a_tokenizer_that_the_sources_refuse_has_none(refused: dict[str, Path], kind: Kind, tmp_path: Path) -> None:
    for why, folder in refused.items():
        packed = pack(folder)
        assert f"the Java sources do not read {why}" in packed.absent["android/"]
        assert not (folder / "android").exists()
        assert not any(name.startswith("android") for name in packed.kinds)
    shutil.copyfile(kind("xlm") / "tokenizer.json", tmp_path / "tokenizer.json")  # only Swift does not read it
    packed = pack(tmp_path)
    assert packed.absent["ios/"].startswith("the Swift sources do not read the pre-tokenizer Split")
    assert not any(name.startswith("ios/") for name in packed.kinds)
    assert "android/README.md" in packed.kinds


@needs_java
def test_java_gives_the_library_s_tokens_with_the_settings_of_its_page_and_refuses_the_same(
    kind: Kind, refused: dict[str, Path], tmp_path: Path
) -> None:
    odd = 'an "odd" $name'
    settings = Processing(
        max_length=12,
        score=ScoreFunction.NONE,
        prompts={"query": "query: ", odd: '"$x" ${y} \\u0041 \n\f\x7f é 🙂 '},
        default_prompt=odd,
        truncation_side="left",
    )
    for name in ("tokenizer.json", "texts.jsonl"):
        shutil.copyfile(kind("bert") / name, tmp_path / name)
    (tmp_path / "artifacts.json").write_text(json.dumps({"processing": settings.model_dump(mode="json")}))
    pack_sources(tmp_path, settings, pad_id=0)
    page = (tmp_path / "android/README.md").read_text("utf-8")
    assert 'Map.entry("query", "query: ")' in page
    assert "is put in front of its first text" in page
    java = compile_java(tmp_path)

    texts = [text[0] for text in read_lines(tmp_path / "texts.jsonl")]
    want = TextTokenizer(tmp_path, 12, pad_id=0).encode(texts)
    assert any(row.truncated for row in want)
    for text, row, library in zip(texts, java(12, tmp_path), want, strict=True):
        assert row["batch"] == library.ids.tolist(), text

    folders = [kind(name) for name in KINDS]
    assert [JAVA.refusal(json.loads(content_of(folder))) for folder in folders] == [None] * len(KINDS)
    assert {json.loads(content_of(folder))["model"]["type"] for folder in folders} == {"WordPiece", "BPE", "Unigram"}
    golden = [row for folder in folders for row in read_lines(folder / "golden_tokens.jsonl")]
    made = java(LENGTH, *folders, *refused.values())
    for row, one in zip(made, golden, strict=False):
        assert (row["ids"], row["type_ids"]) == (one["ids"], one["type_ids"]), one["text"]
        assert [list(o) for o in zip(row["starts"], row["ends"], strict=True)] == one["offsets"], one["text"]
    assert made[len(golden) :] == [{"refused": True}] * len(refused)


@needs_java
def test_the_class_of_the_page_cuts_on_the_right_for_every_kind(kind: Kind, tmp_path: Path) -> None:
    shutil.copyfile(kind("bert") / "tokenizer.json", tmp_path / "tokenizer.json")
    pack(tmp_path)
    folders = [kind(name) for name in KINDS]
    golden = [row for folder in folders for row in read_lines(folder / "golden_tokens.jsonl")]
    for row, want in zip(compile_java(tmp_path)(LENGTH, *folders), golden, strict=True):
        assert row["batch"] == want["ids"] or not isinstance(want["text"], str), want["text"]


def test_the_tables_of_what_is_read_are_those_of_the_sources(swift_folder: Path) -> None:
    readers = {p.stem: p.read_text("utf-8") for p in (CORE / "java/org/pocketbert/tokenizers").glob("*Reader.java")}
    for reader, constant, known in (
        ("StepReader", "NORMALIZERS", JAVA.normalizers),
        ("StepReader", "PRE_TOKENIZERS", JAVA.pre_tokenizers),
        ("FrameReader", "SUPPORTED", JAVA.post_processors),
        ("ModelReader", "SUPPORTED", JAVA.models),
    ):
        [told] = re.findall(rf"String {constant} =\s*((?:\"[^\"]*\"[\s+]*)+);", readers[reader])
        stated = "".join(re.findall(r'"([^"]*)"', told)).split(", ")
        assert {*known, "Sequence"} == {*stated, "Sequence"}
    source = "".join(p.read_text("utf-8") for p in (swift_folder / "Tokenizer").glob("*Reader.swift"))
    for constant, known, in_java in (
        ("normalizers", SWIFT.normalizers, JAVA.normalizers),
        ("preTokenizers", SWIFT.pre_tokenizers, JAVA.pre_tokenizers),
        ("supported", SWIFT.post_processors, JAVA.post_processors),
        ("models", SWIFT.models, JAVA.models),
    ):
        [told] = re.findall(rf"static let {constant}: \[String\] = \[([^\]]*)\]", source)
        assert {*known, "Sequence"} == {*re.findall(r'"(\w+)"', told), "Sequence"}
        assert {*known} <= {*in_java}


# Swift

SWIFT_PARSER = Parser(Language(tree_sitter_swift.language()))
MARK = "The project parses these sources and runs them translated to Python; it has never compiled them"
BLANKS = (" {2,}", r"\s{2,}|[\n\r\t]")
"""The regular expressions that the Swift sources read."""


def find_errors(source: str) -> list[str]:
    """Places that the parser does not understand."""

    def below(node: Node) -> Iterator[Node]:
        yield node
        for child in node.children:
            yield from below(child)

    tree = SWIFT_PARSER.parse(source.encode())
    return [f"{n.start_point}: {n.type}" for n in below(tree.root_node) if n.is_error or n.is_missing]


@pytest.fixture(scope="module")
def swift_folder(kind: Kind) -> Path:
    pack(kind("bert"))
    return kind("bert") / "ios"


@pytest.fixture(scope="module")
def swift(swift_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The classes of the packed sources, and of the example in their README.md."""
    path = tmp_path_factory.mktemp("example") / "TextInputs.swift"
    path.write_text(example_in(swift_folder / "README.md", "swift"))
    return load([*sorted((swift_folder / "Tokenizer").glob("*.swift")), path])


@pytest.fixture(scope="module")
def opened(swift: dict[str, Any], swift_folder: Path) -> Open:
    """`opened(content)`: the Swift tokenizer that reads a tokenizer.json; the tables are read once."""
    raw = list((swift_folder / "unicode.bin").read_bytes())
    tables = swift["UnicodeTables"](raw)

    class Tables(swift["UnicodeTables"]):  # type: ignore[misc]
        def __init__(self, given: list[int]) -> None:
            if given == raw:
                vars(self).update(vars(tables))
            else:
                super().__init__(given)

    swift["UnicodeTables"] = Tables
    return lambda content: swift["Tokenizer"](content.encode(), raw)


def encode(tokenizer: Any, given: Sequence[str], most: int = ENDLESS, left: bool = False) -> Any:
    """What the Swift tokenizer makes of a text or a pair."""
    if len(given) == 2:
        return tokenizer.encode__second__maxLength__keepsEnd(*given, most, left)
    return tokenizer.encode__maxLength__keepsEnd(*given, most, left)


def places(made: Any) -> list[tuple[int, int]]:
    return [*zip(made.starts, made.ends, strict=True)]


def test_swift_is_parsed_imports_nothing_but_foundation_and_says_that_it_was_never_compiled(swift_folder: Path) -> None:
    sources = {p.name: p.read_text("utf-8") for p in (swift_folder / "Tokenizer").glob("*.swift")}
    assert len(sources) > 10
    for name, source in sources.items():
        assert find_errors(source) == [], name
        assert MARK in source.splitlines()[1]
        assert re.findall(r"^import (\w+)", source, re.MULTILINE) in ([], ["Foundation"]), name
    page = swift_folder / "README.md"
    assert find_errors(example_in(page, "swift")) == []
    assert "**Parsed, never compiled by this project**" in page.read_text("utf-8")
    assert find_errors(sources["Piece.swift"].replace("func slice(", "func (slice", 1)) != []


def test_swift_has_the_tables_and_the_chinese_characters_of_java(swift: dict[str, Any]) -> None:
    in_java = ANDROID.copied()
    assert IOS.copied()["ios/unicode.bin"] == in_java["android/resources/org/pocketbert/tokenizers/unicode.bin"]
    java = in_java["android/java/org/pocketbert/tokenizers/steps/BertNormalizer.java"].decode()
    bounds = re.findall(r"code [<>]= 0x([0-9A-F]+)", java[java.index("boolean isChinese") :])
    numbers = [int(b, 16) for b in bounds]
    ranges = list(zip(numbers[::2], numbers[1::2], strict=True))
    assert len(ranges) == 7
    for code in {n + step for n in numbers for step in (-1, 0, 1)}:
        assert swift["BertNormalizer"].isChinese(code) == any(a <= code <= b for a, b in ranges), hex(code)


def test_scores_are_rounded_as_the_library_rounds_them(swift: dict[str, Any]) -> None:
    draw = random.Random(5)
    numbers = [-draw.random() * 10 ** draw.randint(-4, 3) for _ in range(300)]
    texts = [*map(repr, numbers), "0", "0.0", "-1.5e-320", "-1e-7", "1E+2", "123456789012345678901234567890.5"]
    vocab = ", ".join(f'["p{i}", {text}]' for i, text in enumerate(texts))
    content = f'{{"version": "1.0", "model": {{"type": "Unigram", "unk_id": 0, "vocab": [{vocab}]}}}}'
    stored = json.loads(Tokenizer.from_str(content).to_str())["model"]["vocab"]
    assert [swift["Scores"].parse(list(t.encode())) for t in texts] == [score for _, score in stored]


def test_swift_gives_golden_tokens(kind: Kind, opened: Open) -> None:
    for family in ("bert", "roberta", "albert", "mpnet", "camembert"):
        content = content_of(kind(family))
        assert SWIFT.refusal(json.loads(content)) is None
        tokenizer = opened(content)
        for want in read_lines(kind(family) / "golden_tokens.jsonl"):
            text = want["text"]
            made = encode(tokenizer, [text] if isinstance(text, str) else text, LENGTH)
            assert (made.ids, made.typeIds) == (want["ids"], want["type_ids"]), (family, text)
            assert [list(p) for p in places(made)] == want["offsets"], (family, text)


def train_few() -> Tokenizer:
    return train_bytes(size=700, texts=awkward_texts(200, seed=4))


def roberta_with_blanks() -> Tokenizer:
    """Places that lose white space, in two ways."""
    made = train_few()
    made.add_tokens(["  ", "   "])
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=True)
    return made


def template_behind_byte_level() -> Tokenizer:
    made = train_few()
    made.normalizer = normalizers.NFC()
    frame = template("<s> $A </s> $B:1 </s>:1")
    made.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True), frame])
    return made


def prefix_and_suffix_without_a_frame() -> Tokenizer:
    pieces = {"<unk>": 0, "a": 1, "##b": 2, "ab": 3, "c_": 4, "##c_": 5}
    affixes = {"continuing_subword_prefix": "##", "end_of_word_suffix": "_"}
    made = train_few()
    made.model = models.BPE(vocab=pieces, merges=[("a", "##b")], unk_token="<unk>", fuse_unk=True, **affixes)
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return made


def sentencepiece_with_bytes() -> Tokenizer:
    made = Tokenizer.from_str(unigram_bytes(400))
    replaced = [normalizers.Replace(Regex(p), " ") for p in BLANKS]
    made.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), *replaced])
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    made.post_processor = processors.BertProcessing(("<unk>", 0), ("<0x00>", 1))
    return made


WHOLE: dict[str, Callable[[Path], Tokenizer]] = {
    "SentencePiece with bytes": lambda _: sentencepiece_with_bytes(),
    "roberta": lambda _: roberta_with_blanks(),
    "template": lambda _: template_behind_byte_level(),
    "prefix and suffix": lambda _: prefix_and_suffix_without_a_frame(),
    "added tokens": lambda bert: Tokenizer.from_str(with_added_tokens(content_of(bert))),
    "bert": lambda bert: Tokenizer.from_str(content_of(bert)),
}


@pytest.mark.parametrize("name", WHOLE)
def test_swift_pairs_limits_windows_and_both_sides_of_the_cut(
    name: str, kind: Kind, opened: Open, swift: dict[str, Any]
) -> None:
    content, draw = WHOLE[name](kind("bert")).to_str(), random.Random(8)
    library = Tokenizer.from_str(content)
    assert SWIFT.refusal(json.loads(content)) is None
    assert tuple(swift["ReplacedBlanks"].patterns) == BLANKS
    tokenizer = opened(content)
    traps = ["a ab abc abb c xyz ab", "  two   blanks    and  four"]
    texts = [*draw_texts(20, seed=6), *traps]
    for row in library_rows(library, texts):
        given, most = [texts[i] for i in row["texts"]], row.get("most", ENDLESS)
        if "stride" in row:
            made = tokenizer.windows__question__context__maxLength__stride(*given, most, row["stride"])
        else:
            made = [encode(tokenizer, given, most, row.get("left", False))]
        got = [[e.ids, e.typeIds, e.starts, e.ends, e.words, e.parts, e.truncated] for e in made]
        assert got == row["encodings"], (given, most)

    special = library.num_special_tokens_to_add(True)
    texts = [*draw_texts(8, seed=6)[-12:], *traps, "", "ab"]
    for given in [*([t] for t in texts), *([a, draw.choice(texts)] for a in texts)]:
        for side, room in ((s, r) for r in (1, draw.randint(2, 12), draw.randint(3, 30)) for s in ("right", "left")):
            library.enable_truncation(special + room, direction=side)
            want, made = library.encode(*given), encode(tokenizer, given, special + room, side == "left")
            got = (made.ids, made.typeIds, places(made), made.truncated)
            assert got == (want.ids, want.type_ids, want.offsets, bool(want.overflowing)), (given, room, side)
            assert made.parts == [-1 if p is None else p for p in want.sequence_ids]


def test_swift_reads_every_step_that_it_names_and_no_other(opened: Open, swift: dict[str, Any]) -> None:
    texts, read, refused = draw_texts(15, seed=9), set(), set()
    steps = {
        f"normalizer-{n}": byte_tokens(make(), pre_tokenizers.WhitespaceSplit()) for n, make in NORMALIZERS.items()
    }
    steps |= {f"splitter-{n}": byte_tokens(None, make()) for n, make in SPLITTERS.items()}
    for name, content in steps.items():
        if (why := SWIFT.refusal(json.loads(content))) is not None:
            assert why.startswith("the Swift sources do not read the ")
            with pytest.raises(swift["TokenizerError"]):
                opened(content)
            refused.add(name)
            continue
        read.add(name)
        tokenizer, library = opened(content), Tokenizer.from_str(content)
        for text in texts:
            made, want = encode(tokenizer, [text]), library.encode(text)
            assert (made.ids, places(made)) == (want.ids, want.offsets), (name, text)
    assert {"normalizer-nfc", "normalizer-nmt", "normalizer-prepend", "splitter-bert", "splitter-metaspace"} <= read
    assert {"normalizer-replace", "splitter-delimiter", "splitter-punctuation-next"} <= refused


def test_the_class_in_swift_s_page_pads(kind: Kind, swift: dict[str, Any], swift_folder: Path) -> None:
    content = content_of(kind("bert"))
    inputs = swift["TextInputs"](content.encode(), (swift_folder / "unicode.bin").read_bytes())
    ids = Tokenizer.from_str(content).encode("set an alarm").ids
    made = inputs.make__lengths("set an alarm", [4, 8, 16])
    padding = [0] * (8 - len(ids))
    assert (made.ids, made.mask, made.typeIds) == (ids + padding, [1] * len(ids) + padding, [0] * 8)
    assert inputs.make__lengths("set an alarm", []).ids == ids
    assert inputs.make__lengths__prompt("an alarm", [], "set ").ids == ids


def test_swift_refuses_broken_files(kind: Kind, opened: Open, swift: dict[str, Any]) -> None:
    right = content_of(kind("bert"))
    wrong = {
        right[:1000]: "it ends in the middle|a text without an end",
        right + "{}": "more behind its end",
        right.replace('"version"', '"future"'): "'future' is not known here",
        right.replace('"BertNormalizer"', '"Other"'): "the normalizer 'Other' is not supported",
        content_of(kind("xlm")): "is not supported",
        "[]": "is no object",
        '{"model": {"unk_id": 0, "vocab": [["a", +5]]}}': r"the score '\+5' is no number",
        '{"model": {"unk_id": 0, "vocab": [["a", 1e999]]}}': "a score is too large",
        '{"model": {"unk_id": 7, "vocab": [["a", 1]]}}': "'unk_id' is 7",
        json.dumps({**json.loads(right), "version": "2.0"}): "version '2.0' is not supported",
        "[" * 100 + "]" * 100: "more than 64 levels",
    }
    for content, message in wrong.items():
        with pytest.raises(swift["TokenizerError"]) as caught:
            opened(content)
        assert re.search(message, caught.value.message), caught.value.message
    with pytest.raises(swift["TokenizerError"]) as caught:
        swift["Tokenizer"](right.encode(), b"PBU0")
    assert "unicode.bin is not a file of tables" in caught.value.message


def test_swift_knows_the_ids_of_tokens(kind: Kind, opened: Open) -> None:
    content = content_of(kind("bert"))
    tokenizer, library = opened(content), Tokenizer.from_str(content)
    assert tokenizer.id__of("[MASK]") == library.token_to_id("[MASK]")
    assert tokenizer.id__of("nothing of the kind") is None
    assert tokenizer.specialTokens__pair(True) == 3
