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
from umd_core.kernels.random import DIGITS
from umd_cuda import along, chains, scatters
from umd_cuda.geometry import Geometry, launch_geometry
from umd_cuda.plans import EXTRA, PLANNED, Planner, plan_for
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
        plan: says in which passes a launch is made; None: it is one launch. See `umd_cuda.plans`.
    """

    text: str
    entry: str
    options: tuple[str, ...] = ()
    plan: Planner | None = None


@functools.lru_cache(maxsize=4096)
def source_for(
    record: KernelRecord, wide: bool = False, planned: bool = True, any_order: bool = False
) -> KernelSource | None:
    """Returns the source of a kernel, None when there is none.

    The entry takes the bindings' pointers in order, a `Status*` where the row has one, and the parameter block by
    value, with a plan followed by scratch address and pass. It is right for any grid; the block is that of
    `launch_geometry`.

    Args:
        record: the kernel with its types and array lengths.
        wide: whether positions are 64-bit numbers; see `needs_wide`.
        planned: whether a launch may be made in passes, where the kernel has a plan.
        any_order: whether a scatter may add and multiply floats by atomics.
    """
    planned = planned and record.row.family in PLANNED
    by_atomics = scatters.is_unordered(record) or (any_order and scatters.needs_order(record))
    file = "scatter_atomic.cu" if by_atomics else _file(record, planned)
    if file is None:
        return None
    entry = record.row.name
    parts = [
        *(text for dtype, text in INCLUDES.items() if dtype in record.types),
        f"#define WIDE {int(wide)}\n#define PLANNED {int(planned)}\n",
        *(f"#define {name.upper()} {size}\n" for (name, _), size in zip(record.row.sizes, record.sizes, strict=True)),
        _parameters(record, planned),
        _read("types.cuh"),
        _scatter_by_atomics(record) if by_atomics else _DEFINITIONS[record.row.family](record),
        _read(file).replace("UMD_SIGNATURE", _signature(record, entry)),
    ]
    return KernelSource("".join(parts), entry, plan=plan_for if planned else None)


def _file(record: KernelRecord, planned: bool) -> str | None:
    if planned and record.row.name in _TILED:
        return _TILED[record.row.name]
    if record.row.family == "scatter" and scatters.is_unordered(record):
        return "scatter_atomic.cu"
    return _FILES.get(record.row.name) or _FILES.get(record.row.family)


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
    meetings = 1  # of taps and outputs: every one may meet one input
    for extent in (*record.extent_at.get("kernel", ()), *record.extent_at.get("output", ())):
        meetings *= max(flat[extent], 1)
    return bool(meetings >= NARROW)


# text


@functools.cache
def _read(name: str) -> str:
    """Returns a file of the package with its quoted includes put in place."""
    text = importlib.resources.files("umd_cuda").joinpath("kernels", name).read_text("utf-8")
    return re.sub(r'^#include "(\w+\.cuh)"\n', lambda match: _read(match[1]), text, flags=re.MULTILINE)


_C_TYPES = {"u32": "unsigned", "u64": "unsigned long long", "i64": "long long", "f64": "double"}


def _parameters(record: KernelRecord, planned: bool) -> str:
    """Returns the C struct whose memory is the parameter block, with what `plans.block_of` puts behind it."""
    lines = []
    for name, kind in record.row.field_types():
        count = record.index_of[name][1]
        lines.append(f"  {_C_TYPES[kind.partition('[')[0]]} {name}{'' if count is None else f'[{count}]'};\n")
    lines += ["  unsigned char* scratch;\n", "  unsigned long long pass;\n"] if planned else []
    size = record.size + planned * EXTRA.size
    check = f'static_assert(sizeof(Parameters) == {size}, "the block and the struct disagree");\n'
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
        family in ("gather", "sort")
        or (family == "scatter" and program == "set")
        or (family == "expression" and moves(record))
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


def _chain(record: KernelRecord) -> str:
    text = TYPES[record.types[0]]
    kinds = f"typedef {text.storage} T;\ntypedef {text.value} T_value;\n"
    return kinds + chains.definition(record) + _define(PACK=16 // record.types[0].size)


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


def _attention(record: KernelRecord) -> str:
    dtype, log_sum = record.types
    number = TYPES[dtype].value
    fused = _define(**{"FMA(a, b, c)": f"{'fmaf' if number == 'float' else 'fma'}(a, b, c)"})
    return _number(dtype, number) + _float_functions(number) + fused + f"typedef {TYPES[log_sum].storage} S;\n"


def _scan(record: KernelRecord) -> str:
    kinds = f"typedef {along.carry(record)} Carry;\n"
    return _reduce(record) + kinds


def _sort(record: KernelRecord) -> str:
    return along.sort_types(record) + _define(**along.sort_macros(record))


def _gather(record: KernelRecord) -> str:
    dtype, index = record.types
    return f"typedef {TYPES[index].storage} I;\ntypedef {RAW[dtype.size]} T;\n"


def _scatter(record: KernelRecord) -> str:
    if record.row.program == "set":
        return _gather(record) + _define(**scatters.in_order(record))
    return _combining(record) + _define(**scatters.in_order(record))


def _scatter_by_atomics(record: KernelRecord) -> str:
    return _combining(record) + _define(**scatters.by_atomics(record))


def _combining(record: KernelRecord) -> str:
    dtype, index = record.types
    return f"typedef {TYPES[index].storage} I;\n" + _number(dtype, scatters.number_of(record))


def _random(record: KernelRecord) -> str:
    dtype, program = record.types[0], record.row.program
    if program == "integer":
        return _plain(record) + _define(INTEGER=1)
    double = dtype is dtypes.float64
    digits = DIGITS[dtype if double or program == "uniform" else dtypes.float32]
    functions = {name.upper(): name if double else f"{name}f" for name in ("log", "sqrt", "cos", "sin")}
    return _plain(record) + _define(**{program.upper(): 1, "WIDE_WORDS": int(double), "DIGITS": digits}, **functions)


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
    "chain": "expression.cu",
    "reduce": "reduce.cu",
    "arg_reduce": "arg_reduce.cu",
    "scan": "scan.cu",
    "sort": "sort.cu",
    "gather": "gather.cu",
    "scatter": "scatter.cu",
    "iota": "iota.cu",
    "random": "random.cu",
    "attention_kernel": "attention.cu",
    "attention_grad_kernel": "attention_grad.cu",
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

_TILED = {
    "conv_kernel": "conv_tiled.cu",
    "conv_input_grad_kernel": "conv_input_grad_tiled.cu",
    "conv_weight_grad_kernel": "conv_weight_grad_tiled.cu",
}
"""What a kernel's file is where launches have plans, unless it is the same."""

_DEFINITIONS: dict[str, Callable[[KernelRecord], str]] = {
    "expression": _expression,
    "chain": _chain,
    "reduce": _reduce,
    "arg_reduce": _arg_reduce,
    "scan": _scan,
    "sort": _sort,
    "gather": _gather,
    "scatter": _scatter,
    "iota": _iota,
    "random": _random,
    "gemm": _plain,
    "conv": _floats,
    "pool": _floats,
    "rows": _rows,
    "attention": _attention,
    "update": _floats,
}
