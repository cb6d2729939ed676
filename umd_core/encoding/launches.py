"""Rule 7, one launch at a time: what a launch may touch. This is the definition; `bulk` accepts many at once.

Python's integers never overflow, so the sums and products here are exact.
"""

from __future__ import annotations

import functools
import itertools
import operator
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from umd_core.commands import Opcode
from umd_core.encoding.layout import COMMAND, LAUNCH, NUMBER_LIMIT, REF, Column, SectionKind, columns_of
from umd_core.encoding.tables import Tables
from umd_core.errors import DecodeError
from umd_core.kernels import Geometry, KernelRecord, chain
from umd_core.kernels.safety import is_injective, same_elements

_DISPATCH = int(Opcode.DISPATCH)
_LIMIT = NUMBER_LIMIT
_LAUNCH = LAUNCH.struct


class Violation(NamedTuple):
    """A broken rule: its id, the byte of the data (launch block first) and what is wrong.

    `at` is the operand instead where the rule is "ref-alignment".
    """

    rule: str
    at: int
    detail: str


Block = tuple[tuple[Any, ...], Sequence[tuple[int, int]]]
"""The numbers of a parameter block, and what each operand's ref must have: zero bits of its offset, bytes."""


class LaunchRules:
    """What rule 7 asks of every launch of one kernel record, laid out for fast checking.

    Attributes:
        record: the kernel record.
        columns: where each number of the block lies.
        refs: unpacks the refs of a dispatch.
        pairs: operands of which one is written.
        steps: indices of window strides and dilations.
        program: where the numbers of a program lie in the flat block; empty for kernels without one.
    """

    __slots__ = (
        "_aliases", "_boxes", "_offsets", "_padding", "_rest", "_windows", "columns",
        "pairs", "program", "record", "refs", "steps",
    )  # fmt: skip

    def __init__(self, record: KernelRecord) -> None:
        self.record: KernelRecord = record
        self.refs: struct.Struct = struct.Struct("<" + "IIQQ" * len(record.boxes))
        self.columns: list[Column] = columns_of(record.columns)
        self._offsets = [column.offset for column in self.columns]
        starts = [(LAUNCH.size + at, count) for at, count in record.padding]
        self._padding = [(at, at + count, bytes(count)) for at, count in starts]
        self._boxes = [
            (box, box.offset, box.axes, box.dtype.size, box.operand.writes and not record.row.atomic)
            for box in record.boxes
        ]
        in_boxes = {i for box in record.boxes for i in (box.offset, *itertools.chain.from_iterable(box.axes))}
        self._rest = [i for i, column in enumerate(self.columns) if i not in in_boxes and column.kind in "iu"]
        self._windows = _window_terms(record)
        self.steps: list[int] = [
            first + axis
            for name, (first, count) in record.index_of.items()
            if name in ("window_strides", "dilations")
            for axis in range(count or 1)
        ]
        first, count = record.index_of.get("program", (0, None))
        self.program: slice = slice(first, first + (count or 0))
        self._aliases = {frozenset(pair) for pair in record.row.alias}
        self.pairs: list[tuple[int, int]] = [
            (i, j)
            for i, j in itertools.combinations(range(len(record.boxes)), 2)
            if record.boxes[i].operand.writes or record.boxes[j].operand.writes
        ]

    def block(self, data: bytes, max_work: int) -> Block | Violation:
        """Returns what launch block and parameters ask of the refs, or the first rule that these bytes break.

        Args:
            data: launch block and parameter block.
            max_work: largest work allowed.
        """
        launch = _LAUNCH.unpack_from(data)
        if launch[7]:
            return Violation("launch-reserved", LAUNCH.offsets["reserved"], f"{launch[7]:#x} where 0 belongs")
        for start, end, zeros in self._padding:
            if data[start:end] != zeros:
                return Violation("parameter-padding", start, "padding is not zero")
        record = self.record
        flat = record.struct.unpack_from(data, LAUNCH.size)
        sizes = record.sizes
        if flat[: len(sizes)] != sizes:
            lengths = list(flat[: len(sizes)])
            return Violation("parameter-sizes", LAUNCH.size, f"array lengths {lengths}, the first had {list(sizes)}")
        needs: list[tuple[int, int]] = []
        broken = (
            self._touch_violation(flat, needs)
            or self._work_violation(flat, max_work)
            or self._program_violation(flat)
            or self._geometry_violation(flat, launch[:7])
        )
        return broken or (flat, tuple(needs))

    def refs_violation(self, block: Block, refs: tuple[int, ...], tables: Tables) -> Violation | None:
        """Returns the first rule that the refs of a dispatch break, None when they break none.

        Args:
            block: what launch block and parameters ask of them.
            refs: slot, access, offset, length of each, flat.
            tables: of the buffer.
        """
        flat, needs = block
        alignments = tables.alignments
        slots, offsets, lengths = refs[::4], refs[2::4], refs[3::4]
        for (mask, need), slot, offset, length in zip(needs, slots, offsets, lengths, strict=True):
            if (offset | alignments[slot]) & mask or need > length:
                return self._ref_violation(needs, refs, alignments)
        return self._alias_violation(flat, refs, tables.memory)

    def _ref_violation(
        self, needs: Sequence[tuple[int, int]], refs: tuple[int, ...], alignments: Sequence[int]
    ) -> Violation | None:
        for at, (mask, need) in enumerate(needs):
            slot, _, offset, length = refs[4 * at : 4 * at + 4]
            if (offset | alignments[slot]) & mask:
                return Violation("ref-alignment", at, f"elements of {mask + 1} bytes")
            if need > length:
                box = self.record.boxes[at]
                detail = f"{box.operand.name} touches {need} bytes of {length}"
                return Violation("touched-range", self._field(box.offset), detail)
        return None

    def _field(self, index: int) -> int:
        return LAUNCH.size + self._offsets[index]

    def _touch_violation(self, flat: tuple[int, ...], needs: list[tuple[int, int]]) -> Violation | None:
        """Ranges, touched bytes and coinciding elements of every operand, appended to `needs`."""
        for box, offset, axes, size, distinct in self._boxes:
            low = high = flat[offset]
            reach = low if low >= 0 else -low
            elements = extent = stride = 1
            empty = False
            for extent_at, stride_at in axes:
                extent, stride = flat[extent_at], flat[stride_at]
                if not extent:
                    empty = True
                    reach += abs(stride)
                elif stride < 0:
                    elements *= extent
                    reach -= extent * stride
                    low += (extent - 1) * stride
                else:
                    elements *= extent
                    reach += extent * stride
                    high += (extent - 1) * stride
            if (reach + 1) * size >= _LIMIT or elements >= _LIMIT:
                return Violation("parameter-range", self._field(offset), f"{box.operand.name} reaches beyond 2^62")
            if low < 0 and not empty:
                detail = f"{box.operand.name} touches bytes from {low * size} on"
                return Violation("touched-range", self._field(offset), detail)
            if distinct and not (stride or extent < 2 if len(axes) == 1 else is_injective(box, flat)):
                detail = f"elements of {box.operand.name} coincide"
                return Violation("launch-injective", self._field(axes[0][1] if axes else offset), detail)
            needs.append((size - 1, 0 if empty else (high + 1) * size))
        return None

    def _work_violation(self, flat: tuple[int, ...], max_work: int) -> Violation | None:
        """The work, and the range of what no operand's box holds."""
        for at in self._rest:
            if not -_LIMIT < flat[at] < _LIMIT:
                return Violation("parameter-range", self._field(at), f"{flat[at]} is not within ±2^62")
        total = bound = 0
        for group in self.record.work:
            product = 1
            for extent in group:
                product *= flat[extent]
            total += product
            bound += product or _clamped(group, flat)
        if bound >= _LIMIT:
            return Violation("parameter-range", LAUNCH.size, f"the work {bound} is not below 2^62")
        for at in self.steps:
            if not flat[at]:
                return Violation("parameter-window", self._field(at), "window strides and dilations are at least 1")
        for terms in self._windows:
            position = sum([abs(flat[a]) if b < 0 else flat[a] * flat[b] for a, b in terms])
            if position >= _LIMIT:
                return Violation("parameter-range", self._field(terms[0][1]), "window positions reach beyond 2^62")
        if total > max_work:
            return Violation("launch-work", LAUNCH.size, f"{total} element operations, the limit is {max_work}")
        return None

    def _program_violation(self, flat: tuple[int, ...]) -> Violation | None:
        if not self.program.stop:
            return None
        fault = chain.fault_of(flat[self.program])
        return fault and Violation("parameter-program", self._field(self.program.start + fault.at), fault.detail)

    def _geometry_violation(self, flat: tuple[int, ...], launch: tuple[int, ...]) -> Violation | None:
        expected: Geometry = self.record.geometry(flat)
        if launch == expected:
            return None
        at = next(i for i, (a, b) in enumerate(zip(launch, expected, strict=True)) if a != b)
        return Violation("launch-geometry", 4 * at, f"{list(launch)}, the kernel's is {list(expected)}")

    def _alias_violation(self, flat: tuple[int, ...], refs: tuple[int, ...], memory: Sequence[int]) -> Violation | None:
        used = [memory[slot] for slot in refs[::4]]
        if len(set(used)) == len(used):
            return None
        boxes = self.record.boxes
        for i, j in self.pairs:
            if used[i] != used[j]:
                continue
            at, other = 4 * i + 2, 4 * j + 2
            a, a_length, b, b_length = refs[at], refs[at + 1], refs[other], refs[other + 1]
            if a < b + b_length and b < a + a_length and a_length and b_length:
                if a == b and self.declares(i, j) and same_elements(boxes[i], boxes[j], flat):
                    continue
                names = f"{boxes[i].operand.name} and {boxes[j].operand.name}"
                detail = f"{names} overlap and are no alias that the kernel allows"
                return Violation("launch-alias", self._field(boxes[j].offset), detail)
        return None

    def declares(self, i: int, j: int) -> bool:
        """Returns whether the row lets these two operands be the same elements."""
        boxes = self.record.boxes
        return frozenset((boxes[i].operand.name, boxes[j].operand.name)) in self._aliases

    def bounds(self, numbers: Sequence[Any], at_least_one: Callable[[Any], Any]) -> list[Any]:
        """Returns what must stay below 2^62, given the absolute values of a block's numbers.

        They may be Python integers (then exact), or float64 arrays with one entry a launch. Every bound grows with
        every number, so the largest numbers of many launches bound them all.
        """
        found: list[Any] = [numbers[at] for at in self._rest]
        for _, offset, axes, size, _ in self._boxes:
            reach, elements = numbers[offset], 1
            for extent_at, stride_at in axes:
                extent = at_least_one(numbers[extent_at])
                reach = reach + extent * numbers[stride_at]
                elements = elements * extent
            found += ((reach + 1) * size, elements)
        total: Any = 0
        for group in self.record.work:
            total = total + functools.reduce(operator.mul, [at_least_one(numbers[extent]) for extent in group], 1)
        found.append(total)
        found += [sum([numbers[a] if b < 0 else numbers[a] * numbers[b] for a, b in terms]) for terms in self._windows]
        return found


def _clamped(group: Sequence[int], flat: tuple[int, ...]) -> int:
    """Returns the product of a group's extents, each at least 1."""
    product = 1
    for extent in group:
        product *= flat[extent] or 1
    return product


def _window_terms(record: KernelRecord) -> list[list[tuple[int, int]]]:
    """Returns, per spatial axis, the products that bound |input position|; (index, -1) stands for |number|."""
    at = {name: first for name, (first, _) in record.index_of.items()}
    if "window_strides" not in at:
        return []
    out, kernel, inputs = (record.extent_at[name] for name in ("output", "kernel", "input"))
    return [
        [
            (out[axis], at["window_strides"] + axis),
            (at["pads"] + axis, -1),
            (kernel[axis], at["dilations"] + axis),
            (inputs[axis], -1),
            *([(at["pads_end"] + axis, -1)] if "pads_end" in at else []),
        ]
        for axis in range(len(out))
    ]


@functools.lru_cache(maxsize=4096)
def launch_rules(record: KernelRecord) -> LaunchRules:
    """Returns the rules for a record (cached)."""
    return LaunchRules(record)


@functools.lru_cache(maxsize=4096)
def _block(rules: LaunchRules, data: bytes, max_work: int) -> Block | Violation:
    """Returns `rules.block` (cached): equal bytes ask the same, and many layers of a model are alike."""
    return rules.block(data, max_work)


def check_launches(tables: Tables, max_work: int, only: Sequence[int] | None = None) -> None:
    """Checks every dispatch, or only those of the commands given.

    Raises:
        DecodeError: a launch could touch what it must not, or is not what its kernel asks for.
    """
    commands, refs = tables.frame.section(SectionKind.COMMANDS).data, tables.frame.section(SectionKind.REFS).data
    unpack, size, ref_size = COMMAND.struct.unpack_from, COMMAND.size, REF.size
    data = tables.data
    kernels = [launch_rules(record) for record in tables.records]
    for index in range(tables.frame.command_count) if only is None else only:
        op, _, _, _, kernel, at, length, first_ref, _, _, _, _ = unpack(commands, size * index)
        if op != _DISPATCH:
            continue
        rules = kernels[kernel]
        block = _block(rules, data[at << 3 : (at << 3) + length], max_work)
        if isinstance(block, Violation):
            broken: Violation | None = block
        else:
            broken = rules.refs_violation(block, rules.refs.unpack_from(refs, ref_size * first_ref), tables)
        if broken is not None:
            raise _launch_error(tables, index, at << 3, first_ref, rules.record, broken)


def _launch_error(
    tables: Tables, index: int, at: int, first_ref: int, record: KernelRecord, broken: Violation
) -> DecodeError:
    detail, name = f"{record.row.name}: {broken.detail}", record.row.name
    if broken.rule == "ref-alignment":
        ref = first_ref + broken.at
        return tables.frame.broken(broken.rule, SectionKind.REFS, detail, ref, "offset", kernel=name)
    return tables.data_error(broken.rule, at + broken.at, detail, index).at(kernel=name)
