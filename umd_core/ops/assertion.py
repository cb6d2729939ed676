"""umd.Assert: an error when the program runs, where something does not hold."""

from __future__ import annotations

import numpy as np

from umd_core.attributes import Attribute
from umd_core.builders import no_flops
from umd_core.dtypes import bool_, int64
from umd_core.recorder import Recorder
from umd_core.template import Call, Input, OpTemplate, Result, same_shape
from umd_core.views import View


def _emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    """Reads the one element of a table, but past its end where the condition is false: an index out of range."""
    condition, out = views[0], recorder.out(call)
    where = (condition, recorder.scalar(0, int64), recorder.scalar(1, int64))
    place = recorder.expression("select", where, recorder.new(int64, condition.shape))
    table = recorder.constant(np.ones(1, np.bool_))
    source = View(table.buffer, bool_, (*out.shape, 1), (0,) * out.rank + table.strides, table.offset)
    return recorder.gather(source, place, out, 1)


TEMPLATES = (
    OpTemplate(
        "umd.Assert",
        (Input("condition", "bool"),),
        (Result("output", "bool"),),
        same_shape,
        _emit,
        attributes=(Attribute("message", "string", ""),),
        flops=no_flops,
        checks=True,
        doc="condition, all of it true; else the program fails with an index out of range. It runs whether the output "
        "is read or not. Errors name the node, which should say what message says.",
    ),
)
