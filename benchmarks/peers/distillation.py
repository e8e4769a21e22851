"""A distillation step against a plain loop written straight with transformers.

MiniLM-L6 to 3 layers, batch 64, logits + hidden states + attention, dropout 0, real text. Both sides sort
rows into length buckets and use the CPU's better number type; the plain side does nothing else: eager
attention everywhere, `output_attentions=True`, torch's AdamW as it comes. Each side lives in a process of
its own and the two take turns, so that allocator settings do not help the other side.

Run: python benchmarks/peers/distillation.py [--texts FILE.jsonl.gz]
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing as mp
import os
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

from common import add_texts_option, print_header, real_texts

BATCH = 64
BLOCK = 5


def ours(pipe: Connection, texts: list[str]) -> None:
    """The toolkit's own loop."""
    from pocketbert.core.checkpoints import load_model
    from pocketbert.core.data import Example
    from pocketbert.core.heads import head_of
    from pocketbert.core.labels import Labels
    from pocketbert.core.model_folder import open_model_folder
    from pocketbert.core.recipe import StudentSection
    from pocketbert.core.stages import TaskStage
    from pocketbert.core.tasks import task_of
    from pocketbert.core.tokenization import TextTokenizer
    from pocketbert.distill.loop import TrainingLoop, frozen
    from pocketbert.distill.students import build_student
    from pocketbert.distill.task import TaskDistillation
    from pocketbert.distill.train_set import TrainSet

    folder = open_model_folder("minilm-l6")
    teacher = load_model(
        folder, task_of("text-classification"), Labels(("negative", "positive")), new_head=True
    )
    student = build_student(teacher, folder.family, StudentSection(layers=3), 1)
    stage = TaskStage(method="task", steps=100_000, batch=BATCH, dropout=0.0)
    tokenizer = TextTokenizer(folder.path, 128)
    task, examples = task_of("text-classification"), [Example(t, None, 0, i) for i, t in enumerate(texts, 1)]
    head = head_of(task, Labels(("negative", "positive")))
    rows = TrainSet(head.prepare(examples, tokenizer, "texts"), tokenizer)
    with frozen(teacher), tempfile.TemporaryDirectory() as work:
        objective = TaskDistillation(teacher, student, folder.family, task, stage)
        loop = TrainingLoop(student, objective, rows, stage, 1, "distill.0", Path(work))
        serve(pipe, loop.step)


def plain(pipe: Connection, texts: list[str]) -> None:
    """What one writes in an afternoon."""
    import torch
    import torch.nn.functional as F
    import transformers
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from pocketbert.core.model_folder import open_model_folder
    from pocketbert.distill.batches import BatchOrder
    from pocketbert.distill.precision import training_dtype

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    path = str(open_model_folder("minilm-l6").path)
    kind = {"attn_implementation": "eager", "num_labels": 2}
    teacher = AutoModelForSequenceClassification.from_pretrained(path, **kind).eval()
    student = AutoModelForSequenceClassification.from_pretrained(path, num_hidden_layers=3, **kind).train()
    for module in student.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    tokenizer = AutoTokenizer.from_pretrained(path)
    rows = tokenizer(texts, truncation=True, max_length=128)["input_ids"]
    # the same buckets as the toolkit's, so that both sides see equal batches in every round
    order = BatchOrder([len(r) for r in rows], BATCH, 1, "distill.0")
    numbers = itertools.count()
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-4, weight_decay=0.01)
    dtype = training_dtype()

    def step() -> float:
        batch = tokenizer.pad(
            {"input_ids": [rows[i] for i in order.rows(next(numbers))]}, return_tensors="pt"
        )
        with torch.autocast("cpu", dtype, enabled=dtype is torch.bfloat16):
            with torch.no_grad():
                t = teacher(**batch, output_hidden_states=True, output_attentions=True)
            s = student(**batch, output_hidden_states=True, output_attentions=True)
            mask = batch["attention_mask"].float()
            loss = 4 * F.kl_div(F.log_softmax(s.logits / 2, -1), F.log_softmax(t.logits / 2, -1),
                                reduction="batchmean", log_target=True)  # fmt: skip
            for m, n in ((1, 2), (2, 4), (3, 6)):
                error = (s.hidden_states[m] - t.hidden_states[n]).square().mean(-1)
                loss = loss + (error * mask).sum() / mask.sum() / 3
                a, b = s.attentions[m - 1].clamp_min(1e-9), t.attentions[n - 1].clamp_min(1e-9)
                divergence = (b * (b.log() - a.log())).sum(-1) * mask[:, None]
                loss = loss + divergence.sum() / mask.sum() / a.shape[1] / 3
        loss.backward()
        torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    serve(pipe, step)


def serve(pipe: Connection, step) -> None:
    """Make as many steps as asked, tell CPU and wall seconds, until asked for 0."""
    for _ in range(3):
        step()
    pipe.send("ready")
    while count := pipe.recv():
        cpu, wall = time.process_time(), time.perf_counter()
        for _ in range(count):
            step()
        pipe.send((time.process_time() - cpu, time.perf_counter() - wall))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_texts_option(parser)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    texts, source = real_texts(options.texts, "train")
    from pocketbert.benchmarks.statistics import paired_ratio

    context = mp.get_context("spawn")
    pipes = {}
    for name, side in (("ours", ours), ("plain", plain)):
        near, far = context.Pipe()
        context.Process(target=side, args=(far, texts[:20_000]), daemon=True).start()
        near.recv()
        pipes[name] = near
    seconds: dict[str, list[tuple[float, float]]] = {"ours": [], "plain": []}
    for number in range(options.rounds):
        for name in ("ours", "plain") if number % 2 == 0 else ("plain", "ours"):
            pipes[name].send(BLOCK)
            seconds[name].append(pipes[name].recv())
    for pipe in pipes.values():
        pipe.send(0)
    print_header("distillation step, MiniLM-L6 to 3 layers, batch 64, all three signals", source)
    rate = {n: BATCH * BLOCK / sorted(c for c, _ in s)[len(s) // 2] for n, s in seconds.items()}
    print(f"samples per CPU-second (median): ours {rate['ours']:.1f}, plain loop {rate['plain']:.1f}")
    for place, what in ((0, "CPU time"), (1, "wall time")):
        ratio = paired_ratio([s[place] for s in seconds["plain"]], [s[place] for s in seconds["ours"]])
        print(f"{what}: ours is {ratio.median:.2f} times as fast [{ratio.low:.2f}, {ratio.high:.2f}], "
              f"{ratio.pairs} paired rounds")  # fmt: skip


if __name__ == "__main__":
    main()
