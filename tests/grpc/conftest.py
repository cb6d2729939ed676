"""Servers in processes of their own, and the few lines that talk to them frame by frame."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc
import pytest

from tests.grpc.frames import PROGRAM, SIZE, A, B, C, D, X, add_program
from umd_grpc._pb.umd import runtime_pb2 as pb
from umd_grpc.client import Client

MODULE = ("-m", "umd_grpc.server")
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class ServerProcess:
    """A server that a test started; it is ended with the test."""

    def __init__(self, *arguments: str, listen: str = "127.0.0.1:0", module: Sequence[str] = MODULE) -> None:
        command = [sys.executable, *module, "--listen", listen, *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.log: list[dict[str, Any]] = []
        self.errors: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self._reader.join(5)
            raise AssertionError(f"the server did not start: {self.errors}")
        self.ready: dict[str, Any] = json.loads(line)
        self.address: str = self.ready["listen"][0]

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            try:
                self.log.append(json.loads(line))
            except json.JSONDecodeError:
                self.errors.append(line)

    def events(self, name: str) -> list[dict[str, Any]]:
        """Returns the log lines of one event."""
        return [line for line in list(self.log) if line["event"] == name]

    def check_sound(self) -> None:
        """Checks that the server runs and has met no fault of its own."""
        assert self.process.poll() is None
        assert not self.events("internal_error"), self.events("internal_error")

    def wait_for(self, what: Callable[[], bool], seconds: float = 20) -> None:
        """Returns when something is so; fails when it does not come about."""
        deadline = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < deadline, "it did not come about"
            time.sleep(0.01)

    def terminate(self) -> int:
        """Sends SIGTERM and returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)

    def stop(self) -> None:
        """Ends the process, whatever state it is in."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        self._reader.join(5)
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.process.stdout.close()
        self.process.stderr.close()


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    """A server of this module; it must be sound at the end."""
    process = ServerProcess()
    try:
        yield process
        process.check_sound()
    finally:
        process.stop()


@pytest.fixture
def start_server() -> Iterator[Callable[..., ServerProcess]]:
    """Starts servers of this test."""
    started: list[ServerProcess] = []

    def start(*arguments: str, **options: Any) -> ServerProcess:
        started.append(ServerProcess(*arguments, **options))
        return started[-1]

    yield start
    for process in started:
        process.stop()


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    """A client of the module's server."""
    with Client(server.address) as opened:
        yield opened


@pytest.fixture
def connect() -> Iterator[Callable[[str], Any]]:
    """Opens plain channels without limits on messages."""
    opened: list[Any] = []

    def start(address: str) -> Any:
        opened.append(grpc.insecure_channel(address, options=UNLIMITED))
        return opened[-1]

    yield start
    for channel in opened:
        channel.close()


class FrameSession:
    """A session spoken frame by frame."""

    def __init__(
        self, address: str, device: str = "", *, open_it: bool = True, metadata: Any = (), **fields: Any
    ) -> None:
        self.channel: Any = grpc.insecure_channel(address, options=UNLIMITED)
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        requests: Any = iter(self._outbox.get, None)
        method: Any = self.channel.stream_stream("/umd.runtime.Runtime/Session")
        self.call: Any = method(requests, metadata=metadata)
        self.seq = 0
        self.replies: dict[int, pb.Reply] = {}
        self.last = pb.SessionResponse()
        self.opened = pb.Opened()
        if open_it:
            seq = self.send(self.frame(open=pb.Open(device=device, protocol=1, **fields)))
            self.opened = self.answer(seq).opened

    def frame(self, **command: Any) -> pb.Frame:
        """Returns the next frame."""
        self.seq += 1
        return pb.Frame(seq=self.seq, **command)

    def send(self, *frames: pb.Frame) -> int:
        """Sends one message; returns the seq of its last frame."""
        self.send_raw(pb.SessionRequest(frames=frames).SerializeToString())
        return frames[-1].seq

    def send_raw(self, raw: bytes) -> None:
        """Sends bytes as a message."""
        self._outbox.put(raw)

    def next(self) -> pb.SessionResponse:
        """Returns the next response and remembers its replies."""
        self.last = pb.SessionResponse.FromString(next(self.call))
        for reply in self.last.replies:
            self.replies[reply.seq] = reply
        return self.last

    def answer(self, seq: int) -> pb.Reply:
        """Returns the reply to a frame, reading on until it comes."""
        while seq not in self.replies:
            self.next()
        return self.replies[seq]

    def ask(self, **command: Any) -> pb.Reply:
        """Sends one frame and returns the reply to it."""
        return self.answer(self.send(self.frame(**command)))

    def do(self, **command: Any) -> pb.Reply:
        """Sends a frame and a flush; returns the reply to the frame, an empty one when there was none."""
        frame, flush = self.frame(**command), self.frame(flush=pb.Flush())
        self.send(frame, flush)
        self.answer(flush.seq)
        return self.replies.get(frame.seq, pb.Reply())

    def allocate(self, handle: int, size: int) -> None:
        """Makes a buffer; fails when the server does not."""
        assert not self.do(allocate=pb.Allocate(handles=[handle], sizes=[size])).HasField("error")

    def read(self, handle: int, offset: int, size: int) -> bytes:
        """Returns bytes of a buffer; fails when the server does not give them."""
        reply = self.ask(read=pb.ReadRange(buffer=handle, offset=offset, size=size))
        assert reply.WhichOneof("result") == "data", reply
        return reply.data

    def abandon(self) -> None:
        """Ends the stream as a client does that has gone away."""
        self._outbox.put(None)
        self.call.cancel()
        self.channel.close()

    def close(self) -> None:
        """Ends the stream and waits for its end."""
        self._outbox.put(None)
        for _ in self.call:
            pass
        self.channel.close()


@pytest.fixture
def open_session(server: ServerProcess) -> Iterator[Callable[..., FrameSession]]:
    """Opens sessions on the module's server."""
    opened: list[FrameSession] = []

    def start(**options: Any) -> FrameSession:
        opened.append(FrameSession(server.address, **options))
        return opened[-1]

    yield start
    for session in opened:
        session.abandon()


@pytest.fixture
def session(open_session: Callable[..., FrameSession]) -> FrameSession:
    """An open session with buffers A, B, C, D (A holds 0…5), and a program that adds two of them."""
    opened = open_session()
    opened.send(
        opened.frame(allocate=pb.Allocate(handles=[A, B, C, D], sizes=[SIZE] * 4)),
        opened.frame(load=pb.Load(handle=PROGRAM, program=add_program())),
        opened.frame(write=pb.WriteRange(buffer=A, data=X.tobytes())),
    )
    return opened
