"""A student without layers against model2vec's classifier: the same teacher, rows and number of dimensions.

Both start from all-MiniLM-L6-v2 (`minilm-l6`) and 256 principal components of its token vectors. Ours is what `pocketbert run` makes with
`student: {layers: 0}`: it learns a fine-tuned teacher's logits and the gold labels, and ships as int8 ONNX; model2vec distils and fits
`StaticModelForClassification` with its defaults, on gold labels, and ships its embeddings in fp32 or int8. What is printed of each: accuracy
on rows that nothing was chosen by, size of the files that answer, CPU-seconds, and the time of a text from string to label at one thread.

Run: python lab/peers/static_students.py clinc150|banking77 [--run FOLDER] [--ready FOLDER]

The data are read from ../shared/data beside the checkout; model2vec gets an environment of its own.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml
from common import SST2, print_header
from environments import environment

DATA = SST2.parent
SETS: dict[str, tuple[str, str, str, int]] = {
    "clinc150": ("train", "dev", "intent", 48),
    "banking77": ("train", "test", "intent", 80),
}
"""Files of training and evaluation rows, the column of the label, and the longest input in tokens."""
PEER = """
import json, resource, sys, time
from pathlib import Path
from model2vec.distill import distill
from model2vec.train import StaticModelForClassification

train, dev, model, out = json.load(open(sys.argv[1])), json.load(open(sys.argv[2])), sys.argv[3], Path(sys.argv[4])
cpu = lambda: sum(getattr(resource.getrusage(resource.RUSAGE_SELF), k) for k in ("ru_utime", "ru_stime"))
began = cpu()
static = distill(model_name=model, pca_dims=256)
distilled = cpu()
classifier = StaticModelForClassification.from_static_model(model=static)
classifier.fit(*train)
fitted = cpu()
pipeline = classifier.to_pipeline()
found = pipeline.predict(dev[0])
pipeline.save_pretrained(out)
texts, times = dev[0][:1000], []
for text in texts:
    start = time.perf_counter(); pipeline.predict([text]); times.append(time.perf_counter() - start)
accuracy = sum(a == b for a, b in zip(found, dev[1])) / len(dev[1])
size = sum(f.stat().st_size for f in out.rglob("*") if f.is_file())
print("RESULT " + json.dumps({"accuracy": accuracy, "distil": distilled - began, "fit": fitted - distilled, "bytes": size,
    "ms": sorted(times)[len(times) // 2] * 1e3}))
"""


def read_rows(name: str, split: str, label: str) -> tuple[list[str], list[str]]:
    """Texts and labels of a split."""
    with gzip.open(DATA / name / f"{split}.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return [r["text"] for r in rows], [r[label] for r in rows]


def write_recipe(name: str, path: Path) -> Path:
    """The recipe of our student; the teacher is fine-tuned as in the shipped recipe of CLINC150."""
    train, dev, label, length = SETS[name]
    sources = {
        k: {"path": str(DATA / name / f"{s}.jsonl.gz"), "label": label} for k, s in (("train", train), ("eval", dev))
    }
    signals = {"logits": 1, "hidden": 0, "attention": 0, "labels": 1}
    stage = {"method": "task", "epochs": 8, "batch": 64, "lr": 2e-3, "signals": signals, "cache_teacher": "fp32"}
    recipe = {
        "schema": 1,
        "name": f"{name}-static",
        "task": "text-classification",
        "seed": 7,
        "data": {**sources, "max_length": length},
        "teacher": {"model": "minilm-l6", "finetune": {"steps": 500, "batch": 48, "lr": 3e-4}},
        "student": {"layers": 0, "dimensions": 256},
        "distill": [stage],
        "export": {"lengths": [16, 32, length]},
        "quantize": {"scheme": "int8"},
        "verify": {"max_drop": 0.01, "min_kept": 0.95},
    }
    path.write_text(yaml.safe_dump(recipe, sort_keys=False))
    return path


def children_cpu() -> float:
    """CPU seconds of all child processes so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def ours(name: str, folder: Path) -> dict[str, Any]:
    """Make our student, unless the folder holds it, and measure it."""
    from pocketbert.runtime import load

    began = children_cpu()
    recipe = write_recipe(name, folder.with_suffix(".yaml"))
    subprocess.run([sys.executable, "-m", "pocketbert.cli.main", "run", recipe, "-o", folder], check=True)
    cpu, phone = children_cpu() - began, folder / "phone"
    texts, labels = read_rows(name, SETS[name][1], SETS[name][2])
    model = load(phone)
    right = sum(a.label == b for a, b in zip(model.predict(texts), labels, strict=True))
    times = []
    for text in texts[:1000]:
        start = time.perf_counter()
        model.predict([text])
        times.append(time.perf_counter() - start)
    scores = (
        json.loads((folder / "student/training.json").read_text()),
        json.loads((folder / "teacher/training.json").read_text()),
    )
    return {
        "accuracy": right / len(labels),
        "cpu": cpu,
        "bytes": (phone / "onnx/model_int8.onnx").stat().st_size + (phone / "tokenizer.json").stat().st_size,
        "ms": sorted(times)[len(times) // 2] * 1e3,
        "student fp32": scores[0]["score"]["value"],
        "teacher": scores[1]["score"]["value"],
    }


def model2vec(name: str, folder: Path, ready: Path | None) -> dict[str, Any]:
    """Let model2vec distil, fit and answer in an environment of its own."""
    from pocketbert.core.models.folder import open_model_folder

    folder.mkdir(parents=True, exist_ok=True)
    for split in SETS[name][:2]:
        (folder / f"{split}.json").write_text(json.dumps(read_rows(name, split, SETS[name][2])))
    teacher = open_model_folder("minilm-l6").path
    files = [folder / f"{split}.json" for split in SETS[name][:2]]
    command = [environment("model2vec", ready), "-c", PEER, *files, teacher, folder / "model"]
    done = subprocess.run([str(c) for c in command], check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, Any] = json.loads(next(x for x in done.stdout.splitlines() if x.startswith("RESULT "))[7:])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", choices=SETS)
    parser.add_argument("--run", type=Path, help="run folder of our student; default runs/static-NAME")
    parser.add_argument("--ready", type=Path, help="folder with environments that exist already")
    options = parser.parse_args()
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[variable] = "1"
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    folder = options.run or Path("runs") / f"static-{options.data}"
    print_header(f"students without layers on {options.data}, one thread", f"{SETS[options.data][1]} rows")
    peer_folder = folder.with_name(f"{folder.name}-model2vec")
    for side, measure in (
        ("model2vec", lambda: model2vec(options.data, peer_folder, options.ready)),
        ("ours", lambda: ours(options.data, folder)),
    ):
        print(f"  {side}: " + ", ".join(f"{k} {v:.4g}" for k, v in measure().items()), flush=True)


if __name__ == "__main__":
    main()
