"""families and doctor: what is supported, what is installed."""

from __future__ import annotations

from dataclasses import asdict

import typer

from pocketbert.cli import options
from pocketbert.cli.commands import add
from pocketbert.cli.groups import HELPERS
from pocketbert.cli.output import print_json, print_table


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (families, doctor):
        add(app, command, HELPERS)


def families(json: options.Json = False) -> None:
    """List the supported systems, their tasks, files and limits."""
    from pocketbert.core.families import all_families
    from pocketbert.core.models.systems import system_facts

    facts = [(row, system_facts(row)) for row in all_families()]
    if json:
        print_json([{**asdict(row), "tasks": found.tasks, "files": found.files} for row, found in facts])
        return
    rows = [
        [
            row.title,
            ", ".join(row.model_types),
            row.tokenizer,
            ", ".join(row.signals),
            ", ".join(found.tasks),
            found.written,
            ", ".join(row.form_names),
            "; ".join(found.notes) or "none known",
        ]
        for row, found in facts
    ]
    print_table(["system", "model_type", "tokenizer", "signals", "tasks", "files", "forms", "limits"], rows)


def doctor(json: options.Json = False) -> None:
    """Show what is installed, and how this machine will train.

    It lists versions, CPU features, the number type used in training, and which optional parts are installed.
    """
    from pocketbert import api

    found = api.doctor()
    if json:
        print(found.model_dump_json())
        return
    m = found.machine
    print(f"machine:   {m.summary}, {m.system}, Python {m.python}")
    print(f"memory:    {found.memory_gib:.1f} GiB, load {found.load:.2f}")
    print(f"training:  {found.training}")
    print_table(
        ["part", "state", "versions", "install with"],
        [
            [b.name, "present" if b.present else "MISSING", b.versions, b.command if not b.present else ""]
            for b in found.backends
        ],
    )
    if found.plugins:
        print_table(
            ["plug-in", "package", "registered"],
            [
                [p.name, p.package, ", ".join(p.registered) or ("FAILED" if p.error else "nothing")]
                for p in found.plugins
            ],
        )
    for error in [p.error for p in found.plugins if p.error]:
        print(f"error: {error}")
    for note in found.notes:
        print(f"note: {note}")
