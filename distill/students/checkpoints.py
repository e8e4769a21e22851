"""Reading checkpoints that transformers reads not at all or differently from their authors.

MobileBERT's, IB-BERT's and ERNIE's of the original code; DeBERTa's and XLM's tokenizers.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from pocketbert.core.compare.sample_texts import SENTENCES, UNICODE_SENTENCES
from pocketbert.core.disk.files import read_json
from pocketbert.core.errors import InputError, MissingBackendError, Problem
from pocketbert.core.families import CHECKPOINTS, CheckpointCode, ExportForm
from pocketbert.core.host.system import version_of
from pocketbert.core.predict.tokenizer_file import MAX_MIB

# --- xlm_language ---
# XLM's language where nobody names one: config.json's `lang_id`.
#
# transformers adds no language at all where `langs` is missing, which the model has not seen in its pre-training. A model that
# is loaded or built here adds the default one, in training, in its golden rows and in its files alike.


def with_default_language(model: Any) -> None:
    """Make a model with several languages take its default one where its inputs name none.

    Args:
        model: A transformers model; a hook is registered on its encoder.

    Raises:
        InputError: If the model has no such language.
    """
    base = model.base_model
    if not hasattr(base, "lang_embeddings"):
        return
    number, count = model.config.lang_id, base.lang_embeddings.num_embeddings
    if not 0 <= number < count:
        what = f"lang_id is {number}, the model has the languages 0 to {count - 1}."
        raise InputError(Problem("config.json", what, "Set lang_id to the number of a language in lang2id."))
    if _add_language not in base._forward_pre_hooks.values():
        base.register_forward_pre_hook(_add_language, with_kwargs=True)


def _add_language(encoder: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    ids = arguments[0] if arguments else named.get("input_ids")
    if len(arguments) > 2 or named.get("langs") is not None or ids is None:
        return arguments, named
    return arguments, {**named, "langs": torch.full_like(ids, encoder.config.lang_id)}


# --- xlm_tokenizer ---
# XLM's tokenizer as a tokenizer.json: Moses' rules for English as regular expressions, then BPE with an end-of-word suffix.
#
# transformers has it in Python only, with sacremoses behind it. What the `tokenizers` library cannot say is listed in the
# limits of the family's row; `tests/families/test_xlm_tokenizer.py` compares ids with the original and names every difference.


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


# --- deberta_tokenizers ---
# DeBERTa's tokenizers from the files that the authors publish, where transformers 5 converts them differently.
#
# Its class for v2 and v3 replaces the normalization of spm.model by Unicode's NFC: full-width letters, ligatures and fractions,
# which SentencePiece spells out, become unknown tokens. Its class for v1 puts two separators between the texts of a pair, the
# original code puts one.


PICKLED, PIECES = "bpe_encoder.bin", "spm.model"
_AWKWARD = (
    "Ｆｕｌｌ ｗｉｄｔｈ",
    "ﬁne ½ ™",
    "  two  spaces\tand a tab \n",
    "cafe\u0301 naïve",
    "\u200bzero\u200d width\ufeff",
    "ไทย שלום",
)


def check_byte_pairs(folder: Path) -> None:
    """Refuse the vocabulary of v1's original code, which is a pickle.

    Args:
        folder: A model folder without tokenizer.json.

    Raises:
        InputError: If the folder has that file and no other vocabulary.
    """
    if (folder / PICKLED).is_file() and not (folder / "vocab.json").is_file():
        raise InputError(
            Problem(
                str(folder / PICKLED),
                "a pickle of the original code, which is not opened: it may run code.",
                "Put vocab.json and merges.txt of the same checkpoint into the folder; its authors publish both.",
            )
        )


def with_one_separator(content: dict[str, Any]) -> dict[str, Any]:
    """Put one separator between the texts of a pair.

    Args:
        content: tokenizer.json as transformers made it of vocab.json and merges.txt.

    Returns:
        The same, changed.
    """
    template = content["post_processor"]
    start, text, end = template["single"]
    last = {"SpecialToken": {**end["SpecialToken"], "type_id": 1}}
    pair = [start, text, end, {"Sequence": {"id": "B", "type_id": 1}}, last]
    return {**content, "post_processor": {**template, "pair": pair}}


def with_own_normalizer(folder: Path, content: dict[str, Any]) -> dict[str, Any]:
    """Give a tokenizer the normalization that is in its SentencePiece model, and compare it with that library.

    Args:
        folder: Has spm.model.
        content: tokenizer.json as transformers made it.

    Returns:
        The same, changed.

    Raises:
        MissingBackendError: If sentencepiece is not installed.
        InputError: If the texts of the comparison still get other tokens.
    """
    if not (folder / PIECES).is_file():
        return content
    if version_of("sentencepiece") is None:
        raise MissingBackendError("sentencepiece", "pip install sentencepiece")
    from sentencepiece import SentencePieceProcessor, sentencepiece_model_pb2
    from tokenizers import Tokenizer

    raw = (folder / PIECES).read_bytes()
    model: Any = vars(sentencepiece_model_pb2)["ModelProto"]()
    model.ParseFromString(raw)
    table = base64.b64encode(model.normalizer_spec.precompiled_charsmap).decode()
    lower = [s for s in content["normalizer"]["normalizers"] if s["type"] == "Lowercase"]
    steps: list[dict[str, Any]] = [*lower]
    if table:
        steps.append({"type": "Precompiled", "precompiled_charsmap": table})
    steps.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    steps.append({"type": "Strip", "strip_left": True, "strip_right": True})
    made = {**content, "normalizer": {"type": "Sequence", "normalizers": steps}}
    if any(s["type"] == "Punctuation" for s in content["pre_tokenizer"].get("pretokenizers", ())):
        return made  # split_by_punct cuts words before SentencePiece sees them
    theirs, ours = SentencePieceProcessor(model_proto=raw), Tokenizer.from_str(json.dumps(made))
    texts = [*_AWKWARD, *SENTENCES, *UNICODE_SENTENCES]
    other = [
        text
        for text in texts
        if theirs.encode(text.lower() if lower else text) != ours.encode(text, add_special_tokens=False).ids
    ]
    if other:
        what = f"{len(other)} of {len(texts)} texts get other tokens than from the sentencepiece library, first {other[0]!r}."
        raise InputError(
            Problem(str(folder / PIECES), what, "Convert it yourself, and put tokenizer.json into the folder.")
        )
    return made


def _original_names(state: Mapping[str, Any]) -> Mapping[str, Any]:
    from pocketbert.distill.students.ib_bert import renamed

    # variables of TensorFlow have slashes in their names, parameters of torch have none
    return renamed(state) if any("/" in name for name in state) else state


def _ib_bert_classes() -> None:
    from pocketbert.distill.students import ib_bert as model  # noqa: F401 - it registers its classes with transformers


def _ernie_thu_classes() -> None:
    from pocketbert.distill.students import ernie_thu as heads  # noqa: F401 - it registers its classes with transformers


def _ernie_thu_names(state: Mapping[str, Any]) -> Mapping[str, Any]:
    from pocketbert.distill.students.ernie_thu_checkpoint import renamed

    return renamed(state)


def _ernie_thu_form(model: Any, form: ExportForm | None, folder: Path, entities: Path | None) -> list[dict[str, str]]:
    from pocketbert.distill.students.ernie_thu_checkpoint import take_form

    return take_form(model, form, folder, entities)


def _ernie_thu_tokenizer(folder: Path) -> str:
    from pocketbert.distill.students.ernie_thu_checkpoint import tokenizer_json

    return tokenizer_json(folder)


def _xlm_tokenizer(folder: Path) -> str:

    return tokenizer_json(folder)


def _one_language(model: Any) -> None:

    with_default_language(model)


def _byte_pairs(folder: Path) -> None:

    check_byte_pairs(folder)


def _one_separator(_: Path, content: dict[str, Any]) -> dict[str, Any]:

    return with_one_separator(content)


def _own_normalizer(folder: Path, content: dict[str, Any]) -> dict[str, Any]:

    return with_own_normalizer(folder, content)


CHECKPOINTS.add("deberta", CheckpointCode(check_tokenizer=_byte_pairs, change_tokenizer=_one_separator))
CHECKPOINTS.add("deberta-v2", CheckpointCode(change_tokenizer=_own_normalizer))
CHECKPOINTS.add("mobilebert", CheckpointCode(read_names=_original_names))
CHECKPOINTS.add("ib-bert", CheckpointCode(make_known=_ib_bert_classes, read_names=_original_names))
CHECKPOINTS.add(
    "ernie-thu",
    CheckpointCode(
        make_known=_ernie_thu_classes,
        read_names=_ernie_thu_names,
        take_form=_ernie_thu_form,
        tokenizer_json=_ernie_thu_tokenizer,
    ),
)
CHECKPOINTS.add("xlm", CheckpointCode(complete=_one_language, tokenizer_json=_xlm_tokenizer))
