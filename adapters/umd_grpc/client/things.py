"""Buffers, fences and tickets of a remote device."""

from __future__ import annotations

from umd_core.device import Buffer
from umd_core.errors import LimitError
from umd_grpc._pb.umd import runtime_pb2 as pb
from umd_grpc.client.link import Ticket
from umd_grpc.client.session import RemoteSession


class RemoteBuffer(Buffer):
    """Bytes on the server's device; `memory` is the session's handle on them."""

    __slots__ = ()


class RemoteFence:
    """A fence of the server's device.

    Attributes:
        handle: the session's handle on it.
    """

    __slots__ = ("_least", "_session", "handle")

    def __init__(self, session: RemoteSession, handle: int) -> None:
        self._session, self.handle = session, handle
        self._least = 0

    def __repr__(self) -> str:
        return f"RemoteFence({self.handle:#x})"

    def __del__(self) -> None:
        self._session.drop_fence(self.handle)

    @property
    def value(self) -> int:
        """The highest value signalled so far. Asking takes a round trip."""
        return self._ask(0, self._session.timeout)

    def signal(self, value: int) -> None:
        """Raises the counter to `value`, from the host.

        Raises:
            LimitError: the counter is known to be beyond the value, or the value does not fit in 64 bits.
        """
        if not self._least <= value < 1 << 64:
            raise LimitError("fence value", value, self._least if value < self._least else (1 << 64) - 1)
        self._least = value
        session = self._session
        with session.lock:
            session.begin()
            command = session.outbox.frame().signal
            command.fence, command.value = self.handle, value
            session.end()

    def wait(self, value: int, timeout: float | None = None) -> None:
        """Returns when the counter has reached `value`.

        Raises:
            CancelledError: it did not within `timeout` seconds, or those that the device gives every answer.
        """
        self._ask(value, self._session.timeout if timeout is None else timeout)

    def _ask(self, value: int, seconds: float) -> int:
        def fill(frame: pb.Frame) -> None:
            frame.wait.fence.fence, frame.wait.fence.value = self.handle, value
            frame.wait.timeout_ms = max(1, round(1000 * seconds))

        found = self._session.command(fill, seconds + self._session.timeout).done.value
        self._least = max(self._least, found)
        return found


class RemoteTicket(Ticket):
    """A submission on the server's device."""

    __slots__ = ("_asked", "_session")

    def __init__(self, session: RemoteSession, seq: int, queue: int) -> None:
        super().__init__(session.link, seq, queue)
        self._session, self._asked = session, False

    def cancel(self) -> None:
        """Ends the submission: it never starts, or stops at its next command, and fails; it may have ended before."""
        self._session.cancel(seqs=[self.seq])

    def done(self) -> bool:
        """Returns whether the work has ended, well or badly, as far as is known here.

        The first question only looks; whoever asks again waits for an end, so then what has gathered is sent.
        """
        if self._asked:
            with self._session.lock:
                self._session.begin()
                self._session.send()
        self._asked = True
        return self.ended

    def wait(self, timeout: float | None = None) -> None:
        """Returns when the work is done.

        Raises:
            UmdError: what went wrong in it.
            CancelledError: `timeout` seconds passed, or those that the device gives every answer.
        """
        session = self._session
        if not self.ended:
            with session.lock:
                session.begin()
                session.send()
                session.round_trips += 1
            seconds = session.timeout if timeout is None else timeout
            session.link.wait_until(lambda: self.ended, seconds, "the end of a submission")
        if self.error is not None:
            raise self.error
