"""Einsum: sums of products over named axes, two operands at a time: views, sums, and matrix products."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from umd_core.attributes import Attribute
from umd_core.dtypes import NUMERIC
from umd_core.recorder import Recorder
from umd_core.shaping import trailing
from umd_core.template import Call, Input, OpTemplate, Result, Shape
from umd_core.views import View

Labels = tuple[str, ...]
_TERM = re.compile(r"[A-Za-z]*(\.\.\.)?[A-Za-z]*")


class _Equation(NamedTuple):
    """Labels of each operand and of the result, and the extent of each label. Axes of "..." are named by numbers."""

    terms: list[Labels]
    result: Labels
    sizes: dict[str, int]


def _labels(call: Call, term: str, axes: int) -> Labels:
    """Returns a term's labels with `axes` of them in place of its "...", numbered so that the last one is 0."""
    if not _TERM.fullmatch(term):
        raise call.bad_attribute("equation", f"{term!r} is no term", "letters, with ... once at most")
    before, dots, after = term.partition("...")
    return (*before, *(str(i) for i in reversed(range(axes))), *after) if dots else tuple(before)


def _parse(call: Call) -> _Equation:
    text = call.attr("equation").replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(call.inputs):
        raise call.bad_attribute("equation", f"has {len(terms)} terms for {len(call.inputs)} inputs", "one an input")
    labels: list[Labels] = []
    sizes: dict[str, int] = {}
    most = 0
    for index, term in enumerate(terms):
        shape = call.desc(index).shape
        rest = len(shape) - len(term.replace("...", ""))
        if rest < 0 or (rest and "..." not in term):
            detail = f"number {index} has shape {list(shape)}, its term is {term!r}; one label an axis would be right"
            raise call.error(detail, input="Inputs")
        own = _labels(call, term, rest)
        most = max(most, rest if "..." in term else 0)
        labels.append(own)
        _bind(call, sizes, own, shape)
    if arrow:
        result = _labels(call, right, most)
    else:
        counts = Counter(label for own in labels for label in own)
        dots = tuple(str(i) for i in reversed(range(most)))
        result = (*dots, *sorted(label for label, count in counts.items() if count == 1 and label.isalpha()))
    if len(set(result)) != len(result) or not set(result) <= set(sizes):
        raise call.bad_attribute("equation", f"{text!r} gives axes twice or from nowhere", "labels of the inputs, once")
    return _Equation(labels, result, sizes)


def _bind(call: Call, sizes: dict[str, int], labels: Labels, shape: Shape) -> None:
    for label, extent in zip(labels, shape, strict=True):
        known = sizes.get(label, 1)
        if known != extent and 1 not in (known, extent):
            raise call.error(f"axis {label!r} is {known} and {extent}", input="Inputs")
        sizes[label] = extent if known == 1 else known


def _shape(call: Call) -> tuple[Shape]:
    equation = _parse(call)
    return (tuple(equation.sizes[label] for label in equation.result),)


def _diagonal(view: View, labels: Labels, sizes: dict[str, int]) -> tuple[View, Labels]:
    """Returns the view with each label once: equal ones become the diagonal; extents of 1 repeat."""
    strides: dict[str, int] = {}
    for label, extent, stride in zip(labels, view.shape, view.strides, strict=True):
        strides[label] = strides.get(label, 0) + (0 if extent == 1 else stride)
    shape = tuple(sizes[label] for label in strides)
    return View(view.buffer, view.dtype, shape, tuple(strides.values()), view.offset), tuple(strides)


def _summed(recorder: Recorder, view: View, labels: Labels, kept: set[str]) -> tuple[View, Labels]:
    """Returns the sum over the labels that nobody wants."""
    axes = [axis for axis, label in enumerate(labels) if label not in kept]
    if not axes:
        return view, labels
    rest = tuple(label for label in labels if label in kept)
    out = recorder.new(view.dtype, tuple(n for axis, n in enumerate(view.shape) if axis not in axes))
    return recorder.reduce("sum", view, axes, out), rest


def _pair(recorder: Recorder, a: tuple[View, Labels], b: tuple[View, Labels], kept: set[str]) -> tuple[View, Labels]:
    """Returns the product of two operands, summed over the labels that both have and nobody else wants."""
    both = [label for label in a[1] if label in b[1]]
    depth = [label for label in both if label not in kept]
    batch = [label for label in both if label in kept]
    rows = [label for label in a[1] if label not in both]
    columns = [label for label in b[1] if label not in both]
    sizes = dict(zip(a[1] + b[1], a[0].shape + b[0].shape, strict=True))
    extents = [tuple(sizes[label] for label in group) for group in (batch, rows, columns)]
    out = recorder.new(a[0].dtype, sum(extents, ()))
    left, right = _ordered(a, [*batch, *rows, *depth]), _ordered(b, [*batch, *depth, *columns])
    if depth:
        inner = math.prod(sizes[label] for label in depth)
        lead, height, width = extents[0], math.prod(extents[1]), math.prod(extents[2])
        matrices = recorder.reshape(left, (*lead, height, inner)), recorder.reshape(right, (*lead, inner, width))
        recorder.gemm(*matrices, recorder.reshape(out, (*lead, height, width)))
    else:
        for _ in rows:
            right = right.unsqueeze(len(batch))
        recorder.expression("mul", (trailing(left, len(columns)), right), out)
    return out, (*batch, *rows, *columns)


def _ordered(operand: tuple[View, Labels], order: Sequence[str]) -> View:
    return operand[0].permute([operand[1].index(label) for label in order])


def _emit(recorder: Recorder, call: Call, views: tuple[View, ...]) -> View:
    equation = _parse(call)
    operands = [_diagonal(v, own, equation.sizes) for v, own in zip(views, equation.terms, strict=True)]
    later = [set(equation.result).union(*(own for _, own in operands[i + 1 :])) for i in range(len(operands))]
    total = _summed(recorder, *operands[0], later[0])
    for operand, kept in zip(operands[1:], later[1:], strict=True):
        own = _summed(recorder, *operand, kept | set(total[1]))
        total = _pair(recorder, total, own, kept)
    total = _summed(recorder, *total, set(equation.result))
    return _ordered(total, equation.result)


def _flops(call: Call) -> int:
    return 2 * math.prod(_parse(call).sizes.values())


TEMPLATES = (
    OpTemplate(
        "Einsum",
        (Input("Inputs", variadic=True),),
        (Result("Output"),),
        _shape,
        _emit,
        {"T": NUMERIC},
        (Attribute("equation", "string", required=True),),
        flops=_flops,
        doc="The sum of products that the equation names, from the first input to the last; ... stands for axes that "
        "broadcast.",
    ),
)
