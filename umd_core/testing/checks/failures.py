"""Errors while a program runs: where they are reported, what they spoil, and what goes on."""

from __future__ import annotations

import numpy as np

from umd_core import dtypes
from umd_core.commands import CommandBuffer
from umd_core.device import Binding, Device, FenceValue
from umd_core.errors import IndexRangeError, PoisonedError, UmdError
from umd_core.kernels import BY_NAME, KernelRecord
from umd_core.testing.checks.tools import Check, bytes_in, copying, filled, free, raises, same
from umd_core.testing.recording import Recording

COUNT, ROWS = 4, 5
_ROW_BYTES = 4 * ROWS


def _gather() -> tuple[KernelRecord, bytes]:
    record = BY_NAME["gather_kernel"].record((dtypes.float32, dtypes.int64), (1,))
    parameters = record.pack(
        extents=(ROWS,), axis=ROWS,
        data_offset=0, data_strides=(0, 1), index_offset=0, index_strides=(1,), out_offset=0, out_strides=(1,),
    )  # fmt: skip
    return record, parameters


def _gathers() -> CommandBuffer:
    """Returns a program of COUNT gathers: argument 0 the data, 1 all indices, then an output each."""
    recording = Recording()
    record, parameters = _gather()
    data, index = recording.argument(), recording.argument()
    outputs = [recording.argument() for _ in range(COUNT)]
    for number, out in enumerate(outputs):
        recording.mark(f"gather {number}")
        places = [(data, 0, _ROW_BYTES), (index, 8 * ROWS * number, 8 * ROWS), (out, 0, _ROW_BYTES)]
        recording.dispatch(record, parameters, places)
    return recording.finish()


def _supported(device: Device) -> bool:
    return device.caps().supports("gather_kernel", (dtypes.float32, dtypes.int64))


def check_error_at(device: Device, at: int) -> None:
    """Gives the gather number `at` an index out of range."""
    if not _supported(device):
        return
    program = device.load(bytes(_gathers()))
    x = np.arange(ROWS, dtype=np.float32)
    index = np.tile(np.arange(ROWS, dtype=np.int64)[::-1], (COUNT, 1))
    bad = index.copy()
    bad[at, 2] = ROWS
    bindings = filled(device, x, bad, *[np.zeros(ROWS, np.float32)] * COUNT)
    end = device.fence()
    ticket = device.submit(program, bindings, signals=[FenceValue(end, 1)])
    with raises(IndexRangeError) as caught:
        ticket.wait(10)
    error = caught.error
    facts = (error.kernel, error.command, error.value, error.extent)
    same(facts, ("gather_kernel", 2 * at + 1, ROWS, ROWS), "facts")
    same(error.mark, f"gather {at}", "last mark")
    same(end.value, 1, "fence after the failure")
    _check_outputs(device, bindings[2:], at, x)
    device.write(bindings[1].buffer, 0, index)
    device.submit(program, bindings).wait(10)
    for number, binding in enumerate(bindings[2:]):
        same(bytes_in(device, binding.buffer), x[::-1].copy().view(np.uint8), f"output {number} after a good run")
    free(device, bindings)


def _check_outputs(
    device: Device, outputs: list[Binding], at: int, x: np.ndarray[tuple[int], np.dtype[np.float32]]
) -> None:
    for number, binding in enumerate(outputs):
        if number == at:
            with raises(PoisonedError) as caught:
                device.read(binding.buffer, 0, _ROW_BYTES)
            same(caught.error.root_status, int(IndexRangeError.status), "root cause")
        else:
            same(bytes_in(device, binding.buffer), x[::-1].copy().view(np.uint8), f"output {number}")


def _poisoned(device: Device) -> Binding:
    """Returns a buffer whose bytes failed work should have written."""
    program = device.load(bytes(_gathers()))
    x = np.arange(ROWS, dtype=np.float32)
    bad = np.full((COUNT, ROWS), -ROWS - 1, np.int64)
    bindings = filled(device, x, bad, *[np.zeros(ROWS, np.float32)] * COUNT)
    with raises(IndexRangeError):
        device.submit(program, bindings).wait(10)
    free(device, [*bindings[:2], *bindings[3:]])
    return bindings[2]


def dependents_fail(device: Device) -> None:
    """Work that reads poison fails with the root cause and poisons its own results."""
    if not _supported(device):
        return
    spoilt = _poisoned(device)
    (target,) = filled(device, bytes(_ROW_BYTES))
    program = device.load(bytes(copying(_ROW_BYTES).finish()))
    for source, sink in ((spoilt, target), (target, spoilt)):
        with raises(PoisonedError) as caught:
            device.submit(program, [source, sink]).wait(10)
        same(caught.error.root_status, int(IndexRangeError.status), "root cause")
        with raises(PoisonedError):
            device.read(sink.buffer, 0, 1)
    free(device, [spoilt, target])


def rewriting_heals(device: Device) -> None:
    """A range that is written again in full is good; the part that is not stays bad."""
    if not _supported(device):
        return
    spoilt = _poisoned(device)
    (source,) = filled(device, bytes(range(_ROW_BYTES)))
    device.write(spoilt.buffer, 0, b"abcd")
    same(bytes(device.read(spoilt.buffer, 0, 4)), b"abcd", "rewritten part")
    with raises(PoisonedError):
        device.read(spoilt.buffer, 0, 5)
    program = device.load(bytes(copying(_ROW_BYTES).finish()))
    device.submit(program, [source, spoilt]).wait(10)
    same(bytes_in(device, spoilt.buffer), bytes_in(device, source.buffer), "after a copy over it")
    free(device, [spoilt, source])


def freeing_forgets(device: Device) -> None:
    """Poison ends with its buffer."""
    if not _supported(device):
        return
    device.free(_poisoned(device).buffer)
    bindings = filled(device, bytes(range(16)), bytes(16))
    device.submit(device.load(bytes(copying().finish())), bindings).wait(10)
    same(bytes_in(device, bindings[1].buffer), bytes_in(device, bindings[0].buffer), "copy")
    free(device, bindings)


def inside_one_program(device: Device) -> None:
    """A command that reads what a failed one of the same program wrote is not run; the rest is."""
    if not _supported(device):
        return
    recording = Recording()
    data, index, out, clean = (recording.argument() for _ in range(4))
    arena = recording.arena()
    record, parameters = _gather()
    recording.dispatch(record, parameters, [(data, 0, _ROW_BYTES), (index, 0, 8 * ROWS), (arena, 0, _ROW_BYTES)])
    recording.copy((out, 0, _ROW_BYTES), (arena, 0, _ROW_BYTES))
    recording.copy((clean, 0, _ROW_BYTES), (data, 0, _ROW_BYTES))
    program = device.load(bytes(recording.finish()))
    x = np.arange(ROWS, dtype=np.float32)
    good = np.arange(ROWS, dtype=np.int64)
    bindings = filled(device, x, good + 1, np.zeros(ROWS, np.float32), np.zeros(ROWS, np.float32))
    with raises(UmdError) as caught:
        device.submit(program, bindings).wait(10)
    same(type(caught.error), IndexRangeError, "first error")
    with raises(PoisonedError):
        device.read(bindings[2].buffer, 0, 1)
    same(bytes_in(device, bindings[3].buffer), x.view(np.uint8), "independent command")
    device.write(bindings[1].buffer, 0, good)
    device.submit(program, bindings).wait(10)
    same(bytes_in(device, bindings[2].buffer), x.view(np.uint8), "the same program, once its input is good")
    free(device, bindings)


def strided_outputs_heal(device: Device) -> None:
    """An output with gaps is good again once the same elements are written again."""
    if not _supported(device):
        return
    record, _ = _gather()
    parameters = record.pack(
        extents=(ROWS,), axis=ROWS,
        data_offset=0, data_strides=(0, 1), index_offset=0, index_strides=(1,), out_offset=0, out_strides=(3,),
    )  # fmt: skip
    recording = Recording()
    data, index, out = (recording.argument() for _ in range(3))
    size = 4 * (3 * (ROWS - 1) + 1)
    recording.dispatch(record, parameters, [(data, 0, _ROW_BYTES), (index, 0, 8 * ROWS), (out, 0, size)])
    program = device.load(bytes(recording.finish()))
    x, good = np.arange(ROWS, dtype=np.float32), np.arange(ROWS, dtype=np.int64)
    bindings = filled(device, x, good + 1, np.zeros(size // 4, np.float32))
    with raises(IndexRangeError):
        device.submit(program, bindings).wait(10)
    with raises(PoisonedError):
        device.read(bindings[2].buffer, 0, size)
    device.write(bindings[2].buffer, 0, bytes(4))
    device.write(bindings[1].buffer, 0, good)
    device.submit(program, bindings).wait(10)
    same(bytes_in(device, bindings[2].buffer).view(np.float32)[::3].tolist(), x.tolist(), "the same elements again")
    free(device, bindings)


CHECKS: dict[str, Check] = {
    check.__name__: check
    for check in (dependents_fail, rewriting_heals, freeing_forgets, inside_one_program, strided_outputs_heal)
}
