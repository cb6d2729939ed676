"""Gradients by the input take no more steps than the table's work, whatever strides and dilations are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cuda.kernel_runs import disagreements, function, has_compiler, launch_of, run
from umd_core import dtypes
from umd_core.kernels.geometry import Flat
from umd_core.testing.launches import Launch
from umd_cuda import plans, sources
from umd_cuda.sources import needs_wide

pytestmark = pytest.mark.skipif(not has_compiler(), reason="no C++ compiler")

COUNTED = {"conv_input_grad_kernel": "conv", "average_pool_grad_kernel": "pool"}


def steps_of(launch: Launch) -> int:
    """Returns how many pairs of tap and output a launch walks through."""
    source = sources.source_for(launch.record, needs_wide(launch.record, flat_of(launch)), planned=False)
    assert source is not None
    walked = "meeting_at(j, meetings, k, o);"
    assert source.text.count(walked) == 1
    text = "__device__ unsigned long long steps;\n" + source.text.replace(walked, walked + " ++steps;")
    entry = function(source._replace(text=text))
    counter = entry.module.variable("steps").cast("Q")
    counter[0] = 0
    memories = [memory.copy() for memory in launch.memories]
    pointers = [np.uintp(memory.ctypes.data).tobytes() for memory in memories]
    entry.launch((1, 1, 1), (1, 1, 1), 0, [*pointers, launch.parameters])
    return int(counter[0])


def flat_of(launch: Launch) -> Flat:
    """Returns the flat parameter block."""
    return launch.record.struct.unpack(launch.parameters)


def gradient(name: str, sizes: tuple[int, int, int], stride: int, dilation: int, pad: int) -> Launch:
    """Returns a launch over one channel of (input, kernel, output) elements."""
    length, taps, outputs = sizes
    rng = np.random.default_rng(6)
    dy, w, dx = (rng.standard_normal(size).astype(np.float32) for size in (outputs, taps, length))
    fields: dict[str, Any] = {
        "batch": 1, "output": (outputs,), "input": (length,), "kernel": (taps,),
        "window_strides": (stride,), "dilations": (dilation,), "pads": (pad,),
    }  # fmt: skip
    if COUNTED[name] == "pool":
        fields |= {"count_pad": 0, "pads_end": (0,), "dy_strides": (0, 1), "dx_strides": (0, 1)}
        return launch_of(name, (dtypes.float32,), [dy, dx], **fields)
    fields |= {"groups": 1, "in_channels": 1, "out_channels": 1}
    fields |= {f"{operand}_strides": (0, 0, 0, 1) for operand in ("dy", "w", "dx")}
    return launch_of(name, (dtypes.float32,), [dy, w, dx], **fields)


def meetings_of(launch: Launch) -> int:
    """Returns how many pairs of tap and output meet an input, counted one by one."""
    p = launch.record.unpack(launch.parameters)
    places = (
        o * p["window_strides"][0] - p["pads"][0] + k * p["dilations"][0]
        for o in range(p["output"][0])
        for k in range(p["kernel"][0])
    )
    return sum(0 <= i < p["input"][0] for i in places)


@pytest.mark.parametrize("name", COUNTED)
@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_each_meeting_of_window_and_input_is_one_step(name: str, data: st.DataObject) -> None:
    small = st.integers(0, 12)
    sizes = (data.draw(st.integers(1, 40)), data.draw(small), data.draw(small))
    stride, dilation = data.draw(st.integers(0, 30)), data.draw(st.integers(0, 30))
    launch = gradient(name, sizes, stride, dilation, data.draw(st.integers(-20, 40)))
    assert steps_of(launch) == meetings_of(launch)
    assert not disagreements(launch, run(launch, planned=False)[0])


HOSTILE = (
    ((100_000, 90_000, 2), 99_991, 1, 0),
    ((100_000, 90_000, 2), 1, 49_999, 7),
    ((100_000, 1000, 1000), 99_000, 98_999, 0),
    ((100_000, 2, 50_000), 0, 1, -3),
    ((100_000, 90_000, 3), 2**29, 2**28, 2**20),
    ((5000, 3, 2), 2**60, 2**60 - 1, -(2**60)),
)


@pytest.mark.parametrize("hostile", HOSTILE, ids=str)
@pytest.mark.parametrize("name", COUNTED)
def test_hostile_windows_stay_within_the_work_of_the_table(name: str, hostile: tuple[Any, ...]) -> None:
    launch = gradient(name, *hostile)
    flat = flat_of(launch)
    taps, outputs = hostile[0][1:]
    assert steps_of(launch) <= taps * outputs
    plan = plans.plan_for(launch.record, flat) if COUNTED[name] == "conv" else None
    assert plan is None or plan == plans.whole(launch.record, flat)  # classes of inputs would be work beyond the table
