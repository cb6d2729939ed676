"""Gather, scatter and the embedding gradient against NumPy and torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.op_arrays import PATHS, Array, arrays, check, epsilon, laid_out, shapes, some_values
from tests.core.recipe_interpreter import launches
from umd_core import dtypes
from umd_core.dtypes import ALL, FLOATS, INDEX
from umd_core.errors import IndexRangeError

paths = pytest.mark.parametrize("path", PATHS)
Shape = tuple[int, ...]


@st.composite
def indices(draw: st.DrawFn, shape: Shape, extent: int) -> Array:
    """Indices in [-extent, extent), int32 or int64, in any layout."""
    dtype = draw(st.sampled_from(INDEX)).numpy
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    if not extent:
        return np.zeros((*shape[:-1], 0) if shape else (0,), dtype)
    return draw(laid_out(rng.integers(-extent, extent, shape).astype(dtype)))


@paths
@settings(max_examples=80)
@given(data=st.data())
def test_gather(path: str, data: st.DataObject) -> None:
    x = data.draw(arrays(shapes(min_rank=1), ALL))
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    index = data.draw(indices(data.draw(shapes(max_rank=3)), x.shape[axis]))
    (y,) = PATHS[path]("Gather", [x, index], {"axis": axis})
    check(y, np.take(x, index, axis), dtypes.dtype(x.dtype), 0)


@st.composite
def elementwise(draw: st.DrawFn, types: tuple[dtypes.DType, ...]) -> tuple[Array, Array, int]:
    """Data, an index within its shape but for one axis, and the axis."""
    x = draw(arrays(shapes(min_rank=1), types, special=False))
    axis = draw(st.integers(0, x.ndim - 1))
    shape = tuple(draw(st.integers(0, 5 if a == axis else extent)) for a, extent in enumerate(x.shape))
    if not x.shape[axis]:
        shape = (*shape[:axis], 0, *shape[axis + 1 :])
        return x, np.zeros(shape, np.int64), axis
    return x, draw(indices(shape, x.shape[axis])), axis


@paths
@settings(max_examples=80)
@given(case=elementwise(ALL), backwards=st.booleans())
def test_gather_elements(path: str, case: tuple[Array, Array, int], backwards: bool) -> None:
    x, index, axis = case
    (y,) = PATHS[path]("GatherElements", [x, index], {"axis": axis - x.ndim * backwards})
    inside = tuple(slice(None) if a == axis else slice(extent) for a, extent in enumerate(index.shape))
    check(y, np.take_along_axis(x[inside], index.astype(np.int64), axis), dtypes.dtype(x.dtype), 0)


COMBINE: dict[str, Any] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def scattered(x: Array, index: Array, updates: Array, axis: int, reduction: str = "") -> Array:
    """Returns what ScatterElements means, by a loop in row-major order."""
    combine = COMBINE.get(reduction, lambda _, update: update)
    out = x.astype(np.float64) if x.dtype.kind not in "iub" else x.copy()
    with np.errstate(over="ignore"):
        for at in np.ndindex(index.shape):
            place = (*at[:axis], int(index[at]), *at[axis + 1 :])
            out[place] = combine(out[place], updates[at])
    return out


@paths
@settings(max_examples=80)
@given(case=elementwise(ALL), data=st.data())
def test_scatter_elements(path: str, case: tuple[Array, Array, int], data: st.DataObject) -> None:
    x, index, axis = case
    dtype = dtypes.dtype(x.dtype)
    if x.shape[axis]:  # no two equal indices: with none, the last of them wins, which ONNX leaves open
        rng = np.random.default_rng(data.draw(st.integers(0, 999)))
        count = min(index.shape[axis], x.shape[axis])
        index = index[(*[slice(None)] * axis, slice(count))]
        order = np.broadcast_to(
            np.arange(x.shape[axis]), (*index.shape[:axis], *index.shape[axis + 1 :], x.shape[axis])
        )
        index = np.moveaxis(rng.permuted(order, axis=-1)[..., :count], -1, axis).astype(index.dtype)
    updates = data.draw(laid_out(some_values(3, index.shape, dtype)))
    (y,) = PATHS[path]("ScatterElements", [x, index, updates], {"axis": axis})
    check(y, scattered(x, index, updates, axis), dtype, 0)


@paths
@settings(max_examples=80)
@given(case=elementwise(dtypes.NUMERIC), data=st.data())
def test_scatter_with_a_reduction(path: str, case: tuple[Array, Array, int], data: st.DataObject) -> None:
    x, index, axis = case
    dtype = dtypes.dtype(x.dtype)
    updates = data.draw(laid_out(some_values(4, index.shape, dtype, special=False)))
    reduction = data.draw(st.sampled_from(sorted(COMBINE)))
    (y,) = PATHS[path]("ScatterElements", [x, index, updates], {"axis": axis - x.ndim, "reduction": reduction})
    want = scattered(x, index, updates, axis, reduction)
    if not dtype.is_float or reduction in ("max", "min"):
        check(y, want, dtype, 0)
        return
    size = scattered(np.abs(x), index, np.abs(updates), axis, reduction)
    assert (y.dtype, y.shape) == (x.dtype, x.shape)
    assert np.all(np.abs(y.astype(np.float64) - want) <= 8 * epsilon(x.dtype) * size)


@paths
@settings(max_examples=40)
@given(data=st.data())
def test_embedding_gradient(path: str, data: st.DataObject) -> None:
    rows, padding = data.draw(st.integers(1, 5)), data.draw(st.integers(-1, 4))
    padding = padding if padding < rows else -1
    shape, inner = data.draw(shapes(max_rank=2)), data.draw(shapes(max_rank=2))
    dtype = data.draw(st.sampled_from(FLOATS))
    index = data.draw(indices(shape, rows)) % rows
    dy = data.draw(arrays(shape + inner, [dtype], special=False))
    (dw,) = PATHS[path]("umd.EmbeddingGrad", [dy, index], {"num_weights": rows, "padding_idx": padding})
    flat = torch.from_numpy(np.array(dy, np.float64)).reshape(index.size, int(np.prod(inner)))
    which = torch.from_numpy(np.array(index, np.int64)).reshape(-1)
    zeros = torch.zeros(rows, flat.shape[1], dtype=torch.float64)
    want, size = (zeros.index_add(0, which, v).numpy().reshape((rows, *inner)) for v in (flat, flat.abs()))
    if padding >= 0:
        want[padding] = 0
    assert (dw.dtype, dw.shape) == (dtype.numpy, want.shape)
    assert np.all(np.abs(dw.astype(np.float64) - want) <= 8 * epsilon(dtype.numpy) * size)


def test_torch_agrees_on_the_embedding_gradient() -> None:
    table = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    index = torch.tensor([[0, 2], [2, 1]])
    dy = torch.randn(2, 2, 3, dtype=torch.float64)
    torch.nn.functional.embedding(index, table, padding_idx=1).backward(dy)
    inputs: list[Any] = [dy.numpy(), index.numpy()]
    (dw,) = PATHS["recipe"]("umd.EmbeddingGrad", inputs, {"num_weights": 4, "padding_idx": 1})
    assert table.grad is not None
    np.testing.assert_allclose(dw, table.grad.numpy(), rtol=1e-12)


def test_indexing_is_one_launch() -> None:
    x, index = np.zeros((4, 5), np.float32), np.zeros((2, 3), np.int64)
    assert launches("Gather", [x, index]) == ["gather_kernel"]
    assert launches("GatherElements", [x, index]) == ["gather_kernel"]
    assert launches("ScatterElements", [x, index, np.zeros((2, 3), np.float32)]) == ["CopyBytes", "scatter_kernel"]


@paths
@settings(max_examples=60)
@given(data=st.data())
def test_scatter_nd(path: str, data: st.DataObject) -> None:
    x = data.draw(arrays(shapes(min_rank=1, min_extent=1), dtypes.NUMERIC, special=False))
    dtype, count = dtypes.dtype(x.dtype), data.draw(st.integers(0, x.ndim))
    lead = data.draw(shapes(max_rank=2, max_extent=3))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    columns = [rng.integers(-extent, extent, lead) for extent in x.shape[:count]]
    index = np.stack([*columns], -1) if count else np.zeros((*lead, 0))
    index = data.draw(laid_out(index.astype(data.draw(st.sampled_from(INDEX)).numpy)))
    updates = data.draw(laid_out(some_values(5, (*lead, *x.shape[count:]), dtype, special=False)))
    reduction = data.draw(st.sampled_from(["none", *COMBINE]))
    (y,) = PATHS[path]("ScatterND", [x, index, updates], {"reduction": reduction})
    wide = x.astype(np.float64) if dtype.is_float else x.copy()
    size = np.abs(wide)
    with np.errstate(over="ignore"):
        for at in np.ndindex(lead):
            place = tuple(int(k) for k in index[at])
            wide[place] = COMBINE.get(reduction, lambda _, update: update)(wide[place], updates[at])
            if reduction in ("add", "mul"):
                size[place] = COMBINE[reduction](size[place], np.abs(updates[at]))
    if not dtype.is_float or reduction in ("none", "max", "min"):
        check(y, wide, dtype, 0)
    else:
        assert np.all(np.abs(y.astype(np.float64) - wide) <= 8 * epsilon(x.dtype) * size)


@paths
@pytest.mark.parametrize(("index", "value"), [([0, 3], 6), ([2, 0], 6), ([-3, 0], 6), ([1, -4], 6)])
def test_a_tuple_out_of_range_is_an_error(path: str, index: list[int], value: int) -> None:
    x = np.zeros((2, 3), np.float32)
    with pytest.raises(IndexRangeError) as caught:
        PATHS[path]("ScatterND", [x, np.array([index]), np.ones(1, np.float32)])
    assert caught.value.value == value
    assert not x.any()
