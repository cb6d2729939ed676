"""RotaryEmbedding: pairs of numbers turned by an angle that depends on the position."""

from __future__ import annotations

from umd_core.attributes import Attribute
from umd_core.dtypes import FLOATS
from umd_core.recorder import Recorder
from umd_core.shaping import split_axis
from umd_core.template import Call, Input, OpTemplate, Result, Shape
from umd_core.views import View


def _sizes(call: Call) -> tuple[int, int, int, int]:
    """Returns (batch, sequence, heads, numbers of a head that turn) after checking the inputs against them."""
    x, heads = call.desc(0).shape, call.attr("num_heads")
    if len(x) == 4:
        batch, heads, sequence, head = x[0], x[1], x[2], x[3]
    elif len(x) == 3:
        if not heads or heads < 0 or x[2] % heads:
            raise call.bad_attribute("num_heads", f"{heads} does not divide {x[2]}", "the number of heads")
        batch, sequence, head = x[0], x[1], x[2] // heads
    else:
        raise call.error(f"has shape {list(x)}; three or four axes would be right", input="X")
    turned = call.attr("rotary_embedding_dim") or head
    if not 0 < turned <= head or turned % 2:
        detail = f"{turned} of {head} numbers cannot turn in pairs"
        raise call.bad_attribute("rotary_embedding_dim", detail, "an even number within the head")
    if call.has(3) and call.desc(3).shape != (batch, sequence):
        detail = f"has shape {list(call.desc(3).shape)}; {[batch, sequence]} would be right"
        raise call.error(detail, input="position_ids")
    for index in (1, 2):
        _check_cache(call, index, (batch, sequence, turned // 2))
    return batch, sequence, heads, turned


def _check_cache(call: Call, index: int, wanted: Shape) -> None:
    shape, name = call.desc(index).shape, call.template.inputs[index].name
    if call.has(3):
        if len(shape) != 2 or shape[1] != wanted[2] or not shape[0]:
            raise call.error(f"has shape {list(shape)}; [positions, {wanted[2]}] would be right", input=name)
    elif shape != wanted:
        raise call.error(f"has shape {list(shape)}; {list(wanted)} would be right", input=name)


def _shape(call: Call) -> tuple[Shape]:
    _sizes(call)
    return (call.desc(0).shape,)


def _emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    _, _, heads, turned = _sizes(call)
    out = recorder.out(call)
    x, y = (split_axis(v, 2, heads) if v.rank == 3 else v.permute((0, 2, 1, 3)) for v in (views[0], out))
    cosine, sine = (_placed(recorder, call, views, i).unsqueeze(2) for i in (1, 2))
    if call.attr("interleaved"):
        parts = [(v.slice(3, 0, turned // 2, 2), v.slice(3, 1, turned // 2, 2)) for v in (x, y)]
    else:
        parts = [(v.slice(3, 0, turned // 2), v.slice(3, turned // 2, turned // 2)) for v in (x, y)]
    (first, second), (real, imaginary) = parts
    for a, b, sign, target in ((first, second, "sub", real), (second, first, "add", imaginary)):
        left = recorder.expression("mul", (a, cosine), recorder.like(a))
        right = recorder.expression("mul", (b, sine), recorder.like(b))
        recorder.expression(sign, (left, right), target)
    if turned < x.shape[3]:
        recorder.copy(x.slice(3, turned, x.shape[3] - turned), y.slice(3, turned, x.shape[3] - turned))
    return out


def _placed(recorder: Recorder, call: Call, views: tuple[View, ...], index: int) -> View:
    """Returns a cache as (batch, sequence, pairs): its rows at position_ids, where they are given."""
    cache = views[index]
    if not call.has(3):
        return cache
    out = recorder.new(cache.dtype, (*views[3].shape, cache.shape[1]))
    rows = View(
        cache.buffer,
        cache.dtype,
        (*out.shape, cache.shape[0]),
        (0, 0, cache.strides[1], cache.strides[0]),
        cache.offset,
    )
    places = View(views[3].buffer, views[3].dtype, out.shape, (*views[3].strides, 0), views[3].offset)
    return recorder.gather(rows, places, out, cache.shape[0])


TEMPLATES = (
    OpTemplate(
        "RotaryEmbedding",
        (Input("X"), Input("cos_cache"), Input("sin_cache"), Input("position_ids", "int64", optional=True)),
        (Result("Y"),),
        _shape,
        _emit,
        {"T": FLOATS},
        (
            Attribute("interleaved", "bool", False),
            Attribute("num_heads", "int"),
            Attribute("rotary_embedding_dim", "int", 0),
        ),
        flops=lambda call: 3 * call.desc(0).element_count,
        doc="The first rotary_embedding_dim numbers of each head of X turned in pairs, neighbours if interleaved, else "
        "halves apart, by the angles whose cosines and sines the caches hold.",
        source="Su et al., RoFormer, arXiv:2104.09864",
    ),
)
