"""Write docs/api-reference.md from signatures and docstrings: one entry per public name, never out of date.

Reads the source through griffe; nothing of PocketBERT is imported.

Run: python scripts/api_reference.py > docs/api-reference.md
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import griffe

INTRO = """# API reference

Generated from the source by `scripts/api_reference.py`. It lists the facades: `pocketbert` for app developers, `pocketbert.api` with the verbs
of the command line, `pocketbert.distill` for researchers, `pocketbert.runtime` for single model files, and `pocketbert.plugins` for packages that add something. Deeper modules may change.
Everything raises [`PocketBertError`](#pocketbertpocketberterror) or one of its four kinds; the [exit codes](how-it-works.md#exit-codes) of the
command line are theirs. The sections of a recipe are in the [recipe reference](recipe-reference.md).
"""

WIDTH = 110

VERBS = "Verbs"

SECTIONS: dict[str, tuple[str, str]] = {
    "Opening an artefact folder": ("The core install is enough: neither torch nor transformers.", "load Model"),
    "Answers": (
        "`Model.predict` returns them: one class per task, each with `truncated`, `fields()` and `line()`.",
        "Answer Prediction Labelling Value Spans FoundSpan Excerpt Choice Filled Guess Embedding",
    ),
    VERBS: ("`from pocketbert import api`: the commands as functions.", ""),
    "Options and results of the verbs": (
        "",
        "ExportOptions AnswerOptions BenchmarkOptions PlannedStep RunResult Verification Gate BenchmarkResult DataReport AugmentCounts Diagnosis TeachOptions TeachReport",
    ),
    "Errors": (
        "",
        "PocketBertError InputError Problem GateError MachineError MissingBackendError ExitCode distill.NotFiniteError",
    ),
    "Losses": (
        "Pure functions of tensors, for any training loop.",
        "distill.soft_targets distill.hard_targets distill.hidden_mse distill.attention_kl distill.mean_over_layers "
        "distill.token_soft_targets distill.masked_lm distill.cosine_distance distill.attention_score_mse "
        "distill.reference_score_mse distill.reference_state_mse distill.sum_over_layers distill.feature_transfer "
        "distill.FeatureTransfer distill.pretraining_distillation distill.next_sentence distill.relation_kl "
        "distill.relation_heads distill.gold_loss distill.soft_loss",
    ),
    "Objectives": (
        "They take a model and a batch, and return weighted terms; `weights` says how to add these up.",
        "distill.Term distill.Counting distill.Objective distill.TaskDistillation distill.DistilBertDistillation "
        "distill.TinyBertDistillation distill.MiniLmDistillation distill.MobileBertDistillation distill.Pretraining distill.Finetune",
    ),
    "Training": (
        "The one loop that all methods use.",
        "distill.train distill.Outcome distill.Monitor distill.Validation distill.TrainData distill.TrainSet distill.Lamb",
    ),
    "Settings of stages": (
        "Objectives read them; their keys are in the [recipe reference](recipe-reference.md).",
        "distill.TaskStage distill.DistilBertStage distill.TinyBertGeneralStage distill.TinyBertIntermediateStage "
        "distill.TinyBertPredictionStage distill.MiniLmStage distill.MobileBertStage distill.Task distill.task_of",
    ),
    "Signals of a teacher": (
        "",
        "distill.layer_map distill.record_attention distill.AttentionRecorder distill.QueryKeyValue distill.Wanted "
        "distill.Taught distill.OnlineTeacher distill.cached_teacher",
    ),
    "Students": (
        "",
        "distill.build_student distill.attach_projection distill.detach_projection distill.projected distill.pruned "
        "distill.transfer_student distill.mini_teacher_config distill.fit_adapter distill.StateAdapter distill.reduce_embeddings",
    ),
    "MobileBERT's course": (
        "A course decides which layers learn when, and how fast; an objective brings its course.",
        "distill.progressive distill.joint distill.auxiliary distill.TransferPhases distill.TransferCourse",
    ),
    "Text of general stages": (
        "",
        "distill.GeneralSet distill.masking_of distill.MaskingScheme distill.Masking distill.Masked distill.pairs_of distill.Pairs",
    ),
    "Single model files": (
        "`pocketbert.runtime` opens one file with its engine, and computes Core ML packages on every system.",
        "runtime.Predictor runtime.CoremlPredictor runtime.Evaluator runtime.EvaluatorPrecision runtime.overflow_scan "
        "runtime.activation_statistics runtime.layer_differences runtime.TextTokenizer runtime.feed",
    ),
    "Families": (
        "`register_family` adds a row to the table of systems; [Extending](extending.md) shows the code that a row may name.",
        "register_family family_of all_families Family",
    ),
    "Recipes": ("", "Recipe"),
    "Plug-ins: families": (
        "`pocketbert.plugins` has the names for packages that add something; [Extending](extending.md) shows how they are used.",
        "plugins.register_family plugins.register_adapter plugins.register_capture plugins.register_layer_parts "
        "plugins.register_checkpoints plugins.register_class_change plugins.LayerParts plugins.CheckpointCode plugins.ClassChange "
        "plugins.ExportPlan plugins.TokenizerKind plugins.Objective plugins.bert_layer plugins.with_additive_mask plugins.active_recorder",
    ),
    "Plug-ins: methods": (
        "",
        "plugins.register_method plugins.Method plugins.MethodSource plugins.Stage plugins.StagePlace plugins.GeneralText plugins.Optimisation plugins.StageJob "
        "plugins.StageResult plugins.Needs plugins.Heads plugins.CarriedPart",
    ),
    "Plug-ins: formats and schemes": (
        "",
        "plugins.register_format plugins.register_format_place plugins.register_engine plugins.register_reader plugins.register_scheme "
        "plugins.Format plugins.FormatInfo plugins.FormatPlace plugins.Bounds plugins.Extras plugins.ModelFile plugins.RunModel "
        "plugins.Scheme plugins.Runtime plugins.SchemeRow plugins.Reader plugins.Plan plugins.ExpectedWeights",
    ),
    "Plug-ins: devices": (
        "",
        "plugins.register_device plugins.Device plugins.DeviceInfo plugins.Figure plugins.Provenance plugins.Connection plugins.OpenedFile "
        "plugins.Sample plugins.Watch",
    ),
}
"""Title to (one sentence, names below ``pocketbert``)."""

FACADES = ("", "api", "distill", "plugins", "runtime")
ELSEWHERE = {
    "Text",
    "api",
    "distill",
    "plugins",
    "runtime",
    "runtime.load",
    "runtime.Model",
    "distill.Family",
    "distill.family_of",
    "plugins.Family",
    "plugins.AttentionRecorder",
    "plugins.QueryKeyValue",
}
"""Names of facades without an entry: modules, an alias of types, and what another facade has already."""


def public_names(package: Any) -> dict[str, list[str]]:
    """Return the names of each section, by title. The verbs are the names that ``api`` declares.

    Raises:
        SystemExit: If a facade has a name that is in no section.
    """
    out = {title: names.split() for title, (_, names) in SECTIONS.items()}
    out[VERBS] = [f"api.{name}" for name in sorted(package["api"].exports) if name not in package.exports]
    listed = {name for names in out.values() for name in names} | ELSEWHERE
    for facade in FACADES:
        node = package[facade] if facade else package
        declared = {".".join(filter(None, (facade, name))) for name in node.exports}
        missing = sorted(n for n in declared - listed if n.removeprefix("api.") not in package.exports)
        if missing:
            raise SystemExit(f"in no section of {__file__}: {', '.join(missing)}")
    return out


def shown_name(name: str) -> str:
    """Return a name as users import it."""
    return f"pocketbert.{name}"


def signature(title: str, node: Any) -> str:
    """Return the signature of a function or class as Python code, on one line if it fits."""
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
    """Yield the lines of a docstring as Markdown.

    Raises:
        SystemExit: If there is no docstring, or a section of it is of an unknown kind.
    """
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
    """Yield the lines of the page on one public name."""
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
    """Return the whole page, made from the parsed package."""
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
