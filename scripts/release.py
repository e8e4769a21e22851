"""Build a release, prove that it is reproducible, install it in fresh environments, and list its licences.

Everything goes into dist/release; nothing is published. `make release` runs all of it:

1. the wheel and the source archive are built twice, and must have the same bytes,
2. the wheel is installed with each extra into an environment of its own, and `pocketbert doctor` runs there; seconds and MB are printed,
3. `sbom.cdx.json` lists every package that the extra `all` installs, in CycloneDX's format; a licence that is not in `_ALLOWED` fails.

Run: python scripts/release.py [--extras core,onnx,...]
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import time
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OUTPUT = ROOT / "dist" / "release"
CORE = "core"
_ALLOWED = re.compile(
    r"apache|\bmit\b|bsd|mpl|mozilla|\bisc\b|python software foundation|psf|cnri|0bsd|unlicense|public domain|zlib|hpnd|cc0|boost|bsl-1|nvidia|lgpl|lesser general|zpl",
    re.IGNORECASE,
)
"""Licences under which a dependency may be installed beside an Apache-2.0 project; NVIDIA's are those of CUDA, which PyTorch brings."""
_UNNAMED = {
    "ai-edge-litert": "Apache-2.0",
    "litert-converter": "Apache-2.0",
    "ml-dtypes": "Apache-2.0",
    "sentencepiece": "Apache-2.0",
    "torchao": "BSD-3-Clause",
}
"""Licences of packages whose metadata name none, read from their repositories."""


def build_twice(epoch: int) -> list[Path]:
    """Build the wheel and the source archive twice from the committed files, and return the files of the first build.

    Args:
        epoch: Seconds since 1970 that the archives state as the time of all files.

    Raises:
        SystemExit: If the two builds differ.
    """
    digests = []
    for number in (1, 2):
        source, destination = OUTPUT / f"source{number}", OUTPUT / f"dist{number}"
        source.mkdir(parents=True)
        archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
        subprocess.run(["tar", "-x"], cwd=source, input=archive, check=True)
        environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
        command = [sys.executable, "-m", "build", "-q", "--outdir", str(destination), str(source)]
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for archive_file in destination.glob("*.tar.gz"):
            _set_times(archive_file, epoch)
        digests.append({p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(destination.iterdir())})
    if digests[0] != digests[1]:
        raise SystemExit(f"two builds of one commit differ: {digests}")
    for name, digest in digests[0].items():
        print(f"{digest}  {name}", flush=True)
    return sorted((OUTPUT / "dist1").iterdir())


def _set_times(path: Path, epoch: int) -> None:
    """Write a tar.gz anew with sorted members that all have the same time and no owner.

    setuptools writes the time of the build into it, so that two builds would differ.
    """
    with tarfile.open(path) as source:
        members = [
            (m, source.extractfile(m) if m.isfile() else None)
            for m in sorted(source.getmembers(), key=lambda m: m.name)
        ]
        contents = [(m, None if f is None else f.read()) for m, f in members]
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as target:
        for member, content in contents:
            member.mtime, member.uid, member.gid, member.uname, member.gname = epoch, 0, 0, "", ""
            member.pax_headers = {}
            target.addfile(member, None if content is None else io.BytesIO(content))
    path.write_bytes(gzip.compress(plain.getvalue(), mtime=epoch))


def install_extra(wheel: Path, extra: str) -> dict[str, Any]:
    """Install a wheel with one extra into a fresh environment, and run `pocketbert doctor` there.

    Returns:
        The name of the extra, seconds of the installation (packages come from uv's cache), MB of the environment and
        its number of packages.
    """
    environment = OUTPUT / "environments" / extra
    uv = str(Path(sys.executable).with_name("uv"))
    subprocess.run([uv, "venv", "-q", "--python", sys.executable, str(environment)], check=True)
    began = time.monotonic()
    requirement = str(wheel) if extra == CORE else f"{wheel}[{extra}]"
    python = str(environment / "bin/python")
    subprocess.run(
        [uv, "pip", "install", "-q", "--python", python, requirement, "-c", str(ROOT / "constraints.txt")], check=True
    )
    seconds = time.monotonic() - began
    subprocess.run(
        [str(environment / "bin/pocketbert"), "doctor"],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    size = sum(p.stat().st_size for p in environment.rglob("*") if p.is_file() and not p.is_symlink())
    packages = len(list(environment.glob("lib/python*/site-packages/*.dist-info")))
    return {"extra": extra, "seconds": seconds, "mb": size / 1e6, "packages": packages}


def read_packages(environment: Path) -> Iterator[dict[str, str]]:
    """Yield name, version and licence of every package that is installed in an environment."""
    code = (
        "import importlib.metadata as m, json; print(json.dumps([[d.metadata['Name'], d.version, d.metadata.get('License-Expression') or '', "
        "d.metadata.get('License') or '', [c for c in d.metadata.get_all('Classifier') or () if c.startswith('License')]] for d in m.distributions()]))"
    )
    printed = subprocess.run(
        [str(environment / "bin/python"), "-c", code], capture_output=True, text=True, check=True
    ).stdout
    for name, version, expression, text, classifiers in sorted(json.loads(printed)):
        named = "; ".join(c.rpartition(" :: ")[2] for c in classifiers)
        first_line = next((line.strip() for line in text.splitlines() if line.strip()), "")
        licence = expression or named or first_line[:60] or _UNNAMED.get(name.lower(), "")
        if name.startswith(("nvidia-", "cuda-")):  # some say "Other/Proprietary License", some nothing
            licence = "NVIDIA CUDA Toolkit EULA"
        yield {"name": name, "version": version, "licence": licence}


def is_allowed(licence: str) -> bool:
    """Return whether a package with this licence may be installed beside this project.

    Of licences that hold together each must be allowed, of alternatives one.
    """
    return all(_ALLOWED.search(part) for part in re.split(r"\bAND\b|;", licence))


def write_sbom(packages: Iterable[dict[str, str]], epoch: int) -> list[str]:
    """Write ``sbom.cdx.json`` in the format CycloneDX 1.6, and return the packages whose licence is not allowed.

    A package that names no licence is among them.
    """
    components, refused = [], []
    for package in packages:
        name, version, licence = package["name"], package["version"], package["licence"]
        if not is_allowed(licence):
            refused.append(f"{name} {version}: {licence or 'no licence is named'}")
        purl = f"pkg:pypi/{re.sub(r'[-_.]+', '-', name).lower()}@{version}"
        components.append(
            {
                "type": "library",
                "bom-ref": purl,
                "name": name,
                "version": version,
                "purl": purl,
                "licenses": [{"license": {"name": licence or "unknown"}}],
            }
        )
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch))
    sbom = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"timestamp": moment},
        "components": components,
    }
    (OUTPUT / "sbom.cdx.json").write_text(json.dumps(sbom, indent=1), encoding="utf-8")
    return refused


def main() -> int:
    """Build, install and list a release; return 1 if a licence is not allowed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = [CORE, *(name for name in project["optional-dependencies"] if name != "dev")]
    parser = argparse.ArgumentParser(description="Build, install and list a release.")
    parser.add_argument("--extras", default=",".join(names), help="extras to install, comma-separated; default: each")
    extras = parser.parse_args().extras.split(",")
    if OUTPUT.exists():
        raise SystemExit(f"{OUTPUT} is there from an earlier time: remove it first")
    stamp = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=True)
    epoch = int(stamp.stdout)
    wheel = next(p for p in build_twice(epoch) if p.suffix == ".whl")
    print("| extra | packages | MB | seconds, from uv's cache |\n|---|---:|---:|---:|", flush=True)
    for extra in extras:
        row = install_extra(wheel, extra)
        print(f"| `{extra}` | {row['packages']} | {row['mb']:,.0f} | {row['seconds']:.0f} |", flush=True)
    largest = OUTPUT / "environments" / ("all" if "all" in extras else extras[-1])
    refused = write_sbom(read_packages(largest), epoch)
    print(f"sbom.cdx.json lists the packages of '{largest.name}'; licences to look at: {'; '.join(refused) or 'none'}")
    return int(bool(refused))


if __name__ == "__main__":
    sys.exit(main())
