"""A program on the server's device, and the checks of its submissions that need no server."""

from __future__ import annotations

import functools
from collections import deque

from umd_core.commands import WRITE, CommandBuffer, Flag, SlotKind
from umd_core.device import Binding, Caps
from umd_core.device.bindings import BindingRules
from umd_core.device.tensor import Signature
from umd_core.encoding import decode
from umd_core.encoding.patch import PatchPlan
from umd_core.errors import InputCountError, LimitError, StaleHandleError, UnsupportedError


class RemoteProgram:
    """A command buffer that one session has loaded.

    Attributes:
        handle: the session's handle on it.
        inputs, outputs, aliases: the CommandBuffer's; empty when the program was loaded from bytes alone.
        argument_count: bindings that a submission gives.
        writes: for each of them, whether it may be written.
        one_shot: whether it may be submitted once only.
    """

    def __init__(
        self, caps: Caps, device: str, raw: bytes, described: CommandBuffer | None, handle: int, dropped: deque[int]
    ) -> None:
        """Checks the program as the server will. Its handle goes to `dropped` when nobody holds it any more.

        Raises:
            DecodeError: the bytes break a rule.
            UnsupportedError: the device lacks one of its kernels.
            LimitError: it is too large for the server.
        """
        if len(raw) > caps.max_buffer_bytes:
            raise LimitError("bytes of a program", len(raw), caps.max_buffer_bytes)
        command_buffer = decode(raw)
        for record in command_buffer.kernels:
            if not caps.supports(record.row.name, record.types):
                types = tuple(t.name for t in record.types)
                raise UnsupportedError("is not there", kernel=record.row.name, types=types, device=device)
        source = described or command_buffer
        self.inputs, self.outputs, self.aliases = tuple(source.inputs), tuple(source.outputs), tuple(source.aliases)
        self.argument_count = command_buffer.argument_count
        arguments = [slot for slot in command_buffer.slots if slot.kind == SlotKind.ARGUMENT]
        self.writes = tuple(bool(slot.access & WRITE) for slot in arguments)
        self.one_shot, self._spent = bool(command_buffer.flags & Flag.ONE_SHOT), False
        self._rules, self._plan = BindingRules(command_buffer.slots), PatchPlan(command_buffer)
        self._checked: tuple[Binding, ...] | None = None  # what was found good: most submissions repeat the last one
        self._signal_count = 1 + max((event.signal for event in command_buffer.events), default=-1)
        self.handle, self._dropped = handle, dropped

    def __del__(self) -> None:
        if hasattr(self, "_dropped"):
            self._dropped.append(self.handle)

    @functools.cached_property
    def signature(self) -> Signature:
        """The arguments, prepared for `run`."""
        return Signature(self.inputs, self.outputs, self.aliases, self.argument_count)

    def check(self, bindings: tuple[Binding, ...], values: tuple[int, ...], signals: int) -> None:
        """Checks a submission.

        Raises:
            InputCountError, StaleHandleError, BindingError, LimitError: what does not fit.
        """
        if bindings != self._checked or not all(buffer.alive for buffer, _, _ in bindings):
            self._rules.check(bindings)
            self._checked = bindings
        if values or self._plan.value_count:
            self._plan.apply(values)
        if signals < self._signal_count:
            raise InputCountError("submission", signals, self._signal_count, 2**32, "signals")
        if self.one_shot:
            if self._spent:
                raise StaleHandleError("program", f"{self.handle & 0xFFFFFFFF}", "is ONE_SHOT and was submitted before")
            self._spent = True
