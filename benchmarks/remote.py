"""Work on another process's device: chained launches, round trips behind a slow line, replayed programs, start-up.

remote_add1: x = f32[1024] lies on the server, K launches of x += 1, then 4 KiB are read back and looked at. In process
and NumPy stand beside it. Round trips are measured with a proxy that delays every byte: what a step takes longer behind
30 ms, divided by 30 ms, is how often it waited for an answer.
"""

from __future__ import annotations

import functools
import json
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import grpc
import numpy as np
from measure import interleaved, report
from service import start

import umd_core as umd
from umd_grpc.client.remote import RemoteDevice

COUNT = 1024
CHAINS = (1, 10, 100, 1_000, 10_000)
DELAYS = (0.0, 0.001, 0.030)


def chain(length: int) -> umd.CommandBuffer:
    """Returns the program of `length` launches of x += 1, in place."""
    graph = umd.Graph("add1")
    x = value = graph.input("x", umd.TensorDesc("f32", (COUNT,)))
    one = graph.constant(np.float32(1))
    for _ in range(length):
        value = graph.add("Add", [value, one])
    graph.output(value, alias=x)
    return umd.translate(graph)


class Chain:
    """A device with x on it, and the program that adds to it."""

    def __init__(self, device: Any, length: int) -> None:
        self._device, self._length = device, length
        self._x = device.tensor(np.zeros(COUNT, np.float32))
        self._program = device.program(chain(length))
        self._bindings = [self._x.binding] * 2  # the argument, and the result that overwrites it
        self._wanted = 0

    def __call__(self) -> None:
        """Submits the program, reads x and checks it."""
        self._device.submit(self._program, self._bindings)
        self._wanted += self._length
        found = np.frombuffer(self._device.read(self._x.binding.buffer, 0, 4 * COUNT), np.float32)
        if found[0] != self._wanted or found[-1] != self._wanted:
            raise AssertionError(f"x is {found[0]}, not {self._wanted}")


def numpy_chain(x: Any, length: int) -> None:
    """The same in NumPy."""
    for _ in range(length):
        np.add(x, np.float32(1), out=x)


def add1(address: str, stack: ExitStack) -> None:
    """Measures chains of launches, in process and remotely."""
    local, remote = umd.open_device("sim:0"), umd.open_device(f"grpc://{address}/sim:0")
    stack.callback(remote.close)
    stack.callback(local.close)
    rows = []
    for length in CHAINS:
        works: dict[str, Callable[[], object]] = {
            "NumPy": functools.partial(numpy_chain, np.zeros(COUNT, np.float32), length),
            "in process": Chain(local, length),
            "remote": Chain(remote, length),
        }
        number = max(1, 200 // length)
        times = interleaved(works, number=number, repeat=9)
        per = {name: seconds * 1e6 / length for name, seconds in times.items()}
        rows.append([length, per["NumPy"], per["in process"], per["remote"], per["remote"] / per["NumPy"]])
    header = ["K launches", "NumPy µs a launch", "in process", "remote", "remote × NumPy"]
    report("remote_add1", "remote_add1: K chained x += 1 of f32[1024], read back  [goal: 2 µs at 1,000]", header, rows)


class SlowLine:
    """A proxy on loopback that holds every byte back for a while, both ways.

    Attributes:
        address: where it listens.
    """

    def __init__(self, target: str, delay: float) -> None:
        host, _, port = target.rpartition(":")
        self._target, self._delay = (host, int(port)), delay
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Accepts no more."""
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(self._target)
            for one, other in ((near, far), (far, near)):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        """Carries bytes from one side to the other; a second thread sends what is due: a stream is not slowed."""
        line: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()

        def send() -> None:
            while True:
                due, data = line.get()
                time.sleep(max(0.0, due - time.monotonic()))
                if not data:
                    return
                try:
                    target.sendall(data)
                except OSError:
                    return

        threading.Thread(target=send, daemon=True).start()
        while True:
            try:
                data = source.recv(1 << 16)
            except OSError:
                data = b""
            line.put((time.monotonic() + self._delay / 2, data))
            if not data:
                return


def infer(device: Any, program: umd.CommandBuffer, x: Any, weights: Any) -> None:
    """Runs a program and reads its result."""
    device.run(program, [x, weights])[0].numpy()


def round_trips(address: str, stack: ExitStack) -> None:
    """Measures how often an inference and a chain of submissions wait for the server."""
    layer = umd.Graph("inference")
    x = layer.input("x", umd.TensorDesc("f32", (8, 64)))
    w = layer.input("w", umd.TensorDesc("f32", (64, 64)))
    layer.output(layer.add("Softmax", [layer.add("Relu", [layer.add("MatMul", [x, w])])]))
    program = umd.translate(layer)
    xs, ws = np.ones((8, 64), np.float32), np.ones((64, 64), np.float32) / 64
    seconds: dict[float, dict[str, float]] = {}
    for delay in DELAYS:
        line = SlowLine(address, delay)
        device: Any = umd.open_device(f"grpc://{line.address}/sim:0")
        held = device.tensor(ws)
        works: dict[str, Callable[[], object]] = {
            "inference": functools.partial(infer, device, program, xs, held),
            "100 launches as one program": Chain(device, 100),
        }
        seconds[delay] = interleaved(works, number=3, repeat=5)
        device.close()
        line.close()
    rows = [
        [name, *(seconds[delay][name] * 1e3 for delay in DELAYS), (seconds[0.03][name] - seconds[0.0][name]) / 0.03]
        for name in seconds[0.0]
    ]
    report(
        "remote_round_trips", "Behind a slow line  [goal: 1.0]", ["step", "0 ms", "1 ms", "30 ms", "round trips"], rows
    )


def bare_round_trips(address: str, stack: ExitStack, up: int, down: int) -> dict[str, Callable[[], object]]:
    """Returns gRPC calls that carry so many bytes each way and do nothing: a call each, and a message of a stream."""
    channel: Any = stack.enter_context(grpc.insecure_channel(address))
    message = down.to_bytes(4, "little") + bytes(up - 4)
    unary = channel.unary_unary("/Echo/Unary")
    outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    answers = channel.stream_stream("/Echo/Stream")(iter(outbox.get, None))
    stack.callback(outbox.put, None)

    def streamed() -> None:
        outbox.put(message)
        next(answers)

    return {"bare call": lambda: unary(message, timeout=60), "bare message of a stream": streamed}


def replayed(addresses: dict[str, str], stack: ExitStack) -> None:
    """Measures a replayed program remotely, beside its execution in process and bare round trips of as many bytes."""
    local, remote = umd.open_device("sim:0"), RemoteDevice(addresses["umd"])
    stack.callback(remote.close)
    stack.callback(local.close)
    chained = Chain(remote, 16)
    chained()
    sent, received = remote.bytes_up, remote.bytes_down
    chained()
    bare = bare_round_trips(addresses["echo"], stack, remote.bytes_up - sent, remote.bytes_down - received)
    works: dict[str, Callable[[], object]] = {**bare, "in process": Chain(local, 16), "remote": chained}
    times = interleaved(works, number=100, repeat=15)
    added = times["remote"] - times["in process"]
    rows = [[name, seconds * 1e6, ""] for name, seconds in times.items()]
    rows += [[f"remote adds, in times a {name}", added * 1e6, added / times[name]] for name in bare]
    report("remote_replay", "A replayed program of 16 launches  [goal: 1.3]", ["", "µs", "×"], rows)


def start_up(stack: ExitStack) -> None:
    """Measures from the start of a server's process to the first result."""
    seconds = []
    for _ in range(3):
        began = time.monotonic()
        command = [sys.executable, "-m", "umd_grpc.server", "--listen", "127.0.0.1:0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            address = json.loads(process.stdout.readline())["listen"][0]
            device: Any = umd.open_device(f"grpc://{address}/sim:0")
            x = np.ones(4, np.float32)
            device.run(umd.translate("Add", [x, x]), [x, x])[0].numpy()
            seconds.append(time.monotonic() - began)
            device.close()
            process.terminate()
    rows = [["server start to first result", sorted(seconds)[1]]]
    report("remote_start", "Start  [goal: 2 s]", ["", "s"], rows)


def main() -> None:
    """Prints the tables."""
    with ExitStack() as stack:
        addresses = {name: start(name, stack) for name in ("umd", "echo")}
        add1(addresses["umd"], stack)
        round_trips(addresses["umd"], stack)
        replayed(addresses, stack)
    with ExitStack() as stack:
        start_up(stack)


if __name__ == "__main__":
    main()
