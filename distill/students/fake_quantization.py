"""A module that computes with rounded numbers and can be trained: rounding passes gradients on as if it were not there.

Source: Bengio et al. 2013, arXiv 1308.3432 (straight-through); Esser et al. 2020, arXiv 1902.08153, for steps that are learned.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families.config import ACTIVATION_KEYS, CLIPPED, HIGHEST, activation_of, not_clippable

# --- clipped ---
# ReLU6 in place of ReLU: what feed-forward parts make lies between 0 and 6, whatever the text.
#
# Source: the configuration for quantization-aware training of MobileBERT (Sun et al. 2020, arXiv 2004.02984),
# config/uncased_L-24_H-128_B-512_A-4_F-4_OPT_QAT.json of the original code.


def clip_activations(student: Any, where: str) -> Callable[[], None]:
    """Put relu6 in place of a model's relu, in its modules and in its configuration.

    Args:
        student: A transformers model. **It is changed in place.**
        where: Recipe key of the choice, for errors.

    Returns:
        A function that undoes it.

    Raises:
        InputError: If the activation is another one, or does not follow from the configuration.
    """
    config = student.config
    name = activation_of(config.to_dict())
    if name == CLIPPED:
        return lambda: None
    paths = [path for path, module in student.named_modules() if type(module) is nn.ReLU]
    if name != "relu" or not paths:
        raise InputError(not_clippable(name, where))
    key = next(k for k in ACTIVATION_KEYS if getattr(config, k, None) == name)
    _check_rebuilt(student, key, paths, where)
    _put(student, key, CLIPPED, {path: nn.ReLU6() for path in paths})
    return lambda: _put(student, key, name, {path: nn.ReLU() for path in paths})


def is_clip(function: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> bool:
    """Whether a call of a function of torch computes relu6.

    Args:
        function: The function, as `torch.overrides.TorchFunctionMode` gets it.
        arguments: What it is called with.
        named: What it is called with by name.
    """
    if function is F.relu6:
        return True
    ends = {**dict(zip(("min_val", "max_val"), arguments[1:3], strict=False)), **named}
    return function is F.hardtanh and (ends.get("min_val"), ends.get("max_val")) == (0.0, HIGHEST)


def _check_rebuilt(student: Any, key: str, paths: list[str], where: str) -> None:
    """Refuse a model that its changed configuration would not build again: its folder would be another model."""
    config = copy.deepcopy(student.config)
    setattr(config, key, CLIPPED)
    with torch.device("meta"):
        twin = type(student)(config)
    if [path for path, module in twin.named_modules() if isinstance(module, nn.ReLU6)] != paths:
        what = f"a model of {CLIPPED} cannot be built from config.json: {key} is not read at every relu of the student."
        raise InputError(Problem(where, what, "Leave activation out: its ranges are learned."))


def _put(student: Any, key: str, name: str, modules: dict[str, nn.Module]) -> None:
    setattr(student.config, key, name)
    for path, module in modules.items():
        parent, _, own = path.rpartition(".")
        setattr(student.get_submodule(parent), own, module)


Rounding = Callable[[Tensor], Tensor]
_STEPS = 255
_LEAST = 1e-30
"""A step that is never reached: it keeps a range of nothing from being divided by zero."""


class Roundings(Protocol):
    """How a scheme rounds; `pocketbert.quantize.rounding.Simulation` says what each attribute means."""

    @property
    def weights(self) -> Rounding:
        """Of a linear layer's weights."""
        ...

    @property
    def tables(self) -> Rounding:
        """Of an embedding table that no product reads."""
        ...

    @property
    def other_tables(self) -> Rounding | None:
        """Of the tables other than the largest, where it differs."""
        ...

    @property
    def inputs(self) -> Rounding | None:
        """Of what weights are multiplied with, where its range is not static."""
        ...

    @property
    def small(self) -> int:
        """Weights of at most this many numbers stay float."""
        ...

    @property
    def static(self) -> bool:
        """Whether inputs have learned ranges."""
        ...

    @property
    def outputs(self) -> bool:
        """Whether results have learned ranges, too."""
        ...

    @property
    def narrowing(self) -> bool:
        """Whether products with fewer results than terms have learned ranges, too."""
        ...

    @property
    def shared_inputs(self) -> bool:
        """Whether an input has the range of a tensor that others read, which is not learned."""
        ...

    @property
    def fixed_positions(self) -> bool:
        """Whether a lookup of constant indices stays float."""
        ...

    @property
    def left(self) -> frozenset[str]:
        """Paths of weights that stay float."""
        ...

    @property
    def seconds(self) -> Sequence[tuple[frozenset[str], Roundings]]:
        """Paths of weights that another scheme rounds, with that scheme."""
        ...


@dataclass(frozen=True)
class Site:
    """Where a range is: the input or the result of a product.

    Attributes:
        product: Path of the linear layer.
        reads: Whether it is its input.
    """

    product: str
    reads: bool


class Ranges(nn.Module):
    """Ranges that training moves: ``low * exp(a)`` to ``high * exp(b)``, so that none changes its sign.

    Args:
        measured: Smallest and largest number of each, where training begins.
        fixed: Numbers of the ranges that stay.
    """

    low: Tensor
    high: Tensor
    moves: Tensor

    def __init__(self, measured: Sequence[tuple[float, float]], fixed: Collection[int] = ()) -> None:
        super().__init__()
        moves = [float(number not in fixed) for number in range(len(measured))]
        self.register_buffer("moves", torch.tensor(moves), persistent=False)
        ends = torch.tensor(measured, dtype=torch.float32).reshape(-1, 2)
        self.register_buffer("low", ends[:, 0].clone())
        self.register_buffer("high", ends[:, 1].clone())
        self.lower, self.upper = nn.Parameter(torch.zeros(len(ends))), nn.Parameter(torch.zeros(len(ends)))

    def ends(self) -> tuple[Tensor, Tensor]:
        """All ranges as they are now, [N] and [N]."""
        return self.low * (self.moves * self.lower).exp(), self.high * (self.moves * self.upper).exp()


def through(values: Tensor, rounding: Rounding) -> Tensor:
    """Round, with the gradient of not rounding."""
    with torch.no_grad():
        change = rounding(values) - values
    return values + change


def rounded_between(values: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Round to 256 steps from `low` to `high`, zero being one of them; gradients reach the values and both ends.

    Args:
        values: Any shape.
        low: 0 or less, scalar.
        high: 0 or more, scalar.
    """
    step = (high - low) / _STEPS + _LEAST
    zero = through(-low / step, torch.round)
    return ((through(values / step, torch.round) + zero).clamp(0, _STEPS) - zero) * step


class RoundedModule:
    """A prepared module that runs with the numbers of a scheme, its weights being handed in.

    Args:
        module: The module, in eval mode.
        how: How the scheme rounds.

    Attributes:
        sites: Number of the range of each site; products that read one tensor share its range.
        tables: Embedding tables after rounding, by the place of the table; none is trained.
    """

    def __init__(self, module: nn.Module, how: Roundings) -> None:
        self.module, self.how = module, how
        self.sites: dict[Site, int] = {}
        self.tables: dict[int, Tensor] = {}
        self._names = {name: m for name, m in module.named_modules() if isinstance(m, nn.Linear)}

    def measure(self, feeds: Iterable[Sequence[Tensor]]) -> Ranges:
        """Measure where ranges begin: the smallest and largest numbers of some rows, computed without rounding.

        What relu6 makes has the range that it clips to, and so has a result that only relu6 reads: both stay.

        Args:
            feeds: Inputs of each row, without padding.
        """
        if not self.how.static:
            return Ranges([])
        mode = _Measuring(self)
        for feed in feeds:
            mode.seen, mode.clipped = [], []
            with torch.no_grad(), mode:
                self.module(*feed)
        self.sites = mode.sites
        ranges = [(0.0, HIGHEST) if n in mode.fixed else r for n, r in enumerate(mode.ranges)]
        return Ranges(ranges, mode.fixed | mode.shared)

    def __call__(self, weights: Mapping[str, Tensor], ranges: Ranges, feed: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Run with rounded numbers.

        Args:
            weights: Trained weights by name.
            ranges: The ranges.
            feed: Inputs, [B, L] each.
        """
        with _Rounding(self, weights, ranges):
            made: tuple[Tensor, ...] = functional_call(self.module, dict(weights), tuple(feed))
        return made

    def how_of(self, product: str) -> Roundings | None:
        """Return how a linear layer is computed; None where it stays float.

        Args:
            product: Its path.
        """
        weight = f"{product}.weight"
        if weight in self.how.left:
            return None
        return next((how for weights, how in self.how.seconds if weight in weights), self.how)

    def learned(self, product: str) -> list[Site]:
        """Sites of a linear layer whose ranges a file takes from training.

        Args:
            product: Its path.
        """
        how = self.how_of(product)
        shared = how is not None and how.shared_inputs
        return [Site(product, reads) for reads in (True, False) if not (reads and shared)]

    def product(self, weight: Tensor, weights: Mapping[str, Tensor]) -> str:
        """Path of the linear layer that a weight is of; empty where it is of none."""
        for name, module in self._names.items():
            if weights.get(f"{name}.weight", module.weight) is weight:
                return str(name)
        return ""


class _Measuring(TorchFunctionMode):
    """Widens ranges by what products read and make."""

    def __init__(self, owner: RoundedModule) -> None:
        super().__init__()
        self._owner = owner
        self.sites: dict[Site, int] = {}
        self.ranges: list[tuple[float, float]] = []
        self.seen: list[tuple[Tensor, int]] = []
        """Tensors of the row that is running, kept: memory that is freed could be another tensor's."""
        self.clipped: list[Tensor] = []
        """Those of them that relu6 made."""
        self.fixed: set[int] = set()
        """Ranges that relu6 decides."""
        self.shared: set[int] = set()
        """Ranges of tensors that others read too, which are not learned."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if is_clip(func, args, kwargs or {}):
            self.clipped.append(made)
            self.fixed.update(number for tensor, number in self.seen if tensor is args[0])
        if func is F.linear and (name := self._owner.product(args[1], {})):
            how = self._owner.how_of(name)
            if how is not None and (how.narrowing or args[1].shape[0] >= args[1].shape[1]):
                self._measure(how, name, args[0], made)
        return made

    def _measure(self, how: Roundings, name: str, read: Tensor, made: Tensor) -> None:
        if how.static:
            self._widen(Site(name, reads=True), read)
        if how.static and how.shared_inputs:
            self.shared.add(self.sites[Site(name, reads=True)])
        if how.outputs:
            self._widen(Site(name, reads=False), made)

    def _widen(self, site: Site, values: Tensor) -> None:
        known = next((n for tensor, n in self.seen if tensor is values), None)
        if site not in self.sites:
            self.sites[site] = len(self.ranges) if known is None else known
            if known is None:
                self.ranges.append((0.0, 0.0))
        number = self.sites[site]
        self.seen.append((values, number))
        if any(tensor is values for tensor in self.clipped):
            self.fixed.add(number)
        low, high = self.ranges[number]
        self.ranges[number] = min(low, float(values.min())), max(high, float(values.max()))


class _Rounding(TorchFunctionMode):
    """Replaces the functions of torch that read stored weights, while it is entered."""

    def __init__(self, owner: RoundedModule, weights: Mapping[str, Tensor], ranges: Ranges) -> None:
        super().__init__()
        self._owner, self._weights = owner, weights
        self._low, self._high = ranges.ends()
        tables = [m.weight for m in owner.module.modules() if isinstance(m, nn.Embedding)]
        self._most = max((t.numel() for t in tables), default=0)
        self._constants = {b.untyped_storage().data_ptr() for b in owner.module.buffers()}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.linear:
            return self._linear(*args, **(kwargs or {}))
        if func is F.embedding:
            return self._lookup(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _linear(self, values: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        name = self._owner.product(weight, self._weights)
        how = self._owner.how_of(name)
        if how is None:
            return F.linear(values, weight, bias)
        small = weight.numel() <= how.small
        given = self._between(Site(name, reads=True), values) if how.static else values
        if how.inputs is not None:
            given = through(given, how.inputs)
        made = F.linear(given, weight if small else through(weight, how.weights), bias)
        return self._between(Site(name, reads=False), made) if how.outputs else made

    def _lookup(self, indices: Tensor, table: Tensor, *more: Any, **named: Any) -> Tensor:
        how = self._owner.how
        constant = how.fixed_positions and indices.untyped_storage().data_ptr() in self._constants
        if constant or table.numel() <= how.small:
            return F.embedding(indices, table, *more, **named)
        read = bool(self._owner.product(table, self._weights))
        other = how.other_tables if table.numel() < self._most else None
        kind = how.weights if read else other or how.tables
        place = table.data_ptr()
        if place not in self._owner.tables:
            with torch.no_grad():
                self._owner.tables[place] = kind(table)
        return F.embedding(indices, self._owner.tables[place], *more, **named)

    def _between(self, site: Site, values: Tensor) -> Tensor:
        number = self._owner.sites.get(site)
        return values if number is None else rounded_between(values, self._low[number], self._high[number])


# --- prepared_weights ---
# A student's weights in the module that its files are exported from: which is which, and how it was rewritten.
#
# Exporters rewrite a copy of the student: a scale goes into the queries, the last layer's keys are transposed, outlier channels are
# divided. What is trained stays the student, so each weight of the rewritten module is computed from the student's in every step.
# How is found by changing the student and looking at what changes in the module.


Prepare = Callable[[Any, bool], nn.Module]
"""Rewrites a copy of a model for export; the second argument tells whether outlier channels are divided."""
_CLOSE = 1e-5
"""Largest difference of a weight that is computed here and one that was rewritten, relative to the largest."""


@dataclass(frozen=True)
class Origin:
    """Where a weight of a rewritten module comes from.

    Attributes:
        name: Path of the student's parameter.
        transposed: Whether it was transposed.
        factor: What it was multiplied with: a number, or one for each row or number.
    """

    name: str
    transposed: bool
    factor: Tensor

    def of(self, weights: Mapping[str, Tensor]) -> Tensor:
        """Compute the weight from the student's parameters."""
        value = weights[self.name]
        return (value.t() if self.transposed else value) * self.factor.to(value.device)


@dataclass(frozen=True)
class PreparedWeights:
    """A rewritten module, and how its weights follow the student's.

    Attributes:
        module: The module, whose own weights are those of the student when it was rewritten.
        origins: Where each trained weight of it comes from, by name.
    """

    module: nn.Module
    origins: Mapping[str, Origin]

    def of(self, student: nn.Module) -> dict[str, Tensor]:
        """Compute the trained weights of the module, by name; gradients reach the student."""
        weights = dict(student.named_parameters())
        return {name: origin.of(weights) for name, origin in self.origins.items()}


def prepared_weights(student: nn.Module, prepare: Prepare) -> PreparedWeights | None:
    """Find out how a rewritten module follows from a student.

    Biases and norms are trained too where the rewriting leaves them apart from the matrices; otherwise matrices only.
    Embedding tables are constants.

    Args:
        student: The model.
        prepare: Rewrites a copy of it.

    Returns:
        None where some weight of the module is not one of the student's, multiplied or transposed: it cannot be trained.
    """
    plain, module = prepare(student, False), prepare(student, True)
    before, after = _tensors(plain), _tensors(module)
    for wanted in (_trained(student, matrices=False), _trained(student, matrices=True)):
        origins = _origins(before, student, prepare, wanted)
        if origins is not None and _reaches_products(module, origins):
            divided = {name: _divided(o, before[name], after[name]) for name, o in origins.items()}
            return PreparedWeights(module, divided)
    return None


def _trained(student: nn.Module, matrices: bool) -> list[str]:
    """Names of the parameters to train: all but the tables, or the weights of linear layers only."""
    tables = {id(p) for m in student.modules() if isinstance(m, nn.Embedding) for p in m.parameters()}
    linear = {id(m.weight) for m in student.modules() if isinstance(m, nn.Linear)}
    return [name for name, p in student.named_parameters() if id(p) not in tables and (not matrices or id(p) in linear)]


def _origins(
    before: Mapping[str, Tensor], student: nn.Module, prepare: Prepare, wanted: list[str]
) -> dict[str, Origin] | None:
    """The origin of everything that follows the wanted parameters; None where something follows in another way."""
    changed = [_changed(student, wanted, seed) for seed in (1, 2)]
    first, second = (_tensors(prepare(model, False)) for model in changed)
    given, other = ({n: p.detach() for n, p in m.named_parameters() if n in wanted} for m in changed)
    if not before.keys() == first.keys() == second.keys():
        return None
    out = {}
    for name, value in before.items():
        if torch.equal(value, first[name]):
            continue
        origin = _origin(first[name], given)
        if origin is None or not _close(origin.of(other), second[name]):
            return None
        out[name] = origin
    return out


def _changed(student: nn.Module, names: list[str], seed: int) -> nn.Module:
    """A copy with other numbers, so that no two weights are alike."""
    made, random = copy.deepcopy(student), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if name in names:
                noise = torch.randn(parameter.shape, generator=random).to(parameter)
                parameter.add_(0.1 * noise * parameter.abs().mean() + 0.01 * noise)
    return made


def _origin(value: Tensor, candidates: Mapping[str, Tensor]) -> Origin | None:
    for name, given in candidates.items():
        for transposed in (False, True) if given.ndim == 2 else (False,):
            one = given.t() if transposed else given
            if one.shape == value.shape and (factor := _factor(value, one)) is not None:
                return Origin(name, transposed, factor)
    return None


def _factor(value: Tensor, given: Tensor) -> Tensor | None:
    """What `given` is multiplied with to be `value`: one number, or one for each row."""
    at = given.abs().argmax()
    number = value.flatten()[at] / given.flatten()[at]
    if _close(given[:1] * number, value[:1]) and _close(given * number, value):
        return number
    if given.ndim < 2:
        return None
    places = given.abs().argmax(1, keepdim=True)
    rows = value.gather(1, places) / given.gather(1, places)
    return rows if _close(given * rows, value) else None


def _divided(origin: Origin, plain: Tensor, real: Tensor) -> Origin:
    """The same with the powers of two that outlier channels were divided by, or what reads them multiplied."""
    if torch.equal(plain, real):
        return origin
    powers = torch.where(plain == 0, torch.ones_like(plain), real / plain)
    return Origin(origin.name, origin.transposed, origin.factor * powers)


def _reaches_products(module: nn.Module, origins: Mapping[str, Origin]) -> bool:
    """Whether every product but those that read a table is trained."""
    tables = {id(m.weight) for m in module.modules() if isinstance(m, nn.Embedding)}
    names = [n for n, m in module.named_modules() if isinstance(m, nn.Linear) and id(m.weight) not in tables]
    return bool(names) and all(f"{name}.weight" in origins for name in names)


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    named = (*module.named_parameters(), *module.named_buffers())
    return {name: value.detach() for name, value in named}


def _close(found: Tensor, wanted: Tensor) -> bool:
    return bool((found - wanted).abs().max() <= _CLOSE * wanted.abs().max())
