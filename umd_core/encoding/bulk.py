"""The structure of many commands at once, over NumPy. Accepts only what certainly keeps the rules.

Nothing here defines a rule or raises an error: what is not accepted is judged by `structure`, command by command. So
the two can never disagree about a buffer that is refused, and a test shows that whatever is accepted here is accepted
there. `bulk_launches` does the same for rule 7.

A small buffer costs as many NumPy calls as a large one, so each check is written to need few of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from umd_core.commands import Opcode
from umd_core.encoding.layout import COMMAND, NUMBER_LIMIT, OPCODES, REF, SectionKind
from umd_core.encoding.structure import check_other
from umd_core.encoding.tables import Tables
from umd_core.errors import DecodeError

_C, _R, _D = SectionKind.COMMANDS, SectionKind.REFS, SectionKind.DEPS
_Array = NDArray[Any]
FEWEST = 64
"""Commands from which on this is faster than one by one."""

_DISPATCH = int(Opcode.DISPATCH)
_LIMIT_BITS = NUMBER_LIMIT.bit_length() - 1
_OTHERS = [layout for op, layout in OPCODES.items() if op != Opcode.DISPATCH]
"""What a command looks like (its shape) is one of these or, from `_KERNELS` on, a dispatch of a kernel."""
_KERNELS = len(_OTHERS)
_END = [layout.opcode for layout in _OTHERS].index(Opcode.END)
_SHAPE_OF = np.full(257, 2**40, np.int64)
"""The shape of each opcode; more than any shape for those that do not exist, and for what is no opcode."""
_SHAPE_OF[[layout.opcode for layout in _OTHERS]] = np.arange(_KERNELS)
_SHAPE_OF[Opcode.DISPATCH] = _KERNELS
_ACCESSES = [bytes(layout.refs or ()) for layout in _OTHERS]
_LENGTHS = [layout.least if layout.least == layout.most else -1 for layout in _OTHERS]


class Bulk:
    """The commands and refs of a buffer as arrays.

    Attributes:
        tables: of the buffer.
        dispatches: indices of the dispatches.
        kernel: the kernel of each dispatch.
        slot, offset, length: of each ref.
        data_offset, first_ref: of each command, in units of 8 bytes and in refs.
    """

    data_offset: _Array
    first_ref: _Array
    offset: _Array
    length: _Array

    def __init__(self, tables: Tables) -> None:
        frame = tables.frame
        self.tables = tables
        self._commands = frame.section(_C).data
        words: _Array = np.frombuffer(self._commands, "<u4").reshape(-1, COMMAND.size // 4).T
        head, arg0, self.data_offset, self._data_length, *rest = [word.astype(np.int64) for word in words]
        self.first_ref, self._ref_count, self._first_dep, self._arg1 = rest
        self._op_and_flags = head & 0xFFFF
        self._dep_count: _Array = head >> 24
        self._is_dispatch: _Array = (head & 0xFF) == _DISPATCH
        self.dispatches: _Array = self._is_dispatch.nonzero()[0]
        self._kernel_or_0: _Array = arg0 * self._is_dispatch
        self.kernel: _Array = arg0.take(self.dispatches)
        self._refs = frame.section(_R).data
        numbers: _Array = np.frombuffer(self._refs, "<i8").reshape(-1, REF.size // 8).T
        self._slot_and_access, self.offset, self.length = [number.copy() for number in numbers]
        self.slot: _Array = self._slot_and_access & 0xFFFFFFFF
        self._deps: _Array = np.frombuffer(frame.section(_D).data, "<u4").astype(np.int64)

    def first_dispatches(self) -> list[tuple[int, int]] | None:
        """Returns what `resolve_kernels` wants when refs, commands and deps keep all rules; None when unsure."""
        if not (self._commands_fit() and self._refs_fit() and self._deps_fit() and self._others_fit()):
            return None
        unused = len(self._arg1)
        first: _Array = np.full(len(self.tables.kernels), unused)
        first[self.kernel[::-1]] = self.dispatches[::-1]  # of several, the last assignment stays: the first dispatch
        found: list[int] = first.tolist()
        if found and (found[-1] == unused or found != sorted(found)):
            return None
        return list(zip(found, (8 * self.data_offset.take(first)).tolist(), strict=True))

    def _commands_fit(self) -> bool:
        """Opcodes, reserved fields, kernels, cursors, and the low bytes of the refs' accesses."""
        tables = self.tables
        if not len(self._arg1):
            return False
        shape = _SHAPE_OF.take(self._op_and_flags, mode="clip")
        shape += self._kernel_or_0
        if shape.max() >= _KERNELS + len(tables.kernels) or shape[-1] != _END or np.count_nonzero(self._arg1):
            return False
        wanted = np.array(_LENGTHS + [kernel.data_length for kernel in tables.kernels]).take(shape)
        wrong = wanted != self._data_length
        if np.count_nonzero(wrong) and np.count_nonzero(wanted[wrong] != -1):
            return False
        accesses = _ACCESSES + [kernel.accesses for kernel in tables.kernels]
        counts = list(map(len, accesses))
        units = (self._data_length + 7) >> 3
        if not (
            # beside the count lies a reserved field: not 0 makes it another number
            not np.count_nonzero(self._ref_count != np.array(counts).take(shape))
            and _cursor_fits(self.first_ref, self._ref_count, 0, len(self.slot))
            and _cursor_fits(self._first_dep, self._dep_count, 0, len(self._deps))
            and _cursor_fits(self.data_offset, units, tables.commands_at >> 3, len(tables.data) >> 3)
        ):
            return False
        most = max(counts)
        table = np.frombuffer(b"".join([row.ljust(most, b"\0") for row in accesses]), np.uint8).reshape(-1, most)
        expected: bytes = table.take(shape, axis=0).tobytes().replace(b"\0", b"")
        found: bytes = np.frombuffer(self._refs, np.uint8)[REF.offsets["access"] :: REF.size].tobytes()
        return expected == found

    def _refs_fit(self) -> bool:
        slots = self.tables.slots
        if np.count_nonzero((self.offset | self.length) >> _LIMIT_BITS):  # what exceeds i64 is negative here
            return False
        # one slot more, which nothing fits in, stands for all that do not exist
        sizes = np.array([s.min_size for s in slots] + [-1])
        forbidden = np.array([~s.access << 32 for s in slots] + [-1])
        own, ends = sizes.take(self.slot, mode="clip"), self.offset + self.length
        forbidden = forbidden.take(self.slot, mode="clip") & self._slot_and_access
        if np.count_nonzero(ends > own) or np.count_nonzero(forbidden):
            return False
        reached = sizes <= 0
        reached[self.slot.take((ends == own).nonzero()[0])] = True
        return bool(np.count_nonzero(reached) == len(sizes))

    def _deps_fit(self) -> bool:
        deps = self._deps
        if not len(deps):
            return True
        most = self._dep_count.max()
        owners = np.arange(len(self._dep_count)).repeat(self._dep_count)
        if most > self.tables.limits.deps or np.count_nonzero(deps >= owners):
            return False
        rising = (owners << 32) + deps if most > 1 else owners
        return not np.count_nonzero(rising[1:] <= rising[:-1])

    def _others_fit(self) -> bool:
        try:
            for index in (~self._is_dispatch).nonzero()[0].tolist():
                check_other(self.tables, index, COMMAND.struct.unpack_from(self._commands, COMMAND.size * index))
        except DecodeError:
            return False
        return True


def _cursor_fits(first: _Array, counts: _Array, start: int, end: int) -> bool:
    """Returns whether `first` runs from `start` to `end` by `counts`."""
    ends = first + counts
    return bool(first[0] == start and ends[-1] == end and not np.count_nonzero(ends[:-1] != first[1:]))
