"""A device in a worker, as the server's process sees it: started, listened to, and started again when it ends."""

from __future__ import annotations

import queue
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from umd_core.device import Caps
from umd_core.errors import DeviceLostError, InternalError, UmdError
from umd_grpc.server.port import Meter, Outlet, Setup
from umd_grpc.server.programs import Programs
from umd_grpc.server.report import Report, log
from umd_grpc.server.worker.launch import END_SECONDS, Launched
from umd_grpc.server.worker.messages import Plain, read_caps, read_plain_error, write_error, write_setup
from umd_grpc.server.worker.proxy import WorkerSession
from umd_grpc.telemetry import Spans

FIRST_PAUSE, QUIET_SECONDS = 0.05, 60.0
"""The pause before a worker is started again doubles from the first on; after so long without an end it begins anew."""


class WorkerPort:
    """A device in a worker; a `DevicePort`.

    One thread starts the process, listens to it, and starts another one when it ends.

    Attributes:
        name: as clients name it.
        caps: what it can do, once it is open.
        epoch: changes with each process.
        pid: of the process, 0 while there is none.
        restarts: processes after the first.
        spans: opens spans for work on the device, None when nothing is traced.
    """

    caps: Caps

    def __init__(
        self,
        name: str,
        programs: Programs | None = None,
        report: Report | None = None,
        submission_seconds: float = 0.0,
        *,
        spans: Spans | None = None,
        most_pause: float = 10.0,
    ) -> None:
        """Starts the worker; `wait` returns when its device is open.

        Args:
            name: as `open_device` knows it.
            programs: those of the server.
            report: counts what happens.
            submission_seconds: the longest that one submission may run; 0 for no limit.
            spans: opens spans for work on the device.
            most_pause: seconds of the longest pause before a worker that ended is started again.
        """
        self.name, self.epoch, self.pid, self.restarts = name, 0, 0, 0
        self.spans = spans
        self._programs, self._report = programs or Programs(), report or Report()
        self._seconds, self._most_pause = submission_seconds, most_pause
        self._lock = threading.Lock()
        self._launched: Launched | None = None
        self._open = False
        self._sessions: dict[int, WorkerSession] = {}
        self._depth, self._why = 0, "it is being opened"
        self._fatal = ""
        self._own: Mapping[str, Callable[[Plain, bytes], tuple[Plain, bytes] | None]] = {
            "take": self._asked,
            "program": self._asked,
            "keep": self._keep,
            "closed": self._closed,
            "fatal": self._note_fatal,
        }
        self._closing = threading.Event()
        self._opened: queue.SimpleQueue[UmdError | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"umd-worker-{name}", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Returns when the device is open for the first time.

        Raises:
            UmdError: it cannot be opened.
        """
        error = self._opened.get()
        if error is not None:
            raise error

    @property
    def depth(self) -> int:
        """Jobs that wait, as far as the worker has told."""
        return self._depth

    def open_session(self, setup: Setup, outlet: Outlet, meter: Meter) -> WorkerSession:
        """Returns a new session.

        Raises:
            DeviceLostError: the worker has ended, and another one is being started.
        """
        with self._lock:
            if self._launched is None or not self._open:
                raise DeviceLostError(self.name, self._why)
            pipe = self._launched.pipe
            session = WorkerSession(setup, pipe, outlet, meter, self.spans)
            self._sessions[setup.number] = session
            pipe.send({"do": "open", "setup": write_setup(setup), "limited": session.limited})
        return session

    def close(self) -> None:
        """Ends the worker once what was asked of it is done, or too long has passed."""
        self._closing.set()
        with self._lock:
            launched = self._launched
        if launched is not None:
            launched.pipe.send({"do": "end"})
            if not launched.wait(END_SECONDS):
                launched.kill()
        self._thread.join(timeout=END_SECONDS)

    # the thread

    def _run(self) -> None:
        pause, first = FIRST_PAUSE, True
        while not self._closing.is_set():
            started = time.monotonic()
            error = self._one_life()
            if first and error is not None:
                self._opened.put(error)
                return
            first = False
            if time.monotonic() - started > QUIET_SECONDS:
                pause = FIRST_PAUSE
            self._closing.wait(min(pause, self._most_pause))
            pause = min(2 * pause, self._most_pause)

    def _one_life(self) -> UmdError | None:
        """Starts a process and serves it to its end; returns why its device could not be opened."""
        try:
            launched = Launched()
        except OSError as failed:
            return self._not_opened(InternalError(f"no worker can be started: {failed}"))
        with self._lock:
            self._launched, self.pid = launched, launched.pid
        launched.pipe.send(
            {
                "do": "device",
                "name": self.name,
                "submission_seconds": self._seconds,
                "traces": self.spans is not None,
                "after": self.epoch,
            }
        )
        if self._closing.is_set():  # `close` may have seen no process
            launched.pipe.send({"do": "end"})
        message = launched.pipe.receive()
        error = self._begin(message[0]) if message is not None else None
        opened = self._open
        if opened:
            self._listen(launched)
        reason = self._end(launched)
        if opened:
            return None
        return self._not_opened(error or DeviceLostError(self.name, f"its worker ended while it was opened: {reason}"))

    def _not_opened(self, error: UmdError) -> UmdError:
        if self.epoch and not self._closing.is_set():
            self._why = f"its worker could not be started again: {error}"
            log("worker_failed", device=self.name, reason=str(error))
        return error

    def _begin(self, header: Plain) -> UmdError | None:
        """Takes the first message in: the device is open, or cannot be opened."""
        again = bool(self.epoch)
        try:
            if header["do"] != "ready":
                return read_plain_error(header["error"])
            caps, epoch = read_caps(header["caps"]), int(header["epoch"])
        except (KeyError, TypeError, ValueError) as error:
            return InternalError(f"its worker said something that makes no sense: {type(error).__name__}")
        with self._lock:
            self.caps, self.epoch, self._open = caps, epoch, True
        if again:
            self.restarts += 1
            log("worker_restarted", device=self.name, pid=self.pid, epoch=self.epoch)
        else:
            self._opened.put(None)
        return None

    def _listen(self, launched: Launched) -> None:
        """Serves what the worker says until it ends, or says something that makes no sense."""
        try:
            while not self._fatal and (message := launched.pipe.receive()) is not None:
                self._take(launched, *message)
        except Exception:  # noqa: BLE001  # whatever it said, only its own sessions suffer
            log("internal_error", where=f"worker of {self.name}", traceback=traceback.format_exc())
            self._fatal = "it said something that makes no sense"
        if self._fatal:
            launched.kill()

    def _end(self, launched: Launched) -> str:
        """Ends the sessions of a worker that is gone, at once and with the reason, which is returned."""
        fatal, self._fatal = self._fatal, ""
        ended = launched.end()
        reason = fatal or ended
        with self._lock:
            lost, self._launched, self._open = self._open and not self._closing.is_set(), None, False
            pid, self.pid, self._depth = self.pid, 0, 0
            self._why = f"its worker (process {pid}) ended: {reason}; another one is started"
            sessions, self._sessions = list(self._sessions.values()), {}
        if lost:
            log("worker_lost", device=self.name, pid=pid, reason=reason, sessions=len(sessions))
        for session in sessions:
            session.lose(DeviceLostError(self.name, self._why))
        return reason

    # what the worker says

    def _take(self, launched: Launched, header: Plain, payload: bytes) -> None:
        what = header["do"]
        self._report.frames += header.get("frames", 0)
        self._report.submissions += header.get("submissions", 0)
        self._depth = header.get("depth", self._depth)
        if what in self._own:
            answer = self._own[what](header, payload)
            if answer is not None:
                launched.pipe.send(*answer)
            return
        session = self._sessions.get(header["session"])
        if session is not None:
            _SESSIONS[what](session, header, payload)

    def _asked(self, header: Plain, payload: bytes) -> tuple[Plain, bytes]:
        """Answers a question of the device's thread, which waits for it."""
        try:
            if header["do"] == "program":
                found = self._programs.find(header["identity"], bytes.fromhex(header["sha256"]))
            else:
                session, found = self._sessions.get(header["session"]), b""
                if session is not None:
                    session.take(header)
        except UmdError as error:
            return {"do": "answered", "error": write_error(error, "worker")}, b""
        return {"do": "answered"}, found

    def _keep(self, header: Plain, payload: bytes) -> None:
        self._programs.keep(header["identity"], payload)

    def _closed(self, header: Plain, payload: bytes) -> None:
        with self._lock:
            session = self._sessions.pop(header["session"], None)
        if session is not None:
            session.count(header)
            session.closed()

    def _note_fatal(self, header: Plain, payload: bytes) -> None:
        self._fatal = header["reason"]


_SESSIONS: Mapping[str, Callable[[WorkerSession, Plain, bytes], Any]] = {
    "say": WorkerSession.say,
    "reached": lambda session, header, payload: session.reached(header),
    "stop": lambda session, header, payload: session.stop(header),
    "count": lambda session, header, payload: session.count(header),
    "done": WorkerSession.done,
}
