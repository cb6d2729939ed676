"""What one session uses of its device, beside what its owner's account counts."""

from __future__ import annotations

import threading

from umd_grpc.server.identity import Account


class Tally:
    """Counts for one session, and passes on to the account. Callable from any thread; a `Meter`.

    Attributes:
        memory: bytes of device memory.
        ops: submissions.
    """

    def __init__(self, account: Account) -> None:
        self._account, self._lock = account, threading.Lock()
        self.memory = self.ops = 0

    @property
    def limited(self) -> bool:
        """Whether memory or operations of the account have a limit."""
        return self._account.limited

    def count(self, memory: int = 0, ops: int = 0) -> None:
        """Counts what has been used already; see `Account.count`."""
        self._account.count(memory, ops)
        with self._lock:
            self.memory += memory
            self.ops += ops

    def take_memory(self, size: int) -> None:
        """Counts bytes of device memory; see `Account.take_memory`."""
        self._account.take_memory(size)
        with self._lock:
            self.memory += size

    def give_memory(self, size: int) -> None:
        """Takes back bytes of device memory."""
        self._account.give_memory(size)
        with self._lock:
            self.memory -= size

    def take_ops(self, count: int) -> None:
        """Counts submissions; see `Account.take_ops`."""
        self._account.take_ops(count)
        with self._lock:
            self.ops += count
