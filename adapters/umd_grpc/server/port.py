"""What stands between the event loop and a device: the two protocols that let a device live elsewhere.

`umd_grpc.server.host` keeps a device on a thread of this process, `umd_grpc.server.worker` in a process of its own:
there every argument below travels. Who the client is, what it may open and how many bytes it may have under way is
decided on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from umd_core.device import Caps
from umd_core.errors import UmdError
from umd_grpc.limits import Limits
from umd_grpc.server.batches import Batches
from umd_grpc.server.transfer import Transfer


@dataclass(frozen=True, slots=True)
class Setup:
    """What a session is made of.

    Attributes:
        number: unique in the server.
        token: names the session in Write and Read; secret.
        identity: name of its owner: programs are known within one.
        limits: of the server.
        weight: its share of the device beside other sessions.
        resume: the token that attaches to it again, b"" without a lease.
        lease_seconds: how long it outlives its stream.
    """

    number: int
    token: bytes
    identity: str
    limits: Limits
    weight: float = 1.0
    resume: bytes = b""
    lease_seconds: int = 0


class Meter(Protocol):
    """Where a session's use of its device is counted. Callable from any thread."""

    @property
    def limited(self) -> bool:
        """Whether there is a limit that may be reached."""
        ...

    def count(self, memory: int = 0, ops: int = 0) -> None:
        """Counts what has been used already, whatever the limits: bytes of device memory, and submissions."""
        ...

    def take_memory(self, size: int) -> None:
        """Counts bytes of device memory.

        Raises:
            QuotaError: it would be too much.
        """
        ...

    def give_memory(self, size: int) -> None:
        """Takes back bytes of device memory."""
        ...

    def take_ops(self, count: int) -> None:
        """Counts submissions.

        Raises:
            QuotaError: they come too fast.
        """
        ...


class Outlet:
    """The way from a session to the event loop. Every call may come from any thread.

    Attributes:
        emitted, taken: bytes of responses given, and those that the stream has accepted. A session whose client takes
            no answers stands still (`Limits.unread`) until `SessionPort.run` is called.
        reached: called with the id of each transfer frame, and the transfer or why there is none.
        stop: called with the error that ends the session, None when its client ended it.
        wake: called with the seconds after which `SessionPort.run` is wanted; the last call counts.
    """

    def __init__(
        self,
        send: Callable[[bytes, int], None],
        reached: Callable[[int, Transfer | UmdError], None],
        stop: Callable[[UmdError | None], None],
        wake: Callable[[float], None],
    ) -> None:
        self._send, self.reached, self.stop, self.wake = send, reached, stop, wake
        self.emitted = self._taken = 0
        self._when_taken: Callable[[int], None] | None = None

    @property
    def taken(self) -> int:
        """Bytes of responses that the stream has accepted."""
        return self._taken

    @taken.setter
    def taken(self, taken: int) -> None:
        self._taken = taken
        if self._when_taken is not None:
            self._when_taken(taken)

    def when_taken(self, call: Callable[[int], None] | None) -> None:
        """Has a session that is elsewhere told how many bytes were taken, whenever that changes."""
        self._when_taken = call

    def send(self, response: bytes, consumed: int) -> None:
        """Sends a response; `consumed` bytes of requests are done with."""
        self.emitted += len(response)
        self._send(response, consumed)


class SessionPort(Protocol):
    """A session, as the event loop sees it. Calls return at once and are carried out in their order."""

    @property
    def idle(self) -> bool:
        """Whether nothing is under way."""
        ...

    def look_ahead(self, raw: bytes) -> Iterator[None]:
        """Ends what a message cancels, before it is fed; a part of a large one each time that the iterator is asked."""
        ...

    def feed(self, raw: bytes) -> None:
        """Takes a SessionRequest; its bytes count as under way until `Outlet.send` has said that they are consumed."""
        ...

    def run(self) -> None:
        """Goes on: responses were taken, or the time has come that `Outlet.wake` asked for."""
        ...

    def attach(self, resume: bytes) -> None:
        """Says that another stream takes over: what was fed and not carried out is dropped (and consumed).

        The next message that is fed begins with Open, and is answered with `resume` and how far the session had come.
        """
        ...

    def close(self) -> None:
        """Ends the session and frees everything that it made, exactly once and before other work."""
        ...

    async def write_chunk(self, transfer: int, data: memoryview) -> int:
        """Writes the next bytes of a transfer; returns how many it has now.

        Raises:
            StaleHandleError: the transfer has failed, or the session has ended.
        """
        ...

    async def read_chunk(self, transfer: int, offset: int, size: int) -> memoryview:
        """Returns at most `size` bytes of a transfer from `offset` on.

        They stay as they are until all bytes of the transfer are `taken`, or it ends.

        Raises:
            StaleHandleError: the transfer has failed, or the session has ended.
            PoisonedError: work that failed should have written them.
        """
        ...

    async def copy_chunk(self, transfer: int, offset: int, target: memoryview) -> None:
        """Fills `target` with bytes of a transfer from `offset` on; raises what `read_chunk` raises."""
        ...

    def batches(self) -> Batches | None:
        """Returns where jobs run that move many chunks; None when the device is elsewhere, and chunks travel singly."""
        ...

    def taken(self, transfer: int) -> None:
        """Notes that all bytes of a transfer from the device were sent: it is over."""
        ...

    def answer_transfer(self, transfer: int, size: int) -> None:
        """Answers the frame of a transfer with how many of its bytes the server has already."""
        ...

    def fail_transfer(self, transfer: int, error: UmdError) -> None:
        """Ends a transfer whose bytes do not come, or are not taken. A range that was to be written is poisoned."""
        ...


class DevicePort(Protocol):
    """A device of the server, as the event loop sees it.

    Attributes:
        name: as clients name it, for example "sim:0".
        caps: what it can do.
        epoch: changes when everything on the device was lost; every session of the old one has been stopped with
            DeviceLostError by then.
        pid: of its own process, 0 when it has none.
        restarts: how often that was started again.
    """

    name: str
    caps: Caps
    epoch: int
    pid: int
    restarts: int

    @property
    def depth(self) -> int:
        """Jobs that wait."""
        ...

    def open_session(self, setup: Setup, outlet: Outlet, meter: Meter) -> SessionPort:
        """Returns a new session.

        Raises:
            DeviceLostError: the device is not there, for now.
        """
        ...

    def close(self) -> None:
        """Ends the device once what was asked of it is done. Called once, from any thread; may block."""
        ...
