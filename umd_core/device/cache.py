"""Bounded caches of a device: programs by their bytes, executables by kernel and parameters."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

from umd_core.commands import CommandBuffer
from umd_core.device.program import Program


class Bounded(OrderedDict[Hashable, Any]):
    """The most recently used entries."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def find(self, key: Hashable) -> Any:
        """Returns an entry and makes it the most recent one; None when it is not there."""
        value = self.get(key)
        if value is not None:
            self.move_to_end(key)
        return value

    def keep(self, key: Hashable, value: Any) -> None:
        """Adds an entry; the least recently used one makes room."""
        self[key] = value
        self.move_to_end(key)
        if len(self) > self._most:
            self.popitem(last=False)


class Recent:
    """Programs of the CommandBuffer objects that were run last, found by identity."""

    def __init__(self, most: int) -> None:
        self._entries = Bounded(most)

    def find(self, command_buffer: CommandBuffer) -> Program | None:
        """Returns the program of this very object."""
        entry: tuple[CommandBuffer, Program] | None = self._entries.find(id(command_buffer))
        return entry[1] if entry is not None and entry[0] is command_buffer else None

    def keep(self, command_buffer: CommandBuffer, program: Program) -> None:
        """Remembers a program."""
        self._entries.keep(id(command_buffer), (command_buffer, program))

    def clear(self) -> None:
        """Forgets everything."""
        self._entries.clear()
