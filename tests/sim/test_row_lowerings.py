"""Softmax, log-softmax, their gradients and normalisation against float64 formulas."""

from __future__ import annotations

import itertools
import math
import struct
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.sim import launches as sim
from umd_core import dtypes
from umd_core.dtypes import DType
from umd_core.kernels import BY_NAME

Array = NDArray[Any]
Case = tuple[str, tuple[DType, ...]]
CASES: list[Case] = [
    (row.name, types)
    for row in BY_NAME.values()
    if row.family == "rows"
    for types in itertools.product(*(allowed for _, allowed in row.types))
]
IDS = ["-".join([name, *(t.name for t in types)]) for name, types in CASES]
EPSILON = 1e-3
SHAPES = [
    ((3, 4), (5,)),
    ((6,), (2, 3)),
    ((), (7,)),
    ((2, 1, 3), ()),
    ((0, 2), (3,)),
    ((3,), (0,)),
    ((2, 2), (1, 2, 1, 2, 2)),
]


def oracle(name: str, inputs: dict[str, Array], rows: int, count: int) -> dict[str, Array]:
    given_values = {key: value.astype(np.float64).reshape(rows, count) for key, value in inputs.items()}
    if name in ("softmax_kernel", "log_softmax_kernel"):
        tensor = torch.from_numpy(given_values["x"])
        result = torch.softmax(tensor, 1) if name == "softmax_kernel" else torch.log_softmax(tensor, 1)
        return {"y": result.numpy()}
    if name == "normalize_kernel":
        x = given_values["x"]
        mean = np.array([sum(r) / count if count else math.nan for r in x.tolist()])
        variance = np.array(
            [sum((v - m) ** 2 for v in r) / count if count else math.nan for r, m in zip(x.tolist(), mean, strict=True)]
        )
        rstd = 1 / np.sqrt(variance + EPSILON)
        return {"y": (x - mean[:, None]) * rstd[:, None], "mean": mean, "rstd": rstd}
    dy, y = given_values["dy"], given_values["y"]
    if name == "softmax_grad_kernel":
        return {"dx": y * (dy - (dy * y).sum(1, keepdims=True))}
    return {"dx": dy - np.exp(y) * dy.sum(1, keepdims=True)}


def check(case: Case, shapes: tuple[tuple[int, ...], tuple[int, ...]], seed: int) -> None:
    (name, types), (outer, inner) = case, shapes
    ranks = (sim.rank_class(len(outer)), sim.rank_class(len(inner)))
    rng = np.random.default_rng(seed)

    def make(operand: str, shape: tuple[int, ...], numpy: np.dtype[Any]) -> Array:
        return rng.uniform(-3, 3, shape).astype(numpy)

    launch = sim.launch(
        name,
        types,
        ranks,
        {"outer": sim.padded(outer, ranks[0]), "inner": sim.padded(inner, ranks[1])},
        fields={"epsilon": EPSILON} if name == "normalize_kernel" else {},
        seed=seed,
        plain=seed % 3 == 0,
        make=make,
    )
    rows, count = math.prod(outer), math.prod(inner)
    expected = oracle(name, launch.inputs, rows, count)
    for key, array in launch.run().items():
        wanted = expected[key].reshape(array.shape)
        scale = np.full(array.shape, np.abs(wanted).max(initial=1.0) * (1 + count))
        sim.close(array, wanted, 8.0, array.dtype, scale)


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_every_kernel_and_type(case: Case) -> None:
    for seed, shapes in enumerate(SHAPES):
        check(case, shapes, seed)
    check(case, ((30, 11), (300,)), 0)
    check(case, ((3,), (1500,)), 1)
    check(case, ((200,), (24,)), 0)


@given(
    case=st.sampled_from(CASES),
    outer=st.lists(st.integers(0, 4), max_size=5).map(tuple),
    inner=st.lists(st.integers(0, 4), max_size=5).map(tuple),
    seed=st.integers(0, 2**32),
)
def test_any_layout(case: Case, outer: tuple[int, ...], inner: tuple[int, ...], seed: int) -> None:
    check(case, (outer, inner), seed)


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_results_may_take_the_place_of_operands(case: Case) -> None:
    name, types = case
    for written, read in BY_NAME[name].alias:
        extents = {"outer": (6,), "inner": (5,)}
        fields = {"epsilon": EPSILON} if name == "normalize_kernel" else {}
        launch = sim.launch(name, types, (1, 1), extents, fields=fields, plain=True)
        expected = launch.run()
        arrays = {**{key: np.zeros_like(value) for key, value in expected.items()}, **launch.inputs}
        arrays[written] = arrays[read]
        sim.run(launch.record, launch.block, [arrays[o.name] for o in launch.record.row.operands])
        assert arrays[written].tobytes() == expected[written].tobytes()


def test_large_values_do_not_overflow() -> None:
    record = BY_NAME["softmax_kernel"].record((dtypes.float32,), (1, 1))
    block = record.pack(outer=(2,), inner=(2,), x_offset=0, x_strides=(2, 1), y_offset=0, y_strides=(2, 1))
    x, y = np.array([[1000.0, 999.0], [-1000.0, np.nan]], np.float32), np.zeros((2, 2), np.float32)
    sim.run(record, block, [x, y])
    np.testing.assert_allclose(y[0], [1 / (1 + math.exp(-1)), 1 / (1 + math.e)], rtol=1e-6)
    assert np.isnan(y[1]).all()


def test_epsilon_is_read_when_the_launch_is_bound() -> None:
    from umd_sim.lowerings import lowering_of
    from umd_sim.lowerings.layout import bind
    from umd_sim.scratch import Scratch

    launch = sim.launch(
        "normalize_kernel",
        (dtypes.float32, dtypes.float32),
        (1, 1),
        {"outer": (1,), "inner": (4,)},
        fields={"epsilon": 0.0},
        plain=True,
    )
    lowering = lowering_of(launch.record.row)
    assert lowering is not None
    executable = lowering(launch.record, launch.block)
    arrays = [launch.inputs["x"], np.zeros((1, 4), np.float32), np.zeros(1, np.float32), np.zeros(1, np.float32)]
    bindings = [(SimpleNamespace(memory=a.reshape(-1).view(np.uint8)), 0, a.nbytes) for a in arrays]
    patched = launch.block[:-8] + struct.pack("<d", 3.0)
    bind(executable, patched, bindings, Scratch())()
    assert arrays[3][0] == pytest.approx(1 / math.sqrt(arrays[0].var() + 3.0), rel=1e-6)
