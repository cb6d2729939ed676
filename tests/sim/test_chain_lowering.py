"""The chain lowering: blocks of any size give the reference's results within the row's tolerance."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from umd_core.device import Device
from umd_core.dtypes import FLOATS
from umd_core.kernels import chain
from umd_core.registry import open_device
from umd_core.testing.harness import Arguments, check_results, record_launch
from umd_core.testing.launches import LAYOUTS, SHAPES, Launch, Plan, build
from umd_sim.lowerings import chain as lowering
from umd_sim.lowerings import expression


def results(device: Device, launch: Launch, block: int, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Returns the memories after a launch in blocks of so many elements."""
    monkeypatch.setattr(expression, "BLOCK", block)
    program = device.load(bytes(record_launch(launch)))
    arguments = Arguments(device, launch.memories)
    try:
        device.submit(program, arguments.bindings).wait()
        return arguments.read()
    finally:
        arguments.free()


@settings(max_examples=100)
@given(
    seed=st.integers(0, 2**32), shape=st.sampled_from(SHAPES), layout=st.sampled_from(LAYOUTS),
    dtype=st.sampled_from(FLOATS), block=st.sampled_from((1, 2, 5, 16, 100, 1 << 20)), alias=st.booleans(),
)  # fmt: skip
def test_blocks_may_have_any_size(seed: int, shape: str, layout: str, dtype: Any, block: int, alias: bool) -> None:
    launch = build(np.random.default_rng(seed), chain.ROW, [dtype], Plan(shape, layout, special=True, alias=alias))
    device = open_device("sim:0")
    with pytest.MonkeyPatch.context() as monkeypatch:
        found = results(device, launch, block, monkeypatch)
    device.close()
    check_results(launch, found, launch.note)


def test_a_step_s_result_is_read_again_without_being_computed_again() -> None:
    x = chain.OPERAND
    tokens = (x, chain.CODES["exp"], chain.RESULT, chain.CODES["mul"])
    record = chain.ROW.record([FLOATS[2]], [1])
    names = [operand.name for operand in chain.ROW.operands]
    fields: dict[str, Any] = {"program": chain.padded(tokens), "constants": (0.0,) * 8, "extents": (4,)}
    fields |= {f"{name}_offset": 0 for name in names} | {f"{name}_strides": (1,) for name in names}
    executable = lowering.lower(record, record.pack(**fields))
    assert [view.operand for view in executable.views] == [0, 8]
    program = lowering._compiled(FLOATS[2], tuple(chain.words(tokens)), ("0.0",) * 8)  # what it makes
    assert [step.function for step in program.steps] == [np.exp, np.multiply]
