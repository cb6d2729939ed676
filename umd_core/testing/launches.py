"""Random launches of any kernel that obey rule 7: extents, layouts, parameters, memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from umd_core.dtypes import DType
from umd_core.ir import Array
from umd_core.kernels import KernelRecord, KernelRow, Operand
from umd_core.kernels.attention import UNBOUNDED
from umd_core.testing.chains import random_program
from umd_core.testing.reference import Case
from umd_core.testing.values import Random, index_values, values

MOST = 2048
SHAPES = ("ordinary", "ones", "empty", "odd", "long")
LAYOUTS = ("contiguous", "permuted", "negative", "gaps", "overlapping")
ATTENTION = ("attention_kernel", "attention_grad_kernel")
STYLES: dict[tuple[str, str], str] = {
    ("elementwise_pow_kernel", "a"): "positive",
    ("elementwise_pow_kernel", "b"): "exponent",
    ("elementwise_cast_kernel", "x"): "wide",
    ("reduce_prod_kernel", "x"): "near_one",
    ("scatter_mul_kernel", "updates"): "near_one",
    ("random_bernoulli_kernel", "p"): "chance",
    ("scan_prod_kernel", "x"): "near_one",
    ("adamw_kernel", "v"): "positive",
    ("adamw_kernel", "lr"): "rate",
    ("adamw_kernel", "step"): "step",
    ("sgd_momentum_kernel", "lr"): "rate",
    ("sgd_momentum_kernel", "step"): "step",
    ("sgd_kernel", "lr"): "rate",
    ("log_softmax_grad_kernel", "y"): "unit",
    **{(name, operand): "unit" for name in ATTENTION for operand in ("q", "k")},
    **{(name, "bias"): "mask" for name in ATTENTION},
    ("attention_grad_kernel", "lse"): "positive",
}
"""Operands of floats that are meant for some numbers only."""
FIELDS: dict[str, Sequence[Any]] = {
    "epsilon": (1e-5, 1e-2),
    "weight_decay": (0.0, 0.1),
    "momentum": (0.0, 0.9),
    "dampening": (0.0, 0.25),
    "beta1": (0.9, 0.5),
    "beta2": (0.999, 0.75),
    "guarded": (0, 1, 2),
    "scale": (0.125, 0.5),
    "low": (-UNBOUNDED, -2, 0),
    "high": (UNBOUNDED, 1, 0),
}
_FLAGS = (0, 1)
SPECIAL_FAMILIES = {"expression", "chain", "reduce", "arg_reduce", "gather", "scatter", "gemm", "scan", "sort"}
SPECIAL_KERNELS = {"max_pool_kernel", "max_pool_index_kernel", "softmax_kernel", "log_softmax_kernel"}


@dataclass(frozen=True, slots=True)
class Piece:
    """Where an operand lies: which memory, its first byte there, its length in bytes, and its box."""

    memory: int
    offset: int
    length: int
    strides: tuple[int, ...]
    element_offset: int


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch with the memory it works on.

    Attributes:
        memories: (size,) uint8 each; operands that alias share one.
        pieces: one per operand.
    """

    record: KernelRecord
    parameters: bytes
    memories: tuple[Array, ...]
    pieces: tuple[Piece, ...]
    note: str = ""

    def box(self, index: int, memories: Sequence[Array] | None = None) -> Array:
        """Returns the elements of an operand as a view of its memory."""
        piece, view = self.pieces[index], self.record.views(self.parameters)[index]
        memory = (memories or self.memories)[piece.memory]
        return np.ndarray(view.shape, view.dtype.numpy, memory, piece.offset + view.offset, view.strides)

    def case(self) -> Case:
        """Returns the launch as the reference takes it."""
        names = [operand.name for operand in self.record.row.operands]
        return Case(self.record, self.parameters, {name: self.box(i).copy() for i, name in enumerate(names)})


@dataclass(slots=True)
class Plan:
    """What to build: see `build`."""

    shape: str = "ordinary"
    layout: str = "contiguous"
    special: bool = False
    alias: bool = False
    fields: Mapping[str, Any] = field(default_factory=dict)


def type_arguments(row: KernelRow) -> list[tuple[DType, ...]]:
    """Returns every combination of type arguments that the row allows."""
    result: list[tuple[DType, ...]] = [()]
    for _, allowed in row.types:
        result = [(*head, dtype) for head in result for dtype in allowed]
    return result


def build(random: Random, row: KernelRow, types: Sequence[DType], plan: Plan) -> Launch:
    """Returns a launch of the kernel that obeys rule 7."""
    sizes = tuple(int(random.choice(np.array(allowed))) for _, allowed in row.sizes)
    record = row.record(types, sizes)
    extents = make_extents(random, record, plan.shape)
    parameters: dict[str, Any] = {**extents, **make_fields(random, record), **plan.fields}
    twins = _twins(random, record) if plan.alias else {}
    memories: list[Array] = []
    pieces: list[Piece] = []
    for index, operand in enumerate(row.operands):
        if operand.name in twins:
            piece = pieces[twins[operand.name]]
        else:
            layout = plan.layout if operand.box else "contiguous"
            injective = (operand.writes and not row.atomic) or index in twins.values()
            place, memory = _place(random, record, operand, extents, layout, injective, plan.special)
            piece = Piece(len(memories), *place)
            memories.append(memory)
        pieces.append(piece)
        parameters[f"{operand.name}_offset"] = piece.element_offset
        parameters[f"{operand.name}_strides"] = piece.strides
    note = f"{[t.name for t in types]} sizes {list(sizes)} {plan}"
    return Launch(record, record.pack(**parameters), tuple(memories), tuple(pieces), note)


def _twins(random: Random, record: KernelRecord) -> dict[str, int]:
    """Returns, for one written operand that may alias a read one, the read one's position."""
    names = [operand.name for operand in record.row.operands]
    types = {operand.name: record.dtype(operand.type) for operand in record.row.operands}
    pairs = [(w, r) for w, r in record.row.alias if types[w] is types[r]]
    if not pairs:
        return {}
    written, read = pairs[int(random.integers(len(pairs)))]
    return {written: names.index(read)}


def make_fields(random: Random, record: KernelRecord) -> dict[str, Any]:
    """Returns values for the row's further fields, windows excepted."""
    result: dict[str, Any] = random_program(random) if record.row.family == "chain" else {}
    for item in record.row.fields:
        if item.size is None:
            choices = FIELDS.get(item.name, _FLAGS)
            result[item.name] = choices[int(random.integers(len(choices)))]
    return result


def make_extents(random: Random, record: KernelRecord, shape: str) -> dict[str, Any]:
    """Returns extents (and the window fields that go with them) of the given kind of shape."""
    if "window_strides" in {item.name for item in record.row.fields}:
        return _windowed(random, record, shape)
    result: dict[str, Any] = {}
    stretched = int(random.integers(len(record.row.extents)))
    for index, extent in enumerate(record.row.extents):
        count = len(record.extent_at[extent.name])
        own = "ordinary" if shape == "long" and index != stretched else shape
        sizes = _sizes(random, count if extent.size else 1, own)
        result[extent.name] = tuple(sizes) if extent.size else sizes[0]
    _shrink(random, result)
    if "axis" in result:
        first = record.row.extents[0].name
        result["axis"] = result["axis"] or (0 if 0 in result[first] else 3)
    if "count" in result and "length" in result and random.random() < 0.5:
        result["count"] = result["length"]  # the whole order, not its beginning
    if shape == "empty":
        _empty_one(random, record, result)
    return result


def _shrink(random: Random, extents: dict[str, Any]) -> None:
    """Sets extents to 1 until the launch has at most `MOST` elements: the reference is slow."""
    flat = [(name, at) for name, e in extents.items() for at in range(len(e) if isinstance(e, tuple) else 1)]
    for index in random.permutation(len(flat)):
        total = math.prod(e for value in extents.values() for e in (value if isinstance(value, tuple) else (value,)))
        if total <= MOST:
            return
        name, at = flat[int(index)]
        value = extents[name]
        extents[name] = (*value[:at], 1, *value[at + 1 :]) if isinstance(value, tuple) else 1


def _sizes(random: Random, count: int, shape: str) -> list[int]:
    """Returns `count` extents, few of them other than 1, so that launches stay small."""
    sizes = [1] * count
    if shape == "ones":
        return sizes
    pools = {"odd": (3, 5, 7), "long": (67, 129, 300)}
    pool = pools.get(shape, (2, 3, 4))
    busy = min(count, 1 if shape == "long" else int(random.integers(1, 4)))
    for axis in random.choice(count, busy, replace=False):
        sizes[int(axis)] = int(random.choice(np.array(pool)))
    return sizes


def _empty_one(random: Random, record: KernelRecord, extents: dict[str, Any]) -> None:
    """Sets one extent to 0, save the indexed axis, which only an empty launch may leave empty."""
    names = [e.name for e in record.row.extents if e.name != "axis"]
    name = names[int(random.integers(len(names)))]
    value = extents[name]
    if isinstance(value, tuple):
        at = int(random.integers(len(value)))
        extents[name] = (*value[:at], 0, *value[at + 1 :])
    else:
        extents[name] = 0


def _windowed(random: Random, record: KernelRecord, shape: str) -> dict[str, Any]:
    """Returns extents and window fields of a convolution or pooling; every window meets the input."""
    axes = len(record.extent_at["output"])
    least, most = {"ones": (1, 2), "long": (9, 14)}.get(shape, (3, 7))
    rows: dict[str, list[int]] = {
        n: [] for n in ("input", "kernel", "output", "window_strides", "dilations", "pads", "ends")
    }
    for axis in range(axes):
        large = shape != "long" or axis == 0
        size = int(random.integers(least, most)) if large else 2
        kernel = 1 if shape == "ones" else int(random.integers(1, 4))
        dilation, stride = int(random.integers(1, 3)), int(random.integers(1, 3))
        reach = dilation * (kernel - 1)
        before, after = (int(random.integers(0, min(reach, size - 1) + 1)) for _ in range(2))
        before += max(0, reach + 1 - size - before - after)
        output = (size + before + after - reach - 1) // stride + 1
        for name, value in zip(rows, (size, kernel, output, stride, dilation, before, after), strict=True):
            rows[name].append(value)
    ends = rows.pop("ends")
    result: dict[str, Any] = {name: tuple(row) for name, row in rows.items()}
    if any(item.name == "pads_end" for item in record.row.fields):
        result["pads_end"] = tuple(ends)
    for extent in record.row.extents:
        if extent.name not in result:
            result[extent.name] = 1 if shape == "ones" else int(random.integers(1, 4))
    if shape == "empty":
        result["batch"] = 0
    return result


def _place(
    random: Random,
    record: KernelRecord,
    operand: Operand,
    extents: Mapping[str, Any],
    layout: str,
    injective: bool,
    special: bool,
) -> tuple[tuple[int, int, tuple[int, ...], int], Array]:
    """Returns (first byte, length, strides, element offset) of an operand and the memory it lies in."""
    box = [e for name in operand.box for e in (extents[name] if isinstance(extents[name], tuple) else (extents[name],))]
    strides = make_strides(random, box, layout, injective)
    dtype = record.dtype(operand.type)
    reaches = [(extent - 1) * stride for extent, stride in zip(box, strides, strict=True)]
    low = sum(min(reach, 0) for reach in reaches)
    length = 0 if 0 in box else 1 + sum(abs(reach) for reach in reaches)
    if 0 in box:
        low, strides = 0, tuple(0 if e <= 1 else s for e, s in zip(box, strides, strict=True))
    lead = int(random.integers(0, 3))
    data = _contents(random, record, operand, dtype, lead + length, extents, special)
    return (lead * dtype.size, length * dtype.size, strides, -low), data.view(np.uint8)


def _contents(
    random: Random,
    record: KernelRecord,
    operand: Operand,
    dtype: DType,
    count: int,
    extents: Mapping[str, Any],
    special: bool,
) -> Array:
    row = record.row
    if operand.name == "index" and not operand.writes:
        return index_values(random, dtype, count, extents["axis"])
    style = STYLES.get((row.name, operand.name), "") if dtype.is_float else ""
    wild = special and (row.family in SPECIAL_FAMILIES or row.name in SPECIAL_KERNELS)
    return values(random, dtype, count, special=wild, style="" if wild and random.random() < 0.5 else style)


def make_strides(random: Random, box: Sequence[int], layout: str, injective: bool) -> tuple[int, ...]:
    """Returns strides for a box, in elements; axes of extent 1 get 0.

    "overlapping" gives any small strides, 0 too, where the elements may coincide; elsewhere it permutes.
    """
    if layout == "overlapping" and not injective:
        return tuple(0 if e == 1 else int(random.integers(-2, 4)) for e in box)
    order = list(range(len(box)))[::-1]
    if layout in ("permuted", "overlapping", "negative"):
        order = [int(a) for a in random.permutation(len(box))]
    strides, step = [0] * len(box), 1
    wide = set(random.permutation(len(box))[:2].tolist())
    for axis in order:
        if box[axis] == 1:
            continue
        gap = int(random.integers(2, 4)) if layout == "gaps" and axis in wide else 1
        strides[axis] = step * gap
        step *= gap * max(box[axis], 1)
        if layout == "negative" and random.random() < 0.7:
            strides[axis] = -strides[axis]
    return tuple(strides)
