"""`compare` takes a run apart: submissions in their order, each with its own values, and excerpts of programs."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import umd_core as umd
from tests.core.capture_samples import Faulty, capturing, negate, network
from tests.core.device_samples import bound
from tests.core.op_arrays import Array
from tests.core.random_graphs import Grown, grown
from umd_core.capture import compare, open_capture
from umd_core.capture.events import Allocate, Event, NewFence, Read, Submit
from umd_core.capture.excerpt import excerpt
from umd_core.capture.schedule import in_order
from umd_core.commands import Patch, PatchKind
from umd_core.device import FenceValue
from umd_core.encoding import decode
from umd_core.errors import UnsupportedError
from umd_core.kernels import BY_NAME
from umd_core.testing.harness import byte_of, record_launch
from umd_core.testing.launches import Plan, build, type_arguments
from umd_sim.device import SimDevice

DESC = umd.TensorDesc("f32", (4,))


def test_submissions_are_taken_in_the_order_in_which_they_ran(tmp_path: Path) -> None:
    """The first waits for a signal of the host; the second, on another queue, runs before it."""
    device = capturing(tmp_path)
    double = device.load(umd.translate("Add", [DESC, DESC]))
    x, y, z = bound(device, np.arange(4, dtype=np.float32), np.zeros(4, np.float32), np.zeros(4, np.float32))
    fence = device.fence()
    device.submit(double, [y, y, z], waits=[FenceValue(fence, 1)])
    device.submit(double, [x, x, y], queue=1)
    fence.signal(1)
    np.testing.assert_array_equal(np.frombuffer(device.read(z.buffer, 0, 16), np.float32), [0, 4, 8, 12])
    device.close()
    run = open_capture(tmp_path)
    report = compare(run, SimDevice(), SimDevice())
    assert (report.ok, report.submissions) == (True, 2)
    (found,) = compare(run, SimDevice(), Faulty(0, negate)).differences
    assert (found.submission, found.element[-1], found.values) == (1, 1, (2.0, -2.0))
    (found,) = compare(run, SimDevice(), Faulty(1, negate)).differences
    assert (found.submission, found.element[-1], found.values) == (0, 1, (4.0, -4.0))


def test_a_buffer_that_the_host_uses_under_waiting_work_is_refused() -> None:
    submit = Submit("0" * 64, ((0, 0, 8),), (), ((0, 1),), (), 0)
    events: list[tuple[int, Event]] = [(-1, NewFence()), (-1, Allocate(8)), (0, submit), (-1, Read(0, 0, 8, ""))]
    with pytest.raises(UnsupportedError, match="submission 0 waits"):
        list(in_order(events))
    assert list(in_order(events[:3])) == [(-1, Allocate(8))]


def test_patched_parameters_are_those_of_the_submission(tmp_path: Path) -> None:
    """The same program twice, with other values: the second is judged by its own."""
    row = BY_NAME["normalize_kernel"]
    launch = build(np.random.default_rng(2), row, type_arguments(row)[0], Plan())
    place = 32 + byte_of(launch.record, "epsilon")
    device = capturing(tmp_path)
    program = device.load(record_launch(launch, [Patch(0, place, PatchKind.BITS64, 0)]))
    bindings = bound(device, *launch.memories)
    for epsilon in (1e-5, 100.0):
        device.submit(program, bindings, [int.from_bytes(struct.pack("<d", epsilon), "little")]).wait()
    device.close()
    run = open_capture(tmp_path)
    report = compare(run, SimDevice(), SimDevice())
    assert (report.ok, report.submissions, report.equal) == (True, 2, 2)
    (found,) = compare(run, SimDevice(), Faulty(1, negate)).differences
    assert (found.submission, found.at_fault) == (1, ("faulty:0",))  # only the right epsilon acquits the first


@settings(max_examples=40)
@given(case=grown(), data=st.data())
def test_an_excerpt_is_a_valid_program_of_its_own(case: tuple[Grown, list[Array]], data: st.DataObject) -> None:
    command_buffer = umd.translate(case[0].graph)
    count = len(command_buffer.commands)
    first = data.draw(st.integers(0, count))
    last = data.draw(st.integers(first, count))
    part = excerpt(command_buffer, first, last, {})
    again = decode(bytes(part.command_buffer))
    assert len(again.commands) == last - first
    assert again.argument_count == len(part.slots) == len(set(part.slots))
    assert [slot.alias_group for slot in again.slots] == [command_buffer.slots[s].alias_group for s in part.slots]


def test_programs_that_were_let_go_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("umd_core.capture.comparison.PROGRAMS", 1)
    device = capturing(tmp_path)
    x = np.arange(32, dtype=np.float32).reshape(4, 8)
    for _ in range(2):
        for layers in (1, 2):
            device.run(network(layers)[0], [x])
    device.close()
    first, second = SimDevice(), SimDevice()
    report = compare(open_capture(tmp_path), first, second)
    assert (report.ok, report.submissions, report.equal) == (True, 4, 18)
    assert (first.used, second.used) == (0, 0)
