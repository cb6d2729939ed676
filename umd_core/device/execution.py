"""Runs a program's steps: the plain loop, and the careful one that knows about failures, events and other orders."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from umd_core.commands import READ, WRITE, Dispatch
from umd_core.device.control import CommandTime, Control
from umd_core.device.program import Program, Step
from umd_core.device.protocol import Binding, Buffer, FenceValue, Poison
from umd_core.errors import IndexRangeError, InternalError, PoisonedError, UmdError

if TYPE_CHECKING:
    from umd_core.device import SequentialDevice


def execute(device: SequentialDevice, program: Program, signals: Sequence[FenceValue]) -> Exception | None:
    """Runs a bound program and returns the first thing that went wrong, None when nothing did."""
    order, control = device.order(program), device.control
    if device.poisoned or program.events or order is not None or (control and control.times is not None):
        return Careful(device, program, signals).run(order)
    position, stops = 0, () if control is None else control.stops
    try:
        for position, call in enumerate(program.calls):  # `position` says where it failed
            if stops:
                return Careful(device, program, signals).run(None, position)
            call()
    except Exception as error:  # noqa: BLE001  # whatever a kernel raises becomes the ticket's error
        return Careful(device, program, signals).run(None, position, error)
    return None


class Careful:
    """One run of a program, step by step.

    A step that fails poisons what it should have written; a step that reads poison is not run and poisons its own
    results with the root cause; a step that rewrites a range fully cleans it. Everything else runs.
    """

    def __init__(self, device: SequentialDevice, program: Program, signals: Sequence[FenceValue]) -> None:
        self._device, self._program, self._signals = device, program, signals
        self._control = device.control or Control()
        self._first: Exception | None = None
        arena = program.arena
        if arena is not None:
            arena.poison.clear()

    def run(self, order: Sequence[int] | None, first: int = 0, error: Exception | None = None) -> Exception | None:
        """Runs the steps in `order`; in program order when None, from step `first` on, which may just have failed."""
        steps = self._program.steps
        positions: Iterable[int] = range(first, len(steps)) if order is None else order
        if error is not None:
            self._fail(steps[first], error)
            positions = range(first + 1, len(steps))
        for position in positions:
            self._step(position, steps[position])
        self._note_poison()
        return self._first

    def _step(self, position: int, step: Step) -> None:
        root = self._poison_read(step) if self._device.poisoned else None
        if self._control.stops:
            self._first = self._first or self._control.stops[0]
            self._spoil(step, self._control.stops[0])
        elif root is not None:
            self._fail(step, PoisonedError(f"{step.name} (command {step.command})", root))
        else:
            try:
                self._call(position, step)
            except Exception as error:  # noqa: BLE001  # whatever a kernel raises becomes the ticket's error
                self._fail(step, error)
            else:
                self._cleanse(step)
        for signal in self._program.events.get(position, ()):
            fence, value = self._signals[signal]
            fence.advance(value)

    def _call(self, position: int, step: Step) -> None:
        clock, times = self._control.clock, self._control.times
        if clock is None or times is None:
            self._program.calls[position]()
            return
        start = clock()
        self._program.calls[position]()
        self._device.settle()
        times.append(CommandTime(step.command, step.name, clock() - start))

    def _fail(self, step: Step, error: Exception) -> None:
        known = located(error, self._device.name, step)
        self._first = self._first or known
        self._spoil(step, known)

    def _spoil(self, step: Step, known: Exception) -> None:
        """Poisons what a step should have written."""
        for index, (buffer, start, size) in enumerate(self._program.ranges(step)):
            if step.refs[index].access & WRITE and size:
                layout = written_layout(self._program, step, index, start)
                clear(buffer, start, start + size)
                buffer.poison.append(Poison(start, start + size, known, layout))
                self._device.poisoned.add(buffer)

    def _poison_read(self, step: Step) -> BaseException | None:
        for ref, (buffer, start, size) in zip(step.refs, self._program.ranges(step), strict=True):
            if ref.access & READ and buffer.poison:
                root = poison_in(buffer, start, start + size)
                if root is not None:
                    return root
        return None

    def _cleanse(self, step: Step) -> None:
        """Ends the poison of what the step has written in full."""
        if not self._device.poisoned:
            return
        for index, (buffer, start, size) in enumerate(self._program.ranges(step)):
            if buffer.poison and step.refs[index].access == WRITE:
                layout, end = written_layout(self._program, step, index, start), start + size
                if layout:
                    buffer.poison = [p for p in buffer.poison if p.layout != layout]
                else:
                    clear(buffer, start, end)

    def _note_poison(self) -> None:
        """Forgets the arena's poison, which ends with the submission, and buffers that are clean again."""
        arena = self._program.arena
        if arena is not None:
            arena.poison.clear()
        self._device.poisoned = {buffer for buffer in self._device.poisoned if buffer.poison}


def written_layout(program: Program, step: Step, index: int, start: int) -> tuple[object, ...]:
    """Returns which bytes of a ref's range, bound from `start` on, a step writes: () for all, else `Poison.layout`."""
    if not isinstance(step.source, Dispatch):
        return ()
    record = program.command_buffer.kernels[step.source.kernel]
    view = record.views(step.parameters)[index]
    dense = math.prod(view.shape) * view.dtype.size == step.refs[index].length and not record.row.atomic
    return () if dense else (start + view.offset, view.shape, view.strides)


def poison_in(buffer: Buffer, start: int, end: int) -> BaseException | None:
    """Returns the error that spoilt a byte of the range, None when it is clean."""
    return next((p.error for p in buffer.poison if p.start < end and start < p.end), None)


def clear(buffer: Buffer, start: int, end: int) -> None:
    """Removes the poison of a range that has been rewritten."""
    kept = []
    for poison in buffer.poison:
        if poison.end <= start or end <= poison.start:
            kept.append(poison)
            continue
        if poison.start < start:
            kept.append(poison._replace(end=start))
        if end < poison.end:
            kept.append(poison._replace(start=end))
    buffer.poison = kept


def poison(device: SequentialDevice, ranges: Iterable[Binding], error: Exception) -> None:
    """Spoils ranges that work which never ran should have written."""
    for buffer, start, size in ranges:
        if size:
            clear(buffer, start, start + size)
            buffer.poison.append(Poison(start, start + size, error))
            device.poisoned.add(buffer)


def located(error: Exception, device: str, step: Step) -> UmdError:
    """Returns the error with backend, kernel, command, last mark and the graph's node in its facts and its message."""
    if isinstance(error, IndexRangeError):
        known: UmdError = IndexRangeError(error.kernel, step.command, error.value, error.extent)
    elif isinstance(error, UmdError):
        known = error
    else:
        known = InternalError(f"{type(error).__name__}: {error}")
    if known is not error:
        known.__cause__ = error
    mark = f" after mark {step.mark!r}" if step.mark else ""
    _, node, source = step.origin
    origin = (f", node {node!r}" if node else "") + (f" from {source}" if source else "")
    known.args = (f"{known} [{device}: {step.name}, command {step.command}{mark}{origin}]",)
    return known.at(device=device, kernel=step.name, command=step.command, mark=step.mark, node=node, source=source)
