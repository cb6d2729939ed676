"""Pooling against loops over windows, and against torch."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.sim import launches as sim
from umd_core import dtypes
from umd_core.dtypes import DType
from umd_core.kernels import BY_NAME

Array = NDArray[Any]
NAMES = ("max_pool_kernel", "max_pool_index_kernel", "average_pool_kernel", "average_pool_grad_kernel")
TYPES = BY_NAME["max_pool_kernel"].types[0][1]
HUGE = 2**50
Axis = tuple[int, int, int, int, int, int]


def taps(axis: Axis, output: int, low: int, high: int) -> list[int]:
    """Returns the input positions of a window along one axis that lie in [low, high)."""
    _, kernel, _, stride, dilation, pad = axis
    positions = (output * stride - pad + k * dilation for k in range(kernel))
    return [p for p in positions if low <= p < high]


def windows(axes: list[Axis], ends: list[int] | None) -> Any:
    """Yields (output index, input positions in row-major order, count) of every window."""
    for o in itertools.product(*(range(a[0]) for a in axes)):
        inside = [taps(a, at, 0, a[2]) for a, at in zip(axes, o, strict=True)]
        counted = inside
        if ends is not None:
            counted = [taps(a, at, -a[5], a[2] + e) for a, at, e in zip(axes, o, ends, strict=True)]
        yield o, list(itertools.product(*inside)), math.prod(len(c) for c in counted)


def oracle(
    name: str, inputs: dict[str, Array], axes: list[Axis], ends: list[int] | None, batch: int
) -> dict[str, Array]:
    shape, plane = tuple(a[0] for a in axes), tuple(a[2] for a in axes)
    x = next(iter(inputs.values())).astype(np.float64)
    y, index, dx = np.zeros((batch, *shape)), np.zeros((batch, *shape), np.int64), np.zeros((batch, *plane))
    for n in range(batch):
        for o, positions, count in windows(axes, ends):
            at = (n, *o)
            if name == "average_pool_grad_kernel":
                for p in positions:
                    dx[(n, *p)] += np.float64(x[at]) / count
                continue
            found = [float(x[(n, *p)]) for p in positions]
            if name == "average_pool_kernel":
                y[at] = np.float64(sum(found)) / count
                continue
            nans = [i for i, v in enumerate(found) if v != v]
            best = nans[0] if nans else found.index(max(found)) if found else None
            y[at] = -math.inf if best is None else found[best]
            index[at] = 0 if best is None else np.ravel_multi_index(positions[best], plane)
    return {"y": y, "index": index, "dx": dx}


def check(
    name: str,
    dtype: DType,
    axes: list[Axis],
    *,
    batch: int = 3,
    seed: int = 0,
    ends: list[int] | None = None,
) -> None:
    output, kernel, inputs, strides, dilations, pads = zip(*axes, strict=True)
    extents = {"batch": batch, "output": output, "input": inputs, "kernel": kernel}
    fields: dict[str, Any] = {"window_strides": strides, "dilations": dilations, "pads": pads}
    average = name.startswith("average")
    if average:
        fields |= {"count_pad": int(ends is not None), "pads_end": ends or [0] * len(axes)}
    launch = sim.launch(
        name, (dtype,), (len(axes),), extents, fields=fields, seed=seed, special=not average and seed % 2 == 1,
        plain=seed % 3 == 0,
    )  # fmt: skip
    got = launch.run()
    with np.errstate(all="ignore"):  # a window that counts nothing divides by 0
        expected = oracle(name, launch.inputs, axes, ends if average else None, batch)
    given_values = next(iter(launch.inputs.values())).astype(np.float64)
    largest = np.abs(given_values[np.isfinite(given_values)]).max(initial=0.0) * max(1, math.prod(kernel))
    for key, array in got.items():
        scale = np.full(array.shape, largest) if average else None
        sim.close(array, expected[key], 32.0, array.dtype, scale)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("spatial", [1, 2, 3])
def test_every_kernel_and_type(name: str, dtype: DType, spatial: int) -> None:
    cases: list[Axis] = [
        (3, 2, 6, 2, 1, 0), (4, 3, 6, 1, 1, 0), (3, 3, 6, 2, 1, 1), (2, 2, 6, 2, 3, 1), (1, 6, 6, 1, 1, 0),
        (3, 4, 5, 1, 1, 4), (2, 3, 0, 1, 1, 1), (2, 0, 3, 1, 1, 0), (0, 2, 3, 1, 1, 0), (2, 9, 4, 1, 1, 3),
        (1, 3, 4, 1, 0, 0), (3, 2, 4, 0, 1, 0), (2, 4, 3, 0, 1, 1), (1, 4, 3, 2, 0, -1),
    ]  # fmt: skip
    for seed, axis in enumerate(cases):
        for ends in (None, [1] * spatial) if name.startswith("average") else (None,):
            check(name, dtype, [axis] * spatial, seed=seed, ends=ends)


AXIS = st.tuples(
    st.integers(0, 4),
    st.integers(0, 5),
    st.integers(0, 5),
    st.sampled_from([0, 1, 1, 2, 3, HUGE]),
    st.sampled_from([0, 1, 1, 2, HUGE]),
    st.sampled_from([-2, -1, 0, 0, 1, 2, HUGE, 2 * HUGE, -HUGE]),
)


@given(
    name=st.sampled_from(NAMES),
    dtype=st.sampled_from(TYPES),
    axes=st.lists(AXIS, min_size=1, max_size=3),
    batch=st.integers(0, 2),
    ends=st.none() | st.lists(st.sampled_from([-1, 0, 1, 3, HUGE]), min_size=3, max_size=3),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=250)
def test_any_geometry(name: str, dtype: DType, axes: list[Axis], batch: int, ends: list[int] | None, seed: int) -> None:
    check(name, dtype, axes, batch=batch, seed=seed, ends=ends[: len(axes)] if ends else None)


@pytest.mark.parametrize(("kernel", "stride", "pad"), [(2, 2, 0), (3, 2, 1), (3, 1, 1)])
def test_against_torch(kernel: int, stride: int, pad: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 8, 7, generator=generator)
    wanted, indices = torch.nn.functional.max_pool2d(x, kernel, stride, pad, return_indices=True)
    average = torch.nn.functional.avg_pool2d(x, kernel, stride, pad)
    sides = {"batch": 6, "output": tuple(wanted.shape[2:]), "input": (8, 7), "kernel": (kernel, kernel)}
    fields = {"window_strides": (stride, stride), "dilations": (1, 1), "pads": (pad, pad)}
    images, y = x.numpy().reshape(6, 8, 7).copy(), np.zeros((6, *wanted.shape[2:]), np.float32)
    index = np.zeros(y.shape, np.int64)
    plane = {"x_offset": 0, "x_strides": (56, 7, 1), "y_offset": 0, "y_strides": (y[0].size, y.shape[2], 1)}
    record = BY_NAME["max_pool_index_kernel"].record((dtypes.float32,), (2,))
    places = {"index_offset": 0, "index_strides": plane["y_strides"]}
    sim.run(record, record.pack(**sides, **fields, **plane, **places), [images, y, index])
    np.testing.assert_array_equal(y.reshape(wanted.shape), wanted.numpy())
    np.testing.assert_array_equal(index.reshape(wanted.shape), indices.numpy())
    record = BY_NAME["average_pool_kernel"].record((dtypes.float32,), (2,))
    block = record.pack(**sides, **fields, **plane, count_pad=1, pads_end=(pad, pad))
    sim.run(record, block, [images, y])
    np.testing.assert_allclose(y.reshape(wanted.shape), average.numpy(), rtol=1e-5, atol=1e-6)
