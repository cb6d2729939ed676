"""Identity: the same tensor."""

from __future__ import annotations

from umd_core.builders import no_flops
from umd_core.dtypes import ALL
from umd_core.recorder import Recorder
from umd_core.template import Call, Input, OpTemplate, Result, same_shape
from umd_core.views import View


def _emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    return views[0]


TEMPLATES = (
    OpTemplate(
        "Identity",
        (Input("input"),),
        (Result("output"),),
        same_shape,
        _emit,
        {"T": ALL},
        flops=no_flops,
        doc="The input itself; no data moves.",
    ),
)
