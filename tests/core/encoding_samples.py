"""Command buffers for the tests of the encoded form: a small builder, fixed samples, and random ones."""

from __future__ import annotations

import math
import random
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from umd_core import dtypes
from umd_core.commands import (
    READ,
    WRITE,
    Barrier,
    Command,
    CommandBuffer,
    Copy,
    DebugInfo,
    Dispatch,
    Event,
    Fill,
    Flag,
    Mark,
    Newer,
    Nop,
    Patch,
    PatchKind,
    Ref,
    Slot,
    SlotKind,
    Update,
    refs_of,
)
from umd_core.dtypes import DType
from umd_core.encoding.encode import encode
from umd_core.encoding.layout import HEADER, SECTION, SECTIONS, SectionKind
from umd_core.kernels import BY_NAME, KERNELS, KernelRecord, KernelRow, safety
from umd_core.testing.chains import random_program

ACCESS = {"r": READ, "w": WRITE, "rw": READ | WRITE}
Place = tuple[int, int]
"""(slot, byte offset)"""


class Build:
    """Builds a command buffer: slots as they are asked for, refs as long as what the launches touch."""

    def __init__(self) -> None:
        self.kernels: dict[KernelRecord, int] = {}
        self.slots: list[Slot] = []
        self.commands: list[Command] = []
        self.constants: list[bytes] = []
        self._data = 0

    def slot(
        self, kind: SlotKind = SlotKind.ARGUMENT, alignment: int = 8, group: int = 0, value: int = 0, length: int = 0
    ) -> int:
        self.slots.append(Slot(int(kind), 0, group, alignment, 0, value, length))
        return len(self.slots) - 1

    def constant(self, data: bytes) -> int:
        self.constants.append(data)
        at, self._data = self._data, self._data + -(-len(data) // 8) * 8
        return self.slot(SlotKind.CONSTANT, value=at, length=len(data))

    def add(self, command: Command) -> int:
        self.commands.append(command)
        return len(self.commands) - 1

    def dispatch(
        self,
        name: str,
        types: Sequence[DType],
        sizes: Sequence[int],
        parameters: Mapping[str, Any],
        places: Mapping[str, Place],
        deps: Sequence[int] = (),
        queue: int = 0,
    ) -> int:
        record = BY_NAME[name].record(types, sizes)
        filled: dict[str, Any] = {f"{o.name}_offset": 0 for o in record.row.operands}
        filled |= {f.name: 0 for f in record.row.fields} | dict(parameters)
        flat = record.flatten(filled)
        refs = []
        for box in record.boxes:
            slot, offset = places[box.operand.name]
            low, high = safety.touched(box, flat)
            assert low >= 0, f"{box.operand.name} reaches below its ref"
            refs.append(Ref(slot, ACCESS[box.operand.access], offset, high))
        kernel = self.kernels.setdefault(record, len(self.kernels))
        block = record.struct.pack(*flat)
        return self.add(Dispatch(kernel, record.geometry(flat), block, tuple(refs), tuple(deps), queue))

    def binary(
        self, name: str, count: int, a: Place, b: Place, out: Place, deps: Sequence[int] = (), queue: int = 0
    ) -> int:
        """Adds a float32 kernel of two operands over `count` elements in a row."""
        strides = {"a_strides": (1,), "b_strides": (1,), "out_strides": (1,)}
        places = {"a": a, "b": b, "out": out}
        parameters = {"extents": (count,), **strides}
        return self.dispatch(f"elementwise_{name}_kernel", [dtypes.float32], [1], parameters, places, deps, queue)

    def done(self, **rest: Any) -> CommandBuffer:
        slots = list(self.slots)
        for command in self.commands:
            for ref in refs_of(command):
                own = slots[ref.slot]
                reach = max(own.min_size, ref.offset + ref.length)
                slots[ref.slot] = own._replace(min_size=reach, access=own.access | ref.access)
        return CommandBuffer(
            kernels=list(self.kernels), slots=slots, commands=self.commands, constants=self.constants, **rest
        )


def add() -> CommandBuffer:
    """One addition of 300 elements, with its debug text."""
    build = Build()
    a, b, out = (build.slot(alignment=4) for _ in range(3))
    build.binary("add", 300, (a, 0), (b, 0), (out, 0))
    return build.done(debug=[DebugInfo("Add", "node_7", "model.py:12")])


def empty() -> CommandBuffer:
    """Nothing but END."""
    return CommandBuffer()


def every_command() -> CommandBuffer:
    """Every opcode, with dependencies, queues and all sizes of a fill's pattern."""
    build = Build()
    x, y = build.slot(alignment=4), build.slot(alignment=256)
    arena = build.slot(SlotKind.ARENA, 256, length=4096)
    build.add(Mark(7, "début"))
    fills = [
        build.add(Fill(Ref(arena, WRITE, 256 * i, 64), bytes(range(1, size + 1))))
        for i, size in enumerate((1, 2, 4, 8))
    ]
    update = build.add(Update(Ref(arena, WRITE, 1024, 13), b"thirteen byte", queue=1))
    build.add(Nop((update,)))
    first = build.binary("mul", 16, (arena, 0), (x, 0), (arena, 1280), [fills[0]])
    build.add(Barrier(tuple(fills)))
    second = build.binary("mul", 16, (arena, 1280), (arena, 256), (y, 0), queue=2)
    build.add(Copy(Ref(arena, WRITE, 2048, 64), Ref(y, READ, 0, 64), (first, second)))
    build.add(Mark(0, ""))
    return build.done()


def every_slot() -> CommandBuffer:
    """Arguments in an alias group, arena, constants of odd lengths, handles."""
    build = Build()
    p = build.slot(alignment=4, group=3)
    unused = build.slot(alignment=1)
    assert unused == 1
    out = build.slot(alignment=4, group=3)
    arena = build.slot(SlotKind.ARENA, 256, length=1024)
    one = build.constant(struct.pack("<f", 1.5))
    text = build.constant(b"abc")
    half = build.constant(struct.pack("<3f", 0.5, 0.25, 0.125))
    weights = build.slot(SlotKind.HANDLE, 16, value=5 | 2 << 32)
    state = build.slot(SlotKind.HANDLE, 4, group=9, value=6 | 1 << 32)
    strided = {"extents": (3,), "a_strides": (1,), "b_strides": (0,), "out_strides": (1,)}
    places: dict[str, Place] = {"a": (half, 0), "b": (one, 0), "out": (arena, 0)}
    build.dispatch("elementwise_add_kernel", [dtypes.float32], [1], strided, places)
    build.binary("mul", 3, (arena, 0), (weights, 32), (arena, 256), [0])
    build.binary("add", 3, (p, 0), (arena, 256), (out, 0), [1])
    build.binary("sub", 3, (state, 4), (p, 0), (state, 4), [2])
    build.add(Copy(Ref(arena, WRITE, 512, 3), Ref(text, READ, 0, 3)))
    return build.done()


def adamw_patched() -> CommandBuffer:
    """An update whose constants are values of the submission."""
    build = Build()
    places = {name: (build.slot(alignment=4), 0) for name in ("p", "g", "m", "v", "lr", "step")}
    strides: dict[str, Any] = {f"{name}_strides": (1,) for name in ("p", "g", "m", "v")}
    numbers: dict[str, Any] = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "weight_decay": float("nan")}
    parameters = {"extents": (10,), "decoupled": 1, **strides, **numbers}
    for _ in range(2):
        build.dispatch("adamw_kernel", [dtypes.float32], [1], parameters, places)
    record = next(iter(build.kernels))
    offsets = sorted(at for at in record.patchable if at % 8 == 0)
    patches = [Patch(0, 32 + offsets[3], PatchKind.BITS64, 1)]
    patches += [Patch(1, 32 + at, PatchKind.BITS64, symbol) for symbol, at in enumerate(offsets)]
    return build.done(patches=patches, flags=int(Flag.ONE_SHOT))


def events() -> CommandBuffer:
    """Signals inside the buffer, the remaining flags, a compat bit, debug text beyond ASCII."""
    build = Build()
    a, b, c = (build.slot(alignment=4) for _ in range(3))
    build.binary("max", 8, (a, 0), (b, 0), (c, 0))
    build.binary("min", 8, (a, 0), (b, 0), (c, 32))
    return build.done(
        events=[Event(3, 0, 1), Event(3, 2, 0), Event(3, 5, 0)],
        flags=int(Flag.SIMULTANEOUS_OK | Flag.DETERMINISTIC),
        compat=1 << 40,
        debug=[DebugInfo("Max", "größer", ""), DebugInfo("Min", "", "m.py:3")],
    )


def strided() -> CommandBuffer:
    """Negative strides, every rank class, windows, a status word, an atomic kernel, aliases, several types."""
    build = Build()
    x, y, z = build.slot(alignment=8), build.slot(alignment=8), build.slot(SlotKind.ARENA, 256, length=1 << 16)
    f64, i32, f16 = dtypes.float64, dtypes.int32, dtypes.float16
    build.dispatch(
        "elementwise_neg_kernel",
        [f64],
        [4],
        {
            "extents": (1, 2, 3, 4),
            "x_offset": 23,
            "x_strides": (0, -12, -4, -1),
            "out_strides": (0, 1, 2, 6),
        },
        {"x": (x, 0), "out": (z, 0)},
    )
    build.dispatch(
        "elementwise_cast_kernel",
        [f64, f16],
        [8],
        {"extents": (1, 1, 1, 1, 2, 3, 2, 2), "x_strides": (0,) * 7 + (1,), "out_strides": (0, 0, 0, 0, 12, 4, 2, 1)},
        {"x": (x, 8), "out": (z, 4096)},
    )
    build.dispatch(
        "conv_kernel",
        [dtypes.float32],
        [2],
        {
            "batch": 1, "groups": 2, "out_channels": 2, "output": (3, 3), "in_channels": 1, "kernel": (3, 2),
            "input": (5, 4), "x_strides": (40, 20, 20, 4, 1), "w_strides": (12, 6, 6, 2, 1),
            "y_strides": (36, 18, 9, 3, 1), "window_strides": (2, 1), "dilations": (1, 1), "pads": (1, 0),
        },
        {"x": (x, 0), "w": (y, 0), "y": (z, 8192)},
    )  # fmt: skip
    build.dispatch(
        "gather_kernel",
        [i32, i32],
        [1],
        {"extents": (5,), "axis": 7, "data_strides": (0, 1), "index_strides": (1,), "out_strides": (1,)},
        {"data": (x, 0), "index": (y, 64), "out": (z, 12288)},
    )
    build.dispatch(
        "scatter_add_kernel",
        [i32, i32],
        [1],
        {"extents": (5,), "axis": 3, "updates_strides": (1,), "index_strides": (1,), "out_strides": (0, 1)},
        {"updates": (x, 0), "index": (y, 64), "out": (z, 12288)},
        [3],
    )
    build.dispatch(
        "softmax_kernel",
        [f16],
        [1, 1],
        {"outer": (4,), "inner": (5,), "x_strides": (5, 1), "y_strides": (5, 1)},
        {"x": (z, 4096), "y": (z, 4096)},
        [1],
    )
    build.dispatch(
        "gemm_kernel",
        [f64],
        [1],
        {
            "batch": (3,), "rows": 4, "columns": 70, "depth": 2, "a_strides": (0, 2, 1), "b_strides": (0, 1, 2),
            "out_strides": (280, 70, 1),
        },
        {"a": (x, 0), "b": (x, 64), "out": (z, 16384)},
    )  # fmt: skip
    return build.done()


def newer_minor() -> CommandBuffer:
    """What a reader of 1.0 keeps of version 1.3: a longer header, longer records, unknown sections."""
    cb = every_command()
    count = len(cb.commands) + 1
    cb.newer = Newer(3, b"headtail", ((2, 40, b"K" * 8), (4, 48, b"c" * 16 * count), (6, 6, b"d" * 2 * 8)))
    assert sum(len(command.deps) for command in cb.commands) == 8
    cb.extra = [(11, 1, 5, b"hello"), (0x7000, 1, 0, b"\0\1\2")]
    return cb


SAMPLES: dict[str, Callable[[], CommandBuffer]] = {
    sample.__name__: sample
    for sample in (add, empty, every_command, every_slot, adamw_patched, events, strided, newer_minor)
}


# bytes


def repaired(raw: bytes | bytearray) -> bytes:
    """Returns the bytes with the length and both checksums made right."""
    data = bytearray(raw)
    if len(data) >= HEADER.size:
        struct.pack_into("<Q", data, HEADER.offsets["total_size"], len(data))
        struct.pack_into("<I", data, HEADER.offsets["body_crc"], zlib.crc32(data[HEADER.size :]))
        struct.pack_into("<I", data, HEADER.offsets["header_crc"], zlib.crc32(data[: HEADER.offsets["header_crc"]]))
    return bytes(data)


def section_table(raw: bytes) -> dict[int, tuple[int, int, int]]:
    """Returns (entry offset, data offset, size) of each section, by kind."""
    (header_size,) = struct.unpack_from("<H", raw, HEADER.offsets["header_size"])
    (count,) = struct.unpack_from("<H", raw, HEADER.offsets["section_count"])
    table = {}
    for index in range(count):
        at = header_size + index * SECTION.size
        kind, _, _, offset, size = SECTION.struct.unpack_from(raw, at)
        table[kind] = (at, offset, size)
    return table


def section_start(raw: bytes, kind: SectionKind) -> int:
    """Returns the first byte of a section."""
    return section_table(raw)[kind][1]


# random buffers


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


def encoded(sample: str) -> bytes:
    """Returns a sample's bytes."""
    return encode(SAMPLES[sample]())


def rebuilt(raw: bytes, replace: Mapping[int, bytes], counts: Mapping[str, int] | None = None) -> bytes:
    """Returns the buffer with the contents of some sections replaced and header fields set; sections laid out anew."""
    header = dict(zip([f.name for f in HEADER.fields], HEADER.struct.unpack_from(raw), strict=True))
    entries = []
    for index in range(header["section_count"]):
        at = header["header_size"] + index * SECTION.size
        kind, flags, stride, offset, size = SECTION.struct.unpack_from(raw, at)
        entries.append((kind, flags, stride, replace.get(kind, raw[offset : offset + size])))
    header |= dict(counts or {})
    cursor = header["header_size"] + SECTION.size * len(entries)
    table, bodies = b"", b""
    for kind, flags, stride, body in entries:
        table += SECTION.struct.pack(kind, flags, stride, cursor + len(bodies), len(body))
        bodies += body + bytes(-len(body) % 8)
    head = HEADER.struct.pack(*header.values()) + raw[HEADER.size : header["header_size"]]
    return repaired(head + table + bodies)
