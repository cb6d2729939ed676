"""Compiles a row's postfix program into calls of NumPy functions over registers."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from umd_core.kernels import PRIMITIVES, KernelRecord
from umd_sim.lowerings.layout import FLOAT32, HALVES, Array, Call, storage_type
from umd_sim.lowerings.primitives import FUNCTIONS, TO_BOOL, Function, cleared
from umd_sim.scratch import Scratch

_REWRITTEN = {"y 0 le 0 dy select": "y 0 le dy cleared"}
"""Programs that a cheaper one equals."""
_MOVES = ("x", "condition a b select")
_ARGUMENTS = {**PRIMITIVES, "cleared": 2}
_BOOL = np.dtype(np.bool_)
_OF_ARRAYS = frozenset((np.maximum, np.minimum))
_MANY = 4096
"""Elements from which on constants are spread."""


def copy(x: Array, out: Array) -> None:
    """Writes x."""
    np.copyto(out, x)


def convert(x: Array, out: Array) -> None:
    """Writes x in the type of `out`, rounded once."""
    np.copyto(out, x, casting="unsafe")


class Step(NamedTuple):
    """One call: `function(*registers[sources], out=registers[target])`."""

    function: Function
    sources: tuple[int, ...]
    target: int


class Program(NamedTuple):
    """Steps over registers: the operands (the result last), then constants, then temporaries.

    Attributes:
        whole: whether the single step runs over whole operands, not in blocks.
        moves: whether elements are moved as they are; their bits are all that matters.
        spread: constants that a maximum or minimum takes. NumPy is four times as fast with two whole arrays.
    """

    steps: tuple[Step, ...]
    constants: tuple[Array, ...]
    temporaries: tuple[np.dtype[Any], ...]
    whole: bool
    moves: bool
    spread: tuple[int, ...]

    def rest(self, shape: Sequence[int], scratch: Scratch) -> list[Array]:
        """Returns the registers after the operands, for operands of this shape."""
        constants = list(self.constants)
        if self.spread and math.prod(shape) >= _MANY:
            for at in self.spread:
                constants[at] = _spread(constants[at], shape)
        return constants + [scratch.take(slot, shape, dtype) for slot, dtype in enumerate(self.temporaries)]

    def calls(self, registers: Sequence[Array]) -> list[Call]:
        """Returns the calls of the steps over these registers."""
        return [
            _call(function, [registers[source] for source in sources], registers[target])
            for function, sources, target in self.steps
        ]


def _spread(number: Array, shape: Sequence[int]) -> Array:
    """Returns an array of this shape that is full of a number; others share its memory."""
    size = 1 << (math.prod(shape) - 1).bit_length()
    return np.ndarray(shape, number.dtype, _full(number.dtype, number.tobytes(), size))


@functools.lru_cache(maxsize=16)
def _full(dtype: np.dtype[Any], number: bytes, size: int) -> Array:
    whole = np.full(size, np.frombuffer(number, dtype)[0])
    whole.flags.writeable = False
    return whole


def _call(function: Function, arguments: Sequence[Array], out: Array) -> Call:
    if function in _OF_ARRAYS:  # NumPy deprecates a third argument of these
        return functools.partial(function, *arguments, out=out)
    return functools.partial(function, *arguments, out)  # a third faster on a few elements


class _Value(NamedTuple):
    """Something a program computes once: a function of earlier values, an operand, or a constant."""

    function: Function | None
    sources: tuple[int, ...]
    dtype: np.dtype[Any]
    operand: int = -1
    constant: Array | None = None


@functools.lru_cache(maxsize=4096)
def compiled(record: KernelRecord) -> Program:
    """Returns the program of an expression row for its element types."""
    operands = record.row.operands
    moves = record.row.program in _MOVES
    inputs = [record.dtype(o.type) for o in operands[:-1]]
    number = next((t for t in inputs if t.kind != "b"), inputs[0])
    types = [storage_type(record.dtype(o.type), read=not o.writes) for o in operands]
    compute = number.numpy
    if moves:
        compute = np.dtype(f"u{number.size}")
        types = [compute if t.itemsize == number.size else t for t in types]
    elif number in HALVES:
        compute = FLOAT32
    parser = Parser([o.name for o in operands], types, compute, number.kind)
    for token in _REWRITTEN.get(record.row.program, record.row.program).split():
        parser.push(token)
    return parser.program(moves=moves)


class Parser:
    """Reads postfix tokens; equal subexpressions become one value.

    Args:
        names: the operands, the result last.
        types: NumPy types of their elements.
        compute: the type that is computed in.
        kind: DType.kind of that type.
    """

    def __init__(self, names: list[str], types: list[np.dtype[Any]], compute: np.dtype[Any], kind: str) -> None:
        self._names, self._types, self._compute = names, types, compute
        self._functions: dict[str, Function] = {**FUNCTIONS[kind], "cleared": cleared}
        self._values: list[_Value] = []
        self._known: dict[tuple[object, ...], int] = {}
        self._stack: list[int] = []
        self._results: list[int] = []

    def recall(self, step: int) -> None:
        """Pushes the result of a primitive again, by its number among those pushed."""
        self._stack.append(self._results[step])

    def push(self, token: str) -> None:
        """Adds what one token does."""
        count = _ARGUMENTS.get(token, 0)
        sources = tuple(self._stack[len(self._stack) - count :])
        del self._stack[len(self._stack) - count :]
        key = (token, sources)
        if key not in self._known:
            self._known[key] = self._add(token, sources)
        self._stack.append(self._known[key])
        if count:
            self._results.append(self._known[key])

    def _add(self, token: str, sources: tuple[int, ...]) -> int:
        if token in self._names:
            return self._operand(self._names.index(token))
        if token not in _ARGUMENTS:
            whole = self._compute.kind in "iu"
            constant = np.asarray(int(token) if whole else float(token), self._compute)
            return self._value(_Value(None, (), self._compute, constant=constant))
        dtype = _BOOL if token in TO_BOOL else self._compute
        return self._value(_Value(self._functions[token], sources, dtype))

    def _operand(self, index: int) -> int:
        stored = self._types[index]
        value = self._value(_Value(None, (), stored, operand=index))
        if stored == self._compute or stored == np.uint8:
            return value
        return self._value(_Value(copy, (value,), self._compute))

    def _value(self, value: _Value) -> int:
        self._values.append(value)
        return len(self._values) - 1

    def program(self, *, moves: bool = False) -> Program:
        """Returns the program that was read."""
        steps, constants, temporaries = _allocate(self._finish(), len(self._names))
        first = len(self._names)
        taken = {source for step in steps if step.function in _OF_ARRAYS for source in step.sources}
        spread = tuple(at for at in range(len(constants)) if first + at in taken)
        simple = len(steps) == 1 and (isinstance(steps[0].function, np.ufunc) or steps[0].function is copy)
        return Program(steps, constants, temporaries, simple and not spread, moves, spread)

    def _finish(self) -> list[_Value]:
        """Returns the values in order; the last one has the result's type and is a function's."""
        last = self._values[self._stack[-1]]
        result = self._types[-1]
        if last.dtype != result:
            self._value(_Value(convert, (self._stack[-1],), result))
        elif last.function is None:
            self._value(_Value(copy, (self._stack[-1],), result))
        return self._values


_Steps = tuple[tuple[Step, ...], tuple[Array, ...], tuple[np.dtype[Any], ...]]


def _allocate(values: list[_Value], operands: int) -> _Steps:
    """Gives every value a register; a temporary's register is free again after its last use."""
    last_use = {source: at for at, value in enumerate(values) for source in value.sources}
    constants = [value.constant for value in values if value.constant is not None]
    first = operands + len(constants)
    temporaries: list[np.dtype[Any]] = []
    free: list[int] = []
    register: dict[int, int] = {}
    steps = []
    for at, value in enumerate(values):
        if value.function is None:
            constant = operands + sum(v.constant is not None for v in values[:at])
            register[at] = value.operand if value.operand >= 0 else constant
            continue
        sources = tuple(register[s] for s in value.sources)
        ended = sorted({register[s] for s in value.sources if last_use[s] == at and register[s] >= first})
        if isinstance(value.function, np.ufunc):  # element by element: the result may take an argument's place
            free += ended
        if at == len(values) - 1:
            register[at] = operands - 1
        else:
            fit = next((r for r in free if temporaries[r - first] == value.dtype), None)
            if fit is None:
                temporaries.append(value.dtype)
                fit = first + len(temporaries) - 1
            else:
                free.remove(fit)
            register[at] = fit
        if not isinstance(value.function, np.ufunc):
            free += ended
        steps.append(Step(value.function, sources, register[at]))
    return tuple(steps), tuple(constants), tuple(temporaries)
