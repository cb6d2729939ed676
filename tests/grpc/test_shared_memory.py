"""Memory that a client shares with a server on its host: what a hostile client may try with it."""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from tests.grpc.conftest import FrameSession, ServerProcess
from umd_core.errors import DecodeError, Status
from umd_grpc._pb.umd import runtime_pb2 as pb
from umd_grpc.client import Client
from umd_grpc.client.remote import RemoteDevice
from umd_grpc.messages.region import HELLO, PACKET, READ, WRITE, Move, decode_reply
from umd_grpc.server.region import SEALS, Region

A = 1 | 1 << 32
SIZE, REGION = 3 << 20, 1 << 20
PIECE = 256 << 10
SLOTS = REGION // PIECE
NOBODY = 65_534


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    """A server that shares 1 MiB with each of two sessions."""
    process = ServerProcess("--shared-memory-size", "1MiB", "--shared-memory-total", "2MiB")
    try:
        yield process
        process.check_sound()
    finally:
        process.stop()


class Neighbour:
    """A client that says over the socket whatever it likes."""

    def __init__(self, described: pb.SharedMemory, token: bytes) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(20)
        self.socket.connect(b"\0" + described.address)
        self.descriptors: list[int] = []
        hello = b""
        with suppress(OSError):  # it was refused at once
            self.socket.send(token)
            hello, self.descriptors, _, _ = socket.recv_fds(self.socket, 1, 1)
        self.given = hello == HELLO
        self.map = mmap.mmap(self.descriptors[0], described.size) if self.given else None

    def ask(self, packet: bytes) -> tuple[int, Any]:
        """Returns what the server answers."""
        self.socket.send(packet)
        return decode_reply(self.socket.recv(PACKET))

    def close(self) -> None:
        """Lets go of everything."""
        self.socket.close()
        for descriptor in self.descriptors:
            os.close(descriptor)


def given(described: pb.SharedMemory, token: bytes) -> bool:
    """Returns whether a client that shows a token is given a region; it gives it back at once."""
    made = Neighbour(described, token)
    made.close()
    return made.given


@pytest.fixture
def session(open_session: Callable[..., FrameSession]) -> FrameSession:
    """A session with a buffer of 3 MiB."""
    opened = open_session()
    opened.allocate(A, SIZE)
    return opened


@pytest.fixture
def described(client: Client) -> pb.SharedMemory:
    """Where the server gives regions out."""
    return client.describe().shared_memory


@pytest.fixture
def neighbour(described: pb.SharedMemory, session: FrameSession) -> Iterator[Neighbour]:
    """Its neighbour, with the region."""
    made = Neighbour(described, session.opened.session)
    assert made.given
    yield made
    made.close()


def transfer(session: FrameSession, number: int, direction: Any = pb.DIRECTION_WRITE, size: int = SIZE) -> None:
    session.send(session.frame(transfer=pb.Transfer(id=number, direction=direction, buffer=A, size=size)))


HOSTILE = {
    "beyond the region": Move(WRITE, 1, 0, REGION, 1),
    "across its end": Move(WRITE, 1, 0, REGION - 8, 9),
    "more than the region": Move(WRITE, 1, 0, 0, REGION + 1),
    "huge": Move(WRITE, 1, 0, 1 << 63, (1 << 64) - 1),
    "wraps around": Move(WRITE, 1, 0, (1 << 64) - 8, 16),
    "nothing": Move(WRITE, 1, 0, 0, 0),
    "a gap": Move(WRITE, 1, 64, 0, 64),
    "more than the transfer": Move(WRITE, 2, 0, 0, 4096),
    "the other way": Move(READ, 1, 0, 0, 64),
    "beyond what is read": Move(READ, 3, SIZE, 0, 64),
    "far beyond": Move(READ, 3, (1 << 64) - 1, 0, 64),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_offsets_are_refused(session: FrameSession, neighbour: Neighbour, name: str) -> None:
    move = HOSTILE[name]
    transfer(
        session,
        move.transfer,
        pb.DIRECTION_READ if move.transfer == 3 else pb.DIRECTION_WRITE,
        64 if move.transfer == 2 else SIZE,
    )
    _, error = neighbour.ask(move.encode())
    assert error.status == Status.BAD_BYTES
    if move.transfer == 1:  # the transfer is still there for who does it right
        assert neighbour.ask(Move(WRITE, 1, 0, 0, 64).encode()) == (64, None)


@pytest.mark.parametrize("packet", [b"x", bytes(39), bytes(40), bytes(41), bytes(4096)])
def test_packets_that_are_no_request(neighbour: Neighbour, packet: bytes) -> None:
    assert neighbour.ask(packet)[1].status == Status.BAD_BYTES
    assert neighbour.ask(packet)[1].status == Status.BAD_BYTES


def test_bytes_that_change_while_they_are_copied(session: FrameSession, neighbour: Neighbour) -> None:
    over = threading.Event()
    region = neighbour.map
    assert region is not None

    def scribble() -> None:
        values = 0
        while not over.is_set():
            values = (values + 1) % 256
            region[:] = bytes([values]) * REGION

    thread = threading.Thread(target=scribble)
    thread.start()
    for number in range(1, 4):
        transfer(session, number)
        for part in range(3):
            done = (part + 1) * REGION
            assert neighbour.ask(Move(WRITE, number, part * REGION, 0, REGION).encode()) == (done, None)
    over.set()
    thread.join()
    assert len(session.read(A, 0, 1 << 20)) == 1 << 20


def test_the_region_cannot_be_shrunk_or_grown(neighbour: Neighbour) -> None:
    (descriptor,) = neighbour.descriptors
    for size in (0, REGION - 1, REGION + 1):
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, size)
    with pytest.raises(PermissionError):
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    assert fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & SEALS == SEALS


def test_reading_gives_the_bytes_and_lets_later_frames_go(session: FrameSession, neighbour: Neighbour) -> None:
    data = np.random.default_rng(3).integers(0, 256, SIZE, np.uint8).tobytes()
    for part in range(3):
        session.send(
            session.frame(write=pb.WriteRange(buffer=A, offset=part << 20, data=data[part << 20 : part + 1 << 20]))
        )
    transfer(session, 1, pb.DIRECTION_READ)
    session.send(session.frame(write=pb.WriteRange(buffer=A, data=b"later")))
    found = b""
    assert neighbour.map is not None
    for offset in range(0, SIZE, REGION // 2):
        place = offset % REGION
        assert neighbour.ask(Move(READ, 1, offset, place, REGION // 2).encode()) == (offset + REGION // 2, None)
        found += neighbour.map[place : place + REGION // 2]
    assert found == data
    assert session.read(A, 0, 5) == b"later"


def test_requests_that_come_together_are_served_in_order(session: FrameSession, neighbour: Neighbour) -> None:
    data = np.random.default_rng(4).integers(0, 256, SIZE, np.uint8).tobytes()
    transfer(session, 1)
    transfer(session, 2, pb.DIRECTION_READ)
    assert neighbour.map is not None
    offsets = range(0, SIZE, PIECE)
    for first in range(0, len(offsets), SLOTS):  # as many at one time as the region has room for
        group = offsets[first : first + SLOTS]
        for offset in group:
            neighbour.map[offset % REGION : offset % REGION + PIECE] = data[offset : offset + PIECE]
            neighbour.socket.send(Move(WRITE, 1, offset, offset % REGION, PIECE).encode())
        if group[-1] == offsets[-1]:  # what follows belongs to another transfer
            neighbour.socket.send(Move(READ, 2, 0, 0, PIECE).encode())
        for offset in group:
            assert decode_reply(neighbour.socket.recv(PACKET)) == (offset + PIECE, None)
    assert decode_reply(neighbour.socket.recv(PACKET)) == (PIECE, None)
    found = bytes(neighbour.map[:PIECE])
    for offset in offsets[1:]:
        assert neighbour.ask(Move(READ, 2, offset, 0, PIECE).encode()) == (offset + PIECE, None)
        found += neighbour.map[:PIECE]
    assert found == data


def test_a_wrong_request_among_good_ones(session: FrameSession, neighbour: Neighbour) -> None:
    transfer(session, 1)
    assert neighbour.map is not None
    neighbour.map[:REGION] = bytes(range(256)) * (REGION // 256)
    for offset in (0, 2 * PIECE, PIECE):
        neighbour.socket.send(Move(WRITE, 1, offset, offset, PIECE).encode())
    assert decode_reply(neighbour.socket.recv(PACKET)) == (PIECE, None)
    done, error = decode_reply(neighbour.socket.recv(PACKET))
    assert (done, error.status if error else 0) == (PIECE, Status.BAD_BYTES)
    assert decode_reply(neighbour.socket.recv(PACKET)) == (2 * PIECE, None)


def test_a_transfer_ends_with_its_session(server: ServerProcess, session: FrameSession, neighbour: Neighbour) -> None:
    transfer(session, 1)
    for offset in range(0, REGION, PIECE):
        neighbour.socket.send(Move(WRITE, 1, offset, offset, PIECE).encode())
    session.abandon()
    with suppress(ConnectionError):
        while neighbour.socket.recv(PACKET):
            pass
    server.check_sound()


def test_who_is_given_a_region(
    server: ServerProcess,
    described: pb.SharedMemory,
    session: FrameSession,
    open_session: Callable[..., FrameSession],
) -> None:
    for token in (b"x" * 16, b"x", session.opened.session + b"x"):
        assert not given(described, token)
    first = Neighbour(described, session.opened.session)
    assert first.given
    assert not given(described, session.opened.session)  # one for a session
    second = Neighbour(described, open_session().opened.session)
    assert second.given
    third = open_session().opened.session
    assert not given(described, third)  # 2 MiB in all
    first.close()
    server.wait_for(lambda: given(described, third))
    second.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become another user")
def test_another_user_is_refused(described: pb.SharedMemory, session: FrameSession) -> None:
    os.seteuid(NOBODY)
    try:
        assert not given(described, session.opened.session)
    finally:
        os.seteuid(0)


def test_what_does_not_fit_goes_over_the_stream(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    data = np.random.default_rng(5).integers(0, 256, 9 << 20, np.uint8)
    monkeypatch.setenv("UMD_SHARED_MEMORY", "0")
    switched_off = RemoteDevice(server.address)
    monkeypatch.delenv("UMD_SHARED_MEMORY")
    devices = [RemoteDevice(server.address) for _ in range(3)]
    for device in (switched_off, *devices):  # the third of them is given no memory
        held = device.tensor(data)
        assert np.array_equal(held.numpy(), data)
        device.close()


def test_threads_share_one_region(server: ServerProcess) -> None:
    device = RemoteDevice(server.address)
    failures: list[object] = []

    def work(seed: int) -> None:
        data = np.random.default_rng(seed).integers(0, 256, (2 << 20) + seed, np.uint8)
        for _ in range(4):
            if not np.array_equal(device.tensor(data).numpy(), data):
                failures.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    device.close()


def test_a_server_without_shared_memory_offers_none(start_server: Callable[..., ServerProcess]) -> None:
    server = start_server("--shared-memory-size", "0")
    with Client(server.address) as client:
        assert not client.describe().HasField("shared_memory")
    device = RemoteDevice(server.address)
    data = np.arange(2 << 20, dtype=np.uint8)
    assert np.array_equal(device.tensor(data).numpy(), data)
    device.close()


def test_replies_that_are_none() -> None:
    for packet in (b"", b"1234567", b"12345678\xff"):
        with pytest.raises(DecodeError):
            decode_reply(packet)


def test_a_region_has_no_name() -> None:
    region = Region(4096)
    path = os.readlink(f"/proc/self/fd/{region.descriptor}")
    region.close()
    assert path == "/memfd:umd-region (deleted)"
