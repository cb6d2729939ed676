"""A device that this process has open, and its memory as the adapter uses it."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Protocol, cast
from weakref import WeakSet

import numpy as np
import torch

import umd_core as umd
from umd_core.device import Binding, Buffer, Device, Ticket
from umd_core.errors import OutOfMemoryError, PoisonedError, UmdError, UnsupportedError
from umd_core.registry import default_device
from umd_torch.counters import counters
from umd_torch.host import Bytes, array_at, byte_count
from umd_torch.memory import Slab, aligned
from umd_torch.parameters import Parameters
from umd_torch.progress import uploading

_KEPT_BYTES = 1 << 28
_WRAPPED = 4096
_NOT_SHOWN = contextlib.nullcontext()


class HostedDevice(Device, Protocol):
    """What the adapter needs of a device beside the protocol that every backend fulfils."""

    def drop(self, *buffers: Buffer) -> None:
        """Frees buffers soon; callable from a finalizer."""
        ...

    def wrap(self, array: Any) -> Buffer:
        """Returns a buffer over host memory. Asked of devices with the flag "map" only."""
        ...


class KeepingDevice(HostedDevice, Protocol):
    """A device with the flag "weights": its server keeps bytes for the next session."""

    def write_weights(self, writes: Sequence[tuple[Buffer, int, Any]]) -> int:
        """Writes bytes that the server may have; returns how many had to be sent."""
        ...


class _Forked:
    """Stands for the device and the lock of a session in a process that was forked off the one that opened it.

    Such a process has locks and sockets, but not the threads that free and serve them: whatever would use them is
    refused instead of waiting for ever.
    """

    def __init__(self, name: str) -> None:
        self._said = name

    def _refuse(self) -> NoReturn:
        reason = f"{self._said} was opened before this process was forked"
        raise UnsupportedError(f"{reason}; use multiprocessing_context='spawn' where workers need a device")

    def __enter__(self) -> NoReturn:
        self._refuse()

    def __exit__(self, *_: object) -> None:
        """Is never asked: there is no way in."""

    def __getattr__(self, _: str) -> NoReturn:
        self._refuse()


class Session:
    """One open device.

    A call takes one slab for what it sends, one for what it returns and one for what stays, so that a call costs one
    write and one read however many tensors it has; slabs are reused, so that a repeated call finds its program bound.

    Attributes:
        name: as `open_device` takes it.
        device: the device.
        maps: whether host tensors are bound without a copy.
        lock: held by every call; the device and what is kept here are one thread's at a time.
        parameters: the copies of parameters and buffers that it holds.
        evictions: how many bindings of host memory were freed: those that somebody kept may be among them.
        failures: how often work has failed. What it should have written is spoilt until it is written in full, and
            slabs have gaps that nothing writes: those taken before are not used again.
    """

    def __init__(self, name: str, device: HostedDevice) -> None:
        self.name, self.device = name, device
        self.caps = device.caps()
        self.maps = "map" in self.caps.flags
        self._counts = hasattr(device, "bytes_up")
        self._start_read: Callable[[Buffer, int, int], Callable[[], Any]] | None
        self._start_read = getattr(device, "start_read", None)
        self.parameters = Parameters(self)
        self.lock = threading.RLock()
        self._free: dict[int, list[Buffer]] = {}
        self._kept = 0
        self._returned: deque[tuple[Buffer, int, int]] = deque()
        self.failures = 0
        self._wrapped: OrderedDict[tuple[int, int], Buffer] = OrderedDict()
        self.evictions = 0
        self._forked: _Forked | None = None
        _OPEN.add(self)

    def check_process(self) -> None:
        """Checks that this process opened the device: a forked one has its locks and sockets, but not its threads.

        Raises:
            UnsupportedError: it was forked off the one that did; the message says what to do.
        """
        if self._forked is not None:
            with self._forked:
                pass

    def after_fork(self) -> None:
        """Is called in a child made by fork: from here on every use of the device is refused there."""
        if self._forked is None:
            self._forked = forked = _Forked(self.name)
            _LEFT.append((self.device, self.lock, self._start_read))
            self.device, self.lock = cast("HostedDevice", forked), cast("threading.RLock", forked)
            self._start_read = None

    # memory

    def slab(self, size: int) -> Slab:
        """Returns `size` device bytes."""
        size = aligned(max(size, 1))
        with self.lock:
            if self._returned:
                self._collect()
            free = self._free.get(size)
            if free:
                self._kept -= size
                return Slab(self, free.pop(), size)
            try:
                return Slab(self, self.device.allocate(size), size)
            except OutOfMemoryError:
                self.trim()
                return Slab(self, self.device.allocate(size), size)

    def give_back(self, buffer: Buffer, size: int, failures: int) -> None:
        """Takes bytes back for the next slab of that size. Callable from a finalizer, on any thread."""
        self._returned.append((buffer, size, failures))

    def _collect(self) -> None:
        """Sorts in what came back; what is too much, or may be spoilt, is freed."""
        while self._returned:
            buffer, size, failures = self._returned.popleft()
            if failures == self.failures and self._kept + size <= _KEPT_BYTES:
                self._kept += size
                self._free.setdefault(size, []).append(buffer)
            else:
                self.device.drop(buffer)

    def trim(self) -> None:
        """Frees the bytes that are kept for later slabs."""
        self._collect()
        free, self._free, self._kept = self._free, {}, 0
        for buffers in free.values():
            self.device.drop(*buffers)

    def wrap(self, tensor: torch.Tensor) -> Binding:
        """Returns a CPU tensor's own bytes as a binding, on a device that sees host memory."""
        size = byte_count(tensor)
        key = (tensor.data_ptr(), size)
        found = self._wrapped.get(key)
        if found is None:
            found = self._wrapped[key] = self.device.wrap(array_at(*key) if size else b"")
        return Binding(found, 0, size)

    def evict(self) -> None:
        """Frees the oldest bindings of host memory where there are many. Not within a call, whose own they might be."""
        while len(self._wrapped) > _WRAPPED:
            self.device.drop(self._wrapped.popitem(last=False)[1])
            self.evictions += 1

    # work

    def load(self, command_buffer: umd.CommandBuffer) -> Any:
        """Returns the loaded program."""
        counters.programs += 1
        return self.device.load(command_buffer)

    def write(self, slab: Slab, offset: int, data: Any, *, weights: bool = False) -> None:
        """Writes bytes into a slab. `weights` says that a server may have kept them since another run has sent them."""
        with uploading(self.name, self._bytes_sent, len(data)) if self._counts else _NOT_SHOWN:
            if weights and "weights" in self.caps.flags:
                keeping = cast("KeepingDevice", self.device)
                counters.bytes_up += keeping.write_weights([(slab.buffer, offset, data)])
                return
            counters.bytes_up += len(data)
            self.device.write(slab.buffer, offset, data)

    def _bytes_sent(self) -> int:
        """Returns the bytes that a remote device has been sent since it was opened."""
        return int(getattr(self.device, "bytes_up", 0))

    def submit(self, program: Any, bindings: Sequence[Binding]) -> Ticket:
        """Returns a ticket; what has already gone wrong is raised."""
        counters.submissions += 1
        try:
            ticket = self.device.submit(program, bindings)
            if ticket.done():
                ticket.wait()
        except UmdError:
            self._note_failure()
            raise
        return ticket

    def _note_failure(self) -> None:
        """Frees what is kept for later slabs: work has failed, and it may be spoilt."""
        with self.lock:
            self.failures += 1
            self.trim()

    def read(self, slab: Slab, offset: int, size: int, ticket: Ticket | None = None) -> Bytes:
        """Returns bytes of a slab once the work before is done: one round trip.

        Raises:
            UmdError: what went wrong in the work of `ticket`, or in earlier work that these bytes depend on.
        """
        counters.round_trips += 1
        counters.bytes_down += size
        return self._came(lambda: self.device.read(slab.buffer, offset, size), ticket)

    def start_read(self, slab: Slab, offset: int, size: int, ticket: Ticket | None = None) -> Callable[[], Bytes]:
        """Returns what waits for bytes of a slab, see `read`; until it is called a remote device works already."""
        if self._start_read is None:
            return lambda: self.read(slab, offset, size, ticket)
        counters.round_trips += 1
        counters.bytes_down += size
        wait = self._start_read(slab.buffer, offset, size)
        return lambda: self._came(wait, ticket)

    def _came(self, wait: Callable[[], Any], ticket: Ticket | None) -> Bytes:
        try:
            return self._bytes(wait, ticket)
        except UmdError:
            self._note_failure()
            raise

    @staticmethod
    def _bytes(wait: Callable[[], Any], ticket: Ticket | None) -> Bytes:
        try:
            return np.frombuffer(wait(), np.uint8)
        except PoisonedError:
            if ticket is not None:
                ticket.wait()
            raise

    def close(self) -> None:
        """Closes the device; its name opens it anew. In a forked process it is only let go of."""
        with _opening:
            for name in [name for name, session in _SESSIONS.items() if session is self]:
                del _SESSIONS[name]
        if self._forked is not None:
            return
        self.trim()
        self.device.close()


_SESSIONS: dict[str, Session] = {}
_opening = threading.Lock()
_OPEN: WeakSet[Session] = WeakSet()
_LEFT: list[Any] = []
"""What a child made by fork keeps and does not use: taking it apart would be use as well."""


def _after_fork() -> None:
    global _opening  # noqa: PLW0603  # another thread of the parent may have held it
    _opening = threading.Lock()
    for session in list(_OPEN):
        session.after_fork()


os.register_at_fork(after_in_child=_after_fork)


def session_for(name: str) -> Session:
    """Returns the session of a device, opened at its first use; "" is the available device of highest priority."""
    name = name or default_device()
    return adopt(name, lambda: cast("HostedDevice", umd.open_device(name)))


def adopt(name: str, open_device: Callable[[], HostedDevice]) -> Session:
    """Returns the session of a name; where there is none, of the device that `open_device` returns.

    Raises:
        UnsupportedError: it was opened before this process was forked.
    """
    with _opening:
        found = _SESSIONS.get(name)
        if found is None:
            found = _SESSIONS[name] = Session(name, open_device())
        found.check_process()
        return found


def close_sessions() -> None:
    """Closes every device that this process opened through the adapter."""
    for session in set(_SESSIONS.values()):
        session.close()
