"""A session whose device is in a worker, as the event loop sees it."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from umd_core.errors import UmdError
from umd_grpc.server.port import Meter, Outlet, Setup
from umd_grpc.server.worker.messages import Plain, read_plain_error, read_transfer, write_error
from umd_grpc.server.worker.pipe import Pipe
from umd_grpc.telemetry import Spans

Answer = asyncio.Future[tuple[int, bytes]]
_TOLD = 4
"""The worker is told of responses that were taken after a quarter of those that may be untaken."""


class _Call(NamedTuple):
    """A question to the worker; the bytes of its answer go to `target`, where there is one."""

    loop: asyncio.AbstractEventLoop
    answer: Answer
    target: memoryview | None


class WorkerSession:
    """A session at the other end of a pipe; a `SessionPort`.

    What it uses of the device is counted here, so that it can be given back whatever becomes of the worker.
    """

    def __init__(self, setup: Setup, pipe: Pipe, outlet: Outlet, meter: Meter, spans: Spans | None) -> None:
        self.number = setup.number
        self._pipe, self._outlet, self._meter, self._spans = pipe, outlet, meter, spans
        self._limited = meter.limited
        self._told, self._step = 0, max(1, setup.limits.unread // _TOLD)
        self._moving: dict[int, int] = {}
        self._calls: dict[int, _Call] = {}
        self._numbers = itertools.count(1)
        self._held = 0
        self._lost: UmdError | None = None
        self._lock = threading.Lock()
        outlet.when_taken(self._taken_through)

    @property
    def limited(self) -> bool:
        """Whether its owner has a quota, as the worker knows it."""
        return self._limited

    def _tell(self, what: str, payload: bytes | memoryview = b"", **facts: Any) -> None:
        self._pipe.send({"do": what, "session": self.number, **facts}, payload)

    # the event loop's side

    @property
    def idle(self) -> bool:
        """Whether nothing is under way, beside messages that are not consumed."""
        return not self._moving

    def look_ahead(self, raw: bytes) -> Iterator[None]:
        """Does nothing: the worker looks when the message is there."""
        return iter(())

    def feed(self, raw: bytes) -> None:
        """Takes a message in."""
        if self._meter.limited != self._limited:
            self._limited = not self._limited
            self._tell("limit", limited=self._limited)
        trace = {} if self._spans is None else {"trace": self._spans.carrier()}
        self._tell("feed", raw, **trace)

    def run(self) -> None:
        """Goes on."""
        self._tell("run")

    def _taken_through(self, taken: int) -> None:
        if taken - self._told >= self._step:
            self._told = taken
            self._tell("taken_through", taken=taken)

    def attach(self, resume: bytes) -> None:
        """Says that another stream takes over."""
        self._tell("attach", resume=resume.hex())

    def close(self) -> None:
        """Ends the session and frees everything that it made."""
        self._tell("close")

    async def write_chunk(self, transfer: int, data: memoryview) -> int:
        """Writes the next bytes of a transfer; returns how many it has now."""
        done, _ = await self._call("write", data, transfer=transfer)
        if done == self._moving.get(transfer):
            self._moving.pop(transfer, None)
        return done

    async def read_chunk(self, transfer: int, offset: int, size: int) -> memoryview:
        """Returns at most `size` bytes of a transfer from `offset` on."""
        _, data = await self._call("read", transfer=transfer, offset=offset, size=size)
        return memoryview(data)

    async def copy_chunk(self, transfer: int, offset: int, target: memoryview) -> None:
        """Fills `target` with bytes of a transfer from `offset` on."""
        await self._call("read", target=target, transfer=transfer, offset=offset, size=len(target))

    async def _call(
        self, what: str, payload: memoryview | bytes = b"", *, target: memoryview | None = None, **facts: int
    ) -> tuple[int, bytes]:
        loop, number = asyncio.get_running_loop(), next(self._numbers)
        future: Answer = loop.create_future()
        with self._lock:
            if self._lost is not None:
                raise self._lost
            self._calls[number] = _Call(loop, future, target)
        self._tell(what, payload, call=number, **facts)
        return await future

    def batches(self) -> None:
        """Returns None: every chunk goes through the pipe."""

    def taken(self, transfer: int) -> None:
        """Notes that all bytes of a transfer from the device were sent."""
        self._moving.pop(transfer, None)
        self._tell("taken", transfer=transfer)

    def answer_transfer(self, transfer: int, size: int) -> None:
        """Answers the frame of a transfer with how many of its bytes the server has already."""
        self._tell("answer", transfer=transfer, size=size)

    def fail_transfer(self, transfer: int, error: UmdError) -> None:
        """Ends a transfer whose bytes do not come, or are not taken."""
        self._moving.pop(transfer, None)
        self._tell("fail", transfer=transfer, error=write_error(error, "transfer"))

    # the worker's side: on the thread that listens to it

    def count(self, header: Plain) -> None:
        """Counts what the worker has counted since its last message."""
        memory, ops = header.get("memory", 0), header.get("ops", 0)
        if memory or ops:
            self._held += memory
            self._meter.count(memory, ops)

    def take(self, header: Plain) -> None:
        """Counts what the worker asks for.

        Raises:
            QuotaError: it would be too much.
        """
        self.count(header)
        if "take_memory" in header:
            self._meter.take_memory(header["take_memory"])
            self._held += header["take_memory"]
        else:
            self._meter.take_ops(header["take_ops"])

    def say(self, header: Plain, response: bytes) -> None:
        """Passes a response on."""
        self.count(header)
        self._outlet.send(response, header["consumed"])

    def reached(self, header: Plain) -> None:
        """Passes on that a transfer frame was reached."""
        if "error" in header:
            self._outlet.reached(header["id"], read_plain_error(header["error"]))
        else:
            transfer = read_transfer(header["transfer"])
            self._moving[transfer.id] = transfer.size
            self._outlet.reached(transfer.id, transfer)

    def stop(self, header: Plain) -> None:
        """Passes on that the session ends."""
        self._outlet.stop(None if header["error"] is None else read_plain_error(header["error"]))

    def done(self, header: Plain, data: bytes) -> None:
        """Answers a call."""
        with self._lock:
            loop, future, target = self._calls.pop(header["call"])
        error = read_plain_error(header["error"]) if "error" in header else None
        if target is not None and error is None:
            np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(data, np.uint8))
            data = b""
        _from_thread(loop, _settle, future, (header.get("value", 0), data), error)

    def closed(self) -> None:
        """Gives back everything: the session is over, well or badly."""
        held, self._held = self._held, 0
        self._meter.give_memory(held)
        self._outlet.when_taken(None)

    def lose(self, error: UmdError) -> None:
        """Ends the session, whose worker is gone."""
        with self._lock:
            self._lost = error
            calls, self._calls = list(self._calls.values()), {}
        for loop, future, _ in calls:
            _from_thread(loop, _settle, future, None, error)
        self.closed()
        self._outlet.stop(error)


def _from_thread(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *arguments: Any) -> None:
    with suppress(RuntimeError):  # the loop is closed: the server has ended, and nobody listens
        loop.call_soon_threadsafe(function, *arguments)


def _settle(future: Answer, result: tuple[int, bytes] | None, error: UmdError | None) -> None:
    if future.done():
        return
    if result is None or error is not None:
        future.set_exception(error or RuntimeError("no answer"))
    else:
        future.set_result(result)
