"""gzip of translate traffic: on between machines, off on one, and never for tensor data."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import umd_core as umd
from tests.grpc.conftest import ServerProcess
from tests.grpc.wires import Way, Wire
from umd_core.errors import UmdError
from umd_grpc.client import AsyncClient, Client, Request, Translation
from umd_grpc.client.remote import RemoteDevice
from umd_grpc.compression import wanted

X = umd.TensorDesc("f32", (32, 64))
OPS = 500
Carried = dict[Way, int]


@pytest.fixture(params=["0", "1"], ids=["plain", "gzip"])
def packs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setenv("UMD_GZIP", request.param)
    return bool(request.param == "1")


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("127.0.0.1:50051", False),
        ("127.8.8.8:1", False),
        ("localhost:50051", False),
        ("[::1]:50051", False),
        ("unix:/run/umd.sock", False),
        ("gpu7.example.org:50051", True),
        ("10.0.0.7:50051", True),
        ("[2001:db8::1]:50051", True),
    ],
)
def test_what_leaves_the_machine_is_packed(target: str, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UMD_GZIP", raising=False)
    assert wanted(target) is expected
    monkeypatch.setenv("UMD_GZIP", "1")
    assert wanted(target)
    monkeypatch.setenv("UMD_GZIP", "0")
    assert not wanted(target)


def batch(address: str) -> list[Any]:
    with Client(address) as client:
        return list(client.submit_batch(Request("Add", [X, X]) for _ in range(OPS)))


def one_by_one(address: str) -> list[Any]:
    with Client(address) as client:
        return [client.translate("Add", [X, X]) for _ in range(20)]


def graph(address: str) -> list[Any]:
    made = umd.Graph("chain")
    value = made.input("x", X)
    for _ in range(200):
        value = made.add("Relu", [value])
    made.output(value)
    with Client(address) as client:
        return [bytes(client.translate_graph(made))]


def by_asyncio(address: str) -> list[Any]:
    async def run() -> list[Any]:
        async with AsyncClient(address) as client:
            return [answer async for answer in client.submit_batch(Request("Add", [X, X]) for _ in range(OPS))]

    return asyncio.run(run())


def program(answer: Any) -> bytes:
    found: bytes = answer.command_buffer if isinstance(answer, Translation) else answer
    return found


def carried(server: ServerProcess, work: Callable[[str], list[Any]]) -> tuple[Carried, list[Any]]:
    """Returns the bytes that went each way, and what the work returned."""
    wire = Wire(server.address)
    try:
        answers = work(wire.address)
        return dict(wire.carried), answers
    finally:
        wire.close()


@pytest.mark.parametrize(
    ("work", "ways"),
    [(batch, ("up", "down")), (graph, ("up", "down")), (by_asyncio, ("up", "down")), (one_by_one, ("down",))],
)
def test_it_saves_bytes(
    server: ServerProcess,
    work: Callable[[str], list[Any]],
    ways: Sequence[Way],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("UMD_GZIP", "0")
    plain, expected = carried(server, work)
    monkeypatch.setenv("UMD_GZIP", "1")
    packed, found = carried(server, work)
    for way in ways:
        assert packed[way] <= 0.7 * plain[way]
    assert list(map(program, found)) == list(map(program, expected))


def test_on_one_machine_it_is_off(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UMD_GZIP", "0")
    plain, _ = carried(server, batch)
    monkeypatch.delenv("UMD_GZIP")
    usual, _ = carried(server, batch)
    for way in plain:
        assert usual[way] == pytest.approx(plain[way], rel=0.05)


def test_single_calls_are_answered_all_the_same(server: ServerProcess, packs: bool) -> None:
    _, answers = carried(server, one_by_one)
    with Client(server.address) as client:
        expected = client.translate("Add", [X, X])
    assert {answer.command_buffer for answer in answers} == {expected.command_buffer}


def test_errors_come_through(server: ServerProcess, packs: bool) -> None:
    with Client(server.address) as client:
        (answer,) = client.submit_batch([Request("NoSuchOp", [X])])
    assert isinstance(answer, UmdError)
    assert "NoSuchOp" in str(answer)


def test_tensor_data_is_not_packed(server: ServerProcess, packs: bool) -> None:
    size = 4 << 20

    def there_and_back(address: str) -> list[Any]:
        device = RemoteDevice(address, shared_memory=False)
        try:
            return [device.tensor(np.zeros(size, np.uint8)).numpy().any()]
        finally:
            device.close()

    bytes_carried, (anything,) = carried(server, there_and_back)
    assert not anything
    assert all(count > size for count in bytes_carried.values())
