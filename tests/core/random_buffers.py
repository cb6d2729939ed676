"""Random command buffers: launches of any kernel, whole buffers, and damaged bytes."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.core.buffer_builder import ACCESS, Build
from tests.core.encoded_bytes import repaired, section_table
from umd_core.commands import (
    READ,
    WRITE,
    Barrier,
    CommandBuffer,
    Copy,
    DebugInfo,
    Dispatch,
    Event,
    Fill,
    Mark,
    Newer,
    Nop,
    Patch,
    PatchKind,
    Ref,
    SlotKind,
    Update,
)
from umd_core.encoding.layout import SECTIONS
from umd_core.kernels import KERNELS, KernelRecord, KernelRow, safety
from umd_core.testing.chains import random_program


def _shape(chance: random.Random, count: int) -> tuple[int, ...]:
    most = 4 if count <= 4 else 2
    return tuple(0 if chance.random() < 0.03 else chance.randint(1, most) for _ in range(count))


@st.composite
def launches(draw: st.DrawFn, rows: Sequence[KernelRow] = tuple(KERNELS.values())) -> tuple[KernelRecord, list[Any]]:
    """Draws a kernel record and a flat parameter block whose offsets are not negative.

    The numbers come from a seed, which is ten times faster than drawing each.
    """
    row = draw(st.sampled_from(rows))
    chance = random.Random(draw(st.integers(0, 2**32)))
    types = [chance.choice(allowed) for _, allowed in row.types]
    record = row.record(types, [draw(st.sampled_from(allowed)) for _, allowed in row.sizes])
    parameters: dict[str, Any] = {}
    for extent in row.extents:
        shape = _shape(chance, len(record.extent_at[extent.name]))
        parameters[extent.name] = shape if extent.size else shape[0]
    for field in row.fields:
        count = record.index_of[field.name][1]
        least = 1 if field.name in ("window_strides", "dilations") else 0
        numbers = tuple(_field(chance, field.type, least) for _ in range(1 if count is None else count))
        parameters[field.name] = numbers[0] if count is None else numbers
    if row.family == "chain":
        parameters["program"] = random_program(np.random.default_rng(chance.getrandbits(32)))["program"]
    flat = list(record.sizes)
    for name, (_, count) in record.index_of.items():
        if name in parameters:
            flat += [parameters[name]] if count is None else list(parameters[name])
        elif name not in dict(row.sizes):
            flat += [0] * (1 if count is None else count)
    for box in record.boxes:
        _lay_out(chance, box, flat, distinct=box.operand.writes and not row.atomic)
    boxes = {box.operand.name: box for box in record.boxes}
    for written, read in row.alias:
        if chance.random() < 0.3:
            for (_, target), (_, source) in zip(boxes[read].axes, boxes[written].axes, strict=True):
                flat[target] = flat[source]
            flat[boxes[read].offset] = flat[boxes[written].offset]
    return record, flat


def _field(chance: random.Random, kind: str, least: int) -> Any:
    if kind.startswith("f"):
        return chance.choice((0.0, -0.0, 1.5, math.pi, math.inf, math.nan, 5e-324))
    return chance.randint(-2 if kind.startswith("i") else least, 3)


def _lay_out(chance: random.Random, box: Any, flat: list[Any], distinct: bool) -> None:
    """Chooses an operand's strides and offset; the elements of a written one are distinct."""
    step = 1
    for extent, stride in chance.sample(box.axes, len(box.axes)):
        size = flat[extent]
        if distinct:
            flat[stride] = chance.choice((step, -step)) if size > 1 else chance.randint(-2, 2)
            step *= max(size, 1) + chance.randint(0, 1)
        else:
            flat[stride] = chance.randint(-3, 3)
    low = sum(min(0, (flat[e] - 1) * flat[s]) for e, s in box.axes if flat[e])
    flat[box.offset] = -low + chance.randint(0, 2)


@st.composite
def command_buffers(
    draw: st.DrawFn, rows: Sequence[KernelRow] = tuple(KERNELS.values()), most: int = 6
) -> CommandBuffer:
    """Draws a valid command buffer with a bit of everything."""
    build = Build()
    argument = [build.slot(alignment=8, group=draw(st.sampled_from((0, 0, 1)))) for _ in range(draw(st.integers(1, 3)))]
    arena = build.slot(SlotKind.ARENA, 256, length=1 << 30)
    constants = [build.constant(draw(st.binary(max_size=40))) for _ in range(draw(st.integers(0, 2)))]
    handles = [build.slot(SlotKind.HANDLE, 16, value=i + 1) for i in range(draw(st.integers(0, 2)))]
    writable = [*argument, arena, *handles]
    for index in range(draw(st.integers(0, most))):
        deps = sorted(draw(st.sets(st.integers(0, index - 1), max_size=3))) if index else []
        queue = draw(st.integers(0, 3))
        if draw(st.integers(0, 3)):
            _draw_dispatch(draw, build, draw(launches(rows)), writable, deps, queue)
        else:
            _draw_other(draw, build, [*writable, *constants], writable, deps, queue)
    cb = build.done(flags=draw(st.integers(0, 7)))
    _draw_annexes(draw, cb)
    return cb


def _draw_dispatch(
    draw: st.DrawFn,
    build: Build,
    launch: tuple[KernelRecord, list[Any]],
    writable: Sequence[int],
    deps: Sequence[int],
    queue: int,
) -> None:
    record, flat = launch
    refs: list[Ref] = []
    fresh = 0
    for box in record.boxes:
        low, high = safety.touched(box, flat)
        assert low >= 0
        slot, offset = draw(st.sampled_from(writable)), 8 * draw(st.integers(0, 40))
        ref = Ref(slot, ACCESS[box.operand.access], offset, high + draw(st.sampled_from((0, 0, 8))))
        twin = _alias(record, flat, box, refs)
        if twin is not None and draw(st.booleans()):
            ref = ref._replace(slot=twin.slot, offset=twin.offset)
        if any(
            _same(build, ref, other) and (ref.access | other.access) & WRITE and ref.length and other.length
            for other in refs
            if other is not twin or ref.offset != other.offset
        ):
            fresh += 1  # somewhere that nothing else of this command uses
            ref = ref._replace(offset=ref.offset + (fresh << 20))
        refs.append(ref)
    kernel = build.kernels.setdefault(record, len(build.kernels))
    block = record.struct.pack(*flat)
    build.add(Dispatch(kernel, record.geometry(flat), block, tuple(refs), tuple(deps), queue))


def _alias(record: KernelRecord, flat: Sequence[Any], box: Any, refs: Sequence[Ref]) -> Ref | None:
    """Returns the ref of an operand that this one may overwrite in place."""
    for other, ref in zip(record.boxes, refs, strict=False):
        declared = (box.operand.name, other.operand.name) in record.row.alias
        if declared and safety.same_elements(box, other, flat):
            return ref
    return None


def _same(build: Build, a: Ref, b: Ref) -> bool:
    group = build.slots[a.slot].alias_group
    return a.slot == b.slot or (group != 0 and group == build.slots[b.slot].alias_group)


def _draw_other(
    draw: st.DrawFn, build: Build, readable: Sequence[int], writable: Sequence[int], deps: Sequence[int], queue: int
) -> None:
    destination = draw(st.sampled_from(writable))
    offset, size = 8 * draw(st.integers(0, 40)), draw(st.sampled_from((1, 2, 4, 8)))
    waits = tuple(deps)
    kind = draw(st.sampled_from(("copy", "fill", "update", "barrier", "mark", "nop")))
    if kind == "copy":
        source = draw(st.sampled_from(readable))
        slot = build.slots[source]
        length = draw(st.integers(0, slot.length if slot.kind == SlotKind.CONSTANT else 32))
        build.add(Copy(Ref(destination, WRITE, 4096 + offset, length), Ref(source, READ, 0, length), waits, queue))
    elif kind == "fill":
        pattern = draw(st.binary(min_size=size, max_size=size))
        build.add(Fill(Ref(destination, WRITE, offset, size * draw(st.integers(0, 5))), pattern, waits, queue))
    elif kind == "update":
        data = draw(st.binary(max_size=20))
        build.add(Update(Ref(destination, WRITE, offset + 3, len(data)), data, waits, queue))
    elif kind == "mark":
        build.add(Mark(draw(st.integers(0, 2**32 - 1)), draw(st.text(max_size=9)), waits, queue))
    else:
        build.add((Barrier if kind == "barrier" else Nop)(waits, queue))


def _draw_annexes(draw: st.DrawFn, cb: CommandBuffer) -> None:
    count = len(cb.commands)
    if count and draw(st.booleans()):
        signals = sorted(draw(st.sets(st.integers(0, 9), max_size=4)))
        cb.events = [Event(3, signal, draw(st.integers(0, count - 1))) for signal in signals]
    if draw(st.booleans()):
        text = st.text(max_size=6)
        cb.debug = [DebugInfo(draw(text), draw(text), draw(text)) for _ in range(count)]
    for index, command in enumerate(cb.commands):
        if isinstance(command, Dispatch):
            record = cb.kernels[command.kernel]
            for at in sorted(record.patchable):
                if at % 8 == 0 and draw(st.booleans()):
                    cb.patches.append(Patch(index, 32 + at, PatchKind.BITS64, draw(st.integers(0, 5))))
    if draw(st.integers(0, 4)) == 0:
        cb.extra = [(12, 1, draw(st.integers(0, 9)), draw(st.binary(min_size=1, max_size=9)))]
    if draw(st.integers(0, 4)) == 0:
        cb.compat = draw(st.integers(0, 2**64 - 1))
    if draw(st.integers(0, 4)) == 0:
        tail = draw(st.binary(min_size=4 * (count + 1), max_size=4 * (count + 1)))
        cb.newer = Newer(draw(st.integers(1, 255)), bytes(8 * draw(st.integers(0, 3))), ((4, 36, tail),))


# damage


INTERESTING = (
    0, 1, 2, 3, 4, 5, 7, 8, 9, 16, 31, 32, 63, 64, 127, 128, 255, 256, 4095, 4096, 65535, 65536, 2**31 - 1, 2**31,
    2**32 - 1, 2**32, 2**61, 2**62 - 1, 2**62, 2**62 + 1, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1,
)  # fmt: skip


@st.composite
def damaged(draw: st.DrawFn, raw: bytes, most: int = 4) -> bytes:
    """Draws a buffer with a few changes that the checksums do not betray."""
    data = bytearray(raw)
    for _ in range(draw(st.integers(1, most))):
        if not data:
            break
        at = draw(st.integers(0, len(data) - 1))
        what = draw(st.integers(0, 9))
        if what == 0:
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif what == 1:
            data[at] = draw(st.integers(0, 255))
        elif what <= 4:
            size = (2, 4, 8)[what - 2]
            at -= at % size
            if at + size <= len(data):
                value = draw(st.sampled_from((*INTERESTING, len(raw))))
                old = int.from_bytes(data[at : at + size], "little")
                value = draw(st.sampled_from((value, old + 1, old - 1, old + 8, -old)))
                data[at : at + size] = (value % (1 << 8 * size)).to_bytes(size, "little")
        elif what == 5:
            del data[at : at + draw(st.sampled_from((1, 4, 8, 24, 32)))]
        elif what == 6:
            data[at:at] = data[at : at + draw(st.sampled_from((1, 4, 8, 24, 32)))]
        else:
            _damage_field(draw, data)
    return repaired(data)


def _damage_field(draw: st.DrawFn, data: bytearray) -> None:
    """Sets some field of some record, found through the layout table."""
    try:
        table = section_table(bytes(data))
    except struct.error:
        return  # there is no whole section table any more
    records = [kind for kind in table if kind in SECTIONS and SECTIONS[kind].record and table[kind][2]]
    if not records:
        return
    kind = draw(st.sampled_from(records))
    record = SECTIONS[kind].record
    assert record is not None
    _, start, size = table[kind]
    field = draw(st.sampled_from(record.fields))
    width = int(field.type[:-1]) if field.type.endswith("s") else int(field.type[1:]) // 8
    at = start + record.size * draw(st.integers(0, max(size // record.size - 1, 0))) + record.offsets[field.name]
    if at + width <= len(data):
        old = int.from_bytes(data[at : at + width], "little")
        value = draw(st.sampled_from((*INTERESTING, old + 1, old - 1, old + 8, 2 * old)))
        data[at : at + width] = (value % (1 << 8 * width)).to_bytes(width, "little")
