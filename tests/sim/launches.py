"""Launches of single kernels: random layouts in memory with red zones, run without a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from umd_core.kernels import BY_NAME, KernelRecord, OperandView
from umd_core.kernels.safety import is_injective, magnitude, touched
from umd_sim.lowerings import lowering_of
from umd_sim.lowerings.layout import Executable, bind
from umd_sim.scratch import Scratch

Array = NDArray[Any]
SCRATCH = Scratch()
RED_ZONE = 64
FLUSHED = 1.2e-38
"""Float32 results below this may come out as 0."""


def values(rng: np.random.Generator, shape: Sequence[int], dtype: np.dtype[Any], *, special: bool = False) -> Array:
    """Returns random elements; with `special`, extremes, NaN and infinities among them."""
    kind = "f" if dtype.name == "bfloat16" else dtype.kind
    if kind == "b":
        return rng.integers(0, 2, shape).astype(np.bool_)
    if kind in "iu":
        limits = np.iinfo(dtype)
        small = rng.integers(max(limits.min, -4), 5, shape).astype(dtype)
        wide = rng.integers(limits.min, limits.max, shape, dtype=dtype, endpoint=True)
        return np.where(rng.random(shape) < (0.5 if special else 0.8), small, wide).astype(dtype)
    numbers = rng.standard_normal(shape) * np.where(rng.random(shape) < 0.2, 10.0, 1.0)
    if special:
        extremes = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-3, 100.0, -100.0])
        numbers = np.where(rng.random(shape) < 0.3, rng.choice(extremes, shape), numbers)
    return numbers.astype(dtype)


def strides_for(rng: np.random.Generator, shape: Sequence[int], *, shared: bool, plain: bool) -> list[int]:
    """Returns strides in elements: a random axis order, with gaps and negative steps; 0 now and then where `shared`."""
    order = list(range(len(shape)))
    if not plain:
        rng.shuffle(order)
    strides, span = [0] * len(shape), 1
    for axis in reversed(order):
        if shape[axis] == 1 or (shared and not plain and rng.random() < 0.15):
            continue
        step = span if plain else span + int(rng.integers(0, 2)) * int(rng.integers(1, 3))
        strides[axis] = -step if not plain and rng.random() < 0.3 else step
        span = step * max(shape[axis] - 1, 0) + span
    return strides


class Launch:
    """One launch over memory of its own.

    Attributes:
        inputs: the elements of every operand that is read, before the launch.
    """

    def __init__(
        self,
        record: KernelRecord,
        extents: Mapping[str, Any],
        fields: Mapping[str, Any],
        make: Callable[[str, tuple[int, ...], np.dtype[Any]], Array],
        rng: np.random.Generator,
        plain: bool = False,
    ) -> None:
        self.record, self.rng = record, rng
        self.parameters: dict[str, Any] = {**extents, **fields}
        self.inputs: dict[str, Array] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        for operand in record.row.operands:
            shape: tuple[int, ...] = ()
            for name in operand.box:
                extent = extents[name]
                shape += tuple(extent) if isinstance(extent, (tuple, list)) else (extent,)
            shared = operand.access == "r" or record.row.atomic
            strides = strides_for(rng, shape, shared=shared, plain=plain)
            low = sum(min((e - 1) * s, 0) for e, s in zip(shape, strides, strict=True)) if 0 not in shape else 0
            self.parameters[f"{operand.name}_offset"] = -low + int(rng.integers(0, 3)) * (not plain)
            if operand.box:
                self.parameters[f"{operand.name}_strides"] = strides
            self.shapes[operand.name] = shape
            if "r" in operand.access:
                reduced = tuple(1 if s == 0 and e else e for e, s in zip(shape, strides, strict=True))
                given = make(operand.name, reduced, record.dtype(operand.type).numpy)
                self.inputs[operand.name] = np.array(np.broadcast_to(given, shape), order="C")
        self.block = record.pack(**self.parameters)

    def check_rule_7(self) -> None:
        flat = self.record.struct.unpack(self.block)
        assert magnitude(self.record, flat) < 2**62
        for box in self.record.boxes:
            if box.operand.writes and not self.record.row.atomic:
                assert is_injective(box, flat)

    def run(self) -> dict[str, Array]:
        """Returns what the launch wrote, having checked that bytes around it neither change nor matter."""
        first, second = self._run(0), self._run(1)
        for name, array in first.items():
            assert array.tobytes() == second[name].tobytes(), f"{name} depends on bytes outside its operands"
        return first

    def _run(self, seed: int) -> dict[str, Array]:
        rng = np.random.default_rng(seed)
        flat = self.record.struct.unpack(self.block)
        bindings, before = [], []
        for box, view in zip(self.record.boxes, self.record.views(self.block), strict=True):
            end = RED_ZONE + touched(box, flat)[1]
            memory = rng.integers(0, 256, end + RED_ZONE, dtype=np.uint8)
            if view.name in self.inputs:
                given = self.inputs[view.name]
                if box.dtype.kind == "b":  # any non-zero byte is true
                    given = np.where(given, rng.integers(1, 256, given.shape), 0).astype(np.uint8)
                elements(memory, view, given.dtype)[...] = given
            bindings.append((SimpleNamespace(memory=memory), RED_ZONE, end - RED_ZONE))
            before.append(memory.copy())
        lowering = lowering_of(self.record.row)
        assert lowering is not None
        executable = lowering(self.record, self.block)
        self._check_views(executable)
        with np.errstate(all="ignore"):
            bind(executable, self.block, bindings, SCRATCH)()
        results = {}
        for box, view, binding, old in zip(
            self.record.boxes, self.record.views(self.block), bindings, before, strict=True
        ):
            memory = binding[0].memory
            if box.operand.writes:
                stored = np.dtype(np.uint8) if box.dtype.kind == "b" else view.dtype.numpy
                results[view.name] = elements(memory, view, stored).astype(view.dtype.numpy)
                memory, old = outside(memory, view), outside(old, view)
            assert np.array_equal(memory, old), f"bytes around {view.name} changed"
        return results

    def _check_views(self, executable: Executable) -> None:
        """Asserts that a lowering asks for bytes that the launch may touch, and no others."""
        flat = self.record.struct.unpack(self.block)
        for operand, dtype, shape, strides, offset in executable.views:
            low, high = touched(self.record.boxes[operand], flat)
            reach = [(extent - 1) * step for extent, step in zip(shape, strides, strict=True)]
            assert 0 not in shape
            assert offset + sum(r for r in reach if r < 0) >= low
            assert offset + sum(r for r in reach if r > 0) + dtype.itemsize <= high


def elements(memory: Array, view: OperandView, dtype: np.dtype[Any]) -> Array:
    """Returns an operand's elements in memory, as a view."""
    if 0 in view.shape:
        return np.empty(view.shape, dtype)
    return np.ndarray(view.shape, dtype, memory, RED_ZONE + view.offset, view.strides)


def outside(memory: Array, view: OperandView) -> Array:
    """Returns the memory with 0 in place of an operand's elements."""
    masked = memory.copy()
    size = view.dtype.size
    if 0 not in view.shape:
        np.ndarray((*view.shape, size), np.uint8, masked, RED_ZONE + view.offset, (*view.strides, 1))[...] = 0
    return masked


def launch(
    name: str,
    types: Sequence[Any],
    sizes: Sequence[int],
    extents: Mapping[str, Any],
    *,
    fields: Mapping[str, Any] | None = None,
    seed: int = 0,
    special: bool = False,
    plain: bool = False,
    make: Callable[[str, tuple[int, ...], np.dtype[Any]], Array] | None = None,
) -> Launch:
    """Returns a launch of a kernel of the table with random operands."""
    rng = np.random.default_rng(seed)
    record = BY_NAME[name].record(tuple(types), tuple(sizes))

    def random(operand: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        return values(rng, shape, dtype, special=special)

    result = Launch(record, extents, fields or {}, make or random, rng, plain)
    result.check_rule_7()
    return result


def run(record: KernelRecord, block: bytes, arrays: Sequence[Array]) -> None:
    """Runs a launch over whole host arrays, one per operand."""
    lowering = lowering_of(record.row)
    assert lowering is not None
    bindings = [(SimpleNamespace(memory=array.reshape(-1).view(np.uint8)), 0, array.nbytes) for array in arrays]
    with np.errstate(all="ignore"):
        bind(lowering(record, block), block, bindings, SCRATCH)()


def padded(shape: Sequence[int], rank: int) -> tuple[int, ...]:
    """Returns the shape with leading extents of 1 up to a rank class."""
    return (1,) * (rank - len(shape)) + tuple(shape)


def rank_class(rank: int) -> int:
    """Returns the rank class that a shape needs."""
    return 1 if rank <= 1 else 4 if rank <= 4 else 8


def close(
    got: Array, expected: Array, tolerance: float, dtype: np.dtype[Any], scale: Array | float | None = None
) -> None:
    """Asserts equality within `tolerance` units of the type's epsilon, relative to `scale` (the result by default)."""
    if dtype.name != "bfloat16" and dtype.kind != "f":
        np.testing.assert_array_equal(got, expected)
        return
    epsilon = 2.0**-7 if dtype.name == "bfloat16" else float(np.finfo(dtype).eps)
    smallest = FLUSHED if dtype.name == "bfloat16" else float(np.finfo(dtype).tiny)
    with np.errstate(all="ignore"):
        rounded = expected.astype(dtype).astype(np.float64)
        actual = got.astype(np.float64)
        bound = tolerance * epsilon * np.maximum(np.abs(expected if scale is None else scale), smallest)
        bound = bound + FLUSHED
        fine = (actual == rounded) | (np.isnan(actual) & np.isnan(rounded)) | (np.abs(actual - expected) <= bound)
    if not fine.all():
        where = tuple(np.argwhere(~fine)[0])
        raise AssertionError(f"at {where}: got {actual[where]!r}, expected {np.asarray(expected)[where]!r}")
