"""Options of the verbs that start without a recipe, their recipe keys and flags, and the result of a dry run.

`ExportOptions`, `AnswerOptions`, `CalibrationOptions` and `BudgetOptions` are the options of `export` and `quantize`, `DataFiles` those of
`run --data`, `DiffOptions` those of `diff`, `PlanOptions` those of `plan`. `OPTION_RECIPE_KEYS` maps options to recipe keys and `RECIPE_KEY_FLAGS` recipe keys to flags, so that messages on a recipe name flags.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from pocketbert.core.data.source import DataSource
    from pocketbert.core.recipe.budget import BudgetSection


class AnswerOptions(TypedDict, total=False):
    """Settings that turn model outputs into answers, with the keys of a recipe's `answer`; each task reads some of them.

    Attributes:
        thresholds: multi-label: probability from which a label is given, one number or one for each label.
        temperature: text-classification: what logits are divided by before the softmax.
        unknown: text-classification: probability below which an answer is marked as unknown, or ``{"accuracy": 0.95}`` to fit
            one for each file.
        stride: question-answering: tokens that two windows of a long context share.
        answer_length: question-answering: longest answer in tokens.
        null_answers: question-answering: whether a question may have no answer.
        pooling: feature-extraction: how token states become one vector.
        normalize: feature-extraction: whether vectors get length 1.
    """

    thresholds: float | list[float]
    temperature: float
    unknown: float | dict[str, float]
    stride: int
    answer_length: int
    null_answers: bool
    pooling: str
    normalize: bool


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Settings of `export`; each sets the recipe key that `OPTION_RECIPE_KEYS` names.

    Attributes:
        task: Hub task name; default the task that the model was trained for.
        revision: Hub revision of the model.
        adapters: Folders or Hub names of peft's adapters that are merged into the model, in order.
        family: Model family, if several have the same graph; default the one that the names of the weights suggest.
        form: Form of the files: ``text``, or one with inputs besides the text, such as ``language``; default ``text``, or
            the form of an exported folder.
        entities: For a form with a table of entities: file with the entities to keep, one id or name in each line.
        formats: ``onnx``, ``tflite``, ``coreml``; the first one is opened by default.
        schemes: Schemes of smaller files, the default file's first: ``int8`` (in Core ML ``w8``), ``small``, ``w4``,
            ``a8w8`` and others; ``fp32`` makes none.
        runtimes: Runtimes that get a further file: ``tflite216`` for TFLite up to 2.16, ``openvino`` for OpenVINO,
            ``gpu`` for the GPU of a phone (``fp16``), ``npu`` for neural processors and ``qnn`` for that of a Snapdragon
            (``a16w8``, ``a8w8``).
        roles: Scheme by role or module; ``none`` leaves its weights as they were exported: ``{"ffn_down": "none"}``.
        lengths: Lengths in tokens that the files are checked at. TFLite files for any client and runtime, and Core ML
            packages whose `shapes` are ``enumerated``, take these and `max_length` only.
        attention: ``blocks`` for texts of more than 1,024 tokens (Longformer), ``pairs`` for any family; default ``pairs``,
            or what an exported model was exported with.
        opset: ONNX operator set, 18 to 20.
        atol: Parity bound relative to the spread of the logits; default the family's.
        max_length: Longest input in tokens; default the model's own.
        labels: Label names where config.json has none, in order of their ids.
        ios: Oldest iOS that opens the Core ML package: 16, 17 or 18.
        shapes: Lengths that the package takes: ``enumerated`` (iOS 18), ``ranged`` (iOS 17) or ``fixed``; default
            ``enumerated`` for iOS 18, else ``fixed``.
        precision: Numbers that the package computes in, ``fp16`` or ``fp32``.
        layout: ``ane`` rewrites the graph for Apple's Neural Engine; ``plain`` does not.
        answer: How outputs become answers; default the recipe's defaults.
        calibrate: Labelled rows, no evaluation row among them, on which static schemes (``a8w8``) measure ranges.
        calibration: How ranges are chosen from the activations on these rows: ``minmax`` (default), ``mse`` or
            ``percentile``.
        data: Labelled rows that the files are scored on; golden rows are then texts of these rows.
        benchmark: Whether the latency of the files is measured.
        name: Name of the model in the model card; default the name of its folder.
        description: One sentence on the model for the report.
        licence: Licence of the weights, such as ``apache-2.0``; default the one that the model's folder names.
    """

    task: str | None = None
    revision: str | None = None
    adapters: Sequence[str] = ()
    family: str | None = None
    form: str | None = None
    entities: Path | None = None
    formats: Sequence[str] = ("onnx", "tflite", "coreml")
    schemes: Sequence[str] = ("int8",)
    runtimes: Sequence[str] = ()
    roles: Mapping[str, str] = field(default_factory=dict)
    lengths: Sequence[int] = (32, 64, 128)
    attention: str | None = None
    opset: int = 20
    atol: float | None = None
    max_length: int | None = None
    labels: Sequence[str] | None = None
    ios: int = 18
    shapes: str | None = None
    precision: str = "fp16"
    layout: str = "plain"
    answer: AnswerOptions = field(default_factory=lambda: AnswerOptions())
    calibrate: DataSource | None = None
    calibration: str | None = None
    data: DataSource | None = None
    benchmark: bool = False
    name: str | None = None
    description: str | None = None
    licence: str | None = None


@dataclass(frozen=True, kw_only=True)
class CalibrationOptions:
    """The rows on which static schemes measure ranges, and the method that chooses ranges from them.

    Attributes:
        rows: Labelled training rows, no evaluation row among them.
        method: ``minmax``, ``mse`` or ``percentile``; None for ``minmax``.
    """

    rows: DataSource | None = None
    method: str | None = None

    @staticmethod
    def of(rows: DataSource | CalibrationOptions | None) -> CalibrationOptions:
        """Return options with the given calibration rows and the default method; options are returned unchanged."""
        return rows if isinstance(rows, CalibrationOptions) else CalibrationOptions(rows=rows)


@dataclass(frozen=True, kw_only=True)
class BudgetOptions:
    """Settings of `quantize` with a budget: limits within which it chooses the scheme of each file itself.

    Attributes:
        limits: Limits of a file's size, latency and loss; see `pocketbert.core.recipe.budget`.
        data: Labelled rows: one half of them chooses, the other half scores the chosen files.
        formats: Formats to choose a file of; None for all of the folder.
        answer: Temperature and "unknown" threshold of the files, where these are not fitted as in the folder that is read:
            ``{"unknown": {"accuracy": 0.95}}`` fits a threshold for each file on the rows that choose.
    """

    limits: BudgetSection
    data: DataSource | None = None
    formats: Sequence[str] | None = None
    answer: AnswerOptions = field(default_factory=lambda: AnswerOptions())


@dataclass(frozen=True)
class DataFiles:
    """Data files of a run without a recipe, and what the user says of them. What is None is guessed from the rows.

    Attributes:
        data: File of the training rows.
        evaluation: File of the rows that decide the score; None for the share of the training rows that the shipped
            recipe of the task names, a tenth.
        text: Column of the text.
        text_pair: Column of the second text.
        label: Column of the label.
        header: Whether the first row of tables names the columns.
        task: Hub task name.
        encoding: Encoding of text files.
        unlabelled: Files of texts without labels, which the teacher labels for the student.
        teacher: Column of a teacher's answers, or several with commas between them.
    """

    data: str | Path
    evaluation: str | Path | None = None
    text: str | None = None
    text_pair: str | None = None
    label: str | None = None
    header: bool | None = None
    task: str | None = None
    encoding: str | None = None
    unlabelled: Sequence[str | Path] = ()
    teacher: str | None = None


@dataclass(frozen=True, kw_only=True)
class DiffOptions:
    """Settings of `diff`: the limits that make it fail, and how both models are run.

    Attributes:
        max_drop: Largest allowed loss of the score, as a fraction (of the old score for metrics in nats); None for any.
        max_flips: Largest allowed share of answers that differ; None for any.
        latency: Whether both models are timed shortly.
        threads: Threads of each model; None for all cores.
        seed: Seed of the bootstrap.
    """

    max_drop: float | None = None
    max_flips: float | None = None
    latency: bool = True
    threads: int | None = None
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """Settings of `plan`: the limits, and the files that it plans.

    Attributes:
        task: Hub task name, to plan without rows; None with a data file.
        max_size_mb: Largest file in MB (1,000,000 bytes); None for no limit.
        max_p90_ms: Largest 90th percentile of the latency on each device; None for no limit.
        devices: Devices that the latencies are measured on.
        threads: Threads of the latencies.
        formats: Formats of the files.
        schemes: Schemes of the files, the preferred one first.
        choose: Name of the student that the recipe is written for; None for the largest inside the limits.
        keep: Share of the teacher's score to keep: the run then takes the smallest student that keeps it; None for one student.
    """

    task: str | None = None
    max_size_mb: float | None = None
    max_p90_ms: float | None = None
    devices: Sequence[str] = ("local",)
    threads: int = 1
    formats: Sequence[str] = ("onnx",)
    schemes: Sequence[str] = ("int8", "small", "w4")
    choose: str | None = None
    keep: float | None = None


@dataclass(frozen=True)
class PlannedStep:
    """One step of a dry run and its state.

    Attributes:
        name: Name of the step.
        output: File or folder that it writes, relative to the run folder.
        state: ``finished``, ``unfinished`` or ``to do``.
        why: Reason to make it again; empty if it is not made again.
    """

    name: str
    output: str
    state: str
    why: str = ""


Plan = list[PlannedStep]
"""Every step of a dry run, in order."""

CONFIDENCE_KEYS = ("temperature", "unknown")
"""Keys of a recipe's `answer` that decide neither weights nor files: confidence is fitted on the finished files."""

OPTION_RECIPE_KEYS: Mapping[str, str] = {
    "task": "task",
    "revision": "teacher.revision",
    "adapters": "teacher.adapters",
    "family": "teacher.family",
    "form": "export.form",
    "entities": "export.entities",
    "formats": "export.formats",
    "schemes": "quantize.scheme",
    "runtimes": "quantize.files",
    "roles": "quantize.roles",
    "lengths": "export.lengths",
    "attention": "export.attention",
    "opset": "export.opset",
    "atol": "export.atol",
    "max_length": "data.max_length",
    "labels": "data.labels",
    "ios": "export.coreml.ios",
    "shapes": "export.coreml.shapes",
    "precision": "export.coreml.precision",
    "layout": "export.coreml.layout",
    "answer": "answer",
    "calibrate": "data.train",
    "calibration": "quantize.calibration",
    "data": "data.eval",
    "benchmark": "benchmark",
    "name": "name",
    "description": "description",
    "licence": "teacher.licence",
}
"""The recipe key that each field of `ExportOptions` sets."""

RECIPE_KEY_FLAGS: Mapping[str, str] = {
    "teacher.model": "--model",
    "quantize.names": "--roles",  # help names the last key of a flag: quantize.roles
    **{key: f"--{option.replace('_', '-')}" for option, key in OPTION_RECIPE_KEYS.items()},
    "teacher.adapters": "--adapter",
    "export.formats": "--format",
    "quantize.scheme": "--scheme",
    "quantize.files": "--scheme, --runtime",
    "quantize.files.scheme": "--scheme",
    "quantize.files.runtime": "--runtime",
    **{
        f"data.{rows}.{key}": f"--{key.replace('_', '-')}"
        for rows in ("train", "eval")
        for key in ("text", "text_pair", "label", "max_line_mb", "max_rows")
    },
    "data.train.header": "--header, --no-header",
    "data.eval.header": "--header, --no-header",
}
"""The flags of the command line that set each of these recipe keys; numbers of list entries are left out of a key."""


@dataclass(frozen=True)
class TeachOptions:
    """How teacher models answer the rows of a file, and how their answers are written.

    Attributes:
        task: Task that the models are used for; None for the task that each model's class in config.json names.
        weights: Weight of each model in the mean; empty for equal weights.
        labels: For models of inference: by label, the words that the hypothesis uses for it. For a language model: by
            label, its description.
        template: Text of the hypothesis, in which {} is replaced by these words.
        column: Name of the column that the answers are written to.
        top: Most labels of an answer to write; None for all.
        max_length: Longest input in tokens; None for what the model takes, at most 512.
        batch: Number of rows that a model computes at once.
        overwrite: Whether an existing output file is replaced.
        endpoint: Address of a language model that speaks OpenAI's protocol, such as ``http://localhost:8000/v1``; None
            to ask none.
        endpoint_model: Name of the model at that address.
        prompt: File with the prompt, in which {text}, {pair} and {labels} are replaced.
        samples: Number of answers to draw for each row if the server gives no log-probabilities.
        parallel: Most requests at the same time.
        per_minute: Most requests in a minute; None for no limit.
        prices: Price of a million tokens read, and of a million written; empty to count tokens only.
        key_variable: Environment variable that holds the server's key.
        engine: ``local`` to answer in this process, ``ray`` in the processes of a Ray cluster.
        workers: With Ray, number of processes that answer; None for one on each machine.
    """

    task: str | None = None
    weights: Sequence[float] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    template: str = "This text is about {}."
    column: str = "teacher"
    top: int | None = None
    max_length: int | None = None
    batch: int = 32
    overwrite: bool = False
    endpoint: str | None = None
    endpoint_model: str = ""
    prompt: Path | None = None
    samples: int = 5
    parallel: int = 8
    per_minute: float | None = None
    prices: Sequence[float] = ()
    key_variable: str = "OPENAI_API_KEY"
    engine: str = "local"
    workers: int | None = None
