"""One submission on two devices, a few commands at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from umd_core.capture.excerpt import excerpt
from umd_core.capture.ranges import Ranges
from umd_core.capture.twins import Pair, Twins
from umd_core.commands import WRITE, Command, CommandBuffer, Dispatch, Ref, refs_of
from umd_core.device import Binding
from umd_core.device.cache import Bounded
from umd_core.errors import UmdError
from umd_core.ir import Array

PROGRAMS = 4096


class Place(NamedTuple):
    """A slot's bytes."""

    twins: Twins
    offset: int
    size: int


class Excerpts:
    """Programs of parts of programs, loaded on both devices; they hold no memory."""

    def __init__(self, devices: Pair) -> None:
        self.devices = devices
        self._loaded = Bounded(PROGRAMS)

    def find(
        self, digest: str, cb: CommandBuffer, first: int, last: int, blocks: Mapping[int, bytes]
    ) -> tuple[tuple[Any, Any], tuple[int, ...]]:
        """Returns commands [first, last) as a program of each device, and the slots that its arguments were."""
        patched = hashlib.sha256(b"".join(blocks[i] for i in sorted(blocks) if first <= i < last)).digest()
        key = (digest, first, last, patched)
        found: tuple[tuple[Any, Any], tuple[int, ...]] | None = self._loaded.find(key)
        if found is None:
            part = excerpt(cb, first, last, blocks)
            encoded = bytes(part.command_buffer)
            found = (self.devices[0].load(encoded), self.devices[1].load(encoded)), part.slots
            self._loaded.keep(key, found)
        return found


class Stage:
    """A submission: its commands, and where their slots lie.

    Attributes:
        digest: SHA-256 of the program.
        cb: the program.
        launches: programs that were run.
    """

    digest: str
    cb: CommandBuffer

    def __init__(
        self, excerpts: Excerpts, digest: str, cb: CommandBuffer, blocks: Mapping[int, bytes], places: Sequence[Place]
    ) -> None:
        self._excerpts, self.digest, self.cb = excerpts, digest, cb
        self._blocks, self._places = blocks, places
        self.launches: int = 0

    def parameters(self, index: int) -> bytes:
        """Returns the parameter block of a dispatch, patched."""
        command = self.cb.commands[index]
        own = command.parameters if isinstance(command, Dispatch) else b""
        return self._blocks.get(index, own)

    def does_something(self, index: int) -> bool:
        """Returns whether a command writes bytes."""
        command = self.cb.commands[index]
        if isinstance(command, Dispatch) and 0 in command.launch[:3]:
            return False
        return any(ref.access & WRITE and ref.length for ref in refs_of(command))

    def run(self, first: int, last: int) -> tuple[UmdError | None, UmdError | None]:
        """Runs commands [first, last) on both devices; returns what went wrong on each."""
        programs, slots = self._excerpts.find(self.digest, self.cb, first, last, self._blocks)
        self.launches += 1
        return self._submit(0, programs[0], slots), self._submit(1, programs[1], slots)

    def _submit(self, which: int, program: Any, slots: Iterable[int]) -> UmdError | None:
        bindings = [
            Binding(place.twins.buffers[which], place.offset, place.size)
            for place in (self._places[slot] for slot in slots)
        ]
        try:
            self._excerpts.devices[which].submit(program, bindings).wait()
        except UmdError as error:
            return error
        return None

    def held(self, ref: Ref) -> Array:
        """Returns what a range should hold, as a view: (length,) uint8."""
        place = self._places[ref.slot]
        return place.twins.host[place.offset + ref.offset :][: ref.length]

    def read(self, which: int, ref: Ref) -> Array:
        """Returns what a range holds on a device, (length,) uint8."""
        place = self._places[ref.slot]
        return place.twins.read(which, place.offset + ref.offset, ref.length)

    def settle(self, ref: Ref, data: Array, others: Array) -> None:
        """Takes what the first device wrote as right, and gives it to the second where that has something else."""
        self.held(ref)[...] = data
        if not np.array_equal(data, others):
            self._restore(1, ref)

    def undo(self, refs: Iterable[Ref]) -> None:
        """Gives both devices the bytes back that they should hold."""
        for ref in refs:
            for which in (0, 1):
                self._restore(which, ref)

    def _restore(self, which: int, ref: Ref) -> None:
        place = self._places[ref.slot]
        place.twins.restore(which, place.offset + ref.offset, ref.length)

    def strays(self, slots: Iterable[int], most: int) -> tuple[int, int, int] | None:
        """Returns (device, slot, byte of its buffer) where a device holds what nothing should have written.

        Only buffers of up to `most` bytes are looked at.
        """
        for slot in slots:
            twins = self._places[slot].twins
            if twins.host.size <= most:
                for which in (0, 1):
                    at = twins.stray(which)
                    if at >= 0:
                        return which, slot, at
        return None

    def accept(self, slots: Iterable[int]) -> None:
        """Gives both devices all bytes of these slots' buffers as they should be."""
        for slot in slots:
            twins = self._places[slot].twins
            for which in (0, 1):
                twins.restore(which, 0, twins.host.size)

    def written(self, first: int, last: int) -> list[Ref]:
        """Returns what commands [first, last) write, as disjoint ranges."""
        ranges: dict[int, Ranges] = {}
        for command in self.cb.commands[first:last]:
            for ref in written_refs(command):
                ranges.setdefault(ref.slot, Ranges()).add(ref.offset, ref.offset + ref.length)
        return [Ref(slot, WRITE, a, b - a) for slot, found in ranges.items() for a, b in found]


def written_refs(command: Command) -> list[Ref]:
    """Returns the ranges that a command writes."""
    return [ref for ref in refs_of(command) if ref.access & WRITE]
