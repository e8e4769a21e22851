"""Measure the memory of each process with a frozen teacher of BERT-large's size, whole or divided among the processes.

Run: MALLOC_MMAP_THRESHOLD_=1000000 OMP_NUM_THREADS=1 torchrun --nproc-per-node 2 lab/sharded_teacher.py [--whole] [--layers 24]
    [--rows 8] [--tokens 128]

The weights are random. The peaks are those of the resident memory (VmHWM of /proc, so on Linux only), counted anew in each part.
With MALLOC_MMAP_THRESHOLD_, glibc gives freed weights back to the system at once; without, it keeps them, and they count.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import transformers

from pocketbert.core.families import find_family
from pocketbert.core.host.hardware import describe_machine, load_average
from pocketbert.core.host.processes import current_process
from pocketbert.distill.teacher.signals import OnlineTeacher, Wanted
from pocketbert.distill.training.sharding import join_remaining_passes, sharded

_LARGE = {"hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096}


def read_memory(name: str) -> float:
    """Return a row of /proc/self/status in MB: VmRSS, the resident memory, or VmHWM, its peak."""
    [row] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{name}:")]
    return int(row.split()[1]) * 1024 / 1e6


def forget_peak() -> None:
    """Let the peak of the resident memory begin anew."""
    Path("/proc/self/clear_refs").write_text("5")


def main() -> None:
    """Make the teacher, divide it, run it, and print each process's memory behind each part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--whole", action="store_true", help="do not divide it")
    for name, default in (("layers", 24), ("rows", 8), ("tokens", 128)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options, process, family = parser.parse_args(), current_process(), find_family("bert")
    start = read_memory("VmRSS")
    config = transformers.BertConfig(**_LARGE, num_hidden_layers=options.layers)
    teacher = transformers.BertForSequenceClassification(config).eval().requires_grad_(False)
    weights = sum(p.nbytes for p in teacher.parameters()) / 1e6
    made = read_memory("VmHWM")
    with sharded(teacher, family, not options.whole):
        held = read_memory("VmRSS")
        forget_peak()
        online = OnlineTeacher(teacher, family, Wanted())
        ids = torch.full((options.rows, options.tokens), 5)
        for _ in range(3):
            online({"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)})
        join_remaining_passes()
        peak = read_memory("VmHWM")
    if process.main:
        print(
            f"{describe_machine().summary}; load {load_average():.1f}; weights {weights:,.0f} MB; provenance measured"
        )
    print(
        f"process {process.rank} of {process.world}, {'whole' if options.whole else 'divided'}: over the {start:,.0f} MB of libraries, "
        f"{made - start:,.0f} MB at most while it was made, {held - start:,.0f} MB before passes, {peak - start:,.0f} MB at most in them",
        flush=True,
    )
    torch.distributed.barrier() if torch.distributed.is_initialized() else None


if __name__ == "__main__":
    main()
