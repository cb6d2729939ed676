"""The server as a process: what it listens on, health, reflection, its log, how it ends."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

import umd_core as umd
from umd_core.errors import DeviceLostError, NotAuthorisedError
from umd_grpc._pb.umd import runtime_pb2 as pb
from umd_grpc._pb.umd import translator_pb2, translator_pb2_grpc
from umd_grpc.client import Client, Request
from umd_grpc.client.remote import RemoteDevice
from umd_grpc.server import SERVICES, check_addresses, is_local

Start = Callable[..., Any]
X = np.ones((64, 64), np.float32)
HealthStub: Any = health_pb2_grpc.HealthStub
ReflectionStub: Any = reflection_pb2_grpc.ServerReflectionStub
TranslatorStub: Any = translator_pb2_grpc.TranslatorStub
Connect = Callable[[str], Any]
NAMES = ("umd.Translator", "umd.graph.Graphs", "umd.runtime.Runtime", "umd.admin.Admin")


def run_server(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "umd_grpc.server", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_ready_line(server: Any) -> None:
    assert server.ready["event"] == "ready"
    assert server.ready["devices"] == ["sim:0"]
    assert server.ready["pid"] == server.process.pid
    host, _, port = server.address.rpartition(":")
    assert (host, int(port) > 0) == ("127.0.0.1", True)


def test_several_addresses(start_server: Start, tmp_path: Any) -> None:
    server = start_server("--listen", f"unix:{tmp_path}/s", "--device", "sim:0")
    assert len(server.ready["listen"]) == 2
    for address in server.ready["listen"]:
        with Client(address) as client:
            assert client.healthy()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--listen", "0.0.0.0:0"], "--allow-insecure"),
        (["--device", "nothing:0"], "nothing"),
        (["--device", "sim:99"], "sim:99"),
    ],
    ids=["open-to-all", "no-backend", "no-device"],
)
def test_what_cannot_be_served_is_told_in_a_line(arguments: list[str], message: str) -> None:
    done = run_server("--listen", "127.0.0.1:0", *arguments)
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_an_address_in_use_is_told(server: Any) -> None:
    done = run_server("--listen", server.address)
    assert done.returncode == 1
    assert "cannot listen on" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("127.0.0.1:50051", True),
        ("localhost:0", True),
        ("[::1]:50051", True),
        ("unix:/run/umd.sock", True),
        ("unix-abstract:umd", True),
        ("0.0.0.0:50051", False),
        ("[::]:50051", False),
        ("192.168.1.7:50051", False),
        ("example.org:50051", False),
        (":50051", False),
    ],
)
def test_which_addresses_are_local(address: str, local: bool) -> None:
    assert is_local(address) == local
    check_addresses([address], allow_insecure=True)
    if not local:
        with pytest.raises(NotAuthorisedError, match="ssh -L"):
            check_addresses(["127.0.0.1:0", address], allow_insecure=False)


def test_health(server: Any, connect: Connect) -> None:
    stub = HealthStub(connect(server.address))
    for name in ("", *NAMES):
        answer = stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=10)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    with pytest.raises(grpc.RpcError) as caught:
        stub.Check(health_pb2.HealthCheckRequest(service="nothing"), timeout=10)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_reflection(server: Any, connect: Connect) -> None:
    assert SERVICES == NAMES
    asked = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="umd.runtime.Runtime"),
    ]
    listed, described = ReflectionStub(connect(server.address)).ServerReflectionInfo(iter(asked), timeout=10)
    others = {"grpc.health.v1.Health", "grpc.channelz.v1.Channelz"}
    assert {service.name for service in listed.list_services_response.service} >= others | set(NAMES)
    files = [FileDescriptorProto.FromString(raw) for raw in described.file_descriptor_response.file_descriptor_proto]
    assert "umd.runtime" in {file.package for file in files}


def test_channelz(server: Any, connect: Connect) -> None:
    servers = connect(server.address).unary_unary("/grpc.channelz.v1.Channelz/GetServers")(b"", timeout=10)
    assert server.address.rpartition(":")[0].encode() in servers


def test_a_line_a_second_under_load_and_none_without(start_server: Start) -> None:
    server = start_server()
    x = umd.TensorDesc("f32", (4,))
    end = time.monotonic() + 2.2
    with Client(server.address) as client:
        while time.monotonic() < end:
            assert sum(1 for _ in client.submit_batch([Request("Add", [x, x]), Request("Nope", [])] * 50)) == 100
    server.wait_for(lambda: len(server.events("load")) >= 2)
    lines = server.events("load")
    assert all(line["ops_per_second"] > 0 for line in lines[:2])
    for line in lines[:2]:
        assert line["failures"] > 0
        assert line["translate_p99_us"] >= line["translate_mean_us"] * 0.5 > 0
        assert {"sessions", "bytes_in", "bytes_out", "queue_depth"} <= line.keys()
    time.sleep(1.1)
    quiet = len(server.events("load"))
    time.sleep(1.2)
    assert len(server.events("load")) == quiet


# the end


def test_a_drain_without_work_ends_at_once_with_0(start_server: Start) -> None:
    server = start_server("--grace", "60")
    idle = RemoteDevice(server.address)
    idle.tensor(X).numpy()
    assert server.terminate() == 0
    assert [line["event"] for line in server.log][-2:] == ["draining", "stopped"]
    with pytest.raises(DeviceLostError, match="shutting down"):
        idle.tensor(X).numpy()
    idle.close()


def test_work_under_way_finishes_and_nothing_new_begins(start_server: Start) -> None:
    server = start_server("--grace", "60")
    device = RemoteDevice(server.address)
    large = np.eye(1200, dtype=np.float32)
    program = umd.translate("MatMul", [large, large])
    a = value = device.tensor(large)
    for _ in range(25):
        (value,) = device.run(program, [value, a])
    found: list[Any] = []
    reader = threading.Thread(target=lambda: found.append(value.numpy()))
    reader.start()
    server.wait_for(lambda: device._session.link.processed > 0)
    time.sleep(0.2)
    watched: list[int] = []

    def watch() -> None:
        with grpc.insecure_channel(server.address) as channel:
            stub = HealthStub(channel)
            try:
                for answer in stub.Watch(health_pb2.HealthCheckRequest(), timeout=60):
                    watched.append(answer.status)
            except grpc.RpcError:
                watched.append(-1)

    watcher = threading.Thread(target=watch)
    watcher.start()
    server.wait_for(lambda: bool(watched))
    assert reader.is_alive()
    server.process.send_signal(signal.SIGTERM)
    server.wait_for(lambda: len(watched) > 1)
    assert watched[1] == health_pb2.HealthCheckResponse.NOT_SERVING
    with pytest.raises(DeviceLostError):
        RemoteDevice(server.address, timeout=5)
    reader.join(60)
    np.testing.assert_array_equal(found[0], large)
    assert server.process.wait(30) == 0
    watcher.join(10)
    device.close()


def test_the_grace_time_ends(start_server: Start) -> None:
    """A stream that never ends is cut when the grace is over, and the server still ends well."""
    server = start_server("--grace", "1")
    with grpc.insecure_channel(server.address) as channel:
        stub = TranslatorStub(channel)

        def endless() -> Iterator[Any]:
            while True:
                yield translator_pb2.SubmitRequest(request=[translator_pb2.TranslateRequest(op_type="Nope")])
                time.sleep(0.01)

        call = stub.SubmitBatch(endless())
        next(call)
        begun = time.monotonic()
        assert server.terminate() == 0
        assert 0.5 < time.monotonic() - begun < 20
        with pytest.raises(grpc.RpcError):
            for _ in call:
                pass


def test_a_second_signal_ends_at_once(start_server: Start) -> None:
    server = start_server("--grace", "600")
    with grpc.insecure_channel(server.address) as channel:
        stub = TranslatorStub(channel)
        gate = threading.Event()

        def held() -> Iterator[Any]:
            yield translator_pb2.SubmitRequest(request=[translator_pb2.TranslateRequest(op_type="Nope")])
            gate.wait(60)

        call = stub.SubmitBatch(held())
        next(call)
        server.process.send_signal(signal.SIGTERM)
        server.wait_for(lambda: bool(server.events("draining")))
        assert server.process.poll() is None
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(10) == 128 + signal.SIGTERM
        gate.set()


def test_clients_that_vanish_leave_nothing(start_server: Start) -> None:
    """Each client takes two thirds of the memory and is gone without a word: the next one finds it free."""
    server = start_server()
    script = (
        "import os, sys\n"
        "from umd_grpc.client.remote import RemoteDevice\n"
        "device = RemoteDevice(sys.argv[1])\n"
        "buffer = device.allocate(device.caps().memory * 2 // 3)\n"
        "device.read(buffer, 0, 4)\n"
        "device.write(device.allocate(64), 0, bytes(64))\n"
        "os.kill(os.getpid(), 9)\n"
    )
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", script, server.address], timeout=60, check=False)
        assert done.returncode == -9
        server.wait_for(lambda: _sessions(server) == 0)
    server.check_sound()


def _sessions(server: Any) -> int:
    """Returns 0 when two thirds of the device's memory are free again."""
    with Client(server.address) as client:
        memory = client.describe().devices[0].memory
    device = RemoteDevice(server.address)
    try:
        device.read(device.allocate(memory * 2 // 3), 0, 4)
    except umd.UmdError:
        return 1
    finally:
        device.close()
    return 0


def test_garbage_instead_of_http2(server: Any) -> None:
    host, _, port = server.address.rpartition(":")
    for data in (
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(range(256)) * 40,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 300,
    ):
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(data)
    with Client(server.address) as client:
        assert client.healthy()
    server.check_sound()


def test_a_message_beyond_the_limit_is_refused_by_the_call(server: Any, connect: Connect) -> None:
    channel = connect(server.address)
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary("/umd.Translator/Translate")(bytes(66 << 20), timeout=60)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    describe = channel.unary_unary("/umd.runtime.Runtime/Describe", None, pb.DescribeResponse.FromString)
    assert describe(b"", timeout=10).devices
    server.check_sound()
