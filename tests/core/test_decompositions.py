"""Every kernel of level 1 in terms of level-0 kernels gives what the kernel's own definition gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.core.recipe_interpreter import level_0, run_steps
from umd_core import dtypes
from umd_core.decompositions import DECOMPOSITIONS, convolution
from umd_core.dtypes import DType
from umd_core.kernels import BY_NAME, KernelRow
from umd_core.recorder import Launch as RecordedLaunch
from umd_core.recorder import Recorder
from umd_core.testing.compare import difference
from umd_core.testing.launches import LAYOUTS, Launch, Plan, build, type_arguments
from umd_core.testing.reference import Case, reference
from umd_core.views import View

HIGHER = [row for row in BY_NAME.values() if row.level > 0]
WINDOWED = [row for row in HIGHER if row.family in ("conv", "pool")]
SHAPES = ("ordinary", "ones", "empty", "odd")


def decompose(launch: Launch) -> Recorder:
    """Returns what a level-0 device is given for a launch; buffer numbers are the launch's memories."""
    record = launch.record
    recorder = Recorder([None] * len(launch.memories), (), level_0, DECOMPOSITIONS)
    operands = {}
    for piece, view in zip(launch.pieces, record.views(launch.parameters), strict=True):
        offset = piece.offset // view.dtype.size + piece.element_offset
        operands[view.name] = View(piece.memory, view.dtype, view.shape, piece.strides, offset)
    parameters = record.unpack(launch.parameters)
    extents = {e.name: parameters[e.name] for e in record.row.extents}
    fields = {f.name: parameters[f.name] for f in record.row.fields}
    recorder.launch(record.row.name, extents, operands, fields)
    return recorder


def check(launch: Launch) -> None:
    """Runs the decomposition of a launch and compares every written operand with the kernel's definition."""
    memories = {i: memory.copy() for i, memory in enumerate(launch.memories)}
    recorder = decompose(launch)
    for step in recorder.steps:
        assert not isinstance(step, RecordedLaunch) or step.record.row.level == 0
    run_steps(recorder, memories)
    expected = reference(launch.case())
    boxes = [launch.box(i, list(memories.values())[: len(launch.memories)]) for i in range(len(launch.pieces))]
    for box, operand in zip(boxes, launch.record.row.operands, strict=True):
        if operand.writes:
            dtype = launch.record.dtype(operand.type)
            found = difference(box, expected[operand.name], dtype, launch.record.row.tolerance)
            assert not found, f"{launch.record.row.name}: {operand.name}: {found}; {launch.note}"


def test_every_kernel_above_level_0_has_a_decomposition_and_no_other() -> None:
    assert set(DECOMPOSITIONS) == {row.name for row in HIGHER}
    assert len(HIGHER) >= 15


@pytest.mark.parametrize("row", HIGHER, ids=lambda row: row.name)
@settings(max_examples=40)
@given(data=st.data(), seed=st.integers(0, 2**32), special=st.booleans(), alias=st.booleans())
def test_a_decomposition_gives_what_the_kernel_gives(
    row: KernelRow, data: st.DataObject, seed: int, special: bool, alias: bool
) -> None:
    types = data.draw(st.sampled_from(type_arguments(row)))
    plan = Plan(data.draw(st.sampled_from(SHAPES)), data.draw(st.sampled_from(LAYOUTS)), special, alias)
    check(build(np.random.default_rng(seed), row, types, plan))


# windows that reach anywhere, beside the input too


@st.composite
def geometries(draw: st.DrawFn, row: KernelRow) -> dict[str, Any]:
    """Extents and window fields without any relation between them."""
    rank = draw(st.integers(1, 3))
    largest = {1: 9, 2: 5, 3: 3}[rank]

    def axes(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.lists(st.integers(low, high), min_size=rank, max_size=rank)))

    result: dict[str, Any] = {
        "input": axes(1, largest), "output": axes(1, largest), "kernel": axes(1, 3), "window_strides": axes(1, 3),
        "dilations": axes(1, 3), "pads": axes(-2, 3),
    }  # fmt: skip
    if any(f.name == "count_pad" for f in row.fields):
        result |= {"pads_end": axes(0, 2), "count_pad": draw(st.integers(0, 1))}
        result["pads"] = tuple(max(p, 0) for p in result["pads"])
    for extent in row.extents:
        result.setdefault(extent.name, draw(st.integers(1, 3)))
    return result


def run_geometry(row: KernelRow, dtype: DType, parameters: dict[str, Any], seed: int, special: bool) -> None:
    """Checks the decomposition over row-major operands."""
    record = row.record((dtype,), (len(parameters["input"]),))
    rng = np.random.default_rng(seed)
    arrays = {}
    for operand in row.operands:
        shape = np.atleast_1d(np.concatenate([np.atleast_1d(parameters[name]) for name in operand.box]))
        own = record.dtype(operand.type).numpy
        array = rng.normal(0, 2, shape)
        if special:
            array = np.where(rng.random(shape) < 0.4, rng.choice([np.nan, -np.inf, -np.inf, np.inf], shape), array)
        arrays[operand.name] = np.zeros(shape, own) if operand.writes else array.astype(own)
    recorder = Recorder([None] * len(arrays), (), level_0, DECOMPOSITIONS)
    operands = {
        name: recorder_view(number, record.dtype(o.type), arrays[name])
        for number, (name, o) in enumerate(zip(arrays, row.operands, strict=True))
    }
    names = [f.name for f in row.fields]
    extents = {e.name: parameters[e.name] for e in row.extents}
    fields = {name: parameters[name] for name in names}
    recorder.launch(row.name, extents, operands, fields)
    memories = {i: np.frombuffer(a.tobytes(), np.uint8).copy() for i, a in enumerate(arrays.values())}
    run_steps(recorder, memories)
    plain = Recorder([None] * len(arrays))
    plain.launch(row.name, extents, operands, fields)
    (direct,) = plain.steps
    assert isinstance(direct, RecordedLaunch)
    for number, (name, expected) in enumerate(
        (o.name, reference(Case(direct.record, direct.parameters, arrays)).get(o.name)) for o in row.operands
    ):
        if expected is not None:
            got = memories[number].view(arrays[name].dtype).reshape(arrays[name].shape)
            assert not difference(got, expected, dtypes.dtype(arrays[name].dtype), row.tolerance)


def recorder_view(number: int, dtype: DType, array: Any) -> View:
    strides = tuple(s // array.itemsize for s in array.strides)
    return View(number, dtype, array.shape, strides)


@pytest.mark.parametrize("row", WINDOWED, ids=lambda row: row.name)
@settings(max_examples=40)
@given(data=st.data(), seed=st.integers(0, 2**32), special=st.booleans())
def test_windows_may_lie_anywhere(row: KernelRow, data: st.DataObject, seed: int, special: bool) -> None:
    parameters = data.draw(geometries(row))
    dtype = data.draw(st.sampled_from(dtypes.FLOATS))
    run_geometry(row, dtype, parameters, seed, special and row.name.startswith("max_pool"))


def test_padding_never_wins_over_an_input_of_infinities() -> None:
    x = np.full((1, 4), -np.inf, np.float32)
    extents: dict[str, Any] = {"batch": 1, "input": (4,), "output": (4,), "kernel": (3,)}
    fields = {"window_strides": (1,), "dilations": (2,), "pads": (2,)}
    recorder = Recorder([None] * 3, (), level_0, DECOMPOSITIONS)
    operands = {
        "x": View(0, dtypes.float32, (1, 4), (4, 1)),
        "y": View(1, dtypes.float32, (1, 4), (4, 1)),
        "index": View(2, dtypes.int64, (1, 4), (4, 1)),
    }
    recorder.launch("max_pool_index_kernel", extents, operands, fields)
    memories = {0: x.view(np.uint8).reshape(-1), 1: np.zeros(16, np.uint8), 2: np.zeros(32, np.uint8)}
    run_steps(recorder, memories)
    # windows are {-2, 0, 2}, {-1, 1, 3}, {0, 2, 4}, {1, 3, 5}: the first that lies inside
    assert memories[2].view(np.int64).tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize("limit", [1, 64, 2000, 1 << 20])
@settings(max_examples=15)
@given(seed=st.integers(0, 2**32), parameters=geometries(BY_NAME["conv_kernel"]))
@example(seed=0, parameters={
    "batch": 3, "groups": 2, "out_channels": 2, "in_channels": 3, "input": (5,), "output": (3,), "kernel": (3,),
    "window_strides": (2,), "dilations": (1,), "pads": (1,),
})  # fmt: skip
@example(seed=0, parameters={
    "batch": 2, "groups": 2, "out_channels": 2, "in_channels": 3, "input": (5, 4, 4), "output": (2, 2, 3),
    "kernel": (2, 2, 2), "window_strides": (2, 1, 1), "dilations": (2, 1, 1), "pads": (1, 0, 0),
})  # fmt: skip
def test_convolutions_in_parts_are_the_same(limit: int, seed: int, parameters: dict[str, Any]) -> None:
    before = convolution.WORKSPACE_BYTES
    convolution.WORKSPACE_BYTES = limit
    try:
        for name in ("conv_kernel", "conv_input_grad_kernel", "conv_weight_grad_kernel"):
            run_geometry(BY_NAME[name], dtypes.float32, parameters, seed, special=False)
    finally:
        convolution.WORKSPACE_BYTES = before
