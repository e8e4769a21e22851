"""Write the artefact folder of a run: the files that passed every gate, what apps need with them, and the list of it all.

`check_packable` refuses a run whose files did not pass or have changed since; `make_pack` writes the folder.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pocketbert.core.artefacts import (
    ARTEFACTS_FILE,
    CARD_FILE,
    Artefacts,
    FileRecord,
    Kind,
    ModelRecord,
    Processing,
    read_checked_config,
    write_artefacts,
)
from pocketbert.core.compare.golden import LIBRARY_FILE, SIMULATED_FILE, read_library, read_simulated
from pocketbert.core.disk.files import copy_path, path_bytes, sha256_path, write_json
from pocketbert.core.errors import GateError
from pocketbert.core.heads.table import label_thresholds
from pocketbert.core.host.hardware import describe_machine
from pocketbert.core.host.system import installed_versions
from pocketbert.core.models.tokenizers import SENTENCE_FILE, TOKENIZER_FILES
from pocketbert.core.predict.inputs import ENTITIES_FILE
from pocketbert.core.predict.sentence_settings import (
    DEFAULT_POOLING,
    LAYER_FOLDERS,
    MODULES_FILE,
    POOLING_FILE,
    SETTINGS_FILE,
    read_dimensions,
    read_pooling,
    read_similarity,
)
from pocketbert.core.predict.tokenization import TextTokenizer, read_pad_id
from pocketbert.core.recipe.file import LOCAL_PATH_KEYS, PATH_KEYS, dump_recipe
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.tasks import LabelKind, TaskName
from pocketbert.core.types import Status
from pocketbert.pipeline.formats.base import (
    RunModel,
    choose_default_file,
    explain_absent_files,
    format_place,
)
from pocketbert.pipeline.formats.weight_roles import resolve_file_weights
from pocketbert.pipeline.gates.confidence import SELFTEST_FILE, write_selftest
from pocketbert.pipeline.gates.library import check_library_answers, check_library_texts
from pocketbert.pipeline.gates.verify import open_artefact_file
from pocketbert.pipeline.learn.answers import describe_columns
from pocketbert.pipeline.learn.finishing import read_training
from pocketbert.pipeline.make.measuring import is_measured
from pocketbert.pipeline.make.model_files import PARITY_FILE, read_parity
from pocketbert.pipeline.phone.card import render_card
from pocketbert.pipeline.phone.card_figures import TEACHER_SCORE, measured_figures
from pocketbert.pipeline.phone.recording import FACTS_FILE, write_facts
from pocketbert.pipeline.phone.report_facts import card_facts, read_benchmark, read_search, report_data, teacher_score
from pocketbert.pipeline.phone.tokenizers.sources import java_gates, pack_sources
from pocketbert.pipeline.results import Gate, Verification, read_verification
from pocketbert.runtime.engines import describe_file

_TOKENIZER_FILES = ("tokenizer.json", *TOKENIZER_FILES)
_VECTOR_FILES = (MODULES_FILE, POOLING_FILE, SENTENCE_FILE, SETTINGS_FILE)
"""What sentence-transformers reads beside the model."""
_KINDS = {
    "config.json": Kind.CONFIG,
    ENTITIES_FILE: Kind.CONFIG,
    "recipe.resolved.yaml": Kind.CONFIG,
    "model.safetensors": Kind.WEIGHTS,
    "golden.jsonl": Kind.GOLDEN,
    "golden_tokens.jsonl": Kind.GOLDEN,
    LIBRARY_FILE: Kind.GOLDEN,
    SIMULATED_FILE: Kind.FIGURES,
    SELFTEST_FILE: Kind.GOLDEN,
    CARD_FILE: Kind.DOCUMENT,
    "parity.json": Kind.FIGURES,
    "benchmark.json": Kind.FIGURES,
    FACTS_FILE: Kind.FIGURES,
    **dict.fromkeys(_TOKENIZER_FILES, Kind.TOKENIZER),
    **dict.fromkeys(_VECTOR_FILES, Kind.CONFIG),
}


@dataclass(frozen=True)
class Origin:
    """Digests of what an artefact folder was made from, to recognise a folder that need not be made again.

    Attributes:
        weights: sha256 of the weights that the run started from.
        everything: Digest of recipe, model, data and library versions. If it is equal, the same folder would be
            written.
        accepted: Steps whose results were made with other library versions and kept (--resume-anyway), each with the
            versions.
    """

    weights: str
    everything: str
    accepted: tuple[str, ...] = ()


def check_packable(model: RunModel) -> Verification:
    """Check that all files of a run passed verification and have not changed since; return the verification.

    Raises:
        GateError: Naming each file that did not pass or has changed, and the command to run.
    """
    run = model.run
    path = run / "verify.json"
    if not path.is_file():
        raise GateError([f"{run} was never verified; run: pocketbert verify -m {run}"])
    result = read_verification(path)
    failures = result.failures
    current = sources(model)
    failures += [
        f"{name}: not there, though it was when the run was verified" for name in result.files if name not in current
    ]
    for name, path in current.items():
        if sha256_path(path) != result.files.get(name):
            failures.append(f"{path.relative_to(run)}: changed since it was verified; run: pocketbert verify -m {run}")
    if result.status is not Status.PASSED or failures:
        raise GateError([*failures, "Nothing was packed."])
    return result


def make_pack(
    model: RunModel, pair: bool, origin: Origin, destination: Path, confusions: Sequence[tuple[str, str, int]] = ()
) -> Sequence[str]:
    """Write the artefact folder of a run, and compare it with the library that the checkpoint was made for.

    ``artifacts.json`` is written last.

    Args:
        model: The exported model with its files.
        pair: Whether the model's inputs are pairs of texts.
        origin: Digests of the inputs that the folder is made from.
        destination: The folder to write.
        confusions: Pairs of labels that the default file confuses most on the evaluation rows, as (gold, predicted,
            number of rows); they are shown in the report.

    Returns:
        One line for each check in which the packed folder gave other answers than the library.

    Raises:
        GateError: If a file did not pass verification, has changed since, or is not the one that ``benchmark.json`` measured.
    """
    result, recipe, run = check_packable(model), model.recipe, model.run
    for name, path in sources(model).items():
        (destination / name).parent.mkdir(exist_ok=True)
        copy_path(path, destination / name)
    write_json(
        destination / PARITY_FILE,
        [json.loads(p.model_dump_json()) for f in recipe.export.formats for p in read_parity(run / f)],
    )
    of_layers = [name for name in sources(model) if name.startswith(tuple(f"{folder}/" for folder in LAYER_FOLDERS))]
    kinds = {**_KINDS, **{n: Kind.WEIGHTS if n.endswith(".safetensors") else Kind.CONFIG for n in of_layers}}
    aliases = dict[str, str]()
    for format in recipe.export.formats:
        own = [f for f in model.files if f.format is format]
        extras = format_place(format).pack(own, model.folder, destination)
        kinds, aliases = {**kinds, **extras.kinds}, {**aliases, **extras.aliases}
    if (run / "benchmark.json").is_file() and recipe.benchmark is not None:
        _check_measured(run, result, [f.path for f in model.files if is_measured(f, recipe)])
        shutil.copyfile(run / "benchmark.json", destination / "benchmark.json")
    (destination / "recipe.resolved.yaml").write_text(dump_recipe(portable(recipe)), encoding="utf-8")
    shown = report_data(portable(recipe), run, "", list(confusions))
    write_facts(shown, destination)
    artefacts = _artefacts(model, pair, result, origin)
    tools = pack_sources(destination, artefacts.processing, read_pad_id(destination))
    artefacts = artefacts.model_copy(update={"absent": {**artefacts.absent, **tools.absent}})
    kinds |= tools.kinds
    write_selftest(destination, artefacts)
    artefacts = _with_files(artefacts, destination, kinds, aliases)
    tables = {row.path: row.roles for row in shown.rows if row.roles}
    facts = card_facts(model, measured_figures(destination, artefacts), tables)
    (destination / CARD_FILE).write_text(render_card(artefacts, facts), encoding="utf-8")
    artefacts = _with_files(artefacts, destination, kinds, aliases)
    write_artefacts(destination, artefacts)
    return [g.failure for g in _library_gates_of_pack(destination, artefacts) if not g.passed]


def sources(model: RunModel) -> dict[str, Path]:
    """Return the run's files that are copied unchanged into the artefact folder, by their paths there."""
    paths = {file.path: model.source(file) for file in model.files}
    names = ("config.json", "model.safetensors", ENTITIES_FILE, *_TOKENIZER_FILES, *_VECTOR_FILES)
    layers = [f"{folder}/{name}" for folder in LAYER_FOLDERS for name in ("config.json", "model.safetensors")]
    paths |= {name: model.weights / name for name in (*names, *layers)}
    recorded = ("golden.jsonl", "golden_tokens.jsonl", LIBRARY_FILE, SIMULATED_FILE)
    paths |= {name: model.run / "golden" / name for name in recorded}
    return {name: path for name, path in paths.items() if path.exists()}


def _library_gates_of_pack(folder: Path, artefacts: Artefacts) -> list[Gate]:
    """Compare the token ids and answers of a packed folder with the checkpoint's library, and return the gates.

    The folder is read as an app reads it. Ids are compared on all texts, answers on a few: the file was verified
    before, and wrong settings of the folder are wrong for every text.
    """
    tokenizer, library = TextTokenizer(folder, artefacts.processing.max_length), read_library(folder)
    config, simulated = read_checked_config(folder, artefacts), read_simulated(folder)
    subject = open_artefact_file(folder, artefacts, artefacts.default_model(), config, simulated, tokenizer)
    return [
        check_library_texts(library, tokenizer, [subject]),
        *check_library_answers(library, artefacts.head(), len(artefacts.labels), subject, all_rows=False),
        *java_gates(folder, artefacts, library),
    ]


def _with_files(
    artefacts: Artefacts, destination: Path, kinds: Mapping[str, Kind], aliases: Mapping[str, str]
) -> Artefacts:
    """Return the content of ``artifacts.json`` with a record of every file in the folder.

    Args:
        artefacts: Content with records of the model files.
        destination: The folder.
        kinds: Kind of each other file, by its path.
        aliases: Paths of model files that also have another name, by that name.
    """
    records = [*artefacts.models(), *_file_records(destination, artefacts.models(), kinds, aliases)]
    return artefacts.model_copy(update={"files": sorted(records, key=lambda r: r.path)})


def _check_measured(run: Path, result: Verification, files: Sequence[str]) -> None:
    """Check that ``benchmark.json`` has a measurement of each packed file.

    Raises:
        GateError: Naming the files without one.
    """
    benchmark = read_benchmark(run)
    measured = {v.sha256 for s in (benchmark, *benchmark.others) for v in s.variants} if benchmark else set()
    unmeasured = [name for name in files if result.files[name] not in measured]
    if unmeasured:
        raise GateError([f"benchmark.json measured other files than {', '.join(unmeasured)}; run the recipe again."])


def _artefacts(model: RunModel, pair: bool, result: Verification, origin: Origin) -> Artefacts:
    """Return the content of ``artifacts.json`` with records of the model files only; other files are added later."""
    recipe, folder = model.recipe, model.folder
    return Artefacts(
        name=recipe.name,
        task=recipe.task,
        family=folder.family.name,
        form=folder.family.form.name if folder.family.form else None,
        heads=None if model.folder.heads is None else {h.name: h.task.name for h in model.task.heads},
        labels=list(model.labels),
        pair=pair,
        processing=_processing(model),
        files=[*_model_records(model, result)],
        absent=explain_absent_files(recipe, folder.path),
        lineage=_lineage(model, model.folder.licence, origin, teacher_score(recipe, result)),
        versions=installed_versions(),
        machine=describe_machine().summary,
        made_from=origin.everything,
        search=read_search(model.run, model.files),
    )


def _model_records(model: RunModel, result: Verification) -> list[ModelRecord]:
    """Return a record of each model file: digest, signature, scores, and the schemes of its weights."""
    default = choose_default_file(model.files)
    return [
        ModelRecord(
            path=f.path,
            sha256=result.files[f.path],
            bytes=path_bytes(model.source(f)),
            format=f.format,
            scheme=f.scheme,
            client=f.client,
            runtime=f.runtime,
            default=f is default,
            signature=describe_file(model.source(f), f.format, f.runtime).signature,
            minimum=format_place(f.format).minimum(f, model.source(f)),
            status=Status.PASSED,
            lineage=model.folder.sha256,
            scores=result.scores.get(f.path, {}),
            seen_right=[result.seen_right[f.path]] if f.path in result.seen_right else [],
            confidence=result.confidence.get(f.path),
            weights=resolve_file_weights(model, f),
        )
        for f in model.files
    ]


def _lineage(model: RunModel, licence: str, origin: Origin, score: str = "") -> dict[str, str]:
    """Return the model card's entries on where the weights come from: teacher, digests, licence, training data.

    Local folders and files are named without their paths.

    Args:
        model: The exported model.
        licence: Licence of the weights.
        origin: Digests of the inputs of the run.
        score: The teacher's score in words; empty to leave it out.
    """
    recipe = portable(model.recipe)
    teacher, train = recipe.teacher, recipe.data.train
    taught = {"teacher": teacher.model}
    if columns := describe_columns(recipe):
        role = "teacher of the other heads" if recipe.asks_model else "student's start"
        taught = {"teacher": columns, role: teacher.model}
    lineage = {
        **taught,
        **({"revision": teacher.revision} if teacher.revision else {}),
        **({"adapters": ", ".join(teacher.adapters)} if teacher.adapters else {}),
        "source_sha256": origin.weights,
        "weights_sha256": model.folder.sha256,
        "licence": licence,
        **({TEACHER_SCORE: score} if score else {}),
    }
    if train is not None:
        lineage["training data"] = train.title
    if origin.accepted:
        lineage["made with other library versions (--resume-anyway)"] = "; ".join(origin.accepted)
    return lineage


def _processing(model: RunModel) -> Processing:
    """Return how clients turn texts into inputs, and outputs into answers: lengths, padding, thresholds, prompts."""
    task, folder, answer = model.task, model.folder, model.recipe.answer
    own: dict[str, object] = {}
    if task.labels is LabelKind.NAMES:
        tuned = read_training(folder.path).thresholds
        chosen = answer if tuned is None else answer.model_copy(update={"thresholds": tuned})
        own["thresholds"] = list(label_thresholds(chosen, len(folder.labels or [])))
    if answer.unknown is not None:
        own |= {"unknown": answer.unknown_below, "unknown_accuracy": answer.unknown_accuracy}
    if task.labels is LabelKind.ANSWERS:
        own |= {
            "stride": answer.stride,
            "answer_length": answer.answer_length,
            "null_answers": answer.null_answers,
            "pair_order": ["question", "context"],
        }
    if model.tokenizer.splits_punctuation and LabelKind.SPANS in (
        task.labels,
        *(head.task.labels for head in task.heads),
    ):
        own["splits_punctuation"] = True
    if task.labels is LabelKind.CHOICE:
        own["pair_order"] = ["question", "choice"]
    if task.name is TaskName.FEATURE_EXTRACTION:
        pooling = read_pooling(folder.path) or DEFAULT_POOLING
        own |= {
            "pooling": pooling.name,
            "vector_layers": [layer.title for layer in pooling.layers],
            "normalize": pooling.normalize,
            "similarity": answer.similarity or read_similarity(folder.path),
            "dimensions": answer.dimensions or read_dimensions(folder.path),
        }
    prompts = model.tokenizer.prompts
    if prompts.named:
        own |= {"prompts": dict(prompts.named), "default_prompt": prompts.default}
    return Processing(
        max_length=model.length,
        padding_side=folder.family.padding_side,
        truncation_side=model.tokenizer.truncation_side,
        score=task.score,
        **own,
    )


def _file_records(
    destination: Path, models: Sequence[ModelRecord], kinds: Mapping[str, Kind], aliases: Mapping[str, str]
) -> list[FileRecord]:
    """Return records of all files in a folder except model files, and of the second names (aliases) of model files."""
    known = {r.path: r for r in models}
    packages = [destination / name for name in known if (destination / name).is_dir()]
    out: list[FileRecord] = []
    for path in sorted(p for p in destination.rglob("*") if p.is_file()):
        name = path.relative_to(destination).as_posix()
        if name in known or name == ARTEFACTS_FILE or any(path.is_relative_to(p) for p in packages):
            continue
        if name in aliases:
            same = known[aliases[name]]
            out.append(same.model_copy(update={"path": name, "alias_of": same.path, "default": False, "scores": {}}))
        else:
            out.append(FileRecord.of(destination, name, kinds[name]))
    return out


def portable(recipe: Recipe) -> Recipe:
    """Return a copy of the recipe without a plan, in which local files are named without their folders on this machine."""
    content = recipe.model_dump(mode="json", by_alias=True, exclude={"planned"})
    return Recipe.model_validate(_name_without_folders(content))


def _name_without_folders(value: Any, key: str = "") -> Any:
    """Return a value of a recipe in which the paths, at any depth, are only the names of their files or folders.

    A model, an adapter or a data set is a path if it is absolute; other ones are names on the Hub.

    Args:
        value: The value.
        key: Key of the value, or of the list that it is an entry of.
    """
    if isinstance(value, dict):
        return {name: _name_without_folders(one, name) for name, one in value.items()}
    if isinstance(value, list):
        return [_name_without_folders(one, key) for one in value]
    if key not in PATH_KEYS or not isinstance(value, str):
        return value
    return Path(value).name if key in LOCAL_PATH_KEYS or Path(value).is_absolute() else value
