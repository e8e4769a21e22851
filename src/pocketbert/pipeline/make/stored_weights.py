"""The weights in an exported file with their roles, wherever the file is: in its run folder, or in an artefact folder."""

from __future__ import annotations

from pathlib import Path

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families.digests import digest_of
from pocketbert.core.families.roles import WeightRole
from pocketbert.core.types import Format
from pocketbert.pipeline.formats.place import place_of
from pocketbert.pipeline.formats.run_model import RunModel
from pocketbert.pipeline.formats.weight_schemes import weights_of
from pocketbert.pipeline.make.roles import all_weights
from pocketbert.pipeline.reference import own_texts, reference_model, sample_batches, sentence_batches


def stored_weights(model: RunModel, format: Format, path: Path) -> list[WeightRole]:
    """List the weights in an exported file with their roles.

    Args:
        model: What it was exported from.
        format: Its format.
        path: The file.

    Raises:
        InputError: If the file has large weights that are not those of the model as it is prepared now.
    """
    from pocketbert.quantize import weight_types, weights

    known, stored = all_weights(model.run, format) or _prepared(model, format), float_digests(path, format)
    digests = {w.digest for w in known}
    large = {u.name for u in weight_types(path, format).uses if u.numbers >= weights.SMALL and u.name in stored}
    lost = [name for name in large if stored[name] not in digests]
    if lost:
        what = f"has weights without a role: {', '.join(sorted(lost)[:4])}; another version exported it."
        raise InputError(Problem(str(path), what, "Export the model again: pocketbert export -m MODEL -o FOLDER"))
    return [w for w in known if w.digest in set(stored.values())]


def float_digests(path: Path, format: Format) -> dict[str, str]:
    """Return the digest of every matrix that a file holds in floats, by its name in the file."""
    from pocketbert.quantize import stored_numbers

    floats = ((name, numbers) for name, numbers in stored_numbers(path, format) if numbers.dtype.kind == "f")
    return {name: digest for name, numbers in floats if (digest := digest_of(numbers)) is not None}


def _prepared(model: RunModel, format: Format) -> list[WeightRole]:
    """Prepare the model as an export does, and list the weights of the module."""
    from pocketbert.export.prepare import prepare

    place, family, reference = place_of(format), model.folder.family, reference_model(model.folder, model.task)
    layout, samples = (
        place.layout(model.recipe),
        sample_batches(model.tokenizer, own_texts(model.task, model.tokenizer)),
    )
    sentences = sentence_batches(model.task, model.tokenizer)
    module = prepare(reference.model, family, model.task, format, layout, reference.pooling, samples, sentences)
    return weights_of(module, place.exported_scheme(model.recipe))
