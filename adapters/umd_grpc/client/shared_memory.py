"""The client's side of memory that it shares with a server on the same host."""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
import threading
import time
from collections import deque
from typing import Any

import numpy as np

from umd_core.errors import UmdError
from umd_grpc._pb.umd import runtime_pb2 as pb
from umd_grpc.addresses import is_local
from umd_grpc.messages.convert import read_error
from umd_grpc.messages.region import HELLO, PACKET, READ, WRITE, Move, decode_reply

SWITCH = "UMD_SHARED_MEMORY"
LEAST = 1 << 20
"""Bytes of a transfer from which on the memory is faster than the stream."""
_PIECE_LEAST, _PIECE_MOST, _PARTS, _SLOTS = 256 << 10, 4 << 20, 16, 8
"""A transfer is moved in `_PARTS` pieces or more, `_SLOTS` of which are under way at once: both sides copy together."""
_CONNECT_SECONDS = 2.0
_SEALS: int = getattr(fcntl, "F_SEAL_SHRINK", 0) | getattr(fcntl, "F_SEAL_SEAL", 0)


class ShareLostError(Exception):
    """The memory is of no use any more; what is under way goes on without it."""


class Share:
    """A region of memory, and the socket over which it is said what lies where. For one thread at a time: `begin`."""

    def __init__(self, name: bytes, token: bytes, size: int) -> None:
        """Remembers where the server gives the region out; it is asked for when it is first needed."""
        self._name, self._token, self._size = name, token, size
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._data: np.ndarray[Any, np.dtype[np.uint8]] | None = None
        self._lost = False

    def __del__(self) -> None:
        self.close()

    def begin(self, size: int) -> bool:
        """Returns whether a transfer of `size` bytes shall go this way; then `write` or `read` must follow.

        When another thread's does, it is better to take the stream than to wait.
        """
        if self._lost or size <= LEAST or not self._lock.acquire(blocking=False):
            return False
        if self._socket is None:
            try:
                self._connect()
            except OSError:
                self._lost = True
        if self._lost:
            self._lock.release()
        return not self._lost

    def _connect(self) -> None:
        """Gets the region.

        Raises:
            OSError: this is another host, or the server gives none, or one that could be shrunk under its reader.
        """
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        descriptors: list[int] = []
        try:
            connection.settimeout(_CONNECT_SECONDS)
            connection.connect(b"\0" + self._name)
            connection.send(self._token)
            hello, descriptors, _, _ = socket.recv_fds(connection, 1, 1)
            if hello != HELLO or len(descriptors) != 1:
                raise ConnectionError("the server gives no memory")
            if fcntl.fcntl(descriptors[0], fcntl.F_GET_SEALS) & _SEALS != _SEALS:
                raise ConnectionError("the server's memory is not sealed")
            self._data = np.frombuffer(mmap.mmap(descriptors[0], self._size), np.uint8)
            self._socket = connection
        except (OSError, ValueError) as error:
            connection.close()
            raise ConnectionError(str(error)) from error
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def close(self) -> None:
        """Gives the memory back."""
        self._lost = True
        connection, self._socket, self._data = self._socket, None, None
        if connection is not None:
            connection.close()

    def write(self, transfer: int, data: memoryview, timeout: float) -> None:
        """Sends the bytes of a transfer; the server has them when it returns.

        Raises:
            UmdError: what the server found.
            ShareLostError: the rest has to go another way.
        """
        self._move(WRITE, transfer, np.frombuffer(data, np.uint8), timeout)

    def read(self, transfer: int, into: memoryview, timeout: float) -> None:
        """Fills `into` with the bytes of a transfer; see `write`."""
        self._move(READ, transfer, np.frombuffer(into, np.uint8), timeout)

    def _move(self, kind: int, transfer: int, array: np.ndarray[Any, np.dtype[np.uint8]], timeout: float) -> None:
        """Lets the server move pieces while others are copied here."""
        connection, region = self._socket, self._data
        try:
            if connection is None or region is None:
                raise ShareLostError
            _Mover(connection, region, kind, transfer, array, time.monotonic() + timeout).run()
        except OSError as error:
            self.close()
            raise ShareLostError from error
        except BaseException as error:
            if not isinstance(error, UmdError):  # replies may be under way that the next transfer must not see
                self.close()
            raise
        finally:
            self._lock.release()


class _Mover:
    """Moves one transfer, in pieces that follow each other around the region."""

    def __init__(
        self,
        connection: socket.socket,
        region: np.ndarray[Any, np.dtype[np.uint8]],
        kind: int,
        transfer: int,
        array: np.ndarray[Any, np.dtype[np.uint8]],
        deadline: float,
    ) -> None:
        self._connection, self._region, self._kind, self._transfer = connection, region, kind, transfer
        self._array, self._deadline = array, deadline
        piece = min(_PIECE_MOST, max(_PIECE_LEAST, len(array) // _PARTS))
        self._piece = min(piece, len(region))
        self._slots = min(_SLOTS, len(region) // self._piece)
        self._under_way: deque[Move] = deque()

    def run(self) -> None:
        """Moves everything.

        Raises:
            UmdError: what the server found.
            OSError: it is gone, or does not answer.
        """
        error: pb.Error | None = None
        for index, offset in enumerate(range(0, len(self._array), self._piece)):
            if len(self._under_way) == self._slots:
                error = error or self._take()
            if error is not None:
                break
            size = min(self._piece, len(self._array) - offset)
            self._send(Move(self._kind, self._transfer, offset, index % self._slots * self._piece, size))
        while self._under_way:
            error = self._take() or error
        if error is not None:
            raise read_error(error.status, error.message, error.facts)

    def _send(self, move: Move) -> None:
        if self._kind == WRITE:
            np.copyto(self._region[move.place : move.place + move.size], self._array[move.offset :][: move.size])
        self._connection.settimeout(max(0.001, self._deadline - time.monotonic()))
        self._connection.send(move.encode())
        self._under_way.append(move)

    def _take(self) -> pb.Error | None:
        """Takes the answer to the oldest request."""
        self._connection.settimeout(max(0.001, self._deadline - time.monotonic()))
        packet = self._connection.recv(PACKET)
        if not packet:
            raise ConnectionError("the server has closed the connection")
        _, error = decode_reply(packet)
        move = self._under_way.popleft()
        if error is None and self._kind == READ:
            np.copyto(self._array[move.offset :][: move.size], self._region[move.place : move.place + move.size])
        return error


def offered_share(target: str, described: pb.SharedMemory, token: bytes, *, wanted: bool = True) -> Share | None:
    """Returns what a server on this host offers, None when it is another host, or the memory is not wanted.

    UMD_SHARED_MEMORY=0 says that it is not.
    """
    on = wanted and os.environ.get(SWITCH, "1") != "0" and is_local(target) and hasattr(socket, "recv_fds")
    return Share(described.address, token, described.size) if on and described.address and described.size else None
