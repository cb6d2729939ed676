"""Who may call a server: tokens, and what becomes of those that are revoked. The server is a real process."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

import umd_core as umd
from tests.grpc.conftest import ServerProcess
from tests.grpc.identities import REVOKE_SECONDS, X, add, double, mode, move_home
from umd_core.errors import NotAuthorisedError, Status, UmdError
from umd_grpc._pb.umd import runtime_pb2 as pb
from umd_grpc.client import AsyncClient, Client, Request
from umd_grpc.client.remote import RemoteDevice
from umd_grpc.server.entries import new_secret
from umd_grpc.server.tokens import TokenFile

HealthStub: Any = health_pb2_grpc.HealthStub
ReflectionStub: Any = reflection_pb2_grpc.ServerReflectionStub


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without files of his own."""
    move_home(tmp_path, monkeypatch)
    return tmp_path


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> TokenFile:
    return TokenFile(tmp_path_factory.mktemp("server") / "tokens.json")


@pytest.fixture(scope="module")
def guarded(tokens: TokenFile) -> Iterator[Any]:
    """A server without TLS that asks for a token of `tokens`, on loopback and on a unix socket."""
    socket = f"unix:{tokens.path.parent}/s"
    process = ServerProcess("--tokens", str(tokens.path), "--listen", socket, "--device", "sim:0", "--device", "sim:1")
    try:
        yield process
        process.check_sound()
    finally:
        process.stop()


def status(call: Callable[[], Any]) -> tuple[grpc.StatusCode, str]:
    """Returns the code and the details of a call that fails."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value.code(), str(caught.value.details())


def test_calls_need_the_right_token(guarded: Any, tokens: TokenFile) -> None:
    secret = add(tokens, "alice")
    with grpc.insecure_channel(guarded.address) as channel:
        describe: Any = channel.unary_unary("/umd.runtime.Runtime/Describe")
        batch: Any = channel.stream_stream("/umd.Translator/SubmitBatch")
        channelz: Any = channel.unary_unary("/grpc.channelz.v1.Channelz/GetServers")
        asked = [reflection_pb2.ServerReflectionRequest(list_services="")]

        def call(*values: str) -> Callable[[], Any]:
            return lambda: describe(b"", timeout=10, metadata=[("authorization", value) for value in values])

        wrong = {
            "no token": (call(), "authorization: Bearer TOKEN"),
            "wrong": (call(f"Bearer {new_secret()}"), "umd token add NAME"),
            "nearly right": (call(f"Bearer {secret[:-1]}"), "umd token add NAME"),
            "empty": (call("Bearer "), "umd token add NAME"),
            "no scheme": (call(secret), "malformed"),
            "two": (call(f"Bearer {secret}", f"Bearer {secret}"), "malformed"),
            "long": (call("Bearer " + "x" * 4000), "at most 128"),
            "one-time": (call(f"Bearer {new_secret(joins=True)}"), "umd join LINE"),
            "stream": (lambda: next(batch(iter([b""]), timeout=10)), "authorization: Bearer TOKEN"),
            "large": (lambda: describe(bytes(60 << 20), timeout=10), "authorization: Bearer TOKEN"),
            "channelz": (lambda: channelz(b"", timeout=10), "authorization: Bearer TOKEN"),
            "reflection": (
                lambda: next(ReflectionStub(channel).ServerReflectionInfo(iter(asked), timeout=10)),
                "authorization: Bearer TOKEN",
            ),
        }
        for name, (refused, says) in wrong.items():
            code, details = status(refused)
            assert (name, code) == (name, grpc.StatusCode.UNAUTHENTICATED)
            assert says in details, name
            assert secret not in details
        given = [("authorization", f"bearer {secret}")]
        assert describe(b"", timeout=10, metadata=given)
        assert channelz(b"", timeout=10, metadata=given)
        (listed,) = ReflectionStub(channel).ServerReflectionInfo(iter(asked), timeout=10, metadata=given)
        assert "umd.access.Access" in {s.name for s in listed.list_services_response.service}
        answer = HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    assert mode(tokens.path.parent / "s") == 0o600
    for address in guarded.ready["listen"]:
        device = RemoteDevice(address, token=secret)
        np.testing.assert_array_equal(double(device), 2 * X)
        device.close()
    guarded.check_sound()


def test_clients_of_both_kinds_show_their_token(
    guarded: Any, tokens: TokenFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = add(tokens, "clients")
    with Client(guarded.address) as client, pytest.raises(NotAuthorisedError, match="asks who calls"):
        client.translate("Relu", [X])
    graph = umd.Graph()
    graph.output(graph.add("Relu", [graph.input("x", umd.TensorDesc.of(X))]))
    with Client(guarded.address, token=secret) as client:
        kernel = client.translate("Relu", [X]).kernel_name
        assert len(list(client.submit_batch([Request("Relu", [X])] * 3))) == 3
        assert client.translate_graph(graph).commands
        assert client.healthy()

    async def ask() -> list[Any]:
        async with AsyncClient(guarded.address) as found:
            one = await found.translate("Relu", [X])
            return [one, *[answer async for answer in found.submit_batch([Request("Relu", [X])])]]

    monkeypatch.setenv("UMD_TOKEN", secret)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # a token for this machine does not go to a proxy
    assert [answer.kernel_name for answer in asyncio.run(ask())] == [kernel] * 2


def test_a_token_is_for_some_devices(guarded: Any, tokens: TokenFile) -> None:
    secret = add(tokens, "narrow", devices=("sim:1",))
    device = RemoteDevice(guarded.address, "sim:1", token=secret)
    np.testing.assert_array_equal(double(device), 2 * X)
    device.close()
    with pytest.raises(UmdError, match="sim:1"):
        RemoteDevice(guarded.address, "sim:0", token=secret)
    with Client(guarded.address, token=secret) as client:
        assert [found.name for found in client.describe().devices] == ["sim:1"]
        with pytest.raises(NotAuthorisedError, match="may use sim:1, not sim:0") as caught:
            client.translate("Relu", [X], device="sim:0")
    assert caught.value.status == Status.NOT_AUTHORISED


def test_a_revoked_token_ends_what_it_began(guarded: Any, tokens: TokenFile) -> None:
    """Sessions and streams end within two seconds, others go on, new calls are refused; expiring does the same."""
    ada, bob = add(tokens, "ada"), add(tokens, "bob", expires=int(time.time() + 4))
    carol = RemoteDevice(guarded.address, token=add(tokens, "carol"))
    devices = [RemoteDevice(guarded.address, token=secret) for secret in (ada, bob)]
    client = Client(guarded.address, token=ada)
    gate = threading.Event()

    def endless() -> Iterator[Request]:
        yield Request("Relu", [X])
        gate.wait(60)

    stream = client.submit_batch(endless())
    ended: list[BaseException] = []

    def read() -> None:
        try:
            list(stream)
        except UmdError as error:
            ended.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    assert double(devices[0]).any()
    begun = time.monotonic()
    tokens.revoke("ada")
    guarded.wait_for(lambda: devices[0]._session.link.lost is not None, REVOKE_SECONDS)
    reader.join(max(0.0, begun + REVOKE_SECONDS - time.monotonic()))
    assert [type(error) for error in ended] == [NotAuthorisedError]
    gate.set()
    with pytest.raises(NotAuthorisedError, match="revoked"):
        double(devices[0])
    with pytest.raises(NotAuthorisedError, match="was revoked or has expired"):
        RemoteDevice(guarded.address, token=ada)
    guarded.wait_for(lambda: devices[1]._session.link.lost is not None, 4 + REVOKE_SECONDS)
    assert isinstance(devices[1]._session.link.lost, NotAuthorisedError)
    np.testing.assert_array_equal(double(carol), 2 * X)
    assert {event["name"] for event in guarded.events("revoked")} == {"ada", "bob"}
    for device in (carol, *devices):
        device.close()
    client.close()


def test_a_revoked_session_that_waits_for_its_client_is_freed(guarded: Any, tokens: TokenFile) -> None:
    """Its lease would keep two thirds of the memory for minutes."""
    secret, other = add(tokens, "absent"), RemoteDevice(guarded.address, token=add(tokens, "present"))
    size = other.caps().memory * 2 // 3
    frames = [
        pb.Frame(seq=1, open=pb.Open(device="sim:0", protocol=1, lease_seconds=300)),
        pb.Frame(seq=2, allocate=pb.Allocate(handles=[1 << 32 | 1], sizes=[size])),
        pb.Frame(seq=3, read=pb.ReadRange(buffer=1 << 32 | 1, offset=0, size=4)),
    ]
    outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    outbox.put(pb.SessionRequest(frames=frames).SerializeToString())
    with grpc.insecure_channel(guarded.address) as channel:
        session: Any = channel.stream_stream("/umd.runtime.Runtime/Session")
        call = session(iter(outbox.get, None), metadata=(("authorization", f"Bearer {secret}"),))
        while not any(reply.seq == 3 for reply in pb.SessionResponse.FromString(next(call)).replies):
            pass
        outbox.put(None)
        call.cancel()

    def is_free() -> bool:
        try:
            buffer = other.allocate(size)
            other.read(buffer, 0, 4)
        except UmdError:
            return False
        other.free(buffer)
        return True

    assert not is_free()
    tokens.revoke("absent")
    guarded.wait_for(is_free)
    other.close()


def test_guessing_is_slowed_down_and_neighbours_are_not(guarded: Any, tokens: TokenFile) -> None:
    """Failures over one socket close it to new faces for a while; what was accepted there before still is."""
    known, new = add(tokens, "known"), add(tokens, "stranger")
    with Client(f"unix:{tokens.path.parent}/s", token=known) as client:
        client.describe()
        with grpc.insecure_channel(f"unix:{tokens.path.parent}/s") as channel:
            describe: Any = channel.unary_unary("/umd.runtime.Runtime/Describe")
            said = [
                status(lambda: describe(b"", timeout=10, metadata=[("authorization", f"Bearer {new_secret()}")]))[1]
                for _ in range(25)
            ]
            assert "too many failed attempts" not in said[0]
            assert "too many failed attempts" in said[-1]
        client.describe()
    with (
        Client(f"unix:{tokens.path.parent}/s", token=new) as stranger,
        pytest.raises(NotAuthorisedError, match="too many failed"),
    ):
        stranger.describe()
    with Client(guarded.address, token=new) as elsewhere:
        elsewhere.describe()


def test_a_damaged_token_file_changes_nothing(guarded: Any, tokens: TokenFile) -> None:
    secret = add(tokens, "dora")
    with Client(guarded.address, token=secret) as client:
        client.describe()
        right = tokens.path.read_text(encoding="utf-8")
        tokens.path.write_text(right[:-20], encoding="utf-8")
        guarded.wait_for(lambda: bool(guarded.events("tokens_unusable")))
        client.describe()
        tokens.path.write_text(right, encoding="utf-8")
        client.describe()
        tokens.path.unlink()
        guarded.wait_for(lambda: "dora" in {event["name"] for event in guarded.events("revoked")})
        with pytest.raises(NotAuthorisedError):
            client.describe()
