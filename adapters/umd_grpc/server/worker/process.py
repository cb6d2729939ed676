"""The worker: one device and its sessions, in a process that ends when its server does.

python -m umd_grpc.server.worker.process DESCRIPTOR
"""

from __future__ import annotations

import logging
import os
import queue
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NoReturn

from umd_grpc import telemetry
from umd_grpc.server.courtesy import Courtesy
from umd_grpc.server.host import DeviceHost
from umd_grpc.server.report import log
from umd_grpc.server.work import Work
from umd_grpc.server.worker.counting import WorkerMeter, WorkerPrograms
from umd_grpc.server.worker.hosted import SESSION_MESSAGES, Counter, HostedSession
from umd_grpc.server.worker.messages import Plain, read_plain_error, read_setup, write_caps, write_error
from umd_grpc.server.worker.pipe import Message, Pipe
from umd_grpc.server.worker.wakes import Wakes

SWITCH_SECONDS = 0.001
FATAL_EXIT, FATAL_SECONDS = 70, 5.0


class Worker:
    """A device whose sessions are at the other end of a pipe."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe, self._wakes = pipe, Wakes()
        self._answers: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._sessions: dict[int, HostedSession] = {}
        self._host: DeviceHost | None = None
        self._counter: Counter | None = None

    def run(self) -> NoReturn:
        """Serves until the other end is gone. What the device does at that moment ends with the process."""
        while (message := self._pipe.receive()) is not None:
            self._take(*message)
        os._exit(0)

    def _take(self, header: Plain, payload: bytes) -> None:
        what = header["do"]
        if what in SESSION_MESSAGES:
            session = self._sessions.get(header["session"])
            if session is None:
                return
            with self._in_its_trace(header):
                SESSION_MESSAGES[what](session, header, payload)
        elif what == "answered":
            self._answers.put((header, payload))
        elif what == "open":
            self._open_session(header)
        elif what == "close":
            self._sessions.pop(header["session"]).close()
        elif what == "fail":
            session = self._sessions.get(header["session"])
            if session is not None:
                session.fail_transfer(header["transfer"], read_plain_error(header["error"]))
        else:  # opening and closing a device takes long, and the end of the other side must be noticed meanwhile
            target = {"device": self._open_device, "end": self._end}[what]
            threading.Thread(target=target, args=(header,), daemon=True).start()

    def _in_its_trace(self, header: Plain) -> Any:
        spans = self._host.spans if self._host is not None else None
        return spans.entered(header["trace"]) if spans is not None and "trace" in header else nullcontext()

    # the device

    def _open_device(self, header: Plain) -> None:
        programs = WorkerPrograms(self._ask, self._pipe.send)
        try:
            host = DeviceHost(header["name"], programs, None, header["submission_seconds"], self._stuck)
            host.courtesy = Courtesy(self._pipe.fileno())
            host.spans = telemetry.Spans() if header["traces"] else None
        except Exception as error:  # noqa: BLE001  # it is raised where the device was wanted
            self._pipe.send({"do": "refused", "error": write_error(error, "opening the device")})
            return
        host.epoch, host.gone = max(host.epoch, header["after"] + 1), self._fatal
        self._host, self._counter = host, Counter(host)
        self._pipe.send({"do": "ready", "epoch": host.epoch, "caps": write_caps(host.caps)})

    def _end(self, header: Plain) -> None:
        if self._host is not None:
            self._host.close()
        os._exit(0)

    def _stuck(self, work: Work) -> None:
        seconds = round(time.monotonic() - work.started, 1)
        log("submission_stuck", device=self._host.name if self._host else "", seq=work.seq, seconds=seconds)
        self._fatal(f"submission {work.seq} did not end when it was told to, {seconds:g} s after its start")

    def _fatal(self, reason: str) -> None:
        """Has the other end end this process, and start another one."""
        self._pipe.send({"do": "fatal", "reason": reason})
        time.sleep(FATAL_SECONDS)
        os._exit(FATAL_EXIT)

    # sessions

    def _open_session(self, header: Plain) -> None:
        host, counter = self._host, self._counter
        if host is None or counter is None:
            return
        setup = read_setup(header["setup"])
        meter = WorkerMeter(setup.number, self._ask, self._pipe.send, limited=header["limited"])
        session = HostedSession(host, setup, meter, self._pipe, self._wakes, counter)
        self._sessions[setup.number] = session

    def _ask(self, question: Mapping[str, Any]) -> bytes:
        """Returns the payload of the answer to a question. Only the device's thread asks, so the next is its own."""
        self._pipe.send(question)
        header, payload = self._answers.get()
        if header.get("error"):
            raise read_plain_error(header["error"])
        return payload


def _leave_no_core() -> None:
    """Has no core written of this process: that takes long, and its clients would hear of its end only afterwards.

    A limit of 1 byte is no core in a file, and none for a program that collects them either (core(5)).
    """
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (0 if hard == 0 else 1, hard))


def main(arguments: Sequence[str]) -> NoReturn:
    """Serves what comes over the socket whose descriptor is given."""
    for number in (signal.SIGINT, signal.SIGTERM):  # they are meant for the server, which drains and then says "end"
        signal.signal(number, signal.SIG_IGN)
    _leave_no_core()
    logging.basicConfig(stream=sys.stderr, format="%(message)s", level=logging.INFO)
    sys.setswitchinterval(SWITCH_SECONDS)
    Worker(Pipe(socket.socket(fileno=int(arguments[0])))).run()


if __name__ == "__main__":
    main(sys.argv[1:])
