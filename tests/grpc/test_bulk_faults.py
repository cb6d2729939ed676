"""Transfers of the client library when something goes wrong on the way, or either side is killed."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.grpc.conftest import FrameSession, ServerProcess
from tests.grpc.identities import add, move_home
from tests.grpc.wires import MARK, Way, Wire
from umd_core.errors import DeviceLostError
from umd_grpc._pb.umd import runtime_pb2 as pb
from umd_grpc.client.bulk import KEPT, TRIES
from umd_grpc.client.remote import RemoteDevice
from umd_grpc.messages import chunks
from umd_grpc.server.tokens import TokenFile

SMALL, LARGE = 6 << 20, KEPT + (4 << 20)
HEADERS = 32 * 64
"""Bytes around the data of a few transfers: at most 64 in each of at most 32 messages of up to 1 MiB."""
A = 1 | 1 << 32


def noise(size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Returns random bytes, with marks in every 64 KiB or so."""
    data = np.random.default_rng(size).integers(0, 200, size, np.uint8)
    mark = np.frombuffer(MARK, np.uint8)
    for at in range(5 << 10, size - len(mark), 37 << 10):
        data[at : at + len(mark)] = mark
    return data


@pytest.fixture
def wire(server: ServerProcess) -> Iterator[Wire]:
    """A wire to the server."""
    made = Wire(server.address)
    yield made
    made.close()


@pytest.fixture
def device(wire: Wire) -> Iterator[RemoteDevice]:
    """A device at the end of the wire, that shares no memory."""
    opened = RemoteDevice(wire.address, shared_memory=False)
    yield opened
    opened.close()


@pytest.mark.parametrize("size", [SMALL, LARGE], ids=["kept", "not-kept"])
@pytest.mark.parametrize("harm", ["cut", "damage"])
@pytest.mark.parametrize("way", ["up", "down"])
def test_a_transfer_goes_on(wire: Wire, device: RemoteDevice, size: int, harm: str, way: Way) -> None:
    data, buffer, out = noise(size), device.allocate(size), np.empty(size, np.uint8)
    before = device.bytes_up, device.bytes_down

    def arm(now: Way) -> None:
        if now == way and harm == "cut":
            wire.cut_after(way, 3 << 20)
        elif now == way:
            wire.damage(way)

    arm("up")
    device.write(buffer, 0, data)
    if way == "down":
        device.synchronize()
        device.read(buffer, 0, 5)  # it waits until everything has come
    arm("down")
    device.read_into(buffer, 0, out)
    assert np.array_equal(out, data)
    assert wire.harmed.is_set()
    moved = device.bytes_up - before[0] + device.bytes_down - before[1]
    assert moved < 3 * size + HEADERS  # what was lost has gone once again, at most all of it


def test_what_is_on_its_way_may_change_when_write_has_returned(device: RemoteDevice) -> None:
    for size in (SMALL, LARGE):
        data, buffer = noise(size), device.allocate(size)
        expected = data.copy()
        device.write(buffer, 0, data)
        data[:] = 0
        assert np.array_equal(np.frombuffer(device.read(buffer, 0, size), np.uint8), expected)


def test_a_device_that_was_closed_carries_nothing(device: RemoteDevice) -> None:
    """Neither what begins nor what a thread goes on with, which would print what else it raised."""
    bulk, data = device._session.bulk, memoryview(bytearray(8))
    device.close()
    for use in (
        lambda: bulk.write(1, data, 1.0),
        lambda: bulk.read(1, data, 1.0),
        lambda: bulk._ask(1, TRIES, time.monotonic() + 1.0),
    ):
        with pytest.raises(DeviceLostError):
            use()


@pytest.mark.parametrize("what", ["write", "read"])
def test_a_device_is_closed_by_another_thread(server: ServerProcess, what: str) -> None:
    """Whoever moves bytes is told, in whatever state the closing meets it."""
    data, out = noise(LARGE), np.empty(LARGE, np.uint8)
    for number in range(6):
        device = RemoteDevice(server.address, shared_memory=False)
        buffer = device.allocate(LARGE)
        device.synchronize()
        closing = threading.Timer(number / 200, device.close)
        closing.start()
        with pytest.raises(DeviceLostError):
            while True:
                device.write(buffer, 0, data) if what == "write" else device.read_into(buffer, 0, out)
        closing.join()


@pytest.mark.parametrize("shared", [False, True])
def test_arrays_are_filled_in_place(server: ServerProcess, shared: bool) -> None:
    device = RemoteDevice(server.address, shared_memory=shared)
    x = np.arange(3 << 20, dtype=np.float32).reshape(3, -1)
    held = device.tensor(x)
    out = np.zeros_like(x)
    assert held.numpy(out=out) is out
    assert np.array_equal(out, x)
    strided = np.zeros((3, 2 << 20), np.float32)[:, ::2]
    held.numpy(out=strided)
    assert np.array_equal(strided, x)
    small = np.zeros(7, np.uint8)
    device.read_into(held.storage.buffer, 4, small)
    assert small.tobytes() == x.tobytes()[4:11]
    device.close()


def resident(process: ServerProcess, field: str = "VmRSS") -> int:
    """Returns bytes of the server's memory."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path(f"/proc/{process.process.pid}/status").read_text())
    assert found
    return int(found[1]) << 10


def test_slow_readers_hold_no_memory(server: ServerProcess, connect: Callable[[str], Any]) -> None:
    size, count = 64 << 20, 12
    sessions, calls = [FrameSession(server.address) for _ in range(count)], []
    for session in sessions:
        session.allocate(A, size)
        read = pb.Transfer(id=1, direction=pb.DIRECTION_READ, buffer=A, size=size)
        session.send(session.frame(transfer=read))
    before = resident(server)
    for session in sessions:
        request = pb.ReadRequest(session=session.opened.session, transfer=1).SerializeToString()
        calls.append(connect(server.address).unary_stream("/umd.runtime.Runtime/Read")(request, timeout=30))
        next(calls[-1])
    assert resident(server) - before < 2 * size  # of 12 times as much
    for call in calls:
        call.cancel()
    for session in sessions:
        session.close()


CLIENT = """
import sys, numpy as np
from umd_grpc.client.remote import RemoteDevice
device = RemoteDevice(sys.argv[1], shared_memory=sys.argv[2] == "shared")
data = np.ones(48 << 20, np.uint8)
buffer = device.allocate(len(data))
device.write(buffer, 0, data)
device.synchronize()
print("ready", flush=True)
while True:
    device.write(buffer, 0, data)
"""


def regions(pid: int | str) -> int:
    """Returns how many shared regions a process has mapped."""
    return Path(f"/proc/{pid}/maps").read_text().count("umd-region")


def descriptors(process: ServerProcess) -> list[str]:
    """Returns what the descriptors of a server are."""
    found = []
    for link in Path(f"/proc/{process.process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed since the folder was read
            found.append(str(link.readlink()))
    return found


@pytest.mark.parametrize("way", ["shared", "stream"])
def test_a_killed_client_leaves_nothing(
    start_server: Callable[..., ServerProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    move_home(tmp_path, monkeypatch)
    tokens = TokenFile(tmp_path / "tokens.json")
    secret = add(tokens, "ada")
    monkeypatch.setenv("UMD_TOKEN", secret)
    server = start_server("--tokens", str(tokens.path), "--quota-memory", "64MiB")
    counts: list[int] = []
    for round_ in range(3):
        client = subprocess.Popen(
            [sys.executable, "-c", CLIENT, server.address, way], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert client.stdout is not None
        assert client.stderr is not None
        assert client.stdout.readline() == b"ready\n", client.stderr.read()
        assert regions(server.process.pid) == (way == "shared")
        assert not memory_is_free(server, secret)
        time.sleep(0.05 * round_)  # somewhere in a transfer
        client.send_signal(signal.SIGKILL)
        client.wait()
        client.stdout.close()
        client.stderr.close()
        server.wait_for(lambda: regions(server.process.pid) == 0 and resident(server, "RssShmem") == 0)
        server.wait_for(lambda: memory_is_free(server, secret))
        server.wait_for(lambda: not any(target.startswith("/memfd:") for target in descriptors(server)))
        counts.append(len(descriptors(server)))
    assert counts[-1] <= counts[0] + 4  # what gRPC keeps for a while
    server.check_sound()


def memory_is_free(server: ServerProcess, secret: str) -> bool:
    """Returns whether one session may have nearly all of the quota."""
    session = FrameSession(server.address, metadata=(("authorization", f"Bearer {secret}"),))
    try:
        frame = session.frame(allocate=pb.Allocate(handles=[A], sizes=[60 << 20]))
        session.send(frame, flush := session.frame(flush=pb.Flush()))
        session.answer(flush.seq)
        return frame.seq not in session.replies
    finally:
        session.close()


@pytest.mark.parametrize("shared", [False, True])
def test_a_killed_server_is_one_error_soon(start_server: Callable[..., ServerProcess], shared: bool) -> None:
    server = start_server()
    device = RemoteDevice(server.address, shared_memory=shared)
    data = np.ones(48 << 20, np.uint8)
    buffer = device.allocate(len(data))
    device.write(buffer, 0, data)
    assert regions("self") == shared
    server.process.kill()
    start = time.monotonic()
    with pytest.raises(DeviceLostError):
        while True:
            device.write(buffer, 0, data)
    assert time.monotonic() - start < 10  # 2 s on a quiet machine
    device.close()
    assert regions("self") == 0


def test_a_damaged_chunk_is_told_from_a_whole_one() -> None:
    chunk = chunks.read_response(0, memoryview(b"bytes"))
    found = chunks.parse_read_response(chunk[:-1] + b"!")
    assert isinstance(found, chunks.Chunk)
    with pytest.raises(Exception, match="changed or damaged"):
        found.check(0, 5)
