"""`data prepare` in several processes, of torchrun or of a Ray cluster: the bytes of one process, whatever happens to a worker."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import psutil
import pytest
import yaml

from pocketbert.api import data_prepare, load_recipe
from pocketbert.core.errors import InputError
from pocketbert.distill.text import writer
from support.launches import run_with_torchrun
from support.tiny import write_bert
from support.tiny_texts import task_rows, write_lines

COMMAND = ("-m", "pocketbert.cli.main", "data", "prepare", "recipe.yaml", "-o")


def write_recipe(folder: Path, counts: tuple[int, ...] = (3000, 40), wrong: bool = False) -> Path:
    """A recipe with a source of text for each count; with `wrong` the last row of the first one has no text."""
    for number, count in enumerate(counts):
        rows = [{"text": row["text"]} for row in task_rows(count, number + 1)]
        write_lines(folder / f"{number}.jsonl", [*rows, *([{"text": 5}] if wrong and not number else [])])
    write_bert(folder / "teacher")
    content = {
        "schema": 1,
        "name": "corpora",
        "task": "fill-mask",
        "teacher": {"model": "./teacher"},
        "data": {"corpus": {"sources": [{"path": f"{n}.jsonl"} for n in range(len(counts))], "shortest": 4}},
        "student": {"layers": 1},
        "distill": [{"method": "distilbert", "steps": 2}],
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(content))
    return folder / "recipe.yaml"


def files(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_two_processes_of_torchrun_write_the_corpora_of_one(tmp_path: Path) -> None:
    data_prepare(load_recipe(write_recipe(tmp_path)), tmp_path / "one")
    made = run_with_torchrun(2, *COMMAND, "two", folder=tmp_path)
    assert made.returncode == 0, made.stderr
    assert made.stdout.splitlines() == [f"corpus: {Path('two') / name}" for name in ("00", "01")], "once, by process 0"
    assert files(tmp_path / "two") == files(tmp_path / "one")


def test_a_wrong_row_is_said_once_and_leaves_nothing(tmp_path: Path) -> None:
    write_recipe(tmp_path, (400, 40), wrong=True)
    made = run_with_torchrun(2, *COMMAND, "two", folder=tmp_path)
    assert made.stderr.count("0.jsonl:401: column 'text' holds int, not text") == 1
    assert "exitcode  : 2" in made.stderr  # torchrun may end the other process before it ends by itself
    assert not (tmp_path / "two").exists()


def kill_worker(killed: list[int], done: threading.Event) -> None:
    """End one process of Ray while it tokenizes."""
    while not done.is_set() and not killed:
        for child in psutil.Process().children(recursive=True):
            try:
                if "_Worker.answer" in " ".join(child.cmdline()) and not killed:
                    child.kill()
                    killed.append(child.pid)
            except psutil.Error:
                continue
        time.sleep(0.002)


@pytest.mark.slow
def test_two_processes_of_ray_write_the_corpora_of_one_and_a_killed_one_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray", reason="ray is not installed: pip install 'pocketbert[ray]'")
    monkeypatch.setattr(writer, "_TEXTS_AT_ONCE", 16)  # many batches
    recipe = load_recipe(write_recipe(tmp_path, (40_000, 40)))
    data_prepare(recipe, tmp_path / "one")
    killed, done = list[int](), threading.Event()
    killer = threading.Thread(target=kill_worker, args=(killed, done))
    killer.start()
    try:
        data_prepare(recipe, tmp_path / "two", engine="ray", workers=2)
    finally:
        done.set()
        killer.join()
    assert killed
    assert not psutil.pid_exists(killed[0])
    assert files(tmp_path / "two") == files(tmp_path / "one")


def test_what_no_engine_can_do_is_refused(tmp_path: Path) -> None:
    recipe = load_recipe(write_recipe(tmp_path, (3,)))
    with pytest.raises(InputError, match="--engine: there is none called 'dask'"):
        data_prepare(recipe, tmp_path / "out", engine="dask")
    with pytest.raises(InputError, match="--workers: counts processes of Ray"):
        data_prepare(recipe, tmp_path / "out", workers=2)
    assert not (tmp_path / "out").exists()
    made = run_with_torchrun(2, *COMMAND, "out", "--engine", "ray", folder=tmp_path)
    assert made.stderr.count("--engine ray: starts processes of its own, and a launcher has started 2") == 1
