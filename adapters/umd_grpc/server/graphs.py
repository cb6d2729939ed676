"""The Graphs service: a whole graph in, its program out in chunks."""

from __future__ import annotations

import asyncio
import hashlib
import time
import traceback
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from umd_core.commands import CommandBuffer
from umd_core.errors import InternalError, LimitError, UmdError
from umd_grpc._pb.umd import graph_pb2 as pb
from umd_grpc.messages.convert import error_text, facts_text
from umd_grpc.messages.graph_messages import parse_request, read_graph, write_desc
from umd_grpc.server.identity import CALLER, Accounts, Identity
from umd_grpc.server.report import Report, log
from umd_grpc.server.translator import Translators

CHUNK, CHUNK_LEAST = 256 << 10, 4 << 10


class GraphsService:
    """Translates graphs, one at a time and off the event loop, with recipes of its own."""

    def __init__(
        self,
        translators: Translators,
        report: Report,
        program_limit: int,
        keep: Callable[[str, bytes], None],
        accounts: Accounts | None = None,
    ) -> None:
        """`translators` serve this service alone. `keep(identity, program)` remembers a program for its sessions."""
        self._translators, self._report, self._limit, self._keep = translators, report, program_limit, keep
        self._accounts = accounts or Accounts()
        self._executor = ThreadPoolExecutor(1, "umd-graphs")

    def handler(self) -> grpc.GenericRpcHandler:
        """Returns the service for a server to add."""
        method: Any = grpc.unary_stream_rpc_method_handler(
            self.translate_graph, response_serializer=pb.TranslateGraphResponse.SerializeToString
        )
        return grpc.method_handlers_generic_handler("umd.graph.Graphs", {"TranslateGraph": method})

    def close(self) -> None:
        """Ends the thread."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def translate_graph(self, raw: bytes, context: Any) -> AsyncIterator[pb.TranslateGraphResponse]:
        """Answers with the header, then the program."""
        start = time.perf_counter()
        loop = asyncio.get_running_loop()
        header, program, chunk = await loop.run_in_executor(self._executor, self._translate, raw, CALLER.get())
        self._report.translated(time.perf_counter() - start, 1, int(header.status != 0))
        self._report.bytes_in += len(raw)
        self._report.bytes_out += len(program)
        yield pb.TranslateGraphResponse(header=header)
        for at in range(0, len(program), chunk):
            yield pb.TranslateGraphResponse(chunk=program[at : at + chunk])

    def _translate(self, raw: bytes, identity: Identity) -> tuple[pb.Header, bytes, int]:
        """Returns (header, program, bytes of a chunk)."""
        request_id = 0
        try:
            request = parse_request(raw)
            request_id = request.request_id
            if request.device_id:
                identity.check_device(request.device_id)
            self._accounts.of(identity).take_ops(1)
            graph = read_graph(request.graph)
            translator = self._translators.get(request.device_id)
            start = time.perf_counter_ns()
            command_buffer = translator.graph(graph)
            translated = time.perf_counter_ns()
            program = bytes(command_buffer)
            if len(program) > self._limit:
                raise LimitError("bytes of the program", len(program), self._limit)
        except Exception as error:  # noqa: BLE001  # a fault is answered, never the end of the server
            return _failure(error, request_id), b"", CHUNK
        header = _header(command_buffer, program)
        header.request_id = request_id
        header.translate_ns, header.encode_ns = translated - start, time.perf_counter_ns() - translated
        self._keep(identity.name, program)
        return header, program, min(max(request.chunk_size or CHUNK, CHUNK_LEAST), 1 << 20)


def _header(command_buffer: CommandBuffer, program: bytes) -> pb.Header:
    return pb.Header(
        size=len(program),
        sha256=hashlib.sha256(program).digest(),
        inputs=[write_desc(desc) for desc in command_buffer.inputs],
        outputs=[write_desc(desc) for desc in command_buffer.outputs],
        aliases=[pb.Alias(output=output, input=source) for output, source in command_buffer.aliases],
        command_count=len(command_buffer.commands),
        workspace_size=command_buffer.arena_size,
    )


def _failure(error: Exception, request_id: int) -> pb.Header:
    if not isinstance(error, UmdError):
        log("internal_error", where="translate_graph", traceback="".join(traceback.format_exception(error)))
        error = InternalError(f"the translator failed: {type(error).__name__}")
    return pb.Header(
        status=int(error.status), message=error_text(error), facts=facts_text(error), request_id=request_id
    )
