"""What a kernel is: name, type parameters, operands, parameter block.

A kernel runs over named **extents**. Each operand lies in its buffer as a strided box over some of those extents, so
the parameter block, the bytes that a launch may touch, the legal aliases and the work bound all follow from one
declaration:

    {name}_offset : i64      first element, in elements from the start of the binding
    {name}_strides: i64[k]   one stride per extent of the operand's box, in elements
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from umd_core.dtypes import BY_CODE, BY_NAME, DType
from umd_core.errors import UnsupportedError
from umd_core.kernels.geometry import GEOMETRIES, Flat, Geometry

RANK_CLASSES = (1, 4, 8)
_FORMATS = {"u32": ("I", 4), "i32": ("i", 4), "u64": ("Q", 8), "i64": ("q", 8), "f64": ("d", 8), "f32": ("f", 4)}


@dataclass(frozen=True, slots=True)
class Extent:
    """An iteration extent. `size` names the leading u32 that holds its length when it is an array."""

    name: str
    size: str | None = None


@dataclass(frozen=True, slots=True)
class Operand:
    """A binding: name, access ("r", "w", "rw"), type parameter or fixed dtype name, and the extents of its box."""

    name: str
    access: str
    type: str
    box: tuple[str, ...]

    @property
    def writes(self) -> bool:
        """Whether the kernel may write it."""
        return "w" in self.access


@dataclass(frozen=True, slots=True)
class Field:
    """A further parameter beside sizes, extents, offsets and strides."""

    name: str
    type: str
    patchable: bool = False
    size: str | None = None


@dataclass(frozen=True, eq=False)
class KernelRow:
    """A row of the kernel table.

    Attributes:
        name: unique with `abi`; a changed layout is a new abi.
        level: 0 suffices for every op; higher rows have a decomposition.
        family: rows of one family share one implementation (`program` tells expression rows apart).
        types: type parameters in record order, each with the dtypes it may be.
        extents: iteration extents in parameter order.
        operands: bindings in call order.
        fields: further parameters, after the operands' offsets and strides.
        sizes: leading u32s with the values they may have.
        program: postfix program of an expression row, or the reduction's or scan's combiner.
        geometry: "elements", "rows" or "tiles" (see `GEOMETRIES`).
        grid: operand with one invocation per element; the first written one when not given.
        alias: pairs (written operand, read operand) that may be exactly the same elements.
        work: groups of extents; the sum of their products bounds the work. Empty means the product of all.
        atomic: written elements may coincide.
        status: takes a status word, set when an index is out of range.
        deterministic: same bits on every run.
        tolerance: relative error against a float64 computation, in units of the type's epsilon.
        mathematics: one line a reader can check.
    """

    name: str
    family: str
    types: tuple[tuple[str, tuple[DType, ...]], ...]
    extents: tuple[Extent, ...]
    operands: tuple[Operand, ...]
    fields: tuple[Field, ...] = ()
    sizes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    program: str = ""
    level: int = 0
    abi: int = 1
    geometry: str = "elements"
    grid: str = ""
    alias: tuple[tuple[str, str], ...] = ()
    work: tuple[tuple[str, ...], ...] = ()
    atomic: bool = False
    status: bool = False
    deterministic: bool = True
    tolerance: float = 4.0
    mathematics: str = ""
    source: str = ""

    @functools.cached_property
    def canonical(self) -> str:
        """The text whose SHA-256 identifies the row's interface."""
        lines = [f"{self.name} {self.abi}"]
        lines += [f"type {name}" for name, _ in self.types]
        lines += [f"binding {o.name} {o.access}" for o in self.operands]
        lines += [f"field {name} {kind}" for name, kind in self.field_types()]
        return "\n".join(lines) + "\n"

    @functools.cached_property
    def digest(self) -> int:
        """First 8 bytes of SHA-256 of `canonical`, little-endian."""
        return int.from_bytes(hashlib.sha256(self.canonical.encode()).digest()[:8], "little")

    @functools.cached_property
    def type_operands(self) -> tuple[int, ...]:
        """For each type parameter, the index of the first operand that has it."""
        return tuple(next(i for i, o in enumerate(self.operands) if o.type == name) for name, _ in self.types)

    @functools.cached_property
    def size_extents(self) -> tuple[int, ...]:
        """For each leading size, the index of an extent that has this length."""
        return tuple(next(i for i, e in enumerate(self.extents) if e.size == name) for name, _ in self.sizes)

    def field_types(self) -> list[tuple[str, str]]:
        """Returns (name, type) of every parameter in order; an array's type is like `u64[rank]`."""
        fields = [(name, "u32") for name, _ in self.sizes]
        fields += [(e.name, f"u64[{e.size}]" if e.size else "u64") for e in self.extents]
        by_name = {e.name: e for e in self.extents}
        for operand in self.operands:
            fields.append((f"{operand.name}_offset", "i64"))
            if operand.box:
                fields.append((f"{operand.name}_strides", f"i64[{_sum_text([by_name[e].size for e in operand.box])}]"))
        fields += [(f.name, f"{f.type}[{f.size}]" if f.size else f.type) for f in self.fields]
        return fields

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_table, (self.name, self.abi)

    def record(self, types: Sequence[DType], sizes: Sequence[int] = ()) -> KernelRecord:
        """Returns the row bound to type arguments and array lengths (cached).

        Raises:
            UnsupportedError: a type or a length that the row does not allow.
        """
        return _record(self, tuple(types), tuple(sizes))


def _from_table(name: str, abi: int) -> KernelRow:
    """Returns the one object that stands for a row, so that copies and pickles compare equal."""
    from umd_core.kernels import KERNELS  # noqa: PLC0415  # the table is built from this module

    return KERNELS[name, abi]


@functools.lru_cache(maxsize=65536)
def _record(row: KernelRow, types: tuple[DType, ...], sizes: tuple[int, ...]) -> KernelRecord:
    names = tuple(t.name for t in types)
    if len(types) != len(row.types) or any(t not in allowed for t, (_, allowed) in zip(types, row.types, strict=False)):
        raise UnsupportedError("the kernel has no such type arguments", kernel=row.name, types=names)
    if len(sizes) != len(row.sizes) or any(s not in ok for s, (_, ok) in zip(sizes, row.sizes, strict=False)):
        raise UnsupportedError(f"array lengths {list(sizes)} are not allowed", kernel=row.name, types=names)
    return KernelRecord(row, types, sizes)


@dataclass(frozen=True, slots=True)
class Box:
    """Where an operand's numbers stand in the flat block: its offset, and (extent, stride) index pairs."""

    operand: Operand
    dtype: DType
    offset: int
    axes: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class OperandView:
    """An operand of one launch as its backend sees it: strides and offset in bytes, extents in elements."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


class KernelRecord:
    """A kernel row bound to type arguments and array lengths: the layout of its parameter block.

    Attributes:
        key: (name, abi, type codes, sizes), unique and hashable.
        struct: packs and unpacks the flat block.
        size: bytes of the block.
        boxes: one per operand.
        padding: (offset, length) of the block's padding, which is zero.
        index_of: for each parameter its first index in the flat block, and its length (None: a single number).
    """

    __slots__ = (
        "bound",
        "boxes",
        "columns",
        "extent_at",
        "grid",
        "index_of",
        "key",
        "padding",
        "patchable",
        "row",
        "size",
        "sizes",
        "struct",
        "types",
        "work",
    )  # fmt: skip

    row: KernelRow
    types: tuple[DType, ...]
    sizes: tuple[int, ...]
    struct: struct.Struct
    size: int
    padding: tuple[tuple[int, int], ...]

    def __init__(self, row: KernelRow, types: tuple[DType, ...], sizes: tuple[int, ...]) -> None:
        self.row, self.types, self.sizes = row, types, sizes
        codes = tuple(t.code for t in types)
        self.key: tuple[str, int, tuple[int, ...], tuple[int, ...]] = (row.name, row.abi, codes, sizes)
        self.bound: dict[str, DType] = dict(zip((name for name, _ in row.types), types, strict=True))
        lengths = dict(zip((name for name, _ in row.sizes), sizes, strict=True))
        self._lay_out(lengths)
        self._find_boxes(lengths)

    def _lay_out(self, lengths: Mapping[str, int]) -> None:
        """Places the fields by natural C alignment."""
        fmt, at, index = "<", 0, 0
        self.index_of: dict[str, tuple[int, int | None]] = {}
        padding: list[tuple[int, int]] = []
        columns: list[tuple[str, str, int]] = []
        patchable = {f.name for f in self.row.fields if f.patchable}
        self.patchable: frozenset[int]
        free: set[int] = set()
        for name, kind in self.row.field_types():
            base, _, length = kind.partition("[")
            count = _length(length, lengths)
            code, size = _FORMATS[base]
            if at % size:
                gap = size - at % size
                padding.append((at, gap))
                fmt += f"{gap}x"
                at += gap
            self.index_of[name] = (index, count)
            columns += [(f"c{index + i}", "<" + base[0] + str(size), at + i * size) for i in range(count or 1)]
            if count is None or count:
                fmt += f"{1 if count is None else count}{code}"
            if name in patchable:
                free.update(range(at, at + size * (1 if count is None else count)))
            at += size * (1 if count is None else count)
            index += 1 if count is None else count
        if at % 8:
            padding.append((at, 8 - at % 8))
            fmt += f"{8 - at % 8}x"
            at += 8 - at % 8
        self.struct, self.size, self.padding = struct.Struct(fmt), at, tuple(padding)
        self.patchable = frozenset(free)
        self.columns: np.dtype[np.void] = np.dtype(
            {
                "names": [c[0] for c in columns],
                "formats": [c[1] for c in columns],
                "offsets": [c[2] for c in columns],
                "itemsize": at,
            }
        )

    def _find_boxes(self, lengths: Mapping[str, int]) -> None:
        self.extent_at: dict[str, tuple[int, ...]] = {}
        for extent in self.row.extents:
            first, count = self.index_of[extent.name]
            self.extent_at[extent.name] = tuple(range(first, first + (1 if count is None else count)))
        boxes: list[Box] = []
        for operand in self.row.operands:
            pairs: tuple[tuple[int, int], ...] = ()
            if operand.box:
                first = self.index_of[f"{operand.name}_strides"][0]
                extents = tuple(itertools.chain.from_iterable(self.extent_at[name] for name in operand.box))
                pairs = tuple(zip(extents, range(first, first + len(extents)), strict=True))
            offset = self.index_of[f"{operand.name}_offset"][0]
            boxes.append(Box(operand, self.dtype(operand.type), offset, pairs))
        self.boxes: tuple[Box, ...] = tuple(boxes)
        groups = self.row.work or (tuple(e.name for e in self.row.extents),)
        self.work: tuple[tuple[int, ...], ...] = tuple(
            tuple(i for name in group for i in self.extent_at[name]) for group in groups
        )
        grid = next(b for b in self.boxes if (b.operand.name == self.row.grid if self.row.grid else b.operand.writes))
        self.grid: tuple[int, ...] = tuple(extent for extent, _ in grid.axes)

    def dtype(self, type_name: str) -> DType:
        """Returns the dtype that a type parameter is bound to, or that the fixed name means."""
        return self.bound.get(type_name) or BY_NAME[type_name]

    def __repr__(self) -> str:
        return f"KernelRecord({self.row.name}<{', '.join(t.name for t in self.types)}>, sizes={self.sizes})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.row, tuple(t.code for t in self.types), self.sizes)

    def pack(self, **parameters: Any) -> bytes:
        """Returns the parameter block; arrays as sequences, sizes filled in."""
        return self.struct.pack(*self.flatten(parameters))

    def flatten(self, parameters: Mapping[str, Any]) -> list[Any]:
        """Returns the parameters as the flat sequence that `struct` packs."""
        flat: list[Any] = list(self.sizes)
        for name, (index, count) in self.index_of.items():
            if index < len(self.sizes):
                continue
            if count is None:
                flat.append(parameters[name])
            else:
                flat.extend(parameters[name])
        return flat

    def unpack(self, block: bytes | memoryview) -> dict[str, Any]:
        """Returns the parameters by name; arrays as tuples."""
        flat = self.struct.unpack(block)
        return {name: flat[i] if n is None else flat[i : i + n] for name, (i, n) in self.index_of.items()}

    def views(self, block: bytes | memoryview) -> list[OperandView]:
        """Returns, per operand, the strided box that a launch with this block works on."""
        flat = self.struct.unpack(block)
        return [
            OperandView(
                box.operand.name,
                box.dtype,
                tuple(flat[e] for e, _ in box.axes),
                tuple(flat[s] * box.dtype.size for _, s in box.axes),
                flat[box.offset] * box.dtype.size,
            )
            for box in self.boxes
        ]

    def windows(self, flat: Flat) -> list[Any]:
        """Returns, per spatial axis of a windowed kernel, a bound on |input position| in float64."""
        if "window_strides" not in self.index_of:
            return []
        first = {name: self.index_of[name][0] for name in ("window_strides", "dilations", "pads")}
        ends = self.index_of.get("pads_end", (None, None))[0]
        bounds = []
        for axis, (out, kernel) in enumerate(zip(self.extent_at["output"], self.extent_at["kernel"], strict=True)):
            bound = 1.0 * flat[out] * flat[first["window_strides"] + axis] + abs(1.0 * flat[first["pads"] + axis])
            bound = bound + 1.0 * flat[kernel] * flat[first["dilations"] + axis] + flat[self.extent_at["input"][axis]]
            bounds.append(bound if ends is None else bound + abs(1.0 * flat[ends + axis]))
        return bounds

    def geometry(self, flat: Flat) -> Geometry:
        """Returns the launch geometry of one flat block; see `kernels.geometry`."""
        geometry: Geometry = GEOMETRIES[self.row.geometry](self.extent_at, self.grid, flat)
        return geometry


def _rebuild(row: KernelRow, codes: tuple[int, ...], sizes: tuple[int, ...]) -> KernelRecord:
    return row.record(tuple(BY_CODE[c] for c in codes), sizes)


def _sum_text(parts: Sequence[str | None]) -> str:
    """Returns the length of a box as text: sizes and a count of single extents, like "rank+2"."""
    singles = sum(part is None for part in parts)
    return "+".join([*(part for part in parts if part is not None), *([str(singles)] if singles else [])])


def _length(text: str, lengths: Mapping[str, int]) -> int | None:
    """Returns the array length that "rank+1]" means, None for a single number."""
    if not text:
        return None
    return sum(int(part) if part.isdigit() else lengths[part] for part in text.rstrip("]").split("+"))
