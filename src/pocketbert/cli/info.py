"""The commands that show what can be used: `devices`, `families`, `doctor`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pocketbert.cli import options
from pocketbert.cli.commands import HELPERS, add
from pocketbert.cli.output import print_json, print_table
from pocketbert.core.errors import InputError, Problem

if TYPE_CHECKING:
    from pocketbert.benchmarks.devices.table import DeviceStatus


def register(app: typer.Typer) -> None:
    """Add the commands of this module to the application."""
    for command in (devices, families, doctor):
        add(app, command, HELPERS)


def families(json: options.Json = False) -> None:
    """List the model families, their tasks, formats and limits.

    A row also names the model_type values of config.json, the tokenizer, the teacher signals that training can use, the
    schemes that each format can store, and the forms for export --form. --json prints the same as JSON.
    """
    from pocketbert.core.families import all_families
    from pocketbert.core.models.systems import system_facts

    systems = [(row, system_facts(row)) for row in all_families()]
    if json:
        print_json([{**asdict(row), "tasks": facts.tasks, "files": facts.files} for row, facts in systems])
        return
    rows = [
        [
            row.title,
            ", ".join(row.model_types),
            row.tokenizer,
            ", ".join(row.signals),
            ", ".join(facts.tasks),
            facts.written,
            ", ".join(row.form_names),
            "; ".join(facts.notes) or "none known",
        ]
        for row, facts in systems
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


def devices(
    probe: Annotated[
        str | None,
        typer.Option(
            "--probe",
            metavar="DEVICE",
            help="Run a small program on this device, which tells cores, extensions, clock rates, temperatures, memory bandwidth "
            "and the rates of matrix products; needs no Python there.",
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """List the devices for benchmarks, and which are there now. (recipe: benchmark.devices)

    The table shows what each device measures, which devices of a kind are there now (phones by serial number), and what
    this machine lacks to use them. Below it are the values that parts of a device's name may have.
    """
    if probe is not None:
        _print_probe(probe, json)
        return
    from pocketbert.benchmarks.devices.table import list_device_statuses

    all_statuses = list_device_statuses()
    if json:
        print_json([_status_fields(status) for status in all_statuses])
        return
    rows = [
        [
            status.info.spelled,
            status.info.yields,
            status.info.reached + (f"; a recipe cannot use it: {status.info.instead}" if status.info.instead else ""),
            _describe_reachable(status),
            status.missing or ("–" if status.info.instead else "nothing"),
        ]
        for status in all_statuses
    ]
    print_table(["device", "figures", "reached by", "reachable now", "missing on this machine"], rows)
    for status in all_statuses:
        for part in status.allowed:
            print(f"{part.part} of {status.info.name}: {', '.join(part.values)}")


def _describe_reachable(status: DeviceStatus) -> str:
    """Return the table cell with the devices of a kind that are reachable now, such as the phones that adb lists."""
    if status.reachable is None:
        return "–" if status.info.instead else "not tried before it is used"
    return "; ".join(reachable.words for reachable in status.reachable) or "none"


def _status_fields(status: DeviceStatus) -> dict[str, Any]:
    """Return the status of a device as a dictionary of JSON values."""
    info, reachable = status.info, status.reachable
    return {
        "name": info.spelled,
        "figures": dict(info.figures),
        "reached": info.reached,
        "instead": info.instead,
        "missing": status.missing,
        "reachable": None if reachable is None else [asdict(device) for device in reachable],
        "allowed": {part.part: list(part.values) for part in status.allowed},
    }


def _print_probe(name: str, json: bool) -> None:
    """Run the probe program on a device, and print its facts (cores, clock rates, bandwidth) as a table or JSON."""
    from pocketbert.benchmarks.devices.table import probe

    try:
        measured = probe(name)
    except ValueError as error:
        raise InputError(Problem("--probe", f"{error}.")) from error
    print_json(measured.model_dump(mode="json", by_alias=True)) if json else print_table(
        ["fact", "value"], measured.rows
    )
