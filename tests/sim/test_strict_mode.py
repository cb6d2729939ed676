"""Strict mode finds what is wrong with a program or a kernel, and says where."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import umd_core as umd
from umd_core import dtypes
from umd_core.commands import CommandBuffer
from umd_core.errors import StaleHandleError
from umd_core.kernels import BY_NAME, KernelRecord
from umd_core.testing.recording import Recording
from umd_sim import lowerings
from umd_sim.lowerings.layout import Array, Executable, Launch, View
from umd_sim.shadow import StrictError
from umd_sim.strict import StrictDevice

COUNT, SIZE = 6, 24


@pytest.fixture
def device() -> StrictDevice:
    opened = umd.open_device("sim:0?strict=1&seed=5")
    assert isinstance(opened, StrictDevice)
    return opened


def add() -> tuple[KernelRecord, bytes]:
    """Returns out = a + b over six float32."""
    record = BY_NAME["elementwise_add_kernel"].record((dtypes.float32,), (1,))
    fields = {
        f"{name}_{part}": value for name in ("a", "b", "out") for part, value in (("offset", 0), ("strides", (1,)))
    }
    return record, record.pack(extents=(COUNT,), **fields)


def tensors(device: Any, count: int) -> list[Any]:
    return [device.tensor(np.arange(COUNT, dtype=np.float32) + i) for i in range(count)]


def chain() -> CommandBuffer:
    """Returns t = a + a in the arena, then out = t + a."""
    recording = Recording()
    a, out, arena = recording.argument(), recording.argument(), recording.arena()
    recording.dispatch(*add(), [(a, 0, SIZE), (a, 0, SIZE), (arena, 0, SIZE)])
    recording.dispatch(*add(), [(arena, 0, SIZE), (a, 0, SIZE), (out, 0, SIZE)])
    return recording.finish()


def found(device: StrictDevice, program: CommandBuffer, arguments: Sequence[Any]) -> dict[str, Any]:
    """Returns the facts of what strict mode finds."""
    ticket = device.submit(device.load(program), [t.binding for t in arguments])
    with pytest.raises(StrictError) as caught:
        ticket.wait()
    return caught.value.facts() | {"message": str(caught.value)}


def test_a_correct_program_runs(device: StrictDevice) -> None:
    a, out = tensors(device, 2)
    for _ in range(5):
        device.submit(device.load(chain()), [a.binding, out.binding]).wait()
    np.testing.assert_array_equal(out.numpy(), 3 * np.arange(COUNT))


def test_a_missing_dependency_is_reported_by_command_pair(device: StrictDevice) -> None:
    program = chain()
    assert program.commands[1].deps == (0,)
    program.commands[1] = program.commands[1]._replace(deps=())
    with pytest.raises(StrictError) as caught:
        device.load(program)
    assert caught.value.facts()["finding"] == "missing dependency"
    assert caught.value.facts()["pairs"] == [(0, 1)]
    assert str(caught.value).count("elementwise_add_kernel") == 2


def test_independent_commands_run_in_other_orders() -> None:
    recording = Recording()
    slots = [recording.argument() for _ in range(6)]
    for slot in slots:
        recording.fill((slot, 0, 8), b"\1")
    program = recording.finish()
    orders = set()
    for seed in (1, 2, 2):
        device = umd.open_device(f"sim:0?strict=1&seed={seed}")
        loaded = device.load(program)
        orders.add(tuple(tuple(device.order(loaded)) for _ in range(3)))  # type: ignore[attr-defined]  # the strict device's own
    assert len(orders) == 2
    assert len({order for three in orders for order in three}) > 3


def test_reading_what_nothing_wrote(device: StrictDevice) -> None:
    recording = Recording()
    a, out, arena = recording.argument(), recording.argument(), recording.arena()
    recording.fill((arena, 0, 12), b"\0")
    recording.dispatch(*add(), [(a, 0, SIZE), (arena, 0, SIZE), (out, 0, SIZE)])
    facts = found(device, recording.finish(), tensors(device, 2))
    assert (facts["finding"], facts["operand"], facts["element"], facts["command"]) == (
        "uninitialised read",
        "b",
        [3],
        1,
    )
    assert "elementwise_add_kernel" in facts["message"]


def test_the_arena_forgets_between_submissions(device: StrictDevice) -> None:
    recording = Recording()
    flag, out, arena = recording.argument(), recording.argument(), recording.arena()
    recording.dispatch(*add(), [(flag, 0, SIZE), (flag, 0, SIZE), (arena, SIZE, SIZE)])
    recording.copy((out, 0, SIZE), (arena, SIZE, SIZE))
    program, arguments = device.load(recording.finish()), tensors(device, 2)
    bindings = [t.binding for t in arguments]
    device.submit(program, bindings).wait()
    assert program.arena is not None
    guarded = program.arena.memory
    assert guarded.written[SIZE : 2 * SIZE].all()
    guarded.memory[:SIZE], guarded.written[:SIZE] = 0, True
    device.submit(program, bindings).wait()
    assert not guarded.written[:SIZE].any()
    assert np.isnan(guarded.memory[:SIZE].view(np.float32)).all()


def test_fresh_memory_is_poisoned_and_host_memory_is_left_alone(device: StrictDevice) -> None:
    buffer = device.allocate(64)
    for dtype in dtypes.FLOATS:
        assert np.isnan(buffer.memory.memory.view(dtype.numpy).astype(np.float64)).all()
    array = np.ones(8, np.float32)
    wrapped = device.wrap(array)
    device.free(wrapped)
    assert (array == 1).all()
    guarded = buffer.memory
    device.write(buffer, 0, bytes(64))
    device.free(buffer)
    assert np.isnan(guarded.memory.view(np.float32)).all()
    with pytest.raises(StaleHandleError):
        device.read(buffer, 0, 1)


def test_an_output_that_is_left_unwritten(device: StrictDevice) -> None:
    recording = Recording()
    a, out = recording.argument(), recording.argument()
    recording.copy((out, 0, 20), (a, 0, 20))
    recording.fill((out, 23, 1), b"\0")
    program = recording.finish()
    program.inputs, program.outputs = [umd.TensorDesc("f32", (COUNT,))], [umd.TensorDesc("f32", (COUNT,))]
    x = np.ones(COUNT, np.float32)
    with pytest.raises(StrictError) as caught:
        device.run(program, [x])
    facts = caught.value.facts()
    assert (facts["finding"], facts["output"], facts["element"]) == ("unwritten output", 0, [5])


Planted = Callable[[Sequence[Array]], None]


def outside(arrays: Sequence[Array]) -> None:
    np.add(arrays[0], arrays[1], out=arrays[2][:COUNT])
    arrays[2][COUNT + 1] = 5.0


def incomplete(arrays: Sequence[Array]) -> None:
    np.add(arrays[0][:4], arrays[1][:4], out=arrays[2][:4])


def writes_an_input(arrays: Sequence[Array]) -> None:
    np.add(arrays[0], arrays[1], out=arrays[0])


def correct(arrays: Sequence[Array]) -> None:
    np.add(arrays[0], arrays[1], out=arrays[2][:COUNT])


def planted(bug: Planted, record: KernelRecord, parameters: bytes) -> Executable:
    launch = Launch(record, parameters)
    wide = View(2, np.dtype(np.float32), (COUNT + 2,), (4,), 0)
    views = (launch.view("a"), launch.view("b"), wide)
    return Executable(views, lambda parameters, arrays, scratch: functools.partial(bug, arrays))


@pytest.mark.parametrize(
    ("bug", "finding"),
    [(outside, "out-of-bounds write"), (incomplete, "unwritten result"), (writes_an_input, None), (correct, "")],
)
def test_faults_of_a_kernel(
    device: StrictDevice, monkeypatch: pytest.MonkeyPatch, bug: Planted, finding: str | None
) -> None:
    monkeypatch.setitem(lowerings.LOWERINGS, "elementwise_add_kernel", functools.partial(planted, bug))
    recording = Recording()
    a, out, arena = recording.argument(), recording.argument(), recording.arena()
    recording.dispatch(*add(), [(a, 0, SIZE), (a, 0, SIZE), (arena, 0, SIZE)])
    recording.copy((out, 0, SIZE), (arena, 0, SIZE))
    recording.fill((arena, SIZE, 16), b"\0")
    program = recording.finish()
    arguments = tensors(device, 2)
    if finding == "":
        device.submit(device.load(program), [t.binding for t in arguments]).wait()
        return
    if finding is None:
        ticket = device.submit(device.load(program), [t.binding for t in arguments])
        with pytest.raises(umd.UmdError, match="read-only"):
            ticket.wait()
        return
    facts = found(device, program, arguments)
    assert (facts["finding"], facts["operand"], facts["kernel"]) == (finding, "out", "elementwise_add_kernel")
    if finding == "unwritten result":
        assert facts["element"] == [4]
    else:
        assert facts["offset"] // 4 == COUNT + 1
