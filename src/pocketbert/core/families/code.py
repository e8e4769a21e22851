"""Where the code of a family is registered, by the keys that its row names. Light: the code itself is imported when it is called.

The package's own code registers itself: adapters and layer parts from `pocketbert.export.adapters`, captures from
`pocketbert.distill.capture`, checkpoints from `pocketbert.distill.students`. A wing imports its own before it looks one up;
the checkpoints, which core reads, are added by `pocketbert/__init__.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pocketbert.core.families.family import Family
from pocketbert.core.families.forms import ExportForm
from pocketbert.core.loading.registry import Registry

Adapter = Callable[[Any, Any], Any]
"""``adapter(model, plan)``: an eager copy of a transformers model, which it may change, and a
`pocketbert.export.adapters.plan.ExportPlan`, to a torch module with explicit inputs and tuple outputs."""
Capture = Callable[[Any], None]
"""``install(model)``: from now on each layer calls in at the active `AttentionRecorder` in every forward pass."""


@dataclass(frozen=True)
class LayerParts:
    """How the encoder layers of a family are taken apart, for rewrites into cheaper graphs that compute the same.

    Classes are matched by full name, so that a subclass, which may compute anything, is left as it is. Every function may change
    the module it is given.

    Attributes:
        layer: Full name of the class of an encoder layer (``transformers.models.bert.modeling_bert.BertLayer``).
        post_norm: ``post_norm(layer)``: a `pocketbert.export.adapters.parts.Parts` of a post-norm layer; None of another kind.
        lean: ``lean(layer, first_row, shape)``: the cheaper layer, where `post_norm` is None.
        stack: ``stack(encoder)``: a `pocketbert.export.adapters.parts.Stack` of an encoder that runs its layers more often than
            it stores them; `post_norm` then takes apart the layers of that stack. None where each layer runs once.
        channels_first: ``channels_first(layer)``: the layer for Apple's Neural Engine, where `post_norm` is None.
        embeddings: ``embeddings(model)``: the model with cheaper embeddings, before anything else is rewritten.
        head: ``head(model)``: the model with a cheaper head.
        half_range: ``half_range(model, outputs, samples)``: brings large numbers into the range of fp16; returns what the last
            states are multiplied with.
        first_token_heads: Suffixes of classes whose outputs depend on the first token's last state alone.
    """

    layer: str
    post_norm: Callable[[Any], Any] | None = None
    lean: Callable[[Any, bool, Any], Any] | None = None
    stack: Callable[[Any], Any] | None = None
    channels_first: Callable[[Any], Any] | None = None
    embeddings: Callable[[Any], Any] | None = None
    head: Callable[[Any], Any] | None = None
    half_range: Callable[[Any, Sequence[str], Sequence[Any]], float] | None = None
    first_token_heads: tuple[str, ...] = ("ForSequenceClassification",)


@dataclass(frozen=True)
class CheckpointCode:
    """The code that reads checkpoints of a family which transformers cannot read.

    Attributes:
        make_known: ``make_known()``: lets transformers' Auto classes open folders of the family; may be called again.
        read_names: ``read_names(state)``: weights under the names of the classes, from those names or the original ones.
        complete: ``complete(model)``: makes a model that was loaded or built take the inputs of the family's row, where
            its class wants more.
        take_form: ``take_form(model, form, folder, entities)``: makes a loaded model take the inputs of an `ExportForm`, or of none;
            `entities` is a file of those to keep. Returns the entities of its table.
        tokenizer_json: ``tokenizer_json(folder)``: content of a tokenizer.json, from the files that authors ship.
        check_tokenizer: ``check_tokenizer(folder)``: refuses tokenizer files that nothing converts; called where the folder has
            no tokenizer.json.
        change_tokenizer: ``change_tokenizer(folder, content)``: tokenizer.json as the authors' own library cuts texts, from what
            transformers made of the files in the folder.
    """

    make_known: Callable[[], None] | None = None
    read_names: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None
    complete: Callable[[Any], None] | None = None
    take_form: Callable[[Any, ExportForm | None, Path, Path | None], list[dict[str, str]]] | None = None
    tokenizer_json: Callable[[Path], str] | None = None
    check_tokenizer: Callable[[Path], None] | None = None
    change_tokenizer: Callable[[Path, dict[str, Any]], dict[str, Any]] | None = None


ADAPTERS: Registry[Adapter] = Registry("adapter", "register_adapter")
CAPTURES: Registry[Capture] = Registry("capture", "register_capture")
LAYER_PARTS: Registry[LayerParts] = Registry("layer-parts", "register_layer_parts")
CHECKPOINTS: Registry[CheckpointCode] = Registry("checkpoints", "register_checkpoints")


def register_adapter(key: str, adapter: Adapter) -> None:
    """Register the code that makes the models of a family exportable.

    Args:
        key: What rows name as `Family.adapter`.
        adapter: Called with an eager copy of a model, which it may change, and an `ExportPlan`.
    """
    ADAPTERS.register(key, adapter)


def register_capture(key: str, install: Capture) -> None:
    """Register the code that makes the models of a family hand their attention to a recorder.

    Args:
        key: What rows name as `Family.capture`.
        install: Called with a model, which it changes for good.
    """
    CAPTURES.register(key, install)


def register_layer_parts(key: str, parts: LayerParts) -> None:
    """Register how the encoder layers of a family are taken apart, for cheaper graphs.

    Args:
        key: What rows name as `Family.layer_parts`.
        parts: The functions.
    """
    LAYER_PARTS.register(key, parts)


def register_checkpoints(key: str, code: CheckpointCode) -> None:
    """Register the code that reads the checkpoints of a family.

    Args:
        key: What rows name as `Family.checkpoints`.
        code: The functions.
    """
    CHECKPOINTS.register(key, code)


def checkpoint_code(family: Family) -> CheckpointCode:
    """Return the code that reads checkpoints of a family in addition to transformers."""
    if family.checkpoints is None:
        return CheckpointCode()
    return CHECKPOINTS.find(family.checkpoints, f"family {family.name}")
