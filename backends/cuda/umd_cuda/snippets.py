"""CUDA C for element types, scalar primitives and casts: all that generated text is built from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from umd_core import dtypes
from umd_core.dtypes import DType
from umd_core.kernels import PRIMITIVES, KernelRecord

HALVES = (dtypes.float16, dtypes.bfloat16)


@dataclass(frozen=True, slots=True)
class TypeText:
    """How CUDA C names an element type.

    Attributes:
        storage: type of an element in memory.
        value: type that is computed in.
        total: type that sums are formed in; unsigned for integers, so that they wrap.
        load: makes a value of an element.
        store: makes an element of a value.
    """

    storage: str
    value: str
    total: str
    load: str = "({})"
    store: str = "({})"


def _integer(storage: str, signed: bool, size: int) -> TypeText:
    total = "unsigned long long" if size == 8 else "unsigned"
    value = storage if size == 8 else ("int" if signed else "unsigned")
    return TypeText(storage, value, total, store=f"(({storage})({{}}))")


TYPES: dict[DType, TypeText] = {
    dtypes.float16: TypeText("__half", "float", "float", "__half2float({})", "__float2half({})"),
    dtypes.bfloat16: TypeText("__nv_bfloat16", "float", "float", "__bfloat162float({})", "__float2bfloat16({})"),
    dtypes.float32: TypeText("float", "float", "float", store="((float)({}))"),
    dtypes.float64: TypeText("double", "double", "double"),
    dtypes.int8: _integer("signed char", True, 1),
    dtypes.int16: _integer("short", True, 2),
    dtypes.int32: _integer("int", True, 4),
    dtypes.int64: _integer("long long", True, 8),
    dtypes.uint8: _integer("unsigned char", False, 1),
    dtypes.uint16: _integer("unsigned short", False, 2),
    dtypes.uint32: _integer("unsigned", False, 4),
    dtypes.uint64: _integer("unsigned long long", False, 8),
    dtypes.bool_: TypeText("unsigned char", "bool", "unsigned", "(({}) != 0)", "((unsigned char)(({}) ? 1 : 0))"),
}
RAW = {1: "unsigned char", 2: "unsigned short", 4: "unsigned", 8: "unsigned long long"}
"""By size in bytes, the type that moves elements without looking at them."""
INCLUDES = {dtypes.float16: "#include <cuda_fp16.h>\n", dtypes.bfloat16: "#include <cuda_bf16.h>\n"}

_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_EITHER = {
    **{name: f"{{0}} {sign} {{1}}" for name, sign in _COMPARISONS.items()},
    "select": "{0} ? {1} : {2}",
}

# {f} is the suffix of a function or literal of the type: "f" for float.
_FLOAT = {
    "neg": "-{0}",
    "abs": "fabs{f}({0})",
    "sign": "{0} > 0 ? 1 : {0} < 0 ? -1 : {0}",
    "reciprocal": "1 / {0}",
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "mod": "modulo({0}, {1})",
    "fmod": "fmod{f}({0}, {1})",
    "pow": "pow{f}({0}, {1})",
    "max": "{0} != {0} || {0} > {1} ? {0} : {1}",
    "min": "{0} != {0} || {0} < {1} ? {0} : {1}",
    "exp": "exp{f}({0})",
    "log": "log{f}({0})",
    "log1p": "log1p{f}({0})",
    "expm1": "expm1{f}({0})",
    "sqrt": "sqrt{f}({0})",
    "rsqrt": "1 / sqrt{f}({0})",
    "sin": "sin{f}({0})",
    "cos": "cos{f}({0})",
    "tanh": "tanh{f}({0})",
    "sigmoid": "1 / (1 + exp{f}(-{0}))",
    "erf": "erf{f}({0})",
    "floor": "floor{f}({0})",
    "ceil": "ceil{f}({0})",
    "round": "rint{f}({0})",
    "trunc": "trunc{f}({0})",
    **{name: f"{name}{{f}}({{0}})" for name in ("tan", "asin", "acos", "atan", "sinh", "cosh")},
    **{name: f"{name}{{f}}({{0}})" for name in ("asinh", "acosh", "atanh")},
    "atan2": "atan2{f}({0}, {1})",
    "isnan": "{0} != {0}",
    "isinf": "fabs{f}({0}) == (T_value)__int_as_float(0x7f800000)",
    **_EITHER,
}

_TOO_FAR = "(unsigned long long){1} >= 8 * sizeof(T)"
"""Whether a shift count is the width or more, or negative."""

# W is the unsigned type that wraps. Every result is cut to the element type.
_INTEGER = {
    "neg": "(W)0 - (W){0}",
    "add": "(W){0} + (W){1}",
    "sub": "(W){0} - (W){1}",
    "mul": "(W){0} * (W){1}",
    "pow": "power({0}, {1})",
    "max": "{0} > {1} ? {0} : {1}",
    "min": "{0} < {1} ? {0} : {1}",
    "bitand": "{0} & {1}",
    "bitor": "{0} | {1}",
    "bitxor": "{0} ^ {1}",
    "bitnot": "~{0}",
    "shl": f"{_TOO_FAR} ? (W)0 : (W){{0}} << {{1}}",
    **_EITHER,
}
_SIGNED = {
    **_INTEGER,
    "abs": "{0} < 0 ? (T)((W)0 - (W){0}) : {0}",
    "sign": "({0} > 0) - ({0} < 0)",
    "div": "{1} == 0 ? (T)0 : {1} == -1 ? (T)((W)0 - (W){0}) : (T)({0} / {1})",
    "fmod": "{1} == 0 || {1} == -1 ? 0 : {0} % {1}",
    "mod": "modulo({0}, {1})",
    "shr": f"{_TOO_FAR} ? (T)({{0}} < 0 ? -1 : 0) : (T)({{0}} >> {{1}})",
}
_UNSIGNED = {
    **_INTEGER,
    "abs": "{0}",
    "sign": "{0} != 0",
    "div": "{1} == 0 ? 0 : {0} / {1}",
    "fmod": "{1} == 0 ? 0 : {0} % {1}",
    "mod": "{1} == 0 ? 0 : {0} % {1}",
    "shr": f"{_TOO_FAR} ? (T)0 : (T)({{0}} >> {{1}})",
}
_BOOL = {**_EITHER, "and": "{0} && {1}", "or": "{0} || {1}", "xor": "{0} != {1}", "not": "!{0}"}

SNIPPETS: dict[str, dict[str, str]] = {"f": _FLOAT, "i": _SIGNED, "u": _UNSIGNED, "b": _BOOL}
"""By DType.kind, then by primitive: the expression of its arguments {0}, {1}, {2}, which are names."""

HELPERS: dict[tuple[str, str], str] = {
    ("f", "mod"): """
// The remainder with the divisor's sign.
__device__ inline T_value modulo(T_value a, T_value b) {
  const T_value rest = fmod{f}(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}
""",
    ("i", "mod"): """
// The remainder with the divisor's sign; 0 when there is none.
__device__ inline T modulo(T a, T b) {
  if (b == 0 || b == -1) return 0;
  const T rest = (T)(a % b);
  return rest != 0 && (rest < 0) != (b < 0) ? (T)(rest + b) : rest;
}
""",
    ("i", "pow"): """
// The power, wrapping; a negative exponent gives 0 unless the base is 1 or -1.
__device__ inline T power(T a, T b) {
  if (b < 0) return a == 1 ? 1 : a == -1 ? ((b & 1) ? -1 : 1) : 0;
  W result = 1, square = (W)a;
  for (; b > 0; b = (T)(b >> 1), square *= square) {
    if (b & 1) result *= square;
  }
  return (T)result;
}
""",
    ("u", "pow"): """
// The power, wrapping.
__device__ inline T power(T a, T b) {
  W result = 1, square = (W)a;
  for (; b > 0; b = (T)(b >> 1), square *= square) {
    if (b & 1) result *= square;
  }
  return (T)result;
}
""",
}
"""By kind and primitive: functions that a snippet calls."""

ROUND_TO_ODD = """
// Makes a float of a double so that rounding it again to fewer digits rounds the double once: to odd.
__device__ inline float to_odd(double exact) {
  const float near = (float)exact;
  if ((double)near == exact) return near;
  int bits = __float_as_int(near);
  if (fabs((double)near) > fabs(exact)) bits -= 1;
  return __int_as_float(bits | 1);
}
"""


def _limits(target: DType) -> tuple[str, str, str]:
    """Returns the least and the greatest integer, and one more than the greatest as a float."""
    bits = 8 * target.size
    if target.kind == "u":
        return "0", f"{2**bits - 1}ULL", f"{2**bits}.0"
    return f"(-{2 ** (bits - 1) - 1}LL - 1)", f"{2 ** (bits - 1) - 1}LL", f"{2 ** (bits - 1)}.0"


def cast(source: DType, target: DType) -> str:
    """Returns the expression that converts the value {0} of one type to a value of another."""
    to = TYPES[target]
    if target.kind == "b":
        return "{0} != 0"
    if source.kind == "b":
        return f"({to.value})({{0}} ? 1 : 0)"
    if source.is_float and target.is_integer:
        suffix = "" if source is dtypes.float64 else "f"
        least, greatest, end = _limits(target)
        low = "0.0" if target.kind == "u" else f"-{end}"
        return (
            f"{{0}} != {{0}} ? ({to.storage})0 : {{0}} >= {end}{suffix} ? ({to.storage}){greatest} : "
            f"{{0}} <= {low}{suffix} ? ({to.storage}){least} : ({to.storage}){{0}}"
        )
    if target in HALVES and (source is dtypes.float64 or (source.is_integer and source.size > 2)):
        return "to_odd((double){0})"
    return f"({to.value if target.is_float else to.storage}){{0}}"


def suffix_of(dtype: DType) -> str:
    """Returns the suffix of functions and literals of a float type."""
    return "" if dtype is dtypes.float64 else "f"


def step_text(primitive: str, dtype: DType, arguments: Sequence[str]) -> str:
    """Returns a primitive over arguments of a float type: a number, or a truth from a comparison."""
    return SNIPPETS[dtype.kind][primitive].format(*arguments, f=suffix_of(dtype))


def moves(record: KernelRecord) -> bool:
    """Returns whether an expression row takes elements as they are."""
    return all(token not in PRIMITIVES or token == "select" for token in record.row.program.split())


def element_function(record: KernelRecord) -> str:
    """Returns the text of `element`, which makes an element of `out` of one of each input."""
    raw = moves(record)
    bound = {o.name: record.dtype(o.type) for o in record.row.operands}
    inputs = [name for name in bound if name != "out"]
    dtype = record.types[0]
    suffix = "" if dtype is dtypes.float64 else "f"
    helpers: set[str] = set()
    lines: list[str] = []
    stack: list[tuple[str, str]] = []  # (name, DType.kind)
    for name in inputs:
        held = bound[name]
        load = "({})" if raw and held is not dtypes.bool_ else TYPES[held].load
        kind = "const auto" if raw else f"const {_declared(held)}"
        lines.append(f"{kind} {name}_value = {load.format(name)};")
    for token in record.row.program.split():
        count = PRIMITIVES.get(token)
        if count is None:
            stack.append((f"{token}_value" if token in bound else _constant(token, dtype, suffix), dtype.kind))
            continue
        arguments = [name for name, _ in stack[-count:]]
        del stack[-count:]
        helpers.add(HELPERS.get((dtype.kind, token), ""))
        text, result = _step(token, dtype, bound["out"], raw)
        lines.append(f"const {result} t{len(lines)} = {text.format(*arguments, f=suffix)};")
        stack.append((f"t{len(lines) - 1}", dtype.kind))
    final = "({})" if raw else TYPES[bound["out"]].store
    lines.append(f"return {final.format(stack[0][0])};")
    helper = "".join(sorted(helpers)).replace("{f}", suffix)
    if record.row.name == "elementwise_cast_kernel" and "to_odd" in cast(*record.types):
        helper += ROUND_TO_ODD
    parameters = ", ".join(f"{name}_t {name}" for name in inputs)
    body = "\n".join(f"  {line}" for line in lines)
    return f"{helper}\n__device__ __forceinline__ out_t element({parameters}) {{\n{body}\n}}\n"


def _declared(dtype: DType) -> str:
    """Returns the type of a value between the steps of an expression: integers are cut to the element type."""
    return TYPES[dtype].storage if dtype.is_integer else TYPES[dtype].value


def _step(token: str, dtype: DType, out: DType, raw: bool) -> tuple[str, str]:
    """Returns a primitive's expression and the type of its result."""
    if token == "cast":  # a primitive, not a password
        return cast(dtype, out), _declared(out)
    text = SNIPPETS[dtype.kind][token]
    if token in _COMPARISONS or token in ("isnan", "isinf"):
        return text, "bool"
    if raw:
        return text, "out_t"
    if dtype.is_integer:
        return f"(T)({text})", _declared(dtype)
    return text, _declared(dtype)


def _constant(token: str, dtype: DType, suffix: str) -> str:
    if not dtype.is_float:
        return f"(T){token}"
    return f"{float(token)!r}{suffix}"
