"""Run a student with the rounded numbers of a quantized file, so that it can be trained for that file.

In the order in which method `qat` uses them:

1. `clip_activations` replaces a student's ReLU by ReLU6, if the stage asks for it.
2. `trace_prepared_weights` rewrites the student as its exporter does, and finds out how each weight of the rewritten
   module is computed from a parameter of the student. The student is trained; `PreparedWeights.compute` gives the
   module's weights in every step.
3. `RoundedModule.measure_ranges` measures the activation ranges at which training starts (`Ranges`).
4. Calling a `RoundedModule` runs the rewritten module with rounded weights, tables and activations. Rounding passes
   gradients on as if it were not there (straight-through, Bengio et al. 2013, arXiv 1308.3432), and the ends of the
   ranges get gradients too (Esser et al. 2020, arXiv 1902.08153).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families.config import (
    ACTIVATION_KEYS,
    CLIPPED_ACTIVATION,
    RELU6_MAX,
    read_activation,
    relu6_problem,
)

Rounding = Callable[[Tensor], Tensor]
RoundingRules: TypeAlias = Any
"""A `pocketbert.quantize.rounding.Simulation`, which documents each attribute. This wing does not import `quantize`."""
Prepare = Callable[[Any, bool], nn.Module]
"""Rewrites a copy of a model for export; the second argument is whether channels with outliers are divided."""

_LEVELS = 255
_SMALLEST_STEP = 1e-30
"""Added to the step of a range, which would be a division by zero for an empty one."""
_TOLERANCE = 1e-5
"""Largest difference between a computed weight and the exporter's, relative to the largest weight."""


# --- ReLU6 in place of ReLU -------------------------------------------------------------------------------------------


def clip_activations(student: Any, where: str) -> Callable[[], None]:
    """Replace ReLU by ReLU6 in a model and its configuration, so that feed-forward activations stay in 0 to 6.

    A model that has ReLU6 already is left as it is.

    Source: the configuration for quantization-aware training of MobileBERT (Sun et al. 2020, arXiv 2004.02984),
    config/uncased_L-24_H-128_B-512_A-4_F-4_OPT_QAT.json of the original code.

    Args:
        student: A transformers model. **It is changed in place.**
        where: Recipe key of the choice, which error messages name.

    Returns:
        A function that undoes the change.

    Raises:
        InputError: If the activation is another one than relu, or a model built from the changed configuration would
            not have relu6 at the same modules.
    """
    name = read_activation(student.config.to_dict())
    if name == CLIPPED_ACTIVATION:
        return lambda: None
    paths = [path for path, module in student.named_modules() if type(module) is nn.ReLU]
    if name != "relu" or not paths:
        raise InputError(relu6_problem(name, where))
    key = next(k for k in ACTIVATION_KEYS if getattr(student.config, k, None) == name)
    changed_config = copy.deepcopy(student.config)
    setattr(changed_config, key, CLIPPED_ACTIVATION)
    with torch.device("meta"):
        rebuilt = type(student)(changed_config)
    if [path for path, module in rebuilt.named_modules() if isinstance(module, nn.ReLU6)] != paths:
        what = f"a model of {CLIPPED_ACTIVATION} cannot be built from config.json: {key} is not read at every relu of the student."
        raise InputError(Problem(where, what, "Leave activation out: its ranges are learned."))
    _set_activation(student, key, CLIPPED_ACTIVATION, {path: nn.ReLU6() for path in paths})
    return lambda: _set_activation(student, key, name, {path: nn.ReLU() for path in paths})


def _set_activation(student: Any, key: str, name: str, modules: dict[str, nn.Module]) -> None:
    """Set the activation in a model's configuration, and put the given activation modules at their paths."""
    setattr(student.config, key, name)
    for path, module in modules.items():
        parent, _, attribute = path.rpartition(".")
        setattr(student.get_submodule(parent), attribute, module)


def _is_relu6(function: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> bool:
    """Return whether calling a torch function with these arguments computes ReLU6."""
    if function is F.relu6:
        return True
    bounds = {**dict(zip(("min_val", "max_val"), arguments[1:3], strict=False)), **named}
    return function is F.hardtanh and (bounds.get("min_val"), bounds.get("max_val")) == (0.0, RELU6_MAX)


# --- how the weights of the exported module follow from the student ---------------------------------------------------


@dataclass(frozen=True)
class _WeightOrigin:
    """How a weight of the exported module is computed from the student: ``parameter * factor``, perhaps transposed.

    Attributes:
        name: Path of the student's parameter.
        transposed: Whether the parameter is transposed.
        factor: A scalar, a factor for each row [rows, 1], or a tensor of the weight's shape.
    """

    name: str
    transposed: bool
    factor: Tensor

    def compute(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """Compute this weight from the student's parameters by name."""
        value = parameters[self.name]
        return (value.t() if self.transposed else value) * self.factor.to(value.device)


@dataclass(frozen=True)
class PreparedWeights:
    """The module that is exported for a student, and how its weights are computed from the student's parameters.

    Attributes:
        module: The rewritten module, with the weights that the student had when it was rewritten.
        origins: Origin of each trained weight, by its name in the module.
    """

    module: nn.Module
    origins: Mapping[str, _WeightOrigin]

    def compute(self, student: nn.Module) -> dict[str, Tensor]:
        """Compute the module's trained weights by name from a student. Gradients flow back to the student."""
        parameters = dict(student.named_parameters())
        return {name: origin.compute(parameters) for name, origin in self.origins.items()}


def trace_prepared_weights(student: nn.Module, prepare: Prepare) -> PreparedWeights | None:
    """Rewrite a student for export, and find from which student parameter each weight of the result is computed.

    Exporters multiply the queries' weights by a scale, transpose the last layer's keys, and divide outlier channels.
    What they did is found by changing the student's parameters at random and comparing the rewritten modules.

    Biases and norms are trained too if the exporter does not fold them into matrices; otherwise only matrices are.
    Embedding tables are constants.

    Args:
        student: The model; it is not changed.
        prepare: Function that rewrites a copy of the model for export.

    Returns:
        The rewritten module and the origin of its weights. None if a weight that depends on the student is anything but
        one of its parameters, scaled or transposed: such a module cannot be trained.
    """
    undivided, module = prepare(student, False), prepare(student, True)
    before, after = _tensors(undivided), _tensors(module)
    table_ids = {id(p) for m in student.modules() if isinstance(m, nn.Embedding) for p in m.parameters()}
    matrix_ids = {id(m.weight) for m in student.modules() if isinstance(m, nn.Linear)}
    all_names = [name for name, p in student.named_parameters() if id(p) not in table_ids]
    matrix_names = [n for n, p in student.named_parameters() if id(p) not in table_ids and id(p) in matrix_ids]
    constant = {*before}
    for names in (all_names, matrix_names):
        unchanged, origins = _find_origins(before, student, prepare, names)
        constant &= unchanged  # what no parameter changes, matrix or not
        if origins is not None and _covers_matrices(module, origins, constant):
            divided = {name: _with_division(o, before[name], after[name]) for name, o in origins.items()}
            return PreparedWeights(module, divided)
    return None


def _find_origins(
    before: Mapping[str, Tensor], student: nn.Module, prepare: Prepare, names: list[str]
) -> tuple[set[str], dict[str, _WeightOrigin] | None]:
    """Find from which of the named parameters each tensor of a rewritten model is computed.

    A tensor may be a multiple of one parameter, which may be transposed. An origin that is found with one random change
    of the parameters must predict the tensor after a second change.

    Args:
        before: Tensors of the rewritten model before any change, by name.
        student: The model that is changed and rewritten, in copies.
        prepare: Function that rewrites a copy of the model for export.
        names: Parameters that are changed.

    Returns:
        The tensors that the changes do not affect, and the origin of each other one. None in place of the origins if
        one of them cannot be explained, or if a change adds or removes tensors.
    """
    changed = [_with_noise(student, names, seed) for seed in (1, 2)]
    first, second = (_tensors(prepare(model, False)) for model in changed)
    parameters, other_parameters = (
        {n: p.detach() for n, p in model.named_parameters() if n in names} for model in changed
    )
    if not before.keys() == first.keys() == second.keys():
        return set(), None
    unchanged = {name for name, value in before.items() if torch.equal(value, first[name])}
    origins = dict[str, _WeightOrigin]()
    for name in (n for n in before if n not in unchanged):
        origin = _match_parameter(first[name], parameters)
        if origin is None or not _is_close(origin.compute(other_parameters), second[name]):
            return unchanged, None
        origins[name] = origin
    return unchanged, origins


def _with_noise(student: nn.Module, names: list[str], seed: int) -> nn.Module:
    """Return a copy of a model with random noise added to the named parameters, so that no two of them are alike."""
    model, random = copy.deepcopy(student), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in names:
                noise = torch.randn(parameter.shape, generator=random).to(parameter)
                parameter.add_(0.1 * noise * parameter.abs().mean() + 0.01 * noise)
    return model


def _match_parameter(value: Tensor, parameters: Mapping[str, Tensor]) -> _WeightOrigin | None:
    """Find the parameter of which a tensor is a multiple, directly or transposed; None if there is none."""
    for name, parameter in parameters.items():
        for transposed in (False, True) if parameter.ndim == 2 else (False,):
            candidate = parameter.t() if transposed else parameter
            if candidate.shape == value.shape and (factor := _find_factor(value, candidate)) is not None:
                return _WeightOrigin(name, transposed, factor)
    return None


def _find_factor(value: Tensor, base: Tensor) -> Tensor | None:
    """Return the factor (a number, or one per row) with ``base * factor == value``; None if there is none."""
    at = base.abs().argmax()
    number = value.flatten()[at] / base.flatten()[at]
    if _is_close(base[:1] * number, value[:1]) and _is_close(base * number, value):
        return number
    if base.ndim < 2:
        return None
    columns = base.abs().argmax(1, keepdim=True)
    row_factors = value.gather(1, columns) / base.gather(1, columns)
    return row_factors if _is_close(base * row_factors, value) else None


def _with_division(origin: _WeightOrigin, undivided: Tensor, divided: Tensor) -> _WeightOrigin:
    """Return an origin whose factor includes the division of outlier channels, by powers of two, in the exporter.

    `undivided` and `divided` are the weight before and after that division.
    """
    if torch.equal(undivided, divided):
        return origin
    powers = torch.where(undivided == 0, torch.ones_like(undivided), divided / undivided)
    return _WeightOrigin(origin.name, origin.transposed, origin.factor * powers)


def _covers_matrices(module: nn.Module, origins: Mapping[str, _WeightOrigin], constant: Container[str]) -> bool:
    """Return whether an origin was found for the weight of every linear layer that the student's weights change.

    `constant` names the weights that they do not change, such as those of layers behind the pooling of sentence
    vectors. The result is False if no linear layer has an origin.
    """
    weights = [f"{name}.weight" for name, m in module.named_modules() if isinstance(m, nn.Linear)]
    return any(w in origins for w in weights) and all(w in origins or w in constant for w in weights)


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return all parameters and buffers of a module by name, detached from gradients."""
    return {name: value.detach() for name, value in (*module.named_parameters(), *module.named_buffers())}


def _is_close(actual: Tensor, expected: Tensor) -> bool:
    """Return whether two tensors are equal within 1e-5 of the largest expected number."""
    return bool((actual - expected).abs().max() <= _TOLERANCE * expected.abs().max())


# --- running with rounded numbers -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RangeSite:
    """The input or the output of a linear layer, where activations are rounded within a range.

    Attributes:
        layer: Path of the linear layer.
        is_input: Whether it is the layer's input.
    """

    layer: str
    is_input: bool


class Ranges(nn.Module):
    """Trainable lower and upper ends of activation ranges, ``low * exp(a)`` and ``high * exp(b)``.

    Because of the exponential, no end can change its sign.

    Args:
        measured: Smallest and largest number of each range, where training begins.
        fixed: Indices of the ranges that are not trained.
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
        """Return the current lower ends and the current upper ends of all N ranges, [N] each."""
        return self.low * (self.moves * self.lower).exp(), self.high * (self.moves * self.upper).exp()


class RoundedModule:
    """Runs the module that is exported for a student with weights and activations rounded as in the quantized file.

    Args:
        module: The module, in eval mode.
        rules: How the scheme rounds.

    Attributes:
        sites: Index of the range at each site; layers that read the same tensor share a range.
        tables: Rounded embedding tables, by the memory address of the table; tables are not trained.
    """

    def __init__(self, module: nn.Module, rules: RoundingRules) -> None:
        self.module, self.rules = module, rules
        self.sites: dict[RangeSite, int] = {}
        self.tables: dict[int, Tensor] = {}
        self._layers = {name: m for name, m in module.named_modules() if isinstance(m, nn.Linear)}

    def measure_ranges(self, feeds: Iterable[Sequence[Tensor]]) -> Ranges:
        """Run rows without rounding, and return the ranges of the activations that the scheme rounds within a range.

        These are inputs and outputs of linear layers; `sites` gets the index of each. The output of relu6 has the fixed
        range 0 to 6, and so has an output that relu6 reads. There are no ranges if the scheme measures none.

        Args:
            feeds: Inputs of each row, without padding.
        """
        if not self.rules.static:
            return Ranges([])
        mode = _MeasureRanges(self)
        for feed in feeds:
            mode.seen, mode.clipped = [], []
            with torch.no_grad(), mode:
                self.module(*feed)
        self.sites = mode.sites
        ranges = [(0.0, RELU6_MAX) if n in mode.fixed else r for n, r in enumerate(mode.ranges)]
        return Ranges(ranges, mode.fixed | mode.shared)

    def __call__(self, weights: Mapping[str, Tensor], ranges: Ranges, feed: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Run the module with rounded weights and activations, and return its outputs.

        Args:
            weights: The trained weights by name; see `PreparedWeights.compute`.
            ranges: The activation ranges.
            feed: Inputs, [B, L] each.
        """
        with _RoundNumbers(self, weights, ranges):
            outputs: tuple[Tensor, ...] = functional_call(self.module, dict(weights), tuple(feed))
        return outputs

    def rules_of(self, layer: str) -> RoundingRules | None:
        """Return how the linear layer at a path is rounded; None if the layer stays float."""
        weight = f"{layer}.weight"
        if weight in self.rules.left:
            return None
        return next((rules for weights, rules in self.rules.seconds if weight in weights), self.rules)

    def trained_sites(self, layer: str) -> list[RangeSite]:
        """Return those of a linear layer's input and output whose trained range a quantized file uses.

        The input is left out if the scheme lets several layers share its range.
        """
        rules = self.rules_of(layer)
        shares_input = rules is not None and rules.shared_inputs
        return [RangeSite(layer, is_input) for is_input in (True, False) if not (is_input and shares_input)]

    def layer_of(self, weight: Tensor, weights: Mapping[str, Tensor]) -> str:
        """Return the path of the linear layer that has the given weight tensor; an empty string if none has.

        Args:
            weight: The tensor.
            weights: Weights by name that are used in place of the module's own.
        """
        for name, module in self._layers.items():
            if weights.get(f"{name}.weight", module.weight) is weight:
                return str(name)
        return ""


class _MeasureRanges(TorchFunctionMode):
    """Torch function mode that records the smallest and largest input and output of linear layers.

    Attributes:
        sites: Index of the range at each site.
        ranges: Smallest and largest number of each range.
        seen: Tensors of the row that is running, with the index of their range. They are kept alive, because freed
            memory could become another tensor's.
        clipped: Outputs of relu6 in the row that is running.
        fixed: Indices of the ranges that relu6 decides.
        shared: Indices of the ranges of tensors that other layers read too; they are not trained.
    """

    def __init__(self, owner: RoundedModule) -> None:
        super().__init__()
        self._owner = owner
        self.sites: dict[RangeSite, int] = {}
        self.ranges: list[tuple[float, float]] = []
        self.seen: list[tuple[Tensor, int]] = []
        self.clipped: list[Tensor] = []
        self.fixed: set[int] = set()
        self.shared: set[int] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a torch function, and record outputs of ReLU6 and the ranges of linear layers."""
        output = func(*args, **(kwargs or {}))
        if _is_relu6(func, args, kwargs or {}):
            self.clipped.append(output)
            self.fixed.update(number for tensor, number in self.seen if tensor is args[0])
        if func is F.linear and (layer := self._owner.layer_of(args[1], {})):
            rules = self._owner.rules_of(layer)
            if rules is not None and (rules.narrowing or args[1].shape[0] >= args[1].shape[1]):
                if rules.static:
                    self._widen(RangeSite(layer, is_input=True), args[0])
                if rules.static and rules.shared_inputs:
                    self.shared.add(self.sites[RangeSite(layer, is_input=True)])
                if rules.outputs:
                    self._widen(RangeSite(layer, is_input=False), output)
        return output

    def _widen(self, site: RangeSite, values: Tensor) -> None:
        """Widen the range of a layer's input or output so that it includes `values` and 0.

        Layers with the same input share a range. A range over an output of ReLU6 is marked as fixed.
        """
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


class _RoundNumbers(TorchFunctionMode):
    """Torch function mode that rounds numbers in linear layers and embedding lookups, as the scheme prescribes."""

    def __init__(self, owner: RoundedModule, weights: Mapping[str, Tensor], ranges: Ranges) -> None:
        super().__init__()
        self._owner, self._weights = owner, weights
        self._low, self._high = ranges.ends()
        tables = [m.weight for m in owner.module.modules() if isinstance(m, nn.Embedding)]
        self._largest_table = max((t.numel() for t in tables), default=0)
        self._constants = {b.untyped_storage().data_ptr() for b in owner.module.buffers()}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a torch function. Linear layers and embedding lookups are computed with rounded numbers."""
        if func is F.linear:
            return self._linear(*args, **(kwargs or {}))
        if func is F.embedding:
            return self._lookup(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _linear(self, values: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Compute a linear layer whose input, weight and output are rounded as the scheme prescribes."""
        layer = self._owner.layer_of(weight, self._weights)
        rules = self._owner.rules_of(layer)
        if rules is None:
            return F.linear(values, weight, bias)
        if rules.static:
            values = self._round_at(RangeSite(layer, is_input=True), values)
        if rules.inputs is not None:
            values = _round_straight_through(values, rules.inputs)
        is_small = weight.numel() <= rules.small
        output = F.linear(values, weight if is_small else _round_straight_through(weight, rules.weights), bias)
        return self._round_at(RangeSite(layer, is_input=False), output) if rules.outputs else output

    def _lookup(self, indices: Tensor, table: Tensor, *more: Any, **named: Any) -> Tensor:
        """Return the rows `indices` of an embedding table, from a rounded copy of the table that is computed once.

        Small tables, and positions that the scheme keeps as constants, are not rounded.
        """
        rules = self._owner.rules
        is_constant = rules.fixed_positions and indices.untyped_storage().data_ptr() in self._constants
        if is_constant or table.numel() <= rules.small:
            return F.embedding(indices, table, *more, **named)
        if table.data_ptr() not in self._owner.tables:
            is_layer_weight = bool(self._owner.layer_of(table, self._weights))
            other = rules.other_tables if table.numel() < self._largest_table else None
            rounding = rules.weights if is_layer_weight else other or rules.tables
            with torch.no_grad():
                self._owner.tables[table.data_ptr()] = rounding(table)
        return F.embedding(indices, self._owner.tables[table.data_ptr()], *more, **named)

    def _round_at(self, site: RangeSite, values: Tensor) -> Tensor:
        """Round values within the range of a layer's input or output, and return them unchanged if it has no range."""
        number = self._owner.sites.get(site)
        return values if number is None else _round_in_range(values, self._low[number], self._high[number])


def _round_straight_through(values: Tensor, rounding: Rounding) -> Tensor:
    """Round values, but pass gradients on as if they were not rounded."""
    with torch.no_grad():
        change = rounding(values) - values
    return values + change


def _round_in_range(values: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Round values to 256 equally spaced numbers from `low` to `high`, one of them zero.

    Gradients flow to the values and to both ends.

    Args:
        values: Tensor of any shape.
        low: Lower end, 0 or less, scalar.
        high: Upper end, 0 or more, scalar.
    """
    step = (high - low) / _LEVELS + _SMALLEST_STEP
    zero = _round_straight_through(-low / step, torch.round)
    return ((_round_straight_through(values / step, torch.round) + zero).clamp(0, _LEVELS) - zero) * step
