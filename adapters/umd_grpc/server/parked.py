"""Reads and writes whose place in the order is behind submissions that wait: they are carried out after those."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from umd_core.device import Binding, Buffer, Fence, FenceValue, SequentialDevice, SubmissionTicket
from umd_core.device.execution import poison

Finish = Callable[[], None]
Act = Callable[[Finish], None]
"""Does something to a buffer, and calls what it is given when that is over, at once or later."""


@contextmanager
def overtaking(device: SequentialDevice, so: bool = True) -> Generator[None]:
    """Lets reads and writes go before submissions that wait: their place in the order is there."""
    before, device.overtaking = device.overtaking, so
    try:
        yield
    finally:
        device.overtaking = before


@dataclass(slots=True, eq=False)
class _Parked:
    buffer: Buffer
    act: Act
    after: Sequence[SubmissionTicket]
    before: _Parked | None
    fence: Fence
    size: int
    spoils: bool = False
    begun: bool = False
    over: bool = False

    @property
    def ready(self) -> bool:
        """Whether everything before it has ended."""
        return (self.before is None or self.before.over) and all(ticket.done() for ticket in self.after)


class Parked:
    """What one session's frames want of buffers that are not free yet. Everything runs on the device's thread.

    Later frames go on meanwhile. Submissions that come later and use such a buffer wait for it (`waits`), so the order
    is that of the frames.
    """

    def __init__(self, device: SequentialDevice) -> None:
        self._device = device
        self._parked: list[_Parked] = []

    def __len__(self) -> int:
        return len(self._parked)

    @property
    def size(self) -> int:
        """Bytes that are held to be written."""
        return sum(parked.size for parked in self._parked)

    def holds(self, buffer: Buffer) -> bool:
        """Returns whether an earlier frame still has something to do with a buffer."""
        return any(parked.buffer is buffer for parked in self._parked)

    def busy(self, buffer: Buffer, *, reads: bool = False) -> bool:
        """Returns whether something has to be carried out before a buffer can be written, or only read."""
        return self.holds(buffer) or bool(self._device.waiting(buffer, writers=reads))

    def add(self, buffer: Buffer, act: Act, size: int = 0, *, reads: bool = False) -> None:
        """Does something to a buffer when what uses it now has ended; when it only reads, what writes it.

        `size` bytes are held so long.
        """
        before, after = self._last(buffer), self._device.waiting(buffer, writers=reads)
        self._parked.append(_Parked(buffer, act, after, before, self._device.fence(), size))

    def _last(self, buffer: Buffer) -> _Parked | None:
        return next((parked for parked in reversed(self._parked) if parked.buffer is buffer), None)

    def spoil(self, buffer: Buffer, error: Exception) -> None:
        """Poisons all of a buffer when its turn comes. Once is enough for any number in a row."""
        last = self._last(buffer)
        if last is None or not last.spoils:
            self.add(buffer, functools.partial(self._spoil_now, buffer, error))
            self._parked[-1].spoils = True

    def _spoil_now(self, buffer: Buffer, error: Exception, finish: Finish) -> None:
        if buffer.alive:
            poison(self._device, [Binding(buffer, 0, buffer.size)], error)
        finish()

    def waits(self, buffers: Sequence[Buffer]) -> list[FenceValue]:
        """Returns what a submission that uses these buffers has to wait for."""
        return [FenceValue(parked.fence, 1) for parked in self._parked if parked.buffer in buffers]

    def poll(self) -> None:
        """Does what can be done now."""
        while (parked := next((p for p in self._parked if not p.begun and p.ready), None)) is not None:
            self._begin(parked)

    def _begin(self, parked: _Parked) -> None:
        parked.begun = True
        with overtaking(self._device):
            parked.act(lambda: self._finish(parked))

    def _finish(self, parked: _Parked) -> None:
        parked.over = True
        self._parked.remove(parked)
        with overtaking(self._device, False):
            parked.fence.advance(1)

    def clear(self) -> None:
        """Forgets everything."""
        self._parked.clear()
