"""The type of a row of the family table (`Family`), and the types and facts that rows share.

Rows are data only: code of a family is registered under the keys that its row names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from pocketbert.core.errors import InputError, Problem, suggest_allowed
from pocketbert.core.families.config import ConfigBounds
from pocketbert.core.types import Attention, Signal

FORM_KEY = "pocketbert_form"
"""Entry of config.json that names the export form of a saved model; without it, files take text only."""
TEXT_ONLY = "text"
"""Name of the form that all families have: the inputs that a tokenizer makes of a text, and no others."""
ATTENTION_KEY = "pocketbert_attention"
"""Entry of config.json with the kind of attention in the files of a saved model, if that is not the family's usual
one."""
_SEGMENTS = "token_type_ids"
_SEGMENT_COUNT = "type_vocab_size"

IDS_MASK = ("input_ids", "attention_mask")
IDS_MASK_TYPES = (*IDS_MASK, "token_type_ids")
GAMMA_BETA = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
ONE_SEGMENT = "no segment ids: the texts of a pair are told apart by separators only"
NO_CHOICES = "transformers has no class with its head"
"""Why a family cannot do multiple choice."""
FEED_FORWARD = {"intermediate.dense": "output.dense"}
"""Paths of the feed-forward matrices in BERT's layers, and in those built from them."""
TINY = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}

_SIZE_NAMES = {
    "num_hidden_layers": ("num_hidden_layers", "n_layers", "n_layer"),
    "hidden_size": ("hidden_size", "dim", "d_model", "emb_dim"),
}
"""Names of sizes in config.json: BERT's first, then those of DistilBERT, XLNet and XLM, which transformers translates."""


class TokenizerKind(StrEnum):
    """The algorithm of a family's tokenizer."""

    WORDPIECE = "wordpiece"
    BYTE_BPE = "byte-bpe"
    SENTENCEPIECE = "sentencepiece"
    WORD_BPE = "word-bpe"


class Objective(StrEnum):
    """An objective of general distillation that suits a family's checkpoints."""

    MASKED_LM = "masked-lm"
    NEXT_SENTENCE = "next-sentence"
    SENTENCE_ORDER = "sentence-order"
    SIMILAR_WORDS = "similar-words"
    REPLACED_TOKEN = "replaced-token"  # noqa: S105 - ELECTRA's objective, not a secret


class Meaning(StrEnum):
    """What the numbers of an additional input stand for, which decides how a data column is converted to them."""

    LANGUAGE = "language"
    """The number of the text's language, the same at each token."""
    ENTITIES = "entities"
    """The number of an entity, from 1, at the first token of each mention, 0 elsewhere."""
    VECTORS = "vectors"
    """The vector of an entity at the first token of each mention, zeros elsewhere."""


@dataclass(frozen=True)
class GraphInput:
    """An additional input of an exported graph, [B, L] or [B, L, width], made from a data column such as language ids.

    Attributes:
        name: Name of the input in the graph.
        column: Data column that the input is made from.
        meaning: What the numbers stand for, which determines how the column is converted.
        description: One sentence for clients.
        sample: Value in the sample inputs with which the model is traced.
        padding: Value at padded positions.
        dtype: ``int64`` or ``float32``.
        width: Numbers per token; 0 for a single number without an axis of its own.
        width_key: Entry of config.json with the width.
        count_key: Entry of config.json with the number of possible values: languages are numbered from 0, entities
            from 1.
        names_key: Entry of config.json that maps the names in the data column to values.
    """

    name: str
    column: str
    meaning: Meaning
    description: str
    sample: float = 0
    padding: float = 0
    dtype: str = "int64"
    width: int = 0
    width_key: str | None = None
    count_key: str | None = None
    names_key: str | None = None

    @property
    def is_float(self) -> bool:
        """Whether the values of the input are floating-point numbers."""
        return self.dtype == "float32"

    def shape(self, *axes: int) -> tuple[int, ...]:
        """Return the shape of the input: the given axes (batch, length), and `width` if that is not 0."""
        return (*axes, self.width) if self.width else axes


@dataclass(frozen=True)
class ExportForm:
    """An export form: a way to export a model with additional inputs besides the text.

    Attributes:
        name: Name of the form, as in ``--form``.
        title: Description of the form in one sentence.
        extra: The additional inputs, in order, after those of the family.
        needs: Entries of config.json that a model needs for this form, each with its default and its smallest allowed
            value.
        table: Whether the exported file contains a table of entities, which are chosen at export.
        files: Files in the authors' model folder from which the table is built.
    """

    name: str
    title: str
    extra: tuple[GraphInput, ...]
    needs: Mapping[str, tuple[int, int]]
    table: bool = False
    files: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the data columns that the additional inputs are made from."""
        return tuple(dict.fromkeys(i.column for i in self.extra))

    def check(self, config: Mapping[str, Any], where: str) -> None:
        """Raise InputError (naming `where`) if an entry that the form needs is too small in config.json, or by default."""
        for key, (default, least) in self.needs.items():
            value = config.get(key, default)
            if not isinstance(value, int) or value < least:
                what = f"'{self.name}' needs {key} of at least {least} in config.json, which says {value!r:.20}."
                raise InputError(Problem(where, what, f"Leave it out: files of the form '{TEXT_ONLY}' take text only."))


@dataclass(frozen=True)
class ReleasedConfig:
    """The configuration file of a model in its authors' own layout, used if the folder has no config.json.

    Attributes:
        file: Name of the file in the folder.
        renames: New names of entries that have other names in the file, by the old names.
        defaults: Values of entries that the file may leave out, by their new names.
    """

    file: str
    renames: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def read(self, content: Mapping[str, Any], model_type: str) -> dict[str, Any]:
        """Convert the content of the authors' configuration file to the entries of a config.json."""
        named = {self.renames.get(key, key): value for key, value in content.items()}
        return {**self.defaults, **named, "model_type": model_type}


@dataclass(frozen=True)
class Family:
    """A supported model family (one row of the table of families): its names, the paths in its models, and its limits.

    Attributes:
        name: Short name, as in recipes and reports.
        title: Name of the family as its authors write it.
        model_types: Values of `model_type` in config.json that mean this family; of several families, the first match
            counts.
        classes: Prefix of the transformers classes (``Bert`` of ``BertForSequenceClassification``).
        tokenizer: Algorithm of the tokenizer.
        inputs: Graph inputs in order.
        layer_path: Dotted path from the class with a head to the list of encoder layers. If a layer is spread over
            several lists, the path of the list whose modules output the layers' states.
        layer_lists: Dotted paths of the other lists, if a layer is spread over several.
        feed_forward: Path in a layer of the matrix into the feed-forward neurons, to the path of the matrix out of
            them; "*" is any number, if a layer has several such parts. Empty if neurons cannot be pruned, for the
            reason in `limits`.
        head_suffixes: Suffixes of the transformers classes that differ from those of BERT: BERT's suffix, such as
            ``ForQuestionAnswering``, mapped to this family's (``ForQuestionAnsweringSimple``).
        choice_weights: Paths of head weights in the class for multiple choice, mapped to their paths in the class for
            sequence classification; only those that differ. With one output, that class computes the same as the one
            for multiple choice.
        lm_head: Dotted path from the masked-LM class to the module that takes the encoder's output; that and all
            later modules work on each token by itself. Paths of several forms of the class are separated by "|", the
            first that exists counts. None if general stages cannot learn from the family.
        key_renames: Old to new substrings of weight names, for checkpoints as the authors published them.
        config_names: The family's names of sizes in config.json, by BERT's names, if they differ and transformers has
            no alias.
        head_size: Entry of config.json that repeats the hidden size divided by the heads; None if there is none.
        width_copies: Entries of config.json that repeat the hidden size, and change with it in a student.
        longest: Longest input in tokens, if config.json names no table of positions.
        fixed: Entries of config.json that must have this value if they are present, because other values mean another
            architecture.
        taught_with: Entries of config.json that must have this value, if present, in a teacher and a student. Models
            with other values are only exported, for the reason in `limits`.
        largest: Largest values of entries of config.json that only the family has and that decide memory; the common
            ones are bounded in `config`.
        smallest: Smallest values of such entries that may be below 1. With 0 for ``type_vocab_size``, a model may
            have no segments; see `as_configured`.
        by_layer: Entries of config.json that may list one value for each layer (``attention_window`` of Longformer).
        rotary: Whether positions are rotations, whose parameters in config.json are read and checked.
        unread: Prefixes of names of weights that published checkpoints of the family have and no class of transformers
            reads, the encoder's prefix included (``fit_denses.`` of the general TinyBERT).
        noise: Prefixes of names of weights that, if the class does not read them, show that a checkpoint has no trained
            masked-LM head for it, with the reason; the first match is reported.
        stored_layers: Entry of config.json that counts the layers in the weights: fewer than the layers that run if
            these are shared (``num_hidden_groups`` of ALBERT).
        released_config: The configuration of folders as their authors release them, if that is no config.json.
        padding_side: ``right`` or ``left``.
        position_offset: Rows of the position table that no token uses (2 for RoBERTa).
        most_tokens: Longest input in tokens in exported files and in training, if that is less than the rows of the
            position table.
        tokenizer_settings: Entries that are added to a written tokenizer_config.json, which then always names the
            `tokenizer_class`. Needed if the family's class in transformers does not use tokenizer.json as it is.
        signals: Signals that a student may learn from a teacher of this family.
        invalid_signals: The reason for each signal that is missing in `signals`.
        invalid_tasks: The reason for each task that the family cannot do.
        objectives: Objectives of general distillation that are valid for checkpoints of this family.
        trains_in_bf16: Whether the family's code in transformers runs with matrix products in bf16; if not, training is
            in fp32 on every machine.
        parity_atol: Bound on max|file - model| / spread of the logits, fp32.
        limits: What does not work, and why; shown by `pocketbert families` and in model cards.
        capture: Key of the code that captures attention signals; see `register_capture`.
        adapter: Key of the code that makes a model exportable; see `register_adapter`.
        block_adapter: Key of the adapter whose attention is over blocks of tokens, for texts longer than
            `most_tokens`; None if there is none. See `over_blocks`.
        layer_parts: Key of the code that splits encoder layers into parts for cheaper graphs; see
            `register_layer_parts`. None if the adapter needs none.
        checkpoints: Key of the code that reads checkpoints which transformers cannot; see `register_checkpoints`.
            None if transformers and `key_renames` are enough.
        students_of: Names of other families whose teachers can have students of this family; for each there is a
            `pocketbert.distill.students.build.ClassChange`.
        instead_of_export: What to do if no exporter writes the family; None if one does.
        loads_as: Name of the family whose graph, classes and `model_types` this one shares; None for a family with a
            graph of its own. Families that share a graph differ in title, signals, objectives and limits only, and are
            chosen by `--family`, `teacher.family` or `signs`.
        signs: Pattern of weight names in published checkpoints that show this family among those that share its graph;
            None if its checkpoints have no such names.
        forms: Export forms: ways to export a model with additional inputs besides the text.
        form: The export form of one model; None if its files take text only. Set by `in_form`.
        tiny: Sizes of a very small model for tests, by the names of its configuration; without vocabulary and labels.
    """

    name: str
    title: str
    model_types: tuple[str, ...]
    classes: str
    tokenizer: TokenizerKind
    inputs: tuple[str, ...]
    layer_path: str
    layer_lists: tuple[str, ...] = ()
    feed_forward: Mapping[str, str] = field(default_factory=dict)
    head_suffixes: Mapping[str, str] = field(default_factory=dict)
    choice_weights: Mapping[str, str] = field(default_factory=dict)
    lm_head: str | None = None
    key_renames: Mapping[str, str] = field(default_factory=dict)
    config_names: Mapping[str, str] = field(default_factory=dict)
    head_size: str | None = None
    width_copies: tuple[str, ...] = ()
    longest: int = 512
    fixed: Mapping[str, object] = field(default_factory=dict)
    taught_with: Mapping[str, object] = field(default_factory=dict)
    largest: Mapping[str, int] = field(default_factory=dict)
    smallest: Mapping[str, int] = field(default_factory=dict)
    by_layer: tuple[str, ...] = ()
    rotary: bool = False
    unread: tuple[str, ...] = ()
    noise: Mapping[str, str] = field(default_factory=dict)
    stored_layers: str = "num_hidden_layers"
    released_config: ReleasedConfig | None = None
    padding_side: str = "right"
    position_offset: int = 0
    most_tokens: int | None = None
    tokenizer_settings: Mapping[str, str] = field(default_factory=dict)
    signals: tuple[Signal, ...] = tuple(Signal)
    invalid_signals: Mapping[Signal, str] = field(default_factory=dict)
    invalid_tasks: Mapping[str, str] = field(default_factory=dict)
    objectives: tuple[Objective, ...] = (Objective.MASKED_LM,)
    trains_in_bf16: bool = True
    parity_atol: float = 1e-4
    limits: tuple[str, ...] = ()
    capture: str = "attention-interface"
    adapter: str = "mask-4d"
    block_adapter: str | None = None
    layer_parts: str | None = None
    checkpoints: str | None = None
    students_of: tuple[str, ...] = ()
    instead_of_export: str | None = None
    forms: tuple[ExportForm, ...] = ()
    form: ExportForm | None = None
    tiny: Mapping[str, Any] = field(default_factory=dict)
    loads_as: str | None = None
    signs: str | None = None

    @property
    def graph(self) -> str:
        """Name of the family whose graph this one shares, else its own name; equal graphs give equal files."""
        return self.loads_as or self.name

    @property
    def extra(self) -> tuple[GraphInput, ...]:
        """Additional inputs of the family's export form, made from data columns other than the text."""
        return self.form.extra if self.form is not None else ()

    @property
    def form_names(self) -> tuple[str, ...]:
        """Names of all export forms of the family, text only first."""
        return (TEXT_ONLY, *(f.name for f in self.forms))

    @property
    def uses_segments(self) -> bool:
        """Whether token types, which mark the second text of a pair, are an input of the graph."""
        return _SEGMENTS in self.inputs

    @property
    def has_layers(self) -> bool:
        """Whether the family's models have encoder layers, which static students have not."""
        return self.smallest.get("num_hidden_layers", 1) > 0

    @property
    def shares_layers(self) -> bool:
        """Whether several layers of the model may share their weights, as in ALBERT."""
        return self.stored_layers != "num_hidden_layers"

    @property
    def bounds(self) -> ConfigBounds:
        """The family's limits on the entries of config.json."""
        return ConfigBounds(self.largest, self.smallest, self.by_layer, self.fixed, self.rotary)

    def read_size(self, config: Mapping[str, object], name: str) -> int | None:
        """Return a size from the entries of a config.json by BERT's name for it; None if it has no such number."""
        names = (*_SIZE_NAMES.get(name, (name,)), self.config_names.get(name, name))
        return next((value for key in names if isinstance(value := config.get(key), int)), None)

    def class_name(self, suffix: str) -> str:
        """Return the family's transformers class for a task suffix, e.g. ``XLNetForTokenClassification``."""
        return self.classes + self.head_suffixes.get(suffix, suffix)

    @property
    def in_blocks(self) -> bool:
        """Whether files exported with this row compute attention over blocks of tokens, as Longformer does."""
        return self.adapter == self.block_adapter

    def over_blocks(self) -> Family:
        """Return a copy of the row with attention over blocks of tokens, for inputs up to the position table's length.

        Raises:
            ValueError: If the family has no such graph.
        """
        if self.block_adapter is None:
            raise ValueError(f"{self.title} has no attention over blocks")
        return replace(self, adapter=self.block_adapter, most_tokens=None)

    def as_configured(self, config: Mapping[str, Any]) -> Family:
        """Return a copy of the row with the export form and the kind of attention that one model's config.json names.

        If segment embeddings are optional in the family and the model has one segment or none, token type ids are removed
        from the inputs. A form that the family or the model cannot have raises InputError.
        """
        if config.get(ATTENTION_KEY) == Attention.BLOCKS and self.block_adapter not in (None, self.adapter):
            return self.over_blocks().as_configured(config)
        row = self.in_form(str(config[FORM_KEY]), config, f"config.json {FORM_KEY}") if FORM_KEY in config else self
        if self.smallest.get(_SEGMENT_COUNT) != 0 or (config.get(_SEGMENT_COUNT) or 0) > 1:
            return row
        return replace(row, inputs=tuple(name for name in row.inputs if name != _SEGMENTS))

    def in_form(self, name: str, config: Mapping[str, Any], where: str = "form") -> Family:
        """Return a copy of the row for an export form, with the form's additional inputs added to `inputs`.

        Args:
            name: Name of one of `forms`, or ``text``.
            config: The model's config.json.
            where: Name of the setting in error messages.

        Raises:
            InputError: If the family has no such form, or the model cannot have it.
        """
        form = next((f for f in self.forms if f.name == name), None)
        own = tuple(n for n in self.inputs if n not in {i.name for i in self.extra})
        if form is None:
            if name != TEXT_ONLY:
                what = f"{self.title} has no form {name!r:.60}; {suggest_allowed(name, self.form_names)}."
                raise InputError(Problem(where, what))
            return replace(self, inputs=own, form=None)
        form.check(config, where)
        extra = tuple(replace(i, width=int(config.get(i.width_key, i.width))) if i.width_key else i for i in form.extra)
        return replace(self, inputs=(*own, *(i.name for i in extra)), form=replace(form, extra=extra))
