"""Weights that a server keeps: found again by their hash, within one identity, and never believed."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import umd_core as umd
from tests.grpc.conftest import FrameSession, ServerProcess
from tests.grpc.identities import add, move_home
from umd_core.errors import Status, UnsupportedError
from umd_grpc._pb.umd import runtime_pb2 as pb
from umd_grpc.client.remote import RemoteDevice
from umd_grpc.client.weights import LEAST
from umd_grpc.messages import chunks
from umd_grpc.server.tokens import TokenFile
from umd_grpc.server.weights import Weights, open_weights

Start = Callable[..., ServerProcess]
A, B, C, PROGRAM = (number | 1 << 32 for number in range(1, 5))
MIB = 1 << 20


def layers(count: int, size: int = 200_000) -> list[np.ndarray[Any, Any]]:
    """Returns random arrays, each of other bytes."""
    return [np.random.default_rng(n).integers(0, 256, size, np.uint8) for n in range(count)]


def files(folder: Path) -> list[Path]:
    """Returns what is kept, unfinished files too."""
    return sorted(path for path in folder.glob("*/*"))


def put(device: RemoteDevice, arrays: list[np.ndarray[Any, Any]]) -> int:
    """Writes arrays into one buffer and checks that they are there; returns the bytes that were sent."""
    size = sum(array.nbytes for array in arrays)
    buffer, offset, writes = device.allocate(size), 0, []
    for array in arrays:
        writes.append((buffer, offset, array))
        offset += array.nbytes
    sent = device.write_weights(writes)
    assert bytes(device.read(buffer, 0, size)) == b"".join(array.tobytes() for array in arrays)
    device.free(buffer)
    return sent


def test_weights_are_sent_once(start_server: Start, tmp_path: Path) -> None:
    server = start_server("--weights", str(tmp_path))
    arrays = [*layers(10), np.arange(5, dtype=np.uint8), np.random.default_rng(1).integers(0, 256, 5 * MIB, np.uint8)]
    size = sum(array.nbytes for array in arrays)
    device = RemoteDevice(server.address, shared_memory=False)
    assert "weights" in device.caps().flags
    assert put(device, arrays) == size
    server.wait_for(lambda: len(files(tmp_path)) == 11)
    before = device.round_trips
    assert put(device, arrays) == 5  # too few bytes for a hash
    assert device.round_trips == before + 2  # one offers everything, one reads
    server.process.kill()
    assert [hashlib.sha256(path.read_bytes()).hexdigest() for path in files(tmp_path)] == [
        path.name for path in files(tmp_path)
    ]
    again = start_server("--weights", str(tmp_path))
    other = RemoteDevice(again.address)
    assert put(other, arrays) == 5
    other.close()
    again.check_sound()


def test_another_identity_cannot_tell_what_is_there(
    start_server: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    move_home(tmp_path, monkeypatch)
    tokens, folder = TokenFile(tmp_path / "tokens.json"), tmp_path / "weights"
    secrets = {name: add(tokens, name) for name in ("ada", "bob")}
    server = start_server("--tokens", str(tokens.path), "--weights", str(folder))
    arrays = layers(3)
    ada, bob = (RemoteDevice(server.address, token=secrets[name]) for name in ("ada", "bob"))
    assert put(ada, arrays) == 600_000
    server.wait_for(lambda: len(files(folder)) == 3)
    assert put(bob, arrays) == 600_000  # as if ada had never been there
    server.wait_for(lambda: len(files(folder)) == 6)
    assert (put(ada, arrays), put(bob, arrays)) == (0, 0)
    assert {path.parent.name for path in files(folder)} == {
        hashlib.sha256(name.encode()).hexdigest() for name in ("ada", "bob")
    }
    for device in (ada, bob):
        device.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("weights")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ServerProcess]:
    """A server that keeps 2 MiB."""
    process = ServerProcess("--weights", str(folder), "--weights-size", "2MiB", "--limits-stall-seconds", "5")
    try:
        yield process
        process.check_sound()
    finally:
        process.stop()


def test_damaged_files_are_not_used(server: ServerProcess, folder: Path) -> None:
    device, (array,) = RemoteDevice(server.address), layers(1)
    put(device, [array])
    server.wait_for(lambda: folder.joinpath(owned(array)).exists())
    path = folder / owned(array)
    raw = array.tobytes()
    for damaged in (raw[:-1] + bytes([raw[-1] ^ 1]), raw[:-1], raw + b"x"):
        path.write_bytes(damaged)
        assert put(device, [array]) == array.nbytes
        server.wait_for(lambda: path.exists() and path.read_bytes() == array.tobytes())
    path.unlink()
    assert put(device, [array]) == array.nbytes
    assert len(server.events("weights_damaged")) == 3
    device.close()


def owned(array: np.ndarray[Any, Any]) -> str:
    """Returns where the bytes of an array are kept for the caller who needs no token."""
    return f"{hashlib.sha256(b'local').hexdigest()}/{hashlib.sha256(array.tobytes()).hexdigest()}"


def test_what_was_not_used_for_longest_goes(server: ServerProcess, folder: Path) -> None:
    device, arrays = RemoteDevice(server.address), layers(4, 600_000)
    for array in arrays[:3]:
        put(device, [array])
        server.wait_for(lambda array=array: folder.joinpath(owned(array)).exists())  # type: ignore[misc]  # typed above
    assert put(device, [arrays[0]]) == 0
    put(device, [arrays[3]])
    server.wait_for(lambda: folder.joinpath(owned(arrays[3])).exists())
    assert [folder.joinpath(owned(array)).exists() for array in arrays] == [True, False, True, True]
    assert sum(path.stat().st_size for path in files(folder)) <= 2 * MIB
    big = np.zeros(3 * MIB, np.uint8)
    assert [put(device, [big]), put(device, [big])] == [big.nbytes] * 2  # more than is kept at all
    device.close()


def test_a_full_disk_is_one_line_in_the_log(start_server: Start, tmp_path: Path) -> None:
    server = start_server("--weights", str(tmp_path))
    tmp_path.joinpath(hashlib.sha256(b"local").hexdigest()).write_bytes(b"no folder can be made here")
    device, arrays = RemoteDevice(server.address), layers(5)
    for _ in range(2):
        assert put(device, arrays) == 1_000_000
    assert len(server.events("weights_not_kept")) == 1
    device.close()
    server.check_sound()


def offer(session: FrameSession, number: int, data: bytes, sha256: bytes, offset: int = 0) -> pb.Frame:
    """Returns the frame of a write whose bytes may be there."""
    given_ = pb.Transfer(
        id=number, direction=pb.DIRECTION_WRITE, buffer=A, offset=offset, size=len(data), sha256=sha256
    )
    return session.frame(transfer=given_)


def send(channel: Any, session: FrameSession, number: int, data: bytes, piece: int = MIB) -> pb.WriteResponse:
    """Sends the bytes of a transfer in chunks."""
    view, token = memoryview(data), session.opened.session
    messages = [chunks.write_request(token, number, at, view[at : at + piece]) for at in range(0, len(data), piece)]
    return pb.WriteResponse.FromString(channel.stream_unary("/umd.runtime.Runtime/Write")(iter(messages), timeout=30))


def test_bytes_that_are_not_what_was_said_are_not_kept(
    server: ServerProcess, folder: Path, open_session: Callable[..., FrameSession], connect: Any
) -> None:
    session, channel, data = open_session(), connect(server.address), os.urandom(LEAST)
    session.allocate(A, 2 * LEAST)
    said = hashlib.sha256(b"other bytes").digest()
    for number in (1, 2):
        frame = offer(session, number, data, said)
        session.send(frame)
        assert session.answer(frame.seq).done.value == 0
        assert send(channel, session, number, data).size == len(data)
    assert session.read(A, 0, LEAST) == data
    assert not [path for path in files(folder) if path.name == said.hex()]
    assert not [path for path in files(folder) if path.name.startswith(".part")]


@pytest.mark.parametrize("sha256", [b"x", bytes(31), bytes(33), bytes(64)])
def test_hashes_of_another_size(open_session: Callable[..., FrameSession], sha256: bytes) -> None:
    session = open_session()
    session.allocate(A, 64)
    assert session.do(transfer=offer(session, 1, bytes(64), sha256).transfer).error.status == Status.BAD_BYTES


def test_a_server_that_keeps_none_asks_for_everything(start_server: Start, connect: Any) -> None:
    server = start_server()
    session, channel, data = FrameSession(server.address), connect(server.address), os.urandom(64)
    session.allocate(A, 64)
    frame = offer(session, 1, data, hashlib.sha256(data).digest())
    session.send(frame)
    assert session.answer(frame.seq).done.value == 0
    assert send(channel, session, 1, data).size == 64
    assert session.read(A, 0, 64) == data
    session.close()
    device = RemoteDevice(server.address)
    assert "weights" not in device.caps().flags
    assert put(device, layers(2)) == 400_000
    device.close()


def test_unfinished_files_are_swept_and_others_counted(tmp_path: Path) -> None:
    async def fill(weights: Weights, data: bytes, *, to_the_end: bool) -> None:
        keeper = weights.receive("me", hashlib.sha256(data).digest(), len(data))
        assert keeper is not None
        await keeper.add(data)
        if to_the_end:
            await keeper.keep()

    weights = Weights(tmp_path, 1000)
    asyncio.run(fill(weights, b"a" * 400, to_the_end=True))
    asyncio.run(fill(weights, b"b" * 400, to_the_end=False))
    assert len(files(tmp_path)) == 2
    assert weights.receive("me", bytes(32), 601) is None  # there is no room beside what is coming
    again = Weights(tmp_path, 300)
    assert files(tmp_path) == []
    assert again.find("me", hashlib.sha256(b"a" * 400).digest(), 400) is None


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    assert open_weights("", 1) is None
    tmp_path.joinpath("file").write_bytes(b"")
    with pytest.raises(UnsupportedError, match="cannot be kept in"):
        open_weights(str(tmp_path / "file"), 1)


WIDTH = 256
ROUND = st.tuples(st.integers(0, 3), st.integers(1, WIDTH), st.booleans(), st.integers(16, WIDTH))
X = umd.TensorDesc("u8", (WIDTH,))
ADD = bytes(umd.translate("Add", [X, X]))


@settings(max_examples=100, deadline=None)
@given(rounds=st.lists(ROUND, min_size=1, max_size=6), data=st.data())
def test_no_submission_overtakes_its_weights(
    server: ServerProcess, rounds: list[tuple[int, int, bool, int]], data: Any
) -> None:
    """Each round writes some of A by a transfer, then adds it to B and reads; calls come in any order."""
    from concurrent.futures import ThreadPoolExecutor  # one test needs it

    session = FrameSession(server.address)
    frames = [
        session.frame(allocate=pb.Allocate(handles=[A, B, C], sizes=[WIDTH] * 3)),
        session.frame(load=pb.Load(handle=PROGRAM, program=ADD)),
    ]
    model, expected, writes = np.zeros(WIDTH, np.uint8), [], []
    for number, (kind, size, known, piece) in enumerate(rounds, 1):
        offset = 0 if kind == 0 else (WIDTH - size) // kind
        content = np.random.default_rng([kind, size]).integers(0, 256, size, np.uint8)  # some come again
        sha256 = hashlib.sha256(content.tobytes()).digest() if known else b""
        frame = offer(session, number, content.tobytes(), sha256, offset)
        frames += [
            frame,
            session.frame(submit=pb.Submit(program=PROGRAM, buffers=[A, B, C])),
            session.frame(read=pb.ReadRange(buffer=C, size=WIDTH)),
        ]
        model[offset : offset + size] = content
        expected.append((frames[-1].seq, model.tobytes()))
        writes.append((number, content.tobytes(), piece))
    session.send(*frames)
    order = data.draw(st.permutations(writes))
    with ThreadPoolExecutor(len(order)) as pool:
        calls = [pool.submit(send, session.channel, session, *write) for write in order]
        for seq, wanted in expected:
            assert session.answer(seq).data == wanted
        assert [call.result().size for call in calls] == [len(content) for _, content, _ in order]
    session.close()
