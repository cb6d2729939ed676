"""Ops that move, repeat or describe elements, against NumPy over shapes, layouts and dtypes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.op_arrays import PATHS, Array, arrays, check, dynamic, laid_out, shapes, some_values
from tests.core.recipe_interpreter import call_of, launches
from umd_core import dtypes
from umd_core.dtypes import ALL, NUMERIC
from umd_core.ops import OPS

paths = pytest.mark.parametrize("path", PATHS)
Shape = tuple[int, ...]


def ints(values: Any) -> Array:
    return np.array(values, np.int64)


def expect(path: str, op: str, inputs: list[Any], want: Array, attributes: dict[str, Any] | None = None) -> None:
    """Checks one result of an op, bit for bit."""
    (y,) = PATHS[path](op, inputs, attributes)
    check(y, want, dtypes.dtype(inputs[0].dtype), 0)


@st.composite
def reshapes(draw: st.DrawFn) -> tuple[Array, Shape, Shape]:
    """An array, a shape argument and the shape that it means."""
    factors = draw(st.lists(st.integers(1, 4), max_size=4))
    cuts = sorted(draw(st.lists(st.integers(0, len(factors)), max_size=3)))
    x = draw(arrays(tuple(factors), ALL))
    new = [math.prod(factors[a:b]) for a, b in zip([0, *cuts], [*cuts, len(factors)], strict=True)]
    new = draw(st.permutations(new))
    wanted = list(new)
    for axis in range(min(len(new), x.ndim)):
        copy = draw(st.booleans())
        if copy and new[axis] == x.shape[axis]:
            wanted[axis] = 0
    infer = draw(st.booleans())
    if wanted and infer:
        wanted[draw(st.integers(0, len(wanted) - 1))] = -1
    return x, tuple(wanted), tuple(new)


@paths
@settings(max_examples=80)
@given(case=reshapes())
def test_reshape(path: str, case: tuple[Array, Shape, Shape]) -> None:
    x, wanted, new = case
    expect(path, "Reshape", [x, ints(wanted)], x.reshape(new))


@paths
def test_reshape_of_nothing(path: str) -> None:
    x = np.zeros((2, 0, 3), np.float32)
    expect(path, "Reshape", [x, ints([3, 0])], np.zeros((3, 0), np.float32), {"allowzero": 1})
    expect(path, "Reshape", [x, ints([6, 0])], np.zeros((6, 0), np.float32))
    expect(path, "Reshape", [x, ints([4, -1])], np.zeros((4, 0), np.float32))
    expect(path, "Reshape", [np.array([[7]], np.float32), ints([])], np.array(7, np.float32))


@paths
@settings(max_examples=40)
@given(data=st.data())
def test_flatten(path: str, data: st.DataObject) -> None:
    x = data.draw(arrays(shapes(), ALL))
    axis = data.draw(st.integers(-x.ndim, x.ndim))
    rows = math.prod(x.shape[: axis if axis >= 0 else axis + x.ndim])
    columns = math.prod(x.shape[axis if axis >= 0 else axis + x.ndim :])
    expect(path, "Flatten", [x], x.reshape(rows, columns), {"axis": axis})


@paths
@settings(max_examples=40)
@given(data=st.data())
def test_transpose(path: str, data: st.DataObject) -> None:
    x = data.draw(arrays(shapes(max_rank=5), ALL))
    perm = data.draw(st.permutations(range(x.ndim)))
    expect(path, "Transpose", [x], x.transpose(perm), {"perm": perm})
    expect(path, "Transpose", [x], x.T)
    backwards = [axis - x.ndim for axis in perm]
    expect(path, "Transpose", [x], x.transpose(perm), {"perm": backwards})


@paths
@settings(max_examples=60)
@given(data=st.data())
def test_concat_and_split_undo_each_other(path: str, data: st.DataObject) -> None:
    x = data.draw(arrays(shapes(min_rank=1), ALL))
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    cuts = sorted(data.draw(st.lists(st.integers(0, x.shape[axis]), max_size=4)))
    sizes = np.diff([0, *cuts, x.shape[axis]])
    parts = PATHS[path]("Split", [x, ints(sizes)], {"axis": axis}, len(sizes))
    want = np.split(x, cuts, axis)
    for part, wanted in zip(parts, want, strict=True):
        check(part, wanted, dtypes.dtype(x.dtype), 0)
    (whole,) = PATHS[path]("Concat", [data.draw(laid_out(part)) for part in parts], {"axis": axis})
    check(whole, x, dtypes.dtype(x.dtype), 0)


@paths
def test_concat_of_more_operands_than_a_command_may_have(path: str) -> None:
    parts = [np.full((2, n % 3), n, np.int16) for n in range(200)]
    expect(path, "Concat", parts, np.concatenate(parts, 1), {"axis": 1})


@paths
@pytest.mark.parametrize(
    ("extent", "parts", "sizes"), [(7, 3, [3, 3, 1]), (6, 3, [2, 2, 2]), (4, 3, [2, 2, 0]), (0, 2, [0, 0])]
)
def test_split_into_equal_parts(path: str, extent: int, parts: int, sizes: list[int]) -> None:
    x = np.arange(2 * extent).reshape(2, extent)
    results = PATHS[path]("Split", [x], {"axis": 1, "num_outputs": parts}, parts)
    for part, want in zip(results, np.split(x, np.cumsum(sizes)[:-1], 1), strict=True):
        check(part, want, dtypes.int64)


@st.composite
def slices(draw: st.DrawFn) -> tuple[Array, list[Array], tuple[slice, ...]]:
    """An array, Slice's inputs, and the same as Python slices."""
    x = draw(arrays(shapes(min_rank=1), ALL))
    axes = draw(st.lists(st.integers(0, x.ndim - 1), unique=True))
    index = [slice(None)] * x.ndim
    far = st.one_of(st.integers(-6, 6), st.sampled_from([2**31 - 1, -(2**31), 2**63 - 1, -(2**63)]))
    starts, ends, steps = [], [], []
    for axis in axes:
        start, end, step = draw(far), draw(far), draw(st.sampled_from((1, 1, 2, 3, -1, -2)))
        starts.append(start)
        ends.append(end)
        steps.append(step)
        index[axis] = slice(start, end, step)
    named = [axis - draw(st.sampled_from((0, x.ndim))) for axis in axes]
    return x, [ints(starts), ints(ends), ints(named), ints(steps)], tuple(index)


@paths
@settings(max_examples=100)
@given(case=slices())
def test_slice(path: str, case: tuple[Array, list[Array], tuple[slice, ...]]) -> None:
    x, arguments, index = case
    expect(path, "Slice", [x, *arguments], x[index])


@paths
def test_slice_without_axes_and_steps(path: str) -> None:
    x = np.arange(24).reshape(2, 3, 4)
    expect(path, "Slice", [x, ints([0, 1]), ints([1, 9])], x[:1, 1:])
    expect(path, "Slice", [x, ints([-1]), ints([9]), None, ints([1])], x[-1:])
    expect(path, "Slice", [x, *(np.array([v], np.int32) for v in (3, 0, -1, -2))], x[..., 3:0:-2])


@paths
@settings(max_examples=40)
@given(data=st.data())
def test_flip(path: str, data: st.DataObject) -> None:
    x = data.draw(arrays(shapes(), ALL))
    axes = data.draw(st.lists(st.integers(0, x.ndim - 1), unique=True)) if x.ndim else []
    expect(
        path,
        "umd.Flip",
        [x],
        np.flip(x, tuple(axes)),
        {"axes": [a - data.draw(st.sampled_from((0, x.ndim))) for a in axes]},
    )


@paths
@settings(max_examples=60)
@given(data=st.data())
def test_expand(path: str, data: st.DataObject) -> None:
    x = data.draw(arrays(shapes(max_rank=3), ALL))
    lead = data.draw(shapes(max_rank=2, max_extent=3))
    own = [
        data.draw(st.integers(0, 3)) if extent == 1 else data.draw(st.sampled_from((1, extent))) for extent in x.shape
    ]
    own = own[data.draw(st.integers(0, len(own))) :] if not lead else own
    want = np.broadcast_to(x, np.broadcast_shapes(x.shape, (*lead, *own)))
    expect(path, "Expand", [x, ints([*lead, *own])], want)


@paths
@settings(max_examples=60)
@given(data=st.data())
def test_tile(path: str, data: st.DataObject) -> None:
    x = data.draw(arrays(shapes(max_rank=4, max_extent=3), ALL))
    repeats = [data.draw(st.integers(0, 3)) for _ in range(x.ndim)]
    expect(path, "Tile", [x, ints(repeats)], np.tile(x, repeats))


@paths
def test_tile_of_the_highest_rank(path: str) -> None:
    x = np.arange(2**8, dtype=np.int32).reshape((2,) * 8)
    expect(path, "Tile", [x, ints([2, 1, 2, 1, 2, 1, 1, 2])], np.tile(x, [2, 1, 2, 1, 2, 1, 1, 2]))
    strange = x.transpose(3, 1, 7, 0, 2, 6, 5, 4)
    expect(path, "Tile", [strange, ints([2, 2, 2, 1, 2, 1, 3, 2])], np.tile(strange, [2, 2, 2, 1, 2, 1, 3, 2]))


@paths
@settings(max_examples=40)
@given(data=st.data())
def test_squeeze_and_unsqueeze(path: str, data: st.DataObject) -> None:
    x = data.draw(arrays(shapes(max_rank=3, max_extent=2), ALL))
    expect(path, "Squeeze", [x], x.squeeze())
    ones = [axis for axis, extent in enumerate(x.shape) if extent == 1]
    axes = data.draw(st.lists(st.sampled_from(ones), unique=True)) if ones else []
    named = [axis - data.draw(st.sampled_from((0, x.ndim))) for axis in axes]
    expect(path, "Squeeze", [x, ints(named)], x.squeeze(tuple(axes)))
    rank = x.ndim + data.draw(st.integers(0, 3))
    new = data.draw(st.permutations(range(rank)))[: rank - x.ndim]
    expect(path, "Unsqueeze", [x, ints(new)], np.expand_dims(x, tuple(new)))


@st.composite
def pads(draw: st.DrawFn, mode: str) -> tuple[Array, list[tuple[int, int]]]:
    """An array and (before, after) of each axis, also negative and far beyond the array."""
    x = draw(arrays(shapes(max_rank=3, min_extent=0 if mode == "constant" else 1), ALL))
    sides = []
    for extent in x.shape:
        before = draw(st.integers(-extent, 9))
        sides.append((before, draw(st.integers(-max(extent + min(before, 0), 0), 9))))
    if mode != "constant":
        sides = [
            (b, a) if extent + min(b, 0) + min(a, 0) > 0 else (0, 0)
            for (b, a), extent in zip(sides, x.shape, strict=True)
        ]
    return x, sides


def padded(x: Array, sides: list[tuple[int, int]], mode: str, **how: Any) -> Array:
    """Returns NumPy's padding after negative pads have cropped."""
    crop = tuple(slice(max(-b, 0), e - max(-a, 0)) for (b, a), e in zip(sides, x.shape, strict=True))
    more = [(max(b, 0), max(a, 0)) for b, a in sides]
    return np.pad(x[crop], more, mode, **how) if x.ndim else x  # type: ignore[call-overload]  # mode is one of NumPy's


@paths
@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
@settings(max_examples=50)
@given(data=st.data())
def test_pad(mode: str, path: str, data: st.DataObject) -> None:
    x, sides = data.draw(pads(mode))
    both = ints([b for b, _ in sides] + [a for _, a in sides])
    expect(path, "Pad", [x, both], padded(x, sides, mode), {"mode": mode})


@paths
@settings(max_examples=30)
@given(data=st.data())
def test_pad_with_a_value_on_some_axes(path: str, data: st.DataObject) -> None:
    x, sides = data.draw(pads("constant"))
    value = some_values(data.draw(st.integers(0, 99)), (), dtypes.dtype(x.dtype))
    axes = data.draw(st.permutations(range(x.ndim)))
    both = ints([sides[a][0] for a in axes] + [sides[a][1] for a in axes])
    named = ints([axis - data.draw(st.sampled_from((0, x.ndim))) for axis in axes])
    expect(path, "Pad", [x, both, value, named], padded(x, sides, "constant", constant_values=value))


@paths
@settings(max_examples=30)
@given(shape=shapes(), dtype=st.sampled_from(ALL), seed=st.integers(0, 99))
def test_fill(path: str, shape: Shape, dtype: dtypes.DType, seed: int) -> None:
    value = some_values(seed, (1,), dtype)
    (y,) = PATHS[path]("ConstantOfShape", [ints(shape)], {"value": value})
    check(y, np.full(shape, value), dtype, 0)
    number = value[0].item() if dtype.kind in "iub" else float(value[0])
    (y,) = PATHS[path]("umd.Fill", [], {"shape": list(shape), "dtype": dtype.name, "value": number})
    check(y, np.full(shape, value), dtype, 0)
    (y,) = PATHS[path]("ConstantOfShape", [ints(shape)])
    check(y, np.zeros(shape), dtypes.float32, 0)


RANGES = [
    (0, 10, 3),
    (10, 4, -2),
    (5, 5, 1),
    (0, -5, 1),
    (-3, 12, 4),
    (7, -8, -5),
    (0.5, 3.0, 0.25),
    (2.0, -1.0, -0.5),
    (0, 1, 7),
]


@paths
@pytest.mark.parametrize("dtype", [d for d in NUMERIC if d.kind != "u"], ids=str)
@pytest.mark.parametrize("numbers", RANGES, ids=str)
def test_range(path: str, dtype: dtypes.DType, numbers: tuple[float, float, float]) -> None:
    if dtype.is_integer and not all(float(n).is_integer() for n in numbers):
        numbers = (1, 9, 2)
    start, limit, delta = (np.array(n).astype(dtype.numpy) for n in numbers)
    (y,) = PATHS[path]("Range", [start, limit, delta])
    check(y, np.arange(*numbers).astype(dtype.numpy), dtype, 1)


@paths
@settings(max_examples=30)
@given(data=st.data())
def test_shape_and_size(path: str, data: st.DataObject) -> None:
    x = data.draw(arrays(shapes(), ALL))
    start, end = data.draw(st.integers(-6, 6)), data.draw(st.one_of(st.none(), st.integers(-6, 6)))
    (y,) = PATHS[path]("Shape", [x], {"start": start, "end": end})
    low = min(max(start + x.ndim if start < 0 else start, 0), x.ndim)
    high = x.ndim if end is None else min(max(end + x.ndim if end < 0 else end, 0), x.ndim)
    check(y, [x.shape[axis] for axis in range(low, high)], dtypes.int64)
    (y,) = PATHS[path]("Size", [x])
    check(y, x.size, dtypes.int64)


@paths
@settings(max_examples=50)
@given(data=st.data(), k=st.integers(-6, 6), upper=st.booleans())
def test_trilu(path: str, data: st.DataObject, k: int, upper: bool) -> None:
    x = data.draw(arrays(shapes(min_rank=2), ALL))
    want = np.triu(x, k) if upper else np.tril(x, k)
    expect(path, "Trilu", [x, ints(k)], want, {"upper": upper})
    if k == 0:
        expect(path, "Trilu", [x], want, {"upper": int(upper)})


VIEWS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "Reshape": ([ints([4, 6])], {}), "Flatten": ([], {}), "Identity": ([], {}), "Transpose": ([], {}),
    "Split": ([], {"num_outputs": 2}), "Slice": ([ints([0]), ints([1]), ints([2]), ints([1])], {}),
    "umd.Flip": ([], {"axes": [0, 2]}), "Expand": ([ints([5, 2, 3, 4])], {}), "Squeeze": ([], {}),
    "Unsqueeze": ([ints([0])], {}), "Shape": ([], {}), "Size": ([], {}), "ReduceSum": ([], {"noop_with_empty_axes": 1}),
    "Pad": ([ints([-1, 0, 0, 0, -1, 0])], {}), "Tile": ([ints([1, 1, 1])], {}), "Clip": ([], {}), "Max": ([], {}),
    "Concat": ([], {"axis": 0}), "Mean": ([], {}),
}  # fmt: skip


@pytest.mark.parametrize("op", VIEWS)
def test_what_can_be_a_view_launches_nothing(op: str) -> None:
    more, attributes = VIEWS[op]
    assert launches(op, [np.zeros((2, 3, 4), np.float32), *more], attributes) == []


def test_a_reshape_copies_only_where_strides_demand_it() -> None:
    x = np.zeros((4, 6), np.float32)
    assert launches("Reshape", [x.T, ints([3, 2, 4])]) == []
    assert launches("Reshape", [x.T, ints([24])]) == ["elementwise_copy_kernel"]
    assert launches("Reshape", [x[:, ::2], ints([12])]) == []
    assert launches("Reshape", [x[:, 1:], ints([20])]) == ["elementwise_copy_kernel"]


@pytest.mark.parametrize("op", VIEWS)
def test_data_movement_costs_bytes_but_no_operations(op: str) -> None:
    more, attributes = VIEWS[op]
    inputs = [np.zeros((2, 3, 4), np.float32), *more]
    flops, moved = OPS[op].cost(call_of(op, inputs, attributes))
    computing: dict[str, int] = {"ReduceSum": 24, "Clip": 24, "Max": 24, "Mean": 24}
    assert flops == computing.get(op, 0)
    assert moved >= sum(x.nbytes for x in dynamic(op, inputs))


@paths
@settings(max_examples=20)
@given(x=arrays(shapes(max_rank=5), ALL))
def test_identity(path: str, x: Array) -> None:
    expect(path, "Identity", [x], x)
