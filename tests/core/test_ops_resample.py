"""ConvTranspose, Resize, GridSample and AffineGrid against torch and onnxruntime; DeformConv and RoiAlign by loops."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import helper

from tests.core.nn_cases import PATHS, close, floats, tensors, wide
from tests.core.recipe_interpreter import launches
from umd_core import dtypes
from umd_core.errors import AttributeValueError, ShapeError, UmdError, UnsupportedError
from umd_core.ir import TensorDesc
from umd_core.translate import translate

Array = np.ndarray[Any, Any]
_TRANSPOSED = {
    1: torch.nn.functional.conv_transpose1d,
    2: torch.nn.functional.conv_transpose2d,
    3: torch.nn.functional.conv_transpose3d,
}


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=25)
@given(data=st.data(), rank=st.integers(1, 3), group=st.integers(1, 2), dtype=floats())
def test_conv_transpose_is_torchs(path: str, data: st.DataObject, rank: int, group: int, dtype: dtypes.DType) -> None:
    def numbers(low: int, high: int) -> list[int]:
        return data.draw(st.lists(st.integers(low, high), min_size=rank, max_size=rank))

    spatial, kernel, strides, dilations, pads = (
        numbers(1, 3),
        numbers(1, 3),
        numbers(1, 3),
        numbers(1, 2),
        numbers(0, 1),
    )
    more = [data.draw(st.integers(0, max(s, d) - 1)) for s, d in zip(strides, dilations, strict=True)]
    rows = zip(spatial, strides, kernel, dilations, pads, more, strict=True)
    assume(min((n - 1) * s + (k - 1) * d + 1 + m - 2 * p for n, s, k, d, p, m in rows) > 0)
    channels, outputs = data.draw(st.integers(1, 2)) * group, data.draw(st.integers(1, 2))
    x = data.draw(tensors([data.draw(st.integers(1, 2)), channels, *spatial], dtype))
    w = data.draw(tensors([channels, outputs, *kernel], dtype))
    bias = data.draw(st.none() | tensors([outputs * group], dtype))
    attributes = {"group": group, "strides": strides, "dilations": dilations, "pads": pads * 2, "output_padding": more}
    (got,) = PATHS[path]("ConvTranspose", [x, w] if bias is None else [x, w, bias], attributes)
    own = None if bias is None else wide(bias)
    arguments = (strides, pads, more, group, dilations)
    want = _TRANSPOSED[rank](wide(x), wide(w), own, *arguments)
    scale = _TRANSPOSED[rank](wide(abs(x)), wide(abs(w)), None if own is None else own.abs(), *arguments)
    close(got, want, dtype, scale, 64)


@pytest.mark.parametrize("auto", ["SAME_UPPER", "SAME_LOWER", "NOTSET"])
def test_conv_transpose_to_a_shape_cuts_what_is_too_much(auto: str) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.normal(0, 1, (1, 1, 3)).astype("f4"), rng.normal(0, 1, (1, 1, 4)).astype("f4")
    attributes: dict[str, Any] = {"strides": [2], "auto_pad": auto}
    if auto == "NOTSET":
        attributes["output_shape"] = [7]
    (got,) = PATHS["sim"]("ConvTranspose", [x, w], attributes)
    full = torch.nn.functional.conv_transpose1d(torch.from_numpy(x), torch.from_numpy(w), stride=2).numpy()
    first, size = {"SAME_UPPER": (1, 6), "SAME_LOWER": (1, 6), "NOTSET": (1, 7)}[auto]
    np.testing.assert_allclose(got, full[..., first : first + size], rtol=1e-5, atol=1e-6)


# Resize

MODES = st.sampled_from(("nearest", "linear", "cubic"))
WAYS = st.sampled_from(("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"))


def by_onnxruntime(op: str, inputs: list[Any], attributes: dict[str, Any], opset: int) -> Array:
    import onnxruntime

    names = [f"x{i}" if value is not None else "" for i, value in enumerate(inputs)]
    given_values = {n: np.asarray(v) for n, v in zip(names, inputs, strict=True) if n}
    described = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
        for n, v in given_values.items()
    ]
    node = helper.make_node(op, names, ["y"], **attributes)
    graph = helper.make_graph([node], op, described, [helper.make_empty_tensor_value_info("y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, given_values)[0])


@pytest.mark.parametrize("path", ["recipe", "sim"])
@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32),
    mode=MODES,
    way=WAYS,
    size=st.tuples(st.integers(2, 5), st.integers(2, 5)),
    scale=st.tuples(*[st.sampled_from((0.5, 1.0, 1.5, 2.0, 3.0))] * 2),
    rounding=st.sampled_from(("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")),
)
def test_resize_is_onnxruntimes(
    path: str, seed: int, mode: str, way: str, size: tuple[int, int], scale: tuple[float, float], rounding: str
) -> None:
    # Where a scale makes a fraction of an element, onnxruntime counts the whole ones, ONNX the fraction, too.
    assume(
        way not in ("align_corners", "pytorch_half_pixel")
        or all((s * n).is_integer() for s, n in zip(scale, size, strict=True))
    )
    x = np.random.default_rng(seed).normal(0, 1, (1, 2, *size)).astype(np.float32)
    attributes: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": way}
    if mode == "nearest":
        attributes["nearest_mode"] = rounding
    inputs = [x, None, np.array([1, 1, *scale], np.float32)]
    (got,) = PATHS[path]("Resize", inputs, attributes)
    np.testing.assert_allclose(got, by_onnxruntime("Resize", inputs, attributes, 19), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("shape", [(7, 5), (3, 9), (13, 2)])
def test_resize_with_antialias_is_torchs(mode: str, shape: tuple[int, int]) -> None:
    x = np.random.default_rng(1).normal(0, 1, (2, 3, 11, 8)).astype(np.float32)
    attributes = {"mode": mode.removeprefix("bi"), "antialias": 1, "cubic_coeff_a": -0.5}
    attributes |= {"axes": [2, 3], "exclude_outside": 1}
    (got,) = PATHS["sim"]("Resize", [x, None, None, np.array(shape)], attributes)
    want = torch.nn.functional.interpolate(torch.from_numpy(x).double(), shape, mode=mode, antialias=True).numpy()
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_doubling_is_one_copy_and_halving_moves_nothing() -> None:
    x, way = (
        np.zeros((1, 2, 4, 6), np.float32),
        {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
    )
    assert launches("Resize", [x, None, np.array([1, 1, 1, 2], np.float32)], way) == ["elementwise_copy_kernel"]
    assert launches("Resize", [x, None, np.array([1, 1, 0.5, 0.5], np.float32)], way) == []


def test_integers_are_rounded_and_saturate() -> None:
    x = np.array([[0, 255, 0, 255]], np.uint8)
    (got,) = PATHS["sim"]("Resize", [x, None, np.array([1, 2], np.float32)], {"mode": "cubic"})
    (want,) = PATHS["sim"]("Resize", [x.astype(np.float64), None, np.array([1, 2], np.float32)], {"mode": "cubic"})
    np.testing.assert_array_equal(got, np.clip(np.rint(want), 0, 255).astype(np.uint8))
    assert want.min() < 0
    assert want.max() > 255


# GridSample, AffineGrid


@pytest.mark.parametrize("path", ["recipe", "sim"])
@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32),
    rank=st.integers(2, 3),
    mode=st.sampled_from(("nearest", "linear", "cubic")),
    padding=st.sampled_from(("zeros", "border", "reflection")),
    align=st.booleans(),
)
def test_grid_sample_is_torchs(path: str, seed: int, rank: int, mode: str, padding: str, align: bool) -> None:
    assume(mode != "cubic" or (rank == 2 and padding == "zeros"))  # torch pads cubic's taps alone, ONNX the place too
    rng = np.random.default_rng(seed)
    x = rng.normal(0, 1, (2, 2, *(3, 4, 2)[:rank])).astype(np.float32)
    grid = rng.uniform(-1.6, 1.6, (2, *(2, 3, 2)[:rank], rank)).astype(np.float32)
    attributes = {"mode": mode, "padding_mode": padding, "align_corners": align}
    (got,) = PATHS[path]("GridSample", [x, grid], attributes)
    theirs = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    want = torch.nn.functional.grid_sample(torch.from_numpy(x), torch.from_numpy(grid), theirs, padding, align).numpy()
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("path", ["recipe", "sim"])
@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("size", [(2, 1, 3, 4), (1, 2, 2, 3, 4), (1, 1, 2, 5)])
def test_affine_grid_is_torchs(path: str, align: bool, size: tuple[int, ...]) -> None:
    rank = len(size) - 2
    theta = np.random.default_rng(2).normal(0, 1, (size[0], rank, rank + 1)).astype(np.float32)
    (got,) = PATHS[path]("AffineGrid", [theta, np.array(size)], {"align_corners": align})
    want = torch.nn.functional.affine_grid(torch.from_numpy(theta), list(size), align).numpy()
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


# DeformConv, RoiAlign


def read_between(plane: Array, y: float, x: float) -> float:
    """Returns a plane (H, W) between its elements, which end in zeros."""
    total = 0.0
    for row, column in ((math.floor(y) + i, math.floor(x) + j) for i in (0, 1) for j in (0, 1)):
        if 0 <= row < plane.shape[0] and 0 <= column < plane.shape[1]:
            total += plane[row, column] * (1 - abs(y - row)) * (1 - abs(x - column))
    return total


@pytest.mark.parametrize("path", ["recipe", "sim"])
@pytest.mark.parametrize(("group", "offset_group"), [(1, 1), (2, 1), (1, 2), (2, 4)])
@pytest.mark.parametrize("masked", [False, True])
def test_deform_conv_reads_where_offsets_move_its_windows(
    path: str, group: int, offset_group: int, masked: bool
) -> None:
    rng = np.random.default_rng(group)
    x, w = rng.normal(0, 1, (2, 4, 5, 6)).astype("f4"), rng.normal(0, 1, (2, 4 // group, 2, 3)).astype("f4")
    attributes = {"pads": [1, 0, 1, 2], "strides": [2, 1], "dilations": [1, 2], "group": group}
    attributes["offset_group"] = offset_group
    rows, columns = 3, 4
    offset = rng.normal(0, 1.5, (2, offset_group * 12, rows, columns)).astype("f4")
    mask = rng.uniform(0, 1, (2, offset_group * 6, rows, columns)).astype("f4") if masked else None
    bias = rng.normal(0, 1, 2).astype("f4")
    (got,) = PATHS[path]("DeformConv", [x, w, offset, bias, mask], attributes)
    want = np.zeros((2, 2, rows, columns)) + bias[:, None, None]
    moves = offset.reshape(2, offset_group, 2, 3, 2, rows, columns)
    weights = np.ones_like(moves[:, :, :, :, 0]) if mask is None else mask.reshape(2, offset_group, 2, 3, rows, columns)
    for n, m, c, i, j, k, t in itertools.product(*map(range, (2, 2, 4 // group, rows, columns, 2, 3))):
        channel = c + (m * (4 // group) if group == 2 else 0)
        own = channel // (4 // offset_group)
        dy, dx = moves[n, own, k, t, :, i, j]
        value = read_between(x[n, channel], 2 * i - 1 + k + dy, j + 2 * t + dx)
        want[n, m, i, j] += value * w[m, c, k, t] * weights[n, own, k, t, i, j]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("path", ["recipe", "sim"])
@pytest.mark.parametrize("half", [True, False])
def test_roi_align_is_the_mean_of_points_in_each_cell(path: str, half: bool) -> None:
    rng, cells, ratio, scale = np.random.default_rng(4), (3, 2), 2, 0.5
    x = rng.normal(0, 1, (3, 2, 6, 5)).astype(np.float32)
    rois = np.array([[0, 0, 8, 9], [3, 2, 12, 6], [-6, -6, 20, 20], [4, 4, 4.5, 4.5]], np.float32)
    batches = np.array([2, 0, 1, 0])
    attributes: dict[str, Any] = {
        "output_height": cells[0],
        "output_width": cells[1],
        "sampling_ratio": ratio,
        "spatial_scale": scale,
    }
    attributes["coordinate_transformation_mode"] = "half_pixel" if half else "output_half_pixel"
    (got,) = PATHS[path]("RoiAlign", [x, rois, batches], attributes)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), mode="edge")
    for r, (box, image) in enumerate(zip(rois, batches, strict=True)):
        x0, y0, x1, y1 = box * scale - (0.5 if half else 0)
        height, width = y1 - y0, x1 - x0
        if not half:
            height, width = max(height, 1.0), max(width, 1.0)
        for i, j in itertools.product(*map(range, cells)):
            points = []
            for a, b in itertools.product(range(ratio), repeat=2):
                y = y0 + height * (i + (a + 0.5) / ratio) / cells[0]
                at = x0 + width * (j + (b + 0.5) / ratio) / cells[1]
                inside = -1 <= y <= 6 and -1 <= at <= 5
                y, at = min(max(y, 0), 5), min(max(at, 0), 4)
                points.append([read_between(padded[image, c], y + 1, at + 1) * inside for c in range(2)])
            np.testing.assert_allclose(got[r, :, i, j], np.mean(points, axis=0), rtol=1e-4, atol=1e-5)


def f32(*shape: int) -> TensorDesc:
    return TensorDesc("f32", shape)


SCALES = np.array([2, 2], np.float32)
REFUSED: list[tuple[str, list[Any], dict[str, Any], type[UmdError], str]] = [
    ("ConvTranspose", [f32(1, 2, 3), f32(3, 1, 2)], {}, ShapeError, "2 channels"),
    ("ConvTranspose", [f32(1, 2, 3), f32(2, 1, 2)], {"group": 3}, ShapeError, "group"),
    ("ConvTranspose", [f32(1, 2, 3), f32(2, 1, 2), f32(2)], {}, ShapeError, "'B'"),
    ("ConvTranspose", [f32(1, 2), f32(2, 1)], {}, ShapeError, "ranks"),
    ("ConvTranspose", [f32(1, 2, 1, 1, 1, 1), f32(2, 1, 1, 1, 1, 1)], {}, UnsupportedError, "4 axes"),
    ("ConvTranspose", [f32(1, 2, 3), f32(2, 1, 2)], {"pads": [3, 3]}, AttributeValueError, "pads"),
    ("ConvTranspose", [f32(1, 2, 3), f32(2, 1, 2)], {"kernel_shape": [3]}, AttributeValueError, "kernel_shape"),
    ("ConvTranspose", [f32(1, 2, 3), f32(2, 1, 2)], {"output_padding": [-1]}, AttributeValueError, "output_padding"),
    ("Resize", [f32(2, 3)], {}, ShapeError, "scales or sizes"),
    ("Resize", [f32(2, 3), None, SCALES, np.array([4, 6])], {}, ShapeError, "not both"),
    ("Resize", [f32(2, 3), None, SCALES[:1]], {}, ShapeError, "'scales'"),
    ("Resize", [f32(2, 3), None, -SCALES], {}, ShapeError, "'scales'"),
    ("Resize", [f32(2, 3), None, None, np.array([4, -6])], {}, ShapeError, "'sizes'"),
    ("Resize", [f32(2, 0), None, None, np.array([4, 6])], {}, ShapeError, "empty"),
    ("Resize", [f32(2, 3), None, SCALES], {"mode": "area"}, AttributeValueError, "mode"),
    ("Resize", [f32(2, 3), None, SCALES], {"antialias": 1}, AttributeValueError, "antialias"),
    ("Resize", [f32(2, 3), None, SCALES], {"axes": [0, 0]}, AttributeValueError, "axes"),
    ("Resize", [TensorDesc("bool", (2, 3)), None, SCALES], {"mode": "linear"}, AttributeValueError, "mode"),
    (
        "Resize",
        [f32(2, 3), None, SCALES],
        {"coordinate_transformation_mode": "tf_crop_and_resize"},
        ShapeError,
        "'roi'",
    ),
    ("GridSample", [f32(1, 1, 3, 3), f32(1, 2, 2, 3)], {}, ShapeError, "'grid'"),
    ("GridSample", [f32(1, 1, 3, 3), f32(2, 2, 2, 2)], {}, ShapeError, "'grid'"),
    ("GridSample", [f32(1, 1, 0, 3), f32(1, 2, 2, 2)], {}, ShapeError, "'X'"),
    ("GridSample", [TensorDesc("i32", (1, 1, 3, 3)), f32(1, 2, 2, 2)], {}, UnsupportedError, "linear"),
    ("GridSample", [f32(1, 1, 3, 3), f32(1, 2, 2, 2)], {"padding_mode": "wrap"}, AttributeValueError, "padding_mode"),
    ("DeformConv", [f32(1, 2, 3), f32(1, 2, 2), f32(1, 4, 2)], {}, UnsupportedError, "N, C, H, W"),
    ("DeformConv", [f32(1, 2, 3, 3), f32(1, 2, 2, 2), f32(1, 7, 2, 2)], {}, ShapeError, "'offset'"),
    (
        "DeformConv",
        [f32(1, 2, 3, 3), f32(1, 2, 2, 2), f32(1, 8, 2, 2)],
        {"offset_group": 3},
        AttributeValueError,
        "offset_group",
    ),
    ("RoiAlign", [f32(1, 2, 3, 3), f32(2, 4), TensorDesc("i64", (2,))], {}, UnsupportedError, "sampling_ratio"),
    ("RoiAlign", [f32(1, 2, 3, 3), f32(2, 5), TensorDesc("i64", (2,))], {}, ShapeError, "'rois'"),
    ("RoiAlign", [f32(1, 2, 3, 3), f32(2, 4), TensorDesc("i64", (3,))], {}, ShapeError, "'batch_indices'"),
    ("RoiAlign", [f32(0, 2, 3, 3), f32(2, 4), TensorDesc("i64", (2,))], {}, ShapeError, "'batch_indices'"),
    ("RoiAlign", [f32(2, 3, 3), f32(2, 4), TensorDesc("i64", (2,))], {}, ShapeError, "'X'"),
    (
        "RoiAlign",
        [f32(1, 2, 3, 3), f32(2, 4), TensorDesc("i64", (2,))],
        {"output_width": 0},
        AttributeValueError,
        "output_width",
    ),
    ("AffineGrid", [f32(1, 2, 3), np.array([1, 1, 4])], {}, ShapeError, "'size'"),
    ("AffineGrid", [f32(2, 2, 3), np.array([1, 1, 4, 4])], {}, ShapeError, "'theta'"),
]


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "error", "word"), REFUSED, ids=[f"{n}-{case[0]}" for n, case in enumerate(REFUSED)]
)
def test_refused(op: str, inputs: list[Any], attributes: dict[str, Any], error: type[UmdError], word: str) -> None:
    with pytest.raises(error, match=word):
        translate(op, inputs, **attributes)
