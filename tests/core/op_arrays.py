"""Arrays of any dtype, shape and layout, with the values that go wrong; and the ways to run an op on them."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

from tests.core.recipe_interpreter import level_0, run_op, run_program
from umd_core import dtypes
from umd_core.commands import CommandBuffer
from umd_core.device import Device
from umd_core.dtypes import DType
from umd_core.ir import Graph, TensorDesc
from umd_core.ops import op_template
from umd_core.registry import open_device
from umd_core.translate import translate

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
_SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -1.5, 1e-30, 3e4)


def shapes(min_rank: int = 0, max_rank: int = 4, max_extent: int = 4, min_extent: int = 0) -> st.SearchStrategy[Shape]:
    """Shapes, those with an empty axis among them."""
    return st.lists(st.integers(min_extent, max_extent), min_size=min_rank, max_size=max_rank).map(tuple)


@st.composite
def arrays(
    draw: st.DrawFn, shape: Shape | st.SearchStrategy[Shape], types: Sequence[DType], *, special: bool = True
) -> Array:
    """Arrays in any memory layout: axes permuted, with gaps, backwards, repeated with stride 0."""
    extents = shape if isinstance(shape, tuple) else draw(shape)
    dtype = draw(st.sampled_from(list(types)))
    array = draw(laid_out(some_values(draw(st.integers(0, 2**32)), extents, dtype, special=special)))
    repeated = draw(st.integers(-4, array.ndim - 1))
    if repeated < 0 or not array.shape[repeated]:
        return array
    return np.broadcast_to(np.moveaxis(np.moveaxis(array, repeated, 0)[:1], 0, repeated), array.shape)


def some_values(seed: int, shape: Shape, dtype: DType, *, special: bool = True) -> Array:
    """Returns random numbers of a dtype; `special` mixes in NaN, infinities, signed zeros and extreme integers."""
    rng = np.random.default_rng(seed)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(np.bool_)
    if dtype.is_integer:
        limits = np.iinfo(dtype.numpy)
        small = rng.integers(max(limits.min, -9), 10, shape).astype(dtype.numpy)
        if not special:
            return small
        wide = rng.integers(limits.min, limits.max, shape, dtype=dtype.numpy, endpoint=True)
        ends = rng.choice(np.array([limits.min, limits.max, 0, 1], dtype.numpy), shape)
        which = rng.random(shape)
        return np.where(which < 0.6, small, np.where(which < 0.9, wide, ends))
    values = rng.normal(0, 3, shape)
    if special:
        values = np.where(rng.random(shape) < 0.2, rng.choice(_SPECIAL, shape), values)
    with np.errstate(over="ignore"):
        return np.asarray(values).astype(dtype.numpy)


@st.composite
def laid_out(draw: st.DrawFn, array: Array) -> Array:
    """Returns the same elements in another memory layout."""
    if array.ndim == 0 or draw(st.booleans()):
        return array
    order = draw(st.permutations(range(array.ndim)))
    steps = [draw(st.sampled_from((1, 1, 2, -1, -2))) for _ in range(array.ndim)]
    base = np.zeros([array.shape[axis] * abs(steps[axis]) + 1 for axis in order], array.dtype)
    view = base.transpose(np.argsort(order))
    for axis, step in enumerate(steps):
        view = np.moveaxis(np.moveaxis(view, axis, 0)[::step][: array.shape[axis]], 0, axis)
    view[...] = array
    return view


@st.composite
def broadcastable(draw: st.DrawFn, types: Sequence[DType], count: int = 2, *, special: bool = True) -> list[Array]:
    """Arrays of one dtype that broadcast together."""
    whole, dtype = draw(shapes()), draw(st.sampled_from(list(types)))
    parts = []
    for _ in range(count):
        rank = draw(st.integers(0, len(whole)))
        own = tuple(1 if draw(st.integers(0, 4)) == 0 else extent for extent in whole[len(whole) - rank :])
        parts.append(draw(arrays(own, [dtype], special=special)))
    return parts


# ways to run an op


class LevelZero:
    """A device with the kernels of level 0 alone."""

    def supports(self, name: str, types: tuple[DType, ...]) -> bool:
        return level_0(name, types)


LEVEL_0 = LevelZero()


def run_translated(
    op: str, inputs: Sequence[Array | None], attributes: Mapping[str, Any] | None = None, outputs: int = 1
) -> list[Array]:
    """Returns the outputs of an op from the command buffer that it is translated to."""
    return run_program(translated(op, inputs, attributes or {}, outputs, LEVEL_0), dynamic(op, inputs))


def translated(
    op: str, inputs: Sequence[Array | None], attributes: Mapping[str, Any], outputs: int, caps: LevelZero | None = None
) -> CommandBuffer:
    """Returns the command buffer of one op; several outputs are asked for by a graph."""
    if outputs == 1:
        return translate(op, inputs, caps=caps, **attributes)
    graph, names = Graph(op), []
    for index, (value, known) in enumerate(zip(inputs, static_inputs(op, len(inputs)), strict=True)):
        if value is None:
            names.append("")
        else:
            names.append(graph.constant(value) if known else graph.input(f"x{index}", TensorDesc.of(value)))
    for name in graph.add_many(op, names, outputs, attributes):
        graph.output(name)
    return translate(graph, caps=caps)


def static_inputs(op: str, count: int) -> list[bool]:
    """Returns, for each input, whether its value becomes part of the program."""
    specs = op_template(op).inputs
    return [specs[min(i, len(specs) - 1)].static for i in range(count)]


def dynamic(op: str, inputs: Sequence[Array | None]) -> list[Array]:
    """Returns the inputs that are arguments of the program: those that are there and not static."""
    static = static_inputs(op, len(inputs))
    return [x for x, known in zip(inputs, static, strict=True) if x is not None and not known]


@functools.cache
def device(name: str) -> Device:
    """Returns a device, opened once for all tests of a process."""
    return open_device(name)


def on_simulator(buffer: CommandBuffer, inputs: Sequence[Array], name: str = "sim:0") -> list[Array]:
    """Returns the outputs that the simulator computes from a command buffer."""
    return [tensor.numpy() for tensor in device(name).run(buffer, inputs)]


def run_simulated(
    op: str, inputs: Sequence[Array | None], attributes: Mapping[str, Any] | None = None, outputs: int = 1
) -> list[Array]:
    """Returns the outputs of an op from the simulator."""
    return on_simulator(translated(op, inputs, attributes or {}, outputs), dynamic(op, inputs))


PATHS = {"recipe": run_op, "sim": run_simulated}
"""Two ways from an op and arrays to results: its launches for a level-0 device alone; the simulator."""


# comparison


def epsilon(dtype: Any) -> float:
    """Returns the distance from 1 to the next number of a float type."""
    return float(limits_of(dtype).eps)


def limits_of(dtype: Any) -> Any:
    """Returns the limits of a float type, bfloat16 among them."""
    return ml_dtypes.finfo(dtype)


def check_floats(got: Array, want: Any, tolerance: float = 4.0) -> None:
    """Checks floats against float64 values, within `tolerance` epsilons of their own type; NaN equals NaN."""
    limits = limits_of(got.dtype)
    largest, least = 0.98 * float(limits.max), float(limits.smallest_subnormal)
    numbers, wanted = got.astype(np.float64), np.asarray(want, np.float64)
    left, right = (np.where(np.abs(s) > largest, np.copysign(np.inf, s), s) for s in (numbers, wanted))
    assert got.shape == wanted.shape
    np.testing.assert_allclose(left, right, rtol=tolerance * float(limits.eps), atol=2 * least)


def check(got: Array, want: Any, dtype: DType, tolerance: float = 4.0) -> None:
    """Checks dtype, shape and values: floats within a tolerance, all else exactly."""
    assert got.dtype == dtype.numpy
    if dtype.is_float:
        check_floats(got, want, tolerance)
    else:
        assert got.shape == np.shape(want)
        np.testing.assert_array_equal(got, np.asarray(want))


WIDE_FLOATS = (dtypes.float32, dtypes.float64)
