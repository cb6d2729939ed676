"""The service: 1,000 Adds one by one, streamed, coalesced; beside the original design and a bare echo.

The original design is re-created here: a pool of 10 threads, one op a message, streams answered after the last request.
The echo server moves messages of the same sizes and does nothing else: it is the floor that gRPC sets.

Bulk data is measured beside a bare stream of chunks of the same size, taken and given as bytes, and beside memcpy.
"""

from __future__ import annotations

import asyncio
import functools
import json
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import ExitStack
from typing import Any

import grpc
import numpy as np
from measure import interleaved, report

import umd_core as umd
from umd_core.device import Device, Tensor
from umd_grpc._pb.umd import translator_pb2 as pb
from umd_grpc._pb.umd import translator_pb2_grpc
from umd_grpc.client import Client, Request, Translation
from umd_grpc.client.remote import RemoteDevice

OPS = 1_000
SHAPE = (32, 64)
X = umd.TensorDesc("f32", SHAPE)
GOALS = {"original unary": 20, "original stream": 12}
CHUNK, BULK = 1 << 20, 64 << 20
_SIZE = struct.Struct("<I")
LARGE = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


# servers, each in a process of its own


TEMPLATES = {"Add": "elementwise_add_kernel", "Relu": "elementwise_relu_kernel", "MatMul": "gemm_kernel"}


class Original(translator_pb2_grpc.TranslatorServicer):
    """The original design: a table of templates, text in, the original bytes out."""

    def Translate(self, request: Any, context: Any) -> Any:  # noqa: N802  # gRPC's name
        """Translates one op."""
        kernel = TEMPLATES.get(request.op_type)
        if kernel is None:
            return pb.TranslateResponse(status=2, msg=f"op {request.op_type} is not registered")
        count = 1
        for extent in request.inputs[0].shape:
            count *= extent
        name = kernel.encode()
        head = struct.pack(f"<6sI{len(name)}s", b"UMDCMD", len(name), name)
        return pb.TranslateResponse(
            command_buffer=head + struct.pack("<QQQ", count, -(-count // 256), 256), kernel_name=kernel
        )

    def SubmitBatch(self, requests: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        """Collects every request, then answers."""
        answers = []
        for message in requests:
            answer = self.Translate(message.request[0], context)
            if answer.status:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, answer.msg)
            answers.append(answer)
        for answer in answers:
            yield pb.SubmitResponse(response=[answer])


def serve_original() -> None:
    """Serves the original design until it is killed."""
    server = grpc.server(futures.ThreadPoolExecutor(10))
    add: Any = translator_pb2_grpc.add_TranslatorServicer_to_server
    add(Original(), server)
    _ready(server.add_insecure_port("127.0.0.1:0"))
    server.start()
    server.wait_for_termination()


def serve_echo() -> None:
    """Serves messages of the size that each request names, until it is killed."""

    async def unary(raw: bytes, context: Any) -> bytes:
        return bytes(_SIZE.unpack_from(raw)[0])

    async def stream(messages: Any, context: Any) -> Any:
        async for raw in messages:
            yield bytes(_SIZE.unpack_from(raw)[0])

    async def sink(messages: Any, context: Any) -> bytes:
        size = 0
        async for raw in messages:
            size += len(raw)
        return _SIZE.pack(size)

    async def source(raw: bytes, context: Any) -> Any:
        chunk = bytes(CHUNK)
        for _ in range(_SIZE.unpack(raw)[0] // CHUNK):
            yield chunk

    async def main() -> None:
        server = grpc.aio.server(options=LARGE)
        methods: dict[str, Any] = {
            "Unary": grpc.unary_unary_rpc_method_handler(unary),
            "Stream": grpc.stream_stream_rpc_method_handler(stream),
            "Sink": grpc.stream_unary_rpc_method_handler(sink),
            "Source": grpc.unary_stream_rpc_method_handler(source),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Echo", methods),))
        _ready(server.add_insecure_port("127.0.0.1:0"))
        await server.start()
        await server.wait_for_termination()

    asyncio.run(main())


def _ready(port: int) -> None:
    print(json.dumps({"listen": [f"127.0.0.1:{port}"]}), flush=True)


SERVERS: dict[str, list[str]] = {
    "original": [sys.executable, __file__, "original"],
    "echo": [sys.executable, __file__, "echo"],
    "umd": [sys.executable, "-m", "umd_grpc.server", "--listen", "127.0.0.1:0"],
}


def start(name: str, stack: ExitStack) -> str:
    """Starts a server and returns its address; the stack ends it."""
    process = subprocess.Popen(SERVERS[name], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    stack.callback(process.wait)
    stack.callback(process.kill)
    assert process.stdout is not None
    stack.callback(process.stdout.close)
    return str(json.loads(process.stdout.readline())["listen"][0])


# clients


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
        return _SIZE.pack(pair[1]) + bytes(max(0, pair[0] - _SIZE.size))

    def one_by_one() -> None:
        for _ in range(OPS):
            call(message(sizes), timeout=60)

    def many() -> None:
        assert sum(1 for _ in stream((message(sizes) for _ in range(OPS)), timeout=60)) == OPS

    def one_message() -> None:
        assert [len(raw) for raw in stream(iter([message(large)]), timeout=60)] == [large[1]]

    return {"echo unary": one_by_one, "echo stream": many, "echo, one message": one_message}


def translations(addresses: dict[str, str], stack: ExitStack) -> None:
    """Measures 1,000 Adds."""
    channels = {name: stack.enter_context(grpc.insecure_channel(addresses[name])) for name in ("original", "umd")}
    make: Any = translator_pb2_grpc.TranslatorStub
    stubs = {name: make(channel) for name, channel in channels.items()}
    client = stack.enter_context(Client(addresses["umd"]))
    answer = stubs["umd"].Translate(request(1), timeout=60)
    sizes = (request(1).ByteSize(), answer.ByteSize())
    works: dict[str, Callable[[], None]] = {
        "original unary": lambda: unary(stubs["original"]),
        "original stream": lambda: streamed(stubs["original"]),
        **echoes(addresses["echo"], stack, sizes, (OPS * (sizes[0] + 3), OPS * (sizes[1] + 3))),
        "umd unary": lambda: unary(stubs["umd"]),
        "umd stream": lambda: streamed(stubs["umd"]),
        "umd coalesced, original bytes": lambda: coalesced(client, pb.FORMAT_UNSPECIFIED),
        "umd coalesced, v1": lambda: coalesced(client, pb.FORMAT_V1),
    }
    times = interleaved(works, repeat=7)
    base = {name: times[name] for name in GOALS}
    rows = []
    for name, seconds in times.items():
        ratios = [base[goal] / seconds for goal in GOALS]
        wanted = "20, 12" if "coalesced" in name else ""
        rows.append([name, OPS / seconds, seconds / OPS * 1e6, *ratios, wanted])
    header = ["1,000 Adds", "ops/s", "µs an op", "× original unary", "× original stream", "goal"]
    report("service", "Translation through the service", header, rows)


def run_and_read(device: Device, program: umd.CommandBuffer, held: Tensor) -> object:
    """Returns the sum of a tensor of the device with itself, read back."""
    return device.run(program, [held, held])[0].numpy()


def steps(addresses: dict[str, str], stack: ExitStack) -> None:
    """Measures running one small program and reading its result, in process and remotely."""
    remote, local = RemoteDevice(addresses["umd"]), umd.open_device("sim:0")
    stack.callback(remote.close)
    stack.callback(local.close)
    x = np.arange(6, dtype=np.float32)
    program = umd.translate("Add", [x, x])
    channel: Any = stack.enter_context(grpc.insecure_channel(addresses["echo"]))
    call = channel.unary_unary("/Echo/Unary")
    works: dict[str, Callable[[], object]] = {"echo unary": lambda: call(_SIZE.pack(64), timeout=60)}
    devices: dict[str, Device] = {"in process": local, "remote": remote}
    for name, device in devices.items():
        held = device.tensor(x)
        works[f"{name}: run, read"] = functools.partial(run_and_read, device, program, held)
    works["remote: nothing but the round trip"] = remote.synchronize
    times = interleaved(works, number=200, repeat=9)
    rows = [[name, seconds * 1e6, seconds / times["echo unary"]] for name, seconds in times.items()]
    report("service_steps", "One Add of 6 elements", ["step", "µs", "× echo"], rows)


def bulk(addresses: dict[str, str], stack: ExitStack) -> None:
    """Measures large writes and reads, by stream and through shared memory."""
    channel: Any = stack.enter_context(grpc.insecure_channel(addresses["echo"], options=LARGE))
    sink, source = channel.stream_unary("/Echo/Sink"), channel.unary_stream("/Echo/Source")
    chunk, data, out = bytes(CHUNK), np.ones(BULK, np.uint8), np.ones(BULK, np.uint8)

    def bare_write() -> None:
        assert _SIZE.unpack(sink(iter([chunk] * (BULK // CHUNK)), timeout=60))[0] == BULK

    def bare_read() -> None:
        assert sum(map(len, source(_SIZE.pack(BULK), timeout=60))) == BULK

    works: dict[str, Callable[[], object]] = {
        "memcpy": lambda: np.copyto(out, data),
        "bare stream, up": bare_write,
        "bare stream, down": bare_read,
    }
    for name, shared in (("stream", False), ("shared memory", True)):
        device = RemoteDevice(addresses["umd"], shared_memory=shared)
        stack.callback(device.close)
        held = device.tensor(data)
        works[f"{name}: write"] = functools.partial(device.write, held.storage.buffer, 0, data)
        works[f"{name}: read"] = functools.partial(held.numpy, out)
    times = interleaved(works, repeat=9)
    rows = []
    for name, seconds in times.items():
        bare = times["bare stream, up" if name.endswith(("write", "up")) else "bare stream, down"]
        goal = "bare 0.9" if name.startswith("stream") else "memcpy 0.6" if "shared" in name else ""
        rows.append([name, BULK / seconds / 1e9, bare / seconds, times["memcpy"] / seconds, goal])
    header = [f"{BULK >> 20} MiB", "GB/s", "× bare stream", "× memcpy", "goal"]
    report("service_bulk", "Bulk data", header, rows)


TABLES: dict[str, Callable[[dict[str, str], ExitStack], None]] = {
    "translations": translations,
    "steps": steps,
    "bulk": bulk,
}


def main() -> None:
    """Prints the tables, or the one that is named."""
    with ExitStack() as stack:
        addresses = {name: start(name, stack) for name in SERVERS}
        for name, table in TABLES.items():
            if sys.argv[-1] not in TABLES or sys.argv[-1] == name:
                table(addresses, stack)


if __name__ == "__main__":
    {"original": serve_original, "echo": serve_echo}.get(sys.argv[-1], main)()
