"""What happened in a captured run, one event a line of `events.jsonl`: both directions read one table."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from umd_core.encoding.layout import NUMBER_LIMIT

WORD_LIMIT = 1 << 64
_HASH = re.compile(r"[0-9a-f]{64}")


class Allocate(NamedTuple):
    """A buffer of `size` bytes was made; buffers are numbered from 0 in this order."""

    size: int


class Free(NamedTuple):
    """A buffer is gone."""

    buffer: int


class Write(NamedTuple):
    """The host changed bytes of a buffer, or (`snapshot`) they were read before work that needs them."""

    buffer: int
    offset: int
    size: int
    data: str
    snapshot: bool


class Read(NamedTuple):
    """The host read bytes; `data` is their SHA-256, "" when it was not recorded."""

    buffer: int
    offset: int
    size: int
    data: str


class NewFence(NamedTuple):
    """A fence was made; fences are numbered from 0 in this order."""


class Signal(NamedTuple):
    """The host raised a fence."""

    fence: int
    value: int


class Submit(NamedTuple):
    """A program (by the SHA-256 of its bytes) was submitted; submissions are numbered from 0 in this order.

    `bindings` are (buffer, offset, size), `waits` and `signals` are (fence, value).
    """

    program: str
    bindings: tuple[tuple[int, ...], ...]
    values: tuple[int, ...]
    waits: tuple[tuple[int, ...], ...]
    signals: tuple[tuple[int, ...], ...]
    queue: int


class Refused(NamedTuple):
    """The device refused a submission at once: it never ran."""

    submission: int


class Result(NamedTuple):
    """A submission ended: with `status` (0: well), and with these bytes in its writable bindings.

    `outputs` are (index of the binding, SHA-256); empty when they were not recorded.
    """

    submission: int
    status: int
    outputs: tuple[tuple[int, str], ...]


Event = Allocate | Free | Write | Read | NewFence | Signal | Submit | Refused | Result

KINDS: dict[str, type[Event]] = {
    "allocate": Allocate,
    "free": Free,
    "write": Write,
    "read": Read,
    "fence": NewFence,
    "signal": Signal,
    "submit": Submit,
    "refused": Refused,
    "result": Result,
}
_NAMES = {cls: name for name, cls in KINDS.items()}


def is_number(value: Any, limit: int = NUMBER_LIMIT) -> bool:
    """Returns whether a value of JSON is an integer from 0 to below `limit`."""
    return type(value) is int and 0 <= value < limit


def is_hash(value: Any) -> bool:
    """Returns whether a value of JSON is a SHA-256 in hexadecimal, fit to be a file's name."""
    return isinstance(value, str) and _HASH.fullmatch(value) is not None


def is_valid(event: Event) -> bool:
    """Returns whether every field of an event holds what `from_line` accepts."""
    return all(_CHECKS.get(name, is_number)(_thawed(value)) for name, value in event._asdict().items())


def _thawed(value: Any) -> Any:
    return list(map(_thawed, value)) if isinstance(value, tuple) else value


def _lists(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _numbers(*limits: int) -> Callable[[Any], bool]:
    """Returns a check for a list of numbers, each below its limit."""
    return lambda value: isinstance(value, list) and len(value) == len(limits) and all(map(is_number, value, limits))


_FENCES = _lists(_numbers(NUMBER_LIMIT, WORD_LIMIT))
_CHECKS: dict[str, Callable[[Any], bool]] = {
    "data": lambda value: value == "" or is_hash(value),
    "program": is_hash,
    "snapshot": lambda value: isinstance(value, bool),
    "value": lambda value: is_number(value, WORD_LIMIT),
    "bindings": _lists(_numbers(NUMBER_LIMIT, NUMBER_LIMIT, NUMBER_LIMIT)),
    "values": _lists(lambda value: is_number(value, WORD_LIMIT)),
    "waits": _FENCES,
    "signals": _FENCES,
    "outputs": _lists(
        lambda value: isinstance(value, list) and len(value) == 2 and is_number(value[0]) and is_hash(value[1])
    ),
}
"""What a field may be, by its name; any other is a number."""


def to_line(event: Event) -> bytes:
    """Returns an event as a line of JSON."""
    return json.dumps({"event": _NAMES[type(event)], **event._asdict()}, separators=(",", ":")).encode() + b"\n"


def from_line(line: bytes) -> Event:
    """Returns the event that a line stands for.

    Raises:
        ValueError: it is none; the message says what is wrong.
    """
    try:
        found: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")
    cls = KINDS.get(str(found.pop("event", "")))
    if cls is None:
        raise ValueError(f"the event is none of {', '.join(KINDS)}")
    if set(found) != set(cls._fields):
        raise ValueError(f"{_NAMES[cls]} has the fields {', '.join(cls._fields)}, not {', '.join(sorted(found))}")
    for name, value in found.items():
        if not _CHECKS.get(name, is_number)(value):
            raise ValueError(f"{name} cannot be {str(value)[:80]}")
    return cls(**{name: _frozen(value) for name, value in found.items()})


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
