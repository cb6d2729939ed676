"""Submissions that go on after `submit`: order between queues, tickets, fences, memory, faults, replay."""

from __future__ import annotations

import gc
import itertools
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cuda.cuda_samples import COUNT, SIZE, Sources, add, adding, gather, gathering, recorded
from tests.cuda.lazy_driver import LazyDriver
from umd_core import dtypes
from umd_core.commands import CommandBuffer, Event
from umd_core.device import Binding, Caps, CompositeDevice, FenceValue
from umd_core.device.control import Control
from umd_core.errors import (
    CancelledError,
    DeviceLostError,
    IndexRangeError,
    LimitError,
    OutOfMemoryError,
    PoisonedError,
)
from umd_core.kernels import BY_NAME
from umd_core.testing.checks import commands, failures, memory, submissions
from umd_core.testing.conformance import PATCHABLE, check_kernel, check_patches
from umd_core.testing.launches import type_arguments
from umd_core.testing.recording import Recording
from umd_cuda.device import CudaDevice
from umd_cuda.driver import DriverError
from umd_cuda.flights import MOST
from umd_cuda.host_driver import HostDriver
from umd_cuda.options import Options
from umd_cuda.recording import RecordingDriver

X = np.arange(COUNT, dtype=np.float32)
QUEUES = 5


def lazy(seed: int = 0, strict: bool = True, **options: Any) -> tuple[CudaDevice, LazyDriver]:
    """Returns a device whose work runs when it must."""
    driver = LazyDriver(RecordingDriver(), seed, strict)
    driver.inner.effects = {"elementwise_add_kernel": add, "gather_kernel": gather}
    return CudaDevice(driver, "cuda:0", Options(**options), Sources()), driver


def filled(device: CudaDevice, *arrays: np.ndarray[Any, Any]) -> list[Binding]:
    bindings = []
    for array in arrays:
        buffer = device.allocate(array.nbytes)
        device.write(buffer, 0, array)
        bindings.append(Binding(buffer, 0, array.nbytes))
    return bindings


def floats(device: CudaDevice, binding: Binding) -> list[float]:
    result: list[float] = np.frombuffer(device.read(*binding), np.float32).tolist()
    return result


def through_arena() -> CommandBuffer:
    """Returns a program that copies its first argument to the second by way of its arena."""
    recording = Recording()
    source, target = recording.argument(), recording.argument()
    arena = recording.arena()
    recording.copy((arena, 0, SIZE), (source, 0, SIZE))
    recording.copy((target, 0, SIZE), (arena, 0, SIZE))
    return recording.finish()


# tickets and fences


def test_submit_returns_before_the_work_is_done_and_ticket_and_fence_tell() -> None:
    device, driver = lazy()
    bindings = filled(device, X, X, np.zeros_like(X))
    end = device.fence()
    ticket = device.submit(device.load(bytes(adding())), bindings, signals=[FenceValue(end, 3)])
    assert (ticket.done(), end.value, driver.inner.launches) == (False, 0, [])
    ticket.wait()
    assert (ticket.done(), end.value, len(driver.inner.launches)) == (True, 3, 1)
    assert floats(device, bindings[2]) == (2 * X).tolist()


def test_a_fence_may_be_waited_for_and_a_wait_has_a_limit() -> None:
    device, _ = lazy()
    bindings = filled(device, X, X, X)
    end = device.fence()
    ticket = device.submit(device.load(bytes(adding())), bindings, signals=[FenceValue(end, 1)])
    with pytest.raises(CancelledError, match=r"not done in 0\.001 s"):
        ticket.wait(0.001)
    with pytest.raises(CancelledError):
        end.wait(1, 0.001)
    end.wait(1)
    assert ticket.done()
    with pytest.raises(CancelledError, match="nothing that was submitted"):
        end.wait(2)


def test_a_value_that_is_on_its_way_is_not_signalled_again() -> None:
    device, _ = lazy()
    bindings = filled(device, X, X, X)
    end = device.fence()
    program = device.load(bytes(adding()))
    device.submit(program, bindings, signals=[FenceValue(end, 2)])
    with pytest.raises(LimitError):
        device.submit(program, bindings, signals=[FenceValue(end, 2)])


def test_reading_waits_for_work_on_the_buffer_and_for_no_other() -> None:
    device, _ = lazy()
    program = device.load(bytes(adding()))
    first, second = filled(device, X, X, X), filled(device, X, 3 * X, X)
    device.settle()
    far = device.submit(program, first, queue=1)
    device.submit(device.load(bytes(adding(4))), second, queue=2)
    assert floats(device, second[2]) == (4 * X).tolist()
    assert not far.done()
    device.write(first[0].buffer, 0, 9 * X)
    assert far.done()
    assert floats(device, first[2]) == (2 * X).tolist()


def test_a_wait_for_work_under_way_is_an_event_and_not_a_stop() -> None:
    device, driver = lazy()
    a, b, c = filled(device, X, np.zeros_like(X), np.zeros_like(X))
    step = device.fence()
    program = device.load(bytes(adding()))
    device.submit(program, [a, a, b], signals=[FenceValue(step, 1)], queue=1)
    last = device.submit(device.load(bytes(adding(4))), [b, b, c], waits=[FenceValue(step, 1)], queue=2)
    assert not driver.inner.launches
    last.wait()
    assert (step.value, floats(device, c)) == (1, (4 * X).tolist())


def test_work_that_waits_for_the_host_starts_when_the_signal_comes() -> None:
    device, _ = lazy()
    a, b = filled(device, X, np.zeros_like(X))
    gate = device.fence()
    program = device.load(bytes(adding()))
    ticket = device.submit(program, [a, a, b], waits=[FenceValue(gate, 1)], queue=3)
    with pytest.raises(CancelledError, match="fence at 0 to reach 1"):
        ticket.wait()
    gate.signal(1)
    ticket.wait()
    assert floats(device, b) == (2 * X).tolist()


def test_what_waits_starts_even_when_it_may_while_other_work_is_handed_over() -> None:
    """Timed commands are waited for one by one; what else ends meanwhile lets others start afterwards."""
    device, _ = lazy()
    a, b, c, *others = filled(device, X, np.zeros_like(X), np.zeros_like(X), X, X, X)
    step, gate = device.fence(), device.fence()
    program, other = device.load(bytes(adding())), device.load(bytes(adding(4)))
    device.submit(program, [a, a, b], signals=[FenceValue(step, 1)], queue=1)
    ticket = device.submit(program, [b, b, c], waits=[FenceValue(gate, 1), FenceValue(step, 1)], queue=2)
    gate.signal(1)
    clock = itertools.count()
    device.submit_with(Control(clock=lambda: next(clock)), other, others, queue=3)
    ticket.wait()
    assert floats(device, c) == (4 * X).tolist()


def test_a_signal_in_the_middle_of_a_program_comes_after_its_command() -> None:
    device, driver = lazy()
    recording = Recording()
    places = [(recording.argument(), 0, SIZE) for _ in range(2)]
    recording.copy(places[1], places[0])
    recording.fill(places[0], b"\0")
    program = device.load(bytes(recording.finish(events=[Event(3, 0, 0)])))
    bindings = filled(device, X, np.zeros_like(X))
    half, end = device.fence(), device.fence()
    ticket = device.submit(program, bindings, signals=[FenceValue(half, 1), FenceValue(end, 1)])
    assert (half.value, end.value, ticket.done()) == (1, 0, False)
    assert "copy" in driver.inner.log
    ticket.wait()
    assert end.value == 1


def test_only_so_many_submissions_are_under_way() -> None:
    device, _ = lazy()
    bindings = filled(device, X, X, X)
    program = device.load(bytes(adding()))
    tickets = [device.submit(program, bindings) for _ in range(MOST + 3)]
    assert [ticket.done() for ticket in tickets].count(False) <= MOST
    device.settle()
    assert all(ticket.done() for ticket in tickets)


def test_a_composite_device_waits_for_what_it_has_handed_over() -> None:
    device, driver = lazy()
    both = CompositeDevice([device])
    assert "queues" not in both.caps().flags
    a = both.allocate(SIZE)
    both.write(a, 0, X)
    recording = Recording()
    recording.fill((recording.argument(), 0, SIZE), b"\1")
    both.submit(both.load(bytes(recording.finish())), [Binding(a, 0, SIZE)]).wait()
    assert bytes(driver.inner.read(a.memory, 0, SIZE)) == b"\1" * SIZE


# order


@given(data=st.data())
def test_queues_that_are_ordered_by_fences_give_what_one_queue_gives(data: st.DataObject) -> None:
    """Submissions to random queues, each after those that share its buffers; freed buffers, reads, writes between."""
    device, _ = lazy(data.draw(st.integers(0, 1 << 30), "seed"), data.draw(st.booleans(), "strict"))
    wanted = {i: X * (i + 1) for i in range(6)}
    bindings = dict(enumerate(filled(device, *wanted.values())))
    programs = [device.load(bytes(adding())), device.load(bytes(through_arena()))]
    users: dict[int, list[tuple[int, FenceValue]]] = {i: [] for i in wanted}
    for _ in range(data.draw(st.integers(1, 12), "steps")):
        action = data.draw(st.sampled_from(["add", "copy", "add", "copy", "replace", "read", "write"]), "action")
        a, b, c = (data.draw(st.integers(0, 5)) for _ in range(3))
        if action in ("add", "copy") and c not in (a, b):
            used = (a, b, c) if action == "add" else (a, c)
            queue, end = data.draw(st.integers(0, QUEUES), "queue"), FenceValue(device.fence(), 1)
            waits = [signal for i in used for other, signal in users[i] if other != queue]
            given = [bindings[i] for i in used]
            device.submit(programs[action == "copy"], given, waits=waits, signals=[end], queue=queue)
            for i in used:
                users[i].append((queue, end))
            wanted[c] = wanted[a] + wanted[b] if action == "add" else wanted[a]
        elif action == "replace":
            device.free(bindings[a].buffer)
            bindings[a] = Binding(device.allocate(SIZE), 0, SIZE)
            wanted[a], users[a] = np.zeros_like(X), []
        elif action == "read":
            assert floats(device, bindings[a]) == wanted[a].tolist()
        elif action == "write":
            device.write(bindings[a].buffer, 0, wanted[b])
            wanted[a] = wanted[b]
    for i, binding in bindings.items():
        assert floats(device, binding) == wanted[i].tolist()


def test_a_missing_wait_shows() -> None:
    """The stand-in does not order queues by chance: without the fence some seed gives another result."""
    seen = set()
    for seed in range(20):
        device, _ = lazy(seed)
        a, b, c = filled(device, X, np.zeros_like(X), np.zeros_like(X))
        device.settle()
        device.submit(device.load(bytes(adding())), [a, a, b], queue=1)
        device.submit(device.load(bytes(adding(4))), [b, b, c], queue=2)
        seen.add(tuple(floats(device, c)))
    assert seen == {tuple((4 * X).tolist()), (0.0,) * COUNT}


def test_runs_of_one_program_never_share_its_arena() -> None:
    for seed in range(20):
        device, _ = lazy(seed)
        program = device.load(bytes(through_arena()))
        pairs = [filled(device, X * (i + 1), np.zeros_like(X)) for i in range(4)]
        for queue, pair in enumerate(pairs):
            device.submit(program, pair, queue=queue)
        assert [floats(device, pair[1]) for pair in pairs] == [(X * (i + 1)).tolist() for i in range(4)]


def test_what_a_queue_is_told_to_wait_for() -> None:
    """Only other queues' events: the zeroing of memory, a fence on its way, the program's last run elsewhere."""
    device, driver = recorded()
    bindings = filled(device, X, X, X)
    program, other = device.load(bytes(adding())), device.load(bytes(adding(4)))
    driver.waits.clear()
    for queue in (1, 1, 2):
        device.submit(other if queue == 2 else program, bindings, queue=queue)
    assert driver.queues == [1, 1, 2]
    assert [(queue, event[0]) for queue, event in driver.waits] == [(1, 0), (2, 0)]
    assert driver.current == 0


@pytest.mark.parametrize(("options", "queues"), [({}, True), ({"queues": 1}, False), ({"sync": True}, False)])
def test_the_flag_says_whether_queues_overlap(options: dict[str, Any], queues: bool) -> None:
    device, driver = recorded(**options)
    assert ("queues" in device.caps().flags) is queues
    bindings = filled(device, X, X, X)
    for queue in range(20):
        device.submit(device.load(bytes(adding())), bindings, queue=queue << 32).wait()
    late, _ = lazy(**options)
    ticket = late.submit(late.load(bytes(adding())), filled(late, X, X, X))
    assert ticket._done is not queues
    assert len(set(driver.queues)) == (8 if queues else 1)


@pytest.mark.parametrize("queue", [1, 7, 3 << 32, (5 << 32) + 2])
def test_a_queue_always_runs_in_the_same_place(queue: int) -> None:
    device, driver = recorded()
    bindings = filled(device, X, X, X)
    for _ in range(2):
        for used in (queue, queue + 1):
            device.submit(device.load(bytes(adding())), bindings, queue=used).wait()
    assert driver.queues[:2] == driver.queues[2:]
    assert driver.queues[0] != driver.queues[1]


# memory


def test_memory_that_is_freed_is_not_used_again_before_its_work_is_done() -> None:
    device, _ = lazy()
    a, b, out = filled(device, X, 2 * X, np.zeros_like(X))
    device.settle()
    ticket = device.submit(device.load(bytes(adding())), [a, b, out], queue=1)
    freed = a.buffer.memory
    device.free(a.buffer)
    again = [device.allocate(SIZE) for _ in range(4)]
    assert freed not in [buffer.memory for buffer in again]
    ticket.wait()
    assert floats(device, out) == (3 * X).tolist()
    assert device.allocate(SIZE).memory is freed


def test_a_program_that_is_dropped_keeps_its_arena_until_its_work_is_done() -> None:
    device, _ = lazy()
    source, target = filled(device, X, np.zeros_like(X))
    program = device.load(bytes(through_arena()))
    device.settle()
    ticket = device.submit(program, [source, target], queue=1)
    del program
    device.trim()
    gc.collect(0)
    held = [device.allocate(SIZE) for _ in range(4)]
    ticket.wait()
    assert floats(device, target) == X.tolist()
    assert all(not any(device.read(buffer, 0, SIZE)) for buffer in held)


def test_no_room_waits_for_work_whose_memory_is_freed() -> None:
    driver = LazyDriver(RecordingDriver(capacity=8192), strict=True)
    driver.inner.effects = {"elementwise_add_kernel": add}
    driver.free = lambda memory: driver.inner.free(memory)  # type: ignore[method-assign]  # the capacity counts
    device = CudaDevice(driver, "cuda:0", Options(memory=1 << 20), Sources())
    a, b, out = (Binding(device.allocate(2048), 0, SIZE) for _ in range(3))
    device.submit(device.load(bytes(adding())), [a, b, out])
    device.free(a.buffer)
    device.free(b.buffer)
    assert device.allocate(4096).size == 4096
    with pytest.raises(OutOfMemoryError):
        device.allocate(4096)


# failures


@pytest.mark.parametrize("earlier", range(4))
def test_what_fails_by_its_data_has_failed_when_submit_returns(earlier: int) -> None:
    """Launch by launch, and as a replay: what comes after it on other queues learns of it."""
    device, _ = lazy()
    good, bad = np.array([0, 1, 2, 3, 4]), np.array([0, 1, 2, 3, COUNT])
    data, index, out, after = filled(device, X, good, X, X)
    program = device.load(bytes(gathering()))
    for _ in range(earlier):
        device.submit(program, [data, index, out], queue=1)
    device.write(index.buffer, 0, bad)
    ticket = device.submit(program, [data, index, out], queue=1)
    assert ticket.done()
    with pytest.raises(IndexRangeError):
        ticket.wait()
    with pytest.raises(PoisonedError):
        device.submit(device.load(bytes(adding())), [out, out, after], queue=2).wait()


def broken(driver: LazyDriver, reason: str) -> None:
    def fail(*_: Any) -> None:
        raise DriverError(reason, fatal=True)

    driver.inner.effects["elementwise_add_kernel"] = fail


@pytest.mark.parametrize("notice", ["wait", "fence", "read", "done", "submit", "allocate"])
def test_a_fault_ends_all_work_under_way_and_says_where_it_may_have_been(notice: str) -> None:
    device, driver = lazy(strict=notice != "done")
    bindings = filled(device, X, X, X)
    recording = Recording()
    recording.mark("layer 3")
    places = [(recording.argument(), 0, SIZE) for _ in range(2)]
    recording.copy(places[1], places[0])
    copying = device.load(bytes(recording.finish()))
    end = device.fence()
    broken(driver, "error 700")
    first = device.submit(device.load(bytes(adding())), bindings, signals=[FenceValue(end, 1)], queue=1)
    second = device.submit(copying, bindings[:2], queue=2, waits=[FenceValue(end, 1)])
    text = (
        r"error 700 \[in command 0 \(elementwise_add_kernel\), or in command 1 \(copy after mark 'layer 3'\); "
        r"open the device with \?sync=1 to see which\]"
    )

    def allocate() -> None:
        device.settle()
        device.allocate(1)

    looks: dict[str, Callable[[], object]] = {
        "wait": first.wait, "fence": lambda: end.wait(1), "read": lambda: device.read(*bindings[0]),
        "done": lambda: [first.done() for _ in range(100)], "submit": lambda: device.submit(copying, bindings[:2]),
        "allocate": allocate,
    }  # fmt: skip
    if notice in ("fence", "done"):
        looks[notice]()
    elif notice == "submit":
        looks[notice]()
        device.settle()
    else:
        with pytest.raises(DeviceLostError, match=text):
            looks[notice]()
    for ticket in (first, second):
        assert ticket.done()
        with pytest.raises(DeviceLostError, match="error 700"):
            ticket.wait()
    assert end.value == 1
    for use in (
        lambda: device.submit(copying, bindings[:2]), lambda: device.read(*bindings[0]), lambda: device.allocate(8),
        lambda: device.write(bindings[0].buffer, 0, X), lambda: device.load(bytes(adding(4))),
    ):  # fmt: skip
        with pytest.raises(DeviceLostError, match="error 700"):
            use()
    device.free(bindings[0].buffer)
    device.trim()
    device.close()


def test_a_fault_that_a_launch_tells_of_may_be_of_earlier_work() -> None:
    device, driver = recorded()
    bindings = filled(device, X, X, np.zeros_like(X))
    device.submit(device.load(bytes(through_arena())), bindings[:2], queue=1)
    driver.fault = DriverError("error 719", fatal=True)
    with pytest.raises(
        DeviceLostError, match=r"error 719 .*elementwise_add_kernel, command 0\], or \[in commands 0 \(copy"
    ):
        device.submit(device.load(bytes(adding())), bindings, queue=2).wait()


def test_closing_waits_for_work_under_way() -> None:
    device, driver = lazy()
    bindings = filled(device, X, X, X)
    ticket = device.submit(device.load(bytes(adding())), bindings, queue=1)
    device.close()
    assert ticket.done()
    ticket.wait()
    assert len(driver.inner.launches) == 1


# replay


def test_replays_hold_on_every_queue() -> None:
    for seed in range(10):
        device, _ = lazy(seed)
        a, out = filled(device, X, np.zeros_like(X))
        program = device.load(bytes(adding()))
        for round_, queue in enumerate((1, 2, 1, 0, 3, 2)):
            device.write(a.buffer, 0, X * round_)
            device.submit(program, [a, a, out], queue=queue)
            assert floats(device, out) == (2 * X * round_).tolist()


def test_values_in_buffers_change_without_another_capture() -> None:
    device, driver = recorded()
    bindings = filled(device, X, X, X)
    program = device.load(bytes(adding()))
    for step in range(6):
        device.write(bindings[1].buffer, 0, X * step)
        device.submit(program, bindings, queue=step % 3).wait()
        assert floats(device, bindings[2]) == (X + X * step).tolist()
    assert (driver.log.count("begin_capture"), driver.log.count("replay")) == (1, 4)


# the kit


class OneType(CudaDevice):
    """A device that runs each kernel with one combination of types, the usual one."""

    def caps(self) -> Caps:
        caps = super().caps()
        return replace(caps, kernels={name: frozenset((usual(name),)) for name in caps.kernels})


def usual(kernel: str) -> tuple[dtypes.DType, ...]:
    usual = (dtypes.float32, dtypes.int64)
    return min(type_arguments(BY_NAME[kernel]), key=lambda types: [t not in usual for t in types])


SOME = ("elementwise_add_kernel", "gather_kernel", "gemm_kernel", "reduce_sum_kernel", "softmax_kernel")
"""Kernels of unlike kinds; all of them run in test_cuda_conformance.py."""
CHECKS = {
    f"{kind.__name__.rpartition('.')[2]} {name}": check
    for kind in (commands, submissions, memory, failures)
    for name, check in kind.CHECKS.items()
}


@pytest.fixture(scope="module")
def processor() -> Iterator[CudaDevice]:
    """A device of real kernels that run late and side by side, and as a whole when they run again."""
    if not (shutil.which("g++") or shutil.which("clang++")):
        pytest.skip("no C++ compiler")
    device = OneType(LazyDriver(HostDriver(("-O1",)), 7), "cuda-cpu:0")
    yield device
    device.close()


@pytest.mark.parametrize("name", CHECKS)
def test_the_kit_s_checks(processor: CudaDevice, name: str) -> None:
    CHECKS[name](processor)


@pytest.mark.parametrize("at", range(failures.COUNT))
def test_the_kit_s_failures(processor: CudaDevice, at: int) -> None:
    failures.check_error_at(processor, at)


@pytest.mark.parametrize("kernel", SOME)
def test_the_kit_s_launches_direct_and_replayed(processor: CudaDevice, kernel: str) -> None:
    check_kernel(processor, BY_NAME[kernel])


@pytest.mark.parametrize("kernel", PATCHABLE)
def test_the_kit_s_launches_patched(processor: CudaDevice, kernel: str) -> None:
    check_patches(processor, BY_NAME[kernel])
