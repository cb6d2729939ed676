"""Plans: launches that are made in several passes, because one workgroup a result would leave a GPU idle.

The passes of a plan share scratch memory, whose address stands behind the parameter block; behind it stands the pass:
its number, and into how many parts work is cut. How work is cut depends on the launch's parameters alone, so results
have the same bits on every run and every device.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from umd_core.kernels import KernelRecord
from umd_core.kernels.geometry import Flat
from umd_cuda.geometry import BLOCK, MIDDLING, TILE, Geometry, groups_of, launch_geometry, product_of

WANTED = 1024
"""Workgroups that keep a GPU busy."""
PART = 8192
"""Elements of a row's part, so that an invocation of 256 has 32 of them: less is not worth a pass."""
DEEP = 512
"""Depth of a matrix product's part."""
EXTRA = struct.Struct("<QQ")
SHALLOW = 8
"""Products of a smaller depth are not worth tiles."""
MOST_SCRATCH = 64 << 20
SPARSE = 8
"""A convolution is made of tiles where these, partly empty, do at most so many times its multiplications."""


class Plan(NamedTuple):
    """A launch as passes.

    Attributes:
        scratch: bytes that the passes share, 0 for none; whatever is in them at the start.
        passes: each pass and its geometry, in order.
    """

    scratch: int
    passes: tuple[tuple[int, Geometry], ...]


Planner = Callable[[KernelRecord, Flat], Plan]


def plan_for(record: KernelRecord, flat: Flat) -> Plan:
    """Returns how a launch with this flat parameter block is made on a GPU."""
    return PLANNED[record.row.family](record, flat) or whole(record, flat)


def whole(record: KernelRecord, flat: Flat) -> Plan:
    """Returns the plan that is one launch: pass 0 does all the work."""
    return Plan(0, ((0, launch_geometry(record, flat)),))


def pass_of(number: int, parts: int = 1) -> int:
    """Returns a pass as the kernels take it."""
    return number | parts << 8


def block_of(parameters: bytes, scratch: int, turn: int) -> bytes:
    """Returns the block of one pass: the parameter block, the address of the scratch memory, and the pass."""
    return parameters + EXTRA.pack(scratch, turn)


# rows


def split_rows(record: KernelRecord, flat: Flat, parts: int) -> Plan:
    """Returns the plan that cuts every row into parts."""
    rows = product_of(flat, record.extent_at["outer"])
    across = (groups_of(rows * parts, 1), 1, 1), (BLOCK, 1, 1), 0
    second = ((groups_of(rows, 1), 1, 1), (BLOCK, 1, 1), 0) if record.row.family in _ONE_RESULT else across
    found = 16 * rows * parts  # two numbers a part at most
    return Plan(found, ((pass_of(1, parts), across), (pass_of(2, parts), second)))


_ONE_RESULT = ("reduce", "arg_reduce")


def _rows(record: KernelRecord, flat: Flat) -> Plan | None:
    rows, length = product_of(flat, record.extent_at["outer"]), product_of(flat, record.extent_at["inner"])
    if length <= max(MIDDLING, 2 * PART) or not 0 < rows <= WANTED // 4:
        return None
    return split_rows(record, flat, min(-(-length // PART), -(-2 * WANTED // rows)))


# tiles


def split_depth(record: KernelRecord, flat: Flat, parts: int) -> Plan:
    """Returns the plan that cuts a matrix product, or a convolution's gradient by its weight, along its depth."""
    batch, rows, columns, _ = _sizes(record, flat)
    count = batch * rows * columns
    across = groups_of(columns, TILE), groups_of(rows, TILE), groups_of(batch * parts, 1)
    passes = [(pass_of(1, parts), (across, (BLOCK, 1, 1), 0))]
    if parts > 1:
        passes.append((pass_of(2, parts), ((groups_of(count, BLOCK), 1, 1), (BLOCK, 1, 1), 0)))
    return Plan(8 * count * parts if parts > 1 else 0, tuple(passes))


def _sizes(record: KernelRecord, flat: Flat) -> tuple[int, int, int, int]:
    """Returns batch, rows, columns and depth of the products that a launch is."""
    names = _SIZES[record.row.name]
    batch, rows, columns, depth = (
        product_of(flat, tuple(i for name in group for i in record.extent_at[name])) for group in names
    )
    return batch, rows, columns, depth


_SIZES: dict[str, tuple[tuple[str, ...], ...]] = {
    "gemm_kernel": (("batch",), ("rows",), ("columns",), ("depth",)),
    "conv_kernel": (("groups",), ("out_channels",), ("batch", "output"), ("in_channels", "kernel")),
    "conv_input_grad_kernel": (("groups",), ("in_channels",), ("batch", "input"), ("out_channels", "kernel")),
    "conv_weight_grad_kernel": (("groups",), ("out_channels",), ("in_channels", "kernel"), ("batch", "output")),
}


def _parts(record: KernelRecord, flat: Flat) -> int:
    """Returns into how many parts a product's depth is cut."""
    batch, rows, columns, depth = _sizes(record, flat)
    tiles = batch * -(-rows // TILE) * -(-columns // TILE)
    room = MOST_SCRATCH // max(8 * batch * rows * columns, 1)
    return max(1, min(depth // DEEP, WANTED // 2 // max(tiles, 1), room))


def _gemm(record: KernelRecord, flat: Flat) -> Plan | None:
    parts = _parts(record, flat)
    return split_depth(record, flat, parts) if parts > 1 else None


def plan_of_conv(record: KernelRecord, flat: Flat, sparse: int = SPARSE) -> Plan | None:
    """Returns the plan of tiles that a convolution is made of, None where it is better made directly.

    Args:
        record: the kernel.
        flat: the parameter block.
        sparse: how many times the multiplications tiles may do.
    """
    _, rows, columns, depth = _sizes(record, flat)
    tiled = -(-rows // TILE) * TILE * -(-columns // TILE) * TILE
    if depth < SHALLOW or not 0 < tiled <= sparse * rows * columns:
        return None
    return _CONVOLUTIONS[record.row.name](record, flat)


def tiled_conv(record: KernelRecord, flat: Flat) -> Plan:
    """Returns the plan that makes a convolution of tiles."""
    return split_depth(record, flat, 1)


def tiled_input_grad(record: KernelRecord, flat: Flat) -> Plan:
    """Returns the plan that makes a gradient by the input of tiles: a product for each class of inputs, see the kernel.

    Strides must not be 0.
    """
    groups, rows, _, _ = _sizes(record, flat)
    classes, columns = _classes(record, flat)
    batch = product_of(flat, record.extent_at["batch"])
    across = groups_of(batch * columns, TILE), groups_of(rows, TILE), groups_of(groups * classes, 1)
    return Plan(0, ((pass_of(1), (across, (BLOCK, 1, 1), 0)),))


def _classes(record: KernelRecord, flat: Flat) -> tuple[int, int]:
    """Returns how many classes of inputs there are, and how many inputs one has at most."""
    strides, _ = record.index_of["window_strides"]
    classes = columns = 1
    for axis, extent in enumerate(record.extent_at["input"]):
        inputs, stride = int(flat[extent]), int(flat[strides + axis])
        classes *= min(inputs, stride)
        columns *= -(-inputs // stride)
    return classes, columns


def _input_grad(record: KernelRecord, flat: Flat) -> Plan | None:
    strides, _ = record.index_of["window_strides"]
    if 0 in (flat[strides + axis] for axis in range(len(record.extent_at["input"]))):
        return None
    _, columns = _classes(record, flat)
    batch, outputs = (product_of(flat, record.extent_at[name]) for name in ("batch", "output"))
    # small classes leave tiles empty; many inputs that no window reaches would be work that the table does not count
    if batch * columns < TILE or columns > 4 * outputs:
        return None
    return tiled_input_grad(record, flat)


def _weight_grad(record: KernelRecord, flat: Flat) -> Plan | None:
    return split_depth(record, flat, _parts(record, flat))


_CONVOLUTIONS: dict[str, Callable[[KernelRecord, Flat], Plan | None]] = {
    "conv_kernel": tiled_conv,
    "conv_input_grad_kernel": _input_grad,
    "conv_weight_grad_kernel": _weight_grad,
}

PLANNED: dict[str, Callable[[KernelRecord, Flat], Plan | None]] = {
    "reduce": _rows,
    "arg_reduce": _rows,
    "rows": _rows,
    "gemm": _gemm,
    "conv": plan_of_conv,
}
"""By family: how a launch is cut, None where it need not be."""
