"""Compare a model from text to answer with the library that its checkpoint was published for: transformers or sentence-transformers.

Golden rows compare a file with the torch model on equal token ids. The rows here begin with the text, so they also depend on the
checkpoint's own settings of token ids, segments, pooling and activation. `make_library` asks the library and writes ``library.json``;
`check_library_texts` and `check_library_answers` compare the tokenizer and the files of a folder with it.
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

from pocketbert.core.compare.golden import LIBRARY_FILE, LibraryAnswers, LibraryRow
from pocketbert.core.compare.sample_texts import SENTENCES, sample_pairs
from pocketbert.core.data.examples import unlabelled_example
from pocketbert.core.data.labels import are_placeholder_names
from pocketbert.core.disk.files import write_json
from pocketbert.core.families.config import label_names
from pocketbert.core.heads import Head
from pocketbert.core.host.progress import print_note
from pocketbert.core.host.system import version_of
from pocketbert.core.models.checkpoints import register_with_transformers
from pocketbert.core.models.folder import ModelFolder
from pocketbert.core.models.tokenizers import SEGMENT_INPUT, SENTENCE_FILE, read_added_tokens, read_tokenizer_settings
from pocketbert.core.models.weights import GENERATED_WEIGHTS
from pocketbert.core.predict.answers import Answer, Embedding, Labelling, Prediction, Value
from pocketbert.core.predict.inputs import Text
from pocketbert.core.predict.predictor import PROBABILITIES, Batching, Matrix, pool_embeddings, run_rows
from pocketbert.core.predict.scores import apply_score_function
from pocketbert.core.predict.sentence_settings import (
    DEFAULT_POOLING,
    MODULES_FILE,
    Pooling,
    Prompts,
    is_cross_encoder,
    read_pooling,
)
from pocketbert.core.predict.tokenization import USUAL_SPECIAL_TOKENS, TextTokenizer
from pocketbert.core.tasks import LabelKind, ScoreFunction, Task, TaskName
from pocketbert.pipeline.formats.base import RunModel, bounds_of
from pocketbert.pipeline.reference import takes_texts_and_pairs, task_text
from pocketbert.pipeline.results import Gate, Subject
from pocketbert.runtime.coreml import REFERENCE_ENGINE

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
VERSION = 1
"""To be raised when other texts are asked, so that results of earlier versions are made again."""
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
"""The pipeline of each task; transformers 5 has none for question answering, its model class is asked."""
_COMPUTED = {
    TaskName.FEATURE_EXTRACTION: "states pooled as sentence-transformers does",
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
        source: The checkpoint.
        task: Its task.
        length: Longest input in tokens that the user chose; None for the checkpoint's own.
        pooling: How its vectors are made.
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
    def input_names(self) -> list[str] | None:
        """Names of the inputs to give the model; None if the tokenizer's own settings name them.

        If they name none, versions of transformers differ (5 feeds no segments with most classes, 4 did); then the segments
        of tokenizer.json are fed, which the checkpoint was trained with.
        """
        if isinstance(read_tokenizer_settings(self.source.path).get("model_input_names"), list):
            return None
        return [n for n in ("input_ids", SEGMENT_INPUT, "attention_mask") if n in self.source.family.inputs]


def make_library(model: RunModel, source: ModelFolder, length: int | None, module: Any, destination: Path) -> None:
    """Run a checkpoint in transformers or sentence-transformers; write its token ids and outputs to ``library.json``.

    Args:
        model: The model that is exported.
        source: The checkpoint as its user has it; the run's own folder if the run trained it.
        length: Longest input in tokens if the user chose it; None for the checkpoint's own.
        module: The model in torch, for families whose folders transformers does not open itself.
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
    names = label_names(source.config) or list(model.folder.labels or [])
    if are_placeholder_names(names) and len(names) == len(model.labels):
        chosen_names = dict(zip(names, model.labels, strict=True))
        rows = [_rename_labels(row, chosen_names) for row in library.rows]
        library = library.model_copy(update={"rows": rows})
    write_json(destination / LIBRARY_FILE, library.model_dump(mode="json"))


def _rename_labels(row: LibraryRow, chosen_names: dict[str, str]) -> LibraryRow:
    """Return a row with LABEL_i replaced by the user's names; labels of tokens are written ``position:label``."""
    names = []
    for name in row.names:
        place, _, label = name.partition(":")
        tag = f"{place}:{chosen_names[label]}" if label in chosen_names else name
        names.append(chosen_names.get(name, tag))
    return row.model_copy(update={"names": names})


def _list_questions(model: RunModel, source: ModelFolder) -> list[_Question]:
    """Return test inputs for the library: (text or pair, prompt name) of plain, odd, long and paired texts."""
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
    if task.labels is LabelKind.ANSWERS:
        return [(pair, None) for pair in [*sample_pairs()[:8], ("Who?", _ODD_TEXTS[3]), ("", _ODD_TEXTS[5])]]
    if task.name is TaskName.FILL_MASK:  # the end of the long one, with a mask in the middle, would be cut off
        single = [*single[:-1], "Behind the mask are many words."]
    # an empty second text is a pair to some calls of transformers and none to others: it is not asked
    texts: list[Text] = [task_text(task, text, tokenizer) for text in single]
    if task.name is TaskName.FILL_MASK:
        texts.append(f"{long} {texts[-1]}" if tokenizer.keeps_end else f"{texts[-1]} {long}")
    if takes_texts_and_pairs(task):
        texts += [*pairs, *zip(_ODD_TEXTS[2:8], reversed(_ODD_TEXTS[2:]), strict=False)]
    prompted = [
        (text, name) for name in [*tokenizer.prompts.named][:_GUESSES] for text in (*SENTENCES[:2], _ODD_TEXTS[3], "")
    ]
    return [*((text, None) for text in texts), *prompted]


def _ask_sentence_transformers(checkpoint: _Checkpoint, questions: Sequence[_Question]) -> LibraryAnswers:
    """Run the questions in sentence-transformers, in a separate process; return its token ids and outputs."""
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
    """Run the questions in transformers; return its token ids and outputs, or the reason why there are none.

    `module` is run instead if transformers cannot open the checkpoint.
    """
    try:
        tokenizer = _open_tokenizer(checkpoint)
    except Exception as error:  # many kinds: of classes, of settings, of converters
        return LibraryAnswers(missing=f"transformers does not open the tokenizer: {_first_line(error)}")
    opened = _open_module(checkpoint)
    try:
        rows, title = _collect_transformers_rows(checkpoint, questions, tokenizer, module if opened is None else opened)
    except Exception as error:  # a pipeline that does not take the checkpoint
        return LibraryAnswers(missing=f"transformers does not answer: {_first_line(error)}")
    whose = "" if opened is not None else ", on the module of this project"
    return LibraryAnswers(library=f"transformers {version_of('transformers')}, {title}{whose}", rows=rows)


def _open_tokenizer(checkpoint: _Checkpoint) -> Any:
    """Open the checkpoint's tokenizer in transformers, with its own maximum length, lowercasing and input names."""
    import transformers

    source = checkpoint.source
    register_with_transformers(source.family)
    path = str(source.path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    if checkpoint.is_sentence_model and (source.path / SENTENCE_FILE).is_file():
        settings = json.loads((source.path / SENTENCE_FILE).read_text(encoding="utf-8"))
        tokenizer.model_max_length = settings.get("max_seq_length") or tokenizer.model_max_length
        if settings.get("do_lower_case"):
            _lower_first(tokenizer)
    longest = min(source.positions, checkpoint.length or source.positions)
    tokenizer.model_max_length = int(min(tokenizer.model_max_length, longest))
    if checkpoint.input_names is not None:
        tokenizer.model_input_names = checkpoint.input_names
    return tokenizer


def _lower_first(tokenizer: Any) -> None:
    """Add lowercasing before the tokenizer's own normalizer, as sentence-transformers does for `do_lower_case`."""
    from tokenizers import normalizers

    own = tokenizer.backend_tokenizer.normalizer
    if "lowercase" not in str(own).lower() or "lowercase=False" in str(own):
        first = [normalizers.Lowercase(), *([] if own is None else [own])]
        tokenizer.backend_tokenizer.normalizer = normalizers.Sequence(first)


def _open_module(checkpoint: _Checkpoint) -> Any:
    """Open the checkpoint's model in transformers; None if that fails or weights are missing or misshapen."""
    import torch
    import transformers

    auto_class = getattr(transformers, checkpoint.task.auto_class)
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
    """Run a transformers pipeline, or `module` for tasks without one; return its rows and the name of what was run."""
    import torch
    import transformers

    task, pipe = checkpoint.task, None
    title = _COMPUTED.get(task.name, type(module).__name__)
    if not checkpoint.is_sentence_model and task.labels is not LabelKind.ANSWERS:
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
                row = row.model_copy(update={"names": names, "values": [float(f"{v:.7g}") for v in values]})
            rows.append(row)
    return rows, title


def _compute_values(checkpoint: _Checkpoint, module: Any, encoded: Any) -> list[float]:
    """Return a model's output values for tasks without a pipeline: answer logits, a pooled vector or a score."""
    output = module(**encoded)
    if checkpoint.task.labels is LabelKind.ANSWERS:
        return [*output.start_logits[0].tolist(), *output.end_logits[0].tolist()]
    if checkpoint.task.name is TaskName.FEATURE_EXTRACTION:
        return _pool_states(output.last_hidden_state.float().numpy(), checkpoint.pooling)
    return [float(apply_score_function(output.logits.float().numpy()[0, 0], checkpoint.task.score))]


def _ask_pipeline(checkpoint: _Checkpoint, pipe: Any, text: Text) -> tuple[list[str], list[float]]:
    """Run a pipeline on one text; return the names of its values (labels, or ``position:label``) and the values."""
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
    return [x["label"] for x in labels], [float(x["score"]) for x in labels]


def _pool_states(states: NDArray[np.float32], pooling: Pooling) -> list[float]:
    """Return the vector pooled from the token states of one unpadded text, [1, L, H]."""
    return list(pool_embeddings(states, np.ones(states.shape[:2], np.int64), pooling)[0].tolist())


def _first_line(error: Exception) -> str:
    """Return the first line of an error's message, cut to 200 characters."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


# --- gates ---

LIBRARY_TEXT_GATE, _ANSWER_GATE = "text", "answer"
_PADDED = Batching(rows=8, slack=0.5)
"""Texts of all lengths together: an answer must not depend on the padding next to it."""
_EXPORTED = 2e-3
"""Largest difference of an exported file's answers, as a share of their range; the rounding of fp32 makes about 1e-6."""
_RELAXED = 2.0
"""Factor on the bound of its logits for the answers of a quantized file: odd texts are among them."""
_EVALUATED_ROWS = 8
"""Texts for a file that is computed by the reference evaluator, which takes seconds for each."""


def check_library_texts(library: LibraryAnswers | None, tokenizer: TextTokenizer, subjects: Sequence[Subject]) -> Gate:
    """Check that a folder's tokenizer gives the token ids, and if a file reads them the segment ids, of the library.

    Args:
        library: The answers recorded from the checkpoint's library; None for a folder that was made before they were.
        tokenizer: The folder's tokenizer, with its prompts, cutting at its longest input.
        subjects: The folder's model files.

    Returns:
        The gate; skipped if no library answered.
    """
    if library is None or library.missing:
        why = library.missing if library else "the folder is of an earlier version and records no library's answers."
        detail = f"not compared with the checkpoint's library: {why}"
        return Gate(name=LIBRARY_TEXT_GATE, file="tokenizer.json", passed=True, skipped=True, detail=detail)
    # MediaPipe's files always have an input for segments, and read no pairs
    segments = any(SEGMENT_INPUT in s.predictor.inputs for s in subjects if s.client is None)
    wrong = [(row, what) for row in library.rows if (what := _describe_input_difference(row, tokenizer, segments))]
    detail = f"{len(library.rows)} texts give the ids of {library.library}."
    if wrong:
        row, what = wrong[0]
        detail = (
            f"{len(wrong)} of {len(library.rows)} texts give other inputs than {library.library}, e.g. {row.called}: {what}. "
            "Do prompt, letter case, segments, longest input and side of the cut agree with the checkpoint's files?"
        )
    return Gate(
        name=LIBRARY_TEXT_GATE,
        file="tokenizer.json",
        passed=not wrong,
        value=float(len(wrong)),
        bound=0.0,
        detail=detail,
    )


def _describe_input_difference(row: LibraryRow, tokenizer: TextTokenizer, segments: bool) -> str:
    """Return a phrase on how the token or segment ids of a text differ from the library's; empty if they are equal."""
    if row.prompt is not None and row.prompt not in tokenizer.prompts.named:
        return f"there is no prompt '{row.prompt}'"
    [encoded] = tokenizer.with_prompt(row.prompt).encode([row.text])
    ids, types = encoded.ids.tolist(), encoded.type_ids.tolist()
    if ids != row.ids:
        if len(ids) != len(row.ids):
            return f"{len(ids)} tokens instead of {len(row.ids)}"
        at = next(i for i, (a, b) in enumerate(zip(ids, row.ids, strict=True)) if a != b)
        return f"token {at + 1} is {tokenizer.token(ids[at])!r} instead of {tokenizer.token(row.ids[at])!r}"
    if types != row.type_ids and segments:
        return f"segments {sorted(set(types))} instead of {sorted(set(row.type_ids))}"
    return ""


def check_library_answers(library: LibraryAnswers | None, head: Head, labels: int, subject: Subject) -> list[Gate]:
    """Run a file on the library's texts in padded batches and check its outputs against the library's values.

    Args:
        library: The answers recorded from the checkpoint's library.
        head: Makes answers of outputs, with the settings of the folder.
        labels: Number of labels of the folder.
        subject: The file.

    Returns:
        The gate; an empty list if no library answered.
    """
    return [] if library is None or library.missing else [_check_answers(library, head, labels, subject)]


def _check_answers(library: LibraryAnswers, head: Head, labels: int, subject: Subject) -> Gate:
    """Return the gate of `check_library_answers`."""
    longest = subject.tokenizer.max_length
    rows = [row for row in library.rows if row.values and len(row.ids) <= longest]
    if head.task.name is TaskName.QUESTION_ANSWERING:  # a pair that is too long is read in windows, which no row has
        rows = [row for row in rows if not subject.tokenizer.encode([row.text])[0].truncated]
    if subject.predictor.engine == REFERENCE_ENGINE:
        rows = rows[:: max(1, len(rows) // _EVALUATED_ROWS)][:_EVALUATED_ROWS]
    file_values, library_values = [], []
    for name in dict.fromkeys(row.prompt for row in rows):
        prompted = [row for row in rows if row.prompt == name]
        for row, values in zip(prompted, _run_file(subject, head, labels, prompted, name), strict=True):
            if values is None:
                detail = f"{row.called}: its labels are not those of {library.library}."
                return Gate(name=_ANSWER_GATE, file=subject.name, passed=False, detail=detail)
            file_values.append(values)
            library_values.append(np.asarray(row.values, np.float64))
    if not rows:
        detail = "the library answered no text that the file takes."
        return Gate(name=_ANSWER_GATE, file=subject.name, passed=True, skipped=True, detail=detail)
    unlike = next((r for r, a, b in zip(rows, file_values, library_values, strict=True) if a.shape != b.shape), None)
    if unlike is not None:
        detail = f"{unlike.called}: another number of values than {library.library} gives."
        return Gate(name=_ANSWER_GATE, file=subject.name, passed=False, detail=detail)
    spread = _measure_value_range(library_values)
    differences = [np.abs(a - b) / spread for a, b in zip(file_values, library_values, strict=True)]
    if subject.exported and subject.predictor.engine != REFERENCE_ENGINE:
        by_row, bound = [float(d.max()) for d in differences], _EXPORTED
        found = max(by_row)
    else:
        by_row = [float(np.sqrt((d**2).mean())) for d in differences]
        found = float(np.sqrt(np.concatenate([d.ravel() ** 2 for d in differences]).mean()))
        bound = _RELAXED * bounds_of(subject).allowed(subject.simulated) + _EXPORTED
    worst = rows[int(np.argmax(by_row))]
    detail = f"{len(rows)} texts are answered as by {library.library}, up to {found:.2g} of the answers' spread, allowed {bound:.2g}."
    if not found <= bound:
        detail = (
            f"its answers differ from those of {library.library} by {found:.3g} of their spread, allowed {bound:.2g}; most for "
            f"{worst.called}. Do pooling, normalization, activation, padding side and label order agree with the checkpoint's files?"
        )
    return Gate(name=_ANSWER_GATE, file=subject.name, passed=found <= bound, value=found, bound=bound, detail=detail)


def _measure_value_range(values: Sequence[NDArray[np.float64]]) -> float:
    """Return the unit for differences of outputs: the values' range, or 1 % of the largest magnitude if more."""
    every = np.concatenate([v.ravel() for v in values])
    return max(float(np.ptp(every)), 1e-2 * float(np.abs(every).max()), 1e-9)


def _run_file(
    subject: Subject, head: Head, labels: int, rows: Sequence[LibraryRow], prompt: str | None
) -> list[NDArray[np.float64] | None]:
    """Run a file on texts with one prompt; return for each row the values that the library recorded.

    A row whose label names the file does not have gives None.
    """
    tokenizer = subject.tokenizer.with_prompt(prompt if prompt in subject.tokenizer.prompts.named else None)
    texts = [unlabelled_example(row.text, i) for i, row in enumerate(rows, 1)]
    prepared = head.prepare(texts, tokenizer, "texts", labelled=False)
    scored = PROBABILITIES in subject.predictor.outputs
    outputs = run_rows(subject.predictor, tokenizer, prepared.encoded, head.task, _PADDED)
    if head.task.names_labels and outputs[0].shape[-1] != labels:
        return [None] * len(rows)
    if head.task.name in (TaskName.TOKEN_CLASSIFICATION, TaskName.FILL_MASK, TaskName.QUESTION_ANSWERING):
        owned = [[outputs[i] for i in own] for own in prepared.rows_of()]
        return [_select_token_values(head.task, subject.labels, row, own) for row, own in zip(rows, owned, strict=True)]
    answers = head.answers(outputs, prepared, scored)
    return [_select_text_values(answer, row) for answer, row in zip(answers, rows, strict=True)]


def _select_text_values(answer: Answer, row: LibraryRow) -> NDArray[np.float64] | None:
    """Return the scores, value or vector of a text's answer in the library's order; None if a label is missing."""
    match answer:
        case Prediction() | Labelling():
            known = all(name in answer.scores for name in row.names)
            return np.array([answer.scores[name] for name in row.names]) if known else None
        case Value():
            return np.array([answer.value])
        case Embedding():
            return np.asarray(answer.vector, np.float64)
    return None


def _select_token_values(
    task: Task, labels: Sequence[str], row: LibraryRow, outputs: Sequence[Matrix]
) -> NDArray[np.float64] | None:
    """Return the token probabilities (question answering: logits) that the library's row names, of a file's outputs.

    Returns None if the row names a token or label that is not there; an empty array for a text read in several windows.
    """
    if len(outputs) != 1:
        return np.empty(0)
    matrix = outputs[0]
    if task.name is TaskName.QUESTION_ANSWERING:
        return np.asarray(matrix.T.ravel(), np.float64)
    scores, values = apply_score_function(matrix, ScoreFunction.SOFTMAX), list[float]()
    for name in row.names:
        place, _, label = name.partition(":")
        if not place.isdecimal() or (task.name is TaskName.FILL_MASK and not label.isdecimal()):
            return None
        column = int(label) if task.name is TaskName.FILL_MASK else labels.index(label) if label in labels else -1
        if not 0 <= column < scores.shape[1] or int(place) >= len(scores):
            return None
        values.append(float(scores[int(place), column]))
    return np.array(values)
