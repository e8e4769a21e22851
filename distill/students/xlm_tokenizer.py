"""XLM's tokenizer as a tokenizer.json: Moses' rules for English as regular expressions, then BPE with an end-of-word suffix.

transformers has it in Python only, with sacremoses behind it. What the `tokenizers` library cannot say is listed in the
limits of the family's row; `tests/families/test_xlm_tokenizer.py` compares ids with the original and names every difference.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pocketbert.core.disk.files import read_json
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.predict.tokenizer_file import MAX_MIB

SUFFIX = "</w>"
_UNKNOWN, _FIRST, _LAST, _PAD = "<unk>", "<s>", "</s>", "<pad>"
_SPECIAL = (_FIRST, _LAST, _PAD, _UNKNOWN, *(f"<special{i}>" for i in range(10)))
_OWN_WORDS = ("zh", "ja", "th")
"""Languages whose words another program finds."""

_SAME = {
    ",": "，、",
    '"': "”“„«»《》」「",
    ":": "∶：",
    "?": "？",
    ")": "）",
    "!": "！",
    "(": "（",
    ";": "；",
    "~": "～",
    "'": "’´‘‚`",
    "<": "〈",
    ">": "〉",
    "[": "【",
    "]": "】",
    "%": "％",
    "-": "–━",
    "。": "．",
    **{str(i): chr(ord("０") + i) for i in range(10)},
}
"""What Moses writes for other characters."""
_LONGER = (("。", ". "), ("…", "..."), ("—", " - "), ("''", '"'), ('"...', '..."'), ('".', '."'), ('",', ',"'))

_JOINERS = "\u093c\u094d\u09bc\u09cd\u0a3c\u0a4d\u0abc\u0acd\u0b3c\u0b4d\u0bcd\u0c4d\u0cbc\u0ccd\u0d3b\u0d3c\u0d4d\u0dca\u0eba\u1039\u1714"
"""Marks between the letters of Indic words, which are no letters to Unicode and are to Moses."""
_OTHERS = r"\p{Han}\x{ac00}-\x{d7a3}\x{10000}-\x{10ffff}"
"""Letters to Unicode that Moses has no words of: Chinese, Korean syllables, and all beyond the first 65,536 characters."""
_LETTER = rf"[\p{{Alpha}}{_JOINERS}&&[^{_OTHERS}]]"
_LETTERS = rf"\p{{Alnum}}{_JOINERS}&&[^{_OTHERS}]"
_NO_LETTER = rf"[^{_LETTER}]"
_UNIT = rf"[[{_LETTERS}].'\-]"
_PLAIN = rf"[[{_LETTERS}]'\-]"
_ABBREVIATIONS = (
    "A B C D E F G H I J K L M N O P Q R S T U V W X Y Z Adj Adm Adv Asst Bart Bldg Brig Bros Capt Cmdr Col Comdr Con Corp "
    "Cpl DR Dr Drs Ens Gen Gov Hon Hr Hosp Insp Lt MM MR MRS MS Maj Messrs Mlle Mme Mr Mrs Ms Msgr Op Ord Pfc Ph Prof Pvt "
    "Rep Reps Res Rev Rt Sen Sens Sfc Sgt Sr St Supt Surg v vs rev Rs Nos Nr Jan Feb Mar Apr Jun Jul Aug Sep Oct Nov Dec"
)
"""Words that keep their period: Moses' list for English."""
_END = rf"(?:(?!{_UNIT})|(?='\z))"
_FULL_STOP = (
    rf"(?<!{_UNIT})"
    rf"(?!(?:{_ABBREVIATIONS.replace(' ', '|')})\.{_END})"
    r"(?!(?:No|Art|pp)\.\s+[0-9])"
    rf"(?!(?={_UNIT}*{_LETTER}){_PLAIN}*\.{_UNIT}*\.{_END})"
    rf"{_PLAIN}(?:{_UNIT}*{_PLAIN})?\K\.{_END}(?!\s+\p{{Lower}})"
)
"""The period behind a word that is none of an abbreviation, and before no word in lower case."""
_WORD = "|".join(
    (
        r"\.{2,}",
        # a Korean syllable, which accent stripping has taken apart
        r"[\x{1100}-\x{1112}][\x{1161}-\x{1175}][\x{11a8}-\x{11c2}]?",
        rf"[^[{_LETTERS}]\s.'`,\-]",
        r"(?<=[^\p{N}]),|,(?=[^\p{N}])|(?<=\p{N}),\z",
        rf"(?<={_NO_LETTER})'(?={_NO_LETTER})|(?<=[^{_LETTER}\p{{N}}])'(?={_LETTER})|(?<={_LETTER})'(?={_NO_LETTER})|(?<=\.)'\z",
        rf"'?(?:[[{_LETTERS}]\-]|\.(?!\.)|(?<=\p{{N}}),(?=\p{{N}})|(?<=\p{{N}})'(?=\p{{Alpha}})(?!s)"
        rf"|(?<={_LETTER}'{_LETTER})'(?={_LETTER})|(?<!\.)'\z)+",
        r"\S",
    )
)
"""One word of Moses: dots, a mark, a comma outside numbers, an apostrophe between words, and letters with what sticks to them."""


def tokenizer_json(folder: Path) -> str:
    """Convert vocab.json and merges.txt of XLM.

    Args:
        folder: A Hugging Face folder.

    Returns:
        The content of a tokenizer.json.

    Raises:
        InputError: If a file is missing or broken, or the model has languages whose words another program finds.
    """
    vocabulary, merges = folder / "vocab.json", folder / "merges.txt"
    missing = [f.name for f in (vocabulary, merges) if not f.is_file()]
    if missing:
        raise InputError(Problem(str(folder), f"has neither tokenizer.json nor {' and '.join(missing)}."))
    ids = read_json(vocabulary, MAX_MIB)
    lost = [t for t in _SPECIAL[:4] if not isinstance(ids, dict) or t not in ids]
    if lost:
        raise InputError(Problem(str(vocabulary), f"no vocabulary of XLM: {', '.join(lost)} missing."))
    settings = _settings(folder)
    _refuse_other_words(folder, settings)
    lower = bool(settings.get("do_lowercase_and_remove_accent", True))
    pairs = [tuple(line.split()[:2]) for line in merges.read_text(encoding="utf-8").split("\n")[:-1]]
    pairs = [p for p in dict.fromkeys(pairs) if len(p) == 2]
    # what is merged to a word that the vocabulary lacks is unknown as a whole
    made = {piece: ids[_UNKNOWN] for a, b in pairs for piece in (a, b, a + b) if piece not in ids}
    special = [t for t in _SPECIAL if t in ids]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": ids[t], "content": t, **flags} for t in sorted(special, key=ids.get)],
        "normalizer": {"type": "Sequence", "normalizers": _normalizers(lower)},
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": _WORD}, "behavior": "Removed", "invert": True},
        "post_processor": _frame(ids),
        "decoder": {"type": "BPEDecoder", "suffix": SUFFIX},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": _UNKNOWN,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": SUFFIX,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {**ids, **made},
            "merges": [list(p) for p in pairs],
        },
    }
    return json.dumps(content, ensure_ascii=False)


def _settings(folder: Path) -> dict[str, Any]:
    file = folder / "tokenizer_config.json"
    settings = read_json(file) if file.is_file() else {}
    return settings if isinstance(settings, dict) else {}


def _refuse_other_words(folder: Path, settings: dict[str, Any]) -> None:
    """Refuse a model of which a language needs a program of its own to find words."""
    config = folder / "config.json"
    known = settings.get("lang2id") or (read_json(config) if config.is_file() else {}).get("lang2id") or {}
    found = [name for name in _OWN_WORDS if name in known]
    if len(found) == len(known) and found:
        what = f"its languages are {', '.join(found)}, whose words other programs find (rjieba, KyTea, PyThaiNLP)."
        fix = (
            "Split the words with XLMTokenizer.tokenize(text, lang=...) of transformers, and add a tokenizer.json that "
        )
        raise InputError(Problem(str(folder), what, f"{fix}takes split words."))


def _normalizers(lower: bool) -> list[dict[str, Any]]:
    def text(pattern: str, content: str) -> dict[str, Any]:
        return {"type": "Replace", "pattern": {"String": pattern}, "content": content}

    def expression(pattern: str, content: str) -> dict[str, Any]:
        return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}

    out = [text(other, own) for own, others in _SAME.items() for other in others]
    out += [text(old, new) for old, new in _LONGER]
    out += [expression(r"\p{C}", ""), {"type": "Strip", "strip_left": True, "strip_right": True}]
    out += [expression(_FULL_STOP, " .")]
    if lower:
        out += [{"type": "Lowercase"}, {"type": "NFD"}, expression(r"\p{Mn}", "")]
    return out


def _frame(ids: dict[str, int]) -> dict[str, Any]:
    def token(name: str) -> dict[str, Any]:
        return {"SpecialToken": {"id": name, "type_id": 0}}

    def words(name: str) -> dict[str, Any]:
        return {"Sequence": {"id": name, "type_id": 0}}

    single = [token(_FIRST), words("A"), token(_LAST)]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, words("B"), token(_LAST)],
        "special_tokens": {t: {"id": t, "ids": [ids[t]], "tokens": [t]} for t in (_FIRST, _LAST)},
    }
