"""What differs between two command buffers, command by command."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple

from umd_core.commands import Command, CommandBuffer, Dispatch
from umd_core.encoding.decode import decode
from umd_core.encoding.describe import command_fields, describe_header

Source = CommandBuffer | bytes | bytearray | memoryview
Pair = tuple[int | None, int | None]
_FEW = 2000
"""Commands up to which the differing part of two programs is matched up; beyond, it is compared by position."""


class Difference(NamedTuple):
    """Something that differs: where, and what each side has (None: nothing).

    `where` is like "command 3 parameters.a_offset"; the number is the left one's, or the right one's when only that
    side has the command.
    """

    where: str
    left: Any
    right: Any

    def __str__(self) -> str:
        if self.left is None:
            return f"{self.where}: only right: {self.right}"
        if self.right is None:
            return f"{self.where}: only left: {self.left}"
        return f"{self.where}: {self.left} | {self.right}"


def diff(left: Source, right: Source) -> list[Difference]:
    """Returns what differs between two command buffers; [] when their bytes are equal.

    Commands that were inserted or removed are found as such; the rest is compared field by field.

    Raises:
        DecodeError: one of them breaks a rule.
    """
    a, b = (x if isinstance(x, CommandBuffer) else decode(x) for x in (left, right))
    if bytes(a) == bytes(b):
        return []
    found = [d for d in _differences("", describe_header(a), describe_header(b)) if d.where not in ("size", "format")]
    pairs = list(_align([_key(a, c) for c in a.commands], [_key(b, c) for c in b.commands]))
    moved = {i: j for i, j in pairs if i is not None and j is not None}
    for i, j in pairs:
        found += _command_differences(a, b, i, j, moved)
    return found


def _command_differences(
    a: CommandBuffer, b: CommandBuffer, i: int | None, j: int | None, moved: dict[int, int]
) -> list[Difference]:
    if j is None:
        return [] if i is None else [Difference(f"command {i}", _text(a, i), None)]
    if i is None:
        return [Difference(f"command {j}", None, _text(b, j))]
    left, right = command_fields(a, a.commands[i]), command_fields(b, b.commands[j])
    if [moved.get(dep) for dep in a.commands[i].deps] == list(b.commands[j].deps):
        left["deps"] = right["deps"]
    if a.debug:
        left["debug"] = a.debug[i]._asdict()
    if b.debug:
        right["debug"] = b.debug[j]._asdict()
    return list(_differences(f"command {i} ", left, right))


def _text(cb: CommandBuffer, at: int) -> str:
    command = cb.commands[at]
    name = f" {cb.kernels[command.kernel].row.name}" if isinstance(command, Dispatch) else ""
    return type(command).__name__.upper() + name


def _key(cb: CommandBuffer, command: Command) -> Hashable:
    """Returns what makes two commands the same one: everything but dependencies, queue and the kernel's number."""
    kernel = cb.kernels[command.kernel].key if isinstance(command, Dispatch) else None
    rest = command._replace(deps=(), queue=0)
    return type(command), kernel, rest[1:] if isinstance(command, Dispatch) else rest


def _align(a: Sequence[Hashable], b: Sequence[Hashable]) -> Iterator[Pair]:
    """Yields which commands belong together, in order; None where one side has no counterpart."""
    start = next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    limit = min(len(a), len(b)) - start
    tail = zip(reversed(a[start:]), reversed(b[start:]), strict=False)
    end = next((n for n, (x, y) in enumerate(tail) if x != y), limit)
    yield from ((n, n) for n in range(start))
    middle_a, middle_b = range(start, len(a) - end), range(start, len(b) - end)
    if max(len(middle_a), len(middle_b)) > _FEW:
        yield from itertools.zip_longest(middle_a, middle_b)
    else:
        matcher = difflib.SequenceMatcher(None, [a[n] for n in middle_a], [b[n] for n in middle_b], autojunk=False)
        for _, i, i_end, j, j_end in matcher.get_opcodes():
            yield from itertools.zip_longest(middle_a[i:i_end], middle_b[j:j_end])
    yield from zip(range(len(a) - end, len(a)), range(len(b) - end, len(b)), strict=True)


def _differences(where: str, left: Any, right: Any) -> Iterator[Difference]:
    """Yields the leaves at which two pieces of data differ."""
    if isinstance(left, dict) and isinstance(right, dict):
        for name in {**left, **right}:
            separator = "." if where and not where.endswith(" ") else ""
            yield from _differences(f"{where}{separator}{name}", left.get(name), right.get(name))
    elif isinstance(left, list) and isinstance(right, list):
        for index, (x, y) in enumerate(itertools.zip_longest(left, right)):
            yield from _differences(f"{where}[{index}]", x, y)
    elif left != right:
        yield Difference(where, left, right)
