"""Runs a capture again, on any device, and compares what comes out with what came out then, bit by bit."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from umd_core.capture.events import Allocate, Event, Free, NewFence, Read, Signal, Submit, Write
from umd_core.capture.reader import Capture
from umd_core.device import Binding, Buffer, Device, DeviceFence, FenceValue
from umd_core.device.cache import Bounded
from umd_core.errors import UmdError

PROGRAMS = 128


class Mismatch(NamedTuple):
    """Something that came out otherwise than in the captured run.

    Attributes:
        submission: its number; for a read, of the last submission before it.
        what: "output" (of a binding), "read" (by the host) or "status".
        place: index of the binding, or number of the buffer that was read.
        recorded, got: SHA-256 of the bytes, or the status; "" where there is none.
        detail: the error, where there was one.
    """

    submission: int
    what: str
    place: int
    recorded: str
    got: str
    detail: str = ""

    def __str__(self) -> str:
        if self.what == "status":
            text = f"submission {self.submission} ended with status {self.got}, it was {self.recorded}"
        elif self.what == "read":
            text = f"the host's read of buffer {self.place} after submission {self.submission} gives other bytes"
        else:
            text = f"binding {self.place} of submission {self.submission} holds other bytes"
        return f"{text}: {self.detail}" if self.detail else text


@dataclass(slots=True)
class ReplayReport:
    """How a replay went.

    Attributes:
        device: that ran it.
        complete: whether the captured run had ended.
        submissions: how many ran.
        equal: outputs and reads that have the recorded bytes.
        unrecorded: submissions of which nothing was recorded to compare with.
        mismatches: what came out otherwise.
    """

    device: str
    complete: bool
    submissions: int = 0
    equal: int = 0
    unrecorded: int = 0
    mismatches: list[Mismatch] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether everything that was recorded came out again."""
        return not self.mismatches


def replay(capture: Capture, device: Device) -> ReplayReport:
    """Returns how the captured run went on a device.

    Raises:
        CaptureError: a file of the capture is damaged.
        UmdError: the device does not have a kernel, or has not room enough, or refuses a submission.
    """
    return _Replay(capture, device).run()


class _Replay:
    """One replay: the device's own buffers and fences by the capture's numbers."""

    def __init__(self, capture: Capture, device: Device) -> None:
        self._capture, self._device = capture, device
        self._buffers: dict[int, Buffer] = {}
        self._fences: list[DeviceFence] = []
        self._programs = Bounded(PROGRAMS)
        self._made, self._last = 0, -1
        self._report = ReplayReport(device.name, capture.complete)

    def run(self) -> ReplayReport:
        """Returns the report; the device's buffers are freed."""
        try:
            for number, event in self._capture.events:
                if isinstance(event, Submit):
                    self._submit(number, event)
                else:
                    _STEPS[type(event)](self, event)
        finally:
            for buffer in self._buffers.values():
                self._device.free(buffer)
        return self._report

    def allocate(self, event: Allocate) -> None:
        self._buffers[self._made] = self._device.allocate(event.size)
        self._made += 1

    def free(self, event: Free) -> None:
        self._device.free(self._buffers.pop(event.buffer))

    def write(self, event: Write) -> None:
        data = self._capture.data(event.data, event.size)
        self._device.write(self._buffers[event.buffer], event.offset, data)

    def read(self, event: Read) -> None:
        binding = Binding(self._buffers[event.buffer], event.offset, event.size)
        self._compare("read", event.buffer, binding, event.data)

    def fence(self, event: NewFence) -> None:
        self._fences.append(self._device.fence())

    def signal(self, event: Signal) -> None:
        fence = self._fences[event.fence]
        if fence.value < event.value:
            fence.signal(event.value)

    def _submit(self, number: int, event: Submit) -> None:
        bindings = [Binding(self._buffers[buffer], offset, size) for buffer, offset, size in event.bindings]
        waits, signals = ([FenceValue(self._fences[f], v) for f, v in some] for some in (event.waits, event.signals))
        ticket = self._device.submit(self._program(event), bindings, event.values, waits, signals, event.queue)
        self._last = number
        self._report.submissions += 1
        result = self._capture.results.get(number)
        if result is None:
            self._report.unrecorded += 1
            return
        status, detail = 0, ""
        try:
            ticket.wait()
        except UmdError as error:
            status, detail = int(error.status), str(error)
        if status != result.status:
            self._note(Mismatch(number, "status", 0, str(result.status), str(status), detail))
        for index, recorded in result.outputs:
            self._compare("output", index, bindings[index], recorded)

    def _program(self, event: Submit) -> Any:
        encoded = self._programs.find(event.program)
        if encoded is None:
            encoded = self._capture.program(event.program)
            self._programs.keep(event.program, encoded)
        return self._device.load(encoded)  # cached there; a ONE_SHOT program is loaded anew

    def _compare(self, what: str, place: int, binding: Binding, recorded: str) -> None:
        got, detail = "", ""
        try:
            got = hashlib.sha256(self._device.read(*binding)).hexdigest()
        except UmdError as error:
            detail = str(error)
        if not recorded:
            return
        if got == recorded:
            self._report.equal += 1
        else:
            self._note(Mismatch(self._last, what, place, recorded, got, detail))

    def _note(self, mismatch: Mismatch) -> None:
        self._report.mismatches.append(mismatch)


_STEPS: dict[type[Event], Callable[[_Replay, Any], None]] = {
    Allocate: _Replay.allocate,
    Free: _Replay.free,
    Write: _Replay.write,
    Read: _Replay.read,
    NewFence: _Replay.fence,
    Signal: _Replay.signal,
}
