"""Which axes of a model's inputs stay open when it is exported: names, and torch's own `Dim`s."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch.export import Dim

from umd_core.errors import AttributeValueError

Axes = Mapping[str, Mapping[int, Any]]
Ranges = Mapping[str, tuple[int, int]]
_HINT: Any = type(Dim.AUTO)
"""The class of Dim.AUTO, Dim.DYNAMIC and Dim.STATIC, which torch does not name."""
MOST = 1 << 31
"""What an open size is at most where nobody says."""


class Opening(NamedTuple):
    """An axis that stays open.

    Attributes:
        size: name of its size.
        least, most: what it may be.
        dim: what torch.export is told of it.
        may_close: whether torch may give it a fixed size all the same (Dim.AUTO).
    """

    size: str
    least: int
    most: int
    dim: Any
    may_close: bool


def openings(dynamic: Axes, ranges: Ranges) -> dict[str, dict[int, Opening]]:
    """Returns the axes that stay open, by input.

    Args:
        dynamic: what the user says of an axis: a name, `torch.export.Dim`, `Dim.AUTO`, `Dim.DYNAMIC`; `Dim.STATIC` and
            None say that it is not open.
        ranges: least and most of open sizes, by name; a Dim's own range holds as well.

    Raises:
        AttributeValueError: it is something else, or a range is empty or of no open size.
    """
    given = {
        (name, axis): kind
        for name, axes in dynamic.items()
        for axis, kind in axes.items()
        if not (kind is None or (isinstance(kind, _HINT) and kind.type.name == "STATIC"))
    }
    limits: dict[str, tuple[int, int | None]] = {}
    for (name, axis), kind in given.items():
        size = _size(name, axis, kind)
        limits[size] = _narrowed(size, limits.get(size, (1, None)), *_range(size, kind, ranges))
    unknown = sorted(set(ranges) - set(limits))
    if unknown:
        wanted = f"one of {', '.join(sorted(limits)) or 'none: no axis is open'}"
        raise AttributeValueError("export", "ranges", f"no open size {unknown[0]!r}", wanted=wanted)
    dims = {size: Dim(size, min=least, max=most) for size, (least, most) in limits.items()}
    found: dict[str, dict[int, Opening]] = {name: {} for name in dynamic}
    for (name, axis), kind in given.items():
        size = _size(name, axis, kind)
        least, most = limits[size]
        hint = kind.type.name if isinstance(kind, _HINT) else ""
        dim = getattr(Dim, hint)(min=least, max=most) if hint else dims[size]
        found[name][axis] = Opening(size, least, MOST if most is None else most, dim, hint == "AUTO")
    return found


def _size(name: str, axis: int, kind: Any) -> str:
    """Returns the name of an axis's size; one without a name is called "x_0".

    Raises:
        AttributeValueError: it is not described by a name, a Dim or a hint, or the name is no identifier.
    """
    if isinstance(kind, _HINT):
        return f"{name}_{axis}"
    size = kind.__name__ if type(kind) is Dim else kind
    if not isinstance(size, str) or not size.isidentifier():
        detail = f"axis {axis} of {name} is {kind!r}"
        wanted = "a name such as 'batch', torch.export.Dim('batch'), Dim.AUTO or Dim.DYNAMIC; no formula"
        raise AttributeValueError("export", "dynamic", detail, value=str(kind), wanted=wanted)
    return size


def _range(size: str, kind: Any, ranges: Ranges) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    own = (None, None) if isinstance(kind, str) else (kind.min, kind.max)
    return own, ranges.get(size, (None, None))


def _narrowed(size: str, limit: tuple[int, int | None], *others: tuple[Any, Any]) -> tuple[int, int | None]:
    """Returns what all ranges allow; torch's own have infinity for no most.

    Raises:
        AttributeValueError: nothing.
    """
    least, most = limit
    for low, high in others:
        least = least if low is None else max(least, int(low))
        if high is not None and high < MOST:
            most = int(high) if most is None else min(most, int(high))
    if most is not None and most < least:
        detail = f"size {size!r} would be at least {least} and at most {most}"
        raise AttributeValueError("export", "ranges", detail, wanted="a range that is not empty")
    return least, most
