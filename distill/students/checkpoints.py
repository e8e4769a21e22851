"""Code that reads checkpoints which transformers cannot read, or tokenizes differently from their authors.

These entries (`CheckpointCode`) are registered at the end of the file, under keys that `pocketbert.core.families` has:

* mobilebert, ib-bert: weights of the original TensorFlow code, and classes that transformers does not have.
* ernie-thu: classes, weights, entity tables and the tokenizer of ERNIE (Tsinghua).
* deberta, deberta-v2: tokenizer files that transformers 5 converts differently from the original code.
* static: classes of students without layers.
* xlm: the tokenizer as tokenizer.json, and the default language.

Imports no torch at the top: the entries are registered in every process that opens a model folder.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pocketbert.core.compare.sample_texts import SENTENCES, UNICODE_SENTENCES
from pocketbert.core.disk.files import read_json
from pocketbert.core.errors import InputError, MissingBackendError, Problem
from pocketbert.core.families import CHECKPOINTS, CheckpointCode, ExportForm
from pocketbert.core.host.system import version_of
from pocketbert.core.predict.tokenizer_file import MAX_TOKENIZER_MIB

# --- MobileBERT, IB-BERT and ERNIE (Tsinghua): code that is imported when it is called, with torch and transformers ---


def _import_ib_bert() -> None:
    """Import the model classes of IB-BERT, which registers them with transformers."""
    from pocketbert.distill.students import ib_bert  # noqa: F401 - it registers its classes when it is imported


def _rename_mobilebert_weights(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Rename TensorFlow weights of MobileBERT or IB-BERT to PyTorch names. PyTorch weights are returned unchanged."""
    from pocketbert.distill.students.ib_bert import rename_weights

    # variables of TensorFlow have slashes in their names, parameters of torch have none
    return rename_weights(state) if any("/" in name for name in state) else state


def _import_ernie_thu() -> None:
    """Import the model classes of ERNIE (Tsinghua), which registers them with transformers."""
    from pocketbert.distill.students import ernie_thu  # noqa: F401 - it registers its classes when it is imported


def _import_static() -> None:
    """Import the model classes of static students, which registers them with transformers."""
    from pocketbert.distill.students import static  # noqa: F401 - it registers its classes when it is imported


def _clear_special_rows(model: Any) -> None:
    """Set the rows of special tokens in a static student's table to zeros."""
    from pocketbert.distill.students.static import clear_special_rows

    clear_special_rows(model)


def _rename_ernie_thu_weights(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Rename the weights of a released checkpoint of ERNIE (Tsinghua) to those of the package's classes."""
    from pocketbert.distill.students.ernie_thu_checkpoint import rename_weights

    return rename_weights(state)


def _set_ernie_thu_form(
    model: Any, form: ExportForm | None, folder: Path, entities: Path | None
) -> list[dict[str, str]]:
    """Give a model the table of entity vectors that an export form needs, if any, and return the table's entities."""
    from pocketbert.distill.students.ernie_thu_checkpoint import set_export_form

    return set_export_form(model, form, folder, entities)


def _ernie_thu_tokenizer_json(folder: Path) -> str:
    """Return the content of tokenizer.json, built from the vocab.txt of a released folder."""
    from pocketbert.distill.students.ernie_thu_checkpoint import build_tokenizer_json

    return build_tokenizer_json(folder)


# --- DeBERTa: tokenizers from the files that the authors publish ------------------------------------------------------
#
# transformers' class for v1 puts two separators between the texts of a pair, the original code one. Its class for v2
# and v3 replaces the normalization of spm.model by Unicode's NFC: full-width letters, ligatures and fractions, which
# SentencePiece spells out, become unknown tokens.

_PICKLED_VOCABULARY, _SENTENCEPIECE_MODEL = "bpe_encoder.bin", "spm.model"
_NORMALIZED_TEXTS = (
    "Ｆｕｌｌ ｗｉｄｔｈ",
    "ﬁne ½ ™",
    "  two  spaces\tand a tab \n",
    "cafe\u0301 naïve",
    "\u200bzero\u200d width\ufeff",
    "ไทย שלום",
)
"""Texts that the two normalizations change differently."""


def _refuse_pickled_vocabulary(folder: Path) -> None:
    """Raise InputError if a folder of DeBERTa v1 has its vocabulary only as a pickle, which could run code."""
    if (folder / _PICKLED_VOCABULARY).is_file() and not (folder / "vocab.json").is_file():
        what = "a pickle of the original code, which is not opened: it may run code."
        fix = "Put vocab.json and merges.txt of the same checkpoint into the folder; its authors publish both."
        raise InputError(Problem(str(folder / _PICKLED_VOCABULARY), what, fix))


def _use_one_separator(folder: Path, content: dict[str, Any]) -> dict[str, Any]:
    """Return tokenizer.json with one separator between the texts of a pair instead of transformers' two."""
    template = content["post_processor"]
    start, text, end = template["single"]
    last = {"SpecialToken": {**end["SpecialToken"], "type_id": 1}}
    pair = [start, text, end, {"Sequence": {"id": "B", "type_id": 1}}, last]
    return {**content, "post_processor": {**template, "pair": pair}}


def _use_sentencepiece_normalizer(folder: Path, content: dict[str, Any]) -> dict[str, Any]:
    """Return the content of tokenizer.json with the normalization of the folder's spm.model in place of transformers'.

    The result is compared with the sentencepiece library on sample texts, unless the tokenizer splits at punctuation
    first. Without spm.model the content is returned unchanged. Raises MissingBackendError if sentencepiece is not
    installed, and InputError if a sample text still gets other tokens.
    """
    if not (folder / _SENTENCEPIECE_MODEL).is_file():
        return content
    if version_of("sentencepiece") is None:
        raise MissingBackendError("sentencepiece", "pip install sentencepiece")
    from sentencepiece import SentencePieceProcessor, sentencepiece_model_pb2
    from tokenizers import Tokenizer

    serialized = (folder / _SENTENCEPIECE_MODEL).read_bytes()
    model: Any = vars(sentencepiece_model_pb2)["ModelProto"]()
    model.ParseFromString(serialized)
    table = base64.b64encode(model.normalizer_spec.precompiled_charsmap).decode()
    lowercase = [step for step in content["normalizer"]["normalizers"] if step["type"] == "Lowercase"]
    steps: list[dict[str, Any]] = [*lowercase]
    if table:
        steps.append({"type": "Precompiled", "precompiled_charsmap": table})
    steps.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    steps.append({"type": "Strip", "strip_left": True, "strip_right": True})
    changed = {**content, "normalizer": {"type": "Sequence", "normalizers": steps}}
    if any(step["type"] == "Punctuation" for step in content["pre_tokenizer"].get("pretokenizers", ())):
        return changed  # split_by_punct cuts words before SentencePiece gets them
    original, tokenizer = SentencePieceProcessor(model_proto=serialized), Tokenizer.from_str(json.dumps(changed))
    texts = [*_NORMALIZED_TEXTS, *SENTENCES, *UNICODE_SENTENCES]
    different = [
        text
        for text in texts
        if original.encode(text.lower() if lowercase else text) != tokenizer.encode(text, add_special_tokens=False).ids
    ]
    if different:
        what = (
            f"{len(different)} of {len(texts)} texts get other tokens than from the sentencepiece library, "
            f"first {different[0]!r}."
        )
        fix = "Convert it yourself, and put tokenizer.json into the folder."
        raise InputError(Problem(str(folder / _SENTENCEPIECE_MODEL), what, fix))
    return changed


# --- XLM: the default language ----------------------------------------------------------------------------------------


def _add_default_language(model: Any) -> None:
    """Add a hook to a multilingual XLM that uses ``lang_id`` of config.json if the inputs name no language.

    Without it transformers adds no language embedding at all, which the model has never seen in pre-training. A hook on
    the encoder serves training, golden rows and exported files alike. A model without language embeddings is left
    unchanged. Raises InputError if the model has no language of this number.
    """
    encoder = model.base_model
    if not hasattr(encoder, "lang_embeddings"):
        return
    number, count = model.config.lang_id, encoder.lang_embeddings.num_embeddings
    if not 0 <= number < count:
        what = f"lang_id is {number}, the model has the languages 0 to {count - 1}."
        raise InputError(Problem("config.json", what, "Set lang_id to the number of a language in lang2id."))
    if _with_language not in encoder._forward_pre_hooks.values():
        encoder.register_forward_pre_hook(_with_language, with_kwargs=True)


def _with_language(encoder: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Add ``langs``, the default language's id at every token, to an encoder's inputs; used as a forward pre-hook."""
    import torch

    ids = arguments[0] if arguments else named.get("input_ids")
    if len(arguments) > 2 or named.get("langs") is not None or ids is None:
        return arguments, named
    return arguments, {**named, "langs": torch.full_like(ids, encoder.config.lang_id)}


# --- XLM: the tokenizer -----------------------------------------------------------------------------------------------
#
# transformers has it in Python only, with sacremoses. Here it is a tokenizer.json: Moses' rules for English as regular
# expressions, then BPE with an end-of-word suffix. What the `tokenizers` library cannot express is listed in the limits
# of the family's row; `tests/families/test_xlm.py` compares ids with the original and names every difference.

_WORD_END = "</w>"
_UNKNOWN, _FIRST, _LAST, _PAD = "<unk>", "<s>", "</s>", "<pad>"
_SPECIAL = (_FIRST, _LAST, _PAD, _UNKNOWN, *(f"<special{i}>" for i in range(10)))
_SEGMENTED_LANGUAGES = ("zh", "ja", "th")
"""Languages whose words are found by separate programs."""

_EQUIVALENTS = {
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
"""Characters that Moses replaces by the key."""
_REPLACEMENTS = (("。", ". "), ("…", "..."), ("—", " - "), ("''", '"'), ('"...', '..."'), ('".', '."'), ('",', ',"'))

_JOINERS = "\u093c\u094d\u09bc\u09cd\u0a3c\u0a4d\u0abc\u0acd\u0b3c\u0b4d\u0bcd\u0c4d\u0cbc\u0ccd\u0d3b\u0d3c\u0d4d\u0dca\u0eba\u1039\u1714"
"""Marks between the letters of Indic words, which Moses counts as letters and Unicode does not."""
_NOT_MOSES_LETTERS = r"\p{Han}\x{ac00}-\x{d7a3}\x{10000}-\x{10ffff}"
"""Letters that Moses does not join to words: Chinese, Korean syllables, and all beyond the first 65,536 characters."""
_LETTER = rf"[\p{{Alpha}}{_JOINERS}&&[^{_NOT_MOSES_LETTERS}]]"
_LETTERS = rf"\p{{Alnum}}{_JOINERS}&&[^{_NOT_MOSES_LETTERS}]"
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
"""A period that is a token of its own: not after an abbreviation, and not before a word in lower case."""
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
"""A word of Moses: dots, marks, a comma outside numbers, an apostrophe between words, or letters and their marks."""


def _xlm_tokenizer_json(folder: Path) -> str:
    """Build the content of tokenizer.json from the vocab.json and merges.txt of an XLM folder.

    Raises InputError if a file is missing or broken, or if the model has only languages whose words separate programs
    find.
    """
    vocabulary, merges_file = folder / "vocab.json", folder / "merges.txt"
    missing = [f.name for f in (vocabulary, merges_file) if not f.is_file()]
    if missing:
        raise InputError(Problem(str(folder), f"has neither tokenizer.json nor {' and '.join(missing)}."))
    ids = read_json(vocabulary, MAX_TOKENIZER_MIB)
    lost = [t for t in _SPECIAL[:4] if not isinstance(ids, dict) or t not in ids]
    if lost:
        raise InputError(Problem(str(vocabulary), f"no vocabulary of XLM: {', '.join(lost)} missing."))
    settings_file = folder / "tokenizer_config.json"
    settings = read_json(settings_file) if settings_file.is_file() else {}
    settings = settings if isinstance(settings, dict) else {}
    _refuse_segmented_languages(folder, settings)
    lower = bool(settings.get("do_lowercase_and_remove_accent", True))
    pairs = [tuple(line.split()[:2]) for line in merges_file.read_text(encoding="utf-8").split("\n")[:-1]]
    merges = [pair for pair in dict.fromkeys(pairs) if len(pair) == 2]
    # a word that is merged but not in the vocabulary is unknown as a whole
    without_id = {piece: ids[_UNKNOWN] for a, b in merges for piece in (a, b, a + b) if piece not in ids}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    special = sorted((t for t in _SPECIAL if t in ids), key=ids.get)
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": ids[t], "content": t, **flags} for t in special],
        "normalizer": {"type": "Sequence", "normalizers": _moses_normalizers(lower)},
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": _WORD}, "behavior": "Removed", "invert": True},
        "post_processor": _special_token_template(ids),
        "decoder": {"type": "BPEDecoder", "suffix": _WORD_END},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": _UNKNOWN,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": _WORD_END,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {**ids, **without_id},
            "merges": [list(pair) for pair in merges],
        },
    }
    return json.dumps(content, ensure_ascii=False)


def _refuse_segmented_languages(folder: Path, settings: dict[str, Any]) -> None:
    """Raise InputError if an XLM has only languages whose words other programs must find (Chinese, Japanese, Thai)."""
    config = folder / "config.json"
    languages = settings.get("lang2id") or (read_json(config) if config.is_file() else {}).get("lang2id") or {}
    segmented = [name for name in _SEGMENTED_LANGUAGES if name in languages]
    if len(segmented) == len(languages) and segmented:
        what = f"its languages are {', '.join(segmented)}, whose words other programs find (rjieba, KyTea, PyThaiNLP)."
        fix = (
            "Split the words with XLMTokenizer.tokenize(text, lang=...) of transformers, and add a tokenizer.json that "
            "takes split words."
        )
        raise InputError(Problem(str(folder), what, fix))


def _moses_normalizers(lower: bool) -> list[dict[str, Any]]:
    """Return normalizers for tokenizer.json that replace characters as the Moses tokenizer does.

    With `lower` they also lower-case the text and remove accents.
    """

    def replace(kind: str, pattern: str, content: str) -> dict[str, Any]:
        return {"type": "Replace", "pattern": {kind: pattern}, "content": content}

    steps = [replace("String", other, own) for own, others in _EQUIVALENTS.items() for other in others]
    steps += [replace("String", old, new) for old, new in _REPLACEMENTS]
    steps += [replace("Regex", r"\p{C}", ""), {"type": "Strip", "strip_left": True, "strip_right": True}]
    steps += [replace("Regex", _FULL_STOP, " .")]
    if lower:
        steps += [{"type": "Lowercase"}, {"type": "NFD"}, replace("Regex", r"\p{Mn}", "")]
    return steps


def _special_token_template(ids: dict[str, int]) -> dict[str, Any]:
    """Return the post-processor for tokenizer.json: ``<s> A </s>``, and ``<s> A </s> B </s>`` for a pair."""

    def token(name: str) -> dict[str, Any]:
        return {"SpecialToken": {"id": name, "type_id": 0}}

    def text(name: str) -> dict[str, Any]:
        return {"Sequence": {"id": name, "type_id": 0}}

    single = [token(_FIRST), text("A"), token(_LAST)]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, text("B"), token(_LAST)],
        "special_tokens": {t: {"id": t, "ids": [ids[t]], "tokens": [t]} for t in (_FIRST, _LAST)},
    }


CHECKPOINTS.add(
    "deberta", CheckpointCode(check_tokenizer=_refuse_pickled_vocabulary, change_tokenizer=_use_one_separator)
)
CHECKPOINTS.add("deberta-v2", CheckpointCode(change_tokenizer=_use_sentencepiece_normalizer))
CHECKPOINTS.add("mobilebert", CheckpointCode(read_names=_rename_mobilebert_weights))
CHECKPOINTS.add("ib-bert", CheckpointCode(make_known=_import_ib_bert, read_names=_rename_mobilebert_weights))
CHECKPOINTS.add(
    "ernie-thu",
    CheckpointCode(
        make_known=_import_ernie_thu,
        read_names=_rename_ernie_thu_weights,
        take_form=_set_ernie_thu_form,
        tokenizer_json=_ernie_thu_tokenizer_json,
    ),
)
CHECKPOINTS.add("static", CheckpointCode(make_known=_import_static, complete=_clear_special_rows))
CHECKPOINTS.add("xlm", CheckpointCode(complete=_add_default_language, tokenizer_json=_xlm_tokenizer_json))
