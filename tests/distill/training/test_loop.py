import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pocketbert.core.errors import InputError
from pocketbert.core.families import all_families
from pocketbert.core.types import Precision
from pocketbert.distill.losses.common import Term
from pocketbert.distill.training import loop
from pocketbert.distill.training.loop import Outcome, train
from pocketbert.distill.training.machine import AttentionInFp32, make_accelerator, training_dtype
from pocketbert.distill.training.monitor import Monitor, Validation
from support.training_cases import Killed, Rows, Tagging, settings, tagger

ROWS = Rows()


def learn(model: nn.Module, work: Path, at: int = -1, objective: Any = None, **more: Any) -> Outcome:
    """Train with dropout; die in the n-th forward pass if wanted."""
    own = {"seed": 3, "purpose": "finetune"}
    own |= {name: more.pop(name) for name in list(more) if name in own}
    monitor = Monitor(more.pop("metrics", None), more.pop("validation", None))
    objective = objective or Tagging()
    objective.left = at
    plan = settings(**{"steps": 12, "batch": 3, "dropout": None, **more})
    return train(model, objective, ROWS, plan, work=work, monitor=monitor, **own)


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {k: v.clone() for k, v in model.state_dict().items()}


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(v, b[k]) for k, v in a.items())


def test_training_lowers_the_loss_and_ends_in_eval_mode(tmp_path):
    model = tagger().float()
    outcome = learn(model, tmp_path, steps=60, batch=7, lr=1e-2, checkpoint=60)
    assert outcome.history[-1].loss < 0.7 * outcome.history[0].loss
    assert [r.step for r in outcome.history] == [20, 40, 60]
    assert not model.training
    assert outcome.dtype in ("float32", "bfloat16")


def scripted(*scores: float, patience: int = 0, higher: bool = True) -> Validation:
    """A validation every 2 steps whose scores are listed, found by the step that the model's weights are of."""
    given = iter(scores)
    return Validation(lambda model: next(given), 2, patience, higher, "accuracy")


@pytest.mark.parametrize(
    ("scores", "patience", "higher", "best", "last"),
    [
        ((1, 3, 2, 2, 2, 2), 0, True, 4, 12),  # the best in the middle
        ((1, 3, 2, 2, 2, 2), 2, True, 4, 8),  # and no patience for more
        ((1, 3, 3, 2, 4, 2), 3, True, 10, 12),  # equal ones are no improvement, patience counts from the last one
        ((1, 3, 3, 2, 1, 1), 0, True, 6, 12),  # of equal ones the later
        ((3, 1, 2, 2, 2, 2), 2, False, 4, 8),  # lower is better
        ((np.nan, 1, np.nan, np.nan, 0, 0), 3, True, 4, 10),
        ((np.nan,) * 6, 0, True, 0, 12),  # nothing to choose by: the last weights
    ],
    ids=str,
)
def test_the_best_weights_are_kept_and_training_stops_when_scores_no_longer_improve(
    scores, patience, higher, best, last, tmp_path
):
    model, plain = (tagger().float() for _ in range(2))
    path, seen = tmp_path / "metrics.jsonl", dict[int, dict[str, Tensor]]()
    validation = scripted(*scores, patience=patience, higher=higher)

    def remember(trained: nn.Module) -> float:
        assert not trained.training
        seen[2 * len(seen) + 2] = weights(trained)
        return validation.score(trained)

    outcome = learn(model, tmp_path / "work", metrics=path, validation=replace(validation, score=remember))
    assert (outcome.best_step, outcome.metric) == (best, "accuracy")
    assert equal(weights(model), seen[best or last])
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["step"] for line in lines] == [*range(2, last + 1, 2)]
    assert np.array_equal([float(line["score"]) for line in lines], scores[: last // 2], equal_nan=True)
    if last == 12:
        learn(plain, tmp_path / "plain")
        assert equal(weights(plain), seen[12]), "scoring changes nothing that is trained"


def test_a_run_killed_between_scores_ends_with_the_same_best_weights_patience_and_lines(tmp_path):
    def score(model: nn.Module) -> float:
        """A score of the weights that falls, and is best early."""
        return float(next(model.parameters()).detach().abs().sum())

    validation = Validation(score, 2, patience=2)
    whole, work, metrics = tagger().float(), tmp_path / "work", tmp_path / "metrics.jsonl"
    wanted = learn(whole, tmp_path / "whole", metrics=tmp_path / "whole.jsonl", validation=validation, checkpoint=3)
    assert 0 < wanted.best_step < wanted.history[-1].step < 12, "stopped, after the best"
    for at in (1, 5, 3, 2):  # behind the best and before the next checkpoint, and between two scores
        with pytest.raises(Killed):
            learn(tagger().float(), work, at, metrics=metrics, validation=validation, checkpoint=3)
    again = tagger().float()
    assert learn(again, work, metrics=metrics, validation=validation, checkpoint=3) == wanted
    assert equal(weights(again), weights(whole))
    assert metrics.read_text() == (tmp_path / "whole.jsonl").read_text()
    finished = tagger().float()
    assert learn(finished, work, at=0, validation=validation) == wanted, "what has stopped is not trained on"
    assert equal(weights(finished), weights(whole))
    assert len([*work.glob("best-*")]) <= 2
    for path in work.glob("best-*"):
        path.unlink()
    with pytest.raises(InputError, match=r"best-\d+.safetensors is missing"):
        learn(tagger().float(), work, validation=validation)


def test_losses_can_be_read_while_a_run_goes_on_and_a_line_that_was_cut_off_is_dropped(tmp_path):
    path, lines = tmp_path / "metrics.jsonl", list[int]()
    path.write_text('{"stage": "other", "step": 1}\n{"stage": "finetune", "step": 2, "lo')

    def count(model: nn.Module) -> float:
        lines.append(len(path.read_text().splitlines()))
        return 0.0

    learn(tagger().float(), tmp_path / "work", metrics=path, validation=Validation(count, 2), checkpoint=100)
    assert lines == [1, 2, 3, 4, 5, 6], "one for each score before"
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2, 4, 6, 8, 10, 12]


def test_a_batch_that_does_not_fit_into_memory_is_computed_in_portions(tmp_path, monkeypatch, capsys):
    def rows_of_portions(memory: int, work: str = "measured") -> list[int]:
        """Train for one step of 3 rows on a machine with so much memory; return the rows of each forward pass."""
        monkeypatch.setattr(loop, "usable_memory", lambda: memory)
        seen, objective = list[int](), Tagging()
        call = Tagging.__call__

        def record(self: Tagging, model: nn.Module, batch: dict[str, Tensor]) -> Mapping[str, Term | Tensor]:
            seen.append(len(batch["input_ids"]))
            return call(self, model, batch)

        monkeypatch.setattr(Tagging, "__call__", record)
        learn(tagger().float(), tmp_path / f"{work}-{memory}", objective=objective, steps=1)
        monkeypatch.setattr(Tagging, "__call__", call)
        return seen

    assert rows_of_portions(1 << 10, "small") == [3], "few tokens fit anywhere and are not measured"
    monkeypatch.setattr(loop, "_MEASURED_TOKENS", 1)
    assert rows_of_portions(1 << 40) == [1, 2, 3], "rows are measured, then all are computed at once"
    assert "micro_batch" not in capsys.readouterr().err
    assert rows_of_portions(1 << 10) == [1, 2, 1, 1, 1]
    assert re.search(r"finetune: 3 rows of \d+ tokens would take .* in portions", capsys.readouterr().err)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")  # two processes of this machine, each with half of its memory
    fixed = 4 * sum(p.nbytes for p in tagger().float().parameters())
    assert rows_of_portions(int(1.5 * fixed / 0.6)) == [1, 2, 1, 1, 1]


def test_frozen_embeddings_stay_bit_for_bit_for_one_stage_only(tmp_path):
    model = tagger().float()
    before = weights(model)
    learn(model, tmp_path / "first", freeze_embeddings=True, weight_decay=0.5)
    after = weights(model)
    same = {k for k in after if torch.equal(after[k], before[k])}
    assert same == {f"bert.embeddings.{n}_embeddings.weight" for n in ("word", "position", "token_type")}
    learn(model, tmp_path / "second")
    assert not any(torch.equal(weights(model)[k], before[k]) for k in same)


class Watching(Tagging):
    """Notes the model's dropout rates, and the losses."""

    def __init__(self, **weights: float) -> None:
        super().__init__(**weights)
        self.rates, self.losses = set[float](), list[float]()

    def __call__(self, model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Term | Tensor]:
        assert model.training
        self.rates |= {m.p for m in model.modules() if isinstance(m, nn.Dropout)}
        terms = super().__call__(model, batch)
        tags = terms["tags"]
        assert isinstance(tags, Term)
        self.losses.append(float(tags.mean.detach()))
        return terms


def test_dropout_is_overridden_for_one_stage_only(tmp_path):
    model = tagger().float()
    for number, (dropout, wanted) in enumerate(((0.25, {0.25}), (None, {0.1}), (0.0, {0.0}))):
        watching = Watching()
        learn(model, tmp_path / str(number), objective=watching, steps=2, dropout=dropout)
        assert watching.rates == wanted


def test_records_are_means_of_their_steps_and_lines_of_other_stages_stay(tmp_path):
    watching, path = Watching(tags=2.0), tmp_path / "metrics.jsonl"
    path.write_text(json.dumps({"stage": "other", "step": 1}) + "\n")
    outcome = learn(tagger().float(), tmp_path / "work", objective=watching, steps=45, metrics=path)
    losses = watching.losses
    for record, part in zip(outcome.history, (losses[:20], losses[20:40], losses[40:]), strict=True):
        assert record.terms["tags"] == pytest.approx(np.mean(part))
        assert record.loss == pytest.approx(2 * np.mean(part), rel=1e-6)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(x["stage"], x["step"]) for x in lines] == [("other", 1), *(("finetune", n) for n in (20, 40, 45))]


class Lying:
    """An objective that counts tokens and says it counted something else, or says nothing."""

    def __init__(self, says: Any) -> None:
        self.right = Tagging()
        self.weights = self.right.weights
        if says is not None:
            self.counts = lambda batch: says

    def __call__(self, model: nn.Module, batch: dict[str, Tensor]) -> Mapping[str, Term | Tensor]:
        return self.right(model, batch)


@pytest.mark.parametrize("says", [None, {"tags": torch.tensor(1000.0)}])
def test_a_wrong_count_is_refused(says, tmp_path):
    with pytest.raises(RuntimeError, match=r"Lying: term 'tags' is a mean over \d+ items, but counts\(\) says"):
        train(tagger(), Lying(says), ROWS, settings(micro_batch=3), 5, "a", tmp_path)


@pytest.mark.parametrize(
    ("gpu", "fast", "wanted"),
    [
        (False, (False, False), torch.float32),
        (False, (True, False), torch.bfloat16),
        (False, (False, True), torch.bfloat16),
        (True, (False, True), torch.float32),
        (True, (True, False), torch.bfloat16),
    ],
)
def test_bf16_only_where_the_cpu_or_the_gpu_computes_in_it(gpu, fast, wanted, monkeypatch):
    """`fast`: avx512_bf16 or the GPU's own, and AMX."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: fast[0])
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: fast[0])
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: fast[1])
    assert training_dtype() is wanted


@pytest.mark.parametrize(
    ("precision", "fast", "model_type", "wanted"),
    [
        ("auto", True, "bert", torch.bfloat16),
        ("fp32", True, "bert", torch.float32),
        ("bf16", True, "bert", torch.bfloat16),
        ("auto", False, "bert", torch.float32),
        ("bf16", False, "bert", "has neither avx512_bf16 nor AMX: training would be slower than in fp32"),
        ("auto", True, "ONLY_FP32", torch.float32),
        ("bf16", True, "ONLY_FP32", "cannot be trained in it"),
    ],
)
def test_a_recipe_sets_the_number_type_of_training(precision, fast, model_type, wanted, monkeypatch):
    if model_type == "ONLY_FP32":
        model_type = next(f.model_types[0] for f in all_families() if not f.trains_in_bf16)
    monkeypatch.setattr("pocketbert.distill.training.machine._bf16_is_fast", lambda: fast)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    model = nn.Linear(2, 2)
    vars(model)["config"] = SimpleNamespace(model_type=model_type)
    if isinstance(wanted, torch.dtype):
        assert training_dtype(model, Precision(precision), "distill.1.precision") is wanted
    else:
        with pytest.raises(InputError, match=wanted) as error:
            training_dtype(model, Precision(precision), "distill.1.precision")
        assert str(error.value).startswith("distill.1.precision: bf16, and ")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_training_in_a_set_precision_computes_in_it_and_the_model_in_fp32_afterwards(precision, tmp_path, monkeypatch):
    monkeypatch.setattr("pocketbert.distill.training.machine._bf16_is_fast", lambda: True)
    seen, (model, plain) = set[torch.dtype](), (tagger().float() for _ in range(2))
    model.classifier.register_forward_hook(lambda _, __, out: seen.add(out.dtype))  # type: ignore[union-attr, operator]
    wanted = torch.bfloat16 if precision == "bf16" else torch.float32
    assert learn(model, tmp_path, steps=2, precision=precision).dtype == str(wanted).removeprefix("torch.")
    assert seen == {wanted}
    plain.load_state_dict(model.state_dict())
    ids = ROWS.batch([0, 1], 0)["input_ids"]
    with torch.inference_mode():
        assert torch.equal(model(ids).logits, plain.eval()(ids).logits)


@pytest.mark.parametrize(
    ("kind", "asked"), [("FSDP", "FSDP"), ("DeepSpeed", "DEEPSPEED"), ("Megatron-LM", "MEGATRON_LM")]
)
def test_launches_that_divide_one_model_among_processes_are_refused(kind, asked, tmp_path, monkeypatch):
    monkeypatch.setenv(f"ACCELERATE_USE_{asked}", "true")
    with pytest.raises(
        InputError, match=f"launcher: Accelerate's configuration asks for {kind}: here the recipe"
    ) as caught:
        learn(tagger().float(), tmp_path)
    assert "teacher.shard: true divides a teacher" in str(caught.value)


# attention in fp32 where the CPU is slower in bf16, and the precision of each training


def attention(length: int, learns: bool, exact: bool) -> list[torch.Tensor]:
    """Context of drawn queries, keys and values of bf16 under autocast, and the gradient of the queries."""
    random = torch.Generator().manual_seed(1)
    made = [torch.randn(2, 3, length, 8, generator=random).bfloat16().requires_grad_(learns) for _ in range(3)]
    mask = torch.zeros(2, 1, 1, length)
    mask[1, ..., -1] = torch.finfo(torch.float32).min
    if exact:
        context = F.scaled_dot_product_attention(*(x.float() for x in made), attn_mask=mask).bfloat16()
    else:
        with torch.autocast("cpu", torch.bfloat16), AttentionInFp32():
            context = F.scaled_dot_product_attention(*made, attn_mask=mask)
    if learns:
        context.float().square().sum().backward()
    return [context.detach(), *(x.grad for x in made if x.grad is not None)]


@pytest.mark.parametrize(("length", "learns", "changed"), [(8, True, True), (8, False, False), (256, True, False)])
def test_short_attention_with_gradients_is_that_of_fp32(length, learns, changed):
    found, exact = attention(length, learns, exact=False), attention(length, learns, exact=True)
    assert all(x.dtype is torch.bfloat16 for x in found)
    assert all(torch.equal(x, y) for x, y in zip(found, exact, strict=True)) is changed


def test_fp32_and_other_functions_are_left_alone():
    x = torch.randn(1, 1, 4, 8, requires_grad=True)
    with AttentionInFp32():
        assert torch.equal(F.scaled_dot_product_attention(x, x, x), F.scaled_dot_product_attention(x, x, x))
        assert torch.equal(F.softmax(x, -1), x.softmax(-1))


def test_each_training_of_a_process_has_its_own_precision():
    kinds = [torch.bfloat16, torch.float32, torch.bfloat16]
    assert [make_accelerator(kind).mixed_precision for kind in kinds] == ["bf16", "no", "bf16"]
