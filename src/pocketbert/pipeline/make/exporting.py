"""The step that exports model files, with its parity gate."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from pocketbert.core.compare.parity import Parity, build_probe, compare, worst_of
from pocketbert.core.compare.sample_texts import sample_pairs
from pocketbert.core.disk.files import copy_path, write_json
from pocketbert.core.formats import FORMATS
from pocketbert.core.host.progress import say
from pocketbert.core.models.folder import ModelFolder, open_model_folder
from pocketbert.core.predict.predictor import PROBABILITIES, Predictor
from pocketbert.core.predict.scored import ScoredPredictor
from pocketbert.core.predict.tokenization import Text, TextTokenizer
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.tasks import Task, task_of
from pocketbert.core.types import Format, Layout, Scheme
from pocketbert.pipeline.formats.model_files import ModelFile
from pocketbert.pipeline.formats.writing import ExportJob, write_file
from pocketbert.pipeline.reference import own_texts, reference_model, takes_both
from pocketbert.runtime.engines import open_file

PARITY_FILE = "parity.json"
REFERENCE = "transformers"
FP16_LOSS = 300.0
"""How many times the bound of fp32 a file may be off that stores and computes in fp16: 2**13 times less precision, of which
rounding errors that cancel take most back."""


def make_export(
    recipe: Recipe,
    weights: Path,
    texts: Sequence[Text],
    length: int,
    destination: Path,
    files: Sequence[ModelFile],
    ready: Mapping[str, Path] | None = None,
) -> Sequence[str]:
    """Write one format's files, and compare wrapper and files with the untouched model.

    Args:
        recipe: What to do.
        weights: Folder of the model.
        texts: Real texts of the data.
        length: Longest input in tokens.
        destination: Folder to write into.
        files: What to write.
        ready: Files of the same model to take instead of exporting anew, by path in the artefact folder.

    Returns:
        One line for each comparison that failed.
    """
    from pocketbert.export.prepare import PreparedPredictor, prepare

    folder = open_model_folder(str(weights))
    task, family = task_of(recipe.task), folder.family
    tokenizer = TextTokenizer(weights, length)
    reference = reference_model(folder, task)
    layout = recipe.export.coreml.layout if files[0].format is Format.COREML else Layout.PLAIN
    probed = probe_texts(folder, task, texts, tokenizer)
    rows = tokenizer.encode(probed)
    samples = [tokenizer.pad(rows[i : i + 8]) for i in range(0, len(rows), 8)]
    module = prepare(reference.model, family, task, files[0].format, layout, reference.pooling, samples)
    bound = recipe.export.atol or family.parity_atol
    results = []

    def check(subject: Predictor, name: str, loss: float = 1.0) -> None:
        inside = PROBABILITIES in subject.outputs
        like: Predictor = ScoredPredictor(reference, task.score) if inside else reference
        groups = [(PROBABILITIES,)] if inside else [g for g in task.compared if g[0] in subject.outputs]
        made = []
        for names in groups:
            probe = build_probe(
                like,
                tokenizer,
                probed,
                recipe.export.lengths,
                task,
                names,
                subject.lengths,
            )
            made.append(compare(subject, name, REFERENCE, probe, names, bound * loss))
        results.append(worst_of(made))

    given = ready or {}
    if any(f.path not in given for f in files):
        check(PreparedPredictor(module, family, task), "prepared module")
    for file in files:
        path = destination / Path(file.source).name
        if file.path in given:
            copy_path(given[file.path], path)
        else:
            write_file(ExportJob(recipe, folder, task, module, tokenizer, length), file, path)
        check(open_file(path, file.format), file.path, FP16_LOSS if file.scheme is Scheme.FP16 else 1.0)
        worst = results[-1]
        say(
            f"  {file.path}: parity {worst.worst:.1e} of the logits' spread, bound {worst.bound:.0e}, {len(worst.shapes)} shapes"
        )
    write_json(destination / PARITY_FILE, [json.loads(r.model_dump_json()) for r in results])
    return [parity_failure(r) for r in results if not r.passed]


def parity_failure(result: Parity) -> str:
    """One line on a failed comparison."""
    hint = " The mask seems to be ignored." if result.worst > 0.3 * result.mask_effect else ""
    return (
        f"parity of {result.subject}: differs from {result.reference} by {result.worst:.3g} of the logits' spread, "
        f"allowed {result.bound:.0e}.{hint}"
    )


def read_parity(folder: Path) -> list[Parity]:
    """Comparisons that an export step made."""
    path = folder / PARITY_FILE
    return [Parity.model_validate(p) for p in json.loads(path.read_text())] if path.is_file() else []


def probe_texts(folder: ModelFolder, task: Task, texts: Sequence[Text], tokenizer: TextTokenizer) -> list[Text]:
    """Real texts of every kind: the data's, the project's own, and pairs where segments matter."""
    pairs = list(sample_pairs()[:8]) if folder.family.uses_segments and takes_both(task) else []
    return [*texts[:16], *own_texts(task, tokenizer), *pairs]


def libraries(format: Format) -> tuple[str, ...]:
    """Distributions whose versions decide what a format's files look like."""
    return ("torch", "transformers", *FORMATS[format].libraries)
