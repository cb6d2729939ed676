"""A fused elementwise chain as one launch a step, each value a tensor of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from umd_core.dtypes import bool_
from umd_core.kernels.chain import TRUTHS, words
from umd_core.kernels.expressions import PRIMITIVES
from umd_core.recorder import Recorder
from umd_core.shaping import accumulator, widen
from umd_core.views import View


def chain(
    recorder: Recorder, extents: Mapping[str, Any], operands: Mapping[str, View], fields: Mapping[str, Any]
) -> None:
    """Records an expression for each step of the program, in float32 or more."""
    out = operands["out"]
    dtype = accumulator(out.dtype)
    wide: dict[str, View] = {}
    stack: list[View] = []
    results: list[View] = []
    for word in words(fields["program"]):
        if word in PRIMITIVES:
            arguments = stack[-PRIMITIVES[word] :]
            del stack[-PRIMITIVES[word] :]
            made = recorder.new(bool_ if word in TRUTHS else dtype, out.shape)
            results.append(recorder.expression(word, arguments, made))
            stack.append(made)
        elif word[0] == "t":
            stack.append(results[int(word[1:])])
        elif word[0] == "c":
            stack.append(recorder.scalar(fields["constants"][int(word[1:])], dtype))
        else:
            if word not in wide:
                wide[word] = widen(recorder, operands[word])
            stack.append(wide[word])
    recorder.copy(stack[0], out)
