"""Failures of a submission: what they say, and what they spoil."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.device_samples import bound, contents
from tests.core.noting_device import NEG, NotingDevice, negation, negations
from umd_core.device import Binding
from umd_core.errors import IndexRangeError, InternalError, PoisonedError
from umd_core.testing.recording import Recording


def test_errors_name_device_kernel_command_and_mark() -> None:
    device = NotingDevice()
    recording = Recording()
    a, b = recording.argument(), recording.argument()
    recording.mark("layer 3")
    recording.dispatch(NEG, negation(), [(a, 0, 16), (b, 0, 16)])
    program = device.load(recording.finish())

    def broken() -> None:
        raise ZeroDivisionError("oh")

    device.bind = lambda *_: broken  # type: ignore[method-assign]  # replaced for this test
    ticket = device.submit(program, bound(device, bytes(16), bytes(16)))
    with pytest.raises(InternalError) as caught:
        ticket.wait()
    error = caught.value
    assert str(error) == "ZeroDivisionError: oh [host:0: elementwise_neg_kernel, command 1 after mark 'layer 3']"
    facts = {name: error.facts()[name] for name in ("device", "kernel", "command", "mark")}
    assert facts == {"device": "host:0", "kernel": "elementwise_neg_kernel", "command": 1, "mark": "layer 3"}
    assert isinstance(error.__cause__, ZeroDivisionError)


class FaultyDevice(NotingDevice):
    """Negates for real, but fails at the calls whose number is in `failing`."""

    def __init__(self) -> None:
        self.failing: set[int] = set()
        self.calls = 0
        super().__init__()

    def bind(self, executable: Any, parameters: bytes, bindings: Sequence[Binding]) -> Callable[[], None]:
        source, target = (b.buffer.memory[b.offset : b.offset + 16].view(np.int32) for b in bindings)

        def call() -> None:
            self.calls += 1
            if self.calls - 1 in self.failing:
                raise IndexRangeError("gather_kernel", -1, 9, 4)
            np.negative(source, out=target)

        return call


@given(data=st.data(), length=st.integers(1, 10))
def test_failures_spoil_exactly_what_depends_on_them(data: st.DataObject, length: int) -> None:
    """A model of poison by slot agrees with the device, over two submissions."""
    slots = 5
    pairs = data.draw(
        st.lists(
            st.tuples(st.integers(0, slots - 1), st.integers(0, slots - 1)).filter(lambda pair: pair[0] != pair[1]),
            min_size=length,
            max_size=length,
        )
    )
    device = FaultyDevice()
    program = device.load(negations(pairs, slots))
    bindings = bound(device, *[np.full(4, n + 1, np.int32) for n in range(slots)])
    values: list[int | None] = [n + 1 for n in range(slots)]
    for _ in range(2):
        runs = sum(1 for _ in pairs)
        failing = data.draw(st.sets(st.integers(0, runs - 1), max_size=2))
        device.failing, device.calls = failing, 0
        ticket = device.submit(program, bindings)
        calls, failed = 0, False
        for source, target in pairs:
            value = values[source]
            if value is None:
                values[target], failed = None, True
                continue
            bad = calls in failing
            calls += 1
            failed |= bad
            values[target] = None if bad else -value
        assert device.calls == calls
        assert ticket.done()
        assert (ticket.error is not None) == failed
        for binding, value in zip(bindings, values, strict=True):
            if value is None:
                with pytest.raises(PoisonedError) as caught:
                    contents(device, binding)
                assert caught.value.root_status == int(IndexRangeError.status)
            else:
                assert np.frombuffer(contents(device, binding), np.int32).tolist() == [value] * 4
    assert device.poisoned == {b.buffer for b, value in zip(bindings, values, strict=True) if value is None}


def test_the_root_cause_stays_the_first() -> None:
    device = FaultyDevice()
    program = device.load(negations([(0, 1)], 2))
    a, b, c = bound(device, *[bytes(16)] * 3)
    device.failing = {0}
    device.submit(program, [a, b])
    first = device.submit(program, [b, c])
    second = device.submit(program, [c, a])
    for ticket in (first, second):
        assert isinstance(ticket.error, PoisonedError)
        assert ticket.error.root.startswith("gather_kernel (command 0): index 9")
