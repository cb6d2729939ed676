"""The rows that are not expressions: reductions, indexing, matrix products, convolution, pooling, norms, updates."""

from __future__ import annotations

from umd_core import dtypes
from umd_core.kernels.row import RANK_CLASSES, Extent, Field, KernelRow, Operand

_T = (("T", dtypes.NUMERIC),)
_F = (("T", dtypes.FLOATS),)
_RANK = (("rank", RANK_CLASSES),)
_OUTER_INNER = (("outer_rank", RANK_CLASSES), ("inner_rank", RANK_CLASSES))
_SPATIAL = (("spatial", (1, 2, 3)),)


def _reduce(name: str, types: tuple[dtypes.DType, ...], program: str, mathematics: str) -> KernelRow:
    return KernelRow(
        name=f"reduce_{name}_kernel",
        family="reduce",
        types=(("T", types),),
        extents=(Extent("outer", "outer_rank"), Extent("inner", "inner_rank")),
        operands=(Operand("x", "r", "T", ("outer", "inner")), Operand("out", "w", "T", ("outer",))),
        sizes=_OUTER_INNER,
        program=program,
        geometry="rows",
        tolerance=256.0,
        mathematics=mathematics,
    )


def _arg_reduce(name: str) -> KernelRow:
    return KernelRow(
        name=f"arg{name}_kernel",
        family="arg_reduce",
        types=_T,
        extents=(Extent("outer", "outer_rank"), Extent("inner", "inner_rank")),
        operands=(Operand("x", "r", "T", ("outer", "inner")), Operand("out", "w", "int64", ("outer",))),
        fields=(Field("select_last", "u32"),),
        sizes=_OUTER_INNER,
        program=name,
        geometry="rows",
        mathematics=f"out[o] = row-major position in inner of the {name} of x[o, :]; the first one, or the last when "
        "select_last is 1; NaN wins over every number; 0 when inner is empty",
    )


REDUCTIONS = (
    _reduce("sum", dtypes.NUMERIC, "add", "out[o] = sum of x[o, :], 0 when empty; floats add up in float32 or more"),
    _reduce("prod", dtypes.NUMERIC, "mul", "out[o] = product of x[o, :], 1 when empty"),
    _reduce("mean", dtypes.FLOATS, "mean", "out[o] = sum of x[o, :] / count, NaN when empty"),
    _reduce("max", dtypes.NUMERIC, "max", "out[o] = largest of x[o, :], NaN wins; the least value when empty"),
    _reduce("min", dtypes.NUMERIC, "min", "out[o] = smallest of x[o, :], NaN wins; the greatest value when empty"),
    _arg_reduce("max"),
    _arg_reduce("min"),
)

_INDEXED = (Extent("extents", "rank"), Extent("axis"))
_INDEX_TYPES = (("T", dtypes.ALL), ("I", dtypes.INDEX))


def _scatter(
    name: str, program: str, types: tuple[dtypes.DType, ...], mathematics: str, tolerance: float = 256.0
) -> KernelRow:
    return KernelRow(
        name=name,
        family="scatter",
        types=(("T", types), ("I", dtypes.INDEX)),
        extents=_INDEXED,
        operands=(
            Operand("updates", "r", "T", ("extents",)),
            Operand("index", "r", "I", ("extents",)),
            Operand("out", "rw", "T", ("extents", "axis")),
        ),
        sizes=_RANK,
        program=program,
        work=(("extents",),),
        grid="updates",
        atomic=True,
        status=True,
        tolerance=tolerance,
        mathematics=mathematics + "; k in [-axis, axis) counts from the end when negative; any other k sets the status "
        "word. Updates apply in row-major order of e.",
    )


INDEXING = (
    KernelRow(
        name="gather_kernel",
        family="gather",
        types=_INDEX_TYPES,
        extents=_INDEXED,
        operands=(
            Operand("data", "r", "T", ("extents", "axis")),
            Operand("index", "r", "I", ("extents",)),
            Operand("out", "w", "T", ("extents",)),
        ),
        sizes=_RANK,
        work=(("extents",),),
        status=True,
        mathematics="out[e] = data[e, k] with k = index[e], in [-axis, axis), counting from the end when negative; any "
        "other k sets the status word and writes nothing",
    ),
    _scatter("scatter_kernel", "set", dtypes.ALL, "out[e, k] = updates[e] with k = index[e]"),
    _scatter("scatter_add_kernel", "add", dtypes.NUMERIC, "out[e, k] += updates[e] with k = index[e]"),
    _scatter("scatter_mul_kernel", "mul", dtypes.NUMERIC, "out[e, k] *= updates[e] with k = index[e]"),
    _scatter(
        "scatter_max_kernel",
        "max",
        dtypes.NUMERIC,
        "out[e, k] = the larger of out[e, k] and updates[e] with k = index[e], NaN where either is",
        tolerance=0.0,
    ),
    _scatter(
        "scatter_min_kernel",
        "min",
        dtypes.NUMERIC,
        "out[e, k] = the smaller of out[e, k] and updates[e] with k = index[e], NaN where either is",
        tolerance=0.0,
    ),
    KernelRow(
        name="iota_kernel",
        family="iota",
        types=_T,
        extents=(Extent("count"),),
        operands=(Operand("start", "r", "T", ()), Operand("step", "r", "T", ()), Operand("out", "w", "T", ("count",))),
        mathematics="out[i] = start + i · step; float16 and bfloat16 in float32",
    ),
)

GEMM = KernelRow(
    name="gemm_kernel",
    family="gemm",
    types=_T,
    extents=(Extent("batch", "rank"), Extent("rows"), Extent("columns"), Extent("depth")),
    operands=(
        Operand("a", "r", "T", ("batch", "rows", "depth")),
        Operand("b", "r", "T", ("batch", "depth", "columns")),
        Operand("out", "w", "T", ("batch", "rows", "columns")),
    ),
    sizes=_RANK,
    geometry="tiles",
    tolerance=256.0,
    mathematics="out[z, i, j] = sum over k of a[z, i, k] · b[z, k, j], 0 when depth is 0; float16 and bfloat16 "
    "accumulate in float32",
)

_CONV_EXTENTS = (
    Extent("batch"),
    Extent("groups"),
    Extent("out_channels"),
    Extent("output", "spatial"),
    Extent("in_channels"),
    Extent("kernel", "spatial"),
    Extent("input", "spatial"),
)
_CONV_WORK = (
    ("batch", "groups", "out_channels", "output", "in_channels", "kernel"),
    ("batch", "groups", "in_channels", "input"),
    ("groups", "out_channels", "in_channels", "kernel"),
)
_WINDOW = (
    Field("window_strides", "u64", size="spatial"),
    Field("dilations", "u64", size="spatial"),
    Field("pads", "i64", size="spatial"),
)
_X = ("batch", "groups", "in_channels", "input")
_W = ("groups", "out_channels", "in_channels", "kernel")
_Y = ("batch", "groups", "out_channels", "output")
_WHERE = "with i = o · window_stride - pad + k · dilation; i outside the input counts as 0"


def _conv(name: str, operands: tuple[Operand, ...], mathematics: str) -> KernelRow:
    return KernelRow(
        name=name,
        family="conv",
        types=_F,
        extents=_CONV_EXTENTS,
        operands=operands,
        fields=_WINDOW,
        sizes=_SPATIAL,
        level=1,
        work=_CONV_WORK,
        tolerance=1024.0,
        mathematics=f"{mathematics}, {_WHERE}. in_channels and out_channels count per group.",
    )


CONVOLUTION = (
    _conv(
        "conv_kernel",
        (Operand("x", "r", "T", _X), Operand("w", "r", "T", _W), Operand("y", "w", "T", _Y)),
        "y[n, g, m, o] = sum over c, k of x[n, g, c, i] · w[g, m, c, k]",
    ),
    _conv(
        "conv_input_grad_kernel",
        (Operand("dy", "r", "T", _Y), Operand("w", "r", "T", _W), Operand("dx", "w", "T", _X)),
        "dx[n, g, c, i] = sum over m, o, k of dy[n, g, m, o] · w[g, m, c, k]",
    ),
    _conv(
        "conv_weight_grad_kernel",
        (Operand("dy", "r", "T", _Y), Operand("x", "r", "T", _X), Operand("dw", "w", "T", _W)),
        "dw[g, m, c, k] = sum over n, o of dy[n, g, m, o] · x[n, g, c, i]",
    ),
)

_POOL_EXTENTS = (Extent("batch"), Extent("output", "spatial"), Extent("input", "spatial"), Extent("kernel", "spatial"))
_POOL_WORK = (("batch", "output", "kernel"), ("batch", "input"))
_POOL_X, _POOL_Y = ("batch", "input"), ("batch", "output")


def _pool(name: str, operands: tuple[Operand, ...], mathematics: str, fields: tuple[Field, ...] = ()) -> KernelRow:
    return KernelRow(
        name=name,
        family="pool",
        types=_F,
        extents=_POOL_EXTENTS,
        operands=operands,
        fields=_WINDOW + fields,
        sizes=_SPATIAL,
        level=1,
        work=_POOL_WORK,
        tolerance=64.0,
        mathematics=mathematics,
    )


_COUNT_PAD = (Field("count_pad", "u32"), Field("pads_end", "i64", size="spatial"))
POOLING = (
    _pool(
        "max_pool_kernel",
        (Operand("x", "r", "T", _POOL_X), Operand("y", "w", "T", _POOL_Y)),
        "y[n, o] = largest x[n, i] in the window, i = o · window_stride - pad + k · dilation inside the input; "
        "NaN wins; "
        "-inf where the window holds no element",
    ),
    _pool(
        "max_pool_index_kernel",
        (
            Operand("x", "r", "T", _POOL_X),
            Operand("y", "w", "T", _POOL_Y),
            Operand("index", "w", "int64", _POOL_Y),
        ),
        "as max_pool_kernel; index[n, o] = row-major position within the input plane of the first largest element, 0 "
        "where the window holds none",
    ),
    _pool(
        "average_pool_kernel",
        (Operand("x", "r", "T", _POOL_X), Operand("y", "w", "T", _POOL_Y)),
        "y[n, o] = sum of the window's x[n, i] inside the input / count; count is those elements, or with count_pad 1 "
        "the window's elements within the input padded by pads and pads_end; 0 where the window holds no element",
        _COUNT_PAD,
    ),
    _pool(
        "average_pool_grad_kernel",
        (Operand("dy", "r", "T", _POOL_Y), Operand("dx", "w", "T", _POOL_X)),
        "dx[n, i] = sum over the windows o that hold i of dy[n, o] / count(o), counted as in average_pool_kernel",
        _COUNT_PAD,
    ),
)

_ROWS = (Extent("outer", "outer_rank"), Extent("inner", "inner_rank"))
_WHOLE = ("outer", "inner")


def _by_row(
    name: str,
    operands: tuple[Operand, ...],
    mathematics: str,
    fields: tuple[Field, ...] = (),
    alias: tuple[tuple[str, str], ...] = (),
    types: tuple[tuple[str, tuple[dtypes.DType, ...]], ...] = _F,
) -> KernelRow:
    return KernelRow(
        name=name,
        family="rows",
        types=types,
        extents=_ROWS,
        operands=operands,
        fields=fields,
        sizes=_OUTER_INNER,
        level=1,
        geometry="rows",
        alias=alias,
        tolerance=256.0,
        mathematics=mathematics,
    )


def _whole(name: str, access: str = "r") -> Operand:
    return Operand(name, access, "T", _WHOLE)


ROW_KERNELS = (
    _by_row(
        "softmax_kernel",
        (_whole("x"), _whole("y", "w")),
        "y[o, i] = exp(x[o, i] - max x[o, :]) / sum over j of exp(x[o, j] - max x[o, :])",
        alias=(("y", "x"),),
    ),
    _by_row(
        "log_softmax_kernel",
        (_whole("x"), _whole("y", "w")),
        "y[o, i] = x[o, i] - max x[o, :] - log(sum over j of exp(x[o, j] - max x[o, :]))",
        alias=(("y", "x"),),
    ),
    _by_row(
        "softmax_grad_kernel",
        (_whole("dy"), _whole("y"), _whole("dx", "w")),
        "dx[o, i] = y[o, i] · (dy[o, i] - sum over j of dy[o, j] · y[o, j])",
        alias=(("dx", "dy"), ("dx", "y")),
    ),
    _by_row(
        "log_softmax_grad_kernel",
        (_whole("dy"), _whole("y"), _whole("dx", "w")),
        "dx[o, i] = dy[o, i] - exp(y[o, i]) · sum over j of dy[o, j]",
        alias=(("dx", "dy"), ("dx", "y")),
    ),
    _by_row(
        "normalize_kernel",
        (
            _whole("x"),
            _whole("y", "w"),
            Operand("mean", "w", "S", ("outer",)),
            Operand("rstd", "w", "S", ("outer",)),
        ),
        "mean[o] = mean of x[o, :]; rstd[o] = 1 / sqrt(mean of (x[o, :] - mean[o])² + epsilon); "
        "y[o, i] = (x[o, i] - mean[o]) · rstd[o]; computed in float64 where T or S is that, else in float32",
        fields=(Field("epsilon", "f64", patchable=True),),
        alias=(("y", "x"),),
        types=(*_F, ("S", (dtypes.float32, dtypes.float64))),
    ),
)

_FLAT = (Extent("extents", "rank"),)
_E = ("extents",)


def _update(name: str, operands: tuple[Operand, ...], fields: tuple[Field, ...], mathematics: str) -> KernelRow:
    return KernelRow(
        name=name,
        family="update",
        types=_F,
        extents=_FLAT,
        operands=operands,
        fields=fields,
        sizes=_RANK,
        level=1,
        tolerance=64.0,
        mathematics=mathematics,
    )


def _patchable(*names: str) -> tuple[Field, ...]:
    return tuple(Field(name, "f64", patchable=True) for name in names)


UPDATES = (
    _update(
        "sgd_kernel",
        (Operand("p", "rw", "T", _E), Operand("g", "r", "T", _E), Operand("lr", "r", "float32", ())),
        _patchable("weight_decay"),
        "p -= lr · (g + weight_decay · p)",
    ),
    _update(
        "sgd_momentum_kernel",
        (
            Operand("p", "rw", "T", _E),
            Operand("g", "r", "T", _E),
            Operand("m", "rw", "T", _E),
            Operand("lr", "r", "float32", ()),
            Operand("step", "r", "float32", ()),
        ),
        (*_patchable("weight_decay", "momentum", "dampening"), Field("nesterov", "u32")),
        "d = g + weight_decay · p; m = d at step 1, momentum · m + (1 - dampening) · d after; "
        "p -= lr · (d + momentum · m if nesterov else m); step counts this update, from 1",
    ),
    _update(
        "adamw_kernel",
        (
            Operand("p", "rw", "T", _E),
            Operand("g", "r", "T", _E),
            Operand("m", "rw", "T", _E),
            Operand("v", "rw", "T", _E),
            Operand("lr", "r", "float32", ()),
            Operand("step", "r", "float32", ()),
        ),
        (*_patchable("beta1", "beta2", "epsilon", "weight_decay"), Field("decoupled", "u32")),
        "with decoupled 1: p *= 1 - lr · weight_decay, else g += weight_decay · p; m = beta1 · m + (1 - beta1) · g; "
        "v = beta2 · v + (1 - beta2) · g²; "
        "p -= lr / (1 - beta1^step) · m / (sqrt(v) / sqrt(1 - beta2^step) + epsilon); "
        "step counts this update, from 1",
    ),
)

ROWS: tuple[KernelRow, ...] = (
    *REDUCTIONS, *INDEXING, GEMM, *CONVOLUTION, *POOLING, *ROW_KERNELS, *UPDATES,
)  # fmt: skip
