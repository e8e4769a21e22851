"""Random outputs for every task with the answers that the toolkit makes of them: what Java must make of them too.

No model is needed: heads see numbers only. The artefact folders hold model files of a few bytes, which no engine opens.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray

from pocketbert.benchmarks.statistics import Statistics, burst_medians, repeat_interval
from pocketbert.core.artefacts import (
    Artefacts,
    FileRecord,
    Kind,
    ModelRecord,
    Processing,
    Signature,
    Tensor,
    write_artefacts,
)
from pocketbert.core.compare.golden import GOLDEN_FILE, GOLDEN_TOKENS_FILE, write_golden
from pocketbert.core.heads import Head, Prepared
from pocketbert.core.predict.answers import (
    Answer,
    Embedding,
    Excerpt,
    Filled,
    HeadAnswers,
    Labelling,
    Prediction,
    Spans,
    Value,
    mark_unknown_answers,
)
from pocketbert.core.predict.examples import Example
from pocketbert.core.predict.inputs import Encoded, Text
from pocketbert.core.predict.predictor import Matrix, has_token_outputs
from pocketbert.core.predict.scores import Confidence, apply_temperature
from pocketbert.core.predict.sentence_settings import PoolingKind
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import HEADS_KEY, Level, Task, TaskName, several_task, task_of
from pocketbert.core.types import Format, Runtime, Scheme, Status
from pocketbert.pipeline.make.golden import blank_row
from support.tiny_tokenizers import vocabulary, write_tokenizer

SEED = 20261123
CASES = 60
LENGTH = 24
LENGTHS = (12, LENGTH)
WIDTH = 7
"""Numbers of a vector."""
WORDS = (*"the quick fox jumps over lazy dog café Ärger 東京 naïve don't it's end. 42 10% 🙂 a😀b night".split(), "")
TAGS = ("O", "B-time", "I-time", "B-place", "I-place", "E-place", "S-name", "thing")
MODELS = {
    "onnx/model.onnx": (Format.ONNX, Scheme.FP32, None),
    "tflite/model_int8.tflite": (Format.TFLITE, Scheme.INT8, None),
    "tflite/model_int8_tflite216.tflite": (Format.TFLITE, Scheme.INT8, Runtime.TFLITE_2_16),
}
OTHERS = {
    "config.json": Kind.CONFIG,
    "tokenizer.json": Kind.TOKENIZER,
    GOLDEN_FILE: Kind.GOLDEN,
    GOLDEN_TOKENS_FILE: Kind.GOLDEN,
}
VECTORS = {"pooling": PoolingKind.MEAN, "normalize": True}
PROMPTS = {"query": "the fox: ", "none": ""}


@dataclass(frozen=True)
class Kit:
    """One artefact folder of the fixtures.

    Attributes:
        task: What the model does.
        labels: Its labels.
        pair: Whether inputs are pairs.
        more: Entries of ``processing`` in addition to those that all have.
        temperature: What the first file's logits are divided by; the others have other temperatures.
        unknown: Probability below which an answer of the first file is unknown; the others have higher ones.
        heads: The task of each of several heads by its name.
        keeps_blanks: Whether tokens hold the blank in front of them, as DeBERTa's do, and punctuation stays beside words.
    """

    task: TaskName
    labels: Sequence[str] = ()
    pair: bool = False
    more: dict[str, Any] = field(default_factory=dict)
    temperature: float | None = None
    unknown: float | None = None
    heads: dict[str, TaskName] | None = None
    keeps_blanks: bool = False

    @property
    def row(self) -> Task:
        """The task's row."""
        return task_of(self.task) if self.heads is None else several_task(self.heads, self.labels)

    def confidence(self, number: int) -> Confidence | None:
        """How sure a file is, by its number."""
        if self.temperature is None:
            return None
        least = None if self.unknown is None else self.unknown + number / 10
        return Confidence(temperature=self.temperature + number, unknown=least)

    def columns(self, tokenizer: TextTokenizer) -> int:
        """Numbers in a row of outputs."""
        own = {TaskName.QUESTION_ANSWERING: 2, TaskName.FEATURE_EXTRACTION: WIDTH, TaskName.REGRESSION: 1}
        return {**own, TaskName.FILL_MASK: tokenizer.vocabulary_size}.get(self.task, len(self.labels))


SMALL = 1 / 16
"""What the numbers of a head are multiplied by that has less spread than the others, so that less of a tolerance is allowed it."""
CLASSIFY, QUESTION = TaskName.TEXT_CLASSIFICATION, TaskName.QUESTION_ANSWERING
TAG, EMBED = TaskName.TOKEN_CLASSIFICATION, TaskName.FEATURE_EXTRACTION
SLOTS_INTENT = (
    *(f"slots: {tag}" for tag in TAGS[:5]),
    "mood: number",
    *(f"intent: {n}" for n in ("alarm", "Licht", "no")),
)
TOPICS_INTENT = ("topics: a", "topics: b", "topics: c", "intent: same", "intent: other", "mood: number")
KITS = {
    "classification": Kit(CLASSIFY, ("negative", "neutral", "Ünsure")),
    "temperature": Kit(CLASSIFY, ("negative", "neutral", "positive"), more={"unknown": 0.6}, temperature=1.7),
    "thresholds": Kit(CLASSIFY, ("no", "yes"), more={"unknown": 0.99}, temperature=1.3, unknown=0.6),
    "pairs": Kit(CLASSIFY, ("same", "other"), pair=True, more={"padding_side": "left"}),
    "multi-label": Kit(TaskName.MULTI_LABEL, ("a", "b", "c", "d"), more={"thresholds": [0.3, 0.5, 0.5, 0.9]}),
    "regression": Kit(TaskName.REGRESSION, more={"padding_side": "left"}),
    "reranker": Kit(TaskName.REGRESSION, pair=True, more={"score": "sigmoid", "truncation_side": "left"}),
    "token-classification": Kit(TAG, TAGS),
    "tags-after-blanks": Kit(TAG, TAGS, keeps_blanks=True),
    "tags-at-punctuation": Kit(TAG, TAGS, keeps_blanks=True, more={"splits_punctuation": True}),
    "parts-of-speech": Kit(TAG, ("NOUN", "VERB", "ADJ", "O")),
    "question-answering": Kit(QUESTION, pair=True, more={"stride": 4, "answer_length": 5}),
    "null-answers": Kit(QUESTION, pair=True, more={"stride": 2, "answer_length": 30, "null_answers": True}),
    "fill-mask": Kit(TaskName.FILL_MASK),
    "feature-extraction": Kit(EMBED, more=VECTORS),
    "prompts": Kit(EMBED, more={**VECTORS, "prompts": PROMPTS, "default_prompt": "query"}),
    "truncation-left": Kit(
        EMBED, more={**VECTORS, "prompts": PROMPTS, "default_prompt": "none", "truncation_side": "left"}
    ),
    "slots-and-intent": Kit(
        TaskName.SEVERAL,
        SLOTS_INTENT,
        more={"padding_side": "left"},
        heads={"intent": CLASSIFY, "mood": TaskName.REGRESSION, "slots": TAG},
    ),
    "classifiers": Kit(
        TaskName.SEVERAL,
        TOPICS_INTENT,
        pair=True,
        heads={"intent": CLASSIFY, "mood": TaskName.REGRESSION, "topics": TaskName.MULTI_LABEL},
    ),
}


def write_answer_files(folder: Path) -> None:
    """Write one artefact folder for each kit, with ``cases.jsonl`` and ``tokens.json`` beside the listed files."""
    for number, (name, kit) in enumerate(KITS.items()):
        (folder / name).mkdir(parents=True)
        _write_kit(folder / name, kit, np.random.default_rng(SEED + number))
    _write_lines(folder / "statistics.jsonl", _statistics())


def _write_lines(path: Path, values: Iterable[Any]) -> None:
    path.write_text("".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values), encoding="utf-8")


def _statistics() -> Iterator[dict[str, Any]]:
    """Timings with what the benchmark says of them."""
    random = np.random.default_rng(SEED)
    for count in (1, 2, 3, 5, 10, 33, 99, 100, 101, 250):
        samples = [float(x) for x in random.lognormal(1, 0.5, count)]
        interval = repeat_interval(samples)
        told = None if interval is None else [interval.low, interval.high]
        median = burst_medians([samples], count)[0]
        yield {"samples": samples, **Statistics.of(samples).model_dump(), "median": median, "interval": told}


def _write_kit(folder: Path, kit: Kit, random: np.random.Generator) -> None:
    write_tokenizer(folder)
    if kit.keeps_blanks:
        made = json.loads((folder / "tokenizer.json").read_text())
        made["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
        spelt = {"##th": "##.", "##ly": "##'", "##er": "##%", "##ed": "▁"}  # so that words with punctuation are spelt
        made["model"]["vocab"] = {spelt.get(piece, piece): id for piece, id in made["model"]["vocab"].items()}
        (folder / "tokenizer.json").write_text(json.dumps(made))
    config = {"pad_token_id": 0, "vocab_size": len(vocabulary(0)), "id2label": dict(enumerate(kit.labels))}
    heads = {HEADS_KEY: kit.heads} if kit.heads else {}
    (folder / "config.json").write_text(json.dumps(config | heads))
    artefacts = Artefacts(
        name="tiny",
        task=kit.task,
        family="bert",
        heads=kit.heads,
        labels=list(kit.labels),
        pair=kit.pair,
        processing=Processing(**{"max_length": LENGTH, "score": kit.row.score, **kit.more}),
        files=[],
    )
    write_artefacts(folder, artefacts)  # without files: the tokenizer reads how texts are processed
    tokenizer = TextTokenizer(folder, LENGTH, pad_id=0)
    head, texts = artefacts.head(), _texts(kit, random)
    examples = [Example(*((t, None) if isinstance(t, str) else t), None, row) for row, t in enumerate(texts, 1)]
    prepared = head.prepare(examples, tokenizer, "texts", labelled=False)
    outputs = [_random_outputs(e, head, tokenizer, kit.columns(tokenizer), random) for e in prepared.encoded]
    _write_lines(folder / "cases.jsonl", _cases(head, prepared, outputs, kit, tokenizer, folder))
    spelled = [[tokenizer.token(i), tokenizer.decode([i])] for i in range(tokenizer.vocabulary_size)]
    columns = [[bool(of_token), float(factor)] for of_token, factor in zip(*_fake_columns(kit, tokenizer), strict=True)]
    said = {"mask_id": tokenizer.mask_id, "tokens": spelled, "columns": columns}
    (folder / "tokens.json").write_text(json.dumps(said))
    _write_golden(folder, kit, texts, head, tokenizer)
    _write_list(folder, artefacts, kit.row.outputs, kit)


def _texts(kit: Kit, random: np.random.Generator) -> list[Text]:
    def words(most: int) -> str:
        return " ".join(random.choice(WORDS, int(random.integers(1, most))))

    out: list[Text] = []
    for number in range(CASES):
        if kit.task is TaskName.QUESTION_ANSWERING:
            out.append((words(4) + " who?", words(40)))
        elif kit.pair:
            out.append((words(9), words(9)))
        elif kit.task is TaskName.FILL_MASK and number % 4:
            out.append(f"{words(6)} [MASK] {words(6)} [MASK]")
        else:
            out.append(words(30 if number % 5 == 0 else 9))
    return out


def _random_outputs(
    row: Encoded, head: Head, tokenizer: TextTokenizer, columns: int, random: np.random.Generator
) -> Matrix:
    """Outputs of one row; every third one has many equal numbers, so that ties are decided alike."""
    count = len(row) if has_token_outputs(head.task) else 1
    if head.task.name is TaskName.FILL_MASK:
        count = int((row.ids == tokenizer.mask_id).sum()) or count
    values = random.normal(0, 3, (count, columns))
    for named in head.task.heads:
        if named.task.level is Level.TEXT:  # the same at each token
            values[:, named.columns] = values[:1, named.columns]
    return (np.round(values / 2) * 2 if random.random() < 1 / 3 else values).astype(np.float32)


def _cases(
    head: Head, prepared: Prepared, outputs: Sequence[Matrix], kit: Kit, tokenizer: TextTokenizer, folder: Path
) -> Iterator[dict[str, Any]]:
    """Texts with their outputs, the first file's answer, and the files whose answer is unknown."""
    answered = [_answers(head, prepared, outputs, kit, number) for number in range(len(MODELS))]
    for example, numbers, answers in zip(
        prepared.examples, prepared.rows_of(), zip(*answered, strict=True), strict=True
    ):
        rows = [_row(prepared.encoded[i], outputs[i]) for i in numbers]
        if kit.keeps_blanks:  # as the tokenizer says it
            library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
            library.enable_truncation(tokenizer.max_length, direction=tokenizer.truncation_side)
            said = library.encode(example.text)
            rows[0]["starts"] = [start for start, _ in said.offsets]
            rows[0]["words"] = [-1 if word is None else word for word in said.word_ids]
        unknown = {path: bool(getattr(a, "unknown", None)) for path, a in zip(MODELS, answers, strict=True)}
        yield {"input": [example.text, example.pair], "rows": rows, "answer": _plain(answers[0]), "unknown": unknown}


def _answers(head: Head, prepared: Prepared, outputs: Sequence[Matrix], kit: Kit, number: int) -> list[Answer]:
    """What a file answers, by its number: the outputs are the same, its temperature and its threshold are not."""
    sure = kit.confidence(number)
    answers = head.answers([apply_temperature(m, sure.temperature if sure else 1) for m in outputs], prepared)
    own = sure.unknown if sure is not None else None
    return mark_unknown_answers(answers, [kit.more.get("unknown") if own is None else own] * len(answers))


def _row(encoded: Encoded, matrix: Matrix) -> dict[str, Any]:
    blank = [0] * len(encoded)
    places = encoded.places
    return {
        "ids": encoded.ids.tolist(),
        "type_ids": encoded.type_ids.tolist(),
        "starts": blank if places is None else places.offsets[:, 0].tolist(),
        "ends": blank if places is None else places.offsets[:, 1].tolist(),
        "words": blank if places is None else places.words.tolist(),
        "parts": blank if places is None else places.parts.tolist(),
        "truncated": encoded.truncated,
        "columns": matrix.shape[1],
        "values": [float(v) for v in matrix.ravel()],
    }


def _plain(answer: Answer) -> dict[str, Any]:
    """An answer with all digits."""
    told: dict[str, Any] = {"truncated": answer.truncated}
    match answer:
        case Prediction():
            told |= {"unknown": bool(answer.unknown), "label": answer.label, "score": answer.score}
            told |= {"scores": list(answer.scores.values())}
        case Labelling():
            told |= {"labels": list(answer.labels), "scores": list(answer.scores.values())}
        case Value():
            told |= {"value": answer.value}
        case Spans():
            told |= {"spans": [vars(s) for s in answer.spans]}
        case Excerpt():
            told |= {"text": answer.text, "start": answer.start, "end": answer.end, "score": answer.score}
        case Filled():
            told |= {"places": [[vars(g) for g in place] for place in answer.places]}
        case Embedding():
            told |= {"vector": [float(v) for v in answer.vector]}
        case HeadAnswers():
            told |= {name: _plain(own) for name, own in answer.answers.items()}
    return told


def _write_golden(folder: Path, kit: Kit, texts: Sequence[Text], head: Head, tokenizer: TextTokenizer) -> None:
    """Golden rows that hold the whole answer of a fake engine: its numbers are a sum over the ids, so that Java can make them."""
    rows = []
    for text in texts[:12]:
        (encoded,) = tokenizer.encode([text])
        matrix = _fake_outputs(encoded, head, tokenizer, kit)
        row = blank_row(text, matrix, head.task, list(kit.labels))
        picked = [float(v) for v in row.pick(matrix).ravel()]
        told = {"reference": picked, "outputs": dict.fromkeys(MODELS, picked), "tolerance": dict.fromkeys(MODELS, 0.01)}
        rows.append(row.model_copy(update=told))
    write_golden(folder / GOLDEN_FILE, rows)
    _write_lines(folder / GOLDEN_TOKENS_FILE, map(tokenizer.golden, tokenizer.prompts.put_before(texts)))


def _fake_outputs(encoded: Encoded, head: Head, tokenizer: TextTokenizer, kit: Kit) -> Matrix:
    """What the tests' engine answers: of column c at token i the id there plus c, of a text the mean of its ids plus c."""
    ids, (of_tokens, factors) = encoded.ids.astype(np.float64), _fake_columns(kit, tokenizer)
    masked = encoded.ids == tokenizer.mask_id
    chosen = ids[masked] if kit.task is TaskName.FILL_MASK and masked.any() else ids
    rows = chosen if has_token_outputs(head.task) else ids[:1]
    numbers = np.where(of_tokens, rows[:, None], ids.mean()) / 100 + np.arange(len(factors))
    return (numbers * factors).astype(np.float32)


def _fake_columns(kit: Kit, tokenizer: TextTokenizer) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Whether each column of the tests' engine has a number for each token, and what the column's numbers are multiplied by."""
    count = kit.columns(tokenizer)
    of_tokens, factors = np.full(count, has_token_outputs(kit.row)), np.ones(count)
    for named in kit.row.heads:
        of_tokens[named.columns] = has_token_outputs(named.task)
        factors[named.columns] = SMALL if named.task.name is TaskName.REGRESSION else 1
    return of_tokens, factors


def _write_list(folder: Path, artefacts: Artefacts, outputs: Sequence[str], kit: Kit) -> None:
    names = ("input_ids", "attention_mask", "token_type_ids")
    files: list[FileRecord] = []
    for number, (path, (format, scheme, runtime)) in enumerate(MODELS.items()):
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_bytes(path.encode())
        signature = Signature(
            inputs=[Tensor(name=n, dtype="int64", shape=["batch", "sequence"]) for n in names],
            outputs=[Tensor(name=n, dtype="float32", shape=["batch"]) for n in outputs],
            lengths=[] if format is Format.ONNX else list(LENGTHS),
        )
        files.append(
            ModelRecord(
                **FileRecord.of(folder, path, Kind.MODEL).model_dump(),
                format=format,
                scheme=scheme,
                runtime=runtime,
                default=number == 0,
                status=Status.PASSED,
                signature=signature,
                confidence=kit.confidence(number),
            )
        )
    files += [FileRecord.of(folder, name, kind) for name, kind in OTHERS.items()]
    write_artefacts(folder, artefacts.model_copy(update={"files": files}))
