"""The structure of many commands at once, over NumPy. Accepts only what certainly keeps the rules.

Nothing here defines a rule or raises an error: what is not accepted is judged by `structure`, command by command. So
the two can never disagree about a buffer that is refused, and a test shows that whatever is accepted here is accepted
there. `bulk_launches` does the same for rule 7.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from umd_core.commands import Opcode
from umd_core.encoding.layout import COMMAND, OPCODES, REF, SectionKind
from umd_core.encoding.structure import check_other
from umd_core.encoding.tables import Tables
from umd_core.errors import DecodeError

_C, _R, _D = SectionKind.COMMANDS, SectionKind.REFS, SectionKind.DEPS
_Array = NDArray[Any]
FEWEST = 100
"""Commands from which on this is faster than one by one."""

_SHAPE_OF = np.full(256, -1, np.int64)
"""The number of each opcode in `OPCODES`, -1 where there is none."""
_SHAPE_OF[list(OPCODES)] = np.arange(len(OPCODES))
_ACCESSES = [layout.refs or () for layout in OPCODES.values()]
"""Access of each ref, by opcode number."""


class Bulk:
    """The commands and refs of a buffer as arrays.

    Attributes:
        tables: of the buffer.
        dispatches: indices of the dispatches.
        kernel: the kernel of each dispatch.
        slot, offset, length: of each ref.
        data_offset, first_ref: of each command, in units of 8 bytes and in refs.
    """

    def __init__(self, tables: Tables) -> None:
        frame = tables.frame
        self.tables = tables
        self._commands: _Array = np.frombuffer(frame.section(_C).data, COMMAND.dtype)
        self._refs: _Array = np.frombuffer(frame.section(_R).data, REF.dtype)
        self._deps: _Array = np.frombuffer(frame.section(_D).data, "<u4")
        self._op: _Array = self._commands["op"].astype(np.int64)
        self.dispatches: _Array = np.flatnonzero(self._op == Opcode.DISPATCH)
        self.kernel: _Array = self._commands["arg0"][self.dispatches].astype(np.int64)
        self.data_offset: _Array = self._commands["data_offset"].astype(np.int64)
        self.first_ref: _Array = self._commands["first_ref"].astype(np.int64)
        self.slot: _Array = self._refs["slot"].astype(np.int64)
        self.offset: _Array = self._refs["offset"].astype(np.int64)
        self.length: _Array = self._refs["length"].astype(np.int64)

    def first_dispatches(self) -> list[tuple[int, int]] | None:
        """Returns what `resolve_kernels` wants when refs, commands and deps keep all rules; None when unsure."""
        if not (self._refs_fit() and self._commands_fit() and self._deps_fit()):
            return None
        if not self._others_fit():
            return None
        if not len(self.kernel):
            return []
        highest = np.maximum.accumulate(self.kernel)
        steps = highest[1:] - highest[:-1]
        if self.kernel[0] or (steps > 1).any():
            return None
        first = self.dispatches[[0, *(np.flatnonzero(steps) + 1).tolist()]]
        return list(zip(first.tolist(), (8 * self.data_offset[first]).tolist(), strict=True))

    def _refs_fit(self) -> bool:
        slots = self.tables.slots
        if (self.slot >= len(slots)).any() or ((self.offset | self.length) >> 62).any():
            return False
        sizes = np.array([s.min_size for s in slots], np.int64)
        forbidden = np.array([~s.access & 0xFFFFFFFF for s in slots], np.uint32)
        ends = self.offset + self.length
        own = sizes[self.slot]
        if (ends > own).any() or (self._refs["access"] & forbidden[self.slot]).any():
            return False
        reached = sizes == 0
        reached[self.slot[ends == own]] = True
        return bool(reached.all())

    def _commands_fit(self) -> bool:
        """Opcodes, reserved fields, kernels, cursors, and the accesses of the refs."""
        commands, tables, op = self._commands, self.tables, self._op
        shape = _SHAPE_OF[op]  # what a command looks like: by its opcode, or beyond those by its kernel
        if not len(op) or op[-1] != Opcode.END or (op == Opcode.END).sum() != 1 or (shape < 0).any():
            return False
        if commands["flags"].any() or commands["reserved"].any() or commands["arg1"].any():
            return False
        if (self.kernel >= len(tables.kernels)).any():
            return False
        shape[self.dispatches] = self.kernel + len(OPCODES)
        accesses = _ACCESSES + [kernel.accesses for kernel in tables.kernels]
        sizes = np.array([-1] * len(OPCODES) + [kernel.data_length for kernel in tables.kernels], np.int64)[shape]
        lengths = commands["data_length"].astype(np.int64)
        if ((lengths != sizes) & (sizes >= 0)).any():
            return False
        of_shape = np.array(list(map(len, accesses)), np.int64)
        counts = of_shape[shape]
        if not (
            (commands["ref_count"] == counts).all()
            and _cursor_fits(self.first_ref, counts, 0, len(self.slot))
            and _cursor_fits(commands["first_dep"], commands["dep_count"], 0, len(self._deps))
            and _cursor_fits(self.data_offset, (lengths + 7) >> 3, tables.commands_at >> 3, len(tables.data) >> 3)
        ):
            return False
        first = (np.cumsum(of_shape) - of_shape)[shape] - self.first_ref
        which = np.repeat(first, counts) + np.arange(len(self.slot))
        expected = np.array(list(itertools.chain.from_iterable(accesses)), np.uint32)[which]
        return bool((expected == self._refs["access"]).all())

    def _deps_fit(self) -> bool:
        counts, deps = self._commands["dep_count"], self._deps
        if not len(deps):
            return True
        if counts.max() > self.tables.limits.deps:
            return False
        owners = np.repeat(np.arange(len(counts), dtype=np.uint32), counts)
        if (deps >= owners).any():
            return False
        return not ((deps[1:] <= deps[:-1]) & (owners[1:] == owners[:-1])).any()

    def _others_fit(self) -> bool:
        try:
            for index in np.flatnonzero(self._op != Opcode.DISPATCH).tolist():
                check_other(self.tables, index, COMMAND.struct.unpack(self._commands[index].tobytes()))
        except DecodeError:
            return False
        return True


def _cursor_fits(first: _Array, counts: _Array, start: int, end: int) -> bool:
    """Returns whether `first` runs from `start` to `end` by `counts`."""
    ends = np.cumsum(counts, dtype=np.int64)
    return bool(first[0] == start and ends[-1] == end - start and (first[1:] - start == ends[:-1]).all())
