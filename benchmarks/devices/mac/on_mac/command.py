"""Measure the Core ML packages of an artefact folder on this Mac, and check their answers.

Needs Python 3.9 or newer and coremltools, nothing else; packed as coreml/benchmark_on_mac.py, it lies beside the packages:

    python3 -m pip install coremltools
    python3 phone/coreml/benchmark_on_mac.py                      # writes phone-mac.json beside the folder
    pocketbert benchmark -m phone --import phone-mac.json         # anywhere: into the common report
    python3 phone/coreml/benchmark_on_mac.py --iphone --team TEAM # on the connected iPhone: phone-iphone.json

Per package, compute unit and length: load time and first inference in a fresh process, warm-up until stable, then timed
inferences in short bursts that take turns, so that a disturbance hits all of them. Raw samples are kept. The compute plan
is what Core ML itself expects to run where; it is an estimate, not a measurement.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import sys
import tempfile
import time
from pathlib import Path

from pocketbert.benchmarks.devices.mac.on_mac.common import (
    KIND,
    SCHEMA_VERSION,
    UNITS,
    RefusalError,
    coremltools,
    load_numpy,
    reason,
    write_atomic,
)
from pocketbert.benchmarks.devices.mac.on_mac.golden import Golden
from pocketbert.benchmarks.devices.mac.on_mac.iphone import REPEATS, RUNS, Iphone
from pocketbert.benchmarks.devices.mac.on_mac.packages import Package, cold_start
from pocketbert.benchmarks.devices.mac.on_mac.system import machine
from pocketbert.benchmarks.devices.mac.on_mac.timing import BURST, measure_all


def main(arguments: list[str] | None = None) -> int:
    """Run; exit codes 0 done, 1 nothing could be measured, 2 wrong usage or system, 3 wrong answers, 4 no coremltools."""
    options = _options(arguments)
    try:
        if platform.system() != "Darwin":
            raise RefusalError(f"Core ML runs on Apple systems, not on {platform.system()}: copy the folder to a Mac.")
        if options.cold_start:
            wish = json.loads(Path(options.cold_start).read_text(encoding="utf-8"))
            try:
                print(json.dumps(cold_start(wish)))
            except Exception as error:  # whatever Core ML says, for the process that asked
                print(json.dumps({"failed": reason(error)}))
            return 0
        return run(options)
    except RefusalError as error:
        print(f"Error: {error.args[0]}", file=sys.stderr)
        return 2 if len(error.args) == 1 else int(error.args[1])
    except (OSError, ValueError, KeyError) as error:  # a full disk, or a golden row that is none
        print(f"Error: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        sys.exit(130)


def run(options: argparse.Namespace) -> int:
    """Measure everything, write the file, print the table."""
    began, tools = time.monotonic(), coremltools()
    here = Path(__file__).resolve().parent
    folder = here.parent if here.name == "coreml" else here
    paths = [Path(p).resolve() for p in options.packages or sorted(here.glob("*.mlpackage"))]
    missing = [str(p) for p in paths if not (p.is_dir() and p.suffix == ".mlpackage")]
    if missing or not paths:
        raise RefusalError(f"no .mlpackage {'at ' + ', '.join(missing) if missing else f'in {here}'}.")
    on = "mac" if options.iphone is None else "iphone"
    output = Path(options.output) if options.output else folder.parent / f"{folder.name}-{on}.json"
    if not output.resolve().parent.is_dir():
        raise RefusalError(f"-o: no folder {output.resolve().parent}.")
    golden, before = Golden(folder), round(os.getloadavg()[0], 2)
    logging.basicConfig(format="%(message)s", level=logging.WARNING if options.quiet else logging.INFO)
    phone = None if options.iphone is None else Iphone(options.iphone, options.signing)
    with tempfile.TemporaryDirectory() as work:
        packages = [Package(tools, p, folder, golden, Path(work)) for p in paths]
        cells = [cell for package in packages for cell in package.cells(options.units, phone)]
        measure_all(cells, options.runs, options.repeats)
        content = {
            "kind": KIND, "schema_version": SCHEMA_VERSION, "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "machine": phone.machine() if phone else machine(), "versions": {"coremltools": str(tools.__version__), "numpy": load_numpy().__version__},
            "protocol": {"runs": options.runs, "repeats": options.repeats, "burst": BURST, "inputs": golden.inputs,
                         "took_s": round(time.monotonic() - began, 2), "iphone": phone is not None},
            "load": {"before": before, "after": round(os.getloadavg()[0], 2)},
            "packages": [package.content for package in packages],
        }  # fmt: skip
    write_atomic(output, json.dumps(content, indent=1, allow_nan=False) + "\n")
    return _report(packages, output)


def _report(packages: list[Package], output: Path) -> int:
    """Print the table and the verdicts; the exit code."""
    rows, wrong, reasons = [], [], []
    for package in packages:
        for entry in package.content["units"]:
            name = f"{package.name} {entry['unit']}"
            if "failed" in entry:
                reasons.append(f"{name}: left out: {entry['failed']}")
                continue
            for cell in entry["cells"]:
                samples = sorted(x for repeat in cell["wall_ms"] for x in repeat)
                p50, p90 = samples[(len(samples) - 1) // 2], samples[-(-9 * len(samples) // 10) - 1]
                rows.append((name, cell["length"], f"{p50:.3f}", f"{p90:.3f}"))
            answers = entry["answers"]
            if answers is None:
                reasons.append(f"{name}: answers not checked: golden.jsonl has none of this package")
                continue
            good = answers["finite"] and answers["largest"] <= answers["tolerance"]
            largest = f"{answers['largest']:.3g}" if answers["finite"] else "not finite"
            words = f"largest difference {largest}, allowed {answers['tolerance']:.3g}"
            reasons.append(f"{name}: {answers['rows']} answers, {words}{'' if good else ': WRONG'}")
            wrong += [] if good else [name]
    for row in (("package and compute unit", "tokens", "p50 ms", "p90 ms"), *rows):
        print("\t".join(map(str, row)))
    print(*reasons, f"written: {output}", sep="\n")
    print(f"next: pocketbert benchmark -m FOLDER --import {output.name}")
    return 3 if wrong else 0 if rows else 1


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add(
        "--runs",
        type=int,
        help=f"timed inferences per package, unit, length and repeat; default 50, on an iPhone {RUNS}",
    )
    add("--repeats", type=int, help=f"passes over everything; default 5, on an iPhone {REPEATS}")
    add("--units", nargs="+", choices=UNITS, default=list(UNITS), help="compute units; default all four")
    add("--packages", nargs="+", metavar="PATH", help="packages; default those next to this script")
    add("-o", "--output", metavar="FILE", help="JSON to write; default FOLDER-mac.json next to the folder")
    add("--iphone", nargs="?", const="", metavar="NAME", help="measure on an iPhone that is connected to this Mac")
    add("--team", help="with --iphone: the development team that signs the runner app")
    add("--profile", metavar="UUID", help="with --iphone: the provisioning profile, instead of --team; with --bundle")
    add("--bundle", metavar="ID", help="with --iphone: the bundle identifier of the profile")
    add("-q", "--quiet", action="store_true", help="no progress")
    add("--cold-start", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    given = {"development_team": options.team, "provisioning_profile_uuid": options.profile}
    options.signing = {k: v for k, v in {**given, "bundle_identifier": options.bundle}.items() if v}
    if (options.iphone is not None) != bool(options.team or options.profile) or (
        options.profile and not options.bundle
    ):
        parser.error(
            "--iphone goes with --team, or with --profile and --bundle: Xcode signs the app that it starts there"
        )
    runs, repeats = (50, 5) if options.iphone is None else (RUNS, REPEATS)
    options.runs = runs if options.runs is None else options.runs
    options.repeats = repeats if options.repeats is None else options.repeats
    if not 1 <= min(options.runs, options.repeats) <= max(options.runs, options.repeats) <= 1000:
        parser.error("--runs and --repeats take 1 to 1000")
    options.units = list(dict.fromkeys(options.units))
    return options


if __name__ == "__main__":
    sys.exit(main())
