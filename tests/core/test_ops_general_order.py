"""Running sums and products, and the first of the sorted order, against NumPy and Python's sort."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.op_arrays import PATHS, Array, arrays, check, epsilon, shapes, some_values
from tests.core.recipe_interpreter import launches, run_op
from umd_core import dtypes
from umd_core.decompositions import DECOMPOSITIONS
from umd_core.dtypes import ALL, INDEX, NUMERIC, DType
from umd_core.errors import AttributeValueError, DTypeError, InputCountError, LimitError, ShapeError, UmdError
from umd_core.ir import TensorDesc
from umd_core.recorder import Recorder
from umd_core.translate import translate

paths = pytest.mark.parametrize("path", PATHS)


def running(op: str, x: Array, axis: int, *, exclusive: bool, reverse: bool) -> Array:
    """Returns NumPy's running sum or product, in float64 or in the integer type."""
    ufunc = np.add if op == "CumSum" else np.multiply
    wide = x.astype(np.float64) if dtypes.dtype(x.dtype).is_float else x
    wide = np.flip(wide, axis) if reverse else wide
    result = np.asarray(ufunc.accumulate(wide, axis, dtype=wide.dtype))
    if exclusive:
        first = np.full_like(np.take(result, [0] * min(1, x.shape[axis]), axis), ufunc.identity)
        result = np.concatenate([first, np.delete(result, -1, axis)], axis) if x.shape[axis] else result
    return np.flip(result, axis) if reverse else result


@paths
@pytest.mark.parametrize("op", ["CumSum", "CumProd"])
@settings(max_examples=50)
@given(data=st.data(), exclusive=st.booleans(), reverse=st.booleans())
def test_running(op: str, path: str, data: st.DataObject, exclusive: bool, reverse: bool) -> None:
    x = data.draw(arrays(shapes(min_rank=1), NUMERIC, special=op == "CumProd"))
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    where = np.array(axis, data.draw(st.sampled_from(INDEX)).numpy)
    (y,) = PATHS[path](op, [x, where], {"exclusive": exclusive, "reverse": reverse})
    with np.errstate(all="ignore"):
        want = running(op, x, axis, exclusive=exclusive, reverse=reverse)
        dtype = dtypes.dtype(x.dtype)
        if op == "CumSum" and dtype.is_float:
            assert (y.dtype, y.shape) == (x.dtype, want.shape)
            size = running(op, np.abs(x), axis, exclusive=exclusive, reverse=reverse)
            assert np.all(np.abs(y.astype(np.float64) - want) <= 4 * epsilon(x.dtype) * size)
        else:
            check(y, want, dtype, 64)


@paths
def test_running_sums_of_infinities(path: str) -> None:
    x = np.array([[1, np.inf, 2, -np.inf, 3], [np.nan, 1, 2, 3, 4]], np.float32)
    (y,) = PATHS[path]("CumSum", [x, np.array(1)], {})
    np.testing.assert_array_equal(y, [[1, np.inf, np.inf, np.nan, np.nan], [np.nan] * 5])


def order(row: Array, *, largest: bool) -> list[int]:
    """Returns the positions of a row's elements in order: Python's stable sort, NaN greater than every number."""

    def compare(i: int, j: int) -> int:
        a, b = row[i], row[j]
        result = int(a != a) - int(b != b) or int(a > b) - int(a < b)
        return -result if largest else result

    return sorted(range(len(row)), key=functools.cmp_to_key(compare))


def check_top(x: Array, axis: int, count: int, largest: bool, results: list[Array]) -> None:
    """Checks both results of TopK."""
    values, index = results
    rows = np.moveaxis(x, axis, -1)
    want = np.zeros((*rows.shape[:-1], count), np.int64)
    for at in np.ndindex(rows.shape[:-1]):
        want[at] = order(rows[at].tolist(), largest=largest)[:count]
    want = np.moveaxis(want, -1, axis)
    check(index, want, dtypes.int64)
    check(values, np.take_along_axis(x, want, axis), dtypes.dtype(x.dtype), 0)


@paths
@settings(max_examples=60)
@given(data=st.data(), largest=st.booleans())
def test_top_k(path: str, data: st.DataObject, largest: bool) -> None:
    x = data.draw(arrays(shapes(min_rank=1, max_extent=5), ALL))
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    count = data.draw(st.integers(0, x.shape[axis]))
    attributes = {"axis": axis, "largest": largest, "sorted": data.draw(st.booleans())}
    check_top(x, axis, count, largest, PATHS[path]("TopK", [x, np.array([count])], attributes, 2))


@pytest.mark.parametrize("dtype", [dtypes.int32, dtypes.float64], ids=str)
def test_rows_of_every_length_without_the_kernel(dtype: DType) -> None:
    for length in range(1, 70):
        x = some_values(length, (2, length), dtype)
        check_top(x, 1, length, False, run_op("TopK", [x, np.array([length])], {"largest": 0}, 2))


@pytest.mark.parametrize("dtype", [dtypes.int64, dtypes.uint64, dtypes.uint32, dtypes.float64], ids=str)
def test_wide_keys_without_the_kernel(dtype: DType) -> None:
    # equal upper halves, equal lower halves, and both ends of the type
    bits = np.array([0, 1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**63 - 1, 2**63, 2**63 + 2**31, 2**64 - 1], np.uint64)
    x = np.random.default_rng(0).choice(bits, 60).astype(f"u{dtype.size}").view(dtype.numpy)
    for largest in (False, True):
        check_top(x, 0, 60, largest, run_op("TopK", [x, np.array([60])], {"largest": largest}, 2))


def test_each_is_one_launch() -> None:
    x = np.zeros((2, 3, 4), np.float32).transpose(2, 0, 1)
    assert launches("CumSum", [x, np.array(1)], {"reverse": 1}) == ["scan_sum_kernel"]
    assert launches("CumProd", [x, np.array(-1)], {"exclusive": 1}) == ["scan_prod_kernel"]
    assert launches("TopK", [x, np.array([2])], {"axis": 0}) == ["sort_kernel"]
    assert launches("TopK", [x, np.array([0])], {"axis": 0}) == []


def test_attributes_may_stand_for_the_static_inputs() -> None:
    assert [o.shape for o in translate("CumSum", [TensorDesc("f32", (3, 4))], axis=1).outputs] == [(3, 4)]
    assert [o.shape for o in translate("TopK", [TensorDesc("f32", (3, 4))], K=[2]).outputs] == [(3, 2)] * 2


F32 = TensorDesc("f32", (2, 3))
REFUSED: list[tuple[str, TensorDesc, dict[str, Any], type[UmdError], str]] = [
    ("CumSum", F32, {"axis": 2}, AttributeValueError, "axis 2 is outside rank 2"),
    ("CumSum", F32, {"axis": -3}, AttributeValueError, "axis -3 is outside rank 2"),
    ("CumSum", F32, {"axis": [0, 1]}, ShapeError, r"'axis': has shape \[2\]"),
    ("CumSum", F32, {}, InputCountError, "2 inputs, got 1"),
    ("CumSum", F32, {"axis": 0, "exclusive": 2}, AttributeValueError, "exclusive"),
    ("CumSum", TensorDesc("bool", (2,)), {"axis": 0}, DTypeError, "'x': is bool"),
    ("CumProd", TensorDesc("f32", ()), {"axis": 0}, ShapeError, "'x': is 0-d"),
    ("TopK", F32, {"K": [4]}, ShapeError, "'K': is 4; 0 to 3, the extent of axis 1"),
    ("TopK", F32, {"K": [3], "axis": 0}, ShapeError, "'K': is 3; 0 to 2, the extent of axis 0"),
    ("TopK", F32, {"K": [-1]}, ShapeError, "'K': is -1"),
    ("TopK", F32, {"K": [1, 1]}, ShapeError, r"'K': has shape \[2\]"),
    ("TopK", F32, {"K": [1], "axis": 2}, AttributeValueError, "axis 2 is outside rank 2"),
    ("TopK", TensorDesc("f32", ()), {"K": [1]}, ShapeError, "'X': is 0-d"),
]


@pytest.mark.parametrize(("op", "x", "attributes", "error", "words"), REFUSED)
def test_what_does_not_fit_is_refused_by_name(
    op: str, x: TensorDesc, attributes: dict[str, Any], error: type[UmdError], words: str
) -> None:
    with pytest.raises(error, match=words) as caught:
        translate(op, [x], **attributes)
    assert caught.value.facts()["op"] == op


def test_a_row_longer_than_a_position_counts_is_refused_without_the_kernel() -> None:
    recorder = Recorder([None], (), lambda kernel, types: kernel != "sort_kernel", DECOMPOSITIONS)
    x, one = recorder.new(dtypes.uint8, (1,)), recorder.new(dtypes.int64, (1,))
    operands: dict[str, Any] = {"x": x.expand((2**32 + 1,)), "values": x, "index": one}
    with pytest.raises(LimitError, match=str(2**32)):
        recorder.launch("sort_kernel", {"outer": (), "length": 2**32 + 1, "count": 1}, operands, {"descending": 0})
