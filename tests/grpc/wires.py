"""A wire between a client and a server that can be cut, fall silent, or change a byte."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Literal

MARK = bytes(range(200, 256)) * 2
"""Bytes that a wire looks for when it is to change one."""
Way = Literal["up", "down"]


class Wire:
    """Passes bytes on both ways between its own port and a server's, and does one harm when it is told to.

    Attributes:
        address: where clients connect.
        harmed: set when the harm is done.
        carried: bytes that have gone each way.
    """

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._target = host, int(port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._cut: tuple[Way, int] | None = None
        self._damage: Way | None = None
        self.harmed = threading.Event()
        self.carried: dict[Way, int] = {"up": 0, "down": 0}
        self._sockets: list[socket.socket] = []
        self._passing = threading.Event()
        self._passing.set()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut_after(self, way: Way, size: int) -> None:
        """Cuts the first connection that has carried so many bytes that way."""
        self.harmed.clear()
        self._cut = way, size

    def damage(self, way: Way) -> None:
        """Changes a byte of the first MARK that goes that way."""
        self.harmed.clear()
        self._damage = way

    def silence(self) -> None:
        """Passes nothing on any more, not even that an end has closed its connection."""
        self._passing.clear()

    def cut(self) -> None:
        """Cuts every connection; new ones are accepted."""
        opened, self._sockets = self._sockets, []
        for each in opened:
            _shut(each)
            each.close()

    def close(self) -> None:
        """Ends it and every connection."""
        self._passing.set()
        _shut(self._listening)
        self._listening.close()
        self.cut()

    def _accept(self) -> None:
        with suppress(OSError):  # closed by the test
            while True:
                near, _ = self._listening.accept()
                far = socket.create_connection(self._target)
                self._sockets += [near, far]
                pairs: list[tuple[Way, socket.socket, socket.socket]] = [("up", near, far), ("down", far, near)]
                for pair in pairs:
                    threading.Thread(target=self._pass, args=pair, daemon=True).start()

    def _pass(self, way: Way, source: socket.socket, target: socket.socket) -> None:
        carried = 0
        with suppress(OSError):  # closed by either end
            while data := source.recv(1 << 16):
                carried += len(data)
                self.carried[way] += len(data)
                if self._cut is not None and self._cut[0] == way and carried > self._cut[1]:
                    self._cut = None
                    self.harmed.set()
                    break
                if self._damage == way and MARK in data:
                    at, self._damage = data.index(MARK), None
                    data = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
                    self.harmed.set()
                if self._passing.is_set():
                    target.sendall(data)
        self._passing.wait()
        _shut(source)
        _shut(target)


def _shut(each: socket.socket) -> None:
    with suppress(OSError):  # the other end was first
        each.shutdown(socket.SHUT_RDWR)
