"""What TinyBERT's, MiniLM's and MobileBERT's stages are worth on SST-2, at a budget of minutes.

Every arm is a recipe of its own and is run in a process of its own, in OUTPUT/ARM-SEED; its teacher, all-MiniLM-L6-v2
fine-tuned on SST-2, is made once per seed. Finished arms are skipped, an arm that was stopped goes on where it was. What
came out is in OUTPUT/results.jsonl, a line for each arm and seed, and in OUTPUT/study.md.

Run: PYTHONPATH=lab python -m study [--sst2 DIR --wikitext DIR] [--minutes 6] [--seeds 1 2] [--only ARM ...]
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import os
import sys
from pathlib import Path

from pocketbert.core.errors import ExitCode, PocketBertError
from study.arms import ARMS, BASE_MINUTES, TEACHER_STEPS, arm_recipe, teacher_recipe
from study.page import page
from study.records import FILE_NAME, TEACHER, append_record, find_record, read_records
from study.running import Work, run_work
from study.sources import Sources, sources


def plan(
    data: Sources, output: Path, seeds: list[int], names: list[str], factor: float, teacher_steps: int
) -> list[Work]:
    """What there is to do, seed by seed: the teacher, then the arms.

    Args:
        data: The study's data.
        output: Folder of the study.
        seeds: Seeds.
        names: Arms.
        factor: Multiplies the arms' steps.
        teacher_steps: Steps of the teacher's fine-tuning.
    """
    out = []
    for seed in seeds:
        folder = output / f"{TEACHER}-{seed}"
        out.append(Work(TEACHER, teacher_recipe(data, seed, teacher_steps), folder, None))
        for arm in ARMS:
            if arm.name in names:
                recipe = arm_recipe(arm, data, seed, factor, teacher_steps)
                out.append(Work(arm.name, recipe, output / f"{arm.name}-{seed}", folder))
    return out


def child(work: Work, results: Path) -> None:
    """Run one arm in a process of its own, so that its CPU time and its memory are its own."""
    try:
        append_record(results, run_work(work))
    except PocketBertError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(ExitCode.INTERRUPTED)


def main() -> int:
    """Run what is not finished, and write the page."""
    options = read_options()
    output = options.output.absolute()
    output.mkdir(parents=True, exist_ok=True)
    results = output / FILE_NAME
    try:
        data = sources(options.sst2, options.wikitext)
        works = plan(data, output, options.seeds, options.only, options.minutes / BASE_MINUTES, options.teacher_steps)
        known = read_records(results)
        todo = [w for w in works if find_record(known, w.arm, w.recipe.seed, w.digest, results) is None]
    except PocketBertError as error:
        print(error, file=sys.stderr)
        return int(error.exit_code)
    context = mp.get_context("spawn")
    for number, work in enumerate(todo, 1):
        print(f"\n{work.arm}, seed {work.recipe.seed} ({number} of {len(todo)})", file=sys.stderr, flush=True)
        process = context.Process(target=child, args=(work, results))
        process.start()
        try:
            process.join()
        except KeyboardInterrupt:
            process.join()  # the terminal interrupted it too
            return int(ExitCode.INTERRUPTED)
        if process.exitcode:
            print(f"{work.arm} stopped; the same command goes on where it was.", file=sys.stderr)
            return process.exitcode if process.exitcode > 0 else 1
        write_page(results, output / "study.md", data)
    write_page(results, output / "study.md", data)
    print(output / "study.md")
    return 0


def write_page(results: Path, destination: Path, data: Sources) -> None:
    """Write the page anew from all records there are."""
    destination.write_text(page(read_records(results), data.title), encoding="utf-8")


def read_options() -> argparse.Namespace:
    """The command line."""
    names = [a.name for a in ARMS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--sst2", type=Path, help="folder with train.jsonl.gz and dev.jsonl.gz; default GLUE on the Hub"
    )
    parser.add_argument(
        "--wikitext", type=Path, help="folder with *.jsonl.gz of plain text; default WikiText-2 on the Hub"
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=BASE_MINUTES,
        help="of the longest arm on two cores; scales all arms' steps",
    )
    parser.add_argument(
        "--teacher-steps",
        type=int,
        default=TEACHER_STEPS,
        help="steps of the teacher's fine-tuning, batch 64",
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="ARM", help=f"of {', '.join(names)}")
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/study"))
    options = parser.parse_args()
    if options.minutes <= 0 or options.teacher_steps < 1:
        parser.error("--minutes and --teacher-steps are above 0")
    return options


if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    sys.exit(main())
