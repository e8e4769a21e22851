"""Things that are no plain files where a file is expected: pipes, devices, links, folders."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

from fuzz.mutation import Place, Verdict, mutator
from fuzz.plain import is_plain

KINDS = ("fifo", "zero", "random", "dangling", "loop", "folder", "empty", "huge", "memory", "missing", "outside")


def become(draw: random.Random, path: Path, kind: str = "") -> str:
    """Replace a file or a folder by something else; return what it became."""
    kind = kind or draw.choice(KINDS)
    away = path.with_name(f".{path.name}.away")
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif kind == "outside":
        path.rename(away)
    else:
        path.unlink(missing_ok=True)
    target = {
        "zero": "/dev/zero",
        "random": "/dev/urandom",
        "dangling": "nowhere",
        "loop": path.name,
        "memory": "/proc/self/mem",
        "outside": away.name,
    }
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "empty":
        path.touch()
    elif kind == "huge":
        with path.open("wb") as stream:  # sparse: takes no disk
            stream.truncate(draw.choice([100, 700, 3000]) << 20)
    elif kind in target and (kind != "outside" or away.exists()):
        path.symlink_to(target[kind])
    return kind


def files(folder: Path) -> list[Path]:
    """Every plain file below a folder."""
    return sorted(p for p in folder.rglob("*") if is_plain(p))


@mutator("artefact", verdict=Verdict.BAD, verbs=["verify"])
def no_plain_file(draw: random.Random, place: Place) -> Verdict | None:
    """A file of the artefact folder that is none any more."""
    path = draw.choice([*files(place.phone), place.phone / "tokenizer.json", place.phone / "artifacts.json"])
    return Verdict.ANY if become(draw, path) == "outside" else None


@mutator("artefact", verdict=Verdict.BAD, verbs=["verify"])
def further_things(draw: random.Random, place: Place) -> None:
    """Something in the artefact folder that its list does not have."""
    path = place.phone / draw.choice(["x", "onnx/x", ".hidden", "a\nb", "\x1b[2J", "\udcff"])
    become(draw, path, draw.choice(["fifo", "zero", "dangling", "loop", "empty", "memory", "huge"]))


@mutator("artefact", verdict=Verdict.BAD, verbs=["verify"])
def listed_things(draw: random.Random, place: Place) -> None:
    """A pipe, a device or a link that the list has as a file."""
    from fuzz.signing import LIST, read, write

    kind = draw.choice(["fifo", "zero", "dangling", "loop", "memory"])
    become(draw, place.phone / "x", kind)
    content = read(place.phone / LIST)
    content["files"].append({"path": "x", "sha256": draw.choice(["0", "0" * 64, ""]), "bytes": 0, "kind": "document"})
    write(place.phone / LIST, content)


@mutator("model")
def no_plain_model_file(draw: random.Random, place: Place) -> Verdict | None:
    """A file of the model folder that is none any more."""
    path = draw.choice(files(place.model))
    kind = become(draw, path)
    needed = path.name in ("config.json", "model.safetensors")
    return Verdict.FINE if kind == "outside" else Verdict.BAD if needed else None


@mutator("model", verdict=Verdict.FINE)
def further_files(draw: random.Random, place: Place) -> None:
    """Things that model folders have, and that nothing reads."""
    name = draw.choice(
        [
            "README.md",
            ".gitattributes",
            "flax_model.msgpack",
            "training_args.bin",
            "runs/x/events",
            "checkpoint-5/y.txt",
            ".DS_Store",
            "é.txt",
        ]
    )
    path = place.model / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(draw.choice([b"", b"# Text\n", draw.randbytes(300)]))


@mutator("rows", verdict=Verdict.BAD, verbs=["check"])
def no_plain_rows(draw: random.Random, place: Place) -> Verdict | None:
    """Rows that are no file."""
    path = only(draw, place)
    return Verdict.FINE if become(draw, path) == "outside" else None


@mutator("recipe", verdict=Verdict.BAD)
def no_plain_recipe(draw: random.Random, place: Place) -> Verdict | None:
    """A recipe that is no file."""
    return Verdict.FINE if become(draw, place.recipe) == "outside" else None


def only(draw: random.Random, place: Place) -> Path:
    """One of the files of rows, the others removed."""
    found = sorted(place.rows.glob("rows.*"))
    kept = draw.choice(found)
    for path in found:
        if path != kept:
            path.unlink()
    return kept
