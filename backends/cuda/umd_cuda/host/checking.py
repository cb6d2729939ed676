"""The checked run of a kernel: findings as records, with source lines, and a report to read."""

from __future__ import annotations

import ctypes
import enum
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from umd_core.errors import AttributeValueError, UmdError
from umd_cuda.host.arguments import arrays, pack
from umd_cuda.host.errors import LaunchError
from umd_cuda.host.module import HostFunction
from umd_cuda.host.symbols import source_lines


class Kind(enum.StrEnum):
    """What was found; in the order of runtime.hpp, then what is found after the run."""

    OUT_OF_BOUNDS_READ = "out-of-bounds read"
    OUT_OF_BOUNDS_WRITE = "out-of-bounds write"
    RACE_WRITE_WRITE = "race between two writes"
    RACE_READ_WRITE = "race between a read and a write"
    UNINITIALISED_READ = "uninitialised read"
    DIVERGENT_BARRIER = "divergent barrier"
    BAD_MASK = "bad warp mask"
    DIVERGENT_WARP = "divergent warp operation"
    INACTIVE_SOURCE = "value of a lane outside the mask"
    TRAP = "trap"
    UNWRITTEN_OUTPUT = "unwritten output"
    ORDER_DEPENDENT = "result depends on thread order"


_KINDS = tuple(Kind)
# One checked launch at a time: modules are shared in a process, and each keeps what it watches and has found.
_checking = threading.Lock()


class _Finding(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_int32), ("buffer", ctypes.c_int32), ("name", ctypes.c_char_p), ("offset", ctypes.c_int64),
        ("pc", ctypes.c_uint64), ("other_pc", ctypes.c_uint64), ("count", ctypes.c_uint64), ("size", ctypes.c_uint32),
        ("block", ctypes.c_uint32), ("thread", ctypes.c_uint32), ("other_block", ctypes.c_uint32),
        ("other_thread", ctypes.c_uint32), ("line", ctypes.c_int32), ("other_line", ctypes.c_int32),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Invocation:
    """One thread of one block, and the source line where it was (0: unknown)."""

    block: tuple[int, int, int]
    thread: tuple[int, int, int]
    line: int

    def __str__(self) -> str:
        at = f" at line {self.line}" if self.line else ""
        return f"block {self.block} thread {self.thread}{at}"


@dataclass(frozen=True, slots=True)
class Finding:
    """One kind of fault at one place. `offset` and `size` are bytes; `count` is how often it happened.

    `buffer` is the name of a parameter or of a workgroup variable, empty where the fault is not in memory.
    """

    kind: Kind
    buffer: str
    offset: int
    size: int
    where: Invocation | None
    other: Invocation | None
    count: int
    detail: str = ""

    @property
    def line(self) -> int:
        """The source line, 0 where there is none."""
        return self.where.line if self.where else 0

    def __str__(self) -> str:
        memory = f" in {self.buffer!r} at byte {self.offset} ({self.size} bytes)" if self.buffer else ""
        who = f": {self.where}" if self.where else ""
        other = f", against {self.other}" if self.other else ""
        often = f", {self.count} times" if self.count > 1 else ""
        return f"{self.kind}{memory}{who}{other}{often}{f'; {self.detail}' if self.detail else ''}"


@dataclass(frozen=True, slots=True)
class Report:
    """What a checked run of a kernel found. False when anything was."""

    kernel: str
    source: str
    findings: tuple[Finding, ...] = field(default=())
    orders: int = 0

    def __bool__(self) -> bool:
        return not self.findings

    def __str__(self) -> str:
        orders = f", {self.orders} further thread orders" if self.orders else ""
        if not self.findings:
            return f"{self.kernel} ({self.source}): nothing found{orders}"
        lines = [f"{self.kernel} ({self.source}): {len(self.findings)} found{orders}"]
        for finding in self.findings:
            place = f"{self.source}:{finding.line}: " if finding.line else ""
            lines.append(f"  {place}{finding}")
        return "\n".join(lines)

    def kinds(self) -> set[Kind]:
        """Returns the kinds of what was found."""
        return {finding.kind for finding in self.findings}

    def raise_for_findings(self) -> None:
        """Raises CheckFailedError when anything was found."""
        if self.findings:
            raise CheckFailedError(self)


class CheckFailedError(UmdError):
    """A checked kernel has faults. Facts: `kernel`, `findings` (as text)."""

    kernel: str
    findings: Sequence[str]

    def __init__(self, report: Report) -> None:
        super().__init__(str(report), kernel=report.kernel, findings=tuple(map(str, report.findings)))


def run_checked(
    function: HostFunction,
    grid: Sequence[int],
    block: Sequence[int],
    values: tuple[Any, ...],
    shared_bytes: int,
    *,
    outputs: Sequence[str | int] = (),
    orders: int = 0,
) -> Report:
    """Returns the findings of a run in launch order, and of `orders` runs in random thread orders."""
    packed = pack(function, values)
    memory = arrays(values)
    unset = {_position(function, output) for output in outputs}
    ranges = [Range(function.parameters[i].name, *_range(array), i not in unset) for i, array in memory.items()]
    before = {i: array.copy() for i, array in memory.items()}
    findings: dict[tuple[Any, ...], Finding] = {}
    results: list[dict[int, npt.NDArray[Any]]] = []
    for seed in range(orders, -1, -1):  # the launch order last: the arrays keep its results
        for i, array in memory.items():
            if array.flags.writeable:
                array[...] = before[i]
        for finding in check_launch(function, grid, block, shared_bytes, packed, ranges, seed=seed):
            findings[finding.kind, finding.buffer, finding.line, finding.other and finding.other.line] = finding
        results.append({i: array.copy() for i, array in memory.items()})
    found = list(findings.values())
    if not any(finding.kind in (Kind.UNWRITTEN_OUTPUT, Kind.DIVERGENT_BARRIER) for finding in found):
        found += _compare(function, results)
    found.sort(key=lambda finding: _KINDS.index(finding.kind))
    return Report(function.name, function.module.source_name, tuple(found), orders)


def _position(function: HostFunction, output: str | int) -> int:
    names = [parameter.name for parameter in function.parameters]
    if isinstance(output, int) and 0 <= output < len(names):
        return output
    if output in names:
        return names.index(str(output))
    raise AttributeValueError(function.name, "outputs", "no such parameter", value=output, wanted=", ".join(names))


@dataclass(frozen=True, slots=True)
class Box:
    """Elements of a range: the first byte of each, by offset, shape and strides in bytes."""

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Range:
    """Bytes that a checked kernel may touch.

    `known`: its contents count as set; else it must be written wholly, or, with a `box`, each element of it.
    """

    name: str
    address: int
    size: int
    known: bool = True
    box: Box | None = None


def check_launch(
    function: HostFunction,
    grid: Sequence[int],
    block: Sequence[int],
    shared_bytes: int,
    packed: Sequence[Any],
    ranges: Sequence[Range],
    *,
    seed: int = 0,
) -> list[Finding]:
    """Returns the findings of one launch of a checked kernel, which may touch these ranges and no others."""
    with _checking:
        handle = function.module.handle
        handle.umd_forget()
        for known in ranges:
            handle.umd_watch(ctypes.c_void_p(known.address), ctypes.c_size_t(known.size), ctypes.c_int(known.known))
        failure = ""
        try:
            function.launch(grid, block, shared_bytes, packed, seed=seed)
        except LaunchError as error:
            failure = error.reason
        try:
            return _collect(function, grid, block, ranges, failure)
        finally:
            handle.umd_forget()


def _range(array: npt.NDArray[Any]) -> tuple[int, int]:
    low, high = np.lib.array_utils.byte_bounds(array)
    return low, high - low


def _collect(
    function: HostFunction, grid: Sequence[int], block: Sequence[int], ranges: Sequence[Range], failure: str
) -> list[Finding]:
    names = [known.name for known in ranges]
    handle = function.module.handle
    first = ctypes.POINTER(_Finding)()
    handle.umd_findings.restype = ctypes.c_size_t
    count = handle.umd_findings(ctypes.byref(first))
    raw = [first[i] for i in range(count)]
    lines = source_lines(function.module, sorted({pc for r in raw for pc in (r.pc, r.other_pc) if pc}))
    found = [_record(r, grid, block, names, lines) for r in raw]
    stopped = bool(failure) or any(f.kind.name.startswith("OUT_OF_BOUNDS") for f in found)
    if not stopped:
        found += _unwritten(handle, ranges)
    if failure and not found:
        raise LaunchError(function.name, failure)
    return found


def _record(
    raw: Any, grid: Sequence[int], block: Sequence[int], names: Sequence[str], lines: dict[int, int]
) -> Finding:
    kind = _KINDS[raw.kind]
    variable: bytes = raw.name or b""
    name: str = names[int(raw.buffer)] if raw.buffer >= 0 else variable.decode()
    if not name and kind in (Kind.OUT_OF_BOUNDS_READ, Kind.OUT_OF_BOUNDS_WRITE):
        name = "no buffer"

    def at(linear_block: int, thread: int, pc: int, line: int) -> Invocation:
        return Invocation(_position_of(linear_block, grid), _position_of(thread, block), lines.get(pc, 0) or line)

    where = at(raw.block, raw.thread, raw.pc, raw.line)
    has_other = bool(raw.other_pc) and (raw.block, raw.thread) != (raw.other_block, raw.other_thread)
    has_other = has_other or (kind in (Kind.DIVERGENT_BARRIER, Kind.INACTIVE_SOURCE) and raw.thread != raw.other_thread)
    other = at(raw.other_block, raw.other_thread, raw.other_pc, raw.other_line) if has_other else None
    return Finding(kind, name, raw.offset, raw.size, where, other, raw.count)


def _position_of(linear: int, sizes: Sequence[int]) -> tuple[int, int, int]:
    x, y, _ = (*sizes, 1, 1)[:3]
    return linear % x, linear // x % y, linear // (x * y)


def _unwritten(handle: ctypes.CDLL, ranges: Sequence[Range]) -> list[Finding]:
    handle.umd_written.restype = ctypes.c_void_p
    found: list[Finding] = []
    for index, wanted in enumerate(ranges):
        address = handle.umd_written(ctypes.c_size_t(index))
        if not address or not wanted.size:
            continue
        written = np.frombuffer(memoryview((ctypes.c_uint8 * wanted.size).from_address(address)), np.uint8)
        box = wanted.box or Box(0, (wanted.size,), (1,))
        unset = np.ndarray(box.shape, np.uint8, written, box.offset, box.strides) == 0
        if unset.any():
            count, place = int(unset.sum()), np.unravel_index(int(unset.argmax()), box.shape)
            first = box.offset + sum(int(i) * stride for i, stride in zip(place, box.strides, strict=True))
            what = f"{count} elements, of element {tuple(map(int, place))} on," if wanted.box else f"{count} bytes"
            detail = f"{what} were never written"
            found.append(Finding(Kind.UNWRITTEN_OUTPUT, wanted.name, first, count, None, None, 1, detail))
    return found


def _compare(function: HostFunction, results: list[dict[int, npt.NDArray[Any]]]) -> list[Finding]:
    """Returns the buffers whose contents differ between thread orders by more than the rounding of sums."""
    found: list[Finding] = []
    for index, reference in results[-1].items():
        different = 0
        offset = 0
        for result in results[:-1]:
            unequal = ~_close(result[index], reference)
            if unequal.any():
                different += 1
                offset = int(np.flatnonzero(unequal)[0]) * reference.itemsize
        if different:
            detail = f"{different} of {len(results) - 1} random orders gave another result"
            name = function.parameters[index].name
            found.append(Finding(Kind.ORDER_DEPENDENT, name, offset, reference.itemsize, None, None, different, detail))
    return found


def _close(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    if a.dtype.kind in "iub":
        return np.asarray(a == b).ravel()
    if a.dtype.kind == "V" and a.dtype.names is not None:
        return np.asarray(a == b).ravel()
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    relative = {2: 1e-2, 4: 1e-4, 8: 1e-9}.get(a.dtype.itemsize, 1e-4)
    return np.isclose(a.astype(wide), b.astype(wide), rtol=relative, atol=relative, equal_nan=True).ravel()
