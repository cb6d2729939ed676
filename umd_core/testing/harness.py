"""Runs launches and command buffers on a device with red zones around every buffer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from umd_core.commands import CommandBuffer, Patch, PatchKind
from umd_core.device import Binding, Buffer, Device
from umd_core.errors import IndexRangeError
from umd_core.ir import Array
from umd_core.kernels import KernelRecord, KernelRow
from umd_core.testing.compare import difference
from umd_core.testing.launches import Launch
from umd_core.testing.recording import Recording
from umd_core.testing.reference import reference

RED, RED_BYTES = 0xA5, 256


class Arguments:
    """Buffers of a device with known contents, each between two red zones.

    Args:
        device: where they live.
        contents: (size,) uint8 per argument.
    """

    def __init__(self, device: Device, contents: Sequence[Array]) -> None:
        self._device = device
        self._before = [data.copy() for data in contents]
        self.buffers: list[Buffer] = [device.allocate(data.size + 2 * RED_BYTES) for data in contents]
        self.bindings: list[Binding] = [
            Binding(buffer, RED_BYTES, data.size) for buffer, data in zip(self.buffers, contents, strict=True)
        ]
        self.reset()

    def reset(self) -> None:
        """Writes the first contents and the red zones again."""
        red = np.full(RED_BYTES, RED, np.uint8)
        for buffer, data in zip(self.buffers, self._before, strict=True):
            self._device.write(buffer, 0, np.concatenate([red, data, red]))

    def read(self) -> list[Array]:
        """Returns the contents, (size,) uint8 each.

        Raises:
            AssertionError: a red zone changed.
        """
        result = []
        for index, (buffer, data) in enumerate(zip(self.buffers, self._before, strict=True)):
            whole = np.frombuffer(self._device.read(buffer, 0, buffer.size), np.uint8).copy()
            zones = np.concatenate([whole[:RED_BYTES], whole[RED_BYTES + data.size :]])
            if (zones != RED).any():
                at = int(np.argmax(zones != RED))
                where = at - RED_BYTES if at < RED_BYTES else data.size + at - RED_BYTES
                raise AssertionError(f"argument {index}: byte {where} was written, outside its binding")
            result.append(whole[RED_BYTES : RED_BYTES + data.size])
        return result

    def free(self) -> None:
        """Frees the buffers."""
        for buffer in self.buffers:
            self._device.free(buffer)


def record_launch(launch: Launch, patches: Sequence[Patch] = ()) -> CommandBuffer:
    """Returns a command buffer with one launch; each memory is an argument."""
    recording = Recording()
    for _ in launch.memories:
        recording.argument()
    places = [(piece.memory, piece.offset, piece.length) for piece in launch.pieces]
    recording.dispatch(launch.record, launch.parameters, places)
    return recording.finish(patches=patches)


@dataclass(frozen=True, slots=True)
class Way:
    """How a launch reaches the device: `submit` runs it once more over fresh contents."""

    name: str
    submit: Callable[[Device, Any, Arguments], None]


def _direct(device: Device, program: Any, arguments: Arguments) -> None:
    device.submit(program, arguments.bindings).wait()


def _replayed(device: Device, program: Any, arguments: Arguments) -> None:
    for _ in range(2):
        arguments.reset()
        device.submit(program, arguments.bindings).wait()


DIRECT, REPLAYED = Way("direct", _direct), Way("replayed", _replayed)


def check_launch(device: Device, launch: Launch, ways: Sequence[Way] = (DIRECT, REPLAYED)) -> None:
    """Runs a launch in several ways and compares it with the reference.

    Raises:
        AssertionError: a result is wrong, or bytes were written that the kernel does not own.
    """
    program = device.load(bytes(record_launch(launch)))
    arguments = Arguments(device, launch.memories)
    try:
        for way in ways:
            arguments.reset()
            way.submit(device, program, arguments)
            check_results(launch, arguments.read(), f"{launch.record.row.name} {launch.note}, {way.name}")
    finally:
        arguments.free()


def check_patched(device: Device, plain: Launch, wanted: Launch) -> None:
    """Submits `plain` with its patchable fields set to those of `wanted` by patches, and compares with the reference.

    Raises:
        AssertionError: a result is wrong.
    """
    record = wanted.record
    patches: list[Patch] = []
    words: list[int] = []
    for item in record.row.fields:
        if item.patchable:
            position = byte_of(record, item.name)
            patches.append(Patch(0, 32 + position, PatchKind.BITS64, len(words)))
            words.append(int.from_bytes(wanted.parameters[position : position + 8], "little"))
    program = device.load(bytes(record_launch(plain, patches)))
    arguments = Arguments(device, wanted.memories)
    try:
        for _ in range(2):
            arguments.reset()
            device.submit(program, arguments.bindings, words).wait()
            check_results(wanted, arguments.read(), f"{record.row.name} patched {wanted.note}")
    finally:
        arguments.free()


def byte_of(record: KernelRecord, name: str) -> int:
    """Returns the byte of the parameter block at which a parameter begins."""
    first, _ = record.index_of[name]
    fields: Any = record.columns.fields
    return int(fields[f"c{first}"][1])


def check_results(launch: Launch, after: Sequence[Array], what: str) -> None:
    """Compares memory after a launch with the reference.

    Raises:
        AssertionError: an element is wrong, or a byte changed that belongs to no written element.
    """
    row: KernelRow = launch.record.row
    expected = reference(launch.case())
    untouched = [np.ones(memory.size, np.bool_) for memory in launch.memories]
    for index, box in enumerate(launch.record.boxes):
        if not box.operand.writes:
            continue
        got = launch.box(index, after)
        wrong = difference(got, expected[box.operand.name], box.dtype, row.tolerance)
        if wrong:
            raise AssertionError(f"{what}: {box.operand.name}: {wrong}")
        _mark_written(launch, index, untouched)
    for number, (mask, before, now) in enumerate(zip(untouched, launch.memories, after, strict=True)):
        changed = mask & (before != now)
        if changed.any():
            raise AssertionError(f"{what}: byte {int(np.argmax(changed))} of memory {number} is no output, but changed")


def _mark_written(launch: Launch, index: int, untouched: Sequence[Array]) -> None:
    """Clears the bytes of an operand's elements."""
    piece, view = launch.pieces[index], launch.record.views(launch.parameters)[index]
    size = view.dtype.size
    mask = untouched[piece.memory]
    bytes_of = np.ndarray((*view.shape, size), np.bool_, mask, piece.offset + view.offset, (*view.strides, 1))
    bytes_of[...] = False


def fails_with_index_error(launch: Launch) -> bool:
    """Returns whether the reference finds an index out of range."""
    try:
        reference(launch.case())
    except IndexRangeError:
        return True
    return False
