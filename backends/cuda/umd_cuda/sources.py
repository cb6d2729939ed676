"""CUDA C of every kernel of the table: which file, what is generated before it, and how it is launched."""

from __future__ import annotations

import functools
import importlib.resources
import re
from collections.abc import Callable
from typing import NamedTuple

from umd_core import dtypes
from umd_core.dtypes import DType
from umd_core.kernels import KernelRecord
from umd_core.kernels.geometry import Flat
from umd_cuda.geometry import Geometry, launch_geometry
from umd_cuda.snippets import HALVES, INCLUDES, RAW, TYPES, element_function, moves

__all__ = ["NARROW", "Geometry", "KernelSource", "launch_geometry", "needs_wide", "source_for"]

NARROW = 2**31 - 2**26
"""Below this, element counts and positions are 32-bit numbers, and so is a count plus the invocations of a grid."""


class KernelSource(NamedTuple):
    """A kernel as text.

    Attributes:
        text: complete CUDA C; only `cuda_fp16.h` and `cuda_bf16.h` are included.
        entry: its `extern "C"` name.
        options: for the compiler.
    """

    text: str
    entry: str
    options: tuple[str, ...] = ()


@functools.lru_cache(maxsize=4096)
def source_for(record: KernelRecord, wide: bool = False) -> KernelSource | None:
    """Returns the source of a kernel, None when there is none.

    The entry takes the bindings' pointers in order, a `Status*` where the row has one, and the parameter block by
    value. It is right for any grid; the block is that of `launch_geometry`.

    Args:
        record: the kernel with its types and array lengths.
        wide: whether positions are 64-bit numbers; see `needs_wide`.
    """
    file = _FILES.get(record.row.name) or _FILES.get(record.row.family)
    if file is None:
        return None
    entry = record.row.name
    parts = [
        *(text for dtype, text in INCLUDES.items() if dtype in record.types),
        f"#define WIDE {int(wide)}\n",
        *(f"#define {name.upper()} {size}\n" for (name, _), size in zip(record.row.sizes, record.sizes, strict=True)),
        _parameters(record),
        _read("types.cuh"),
        _DEFINITIONS[record.row.family](record),
        _read(file).replace("UMD_SIGNATURE", _signature(record, entry)),
    ]
    return KernelSource("".join(parts), entry)


def needs_wide(record: KernelRecord, flat: Flat) -> bool:
    """Returns whether a launch needs 64-bit positions: a box, a count or a window reaches beyond `NARROW`."""
    if any(bound >= NARROW for bound in record.windows(flat)):
        return True
    for box in record.boxes:
        reach, count = abs(flat[box.offset]), 1
        for extent, stride in box.axes:
            reach += flat[extent] * abs(flat[stride])
            count *= max(flat[extent], 1)
        if reach >= NARROW or count >= NARROW:
            return True
    taps = 1
    for extent in record.extent_at.get("kernel", ()):
        taps *= max(flat[extent], 1)
    return bool(taps >= NARROW)


# text


@functools.cache
def _read(name: str) -> str:
    """Returns a file of the package with its quoted includes put in place."""
    text = importlib.resources.files("umd_cuda").joinpath("kernels", name).read_text("utf-8")
    return re.sub(r'^#include "(\w+\.cuh)"\n', lambda match: _read(match[1]), text, flags=re.MULTILINE)


_C_TYPES = {"u32": "unsigned", "u64": "unsigned long long", "i64": "long long", "f64": "double"}


def _parameters(record: KernelRecord) -> str:
    """Returns the C struct whose memory is the parameter block."""
    lines = []
    for name, kind in record.row.field_types():
        count = record.index_of[name][1]
        lines.append(f"  {_C_TYPES[kind.partition('[')[0]]} {name}{'' if count is None else f'[{count}]'};\n")
    check = f'static_assert(sizeof(Parameters) == {record.size}, "the block and the struct disagree");\n'
    return "struct Parameters {\n" + "".join(lines) + "};\n" + check


def _signature(record: KernelRecord, entry: str) -> str:
    pointers = []
    for operand in record.row.operands:
        const = "" if operand.writes else "const "
        pointers.append(f"{const}{_storage(record, record.dtype(operand.type))}* {operand.name}")
    if record.row.status:
        pointers.append("Status* status")
    return f'extern "C" __global__ void {entry}({", ".join([*pointers, "const Parameters args"])})'


def _storage(record: KernelRecord, dtype: DType) -> str:
    return RAW[dtype.size] if _is_raw(record) else TYPES[dtype].storage


def _is_raw(record: KernelRecord) -> bool:
    """Returns whether a kernel moves elements without looking at them."""
    family, program = record.row.family, record.row.program
    return (
        family == "gather" or (family == "scatter" and program == "set") or (family == "expression" and moves(record))
    )


# definitions


def _define(**texts: object) -> str:
    return "".join(f"#define {name} {text}\n" for name, text in texts.items())


def _number(dtype: DType, number: str = "") -> str:
    """Returns what a kernel computes in, how it loads and how it stores: Number, NUMBER(v), STORE_NUMBER(v), T."""
    text = TYPES[dtype]
    number = number or text.total
    functions = {
        "NUMBER(v)": f"(({number}){text.load.format('v')})",
        "STORE_NUMBER(v)": text.store.format("v"),
    }
    return f"typedef {text.storage} T;\ntypedef {number} Number;\n" + _define(**functions)


def _float_functions(number: str) -> str:
    suffix = "f" if number == "float" else ""
    functions = {name.upper(): f"{name}{suffix}" for name in ("exp", "log", "sqrt")}
    return _define(**functions, INFINITE="((Number)__int_as_float(0x7f800000))")


def _expression(record: KernelRecord) -> str:
    names = [operand.name for operand in record.row.operands]
    bound = {operand.name: record.dtype(operand.type) for operand in record.row.operands}
    first = TYPES[record.types[0]]
    kinds = {"T": first.storage, "T_value": first.value, "W": first.total}
    kinds |= {f"{name}_t": _storage(record, dtype) for name, dtype in bound.items()}
    lists = {
        "OPERANDS(M)": " ".join(f"M({name})" for name in names),
        "INPUTS(M)": " ".join(f"M({name})" for name in names[:-1]),
        "ARGUMENTS(M)": ", ".join(f"M({name})" for name in names[:-1]),
        "PACK": 16 // max(dtype.size for dtype in bound.values()),
    }
    typedefs = "".join(f"typedef {text} {name};\n" for name, text in kinds.items())
    return typedefs + element_function(record) + _define(**lists)


_LARGER = "((a) != (a) || (a) > (b) ? (a) : (b))"
_SMALLER = "((a) != (a) || (a) < (b) ? (a) : (b))"
_COMBINERS = {"add": "((a) + (b))", "mean": "((a) + (b))", "mul": "((a) * (b))", "max": _LARGER, "min": _SMALLER}


def _reduce(record: KernelRecord) -> str:
    dtype, program = record.types[0], record.row.program
    compares = program in ("max", "min")
    number = _number(dtype, TYPES[dtype].value if compares else "")
    first = _extreme(dtype, least=program == "max") if compares else str(int(program == "mul"))
    more = {"FIRST": first, "IS_MEAN": int(program == "mean"), "COMBINE(a, b)": _COMBINERS[program]}
    return number + _define(**more)


def _extreme(dtype: DType, *, least: bool) -> str:
    """Returns the least or greatest value of a type as text."""
    if dtype.is_float:
        return f"((Number){'-' if least else ''}__int_as_float(0x7f800000))"
    bits = 8 * dtype.size
    if dtype.kind == "u":
        return "((Number)0)" if least else f"((Number){2**bits - 1}ULL)"
    return f"((Number)({'-' if least else ''}{2 ** (bits - 1) - 1}LL{' - 1' if least else ''}))"


def _arg_reduce(record: KernelRecord) -> str:
    dtype = record.types[0]
    sign = ">" if record.row.program == "max" else "<"
    return _number(dtype, TYPES[dtype].value) + _define(**{"BEFORE(a, b)": f"((a) {sign} (b))"})


def _rows(record: KernelRecord) -> str:
    dtype = record.types[0]
    number = "double" if dtypes.float64 in record.types else "float"
    text = _number(dtype, number) + _float_functions(number)
    if len(record.types) == 2:
        return text + f"typedef {TYPES[record.types[1]].storage} S;\n"
    return text + _define(IS_LOG=int("log" in record.row.name), KEEPS=int(dtype not in HALVES))


def _indexed(record: KernelRecord) -> str:
    dtype, index = record.types
    kinds = f"typedef {TYPES[index].storage} I;\n"
    if record.row.program == "add":
        flags = _define(IS_ADD=1, ROUNDS=int(dtype in HALVES))
        return kinds + _number(dtype) + flags
    return kinds + f"typedef {RAW[dtype.size]} T;\n" + _define(IS_ADD=0, ROUNDS=0)


def _plain(record: KernelRecord) -> str:
    return _number(record.types[0])


def _iota(record: KernelRecord) -> str:
    # positions beyond 2^24 are not float32 numbers
    return _number(record.types[0], "double" if record.types[0] is dtypes.float32 else "")


def _floats(record: KernelRecord) -> str:
    number = TYPES[record.types[0]].value
    return _plain(record) + _float_functions(number) + _define(HAS_INDEX=int("index" in record.row.name))


_FILES = {
    "expression": "expression.cu",
    "reduce": "reduce.cu",
    "arg_reduce": "arg_reduce.cu",
    "gather": "gather.cu",
    "scatter": "scatter.cu",
    "iota": "iota.cu",
    "gemm": "gemm.cu",
    "conv_kernel": "conv.cu",
    "conv_input_grad_kernel": "conv_input_grad.cu",
    "conv_weight_grad_kernel": "conv_weight_grad.cu",
    "max_pool_kernel": "max_pool.cu",
    "max_pool_index_kernel": "max_pool.cu",
    "average_pool_kernel": "average_pool.cu",
    "average_pool_grad_kernel": "average_pool_grad.cu",
    "softmax_kernel": "softmax.cu",
    "log_softmax_kernel": "softmax.cu",
    "softmax_grad_kernel": "softmax_grad.cu",
    "log_softmax_grad_kernel": "softmax_grad.cu",
    "normalize_kernel": "normalize.cu",
    "sgd_kernel": "sgd.cu",
    "sgd_momentum_kernel": "sgd_momentum.cu",
    "adamw_kernel": "adamw.cu",
}
"""By kernel, or by family where its rows share a file."""

_DEFINITIONS: dict[str, Callable[[KernelRecord], str]] = {
    "expression": _expression,
    "reduce": _reduce,
    "arg_reduce": _arg_reduce,
    "gather": _indexed,
    "scatter": _indexed,
    "iota": _iota,
    "gemm": _plain,
    "conv": _floats,
    "pool": _floats,
    "rows": _rows,
    "update": _floats,
}
