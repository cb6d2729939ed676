"""Convolution and its gradients against the defining sums, and against torch."""

from __future__ import annotations

import itertools
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
from umd_sim.lowerings import columns as im2col

Array = NDArray[Any]
NAMES = ("conv_kernel", "conv_input_grad_kernel", "conv_weight_grad_kernel")
TYPES = BY_NAME["conv_kernel"].types[0][1]
HUGE = 2**50


def geometry(
    spatial: int,
    *,
    batch: int = 2,
    groups: int = 1,
    channels: tuple[int, int] = (2, 3),
    inputs: int = 6,
    kernel: int = 3,
    stride: int = 1,
    dilation: int = 1,
    pad: int = 1,
    output: int | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns extents and fields; the axes differ by one element."""
    axes = range(spatial)
    size = [inputs + a for a in axes]
    if output is None:
        reach = (kernel - 1) * dilation + 1
        wanted = [max(0, (i + 2 * pad - reach) // max(stride, 1) + 1) for i in size]
    else:
        wanted = [output] * spatial
    extents = {
        "batch": batch, "groups": groups, "out_channels": channels[1], "output": tuple(wanted),
        "in_channels": channels[0], "kernel": (kernel,) * spatial, "input": tuple(size),
    }  # fmt: skip
    fields = {"window_strides": (stride,) * spatial, "dilations": (dilation,) * spatial, "pads": (pad,) * spatial}
    return extents, fields


def contributions(extents: dict[str, Any], fields: dict[str, Any]) -> Any:
    """Yields (output index, tap index, input index) of every product in the definition."""
    axes = []
    for o, k, i, s, d, p in zip(
        extents["output"], extents["kernel"], extents["input"], fields["window_strides"], fields["dilations"],
        fields["pads"], strict=True,
    ):  # fmt: skip
        meeting = [(a, b, a * s + b * d - p) for a in range(o) for b in range(k)]
        axes.append([m for m in meeting if 0 <= m[2] < i])
    for combination in itertools.product(*axes):
        yield tuple(zip(*combination, strict=True))


def oracle(name: str, launch: Any, extents: dict[str, Any], fields: dict[str, Any]) -> tuple[Array, Array]:
    """Returns the result and the sum of the magnitudes of its terms, in float64."""
    inputs = {key: value.astype(np.float64) for key, value in launch.inputs.items()}
    output = next(o.name for o in launch.record.row.operands if o.writes)
    result, scale = np.zeros(launch.shapes[output]), np.zeros(launch.shapes[output])
    for target, magnitude in ((result, False), (scale, True)):
        given_ = {k: np.abs(v) if magnitude else v for k, v in inputs.items()}
        for o, k, i in contributions(extents, fields):
            o, k, i = (..., *o), (..., *k), (..., *i)
            if name == "conv_kernel":
                target[o] += np.einsum("ngc,gmc->ngm", given_["x"][i], given_["w"][k])
            elif name == "conv_input_grad_kernel":
                target[i] += np.einsum("ngm,gmc->ngc", given_["dy"][o], given_["w"][k])
            else:
                target[k] += np.einsum("ngm,ngc->gmc", given_["dy"][o], given_["x"][i])
    return result, scale


def check(
    name: str,
    dtype: DType,
    parameters: tuple[dict[str, Any], dict[str, Any]],
    seed: int,
    plain: bool | None = None,
) -> None:
    extents, fields = parameters
    spatial = len(extents["output"])
    launch = sim.launch(
        name, (dtype,), (spatial,), extents, fields=fields, seed=seed, plain=seed % 2 == 0 if plain is None else plain
    )
    (got,) = launch.run().values()
    expected, scale = oracle(name, launch, extents, fields)
    terms = extents["batch"] * np.prod(extents["output"]) + extents["in_channels"] * np.prod(extents["kernel"])
    sim.close(got, expected, 8.0 + terms, got.dtype, scale)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("spatial", [1, 2, 3])
def test_every_kernel_and_type(name: str, dtype: DType, spatial: int) -> None:
    small = 4 if spatial == 3 else 6
    for seed, parameters in enumerate((
        geometry(spatial, inputs=small),
        geometry(spatial, inputs=small, kernel=1, pad=0),
        geometry(spatial, inputs=small, stride=2, groups=2, kernel=2),
        geometry(spatial, inputs=small, dilation=2, pad=2, batch=1),
        geometry(spatial, inputs=small, batch=0),
        geometry(spatial, inputs=small, channels=(0, 2)),
        geometry(spatial, inputs=small, channels=(12, 2), kernel=2, pad=0),
        geometry(spatial, inputs=small, kernel=3, pad=-1),
        geometry(spatial, inputs=small, kernel=0, output=2),
        geometry(spatial, inputs=small, stride=0, output=3),
        geometry(spatial, inputs=small, dilation=0, output=2, stride=2),
        geometry(spatial, inputs=small, stride=HUGE, output=2),
        geometry(spatial, inputs=small, kernel=1, pad=0, dilation=2**60, stride=2**60, output=1),
    )):  # fmt: skip
        check(name, dtype, parameters, seed)


AXIS = st.tuples(
    st.integers(0, 4),  # outputs
    st.integers(0, 4),  # taps
    st.integers(0, 5),  # inputs
    st.sampled_from([0, 1, 1, 2, 3, HUGE]),  # stride
    st.sampled_from([0, 1, 1, 2, HUGE]),  # dilation
    st.sampled_from([-2, -1, 0, 0, 1, 2, HUGE, 2 * HUGE, -HUGE]),  # pad
)


@given(
    name=st.sampled_from(NAMES),
    dtype=st.sampled_from(TYPES),
    axes=st.lists(AXIS, min_size=1, max_size=3),
    channels=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    batch=st.integers(0, 2),
    groups=st.integers(0, 2),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=200)
def test_any_geometry(
    name: str,
    dtype: DType,
    axes: list[tuple[int, ...]],
    channels: tuple[int, int],
    batch: int,
    groups: int,
    seed: int,
) -> None:
    output, kernel, inputs, strides, dilations, pads = zip(*axes, strict=True)
    extents = {
        "batch": batch, "groups": groups, "out_channels": channels[1], "output": output,
        "in_channels": channels[0], "kernel": kernel, "input": inputs,
    }  # fmt: skip
    fields = {"window_strides": strides, "dilations": dilations, "pads": pads}
    check(name, dtype, (extents, fields), seed)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("channels", [(3, 5), (20, 2)])
@pytest.mark.parametrize("stride", [1, 2])
def test_tiles(monkeypatch: pytest.MonkeyPatch, name: str, channels: tuple[int, int], stride: int) -> None:
    for tile in (2000, 300, 1):
        monkeypatch.setattr(im2col, "TILE", tile)
        monkeypatch.setattr(im2col, "GROUPED_TILE", tile)
        for dtype in (dtypes.float64, dtypes.float16):
            check(name, dtype, geometry(2, batch=5, channels=channels, inputs=7, stride=stride), 0, True)


@pytest.mark.parametrize("transposed", [False, True])
def test_against_torch(transposed: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 4, 9, 8, generator=generator, dtype=torch.float64, requires_grad=True)
    w = torch.randn(6, 2, 3, 2, generator=generator, dtype=torch.float64, requires_grad=True)
    y = torch.nn.functional.conv2d(x, w, stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=2)
    dy = torch.randn(y.shape, generator=generator, dtype=torch.float64)
    y.backward(dy)
    extents = {
        "batch": 3, "groups": 2, "out_channels": 3, "output": tuple(y.shape[2:]), "in_channels": 2,
        "kernel": (3, 2), "input": (9, 8),
    }  # fmt: skip
    fields = {"window_strides": (2, 1), "dilations": (1, 2), "pads": (1, 2)}
    tensors: dict[str, Any] = {"x": x, "w": w, "y": y, "dy": dy, "dx": x.grad, "dw": w.grad}
    shapes = {
        "x": (3, 2, 2, 9, 8), "w": (2, 3, 2, 3, 2), "y": (3, 2, 3, *y.shape[2:]),
    }  # fmt: skip
    for name in NAMES:
        record = BY_NAME[name].record((dtypes.float64,), (2,))
        layout: dict[str, Any] = {}
        arrays = []
        for operand in record.row.operands:
            shape = shapes[operand.name.removeprefix("d")]
            array = np.zeros(shape)
            if not operand.writes:
                array[...] = tensors[operand.name].detach().numpy().reshape(shape)
            if transposed:
                array = np.ascontiguousarray(array.T).T
            layout[f"{operand.name}_offset"] = 0
            layout[f"{operand.name}_strides"] = [s // 8 for s in array.strides]
            arrays.append(array)
        sim.run(record, record.pack(**extents, **fields, **layout), [a.T if transposed else a for a in arrays])
        wanted = tensors[record.row.operands[-1].name].detach().numpy()
        np.testing.assert_allclose(arrays[-1].reshape(wanted.shape), wanted, rtol=1e-12, atol=1e-12)
