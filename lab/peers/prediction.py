"""Prediction of real text: `pocketbert.load(...).predict` against two loops over the same int8 file.

fixed-128: transformers tokenizer, every row padded to 128, batches of 32.
arrival:   what its users write today: transformers tokenizer, rows as they come, each batch of 32 padded to
           its longest.

All three give probabilities for the same rows; the first round checks that their labels agree. Time
includes tokenization; the tokenizer's share is printed apart.

Run: python lab/peers/prediction.py --model FOLDER [--texts FILE.jsonl.gz]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from common import add_texts_option, print_header, real_texts

from pocketbert.core.host.hardware import describe_machine

BATCH = 32
Sides = dict[str, Callable[[], list[int]]]
Times = dict[str, list[float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="artefact folder with an int8 file")
    add_texts_option(parser)
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    import onnxruntime  # here: PocketBERT, which `common` imports, switches its reports off first
    from transformers import AutoTokenizer

    import pocketbert
    from pocketbert.runtime.onnx import PRECISE_INT8_SETTING

    texts, source = real_texts(options.texts, "dev")
    texts = texts[: options.rows]
    model = pocketbert.load(options.model, threads=options.threads)
    tokenizer = AutoTokenizer.from_pretrained(str(options.model))
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = options.threads
    precise = "1" if describe_machine().saturates else "0"  # as the toolkit
    settings.add_session_config_entry(PRECISE_INT8_SETTING, precise)
    session = onnxruntime.InferenceSession(str(options.model / model.record.path), settings)
    names = [i.name for i in session.get_inputs()]
    spent = {"toolkit": 0.0, "others": 0.0}

    def loop(padding: str) -> list[int]:
        out: list[int] = []
        for start in range(0, len(texts), BATCH):
            began = time.perf_counter()
            part = texts[start : start + BATCH]
            batch = tokenizer(part, padding=padding, truncation=True, max_length=128, return_tensors="np")
            spent["others"] += time.perf_counter() - began
            logits = session.run(["logits"], {n: batch[n].astype(np.int64) for n in names})[0]
            scores = np.exp(logits - logits.max(-1, keepdims=True))
            out += (scores / scores.sum(-1, keepdims=True)).argmax(-1).tolist()
        return out

    def toolkit() -> list[int]:
        return [model.labels.index(p.fields()["label"]) for p in model.predict(texts)]

    sides = {"toolkit": toolkit, "arrival": lambda: loop("longest"), "fixed-128": lambda: loop("max_length")}
    answers = {name: side() for name, side in sides.items()}
    spent["others"] = 0.0

    def tokenize() -> None:
        began = time.perf_counter()
        model.tokenizer.encode(texts)
        spent["toolkit"] += time.perf_counter() - began

    seconds, cpu = take_turns(sides, options.rounds, tokenize)
    print_header(f"prediction of {len(texts)} real texts, {options.threads} thread, {model.record.path}", source)
    per_text = 1000 / (options.rounds * len(texts))
    print(
        f"tokenizer alone, ms per text: toolkit {spent['toolkit'] * per_text:.3f}, others (each) {spent['others'] / 2 * per_text:.3f}"
    )
    print_sides(answers, seconds, cpu, len(texts))


def take_turns(sides: Sides, rounds: int, between: Callable[[], None]) -> tuple[Times, Times]:
    """Wall and CPU seconds of every side in every round; the order turns round from one to the next."""
    seconds: Times = {name: [] for name in sides}
    cpu: Times = {name: [] for name in sides}
    for number in range(rounds):
        order = list(sides) if number % 2 == 0 else list(sides)[::-1]
        for name in order:
            wall, used = time.perf_counter(), time.process_time()
            sides[name]()
            seconds[name].append(time.perf_counter() - wall)
            cpu[name].append(time.process_time() - used)
        between()
    return seconds, cpu


def print_sides(answers: dict[str, list[int]], seconds: Times, cpu: Times, texts: int) -> None:
    """Print the times of every side, whether its labels agree, and how much faster the toolkit is."""
    from pocketbert.benchmarks.statistics import paired_ratio

    def middle(values: list[float]) -> float:
        return 1000 * sorted(values)[len(values) // 2] / texts

    for name in answers:
        same = np.mean(np.array(answers[name]) == np.array(answers["toolkit"]))
        print(
            f"{name:10s} {middle(seconds[name]):.2f} ms per text, CPU {middle(cpu[name]):.2f} ms; "
            f"same labels as the toolkit: {same:.1%}"
        )
    for name, wanted in (("arrival", 1.5), ("fixed-128", 3.0)):
        for what, values in (("wall", seconds), ("CPU", cpu)):
            ratio = paired_ratio(values[name], values["toolkit"])
            print(
                f"toolkit is {ratio.median:.2f} times as fast as {name} ({what}) [{ratio.low:.2f}, {ratio.high:.2f}]; wanted {wanted}"
            )


if __name__ == "__main__":
    main()
