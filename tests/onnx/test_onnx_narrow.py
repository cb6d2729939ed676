"""8-bit floats and integers of less than a byte, computed on a device, beside ONNX's reference bit by bit."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from tests.onnx import small_models
from umd_core.errors import DTypeError
from umd_onnx import load

FLOATS = {
    TensorProto.FLOAT8E4M3FN: ml_dtypes.float8_e4m3fn,
    TensorProto.FLOAT8E4M3FNUZ: ml_dtypes.float8_e4m3fnuz,
    TensorProto.FLOAT8E5M2: ml_dtypes.float8_e5m2,
    TensorProto.FLOAT8E5M2FNUZ: ml_dtypes.float8_e5m2fnuz,
    TensorProto.FLOAT4E2M1: ml_dtypes.float4_e2m1fn,
}
INTEGERS = {
    TensorProto.INT4: ml_dtypes.int4,
    TensorProto.UINT4: ml_dtypes.uint4,
    TensorProto.INT2: ml_dtypes.int2,
    TensorProto.UINT2: ml_dtypes.uint2,
}
HALVES = np.arange(65536, dtype=np.uint16).view(np.float16)
"""Every float16."""


def singles() -> Any:
    """Returns float32 numbers of every magnitude, and for each 8-bit float the ties between neighbours and what is
    just beside them."""
    random = np.random.default_rng(0)
    found = [random.integers(0, 2**32, 20000, dtype=np.uint64).astype(np.uint32).view(np.float32)]
    found += [np.array([np.inf, -np.inf, np.nan, 0.0, -0.0], np.float32)]
    for dtype in FLOATS.values():
        bits = 4 if dtype is ml_dtypes.float4_e2m1fn else 8
        every = np.arange(1 << bits, dtype=np.uint8).view(dtype).astype(np.float64)
        known = np.sort(every[np.isfinite(every)])
        ties = ((known[1:] + known[:-1]) / 2).astype(np.float32)
        found += [known.astype(np.float32), ties]
        found += [np.nextafter(ties, np.float32(side)) for side in (np.inf, -np.inf)]
    return np.concatenate(found)


def cast(code: int, source: int, **attributes: Any) -> onnx.ModelProto:
    nodes = [helper.make_node("Cast", ["x"], ["y"], to=code, **attributes)]
    return typed(small_models.model(nodes, {"x": (source, (None,))}, ["y"]), code)


def typed(model: onnx.ModelProto, *codes: int) -> onnx.ModelProto:
    """Returns the model with these types of its outputs."""
    for output, code in zip(model.graph.output, codes, strict=True):
        output.type.tensor_type.elem_type = code
    return model


def results(model: onnx.ModelProto, **feeds: Any) -> list[Any]:
    with load(model, "sim:0", seed=0) as session:
        found: list[Any] = session.run(None, feeds)
        assert session.imported(feeds).graph.nodes, "the program does it, not the importer"
    return found


def assert_same_bits(found: Any, wanted: Any) -> None:
    assert found.dtype == wanted.dtype
    numbers = wanted.astype(np.float32)
    np.testing.assert_array_equal(np.isnan(found.astype(np.float32)), np.isnan(numbers))
    known = ~np.isnan(numbers)
    np.testing.assert_array_equal(found.view(np.uint8)[known], wanted.view(np.uint8)[known])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the reference casts NaN and overflows on purpose
@pytest.mark.parametrize("saturate", [1, 0])
@pytest.mark.parametrize(("code", "dtype"), FLOATS.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_floats_are_rounded_as_the_reference_rounds_them(code: int, dtype: Any, saturate: int) -> None:
    for source, x in ((TensorProto.FLOAT, singles()), (TensorProto.FLOAT16, HALVES)):
        (found,) = results(cast(code, source, saturate=saturate), x=x)
        if saturate and code != TensorProto.FLOAT4E2M1:
            wanted = onnx.numpy_helper.saturate_cast(x, np.dtype(dtype))
        else:
            wanted = x.astype(dtype)
        assert_same_bits(found, wanted)


@pytest.mark.parametrize(("code", "dtype"), INTEGERS.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_integers_go_toward_zero_and_wrap(code: int, dtype: Any) -> None:
    x = np.linspace(-40, 40, 1601, dtype=np.float32)
    assert_same_bits(results(cast(code, TensorProto.FLOAT), x=x)[0], x.astype(dtype))
    whole = np.arange(-40, 40, dtype=np.int32)
    assert_same_bits(results(cast(code, TensorProto.INT32), x=whole)[0], whole.astype(dtype))


@pytest.mark.parametrize(("code", "dtype"), {**FLOATS, **INTEGERS}.items(), ids=lambda v: getattr(v, "__name__", ""))
def test_what_was_narrowed_may_be_used_again(code: int, dtype: Any) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["q"], to=code),
        helper.make_node("CastLike", ["x", "q"], ["like"]),
        helper.make_node("Cast", ["like"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["wide", "wide"], ["y"]),
    ]
    model = small_models.model(nodes, {"x": (TensorProto.FLOAT, (None,))}, ["q", "y"])
    x = np.linspace(-9, 9, 37, dtype=np.float32)
    narrow, squares = results(typed(model, code, TensorProto.FLOAT), x=x)
    assert_same_bits(narrow, x.astype(dtype))
    np.testing.assert_array_equal(squares, x.astype(dtype).astype(np.float32) ** 2)


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("code", [TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E5M2, TensorProto.FLOAT4E2M1, *INTEGERS])
def test_quantisation_there_and_back(code: int, axis: int | None) -> None:
    scale = np.array(0.25, np.float32) if axis is None else np.array([0.25, 0.5, 2.0], np.float32)
    place: dict[str, Any] = {} if axis is None else {"axis": axis}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale"], ["q"], output_dtype=code, **place),
        helper.make_node("DequantizeLinear", ["q", "scale"], ["y"], **place),
    ]
    model = typed(
        small_models.model(nodes, {"x": (TensorProto.FLOAT, (3, 3))}, ["q", "y"], {"scale": scale}),
        code,
        TensorProto.FLOAT,
    )
    x = (np.random.default_rng(0).standard_normal((3, 3)) * 4).astype(np.float32)
    found, wanted = results(model, x=x), ReferenceEvaluator(model).run(None, {"x": x})
    assert isinstance(wanted, list)
    assert_same_bits(found[0], wanted[0])
    np.testing.assert_allclose(found[1], wanted[1], rtol=1e-6)


def test_an_op_that_the_type_is_not_for_names_it() -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["q"], to=TensorProto.FLOAT8E4M3FN),
        helper.make_node("Transpose", ["q"], ["y"]),
    ]
    model = typed(small_models.model(nodes, {"x": (TensorProto.FLOAT, (2, 3))}, ["y"]), TensorProto.FLOAT8E4M3FN)
    with load(model, "sim:0") as session, pytest.raises(DTypeError, match="float8_e4m3fn, which umd does not have"):
        session.run(None, {"x": np.ones((2, 3), np.float32)})


def test_numbers_that_would_be_rounded_twice_are_refused() -> None:
    with (
        load(cast(TensorProto.FLOAT8E4M3FN, TensorProto.DOUBLE), "sim:0") as session,
        pytest.raises(DTypeError, match="float64 to float8_e4m3fn"),
    ):
        session.run(None, {"x": np.ones(3)})
