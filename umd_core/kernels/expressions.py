"""Expression rows: one strided elementwise kernel family, a postfix program each.

A program is read left to right: an operand's name pushes its element, a number pushes a constant, a primitive pops its
arguments and pushes its result. float16 and bfloat16 are computed in float32 and rounded once at the end; integers
wrap. Any non-zero bool byte is true.
"""

from __future__ import annotations

from umd_core import dtypes
from umd_core.dtypes import DType
from umd_core.kernels.row import RANK_CLASSES, Extent, KernelRow, Operand

PRIMITIVES: dict[str, int] = {
    # arithmetic
    "neg": 1, "abs": 1, "sign": 1, "reciprocal": 1, "add": 2, "sub": 2, "mul": 2, "div": 2, "mod": 2, "fmod": 2,
    "pow": 2, "max": 2, "min": 2,
    # functions of a float
    "exp": 1, "log": 1, "log1p": 1, "expm1": 1, "sqrt": 1, "rsqrt": 1, "sin": 1, "cos": 1, "tanh": 1, "sigmoid": 1,
    "erf": 1, "floor": 1, "ceil": 1, "round": 1, "trunc": 1, "isnan": 1, "isinf": 1,
    "tan": 1, "asin": 1, "acos": 1, "atan": 1, "sinh": 1, "cosh": 1, "asinh": 1, "acosh": 1, "atanh": 1, "atan2": 2,
    # comparison, logic, bits
    "eq": 2, "ne": 2, "lt": 2, "le": 2, "gt": 2, "ge": 2, "and": 2, "or": 2, "xor": 2, "not": 1,
    "bitand": 2, "bitor": 2, "bitxor": 2, "bitnot": 1, "shl": 2, "shr": 2,
    # choice, conversion
    "select": 3, "cast": 1,
}  # fmt: skip
"""The scalar primitives and their argument counts. `select` pops condition, a, b. What each means at the edges:

- integer `div` truncates; x/0 is 0 and INT_MIN/-1 is INT_MIN; `mod` takes the divisor's sign, `fmod` the dividend's,
  and x mod 0 is 0 for integers
- `max` and `min` return NaN when either argument is NaN
- `pow` of integers wraps; a negative exponent gives 0 unless the base is 1 or -1, and 0 to a negative power is 0
- `round` rounds half to even
- `shr` of a signed integer keeps the sign; shifting by the width or more, or by a negative number, leaves 0, or -1
  where `shr` keeps the sign of a negative one
- `cast` from float to integer truncates toward zero and saturates, NaN becomes 0; between integers it wraps; to bool
  it is `!= 0`
"""

_EXTENTS = (Extent("extents", "rank"),)
_SIZES = (("rank", RANK_CLASSES),)
_BOX = ("extents",)


def _row(
    name: str, program: str, types: dict[str, tuple[DType, ...]], operands: dict[str, str], tolerance: float = 4.0
) -> KernelRow:
    inputs = list(operands)[:-1]
    return KernelRow(
        name=f"elementwise_{name}_kernel",
        family="expression",
        types=tuple(types.items()),
        extents=_EXTENTS,
        operands=tuple(Operand(o, "w" if o == "out" else "r", t, _BOX) for o, t in operands.items()),
        sizes=_SIZES,
        program=program,
        alias=tuple(("out", o) for o in inputs if operands[o] == operands["out"]),
        tolerance=tolerance,
        mathematics=f"out[i] = {infix(program)} for every i in the box of extents",
    )


def infix(program: str) -> str:
    """Returns a postfix program as a formula: "a b add" as "add(a, b)"."""
    stack: list[str] = []
    for token in program.split():
        count = PRIMITIVES.get(token)
        if count is None:
            stack.append(token)
        else:
            arguments = stack[-count:]
            del stack[-count:]
            stack.append(f"{token}({', '.join(arguments)})")
    return stack[0] if stack else ""


def _unary(name: str, types: tuple[DType, ...], program: str = "", out: str = "T", tolerance: float = 4.0) -> KernelRow:
    return _row(name, program or f"x {name}", {"T": types}, {"x": "T", "out": out}, tolerance)


def _binary(
    name: str, types: tuple[DType, ...], program: str = "", out: str = "T", tolerance: float = 4.0
) -> KernelRow:
    return _row(name, program or f"a b {name}", {"T": types}, {"a": "T", "b": "T", "out": out}, tolerance)


_NUMERIC, _FLOATS, _ALL, _BOOL = dtypes.NUMERIC, dtypes.FLOATS, dtypes.ALL, dtypes.BOOL
_BITS = dtypes.INTEGERS
_SQRT_HALF, _SQRT_2_OVER_PI = "0.7071067811865476", "0.7978845608028654"
_INV_SQRT_2PI = "0.3989422804014327"
_SOFTPLUS = "x 0 max x abs neg exp log1p add"
_WITH_ALPHA = {"x": "T", "alpha": "T", "out": "T"}
_GELU_INNER = f"x x x mul x mul 0.044715 mul add {_SQRT_2_OVER_PI} mul"

ROWS: tuple[KernelRow, ...] = (
    _unary("copy", _ALL, "x"),
    _row("cast", "x cast", {"T": _ALL, "U": _ALL}, {"x": "T", "out": "U"}),
    _row("select", "condition a b select", {"T": _ALL}, {"condition": "bool", "a": "T", "b": "T", "out": "T"}),
    *(_binary(name, _NUMERIC) for name in ("add", "sub", "mul", "div", "mod", "fmod", "max", "min")),
    _binary("pow", _NUMERIC, tolerance=32.0),
    *(_unary(name, _NUMERIC) for name in ("neg", "abs", "sign")),
    *(
        _unary(name, _FLOATS, tolerance=16.0)
        for name in ("exp", "log", "log1p", "expm1", "sin", "cos", "tanh", "sigmoid", "erf")
    ),
    *(
        _unary(name, _FLOATS, tolerance=16.0)
        for name in ("tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh")
    ),
    _binary("atan2", _FLOATS, tolerance=16.0),
    *(_unary(name, _FLOATS) for name in ("reciprocal", "sqrt", "rsqrt", "floor", "ceil", "round", "trunc")),
    *(_unary(name, _FLOATS, out="bool") for name in ("isnan", "isinf")),
    *(_binary(name, _ALL, out="bool") for name in ("eq", "ne")),
    *(_binary(name, _NUMERIC, out="bool") for name in ("lt", "le", "gt", "ge")),
    *(_binary(name, _BOOL) for name in ("and", "or", "xor")),
    _unary("not", _BOOL),
    *(_binary(name, _BITS) for name in ("bitand", "bitor", "bitxor", "shl", "shr")),
    _unary("bitnot", _BITS),
    _unary("relu", _NUMERIC, "x 0 max"),
    _row("clip", "x low max high min", {"T": _NUMERIC}, {"x": "T", "low": "T", "high": "T", "out": "T"}),
    _unary("gelu", _FLOATS, f"x 0.5 mul x {_SQRT_HALF} mul erf 1 add mul", tolerance=32.0),
    _unary(
        "gelu_tanh",
        _FLOATS,
        f"x 0.5 mul {_GELU_INNER} tanh 1 add mul",
        tolerance=64.0,
    ),
    # activations; `alpha`, `beta` are their parameters
    _row("leaky_relu", "x 0 lt x alpha mul x select", {"T": _FLOATS + dtypes.SIGNED}, _WITH_ALPHA),
    _row("elu", "x 0 lt x expm1 alpha mul x select", {"T": _FLOATS}, _WITH_ALPHA, 16.0),
    _row("celu", "x 0 lt x alpha div expm1 alpha mul x select", {"T": _FLOATS}, _WITH_ALPHA, 32.0),
    _row("swish", "x x alpha mul sigmoid mul", {"T": _FLOATS}, _WITH_ALPHA, 64.0),
    _row(
        "hard_sigmoid",
        "x alpha mul beta add 0 max 1 min",
        {"T": _FLOATS},
        {"x": "T", "alpha": "T", "beta": "T", "out": "T"},
    ),
    _unary("hard_swish", _FLOATS, "x x 0.16666666666666666 mul 0.5 add 0 max 1 min mul", tolerance=16.0),
    _unary("softplus", _FLOATS, _SOFTPLUS, tolerance=16.0),
    _unary("softsign", _FLOATS, "x x abs 1 add div"),
    _unary("mish", _FLOATS, f"x {_SOFTPLUS} tanh mul", tolerance=64.0),
    # numbers kept as small integers: `zero` is the integer that stands for 0
    _row("round_add", "x round zero add", {"T": _FLOATS}, {"x": "T", "zero": "T", "out": "T"}),
    _row("dequantize", "x zero sub scale mul", {"T": _FLOATS}, {"x": "T", "scale": "T", "zero": "T", "out": "T"}),
    # gradients: `dy` is the gradient of the result, `x` or `y` what the forward op took or gave
    _row("relu_grad", "y 0 le 0 dy select", {"T": _FLOATS}, {"dy": "T", "y": "T", "out": "T"}),
    _row("sigmoid_grad", "dy y mul 1 y sub mul", {"T": _FLOATS}, {"dy": "T", "y": "T", "out": "T"}),
    _row("tanh_grad", "dy 1 y y mul sub mul", {"T": _FLOATS}, {"dy": "T", "y": "T", "out": "T"}),
    _row(
        "gelu_grad",
        f"x {_SQRT_HALF} mul erf 1 add 0.5 mul x x mul -0.5 mul exp {_INV_SQRT_2PI} mul x mul add dy mul",
        {"T": _FLOATS},
        {"dy": "T", "x": "T", "out": "T"},
        64.0,
    ),
    _row(
        "gelu_tanh_grad",
        f"{_GELU_INNER} tanh 1 add 0.5 mul "
        f"1 {_GELU_INNER} tanh {_GELU_INNER} tanh mul sub x 0.5 mul mul "
        f"x x mul 0.134145 mul 1 add {_SQRT_2_OVER_PI} mul mul add dy mul",
        {"T": _FLOATS},
        {"dy": "T", "x": "T", "out": "T"},
        256.0,
    ),
    _row("multiply_add", "a b mul c add", {"T": _NUMERIC}, {"a": "T", "b": "T", "c": "T", "out": "T"}),
)
