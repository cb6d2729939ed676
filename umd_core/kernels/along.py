"""The rows that go along one axis: scans (cumulative sums and their kin), sorting and the first of the sorted order."""

from __future__ import annotations

from umd_core import dtypes
from umd_core.kernels.row import RANK_CLASSES, Extent, Field, KernelRow, Operand

_SIZES = (("outer_rank", RANK_CLASSES),)
_OUTER = Extent("outer", "outer_rank")
_WHOLE, _FIRST = ("outer", "length"), ("outer", "count")


def _scan(name: str, program: str, what: str, edges: str) -> KernelRow:
    return KernelRow(
        name=f"scan_{name}_kernel",
        family="scan",
        types=(("T", dtypes.NUMERIC),),
        extents=(_OUTER, Extent("length")),
        operands=(Operand("x", "r", "T", _WHOLE), Operand("out", "w", "T", _WHOLE)),
        fields=(Field("exclusive", "u32"), Field("reverse", "u32")),
        sizes=_SIZES,
        program=program,
        level=1,
        geometry="rows",
        alias=(("out", "x"),),
        tolerance=256.0,
        mathematics=f"out[o, i] = {what} of x[o, j] over j <= i, or j < i with exclusive 1; with reverse 1 over "
        f"j >= i, or j > i; {edges}",
    )


_WIDE = "floats in float32 or more"
SCANS = (
    _scan("sum", "add", "sum", f"0 over nothing; {_WIDE}"),
    _scan("prod", "mul", "product", f"1 over nothing; {_WIDE}"),
    _scan("max", "max", "largest", "NaN wins; the least value over nothing"),
    _scan("min", "min", "smallest", "NaN wins; the greatest value over nothing"),
)

SORT = KernelRow(
    name="sort_kernel",
    family="sort",
    types=(("T", dtypes.ALL),),
    extents=(_OUTER, Extent("length"), Extent("count")),
    operands=(
        Operand("x", "r", "T", _WHOLE),
        Operand("values", "w", "T", _FIRST),
        Operand("index", "w", "int64", _FIRST),
    ),
    fields=(Field("descending", "u32"),),
    sizes=_SIZES,
    level=1,
    geometry="rows",
    work=(_WHOLE, _FIRST),
    mathematics="values[o, j] = x[o, k] with k = index[o, j], the j-th position of x[o, :] in ascending order, or "
    "descending with descending 1; NaN is greater than every number, and of equal elements the first comes first; "
    "from j = length on the value is 0 and the index -1",
)

ROWS: tuple[KernelRow, ...] = (*SCANS, SORT)
