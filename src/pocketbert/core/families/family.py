"""What a row of the family table holds. Data only: code of a family is registered under the keys that its row names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from pocketbert.core.errors import InputError, Problem, nearest
from pocketbert.core.families.config import Bounds
from pocketbert.core.types import Attention, Signal

# --- forms ---
# Forms in which a model can be exported: the graph's inputs beyond those that every text gives.


FORM_KEY = "pocketbert_form"
"""Entry of config.json that names the form of a saved model; without it, files take text only."""
TEXT_ONLY = "text"
"""Name of the form that all families have: nothing but what a tokenizer makes of a text."""


class Meaning(StrEnum):
    """What the numbers of an input mean, and so how a data column becomes such numbers."""

    LANGUAGE = "language"
    """The number of the text's language, the same at each token."""
    ENTITIES = "entities"
    """The number of an entity, from 1, at the first token of each mention, 0 elsewhere."""
    VECTORS = "vectors"
    """The vector of an entity at the first token of each mention, zeros elsewhere."""


@dataclass(frozen=True)
class GraphInput:
    """An input of a graph that is made of another data column than the text, [B, L] or [B, L, width].

    Attributes:
        name: Name in the graph.
        column: Data column that it is made of.
        meaning: How it is made of that.
        description: One sentence for clients.
        sample: Value that a converter traces with.
        padding: Value at padded places.
        dtype: ``int64`` or ``float32``.
        width: Numbers at each token; 0 where there is one, without an axis of its own.
        width_key: Entry of config.json that says the width.
        count_key: Entry of config.json that counts the values; they are 0 to one less.
        names_key: Entry of config.json that maps names to values.
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
        """Whether its values are no whole numbers."""
        return self.dtype == "float32"

    def shape(self, *axes: int) -> tuple[int, ...]:
        """The whole shape, of batch and length or of the length only."""
        return (*axes, self.width) if self.width else axes


@dataclass(frozen=True)
class ExportForm:
    """A form in which a model can be exported.

    Attributes:
        name: As in ``--form``.
        title: One sentence.
        extra: Inputs behind those of the family, in order.
        needs: Entries of config.json that must have at least this value, with what holds where there is none.
        table: Whether the graph holds a table of entities, which are chosen when it is exported.
        files: Files of a released folder that the table is made of.
    """

    name: str
    title: str
    extra: tuple[GraphInput, ...]
    needs: Mapping[str, tuple[int, int]]
    table: bool = False
    files: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """Data columns that the inputs are made of."""
        return tuple(dict.fromkeys(i.column for i in self.extra))

    def check(self, config: Mapping[str, Any], where: str) -> None:
        """Refuse a model that cannot have the form.

        Args:
            config: Its config.json.
            where: What to blame in the error.

        Raises:
            InputError: Naming the entry.
        """
        for key, (default, least) in self.needs.items():
            value = config.get(key, default)
            if not isinstance(value, int) or value < least:
                what = f"'{self.name}' needs {key} of at least {least} in config.json, which says {value!r:.20}."
                raise InputError(Problem(where, what, f"Leave it out: files of the form '{TEXT_ONLY}' take text only."))


def chosen_form(forms: tuple[ExportForm, ...], name: str, title: str, where: str) -> ExportForm | None:
    """Find a form by its name; None for text only.

    Args:
        forms: Forms of the family.
        name: As in ``--form``.
        title: Name of the family.
        where: What to blame in the error.

    Raises:
        InputError: If the family has no such form, naming the allowed ones.
    """
    found = next((f for f in forms if f.name == name), None)
    if found is None and name != TEXT_ONLY:
        allowed = (TEXT_ONLY, *(f.name for f in forms))
        what = f"{title} has no form {name!r:.60}; {nearest(name, allowed)}."
        raise InputError(Problem(where, what))
    return found


# --- released ---
# Configurations as authors release them, where these are no config.json.


@dataclass(frozen=True)
class ReleasedConfig:
    """How the configuration of a released folder becomes a config.json.

    Attributes:
        file: Name of the file in the folder.
        renames: Entries that the file calls otherwise, old to new.
        defaults: Entries, by their new names, that mean this where the file leaves them out.
    """

    file: str
    renames: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def read(self, content: Mapping[str, Any], model_type: str) -> dict[str, Any]:
        """The entries of a config.json.

        Args:
            content: What the file holds.
            model_type: What config.json calls the family.
        """
        named = {self.renames.get(key, key): value for key, value in content.items()}
        return {**self.defaults, **named, "model_type": model_type}


SEGMENTS = "token_type_ids"
ATTENTION_KEY = "pocketbert_attention"
"""Entry of config.json that says what attention in the files of a saved model is over, where that is not the family's usual."""
_SEGMENT_COUNT = "type_vocab_size"


class TokenizerKind(StrEnum):
    """How the family's tokenizer cuts words."""

    WORDPIECE = "wordpiece"
    BYTE_BPE = "byte-bpe"
    SENTENCEPIECE = "sentencepiece"
    WORD_BPE = "word-bpe"


class Objective(StrEnum):
    """A general-stage objective that makes sense for the family's checkpoints."""

    MASKED_LM = "masked-lm"
    NEXT_SENTENCE = "next-sentence"
    SENTENCE_ORDER = "sentence-order"
    SIMILAR_WORDS = "similar-words"
    REPLACED_TOKEN = "replaced-token"  # noqa: S105 - ELECTRA's objective, not a secret


@dataclass(frozen=True)
class Family:
    """A supported model family and its limits.

    Attributes:
        name: Short name, as in recipes and reports.
        title: Name as its authors write it.
        model_types: `model_type` values of config.json that this row serves, first match wins.
        classes: Prefix of the transformers classes (``Bert`` of ``BertForSequenceClassification``).
        tokenizer: Tokenizer kind.
        inputs: Graph inputs in order.
        layer_path: Dotted path from the head class to the list of encoder layers; where a layer is spread over several lists, to
            the one whose modules make the layers' states.
        layer_lists: Dotted paths of the other lists, where a layer is spread over several.
        feed_forward: Path in a layer of the matrix into the feed-forward neurons, to the path of the matrix out of them; "*" is
            any number, where a layer has several such parts. None where neurons cannot be pruned, for the reason that `limits` gives.
        head_suffixes: Suffixes of the transformers classes that differ from BERT's (``ForQuestionAnswering`` to
            ``ForQuestionAnsweringSimple``).
        lm_head: Dotted path from the masked-LM class to the module that takes the encoder's output; all behind it works on each
            token by itself. Paths of several forms of the class are separated by "|", the first that exists counts. None
            where general stages cannot learn from the family.
        key_renames: Old to new substrings of state-dict keys of original checkpoints.
        config_names: Sizes that config.json calls otherwise than BERT does, and no alias of transformers covers.
        head_size: Entry of config.json that repeats the hidden size divided by the heads; None where none does.
        longest: Most tokens of an input, where config.json names no table of positions.
        fixed: Entries of config.json that must have this value where they are there: others make another architecture.
        taught_with: Entries of config.json that a teacher and a student must have with this value, where they are there: models
            with others are exported, and `limits` says why they neither teach nor learn.
        largest: Largest values of entries of config.json that only the family has and that decide memory; the common ones are
            bounded in `config`.
        smallest: Smallest values of such entries that may be below 1. With 0 for ``type_vocab_size``, a model may have no
            segments; see `as_configured`.
        by_layer: Entries of config.json that may list one value for each layer (``attention_window`` of Longformer).
        rotary: Whether positions are rotations: what config.json says of them is read, and checked.
        unread: Beginnings of names of weights that published checkpoints of the family have and no class of transformers
            reads, the encoder's prefix included (``fit_denses.`` of the general TinyBERT).
        noise: Beginnings of names of weights that show, where the class reads none of them, that a checkpoint has no trained
            masked-LM head that the class could read, with the reason; the first that fits is told.
        stored_layers: Entry of config.json that counts the layers that the weights hold: fewer than the layers that run where
            these are shared (``num_hidden_groups`` of ALBERT).
        released_config: The configuration of folders as their authors release them, where that is no config.json.
        padding_side: ``right`` or ``left``.
        position_offset: Rows of the position table that no token uses (2 for RoBERTa).
        most_tokens: Tokens of the longest input that its files and its training take, where the position table serves more.
        tokenizer_settings: Entries that a written tokenizer_config.json gets where it lacks them, and the `tokenizer_class` in any
            case: needed where the family's class in transformers does not take tokenizer.json as it is.
        signals: What a student may learn from a teacher of this family.
        invalid_signals: Reason why a signal is missing above.
        invalid_tasks: Reason why a task is not possible with the family, by the task's name.
        objectives: General-stage objectives valid for its checkpoints.
        trains_in_bf16: Whether its code in transformers runs with matrix products in bf16; where it does not, training is in
            fp32 on every machine.
        parity_atol: Bound on max|file - model| / spread of the logits, fp32.
        limits: What does not work, and why; shown by `pocketbert families` and in model cards.
        capture: Key of the code that captures attention signals; see `register_capture`.
        adapter: Key of the code that makes a model exportable; see `register_adapter`.
        block_adapter: Key of the adapter whose attention is over blocks of tokens, for texts beyond `most_tokens`; None where
            there is none. See `over_blocks`.
        layer_parts: Key of the code that takes encoder layers apart for the cheaper graphs; see `register_layer_parts`. None
            where the adapter needs none.
        checkpoints: Key of the code that reads checkpoints which transformers cannot; see `register_checkpoints`. None where
            transformers and `key_renames` are enough.
        students_of: Names of the families whose teachers can have students of this one, besides its own; the code is a
            `pocketbert.distill.students.build.ClassChange` for each.
        instead_of_export: What to do where no exporter writes the family; None where one does.
        loads_as: Name of the row whose graph, classes and `model_types` this one has; None for a row with a graph of its own.
            Such a row differs in title, signals, objectives and limits only, and is chosen by `--family`, `teacher.family` or
            `signs`.
        signs: Pattern of names of weights in published checkpoints that suggest this row among those that share its graph;
            None where a checkpoint looks like any other.
        forms: Forms with more inputs in which a model can be exported, besides text only.
        form: The one of these that a model has; None where its files take text only. `in_form` sets it.
        tiny: Sizes of a model that tests build in no time, by the names of its configuration; without vocabulary and labels.
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
    lm_head: str | None = None
    key_renames: Mapping[str, str] = field(default_factory=dict)
    config_names: Mapping[str, str] = field(default_factory=dict)
    head_size: str | None = None
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
        """Name of the row whose graph the family has: rows with equal ones give equal files."""
        return self.loads_as or self.name

    @property
    def extra(self) -> tuple[GraphInput, ...]:
        """Inputs that are made of other data columns than the text."""
        return self.form.extra if self.form is not None else ()

    @property
    def form_names(self) -> tuple[str, ...]:
        """Names of all forms, text only first."""
        return (TEXT_ONLY, *(f.name for f in self.forms))

    @property
    def uses_segments(self) -> bool:
        """Whether the graph tells the first text of a pair from the second by token types."""
        return SEGMENTS in self.inputs

    @property
    def shares_layers(self) -> bool:
        """Whether layers that run may have the same weights."""
        return self.stored_layers != "num_hidden_layers"

    @property
    def bounds(self) -> Bounds:
        """What the family allows in config.json."""
        return Bounds(self.largest, self.smallest, self.by_layer, self.fixed, self.rotary)

    def class_name(self, suffix: str) -> str:
        """Name of the transformers class that BERT's has this suffix for."""
        return self.classes + self.head_suffixes.get(suffix, suffix)

    @property
    def in_blocks(self) -> bool:
        """Whether the files of this row have attention over blocks of tokens."""
        return self.adapter == self.block_adapter

    def over_blocks(self) -> Family:
        """Return the row with attention over blocks of tokens, whose texts are as long as the position table.

        Raises:
            ValueError: If the family has no such graph.
        """
        if self.block_adapter is None:
            raise ValueError(f"{self.title} has no attention over blocks")
        return replace(self, adapter=self.block_adapter, most_tokens=None)

    def as_configured(self, config: Mapping[str, Any]) -> Family:
        """Return the row as it is for a model, in the form that its config.json names.

        Where the family may go without segments, a model without has no ids of them.

        What a folder says of its files' attention counts as well.

        Args:
            config: Its checked config.json.
        """
        if config.get(ATTENTION_KEY) == Attention.BLOCKS and self.block_adapter not in (None, self.adapter):
            return self.over_blocks().as_configured(config)
        row = self.in_form(str(config[FORM_KEY]), config, f"config.json {FORM_KEY}") if FORM_KEY in config else self
        if self.smallest.get(_SEGMENT_COUNT) != 0 or (config.get(_SEGMENT_COUNT) or 0) > 1:
            return row
        return replace(row, inputs=tuple(name for name in row.inputs if name != SEGMENTS))

    def in_form(self, name: str, config: Mapping[str, Any], where: str = "form") -> Family:
        """Return the row as it is for a model that is exported in a form, with longer `inputs`.

        Args:
            name: Name of one of `forms`, or ``text``.
            config: The model's config.json.
            where: What to blame in the error.

        Raises:
            InputError: If the family has no such form, or the model cannot have it.
        """
        form = chosen_form(self.forms, name, self.title, where)
        own = tuple(n for n in self.inputs if n not in {i.name for i in self.extra})
        if form is None:
            return replace(self, inputs=own, form=None)
        form.check(config, where)
        extra = tuple(replace(i, width=int(config.get(i.width_key, i.width))) if i.width_key else i for i in form.extra)
        return replace(self, inputs=(*own, *(i.name for i in extra)), form=replace(form, extra=extra))


# --- common ---
# Facts that rows of the family table share.


IDS_MASK = ("input_ids", "attention_mask")
IDS_MASK_TYPES = (*IDS_MASK, "token_type_ids")
GAMMA_BETA = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
ONE_SEGMENT = "no segment ids: the texts of a pair are told apart by separators only"
FEED_FORWARD = {"intermediate.dense": "output.dense"}
"""Where BERT's layers, and those built from them, have their feed-forward matrices."""
TINY = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
