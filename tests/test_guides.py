"""Running the commands of guides: what is shown and not printed is found."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from filelock import FileLock
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[1]
RUNNER = runpy.run_path(str(ROOT / "scripts/run_guides.py"))


@pytest.mark.parametrize(
    ("guide", "found"),
    [
        ("```console\n$ echo 12 files in 3.4 s\n98 files in 1 s\n```", "as shown echo"),
        ("```console\n$ printf 'one\\ntwo\\nthree\\n'\none\n…\nthree\n```", "as shown printf"),
        ("```console\n$ echo one two three\none … three\n```", "as shown echo"),
        (
            "```console\n$ printf 'one\\ntwo\\n'\ntwo\none\n```",
            "FAILED   printf 'one\\ntwo\\n': it does not print 'one'",
        ),
        ("```console\n$ echo passed\nfailed\n```", "FAILED   echo passed: it does not print 'failed'"),
        ("```console\n$ false\n```", "FAILED   false: exit code 1"),
        ("```python\nraise SystemExit(3)\n```", "FAILED   a Python script: exit code 3"),
        ("```python\nassert True\n```", "as shown a Python script"),
        ("<!-- not run: needs a phone -->\n```console\n$ false\n```", "not run  false: needs a phone"),
    ],
)
def test_a_guide_passes_only_if_its_commands_print_what_it_shows(guide: str, found: str, tmp_path: Path) -> None:
    [line] = RUNNER["run_guide"](guide + "\n", tmp_path)
    assert line.startswith(found)


def test_commands_of_a_guide_share_a_folder_with_the_demo(tmp_path: Path) -> None:
    (tmp_path / "phone").mkdir()
    guide = "```console\n$ echo kept > file\n$ cat file\nkept\n$ ls runs/demo\nphone\n```\n"
    assert all(line.startswith("as shown") for line in RUNNER["run_guide"](guide, tmp_path))


def test_every_guide_has_commands_that_are_run() -> None:
    guides = sorted((ROOT / "docs/guides").glob("*.md"))
    assert len(guides) > 8
    for guide in guides:
        steps = [step for step in RUNNER["read_steps"](guide.read_text("utf-8")) if not step.reason]
        assert steps, guide.name


@pytest.fixture(scope="session")
def demo() -> Path:
    """The run folder of the demo, which is made if there is none."""
    folder = ROOT / "runs/demo"
    folder.parent.mkdir(exist_ok=True)
    with FileLock(ROOT / "runs/.demo.lock"):
        if not (folder / "phone/artifacts.json").is_file():
            subprocess.run(["make", "demo"], cwd=ROOT, check=True, capture_output=True)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("guide", sorted(p.name for p in (ROOT / "docs/guides").glob("*.md")))
def test_a_guide_shows_what_its_commands_print(guide: str, demo: Path) -> None:
    lines = list(RUNNER["run_guide"]((ROOT / "docs/guides" / guide).read_text("utf-8"), demo))
    assert [line for line in lines if line.startswith("FAILED")] == []
    assert any(line.startswith("as shown") for line in lines)


@pytest.mark.slow
def test_the_site_is_built_without_a_broken_link(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(tmp_path / "site")]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=False
    )
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "site/index.html").read_text("utf-8")
    loaded = re.findall(r"<(?:script|link|img)[^>]*(?:src|href)=\"(https?:[^\"]+)", page)
    assert [address for address in loaded if "pocketbert.github.io" not in address] == [], "it loads from elsewhere"
    assert (tmp_path / "site/guides/android.html").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["distil_your_own", "export_and_measure"])
def test_a_notebook_runs_from_top_to_bottom(name: str, tmp_path: Path) -> None:
    notebook = nbformat.read(ROOT / f"examples/{name}.ipynb", as_version=4)
    NotebookClient(notebook, timeout=900, resources={"metadata": {"path": str(tmp_path)}}).execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert cells and all(cell.execution_count for cell in cells)
    assert "".join(output.get("text", "") for output in cells[-1].outputs).strip(), "the last cell prints nothing"
