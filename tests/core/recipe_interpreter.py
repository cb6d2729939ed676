"""Runs what an op records, launch by launch, over NumPy: an oracle for recipes that needs no translator and no backend.

Every launch sees only the bytes that its refs name, new buffers start as garbage, and operands that overlap what the
launch writes must be a declared alias, so that an op which records something illegal fails here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from umd_core.commands import WRITE, CommandBuffer, Copy, Dispatch, Fill, SlotKind
from umd_core.decompositions import DECOMPOSITIONS
from umd_core.dtypes import DType
from umd_core.errors import IndexRangeError
from umd_core.ir import TensorDesc
from umd_core.kernels import BY_NAME, OperandView, safety
from umd_core.kernels import PRIMITIVES as ARITY
from umd_core.ops import op_template
from umd_core.recorder import CopyBytes, FillBytes, Launch, Recorder
from umd_core.template import Call
from umd_core.testing.reference import Case, reference
from umd_core.views import View

Array = np.ndarray[Any, Any]
GARBAGE = 0xA5


def level_0(kernel: str, types: tuple[DType, ...]) -> bool:
    """Returns whether a device of the lowest level has the kernel."""
    return BY_NAME[kernel].level == 0


def call_of(op: str, inputs: Sequence[Array | None], attributes: Mapping[str, Any], outputs: int = 1) -> Call:
    """Returns the checked call of an op on arrays."""
    template = op_template(op)
    specs = template.inputs
    static = [specs[min(i, len(specs) - 1)].static for i in range(len(inputs))]
    descs = [None if x is None else TensorDesc.of(x) for x in inputs]
    values = [x if known else None for x, known in zip(inputs, static, strict=True)]
    return template.call(descs, attributes, values, (True,) * outputs)


def run_op(
    op: str, inputs: Sequence[Array | None], attributes: Mapping[str, Any] | None = None, outputs: int = 1
) -> list[Array]:
    """Returns the outputs of an op, computed from the launches that it records for a level-0 device."""
    call = call_of(op, inputs, attributes or {}, outputs)
    recorder = Recorder(call.inputs, call.outputs, level_0, DECOMPOSITIONS)
    result = call.template.emit(recorder, call, recorder.views)
    views = (result,) if isinstance(result, View) else tuple(result)
    memory = {i: _buffer_of(x, d) for i, (x, d) in enumerate(zip(inputs, call.inputs, strict=True)) if d is not None}
    run_steps(recorder, memory)
    for view, desc in zip(views, call.outputs, strict=False):
        assert view is None or (view.shape, view.dtype) == (desc.shape, desc.dtype), f"{op} returned {view}, not {desc}"
    return [_read(view, memory) for view in views if view is not None]


def run_steps(recorder: Recorder, memory: dict[int, Array]) -> None:
    """Runs what was recorded over `memory`, the bytes of each buffer by number; new buffers are added to it."""
    memory |= {number: np.full(size, GARBAGE, np.uint8) for number, size in recorder.sizes.items()}
    memory |= {number: np.frombuffer(data, np.uint8).copy() for number, data in recorder.constants.items()}
    for step in recorder.steps:
        _STEPS[type(step)](step, memory)


def run_program(buffer: CommandBuffer, inputs: Sequence[Array], order: Iterable[int] | None = None) -> list[Array]:
    """Returns the outputs of a command buffer, command by command; every slot starts as garbage.

    `order` is another legal schedule than program order: positions of all commands.
    """
    memory = {}
    constants = iter(buffer.constants)
    descs = [*buffer.inputs, *buffer.outputs]
    arrays = [*inputs, *[None] * len(buffer.outputs)]
    for number, slot in enumerate(buffer.slots):
        if slot.kind == SlotKind.ARGUMENT:
            memory[number] = _buffer_of(arrays[number], descs[number])
        elif slot.kind == SlotKind.CONSTANT:
            memory[number] = np.frombuffer(next(constants), np.uint8).copy()
        else:
            memory[number] = np.full(slot.length, GARBAGE, np.uint8)
    for output, source in buffer.aliases:
        memory[len(buffer.inputs) + output] = memory[source]
    for position in range(len(buffer.commands)) if order is None else order:
        command = buffer.commands[position]
        if isinstance(command, Dispatch):
            record = buffer.kernels[command.kernel]
            _launch(Launch(record, command.launch, command.parameters, command.refs), memory)
        elif isinstance(command, Copy):
            _copy(CopyBytes((command.destination, command.source), False), memory)
        elif isinstance(command, Fill):
            _fill(FillBytes((command.destination,), command.pattern), memory)
    first = len(buffer.inputs)
    return [
        _box(memory[first + i], d.dtype, d.shape, d.strides, d.element_offset).copy()
        for i, d in enumerate(buffer.outputs)
    ]


def launches(op: str, inputs: Sequence[Array | None], attributes: Mapping[str, Any] | None = None) -> list[str]:
    """Returns the names of the kernels that an op launches ("CopyBytes" and "FillBytes" for those commands)."""
    call = call_of(op, inputs, attributes or {})
    recorder = Recorder(call.inputs, call.outputs)
    call.template.emit(recorder, call, recorder.views)
    return [s.record.row.name if isinstance(s, Launch) else type(s).__name__ for s in recorder.steps]


def _buffer_of(array: Array | None, desc: TensorDesc) -> Array:
    memory = np.full(desc.byte_size, GARBAGE, np.uint8)
    box = _box(memory, desc.dtype, desc.shape, desc.strides, desc.element_offset)
    if array is not None and box.size:
        box[...] = array
    return memory


def _box(memory: Array, dtype: DType, shape: Sequence[int], strides: Sequence[int], offset: int) -> Array:
    """Returns elements of a byte array; NumPy refuses a box that leaves it."""
    if 0 in shape:
        return np.empty(tuple(shape), dtype.numpy)
    return np.ndarray(shape, dtype.numpy, memory, offset * dtype.size, [s * dtype.size for s in strides])


def _read(view: View, memory: Mapping[int, Array]) -> Array:
    buffer = memory.get(view.buffer, np.empty(0, np.uint8))
    return _box(buffer, view.dtype, view.shape, view.strides, view.offset).copy()


# steps


def _copy(step: CopyBytes, memory: dict[int, Array]) -> None:
    (to, _, to_at, size), (source, _, at, source_size) = step.refs
    assert size == source_size > 0, "a copy of nothing"
    memory[to][to_at : to_at + size] = memory[source][at : at + size]


def _fill(step: FillBytes, memory: dict[int, Array]) -> None:
    buffer, _, offset, length = step.refs[0]
    pattern = np.frombuffer(step.pattern, np.uint8)
    assert length > 0 == length % len(pattern), "a fill of nothing, or of part of a pattern"
    assert offset + length <= len(memory[buffer])
    memory[buffer][offset : offset + length] = np.tile(pattern, length // len(pattern))


def _launch(step: Launch, memory: dict[int, Array]) -> None:
    record, flat = step.record, step.record.struct.unpack(step.parameters)
    views = record.views(step.parameters)
    assert any(ref[3] for ref in step.refs if ref[1] & WRITE), f"{record.row.name} writes nothing"
    for box, ref in zip(record.boxes, step.refs, strict=True):
        assert safety.touched(box, flat) == (0, ref[3]), f"{record.row.name}: {box.operand.name} misses its ref"
        assert record.row.atomic or not ref[1] & WRITE or safety.is_injective(box, flat), "one element written twice"
    _check_aliases(step, views)
    arrays = {}
    for view, (buffer, _, offset, length) in zip(views, step.refs, strict=True):
        window = memory[buffer][offset : offset + length]
        assert len(window) == length, f"{record.row.name}: {view.name} leaves its buffer"
        arrays[view.name] = np.ndarray(view.shape, view.dtype.numpy, window, view.offset, view.strides)
        if 0 in view.shape:
            arrays[view.name] = np.empty(view.shape, view.dtype.numpy)
    if record.row.level:
        for name, expected in reference(Case(record, step.parameters, arrays)).items():
            arrays[name][...] = expected.value.astype(arrays[name].dtype)
        return
    fields = record.unpack(step.parameters)
    _FAMILIES[record.row.family](record.row.program, arrays, {**fields, "name": record.row.name})


def _check_aliases(step: Launch, views: Sequence[OperandView]) -> None:
    operands = step.record.row.operands
    for w, written in enumerate(operands):
        for r, read in enumerate(operands):
            (a, _, low, length), (b, _, other, other_length) = step.refs[w], step.refs[r]
            apart = a != b or low + length <= other or other + other_length <= low
            if not written.writes or r == w or apart:
                continue
            same = (low, views[w].shape, views[w].strides) == (other, views[r].shape, views[r].strides)
            assert same, f"{step.record.row.name}: {written.name} overlaps {read.name}"
            assert (written.name, read.name) in step.record.row.alias, f"{written.name} is no alias of {read.name}"


_STEPS: dict[type, Callable[[Any, dict[int, Array]], None]] = {CopyBytes: _copy, FillBytes: _fill, Launch: _launch}

# families


def _wide(array: Array) -> Array:
    """Returns what a kernel computes with: 16-bit floats as float32, any non-zero bool byte as true."""
    if array.dtype == np.bool_:
        return np.not_equal(array.view(np.uint8), 0)
    narrow = array.dtype.itemsize == 2 and array.dtype.kind not in "iu"
    return array.astype(np.float32) if narrow else array


def convert(array: Array, dtype: Any) -> Array:
    """Returns the array as another type by umd's rule for casts."""
    dtype = np.dtype(dtype)
    floating = array.dtype.kind not in "iub"
    if dtype == np.bool_:
        return np.not_equal(array, 0)
    if dtype.kind not in "iu" or not floating:
        with np.errstate(over="ignore"):
            return array.astype(dtype)
    limits = np.iinfo(dtype)
    whole = np.trunc(np.nan_to_num(array.astype(np.float64), nan=0.0, posinf=np.inf, neginf=-np.inf))
    low, high = whole <= float(limits.min), whole >= float(limits.max)
    safe = np.where(low | high, 0, whole).astype(dtype)
    return np.where(high, limits.max, np.where(low, limits.min, safe)).astype(dtype)


def _integer_div(a: Array, b: Array) -> Array:
    limits, result = np.iinfo(a.dtype), []
    for x, y in zip(map(int, a.flat), map(int, b.flat), strict=True):
        quotient = 0 if y == 0 else abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
        result.append(quotient if quotient <= limits.max else limits.min)
    return np.array(result, a.dtype).reshape(a.shape)


def _integer_pow(base: Array, exponent: Array) -> Array:
    bits, result = 8 * base.dtype.itemsize, []
    for x, n in zip(map(int, base.flat), map(int, exponent.flat), strict=True):
        value = pow(x, n, 1 << bits) if n >= 0 else (1 if x == 1 else (-1) ** (n % 2) if x == -1 else 0)
        result.append(value % (1 << bits))
    return np.array(result, np.uint64).astype(f"u{bits // 8}").view(base.dtype).reshape(base.shape)


def _by_kind(integers: Callable[..., Array], floats: Callable[..., Array]) -> Callable[..., Array]:
    return lambda *args: integers(*args) if args[0].dtype.kind in "iu" else floats(*args)


_erf = np.vectorize(math.erf, otypes=[np.float64])
PRIMITIVES: dict[str, Callable[..., Array]] = {
    "neg": np.negative, "abs": np.abs, "sign": np.sign, "reciprocal": lambda x: 1 / x, "add": np.add,
    "sub": np.subtract, "mul": np.multiply, "div": _by_kind(_integer_div, np.divide),
    "mod": np.mod, "fmod": np.fmod, "pow": _by_kind(_integer_pow, np.power), "max": np.maximum, "min": np.minimum,
    "exp": np.exp, "log": np.log, "log1p": np.log1p, "expm1": np.expm1, "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x), "sin": np.sin, "cos": np.cos, "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "erf": _erf, "floor": np.floor, "ceil": np.ceil, "round": np.rint,
    "trunc": np.trunc, "isnan": np.isnan, "isinf": np.isinf, "eq": np.equal, "ne": np.not_equal, "lt": np.less,
    "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "and": np.logical_and, "or": np.logical_or,
    "xor": np.logical_xor, "not": np.logical_not, "bitand": np.bitwise_and, "bitor": np.bitwise_or,
    "bitxor": np.bitwise_xor, "bitnot": np.invert, "select": np.where, "shl": np.left_shift, "shr": np.right_shift,
    "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "atan2": np.arctan2, "sinh": np.sinh,
    "cosh": np.cosh, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
}  # fmt: skip


def _expression(program: str, arrays: dict[str, Array], fields: Mapping[str, Any]) -> None:
    out = arrays["out"]
    stack: list[Array] = []
    kind = next((_wide(a).dtype for name, a in arrays.items() if name != "out" and a.dtype != np.bool_), out.dtype)
    with np.errstate(all="ignore"):
        for token in program.split():
            if token in arrays:
                stack.append(_wide(arrays[token]))
            elif token == "cast":
                stack.append(convert(stack.pop(), out.dtype))
            elif token in PRIMITIVES:
                count = ARITY[token]
                arguments = stack[-count:]
                del stack[-count:]
                stack.append(np.asarray(PRIMITIVES[token](*arguments)))
            else:
                number = float(token) if kind.kind not in "iu" else int(token)
                stack.append(np.full(out.shape, number, kind))
        out[...] = stack.pop().astype(out.dtype)


def _reduce(program: str, arrays: dict[str, Array], fields: Mapping[str, Any]) -> None:
    x, out = arrays["x"], arrays["out"]
    axes = tuple(range(out.ndim, x.ndim))
    x = _wide(x)
    if x.dtype.kind == "f":
        x, limits = x.astype(np.float64), None
    else:
        limits = np.iinfo(x.dtype)
    least = {"max": -np.inf if limits is None else limits.min, "min": np.inf if limits is None else limits.max}
    with np.errstate(all="ignore"):
        if program in least:
            combine = np.maximum if program == "max" else np.minimum
            result = combine.reduce(x, axis=axes, initial=least[program])
        elif program == "mean":
            result = np.add.reduce(x, axis=axes) / np.float64(math.prod(x.shape[out.ndim :]))
        else:
            result = (np.add if program == "add" else np.multiply).reduce(x, axis=axes, dtype=x.dtype)
        out[...] = result.astype(out.dtype)


def _arg_reduce(program: str, arrays: dict[str, Array], fields: Mapping[str, Any]) -> None:
    x, out = _wide(arrays["x"]), arrays["out"]
    rows = x.reshape(*out.shape, -1)
    if fields["select_last"]:
        rows = rows[..., ::-1]
    found = (np.argmax if program == "max" else np.argmin)(rows, axis=-1)
    out[...] = rows.shape[-1] - 1 - found if fields["select_last"] else found


def _place(k: Any, extent: int) -> int:
    """Returns an index counted from the front; a device reports one out of range through its status word."""
    if not -extent <= k < extent:
        raise IndexRangeError("an indexing kernel", 0, int(k), extent)
    return int(k) % extent


def _gather(program: str, arrays: dict[str, Array], fields: Mapping[str, Any]) -> None:
    for at in np.ndindex(arrays["out"].shape):
        arrays["out"][at] = arrays["data"][(*at, _place(arrays["index"][at], fields["axis"]))]


_SCATTER = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _scatter(program: str, arrays: dict[str, Array], fields: Mapping[str, Any]) -> None:
    out = arrays["out"]
    with np.errstate(all="ignore"):
        for at in np.ndindex(arrays["updates"].shape):
            place = (*at, _place(arrays["index"][at], fields["axis"]))
            update = arrays["updates"][at]
            combine = _SCATTER.get(program)
            out[place] = update if combine is None else combine(_wide(out)[place], _wide(arrays["updates"])[at])


def _iota(program: str, arrays: dict[str, Array], fields: Mapping[str, Any]) -> None:
    out, start, step = arrays["out"], _wide(arrays["start"]), _wide(arrays["step"])
    with np.errstate(over="ignore"):
        out[...] = (start + np.arange(out.size).astype(start.dtype) * step).astype(out.dtype)


def _gemm(program: str, arrays: dict[str, Array], fields: Mapping[str, Any]) -> None:
    a, b = _wide(arrays["a"]), _wide(arrays["b"])
    if a.dtype.kind == "f":
        a, b = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(all="ignore"):
        arrays["out"][...] = np.matmul(a, b).astype(arrays["out"].dtype)


_FAMILIES: dict[str, Callable[[str, dict[str, Array], Mapping[str, Any]], None]] = {
    "expression": _expression, "reduce": _reduce, "arg_reduce": _arg_reduce, "gather": _gather, "scatter": _scatter,
    "iota": _iota, "gemm": _gemm,
}  # fmt: skip
