"""Things that are no plain files where a file is expected: pipes, devices, links, folders."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

from fuzz.files import LIST, files, read_json, write_json
from fuzz.mutation import Place, Verdict, mutator
from fuzz.mutators.rows import only

LINKS = {"zero": "/dev/zero", "random": "/dev/urandom", "memory": "/proc/self/mem", "dangling": "nowhere"}
KINDS = (*LINKS, "loop", "outside", "fifo", "folder", "empty", "huge", "missing")


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
    target = {**LINKS, "loop": path.name, "outside": away.name}
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


@mutator("artefact", verdict=Verdict.BAD, verbs=["verify"])
def no_plain_file(draw: random.Random, place: Place) -> Verdict | None:
    path = draw.choice([*files(place.phone), place.phone / "tokenizer.json", place.phone / LIST])
    return Verdict.ANY if become(draw, path) == "outside" else None


@mutator("artefact", verdict=Verdict.BAD, verbs=["verify"])
def further_things(draw: random.Random, place: Place) -> None:
    """Something in the artefact folder that its list does not have."""
    path = place.phone / draw.choice(["x", "onnx/x", ".hidden", "a\nb", "\x1b[2J", "\udcff"])
    become(draw, path, draw.choice(["fifo", "zero", "dangling", "loop", "empty", "memory", "huge"]))


@mutator("artefact", verdict=Verdict.BAD, verbs=["verify"])
def listed_things(draw: random.Random, place: Place) -> None:
    """A pipe, a device or a link that the list has as a file."""
    become(draw, place.phone / "x", draw.choice(["fifo", "zero", "dangling", "loop", "memory"]))
    content = read_json(place.phone / LIST)
    content["files"].append({"path": "x", "sha256": draw.choice(["0", "0" * 64, ""]), "bytes": 0, "kind": "document"})
    write_json(place.phone / LIST, content)


@mutator("model")
def no_plain_model_file(draw: random.Random, place: Place) -> Verdict | None:
    path = draw.choice(files(place.model))
    needed = path.name in ("config.json", "model.safetensors")
    return Verdict.FINE if become(draw, path) == "outside" else Verdict.BAD if needed else None


@mutator("model", verdict=Verdict.FINE)
def further_files(draw: random.Random, place: Place) -> None:
    """Things that model folders have, and that nothing reads."""
    names = ["README.md", ".gitattributes", "flax_model.msgpack", "training_args.bin", "runs/x/events"]
    path = place.model / draw.choice([*names, "checkpoint-5/y.txt", ".DS_Store", "é.txt"])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(draw.choice([b"", b"# Text\n", draw.randbytes(300)]))


@mutator("rows", verdict=Verdict.BAD, verbs=["check"])
def no_plain_rows(draw: random.Random, place: Place) -> Verdict | None:
    return Verdict.FINE if become(draw, only(draw, place)) == "outside" else None


@mutator("recipe", verdict=Verdict.BAD)
def no_plain_recipe(draw: random.Random, place: Place) -> Verdict | None:
    return Verdict.FINE if become(draw, place.recipe) == "outside" else None
