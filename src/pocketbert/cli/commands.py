"""Adding commands: each with the options and the end that all share, and with examples below its help."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import typer

from pocketbert.cli.guard import guarded

EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "run": (
        "pocketbert run --data reviews.csv",
        "pocketbert run my.yaml -o runs/my",
        "pocketbert run sst2 data.train.path=train.csv data.eval.path=dev.csv -o runs/sst2",
    ),
    "finetune": ("pocketbert finetune my.yaml -o runs/my",),
    "distill": ("pocketbert distill my.yaml -o runs/my distill.0.steps=2000",),
    "demo": ("pocketbert demo -o runs/demo",),
    "export": (
        "pocketbert export -m my-finetuned-model -o phone",
        "pocketbert export -m my-finetuned-model -o phone --data dev.csv --benchmark --licence apache-2.0",
        "pocketbert export -m my-finetuned-model -o phone --format coreml --ios 16 --lengths 64",
    ),
    "quantize": ("pocketbert quantize -m phone -o phone-216 --runtime tflite216",),
    "verify": ("pocketbert verify -m phone", "pocketbert verify -m phone --data test.csv --record"),
    "pack": (
        "pocketbert pack -m phone -o app/src/main/assets --for android",
        "pocketbert pack -m runs/my -o phone",
    ),
    "predict": (
        'pocketbert predict -m phone "wake me at six"',
        "pocketbert predict -m phone --file rows.csv -o answers.csv",
    ),
    "benchmark": (
        "pocketbert benchmark -m phone --threads 1 --lengths 32 --record",
        "pocketbert benchmark -m phone -m other-phone -o compared.html",
    ),
    "sensitivity": ("pocketbert sensitivity -m phone --calibrate train.csv --scheme int8,a8w8",),
    "report": ("pocketbert report -m phone -o report.html",),
    "devices": ("pocketbert devices",),
    "families": ("pocketbert families",),
    "doctor": ("pocketbert doctor --json",),
    "recipes ls": ("pocketbert recipes ls",),
    "recipes show": ("pocketbert recipes show sst2",),
    "recipes cp": ("pocketbert recipes cp text-classification my.yaml",),
    "recipes validate": ("pocketbert recipes validate my.yaml seed=3",),
    "recipes schema": ("pocketbert recipes schema",),
    "data check": ("pocketbert data check my.yaml",),
    "data prepare": ("pocketbert data prepare my.yaml -o corpora",),
    "data augment": ("pocketbert data augment my.yaml -o augmented.jsonl.gz",),
    "data demo": ("pocketbert data demo -o corpus",),
}
"""What a user types, by command."""


def add(app: typer.Typer, command: Callable[..., None], title: str | None = None, group: str = "") -> None:
    """Add a command to an application.

    Args:
        app: The application.
        command: A function with typer's annotations; its name is that of the command.
        title: The list of commands shows it under this title.
        group: The command that it is a part of, such as ``recipes``.
    """
    name = f"{group} {command.__name__}".strip()
    shown = "\n".join(f"  {line}" for line in EXAMPLES[name])
    epilog = f"\b\nExamples:\n{shown}" if len(EXAMPLES[name]) > 1 else f"\b\nExample:\n{shown}"
    app.command(rich_help_panel=title, epilog=epilog)(guarded(command))
