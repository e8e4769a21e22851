"""Converting the tokenizers of checkpoints that have no tokenizer.json.

They have vocab.txt, vocab.json with merges.txt, or a SentencePiece model. `convert_tokenizer` lets transformers convert,
unless the family has a conversion of its own. It compares the result of a SentencePiece model with the sentencepiece
library, because a conversion that misses a step still gives tokens. Both libraries are imported inside the functions.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, normalizers

from pocketbert.core.disk.files import read_json
from pocketbert.core.errors import InputError, MissingBackendError, Problem
from pocketbert.core.families import CheckpointCode
from pocketbert.core.host.progress import print_note
from pocketbert.core.host.system import version_of
from pocketbert.core.predict.tokenizer_file import MAX_TOKENIZER_MIB, library_errors

_NO_CODE = CheckpointCode()
_VOCABULARY_FILES = ("vocab.txt", "vocab.json", "merges.txt")
_FIX = "Put the tokenizer's files that the authors publish into the folder."
_SPACE = "▁"
"""SentencePiece's character for a blank."""
_MAX_DIFFERING_SHARE = 0.1
"""Share of the texts on which a faithful conversion may differ: characters that the vocabulary hardly has."""
_CASED_SHARE = 0.05
"""Share of words with upper-case letters from which a vocabulary counts as one of cased text."""
COMPARISON_TEXTS = (
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
"""Texts to compare conversions on: plain ones, many scripts, and characters that normalizations treat differently."""


def convert_tokenizer(source: Path, code: CheckpointCode = _NO_CODE, quiet: bool = False) -> str:
    """Convert the vocabulary of a folder without tokenizer.json (vocab.txt, BPE or SentencePiece) to tokenizer.json.

    If the folder has one SentencePiece model and the family converts by transformers, the result is compared with the
    sentencepiece library on sample texts: a note is printed for each text that is tokenized differently, and too many are
    an error.

    Args:
        source: A Hugging Face folder.
        code: The family's own functions for tokenizers, which are used where transformers' conversion is not enough.
        quiet: Whether to print no notes on texts that are tokenized differently.

    Returns:
        The content of tokenizer.json.

    Raises:
        InputError: If the folder has no vocabulary that can be read, if its settings contradict the vocabulary, or if more
            than a tenth of the sample texts are tokenized differently.
        MissingBackendError: If a library that reads the vocabulary (such as sentencepiece) is not installed.
    """
    if code.check_tokenizer is not None:
        code.check_tokenizer(source)
    _check_files(source)
    if code.tokenizer_json is not None:
        return code.tokenizer_json(source)
    with library_errors(str(source), "no usable tokenizer"):  # many kinds, among them files of another system
        backend = _convert_with_transformers(source)
        if code.change_tokenizer is not None:
            backend = Tokenizer.from_str(json.dumps(code.change_tokenizer(source, json.loads(backend.to_str()))))
    models = _sentencepiece_models(source)
    if len(models) == 1:
        backend = _match_sentencepiece(backend, models[0], quiet)
    _check_case(source, backend)
    return str(backend.to_str())


def list_vocabulary_files(source: Path) -> list[str]:
    """List the vocabulary files of a folder that a tokenizer.json can be converted from."""
    names = [name for name in _VOCABULARY_FILES if (source / name).is_file()]
    return [*names, *(model.name for model in _sentencepiece_models(source))]


def _sentencepiece_models(source: Path) -> list[Path]:
    """List the SentencePiece models (*.model) of a folder."""
    return sorted(p for p in source.glob("*.model") if p.is_file())


def _check_files(source: Path) -> None:
    """Raise an error if a folder has no complete vocabulary to convert, or a library that reads it is missing."""
    names = list_vocabulary_files(source)
    if names == ["vocab.json"] or names == ["merges.txt"]:
        other = "merges.txt" if names == ["vocab.json"] else "vocab.json"
        raise InputError(Problem(f"{source}/{other}", f"file not found; {names[0]} needs it.", _FIX))
    if not names:
        kinds = "vocab.txt, vocab.json with merges.txt, or a SentencePiece model (*.model)"
        what = f"file not found, and no vocabulary to make it of: {kinds}."
        raise InputError(Problem(f"{source}/tokenizer.json", what, _FIX))
    if (models := _sentencepiece_models(source)) and version_of("sentencepiece") is None:
        raise MissingBackendError(f"the library that reads {models[0].name}", "pip install 'pocketbert[sentencepiece]'")
    if version_of("transformers") is None:
        raise MissingBackendError(f"the library that reads {names[0]}", "pip install 'pocketbert[train,onnx]'")


def _convert_with_transformers(source: Path) -> Tokenizer:
    """Load a folder's tokenizer with transformers; raise InputError if its vocabulary holds special tokens only."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(str(source), local_files_only=True, trust_remote_code=False)
    backend: Tokenizer = tokenizer.backend_tokenizer
    # from files that its class does not read the library makes a tokenizer of special tokens alone, without an error
    if backend.get_vocab_size() <= len(tokenizer.all_special_ids):
        tokenizer_class, names = type(tokenizer).__name__, " and ".join(list_vocabulary_files(source))
        what = f"{tokenizer_class} of transformers reads another kind of vocabulary than {names}."
        raise InputError(Problem(str(source), what, f"Name the right tokenizer_class in tokenizer_config.json. {_FIX}"))
    return backend


def _match_sentencepiece(backend: Tokenizer, path: Path, quiet: bool) -> Tokenizer:
    """Compare a converted tokenizer with its SentencePiece model on sample texts; return it, corrected if needed.

    The correction adds the SentencePiece model's normalization, if more texts agree with it. A note is printed for each
    text that is still tokenized differently, unless `quiet` is set.

    Raises:
        InputError: If more than a tenth of the sample texts are still tokenized differently.
    """
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2

    if path.stat().st_size > MAX_TOKENIZER_MIB << 20:
        raise InputError(Problem(str(path), f"larger than {MAX_TOKENIZER_MIB} MiB, refused."))
    raw = path.read_bytes()
    with library_errors(str(path), "not a SentencePiece model"):
        processor = sentencepiece.SentencePieceProcessor(model_proto=raw)
        model: Any = vars(sentencepiece_model_pb2)["ModelProto"]
        character_map = model.FromString(raw).normalizer_spec.precompiled_charsmap
    best, differences = backend, _list_differences(backend, processor, COMPARISON_TEXTS)
    for more in ((), (normalizers.NFC(),)) if character_map and differences else ():
        first = [] if backend.normalizer is None else [backend.normalizer]
        candidate = Tokenizer.from_str(backend.to_str())
        candidate.normalizer = normalizers.Sequence([*first, *more, normalizers.Precompiled(character_map)])
        remaining = _list_differences(candidate, processor, COMPARISON_TEXTS)
        if len(remaining) < len(differences):
            best, differences = candidate, remaining
    count = len(COMPARISON_TEXTS)
    if len(differences) > _MAX_DIFFERING_SHARE * count:
        affected = f"{len(differences)} of {count} texts, e.g. {differences[0]}"
        what = f"transformers converts it to a tokenizer with other tokens for {affected}."
        raise InputError(Problem(str(path), what, "Put the tokenizer.json that its authors publish into the folder."))
    for line in () if quiet else differences:
        print_note(f"{path.name}: the converted tokenizer differs from the sentencepiece library: {line}")
    return best


def _list_differences(backend: Tokenizer, processor: Any, texts: Iterable[str]) -> list[str]:
    """List the texts that a converted tokenizer splits differently from the SentencePiece model, one line for each.

    The converted tokenizer's own normalization, such as lower case, is applied to the texts of both. Splits with equal
    scores count as equal, since SentencePiece may choose any of them.

    Returns:
        One line per text, with the first tokens that differ.
    """
    unknown, lines = json.loads(backend.to_str())["model"].get("unk_id"), []
    for text in texts:
        normalized = text if backend.normalizer is None else backend.normalizer.normalize_str(text)
        ids = backend.encode(text, add_special_tokens=False).ids
        expected_ids = processor.encode(normalized.replace(_SPACE, " "))
        pieces = [None if i == unknown else backend.id_to_token(i) for i in ids]
        expected = [None if i == processor.unk_id() else processor.id_to_piece(i) for i in expected_ids]
        if pieces == expected or _has_equal_score(pieces, expected, processor):
            continue
        first = next((i for i, (a, b) in enumerate(zip(pieces, expected, strict=False)) if a != b), 0)
        lines.append(f"{text[:40]!r} gives {pieces[first : first + 3]} instead of {expected[first : first + 3]}")
    return lines


def _has_equal_score(one: Sequence[str | None], other: Sequence[str | None], processor: Any) -> bool:
    """Return whether two SentencePiece splits of a text spell the same characters and have the same total score."""
    if one.count(None) != other.count(None) or "".join(map(str, one)) != "".join(map(str, other)):
        return False
    scores = [sum(processor.get_score(processor.piece_to_id(p)) for p in pieces if p) for pieces in (one, other)]
    return math.isclose(*scores, abs_tol=1e-3)


def _check_case(source: Path, backend: Tokenizer) -> None:
    """Raise InputError if a tokenizer lower-cases text, although its vocabulary is cased and no file asks for it."""
    path = source / "tokenizer_config.json"
    settings = read_json(path, MAX_TOKENIZER_MIB) if path.is_file() else {}
    normalizer = json.loads(backend.to_str()).get("normalizer") or {}
    if (isinstance(settings, dict) and "do_lower_case" in settings) or not normalizer.get("lowercase"):
        return
    words = [w for w in backend.get_vocab() if not (w.startswith("[") and w.endswith("]"))]
    cased = sum(w != w.lower() for w in words)
    if words and cased / len(words) > _CASED_SHARE:
        what = (
            f"{cased:,} of the {len(words):,} words of its vocabulary have upper-case letters, and no file states "
            "whether text is lower-cased, which transformers would do."
        )
        fix = 'Write {"do_lower_case": false} into tokenizer_config.json, or true where the authors lower-case text.'
        raise InputError(Problem(str(source), what, fix))
