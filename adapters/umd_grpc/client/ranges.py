"""Ranges of a remote device's buffers: written, offered by their hashes, and read, small ones in frames of the session.

Large ones are transfers: a frame says what is moved, and `Bulk` moves it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import numpy as np

from umd_core.device import Binding, Buffer
from umd_core.errors import BindingError, CancelledError, NotAuthorisedError, StaleHandleError
from umd_grpc._pb.umd import runtime_pb2 as pb
from umd_grpc.client.link import Reply
from umd_grpc.client.session import RemoteSession
from umd_grpc.client.weights import Offer

_END_SECONDS = 2.0
"""How much later than a transfer fails its session may say that it has ended, and why."""


class Ranges:
    """What a session reads and writes."""

    def __init__(self, session: RemoteSession) -> None:
        """Moves the bytes of a session."""
        self._session, self._transfers = session, 0

    def write(self, buffer: Buffer, offset: int, data: memoryview) -> None:
        """Writes bytes at byte `offset`; see `RemoteDevice.write`.

        Raises:
            UmdError: the range is outside the buffer, or the connection failed again and again.
        """
        session = self._session
        with session.lock:
            session.begin()
            _check(buffer, offset, len(data), "write")
            if len(data) <= session.limits.inline_size:
                if data:
                    command = session.outbox.frame(len(data)).write
                    command.buffer, command.offset, command.data = buffer.memory, offset, bytes(data)
                session.end()
                return
            pieces = [
                (self._transfer(pb.DIRECTION_WRITE, buffer, offset + at, size), data[at : at + size])
                for at, size in self._pieces(len(data))
            ]
            session.send()
        for transfer, piece in pieces:
            session.bulk.write(transfer, piece, session.timeout)

    def offer(self, batch: Sequence[Offer]) -> int:
        """Offers weights by their hashes and sends those that the server asks for; returns how many bytes those are.

        Raises:
            UmdError: what went wrong.
        """
        session = self._session
        asked: list[tuple[int, Reply, Offer]] = []
        with session.lock:
            session.begin()
            for offer in batch:
                _check(offer.buffer, offer.offset, len(offer.data), "write")
                if offer.sha256:
                    transfer = self._transfer(
                        pb.DIRECTION_WRITE, offer.buffer, offer.offset, len(offer.data), offer.sha256
                    )
                    asked.append((transfer, session.link.expect(session.outbox.seq), offer))
            if asked:
                session.send()
                session.round_trips += 1
        sent = 0
        for offer in batch:
            if not offer.sha256:
                self.write(offer.buffer, offer.offset, offer.data)
                sent += len(offer.data)
        for transfer, reply, offer in asked:
            if not session.link.result(reply, session.timeout).done.value:
                session.bulk.write(transfer, offer.data, session.timeout)
                sent += len(offer.data)
        return sent

    def read(self, ranges: Sequence[Binding], into: Mapping[int, memoryview]) -> list[memoryview]:
        """Returns the bytes of ranges; `into` has places for some of them, by index, which large ones fill.

        Raises:
            UmdError: what went wrong in one of them.
        """
        return self.start_read(ranges, into)()

    def start_read(self, ranges: Sequence[Binding], into: Mapping[int, memoryview]) -> Callable[[], list[memoryview]]:
        """Asks for the bytes of ranges, and returns what waits for them; see `read`. It has to be called.

        Raises:
            UmdError: a range is outside its buffer, or the session has ended.
        """
        session = self._session
        replies: list[tuple[int, Reply]] = []
        transfers: list[tuple[int, memoryview]] = []
        results = [memoryview(b"")] * len(ranges)
        with session.lock:
            session.begin()
            for index, (buffer, offset, size) in enumerate(ranges):
                _check(buffer, offset, size, "read")
                if size > session.limits.inline_size:
                    results[index] = whole = into[index] if index in into else np.empty(size, np.uint8).data
                    for at, length in self._pieces(size):
                        transfer = self._transfer(pb.DIRECTION_READ, buffer, offset + at, length)
                        transfers.append((transfer, whole[at : at + length]))
                elif size:
                    replies.append((index, session.expect(self.read_frame(buffer, offset, size))))
            session.send()
            session.round_trips += 1

        def wait() -> list[memoryview]:
            for transfer, piece in transfers:
                self._read_piece(transfer, piece)
            for index, reply in replies:
                results[index] = memoryview(session.link.result(reply, session.timeout).data)
            return results

        return wait

    def _read_piece(self, transfer: int, piece: memoryview) -> None:
        session = self._session
        try:
            session.bulk.read(transfer, piece, session.timeout)
        except (NotAuthorisedError, StaleHandleError):
            # The session is gone, most likely: its stream, which says why, may come a little later.
            with suppress(CancelledError):
                session.link.wait_until(lambda: False, _END_SECONDS, "the end")
            raise

    def read_frame(self, buffer: Buffer, offset: int, size: int) -> pb.Frame:
        """Adds a frame that reads at most 1 MiB."""
        frame = self._session.outbox.frame()
        command = frame.read
        command.buffer, command.offset, command.size = buffer.memory, offset, size
        return frame

    def _transfer(self, direction: pb.Direction, buffer: Buffer, offset: int, size: int, sha256: bytes = b"") -> int:
        """Adds a transfer's frame and returns its id."""
        self._transfers += 1
        command = self._session.outbox.frame(len(sha256)).transfer
        command.id, command.direction, command.buffer = self._transfers, direction, buffer.memory
        command.offset, command.size, command.sha256 = offset, size, sha256
        return self._transfers

    def _pieces(self, size: int) -> list[tuple[int, int]]:
        """Returns (offset, size) of the transfers that carry `size` bytes."""
        most = self._session.limits.transfer_size
        return [(at, min(most, size - at)) for at in range(0, size, most)]


def _check(buffer: Buffer, offset: int, size: int, what: str) -> None:
    if not buffer.alive:
        raise StaleHandleError("buffer", repr(buffer), "was freed")
    if offset < 0 or size < 0 or size > buffer.size or offset > buffer.size - size:
        detail = f"bytes [{offset}, {offset + size}) are outside the buffer of {buffer.size} bytes"
        raise BindingError(0, "range", f"{what}: {detail}")
