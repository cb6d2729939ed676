"""What a worker counts and what it looks up: the server's process has the last word on both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from umd_core.commands import CommandBuffer
from umd_core.errors import StaleHandleError
from umd_grpc.server.programs import Programs

Ask = Callable[[Mapping[str, Any]], bytes]
"""Sends a question and returns the payload of its answer, or raises the error that it brings."""
Tell = Callable[[Mapping[str, Any], bytes], None]


class WorkerMeter:
    """Counts what one session uses; a `Meter`.

    Where its owner has a quota, the server's process is asked each time. Elsewhere nothing can be refused, and what was
    counted travels with the next message. What has not been told when the worker ends was never counted there.

    Attributes:
        limited: whether the owner has a quota.
    """

    def __init__(self, number: int, ask: Ask, tell: Tell, *, limited: bool) -> None:
        """`number` is the session's."""
        self._number, self._ask, self._tell, self.limited = number, ask, tell, limited
        self._memory = self._ops = 0

    def take_memory(self, size: int) -> None:
        """Counts bytes of device memory."""
        if self.limited:
            self._ask({"do": "take", "session": self._number, "take_memory": size, **self.untold()})
        else:
            self._memory += size

    def give_memory(self, size: int) -> None:
        """Takes back bytes of device memory; whoever waits for them elsewhere learns it at once."""
        self._memory -= size
        if self.limited:
            self._tell({"do": "count", "session": self._number, **self.untold()}, b"")

    def take_ops(self, count: int) -> None:
        """Counts submissions."""
        if self.limited:
            self._ask({"do": "take", "session": self._number, "take_ops": count, **self.untold()})
        else:
            self._ops += count

    def count(self, memory: int = 0, ops: int = 0) -> None:
        """Counts what has been used, whatever the quota."""
        self._memory += memory
        self._ops += ops

    def untold(self) -> dict[str, int]:
        """Returns what was counted since the last time."""
        found = {"memory": self._memory, "ops": self._ops}
        self._memory = self._ops = 0
        return {name: value for name, value in found.items() if value}


class WorkerPrograms(Programs):
    """The programs of a worker. What is not known here may be known to the server, and what is valid is told to it.

    Everything here but the constructor runs on the device's thread.
    """

    def __init__(self, ask: Ask, tell: Tell) -> None:
        super().__init__()
        self._ask, self._tell = ask, tell
        self._fetched = b""

    def find(self, identity: str, sha256: bytes) -> bytes:
        """Returns a program; see `Programs.find`."""
        try:
            return super().find(identity, sha256)
        except StaleHandleError:
            self._fetched = self._ask({"do": "program", "identity": identity, "sha256": sha256.hex()})
            return self._fetched

    def validated(
        self, identity: str, device: str, raw: bytes, validate: Callable[[bytes], CommandBuffer]
    ) -> CommandBuffer:
        """Returns what a program says; see `Programs.validated`."""
        new = False

        def looked_into(program: bytes) -> CommandBuffer:
            nonlocal new
            new = True
            return validate(program)

        decoded = super().validated(identity, device, raw, looked_into)
        if new and raw is not self._fetched:
            self._tell({"do": "keep", "identity": identity}, raw)
        self._fetched = b""
        return decoded
