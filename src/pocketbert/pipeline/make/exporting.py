"""The step that exports model files, with its parity gate."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from pocketbert.core.compare.parity import Parity, build_probe, compare, worst_of
from pocketbert.core.compare.sample_texts import sample_pairs
from pocketbert.core.disk.files import copy_path, write_json
from pocketbert.core.formats import FORMATS
from pocketbert.core.host.progress import say, waiting
from pocketbert.core.models.folder import ModelFolder
from pocketbert.core.predict.predictor import PROBABILITIES, Predictor
from pocketbert.core.predict.scored import ScoredPredictor
from pocketbert.core.predict.tokenization import Text, TextTokenizer
from pocketbert.core.predict.torch_predictor import TorchPredictor
from pocketbert.core.tasks import Task
from pocketbert.core.types import Format
from pocketbert.pipeline.formats.model_files import ModelFile
from pocketbert.pipeline.formats.place import bounds_of, place_of
from pocketbert.pipeline.formats.run_model import RunModel
from pocketbert.pipeline.formats.weight_schemes import weights_of
from pocketbert.pipeline.make.outliers import outlier_line, write_outliers
from pocketbert.pipeline.make.roles import check_names, write_weights
from pocketbert.pipeline.reference import (
    check_spread,
    drawn_inputs,
    own_texts,
    reference_model,
    sample_batches,
    sentence_batches,
    takes_both,
)
from pocketbert.runtime.engines import open_file

PARITY_FILE = "parity.json"
REFERENCE = "transformers"


def make_export(
    model: RunModel,
    files: Sequence[ModelFile],
    texts: Sequence[Text],
    destination: Path,
    ready: Mapping[str, Path] | None = None,
) -> Sequence[str]:
    """Write one format's files, and compare wrapper and files with the untouched model.

    Args:
        model: What to export.
        files: What to write, all of one format.
        texts: Real texts of the data.
        destination: Folder to write into.
        ready: Files of the same model to take instead of exporting anew, by path in the artefact folder.

    Returns:
        One line for each comparison that failed.

    Raises:
        InputError: If the model answers every text alike.
    """
    from pocketbert.export.prepare import PreparedPredictor, prepare

    place, family = place_of(files[0].format), model.folder.family
    reference = reference_model(model.folder, model.task)
    probed = probe_texts(model.folder, model.task, texts, model.tokenizer)
    name = "student" if model.recipe.student else model.recipe.teacher.model
    check_spread(reference, model.tokenizer, probed, name)
    samples, sentences = sample_batches(model.tokenizer, probed), sentence_batches(model.task, model.tokenizer)
    layout = place.layout(model.recipe)
    module = prepare(reference.model, family, model.task, place.format, layout, reference.pooling, samples, sentences)
    outliers = outlier_line(write_outliers(destination, module))
    weights = weights_of(module, place.exported_scheme(model.recipe))
    check_names(model.recipe.quantize, weights, place.format)
    given, results = ready or {}, list[Parity]()
    if any(f.path not in given for f in files):
        if outliers:
            say(f"  {outliers}")
        prepared = PreparedPredictor(module, family, model.task)
        results.append(_parity(model, reference, probed, prepared, "prepared module"))
    for file in files:
        path = destination / Path(file.source).name
        if file.path in given:
            copy_path(given[file.path], path)
        else:
            with waiting(file.path):
                place.write(model, module, file, path)
        made = open_file(path, file.format)
        found = _parity(model, reference, probed, made, file.path, bounds_of(file).loss)
        results.append(found)
        say(
            f"  {file.path}: differs from {found.reference} by {found.worst:.1e} of the logits' spread, "
            f"allowed {found.bound:.0e}; {len(found.shapes)} input shapes"
        )
    write_weights(destination, weights, [destination / Path(f.source).name for f in files], place.format)
    write_json(destination / PARITY_FILE, [json.loads(r.model_dump_json()) for r in results])
    return [parity_failure(r) for r in results if not r.passed]


def _parity(
    model: RunModel,
    reference: TorchPredictor,
    texts: Sequence[Text],
    subject: Predictor,
    name: str,
    loss: float = 1.0,
) -> Parity:
    """Compare a module or a file with the untouched model, each group of its outputs, and keep the worst result."""
    task, recipe = model.task, model.recipe
    bound = (recipe.export.atol or model.folder.family.parity_atol) * loss
    inside = PROBABILITIES in subject.outputs
    like: Predictor = ScoredPredictor(reference, task.score) if inside else reference
    groups = [(PROBABILITIES,)] if inside else [g for g in task.compared if g[0] in subject.outputs]
    made, longest = [], max(subject.lengths, default=model.tokenizer.max_length)
    drawn = drawn_inputs(reference, model.tokenizer, model.folder.family.uses_segments, task, longest)
    for names in groups:
        probe = build_probe(like, model.tokenizer, texts, recipe.export.lengths, task, names, subject.lengths, drawn)
        made.append(compare(subject, name, REFERENCE, probe, names, bound))
    return worst_of(made)


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
