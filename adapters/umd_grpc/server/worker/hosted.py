"""The sessions of a worker: they are told what came over the pipe, and answer over it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from umd_core.errors import UmdError
from umd_grpc.server.host import DeviceHost, LocalSession
from umd_grpc.server.port import Outlet, Setup
from umd_grpc.server.transfer import Transfer
from umd_grpc.server.worker.counting import WorkerMeter
from umd_grpc.server.worker.messages import Plain, write_error, write_transfer
from umd_grpc.server.worker.pipe import Pipe
from umd_grpc.server.worker.wakes import Wakes


class Counter:
    """What the server's process adds to its own counts: those of the device's report that it has not been told."""

    def __init__(self, host: DeviceHost) -> None:
        self._host = host
        self._frames = self._submissions = self._depth = 0

    def untold(self) -> dict[str, int]:
        """Returns what has changed since the last time. Runs on the device's thread."""
        report, depth = self._host.report, self._host.depth
        found = {"frames": report.frames - self._frames, "submissions": report.submissions - self._submissions}
        self._frames, self._submissions = report.frames, report.submissions
        counts = {name: value for name, value in found.items() if value}
        if depth != self._depth:
            self._depth = counts["depth"] = depth
        return counts


class HostedSession(LocalSession):
    """A session on the worker's device."""

    def __init__(
        self, host: DeviceHost, setup: Setup, meter: WorkerMeter, pipe: Pipe, wakes: Wakes, counter: Counter
    ) -> None:
        self._number, self._meter, self._pipe = setup.number, meter, pipe
        self._wakes, self._counter = wakes, counter
        self.outlet = Outlet(
            send=self._say,
            reached=self._reached,
            stop=self._stop,
            wake=lambda seconds: wakes.set(setup.number, seconds, self.run),
        )
        super().__init__(host, setup, self.outlet, meter)

    def _tell(self, what: str, payload: bytes = b"", **facts: Any) -> None:
        self._pipe.send({"do": what, "session": self._number, **facts}, payload)

    def _say(self, response: bytes, consumed: int) -> None:
        counts = {**self._meter.untold(), **self._counter.untold()}
        self._tell("say", response, consumed=consumed, **counts)

    def _reached(self, number: int, found: Transfer | UmdError) -> None:
        if isinstance(found, Transfer):
            self._tell("reached", transfer=write_transfer(found))
        else:
            self._tell("reached", id=number, error=write_error(found, "transfer"))

    def _stop(self, error: UmdError | None) -> None:
        self._tell("stop", error=None if error is None else write_error(error, "session"))

    # what the other end wants

    def feed(self, raw: bytes) -> None:
        """Takes a message in, once it has been seen what it cancels."""
        for _ in self.look_ahead(raw):
            pass
        self._feed_later(raw)  # not on this thread: the device's asks questions whose answers come here

    def taken_through(self, taken: int) -> None:
        """Notes how many bytes of responses the client has taken."""
        self.outlet.taken = taken
        self.run()

    def limit(self, limited: bool) -> None:
        """Notes whether the owner has a quota now."""
        self._meter.limited = limited

    def close(self) -> None:
        """Ends the session, and says so when everything is given back."""
        super().close()
        self._wakes.drop(self._number)
        self._host.post(self._say_closed)

    def _say_closed(self) -> None:
        counts: dict[str, Any] = {**self._meter.untold(), **self._counter.untold()}
        self._tell("closed", **counts)

    def write(self, call: int, transfer: int, data: bytes) -> None:
        """Writes the next bytes of a transfer and answers how many it has now."""
        self._answer(call, functools.partial(self._session.moves.write, transfer, memoryview(data)))

    def read(self, call: int, transfer: int, offset: int, size: int) -> None:
        """Answers with bytes of a transfer."""
        self._answer(call, functools.partial(self._session.moves.read, transfer, offset, size))

    def _answer(self, call: int, function: Callable[[], int | memoryview]) -> None:
        def job() -> None:
            header: Plain = {"do": "done", "session": self._number, "call": call}
            payload = memoryview(b"")
            try:
                found = function()
                if isinstance(found, memoryview):
                    payload = found
                else:
                    header["value"] = found
            except Exception as error:  # noqa: BLE001  # it belongs to the caller
                header["error"] = write_error(error, "transfer")
            self._pipe.send(header, payload, changes=True)

        self._host.post(job, self._lane)


SESSION_MESSAGES: Mapping[str, Callable[[HostedSession, Plain, bytes], None]] = {
    "feed": lambda session, header, payload: session.feed(payload),
    "run": lambda session, header, payload: session.run(),
    "attach": lambda session, header, payload: session.attach(bytes.fromhex(header["resume"])),
    "taken_through": lambda session, header, payload: session.taken_through(header["taken"]),
    "limit": lambda session, header, payload: session.limit(header["limited"]),
    "write": lambda session, header, payload: session.write(header["call"], header["transfer"], payload),
    "read": lambda session, header, payload: session.read(
        header["call"], header["transfer"], header["offset"], header["size"]
    ),
    "taken": lambda session, header, payload: session.taken(header["transfer"]),
    "answer": lambda session, header, payload: session.answer_transfer(header["transfer"], header["size"]),
}
"""What a message of the server's process means for the session that it names."""
