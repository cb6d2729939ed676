"""BufferMethods: whose account a device's buffers are on, what may be read and written, when their memory is freed."""

from __future__ import annotations

import functools
from collections import Counter, deque
from collections.abc import Hashable
from typing import Any

import numpy as np

from umd_core.device.backend import BackendMethods
from umd_core.device.execution import clear, poison_in
from umd_core.device.protocol import Buffer, Caps
from umd_core.device.submission import Lines
from umd_core.device.tensor import as_bytes, span, writable
from umd_core.errors import (
    BindingError,
    CancelledError,
    DeviceLostError,
    LimitError,
    OutOfMemoryError,
    PoisonedError,
    StaleHandleError,
    UnsupportedError,
)


class BufferMethods(BackendMethods):
    """What a sequential device does with buffers, over the memory that the backend gives.

    Attributes:
        name: "backend:ordinal".
        poisoned: buffers with bytes that failed work should have written.
        overtaking: set while bytes are read or written whose place is before submissions that wait.
    """

    _lines: Lines
    """The submissions that wait: they keep the buffers that they use."""

    def __init__(self, name: str = "") -> None:
        self.name: str = name or self.name
        self.poisoned: set[Buffer] = set()
        self.overtaking = False
        self._open = True
        self._running = False
        self._used = 0
        self._held: Counter[Hashable] = Counter()
        self._scope: Hashable = None
        self._dropped: deque[Buffer] = deque()
        self._zombies: list[Buffer] = []

    @functools.cached_property
    def _caps(self) -> Caps:
        return self.caps()

    @functools.cached_property
    def maps(self) -> bool:
        """Whether the device's buffers are visible to the host."""
        return "map" in self._caps.flags

    # accounts

    @property
    def used(self) -> int:
        """Bytes in use: buffers, arenas and constants, not wrapped host memory."""
        self._reap()
        return self._used

    def held(self, scope: Hashable) -> int:
        """Returns the bytes in use on one owner's account: its buffers, and arenas and constants of its programs."""
        self._reap()
        return self._held[scope]

    def allocate(self, size: int, scope: Hashable = None) -> Buffer:
        """Returns a new buffer of `size` zero bytes, on the account of `scope`: see `held`.

        Raises:
            OutOfMemoryError: the device has no room for it.
        """
        self._reap()
        if not self._open:
            raise DeviceLostError(self.name, "it was closed")
        if size < 0:
            raise LimitError("buffer size", size, 0)
        if size > self._caps.memory - self._used:
            self.trim()
        free = self._caps.memory - self._used
        if size > free:
            raise OutOfMemoryError(size, self._used, self._caps.memory, free, device=self.name)
        buffer = Buffer(size, self.allocate_memory(size or 1))
        buffer.charged, buffer.scope = size, self._scope if scope is None else scope
        self._used += size
        self._held[buffer.scope] += size
        return buffer

    def wrap(self, array: Any) -> Buffer:
        """Returns a buffer over the bytes that a host array lies in, without a copy. The caller keeps it unchanged.

        Raises:
            UnsupportedError: the device's buffers are not visible to the host.
        """
        if not self.maps:
            raise UnsupportedError("its buffers are not visible to the host", device=self.name)
        data = span(np.asarray(array))
        return Buffer(data.size, self.wrap_memory(data))

    # the end of a buffer

    def free(self, buffer: Buffer) -> None:
        if not buffer.alive:
            raise StaleHandleError("buffer", repr(buffer), "was freed before")
        buffer.alive = False
        if self._running or (self._lines.by_queue and self._lines.user(buffer)):
            self._zombies.append(buffer)
        else:
            self._release(buffer)

    def drop(self, *buffers: Buffer) -> None:
        """Frees buffers soon: callable from a finalizer, on any thread; the device's own next call does the work."""
        self._dropped.extend(buffers)

    def trim(self) -> None:
        """Frees what was dropped, and what the device keeps only to be faster."""
        self._reap()

    def _reap(self) -> None:
        while self._dropped:
            buffer = self._dropped.popleft()
            if buffer.alive:
                self.free(buffer)

    def _bury(self) -> None:
        """Releases the buffers that were freed while work used them, once none of it waits any more."""
        zombies, self._zombies = self._zombies, []
        for buffer in zombies:
            if self._lines.user(buffer):
                self._zombies.append(buffer)
            else:
                self._release(buffer)

    def _release(self, buffer: Buffer) -> None:
        if buffer.users:
            for reference in buffer.users:
                program = reference()
                if program is not None:
                    program.unbind(buffer)
        self.poisoned.discard(buffer)
        self._used -= buffer.charged
        self._held[buffer.scope] -= buffer.charged
        if not self._held[buffer.scope]:
            del self._held[buffer.scope]
        memory, buffer.memory = buffer.memory, None
        self.free_memory(memory)

    # contents

    def write(self, buffer: Buffer, offset: int, data: Any) -> None:
        view = as_bytes(data)
        self._check(buffer, offset, view.nbytes, "write")
        if buffer.poison:
            clear(buffer, offset, offset + view.nbytes)
            if not buffer.poison:
                self.poisoned.discard(buffer)
        if view.nbytes:
            self.write_memory(buffer.memory, offset, view)

    def read(self, buffer: Buffer, offset: int, size: int) -> memoryview:
        self._check(buffer, offset, size, "read")
        if buffer.poison:
            root = poison_in(buffer, offset, offset + size)
            if root is not None:
                raise PoisonedError(f"read of bytes [{offset}, {offset + size})", root)
        return self.read_memory(buffer.memory, offset, size) if size else memoryview(b"")

    def read_into(self, buffer: Buffer, offset: int, out: Any) -> None:
        """Fills `out`, anything writable that is contiguous, with the bytes from byte `offset` on.

        Raises:
            ShapeError: it cannot be filled in place.
        """
        view = writable(out)
        np.frombuffer(view, np.uint8)[...] = np.frombuffer(self.read(buffer, offset, len(view)), np.uint8)

    def _check(self, buffer: Buffer, offset: int, size: int, what: str) -> None:
        if self._dropped:
            self._reap()
        if not buffer.alive:
            raise StaleHandleError("buffer", repr(buffer), "was freed")
        if offset < 0 or size < 0 or size > buffer.size or offset > buffer.size - size:
            detail = f"bytes [{offset}, {offset + size}) are outside the buffer of {buffer.size} bytes"
            raise BindingError(0, "range", f"{what}: {detail}")
        waiting = None
        if self._lines.by_queue and not self.overtaking:
            waiting = self._lines.user(buffer, writers=what == "read")
        if waiting is not None:
            raise CancelledError(f"{what} of a buffer whose submission {waiting.ticket.blocked_on}")
