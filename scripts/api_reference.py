"""Write docs/api-reference.md from signatures and docstrings: one entry per public name, never out of date.

Reads the source through griffe; nothing of PocketBERT is imported.

Run: python scripts/api_reference.py > docs/api-reference.md
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import griffe

INTRO = """# API reference

Generated from the source by `scripts/api_reference.py`. Everything raises
[`PocketBertError`](#pocketbertcoreerrorspocketberterror) or one of its four kinds; the [exit codes](how-it-works.md#exit-codes) of the command line
are theirs. The sections of a recipe are in the [recipe reference](recipe-reference.md).
"""

WIDTH = 110

SECTIONS: dict[str, tuple[str, list[str]]] = {
    "Opening an artefact folder": (
        "The core install is enough: neither torch nor transformers.",
        ["runtime.model.load", "runtime.model.Model"],
    ),
    "Answers": (
        "What `Model.predict` returns: one class per task, each with `truncated`, `fields()` and `line()`.",
        [f"core.predict.answers.{n}" for n in (
            "Answer", "Prediction", "Labelling", "Value", "Spans", "FoundSpan", "Excerpt", "Filled", "Guess", "Embedding")],
    ),
    "Verbs": ("`from pocketbert import api`: the commands as functions.", []),
    "Errors": (
        "",
        [*(f"core.errors.{n}" for n in (
            "PocketBertError", "InputError", "Problem", "GateError", "MachineError", "MissingBackendError")),
         "distill.training.finite.NotFiniteError"],
    ),
    "Losses": (
        "Pure functions of tensors, for any training loop.",
        [*(f"distill.losses.common.{n}" for n in ("soft_targets", "hard_targets", "hidden_mse", "attention_kl", "mean_over_layers")),
         *(f"distill.losses.general.{n}" for n in ("token_soft_targets", "masked_lm", "cosine_distance")),
         *(f"distill.losses.layers.{n}" for n in ("attention_score_mse", "reference_score_mse", "reference_state_mse", "sum_over_layers")),
         *(f"distill.losses.transfer.{n}" for n in ("feature_transfer", "FeatureTransfer", "pretraining_distillation")),
         "distill.losses.general.next_sentence", "distill.losses.relations.relation_kl", "distill.losses.relations.relation_heads",
         "distill.losses.task.gold_loss", "distill.losses.task.soft_loss"],
    ),
    "Objectives": (
        "A model and a batch in, weighted terms out; `weights` says how they are summed.",
        ["distill.training.terms.Term", "distill.training.terms.Counting", "distill.methods.task.TaskDistillation",
         "distill.methods.distilbert.DistilBertDistillation", "distill.methods.tinybert.TinyBertDistillation", "distill.methods.minilm.MiniLmDistillation",
         "distill.methods.mobilebert.MobileBertDistillation", "distill.methods.pretraining.Pretraining",
         "distill.methods.finetune.Finetune", "distill.training.loop.train"],
    ),
    "Signals of a teacher": (
        "",
        ["distill.students.layer_map.layer_map", "distill.capture.recorder.record_attention", "distill.capture.recorder.AttentionRecorder",
         "distill.capture.recorder.QueryKeyValue",
         "distill.teacher.signals.Wanted", "distill.teacher.signals.Taught", "distill.teacher.signals.OnlineTeacher",
         "distill.teacher.cache.build.cached_teacher"],
    ),
    "Students": (
        "",
        [f"distill.{n}" for n in ("students.build.build_student", "students.projection.attach_projection", "students.projection.detach_projection",
                                  "students.projection.projected", "students.mobilebert.transfer_student",
                                  "students.mobilebert.mini_teacher_config", "teacher.state_adapter.fit_adapter", "teacher.state_adapter.StateAdapter",
                                  "teacher.state_adapter.reduce_embeddings")],
    ),
    "MobileBERT's course": (
        "Which layers learn when, and how fast; an objective brings its course with it.",
        [f"distill.{n}" for n in ("methods.transfer_phases.progressive", "methods.transfer_phases.joint", "methods.transfer_phases.auxiliary",
                                  "methods.transfer_phases.TransferPhases", "methods.transfer_course.TransferCourse", "training.lamb.Lamb")],
    ),
    "Text of general stages": (
        "",
        [f"distill.{n}" for n in ("text.general_set.GeneralSet", "text.masking.kinds.masking_of", "text.masking.masking.MaskingScheme", "text.masking.masking.Masking",
                                  "text.masking.masking.Masked", "text.pairs.pairs_of", "text.pairs.Pairs")],
    ),
    "Families": (
        "A row of your own makes a system known that the table lacks and whose classes work like those of a served one.",
        [f"core.families.{n}" for n in ("register_family", "family_of", "all_families", "Family")],
    ),
}  # fmt: skip
"""Title to (one sentence, names below ``pocketbert``)."""

ALIASES = {
    "runtime.model.load": "load",
    "runtime.model.Model": "Model",
    "core.predict.answers.Prediction": "Prediction",
}
"""Names that stand in the package itself, where users import them."""


def public_names(package: Any) -> dict[str, list[str]]:
    """Section titles with the names in them; verbs are what ``api`` declares."""
    out = {title: list(names) for title, (_, names) in SECTIONS.items()}
    out["Verbs"] = [f"api.{name}" for name in sorted(package["api"].exports)]
    return out


def shown_name(name: str) -> str:
    """The name as users import it."""
    return f"pocketbert.{ALIASES.get(name, name)}"


def signature(title: str, node: Any) -> str:
    """A call, on one line where it fits."""
    parts, star = [], False
    for parameter in node.parameters:
        if parameter.name == "self":
            continue
        if parameter.kind is griffe.ParameterKind.keyword_only and not star:
            parts.append("*")
            star = True
        text = {"variadic positional": "*", "variadic keyword": "**"}.get(parameter.kind.value, "") + parameter.name
        if parameter.annotation is not None:
            text += f": {parameter.annotation}"
        if parameter.default is not None and not text.startswith("*"):
            text += f" = {parameter.default}" if parameter.annotation is not None else f"={parameter.default}"
        parts.append(text)
    returns = f" -> {node.returns}" if node.name != "__init__" else ""
    line = f"{title}({', '.join(parts)}){returns}"
    if len(line) <= WIDTH:
        return line
    return f"{title}(\n" + "".join(f"    {p},\n" for p in parts) + f"){returns}"


def _cell(text: str) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")


def _table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    head = "| " + " | ".join(heads) + " |"
    return [head, "|" + "---|" * len(heads), *("| " + " | ".join(row) + " |" for row in rows), ""]


def described(node: Any) -> Iterator[str]:
    """The docstring as Markdown."""
    if node.docstring is None:
        raise SystemExit(f"{node.path} has no docstring")
    for part in node.docstring.parse("google"):
        kind, value = part.kind.value, part.value
        if kind == "text":
            yield from (value.replace("``", "`"), "")
        elif kind in ("parameters", "attributes", "other parameters"):
            # of attributes, griffe knows the type from the class
            rows = [(f"`{p.name}`", _cell(p.description).replace("``", "`")) for p in value]
            yield from _table(("argument" if kind == "parameters" else "attribute", "meaning"), rows)
        elif kind in ("returns", "yields"):
            yield from (
                f"{kind.capitalize()}: " + " ".join(_cell(r.description) for r in value).replace("``", "`"),
                "",
            )
        elif kind == "raises":
            told = "; ".join(f"`{r.annotation}`: {_cell(r.description).rstrip('.')}" for r in value)
            yield from (f"Raises: {told}.".replace("``", "`"), "")
        elif kind == "admonition":
            yield from (f"{part.title}: {_cell(value.description)}", "")
        else:
            raise SystemExit(f"{node.path}: a docstring section of kind '{kind}' that this script does not know")


def entry(name: str, package: Any) -> Iterator[str]:
    """One public name."""
    node = package[name]
    title = shown_name(name)
    yield from (f"### `{title}`", "")
    short = title.rsplit(".", 1)[-1]
    if node.is_function:
        yield from ("```python", signature(short, node), "```", "")
    elif "__init__" in node.members and "dataclass" not in node.labels:
        yield from ("```python", signature(short, node["__init__"]), "```", "")
    yield from described(node)
    if not node.is_class:
        return
    for member in node.members.values():
        if member.name.startswith("_") and member.name != "__call__":
            continue
        if member.docstring is not None and member.docstring.value.startswith("See `"):
            continue  # said at the protocol
        if member.is_function:
            call = short if member.name == "__call__" else f"{short}.{member.name}"
            yield from ("```python", signature(call[:1].lower() + call[1:], member), "```", "")
            yield from described(member)
        elif member.is_attribute and "property" in member.labels:
            told = " ".join(described(member)).split()
            yield from (f"`.{member.name}`: {' '.join(told)}", "")


def page(package: Any) -> str:
    """The whole page, from the parsed package."""
    lines = [INTRO]
    for title, names in public_names(package).items():
        lines += [f"## {title}", ""]
        sentence = SECTIONS[title][0]
        lines += [sentence, ""] if sentence else []
        for name in names:
            lines += entry(name, package)
    return "\n".join(lines).rstrip("\n") + "\n"


if __name__ == "__main__":
    print(page(griffe.load("pocketbert", docstring_parser="google")), end="")
