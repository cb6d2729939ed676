"""A launch in the checked build: its bindings moved apart, watched, run in several orders, compared, moved back."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from umd_core.errors import UmdError
from umd_core.kernels import KernelRecord
from umd_cuda import host
from umd_cuda.driver import Geometry
from umd_cuda.host import Box, Finding, Kind, Range
from umd_cuda.plans import EXTRA, Plan
from umd_cuda.status import WORD

_ALIGNMENT = 256
STATUS, SCRATCH = "status", "scratch"
NOTHING = Box(0, (0,), (1,))
"""No element has to be written, yet none may be read before it is."""


class Operand(NamedTuple):
    """A binding of a launch: bytes from `address` on. `box`: the elements that the launch must write, if any."""

    name: str
    access: str
    address: int
    size: int
    box: Box | None


@dataclass(frozen=True, slots=True)
class Expected:
    """What a launch may touch and has to write.

    Attributes:
        operands: one per binding, in order.
        deterministic: whether every order of threads must give the same bits.
        size: bytes of the kernel's parameters, behind which the address of the scratch memory stands.
        scratch: bytes that the passes of the launch share; what is in them at the start is not to be read.
        passes: launches of which it is made; outputs have to be there after the last.
    """

    kernel: str
    operands: tuple[Operand, ...]
    deterministic: bool
    size: int
    scratch: int = 0
    passes: int = 1

    def operands_of(self, number: int, addresses: Sequence[int], block: bytes) -> tuple[Operand, ...]:
        """Returns what pass `number` may touch: the operands, a status word behind them, and the scratch memory."""
        operands = list(self.operands)
        if number + 1 < self.passes:
            operands = [o if o.box is None else o._replace(box=NOTHING) for o in operands]
        if len(addresses) > len(operands):
            operands.append(Operand(STATUS, "rw", addresses[-1], WORD.size, None))
        if self.scratch:
            address, _ = EXTRA.unpack_from(block, self.size)
            operands.append(Operand(SCRATCH, "rw", address, self.scratch, None if number else NOTHING))
        return tuple(operands)


class Fault(NamedTuple):
    """A finding at a binding of a launch.

    Attributes:
        kind: as `umd_cuda.host.Kind` has it.
        binding: name of the operand, "status", or a variable of the workgroup; "" where the fault is not in memory.
        slot: of the command buffer, -1 where there is none.
        offset, size: bytes from the start of the binding.
        block, thread, line: the invocation and its line in the kernel's source; () and 0 where there is none.
        code: the text of that line.
        detail: the finding as a sentence.
    """

    kind: str
    binding: str
    slot: int
    offset: int
    size: int
    block: tuple[int, ...]
    thread: tuple[int, ...]
    line: int
    code: str
    detail: str

    def __str__(self) -> str:
        slot = f" (slot {self.slot})" if self.slot >= 0 else ""
        return f"{self.detail}{slot}" + (f"\n    {self.line}: {self.code}" if self.code else "")


class LaunchFaultError(UmdError):
    """A checked launch has faults. Facts: `kernel`, `faults` (a `Fault` each), `operands` (names), `command`."""

    kernel: str
    operands: Sequence[str]
    faults: Sequence[Fault]
    command: int

    def __init__(self, kernel: str, operands: Sequence[str], faults: Sequence[Fault], command: int = -1) -> None:
        listed = "".join(f"\n  {fault}" for fault in faults)
        message = f"the checked launch of {kernel} found {len(faults)}:{listed}"
        super().__init__(message, kernel=kernel, operands=tuple(operands), faults=tuple(faults))
        if command >= 0:
            self.command = command

    def named(self, slots: Sequence[int], command: int) -> LaunchFaultError:
        """Returns the error with the slots of a command's bindings."""
        slot_of = dict(zip(self.operands, slots, strict=False))
        faults = [fault._replace(slot=slot_of.get(fault.binding, -1)) for fault in self.faults]
        return LaunchFaultError(self.kernel, self.operands, faults, command)


def expected_of(
    record: KernelRecord, parameters: bytes, ranges: Sequence[tuple[int, int]], plan: Plan | None = None
) -> Expected:
    """Returns what a launch over these (address, size) ranges may touch and has to write, by the kernel table."""
    operands = []
    for operand, view, (address, size) in zip(record.row.operands, record.views(parameters), ranges, strict=True):
        must = operand.access == "w" and not record.row.atomic
        box = Box(view.offset, view.shape, view.strides) if must and 0 not in view.shape else None
        operands.append(Operand(operand.name, operand.access, address, size, box))
    shared, passes = (0, 1) if plan is None else (plan.scratch, len(plan.passes))
    return Expected(record.row.name, tuple(operands), record.row.deterministic, record.size, shared, passes)


def beyond(name: str, offset: int, size: int, memory: int) -> Fault:
    """Returns the fault of a binding that reaches beyond the `memory` bytes of its buffer."""
    detail = f"binding {name!r} is bytes [{offset}, {offset + size}) of a memory of {memory} bytes"
    return Fault("binding outside its memory", name, -1, offset, size, (), (), 0, "", detail)


class Piece:
    """Bytes that operands share, in memory of their own while the launch runs; it lies as the original is aligned."""

    def __init__(self, operands: Sequence[Operand]) -> None:
        self.operands: tuple[Operand, ...] = tuple(operands)
        self.start: int = min(o.address for o in operands)
        self.size: int = max(o.address + o.size for o in operands) - self.start
        self.original: NDArray[np.uint8] = _bytes_at(self.start, self.size)
        room = np.empty(self.size + 2 * _ALIGNMENT, np.uint8)
        first = (self.start - room.ctypes.data) % _ALIGNMENT
        self.copy: NDArray[np.uint8] = room[first : first + self.size]
        self.address: int = int(room.ctypes.data) + first

    def moved(self, address: int) -> int:
        """Returns where a pointer into the original points here; what points elsewhere points behind the end.

        As far off as it was, it might by chance point into the copy of what it was confused with.
        """
        offset = address - self.start
        return self.address + (offset if 0 <= offset <= self.size else self.size)

    @property
    def watched(self) -> Range:
        """The range of the checked build: contents are set (device memory starts as zeros) unless it is an output."""
        name = " = ".join(dict.fromkeys(o.name for o in self.operands))
        only = self.operands[0]
        box = only.box if len(self.operands) == 1 else None
        return Range(name, self.address, self.size, box is None, box)

    @property
    def written(self) -> bool:
        """Whether the launch may write here."""
        return any("w" in o.access for o in self.operands)


def pieces_of(operands: Sequence[Operand]) -> list[Piece]:
    """Returns the pieces of memory that operands lie in: those that overlap share one."""
    groups: list[list[Operand]] = []
    end = -1
    for operand in sorted((o for o in operands if o.size), key=lambda o: o.address):
        if operand.address < end:
            groups[-1].append(operand)
        else:
            groups.append([operand])
        end = max(end, operand.address + operand.size)
    return [Piece(group) for group in groups]


class CheckedLaunch:
    """A call that launches a kernel of a checked module any number of times.

    Args:
        geometry: grid, block and bytes of dynamic workgroup memory.
        addresses: as the device worked them out, one per pointer of the kernel.
        expected: what the launch may touch, worked out apart from that.
        number: of the pass, from 0.
        orders: how many random orders of threads run beside the launch order.
    """

    def __init__(
        self,
        function: host.HostFunction,
        geometry: Geometry,
        addresses: Sequence[int],
        block: bytes,
        expected: Expected,
        number: int,
        orders: int,
    ) -> None:
        self._function, self._geometry, self._block = function, geometry, block
        self._addresses, self._expected, self._orders = tuple(addresses), expected, orders
        self._operands = expected.operands_of(number, addresses, block)

    def __call__(self) -> None:
        pieces = pieces_of(self._operands)
        packed = [*self._pointers(pieces), self._moved_block(pieces)]
        found: dict[tuple[Any, ...], Finding] = {}
        results: list[list[NDArray[np.uint8]]] = []
        for seed in range(self._orders, -1, -1):  # the launch order last: its results are kept
            for piece in pieces:
                piece.copy[...] = piece.original
            ranges = [piece.watched for piece in pieces]
            for finding in host.check_launch(self._function, *self._geometry, packed, ranges, seed=seed):
                found.setdefault(
                    (finding.kind, finding.buffer, finding.line, finding.other and finding.other.line), finding
                )
            results.append([piece.copy.copy() for piece in pieces] if self._orders else [])
        findings = self._relevant(list(found.values()), pieces)
        if not findings and self._orders:
            findings = self._order_dependent(pieces, results)
        if findings:
            raise self._error(findings)
        for piece in pieces:
            if piece.written:
                piece.original[...] = piece.copy

    def _pointers(self, pieces: Sequence[Piece]) -> list[bytes]:
        """Returns the kernel's pointers into the pieces, as far off as the device's are off the bindings."""
        pointers = []
        for operand, address in zip(self._operands, self._addresses, strict=False):
            piece = next((p for p in pieces if operand in p.operands), None)
            moved = address if piece is None else piece.moved(address)
            pointers.append(moved.to_bytes(8, "little"))
        return pointers

    def _moved_block(self, pieces: Sequence[Piece]) -> bytes:
        """Returns the parameter block with the scratch memory's address in its piece."""
        piece = next((p for p in pieces if p.operands[0].name == SCRATCH), None)
        if piece is None:
            return self._block
        block, at = bytearray(self._block), self._expected.size
        EXTRA.pack_into(block, at, piece.address, EXTRA.unpack_from(block, at)[1])
        return bytes(block)

    def _relevant(self, findings: list[Finding], pieces: Sequence[Piece]) -> list[Finding]:
        """Returns the findings without unwritten elements where the status word says why they were left alone."""
        refused = any(piece.operands[0].name == STATUS and piece.copy[:4].any() for piece in pieces)
        return [f for f in findings if not (refused and f.kind is Kind.UNWRITTEN_OUTPUT)]

    def _order_dependent(
        self, pieces: Sequence[Piece], results: Sequence[Sequence[NDArray[np.uint8]]]
    ) -> list[Finding]:
        """Returns the pieces whose bytes depend on the order of threads, for a kernel that promises they do not."""
        found = []
        for index, piece in enumerate(pieces):
            if not (self._expected.deterministic and piece.written) or piece.operands[0].name in (STATUS, SCRATCH):
                continue
            unequal = [np.flatnonzero(result[index] != results[-1][index]) for result in results[:-1]]
            different = [places for places in unequal if places.size]
            if different:
                detail = f"{len(different)} of {self._orders} random orders gave another result"
                first = int(different[0][0])
                found.append(
                    Finding(Kind.ORDER_DEPENDENT, piece.watched.name, first, 1, None, None, len(different), detail)
                )
        return found

    def _error(self, findings: Sequence[Finding]) -> LaunchFaultError:
        faults = [self._fault(finding) for finding in findings]
        return LaunchFaultError(self._expected.kernel, [o.name for o in self._operands], faults)

    def _fault(self, finding: Finding) -> Fault:
        where = finding.where
        binding = finding.buffer.partition(" = ")[0]
        return Fault(
            str(finding.kind), binding, -1, finding.offset, finding.size,
            where.block if where else (), where.thread if where else (), finding.line,
            self._function.module.line(finding.line), str(finding),
        )  # fmt: skip


def _bytes_at(address: int, size: int) -> NDArray[np.uint8]:
    return np.frombuffer(memoryview((ctypes.c_uint8 * size).from_address(address)), np.uint8)
