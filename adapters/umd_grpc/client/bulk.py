"""The client's side of Write and Read: bytes on a channel of their own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import grpc

from umd_core.errors import DecodeError
from umd_grpc._pb.umd import runtime_pb2 as pb
from umd_grpc.client.channel import call_error
from umd_grpc.messages.chunks import Chunk, parse_read_response, write_request
from umd_grpc.messages.convert import read_error

_WRITE, _READ = "/umd.runtime.Runtime/Write", "/umd.runtime.Runtime/Read"


class Bulk:
    """Transfers of one session.

    Attributes:
        bytes_up, bytes_down: bytes of messages.
    """

    def __init__(self, channel: grpc.Channel, name: str, session: bytes, chunk: int) -> None:
        """`name` names the device in errors, `session` the session; a message has at most `chunk` bytes of data."""
        self._name, self._session, self._chunk = name, session, chunk
        self._write: Any = channel.stream_unary(_WRITE)
        self._read: Any = channel.unary_stream(_READ)
        self.bytes_up = self.bytes_down = 0

    def write(self, transfer: int, data: memoryview, timeout: float) -> None:
        """Sends the bytes of a transfer; returns when they are on their way and `data` is no longer needed.

        A failure shows where it matters: the server poisons the range.
        """
        taken = threading.Event()
        call = self._write.future(self._chunks(transfer, data, taken), timeout=timeout)
        call.add_done_callback(lambda _: taken.set())
        taken.wait(timeout)

    def _chunks(self, transfer: int, data: memoryview, taken: threading.Event) -> Iterator[bytes]:
        try:
            for at in range(0, len(data), self._chunk):
                raw = write_request(self._session, transfer, at, data[at : at + self._chunk])
                self.bytes_up += len(raw)
                yield raw
        finally:
            taken.set()

    def read(self, transfer: int, into: memoryview, timeout: float) -> None:
        """Fills `into` with the bytes of a transfer.

        Raises:
            UmdError: what the server found, damaged bytes, or a call that failed.
        """
        request = pb.ReadRequest(session=self._session, transfer=transfer).SerializeToString()
        done = 0
        try:
            for raw in self._read(request, timeout=timeout):
                self.bytes_down += len(raw)
                chunk = parse_read_response(raw)
                if not isinstance(chunk, Chunk):
                    raise read_error(chunk.status, chunk.message, chunk.facts)
                chunk.check(done, len(into))
                into[done : done + len(chunk.data)] = chunk.data
                done += len(chunk.data)
        except grpc.RpcError as error:
            raise call_error(error, self._name) from error
        if done != len(into):
            raise DecodeError("chunk-order", f"{done} of {len(into)} bytes arrived", offset=done, section="TRANSFER")
