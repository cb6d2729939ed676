"""The rows of fused attention: forward with the log-sum-exp of each query's scores, and its gradients."""

from __future__ import annotations

from umd_core import dtypes
from umd_core.kernels.row import RANK_CLASSES, Extent, Field, KernelRow, Operand

UNBOUNDED = (1 << 62) - 1
"""As `low` (negative) or `high`: no bound on that side."""

_EXTENTS = (Extent("outer", "rank"), Extent("queries"), Extent("keys"), Extent("depth"), Extent("width"))
_QUERY, _KEY = ("outer", "queries", "depth"), ("outer", "keys", "depth")
_VALUE, _RESULT = ("outer", "keys", "width"), ("outer", "queries", "width")
_SCORES, _ROW = ("outer", "queries", "keys"), ("outer", "queries")
_READ = (
    Operand("q", "r", "T", _QUERY),
    Operand("k", "r", "T", _KEY),
    Operand("v", "r", "T", _VALUE),
    Operand("bias", "r", "T", _SCORES),
)
_SCORE = (
    "s[i, j] = scale · (sum over d of q[i, d] · k[j, d]) + bias[i, j] where i + low <= j <= i + high, else the key is "
    "left out"
)
_WORK = (("outer", "queries", "keys", "depth"), ("outer", "queries", "keys", "width"), ("outer", "queries", "width"))


def _row(
    name: str, operands: tuple[Operand, ...], mathematics: str, work: tuple[tuple[str, ...], ...], geometry: str
) -> KernelRow:
    return KernelRow(
        name=name,
        family="attention",
        types=(("T", dtypes.FLOATS), ("S", (dtypes.float32, dtypes.float64))),
        extents=_EXTENTS,
        operands=operands,
        fields=(Field("scale", "f64"), Field("low", "i64"), Field("high", "i64"), Field("guarded", "u32")),
        sizes=(("rank", RANK_CLASSES),),
        level=1,
        work=work,
        geometry=geometry,
        grid="lse" if geometry == "elements" else "",
        tolerance=256.0,
        mathematics=mathematics,
        source="Dao, Fu, Ermon, Rudra and Ré, FlashAttention, arXiv:2205.14135",
    )


ROWS: tuple[KernelRow, ...] = (
    _row(
        "attention_kernel",
        (*_READ, Operand("y", "w", "T", _RESULT), Operand("lse", "w", "S", _ROW)),
        f"for each outer, {_SCORE}; lse[i] = log(sum over j of exp(s[i, j])); y[i, w] = sum over j of "
        "exp(s[i, j] - lse[i]) · v[j, w]. A query all of whose keys have the score -inf, or are left out, gives y NaN "
        "and lse NaN; with guarded 1 or 2, or where keys is 0, it gives y 0 and lse -inf; with 2 so does a query that "
        "has a score NaN or +inf",
        _WORK,
        "elements",
    ),
    _row(
        "attention_grad_kernel",
        (
            *_READ,
            Operand("y", "r", "T", _RESULT),
            Operand("dy", "r", "T", _RESULT),
            Operand("lse", "r", "S", _ROW),
            Operand("dq", "w", "T", _QUERY),
            Operand("dk", "w", "T", _KEY),
            Operand("dv", "w", "T", _VALUE),
        ),
        f"for each outer, {_SCORE}; p[i, j] = exp(s[i, j] - lse[i]), 0 where lse[i] is -inf and guarded is not 0; "
        "ds[i, j] = p[i, j] · sum over w of dy[i, w] · (v[j, w] - y[i, w]); "
        "dq[i, d] = scale · sum over j of ds[i, j] · k[j, d]; "
        "dk[j, d] = scale · sum over i of ds[i, j] · q[i, d]; dv[j, w] = sum over i of p[i, j] · dy[i, w]",
        (*_WORK, ("outer", "queries", "depth"), ("outer", "keys", "depth"), ("outer", "keys", "width")),
        "rows",
    ),
)
