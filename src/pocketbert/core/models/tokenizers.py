"""tokenizer.json out of the files that authors publish without it: vocab.txt, vocab.json and merges.txt, SentencePiece models.

transformers converts; what it made is compared with the library that owns the format, because a conversion that leaves a step
out still gives tokens. Imports transformers and sentencepiece inside its functions.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, normalizers

from pocketbert.core.disk.files import read_json, write_atomic, write_json
from pocketbert.core.disk.ownership import temporary_folder
from pocketbert.core.errors import InputError, MissingBackendError, Problem
from pocketbert.core.families import CheckpointCode, Family
from pocketbert.core.families.table import checkpoint_code
from pocketbert.core.host.progress import say
from pocketbert.core.host.system import version_of
from pocketbert.core.predict.sentence_settings import SETTINGS_FILE
from pocketbert.core.predict.tokenization import TextTokenizer, plain_tokenizer_json
from pocketbert.core.predict.tokenizer_file import MAX_MIB, library_errors, template_types

# --- tokenizer ---
# Checks that the tokenizer of a model folder belongs to the model.


VOCABULARY = "vocab.txt"
"""WordPiece's vocabulary, one token in a line: what clients without a reader of tokenizer.json take."""
OTHER_FILES = (
    VOCABULARY,
    "vocab.json",
    "merges.txt",
    "spiece.model",
    "spm.model",
    "sentencepiece.bpe.model",
    "special_tokens_map.json",
    "tokenizer_config.json",
)
"""Files of a tokenizer next to tokenizer.json, as authors ship them; libraries read them whole."""


def check_tokenizer(folder: Path, config: Mapping[str, Any], family: Family) -> None:
    """Refuse a tokenizer whose tokens the model cannot take; does nothing where the folder has no tokenizer.json.

    Args:
        folder: A Hugging Face model folder.
        config: Its checked configuration.
        family: Its row of the family table.

    Raises:
        InputError: Naming everything that is wrong.
    """
    problems = []
    for name in OTHER_FILES:
        file = folder / name
        if file.is_file() and file.stat().st_size > MAX_MIB << 20:
            problems.append(Problem(str(file), f"larger than {MAX_MIB} MiB, refused."))
    if problems:
        raise InputError(problems)
    file = folder / "tokenizer.json"
    if not file.is_file():
        return
    tokenizer = TextTokenizer(folder, _ANY_LENGTH, pad_id=0, padding_side=family.padding_side)
    content = read_json(file, MAX_MIB)
    found = [*_against_table(tokenizer, config.get("vocab_size"))]
    if tokenizer.vocabulary_size <= len(tokenizer.special_ids):
        found.append("has special tokens only: every text would be the same to the model.")
    if tokenizer.special_count == 0:
        found.append("puts no special tokens around a text ([CLS], [SEP]); the model was trained with them.")
    segments, highest = config.get("type_vocab_size"), template_types(content)
    if family.uses_segments and segments is not None and highest >= segments:
        found.append(f"gives tokens the segment {highest}, the model has {segments} segments.")
    if found:
        raise InputError([Problem(str(file), what, "Use the tokenizer of this model.") for what in found])


_ANY_LENGTH = 1 << 20


def _against_table(tokenizer: TextTokenizer, rows: int | None) -> list[str]:
    if rows is None or tokenizer.largest_id < rows:
        return []
    return [
        f"its largest token id is {tokenizer.largest_id:,}, the model has {rows:,} rows: it belongs to another model."
    ]


_NO_CODE = CheckpointCode()
_VOCABULARIES = ("vocab.txt", "vocab.json", "merges.txt")
_FIX = "Put the tokenizer's files that the authors publish into the folder."
_SPACE = "▁"
"""How SentencePiece writes a blank."""
_ALLOWED = 0.1
"""Share of the texts on which a faithful conversion may differ: characters that the vocabulary hardly knows."""
_CASED = 0.05
"""Share of words with upper-case letters from which a vocabulary is one of cased text."""
TEXTS = (
    "Set an alarm for half past six tomorrow morning.",
    "The film was far better than I had expected; HELLO, IS ANYBODY THERE?",
    "My order number is 48-2291-C, it costs 1,000.50 or 80%.",
    "He said that she said that they had said nothing at all.",
    "http-style words such as foo/bar?x=1&y=2 and C:\\notes [2]",
    "  blanks   in odd   places  ",
    "``quoted'' and 'single' and \"double\"",
    "naïve café façade — “quoted” … and so on",
    "Zażółć gęślą jaźń, smørrebrød & crème brûlée, Straße",
    "İstanbul'da hava nasıl, ışıklar açık mı?",
    "Где ближайшая аптека? Πού είναι ο σταθμός;",
    "明天早上七点叫我起床。今日はとても良い天気ですね。",
    "오늘 날씨가 어때요?",
    "أين أقرب محطة قطار؟ שלום עולם",
    "मुझे कल सुबह छह बजे जगाना।",
    "กรุงเทพมหานคร เป็นเมืองหลวง",
    "Trời hôm nay đẹp quá!",
    "e\u0301 o\u0308 a\u0301\u0323 combined",
    "👩‍👩‍👧 👍🏽 🏳️‍🌈 with joiners",
    "supercalifragilistic" * 6,
    "tab\tnew\nline\u00a0no-break\u3000wide",
    "½ ﬁ ① Ａ … ™",
)
"""Texts to compare conversions on: plain ones, many scripts, and what normalizations differ in."""


def converted_tokenizer(source: Path, code: CheckpointCode = _NO_CODE) -> str:
    """Convert the tokenizer of a folder that has no tokenizer.json.

    Args:
        source: A Hugging Face folder.
        code: What the model's family knows better than transformers.

    Returns:
        The content of tokenizer.json.

    Raises:
        InputError: If the folder has no vocabulary, its settings contradict it, or the tokens are not those of the library that
            owns the format.
        MissingBackendError: If that library is not installed.
    """
    if code.check_tokenizer is not None:
        code.check_tokenizer(source)
    _check_present(source)
    if code.tokenizer_json is not None:
        return code.tokenizer_json(source)
    models = _models(source)
    with library_errors(str(source), "no usable tokenizer"):  # many kinds, among them files of another system
        backend = _by_transformers(source)
        if code.change_tokenizer is not None:
            backend = Tokenizer.from_str(json.dumps(code.change_tokenizer(source, json.loads(backend.to_str()))))
    if len(models) == 1:
        backend = _as_published(backend, models[0])
    _check_case(source, backend)
    return str(backend.to_str())


def vocabulary_files(source: Path) -> list[str]:
    """Names of the files in a folder that a tokenizer is made of where there is no tokenizer.json.

    Args:
        source: A Hugging Face folder.
    """
    return [*(n for n in _VOCABULARIES if (source / n).is_file()), *(m.name for m in _models(source))]


def _models(source: Path) -> list[Path]:
    return sorted(p for p in source.glob("*.model") if p.is_file())


def _check_present(source: Path) -> None:
    """Refuse a folder from which nothing could be converted, and name the library that is missing."""
    names = vocabulary_files(source)
    if names == ["vocab.json"] or names == ["merges.txt"]:
        other = "merges.txt" if names == ["vocab.json"] else "vocab.json"
        raise InputError(Problem(f"{source}/{other}", f"file not found; {names[0]} needs it.", _FIX))
    if not names:
        what = "file not found, and no vocabulary to make it of: vocab.txt, vocab.json with merges.txt, or a SentencePiece model (*.model)."
        raise InputError(Problem(f"{source}/tokenizer.json", what, _FIX))
    if (models := _models(source)) and version_of("sentencepiece") is None:
        raise MissingBackendError(f"the library that reads {models[0].name}", "pip install 'pocketbert[sentencepiece]'")
    if version_of("transformers") is None:
        raise MissingBackendError(f"the library that reads {names[0]}", "pip install 'pocketbert[train,onnx]'")


def _by_transformers(source: Path) -> Tokenizer:
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(str(source), local_files_only=True, trust_remote_code=False)
    backend: Tokenizer = tokenizer.backend_tokenizer
    # of files that its class does not read the library makes a tokenizer of special tokens alone, and says nothing
    if backend.get_vocab_size() <= len(tokenizer.all_special_ids):
        read, names = type(tokenizer).__name__, " and ".join(vocabulary_files(source))
        what = f"{read} of transformers reads another kind of vocabulary than {names}."
        raise InputError(Problem(str(source), what, f"Name the right tokenizer_class in tokenizer_config.json. {_FIX}"))
    return backend


def _as_published(backend: Tokenizer, path: Path) -> Tokenizer:
    """The converted tokenizer with the model's own normalization where the converter left that out, compared with the model."""
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2

    if path.stat().st_size > MAX_MIB << 20:
        raise InputError(Problem(str(path), f"larger than {MAX_MIB} MiB, refused."))
    raw = path.read_bytes()
    with library_errors(str(path), "not a SentencePiece model"):
        processor = sentencepiece.SentencePieceProcessor(model_proto=raw)
        model: Any = vars(sentencepiece_model_pb2)["ModelProto"]
        table = model.FromString(raw).normalizer_spec.precompiled_charsmap
    best, fewest = backend, differences(backend, processor, TEXTS)
    for more in ((), (normalizers.NFC(),)) if table and fewest else ():
        first = [] if backend.normalizer is None else [backend.normalizer]
        changed = Tokenizer.from_str(backend.to_str())
        changed.normalizer = normalizers.Sequence([*first, *more, normalizers.Precompiled(table)])
        found = differences(changed, processor, TEXTS)
        if len(found) < len(fewest):
            best, fewest = changed, found
    _report(path, fewest, len(TEXTS))
    return best


def _report(path: Path, found: Sequence[str], count: int) -> None:
    """Refuse a conversion that gives other tokens; list the odd texts on which a faithful one differs."""
    if len(found) > _ALLOWED * count:
        what = f"transformers converts it to a tokenizer with other tokens for {len(found)} of {count} texts, e.g. {found[0]}."
        raise InputError(Problem(str(path), what, "Put the tokenizer.json that its authors publish into the folder."))
    for line in found:
        say(f"{path.name}: the converted tokenizer differs from the sentencepiece library: {line}")


def differences(backend: Tokenizer, processor: Any, texts: Iterable[str]) -> list[str]:
    """List the texts that a converted tokenizer cuts otherwise than the SentencePiece model.

    What the family's own tokenizer does first, such as lower case, is kept. Cuts with equal scores count as equal: the model
    prefers none of them.

    Args:
        backend: The converted tokenizer.
        processor: The model, opened by the sentencepiece library.
        texts: Texts to compare on.

    Returns:
        One line per text, with the first tokens that differ.
    """
    unknown, out = json.loads(backend.to_str())["model"].get("unk_id"), []
    for text in texts:
        plain = text if backend.normalizer is None else backend.normalizer.normalize_str(text)
        ids = backend.encode(text, add_special_tokens=False).ids
        meant = processor.encode(plain.replace(_SPACE, " "))
        made_pieces = [None if i == unknown else backend.id_to_token(i) for i in ids]
        meant_pieces = [None if i == processor.unk_id() else processor.id_to_piece(i) for i in meant]
        if made_pieces == meant_pieces or _equally_good(made_pieces, meant_pieces, processor):
            continue
        at = next((i for i, (a, b) in enumerate(zip(made_pieces, meant_pieces, strict=False)) if a != b), 0)
        out.append(f"{text[:40]!r} gives {made_pieces[at : at + 3]} instead of {meant_pieces[at : at + 3]}")
    return out


def _equally_good(one: Sequence[str | None], other: Sequence[str | None], processor: Any) -> bool:
    """Whether two ways to cut a text have the same score."""
    if one.count(None) != other.count(None) or "".join(map(str, one)) != "".join(map(str, other)):
        return False
    scores = [sum(processor.get_score(processor.piece_to_id(p)) for p in pieces if p) for pieces in (one, other)]
    return math.isclose(*scores, abs_tol=1e-3)


def _check_case(source: Path, backend: Tokenizer) -> None:
    """Refuse to lower-case text for a vocabulary of cased words where no file says that it must be done."""
    settings = source / "tokenizer_config.json"
    stated = read_json(settings, MAX_MIB) if settings.is_file() else {}
    made = json.loads(backend.to_str()).get("normalizer") or {}
    if (isinstance(stated, dict) and "do_lower_case" in stated) or not made.get("lowercase"):
        return
    words = [w for w in backend.get_vocab() if not (w.startswith("[") and w.endswith("]"))]
    cased = sum(w != w.lower() for w in words)
    if words and cased / len(words) > _CASED:
        raise InputError(
            Problem(
                str(source),
                f"{cased:,} of the {len(words):,} words of its vocabulary have upper-case letters, and no file states whether text "
                "is lower-cased, which transformers would do.",
                'Write {"do_lower_case": false} into tokenizer_config.json, or true where the authors lower-case text.',
            )
        )


# --- tokenizer_settings ---
# What the files around tokenizer.json change about it, written into it, so that every client reads one file and gets the same ids.
#
# transformers and sentence-transformers read tokenizer.json and then change the tokenizer by their own settings. Clients that know
# only tokenizer.json would give other ids.


SEGMENTS = "token_type_ids"
SENTENCE_FILE = "sentence_bert_config.json"
"""Where sentence-transformers keeps the longest input and lower case."""
_BERT_CLASSES = (
    "BertTokenizer",
    "DistilBertTokenizer",
    "ElectraTokenizer",
    "MobileBertTokenizer",
    "ConvBertTokenizer",
    "LayoutLMTokenizer",
)
"""Classes of transformers that make the normalizer anew from the settings, whatever tokenizer.json has."""
_BERT_SETTINGS = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
"""Their settings, with the normalizer's key for each."""


def read_tokenizer_settings(folder: Path) -> dict[str, Any]:
    """Read the tokenizer_config.json of a model folder; empty where there is none.

    Raises:
        InputError: If it is no JSON object.
    """
    return _settings(folder / "tokenizer_config.json", "not the settings of a tokenizer")


def apply_settings(raw: str, folder: Path) -> tuple[str, list[str]]:
    """Return the content of a tokenizer.json with what the settings of its folder change, and the changes in words.

    Four things are read. Tokens that are listed as added and that tokenizer.json lacks are added. BERT's classes take lower
    case, accents and Chinese characters from tokenizer_config.json. `do_lower_case` in sentence_bert_config.json lowers the
    text first. Where `model_input_names` is there without token_type_ids, all segment ids are 0.

    Args:
        raw: Content of tokenizer.json.
        folder: The model folder that it is from; other files in it may be missing.

    Returns:
        The content, `raw` itself where nothing changes; and one line for each change.

    Raises:
        InputError: If a file of settings cannot be read.
    """
    settings, sentence = read_tokenizer_settings(folder), _settings(folder / SENTENCE_FILE, "no settings")
    content = json.loads(raw)
    if not isinstance(content, dict):
        return raw, []
    changes = _add_tokens(content, listed_tokens(folder))
    changes += _set_bert_normalizer(content, settings)
    if sentence.get("do_lower_case") is True:
        changes += _lower_first(content)
    if not feeds_segments(settings):
        changes += _zero_segments(content)
    return (json.dumps(content, ensure_ascii=False), changes) if changes else (raw, [])


def listed_tokens(folder: Path) -> dict[str, dict[str, Any]]:
    """Read the tokens that a folder lists as added, in tokenizer_config.json and added_tokens.json, as transformers does.

    Args:
        folder: A model folder; the files may be missing.

    Returns:
        By their texts, entries as tokenizer.json has them.

    Raises:
        InputError: If a file cannot be read.
    """
    settings, numbered = read_tokenizer_settings(folder), _settings(folder / "added_tokens.json", "not added tokens")
    named = {v for k, v in settings.items() if k.endswith("_token") and isinstance(v, str)}
    named |= {t for t in settings.get("additional_special_tokens") or () if isinstance(t, str)}
    out: dict[str, dict[str, Any]] = {}
    decoder = settings.get("added_tokens_decoder")
    for number, flags in decoder.items() if isinstance(decoder, dict) else ():
        if number.isdecimal() and isinstance(flags, dict) and isinstance(flags.get("content"), str):
            out[flags["content"]] = _added(flags["content"], int(number), flags.get("special") is True) | flags
    if out:
        return out  # the older file counts where the newer key is not there
    return {t: _added(t, number, t in named) for t, number in numbered.items() if isinstance(number, int)}


def _added(text: str, number: int, special: bool) -> dict[str, Any]:
    """The entry of an added token in tokenizer.json."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": not special, "special": special}
    return {"id": number, "content": text, **flags}


def _add_tokens(content: dict[str, Any], listed: Mapping[str, dict[str, Any]]) -> list[str]:
    """Add tokens to those of tokenizer.json that are listed as added and that it lacks."""
    added = content.setdefault("added_tokens", [])
    if not isinstance(added, list):
        return []
    have = {token.get("content") for token in added if isinstance(token, dict)}
    lacking = [token for text, token in listed.items() if text not in have]
    if not lacking:
        return []
    content["added_tokens"] = sorted([*added, *lacking], key=lambda token: token["id"])
    shown = ", ".join(repr(token["content"])[:40] for token in lacking[:3])
    return [f"{len(lacking)} added tokens that it lacks are taken from the files next to it, e.g. {shown}"]


def feeds_segments(settings: Mapping[str, Any]) -> bool:
    """Tell whether a tokenizer's segment ids are given to its model; where its settings do not say, tokenizer.json decides.

    Args:
        settings: Content of tokenizer_config.json.
    """
    names = settings.get("model_input_names")
    return not isinstance(names, list) or SEGMENTS in names


def _settings(path: Path, otherwise: str) -> dict[str, Any]:
    """Read a JSON object; empty where there is no file."""
    content = read_json(path, MAX_MIB) if path.is_file() else {}
    if not isinstance(content, dict):
        raise InputError(Problem(str(path), f"{otherwise}: no JSON object."))
    return content


def _set_bert_normalizer(content: dict[str, Any], settings: Mapping[str, Any]) -> list[str]:
    """Write what BERT's tokenizer classes are told into the normalizer; what the settings leave out stays as it is."""
    normalizer, name = content.get("normalizer"), str(settings.get("tokenizer_class") or _BERT_CLASSES[0])
    if not isinstance(normalizer, dict) or normalizer.get("type") != "BertNormalizer":
        return []
    changes = []
    for setting, key in _BERT_SETTINGS.items() if name.removesuffix("Fast") in _BERT_CLASSES else ():
        stated = settings.get(setting)
        if isinstance(stated, bool) and normalizer.get(key) is not stated:
            changes.append(f"{setting} is {stated} in tokenizer_config.json ({key} was {normalizer.get(key)})")
            normalizer[key] = stated
    return changes


def _lower_first(content: dict[str, Any]) -> list[str]:
    """Put lower case in front of the normalizer, unless it does so already."""
    normalizer = content.get("normalizer")
    steps = normalizer.get("normalizers", []) if isinstance(normalizer, dict) else []
    for step in [normalizer, *steps]:
        if isinstance(step, dict) and (step.get("type") == "Lowercase" or step.get("lowercase") is True):
            return []
    rest = [] if normalizer is None else [normalizer]
    content["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Lowercase"}, *rest]}
    return ["do_lower_case is true in sentence_bert_config.json"]


def _zero_segments(content: dict[str, Any]) -> list[str]:
    """Set the segment number of every token to 0, in all steps behind the model."""
    before = json.dumps(content.get("post_processor"))
    waiting = [content.get("post_processor")]
    while waiting:
        step = waiting.pop()
        if not isinstance(step, dict):
            continue
        if isinstance(step.get("processors"), list):
            waiting += step["processors"]
        if step.get("type") == "BertProcessing":
            _write_template(step)
        frames = [step.get(key) for key in ("single", "pair")]
        pieces = [piece for frame in frames if isinstance(frame, list) for piece in frame if isinstance(piece, dict)]
        for place in (place for piece in pieces for place in piece.values() if isinstance(place, dict)):
            place["type_id"] = 0
    changed = json.dumps(content.get("post_processor")) != before
    return [f"model_input_names in tokenizer_config.json leaves {SEGMENTS} out: segment ids are 0"] if changed else []


def _write_template(step: dict[str, Any]) -> None:
    """Rewrite a BertProcessing, whose second text always has segment 1, as the template that it is."""
    sep, cls = step.pop("sep"), step.pop("cls")
    special = {token: {"id": token, "ids": [number], "tokens": [token]} for token, number in (cls, sep)}

    def token(name: str) -> dict[str, Any]:
        return {"SpecialToken": {"id": name, "type_id": 0}}

    def text(name: str) -> dict[str, Any]:
        return {"Sequence": {"id": name, "type_id": 0}}

    single = [token(cls[0]), text("A"), token(sep[0])]
    step |= {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, text("B"), token(sep[0])],
        "special_tokens": special,
    }


# --- tokenizer_folder ---
# The tokenizer of a model folder, written to another folder; converted where the authors ship no tokenizer.json.


_CLASS = "tokenizer_class"
_OF_ANOTHER_MACHINE = ("name_or_path", "tokenizer_file", "special_tokens_map_file")
_MADE: dict[str, Path] = {}
"""Folders with converted tokenizers, by what decides their content; they are there until the process ends."""


def converted_folder(
    source: Path, digest: str, max_length: int, config: Mapping[str, Any], family: Family, prompts: bool = True
) -> Path:
    """Write the tokenizer that a model folder means to another folder, once in a process; the model folder stays as it is.

    It is converted where there is no tokenizer.json, and changed where the folder's settings say so; see `apply_settings`.

    Args:
        source: The model folder.
        digest: Of its files; another one, and the tokenizer is converted anew.
        max_length: Longest input in tokens.
        config: The model's checked configuration.
        family: Its row of the family table.
        prompts: Whether the model's prompts are used.

    Returns:
        A temporary folder with config.json, tokenizer.json, its settings and the vocabulary; it goes when the process ends.

    Raises:
        InputError: If the folder has no vocabulary, or none that can be converted, or it is another model's.
        MissingBackendError: If a library that reads it is not installed.
    """
    key = f"{source.resolve()} {family.name} {digest} {prompts}"
    if key not in _MADE:
        made = Path(tempfile.mkdtemp(dir=_root()))
        write_json(made / "config.json", dict(config))
        save_tokenizer(source, max_length, made, family)
        check_tokenizer(made, config, family)
        if prompts and (source / SETTINGS_FILE).is_file():
            shutil.copyfile(source / SETTINGS_FILE, made / SETTINGS_FILE)
        _say_made(source)
        _MADE[key] = made
    return _MADE[key]


def _say_made(source: Path) -> None:
    """Tell how the tokenizer of a folder was made; nothing where it is used as it is."""
    file = source / "tokenizer.json"
    if not file.is_file():
        names = " and ".join(vocabulary_files(source))
        say(f"{source}: it has no tokenizer.json: converted from {names}; nothing is written into the folder")
    elif changes := apply_settings(file.read_text(encoding="utf-8"), source)[1]:
        say(f"{source}: tokenizer.json is used as its settings say: {'; '.join(changes)}")


@cache
def _root() -> Path:
    """A folder of this process, which goes when it ends."""
    held = ExitStack()
    root = held.enter_context(temporary_folder(Path(tempfile.gettempdir())))
    atexit.register(_leave, held, os.getpid())
    return root


def _leave(held: ExitStack, owner: int) -> None:
    if os.getpid() == owner:  # a process that was forked off leaves the folder to its parent
        held.close()


def save_tokenizer(source: Path, max_length: int, destination: Path, family: Family | None = None) -> None:
    """Copy a tokenizer so that every client cuts at the same length and none pads by itself; it is converted if need be.

    Args:
        source: A Hugging Face folder.
        max_length: Longest input in tokens.
        destination: An existing folder.
        family: The model's row of the family table.

    Raises:
        InputError: If there is no tokenizer, or none that can be read.
        MissingBackendError: If a library that reads it is not installed.
    """
    file = source / "tokenizer.json"
    code = CheckpointCode() if family is None else checkpoint_code(family)
    try:
        raw = file.read_text(encoding="utf-8") if file.is_file() else converted_tokenizer(source, code)
        plain = plain_tokenizer_json(apply_settings(raw, source)[0])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InputError(Problem(str(file), f"not a tokenizer: {error}.")) from error
    write_atomic(destination / "tokenizer.json", plain)
    settings = {k: v for k, v in read_tokenizer_settings(source).items() if k not in _OF_ANOTHER_MACHINE}
    settings["model_max_length"] = max_length
    if family is not None and family.tokenizer_settings:
        settings = {**family.tokenizer_settings, **settings, _CLASS: family.tokenizer_settings[_CLASS]}
    write_json(destination / "tokenizer_config.json", settings)
    for name in OTHER_FILES:
        if name != "tokenizer_config.json" and (source / name).is_file():
            shutil.copyfile(source / name, destination / name)
    if not (destination / VOCABULARY).is_file() and (lines := _word_pieces(json.loads(plain))):
        write_atomic(destination / VOCABULARY, "\n".join(lines) + "\n")


def _word_pieces(content: Mapping[str, Any]) -> list[str]:
    """The lines of vocab.txt; none where the tokenizer is not WordPiece, or its ids are no line numbers."""
    model = content["model"]
    if model.get("type") != "WordPiece":
        return []
    ids = {**model["vocab"], **{t["content"]: t["id"] for t in content.get("added_tokens") or ()}}
    lines = sorted(ids, key=ids.__getitem__)
    fits = [ids[t] for t in lines] == list(range(len(lines))) and all(t.splitlines() == [t] for t in lines)
    return lines if fits else []
