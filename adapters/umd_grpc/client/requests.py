"""Requests and answers of the Translator and Graphs services, as clients see them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from umd_core.commands import CommandBuffer
from umd_core.encoding import decode
from umd_core.errors import DecodeError, UmdError
from umd_core.ir import TensorDesc
from umd_core.ops import OPS
from umd_grpc._pb.umd import graph_pb2, translator_pb2
from umd_grpc.messages import wire
from umd_grpc.messages.convert import read_desc, read_error, write_desc, write_struct, write_value
from umd_grpc.messages.graph_messages import read_desc as read_graph_desc

REQUESTS_PER_MESSAGE = 1_000
MESSAGE_SIZE = 4 << 20
_ENCODED = 4_096
_REQUEST, _REQUEST_ID = 1, b"\x20"


class Request(NamedTuple):
    """One op to translate.

    Attributes:
        inputs: TensorDescs, arrays or None for one left out; values travel only where an op must know them.
        device: translate for this device of the server; "" for any.
    """

    op: str
    inputs: Sequence[Any]
    attributes: Mapping[str, Any] = {}
    device: str = ""
    format: translator_pb2.Format = translator_pb2.FORMAT_V1


class Translation:
    """A server's answer to one request; what it holds is read when it is asked for."""

    __slots__ = ("_message",)

    def __init__(self, message: translator_pb2.TranslateResponse) -> None:
        self._message = message

    def __repr__(self) -> str:
        return f"Translation({self.kernel_name}, {len(self.command_buffer)} bytes)"

    @property
    def command_buffer(self) -> bytes:
        """The encoded command buffer."""
        return self._message.command_buffer

    @property
    def kernel_name(self) -> str:
        """The kernel that writes the result."""
        return self._message.kernel_name

    @property
    def request_id(self) -> int:
        """The request's number in its batch."""
        return self._message.request_id

    @property
    def outputs(self) -> tuple[TensorDesc, ...]:
        """Descriptions of the results."""
        return tuple(read_desc(desc) for desc in self._message.outputs)

    @property
    def workspace_size(self) -> int:
        """Bytes of transient memory that running it takes."""
        return self._message.workspace_size

    @property
    def cached(self) -> bool:
        """Whether the server answered from the bytes of an earlier answer."""
        return self._message.timing.cached

    @property
    def server_seconds(self) -> float:
        """Time that the server took to parse, translate and encode; 0 for a cached answer."""
        timing = self._message.timing
        return (timing.parse_ns + timing.translate_ns + timing.encode_ns) / 1e9


class Encoder:
    """Serialises requests; those seen before cost a look-up."""

    def __init__(self) -> None:
        self._seen: dict[Any, bytes] = {}

    def encode(self, request: Request, request_id: int) -> bytes:
        """Returns a serialised TranslateRequest.

        Raises:
            UmdError: an input or attribute has no form on the wire.
        """
        op, inputs, attributes, device, form = request
        try:
            key = (op, device, form, *[x.key for x in inputs]) if not attributes else None
        except AttributeError:
            key = None
        body = self._seen.get(key) if key is not None else None
        if body is None:
            body = _message(request).SerializeToString()
            if key is not None:
                if len(self._seen) >= _ENCODED:
                    self._seen.clear()
                self._seen[key] = body
        return body + _REQUEST_ID + wire.encode_varint(request_id) if request_id else body


def _message(request: Request) -> translator_pb2.TranslateRequest:
    message = translator_pb2.TranslateRequest(op_type=request.op, device_id=request.device, format=request.format)
    template = OPS.get(request.op)
    for index, value in enumerate(request.inputs):
        desc = message.inputs.add()
        known = template is not None and template.inputs[min(index, len(template.inputs) - 1)].static
        if known and not isinstance(value, TensorDesc) and value is not None:
            write_value(np.asarray(value), desc)
        else:
            write_desc(value, desc)
    if request.attributes:
        write_struct(request.op, request.attributes, message.typed_attributes)
    return message


def batch_messages(requests: Iterable[Request], encoder: Encoder) -> Iterator[bytes]:
    """Yields serialised SubmitRequests of at most 1,000 requests and a few MiB; ids count from 1."""
    parts: list[bytes] = []
    size = count = 0
    for number, request in enumerate(requests, 1):
        body = encoder.encode(request, number)
        if count == REQUESTS_PER_MESSAGE or (count and size + len(body) > MESSAGE_SIZE):
            yield b"".join(parts)
            parts, size, count = [], 0, 0
        parts += (wire.head(_REQUEST, len(body)), body)
        size += len(body)
        count += 1
    if count:
        yield b"".join(parts)


def read_response(message: translator_pb2.TranslateResponse) -> Translation | UmdError:
    """Returns the translation, or the error that the server found."""
    if message.status:
        error = read_error(message.status, message.msg, message.facts)
        return error.at(request_id=message.request_id) if message.request_id else error
    return Translation(message)


def read_responses(raw: bytes) -> Iterator[Translation | UmdError]:
    """Yields what a serialised SubmitResponse holds."""
    for message in translator_pb2.SubmitResponse.FromString(raw).response:
        yield read_response(message)


class ProgramReader:
    """Puts the answer to TranslateGraph together."""

    def __init__(self) -> None:
        self._header: graph_pb2.Header | None = None
        self._chunks: list[bytes] = []

    def take(self, message: graph_pb2.TranslateGraphResponse) -> None:
        """Takes one message.

        Raises:
            UmdError: what the server found.
        """
        if message.WhichOneof("part") == "chunk":
            self._chunks.append(message.chunk)
            return
        self._header = message.header
        if self._header.status:
            raise read_error(self._header.status, self._header.message, self._header.facts)

    def program(self) -> CommandBuffer:
        """Returns the program, with the descriptions of its arguments.

        Raises:
            DecodeError: it did not arrive whole.
        """
        raw = b"".join(self._chunks)
        header = self._header
        if header is None or len(raw) != header.size or hashlib.sha256(raw).digest() != header.sha256:
            raise DecodeError("program-incomplete", f"{len(raw)} bytes of a program arrived", section="MESSAGE")
        command_buffer = decode(raw)
        command_buffer.inputs = tuple(read_graph_desc(desc) for desc in header.inputs)
        command_buffer.outputs = tuple(read_graph_desc(desc) for desc in header.outputs)
        command_buffer.aliases = tuple((alias.output, alias.input) for alias in header.aliases)
        return command_buffer
