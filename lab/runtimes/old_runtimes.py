"""Print how right each form of a TFLite file is on LiteRT and on older engines; the table of docs/lab/old-runtimes.md.

    python lab/runtimes/old_runtimes.py FOLDER --data dev.jsonl.gz --python .venv-clients/tflite-2.14/bin/python

FOLDER is an artefact folder with a fp32 TFLite file. Every ``--python`` needs one engine and numpy, nothing of PocketBERT:
this script runs itself there on token ids that it made here.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

ENGINES = (
    ("ai_edge_litert.interpreter", "LiteRT", ("ai-edge-litert",)),
    ("tflite_runtime.interpreter", "tflite-runtime", ("tflite-runtime",)),
    ("tensorflow.lite.python.interpreter", "TensorFlow", ("tensorflow", "tensorflow-cpu")),
)


def engine() -> tuple[Any, str]:
    """The interpreter class that is installed here, and its name with version."""
    import importlib
    from importlib.metadata import PackageNotFoundError, version

    for module, name, distributions in ENGINES:
        for distribution in distributions:
            try:
                return importlib.import_module(module).Interpreter, f"{name} {version(distribution)}"
            except (ImportError, PackageNotFoundError):
                continue
    raise SystemExit("no TFLite engine is installed")


def answer(folder: Path) -> None:
    """Run every file of a work folder on its token ids; logits and milliseconds of CPU time per row into ``answers``."""
    interpreter, name = engine()
    ids = np.load(folder / "ids.npz")
    for file in sorted(folder.glob("*.tflite")):
        opened = interpreter(model_path=str(file), num_threads=1)
        runners = {int(k.split("_")[1]): opened.get_signature_runner(k) for k in opened.get_signature_list()}
        out, start = [], time.process_time()
        for i, length in enumerate(ids["length"]):
            fit = min(n for n in runners if n >= length)
            feed = {n: ids[n][i : i + 1, :fit] for n in runners[fit].get_input_details()}
            out.append(runners[fit](**feed)["logits"][0])
        spent = 1e3 * (time.process_time() - start) / len(out)
        np.savez(folder / "answers" / f"{name} {file.stem}.npz", logits=np.stack(out), cpu_ms=spent)


def prepare(source: Path, data: Path | None, folder: Path) -> np.ndarray | None:
    """Write all forms of a folder's model and the token ids of the texts; returns labels where there are any."""
    from pocketbert.core.artefacts import read_artefacts
    from pocketbert.core.compare.golden import read_golden
    from pocketbert.core.data.reading import read_examples
    from pocketbert.core.data.source import DataSource
    from pocketbert.core.predict.tokenization import TextTokenizer
    from pocketbert.core.types import Format, Runtime, Scheme
    from pocketbert.quantize import Plan, quantize

    large = source / "tflite" / "model.tflite"
    (folder / "fp32.tflite").write_bytes(large.read_bytes())
    for scheme in (Scheme.FP16, Scheme.W8, Scheme.INT8):
        quantize(large, folder / f"{scheme}.tflite", Plan(Format.TFLITE, scheme))
    plan = Plan(Format.TFLITE, Scheme.INT8, Runtime.TFLITE_2_16)
    quantize(large, folder / f"int8 for {plan.runtime}.tflite", plan)
    artefacts = read_artefacts(source)
    tokenizer = TextTokenizer(source, artefacts.processing.max_length)
    if data is None:
        texts, labels = [r.input for r in read_golden(source / "golden.jsonl")], None
    else:
        rows = list(read_examples(DataSource(path=str(data)), labelled=True))
        texts = [r.input for r in rows]
        names = [str(r.label) for r in rows]
        known = artefacts.labels if set(names) <= set(artefacts.labels) else sorted(set(names))
        labels = np.array([known.index(n) for n in names])
    encoded = tokenizer.encode(texts)
    batch = tokenizer.pad(encoded, artefacts.processing.max_length)
    np.savez(
        folder / "ids.npz",
        length=[len(e) for e in encoded],
        **{n: v.astype(np.int32) for n, v in batch.items()},
    )
    return labels


def table(folder: Path, labels: np.ndarray | None) -> str:
    """Markdown, a row for each engine and form."""
    files = {p.stem: p.stat().st_size for p in sorted(folder.glob("*.tflite"), key=lambda p: -p.stat().st_size)}
    found = {p.stem: np.load(p) for p in (folder / "answers").glob("*.npz")}
    engines = sorted({name[: -len(f) - 1] for name in found for f in files if name.endswith(f" {f}")})
    engines = [e for e in engines if f"{e} fp32" in found]
    [litert] = [e for e in engines if e.startswith("LiteRT")]
    large = found[f"{litert} fp32"]["logits"]
    spread = large.std(0).max()
    lines = [
        "| engine | form | MB | worst difference from LiteRT | RMS from fp32 | labels of fp32 | accuracy | CPU ms |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in [litert, *(e for e in engines if e != litert)]:
        for form, size in files.items():
            got, same = found[f"{name} {form}"], found[f"{litert} {form}"]["logits"]
            logits = got["logits"]
            worst = np.abs(logits - same).max() / spread
            rms = np.sqrt(np.mean((logits - large) ** 2)) / spread
            agree = 100 * (logits.argmax(-1) == large.argmax(-1)).mean()
            right = "" if labels is None else f"{100 * (logits.argmax(-1) == labels).mean():.2f} %"
            lines.append(
                f"| {name} | {form} | {size / 1e6:.1f} | {worst:.1e} | {rms:.4f} | {agree:.1f} % | {right} "
                f"| {float(got['cpu_ms']):.1f} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Prepare, run every engine, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", type=Path, help="rows with text and label; default the folder's golden rows")
    parser.add_argument("--python", action="append", default=[], help="interpreter of an environment with an engine")
    parser.add_argument("--answer", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.answer:
        return answer(arguments.folder)
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        (work / "answers").mkdir()
        labels = prepare(arguments.folder, arguments.data, work)
        for python in (sys.executable, *arguments.python):
            subprocess.run([python, __file__, "--answer", str(work)], check=True, stderr=subprocess.DEVNULL)
        print(f"{len(np.load(work / 'ids.npz')['length'])} texts; {json.dumps(str(arguments.folder))}")
        print(table(work, labels))
    return None


if __name__ == "__main__":
    main()
