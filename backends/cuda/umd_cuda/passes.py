"""A prepared launch that is made in several passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from umd_core.device import Buffer, SequentialDevice
from umd_cuda.driver import Call
from umd_cuda.driver import Geometry as Launch
from umd_cuda.plans import Plan, block_of

Prepare = Callable[[Launch, bytes], Call]
"""Makes a launch of a geometry and a parameter block."""


def prepared(device: SequentialDevice, plan: Plan, prepare: Prepare, parameters: bytes) -> Call:
    """Returns a call that makes all passes of a plan; it keeps the scratch memory that they share.

    Raises:
        OutOfMemoryError: there is no room for it.
    """
    scratch = device.allocate(plan.scratch) if plan.scratch else None
    address = scratch.memory.address if scratch else 0
    calls = [prepare(Launch(*geometry), block_of(parameters, address, turn)) for turn, geometry in plan.passes]
    return Passes(device, calls, scratch) if scratch or len(calls) > 1 else calls[0]


class Passes:
    """The launches of a plan, one after the other."""

    __slots__ = ("_calls", "_device", "_scratch")

    def __init__(self, device: SequentialDevice, calls: Sequence[Call], scratch: Buffer | None) -> None:
        self._device, self._calls, self._scratch = device, tuple(calls), scratch

    def __call__(self) -> None:
        for call in self._calls:
            call()

    def __del__(self) -> None:
        if self._scratch is not None:
            self._device.drop(self._scratch)
