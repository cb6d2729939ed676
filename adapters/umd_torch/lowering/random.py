"""Random tensors, by a seed that each call draws from torch's generator; every node has an offset of its own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from umd_core import dtypes
from umd_torch.builder import Builder, Promise, Value, from_torch
from umd_torch.lowering.checks import require, require_within
from umd_torch.lowering.common import Emitted, Emitter, Number, Table, accumulating, to_torch
from umd_torch.torch_private import run_and_save_rng_state, run_with_rng_state

aten = torch.ops.aten
_LEAST = 2.0**-25
"""What an exponential number is at least, so that its logarithm is finite."""


def _draw(b: Builder, op: str, *inputs: Value, shape: Any = None, dtype: Any = None, **attributes: Any) -> Value:
    """Returns random numbers of the node's shape and element type, or of those given."""
    whole = {"shape": b.shape if shape is None else shape, "dtype": dtype or b.dtype}
    if inputs:
        del whole["shape"]
    return b.op(op, *inputs, *b.keys(), **whole, **attributes)


def _refuse_generator(b: Builder, generator: Any) -> None:
    if generator is not None:
        raise b.unsupported("a generator of its own is not there, only the one that torch.manual_seed seeds")


def _refuse(b: Builder, is_right: bool, what: str) -> None:
    """Refuses numbers that no distribution has; on the CPU, where it may, torch says the same."""
    if not is_right:
        raise b.unsupported(what)


def _plain(op: str) -> Emitter:
    """Returns an emitter of numbers that depend on nothing but their shape and type."""

    def emit(b: Builder, *_: Any, generator: Any = None, **__: Any) -> Value:
        _refuse_generator(b, generator)
        return _draw(b, op)

    return emit


def _between(b: Builder, low: int, high: int) -> Value:
    dtype = b.dtype if b.dtype.is_integer else dtypes.int64
    return b.cast(_draw(b, "umd.RandomInteger", dtype=dtype, low=low, high=high), b.dtype)


def _below(b: Builder, high: int, _: Any, **__: Any) -> Value:
    return _between(b, 0, high)


def _from_low(b: Builder, low: int, high: int, _: Any, **__: Any) -> Value:
    return _between(b, low, high)


def _like_below(b: Builder, _: Value, high: int, **__: Any) -> Value:
    return _between(b, 0, high)


def _like_from_low(b: Builder, _: Value, low: int, high: int, **__: Any) -> Value:
    return _between(b, low, high)


def _uniform(b: Builder, _: Value, low: float = 0.0, high: float = 1.0, *, generator: Any = None) -> Value:
    _refuse_generator(b, generator)
    _refuse(b, low <= high, f"uniform from {low} to {high}, which is less")
    return _draw(b, "umd.RandomUniform", low=float(low), high=float(high))


def _normal(b: Builder, _: Value, mean: float = 0.0, std: float = 1.0, *, generator: Any = None) -> Value:
    _refuse_generator(b, generator)
    _refuse_negative(b, std)
    return _draw(b, "umd.RandomNormal", mean=float(mean), scale=float(std))


def _refuse_negative(b: Builder, std: Number) -> None:
    _refuse(b, std >= 0, f"a normal distribution whose deviation is {std}, which is below 0")


def _normal_of_size(b: Builder, mean: float, std: float, _: Any, *, generator: Any = None, **__: Any) -> Value:
    _refuse_generator(b, generator)
    _refuse_negative(b, std)
    return _draw(b, "umd.RandomNormal", mean=float(mean), scale=float(std))


def _normal_around(
    b: Builder, mean: Value | Number = 0.0, std: Value | Number = 1.0, *, generator: Any = None
) -> Value:
    """Returns numbers each with a mean, or a deviation, of its own."""
    _refuse_generator(b, generator)
    if isinstance(std, Value):
        require_within(b, std, 0, None, "normal expects all elements of std >= 0.0")
    else:
        _refuse_negative(b, std)
    scale, centre = (x if isinstance(x, Value) else b.scalar(x, b.dtype) for x in (std, mean))
    spread = b.op("Mul", _draw(b, "umd.RandomNormal"), b.cast(scale, b.dtype))
    return b.op("Add", spread, b.cast(centre, b.dtype))


def _log_normal(b: Builder, x: Value, mean: float = 1.0, std: float = 2.0, *, generator: Any = None) -> Value:
    _refuse(b, std > 0, f"a log-normal distribution whose deviation is {std}, which is not above 0")
    return b.op("Exp", _normal(b, x, mean, std, generator=generator))


def _exponential(b: Builder, _: Value, rate: float = 1.0, *, generator: Any = None) -> Value:
    """Returns -log(1 - u) / rate, never 0."""
    _refuse_generator(b, generator)
    _refuse(b, rate > 0, f"an exponential distribution whose rate is {rate}, which is not above 0")
    dtype = accumulating(b.dtype)
    minus = b.op("Neg", _log_of_rest(b, dtype))
    positive = b.op("Max", minus, b.scalar(_LEAST, dtype))
    return b.cast(b.op("Div", positive, b.scalar(rate, dtype)), b.dtype)


def _geometric(b: Builder, _: Value, chance: float, *, generator: Any = None) -> Value:
    """Returns the number of trials up to the first success."""
    _refuse_generator(b, generator)
    _refuse(b, 0 < chance < 1, f"a geometric distribution whose chance is {chance}, which is outside (0, 1)")
    dtype = accumulating(b.dtype) if b.dtype.is_float else dtypes.float32
    trials = b.op("Ceil", b.op("Div", _log_of_rest(b, dtype), b.scalar(math.log1p(-chance), dtype)))
    return b.cast(b.op("Max", trials, b.scalar(1, dtype)), b.dtype)


def _log_of_rest(b: Builder, dtype: dtypes.DType) -> Value:
    """Returns log(1 - u)."""
    rest = b.op("Sub", b.scalar(1, dtype), _draw(b, "umd.RandomUniform", dtype=dtype))
    return b.op("Log", rest)


def _bernoulli(b: Builder, chances: Value, *, generator: Any = None) -> Value:
    _refuse_generator(b, generator)
    return _with_chances(b, chances)


def _with_chances(b: Builder, chances: Value) -> Value:
    require_within(b, chances, 0, 1, "Expected p_in >= 0 && p_in <= 1 to be true, but got false.")
    return _draw(b, "umd.Bernoulli", b.expand(chances, b.shape))


def _bernoulli_with(b: Builder, _: Value, chance: Value | Number = 0.5, *, generator: Any = None) -> Value:
    _refuse_generator(b, generator)
    if not isinstance(chance, Value):
        _refuse(b, 0 <= chance <= 1, f"bernoulli with a chance of {chance}, which is outside [0, 1]")
        return _draw(b, "umd.Bernoulli", b.full(chance, dtypes.float32, b.shape))
    chances = chance if chance.dtype.is_float else b.cast(chance, dtypes.float32)
    return _with_chances(b, chances)


def _dropout(b: Builder, x: Value, ratio: float, train: bool | None = True) -> tuple[Value, ...]:
    """Returns the values and the mask, which backward needs again."""
    if train is False or ratio == 0:
        return x, b.full(True, dtypes.bool_, x.shape)
    return b.ops("umd.Dropout", (x, *b.keys()), (True, True), {"ratio": float(ratio)})


def _permutation(b: Builder, count: int, *, generator: Any = None, **_: Any) -> Value:
    """Returns the order of as many random integers; two of 63 bits are hardly ever equal."""
    _refuse_generator(b, generator)
    keys = _draw(b, "umd.RandomInteger", shape=(count,), dtype=dtypes.int64, high=2**63)
    attributes = {"axis": 0, "largest": 0}
    return b.cast(b.ops("TopK", (keys, b.ints([count])), (False, True), attributes)[1], b.dtype)


def _require_weights(b: Builder, weights: Value, axis: int) -> None:
    zero, infinity = b.scalar(0, weights.dtype), b.scalar(math.inf, weights.dtype)
    plain = b.op("And", b.op("GreaterOrEqual", weights, zero), b.op("Less", weights, infinity))
    require(b, plain, "probability tensor contains either `inf`, `nan` or element < 0")
    some = b.op("Greater", b.op("ReduceMax", weights, b.ints([axis]), keepdims=0), zero)
    require(b, some, "invalid multinomial distribution (sum of probabilities <= 0)")


def _multinomial(b: Builder, weights: Value, count: int, replacement: bool = False, *, generator: Any = None) -> Value:
    """Returns categories drawn by weight: of waiting times with these rates the shortest come first."""
    _refuse_generator(b, generator)
    dtype, axis = accumulating(weights.dtype), weights.rank - 1
    _require_weights(b, weights, axis)
    rates = b.cast(weights, dtype)
    if replacement:
        rates = b.unsqueeze(rates, axis)
    shape = (*weights.shape[:-1], count, weights.shape[-1]) if replacement else weights.shape
    log = b.op("Log", b.op("Sub", b.scalar(1, dtype), _draw(b, "umd.RandomUniform", shape=shape, dtype=dtype)))
    speed = b.op("Div", rates, b.op("Max", b.op("Neg", log), b.scalar(_LEAST, dtype)))
    if replacement:
        return b.op("ArgMax", speed, axis=axis + 1, keepdims=0)
    return b.ops("TopK", (speed, b.ints([count])), (False, True), {"axis": axis, "largest": 1})[1]


# what is recomputed in backward draws the same again: torch saves a state of the generator, here seed and offset


def _and_keys(b: Builder, op: Any, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    """Returns the keys that the op draws by, as one tensor, and its results."""
    keys = b.keys()
    return b.op("Concat", *(b.reshape(key, (1,)) for key in keys), axis=0), _by(b, keys, op, args, kwargs)


def _by_keys(b: Builder, state: Value, op: Any, *args: Any, **kwargs: Any) -> Emitted:
    seed, offset = (b.reshape(b.slice(state, 0, at, at + 1), ()) for at in range(2))
    return _by(b, (seed, offset), op, args, kwargs)


def _by(b: Builder, keys: tuple[Value, Value], op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Emitted:
    emitter = TABLE.get(op)
    if emitter is None:
        raise b.unsupported(f"there is no lowering for {op}, which draws")
    with b.drawing(keys, _promised(op, args, kwargs)):
        return emitter(b, *args, **kwargs)


def _promised(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Promise, ...]:
    """Returns what an op returns for such arguments, by torch's own shape rules."""
    stand_ins = [
        torch.empty(x.shape, dtype=to_torch(x.dtype), device="meta") if isinstance(x, Value) else x for x in args
    ]
    result = op(*stand_ins, **{**kwargs, **({"device": "meta"} if "device" in kwargs else {})})
    several = result if isinstance(result, tuple) else (result,)
    return tuple(Promise(from_torch(tensor.dtype), tuple(tensor.shape)) for tensor in several)


TABLE: Table = {
    run_and_save_rng_state: _and_keys,
    run_with_rng_state: _by_keys,
    aten.native_dropout.default: _dropout,
    aten.rand.default: _plain("umd.RandomUniform"),
    aten.rand_like.default: _plain("umd.RandomUniform"),
    aten.randn.default: _plain("umd.RandomNormal"),
    aten.randn_like.default: _plain("umd.RandomNormal"),
    aten.randint.default: _below,
    aten.randint.low: _from_low,
    aten.randint_like.default: _like_below,
    aten.randint_like.low_dtype: _like_from_low,
    aten.randperm.default: _permutation,
    aten.uniform.default: _uniform,
    aten.normal_functional.default: _normal,
    aten.normal.float_float: _normal_of_size,
    aten.normal.Tensor_float: _normal_around,
    aten.normal.float_Tensor: _normal_around,
    aten.normal.Tensor_Tensor: _normal_around,
    aten.log_normal.default: _log_normal,
    aten.exponential.default: _exponential,
    aten.geometric.default: _geometric,
    aten.multinomial.default: _multinomial,
    aten.bernoulli.default: _bernoulli,
    aten.bernoulli.p: _bernoulli_with,
    aten.bernoulli.Tensor: _bernoulli_with,
}
