"""python -m android FOLDER: write what the Java tests read, unless it is there and nothing has changed since."""

from __future__ import annotations

import argparse
import hashlib
import shutil
from pathlib import Path

import pocketbert
from android.answer_files import write_answer_files
from android.engine_files import write_engine_files
from android.phones import write_assets, write_phones
from android.token_files import write_token_files

WRITERS = {
    "answers": write_answer_files,
    "phones": write_phones,
    "engines": write_engine_files,
    "assets": write_assets,
    "tokens": write_token_files,
}
STAMP = "stamp.txt"


def stamp() -> str:
    """A digest of these scripts and of the installed toolkit: with an equal one, the same files would be written."""
    digest = hashlib.sha256()
    for top in (Path(__file__).parent, Path(__file__).parents[1] / "support", Path(pocketbert.__file__).parent):
        for path in sorted(top.rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def main() -> None:
    """Write every part into FOLDER; a part is written whole or not at all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    for name, write in WRITERS.items():
        part, mark = folder / name, folder / f"{name}.{STAMP}"
        if mark.is_file() and mark.read_text() == stamp():
            continue
        mark.unlink(missing_ok=True)
        shutil.rmtree(part, ignore_errors=True)
        write(part)
        mark.write_text(stamp())
        print(f"{part}: written")


if __name__ == "__main__":
    main()
