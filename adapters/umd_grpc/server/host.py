"""A device of the server on a thread of this process, and the sessions that share it."""

from __future__ import annotations

import asyncio
import functools
import queue
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from umd_core.device import Caps, SequentialDevice
from umd_core.errors import UmdError, UnsupportedError
from umd_core.registry import open_device
from umd_grpc.server.batches import Batches
from umd_grpc.server.courtesy import Courtesy
from umd_grpc.server.lanes import Job, Lane, Lanes
from umd_grpc.server.port import Meter, Outlet, Setup
from umd_grpc.server.programs import Programs
from umd_grpc.server.repeats import may_be_short
from umd_grpc.server.report import Report, log
from umd_grpc.server.session import Session
from umd_grpc.server.work import Watchdog, Work
from umd_grpc.telemetry import Spans, around

Result = TypeVar("Result")
SERVER_WEIGHT = 16.0
SLICE_SECONDS, SHORT_SLICE_SECONDS = 0.02, 0.0003


class DeviceHost:
    """A device on its own thread, where every call to it is made; the `DevicePort` of this process.

    Attributes:
        name: as clients name it, for example "sim:0".
        device: to be used in jobs only.
        caps: what it can do.
        epoch: changes when everything on the device was lost.
        pid, restarts: 0: it has no process of its own.
        programs: what clients may load by hash.
        courtesy: how its thread gives way to another one, None when there is none.
        spans: opens spans for work on the device, None when nothing is traced.
        gone: called on the device's thread with the reason when nothing will run on the device any more.
    """

    pid = restarts = 0

    def __init__(
        self,
        name: str,
        programs: Programs | None = None,
        report: Report | None = None,
        submission_seconds: float = 0.0,
        stuck: Callable[[Work], None] | None = None,
    ) -> None:
        """Opens the device.

        Args:
            name: as `open_device` knows it.
            programs: those of the server, shared with its other devices and services.
            report: counts what happens.
            submission_seconds: the longest that one submission may run; 0 for no limit.
            stuck: called when one does not end though it was told to: a process of its own can be ended.

        Raises:
            UmdError: it cannot be opened, or not hosted.
        """
        self.name, self.epoch = name, time.time_ns()
        self.programs, self.report = programs or Programs(), report or Report()
        self.courtesy: Courtesy | None = None
        self.spans: Spans | None = None
        self.gone: Callable[[str], None] | None = None
        self._lanes, self._server = Lanes(), Lane(SERVER_WEIGHT)
        self._thread = threading.Thread(target=self._run, name=f"umd-device-{name}", daemon=True)
        self._thread.start()
        opened: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.post(lambda: opened.put(_opened(name)))
        found = opened.get()
        if isinstance(found, BaseException):
            self._end()
            raise found
        self.device: SequentialDevice = found[0]
        self.caps: Caps = found[1]
        self._watchdog = Watchdog(self.device, submission_seconds, stuck or self._log_stuck)

    @property
    def depth(self) -> int:
        """Jobs that wait."""
        return self._lanes.depth

    def post(self, job: Job, lane: Lane | None = None) -> None:
        """Runs a job on the device's thread, after those posted to its lane before. Callable from any thread."""
        self._lanes.put(lane or self._server, job)

    async def call(self, function: Callable[..., Result], *arguments: Any, lane: Lane | None = None) -> Result:
        """Returns what a function returns on the device's thread, or raises what it raises."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()

        def job() -> None:
            try:
                result = function(*arguments)
            except BaseException as error:  # noqa: BLE001  # it belongs to the caller
                loop.call_soon_threadsafe(_settle, future, None, error)
            else:
                loop.call_soon_threadsafe(_settle, future, result, None)

        self.post(job, lane)
        return await future

    def open_session(self, setup: Setup, outlet: Outlet, meter: Meter) -> LocalSession:
        """Returns a new session."""
        return LocalSession(self, setup, outlet, meter)

    def turn_is_over(self, lane: Lane, start: float) -> bool:
        """Returns whether a job that began at `start` has to let others go on: sooner when there are any."""
        now = time.perf_counter()
        if now - start <= SHORT_SLICE_SECONDS:
            return False
        if self.courtesy is not None:
            self.courtesy.give_way(now)
        return now - start > SLICE_SECONDS or self._lanes.others(lane)

    def close(self) -> None:
        """Ends the thread once the jobs posted so far are done, and closes the device on it."""
        self._watchdog.close()
        self.post(self.device.close)
        self._end()

    def _end(self) -> None:
        self._lanes.put(self._server, None)
        self._thread.join(timeout=10.0)

    def run_now(self, prepare: Callable[[], Job | None], lane: Lane) -> bool:
        """Runs a job on the calling thread, and returns True, if the device has nothing to do and the job is short.

        Two threads less have to be woken for it. `prepare` may look at whatever belongs to the device; it returns the
        job, or None when it may be long. When the device is lost, jobs go to its thread, which tells who wants to know.
        """
        if not self.device.any_thread or self.device.lost or not self._lanes.claim(lane):
            return False
        start = time.perf_counter()
        try:
            job = prepare()
            if job is not None:
                self._do(job)
        finally:
            self._lanes.turn.release()
            self._lanes.charge(lane, time.perf_counter() - start)
        if self.device.lost:  # by this job: the device's thread has to look
            self.post(_nothing)
        return job is not None

    def _do(self, job: Job) -> None:
        try:
            job()
        except Exception:  # noqa: BLE001  # one job's fault must not end the device
            log("internal_error", where=self.name, traceback=traceback.format_exc())

    def _run(self) -> None:
        lanes = self._lanes
        while True:
            lane, job = lanes.take()
            if job is None:
                return
            with lanes.turn:
                start = time.perf_counter()
                self._do(job)
            lanes.charge(lane, time.perf_counter() - start)
            if self.gone is not None and self.device.lost:
                self.gone(self.device.lost)
            del job  # it may hold memory that is shared with a client, and the next one may be long in coming

    def _log_stuck(self, work: Work) -> None:
        log("submission_stuck", device=self.name, seq=work.seq, seconds=round(time.monotonic() - work.started, 1))


class LocalSession:
    """A session on the device's thread; the `SessionPort` of this process."""

    def __init__(self, host: DeviceHost, setup: Setup, outlet: Outlet, meter: Meter) -> None:
        self._host, self._lane = host, Lane(setup.weight)
        self._session = Session(setup, host, self._lane, outlet, meter)

    @property
    def idle(self) -> bool:
        """Whether nothing is under way."""
        return self._session.idle

    def look_ahead(self, raw: bytes) -> Iterator[None]:
        """Ends what a message cancels, though frames before it may wait."""
        return self._session.cancels.look_ahead(raw, self._session.seq)

    def feed(self, raw: bytes) -> None:
        """Takes a message in."""
        host, session = self._host, self._session

        def short() -> Job | None:
            frames = session.short_frames(raw)
            return None if frames is None else functools.partial(session.feed, raw, time.monotonic(), frames)

        if not may_be_short(raw) or host.spans is not None or not host.run_now(short, self._lane):
            self._feed_later(raw)

    def _feed_later(self, raw: bytes) -> None:
        job = functools.partial(self._session.feed, raw, time.monotonic())
        self._host.post(around(self._host.spans, "umd.session", job), self._lane)

    def run(self) -> None:
        """Goes on."""
        self._host.post(self._session.run, self._lane)

    def attach(self, resume: bytes) -> None:
        """Says that another stream takes over."""
        self._host.post(functools.partial(self._session.attach, resume), self._lane)

    def close(self) -> None:
        """Ends the session and frees everything that it made."""
        self._session.cancels.everything()
        self._host.post(self._session.close)

    async def write_chunk(self, transfer: int, data: memoryview) -> int:
        """Writes the next bytes of a transfer; returns how many it has now."""
        return await self._host.call(self._session.moves.write, transfer, data, lane=self._lane)

    async def read_chunk(self, transfer: int, offset: int, size: int) -> memoryview:
        """Returns at most `size` bytes of a transfer from `offset` on."""
        return await self._host.call(self._session.moves.read, transfer, offset, size, lane=self._lane)

    async def copy_chunk(self, transfer: int, offset: int, target: memoryview) -> None:
        """Fills `target` with bytes of a transfer from `offset` on."""
        await self._host.call(self._session.moves.copy, transfer, offset, target, lane=self._lane)

    def batches(self) -> Batches:
        """Returns where jobs run that move many chunks."""
        return Batches(self._host, self._lane, self._session.moves)

    def taken(self, transfer: int) -> None:
        """Notes that all bytes of a transfer from the device were sent."""
        self._host.post(functools.partial(self._session.moves.taken, transfer), self._lane)

    def answer_transfer(self, transfer: int, size: int) -> None:
        """Answers the frame of a transfer with how many of its bytes the server has already."""
        self._host.post(functools.partial(self._session.moves.answer, transfer, size), self._lane)

    def fail_transfer(self, transfer: int, error: UmdError) -> None:
        """Ends a transfer whose bytes do not come, or are not taken."""
        self._host.post(functools.partial(self._session.moves.fail, transfer, error), self._lane)


def _nothing() -> None:
    """A job after which the device's thread looks around as after any other."""


def _opened(name: str) -> Any:
    try:
        device = open_device(name)
        if not isinstance(device, SequentialDevice):
            device.close()
            raise UnsupportedError("cannot be served: it does not run on its owner's thread", device=name)
        return device, device.caps()
    except Exception as error:  # noqa: BLE001  # it is raised where the device was wanted
        return error


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
