"""The packed Swift sources: they parse, and what they compute, translated to Python, is what the library computes."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tree_sitter_swift
from android.awkward_texts import awkward_texts
from android.token_files import library_rows
from android.tokenizer_kinds import BYTES, NORMALIZERS, SPLITTERS, byte_tokens, with_added_tokens
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tree_sitter import Language, Node, Parser

from pocketbert.pipeline.phone.tokenizers.sources import _SWIFT_PATTERNS, ANDROID, IOS, JAVA, SWIFT, PackedSources
from support.swift.translator import load

Kind = Callable[[str], Path]
Pack = Callable[[Path], PackedSources]
PARSED = Parser(Language(tree_sitter_swift.language()))
MARK = "The project parses these sources and runs them translated to Python; it has never compiled them"
READ = ("bert", "roberta", "albert")
NOT_READ = "xlm"
ENDLESS = 1 << 20


def problems(source: str) -> list[str]:
    """Places that the parser does not understand."""

    def below(node: Node) -> Iterator[Node]:
        yield node
        for child in node.children:
            yield from below(child)

    tree = PARSED.parse(source.encode())
    return [f"{n.start_point}: {n.type}" for n in below(tree.root_node) if n.is_error or n.is_missing]


@pytest.fixture(scope="module")
def packed(kind: Kind, pack: Pack) -> Path:
    folder = kind("bert")
    pack(folder)
    return folder / "ios"


@pytest.fixture(scope="module")
def swift(packed: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The classes of the packed sources, and of the example in their README.md."""
    [example] = re.findall(r"```swift\n(.+?)```", (packed / "README.md").read_text("utf-8"), re.DOTALL)
    path = tmp_path_factory.mktemp("example") / "TextInputs.swift"
    path.write_text(example)
    return load([*sorted((packed / "Tokenizer").glob("*.swift")), path])


@pytest.fixture(scope="module")
def opened(swift: dict[str, Any], packed: Path) -> Callable[[str], Any]:
    """`opened(content)`: the Swift tokenizer that reads a tokenizer.json; the tables are read once."""
    raw = list((packed / "unicode.bin").read_bytes())
    tables = swift["UnicodeTables"](raw)

    class Tables(swift["UnicodeTables"]):  # type: ignore[misc]
        def __init__(self, given: list[int]) -> None:
            if given == raw:
                vars(self).update(vars(tables))
            else:
                super().__init__(given)

    swift["UnicodeTables"] = Tables
    return lambda content: swift["Tokenizer"](content.encode(), raw)


def test_the_sources_parse(packed: Path) -> None:
    sources = sorted((packed / "Tokenizer").glob("*.swift"))
    assert len(sources) > 10
    for path in sources:
        source = path.read_text("utf-8")
        assert problems(source) == [], path.name
        assert MARK in source.splitlines()[1]
    [example] = re.findall(r"```swift\n(.+?)```", (packed / "README.md").read_text("utf-8"), re.DOTALL)
    assert problems(example) == []
    assert "**Parsed, never compiled by this project**" in (packed / "README.md").read_text("utf-8")


def test_the_parser_finds_what_is_wrong(packed: Path) -> None:
    source = (packed / "Tokenizer/Piece.swift").read_text("utf-8")
    assert problems(source.replace("func ", "func ", 1)) == []
    for right, wrong in (
        ("func slice(", "func (slice"),
        ("while first", "while { first"),
        ("let origin: Int", "let origin: = Int"),
    ):
        assert problems(source.replace(right, wrong, 1)) != [], wrong


def test_nothing_but_foundation_is_imported(packed: Path) -> None:
    for path in (packed / "Tokenizer").glob("*.swift"):
        imports = re.findall(r"^import (\w+)", path.read_text("utf-8"), re.MULTILINE)
        assert imports in ([], ["Foundation"]), path.name


def test_the_tables_are_those_of_the_java_sources() -> None:
    assert (
        IOS.copied()["ios/unicode.bin"] == ANDROID.copied()["android/resources/org/pocketbert/tokenizers/unicode.bin"]
    )


def test_chinese_characters_are_those_of_the_java_sources(swift: dict[str, Any]) -> None:
    java = ANDROID.copied()["android/java/org/pocketbert/tokenizers/steps/BertNormalizer.java"].decode()
    bounds = re.findall(r"code [<>]= 0x([0-9A-F]+)", java[java.index("boolean isChinese") :])
    numbers = [int(b, 16) for b in bounds]
    ranges = list(zip(numbers[::2], numbers[1::2], strict=True))
    assert len(ranges) == 7
    edges = {n + step for pair in ranges for n in pair for step in (-1, 0, 1)}
    for code in edges:
        assert swift["BertNormalizer"].isChinese(code) == any(a <= code <= b for a, b in ranges), hex(code)


def test_the_table_of_what_they_read_is_that_of_the_sources(packed: Path) -> None:
    source = "".join(p.read_text("utf-8") for p in (packed / "Tokenizer").glob("*Reader.swift"))
    for constant, known in (
        ("normalizers", SWIFT.normalizers),
        ("preTokenizers", SWIFT.pre_tokenizers),
        ("supported", SWIFT.post_processors),
        ("models", SWIFT.models),
    ):
        [told] = re.findall(rf"static let {constant}: \[String\] = \[([^\]]*)\]", source)
        assert sorted({*known, "Sequence"}) == sorted({*re.findall(r'"(\w+)"', told), "Sequence"})
        assert {*known} <= {*JAVA.normalizers, *JAVA.pre_tokenizers, *JAVA.post_processors, *JAVA.models}


def test_the_regular_expressions_are_those_of_the_sources(swift: dict[str, Any]) -> None:
    assert tuple(swift["ReplacedBlanks"].patterns) == _SWIFT_PATTERNS


def test_scores_are_rounded_as_the_library_rounds_them(swift: dict[str, Any]) -> None:
    draw = random.Random(5)
    numbers = [-draw.random() * 10 ** draw.randint(-4, 3) for _ in range(300)]
    texts = [*map(repr, numbers), "0", "0.0", "-1.5e-320", "-1e-7", "1E+2", "123456789012345678901234567890.5"]
    vocab = [[f"p{i}", 0.0] for i in range(len(texts))]
    content = json.dumps({"version": "1.0", "model": {"type": "Unigram", "unk_id": 0, "vocab": vocab}})
    for i, text in enumerate(texts):
        content = content.replace(f'"p{i}", 0.0', f'"p{i}", {text}')
    stored = json.loads(Tokenizer.from_str(content).to_str())["model"]["vocab"]
    assert [swift["Scores"].parse(list(t.encode())) for t in texts] == [score for _, score in stored]


def test_golden_tokens(kind: Kind, opened: Callable[[str], Any]) -> None:
    for family in READ:
        folder = kind(family)
        content = (folder / "tokenizer.json").read_text("utf-8")
        assert SWIFT.refusal(json.loads(content)) is None
        tokenizer = opened(content)
        for line in (folder / "golden_tokens.jsonl").read_text("utf-8").splitlines():
            want = json.loads(line)
            if isinstance(want["text"], str):
                made = tokenizer.encode__maxLength(want["text"], 24)
            else:
                made = tokenizer.encode__second__maxLength(*want["text"], 24)
            assert (made.ids, made.typeIds) == (want["ids"], want["type_ids"]), (family, want["text"])
            assert [list(o) for o in zip(made.starts, made.ends, strict=True)] == want["offsets"], (
                family,
                want["text"],
            )


def trained_bytes() -> Tokenizer:
    made = Tokenizer(models.BPE(unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=["<s>", "</s>", "<unk>"],
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    made.train_from_iterator(awkward_texts(200, seed=4), trainer)
    return made


def roberta_with_blanks() -> str:
    """Places that lose white space, in two ways."""
    made = trained_bytes()
    made.add_tokens(["  ", "   "])
    made.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0), add_prefix_space=True)
    return str(made.to_str())


def template_behind_byte_level() -> str:
    made = trained_bytes()
    made.normalizer = normalizers.NFC()
    template = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B:1 </s>:1", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    made.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True), template])
    return str(made.to_str())


def without_a_frame() -> str:
    made = trained_bytes()
    pieces = {"<unk>": 0, "a": 1, "##b": 2, "ab": 3, "c_": 4, "##c_": 5}
    affixes = {"continuing_subword_prefix": "##", "end_of_word_suffix": "_"}
    made.model = models.BPE(vocab=pieces, merges=[("a", "##b")], unk_token="<unk>", fuse_unk=True, **affixes)
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return str(made.to_str())


def sentencepiece_with_bytes() -> str:
    draw = random.Random(3)
    letters = "▁abcdefghijklmnopqrstuvwxyz가あ的é"
    pieces = [*letters, *sorted({"".join(draw.choices(letters[:9], k=draw.randint(2, 5))) for _ in range(400)})]
    scores = [("<unk>", 0.0), *((b, -20.0) for b in BYTES), *((p, -draw.random() * 12) for p in pieces)]
    made = Tokenizer(models.Unigram(scores, 0, True))
    made.normalizer = normalizers.Sequence(
        [normalizers.Nmt(), normalizers.NFKC(), *(normalizers.Replace(Regex(p), " ") for p in _SWIFT_PATTERNS)]
    )
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    made.post_processor = processors.BertProcessing(("<unk>", 0), ("<0x00>", 1))
    return str(made.to_str())


WHOLE: dict[str, Callable[[], str]] = {
    "SentencePiece with bytes": sentencepiece_with_bytes,
    "roberta": roberta_with_blanks,
    "template": template_behind_byte_level,
    "prefix and suffix": without_a_frame,
}


@pytest.mark.parametrize("name", [*WHOLE, "added tokens", "bert"])
def test_pairs_limits_and_windows(name: str, kind: Kind, opened: Callable[[str], Any]) -> None:
    bert = (kind("bert") / "tokenizer.json").read_text("utf-8")
    content = WHOLE[name]() if name in WHOLE else with_added_tokens(bert) if name == "added tokens" else bert
    texts = [*awkward_texts(70, seed=6), "a ab abc abb c xyz ab", "  two   blanks    and  four"]
    tokenizer = opened(content)
    for row in library_rows(Tokenizer.from_str(content), texts):
        given, most = [texts[i] for i in row["texts"]], row.get("most", ENDLESS)
        if "stride" in row:
            made = tokenizer.windows__question__context__maxLength__stride(*given, most, row["stride"])
        elif len(given) == 2:
            made = [tokenizer.encode__second__maxLength__keepsEnd(*given, most, row.get("left", False))]
        else:
            made = [tokenizer.encode__maxLength__keepsEnd(*given, most, row.get("left", False))]
        got = [[e.ids, e.typeIds, e.starts, e.ends, e.words, e.parts, e.truncated] for e in made]
        assert got == row["encodings"], (given, most)


@pytest.mark.parametrize("name", [*WHOLE, "added tokens", "bert"])
@pytest.mark.parametrize("side", ["right", "left"])
def test_the_side_of_the_cut(name: str, side: str, kind: Kind, opened: Callable[[str], Any]) -> None:
    bert = (kind("bert") / "tokenizer.json").read_text("utf-8")
    content = WHOLE[name]() if name in WHOLE else with_added_tokens(bert) if name == "added tokens" else bert
    library, tokenizer, draw = Tokenizer.from_str(content), opened(content), random.Random(8)
    library.no_padding()
    texts = [*awkward_texts(20, seed=7), "a ab abc abb c xyz ab", "  two   blanks    and  four", "", "ab"]
    special = library.num_special_tokens_to_add(True)
    for given in [*([t] for t in texts), *([a, draw.choice(texts)] for a in texts)]:
        for room in (1, 2, draw.randint(3, 12), draw.randint(3, 30)):
            library.enable_truncation(special + room, direction=side)
            want = library.encode(*given)
            if len(given) == 2:
                made = tokenizer.encode__second__maxLength__keepsEnd(*given, special + room, side == "left")
            else:
                made = tokenizer.encode__maxLength__keepsEnd(*given, special + room, side == "left")
            got = (made.ids, made.typeIds, [*zip(made.starts, made.ends, strict=True)], made.truncated)
            assert got == (want.ids, want.type_ids, want.offsets, bool(want.overflowing)), (given, room)
            assert made.parts == [-1 if p is None else p for p in want.sequence_ids]


def steps() -> Iterator[tuple[str, str]]:
    """A tokenizer for each normalizer and pre-tokenizer that the Swift sources read."""
    for name, normalizer in NORMALIZERS.items():
        yield f"normalizer-{name}", byte_tokens(normalizer(), pre_tokenizers.WhitespaceSplit())
    for name, splitter in SPLITTERS.items():
        yield f"splitter-{name}", byte_tokens(None, splitter())


def test_every_step_they_read_and_no_other(opened: Callable[[str], Any], swift: dict[str, Any]) -> None:
    texts, read, refused = awkward_texts(60, seed=9), set(), set()
    for name, content in steps():
        if (why := SWIFT.refusal(json.loads(content))) is not None:
            assert why.startswith("the Swift sources do not read the ")
            with pytest.raises(swift["TokenizerError"]):
                opened(content)
            refused.add(name)
            continue
        read.add(name)
        tokenizer, library = opened(content), Tokenizer.from_str(content)
        for text in texts:
            made, want = tokenizer.encode__maxLength(text, ENDLESS), library.encode(text)
            assert made.ids == want.ids, (name, text)
            assert list(zip(made.starts, made.ends, strict=True)) == want.offsets, (name, text)
    assert {"normalizer-nfc", "normalizer-nmt", "normalizer-prepend", "splitter-bert", "splitter-metaspace"} <= read
    assert {"normalizer-replace", "splitter-delimiter", "splitter-punctuation-next"} <= refused


def test_the_class_in_the_page_pads(kind: Kind, swift: dict[str, Any], packed: Path) -> None:
    json_bytes = (kind("bert") / "tokenizer.json").read_bytes()
    inputs = swift["TextInputs"](json_bytes, (packed / "unicode.bin").read_bytes())
    ids = Tokenizer.from_file(str(kind("bert") / "tokenizer.json")).encode("set an alarm").ids
    made = inputs.make__lengths("set an alarm", [4, 8, 16])
    assert (made.ids, made.mask) == ([*ids, *[0] * (8 - len(ids))], [1] * len(ids) + [0] * (8 - len(ids)))
    assert made.typeIds == [0] * 8
    assert inputs.make__lengths("set an alarm", []).ids == ids
    assert inputs.make__lengths__prompt("an alarm", [], "set ").ids == ids


def test_a_tokenizer_that_they_refuse_has_no_sources(
    kind: Kind, pack: Pack, opened: Any, swift: dict[str, Any]
) -> None:
    folder = kind(NOT_READ)
    done = pack(folder)
    assert done.absent["ios/"].startswith("the Swift sources do not read the pre-tokenizer Split")
    assert not any(name.startswith("ios/") for name in done.kinds)
    assert "android/README.md" in done.kinds
    with pytest.raises(swift["TokenizerError"], match="is not supported"):
        opened((folder / "tokenizer.json").read_text("utf-8"))


def test_broken_files_are_refused(kind: Kind, opened: Any, swift: dict[str, Any], packed: Path) -> None:
    right = (kind("bert") / "tokenizer.json").read_text("utf-8")
    wrong = {
        right[:1000]: "it ends in the middle|a text without an end",
        right + "{}": "more behind its end",
        right.replace('"version"', '"future"'): "'future' is not known here",
        right.replace('"BertNormalizer"', '"Other"'): "the normalizer 'Other' is not supported",
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


def test_ids_of_tokens(kind: Kind, opened: Any) -> None:
    content = (kind("bert") / "tokenizer.json").read_text("utf-8")
    tokenizer, library = opened(content), Tokenizer.from_str(content)
    assert tokenizer.id__of("[MASK]") == library.token_to_id("[MASK]")
    assert tokenizer.id__of("nothing of the kind") is None
    assert tokenizer.specialTokens__pair(True) == 3
