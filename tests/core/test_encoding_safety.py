"""No accepted launch touches a byte outside its refs, and no ref leaves its binding: by counting elements out."""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.core.random_buffers import INTERESTING, command_buffers, launches
from umd_core.commands import READ, WRITE, CommandBuffer, Copy, Dispatch, Ref, Slot, SlotKind, refs_of
from umd_core.encoding import decode, encode
from umd_core.errors import DecodeError, LimitError
from umd_core.kernels import BY_NAME, KERNELS, KernelRecord, safety

COUNTED = 20_000
"""Elements up to which an operand is counted out; of larger ones only the corners."""


def box_of(record: KernelRecord, block: bytes, operand: str) -> tuple[int, list[int], list[int]]:
    """Returns an operand's offset, extents and strides, read by the names in the kernel row."""
    values = record.unpack(block)
    extents: list[int] = []
    for name in next(o.box for o in record.row.operands if o.name == operand):
        extents += values[name] if isinstance(values[name], tuple) else [values[name]]
    strides = values.get(f"{operand}_strides", ())
    return values[f"{operand}_offset"], extents, list(strides)


def elements(offset: int, extents: Sequence[int], strides: Sequence[int]) -> list[int]:
    """Returns the elements of a box in row-major order, or those of its corners when there are too many."""
    ranges: list[Sequence[int]] = [range(e) for e in extents]
    if not math.prod(extents):
        return []
    if math.prod(extents) > COUNTED:
        ranges = [sorted({0, e - 1}) for e in extents]
    return [offset + sum(i * s for i, s in zip(index, strides, strict=True)) for index in itertools.product(*ranges)]


def check_launch(cb: CommandBuffer, command: Dispatch) -> None:
    record = cb.kernels[command.kernel]
    touched: list[tuple[Any, list[int], Ref]] = []
    for operand, box, ref in zip(record.row.operands, record.boxes, command.refs, strict=True):
        size = box.dtype.size
        offset, extents, strides = box_of(record, command.parameters, operand.name)
        found = elements(offset, extents, strides)
        assert all(e * size >= 0 and (e + 1) * size <= ref.length for e in found)
        assert ref.offset % size == 0 == cb.slots[ref.slot].alignment % size
        wanted = WRITE if operand.access == "w" else READ if operand.access == "r" else READ | WRITE
        assert ref.access == wanted
        if operand.writes and not record.row.atomic and math.prod(extents) <= COUNTED:
            assert len(set(found)) == len(found)
        touched.append((operand, found, ref))
    for (a, a_elements, a_ref), (b, b_elements, b_ref) in itertools.combinations(touched, 2):
        if (a.writes or b.writes) and meet(cb.slots, a_ref, b_ref):
            assert {(a.name, b.name), (b.name, a.name)} & set(record.row.alias)
            assert a_ref.offset == b_ref.offset
            assert a_elements == b_elements


def meet(slots: Sequence[Slot], a: Ref, b: Ref) -> bool:
    """Returns whether two refs have a byte in common."""
    groups = slots[a.slot].alias_group, slots[b.slot].alias_group
    same = a.slot == b.slot or (groups[0] == groups[1] != 0)
    return same and bool(set(range(a.offset, a.offset + a.length)) & set(range(b.offset, b.offset + b.length)))


def check_safety(cb: CommandBuffer) -> None:
    for command in cb.commands:
        for ref in refs_of(command):
            slot = cb.slots[ref.slot]
            assert ref.offset + ref.length <= slot.min_size
            assert ref.access & ~slot.access == 0
            if slot.kind in (SlotKind.ARENA, SlotKind.CONSTANT):
                assert slot.min_size <= slot.length
            assert not (slot.kind == SlotKind.CONSTANT and ref.access & WRITE)
        if isinstance(command, Dispatch):
            check_launch(cb, command)
        elif isinstance(command, Copy):
            assert not meet(cb.slots, command.destination, command.source)


@settings(max_examples=60)
@given(command_buffers())
def test_valid_buffers_stay_within_their_bindings(cb: CommandBuffer) -> None:
    check_safety(decode(encode(cb)))


def single(record: KernelRecord, flat: Sequence[Any], refs: Sequence[Ref]) -> CommandBuffer:
    """Returns one launch, each operand in its own argument of just the size of its ref."""
    slots = [Slot(SlotKind.ARGUMENT, r.access, 0, 8, r.offset + r.length, 0, 0) for r in refs]
    command = Dispatch(0, record.geometry(flat), record.struct.pack(*flat), tuple(refs))
    return CommandBuffer(kernels=[record], slots=slots, commands=[command])


ACCESS = {"r": READ, "w": WRITE, "rw": READ | WRITE}


@settings(max_examples=500)
@given(launches(), st.data())
def test_changed_parameters_are_refused_or_stay_within_their_refs(
    launch: tuple[KernelRecord, list[Any]], data: st.DataObject
) -> None:
    record, flat = launch
    refs = [
        Ref(slot, ACCESS[box.operand.access], 0, safety.touched(box, flat)[1]) for slot, box in enumerate(record.boxes)
    ]
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.integers(len(record.sizes), len(flat) - 1))
        if isinstance(flat[at], int):
            near = st.sampled_from((flat[at] - 1, flat[at] + 1, -flat[at], flat[at] * 2))
            far = st.sampled_from(INTERESTING).map(lambda v: v - (v >> 63 << 64))
            flat[at] = data.draw(st.one_of(near, far))
    try:
        raw = encode(single(record, flat, refs))
    except (struct.error, LimitError):
        assume(False)  # the number does not fit in its field
    try:
        cb = decode(raw)
    except DecodeError:
        return
    check_safety(cb)


@pytest.mark.parametrize("row", KERNELS.values(), ids=lambda row: row.name)
def test_every_number_of_every_row_is_bounded(row: Any) -> None:
    """Every extent is in some operand's box or work group, so the range rule bounds it; strides and offsets are."""
    for sizes in itertools.product(*(allowed for _, allowed in row.sizes)):
        record = row.record([allowed[0] for _, allowed in row.types], sizes)
        held = {i for box in record.boxes for pair in box.axes for i in pair} | {box.offset for box in record.boxes}
        held |= {i for group in record.work for i in group}
        for extent in record.extent_at.values():
            assert held >= set(extent)
        layout = record.columns.fields
        assert layout is not None
        assert all(layout[f"c{i}"][0].itemsize == 8 for i in held)


@pytest.mark.parametrize("row", KERNELS.values(), ids=lambda row: row.name)
def test_patchable_fields_decide_nothing(row: Any) -> None:
    """A patch changes neither what a launch touches nor its geometry, work or array lengths."""
    names = {name for name, _ in row.sizes} | {e.name for e in row.extents}
    names |= {f"{o.name}_{what}" for o in row.operands for what in ("offset", "strides")}
    names |= {"window_strides", "dilations", "pads", "pads_end"}
    assert names.isdisjoint(field.name for field in row.fields if field.patchable)


def test_alias_pairs_of_rows_are_operands_of_one_box_and_type() -> None:
    for row in KERNELS.values():
        operands = {o.name: o for o in row.operands}
        for written, read in row.alias:
            assert operands[written].writes
            assert operands[written].box == operands[read].box
            assert operands[written].type == operands[read].type


def test_a_launch_over_the_whole_of_its_refs_is_accepted_and_one_byte_less_is_not() -> None:
    record = BY_NAME["elementwise_add_kernel"].record([KERNELS[("elementwise_add_kernel", 1)].types[0][1][0]], (1,))
    size = record.boxes[0].dtype.size
    flat = record.flatten(
        {"extents": (5,), **{f"{n}_offset": 0 for n in ("a", "b", "out")}}
        | {f"{n}_strides": (1,) for n in ("a", "b", "out")}
    )
    refs = [Ref(0, READ, 0, 5 * size), Ref(1, READ, 0, 5 * size), Ref(2, WRITE, 0, 5 * size)]
    check_safety(decode(encode(single(record, flat, refs))))
    for short in range(3):
        less = [r._replace(length=r.length - (i == short)) for i, r in enumerate(refs)]
        with pytest.raises(DecodeError, match="touched-range"):
            decode(encode(single(record, flat, less)))
