"""Static students: a table of token vectors that the teacher makes, their mean or windows over neighbours, and a small head; no layers.

`build_static_student` makes one from a teacher: each piece of the vocabulary goes through the teacher by itself, and
the principal components of its states become the rows of the table. Importing this module registers the classes with
transformers.

The weight of a token is the length of its row, as in SIF (Arora et al. 2017, "A Simple but Tough-to-Beat Baseline for
Sentence Embeddings") and model2vec. The rows of special tokens are zeros and stay so, and the mean is scaled to a fixed
length, so that neither they nor padding change the answer for a text. Of a pair u and v, the head reads u, v, |u - v| and u * v
(Reimers and Gurevych 2019, arXiv 1908.10084); ``token_type_ids`` tell the two apart. Where each token has an answer, windows over
three tokens each are added to the token's own vector, as in convolutional taggers (Collobert et al. 2011, "Natural Language
Processing (Almost) from Scratch"); they read special tokens as places without a vector of their own.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    BertTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import BaseModelOutput, SequenceClassifierOutput, TokenClassifierOutput

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import Family, list_static_problems
from pocketbert.core.host.progress import Meter
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.student import STATIC_DIMENSIONS
from pocketbert.core.seeds import derive_seed
from pocketbert.core.tasks import Task, TaskName
from pocketbert.distill.students.projection import find_principal_axes

_PIECES_AT_ONCE = 512
_BLOCK = 32
"""Numbers of a row that share a scale in tables of 4 bits."""
_SIF = 1e-4
"""Probability of a token whose weight is halved, as in model2vec."""
_WINDOWS = 4
"""Windows of students with an answer for each token, which see nine tokens; fewer lost tags (`lab/static_tags.py`)."""
_TABLE_SCALE = 0.25
"""Root mean square of the numbers in a new table, about that of a teacher's states."""
_SHORTEST = 1e-4
"""Lower bound of the largest number of a mean, so that an empty text has zeros; fp16 holds this number."""
_SMALLEST_SQUARE = 1e-6
"""Lower bound of the mean square of an empty text's numbers, the others being 1 at most; fp16 holds this number."""


# --- the classes ------------------------------------------------------------------------------------------------------


class StaticConfig(PreTrainedConfig):  # type: ignore[misc]
    """Configuration of a static student.

    Attributes:
        embedding_size: Width of the table: how many numbers each token's row has.
        hidden_size: Width of token states: that of the teacher for embeddings, else that of the table.
        intermediate_size: Width of the head.
        windows: Windows over neighbouring tokens, one behind the other; each adds the next token on both sides to those that a
            token's state depends on. 0 unless each token has an answer.
        type_vocab_size: 2 if the model takes pairs of texts, else 0.
        word_dropout: Share of the tokens that training leaves out of the mean; of the numbers of their vectors where each
            token has an answer.
        pad_token_id: Id of the padding token. It and the tokens of the other entries ``*_token_id`` have no vector.
    """

    model_type = "static_embeddings"

    vocab_size: int = 30522
    embedding_size: int = STATIC_DIMENSIONS
    hidden_size: int = STATIC_DIMENSIONS
    intermediate_size: int = 512
    num_hidden_layers: int = 0
    windows: int = 0
    type_vocab_size: int = 0
    hidden_act: str = "relu"
    classifier_dropout: float | int = 0.3
    word_dropout: float | int = 0.1
    pad_token_id: int | None = 0
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    cls_token_id: int | None = None
    sep_token_id: int | None = None
    mask_token_id: int | None = None
    tie_word_embeddings: bool = False

    @property
    def special_ids(self) -> list[int]:
        """Ids of the tokens without a vector, ascending."""
        names = ("pad", "bos", "eos", "cls", "sep", "mask")
        ids = (getattr(self, f"{name}_token_id") for name in names)
        return sorted({i for i in ids if i is not None})


class StaticPreTrainedModel(PreTrainedModel):  # type: ignore[misc]
    """Base of the classes: drawing weights and finding the table."""

    config_class = StaticConfig
    base_model_prefix = "static"
    main_input_name = "input_ids"
    _supports_sdpa = False

    def _init_weights(self, module: nn.Module) -> None:
        """Draw the weights of a linear layer, or the rows of the table, so that outputs are about as large as inputs."""
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=module.in_features**-0.5)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=_TABLE_SCALE)
            with torch.no_grad():
                module.weight[self.config.special_ids] = 0


class StaticModel(StaticPreTrainedModel):
    """The table and its windows, without a head: from token ids [B, L] to token states [B, L, hidden_size].

    Without windows the states of special tokens are zeros.
    """

    def __init__(self, config: StaticConfig) -> None:
        super().__init__(config)
        self.embeddings = nn.ModuleDict({"word_embeddings": nn.Embedding(config.vocab_size, config.embedding_size)})
        self.layers = nn.ModuleList()
        projected = config.hidden_size != config.embedding_size
        self.projection = nn.Linear(config.embedding_size, config.hidden_size, bias=False) if projected else None
        width = config.hidden_size
        self.windows = nn.ModuleList(nn.Linear(3 * width, width) for _ in range(config.windows))
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """Return the table."""
        table: nn.Module = self.embeddings["word_embeddings"]
        return table

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the table."""
        self.embeddings["word_embeddings"] = value

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any) -> BaseModelOutput:
        """Look up the vectors of the tokens; windows add what the tokens beside each say.

        Without windows neighbours change nothing, so that the mask is not read.
        """
        states = self.embeddings["word_embeddings"](input_ids)
        if self.training:  # no gradient, so that the rows of special tokens stay zeros
            special = torch.tensor(self.config.special_ids, device=input_ids.device)
            states = states * (~torch.isin(input_ids, special))[:, :, None]
        if self.projection is not None:
            states = self.projection(states)
        return BaseModelOutput(last_hidden_state=self._read_windows(states, attention_mask) if self.windows else states)

    def _read_windows(self, states: Tensor, attention_mask: Tensor | None) -> Tensor:
        """Add to each token's state [B, L, H] what the windows read in it and the tokens beside it; zeros where the mask is 0."""
        states = F.dropout(states, self.config.word_dropout, self.training)
        # masked before each window: a text's last tokens would otherwise depend on whether padding follows
        mask = (
            torch.ones_like(states[:, :, :1]) if attention_mask is None else attention_mask[:, :, None].to(states.dtype)
        )
        states = states * mask
        for window in self.windows:
            around = F.pad(states, (0, 0, 1, 1))
            read = window(torch.cat([around[:, :-2], states, around[:, 2:]], -1))
            states = (states + F.relu(read)) * mask
        return states


class _StaticWithHead(StaticPreTrainedModel):
    """A table with a head of two linear layers, which reads `vectors` vectors side by side."""

    def __init__(self, config: StaticConfig, vectors: int = 1) -> None:
        super().__init__(config)
        self.num_labels = config.num_labels
        self.static = StaticModel(config)
        self.dense = nn.Linear(config.hidden_size * vectors, config.intermediate_size)
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.classifier = nn.Linear(config.intermediate_size, config.num_labels)
        self.post_init()

    def _classify(self, vectors: Tensor) -> Tensor:
        """Compute the logits [..., labels] of what the head reads, [..., vectors * hidden_size]."""
        return cast("Tensor", self.classifier(self.dropout(F.relu(self.dense(vectors)))))


class StaticForSequenceClassification(_StaticWithHead):
    """A table with a head of two linear layers on the mean of a text, or on the means of a pair of texts."""

    def __init__(self, config: StaticConfig) -> None:
        pairs = config.type_vocab_size > 1
        super().__init__(config, vectors=4 if pairs else 1)
        self.pairs, self.word_dropout = pairs, nn.Dropout(config.word_dropout)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None, **_: Any
    ) -> SequenceClassifierOutput:
        """Compute the logits [B, labels] of texts, or of pairs of texts.

        ``token_type_ids``, [B, L], is 1 at the tokens of a pair's second text.
        """
        states = self.static(input_ids).last_hidden_state
        weights = torch.ones_like(states[:, :, 0]) if attention_mask is None else attention_mask.to(states.dtype)
        weights = self.word_dropout(weights)
        if self.pairs:
            second = torch.zeros_like(weights) if token_type_ids is None else token_type_ids.to(states.dtype)
            u, v = _mean_direction(states, weights * (1.0 - second)), _mean_direction(states, weights * second)
            vector = torch.cat([u, v, (u - v).abs(), u * v], -1)
        else:
            vector = _mean_direction(states, weights)
        return SequenceClassifierOutput(logits=self._classify(vector))


class StaticForTokenClassification(_StaticWithHead):
    """A table with windows over neighbouring tokens, and a head of two linear layers for each token."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any) -> TokenClassifierOutput:
        """Compute the logits [B, L, labels] of tokens from their own vectors and those of `windows` tokens on each side."""
        states = self.static(input_ids, attention_mask).last_hidden_state
        return TokenClassifierOutput(logits=self._classify(states))


def _mean_direction(states: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted mean of token states, [B, H], scaled to a root mean square of 1, or zeros for an empty text.

    Args:
        states: Token states, [B, L, H].
        weights: Weight of each token, [B, L]; 0 leaves a token out.
    """
    weights = weights[:, :, None]
    # the scale removes the count again, but fp16 may not hold a sum over hundreds of tokens
    mean = (states * weights).sum(1) / torch.maximum(weights.sum(1), torch.full((), 1.0))
    # first by the largest entry: in fp16 the squares of small numbers vanish
    mean = mean / torch.maximum(mean.abs().amax(-1, keepdim=True), torch.full((), _SHORTEST))
    # bounded before the root, whose gradient at 0 is not finite: dropout may leave out all words of a text
    return mean / torch.maximum((mean * mean).mean(-1, keepdim=True), torch.full((), _SMALLEST_SQUARE)).sqrt()


# transformers' Auto classes open folders of static students in this process
AutoConfig.register(StaticConfig.model_type, StaticConfig, exist_ok=True)
AutoTokenizer.register(StaticConfig, BertTokenizer, exist_ok=True)
AutoModel.register(StaticConfig, StaticModel, exist_ok=True)
AutoModelForSequenceClassification.register(StaticConfig, StaticForSequenceClassification, exist_ok=True)
AutoModelForTokenClassification.register(StaticConfig, StaticForTokenClassification, exist_ok=True)


def clear_special_rows(model: Any) -> None:
    """Set the rows of special tokens in a static student's table to zeros, which its answers rely on."""
    with torch.no_grad():
        model.get_input_embeddings().weight[model.config.special_ids] = 0


# --- building one from a teacher --------------------------------------------------------------------------------------


def build_static_student(
    teacher: Any,
    family: Family,
    tokenizer: TextTokenizer,
    task: Task,
    dimensions: int | None = None,
    pairs: bool = False,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Any:
    """Build a static student whose table is computed from a teacher's states. The weights of its head are random.

    Args:
        teacher: A transformers model in eval mode.
        family: Names and inputs of the teacher's model family.
        tokenizer: The teacher's tokenizer, which the student uses too.
        task: Task of the student; decides its head. For feature extraction there is none, and the token states are as
            wide as the teacher's.
        dimensions: Width of the table; default 256, or less if the teacher's states are narrower.
        pairs: Whether the rows are pairs of texts.
        seed: Seed of the head's weights.
        dtype: Dtype of the teacher's matrix products, float32 or bfloat16.

    Returns:
        A `StaticForSequenceClassification`, a `StaticForTokenClassification`, or a `StaticModel` for feature extraction; fp32, in
        training mode.

    Raises:
        InputError: If a static student cannot do the task, the teacher's states have fewer components than
            `dimensions`, or the teacher's family pads on the left or does not mark the second text of pairs.
    """
    embeds = task.name is TaskName.FEATURE_EXTRACTION
    most = teacher.config.hidden_size - embeds
    dimensions = dimensions or _default_dimensions(teacher, task)
    problems = list_static_problems(family, task.name, pairs and not embeds)  # vectors are of single texts
    if dimensions > most:
        what = f"{dimensions} is more than the {most} components that the states of the teacher have here."
        problems.append(Problem("student.dimensions", what, f"Choose at most {most}, or leave it out."))
    if problems:
        raise InputError(problems)
    vectors = embed_pieces(teacher, family, tokenizer, dtype)
    special = sorted(set(_name_special_tokens(tokenizer).values()))
    table, components = reduce_vectors(vectors, special, dimensions)
    student = draw_static_student(teacher, tokenizer, task, dimensions, pairs, seed)
    with torch.no_grad():
        student.get_input_embeddings().weight.copy_(table)
        if student.base_model.projection is not None:
            student.base_model.projection.weight.copy_(components)
    return student.train()


def draw_static_student(
    teacher: Any,
    tokenizer: TextTokenizer,
    task: Task,
    dimensions: int | None = None,
    pairs: bool = False,
    seed: int = 0,
) -> Any:
    """Return a static student of the shape that `build_static_student` gives, in training mode, with random weights; arguments as there."""
    width, embeds = teacher.config.hidden_size, task.name is TaskName.FEATURE_EXTRACTION
    dimensions = dimensions or _default_dimensions(teacher, task)
    config = StaticConfig(
        vocab_size=teacher.get_input_embeddings().num_embeddings,
        embedding_size=dimensions,
        hidden_size=width if embeds else dimensions,
        type_vocab_size=2 if pairs and not embeds else 0,
        windows=_WINDOWS if task.name is TaskName.TOKEN_CLASSIFICATION else 0,
        problem_type=teacher.config.problem_type,
        id2label=teacher.config.id2label,
        label2id=teacher.config.label2id,
        **_name_special_tokens(tokenizer),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "student"))
        student: Any = _CLASSES.get(task.name, StaticForSequenceClassification)(config)
    return student.train()


_CLASSES = {
    TaskName.FEATURE_EXTRACTION: StaticModel,
    TaskName.TOKEN_CLASSIFICATION: StaticForTokenClassification,
}
"""Classes of the tasks whose head is not that of one answer for a text."""


def _default_dimensions(teacher: Any, task: Task) -> int:
    """Return the default number of dimensions of a static student.

    It is 256, or less if the teacher's width (for feature extraction two thirds of it) is smaller. The smaller width is
    rounded down to a multiple of 32, the block of 4-bit tables, unless it is below 32.
    """
    width = int(teacher.config.hidden_size)
    most = 2 * width // 3 if task.name is TaskName.FEATURE_EXTRACTION else width
    return min(STATIC_DIMENSIONS, most // _BLOCK * _BLOCK or most)


def embed_pieces(teacher: Any, family: Family, tokenizer: TextTokenizer, dtype: torch.dtype = torch.float32) -> Tensor:
    """Run each piece of the vocabulary through a teacher as a text of its own, ``[CLS] piece [SEP]``.

    Args:
        teacher: A transformers model in eval mode.
        family: Names and inputs of the teacher's model family.
        tokenizer: The teacher's tokenizer, which decides the special tokens around a piece.
        dtype: Dtype of matrix products, float32 or bfloat16. They run on a GPU if there is one.

    Returns:
        One vector for each piece, [V, H] float32: the mean of the last states of its text, special tokens included, as
        model2vec computes it.
    """
    before, after = _frame(tokenizer)
    count = teacher.get_input_embeddings().num_embeddings
    vectors = torch.empty(count, teacher.config.hidden_size)
    home, device = teacher.device, torch.device("cuda") if torch.cuda.is_available() else teacher.device
    encoder = getattr(teacher, teacher.base_model_prefix, teacher).to(device)
    autocast = torch.autocast(device.type, dtype, enabled=dtype is torch.bfloat16)
    with Meter("token vectors", count) as meter, torch.inference_mode(), autocast:
        for start in range(0, count, _PIECES_AT_ONCE):
            pieces = torch.arange(start, min(start + _PIECES_AT_ONCE, count))
            sides = [torch.tensor(ids, dtype=torch.long).expand(len(pieces), -1) for ids in (before, after)]
            ids = torch.cat([sides[0], pieces[:, None], sides[1]], 1).to(device)
            feed = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}
            states = encoder(**{name: feed[name] for name in family.inputs}).last_hidden_state
            vectors[pieces] = states.float().mean(1).cpu()
            meter.advance(len(pieces))
    encoder.to(home)
    return vectors


def _frame(tokenizer: TextTokenizer) -> tuple[list[int], list[int]]:
    """Return the ids of the special tokens that a tokenizer puts before and after a text."""
    [row] = tokenizer.encode(["a"])
    special = set(tokenizer.special_ids)
    ordinary = [n for n, i in enumerate(row.ids.tolist()) if i not in special]
    first, last = (ordinary[0], ordinary[-1]) if ordinary else (1, 0)
    return row.ids.tolist()[:first], row.ids.tolist()[last + 1 :]


def _name_special_tokens(tokenizer: TextTokenizer) -> dict[str, int]:
    """Return the ids of tokens without a vector (padding, mask, those around texts) by their keys in config.json."""
    before, after = _frame(tokenizer)
    named = {"pad": tokenizer.pad_id, "mask": tokenizer.mask_id}
    named |= dict(zip(("cls", "bos"), before, strict=False)) | dict(zip(("sep", "eos"), after, strict=False))
    return {f"{name}_token_id": i for name, i in named.items() if i is not None}


def reduce_vectors(vectors: Tensor, special: list[int], dimensions: int) -> tuple[Tensor, Tensor]:
    """Compute the rows of a table from token vectors: principal components, weighted by the tokens' frequency.

    A token's probability p is estimated from its place in the vocabulary by Zipf's law, since vocabularies begin with
    frequent pieces; its weight is ``a / (a + p)``, as in SIF and model2vec.

    Args:
        vectors: Vectors of all tokens, [V, H].
        special: Ids of the tokens whose rows are set to zeros.
        dimensions: Number of components D <= H.

    Returns:
        The table, [V, D], and the components, [H, D]. A row of the table times the transposed components is the token's
        centred vector times its weight, up to the components left out.
    """
    ordinary = torch.ones(len(vectors), dtype=torch.bool)
    ordinary[special] = False
    known = vectors[ordinary].double()
    centre = known.mean(0)
    known -= centre
    directions = find_principal_axes(known.T @ known, dimensions)
    ranks = torch.arange(2, len(vectors) + 2, dtype=torch.float64)
    probabilities = 1 / ranks / (1 / ranks).sum()
    table = (vectors.double() - centre) @ directions * (_SIF / (_SIF + probabilities))[:, None]
    table[~ordinary] = 0
    scale = _TABLE_SCALE / table[ordinary].pow(2).mean().sqrt().clamp(min=1e-12)
    return (table * scale).float(), (directions / scale).float()
