"""Every kernel on the host compiler beside the simulator, over drawn shapes, layouts and numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cuda.kernel_runs import disagreements, has_compiler, pick, run
from tests.sim.launches import run as run_on_sim
from umd_core.kernels import BY_NAME
from umd_core.testing.launches import LAYOUTS, SHAPES, Plan, build

pytestmark = pytest.mark.skipif(not has_compiler(), reason="no C++ compiler")
PLANS = st.builds(Plan, st.sampled_from(SHAPES), st.sampled_from(LAYOUTS), st.booleans(), st.booleans())


@pytest.mark.parametrize("name", sorted(BY_NAME))
@settings(max_examples=10)
@given(plan=PLANS, seed=st.integers(0, 2**32 - 1))
def test_both_are_within_the_tolerance(name: str, plan: Plan, seed: int) -> None:
    row, types = pick(name, turn=1)
    launch = build(np.random.default_rng(seed), row, types, plan)
    on_host, status = run(launch)
    on_sim = [memory.copy() for memory in launch.memories]
    arrays = [on_sim[piece.memory][piece.offset : piece.offset + piece.length] for piece in launch.pieces]
    run_on_sim(launch.record, launch.parameters, arrays)
    assert status[0] == 0
    assert not disagreements(launch, on_host)
    assert not disagreements(launch, on_sim)
