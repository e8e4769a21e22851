"""Read the program of a package into checked operations that the evaluator can run.

`read_program` reads the operations in order: it resolves constants, expands compressed ones, finds the kernel of each
other operation, checks parameters and dtypes against it, and gives each value a slot. The evaluator runs a `Program`,
which is a list of `Operation` objects.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from pocketbert.core.errors import InputError, Problem
from pocketbert.runtime.coreml.kernels import KERNELS
from pocketbert.runtime.coreml.kernels.constexpr import CONSTEXPR_PREFIX
from pocketbert.runtime.coreml.kernels.registry import OPSET, Declared, Kernel
from pocketbert.runtime.coreml.package import Package
from pocketbert.runtime.coreml.types import (
    Budget,
    DictionaryType,
    Dtype,
    ListType,
    TensorType,
    ValueType,
    convert_to_half,
    read_type,
    round_half,
)
from pocketbert.runtime.coreml.weights import Constant, ConstantReader

if TYPE_CHECKING:
    from pocketbert.runtime.coreml.proto import mlpackage_pb2 as pb

_CONST = "const"
_NAME = "name"
_GATHERED_TABLE = ("gather", "x")
"""A table that is only gathered from stays as it lies in the file: a row is widened when it is picked."""

_Arguments = Mapping[str, list[Constant | str]]
"""Constants, or names of values, by parameter."""


@dataclass(frozen=True)
class Output:
    """One declared result of an operation, and where the evaluator stores it.

    Attributes:
        slot: Index in the evaluator's list of values.
        name: Name of the result.
        type: The declared type.
        sizes: The declared shape; None if an axis is free.
        rounds: Whether the result is rounded to fp16.
    """

    slot: int
    name: str
    type: ValueType
    sizes: tuple[int, ...] | None
    rounds: bool


@dataclass
class Operation:
    """One checked operation: its kernel, its constant arguments, and where its other arguments are stored.

    Attributes:
        type: Name of the operation's kind in MIL.
        name: Name of the operation.
        kernel: Function that computes the operation, with its parameters.
        fixed: Arguments that are constants.
        slots: Parameter, slot and converter of each other argument; the converter is None if the kernel takes the array
            itself.
        lists: Parameter and entries (slot, or an array) of each argument that takes several values.
        outputs: The results.
        reads: Names of the values that the operation reads, without constants.
        free: Slots whose values no later operation reads.
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
    """A checked program, ready to run.

    Attributes:
        inputs: Type and slot of each input by name.
        operations: The operations, in the order in which they run.
        outputs: Slot of each output by name.
        types: Declared type of each output by name.
        size: Number of slots.
        preset: Values of slots that are constants.
        labels: Label names of the classify operation; empty without one.
    """

    inputs: dict[str, tuple[TensorType, int]] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)
    outputs: dict[str, int] = field(default_factory=dict)
    types: dict[str, ValueType] = field(default_factory=dict)
    size: int = 0
    preset: dict[int, Any] = field(default_factory=dict)
    labels: tuple[str, ...] = ()


def read_program(package: Package, rounds: bool) -> Program:
    """Read and check a package's program: resolve constants, find kernels, and assign a slot to each value.

    Args:
        package: The package that `read_package` returned.
        rounds: Whether results declared fp16 are rounded.

    Raises:
        InputError: For unknown operations, parameters or types, contradictions in them, and constants that are not in
            the weight file or take too much memory.
    """
    return _ProgramReader(package, rounds).read()


class _ProgramReader:
    """Reads one program from protobuf. Constants and values of earlier operations are looked up by name."""

    def __init__(self, package: Package, rounds: bool) -> None:
        self._package, self._rounds = package, rounds
        self._budget = Budget(str(package.path))
        self._constant_reader = ConstantReader(package, self._budget)
        self._program = Program()
        self._slots: dict[str, int] = {}
        self._types: dict[str, ValueType] = {}
        self._constants: dict[str, Constant] = {}
        self._uses: dict[str, set[tuple[str, str]]] = {}  # operation types and parameters that read a name

    def read(self) -> Program:
        """Read inputs, operations and outputs of the program, in this order, and return the `Program`."""
        block, program = self._package.block, self._program
        for declared in self._package.function.inputs:
            with self._errors_at(declared.name):
                kind = read_type(declared.type)
            if not isinstance(kind, TensorType):
                raise self._problem(declared.name, f"input of type {kind}")
            program.inputs[declared.name] = (kind, self._new_slot(declared.name, kind))
        for message in block.operations:
            for parameter, argument in message.inputs.items():
                for binding in argument.arguments:
                    self._uses.setdefault(binding.name, set()).add((message.type, parameter))
        for message in block.operations:
            with self._errors_at(f"{message.type or 'operation'} {_own_name(message)!r}"):
                self._read_operation(message)
        for name in block.outputs:
            if name in self._constants:
                slot = self._new_slot(name, self._constants[name].type)
                program.preset[slot] = self._constants[name].widened(self._budget)
            elif name not in self._slots:
                raise self._problem(name, "an output that no operation makes")
            program.outputs[name] = self._slots[name]
            program.types[name] = self._types[name]
        _mark_last_uses(program)
        return program

    def _read_operation(self, message: pb.Operation) -> None:
        """Read one operation, and store its constant or add it to the program.

        A constant operation is stored, a compressed constant is expanded and stored, and every other operation is
        checked and added.
        """
        if message.blocks:
            raise ValueError("nested blocks are not supported")
        if message.type == _CONST:
            if len(message.outputs) != 1 or "val" not in message.attributes:
                raise ValueError("a const without a value")
            constant = self._constant_reader.read(message.attributes["val"])
            declared = read_type(message.outputs[0].type)
            if constant.type != declared:
                raise ValueError(f"declared {declared}, its value is {constant.type}")
            self._define_constant(message.outputs[0].name, constant)
            return
        kernel = KERNELS.get(message.type)
        if kernel is None:
            raise ValueError("an operation that this evaluator does not know")
        arguments = self._read_arguments(message, kernel)
        types = [read_type(o.type) for o in message.outputs]
        if not types:
            raise ValueError("no result")
        self._check_dtypes(kernel, arguments, types)
        if message.type.startswith(CONSTEXPR_PREFIX):
            self._expand_constant(message, kernel, arguments, types)
            return
        operation = self._make_operation(message, kernel, arguments, types)
        self._program.operations.append(operation)
        if message.type == "classify":
            self._program.labels = tuple(operation.fixed["classes"])

    def _read_arguments(self, message: pb.Operation, kernel: Kernel) -> dict[str, list[Constant | str]]:
        """Read an operation's arguments: for each parameter its constants and the names of earlier values.

        Args:
            message: The operation.
            kernel: The function that computes the operation. It says which parameters are allowed and
                required.

        Returns:
            The arguments by parameter: a list with one entry, or with several for a variadic parameter.

        Raises:
            ValueError: If a parameter is unknown, a required one is missing, a parameter has no value, or
                several although it takes one, or an argument names a value that no earlier operation makes.
        """
        arguments: dict[str, list[Constant | str]] = {}
        for parameter, argument in message.inputs.items():
            arguments[parameter] = [self._read_argument(b) for b in argument.arguments]
        for parameter, value in message.attributes.items():
            if parameter != _NAME:
                arguments[parameter] = [self._constant_reader.read(value)]
        for parameter, values in arguments.items():
            if parameter not in kernel.parameters:
                raise ValueError(f"parameter {parameter!r} is not known")
            if not values or (len(values) > 1 and not kernel.parameters[parameter].variadic):
                raise ValueError(f"{len(values)} values for parameter {parameter!r}")
        missing = [p for p, q in kernel.parameters.items() if q.required and p not in arguments]
        if missing:
            raise ValueError(f"lacks {', '.join(missing)}")
        return arguments

    def _read_argument(self, binding: pb.Argument.Binding) -> Constant | str:
        """Return an argument's constant, or the name of the value that an earlier operation computes.

        Raises ValueError if no earlier operation computes it.
        """
        if binding.WhichOneof("binding") == "value":
            return self._constant_reader.read(binding.value)
        if binding.name in self._constants:
            return self._constants[binding.name]
        if binding.name not in self._slots:
            raise ValueError(f"reads {binding.name!r}, which no earlier operation makes")
        return str(binding.name)

    def _check_dtypes(self, kernel: Kernel, arguments: _Arguments, declared: list[ValueType]) -> None:
        """Raise ValueError if the declared dtypes of results are not those that the kernel gives for its arguments."""
        dtypes: dict[str, tuple[Dtype, ...]] = {}
        texts: dict[str, str] = {}
        for parameter, values in arguments.items():
            kinds = [v.type if isinstance(v, Constant) else self._types[v] for v in values]
            dtypes[parameter] = tuple(k.dtype for k in kinds if isinstance(k, (TensorType, ListType)))
            if isinstance(values[0], Constant) and isinstance(values[0].value, str):
                texts[parameter] = values[0].value
        expected_dtypes = kernel.rule(Declared(dtypes, texts))
        for i, kind in enumerate(declared):
            expected = expected_dtypes[min(i, len(expected_dtypes) - 1)]
            dtype = kind.value if isinstance(kind, DictionaryType) else kind.dtype
            if isinstance(kind, ListType) or dtype is not expected:
                raise ValueError(f"declares the result {kind}, which is {expected}")

    # --- compressed constants ---

    def _expand_constant(
        self, message: pb.Operation, kernel: Kernel, arguments: _Arguments, types: list[ValueType]
    ) -> None:
        """Compute a compressed constant once, when the program is read, and store the results as constants."""
        plain_arguments: dict[str, Any] = {}
        for parameter, (value, *_) in arguments.items():
            if not isinstance(value, Constant):
                raise ValueError(f"{parameter} is not a constant")
            plain = value.value
            if isinstance(plain, np.ndarray) and plain.dtype == np.float16:
                plain = plain.astype(np.float32)  # small: scales and palettes
            plain_arguments[parameter] = kernel.parameters[parameter].convert(plain)
        for kind in types:
            if not isinstance(kind, TensorType) or kind.sizes is None:
                raise ValueError(f"declares the result {kind}")
            self._budget.take(2 * 4 * math.prod(kind.sizes))
        results = kernel.function(**plain_arguments)
        results = results if isinstance(results, tuple) else (results,)
        if len(results) != len(types):
            raise ValueError(f"{len(types)} results declared, {len(results)} made")
        for output, kind, value in zip(message.outputs, types, results, strict=True):
            assert isinstance(kind, TensorType)
            if value.shape != kind.sizes:
                raise ValueError(f"declares the result {kind}, it has shape {list(value.shape)}")
            self._define_constant(output.name, Constant(kind, self._stored(value, kind, kernel.exact, output.name)))

    def _stored(self, value: Any, kind: TensorType, exact: bool, name: str) -> Any:
        """Return the array that is stored for an expanded constant.

        fp16 constants are rounded; they are stored as fp16 if they are only gathered from, and else as float32. `exact`
        marks an operation whose results need no rounding.
        """
        if kind.dtype is not Dtype.FP16:
            return value.astype(kind.dtype.numpy, copy=False)
        if self._only_gathered(name) and (exact or self._rounds):
            return convert_to_half(value)  # the table is never in memory rounded to float32
        return value if exact or not self._rounds else round_half(np.ascontiguousarray(value, np.float32))

    def _only_gathered(self, name: str) -> bool:
        return self._uses.get(name) == {_GATHERED_TABLE}

    # --- operations that run ---

    def _make_operation(
        self, message: pb.Operation, kernel: Kernel, arguments: _Arguments, types: list[ValueType]
    ) -> Operation:
        """Build an `Operation` from a protobuf message; sort its arguments by where their values come from.

        A constant goes to `fixed`. A value that an earlier operation computes goes to `slots`, as the index
        (slot) under which the evaluator stores it. A parameter that takes several values has one list in
        `lists`, which may mix constants and indices. Each result gets a new index.

        Args:
            message: The operation.
            kernel: The function that computes the operation.
            arguments: Constants and names of earlier values by parameter, from `_read_arguments`.
            types: Declared types of the results.

        Raises:
            ValueError: If a parameter needs a tensor and gets another constant.
            InputError: If a result has the name of an earlier value.
        """
        fixed: dict[str, Any] = {OPSET: self._package.opset} if kernel.opset else {}
        slots: list[tuple[str, int, Callable[[Any], Any] | None]] = []
        lists: list[tuple[str, tuple[Any, ...]]] = []
        names = {b.name for a in message.inputs.values() for b in a.arguments}
        for parameter, values in arguments.items():
            kind = kernel.parameters[parameter]
            plain = [self._plain_value(v, names) if isinstance(v, Constant) else self._slots[v] for v in values]
            if kind.variadic:
                lists.append((parameter, tuple(plain)))
            elif isinstance(values[0], Constant):
                if kind.tensor and not isinstance(plain[0], np.ndarray):
                    raise ValueError(f"{parameter} is not a tensor")
                fixed[parameter] = kind.convert(plain[0])
            else:
                slots.append((parameter, plain[0], None if kind.tensor else kind.convert))
        outputs = []
        for output, declared in zip(message.outputs, types, strict=True):
            tensor = declared if isinstance(declared, TensorType) else None
            rounds = self._rounds and not kernel.exact and tensor is not None and tensor.dtype is Dtype.FP16
            slot, sizes = self._new_slot(output.name, declared), tensor.sizes if tensor is not None else None
            outputs.append(Output(slot, output.name, declared, sizes, rounds))
        reads = tuple(v for values in arguments.values() for v in values if isinstance(v, str))
        return Operation(message.type, _own_name(message), kernel, fixed, slots, lists, tuple(outputs), reads)

    def _plain_value(self, constant: Constant, names: set[str]) -> Any:
        """Return a constant as kernels read it: fp16 as float32, except a table that is only gathered from.

        `names` are the names of the operation's arguments.
        """
        stays_narrow = any(self._constants.get(n) is constant and self._only_gathered(n) for n in names)
        return constant.value if stays_narrow else constant.widened(self._budget)

    # --- names and errors ---

    def _new_slot(self, name: str, kind: ValueType) -> int:
        """Assign the next slot (index of a stored value) to a name; raise InputError if the name is defined already."""
        if name in self._slots or (name in self._constants and name not in self._package.block.outputs):
            raise self._problem(name, "defined twice")
        slot = self._program.size
        self._program.size += 1
        self._slots[name], self._types[name] = slot, kind
        return slot

    def _define_constant(self, name: str, constant: Constant) -> None:
        if name in self._constants or name in self._slots:
            raise self._problem(name, "defined twice")
        self._constants[name] = constant

    @contextmanager
    def _errors_at(self, where: str) -> Iterator[None]:
        """Convert any exception in the block to an InputError that names the place in the program."""
        try:
            with np.errstate(all="ignore"):
                yield
        except InputError:
            raise
        except MemoryError as error:
            raise self._problem(where, "takes more memory than there is") from error
        except Exception as error:  # kernels meet any nonsense that a file may hold
            raise self._problem(where, str(error) or type(error).__name__) from error

    def _problem(self, where: str, what: str) -> InputError:
        return InputError(Problem(f"{self._package.model_path} {where}", f"{what}."))


def _mark_last_uses(program: Program) -> None:
    """Record on each operation the slots whose values no later operation reads, so that their memory can be freed."""
    needed_later = set(program.outputs.values())
    for operation in reversed(program.operations):
        used = {slot for _, slot, _ in operation.slots}
        used |= {e for _, entries in operation.lists for e in entries if isinstance(e, int)}
        used |= {o.slot for o in operation.outputs}
        operation.free = tuple(sorted(used - needed_later))
        needed_later |= used


def _own_name(message: pb.Operation) -> str:
    """Return the operation's name attribute, or the name of its first result."""
    if _NAME in message.attributes:
        values = message.attributes[_NAME].immediateValue.tensor.strings.values
        if values:
            return str(values[0])
    return str(message.outputs[0].name) if message.outputs else "?"
