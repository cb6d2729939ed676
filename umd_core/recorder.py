"""Records what an op launches: views of buffers in, kernel launches out.

A Recorder belongs to one call of one op. Its buffers are numbered: first the call's inputs, then constants and new
buffers as they appear. `translate` links what it recorded (a Recipe) into programs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from umd_core import dtypes
from umd_core.commands import READ, WRITE
from umd_core.dtypes import DType
from umd_core.errors import LimitError, UnsupportedError
from umd_core.ir import MAX_BYTES, Array, TensorDesc, contiguous_strides
from umd_core.kernels import BY_NAME, RANK_CLASSES, Geometry, KernelRecord, KernelRow
from umd_core.views import ABSENT, View, coalesce, is_dense

Supports = Callable[[str, tuple[DType, ...]], bool]
_ACCESS = {"r": READ, "w": WRITE, "rw": READ | WRITE}


class Launch(NamedTuple):
    """A kernel launch: refs are (buffer, access, byte offset, byte length)."""

    record: KernelRecord
    geometry: Geometry
    parameters: bytes
    refs: tuple[tuple[int, int, int, int], ...]


class CopyBytes(NamedTuple):
    """A copy of bytes; `adopt` says that the destination may simply become the source's buffer."""

    refs: tuple[tuple[int, int, int, int], tuple[int, int, int, int]]
    adopt: bool


class FillBytes(NamedTuple):
    """A repeated pattern."""

    refs: tuple[tuple[int, int, int, int]]
    pattern: bytes


Step = Launch | CopyBytes | FillBytes


class Recorder:
    """Records the launches of one call.

    Attributes:
        steps: what was recorded, in order.
        sizes: bytes of each buffer that this call makes, by buffer number.
        constants: bytes of each constant buffer, by buffer number.
    """

    def __init__(
        self,
        inputs: Sequence[TensorDesc | View | None],
        layouts: Sequence[TensorDesc | None] = (),
        supports: Supports | None = None,
        decompositions: Mapping[str, Any] | None = None,
    ) -> None:
        self.steps: list[Step] = []
        self.sizes: dict[int, int] = {}
        self.constants: dict[int, bytes] = {}
        self._constant_index: dict[tuple[int, bytes], int] = {}
        self._next = len(inputs)
        self._layouts = layouts
        self._supports = supports
        self._decompositions = decompositions or {}
        self.views: tuple[View, ...] = tuple(
            ABSENT
            if desc is None
            else desc
            if isinstance(desc, View)
            else View(i, desc.dtype, desc.shape, desc.strides, desc.element_offset)
            for i, desc in enumerate(inputs)
        )

    # buffers

    def new(self, dtype: DType, shape: Sequence[int], strides: tuple[int, ...] | None = None) -> View:
        """Returns a view of a new buffer; row-major unless strides are given.

        Raises:
            LimitError: it would have 2^62 bytes or more, as what is between empty tensors may.
        """
        shape = tuple(shape)
        steps = contiguous_strides(shape) if strides is None else strides
        reaches = [] if 0 in shape else [(extent - 1) * step for extent, step in zip(shape, steps, strict=True)]
        view = View(self._next, dtype, shape, steps, -sum(reach for reach in reaches if reach < 0))
        span = 0 if 0 in shape else 1 + sum(map(abs, reaches))
        if span * dtype.size > MAX_BYTES:
            raise LimitError("tensor size in bytes", span * dtype.size, MAX_BYTES)
        self.sizes[self._next] = span * dtype.size
        self._next += 1
        return view

    def like(self, view: View) -> View:
        """Returns a new row-major buffer with the view's dtype and shape."""
        return self.new(view.dtype, view.shape)

    def out(self, call: Any, index: int = 0) -> View:
        """Returns the buffer of an output, in the layout in which it is wanted."""
        desc: TensorDesc = call.outputs[index]
        layout = self._layouts[index] if index < len(self._layouts) else None
        return self.new(desc.dtype, desc.shape, None if layout is None else layout.strides)

    def scalar(self, value: object, dtype: DType) -> View:
        """Returns a 0-d constant."""
        return self.constant(_number(value, dtype))

    def constant(self, value: Array) -> View:
        """Returns a constant that becomes part of the program."""
        array = np.ascontiguousarray(value).reshape(value.shape)
        dtype = dtypes.dtype(array.dtype)
        data = array.tobytes()
        key = (dtype.code, data)
        number = self._constant_index.get(key)
        if number is None:
            number = self._constant_index[key] = self._next
            self.constants[number] = data
            self._next += 1
        return View(number, dtype, array.shape, contiguous_strides(array.shape))

    # the level-0 families

    def expression(self, name: str, inputs: Sequence[View], out: View) -> View:
        """Records `elementwise_{name}_kernel` over inputs that broadcast to `out`; returns `out`."""
        if 0 in out.shape:
            return out
        row = BY_NAME[f"elementwise_{name}_kernel"]
        views = (*inputs, out)
        shape = out.shape
        strides = [v.strides if v.shape == shape else v.expand(shape).strides for v in views]
        extents, strides = coalesce(shape, strides)
        types = tuple([views[i].dtype for i in row.type_operands])
        self._record(row, types, [extents], list(zip(views, strides, strict=True)), ())
        return out

    def copy(self, source: View, out: View) -> View:
        """Records a strided copy (a cast when the dtypes differ); returns `out`."""
        name = "copy" if source.dtype is out.dtype else "cast"
        return self.expression(name, (source,), out)

    def fill(self, out: View, value: object) -> View:
        """Records that every element of `out` becomes `value`; returns `out`."""
        if 0 in out.shape:
            return out
        pattern = _number(value, out.dtype).tobytes()
        if is_dense(out):
            ref = (out.buffer, WRITE, out.offset * out.dtype.size, out.size * out.dtype.size)
            self.steps.append(FillBytes((ref,), pattern))
            return out
        return self.expression("copy", (self.scalar(value, out.dtype),), out)

    def contiguous(self, view: View) -> View:
        """Returns the view itself when it is row-major without gaps, else a new copy."""
        return view if is_dense(view) else self.copy(view, self.like(view))

    def reshape(self, view: View, shape: Sequence[int]) -> View:
        """Returns the view with another shape, copied first where its strides demand it."""
        moved = view.reshape(shape)
        if moved is None:
            moved = View(self.copy(view, self.like(view)).buffer, view.dtype, tuple(shape), contiguous_strides(shape))
        return moved

    def mutable(self, view: View) -> View:
        """Returns a writable copy of an input, elided where the input's buffer may be overwritten."""
        out = self.new(view.dtype, view.shape)
        if 0 in view.shape:
            return out
        if is_dense(view):
            size = view.size * view.dtype.size
            source = (view.buffer, READ, view.offset * view.dtype.size, size)
            self.steps.append(CopyBytes(((out.buffer, WRITE, 0, size), source), True))
            return out
        return self.copy(view, out)

    def reduce(self, name: str, x: View, axes: Sequence[int], out: View) -> View:
        """Records `reduce_{name}_kernel` of x over axes; `out` has the other axes in order. Returns `out`."""
        kept = [a for a in range(x.rank) if a not in axes]
        self.launch(
            f"reduce_{name}_kernel",
            {"outer": tuple(x.shape[a] for a in kept), "inner": tuple(x.shape[a] for a in axes)},
            {"x": x.permute([*kept, *axes]), "out": out},
        )
        return out

    def arg_reduce(self, name: str, x: View, axes: Sequence[int], out: View, *, select_last: bool = False) -> View:
        """Records `arg{name}_kernel` over axes (row-major position within them); returns `out` (int64)."""
        kept = [a for a in range(x.rank) if a not in axes]
        self.launch(
            f"arg{name}_kernel",
            {"outer": tuple(x.shape[a] for a in kept), "inner": tuple(x.shape[a] for a in axes)},
            {"x": x.permute([*kept, *axes]), "out": out},
            {"select_last": int(select_last)},
        )
        return out

    def gather(self, data: View, index: View, out: View, axis_extent: int) -> View:
        """Records out[e] = data[e, index[e]]. `data` has out's axes, then the gathered one. Returns `out`."""
        operands = {"data": data, "index": index, "out": out}
        self.launch("gather_kernel", {"extents": out.shape, "axis": axis_extent}, operands)
        return out

    def scatter(self, updates: View, index: View, out: View, axis_extent: int, *, combine: str = "") -> View:
        """Records out[e, index[e]] = updates[e] in place. `out` has updates' axes, then the indexed one.

        `combine` names how an update meets what is there: add, mul, max or min; without it, it takes its place.
        """
        name = f"scatter_{combine}_kernel" if combine else "scatter_kernel"
        operands = {"updates": updates, "index": index, "out": out}
        self.launch(name, {"extents": updates.shape, "axis": axis_extent}, operands)
        return out

    def random(self, name: str, seed: View, offset: View, out: View, **operands: View) -> View:
        """Records `random_{name}_kernel` over all of `out`; seed and offset hold one number each. Returns `out`."""
        keys = {key: View(v.buffer, v.dtype, (), (), v.offset) for key, v in (("seed", seed), ("offset", offset))}
        self.launch(f"random_{name}_kernel", {"extents": out.shape}, {**keys, **operands, "out": out})
        return out

    def gemm(self, a: View, b: View, out: View) -> View:
        """Records out[..., i, j] = sum over k of a[..., i, k] · b[..., k, j]; batch axes broadcast. Returns `out`."""
        batch = out.shape[:-2]
        a, b = a.expand(batch + a.shape[-2:]), b.expand(batch + b.shape[-2:])
        rows, columns = out.shape[-2:]
        self.launch(
            "gemm_kernel",
            {"batch": batch, "rows": rows, "columns": columns, "depth": a.shape[-1]},
            {"a": a, "b": b, "out": out},
        )
        return out

    # any kernel

    def launch(
        self,
        kernel: str,
        extents: Mapping[str, int | tuple[int, ...]],
        operands: Mapping[str, View],
        fields: Mapping[str, Any] | None = None,
    ) -> None:
        """Records a launch. Each operand's axes are exactly the extents of its box, in the row's order.

        Array extents of a rank class are coalesced and padded in front with 1; the others (spatial) are kept.

        Raises:
            UnsupportedError: the device lacks the kernel and it has no decomposition.
        """
        row = BY_NAME[kernel]
        views = [operands[o.name] for o in row.operands]
        if all(0 in v.shape for o, v in zip(row.operands, views, strict=True) if o.writes):
            return
        types = tuple([views[i].dtype for i in row.type_operands])
        if self._must_decompose(kernel, types):
            self._decompositions[kernel](self, dict(extents), dict(operands), dict(fields or {}))
            return
        widths = dict(row.sizes)
        merged: list[tuple[int, ...]] = []
        strides: list[list[int]] = [[] for _ in views]
        parts = {o.name: _split(o.box, extents, v.strides) for o, v in zip(row.operands, views, strict=True)}
        for extent in row.extents:
            value = extents[extent.name]
            holders = [i for i, o in enumerate(row.operands) if extent.name in o.box]
            own = [parts[row.operands[i].name][extent.name] for i in holders]
            if isinstance(value, tuple) and widths[extent.size or ""] == RANK_CLASSES:
                value, own = coalesce(value, own)
            merged.append(value if isinstance(value, tuple) else (value,))
            for i, s in zip(holders, own, strict=True):
                parts[row.operands[i].name][extent.name] = s
        for i, operand in enumerate(row.operands):
            for name in operand.box:
                strides[i].extend(parts[operand.name][name])
        flat = _flat_fields(row, fields or {})
        self._record(row, types, merged, list(zip(views, map(tuple, strides), strict=True)), flat)

    def _must_decompose(self, kernel: str, types: tuple[DType, ...]) -> bool:
        if self._supports is None or self._supports(kernel, types):
            return False
        if kernel not in self._decompositions:
            raise UnsupportedError(
                "the device does not have it, and it has no decomposition",
                kernel=kernel,
                types=tuple(t.name for t in types),
            )
        return True

    def _record(
        self,
        row: KernelRow,
        types: tuple[DType, ...],
        extents: Sequence[tuple[int, ...]],
        operands: Sequence[tuple[View, tuple[int, ...]]],
        fields: Sequence[Any],
    ) -> None:
        """Packs one launch; `extents` are per row extent, strides per operand in box order."""
        if self._supports is not None and not self._supports(row.name, types):
            names = tuple(t.name for t in types)
            raise UnsupportedError("the device does not have it", kernel=row.name, types=names)
        record = row.record(types, tuple([len(extents[i]) for i in row.size_extents]))
        flat: list[Any] = list(record.sizes)
        for extent in extents:
            flat += extent
        some_empty = any(0 in extent for extent in extents)
        refs = []
        for box, (view, strides) in zip(record.boxes, operands, strict=True):
            low = high = 0
            if some_empty and any(flat[extent_at] == 0 for extent_at, _ in box.axes):
                # its strides do not matter, and those of huge neighbours may be beyond any number
                low, high, strides = 0, -1, (0,) * len(strides)
            else:
                for (extent_at, _), stride in zip(box.axes, strides, strict=True):
                    if stride > 0:
                        high += (flat[extent_at] - 1) * stride
                    elif stride:
                        low += (flat[extent_at] - 1) * stride
            size = box.dtype.size
            refs.append((view.buffer, _ACCESS[box.operand.access], (view.offset + low) * size, (high - low + 1) * size))
            flat.append(-low)
            flat += strides
        flat += fields
        self.steps.append(Launch(record, record.geometry(flat), record.struct.pack(*flat), tuple(refs)))


def _number(value: object, dtype: DType) -> Array:
    """Returns a 0-d array; what is beyond the type's range becomes infinity without a warning."""
    with np.errstate(over="ignore"):
        return np.asarray(value).astype(dtype.numpy)


def _split(
    box: tuple[str, ...], extents: Mapping[str, int | tuple[int, ...]], strides: tuple[int, ...]
) -> dict[str, tuple[int, ...]]:
    """Returns the strides of each extent of a box."""
    parts, at = {}, 0
    for name in box:
        value = extents[name]
        count = len(value) if isinstance(value, tuple) else 1
        parts[name] = strides[at : at + count]
        at += count
    return parts


def _flat_fields(row: Any, fields: Mapping[str, Any]) -> list[Any]:
    flat: list[Any] = []
    for field in row.fields:
        value = fields[field.name]
        if field.size:
            flat += value
        else:
            flat.append(value)
    return flat
