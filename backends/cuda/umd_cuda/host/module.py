"""A compiled source: its kernels, their parameters, and how to launch them."""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from umd_core.errors import InputCountError, LimitError
from umd_cuda.host import toolchain
from umd_cuda.host.errors import LaunchError, UnknownKernelError
from umd_cuda.host.source import KernelSource, transform

Dimensions = Sequence[int]
_MAX_THREADS = 1024
_STACK_BYTES = 128 * 1024
_MAX_SHARED = 228 * 1024
_LIMITS = (("gridDim.x", 2**31 - 1), ("gridDim.y", 65535), ("gridDim.z", 65535))
_BLOCK_LIMITS = (("blockDim.x", 1024), ("blockDim.y", 1024), ("blockDim.z", 64))
# One launch at a time in a process: the fibers of all modules share their stacks.
launch_lock: threading.Lock = threading.Lock()
_stacks: list[mmap.mmap] = []


class _Parameter(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_uint32), ("size", ctypes.c_uint32), ("alignment", ctypes.c_uint32),
        ("element", ctypes.c_uint32), ("element_size", ctypes.c_uint32), ("constant", ctypes.c_uint32),
    )  # fmt: skip


_ENTRY = ctypes.CFUNCTYPE(ctypes.c_int, *(ctypes.c_uint,) * 7, ctypes.c_void_p, ctypes.c_uint64)


class _Kernel(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p), ("run", ctypes.c_void_p), ("parameters", ctypes.POINTER(_Parameter)),
        ("parameter_count", ctypes.c_uint32), ("fibers", ctypes.c_uint32),
    )  # fmt: skip


class _Variable(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("address", ctypes.c_void_p), ("size", ctypes.c_size_t))


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter as the compiler sees it; sizes in bytes.

    `kind`: p pointer, i signed, u unsigned, f float, b bool, h float16, g bfloat16, s struct. A pointer's `element` is
    the kind of the scalar that it points to (v: void, s: struct), `constant` whether the kernel may only read there.
    """

    name: str
    kind: str
    size: int
    alignment: int
    element: str
    element_size: int
    constant: bool


class HostFunction:
    """A kernel of a compiled module."""

    module: HostModule
    name: str
    parameters: tuple[Parameter, ...]
    fibers: bool

    def __init__(
        self, module: HostModule, name: str, entry: int, parameters: tuple[Parameter, ...], fibers: bool
    ) -> None:
        self.module, self.name, self.parameters, self.fibers = module, name, parameters, fibers
        self._run = _ENTRY(entry)
        self._pack = ctypes.c_char_p * len(parameters)

    def arguments(self, packed: Sequence[Any]) -> ctypes.Array[Any]:
        """Returns the array of argument pointers for `launch`, to be used again as long as the values stay.

        Each argument is the bytes of one parameter, or a ctypes value that holds them.
        """
        if len(packed) != len(self.parameters):
            raise InputCountError(self.name, len(packed), len(self.parameters), len(self.parameters), "arguments")
        if all(type(value) is bytes for value in packed):
            return self._pack(*packed)  # pointers to the bytes themselves; the array keeps them alive
        pointers = (ctypes.c_void_p * len(packed))()
        kept = [ctypes.create_string_buffer(v, len(v)) if isinstance(v, bytes) else v for v in packed]
        for index, value in enumerate(kept):
            pointers[index] = ctypes.addressof(value)
        pointers.kept = kept  # type: ignore[attr-defined]  # the array keeps what it points to alive
        return pointers

    def launch(
        self,
        grid: Dimensions,
        block: Dimensions,
        shared_bytes: int,
        packed: Sequence[Any] | ctypes.Array[Any],
        *,
        seed: int = 0,
    ) -> None:
        """Runs the kernel to its end. `packed`: one value per parameter, or what `arguments` returned.

        Raises:
            LimitError: grid, block or workgroup memory beyond what a device allows.
            LaunchError: a barrier or warp operation that can never be met.
        """
        array = packed if isinstance(packed, ctypes.Array) else self.arguments(packed)
        gx, gy, gz = (*grid, 1, 1)[:3]
        bx, by, bz = (*block, 1, 1)[:3]
        if not (0 < bx * by * bz <= _MAX_THREADS and bz <= 64 and 0 < gy <= 65535 and 0 < gz <= 65535 and gx > 0):
            _refuse(grid, block)
        if not 0 <= shared_bytes <= _MAX_SHARED:
            raise LimitError("dynamic workgroup memory in bytes", shared_bytes, _MAX_SHARED, op=self.name)
        with launch_lock:
            failed = self._run(gx, gy, gz, bx, by, bz, shared_bytes, ctypes.addressof(array), seed)
            reason = self.module.message() if failed else ""
        if failed:
            raise LaunchError(self.name, reason)


def _refuse(grid: Dimensions, block: Dimensions) -> None:
    for values, limits in ((grid, _LIMITS), (block, _BLOCK_LIMITS)):
        if not 1 <= len(values) <= 3:
            raise LimitError("the number of dimensions", len(values), 3)
        for value, (name, limit) in zip(values, limits, strict=False):
            if not 1 <= value <= limit:
                raise LimitError(name, value, limit)
    threads = 1
    for value in block:
        threads *= value
    raise LimitError("the number of threads in a block", threads, _MAX_THREADS)


class HostModule:
    """A CUDA source compiled for this CPU."""

    library: Path
    source_name: str
    checked: bool

    def __init__(
        self, library: Path, kernels: Sequence[KernelSource], source_name: str, checked: bool, source: str = ""
    ) -> None:
        self.library, self.source_name, self.checked, self._source = library, source_name, checked, source
        self._handle = ctypes.CDLL(str(library))
        self._handle.umd_message.restype = ctypes.c_char_p
        self._handle.umd_set_stacks(ctypes.c_void_p(_stacks_address()))
        names = {kernel.name: kernel.parameters for kernel in kernels}
        found = (self._function(entry, names) for entry in self._table("umd_kernels", _Kernel))
        self._functions = {function.name: function for function in found}

    def _table(self, symbol: str, kind: Any) -> list[Any]:
        first = kind.in_dll(self._handle, symbol)
        entries = []
        address = ctypes.addressof(first)
        while (entry := kind.from_address(address)).name:
            entries.append(entry)
            address += ctypes.sizeof(kind)
        return entries

    def _function(self, entry: Any, names: dict[str, tuple[str, ...]]) -> HostFunction:
        name = entry.name.decode()
        known = names.get(name, ())
        parameters = tuple(
            Parameter(
                known[i] if i < len(known) and known[i] else f"argument {i}",
                chr(p.kind), p.size, p.alignment, chr(p.element) if p.element else "", p.element_size, bool(p.constant),
            )
            for i, p in enumerate(entry.parameters[j] for j in range(entry.parameter_count))
        )  # fmt: skip
        return HostFunction(self, name, entry.run, parameters, bool(entry.fibers))

    @property
    def kernels(self) -> tuple[str, ...]:
        """The names of the kernels."""
        return tuple(self._functions)

    def function(self, name: str) -> HostFunction:
        """Returns a kernel by its name, or by the expression under which it was asked for (`scale<float>`).

        Raises:
            UnknownKernelError: there is none.
        """
        found = self._functions.get(name)
        if found is None:
            squeezed = "".join(name.split())
            found = next((f for key, f in self._functions.items() if "".join(key.split()) == squeezed), None)
        if found is None:
            raise UnknownKernelError(name, self.kernels)
        return found

    def variable(self, name: str) -> memoryview:
        """Returns the bytes of a `__constant__` or `__device__` variable, to read and write.

        Raises:
            UnknownKernelError: there is none.
        """
        variables = {v.name.decode(): v for v in self._table("umd_variables", _Variable)}
        if name not in variables:
            raise UnknownKernelError(name, tuple(variables))
        entry = variables[name]
        return memoryview((ctypes.c_ubyte * entry.size).from_address(entry.address)).cast("B")

    def line(self, number: int) -> str:
        """Returns a line of the source, counted from 1; "" where there is none."""
        lines = self._source.splitlines()
        return lines[number - 1].strip() if 0 < number <= len(lines) else ""

    def message(self) -> str:
        """Returns what the last failed launch said."""
        text: bytes = self._handle.umd_message()
        return text.decode(errors="replace")

    @property
    def handle(self) -> ctypes.CDLL:
        """The loaded library."""
        return self._handle


def _stacks_address() -> int:
    if not _stacks:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        _stacks.append(mmap.mmap(-1, _MAX_THREADS * _STACK_BYTES, flags=flags))
    return ctypes.addressof(ctypes.c_char.from_buffer(_stacks[0]))


def compile(
    source: str,
    options: Sequence[str] = (),
    *,
    name: str = "kernel.cu",
    checked: bool = False,
    name_expressions: Sequence[str] = (),
) -> HostModule:
    """Returns the module of a CUDA C source.

    Args:
        source: the text.
        options: NVRTC's options (-D, -I, --std, --fmad); those that only a GPU understands are ignored.
        name: how messages name the source.
        checked: whether memory accesses, races and barriers are checked (see umd_cuda.host.check).
        name_expressions: instances of kernel templates, or kernels that a macro declares.

    Raises:
        RefusedSourceError, CompileError, CacheError, NoCompilerError: as their names say.
    """
    unit = transform(source, name, checked=checked, expressions=name_expressions)
    library = toolchain.build(unit.text, name, options, checked=checked)
    return HostModule(library, unit.kernels, name, checked, source)
