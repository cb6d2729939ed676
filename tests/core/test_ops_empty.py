"""Tensors without elements, inside and out: every op of ONNX that meets one gives the shape and the neutral value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.core.op_arrays import PATHS

Array = np.ndarray[Any, Any]


def f(*shape: int) -> Array:
    return np.ones(shape, np.float32)


def u(*shape: int) -> Array:
    return np.ones(shape, np.uint8)


def n(*values: int) -> Array:
    return np.array(values, np.int64)


EMPTY: list[tuple[str, list[Array | None], dict[str, Any], list[Array]]] = [
    ("ConvTranspose", [f(0, 2, 3), f(2, 1, 2)], {}, [f(0, 1, 4)]),
    ("ConvTranspose", [f(1, 0, 3), f(0, 1, 2)], {}, [np.zeros((1, 1, 4), np.float32)]),
    ("ConvTranspose", [f(1, 2, 3), f(2, 0, 2)], {}, [f(1, 0, 4)]),
    ("Resize", [f(2, 3), None, None, n(0, 3)], {}, [f(0, 3)]),
    ("Resize", [f(0, 3), None, np.array([2, 2], np.float32)], {"mode": "linear"}, [f(0, 6)]),
    ("LSTM", [f(3, 0, 2), f(1, 8, 2), f(1, 8, 2)], {}, [f(3, 1, 0, 2), f(1, 0, 2), f(1, 0, 2)]),
    ("LSTM", [f(0, 1, 2), f(1, 8, 2), f(1, 8, 2)], {}, [f(0, 1, 1, 2), *[np.zeros((1, 1, 2), np.float32)] * 2]),
    ("Attention", [f(1, 2, 3, 4), f(1, 2, 0, 4), f(1, 2, 0, 4)], {}, [np.zeros((1, 2, 3, 4), np.float32)]),
    ("Attention", [f(1, 2, 0, 4), f(1, 2, 2, 4), f(1, 2, 2, 4)], {"is_causal": 1}, [f(1, 2, 0, 4)]),
    ("GridSample", [f(1, 2, 3, 3), f(1, 0, 2, 2)], {}, [f(1, 2, 0, 2)]),
    ("GridSample", [f(1, 0, 3, 3), f(1, 2, 2, 2)], {}, [f(1, 0, 2, 2)]),
    ("DeformConv", [f(1, 0, 3, 3), f(1, 0, 2, 2), f(1, 8, 2, 2)], {}, [np.zeros((1, 1, 2, 2), np.float32)]),
    ("RoiAlign", [f(1, 2, 3, 3), f(0, 4), n()], {"sampling_ratio": 1}, [f(0, 2, 1, 1)]),
    ("QuantizeLinear", [f(0, 3), f(3), u(3)], {}, [u(0, 3)]),
    ("QuantizeLinear", [f(2, 0), f(2, 0)], {"block_size": 2}, [u(2, 0)]),
    ("DequantizeLinear", [u(2, 0), f(0), u(0)], {}, [f(2, 0)]),
    ("DynamicQuantizeLinear", [f(0)], {}, [u(0), np.array(1, np.float32), np.array(0, np.uint8)]),
    ("MatMulInteger", [u(2, 0), u(0, 3)], {}, [np.zeros((2, 3), np.int32)]),
    ("ConvInteger", [u(1, 0, 3), u(2, 0, 2)], {}, [np.zeros((1, 2, 2), np.int32)]),
    ("Einsum", [f(2, 0), f(0, 2)], {"equation": "ij,jk"}, [np.zeros((2, 2), np.float32)]),
    ("Einsum", [f(0, 3), f(3, 2)], {"equation": "ij,jk"}, [f(0, 2)]),
    ("DFT", [f(0, 4, 1)], {}, [f(0, 4, 2)]),
    ("STFT", [f(0, 8, 1), np.array(2), f(4)], {}, [f(0, 3, 3, 2)]),
    ("Det", [f(2, 0, 0)], {}, [f(2)]),
    ("Det", [f(0, 2, 2)], {}, [f(0)]),
    ("OneHot", [n(), np.array(3), f(2)], {}, [f(0, 3)]),
    ("GatherND", [f(2, 0), np.zeros((1, 1), np.int64)], {}, [f(1, 0)]),
    ("Hardmax", [f(3, 0)], {}, [f(3, 0)]),
    ("EyeLike", [f(0, 3)], {}, [f(0, 3)]),
    ("LRN", [f(1, 2, 0)], {"size": 2}, [f(1, 2, 0)]),
    ("LpPool", [f(0, 1, 4)], {"kernel_shape": [2]}, [f(0, 1, 3)]),
    ("LpNormalization", [f(3, 0)], {}, [f(3, 0)]),
    ("RMSNormalization", [f(0, 3), f(3)], {}, [f(0, 3)]),
    ("ReverseSequence", [f(3, 0), n()], {}, [f(3, 0)]),
    ("CenterCropPad", [f(0, 3), n(2, 2)], {}, [np.zeros((2, 2), np.float32)]),
    ("TensorScatter", [f(2, 3, 4), f(2, 0, 4), n(0, 1)], {}, [f(2, 3, 4)]),
    ("Col2Im", [f(0, 4, 4), n(3, 3), n(2, 2)], {}, [f(0, 1, 3, 3)]),
    ("ReduceL2", [f(0, 3)], {}, [np.zeros((1, 1), np.float32)]),
    ("ReduceLogSum", [f(3, 0), n(1)], {}, [np.full((3, 1), -np.inf, np.float32)]),
    ("HannWindow", [np.array(0)], {}, [f(0)]),
    ("AffineGrid", [f(1, 2, 3), n(1, 1, 0, 2)], {}, [f(1, 0, 2, 2)]),
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "wanted"), EMPTY, ids=[f"{i}-{case[0]}" for i, case in enumerate(EMPTY)]
)
def test_nothing(
    op: str, path: str, inputs: list[Array | None], attributes: dict[str, Any], wanted: list[Array]
) -> None:
    for got, want in zip(PATHS[path](op, inputs, attributes, len(wanted)), wanted, strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)
