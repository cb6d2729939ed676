"""Runs a capture on two devices, command by command, and names the commands that are wrong on one of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from umd_core.capture.events import Allocate, Event, Free, Read, Submit, Write
from umd_core.capture.reader import Capture
from umd_core.capture.report import ComparisonReport, Difference
from umd_core.capture.schedule import in_order
from umd_core.capture.stage import Excerpts, Place, Stage
from umd_core.capture.steps import Steps
from umd_core.capture.twins import Twins
from umd_core.commands import CommandBuffer, SlotKind
from umd_core.device import Device
from umd_core.device.bindings import BindingRules
from umd_core.device.protocol import Binding
from umd_core.encoding import PatchPlan, decode
from umd_core.errors import CaptureError, UnsupportedError

STRATEGIES = ("steps", "bisect")
PROGRAMS = 64
"""Programs whose arena and constants stay on the devices."""


def compare(
    capture: Capture,
    first: Device,
    second: Device,
    *,
    most: int = 1,
    strategy: str = STRATEGIES[0],
    any_nonfinite: bool = False,
) -> ComparisonReport:
    """Returns where two devices disagree.

    Args:
        capture: the run.
        first: the device that is trusted: each command of the second starts from its bytes.
        second: another device.
        most: differences after which the comparison ends.
        strategy: "steps" looks at every command; "bisect" looks into stretches only where they differ.
        any_nonfinite: whether NaN and infinities are fine where both devices have them; otherwise a command that
            brings the first of them is wrong, on whichever device.

    Raises:
        CaptureError: a file of the capture is damaged, or a submission does not fit its program.
        UnsupportedError: a device lacks a kernel, or the run cannot be taken apart.
        UmdError: a device has not room enough.
    """
    found = _Comparison(capture, first, second, strategy, any_nonfinite=any_nonfinite)
    try:
        found.report.differences += itertools.islice(found.run(), most)
    finally:
        found.close()
    return found.report


class _Comparison:
    """One comparison: the capture's buffers on both devices."""

    def __init__(self, capture: Capture, first: Device, second: Device, strategy: str, *, any_nonfinite: bool) -> None:
        self._capture, self._devices = capture, (first, second)
        self._bisect, self._any_nonfinite = strategy == "bisect", any_nonfinite
        self._buffers: dict[int, Twins] = {}
        self._made = self._extra = 0
        self._programs: dict[str, tuple[CommandBuffer, list[Place | None]]] = {}
        self._excerpts = Excerpts(self._devices)
        names = (first.name, second.name)
        if first.name == second.name:
            names = (f"{first.name} (1st)", f"{second.name} (2nd)")
        self.report = ComparisonReport(names, capture.complete)

    def run(self) -> Iterator[Difference]:
        """Yields the differences."""
        for number, event in in_order(self._capture.events):
            if isinstance(event, Submit):
                yield from self._submission(number, event)
            else:
                _STEPS[type(event)](self, event)

    def close(self) -> None:
        """Frees everything."""
        for twins in self._buffers.values():
            twins.free()
        for digest in tuple(self._programs):
            self._forget(digest)

    def allocate(self, event: Allocate) -> None:
        self._buffers[self._made] = Twins(self._devices, event.size)
        self._made += 1

    def free(self, event: Free) -> None:
        self._buffers.pop(event.buffer).free()

    def write(self, event: Write) -> None:
        self._buffers[event.buffer].write(event.offset, self._capture.data(event.data, event.size))

    def read(self, event: Read) -> None:
        """Does nothing: every result has been looked at."""

    def _submission(self, number: int, event: Submit) -> Iterator[Difference]:
        cb, own = self._program(event.program)
        arguments = iter([Place(self._buffers[buffer], offset, size) for buffer, offset, size in event.bindings])
        self._check(number, event, cb)
        places = [next(arguments) if place is None else place for place in own]
        stage = Stage(self._excerpts, event.program, cb, PatchPlan(cb).apply(event.values), places)
        steps = Steps(stage, number, self.report, any_nonfinite=self._any_nonfinite)
        self.report.submissions += 1
        look = steps.by_halves if self._bisect else steps.one_by_one
        try:
            yield from look(0, len(cb.commands))
            yield from steps.strays()
        finally:
            self.report.launches += stage.launches

    def _check(self, number: int, event: Submit, cb: CommandBuffer) -> None:
        """Checks the bindings of a submission by the rules that a device has.

        Raises:
            UmdError: they do not fit the program.
        """
        if len(event.bindings) != cb.argument_count:
            detail = f"submission {number} has {len(event.bindings)} bindings, its program takes {cb.argument_count}"
            raise CaptureError(str(self._capture.path), "bindings", detail)
        bindings = [Binding(self._buffers[buffer].buffers[0], offset, size) for buffer, offset, size in event.bindings]
        BindingRules(cb.slots).check(tuple(bindings))

    def _program(self, digest: str) -> tuple[CommandBuffer, list[Place | None]]:
        """Returns a program, and where its arena and constants lie: None for arguments."""
        found = self._programs.get(digest)
        if found is None:
            cb = decode(self._capture.program(digest))
            if any(slot.kind == SlotKind.HANDLE for slot in cb.slots):
                raise UnsupportedError("a program with direct handles cannot be taken apart")
            if len(self._programs) >= PROGRAMS:
                self._forget(next(iter(self._programs)))
            found = self._programs[digest] = cb, []
            constants = iter(cb.constants)
            for slot in cb.slots:
                found[1].append(None if slot.kind == SlotKind.ARGUMENT else self._own(slot.length))
                if slot.kind == SlotKind.CONSTANT:
                    place: Any = found[1][-1]
                    place.twins.write(0, next(constants))
        return found

    def _forget(self, digest: str) -> None:
        """Frees a program's arena and constants."""
        for place in self._programs.pop(digest)[1]:
            if place is not None:
                place.twins.free()
                self._extra -= place.size

    def _own(self, size: int) -> Place:
        self._extra += size
        self._capture.check_memory(self._extra)
        return Place(Twins(self._devices, size), 0, size)


_STEPS: dict[type[Event], Callable[[_Comparison, Any], None]] = {
    Allocate: _Comparison.allocate,
    Free: _Comparison.free,
    Write: _Comparison.write,
    Read: _Comparison.read,
}
