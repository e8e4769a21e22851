"""Golden rows: what is recorded, which broken files their gates refuse, and texts that reach every label."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pocketbert.core.artefacts import Signature
from pocketbert.core.compare import parity
from pocketbert.core.compare.golden import GOLDEN_FILE, GoldenRow, read_golden
from pocketbert.core.compare.sample_texts import SENTENCES, sample_pairs
from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.predict.predictor import Arrays, Matrix, TorchPredictor, has_token_outputs
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.tasks import TASKS, Level, TaskName
from pocketbert.core.types import Format, Scheme
from pocketbert.pipeline import results
from pocketbert.pipeline.formats.base import ModelFile, RunModel
from pocketbert.pipeline.gates.checks import check_golden_rows, check_padding
from pocketbert.pipeline.make import golden
from pocketbert.pipeline.make.golden import COLUMNS, PLACES, answer_golden_rows, record_golden_rows
from pocketbert.pipeline.reference import answer_label_names, load_reference_model
from pocketbert.pipeline.results import Gate, Subject, choose_recorded_rows, choose_spread_rows
from pocketbert.runtime.engines import FileDescription, FileOnDemand
from support.tiny_tokenizers import vocabulary

FILE = ModelFile("onnx/model.onnx", "onnx/model.onnx", Format.ONNX, Scheme.FP32)
LENGTH = 40
TOKENS, QUESTIONS = TaskName.TOKEN_CLASSIFICATION, TaskName.QUESTION_ANSWERING
TAGS = {TOKENS: ("O", "B-per", "I-per"), TaskName.REGRESSION: ("LABEL_0",), QUESTIONS: ("LABEL_0", "LABEL_1")}
VOCABULARY = vocabulary(0)
UNREAD = [VOCABULARY.index(w) for w in ("evening", "week", "year", "sad", "poor", "night", "music")]
"""Words that no sample text has."""
Inputs = Mapping[str, NDArray[np.generic]]


class Broken:
    """A right engine with one fault."""

    engine, engine_version = "broken", "1"
    lengths: tuple[int, ...] = ()

    def __init__(self, right: TorchPredictor, before: Any = None, after: Any = None) -> None:
        self.right, self.inputs, self.outputs = right, right.inputs, right.outputs
        self.before, self.after = before or (lambda x: x), after or (lambda x: x)

    def run(self, inputs: Inputs) -> Arrays:
        return {n: self.after(v) for n, v in self.right.run(self.before(dict(inputs))).items()}


@dataclass(frozen=True)
class Made:
    """Golden rows of a tiny model, and that model as a file under verification."""

    rows: list[GoldenRow]
    subject: Subject
    right: TorchPredictor


def run_model(name: TaskName, weights: Path, target: Path) -> RunModel:
    recipe = Recipe.model_validate({"schema": 1, "name": "a", "task": name, "teacher": {"model": str(weights)}})
    return RunModel(recipe, target, open_model_folder(str(weights)), LENGTH)


def make_golden(
    model: RunModel, right: TorchPredictor, texts: Sequence[str], target: Path, files: Sequence[ModelFile]
) -> Sequence[str]:
    return record_golden_rows(model, *answer_golden_rows(model, right, texts, files), target, files)


@pytest.fixture(scope="module")
def made(tiny_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[TaskName], Made]:
    """`made(task)`: built once; the torch model stands for the exported file."""

    @cache
    def build(name: TaskName) -> Made:
        task, labels = TASKS[name], TAGS.get(name, ("a",) if name is TaskName.MULTIPLE_CHOICE else ("a", "b", "c"))
        weights, target = tiny_model("bert", 2, labels, task.auto_class), tmp_path_factory.mktemp(f"golden-{name}")
        right = load_reference_model(open_model_folder(str(weights)), task)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(golden, "open_file", lambda *_, **__: right)
            assert make_golden(run_model(name, weights, target), right, [], target, [FILE]) == ()
        tokenizer, form = TextTokenizer(weights, LENGTH), (Format.ONNX, Scheme.FP32, None, None)
        subject = Subject(FILE.path, target, *form, right, tokenizer, list(labels), task, weights)
        return Made(read_golden(target / GOLDEN_FILE), subject, right)

    return build


def gates(made: Made, **fault: Any) -> dict[str, Gate]:
    subject = replace(made.subject, predictor=Broken(made.right, **fault))
    found = [*check_golden_rows(subject, made.rows), check_padding(subject, made.rows)]
    return {g.name: g for g in found}


@pytest.mark.parametrize("name", TASKS)
def test_the_file_itself_passes(made: Callable[[TaskName], Made], name: TaskName) -> None:
    found = gates(made(name))
    assert {"finite", "golden", "reference", "padding"} <= set(found)
    assert ("labels" in found) == TASKS[name].names_labels
    assert all(g.passed for g in found.values()), [g.failure for g in found.values() if not g.passed]


@dataclass
class Opened:
    """An engine that counts how often it was opened and run."""

    inner: TorchPredictor
    opened: int = 0
    runs: int = 0

    def __call__(self) -> Any:
        self.opened += 1
        return Broken(self.inner, after=self.count)

    def count(self, array: Matrix) -> Matrix:
        self.runs += 1
        return array


def test_a_run_takes_what_it_recorded_except_of_a_few_rows(made: Callable[[TaskName], Made]) -> None:
    case = made(TaskName.TEXT_CLASSIFICATION)
    engine = Opened(case.right)
    names = case.right.inputs, case.right.outputs, ()
    taken = FileDescription(
        "broken", "1", *names, computes_rows_apart=False, signature=Signature(inputs=[], outputs=[])
    )
    subject = replace(case.subject, predictor=FileOnDemand(engine, taken))
    assert (engine.opened, engine.runs) == (0, 0)
    subject.take_recorded(case.rows)
    assert all(g.passed for g in check_golden_rows(subject, case.rows))
    assert (engine.opened, engine.runs) == (1, 12)
    subject.close()
    check_padding(subject, case.rows)
    assert (engine.opened, engine.runs) == (2, 24)
    # a file that answers in another way than it did is found by these rows
    other = replace(case.subject, predictor=Broken(case.right, after=lambda v: v + 1))
    other.take_recorded(case.rows)
    assert not {g.name: g for g in check_golden_rows(other, case.rows)}["golden"].passed


def test_rows_of_each_length_are_chosen_from_the_shortest_to_the_longest() -> None:
    tokens = {i: 3 + i for i in range(60)}
    assert choose_spread_rows(tokens, ()) == sorted({round(x) for x in np.linspace(0, 59, 12)})
    chosen = choose_spread_rows(tokens, (8, 16, 64))
    groups = [[tokens[i] for i in chosen if low < tokens[i] <= high] for low, high in ((0, 8), (8, 16), (16, 64))]
    assert [len(group) for group in groups] == [3, 3, 3]
    assert [(group[0], group[-1]) for group in groups] == [(3, 8), (9, 16), (17, 62)]
    assert choose_spread_rows({4: 9}, (8, 16)) == [4]
    assert choose_spread_rows({}, (8,)) == []
    # a long graph runs one row, as long as it
    tokens = {i: 3 + i for i in range(500)}
    chosen = [tokens[i] for i in choose_spread_rows(tokens, (32, 128, 512))]
    assert [sum(low < n <= high for n in chosen) for low, high in ((0, 32), (32, 128), (128, 512))] == [3, 3, 1]
    assert chosen[-1] == 502


def test_a_lost_mask_of_a_long_graph_shows_where_a_row_nearly_fills_it(
    made: Callable[[TaskName], Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "_SPREAD_TOKENS", LENGTH)  # one row of a graph is padded further, as above 192 tokens
    case = made(TaskName.TEXT_CLASSIFICATION)
    texts = ["music", "a sad night", " ".join(["music"] * (LENGTH - 3))]
    rows = [case.rows[0].model_copy(update={"text": text, "padded": []}) for text in texts]
    assert max(len(row) for row in case.subject.tokenizer.encode(texts)) == LENGTH - 1
    for fault, passes in ((None, True), (lambda b: {**b, "attention_mask": np.ones_like(b["attention_mask"])}, False)):
        broken = Broken(case.right, before=fault)
        broken.lengths = (LENGTH,)
        assert check_padding(replace(case.subject, predictor=broken), rows).passed == passes


def test_fewer_rows_have_each_label_and_all_drawn_rows() -> None:
    def row(number: int) -> GoldenRow:
        label = {7: "rare", 33: "rarer", 50: "rare"}.get(number, "usual")
        return GoldenRow(text=f"{number}", label=label, reference=[], outputs={}, tolerance={}, drawn=number > 55)

    rows, tokens = [row(i) for i in range(60)], [64 - i for i in range(60)]
    some = (8, 32)
    assert choose_recorded_rows(rows, tokens, (), Format.ONNX) == [*range(60)]
    assert choose_recorded_rows(rows, tokens, some, Format.TFLITE) == [i for i in range(60) if tokens[i] <= 32]
    chosen = choose_recorded_rows(rows, tokens, (60,), Format.TFLITE)
    assert {rows[i].label for i in chosen} == {"usual", "rare", "rarer"}
    assert {4, 55, 56, 57, 58, 59} <= {*chosen}, "the longest that fits, the shortest, the drawn ones"
    assert min(chosen) == 4
    assert len(chosen) <= 12 + 3 + 4
    assert choose_recorded_rows(rows[:5], tokens[:5], (60,), Format.TFLITE) == [4]
    assert choose_recorded_rows(rows[:3], tokens[:3], (60,), Format.TFLITE) == []
    # where an evaluator takes the place of the engine, a file of several lengths gets fewer rows of each
    for lengths, graphs in ((), 1), (some, 2):
        chosen = choose_recorded_rows(rows, tokens, lengths, Format.COREML)
        assert {56, 57, 58, 59} <= {*chosen}
        assert {rows[i].label for i in chosen} == {row.label for row in rows[28 if lengths else 0 :]}
        assert len(chosen) <= graphs * 12 + 3 + 4
        assert all(any(tokens[i] == length for i in chosen) for length in lengths)


@pytest.mark.parametrize("name", TASKS)
def test_rows_record_the_places_they_name(made: Callable[[TaskName], Made], name: TaskName) -> None:
    task, case = TASKS[name], made(name)
    tokenizer = case.subject.tokenizer
    for row in case.rows:
        [encoded] = tokenizer.encode([row.input])
        masked = encoded.ids == tokenizer.mask_id
        if name is not TaskName.FILL_MASK or not masked.any():  # its mask was cut off: all tokens are read
            masked = np.ones(len(encoded), bool)
        tokens = int(masked.sum())
        if has_token_outputs(task):
            assert row.places == sorted(set(row.places))
            assert (row.places[0], row.places[-1]) == (0, tokens - 1)
            assert len(row.places) == min(tokens, PLACES)
        else:
            assert row.places == []
        assert len(row.columns) <= COLUMNS
        wanted = case.right.run(tokenizer.pad([encoded]))
        full = np.stack([wanted[n][0] for n in task.answer], -1) if name is QUESTIONS else wanted[task.answer[0]][0]
        if name is TaskName.FILL_MASK:
            full = full[masked]
        full = full if full.ndim == 2 else full[None]
        np.testing.assert_allclose(row.shaped(row.reference), row.pick(full), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(row.expected(FILE.path), row.pick(full), rtol=1e-4, atol=1e-5)
        assert row.label == answer_label_names(row.pick(full), task, TAGS.get(name, ("a", "b", "c")))
    assert any(len(r.places) < len(tokenizer.encode([r.input])[0]) for r in case.rows) or not has_token_outputs(task)


def test_wide_answers_are_recorded_in_some_columns_and_their_best_among_them() -> None:
    draw = np.random.default_rng(0)
    matrix = draw.normal(size=(3, 30_000)).astype(np.float32)
    row = golden.blank_row("a text", matrix, TASKS[TaskName.FILL_MASK], ())
    assert COLUMNS * 3 // 4 <= len(row.columns) <= COLUMNS
    assert row.columns == sorted(set(row.columns))
    assert {0, 29_999, *matrix.argmax(-1).tolist()} <= set(row.columns)
    assert row.pick(matrix).shape == (3, len(row.columns))


def test_what_is_too_small_for_the_recorded_places_is_no_number() -> None:
    row = GoldenRow(text="a", label="", reference=[], outputs={}, tolerance={}, places=[0, 4], columns=[1, 2])
    assert row.pick(np.arange(15, dtype=np.float32).reshape(5, 3)).tolist() == [[1, 2], [13, 14]]
    for shape in ((4, 3), (5, 2), (0, 0)):
        found = row.pick(np.zeros(shape, np.float32))
        assert found.shape == (2, 2)
        assert np.isnan(found).all()
    assert row.shaped([1, 2, 3, 4]).tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize("name", TASKS)
def test_drawn_rows_fill_the_length_and_read_every_word(made: Callable[[TaskName], Made], name: TaskName) -> None:
    case = made(name)
    tokenizer = case.subject.tokenizer
    drawn = [r for r in case.rows if r.drawn]
    assert len(drawn) == 8
    assert case.rows.index(drawn[0]) >= 30, "behind the texts, which the self-test of an app reads first"
    rows = tokenizer.encode([r.input for r in drawn])
    assert {len(r) for r in rows} == {LENGTH}
    read = {int(i) for r in rows for i in r.ids}
    words = [i for i in tokenizer.ids if i not in tokenizer.special_ids and "##" not in tokenizer.token(i)]
    assert len(read & set(words)) > 0.8 * len(words)
    pairs = [r for r in drawn if not isinstance(r.text, str)]
    texts = TASKS[name].level is Level.TEXT and name is not TaskName.FEATURE_EXTRACTION
    assert len(pairs) == (8 if TASKS[name].pairs_only else 4 if texts else 0)
    if name is TaskName.FILL_MASK:
        assert all((r.ids == tokenizer.mask_id).sum() == 1 for r in rows)


def words_lost(inputs: dict[str, Any]) -> dict[str, Any]:
    return {**inputs, "input_ids": np.where(np.isin(inputs["input_ids"], UNREAD), 1, inputs["input_ids"])}


def test_words_that_no_sentence_has_are_missed(made: Callable[[TaskName], Made]) -> None:
    case = made(TaskName.TEXT_CLASSIFICATION)
    sentences = [r for r in case.rows if not r.drawn and r.input in {*SENTENCES, *sample_pairs()[:4]}]
    read = {int(i) for e in case.subject.tokenizer.encode([r.input for r in sentences]) for i in e.ids}
    assert not read & set(UNREAD)
    subject = replace(case.subject, predictor=Broken(case.right, words_lost))
    assert all(g.passed for g in check_golden_rows(subject, sentences))
    assert not gates(case, before=words_lost)["reference"].passed


def one_nan(x: NDArray[np.float32]) -> NDArray[np.float32]:
    out = x.copy()
    out[0, -1] = np.nan
    return out


def mask_ignored(inputs: dict[str, Any]) -> dict[str, Any]:
    return {**inputs, "attention_mask": np.ones_like(inputs["attention_mask"])}


FAULTS = {
    "NaN at the last token": ({"after": one_nan}, "finite"),
    "infinity": ({"after": lambda x: x + np.float32(np.inf)}, "finite"),
    "one token fewer": ({"after": lambda x: x[:, 1:]}, "finite"),
    "one token more": ({"after": lambda x: np.concatenate([x, x[:, :1]], 1)}, "finite"),
    "one row per text": ({"after": lambda x: x[:, 0]}, "finite"),
    "tokens moved by one": ({"after": lambda x: np.roll(x, 1, 1)}, "golden"),
    "tokens backwards": ({"after": lambda x: x[:, ::-1]}, "golden"),
    "all tokens alike": ({"after": lambda x: np.repeat(x[:, :1], x.shape[1], 1)}, "golden"),
    "other tokens read": (
        {"before": lambda i: {**i, "input_ids": np.where(i["input_ids"] == 9, 10, i["input_ids"])[:, ::-1].copy()}},
        "golden",
    ),
    "scaled": ({"after": lambda x: x * np.float32(1.1)}, "golden"),
    "mask ignored": ({"before": mask_ignored}, "padding"),
}


OF_TAGS = {
    "tags in another order": ({"after": lambda x: x[..., [0, 2, 1]]}, "golden"),
    "a tag lost": ({"after": lambda x: x[..., :2]}, "golden"),
    "a tag more": ({"after": lambda x: np.concatenate([x, x[..., :1]], -1)}, "golden"),
}


@pytest.mark.parametrize(
    ("name", "fault"), [*((n, f) for n in (TOKENS, QUESTIONS) for f in FAULTS), *((TOKENS, f) for f in OF_TAGS)]
)
def test_a_broken_file_fails_its_gate(made: Callable[[TaskName], Made], name: TaskName, fault: str) -> None:
    changes, gate = {**FAULTS, **OF_TAGS}[fault]
    if name is QUESTIONS and fault == "one row per text":
        changes = {"after": lambda x: x[:, :1]}
    found = gates(made(name), **changes)
    assert not found[gate].passed, {n: g.passed for n, g in found.items()}
    if gate == "golden" and fault in FAULTS:
        assert not found["reference"].passed
    if gate == "padding":
        assert found["golden"].passed, "without padding nothing is wrong"


def mask_ignored_in_the_longest(inputs: dict[str, Any]) -> dict[str, Any]:
    mask = inputs["attention_mask"].copy()
    mask[:, LENGTH - 3 :] = 1
    return {**inputs, "attention_mask": mask}


def last_words_lost(inputs: dict[str, Any]) -> dict[str, Any]:
    ids = inputs["input_ids"].copy()
    ids[:, LENGTH - 3 : LENGTH - 1] = 1
    return {**inputs, "input_ids": ids}


@pytest.mark.parametrize("lengths", [(), (16, 24, LENGTH)])
@pytest.mark.parametrize(("fault", "gate"), [(mask_ignored_in_the_longest, "padding"), (last_words_lost, "reference")])
def test_what_is_wrong_at_the_longest_input_alone_is_found(
    made: Callable[[TaskName], Made], monkeypatch: pytest.MonkeyPatch, lengths: tuple[int, ...], fault: Any, gate: str
) -> None:
    case = made(TaskName.TEXT_CLASSIFICATION)
    monkeypatch.setattr(parity, "_PADDING", 2)  # as where the longest input is far from all texts
    texts = [r for r in case.rows if r.drawn or len(case.subject.tokenizer.encode([r.input])[0]) < 16]
    for before, failing in ((None, set()), (fault, {gate})):
        file = Broken(case.right, before)
        file.lengths = lengths
        subject = replace(case.subject, predictor=file)
        found = [*check_golden_rows(subject, texts), check_padding(subject, texts)]
        assert {g.name for g in found if not g.passed} - {"golden"} == failing


class Exchanged(Broken):
    """Gives the logits of the start as those of the end."""

    def run(self, inputs: Inputs) -> Arrays:
        out = self.right.run(inputs)
        return {"start_logits": out["end_logits"], "end_logits": out["start_logits"]}


def test_exchanged_outputs_and_renamed_tags_are_seen(made: Callable[[TaskName], Made]) -> None:
    spans, tags = made(QUESTIONS), made(TOKENS)
    exchanged = check_golden_rows(replace(spans.subject, predictor=Exchanged(spans.right)), spans.rows)
    assert {"golden", "reference"} <= {g.name for g in exchanged if not g.passed}
    renamed = check_golden_rows(replace(tags.subject, labels=["O", "I-per", "B-per"]), tags.rows)
    assert ["label order changed?" in g.detail for g in renamed if not g.passed] == [True]


def test_a_file_that_answers_nan_gets_no_golden_rows(
    made: Callable[[TaskName], Made], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = made(TOKENS)
    model = run_model(TOKENS, case.subject.folder, tmp_path)
    for after in (one_nan, lambda x: x[:, 1:]):
        monkeypatch.setattr(golden, "open_file", lambda *_, after=after, **__: Broken(case.right, after=after))
        [failure] = make_golden(model, case.right, [], tmp_path, [FILE])
        assert failure.startswith("onnx/model.onnx: NaN or infinite logits")
    assert not (tmp_path / GOLDEN_FILE).exists()


# Texts that reach labels: chosen where there are some, composed where not, the same every time.


class Keywords(torch.nn.Module):
    """Each label counts its words; label 0 is the answer to texts without any."""

    def __init__(self, words: Sequence[Sequence[str]], needed: Sequence[float], tokens: bool = False) -> None:
        super().__init__()
        table = torch.zeros(len(VOCABULARY), len(words))
        for label, own in enumerate(words):
            table[[VOCABULARY.index(word) for word in own], label] = 1
        self.table, self.tokens = torch.nn.Embedding.from_pretrained(table), tokens
        self.needed = torch.tensor(needed)

    def get_input_embeddings(self) -> torch.nn.Module:
        return self.table

    def forward(self, input_ids: Any, attention_mask: Any) -> dict[str, Any]:
        counts = self.table(input_ids) * attention_mask[..., None]
        # no word counts twice
        counted = counts if self.tokens else counts.sum(1) - 0.5 * torch.relu(counts.sum(1) - 2)
        return {"logits": counted - self.needed}


Search = Callable[..., tuple[list[GoldenRow], str]]


@pytest.fixture
def search(tiny_model: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Search:
    """`search(model, task, texts)`: the golden rows that a keyword model gets beyond those of the samples, and what is said."""

    def find(
        model: Keywords, name: TaskName = TaskName.TEXT_CLASSIFICATION, texts: Sequence[str] = ()
    ) -> tuple[list[GoldenRow], str]:
        labels = tuple("abcde"[: len(model.needed)])
        predictor = TorchPredictor(model, TASKS[name], ("input_ids", "attention_mask"))
        model_of_run = run_model(name, tiny_model("bert", 2, labels), tmp_path)
        capsys.readouterr()
        assert make_golden(model_of_run, predictor, texts, tmp_path, []) == ()
        said = " ".join(capsys.readouterr().err.split())
        return read_golden(tmp_path / GOLDEN_FILE), said

    return find


COMPOSED = Keywords([(), ("evening",), ("sad", "year"), ("music", "poor", "night"), ()], [0.0, 0.5, 1.5, 2.4, 99.0])


def test_texts_are_composed_for_every_label_that_can_be_reached(search: Search) -> None:
    rows, said = search(COMPOSED)
    assert {row.label for row in rows} == {"a", "b", "c", "d"}
    assert 1 <= sum(row.label != "a" for row in rows) <= 3
    assert all(isinstance(row.text, str) for row in rows if row.label != "a")
    assert "golden rows reach 4 of 5 labels; not reached: 'e'" in said
    assert search(COMPOSED)[0] == rows, "the same texts every time"


def test_texts_of_the_data_come_first(search: Search) -> None:
    texts = [*(f"a day {'of ' * i}" for i in range(40)), "the evening", "sad evening"]
    rows, _ = search(Keywords([(), ("evening",)], [0.0, 0.5]), texts=texts)
    assert [row.text for row in rows if row.label == "b"] == ["the evening"]


@pytest.mark.parametrize("name", [TaskName.MULTI_LABEL, TOKENS])
def test_labels_that_may_hold_together_share_a_text_and_tags_are_reached(search: Search, name: TaskName) -> None:
    words = [("week",), ("sad",), ("music",)]
    model = (
        Keywords(words, [0.5] * 3)
        if name is TaskName.MULTI_LABEL
        else Keywords([(), *words[1:]], [0.0, 0.5, 0.5], True)
    )
    before = len(search(Keywords([(), (), ()], [0.0, 9.0, 9.0], name is TOKENS), name)[0])
    rows, said = search(model, name)
    assert {label for row in rows for label in row.label.split(", ") if label} == {"a", "b", "c"}
    assert len(rows) - before <= 3
    assert "not reached" not in said


def test_the_gradient_finds_what_single_words_do_not_show(search: Search, monkeypatch: pytest.MonkeyPatch) -> None:
    # single words are tried from the front of the list; the keywords are behind
    draw = golden._draw_one_token_words

    def draw_keywords_last(*given: Any) -> tuple[list[str], NDArray[np.int64]]:
        words, ids = draw(*given)
        order = sorted(range(len(words)), key=lambda i: words[i] in ("sad", "music"))
        return [words[i] for i in order], ids[order]

    monkeypatch.setattr(golden, "_draw_one_token_words", draw_keywords_last)
    monkeypatch.setattr(golden, "_SINGLE_WORDS", 64)
    rows, _ = search(Keywords([(), ("sad", "music")], [0.0, 1.5]))
    [found] = [row.text for row in rows if row.label == "b"]
    assert {"sad", "music"} & set(str(found).split())


@pytest.mark.parametrize(
    ("limit", "value", "said"),
    [
        ("_WORK", 0, "reach 1 of 5 labels; not reached: 'b', 'c', 'd', 'e'"),
        ("_SECONDS", -1.0, "reach 1 of 5 labels; not reached: 'b', 'c', 'd', 'e' (the search ended after -1 s)"),
        ("_MOST_LABELS", 1, "reach 2 of 5 labels; not reached: 'c', 'd', 'e'"),
    ],
)
def test_a_search_that_ends_early_says_what_is_missing(
    search: Search, monkeypatch: pytest.MonkeyPatch, limit: str, value: float, said: str
) -> None:
    monkeypatch.setattr(golden, limit, value)
    assert f"golden rows {said}" in search(COMPOSED)[1]
