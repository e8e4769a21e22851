"""A program, ready to run: operations in order, constants resolved and compressed ones expanded, dtypes checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from pocketbert.core.errors import InputError, Problem
from pocketbert.runtime.coreml.kernels import KERNELS
from pocketbert.runtime.coreml.kernels.constexpr import PREFIX
from pocketbert.runtime.coreml.kernels.registry import OPSET, Declared, Kernel
from pocketbert.runtime.coreml.package import Package
from pocketbert.runtime.coreml.types import (
    Budget,
    DictionaryType,
    Dtype,
    ListType,
    TensorType,
    ValueType,
    read_type,
    round_half,
)
from pocketbert.runtime.coreml.weights import Constant, ConstantReader

if TYPE_CHECKING:
    from pocketbert.runtime.coreml.proto import mlpackage_pb2 as pb

_CONST = "const"
_NAME = "name"
_NARROW = ("gather", "x")
"""A table that is only gathered from stays as it lies in the file: a row is widened when it is picked."""


@dataclass(frozen=True)
class Output:
    """One result of an operation.

    Attributes:
        slot: Where it is kept.
        name: Its name.
        type: As declared.
        sizes: The declared shape where it is fixed.
        rounds: Whether fp16 rounding applies.
    """

    slot: int
    name: str
    type: ValueType
    sizes: tuple[int, ...] | None
    rounds: bool


@dataclass
class Operation:
    """One operation with what is known before it runs.

    Attributes:
        type: MIL name.
        name: Its own name.
        kernel: Computes it.
        fixed: Arguments that are constants.
        slots: Parameter, slot and converter of the others; None where the kernel takes the array itself.
        lists: Parameter and entries (slot, or an array) of variadic ones.
        outputs: Its results.
        reads: Names of the values it reads, constants left out.
        free: Slots that nothing later reads.
    """

    type: str
    name: str
    kernel: Kernel
    fixed: dict[str, Any]
    slots: list[tuple[str, int, Callable[[Any], Any] | None]]
    lists: list[tuple[str, tuple[Any, ...]]]
    outputs: tuple[Output, ...]
    reads: tuple[str, ...]
    free: tuple[int, ...] = ()


@dataclass
class Program:
    """A whole program.

    Attributes:
        inputs: Name, type and slot of each input.
        operations: In order.
        outputs: Slot by name; constants are already there.
        types: Declared type by output name.
        size: Number of slots.
        preset: Values of slots that are constants.
        labels: Of the classify operation; empty without one.
    """

    inputs: dict[str, tuple[TensorType, int]] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)
    outputs: dict[str, int] = field(default_factory=dict)
    types: dict[str, ValueType] = field(default_factory=dict)
    size: int = 0
    preset: dict[int, Any] = field(default_factory=dict)
    labels: tuple[str, ...] = ()


def read_program(package: Package, rounds: bool) -> Program:
    """Resolve a package's program.

    Args:
        package: What `read_package` returned.
        rounds: Whether results declared fp16 are rounded.

    Raises:
        InputError: For unknown operations, parameters or types, contradictions in them, and constants that are not in
            the weight file or take too much memory.
    """
    return _Builder(package, rounds).build()


class _Builder:
    def __init__(self, package: Package, rounds: bool) -> None:
        self._package, self._rounds = package, rounds
        self._where = str(package.model_path)
        self._budget = Budget(str(package.path))
        self._reader = ConstantReader(package, self._budget)
        self._program = Program()
        self._slots: dict[str, int] = {}
        self._types: dict[str, ValueType] = {}
        self._constants: dict[str, Constant] = {}
        self._uses: dict[str, set[tuple[str, str]]] = {}

    def build(self) -> Program:
        block, program = self._package.block, self._program
        for declared in self._package.function.inputs:
            kind = self._guard(declared.name, partial(read_type, declared.type))
            if not isinstance(kind, TensorType):
                raise self._problem(declared.name, f"input of type {kind}")
            program.inputs[declared.name] = (kind, self._new(declared.name, kind))
        for message in block.operations:
            for parameter, argument in message.inputs.items():
                for binding in argument.arguments:
                    self._uses.setdefault(binding.name, set()).add((message.type, parameter))
        for message in block.operations:
            where = _place(message)
            self._guard(where, partial(self._add, message))
        for name in block.outputs:
            if name in self._constants:
                slot = self._new(name, self._constants[name].type)
                program.preset[slot] = self._constants[name].widened(self._budget)
            elif name not in self._slots:
                raise self._problem(name, "an output that no operation makes")
            program.outputs[name] = self._slots[name]
            program.types[name] = self._types[name]
        self._free()
        return program

    def _new(self, name: str, kind: ValueType) -> int:
        if name in self._slots or (name in self._constants and name not in self._package.block.outputs):
            raise self._problem(name, "defined twice")
        slot = self._program.size
        self._program.size += 1
        self._slots[name], self._types[name] = slot, kind
        return slot

    def _add(self, message: pb.Operation) -> None:
        if message.blocks:
            raise ValueError("nested blocks are not supported")
        if message.type == _CONST:
            if len(message.outputs) != 1 or "val" not in message.attributes:
                raise ValueError("a const without a value")
            constant = self._reader.read(message.attributes["val"])
            declared = read_type(message.outputs[0].type)
            if constant.type != declared:
                raise ValueError(f"declared {declared}, its value is {constant.type}")
            self._define(message.outputs[0].name, constant)
            return
        kernel = KERNELS.get(message.type)
        if kernel is None:
            raise ValueError("an operation that this evaluator does not know")
        arguments = self._arguments(message, kernel)
        types = [read_type(o.type) for o in message.outputs]
        if not types:
            raise ValueError("no result")
        self._check_dtypes(kernel, arguments, types)
        if message.type.startswith(PREFIX):
            self._expand(message, kernel, arguments, types)
            return
        operation = self._operation(message, kernel, arguments, types)
        self._program.operations.append(operation)
        if message.type == "classify":
            self._program.labels = tuple(operation.fixed["classes"])

    def _define(self, name: str, constant: Constant) -> None:
        if name in self._constants or name in self._slots:
            raise self._problem(name, "defined twice")
        self._constants[name] = constant

    def _arguments(self, message: pb.Operation, kernel: Kernel) -> dict[str, list[Constant | str]]:
        """Constants, or names of values, by parameter."""
        out: dict[str, list[Constant | str]] = {}
        for parameter, argument in message.inputs.items():
            out[parameter] = [self._argument(b) for b in argument.arguments]
        for parameter, value in message.attributes.items():
            if parameter != _NAME:
                out[parameter] = [self._reader.read(value)]
        for parameter, given in out.items():
            if parameter not in kernel.parameters:
                raise ValueError(f"parameter {parameter!r} is not known")
            if not given or (len(given) > 1 and not kernel.parameters[parameter].variadic):
                raise ValueError(f"{len(given)} values for parameter {parameter!r}")
        missing = [p for p, q in kernel.parameters.items() if q.required and p not in out]
        if missing:
            raise ValueError(f"lacks {', '.join(missing)}")
        return out

    def _argument(self, binding: pb.Argument.Binding) -> Constant | str:
        if binding.WhichOneof("binding") == "value":
            return self._reader.read(binding.value)
        if binding.name in self._constants:
            return self._constants[binding.name]
        if binding.name not in self._slots:
            raise ValueError(f"reads {binding.name!r}, which no earlier operation makes")
        return str(binding.name)

    def _check_dtypes(
        self, kernel: Kernel, arguments: Mapping[str, list[Constant | str]], declared: list[ValueType]
    ) -> None:
        """The declared dtypes of the results against those that follow from the arguments'."""
        dtypes: dict[str, tuple[Dtype, ...]] = {}
        texts: dict[str, str] = {}
        for parameter, given in arguments.items():
            kinds = [g.type if isinstance(g, Constant) else self._types[g] for g in given]
            dtypes[parameter] = tuple(k.dtype for k in kinds if isinstance(k, (TensorType, ListType)))
            if isinstance(given[0], Constant) and isinstance(given[0].value, str):
                texts[parameter] = given[0].value
        rule = kernel.rule(Declared(dtypes, texts))
        for i, kind in enumerate(declared):
            want = rule[min(i, len(rule) - 1)]
            have = kind.value if isinstance(kind, DictionaryType) else kind.dtype
            if isinstance(kind, ListType) or have is not want:
                raise ValueError(f"declares the result {kind}, which is {want}")

    def _expand(
        self,
        message: pb.Operation,
        kernel: Kernel,
        arguments: Mapping[str, list[Constant | str]],
        types: list[ValueType],
    ) -> None:
        """Compute a compressed constant now."""
        given: dict[str, Any] = {}
        for parameter, (value, *_) in arguments.items():
            if not isinstance(value, Constant):
                raise ValueError(f"{parameter} is not a constant")
            plain = value.value
            if isinstance(plain, np.ndarray) and plain.dtype == np.float16:
                plain = plain.astype(np.float32)  # small: scales and palettes
            given[parameter] = kernel.parameters[parameter].convert(plain)
        for kind in types:
            if not isinstance(kind, TensorType) or kind.sizes is None:
                raise ValueError(f"declares the result {kind}")
            self._budget.take(2 * 4 * math.prod(kind.sizes))
        results = kernel.function(**given)
        results = results if isinstance(results, tuple) else (results,)
        if len(results) != len(types):
            raise ValueError(f"{len(types)} results declared, {len(results)} made")
        for output, kind, value in zip(message.outputs, types, results, strict=True):
            assert isinstance(kind, TensorType)
            if value.shape != kind.sizes:
                raise ValueError(f"declares the result {kind}, it has shape {list(value.shape)}")
            self._define(output.name, Constant(kind, self._settled(value, kind, kernel.exact, output.name)))

    def _settled(self, value: Any, kind: TensorType, exact: bool, name: str) -> Any:
        """An expanded constant as it is kept: rounded where declared, narrow where it is only gathered from."""
        if kind.dtype is not Dtype.FP16:
            return value.astype(kind.dtype.numpy, copy=False)
        rounded = value if exact or not self._rounds else round_half(np.ascontiguousarray(value, np.float32))
        if self._gathered(name) and (exact or self._rounds):
            return rounded.astype(np.float16)
        return rounded

    def _gathered(self, name: str) -> bool:
        return self._uses.get(name) == {_NARROW}

    def _operation(
        self,
        message: pb.Operation,
        kernel: Kernel,
        arguments: Mapping[str, list[Constant | str]],
        types: list[ValueType],
    ) -> Operation:
        fixed: dict[str, Any] = {OPSET: self._package.opset} if kernel.opset else {}
        slots: list[tuple[str, int, Callable[[Any], Any] | None]] = []
        lists: list[tuple[str, tuple[Any, ...]]] = []
        names = {b.name for a in message.inputs.values() for b in a.arguments}
        for parameter, given in arguments.items():
            kind = kernel.parameters[parameter]
            plain = [self._plain(g, names) if isinstance(g, Constant) else self._slots[g] for g in given]
            if kind.variadic:
                lists.append((parameter, tuple(plain)))
            elif isinstance(given[0], Constant):
                if kind.tensor and not isinstance(plain[0], np.ndarray):
                    raise ValueError(f"{parameter} is not a tensor")
                fixed[parameter] = kind.convert(plain[0])
            else:
                slots.append((parameter, plain[0], None if kind.tensor else kind.convert))
        outputs = tuple(
            Output(
                self._new(o.name, t),
                o.name,
                t,
                t.sizes if isinstance(t, TensorType) else None,
                self._rounds and not kernel.exact and isinstance(t, TensorType) and t.dtype is Dtype.FP16,
            )
            for o, t in zip(message.outputs, types, strict=True)
        )
        reads = tuple(g for given in arguments.values() for g in given if isinstance(g, str))
        return Operation(message.type, _own_name(message), kernel, fixed, slots, lists, outputs, reads)

    def _plain(self, constant: Constant, names: set[str]) -> Any:
        narrow = any(self._constants.get(n) is constant and self._gathered(n) for n in names)
        return constant.value if narrow else constant.widened(self._budget)

    def _free(self) -> None:
        """Note after which operation each value is no longer needed."""
        kept = set(self._program.outputs.values())
        for operation in reversed(self._program.operations):
            read = {slot for _, slot, _ in operation.slots}
            read |= {e for _, entries in operation.lists for e in entries if isinstance(e, int)}
            read |= {o.slot for o in operation.outputs}
            operation.free = tuple(sorted(read - kept))
            kept |= read

    def _guard(self, where: str, step: Callable[[], Any]) -> Any:
        """Call `step`; whatever a damaged program makes go wrong becomes one line with the place."""
        try:
            with np.errstate(all="ignore"):
                return step()
        except InputError:
            raise
        except MemoryError as error:
            raise self._problem(where, "takes more memory than there is") from error
        except Exception as error:  # kernels meet any nonsense that a file may hold
            raise self._problem(where, str(error) or type(error).__name__) from error

    def _problem(self, where: str, what: str) -> InputError:
        return InputError(Problem(f"{self._where} {where}", f"{what}."))


def _own_name(message: pb.Operation) -> str:
    if _NAME in message.attributes:
        values = message.attributes[_NAME].immediateValue.tensor.strings.values
        if values:
            return str(values[0])
    return str(message.outputs[0].name) if message.outputs else "?"


def _place(message: pb.Operation) -> str:
    return f"{message.type or 'operation'} {_own_name(message)!r}"
