"""families and doctor: what is supported, what is installed."""

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


# --- devices ---
# devices: what benchmarks can measure on, and what is there now.


def register_devices(app: typer.Typer) -> None:
    """Add the command."""
    add(app, devices, HELPERS)


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

    The table tells what each device gives, what is there at this moment (phones by serial number), and what is missing on this
    machine to use it. Below it are the values that parts of a name may have.
    """
    if probe is not None:
        _show_probe(probe, json)
        return
    from pocketbert.benchmarks.devices.table import statuses

    found = statuses()
    if json:
        print_json([_status_json(one) for one in found])
        return
    rows = [
        [
            one.info.spelled,
            one.info.yields,
            one.info.reached + (f"; a recipe cannot use it: {one.info.instead}" if one.info.instead else ""),
            _reachable_words(one),
            one.missing or ("–" if one.info.instead else "nothing"),
        ]
        for one in found
    ]
    print_table(["device", "figures", "reached by", "reachable now", "missing on this machine"], rows)
    for one in found:
        for part in one.allowed:
            print(f"{part.part} of {one.info.name}: {', '.join(part.values)}")


def _reachable_words(one: DeviceStatus) -> str:
    """What a device found, for the table."""
    if one.reachable is None:
        return "–" if one.info.instead else "not tried before it is used"
    return "; ".join(found.words for found in one.reachable) or "none"


def _status_json(one: DeviceStatus) -> dict[str, Any]:
    info, found = one.info, one.reachable
    return {
        "name": info.spelled,
        "figures": dict(info.figures),
        "reached": info.reached,
        "instead": info.instead,
        "missing": one.missing,
        "reachable": None if found is None else [asdict(thing) for thing in found],
        "allowed": {part.part: list(part.values) for part in one.allowed},
    }


def _show_probe(name: str, json: bool) -> None:
    """Run the probe on a device, and print what it tells."""
    from pocketbert.benchmarks.devices.table import probe

    try:
        told = probe(name)
    except ValueError as error:
        raise InputError(Problem("--probe", f"{error}.")) from error
    print_json(told.model_dump(mode="json", by_alias=True)) if json else print_table(["fact", "value"], told.rows)
