"""The demo: a generated corpus, the real MiniLM teacher, the whole chain."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pocketbert import demo_corpus
from pocketbert.core.disk.destination import folder_destination
from pocketbert.core.disk.files import digests
from pocketbert.core.disk.marker import MARKER, read_marker, write_marker
from pocketbert.core.disk.workspace import beside_workspaces, building
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.host.progress import say
from pocketbert.core.models.folder import DEMO_TEACHER, open_model_folder
from pocketbert.core.recipe.file import load_recipe
from pocketbert.pipeline.run import Run
from pocketbert.pipeline.run_folder import Permission
from pocketbert.pipeline.run_folder.result import RunResult
from pocketbert.pipeline.shipped import recipe_path

_KIND = "demo corpus"


def run_demo(output: Path, overwrite: bool, overrides: Sequence[str]) -> RunResult:
    """Generate the corpus next to the run folder, then run the shipped recipe ``demo``.

    Args:
        output: Run folder.
        overwrite: Whether results of other settings may be replaced.
        overrides: Further ``key.sub=value`` texts.

    Raises:
        MissingBackendError: If the demo teacher is not installed; nothing is written then.
    """
    open_model_folder(DEMO_TEACHER)
    output = folder_destination(output)
    corpus = folder_destination(output.parent / f"{output.name}-corpus")
    files = _files(corpus)
    paths = [f"data.{name}.path={files[split].resolve()}" for name, split in (("train", "train"), ("eval", "dev"))]
    recipe = load_recipe(recipe_path("demo"), [*paths, *overrides])
    write_corpus(corpus)
    run = Run(recipe, output, Permission(overwrite))
    run.execute()
    return run.finish()


def write_corpus(folder: Path) -> dict[str, Path]:
    """Generate the corpus into a folder.

    Args:
        folder: Where; must not be there, be empty, or hold a corpus.

    Returns:
        The files by split.

    Raises:
        InputError: If the folder holds anything else.
    """
    folder = folder_destination(folder)
    if folder.exists() and beside_workspaces(_changed)(folder):
        raise InputError(
            Problem(
                str(folder),
                "exists and holds more than a demo corpus; nothing was written.",
                "Choose another -o/--output.",
            )
        )
    say(f"corpus: {folder}")
    with building(folder, _changed, MARKER) as work:
        demo_corpus.write(demo_corpus.generate(), work)
        write_marker(work, _KIND, files=digests(work))
    return _files(folder)


def _changed(folder: Path) -> list[str]:
    """Files in a folder that are not as the corpus was written there."""
    written = read_marker(folder, _KIND).get("files")
    known = written if isinstance(written, dict) else {}
    return [n for n, digest in digests(folder).items() if n != MARKER and known.get(n) != digest]


def _files(folder: Path) -> dict[str, Path]:
    return {split: folder / f"{split}.jsonl.gz" for split in ("train", "dev", "test")}
