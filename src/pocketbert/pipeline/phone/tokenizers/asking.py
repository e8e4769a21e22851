"""The Java tokenizer that a folder carries, compiled and asked the texts of the library, where this machine has a JDK and Gson."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path

from pocketbert.core.artefacts import Artefacts
from pocketbert.core.compare.library_rows import LibraryAnswers, LibraryRow
from pocketbert.core.host.home import home_folder
from pocketbert.core.models.tokenizer_settings import SEGMENTS
from pocketbert.core.predict.sentence_settings import Prompts
from pocketbert.pipeline.formats.gate import Gate
from pocketbert.pipeline.gates.library import TEXT_GATE
from pocketbert.pipeline.phone.tokenizers.sources import ANDROID

SWITCH = "POCKETBERT_JAVA"
"""Environment variable: ``no`` leaves the check out, which takes seconds for the compiler."""
_GSON = ".m2/repository/com/google/code/gson/gson"
_MAIN = "AskTokenizer"


def java_gates(folder: Path, artefacts: Artefacts, library: LibraryAnswers | None) -> list[Gate]:
    """Compare the ids of a folder's Java tokenizer with those of the checkpoint's library.

    The sources that are compiled and run are those of this installation, never the folder's: a folder with others is not checked.

    Args:
        folder: The artefact folder.
        artefacts: Its list.
        library: What the library gave.

    Returns:
        One gate; none where the folder has no Java sources, no library answered, or this machine has no JDK with Gson.
    """
    if library is None or library.missing or os.environ.get(SWITCH) == "no":
        return []
    copied = ANDROID.copied()
    same = all(
        (folder / name).is_file() and (folder / name).read_bytes() == content for name, content in copied.items()
    )
    if not same or (classes := _compiled()) is None:
        return []
    processing = artefacts.processing
    prompts = processing.named_prompts
    rows = [row for row in library.rows if row.prompt is None or row.prompt in prompts.named]
    made = _ask(classes, folder / "tokenizer.json", processing.max_length, processing.truncation_side, rows, prompts)
    if made is None:
        return []
    segments = any(
        t.name == SEGMENTS for r in artefacts.models() if r.plain and r.signature for t in r.signature.inputs
    )
    wrong = [
        row.called
        for row, (ids, types) in zip(rows, made, strict=True)
        if ids != row.ids or (segments and types != row.type_ids)
    ]
    detail = f"the Java sources give {len(rows)} texts the ids of {library.library}."
    if wrong:
        detail = f"the Java sources give {len(wrong)} of {len(rows)} texts other inputs than {library.library}, e.g. {wrong[0]}."
    return [Gate(name=TEXT_GATE, file="android/", passed=not wrong, value=float(len(wrong)), bound=0.0, detail=detail)]


@cache
def _compiled() -> tempfile.TemporaryDirectory[str] | None:
    """Compile the tokenizer once in a process; None without a JDK of version 17 or newer, or without Gson in Maven's folder."""
    home = home_folder()
    jars = sorted((home / _GSON).glob("*/gson-*.jar")) if home is not None else []
    if shutil.which("javac") is None or shutil.which("java") is None or not jars:
        return None
    made = tempfile.TemporaryDirectory()
    root = Path(made.name)
    for name, content in ANDROID.copied().items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    shutil.copyfile(jars[-1], root / "gson.jar")
    main = root / f"{_MAIN}.java"
    main.write_bytes((files(__package__) / main.name).read_bytes())
    sources = [str(p) for p in (root / "android/java").rglob("*.java")]
    command = [
        "javac",
        "--release",
        "17",
        "-cp",
        str(root / "gson.jar"),
        "-d",
        str(root / "classes"),
        *sources,
        str(main),
    ]
    done = subprocess.run(command, capture_output=True, check=False)
    return made if done.returncode == 0 else None  # an older JDK


def _ask(
    classes: tempfile.TemporaryDirectory[str],
    tokenizer: Path,
    length: int,
    side: str,
    rows: Sequence[LibraryRow],
    prompts: Prompts,
) -> list[tuple[list[int], list[int]]] | None:
    """Tokenize texts, each behind its prompt, in one Java process; None where Java does not start."""
    root = Path(classes.name)
    path = os.pathsep.join(map(str, (root / "classes", root / "gson.jar", root / "android/resources")))
    texts = [prompts.put_before([row.text], row.prompt)[0] for row in rows]
    parts = [(text,) if isinstance(text, str) else text for text in texts]
    lines = [" ".join(base64.b64encode(part.encode()).decode() for part in given) for given in parts]
    command = ["java", "-cp", path, _MAIN, str(tokenizer), str(length), side]
    done = subprocess.run(command, input="\n".join(lines) + "\n", capture_output=True, text=True, check=False)
    if "AskTokenizer" not in done.stderr and done.returncode:
        return None
    found = [json.loads(line) for line in done.stdout.splitlines()] if done.returncode == 0 else []
    return [(ids, types) for ids, types in found] if len(found) == len(rows) else [([], [])] * len(rows)
