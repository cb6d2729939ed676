"""The servers beside which the service is measured, each in a process of its own, and what they cost.

The original design is re-created: a pool of 10 threads, one op a message, streams answered after the last request. The
echo server moves messages and does nothing else: it is the floor that gRPC sets. `bare` is its client, in a process of
its own too, so that nothing which umd's client library does to a process helps or hinders it.
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent import futures
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import grpc

import umd_core as umd
from umd_grpc._pb.umd import translator_pb2 as pb
from umd_grpc._pb.umd import translator_pb2_grpc
from umd_grpc.client import Client, Request

SHAPE = (32, 64)
X = umd.TensorDesc("f32", SHAPE)
CHUNK = 1 << 20
SIZE = struct.Struct("<I")
LARGE = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
KEEPING = {"MALLOC_TRIM_THRESHOLD_": str(64 << 20), "MALLOC_MMAP_THRESHOLD_": str(8 << 20)}
"""An environment in which the C library keeps freed memory, as umd's own server has it."""
_TICKS = os.sysconf("SC_CLK_TCK")
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
        return bytes(SIZE.unpack_from(raw)[0])

    async def stream(messages: Any, context: Any) -> Any:
        async for raw in messages:
            yield bytes(SIZE.unpack_from(raw)[0])

    async def sink(messages: Any, context: Any) -> bytes:
        size = 0
        async for raw in messages:
            size += len(raw)
        return SIZE.pack(size)

    async def source(raw: bytes, context: Any) -> Any:
        chunk = bytes(CHUNK)
        for _ in range(SIZE.unpack(raw)[0] // CHUNK):
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


def bare(address: str) -> None:
    """Moves bytes over a bare stream: each line of its input is a direction and a size, and is answered by a line."""
    channel: Any = grpc.insecure_channel(address, options=LARGE)
    sink, source = channel.stream_unary("/Echo/Sink"), channel.unary_stream("/Echo/Source")
    chunk = bytes(CHUNK)
    for line in sys.stdin:
        way, size = line.split()
        if way == "up":
            (moved,) = SIZE.unpack(sink(iter([chunk] * (int(size) // CHUNK)), timeout=60))
        else:
            moved = sum(map(len, source(SIZE.pack(int(size)), timeout=60)))
        print(moved, flush=True)


def flood(address: str) -> None:
    """Translates as much as it can, until it is killed."""
    with Client(address) as client:
        print("ready", flush=True)
        while True:
            sum(1 for _ in client.submit_batch(Request("Relu", [X]) for _ in range(1_000)))


def python(call: str, module: str = __name__) -> list[str]:
    """Returns the command that makes a call of a module of this folder, in a process of its own."""
    here = str(Path(__file__).parent)
    return [sys.executable, "-c", f"import sys; sys.path[:0] = [{here!r}]; import {module}; {module}.{call}"]


UMD = (sys.executable, "-m", "umd_grpc.server", "--listen", "127.0.0.1:0")


class Served(NamedTuple):
    """A server that was started."""

    address: str
    pid: int

    def cpu_seconds(self) -> float:
        """Returns the CPU time that it has used, user and system; in steps of 10 ms or so."""
        fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS


def launch(command: list[str], stack: ExitStack, environment: Mapping[str, str] | None = None) -> Any:
    """Starts a process that is spoken with by lines; the stack ends it."""
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={**os.environ, **(environment or {})},
    )  # fmt: skip
    stack.callback(process.wait)
    stack.callback(process.kill)
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        stack.callback(pipe.close)
    return process


def serve(name: str, stack: ExitStack, environment: Mapping[str, str] | None = None) -> Served:
    """Starts a server, "original", "echo" or "umd"; the stack ends it."""
    command = list(UMD) if name == "umd" else python(f"serve_{name}()")
    process = launch(command, stack, environment)
    return Served(str(json.loads(process.stdout.readline())["listen"][0]), process.pid)


class Asked:
    """A process that answers each line that it is given by one."""

    def __init__(self, call: str, stack: ExitStack, environment: Mapping[str, str] | None = None) -> None:
        self._process = launch(python(call), stack, environment)

    def __call__(self, line: str) -> str:
        """Returns the answer to a line."""
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return str(self._process.stdout.readline()).strip()
