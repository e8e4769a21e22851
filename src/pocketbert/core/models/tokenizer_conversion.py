"""tokenizer.json out of the files that authors publish without it: vocab.txt, vocab.json and merges.txt, SentencePiece models.

transformers converts; what it made is compared with the library that owns the format, because a conversion that leaves a step
out still gives tokens. Imports transformers and sentencepiece inside its functions.
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
from pocketbert.core.host.progress import say
from pocketbert.core.host.versions import version_of
from pocketbert.core.predict.tokenizer_file import MAX_MIB, library_errors

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
