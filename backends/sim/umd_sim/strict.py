"""Strict mode: a simulator that looks for driver bugs while it runs.

Fresh, freed and transient memory holds a pattern that is NaN for every float type and far out of range as an index. Every
byte has a shadow that says whether anything has written it. So these are found, and named:

- a command that reads an element that nothing has written;
- a kernel that writes outside its operands, writes an operand that it only reads, or leaves part of a result unwritten;
- a program that leaves part of an output unwritten;
- two commands that touch the same bytes and that nothing orders, when the program is loaded. Independent commands run
  in a random legal order, a new one for each submission.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from umd_core.commands import Command, CommandBuffer, Dispatch
from umd_core.device import Binding, FenceValue, Program, SubmissionTicket, legal_order
from umd_core.encoding import verify_dependencies
from umd_core.errors import InternalError
from umd_core.ir import TensorDesc
from umd_core.kernels import KernelRecord, Operand, OperandView
from umd_sim.device import SimDevice
from umd_sim.lowerings.layout import Executable, bind
from umd_sim.options import Options

Bytes = NDArray[np.uint8]
Marks = NDArray[np.bool_]

POISON = b"\xff\x7f"
"""Repeated, a NaN of float16, bfloat16, float32 and float64, and an integer that is no index."""
_OTHER = b"\x5a\xa5"
_AROUND = 4096
"""Bytes on either side of a written operand that are compared before and after."""
_NAMED = 10
"""Missing dependencies that one error names."""


class StrictError(InternalError):
    """A driver bug that strict mode found. Facts: `finding`, and what it is about."""


class Guarded:
    """Memory with a shadow.

    Attributes:
        memory: (size,) uint8.
        written: for each byte, whether anything has written it.
        owned: whether it is the device's, not wrapped host memory.
    """

    __slots__ = ("memory", "owned", "written")

    def __init__(self, memory: Bytes, *, owned: bool) -> None:
        self.memory, self.owned = memory, owned
        self.written: Marks = np.full(memory.size, not owned, np.bool_)

    def spoil(self) -> None:
        """Forgets what was written."""
        self.memory[...] = np.resize(np.frombuffer(POISON, np.uint8), self.memory.size)
        self.written.fill(False)


class _Loaded(NamedTuple):
    """An executable and the record that says which bytes are its."""

    record: KernelRecord
    executable: Executable


class _Use(NamedTuple):
    """One operand of one launch: its guarded memory, where its binding starts, and the box within."""

    operand: Operand
    view: OperandView
    guarded: Guarded
    start: int

    def over(self, memory: NDArray[Any], first: int = 0) -> NDArray[Any]:
        """Returns the box's bytes, (extents…, bytes of an element), in an array that begins at byte `first`."""
        return _box(memory, self.start - first + self.view.offset, self.view.shape, self.view.strides, self.view.dtype.size)

    @property
    def empty(self) -> bool:
        """Whether the box has no element."""
        return 0 in self.view.shape


def _box(memory: NDArray[Any], at: int, shape: Sequence[int], strides: Sequence[int], size: int) -> NDArray[Any]:
    return np.ndarray((*shape, size), memory.dtype, memory, at, (*strides, 1))


class StrictDevice(SimDevice):
    """A SimDevice that looks for driver bugs; several times slower."""

    def __init__(self, options: Options | None = None) -> None:
        super().__init__(options)
        self._random = random.Random(self.options.seed)

    # memory

    def allocate_memory(self, size: int) -> Any:
        guarded = Guarded(super().allocate_memory(size), owned=True)
        guarded.spoil()
        return guarded

    def free_memory(self, memory: Any) -> None:
        if memory.owned:
            memory.spoil()

    def wrap_memory(self, data: Any) -> Any:
        return Guarded(data, owned=False)

    def write_memory(self, memory: Any, offset: int, data: memoryview) -> None:
        super().write_memory(memory.memory, offset, data)
        memory.written[offset : offset + data.nbytes] = True

    def read_memory(self, memory: Any, offset: int, size: int) -> memoryview:
        return super().read_memory(memory.memory, offset, size)

    def copy(self, destination: Binding, source: Binding) -> None:
        for name in ("memory", "written"):
            _range(destination, name)[...] = _range(source, name)

    def fill(self, destination: Binding, pattern: bytes) -> None:
        _range(destination, "memory")[...] = np.resize(np.frombuffer(pattern, np.uint8), destination.size)
        _range(destination, "written").fill(True)

    # programs

    def _load(self, raw: bytes, inputs: Any, outputs: Any, aliases: Any) -> Program:
        program = super()._load(raw, inputs, outputs, aliases)
        missing = verify_dependencies(program.command_buffer).missing
        if missing:
            pairs = [(found.first, found.second) for found in missing]
            commands = program.command_buffer.commands
            lines = [
                f"{found} ({_name(program.command_buffer, commands[found.first])}, "
                f"{_name(program.command_buffer, commands[found.second])})"
                for found in missing[:_NAMED]
            ]
            raise StrictError("; ".join(lines), finding="missing dependency", pairs=pairs)
        return program

    def order(self, program: Program) -> Sequence[int]:
        return legal_order(program, self._random.randrange)

    def _run(
        self,
        program: Program,
        bindings: tuple[Binding, ...],
        words: tuple[int, ...],
        signals: Sequence[FenceValue],
        ticket: SubmissionTicket,
    ) -> None:
        if program.arena is not None:
            program.arena.memory.spoil()
        super()._run(program, bindings, words, signals, ticket)
        if ticket.error is None:
            ticket.complete(_unwritten_output(program, bindings))

    # kernels

    def load_kernel(self, record: KernelRecord, parameters: bytes) -> Any:
        return _Loaded(record, super().load_kernel(record, parameters))

    def bind(self, executable: Any, parameters: bytes, bindings: Sequence[Binding]) -> Callable[[], None]:
        record = executable.record
        uses = [
            _Use(box.operand, view, buffer.memory, start)
            for box, view, (buffer, start, _) in zip(record.boxes, record.views(parameters), bindings, strict=True)
        ]
        plain = [(_Plain(_visible(use)), use.start, 0) for use in uses]
        call = bind(executable.executable, parameters, plain, self.scratch)
        return functools.partial(_checked, record, uses, call)

    def dispatch(self, executable: Any, launch: Any, parameters: bytes, bindings: Sequence[Binding]) -> None:
        with np.errstate(all="ignore"):
            self.bind(executable, parameters, bindings)()


class _Plain(NamedTuple):
    """What a lowering sees of a buffer."""

    memory: Bytes


def _visible(use: _Use) -> Bytes:
    """Returns the memory as the kernel may use it: read-only where the operand is."""
    memory = use.guarded.memory.view()
    if not use.operand.writes:
        memory.flags.writeable = False
    return memory


def _range(binding: Binding, name: str) -> NDArray[Any]:
    whole: NDArray[Any] = getattr(binding.buffer.memory, name)
    return whole[binding.offset : binding.offset + binding.size]


def _name(command_buffer: CommandBuffer, command: Command) -> str:
    if isinstance(command, Dispatch):
        return command_buffer.kernels[command.kernel].row.name
    return type(command).__name__.lower()


def _checked(record: KernelRecord, uses: Sequence[_Use], call: Callable[[], None]) -> None:
    """Runs a kernel and looks at what it read and wrote.

    Raises:
        StrictError: what is wrong.
    """
    kernel = record.row.name
    for use in uses:
        # Which elements of a gather's data are read depends on the indices.
        if "r" in use.operand.access and not use.empty and not (record.row.family == "gather" and use.operand.name == "data"):
            _check_initialised(kernel, use)
    written = [use for use in uses if use.operand.writes and not use.empty]
    fresh = [use for use in written if use.operand.access == "w" and not any(_overlap(use, o) for o in uses if o is not use)]
    _spoil(fresh, POISON)
    before = list(_surroundings(written))
    call()
    _check_surroundings(kernel, written, before)
    _check_complete(kernel, fresh, call, repeatable=len(fresh) == len(written))
    for use in written:
        if not record.row.atomic:
            use.over(use.guarded.written)[...] = True


def _check_initialised(kernel: str, use: _Use) -> None:
    marks = use.over(use.guarded.written)
    if marks.all():
        return
    at = [int(i) for i in np.argwhere(~marks)[0][:-1]]
    raise StrictError(
        f"{kernel} reads element {at} of {use.operand.name}, which nothing has written",
        finding="uninitialised read",
        operand=use.operand.name,
        element=at,
    )


def _overlap(a: _Use, b: _Use) -> bool:
    """Returns whether two operands may share bytes."""
    if a.guarded is not b.guarded or a.empty or b.empty:
        return False
    (low_a, high_a), (low_b, high_b) = _span(a), _span(b)
    return low_a < high_b and low_b < high_a


def _span(use: _Use) -> tuple[int, int]:
    """Returns the bytes [low, high) of its memory that a box that is not empty lies in."""
    reach = [(extent - 1) * step for extent, step in zip(use.view.shape, use.view.strides, strict=True)]
    first = use.start + use.view.offset
    return first + sum(r for r in reach if r < 0), first + sum(r for r in reach if r > 0) + use.view.dtype.size


def _spoil(uses: Sequence[_Use], pattern: bytes) -> None:
    for use in uses:
        box = use.over(use.guarded.memory)
        box[...] = np.resize(np.frombuffer(pattern, np.uint8), box.shape[-1])


def _surroundings(written: Sequence[_Use]) -> Iterator[tuple[int, Bytes]]:
    """Yields, per operand, a copy of its bytes and of those around it, and where it begins."""
    for use in written:
        low, high = _span(use)
        first = max(low - _AROUND, 0)
        yield first, use.guarded.memory[first : high + _AROUND].copy()


def _check_surroundings(kernel: str, written: Sequence[_Use], before: Sequence[tuple[int, Bytes]]) -> None:
    for use, (first, old) in zip(written, before, strict=True):
        changed = use.guarded.memory[first : first + old.size] != old
        for other in written:
            if other.guarded is use.guarded:
                _clear(changed, first, other)
        if changed.any():
            offset = first + int(np.argmax(changed)) - use.start
            raise StrictError(
                f"{kernel} changes byte {offset} of the binding of {use.operand.name}, outside its box",
                finding="out-of-bounds write",
                operand=use.operand.name,
                offset=offset,
            )


def _clear(changed: Marks, first: int, use: _Use) -> None:
    """Takes back the marks of an operand's own bytes."""
    low, high = _span(use)
    own = np.zeros(high - low, np.bool_)
    use.over(own, low)[...] = True
    start, end = max(low, first), min(high, first + changed.size)
    if start < end:
        changed[start - first : end - first] &= ~own[start - low : end - low]


def _check_complete(kernel: str, fresh: Sequence[_Use], call: Callable[[], None], *, repeatable: bool) -> None:
    """Looks for elements that still hold the pattern: after a second run over another pattern, they were not written."""
    doubtful = [(use, left) for use, left in ((use, _left(use, POISON)) for use in fresh) if left.any()]
    if not doubtful or not repeatable:
        return
    _spoil(fresh, _OTHER)
    call()
    for use, left in doubtful:
        unwritten = left & _left(use, _OTHER)
        if unwritten.any():
            at = [int(i) for i in np.argwhere(unwritten)[0]]
            raise StrictError(
                f"{kernel} leaves element {at} of {use.operand.name} unwritten",
                finding="unwritten result",
                operand=use.operand.name,
                element=at,
            )


def _left(use: _Use, pattern: bytes) -> Marks:
    """Returns which elements hold the pattern."""
    box = use.over(use.guarded.memory)
    return np.asarray((box == np.resize(np.frombuffer(pattern, np.uint8), box.shape[-1])).all(axis=-1))


def _unwritten_output(program: Program, bindings: Sequence[Binding]) -> StrictError | None:
    """Returns an error for the first output that the program has not written whole; None when all are."""
    results = bindings[len(program.inputs) : len(program.inputs) + len(program.outputs)]
    for index, (desc, (buffer, offset, _)) in enumerate(zip(program.outputs, results, strict=False)):
        if desc.element_count == 0:
            continue
        marks = _described(buffer.memory.written, offset, desc)
        if not marks.all():
            at = [int(i) for i in np.argwhere(~marks)[0][:-1]]
            return StrictError(
                f"element {at} of output {index} is left unwritten", finding="unwritten output", output=index, element=at
            )
    return None


def _described(memory: NDArray[Any], offset: int, desc: TensorDesc) -> NDArray[Any]:
    size = desc.dtype.size
    strides = [step * size for step in desc.strides]
    return _box(memory, offset + desc.element_offset * size, desc.shape, strides, size)
