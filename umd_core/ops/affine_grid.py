"""AffineGrid: where an affine map of the output's places lies in the input, for GridSample."""

from __future__ import annotations

import math

import numpy as np

from umd_core.attributes import Attribute
from umd_core.dtypes import FLOATS
from umd_core.ir import Array
from umd_core.recorder import Recorder
from umd_core.shaping import settle, target
from umd_core.template import Call, Input, OpTemplate, Result, Shape
from umd_core.views import View


def _shape(call: Call) -> tuple[Shape]:
    theta, size = call.desc(0).shape, list(call.ints(1) or ())
    rank = len(size) - 2
    if rank not in (2, 3) or min(size) < 0:
        raise call.error(f"is {list(size)}; (N, C, H, W) or (N, C, D, H, W) would be right", input="size")
    if theta != (size[0], rank, rank + 1):
        detail = f"has shape {list(theta)}; {[size[0], rank, rank + 1]} would be right"
        raise call.error(detail, input="theta")
    return ((size[0], *size[2:], rank),)


def _axis(extent: int, *, align_corners: bool) -> Array:
    """Returns the places along an axis, -1 to 1 between the outer edges, or the centres of the outer elements."""
    at = np.arange(extent, dtype=np.float64)
    if align_corners:
        return at * (2 / (extent - 1)) - 1 if extent > 1 else at
    return np.asarray((2 * at + 1) / max(extent, 1) - 1)


def _emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    theta, out = views[0], recorder.out(call)
    batch, spatial, rank = out.shape[0], out.shape[1:-1], out.shape[-1]
    axes = np.meshgrid(*(_axis(n, align_corners=call.attr("align_corners")) for n in spatial), indexing="ij")
    places = np.stack([*reversed(axes), np.ones(spatial)], axis=-1).reshape(-1, rank + 1)
    flat = (batch, math.prod(spatial), rank)
    written = target(recorder, out, flat)
    recorder.gemm(recorder.constant(places.astype(theta.dtype.numpy)), theta.permute((0, 2, 1)), written)
    return settle(recorder, written, out)


TEMPLATES = (
    OpTemplate(
        "AffineGrid",
        (Input("theta", "T1"), Input("size", "int64", static=True)),
        (Result("grid", "T1"),),
        _shape,
        _emit,
        {"T1": FLOATS},
        (Attribute("align_corners", "bool", False),),
        flops=lambda call: 2 * call.outputs[0].element_count * call.desc(0).shape[2],
        doc="theta · (x, y, 1), or (x, y, z, 1), for every place of an output of size, -1 to 1 along each axis.",
        source="Jaderberg et al., Spatial transformer networks, arXiv:1506.02025",
    ),
)
