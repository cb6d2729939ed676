"""Random valid graphs of many ops, with the NumPy value of everything in them.

Floats stay whole and small (a Clip follows whatever makes them grow), so that every sum is exact and results must be
equal, NaN and infinities among them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.core.op_arrays import Array, laid_out
from tests.core.recipe_interpreter import convert
from umd_core.ir import Graph, TensorDesc, contiguous_strides

DT = np.dtype[Any]
F32: DT = np.dtype(np.float32)
I64: DT = np.dtype(np.int64)
BOOL: DT = np.dtype(np.bool_)
NUMBERS = (F32, I64)
BOUND = 50
MAX_SIZE, MAX_RANK = 2000, 6


class Grown:
    """A graph that grows node by node, with the NumPy value of everything in it.

    Attributes:
        graph: the graph.
        values: every value by name.
        arguments: the input arrays, in order.
    """

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.graph = Graph("random")
        self.values: dict[str, Array] = {}
        self.arguments: list[Array] = []

    def input(self) -> None:
        draw = self.draw
        shape = tuple(draw(st.lists(st.sampled_from((0, 1, 1, 2, 2, 3, 4)), max_size=4)))
        dtype, seed = draw(st.sampled_from((F32, F32, I64, BOOL))), draw(st.integers(0, 999))
        array = np.random.default_rng(seed).integers(-9, 10, shape).astype(dtype)
        if dtype == F32 and draw(st.booleans()):
            special = np.random.default_rng(seed).choice([np.nan, np.inf, -np.inf, -0.0, 1, 2, 3], shape)
            array = np.where(np.random.default_rng(seed + 1).random(shape) < 0.2, special, array).astype(dtype)
        array = draw(laid_out(array))
        name = self.graph.input(f"x{len(self.arguments)}", TensorDesc.of(array))
        self.arguments.append(array)
        self.values[name] = array

    def pick(self, *dtypes: np.dtype[Any], fits: Callable[[Array], bool] = lambda _: True) -> str | None:
        """Returns the name of a value, the newest ones more likely; None when none will do."""
        names = [n for n, v in self.values.items() if (not dtypes or v.dtype in dtypes) and fits(v)]
        return self.draw(st.sampled_from(names + names[-3:])) if names else None

    def constant(self, value: Any) -> str:
        return self.graph.constant(value)

    def add(self, op: str, inputs: Sequence[str], value: Any, /, **attributes: Any) -> str | None:
        """Adds a node unless its result is too large; keeps floats small."""
        value = np.asarray(value)
        if value.size > MAX_SIZE or value.ndim > MAX_RANK:
            return None
        name = self.graph.add(op, inputs, attributes)
        if value.dtype == F32 and np.abs(np.nan_to_num(value, posinf=0, neginf=0)).max(initial=0) > BOUND:
            bounds = [self.constant(np.float32(-BOUND)), self.constant(np.float32(BOUND))]
            name, value = self.graph.add("Clip", [name, *bounds]), np.clip(value, -BOUND, BOUND)
        self.values[name] = value
        return name


def ints(values: Any) -> Array:
    return np.array(values, np.int64)


# Each step adds a node or, where nothing fits, none.

BINARY = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Max": np.maximum, "Min": np.minimum}
COMPARE = {"Equal": np.equal, "Less": np.less, "GreaterOrEqual": np.greater_equal}
UNARY: dict[str, Callable[..., Any]] = {
    "Neg": np.negative,
    "Abs": np.abs,
    "Sign": np.sign,
    "Relu": lambda x: np.maximum(x, 0),
}
LOGIC = {"And": np.logical_and, "Or": np.logical_or, "Xor": np.logical_xor}


def broadcasts(x: Array) -> Callable[[Array], bool]:
    """Returns whether another array has the dtype of x and broadcasts with it."""

    def fits(y: Array) -> bool:
        pairs = zip(reversed(x.shape), reversed(y.shape), strict=False)
        return x.dtype == y.dtype and all(a == b or 1 in (a, b) for a, b in pairs)

    return fits


def grow_pair(table: Mapping[str, Callable[..., Any]], *dtypes: np.dtype[Any]) -> Callable[[Grown], None]:
    def grow(g: Grown) -> None:
        a = g.pick(*dtypes)
        if a is None:
            return
        b = g.pick(fits=broadcasts(g.values[a]))
        op = g.draw(st.sampled_from(sorted(table)))
        assert b is not None
        g.add(op, [a, b], table[op](g.values[a], g.values[b]))

    return grow


def grow_unary(g: Grown) -> None:
    a = g.pick(*NUMBERS)
    if a is not None:
        op = g.draw(st.sampled_from(sorted(UNARY)))
        g.add(op, [a], UNARY[op](g.values[a]))


def grow_where(g: Grown) -> None:
    condition, a = g.pick(BOOL), g.pick()
    if condition is None or a is None or not broadcasts(g.values[condition])(g.values[a].astype(np.bool_)):
        return
    b = g.pick(fits=lambda y: broadcasts(g.values[a])(y) and broadcasts(g.values[condition])(y.astype(np.bool_)))
    if b is not None:
        try:
            value = np.where(g.values[condition], g.values[a], g.values[b])
        except ValueError:  # the three do not broadcast, though each two do
            return
        g.add("Where", [condition, a, b], value)


def grow_cast(g: Grown) -> None:
    a, to = g.pick(), g.draw(st.sampled_from((F32, I64, BOOL)))
    if a is not None:
        g.add("Cast", [a], convert(g.values[a], to), to=to.name)


def grow_transpose(g: Grown) -> None:
    a = g.pick()
    if a is not None:
        perm = g.draw(st.permutations(range(g.values[a].ndim)))
        g.add("Transpose", [a], g.values[a].transpose(perm), perm=list(perm))


def grow_reshape(g: Grown) -> None:
    a = g.pick(fits=lambda x: x.ndim > 0)
    if a is None:
        return
    x = g.values[a]
    axis = g.draw(st.integers(0, x.ndim - 1))
    shape = (*x.shape[:axis], math.prod(x.shape[axis : axis + 2]), *x.shape[axis + 2 :])
    if g.draw(st.booleans()):
        shape = (*x.shape[:axis], 1, *x.shape[axis:])
    g.add("Reshape", [a, g.constant(ints(shape))], x.reshape(shape), allowzero=True)


def grow_slice(g: Grown) -> None:
    a = g.pick(fits=lambda x: x.ndim > 0)
    if a is None:
        return
    x, place = g.values[a], st.integers(-5, 5)
    axis = g.draw(st.integers(0, x.ndim - 1))
    start, end, step = g.draw(place), g.draw(place), g.draw(st.sampled_from((1, 2, -1)))
    names = [g.constant(ints([v])) for v in (start, end, axis, step)]
    g.add("Slice", [a, *names], x[(slice(None),) * axis + (slice(start, end, step),)])


def grow_split(g: Grown) -> None:
    a = g.pick(fits=lambda x: x.ndim > 0)
    if a is None:
        return
    x = g.values[a]
    axis = g.draw(st.integers(0, x.ndim - 1))
    cut = g.draw(st.integers(0, x.shape[axis]))
    names = g.graph.add_many("Split", [a, g.constant(ints([cut, x.shape[axis] - cut]))], 2, {"axis": axis})
    g.values.update(zip(names, np.split(x, [cut], axis), strict=True))


def grow_concat(g: Grown) -> None:
    a = g.pick(fits=lambda x: x.ndim > 0)
    if a is None:
        return
    x = g.values[a]
    axis = g.draw(st.integers(0, x.ndim - 1))
    rest = (x.dtype, x.ndim, x.shape[:axis], x.shape[axis + 1 :])
    others = [g.pick(fits=lambda y: (y.dtype, y.ndim, y.shape[:axis], y.shape[axis + 1 :]) == rest) for _ in range(2)]
    names = [a, *[name for name in others if name is not None]]
    g.add("Concat", names, np.concatenate([g.values[n] for n in names], axis), axis=axis)


def grow_expand(g: Grown) -> None:
    a = g.pick()
    if a is None:
        return
    x = g.values[a]
    shape = [g.draw(st.integers(1, 3)), *[g.draw(st.integers(1, 3)) if extent == 1 else extent for extent in x.shape]]
    g.add("Expand", [a, g.constant(ints(shape))], np.broadcast_to(x, shape))


def grow_squeeze(g: Grown) -> None:
    a = g.pick()
    if a is None:
        return
    x = g.values[a]
    if g.draw(st.booleans()):
        g.add("Squeeze", [a], x.squeeze())
    else:
        axis = g.draw(st.integers(0, x.ndim))
        g.add("Unsqueeze", [a, g.constant(ints([axis]))], np.expand_dims(x, axis))


def grow_flip(g: Grown) -> None:
    a = g.pick(fits=lambda x: x.ndim > 0)
    if a is not None:
        axis = g.draw(st.integers(0, g.values[a].ndim - 1))
        g.add("umd.Flip", [a], np.flip(g.values[a], axis), axes=[axis])


def grow_pad(g: Grown) -> None:
    a = g.pick(fits=lambda x: x.ndim > 0)
    if a is None:
        return
    sides = [(g.draw(st.integers(0, 2)), g.draw(st.integers(0, 2))) for _ in g.values[a].shape]
    pads = g.constant(ints([b for b, _ in sides] + [e for _, e in sides]))
    g.add("Pad", [a, pads], np.pad(g.values[a], sides))


def grow_tile(g: Grown) -> None:
    a = g.pick(fits=lambda x: x.ndim > 0)
    if a is not None:
        repeats = [g.draw(st.integers(1, 2)) for _ in g.values[a].shape]
        g.add("Tile", [a, g.constant(ints(repeats))], np.tile(g.values[a], repeats))


def grow_reduction(g: Grown) -> None:
    a = g.pick(*NUMBERS)
    if a is None:
        return
    x, op = g.values[a], g.draw(st.sampled_from(("ReduceSum", "ReduceMax", "ReduceMin")))
    axes = g.draw(st.lists(st.integers(0, x.ndim - 1), min_size=1, unique=True)) if x.ndim else []
    how: dict[str, Any] = {"axis": tuple(axes) or None, "keepdims": g.draw(st.booleans())}
    limits = (-np.inf, np.inf) if x.dtype == F32 else (np.iinfo(I64).min, np.iinfo(I64).max)
    if op == "ReduceSum":
        value = np.sum(x, dtype=x.dtype, **how)
    elif op == "ReduceMax":
        value = np.max(x, initial=x.dtype.type(limits[0]), **how)
    else:
        value = np.min(x, initial=x.dtype.type(limits[1]), **how)
    inputs = [a, g.constant(ints(axes))] if axes else [a]
    g.add(op, inputs, value, keepdims=how["keepdims"])


def grow_arg_reduction(g: Grown) -> None:
    a = g.pick(*NUMBERS, fits=lambda x: x.ndim > 0 and x.size > 0)
    if a is not None:
        axis = g.draw(st.integers(0, g.values[a].ndim - 1))
        g.add("ArgMax", [a], np.argmax(g.values[a], axis), axis=axis, keepdims=False)


def grow_matmul(g: Grown) -> None:
    a = g.pick(*NUMBERS, fits=lambda x: x.ndim == 2)
    if a is None:
        return
    x = g.values[a]
    b = g.pick(x.dtype, fits=lambda y: y.ndim in (1, 2) and y.shape[0] == x.shape[1])
    if b is None:
        b = g.graph.add("Transpose", [a], {"perm": [1, 0]})
        g.values[b] = x.T
    g.add("MatMul", [a, b], np.matmul(x, g.values[b]))


def grow_gather(g: Grown) -> None:
    a = g.pick(fits=lambda x: x.ndim > 0)
    if a is None:
        return
    x = g.values[a]
    axis = g.draw(st.integers(0, x.ndim - 1))
    extent = x.shape[axis]
    index = ints(g.draw(st.lists(st.integers(-extent, extent - 1), max_size=3)) if extent else [])
    g.add("Gather", [a, g.constant(index)], np.take(x, index, axis), axis=axis)


def grow_scatter(g: Grown) -> None:
    a = g.pick(*NUMBERS, fits=lambda x: x.ndim > 0 and x.shape[0] > 0)
    if a is None:
        return
    x = g.values[a]
    updates = g.pick(x.dtype, fits=lambda y: y.ndim == x.ndim and y.shape[1:] == x.shape[1:])
    if updates is None:
        return
    index = np.random.default_rng(len(g.values)).integers(0, x.shape[0], g.values[updates].shape)
    value = x.copy()
    for at in np.ndindex(index.shape):
        value[(index[at], *at[1:])] += g.values[updates][at]
    g.add("ScatterElements", [a, g.constant(index), updates], value, axis=0, reduction="add")


def grow_fill(g: Grown) -> None:
    shape = g.draw(st.lists(st.integers(0, 3), max_size=3))
    g.add("umd.Fill", [], np.full(shape, 3, np.float32), shape=shape, value=3)


def grow_shape(g: Grown) -> None:
    a = g.pick()
    if a is not None:
        g.add("Shape", [a], ints(g.values[a].shape))


STEPS: tuple[Callable[[Grown], None], ...] = (
    grow_pair(BINARY, *NUMBERS), grow_pair(BINARY, *NUMBERS), grow_pair(COMPARE, *NUMBERS), grow_pair(LOGIC, BOOL),
    grow_unary, grow_where, grow_cast, grow_transpose, grow_reshape, grow_slice, grow_split, grow_concat, grow_expand,
    grow_squeeze, grow_flip, grow_pad, grow_tile, grow_reduction, grow_arg_reduction, grow_matmul, grow_gather,
    grow_scatter, grow_fill, grow_shape,
)  # fmt: skip


@st.composite
def grown(draw: st.DrawFn) -> tuple[Grown, list[Array]]:
    """A graph with its inputs, and the values of its outputs."""
    g = Grown(draw)
    for _ in range(draw(st.integers(1, 3))):
        g.input()
    with np.errstate(all="ignore"):
        for step in draw(st.lists(st.sampled_from(STEPS), min_size=1, max_size=14)):
            step(g)
    names = draw(st.lists(st.sampled_from(list(g.values)), min_size=1, max_size=4))
    names.append(list(g.values)[-1])
    overwritten: set[str] = set()
    for name in names:
        value = g.values[name]
        same = [
            i
            for i, d in g.graph.inputs.items()
            if i not in overwritten and (d.shape, d.dtype.numpy) == (value.shape, value.dtype)
        ]
        how = draw(st.sampled_from(("plain", "strided", "in place")))
        if how == "in place" and same:
            target = draw(st.sampled_from(same))
            if _injective(g.graph.inputs[target]):
                overwritten.add(target)
                g.graph.output(name, g.graph.inputs[target], alias=target)
                continue
        if how == "strided" and value.ndim > 1:
            strides = tuple(reversed(contiguous_strides(value.shape[::-1])))
            g.graph.output(name, TensorDesc(value.dtype, value.shape, strides))
        else:
            g.graph.output(name)
    return g, [g.values[name] for name in names]


def _injective(desc: TensorDesc) -> bool:
    return all(stride != 0 for extent, stride in zip(desc.shape, desc.strides, strict=True) if extent > 1)
