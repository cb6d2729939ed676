"""The spellings of a convolution that clients of the original protocol use, read as ONNX's Conv."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from umd_core.errors import AttributeValueError

NAMES = frozenset({"Conv", "Conv2d", "Conv2D"})
_ATTRIBUTES = {"stride": "strides", "pad": "pads", "padding": "pads", "dilation": "dilations", "groups": "group"}
_PER_AXIS = {"strides": 1, "dilations": 1, "pads": 2}
"""Attributes with numbers for each spatial axis, and how many."""


def as_onnx(op: str, attributes: Mapping[str, Any], spatial: int) -> dict[str, Any]:
    """Returns a convolution's attributes under ONNX's names, complete for `spatial` axes.

    One number stands for all axes, one number an axis for both of its sides. Text such as "1,1", "[1, 1]" or "(1, 1)"
    is read as numbers; what cannot be read is left for the op's schema to refuse.

    Raises:
        AttributeValueError: two spellings of one attribute.
    """
    found: dict[str, Any] = {}
    for name, value in attributes.items():
        known = _ATTRIBUTES.get(name, name)
        if known in found:
            raise AttributeValueError(op, known, "is given under two names", value=value, wanted="one of them")
        found[known] = _complete(_numbers(value), spatial, _PER_AXIS[known]) if known in _PER_AXIS else value
    return found


def _numbers(value: Any) -> Any:
    """Returns numbers as a list where the value is, or spells, one or more of them."""
    if isinstance(value, str):
        try:
            return [int(part) for part in value.strip().strip("[]()").split(",") if part.strip()]
        except ValueError:
            return value
    if isinstance(value, (int, float)):
        return [value]
    return value


def _complete(value: Any, spatial: int, per_axis: int) -> Any:
    if not isinstance(value, Sequence) or isinstance(value, str) or spatial < 1:
        return value
    if len(value) == 1:
        return [*value] * (spatial * per_axis)
    return [*value] * per_axis if len(value) == spatial else value
