from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from pocketbert.core.errors import InputError
from pocketbert.core.families import family_of
from pocketbert.core.predict.sentence_settings import DEFAULT_POOLING, Pooling, PoolingKind
from pocketbert.core.recipe.stages import SignalWeights, TaskStage
from pocketbert.core.tasks import SENTENCE_EMBEDDING, TASKS, TaskName, several_task
from pocketbert.core.types import Projection
from pocketbert.distill.methods.method import CarriedPart, StageJob, TeacherStudent
from pocketbert.distill.methods.task import Finetune, TaskDistillation, add_carried_projection, train
from pocketbert.distill.teacher.column import ColumnTeacher
from pocketbert.distill.teacher.signals import Wanted
from pocketbert.distill.training.data import ROW_NUMBERS
from support.objectives import CLASSIFY, NARROW, SIZES, make_batch, make_student, means, try_task


class Rows:
    """Five texts, of which the first four are two pairs with scores."""

    lengths = SIZES

    def batch(self, rows: Sequence[int], step: int) -> dict[str, torch.Tensor]:
        """Rows of `make_batch`, with the score of each row's pair."""
        return {**make_batch(rows, step=step), "labels": torch.tensor([float(row < 2) for row in rows])}


@pytest.mark.parametrize("family", ["bert", "distilbert"])
def test_finetuning_minimises_the_cross_entropy_with_gold(family, make_classifier):
    model, batch, labels = make_classifier(family, 2, ("a", "b", "c")), make_batch(), torch.tensor([2, 0, 1, 1, 0])
    row = family_of(family)
    objective = Finetune(row, CLASSIFY)
    [(key, term)] = objective(model, batch | {"labels": labels}).items()
    assert objective.counts(batch) == {}, "a mean over rows"
    logits = model(**{k: batch[k] for k in row.inputs}).logits
    wanted = -(logits.detach().double().log_softmax(-1)[torch.arange(5), labels]).mean()
    assert key == "labels" and term.mean.requires_grad and float(term.count) == 5
    assert float(term.mean.detach()) == pytest.approx(float(wanted), rel=1e-5)


def test_finetuning_takes_the_weight_of_its_term():
    row, heads = family_of("bert"), {"intent": "text-classification", "mood": "regression"}
    assert Finetune(row, CLASSIFY).weights == {"labels": 1.0}
    assert Finetune(row, CLASSIFY, {"labels": 0.5}).weights == {"labels": 0.5}
    several = several_task(heads, weights={"mood": 3.0})
    assert Finetune(row, several).weights == {"labels.intent": 1.0, "labels.mood": 3.0}
    halved = Finetune(row, several, weights={"labels": 0.5})
    assert halved.weights == {"labels.intent": 0.5, "labels.mood": 1.5}
    assert replace(halved).weights == halved.weights


@torch.no_grad()
@pytest.mark.parametrize(("listed", "layers"), [(None, [2, 3]), ([1, 2], [1, 2])])
def test_terms_are_the_formulas_over_the_mapped_layers(listed, layers):
    trial = try_task(layers=listed, temperature=2.0)
    assert trial.objective.layers == layers
    found, batch = means(trial.terms()), trial.batch()
    real, made = batch["attention_mask"].bool(), []
    inputs = {n: batch[n] for n in ("input_ids", "attention_mask", "token_type_ids")}
    for model in (trial.teacher.eval(), trial.student):
        model.set_attn_implementation("eager")
        made.append(model(**inputs, output_hidden_states=True, output_attentions=True))
    theirs, ours = made
    hidden = [(ours.hidden_states[m] - theirs.hidden_states[n])[real].square().mean() for m, n in enumerate(layers, 1)]
    attention = []
    for m, n in enumerate(layers):
        p, q = theirs.attentions[n - 1], ours.attentions[m]
        divergence = (p * ((p + 1e-30).log() - (q + 1e-30).log())).sum(-1)
        attention.append(divergence.transpose(1, 2)[real].mean())
    soft = F.kl_div(*((x.logits / 2).log_softmax(-1) for x in (ours, theirs)), reduction="batchmean", log_target=True)
    wanted = {"logits": 4 * soft, "hidden": sum(hidden) / 2, "attention": sum(attention) / 2}
    assert {n: found[n] for n in wanted} == pytest.approx({n: float(v) for n, v in wanted.items()}, rel=1e-4)


def test_a_signal_that_the_family_forbids_is_refused_with_the_alternatives(make_classifier):
    teacher = make_classifier("mobilebert", 3, ("a", "b"))
    stage = TaskStage(method="task", steps=1, signals=SignalWeights(hidden=1))
    message = r"distill.1.signals.hidden: not valid for MobileBERT: .*1e5.*valid signals: logits, attention"
    with pytest.raises(InputError, match=message):
        TaskDistillation(teacher, make_student(teacher), family_of("mobilebert"), CLASSIFY, stage, "distill.1")


def test_sizes_that_do_not_fit_a_signal_are_refused_together_and_logits_fit_any():
    section = {**NARROW, "heads": 3}
    with pytest.raises(InputError) as caught:
        try_task(section)
    hidden, attention = (str(p) for p in caught.value.problems)
    assert hidden.startswith("distill.0.signals.hidden: the student is 24 wide, the teacher 32. Fix: Set hidden: 0")
    assert attention.startswith(
        "distill.0.signals.attention: the student has 3 heads, the teacher 4. Fix: Set attention"
    )
    assert means(try_task(section, signals=SignalWeights(logits=1, hidden=0, attention=0)).terms())["logits"] > 0


def test_vectors_of_another_width_are_not_compared_with_the_teachers(make_classifier):
    teacher = make_classifier("bert", 2, (), auto_class="AutoModel")
    stage = TaskStage(method="task", steps=1, signals=SignalWeights(logits=1, hidden=0, attention=0, labels=1))
    task = TASKS[TaskName.FEATURE_EXTRACTION]
    with pytest.raises(InputError) as caught:
        TaskDistillation(teacher, make_student(teacher, 1, **NARROW), family_of("bert"), task, stage)
    said = str(caught.value)
    assert "distill.0.signals.logits: the student's vectors have 24 numbers, the teacher's 32" in said
    own = TaskStage(method="task", steps=1, signals=SignalWeights(logits=0, hidden=0, attention=0, labels=1))
    student = make_student(teacher, 1, **NARROW)
    objective = TaskDistillation(teacher, student, family_of("bert"), task, own)
    ids = torch.randint(5, 20, (4, 6))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}
    terms = objective(student, {**batch, "labels": torch.tensor([1.0, 1.0, 0.0, 0.0])})
    assert terms.keys() == {"labels"}
    terms["labels"].mean.backward()  # type: ignore[no-untyped-call]


EMBED = TASKS[TaskName.FEATURE_EXTRACTION]


@pytest.mark.parametrize("kind", Projection)
@pytest.mark.parametrize("kinds", [("mean",), ("mean", "max")], ids=str)
def test_states_and_vectors_of_another_width_are_compared_through_the_projection(kinds, kind, make_classifier):
    teacher = make_classifier("bert", 3, (), auto_class="AutoModel")
    student = make_student(teacher, 2, kind, **NARROW)
    signals = SignalWeights(logits=1, hidden=1, attention=0, labels=1)
    stage, pooling = (
        TaskStage(method="task", steps=1, signals=signals),
        Pooling(PoolingKind(kinds[0]), further=kinds[1:]),
    )
    objective = TaskDistillation(teacher, student, family_of("bert"), EMBED, stage, pooling=pooling)
    batch = {**make_batch(range(4)), "labels": torch.tensor([1.0, 1.0, 0.0, 0.0])}
    with torch.no_grad():
        found = means(objective(student, batch))
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "token_type_ids")}
        states = [m.eval()(**inputs, output_hidden_states=True).hidden_states for m in (student, teacher)]
    ours, theirs = ([state.double().numpy() for state in made] for made in states)
    maps = {n: v.double().numpy() for n, v in student.layer_projection.state_dict().items()}
    own = [f"maps.{n if kind is Projection.PER_LAYER else 0}" for n in range(3)]
    real, vectors = batch["attention_mask"].numpy().astype(bool), []
    hidden = []
    for m, n in ((1, 2), (2, 3)):
        errors = ours[m] @ maps[f"{own[m]}.weight"].T + maps[f"{own[m]}.bias"] - theirs[n]
        hidden.append((errors[real] ** 2).mean())
    for row in range(4):
        parts = [(made[-1][row, real[row]].mean(0), made[-1][row, real[row]].max(0)) for made in (ours, theirs)]
        mine = [part @ maps[f"{own[2]}.weight"].T + maps[f"{own[2]}.bias"] for part in parts[0]]
        vectors.append([np.concatenate(side[: len(kinds)]) for side in (mine, parts[1])])
    unit = np.array([[v / np.linalg.norm(v) for v in pair] for pair in vectors])
    assert found["hidden"] == pytest.approx(np.mean(hidden), rel=1e-6, abs=1e-6)
    assert found["logits"] == pytest.approx((1 - (unit[:, 0] * unit[:, 1]).sum(1)).mean(), rel=1e-6, abs=1e-6)
    cosines = [unit[i, 0] @ unit[i + 1, 0] for i in (0, 2)]
    assert found["labels"] == pytest.approx(np.log1p(np.exp(20 * (cosines[1] - cosines[0]))), rel=1e-5, abs=1e-6)


def test_a_kept_projection_starts_at_the_teachers_vectors_and_a_dropped_one_goes_on(make_classifier, tmp_path):
    teacher = make_classifier("bert", 2, (), auto_class="AutoModel")
    student = make_student(teacher, 2, **NARROW)
    before = set(student.state_dict())
    signals = SignalWeights(logits=1, hidden=1, attention=0)
    stage = TaskStage(method="task", steps=1, batch=5, lr=1e-9, signals=signals)
    job = StageJob(TeacherStudent(teacher, student, family_of("bert"), stage), Rows, 3, tmp_path / "a", EMBED)
    first = train(job)
    assert set(student.state_dict()) == before
    (record,) = first.outcome.history
    assert record.terms["logits"] < 0.05, "5 texts, and 24 numbers to tell them apart"
    assert record.terms["hidden"] < 5, "the map is no larger than it need be, so that it serves other states"
    part = first.carried["projection"]
    pooling = add_carried_projection(DEFAULT_POOLING, first.carried)
    np.testing.assert_array_equal(pooling.layers[0].weights["linear.weight"], part.tensors["maps.0.weight"].numpy())
    assert add_carried_projection(DEFAULT_POOLING, {}) is DEFAULT_POOLING
    labels = TaskStage(
        method="task", steps=1, batch=4, lr=1e-9, signals=SignalWeights(logits=0, hidden=0, attention=0, labels=1)
    )
    again = train(replace(job, pair=replace(job.pair, stage=labels), carried=first.carried, work=tmp_path / "b"))
    torch.testing.assert_close(again.carried["projection"].tensors["maps.0.weight"], part.tensors["maps.0.weight"])


def test_vectors_of_a_column_are_learnt_at_the_students_width_without_an_earlier_stages_projection(
    make_classifier, tmp_path
):
    teacher = make_classifier("bert", 2, (), auto_class="AutoModel")
    student = make_student(teacher, 2, **NARROW)
    stage = TaskStage(method="task", steps=1, batch=5, lr=1e-9, signals=SignalWeights(logits=1, hidden=0, attention=0))

    class NumberedRows(Rows):
        def batch(self, rows: Sequence[int], step: int) -> dict[str, torch.Tensor]:
            return {**super().batch(rows, step), ROW_NUMBERS: torch.tensor([*rows])}

    job = StageJob(TeacherStudent(teacher, student, family_of("bert"), stage), NumberedRows, 3, tmp_path, EMBED)
    earlier = {"projection": CarriedPart({}, {"of": "tinybert-general"}), "other": CarriedPart({}, {})}
    width = student.config.hidden_size
    column = ColumnTeacher({SENTENCE_EMBEDDING: [*np.eye(5, width, dtype=np.float32)]}, by_token=())
    result = train(replace(job, carried=earlier, answers=column))
    assert set(result.add_carried(earlier)) == {"other"}
    assert add_carried_projection(DEFAULT_POOLING, result.add_carried(earlier)) is DEFAULT_POOLING


def test_nothing_is_asked_of_layers_without_weight():
    objective = try_task(signals=SignalWeights(logits=1, hidden=0, attention=0)).objective
    assert objective.signals.wanted == Wanted(outputs=True)
