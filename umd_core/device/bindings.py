"""What the ranges of a submission must fit: size, alignment, aliases; nothing written is touched by anything else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from umd_core.commands import WRITE, Slot, SlotKind
from umd_core.device.protocol import Binding
from umd_core.errors import BindingError, InputCountError, StaleHandleError


class BindingRules:
    """The rules that the slots of one program set.

    Attributes:
        external: indices of the slots that a submission binds: arguments, then direct handles.
    """

    def __init__(self, slots: Sequence[Slot]) -> None:
        self.external: list[int] = [
            i for i, slot in enumerate(slots) if slot.kind in (SlotKind.ARGUMENT, SlotKind.HANDLE)
        ]
        self._slots = [slots[i] for i in self.external]
        self._argument_count = sum(slot.kind == SlotKind.ARGUMENT for slot in self._slots)
        self._alias_groups = _alias_groups(self._slots)
        self._leaders = {member: group[0] for group in self._alias_groups for member in group}
        self._writable = [bool(slot.access & WRITE) for slot in self._slots]
        for group in self._alias_groups:
            self._writable[group[0]] = any(self._writable[member] for member in group)

    def check(self, bindings: tuple[Binding, ...]) -> None:
        """Checks one binding per external slot, in O(slots).

        Raises:
            InputCountError, StaleHandleError, BindingError: what does not fit.
        """
        if len(bindings) != len(self.external):
            got = len(bindings) - (len(self.external) - self._argument_count)
            raise InputCountError("submission", got, self._argument_count, self._argument_count, "bindings")
        for index, slot, (buffer, offset, size) in zip(self.external, self._slots, bindings, strict=True):
            if not buffer.alive:
                raise StaleHandleError("buffer", f"of binding {index}", "was freed")
            if offset < 0 or size < 0 or size > buffer.size or offset > buffer.size - size:
                detail = f"bytes [{offset}, {offset + size}) are outside the buffer of {buffer.size} bytes"
                raise BindingError(index, "range", detail)
            if size < slot.min_size:
                raise BindingError(index, "length", f"has {size} bytes, the commands touch {slot.min_size}")
            if slot.alignment > 1 and offset % slot.alignment:
                raise BindingError(index, "alignment", f"offset {offset} is no multiple of {slot.alignment}")
        self._check_aliases(bindings)

    def _check_aliases(self, bindings: tuple[Binding, ...]) -> None:
        for first, *others in self._alias_groups:
            for other in others:
                if bindings[other] != bindings[first]:
                    detail = f"must be the same range as binding {first}: the program updates it in place"
                    raise BindingError(other, "alias", detail)
        if len({id(b[0]) for b in bindings}) < len(bindings):
            self._check_overlaps(bindings)

    def _check_overlaps(self, bindings: tuple[Binding, ...]) -> None:
        """Checks that a writable range meets no other, by one sweep over each buffer's ranges in order."""
        writable, leaders = self._writable, self._leaders
        ranges = [
            (id(buffer), offset, offset + size, index)
            for index, (buffer, offset, size) in enumerate(bindings)
            if size and leaders.get(index, index) == index
        ]
        ranges.sort()
        last, reach, written = 0, (0, -1), (0, -1)
        for buffer, start, end, index in ranges:
            if buffer != last:
                last, reach, written = buffer, (0, -1), (0, -1)
            met = reach if writable[index] else written
            if start < met[0]:
                a, b = sorted((index, met[1]))
                raise BindingError(b, "overlap", f"meets binding {a}, and one of them is written")
            reach = max(reach, (end, index))
            written = max(written, (end, index)) if writable[index] else written


def _alias_groups(slots: Iterable[Slot]) -> list[list[int]]:
    """Returns the positions of the slots of each non-zero alias group that has more than one."""
    groups: dict[int, list[int]] = {}
    for position, slot in enumerate(slots):
        if slot.alias_group:
            groups.setdefault(slot.alias_group, []).append(position)
    return [group for group in groups.values() if len(group) > 1]
