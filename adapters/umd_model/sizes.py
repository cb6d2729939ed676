"""Sizes that a model leaves open, and how the numbers of its graph follow from them.

Each number is a multilinear polynomial of the sizes with integer coefficients: Σ c_S · Π_{i∈S} (size_i - base_i), over
sets S of sizes. It is found from graphs of a few sizes and checked with others, near and far, so nothing of the
framework that made the graphs has to be understood.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from umd_core.errors import LimitError, ShapeError, UnsupportedError
from umd_core.ir import Graph
from umd_model.numbers import Path, numbers_of, replaced

MOST = 4
_STEPS = (1, 3)
"""How far from the base graphs are looked at: to find the polynomials, and to check them."""
_FAR = (1021, 127, 13)
"""How far each size alone is moved to see what changes seldom, as size // 8 does; less where tensors grow too large."""
Polynomial = dict[tuple[int, ...], int]
Look = Callable[[Sequence[int]], dict[Path, int] | None]
"""Returns the numbers of the graph for other sizes, None where it has other ops or constants."""


@dataclass(frozen=True, slots=True)
class Size:
    """A size that is left open.

    Attributes:
        base: what it is in the stored graph.
        least, most: what it may be.
    """

    name: str
    base: int
    least: int = 1
    most: int = 1 << 31


@dataclass(frozen=True, slots=True)
class Sizes:
    """Open sizes, and the numbers that depend on them, by path in the stored graph."""

    sizes: tuple[Size, ...] = ()
    numbers: Mapping[Path, Polynomial] = field(default_factory=dict)

    def check(self, values: Mapping[str, int]) -> tuple[int, ...]:
        """Returns the sizes in order; those that are not given are as in the stored graph.

        Raises:
            LimitError: one is outside its range.
        """
        given = tuple(values.get(size.name, size.base) for size in self.sizes)
        for size, value in zip(self.sizes, given, strict=True):
            if not size.least <= value <= size.most:
                raise LimitError(f"size {size.name!r}", value, size.most if value > size.most else size.least)
        return given

    def apply(self, graph: Graph, values: Mapping[str, int]) -> Graph:
        """Returns the stored graph for other sizes."""
        given = self.check(values)
        steps = [value - size.base for size, value in zip(self.sizes, given, strict=True)]
        return replaced(graph, {path: _value(number, steps) for path, number in self.numbers.items()})

    def extents(self, path: Path) -> str | None:
        """Returns the name of the size that a number is, None when it is none."""
        number = self.numbers.get(path)
        for index, size in enumerate(self.sizes):
            if number == {(): size.base, (index,): 1}:
                return size.name
        return None


def _value(number: Polynomial, steps: Sequence[int]) -> int:
    return sum(c * math.prod(steps[i] for i in chosen) for chosen, c in number.items())


def find_sizes(sizes: Sequence[Size], graph_for: Callable[[tuple[int, ...]], Graph]) -> tuple[Graph, Sizes]:
    """Returns the graph for the base sizes, and how its numbers depend on them.

    Args:
        sizes: those that are open.
        graph_for: returns the graph for certain sizes.

    Raises:
        LimitError: more than four sizes.
        ShapeError: a range leaves no room to look at other sizes.
        UnsupportedError: the graph is another one for other sizes, or depends on them in another way.
    """
    if len(sizes) > MOST:
        raise LimitError("open sizes", len(sizes), MOST)
    base = graph_for(tuple(size.base for size in sizes))
    rest, start = numbers_of(base)

    def look(offsets: Sequence[int]) -> dict[Path, int] | None:
        other, numbers = numbers_of(graph_for(tuple(s.base + o for s, o in zip(sizes, offsets, strict=True))))
        return numbers if other == rest else None

    samples: dict[tuple[int, ...], Mapping[Path, int]] = {(): start}
    steps = [_step(size, _STEPS[0]) for size in sizes]
    for chosen in _subsets(len(sizes)):
        if chosen:
            samples[chosen] = _of_this_graph(look([s if i in chosen else 0 for i, s in enumerate(steps)]), sizes)
    found = {path: _fit(path, samples, steps) for path in start if _varies(path, samples)}
    if sizes:
        offsets = [_step(size, _STEPS[1]) for size in sizes]
        _check(_of_this_graph(look(offsets), sizes), offsets, start, found)
    for index in range(len(sizes)):
        _check_alone(sizes, index, look, start, found)
    return base, Sizes(tuple(sizes), found)


def _of_this_graph(numbers: dict[Path, int] | None, sizes: Sequence[Size]) -> dict[Path, int]:
    if numbers is None:
        names = ", ".join(size.name for size in sizes)
        reason = f"the graph has other ops or constants for other sizes ({names})"
        raise UnsupportedError(f"{reason}: export it with fixed ones")
    return numbers


def _check(
    numbers: Mapping[Path, int], offsets: Sequence[int], start: Mapping[Path, int], found: Mapping[Path, Polynomial]
) -> None:
    for path, value in numbers.items():
        if value != (_value(found[path], offsets) if path in found else start[path]):
            raise _irregular(path)


def _check_alone(
    sizes: Sequence[Size], index: int, look: Look, start: Mapping[Path, int], found: Mapping[Path, Polynomial]
) -> None:
    """Checks the numbers with one size at its least, and far away."""
    size = sizes[index]
    least = _moved(sizes, index, min(max(size.least, 2), size.most) - size.base)  # at 1 many an op is needless
    _check(look(least) or {}, least, start, found)  # ops that are needless for few do as well
    for distance in _FAR:
        far = _moved(sizes, index, min(distance, size.most - size.base))
        with contextlib.suppress(LimitError):  # nearer, then: no device has tensors that large
            _check(_of_this_graph(look(far), sizes), far, start, found)
            return


def _moved(sizes: Sequence[Size], index: int, offset: int) -> list[int]:
    return [offset if i == index else 0 for i in range(len(sizes))]


def _step(size: Size, wanted: int) -> int:
    if size.base + wanted <= size.most:
        return wanted
    if size.base - wanted >= size.least:
        return -wanted
    detail = f"size {size.name!r} may only be {size.least} to {size.most}: too few to see what depends on it"
    raise ShapeError("export", detail, shapes=[])


def _subsets(count: int) -> list[tuple[int, ...]]:
    return [chosen for size in range(count + 1) for chosen in itertools.combinations(range(count), size)]


def _varies(path: Path, samples: Mapping[tuple[int, ...], Mapping[Path, int]]) -> bool:
    return len({numbers[path] for numbers in samples.values()}) > 1


def _fit(path: Path, samples: Mapping[tuple[int, ...], Mapping[Path, int]], steps: Sequence[int]) -> Polynomial:
    """Returns the polynomial through the samples: differences of differences, divided by the steps."""
    found: Polynomial = {}
    for chosen in samples:
        total = sum(
            (-1) ** (len(chosen) - len(part)) * samples[part][path] for part in samples if set(part) <= set(chosen)
        )
        coefficient, remainder = divmod(total, math.prod(steps[i] for i in chosen))
        if remainder:
            raise _irregular(path)
        if coefficient or not chosen:
            found[chosen] = coefficient
    return found


def _irregular(path: Path) -> UnsupportedError:
    where = ".".join(map(str, path))
    return UnsupportedError(f"{where} does not follow from the sizes by sums and products: export it with fixed sizes")
