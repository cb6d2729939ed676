"""Tensors read into arrays of their owner's."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import umd_core as umd
from umd_core.device import Device
from umd_core.device.tensor import writable
from umd_core.errors import DTypeError, ShapeError


@pytest.fixture
def device() -> Any:
    opened = umd.open_device("sim:0")
    yield opened
    opened.close()


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.bool_, np.int64])
@pytest.mark.parametrize("shape", [(), (0, 3), (3, 4)])
def test_an_array_is_filled(device: Device, dtype: Any, shape: tuple[int, ...]) -> None:
    x = (np.arange(12)[: int(np.prod(shape))].reshape(shape) + 1).astype(dtype)
    held = device.tensor(x)
    out = np.zeros_like(x)
    assert held.numpy(out) is out
    assert np.array_equal(out, x)
    apart = np.zeros((*shape[:-1], 2 * shape[-1]), dtype)[..., ::2] if shape else np.zeros((), dtype)
    assert np.array_equal(held.numpy(out=apart), x)


def test_bytes_from_the_middle(device: Any) -> None:
    held, out = device.tensor(np.arange(10, dtype=np.uint8)), bytearray(4)
    device.read_into(held.storage.buffer, 3, out)
    assert out == bytes([3, 4, 5, 6])


def test_arrays_that_do_not_fit(device: Device) -> None:
    held = device.tensor(np.zeros((2, 3), np.float32))
    with pytest.raises(ShapeError, match=r"has shape \[3, 2\], not \[2, 3\]"):
        held.numpy(np.zeros((3, 2), np.float32))
    with pytest.raises(DTypeError, match="is float64"):
        held.numpy(np.zeros((2, 3)))


def test_what_cannot_be_filled() -> None:
    frozen = np.zeros(3)
    frozen.flags.writeable = False
    for out, reason in ((frozen, "is read-only"), (b"abc", "is read-only"), (np.zeros(8)[::2], "is not contiguous")):
        with pytest.raises(ShapeError, match=reason):
            writable(out)
