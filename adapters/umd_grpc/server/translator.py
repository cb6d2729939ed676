"""The Translator service: one op in, one command buffer out; repeats are answered from the request's bytes."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

import grpc
from google.protobuf.message import DecodeError as ProtobufDecodeError

from umd_core.commands import CommandBuffer, Dispatch
from umd_core.encoding.original import encode_original
from umd_core.errors import InternalError, LimitError, UmdError, UnsupportedError
from umd_core.translate import KernelSet, Translator
from umd_grpc._pb.umd import translator_pb2 as pb
from umd_grpc.messages import wire
from umd_grpc.messages.convert import error_text, facts_text, read_request, write_desc
from umd_grpc.server.cache import BytesCache
from umd_grpc.server.identity import CALLER, Accounts
from umd_grpc.server.report import Report, log

REQUESTS_LIMIT = 65_536
REQUEST_LIMIT = 1 << 20
CACHE_ENTRIES, CACHE_SIZE = 16_384, 32 << 20
RECIPES_LIMIT = 8_192
SLICE_SECONDS = 0.001
_REQUEST_ID, _RESPONSE_ID = 4, b"\x28"
_REQUEST, _RESPONSE = 1, 1
_CACHED = pb.Timing(cached=True)


class Translators:
    """A core translator for each device and one for none; each forgets its recipes when there are very many."""

    def __init__(self, devices: Mapping[str, KernelSet]) -> None:
        """`devices` are the server's, by name."""
        self._caps: dict[str, KernelSet | None] = {"": None, **devices}
        self._translators: dict[str, Translator] = {}

    def get(self, device: str) -> Translator:
        """Returns the translator for a device of the server; "" is any device.

        Raises:
            UnsupportedError: the server has no such device.
        """
        if device not in self._caps:
            known = ", ".join(name for name in self._caps if name)
            raise UnsupportedError(f"the server has no such device; it has {known}", device=device)
        found = self._translators.get(device)
        if found is None or found.recipes.misses > RECIPES_LIMIT:
            found = self._translators[device] = Translator(self._caps[device])
        return found


class TranslatorService:
    """Answers requests as bytes. What is answered from the cache is never parsed."""

    def __init__(
        self, translators: Translators, report: Report, message_limit: int, accounts: Accounts | None = None
    ) -> None:
        """`message_limit` bounds the answer to one message, in bytes. `accounts` count what each identity uses."""
        self._translators, self._report, self._limit = translators, report, message_limit
        self._accounts = accounts or Accounts()
        self._tags: dict[frozenset[str], bytes] = {}
        self.cache = BytesCache(CACHE_ENTRIES, CACHE_SIZE)

    def handler(self) -> grpc.GenericRpcHandler:
        """Returns the service for a server to add; messages pass as bytes."""
        methods: dict[str, Any] = {
            "Translate": grpc.unary_unary_rpc_method_handler(self.translate),
            "SubmitBatch": grpc.stream_stream_rpc_method_handler(self.submit_batch),
        }
        return grpc.method_handlers_generic_handler("umd.Translator", methods)

    def looked_up(self) -> tuple[int, int]:
        """Returns how often an answer was found in the cache, and how often not."""
        return self.cache.hits, self.cache.misses

    async def translate(self, raw: bytes, context: Any) -> bytes:
        """Answers one request."""
        start = time.perf_counter()
        refused = self._refused(1)
        body, request_id, failed = self._answer(raw) if refused is None else _refuse(raw, refused)
        answer = body + _RESPONSE_ID + request_id if request_id else body
        self._note(start, 1, failed, raw, answer)
        return answer

    async def submit_batch(self, messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        """Answers each message by one message, in order, before it reads the next."""
        async for raw in messages:
            yield await self._answer_message(raw)

    async def _answer_message(self, raw: bytes) -> bytes:
        start = time.perf_counter()
        refused: UmdError | None = None
        try:
            requests = wire.submessages(raw, _REQUEST, REQUESTS_LIMIT, "requests in a message")
            if not requests:
                raise LimitError("requests in a message", 0, REQUESTS_LIMIT)
            refused = self._refused(len(requests))
        except UmdError as error:
            body = _failure(error)
            self._note(start, 1, 1, raw, body)
            return wire.head(_RESPONSE, len(body)) + body
        parts, failures = await self._answer_all(requests, refused)
        answer = b"".join(parts)
        self._note(start, len(requests), failures, raw, answer)
        return answer

    def _refused(self, count: int) -> UmdError | None:
        """Returns why the caller may not have `count` requests answered now, None when they may."""
        try:
            self._accounts.of(CALLER.get()).take_ops(count)
        except UmdError as error:
            return error
        return None

    async def _answer_all(self, requests: Iterable[bytes], refused: UmdError | None) -> tuple[list[bytes], int]:
        """Returns the parts of an answer and how many requests failed; lets others run now and then."""
        parts: list[bytes] = []
        size = failures = 0
        pause = time.perf_counter() + SLICE_SECONDS
        for request in requests:
            body, request_id, failed = self._answer(request) if refused is None else _refuse(request, refused)
            if size + len(body) > self._limit:
                body, failed = _failure(LimitError("bytes of this answer", size + len(body), self._limit)), 1
            length = len(body) + len(request_id) + bool(request_id)
            if request_id:
                parts += (wire.head(_RESPONSE, length), body, _RESPONSE_ID, request_id)
            else:
                parts += (wire.head(_RESPONSE, length), body)
            size += length
            failures += failed
            if time.perf_counter() > pause:
                await asyncio.sleep(0)
                pause = time.perf_counter() + SLICE_SECONDS
        return parts, failures

    def _note(self, start: float, count: int, failures: int, raw: bytes, answer: bytes) -> None:
        report = self._report
        report.bytes_in += len(raw)
        report.bytes_out += len(answer)
        report.translated(time.perf_counter() - start, count, failures)

    def _answer(self, raw: bytes) -> tuple[bytes, bytes, int]:
        """Returns (response without its id, the id as it stands in the request, 1 when it failed)."""
        cut = wire.cut_varint(raw, _REQUEST_ID)
        if cut is not None:
            key, request_id = self._tag() + cut[0], cut[1]
            body = self.cache.find(key)
            if body is not None:
                return body, request_id, 0
        else:
            key, request_id = raw, b""
        return self._answer_anew(raw, key, request_id, known=cut is not None)

    def _tag(self) -> bytes:
        """Returns what tells answers apart by who may have them: whoever may use some devices only has his own."""
        devices = CALLER.get().devices
        if devices is None:
            return b""
        tag = self._tags.get(devices)
        if tag is None:
            tag = self._tags[devices] = b"\x00" + repr(sorted(devices)).encode()
        return tag

    def _answer_anew(self, raw: bytes, key: bytes, request_id: bytes, known: bool) -> tuple[bytes, bytes, int]:
        start = time.perf_counter_ns()
        try:
            request = _parse(raw)
            if not known and request.request_id:
                request_id = wire.encode_varint(request.request_id & (1 << 64) - 1)
            response = self._translate(request, start)
        except Exception as error:  # noqa: BLE001  # a fault is answered, and the stream goes on
            return _failure(error), request_id, 1
        body = response.SerializeToString()
        if known:
            response.timing.CopyFrom(_CACHED)
            self.cache.keep(key, response.SerializeToString())
        return body, request_id, 0

    def _translate(self, request: pb.TranslateRequest, start: int) -> pb.TranslateResponse:
        call = read_request(request)
        if request.device_id:
            CALLER.get().check_device(request.device_id)
        translator = self._translators.get(request.device_id)
        parsed = time.perf_counter_ns()
        command_buffer = translator.op(call.op, call.inputs, call.attributes)
        translated = time.perf_counter_ns()
        form, raw = _encode(command_buffer, request.format, call.op)
        response = pb.TranslateResponse(
            command_buffer=raw,
            kernel_name=_last_kernel(command_buffer),
            workspace_size=command_buffer.arena_size,
            format=form,
        )
        for desc in command_buffer.outputs:
            write_desc(desc, response.outputs.add())
        response.timing.parse_ns = parsed - start
        response.timing.translate_ns = translated - parsed
        response.timing.encode_ns = time.perf_counter_ns() - translated
        return response


def _refuse(raw: bytes, error: UmdError) -> tuple[bytes, bytes, int]:
    """Returns what `_answer` does, for a request that is not looked at."""
    cut = wire.cut_varint(raw, _REQUEST_ID)
    return _failure(error), cut[1] if cut else b"", 1


def _parse(raw: bytes) -> pb.TranslateRequest:
    if len(raw) > REQUEST_LIMIT:
        raise LimitError("bytes of a request", len(raw), REQUEST_LIMIT)
    try:
        return pb.TranslateRequest.FromString(raw)
    except ProtobufDecodeError as error:
        raise wire.malformed(f"not a TranslateRequest: {error}", 0) from error


def _encode(command_buffer: CommandBuffer, wanted: int, op: str) -> tuple[pb.Format, bytes]:
    """Returns the format that was wanted, or the original one where it can say what v1 says, and the bytes."""
    if wanted not in (pb.FORMAT_UNSPECIFIED, pb.FORMAT_V1, pb.FORMAT_ORIGINAL):
        raise UnsupportedError(f"format {wanted} is not known; 0 to 2 are", op=op)
    commands = command_buffer.commands
    if wanted != pb.FORMAT_V1 and len(commands) == 1 and isinstance(commands[0], Dispatch):
        name = command_buffer.kernels[commands[0].kernel].row.name
        return pb.FORMAT_ORIGINAL, encode_original(name, command_buffer.outputs[0].element_count)
    if wanted == pb.FORMAT_ORIGINAL:
        raise UnsupportedError(f"the original format holds one launch, this op takes {len(commands)} commands", op=op)
    return pb.FORMAT_V1, bytes(command_buffer)


def _last_kernel(command_buffer: CommandBuffer) -> str:
    """Returns the name of the kernel that writes the result, "" when there is none."""
    for command in reversed(command_buffer.commands):
        if isinstance(command, Dispatch):
            return command_buffer.kernels[command.kernel].row.name
    return ""


def _failure(error: Exception) -> bytes:
    """Returns the response, without its id, that describes an error. What is not umd's own is also logged."""
    if not isinstance(error, UmdError):
        log("internal_error", where="translate", traceback="".join(traceback.format_exception(error)))
        error = InternalError(f"the translator failed: {type(error).__name__}")
    response = pb.TranslateResponse(status=int(error.status), msg=error_text(error), facts=facts_text(error))
    return response.SerializeToString()
