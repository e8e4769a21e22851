"""Assembling the artefact folder out of the files that passed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pocketbert.benchmarks.devices.mac.script import FILE_NAME as FILE_NAME_ON_MAC
from pocketbert.benchmarks.devices.mac.script import mac_script
from pocketbert.core.artefacts import (
    FILE_NAME,
    Artefacts,
    FileRecord,
    Kind,
    Processing,
    write_artefacts,
)
from pocketbert.core.disk.files import copy_path, path_bytes, read_json, sha256_file, sha256_path, write_json
from pocketbert.core.errors import GateError
from pocketbert.core.formats import FORMATS
from pocketbert.core.heads.table import thresholds_of
from pocketbert.core.host.hardware import machine
from pocketbert.core.host.versions import installed
from pocketbert.core.models.folder import ModelFolder, open_model_folder
from pocketbert.core.predict.pooling import DEFAULT_POOLING, MODULES_FILE, POOLING_FILE, pooling_of
from pocketbert.core.recipe.file import dump_recipe
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.tasks import LabelKind, TaskName, task_of
from pocketbert.core.types import Format, Scheme, Status
from pocketbert.pipeline.formats.model_files import ModelFile, absent_files, default_file, model_files
from pocketbert.pipeline.gates.verify import Verification, read_verification
from pocketbert.pipeline.learn.finishing import read_training
from pocketbert.pipeline.make.exporting import PARITY_FILE, read_parity
from pocketbert.pipeline.phone.card import CardFacts, render_card
from pocketbert.pipeline.phone.facts import card_facts, read_benchmark
from pocketbert.runtime.engines import open_file

ALIAS = "onnx/model_quantized.onnx"
"""Name under which transformers.js (browser) and optimum look for the int8 file."""

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
    "special_tokens_map.json",
    "merges.txt",
    "vocab.json",
)
_VECTOR_FILES = (MODULES_FILE, POOLING_FILE, "sentence_bert_config.json")
"""What sentence-transformers reads beside the model."""
MAC_SCRIPT = f"{Format.COREML}/{FILE_NAME_ON_MAC}"

_KINDS = {
    "config.json": Kind.CONFIG,
    "recipe.resolved.yaml": Kind.CONFIG,
    "model.safetensors": Kind.WEIGHTS,
    "golden.jsonl": Kind.GOLDEN,
    "golden_tokens.jsonl": Kind.GOLDEN,
    "README.md": Kind.DOCUMENT,
    MAC_SCRIPT: Kind.TOOL,
    "parity.json": Kind.FIGURES,
    "benchmark.json": Kind.FIGURES,
    **dict.fromkeys(_TOKENIZER_FILES, Kind.TOKENIZER),
    **dict.fromkeys(_VECTOR_FILES, Kind.CONFIG),
}


@dataclass(frozen=True)
class Origin:
    """What decides an artefact folder.

    Attributes:
        weights: sha256 of the weights that the run started from.
        everything: Digest of recipe, model, data and library versions: equal, and the same folder would be written.
        accepted: Steps whose results were made with other library versions and taken as they are, each with the versions.
    """

    weights: str
    everything: str
    accepted: tuple[str, ...] = ()


def sources(recipe: Recipe, run: Path, weights: Path) -> dict[str, Path]:
    """Files that are packed as they are, by their path in the artefact folder."""
    out = {file.path: run / file.source for file in model_files(recipe, weights)}
    out |= {name: weights / name for name in ("config.json", "model.safetensors", *_TOKENIZER_FILES, *_VECTOR_FILES)}
    out |= {name: run / "golden" / name for name in ("golden.jsonl", "golden_tokens.jsonl")}
    return {name: path for name, path in out.items() if path.exists()}


def check_packable(recipe: Recipe, run: Path, weights: Path) -> Verification:
    """Refuse a run whose files did not pass, or changed since they did.

    Raises:
        GateError: Saying which, and what to do.
    """
    path = run / "verify.json"
    if not path.is_file():
        raise GateError([f"{run} was never verified; run: pocketbert verify -m {run}"])
    result = read_verification(path)
    failures = result.failures
    now = sources(recipe, run, weights)
    failures += [
        f"{name}: not there, though it was when the run was verified" for name in result.files if name not in now
    ]
    for name, path in now.items():
        if sha256_path(path) != result.files.get(name):
            failures.append(f"{path.relative_to(run)}: changed since it was verified; run: pocketbert verify -m {run}")
    if result.status is not Status.PASSED or failures:
        raise GateError([*failures, "Nothing was packed."])
    return result


def make_pack(
    recipe: Recipe, run: Path, weights: Path, length: int, pair: bool, origin: Origin, destination: Path
) -> Sequence[str]:
    """Write the artefact folder; ``artifacts.json`` last.

    Args:
        recipe: What was done.
        run: The run folder.
        weights: Folder of the exported model.
        length: Longest input in tokens.
        pair: Whether inputs are pairs.
        origin: What decides the folder.
        destination: Where to write.

    Raises:
        GateError: If a file did not pass, or changed since.
    """
    result = check_packable(recipe, run, weights)
    folder = open_model_folder(str(weights))
    for name, path in sources(recipe, run, weights).items():
        (destination / name).parent.mkdir(exist_ok=True)
        copy_path(path, destination / name)
    write_json(
        destination / PARITY_FILE,
        [json.loads(p.model_dump_json()) for f in recipe.export.formats for p in read_parity(run / f)],
    )
    files = model_files(recipe, weights)
    if any(f.format is Format.COREML for f in files):
        (destination / MAC_SCRIPT).write_text(mac_script(), encoding="utf-8")
    onnx = [f for f in files if f.format is Format.ONNX and f.plain]
    if any(f.scheme is Scheme.INT8 for f in onnx):
        _alias(destination / onnx[-1].path, destination / ALIAS)
    elif onnx:
        # without it transformers.js in a browser asks for model_quantized.onnx, which is not there
        write_json(
            destination / "config.json",
            {**read_json(weights / "config.json"), "transformers.js_config": {"dtype": "fp32"}},
        )
    if (run / "benchmark.json").is_file() and recipe.benchmark is not None:
        _check_measured(run, result, [f.path for f in files if f.for_toolkit and FORMATS[f.format].timed])
        shutil.copyfile(run / "benchmark.json", destination / "benchmark.json")
    (destination / "recipe.resolved.yaml").write_text(dump_recipe(portable(recipe)), encoding="utf-8")
    facts = card_facts(recipe, run, folder, result)
    artefacts = _artefacts(recipe, folder, length, pair, files, result, run, facts, origin)
    (destination / "README.md").write_text(render_card(artefacts, facts), encoding="utf-8")
    records = [*artefacts.files, *_others(destination, artefacts)]
    write_artefacts(destination, artefacts.model_copy(update={"files": sorted(records, key=lambda r: r.path)}))
    return ()


def _check_measured(run: Path, result: Verification, files: Sequence[str]) -> None:
    """Figures belong to the files they were measured on."""
    bench = read_benchmark(run)
    measured = {v.sha256 for v in bench.variants} if bench else set()
    strange = [name for name in files if result.files[name] not in measured]
    if strange:
        raise GateError([f"benchmark.json measured other files than {', '.join(strange)}; run the recipe again."])


def _alias(source: Path, destination: Path) -> None:
    try:
        os.link(source, destination)
    except OSError:  # a file system without hard links
        shutil.copyfile(source, destination)


def _artefacts(
    recipe: Recipe,
    folder: ModelFolder,
    length: int,
    pair: bool,
    files: Sequence[ModelFile],
    result: Verification,
    run: Path,
    facts: CardFacts,
    origin: Origin,
) -> Artefacts:
    task = task_of(recipe.task)
    weights, default = folder.sha256, default_file(files)
    records = [
        FileRecord(
            path=f.path,
            sha256=result.files[f.path],
            bytes=path_bytes(run / f.source),
            kind=Kind.MODEL,
            format=f.format,
            scheme=f.scheme,
            client=f.client,
            runtime=f.runtime,
            default=f is default,
            signature=open_file(run / f.source, f.format, runtime=f.runtime).signature,
            status=Status.PASSED,
            lineage=weights,
            scores=result.scores.get(f.path, {}),
            seen_right=[result.seen_right[f.path]] if f.path in result.seen_right else [],
        )
        for f in files
    ]
    lineage = {
        "teacher": recipe.teacher.model
        if not Path(recipe.teacher.model).is_absolute()
        else Path(recipe.teacher.model).name,
        **({"revision": recipe.teacher.revision} if recipe.teacher.revision else {}),
        "source_sha256": origin.weights,
        "weights_sha256": weights,
        "licence": facts.licence,
    }
    if recipe.data.train is not None:
        lineage["training data"] = (
            Path(recipe.data.train.title).name if recipe.data.train.path else recipe.data.train.title
        )
    if origin.accepted:
        lineage["made with other library versions (--resume-anyway)"] = "; ".join(origin.accepted)
    return Artefacts(
        name=recipe.name,
        task=recipe.task,
        family=folder.family.name,
        labels=(folder.labels or []) if task.names_labels else [],
        pair=pair,
        processing=_processing(recipe, folder, length),
        files=records,
        absent=absent_files(recipe, folder.path),
        lineage=lineage,
        versions=installed(),
        machine=machine().summary,
        made_from=origin.everything,
    )


def _processing(recipe: Recipe, folder: ModelFolder, length: int) -> Processing:
    """What a client must do before and behind the files."""
    task, answer = task_of(recipe.task), recipe.answer
    own: dict[str, object] = {}
    if task.labels is LabelKind.NAMES:
        tuned = read_training(folder.path).thresholds
        chosen = answer if tuned is None else answer.model_copy(update={"thresholds": tuned})
        own["thresholds"] = list(thresholds_of(chosen, len(folder.labels or [])))
    if task.labels is LabelKind.ANSWERS:
        own |= {
            "stride": answer.stride,
            "answer_length": answer.answer_length,
            "null_answers": answer.null_answers,
            "pair_order": ["question", "context"],
        }
    if task.name is TaskName.FEATURE_EXTRACTION:
        pooling = pooling_of(folder.path) or DEFAULT_POOLING
        own |= {"pooling": pooling.kind.value, "normalize": pooling.normalize}
    return Processing(max_length=length, padding_side=folder.family.padding_side, score=task.score, **own)


def _others(destination: Path, artefacts: Artefacts) -> list[FileRecord]:
    known = {r.path: r for r in artefacts.files}
    packages = [destination / name for name in known if (destination / name).is_dir()]
    out = []
    for path in sorted(p for p in destination.rglob("*") if p.is_file()):
        name = path.relative_to(destination).as_posix()
        if name in known or name == FILE_NAME or any(path.is_relative_to(p) for p in packages):
            continue
        same = known.get("onnx/model_int8.onnx") if name == ALIAS else None
        if same is not None:
            out.append(same.model_copy(update={"path": name, "alias_of": same.path, "default": False, "scores": {}}))
        else:
            out.append(FileRecord(path=name, sha256=sha256_file(path), bytes=path.stat().st_size, kind=_KINDS[name]))
    return out


def portable(recipe: Recipe) -> Recipe:
    """The recipe without paths of this machine: local files by name only."""
    content = recipe.model_dump(mode="json", by_alias=True)
    data, student = content["data"], content["student"] or {}
    sources = [data["train"], data["eval"], *(data["corpus"] or {}).get("sources", [])]
    for part, key in (
        *((s, "path") for s in sources),
        (data["augment"], "vectors"),
        (content["teacher"], "model"),
        (student, "model"),
    ):
        if part and part.get(key) and (key != "model" or Path(part[key]).is_absolute()):
            part[key] = Path(part[key]).name
    return Recipe.model_validate(content)
