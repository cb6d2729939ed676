"""Einsum, Fourier transforms, determinants, norms, indexing and bits against NumPy; what each of them refuses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.core.op_arrays import PATHS, check_floats, some_values
from umd_core import dtypes
from umd_core.errors import (
    AttributeValueError,
    DTypeError,
    IndexRangeError,
    LimitError,
    ShapeError,
    UmdError,
    UnsupportedError,
)
from umd_core.ir import TensorDesc
from umd_core.translate import translate

Array = np.ndarray[Any, Any]
SEEDS = st.integers(0, 2**32)


# Einsum


@st.composite
def equations(draw: st.DrawFn) -> tuple[str, list[tuple[int, ...]]]:
    """An equation and the shapes of its operands: repeated labels, dots, sums, and an explicit result or none."""
    sizes = dict(zip("abcd", draw(st.lists(st.integers(1, 3), min_size=4, max_size=4)), strict=True))
    dots = draw(st.lists(st.integers(1, 3), max_size=2))
    terms, shapes = [], []
    for _ in range(draw(st.integers(1, 3))):
        labels = draw(st.lists(st.sampled_from("abcd"), max_size=3))
        own = [1 if draw(st.integers(0, 4)) == 0 else n for n in dots[draw(st.integers(0, len(dots))) :]]
        with_dots = bool(own) or draw(st.booleans())
        terms.append(("..." if with_dots else "") + "".join(labels))
        shapes.append((*(own if with_dots else ()), *(sizes[label] for label in labels)))
    seen = sorted(set("".join(terms)) - {"."})
    if not draw(st.booleans()):
        return ",".join(terms), shapes
    kept = draw(st.lists(st.sampled_from(seen), unique=True)) if seen else []
    dotted = "..." if any("..." in term for term in terms) else ""
    return f"{', '.join(terms)} -> {dotted}{''.join(kept)}", shapes


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=60)
@given(case=equations(), seed=SEEDS, dtype=st.sampled_from((np.float64, np.int32)))
@example(case=(",dc->cd", [(), (2, 2)]), seed=0, dtype=np.float64)  # one launch, whose result comes out turned
@example(case=("ab,bc,b", [(2, 1), (1, 2), (1,)]), seed=0, dtype=np.float64)
def test_einsum_is_numpys(path: str, case: tuple[str, list[tuple[int, ...]]], seed: int, dtype: Any) -> None:
    equation, shapes = case
    rng = np.random.default_rng(seed)
    inputs = [rng.integers(-4, 5, shape).astype(dtype) for shape in shapes]
    want = np.einsum(equation, *inputs)
    (got,) = PATHS[path]("Einsum", inputs, {"equation": equation})
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, want)


# Fourier


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=30)
@given(
    seed=SEEDS,
    extent=st.integers(1, 9),
    length=st.none() | st.integers(1, 11),
    parts=st.sampled_from((1, 2)),
    kind=st.sampled_from(("forward", "half", "inverse", "real")),
    axis=st.sampled_from((0, 1, -2)),
)
def test_dft_is_numpys(path: str, seed: int, extent: int, length: int | None, parts: int, kind: str, axis: int) -> None:
    shape = [2, 3, parts]
    shape[axis] = extent
    x = np.random.default_rng(seed).normal(0, 1, shape)
    if kind == "real" and length is None and extent == 1:
        length = 1
    numbers = x[..., 0] + 1j * x[..., 1] if parts == 2 else x[..., 0].astype(complex)
    place = {0: 0, 1: 1, -2: 1}[axis]
    inverse, onesided = kind in ("inverse", "real"), kind in ("half", "real")
    inputs = [x, None if length is None else np.array(length), np.array(axis)]
    (got,) = PATHS[path]("DFT", inputs, {"inverse": inverse, "onesided": onesided})
    if kind == "real":
        want = np.fft.irfft(numbers, length, place)[..., None]
    else:
        full = (np.fft.ifft if inverse else np.fft.fft)(numbers, length, place)
        full = full.take(range(full.shape[place] // 2 + 1), place) if onesided else full
        want = np.stack([full.real, full.imag], -1)
    np.testing.assert_allclose(got, want, atol=1e-12)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("onesided", [0, 1])
def test_stft_is_torchs(path: str, onesided: int) -> None:
    rng = np.random.default_rng(1)
    x, window = rng.normal(0, 1, (2, 40, 1)).astype(np.float32), np.hanning(8).astype(np.float32)
    (got,) = PATHS[path]("STFT", [x, np.array(3), window], {"onesided": onesided})
    want = torch.stft(
        torch.from_numpy(x[..., 0]).double(), 8, 3, window=torch.from_numpy(window).double(), center=False,
        onesided=bool(onesided), return_complex=True,
    )  # fmt: skip
    np.testing.assert_allclose(got, torch.view_as_real(want.transpose(1, 2)).numpy(), atol=1e-5)


# determinants, norms


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("rows", [0, 1, 2, 3, 6])
def test_det_is_numpys_and_exchanges_rows(path: str, rows: int) -> None:
    rng = np.random.default_rng(rows)
    x = rng.normal(0, 1, (5, rows, rows))
    if rows > 1:
        x[0, 0] = 0
        x[1, 0, 0] = 0
        x[2, :, 0] = 0
        x[3] = np.eye(rows)[::-1]
    (got,) = PATHS[path]("Det", [x])
    np.testing.assert_allclose(got, np.linalg.det(x), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("path", PATHS)
def test_norms_of_nothing_and_of_infinities(path: str) -> None:
    zero = np.zeros((2, 3), np.float32)
    np.testing.assert_array_equal(PATHS[path]("LpNormalization", [zero])[0], zero)
    x = np.array([[-np.inf, -np.inf], [np.inf, 1], [800, 801]], np.float32)
    (got,) = PATHS[path]("ReduceLogSumExp", [x, np.array([1])], {"keepdims": 0})
    np.testing.assert_allclose(got, [-np.inf, np.inf, 801 + math.log1p(math.exp(-1))], rtol=1e-6)
    (empty,) = PATHS[path]("ReduceLogSumExp", [np.zeros((0,), np.float32)], {"keepdims": 0})
    assert empty == -np.inf


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("p", [1, 2, 3])
def test_lp_pool_is_torchs(path: str, p: int) -> None:
    x = np.random.default_rng(p).uniform(0.1, 2, (2, 3, 7, 6)).astype(np.float32)
    (got,) = PATHS[path]("LpPool", [x], {"kernel_shape": [3, 2], "strides": [2, 2], "p": p})
    want = torch.nn.functional.lp_pool2d(torch.from_numpy(x).double(), float(p), (3, 2), (2, 2)).numpy()
    np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_lrn_is_torchs(path: str, size: int) -> None:
    x = np.random.default_rng(size).normal(0, 1, (2, 4, 3, 2)).astype(np.float32)
    (got,) = PATHS[path]("LRN", [x], {"size": size, "alpha": 0.5, "bias": 1.5})
    if size % 2:
        want = torch.nn.functional.local_response_norm(torch.from_numpy(x).double(), size, 0.5, 0.75, 1.5).numpy()
    else:  # where ONNX and torch put the odd channel on different sides
        around = [x[:, max(c - (size - 1) // 2, 0) : c + size // 2 + 1].astype(np.float64) ** 2 for c in range(4)]
        want = x / (1.5 + 0.5 / size * np.stack([a.sum(1) for a in around], 1)) ** 0.75
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


# activations, bits

ACTIVATIONS: dict[str, Any] = {
    "Elu": torch.nn.functional.elu,
    "Celu": torch.nn.functional.celu,
    "Selu": torch.nn.functional.selu,
    "LeakyRelu": torch.nn.functional.leaky_relu,
    "HardSwish": torch.nn.functional.hardswish,
    "Softplus": lambda x: torch.nn.functional.softplus(x, threshold=100),
    "Softsign": torch.nn.functional.softsign,
    "Mish": torch.nn.functional.mish,
    "Swish": torch.nn.functional.silu,
    "ThresholdedRelu": lambda x: torch.where(x > 1, x, 0.0),
    "Tan": torch.tan, "Asin": torch.asin, "Acos": torch.acos, "Atan": torch.atan, "Sinh": torch.sinh,
    "Cosh": torch.cosh, "Asinh": torch.asinh, "Acosh": torch.acosh, "Atanh": torch.atanh,
}  # fmt: skip
ATTRIBUTES = {"Selu": {"alpha": 1.6732632423543772848170429916717, "gamma": 1.0507009873554804934193349852946}}
"""torch's constants, where ONNX's defaults are rounded to float32."""
MANY = (dtypes.float16, dtypes.float32, dtypes.float64)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("op", ACTIVATIONS)
@settings(max_examples=10)
@given(seed=SEEDS, dtype=st.sampled_from(MANY))
def test_functions_of_a_float_are_torchs(op: str, path: str, seed: int, dtype: dtypes.DType) -> None:
    x = some_values(seed, (3, 4), dtype)
    if op in ("Mish", "Swish"):
        x[np.isneginf(x)] = 0  # torch gives 0 for both; x · sigmoid(x) has no value there
    want = ACTIVATIONS[op](torch.from_numpy(x.astype(np.float64))).numpy()
    with np.errstate(all="ignore"):
        (got,) = PATHS[path](op, [x], ATTRIBUTES.get(op))
    assert got.dtype == dtype.numpy
    check_floats(got, want, 64)


@pytest.mark.parametrize("path", PATHS)
@given(seed=SEEDS, dtype=st.sampled_from(dtypes.INTEGERS), left=st.booleans())
@settings(max_examples=30)
def test_shifts_are_those_of_unbounded_integers(path: str, seed: int, dtype: dtypes.DType, left: bool) -> None:
    x, bits = some_values(seed, (4, 5), dtype), 8 * dtype.size
    by = np.random.default_rng(seed).integers(0, bits + 2, (5,)).astype(dtype.numpy)
    (got,) = PATHS[path]("BitShift", [x, by], {"direction": "LEFT" if left else "RIGHT"})
    rows = zip(x.reshape(-1).tolist(), np.broadcast_to(by, x.shape).reshape(-1).tolist(), strict=True)
    want = [(a << b if left else a >> b) % (1 << bits) for a, b in rows]
    np.testing.assert_array_equal(got.reshape(-1).astype(object) % (1 << bits), np.array(want, object))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("pair", [("i4", "f4"), ("f2", "u2"), ("f8", "i8"), ("u1", "i1"), ("?", "u1")])
def test_bits_stay_what_they_are(path: str, pair: tuple[str, str]) -> None:
    x = (np.arange(24) % (2 if pair[0] == "?" else 24)).astype(pair[0]).reshape(4, 6)[::2, ::-1]
    to = dtypes.dtype(np.dtype(pair[1]))
    (got,) = PATHS[path]("BitCast", [x], {"to": to.code})
    np.testing.assert_array_equal(got.view(f"u{to.size}"), np.ascontiguousarray(x).view(f"u{to.size}"))


# indexing


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=30)
@given(seed=SEEDS, data=st.data())
def test_gather_nd_picks_by_tuples(path: str, seed: int, data: st.DataObject) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=4)))
    batch = data.draw(st.integers(0, len(shape) - 1))
    count = data.draw(st.integers(1, len(shape) - batch))
    between = tuple(data.draw(st.lists(st.integers(1, 3), max_size=2)))
    extents = np.array(shape[batch : batch + count])
    index = rng.integers(-extents, extents, (*shape[:batch], *between, count))
    x = rng.integers(-99, 99, shape)
    (got,) = PATHS[path]("GatherND", [x, index], {"batch_dims": batch})
    want = np.empty((*shape[:batch], *between, *shape[batch + count :]), x.dtype)
    for at in np.ndindex(*shape[:batch], *between):
        want[at] = x[at[:batch]][tuple(index[at])]
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("index", [5, -6])
def test_an_index_out_of_range_is_left_to_the_device(index: int) -> None:
    x = np.zeros((5, 2), np.float32)
    for op, inputs in (
        ("GatherND", [x, np.array([[index]])]),
        ("GatherND", [x, np.array([[index, 0]])]),
        ("TensorScatter", [x[None], x[None, :1], np.array([index])]),
        ("MaxUnpool", [x[None, None, :1, :1], np.array([[[[index - 3]]]])]),
    ):
        with pytest.raises(IndexRangeError):
            PATHS["recipe"](op, inputs, {"kernel_shape": [1, 2]} if op == "MaxUnpool" else {})
    with pytest.raises(IndexRangeError):
        PATHS["recipe"]("ReverseSequence", [x, np.array([2, 7])], {"batch_axis": 1, "time_axis": 0})


@pytest.mark.parametrize("path", PATHS)
def test_one_hot_beyond_the_depth_hits_nothing(path: str) -> None:
    index, values = np.array([0, -1, 3, -4, 7], np.int32), np.array([5, 9], np.int8)
    (got,) = PATHS[path]("OneHot", [index, np.array(3), values])
    want = np.full((5, 3), 5, np.int8)
    want[0, 0] = want[1, 2] = 9
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("block", [(2, 2), (3, 1)])
def test_col2im_is_torchs_fold(path: str, block: tuple[int, int]) -> None:
    rng, image = np.random.default_rng(3), (5, 4)
    counts = [(n + 2 - (k - 1) * d - 1) // s + 1 for n, k, d, s in zip(image, block, (1, 2), (2, 1), strict=True)]
    x = rng.normal(0, 1, (2, 3 * math.prod(block), math.prod(counts))).astype(np.float32)
    attributes = {"pads": [1, 1, 1, 1], "strides": [2, 1], "dilations": [1, 2]}
    (got,) = PATHS[path]("Col2Im", [x, np.array(image), np.array(block)], attributes)
    want = torch.nn.functional.fold(torch.from_numpy(x), image, block, dilation=(1, 2), padding=1, stride=(2, 1))
    np.testing.assert_allclose(got, want.numpy(), rtol=1e-5, atol=1e-6)


# refusals


def f32(*shape: int) -> TensorDesc:
    return TensorDesc("f32", shape)


def ints(*values: int) -> Array:
    return np.array(values)


I64 = TensorDesc("i64", (2,))
REFUSED: list[tuple[str, list[Any], dict[str, Any], type[UmdError], str]] = [
    ("PRelu", [f32(2, 3), f32(2)], {}, ShapeError, "'slope'"),
    ("BitShift", [I64, I64], {}, AttributeValueError, "direction"),
    ("BitShift", [I64, I64], {"direction": "UP"}, AttributeValueError, "direction"),
    ("BitShift", [f32(2), f32(2)], {"direction": "LEFT"}, DTypeError, "'X'"),
    ("BitCast", [f32(2)], {"to": "f64"}, AttributeValueError, "64 bits"),
    ("SwiGLU", [f32(2, 3), f32(3)], {}, ShapeError, "'B'"),
    ("GatherND", [f32(2, 3), TensorDesc("i64", (2, 3))], {}, ShapeError, "tuples of 3"),
    ("GatherND", [f32(2, 3), TensorDesc("i64", (3, 1))], {"batch_dims": 1}, ShapeError, "'indices'"),
    ("GatherND", [f32(2, 3), TensorDesc("i64", (2, 1))], {"batch_dims": 2}, AttributeValueError, "batch_dims"),
    ("GatherND", [f32(0, 3), TensorDesc("i64", (2, 1))], {}, ShapeError, "'indices'"),
    ("SpaceToDepth", [f32(1, 1, 3, 4)], {"blocksize": 2}, ShapeError, "3 by 4"),
    ("SpaceToDepth", [f32(1, 3, 4)], {"blocksize": 2}, ShapeError, "'input'"),
    ("DepthToSpace", [f32(1, 6, 1, 1)], {"blocksize": 2}, ShapeError, "6 channels"),
    ("DepthToSpace", [f32(1, 4, 1, 1)], {"blocksize": 0}, AttributeValueError, "blocksize"),
    ("DepthToSpace", [f32(1, 4, 1, 1)], {"blocksize": 2, "mode": "RCD"}, AttributeValueError, "mode"),
    ("OneHot", [I64, ints(0), f32(2)], {}, ShapeError, "'depth'"),
    ("OneHot", [I64, ints(3), f32(3)], {}, ShapeError, "'values'"),
    ("OneHot", [I64, ints(3), f32(2)], {"axis": 2}, AttributeValueError, "axis"),
    ("Hardmax", [f32()], {}, ShapeError, "'input'"),
    ("EyeLike", [f32(2)], {}, ShapeError, "'input'"),
    ("ReverseSequence", [f32(2, 3), I64], {}, ShapeError, "'sequence_lens'"),
    ("ReverseSequence", [f32(2, 3), I64], {"batch_axis": 0}, AttributeValueError, "time_axis"),
    ("CenterCropPad", [f32(2, 3), ints(1)], {}, ShapeError, "'shape'"),
    ("CenterCropPad", [f32(2, 3), ints(1)], {"axes": [2]}, AttributeValueError, "axes"),
    ("TensorScatter", [f32(2, 3, 4), f32(2, 4, 4)], {}, ShapeError, "'update'"),
    ("TensorScatter", [f32(2, 3, 4), f32(2, 1, 4)], {"axis": 0}, AttributeValueError, "batch axis"),
    ("TensorScatter", [f32(2, 3, 4), f32(2, 1, 4), TensorDesc("i64", (3,))], {}, ShapeError, "'write_indices'"),
    ("LpNormalization", [f32(2)], {"p": 3}, AttributeValueError, "'p'"),
    ("LpPool", [f32(1, 1, 4)], {"kernel_shape": [2], "p": 0}, AttributeValueError, "'p'"),
    ("LRN", [f32(3)], {"size": 1}, ShapeError, "'X'"),
    ("LRN", [f32(1, 3)], {"size": 0}, AttributeValueError, "size"),
    ("MeanVarianceNormalization", [f32(2, 3)], {}, AttributeValueError, "axes"),
    ("ReduceL2", [TensorDesc("i8", (2,))], {}, DTypeError, "'data'"),
    ("HannWindow", [ints(1, 2)], {}, ShapeError, "'size'"),
    ("HannWindow", [np.array(-1)], {}, ShapeError, "'size'"),
    ("MelWeightMatrix", [*map(np.array, (8, 16, 8000)), *map(np.float32, (0, 5000))], {}, ShapeError, "4000"),
    ("DFT", [f32(4, 3)], {}, ShapeError, "'input'"),
    ("DFT", [f32(4, 2), None, np.array(-1)], {}, ShapeError, "'axis'"),
    ("DFT", [f32(4, 2), np.array(0)], {}, ShapeError, "'dft_length'"),
    ("DFT", [f32(4, 2), np.array(1 << 20)], {}, LimitError, "Fourier"),
    ("STFT", [f32(1, 8, 1), np.array(0)], {}, ShapeError, "'frame_step'"),
    ("STFT", [f32(1, 8, 1), np.array(1), f32(4), np.array(3)], {}, ShapeError, "'window'"),
    ("STFT", [f32(1, 8, 1), np.array(1), None, np.array(9)], {}, ShapeError, "'signal'"),
    ("Einsum", [f32(2), f32(3)], {"equation": "i,i"}, ShapeError, "axis 'i'"),
    ("Einsum", [f32(2)], {"equation": "i,i"}, AttributeValueError, "2 terms"),
    ("Einsum", [f32(2)], {"equation": "ij"}, ShapeError, "'ij'"),
    ("Einsum", [f32(2)], {"equation": "i->j"}, AttributeValueError, "equation"),
    ("Einsum", [f32(2)], {"equation": "1->1"}, AttributeValueError, "no term"),
    ("Col2Im", [f32(1, 4, 3), ints(4, 4), ints(2, 2)], {}, ShapeError, "'input'"),
    ("Col2Im", [f32(1, 4, 3), ints(4), ints(2, 2)], {}, ShapeError, "'image_shape'"),
    ("Col2Im", [f32(1, 4, 3), ints(99, 99), ints(99, 99)], {}, UnsupportedError, "blocks"),
    ("MaxUnpool", [f32(1, 1, 2), TensorDesc("i64", (1, 1, 3))], {"kernel_shape": [2]}, ShapeError, "'I'"),
    (
        "MaxUnpool",
        [f32(1, 1, 2), TensorDesc("i64", (1, 1, 2)), ints(1, 1, 2)],
        {"kernel_shape": [2]},
        ShapeError,
        "'output_shape'",
    ),
    ("Det", [f32(2, 3)], {}, ShapeError, "'X'"),
    ("Det", [f32(65, 65)], {}, UnsupportedError, "65 rows"),
]


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "error", "word"), REFUSED, ids=[f"{n}-{case[0]}" for n, case in enumerate(REFUSED)]
)
def test_refused(op: str, inputs: list[Any], attributes: dict[str, Any], error: type[UmdError], word: str) -> None:
    with pytest.raises(error, match=word):
        translate(op, inputs, **attributes)
