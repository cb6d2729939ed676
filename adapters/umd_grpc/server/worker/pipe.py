"""A socket pair that carries messages: a JSON object and bytes, each with its length before it."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

Message = tuple[dict[str, Any], bytes]
HEADER_LIMIT, PAYLOAD_LIMIT = 64 << 20, 1 << 34
_LENGTHS = struct.Struct("<IQ")
_BUFFER, _SOCKET_BUFFER = 1 << 16, 4 << 20
_DIRECTLY = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL


class Pipe:
    """One end. `send` may be called from any thread and never waits; one thread receives."""

    def __init__(self, end: socket.socket) -> None:
        """Takes a connected stream socket over."""
        with suppress(OSError):  # the system's usual size will do
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER)
        self._socket, self._file = end, end.makefile("rb", _BUFFER)
        self._moved = threading.Condition()
        self._backlog: deque[bytes | memoryview] = deque()
        self._writer: threading.Thread | None = None
        self._writing = self._closed = False

    def fileno(self) -> int:
        """Returns the descriptor that can be read when the other end has said something."""
        return self._socket.fileno()

    def send(self, header: Mapping[str, Any], payload: bytes | memoryview = b"", *, changes: bool = False) -> None:
        """Sends a message; what the other end has no room for yet is sent by a thread.

        Args:
            header: fit for JSON.
            payload: bytes that do not change until they are sent.
            changes: whether they may change as soon as this returns.
        """
        text = json.dumps(header).encode()
        head = _LENGTHS.pack(len(text), len(payload)) + text
        with self._moved:
            if self._closed:
                return
            sent = 0 if self._writing else self._send_now(head, payload)
            for part in (head, payload):
                rest = memoryview(part)[sent:]
                sent = max(0, sent - len(part))
                if len(rest):
                    self._backlog.append(bytes(rest) if changes else rest)
            if self._backlog:
                self._have_written()

    def _send_now(self, head: bytes, payload: bytes | memoryview) -> int:
        try:
            return self._socket.sendmsg((head, payload), (), _DIRECTLY)
        except BlockingIOError:
            return 0
        except OSError:
            return len(head) + len(payload)  # the other end is gone: whoever receives is told

    def _have_written(self) -> None:
        self._writing = True
        if self._writer is None:
            self._writer = threading.Thread(target=self._write, name="umd-pipe", daemon=True)
            self._writer.start()
        self._moved.notify_all()

    def _write(self) -> None:
        while True:
            with self._moved:
                while not self._backlog:
                    if self._closed:
                        return
                    self._writing = False
                    self._moved.wait()
                part = self._backlog.popleft()
            try:
                self._socket.sendall(part)
            except OSError:
                with self._moved:
                    self._backlog.clear()
            del part

    def receive(self) -> Message | None:
        """Returns the next message, None when the other end is gone or sends something else.

        The payload is there once: it is read into the bytes that are returned.
        """
        try:
            lengths = self._file.read(_LENGTHS.size)
            if len(lengths) < _LENGTHS.size:
                return None
            text_size, size = _LENGTHS.unpack(lengths)
            if text_size > HEADER_LIMIT or size > PAYLOAD_LIMIT:
                return None
            text, payload = self._file.read(text_size), self._file.read(size) if size else b""
            header = json.loads(text)
        except (OSError, ValueError, MemoryError, RecursionError):
            return None
        return (header, payload) if len(payload) == size and isinstance(header, dict) else None

    def close(self) -> None:
        """Ends both directions; the other end is told."""
        with self._moved:
            self._closed = True
            self._backlog.clear()
            self._moved.notify_all()
        with suppress(OSError):  # the other end was first
            self._socket.shutdown(socket.SHUT_RDWR)
        if self._writer is not None:
            self._writer.join(timeout=5.0)
        self._file.close()
        self._socket.close()
