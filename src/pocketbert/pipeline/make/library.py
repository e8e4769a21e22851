"""What the library that a checkpoint was published for answers to texts: transformers' pipelines, or sentence-transformers.

Golden rows compare a file with the module on equal token ids. These rows begin with the text: whatever of a checkpoint's own
settings decides ids, segments, pooling or activation is in them.
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

from pocketbert.core.compare.golden import LIBRARY_FILE as FILE_NAME
from pocketbert.core.compare.golden import LibraryAnswers, LibraryRow
from pocketbert.core.compare.sample_texts import SENTENCES, sample_pairs
from pocketbert.core.data.examples import unlabelled
from pocketbert.core.data.labels import placeholder_names
from pocketbert.core.disk.files import write_json
from pocketbert.core.families.config import label_names
from pocketbert.core.heads import Head
from pocketbert.core.host.progress import say
from pocketbert.core.host.system import version_of
from pocketbert.core.models.checkpoints import make_known
from pocketbert.core.models.folder import ModelFolder
from pocketbert.core.models.tokenizers import SEGMENTS, SENTENCE_FILE, listed_tokens, read_tokenizer_settings
from pocketbert.core.models.weights import HARMLESS
from pocketbert.core.predict.answers import Answer, Embedding, Labelling, Prediction, Value
from pocketbert.core.predict.inputs import Text
from pocketbert.core.predict.predictor import PROBABILITIES, Batching, Matrix, embeddings, run_rows
from pocketbert.core.predict.scores import probabilities
from pocketbert.core.predict.sentence_settings import (
    DEFAULT_POOLING,
    MODULES_FILE,
    Pooling,
    Prompts,
    is_cross_encoder,
    pooling_of,
)
from pocketbert.core.predict.tokenization import USUAL_TOKENS, TextTokenizer
from pocketbert.core.tasks import LabelKind, ScoreFunction, Task, TaskName
from pocketbert.pipeline.formats.base import RunModel, bounds_of
from pocketbert.pipeline.reference import takes_both, task_text
from pocketbert.pipeline.results import Gate, Subject
from pocketbert.runtime.coreml import REFERENCE

ODD_TEXTS = (
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
VERSION = 1
"""To be raised when other texts are asked, so that results of earlier versions are made again."""
_PLAIN = 6
_GUESSES = 8
_PIPELINES = {
    TaskName.TEXT_CLASSIFICATION: "text-classification",
    TaskName.MULTI_LABEL: "text-classification",
    TaskName.REGRESSION: "text-classification",
    TaskName.TOKEN_CLASSIFICATION: "token-classification",
    TaskName.FILL_MASK: "fill-mask",
    TaskName.FEATURE_EXTRACTION: "feature-extraction",
}
"""transformers 5 has none for question answering: its class answers itself."""
_Question = tuple[Text, str | None]


@dataclass(frozen=True)
class _Asked:
    """What a library is asked.

    Attributes:
        source: The checkpoint as its user has it.
        task: What it does.
        length: Longest input in tokens that the user chose; None for the checkpoint's own.
        pooling: How its vectors are made.
        questions: Texts, each with the name of a prompt, None for the default one.
        prompts: The prompts by name.
    """

    source: ModelFolder
    task: Task
    length: int | None
    pooling: Pooling
    questions: Sequence[_Question]
    prompts: Prompts

    @property
    def is_sentence_model(self) -> bool:
        """Whether sentence-transformers is the library that the checkpoint was published for."""
        if self.task.name is TaskName.FEATURE_EXTRACTION:
            return (self.source.path / MODULES_FILE).is_file()
        return self.is_cross

    @property
    def is_cross(self) -> bool:
        """Whether it is a CrossEncoder with one output, whose answer is that of `predict`."""
        stated = {"sentence_transformers", "sbert_ce_default_activation_function"} & set(self.source.config)
        return self.task.name is TaskName.REGRESSION and bool(stated or is_cross_encoder(self.source.path))

    @property
    def input_names(self) -> list[str] | None:
        """Inputs to feed; None where the tokenizer's own settings name them.

        Where they name none, versions of transformers differ (5 feeds no segments with most classes, 4 did); here the segments
        of tokenizer.json count, which the checkpoint was trained with.
        """
        if isinstance(read_tokenizer_settings(self.source.path).get("model_input_names"), list):
            return None
        return [n for n in ("input_ids", SEGMENTS, "attention_mask") if n in self.source.family.inputs]


def make_library(model: RunModel, source: ModelFolder, length: int | None, module: Any, destination: Path) -> None:
    """Write ``library.json``: what the library of a checkpoint answers to texts, and the ids that it feeds.

    Args:
        model: The model that is exported.
        source: The checkpoint as its user has it; the run's own folder where the run trained it.
        length: Longest input in tokens where the user chose it; None for the checkpoint's own.
        module: The model in torch, for families whose folders transformers does not open itself.
        destination: Folder to write into.
    """
    prompts, own, changed = model.tokenizer.prompts, DEFAULT_POOLING, False
    if model.task.name is TaskName.FEATURE_EXTRACTION:
        own = pooling_of(model.weights) or DEFAULT_POOLING
        changed = pooling_of(source.path) not in (None, own)
    asked = _Asked(source, model.task, length, own, _questions(model, source), prompts)
    if model.folder.family.form is not None:
        made = LibraryAnswers(missing=f"the form {model.folder.family.form.name} takes more than text.")
    else:
        made = _answers(asked, module, changed)
    if made.missing:
        say(f"  not compared with the checkpoint's library: {made.missing}")
    names = label_names(source.config) or list(model.folder.labels or [])
    if placeholder_names(names) and len(names) == len(model.labels):
        called = dict(zip(names, model.labels, strict=True))
        made = made.model_copy(update={"rows": [_renamed(row, called) for row in made.rows]})
    write_json(destination / FILE_NAME, made.model_dump(mode="json"))


def _renamed(row: LibraryRow, called: dict[str, str]) -> LibraryRow:
    """Give the labels of a row the names that the user chose for LABEL_i."""
    return row.model_copy(update={"names": [called.get(n, _renamed_tag(n, called)) for n in row.names]})


def _renamed_tag(name: str, called: dict[str, str]) -> str:
    """The name of a token's label, ``place:label``, with the label that the user chose."""
    place, _, label = name.partition(":")
    return f"{place}:{called[label]}" if label in called else name


def _answers(asked: _Asked, module: Any, changed: bool) -> LibraryAnswers:
    """Ask the library of a checkpoint; another one, or own code, where it is not installed or does not open the folder."""
    if asked.is_sentence_model and not changed and find_spec("sentence_transformers") is not None:
        return _by_sentence_transformers(asked)
    try:
        tokenizer = _tokenizer(asked)
    except Exception as error:  # many kinds: of classes, of settings, of converters
        return LibraryAnswers(missing=f"transformers does not open the tokenizer: {_first_line(error)}")
    opened = _module(asked)
    try:
        return _by_transformers(asked, tokenizer, module if opened is None else opened, opened is not None)
    except Exception as error:  # a pipeline that does not take the checkpoint
        return LibraryAnswers(missing=f"transformers does not answer: {_first_line(error)}")


def _questions(model: RunModel, source: ModelFolder) -> list[_Question]:
    """Texts as the task takes them, and with each named prompt some."""
    task, tokenizer = model.task, model.tokenizer
    words = " ".join(SENTENCES).split()
    # longer than any text may be, and another text at each end
    long = " ".join(f"{words[i % len(words)]} {i}" for i in range(model.folder.positions // 2 + 20))
    listed = [t for t in listed_tokens(source.path) if t.lower() not in USUAL_TOKENS]
    added = " ".join(dict.fromkeys([*tokenizer.added_tokens[:_GUESSES], *listed[:_GUESSES]]))
    single = [*SENTENCES[:_PLAIN], *ODD_TEXTS, f"before {added} behind", long]
    pairs: list[Text] = [
        *sample_pairs()[:4],
        ("", "the second text"),
        ("short", long),
        (long, "Short"),
    ]
    if task.labels is LabelKind.ANSWERS:
        return [(pair, None) for pair in [*sample_pairs()[:8], ("Who?", ODD_TEXTS[3]), ("", ODD_TEXTS[5])]]
    if task.name is TaskName.FILL_MASK:  # the end of the long one, with a mask in the middle, would be cut off
        single = [*single[:-1], "Behind the mask are many words."]
    # an empty second text is a pair to some calls of transformers and none to others: it is not asked
    texts: list[Text] = [task_text(task, text, tokenizer) for text in single]
    if task.name is TaskName.FILL_MASK:
        texts.append(f"{long} {texts[-1]}" if tokenizer.keeps_end else f"{texts[-1]} {long}")
    if takes_both(task):
        texts += [*pairs, *zip(ODD_TEXTS[2:8], reversed(ODD_TEXTS[2:]), strict=False)]
    named = [
        (text, name) for name in [*tokenizer.prompts.named][:_GUESSES] for text in (*SENTENCES[:2], ODD_TEXTS[3], "")
    ]
    return [*((text, None) for text in texts), *named]


def _by_sentence_transformers(asked: _Asked) -> LibraryAnswers:
    """Ask sentence-transformers, in a process of its own."""
    questions = [(t, p) for t, p in asked.questions if isinstance(t, str) != asked.is_cross]
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "answers.json"
        content = {
            "folder": str(asked.source.path),
            "cross": asked.is_cross,
            "length": asked.length,
            "names": asked.input_names,
            "rows": questions,
        }
        quiet = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "TOKENIZERS_PARALLELISM": "false"}
        command = [sys.executable, "-P", "-m", "pocketbert.pipeline.make.sentence_process", str(output)]
        done = subprocess.run(
            command, input=json.dumps(content), capture_output=True, text=True, env={**os.environ, **quiet}, check=False
        )
        if done.returncode or not output.is_file():
            why = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            return LibraryAnswers(missing=f"sentence-transformers does not answer: {why[:200]}")
        made = json.loads(output.read_text(encoding="utf-8"))
    rows = [LibraryRow(text=t, prompt=p, **row) for (t, p), row in zip(questions, made["rows"], strict=True)]
    return LibraryAnswers(library=made["library"], rows=rows)


def _tokenizer(asked: _Asked) -> Any:
    """Open the checkpoint's tokenizer with transformers, as long and with the inputs that its own settings say."""
    import transformers

    make_known(asked.source.family)
    path = str(asked.source.path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    if asked.is_sentence_model and (asked.source.path / SENTENCE_FILE).is_file():
        settings = json.loads((asked.source.path / SENTENCE_FILE).read_text(encoding="utf-8"))
        tokenizer.model_max_length = settings.get("max_seq_length") or tokenizer.model_max_length
        if settings.get("do_lower_case"):
            _lower_first(tokenizer)
    longest = min(asked.source.positions, asked.length or asked.source.positions)
    tokenizer.model_max_length = int(min(tokenizer.model_max_length, longest))
    if asked.input_names is not None:
        tokenizer.model_input_names = asked.input_names
    return tokenizer


def _lower_first(tokenizer: Any) -> None:
    """Lower texts first, as sentence-transformers does for `do_lower_case`."""
    from tokenizers import normalizers

    own = tokenizer.backend_tokenizer.normalizer
    if "lowercase" not in str(own).lower() or "lowercase=False" in str(own):
        tokenizer.backend_tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Lowercase(), *([] if own is None else [own])]
        )


def _module(asked: _Asked) -> Any:
    """Open the checkpoint's model with transformers; None where it does not fill all weights from the folder."""
    import torch
    import transformers

    auto = getattr(transformers, asked.task.auto_class)
    try:
        with torch.random.fork_rng(devices=[]):
            model, report = auto.from_pretrained(
                str(asked.source.path),
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
                dtype=torch.float32,
            )
    except Exception:  # a family that transformers does not have, or a form of its weights that it does not read
        return None
    lacking = [n for n in report["missing_keys"] if not HARMLESS.search(n) and "pooler" not in n]
    return None if lacking or report["mismatched_keys"] else model.eval()


def _by_transformers(asked: _Asked, tokenizer: Any, module: Any, by_library: bool) -> LibraryAnswers:
    """Ask a pipeline of transformers, or compute what sentence-transformers would where that is not installed."""
    import torch
    import transformers

    pipe, title = None, _TITLES.get(asked.task.name, type(module).__name__)
    if not asked.is_sentence_model and asked.task.labels is not LabelKind.ANSWERS:
        name, title = _PIPELINES[asked.task.name], f"pipeline {_PIPELINES[asked.task.name]}"
        pipe = transformers.pipeline(name, model=module, tokenizer=tokenizer, device="cpu")
    rows = []
    with torch.inference_mode():
        for text, prompt in asked.questions:
            if asked.is_cross and isinstance(text, str):
                continue
            [given] = asked.prompts.put_before([text], prompt)
            parts = (given,) if isinstance(given, str) else given
            encoded = tokenizer(*parts, truncation=True, return_tensors="pt")
            ids = encoded["input_ids"]
            types = encoded.get(SEGMENTS, torch.zeros_like(ids))
            row = LibraryRow(text=text, prompt=prompt, ids=ids[0].tolist(), type_ids=types[0].tolist())
            if ids.shape[1] <= _LONGEST_ANSWERED:
                names, values = _read_pipeline(asked, pipe, given) if pipe else ([], _compute(asked, module, encoded))
                row = row.model_copy(update={"names": names, "values": [float(f"{v:.7g}") for v in values]})
            rows.append(row)
    whose = "" if by_library else ", on the module of this project"
    return LibraryAnswers(library=f"transformers {version_of('transformers')}, {title}{whose}", rows=rows)


_TITLES = {
    TaskName.FEATURE_EXTRACTION: "states pooled as sentence-transformers does",
    TaskName.REGRESSION: "activation as in CrossEncoder.predict of sentence-transformers",
}
_LONGEST_ANSWERED = 640
"""Tokens of the longest text whose answer is recorded; of longer ones the ids are."""


def _compute(asked: _Asked, module: Any, encoded: Any) -> list[float]:
    """Compute what a library without a pipeline for it answers to one text: the formula of its documentation."""
    out = module(**encoded)
    if asked.task.labels is LabelKind.ANSWERS:
        return [*out.start_logits[0].tolist(), *out.end_logits[0].tolist()]
    if asked.task.name is TaskName.FEATURE_EXTRACTION:
        states = out.last_hidden_state.float().numpy()
        return list(embeddings(states, np.ones(states.shape[:2], np.int64), asked.pooling)[0].tolist())
    return [float(probabilities(out.logits.float().numpy()[0, 0], asked.task.score))]


def _read_pipeline(asked: _Asked, pipe: Any, text: Text) -> tuple[list[str], list[float]]:
    """Ask a pipeline one text; return what its values are of, and the values."""
    match asked.task.name:
        case TaskName.TOKEN_CLASSIFICATION:
            tags = pipe(text, aggregation_strategy="none", ignore_labels=[])
            return [f"{t['index']}:{t['entity']}" for t in tags], [float(t["score"]) for t in tags]
        case TaskName.FILL_MASK:
            made = pipe(text, top_k=_GUESSES, tokenizer_kwargs={"truncation": True})
            masks = made if made and isinstance(made[0], list) else [made]
            guesses = [(f"{i}:{g['token']}", float(g["score"])) for i, mask in enumerate(masks) for g in mask]
            return [name for name, _ in guesses], [score for _, score in guesses]
        case TaskName.FEATURE_EXTRACTION:
            states = np.asarray(pipe(text, truncation=True), np.float32)
            return [], list(embeddings(states, np.ones(states.shape[:2], np.int64), asked.pooling)[0].tolist())
    given = text if isinstance(text, str) else {"text": text[0], "text_pair": text[1]}
    labels = pipe(given, top_k=None, truncation=True)
    if asked.task.name is TaskName.REGRESSION:
        return [], [float(labels[0]["score"])]
    return [x["label"] for x in labels], [float(x["score"]) for x in labels]


def _first_line(error: Exception) -> str:
    """The first line of what a library says, short."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


# --- library ---
# The gate from text to answer: what a folder makes of a text, against the library that the checkpoint was published for.


TEXT_GATE, ANSWER_GATE = "text", "answer"
_PADDED = Batching(rows=8, slack=1.0)
"""Texts of all lengths together: an answer must not depend on the padding next to it."""
_EXPORTED = 2e-3
"""Largest difference of an exported file's answers, as a share of their spread; the rounding of fp32 makes about 1e-6."""
_RELAXED = 2.0
"""How much more than the bound of its logits a smaller file's answers may differ: odd texts are among them."""
_EMULATED_ROWS = 8
"""Texts that a file is asked which an evaluator computes: each takes seconds there."""


def library_gates(
    library: LibraryAnswers | None, tokenizer: TextTokenizer, head: Head, labels: int, subjects: Sequence[Subject]
) -> list[Gate]:
    """Compare a folder's token ids, and the answers of its files, with those that the checkpoint's library gave.

    Args:
        library: What the library gave; None of a folder that was made before it was recorded.
        tokenizer: The folder's, with its prompts, cutting at its longest input.
        head: Makes answers of outputs, as the folder's list says.
        labels: How many labels it names.
        subjects: The folder's files.

    Returns:
        A gate for the tokenizer and one for each file; skipped ones where no library answered.
    """
    if library is None or library.missing:
        why = library.missing if library else "the folder is of an earlier version and records no library's answers."
        detail = f"not compared with the checkpoint's library: {why}"
        return [Gate(name=TEXT_GATE, file="tokenizer.json", passed=True, skipped=True, detail=detail)]
    # MediaPipe's files have an input for segments whatever the model is, and read no pairs
    segments = any(SEGMENTS in s.predictor.inputs for s in subjects if s.client is None)
    return [
        _text_gate(library, tokenizer, segments),
        *(_answer_gate(library, head, labels, subject) for subject in subjects),
    ]


def _text_gate(library: LibraryAnswers, tokenizer: TextTokenizer, segments: bool) -> Gate:
    """Whether every text becomes the token ids, and the segment ids where files take them, that the library feeds."""
    wrong = [(row, what) for row in library.rows if (what := _difference(row, tokenizer, segments))]
    detail = f"{len(library.rows)} texts give the ids of {library.library}."
    if wrong:
        row, what = wrong[0]
        detail = (
            f"{len(wrong)} of {len(library.rows)} texts give other inputs than {library.library}, e.g. {row.called}: {what}. "
            "Do prompt, letter case, segments, longest input and side of the cut agree with the checkpoint's files?"
        )
    return Gate(
        name=TEXT_GATE, file="tokenizer.json", passed=not wrong, value=float(len(wrong)), bound=0.0, detail=detail
    )


def _difference(row: LibraryRow, tokenizer: TextTokenizer, segments: bool) -> str:
    """Say where the inputs of a text differ from the library's; empty where they do not."""
    if row.prompt is not None and row.prompt not in tokenizer.prompts.named:
        return f"there is no prompt '{row.prompt}'"
    [made] = tokenizer.with_prompt(row.prompt).encode([row.text])
    ids, types = made.ids.tolist(), made.type_ids.tolist()
    if ids != row.ids:
        if len(ids) != len(row.ids):
            return f"{len(ids)} tokens instead of {len(row.ids)}"
        at = next(i for i, (a, b) in enumerate(zip(ids, row.ids, strict=True)) if a != b)
        return f"token {at + 1} is {tokenizer.token(ids[at])!r} instead of {tokenizer.token(row.ids[at])!r}"
    if types != row.type_ids and segments:
        return f"segments {sorted(set(types))} instead of {sorted(set(row.type_ids))}"
    return ""


def _answer_gate(library: LibraryAnswers, head: Head, labels: int, subject: Subject) -> Gate:
    """Ask a file the library's texts, in padded batches; return whether its answers are the library's."""
    longest = subject.tokenizer.max_length
    rows = [row for row in library.rows if row.values and len(row.ids) <= longest]
    if head.task.name is TaskName.QUESTION_ANSWERING:  # a pair that is too long is read in windows, which no row has
        rows = [row for row in rows if not subject.tokenizer.encode([row.text])[0].truncated]
    if subject.predictor.engine == REFERENCE:
        rows = rows[:: max(1, len(rows) // _EMULATED_ROWS)][:_EMULATED_ROWS]
    ours, theirs = [], []
    for name in dict.fromkeys(row.prompt for row in rows):
        asked = [row for row in rows if row.prompt == name]
        for row, values in zip(asked, _answered(subject, head, labels, asked, name), strict=True):
            if values is None:
                detail = f"{row.called}: its labels are not those of {library.library}."
                return Gate(name=ANSWER_GATE, file=subject.name, passed=False, detail=detail)
            ours.append(values)
            theirs.append(np.asarray(row.values, np.float64))
    if not rows:
        detail = "the library answered no text that the file takes."
        return Gate(name=ANSWER_GATE, file=subject.name, passed=True, skipped=True, detail=detail)
    unlike = next((r for r, a, b in zip(rows, ours, theirs, strict=True) if a.shape != b.shape), None)
    if unlike is not None:
        detail = f"{unlike.called}: another number of values than {library.library} gives."
        return Gate(name=ANSWER_GATE, file=subject.name, passed=False, detail=detail)
    spread = _spread(theirs)
    differences = [np.abs(a - b) / spread for a, b in zip(ours, theirs, strict=True)]
    if subject.exported and subject.predictor.engine != REFERENCE:
        by_row, bound = [float(d.max()) for d in differences], _EXPORTED
        found = max(by_row)
    else:
        by_row = [float(np.sqrt((d**2).mean())) for d in differences]
        found = float(np.sqrt(np.concatenate([d.ravel() ** 2 for d in differences]).mean()))
        bound = _RELAXED * bounds_of(subject).allowed(subject.simulated) + _EXPORTED
    worst = rows[int(np.argmax(by_row))]
    told = f"{len(rows)} texts are answered as by {library.library}, up to {found:.2g} of the answers' spread, allowed {bound:.2g}."
    if not found <= bound:
        told = (
            f"its answers differ from those of {library.library} by {found:.3g} of their spread, allowed {bound:.2g}; most for "
            f"{worst.called}. Do pooling, normalization, activation, padding side and label order agree with the checkpoint's files?"
        )
    return Gate(name=ANSWER_GATE, file=subject.name, passed=found <= bound, value=found, bound=bound, detail=told)


def _spread(values: Sequence[NDArray[np.float64]]) -> float:
    """What differences of answers are measured by: how far values differ, or a share of the largest where they hardly do."""
    every = np.concatenate([v.ravel() for v in values])
    return max(float(np.ptp(every)), 1e-2 * float(np.abs(every).max()), 1e-9)


def _answered(
    subject: Subject, head: Head, labels: int, rows: Sequence[LibraryRow], prompt: str | None
) -> list[NDArray[np.float64] | None]:
    """What a file answers to texts with one prompt: the values that the library's rows name, None where one names others."""
    tokenizer = subject.tokenizer.with_prompt(prompt if prompt in subject.tokenizer.prompts.named else None)
    texts = [unlabelled(row.text, i) for i, row in enumerate(rows, 1)]
    prepared = head.prepare(texts, tokenizer, "texts", labelled=False)
    inside = PROBABILITIES in subject.predictor.outputs
    outputs = run_rows(subject.predictor, tokenizer, prepared.encoded, head.task, _PADDED)
    if head.task.names_labels and outputs[0].shape[-1] != labels:
        return [None] * len(rows)
    if head.task.name in (TaskName.TOKEN_CLASSIFICATION, TaskName.FILL_MASK, TaskName.QUESTION_ANSWERING):
        owned = [[outputs[i] for i in own] for own in prepared.rows_of()]
        return [_token_values(head.task, subject.labels, row, own) for row, own in zip(rows, owned, strict=True)]
    answers = head.answers(outputs, prepared, inside)
    return [_text_values(answer, row) for answer, row in zip(answers, rows, strict=True)]


def _text_values(answer: Answer, row: LibraryRow) -> NDArray[np.float64] | None:
    """The values of a text's answer in the library's order."""
    match answer:
        case Prediction() | Labelling():
            known = all(name in answer.scores for name in row.names)
            return np.array([answer.scores[name] for name in row.names]) if known else None
        case Value():
            return np.array([answer.value])
        case Embedding():
            return np.asarray(answer.vector, np.float64)
    return None


def _token_values(
    task: Task, labels: Sequence[str], row: LibraryRow, outputs: Sequence[Matrix]
) -> NDArray[np.float64] | None:
    """The values of tokens that the library's row names, of a text that is read in one piece."""
    if len(outputs) != 1:
        return np.empty(0)
    matrix = outputs[0]
    if task.name is TaskName.QUESTION_ANSWERING:
        return np.asarray(matrix.T.ravel(), np.float64)
    scores, out = probabilities(matrix, ScoreFunction.SOFTMAX), list[float]()
    for name in row.names:
        place, _, what = name.partition(":")
        if not place.isdecimal() or (task.name is TaskName.FILL_MASK and not what.isdecimal()):
            return None
        column = int(what) if task.name is TaskName.FILL_MASK else labels.index(what) if what in labels else -1
        if not 0 <= column < scores.shape[1] or int(place) >= len(scores):
            return None
        out.append(float(scores[int(place), column]))
    return np.array(out)
