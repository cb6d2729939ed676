"""What a device's thread does with the requests of a client that shares memory with the server."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable
from contextlib import suppress

from umd_core.errors import UmdError
from umd_grpc.messages.region import PACKET, WRITE, Move, encode_reply
from umd_grpc.server.moves import Moves
from umd_grpc.server.region import Region
from umd_grpc.server.transfer import Carrier, Transfer

PATIENCE_MS = 1
"""How long the thread waits for the next request, when nobody else wants it: the client copies its piece meanwhile."""


class Batch:
    """Requests of one transfer, served as they come; ends when none does, or others have to have their turn.

    Attributes:
        stopped: whether it shall end.
        done: how far the transfer is.
        moved: bytes that were moved.
        failed: what went wrong in the transfer.
        error: what the last request is to be answered with.
        left: a request that is not for this batch to serve.
    """

    def __init__(self, connection: socket.socket, region: Region, transfer: Transfer, carrier: Carrier) -> None:
        self._connection, self._data, self._size = connection, region.data, region.size
        self._transfer, self._carrier = transfer, carrier
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self.stopped = False
        self.done, self.moved = transfer.done, 0
        self.failed: UmdError | None = None
        self.error: UmdError | None = None
        self.left = b""

    def stop(self) -> None:
        """Has it end after the request that it serves. Callable from any thread."""
        self.stopped = True

    def run(self, first: Move, moves: Moves, over: Callable[[], bool]) -> None:
        """Serves a request that was checked, and those that follow; `over` says that it has to end."""
        move: Move | None = first
        try:
            while move is not None and self._carry_out(move, moves):
                move = None if over() else self._next(first, over)
        except UmdError as error:
            self.error = error
        except OSError:  # the client is gone, or takes no answers
            with suppress(OSError):  # it is gone: who listens to it will see that
                self._connection.shutdown(socket.SHUT_RDWR)

    def _carry_out(self, move: Move, moves: Moves) -> bool:
        """Moves the bytes of a request and answers it; returns whether the transfer goes on."""
        staged = self._data[move.place : move.place + move.size].data
        try:
            if move.kind == WRITE:
                self.done = moves.write(move.transfer, staged)
            else:
                moves.copy(move.transfer, move.offset, staged)
                self.done = move.offset + move.size
        except UmdError as error:
            self.failed = error
            raise
        self.moved += move.size
        self._connection.send(encode_reply(self.done))
        return self.done < self._transfer.size and not self.stopped

    def _next(self, first: Move, over: Callable[[], bool]) -> Move | None:
        """Returns the next request of the transfer, None when there is none.

        Raises:
            DecodeError: it is no request, or not the next one.
        """
        packet = self._receive() or (b"" if over() or not self._poll.poll(PATIENCE_MS) else self._receive())
        if not packet:
            return None
        if self.stopped or self._carrier.ended is not None:
            self.left = packet
            return None
        move = Move.decode(packet)
        if (move.kind, move.transfer) != (first.kind, first.transfer):
            self.left = packet
            return None
        move.check(self._size, self.done if move.kind == WRITE else move.offset, self._transfer.size)
        return move

    def _receive(self) -> bytes:
        """Returns the next packet, b"" when there is none yet, or never will be: who listens meets that as well."""
        try:
            return self._connection.recv(PACKET)
        except BlockingIOError:
            return b""
