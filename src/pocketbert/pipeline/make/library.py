"""Compare a model from text to answer with the library that its checkpoint was published for: transformers or sentence-transformers.

Golden rows compare a file with the torch model on equal token ids. The rows here begin with the text, so they also depend on the
checkpoint's own settings of token ids, segments, pooling and activation. `make_library` runs the library and writes ``library.json``;
`pocketbert.pipeline.gates.library` compares the tokenizer and the files of a folder with it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, normalizers

from pocketbert.core.compare.golden import LIBRARY_FILE, LibraryAnswers, LibraryRow
from pocketbert.core.compare.sample_texts import SENTENCES, sample_pairs
from pocketbert.core.data.labels import are_placeholder_names
from pocketbert.core.disk.files import write_json
from pocketbert.core.errors import first_line
from pocketbert.core.families.config import label_names
from pocketbert.core.families.table import checkpoint_code
from pocketbert.core.host.progress import print_note
from pocketbert.core.host.system import version_of
from pocketbert.core.models.checkpoints import register_with_transformers
from pocketbert.core.models.folder import NEXT_SENTENCE_HEAD, ModelFolder
from pocketbert.core.models.tokenizer_conversion import convert_tokenizer
from pocketbert.core.models.tokenizers import (
    SEGMENT_INPUT,
    SENTENCE_FILE,
    cut_pairs_as_tokenizer_json,
    read_added_tokens,
    read_tokenizer_settings,
)
from pocketbert.core.models.weights import GENERATED_WEIGHTS
from pocketbert.core.predict.inputs import Text
from pocketbert.core.predict.predictor import pool_embeddings, split_heads
from pocketbert.core.predict.scores import apply_score_function
from pocketbert.core.predict.sentence_settings import (
    DEFAULT_POOLING,
    MODULES_FILE,
    Pooling,
    Prompts,
    is_cross_encoder,
    read_pooling,
)
from pocketbert.core.predict.tokenization import USUAL_SPECIAL_TOKENS
from pocketbert.core.tasks import LabelKind, ScoreFunction, Task, TaskName
from pocketbert.pipeline.formats.base import RunModel
from pocketbert.pipeline.reference import takes_texts_and_pairs, task_text

_ODD_TEXTS = (
    "",
    " ",
    "HELLO, Is Anybody There?",
    "naïve café façade, Zażółć gęślą jaźń, Straße, İstanbul",
    "e\u0301 o\u0308 combined, ½ ﬁ ① and 2 m²",
    "明天早上七点叫我起床。 今日はとても良い天気ですね。",
    "오늘 날씨가 어때요? أين أقرب محطة؟ Где аптека?",
    "👩‍👩‍👧 👍🏽 great!! 🎉",
    "tab\tnew\nline\u00a0no-break\u3000wide \u200bzero\ufeff",
    "control \x00\x01\x7f\x9f characters \ufffd",
    "supercalifragilistic" * 8,
    "My order number is 48-2291-C, it costs 1,000.50 or 80%. Don't!",
)
"""Texts on which settings of tokenizers differ: case, accents, scripts, joined emoji, blanks, control characters, long words."""
VERSION = 2
"""To be raised when other test texts are chosen, so that results of earlier versions are made again."""
_PLAIN_TEXTS = 6
_GUESSES = 8
_PIPELINES = {
    TaskName.TEXT_CLASSIFICATION: "text-classification",
    TaskName.MULTI_LABEL: "text-classification",
    TaskName.REGRESSION: "text-classification",
    TaskName.TOKEN_CLASSIFICATION: "token-classification",
    TaskName.FILL_MASK: "fill-mask",
    TaskName.FEATURE_EXTRACTION: "feature-extraction",
}
"""The pipeline of each task; transformers 5 has none for question answering, whose model class is run instead."""
_COMPUTED = {
    TaskName.FEATURE_EXTRACTION: "states pooled by code of this project, not independent of it: sentence-transformers was not run",
    TaskName.REGRESSION: "activation as in CrossEncoder.predict of sentence-transformers",
}
"""What is computed here where sentence-transformers is not installed, as the record names it."""
_LONGEST_ANSWERED = 640
"""Tokens of the longest text whose answer is recorded; of longer ones the ids are."""
_Question = tuple[Text, str | None]
"""A text, and the name of a prompt; None for the default one."""


# --- asking the library ---


@dataclass(frozen=True)
class _Checkpoint:
    """A published checkpoint with the task, length, pooling and prompts with which its own library runs it.

    Attributes:
        source: Folder of the checkpoint.
        task: Task of the model.
        length: Longest input in tokens that the user chose; None for the checkpoint's own.
        pooling: How token states become a vector.
        prompts: The prompts by name.
    """

    source: ModelFolder
    task: Task
    length: int | None
    pooling: Pooling
    prompts: Prompts

    @property
    def is_cross_encoder(self) -> bool:
        """Whether the checkpoint is a sentence-transformers CrossEncoder with one output."""
        stated = {"sentence_transformers", "sbert_ce_default_activation_function"} & set(self.source.config)
        return self.task.name is TaskName.REGRESSION and bool(stated or is_cross_encoder(self.source.path))

    @property
    def is_sentence_model(self) -> bool:
        """Whether sentence-transformers is the library that the checkpoint was published for."""
        if self.task.name is TaskName.FEATURE_EXTRACTION:
            return (self.source.path / MODULES_FILE).is_file()
        return self.is_cross_encoder

    @property
    def predicts_next_sentence(self) -> bool:
        """Whether the checkpoint's head predicts if the second text of a pair follows the first."""
        return self.source.has_head(NEXT_SENTENCE_HEAD) and self.task.name is TaskName.TEXT_CLASSIFICATION

    @property
    def auto_class(self) -> str:
        """Name of the class of transformers that opens the checkpoint as it was published."""
        if self.predicts_next_sentence:
            return "AutoModelForNextSentencePrediction"
        chooses = self.task.name is TaskName.MULTIPLE_CHOICE and self.source.has_head(self.task.head)
        return "AutoModelForMultipleChoice" if chooses else self.task.auto_class

    @property
    def input_names(self) -> list[str] | None:
        """Names of the inputs to give the model; None if the tokenizer's own settings name them.

        If the settings name none, versions of transformers differ: 5 feeds no segments with most classes, 4 did. The
        segments of tokenizer.json are fed then, since the checkpoint was trained with them.
        """
        if isinstance(read_tokenizer_settings(self.source.path).get("model_input_names"), list):
            return None
        return [n for n in ("input_ids", SEGMENT_INPUT, "attention_mask") if n in self.source.family.inputs]


def make_library(model: RunModel, source: ModelFolder, length: int | None, module: Any, destination: Path) -> None:
    """Run a checkpoint in its own library, and write token ids and outputs on test texts to ``library.json``.

    The library is sentence-transformers if the checkpoint was published for it, it is installed and the user chose no
    other pooling; else transformers. If the library fails, or the model takes more than text, the reason is printed and
    written instead. The packed folder is compared with these answers.

    Args:
        model: The model that is exported.
        source: Folder of the checkpoint as its user has it, or the run's own folder if the run trained the model.
        length: Longest input in tokens, if the user chose it; None for the checkpoint's own.
        module: The model in torch. It is run if transformers itself cannot open the checkpoint.
        destination: Folder to write into.
    """
    pooling, changed_pooling = DEFAULT_POOLING, False
    if model.task.name is TaskName.FEATURE_EXTRACTION:
        pooling = read_pooling(model.weights) or DEFAULT_POOLING
        changed_pooling = read_pooling(source.path) not in (None, pooling)
    checkpoint = _Checkpoint(source, model.task, length, pooling, model.tokenizer.prompts)
    questions = _list_questions(model, source)
    if model.folder.family.form is not None:
        library = LibraryAnswers(missing=f"the form {model.folder.family.form.name} takes more than text.")
    elif checkpoint.is_sentence_model and not changed_pooling and find_spec("sentence_transformers") is not None:
        library = _ask_sentence_transformers(checkpoint, questions)
    else:
        library = _ask_transformers(checkpoint, questions, module)
    if library.missing:
        print_note(f"  not compared with the checkpoint's library: {library.missing}")
    follows = checkpoint.predicts_next_sentence
    names = list(source.labels or []) if follows else label_names(source.config) or list(model.folder.labels or [])
    if (follows or are_placeholder_names(names)) and len(names) == len(model.labels):
        chosen_names = dict(zip(names, model.labels, strict=True))
        library = library.model_copy(update={"rows": [_rename_labels(row, chosen_names) for row in library.rows]})
    write_json(destination / LIBRARY_FILE, library.model_dump(mode="json"))


def _rename_labels(row: LibraryRow, chosen_names: dict[str, str]) -> LibraryRow:
    """Return a row in which label names of the checkpoint, such as the placeholder LABEL_0, are replaced by the user's.

    Labels of tokens, which are written ``position:label``, are replaced too.
    """
    parts = [(name, *name.partition(":")) for name in row.names]
    tags = [f"{place}:{chosen_names[label]}" if label in chosen_names else name for name, place, _, label in parts]
    names = [chosen_names.get(name, tag) for name, tag in zip(row.names, tags, strict=True)]
    return row.model_copy(update={"names": names})


def _list_questions(model: RunModel, source: ModelFolder) -> list[_Question]:
    """List the test inputs for the library, as (text or pair, prompt name): plain, odd, long and paired texts."""
    task, tokenizer = model.task, model.tokenizer
    words = " ".join(SENTENCES).split()
    # longer than any text may be, and another text at each end
    long = " ".join(f"{words[i % len(words)]} {i}" for i in range(model.folder.positions // 2 + 20))
    listed = [t for t in read_added_tokens(source.path) if t.lower() not in USUAL_SPECIAL_TOKENS]
    added = " ".join(dict.fromkeys([*tokenizer.added_tokens[:_GUESSES], *listed[:_GUESSES]]))
    single = [*SENTENCES[:_PLAIN_TEXTS], *_ODD_TEXTS, f"before {added} behind", long]
    pairs: list[Text] = [
        *sample_pairs()[:4],
        ("", "the second text"),
        ("short", long),
        (long, "Short"),
    ]
    single = [] if task.labels is LabelKind.CHOICE else single
    if task.labels is LabelKind.ANSWERS:
        return [(pair, None) for pair in [*sample_pairs()[:8], ("Who?", _ODD_TEXTS[3]), ("", _ODD_TEXTS[5])]]
    if task.name is TaskName.FILL_MASK:  # the end of the long one, with a mask in the middle, would be cut off
        single = [*single[:-1], "Behind the mask are many words."]
    # an empty second text is a pair to some calls of transformers and none to others: it is left out
    texts: list[Text] = [task_text(task, text, tokenizer) for text in single]
    if task.name is TaskName.FILL_MASK:
        texts.append(f"{long} {texts[-1]}" if tokenizer.keeps_end else f"{texts[-1]} {long}")
    if takes_texts_and_pairs(task) or not single:
        texts += [*pairs, *zip(_ODD_TEXTS[2:8], reversed(_ODD_TEXTS[2:]), strict=False)]
    prompted = [
        (text, name) for name in [*tokenizer.prompts.named][:_GUESSES] for text in (*SENTENCES[:2], _ODD_TEXTS[3], "")
    ]
    return [*((text, None) for text in texts), *prompted]


def _ask_sentence_transformers(checkpoint: _Checkpoint, questions: Sequence[_Question]) -> LibraryAnswers:
    """Run the test inputs in sentence-transformers, in a separate process; return the token ids and outputs.

    A CrossEncoder is run on the pairs only, other models on the single texts only. If the process fails, the result has
    the reason instead.
    """
    asked = [(t, p) for t, p in questions if isinstance(t, str) != checkpoint.is_cross_encoder]
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "answers.json"
        content = {
            "folder": str(checkpoint.source.path),
            "cross": checkpoint.is_cross_encoder,
            "length": checkpoint.length,
            "names": checkpoint.input_names,
            "rows": asked,
        }
        quiet = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "TOKENIZERS_PARALLELISM": "false"}
        command = [sys.executable, "-P", "-m", "pocketbert.pipeline.make.sentence_process", str(output)]
        done = subprocess.run(
            command, input=json.dumps(content), capture_output=True, text=True, env={**os.environ, **quiet}, check=False
        )
        if done.returncode or not output.is_file():
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            return LibraryAnswers(missing=f"sentence-transformers does not answer: {reason[:200]}")
        answers = json.loads(output.read_text(encoding="utf-8"))
    rows = [LibraryRow(text=t, prompt=p, **row) for (t, p), row in zip(asked, answers["rows"], strict=True)]
    return LibraryAnswers(library=answers["library"], rows=rows)


def _ask_transformers(checkpoint: _Checkpoint, questions: Sequence[_Question], module: Any) -> LibraryAnswers:
    """Run the test inputs in transformers; return the token ids and outputs, or the reason why there are none.

    If transformers cannot open the checkpoint's weights, `module` is run with the checkpoint's tokenizer.
    """
    try:
        tokenizer, corrected = _open_tokenizer(checkpoint)
    except Exception as error:  # many kinds: of classes, of settings, of converters
        return LibraryAnswers(missing=f"transformers does not open the tokenizer: {first_line(error):.200}")
    opened = _open_module(checkpoint)
    try:
        rows, title = _collect_transformers_rows(checkpoint, questions, tokenizer, module if opened is None else opened)
    except Exception as error:  # a pipeline that does not take the checkpoint
        return LibraryAnswers(missing=f"transformers does not answer: {first_line(error):.200}")
    whose = "" if opened is not None else ", on the module of this project"
    parts = f", with the {' and '.join(corrected)} of the converted tokenizer" if corrected else ""
    return LibraryAnswers(library=f"transformers {version_of('transformers')}, {title}{whose}{parts}", rows=rows)


def _open_tokenizer(checkpoint: _Checkpoint) -> tuple[Any, list[str]]:
    """Open the checkpoint's tokenizer in transformers, with the checkpoint's maximum length, lower-casing and inputs.

    Pairs are truncated as tokenizer.json does it, since clients of the artefact folder use that file.

    Returns:
        The tokenizer, and the names of its parts that transformers converts wrongly and that were corrected.
    """
    import transformers

    source = checkpoint.source
    register_with_transformers(source.family)
    path = str(source.path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    corrected = _correct_conversion(tokenizer, source)  # before lower case is added to the right normalizer
    if checkpoint.is_sentence_model and (source.path / SENTENCE_FILE).is_file():
        settings = json.loads((source.path / SENTENCE_FILE).read_text(encoding="utf-8"))
        tokenizer.model_max_length = settings.get("max_seq_length") or tokenizer.model_max_length
        if settings.get("do_lower_case"):
            _lower_first(tokenizer)
    # a user may choose more than the checkpoint's own settings say
    longest = checkpoint.length or tokenizer.model_max_length
    tokenizer.model_max_length = int(min(source.positions, longest))
    if checkpoint.input_names is not None:
        tokenizer.model_input_names = checkpoint.input_names
    cut_pairs_as_tokenizer_json(tokenizer)
    return tokenizer, corrected


def _correct_conversion(tokenizer: Any, source: ModelFolder) -> list[str]:
    """Replace, in place, the parts of a tokenizer that transformers has converted wrongly; return their names.

    The right parts come from `convert_tokenizer`, which compares with the library that defines the format. transformers
    5 loses the normalizations of SentencePiece models and DeBERTa's separators. A checkpoint with a tokenizer.json, and
    a tokenizer in Python, are left as they are.
    """
    if (source.path / "tokenizer.json").is_file() or not tokenizer.is_fast:
        return []
    backend = tokenizer.backend_tokenizer
    right = Tokenizer.from_str(convert_tokenizer(source.path, checkpoint_code(source.family), quiet=True))
    contents = json.loads(backend.to_str()), json.loads(right.to_str())
    corrected = [part for part in ("normalizer", "post_processor") if contents[0][part] != contents[1][part]]
    for part in corrected:
        setattr(backend, part, getattr(right, part))
    return [part.replace("_", "-") for part in corrected]


def _lower_first(tokenizer: Any) -> None:
    """Add lowercasing before the tokenizer's own normalizer, as sentence-transformers does for `do_lower_case`.

    A normalizer that lowercases already is left as it is.
    """
    own = tokenizer.backend_tokenizer.normalizer
    if "lowercase" not in str(own).lower() or "lowercase=False" in str(own):
        first = [normalizers.Lowercase(), *([] if own is None else [own])]
        tokenizer.backend_tokenizer.normalizer = normalizers.Sequence(first)


def _open_module(checkpoint: _Checkpoint) -> Any:
    """Open the checkpoint's model in transformers; None if that fails or weights are missing or misshapen.

    Missing weights of a pooler, and weights that transformers generates itself, are accepted.
    """
    import torch
    import transformers

    auto_class = getattr(transformers, checkpoint.auto_class)
    try:
        with torch.random.fork_rng(devices=[]):
            model, report = auto_class.from_pretrained(
                str(checkpoint.source.path),
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
                dtype=torch.float32,
            )
    except Exception:  # a family that transformers does not have, or a form of its weights that it does not read
        return None
    lacking = [n for n in report["missing_keys"] if not GENERATED_WEIGHTS.search(n) and "pooler" not in n]
    return None if lacking or report["mismatched_keys"] else model.eval()


def _collect_transformers_rows(
    checkpoint: _Checkpoint, questions: Sequence[_Question], tokenizer: Any, module: Any
) -> tuple[list[LibraryRow], str]:
    """Run the test inputs in transformers and return the rows with their answers, and a text that names what was run.

    A pipeline of transformers is run if the task has one, else `module`, as also for models of sentence-transformers and
    next-sentence heads. A CrossEncoder skips single texts, and texts of more than 640 tokens have ids only.
    """
    import torch
    import transformers

    task, pipe = checkpoint.task, None
    title = _COMPUTED.get(task.name, type(module).__name__)
    if task.name in _PIPELINES and not (checkpoint.is_sentence_model or checkpoint.predicts_next_sentence):
        title = f"pipeline {_PIPELINES[task.name]}"
        pipe = transformers.pipeline(_PIPELINES[task.name], model=module, tokenizer=tokenizer, device="cpu")
    rows = []
    with torch.inference_mode():
        for text, prompt in questions:
            if checkpoint.is_cross_encoder and isinstance(text, str):
                continue
            [prompted] = checkpoint.prompts.put_before([text], prompt)
            parts = (prompted,) if isinstance(prompted, str) else prompted
            encoded = tokenizer(*parts, truncation=True, return_tensors="pt")
            ids = encoded["input_ids"]
            types = encoded.get(SEGMENT_INPUT, torch.zeros_like(ids))
            row = LibraryRow(text=text, prompt=prompt, ids=ids[0].tolist(), type_ids=types[0].tolist())
            if ids.shape[1] <= _LONGEST_ANSWERED:
                names, values = list[str](), list[float]()
                if pipe is not None:
                    names, values = _ask_pipeline(checkpoint, pipe, prompted)
                else:
                    values = _compute_values(checkpoint, module, encoded)
                    names = list(checkpoint.source.labels or []) if checkpoint.predicts_next_sentence else names
                row = row.model_copy(update={"names": names, "values": [float(f"{v:.7g}") for v in values]})
            rows.append(row)
    return rows, title


def _compute_values(checkpoint: _Checkpoint, module: Any, encoded: Any) -> list[float]:
    """Run a model on one input and return its values, for tasks without a pipeline.

    They are a choice's logit, next-sentence probabilities, the logits of several heads, start and end logits, a pooled
    vector, or a score.
    """
    if type(module).__name__.endswith("ForMultipleChoice"):  # takes [1, choices, L], here of one choice
        return [float(module(**{name: value[:, None] for name, value in encoded.items()}).logits[0, 0])]
    output = module(**encoded)
    if checkpoint.predicts_next_sentence:
        return [*map(float, apply_score_function(output.logits[0].float().numpy(), ScoreFunction.SOFTMAX))]
    if checkpoint.task.heads:
        by_head = split_heads(output.logits.float().numpy(), checkpoint.task)
        return [float(v) for value in by_head.values() for v in value.ravel()]
    if checkpoint.task.labels is LabelKind.ANSWERS:
        return [*output.start_logits[0].tolist(), *output.end_logits[0].tolist()]
    if checkpoint.task.name is TaskName.FEATURE_EXTRACTION:
        return _pool_states(output.last_hidden_state.float().numpy(), checkpoint.pooling)
    return [float(apply_score_function(output.logits.float().numpy()[0, 0], checkpoint.task.score))]


def _ask_pipeline(checkpoint: _Checkpoint, pipe: Any, text: Text) -> tuple[list[str], list[float]]:
    """Run a transformers pipeline on one text; return the names of its values and the values.

    Names are labels, or ``position:label`` for tokens and ``mask:token id`` for masks. A vector or a score has no
    names.
    """
    match checkpoint.task.name:
        case TaskName.TOKEN_CLASSIFICATION:
            tags = pipe(text, aggregation_strategy="none", ignore_labels=[])
            return [f"{t['index']}:{t['entity']}" for t in tags], [float(t["score"]) for t in tags]
        case TaskName.FILL_MASK:
            answer = pipe(text, top_k=_GUESSES, tokenizer_kwargs={"truncation": True})
            masks = answer if answer and isinstance(answer[0], list) else [answer]
            guesses = [(f"{i}:{g['token']}", float(g["score"])) for i, mask in enumerate(masks) for g in mask]
            return [name for name, _ in guesses], [score for _, score in guesses]
        case TaskName.FEATURE_EXTRACTION:
            return [], _pool_states(np.asarray(pipe(text, truncation=True), np.float32), checkpoint.pooling)
    pair = text if isinstance(text, str) else {"text": text[0], "text_pair": text[1]}
    labels = pipe(pair, top_k=None, truncation=True)
    if checkpoint.task.name is TaskName.REGRESSION:
        return [], [float(labels[0]["score"])]
    return [str(x["label"]) for x in labels], [float(x["score"]) for x in labels]


def _pool_states(states: NDArray[np.float32], pooling: Pooling) -> list[float]:
    """Pool the token states [1, L, H] of one unpadded text, and return the vector."""
    return list(pool_embeddings(states, np.ones(states.shape[:2], np.int64), pooling)[0].tolist())
