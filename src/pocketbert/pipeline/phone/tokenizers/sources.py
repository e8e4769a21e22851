"""Copy a tokenizer's sources in Java and Swift into an artefact folder, and check the Java ones against the checkpoint's library.

`pack_sources` copies them if they can read the folder's tokenizer.json (`Reader.refusal` gives the reason if not);
`java_gates` compiles the Java sources, where a JDK and Gson are installed, and compares their token ids with the library's.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template
from typing import Any

from pocketbert.core.artefacts import Artefacts, Kind, Processing
from pocketbert.core.compare.golden import LibraryAnswers, LibraryRow
from pocketbert.core.disk.files import read_json
from pocketbert.core.host.system import home_folder
from pocketbert.core.models.tokenizers import SEGMENT_INPUT
from pocketbert.core.predict.sentence_settings import Prompts
from pocketbert.core.predict.tokenizer_file import MAX_TOKENIZER_MIB
from pocketbert.pipeline.formats.snippets.parts import quote_for_java, quote_for_swift
from pocketbert.pipeline.gates.library import LIBRARY_TEXT_GATE
from pocketbert.pipeline.results import Gate

Content = Mapping[str, Any]
_STEPS = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "post_processor": "processors"}
"""Key of the steps inside a Sequence of each part of tokenizer.json."""
_TITLES = {"normalizer": "normalizer", "pre_tokenizer": "pre-tokenizer", "post_processor": "post-processor"}
_SPECIAL_STEPS = ("BertProcessing", "RobertaProcessing", "TemplateProcessing")
"""Post-processors that add special tokens; none may follow one."""
_UNSUPPORTED_PATTERN = re.compile(r"\(\?(?![:=!>]|<[=!])|\\[1-9RXGkghHyY]")
"""Named groups, options in brackets, references to groups, and classes that the readers do not know."""


@dataclass(frozen=True)
class Reader:
    """The types of tokenizers, by the parts of tokenizer.json, that the sources in one language support.

    Attributes:
        title: Name of the sources, as the subject of a sentence.
        normalizers: Supported types of normalizers.
        pre_tokenizers: Supported types of pre-tokenizers.
        post_processors: Supported types of post-processors.
        models: Supported types of models.
        further: Function that yields what else of a tokenizer.json is not supported; None if the types decide it all.
    """

    title: str
    normalizers: tuple[str, ...]
    pre_tokenizers: tuple[str, ...]
    post_processors: tuple[str, ...]
    models: tuple[str, ...]
    further: Callable[[Content], Iterator[str]] | None = None

    def refusal(self, content: Content) -> str | None:
        """Return the first reason why the sources do not support a tokenizer.

        Args:
            content: Content of tokenizer.json.

        Returns:
            The reason; None if they support it.
        """
        return next(self._problems(content), None)

    def _problems(self, content: Content) -> Iterator[str]:
        """Yield a sentence on each part of a tokenizer that the sources do not support."""
        known = {
            "normalizer": self.normalizers,
            "pre_tokenizer": self.pre_tokenizers,
            "post_processor": self.post_processors,
        }
        kind = _model_type(content)
        if kind not in self.models:
            yield f"{self.title} do not read a model of type {kind}, only {', '.join(self.models)}"
        for part, types in known.items():
            for step in _steps(content, part):
                if step.get("type") not in types:
                    yield f"{self.title} do not read the {_TITLES[part]} {step.get('type')}"
        yield from (f"{self.title} do not read {what}" for what in _unsupported_by_all(content))
        if self.further is not None:
            yield from (f"{self.title} do not read {what}" for what in self.further(content))


def _model_type(content: Content) -> str:
    """Return the type of a tokenizer's model, such as WordPiece. For files from before 2021 it is guessed."""
    model = content["model"]
    if "type" in model:
        return str(model["type"])
    return "BPE" if "merges" in model else "Unigram" if isinstance(model["vocab"], list) else "WordPiece"


def _steps(content: Content, part: str) -> Iterator[Content]:
    """Yield the steps of one part of tokenizer.json. The steps of a nested Sequence are yielded one by one.

    Args:
        content: Content of tokenizer.json.
        part: ``normalizer``, ``pre_tokenizer`` or ``post_processor``.
    """
    pending = [content.get(part)]
    while pending:
        step = pending.pop(0)
        if step is not None and step.get("type") == "Sequence":
            pending = [*step[_STEPS[part]], *pending]
        elif step is not None:
            yield step


def _patterns(content: Content) -> Iterator[str]:
    """Yield the regular expressions in the normalizer and pre-tokenizer of a tokenizer."""
    for part in ("normalizer", "pre_tokenizer"):
        for step in _steps(content, part):
            pattern = step.get("pattern")
            if isinstance(pattern, Mapping) and "Regex" in pattern:
                yield str(pattern["Regex"])


def _unsupported_by_all(content: Content) -> Iterator[str]:
    """Yield a phrase on each option of a tokenizer that neither the Java nor the Swift sources support."""
    model, kind = content["model"], _model_type(content)
    if model.get("dropout"):
        yield "a BPE model with 'dropout', which gives other tokens each time"
    if model.get("byte_fallback") and (model.get("continuing_subword_prefix") or model.get("end_of_word_suffix")):
        yield "a BPE model with 'byte_fallback' and a prefix or suffix of pieces"
    if kind == "Unigram" and model.get("unk_id") is None:
        yield "a model of type Unigram without 'unk_id'"
    adds_special_tokens = False
    for step in _steps(content, "post_processor"):
        if adds_special_tokens:
            yield f"the post-processor {step['type']} behind one that adds special tokens"
        adds_special_tokens = adds_special_tokens or step["type"] in _SPECIAL_STEPS
        if step.get("trim_offsets") and kind == "Unigram":
            yield "a post-processor with 'trim_offsets' and a model of type Unigram"
    for pattern in _patterns(content):
        if _UNSUPPORTED_PATTERN.search(pattern):
            yield f"the regular expression {pattern[:60]!r}"


_SWIFT_PATTERNS = (" {2,}", r"\s{2,}|[\n\r\t]")
"""The regular expressions that the Swift sources support: those of SentencePiece's tokenizers."""


def _unsupported_in_swift(content: Content) -> Iterator[str]:
    """Yield a phrase on each option of a tokenizer that the Java sources support and the Swift sources do not."""
    yield from (f"the regular expression {p[:60]!r}" for p in _patterns(content) if p not in _SWIFT_PATTERNS)
    for step in _steps(content, "pre_tokenizer"):
        if step["type"] == "Punctuation" and str(step.get("behavior")).startswith("MergedWith"):
            yield f"the pre-tokenizer Punctuation with the behavior {step['behavior']}"


_POST_PROCESSORS = ("BertProcessing", "ByteLevel", "RobertaProcessing", "TemplateProcessing")
_NORMALIZERS = "BertNormalizer ByteLevel Lowercase NFC NFD NFKC NFKD Nmt Precompiled Prepend Replace Strip StripAccents"
_JAVA_PRE_TOKENIZERS = (
    "BertPreTokenizer ByteLevel CharDelimiterSplit Digits Metaspace Punctuation Split Whitespace WhitespaceSplit"
)

JAVA = Reader(
    title="the Java sources",
    normalizers=tuple(_NORMALIZERS.split()),
    pre_tokenizers=tuple(_JAVA_PRE_TOKENIZERS.split()),
    post_processors=_POST_PROCESSORS,
    models=("BPE", "Unigram", "WordLevel", "WordPiece"),
)
SWIFT = Reader(
    title="the Swift sources",
    normalizers=tuple(_NORMALIZERS.split()),
    pre_tokenizers=tuple("BertPreTokenizer ByteLevel Digits Metaspace Punctuation Whitespace WhitespaceSplit".split()),
    post_processors=_POST_PROCESSORS,
    models=("BPE", "Unigram", "WordPiece"),
    further=_unsupported_in_swift,
)


_PACKAGE = "pocketbert.pipeline.phone.tokenizers"
_README = "README.md"


@dataclass(frozen=True)
class Sources:
    """The source files of a tokenizer for one platform, with their README and the tokenizers that they support.

    Attributes:
        folder: Folder of the source files in the artefact folder.
        page: File next to this module that describes what the sources need and how to call them.
        reader: The tokenizers that the sources support.
        origins: Installed files, and folders with everything in them, by their path below `folder`; relative to this
            module.
    """

    folder: str
    page: str
    reader: Reader
    origins: Mapping[str, str]

    def copied(self) -> dict[str, bytes]:
        """Return the content of the source files, by their path in the artefact folder."""
        root = files(_PACKAGE)
        contents = (
            f for name, origin in self.origins.items() for f in _read_below(root.joinpath(*origin.split("/")), name)
        )
        return {f"{self.folder}/{name}": content for name, content in sorted(contents)}

    def readme(self, processing: Processing, pad_id: int) -> str:
        """Return the README of a tokenizer's source files, filled with the settings of an artefact folder."""
        text = (files(_PACKAGE) / self.page).read_text(encoding="utf-8")
        left = str(processing.padding_side == "left").lower()
        values = {
            "max_length": processing.max_length,
            "pad_id": pad_id,
            "left": left,
            "keeps_end": str(processing.truncation_side == "left").lower(),
            "swift_prompt": quote_for_swift(processing.named_prompts.text_of(None)),
        }
        return Template(text).substitute(values | _prompts_in_java(processing))


_TABLES = "java/resources/org/pocketbert/tokenizers"
ANDROID = Sources(
    folder="android",
    page="java.md",
    reader=JAVA,
    origins={
        "java/org/pocketbert/tokenizers": "java/java/org/pocketbert/tokenizers",
        "java/org/pocketbert/text/Batch.java": "java/java/org/pocketbert/text/Batch.java",
        "resources/org/pocketbert/tokenizers": _TABLES,
    },
)
IOS = Sources(
    folder="ios",
    page="swift.md",
    reader=SWIFT,
    origins={"Tokenizer": "swift", "unicode.bin": f"{_TABLES}/unicode.bin"},
)
PLATFORMS = (ANDROID, IOS)


@dataclass(frozen=True)
class PackedSources:
    """Records of the tokenizer sources that were copied, and the reasons for those that were not.

    Attributes:
        kinds: Kind of every file, by its path in the artefact folder.
        absent: Reasons why sources were not copied, by their folder.
    """

    kinds: Mapping[str, Kind] = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict)


def pack_sources(destination: Path, processing: Processing, pad_id: int) -> PackedSources:
    """Copy the Java and Swift sources that support an artefact folder's tokenizer into that folder.

    Args:
        destination: The artefact folder that is being written; it has tokenizer.json already.
        processing: How inputs are made from texts; it is written into the README of each platform.
        pad_id: Id of the padding token.
    """
    content = read_json(destination / "tokenizer.json", MAX_TOKENIZER_MIB)
    kinds, absent = dict[str, Kind](), dict[str, str]()
    for platform in PLATFORMS:
        why = platform.reader.refusal(content)
        if why is not None:
            absent[f"{platform.folder}/"] = why
            continue
        page = platform.readme(processing, pad_id).encode()
        for name, text in {**platform.copied(), f"{platform.folder}/{_README}": page}.items():
            (destination / name).parent.mkdir(parents=True, exist_ok=True)
            (destination / name).write_bytes(text)
            kinds[name] = Kind.TOOL
    return PackedSources(kinds, absent)


def _prompts_in_java(processing: Processing) -> dict[str, str]:
    """Return the values for java.md's placeholders for prompts and truncation; empty texts if there are no prompts."""
    values = dict.fromkeys(("imports", "prompts", "default_prompt", "parameter", "prompt", "prompt_note"), "")
    values["limits"] = "keepingEnd" if processing.truncation_side == "left" else "of"
    if not processing.prompts:
        return values
    each = ",\n".join(
        f"            Map.entry({quote_for_java(name)}, {quote_for_java(text)})"
        for name, text in processing.prompts.items()
    )
    return values | {
        "imports": "\nimport java.util.Map;",
        "prompts": _PROMPTS.substitute(each=each, default=quote_for_java(processing.named_prompts.text_of(None))),
        "default_prompt": _BEHIND_DEFAULT_PROMPT,
        "parameter": ", String prompt",
        "prompt": "prompt + ",
        "prompt_note": "\nThe prompt of a pair is put in front of its first text.",
    }


_PROMPTS = Template("""
    /** The texts that the model was trained to see in front of a text, by name. */
    public static final Map<String, String> PROMPTS = Map.ofEntries(
$each);

    /** The one in front of a text for which none is named; empty for none. */
    public static final String DEFAULT_PROMPT = $default;
""")
_BEHIND_DEFAULT_PROMPT = """    /** Returns the inputs of a text behind the default prompt. */
    public Batch of(String text) {
        return of(text, DEFAULT_PROMPT);
    }

"""


def _read_below(entry: Traversable, name: str) -> list[tuple[str, bytes]]:
    """Return path and content of a packaged file, or of every file in a packaged folder. Paths begin with `name`."""
    if entry.is_file():
        return [(name, entry.read_bytes())]
    return [file for inner in entry.iterdir() for file in _read_below(inner, f"{name}/{inner.name}")]


SWITCH = "POCKETBERT_JAVA"
"""Environment variable: ``no`` skips the check of the Java sources, whose compilation takes seconds."""
_GSON = ".m2/repository/com/google/code/gson/gson"
_MAIN = "AskTokenizer"


def java_gates(folder: Path, artefacts: Artefacts, library: LibraryAnswers | None) -> list[Gate]:
    """Compile the folder's Java tokenizer, and compare its token ids with those of the checkpoint's library.

    The Java sources that are compiled and run are always those of this installation. A folder with other sources is not
    checked.

    Args:
        folder: The artefact folder.
        artefacts: Content of the folder's ``artifacts.json``.
        library: Token ids of the checkpoint's library.

    Returns:
        A list with one gate. Empty if nothing is checked: without Java sources in the folder, without ids of the library,
        without a JDK and Gson on this machine, or if the environment variable `SWITCH` says no.
    """
    if library is None or library.missing or os.environ.get(SWITCH) == "no":
        return []
    copied = ANDROID.copied()
    same = all(
        (folder / name).is_file() and (folder / name).read_bytes() == content for name, content in copied.items()
    )
    if not same or (classes := _compile_java()) is None:
        return []
    processing = artefacts.processing
    prompts = processing.named_prompts
    rows = [row for row in library.rows if row.prompt is None or row.prompt in prompts.named]
    answers = _tokenize_in_java(
        classes, folder / "tokenizer.json", processing.max_length, processing.truncation_side, rows, prompts
    )
    if answers is None:
        return []
    segments = any(
        t.name == SEGMENT_INPUT for r in artefacts.models() if r.plain and r.signature for t in r.signature.inputs
    )
    wrong = [
        row.called
        for row, (ids, types) in zip(rows, answers, strict=True)
        if ids != row.ids or (segments and types != row.type_ids)
    ]
    detail = f"the Java sources give {len(rows)} texts the ids of {library.library}."
    if wrong:
        detail = f"the Java sources give {len(wrong)} of {len(rows)} texts other inputs than {library.library}, e.g. {wrong[0]}."
    return [
        Gate(
            name=LIBRARY_TEXT_GATE, file="android/", passed=not wrong, value=float(len(wrong)), bound=0.0, detail=detail
        )
    ]


@cache
def _compile_java() -> tempfile.TemporaryDirectory[str] | None:
    """Compile the Java tokenizer once per process into a temporary folder; None if JDK 17 or Gson is missing."""
    home = home_folder()
    jars = sorted((home / _GSON).glob("*/gson-*.jar")) if home is not None else []
    if shutil.which("javac") is None or shutil.which("java") is None or not jars:
        return None
    folder = tempfile.TemporaryDirectory()
    root = Path(folder.name)
    for name, content in ANDROID.copied().items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    shutil.copyfile(jars[-1], root / "gson.jar")
    main = root / f"{_MAIN}.java"
    main.write_bytes((files(__package__) / main.name).read_bytes())
    sources = [str(p) for p in (root / "android/java").rglob("*.java")]
    command = [
        "javac",
        "--release",
        "17",
        "-cp",
        str(root / "gson.jar"),
        "-d",
        str(root / "classes"),
        *sources,
        str(main),
    ]
    done = subprocess.run(command, capture_output=True, check=False)
    return folder if done.returncode == 0 else None  # an older JDK


def _tokenize_in_java(
    classes: tempfile.TemporaryDirectory[str],
    tokenizer: Path,
    length: int,
    side: str,
    rows: Sequence[LibraryRow],
    prompts: Prompts,
) -> list[tuple[list[int], list[int]]] | None:
    """Tokenize texts, each after its prompt, in one Java process, and return token and segment ids of each text.

    Args:
        classes: Folder of the compiled tokenizer.
        tokenizer: Path of tokenizer.json.
        length: Longest input in tokens.
        side: Side on which long texts are cut.
        rows: The texts.
        prompts: The prompts by name.

    Returns:
        The ids; None if Java does not start. If the tokenizer fails, the ids of every text are empty.
    """
    root = Path(classes.name)
    path = os.pathsep.join(map(str, (root / "classes", root / "gson.jar", root / "android/resources")))
    texts = [prompts.put_before([row.text], row.prompt)[0] for row in rows]
    parts = [(text,) if isinstance(text, str) else text for text in texts]
    lines = [" ".join(base64.b64encode(part.encode()).decode() for part in row_parts) for row_parts in parts]
    command = ["java", "-cp", path, _MAIN, str(tokenizer), str(length), side]
    done = subprocess.run(command, input="\n".join(lines) + "\n", capture_output=True, text=True, check=False)
    if "AskTokenizer" not in done.stderr and done.returncode:
        return None
    answers = [json.loads(line) for line in done.stdout.splitlines()] if done.returncode == 0 else []
    return [(ids, types) for ids, types in answers] if len(answers) == len(rows) else [([], [])] * len(rows)
