"""Random tensors: uniform, normal, integers, and truths with a chance each.

ONNX's ops have their seed as an attribute, so a program with one of them gives the same numbers each time that it runs.
The umd ops take seed and offset as inputs: other values, other numbers, without another translation.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from umd_core.attributes import Attribute
from umd_core.dtypes import ALL, FLOATS, INTEGERS, DType, bool_, float32, int64
from umd_core.recorder import Recorder
from umd_core.shaping import accumulator
from umd_core.template import Call, Emit, Input, OpTemplate, Result, Shape, ShapeRule
from umd_core.views import View

_KEYS = (Input("seed", "int64"), Input("offset", "int64"))
_SHAPE = Attribute("shape", "ints", required=True)
_SOURCE = "Salmon, Moraes, Dror and Shaw, Parallel Random Numbers: As Easy as 1, 2, 3, 2011"
_PROMISE = "Element i depends on seed, offset and i (row-major) alone, on every device."
Keys = tuple[View, View]
Draw = Callable[[Recorder, Call, View, Keys], View]


# what is drawn


def _uniform(recorder: Recorder, call: Call, out: View, keys: Keys) -> View:
    """Records low + u · (high - low), kept below high where rounding would reach it."""
    low, high, wide = call.attr("low"), call.attr("high"), accumulator(out.dtype)
    if (low, high) == (0, 1):
        return recorder.random("uniform", *keys, out)
    work = out if out.dtype is wide else recorder.new(wide, out.shape)
    recorder.random("uniform", *keys, work)
    recorder.expression("mul", (work, recorder.scalar(high - low, wide)), work)
    recorder.expression("add", (work, recorder.scalar(low, wide)), work)
    if work is not out:
        recorder.copy(work, out)
    with np.errstate(over="ignore"):  # the type may end before `high`: then its largest number is the edge
        edge = np.nextafter(np.asarray(high).astype(out.dtype.numpy), np.asarray(low).astype(out.dtype.numpy))
    return recorder.expression("min", (out, recorder.constant(edge)), out)


def _normal(recorder: Recorder, call: Call, out: View, keys: Keys) -> View:
    mean, scale, wide = call.attr("mean"), call.attr("scale"), accumulator(out.dtype)
    if (mean, scale) == (0, 1):
        return recorder.random("normal", *keys, out)
    work = out if out.dtype is wide else recorder.new(wide, out.shape)
    recorder.random("normal", *keys, work)
    operands = (work, recorder.scalar(scale, wide), recorder.scalar(mean, wide))
    recorder.expression("multiply_add", operands, work)
    return out if work is out else recorder.copy(work, out)


def _integer(recorder: Recorder, call: Call, out: View, keys: Keys) -> View:
    low, high = (
        recorder.constant(np.asarray(call.attr(name) % 2**64, np.uint64).astype(np.int64)) for name in ("low", "high")
    )
    return recorder.random("integer", *keys, out, low=low, high=high)


def _bernoulli(recorder: Recorder, p: View, out: View, keys: Keys) -> View:
    truths = out if out.dtype is bool_ else recorder.new(bool_, out.shape)
    recorder.random("bernoulli", *keys, truths, p=p)
    return out if truths is out else recorder.copy(truths, out)


# rules


def _check_keys(call: Call, first: int = 0) -> None:
    for index, spec in enumerate(_KEYS, first):
        if call.desc(index).element_count != 1:
            raise call.error(f"has shape {list(call.desc(index).shape)}; one number would be right", input=spec.name)


def _check_range(call: Call) -> None:
    """Checks the bounds or the scale of the op.

    Raises:
        AttributeValueError: low above high, or a negative scale.
    """
    if "low" in call.attributes and not call.attr("low") <= call.attr("high"):
        raise call.bad_attribute("high", f"is less than low, {call.attr('low')}", "high of at least low")
    if "scale" in call.attributes and not call.attr("scale") >= 0:
        raise call.bad_attribute("scale", f"{call.attr('scale')} is negative", "0 or more")


def _check_dtype(call: Call, dtype: DType, allowed: tuple[DType, ...]) -> None:
    if dtype not in allowed:
        raise call.bad_attribute("dtype", f"{dtype} is none of these", "one of " + ", ".join(d.name for d in allowed))


def _shaped(call: Call) -> tuple[Shape]:
    """Shape rule: the attribute `shape`, of floats."""
    shape = call.attr("shape")
    if min(shape, default=0) < 0:
        raise call.bad_attribute("shape", f"{list(shape)} has a negative extent", "0 or more")
    _check_dtype(call, call.attr("dtype"), FLOATS)
    _check_range(call)
    return (shape,)


def _like(call: Call) -> tuple[Shape]:
    """Shape rule: the input's shape, of floats."""
    call.types["T2"] = call.attr("dtype") or call.types["T1"]
    _check_dtype(call, call.types["T2"], FLOATS)
    _check_range(call)
    return (call.desc(0).shape,)


def _integers(call: Call) -> tuple[Shape]:
    shape, dtype, low, high = (call.attr(name) for name in ("shape", "dtype", "low", "high"))
    if min(shape, default=0) < 0:
        raise call.bad_attribute("shape", f"{list(shape)} has a negative extent", "0 or more")
    _check_dtype(call, dtype, INTEGERS)
    info = np.iinfo(dtype.numpy)
    if not max(info.min, -(2**63)) <= low < high <= min(int(info.max) + 1, 2**63):
        raise call.bad_attribute("high", f"{low} to {high} is no range of {dtype}", "low < high, within the dtype")
    return (shape,)


def _chances(call: Call) -> tuple[Shape]:
    call.types["T2"] = call.attr("dtype") or call.types["T1"]
    return (call.desc(0).shape,)


def _with_keys(rule: ShapeRule, first: int) -> ShapeRule:
    """Returns the rule with seed and offset checked before it."""

    def checked(call: Call) -> Any:
        _check_keys(call, first)
        return rule(call)

    return checked


def _seeded(rule: ShapeRule) -> ShapeRule:
    """Returns the rule for an op whose seed is an attribute.

    Without one the numbers would have to be others at each run, and a program is the same at each run.
    """

    def checked(call: Call) -> Any:
        if call.attr("seed") is None:
            raise call.bad_attribute(
                "seed", "is missing: the program would give the same numbers at each run", "a seed, or umd's op"
            )
        return rule(call)

    return checked


# templates


def _constant_keys(recorder: Recorder, call: Call) -> Keys:
    (bits,) = struct.unpack("<q", struct.pack("<d", call.attr("seed")))
    return recorder.scalar(bits, int64), recorder.scalar(0, int64)


def _drawing(draw: Draw, *, seeded: bool) -> Emit:
    """Returns an emitter of one draw; its keys are the inputs, or made of the attribute `seed`."""

    def emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
        keys = _constant_keys(recorder, call) if seeded else (views[0], views[1])
        return draw(recorder, call, recorder.out(call), keys)

    return emit


def _emit_bernoulli(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    p, *given = views
    keys = (given[0], given[1]) if given else _constant_keys(recorder, call)
    return _bernoulli(recorder, p, recorder.out(call), keys)


def _float(name: str, default: float) -> Attribute:
    return Attribute(name, "float", default)


_BOUNDS = (_float("high", 1.0), _float("low", 0.0))
_BELL = (_float("mean", 0.0), _float("scale", 1.0))
_SEED = Attribute("seed", "float")
_DTYPE, _ANY_DTYPE = Attribute("dtype", "dtype", float32), Attribute("dtype", "dtype")
_FROM = {"Uniform": ("uniform in [low, high)", _uniform, _BOUNDS), "Normal": ("normal", _normal, _BELL)}


def _own(name: str, shape: ShapeRule, draw: Draw, attributes: tuple[Attribute, ...], doc: str) -> OpTemplate:
    return OpTemplate(
        name,
        _KEYS,
        (Result("Y", "@dtype"),),
        _with_keys(shape, 0),
        _drawing(draw, seeded=False),
        attributes=(_SHAPE, *attributes),
        doc=f"{doc} {_PROMISE}",
        source=_SOURCE,
    )


TEMPLATES = (
    *(
        _own(f"umd.Random{kind}", _shaped, draw, (_DTYPE, *more), f"Random numbers, {how}, by seed and offset.")
        for kind, (how, draw, more) in _FROM.items()
    ),
    _own(
        "umd.RandomInteger",
        _integers,
        _integer,
        (Attribute("dtype", "dtype", int64), Attribute("high", "int", required=True), Attribute("low", "int", 0)),
        "Random integers, uniform in [low, high), by seed and offset.",
    ),
    OpTemplate(
        "umd.Bernoulli",
        (Input("input", "T1"), *_KEYS),
        (Result("output", "T2"),),
        _with_keys(_chances, 1),
        _emit_bernoulli,
        {"T1": FLOATS},
        (_ANY_DTYPE,),
        doc=f"1 with the chance that input holds, else 0, by seed and offset. {_PROMISE}",
        source=_SOURCE,
    ),
    *(
        OpTemplate(
            f"Random{kind}",
            (),
            (Result("output", "@dtype"),),
            _seeded(_shaped),
            _drawing(draw, seeded=True),
            attributes=(_DTYPE, *more, _SEED, _SHAPE),
            doc=f"Random numbers, {how}, by seed; the same at each run.",
        )
        for kind, (how, draw, more) in _FROM.items()
    ),
    *(
        OpTemplate(
            f"Random{kind}Like",
            (Input("input", "T1"),),
            (Result("output", "T2"),),
            _seeded(_like),
            _drawing(draw, seeded=True),
            {"T1": ALL},
            (_ANY_DTYPE, *more, _SEED),
            doc=f"Random numbers, {how}, in input's shape, by seed; the same at each run.",
        )
        for kind, (how, draw, more) in _FROM.items()
    ),
    OpTemplate(
        "Bernoulli",
        (Input("input", "T1"),),
        (Result("output", "T2"),),
        _seeded(_chances),
        _emit_bernoulli,
        {"T1": FLOATS},
        (_ANY_DTYPE, _SEED),
        doc="1 with the chance that input holds, else 0, by seed; the same at each run.",
    ),
)
