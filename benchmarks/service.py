"""The service: 1,000 Adds one by one, streamed, coalesced; beside the original design and a bare echo.

`python benchmarks/service.py TABLE` prints one table: translations, cpu, traffic, clients, flood, steps or bulk. What
they are compared with is in `service_servers`.
"""

from __future__ import annotations

import functools
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

import grpc
import numpy as np
import service_bulk
import service_clients
from measure import interleaved, report
from service_servers import LARGE, SHAPE, SIZE, Served, X, serve

import umd_core as umd
from umd_core.device import Device, Tensor
from umd_grpc._pb.umd import translator_pb2 as pb
from umd_grpc._pb.umd import translator_pb2_grpc
from umd_grpc.client import Client, Request, Translation
from umd_grpc.client.remote import RemoteDevice
from umd_grpc.compression import SWITCH

OPS, ROUNDS = 1_000, 300
GOALS = {"original unary": 50, "original stream": 12}
"""How many times as many operations a second coalesced requests are to reach."""
CPU_GOAL, GZIP_GOAL = 8.0, 0.3
FORMS = {"umd coalesced, original bytes": pb.FORMAT_UNSPECIFIED, "umd coalesced, v1": pb.FORMAT_V1}


def start(name: str, stack: ExitStack) -> str:
    """Starts a server, "original", "echo" or "umd", and returns its address; the stack ends it."""
    return serve(name, stack).address


def request(number: int) -> Any:
    """Returns one Add as an original client builds it."""
    message = pb.TranslateRequest(op_type="Add", request_id=number)
    for name in ("a", "b"):
        message.inputs.add(name=name, shape=SHAPE, dtype="torch.float32")
    return message


def unary(stub: Any) -> None:
    """Sends the Adds one by one."""
    for number in range(OPS):
        assert stub.Translate(request(number), timeout=60).status == 0


def streamed(stub: Any) -> None:
    """Streams the Adds, one a message."""
    messages = (pb.SubmitRequest(request=[request(number)]) for number in range(OPS))
    assert sum(not message.response[0].status for message in stub.SubmitBatch(messages, timeout=60)) == OPS


def coalesced(client: Client, form: pb.Format) -> None:
    """Streams the Adds as the client library does."""
    answers = client.submit_batch(Request("Add", [X, X], format=form) for _ in range(OPS))
    assert sum(isinstance(answer, Translation) and len(answer.command_buffer) > 0 for answer in answers) == OPS


def echoes(
    address: str, stack: ExitStack, sizes: tuple[int, int], large: tuple[int, int]
) -> dict[str, Callable[[], None]]:
    """Returns the echo's works, with (request, response) sizes of one op and of the coalesced message."""
    channel: Any = stack.enter_context(grpc.insecure_channel(address, options=LARGE))
    call, stream = channel.unary_unary("/Echo/Unary"), channel.stream_stream("/Echo/Stream")

    def message(pair: tuple[int, int]) -> bytes:
        return SIZE.pack(pair[1]) + bytes(max(0, pair[0] - SIZE.size))

    def one_by_one() -> None:
        for _ in range(OPS):
            call(message(sizes), timeout=60)

    def many() -> None:
        assert sum(1 for _ in stream((message(sizes) for _ in range(OPS)), timeout=60)) == OPS

    def one_message() -> None:
        assert [len(raw) for raw in stream(iter([message(large)]), timeout=60)] == [large[1]]

    return {"echo unary": one_by_one, "echo stream": many, "echo, one message": one_message}


def translations(servers: dict[str, Served], stack: ExitStack) -> None:
    """Measures 1,000 Adds."""
    channels = {name: stack.enter_context(grpc.insecure_channel(servers[name].address)) for name in ("original", "umd")}
    make: Any = translator_pb2_grpc.TranslatorStub
    stubs = {name: make(channel) for name, channel in channels.items()}
    client = stack.enter_context(Client(servers["umd"].address))
    answer = stubs["umd"].Translate(request(1), timeout=60)
    sizes = (request(1).ByteSize(), answer.ByteSize())
    works: dict[str, Callable[[], None]] = {
        "original unary": lambda: unary(stubs["original"]),
        "original stream": lambda: streamed(stubs["original"]),
        **echoes(servers["echo"].address, stack, sizes, (OPS * (sizes[0] + 3), OPS * (sizes[1] + 3))),
        "umd unary": lambda: unary(stubs["umd"]),
        "umd stream": lambda: streamed(stubs["umd"]),
        **{name: functools.partial(coalesced, client, form) for name, form in FORMS.items()},
    }
    times = interleaved(works, repeat=7)
    base = {name: times[name] for name in GOALS}
    rows = []
    for name, seconds in times.items():
        ratios = [base[goal] / seconds for goal in GOALS]
        wanted = ", ".join(map(str, GOALS.values())) if "coalesced" in name else ""
        rows.append([name, OPS / seconds, seconds / OPS * 1e6, *ratios, wanted])
    header = ["1,000 Adds", "ops/s", "µs an op", "× original unary", "× original stream", "goal"]
    report("service", "Translation through the service", header, rows)


def run_and_read(device: Device, program: umd.CommandBuffer, held: Tensor) -> object:
    """Returns the sum of a tensor of the device with itself, read back."""
    return device.run(program, [held, held])[0].numpy()


def steps(servers: dict[str, Served], stack: ExitStack) -> None:
    """Measures running one small program and reading its result, in process and remotely."""
    remote, local = RemoteDevice(servers["umd"].address), umd.open_device("sim:0")
    stack.callback(remote.close)
    stack.callback(local.close)
    x = np.arange(6, dtype=np.float32)
    program = umd.translate("Add", [x, x])
    channel: Any = stack.enter_context(grpc.insecure_channel(servers["echo"].address))
    call = channel.unary_unary("/Echo/Unary")
    works: dict[str, Callable[[], object]] = {"echo unary": lambda: call(SIZE.pack(64), timeout=60)}
    devices: dict[str, Device] = {"in process": local, "remote": remote}
    for name, device in devices.items():
        held = device.tensor(x)
        works[f"{name}: run, read"] = functools.partial(run_and_read, device, program, held)
    works["remote: nothing but the round trip"] = remote.synchronize
    times = interleaved(works, number=200, repeat=9)
    rows = [[name, seconds * 1e6, seconds / times["echo unary"]] for name, seconds in times.items()]
    report("service_steps", "One Add of 6 elements", ["step", "µs", "× echo"], rows)


def server_cpu(servers: dict[str, Served], stack: ExitStack) -> None:
    """Measures the CPU time of both sides for coalesced Adds."""
    client = stack.enter_context(Client(servers["umd"].address))
    rows = []
    for name, form in FORMS.items():
        coalesced(client, form)
        begun, used, start = servers["umd"].cpu_seconds(), time.process_time(), time.perf_counter()
        for _ in range(ROUNDS):
            coalesced(client, form)
        ops, passed = ROUNDS * OPS, time.perf_counter() - start
        server, own = servers["umd"].cpu_seconds() - begun, time.process_time() - used
        rows.append([name, server / ops * 1e6, own / ops * 1e6, passed / ops * 1e6, CPU_GOAL])
    header = [f"{ROUNDS * OPS:,} Adds", "server CPU µs an op", "client CPU µs an op", "µs an op", "goal: server"]
    report("service_cpu", "CPU time of coalesced translation", header, rows)


class Counted:
    """A proxy on loopback that counts what it carries.

    Attributes:
        address: where it listens.
        up, down: bytes so far.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.up = self.down = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            near, _ = self._listener.accept()
            far = socket.create_connection(self._target)
            for way, one, other in (("up", near, far), ("down", far, near)):
                threading.Thread(target=self._carry, args=(way, one, other), daemon=True).start()

    def _carry(self, way: str, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):  # one side is gone
            while data := source.recv(1 << 16):
                setattr(self, way, getattr(self, way) + len(data))
                target.sendall(data)


def traffic(servers: dict[str, Served], stack: ExitStack) -> None:
    """Measures the bytes of translate traffic, HTTP/2 and all, with gzip and without."""
    works: dict[str, tuple[int, Callable[[Client], object]]] = {
        "1,000 Adds, coalesced": (OPS, lambda client: coalesced(client, pb.FORMAT_V1)),
        "100 Adds, one by one": (100, lambda client: [client.translate("Add", [X, X]) for _ in range(100)]),
        "a graph of 1,000 nodes": (OPS, lambda client: client.translate_graph(layers(OPS))),
    }
    rows = []
    for name, (ops, work) in works.items():
        sizes = {}
        for switch in ("0", "1"):
            os.environ[SWITCH] = switch
            proxy = Counted(servers["umd"].address)
            with Client(proxy.address) as client:
                work(client)
            sizes[switch] = proxy.up / ops, proxy.down / ops
        del os.environ[SWITCH]
        plain, packed = sum(sizes["0"]), sum(sizes["1"])
        rows.append([name, *sizes["0"], *sizes["1"], 1 - packed / plain, GZIP_GOAL])
    header = ["bytes an op", "up", "down", "up, gzip", "down, gzip", "saved", "goal"]
    report("service_traffic", "Bytes of translation  [gzip is off on loopback]", header, rows)


def layers(count: int) -> umd.Graph:
    """Returns a graph of Adds and Relus in turn."""
    graph = umd.Graph("layers")
    first = value = graph.input("x", X)
    for number in range(count):
        value = graph.add("Relu", [value]) if number % 2 else graph.add("Add", [value, first])
    graph.output(value)
    return graph


TABLES: dict[str, Callable[[dict[str, Served], ExitStack], None]] = {
    "translations": translations,
    "cpu": server_cpu,
    "traffic": traffic,
    "clients": lambda servers, stack: service_clients.clients(servers["umd"], stack),
    "flood": lambda servers, stack: service_clients.flooded(servers["umd"], stack),
    "steps": steps,
    "bulk": lambda servers, stack: service_bulk.tables(servers["umd"].address, stack),
}


def main() -> None:
    """Prints the tables, or the one that is named."""
    with ExitStack() as stack:
        servers = {name: serve(name, stack) for name in ("original", "echo", "umd")}
        for name, table in TABLES.items():
            if sys.argv[-1] not in TABLES or sys.argv[-1] == name:
                table(servers, stack)


if __name__ == "__main__":
    main()
